// SPDX-License-Identifier: Apache-2.0
/*
 * attn_remote - the model worker's end of remote attention (attn_remote.h)
 *
 * Each lane has buffers of its own, here as at the workers' ends, and one pass at a time. All lanes send on
 * the same channels. The workers carry out turns in the order in which they are sent (share.h), so a lane's K
 * and V must follow its Q before another lane sends.
 *
 * Sources of puts: Q is overwritten only after the result of the layer has come, because that shows that the
 * worker has read Q. K and V have two buffers here as at the worker's end, used in turn (attn_epoch.c).
 */
#include "serving/remote/attention/attn_remote_impl.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "serving/base/clock.h"
#include "serving/remote/remote_fault.h"

#define LOOK_MS		20	/* between two looks at whether a worker is lost */

int cairn_attn_remote_restart(struct cairn_attn_remote *r)
{
	r->stats.restarts++;
	return attn_remote_epoch(r);
}

/* ---- creation ---- */

/* Most bytes of a RUN besides its pages: a record for each part (plan.h), with ids and scored tokens. */
static size_t run_most(const struct cairn_remote_limits *l)
{
	return 256 * (size_t)l->max_batch + 2 * sizeof(int32_t) * (size_t)l->max_rows + 4096;
}

static int check(const struct cairn_attn_remote *r, const struct cairn_model *m)
{
	const int32_t heads = cairn_share_heads(&m->config);
	const int32_t stripes = cairn_most_stripes(heads, r->num_peers);

	if (!r->table)
		return cairn_error(EOPNOTSUPP, "attention_workers: %s: this build has no transport %s",
				   m->impl->name, cairn_share_streams_over);
	if (r->by_stream && stripes > 1)
		return cairn_error(EOPNOTSUPP, "attention_workers: %s: more than the %d heads of keys need a "
				   "table with host memory so far", m->impl->name, heads);
	if (stripes > CAIRN_ATTN_STRIPES || stripes > r->limits.num_pages)
		return cairn_error(EINVAL, "attention_workers: %d are too many to divide %d pages and %d "
				   "heads of keys", r->num_peers, r->limits.num_pages, heads);
	if (r->num_models > 1 && r->num_peers > CAIRN_CONTROL_PEERS)
		return cairn_error(EOPNOTSUPP, "model_workers: with more than 1, at most %d attention "
				   "workers, not %d", CAIRN_CONTROL_PEERS, r->num_peers);
	if (r->num_models > 1 && stripes > 1)
		return cairn_error(EOPNOTSUPP, "model_workers: with more than 1, at most as many attention "
				   "workers as the model's %d heads of keys, not %d", heads, r->num_peers);
	if (r->limits.lanes < r->num_models)
		return cairn_error(EINVAL, "model_workers: %d need as many lanes, not %d", r->num_models,
				   r->limits.lanes);
	if (!r->lanes[0].link.previous && cairn_model_is_latent(m))
		return cairn_error(EOPNOTSUPP, "attention_keys: all: latent attention (kv_lora_rank) knows "
				   "only previous");
	if (!r->lanes[0].link.previous && stripes > 1)
		return cairn_error(EOPNOTSUPP, "attention_keys: all: needs at most as many attention workers "
				   "as the model's %d num_key_value_heads, not %d", heads, r->num_peers);
	if (cairn_remote_pass_most(&r->limits, r->limits.num_pages) + sizeof(struct cairn_control_plan) +
	    (r->num_models > 1 ? run_most(&r->limits) : 0) > CAIRN_CHANNEL_MAX)
		return cairn_error(EINVAL, "attention_workers: max_batch %d and max_context %d: a pass may "
				   "list more pages than fit a message of %zu bytes; take larger pages",
				   r->limits.max_batch, r->limits.max_context, CAIRN_CHANNEL_MAX);
	return 0;
}

