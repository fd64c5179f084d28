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
#include "serving/remote/attention/lists.h"
#include "serving/remote/attention/relay.h"
#include "serving/remote/remote_fault.h"

#define MAX_ATTEMPTS	4	/* to begin an epoch */
#define PUT_MS		5000
#define WEIGHTS_MS	60000	/* for the weights of a layer to arrive */
#define LOOK_MS		20	/* between two looks at whether a worker is lost */

struct peer {
	struct cairn_control_assign a;
	float *scales;
	struct cairn_share_sizes sizes;
	char *q, *kv, *result;		/* of all lanes; kv: both buffers of each */
	/* of the epoch: */
	struct cairn_region *q_region, *kv_region, *result_region;
	struct cairn_remote *to_q, *to_kv, *to_weights;
	struct cairn_channel *c;
	struct cairn_relay relay;	/* of pages, with stripes; its buffer is of all epochs */
	struct cairn_attn_remote *r;
};

struct lane {
	struct cairn_attn_link link;
	struct cairn_attn_remote *r;
	struct cairn_remote_pass p;	/* its arrays are the caller's, and not used after begin() */
	int32_t *row_pages;		/* [max_rows]: the page of each row */
	int32_t (*moves)[2], max_moves;	/* of p, with stripes */
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

static int await_page(void *ctx, uint32_t slot, uint64_t number);

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
	CAIRN_TRY(t->region_key(p->result_region, &blob->q));
	if (p->a.stripes == 1)
		return 0;
	p->relay = (struct cairn_relay){
		.table = t, .c = p->c, .page = p->relay.page, .bytes = p->sizes.page_bytes,
		.await = await_page, .ctx = p,
	};
	CAIRN_TRY(t->region_register(r->t, p->relay.page, p->relay.bytes, CAIRN_MEMORY_HOST,
				     &p->relay.region));
	return t->region_key(p->relay.region, &blob->page);
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
	if (p->sizes.weight_bytes)
		CAIRN_TRY(r->table->remote_import(r->t, &theirs->weights, &p->to_weights));
	if (p->relay.bytes)
		CAIRN_TRY(r->table->remote_import(r->t, &theirs->page, &p->relay.to));
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
	CAIRN_TRY(blame(r, i, probe(r, p, p->kv_region, p->to_kv, 2 * lanes * p->sizes.kv_bytes,
				    "keys and values")));
	return p->relay.bytes ? blame(r, i, probe(r, p, p->relay.region, p->relay.to, p->relay.bytes,
						  "a page")) : 0;
}

/* Puts the weights of one layer into a worker's memory. They lie in `from`. */
static int put_weights(struct cairn_attn_remote *r, struct peer *p, struct cairn_region *from, int32_t layer)
{
	const size_t bytes = p->sizes.weight_bytes;
	const struct cairn_put put = {
		.local = from, .remote = p->to_weights, .remote_offset = (size_t)layer * bytes,
		.bytes = bytes, .slot = CAIRN_NO_SIGNAL,
	};
	int ret = r->table->put(p->c, &put, PUT_MS);

	if (!ret)
		ret = r->table->flush(p->c, WEIGHTS_MS);
	return ret == -EINVAL || ret == -EACCES ?
	       cairn_error(EINVAL, "its memory for weights has not the %zu bytes of %d layers",
			   (size_t)p->a.num_layers * bytes, p->a.num_layers) : ret;
}

