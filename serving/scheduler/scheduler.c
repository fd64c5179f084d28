// SPDX-License-Identifier: Apache-2.0
/*
 * scheduler - admits, preempts and retires requests, and reports what happened to them
 */
#include <stdlib.h>
#include <string.h>

#include "serving/scheduler/scheduler_impl.h"

static int check_options(struct cairn_scheduler_options *o)
{
	if (o->max_seqs < 1 || o->dense_rows < o->max_seqs || o->dense_rows > 1 << 20)
		return cairn_error(EINVAL, "scheduler: max_seqs: %d, dense_rows: %d: not 1 <= max_seqs <= "
				   "dense_rows <= %d", o->max_seqs, o->dense_rows, 1 << 20);
	if (o->page_size < 1 || o->num_pages < 1 || o->page_size > 1 << 16 || o->num_pages > 1 << 28)
		return cairn_error(EINVAL, "scheduler: %d pages of %d tokens are out of range",
				   o->num_pages, o->page_size);
	if (o->host_pages < 0 || o->disk_pages < 0 || (o->disk_pages && !o->host_pages))
		return cairn_error(EINVAL,
				   "scheduler: host_pages: %d, disk_pages: %d: a disk tier needs a host tier",
				   o->host_pages, o->disk_pages);
	if (o->max_context < 2)
		return cairn_error(EINVAL, "scheduler: max_context: is %d, must be >= 2", o->max_context);
	if (o->grain && o->grain != 1 && o->grain != o->page_size)
		return cairn_error(EINVAL, "scheduler: grain: is %d, must be 0, 1 or page_size", o->grain);
	if ((o->ahead & ~1) || o->max_chunk < 0 || o->max_queued < 0 || o->max_queued_tokens < 0 ||
	    o->max_passes < 0 || o->window < 0 || o->expected_new < 0 || o->recompute_ns < 0 ||
	    o->swap_ns < 0)
		return cairn_error(EINVAL, "scheduler: an option is negative, or ahead is not 0 or 1");
	if (o->repeat_chunk < 0 || o->repeat_chunk > o->dense_rows || o->repeat_chunk % o->page_size)
		return cairn_error(EINVAL, "scheduler: repeat_chunk: is %d, must be a multiple of page_size "
				   "%d and at most dense_rows %d", o->repeat_chunk, o->page_size,
				   o->dense_rows);
	if (o->max_drafts < 0 || o->draft_rows < 0 || o->draft_rows > o->dense_rows - o->max_seqs ||
	    !o->max_drafts != !o->draft_rows || (o->max_drafts && !o->draft))
		return cairn_error(EINVAL, "scheduler: max_drafts: %d, draft_rows: %d: both or none, with "
				   "draft_rows at most dense_rows - max_seqs %d and a function draft",
				   o->max_drafts, o->draft_rows, o->dense_rows - o->max_seqs);
	if (o->lanes < 0 || o->lanes > (o->host_pages || o->max_drafts ? 1 : CAIRN_SCHED_LANES))
		return cairn_error(EINVAL, "scheduler: lanes: is %d, must be 1..%d, or 1 with a host tier or "
				   "drafts", o->lanes, CAIRN_SCHED_LANES);
	if (o->max_reserved < 0 || o->reserved_pages < 0 || !o->max_reserved != !o->reserved_pages)
		return cairn_error(EINVAL, "scheduler: max_reserved: %d, reserved_pages: %d: both or none",
				   o->max_reserved, o->reserved_pages);
	o->lanes = o->lanes ? o->lanes : 1;
	o->max_queued = o->max_queued ? o->max_queued : 1024;
	o->window = o->window ? o->window : 32;
	o->expected_new = o->expected_new ? o->expected_new : 256;
	if (!o->recompute_ns && !o->swap_ns) {
		o->recompute_ns = 20000;
		o->swap_ns = 100000;
	}
	return 0;
}

