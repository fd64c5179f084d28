// SPDX-License-Identifier: Apache-2.0
/* embedding_mutants - wrong versions of embedding, one defect each */
#include <stdlib.h>

#include "conformance/harness.h"
#include "primitives/base/args.h"
#include "primitives/base/bend.h"
#include "primitives/rows/embedding.h"

enum embedding_bend {
	embedding_bend_row_plus_1, embedding_bend_clamped, embedding_bend_vocab_itself_legal,
	embedding_bend_negative_not_zeroed, embedding_bend_last_8_skipped,
	embedding_bend_through_bf16, embedding_bend_scale_ignored, embedding_bend_scale_twice,
	embedding_bend_scale_rounded, embedding_bend_scale_truncated, embedding_bend_zero_scale_applied,
	embedding_bend_id_of_8_bits, embedding_bend_nan_is_0, embedding_bend_infinity_clamped,
	embedding_bend_last_8_of_scaled, embedding_bend_subnormal_scale_is_0,
	embedding_bend_nan_quieted,
};

static double bent_scale(const struct cairn_embedding_args *a, double v, enum embedding_bend bend)
{
	double scale = (double)a->scale;
	uint32_t bits;
	float f;

	if (bend == embedding_bend_subnormal_scale_is_0 && fabs(scale) < 0x1p-126)
		return v;
	switch (bend) {
	case embedding_bend_scale_ignored:
		return v;
	case embedding_bend_scale_twice:
		return (float)v * a->scale * a->scale;
	case embedding_bend_scale_rounded:
		return (float)v * (float)rounded(CAIRN_BF16, scale);
	case embedding_bend_scale_truncated:
		f = (float)v * a->scale;
		memcpy(&bits, &f, sizeof(bits));
		bits &= a->dtype == CAIRN_BF16 ? 0xffff0000u : a->dtype == CAIRN_F16 ? 0xffffe000u : ~0u;
		memcpy(&f, &bits, sizeof(f));
		return f;
	default:
		return (float)v * a->scale;
	}
}

/* Copies the bits of element `from` of the table to element `to` of out. */
static void copy_element(const struct cairn_embedding_args *a, int64_t to, int64_t from)
{
	int64_t esize = (int64_t)cairn_dtype_bytes(a->dtype);

	memcpy((char *)a->out + to * esize, (const char *)a->table + from * esize, (size_t)esize);
}

static int bent_embedding(const struct cairn_embedding_args *a, enum embedding_bend bend)
{
	CAIRN_TRY(cairn_embedding_check(a));
	for (int64_t i = 0; i < a->rows; i++) {
		int64_t id = a->ids[i], n = a->dim - (bend == embedding_bend_last_8_skipped ? 8 : 0);
		int outside = id < 0 || id >= a->vocab;

		if (bend == embedding_bend_id_of_8_bits && !outside)
			id &= 0xff;
		if (bend == embedding_bend_last_8_of_scaled && a->scale != 0 && a->dim % 16)
			n -= 8;
		if (bend == embedding_bend_row_plus_1 && !outside)
			id = (id + 1) % a->vocab;
		if (bend == embedding_bend_clamped ||
		    (bend == embedding_bend_vocab_itself_legal && id == a->vocab)) {
			id = id < 0 ? 0 : id >= a->vocab ? a->vocab - 1 : id;
			outside = 0;
		}
		if (bend == embedding_bend_negative_not_zeroed && id < 0)
			continue;
		for (int64_t j = 0; j < n; j++) {
			double v = outside ? 0 : cairn_load(a->table, a->dtype, id * a->dim + j);

			if (bend == embedding_bend_through_bf16)
				v = rounded(CAIRN_BF16, v);
			if (bend == embedding_bend_nan_is_0 && isnan(v))
				v = 0;
			if (bend == embedding_bend_infinity_clamped && isinf(v) && a->scale != 0)
				v = copysign(60000, v);
			if (a->scale != 0)
				v = bent_scale(a, v, bend);
			else if (bend == embedding_bend_zero_scale_applied)
				v *= (double)a->scale;
			cairn_store(a->out, a->dtype, i * a->dim + j, v);
			if (a->scale == 0 && isnan(v) && bend != embedding_bend_nan_quieted)
				copy_element(a, i * a->dim + j, id * a->dim + j);
		}
	}
	return 0;
}

/* Calls the reference with other ids or fewer rows. */
static int embedding_cut(const struct cairn_embedding_args *a, uint64_t id_bytes, int32_t row_mask)
{
	struct cairn_embedding_args one = *a;

	CAIRN_TRY(cairn_embedding_check(a));
	one.size = sizeof(one);
	one.rows = 1;
	for (int32_t i = 0; i < (a->rows & row_mask); i++) {
		uint64_t at = (uint64_t)a->ids[i] * id_bytes;
		int32_t id = id_bytes ? (int32_t)((uint32_t)at / id_bytes) : a->ids[i] & 0xffff;

		if (a->ids[i] < 0 || a->ids[i] >= a->vocab)
			id = a->ids[i];
		one.ids = &id;
		one.out = (char *)a->out + (int64_t)i * a->dim * (int64_t)cairn_dtype_bytes(a->dtype);
		CAIRN_TRY(cairn_embedding_ref(&one, NULL));
	}
	return 0;
}

