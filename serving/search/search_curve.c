// SPDX-License-Identifier: Apache-2.0
/* search_curve - times and rates as functions of a profile's rows */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/base/line_fit.h"
#include "serving/search/search_profile.h"

int cairn_search_profile_has(const struct cairn_search_profile *p, const char *op)
{
	for (int32_t i = 0; i < p->num_times; i++)
		if (!strcmp(p->times[i].op, op))
			return 1;
	return 0;
}

int cairn_search_profile_ms(const struct cairn_search_profile *p, const char *op, int32_t rows, double *ms)
{
	for (int32_t i = 0; i < p->num_times; i++) {
		const struct cairn_search_time *t = &p->times[i];

		if (t->rows == rows && t->sms == p->sms && !t->context && !strcmp(t->op, op)) {
			*ms = t->ms;
			return 0;
		}
	}
	return cairn_error(EINVAL, "profile: no row of %s_m%d alone on %d SMs", op, rows, p->sms);
}

int cairn_search_profile_line(const struct cairn_search_profile *p, const char *op,
			      struct cairn_search_line *line)
{
	struct cairn_line_fit fit = { .num = 0 };
	struct cairn_fit_line found = { 0, 0 };
	bool fits;

	for (int32_t i = 0; i < p->num_times; i++) {
		const struct cairn_search_time *t = &p->times[i];

		if (t->sms == p->sms && !strcmp(t->op, op))
			cairn_line_fit_add(&fit, (double)t->rows * t->context, t->ms);
	}
	fits = cairn_line_fit_get(&fit, &found);
	if (!fits && found.slope == 0)
		return cairn_error(EINVAL, "profile: %s has fewer than two numbers of keys on %d SMs", op,
				   p->sms);
	if (!fits)
		return cairn_error(EINVAL, "profile: the time of %s does not grow with its keys", op);
	*line = (struct cairn_search_line){ found.base, found.slope, 0 };
	for (int32_t i = 0; i < p->num_times; i++) {
		const struct cairn_search_time *t = &p->times[i];
		double ms = found.base + found.slope * t->rows * t->context;

		if (t->sms == p->sms && !strcmp(t->op, op))
			line->worst = fmax(line->worst, fabs(ms / t->ms - 1));
	}
	return 0;
}

/* Orders points by descending R, and those of equal R by descending P. */
static int by_r(const void *a, const void *b)
{
	const struct cairn_search_level *x = a, *y = b;

	if (x->r != y->r)
		return x->r < y->r ? 1 : -1;
	return (x->p < y->p) - (x->p > y->p);
}

/* Drops the point, other than the first and the last, whose neighbours are nearest to each other. */
static void drop_nearest(struct cairn_search_level *all, int32_t *num)
{
	int32_t least = 1;

	for (int32_t i = 1; i + 1 < *num; i++)
		if (all[i - 1].r - all[i + 1].r + all[i - 1].p - all[i + 1].p <
		    all[least - 1].r - all[least + 1].r + all[least - 1].p - all[least + 1].p)
			least = i;
	(*num)--;
	memmove(&all[least], &all[least + 1], (size_t)(*num - least) * sizeof(*all));
}

static bool is_setting(const struct cairn_search_pair *q, enum cairn_search_kind other,
		       const struct cairn_search_level *level)
{
	return q->other == other && q->how == level->how && q->sms_b == level->sms &&
	       q->sms_a == level->other_sms;
}

/* Sets r and p of a setting to the means over its pairs. */
static void take_means(const struct cairn_search_profile *p, enum cairn_search_kind other,
		       struct cairn_search_level *level)
{
	double ms = 0, r = 0, speed = 0;

	for (int32_t i = 0; i < p->num_pairs; i++)
		if (is_setting(&p->pairs[i], other, level)) {
			ms += p->pairs[i].ms;
			r += p->pairs[i].ms * p->pairs[i].r;
			speed += p->pairs[i].ms * p->pairs[i].p;
		}
	level->r = 1 - r / ms;
	level->p = speed / ms;
}

double cairn_search_keeps(const struct cairn_search_profile *p, const char *op, enum cairn_search_kind other,
			  const struct cairn_search_level *level)
{
	double ms = 0, r = 0;

	for (int32_t i = 0; i < p->num_pairs; i++)
		if (is_setting(&p->pairs[i], other, level) && !strcmp(p->pairs[i].op, op)) {
			ms += p->pairs[i].ms;
			r += p->pairs[i].ms * p->pairs[i].r;
		}
	return ms > 0 ? r / ms : 1 - level->r;
}

int32_t cairn_search_curve(const struct cairn_search_profile *p, enum cairn_search_kind other, unsigned hows,
			   struct cairn_search_level *levels, int32_t max)
{
	struct cairn_search_level *all = calloc((size_t)p->num_pairs + 1, sizeof(*all));
	int32_t num = 0, kept = 0;

	if (!all)
		return cairn_error(ENOMEM, "profile: out of memory");
	levels[0] = (struct cairn_search_level){ 1, 1, CAIRN_SEARCH_ALONE, p->sms, 0 };
	for (int32_t i = 0; i < p->num_pairs; i++) {
		const struct cairn_search_pair *q = &p->pairs[i];
		int32_t known = 0;

		if (q->other != other || !(hows & 1u << q->how))
			continue;
		while (known < num && !is_setting(q, other, &all[known]))
			known++;
		if (known == num)
			all[num++] = (struct cairn_search_level){ 0, 0, q->how, q->sms_b, q->sms_a };
	}
	for (int32_t i = 0; i < num; i++)
		take_means(p, other, &all[i]);
	for (int32_t i = num - 1; i >= 0; i--)
		if (!(all[i].r > 0))	/* nothing is left for it */
			all[i] = all[--num];
	qsort(all, (size_t)num, sizeof(*all), by_r);
	/* A point is dominated if one with no more R has no less P: go from the least R upwards. */
	for (int32_t i = num - 1; i >= 0; i--) {
		while (i > 0 && all[i - 1].r == all[i].r)
			i--;		/* of equal R, the one with the most P comes first */
		if (kept && all[num - kept].p >= all[i].p)
			continue;
		kept++;
		all[num - kept] = all[i];
	}
	memmove(all, all + num - kept, (size_t)kept * sizeof(*all));
	while (kept > max - 1 && kept > 2)
		drop_nearest(all, &kept);
	memcpy(levels + 1, all, (size_t)kept * sizeof(*all));
	free(all);
	return kept + 1;
}
