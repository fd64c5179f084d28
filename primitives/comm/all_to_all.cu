/* SPDX-License-Identifier: Apache-2.0 */
/*
 * all_to_all.cu - every rank stores its blocks into the mailboxes of the others, as LL words
 *
 * Schedule: the threads of the grid share the groups of 48 bytes of a block (comm_copy.cuh). They store the
 * blocks of all peers, beginning with the next rank, so that the ranks do not all send to one. Then they copy
 * the own block, and wait for the words of the others in the order in which these send. Blocks that exceed a
 * mailbox take several launches.
 *
 * Blocks of LONG bytes and more go to boxes instead (comm_device.h), in pieces. A CTA sends AHEAD pieces
 * before it receives one, so that the link is busy while pieces are copied out of the boxes.
 *
 * Deadlock is excluded. A CTA waits only for words or pieces that its counterparts on the peers send before
 * they wait for the same ones, and all CTAs of a launch fit on the device at once, unless other work occupies
 * its SMs for ever.
 *
 * barriers   one __syncthreads; with long blocks, one more for each piece that a CTA sends
 *
 * Floor: a launch in a graph (0.8 us), a load (0.5), a crossing (0.8), and 16 / 12 of the bytes at the link's
 * speed (370 GB/s); long blocks: the bytes.
 */
#include "primitives/base/launch.h"
#include "primitives/comm/all_to_all.h"
#include "primitives/comm/comm_copy.cuh"

#define THREADS		256
#define GROUPS		2	/* of a thread: a launch has at most 512 CTAs */
#define LONG		(1 << 20)	/* bytes of a block that goes to a box */
#define LONGER		(8 << 20)	/* bytes of one that has twice as long pieces */
#define AHEAD		2
#define LONG_CTAS	2	/* of an SM */

struct exchange_args {
	struct comm_device c;
	struct comm_rows out, x;		/* of block 0 */
	int64_t out_block, x_block;
};

static __device__ __forceinline__ struct comm_rows block_of(struct comm_rows rows, int64_t block, int r)
{
	rows.base += r * block;
	return rows;
}

__global__ void __launch_bounds__(THREADS, 4)
all_to_all_kernel(const __grid_constant__ struct exchange_args a)
{
	const int n = a.c.ranks, rank = a.c.rank;
	uint32_t number, entered = 0;

	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	number = comm_number(a.c);
	if (!comm_has_failed(a.c))
		for (int i = 1; i < n; i++)
			comm_send_rows(a.c, (rank + i) % n, number,
				       block_of(a.x, a.x_block, (rank + i) % n));
	__syncthreads();
	if (threadIdx.x == 0)
		entered = comm_enter(a.c);
	comm_copy_rows(block_of(a.out, a.out_block, rank), block_of(a.x, a.x_block, rank));
	for (int i = 1; i < n; i++)
		comm_receive_rows(a.c, COMM_ALL_TO_ALL, (rank + n - i) % n, number,
				  block_of(a.out, a.out_block, (rank + n - i) % n));
	if (threadIdx.x == 0)
		comm_leave(a.c, number, entered);
}

/*
 * Copies a piece of two lists of vectors; `from` or `to` is a box, or both are rows. In a piece, a thread has
 * `each` vectors.
 */
template <int each, class From, class To>
static __device__ __forceinline__ void copy_piece(uint32_t piece, uint32_t total, From from, To to)
{
	const uint32_t first = piece * each * THREADS;
	uint4 v[each];

#pragma unroll
	for (int k = 0; k < each; k++) {
		const uint32_t i = first + k * THREADS + threadIdx.x;

		if (i < total)
			v[k] = *from(i);
	}
#pragma unroll
	for (int k = 0; k < each; k++) {
		const uint32_t i = first + k * THREADS + threadIdx.x;

		if (i < total)
			*to(i) = v[k];
	}
}

template <int each>
static __device__ __forceinline__ void send_piece(const struct exchange_args &a, uint32_t number,
						  uint32_t piece)
{
	for (int i = 1; i < a.c.ranks; i++) {
		const int to = (a.c.rank + i) % a.c.ranks;
		const struct comm_rows x = block_of(a.x, a.x_block, to);
		uint4 *box = (uint4 *)comm_box(a.c, to, a.c.rank, number);

		copy_piece<each>(piece, x.total, [&](uint32_t k) { return comm_vector(x, k); },
			   [&](uint32_t k) { return box + k; });
	}
	__syncthreads();
	if (threadIdx.x == piece % (THREADS / 32) * 32)		/* a fence takes long, so warps take turns */
		comm_tell(a.c, number, piece);
}

