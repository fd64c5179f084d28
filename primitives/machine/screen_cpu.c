// SPDX-License-Identifier: Apache-2.0
/*
 * screen_cpu - screen without a GPU: every unit is a thread, which computes all of its parts itself
 *
 * The tiles of a tensor program are decoded once per round, B with its columns side by side so that the
 * compiler vectorises over them. Sums of S8 and of EXACT inputs stay below 2^24, so that fp32 holds them
 * exactly. The 32 lanes of a part are the inner loop of everything else.
 */
#include "primitives/machine/screen_words.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/fp8.h"

#define LANES	32
#define COLS	CAIRN_SCREEN_ROWS_B
#define MOST	512			/* elements of a row, at most */

/* What a unit keeps between steps: the tiles of the round. */
struct unit {
	float a[CAIRN_SCREEN_ROWS_A][MOST];
	float b[MOST][COLS];
	uint32_t memory[CAIRN_SCREEN_WORDS];
	uint32_t word[CAIRN_SCREEN_PARTS][CAIRN_SCREEN_WORDS];	/* results of the latest step */
};

struct program {
	int32_t name, inputs;
	uint64_t key;
};

static float decode(int32_t program, uint32_t code)
{
	return program == CAIRN_SCREEN_F16 ? cairn_f16_to_float((uint16_t)code) :
	       program == CAIRN_SCREEN_BF16 ? cairn_bf16_to_float((uint16_t)code) :
	       program == CAIRN_SCREEN_TF32 ? cairn_screen_float(code) :
	       program == CAIRN_SCREEN_E4M3 ? cairn_e4m3_to_float((uint8_t)code) :
	       program == CAIRN_SCREEN_E5M2 ? cairn_f16_to_float((uint16_t)(code << 8)) : (float)(int8_t)code;
}

static void make_tiles(struct unit *unit, const struct program *p)
{
	int bits = cairn_screen_element_bits(p->name), per_word = 32 / bits;

	for (int i = 0; i < CAIRN_SCREEN_B(COLS, 0); i++) {
		uint32_t word = cairn_screen_elements(p->name, p->inputs,
						      cairn_screen_word(p->key, p->inputs, i), i);
		int row = i / CAIRN_SCREEN_ROW_WORDS, k = i % CAIRN_SCREEN_ROW_WORDS * per_word;

		for (int e = 0; e < per_word; e++) {
			float x = decode(p->name, word >> e * bits & (~0u >> (32 - bits)));

			if (row < CAIRN_SCREEN_ROWS_A)
				unit->a[row][k + e] = x;
			else
				unit->b[k + e][row - CAIRN_SCREEN_ROWS_A] = x;
		}
	}
}

static void multiply(struct unit *unit, const struct program *p, int step)
{
	int len = CAIRN_SCREEN_ROW_WORDS * 32 / cairn_screen_element_bits(p->name);
	int shift = step % CAIRN_SCREEN_SLICES * (len / CAIRN_SCREEN_SLICES);

	for (int row = 0; row < CAIRN_SCREEN_ROWS_A; row++) {
		uint32_t *word = unit->word[row / 16] + row % 16 * COLS;
		float sum[COLS] = { 0 };

		for (int k = 0; k < len; k++) {
			const float *b = unit->b[(k + shift) % len];
			float a = unit->a[row][k];

			for (int c = 0; c < COLS; c++)
				sum[c] += a * b[c];
		}
		for (int c = 0; c < COLS; c++)
			word[c] = p->name == CAIRN_SCREEN_S8 ? (uint32_t)(int32_t)sum[c] :
				  cairn_screen_float_bits(sum[c]);
	}
}

static void load_words(const struct program *p, int part, int step, int n, uint32_t *word, int count)
{
	for (int i = 0; i < count; i++)
		word[i] = cairn_screen_word(p->key, p->inputs, CAIRN_SCREEN_STEP(part, step) + n + i);
}

static void run_f32(const struct program *p, int part, int step, uint32_t *word)
{
	for (int j = 0; j < 8; j++) {
		uint32_t start[2 * LANES];
		float x[LANES], a[LANES], b[LANES], d[LANES];

		load_words(p, part, step, 64 * j, start, 2 * LANES);
		for (int l = 0; l < LANES; l++) {
			x[l] = cairn_screen_f32_start(start[l]);
			a[l] = cairn_screen_f32_parameter(start[LANES + l]);
			b[l] = -6 * a[l];
			d[l] = fmaf(-9, a[l], 4);
		}
		for (int i = 0; i < CAIRN_SCREEN_F32_LINKS; i++)
			for (int l = 0; l < LANES; l++)
				x[l] = fmaf(-fmaf(a[l], x[l], b[l]), x[l], d[l]);
		memcpy(word + LANES * j, x, sizeof(x));
	}
}

