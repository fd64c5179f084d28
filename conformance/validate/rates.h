/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rates - which of many equal parts is slower than the others
 *
 * A part is compared with its peers, so that no history is needed. In each round the level of its group (a
 * GPC) is taken out, and what remains is a residual. A finding is a part that is more than 2% slower than
 * expected, whose residual exceeds six robust standard deviations (1.4826 times the median of the absolute
 * residuals), in at least three rounds that are apart in time, and in a quarter of all. Rounds stand in the
 * order of time; apart means that each third of them has one, so that a short disturbance is no finding.
 *
 * A figure of a whole device is also compared with the range that the same model had in records. Nothing here
 * calls a device.
 */
#ifndef CAIRN_VALIDATE_RATES_H
#define CAIRN_VALIDATE_RATES_H

#include <stdint.h>

#include "conformance/validate/judge.h"

#define VALIDATE_WORSE		0.02	/* share by which a finding is at least slower */
#define VALIDATE_MUCH_WORSE	0.05	/* from here on it fails instead of warning */
#define VALIDATE_Z		6
#define VALIDATE_MIN_ROUNDS	3
#define VALIDATE_MIN_GPUS	20	/* a range of fewer GPUs, or of fewer nodes, is provisional */
#define VALIDATE_MIN_NODES	3
#define VALIDATE_WINDOWS	8	/* values of a figure */
#define VALIDATE_MIN_PEERS	4	/* fewer values have no outliers */

/* Sorts v, [n], and returns its median; NAN if n is 0. */
double validate_median(double *v, int32_t n);

struct validate_slow {
	int32_t index;
	double worse;		/* median share by which it is slower in these rounds; 0.05: 5% */
	int32_t rounds;		/* rounds in which it was */
};

/*
 * values: [rounds, n], larger is slower; NAN: not measured. group: [n], or NULL: one group. Groups with fewer
 * than VALIDATE_MIN_PEERS measured values, and all parts with group -1, form one group together. Writes the
 * findings, the slowest first, at most `most`. Returns their number, or -ENOMEM. *measured: the parts that
 * were measured in three rounds; only these are judged.
 */
int32_t validate_slow(const double *values, int32_t rounds, int32_t n, const int32_t *group,
		      struct validate_slow *out, int32_t most, int32_t *measured);

/*
 * Sets levels, [rounds, n], to the median of each group in each round, at the index of the group's number,
 * which is that of one of its parts; NAN elsewhere, and for groups with fewer than VALIDATE_MIN_PEERS
 * measured values. As values of validate_slow() they tell a group that is slow as a whole, which its members
 * do not show.
 */
void validate_levels(const double *values, int32_t rounds, int32_t n, const int32_t *group, double *levels);

/*
 * v: [n], each value belongs to a pair of parts, first[i] and second[i], from 0 to parts - 1; NAN: not
 * measured. Subtracts from v what each part adds to all pairs of which it is the first part, and to all of
 * which it is the second; the common level and the deviation of each pair remain (a two-way fit by means,
 * then Tukey's median polish). scratch: [n]. With three pairs or more on each side, one slow pair shifts the
 * fit of its parts little.
 */
void validate_polish(double *v, const int32_t *first, const int32_t *second, int32_t n, int32_t parts,
		     double *scratch);

/*
 * Sets out to the medians of at most VALIDATE_WINDOWS windows of equal length, in the order of v, [n]; leaves
 * out NAN. Returns the number of windows.
 */
int32_t validate_windows(const double *v, int32_t n, double *out);

/* Rates in the order of time, thinned out when there is no room for more. Zeroed at the start. */
struct validate_series {
	double v[128];
	int32_t num, calls, every;	/* every: calls for each value kept; 0: 1 */
};

void validate_series_add(struct validate_series *s, double v);

/* A figure of many GPUs of one model. */
struct validate_range {
	double median, mad;		/* over GPUs; mad: the median absolute deviation */
	int32_t gpus, nodes;
};

/*
 * Returns the median share by which values, [n], in the order of time, are worse than the range in rounds
 * apart in time; 0 if they are not. larger: larger values are better.
 */
double validate_beyond(const double *values, int32_t n, const struct validate_range *range, int larger);
/* Returns the verdict on such a share. A provisional range warns at most. */
enum validate_verdict validate_range_verdict(double worse, const struct validate_range *range);

#endif
