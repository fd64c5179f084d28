/* SPDX-License-Identifier: Apache-2.0 */
/*
 * all_reduce_norm_bulk.cu - one-shot for long calls: rows go through boxes (comm_device.h)
 *
 * Schedule: the first CTAs only send. Their warps copy pieces of the rows to the box of every peer, except one
 * warp, which fences each piece and stores its flag while the others copy the next one. The other clusters take
 * rows in turn: each thread loads its units, waits for the pieces that hold the row, sums in rank order, adds the
 * residual, and rounds. A cluster does this for its next two rows while it exchanges the sums of squares of the
 * last two; then it scales and stores those. With one row at a time, latency alone took 5.6 us for each. Flags also tell that this rank's own senders have read a piece, because
 * out may be x.
 *
 * A fence waits until all stores before it have been acknowledged. So few CTAs send, and a warp that copies never
 * fences (NOTES.md has the times of other forms).
 *
 * All CTAs of a launch must be resident; the grid is limited to what the device holds. What does not fit a box
 * takes further launches.
 *
 * shared memory   as all_reduce_norm.cu; of a sender: mbarriers of two pieces, copied and told
 * barriers        as all_reduce_norm.cu
 *
 * Floor: a crossing, and the bytes at the link's speed (370 GB/s: 91 us for 32 MB).
 */
#include "primitives/comm/all_reduce_norm.cuh"

#define LONG		(4 << 20)	/* bytes of a call, in rows of LONG_ROW bytes at least */
#define LONG_ROW	4096
#define SENDERS		64		/* CTAs that send */
#define PIECE		1024		/* vectors of 16 bytes */
#define COPIERS		(THREADS - 32)	/* threads of a sender that copy */
#define AT_ONCE		7		/* vectors of a thread; a piece takes one turn */

/* Returns the vectors of a row. */
static __host__ __device__ __forceinline__ int64_t row_vectors(const struct reduce_args &a)
{
	return a.units / 4;
}

/* mbarriers of a sender, for pieces in turn */
struct pieces {
	uint64_t copied[2], told[2];
};

ROW void copy_piece(const struct reduce_args &a, uint32_t number, uint32_t piece, uint32_t total)
{
	const uint32_t at = piece * PIECE + threadIdx.x, end = min(total, (piece + 1) * PIECE);
	uint4 v[AT_ONCE];

	static_assert(AT_ONCE * COPIERS >= PIECE, "one turn");
#pragma unroll
	for (int k = 0; k < AT_ONCE; k++)
		if (at + k * COPIERS < end)
			v[k] = ((const uint4 *)a.x)[at + k * COPIERS];
#pragma unroll 1
	for (int r = 0; r < a.c.ranks; r++) {
		uint4 *box = (uint4 *)comm_box(a.c, r, a.c.rank, number);

		if (r == a.c.rank)
			continue;
#pragma unroll
		for (int k = 0; k < AT_ONCE; k++)
			if (at + k * COPIERS < end)
				box[at + k * COPIERS] = v[k];
	}
}