static void run_f64(const struct program *p, int part, int step, uint32_t *word)
{
	for (int j = 0; j < 4; j++) {
		uint32_t start[2 * LANES];
		double x[LANES], a[LANES], b[LANES], d[LANES];

		load_words(p, part, step, 64 * j, start, 2 * LANES);
		for (int l = 0; l < LANES; l++) {
			x[l] = cairn_screen_f64_start(start[l]);
			a[l] = cairn_screen_f64_parameter(start[LANES + l]);
			b[l] = -6 * a[l];
			d[l] = fma(-9, a[l], 4);
		}
		for (int i = 0; i < CAIRN_SCREEN_F64_LINKS; i++)
			for (int l = 0; l < LANES; l++)
				x[l] = fma(-fma(a[l], x[l], b[l]), x[l], d[l]);
		for (int l = 0; l < LANES; l++) {
			uint64_t bits;

			memcpy(&bits, &x[l], sizeof(bits));
			word[64 * j + l] = (uint32_t)bits;
			word[64 * j + LANES + l] = (uint32_t)(bits >> 32);
		}
	}
}

static void run_int(const struct program *p, int part, int step, uint32_t *word)
{
	uint32_t (*x)[LANES] = (uint32_t (*)[LANES])word;

	load_words(p, part, step, 0, word, 8 * LANES);
	for (int i = 0; i < CAIRN_SCREEN_INT_LINKS; i++) {
		int u = i % 8;

		for (int j = 0; j < 8; j++)
			for (int l = 0; l < LANES; l++)
				x[j][l] = x[j][l] * CAIRN_SCREEN_INT_FACTOR + x[(j + 1) % 8][l];
		for (int j = 0; j < 8; j++)
			for (int l = 0; l < LANES; l++)
				x[j][l] = (x[j][l] << (7 + j) | x[j][l] >> (25 - j)) ^
					  (x[(j + 3) % 8][l] & ~x[(j + 6) % 8][l]);
		for (int l = 0; l < LANES; l++)
			x[u][l] += x[(u + 1) % 8][l ^ 1 << u % 5];
	}
}

static float special(int function, float x)
{
	switch (function) {
	case CAIRN_SCREEN_EX2:
		return exp2f(x);
	case CAIRN_SCREEN_LG2:
		return log2f(x);
	case CAIRN_SCREEN_RCP:
		return 1 / x;
	case CAIRN_SCREEN_RSQRT:
		return 1 / sqrtf(x);
	case CAIRN_SCREEN_SQRT:
		return sqrtf(x);
	case CAIRN_SCREEN_SIN:
		return sinf(x);
	case CAIRN_SCREEN_COS:
		return cosf(x);
	}
	return tanhf(x);
}

static void run_special(const struct program *p, int part, int step, uint32_t *word)
{
	uint32_t start[CAIRN_SCREEN_NUM_FUNCTIONS * LANES];

	load_words(p, part, step, 0, start, CAIRN_SCREEN_NUM_FUNCTIONS * LANES);
	for (int n = 0; n < 64; n++)
		for (int l = 0; l < LANES; l++) {
			int f = n % CAIRN_SCREEN_NUM_FUNCTIONS;
			float u = (float)(start[LANES * f + l] >> 8) * 0x1p-24f;
			float at = fmaf(u, 0.5f, (float)(n / CAIRN_SCREEN_NUM_FUNCTIONS) * 0.0625f);

			volatile float x = fmaf(at, cairn_screen_width(f), cairn_screen_low(f));

			/* volatile: the compiler would merge evaluations of the same value */
			word[LANES * n + l] = 3 * cairn_screen_float_bits(special(f, x)) -
					      cairn_screen_float_bits(special(f, x)) -
					      cairn_screen_float_bits(special(f, x));
		}
}

