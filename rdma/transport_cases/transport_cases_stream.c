// SPDX-License-Identifier: Apache-2.0
/*
 * transport_cases_stream.c - puts and waits in the order of a stream
 *
 * With a GPU each end has a stream of its own and kernels do the work; without one, calls act at once.
 */
#include "rdma/transport_cases/transport_end.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef CONFIG_CUDA
#include <cuda_runtime_api.h>
#endif

#include "rdma/transport/transport_impl.h"
#include "rdma/transport/transport_stream.h"

#define HALF	(512u << 10)

/* Makes this end's stream; NULL without a GPU. Returns 0 with the case skipped if there are no such puts. */
static int begin(struct end *e, uint64_t half, void **stream)
{
	const struct cairn_stream_put hello = { .value = 1, .slot = 7 };
	int ret;

	*stream = NULL;
	if (!WANT(e, !end_open(e, half)))
		return 0;
#ifdef CONFIG_CUDA
	if (e->plan->gpu[e->rank] >= 0 &&
	    !WANT(e, cudaSetDevice(e->plan->gpu[e->rank]) == cudaSuccess &&
		  cudaStreamCreateWithFlags((cudaStream_t *)stream, cudaStreamNonBlocking) == cudaSuccess))
		return 0;
#endif
	ret = e->table->stream_put(e->c[0], &hello, *stream);
	if (ret == -EOPNOTSUPP)
		end_skip(e, cairn_last_error());
	return ret != -EOPNOTSUPP && WANT(e, !ret);
}

static int await_slot(struct end *e, uint32_t slot, uint64_t value, uint32_t timeout_ms, void *stream)
{
	const struct cairn_stream_wait w = { .value = value, .slot = slot, .timeout_ms = timeout_ms };

	return e->table->stream_wait(e->c[0], &w, stream);
}

/* Waits until the stream is empty. */
static void settle(struct end *e, void *stream)
{
#ifdef CONFIG_CUDA
	if (e->plan->gpu[e->rank] >= 0)
		WANT(e, cudaStreamSynchronize(stream) == cudaSuccess);
#endif
	(void)e;
	(void)stream;
}

static void end_stream(struct end *e, void *stream)
{
	settle(e, stream);
#ifdef CONFIG_CUDA
	if (stream)
		cudaStreamDestroy(stream);
#endif
}

static struct cairn_stream_rows draw_rows(struct end *e, uint64_t from, uint64_t *to)
{
	const uint64_t unit = (uint64_t[]){ 1, 4, 16 }[end_random(e, 3)];
	struct cairn_stream_rows r = { .rows = (uint32_t)end_random(e, 7) };

	r.bytes = unit * (1 + end_random(e, end_random(e, 4) ? 40 : 4000 / unit));
	r.from_stride = r.bytes + unit * end_random(e, 9);
	r.to_stride = r.bytes + 2 * GUARD + unit * end_random(e, 9);
	r.from = e->buf + from;
	*to += GUARD + unit * end_random(e, 3);
	r.to = e->bytes + *to / unit * unit + unit;
	*to += r.rows * r.to_stride + 2 * unit;
	return r;
}

/* The back end's sum is that of the same bytes, and one changed byte changes it. */
static void check_sum(struct end *e)
{
	const uint64_t bytes = 4093;
	uint64_t sums[2] = { 0 }, wants[2];
	uint8_t *copy = malloc(bytes);

	end_fill(e, 0, bytes, 9);
	for (int i = 0; i < 2 && WANT(e, copy != NULL); i++) {
		uint64_t word, all = 0;

		end_read(e, 0, copy, bytes);
		if (i)
			end_write(e, 4000, &(uint8_t){ (uint8_t)~copy[4000] }, 1);
		if (i)
			copy[4000] = (uint8_t)~copy[4000];
		for (uint64_t k = 0; k * 8 < bytes; k++) {
			word = 0;
			memcpy(&word, copy + 8 * k, bytes - 8 * k < 8 ? bytes - 8 * k : 8);
			all += transport_sum_word(word, k, 77);
		}
		wants[i] = transport_mix(all ^ bytes);
		WANT(e, !e->table->sum(e->t, e->buf, bytes, 77, &sums[i]));
		WANT(e, sums[i] == wants[i]);
	}
	WANT(e, sums[0] != sums[1]);
	WANT(e, e->table->sum(e->t, e->buf + 4, 8, 77, &sums[0]) == -EINVAL);
	free(copy);
}

