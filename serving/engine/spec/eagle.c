// SPDX-License-Identifier: Apache-2.0
/*
 * eagle - drafts by an EAGLE-3 head (eagle.h)
 *
 * With n tokens, the target has features of places 0 .. n - 2. Place i takes token i + 1 and gives a draft of
 * token i + 2:
 *
 *   pass 0      the places up to n - 2 that are not computed yet; after the last one, draft 0
 *   pass j      place n - 2 + j, from draft j - 1 and the state that pass j - 1 gave; then draft j
 *
 * The host reads the results of a pass before it forms the next one.
 */
#include "serving/engine/spec/eagle.h"

#include <stdlib.h>
#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "serving/engine/speculate.h"
#include "serving/engine/spec/spec_tree.h"
#include "serving/kv/kv_pool.h"

#define FEW_ROWS	(CAIRN_MAX_DRAFTS + 2)

struct state {
	uint64_t request;
	int32_t index, kv;		/* kv: handle in the pool; -1: the entry is free */
	int32_t computed;		/* places, from the target's features */
	int64_t used;			/* number of the last call with this sequence */
};

struct entry {
	struct state *state;		/* NULL: no drafts in this call */
	int32_t result;			/* number of its result in the last pass; -1: none */
};

/* Index arrays of a pass, in one block of host memory and one of the device. */
struct arrays {
	int32_t *ids, *positions;			/* [max_rows] */
	int32_t *gather;				/* [2 * max_rows]: halves of features, or states */
	int32_t *qo_indptr, *kv_indptr;			/* [max_batch + 1] */
	int32_t *last_page_len, *last_rows, *zeros;	/* [max_batch] */
	int32_t *kv_indices;				/* last array */
};

struct cairn_eagle {
	struct cairn_eagle_head *head;
	const struct cairn_impl *impl;
	const struct cairn_worker *worker;
	struct cairn_worker_options opt;
	struct cairn_kv_pool *pool;
	struct cairn_kv_store kv;		/* of the head's layer */
	int dtype;
	int32_t vocab, branches, k;		/* k: results of each draw, at most the vocabulary */
	struct state *states;			/* [max_batch] */
	struct entry *entries;			/* [max_batch] */
	int32_t *top;				/* [max_batch, k], of the last pass, on the host */
	int32_t (*likely)[CAIRN_MAX_DRAFTS][CAIRN_MAX_BRANCHES];	/* [max_batch], the target's tokens */
	int64_t calls;
	struct arrays host, dev;
	char *host_block, *dev_block;
	char *rows, *next;			/* states: [max_rows, hidden], [max_batch, hidden] */
	float *logits, *values;			/* [max_batch, vocab], [max_batch, k] */
	int32_t *top_dev;
	/* the pass being built */
	int32_t num_rows, batch, num_last, max_qo_len, max_len;
};

#define TABLE(e, fn, ...) CAIRN_TABLE((e)->impl, fn, __VA_ARGS__)

/* ---- memory ---- */

static size_t lay_out(const struct cairn_eagle *e, struct arrays *a, char *base)
{
	size_t rows = (size_t)e->opt.max_rows, batch = (size_t)e->opt.max_batch;
	size_t pages = (size_t)((e->opt.max_context + e->opt.page_size - 1) / e->opt.page_size);
	const struct { int32_t **at; size_t num; } parts[] = {
		{ &a->ids, rows }, { &a->positions, rows }, { &a->gather, 2 * rows },
		{ &a->qo_indptr, batch + 1 }, { &a->kv_indptr, batch + 1 },
		{ &a->last_page_len, batch }, { &a->last_rows, batch },
		{ &a->zeros, batch }, { &a->kv_indices, batch * pages },
	};
	size_t used = 0;

	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		*parts[i].at = (int32_t *)(base + used);
		used += (parts[i].num * sizeof(int32_t) + 15) / 16 * 16;
	}
	return used;
}

static int device_alloc(const struct cairn_eagle *e, size_t bytes, void *out)
{
	void *p;

	CAIRN_TRY(TABLE(e, mem_alloc, &p, bytes));
	memcpy(out, &p, sizeof(p));
	return TABLE(e, mem_set, p, 0, bytes, NULL);
}

