/* SPDX-License-Identifier: Apache-2.0 */
/*
 * all_reduce_norm_bulk.cu - one-shot for long calls: rows go through boxes (comm_device.h)
 *
 * Schedule: the first CTAs only send. They copy pieces of the rows to the box of every peer; after each, one
 * warp fences and stores a flag, while the others go on. The other clusters take rows in turn: each thread
 * loads its units, waits for the pieces that hold the row, sums in rank order, adds the residual, and rounds.
 * A cluster does this for its next row while it exchanges the sums of squares of the last one; then it scales
 * and stores that. Flags also tell that this rank's own senders have read a piece, because out may be x.
 *
 * Fences are why few CTAs send: a fence waits until all stores before it have been acknowledged. With a piece
 * and a fence for each row, all clusters sending, a call of 32 MB took 309 us, where words take 189.
 *
 * All CTAs of a launch must be resident; the grid is limited to what the device holds. What does not fit a
 * box takes further launches.
 *
 * shared memory, barriers   as all_reduce_norm.cu; a __syncthreads for each piece
 *
 * Floor: a crossing, and the bytes at the link's speed (370 GB/s: 91 us for 32 MB).
 */
#include "primitives/comm/all_reduce_norm.cuh"

#define LONG		(2 << 20)	/* bytes of a call, in rows of LONG_ROW bytes at least */
#define LONG_ROW	4096
#define SENDERS		64		/* CTAs that send */
#define PIECE		1024		/* vectors of 16 bytes */
#define AT_ONCE		4		/* vectors of a thread */

/* Returns the vectors of a row. */
static __host__ __device__ __forceinline__ int64_t row_vectors(const struct reduce_args &a)
{
	return a.units / 4;
}

ROW void send_piece(const struct reduce_args &a, uint32_t number, uint32_t piece, uint32_t total)
{
	const uint32_t end = min(total, (piece + 1) * PIECE);

	for (uint32_t at = piece * PIECE + threadIdx.x; at < end; at += AT_ONCE * THREADS) {
		uint4 v[AT_ONCE];

#pragma unroll
		for (int k = 0; k < AT_ONCE; k++)
			if (at + k * THREADS < end)
				v[k] = ((const uint4 *)a.x)[at + k * THREADS];
#pragma unroll 1
		for (int r = 0; r < a.c.ranks; r++) {
			uint4 *box = (uint4 *)comm_box(a.c, r, a.c.rank, number);

			if (r == a.c.rank)
				continue;
#pragma unroll
			for (int k = 0; k < AT_ONCE; k++)
				if (at + k * THREADS < end)
					box[at + k * THREADS] = v[k];
		}
	}
	__syncthreads();
	if (threadIdx.x == piece / a.senders % WARPS * 32)
		comm_tell(a.c, number, piece);
}

/* Waits until all ranks' pieces that hold a row have been sent. Called by all lanes. */
ROW void await_row(const struct reduce_args &a, uint32_t number, int row)
{
	const uint32_t vectors = (uint32_t)row_vectors(a), first = row * vectors / PIECE;
	const uint32_t pieces = ((row + 1) * vectors - 1) / PIECE - first + 1;

	for (uint32_t i = threadIdx.x % 32; i < pieces * a.c.ranks; i += 32)
		comm_await_piece(a.c, COMM_ALL_REDUCE_NORM, number, i / pieces, first + i % pieces);
	__syncwarp();
}

/* Sums a row: units of the rounded sum, and this thread's part of the sum of squares. */
template <int dtype, int items>
ROW float sum_row(const struct reduce_args &a, uint32_t number, uint32_t cta, int row, uint32_t (*sum)[UNITS])
{
	constexpr int n = UNITS * unit_elements(dtype);
	const int64_t at = (int64_t)row * a.units;
	uint32_t mine[items][UNITS], old[items][UNITS] = {};
	float squares = 0;

#pragma unroll
	for (int k = 0; k < items; k++) {
		load_units(a.x + at, a, word_of(a, cta, k), mine[k]);
		if (a.residual)
			load_units(a.residual + at, a, word_of(a, cta, k), old[k]);
	}
	await_row(a, number, row);
#pragma unroll
	for (int k = 0; k < items; k++) {
		float t[n], f[n];

#pragma unroll 1
		for (int r = 0; r < a.c.ranks; r++) {
			uint32_t u[UNITS] = { mine[k][0], mine[k][1], mine[k][2] };

			if (r != a.c.rank)
				load_units((const uint32_t *)comm_box(a.c, a.c.rank, r, number) + at, a,
					   word_of(a, cta, k), u);
			word_unpack<dtype>(make_uint4(u[0], u[1], u[2], 0), f);
#pragma unroll
			for (int j = 0; j < n; j++)
				t[j] = r ? t[j] + f[j] : f[j];
		}
		round_sum<dtype>(a, old[k], t, sum[k]);
#pragma unroll
		for (int j = 0; j < n; j++)
			squares += t[j] * t[j];
	}
	return squares;
}

