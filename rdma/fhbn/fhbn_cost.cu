/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fhbn_cost - measures the cost of a post, and ping-pong with and without a CPU on the critical path
 *
 * The posting thread measures a post with the SM's clock, from the stores of the payload to the store of the
 * doorbell, on an idle queue (the previous post is complete). The time until the doorbell reaches the card is
 * not included, because a GPU thread cannot wait for it. When the post is timed in parts, each part ends when
 * its last instruction is issued. The wait of a fence counts towards the fence, because the next store cannot
 * be issued earlier.
 */
#include <time.h>

#include "primitives/base/launch.h"
#include "rdma/fhbn/fhbn.cuh"
#include "rdma/fhbn/fhbn_drive.h"

enum { COST_BYTES = 64, CHUNK = 16 };

struct clocks {
	uint64_t cycles, ns;		/* of the whole kernel */
};

static __device__ struct cairn_fhbn_request payload(const struct fhbn_memory *m, uint32_t bytes)
{
	return cairn_fhbn_write(m->to, m->to_rkey, m->from, m->from_lkey, bytes);
}

template <int MODE>
static __global__ void cost_kernel(const __grid_constant__ struct cairn_fhbn_qp q,
				   const __grid_constant__ struct fhbn_memory m, int num, int64_t *cycles,
				   struct clocks *clocks, int *ret_out)
{
	uint64_t ns = ptx_globaltimer(), end;
	int64_t first = ptx_clock64(), t;
	int ret = 0;

	for (int i = 0; !ret && i < num; i++) {
		struct cairn_fhbn_request put = payload(&m, COST_BYTES);

		__syncwarp();
		t = ptx_clock64();
		if (ptx_laneid() < COST_BYTES / 4)
			((uint32_t *)m.gpu_from)[ptx_laneid()] = (uint32_t)i;
		ret = cairn_fhbn_put_signal_warp(&q, MODE, &put, m.flags, m.flags_rkey, i + 1ull, &end);
		t = ptx_clock64() - t;
		if (ptx_laneid() == 0) {
			cycles[i] = t;
			ret = ret ? ret : cairn_fhbn_wait(&q, MODE, end);
		}
		ret = __shfl_sync(0xffffffff, ret, 0);
	}
	if (ptx_laneid() == 0) {
		clocks->cycles = (uint64_t)(ptx_clock64() - first);
		clocks->ns = ptx_globaltimer() - ns;
		*ret_out = ret;
	}
}

/* Does the same as cairn_fhbn_post() of two requests by one poster, but reads the clock between its parts. */
template <int MODE>
static __global__ void steps_kernel(const __grid_constant__ struct cairn_fhbn_qp q,
				    const __grid_constant__ struct fhbn_memory m, int num, int64_t *steps,
				    int *ret_out)
{
	struct cairn_fhbn_state *s = q.state;
	int ret = 0;

	for (int i = 0; !ret && i < num; i++, steps += FHBN_STEPS) {
		struct cairn_fhbn_request put = payload(&m, COST_BYTES);
		struct cairn_fhbn_request signal = cairn_fhbn_write_u64(m.flags, m.flags_rkey,
									(uint64_t)i + 1);
		uint64_t index = s->reserved, end = index + 2;
		struct cairn_wqe_seg segs[4];
		int64_t t[FHBN_STEPS + 1];

		t[0] = ptx_clock64();
		for (int k = 0; k < COST_BYTES / 16; k++)
			((uint4 *)m.gpu_from)[k] = make_uint4(i, i, i, i);
		fhbn_form(&put, index, q.sq.qpn, 0, segs);
		for (uint32_t k = 0; k < 3; k++)
			fhbn_store_seg(cairn_wqe_at(&q.sq, index, k), segs[k]);
		fhbn_form(&signal, index + 1, q.sq.qpn, CAIRN_WQE_SIGNALED, segs);
		for (uint32_t k = 0; k < 3; k++)
			fhbn_store_seg(cairn_wqe_at(&q.sq, index + 1, k), segs[k]);
		t[1] = ptx_clock64();
		fhbn_fence(MODE, FHBN_BEFORE_RECORD);
		t[2] = ptx_clock64();
		fhbn_store_record(q.record, cairn_wqe_dbrec(end));
		fhbn_fence(MODE, FHBN_BEFORE_REGISTER);
		t[3] = ptx_clock64();
		if (MODE & CAIRN_FHBN_BLUEFLAME) {
			fhbn_ring64(s->bf_half ? q.reg[1] : q.reg[0], segs);
			s->bf_half ^= 1;
		} else {
			fhbn_ring8(q.reg[0], cairn_wqe_doorbell_next(end, q.sq.qpn));
		}
		t[4] = ptx_clock64();
		s->reserved = s->ready = s->rung = end;
		for (int k = 0; k < FHBN_STEPS; k++)
			steps[k] = t[k + 1] - t[k];
		ret = cairn_fhbn_wait(&q, MODE, end);
	}
	*ret_out = ret;
}

