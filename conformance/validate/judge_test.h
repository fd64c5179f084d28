/* SPDX-License-Identifier: Apache-2.0 */
/*
 * judge_test - checks of the judges of `cairn validate`: each returns NULL, or what is wrong
 *
 * judge_test.c runs them on the judges, validate_mutants_test.c on the judges with faults.
 */
#ifndef CAIRN_VALIDATE_JUDGE_TEST_H
#define CAIRN_VALIDATE_JUDGE_TEST_H

#include <math.h>
#include <string.h>

#include "conformance/validate/health.h"
#include "conformance/validate/judge.h"
#include "conformance/validate/rates.h"

#define PARTS		CAIRN_SCREEN_PARTS
#define UNITS		24
#define ROUNDS		6

#define REQUIRE(what)	do { if (!(what)) return #what; } while (0)

static uint64_t judge_random(uint64_t *state)
{
	uint64_t x = *state += 0x9e3779b97f4a7c15ull;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

/* A screen of a sound device. Unit u is at place 100 + u, so that indices and places differ. */
struct screen_of {
	uint64_t digest[ROUNDS][UNITS][PARTS][2];
	int32_t place[ROUNDS][UNITS];
	struct validate_rounds rounds;
	struct validate_bits bits;
	struct validate_evidence e[UNITS];
	int32_t num;
};

static struct screen_of *sound_screen(uint64_t seed)
{
	static struct screen_of s;

	memset(&s, 0, sizeof(s));
	for (int r = 0; r < ROUNDS; r++)
		for (int u = 0; u < UNITS; u++) {
			s.place[r][u] = 100 + u;
			for (int k = 0; k < 2 * PARTS; k++) {
				uint64_t at = seed + (uint64_t)(r * 2 * PARTS + k);

				s.digest[r][u][k / 2][k % 2] = judge_random(&at);
			}
		}
	s.rounds = (struct validate_rounds){ &s.digest[0][0][0][0], &s.place[0][0], 1000, ROUNDS, UNITS };
	return &s;
}

static enum validate_verdict judged(struct screen_of *s)
{
	if (validate_bits_add(&s->bits, &s->rounds))
		return VALIDATE_NOT_RUN;
	s->num = validate_bits_evidence(&s->bits, s->e, UNITS);
	return validate_bits_verdict(&s->bits, s->e, s->num);
}

/* A unit that differs is named by its place and part, in whatever sum, also if it is the first unit. */
static const char *names_the_unit(void)
{
	for (int u = 0; u < UNITS; u += UNITS - 1)
		for (int sum = 0; sum < 2; sum++) {
			struct screen_of *s = sound_screen(1);

			s->digest[2][u][3][sum] ^= 1ull << 40;
			s->digest[4][u][3][sum] += 5;
			REQUIRE(judged(s) == VALIDATE_FAIL);
			REQUIRE(s->num == 1 && s->e[0].place == 100 + u && s->e[0].part == 3);
			REQUIRE(s->e[0].rounds == 2 && s->bits.num_events == 2);
			REQUIRE(s->bits.events[0].round == 1002 && s->bits.rounds == ROUNDS);
		}
	return NULL;
}

/* One upset warns, in however many parts; what a replay repeats fails. */
static const char *weighs_evidence(void)
{
	struct screen_of *s = sound_screen(2);

	s->digest[3][7][0][0]++;
	s->digest[3][7][2][0]++;
	REQUIRE(judged(s) == VALIDATE_WARN && s->num == 1 && s->e[0].rounds == 1);
	s->e[0].replays = 1000;
	REQUIRE(validate_bits_verdict(&s->bits, s->e, 1) == VALIDATE_WARN);
	s->e[0].repeated = 1;
	REQUIRE(validate_bits_verdict(&s->bits, s->e, 1) == VALIDATE_FAIL);
	/* an upset of the same unit in another program is a second one */
	s->e[0].repeated = 0;
	s->e[0].elsewhere = 1;
	REQUIRE(validate_bits_verdict(&s->bits, s->e, 1) == VALIDATE_FAIL);
	/* single upsets of two units are no two upsets of one */
	s = sound_screen(3);
	s->digest[3][7][0][0]++;
	s->digest[4][8][0][0]++;
	REQUIRE(judged(s) == VALIDATE_WARN && s->num == 2);
	return NULL;
}

/* A round without a majority fails and names no unit; a weak majority fails and names all that differ. */
static const char *wants_a_majority(void)
{
	struct screen_of *s = sound_screen(4);

	for (int u = 0; u < UNITS / 2; u++)
		s->digest[1][u][1][1] ^= 2;
	REQUIRE(judged(s) == VALIDATE_FAIL);
	REQUIRE(s->bits.split_rounds == 1 && s->bits.rounds == ROUNDS - 1 && !s->num);
	s = sound_screen(5);
	for (int u = 0; u < 3; u++)
		s->digest[1][u][0][0] ^= 2;
	REQUIRE(judged(s) == VALIDATE_FAIL && s->bits.weak_rounds == 1 && s->num == 3);
	s = sound_screen(5);
	for (int r = 0; r < ROUNDS; r++)
		for (int u = 2; u < UNITS; u++)
			s->place[r][u] = -1;
	REQUIRE(judged(s) == VALIDATE_NOT_RUN);
	return NULL;
}

/* Rounds without a place count neither as evidence nor in the exposure. */
static const char *counts_what_ran(void)
{
	struct screen_of *s = sound_screen(6);

	for (int r = 0; r < 4; r++) {
		s->place[r][9] = -1;
		memset(s->digest[r][9], 0, sizeof(s->digest[r][9]));
	}
	REQUIRE(judged(s) == VALIDATE_PASS && !s->num && s->bits.dropped == 4);
	REQUIRE(s->bits.seen[109] == 2 && s->bits.seen[110] == ROUNDS);
	REQUIRE(validate_bits_places(&s->bits) == UNITS && validate_bits_least(&s->bits) == 2);
	REQUIRE(validate_bits_unseen(&s->bits, UNITS + 2) == 2 && !validate_bits_unseen(&s->bits, UNITS));
	REQUIRE(validate_outvoted(1, 2) && validate_outvoted(1, 3) && !validate_outvoted(2, 3));
	REQUIRE(!validate_outvoted(1, 1));
	REQUIRE(validate_excludes(3e8) == 1e-8 && validate_excludes(0) == 1);
	for (double n = 1e9; n < 1e11; n *= 10) {
		double events = n * validate_finds(n);

		REQUIRE(fabs((1 + events) * exp(-events) - 0.01) < 1e-4);
	}
	REQUIRE(validate_finds(6) == 1);
	s = sound_screen(6);
	s->place[0][0] = CAIRN_SCREEN_MAX_UNITS;
	REQUIRE(validate_bits_add(&s->bits, &s->rounds) < 0);
	return NULL;
}

/* A thousand sound devices, none of which fails or warns. */
static const char *passes_the_sound(void)
{
	for (uint64_t seed = 0; seed < 1000; seed++)
		REQUIRE(judged(sound_screen(seed << 20)) == VALIDATE_PASS);
	return NULL;
}

static const char *exit_follows_verdicts(void)
{
	struct validate_tally t = { { 0 }, 0 };

	REQUIRE(validate_exit(&t, 0) == 3);
	validate_tally_add(&t, VALIDATE_NOT_RUN, 0);
	REQUIRE(validate_exit(&t, 0) == 3);
	validate_tally_add(&t, VALIDATE_PASS, 1);
	REQUIRE(validate_exit(&t, 0) == 0 && validate_exit(&t, 1) == 0);
	validate_tally_add(&t, VALIDATE_WARN, 1);
	REQUIRE(validate_exit(&t, 0) == 0 && validate_exit(&t, 1) == 1);
	validate_tally_add(&t, VALIDATE_NOT_RUN, 1);
	REQUIRE(validate_exit(&t, 0) == 3);
	validate_tally_add(&t, VALIDATE_FAIL, 0);
	REQUIRE(validate_exit(&t, 0) == 1);
	return NULL;
}

/* ---- rates ---- */

struct rates_of {
	double v[ROUNDS][UNITS];
	int32_t group[UNITS];
	struct validate_slow slow[UNITS];
	int32_t num, measured;
};

/* Two groups whose levels differ by 10%, each value with noise of at most `noise`. */
static struct rates_of *equal_rates(uint64_t seed, double noise)
{
	static struct rates_of x;

	memset(&x, 0, sizeof(x));
	for (int u = 0; u < UNITS; u++)
		x.group[u] = u % 2;
	for (int r = 0; r < ROUNDS; r++)
		for (int u = 0; u < UNITS; u++)
			x.v[r][u] = (u % 2 ? 1100 : 1000) *
				    (1 + noise * ((double)(judge_random(&seed) >> 11) * 0x1p-52 - 1));
	return &x;
}

static int32_t slow_in(struct rates_of *x)
{
	x->num = validate_slow(&x->v[0][0], ROUNDS, UNITS, x->group, x->slow, UNITS, &x->measured);
	return x->num;
}

static const char *finds_the_slow(void)
{
	struct rates_of *x = equal_rates(1, 0.002);

	for (int r = 0; r < ROUNDS; r++)
		x->v[r][6] *= 1.05;
	REQUIRE(slow_in(x) == 1 && x->slow[0].index == 6 && x->slow[0].rounds == ROUNDS);
	REQUIRE(x->slow[0].worse > 0.045 && x->slow[0].worse < 0.055);
	/* one far off the scale does not hide another */
	for (int r = 0; r < ROUNDS; r++)
		x->v[r][8] *= 9;
	REQUIRE(slow_in(x) == 2 && x->slow[0].index == 8 && x->slow[1].index == 6);
	/* two rounds are no finding */
	x = equal_rates(2, 0.002);
	x->v[1][6] *= 1.5;
	x->v[4][6] *= 1.5;
	REQUIRE(slow_in(x) == 0);
	/* three rounds in a row are no finding either, but three rounds spread over the time are */
	x = equal_rates(3, 0.002);
	for (int r = 0; r < 3; r++) {
		x->v[r][6] *= 1.05;
		x->v[2 * r][7] *= 1.05;
	}
	REQUIRE(slow_in(x) == 1 && x->slow[0].index == 7 && x->slow[0].rounds == 3);
	return NULL;
}

/* A group that is slow as a whole shows among the levels of the groups, and a small group has none. */
static const char *levels_the_groups(void)
{
	struct rates_of *x = equal_rates(6, 0.002);
	double levels[ROUNDS][UNITS];
	int32_t num;

	for (int u = 0; u < UNITS; u++) {
		x->group[u] = u / 5 * 5;
		for (int r = 0; r < ROUNDS; r++)
			x->v[r][u] = (u / 5 == 2 ? 1030 : 1000) + (u + r) % 3;
	}
	REQUIRE(slow_in(x) == 0);
	x->group[20] = 15;	/* the last group keeps three parts */
	validate_levels(&x->v[0][0], ROUNDS, UNITS, x->group, &levels[0][0]);
	REQUIRE(isnan(levels[0][1]) && isnan(levels[0][20]) && isnan(levels[5][21]));
	REQUIRE(levels[3][15] >= 1000 && levels[3][15] <= 1002);
	num = validate_slow(&levels[0][0], ROUNDS, UNITS, NULL, x->slow, UNITS, &x->measured);
	REQUIRE(num == 1 && x->slow[0].index == 10 && x->measured == 4);
	return NULL;
}

/*
 * Units whose distances differ by up to 18%, as on an H200: a pair that is slower by 5% than its two units
 * explain is found, and no other one.
 */
static const char *separates_pairs(void)
{
	enum { N = 8, PAIRS = N * (N - 1) };
	static double v[ROUNDS][PAIRS], scratch[PAIRS];
	static struct validate_slow slow[PAIRS];
	int32_t first[PAIRS], second[PAIRS], num = 0, measured;
	uint64_t seed = 7;

	for (int a = 0; a < N; a++)
		for (int b = 0; b < N; b++) {
			if (a == b)
				continue;
			first[num] = a;
			second[num] = b;
			for (int r = 0; r < ROUNDS; r++)
				v[r][num] = 6000 + 60 * (a * 5 % N) + 90 * (b * 3 % N) +
					    (double)(judge_random(&seed) % 20);
			num++;
		}
	for (int r = 0; r < ROUNDS; r++)
		v[r][11] *= 1.05;
	v[2][30] = NAN;
	num = validate_slow(&v[0][0], ROUNDS, PAIRS, NULL, slow, PAIRS, &measured);
	REQUIRE(num == 0);	/* among such distances it is nothing unusual */
	for (int r = 0; r < ROUNDS; r++)
		validate_polish(v[r], first, second, PAIRS, N, scratch);
	REQUIRE(isnan(v[2][30]) && v[2][29] > 6000);
	num = validate_slow(&v[0][0], ROUNDS, PAIRS, NULL, slow, PAIRS, &measured);
	REQUIRE(num == 1 && slow[0].index == 11 && measured == PAIRS);
	REQUIRE(slow[0].worse > 0.045 && slow[0].worse < 0.055);
	return NULL;
}

static int32_t thins_out(struct validate_series *s)
{
	memset(s, 0, sizeof(*s));
	for (int i = 0; i < 200; i++)
		validate_series_add(s, i);
	return s->calls;
}

/* Figures are compared with a range in rounds apart in time; a provisional range warns at most. */
static const char *compares_with_ranges(void)
{
	struct validate_range many = { .median = 1000, .mad = 1, .gpus = 20, .nodes = 3 }, few = many;
	struct validate_series series;
	double slow[8] = { 1000, 1060, 1060, 1000, 1060, 1060, 1060, 1000 }, fast[8], windows[8], v[20];

	for (int i = 0; i < 8; i++)
		fast[i] = 940;
	few.gpus = 19;
	REQUIRE(fabs(validate_beyond(slow, 8, &many, 0) - 0.06) < 1e-9);
	REQUIRE(validate_beyond(slow, 8, &many, 1) == 0 && validate_beyond(fast, 8, &many, 0) == 0);
	REQUIRE(fabs(validate_beyond(fast, 8, &many, 1) - 0.06) < 1e-9);
	REQUIRE(validate_beyond(slow, 3, &many, 0) == 0);
	many.mad = 10;		/* six robust deviations are 89 */
	REQUIRE(validate_beyond(slow, 8, &many, 0) == 0);
	REQUIRE(validate_range_verdict(0, &many) == VALIDATE_PASS);
	REQUIRE(validate_range_verdict(0.06, &many) == VALIDATE_FAIL);
	REQUIRE(validate_range_verdict(0.03, &many) == VALIDATE_WARN);
	REQUIRE(validate_range_verdict(0.06, &few) == VALIDATE_WARN);
	few = many;
	few.nodes = 2;
	REQUIRE(validate_range_verdict(0.06, &few) == VALIDATE_WARN);
	for (int i = 0; i < 20; i++)
		v[i] = i < 10 ? NAN : i;
	REQUIRE(thins_out(&series) == 200 && series.num <= 128 && series.v[0] == 0);
	for (int i = 1; i < series.num; i++)
		REQUIRE(series.v[i] == i * series.every);
	REQUIRE(validate_windows(v, 20, windows) == 4 && windows[0] == 10.5 && windows[3] == 18);
	REQUIRE(validate_windows(v + 10, 3, windows) == 3 && windows[2] == 12);
	return NULL;
}

static const char *spares_the_equal(void)
{
	struct rates_of *x;

	for (uint64_t seed = 0; seed < 1000; seed++)
		REQUIRE(slow_in(equal_rates(seed << 20, 0.004)) == 0);
	/* 5%, but everything scatters as much */
	x = equal_rates(3, 0.1);
	for (int r = 0; r < ROUNDS; r++)
		x->v[r][6] = 1050;
	REQUIRE(slow_in(x) == 0);
	/* 1% among values that are all the same, and a fast unit */
	x = equal_rates(4, 0);
	for (int r = 0; r < ROUNDS; r++) {
		x->v[r][6] *= 1.01;
		x->v[r][7] *= 0.9;
	}
	REQUIRE(slow_in(x) == 0);
	return NULL;
}

/* What was not measured is neither slow nor fast, and does not count as measured. */
static const char *tells_the_unmeasured(void)
{
	struct rates_of *x = equal_rates(5, 0.002);

	for (int r = 0; r < ROUNDS; r++) {
		x->v[r][6] = NAN;
		x->v[r][11] *= 1.2;
	}
	REQUIRE(slow_in(x) == 1 && x->slow[0].index == 11);
	REQUIRE(x->measured == UNITS - 1);
	return NULL;
}

/* ---- health ---- */

static const char *judges_growth(void)
{
	struct validate_finding f[8];
	struct validate_health h = { .reasons = VALIDATE_POWER_CAP };

	h.before.has = h.after.has = (1u << CAIRN_NVML_NUM_ITEMS) - 1;
	for (int i = 0; i < CAIRN_NVML_NUM_ITEMS; i++)
		h.before.value[i] = h.after.value[i] = 16;
	h.after.value[CAIRN_NVML_REMAP_PENDING] = h.after.value[CAIRN_NVML_REMAP_FAILED] = 0;
	REQUIRE(validate_health_judge(&h, f, 8) == 0);
	h.after.value[CAIRN_NVML_ECC_UNCORRECTED] += 2;
	REQUIRE(validate_health_judge(&h, f, 8) == 1 && f[0].verdict == VALIDATE_FAIL);
	REQUIRE(strstr(f[0].text, "2 uncorrectable"));
	h.after.value[CAIRN_NVML_ECC_UNCORRECTED] = 16;
	h.after.value[CAIRN_NVML_REMAP_PENDING] = 1;
	REQUIRE(validate_health_judge(&h, f, 8) == 1 && f[0].verdict == VALIDATE_WARN);
	h.after.value[CAIRN_NVML_LINKS_UP]--;
	h.after.value[CAIRN_NVML_PCIE_WIDTH] = 8;
	h.reasons |= VALIDATE_HW_THERMAL | VALIDATE_POWER_BRAKE | VALIDATE_SW_THERMAL;
	h.xid = 79;
	REQUIRE(validate_health_judge(&h, f, 8) == 7);
	/* items that the card lacks are no findings */
	h = (struct validate_health){ .reasons = 0 };
	h.after.value[CAIRN_NVML_ECC_UNCORRECTED] = h.after.value[CAIRN_NVML_REMAP_FAILED] = 3;
	REQUIRE(validate_health_judge(&h, f, 8) == 0);
	REQUIRE(validate_xid("6,1,2;NVRM: Xid (PCI:0000:1b:00): 79, GPU lost", "0000:1b:00.0") == 79);
	REQUIRE(validate_xid("NVRM: Xid (PCI:0000:1c:00): 79", "0000:1b:00.0") == 0);
	REQUIRE(validate_xid("NVRM: loading", "0000:1b:00.0") == 0);
	REQUIRE(validate_xid_is_own(31) && !validate_xid_is_own(79));
	return NULL;
}

#endif