static int create_memory(struct cairn_eagle *e)
{
	const struct cairn_model_config *c = cairn_eagle_head_config(e->head);
	size_t batch = (size_t)e->opt.max_batch, state = (size_t)c->hidden_size * cairn_dtype_bytes(e->dtype);
	size_t half = (size_t)e->opt.num_pages * (size_t)e->opt.page_size *
		      cairn_eagle_head_key_bytes(e->head);
	size_t block = lay_out(e, &e->host, NULL);

	e->states = calloc(batch, sizeof(*e->states));
	e->entries = calloc(batch, sizeof(*e->entries));
	e->top = calloc(batch * (size_t)e->k, sizeof(*e->top));
	e->likely = calloc(batch, sizeof(*e->likely));
	e->host_block = calloc(1, block);
	if (!e->states || !e->entries || !e->top || !e->likely || !e->host_block)
		return cairn_error(ENOMEM, "eagle: no memory for %d sequences", e->opt.max_batch);
	for (size_t i = 0; i < batch; i++)
		e->states[i].kv = -1;
	lay_out(e, &e->host, e->host_block);
	e->kv = (struct cairn_kv_store){ .layer_bytes = 2 * half, .v_offset = half,
					 .num_pages = e->opt.num_pages, .page_size = e->opt.page_size };
	CAIRN_TRY(device_alloc(e, 2 * half, &e->kv.base));
	CAIRN_TRY(device_alloc(e, block, &e->dev_block));
	lay_out(e, &e->dev, e->dev_block);
	CAIRN_TRY(device_alloc(e, (size_t)e->opt.max_rows * state, &e->rows));
	CAIRN_TRY(device_alloc(e, batch * state, &e->next));
	CAIRN_TRY(device_alloc(e, batch * (size_t)e->vocab * sizeof(*e->logits), &e->logits));
	CAIRN_TRY(device_alloc(e, batch * (size_t)(e->k + 1) * sizeof(*e->values), &e->values));
	CAIRN_TRY(device_alloc(e, batch * (size_t)e->k * sizeof(*e->top_dev), &e->top_dev));
	return cairn_eagle_head_reserve(e->head, e->opt.max_rows, e->opt.max_batch);
}

int cairn_eagle_create(struct cairn_eagle **out, struct cairn_eagle_head *head,
		       const struct cairn_worker *worker, const struct cairn_worker_options *options,
		       int32_t branches)
{
	const struct cairn_model_config *c = cairn_eagle_head_config(head);
	struct cairn_eagle *e = calloc(1, sizeof(*e));
	int ret;

	if (!e)
		return cairn_error(ENOMEM, "eagle: no memory");
	e->head = head;
	e->worker = worker;
	e->impl = cairn_eagle_head_impl(head);
	e->dtype = cairn_eagle_head_dtype(head);
	e->opt = *options;
	if (e->opt.max_context > c->max_position_embeddings)
		e->opt.max_context = c->max_position_embeddings;
	e->vocab = c->draft_vocab_size;
	e->branches = branches;
	e->k = branches < e->vocab ? branches : e->vocab;
	ret = e->impl->logprobs && e->impl->kv_append && e->impl->attn_paged ? 0 :
	      cairn_error(EOPNOTSUPP, "eagle: %s lacks logprobs, kv_append or attn_paged", e->impl->name);
	if (!ret)
		ret = cairn_kv_pool_create(&e->pool, e->opt.num_pages, e->opt.page_size, e->opt.max_batch);
	if (!ret)
		ret = create_memory(e);
	if (ret) {
		cairn_eagle_destroy(e);
		return ret;
	}
	*out = e;
	return 0;
}

void cairn_eagle_destroy(struct cairn_eagle *e)
{
	void *const memory[] = {
		e ? e->kv.base : NULL, e ? e->dev_block : NULL, e ? e->rows : NULL, e ? e->next : NULL,
		e ? e->logits : NULL, e ? e->values : NULL, e ? e->top_dev : NULL,
	};

	if (!e)
		return;
	for (size_t i = 0; i < sizeof(memory) / sizeof(memory[0]); i++) {
		if (memory[i])
			e->impl->mem_free(memory[i]);
	}
	cairn_kv_pool_destroy(e->pool);
	free(e->states);
	free(e->entries);
	free(e->top);
	free(e->likely);
	free(e->host_block);
	free(e);
}