struct buffers {
	int64_t *cycles;
	struct clocks *clocks;
	int *ret;
};

static void free_buffers(struct buffers *b)
{
	cudaFree(b->cycles);
	cudaFree(b->clocks);
	cudaFree(b->ret);
}

static int get_buffers(struct buffers *b, size_t num)
{
	if (cudaMalloc((void **)&b->cycles, num * sizeof(*b->cycles)) == cudaSuccess &&
	    cudaMalloc((void **)&b->clocks, 2 * sizeof(*b->clocks)) == cudaSuccess &&
	    cudaMalloc((void **)&b->ret, 2 * sizeof(*b->ret)) == cudaSuccess)
		return 0;
	free_buffers(b);
	return cairn_error(EIO, "fhbn_cost: no device memory");
}

/* Reads the measurements and the kernel's return value after it has ended. */
static int collect(const struct buffers *b, size_t num, int64_t *cycles, double *mhz)
{
	struct clocks clocks;
	int ret[2];

	CAIRN_CUDA(cudaDeviceSynchronize());
	CAIRN_CUDA(cudaMemcpy(cycles, b->cycles, num * sizeof(*cycles), cudaMemcpyDeviceToHost));
	CAIRN_CUDA(cudaMemcpy(ret, b->ret, sizeof(ret[0]), cudaMemcpyDeviceToHost));
	if (mhz) {
		CAIRN_CUDA(cudaMemcpy(&clocks, b->clocks, sizeof(clocks), cudaMemcpyDeviceToHost));
		*mhz = clocks.ns ? (double)clocks.cycles * 1e3 / (double)clocks.ns : 0;
	}
	return ret[0] ? cairn_error(-ret[0], "fhbn_cost: the kernel returned %d", ret[0]) : 0;
}

static const void *cost_of(uint32_t mode)
{
	switch (mode) {
	case 0:
		return (const void *)cost_kernel<0>;
	case CAIRN_FHBN_SHARED:
		return (const void *)cost_kernel<CAIRN_FHBN_SHARED>;
	case CAIRN_FHBN_BLUEFLAME:
		return (const void *)cost_kernel<CAIRN_FHBN_BLUEFLAME>;
	case CAIRN_FHBN_SYS:
		return (const void *)cost_kernel<CAIRN_FHBN_SYS>;
	case CAIRN_FHBN_SYS | CAIRN_FHBN_SHARED:
		return (const void *)cost_kernel<CAIRN_FHBN_SYS | CAIRN_FHBN_SHARED>;
	case CAIRN_FHBN_SYS | CAIRN_FHBN_BLUEFLAME:
		return (const void *)cost_kernel<CAIRN_FHBN_SYS | CAIRN_FHBN_BLUEFLAME>;
	}
	return NULL;
}

static const void *steps_of(uint32_t mode)
{
	switch (mode) {
	case 0:
		return (const void *)steps_kernel<0>;
	case CAIRN_FHBN_BLUEFLAME:
		return (const void *)steps_kernel<CAIRN_FHBN_BLUEFLAME>;
	case CAIRN_FHBN_SYS:
		return (const void *)steps_kernel<CAIRN_FHBN_SYS>;
	case CAIRN_FHBN_SYS | CAIRN_FHBN_BLUEFLAME:
		return (const void *)steps_kernel<CAIRN_FHBN_SYS | CAIRN_FHBN_BLUEFLAME>;
	}
	return NULL;
}