static int embedding_far_bytes_32_bits(const struct cairn_embedding_args *a, void *stream)
{
	(void)stream;
	return embedding_cut(a, (uint64_t)a->dim * cairn_dtype_bytes(a->dtype), -1);
}

static int embedding_far_elements_32_bits(const struct cairn_embedding_args *a, void *stream)
{
	(void)stream;
	return embedding_cut(a, (uint64_t)a->dim, -1);
}

static int embedding_far_scaled_32_bits(const struct cairn_embedding_args *a, void *stream)
{
	(void)stream;
	return embedding_cut(a, a->scale != 0 ? (uint64_t)a->dim * cairn_dtype_bytes(a->dtype) : 1, -1);
}

static int embedding_far_id_16_bits(const struct cairn_embedding_args *a, void *stream)
{
	(void)stream;
	return embedding_cut(a, 0, -1);
}

static int embedding_rows_16_bits(const struct cairn_embedding_args *a, void *stream)
{
	(void)stream;
	return embedding_cut(a, 1, 0xffff);
}

static int embedding_unknown_ignored(const struct cairn_embedding_args *a, void *stream)
{
	struct cairn_embedding_args known;

	cairn_copy_args(&known, a, sizeof(known));
	return cairn_embedding_ref(&known, stream);
}

static int embedding_id_as_float(const struct cairn_embedding_args *a, void *stream)
{
	struct cairn_embedding_args one = *a;

	(void)stream;
	CAIRN_TRY(cairn_embedding_check(a));
	one.size = sizeof(one);
	one.rows = 1;
	for (int32_t i = 0; i < a->rows; i++) {
		int32_t id = a->ids[i];

		if (id >= 0 && id < a->vocab)
			id = (int32_t)fminf((float)id, (float)(1 << 30));
		one.ids = &id;
		one.out = (char *)a->out + (int64_t)i * a->dim * (int64_t)cairn_dtype_bytes(a->dtype);
		CAIRN_TRY(cairn_embedding_ref(&one, NULL));
	}
	return 0;
}

/* Checks only the first unknown byte. */
static int embedding_unknown_first_alone(const struct cairn_embedding_args *a, void *stream)
{
	if (a->size > sizeof(*a) && ((const char *)(a + 1))[0])
		return cairn_error(EOPNOTSUPP, "embedding: unknown");
	return embedding_unknown_ignored(a, stream);
}

BENT(embedding, row_plus_1)
BENT(embedding, clamped)
BENT(embedding, vocab_itself_legal)
BENT(embedding, negative_not_zeroed)
BENT(embedding, last_8_skipped)
BENT(embedding, through_bf16)
BENT(embedding, scale_ignored)
BENT(embedding, scale_twice)
BENT(embedding, scale_rounded)
BENT(embedding, scale_truncated)
BENT(embedding, zero_scale_applied)
BENT(embedding, id_of_8_bits)
BENT(embedding, nan_is_0)
BENT(embedding, infinity_clamped)
BENT(embedding, last_8_of_scaled)
BENT(embedding, subnormal_scale_is_0)
BENT(embedding, nan_quieted)

static int embedding_rounded_once(const struct cairn_embedding_args *a, void *stream)
{
	CAIRN_TRY(cairn_embedding_ref(a, stream));
	for (int64_t i = 0; a->scale != 0 && i < (int64_t)a->rows * a->dim; i++) {
		int32_t id = a->ids[i / a->dim];

		if (id >= 0 && id < a->vocab)
			cairn_store(a->out, a->dtype, i, (double)a->scale *
				    cairn_load(a->table, a->dtype, (int64_t)id * a->dim + i % a->dim));
	}
	return 0;
}

static int embedding_tail_of_long_rows(const struct cairn_embedding_args *a, void *stream)
{
	const size_t bytes = (size_t)a->dim * cairn_dtype_bytes(a->dtype);

	CAIRN_TRY(cairn_embedding_ref(a, stream));
	if (a->rows && a->scale == 0 && bytes > 4096 && bytes % 64)
		memset((char *)a->out + bytes / 64 * 64, 0, bytes % 64);
	return 0;
}

static int embedding_rows_of_8(const struct cairn_embedding_args *a, void *stream)
{
	struct cairn_embedding_args other = *a;

	CAIRN_TRY(cairn_embedding_check(a));
	other.size = sizeof(other);
	other.rows -= a->rows > 8 && a->rows % 8 == 7;
	return cairn_embedding_ref(&other, stream);
}

