// SPDX-License-Identifier: Apache-2.0
/*
 * serve_link - the link: moves requests in flight between clients and the worker, in one thread
 *
 * The thread sleeps in poll() until a job, the loss of a client, a frame or a time-out wakes it. It never
 * blocks on a peer: data that a client or the worker does not read stays in memory, within the bounds that
 * serve_front.h and serve_wire.h describe. serve_frames.c handles the worker's frames.
 */
#include <float.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "primitives/base/error.h"
#include "serving/serve/front/serve_front.h"

#define BLOCKED_NS	20000000ll	/* retry interval for clients whose stream buffer is full */
#define KEEP_ALIVE_NS	10000000000
#define SLOT_BITS	20

static void wake(struct serve *s)
{
	uint64_t one = 1;
	ssize_t n = write(s->wake_fd, &one, sizeof(one));

	(void)n;	/* the write fails only if the counter is full, so a wake-up is pending anyway */
}

void serve_submit(struct serve *s, struct serve_job *job)
{
	pthread_mutex_lock(&s->lock);
	job->next = NULL;
	*s->prepared_tail = job;
	s->prepared_tail = &job->next;
	pthread_mutex_unlock(&s->lock);
	wake(s);
}

void serve_gone(struct serve_job *job)
{
	struct serve *s = job->s;

	atomic_store(&job->gone, true);
	serve_job_get(job);
	pthread_mutex_lock(&s->lock);
	job->next_gone = s->gone;
	s->gone = job;
	pthread_mutex_unlock(&s->lock);
	wake(s);
}

struct serve_slot *serve_slot_of(struct serve *s, uint64_t request)
{
	uint64_t which = request & ((1u << SLOT_BITS) - 1);

	if (!request || which >= s->num_slots || s->slots[which].request != request)
		return NULL;
	return &s->slots[which];
}

void serve_free_slot(struct serve *s, struct serve_slot *slot)
{
	slot->request = 0;
	s->free_slots[s->num_free++] = (uint32_t)(slot - s->slots);
}

void serve_unqueue(struct serve *s, struct serve_part *p)
{
	if (!p->queued)
		return;
	p->queued = false;
	atomic_fetch_sub(&s->num_queued, 1);
	atomic_fetch_sub(&s->queued_tokens, (long long)p->num_ids);
}

static void observe(struct serve *s, const struct serve_job *job)
{
	static const int finished[] = {
		[CAIRN_API_GOES_ON] = CAIRN_FINISHED_ERROR, [CAIRN_API_STOP] = CAIRN_FINISHED_STOP,
		[CAIRN_API_CALLS] = CAIRN_FINISHED_STOP, [CAIRN_API_LENGTH] = CAIRN_FINISHED_LENGTH,
		[CAIRN_API_ABORT] = CAIRN_FINISHED_ABORT, [CAIRN_API_ERROR] = CAIRN_FINISHED_ERROR,
	};
	double total = (double)(serve_now_ns() - job->begin_ns) * 1e-9;

	for (int32_t i = 0; i < job->num_choices; i++) {
		const struct serve_choice *c = &job->choices[i];
		int why = !c->finish && atomic_load(&job->gone) ? CAIRN_FINISHED_ABORT : finished[c->finish];

		cairn_metric_add(s->metrics, CAIRN_REQUEST_SUCCESS, why, 1);
		cairn_metric_observe(s->metrics, CAIRN_REQUEST_GENERATION_TOKENS, c->num_tokens);
		if (c->num_tokens > 1)
			cairn_metric_observe(s->metrics, CAIRN_TIME_PER_OUTPUT_TOKEN,
					     (double)(c->last_ns - c->first_ns) * 1e-9 / (c->num_tokens - 1));
	}
	for (int32_t i = 0; i < job->num_parts; i++) {
		const struct serve_part *p = &job->parts[i];

		cairn_metric_observe(s->metrics, CAIRN_REQUEST_PROMPT_TOKENS, (double)p->num_ids);
		cairn_metric_observe(s->metrics, CAIRN_REQUEST_PARAMS_MAX_TOKENS, p->max_tokens);
		if (!p->first_ns)
			continue;
		cairn_metric_observe(s->metrics, CAIRN_PREFILL_TIME,
				     (double)(p->first_ns - p->start_ns) * 1e-9);
		cairn_metric_observe(s->metrics, CAIRN_DECODE_TIME,
				     (double)(job->last_ns - p->first_ns) * 1e-9);
		cairn_metric_observe(s->metrics, CAIRN_INFERENCE_TIME,
				     (double)(job->last_ns - p->start_ns) * 1e-9);
	}
	cairn_metric_observe(s->metrics, CAIRN_REQUEST_PARAMS_N, (double)job->req.n);
	cairn_metric_observe(s->metrics, CAIRN_E2E_LATENCY, total);
}