extern "C" int fhbn_cost(const struct cairn_fhbn_qp *q, const struct fhbn_memory *m, int num, int64_t *cycles,
			 int64_t *steps, double *mhz)
{
	const void *kernel = cost_of(q->mode), *apart = steps_of(q->mode);
	struct cairn_launch launch = { .grid = { 1 }, .block = { 32 } };
	struct cairn_launch alone = { .grid = { 1 }, .block = { 1 } };
	struct cairn_fhbn_qp view = *q;
	struct fhbn_memory memory = *m;
	struct buffers b = {};
	void *params[] = { &view, &memory, &num, &b.cycles, &b.clocks, &b.ret };
	void *params_apart[] = { &view, &memory, &num, &b.cycles, &b.ret };
	int ret;

	if (!kernel || (steps && !apart))
		return cairn_error(EOPNOTSUPP, "fhbn_cost: mode %#x", q->mode);
	CAIRN_TRY(get_buffers(&b, (size_t)num * FHBN_STEPS));
	ret = cairn_launch(kernel, &launch, params);
	if (!ret)
		ret = collect(&b, (size_t)num, cycles, mhz);
	if (!ret && steps) {
		ret = cairn_launch(apart, &alone, params_apart);
		if (!ret)
			ret = collect(&b, (size_t)num * FHBN_STEPS, steps, NULL);
	}
	free_buffers(&b);
	return ret;
}

/* ---- ping-pong ---- */

static __device__ void write_payload(uint8_t *to, uint32_t bytes, uint32_t word)
{
	for (uint32_t i = threadIdx.x * CHUNK; i < bytes; i += blockDim.x * CHUNK)
		*(uint4 *)(to + i) = make_uint4(word, word, word, word);
}

static __device__ int payload_is_wrong(const uint8_t *p, uint32_t bytes, uint32_t word)
{
	int wrong = 0;

	for (uint32_t i = threadIdx.x * CHUNK; i < bytes; i += blockDim.x * CHUNK) {
		uint4 v = *(const uint4 *)(p + i);

		wrong |= v.x != word || v.y != word || v.z != word || v.w != word;
	}
	return __syncthreads_or(wrong);
}

/* CTA size of each end */
static unsigned int threads_for(uint32_t bytes)
{
	return bytes > 4096 ? 512 : bytes > 512 ? 128 : 32;
}

struct pingpong_args {
	struct cairn_fhbn_qp q[2];
	struct fhbn_memory m[2];
	uint32_t bytes;
	int rounds;
	int64_t *cycles;
	struct clocks *clocks;
	int *ret;			/* [1]: number of corrupted payloads */
};

/* Sends a payload and its number. An end's own `m` describes the memory of the other end, to which its
 * queue writes. */
static __device__ int send(const struct pingpong_args *a, int me, uint32_t k)
{
	const struct fhbn_memory *m = &a->m[me];
	struct cairn_fhbn_request put = payload(m, a->bytes);
	int ret = 0;

	write_payload(m->gpu_from, a->bytes, 2 * k + (uint32_t)me);
	__syncthreads();
	if (threadIdx.x == 0)
		ret = cairn_fhbn_put_signal(&a->q[me], CAIRN_FHBN_SYS, &put, m->flags, m->flags_rkey, k,
					    NULL);
	return __syncthreads_or(ret);
}

static __device__ int receive(const struct pingpong_args *a, int me, uint32_t k, int *wrong)
{
	const struct fhbn_memory *m = &a->m[!me];
	struct cairn_fhbn_fault *fault = &a->q[me].state->fault;
	int ret = 0;

	if (threadIdx.x == 0)
		ret = cairn_fhbn_wait_signal(m->gpu_flags, k, a->q[me].timeout_ns, fault);
	ret = __syncthreads_or(ret);
	if (!ret)
		*wrong += payload_is_wrong(m->gpu_to, a->bytes, 2 * k + (uint32_t)!me);
	return ret;
}

