/* SPDX-License-Identifier: Apache-2.0 */
/*
 * all_reduce_norm.cu - one-shot: every rank sends its rows to all others, and sums and norms all rows itself;
 * long calls of more than two ranks are two-shot: a row's owner sums it, and sends the sum to all others
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
 * Two-shot, row i belongs to rank i mod ranks, which alone gets the others' units. It sends the rounded sum,
 * residual included, to all, and they only norm it. A rank then sends 2 (n - 1) / n of the bytes and not
 * n - 1 times as many. No waits can close a circle: a row's sum waits for units that were sent when earlier
 * rows had been handled, and other ranks wait for the sum. If a wait for units fails, the sum is not sent. A
 * sender's mailbox has units in its first half and sums in its second. Both ways give the same bits.
 *
 * How a row is divided depends on dim and dtype alone, so that bits do not depend on the number of rows.
 * Rows that exceed a mailbox take several launches.
 *
 * All clusters of a launch must be resident, or they might fill the device while those that the peer waits
 * for cannot start; the grid is limited to what the device holds.
 *
 * shared memory   s_parts   400 bytes: sums of squares of the cluster's warps, and their mbarriers
 * barriers        one __syncthreads and one cluster barrier a launch, and an mbarrier for each row. No buffer
 *                 of sums is overwritten early: a CTA that sends its sums of row k + 2 has received those of
 *                 row k + 1 from all warps, which had read row k before
 *
 * Floor: a launch in a graph (0.8 us), a load (0.5), a crossing (0.8), the words at the link's speed (16 / 12
 * of the bytes at 370 GB/s: 0.06 us for 16 KB, 3.8 us for 1 MB), the norm (0.5) and the store (0.3).
 */
#include "primitives/base/launch.h"
#include "primitives/comm/all_reduce_norm.h"
#include "primitives/comm/comm_device.cuh"
#include "primitives/rows/row.cuh"

#define THREADS		192
#define WARPS		(THREADS / 32)
#define UNITS		3	/* of a word */
#define MAX_CLUSTER	8
#define AHEAD		4	/* rows that a cluster has sent when it handles a row */
#define TWO_SHOT_BYTES	(512 << 10)	/* of x, from which on more than two ranks share the sums out */

enum way { PAIR, ONE_SHOT, TWO_SHOT };

struct reduce_args {
	struct comm_device c;
	const uint32_t *x, *weight;
	uint32_t *out, *residual;	/* residual may be NULL */
	int32_t rows, units, words;	/* units and words of a row */
	int32_t part;			/* words of a row that a CTA has */
	int32_t shift;			/* a cluster has 1 << shift CTAs */
	float dim, eps, weight_offset;
};

/* elements of a unit */
static __host__ __device__ constexpr int unit_elements(int dtype)
{
	return dtype == CAIRN_F32 ? 1 : 2;
}

template <int dtype> ROW void unit_unpack(uint32_t u, float *f)
{
	if (dtype == CAIRN_F32)
		f[0] = __uint_as_float(u);
	else
		row_unpack2<dtype>(u, f);
}

template <int dtype> ROW uint32_t unit_pack(const float *f)
{
	return dtype == CAIRN_F32 ? __float_as_uint(f[0]) : row_pack2<dtype>(f[0], f[1]);
}

/* A thread's k-th word of a row, or -1. */
ROW int word_of(const struct reduce_args &a, uint32_t cta, int k)
{
	int i = threadIdx.x + k * THREADS, w = cta * a.part + i;

	return i < a.part && w < a.words ? w : -1;
}

/* Loads the units of word w; those beyond the row are 0. */
ROW void load_units(const uint32_t *row, const struct reduce_args &a, int w, uint32_t u[UNITS])
{
#pragma unroll
	for (int j = 0; j < UNITS; j++)
		u[j] = w >= 0 && w * UNITS + j < a.units ? row[w * UNITS + j] : 0;
}

