// SPDX-License-Identifier: Apache-2.0
/*
 * worker_context - passes whose rows ranks share out (context parallelism), beside others
 *
 * A pass with many rows is limited by computation, and ranks that share its rows exchange fewer bytes than
 * ranks that share the weights. A decoding pass is limited by reading weights, of which ranks of tensor
 * parallelism read a part each. With options.context a rank has both its share of the weights and the whole
 * model, and takes the one or the other for each pass. Both use the same cache, in which the rank has the
 * keys of its heads, or all latents.
 *
 * If the cache of each rank has all keys, every rank would read all of them in every decoding pass. From a
 * number of keys on that outweighs two exchanges a layer, and rank r attends only to the pages j of a request
 * with j mod ranks = r (ranks_pages.c). With options.stripes, it holds no pages but its own
 * (ranks_stripes.c).
 *
 * All ranks choose in the same way, from what the plan of the pass says.
 */
#include "serving/engine/worker/worker_impl.h"

struct cairn_model *worker_context_model(const struct cairn_worker *w)
{
	return w->opt.context ? w->opt.context : w->model->context_ranks > 1 ? w->model : NULL;
}

int worker_has_all_keys(const struct cairn_worker *w)
{
	const struct cairn_model *c = worker_context_model(w);

	return w->opt.context ? c->config.latent.kv_lora_rank > 0 : c && c->exchange != CAIRN_EXCHANGE_HEADS;
}

static size_t lay_out(const struct cairn_worker *w, struct page_arrays *a, char *base)
{
	const size_t batch = (size_t)w->opt.max_batch;
	const size_t pages = (size_t)((w->opt.max_context + w->opt.page_size - 1) / w->opt.page_size);
	char *at = base;

	a->indptr = worker_carve(&at, (batch + 1) * sizeof(*a->indptr));
	a->last = worker_carve(&at, batch * sizeof(*a->last));
	a->indices = worker_carve(&at, batch * pages * sizeof(*a->indices));
	return (size_t)(at - base);
}

static int create_pages(struct cairn_worker *w)
{
	const size_t bytes = lay_out(w, &w->pages_dev, NULL);
	void *p;

	CAIRN_TRY(TABLE(w, mem_alloc, &p, bytes));
	w->pages_dev_block = p;
	lay_out(w, &w->pages_dev, p);
	for (int i = 0; i < CAIRN_WORKER_FLIGHTS; i++) {
		CAIRN_TRY(worker_host_alloc(w, bytes, &p));
		w->flights[i].pages_block = p;
		lay_out(w, &w->flights[i].pages, p);
	}
	w->batch_pages = (struct cairn_batch_pages){
		.indptr = w->pages_dev.indptr, .indices = w->pages_dev.indices,
		.last_page_len = w->pages_dev.last, .whole = worker_context_model(w),
	};
	return 0;
}

int worker_context_create(struct cairn_worker *w)
{
	const struct cairn_model *m = w->model, *c = w->opt.context;

	if (!w->opt.context_rows)
		w->opt.context_rows = (w->opt.max_rows + 1) / 2;
	if (!w->opt.context_keys)
		w->opt.context_keys = CAIRN_CONTEXT_KEYS;
	CAIRN_TRY(worker_stripes_create(w));
	if (worker_has_all_keys(w) && !w->by_steps && forward_pages_supported(m, worker_context_model(w)))
		CAIRN_TRY(create_pages(w));
	if (!c)
		return 0;
	if (w->by_steps)
		return cairn_error(EOPNOTSUPP, "context: %s has no operation list for this model",
				   w->impl->name);
	if (w->opt.trees || w->opt.nano || w->opt.slices || w->opt.attention || w->opt.taps)
		return cairn_error(EINVAL, "context: not with trees, nano, slices, attention and taps");
	if (c->context_ranks != m->ranks || cairn_model_key_bytes(c) != cairn_model_key_bytes(m))
		return cairn_error(EINVAL, "context: %d ranks would have other keys than those of the model, "
				   "%d ranks", c->context_ranks, m->ranks);
	return cairn_scratch_create(&w->context_scratch, c, w->opt.max_rows, w->opt.max_batch);
}

