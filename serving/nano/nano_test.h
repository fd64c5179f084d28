/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nano_test - one pass over several requests, sequentially and as nano-batches
 *
 * A scene is a list of requests, each with keys in the cache and rows in the pass. run_scene() computes these
 * keys and runs the pass sequentially. run_nano() puts the cache back, fills the activations with NaN, runs
 * the pass as nano-batches and compares logits and cache bitwise.
 *
 * Include conformance/harness.h first.
 */
#ifndef CAIRN_NANO_TEST_H
#define CAIRN_NANO_TEST_H

#include "serving/model/forward/forward_impl.h"
#include "serving/model/model_test.h"
#include "serving/nano/nano_impl.h"

#define SCENE_ROWS	192		/* most rows of a pass */
#define SCENE_REQUESTS	16
#define SCENE_PAGES	96
#define SCENE_PAGE	16		/* tokens of a page */
#define MOST_PAGES	(SCENE_PAGES / SCENE_REQUESTS)	/* of a request */

struct scene_request {
	int32_t rows, past;
};

/* Index arrays of a pass or of a nano-batch, in the host's memory or the table's. */
struct scene_arrays {
	int32_t ids[SCENE_ROWS], positions[SCENE_ROWS], logit_rows[SCENE_ROWS];
	int32_t qo_indptr[SCENE_REQUESTS + 1], kv_indptr[SCENE_REQUESTS + 1], last_page_len[SCENE_REQUESTS];
	int32_t kv_indices[3 * SCENE_PAGES];
	struct {
		int32_t qo_indptr[SCENE_ROWS + 1], kv_indptr[SCENE_ROWS + 1], last_page_len[SCENE_ROWS];
	} nano[CAIRN_NANO_BATCHES];
};

struct scene {
	struct cairn_impl impl;
	struct golden g;
	struct cairn_model *m;
	struct cairn_kv_store kv;
	struct cairn_scratch *s;
	void *stream;
	struct scene_arrays host, *dev;
	float *dev_logits, *want, *got;		/* [SCENE_ROWS, vocab] */
	char *past, *after, *now;		/* the cache before and after the pass; after run_nano() */
	size_t kv_bytes, logits_bytes;
	struct cairn_batch batch;		/* the pass; pointers of the table */
	int32_t num_decodes;
	int all_logits;
	int only_cache;				/* compare only the cache */
	int first_lane;				/* run this lane before the others; 0: none */
	/* Changes the arrays or the pass before it runs as nano-batches; may be NULL. */
	void (*spoil)(struct scene *s, struct cairn_nano_pass *pass);
};

static inline int scene_copy(struct scene *s, void *to, const void *from, size_t bytes, int kind)
{
	CAIRN_TRY(s->impl.mem_copy(to, from, bytes, kind, s->stream));
	return s->impl.stream_sync(s->stream);
}

/* Fills *a and *b with a pass in which request i has the given rows and past; pages in shuffled order. */
static inline void scene_batch(struct scene *s, const struct scene_request *r, int num,
			       struct scene_arrays *a, struct cairn_batch *b)
{
	const struct scene_arrays *d = s->dev;

	*b = (struct cairn_batch){
		.logits = s->dev_logits, .ids = d->ids, .positions = d->positions, .qo_indptr = d->qo_indptr,
		.kv_indptr = d->kv_indptr, .kv_indices = d->kv_indices, .kv_last_page_len = d->last_page_len,
		.logit_rows = s->all_logits ? NULL : d->logit_rows, .batch = num,
		.max_kv_len = SCENE_PAGES * SCENE_PAGE,
	};
	a->qo_indptr[0] = a->kv_indptr[0] = 0;
	for (int i = 0; i < num; i++) {
		int32_t len = r[i].past + r[i].rows, pages = (len + SCENE_PAGE - 1) / SCENE_PAGE;

		for (int32_t k = 0; k < r[i].rows; k++) {
			a->ids[b->num_rows] = (7 * i + 5 * (r[i].past + k) + 3) % s->m->config.vocab_size;
			a->positions[b->num_rows++] = r[i].past + k;
		}
		/* the last rows of all requests, the last request first */
		a->logit_rows[num - 1 - i] = b->num_rows - 1;
		for (int32_t k = 0; k < pages; k++)
			a->kv_indices[a->kv_indptr[i] + k] = 5 * (MOST_PAGES * i + k) % SCENE_PAGES;
		a->qo_indptr[i + 1] = b->num_rows;
		a->kv_indptr[i + 1] = a->kv_indptr[i] + pages;
		a->last_page_len[i] = pages ? len - (pages - 1) * SCENE_PAGE : 0;
		b->max_qo_len = r[i].rows > b->max_qo_len ? r[i].rows : b->max_qo_len;
	}
	for (int i = num - 1; i >= 0 && r[i].rows > 1; i--) {
		b->num_prompts++;
		b->prompt_rows += r[i].rows;
		b->prompt_past += r[i].past;
	}
	b->num_logits = s->all_logits ? b->num_rows : num;
}

