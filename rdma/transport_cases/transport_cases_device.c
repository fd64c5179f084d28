// SPDX-License-Identifier: Apache-2.0
/*
 * transport_cases_device.c - puts and waits in kernels, at both ends or with the host at the other end
 *
 * Both kernels run concurrently, even on one GPU. All memory is allocated and all kernels are loaded
 * beforehand, because neither may wait for the other.
 */
#include "rdma/transport_cases/transport_end.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rdma/transport/transport_cuda.h"
#include "rdma/transport_cases/transport_device.h"

#define TIMEOUT_NS	10000000000ull

struct kernel {
	struct device_args args;
	struct device_result *result;
	void *stream, *arrived;
	int gpu;
};

static int prepare(struct end *e, struct kernel *k, uint32_t mode, uint64_t rounds, uint32_t num_ctas)
{
	struct device_args *a = &k->args;

	memset(k, 0, sizeof(*k));
	k->gpu = e->plan->gpu[e->rank];
	CAIRN_TRY(device_load(k->gpu));
	CAIRN_TRY(transport_host_alloc(k->gpu, sizeof(*k->result), (void **)&k->result));
	CAIRN_TRY(transport_device_alloc(k->gpu, 64, &k->arrived));
	*a = (struct device_args) {
		.half = e->bytes, .rounds = rounds, .timeout_ns = TIMEOUT_NS, .mode = mode,
		.rank = (uint32_t)e->rank, .num_ctas = num_ctas, .cell = (uint32_t)(e->bytes / rounds),
			.arrived = k->arrived, .result = k->result,
	};
	CAIRN_TRY(e->table->channel_device(e->c[0], &a->c));
	CAIRN_TRY(e->table->region_device(e->region, &a->local));
	return e->table->remote_device(e->remote, &a->remote);
}

static void release(struct kernel *k)
{
	transport_host_free(k->gpu, k->result, sizeof(*k->result));
	transport_device_free(k->gpu, k->arrived);
}

/* Expects that the kernel reports no error and has run all rounds. */
static void judge(struct end *e, struct kernel *k, uint64_t rounds)
{
	WANT(e, k->result->errors == 0);
	WANT(e, k->result->code == 0);
	if (!WANT(e, k->result->rounds == rounds))
		printf("# rank %d: %llu bytes wrong, %llu of %llu rounds, %s\n", e->rank,
		       (unsigned long long)k->result->errors, (unsigned long long)k->result->rounds,
		       (unsigned long long)rounds, strerror((int)k->result->code));
}

static int can(struct end *e)
{
	if (e->plan->gpu[0] < 0) {
		end_skip(e, "no GPU was requested");
		return 0;
	}
	return end_has(e, CAIRN_TRANSPORT_DEVICE_PUT, "this back end does not support puts by kernels");
}

static void both(struct end *e, uint32_t mode, uint64_t half, uint64_t rounds, uint32_t num_ctas)
{
	struct kernel k;

	if (!can(e))
		return;
	NEED(e, !end_open(e, half));
	if (WANT(e, !prepare(e, &k, mode, rounds, num_ctas)) && WANT(e, !end_barrier(e)) &&
	    WANT(e, !device_start(k.gpu, &k.args, &k.stream)) && WANT(e, !device_join(k.gpu, k.stream)))
		judge(e, &k, rounds);
	WANT(e, !end_barrier(e));	/* free memory only when no kernel runs */
	release(&k);
}

/*
 * Kernels of two processes share a GPU in time slices of milliseconds, so they run fewer rounds. So do the
 * two kernels of one process when other processes use the GPU: a round without a payload takes 20 ms then.
 */
static uint64_t rounds_of(const struct end *e, uint64_t rounds, uint64_t quick)
{
	return e->plan->quick || (e->plan->processes && e->plan->gpu[0] == e->plan->gpu[1]) ? quick : rounds;
}

static void device_payload(struct end *e)
{
	both(e, DEVICE_PAYLOAD, 64 << 10, rounds_of(e, 3000, 50), 1);
}

static void device_stream(struct end *e)
{
	uint64_t num = e->plan->quick ? 100 : 5000;

	both(e, DEVICE_STREAM, num * 256, num, 1);
}

/* Consecutive puts of several CTAs: fast CTAs are already at later puts than slow ones. */
static void device_grid_stream(struct end *e)
{
	uint64_t num = e->plan->quick ? 20 : 1000;

	both(e, DEVICE_STREAM, num * 8192, num, 8);
}

static void device_bulk(struct end *e)
{
	both(e, DEVICE_BULK, e->plan->quick ? 1 << 20 : 16 << 20, e->plan->quick ? 3 : 20, 16);
}

