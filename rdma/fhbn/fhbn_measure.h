/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fhbn_measure - rows "fhbn" of `cairn bench`, and what their measurements share; include
 * conformance/harness.h first
 *
 * fhbn_measure_test.c explains the rows.
 */
#ifndef CAIRN_FHBN_MEASURE_H
#define CAIRN_FHBN_MEASURE_H

#include <stdlib.h>
#include <time.h>

#include "rdma/fhbn/fhbn_pair.h"

#define FHBN_NUM_MEASURES 4
extern const struct cairn_unit fhbn_measures[FHBN_NUM_MEASURES];

void fhbn_measure_loopback(struct cairn_test *t);

#define POSTS	400
#define ROUNDS	400

static inline double now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec * 1e9 + (double)ts.tv_nsec;
}

static inline int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

struct spread {
	double min, median, p95;
};

/* Returns the spread without the first tenth, during which caches and clocks warm up. */
static inline struct spread spread_of(double *v, int n)
{
	int skip = n / 10;

	v += skip;
	n -= skip;
	qsort(v, (size_t)n, sizeof(*v), ascending);
	return (struct spread) { v[0], v[n / 2], v[n * 95 / 100] };
}

static inline int measure_open(struct cairn_test *t, struct pair *m, enum cairn_fhbn_poster poster,
			       uint32_t mode, int num, int on_gpu)
{
	const struct cairn_fhbn_qp_args args = {
		.poster = poster, .num_blocks = 64, .timeout_ns = TIMEOUT,
		.mode = mode | (on_gpu ? 0 : CAIRN_FHBN_SYS),
	};
	int ret = pair_open(m, NULL, 1, &args, num, on_gpu);

	if (ret == -ENODEV)
		cairn_skip(t, "%s", cairn_last_error());
	else
		EXPECT(t, ret == 0);
	return ret;
}

#endif