/* Sends the weights of latent attention to all workers, layer by layer. */
static int send_weights(struct cairn_attn_remote *r)
{
	const struct cairn_impl *impl = r->m->impl;
	const size_t bytes = r->peers[0].sizes.weight_bytes;
	struct cairn_region *region = NULL;
	void *stream = NULL;
	char *room = bytes ? malloc(bytes) : NULL;
	int ret = 0;

	if (bytes && !room)
		ret = cairn_error(ENOMEM, "attn_remote: no memory for the weights of a layer");
	if (bytes && !ret)
		ret = CAIRN_TABLE(impl, stream_create, &stream);
	if (bytes && !ret)
		ret = r->table->region_register(r->t, room, bytes, CAIRN_MEMORY_HOST, &region);
	for (int32_t layer = 0; bytes && layer < r->peers[0].a.num_layers && !ret; layer++) {
		ret = CAIRN_TABLE(impl, mem_copy, room, cairn_model_weight(r->m, FAULT(WEIGHTS_OF_LAYER_0) ?
									   0 : layer, CAIRN_W_KV_B),
				  bytes, CAIRN_COPY_TO_HOST, stream);
		if (!ret)
			ret = CAIRN_TABLE(impl, stream_sync, stream);
		for (int32_t i = 0; i < r->num_peers && !ret; i++)
			ret = blame(r, i, put_weights(r, &r->peers[i], region, layer));
	}
	if (region)
		r->table->region_release(region);
	if (stream)
		impl->stream_destroy(stream);
	free(room);
	return ret;
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
	if (!ret)
		ret = send_weights(r);
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
	const int32_t heads = cairn_share_heads(&m->config);
	const int32_t stripes = cairn_most_stripes(heads, r->num_peers);

	if (!(m->impl->flags & CAIRN_IMPL_HOST_MEM))
		return cairn_error(EOPNOTSUPP, "attention_workers: %s: need a table with host memory so far",
				   m->impl->name);
	if (stripes > CAIRN_ATTN_STRIPES || stripes > r->limits.num_pages)
		return cairn_error(EINVAL, "attention_workers: %d are too many to divide %d pages and %d "
				   "heads of keys", r->num_peers, r->limits.num_pages, heads);
	if (!r->lanes[0].link.previous && cairn_model_is_latent(m))
		return cairn_error(EOPNOTSUPP, "attention_keys: all: latent attention (kv_lora_rank) knows "
				   "only previous");
	if (!r->lanes[0].link.previous && stripes > 1)
		return cairn_error(EOPNOTSUPP, "attention_keys: all: needs at most as many attention workers "
				   "as the model's %d num_key_value_heads, not %d", heads, r->num_peers);
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

	CAIRN_TRY(cairn_share_assign(&p->a, &p->scales, r->m, &r->limits, r->lanes[0].link.previous > 0,
				     r->num_peers, i));
	p->sizes = cairn_share_sizes(&p->a);
	p->r = r;
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

int cairn_attn_remote_create(struct cairn_attn_remote **out, struct cairn_lead *lead,
			     const struct cairn_model *m, const struct cairn_remote_limits *limits,
			     int previous, int64_t journal_bytes)
{
	const int32_t num = cairn_lead_attention(lead);
	const int32_t stripes = cairn_most_stripes(cairn_share_heads(&m->config), num);
	struct cairn_attn_remote *r = calloc(1, sizeof(*r) + (size_t)num * sizeof(r->peers[0]));
	int ret;

	if (!r)
		return cairn_error(ENOMEM, "attn_remote: no memory");
	for (int32_t i = 0; i < CAIRN_MAX_LANES; i++)
		r->lanes[i] = (struct lane){ .r = r, .index = i,
					     .link = { previous ? stripes : 0, send_q, send_kv, receive,
						       &r->lanes[i] } };
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
	for (int32_t i = 0; i < r->limits.lanes && !ret; i++) {
		r->lanes[i].row_pages = malloc((size_t)limits->max_rows * sizeof(*r->lanes[i].row_pages));
		if (!r->lanes[i].row_pages)
			ret = cairn_error(ENOMEM, "attn_remote: no memory for %d rows", limits->max_rows);
	}
	for (int32_t i = 0; i < num && !ret; i++)
		ret = make_peer(r, i);
	if (!ret && journal_bytes && cairn_model_is_latent(m))
		ret = cairn_error(EOPNOTSUPP, "kv_journal: latent attention (kv_lora_rank) has none so far");
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
		free(r->peers[i].relay.page);
	}
	for (int32_t i = 0; i < CAIRN_MAX_LANES; i++) {
		free(r->lanes[i].row_pages);
		free(r->lanes[i].moves);
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

/* Keeps what layers need to know of a pass. */
static int keep_pass(struct lane *l, const struct cairn_remote_pass *p)
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
	CAIRN_TRY(keep_pass(&r->lanes[lane], p));
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
static char *gather_own(const struct lane *l, const struct peer *p, char *to, const char *from, size_t at,
			size_t stride)
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

/* Returns the worker with the same head that holds this page. */
static struct peer *owner_of(struct cairn_attn_remote *r, const struct peer *p, int32_t page)
{
	struct peer *q = r->peers;

	while (q->a.first_head != p->a.first_head || q->a.stripe != page % q->a.stripes)
		q++;
	return q;
}

/* Passes on what a move copies from a page of one stripe to one of another, for one head. */
static int relay_page(struct peer *from, struct peer *to)
{
	CAIRN_TRY(cairn_relay_take(&from->relay));
	memcpy(to->relay.page, from->relay.page, from->relay.bytes);
	CAIRN_TRY(cairn_relay_give(&to->relay));
	return cairn_relay_taken(&from->relay);
}

/* Passes on the pages of a layer. The workers of each head go through the moves in this order. */
static int relay_pages(const struct lane *l)
{
	struct cairn_attn_remote *r = l->r;

	for (int32_t k = 0; k < l->p.num_moves; k++) {
		for (int32_t i = 0; i < r->num_peers; i++) {
			struct peer *from = &r->peers[i], *to = owner_of(r, from, l->moves[k][1]);

			if (from == owner_of(r, from, l->moves[k][0]) && from != to)
				CAIRN_TRY(relay_page(from, to));
		}
	}
	return 0;
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
	return l->link.previous > 1 ? relay_pages(l) : 0;
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
		CAIRN_TRY(lost(r));
	} while (cairn_clock_ns() < until);
	r->stats.wait_ns += cairn_clock_ns() - begin;
	return blame(r, i, ret);
}

static int await_page(void *ctx, uint32_t slot, uint64_t number)
{
	struct peer *p = ctx;

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
static void set_missing(const struct lane *l, const struct peer *p, char *o, float *lse)
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
	struct lane *l = ctx;
	struct cairn_attn_remote *r = l->r;
	const int32_t heads = r->m->config.num_attention_heads, rows = l->p.num_rows;
	const int32_t results = l->link.previous ? l->link.previous : 1;
	const size_t row = (size_t)r->m->dims[CAIRN_D_ATTN] * r->element, head = row / (size_t)heads;
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
		cairn_journal_commit(r->journal, l->index);
	l->layers++;
	r->stats.layers++;
	return 0;
}