/* Rows of any size and distance, in two blocks; the word arrives with the signal. */
static void stream_rows(struct end *e)
{
	uint64_t rounds = e->plan->quick ? 20 : 60, i, k;
	struct cairn_signal s;
	void *stream;

	if (!begin(e, HALF, &stream))
		return;
	for (i = 1; i <= rounds && !e->failures; i++) {
		uint64_t to = GUARD;
		struct cairn_stream_put p = {
			.part = { draw_rows(e, 0, &to), draw_rows(e, HALF / 2, &to) }, .remote = e->remote,
			.value = i, .word = 7 * i, .slot = e->rank ? 1 : 0,
		};

		for (k = 0; k < 2 * 8; k++) {
			const struct cairn_stream_rows *r = &p.part[k / 8];
			const uint64_t row = k % 8, from = k / 8 * (HALF / 2) + row * r->from_stride;

			if (row >= r->rows)
				continue;
			if (!e->rank)
				end_fill(e, from, r->bytes, 100 * i + k);
		}
		if (!e->rank) {
			WANT(e, !e->table->stream_put(e->c[0], &p, stream));
			WANT(e, !await_slot(e, 1, i, WAIT_MS, stream));
			settle(e, stream);
			continue;
		}
		WANT(e, !await_slot(e, 0, i, e->plan->wait_ms, stream));
		settle(e, stream);
		WANT(e, !e->table->wait(e->c[0], 0, i, 0, &s) && s.value == i && s.word == 7 * i);
		for (k = 0; k < 2 * 8; k++) {
			const struct cairn_stream_rows *r = &p.part[k / 8];
			const uint64_t at = r->to + k % 8 * r->to_stride;

			if (k % 8 >= r->rows)
				continue;
			WANT(e, end_check(e, at, r->bytes, 100 * i + k));
			end_set(e, at, 0xee, r->bytes);
		}
		p.part[0].rows = p.part[1].rows = 0;
		WANT(e, !e->table->stream_put(e->c[0], &p, stream));
		settle(e, stream);
	}
	WANT(e, !e->table->stream_error(e->c[0]));
	check_sum(e);
	end_stream(e, stream);
}

/* A payload goes to and fro, each time from where it has arrived; the hosts wait at the end only. */
static void stream_chain(struct end *e)
{
	const uint64_t rounds = e->plan->quick ? 10 : e->plan->processes ? 40 : 200, bytes = 2000;
	const uint64_t cell = bytes + 2 * GUARD;
	void *stream;

	if (!begin(e, cell * (rounds + 2), &stream))
		return;
	if (!e->rank)
		end_fill(e, 0, bytes, 3);
	NEED(e, !end_barrier(e));
	for (uint64_t i = 1; i <= rounds && !e->failures; i++) {
		const uint64_t came = e->bytes + (e->rank ? i : i - 1) * cell;
		const struct cairn_stream_put p = {
			.part[1] = {
				.from = e->buf + (!e->rank && i == 1 ? 0 : came), .to = e->bytes + i * cell,
				.bytes = bytes, .rows = 1,
			},
			.remote = e->remote, .value = i, .slot = e->rank ? 1 : 0,
		};

		if (e->rank)
			WANT(e, !await_slot(e, 0, i, e->plan->wait_ms, stream));
		WANT(e, !e->table->stream_put(e->c[0], &p, stream));
		if (!e->rank)
			WANT(e, !await_slot(e, 1, i, e->plan->wait_ms, stream));
	}
	settle(e, stream);
	WANT(e, end_check(e, e->bytes + rounds * cell, bytes, 3));
	WANT(e, !e->table->stream_error(e->c[0]));
	end_stream(e, stream);
}

/* What a graph of the next case has: rank 0 puts and waits, rank 1 waits and puts. */
struct replayed {
	struct end *e;
	struct cairn_stream_put put;
	struct cairn_stream_wait wait;
};

static int enqueue_replayed(const struct replayed *r, void *stream)
{
	if (r->e->rank)
		CAIRN_TRY(r->e->table->stream_wait(r->e->c[0], &r->wait, stream));
	CAIRN_TRY(r->e->table->stream_put(r->e->c[0], &r->put, stream));
	return r->e->rank ? 0 : r->e->table->stream_wait(r->e->c[0], &r->wait, stream);
}

