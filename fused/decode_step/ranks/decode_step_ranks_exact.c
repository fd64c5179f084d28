// SPDX-License-Identifier: Apache-2.0
/*
 * decode_step_ranks_exact - the exact values and bounds of one rank: joins the shares of all ranks into the
 * whole model, and asks decode_step
 *
 * The whole model has one block of weights for each layer, and pages with the page ids of the rank that asks.
 * Pools are allocated whole but only the listed keys are touched.
 */
#include "fused/decode_step/ranks/decode_step_ranks_parts.h"

#include <stdlib.h>
#include <string.h>

#include "fused/decode_step/decode_step_parts.h"
#include "fused/decode_step/decode_step_ref.h"
#include "primitives/base/error.h"

#define ELEMENT	sizeof(uint16_t)	/* of f16 and bf16 */

struct whole {
	const struct cairn_decode_step_ranks_args *const *all;
	struct cairn_decode_step_args step;
	int32_t rank, ranks;
	char *weights, *head, *k_pages, *v_pages;
	struct cairn_exact pages[2];	/* of k_pages and v_pages */
};

static const struct cairn_decode_step_args *own(const struct whole *w)
{
	return &w->all[w->rank]->step;
}

#define STEP_AT(name)	offsetof(struct cairn_decode_step_args, name)

/*
 * Appends rows first .. first + rows - 1, of `row` elements, of a layer's weight: those of the first `ranks`
 * ranks, one rank after the other. Returns the end.
 */
static char *join(const struct whole *w, int32_t ranks, char *to, size_t field, int layer, int64_t first,
		  int64_t rows, int64_t row)
{
	size_t bytes = (size_t)(rows * row) * ELEMENT;

	for (int32_t r = 0; r < ranks; r++, to += bytes) {
		const struct cairn_decode_step_args *a = &w->all[r]->step;
		const char *p;

		memcpy(&p, (const char *)a + field, sizeof(p));
		memcpy(to, (const char *)decode_step_weight(a, p, layer) + (size_t)(first * row) * ELEMENT,
		       bytes);
	}
	return to;
}

/* Appends a weight [hidden, columns] whose columns are shared. */
static char *join_columns(const struct whole *w, char *to, size_t field, int layer, int64_t columns)
{
	for (int32_t i = 0; i < own(w)->hidden; i++)
		to = join(w, w->ranks, to, field, layer, i, 1, columns);
	return to;
}

/* Appends w_qkv or b_qkv: the rows of all queries, of all keys, of all values. */
static char *join_qkv(const struct whole *w, char *to, size_t field, int layer, int64_t row)
{
	int64_t q = (int64_t)own(w)->num_qo_heads * own(w)->head_dim;
	int64_t kv = (int64_t)own(w)->num_kv_heads * own(w)->head_dim;

	to = join(w, w->ranks, to, field, layer, 0, q, row);
	to = join(w, w->ranks, to, field, layer, q, kv, row);
	return join(w, w->ranks, to, field, layer, q + kv, kv, row);
}

/* Writes the weights of a layer at `to`, and their addresses into *s. Returns the end. */
static char *join_layer(const struct whole *w, struct cairn_decode_step_args *s, char *to, int layer)
{
	const struct cairn_decode_step_args *a = own(w);
	int64_t hidden = a->hidden, inter = a->intermediate;

	s->attn_norm = to;
	to = join(w, 1, to, STEP_AT(attn_norm), layer, 0, 1, hidden);
	s->w_qkv = to;
	to = join_qkv(w, to, STEP_AT(w_qkv), layer, hidden);
	s->b_qkv = a->b_qkv ? to : NULL;
	if (a->b_qkv)
		to = join_qkv(w, to, STEP_AT(b_qkv), layer, 1);
	s->w_o = to;
	to = join_columns(w, to, STEP_AT(w_o), layer, (int64_t)a->num_qo_heads * a->head_dim);
	s->b_o = w->all[0]->step.b_o ? to : NULL;
	if (s->b_o)
		to = join(w, 1, to, STEP_AT(b_o), layer, 0, 1, hidden);
	s->mlp_norm = to;
	to = join(w, 1, to, STEP_AT(mlp_norm), layer, 0, 1, hidden);
	s->w_gate_up = to;
	to = join(w, w->ranks, to, STEP_AT(w_gate_up), layer, 0, inter, hidden);
	to = join(w, w->ranks, to, STEP_AT(w_gate_up), layer, inter, inter, hidden);
	s->w_down = to;
	return join_columns(w, to, STEP_AT(w_down), layer, inter);
}

/* Returns an upper bound of the bytes of a layer, a multiple of 16. */
static size_t layer_bytes(const struct cairn_decode_step_args *whole)
{
	size_t hidden = (size_t)whole->hidden, dim = (size_t)whole->head_dim;
	size_t q = (size_t)whole->num_qo_heads * dim, kv = (size_t)whole->num_kv_heads * dim;

	return ELEMENT * (hidden * (2 * q + 2 * kv + 3 + 3 * (size_t)whole->intermediate) + q + 2 * kv);
}

