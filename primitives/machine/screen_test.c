// SPDX-License-Identifier: Apache-2.0
/*
 * screen_test - cases of screen.h, and bench rows for the rate of each program
 *
 * Where the contract defines every bit, digests and raw results are compared with screen_ref.c. Otherwise all
 * units must agree, rounds and parts must differ, raw results must lie within the reference's bounds, and a
 * digest of one step must be the digest of the raw results. Bench rows run on all units; those named _bare
 * have the digest of the last step alone, so that the difference is what digests cost.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "primitives/machine/screen.h"

#define FIELD(f)	offsetof(struct cairn_screen_args, f)
#define PARTS		CAIRN_SCREEN_PARTS
#define WORDS		CAIRN_SCREEN_WORDS
#define BENCH_UNITS	256	/* more than any device has */
#define BENCH_STEPS	256
#define BENCH_SEED	1	/* of both rows of a program, so that MIX draws the same for both */
#define MIX_ROUNDS	16	/* of MIX, which draws other programs in each round */
#define LATE		(((int64_t)1 << 40) - 1)	/* so that later rounds have other upper halves */

/* The cases that are not those of every program and kind of input. */
static const struct row {
	const char *name;
	int program, inputs, units, rounds, steps;
	int64_t first_round;
	int only, last_only, no_raw, bench;
} rows[] = {
	/* name, program, inputs, units, rounds, steps, first_round, only, last_only, no_raw */
	{ "tf32_all_slices", CAIRN_SCREEN_TF32, CAIRN_SCREEN_EXACT, 1, 1, 19, 0, -1, 0, 0, 0 },
	{ "s8_last_only", CAIRN_SCREEN_S8, CAIRN_SCREEN_RANDOM, 1, 1, 3, 3, -1, 1, 0, 0 },
	{ "bf16_last_only", CAIRN_SCREEN_BF16, CAIRN_SCREEN_RANDOM, 2, 2, 3, 3, -1, 1, 0, 0 },
	{ "special_last_only", CAIRN_SCREEN_SPECIAL, CAIRN_SCREEN_RANDOM, 3, 2, 7, 0, -1, 1, 0, 0 },
	{ "special_one_step", CAIRN_SCREEN_SPECIAL, CAIRN_SCREEN_RANDOM, 3, 3, 1, 9, -1, 0, 0, 0 },
	{ "int_one_step", CAIRN_SCREEN_INT, CAIRN_SCREEN_RANDOM, 1, 1, 1, 0, -1, 0, 0, 0 },
	{ "int_300_steps", CAIRN_SCREEN_INT, CAIRN_SCREEN_RANDOM, 1, 1, 300, 0, -1, 0, 0, 0 },
	{ "int_late_round", CAIRN_SCREEN_INT, CAIRN_SCREEN_RANDOM, 2, 2, 3, LATE, -1, 0, 0, 0 },
	{ "f64_no_raw", CAIRN_SCREEN_F64, CAIRN_SCREEN_RANDOM, 2, 2, 3, 5, -1, 0, 1, 0 },
	{ "memory_odd_rounds", CAIRN_SCREEN_MEMORY, CAIRN_SCREEN_RANDOM, 2, 5, 9, 1, -1, 0, 0, 0 },
	{ "f32_only_1", CAIRN_SCREEN_F32, CAIRN_SCREEN_RANDOM, 1, 2, 3, 0, 1, 0, 0, 0 },
	{ "mix_8_rounds", CAIRN_SCREEN_MIX, CAIRN_SCREEN_EXACT, 1, 8, 4, 7, -1, 0, 0, 0 },
	{ "mix_last_only", CAIRN_SCREEN_MIX, CAIRN_SCREEN_EXACT, 2, 3, 3, 7, -1, 1, 0, 0 },
};

#define NUM_EACH	(CAIRN_SCREEN_NUM_PROGRAMS * CAIRN_SCREEN_NUM_INPUTS)
#define NUM_ROWS	((int)ARRAY_SIZE(rows))
#define NUM_BENCHES	(2 * CAIRN_SCREEN_NUM_PROGRAMS)

