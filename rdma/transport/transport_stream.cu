// SPDX-License-Identifier: Apache-2.0
/*
 * transport_stream.cu - puts and waits that are nodes of a stream (transport_stream.h)
 *
 * put    One thread releases the lock. All CTAs copy units of both blocks, strided over the grid, from this
 *        GPU's memory to the peer's. Each CTA arrives at the slot's counter; the last one resets it and sets
 *        the signal, as transport_put() does. Once the channel's state is set, a put only releases the lock.
 * wait   One thread publishes its stream's turn, polls the turn of the stream before it, then the slot
 *        (transport_wait), and takes the lock. If a wait fails, it sets the channel's state, so that later
 *        puts and waits end at once, and writes the error number and the slot to host memory.
 *
 * Numbers that differ between two replays of a graph come from global memory (struct cairn_stream_now).
 *
 * With a pace (transport_pace.h), a put writes the due time of its signal to the peer, before the fence that
 * precedes the signal; a wait that has found the signal waits until that time.
 *
 * sum    Each thread adds up the terms of its words (transport_sum_word), and each CTA those of its threads.
 *
 * barriers   put: two; sum: two
 *
 * clock  One thread reads the host's time again and again (transport_clock.h).
 *
 * Floor: a put takes the launch, one crossing of the link for the payload and one for the signal.
 */
#include "primitives/base/launch.h"
#include "rdma/transport/transport.cuh"
#include "rdma/transport/transport_clock.h"
#include "rdma/transport/transport_stream.h"

#define THREADS		256
#define UNROLL		4
#define MAX_CTAS	64	/* enough for the link; the rest of the GPU is for others */

TRANSPORT_FN uint64_t unit_at(uint64_t base, uint64_t stride, uint32_t row_units, uint32_t unit, uint32_t i)
{
	const uint32_t row = i / row_units;

	return base + row * stride + (uint64_t)(i - row * row_units) * unit;
}

/* Copies this thread's units. All loads of an iteration are issued before its stores. */
template <typename T>
TRANSPORT_FN void copy_rows(const struct transport_stream_part &p, uint32_t most)
{
	const uint32_t units = min(p.rows, most) * p.row_units, threads = gridDim.x * THREADS;

	for (uint32_t i = blockIdx.x * THREADS + threadIdx.x; i < units; i += UNROLL * threads) {
		T v[UNROLL];

#pragma unroll
		for (int k = 0; k < UNROLL; k++)
			if (i + k * threads < units)
				v[k] = *(const T *)unit_at(p.from, p.from_stride, p.row_units, sizeof(T),
							   i + k * threads);
#pragma unroll
		for (int k = 0; k < UNROLL; k++)
			if (i + k * threads < units)
				*(T *)unit_at(p.to, p.to_stride, p.row_units, sizeof(T), i + k * threads) =
					v[k];
	}
}

/* The host's time. */
TRANSPORT_FN uint64_t time_of(const struct transport_link &l)
{
	return ptx_globaltimer() + ptx_ld_relaxed_gpu_u64(l.clock);
}

/* Puts of other streams may use the link at the same time. */
TRANSPORT_FN uint64_t carry(const struct transport_link &l, uint64_t bytes)
{
	const uint64_t now = time_of(l);
	uint64_t was = ptx_ld_relaxed_gpu_u64(l.carried), before, carried;

	do {
		before = was;
		carried = transport_pace_carried(&l.pace, before, now, bytes);
		was = atomicCAS((unsigned long long *)l.carried, before, carried);
	} while (was != before);
	return carried;
}

/* One thread writes the due time of the signal that this put is about to set into the peer's memory. */
TRANSPORT_FN void leave_due(const struct transport_stream_args &a, uint32_t most)
{
	uint64_t bytes = 0, place;

#pragma unroll
	for (int i = 0; i < CAIRN_STREAM_PARTS; i++)
		bytes += (uint64_t)min(a.part[i].rows, most) * a.part[i].row_units * a.part[i].unit;
	/* the puts to a slot are on one stream */
	place = (*(volatile uint64_t *)&a.link.puts[a.slot])++ % TRANSPORT_DUES;
	transport_st_relaxed_sys_b128(&a.link.theirs[a.slot * TRANSPORT_DUES + place],
				      a.value + (a.now ? a.now->number : 0),
				      carry(a.link, bytes) + a.link.pace.latency_ns);
}

