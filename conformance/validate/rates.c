// SPDX-License-Identifier: Apache-2.0
#include "conformance/validate/rates.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/validate/validate_fault.h"
#include "primitives/base/error.h"

enum { POLISHES = 10 };

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static double mean(const double *v, int32_t n)
{
	double sum = 0;

	for (int32_t i = 0; i < n; i++)
		sum += v[i];
	return sum / n;
}

double validate_median(double *v, int32_t n)
{
	if (!n)
		return NAN;
	if (FAULT(MEAN))
		return mean(v, n);
	qsort(v, (size_t)n, sizeof(*v), by_value);
	return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

struct level_work {
	int32_t n;
	const int32_t *group;
	int32_t *level;			/* [n] the group that levels a part in a round; -1: the common one */
	double *expected, *scratch;	/* [n] each */
	double *worse;			/* [rounds, n]: share if the round flags the part, else NAN */
};

static void choose_levels(const struct level_work *w, const double *v)
{
	for (int32_t i = 0; i < w->n; i++) {
		int32_t members = 0;

		w->level[i] = w->group && !FAULT(NO_GROUPS) ? w->group[i] : -1;
		for (int32_t k = 0; k < w->n && w->level[i] >= 0; k++)
			members += w->group[k] == w->level[i] && !isnan(v[k]);
		if (members < VALIDATE_MIN_PEERS)
			w->level[i] = -1;
	}
}

/* Sets the expected value of each part: the median of its group. */
static void expect(const struct level_work *w, const double *v)
{
	choose_levels(w, v);
	for (int32_t i = 0; i < w->n; i++) {
		int32_t num = 0, k = 0;

		/* parts of one group have one level, which is computed for its first part */
		while (w->level[k] != w->level[i])
			k++;
		if (k < i) {
			w->expected[i] = w->expected[k];
			continue;
		}
		for (; k < w->n; k++)
			if (!isnan(v[k]) && w->level[k] == w->level[i])
				w->scratch[num++] = v[k];
		w->expected[i] = validate_median(w->scratch, num);
	}
}

static void judge_round(const struct level_work *w, const double *v, double *worse)
{
	int32_t num = 0;
	double sigma;

	expect(w, v);
	for (int32_t i = 0; i < w->n; i++)
		if (!isnan(v[i]))
			w->scratch[num++] = fabs(v[i] - w->expected[i]);
	if (num < VALIDATE_MIN_PEERS)
		return;
	sigma = 1.4826 * validate_median(w->scratch, num);
	for (int32_t i = 0; i < w->n; i++) {
		double more = v[i] - w->expected[i], share = more / w->expected[i];

		if (FAULT(BOTH_SIDES)) {
			more = fabs(more);
			share = fabs(share);
		}
		if ((more > VALIDATE_Z * sigma || FAULT(ANY_Z)) &&
		    (share > VALIDATE_WORSE || FAULT(ANY_SIZE)))
			worse[i] = share;
	}
}

static int by_worse(const void *a, const void *b)
{
	const struct validate_slow *x = a, *y = b;

	return x->worse > y->worse ? -1 : x->worse < y->worse ? 1 : x->index - y->index;
}

/* The rounds that flag a part, in the order of time. */
struct flagged {
	double *share;
	int32_t num, thirds;		/* bit i: a round of the i-th third of all */
};

static void flag(struct flagged *f, double share, int32_t round, int32_t rounds)
{
	f->share[f->num++] = share;
	f->thirds |= 1 << (3 * (int64_t)round / rounds);
}

/*
 * Returns whether a part was flagged often enough: in VALIDATE_MIN_ROUNDS rounds or more, in at least a
 * quarter of the `have` rounds in which it was measured, and in each third of the run.
 */
static int recurs(const struct flagged *f, int32_t have)
{
	if (FAULT(ONE_ROUND))
		return f->num > 0;
	return f->num >= VALIDATE_MIN_ROUNDS && 4 * f->num >= have && (f->thirds == 7 || FAULT(TOGETHER));
}

static int32_t collect(const struct level_work *w, const double *values, int32_t rounds, double *shares,
		       struct validate_slow *out, int32_t most, int32_t *measured)
{
	int32_t num = 0;

	*measured = 0;
	for (int32_t i = 0; i < w->n; i++) {
		struct flagged f = { .share = shares };
		int32_t have = 0;

		for (int32_t r = 0; r < rounds; r++) {
			have += !isnan(values[(size_t)r * w->n + i]) || FAULT(NAN_COMPARES);
			if (!isnan(w->worse[(size_t)r * w->n + i]))
				flag(&f, w->worse[(size_t)r * w->n + i], r, rounds);
		}
		*measured += have >= VALIDATE_MIN_ROUNDS;
		if (recurs(&f, have) && num < most)
			out[num++] = (struct validate_slow){ i, validate_median(shares, f.num), f.num };
	}
	qsort(out, (size_t)num, sizeof(*out), by_worse);
	return num;
}

int32_t validate_slow(const double *values, int32_t rounds, int32_t n, const int32_t *group,
		      struct validate_slow *out, int32_t most, int32_t *measured)
{
	size_t cells = (size_t)rounds * (size_t)n;
	struct level_work w = { .n = n, .group = group };
	double *memory = malloc((2 * (size_t)n + cells + (size_t)rounds) * sizeof(*memory));
	int32_t num;

	w.level = malloc((size_t)n * sizeof(*w.level));
	if (!memory || !w.level) {
		free(memory);
		free(w.level);
		return cairn_error(ENOMEM, "no memory for the rates of %d parts", n);
	}
	w.expected = memory;
	w.scratch = memory + n;
	w.worse = memory + 2 * n;
	for (size_t i = 0; i < cells; i++)
		w.worse[i] = NAN;
	for (int32_t r = 0; r < rounds; r++)
		judge_round(&w, values + (size_t)r * n, w.worse + (size_t)r * n);
	num = collect(&w, values, rounds, w.worse + cells, out, most, measured);
	free(memory);
	free(w.level);
	return num;
}

/* Subtracts the mean or the median of each part's pairs. */
static void sweep(double *v, const int32_t *part, int32_t n, int32_t parts, int means, double *scratch)
{
	for (int32_t p = 0; p < parts; p++) {
		int32_t num = 0;
		double middle;

		for (int32_t i = 0; i < n; i++)
			if (part[i] == p && !isnan(v[i]))
				scratch[num++] = v[i];
		if (!num)
			continue;
		middle = means ? mean(scratch, num) : validate_median(scratch, num);
		for (int32_t i = 0; i < n; i++)
			if (part[i] == p)
				v[i] -= middle;
	}
}

void validate_polish(double *v, const int32_t *first, const int32_t *second, int32_t n, int32_t parts,
		     double *scratch)
{
	int32_t num = 0;
	double level;

	for (int32_t i = 0; i < n; i++)
		if (!isnan(v[i]))
			scratch[num++] = v[i];
	level = validate_median(scratch, num);
	/* means fit a sum exactly, even with few pairs; medians then undo what one slow pair has shifted */
	for (int i = 0; i < 2 * POLISHES; i++) {
		sweep(v, first, n, parts, i < POLISHES, scratch);
		if (!FAULT(ONE_SIDE))
			sweep(v, second, n, parts, i < POLISHES, scratch);
	}
	for (int32_t i = 0; i < n; i++)
		v[i] += level;
}

void validate_levels(const double *values, int32_t rounds, int32_t n, const int32_t *group, double *levels)
{
	double member[CAIRN_SCREEN_MAX_UNITS];

	for (int64_t i = 0; i < (int64_t)rounds * n; i++) {
		const double *v = values + i / n * n;
		int32_t g = (int32_t)(i % n), num = 0;

		for (int32_t k = 0; k < n && group[g] == g && num < CAIRN_SCREEN_MAX_UNITS; k++)
			if (group[k] == g && !isnan(v[k]))
				member[num++] = v[k];
		levels[i] = num < VALIDATE_MIN_PEERS ? NAN : validate_median(member, num);
	}
}

int32_t validate_windows(const double *v, int32_t n, double *out)
{
	double *some = malloc((size_t)n * sizeof(*some) + 1);
	int32_t windows = n < VALIDATE_WINDOWS ? n : VALIDATE_WINDOWS, num = 0;

	for (int32_t w = 0; w < windows && some; w++) {
		int32_t k = 0;

		for (int64_t i = (int64_t)w * n / windows; i < (int64_t)(w + 1) * n / windows; i++)
			if (!isnan(v[i]))
				some[k++] = v[i];
		if (k)
			out[num++] = validate_median(some, k);
	}
	free(some);
	return num;
}

void validate_series_add(struct validate_series *s, double v)
{
	const int32_t most = sizeof(s->v) / sizeof(s->v[0]);

	s->every = s->every ? s->every : 1;
	if (s->calls++ % s->every)
		return;
	if (s->num == most) {
		for (int32_t i = 0; i < most / 2; i++)
			s->v[i] = s->v[2 * i];
		s->num = most / 2;
		s->every *= 2;
	}
	s->v[s->num++] = v;
}

double validate_beyond(const double *values, int32_t n, const struct validate_range *range, int larger)
{
	double limit = VALIDATE_Z * 1.4826 * range->mad, share[VALIDATE_WINDOWS];
	struct flagged f = { .share = share };

	if (FAULT(RANGE_BOTH_WAYS))
		larger = 0;
	if (FAULT(RANGE_SPREAD))
		limit = 0;
	for (int32_t i = 0; i < n && i < VALIDATE_WINDOWS; i++) {
		double more = larger ? range->median - values[i] : values[i] - range->median;

		if (more > limit && more > VALIDATE_WORSE * range->median)
			flag(&f, more / range->median, i, n);
	}
	return recurs(&f, n) ? validate_median(share, f.num) : 0;
}

enum validate_verdict validate_range_verdict(double worse, const struct validate_range *range)
{
	int provisional = range->gpus < VALIDATE_MIN_GPUS || range->nodes < VALIDATE_MIN_NODES;

	if (worse <= 0)
		return VALIDATE_PASS;
	if (provisional && !FAULT(RANGE_PROVISIONAL))
		return VALIDATE_WARN;
	return worse >= VALIDATE_MUCH_WORSE ? VALIDATE_FAIL : VALIDATE_WARN;
}