ROW void send_word(const struct reduce_args &a, int row, int w, uint32_t number, const uint32_t *u)
{
#pragma unroll 1
	for (int r = 0; w >= 0 && r < a.c.ranks; r++)
		if (r != a.c.rank)
			ptx_st_relaxed_sys_b128(comm_word(a.c, r, a.c.rank, number, row * a.words + w),
						make_uint4(u[0], u[1], u[2], number));
}

template <int dtype> ROW void word_unpack(uint4 v, float *f)
{
	constexpr int n = unit_elements(dtype);

	unit_unpack<dtype>(v.x, f);
	unit_unpack<dtype>(v.y, f + n);
	unit_unpack<dtype>(v.z, f + 2 * n);
}

/* Places in a mailbox of word w of a row: two-shot, those of its units and of its sum. */
ROW uint32_t units_at(const struct reduce_args &a, int row, int w)
{
	return row / a.c.ranks * a.words + w;
}

ROW uint32_t sum_at(const struct reduce_args &a, int row, int w)
{
	return COMM_WORDS / 2 + units_at(a, row, w);
}

/* Sends word w of a row to its owner. */
ROW void send_units(const struct reduce_args &a, int row, int w, uint32_t number, const uint32_t *u)
{
	const int owner = row % a.c.ranks;

	if (w >= 0 && owner != a.c.rank)
		ptx_st_relaxed_sys_b128(comm_word(a.c, owner, a.c.rank, number, units_at(a, row, w)),
					make_uint4(u[0], u[1], u[2], number));
}

/* Sends word w of the sum of an own row to all other ranks. */
ROW void send_sum(const struct reduce_args &a, int row, int w, uint32_t number, const uint32_t *u)
{
#pragma unroll 1
	for (int r = 0; w >= 0 && r < a.c.ranks; r++)
		if (r != a.c.rank)
			ptx_st_relaxed_sys_b128(comm_word(a.c, r, a.c.rank, number, sum_at(a, row, w)),
						make_uint4(u[0], u[1], u[2], number));
}

/*
 * Adds the units of all ranks for a word, in rank order. at: the word's place in mailboxes; w < 0: there is
 * no word. mine: this rank's units. Returns whether all have come.
 */
template <int dtype>
ROW bool sum_ranks(const struct reduce_args &a, uint32_t at, int w, uint32_t number, const uint32_t *mine,
		   float *t)
{
	constexpr int n = UNITS * unit_elements(dtype);
	uint4 got[CAIRN_COMM_MAX_RANKS];
	bool all = true;
	float f[n];

#pragma unroll
	for (int r = 0; r < CAIRN_COMM_MAX_RANKS; r++)	/* all first looks are in flight together */
		if (w >= 0 && r < a.c.ranks && r != a.c.rank)
			got[r] = ptx_ld_relaxed_sys_b128(comm_word(a.c, a.c.rank, r, number, at));
#pragma unroll
	for (int r = 0; r < CAIRN_COMM_MAX_RANKS; r++) {
		if (w < 0 || r >= a.c.ranks)
			continue;
		if (r == a.c.rank)
			got[r] = make_uint4(mine[0], mine[1], mine[2], number);
		else
			got[r] = comm_await(a.c, COMM_ALL_REDUCE_NORM, number, r,
					    comm_word(a.c, a.c.rank, r, number, at), got[r]);
		all &= got[r].w == number;
		word_unpack<dtype>(got[r], f);
#pragma unroll
		for (int j = 0; j < n; j++)
			t[j] = r ? t[j] + f[j] : f[j];
	}
	return all;
}

