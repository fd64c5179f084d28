// SPDX-License-Identifier: Apache-2.0
/* moe_mutants_route - the choice of experts and their weights, with the defects of moe_mutants.h */
#include "fused/moe/moe_mutants.h"

#include <math.h>
#include <string.h>

#include "primitives/base/dtype.h"
#include "fused/block/block_ref.h"
#include "primitives/base/cut_off.h"

#define MAX_EXPERTS	256

static double key_of(const struct moe_mutant *s, const double *c, const double *logits, int e)
{
	if ((s->d == MOE_last_expert_ignored && e == s->a->num_experts - 1 && e >= s->a->experts_per_token) ||
	    (s->d == MOE_first_64_experts && e >= 64))
		return -INFINITY;
	return s->d == MOE_by_logit_magnitude ? fabs(logits[e]) : c[e];
}

static void pick(struct moe_mutant *s, int b, const double *c, const double *logits, const uint8_t *left)
{
	const struct cairn_moe_args *a = s->a;
	int taken[MAX_EXPERTS] = { 0 }, k = a->experts_per_token,
	    skip = s->d == MOE_top_k_off && k < a->num_experts && !left[0];

	for (int i = -skip; i < k; i++) {
		int best = -1;

		for (int e = 0; e < a->num_experts; e++) {
			double now = key_of(s, c, logits, e),
			       most = best < 0 ? 0 : key_of(s, c, logits, best);

			if (!taken[e] && !left[e] &&
			    (best < 0 || now > most || (now == most && s->d == MOE_ties_to_higher)))
				best = e;
		}
		if (best < 0)
			return;
		taken[best] = 1;
		if (i >= 0)
			s->experts[b][s->d == MOE_ascending ? k - 1 - i : i] = best;
	}
}

static int group_of(const struct moe_mutant *s, int e)
{
	int groups = s->how.groups, size = s->a->num_experts / groups;

	if (s->d == MOE_route_groups_interleaved)
		return e % groups;
	if (s->d == MOE_route_past_64 && s->a->num_experts > 64)
		return e / (64 / groups) % groups;
	return e / size;
}

/* Returns the score of a group; c: experts are compared by it. */
static double score_of(const struct moe_mutant *s, const double *c, const double *p, int group)
{
	double first = -INFINITY, second = -INFINITY, sum = 0;
	int two = s->how.score == CAIRN_MOE_SIGMOID;

	for (int e = 0; e < s->a->num_experts; e++) {
		double now = s->d == MOE_route_group_unbiased ? p[e] : c[e];

		if (group_of(s, e) != group)
			continue;
		sum += now;
		second = fmax(second, fmin(first, now));
		first = fmax(first, now);
	}
	if (s->d == MOE_route_group_sum)
		return sum;
	if (s->d == MOE_route_group_twice_best)
		return 2 * first;
	two &= s->d != MOE_route_group_max;
	two |= s->d == MOE_route_group_two_of_softmax && isfinite(second);
	return two ? (double)(float)(first + second) : first;
}

/* Marks the experts outside the best groups. */
static void leave_groups(const struct moe_mutant *s, double *c, const double *p, uint8_t *left)
{
	const int groups = s->how.groups, size = s->a->num_experts / groups;
	int chosen[CAIRN_MOE_MAX_GROUPS] = { 0 }, num = s->how.groups_per_token;

	num -= s->d == MOE_route_group_short && (num - 1) * size >= s->a->experts_per_token;
	for (int i = 0; i < num; i++) {
		int best = -1;

		for (int g = 0; g < groups; g++) {
			double now = score_of(s, c, p, g), most = best < 0 ? 0 : score_of(s, c, p, best);

			if (!chosen[g] && (best < 0 || now > most ||
					   (now == most && s->d == MOE_route_group_ties_to_higher)))
				best = g;
		}
		chosen[best] = 1;
	}
	for (int e = 0; e < s->a->num_experts; e++) {
		left[e] = !chosen[group_of(s, e)];
		if (!left[e] || (s->d != MOE_route_masked_zero && s->d != MOE_route_masked_low))
			continue;
		left[e] = 0;
		c[e] = s->d == MOE_route_masked_low ? -1e9 : 0;
	}
}

static void softmax(const struct moe_mutant *s, const double *logits, const uint8_t *left, double *p)
{
	double top = s->d == MOE_maximum_from_zero ? 0 : -INFINITY, sum = 0;

	for (int e = 0; e < s->a->num_experts; e++)
		top = fmax(top, logits[e]);
	for (int e = 0; e < s->a->num_experts; e++) {
		p[e] = (double)(float)exp(logits[e] - (s->d == MOE_no_maximum ? 0 : top));
		sum += left[e] ? 0 : p[e];
	}
	for (int e = 0; e < s->a->num_experts; e++)
		p[e] /= sum;
}

