// SPDX-License-Identifier: Apache-2.0
/* screen - argument checks and small functions shared by all of our tables */
#include "primitives/machine/screen_words.h"

#include "primitives/base/args.h"
#include "primitives/base/error.h"

static const char *const programs[CAIRN_SCREEN_NUM_PROGRAMS] = {
	"f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "f32", "f64", "int", "special", "memory", "mix",
};

static const char *const kinds[CAIRN_SCREEN_NUM_INPUTS] = { "exact", "random", "toggle" };

const char *cairn_screen_program_name(int32_t program)
{
	return program >= 0 && program < CAIRN_SCREEN_NUM_PROGRAMS ? programs[program] : NULL;
}

const char *cairn_screen_inputs_name(int32_t inputs)
{
	return inputs >= 0 && inputs < CAIRN_SCREEN_NUM_INPUTS ? kinds[inputs] : NULL;
}

int32_t cairn_screen_words(int32_t program)
{
	return program >= CAIRN_SCREEN_F32 && program <= CAIRN_SCREEN_INT ? 256 : CAIRN_SCREEN_WORDS;
}

int64_t cairn_screen_operations(int32_t program)
{
	switch (program) {
	case CAIRN_SCREEN_F32:		/* two in each link of 8 chains in 32 lanes */
		return 2 * 8 * 32 * CAIRN_SCREEN_F32_LINKS;
	case CAIRN_SCREEN_F64:
		return 2 * 4 * 32 * CAIRN_SCREEN_F64_LINKS;
	case CAIRN_SCREEN_INT:		/* multiply-add, rotation and logic of 8 words; a shuffle and a sum */
		return (3 * 8 + 2) * 32 * CAIRN_SCREEN_INT_LINKS;
	case CAIRN_SCREEN_SPECIAL:
		return 3 * CAIRN_SCREEN_WORDS;
	case CAIRN_SCREEN_MEMORY:	/* a word is also written first, rotated, and read last */
		return 2 * (CAIRN_SCREEN_COMPLEMENTS + 2) * CAIRN_SCREEN_WORDS;
	}
	return CAIRN_SCREEN_SLICES;
}

int cairn_screen_is_defined(int32_t program, int32_t inputs)
{
	if (program == CAIRN_SCREEN_SPECIAL)
		return 0;
	if (program < CAIRN_SCREEN_S8 || program == CAIRN_SCREEN_MIX)
		return inputs == CAIRN_SCREEN_EXACT;
	return 1;
}

int32_t cairn_screen_drawn(uint64_t seed, int32_t inputs, int64_t round, int32_t group)
{
	return cairn_screen_draw(seed, inputs, round, group);
}

int cairn_screen_check(const struct cairn_screen_args *a)
{
	CAIRN_TRY(cairn_check_args(a, sizeof(*a), "screen"));
	if (!a->digest || !a->start_ns || !a->cycles || !a->place)
		return cairn_error(EINVAL, "screen: digest, start_ns, cycles, place: null pointer");
	if ((uintptr_t)a->digest % 8 || (uintptr_t)a->start_ns % 8 || (uintptr_t)a->cycles % 8 ||
	    (uintptr_t)a->place % 4 || (uintptr_t)a->raw % 4)
		return cairn_error(EINVAL, "screen: digest, start_ns, cycles, place, raw: misaligned");
	if (!cairn_screen_program_name(a->program))
		return cairn_error(EINVAL, "screen: program: %d is unknown", a->program);
	if (!cairn_screen_inputs_name(a->inputs))
		return cairn_error(EINVAL, "screen: inputs: %d is unknown", a->inputs);
	if (a->first_round < 0 || a->first_round > (int64_t)1 << 62)
		return cairn_error(EINVAL, "screen: first_round: %lld is not from 0 to 2^62",
				   (long long)a->first_round);
	if (a->rounds < 1 || a->rounds > CAIRN_SCREEN_MAX_ROUNDS)
		return cairn_error(EINVAL, "screen: rounds: %d is not from 1 to %d", a->rounds,
				   CAIRN_SCREEN_MAX_ROUNDS);
	if (a->steps < 1 || a->steps > CAIRN_SCREEN_MAX_STEPS)
		return cairn_error(EINVAL, "screen: steps: %d is not from 1 to %d", a->steps,
				   CAIRN_SCREEN_MAX_STEPS);
	if (a->units < 1 || a->units > CAIRN_SCREEN_MAX_UNITS)
		return cairn_error(EINVAL, "screen: units: %d is not from 1 to %d", a->units,
				   CAIRN_SCREEN_MAX_UNITS);
	if (a->only < -1)
		return cairn_error(EINVAL, "screen: only: %d is neither -1 nor the number of a unit",
				   a->only);
	if (a->only >= 0 && a->units != 1)
		return cairn_error(EINVAL, "screen: units: %d, but only one unit runs", a->units);
	if (a->last_only < 0 || a->last_only > 1)
		return cairn_error(EINVAL, "screen: last_only: %d is not 0 or 1", a->last_only);
	return 0;
}