/* ---- sequences ---- */

static void release(struct cairn_eagle *e, struct state *s)
{
	cairn_kv_pool_close(e->pool, s->kv);
	s->kv = -1;
}

static struct state *find(struct cairn_eagle *e, uint64_t request, int32_t index)
{
	for (int32_t i = 0; i < e->opt.max_batch; i++) {
		if (e->states[i].kv >= 0 && e->states[i].request == request && e->states[i].index == index)
			return &e->states[i];
	}
	return NULL;
}

void cairn_eagle_end(struct cairn_eagle *e, uint64_t request, int32_t index)
{
	struct state *s = find(e, request, index);

	if (s)
		release(e, s);
}

/* Returns the sequence that was not used for the longest time and is not in this call, or NULL. */
static struct state *oldest(struct cairn_eagle *e)
{
	struct state *s = NULL;

	for (int32_t i = 0; i < e->opt.max_batch; i++) {
		struct state *other = &e->states[i];

		if (other->kv >= 0 && other->used < e->calls && (!s || other->used < s->used))
			s = other;
	}
	return s;
}

static int open(struct cairn_eagle *e, const struct cairn_sched_draft *p, struct state **out)
{
	struct state *s = NULL;

	for (int32_t i = 0; i < e->opt.max_batch && !s; i++)
		s = e->states[i].kv < 0 ? &e->states[i] : NULL;
	if (!s) {
		s = oldest(e);
		if (!s)
			return 0;
		release(e, s);
	}
	*s = (struct state){ .request = p->request, .index = p->index, .kv = -1 };
	CAIRN_TRY(cairn_kv_pool_open(e->pool, &s->kv));
	*out = s;
	return 0;
}

/* Cuts off the places that were drafts, and makes room for `len`. *fits: 0 if there are no pages. */
static int resize(struct cairn_eagle *e, struct state *s, int32_t len, int *fits)
{
	int ret;

	CAIRN_TRY(cairn_kv_pool_resize(e->pool, s->kv, s->computed, NULL));
	while ((ret = cairn_kv_pool_resize(e->pool, s->kv, len, NULL)) == -ENOSPC) {
		struct state *old = oldest(e);

		if (!old)
			break;
		release(e, old);
	}
	*fits = !ret;
	return ret == -ENOSPC ? 0 : ret;
}

/* Finds or makes the state of an entry. Without one the entry gets no drafts. */
static int prepare(struct cairn_eagle *e, const struct cairn_sched_draft *p, struct state **out)
{
	struct state *s = p->room > 0 ? find(e, p->request, p->index) : NULL;
	int32_t len = p->num_tokens - 1 + p->depth - 1;
	int fits = 0;

	*out = NULL;
	if (p->room < 1 || p->num_tokens < 2 || len > e->opt.max_context)
		return 0;
	if (!s)
		CAIRN_TRY(open(e, p, &s));
	if (!s)
		return 0;
	s->used = e->calls;
	if (s->computed > p->num_tokens - 2)	/* the same tokens again: their last place is due */
		s->computed = p->num_tokens - 2;
	CAIRN_TRY(resize(e, s, len, &fits));
	*out = fits ? s : NULL;
	return 0;
}

/* ---- passes ---- */

static void begin(struct cairn_eagle *e)
{
	e->num_rows = e->batch = e->num_last = e->max_qo_len = e->max_len = 0;
	e->host.qo_indptr[0] = e->host.kv_indptr[0] = 0;
}

