/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote_rig_test - a lead, attention workers and a link to them, in one process, beside a local worker
 *
 * Random requests grow, copy pages and start again. Each layer of a pass goes through both links with the
 * same random rows, and the results must have the same bits. There is no model, only the sizes of one.
 *
 * remote_mutants_test.c includes this file with the modules under other names. Include conformance/harness.h
 * first.
 */
#ifndef CAIRN_REMOTE_RIG_TEST_H
#define CAIRN_REMOTE_RIG_TEST_H

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "conformance/tables/program.h"
#include "serving/base/clock.h"
#include "serving/model/model_test.h"
#include "serving/remote/control/address.h"
#include "serving/remote/attention/attn_epoch.h"
#include "serving/remote/attention/attn_remote.h"
#include "serving/remote/attention/attn_worker.h"
#include "serving/slices/attn_local.h"

struct rig;

enum { RIG_REQUESTS = 4, RIG_PAGES = 80, RIG_PAGE = 4, RIG_ROWS = 24, RIG_CONTEXT = 48, RIG_WORKERS = 4,
       RIG_PADDING = 3 };

struct rig_shape {
	int32_t workers, kv_heads, group, layers, window;	/* every other layer has the window */
	double softcap;
	int all;			/* without `previous` */
	int latent;			/* then kv_heads is 1 */
	int spares, join_ms;
	int32_t lanes;			/* 0: 1 */
	int by_stream;			/* the table acts as a device's; mutants alone can do so (share.h) */
	int decode;			/* requests have one row each, and few pages are copied */
	int journal;
	uint64_t weights;		/* the lead's digest of them */
	int32_t models;			/* model workers (remote_lanes_test.h); 0: 1 */
	/* called before the workers are gathered, for the second model worker to join; NULL: there is none */
	void (*add_model)(struct rig *r, void *model);
	void *model;
};

struct rig_request {
	int32_t len, pages[RIG_CONTEXT / RIG_PAGE];
};

/* The lists of a stripe (attn_local.h). */
struct rig_past {
	int32_t qo_indptr[RIG_ROWS + 1], indptr[RIG_ROWS + 1], last[RIG_ROWS];
	int32_t indices[RIG_ROWS * RIG_CONTEXT / RIG_PAGE], num;
};

struct rig_worker {
	pthread_t thread;
	struct cairn_attn_worker_options o;
	int ret;
	char text[256];
};

struct rig {
	struct rig_shape shape;
	struct cairn_impl impl;
	struct cairn_model m;
	struct cairn_kv_store kv;
	/* with as many stripes as the first head and as the last one, which may have fewer */
	struct cairn_attn_local *locals[2];
	int32_t stripes[2];
	uint16_t *weights;
	void *stream;
	struct cairn_lead *lead;
	struct cairn_attn_remote *remote;
	char join[32];
	struct rig_worker workers[RIG_WORKERS];
	int num_workers;
	struct rig_request requests[RIG_REQUESTS];
	uint8_t taken[RIG_PAGES];
	int num_passes;
	void *streams[CAIRN_MAX_LANES];	/* of lanes */
	/* a pass */
	int32_t qo_indptr[RIG_REQUESTS + 1], kv_indptr[RIG_REQUESTS + 1], last_page_len[RIG_REQUESTS];
	int32_t kv_indices[RIG_REQUESTS * RIG_CONTEXT], moves[RIG_REQUESTS][2];
	int32_t before[RIG_REQUESTS], positions[RIG_ROWS];
	const struct rig_request *of[RIG_REQUESTS];	/* request b of the pass */
	struct rig_past past[RIG_WORKERS];
	int32_t key_pos[RIG_PAGES * RIG_PAGE];
	struct cairn_remote_pass p;
	uint16_t *qkv;			/* [RIG_ROWS + RIG_PADDING, q + 2 kv] */
	/* [stripes, rows, attn]; those of a head with fewer stripes, and what comes from the link */
	uint16_t *want, *fewer, *got;
	float *want_lse, *fewer_lse, *got_lse;
};

