// SPDX-License-Identifier: Apache-2.0
/*
 * spec_reject_test - outcomes of rejection sampling are distributed as the draws of the cpu table
 *
 * Drafts and the draws to compare with are made by `sample` of the cpu table. Two histograms of N outcomes
 * each are compared by the chi-square of two samples, sum (a - b)^2 / (a + b) over the tokens. If the
 * distributions are equal, it has about the mean of its degrees of freedom and twice that as variance.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "conformance/tables/tables.h"
#include "serving/engine/spec/spec_reject.h"

enum { VOCAB = 20, N = 20000, MOST = 3 };

struct setting {
	struct cairn_sampling target;
	int32_t num;			/* drafts tried for a place */
	double apart;			/* how unlike the drafter's logits are */
};

/* u has twice as many numbers as are needed, so that a wrong one may use others. */
typedef int32_t (*reject_fn)(double *p, const double *q, const int32_t *drafts, int32_t num, const double *u,
			     int32_t *token);

static int32_t right(double *p, const double *q, const int32_t *drafts, int32_t num,
		     const double *u, int32_t *token)
{
	return cairn_spec_reject(p, q, VOCAB, drafts, num, u, token);
}

/* ---- wrong ones ---- */

static int32_t always_accepted(double *p, const double *q, const int32_t *drafts, int32_t num,
		     const double *u, int32_t *token)
{
	(void)p, (void)q, (void)num, (void)u;
	*token = drafts[0];
	return 0;
}

/* Rejects as is right, but draws from p as if nothing had been rejected. */
static int32_t p_instead_of_residual(double *p, const double *q, const int32_t *drafts, int32_t num,
		     const double *u, int32_t *token)
{
	double whole[VOCAB], zero[VOCAB] = { 0 };
	int32_t k;

	memcpy(whole, p, sizeof(whole));
	k = cairn_spec_reject(p, q, VOCAB, drafts, num, u, token);
	if (k == num)	/* without drafts: the draw from p */
		cairn_spec_reject(whole, zero, VOCAB, NULL, 0, u + MOST + 1, token);
	return k;
}

/* Draws from max(p - q, 0) without dividing by its sum. */
static int32_t residual_not_renormalised(double *p, const double *q, const int32_t *drafts, int32_t num,
		     const double *u, int32_t *token)
{
	double rest[VOCAB];
	int32_t k;

	for (int j = 0; j < VOCAB; j++)
		rest[j] = fmax(p[j] - q[j], 0);
	k = cairn_spec_reject(p, q, VOCAB, drafts, num, u, token);
	if (k == num)
		cairn_spec_reject(rest, rest, VOCAB, NULL, 0, u + MOST + 1, token);
	return k;
}

/* Siblings are all tried against the first p. */
static int32_t siblings_against_p(double *p, const double *q, const int32_t *drafts, int32_t num,
		     const double *u, int32_t *token)
{
	double again[VOCAB];

	for (int32_t k = 0; k < num; k++) {
		memcpy(again, p, sizeof(again));
		if (cairn_spec_reject(again, q, VOCAB, drafts + k, 1, u + 2 * k, token) == 0)
			return k;
	}
	return num;
}

/* p / q is taken the wrong way round. */
static int32_t ratio_inverted(double *p, const double *q, const int32_t *drafts, int32_t num,
		     const double *u, int32_t *token)
{
	double other[VOCAB];

	memcpy(other, q, sizeof(other));
	(void)num;
	return cairn_spec_reject(other, p, VOCAB, drafts, 1, u, token);
}

/* ---- outcomes ---- */

/* N draws of the table from one row of logits. */
static void table_draws(struct cairn_test *t, const struct cairn_impl *impl, const float *row,
			const struct cairn_sampling *s, uint64_t seed, int32_t *out)
{
	static float logits[N * VOCAB], temperature[N], top_p[N], min_p[N];
	static int32_t top_k[N];
	static uint64_t seeds[N], offsets[N];
	struct cairn_sample_args args = {
		.size = sizeof(args), .out = out, .logits = logits, .temperature = temperature,
		.top_k = top_k,
		.top_p = top_p, .min_p = min_p, .seed = seeds, .offset = offsets, .rows = N, .vocab = VOCAB,
	};

	for (int i = 0; i < N; i++) {
		memcpy(logits + i * VOCAB, row, VOCAB * sizeof(*row));
		temperature[i] = s->temperature;
		top_p[i] = s->top_p;
		min_p[i] = s->min_p;
		top_k[i] = s->top_k;
		seeds[i] = seed;
		offsets[i] = (uint64_t)i;
	}
	EXPECT(t, impl->sample(&args, NULL) == 0);
}

/* Returns the chi-square, less its degrees of freedom, in standard deviations. */
static double distance(const int32_t *a, const int32_t *b)
{
	double chi = 0, cells = 0;

	for (int j = 0; j <= VOCAB; j++) {
		double sum = a[j] + b[j];

		chi += sum > 0 ? (a[j] - b[j]) * (double)(a[j] - b[j]) / sum : 0;
		cells += sum > 0;
	}
	cells = cells > 1 ? cells - 1 : 1;
	return (chi - cells) / sqrt(2 * cells);
}