/* Copies the listed keys, or values, of all ranks' heads to the pages of the whole model. */
static void join_pages(const struct whole *w, char *to, int is_v)
{
	const struct cairn_decode_step_args *a = own(w);
	size_t row = (size_t)decode_step_k_row(a) * ELEMENT;

	for (int32_t layer = 0; layer < a->num_layers; layer++)
		for (int32_t b = 0; b < a->kv.batch; b++)
			for (int64_t i = 0; i < w->ranks * (cairn_kv_len(&a->kv, b) - 1); i++) {
				int32_t r = (int32_t)(i % w->ranks);
				struct cairn_kv_view kv = decode_step_kv(&w->all[r]->step, layer);
				size_t from = (size_t)cairn_kv_slot(&kv, b, i / w->ranks);
				size_t slot = (size_t)cairn_kv_slot(&a->kv, b, i / w->ranks);

				memcpy(to + layer * w->step.kv_stride_bytes +
				       (slot * (size_t)w->ranks + (size_t)r) * row,
				       (char *)(is_v ? kv.v_pages : kv.k_pages) + from * row, row);
			}
}

/* Sets the scalars of the whole model. Returns the elements of all its pages. */
static size_t widen(struct whole *w)
{
	struct cairn_decode_step_args *s = &w->step;

	*s = decode_step_ranks_step(w->all[w->rank]);
	s->num_qo_heads *= w->ranks;
	s->num_kv_heads *= w->ranks;
	s->intermediate *= w->ranks;
	s->kv_stride_bytes = (int64_t)s->kv.num_pages * s->kv.page_size * decode_step_k_row(s) *
			     (int64_t)ELEMENT;
	s->layer_stride_bytes = (int64_t)layer_bytes(s);
	return (size_t)(s->num_layers * s->kv_stride_bytes) / ELEMENT;
}

static int open_whole(struct whole *w)
{
	size_t elements = widen(w);
	struct cairn_decode_step_args *s = &w->step, layer;
	size_t head = (size_t)s->vocab / (size_t)w->ranks * (size_t)s->hidden * ELEMENT;

	w->weights = malloc((size_t)s->num_layers * (size_t)s->layer_stride_bytes);
	w->head = malloc(head * (size_t)w->ranks);
	w->k_pages = calloc(elements + 1, ELEMENT);
	w->v_pages = calloc(elements + 1, ELEMENT);
	for (int i = 0; i < 2; i++) {
		w->pages[i].val = calloc(elements + 1, sizeof(double));
		w->pages[i].bound = calloc(elements + 1, sizeof(double));
	}
	if (!w->weights || !w->head || !w->k_pages || !w->v_pages || !w->pages[0].val || !w->pages[0].bound ||
	    !w->pages[1].val || !w->pages[1].bound)
		return cairn_error(ENOMEM, "decode_step_ranks: no memory for the whole model");
	for (int32_t i = s->num_layers - 1; i >= 0; i--) {
		layer = *s;
		join_layer(w, &layer, w->weights + i * s->layer_stride_bytes, i);
	}
	layer.size = sizeof(layer);
	*s = layer;
	for (int32_t r = 0; r < w->ranks; r++)
		memcpy(w->head + (size_t)r * head, w->all[r]->step.lm_head, head);
	s->lm_head = w->head;
	join_pages(w, w->k_pages, 0);
	join_pages(w, w->v_pages, 1);
	s->kv.k_pages = w->k_pages;
	s->kv.v_pages = w->v_pages;
	return 0;
}

static void close_whole(struct whole *w)
{
	free(w->weights);
	free(w->head);
	free(w->k_pages);
	free(w->v_pages);
	for (int i = 0; i < 2; i++) {
		free(w->pages[i].val);
		free(w->pages[i].bound);
	}
}

/* Copies what the rank's own heads append. */
static void take_heads(const struct whole *w, struct cairn_exact *exact)
{
	const struct cairn_decode_step_args *a = own(w);
	int64_t row = decode_step_k_row(a);

	for (int32_t b = 0; b < a->kv.batch; b++)
		for (int32_t i = 0; cairn_kv_len(&a->kv, b) > 0 && i < 2 * a->num_layers; i++) {
			const struct cairn_exact *from = &w->pages[i % 2];
			struct cairn_exact *to = &exact[1 + i % 2];
			int64_t at = step_slot(a, b, i / 2, row);
			int64_t whole = step_slot(&w->step, b, i / 2, row * w->ranks) + w->rank * row;

			memcpy(to->val + at, from->val + whole, (size_t)row * sizeof(double));
			memcpy(to->bound + at, from->bound + whole, (size_t)row * sizeof(double));
		}
}

int cairn_decode_step_ranks_exact(const struct cairn_decode_step_ranks_args *const *all, int32_t rank,
				  struct cairn_exact *exact)
{
	struct whole w = { .all = all, .rank = rank, .ranks = all[rank]->comm.ranks };
	struct cairn_exact of[4] = { exact[0] };
	int ret;

	for (int32_t r = 0; r < w.ranks; r++)
		CAIRN_TRY(cairn_decode_step_ranks_check(all[r]));
	ret = open_whole(&w);
	of[1] = w.pages[0];
	of[2] = w.pages[1];
	if (w.step.tokens)
		of[3] = exact[3];
	if (!ret)
		ret = cairn_decode_step_exact(&w.step, of);
	if (!ret)
		take_heads(&w, exact);
	close_whole(&w);
	return ret;
}
