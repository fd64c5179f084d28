// SPDX-License-Identifier: Apache-2.0
/* argmax_mutants - wrong versions of argmax, one defect each */
#include "conformance/harness.h"
#include "primitives/draw/argmax.h"
#include "primitives/base/bend.h"

enum argmax_bend {
	argmax_bend_last_of_ties, argmax_bend_nan_wins, argmax_bend_first_32k,
	argmax_bend_tail_skipped, argmax_bend_zeros_differ, argmax_bend_all_nan_is_0,
	argmax_bend_minus_infinity_is_none, argmax_bend_compared_in_bf16,
};

static int bent_argmax(const struct cairn_argmax_args *a, enum argmax_bend bend)
{
	CAIRN_TRY(cairn_argmax_check(a));
	for (int64_t i = 0; i < a->rows; i++) {
		int32_t n = a->vocab, at = bend == argmax_bend_all_nan_is_0 ? 0 : -1;
		double best = bend == argmax_bend_all_nan_is_0 ? -INFINITY : 0;

		if (bend == argmax_bend_first_32k && n > 32768)
			n = 32768;
		if (bend == argmax_bend_tail_skipped && n > 8)
			n -= n % 8;
		for (int32_t j = 0; j < n; j++) {
			double v = cairn_load(a->logits, a->dtype, i * a->vocab + j);

			if (bend == argmax_bend_compared_in_bf16)
				v = rounded(CAIRN_BF16, v);
			if (bend == argmax_bend_nan_wins && isnan(v)) {
				at = j;
				break;
			}
			if (isnan(v) || (v == -INFINITY && bend == argmax_bend_minus_infinity_is_none))
				continue;
			if (at < 0 || v > best || (v == best && bend == argmax_bend_last_of_ties) ||
			    (v == best && bend == argmax_bend_zeros_differ && signbit(best) && !signbit(v))) {
				best = v;
				at = j;
			}
		}
		a->out[i] = at;
	}
	return 0;
}

BENT(argmax, last_of_ties)
BENT(argmax, nan_wins)
BENT(argmax, first_32k)
BENT(argmax, tail_skipped)
BENT(argmax, zeros_differ)
BENT(argmax, all_nan_is_0)
BENT(argmax, minus_infinity_is_none)
BENT(argmax, compared_in_bf16)

const struct cairn_mutant cairn_argmax_mutants[] = {
	MUTANT(argmax, last_of_ties, "picks the last of equal logits"),
	MUTANT(argmax, nan_wins, "treats NaN as the largest"),
	MUTANT(argmax, first_32k, "reads only the first 32768 logits"),
	MUTANT(argmax, tail_skipped, "skips the elements after the last whole vector"),
	MUTANT(argmax, zeros_differ, "orders -0 below +0"),
	MUTANT(argmax, all_nan_is_0, "gives 0 for a row of NaN"),
	MUTANT(argmax, minus_infinity_is_none, "gives -1 for a row of -INFINITY"),
	MUTANT(argmax, compared_in_bf16, "compares in bf16"),
	{ 0 }
};