static int make_peer(struct cairn_attn_remote *r, int32_t i)
{
	const size_t lanes = (size_t)r->limits.lanes;
	struct remote_peer *p = &r->peers[i];

	CAIRN_TRY(cairn_share_assign(&p->a, &p->scales, r->m, &r->limits, r->lanes[0].link.previous > 0,
				     r->num_peers, i));
	p->sizes = cairn_share_sizes(&p->a);
	p->r = r;
	if (r->by_stream)
		return 0;
	if (p->a.stripes > 1)
		p->relay.page = calloc(1, p->sizes.page_bytes);
	p->q = calloc(lanes, p->sizes.q_bytes);
	p->kv = calloc(2 * lanes, p->sizes.kv_bytes);
	p->result = calloc(lanes, p->sizes.result_bytes);
	return p->q && p->kv && p->result && (p->relay.page || p->a.stripes == 1) ? 0 :
	       cairn_error(ENOMEM, "attn_remote: no memory for %d rows", r->limits.max_rows);
}

static int send_q(void *ctx, const struct cairn_attn_rows *rows, void *stream);
static int send_kv(void *ctx, const struct cairn_attn_rows *rows, void *stream);
static int receive(void *ctx, int32_t layer, void *o, float *lse, void *stream);

int attn_remote_make(struct cairn_attn_remote **out, struct cairn_lead *lead, const struct cairn_model *m,
		     const struct cairn_remote_limits *limits, int previous, int32_t num)
{
	const int32_t stripes = cairn_most_stripes(cairn_share_heads(&m->config), num);
	struct cairn_attn_remote *r = calloc(1, sizeof(*r) + (size_t)num * sizeof(r->peers[0]));
	int ret;

	if (!r)
		return cairn_error(ENOMEM, "attn_remote: no memory");
	for (int32_t i = 0; i < CAIRN_MAX_LANES; i++)
		r->lanes[i] = (struct remote_lane){ .r = r, .index = i,
					     .link = { previous ? stripes : 0, send_q, send_kv, receive,
						       &r->lanes[i], NULL } };
	r->lead = lead;
	r->m = m;
	r->limits = *limits;
	r->limits.lanes = limits->lanes ? limits->lanes : 1;
	r->element = cairn_dtype_bytes(m->dtype);
	r->num_peers = num;
	r->by_stream = cairn_share_by_stream(m->impl);
	r->num_models = lead ? cairn_lead_models(lead) : 1;
	for (int i = 0; cairn_transport_get(i); i++) {
		if (!strcmp(cairn_transport_get(i)->name, r->by_stream ? cairn_share_streams_over : "tcp")) {
			r->table = cairn_transport_get(i);
			r->transport = (uint32_t)i;
		}
	}
	ret = check(r, m);
	for (int32_t i = 0; i < r->limits.lanes && !ret; i++) {
		r->lanes[i].row_pages = malloc((size_t)limits->max_rows * sizeof(*r->lanes[i].row_pages));
		if (!r->lanes[i].row_pages)
			ret = cairn_error(ENOMEM, "attn_remote: no memory for %d rows", limits->max_rows);
	}
	for (int32_t i = 0; i < num && !ret; i++)
		ret = make_peer(r, i);
	if (!ret)
		ret = attn_stream_create(r);
	if (!ret && r->by_stream && r->num_models > 1)
		ret = cairn_error(EOPNOTSUPP, "model_workers: %s: more than 1 need a table with host memory "
				  "so far", m->impl->name);
	r->result_bytes = cairn_attn_result_bytes(r->limits.max_batch, CAIRN_LOGPROBS_MAX);
	for (int32_t i = 1; i < r->num_models && !ret; i++) {
		r->models[i].result = calloc(1, r->result_bytes);
		r->models[i].copy = calloc(1, r->result_bytes);
		if (!r->models[i].result || !r->models[i].copy)
			ret = cairn_error(ENOMEM, "attn_remote: no memory for %zu bytes", r->result_bytes);
	}
	if (ret)
		cairn_attn_remote_destroy(r);
	else
		*out = r;
	return ret;
}

int cairn_attn_remote_create(struct cairn_attn_remote **out, struct cairn_lead *lead,
			     const struct cairn_model *m, const struct cairn_remote_limits *limits,
			     int previous, int64_t journal_bytes)
{
	struct cairn_attn_remote *r;
	int ret;

	CAIRN_TRY(attn_remote_make(&r, lead, m, limits, previous, cairn_lead_attention(lead)));
	if (journal_bytes && cairn_model_is_latent(m))
		ret = cairn_error(EOPNOTSUPP, "kv_journal: latent attention (kv_lora_rank) has none so far");
	else if (journal_bytes && r->num_models > 1)
		ret = cairn_error(EOPNOTSUPP, "kv_journal: more than 1 of model_workers have none so far, as "
				  "their keys and values do not pass through this process");
	else
		ret = journal_bytes ? cairn_journal_create(&r->journal, m, &r->limits, journal_bytes) : 0;
	if (!ret)
		ret = attn_remote_epoch(r);
	if (ret)
		cairn_attn_remote_destroy(r);
	else
		*out = r;
	return ret;
}

