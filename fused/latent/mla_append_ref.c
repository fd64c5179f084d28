// SPDX-License-Identifier: Apache-2.0
/*
 * mla_append_ref - the reference, in double, and its error bound: that of rmsnorm_ref.c for the latent, that
 * of rope_ref.c for the rotated elements
 */
#include "fused/latent/mla_append.h"

#include <math.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/fp8.h"
#include "fused/latent/decode/mla_decode.h"

#define MAX_RANK	1024

/* Returns the element of the pages, or the byte if kv_fp8, at which row i of request b begins. */
static int64_t slot_of(const struct cairn_mla_append_args *a, int b, int i)
{
	int64_t key = cairn_kv_len(&a->kv, b) - (a->qo_indptr[b + 1] - a->qo_indptr[b]) + i;

	return cairn_kv_slot(&a->kv, b, key) *
	       (a->kv_fp8 ? CAIRN_MLA_FP8_BYTES : a->kv_lora_rank + a->rope_dim);
}

/*
 * Stores v to out, which may be the input, or, if exact is not NULL, sets its value and bound. room: the
 * error before rounding.
 */
static void put(const struct cairn_mla_append_args *a, void *out, struct cairn_exact *exact, int64_t at,
		double v, double room)
{
	if (!exact) {
		cairn_store(out, a->dtype, at, v);
		return;
	}
	exact->val[at] = v;
	exact->bound[at] = isnan(v) ? 0 : room + cairn_dtype_roundoff(a->dtype) * fabs(v) +
			   cairn_dtype_tiny(a->dtype);
}

static void rotate(const struct cairn_mla_append_args *a, int row, const void *x, int64_t from, void *out,
		   struct cairn_exact *exact, int64_t to)
{
	for (int p = 0; p < a->rope_dim / 2; p++) {
		float angle = (float)a->positions[row] * a->inv_freq[p];
		double c = cos((double)angle), s = sin((double)angle);
		double even = cairn_load(x, a->dtype, from + 2 * p);
		double odd = cairn_load(x, a->dtype, from + 2 * p + 1);
		double room = 8 * 0x1p-24 * (fabs(even) + fabs(odd)) + 8 * 0x1p-150;

		put(a, out, exact, to + 2 * p, even * c - odd * s, room);
		put(a, out, exact, to + 2 * p + 1, odd * c + even * s, room);
	}
}

/* Writes a latent as codes and scales. */
static void put_codes(uint8_t *key, const double *c, int rank)
{
	for (int g = 0; g < rank / CAIRN_MLA_FP8_GROUP; g++) {
		const double *x = c + g * CAIRN_MLA_FP8_GROUP;
		double most = 0;
		float scale = 1;

		for (int j = 0; j < CAIRN_MLA_FP8_GROUP; j++)
			if (isfinite(x[j]))
				most = fmax(most, fabs(x[j]));
		if (most >= (double)CAIRN_MLA_APPEND_LEAST)
			scale = (float)(most / 448);
		for (int j = 0; j < CAIRN_MLA_FP8_GROUP; j++)
			key[g * CAIRN_MLA_FP8_GROUP + j] =
				isfinite(x[j]) ? cairn_float_to_e4m3((float)(x[j] / (double)scale)) : 0x7f;
		memcpy(key + rank + 4 * g, &scale, sizeof(scale));
	}
}

/* Writes c and the rotated part to the 656 bytes from `to` on; if exact is not NULL, these get no bound. */
static void put_8bit(const struct cairn_mla_append_args *a, int row, const double *c,
		     struct cairn_exact *exact, int64_t to)
{
	uint8_t *key = (uint8_t *)a->kv.k_pages + to;

	for (int j = 0; exact && j < CAIRN_MLA_FP8_BYTES; j++) {
		exact->val[to + j] = NAN;
		exact->bound[to + j] = INFINITY;
	}
	if (exact)
		return;
	put_codes(key, c, a->kv_lora_rank);
	rotate(a, row, a->latent, (int64_t)row * (a->kv_lora_rank + a->rope_dim) + a->kv_lora_rank,
	       key + a->kv_lora_rank + 16, NULL, 0);
}

static void append(const struct cairn_mla_append_args *a, int b, int i, struct cairn_exact *exact)
{
	struct cairn_exact *q = exact, *pages = exact ? exact + 1 : NULL;
	int row = a->qo_indptr[b] + i, rank = a->kv_lora_rank, head = a->nope_dim + a->rope_dim;
	int64_t from = (int64_t)row * (rank + a->rope_dim), to = slot_of(a, b, i);
	double sum = 0, scale, c[MAX_RANK];

	if (exact && !cairn_is_wanted(pages, to, rank + a->rope_dim))
		return;
	for (int j = 0; j < rank; j++)
		sum += pow(cairn_load(a->latent, a->dtype, from + j), 2);
	scale = 1 / sqrt(sum / rank + (double)a->eps);
	for (int j = 0; j < rank; j++) {
		double w = cairn_load(a->norm_weight, a->dtype, j);
		double v = cairn_load(a->latent, a->dtype, from + j) * scale * w;

		c[j] = v;
		if (!a->kv_fp8)
			put(a, a->kv.k_pages, pages, to + j, v, (0.5 * rank + 16) * 0x1p-24 * fabs(v) +
			    0x1p-149 * fabs(w));
	}
	if (a->kv_fp8)
		put_8bit(a, row, c, pages, to);
	else
		rotate(a, row, a->latent, from + rank, a->kv.k_pages, pages, to + rank);
	for (int h = 0; h < a->num_heads; h++) {
		int64_t at = ((int64_t)row * a->num_heads + h) * head + a->nope_dim;

		if (exact && !cairn_is_wanted(exact, at, a->rope_dim))
			continue;
		rotate(a, row, a->q, at, a->q, q, at);
	}
}

static int all_rows(const struct cairn_mla_append_args *a, struct cairn_exact *exact)
{
	CAIRN_TRY(cairn_mla_append_check(a));
	for (int b = 0; b < a->kv.batch; b++) {
		#pragma omp parallel for
		for (int i = 0; i < a->qo_indptr[b + 1] - a->qo_indptr[b]; i++)
			append(a, b, i, exact);
	}
	return 0;
}

int cairn_mla_append_ref(const struct cairn_mla_append_args *a, void *stream)
{
	(void)stream;
	return all_rows(a, NULL);
}

int cairn_mla_append_exact(const struct cairn_mla_append_args *a, struct cairn_exact *exact)
{
	return all_rows(a, exact);
}
