// SPDX-License-Identifier: Apache-2.0
/*
 * attn_bsr_ref - the reference: attn_exact.c for each token and head, over the keys that it sees
 *
 * Above 2^30 products in q.k, cairn_attn_bsr_exact() computes the first and last token, the first and last of
 * each block row of 64 tokens or more, and a fixed pseudo-random sample of the others, each for all heads.
 * All other tokens have an infinite bound: their results need only be finite.
 */
#include "fused/attention/bsr/attn_bsr.h"

#include <math.h>
#include <stdlib.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/fp8.h"
#include "fused/attention/base/attn_exact.h"
#include "fused/attention/bsr/attn_bsr_walk.h"

static int64_t q_at(const struct cairn_attn_bsr_args *a, int32_t token, int32_t h)
{
	int64_t stride = a->q_stride ? a->q_stride : (int64_t)a->num_qo_heads * a->head_dim;

	return token * stride + (int64_t)h * a->head_dim;
}

/* Stores the results of a row in exact, or, if exact is NULL, rounds them to out and lse. */
static void keep(const struct cairn_attn_bsr_args *a, struct cairn_exact *exact, int64_t at,
		 const struct attn_exact_row *r)
{
	for (int c = 0; c < a->head_dim; c++) {
		if (!exact) {
			cairn_store(a->out, a->dtype, at * a->head_dim + c, r->o[c]);
			continue;
		}
		exact[0].val[at * a->head_dim + c] = r->o[c];
		exact[0].bound[at * a->head_dim + c] = r->bound[c];
	}
	if (a->lse && !exact) {
		a->lse[at] = (float)r->lse;
	} else if (a->lse) {
		exact[1].val[at] = r->lse;
		exact[1].bound[at] = r->lse_bound;
	}
}

static void undefine(const struct cairn_attn_bsr_args *a, struct cairn_exact *exact, int64_t at)
{
	for (int64_t c = at * a->head_dim; c < (at + 1) * a->head_dim; c++) {
		exact[0].val[c] = NAN;
		exact[0].bound[c] = INFINITY;
	}
	if (a->lse) {
		exact[1].val[at] = NAN;
		exact[1].bound[at] = INFINITY;
	}
}

static int all_finite(const void *x, int dtype, int fp8, int n)
{
	for (int c = 0; c < n; c++) {
		double v = fp8 ? (double)cairn_e4m3_to_float(((const uint8_t *)x)[c]) :
			   cairn_load(x, dtype, c);

		if (!isfinite(v))
			return 0;
	}
	return 1;
}

/* Returns whether a list holds a key or a value that is not a number. */
static int bad_list(const struct cairn_attn_bsr_args *a, const struct cairn_attn_part *p, int32_t row,
		    int32_t g)
{
	for (int64_t n = 0; n < attn_bsr_list_len(p, row, g); n++) {
		struct attn_key key = attn_bsr_key(a, p, row, g, n);

		if (!all_finite(key.k, a->dtype, a->kv_fp8, a->head_dim) ||
		    !all_finite(key.v, a->dtype, a->kv_fp8, a->head_dim))
			return 1;
	}
	return 0;
}

/* Marks results that depend on a NaN or an infinity as undefined ("Not numbers" in the header). */
static void undefine_rows(const struct cairn_attn_bsr_args *a, const struct attn_cover *cover,
			  struct cairn_exact *exact)
{
	int group = a->num_qo_heads / a->num_kv_heads;

	for (int k = 0; k < a->num_parts; k++) {
		#pragma omp parallel for schedule(dynamic)
		for (int64_t i = 0; i < (int64_t)a->part[k].rows * a->num_kv_heads; i++) {
			int32_t row = (int32_t)(i / a->num_kv_heads), g = (int32_t)(i % a->num_kv_heads);

			if (!bad_list(a, &a->part[k], row, g))
				continue;
			for (int32_t t = 0; t < a->nnz_qo; t++) {
				if (cover[t].row < 0 || cover[(int64_t)k * a->nnz_qo + t].row != row)
					continue;
				for (int h = g * group; h < (g + 1) * group; h++)
					undefine(a, exact, (int64_t)t * a->num_qo_heads + h);
			}
		}
	}
	for (int32_t t = 0; t < a->nnz_qo; t++)
		for (int h = 0; h < a->num_qo_heads; h++) {
			int64_t bytes = q_at(a, t, h) * (int64_t)cairn_dtype_bytes(a->dtype);

			if (cover[t].row >= 0 &&
			    !all_finite((const char *)a->q + bytes, a->dtype, 0, a->head_dim))
				undefine(a, exact, (int64_t)t * a->num_qo_heads + h);
		}
}