void cairn_attn_remote_destroy(struct cairn_attn_remote *r)
{
	if (!r)
		return;
	attn_remote_close(r);
	attn_stream_destroy(r);
	for (int32_t i = 0; i < r->num_peers; i++) {
		free(r->peers[i].scales);
		free(r->peers[i].q);
		free(r->peers[i].kv);
		free(r->peers[i].result);
		free(r->peers[i].relay.page);
	}
	for (int32_t i = 0; i < CAIRN_MAX_LANES; i++) {
		free(r->lanes[i].row_pages);
		free(r->lanes[i].moves);
	}
	for (int32_t i = 0; i < CAIRN_MAX_LANES; i++) {
		free(r->models[i].result);
		free(r->models[i].copy);
	}
	cairn_journal_destroy(r->journal);
	free(r->plan);
	free(r);
}

/* ---- a pass ---- */

static uint64_t number_of(const struct cairn_attn_remote *r, const struct remote_lane *l)
{
	return cairn_share_number(r->epoch, l->turn);
}

int cairn_attn_remote_lost(const struct cairn_attn_remote *r)
{
	return !r->t || (r->lead ? cairn_lead_lost(r->lead) : atomic_load(r->stop));
}

const struct cairn_attn_link *cairn_attn_remote_link(struct cairn_attn_remote *r, int32_t lane)
{
	return &r->lanes[lane].link;
}

void cairn_attn_remote_stats(const struct cairn_attn_remote *r, struct cairn_attn_remote_stats *stats)
{
	*stats = r->stats;
	if (r->journal)
		cairn_journal_stats(r->journal, &stats->journal);
}

int cairn_attn_remote_has_journal(const struct cairn_attn_remote *r)
{
	return r->journal != NULL;
}

/* Keeps what layers need to know of a pass. */
static int keep_pass(struct remote_lane *l, const struct cairn_remote_pass *p)
{
	l->p = *p;
	cairn_lists_row_pages(p, l->r->limits.page_size, l->row_pages);
	if (l->link.previous < 2 || !p->num_moves)
		return 0;
	if (p->num_moves > l->max_moves) {
		free(l->moves);
		l->max_moves = 2 * p->num_moves;
		l->moves = malloc((size_t)l->max_moves * sizeof(*l->moves));
		if (!l->moves) {
			l->max_moves = 0;
			return cairn_error(ENOMEM, "attn_remote: no memory for %d moves", p->num_moves);
		}
	}
	memcpy(l->moves, p->moves, (size_t)p->num_moves * sizeof(*l->moves));
	return 0;
}

int cairn_attn_remote_begin(struct cairn_attn_remote *r, int32_t lane, const struct cairn_remote_pass *p)
{
	struct cairn_control_plan head = { .pass = r->pass + 1, .lane = (uint32_t)lane,
					   .num_bytes = (uint32_t)cairn_remote_pass_bytes(p) };

	CAIRN_TRY(attn_remote_is_lost(r));
	if (r->journal && !r->is_restoring)
		CAIRN_TRY(cairn_journal_begin(r->journal, lane, p));
	if (head.num_bytes > r->plan_bytes) {
		free(r->plan);
		r->plan = malloc(2 * (size_t)head.num_bytes);
		r->plan_bytes = r->plan ? 2 * (size_t)head.num_bytes : 0;
		if (!r->plan)
			return cairn_error(ENOMEM, "attn_remote: no memory for a plan");
	}
	CAIRN_TRY(keep_pass(&r->lanes[lane], p));
	r->lanes[lane].is_numbered = 0;
	if (!r->lead)			/* which tells the workers of it */
		return 0;
	r->pass++;
	cairn_remote_pass_write(r->plan, p);
	for (int32_t i = 0; i < r->num_peers; i++)
		CAIRN_TRY(cairn_lead_send(r->lead, i + 1, CAIRN_CONTROL_PLAN, &head, sizeof(head), r->plan,
					  head.num_bytes));
	r->stats.passes++;
	return 0;
}