/* Changes the table of a rig; NULL: none does. */
static void (*rig_table)(const struct rig_shape *shape, struct cairn_impl *impl);

static inline void *rig_work(void *arg)
{
	struct rig_worker *w = arg;

	w->ret = cairn_attn_worker_run(&w->o);
	snprintf(w->text, sizeof(w->text), "%s", w->ret ? cairn_last_error() : "");
	return NULL;
}

static inline void rig_add_worker(struct rig *r, int32_t rejoin_ms)
{
	struct rig_worker *w = &r->workers[r->num_workers++];

	w->o = (struct cairn_attn_worker_options){
		.impl = &r->impl, .member = { .join = r->join, .join_ms = 5000, .rejoin_ms = rejoin_ms },
	};
	pthread_create(&w->thread, NULL, rig_work, w);
}

static inline int rig_open_lead(struct cairn_test *t, struct rig *r, const struct rig_shape *shape)
{
	const struct cairn_lead_options o = {
		.attention = shape->workers, .table = "cpu", .listen = "127.0.0.1:0", .beat_ms = 20000,
		.join_ms = shape->join_ms ? shape->join_ms : 60000, .weights = shape->weights,
		.model = shape->models ? shape->models - 1 : 0,
	};
	int ret;

	memset(r, 0, sizeof(*r));
	r->shape = *shape;
	if (open_table(t, "cpu", &r->impl))
		return -1;
	if (rig_table)
		rig_table(shape, &r->impl);
	ret = cairn_lead_create(&r->lead, &o);
	if (ret == -EOPNOTSUPP)
		cairn_skip(t, "%s", cairn_last_error());
	else if (!EXPECT(t, ret == 0))
		cairn_note(t, "%s", cairn_last_error());
	snprintf(r->join, sizeof(r->join), "127.0.0.1:%d", ret ? 0 : cairn_lead_port(r->lead));
	return ret;
}

static inline void rig_draw(uint16_t *to, size_t num, uint16_t exponent, uint64_t *state)
{
	for (size_t i = 0; i < num; i++) {
		*state = *state * 6364136223846793005u + 1442695040888963407u;
		to[i] = (uint16_t)((*state >> 40 & 0x807f) | exponent);
	}
}

/* The sizes that mla_paged has, and weights of about 0.05. */
static inline void rig_make_latent(struct rig *r)
{
	struct cairn_model_config *c = &r->m.config;
	const size_t each = (size_t)c->num_attention_heads * 256 * 512;
	uint64_t state = 5;

	c->latent = (struct cairn_latent_config){
		.kv_lora_rank = 512, .nope_dim = 128, .rope_dim = 64, .v_dim = 128,
	};
	c->head_dim = 192;
	r->m.dims[CAIRN_D_Q] = c->num_attention_heads * 192;
	r->m.dims[CAIRN_D_ATTN] = c->num_attention_heads * 128;
	r->m.dims[CAIRN_D_LATENT] = 576;
	r->m.dims[CAIRN_D_QKV] = r->m.dims[CAIRN_D_Q] + 576;
	r->weights = malloc((size_t)c->num_hidden_layers * each * sizeof(*r->weights));
	if (r->weights)
		rig_draw(r->weights, (size_t)c->num_hidden_layers * each, 0x3d00, &state);
	r->m.base = (char *)r->weights;
	r->m.layer_bytes = each * sizeof(*r->weights);
	r->m.elements[CAIRN_W_KV_B] = each;
}