static int create_tier(struct tier *tier, const struct cairn_scheduler_options *o, int32_t pages,
		       int32_t seqs)
{
	if (!pages)
		return 0;
	CAIRN_TRY(cairn_kv_pool_create(&tier->pool, pages, o->page_size, seqs));
	return !o->grain ? 0 : cairn_prefix_tree_create(&tier->tree, tier->pool,
							o->repeat_chunk ? o->repeat_chunk : o->grain);
}

static int create_arrays(struct cairn_scheduler *s)
{
	size_t seqs = (size_t)s->opt.max_seqs, rows = (size_t)s->opt.dense_rows + 1;
	size_t path = (size_t)s->opt.max_context + 1, draws = seqs + (size_t)s->opt.draft_rows + 1;

	for (int i = 0; i < SCHED_PLANS; i++) {
		struct plan_buffer *b = &s->plans[i];

		b->items = calloc(seqs + 1, sizeof(*b->items));
		b->draws = calloc(draws, sizeof(*b->draws));
		b->ids = calloc(rows, sizeof(*b->ids));
		b->parents = calloc(rows, sizeof(*b->parents));
		if (!b->items || !b->draws || !b->ids || !b->parents)
			return -ENOMEM;
	}
	s->proposals = calloc(seqs, sizeof(*s->proposals));
	s->drafts = calloc(seqs * (size_t)s->opt.max_drafts + 1, sizeof(*s->drafts));
	s->parents = calloc(seqs * (size_t)s->opt.max_drafts + 1, sizeof(*s->parents));
	s->drawn_rows = calloc((size_t)s->opt.max_drafts + 1, sizeof(*s->drawn_rows));
	if (!s->proposals || !s->drafts || !s->parents || !s->drawn_rows)
		return -ENOMEM;
	s->reservations = calloc((size_t)s->opt.max_reserved + 1, sizeof(*s->reservations));
	if (!s->reservations)
		return -ENOMEM;
	s->running = calloc(seqs + 1, sizeof(struct sched_seq *));
	s->demands = calloc(2 * seqs + 2, sizeof(*s->demands));
	s->path_tokens = calloc(path, sizeof(*s->path_tokens));
	s->path_pages = calloc(2 * path, sizeof(*s->path_pages));
	return s->running && s->demands && s->path_tokens && s->path_pages ? 0 : -ENOMEM;
}

int cairn_scheduler_create(struct cairn_scheduler **out, const struct cairn_scheduler_options *options)
{
	struct cairn_scheduler *s;
	int ret;

	if (!out || !options)
		return cairn_error(EINVAL, "scheduler: null pointer");
	s = calloc(1, sizeof(*s));
	if (!s)
		return cairn_error(ENOMEM, "scheduler: no memory");
	s->opt = *options;
	ret = check_options(&s->opt);
	if (ret)
		goto out_destroy;
	s->expected_new = s->opt.expected_new;
	s->next_deadline = INT64_MAX;
	s->used_lanes = s->opt.lanes;
	ret = create_arrays(s);
	if (ret) {
		cairn_error(ENOMEM, "scheduler: no memory for %d sequences", s->opt.max_seqs);
		goto out_destroy;
	}
	/* the host pool needs a handle per running sequence, one per preempted one and two for transfers */
	ret = create_tier(&s->device, &s->opt, s->opt.num_pages, s->opt.max_seqs + 1 + s->opt.max_reserved);
	if (!ret)
		ret = create_tier(&s->host, &s->opt, s->opt.host_pages, 2 * s->opt.max_seqs + 2);
	if (!ret)
		ret = create_tier(&s->disk, &s->opt, s->opt.disk_pages, 2);
	if (!ret && s->opt.listener)
		ret = s->device.tree ? cairn_prefix_tree_listen(s->device.tree, s->opt.listener) :
		      cairn_error(EINVAL, "scheduler: grain: a listener needs a prefix tree");
	if (ret)
		goto out_destroy;
	*out = s;
	return 0;

out_destroy:
	cairn_scheduler_destroy(s);
	return ret;
}

