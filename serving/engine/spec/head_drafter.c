// SPDX-License-Identifier: Apache-2.0
/*
 * head_drafter - drafts by a head of the target model (head_drafter.h)
 *
 * With n tokens, the target has features of places 0 .. n - 2. Place i takes token i + 1 and gives a draft of
 * token i + 2:
 *
 *   pass 0      the places up to n - 2 that are not computed yet; after the last one, draft 0
 *   pass j      place n - 2 + j, from draft j - 1 and the state that pass j - 1 gave; then draft j
 *
 * The host reads the results of a pass before it forms the next one.
 */
#include "serving/engine/spec/head_drafter.h"

#include <stdlib.h>
#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "serving/engine/spec/draft_seqs.h"

struct entry {
	struct cairn_draft_seq *seq;	/* NULL: no drafts in this call */
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

struct cairn_head_drafter {
	struct cairn_draft_head *head;
	const struct cairn_impl *impl;
	const struct cairn_worker *worker;
	struct cairn_worker_options opt;
	struct cairn_draft_seqs seqs;		/* computed: places, from the target's features */
	struct cairn_kv_store kv;		/* of the head's layer */
	int dtype;
	int32_t branches, k;			/* k: results of each draw, at most the vocabulary */
	struct entry *entries;			/* [max_batch] */
	int32_t *top;				/* [max_batch, k], of the last pass, on the host */
	int32_t (*likely)[CAIRN_MAX_DRAFTS][CAIRN_MAX_BRANCHES];	/* [max_batch], the target's tokens */
	struct arrays host, dev;
	char *host_block, *dev_block;
	char *rows, *next;			/* states: [max_rows, hidden], [max_batch, hidden] */
	float *logits, *values;			/* [max_batch, vocab], [max_batch, k] */
	int32_t *top_dev;
	/* the pass being built */
	int32_t num_rows, batch, num_last, max_qo_len, max_len;
};

#define TABLE(d, fn, ...) CAIRN_TABLE((d)->impl, fn, __VA_ARGS__)

/* ---- memory ---- */

static size_t lay_out(const struct cairn_head_drafter *d, struct arrays *a, char *base)
{
	size_t rows = (size_t)d->opt.max_rows, batch = (size_t)d->opt.max_batch;
	size_t pages = (size_t)((d->opt.max_context + d->opt.page_size - 1) / d->opt.page_size);
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

static int device_alloc(const struct cairn_head_drafter *d, size_t bytes, void *out)
{
	void *p;

	CAIRN_TRY(TABLE(d, mem_alloc, &p, bytes));
	memcpy(out, &p, sizeof(p));
	return TABLE(d, mem_set, p, 0, bytes, NULL);
}

static int create_memory(struct cairn_head_drafter *d)
{
	const struct cairn_draft_head *h = d->head;
	size_t batch = (size_t)d->opt.max_batch, state = (size_t)h->hidden * cairn_dtype_bytes(d->dtype);
	size_t keys = (size_t)d->opt.num_pages * (size_t)d->opt.page_size * h->key_bytes;
	size_t block = lay_out(d, &d->host, NULL);

	d->entries = calloc(batch, sizeof(*d->entries));
	d->top = calloc(batch * (size_t)d->k, sizeof(*d->top));
	d->likely = calloc(batch, sizeof(*d->likely));
	d->host_block = calloc(1, block);
	if (!d->entries || !d->top || !d->likely || !d->host_block)
		return cairn_error(ENOMEM, "%s: no memory for %d sequences", h->ops->name, d->opt.max_batch);
	lay_out(d, &d->host, d->host_block);
	d->kv = (struct cairn_kv_store){
		.layer_bytes = h->is_latent ? keys : 2 * keys, .v_offset = h->is_latent ? 0 : keys,
		.num_pages = d->opt.num_pages, .page_size = d->opt.page_size,
	};
	CAIRN_TRY(device_alloc(d, d->kv.layer_bytes, &d->kv.base));
	CAIRN_TRY(device_alloc(d, block, &d->dev_block));
	lay_out(d, &d->dev, d->dev_block);
	CAIRN_TRY(device_alloc(d, (size_t)d->opt.max_rows * state, &d->rows));
	CAIRN_TRY(device_alloc(d, batch * state, &d->next));
	CAIRN_TRY(device_alloc(d, batch * (size_t)h->vocab * sizeof(*d->logits), &d->logits));
	CAIRN_TRY(device_alloc(d, batch * (size_t)(d->k + 1) * sizeof(*d->values), &d->values));
	CAIRN_TRY(device_alloc(d, batch * (size_t)d->k * sizeof(*d->top_dev), &d->top_dev));
	return h->ops->reserve(d->head, d->opt.max_rows, d->opt.max_batch);
}

int cairn_head_drafter_create(struct cairn_head_drafter **out, struct cairn_draft_head *head,
			      const struct cairn_worker *worker, const struct cairn_worker_options *options,
			      int32_t branches)
{
	struct cairn_head_drafter *d = calloc(1, sizeof(*d));
	int ret;

	if (!d)
		return cairn_error(ENOMEM, "%s: no memory", head->ops->name);
	d->head = head;
	d->worker = worker;
	d->impl = head->target->impl;
	d->dtype = head->target->dtype;
	d->opt = *options;
	if (d->opt.max_context > head->max_positions)
		d->opt.max_context = head->max_positions;
	d->branches = branches;
	d->k = branches < head->vocab ? branches : head->vocab;
	ret = d->impl->logprobs ? 0 :
	      cairn_error(EOPNOTSUPP, "%s: %s lacks logprobs", head->ops->name, d->impl->name);
	if (!ret)
		ret = cairn_draft_seqs_create(&d->seqs, d->opt.max_batch, d->opt.num_pages, d->opt.page_size);
	if (!ret)
		ret = create_memory(d);
	if (ret) {
		cairn_head_drafter_destroy(d);
		return ret;
	}
	*out = d;
	return 0;
}

void cairn_head_drafter_destroy(struct cairn_head_drafter *d)
{
	void *const memory[] = {
		d ? d->kv.base : NULL, d ? d->dev_block : NULL, d ? d->rows : NULL, d ? d->next : NULL,
		d ? d->logits : NULL, d ? d->values : NULL, d ? d->top_dev : NULL,
	};

	if (!d)
		return;
	for (size_t i = 0; i < sizeof(memory) / sizeof(memory[0]); i++) {
		if (memory[i])
			d->impl->mem_free(memory[i]);
	}
	cairn_draft_seqs_destroy(&d->seqs);
	free(d->entries);
	free(d->top);
	free(d->likely);
	free(d->host_block);
	free(d);
}

void cairn_head_drafter_end(struct cairn_head_drafter *d, uint64_t request, int32_t index)
{
	cairn_draft_seqs_end(&d->seqs, request, index);
}

/* Finds or opens the sequence of an entry. Without one the entry gets no drafts. */
static int prepare(struct cairn_head_drafter *d, const struct cairn_sched_draft *p,
		   struct cairn_draft_seq **out)
{
	int32_t len = p->num_tokens - 1 + p->depth - 1;
	struct cairn_draft_seq *s;
	int fits = 0;

	*out = NULL;
	if (p->room < 1 || p->num_tokens < 2 || len > d->opt.max_context)
		return 0;
	CAIRN_TRY(cairn_draft_seqs_use(&d->seqs, p->request, p->index, &s));
	if (!s)
		return 0;
	if (s->computed > p->num_tokens - 2)	/* the same tokens again: their last place is due */
		s->computed = p->num_tokens - 2;
	CAIRN_TRY(cairn_draft_seqs_resize(&d->seqs, s, len, &fits));
	*out = fits ? s : NULL;
	return 0;
}

/* ---- passes ---- */

static void begin(struct cairn_head_drafter *d)
{
	d->num_rows = d->batch = d->num_last = d->max_qo_len = d->max_len = 0;
	d->host.qo_indptr[0] = d->host.kv_indptr[0] = 0;
}

/* Adds the places first .. first + num - 1 of a sequence, whose rows and gather the caller has set. */
static void add(struct cairn_head_drafter *d, const struct cairn_draft_seq *s, int32_t first, int32_t num,
		int wants)
{
	struct arrays *a = &d->host;
	int32_t len = first + num, size = d->opt.page_size, pages = (len + size - 1) / size, n;
	const int32_t *list = cairn_kv_pool_pages(d->seqs.pool, s->kv, &n);
	int32_t used = a->kv_indptr[d->batch];

	memcpy(a->kv_indices + used, list, (size_t)pages * sizeof(*list));
	for (int32_t i = 0; i < num; i++)
		a->positions[d->num_rows + i] = first + i;
	a->last_page_len[d->batch] = (len - 1) % size + 1;
	d->num_rows += num;
	d->batch++;
	a->qo_indptr[d->batch] = d->num_rows;
	a->kv_indptr[d->batch] = used + pages;
	d->max_qo_len = num > d->max_qo_len ? num : d->max_qo_len;
	d->max_len = len > d->max_len ? len : d->max_len;
	if (wants)
		a->last_rows[d->num_last++] = d->num_rows - 1;
}

/* Gathers the states of all rows from a table of pieces; pieces: 2 for halves of features, 1 for states. */
static int gather(const struct cairn_head_drafter *d, const char *table, int32_t table_rows, int32_t pieces,
		  void *stream)
{
	struct cairn_embedding_args args = {
		.size = sizeof(args), .out = d->rows, .table = table, .ids = d->dev.gather,
		.rows = pieces * d->num_rows, .dim = d->head->hidden / pieces,
		.vocab = table_rows, .dtype = d->dtype,
	};

	return TABLE(d, embedding, &args, stream);
}

/* Runs the pass and reads the likely tokens of its results into top. */
static int run(struct cairn_head_drafter *d, const char *table, int32_t table_rows, int32_t pieces)
{
	void *stream = cairn_worker_stream(d->worker);
	char *end = (char *)(d->host.kv_indices + d->host.kv_indptr[d->batch]);
	const size_t used = (size_t)(end - d->host_block);
	struct cairn_draft_pass pass = {
		.ids = d->dev.ids, .positions = d->dev.positions, .states = d->rows,
		.qo_indptr = d->dev.qo_indptr, .last_rows = d->dev.last_rows, .logits = d->logits,
		.next = d->next, .num_rows = d->num_rows, .max_qo_len = d->max_qo_len,
		.num_last = d->num_last,
		.kv = { .k_pages = d->kv.base, .v_pages = d->kv.base + d->kv.v_offset,
			.indptr = d->dev.kv_indptr, .indices = d->dev.kv_indices,
			.last_page_len = d->dev.last_page_len, .num_pages = d->kv.num_pages,
			.page_size = d->kv.page_size, .batch = d->batch, .max_len = d->max_len },
	};
	struct cairn_logprobs_args likely = {
		.size = sizeof(likely), .chosen = d->values + (size_t)d->opt.max_batch * (size_t)d->k,
		.top_ids = d->top_dev, .top = d->values, .logits = d->logits, .tokens = d->dev.zeros,
		.rows = d->num_last, .vocab = d->head->vocab, .k = d->k,
	};

	CAIRN_TRY(TABLE(d, mem_copy, d->dev_block, d->host_block, used, CAIRN_COPY_TO_DEVICE, stream));
	CAIRN_TRY(gather(d, table, table_rows, pieces, stream));
	CAIRN_TRY(d->head->ops->run(d->head, &pass, stream));
	if (d->num_last) {
		CAIRN_TRY(TABLE(d, logprobs, &likely, stream));
		CAIRN_TRY(TABLE(d, mem_copy, d->top, d->top_dev,
				(size_t)d->num_last * (size_t)d->k * sizeof(*d->top), CAIRN_COPY_TO_HOST,
				stream));
	}
	return TABLE(d, stream_sync, stream);
}

/* Pass 0: the places that the target has features of. */
static int catch_up(struct cairn_head_drafter *d, struct cairn_kv_pool *pool,
		    const struct cairn_sched_draft *p, int32_t num, int *caught_up)
{
	const struct cairn_kv_store *f = cairn_worker_features(d->worker);
	const int32_t size = f->page_size, slots = f->num_pages * size;
	struct arrays *a = &d->host;

	begin(d);
	for (int32_t i = 0; i < num; i++) {
		struct cairn_draft_seq *s = d->entries[i].seq;
		int32_t rest = s ? p[i].num_tokens - 1 - s->computed : 0, n;
		int32_t room = d->opt.max_rows - d->num_rows;
		int32_t rows = rest < room ? rest : room;
		const int32_t *pages = rows > 0 ? cairn_kv_pool_pages(pool, p[i].kv, &n) : NULL;

		d->entries[i].result = -1;
		if (rows < 1)
			continue;
		*caught_up &= rest <= CAIRN_DRAFT_FEW_ROWS;
		for (int32_t k = 0; k < rows; k++) {
			int32_t place = s->computed + k, slot = pages[place / size] * size + place % size;

			a->ids[d->num_rows + k] = p[i].tokens[place + 1];
			a->gather[2 * (d->num_rows + k)] = slot;
			a->gather[2 * (d->num_rows + k) + 1] = slots + slot;
		}
		if (rows == rest)
			d->entries[i].result = d->num_last;
		add(d, s, s->computed, rows, rows == rest);
		s->computed += rows;
	}
	return d->num_rows ? run(d, f->base, 2 * slots, 2) : 0;
}

/* Takes draft j of the entries that have results; the first of the likely tokens continues the chain. */
static void take(struct cairn_head_drafter *d, struct cairn_sched_draft *p, int32_t num, int32_t j)
{
	for (int32_t i = 0; i < num; i++) {
		const int32_t *top = d->top + (size_t)(d->entries[i].result < 0 ? 0 : d->entries[i].result) *
			(size_t)d->k;

		if (d->entries[i].result < 0)
			continue;
		for (int32_t k = 0; k < CAIRN_MAX_BRANCHES; k++)
			d->likely[i][j][k] = k < d->k ? d->head->ops->token(d->head, top[k]) : -1;
		if (d->likely[i][j][0] >= 0)
			p[i].drafts[p[i].num++] = d->likely[i][j][0];
		else
			d->entries[i].result = -1;
	}
}

/* Pass j: one place of each sequence that still has room, from the state that the pass before gave. */
static int go_on(struct cairn_head_drafter *d, const struct cairn_sched_draft *p, int32_t num, int32_t j)
{
	struct arrays *a = &d->host;

	begin(d);
	for (int32_t i = 0; i < num; i++) {
		struct entry *x = &d->entries[i];

		if (x->result < 0 || p[i].depth <= j) {
			x->result = -1;
			continue;
		}
		a->ids[d->num_rows] = p[i].drafts[j - 1];
		a->gather[d->num_rows] = x->result;
		x->result = d->num_last;
		add(d, x->seq, p[i].num_tokens - 2 + j, 1, 1);
	}
	return d->num_rows ? run(d, d->next, d->opt.max_batch, 1) : 0;
}

int cairn_head_drafter_propose(struct cairn_head_drafter *d, struct cairn_kv_pool *pool,
			       struct cairn_sched_draft *p, int32_t num, int *caught_up)
{
	d->seqs.calls++;
	*caught_up = 1;
	for (int32_t i = 0; i < num; i++) {
		p[i].num = 0;
		CAIRN_TRY(prepare(d, &p[i], &d->entries[i].seq));
	}
	CAIRN_TRY(catch_up(d, pool, p, num, caught_up));
	take(d, p, num, 0);
	for (int32_t j = 1; d->num_last; j++) {
		CAIRN_TRY(go_on(d, p, num, j));
		if (d->num_last)
			take(d, p, num, j);
	}
	for (int32_t i = 0; d->branches > 1 && i < num; i++)
		cairn_draft_branches(&p[i], d->likely[i], d->k, d->head->target->config.vocab_size);
	return 0;
}