static inline void rig_make_model(struct rig *r)
{
	struct cairn_model_config *c = &r->m.config;

	r->m.impl = &r->impl;
	r->m.dtype = CAIRN_BF16;
	c->num_hidden_layers = r->shape.layers;
	c->num_key_value_heads = r->shape.kv_heads;
	c->num_attention_heads = r->shape.kv_heads * r->shape.group;
	c->head_dim = 64;
	c->attn_softcap = r->shape.softcap;
	c->window = r->shape.window;
	for (int i = 0; r->shape.window && i < r->shape.layers; i += 2)
		c->windowed[i / 8] |= (uint8_t)(1 << i % 8);
	r->m.dims[CAIRN_D_Q] = r->m.dims[CAIRN_D_ATTN] = c->num_attention_heads * c->head_dim;
	r->m.dims[CAIRN_D_KV] = c->num_key_value_heads * c->head_dim;
	r->m.dims[CAIRN_D_QKV] = r->m.dims[CAIRN_D_Q] + 2 * r->m.dims[CAIRN_D_KV];
	if (r->shape.latent)
		rig_make_latent(r);
}

static inline struct cairn_remote_limits rig_limits(void)
{
	return (struct cairn_remote_limits){ RIG_ROWS + RIG_PADDING, RIG_REQUESTS, RIG_CONTEXT, RIG_PAGES,
					     RIG_PAGE, 1, 0 };
}

/* Returns 0, or the error of attn_remote, whose text is the last error. rejoin_ms: of the workers */
static inline int rig_open_with(struct cairn_test *t, struct rig *r, const struct rig_shape *shape,
				int32_t rejoin_ms)
{
	struct cairn_remote_limits limits = rig_limits();
	size_t rows = RIG_ROWS + RIG_PADDING, each, each_lse;
	int ret = rig_open_lead(t, r, shape);

	if (ret)
		return ret;
	limits.lanes = shape->lanes;
	rig_make_model(r);
	each = RIG_WORKERS * rows * (size_t)r->m.dims[CAIRN_D_ATTN];
	each_lse = RIG_WORKERS * rows * (size_t)r->m.config.num_attention_heads;
	r->qkv = calloc(rows, sizeof(*r->qkv) * (size_t)r->m.dims[CAIRN_D_QKV]);
	r->want = calloc(3 * each, sizeof(*r->want));
	r->fewer = r->want + each;
	r->got = r->fewer + each;
	r->want_lse = calloc(3 * each_lse, sizeof(float));
	r->fewer_lse = r->want_lse + each_lse;
	r->got_lse = r->fewer_lse + each_lse;
	if (!EXPECT(t, r->impl.stream_create(&r->stream) == 0) ||
	    !EXPECT(t, cairn_kv_store_create(&r->kv, &r->m, RIG_PAGES, RIG_PAGE) == 0))
		return -1;
	for (int i = 0; i < CAIRN_MAX_LANES; i++)
		if (!EXPECT(t, r->impl.stream_create(&r->streams[i]) == 0))
			return -1;
	for (int i = 0; i < 2; i++) {
		r->stripes[i] = shape->all ? 0 : shape->workers < shape->kv_heads ? 1 :
				(shape->workers + (i ? 0 : shape->kv_heads - 1)) / shape->kv_heads;
		if (!EXPECT(t, cairn_attn_local_create(&r->locals[i], &r->m, &r->kv, RIG_ROWS,
						       r->stripes[i]) == 0))
			return -1;
	}
	for (int i = 0; i < shape->workers + shape->spares; i++)
		rig_add_worker(r, rejoin_ms);
	if (shape->add_model)
		shape->add_model(r, shape->model);
	return cairn_attn_remote_create(&r->remote, r->lead, &r->m, &limits, !shape->all,
					shape->journal ? 1 << 30 : 0);
}

static inline int rig_open(struct cairn_test *t, struct rig *r, const struct rig_shape *shape)
{
	return rig_open_with(t, r, shape, 0);
}

static inline void rig_close(struct rig *r)
{
	cairn_attn_remote_destroy(r->remote);
	cairn_lead_destroy(r->lead);
	for (int i = 0; i < r->num_workers; i++)
		pthread_join(r->workers[i].thread, NULL);
	cairn_attn_local_destroy(r->locals[0]);
	cairn_attn_local_destroy(r->locals[1]);
	free(r->weights);
	if (r->kv.base)
		cairn_kv_store_destroy(&r->kv, &r->m);
	if (r->stream)
		r->impl.stream_destroy(r->stream);
	for (int i = 0; i < CAIRN_MAX_LANES; i++)
		if (r->streams[i])
			r->impl.stream_destroy(r->streams[i]);
	free(r->qkv);
	free(r->want);
	free(r->want_lse);
}