/* Cancels the request of a slot, if there is one and it is the part's. */
static void cancel(struct serve *s, const struct serve_part *p, struct serve_slot *slot)
{
	if (!slot || !slot->request || slot->part != p)
		return;
	slot->part = NULL;
	if (s->fd >= 0)
		cairn_wire_say(&s->out, CAIRN_WIRE_CANCEL, slot->request);
}

void serve_end_job(struct serve *s, struct serve_job *job)
{
	for (int32_t i = 0; i < job->num_parts; i++) {
		struct serve_part *p = &job->parts[i];

		serve_unqueue(s, p);
		if (!p->resumed)
			cancel(s, p, serve_slot_of(s, p->request));
		for (uint32_t k = 0; p->resumed && k < s->num_slots; k++)
			cancel(s, p, &s->slots[k]);
	}
	if (job->prev_live)
		job->prev_live->next_live = job->next_live;
	else
		s->live = job->next_live;
	if (job->next_live)
		job->next_live->prev_live = job->prev_live;
	job->over = true;
	if (!job->refused)
		observe(s, job);
	if (job->unwritten)
		serve_pass_body(s, job);
	else
		serve_drop_job(job);
}

static void fail_live(struct serve *s, const struct cairn_api_error *e)
{
	while (s->live) {
		struct serve_job *job = s->live;

		serve_fail(job, e);
		serve_end_job(s, job);
	}
}

void serve_fail_all(struct serve *s, const char *why)
{
	struct cairn_api_error e;

	cairn_api_refuse(&e, 500, "worker_failed", NULL, "the worker has failed: %s", why);
	fail_live(s, &e);
	serve_free_slots(s);
}

void serve_free_slots(struct serve *s)
{
	/* the worker is gone, so no FINISH will free these slots */
	s->num_free = 0;
	for (uint32_t i = s->num_slots; i-- > 0;)
		serve_free_slot(s, &s->slots[i]);
	s->missing = 0;
}

struct serve_slot *serve_take_slot(struct serve *s, struct serve_part *p, int32_t first, int32_t n)
{
	struct serve_slot *slot;
	uint32_t which;

	if (!s->num_free)
		return NULL;
	which = s->free_slots[--s->num_free];
	slot = &s->slots[which];
	p->request = ++s->generation << SLOT_BITS | which;
	*slot = (struct serve_slot){ .request = p->request, .part = p, .first = first, .num_seqs = n,
				     .num_open = n };
	for (int32_t k = 0; k < n; k++)
		slot->open[k / 64] |= 1ull << k % 64;
	return slot;
}

/* Rounds x to float and clamps it to [lo, hi]: rounding must not yield a value that the engine rejects. */
static float narrow(double x, float lo, float hi)
{
	return x < lo ? lo : x > hi ? hi : (float)x;
}

static void put_constraint(struct serve *s, const struct cairn_constraint *c, uint64_t request)
{
	struct cairn_wire_frame f = { .kind = CAIRN_WIRE_CONSTRAINT, .request = request, .constraint = {
		(int32_t)c->kind, (int32_t)c->num_bytes, (int32_t)c->num_after } };

	cairn_wire_put(&s->out, &f);
	cairn_wire_put_bytes(&s->out, request, c->text, c->num_bytes);
	cairn_wire_put_bytes(&s->out, request, c->after, c->num_after);
}

