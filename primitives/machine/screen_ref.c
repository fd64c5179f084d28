// SPDX-License-Identifier: Apache-2.0
/*
 * screen_ref - the reference: computes every step directly from the definitions of screen.h, once for all
 * units
 *
 * This paragraph derives the bounds where hardware may round as it likes. Tensor cores align the products of
 * a slice and the sum so far to the largest of them and truncate what lies below: 2^-13 of it for 8-bit
 * floats (fused/attention/fp8), at most 2^-23 for the others. Each term loses at most that much; the bound
 * allows twice the loss, for every slice. The bound of a special function is twice the largest error that the
 * PTX ISA manual (9.7.3) gives for the approximation.
 */
#include "primitives/machine/screen_words.h"

#include <math.h>
#include <stdlib.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/fp8.h"

#define LANES	32

/* The step to compute, and where its results go; the arrays hold CAIRN_SCREEN_WORDS elements. */
struct step {
	int32_t program, inputs, part, step;
	uint64_t key;
	double *val, *bound;
	uint32_t *word;
};

static uint32_t start_word(const struct step *s, uint32_t n)
{
	return cairn_screen_word(s->key, s->inputs, CAIRN_SCREEN_STEP(s->part, s->step) + n);
}

static void put(const struct step *s, int i, double val, double bound, uint32_t word)
{
	if (s->val)
		s->val[i] = val;
	if (s->bound)
		s->bound[i] = bound;
	if (s->word)
		s->word[i] = word;
}

static double element(int32_t program, uint32_t code)
{
	switch (program) {
	case CAIRN_SCREEN_F16:
		return cairn_f16_to_float((uint16_t)code);
	case CAIRN_SCREEN_BF16:
		return cairn_bf16_to_float((uint16_t)code);
	case CAIRN_SCREEN_TF32:
		return cairn_screen_float(code);
	case CAIRN_SCREEN_E4M3:
		return cairn_e4m3_to_float((uint8_t)code);
	case CAIRN_SCREEN_E5M2:		/* the upper half of an f16 */
		return cairn_f16_to_float((uint16_t)(code << 8));
	}
	return (int8_t)code;
}

/* Writes the elements of one row of a tile; `first` is the number of its first word. */
static void make_row(const struct step *s, uint32_t first, double *row)
{
	int bits = cairn_screen_element_bits(s->program), per_word = 32 / bits;

	for (int w = 0; w < CAIRN_SCREEN_ROW_WORDS; w++) {
		uint32_t drawn = cairn_screen_word(s->key, s->inputs, first + w);
		uint32_t word = cairn_screen_elements(s->program, s->inputs, drawn, first + w);

		for (int k = 0; k < per_word; k++)
			row[w * per_word + k] = element(s->program, word >> k * bits & (~0u >> (32 - bits)));
	}
}

/* Computes element i of D from a row of A and one of B. */
static void product(const struct step *s, const double *a, const double *b, int i)
{
	int slice = 256 / cairn_screen_element_bits(s->program);
	int narrow = s->program == CAIRN_SCREEN_E4M3 || s->program == CAIRN_SCREEN_E5M2;
	int defined = cairn_screen_is_defined(s->program, s->inputs);
	double sum = 0, lost = 0;

	for (int k = 0; k < CAIRN_SCREEN_SLICES; k++) {
		const double *x = a + k * slice, *y = b + (k + s->step) % CAIRN_SCREEN_SLICES * slice;
		double largest = fabs(sum);

		for (int e = 0; e < slice; e++)
			sum += x[e] * y[e];
		if (defined)
			continue;
		for (int e = 0; e < slice; e++)
			largest = fmax(largest, fabs(x[e] * y[e]));
		largest = fmax(largest, fabs(sum));
		lost += 2 * (slice + 2) * largest * (narrow ? 0x1p-13 : 0x1p-23);
	}
	put(s, i, sum, lost, s->program == CAIRN_SCREEN_S8 ? (uint32_t)(int32_t)sum :
	    cairn_screen_float_bits((float)sum));
}

