// SPDX-License-Identifier: Apache-2.0
/*
 * moe_bounds - bounds on the distance from the definition (moe_ref.c)
 *
 * The choice of experts is discontinuous, so it is judged only where it is decided, that is, where no allowed
 * error can change it. The order of two probabilities is decided in two cases. Either their logits differ by
 * more than both error bounds (block_ref.h: n may be an ulp off where its interval contains a tie, plus the
 * error of an fp32 sum in any order) and the fp32 error of exp, 2^-19 (1 + distance of the logit to the
 * largest). Or they tie in sums that are exact in fp32: all terms are multiples of 2^g, and their magnitudes
 * add up to at most 2^(24+g). More than 80 below the largest logit, probabilities become subnormal and may
 * all be 0, so nothing is decided there.
 *
 * The error of a sigmoid p = s(l), with the error bound d of the logit l, is at most the sum of
 * s(l + d) - s(l - d), p (1 - p) 2^-19 (1 + |l|) for the exp, 2^-22 p for the sum and the quotient, and
 * 2^-126 where p becomes subnormal. c = p + bias adds 2^-22 |c|. Two c tie if their logits tie and their
 * biases are equal.
 *
 * The choice of groups is decided where each chosen group is decided against each group that is not chosen:
 * by its largest probability, or by the sum of its two largest c. The error of this sum is at most twice the
 * largest error of one c, plus 2^-22 of the sum. Groups tie where their largest probabilities tie, or where
 * their experts tie one by one.
 *
 *      out      judged where each chosen expert is decided against each one that is not chosen
 *      experts  entry i judged where e[i] is decided against all others
 *
 * Given the experts, out is a chain of roundings and is judged as in cluster_mla_ref.c: RUNS more chains
 * with the same experts round each n, h and s up or down at random in proportion to the distances; half of
 * them apply the weight of an expert after its product with w_down, which the contract allows as well. sigma
 * is their root mean square distance from run 0, over the row, or over the element if that is larger. If few
 * h are nonzero, the random chains may all round alike; sigma then says nothing about a weight applied late,
 * or an h that is not rounded at all. Therefore two more chains do exactly this and round everything else to
 * nearest; d is the larger of their distances from run 0. fp32 partial sums in any order stay within S =
 * |x| (0 if it is not added) + sum_i |y_i| + 6 rss, where y_i is the term of each expert and rss the root of
 * the sum of all terms' squares. With K terms, E = 2^-23 (tensor cores truncate), u half an ulp, and w
 * the bound of the weights' relative errors, which follows from that of the logits:
 *
 *      |out - exact| <= d + 6 sigma + u |out| + tiny + (K + 4) E S + w sum_i |y_i|
 *
 * An element is undefined if h overflows dtype in a chain, before or after the weight.
 *
 * Where sigmoids are divided by their sum, 1e-20 may be added to the sum or not: w contains 1e-20 / sum.
 *
 * In a large batch, the judge takes one of every 2^n rows, at irregular distances, and the last row. It only
 * checks that the others are finite. n is the smallest with which the chains of the judged rows have at most
 * 2^31 products, but at least 4 for more than ALL_ROWS rows, and never above 8. Rows do not depend on each
 * other, and smaller cases are judged in full.
 *
 * A scale rounds each term once more, or the sum of each block of terms and its product, as in
 * gemm_fp8w_ref.c; K + 8 in place of K + 4 leaves room. Gates and ups are rounded in fp32 as without
 * scales, far below the precision of dtype, to which h and s are rounded. Groups of 4-bit weights are such
 * blocks. Above CAIRN_MOE_FEW rows their scales, and codes times scales, may be rounded to dtype: the
 * random chains round them up or down likewise, in all rows alike. Scales of NVFP4 and, in bf16, of MXFP4
 * need no rounding.
 *
 * logit_bias rounds a logit once more, so no two logits tie then. down_bias is one more term for each expert.
 */
#include "fused/moe/moe_ref.h"

#include <stdlib.h>

#include "primitives/base/error.h"
#include "primitives/base/rows.h"