/* The march goes through memory as that of a GPU does: complements alternate between down and up. */
static void run_memory(const struct program *p, volatile uint32_t *memory, int part, int step, uint32_t *word)
{
	load_words(p, part, step, 0, word, CAIRN_SCREEN_WORDS);
	for (int i = 0; i < CAIRN_SCREEN_WORDS; i++)
		memory[i] = word[i];
	for (int k = 0; k < CAIRN_SCREEN_COMPLEMENTS; k++)
		for (int i = 0; i < CAIRN_SCREEN_WORDS; i++) {
			int at = k % 2 ? i : CAIRN_SCREEN_WORDS - 1 - i;

			memory[at] = ~memory[at];
		}
	for (int i = 0; i < CAIRN_SCREEN_WORDS; i++) {
		uint32_t x = memory[i];

		memory[i] = x << 1 | x >> 31;
	}
	for (int i = 0; i < CAIRN_SCREEN_WORDS; i++)
		word[i] = memory[i];
}

static void run_step(struct unit *unit, const struct program *p, int step)
{
	if (p->name < CAIRN_SCREEN_NUM_TENSOR) {
		multiply(unit, p, step);
		return;
	}
	for (int part = 0; part < CAIRN_SCREEN_PARTS; part++) {
		uint32_t *word = unit->word[part];

		switch (p->name) {
		case CAIRN_SCREEN_F32:
			run_f32(p, part, step, word);
			break;
		case CAIRN_SCREEN_F64:
			run_f64(p, part, step, word);
			break;
		case CAIRN_SCREEN_INT:
			run_int(p, part, step, word);
			break;
		case CAIRN_SCREEN_SPECIAL:
			run_special(p, part, step, word);
			break;
		default:
			run_memory(p, unit->memory, part, step, word);
		}
	}
}

static void add_words(const uint32_t *word, int32_t num_words, int step, uint64_t digest[2])
{
	uint64_t weight = 2 * (uint64_t)step * CAIRN_SCREEN_WORDS + 1;

	for (int i = 0; i < num_words; i++, weight += 2) {
		digest[0] += word[i];
		digest[1] += word[i] * weight;
	}
}

static int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static void run_round(struct unit *unit, const struct cairn_screen_args *a, int r, size_t at)
{
	uint64_t *digest = &a->digest[at * CAIRN_SCREEN_PARTS * 2];
	struct program programs[CAIRN_SCREEN_GROUPS];
	int64_t round = a->first_round + r;

	for (int g = 0; g < CAIRN_SCREEN_GROUPS; g++) {
		struct program *p = &programs[g];

		p->name = a->program == CAIRN_SCREEN_MIX ?
			  cairn_screen_drawn(a->seed, a->inputs, round, g) : a->program;
		p->inputs = a->inputs;
		p->key = cairn_screen_key(a->seed, p->name, round);
	}
	/* in MIX, group 0 alone draws a tensor program */
	if (programs[0].name < CAIRN_SCREEN_NUM_TENSOR)
		make_tiles(unit, &programs[0]);
	a->start_ns[at] = now_ns();
	for (int s = 0; s < a->steps; s++) {
		const struct program *p = &programs[s % CAIRN_SCREEN_GROUPS];

		run_step(unit, p, s);
		for (int part = 0; part < CAIRN_SCREEN_PARTS; part++) {
			int32_t num_words = cairn_screen_words(p->name);

			memset(unit->word[part] + num_words, 0,
			       (CAIRN_SCREEN_WORDS - num_words) * sizeof(**unit->word));
			if (!a->last_only || s + 1 == a->steps)
				add_words(unit->word[part], num_words, s, digest + 2 * part);
		}
	}
}

int cairn_screen_cpu(const struct cairn_screen_args *a, void *stream)
{
	const size_t raw_words = CAIRN_SCREEN_PARTS * CAIRN_SCREEN_WORDS;
	int no_memory = 0;

	(void)stream;
	CAIRN_TRY(cairn_screen_check(a));
#pragma omp parallel for schedule(static) reduction(|:no_memory)
	for (int u = 0; u < a->units; u++) {
		struct unit *unit = malloc(sizeof(*unit));

		for (int r = 0; unit && r < a->rounds; r++) {
			size_t at = (size_t)r * a->units + u;

			memset(&a->digest[at * CAIRN_SCREEN_PARTS * 2], 0,
			       CAIRN_SCREEN_PARTS * 2 * sizeof(*a->digest));
			memset(&a->cycles[at * CAIRN_SCREEN_PARTS], 0,
			       CAIRN_SCREEN_PARTS * sizeof(*a->cycles));
			a->place[at] = a->only < 0 ? u : a->only;
			run_round(unit, a, r, at);
		}
		if (a->raw && unit)
			memcpy(&a->raw[u * raw_words], unit->word, sizeof(unit->word));
		no_memory |= !unit;
		free(unit);
	}
	return no_memory ? cairn_error(ENOMEM, "screen: no memory for the tiles of %d units", a->units) : 0;
}