/* p and c of moe.h */
static void scores(const struct moe_mutant *s, const double *logits, double *p, double *c)
{
	static const uint8_t none[MAX_EXPERTS];
	const int sigmoids = s->how.score == CAIRN_MOE_SIGMOID && s->d != MOE_route_softmax_for_sigmoid;

	if (!sigmoids)
		softmax(s, logits, none, p);
	for (int e = 0; e < s->a->num_experts; e++) {
		int ignored = s->d == MOE_route_bias_ignored ||
			      (s->d == MOE_route_bias_lost_of_many && s->a->batch > CAIRN_MOE_FEW);
		double bias = s->how.bias && !ignored ? (double)s->how.bias[e] : 0;

		if (sigmoids)
			p[e] = (double)(float)(1 / (1 + exp(-logits[e])));
		if (s->d == MOE_route_sigmoid_in_dtype && sigmoids)
			p[e] = block_rounded(p[e], s->a->dtype);
		c[e] = sigmoids || s->how.bias ? (double)(float)(p[e] + bias) : p[e];
		if (s->d == MOE_route_bias_on_logits && sigmoids)
			c[e] = 1 / (1 + exp(-logits[e] - bias));
	}
}

/* Returns the weight of the chosen expert `from` before scaling. */
static double weight_of(const struct moe_mutant *s, int b, int from, const double *p, const double *c)
{
	const struct cairn_moe_args *a = s->a;
	const int sigmoids = s->how.score == CAIRN_MOE_SIGMOID;
	const double *w = s->d == MOE_route_weights_biased ? c : p;
	double chosen = !sigmoids ? 0 : s->d == MOE_route_sum_plus_1e_6 ? 1e-6 :
			s->d == MOE_route_sum_plus_1e_12 ? 1e-12 : 1e-20;
	int n = s->d == MOE_route_normalize_by_all && sigmoids ? a->num_experts : a->experts_per_token;

	for (int i = 0; i < n; i++)
		chosen += w[n == a->num_experts ? i : s->experts[b][i]];
	if (s->d == MOE_softmax_over_chosen || s->d == MOE_normalize_always ||
	    (a->normalize && s->d != MOE_normalize_never &&
	     !(s->d == MOE_normalize_lost_with_fp8 && a->fp8w) &&
	     (s->d != MOE_route_normalize_never || !sigmoids)))
		return w[s->experts[b][from]] / chosen;
	return w[s->experts[b][from]];
}

void moe_mutant_route(struct moe_mutant *s, int b)
{
	const struct cairn_moe_args *a = s->a;
	double logits[MAX_EXPERTS] = { 0 }, plain[MAX_EXPERTS], p[MAX_EXPERTS], c[MAX_EXPERTS];
	uint8_t left[MAX_EXPERTS] = { 0 };
	int k = a->experts_per_token;

	for (int e = 0; e < a->num_experts; e++) {
		logits[e] = 0;
		for (int i = 0; i < a->hidden - (s->d == MOE_logits_truncated ? 64 : 0); i++)
			logits[e] += (s->d == MOE_router_reads_x ? s->x : s->n)[i] *
				     cairn_load(a->w_router, a->dtype, (int64_t)e * a->hidden + i);
		if (s->d == MOE_logits_in_tf32)
			logits[e] = tf32(logits[e]);
		if (s->d == MOE_logits_in_dtype)
			logits[e] = block_rounded(logits[e], a->dtype);
		plain[e] = logits[e];
		if (s->how.logit_bias && s->d != MOE_logit_bias_ignored &&
		    !(s->d == MOE_logit_bias_lost_of_many && a->batch > CAIRN_MOE_FEW))
			logits[e] += (double)s->how.logit_bias[e];
	}
	scores(s, logits, p, c);
	if (s->how.groups > 1 && s->d != MOE_route_groups_ignored &&
	    !(s->d == MOE_route_groups_lost_with_fp8 && a->fp8w))
		leave_groups(s, c, p, left);
	pick(s, b, c, logits, left);
	if (s->d == MOE_route_softmax_of_groups && s->how.score == CAIRN_MOE_SOFTMAX)
		softmax(s, logits, left, p);
	if (s->d == MOE_logit_bias_in_choice_only && s->how.logit_bias)
		scores(s, plain, p, c);
	for (int i = 0; i < k; i++) {
		double w = weight_of(s, b, s->d == MOE_weights_reversed ? k - 1 - i : i, p, c);

		if (s->d != MOE_scaling_missing &&
		    !(s->d == MOE_scaling_lost_of_many && a->batch > CAIRN_MOE_FEW) &&
		    (s->d != MOE_scaling_before_norm || !a->normalize))
			w *= s->d == MOE_scaling_in_bf16 ? block_rounded((double)a->scaling, CAIRN_BF16) :
			     (double)a->scaling;
		if (s->d == MOE_weights_all_equal)
			w = (double)a->scaling / k;
		if (s->d == MOE_nan && w == (double)a->scaling)
			w = NAN;
		s->weights[b][i] = s->d == MOE_weight_missing ? 1 : w;
	}
}
