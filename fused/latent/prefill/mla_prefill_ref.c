// SPDX-License-Identifier: Apache-2.0
/*
 * mla_prefill_ref - the reference: computes keys and values of all heads in double, rounds them to dtype,
 * then runs attn_batch_exact.c over them
 *
 * Error bound: an implementation sums 512 products in fp32, which is off by at most
 *   (sqrt(512) + 512/32) E/2 (|x| + 8 R),  R the root of the sum of squares, E = 2^-23
 * as in block_attn_ref.c. The sum is exact if all products are multiples of 2^-4 whose magnitudes add up
 * to at most 2^20. Rounding is monotone, so an element may be any number between the rounded ends of this
 * interval: usually the reference's own, and one ulp away if the interval contains a tie. The distance to
 * these ends is the element's slack, which attn_exact.c propagates through logits and out. The parts'
 * results are rounded once before they are merged, and once more for every group of 4 or more parts that
 * is merged early.
 *
 * Above 2^33 products with the weights, only some of the heads are expanded and judged. Cases with fewer
 * products judge every head.
 */
#include "fused/latent/prefill/mla_prefill.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fused/attention/base/attn_batch.h"
#include "fused/block/block_ref.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/rows.h"

#define E	0x1p-23
#define RANK	512
#define ROPE	64
#define NOPE	128
#define V_DIM	128
#define QK	(NOPE + ROPE)
#define WIDTH	(QK + V_DIM)	/* elements of a key and its value */
#define BLOCK	32

/* Keys and values of all requests, [keys][heads][WIDTH] of dtype, and their slacks, or NULL. */
struct expanded {
	const struct cairn_mla_prefill_args *a;
	int64_t *first;		/* [batch + 1] key 0 of each request */
	int32_t *rows;		/* [batch + 1] qo_indptr from 0 on */
	uint16_t *kv, *slack;
};

/* A block of keys of one head. */
struct work {
	double w[(NOPE + V_DIM) * RANK], most[NOPE + V_DIM];	/* most: the largest magnitude of a row */
	double c[BLOCK * RANK], norm[BLOCK];
	double x[BLOCK * (NOPE + V_DIM)];
	int steps;		/* whether all of w are multiples of 2^-4 */
};

static int are_multiples(const double *x, int n, double step)
{
	int yes = 1;

	for (int i = 0; i < n; i++)
		yes &= x[i] / step == rint(x[i] / step);
	return yes;
}

static double magnitude(const double *x, const double *y, int n)
{
	double sum = 0;

	for (int i = 0; i < n; i++)
		sum += fabs(x[i] * y[i]);
	return sum;
}

static double largest(const double *x, int n)
{
	double most = 0;

	for (int i = 0; i < n; i++)
		most = fmax(most, fabs(x[i]));
	return most;
}

/* Returns how far from `own` an implementation's rounded sum may be if its error before rounding is `err`. */
static double reach(int dtype, double v, double own, double err)
{
	return fmax(block_rounded(v + err, dtype) - own, own - block_rounded(v - err, dtype));
}

/* Rounds element d of key i of the block, and stores it and its slack at element `at`. */
static void put(struct expanded *e, struct work *w, int i, int d, int64_t at, int exact)
{
	const double *c = w->c + i * RANK, *row = w->w + d * RANK, size = (sqrt(RANK) + RANK / 32.0) * E / 2;
	double v = w->x[i * (NOPE + V_DIM) + d], own = block_rounded(v, e->a->dtype), slack;

	cairn_store(e->kv, e->a->dtype, at, own);
	if (!e->slack)
		return;
	/* try an upper bound of R first, which usually suffices */
	slack = reach(e->a->dtype, v, own, size * (fabs(v) + 8 * w->most[d] * w->norm[i]));
	if (slack > 0)
		slack = reach(e->a->dtype, v, own,
			      size * (fabs(v) + 8 * sqrt(cairn_dot_squares(c, row, RANK))));
	if (slack > 0 && exact && magnitude(c, row, RANK) <= 0x1p20)
		slack = 0;
	cairn_store(e->slack, e->a->dtype, at, slack);
}