static __global__ void pingpong_kernel(const __grid_constant__ struct pingpong_args a)
{
	int me = (int)blockIdx.x, ret = 0, wrong = 0;
	uint64_t ns = ptx_globaltimer();
	int64_t first = ptx_clock64(), t;

	for (uint32_t k = 1; !ret && k <= (uint32_t)a.rounds; k++) {
		t = ptx_clock64();
		if (me)
			ret = receive(&a, me, k, &wrong);
		ret = ret ? ret : send(&a, me, k);
		if (!me && !ret)
			ret = receive(&a, me, k, &wrong);
		if (!me && threadIdx.x == 0)
			a.cycles[k - 1] = ptx_clock64() - t;
	}
	if (threadIdx.x == 0) {
		if (ret)
			a.ret[0] = -ETIMEDOUT;
		atomicAdd(&a.ret[1], wrong);
		if (!me) {
			a.clocks->cycles = (uint64_t)(ptx_clock64() - first);
			a.clocks->ns = ptx_globaltimer() - ns;
		}
	}
}

extern "C" int fhbn_pingpong(const struct cairn_fhbn_qp q[2], const struct fhbn_memory m[2], uint32_t bytes,
			     int rounds, int64_t *cycles, double *mhz, int *wrong)
{
	struct cairn_launch launch = { .grid = { 2 }, .block = { threads_for(bytes) } };
	struct pingpong_args a = { { q[0], q[1] }, { m[0], m[1] }, bytes, rounds };
	void *params[] = { &a };
	struct buffers b = {};
	int ret;

	CAIRN_TRY(get_buffers(&b, (size_t)rounds));
	a.cycles = b.cycles;
	a.clocks = b.clocks;
	a.ret = b.ret;
	ret = cudaMemset(b.ret, 0, 2 * sizeof(*b.ret)) == cudaSuccess ? 0 : -EIO;
	if (!ret)
		ret = cairn_launch((const void *)pingpong_kernel, &launch, params);
	if (!ret)
		ret = collect(&b, (size_t)rounds, cycles, mhz);
	if (!ret && cudaMemcpy(wrong, b.ret + 1, sizeof(*wrong), cudaMemcpyDeviceToHost) != cudaSuccess)
		ret = cairn_error(EIO, "fhbn_pingpong: copy failed");
	free_buffers(&b);
	return ret;
}

/* ---- the conventional path ---- */

/* The kernel of one end: checks the received payload (none in the first round) and writes the payload to
 * send. */
static __global__ void end_kernel(const uint8_t *came, uint32_t expected, uint8_t *goes, uint32_t word,
				  uint32_t bytes, int *wrong)
{
	if (came && payload_is_wrong(came, bytes, expected) && threadIdx.x == 0)
		atomicAdd(wrong, 1);
	write_payload(goes, bytes, word);
}

static double now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

struct host_ends {
	const struct cairn_fhbn_qp *q;
	const struct fhbn_memory *m;
	uint64_t **flags;
	cudaStream_t stream[2];
	uint32_t bytes;
	int *wrong;
};

/*
 * One direction: launches the sender's kernel, waits until it ends, and posts; then the receiver's CPU polls
 * the number.
 */
static int one_way(struct host_ends *e, int me, uint32_t k)
{
	const struct fhbn_memory *m = &e->m[me], *other = &e->m[!me];
	struct cairn_launch launch = { .grid = { 1 }, .block = { threads_for(e->bytes) },
				       .stream = e->stream[me] };
	uint32_t expected = me ? 2 * k : 2 * (k - 1) + 1, word = 2 * k + (uint32_t)me;
	const uint8_t *came = me || k > 1 ? other->gpu_to : NULL;
	uint8_t *goes = m->gpu_from;
	void *params[] = { &came, &expected, &goes, &word, &e->bytes, &e->wrong };
	struct cairn_fhbn_fault fault = {};
	struct cairn_fhbn_request put = {};

	put.opcode = CAIRN_WQE_WRITE;
	put.remote = m->to;
	put.rkey = m->to_rkey;
	put.local = m->from;
	put.lkey = m->from_lkey;
	put.bytes = e->bytes;
	CAIRN_TRY(cairn_launch((const void *)end_kernel, &launch, params));
	CAIRN_CUDA(cudaStreamSynchronize(e->stream[me]));
	CAIRN_TRY(cairn_fhbn_host_put_signal(&e->q[me], &put, m->flags, m->flags_rkey, k));
	if (cairn_fhbn_host_wait_signal(e->flags[me], k, e->q[me].timeout_ns, &fault))
		return cairn_fhbn_fault_error(&fault);
	return 0;
}

