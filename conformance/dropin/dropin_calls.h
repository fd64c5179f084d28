/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dropin_calls - the argument lists of FlashInfer's calls, for tests
 *
 * They follow FlashInfer's signatures and not the table of dropin_read.c, which they test.
 */
#ifndef CAIRN_DROPIN_CALLS_H
#define CAIRN_DROPIN_CALLS_H

#include "conformance/dropin/dropin_world.h"

static inline void add(struct world *w, struct tvm_any a)
{
	w->args[w->num_args++] = a;
}

static inline void add_none(struct world *w, int count)
{
	while (count--)
		add(w, (struct tvm_any){ .type = TVM_NONE });
}

static inline void add_int(struct world *w, int64_t i)
{
	add(w, (struct tvm_any){ .type = TVM_INT, .i = i });
}

static inline void add_number(struct world *w, double f)
{
	add(w, (struct tvm_any){ .type = TVM_FLOAT, .f = f });
}

static inline void add_tensor(struct world *w, const void *data, int code, int bits, int ndim,
			      const int64_t *dims, const int64_t *strides)
{
	struct dl_tensor *t = &w->tensors[w->used];
	int64_t stride = 1;

	for (int i = ndim - 1; i >= 0; i--) {
		w->dims[w->used][i] = dims[i];
		w->strides[w->used][i] = strides ? strides[i] : stride;
		stride *= dims[i];
	}
	*t = (struct dl_tensor){ .data = (void *)data, .device_type = DL_CPU, .ndim = ndim,
		.code = (uint8_t)code, .bits = (uint8_t)bits, .lanes = 1, .shape = w->dims[w->used],
		.strides = strides ? w->strides[w->used] : NULL };
	w->used++;
	add(w, (struct tvm_any){ .type = TVM_TENSOR, .p = t });
}

static inline void add_list(struct world *w, const void *data, int code, int bits, int64_t count)
{
	add_tensor(w, data, code, bits, 1, &count, NULL);
}

static inline void add_q(struct world *w, const void *data)
{
	const int64_t dims[] = { rows_of(w)[batch_of(w)], HEADS, DIM };
	int skip = w->s->form == SINGLE_DECODE, code = w->s->dtype == CAIRN_BF16 ? DL_BFLOAT : DL_FLOAT;

	add_tensor(w, data, code, 16, 3 - skip, dims + skip, NULL);
}

static inline void add_kv(struct world *w, const void *data)
{
	int64_t page, slot, head, dims[4], strides[4];
	int hnd = w->s->hnd, skip = !is_paged(w);
	int code = w->s->fp8 ? DL_E4M3 : w->s->dtype == CAIRN_BF16 ? DL_BFLOAT : DL_FLOAT;

	kv_strides(w, &page, &slot, &head);
	dims[0] = PAGES;
	dims[1 + hnd] = is_paged(w) ? PAGE : key_offsets[batch_of(w)];
	dims[2 - hnd] = KV_HEADS;
	dims[3] = DIM;
	strides[0] = page;
	strides[1 + hnd] = slot;
	strides[2 - hnd] = head;
	strides[3] = 1;
	add_tensor(w, data, code, w->s->fp8 ? 8 : 16, 4 - skip, dims + skip, strides + skip);
}

static inline void add_plan(struct world *w)
{
	w->plan.object.type = TVM_ARRAY;
	w->plan.items = w->values;
	add(w, (struct tvm_any){ .type = TVM_ARRAY, .p = &w->plan });
}