/* Expands `num` keys from `first` of request b on, for head h, whose weights are in *w. */
static void expand(struct expanded *e, struct work *w, int b, int h, int first, int num)
{
	const struct cairn_mla_prefill_args *a = e->a;
	int exact = e->slack && w->steps;

	for (int i = 0; i < num; i++)
		cairn_widen(w->c + i * RANK, a->kv.k_pages, a->dtype,
			    cairn_kv_slot(&a->kv, b, first + i) * (RANK + ROPE), RANK);
	cairn_products(w->x, NOPE + V_DIM, w->c, RANK, num, w->w, NOPE + V_DIM, RANK);
	exact = exact && are_multiples(w->c, num * RANK, 1);
	for (int i = 0; i < num; i++) {
		int64_t to = ((e->first[b] + first + i) * a->num_heads + h) * WIDTH;
		int64_t from = cairn_kv_slot(&a->kv, b, first + i) * (RANK + ROPE) + RANK;

		w->norm[i] = sqrt(cairn_dot(w->c + i * RANK, w->c + i * RANK, RANK));
		for (int d = 0; d < NOPE + V_DIM; d++)
			put(e, w, i, d, to + d + (d < NOPE ? 0 : ROPE), exact);
		memcpy(e->kv + to + NOPE, (const uint16_t *)a->kv.k_pages + from, ROPE * 2);
		if (e->slack)
			memset(e->slack + to + NOPE, 0, ROPE * 2);
	}
}

static void release(struct expanded *e)
{
	free(e->first);
	free(e->rows);
	free(e->kv);
	free(e->slack);
}

/* Returns 1 to judge all heads, or n to judge one head in n. */
static int32_t head_step(const struct cairn_mla_prefill_args *a)
{
	double products = 0;

	for (int b = 0; b < a->kv.batch; b++)
		products += (double)cairn_kv_len(&a->kv, b) * a->num_heads * (NOPE + V_DIM) * RANK;
	return 1 + (int32_t)(products * 0x1p-33);
}

/*
 * Expands the keys of the heads that the batch computes. Returns 0 or -ENOMEM; the caller releases *e in
 * both cases.
 */
static int expand_all(struct expanded *e, const struct cairn_mla_prefill_args *a,
		      const struct attn_batch *batch, int slack)
{
	int blocks = 0, no_memory = 0;
	size_t bytes;

	e->a = a;
	e->first = calloc((size_t)a->kv.batch + 1, sizeof(*e->first));
	e->rows = calloc((size_t)a->kv.batch + 1, sizeof(*e->rows));
	if (!e->first || !e->rows)
		return cairn_error(ENOMEM, "mla_prefill: no memory for %d requests", a->kv.batch);
	for (int b = 0; b < a->kv.batch; b++) {
		int keys = (int)cairn_kv_len(&a->kv, b);

		e->first[b + 1] = e->first[b] + keys;
		e->rows[b + 1] = a->qo_indptr[b + 1] - a->qo_indptr[0];
		blocks = (keys + BLOCK - 1) / BLOCK > blocks ? (keys + BLOCK - 1) / BLOCK : blocks;
	}
	bytes = (size_t)e->first[a->kv.batch] * (size_t)a->num_heads * WIDTH * sizeof(*e->kv);
	e->kv = malloc(bytes + 1);
	e->slack = slack ? malloc(bytes + 1) : NULL;
	if (!e->kv || (slack && !e->slack))
		return cairn_error(ENOMEM, "mla_prefill: no memory for %zu bytes of keys", bytes);
	#pragma omp parallel reduction(|:no_memory)
	{
		struct work *w = malloc(sizeof(*w));

		no_memory |= !w;
		for (int h = 0; w && h < a->num_heads; h++) {
			if (!attn_batch_has_head(batch, h))
				continue;
			cairn_widen(w->w, a->w_kv_b, a->dtype, (int64_t)h * (NOPE + V_DIM) * RANK,
				    (NOPE + V_DIM) * RANK);
			for (int d = 0; d < NOPE + V_DIM; d++)
				w->most[d] = largest(w->w + d * RANK, RANK);
			w->steps = are_multiples(w->w, (NOPE + V_DIM) * RANK, 0x1p-4);
			for (int b = 0; b < a->kv.batch; b++) {
				int keys = e->rows[b + 1] > e->rows[b] ? (int)cairn_kv_len(&a->kv, b) : 0;

				#pragma omp for schedule(dynamic) nowait
				for (int k = 0; k < blocks; k++)
					if (k * BLOCK < keys)
						expand(e, w, b, h, k * BLOCK,
						       keys - k * BLOCK < BLOCK ? keys - k * BLOCK : BLOCK);
			}
		}
		free(w);
	}
	return no_memory ? cairn_error(ENOMEM, "mla_prefill: no memory") : 0;
}