extern "C" int fhbn_pingpong_host(const struct cairn_fhbn_qp q[2], const struct fhbn_memory m[2],
				  uint64_t *flags[2], uint32_t bytes, int rounds, double *ns, int *wrong)
{
	struct host_ends e = { q, m, flags, {}, bytes, NULL };
	int ret = 0;
	double t;

	CAIRN_CUDA(cudaMalloc((void **)&e.wrong, sizeof(*e.wrong)));
	for (int i = 0; i < 2; i++)
		if (cudaStreamCreateWithFlags(&e.stream[i], cudaStreamNonBlocking) != cudaSuccess)
			ret = cairn_error(EIO, "fhbn_pingpong_host: no stream");
	if (!ret && cudaMemset(e.wrong, 0, sizeof(*e.wrong)) != cudaSuccess)
		ret = cairn_error(EIO, "fhbn_pingpong_host: memset failed");
	for (int k = 1; !ret && k <= rounds; k++) {
		t = now_ns();
		ret = one_way(&e, 0, (uint32_t)k);
		ret = ret ? ret : one_way(&e, 1, (uint32_t)k);
		ns[k - 1] = now_ns() - t;
	}
	if (!ret && cudaMemcpy(wrong, e.wrong, sizeof(*wrong), cudaMemcpyDeviceToHost) != cudaSuccess)
		ret = cairn_error(EIO, "fhbn_pingpong_host: copy failed");
	for (int i = 0; i < 2; i++)
		if (e.stream[i])
			cudaStreamDestroy(e.stream[i]);
	cudaFree(e.wrong);
	return ret;
}

/* ---- a flag's round trip ---- */

static __global__ void echo_kernel(const uint64_t *flag, uint64_t *answer, int rounds, uint64_t timeout_ns,
				   struct cairn_fhbn_fault *fault)
{
	for (uint64_t k = 1; k <= (uint64_t)rounds; k++) {
		if (cairn_fhbn_wait_signal(flag, k, timeout_ns, fault))
			return;
		asm volatile("st.release.sys.global.u64 [%0], %1;" : : "l"(answer), "l"(k) : "memory");
	}
}

extern "C" int fhbn_echo(const uint64_t *gpu_flag, uint64_t *gpu_answer, int rounds, uint64_t timeout_ns,
			 int (*ask)(void *arg, uint64_t k), void *arg)
{
	struct cairn_launch launch = { .grid = { 1 }, .block = { 1 } };
	struct cairn_fhbn_fault *fault, seen;
	void *params[] = { &gpu_flag, &gpu_answer, &rounds, &timeout_ns, &fault };
	int ret;

	CAIRN_CUDA(cudaMalloc((void **)&fault, sizeof(*fault)));
	ret = cudaMemset(fault, 0, sizeof(*fault)) == cudaSuccess ? 0 : -EIO;
	if (!ret)
		ret = cairn_launch((const void *)echo_kernel, &launch, params);
	for (int k = 1; !ret && k <= rounds; k++)
		ret = ask(arg, (uint64_t)k);
	if (cudaDeviceSynchronize() != cudaSuccess ||
	    cudaMemcpy(&seen, fault, sizeof(seen), cudaMemcpyDeviceToHost) != cudaSuccess)
		ret = cairn_error(EIO, "fhbn_echo: %s", cudaGetErrorString(cudaGetLastError()));
	else if (!ret)
		ret = cairn_fhbn_fault_error(&seen);
	cudaFree(fault);
	return ret;
}
