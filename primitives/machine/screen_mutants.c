// SPDX-License-Identifier: Apache-2.0
/* screen_mutants - wrong versions of screen that the suite must catch */
#include "conformance/harness.h"
#include "primitives/machine/screen_words.h"

#define PARTS	CAIRN_SCREEN_PARTS
#define WORDS	CAIRN_SCREEN_WORDS

/*
 * Most mutants call the reference and then compute all digests and raw results again from steps that they
 * have changed. A change gets the step's words and their weights; it may alter both.
 */
struct changed {
	const struct cairn_screen_args *a;
	int64_t round;
	int32_t program, part, step, num_words;
	uint32_t word[WORDS];
	uint64_t weight[WORDS];
};

static int make_step(struct changed *c)
{
	const struct cairn_screen_args *a = c->a;

	memset(c->word, 0, sizeof(c->word));
	c->program = a->program == CAIRN_SCREEN_MIX ?
		     cairn_screen_drawn(a->seed, a->inputs, c->round, c->step % CAIRN_SCREEN_GROUPS) :
		     a->program;
	c->num_words = cairn_screen_exact(a, c->round, c->part, c->step, NULL, NULL, c->word);
	for (int i = 0; i < WORDS; i++)
		c->weight[i] = 2 * ((uint64_t)c->step * WORDS + i) + 1;
	return c->num_words < 0 ? c->num_words : 0;
}

static int change_steps(const struct cairn_screen_args *a, int (*change)(struct changed *c))
{
	struct changed c = { .a = a };

	CAIRN_TRY(cairn_screen_ref(a, NULL));
	for (int r = 0; r < a->rounds; r++)
		for (int p = 0; p < PARTS; p++) {
			uint64_t digest[2] = { 0, 0 };

			c.round = a->first_round + r;
			c.part = p;
			for (int s = a->last_only ? a->steps - 1 : 0; s < a->steps; s++) {
				c.step = s;
				CAIRN_TRY(make_step(&c));
				CAIRN_TRY(change(&c));
				for (int i = 0; i < c.num_words; i++) {
					digest[0] += c.word[i];
					digest[1] += c.word[i] * c.weight[i];
				}
			}
			for (int u = 0; u < a->units; u++) {
				int64_t at = ((int64_t)r * a->units + u) * PARTS + p;

				memcpy(&a->digest[2 * at], digest, sizeof(digest));
				if (a->raw && r == a->rounds - 1)
					memcpy(&a->raw[(u * PARTS + p) * WORDS], c.word, sizeof(c.word));
			}
		}
	return 0;
}

/* Calls the reference with other arguments. */
#define CALL_WITH(name, change) \
	static int name(const struct cairn_screen_args *a, void *stream) \
	{ \
		struct cairn_screen_args b = *a; \
		CAIRN_TRY(cairn_screen_check(a)); \
		b.size = sizeof(b); \
		change; \
		return cairn_screen_ref(&b, stream); \
	}

CALL_WITH(seed_ignored, b.seed = 0)
CALL_WITH(seed_32_bits, b.seed = (uint32_t)b.seed)
CALL_WITH(round_32_bits, b.first_round = (uint32_t)b.first_round)
CALL_WITH(inputs_always_random, b.inputs = CAIRN_SCREEN_RANDOM)
CALL_WITH(toggle_is_random, b.inputs = b.inputs == CAIRN_SCREEN_TOGGLE ? CAIRN_SCREEN_RANDOM : b.inputs)
CALL_WITH(last_only_ignored, b.last_only = 0)
CALL_WITH(only_ignored, b.only = -1)

