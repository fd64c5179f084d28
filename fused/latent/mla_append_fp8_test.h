/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mla_append_fp8_test - judges keys of 656 bytes; for the test and the mutants of mla_append
 *
 * An implementation computes c in f32, so its c may be off by `room`, the error bound of mla_append_ref.c
 * before rounding, and its scale by the same fraction and two roundings. A code is judged with the scale that
 * the implementation wrote: the code's distance from c / scale is at most half the distance between the two
 * codes around it, plus room / scale, plus the rounding of the quotient.
 *
 * Include conformance/harness.h first.
 */
#ifndef CAIRN_MLA_APPEND_FP8_TEST_H
#define CAIRN_MLA_APPEND_FP8_TEST_H

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "fused/latent/decode/mla_decode.h"
#include "fused/latent/mla_append.h"
#include "primitives/base/fp8.h"

#define FP8_RANK	512
#define FP8_ROPE_AT	(FP8_RANK + 16)
#define FP8_ROOM	((0.5 * FP8_RANK + 16) * 0x1p-24)

/* Sets c to the normed latent of a row. */
static inline void fp8_latent(const struct cairn_mla_append_args *a, int row, double c[FP8_RANK])
{
	int64_t from = (int64_t)row * (FP8_RANK + 64);
	double sum = 0;

	for (int j = 0; j < FP8_RANK; j++) {
		c[j] = cairn_load(a->latent, a->dtype, from + j);
		sum += c[j] * c[j];
	}
	for (int j = 0; j < FP8_RANK; j++)
		c[j] *= cairn_load(a->norm_weight, a->dtype, j) / sqrt(sum / FP8_RANK + (double)a->eps);
}

/* Returns the largest finite magnitude of a group. */
static inline double fp8_most(const double *c)
{
	double most = 0;

	for (int j = 0; j < CAIRN_MLA_FP8_GROUP; j++)
		most = isfinite(c[j]) ? fmax(most, fabs(c[j])) : most;
	return most;
}

static inline float fp8_scale(const double *c)
{
	double most = fp8_most(c);

	return most < (double)CAIRN_MLA_APPEND_LEAST ? 1 : (float)(most / 448);
}

/* q is known to a fraction of FP8_ROOM. Returns the largest distance from q that its code may have. */
static inline double fp8_code_bound(double q)
{
	int exponent;

	frexp(q, &exponent);
	return ldexp(1, (exponent > -5 ? exponent : -5) - 5) + (FP8_ROOM + 0x1p-22) * fabs(q) + 0x1p-140;
}

static inline int fp8_judge_group(const double *c, const uint8_t *codes, float scale, char *why, size_t len)
{
	double want = (double)fp8_scale(c);

	if (!(fabs((double)scale - want) <= (want == 1 ? 0 : (FP8_ROOM + 0x1p-22) * want))) {
		snprintf(why, len, "scale %.9g, want %.9g", (double)scale, want);
		return 1;
	}
	for (int j = 0; j < CAIRN_MLA_FP8_GROUP; j++) {
		double q = c[j] / (double)scale, code = (double)cairn_e4m3_to_float(codes[j]);

		if (isfinite(q) ? fabs(code - q) <= fp8_code_bound(q) : codes[j] == 0x7f)
			continue;
		snprintf(why, len, "code %d is %.9g, want %.9g", j, code, q);
		return 1;
	}
	return 0;
}

/* Judges the rotated part as mla_append_ref.c does. */
static inline int fp8_judge_rope(const struct cairn_mla_append_args *a, int row, const uint8_t *key,
				 char *why, size_t len)
{
	for (int j = 0; j < 64; j++) {
		int64_t pair = (int64_t)row * (FP8_RANK + 64) + FP8_RANK + j / 2 * 2;
		float angle = (float)a->positions[row] * a->inv_freq[j / 2];
		double even = cairn_load(a->latent, a->dtype, pair);
		double odd = cairn_load(a->latent, a->dtype, pair + 1);
		double want = j % 2 ? odd * cos((double)angle) + even * sin((double)angle) :
				      even * cos((double)angle) - odd * sin((double)angle);
		double got = cairn_load(key + FP8_ROPE_AT, a->dtype, j);
		double bound = 8 * 0x1p-24 * (fabs(even) + fabs(odd)) + cairn_dtype_tiny(a->dtype) +
			       cairn_dtype_roundoff(a->dtype) * fabs(want);

		if (isnan(want) ? isnan(got) : fabs(got - want) <= bound)
			continue;
		snprintf(why, len, "rotated element %d: got %.9g, want %.9g", j, got, want);
		return 1;
	}
	return 0;
}

/* Judges the key of a row. */
static inline int fp8_judge_key(const struct cairn_mla_append_args *a, int row, const uint8_t *key, char *why,
				size_t len)
{
	double c[FP8_RANK];
	char what[128] = "";

	fp8_latent(a, row, c);
	for (int g = 0; g < 4; g++) {
		const int first = g * CAIRN_MLA_FP8_GROUP;
		float scale;

		memcpy(&scale, key + FP8_RANK + 4 * g, sizeof(scale));
		if (!fp8_judge_group(c + first, key + first, scale, what, sizeof(what)))
			continue;
		snprintf(why, len, "key of row %d, group %d: %s", row, g, what);
		return 1;
	}
	if (!fp8_judge_rope(a, row, key, what, sizeof(what)))
		return 0;
	snprintf(why, len, "key of row %d: %s", row, what);
	return 1;
}

/* Judges the new keys. a: the call's inputs; pages: its result. */
static inline int fp8_judge(const struct cairn_mla_append_args *a, const uint8_t *pages, char *why,
			    size_t len)
{
	for (int b = 0; b < a->kv.batch; b++)
		for (int i = a->qo_indptr[b]; i < a->qo_indptr[b + 1]; i++) {
			int64_t slot = cairn_kv_slot(&a->kv, b, cairn_kv_len(&a->kv, b) -
						     a->qo_indptr[b + 1] + i);

			if (fp8_judge_key(a, i, pages + slot * CAIRN_MLA_FP8_BYTES, why, len))
				return 1;
		}
	return 0;
}

#endif