static int tensor(const struct step *s)
{
	int len = CAIRN_SCREEN_ROW_WORDS * 32 / cairn_screen_element_bits(s->program), rows = 16;
	double *tile = malloc((size_t)(rows + 1) * len * sizeof(*tile)), *b = tile + (size_t)rows * len;

	if (!tile)
		return cairn_error(ENOMEM, "screen: no memory for a tile");
	for (int r = 0; r < rows; r++)
		make_row(s, CAIRN_SCREEN_A(rows * s->part + r, 0), tile + (size_t)r * len);
	for (int c = 0; c < CAIRN_SCREEN_ROWS_B; c++) {
		make_row(s, CAIRN_SCREEN_B(c, 0), b);
		for (int r = 0; r < rows; r++)
			product(s, tile + (size_t)r * len, b, CAIRN_SCREEN_ROWS_B * r + c);
	}
	free(tile);
	return 0;
}

static void f32_chains(const struct step *s)
{
	for (int j = 0; j < 8; j++)
		for (int lane = 0; lane < LANES; lane++) {
			float x = cairn_screen_f32_start(start_word(s, 64 * j + lane));
			float a = cairn_screen_f32_parameter(start_word(s, 64 * j + 32 + lane));
			float b = -6 * a, d = fmaf(-9, a, 4);

			for (int i = 0; i < CAIRN_SCREEN_F32_LINKS; i++)
				x = fmaf(-fmaf(a, x, b), x, d);
			put(s, 32 * j + lane, x, 0, cairn_screen_float_bits(x));
		}
}

static void f64_chains(const struct step *s)
{
	for (int j = 0; j < 4; j++)
		for (int lane = 0; lane < LANES; lane++) {
			double x = cairn_screen_f64_start(start_word(s, 64 * j + lane));
			double a = cairn_screen_f64_parameter(start_word(s, 64 * j + 32 + lane));
			double b = -6 * a, d = fma(-9, a, 4);
			uint64_t bits;

			for (int i = 0; i < CAIRN_SCREEN_F64_LINKS; i++)
				x = fma(-fma(a, x, b), x, d);
			memcpy(&bits, &x, sizeof(bits));
			put(s, 64 * j + lane, x, 0, (uint32_t)bits);
			put(s, 64 * j + 32 + lane, x, 0, (uint32_t)(bits >> 32));
		}
}

static uint32_t rotate(uint32_t x, int n)
{
	return x << n | x >> (32 - n);
}

static void int_lanes(const struct step *s)
{
	uint32_t x[LANES][8], given[LANES];

	for (int lane = 0; lane < LANES; lane++)
		for (int j = 0; j < 8; j++)
			x[lane][j] = start_word(s, 32 * j + lane);
	for (int i = 0; i < CAIRN_SCREEN_INT_LINKS; i++) {
		int u = i % 8;

		for (int lane = 0; lane < LANES; lane++) {
			uint32_t *y = x[lane];

			for (int j = 0; j < 8; j++)
				y[j] = y[j] * CAIRN_SCREEN_INT_FACTOR + y[(j + 1) % 8];
			for (int j = 0; j < 8; j++)
				y[j] = rotate(y[j], 7 + j) ^ (y[(j + 3) % 8] & ~y[(j + 6) % 8]);
			given[lane] = y[(u + 1) % 8];
		}
		for (int lane = 0; lane < LANES; lane++)
			x[lane][u] += given[lane ^ 1 << u % 5];
	}
	for (int j = 0; j < 8; j++)
		for (int lane = 0; lane < LANES; lane++)
			put(s, 32 * j + lane, x[lane][j], 0, x[lane][j]);
}

/* Returns a function's value, and the largest error of an approximation. */
static double special(int function, double x, double *bound)
{
	double y;

	switch (function) {
	case CAIRN_SCREEN_EX2:		/* 2^-22 of the value */
		y = exp2(x);
		*bound = 0x1p-21 * y;
		break;
	case CAIRN_SCREEN_LG2:		/* 2^-22, of the value where that is above 1 */
		y = log2(x);
		*bound = 0x1p-21 * fmax(1, fabs(y));
		break;
	case CAIRN_SCREEN_RCP:		/* 1 ulp */
		y = 1 / x;
		*bound = 0x1p-22 * y;
		break;
	case CAIRN_SCREEN_RSQRT:	/* 2^-22.9 of the value */
		y = 1 / sqrt(x);
		*bound = 0x1p-21 * y;
		break;
	case CAIRN_SCREEN_SQRT:		/* 2^-23 of the value */
		y = sqrt(x);
		*bound = 0x1p-22 * y;
		break;
	case CAIRN_SCREEN_SIN:		/* 2^-20.5 from -pi to pi */
		y = sin(x);
		*bound = 0x1p-19;
		break;
	case CAIRN_SCREEN_COS:
		y = cos(x);
		*bound = 0x1p-19;
		break;
	default:			/* TANH: 2^-11 of the value */
		y = tanh(x);
		*bound = 0x1p-10 * fabs(y);
		break;
	}
	return y;
}