/* Every program with every kind of input; the rows above; the bench rows. */
static struct row find_row(int i)
{
	if (i < NUM_EACH)
		return (struct row){ .program = i / CAIRN_SCREEN_NUM_INPUTS,
				     .inputs = i % CAIRN_SCREEN_NUM_INPUTS, .units = 2, .rounds = 2,
				     .steps = i / CAIRN_SCREEN_NUM_INPUTS < CAIRN_SCREEN_NUM_TENSOR ? 2 : 5,
				     .first_round = i, .only = -1 };
	if (i < NUM_EACH + NUM_ROWS)
		return rows[i - NUM_EACH];
	i -= NUM_EACH + NUM_ROWS;
	return (struct row){ .program = i / 2, .inputs = CAIRN_SCREEN_RANDOM, .units = BENCH_UNITS,
			     .rounds = i / 2 == CAIRN_SCREEN_MIX ? MIX_ROUNDS : 1, .steps = BENCH_STEPS,
			     .only = -1, .last_only = i % 2, .bench = 1 };
}

static void describe(int i, struct cairn_case *c)
{
	struct row r = find_row(i);

	if (r.name)
		snprintf(c->name, sizeof(c->name), "%s", r.name);
	else if (r.bench)
		snprintf(c->name, sizeof(c->name), "%s_rate%s", cairn_screen_program_name(r.program),
			 r.last_only ? "_bare" : "");
	else
		snprintf(c->name, sizeof(c->name), "%s_%s", cairn_screen_program_name(r.program),
			 cairn_screen_inputs_name(r.inputs));
	c->bench = c->device_only = r.bench;
}

static void setup(struct cairn_op *op)
{
	struct cairn_screen_args *a = op->args;
	struct row r = find_row(op->case_index);

	a->seed = r.bench ? BENCH_SEED : cairn_op_rand(op);
	a->program = r.program;
	a->inputs = r.inputs;
	a->units = r.units;
	a->rounds = r.rounds;
	a->steps = r.steps;
	a->first_round = r.first_round;
	a->only = r.only;
	a->last_only = r.last_only;
	cairn_out(op, FIELD(digest), CAIRN_I64, (int64_t)r.rounds * r.units * PARTS * 2);
	cairn_shape(op, FIELD(digest), { "round", r.rounds }, { "unit", r.units }, { "part", PARTS },
		    { "sum", 2 });
	cairn_out(op, FIELD(start_ns), CAIRN_I64, (int64_t)r.rounds * r.units);
	cairn_shape(op, FIELD(start_ns), { "round", r.rounds }, { "unit", r.units });
	cairn_out(op, FIELD(cycles), CAIRN_I64, (int64_t)r.rounds * r.units * PARTS);
	cairn_shape(op, FIELD(cycles), { "round", r.rounds }, { "unit", r.units }, { "part", PARTS });
	cairn_out(op, FIELD(place), CAIRN_I32, (int64_t)r.rounds * r.units);
	cairn_shape(op, FIELD(place), { "round", r.rounds }, { "unit", r.units });
	if (r.no_raw)
		return;
	cairn_out(op, FIELD(raw), CAIRN_I32, (int64_t)r.units * PARTS * WORDS);
	cairn_shape(op, FIELD(raw), { "unit", r.units }, { "part", PARTS }, { "word", WORDS });
}

/* What the units wrote, and what the reference computes for the first of them. */
struct judged {
	const struct cairn_screen_args *want, *got;
	uint64_t *digest;		/* [rounds, PARTS, 2], if results are defined */
	double *val, *bound;		/* [PARTS, WORDS], of the last step of the last round */
	uint32_t *word;
	int32_t num_words;
	int defined, measured;
};

static int first_unit(const struct cairn_screen_args *got, int64_t round)
{
	for (int u = 0; u < got->units; u++)
		if (got->place[round * got->units + u] >= 0)
			return u;
	return -1;
}