static void free_seq(struct sched_seq *q)
{
	if (--q->req->num_live == 0)
		free(q->req);
	free(q);
}

static void destroy_tier(struct tier *tier)
{
	cairn_prefix_tree_destroy(tier->tree);
	cairn_kv_pool_destroy(tier->pool);
}

void cairn_scheduler_destroy(struct cairn_scheduler *s)
{
	if (!s)
		return;
	for (int32_t i = 0; i < s->num_running; i++) {
		if (!FAULT(DOUBLE_ADMISSION) || !i || s->running[i] != s->running[i - 1])
			free_seq(s->running[i]);
	}
	while (s->queue) {
		struct sched_seq *q = s->queue;

		s->queue = q->next;
		free_seq(q);
	}
	destroy_tier(&s->device);
	destroy_tier(&s->host);
	destroy_tier(&s->disk);
	for (int i = 0; i < SCHED_PLANS; i++) {
		free(s->plans[i].items);
		free(s->plans[i].draws);
		free(s->plans[i].ids);
		free(s->plans[i].parents);
		free(s->plans[i].moves);
	}
	free(s->proposals);
	free(s->drafts);
	free(s->parents);
	free(s->drawn_rows);
	free(s->before.moves);
	free(s->after.moves);
	free(s->running);
	free(s->demands);
	free(s->reservations);
	free(s->path_tokens);
	free(s->path_pages);
	free(s->events);
	free(s);
}

int sched_younger(const struct sched_seq *a, const struct sched_seq *b)
{
	return a->req->arrival != b->req->arrival ? a->req->arrival > b->req->arrival : a->index > b->index;
}

/* Inserts q into the queue, which is sorted by arrival. */
void sched_enqueue(struct cairn_scheduler *s, struct sched_seq *q)
{
	struct sched_seq *after = s->queue_end;

	while (after && sched_younger(after, q))
		after = after->prev;
	q->prev = after;
	q->next = after ? after->next : s->queue;
	*(q->prev ? &q->prev->next : &s->queue) = q;
	*(q->next ? &q->next->prev : &s->queue_end) = q;
	q->is_waiting = 1;
	s->num_waiting++;
	if (q->was_running) {
		s->num_preempted++;
	} else {
		s->num_queued++;
		s->queued_tokens += q->req->num_prompt;
	}
}

void sched_dequeue(struct cairn_scheduler *s, struct sched_seq *q)
{
	*(q->prev ? &q->prev->next : &s->queue) = q->next;
	*(q->next ? &q->next->prev : &s->queue_end) = q->prev;
	q->prev = q->next = NULL;
	q->is_waiting = 0;
	s->num_waiting--;
	if (q->was_running) {
		s->num_preempted--;
	} else {
		s->num_queued--;
		s->queued_tokens -= q->req->num_prompt;
	}
}

int sched_insert_running(struct cairn_scheduler *s, struct sched_seq *q)
{
	int32_t at = s->num_running;

	while (at && sched_younger(s->running[at - 1], q))
		at--;
	memmove(s->running + at + 1, s->running + at, (size_t)(s->num_running - at) * sizeof(*s->running));
	s->running[at] = q;
	s->num_running++;
	s->promised_seqs += q->req->unforked;
	return at;
}

void sched_remove_running(struct cairn_scheduler *s, struct sched_seq *q)
{
	int32_t at = 0;

	while (s->running[at] != q)
		at++;
	s->num_running--;
	memmove(s->running + at, s->running + at + 1, (size_t)(s->num_running - at) * sizeof(*s->running));
	s->promised_seqs -= q->req->unforked;
}

static int add_event(struct cairn_scheduler *s, uint64_t request, int32_t index, int what, int32_t token)
{
	if (s->events_read) {
		s->num_events = 0;
		s->events_read = 0;
	}
	if (s->num_events == s->events_room) {
		int32_t room = s->events_room ? 2 * s->events_room : 64;
		struct cairn_sched_event *events = realloc(s->events, (size_t)room * sizeof(*events));

		if (!events)
			return cairn_error(ENOMEM, "scheduler: no memory for %d events", room);
		s->events = events;
		s->events_room = room;
	}
	s->events[s->num_events++] = (struct cairn_sched_event){ request, index, what, token };
	return 0;
}

