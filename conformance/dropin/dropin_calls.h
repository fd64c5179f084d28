/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dropin_calls - calls as FlashInfer makes them, on small tensors in host memory, for tests
 *
 * The argument lists follow FlashInfer's signatures and not the table of dropin_read.c, which they test.
 */
#ifndef CAIRN_DROPIN_CALLS_H
#define CAIRN_DROPIN_CALLS_H

#include <string.h>

#include "conformance/dropin/dropin.h"
#include "primitives/base/dtype.h"
#include "primitives/base/fp8.h"

#define BATCH		3
#define HEADS		4
#define KV_HEADS	2
#define DIM		64
#define ROWS		12
#define MAX_KEYS	17
#define PAGE		5
#define PAGES		11
#define KEYS		32		/* of all requests */
#define KV_ELEMENTS	(2 * PAGES * PAGE * KV_HEADS * DIM)
#define WORKSPACE	(1 << 20)

enum form { PAGED2, PAGED3, RAGGED2, RAGGED3, DECODE, SINGLE2, SINGLE3, SINGLE_DECODE };
enum { MASK_NONE, MASK_CAUSAL, MASK_CUSTOM, MASK_ITEMS };

/* Three requests of 5, 1 and 6 queries with 17, 9 and 6 keys. */
static const int32_t qo_offsets[] = { 0, 5, 6, 12 }, one_each[] = { 0, 1, 2, 3 };
static const int32_t key_offsets[] = { 0, 17, 26, 32 };
static const int32_t page_offsets[] = { 0, 4, 6, 8 }, pages[] = { 3, 9, 0, 10, 7, 1, 4, 6 };
static const int32_t last_lens[] = { 2, 4, 1 };

struct shape {
	enum form form;
	int dtype, hnd, apart, fp8, mask, window_left, graph;	/* apart: K and V alternate page by page */
	double softcap;
	int op;				/* the operation that must answer */
};

#define ALIGNED		__attribute__((aligned(256)))

struct world {
	const struct shape *s;
	ALIGNED uint16_t q[ROWS * HEADS * DIM];
	ALIGNED uint16_t out[ROWS * HEADS * DIM];
	/* bytes of e4m3 with fp8; apart: all in k */
	ALIGNED uint16_t k[KV_ELEMENTS];
	ALIGNED uint16_t v[KV_ELEMENTS];
	float lse[ROWS * HEADS];
	uint8_t mask[ROWS * MAX_KEYS];		/* [row][key] */
	uint8_t packed[ROWS * MAX_KEYS];
	int32_t packed_indptr[BATCH + 1];
	ALIGNED char workspace[WORKSPACE];
	struct dl_tensor tensors[24];
	int64_t dims[24][4], strides[24][4];
	int used;
	struct tvm_any args[32];
	int num_args;
	struct tvm_array plan;
	struct tvm_any values[8];
};

static inline int is_paged(const struct world *w)
{
	return w->s->form == PAGED2 || w->s->form == PAGED3 || w->s->form == DECODE;
}

static inline int is_single(const struct world *w)
{
	return w->s->form >= SINGLE2;
}

static inline int batch_of(const struct world *w)
{
	return is_single(w) ? 1 : BATCH;
}

static inline const int32_t *rows_of(const struct world *w)
{
	return w->s->form == DECODE || w->s->form == SINGLE_DECODE ? one_each : qo_offsets;
}

/* Strides of K and V in elements: of a page, or 0; of a slot or row; of a head. */
static inline void kv_strides(const struct world *w, int64_t *page, int64_t *slot, int64_t *head)
{
	int64_t slots = is_paged(w) ? PAGE : key_offsets[batch_of(w)];

	*slot = w->s->hnd ? DIM : KV_HEADS * DIM;
	*head = w->s->hnd ? slots * DIM : DIM;
	*page = is_paged(w) ? PAGE * KV_HEADS * DIM * (w->s->apart ? 2 : 1) : 0;
}

static inline void *v_data(struct world *w)
{
	return w->s->apart ? (char *)w->k + PAGE * KV_HEADS * DIM * (w->s->fp8 ? 1 : 2) : (void *)w->v;
}

/* Element of K or V: request b, key n, head g. */
static inline int64_t kv_index(const struct world *w, int b, int n, int g)
{
	int64_t page, slot, head;

	kv_strides(w, &page, &slot, &head);
	if (is_paged(w))
		return pages[page_offsets[b] + n / PAGE] * page + n % PAGE * slot + g * head;
	return (key_offsets[b] + n) * slot + g * head;
}

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

/* Fills the inputs. */
static inline void fill(struct world *w, uint32_t seed)
{
	const int q_count = ROWS * HEADS * DIM;
	uint32_t x = seed;

	for (int i = 0; i < q_count + 2 * KV_ELEMENTS; i++) {
		int j = i - q_count;
		uint16_t *kv = j < KV_ELEMENTS ? w->k : w->v;
		double value;

		x = x * 1664525 + 1013904223;
		value = (double)(int32_t)x * 0x1p-30;
		if (j < 0)
			cairn_store(w->q, w->s->dtype, i, value);
		else if (w->s->fp8)
			((uint8_t *)kv)[j % KV_ELEMENTS] = cairn_float_to_e4m3((float)value);
		else
			cairn_store(kv, w->s->dtype, j % KV_ELEMENTS, value);
	}
	for (int i = 0; i < ROWS * MAX_KEYS; i++) {
		x = x * 1664525 + 1013904223;
		w->mask[i] = x >> 30 != 0;
	}
}

#endif