#define RUNS	6	/* a multiple of 3, as the runs before them are: 3 runs are multiplied at a time */
#define E	0x1p-23
#define MAX_TOP	16
#define ALL_ROWS	1000

/* Which entries of e are certain, and whether the set of experts in e is. */
struct choice {
	int entry[MAX_TOP], set;
};

/* Returns whether the sum of these terms is the same in fp32 in any order. */
static int sums_exactly(const double *x, const double *error, const void *w, int64_t at, int k, int dtype)
{
	double size = 0;
	int grid = 1000;

	for (int i = 0; i < k; i++)
		if (error[i] > 0)
			return 0;
	for (int i = 0; i < k; i++) {
		double term = x[i] * cairn_load(w, dtype, at + i);

		size += fabs(term);
		if (term != 0 && cairn_low_bit(term) < grid)
			grid = cairn_low_bit(term);
	}
	return size == 0 || (grid >= -149 && size <= ldexp(1, 24 + grid));
}

/* The certain order of two experts, or of two groups */
enum order { ABOVE, TIED, UNKNOWN };

static double largest_logit(const struct moe_chain *c)
{
	double top = -INFINITY;

	for (int i = 0; i < c->a->num_experts; i++)
		top = fmax(top, c->logits[i]);
	return top;
}

static double sigmoid(double x)
{
	return 1 / (1 + exp(-x));
}

/* Returns the error bound of c, with sigmoids. */
static double error_of_score(const struct moe_chain *c, int e)
{
	double l = c->logits[e], d = c->error[e], p = sigmoid(l);

	return sigmoid(l + d) - sigmoid(l - d) + p * (1 - p) * 0x1p-19 * (1 + fabs(l)) + p * 0x1p-22 +
	       0x1p-126 + (c->how.bias ? fabs(moe_chain_score(c, e)) * 0x1p-22 : 0);
}

/* Compares two experts by c. top: the largest logit. */
static enum order compare(const struct moe_chain *c, int first, int second, double top)
{
	double gap = c->logits[first] - c->logits[second], bound = c->error[first] + c->error[second];

	if (bound == 0 && gap == 0 && (!c->how.bias || c->how.bias[first] == c->how.bias[second]))
		return TIED;
	if (c->how.score == CAIRN_MOE_SIGMOID)
		return moe_chain_score(c, first) - moe_chain_score(c, second) >
		       error_of_score(c, first) + error_of_score(c, second) ? ABOVE : UNKNOWN;
	return top - c->logits[first] < 80 && gap > bound + 0x1p-19 * (1 + top - c->logits[second]) ?
	       ABOVE : UNKNOWN;
}

/* Returns the best expert of a group. */
static int best_of(const struct moe_chain *c, int group)
{
	const int size = c->a->num_experts / c->how.groups;
	int best = group * size;

	for (int e = best; e < (group + 1) * size; e++)
		best = c->logits[e] > c->logits[best] ? e : best;
	return best;
}

/* Compares two groups by their largest probabilities. */
static enum order compare_largest(const struct moe_chain *c, int first, int second, double top)
{
	const int size = c->a->num_experts / c->how.groups, x = best_of(c, first), y = best_of(c, second);
	int above = 1, tied = compare(c, x, y, top) == TIED;

	for (int i = 0; i < size; i++) {
		above &= compare(c, x, second * size + i, top) == ABOVE;
		tied &= compare(c, x, first * size + i, top) != UNKNOWN &&
			compare(c, y, second * size + i, top) != UNKNOWN;
	}
	return above ? ABOVE : tied ? TIED : UNKNOWN;
}

static enum order compare_groups(const struct moe_chain *c, int first, int second, double top)
{
	const int size = c->a->num_experts / c->how.groups;
	double error[2] = { 0 }, score[2];
	const int groups[] = { first, second };
	int tied = 1;