/* ---- requests ---- */

static inline int32_t rig_page(struct cairn_test *t, struct rig *r)
{
	int32_t page;

	do
		page = (int32_t)(cairn_rand(t) % RIG_PAGES);
	while (r->taken[page]);
	r->taken[page] = 1;
	return page;
}

static inline void rig_forget(struct rig *r, struct rig_request *q)
{
	for (int32_t i = 0; i * RIG_PAGE < q->len; i++)
		r->taken[q->pages[i]] = 0;
	q->len = 0;
}

/* Adds a request to the pass, with the pages of its keys before and after it. */
static inline void rig_add(struct cairn_test *t, struct rig *r, struct rig_request *q, int32_t rows)
{
	struct cairn_remote_pass *p = &r->p;
	const int32_t before = q->len, b = p->batch++;
	int32_t num = (before + RIG_PAGE - 1) / RIG_PAGE;

	/* its last page was shared: copy on write */
	if (before % RIG_PAGE && cairn_rand(t) % (r->shape.decode ? 24 : 3) == 0) {
		int32_t copy = rig_page(t, r);

		r->moves[p->num_moves][0] = q->pages[num - 1];
		r->moves[p->num_moves++][1] = copy;
		r->taken[q->pages[num - 1]] = 0;
		q->pages[num - 1] = copy;
	}
	r->of[b] = q;
	r->before[b] = before;
	for (q->len += rows; num * RIG_PAGE < q->len; num++)
		q->pages[num] = rig_page(t, r);
	memcpy(r->kv_indices + r->kv_indptr[b], q->pages, (size_t)num * sizeof(*q->pages));
	r->kv_indptr[b + 1] = r->kv_indptr[b] + num;
	r->last_page_len[b] = q->len - (num - 1) * RIG_PAGE;
	r->qo_indptr[b + 1] = r->qo_indptr[b] + rows;
	for (int32_t i = 0; i < rows; i++)
		r->positions[r->qo_indptr[b] + i] = before + i;
	p->num_rows += rows;
	p->num_pages += num;
}

static inline void rig_plan(struct cairn_test *t, struct rig *r)
{
	r->p = (struct cairn_remote_pass){
		.qo_indptr = r->qo_indptr, .kv_indptr = r->kv_indptr, .last_page_len = r->last_page_len,
		.kv_indices = r->kv_indices, .moves = (const int32_t (*)[2])r->moves,
	};
	while (!r->p.batch) {
		for (int i = 0; i < RIG_REQUESTS; i++) {
			struct rig_request *q = &r->requests[i];
			int32_t rows = 1 + (int32_t)(cairn_rand(t) % 2 * (cairn_rand(t) % 6));

			if (r->shape.decode)
				rows = 1;
			if (cairn_rand(t) % 4 == 0)
				continue;
			if (q->len + rows > RIG_CONTEXT)
				rig_forget(r, q);
			rig_add(t, r, q, rows);
		}
	}
}

/* Lists the pages of the previous keys that are the stripe's, for some rows of request b. */
static inline void rig_list(struct rig *r, int32_t b, int32_t rows, int32_t stripe, int32_t stripes)
{
	const int32_t num = (r->before[b] + RIG_PAGE - 1) / RIG_PAGE;
	struct rig_past *p = &r->past[stripe];
	const int32_t i = p->num++;

	p->qo_indptr[i + 1] = p->qo_indptr[i] + rows;
	p->indptr[i + 1] = p->indptr[i];
	for (int32_t k = 0; k < num; k++) {
		if (r->of[b]->pages[k] % stripes != stripe)
			continue;
		p->indices[p->indptr[i + 1]++] = r->of[b]->pages[k];
		p->last[i] = k + 1 < num ? RIG_PAGE : r->before[b] - k * RIG_PAGE;
	}
}