/* skips: the target's top_p is left out of p. *accepted: share of the places where a draft was accepted. */
static double run(struct cairn_test *t, const struct cairn_impl *impl, const struct setting *set,
		  reject_fn fn, int skips, double *accepted)
{
	static const struct cairn_sampling plain = { .temperature = 1, .top_p = 1 };
	static int32_t drafts[MOST][N], draws[N];
	int32_t want[VOCAB + 1] = { 0 }, got[VOCAB + 1] = { 0 };
	struct cairn_sampling target = set->target;
	float logits[VOCAB], other[VOCAB];
	double p[VOCAB], q[VOCAB], now[VOCAB];
	uint64_t seed = cairn_rand(t);

	for (int j = 0; j < VOCAB; j++) {
		logits[j] = (float)(cairn_rand(t) % 1000) / 250;
		other[j] = logits[j] + (float)(set->apart * ((double)(cairn_rand(t) % 1000) / 500 - 1));
	}
	target.top_p = skips ? 1 : target.top_p;
	EXPECT(t, cairn_spec_distribution(logits, VOCAB, &target, p) == 0);
	EXPECT(t, cairn_spec_distribution(other, VOCAB, &plain, q) == 0);
	for (int k = 0; k < set->num; k++)
		table_draws(t, impl, other, &plain, seed + 1 + (uint64_t)k, drafts[k]);
	table_draws(t, impl, logits, &set->target, seed, draws);
	*accepted = 0;
	for (int i = 0; i < N; i++) {
		double u[2 * (MOST + 1)];
		int32_t mine[MOST], token = -1;

		for (int k = 0; k < set->num; k++)
			mine[k] = drafts[k][i];
		for (size_t k = 0; k < ARRAY_SIZE(u); k++)
			u[k] = (double)(cairn_rand(t) >> 11) * 0x1p-53;
		memcpy(now, p, sizeof(now));
		*accepted += fn(now, q, mine, set->num, u, &token) < set->num;
		want[draws[i] < 0 ? VOCAB : draws[i]]++;
		got[token < 0 ? VOCAB : token]++;
	}
	*accepted /= N;
	return distance(want, got);
}

static const struct setting settings[] = {
	{ { .temperature = 1, .top_p = 1 }, 1, 2 },
	{ { .temperature = 0.7f, .top_p = 0.8f }, 1, 2 },
	{ { .temperature = 1.3f, .top_p = 1, .top_k = 7 }, 2, 3 },
	{ { .temperature = 1, .top_p = 0.9f, .min_p = 0.05f }, 3, 3 },
	{ { .temperature = 1, .top_p = 1 }, 3, 0 },	/* the drafter is the target */
};

/* Six standard deviations: a chi-square with ten degrees of freedom exceeds them once in some 10^5 runs. */
static void same_distribution(struct cairn_test *t)
{
	struct cairn_impl impl;
	double accepted, far;

	if (!EXPECT(t, cairn_impl_open("cpu", &impl) == 0))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(settings); i++) {
		far = run(t, &impl, &settings[i], right, 0, &accepted);
		cairn_note(t, "%d drafts: %.1f%% accepted; %.2f standard deviations", settings[i].num,
			   100 * accepted, far);
		if (!EXPECT(t, far < 6 && accepted > 0.2))
			cairn_note(t, "setting %zu", i);
	}
	EXPECT(t, accepted == 1);
}

static void mutants_differ(struct cairn_test *t)
{
	static const struct { const char *name; reject_fn fn; int setting, skips; } mutants[] = {
		{ "always accepted", always_accepted, 0, 0 },
		{ "p instead of the residual", p_instead_of_residual, 0, 0 },
		{ "residual not renormalised", residual_not_renormalised, 0, 0 },
		{ "siblings against the first p", siblings_against_p, 2, 0 },
		{ "ratio inverted", ratio_inverted, 0, 0 },
		{ "top_p skipped", right, 1, 1 },
	};
	struct cairn_impl impl;
	double accepted;

	if (!EXPECT(t, cairn_impl_open("cpu", &impl) == 0))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(mutants); i++) {
		double far = run(t, &impl, &settings[mutants[i].setting], mutants[i].fn, mutants[i].skips,
				 &accepted);

		cairn_note(t, "%s: %.0f standard deviations", mutants[i].name, far);
		if (!EXPECT(t, far > 20))
			cairn_note(t, "survived: %s", mutants[i].name);
	}
}

/* Temperature 0 leaves one token; a row without a number is refused. */
static void edges(struct cairn_test *t)
{
	const struct cairn_sampling greedy = { .top_p = 1 };
	const float logits[3] = { 1, 3, 2 }, none[3] = { NAN, -INFINITY, NAN };
	const double u[2] = { 0, 0.9 };
	double p[3], q[3] = { 0.5, 0.5, 0 };
	int32_t draft = 0, token;

	EXPECT(t, cairn_spec_distribution(logits, 3, &greedy, p) == 0 && p[0] == 0 && p[1] == 1 && p[2] == 0);
	EXPECT(t, cairn_spec_reject(p, q, 3, &draft, 1, u, &token) == 1 && token == 1);
	EXPECT(t, cairn_spec_distribution(none, 3, &greedy, p) == -EINVAL);
}

static const struct cairn_unit units[] = {
	{ "same_distribution", same_distribution }, { "mutants_differ", mutants_differ }, { "edges", edges },
};

const struct cairn_family cairn_spec_reject_family = {
	.stage = "serving",
	.name = "spec_reject",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
