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

static int check(const struct cairn_attn_remote *r, const struct cairn_model *m)
{
	const int32_t heads = m->config.num_key_value_heads;

	if (cairn_model_is_latent(m))
		return cairn_error(EOPNOTSUPP, "attention_workers: latent attention (kv_lora_rank) has no "
				   "heads of keys to divide, and pages are not divided yet");
	if (!(m->impl->flags & CAIRN_IMPL_HOST_MEM))
		return cairn_error(EOPNOTSUPP, "attention_workers: %s: need a table with host memory so far",
				   m->impl->name);
	if (r->num_peers > heads)
		return cairn_error(EINVAL, "attention_workers: %d are more than the model's %d "
				   "num_key_value_heads", r->num_peers, heads);
	if (cairn_remote_pass_most(&r->limits, r->limits.num_pages) + sizeof(struct cairn_control_plan) >
	    CAIRN_CHANNEL_MAX)
		return cairn_error(EINVAL, "attention_workers: max_batch %d and max_context %d: a pass may "
				   "list more pages than fit a message of %zu bytes; take larger pages",
				   r->limits.max_batch, r->limits.max_context, CAIRN_CHANNEL_MAX);
	return 0;
}

static int make_peer(struct cairn_attn_remote *r, int32_t i)
{
	const size_t lanes = (size_t)r->limits.lanes;
	struct remote_peer *p = &r->peers[i];

	CAIRN_TRY(cairn_share_assign(&p->a, &p->scales, r->m, &r->limits, r->lanes[0].link.previous,
				     r->num_peers, i));
	p->sizes = cairn_share_sizes(&p->a);
	p->q = calloc(lanes, p->sizes.q_bytes);
	p->kv = calloc(2 * lanes, p->sizes.kv_bytes);
	p->result = calloc(lanes, p->sizes.result_bytes);
	return p->q && p->kv && p->result ? 0 : cairn_error(ENOMEM, "attn_remote: no memory for %d rows",
							    r->limits.max_rows);
}

static int send_q(void *ctx, const struct cairn_attn_rows *rows, void *stream);
static int send_kv(void *ctx, const struct cairn_attn_rows *rows, void *stream);
static int receive(void *ctx, int32_t layer, void *o, float *lse, void *stream);

