// SPDX-License-Identifier: Apache-2.0
/*
 * screen_words_test - tests properties of the inputs and programs of screen on which the judges rely
 *
 * EXACT sums fit the narrowest accumulator and are never 0; all inputs are finite; a wrong bit in the middle
 * of a step shows in its results; MIX draws every program; the digests of lanes add up to the contract's.
 */
#include <math.h>
#include <string.h>

#include "conformance/harness.h"
#include "primitives/base/fp8.h"
#include "primitives/machine/screen_digest.h"

#define SEED	0x5eed5eed5eed5eedull
#define TRIES	4000

static void exact_sums_fit(struct cairn_test *t)
{
	struct cairn_screen_args a = { .size = sizeof(a), .seed = SEED, .inputs = CAIRN_SCREEN_EXACT };
	static double val[CAIRN_SCREEN_WORDS], bound[CAIRN_SCREEN_WORDS];

	for (a.program = 0; a.program < CAIRN_SCREEN_NUM_TENSOR; a.program++) {
		int narrow = a.program == CAIRN_SCREEN_E4M3 || a.program == CAIRN_SCREEN_E5M2;
		int odd = 0, fit = 0;

		EXPECT(t, cairn_screen_exact(&a, 3, 1, 5, val, bound, NULL) == CAIRN_SCREEN_WORDS);
		for (int i = 0; i < CAIRN_SCREEN_WORDS; i++) {
			odd += fmod(fabs(val[i]), 2) == 1;
			fit += fabs(val[i]) < (narrow ? 0x1p13 : 0x1p23) && bound[i] == 0;
		}
		if (!EXPECT(t, odd == CAIRN_SCREEN_WORDS) || !EXPECT(t, fit == CAIRN_SCREEN_WORDS))
			cairn_note(t, "%s: of %d sums %d are odd and %d fit",
				   cairn_screen_program_name(a.program), CAIRN_SCREEN_WORDS, odd, fit);
	}
}

/* The largest sum of EXACT products fits as well, whatever is drawn: 2^13 for 8-bit floats, else 2^23. */
static void largest_sums_fit(struct cairn_test *t)
{
	for (int program = 0; program < CAIRN_SCREEN_NUM_TENSOR; program++) {
		int narrow = program == CAIRN_SCREEN_E4M3 || program == CAIRN_SCREEN_E5M2;
		double most = narrow ? 3 : 127, n = 32 * CAIRN_SCREEN_ROW_WORDS /
						    cairn_screen_element_bits(program);

		EXPECT(t, (n - 1) * most * most + (most + 1) * most < (narrow ? 0x1p13 : 0x1p23));
	}
}

static float decode(int program, uint32_t code)
{
	return program == CAIRN_SCREEN_F16 ? cairn_f16_to_float((uint16_t)code) :
	       program == CAIRN_SCREEN_BF16 ? cairn_bf16_to_float((uint16_t)code) :
	       program == CAIRN_SCREEN_TF32 ? cairn_screen_float(code) :
	       program == CAIRN_SCREEN_E4M3 ? cairn_e4m3_to_float((uint8_t)code) :
	       cairn_f16_to_float((uint16_t)(code << 8));
}

static void inputs_are_finite(struct cairn_test *t)
{
	for (int program = 0; program < CAIRN_SCREEN_S8; program++)
		for (int inputs = 0; inputs < CAIRN_SCREEN_NUM_INPUTS; inputs++) {
			double most = inputs == CAIRN_SCREEN_EXACT ? 128 : 2;
			uint64_t key = cairn_screen_key(SEED, program, 1);
			int bits = cairn_screen_element_bits(program), bad = 0;

			for (uint32_t i = 0; i < TRIES; i++) {
				uint32_t word = cairn_screen_word(key, inputs, i);

				word = cairn_screen_elements(program, inputs, word, i);
				for (int k = 0; k < 32; k += bits) {
					uint32_t code = word >> k & (~0u >> (32 - bits));

					bad += !(fabs(decode(program, code)) <= most);
				}
			}
			if (!EXPECT(t, bad == 0))
				cairn_note(t, "%s, %s: %d elements are too large",
					   cairn_screen_program_name(program),
					   cairn_screen_inputs_name(inputs), bad);
		}
}