/* Copies `bytes` of each row, from column `at` of rows that are `stride` apart. */
static char *gather(char *to, const char *from, size_t at, size_t stride, size_t bytes, int32_t rows)
{
	for (int32_t i = 0; i < rows; i++, to += bytes)
		memcpy(to, from + (size_t)i * stride + at, bytes);
	return to;
}

/* As gather(), for the rows of the pass whose pages a worker holds. */
static char *gather_own(const struct remote_lane *l, const struct remote_peer *p, char *to,
			const char *from, size_t at, size_t stride)
{
	for (int32_t i = 0; i < l->p.num_rows; i++) {
		const int32_t page = FAULT(STRIPE_OF_ROW) ? i : l->row_pages[i];

		if (page % p->a.stripes == p->a.stripe)
			to = gather(to, from + (size_t)i * stride, at, stride, p->sizes.k, 1);
	}
	return to;
}

static int put(struct cairn_attn_remote *r, int32_t i, const struct cairn_put *put)
{
	struct cairn_put first = *put, second = *put;

	r->stats.bytes += (int64_t)put->bytes;
	if (!FAULT(SIGNAL_FIRST) || put->slot < CAIRN_SLOT_Q)
		return attn_remote_blame(r, i, r->table->put(r->peers[i].c, put, PUT_MS));
	first.bytes = 0;
	first.local = NULL;
	first.remote = NULL;
	second.slot = CAIRN_NO_SIGNAL;
	CAIRN_TRY(attn_remote_blame(r, i, r->table->put(r->peers[i].c, &first, PUT_MS)));
	/* the worker answers before the payload has come */
	r->table->wait(r->peers[i].c, CAIRN_SLOT_RESULT, put->value, 200, NULL);
	return attn_remote_blame(r, i, r->table->put(r->peers[i].c, &second, PUT_MS));
}

/* Returns the worker with the same head that holds this page. */
static struct remote_peer *owner_of(struct cairn_attn_remote *r, const struct remote_peer *p, int32_t page)
{
	struct remote_peer *q = r->peers;

	while (q->a.first_head != p->a.first_head || q->a.stripe != page % q->a.stripes)
		q++;
	return q;
}

/* Passes on what a move copies from a page of one stripe to one of another, for one head. */
static int relay_page(struct remote_peer *from, struct remote_peer *to)
{
	CAIRN_TRY(cairn_relay_take(&from->relay));
	memcpy(to->relay.page, from->relay.page, from->relay.bytes);
	CAIRN_TRY(cairn_relay_give(&to->relay));
	return cairn_relay_taken(&from->relay);
}

/* Passes on the pages of a layer. The workers of each head go through the moves in this order. */
static int relay_pages(const struct remote_lane *l)
{
	struct cairn_attn_remote *r = l->r;

	for (int32_t k = 0; k < l->p.num_moves; k++) {
		for (int32_t i = 0; i < r->num_peers; i++) {
			struct remote_peer *from = &r->peers[i], *to = owner_of(r, from, l->moves[k][1]);

			if (from == owner_of(r, from, l->moves[k][0]) && from != to)
				CAIRN_TRY(relay_page(from, to));
		}
	}
	return 0;
}