const struct cairn_sched_event *cairn_scheduler_events(struct cairn_scheduler *s, int32_t *num)
{
	*num = s->events_read ? 0 : s->num_events;
	s->events_read = 1;
	return s->events;
}

/* Retires a running or waiting sequence. Answers that would have been forked from it end with it. */
int sched_finish(struct cairn_scheduler *s, struct sched_seq *q, int what, int32_t token)
{
	struct sched_request *r = q->req;
	int ret = add_event(s, r->id, q->index, what, token);
	int32_t bad;

	for (int32_t i = 0; !ret && i < r->unforked; i++)
		ret = add_event(s, r->id, r->next_index + i, what, token);
	/* a discarded beam says nothing about the length of an answer */
	if ((what == CAIRN_SCHED_STOP || what == CAIRN_SCHED_LENGTH) && !r->lockstep)
		sched_expect(s, q);
	for (int i = 0; i < SCHED_PLANS; i++) {	/* drop its tokens that are still in flight */
		if (q->draw[i] >= 0)
			s->plans[i].draws[q->draw[i]].seq = NULL;
	}
	if (!ret && !q->is_bad)
		ret = sched_keep_all(s, q);
	sched_drop_shadow(s, q);
	if (!FAULT(TAIL_LEAK))
		sched_drop_tail(s, q);
	bad = q->is_bad ? q->node : CAIRN_PREFIX_NONE;
	if (!FAULT(CANCEL_LEAK) || what != CAIRN_SCHED_CANCELLED)
		sched_unpin(s, q);
	/* remove its prompt from the tree, except the part that other sequences share */
	if (bad != CAIRN_PREFIX_NONE)
		cairn_prefix_tree_remove(s->device.tree, bad);
	if (q->is_waiting) {
		if (FAULT(QUEUE_TOKENS) && what == CAIRN_SCHED_CANCELLED)
			s->queued_tokens += q->was_running ? 0 : r->num_prompt;
		sched_dequeue(s, q);
	} else {
		cairn_kv_pool_close(s->device.pool, q->kv);
		sched_remove_running(s, q);
	}
	free_seq(q);
	return ret;
}

struct sched_seq *sched_find(struct cairn_scheduler *s, uint64_t request, int32_t index)
{
	for (int32_t i = 0; i < s->num_running; i++) {
		if (s->running[i]->req->id == request && (index < 0 || s->running[i]->index == index))
			return s->running[i];
	}
	for (struct sched_seq *q = s->queue; q; q = q->next) {
		if (q->req->id == request && (index < 0 || q->index == index))
			return q;
	}
	return NULL;
}

static int check_request(struct cairn_scheduler *s, const struct cairn_scheduler_request *r, int32_t num_seqs)
{
	int64_t room = (int64_t)s->opt.num_pages * s->opt.page_size;

	if (!r->prompt || r->num_prompt < 1)
		return cairn_error(EINVAL, "prompt: is empty, at least one token is needed");
	if (r->max_new_tokens < 1)
		return cairn_error(EINVAL, "max_new_tokens: is %d, must be >= 1", r->max_new_tokens);
	if (num_seqs < 1 || num_seqs > s->opt.max_seqs)
		return cairn_error(EINVAL, "num_seqs: is %d, must be in 1..%d", num_seqs, s->opt.max_seqs);
	if (room > s->opt.max_context)
		room = s->opt.max_context;
	if ((int64_t)r->num_prompt + r->max_new_tokens > room)
		return cairn_error(EINVAL, "prompt: %d tokens and max_new_tokens %d together exceed the "
				   "context of %lld", r->num_prompt, r->max_new_tokens, (long long)room);
	if (sched_find(s, r->id, -1))
		return cairn_error(EINVAL, "request %llu already exists", (unsigned long long)r->id);
	if (s->num_queued >= s->opt.max_queued)
		return cairn_error(EAGAIN, "the queue is full: %d requests", s->num_queued);
	if (s->opt.max_queued_tokens && s->queued_tokens + r->num_prompt > s->opt.max_queued_tokens)
		return cairn_error(EAGAIN, "the queue is full: %lld tokens", (long long)s->queued_tokens);
	return 0;
}

