/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rates - which of many equal parts is slower than the others
 *
 * A part is compared with its peers, so that no history is needed. In each round the level of its group (a
 * GPC) is taken out, and what remains is a residual. A finding is a part that is more than 2% slower than
 * expected, whose residual exceeds six robust standard deviations (1.4826 times the median of the absolute
 * residuals), in at least three rounds and in a quarter of all. Nothing here calls a device.
 */
#ifndef CAIRN_VALIDATE_RATES_H
#define CAIRN_VALIDATE_RATES_H

#include <stdint.h>

#define VALIDATE_WORSE		0.02	/* share by which a finding is at least slower */
#define VALIDATE_MUCH_WORSE	0.05	/* from here on it fails instead of warning */
#define VALIDATE_Z		6
#define VALIDATE_MIN_ROUNDS	3
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

#endif
