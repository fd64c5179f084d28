/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sliced_test - passes through slices that have been written and read again, with a local attention worker
 *
 * At each cut, all activations that the cut does not save become NaN: a pass can only use what is saved, what
 * was sent, and the result of the attention. Queries, keys and values that were sent stay if the merge
 * attends to own keys.
 *
 * Include conformance/harness.h first.
 */
#ifndef CAIRN_SLICED_TEST_H
#define CAIRN_SLICED_TEST_H

#include <stdio.h>

#include "primitives/base/dtype.h"
#include "serving/nano/nano_test.h"
#include "serving/slices/attn_local.h"
#include "serving/slices/sliced_impl.h"

#define MOST_STRIPES	3

struct past_arrays {
	int32_t qo_indptr[SCENE_ROWS + 1], indptr[SCENE_ROWS + 1], last_page_len[SCENE_ROWS];
	int32_t indices[16 * SCENE_ROWS], num_lists;
};

struct all_past {
	struct past_arrays of[MOST_STRIPES];
	int32_t key_pos[SCENE_PAGES * SCENE_PAGE];
};

struct slicer {
	const struct cairn_model *m;
	struct cairn_scratch *scratch;
	struct cairn_slices *slices;
	struct cairn_sliced *sliced;
	struct cairn_attn_local *local;
	struct cairn_attn_link link;		/* the worker's, with poison before each result */
	struct all_past host, *dev;
	void *room;				/* at dev */
	/* for mutants: bend what passes the link; may be NULL */
	void (*bend_rows)(struct slicer *x, struct cairn_attn_rows *rows, int of_kv);
	int (*bend_result)(struct slicer *x, void *o, float *lse, void *stream);
	void (*bend_past)(struct all_past *past);
	int32_t num_rows, max_qo_len;		/* of the last pass */
	/* with one stripe, the link has memory for the states (attn_link.h) */
	void *states_o, *states_lse;
};

static inline int slicer_send(struct slicer *x, const struct cairn_attn_rows *rows, int of_kv, void *stream)
{
	const struct cairn_attn_link *to = cairn_attn_local_link(x->local);
	struct cairn_attn_rows bent = *rows;

	if (x->bend_rows)
		x->bend_rows(x, &bent, of_kv);
	return of_kv ? to->send_kv(to->ctx, &bent, stream) : to->send_q(to->ctx, &bent, stream);
}

static inline int slicer_send_q(void *ctx, const struct cairn_attn_rows *rows, void *stream)
{
	return slicer_send(ctx, rows, 0, stream);
}

static inline int slicer_send_kv(void *ctx, const struct cairn_attn_rows *rows, void *stream)
{
	return slicer_send(ctx, rows, 1, stream);
}

/*
 * Returns whether the value at this byte of the activations outlives the cut; *until: where that changes.
 * The saved ones do and, if the merge attends to own keys, what the cut's seam has sent.
 */
static inline int is_saved(const struct slicer *x, int32_t number, int64_t at, int64_t *until)
{
	const struct cairn_slice *cut = &x->slices->slices[number];
	const struct cairn_seam *seam = &x->slices->seams[number];
	const struct cairn_op_graph *g = x->m->graph;
	const struct cairn_pass_sizes sizes = forward_sizes(x->m, x->scratch->max_rows,
							    x->scratch->max_logits);
	const int sent = x->link.previous && x->max_qo_len == 1 && !cairn_model_is_latent(x->m) ? 2 : 0;

	*until = (int64_t)x->scratch->bytes;
	for (int32_t i = 0; i < cut->num_saves + sent; i++) {
		int32_t value = i < cut->num_saves ? x->slices->saves[cut->first_save + i] :
				i == cut->num_saves ? seam->q : seam->kv;
		const struct cairn_graph_value *v = &g->values[g->values[value].storage];
		int64_t from = x->sliced->buffers.offset[v - g->values];
		int64_t end = from + cairn_value_bytes(v, &sizes);

		if (at >= from && at < end) {
			*until = end;
			return 1;
		}
		if (from > at && from < *until)
			*until = from;
	}
	return 0;
}