	if (c->how.score != CAIRN_MOE_SIGMOID)
		return compare_largest(c, first, second, top);
	for (int i = 0; i < size; i++) {
		tied &= compare(c, first * size + i, second * size + i, top) == TIED;
		for (int g = 0; g < 2; g++)
			error[g] = fmax(error[g], error_of_score(c, groups[g] * size + i));
	}
	for (int g = 0; g < 2; g++) {
		score[g] = moe_chain_group(c, groups[g]);
		error[g] = 2 * error[g] + 0x1p-22 * fabs(score[g]);
	}
	return score[0] - score[1] > error[0] + error[1] ? ABOVE : tied ? TIED : UNKNOWN;
}

/* Ties are in the right order, because c->groups and c->experts come from a stable sort. */
static int groups_are_sure(const struct moe_chain *c, double top)
{
	for (int i = 0; i < c->how.groups_per_token; i++)
		for (int j = c->how.groups_per_token; j < c->how.groups; j++)
			if (compare_groups(c, c->groups[i], c->groups[j], top) == UNKNOWN)
				return 0;
	return 1;
}

static struct choice decide(struct moe_chain *c)
{
	const struct cairn_moe_args *a = c->a;
	int num = a->num_experts, k = a->experts_per_token, *e = c->experts;
	int eligible = num / c->how.groups * c->how.groups_per_token;
	struct choice sure = { .set = 1 };
	double top = largest_logit(c);

	for (int i = 0; i < num; i++)
		if (!c->how.logit_bias &&
		    sums_exactly(c->n, c->n_error, a->w_router, (int64_t)i * a->hidden, a->hidden, a->dtype))
			c->error[i] = 0;
	if (!groups_are_sure(c, top))
		return (struct choice){ .set = 0 };
	for (int i = 0; i < k; i++) {
		sure.entry[i] = 1;
		for (int j = 0; j < eligible; j++) {
			int known = j == i || compare(c, e[j > i ? i : j], e[j > i ? j : i], top) != UNKNOWN;

			sure.entry[i] &= known;
			sure.set &= known || j < k;
		}
	}
	return sure;
}

/* Returns how far the chains that round to nearest are from run 0 in element i. */
static double apart(const struct moe_chain *c, int i)
{
	double d = 0;

	for (int r = 1; r < MOE_RUN_AT_RANDOM; r++) {
		double x = fabs(c->out[(int64_t)r * c->a->hidden + i] - c->out[i]);

		if (!isfinite(x))
			return NAN;
		d = fmax(d, x);
	}
	return d;
}

/*
 * Returns the bound of the weights' relative errors. *none: there is no bound; *undefined: the contract does
 * not define them either.
 */
static double error_of_weights(const struct moe_chain *c, int *none, int *undefined)
{
	const struct cairn_moe_args *a = c->a;
	double most = 0, far = 0, sum = 0, top = largest_logit(c);

	*none = *undefined = 0;
	for (int i = 0; i < a->num_experts; i++)
		most = fmax(most, c->error[i]);
	if (c->how.score != CAIRN_MOE_SIGMOID)
		return 2 * most + 0x1p-19 * (1 + top - c->logits[c->experts[a->experts_per_token - 1]]);
	for (int i = 0; i < a->experts_per_token; i++) {
		double l = c->logits[c->experts[i]];

		far = fmax(far, fabs(l));
		sum += sigmoid(l);
		*none |= !a->normalize && l < -80;
	}
	*undefined = a->normalize && sum < 0x1p-60;
	return 2 * most + 0x1p-19 * (1 + far) + 0x1p-20 + (a->normalize ? 1e-20 / sum : 0);
}

