// SPDX-License-Identifier: Apache-2.0
/* transport_clock.c - the host's end of transport_clock.h */
#include "rdma/transport/transport_clock.h"

#include <stdlib.h>
#include <time.h>

#include "primitives/base/launch.h"
#include "rdma/transport/transport_cuda.h"
#include "rdma/transport/transport_impl.h"

#define MOST_NS		1000000000u	/* time-out of a measurement; it may be queued behind kernels */
#define FIRST		4		/* measurements before the first use */

struct transport_clock {
	uint64_t *clock;		/* memory of the GPU */
	struct transport_clock_host *host;
	cudaStream_t stream;
	int gpu;
	pthread_t thread;
	int has_thread, ends;
	pthread_mutex_t lock;		/* protects ends */
	pthread_cond_t changed;
};

/* Launches the clock kernel, and keeps writing the host's time until that kernel has done all its reads. */
static int measure(struct transport_clock *c)
{
	const uint64_t begin = transport_now();
	uint64_t now = begin;

	__atomic_store_n(&c->host->done, 0, __ATOMIC_RELAXED);
	CAIRN_TRY(transport_clock_launch(c->clock, c->host, c->stream));
	while (!__atomic_load_n(&c->host->done, __ATOMIC_ACQUIRE)) {
		now = transport_now();
		__atomic_store_n(&c->host->now, now, __ATOMIC_RELAXED);
		if (now - begin > MOST_NS)
			return cairn_error(ETIMEDOUT, "GPU %d has not read the host's time", c->gpu);
	}
	return 0;
}

/*
 * Measures again every TRANSPORT_CLOCK_MS. A failed measurement leaves the previous offset; its error is not
 * reported here, because whatever broke it also fails the other calls on this GPU.
 */
static void *keep(void *arg)
{
	struct transport_clock *c = arg;
	int previous;

	if (transport_enter_gpu(c->gpu, &previous))
		return NULL;
	pthread_mutex_lock(&c->lock);
	while (!c->ends) {
		const uint64_t then = transport_now() + TRANSPORT_CLOCK_MS * 1000000u;
		const struct timespec until = {
			(time_t)(then / 1000000000u), (long)(then % 1000000000u),
		};

		pthread_cond_clockwait(&c->changed, &c->lock, CLOCK_MONOTONIC, &until);
		if (c->ends)
			break;
		pthread_mutex_unlock(&c->lock);
		measure(c);
		pthread_mutex_lock(&c->lock);
	}
	pthread_mutex_unlock(&c->lock);
	return NULL;
}

static int begin(struct transport_clock *c)
{
	int least, most;

	CAIRN_CUDA(cudaDeviceGetStreamPriorityRange(&least, &most));
	CAIRN_CUDA(cudaStreamCreateWithPriority(&c->stream, cudaStreamNonBlocking, most));
	for (int i = 0; i < FIRST; i++)
		CAIRN_TRY(measure(c));
	c->has_thread = !pthread_create(&c->thread, NULL, keep, c);
	return c->has_thread ? 0 : cairn_error(EIO, "no thread for the clock of GPU %d", c->gpu);
}

int transport_clock_start(int gpu, struct transport_clock **out)
{
	struct transport_clock *c = calloc(1, sizeof(*c));
	int previous, ret;

	if (!c)
		return cairn_error(ENOMEM, "no memory for a clock");
	c->gpu = gpu;
	pthread_mutex_init(&c->lock, NULL);
	pthread_cond_init(&c->changed, NULL);
	ret = transport_host_alloc(gpu, sizeof(*c->host), (void **)&c->host);
	if (!ret)
		ret = transport_device_alloc(gpu, 2 * sizeof(*c->clock), (void **)&c->clock);
	if (!ret)
		ret = transport_enter_gpu(gpu, &previous);
	if (!ret) {
		ret = begin(c);
		transport_leave_gpu(previous);
	}
	if (ret)
		transport_clock_stop(c);
	else
		*out = c;
	return ret;
}

void transport_clock_stop(struct transport_clock *c)
{
	if (!c)
		return;
	if (c->has_thread) {
		pthread_mutex_lock(&c->lock);
		c->ends = 1;
		pthread_cond_signal(&c->changed);
		pthread_mutex_unlock(&c->lock);
		pthread_join(c->thread, NULL);
	}
	if (c->stream) {
		cudaStreamSynchronize(c->stream);
		cudaStreamDestroy(c->stream);
	}
	transport_device_free(c->gpu, c->clock);
	transport_host_free(c->gpu, c->host, 0);
	pthread_cond_destroy(&c->changed);
	pthread_mutex_destroy(&c->lock);
	free(c);
}

const uint64_t *transport_clock_at(const struct transport_clock *c)
{
	return c->clock;
}

uint64_t transport_clock_error(const struct transport_clock *c)
{
	return __atomic_load_n(&c->host->read_ns, __ATOMIC_RELAXED);
}