template <int each>
static __device__ __forceinline__ void receive_piece(const struct exchange_args &a, uint32_t number,
						     uint32_t piece)
{
	const int lane = threadIdx.x % 32;
	struct comm_rows out = block_of(a.out, a.out_block, a.c.rank), x = block_of(a.x, a.x_block, a.c.rank);

	copy_piece<each>(piece, x.total, [&](uint32_t k) { return comm_vector(x, k); },
		   [&](uint32_t k) { return comm_vector(out, k); });
	if (lane < a.c.ranks && lane != a.c.rank)
		comm_await_piece(a.c, COMM_ALL_TO_ALL, number, lane, piece);
	__syncwarp();
	for (int i = 1; i < a.c.ranks; i++) {
		const int from = (a.c.rank + a.c.ranks - i) % a.c.ranks;
		const uint4 *box = (const uint4 *)comm_box(a.c, a.c.rank, from, number);

		out = block_of(a.out, a.out_block, from);
		copy_piece<each>(piece, out.total, [&](uint32_t k) { return box + k; },
			   [&](uint32_t k) { return comm_vector(out, k); });
	}
}

template <int each>
__global__ void __launch_bounds__(THREADS, 2 * LONG_CTAS)
all_to_all_long_kernel(const __grid_constant__ struct exchange_args a)
{
	const uint32_t pieces = (a.x.total + each * THREADS - 1) / (each * THREADS), step = gridDim.x;
	uint32_t number, entered = 0, sent = blockIdx.x;
	bool sends;

	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	number = comm_number(a.c);
	sends = !comm_has_failed(a.c);
	__syncthreads();
	if (threadIdx.x == 0)
		entered = comm_enter(a.c);
	for (uint32_t piece = blockIdx.x; piece < pieces; piece += step) {
		for (; sends && sent < pieces && sent <= piece + AHEAD * step; sent += step)
			send_piece<each>(a, number, sent);
		receive_piece<each>(a, number, piece);
	}
	if (threadIdx.x == 0)
		comm_leave(a.c, number, entered);
}

/* Exchanges rows through boxes: as many as a box holds in a launch, by CTAs that are all resident. */
static int exchange_long(const struct cairn_all_to_all_args *a, struct exchange_args *e,
			 struct cairn_launch *l)
{
	const int32_t most = COMM_BOX / a->row_bytes, sms = cairn_num_sms();
	const bool longer = (int64_t)a->rows * a->row_bytes >= LONGER;
	const void *kernel = longer ? (const void *)all_to_all_long_kernel<8> :
				      (const void *)all_to_all_long_kernel<4>;
	const unsigned int piece = (longer ? 8 : 4) * THREADS;
	void *params[] = { e };

	if (sms < 0)
		return sms;
	for (int32_t first = 0; first < a->rows; first += most) {
		const int32_t rows = a->rows - first < most ? a->rows - first : most;
		unsigned int pieces;

		e->out.total = e->x.total = (uint32_t)rows * e->x.row;
		e->out.base = (char *)a->out + first * a->out_stride;
		e->x.base = (char *)a->x + first * a->x_stride;
		pieces = (e->x.total + piece - 1) / piece;
		l->grid[0] = pieces < (unsigned int)(LONG_CTAS * sms) ? pieces : LONG_CTAS * sms;
		CAIRN_TRY(cairn_launch(kernel, l, params));
	}
	return 0;
}

extern "C" int cairn_all_to_all(const struct cairn_all_to_all_args *a, void *stream)
{
	struct cairn_launch l = { .block = { THREADS }, .pdl = 1, .stream = stream };
	struct exchange_args e = {};
	void *params[] = { &e };
	int32_t most;

	CAIRN_TRY(cairn_all_to_all_check(a));
	CAIRN_TRY(comm_cuda_device(&a->comm, "all_to_all", &e.c));
	e.out_block = a->out_block;
	e.x_block = a->x_block;
	e.out.stride = a->out_stride;
	e.x.stride = a->x_stride;
	e.out.row = e.x.row = a->row_bytes / 16;
	if (a->comm.ranks > 1 && (int64_t)a->rows * a->row_bytes >= LONG)
		return exchange_long(a, &e, &l);
	most = COMM_VECTORS / e.x.row;
	for (int32_t first = 0; first < a->rows; first += most) {
		const int32_t rows = a->rows - first < most ? a->rows - first : most;

		e.out.total = e.x.total = rows * e.x.row;
		e.out.base = (char *)a->out + first * a->out_stride;
		e.x.base = (char *)a->x + first * a->x_stride;
		l.grid[0] = (e.x.total + 3 * GROUPS * THREADS - 1) / (3 * GROUPS * THREADS);
		CAIRN_TRY(cairn_launch((const void *)all_to_all_kernel, &l, params));
	}
	return 0;
}