static void device_words(struct end *e)
{
	both(e, DEVICE_WORDS, 4096, rounds_of(e, e->plan->gpu[0] == e->plan->gpu[1] ? 300 : 3000, 100), 1);
}

static void device_grid(struct end *e)
{
	both(e, DEVICE_GRID, e->plan->quick ? 64 << 10 : 8 << 20, e->plan->quick ? 3 : 20, 32);
}

/* A wait in a kernel also ends with a time-out. */
static void device_time_out(struct end *e)
{
	struct kernel k;

	if (!can(e))
		return;
	NEED(e, !end_open(e, 4096));
	if (WANT(e, !prepare(e, &k, DEVICE_TIMEOUT, 1, 1))) {
		k.args.timeout_ns = 20000000;
		if (WANT(e, !device_start(k.gpu, &k.args, &k.stream)) && WANT(e, !device_join(k.gpu,
											      k.stream))) {
			WANT(e, k.result->code == ETIMEDOUT);
			WANT(e, k.result->waited_ns >= 20000000 && k.result->waited_ns < 2000000000);
		}
	}
	WANT(e, !end_barrier(e));
	release(&k);
}

/* The host's part in mode PAYLOAD, replacing a kernel. */
static void host_payloads(struct end *e, uint64_t rounds)
{
	uint64_t i, bytes, from, to;

	for (i = 1; i <= rounds; i++) {
		device_round(i, e->bytes, &bytes, &from, &to);
		if (e->rank) {
			NEED(e, !end_wait(e, 0, 0, i));
			NEED(e, end_check(e, e->bytes + to, bytes, i));
			end_set(e, e->bytes + to, 0xee, bytes);
			NEED(e, !end_signal(e, 0, 1, i, 0));
		} else {
			end_fill(e, from, bytes, i);
			NEED(e, !end_put(e, 0, from, to, bytes, 0, i));
			NEED(e, !end_wait(e, 0, 1, i));
		}
	}
}

static void mixed(struct end *e, int host_rank)
{
	uint64_t rounds = e->plan->quick ? 20 : 300;
	struct kernel k;

	if (!can(e))
		return;
	NEED(e, !end_open(e, 64 << 10));
	NEED(e, !prepare(e, &k, DEVICE_PAYLOAD, rounds, 1));
	NEED(e, !end_barrier(e));
	if (e->rank == host_rank)
		host_payloads(e, rounds);
	else if (WANT(e, !device_start(k.gpu, &k.args, &k.stream)) && WANT(e, !device_join(k.gpu, k.stream)))
		judge(e, &k, rounds);
	WANT(e, !end_barrier(e));
	release(&k);
}

static void device_to_host(struct end *e)
{
	mixed(e, 1);
}

static void host_to_device(struct end *e)
{
	mixed(e, 0);
}

/* Host, kernel and host again put on one channel: the indices continue. */
static void host_device_host(struct end *e)
{
	struct kernel k;
	uint64_t i;
	int turn;

	if (!can(e))
		return;
	NEED(e, !end_open(e, 64 << 10));
	for (turn = 0; turn < 2; turn++) {
		for (i = 1; i <= 5; i++) {
			if (!e->rank) {
				end_fill(e, GUARD, 100, i);
				NEED(e, !end_put(e, 0, GUARD, GUARD, 100, 5, (uint64_t)turn * 5 + i));
				NEED(e, !end_wait(e, 0, 6, (uint64_t)turn * 5 + i));
				continue;
			}
			NEED(e, !end_wait(e, 0, 5, (uint64_t)turn * 5 + i));
			NEED(e, end_check(e, e->bytes + GUARD, 100, i));
			end_set(e, e->bytes + GUARD, 0xee, 100);
			NEED(e, !end_signal(e, 0, 6, (uint64_t)turn * 5 + i, 0));
		}
		if (turn)
			break;
		NEED(e, !prepare(e, &k, DEVICE_PAYLOAD, 30, 1));
		NEED(e, !end_barrier(e));
		if (WANT(e, !device_start(k.gpu, &k.args, &k.stream)) && WANT(e, !device_join(k.gpu,
											      k.stream)))
			judge(e, &k, 30);
		WANT(e, !end_barrier(e));
		release(&k);
	}
}

const struct end_case transport_device_cases[] = {
	{ "device_payload", device_payload }, { "device_stream", device_stream },
	{ "device_words", device_words }, { "device_grid", device_grid },
	{ "device_grid_stream", device_grid_stream }, { "device_bulk", device_bulk },
	{ "device_time_out", device_time_out }, { "device_to_host", device_to_host },
	{ "host_to_device", host_to_device }, { "host_device_host", host_device_host }, { NULL, NULL },
};