static int send_q(void *ctx, const struct cairn_attn_rows *rows, void *stream)
{
	struct remote_lane *l = ctx;
	struct cairn_attn_remote *r = l->r;
	const size_t head = (size_t)r->m->config.head_dim * r->element;
	const size_t lane = FAULT(MODEL_BUFFERS_SHARED) && !r->lead ? 0 : (size_t)l->index;

	(void)stream;
	CAIRN_TRY(attn_remote_is_lost(r));
	if (rows->num_rows < l->p.num_rows)
		return cairn_error(EINVAL, "attn_remote: num_rows is %d, of a pass of %d", rows->num_rows,
				   l->p.num_rows);
	r->turn++;
	l->turn = FAULT(TURN_OF_LANE) ? l->turn + 1 : r->turn;
	FAULT_NAP(1);
	if (FAULT(NO_ACQUIRE))		/* is overtaken by a worker that does not wait */
		r->table->wait(r->peers[0].c, CAIRN_SLOT_RESULT, number_of(r, l), 200, NULL);
	l->layer = rows->layer;
	l->num_rows = rows->num_rows;
	l->sent_ns = cairn_clock_ns();
	for (int32_t i = 0; i < r->num_peers; i++) {
		struct remote_peer *p = &r->peers[i];

		gather(p->q + lane * p->sizes.q_bytes, rows->q,
		       (size_t)(p->a.first_head * p->a.group) * head, (size_t)rows->q_stride * r->element,
		       p->sizes.q, l->p.num_rows);
		CAIRN_TRY(put(r, i, &(struct cairn_put){
			.local = p->q_region, .local_offset = lane * p->sizes.q_bytes, .remote = p->to_q,
			.remote_offset = lane * p->sizes.q_bytes,
			.bytes = (size_t)l->p.num_rows * p->sizes.q, .value = number_of(r, l),
			.slot = CAIRN_SLOT_Q + (uint32_t)(l->turn % CAIRN_TURN_SLOTS),
			.word = (uint64_t)l->index,
		}));
	}
	return l->link.previous > 1 ? relay_pages(l) : 0;
}

static int send_kv(void *ctx, const struct cairn_attn_rows *rows, void *stream)
{
	struct remote_lane *l = ctx;
	struct cairn_attn_remote *r = l->r;
	const size_t head = (size_t)r->m->config.head_dim * r->element;
	const size_t stride = (size_t)rows->kv_stride * r->element;
	const size_t buffer = 2 * (size_t)l->index + cairn_share_buffer(l->layers, rows->layer);

	if (r->journal && !r->is_restoring &&
	    !(FAULT(JOURNAL_COMMIT_LOST) && rows->layer + 1 == r->m->config.num_hidden_layers))
		CAIRN_TRY(cairn_journal_rows(r->journal, l->index, rows, stream));
	for (int32_t i = 0; i < r->num_peers; i++) {
		struct remote_peer *p = &r->peers[i];
		const int32_t first = p->a.first_head + (FAULT(HEADS_SHIFTED) && r->num_peers > 1 ?
							 i ? -1 : 1 : 0);
		const size_t offset = buffer * p->sizes.kv_bytes, at = (size_t)first * head;
		char *end = gather_own(l, p, p->kv + offset, rows->k, at, stride);
		size_t bytes;

		if (rows->v)
			end = gather_own(l, p, end, rows->v, at, stride);
		bytes = (size_t)(end - (p->kv + offset));
		CAIRN_TRY(put(r, i, &(struct cairn_put){
			.local = bytes ? p->kv_region : NULL, .local_offset = offset,
			.remote = bytes ? p->to_kv : NULL, .remote_offset = offset, .bytes = bytes,
			.value = number_of(r, l), .slot = CAIRN_SLOT_KV,
		}));
	}
	return 0;
}

/* Waits for a signal of worker i, looking at times whether any worker is lost. */
static int await(struct cairn_attn_remote *r, int32_t i, uint32_t slot, uint64_t number,
		 struct cairn_signal *found)
{
	const int64_t begin = cairn_clock_ns(), until = begin + CAIRN_EPOCH_LAYER_MS * 1000000ll;
	int ret = 0;

	if (FAULT(RESULT_UNAWAITED))
		return 0;
	do {
		ret = r->table->wait(r->peers[i].c, slot, number, LOOK_MS, found);
		if (ret != -ETIMEDOUT)
			break;
		CAIRN_TRY(attn_remote_is_lost(r));
	} while (cairn_clock_ns() < until);
	r->stats.wait_ns += cairn_clock_ns() - begin;
	return attn_remote_blame(r, i, ret);
}

int attn_remote_await_page(void *ctx, uint32_t slot, uint64_t number)
{
	struct remote_peer *p = ctx;

	return await(p->r, (int32_t)(p - p->r->peers), slot, number, NULL);
}

/* Sets the results of some heads and rows, of one stripe, to those of rows that see no key. */
static void set_empty(const struct cairn_attn_remote *r, char *o, float *lse, int32_t row, int32_t first,
		      int32_t num)
{
	const size_t heads = (size_t)r->m->config.num_attention_heads;
	const size_t bytes = (size_t)r->m->dims[CAIRN_D_ATTN] * r->element, head = bytes / heads;

	memset(o + (size_t)row * bytes + (size_t)first * head, 0, (size_t)num * head);
	for (int32_t h = first; lse && h < first + num; h++)
		lse[(size_t)row * heads + (size_t)h] = -INFINITY;
}