static inline int scene_forward(struct scene *s, const struct cairn_batch *b)
{
	int moved;

	CAIRN_TRY(scene_copy(s, s->dev, &s->host, sizeof(s->host), CAIRN_COPY_TO_DEVICE));
	CAIRN_TRY(cairn_scratch_reserve(s->s, &s->kv, b, s->stream, &moved));
	CAIRN_TRY(cairn_forward(s->s, &s->kv, b, s->stream));
	return s->impl.stream_sync(s->stream);
}

/* Allocates what a scene with a model needs; returns 0 if run_scene() can follow. */
static inline int furnish_scene(struct cairn_test *t, struct scene *s)
{
	void *p;

	if (!EXPECT(t, cairn_kv_store_create(&s->kv, s->m, SCENE_PAGES, SCENE_PAGE) == 0) ||
	    !EXPECT(t, cairn_scratch_create(&s->s, s->m, SCENE_ROWS, SCENE_ROWS) == 0) ||
	    !EXPECT(t, s->impl.stream_create(&s->stream) == 0) ||
	    !EXPECT(t, s->impl.mem_alloc(&p, sizeof(*s->dev)) == 0))
		return -1;
	s->dev = p;
	s->logits_bytes = sizeof(float) * SCENE_ROWS * (size_t)s->m->config.vocab_size;
	s->kv_bytes = s->kv.layer_bytes * (size_t)s->m->config.num_hidden_layers;
	if (!EXPECT(t, s->impl.mem_alloc(&p, s->logits_bytes) == 0))
		return -1;
	s->dev_logits = p;
	s->want = malloc(2 * s->logits_bytes);
	s->got = s->want + s->logits_bytes / sizeof(float);
	s->past = malloc(3 * s->kv_bytes);
	s->after = s->past + s->kv_bytes;
	s->now = s->after + s->kv_bytes;
	return EXPECT(t, s->want && s->past) ? 0 : -1;
}

/* Loads the model and allocates. */
static inline int open_scene_as(struct cairn_test *t, struct scene *s, const char *table, const char *model,
				enum cairn_kv_form kv)
{
	enum cairn_weights weights = strstr(model, "fp8") ? CAIRN_WEIGHTS_FP8_BLOCKS : CAIRN_WEIGHTS_PLAIN;

	memset(s, 0, sizeof(*s));
	if (open_table(t, table, &s->impl) || open_golden(t, &s->g, model) ||
	    !EXPECT(t, cairn_model_load_as(&s->m, &s->impl, s->g.dir, weights, kv, NULL, NULL) == 0))
		return -1;
	return furnish_scene(t, s);
}

static inline int open_scene(struct cairn_test *t, struct scene *s, const char *table, const char *model)
{
	return open_scene_as(t, s, table, model, CAIRN_KV_PLAIN);
}

/* Puts the cache and the logits before the pass in place. */
static inline int scene_reset(struct scene *s)
{
	CAIRN_TRY(s->impl.mem_set(s->dev_logits, 0xff, s->logits_bytes, s->stream));
	CAIRN_TRY(s->impl.mem_set(s->s->base, 0xff, s->s->bytes, s->stream));
	return scene_copy(s, s->kv.base, s->past, s->kv_bytes, CAIRN_COPY_TO_DEVICE);
}

/* Computes the past of all requests, then the pass. Requests of one row come first: they decode. */
static inline int run_scene(struct cairn_test *t, struct scene *s, const struct scene_request *r, int num)
{
	struct scene_request past[SCENE_REQUESTS];
	struct cairn_batch b;
	int n = 0, ret;

	for (n = 0; n < num; n++)
		past[n] = (struct scene_request){ .rows = r[n].past };
	ret = s->impl.mem_set(s->kv.base, 0xff, s->kv_bytes, s->stream);
	if (!ret) {
		scene_batch(s, past, num, &s->host, &b);
		b.num_logits = 0;
		ret = b.num_rows ? scene_forward(s, &b) : 0;
	}
	if (!ret)
		ret = scene_copy(s, s->past, s->kv.base, s->kv_bytes, CAIRN_COPY_TO_HOST);
	scene_batch(s, r, num, &s->host, &s->batch);
	for (s->num_decodes = 0; s->num_decodes < num && r[s->num_decodes].rows == 1;)
		s->num_decodes++;
	if (!ret)
		ret = scene_reset(s);
	if (!ret)
		ret = scene_forward(s, &s->batch);
	if (!ret)
		ret = scene_copy(s, s->want, s->dev_logits, s->logits_bytes, CAIRN_COPY_TO_HOST);
	if (!ret)
		ret = scene_copy(s, s->after, s->kv.base, s->kv_bytes, CAIRN_COPY_TO_HOST);
	return EXPECT(t, ret == 0) ? 0 : -1;
}