static struct sched_seq *make_seq(struct sched_request *r)
{
	size_t tokens = (size_t)r->num_prompt + (size_t)r->max_new;
	struct sched_seq *q = calloc(1, sizeof(*q) + tokens * sizeof(q->tokens[0]));

	if (!q)
		return NULL;
	q->req = r;
	q->index = r->next_index++;
	q->kv = q->shadow = NOWHERE;
	q->node = q->host_node = CAIRN_PREFIX_NONE;
	q->tail = NOWHERE;
	for (int i = 0; i < SCHED_PLANS; i++)
		q->draw[i] = -1;
	q->proposal = -1;
	q->speculates = r->speculates;
	q->peeked_version = UINT64_MAX;
	r->num_live++;
	return q;
}

int cairn_scheduler_submit(struct cairn_scheduler *s, const struct cairn_scheduler_request *request)
{
	int32_t num_seqs = request->num_seqs ? request->num_seqs : 1;
	struct sched_request *r;
	struct sched_seq *q;

	CAIRN_TRY(check_request(s, request, num_seqs));
	r = calloc(1, sizeof(*r));
	if (!r)
		return cairn_error(ENOMEM, "scheduler: no memory for a request");
	*r = (struct sched_request){
		.id = request->id, .arrival = s->next_arrival++, .deadline_ns = request->deadline_ns,
		.salt = request->salt, .num_prompt = request->num_prompt, .max_new = request->max_new_tokens,
		.unforked = num_seqs - 1, .keep = request->keep, .lockstep = request->lockstep,
		.lane = request->in_first_lane ? 0 : NOWHERE,
		.movable = request->movable && !request->in_first_lane,
		.scored = request->scored, .is_forked = num_seqs > 1,
		.speculates = request->speculates && s->opt.max_drafts && !request->lockstep,
	};
	q = make_seq(r);
	if (!q) {
		free(r);
		return cairn_error(ENOMEM, "scheduler: no memory for a request of %d tokens",
				   request->num_prompt);
	}
	memcpy(q->tokens, request->prompt, (size_t)request->num_prompt * sizeof(q->tokens[0]));
	q->num_known = request->num_prompt;
	q->is_fetching = request->pulled ? SCHED_PULLED : 0;
	if (r->deadline_ns && r->deadline_ns < s->next_deadline)
		s->next_deadline = r->deadline_ns;
	sched_enqueue(s, q);
	return 0;
}

int cairn_scheduler_cancel(struct cairn_scheduler *s, uint64_t request)
{
	struct sched_seq *q = sched_find(s, request, -1);
	int ret = 0;

	if (!q)
		return cairn_error(ENOENT, "there is no request %llu", (unsigned long long)request);
	for (; q && !ret; q = sched_find(s, request, -1))
		ret = sched_finish(s, q, CAIRN_SCHED_CANCELLED, -1);
	return ret;
}

int cairn_scheduler_stop(struct cairn_scheduler *s, uint64_t request, int32_t index)
{
	struct sched_seq *q = sched_find(s, request, index);

	if (!q)
		return cairn_error(ENOENT, "there is no request %llu with answer %d",
				   (unsigned long long)request, index);
	if (q->req->unforked)
		return cairn_error(EAGAIN, "request %llu: its answers share one sequence",
				   (unsigned long long)request);
	return sched_finish(s, q, CAIRN_SCHED_STOP, -1);
}

