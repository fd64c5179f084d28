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
 *
 * At the start of an epoch, one byte is put to the end of each of a worker's buffers, so that a worker whose
 * memory is smaller than its share fails then, and not during a pass.
 */
#include "serving/remote/attention/attn_remote.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "serving/base/clock.h"
#include "serving/remote/attention/attn_epoch.h"
#include "serving/remote/attention/attn_restore.h"
#include "serving/remote/remote_fault.h"

#define MAX_ATTEMPTS	4	/* to begin an epoch */
#define PUT_MS		5000
#define LOOK_MS		20	/* between two looks at whether a worker is lost */

struct peer {
	struct cairn_control_assign a;
	float *scales;
	struct cairn_share_sizes sizes;
	char *q, *kv, *result;		/* of all lanes; kv: both buffers of each */
	/* of the epoch: */
	struct cairn_region *q_region, *kv_region, *result_region;
	struct cairn_remote *to_q, *to_kv;
	struct cairn_channel *c;
};

struct lane {
	struct cairn_attn_link link;
	struct cairn_attn_remote *r;
	struct cairn_remote_pass p;
	uint64_t turn;			/* its last one */
	uint64_t layers;		/* of this epoch, completed */
	int32_t index, layer, num_rows;	/* of the last send_q; rows of padding included */
	int64_t sent_ns;		/* time of it */
};

struct cairn_attn_remote {
	struct lane lanes[CAIRN_MAX_LANES];
	struct cairn_lead *lead;
	const struct cairn_model *m;
	struct cairn_remote_limits limits;
	size_t element;
	const struct cairn_transport_table *table;
	uint32_t transport;
	struct cairn_transport *t;	/* NULL: between two epochs */
	uint32_t epoch;
	uint64_t pass, turn;		/* of this epoch, over all lanes */
	struct cairn_journal *journal;	/* NULL: none */
	int is_restoring;		/* passes are those of attn_restore.c */
	void *plan;			/* scratch */
	size_t plan_bytes;
	struct cairn_attn_remote_stats stats;
	int32_t num_peers;
	struct peer peers[];
};

/* ---- an epoch ---- */

static void close_transport(struct cairn_attn_remote *r)
{
	if (r->t)
		r->table->close(r->t);
	r->t = NULL;
}

static int open_peer(struct cairn_attn_remote *r, struct peer *p, struct cairn_attn_blob *blob)
{
	const struct cairn_transport_table *t = r->table;
	const size_t lanes = (size_t)r->limits.lanes;

	*blob = (struct cairn_attn_blob){ 0 };
	CAIRN_TRY(t->region_register(r->t, p->q, lanes * p->sizes.q_bytes, CAIRN_MEMORY_HOST, &p->q_region));
	CAIRN_TRY(t->region_register(r->t, p->kv, 2 * lanes * p->sizes.kv_bytes, CAIRN_MEMORY_HOST,
				     &p->kv_region));
	CAIRN_TRY(t->region_register(r->t, p->result, lanes * p->sizes.result_bytes, CAIRN_MEMORY_HOST,
				     &p->result_region));
	CAIRN_TRY(t->channel_create(r->t, &p->c));
	CAIRN_TRY(t->channel_address(p->c, &blob->channel));
	return t->region_key(p->result_region, &blob->q);
}

/* Puts the last byte of a buffer; the worker's end refuses it if its memory is smaller. */
static int probe(struct cairn_attn_remote *r, struct peer *p, struct cairn_region *from,
		 struct cairn_remote *to, size_t bytes, const char *what)
{
	const struct cairn_put put = {
		.local = from, .local_offset = bytes - 1, .remote = to, .remote_offset = bytes - 1,
		.bytes = 1, .slot = CAIRN_NO_SIGNAL,
	};
	int ret = r->table->put(p->c, &put, PUT_MS);

	if (!ret)
		ret = r->table->flush(p->c, PUT_MS);
	return ret == -EINVAL || ret == -EACCES ?
	       cairn_error(EINVAL, "its memory for %s has not the %zu bytes of its share", what, bytes) : ret;
}

static int connect_peer(struct cairn_attn_remote *r, struct peer *p, const struct cairn_attn_blob *theirs)
{
	CAIRN_TRY(r->table->remote_import(r->t, &theirs->q, &p->to_q));
	CAIRN_TRY(r->table->remote_import(r->t, &theirs->kv, &p->to_kv));
	return r->table->channel_connect(p->c, &theirs->channel, CAIRN_EPOCH_CONNECT_MS);
}

/* Tells the lead that a worker is lost, unless the call has succeeded. */
static int blame(struct cairn_attn_remote *r, int32_t i, int ret)
{
	return ret ? cairn_lead_report(r->lead, i + 1) : 0;
}

static int assign(struct cairn_attn_remote *r, int32_t i)
{
	struct peer *p = &r->peers[i];

	if (FAULT(SPARE_UNASSIGNED) && r->stats.restarts)
		return 0;
	p->a.epoch = r->epoch;
	p->a.rank = (uint32_t)i + 1;
	p->a.transport = r->transport;
	return cairn_lead_send(r->lead, i + 1, CAIRN_CONTROL_ASSIGN, &p->a, sizeof(p->a), p->scales,
			       p->a.num_bytes);
}