/* Makes *pass of the scene's arrays and cuts, and copies all arrays to the table's memory. */
static inline int split_scene(struct scene *s, const struct cairn_nano_cuts *cuts,
			      struct cairn_nano_pass *pass)
{
	struct cairn_nano_index host[CAIRN_NANO_BATCHES], dev[CAIRN_NANO_BATCHES];
	static struct scene_arrays a;
	struct cairn_nano_host in = {
		.qo_indptr = s->host.qo_indptr, .kv_indptr = s->host.kv_indptr,
		.last_page_len = s->host.last_page_len, .kv_indices = s->host.kv_indices,
		.page_size = SCENE_PAGE,
	};

	a = s->host;
	for (int i = 0; i < cuts->num_batches; i++) {
		host[i] = (struct cairn_nano_index){ a.nano[i].qo_indptr, a.nano[i].kv_indptr,
						     a.nano[i].last_page_len };
		dev[i] = (struct cairn_nano_index){ s->dev->nano[i].qo_indptr, s->dev->nano[i].kv_indptr,
						    s->dev->nano[i].last_page_len };
	}
	for (int32_t r = 0; r < s->batch.num_rows; r++) {
		a.ids[cairn_nano_row(cuts, r)] = s->host.ids[r];
		a.positions[cairn_nano_row(cuts, r)] = s->host.positions[r];
	}
	for (int32_t i = 0; i < s->batch.num_logits && !s->all_logits; i++)
		a.logit_rows[i] = cairn_nano_row(cuts, s->host.logit_rows[i]);
	CAIRN_TRY(cairn_nano_split(pass, host, a.kv_indices, dev, &in, &s->batch, cuts));
	if (s->spoil) {
		struct scene_arrays kept = s->host;

		s->host = a;
		s->spoil(s, pass);
		a = s->host;
		s->host = kept;
	}
	return scene_copy(s, s->dev, &a, sizeof(a), CAIRN_COPY_TO_DEVICE);
}

/* Returns how many bytes of logits and cache differ from those of the sequential pass, or -errno. */
static inline int64_t compare_scene(struct scene *s, const struct cairn_nano_cuts *cuts)
{
	size_t row = sizeof(float) * (size_t)s->m->config.vocab_size;
	int64_t bad = 0;

	CAIRN_TRY(scene_copy(s, s->got, s->dev_logits, s->logits_bytes, CAIRN_COPY_TO_HOST));
	CAIRN_TRY(scene_copy(s, s->now, s->kv.base, s->kv_bytes, CAIRN_COPY_TO_HOST));
	for (int32_t i = 0; i < s->batch.num_logits && !s->only_cache; i++) {
		int32_t at = s->all_logits ? cairn_nano_row(cuts, i) : i;

		bad += memcmp((char *)s->got + (size_t)at * row, (char *)s->want + (size_t)i * row, row) != 0;
	}
	for (size_t i = 0; i < s->kv_bytes; i++)
		bad += s->now[i] != s->after[i];
	return bad;
}

/* Runs the pass as nano-batches and compares it. */
static inline int64_t run_nano(struct scene *s, struct cairn_nano *n, const struct cairn_nano_cuts *cuts)
{
	struct cairn_nano_pass pass;
	int moved;

	CAIRN_TRY(scene_reset(s));
	CAIRN_TRY(split_scene(s, cuts, &pass));
	CAIRN_TRY(cairn_nano_reserve(n, &s->kv, &pass, s->stream, &moved));
	CAIRN_TRY(cairn_nano_forward(n, &s->kv, &pass, s->stream));
	if (s->first_lane)
		CAIRN_TRY(s->impl.stream_sync(n->streams[s->first_lane]));
	return compare_scene(s, cuts);
}

/* Makes the results of the last run_nano() those that later ones are compared with, in the order of rows. */
static inline void expect_last(struct scene *s, const struct cairn_nano_cuts *cuts)
{
	size_t row = (size_t)s->m->config.vocab_size;

	for (int32_t i = 0; i < s->batch.num_logits; i++) {
		int32_t at = s->all_logits ? cairn_nano_row(cuts, i) : i;

		memcpy(s->want + (size_t)i * row, s->got + (size_t)at * row, row * sizeof(float));
	}
	memcpy(s->after, s->now, s->kv_bytes);
}

