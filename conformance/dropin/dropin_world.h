/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dropin_world - small tensors in host memory, as FlashInfer describes them, and attention computed from this
 * description, for tests
 */
#ifndef CAIRN_DROPIN_WORLD_H
#define CAIRN_DROPIN_WORLD_H

#include <math.h>
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
#define WORKSPACE	(1 << 21)

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

static inline double kv_value(const struct world *w, const void *data, int64_t i)
{
	return w->s->fp8 ? cairn_e4m3_to_float(((const uint8_t *)data)[i]) : cairn_load(data, w->s->dtype, i);
}

static inline int is_seen(const struct world *w, int b, int i, int n)
{
	int keys = key_offsets[b + 1] - key_offsets[b], rows = rows_of(w)[b + 1] - rows_of(w)[b];

	if (w->s->window_left >= 0 && n + rows + w->s->window_left < keys + i)
		return 0;
	if (w->s->mask == MASK_CUSTOM)
		return w->mask[(rows_of(w)[b] + i) * MAX_KEYS + n];
	return w->s->mask != MASK_CAUSAL || n + rows <= keys + i;
}

/* Returns the largest error of row i of request b and head h; lse counts too. */
static inline double error_of(struct world *w, int b, int i, int h)
{
	int keys = key_offsets[b + 1] - key_offsets[b], g = h / (HEADS / KV_HEADS);
	int64_t row = (int64_t)(rows_of(w)[b] + i) * HEADS + h;
	double sum = 0, out[DIM] = { 0 }, worst;

	for (int n = 0; n < keys; n++) {
		int64_t at = kv_index(w, b, n, g);
		double x = 0;

		if (!is_seen(w, b, i, n))
			continue;
		for (int c = 0; c < DIM; c++)
			x += cairn_load(w->q, w->s->dtype, row * DIM + c) * kv_value(w, w->k, at + c);
		x *= 0.125;
		x = w->s->softcap > 0 ? w->s->softcap * tanh(x / w->s->softcap) : x;
		sum += exp(x);
		for (int c = 0; c < DIM; c++)
			out[c] += exp(x) * kv_value(w, v_data(w), at + c);
	}
	worst = sum > 0 ? fabs(w->lse[row] - log2(sum)) : w->lse[row] == -INFINITY ? 0 : INFINITY;
	for (int c = 0; c < DIM; c++) {
		double want = sum > 0 ? out[c] / sum : 0;
		double e = fabs(cairn_load(w->out, w->s->dtype, row * DIM + c) - want);

		worst = e <= worst ? worst : e;
	}
	return worst;
}

#endif
