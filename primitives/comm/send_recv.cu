/* SPDX-License-Identifier: Apache-2.0 */
/*
 * send_recv.cu - stores rows into the mailbox of one rank, as LL words, and waits for those of another
 *
 * Schedule: as all_to_all.cu, with one block. To the ranks that get nothing else, the first CTA sends one
 * word, and it waits for such a word of every rank: mailboxes are free in time only if every call awaits all
 * ranks (comm_device.h).
 *
 * barriers   one __syncthreads
 *
 * Floor: as all_to_all.cu.
 */
#include "primitives/base/launch.h"
#include "primitives/comm/comm_copy.cuh"
#include "primitives/comm/send_recv.h"

#define THREADS		256
#define GROUPS		2	/* of a thread: a launch has at most 128 CTAs */

struct step_args {
	struct comm_device c;
	struct comm_rows out, x;
	int32_t to, from;
};

__global__ void __launch_bounds__(THREADS, 4)
send_recv_kernel(const __grid_constant__ struct step_args a)
{
	const int r = threadIdx.x;
	const bool greets = blockIdx.x == 0 && r < a.c.ranks && r != a.c.rank;
	uint32_t number, entered = 0;

	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	number = comm_number(a.c);
	if (!comm_has_failed(a.c)) {
		if (a.to >= 0 && a.to != a.c.rank)
			comm_send_rows(a.c, a.to, number, a.x);
		if (greets && r != a.to)
			ptx_st_relaxed_sys_b128(comm_word(a.c, r, a.c.rank, number, 0),
						make_uint4(0, 0, 0, number));
	}
	__syncthreads();
	if (threadIdx.x == 0)
		entered = comm_enter(a.c);
	if (a.from == a.c.rank)
		comm_copy_rows(a.out, a.x);
	else if (a.from >= 0)
		comm_receive_rows(a.c, COMM_SEND_RECV, a.from, number, a.out);
	if (greets)
		comm_await(a.c, COMM_SEND_RECV, number, r, comm_word(a.c, a.c.rank, r, number, 0),
			   make_uint4(0, 0, 0, ~number));
	if (threadIdx.x == 0)
		comm_leave(a.c, number, entered);
}

extern "C" int cairn_send_recv(const struct cairn_send_recv_args *a, void *stream)
{
	const int64_t most = (int64_t)COMM_VECTORS * 16;
	struct cairn_launch l = { .block = { THREADS }, .pdl = 1, .stream = stream };
	struct step_args s = {};
	void *params[] = { &s };

	CAIRN_TRY(cairn_send_recv_check(a));
	CAIRN_TRY(comm_cuda_device(&a->comm, "send_recv", &s.c));
	s.to = a->to;
	s.from = a->from;
	for (int64_t first = 0; first < a->bytes; first += most) {
		const int64_t bytes = a->bytes - first < most ? a->bytes - first : most;

		s.x.base = (char *)a->x + first;
		s.out.base = (char *)a->out + first;
		s.x.total = s.out.total = (uint32_t)(bytes / 16);
		s.x.row = s.out.row = s.x.total;	/* one row */
		l.grid[0] = (s.x.total + 3 * GROUPS * THREADS - 1) / (3 * GROUPS * THREADS);
		CAIRN_TRY(cairn_launch((const void *)send_recv_kernel, &l, params));
	}
	return 0;
}