/* Creates a second running sequence with the same tokens; its pages are shared copy-on-write. */
int sched_fork(struct cairn_scheduler *s, struct sched_seq *q, struct sched_seq **child)
{
	struct sched_seq *c = make_seq(q->req);
	int ret;

	if (!c)
		return cairn_error(ENOMEM, "scheduler: no memory to fork a sequence");
	ret = cairn_kv_pool_fork(s->device.pool, q->kv, &c->kv);
	if (ret) {
		free_seq(c);
		return ret;
	}
	memcpy(c->tokens, q->tokens, (size_t)q->num_known * sizeof(q->tokens[0]));
	c->num_known = q->num_known;
	c->computed = q->computed;
	c->adopted = q->computed / s->opt.page_size;
	c->is_cached = 1;
	c->node = q->node;
	if (c->node != CAIRN_PREFIX_NONE)
		cairn_prefix_tree_pin(s->device.tree, c->node);
	*child = c;
	return 0;
}

/* Forks a preempted sequence. It holds no pages; the copy can only reuse what the prefix tree still has. */
static int fork_waiting(struct cairn_scheduler *s, struct sched_seq *q, struct sched_seq **child)
{
	struct sched_seq *c = make_seq(q->req);

	(void)s;
	if (!c)
		return cairn_error(ENOMEM, "scheduler: no memory to fork a sequence");
	memcpy(c->tokens, q->tokens, (size_t)q->num_known * sizeof(q->tokens[0]));
	c->num_known = q->num_known;
	c->is_cached = q->is_cached;
	c->was_running = 1;
	*child = c;
	return 0;
}

int cairn_scheduler_hold(struct cairn_scheduler *s, uint64_t request, int32_t index, int hold)
{
	struct sched_seq *q = sched_find(s, request, index);

	if (!q)
		return cairn_error(ENOENT, "there is no request %llu with answer %d",
				   (unsigned long long)request, index);
	q->is_held = hold;
	return 0;
}

int cairn_scheduler_fork(struct cairn_scheduler *s, uint64_t request, int32_t index, int32_t *new_index)
{
	struct sched_seq *q = sched_find(s, request, index), *c;

	if (!q)
		return cairn_error(ENOENT, "there is no request %llu with answer %d",
				   (unsigned long long)request, index);
	if (q->in_flight || q->req->unforked)
		return cairn_error(EINVAL, "request %llu: tokens are in flight", (unsigned long long)request);
	if (q->is_waiting && !q->was_running)
		return cairn_error(EAGAIN, "request %llu has not started", (unsigned long long)request);
	if (!q->is_waiting && s->num_running + s->promised_seqs >= s->opt.max_seqs)
		return cairn_error(EAGAIN, "request %llu cannot be forked now", (unsigned long long)request);
	CAIRN_TRY(q->is_waiting ? fork_waiting(s, q, &c) : sched_fork(s, q, &c));
	if (q->is_waiting)
		sched_enqueue(s, c);
	else
		sched_insert_running(s, c);
	*new_index = c->index;
	return 0;
}

int cairn_scheduler_set_last(struct cairn_scheduler *s, uint64_t request, int32_t index, int32_t token)
{
	struct sched_seq *q = sched_find(s, request, index);

	if (!q)
		return cairn_error(ENOENT, "there is no request %llu with answer %d",
				   (unsigned long long)request, index);
	if (q->in_flight || q->computed >= q->num_known || q->num_known == q->req->num_prompt)
		return cairn_error(EINVAL, "request %llu: its last token has been computed",
				   (unsigned long long)request);
	q->tokens[q->num_known - 1] = token;
	return 0;
}

int cairn_scheduler_speculate(struct cairn_scheduler *s, uint64_t request, int32_t index, int on)
{
	struct sched_seq *q = sched_find(s, request, index);

	if (!q)
		return cairn_error(ENOENT, "there is no request %llu with answer %d",
				   (unsigned long long)request, index);
	q->speculates = on && q->req->speculates;
	return 0;
}