/* Runs the put and the wait: on a GPU, they are captured the first time, and their graph is launched. */
static int replay(const struct replayed *r, void *stream, void **graph)
{
#ifdef CONFIG_CUDA
	cudaGraph_t g;
	int ret;

	if (r->e->plan->gpu[r->e->rank] < 0)
		return enqueue_replayed(r, stream);
	if (!*graph) {
		if (cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal))
			return -EIO;
		ret = enqueue_replayed(r, stream);
		if (cudaStreamEndCapture(stream, &g) || ret ||
		    cudaGraphInstantiate((cudaGraphExec_t *)graph, g, 0))
			return -EIO;
		cudaGraphDestroy(g);
	}
	return cudaGraphLaunch(*graph, stream) ? -EIO : 0;
#else
	(void)graph;
	return enqueue_replayed(r, stream);
#endif
}

/*
 * Replays one put and one wait with a different number, row count and turn in memory (struct
 * cairn_stream_now) each time; exactly that many rows must arrive. Rank 0 puts the rows, and rank 1 answers
 * with a signal. The wait publishes its turn in *ended and waits until *order has reached the turn before.
 */
static void stream_replays(struct end *e)
{
	enum { ROW = 48, ROWS = 9, NOW = 0, WORDS = 64, PAYLOAD = 256 };
	struct replayed r = { .e = e };
	uint64_t words[2], want;
	void *stream, *graph = NULL;
	int ret;

	if (!begin(e, HALF, &stream))
		return;
	r.put = (struct cairn_stream_put){
		.now = (const void *)(e->buf + NOW), .remote = e->remote, .value = 3, .slot = e->rank ? 1 : 0,
		.part[1] = {
			.from = e->buf + PAYLOAD, .from_stride = ROW, .to = e->bytes + GUARD,
			.to_stride = ROW, .bytes = ROW, .rows = e->rank ? 0 : ROWS,
		},
	};
	r.wait = (struct cairn_stream_wait){
		.now = r.put.now, .value = 3, .ended = (void *)(e->buf + WORDS),
		.order = (void *)(e->buf + WORDS + 8),
		.slot = e->rank ? 0 : 1, .timeout_ms = e->plan->wait_ms,
	};
	for (uint64_t i = 1; i <= 12 && !e->failures; i++) {
		const struct cairn_stream_now now = { 10 * i, i % ROWS + 1, 5 * i, 0 };

		words[0] = 0;
		words[1] = now.turn - 1;
		end_write(e, NOW, &now, sizeof(now));
		end_write(e, WORDS, words, sizeof(words));
		end_set(e, e->bytes, 0xee, ROWS * ROW + 2 * GUARD);
		if (!e->rank)
			end_fill(e, PAYLOAD, ROWS * ROW, i);
		NEED(e, !end_barrier(e));
		WANT(e, !replay(&r, stream, &graph));
		settle(e, stream);
		end_read(e, WORDS, &want, sizeof(want));
		WANT(e, want == now.turn);
		WANT(e, !e->table->stream_error(e->c[0]));
		if (e->rank)		/* the guards show that no other row has come */
			WANT(e, end_check(e, e->bytes + GUARD, now.rows * ROW, i));
		NEED(e, !end_barrier(e));
	}
	words[1] -= 1;			/* the turn two before */
	end_write(e, WORDS, words, sizeof(words));
	r.wait.slot = CAIRN_NO_SIGNAL;
	r.wait.timeout_ms = 30;
	ret = e->table->stream_wait(e->c[0], &r.wait, stream);
	settle(e, stream);
	WANT(e, !ret || ret == -ETIMEDOUT);
	WANT(e, e->table->stream_error(e->c[0]) == -ETIMEDOUT);
	r.wait.now = NULL;
	WANT(e, e->table->stream_wait(e->c[0], &r.wait, stream) == -EINVAL);
	WANT_ERROR(e, "now: null pointer");
#ifdef CONFIG_CUDA
	if (graph)
		cudaGraphExecDestroy(graph);
#endif
	end_stream(e, stream);
}

/* Takes a lock, gives it up with a signal, or does both for two rounds. */
enum locked_what { LOCKED_TAKE, LOCKED_GIVE, LOCKED_TWICE };
struct locked {
	struct end *e;
	struct cairn_stream_lock *lock;
	uint32_t timeout_ms;
};