void serve_put_request(struct serve *s, const struct serve_part *p, const struct serve_slot *slot,
		       const struct serve_given *given)
{
	const struct serve_job *job = p->job;
	const struct cairn_api_request *r = &job->req;
	const int32_t num_given = given ? given->num : 0;
	bool echoed = r->echo && r->logprobs >= 0;
	int64_t top = echoed && r->logprobs > r->prompt_logprobs ? r->logprobs : r->prompt_logprobs;
	struct cairn_wire_frame f = { .kind = CAIRN_WIRE_SUBMIT, .request = slot->request,
		.count = given ? 0 : (int32_t)top + 1, .submit = {
		.num_prompt = (int32_t)p->num_ids + num_given,
		.max_new_tokens = given ? given->max_tokens : p->max_tokens,
		.num_seqs = (int16_t)slot->num_seqs, .num_given = num_given,
		.num_stop_ids = (int16_t)r->num_stop_ids, .adapter = (int16_t)job->adapter,
		.num_bias = r->num_bias, .beam_width = r->use_beam_search ? (int16_t)r->n : 0,
		.salt_hi = job->salt.hi, .salt_lo = job->salt.lo,
		.deadline_ns = s->opt.request_s ? serve_end_ns(job) : 0 } };
	struct cairn_wire_frame g = { .kind = CAIRN_WIRE_SAMPLING, .request = slot->request,
		/* lm-eval drops the last listed token, so a lone end token must be listed too */
		.count = (r->ignore_eos || (echoed && p->max_tokens == 1) ? CAIRN_WIRE_IGNORE_EOS : 0) |
			 (r->constraint.kind ? CAIRN_WIRE_CONSTRAINED : 0), .sampling = {
		.temperature = (float)r->temperature, .top_p = narrow(r->top_p, FLT_MIN, 1),
		.min_p = narrow(r->min_p, 0, 1 - FLT_EPSILON / 2),
		.presence = (float)r->presence_penalty, .frequency = (float)r->frequency_penalty,
		.repetition = narrow(r->repetition_penalty, FLT_MIN, FLT_MAX),
		.length_penalty = (float)r->length_penalty,
		.top_k = r->top_k > INT32_MAX ? INT32_MAX : (int32_t)r->top_k,
		.min_new_tokens = (int32_t)r->min_tokens, .num_logprobs = (int32_t)r->logprobs + 1,
		.seed = given ? given->seed : job->seed } };

	cairn_wire_put(&s->out, &f);
	cairn_wire_put(&s->out, &g);
	cairn_wire_put_ids(&s->out, CAIRN_WIRE_IDS, slot->request, p->ids, (int64_t)p->num_ids);
	if (num_given)
		cairn_wire_put_ids(&s->out, CAIRN_WIRE_IDS, slot->request, given->ids, num_given);
	cairn_wire_put_ids(&s->out, CAIRN_WIRE_STOP_IDS, slot->request, r->stop_ids, r->num_stop_ids);
	for (int32_t i = 0; i < r->num_bias; i += CAIRN_WIRE_PAIRS_PER_FRAME) {
		int32_t k, ids[CAIRN_WIRE_PAIRS_PER_FRAME];
		float values[CAIRN_WIRE_PAIRS_PER_FRAME];

		for (k = 0; k < CAIRN_WIRE_PAIRS_PER_FRAME && i + k < r->num_bias; k++) {
			ids[k] = r->bias[i + k].id;
			values[k] = r->bias[i + k].bias;
		}
		cairn_wire_put_pairs(&s->out, CAIRN_WIRE_BIAS, slot->request, ids, values, k);
	}
	if (r->constraint.kind)
		put_constraint(s, &r->constraint, slot->request);
}