static int32_t num_keys(const void *args, int32_t b)
{
	const struct expanded *e = args;

	return (int32_t)(e->first[b + 1] - e->first[b]);
}

static struct attn_key key(const void *args, int32_t b, int32_t j, int32_t head)
{
	const struct expanded *e = args;
	int64_t at = ((e->first[b] + j) * e->a->num_heads + head) * WIDTH;

	return (struct attn_key){
		.k = e->kv + at, .v = e->kv + at + QK, .k_scale = 1, .v_scale = 1,
		.k_slack = e->slack ? e->slack + at : NULL, .v_slack = e->slack ? e->slack + at + QK : NULL,
	};
}

/* Sets rows past the last request to 0, and their lse to -INFINITY. */
static void empty_rest(const struct cairn_mla_prefill_args *a, struct cairn_exact *exact)
{
	int64_t last = a->qo_indptr[a->kv.batch] - a->qo_indptr[0];

	for (int64_t i = last * a->num_heads; i < (int64_t)a->nnz_qo * a->num_heads; i++) {
		for (int64_t c = i * V_DIM; c < (i + 1) * V_DIM; c++) {
			if (exact)
				exact[0].val[c] = exact[0].bound[c] = 0;
			else
				cairn_store(a->out, a->dtype, c, 0);
		}
		if (a->lse && exact) {
			exact[1].val[i] = -INFINITY;
			exact[1].bound[i] = 0;
		} else if (a->lse) {
			a->lse[i] = -INFINITY;
		}
	}
}

/* Sets values and bounds in exact, or, if exact is NULL, writes rounded results to the arguments' arrays. */
static int all_rows(const struct cairn_mla_prefill_args *a, struct cairn_exact *exact)
{
	int32_t parts = cairn_mla_prefill_parts(a);
	struct expanded e = { 0 };
	struct attn_batch b;
	int ret;

	if (!a->kv.batch || !a->nnz_qo)
		return 0;
	empty_rest(a, exact);
	b = (struct attn_batch){
		.name = "mla_prefill", .q = a->q, .out = a->out, .lse = a->lse,
		.q_stride = (int64_t)a->num_heads * QK, .batch = a->kv.batch, .num_qo_heads = a->num_heads,
		.num_kv_heads = a->num_heads, .qk_dim = QK, .v_dim = V_DIM, .dtype = a->dtype, .causal = 1,
		.sm_scale = a->sm_scale, .merges = parts > 1 ? 1 + (parts - 1) / 3 : 0,
		.head_step = exact ? head_step(a) : 1, .args = &e, .num_keys = num_keys, .key = key,
	};
	ret = expand_all(&e, a, &b, exact != NULL);
	b.qo_indptr = e.rows;
	if (!ret)
		ret = attn_batch_exact(&b, exact);
	release(&e);
	return ret;
}

int cairn_mla_prefill_ref(const struct cairn_mla_prefill_args *a, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_mla_prefill_check(a));
	return all_rows(a, NULL);
}

int cairn_mla_prefill_exact(const struct cairn_mla_prefill_args *a, struct cairn_exact *exact)
{
	CAIRN_TRY(cairn_mla_prefill_check(a));
	return all_rows(a, exact);
}