static int is_bad_place(const void *arg, int64_t i, char *why, size_t why_len)
{
	const struct judged *j = arg;
	const struct cairn_screen_args *got = j->got;
	int32_t place = got->place[i], unit = (int32_t)(i % got->units), only = j->want->only;
	const int32_t *round = &got->place[i - unit];

	if (why)
		snprintf(why, why_len, "got %d; the first places of the round are %d and %d", place,
			 round[0], round[got->units > 1]);
	if (place < -1 || place > CAIRN_SCREEN_MAX_UNITS || (only >= 0 && place >= 0 && place != only))
		return 1;
	/* the units that a device lacks are the last ones, and the same in all rounds */
	if (only < 0 && (place >= 0) != (got->place[unit] >= 0 && (!unit || round[unit - 1] >= 0)))
		return 1;
	if (got->units <= 3 && place < 0)
		return 1;
	for (int u = 0; u < unit; u++)
		if (place >= 0 && round[u] == place)
			return 1;
	return 0;
}

/* Returns what a digest must be: the reference's, or that of the round's first unit. */
static uint64_t wanted_digest(const struct judged *j, int64_t i)
{
	const struct cairn_screen_args *got = j->got;
	int64_t in_unit = i % (PARTS * 2), at = i / (PARTS * 2), round = at / got->units;

	if (got->place[at] < 0)
		return 0;
	if (j->defined)
		return j->digest[round * PARTS * 2 + in_unit];
	return got->digest[(round * got->units + first_unit(got, round)) * PARTS * 2 + in_unit];
}

static int is_bad_digest(const void *arg, int64_t i, char *why, size_t why_len)
{
	const struct judged *j = arg;
	uint64_t want = wanted_digest(j, i);

	if (why)
		snprintf(why, why_len, "got %016llx, want %016llx%s", (unsigned long long)j->got->digest[i],
			 (unsigned long long)want, j->defined ? "" : " as the first unit has");
	return j->got->digest[i] != want;
}

static int is_bad_raw(const void *arg, int64_t i, char *why, size_t why_len)
{
	const struct judged *j = arg;
	const struct cairn_screen_args *got = j->got;
	int64_t unit = i / (PARTS * WORDS), k = i % (PARTS * WORDS);
	uint32_t word = got->raw[i], want = j->word[k];
	int runs = got->place[(int64_t)(got->rounds - 1) * got->units + unit] >= 0;
	double err;
	float f;

	memcpy(&f, &word, sizeof(f));
	err = fabs(f - j->val[k]);
	if (!runs || k % WORDS >= j->num_words)
		want = 0;
	if (why)
		snprintf(why, why_len, "got %08x, want %08x; bound %g", word, want, j->bound[k]);
	/* in MIX, programs whose bits are defined run beside others */
	if (j->defined || j->bound[k] == 0 || !runs || k % WORDS >= j->num_words)
		return word != want;
	return !(err <= j->bound[k]) || word != got->raw[(int64_t)first_unit(got, got->rounds - 1) *
							 PARTS * WORDS + k];
}

static int is_bad_start(const void *arg, int64_t i, char *why, size_t why_len)
{
	const struct judged *j = arg;
	const struct cairn_screen_args *got = j->got;
	int64_t start = got->start_ns[i], before = i < got->units ? 0 : got->start_ns[i - got->units];

	if (why)
		snprintf(why, why_len, "got %lld; the round before began at %lld", (long long)start,
			 (long long)before);
	return got->place[i] < 0 ? start != 0 : start < before;
}

/* A clock runs at 3 GHz at most, and start_ns may be a microsecond late. */
static int is_bad_cycles(const void *arg, int64_t i, char *why, size_t why_len)
{
	const struct judged *j = arg;
	const struct cairn_screen_args *got = j->got;
	int64_t at = i / PARTS, next = at + got->units, cycles = got->cycles[i], least, most = INT64_MAX;

	least = j->measured && got->place[at] >= 0 ? got->steps : 0;
	if (!least)
		most = 0;
	else if (next < (int64_t)got->rounds * got->units && got->place[next] >= 0)
		most = 3 * (got->start_ns[next] - got->start_ns[at] + 1100);
	if (why)
		snprintf(why, why_len, "got %lld, want %lld to %lld", (long long)cycles, (long long)least,
			 (long long)most);
	return cycles < least || cycles > most;
}