static void judge_request(struct moe_chain *c, int b, struct cairn_exact *exact)
{
	const struct cairn_moe_args *a = c->a;
	double u = cairn_dtype_roundoff(a->dtype), tiny = cairn_dtype_tiny(a->dtype), mean = 0, weights;
	double terms = (double)a->experts_per_token * a->intermediate + a->shared_intermediate +
		       (a->fp8w || cairn_moe_w4_of(a) ? 8 : 4) +
		       (c->between.down_bias ? a->experts_per_token : 0);
	double *val = exact[0].val + (int64_t)b * a->hidden, *bound = exact[0].bound + (int64_t)b * a->hidden;
	struct choice sure = decide(c);
	int k = a->experts_per_token, none, undefined;

	weights = error_of_weights(c, &none, &undefined);
	for (int i = 0; i < a->hidden; i++) {
		val[i] = c->out[i];
		bound[i] = 0;
		for (int r = MOE_RUN_AT_RANDOM; r < c->runs; r++)
			bound[i] += pow(c->out[(int64_t)r * a->hidden + i] - val[i], 2) / RUNS;
		mean += isfinite(bound[i]) ? bound[i] / a->hidden : 0;
	}
	for (int i = 0; i < a->hidden; i++) {
		double added = cairn_moe_adds_x(a) ? fabs(c->x[i]) : 0;
		double partial = added + c->parts[i] + 6 * sqrt(c->squares[i]);

		bound[i] = 6 * sqrt(fmax(bound[i], mean)) + apart(c, i) + u * fabs(val[i]) + tiny +
			   terms * E * partial + weights * c->parts[i];
		if (undefined || isnan(bound[i]))
			val[i] = NAN;
		if (!sure.set || none || isnan(val[i]))
			bound[i] = INFINITY;
	}
	for (int i = 0; a->experts && i < k; i++) {
		exact[1].val[b * k + i] = c->experts[i];
		exact[1].bound[b * k + i] = sure.entry[i] ? 0 : INFINITY;
	}
}

/* Gives this request no bound; val 0 requires finite results. */
static void unjudged(const struct cairn_moe_args *a, int b, double val, struct cairn_exact *exact)
{
	for (int64_t i = 0; i < a->hidden; i++) {
		exact[0].val[(int64_t)b * a->hidden + i] = val;
		exact[0].bound[(int64_t)b * a->hidden + i] = INFINITY;
	}
	for (int i = 0; a->experts && i < a->experts_per_token; i++) {
		exact[1].val[b * a->experts_per_token + i] = val;
		exact[1].bound[b * a->experts_per_token + i] = INFINITY;
	}
}

static int is_finite(const struct moe_chain *c)
{
	int finite = 1;

	for (int i = 0; i < c->a->hidden; i++)
		finite &= isfinite(c->x[i]) != 0;
	return finite;
}

int cairn_moe_is_judged(const struct cairn_moe_args *a, int32_t b)
{
	int64_t wide = (int64_t)a->experts_per_token * a->intermediate + a->shared_intermediate;
	double products = 3.0 * a->batch * (double)a->hidden * (double)wide;
	int skip = a->batch > ALL_ROWS ? 4 : 0;

	while (skip < 8 && ldexp(products, -skip) > 0x1p31)
		skip++;
	return !skip || (uint32_t)b * 0x9e3779b9u >> (32 - skip) == 0 || b == a->batch - 1;
}

int cairn_moe_exact(const struct cairn_moe_args *a, struct cairn_exact *exact)
{
	CAIRN_TRY(cairn_moe_check(a));
	for (int b = 0; b < a->batch; b++) {
		struct moe_chain c;

		CAIRN_TRY(moe_chain_open(&c, a, MOE_RUN_AT_RANDOM + RUNS));
		moe_chain_load(&c, b);
		if (!is_finite(&c)) {	/* the result is undefined but must not affect other requests */
			unjudged(a, b, NAN, exact);
		} else if (!cairn_moe_is_judged(a, b)) {
			unjudged(a, b, 0, exact);
		} else {
			moe_chain_run(&c);
			judge_request(&c, b, exact);
		}
		free(c.memory);
	}
	return 0;
}

int cairn_block_moe_choice(const struct cairn_moe_args *a, int b, int32_t *experts)
{
	struct moe_chain c;
	struct choice sure;

	if (moe_chain_open(&c, a, 1))
		return 0;
	moe_chain_load(&c, b);
	moe_chain_route(&c);
	sure = decide(&c);
	for (int i = 0; i < a->experts_per_token; i++) {
		sure.set &= sure.entry[i];
		experts[i] = c.experts[i];
	}
	free(c.memory);
	return sure.set;
}