__global__ void __launch_bounds__(THREADS)
transport_stream_put_kernel(const __grid_constant__ struct transport_stream_args a)
{
	const uint32_t most = a.now ? (uint32_t)a.now->rows : ~0u;

	if (a.lock && blockIdx.x == 0 && threadIdx.x == 0) {
		/* what the lock was taken for ended before this kernel began */
		transport_fence_release_sys();
		*(volatile uint64_t *)&a.lock->serving = a.lock->serving + 1;
	}
	/* the peer may have closed its end, and freed the memory */
	if (__syncthreads_or(transport_ld_relaxed_sys_u64(a.c.state) != 0))
		return;
#pragma unroll
	for (int i = 0; i < CAIRN_STREAM_PARTS; i++) {
		if (a.part[i].unit == 16)
			copy_rows<uint4>(a.part[i], most);
		else if (a.part[i].unit == 4)
			copy_rows<uint32_t>(a.part[i], most);
		else
			copy_rows<uint8_t>(a.part[i], most);
	}
	__syncthreads();
	if (threadIdx.x)
		return;
	if (a.link.clock && gridDim.x == 1)
		leave_due(a, most);
	transport_fence_release_sys();
	if (gridDim.x > 1) {
		if (transport_add_relaxed_gpu(&a.c.arrived[a.slot]) + 1 != gridDim.x)
			return;
		a.c.arrived[a.slot] = 0;	/* for the next put, which comes behind this kernel */
		if (a.link.clock)
			leave_due(a, most);
		ptx_fence_acq_rel_sys();
	}
	transport_st_relaxed_sys_b128(&a.c.theirs[a.slot], a.value + (a.now ? a.now->number : 0), a.word);
}

/* Waits until a word of this device is at least `value`. Returns an error number. */
TRANSPORT_FN int await_word(const struct transport_stream_args &a, const uint64_t *word, uint64_t value)
{
	const uint64_t begin = ptx_globaltimer();

	while (transport_ld_acquire_sys_u64(word) < value) {
		const uint64_t error = transport_ld_relaxed_sys_u64(a.c.state);

		if (error)
			return (int)error;
		if (ptx_globaltimer() - begin > a.timeout_ns)
			return ETIMEDOUT;
	}
	return 0;
}

/* Waits until the signal that was found is due. begin: the timer when the wait began */
TRANSPORT_FN int await_due(const struct transport_stream_args &a, uint64_t value, uint64_t begin)
{
	struct cairn_signal dues[TRANSPORT_DUES];
	uint64_t due;

#pragma unroll
	for (int i = 0; i < TRANSPORT_DUES; i++)
		dues[i] = transport_ld_relaxed_sys_b128(&a.link.mine[a.slot * TRANSPORT_DUES + i]);
	due = transport_pace_due(dues, value);
	while (time_of(a.link) < due) {
		const uint64_t error = transport_ld_relaxed_sys_u64(a.c.state);

		if (error)
			return (int)error;
		if (ptx_globaltimer() - begin > a.timeout_ns)
			return ETIMEDOUT;
	}
	return 0;
}

__global__ void transport_stream_wait_kernel(const __grid_constant__ struct transport_stream_args a)
{
	const uint64_t number = a.now ? a.now->number : 0;
	struct cairn_signal s;
	int error = 0;

	if (a.ended) {
		transport_fence_release_sys();
		*(volatile uint64_t *)a.ended = a.now->turn;
	}
	if (a.order)
		error = await_word(a, a.order, a.now->turn - 1);
	if (!error && a.slot != CAIRN_NO_SIGNAL) {
		const uint64_t begin = a.link.clock ? ptx_globaltimer() : 0;

		error = transport_wait(&a.c, a.slot, a.value + number, a.timeout_ns, &s);
		if (!error && a.link.clock)
			error = await_due(a, a.value + number, begin);
	}
	if (!error && a.lock)
		error = await_word(a, &a.lock->serving, transport_add_relaxed_gpu(&a.lock->next));
	if (!error)
		return;
	atomicCAS((unsigned long long *)a.c.state, 0ull, (unsigned long long)error);
	a.c.failed->word = a.slot;
	transport_fence_release_sys();
	*(volatile uint64_t *)&a.c.failed->value = (uint64_t)error;
}

/*
 * Keeps the largest difference (transport_clock.h). The branch on `now` waits for the loaded value, so the
 * second read of the timer comes after the load has completed.
 */