static int enqueue_locked(const struct locked *l, enum locked_what what, void *stream)
{
	const struct cairn_transport_table *table = l->e->table;
	const struct cairn_stream_wait take = {
		.lock = l->lock, .slot = CAIRN_NO_SIGNAL, .timeout_ms = l->timeout_ms,
	};

	for (uint64_t i = 1; i <= (what == LOCKED_TWICE ? 2 : 1); i++) {
		const struct cairn_stream_put give = {
			.unlock = l->lock, .value = i, .slot = what == LOCKED_TWICE ? 2 : 3,
		};

		if (what != LOCKED_GIVE)
			CAIRN_TRY(table->stream_wait(l->e->c[0], &take, stream));
		if (what != LOCKED_TAKE)
			CAIRN_TRY(table->stream_put(l->e->c[0], &give, stream));
	}
	return 0;
}

/* As enqueue_locked(); on a GPU, as a graph. */
static int run_locked(const struct locked *l, enum locked_what what, void *stream)
{
#ifdef CONFIG_CUDA
	cudaGraphExec_t graph;
	cudaGraph_t g;
	int ret;

	if (stream) {
		if (cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal))
			return -EIO;
		ret = enqueue_locked(l, what, stream);
		if (cudaStreamEndCapture(stream, &g) || ret || cudaGraphInstantiate(&graph, g, 0))
			return -EIO;
		ret = cudaGraphLaunch(graph, stream) ? -EIO : 0;
		cudaGraphExecDestroy(graph);	/* when it has ended */
		cudaGraphDestroy(g);
		return ret;
	}
#endif
	return enqueue_locked(l, what, stream);
}

/*
 * While a lock is taken, another stream waits for it: the peer gets its signals only after the lock is given
 * up. Without a GPU, calls act at once, so the other stream comes afterwards. A lock that nobody gives up is
 * a time-out.
 */
static void stream_locks(struct end *e)
{
	struct cairn_stream_lock at = { 0 };
	struct locked l = { e, NULL, e->plan->wait_ms };
	struct cairn_signal s;
	void *stream, *other = NULL;
	int ret;

	if (!begin(e, HALF, &stream))
		return;
#ifdef CONFIG_CUDA
	if (stream && !WANT(e, cudaStreamCreateWithFlags((cudaStream_t *)&other, cudaStreamNonBlocking) ==
			       cudaSuccess))
		return;
#endif
	l.lock = (void *)e->buf;
	end_write(e, 0, &at, sizeof(at));
	NEED(e, !end_barrier(e));
	WANT(e, !run_locked(&l, LOCKED_TAKE, stream));
	settle(e, stream);
	if (other) {
		WANT(e, !enqueue_locked(&l, LOCKED_TAKE, other));	/* not captured: does not count */
		settle(e, other);
		WANT(e, !run_locked(&l, LOCKED_TWICE, other));
		WANT(e, e->table->wait(e->c[0], 2, 1, 50, &s) == -ETIMEDOUT);
		NEED(e, !end_barrier(e));
	}
	WANT(e, !run_locked(&l, LOCKED_GIVE, stream));
	if (!other)
		WANT(e, !run_locked(&l, LOCKED_TWICE, stream));
	WANT(e, !e->table->wait(e->c[0], 2, 2, e->plan->wait_ms, &s));
	settle(e, stream);
	settle(e, other);
	end_read(e, 0, &at, sizeof(at));
	WANT(e, at.next == 3 && at.serving == 3);
	WANT(e, !e->table->stream_error(e->c[0]));
	NEED(e, !end_barrier(e));
	WANT(e, !run_locked(&l, LOCKED_TAKE, stream));
	l.timeout_ms = 30;
	ret = run_locked(&l, LOCKED_TAKE, stream);
	settle(e, stream);
	WANT(e, !ret || ret == -ETIMEDOUT);
	WANT(e, e->table->stream_error(e->c[0]) == -ETIMEDOUT);
	if (other)
		end_stream(e, other);
	end_stream(e, stream);
	NEED(e, !end_barrier(e));
}

