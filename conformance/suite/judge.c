// SPDX-License-Identifier: Apache-2.0
/* judge - compares the elements of an output with exact values and bounds */
#include <math.h>
#include <string.h>

#include "conformance/suite/op_case.h"

/* Returns the smallest magnitude that rounds to infinity. */
static double overflow_from(int dtype)
{
	switch (dtype) {
	case CAIRN_F16:
		return 65520.0;
	case CAIRN_BF16:
		return 0x1.ffp127;
	case CAIRN_F32:
		return 0x1.ffffffp127;
	}
	return INFINITY;
}

static int element_ok(int dtype, double got, double val, double bound, double *ratio)
{
	double err = fabs(got - val);

	*ratio = 0;
	if (isnan(val))
		return isnan(got) || isinf(bound);
	if (isinf(val))
		return got == val;
	if (isinf(got))	/* good if a value within the bound overflows */
		return (got > 0 ? val : -val) + bound >= overflow_from(dtype);
	if (!(err <= bound))
		return 0;
	*ratio = bound > 0 && isfinite(bound) ? err / bound : 0;
	return 1;
}

int cairn_judge_one(int dtype, int64_t i, const void *got, const void *before,
		    const struct cairn_exact *exact, int equal, double *ratio)
{
	size_t esize = cairn_dtype_bytes(dtype);
	double bound = exact->bound[i], val;

	*ratio = 0;
	if (isnan(bound))
		return !memcmp((const char *)got + i * esize, (const char *)before + i * esize, esize);
	val = exact->val[i];
	if (equal && isfinite(bound)) {
		uint64_t tmp = 0;

		cairn_store(&tmp, dtype, 0, val);
		val = cairn_load(&tmp, dtype, 0);
		bound = 0;
	}
	return element_ok(dtype, cairn_load(got, dtype, i), val, bound, ratio);
}

int64_t cairn_judge(int dtype, int64_t count, const void *got, const void *before,
		    const struct cairn_exact *exact, int equal, int64_t *first, double *worst,
		    int64_t *judged)
{
	int64_t bad = 0, seen = 0, first_bad = count;
	double most = *worst;

	/*
	 * Page pools are large, and few of their elements have an exact value. The others have a NaN bound
	 * and must keep their bits; val[] is not read for them.
	 */
	#pragma omp parallel for schedule(static) reduction(+:bad, seen) reduction(min:first_bad) \
		reduction(max:most) if (count > 1 << 20)
	for (int64_t i = 0; i < count; i++) {
		double ratio;
		int ok = cairn_judge_one(dtype, i, got, before, exact, equal, &ratio);

		seen += !isnan(exact->bound[i]) && !isinf(exact->bound[i]);
		most = ratio > most ? ratio : most;
		if (!ok) {
			bad++;
			first_bad = i < first_bad ? i : first_bad;
		}
	}
	*judged += seen;
	*worst = most;
	if (bad)
		*first = first_bad;
	return bad;
}