/* Where digests are not defined, checks what they must be in themselves. Returns 1 with the reason. */
static int judge_undefined(const struct judged *j, char *why, size_t why_len)
{
	const struct cairn_screen_args *got = j->got;
	int64_t last = got->rounds - 1, unit = first_unit(got, last);
	const uint64_t *digest = got->digest;

	for (int64_t r = 0; r < got->rounds; r++)
		for (int64_t i = 0; i < (r + 1) * PARTS; i++) {
			int64_t a = (r * got->units + unit) * PARTS + PARTS - 1;
			int64_t b = (i / PARTS * got->units + unit) * PARTS + i % PARTS;

			if (a != b && digest[2 * a] == digest[2 * b]) {
				snprintf(why, why_len, "digest: part %d of rounds %d and %d, part %d: equal",
					 PARTS - 1, (int)r, (int)(i / PARTS), (int)(i % PARTS));
				return 1;
			}
		}
	if (!got->raw || (got->steps > 1 && !j->want->last_only))
		return 0;
	for (int p = 0; p < PARTS; p++) {
		const uint32_t *word = &got->raw[(unit * PARTS + p) * WORDS];
		const uint64_t *sum = &digest[((last * got->units + unit) * PARTS + p) * 2];
		uint64_t plain = 0, weighted = 0;

		for (int i = 0; i < j->num_words; i++) {
			plain += word[i];
			weighted += word[i] * (2 * ((uint64_t)(got->steps - 1) * WORDS + i) + 1);
		}
		if (plain == sum[0] && weighted == sum[1])
			continue;
		snprintf(why, why_len, "digest: that of part %d is not the digest of its raw results", p);
		return 1;
	}
	return 0;
}

static int run_reference(struct judged *j)
{
	struct cairn_screen_args one = *j->want;
	int64_t rounds = one.rounds, start_ns[CAIRN_SCREEN_MAX_ROUNDS];
	int64_t cycles[CAIRN_SCREEN_MAX_ROUNDS * PARTS];
	int32_t place[CAIRN_SCREEN_MAX_ROUNDS];

	j->digest = malloc(rounds * PARTS * 2 * sizeof(*j->digest));
	j->val = malloc(PARTS * WORDS * sizeof(*j->val));
	j->bound = malloc(PARTS * WORDS * sizeof(*j->bound));
	j->word = malloc(PARTS * WORDS * sizeof(*j->word));
	if (!j->digest || !j->val || !j->bound || !j->word)
		return cairn_error(ENOMEM, "screen: no memory for the judge");
	for (int p = 0; p < PARTS; p++) {
		int at = p * WORDS;

		j->num_words = cairn_screen_exact(&one, one.first_round + rounds - 1, p, one.steps - 1,
						  j->val + at, j->bound + at, j->word + at);
		if (j->num_words < 0)
			return j->num_words;
	}
	if (!j->defined)
		return 0;
	one.units = 1;
	one.only = -1;
	one.digest = j->digest;
	one.start_ns = start_ns;
	one.cycles = cycles;
	one.place = place;
	one.raw = NULL;
	return cairn_screen_ref(&one, NULL);
}

static int judge(const struct cairn_op *op, const void *got_args, char *why, size_t why_len)
{
	const struct cairn_screen_args *want = op->args, *got = got_args;
	struct judged j = { .want = want, .got = got };
	int ran = 0, ret = 1;

	j.defined = cairn_screen_is_defined(want->program, want->inputs);
	for (int64_t i = 0; i < (int64_t)want->rounds * want->units; i++)
		ran += got->place[i] >= 0;
	for (int64_t i = 0; i < (int64_t)want->rounds * want->units * PARTS; i++)
		j.measured |= got->cycles[i] != 0;
	if (cairn_judge_each(op, FIELD(place), is_bad_place, &j, why, why_len))
		return 1;
	if (ran < want->rounds) {
		snprintf(why, why_len, "place: %d units ran in %d rounds", ran, want->rounds);
		return 1;
	}
	if (run_reference(&j))
		snprintf(why, why_len, "reference failed: %s", cairn_last_error());
	else
		ret = cairn_judge_each(op, FIELD(digest), is_bad_digest, &j, why, why_len) ||
		      (got->raw && cairn_judge_each(op, FIELD(raw), is_bad_raw, &j, why, why_len)) ||
		      cairn_judge_each(op, FIELD(start_ns), is_bad_start, &j, why, why_len) ||
		      cairn_judge_each(op, FIELD(cycles), is_bad_cycles, &j, why, why_len) ||
		      (!j.defined && judge_undefined(&j, why, why_len));
	free(j.digest);
	free(j.val);
	free(j.bound);
	free(j.word);
	return ret;
}

