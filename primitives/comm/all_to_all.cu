/* SPDX-License-Identifier: Apache-2.0 */
/*
 * all_to_all.cu - every rank stores its blocks into the mailboxes of the others, as LL words
 *
 * Schedule: the threads of the grid share the groups of 48 bytes of a block (comm_copy.cuh). They store the
 * blocks of all peers, beginning with the next rank, so that the ranks do not all send to one. Then they copy
 * the own block, and wait for the words of the others in the order in which these send. Blocks that exceed a
 * mailbox take several launches.
 *
 * A CTA waits for the words that its counterparts send before they wait. All CTAs of a launch are resident at
 * once, on a device that is not full of other work that never ends.
 *
 * barriers   one __syncthreads
 *
 * Floor: a launch in a graph (0.8 us), a load (0.5), a crossing (0.8), and 16 / 12 of the bytes at the link's
 * speed (370 GB/s).
 */
#include "primitives/base/launch.h"
#include "primitives/comm/all_to_all.h"
#include "primitives/comm/comm_copy.cuh"

#define THREADS		256
#define GROUPS		2	/* of a thread: a launch has at most 512 CTAs */

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