/* Adds the places first .. first + num - 1 of a sequence, whose rows and gather the caller has set. */
static void add(struct cairn_eagle *e, const struct state *s, int32_t first, int32_t num, int wants)
{
	struct arrays *a = &e->host;
	int32_t len = first + num, size = e->opt.page_size, pages = (len + size - 1) / size, n;
	const int32_t *list = cairn_kv_pool_pages(e->pool, s->kv, &n);
	int32_t used = a->kv_indptr[e->batch];

	memcpy(a->kv_indices + used, list, (size_t)pages * sizeof(*list));
	for (int32_t i = 0; i < num; i++)
		a->positions[e->num_rows + i] = first + i;
	a->last_page_len[e->batch] = (len - 1) % size + 1;
	e->num_rows += num;
	e->batch++;
	a->qo_indptr[e->batch] = e->num_rows;
	a->kv_indptr[e->batch] = used + pages;
	e->max_qo_len = num > e->max_qo_len ? num : e->max_qo_len;
	e->max_len = len > e->max_len ? len : e->max_len;
	if (wants)
		a->last_rows[e->num_last++] = e->num_rows - 1;
}

/* Gathers the states of all rows from a table of pieces; pieces: 2 for halves of features, 1 for states. */
static int gather(const struct cairn_eagle *e, const char *table, int32_t table_rows, int32_t pieces,
		  void *stream)
{
	struct cairn_embedding_args args = {
		.size = sizeof(args), .out = e->rows, .table = table, .ids = e->dev.gather,
		.rows = pieces * e->num_rows, .dim = cairn_eagle_head_config(e->head)->hidden_size / pieces,
		.vocab = table_rows, .dtype = e->dtype,
	};

	return TABLE(e, embedding, &args, stream);
}

/* Runs the pass and reads the likely tokens of its results into top. */
static int run(struct cairn_eagle *e, const char *table, int32_t table_rows, int32_t pieces)
{
	void *stream = cairn_worker_stream(e->worker);
	char *end = (char *)(e->host.kv_indices + e->host.kv_indptr[e->batch]);
	const size_t used = (size_t)(end - e->host_block);
	struct cairn_eagle_pass pass = {
		.ids = e->dev.ids, .positions = e->dev.positions, .states = e->rows,
		.qo_indptr = e->dev.qo_indptr, .last_rows = e->dev.last_rows, .logits = e->logits,
		.next = e->next, .num_rows = e->num_rows, .max_qo_len = e->max_qo_len,
		.num_last = e->num_last,
		.kv = { .k_pages = e->kv.base, .v_pages = e->kv.base + e->kv.v_offset,
			.indptr = e->dev.kv_indptr, .indices = e->dev.kv_indices,
			.last_page_len = e->dev.last_page_len, .num_pages = e->kv.num_pages,
			.page_size = e->kv.page_size, .batch = e->batch, .max_len = e->max_len },
	};
	struct cairn_logprobs_args likely = {
		.size = sizeof(likely), .chosen = e->values + (size_t)e->opt.max_batch * (size_t)e->k,
		.top_ids = e->top_dev, .top = e->values, .logits = e->logits, .tokens = e->dev.zeros,
		.rows = e->num_last, .vocab = e->vocab, .k = e->k,
	};

	CAIRN_TRY(TABLE(e, mem_copy, e->dev_block, e->host_block, used, CAIRN_COPY_TO_DEVICE, stream));
	CAIRN_TRY(gather(e, table, table_rows, pieces, stream));
	CAIRN_TRY(cairn_eagle_head_run(e->head, &pass, stream));
	if (e->num_last) {
		CAIRN_TRY(TABLE(e, logprobs, &likely, stream));
		CAIRN_TRY(TABLE(e, mem_copy, e->top, e->top_dev,
				(size_t)e->num_last * (size_t)e->k * sizeof(*e->top), CAIRN_COPY_TO_HOST,
				stream));
	}
	return TABLE(e, stream_sync, stream);
}

