/* SPDX-License-Identifier: Apache-2.0 */
/*
 * all_reduce_norm.cu - one-shot: every rank sends its rows to all others, and sums and norms all rows itself
 *
 * Schedule: a row is a sequence of 32-bit units (an fp32 element, or two of 16 bits). An LL word carries
 * three of them and the number of the call (comm_device.h), so that no fence, flag or barrier between GPUs is
 * needed: a word has arrived when it holds the number. A cluster of up to 8 CTAs shares a row, and clusters
 * take rows in turn. A cluster sends AHEAD rows first: each thread loads its units and stores a word to every
 * peer. Then it handles the rows one by one, and sends one more row with each, so that the link is busy all
 * the time. A thread polls the same words from every peer, sums them in rank order, adds the residual, and
 * keeps the rounded sum in registers; warps exchange their sums of squares through distributed shared memory;
 * then every thread scales and stores its units.
 *
 * Rows that exceed a mailbox take several launches. Long calls are those of all_reduce_norm_long.cu.
 *
 * All clusters of a launch must be resident: otherwise clusters that wait for a peer could fill the device,
 * and those for which the peer waits could not start. The grid is limited to what the device holds.
 *
 * shared memory   s_parts   400 bytes: sums of squares of the cluster's warps, and their mbarriers
 * barriers        one __syncthreads and one cluster barrier a launch, and an mbarrier for each row. No buffer
 *                 of sums is overwritten early: a CTA that sends its sums of row k + 2 has received those of
 *                 row k + 1 from all warps, which had read row k before
 *
 * Floor: a launch in a graph (0.8 us), a load (0.5), a crossing (0.8), the words at the link's speed (16 / 12
 * of the bytes at 370 GB/s: 0.06 us for 16 KB, 3.8 us for 1 MB), the norm (0.5) and the store (0.3).
 */
#include "primitives/comm/all_reduce_norm.cuh"

#define AHEAD		4	/* rows that a cluster has sent when it handles a row */

/* A thread's k-th word of a row, or -1. */
ROW int word_of(const struct reduce_args &a, uint32_t cta, int k)
{
	int i = threadIdx.x + k * THREADS, w = cta * a.part + i;

	return i < a.part && w < a.words ? w : -1;
}

ROW void send_word(const struct reduce_args &a, int row, int w, uint32_t number, const uint32_t *u)
{
#pragma unroll 1
	for (int r = 0; w >= 0 && r < a.c.ranks; r++)
		if (r != a.c.rank)
			ptx_st_relaxed_sys_b128(comm_word(a.c, r, a.c.rank, number, row * a.words + w),
						make_uint4(u[0], u[1], u[2], number));
}

/* Adds the units of all ranks for word w of a row, in rank order. mine: this rank's. */
template <int dtype>
ROW void sum_ranks(const struct reduce_args &a, int row, int w, uint32_t number, const uint32_t *mine,
		   float *t)
{
	constexpr int n = UNITS * unit_elements(dtype);
	uint4 got[CAIRN_COMM_MAX_RANKS];
	float f[n];

#pragma unroll
	for (int r = 0; r < CAIRN_COMM_MAX_RANKS; r++)	/* all first looks are in flight together */
		if (w >= 0 && r < a.c.ranks && r != a.c.rank)
			got[r] = ptx_ld_relaxed_sys_b128(comm_word(a.c, a.c.rank, r, number,
								   row * a.words + w));
#pragma unroll
	for (int r = 0; r < CAIRN_COMM_MAX_RANKS; r++) {
		if (w < 0 || r >= a.c.ranks)
			continue;
		if (r == a.c.rank)
			got[r] = make_uint4(mine[0], mine[1], mine[2], number);
		else
			got[r] = comm_await(a.c, COMM_ALL_REDUCE_NORM, number, r,
					    comm_word(a.c, a.c.rank, r, number, row * a.words + w), got[r]);
		word_unpack<dtype>(got[r], f);
#pragma unroll
		for (int j = 0; j < n; j++)
			t[j] = r ? t[j] + f[j] : f[j];
	}
}

/* The same for one or two ranks. The order of two terms does not matter. */
template <int dtype>
ROW void sum_pair(const struct reduce_args &a, int row, int w, uint32_t number, const uint32_t *mine,
		  float *t)
{
	constexpr int n = UNITS * unit_elements(dtype);
	const int peer = 1 - a.c.rank;
	float f[n];

	word_unpack<dtype>(make_uint4(mine[0], mine[1], mine[2], 0), t);
	if (w < 0 || a.c.ranks == 1)
		return;
	const char *word = comm_word(a.c, a.c.rank, peer, number, row * a.words + w);
	const uint4 got = comm_await(a.c, COMM_ALL_REDUCE_NORM, number, peer, word,
				     ptx_ld_relaxed_sys_b128(word));

	word_unpack<dtype>(got, f);
#pragma unroll
	for (int j = 0; j < n; j++)
		t[j] += f[j];
}