/* Sends this CTA's pieces. The mbarriers have been initialised. */
ROW void send_pieces(const struct reduce_args &a, uint32_t number, uint32_t total, struct pieces *p)
{
	const bool copies = threadIdx.x < COPIERS;
	int nth = 0;

	for (uint32_t piece = blockIdx.x; piece * PIECE < total; piece += a.senders, nth++) {
		const uint32_t copied = ptx_smem(&p->copied[nth & 1]), told = ptx_smem(&p->told[nth & 1]);

		if (copies) {
			if (nth > 1)
				ptx_mbarrier_wait(told, (nth >> 1 & 1) ^ 1);
			copy_piece(a, number, piece, total);
			__syncwarp();
			if (threadIdx.x % 32 == 0)
				ptx_mbarrier_arrive(copied);
		} else if (threadIdx.x == COPIERS) {
			ptx_mbarrier_wait(copied, nth >> 1 & 1);
			comm_tell(a.c, number, piece);
			ptx_mbarrier_arrive(told);
		}
	}
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

/* What a thread has of the rows that its cluster handles together. */
template <int items, int together> struct row_sums {
	uint32_t unit[together][items][UNITS];	/* of the rounded sums */
	float squares[together];		/* its part of the sums of squares */
};

/* Sums rows `row`, row + step, and so on, as far as there are any. */
template <int dtype, int items, int together>
ROW void sum_rows(const struct reduce_args &a, uint32_t number, uint32_t cta, int row, int step,
		  struct row_sums<items, together> &to)
{
	constexpr int n = UNITS * unit_elements(dtype);
	uint32_t mine[together][items][UNITS], old[together][items][UNITS] = {};
	int words[together][items];

#pragma unroll
	for (int j = 0; j < together; j++) {
		const int64_t at = (int64_t)(row + j * step) * a.units;

#pragma unroll
		for (int k = 0; k < items; k++) {
			words[j][k] = row + j * step < a.rows ? word_of(a, cta, k) : -1;
			load_units(a.x + at, a, words[j][k], mine[j][k]);
			if (a.residual)
				load_units(a.residual + at, a, words[j][k], old[j][k]);
		}
	}
#pragma unroll
	for (int j = 0; j < together; j++)
		if (row + j * step < a.rows)
			await_row(a, number, row + j * step);
#pragma unroll
	for (int i = 0; i < together * items; i++) {
		const int j = i / items, k = i % items;
		float t[n], f[n];

#pragma unroll 1
		for (int r = 0; r < a.c.ranks; r++) {
			uint32_t u[UNITS] = { mine[j][k][0], mine[j][k][1], mine[j][k][2] };

			if (r != a.c.rank)
				load_units((const uint32_t *)comm_box(a.c, a.c.rank, r, number) +
					   (int64_t)(row + j * step) * a.units, a, words[j][k], u);
			word_unpack<dtype>(make_uint4(u[0], u[1], u[2], 0), f);
#pragma unroll
			for (int e = 0; e < n; e++)
				t[e] = r ? t[e] + f[e] : f[e];
		}
		round_sum<dtype>(a, old[j][k], t, to.unit[j][k]);
		to.squares[j] = k ? to.squares[j] : 0;
#pragma unroll
		for (int e = 0; e < n; e++)
			to.squares[j] += t[e] * t[e];
	}
}

template <int dtype, int items, int together>
__global__ void __launch_bounds__(THREADS, items > 1 ? 2 : 4)
all_reduce_norm_bulk_kernel(const __grid_constant__ struct reduce_args a)
{
	const uint32_t cta = ptx_cluster_ctarank(), total = (uint32_t)(a.rows * row_vectors(a));
	const int first = ((int)blockIdx.x - a.senders) >> a.shift;
	const int step = ((int)gridDim.x - a.senders) >> a.shift;
	uint32_t weight[items][UNITS], number, entered = 0, turn = 0;
	struct row_sums<items, together> sums;
	__shared__ struct parts s_parts;
	__shared__ struct pieces s_pieces;

	static_assert(2 * together <= PARTS, "the sums of the next rows may be given before these are taken");
	if (threadIdx.x == 0) {
		for (int i = 0; i < 2; i++) {
			ptx_mbarrier_init(ptx_smem(&s_pieces.copied[i]), COPIERS / 32);
			ptx_mbarrier_init(ptx_smem(&s_pieces.told[i]), 1);
		}
	}
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
		if (sends)
			send_pieces(a, number, total, &s_pieces);
	} else if (first < a.rows) {
		sum_rows<dtype, items, together>(a, number, cta, first, step, sums);
	}
	for (int row = first; first >= 0 && row < a.rows; row += together * step, turn += together) {
		const struct row_sums<items, together> now = sums;

#pragma unroll
		for (int j = 0; j < together; j++)
			if (row + j * step < a.rows)
				cluster_give(now.squares[j], cta, &s_parts, turn + j);
		if (row + together * step < a.rows)
			sum_rows<dtype, items, together>(a, number, cta, row + together * step, step, sums);
#pragma unroll
		for (int j = 0; j < together; j++) {
			float scale;

			if (row + j * step >= a.rows)
				break;
			scale = rsqrtf(cluster_take(&s_parts, turn + j) / a.dim + a.eps);
#pragma unroll
			for (int k = 0; k < items; k++)
				store_word<dtype>(a, (int64_t)(row + j * step) * a.units, word_of(a, cta, k),
						  scale, weight[k], now.unit[j][k]);
		}
	}
	if (threadIdx.x == 0)
		comm_leave(a.c, number, entered);
}

static const void *kernel_of(int dtype, int items)
{
#define OF(dtype, most) \
	(items <= 1 ? (const void *)all_reduce_norm_bulk_kernel<dtype, 1, 2> : \
		      (const void *)all_reduce_norm_bulk_kernel<dtype, most, 1>)
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