/* Makes a mutant of a change of steps. */
#define CHANGE_STEPS(name) \
	static int name(const struct cairn_screen_args *a, void *stream) \
	{ \
		(void)stream; \
		return change_steps(a, name##_change); \
	}

static int weights_are_1_change(struct changed *c)
{
	for (int i = 0; i < WORDS; i++)
		c->weight[i] = 1;
	return 0;
}
CHANGE_STEPS(weights_are_1)

static int weights_of_first_step_change(struct changed *c)
{
	for (int i = 0; i < WORDS; i++)
		c->weight[i] = 2 * i + 1;
	return 0;
}
CHANGE_STEPS(weights_of_first_step)

static int steps_8_bits_change(struct changed *c)
{
	c->step &= 255;
	return make_step(c);
}
CHANGE_STEPS(steps_8_bits)

static int last_word_missing_change(struct changed *c)
{
	c->weight[c->num_words - 1] = 0;
	return 0;
}
CHANGE_STEPS(last_word_missing)

static int part_0_everywhere_change(struct changed *c)
{
	c->part = 0;
	return make_step(c);
}
CHANGE_STEPS(part_0_everywhere)

static int slices_not_rotated_change(struct changed *c)
{
	int32_t step = c->step;
	int ret = 0;

	if (c->program >= CAIRN_SCREEN_NUM_TENSOR || c->a->program == CAIRN_SCREEN_MIX)
		return 0;
	c->step = 0;
	ret = make_step(c);
	for (int i = 0; i < WORDS; i++)
		c->weight[i] += 2 * (uint64_t)step * WORDS;
	return ret;
}
CHANGE_STEPS(slices_not_rotated)

/* The sums of f16 products are kept in f16. */
static int sums_in_f16_change(struct changed *c)
{
	for (int i = 0; i < c->num_words && c->program == CAIRN_SCREEN_F16; i++)
		c->word[i] = cairn_screen_float_bits(
			cairn_f16_to_float(cairn_double_to_f16(cairn_screen_float(c->word[i]))));
	return 0;
}
CHANGE_STEPS(sums_in_f16)

/* As wgmma's satfinite option for 8-bit results would give. */
static int s8_saturates_change(struct changed *c)
{
	for (int i = 0; i < c->num_words && c->program == CAIRN_SCREEN_S8; i++) {
		int32_t v = (int32_t)c->word[i];

		c->word[i] = (uint32_t)(v > 127 ? 127 : v < -128 ? -128 : v);
	}
	return 0;
}
CHANGE_STEPS(s8_saturates)

/* The first operation of a link is rounded twice: it is a multiplication and an addition. */
static int f32_not_fused_change(struct changed *c)
{
	uint64_t key = cairn_screen_key(c->a->seed, c->program, c->round);

	for (int i = 0; i < c->num_words && c->program == CAIRN_SCREEN_F32; i++) {
		uint32_t n = CAIRN_SCREEN_STEP(c->part, c->step) + i / 32 * 64 + i % 32;
		float x = cairn_screen_f32_start(cairn_screen_word(key, c->a->inputs, n));
		float a = cairn_screen_f32_parameter(cairn_screen_word(key, c->a->inputs, n + 32));

		for (int k = 0; k < CAIRN_SCREEN_F32_LINKS; k++)
			x = fmaf(-(a * x - 6 * a), x, fmaf(-9, a, 4));
		c->word[i] = cairn_screen_float_bits(x);
	}
	return 0;
}
CHANGE_STEPS(f32_not_fused)

static int f64_halves_swapped_change(struct changed *c)
{
	for (int i = 0; i < c->num_words && c->program == CAIRN_SCREEN_F64; i++)
		if (i % 64 < 32) {
			uint32_t low = c->word[i];

			c->word[i] = c->word[i + 32];
			c->word[i + 32] = low;
		}
	return 0;
}
CHANGE_STEPS(f64_halves_swapped)

/* ldmatrix is given the rows of its matrices in another order. */
static int rows_swapped_change(struct changed *c)
{
	for (int i = 0; i < c->num_words && c->program == CAIRN_SCREEN_MEMORY; i += 64)
		for (int k = 0; k < 32; k++) {
			uint32_t word = c->word[i + k];

			c->word[i + k] = c->word[i + 32 + k];
			c->word[i + 32 + k] = word;
		}
	return 0;
}
CHANGE_STEPS(rows_swapped)

/* The complement is never written: the march reads what it wrote first. */
static int no_complement_change(struct changed *c)
{
	for (int i = 0; i < c->num_words && c->program == CAIRN_SCREEN_MEMORY; i++)
		c->word[i] = ~c->word[i];
	return 0;
}
CHANGE_STEPS(no_complement)

/* MIX: the second and third group of warps run what the last one has drawn. */
static int groups_alike_change(struct changed *c)
{
	struct cairn_screen_args b = *c->a;

	if (b.program != CAIRN_SCREEN_MIX || c->step % CAIRN_SCREEN_GROUPS == 0)
		return 0;
	b.program = cairn_screen_drawn(b.seed, b.inputs, c->round, CAIRN_SCREEN_GROUPS - 1);
	memset(c->word, 0, sizeof(c->word));
	c->num_words = cairn_screen_exact(&b, c->round, c->part, c->step, NULL, NULL, c->word);
	return c->num_words < 0 ? c->num_words : 0;
}
CHANGE_STEPS(groups_alike)

/* The values of one special function have 12 bits less than hardware promises. */
static int rough_square_root_change(struct changed *c)
{
	for (int i = 0; i < c->num_words && c->program == CAIRN_SCREEN_SPECIAL; i++)
		if (i / 32 % CAIRN_SCREEN_NUM_FUNCTIONS == CAIRN_SCREEN_SQRT)
			c->word[i] &= ~0xfffu;
	return 0;
}
CHANGE_STEPS(rough_square_root)

/* A product of bf16 has NaN in one place, on all units. */
static int nan_everywhere_change(struct changed *c)
{
	if (c->program == CAIRN_SCREEN_BF16 && c->part == 2)
		c->word[77] = 0x7fffffff;
	return 0;
}
CHANGE_STEPS(nan_everywhere)

/* ---- mutants that change the reference's outputs ---- */

static int parts_swapped(const struct cairn_screen_args *a, void *stream)
{
	CAIRN_TRY(cairn_screen_ref(a, stream));
	for (int64_t i = 0; i < (int64_t)a->rounds * a->units; i++)
		for (int k = 0; k < 2; k++) {
			uint64_t *part = &a->digest[i * PARTS * 2], first = part[k];

			part[k] = part[2 + k];
			part[2 + k] = first;
		}
	return 0;
}

/* Repeats the first round's digests in all rounds. */
static int round_ignored(const struct cairn_screen_args *a, void *stream)
{
	int64_t words = (int64_t)a->units * PARTS * 2;

	CAIRN_TRY(cairn_screen_ref(a, stream));
	for (int64_t i = words; i < a->rounds * words; i++)
		a->digest[i] = a->digest[i % words];
	return 0;
}

/* Adds the unit's number to the digest, as a unit would whose inputs depend on it. */
static int unit_in_inputs(const struct cairn_screen_args *a, void *stream)
{
	CAIRN_TRY(cairn_screen_ref(a, stream));
	for (int64_t i = 0; i < (int64_t)a->rounds * a->units * PARTS * 2; i++)
		a->digest[i] += (uint64_t)(i / (PARTS * 2) % a->units);
	return 0;
}

/* The raw results of the last unit have one wrong bit, but its digest does not. */
static int raw_of_last_unit(const struct cairn_screen_args *a, void *stream)
{
	CAIRN_TRY(cairn_screen_ref(a, stream));
	if (a->raw && a->program == CAIRN_SCREEN_SPECIAL)
		a->raw[((a->units - 1) * PARTS + 1) * WORDS + 5] ^= 1;
	return 0;
}

static int sums_of_32_bits(const struct cairn_screen_args *a, void *stream)
{
	CAIRN_TRY(cairn_screen_ref(a, stream));
	for (int64_t i = 0; i < (int64_t)a->rounds * a->units * PARTS * 2; i++)
		a->digest[i] &= 0xffffffffu;
	return 0;
}

static int raw_not_cleared(const struct cairn_screen_args *a, void *stream)
{
	CAIRN_TRY(cairn_screen_ref(a, stream));
	for (int64_t i = 0; a->raw && i < (int64_t)a->units * PARTS * WORDS; i++)
		if (i % WORDS >= 256 && a->raw[i] == 0)
			a->raw[i] = 1;
	return 0;
}

static int place_always_0(const struct cairn_screen_args *a, void *stream)
{
	CAIRN_TRY(cairn_screen_ref(a, stream));
	memset(a->place, 0, (size_t)a->rounds * a->units * sizeof(*a->place));
	return 0;
}

static int last_unit_missing(const struct cairn_screen_args *a, void *stream)
{
	CAIRN_TRY(cairn_screen_ref(a, stream));
	for (int r = 0; r < a->rounds; r++)
		a->place[(int64_t)(r + 1) * a->units - 1] = -1;
	return 0;
}

/* Measures the cycles of part 0 alone. */
static int cycles_of_part_0(const struct cairn_screen_args *a, void *stream)
{
	CAIRN_TRY(cairn_screen_ref(a, stream));
	for (int64_t i = 0; i < (int64_t)a->rounds * a->units; i++)
		a->cycles[i * PARTS] = 1000;
	return 0;
}

/* The clock goes on from round to round, but start_ns is that of the first. */
static int start_of_first_round(const struct cairn_screen_args *a, void *stream)
{
	CAIRN_TRY(cairn_screen_ref(a, stream));
	for (int64_t i = 0; i < (int64_t)a->rounds * a->units * PARTS; i++)
		a->cycles[i] = 1000000;
	for (int64_t i = 0; i < (int64_t)a->rounds * a->units; i++)
		a->start_ns[i] = 5000;
	return 0;
}

#define SCREEN(fn, what)	{ "screen_" #fn, offsetof(struct cairn_impl, screen), (void *)fn, what }

const struct cairn_mutant cairn_screen_mutants[] = {
	SCREEN(seed_ignored, "inputs do not depend on the seed"),
	SCREEN(seed_32_bits, "the seed is cut to 32 bits"),
	SCREEN(round_32_bits, "the number of the round is cut to 32 bits"),
	SCREEN(round_ignored, "all rounds have the inputs of the first"),
	SCREEN(inputs_always_random, "all inputs are random"),
	SCREEN(toggle_is_random, "inputs that should toggle are random"),
	SCREEN(last_only_ignored, "the digest covers all steps although only the last is wanted"),
	SCREEN(only_ignored, "the number of the only unit to run is ignored"),
	SCREEN(weights_are_1, "the second sum has no weights"),
	SCREEN(weights_of_first_step, "weights do not depend on the step"),
	SCREEN(steps_8_bits, "steps are counted in 8 bits"),
	SCREEN(last_word_missing, "the last word of a step is left out of the second sum"),
	SCREEN(sums_of_32_bits, "sums are cut to 32 bits"),
	SCREEN(part_0_everywhere, "all parts do the work of part 0"),
	SCREEN(parts_swapped, "parts 0 and 1 are swapped"),
	SCREEN(unit_in_inputs, "inputs depend on the unit"),
	SCREEN(raw_of_last_unit, "one unit has other raw results than the rest"),
	SCREEN(raw_not_cleared, "raw results past the step's words are not 0"),
	SCREEN(place_always_0, "every unit has place 0"),
	SCREEN(last_unit_missing, "the last unit does not run"),
	SCREEN(cycles_of_part_0, "cycles of part 0 alone are measured"),
	SCREEN(start_of_first_round, "start_ns does not advance from round to round"),
	SCREEN(slices_not_rotated, "all steps of a tensor program are the same"),
	SCREEN(sums_in_f16, "sums of f16 products are rounded to f16"),
	SCREEN(s8_saturates, "sums of s8 products saturate"),
	SCREEN(f32_not_fused, "an fp32 chain rounds multiplications before it adds"),
	SCREEN(f64_halves_swapped, "the halves of an fp64 result are swapped"),
	SCREEN(rows_swapped, "the last read of the march takes rows in another order"),
	SCREEN(no_complement, "the march does not write complements"),
	SCREEN(groups_alike, "groups of warps draw the same program"),
	SCREEN(rough_square_root, "square roots lack 12 bits"),
	SCREEN(nan_everywhere, "all units give the same NaN"),
	{ 0 }
};