/* Sums of squares of the cluster's warps, for two rows in turn; `full` counts the bytes that have come. */
struct parts {
	uint64_t full[2];
	float2 sum[2][MAX_CLUSTER * WARPS / 2];
};

/*
 * Returns the sum over the cluster, with the same bits in every thread: the order is that of the warps. Every
 * warp stores its sum into all CTAs. Nothing is fenced: st.async tells the receiver of its arrival, and a
 * release would also wait for the words on their way to the peers. turn: number of the row in this launch.
 */
ROW float cluster_sum(float v, uint32_t cta, struct parts *parts, uint32_t turn)
{
	const uint32_t size = ptx_cluster_nctarank(), lane = threadIdx.x % 32, half = turn & 1;
	const uint32_t full = ptx_smem(&parts->full[half]);
	const float2 *part = parts->sum[half];

	v = row_warp_sum(v);
	if (threadIdx.x == 0)
		ptx_mbarrier_arrive_expect_tx(full, size * WARPS * 4);
	if (lane < size)
		ptx_st_async_b32(ptx_mapa(ptx_smem(part) + (cta * WARPS + threadIdx.x / 32) * 4, lane),
				 __float_as_uint(v), ptx_mapa(full, lane));
	ptx_mbarrier_wait_cluster(full, turn >> 1 & 1);
	return sum_parts(part, size);
}

/* Stores word w of a row: the residual, and t after the norm. */
template <int dtype>
ROW void store_word(const struct reduce_args &a, int64_t at, int w, float scale, const uint32_t *weight,
		    const uint32_t *sum)
{
#pragma unroll
	for (int j = 0; j < UNITS; j++) {
		if (w < 0 || w * UNITS + j >= a.units)
			continue;
		a.out[at + w * UNITS + j] = norm_unit<dtype>(a, j, scale, weight, sum);
		if (a.residual)
			a.residual[at + w * UNITS + j] = sum[j];
	}
}

template <int dtype, int items, bool pair>
__global__ void __launch_bounds__(THREADS, items > 1 ? 2 : pair ? 4 : 3)
all_reduce_norm_kernel(const __grid_constant__ struct reduce_args a)
{
	constexpr int n = UNITS * unit_elements(dtype);
	const uint32_t cta = ptx_cluster_ctarank();
	const int first = blockIdx.x >> a.shift, step = gridDim.x >> a.shift;
	uint32_t weight[items][UNITS], mine[items][UNITS], number, entered = 0, turn = 0;
	int next = first + step;	/* the row that is sent next */
	bool sends;
	__shared__ struct parts s_parts;

	if (threadIdx.x == 0) {
		ptx_mbarrier_init(ptx_smem(&s_parts.full[0]), 1);
		ptx_mbarrier_init(ptx_smem(&s_parts.full[1]), 1);
		ptx_fence_mbarrier_init_release_cluster();
	}
	__syncwarp();
	ptx_barrier_cluster_arrive_relaxed();
#pragma unroll
	for (int k = 0; k < items; k++)
		load_units(a.weight, a, word_of(a, cta, k), weight[k]);
	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
#pragma unroll
	for (int k = 0; k < items; k++)
		load_units(a.x + (int64_t)first * a.units, a, word_of(a, cta, k), mine[k]);
	number = comm_number(a.c);
	sends = !comm_has_failed(a.c);
	if (sends) {
#pragma unroll
		for (int k = 0; k < items; k++)
			send_word(a, first, word_of(a, cta, k), number, mine[k]);
		for (; next < a.rows && next < first + AHEAD * step; next += step) {
#pragma unroll
			for (int k = 0; k < items; k++) {
				const int w = word_of(a, cta, k);
				uint32_t u[UNITS];

				load_units(a.x + (int64_t)next * a.units, a, w, u);
				send_word(a, next, w, number, u);
			}
		}
	}
	__syncthreads();
	if (threadIdx.x == 0)
		entered = comm_enter(a.c);
	for (int row = first; row < a.rows; row += step, next += step) {
		const int64_t at = (int64_t)row * a.units;
		const bool more = sends && next < a.rows;
		uint32_t units[items][UNITS];
		float sum = 0, scale;

#pragma unroll
		for (int k = 0; k < items; k++) {
			const int w = word_of(a, cta, k);
			uint32_t old[UNITS] = { 0, 0, 0 }, ahead[UNITS];
			float t[n] = { 0 };

			if (more)
				load_units(a.x + (int64_t)next * a.units, a, w, ahead);
			if (a.residual)
				load_units(a.residual + at, a, w, old);
			if (row != first)
				load_units(a.x + at, a, w, mine[k]);
			if (pair)
				sum_pair<dtype>(a, row, w, number, mine[k], t);
			else
				sum_ranks<dtype>(a, row, w, number, mine[k], t);
			if (more)
				send_word(a, next, w, number, ahead);
			round_sum<dtype>(a, old, t, units[k]);
#pragma unroll
			for (int j = 0; j < n; j++)
				sum += t[j] * t[j];
		}
		if (row == first)	/* all CTAs of the cluster have started, and their mbarriers count */
			ptx_barrier_cluster_wait_acquire();
		sum = cluster_sum(sum, cta, &s_parts, turn++);
		scale = rsqrtf(sum / a.dim + a.eps);
#pragma unroll
		for (int k = 0; k < items; k++)
			store_word<dtype>(a, at, word_of(a, cta, k), scale, weight[k], units[k]);
	}
	if (threadIdx.x == 0)
		comm_leave(a.c, number, entered);
}