/* Lists the previous keys of a pass, in stripes. */
static inline void rig_past(struct rig *r, struct cairn_attn_past *past, int32_t stripes)
{
	for (int32_t s = 0; s < stripes; s++) {
		struct rig_past *p = &r->past[s];

		p->num = 0;
		for (int32_t b = 0; b < r->p.batch; b++) {
			const int32_t rows = r->qo_indptr[b + 1] - r->qo_indptr[b];

			for (int32_t k = 0; k < (r->shape.latent ? rows : 1); k++)
				rig_list(r, b, r->shape.latent ? 1 : rows, s, stripes);
		}
		past[s] = (struct cairn_attn_past){ p->qo_indptr, p->indptr, p->indices, p->last,
						    r->key_pos, p->num };
	}
	for (int32_t b = 0; b < r->p.batch; b++)
		for (int32_t i = 0; i < r->before[b]; i++)
			r->key_pos[r->of[b]->pages[i / RIG_PAGE] * RIG_PAGE + i % RIG_PAGE] = i;
}

static inline void rig_copy(struct rig *r, int32_t from, int32_t to)
{
	const size_t bytes = cairn_model_key_bytes(&r->m) * RIG_PAGE;
	const int32_t sides = r->shape.latent ? 1 : 2;

	for (int32_t i = 0; i < sides * r->shape.layers; i++) {
		char *pages = r->kv.base + (size_t)(i / sides) * r->kv.layer_bytes +
			      (size_t)(i % sides) * r->kv.v_offset;

		memcpy(pages + (size_t)to * bytes, pages + (size_t)from * bytes, bytes);
	}
}

/* ---- passes ---- */

/* Rows as slices have them: q, k and v side by side, or all q of latent attention before all latents. */
static inline struct cairn_attn_rows rig_view(const struct rig *r, uint16_t *qkv, int32_t layer, int32_t num)
{
	const int32_t *dims = r->m.dims;

	if (r->shape.latent)
		return (struct cairn_attn_rows){
			.layer = layer, .num_rows = num, .q = qkv,
			.k = qkv + (size_t)num * (size_t)dims[CAIRN_D_Q], .q_stride = dims[CAIRN_D_Q],
			.kv_stride = dims[CAIRN_D_LATENT],
		};
	return (struct cairn_attn_rows){
		.layer = layer, .num_rows = num, .window = cairn_layer_window(&r->m.config, layer),
		.q = qkv, .k = qkv + dims[CAIRN_D_Q], .v = qkv + dims[CAIRN_D_Q] + dims[CAIRN_D_KV],
		.q_stride = dims[CAIRN_D_QKV], .kv_stride = dims[CAIRN_D_QKV],
	};
}

static inline struct cairn_attn_rows rig_rows(struct cairn_test *t, struct rig *r, int32_t layer, int32_t num)
{
	uint64_t state = cairn_rand(t);

	/* of +-0.5 to 1 */
	rig_draw(r->qkv, (size_t)num * (size_t)r->m.dims[CAIRN_D_QKV], 0x3f00, &state);
	return rig_view(r, r->qkv, layer, num);
}

static inline int rig_layer(const struct cairn_attn_link *link, const struct cairn_attn_rows *rows,
			    uint16_t *o, float *lse, void *stream)
{
	CAIRN_TRY(link->send_q(link->ctx, rows, stream));
	CAIRN_TRY(link->send_kv(link->ctx, rows, stream));
	return link->receive(link->ctx, rows->layer, o, link->previous ? lse : NULL, stream);
}

static inline int rig_wait(const struct rig *r, void *stream)
{
	return r->impl.stream_sync(stream);
}