static bool has_room(struct serve *s, const struct serve_job *job, struct cairn_api_error *e)
{
	long long queued = atomic_load(&s->num_queued), tokens = atomic_load(&s->queued_tokens);

	if (queued + job->num_parts > s->opt.max_queued || (uint32_t)job->num_parts > s->num_free) {
		cairn_api_refuse(e, 429, "queue_full", NULL, "%lld prompts are queued, %d more exceed the "
				 "limit",
				 queued, job->num_parts);
		e->retry_after_s = 1;
		return false;
	}
	/* the token limit does not apply while the queue is empty */
	if (queued && tokens + job->num_prompt_tokens > s->opt.max_queued_tokens) {
		cairn_api_refuse(e, 429, "queue_full", NULL,
				 "%lld prompt tokens are queued, %lld more exceed the limit",
				 tokens, (long long)job->num_prompt_tokens);
		e->retry_after_s = 1;
		return false;
	}
	return true;
}

static void admit(struct serve *s, struct serve_job *job)
{
	struct cairn_api_error e;

	if (atomic_load(&job->gone)) {
		cairn_http_abort(job->x);
		serve_drop_job(job);
		return;
	}
	if (s->give_up) {
		serve_refuse_ending(&e);
	} else if (serve_now_ns() >= serve_end_ns(job)) {
		serve_refuse_late(s, &e);
	} else if (atomic_load(&s->state) != SERVE_READY) {
		cairn_api_refuse(&e, 503, "not_ready", NULL, "the worker has failed and is being restarted");
		e.retry_after_s = 1;
	} else if (has_room(s, job, &e)) {
		e.status = 0;
	}
	if (e.status) {
		serve_refuse(job->x, &e);
		serve_drop_job(job);
		return;
	}
	job->live = true;
	job->next_live = s->live;
	if (s->live)
		s->live->prev_live = job;
	s->live = job;
	job->last_ns = job->said_ns = serve_now_ns();
	for (int32_t i = 0; i < job->num_parts; i++) {
		struct serve_part *p = &job->parts[i];
		struct serve_slot *slot = serve_take_slot(s, p, 0, (int32_t)job->req.n);

		p->submit_ns = job->last_ns;
		p->queued = true;
		atomic_fetch_add(&s->num_queued, 1);
		atomic_fetch_add(&s->queued_tokens, (long long)p->num_ids);
		serve_put_request(s, p, slot, NULL);
	}
}

static void take_lists(struct serve *s)
{
	struct serve_job *prepared, *gone, *next;

	pthread_mutex_lock(&s->lock);
	prepared = s->prepared;
	s->prepared = NULL;
	s->prepared_tail = &s->prepared;
	gone = s->gone;
	s->gone = NULL;
	pthread_mutex_unlock(&s->lock);
	for (; prepared; prepared = next) {
		next = prepared->next;
		admit(s, prepared);
	}
	for (; gone; gone = next) {
		next = gone->next_gone;
		/* admit() drops a job that is not submitted yet when it sees the flag */
		if (gone->live && !gone->over) {
			cairn_http_abort(gone->x);
			serve_end_job(s, gone);
		}
		serve_job_put(gone);
	}
}

static void end_late(struct serve *s, struct serve_job *job)
{
	struct cairn_api_error e;

	serve_refuse_late(s, &e);
	serve_fail(job, &e);
	serve_end_job(s, job);
}

/*
 * Ends jobs that are late, flushes blocked streams and sends keep-alive comments. The worker ends late
 * requests, too, but there may be none, it may hang or have left the rest to a slow client. Returns the time
 * by which this must be called again.
 */
static int64_t look_at_clients(struct serve *s)
{
	int64_t now = serve_now_ns(), next_ns = serve_end_unprepared(s);

	for (struct serve_job *job = s->live, *next; job; job = next) {
		int64_t end_ns = serve_end_ns(job);

		next = job->next_live;
		if (now >= end_ns) {
			end_late(s, job);
			continue;
		}
		if (job->blocked && serve_flush(job)) {
			serve_end_job(s, job);
			continue;
		}
		if (job->blocked && now + BLOCKED_NS < end_ns)
			end_ns = job->paused ? now : now + BLOCKED_NS;
		next_ns = end_ns < next_ns ? end_ns : next_ns;
		/* after KEEP_ALIVE_NS the engine has accepted the job, so beginning the stream is safe */
		if (job->req.stream && !job->blocked && now - job->said_ns >= KEEP_ALIVE_NS &&
		    serve_keep_alive(job))
			job->said_ns = now;
	}
	return next_ns;
}