static int compare(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return (x > y) - (x < y);
}

/* Returns the cycles that a unit's rounds took, each in its slowest part, or -1 if one did not run. */
static int64_t cycles_of(const struct cairn_screen_args *got, int unit)
{
	int64_t sum = 0;

	for (int r = 0; r < got->rounds; r++) {
		const int64_t *cycles = got->cycles + ((int64_t)r * got->units + unit) * PARTS;
		int64_t slowest = 0;

		if (got->place[(int64_t)r * got->units + unit] < 0)
			return -1;
		for (int p = 0; p < PARTS; p++)
			if (cycles[p] > slowest)
				slowest = cycles[p];
		sum += slowest;
	}
	return sum;
}

/* Bench rows: cycles of a step in the slowest part of each unit; median, least and most of the units. */
static int extra(const struct cairn_op *op, const void *got_args, char *json, size_t len)
{
	const struct cairn_screen_args *got = got_args;
	double steps = (double)got->rounds * got->steps;
	int64_t cycles[BENCH_UNITS];
	int n = 0;

	json[0] = 0;
	if (!find_row(op->case_index).bench)
		return 0;
	for (int u = 0; u < got->units; u++) {
		cycles[n] = cycles_of(got, u);
		n += cycles[n] >= 0;
	}
	qsort(cycles, n, sizeof(*cycles), compare);
	return snprintf(json, len, "\"cycles_per_step\":%.1f,\"min_cycles_per_step\":%.1f,"
			"\"max_cycles_per_step\":%.1f,\"units\":%d", cycles[n / 2] / steps,
			cycles[0] / steps, cycles[n - 1] / steps, n) >= (int)len;
}

/* Case 0 is F16 with EXACT inputs. */
static const char *reject(void *args, int i, int *want)
{
	struct cairn_screen_args *a = args;

	*want = -EINVAL;
	switch (i) {
	case 0:
		a->program = CAIRN_SCREEN_NUM_PROGRAMS;
		return "program_unknown";
	case 1:
		a->inputs = CAIRN_SCREEN_NUM_INPUTS;
		return "inputs_unknown";
	case 2:
		a->digest = NULL;
		return "digest_null";
	case 3:
		a->cycles = NULL;
		return "cycles_null";
	case 4:
		a->first_round = -1;
		return "first_round_negative";
	case 5:
		a->rounds = CAIRN_SCREEN_MAX_ROUNDS + 1;
		return "rounds_4097";
	case 6:
		a->steps = 0;
		return "steps_0";
	case 7:
		a->units = 0;
		return "units_0";
	case 8:
		a->only = -2;
		return "only_minus_2";
	case 9:
		a->only = 0;
		return "only_0_of_2";
	case 10:
		a->last_only = 2;
		return "last_only_2";
	case 11:
		a->size = 8;
		return "old_struct";
	}
	return NULL;
}

const struct cairn_family cairn_screen_family = {
	.stage = "primitives",
	.name = "screen",
	.op = offsetof(struct cairn_impl, screen),
	.args_size = sizeof(struct cairn_screen_args),
	.timing_fields = { FIELD(start_ns), FIELD(cycles), FIELD(place) },
	.num_cases = NUM_EACH + NUM_ROWS + NUM_BENCHES,
	.describe = describe,
	.setup = setup,
	.judge = judge,
	.reject = reject,
	.extra = extra,
	.cost_s = 5,
};