__global__ void transport_clock_kernel(uint64_t *clock, struct transport_clock_host *host)
{
	uint64_t lacks = 0, shortest = ~0ull, end = 0;

	for (int i = 0; i < TRANSPORT_CLOCK_ROUNDS; i++) {
		const uint64_t begin = ptx_globaltimer();
		const uint64_t now = transport_ld_relaxed_sys_u64(&host->now);

		if (!now)
			continue;	/* the host has not begun */
		end = ptx_globaltimer();
		if (shortest == ~0ull || (int64_t)(now - end - lacks) > 0)
			lacks = now - end;
		shortest = min(shortest, end - begin);
	}
	if (shortest != ~0ull) {
		const uint64_t least = clock[0] - (end - clock[1]) / TRANSPORT_CLOCK_DRIFT;

		if (clock[1] && (int64_t)(least - lacks) > 0)
			lacks = least;
		transport_st_relaxed_sys_b128(clock, lacks, end);
		host->read_ns = shortest;
	}
	transport_fence_release_sys();
	*(volatile uint64_t *)&host->done = 1;
}

__global__ void __launch_bounds__(THREADS)
transport_sum_kernel(const uint64_t *words, uint64_t num, uint64_t key, uint64_t *partial)
{
	__shared__ unsigned long long s_sum;
	uint64_t sum = 0;

	if (!threadIdx.x)
		s_sum = 0;
	__syncthreads();
	for (uint64_t i = blockIdx.x * THREADS + threadIdx.x; i < num; i += TRANSPORT_SUM_CTAS * THREADS)
		sum += transport_sum_word(words[i], i, key);
	atomicAdd(&s_sum, (unsigned long long)sum);
	__syncthreads();
	if (!threadIdx.x)
		partial[blockIdx.x] = s_sum;
}

extern "C" int transport_stream_sum(int gpu, const void *addr, uint64_t bytes, uint64_t key,
				    uint64_t *partial)
{
	struct cairn_launch launch = {
		.grid = { TRANSPORT_SUM_CTAS }, .block = { THREADS }, .stream = cudaStreamPerThread,
	};
	uint64_t num = bytes / 8;
	void *params[] = { (void *)&addr, &num, &key, &partial };

	CAIRN_CUDA(cudaSetDevice(gpu));
	CAIRN_TRY(cairn_launch((const void *)transport_sum_kernel, &launch, params));
	CAIRN_CUDA(cudaStreamSynchronize(cudaStreamPerThread));
	return 0;
}

extern "C" int transport_stream_captured(void *stream)
{
	cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;

	CAIRN_CUDA(cudaStreamIsCapturing((cudaStream_t)stream, &status));
	return status == cudaStreamCaptureStatusActive;
}

extern "C" int transport_stream_load(void)
{
	struct cudaFuncAttributes attributes;

	CAIRN_CUDA(cudaFuncGetAttributes(&attributes, (const void *)transport_sum_kernel));
	CAIRN_CUDA(cudaFuncGetAttributes(&attributes, (const void *)transport_clock_kernel));
	CAIRN_CUDA(cudaFuncGetAttributes(&attributes, (const void *)transport_stream_put_kernel));
	CAIRN_CUDA(cudaFuncGetAttributes(&attributes, (const void *)transport_stream_wait_kernel));
	return 0;
}

extern "C" int transport_stream_launch_put(const struct transport_stream_args *a, void *stream)
{
	struct cairn_launch launch = { .block = { THREADS }, .stream = stream };
	void *params[] = { (void *)a };
	uint32_t most = 0;

	for (int i = 0; i < CAIRN_STREAM_PARTS; i++)
		if (a->part[i].rows * a->part[i].row_units > most)
			most = a->part[i].rows * a->part[i].row_units;
	launch.grid[0] = (most + UNROLL * THREADS - 1) / (UNROLL * THREADS);
	if (launch.grid[0] > MAX_CTAS)
		launch.grid[0] = MAX_CTAS;
	return cairn_launch((const void *)transport_stream_put_kernel, &launch, params);
}

extern "C" int transport_stream_launch_wait(const struct transport_stream_args *a, void *stream)
{
	struct cairn_launch launch = { .stream = stream };
	void *params[] = { (void *)a };

	return cairn_launch((const void *)transport_stream_wait_kernel, &launch, params);
}

extern "C" int transport_clock_launch(uint64_t *clock, struct transport_clock_host *host, void *stream)
{
	struct cairn_launch launch = { .stream = stream };
	void *params[] = { &clock, &host };

	return cairn_launch((const void *)transport_clock_kernel, &launch, params);
}