static void toggle_inputs_alternate(struct cairn_test *t)
{
	uint64_t key = cairn_screen_key(SEED, CAIRN_SCREEN_S8, 2);
	int complements = 0, patterns = 0;

	for (uint32_t i = 0; i < TRIES; i++) {
		uint32_t word = cairn_screen_word(key, CAIRN_SCREEN_TOGGLE, i);

		complements += word == ~cairn_screen_word(key, CAIRN_SCREEN_TOGGLE, i ^ 8);
		patterns |= word == 0x55555555 ? 1 : word == 0x33333333 ? 2 : word == 0x0f0f0f0f ? 4 : 0;
	}
	EXPECT(t, complements == TRIES);
	EXPECT(t, patterns == 7);
}

/*
 * Runs an fp32 chain, and flips one bit of x before link `at`; -1: none, and *sane becomes 0 if x leaves its
 * range.
 */
static uint32_t f32_chain(uint32_t start, uint32_t parameter, int at, int bit, int *sane)
{
	float x = cairn_screen_f32_start(start), a = cairn_screen_f32_parameter(parameter);

	for (int i = 0; i < CAIRN_SCREEN_F32_LINKS; i++) {
		if (i == at)
			x = cairn_screen_float(cairn_screen_float_bits(x) ^ 1u << bit);
		x = fmaf(-fmaf(a, x, -6 * a), x, fmaf(-9, a, 4));
		*sane &= at >= 0 || (x >= 2 && x <= 4.001f);
	}
	return cairn_screen_float_bits(x);
}

static uint64_t f64_chain(uint32_t start, uint32_t parameter, int at, int bit, int *sane)
{
	double x = cairn_screen_f64_start(start), a = cairn_screen_f64_parameter(parameter);
	uint64_t bits;

	for (int i = 0; i < CAIRN_SCREEN_F64_LINKS; i++) {
		memcpy(&bits, &x, sizeof(bits));
		bits ^= i == at ? 1ull << bit : 0;
		memcpy(&x, &bits, sizeof(x));
		x = fma(-fma(a, x, -6 * a), x, fma(-9, a, 4));
		*sane &= at >= 0 || (x >= 2 && x <= 4.001);
	}
	memcpy(&bits, &x, sizeof(bits));
	return bits;
}

static void flips_show_in_chains(struct cairn_test *t)
{
	int seen32 = 0, seen64 = 0, sane = 1;

	for (int i = 0; i < TRIES; i++) {
		uint64_t r = cairn_rand(t);
		uint32_t start = (uint32_t)cairn_rand(t), parameter = (uint32_t)cairn_rand(t);
		int at = (int)(r % CAIRN_SCREEN_F32_LINKS), bit = (int)(r >> 40);

		seen32 += f32_chain(start, parameter, at, bit % 32, &sane) !=
			  f32_chain(start, parameter, -1, 0, &sane);
		at %= CAIRN_SCREEN_F64_LINKS;
		seen64 += f64_chain(start, parameter, at, bit % 64, &sane) !=
			  f64_chain(start, parameter, -1, 0, &sane);
	}
	EXPECT(t, sane);
	if (!EXPECT(t, seen32 >= 0.97 * TRIES) || !EXPECT(t, seen64 >= 0.97 * TRIES))
		cairn_note(t, "of %d flips %d show in fp32, %d in fp64", TRIES, seen32, seen64);
}