template <int dtype, int items>
__global__ void __launch_bounds__(THREADS, items > 1 ? 2 : 4)
all_reduce_norm_bulk_kernel(const __grid_constant__ struct reduce_args a)
{
	const uint32_t cta = ptx_cluster_ctarank(), total = (uint32_t)(a.rows * row_vectors(a));
	const int first = ((int)blockIdx.x - a.senders) >> a.shift;
	const int step = ((int)gridDim.x - a.senders) >> a.shift;
	uint32_t weight[items][UNITS], sum[items][UNITS], number, entered = 0, turn = 0;
	__shared__ struct parts s_parts;
	float squares;

	cluster_begin(&s_parts);
#pragma unroll
	for (int k = 0; k < items; k++)
		load_units(a.weight, a, word_of(a, cta, k), weight[k]);
	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	number = comm_number(a.c);
	const bool sends = !comm_has_failed(a.c);

	__syncthreads();
	if (threadIdx.x == 0)
		entered = comm_enter(a.c);
	ptx_barrier_cluster_wait_acquire();
	if (first < 0) {
		for (uint32_t piece = blockIdx.x; sends && piece * PIECE < total; piece += a.senders)
			send_piece(a, number, piece, total);
	} else if (first < a.rows) {
		squares = sum_row<dtype, items>(a, number, cta, first, sum);
	}
	for (int row = first; first >= 0 && row < a.rows; row += step) {
		uint32_t now[items][UNITS];
		float scale;

		cluster_give(squares, cta, &s_parts, turn);
#pragma unroll
		for (int k = 0; k < items * UNITS; k++)
			now[k / UNITS][k % UNITS] = sum[k / UNITS][k % UNITS];
		if (row + step < a.rows)
			squares = sum_row<dtype, items>(a, number, cta, row + step, sum);
		scale = rsqrtf(cluster_take(&s_parts, turn++) / a.dim + a.eps);
#pragma unroll
		for (int k = 0; k < items; k++)
			store_word<dtype>(a, (int64_t)row * a.units, word_of(a, cta, k), scale, weight[k],
					  now[k]);
	}
	if (threadIdx.x == 0)
		comm_leave(a.c, number, entered);
}

static const void *kernel_of(int dtype, int items)
{
#define OF(dtype, most) \
	(items <= 1 ? (const void *)all_reduce_norm_bulk_kernel<dtype, 1> : \
		      (const void *)all_reduce_norm_bulk_kernel<dtype, most>)
	return dtype == CAIRN_F32 ? OF(CAIRN_F32, 4) : dtype == CAIRN_F16 ? OF(CAIRN_F16, 2) :
	       OF(CAIRN_BF16, 2);
#undef OF
}

int all_reduce_norm_is_long(const struct cairn_all_reduce_norm_args *a)
{
	const int64_t row = (int64_t)a->dim * (a->dtype == CAIRN_F32 ? 4 : 2);

	return a->comm.ranks > 1 && row >= LONG_ROW && row * a->rows >= LONG;
}

int all_reduce_norm_bulk(const struct cairn_all_reduce_norm_args *a, struct reduce_args *r, void *stream)
{
	struct cairn_launch l = { .pdl = 1, .stream = stream };
	void *params[] = { r };
	const int most = (int)(COMM_BOX / 4 / r->units);
	const void *kernel;
	int clusters;

	reduce_shape(r, &l);
	kernel = kernel_of(a->dtype, (r->part + THREADS - 1) / THREADS);
	l.grid[0] = l.cluster;
	clusters = cairn_max_active_clusters(kernel, &l);
	r->senders = SENDERS;
	if (clusters < 0)
		return clusters;
	clusters -= SENDERS / l.cluster;
	if (clusters < 1)
		return cairn_error(EOPNOTSUPP, "all_reduce_norm: the device holds too few clusters of %d",
				   l.cluster);
	for (int first = 0; first < a->rows; first += most) {
		const int64_t at = (int64_t)first * r->units;

		r->rows = a->rows - first < most ? a->rows - first : most;
		r->x = (const uint32_t *)a->x + at;
		r->out = (uint32_t *)a->out + at;
		r->residual = a->residual ? (uint32_t *)a->residual + at : NULL;
		l.grid[0] = (unsigned int)((r->rows < clusters ? r->rows : clusters) * l.cluster + SENDERS);
		CAIRN_TRY(cairn_launch(kernel, &l, params));
	}
	return 0;
}