static inline int poison(const struct slicer *x, int32_t cut, void *stream)
{
	int64_t until;

	for (int64_t at = 0; at < (int64_t)x->scratch->bytes; at = until)
		if (!is_saved(x, cut, at, &until))
			CAIRN_TRY(x->m->impl->mem_set(x->scratch->base + at, 0xff, (size_t)(until - at),
						      stream));
	return 0;
}

static inline int slicer_receive(void *ctx, int32_t layer, void *o, float *lse, void *stream)
{
	struct slicer *x = ctx;
	const struct cairn_attn_link *to = cairn_attn_local_link(x->local);

	CAIRN_TRY(poison(x, layer, stream));
	CAIRN_TRY(to->receive(to->ctx, layer, o, lse, stream));
	return x->bend_result ? x->bend_result(x, o, lse, stream) : 0;
}

static inline void slicer_states(void *ctx, void **o, float **lse)
{
	const struct slicer *x = ctx;

	*o = x->states_o;
	*lse = x->states_lse;
}

/* Returns 0 or an error. */
static inline int give_states(struct slicer *x)
{
	const size_t rows = 2 * (size_t)x->scratch->max_rows;

	x->link.states = slicer_states;
	CAIRN_TRY(x->m->impl->mem_alloc(&x->states_lse, rows * sizeof(float) *
					(size_t)x->m->config.num_attention_heads));
	return x->m->impl->mem_alloc(&x->states_o, rows * (size_t)x->m->dims[CAIRN_D_ATTN] *
				     cairn_dtype_bytes(x->m->dtype));
}

static inline struct cairn_pass_sizes slice_sizes(const struct cairn_model *m)
{
	struct cairn_pass_sizes sizes = forward_sizes(m, 1, 1);

	sizes.element[CAIRN_ROLE_INDEX] = sizeof(int32_t);
	return sizes;
}

/* Makes the slices, writes them, and reads them again. */
static inline int written_slices(struct cairn_slices **out, const struct cairn_model *m)
{
	const struct cairn_pass_sizes sizes = slice_sizes(m);
	struct cairn_slices *made;
	size_t num_bytes;
	char *text = NULL;
	FILE *file = open_memstream(&text, &num_bytes);
	int ret = file ? cairn_slices_create(&made, m->graph, &sizes) : -ENOMEM;

	if (!ret) {
		ret = cairn_slices_write(made, m->graph, &sizes, file);
		cairn_slices_destroy(made);
	}
	if (file)
		fclose(file);
	if (!ret)
		ret = cairn_slices_read(out, m->graph, &sizes, text, num_bytes, "slices");
	free(text);
	return ret;
}

static inline int open_slicer(struct cairn_test *t, struct slicer *x, const struct cairn_model *m,
			      struct cairn_scratch *scratch, const struct cairn_kv_store *kv,
			      enum cairn_sliced_form form, int previous)
{
	*x = (struct slicer){ .m = m, .scratch = scratch };
	x->link = (struct cairn_attn_link){ previous, slicer_send_q, slicer_send_kv, slicer_receive, x,
					    NULL };
	if (!EXPECT(t, written_slices(&x->slices, m) == 0) ||
	    !EXPECT(t, cairn_sliced_create(&x->sliced, scratch, x->slices, form) == 0) ||
	    !EXPECT(t, cairn_attn_local_create(&x->local, m, kv, scratch->max_rows, previous) == 0) ||
	    !EXPECT(t, m->impl->mem_alloc(&x->room, sizeof(*x->dev)) == 0) ||
	    (previous == 1 && !EXPECT(t, give_states(x) == 0))) {
		cairn_note(t, "%s", cairn_last_error());
		return -1;
	}
	x->dev = x->room;
	return 0;
}

static inline void close_slicer(struct slicer *x)
{
	if (x->room)
		x->m->impl->mem_free(x->room);
	if (x->states_o)
		x->m->impl->mem_free(x->states_o);
	if (x->states_lse)
		x->m->impl->mem_free(x->states_lse);
	cairn_attn_local_destroy(x->local);
	cairn_sliced_destroy(x->sliced);
	cairn_slices_destroy(x->slices);
}