static void special_lanes(const struct step *s)
{
	for (int n = 0; n < 64; n++)
		for (int lane = 0; lane < LANES; lane++) {
			int f = n % CAIRN_SCREEN_NUM_FUNCTIONS, e = n / CAIRN_SCREEN_NUM_FUNCTIONS;
			float u = (float)(start_word(s, 32 * f + lane) >> 8) * 0x1p-24f;
			float x = fmaf(fmaf(u, 0.5f, (float)e / 16), cairn_screen_width(f),
				       cairn_screen_low(f));
			double bound, y = special(f, x, &bound);

			put(s, 32 * n + lane, y, bound, cairn_screen_float_bits((float)y));
		}
}

static void memory(const struct step *s)
{
	for (int i = 0; i < CAIRN_SCREEN_WORDS; i++) {
		uint32_t word = rotate(~start_word(s, i), 1);

		put(s, i, word, 0, word);
	}
}

int cairn_screen_exact(const struct cairn_screen_args *a, int64_t round, int32_t part, int32_t step,
		       double *val, double *bound, uint32_t *word)
{
	struct step s = { a->program, a->inputs, part, step, 0, val, bound, word };
	int ret = 0;

	if (s.program == CAIRN_SCREEN_MIX)
		s.program = cairn_screen_drawn(a->seed, a->inputs, round, step % CAIRN_SCREEN_GROUPS);
	s.key = cairn_screen_key(a->seed, s.program, round);
	switch (s.program) {
	case CAIRN_SCREEN_F32:
		f32_chains(&s);
		break;
	case CAIRN_SCREEN_F64:
		f64_chains(&s);
		break;
	case CAIRN_SCREEN_INT:
		int_lanes(&s);
		break;
	case CAIRN_SCREEN_SPECIAL:
		special_lanes(&s);
		break;
	case CAIRN_SCREEN_MEMORY:
		memory(&s);
		break;
	default:
		ret = tensor(&s);
	}
	return ret ? ret : cairn_screen_words(s.program);
}

/* Computes the digest of a part in a round, and leaves the results of the last step in `word`. */
static int digest_part(const struct cairn_screen_args *a, int64_t round, int part, uint64_t digest[2],
		       uint32_t word[CAIRN_SCREEN_WORDS])
{
	int num_words;

	digest[0] = digest[1] = 0;
	memset(word, 0, CAIRN_SCREEN_WORDS * sizeof(*word));
	for (int s = a->last_only ? a->steps - 1 : 0; s < a->steps; s++) {
		memset(word, 0, CAIRN_SCREEN_WORDS * sizeof(*word));
		num_words = cairn_screen_exact(a, round, part, s, NULL, NULL, word);
		if (num_words < 0)
			return num_words;
		for (int i = 0; i < num_words; i++) {
			digest[0] += word[i];
			digest[1] += word[i] * (2 * ((uint64_t)s * CAIRN_SCREEN_WORDS + i) + 1);
		}
	}
	return 0;
}

int cairn_screen_ref(const struct cairn_screen_args *a, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_screen_check(a));
	for (int r = 0; r < a->rounds; r++) {
		uint64_t digest[CAIRN_SCREEN_PARTS][2];
		uint32_t word[CAIRN_SCREEN_PARTS][CAIRN_SCREEN_WORDS];

		for (int p = 0; p < CAIRN_SCREEN_PARTS; p++)
			CAIRN_TRY(digest_part(a, a->first_round + r, p, digest[p], word[p]));
		for (int u = 0; u < a->units; u++) {
			size_t at = (size_t)r * a->units + u, part = at * CAIRN_SCREEN_PARTS;

			memcpy(&a->digest[2 * part], digest, sizeof(digest));
			memset(&a->cycles[part], 0, CAIRN_SCREEN_PARTS * sizeof(*a->cycles));
			a->start_ns[at] = 0;
			a->place[at] = a->only < 0 ? u : a->only;
			if (a->raw && r + 1 == a->rounds)
				memcpy(&a->raw[u * sizeof(word) / sizeof(**word)], word, sizeof(word));
		}
	}
	return 0;
}