int cairn_attn_remote_create(struct cairn_attn_remote **out, struct cairn_lead *lead,
			     const struct cairn_model *m, const struct cairn_remote_limits *limits,
			     int previous, int64_t journal_bytes)
{
	const int32_t num = cairn_lead_attention(lead);
	struct cairn_attn_remote *r = calloc(1, sizeof(*r) + (size_t)num * sizeof(r->peers[0]));
	int ret;

	if (!r)
		return cairn_error(ENOMEM, "attn_remote: no memory");
	for (int32_t i = 0; i < CAIRN_MAX_LANES; i++)
		r->lanes[i] = (struct remote_lane){ .r = r, .index = i,
					     .link = { previous, send_q, send_kv, receive, &r->lanes[i] } };
	r->lead = lead;
	r->m = m;
	r->limits = *limits;
	r->limits.lanes = limits->lanes ? limits->lanes : 1;
	r->element = cairn_dtype_bytes(m->dtype);
	r->num_peers = num;
	for (int i = 0; cairn_transport_get(i); i++) {
		if (!strcmp(cairn_transport_get(i)->name, "tcp")) {
			r->table = cairn_transport_get(i);
			r->transport = (uint32_t)i;
		}
	}
	ret = check(r, m);
	for (int32_t i = 0; i < num && !ret; i++)
		ret = make_peer(r, i);
	if (!ret && journal_bytes)
		ret = cairn_journal_create(&r->journal, m, &r->limits, journal_bytes);
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
	for (int32_t i = 0; i < r->num_peers; i++) {
		free(r->peers[i].scales);
		free(r->peers[i].q);
		free(r->peers[i].kv);
		free(r->peers[i].result);
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

static int lost(const struct cairn_attn_remote *r)
{
	return cairn_attn_remote_lost(r) ? cairn_lead_why(r->lead) : 0;
}

int cairn_attn_remote_lost(const struct cairn_attn_remote *r)
{
	return !r->t || cairn_lead_lost(r->lead);
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

int cairn_attn_remote_begin(struct cairn_attn_remote *r, int32_t lane, const struct cairn_remote_pass *p)
{
	struct cairn_control_plan head = { .pass = r->pass + 1, .lane = (uint32_t)lane,
					   .num_bytes = (uint32_t)cairn_remote_pass_bytes(p) };

	CAIRN_TRY(lost(r));
	if (r->journal && !r->is_restoring)
		CAIRN_TRY(cairn_journal_begin(r->journal, lane, p));
	if (head.num_bytes > r->plan_bytes) {
		free(r->plan);
		r->plan = malloc(2 * (size_t)head.num_bytes);
		r->plan_bytes = r->plan ? 2 * (size_t)head.num_bytes : 0;
		if (!r->plan)
			return cairn_error(ENOMEM, "attn_remote: no memory for a plan");
	}
	r->lanes[lane].p = *p;
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

static int send_q(void *ctx, const struct cairn_attn_rows *rows, void *stream)
{
	struct remote_lane *l = ctx;
	struct cairn_attn_remote *r = l->r;
	const size_t head = (size_t)r->m->config.head_dim * r->element;
	const size_t lane = (size_t)l->index;

	(void)stream;
	CAIRN_TRY(lost(r));
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
	return 0;
}

static int send_kv(void *ctx, const struct cairn_attn_rows *rows, void *stream)
{
	struct remote_lane *l = ctx;
	struct cairn_attn_remote *r = l->r;
	const size_t head = (size_t)r->m->config.head_dim * r->element;
	const size_t stride = (size_t)rows->kv_stride * r->element;
	const size_t buffer = 2 * (size_t)l->index + cairn_share_buffer(l->layers, rows->layer);

	(void)stream;
	if (r->journal && !r->is_restoring &&
	    !(FAULT(JOURNAL_COMMIT_LOST) && rows->layer + 1 == r->m->config.num_hidden_layers))
		cairn_journal_rows(r->journal, l->index, rows);
	for (int32_t i = 0; i < r->num_peers; i++) {
		struct remote_peer *p = &r->peers[i];
		const int32_t first = p->a.first_head + (FAULT(HEADS_SHIFTED) && r->num_peers > 1 ?
							 i ? -1 : 1 : 0);
		const size_t offset = buffer * p->sizes.kv_bytes, at = (size_t)first * head;
		char *v = gather(p->kv + offset, rows->k, at, stride, p->sizes.k, l->p.num_rows);

		gather(v, rows->v, at, stride, p->sizes.k, l->p.num_rows);
		CAIRN_TRY(put(r, i, &(struct cairn_put){
			.local = p->kv_region, .local_offset = offset, .remote = p->to_kv,
			.remote_offset = offset, .bytes = 2 * (size_t)l->p.num_rows * p->sizes.k,
			.value = number_of(r, l), .slot = CAIRN_SLOT_KV,
		}));
	}
	return 0;
}

/* Waits for the result of worker i, looking at times whether any worker is lost. */
static int await(struct cairn_attn_remote *r, int32_t i, uint64_t number, struct cairn_signal *found)
{
	const int64_t begin = cairn_clock_ns(), until = begin + CAIRN_EPOCH_LAYER_MS * 1000000ll;
	int ret = 0;

	if (FAULT(RESULT_UNAWAITED))
		return 0;
	do {
		ret = r->table->wait(r->peers[i].c, CAIRN_SLOT_RESULT, number, LOOK_MS, found);
		if (ret != -ETIMEDOUT)
			break;
		CAIRN_TRY(lost(r));
	} while (cairn_clock_ns() < until);
	r->stats.wait_ns += cairn_clock_ns() - begin;
	return attn_remote_blame(r, i, ret);
}

static int receive(void *ctx, int32_t layer, void *o, float *lse, void *stream)
{
	struct remote_lane *l = ctx;
	struct cairn_attn_remote *r = l->r;
	const struct cairn_model_config *c = &r->m->config;
	const int32_t heads = c->num_attention_heads, rows = l->p.num_rows;
	const size_t head = (size_t)c->head_dim * r->element, row = (size_t)heads * head;
	struct cairn_signal found = { 0 };
	uint64_t slowest = 0, trip;

	(void)stream;
	if (layer != l->layer || !lse != !l->link.previous)
		return cairn_error(EINVAL, "attn_remote: layer %d received, layer %d sent", layer, l->layer);
	for (int32_t i = 0; i < r->num_peers; i++) {
		const struct remote_peer *p = &r->peers[i], *q = FAULT(LSE_OF_OTHERS) ?
						     &r->peers[(i + 1) % r->num_peers] : p;
		const int32_t first = p->a.first_head * p->a.group, num = p->a.num_heads * p->a.group;
		const size_t at = FAULT(RESULTS_SHARED) ? 0 : (size_t)l->index * p->sizes.result_bytes;
		const char *result = p->result + at;
		const float *from = (const float *)(const void *)(result + (size_t)rows * p->sizes.o);

		CAIRN_TRY(await(r, i, number_of(r, l), &found));
		slowest = found.word > slowest ? found.word : slowest;
		if (FAULT(LSE_OF_OTHERS) && q->a.num_heads == p->a.num_heads)
			from = (const float *)(const void *)(q->result + at + (size_t)rows * q->sizes.o);
		for (int32_t k = 0; k < rows; k++) {
			memcpy((char *)o + (size_t)k * row + (size_t)first * head,
			       result + (size_t)k * p->sizes.o, p->sizes.o);
			if (lse)
				memcpy(lse + (size_t)k * (size_t)heads + first,
				       from + (size_t)k * (size_t)num, (size_t)num * sizeof(*lse));
		}
		r->stats.bytes += (int64_t)((size_t)rows * (p->sizes.o + p->sizes.lse));
	}
	for (int32_t k = rows; k < l->num_rows && !FAULT(PADDING_KEPT); k++) {
		memset((char *)o + (size_t)k * row, 0, row);
		for (int32_t h = 0; lse && h < heads; h++)
			lse[(size_t)k * (size_t)heads + (size_t)h] = -INFINITY;
	}
	trip = (uint64_t)(cairn_clock_ns() - l->sent_ns);
	r->stats.attn_ns += (int64_t)(slowest < trip ? slowest : trip);	/* the word is a worker's claim */
	if (r->journal && !r->is_restoring && layer + 1 == c->num_hidden_layers)
		cairn_journal_commit(r->journal, l->index);
	l->layers++;
	r->stats.layers++;
	return 0;
}
