// SPDX-License-Identifier: Apache-2.0
/*
 * penalize_ref - the reference
 *
 * Bound, with u = 2^-24 for each rounding to fp32. The cap: the quotient has a relative error of u, which
 * tanh does not enlarge (|q tanh'(q)| <= |tanh(q)|); tanh itself errs by 4 ulps, 8 u, and the product by u.
 * This is within 11 u |y|, plus 2^-150 times the cap for a subnormal quotient. The bias adds its rounding.
 * The repetition step is continuous at 0 and multiplies an error by repetition or its inverse. The last step
 * rounds the product frequency n, then two differences of at most |y| + |f n| + |p|.
 */
#include "primitives/logits/penalize.h"

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/logits/token_counts.h"

#define U	0x1p-24

/* Returns the position of token j in a list, or -1. */
static int32_t find(const int32_t *ids, int32_t at, int32_t num, int32_t j)
{
	for (int32_t k = at; k < at + num; k++)
		if (ids[k] == j)
			return k;
	return -1;
}

/* Returns whether every step is off in row i, whose logits are then neither read nor written. */
static int is_idle(const struct cairn_penalize_args *a, int32_t i)
{
	int counted = a->counts && a->slots[i] >= 0 && a->slots[i] < a->num_slots;

	if (a->softcap > 0 || (a->num_bias && a->num_bias[i] > 0) ||
	    (a->num_forbidden && a->num_forbidden[i] > 0))
		return 0;
	return !counted || (a->repetition[i] == 1 && a->frequency[i] == 0 && a->presence[i] == 0);
}

/*
 * Sets *y to the exact logit j of row i and *error to the bound of an fp32 result. Returns 0 if no step
 * applies.
 */
static int element(const struct cairn_penalize_args *a, int32_t i, int32_t j, double *y, double *error)
{
	int32_t slot = a->counts ? a->slots[i] : -1, k = -1, n = 0;
	int counted = 0, changed = a->softcap > 0;

	*y = (double)a->logits[(int64_t)i * a->vocab + j];
	*error = 0;
	if (a->num_forbidden && find(a->forbidden_ids, a->forbidden_at[i], a->num_forbidden[i], j) >= 0) {
		*y = -(double)INFINITY;
		return 1;
	}
	if (changed) {
		*y = (double)a->softcap * tanh(*y / (double)a->softcap);
		*error = 11 * U * fabs(*y) + 0x1p-149 * (1 + (double)a->softcap);
	}
	if (a->num_bias)
		k = find(a->bias_ids, a->bias_at[i], a->num_bias[i], j);
	if (k >= 0) {
		*y += (double)a->bias[k];
		*error += U * fabs(*y);
		changed = 1;
	}
	if (slot >= 0 && slot < a->num_slots) {
		uint16_t c = a->counts[(int64_t)slot * a->vocab + j];

		counted = c != 0;
		n = c & CAIRN_TOKEN_COUNT;
	}
	if (counted) {
		double r = (double)a->repetition[i];

		*y = *y > 0 ? *y / r : *y * r;
		*error = *error * fmax(r, 1 / r) + U * fabs(*y) + 0x1p-149;
		changed = 1;
	}
	if (n > 0) {
		double f = (double)a->frequency[i] * n, p = (double)a->presence[i];

		*error += U * (2 * fabs(*y) + 3 * fabs(f) + fabs(p));
		*y = *y - f - p;
	}
	*error = isfinite(*y) ? *error * (1 + 0x1p-20) : 0;	/* covers the roundings of the bound itself */
	return changed;
}

int cairn_penalize_exact(const struct cairn_penalize_args *a, struct cairn_exact *exact)
{
	CAIRN_TRY(cairn_penalize_check(a));
	#pragma omp parallel for schedule(dynamic, 4096)
	for (int64_t e = 0; e < (int64_t)a->rows * a->vocab; e++) {
		double y, error;

		if (is_idle(a, (int32_t)(e / a->vocab)) ||
		    !element(a, (int32_t)(e / a->vocab), (int32_t)(e % a->vocab), &y, &error))
			continue;	/* the logit must keep its bits */
		exact->val[e] = y;
		exact->bound[e] = error;
	}
	return 0;
}

int cairn_penalize_ref(const struct cairn_penalize_args *a, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_penalize_check(a));
	for (int64_t e = 0; e < (int64_t)a->rows * a->vocab; e++) {
		double y, error;

		if (!is_idle(a, (int32_t)(e / a->vocab)) &&
		    element(a, (int32_t)(e / a->vocab), (int32_t)(e % a->vocab), &y, &error))
			a->logits[e] = (float)y;
	}
	return 0;
}
