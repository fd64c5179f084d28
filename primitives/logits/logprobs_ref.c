// SPDX-License-Identifier: Apache-2.0
/*
 * logprobs_ref - the reference
 *
 * Bound, with u = 2^-24, M the largest logit, d = M - logit and S = sum exp(-d) >= 1. The exponent of a
 * weight exp(-d) has an error of 2 u d, and exp one of 8 u: 2 u d + 8 u, relative. Weighted by the terms of
 * S, the mean of d is at most ln(vocab) <= 14, so the relative error of S is 36 u from its terms and 256 u
 * from its additions. The absolute error of log S is the same, 292 u < 2^-15.8, plus its own rounding,
 * u log S <= 14 u. (logit - M) - log S rounds twice: u d and u |result|. The total is within
 * 2^-15 + 2 u d + 4 u |result|.
 */
#include "primitives/logits/logprobs.h"

#include <float.h>
#include <stdlib.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/falling.h"

struct token {
	double logit;
	int32_t id;
};

static double logit_of(const struct cairn_logprobs_args *a, int32_t row, int32_t j)
{
	float x = a->logits[(int64_t)row * a->vocab + j];

	return isnan(x) ? -(double)INFINITY : x > FLT_MAX ? (double)FLT_MAX : (double)x;
}

/*
 * Returns all tokens of a row, which the caller frees, in falling order, or NULL if memory has run out. Sets
 * *log_sum to the log of the sum of exp(logit - largest).
 */
static struct token *sorted(const struct cairn_logprobs_args *a, int32_t row, double *log_sum)
{
	struct token *t = malloc((size_t)a->vocab * sizeof(*t));
	int32_t *order = malloc((size_t)a->vocab * sizeof(*order));
	double sum = 0;

	if (!t || !order || cairn_order_falling(order, a->logits + (int64_t)row * a->vocab, a->vocab)) {
		free(t);
		free(order);
		return NULL;
	}
	for (int32_t j = 0; j < a->vocab; j++)
		t[j] = (struct token){ logit_of(a, row, order[j]), order[j] };
	free(order);
	/* from the smallest term up */
	for (int32_t j = a->vocab - 1; j >= 0 && !isinf(t[0].logit); j--)
		sum += exp(t[j].logit - t[0].logit);
	*log_sum = isinf(t[0].logit) ? -(double)INFINITY : log(sum);
	return t;
}

static double logprob(double logit, double max, double log_sum)
{
	return isinf(max) ? max : logit - max - log_sum;
}

static void expect(struct cairn_exact *e, int64_t at, double logit, double max, double log_sum)
{
	e->val[at] = logprob(logit, max, log_sum);
	e->bound[at] = isinf(e->val[at]) ? 0 : 0x1p-15 + 0x1p-22 * fabs(e->val[at]) + 0x1p-23 * (max - logit);
}

static double chosen_logit(const struct cairn_logprobs_args *a, int32_t row)
{
	int32_t token = a->tokens[row];

	return token >= 0 && token < a->vocab ? logit_of(a, row, token) : -(double)INFINITY;
}

int cairn_logprobs_exact(const struct cairn_logprobs_args *a, struct cairn_exact *exact)
{
	CAIRN_TRY(cairn_logprobs_check(a));
	#pragma omp parallel for schedule(dynamic)
	for (int32_t i = 0; i < a->rows; i++) {
		struct token *t;
		double log_sum;

		if (a->wanted && !a->wanted[i])
			continue;
		t = sorted(a, i, &log_sum);
		if (!t)
			abort();
		for (int32_t j = 0; j <= a->k; j++) {
			int64_t at = (int64_t)i * a->k + j - 1;

			if (!j) {
				expect(&exact[0], i, chosen_logit(a, i), t[0].logit, log_sum);
				continue;
			}
			exact[1].val[at] = j <= a->vocab ? t[j - 1].id : -1;
			exact[1].bound[at] = 0;
			expect(&exact[2], at, j <= a->vocab ? t[j - 1].logit : -(double)INFINITY, t[0].logit,
			       log_sum);
		}
		free(t);
	}
	return 0;
}

int cairn_logprobs_ref(const struct cairn_logprobs_args *a, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_logprobs_check(a));
	for (int32_t i = 0; i < a->rows; i++) {
		struct token *t;
		double log_sum;

		if (a->wanted && !a->wanted[i])
			continue;
		t = sorted(a, i, &log_sum);
		if (!t)
			return cairn_error(ENOMEM, "logprobs: no memory for a row of %d", a->vocab);
		a->chosen[i] = (float)logprob(chosen_logit(a, i), t[0].logit, log_sum);
		for (int32_t j = 0; j < a->k; j++) {
			int64_t at = (int64_t)i * a->k + j;

			a->top_ids[at] = j < a->vocab ? t[j].id : -1;
			a->top[at] = j < a->vocab ? (float)logprob(t[j].logit, t[0].logit, log_sum) :
				-INFINITY;
		}
		free(t);
	}
	return 0;
}