/* A wait ends with its time-out, and later puts fail; bad arguments are refused before. */
static void stream_time_out(struct end *e)
{
	struct cairn_stream_put p = { .remote = e->remote, .slot = 3, .part[0] = { .bytes = 8, .rows = 2 } };
	void *stream;
	int ret;

	if (!begin(e, HALF, &stream))
		return;
	p.remote = e->remote;
	WANT(e, e->table->stream_put(e->c[0], &p, stream) == -EINVAL);
	WANT_ERROR(e, "from: null pointer");
	p.part[0].from = e->buf;
	WANT(e, e->table->stream_put(e->c[0], &p, stream) == -EINVAL);
	WANT_ERROR(e, "rows of 8 bytes, 0 and 0 bytes apart");
	p.part[0].from_stride = 8;
	p.part[0].to_stride = 2 * HALF - 7;
	WANT(e, e->table->stream_put(e->c[0], &p, stream) == -EINVAL);
	WANT_ERROR(e, "exceed a region");
	p.slot = CAIRN_MAX_SLOTS;
	WANT(e, e->table->stream_put(e->c[0], &p, stream) == -EINVAL);
	WANT(e, await_slot(e, CAIRN_MAX_SLOTS, 1, 1, stream) == -EINVAL);
	ret = await_slot(e, 5, 1, 30, stream);
	settle(e, stream);
	WANT(e, !ret || ret == -ETIMEDOUT);
	WANT(e, e->table->stream_error(e->c[0]) == -ETIMEDOUT);
	WANT_ERROR(e, "slot 5");
	p = (struct cairn_stream_put){ .value = 1, .slot = 3 };
	WANT(e, e->table->stream_put(e->c[0], &p, stream) == -ETIMEDOUT);
	end_stream(e, stream);
	NEED(e, !end_barrier(e));
}

static void *stop(void *arg)
{
	struct end *e = arg;

	end_nap(20);
	e->table->stream_stop(e->c[0]);
	return NULL;
}

/* Another thread ends a wait whose signal never comes. */
static void stream_stops(struct end *e)
{
	const double begun = end_now();
	pthread_t thread;
	void *stream;
	int ret;

	if (!begin(e, HALF, &stream))
		return;
	NEED(e, !pthread_create(&thread, NULL, stop, e));
	ret = await_slot(e, 5, 1, 60000, stream);
	settle(e, stream);
	pthread_join(thread, NULL);
	WANT(e, !ret || ret == -ECANCELED);
	WANT(e, e->table->stream_error(e->c[0]) == -ECANCELED);
	WANT(e, end_now() - begun < 30);
	end_stream(e, stream);
	NEED(e, !end_barrier(e));
}

/* ---- a paced link ---- */

enum { PACED_AT = 256, PACED_BYTES = 100000, PACED_SLOTS = 2 };
static const uint32_t paced_slots[PACED_SLOTS] = { 0, 2 };
#define EARLY	20e-6		/* the error of the clocks, and more */
#define LATE	8e-3

/* Returns the least time, in s, in which a signal arrives together with `num` payloads over an idle link. */
static double paced_time(int num)
{
	return END_PACE_S + num * PACED_BYTES / END_PACE_SPEED;
}

static struct cairn_stream_put paced_put(struct end *e, uint32_t rows, uint32_t slot, uint64_t value)
{
	return (struct cairn_stream_put){
		.remote = e->remote, .value = value, .slot = slot,
		.part[0] = {
			.from = e->buf + PACED_AT, .from_stride = PACED_BYTES, .to = e->bytes + PACED_AT,
			.to_stride = PACED_BYTES, .bytes = PACED_BYTES, .rows = rows,
		},
	};
}

/*
 * Rank 0 puts to two slots; on the link, the second put follows the first. Rank 1 measures when each signal
 * becomes visible: to the host in odd rounds, to a stream in even ones. Returns whether none was late.
 */
static int paced_round(struct end *e, uint64_t i, void *stream)
{
	double begin = end_now(), from, came[PACED_SLOTS] = { 0 };
	int late = 0, theirs;

	for (int k = 0; k < PACED_SLOTS; k++) {
		const struct cairn_stream_put p = paced_put(e, 1, paced_slots[k], i);

		if (!e->rank) {
			WANT(e, !e->table->stream_put(e->c[0], &p, stream));
			continue;
		}
		if (i % 2)
			WANT(e, !e->table->wait(e->c[0], paced_slots[k], i, e->plan->wait_ms, NULL));
		else
			WANT(e, !await_slot(e, paced_slots[k], i, e->plan->wait_ms, stream));
		settle(e, stream);
		came[k] = end_now();
	}
	WANT(e, !end_exchange(e, &begin, &from, sizeof(from)));
	for (int k = 0; k < PACED_SLOTS && e->rank; k++) {
		WANT(e, came[k] - from >= paced_time(k + 1) - EARLY);
		late |= came[k] - from > paced_time(k + 1) + LATE;
	}
	settle(e, stream);
	WANT(e, !end_exchange(e, &late, &theirs, sizeof(late)));
	return !late && !theirs;
}