int cairn_scheduler_fetched(struct cairn_scheduler *s, uint64_t request)
{
	int waited = 0;

	/* Some of its answers may be running. If several wait, the disk may report their pages together. */
	for (struct sched_seq *q = s->queue; q; q = q->next) {
		if (q->req->id != request || q->is_fetching != SCHED_FETCHING)
			continue;
		q->is_fetching = SCHED_FETCHED;
		waited = 1;
	}
	return waited ? 0 : cairn_error(ENOENT, "request %llu does not wait for the disk",
					(unsigned long long)request);
}

/* Takes draw i of a plan and those of the drafted rows behind its row. */
static int take_draws(struct cairn_scheduler *s, struct plan_buffer *b, int32_t i, const int32_t *tokens,
		      const uint8_t *stops)
{
	struct sched_seq *q = b->draws[i].seq;
	int32_t num = b->draws[i].num_drafts, accepted, lost, *path = s->drawn_rows;

	if (!q) {	/* the tokens were drawn after the sequence had ended */
		s->stats.dropped_draws += 1 + num;
		return !FAULT(LATE_TOKEN_KEPT) ? 0 :
		       add_event(s, b->draws[i].request, b->draws[i].index, CAIRN_SCHED_TOKEN, tokens[i]);
	}
	q->draw[sched_buffer(b->plan.number)] = -1;
	q->in_flight--;
	for (int32_t k = 0; k < num && (FAULT(TREE_CHAIN) || FAULT(TREE_ORPHAN)); k++) {
		int32_t *parents = b->parents + b->draws[i].ids_at;

		if (FAULT(TREE_CHAIN))
			parents[k] = k;
		else if (b->ids[b->draws[i].ids_at + k] == tokens[i])
			parents[k] = 0;
	}
	accepted = cairn_drafts_accepted(b->ids + b->draws[i].ids_at, b->parents + b->draws[i].ids_at,
					 tokens + i, num, path);
	for (; FAULT(DRAFT_ALL_ACCEPTED) && accepted < num; accepted++)
		path[accepted] = accepted + 1;
	lost = (FAULT(DRAFT_BONUS_LOST) && accepted) || (FAULT(DRAFT_FIRST_DROPPED) && num && !accepted);
	s->stats.dropped_draws += num - accepted;
	if (!FAULT(DRAFT_END_KEPT))
		CAIRN_TRY(sched_settle(s, q, accepted));
	for (int32_t k = 0; k <= accepted - lost; k++) {
		int32_t at = k ? i + path[k - 1] : i;

		q->tokens[q->num_known++] = tokens[at];
		if (stops && stops[at] && (!FAULT(DRAFT_STOP_IGNORED) || k == accepted)) {
			q->is_bad = stops[at] == 2;
			return sched_finish(s, q, CAIRN_SCHED_STOP, tokens[at]);
		}
		CAIRN_TRY(add_event(s, q->req->id, q->index, CAIRN_SCHED_TOKEN, tokens[at]));
		if (q->num_known == q->req->num_prompt + q->req->max_new)
			return sched_finish(s, q, CAIRN_SCHED_LENGTH, tokens[at]);
	}
	return FAULT(DRAFT_END_KEPT) ? sched_settle(s, q, accepted) : 0;
}

int cairn_scheduler_report(struct cairn_scheduler *s, const int32_t *tokens, const uint8_t *stops)
{
	uint64_t number = s->plan_number - (uint64_t)s->unreported + 1;
	struct plan_buffer *b = &s->plans[sched_buffer(number)];
	int ret = 0;

	if (!s->unreported || s->failed)
		return cairn_error(EINVAL, "scheduler: there is no plan to report");
	s->unreported--;
	for (int32_t i = 0; !ret && i < b->plan.num_draws; i += 1 + b->draws[i].num_drafts)
		ret = take_draws(s, b, i, tokens, stops);
	s->failed = ret != 0;
	return ret;
}

struct cairn_kv_pool *cairn_scheduler_pool(struct cairn_scheduler *s)
{
	return s->device.pool;
}
