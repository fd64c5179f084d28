// SPDX-License-Identifier: Apache-2.0
/* argmax_ref - the reference; an index has no rounding error, so every bound is 0 */
#include "primitives/draw/argmax.h"

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

static int32_t first_largest(const struct cairn_argmax_args *a, int32_t row)
{
	double best = 0;
	int32_t at = -1;

	for (int32_t j = 0; j < a->vocab; j++) {
		double v = cairn_load(a->logits, a->dtype, (int64_t)row * a->vocab + j);

		if (!isnan(v) && (at < 0 || v > best)) {
			best = v;
			at = j;
		}
	}
	return at;
}

int cairn_argmax_exact(const struct cairn_argmax_args *a, struct cairn_exact *exact)
{
	CAIRN_TRY(cairn_argmax_check(a));
	#pragma omp parallel for
	for (int32_t i = 0; i < a->rows; i++) {
		if (!cairn_is_wanted(exact, i, 1))
			continue;
		exact->val[i] = first_largest(a, i);
		exact->bound[i] = 0;
	}
	return 0;
}

int cairn_argmax_ref(const struct cairn_argmax_args *a, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_argmax_check(a));
	for (int32_t i = 0; i < a->rows; i++)
		a->out[i] = first_largest(a, i);
	return 0;
}