/* Adds a list of `past` keys for some rows, without the pages of other stripes. */
static inline void add_list(struct past_arrays *p, int32_t rows, int32_t past, const int32_t *pages,
			    int32_t page_size, int32_t stripe, int32_t stripes)
{
	const int32_t i = p->num_lists++;

	p->qo_indptr[i + 1] = p->qo_indptr[i] + rows;
	p->indptr[i + 1] = p->indptr[i];
	p->last_page_len[i] = 0;
	for (int32_t k = 0; k * page_size < past; k++) {
		if (pages[k] % stripes != stripe)
			continue;
		p->indices[p->indptr[i + 1]++] = pages[k];
		p->last_page_len[i] = past - k * page_size < page_size ? past - k * page_size : page_size;
	}
}

/* Lists the `past` keys of the next request; pages: those of the request. */
static inline void add_past(struct slicer *x, int32_t b, int32_t rows, int32_t past, const int32_t *pages,
			    int32_t page_size)
{
	const int32_t stripes = x->link.previous;

	for (int32_t s = 0; s < stripes; s++) {
		struct past_arrays *p = &x->host.of[s];

		if (b == 0)
			p->num_lists = 0;
		for (int32_t i = 0; cairn_model_is_latent(x->m) && i < rows; i++)
			add_list(p, 1, past, pages, page_size, s, stripes);
		if (!cairn_model_is_latent(x->m))
			add_list(p, rows, past, pages, page_size, s, stripes);
	}
	for (int32_t i = 0; i < past; i++)
		x->host.key_pos[pages[i / page_size] * page_size + i % page_size] = i;
}

/* Uploads the lists and makes room for the pass. */
static inline int ready_slicer(struct slicer *x, const struct cairn_batch *b, void *stream)
{
	struct cairn_attn_past past[MOST_STRIPES];
	int moved;

	for (int s = 0; s < x->link.previous; s++) {
		struct past_arrays *p = &x->dev->of[s];

		past[s] = (struct cairn_attn_past){
			p->qo_indptr, p->indptr, p->indices, p->last_page_len,
			x->link.previous > 1 ? x->dev->key_pos : NULL, x->host.of[s].num_lists,
		};
	}
	x->num_rows = b->num_rows;
	x->max_qo_len = b->max_qo_len;
	CAIRN_TRY(x->m->impl->mem_copy(x->dev, &x->host, sizeof(x->host), CAIRN_COPY_TO_DEVICE, stream));
	CAIRN_TRY(x->m->impl->stream_sync(stream));
	CAIRN_TRY(cairn_attn_local_begin(x->local, b, past, stream, &moved));
	return cairn_sliced_reserve(x->sliced, b, &x->link, stream, &moved);
}

static inline void list_scene_past(struct slicer *x, const struct scene *s)
{
	const struct scene_arrays *a = &s->host;

	for (int32_t i = 0; i < s->batch.batch; i++)
		add_past(x, i, a->qo_indptr[i + 1] - a->qo_indptr[i], a->positions[a->qo_indptr[i]],
			 a->kv_indices + a->kv_indptr[i], SCENE_PAGE);
}

/* Runs the scene's pass in slices. Returns how many bytes and rows differ from the sequential pass. */
static inline int64_t run_sliced(struct scene *s, struct slicer *x)
{
	const struct cairn_nano_cuts cuts = cuts_at(s, 1, NULL);

	CAIRN_TRY(scene_reset(s));
	CAIRN_TRY(scene_copy(s, s->dev, &s->host, sizeof(s->host), CAIRN_COPY_TO_DEVICE));
	list_scene_past(x, s);
	if (x->bend_past)
		x->bend_past(&x->host);
	CAIRN_TRY(ready_slicer(x, &s->batch, s->stream));
	CAIRN_TRY(cairn_sliced_forward(x->sliced, &s->batch, &x->link, s->stream));
	CAIRN_TRY(s->impl.stream_sync(s->stream));
	return compare_scene(s, &cuts);
}

#endif