/* As rig_layer(); results that the link keeps in its own memory are read there. */
static inline int rig_layer_in_place(const struct rig *r, const struct cairn_attn_link *link,
				     const struct cairn_attn_rows *rows)
{
	const size_t num = (size_t)rows->num_rows;
	float *lse = r->got_lse;
	void *o = r->got;

	if (link->states)
		link->states(link->ctx, &o, &lse);
	CAIRN_TRY(rig_layer(link, rows, o, lse, r->stream));
	CAIRN_TRY(rig_wait(r, r->stream));
	if (!link->states)
		return 0;
	memcpy(r->got, o, num * (size_t)r->m.dims[CAIRN_D_ATTN] * sizeof(*r->got));
	memcpy(r->got_lse, lse, num * (size_t)r->m.config.num_attention_heads * sizeof(*lse));
	return 0;
}

/*
 * Compares the results of one row, head and stripe. Rows of padding must have no result, nor must the stripes
 * that a head does not have. Returns how many numbers differ.
 */
static inline int64_t rig_compare_one(const struct rig *r, int32_t rows, int32_t padded, int32_t stripe,
				      int32_t row, int32_t h)
{
	const int32_t heads = r->m.config.num_attention_heads, dim = r->m.dims[CAIRN_D_ATTN] / heads;
	const int32_t workers = r->shape.workers, head = h / r->shape.group;
	const int32_t has = workers < r->shape.kv_heads ? 1 :
			    (workers - head + r->shape.kv_heads - 1) / r->shape.kv_heads;
	const int none = row >= rows || (!r->shape.all && stripe >= has);
	const int64_t at = ((int64_t)stripe * padded + row) * heads + h;
	const int64_t from = ((int64_t)stripe * rows + row) * heads + h;
	const uint16_t *want = has == r->stripes[0] || r->shape.all ? r->want : r->fewer;
	const float *lse = want == r->want ? r->want_lse : r->fewer_lse;
	const float want_lse = none ? -INFINITY : lse[from];
	int64_t bad = 0;

	for (int32_t i = 0; i < dim; i++)
		bad += r->got[at * dim + i] != (none ? 0 : want[from * dim + i]);
	return r->shape.all ? bad : bad + (memcmp(&r->got_lse[at], &want_lse, sizeof(want_lse)) != 0);
}

static inline int64_t rig_compare(const struct rig *r, int32_t rows, int32_t padded)
{
	int64_t bad = 0;

	for (int32_t s = 0; s < (r->shape.all ? 1 : r->stripes[0]); s++)
		for (int32_t i = 0; i < padded; i++)
			for (int32_t h = 0; h < r->m.config.num_attention_heads; h++)
				bad += rig_compare_one(r, rows, padded, s, i, h);
	return bad;
}

/* Runs a pass over both links. Returns how many numbers differ, or -errno of the remote one. */
static inline int64_t rig_pass(struct cairn_test *t, struct rig *r)
{
	struct cairn_attn_past past[RIG_WORKERS];
	const int32_t padding = (int32_t)(cairn_rand(t) % (RIG_PADDING + 1));
	const struct cairn_attn_link *link;
	struct cairn_batch b = { 0 };
	int64_t bad = 0;
	int32_t lane;
	int moved;

	rig_plan(t, r);
	for (int32_t i = 0; i < r->p.num_moves; i++)
		rig_copy(r, r->moves[i][0], r->moves[i][1]);
	b = (struct cairn_batch){
		.positions = r->positions, .qo_indptr = r->qo_indptr, .kv_indptr = r->kv_indptr,
		.kv_indices = r->kv_indices, .kv_last_page_len = r->last_page_len, .num_rows = r->p.num_rows,
		.batch = r->p.batch, .max_qo_len = RIG_ROWS, .max_kv_len = RIG_CONTEXT,
	};
	lane = r->shape.lanes ? r->num_passes++ % r->shape.lanes : 0;
	link = cairn_attn_remote_link(r->remote, lane);
	CAIRN_TRY(cairn_attn_remote_begin(r->remote, lane, &r->p));
	for (int32_t layer = 0; layer < r->shape.layers; layer++) {
		struct cairn_attn_rows rows = rig_rows(t, r, layer, r->p.num_rows + padding);

		memset(r->got, 0x7f, (size_t)(r->shape.all ? 1 : r->stripes[0]) * (size_t)rows.num_rows *
		       (size_t)r->m.dims[CAIRN_D_ATTN] * sizeof(*r->got));
		CAIRN_TRY(layer % 2 ? rig_layer(link, &rows, r->got, r->got_lse, r->stream) :
			  rig_layer_in_place(r, link, &rows));
		CAIRN_TRY(rig_wait(r, r->stream));
		rows.num_rows = r->p.num_rows;
		for (int i = 0; i < 1 + (r->stripes[1] != r->stripes[0]); i++) {
			rig_past(r, past, r->stripes[i]);
			EXPECT(t, cairn_attn_local_begin(r->locals[i], &b, past, r->stream, &moved) == 0);
			EXPECT(t, rig_layer(cairn_attn_local_link(r->locals[i]), &rows, i ? r->fewer :
					    r->want, i ? r->fewer_lse : r->want_lse, r->stream) == 0);
			EXPECT(t, rig_wait(r, r->stream) == 0);
		}
		bad += rig_compare(r, r->p.num_rows, r->p.num_rows + padding);
	}
	CAIRN_TRY(cairn_attn_remote_finish(r->remote, lane, r->stream));
	return bad;
}