/* A head that has fewer stripes than another one has no results in the last places. */
static void set_missing(const struct remote_lane *l, const struct remote_peer *p, char *o, float *lse)
{
	const struct cairn_attn_remote *r = l->r;
	const size_t rows = (size_t)l->num_rows;

	for (int32_t s = p->a.stripes; s < l->link.previous && p->a.stripe == p->a.stripes - 1; s++)
		for (int32_t k = 0; k < l->p.num_rows; k++)
			set_empty(r, o + (size_t)s * rows * (size_t)r->m->dims[CAIRN_D_ATTN] * r->element,
				  lse + (size_t)s * rows * (size_t)r->m->config.num_attention_heads, k,
				  p->a.first_head * p->a.group, p->a.group);
}

static int receive(void *ctx, int32_t layer, void *o, float *lse, void *stream)
{
	struct remote_lane *l = ctx;
	struct cairn_attn_remote *r = l->r;
	const int32_t heads = r->m->config.num_attention_heads, rows = l->p.num_rows;
	const int32_t results = l->link.previous ? l->link.previous : 1;
	const size_t row = (size_t)r->m->dims[CAIRN_D_ATTN] * r->element, head = row / (size_t)heads;
	struct cairn_signal found = { 0 };
	uint64_t slowest = 0, trip;

	if (layer != l->layer || !lse != !l->link.previous)
		return cairn_error(EINVAL, "attn_remote: layer %d received, layer %d sent", layer, l->layer);
	for (int32_t i = 0; i < r->num_peers; i++) {
		const struct remote_peer *p = &r->peers[i], *q = FAULT(LSE_OF_OTHERS) ?
						     &r->peers[(i + 1) % r->num_peers] : p;
		const int32_t first = p->a.first_head * p->a.group, num = p->a.num_heads * p->a.group;
		const size_t at = FAULT(RESULTS_SHARED) ? 0 : (size_t)l->index * p->sizes.result_bytes;
		const char *result = p->result + at;
		const size_t stripe = FAULT(STRIPES_IN_ONE_PLACE) ? 0 : (size_t)p->a.stripe;
		char *to = (char *)o + stripe * (size_t)l->num_rows * row + (size_t)first * head;
		float *lse_to = lse ? lse + stripe * (size_t)l->num_rows * (size_t)heads + first : NULL;
		const float *from = (const float *)(const void *)(result + (size_t)rows * p->sizes.o);

		CAIRN_TRY(await(r, i, CAIRN_SLOT_RESULT, number_of(r, l), &found));
		slowest = found.word > slowest ? found.word : slowest;
		if (FAULT(LSE_OF_OTHERS) && q->a.num_heads == p->a.num_heads)
			from = (const float *)(const void *)(q->result + at + (size_t)rows * q->sizes.o);
		for (int32_t k = 0; k < rows; k++) {
			memcpy(to + (size_t)k * row, result + (size_t)k * p->sizes.o, p->sizes.o);
			if (lse)
				memcpy(lse_to + (size_t)k * (size_t)heads, from + (size_t)k * (size_t)num,
				       (size_t)num * sizeof(*lse));
		}
		set_missing(l, p, o, lse);
		r->stats.bytes += (int64_t)((size_t)rows * (p->sizes.o + p->sizes.lse));
	}
	for (int32_t i = 0; i < results && !FAULT(PADDING_KEPT); i++)
		for (int32_t k = rows; k < l->num_rows; k++)
			set_empty(r, o, lse, i * l->num_rows + k, 0, heads);
	trip = (uint64_t)(cairn_clock_ns() - l->sent_ns);
	r->stats.attn_ns += (int64_t)(slowest < trip ? slowest : trip);	/* the word is a worker's claim */
	if (r->journal && !r->is_restoring && layer + 1 == r->m->config.num_hidden_layers)
		CAIRN_TRY(cairn_journal_commit(r->journal, l->index, stream));
	l->layers++;
	r->stats.layers++;
	return 0;
}