static void listen_to_worker(struct serve *s)
{
	for (int turn = 0; turn < 16 && s->fd >= 0; turn++) {
		const struct cairn_wire_frame *f;
		int bad = 0, ret = cairn_wire_fill(s->in, s->fd);

		while (s->fd >= 0 && (f = cairn_wire_next(s->in, &bad))) {
			if (bad || serve_take_frame(s, f))
				serve_worker_broken(s, "it has violated the protocol");
		}
		if (ret < 0 && s->fd >= 0)
			serve_worker_gone(s, "it has ended");
		if (ret <= 0)
			return;
	}
}

static void talk_to_worker(struct serve *s)
{
	int ret = s->fd >= 0 ? cairn_wire_flush(&s->out, s->fd) : 0;

	/* ignore -EPIPE: a worker that has exited may have sent the reason, which is read first */
	if (ret == -ENOMEM)
		serve_worker_broken(s, "no memory for messages to it");
}

static void *run(void *arg)
{
	struct serve *s = arg;
	int64_t look_ns = 0;

	while (!s->stop_link) {
		/* poll() ignores negative descriptors */
		struct pollfd p[3] = { { s->wake_fd, POLLIN, 0 }, { s->fd, POLLIN, 0 },
				       { s->said.fd, POLLIN, 0 } };
		int64_t next_ns = serve_next_ns(s), ms;
		uint64_t count;

		next_ns = look_ns < next_ns ? look_ns : next_ns;
		ms = (next_ns - serve_now_ns()) / 1000000 + 1;
		ms = ms < 0 ? 0 : ms > 1000 ? 1000 : ms;
		if (cairn_out_waiting(&s->out))
			p[1].events |= POLLOUT;
		poll(p, 3, (int)ms);
		if (p[0].revents && read(s->wake_fd, &count, sizeof(count)) < 0)
			continue;
		serve_log_relay(s->log, &s->said);
		take_lists(s);
		if (s->give_up) {
			struct cairn_api_error e;

			serve_refuse_ending(&e);
			fail_live(s, &e);
		}
		listen_to_worker(s);
		talk_to_worker(s);
		look_ns = look_at_clients(s);
		talk_to_worker(s);
		serve_supervise(s);
	}
	take_lists(s);
	serve_worker_quit(s);
	serve_fail_all(s, "the server is shutting down");
	take_lists(s);
	return NULL;
}

int serve_create_link(struct serve *s)
{
	s->fd = s->pid = s->group = s->said.fd = -1;
	s->num_slots = (uint32_t)(s->opt.max_queued + s->opt.common.batch + 1024);
	if (s->num_slots > 1u << SLOT_BITS)
		s->num_slots = 1u << SLOT_BITS;
	s->slots = calloc(s->num_slots, sizeof(*s->slots));
	s->free_slots = calloc(s->num_slots, sizeof(*s->free_slots));
	s->in = calloc(1, sizeof(*s->in));
	s->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (!s->slots || !s->free_slots || !s->in || s->wake_fd < 0)
		return cairn_error(ENOMEM, "serve: no memory for %u requests", s->num_slots);
	for (uint32_t i = s->num_slots; i-- > 0;)
		s->free_slots[s->num_free++] = i;
	return cairn_token_stream_new(s->tokenizer, false, &s->speller);
}

int serve_start_link(struct serve *s)
{
	int ret = pthread_create(&s->link, NULL, run, s);

	if (ret)
		return cairn_error(EIO, "serve: no thread: %s", strerror(ret));
	s->link_runs = true;
	return 0;
}

void serve_give_up(struct serve *s)
{
	s->give_up = true;
	if (s->link_runs)
		wake(s);
}

void serve_stop_link(struct serve *s)
{
	if (s->link_runs) {
		s->stop_link = true;
		wake(s);
		pthread_join(s->link, NULL);
	}
	cairn_token_stream_free(s->speller);
	cairn_api_out_free(&s->event);
	free(s->out.data);
	free(s->in);
	free(s->slots);
	free(s->free_slots);
	if (s->wake_fd > 0)
		close(s->wake_fd);
}