static int introduce(struct cairn_attn_remote *r, int32_t i, const struct cairn_attn_blob *mine)
{
	const struct cairn_control_blob head = { .to = i + 1, .num_bytes = sizeof(*mine), .epoch = r->epoch };
	struct cairn_attn_blob theirs;

	CAIRN_TRY(cairn_lead_blob(r->lead, i + 1, &theirs, sizeof(theirs)));
	CAIRN_TRY(cairn_lead_send(r->lead, i + 1, CAIRN_CONTROL_BLOB, &head, sizeof(head), mine,
				  sizeof(*mine)));
	return blame(r, i, connect_peer(r, &r->peers[i], &theirs));
}

static int probe_peer(struct cairn_attn_remote *r, int32_t i)
{
	const size_t lanes = (size_t)r->limits.lanes;
	struct peer *p = &r->peers[i];

	CAIRN_TRY(blame(r, i, probe(r, p, p->q_region, p->to_q, lanes * p->sizes.q_bytes, "queries")));
	return blame(r, i, probe(r, p, p->kv_region, p->to_kv, 2 * lanes * p->sizes.kv_bytes,
				 "keys and values"));
}

static int begin_epoch(struct cairn_attn_remote *r)
{
	const struct cairn_transport_options o = { .size = sizeof(o), .gpu = -1 };
	struct cairn_attn_blob *mine = calloc((size_t)r->num_peers, sizeof(*mine));
	uint32_t epoch = 0;
	int ret = mine ? 0 : cairn_error(ENOMEM, "attn_remote: no memory");

	close_transport(r);
	if (!ret)
		ret = cairn_lead_gather(r->lead, &epoch);
	r->epoch = FAULT(EPOCH_KEPT) ? 1 : epoch;
	r->pass = r->turn = 0;
	for (int32_t i = 0; i < CAIRN_MAX_LANES; i++)
		r->lanes[i].layers = 0;
	if (!ret)
		ret = r->table->open(&o, &r->t);
	for (int32_t i = 0; i < r->num_peers && !ret; i++)
		ret = open_peer(r, &r->peers[i], &mine[i]);
	for (int32_t i = 0; i < r->num_peers && !ret; i++)
		ret = assign(r, i);
	for (int32_t i = 0; i < r->num_peers && !ret; i++)
		ret = introduce(r, i, &mine[i]);
	for (int32_t i = 0; i < r->num_peers && !ret; i++)
		ret = cairn_lead_ready(r->lead, i + 1);
	for (int32_t i = 0; i < r->num_peers && !ret; i++)
		ret = probe_peer(r, i);
	free(mine);
	if (ret)
		close_transport(r);
	return ret;
}

/* Gives the workers of a new epoch the keys and values of the journal. */
static int restore(struct cairn_attn_remote *r)
{
	const int64_t begin = cairn_clock_ns();
	int64_t bytes = 0;
	int ret;

	if (!r->journal)
		return 0;
	for (int32_t i = 0; i < r->limits.lanes; i++)	/* these passes will begin again */
		cairn_journal_drop(r->journal, i);
	cairn_journal_drain(r->journal);
	r->is_restoring = 1;
	ret = attn_restore(r, r->journal, r->m, &r->limits, &bytes);
	r->is_restoring = 0;
	r->stats.restored_bytes += bytes;
	r->stats.restore_ns += cairn_clock_ns() - begin;
	return ret;
}

/* Workers may be lost while they prepare, or refuse their share; others then take their place. */
static int try_epochs(struct cairn_attn_remote *r)
{
	int ret, attempt = 0;

	do {
		ret = begin_epoch(r);
		if (!ret)
			ret = restore(r);
	} while (ret == -ECONNRESET && ++attempt < MAX_ATTEMPTS);
	return ret;
}

int cairn_attn_remote_restart(struct cairn_attn_remote *r)
{
	r->stats.restarts++;
	return try_epochs(r);
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
	struct peer *p = &r->peers[i];

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
		r->lanes[i] = (struct lane){ .r = r, .index = i,
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
		ret = try_epochs(r);
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
	close_transport(r);
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

static uint64_t number_of(const struct cairn_attn_remote *r, const struct lane *l)
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
		return blame(r, i, r->table->put(r->peers[i].c, put, PUT_MS));
	first.bytes = 0;
	first.local = NULL;
	first.remote = NULL;
	second.slot = CAIRN_NO_SIGNAL;
	CAIRN_TRY(blame(r, i, r->table->put(r->peers[i].c, &first, PUT_MS)));
	/* the worker answers before the payload has come */
	r->table->wait(r->peers[i].c, CAIRN_SLOT_RESULT, put->value, 200, NULL);
	return blame(r, i, r->table->put(r->peers[i].c, &second, PUT_MS));
}

static int send_q(void *ctx, const struct cairn_attn_rows *rows, void *stream)
{
	struct lane *l = ctx;
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
		struct peer *p = &r->peers[i];

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
	struct lane *l = ctx;
	struct cairn_attn_remote *r = l->r;
	const size_t head = (size_t)r->m->config.head_dim * r->element;
	const size_t stride = (size_t)rows->kv_stride * r->element;
	const size_t buffer = 2 * (size_t)l->index + cairn_share_buffer(l->layers, rows->layer);

	(void)stream;
	if (r->journal && !r->is_restoring &&
	    !(FAULT(JOURNAL_COMMIT_LOST) && rows->layer + 1 == r->m->config.num_hidden_layers))
		cairn_journal_rows(r->journal, l->index, rows);
	for (int32_t i = 0; i < r->num_peers; i++) {
		struct peer *p = &r->peers[i];
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
	return blame(r, i, ret);
}

static int receive(void *ctx, int32_t layer, void *o, float *lse, void *stream)
{
	struct lane *l = ctx;
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
		const struct peer *p = &r->peers[i], *q = FAULT(LSE_OF_OTHERS) ?
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
