// SPDX-License-Identifier: Apache-2.0
/* gemm_w4_pack - converts the layouts of checkpoints to that of gemm_w4 (gemm_w4_pack.h) */
#include "primitives/gemm/w4/gemm_w4_pack.h"

#include <string.h>

#include "primitives/base/error.h"

/* Inlined, so that the loop over elements has no calls. */
#define INLINE	static inline __attribute__((always_inline))

typedef int code_fn(const struct cairn_w4_checkpoint *c, int64_t j, int64_t l);

/* How a checkpoint stores what belongs to row j and element l or group nth */
struct kind {
	const char *name;
	int32_t format, group;		/* group: the only one, or 0: any that gemm_w4 has */
	int32_t by_rows;		/* scales are [n, groups], and zero points may be missing */
	void (*unit)(const struct cairn_w4_checkpoint *c, int64_t unit, uint8_t *b);	/* packs 16 rows */
	int (*zero)(const struct cairn_w4_checkpoint *c, int64_t j, int64_t nth);
};

INLINE int nibble(uint32_t word, int64_t i)
{
	return (int)(word >> 4 * i & 15);
}

/* Returns the nibble of row j in a word of AWQ. */
INLINE int64_t awq_place(int64_t j)
{
	return j % 2 * 4 + j % 8 / 2;
}

INLINE int awq_code(const struct cairn_w4_checkpoint *c, int64_t j, int64_t l)
{
	return nibble(((const uint32_t *)c->codes)[l * (c->n / 8) + j / 8], awq_place(j));
}

static int awq_zero(const struct cairn_w4_checkpoint *c, int64_t j, int64_t nth)
{
	return nibble(((const uint32_t *)c->zeros)[nth * (c->n / 8) + j / 8], awq_place(j));
}

INLINE int gptq_code(const struct cairn_w4_checkpoint *c, int64_t j, int64_t l)
{
	return nibble(((const uint32_t *)c->codes)[l / 8 * c->n + j], l % 8);
}

static int gptq_zero(const struct cairn_w4_checkpoint *c, int64_t j, int64_t nth)
{
	return nibble(((const uint32_t *)c->zeros)[nth * (c->n / 8) + j / 8], j % 8) + !c->zeros_as_they_are;
}

static int packed_zero(const struct cairn_w4_checkpoint *c, int64_t j, int64_t nth)
{
	int64_t groups = cairn_w4_groups(c->k, c->group);

	return c->zeros ? nibble(((const uint32_t *)c->zeros)[j / 8 * groups + nth], j % 8) : 8;
}

INLINE int row_code(const struct cairn_w4_checkpoint *c, int64_t j, int64_t l)
{
	return ((const uint8_t *)c->codes)[j * (c->k / 2) + l / 2] >> l % 2 * 4 & 15;
}

/*
 * Packs the codes of 16 rows in the order of INT. In a tile, the places of a row are those of its first row
 * plus a constant.
 */
INLINE void pack_unit(const struct cairn_w4_checkpoint *c, int64_t unit, uint8_t *b, code_fn *code)
{
	const int64_t j0 = unit * CAIRN_W4_ROWS;
	int32_t places[CAIRN_W4_TILE_K];

	for (int64_t l = 0; l < CAIRN_W4_TILE_K; l++)
		places[l] = (int32_t)cairn_w4_nibble(c->k, 0, l);
	for (int64_t j = j0; j < j0 + CAIRN_W4_ROWS && j < c->n; j++)
		for (int64_t l0 = 0; l0 < c->k; l0 += CAIRN_W4_TILE_K) {
			uint8_t *to = b + cairn_w4_nibble(c->k, j0, l0) / 2;
			int64_t n = c->k - l0 < CAIRN_W4_TILE_K ? c->k - l0 : CAIRN_W4_TILE_K;
			int32_t moved = (int32_t)cairn_w4_nibble(c->k, j - j0, 0);

			for (int64_t l = 0; l < n; l++) {
				uint32_t at = (uint32_t)(places[l] + moved);

				to[at / 2] |= (uint8_t)(code(c, j, l0 + l) << at % 2 * 4);
			}
		}
}