/* ---- launching ---- */

static const void *kernel_of(int dtype, int items, int ranks)
{
#define FOR(dtype, items) \
	(ranks <= 2 ? (const void *)all_reduce_norm_kernel<dtype, items, true> : \
		      (const void *)all_reduce_norm_kernel<dtype, items, false>)
#define OF(dtype, most) (items <= 1 ? FOR(dtype, 1) : FOR(dtype, most))
	/* the longest row has 342 words for a CTA of a cluster of 8, or 683 in fp32 */
	return dtype == CAIRN_F32 ? OF(CAIRN_F32, 4) : dtype == CAIRN_F16 ? OF(CAIRN_F16, 2) :
	       OF(CAIRN_BF16, 2);
#undef OF
#undef FOR
}

static int launch(const struct cairn_all_reduce_norm_args *a, struct reduce_args *r, void *stream)
{
	struct cairn_launch l = { .pdl = 1, .stream = stream };
	void *params[] = { r };
	const void *kernel;
	int clusters, most = (int)(COMM_WORDS / r->words);

	l.cluster = 1 << r->shift;
	l.grid[0] = l.cluster;
	l.block[0] = THREADS;
	kernel = kernel_of(a->dtype, (r->part + THREADS - 1) / THREADS, a->comm.ranks);
	clusters = cairn_max_active_clusters(kernel, &l);
	if (clusters < 1)
		return clusters < 0 ? clusters :
			cairn_error(EOPNOTSUPP, "all_reduce_norm: the device holds no cluster of %d",
				    l.cluster);
	for (int first = 0; first < a->rows; first += most) {
		const int64_t at = (int64_t)first * r->units;

		r->rows = a->rows - first < most ? a->rows - first : most;
		r->x = (const uint32_t *)a->x + at;
		r->out = (uint32_t *)a->out + at;
		r->residual = a->residual ? (uint32_t *)a->residual + at : NULL;
		l.grid[0] = (unsigned int)((r->rows < clusters ? r->rows : clusters) * l.cluster);
		CAIRN_TRY(cairn_launch(kernel, &l, params));
	}
	return 0;
}

extern "C" int cairn_all_reduce_norm(const struct cairn_all_reduce_norm_args *a, void *stream)
{
	struct reduce_args r = {};

	CAIRN_TRY(cairn_all_reduce_norm_check(a));
	CAIRN_TRY(comm_cuda_device(&a->comm, "all_reduce_norm", &r.c));
	if (a->rows == 0)
		return 0;
	r.weight = (const uint32_t *)a->weight;
	r.units = a->dtype == CAIRN_F32 ? a->dim : a->dim / 2;
	r.words = (r.units + UNITS - 1) / UNITS;
	r.shift = r.words <= THREADS ? 0 : r.words <= 2 * THREADS ? 1 : r.words <= 4 * THREADS ? 2 : 3;
	r.part = (r.words + (1 << r.shift) - 1) >> r.shift;
	r.dim = (float)a->dim;
	r.eps = a->eps;
	r.weight_offset = a->weight_offset;
	return all_reduce_norm_is_long(a) ? all_reduce_norm_long(a, &r, stream) : launch(a, &r, stream);
}