static void every_program_is_drawn(struct cairn_test *t)
{
	int drawn[CAIRN_SCREEN_NUM_INPUTS][CAIRN_SCREEN_NUM_PROGRAMS] = { { 0 } };

	for (int inputs = 0; inputs < CAIRN_SCREEN_NUM_INPUTS; inputs++)
		for (int64_t round = 0; round < 200; round++)
			for (int g = 0; g < CAIRN_SCREEN_GROUPS; g++) {
				int program = cairn_screen_drawn(SEED, inputs, round, g);

				EXPECT(t, program >= 0 && program < CAIRN_SCREEN_MIX);
				EXPECT(t, (g == 0) == (program < CAIRN_SCREEN_NUM_TENSOR));
				drawn[inputs][program]++;
			}
	for (int inputs = 0; inputs < CAIRN_SCREEN_NUM_INPUTS; inputs++)
		for (int p = 0; p < CAIRN_SCREEN_MIX; p++)
			EXPECT(t, (drawn[inputs][p] > 0) == (p != CAIRN_SCREEN_SPECIAL ||
							      inputs != CAIRN_SCREEN_EXACT));
}

/* Compares the digests of lanes with the definition; first: the first step that enters the digest. */
static void compare_digests(struct cairn_test *t, int is_tile, int num_words, int first, int steps)
{
	static uint32_t words[CAIRN_SCREEN_WORDS];
	struct cairn_screen_digest lanes[CAIRN_SCREEN_GROUPS][32] = { 0 };
	uint64_t want[2] = { 0, 0 }, got[2] = { 0, 0 };

	for (int s = first; s < steps; s++) {
		for (int i = 0; i < 32 * num_words; i++) {
			words[i] = (uint32_t)cairn_rand(t) | 0xfff00000;	/* so that sums carry */
			want[0] += words[i];
			want[1] += words[i] * (2 * ((uint64_t)s * CAIRN_SCREEN_WORDS + i) + 1);
		}
		for (int lane = 0; lane < 32; lane++) {
			uint32_t word[64];

			for (int j = 0; j < num_words; j++)
				word[j] = words[cairn_screen_first(is_tile, lane) +
						cairn_screen_distance(is_tile, j)];
			cairn_screen_add(&lanes[s % CAIRN_SCREEN_GROUPS][lane], word, num_words);
		}
	}
	for (int g = 0; g < CAIRN_SCREEN_GROUPS; g++)
		for (int lane = 0; lane < 32; lane++) {
			uint64_t sums[2];

			cairn_screen_sums(&lanes[g][lane], is_tile, lane, num_words,
					  cairn_screen_last_step(g, steps), sums);
			got[0] += sums[0];
			got[1] += sums[1];
		}
	if (!EXPECT(t, got[0] == want[0] && got[1] == want[1]))
		cairn_note(t, "is_tile %d, num_words %d, steps %d to %d", is_tile, num_words, first, steps);
}

static void lanes_add_up(struct cairn_test *t)
{
	for (int steps = 1; steps <= 9; steps++)
		for (int last_only = 0; last_only <= 1; last_only++) {
			int first = last_only ? steps - 1 : 0;

			compare_digests(t, 1, 64, first, steps);
			compare_digests(t, 0, 64, first, steps);
			compare_digests(t, 0, 8, first, steps);
		}
	compare_digests(t, 1, 64, 0, 131);
}

static void programs_have_names(struct cairn_test *t)
{
	for (int p = 0; p < CAIRN_SCREEN_NUM_PROGRAMS; p++)
		for (int q = 0; q < p; q++)
			EXPECT(t, strcmp(cairn_screen_program_name(p), cairn_screen_program_name(q)));
	EXPECT(t, !cairn_screen_program_name(CAIRN_SCREEN_NUM_PROGRAMS) && !cairn_screen_program_name(-1));
	EXPECT(t, !cairn_screen_inputs_name(CAIRN_SCREEN_NUM_INPUTS) && !cairn_screen_inputs_name(-1));
}

static const struct cairn_unit units[] = {
	{ "exact_sums_fit", exact_sums_fit },
	{ "largest_sums_fit", largest_sums_fit },
	{ "inputs_are_finite", inputs_are_finite },
	{ "toggle_inputs_alternate", toggle_inputs_alternate },
	{ "flips_show_in_chains", flips_show_in_chains },
	{ "every_program_is_drawn", every_program_is_drawn },
	{ "lanes_add_up", lanes_add_up },
	{ "programs_have_names", programs_have_names },
};

const struct cairn_family cairn_screen_words_family = {
	.stage = "primitives",
	.name = "screen_words",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