#define UNIT(name) \
	static void name##_unit(const struct cairn_w4_checkpoint *c, int64_t unit, uint8_t *b) \
	{ \
		pack_unit(c, unit, b, name##_code); \
	}

UNIT(awq)
UNIT(gptq)
UNIT(row)

static int check(const struct cairn_w4_checkpoint *c, const struct kind *kind)
{
	if (!c->codes || !c->scales || (kind->zero && !kind->by_rows && !c->zeros))
		return cairn_error(EINVAL, "%s: a tensor of the weight is missing", kind->name);
	if (c->n < 1 || c->k < 1)
		return cairn_error(EINVAL, "%s: n %d, k %d: must be >= 1", kind->name, c->n, c->k);
	if (c->k % 32)
		return cairn_error(EOPNOTSUPP, "%s: k %d is not a multiple of 32", kind->name, c->k);
	if (kind->zero && c->n % 8)
		return cairn_error(EINVAL, "%s: n %d is not a multiple of 8", kind->name, c->n);
	if (kind->group ? c->group != kind->group :
	    c->group && c->group != 32 && c->group != 64 && c->group != 128)
		return cairn_error(EOPNOTSUPP, "%s: groups of %d are not supported", kind->name, c->group);
	return 0;
}

static int check_order(const struct cairn_w4_checkpoint *c)
{
	for (int32_t l = 0; c->g_idx && l < c->k; l++)
		if (c->g_idx[l] != (c->group ? l / c->group : 0))
			return cairn_error(EOPNOTSUPP, "gptq: g_idx: element %d is in group %d: activation "
					   "order (desc_act) is not supported", l, c->g_idx[l]);
	return 0;
}

static void pack_scales(const struct cairn_w4_checkpoint *c, const struct kind *kind, int64_t j,
			uint8_t *b_scale)
{
	int64_t groups = cairn_w4_groups(c->k, c->group), at = cairn_w4_place(j);

	for (int64_t nth = 0; nth < groups; nth++) {
		uint8_t *cell = b_scale + cairn_w4_cell(kind->format, c->k, c->group, j, nth);

		if (kind->format == CAIRN_W4_INT) {
			int64_t from = kind->by_rows ? j * groups + nth : nth * c->n + j;

			memcpy(cell + 2 * at, (const uint16_t *)c->scales + from, sizeof(uint16_t));
			cell[2 * CAIRN_W4_ROWS + at] = (uint8_t)kind->zero(c, j, nth);
		} else {
			cell[at] = ((const uint8_t *)c->scales)[j * groups + nth];
		}
	}
}

/* Brings words from the order of INT to that of a format. */
static void order(int32_t format, uint8_t *b, int64_t bytes)
{
	for (int64_t at = 0; at < bytes && format != CAIRN_W4_INT; at += 4)
		cairn_w4_store_word(b + at, cairn_w4_ordered(format, cairn_w4_load_word(b + at)));
}

static int pack(const struct cairn_w4_checkpoint *c, const struct kind *kind, uint8_t *b, uint8_t *b_scale)
{
	const int64_t unit_bytes = (int64_t)cairn_w4_tiles(c->k) * CAIRN_W4_TILE_BYTES;

	CAIRN_TRY(check(c, kind));
	memset(b, 0, (size_t)cairn_w4_code_bytes(c->n, c->k));
	memset(b_scale, 0, (size_t)cairn_w4_scale_bytes(kind->format, c->n, c->k, c->group));
	/* rows of a tile share bytes of b, so that a thread takes whole tiles */
	#pragma omp parallel for schedule(static) if ((double)c->n * c->k > 1e6)
	for (int32_t unit = 0; unit < cairn_w4_units(c->n); unit++) {
		int64_t first = (int64_t)unit * CAIRN_W4_ROWS, end = first + CAIRN_W4_ROWS;

		kind->unit(c, unit, b);
		order(kind->format, b + unit * unit_bytes, unit_bytes);
		for (int64_t j = first; j < end && j < c->n; j++)
			pack_scales(c, kind, j, b_scale);
	}
	return 0;
}

int cairn_w4_pack_awq(const struct cairn_w4_checkpoint *c, uint8_t *b, uint8_t *b_scale)
{
	static const struct kind kind = { "awq", CAIRN_W4_INT, 0, 0, awq_unit, awq_zero };

	return pack(c, &kind, b, b_scale);
}

int cairn_w4_pack_gptq(const struct cairn_w4_checkpoint *c, uint8_t *b, uint8_t *b_scale)
{
	static const struct kind kind = { "gptq", CAIRN_W4_INT, 0, 0, gptq_unit, gptq_zero };

	CAIRN_TRY(check(c, &kind));
	CAIRN_TRY(check_order(c));
	return pack(c, &kind, b, b_scale);
}

int cairn_w4_pack_rows(const struct cairn_w4_checkpoint *c, uint8_t *b, uint8_t *b_scale)
{
	static const struct kind kind = { "packed", CAIRN_W4_INT, 0, 1, row_unit, packed_zero };

	return pack(c, &kind, b, b_scale);
}

int cairn_w4_pack_mxfp4(const struct cairn_w4_checkpoint *c, uint8_t *b, uint8_t *b_scale)
{
	static const struct kind kind = { "mxfp4", CAIRN_W4_MX, 32, 0, row_unit, NULL };

	return pack(c, &kind, b, b_scale);
}

int cairn_w4_pack_nvfp4(const struct cairn_w4_checkpoint *c, uint8_t *b, uint8_t *b_scale)
{
	static const struct kind kind = { "nvfp4", CAIRN_W4_NV, 16, 0, row_unit, NULL };

	return pack(c, &kind, b, b_scale);
}