/* A captured put, and the answer to it, take both ways of the link each time. */
static void paced_replays(struct end *e, void *stream)
{
	struct replayed r = { .e = e };
	void *graph = NULL;

	r.put = paced_put(e, e->rank ? 0 : 1, e->rank ? 4 : 3, 1);
	r.wait = (struct cairn_stream_wait){
		.value = 1, .slot = e->rank ? 3 : 4, .timeout_ms = e->plan->wait_ms,
	};
	r.put.now = r.wait.now = (const void *)e->buf;
	for (uint64_t i = 1; i <= 3 && !e->failures; i++) {
		const struct cairn_stream_now now = { .number = 10 * i, .rows = 1 };
		double begin;

		end_write(e, 0, &now, sizeof(now));
		if (!e->rank)
			end_fill(e, PACED_AT, PACED_BYTES, i);
		else
			end_set(e, e->bytes, 0xee, HALF);
		NEED(e, !end_barrier(e));
		begin = end_now();
		WANT(e, !replay(&r, stream, &graph));
		settle(e, stream);
		if (e->rank)
			WANT(e, end_check(e, e->bytes + PACED_AT, PACED_BYTES, i));
		else
			WANT(e, end_now() - begin >= paced_time(1) + END_PACE_S - EARLY);
		NEED(e, !end_barrier(e));
	}
#ifdef CONFIG_CUDA
	if (graph)
		cudaGraphExecDestroy(graph);
#endif
}

/* A wait also times out if its signal has arrived but does not become due before the time-out. */
static void paced_time_out(struct end *e, void *stream)
{
	const struct cairn_stream_put p = paced_put(e, 4, 5, 1);
	double begin = end_now(), from;
	int ret = 0;

	if (!e->rank)
		WANT(e, !e->table->stream_put(e->c[0], &p, stream));
	else
		ret = await_slot(e, 5, 1, 5, stream);
	settle(e, stream);
	WANT(e, !end_exchange(e, &begin, &from, sizeof(from)));
	WANT(e, !ret || ret == -ETIMEDOUT);
	/* it is not an error if this end was kept from running for so long */
	if (e->rank && end_now() - from < paced_time(4) - EARLY)
		WANT(e, e->table->stream_error(e->c[0]) == -ETIMEDOUT);
}

/* Signals show when a slower link would have delivered them: not earlier, and not later. */
static void stream_paced(struct end *e)
{
	struct cairn_device_channel d;
	void *stream;
	int in_time[2] = { 0 };

	if (!begin(e, HALF, &stream))
		return;
	if (!transport_is_paced(&e->c[0]->link.pace) && strcmp(e->t->ops->name, "tcp")) {
		end_skip(e, "this back end has no pace");
		end_stream(e, stream);
		return;
	}
	/* a machine that is busy with other things may be late */
	for (uint64_t i = 1; i <= 12 && !(in_time[0] && in_time[1]) && !e->failures; i++)
		in_time[i % 2] |= paced_round(e, i, stream);
	WANT(e, in_time[0] && in_time[1]);
	paced_replays(e, stream);
	if (e->c[0]->link.clock) {
		WANT(e, e->table->channel_device(e->c[0], &d) == -EOPNOTSUPP);
		WANT_ERROR(e, "a pace");
		printf("# rank %d: the shortest read of the host's time took %llu ns\n", e->rank,
		       (unsigned long long)e->c[0]->link.clock_error_ns);
	}
	WANT(e, !e->table->stream_error(e->c[0]));
	NEED(e, !end_barrier(e));
	end_start_again(e);		/* nothing of before is due, and the link is idle */
	if (!e->failures)
		paced_round(e, 1, stream);
	paced_time_out(e, stream);
	end_stream(e, stream);
	NEED(e, !end_barrier(e));
}

const struct end_case transport_stream_cases[] = {
	{ "stream_rows", stream_rows }, { "stream_chain", stream_chain },
	{ "stream_replays", stream_replays }, { "stream_locks", stream_locks },
	{ "stream_time_out", stream_time_out }, { "stream_stops", stream_stops },
	{ END_PACED, stream_paced }, { NULL, NULL },
};