/* As rig_pass(), many times; stops at the first difference. */
static inline int64_t rig_passes(struct cairn_test *t, struct rig *r, int num)
{
	int64_t bad = 0;

	for (int i = 0; i < num && !bad; i++)
		bad = rig_pass(t, r);
	return bad;
}

/*
 * Loses a worker; a spare takes its place, and all requests start again unless there is a journal. Returns 0,
 * or -errno.
 */
static inline int rig_lose(struct rig *r, int32_t rank)
{
	cairn_error(EIO, "by the test");
	cairn_lead_report(r->lead, rank);
	CAIRN_TRY(cairn_attn_remote_restart(r->remote));
	for (int i = 0; i < RIG_REQUESTS && !r->shape.journal; i++)
		rig_forget(r, &r->requests[i]);
	return 0;
}

/* ---- a member that says what the test wants ---- */

struct rig_guest {
	struct cairn_control_channel *c;
	char refused[CAIRN_CONTROL_TEXT + 1];	/* "": was not */
};

static inline struct cairn_control_join rig_join(void)
{
	struct cairn_control_join j = {
		.version = CAIRN_CONTROL_VERSION, .role = CAIRN_MEMBER_ATTENTION, .rank = -1,
		.transports = 0xffffffff, .table = "cpu",
	};

	j.digest = strtoull(cairn_source_digest(), NULL, 16);
	return j;
}

/* Connects and opens the channel; returns 0, or the error. */
static inline int rig_knock(const struct rig *r, struct rig_guest *g)
{
	int fd;

	memset(g, 0, sizeof(*g));
	CAIRN_TRY(cairn_address_dial(&fd, r->join, 5000));
	return cairn_channel_open(&g->c, fd, CAIRN_CHANNEL_MEMBER, NULL, 5000);
}

/* Sends the message and waits for an answer of this kind; -EPERM: a refusal, whose text is kept. */
static inline int rig_say(struct rig_guest *g, uint32_t kind, const void *data, size_t num_bytes,
			  uint32_t answer, struct cairn_channel_message *m, int timeout_ms)
{
	const int64_t until = cairn_clock_ns() + timeout_ms * 1000000ll;
	int ret = cairn_channel_send(g->c, kind, data, num_bytes, 5000);

	while (!ret && cairn_clock_ns() < until) {
		ret = cairn_channel_receive(g->c, m, 50);
		if (ret == -ETIMEDOUT) {
			ret = 0;
			continue;
		}
		if (!ret && m->kind == answer)
			return 0;
		if (!ret && m->kind == CAIRN_CONTROL_REFUSE) {
			snprintf(g->refused, sizeof(g->refused), "%.*s", (int)m->num_bytes,
				 (const char *)m->data);
			return -EPERM;
		}
	}
	return ret ? ret : -ETIMEDOUT;
}

#endif