void worker_context_destroy(struct cairn_worker *w)
{
	cairn_scratch_destroy(w->context_scratch);
	if (w->pages_dev_block)
		w->impl->mem_free(w->pages_dev_block);
	for (int i = 0; i < CAIRN_WORKER_FLIGHTS; i++) {
		worker_host_free(w, w->flights[i].pages_block);
		worker_lists_free(w, &w->flights[i].ring);
	}
	worker_stripes_destroy(w);
}

int worker_lists_reserve(struct cairn_worker *w, struct pass_lists *l, size_t need)
{
	void *p;

	if (need <= l->room)
		return 0;
	CAIRN_TRY(TABLE(w, stream_sync, w->stream));	/* an earlier pass may read the block */
	worker_lists_free(w, l);
	CAIRN_TRY(worker_host_alloc(w, need * sizeof(*l->host), &p));
	l->host = p;
	CAIRN_TRY(TABLE(w, mem_alloc, &p, need * sizeof(*l->dev)));
	l->dev = p;
	l->room = need;
	return 0;
}

void worker_lists_free(struct cairn_worker *w, struct pass_lists *l)
{
	worker_host_free(w, l->host);
	if (l->dev)
		w->impl->mem_free(l->dev);
	*l = (struct pass_lists){ 0 };
}

struct cairn_model *worker_pass_model(const struct cairn_worker *w)
{
	return w->shares ? w->opt.context : w->model;
}

struct cairn_scratch *worker_pass_scratch(const struct cairn_worker *w)
{
	return w->shares ? w->context_scratch : w->scratch;
}

int worker_context_prepare(struct cairn_worker *w)
{
	const struct cairn_model *c = worker_context_model(w);
	const int rings = c && c->exchange != CAIRN_EXCHANGE_HEADS;

	CAIRN_TRY(worker_stripes_prepare(w));
	/* rows of chained parts see keys that other ranks would compute in the same pass */
	if (w->chained || w->batch.num_rows < w->opt.context_rows || (!rings && !w->opt.context))
		return 0;
	w->shares = w->opt.context != NULL;
	w->stats.context_passes++;
	return rings ? worker_ring_prepare(w) : 0;
}

/* Returns how many keys the rows of the pass see, or -1 if a request has several rows. */
static int64_t count_keys(const struct cairn_worker *w)
{
	const struct arrays *a = &w->flight->host;
	int64_t keys = 0;

	for (int32_t b = 0; b < w->batch.batch; b++) {
		const int32_t pages = a->kv_indptr[b + 1] - a->kv_indptr[b];

		if (a->qo_indptr[b + 1] - a->qo_indptr[b] > 1)
			return -1;
		keys += pages ? (int64_t)(pages - 1) * w->opt.page_size + a->last_page_len[b] : 0;
	}
	return keys;
}

int worker_shares_pages(const struct cairn_worker *w)
{
	const int fused = w->opt.decode == CAIRN_DECODE_GRAPH || w->opt.decode == CAIRN_DECODE_PERSISTENT;

	return w->opt.stripes || (w->pages_dev_block && !w->opt.repeatable && !fused &&
				  count_keys(w) >= w->opt.context_keys);
}

int worker_pages_prepare(struct cairn_worker *w)
{
	const struct arrays *a = &w->flight->host;
	const struct page_arrays *to = &w->flight->pages;
	int32_t used = 0;

	if (!worker_shares_pages(w))
		return 0;
	to->indptr[0] = 0;
	for (int32_t b = 0; b < w->batch.batch; b++) {
		const int32_t *pages = a->kv_indices + a->kv_indptr[b];
		const int32_t num = a->kv_indptr[b + 1] - a->kv_indptr[b];
		const int last_is_mine = num && worker_stripes_holds(w, num - 1, pages[num - 1]);

		for (int32_t j = 0; j < num; j++)
			if (worker_stripes_holds(w, j, pages[j]))
				to->indices[used++] = worker_stripes_place(w, pages[j]);
		to->indptr[b + 1] = used;
		to->last[b] = last_is_mine ? a->last_page_len[b] : w->opt.page_size;
	}
	worker_stripes_append(w);
	w->batch.pages = &w->batch_pages;
	w->stats.pages_passes++;
	return TABLE(w, mem_copy, w->pages_dev_block, w->flight->pages_block,
		     (size_t)((char *)(to->indices + used) - w->flight->pages_block), CAIRN_COPY_TO_DEVICE,
		     w->stream);
}