/* Pass 0: the places that the target has features of. */
static int catch_up(struct cairn_eagle *e, struct cairn_kv_pool *pool, const struct cairn_sched_draft *p,
		    int32_t num, int *caught_up)
{
	const struct cairn_kv_store *f = cairn_worker_features(e->worker);
	const int32_t size = f->page_size, slots = f->num_pages * size;
	struct arrays *a = &e->host;

	begin(e);
	for (int32_t i = 0; i < num; i++) {
		struct state *s = e->entries[i].state;
		int32_t rest = s ? p[i].num_tokens - 1 - s->computed : 0, n;
		int32_t room = e->opt.max_rows - e->num_rows;
		int32_t rows = rest < room ? rest : room;
		const int32_t *pages = rows > 0 ? cairn_kv_pool_pages(pool, p[i].kv, &n) : NULL;

		e->entries[i].result = -1;
		if (rows < 1)
			continue;
		*caught_up &= rest <= FEW_ROWS;
		for (int32_t k = 0; k < rows; k++) {
			int32_t place = s->computed + k, slot = pages[place / size] * size + place % size;

			a->ids[e->num_rows + k] = p[i].tokens[place + 1];
			a->gather[2 * (e->num_rows + k)] = slot;
			a->gather[2 * (e->num_rows + k) + 1] = slots + slot;
		}
		if (rows == rest)
			e->entries[i].result = e->num_last;
		add(e, s, s->computed, rows, rows == rest);
		s->computed += rows;
	}
	return e->num_rows ? run(e, f->base, 2 * slots, 2) : 0;
}

/* Takes draft j of the entries that have results; the first of the likely tokens continues the chain. */
static void take(struct cairn_eagle *e, struct cairn_sched_draft *p, int32_t num, int32_t j)
{
	for (int32_t i = 0; i < num; i++) {
		const int32_t *top = e->top + (size_t)(e->entries[i].result < 0 ? 0 : e->entries[i].result) *
			(size_t)e->k;

		if (e->entries[i].result < 0)
			continue;
		for (int32_t k = 0; k < CAIRN_MAX_BRANCHES; k++)
			e->likely[i][j][k] = k < e->k ? cairn_eagle_head_token(e->head, top[k]) : -1;
		if (e->likely[i][j][0] >= 0)
			p[i].drafts[p[i].num++] = e->likely[i][j][0];
		else
			e->entries[i].result = -1;
	}
}

/* Pass j: one place of each sequence that still has room, from the state that the pass before gave. */
static int go_on(struct cairn_eagle *e, const struct cairn_sched_draft *p, int32_t num, int32_t j)
{
	struct arrays *a = &e->host;

	begin(e);
	for (int32_t i = 0; i < num; i++) {
		struct entry *x = &e->entries[i];

		if (x->result < 0 || p[i].depth <= j) {
			x->result = -1;
			continue;
		}
		a->ids[e->num_rows] = p[i].drafts[j - 1];
		a->gather[e->num_rows] = x->result;
		x->result = e->num_last;
		add(e, x->state, p[i].num_tokens - 2 + j, 1, 1);
	}
	return e->num_rows ? run(e, e->next, e->opt.max_batch, 1) : 0;
}

/* Adds the other likely tokens beside each draft of the chain. */
static void add_branches(const struct cairn_eagle *e, int32_t i, struct cairn_sched_draft *p)
{
	struct cairn_spec_tree t = {
		.ids = p->drafts, .parents = p->parents, .num = p->num, .room = p->room,
		.branches = e->branches,
	};

	for (int32_t j = 0; j < p->num; j++) {
		for (int32_t k = 0; k < e->k; k++) {
			if (e->likely[i][j][k] >= 0)
				cairn_spec_tree_add(&t, j, e->likely[i][j][k]);
		}
	}
	p->num = t.num;
}

int cairn_eagle_propose(struct cairn_eagle *e, struct cairn_kv_pool *pool, struct cairn_sched_draft *p,
			int32_t num, int *caught_up)
{
	e->calls++;
	*caught_up = 1;
	for (int32_t i = 0; i < num; i++) {
		p[i].num = 0;
		CAIRN_TRY(prepare(e, &p[i], &e->entries[i].state));
	}
	CAIRN_TRY(catch_up(e, pool, p, num, caught_up));
	take(e, p, num, 0);
	for (int32_t j = 1; e->num_last; j++) {
		CAIRN_TRY(go_on(e, p, num, j));
		if (e->num_last)
			take(e, p, num, j);
	}
	for (int32_t i = 0; e->branches > 1 && i < num; i++)
		add_branches(e, i, &p[i]);
	return 0;
}
