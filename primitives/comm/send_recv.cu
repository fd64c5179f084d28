/* SPDX-License-Identifier: Apache-2.0 */
/*
 * send_recv.cu - stores rows into the mailbox of one rank, as LL words, and waits for those of another
 *
 * Schedule: as all_to_all.cu, with one block. The first CTA also sends one word to each rank that gets no
 * payload, and waits for the first word of every rank: mailboxes are free in time only if every call awaits
 * all ranks (comm_device.h).
 *
 * Messages of LONG bytes and more, such as the keys of a ring or the rows of a pipeline, should take no SM
 * from the computation that runs at the same time. A copy engine copies a part of COMM_STAGE bytes to the
 * receiver's stage, a kernel of one warp runs a barrier of all ranks, and another copy moves the part to its
 * place in out. That kernel is so small that it fits on an SM whose other resources a CTA of attention has
 * taken. The host counts the stages, which the replay of a graph would not do, so captured calls send words.
 *
 * barriers   one __syncthreads
 *
 * Floor: as all_to_all.cu. Long messages: a copy between two GPUs (387 GB/s), a crossing, a copy on one.
 */
#include "primitives/base/launch.h"
#include "primitives/comm/comm_copy.cuh"
#include "primitives/comm/send_recv.h"

#define THREADS		256
#define GROUPS		2	/* of a thread: a launch has at most 512 CTAs */
#define LONG		(1 << 20)	/* bytes of a message that copy engines move */

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

/*
 * A barrier of all ranks. A CTA of attention leaves 1024 registers of its SM free, which suffice for one warp
 * with 32 registers a thread.
 */
__global__ void __maxnreg__(32) send_recv_meet_kernel(const __grid_constant__ struct comm_device c)
{
	const int r = threadIdx.x;
	const uint32_t number = comm_number(c);

	if (r < c.ranks && r != c.rank) {
		if (!comm_has_failed(c))
			ptx_st_relaxed_sys_b128(comm_word(c, r, c.rank, number, 0),
						make_uint4(0, 0, 0, number));
		comm_await(c, COMM_SEND_RECV, number, r, comm_word(c, c.rank, r, number, 0),
			   make_uint4(0, 0, 0, ~number));
	}
	__syncwarp();
	if (r == 0)
		comm_leave(c, number, comm_enter(c));
}

/* Sends a long message with copy engines. */
static int send_by_copies(const struct cairn_send_recv_args *a, struct comm_device *c, cudaStream_t stream)
{
	struct cairn_launch l = { .grid = { 1 }, .block = { 32 }, .stream = stream };
	void *params[] = { c };

	for (int64_t first = 0; first < a->bytes; first += COMM_STAGE) {
		const size_t bytes = a->bytes - first < COMM_STAGE ? a->bytes - first : COMM_STAGE;
		const char *x = (const char *)a->x + first;
		char *out = (char *)a->out + first, *mine, *theirs;

		comm_cuda_stage(&a->comm, a->to, &mine, &theirs);
		if (a->to >= 0 && a->to != c->rank)
			CAIRN_CUDA(cudaMemcpyAsync(theirs, x, bytes, cudaMemcpyDefault, stream));
		CAIRN_TRY(cairn_launch((const void *)send_recv_meet_kernel, &l, params));
		if (a->from >= 0)
			CAIRN_CUDA(cudaMemcpyAsync(out, a->from == c->rank ? x : mine, bytes,
						   cudaMemcpyDefault, stream));
	}
	return 0;
}

extern "C" int cairn_send_recv(const struct cairn_send_recv_args *a, void *stream)
{
	const int64_t most = (int64_t)COMM_VECTORS * 16;
	struct cairn_launch l = { .block = { THREADS }, .pdl = 1, .stream = stream };
	cudaStreamCaptureStatus capturing;
	struct step_args s = {};
	void *params[] = { &s };

	CAIRN_TRY(cairn_send_recv_check(a));
	CAIRN_TRY(comm_cuda_device(&a->comm, "send_recv", &s.c));
	CAIRN_CUDA(cudaStreamIsCapturing((cudaStream_t)stream, &capturing));
	if (a->bytes >= LONG && capturing == cudaStreamCaptureStatusNone)
		return send_by_copies(a, &s.c, (cudaStream_t)stream);
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