/* Keeps only 32 bits of the byte offset of a row of out. */
static int embedding_out_32_bits(const struct cairn_embedding_args *a, void *stream)
{
	int64_t row = (int64_t)a->dim * (int64_t)cairn_dtype_bytes(a->dtype);
	struct cairn_embedding_args one = *a;

	one.size = sizeof(one);
	if (cairn_embedding_check(a) || (a->rows - 1) * row <= UINT32_MAX)
		return cairn_embedding_ref(a, stream);
	one.rows = 1;
	for (int64_t i = 0; i < a->rows; i++) {
		one.out = (char *)a->out + (uint32_t)(i * row);
		one.ids = a->ids + i;
		CAIRN_TRY(cairn_embedding_cpu(&one, stream));
	}
	return 0;
}

static int embedding_id_14_bits(const struct cairn_embedding_args *a, void *stream)
{
	struct cairn_embedding_args other = *a;
	int32_t *ids;
	int ret;

	CAIRN_TRY(cairn_embedding_check(a));
	ids = malloc(((size_t)a->rows + 1) * sizeof(*ids));
	if (!ids)
		return -ENOMEM;
	for (int32_t i = 0; i < a->rows; i++)
		ids[i] = a->rows > 1024 && a->ids[i] > 0 ? a->ids[i] & 0x3fff : a->ids[i];
	other.size = sizeof(other);
	other.ids = ids;
	ret = cairn_embedding_ref(&other, stream);
	free(ids);
	return ret;
}

/* One row past whole tiles of 256, and 120 elements past whole tiles of 128. */
static int embedding_corner_of_257_by_120(const struct cairn_embedding_args *a, void *stream)
{
	CAIRN_TRY(cairn_embedding_ref(a, stream));
	if (a->rows > 256 && a->rows % 256 == 1 && a->dim % 128 == 120)
		cairn_store(a->out, a->dtype, (int64_t)a->rows * a->dim - 1, 0);
	return 0;
}

const struct cairn_mutant cairn_embedding_mutants[] = {
	MUTANT(embedding, row_plus_1, "copies the row of the next token"),
	MUTANT(embedding, clamped, "clamps an id outside the vocabulary"),
	MUTANT(embedding, vocab_itself_legal, "accepts id == vocab"),
	MUTANT(embedding, negative_not_zeroed, "does not zero rows of negative ids"),
	MUTANT(embedding, last_8_skipped, "does not write the last vector of each row"),
	MUTANT(embedding, through_bf16, "copies f16 and f32 tables through bf16"),
	MUTANT(embedding, scale_ignored, "omits the scale"),
	MUTANT(embedding, scale_twice, "applies the scale twice"),
	MUTANT(embedding, scale_rounded, "rounds the scale to bf16 for every dtype"),
	MUTANT(embedding, scale_truncated, "truncates the product instead of rounding it"),
	MUTANT(embedding, zero_scale_applied, "multiplies by a scale of 0"),
	MUTANT(embedding, id_of_8_bits, "takes ids modulo 256"),
	MUTANT(embedding, nan_is_0, "copies NaN as 0"),
	MUTANT(embedding, infinity_clamped, "clamps infinities of a scaled row to the largest finite value"),
	MUTANT(embedding, last_8_of_scaled,
	       "does not write the last vector of a scaled row unless dim is a multiple of 16"),
	MUTANT(embedding, far_bytes_32_bits, "cuts the offset of a row to 32 bits"),
	MUTANT(embedding, far_elements_32_bits, "cuts the number of a row's first element to 32 bits"),
	MUTANT(embedding, far_scaled_32_bits, "with a scale, cuts the offset of a row to 32 bits"),
	MUTANT(embedding, far_id_16_bits, "cuts ids to 16 bits"),
	MUTANT(embedding, id_14_bits, "with more than 1024 rows takes ids modulo 2^14"),
	MUTANT(embedding, rows_16_bits, "cuts the number of rows to 16 bits"),
	MUTANT(embedding, unknown_ignored, "takes a struct with unknown members"),
	MUTANT(embedding, unknown_first_alone, "looks at the first unknown byte alone"),
	MUTANT(embedding, rounded_once, "rounds a product from double to dtype"),
	MUTANT(embedding, tail_of_long_rows,
	       "does not copy the end of a row of more than 4096 bytes past a multiple of 64"),
	MUTANT(embedding, rows_of_8, "does not write the last of 8 n + 7 rows"),
	MUTANT(embedding, subnormal_scale_is_0, "copies a row without scaling it if the scale is subnormal"),
	MUTANT(embedding, nan_quieted, "quiets a NaN that it copies"),
	MUTANT(embedding, id_as_float, "passes ids through fp32"),
	MUTANT(embedding, out_32_bits, "cuts the offset of a row of out to 32 bits"),
	{ "embedding_corner_of_257_by_120", offsetof(struct cairn_impl, embedding),
	  (void *)embedding_corner_of_257_by_120,
	  "with one row and 120 elements past whole tiles, the last element is 0" },
	{ 0 }
};