/* Waits for word w of a row's sum from its owner: its units, and t, what they stand for. */
template <int dtype>
ROW void take_sum(const struct reduce_args &a, int row, int w, uint32_t number, float *t, uint32_t *sum)
{
	const int owner = row % a.c.ranks;
	uint4 got = make_uint4(0, 0, 0, 0);

	if (w >= 0) {
		const char *word = comm_word(a.c, a.c.rank, owner, number, sum_at(a, row, w));

		got = comm_await(a.c, COMM_ALL_REDUCE_NORM, number, owner, word,
				 ptx_ld_relaxed_sys_b128(word));
	}
	sum[0] = got.x;
	sum[1] = got.y;
	sum[2] = got.z;
	word_unpack<dtype>(got, t);
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

/* Adds the residual, of which `old` are the units, to t, and rounds. sum: units of the result. */
template <int dtype>
ROW void round_sum(const struct reduce_args &a, const uint32_t *old, float *t, uint32_t *sum)
{
	constexpr int n = unit_elements(dtype);

#pragma unroll
	for (int j = 0; j < UNITS; j++) {
		float f[n];

		unit_unpack<dtype>(old[j], f);
#pragma unroll
		for (int e = 0; e < n; e++)
			f[e] = a.residual ? t[j * n + e] + f[e] : t[j * n + e];
		sum[j] = unit_pack<dtype>(f);
		unit_unpack<dtype>(sum[j], t + j * n);
	}
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
	float sum[WARPS] = { 0 };

	v = row_warp_sum(v);
	if (threadIdx.x == 0)
		ptx_mbarrier_arrive_expect_tx(full, size * WARPS * 4);
	if (lane < size)
		ptx_st_async_b32(ptx_mapa(ptx_smem(part) + (cta * WARPS + threadIdx.x / 32) * 4, lane),
				 __float_as_uint(v), ptx_mapa(full, lane));
	ptx_mbarrier_wait_cluster(full, turn >> 1 & 1);
	for (uint32_t i = 0; i < size; i++) {
#pragma unroll
		for (int k = 0; k < WARPS / 2; k++) {
			const float2 two = part[i * (WARPS / 2) + k];

			sum[2 * k] += two.x;
			sum[2 * k + 1] += two.y;
		}
	}
	return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + (sum[4] + sum[5]);
}

/* Stores word w of a row: the residual, and t after the norm. */
template <int dtype>
ROW void store_word(const struct reduce_args &a, int64_t at, int w, float scale, const uint32_t *weight,
		    const uint32_t *sum)
{
	constexpr int n = unit_elements(dtype);

#pragma unroll
	for (int j = 0; j < UNITS; j++) {
		float t[n], g[n];

		unit_unpack<dtype>(sum[j], t);
		unit_unpack<dtype>(weight[j], g);
#pragma unroll
		for (int e = 0; e < n; e++)
			t[e] = t[e] * scale * (a.weight_offset + g[e]);
		if (w < 0 || w * UNITS + j >= a.units)
			continue;
		a.out[at + w * UNITS + j] = unit_pack<dtype>(t);
		if (a.residual)
			a.residual[at + w * UNITS + j] = sum[j];
	}
}

/* Sends what this rank has of a row to those that sum it. */
template <int way>
ROW void send_row_word(const struct reduce_args &a, int row, int w, uint32_t number, const uint32_t *u)
{
	if (way == TWO_SHOT)
		send_units(a, row, w, number, u);
	else
		send_word(a, row, w, number, u);
}

template <int dtype, int items, int way>
__global__ void __launch_bounds__(THREADS, items > 1 ? 2 : way == PAIR ? 4 : 3)
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
			send_row_word<way>(a, first, word_of(a, cta, k), number, mine[k]);
		for (; next < a.rows && next < first + AHEAD * step; next += step) {
#pragma unroll
			for (int k = 0; k < items; k++) {
				const int w = word_of(a, cta, k);
				uint32_t u[UNITS];

				load_units(a.x + (int64_t)next * a.units, a, w, u);
				send_row_word<way>(a, next, w, number, u);
			}
		}
	}
	__syncthreads();
	if (threadIdx.x == 0)
		entered = comm_enter(a.c);
	for (int row = first; row < a.rows; row += step, next += step) {
		const int64_t at = (int64_t)row * a.units;
		const bool more = sends && next < a.rows;
		const bool is_mine = way != TWO_SHOT || row % a.c.ranks == a.c.rank;	/* to sum */
		uint32_t units[items][UNITS];
		float sum = 0, scale;

#pragma unroll
		for (int k = 0; k < items; k++) {
			const int w = word_of(a, cta, k);
			uint32_t old[UNITS] = { 0, 0, 0 }, ahead[UNITS];
			float t[n] = { 0 };
			bool good = true;

			if (more)
				load_units(a.x + (int64_t)next * a.units, a, w, ahead);
			if (a.residual && is_mine)
				load_units(a.residual + at, a, w, old);
			if (row != first && is_mine)
				load_units(a.x + at, a, w, mine[k]);
			if (way == PAIR)
				sum_pair<dtype>(a, row, w, number, mine[k], t);
			else if (way == ONE_SHOT)
				sum_ranks<dtype>(a, row * a.words + w, w, number, mine[k], t);
			else if (is_mine)
				good = sum_ranks<dtype>(a, units_at(a, row, w), w, number, mine[k], t);
			if (more)
				send_row_word<way>(a, next, w, number, ahead);
			if (is_mine)
				round_sum<dtype>(a, old, t, units[k]);
			else
				take_sum<dtype>(a, row, w, number, t, units[k]);
			if (way == TWO_SHOT && is_mine && sends && good)
				send_sum(a, row, w, number, units[k]);
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

static const void *kernel_of(int dtype, int items, enum way way)
{
#define FOR(dtype, items) \
	(way == PAIR ? (const void *)all_reduce_norm_kernel<dtype, items, PAIR> : \
	 way == ONE_SHOT ? (const void *)all_reduce_norm_kernel<dtype, items, ONE_SHOT> : \
			   (const void *)all_reduce_norm_kernel<dtype, items, TWO_SHOT>)
#define OF(dtype, most) (items <= 1 ? FOR(dtype, 1) : FOR(dtype, most))
	/* the longest row has 342 words for a CTA of a cluster of 8, or 683 in fp32 */
	return dtype == CAIRN_F32 ? OF(CAIRN_F32, 4) : dtype == CAIRN_F16 ? OF(CAIRN_F16, 2) :
	       OF(CAIRN_BF16, 2);
#undef OF
#undef FOR
}

/*
 * The sums of a short rest of the rows, too, are shared out only if every rank has some: a rank whose sums
 * have come has ended the call before, and then its mailboxes of two calls ago may be written again.
 */
static enum way way_of(const struct cairn_all_reduce_norm_args *a, int rows)
{
	const int64_t bytes = (int64_t)rows * a->dim * (a->dtype == CAIRN_F32 ? 4 : 2);

	return a->comm.ranks <= 2 ? PAIR :
	       bytes < TWO_SHOT_BYTES || rows < a->comm.ranks ? ONE_SHOT : TWO_SHOT;
}

/* Returns the most rows of a launch. */
static int most_rows(const struct reduce_args *r, enum way way)
{
	return way == TWO_SHOT ? (int)(COMM_WORDS / 2 / r->words) * r->c.ranks : (int)(COMM_WORDS / r->words);
}

static int launch(const struct cairn_all_reduce_norm_args *a, struct reduce_args *r, void *stream)
{
	struct cairn_launch l = { .pdl = 1, .stream = stream };
	void *params[] = { r };

	r->shift = r->words <= THREADS ? 0 : r->words <= 2 * THREADS ? 1 : r->words <= 4 * THREADS ? 2 : 3;
	l.cluster = 1 << r->shift;
	l.block[0] = THREADS;
	r->part = (r->words + l.cluster - 1) / l.cluster;
	for (int first = 0; first < a->rows; first += r->rows) {
		const int64_t at = (int64_t)first * r->units;
		const int left = a->rows - first;
		const enum way way = way_of(a, left);
		const void *kernel = kernel_of(a->dtype, (r->part + THREADS - 1) / THREADS, way);
		int clusters;

		l.grid[0] = l.cluster;
		clusters = cairn_max_active_clusters(kernel, &l);
		if (clusters < 1)
			return clusters < 0 ? clusters :
				cairn_error(EOPNOTSUPP, "all_reduce_norm: the device holds no cluster of %d",
					    l.cluster);
		r->rows = left < most_rows(r, way) ? left : most_rows(r, way);
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
	r.dim = (float)a->dim;
	r.eps = a->eps;
	r.weight_offset = a->weight_offset;
	return launch(a, &r, stream);
}