/* Returns 0 to compute all tokens, or n to compute one token in n and the first and last ones. */
static uint32_t sample_step(const struct cairn_attn_bsr_args *a, const struct attn_cover *cover)
{
	double products = 0;

	for (int64_t i = 0; i < (int64_t)a->num_parts * a->nnz_qo; i++) {
		const struct cairn_attn_part *p = &a->part[i / a->nnz_qo];

		if (cover[i].row >= 0)
			products += (double)attn_bsr_list_len(p, cover[i].row, 0) * a->num_qo_heads *
				    a->head_dim;
	}
	return attn_exact_step(products);
}

static int left_out(const struct cairn_attn_bsr_args *a, const struct attn_cover *c, int32_t token,
		    uint32_t step)
{
	if (!step || token == 0 || token == a->nnz_qo - 1)
		return 0;
	if (c->num >= 64 && (c->ordinal == 0 || c->ordinal == c->num - 1))
		return 0;
	return ((uint32_t)token * 2654435761u >> 8) % step != 0;
}

/* Gives a token's heads h .. h + num - 1 an infinite bound. */
static void leave_out(const struct cairn_attn_bsr_args *a, struct cairn_exact *exact, int64_t at, int num)
{
	for (int64_t c = at * a->head_dim; c < (at + num) * a->head_dim; c++) {
		exact[0].val[c] = 0;
		exact[0].bound[c] = INFINITY;
	}
	for (int64_t i = at; a->lse && i < at + num; i++) {
		exact[1].val[i] = 0;
		exact[1].bound[i] = INFINITY;
	}
}

static int all_tokens(const struct cairn_attn_bsr_args *a, struct cairn_exact *exact)
{
	const struct attn_numerics numerics = {
		.dtype = a->dtype, .kv_fp8 = a->kv_fp8, .qk_dim = a->head_dim, .v_dim = a->head_dim,
		.sm_scale = a->sm_scale, .softcap = a->softcap,
	};
	struct attn_cover *cover = attn_cover_new(a);
	int group = a->num_qo_heads / a->num_kv_heads, no_memory = !cover;
	uint32_t step = exact && cover ? sample_step(a, cover) : 0;

	#pragma omp parallel reduction(|:no_memory)
	{
		struct attn_exact_row *r = attn_exact_row_new((int)attn_bsr_most_keys(a));

		no_memory |= !r;
		#pragma omp for schedule(dynamic)
		for (int64_t i = 0; i < (int64_t)a->nnz_qo * a->num_kv_heads; i++) {
			int32_t token = (int32_t)(i / a->num_kv_heads), g = (int32_t)(i % a->num_kv_heads);
			int n;

			if (!r || !cover || cover[token].row < 0)
				continue;
			if (left_out(a, &cover[token], token, step)) {
				leave_out(a, exact, (int64_t)token * a->num_qo_heads + g * group, group);
				continue;
			}
			n = attn_bsr_keys(a, cover, token, g, r->keys, NULL);
			for (int h = g * group; h < (g + 1) * group; h++) {
				int64_t bytes = q_at(a, token, h) * (int64_t)cairn_dtype_bytes(a->dtype);

				attn_exact_row(&numerics, (const char *)a->q + bytes, r->keys, n, r);
				keep(a, exact, (int64_t)token * a->num_qo_heads + h, r);
			}
		}
		free(r);
	}
	if (exact && !no_memory)
		undefine_rows(a, cover, exact);
	free(cover);
	return no_memory ? cairn_error(ENOMEM, "attn_bsr: no memory for the reference") : 0;
}

int cairn_attn_bsr_ref(const struct cairn_attn_bsr_args *a, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_attn_bsr_check(a));
	return all_tokens(a, NULL);
}

int cairn_attn_bsr_exact(const struct cairn_attn_bsr_args *a, struct cairn_exact *exact)
{
	CAIRN_TRY(cairn_attn_bsr_check(a));
	return all_tokens(a, exact);
}