/* The arguments that end the lists of FlashAttention-2's and -3's forms. */
static inline void add_rest(struct world *w)
{
	int fa3 = w->s->form == PAGED3 || w->s->form == RAGGED3 || w->s->form == SINGLE3;
	int fa2 = w->s->form == PAGED2 || w->s->form == RAGGED2 || w->s->form == SINGLE2;
	int custom = w->s->mask == MASK_CUSTOM;

	if (fa2 && custom)
		add_list(w, w->packed, DL_UINT, 8, sizeof(w->packed));
	if (fa2 && custom && !is_single(w))
		add_list(w, w->packed_indptr, DL_INT, 32, BATCH + 1);
	if (fa2 && !custom)
		add_none(w, is_single(w) ? 1 : 2);
	if (fa2)
		add_none(w, is_single(w) ? 3 : 6);
	else
		add_none(w, fa3 && !is_single(w) ? 4 : 1);
	add_number(w, w->s->softcap);
	add_number(w, 0.125);
	add_number(w, 1);
	if (!fa3)
		add_number(w, 1e-4);
	if (!is_single(w) && w->s->form != DECODE)
		add_int(w, 0);
}

static inline void make_single(struct world *w)
{
	add_q(w, w->q);
	add_kv(w, w->k);
	add_kv(w, v_data(w));
	add_list(w, w->workspace, DL_UINT, 8, WORKSPACE);
	add_q(w, w->out);
	add_list(w, w->lse, DL_FLOAT, 32, (int64_t)rows_of(w)[1] * HEADS);
	if (w->s->form != SINGLE_DECODE)
		add_int(w, w->s->mask);
	add_int(w, w->s->hnd);
	add_int(w, w->s->window_left);
	add_rest(w);
}

static inline void make_batch(struct world *w)
{
	const int64_t lse[] = { rows_of(w)[BATCH], HEADS };

	add_list(w, w->workspace, DL_UINT, 8, WORKSPACE);
	add_list(w, w->workspace, DL_UINT, 8, WORKSPACE);
	add_plan(w);
	add_q(w, w->q);
	add_kv(w, w->k);
	add_kv(w, v_data(w));
	if (w->s->form != DECODE)
		add_list(w, rows_of(w), DL_INT, 32, BATCH + 1);
	add_list(w, is_paged(w) ? page_offsets : key_offsets, DL_INT, 32, BATCH + 1);
	if (is_paged(w)) {
		add_list(w, pages, DL_INT, 32, 8);
		add_list(w, last_lens, DL_INT, 32, BATCH);
	}
	add_q(w, w->out);
	add_tensor(w, w->lse, DL_FLOAT, 32, 2, lse, NULL);
	if (w->s->form != DECODE)
		add_int(w, w->s->mask);
	add_int(w, w->s->hnd);
	add_int(w, w->s->window_left);
	add_int(w, 0);
	add_rest(w);
}

/* The list of `plan`: 15 arguments for decode, 20 or 16 for prefill. */
static inline void make_plan(struct world *w)
{
	static const int32_t key_lens[] = { 17, 9, 6 };

	for (int i = 0; i < 3; i++)
		add_list(w, w->workspace, DL_UINT, 8, WORKSPACE);
	if (w->s->form != DECODE)
		add_list(w, rows_of(w), DL_INT, 32, BATCH + 1);
	add_list(w, is_paged(w) ? page_offsets : key_offsets, DL_INT, 32, BATCH + 1);
	if (w->s->form != DECODE) {
		add_list(w, key_lens, DL_INT, 32, BATCH);
		add_int(w, rows_of(w)[BATCH]);
	}
	add_int(w, BATCH);
	add_int(w, HEADS);
	add_int(w, KV_HEADS);
	add_int(w, is_paged(w) ? PAGE : 1);
	add_int(w, w->s->graph);
	if (w->s->form == DECODE) {
		add_int(w, w->s->window_left);
		add_number(w, w->s->softcap);
	}
	add_int(w, DIM);
	add_int(w, DIM);
	if (w->s->form == DECODE) {
		add_none(w, 2);
		return;
	}
	add_int(w, w->s->mask == MASK_CAUSAL);
	add_int(w, w->s->window_left);
	if (w->s->form == PAGED2 || w->s->form == RAGGED2)
		for (int i = 0; i < 4; i++)
			add_int(w, i ? 0 : -1);
}

#endif