static inline void close_scene(struct scene *s)
{
	if (s->stream)
		s->impl.stream_destroy(s->stream);
	if (s->dev)
		s->impl.mem_free(s->dev);
	if (s->dev_logits)
		s->impl.mem_free(s->dev_logits);
	if (s->m) {
		cairn_scratch_destroy(s->s);
		cairn_kv_store_destroy(&s->kv, s->m);
	}
	cairn_model_free(s->m);
	close_golden(&s->g);
	free(s->want);
	free(s->past);
}

/* Cuts at the given rows, all rows in their places. */
static inline struct cairn_nano_cuts cuts_at(const struct scene *s, int k, const int32_t *rows)
{
	struct cairn_nano_cuts c = { .num_batches = k };

	for (int i = 1; i <= k; i++)
		c.row[i] = i == k ? s->batch.num_rows : rows[i - 1];
	for (int i = 1; i <= k; i++)
		c.decode[i] = c.row[i] < s->num_decodes ? c.row[i] : s->num_decodes;
	return c;
}

/*
 * Makes a random plan: some operations whole, all others on random lanes at random times. places: [most];
 * names are those of the graph.
 */
static inline void random_plan(struct cairn_test *t, const struct cairn_op_graph *g, int k, int lanes,
			       struct cairn_nano_plan *plan, struct cairn_nano_place *places, int most)
{
	*plan = (struct cairn_nano_plan){ .num_batches = k, .num_lanes = lanes, .places = places };
	for (int32_t o = 0; o < g->num_ops; o++) {
		const struct cairn_graph_op *op = &g->ops[o];
		int must = op->kind == CAIRN_OP_ATTN || op->kind == CAIRN_OP_MLA ||
			   op->kind == CAIRN_OP_KV_APPEND || op->kind == CAIRN_OP_MLA_APPEND;
		int whole = op->kind == CAIRN_OP_MOE || (!must && cairn_rand(t) % 8 == 0), known = 0;

		if (op->layer < 0)
			continue;
		for (int i = 0; i < plan->num_places; i++)
			known |= !strcmp(places[i].op, strrchr(op->name, '.') + 1);
		for (int i = whole ? -1 : 0; i < (whole ? 0 : k) && !known && plan->num_places < most; i++)
			places[plan->num_places++] = (struct cairn_nano_place){
				.op = strrchr(op->name, '.') + 1, .batch = i,
				.lane = (int32_t)(cairn_rand(t) % (uint64_t)lanes),
				.start = (double)(cairn_rand(t) % 1000) / 500,
			};
	}
}

/* Gives all lanes but the first parts of the device and priorities; only the latter if CTAs of moe wait. */
static inline void random_parts(struct cairn_test *t, const struct cairn_op_graph *g,
				struct cairn_nano_plan *plan)
{
	static const int32_t sms[] = { 0, 16, -16, 40, -40 };
	int waits = 0;

	for (int32_t o = 0; o < g->num_ops; o++)
		waits |= g->ops[o].kind == CAIRN_OP_MOE;
	for (int32_t l = 1; l < plan->num_lanes; l++)
		plan->lanes[l] = (struct cairn_nano_lane){
			.sms = waits ? 0 : sms[cairn_rand(t) % ARRAY_SIZE(sms)],
			.priority = (int32_t)(cairn_rand(t) % 2),
		};
}

/* Captures a pass with these cuts. */
static inline int capture_scene(struct scene *s, struct cairn_nano *n, const struct cairn_nano_cuts *cuts,
				void **graph)
{
	struct cairn_nano_pass pass;
	int moved, ret, end;

	CAIRN_TRY(split_scene(s, cuts, &pass));
	CAIRN_TRY(cairn_nano_reserve(n, &s->kv, &pass, s->stream, &moved));
	CAIRN_TRY(s->impl.graph_begin(s->stream));
	ret = cairn_nano_forward(n, &s->kv, &pass, s->stream);
	end = s->impl.graph_end(s->stream, graph);
	return ret ? ret : end;
}

/* Replays a graph with the arrays of the scene as it is now. Returns what differs. */
static inline int64_t replay_scene(struct scene *s, void *graph, const struct cairn_nano_cuts *cuts)
{
	struct cairn_nano_pass pass;

	CAIRN_TRY(scene_reset(s));
	CAIRN_TRY(split_scene(s, cuts, &pass));
	CAIRN_TRY(s->impl.graph_launch(graph, s->stream));
	return compare_scene(s, cuts);
}

#endif
