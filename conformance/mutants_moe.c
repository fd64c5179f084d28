// SPDX-License-Identifier: Apache-2.0
/*
 * mutants_moe - a mixture of experts as it goes wrong in practice
 *
 * One plain request after the other, with a switch of defects: the choice, the weights of the chosen, the
 * products through an index, and what a batch that shares experts gets wrong.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../fused/block_ref.h"
#include "harness.h"

#define MAX_EXPERTS	256
#define MAX_TOP		16

#define DEFECTS(D) \
	D(norm_missing, "x goes into router and experts as it is") \
	D(norm_weight_missing, "the norm has no weights") \
	D(eps_missing, "eps is not added") \
	D(router_reads_x, "the router sees x, not n") \
	D(logits_in_dtype, "logits are rounded to dtype") \
	D(logits_truncated, "a router row is summed up but for its last 64 columns") \
	D(top_k_short, "one expert less than asked for") \
	D(top_k_off, "the choice begins with the second best") \
	D(ties_to_higher, "of equals the higher number is taken") \
	D(ascending, "experts come out in ascending order") \
	D(last_expert_ignored, "the last expert is never chosen") \
	D(first_64_experts, "experts past the 64th are not looked at") \
	D(by_logit_magnitude, "the largest magnitudes are chosen") \
	D(weights_all_equal, "each expert counts 1/k") \
	D(weights_reversed, "the weights are in the opposite order") \
	D(normalize_always, "weights are divided by their sum though not asked for") \
	D(normalize_never, "weights are never divided by their sum") \
	D(scaling_missing, "scaling is not applied") \
	D(scaling_before_norm, "scaling is applied before the division by the sum, where it cancels") \
	D(scaling_of_shared, "the shared experts are scaled as well") \
	D(softmax_over_chosen, "the softmax is over the chosen alone") \
	D(no_maximum, "exp of the logits themselves, in fp32") \
	D(maximum_from_zero, "the largest logit is looked for from 0 up") \
	D(weight_twice, "the weight is in h and again in the sum") \
	D(weight_missing, "experts are added without a weight") \
	D(weight_before_silu, "the weight is applied to the gate") \
	D(gate_and_up_swapped, "silu is applied to up") \
	D(gate_up_interleaved, "gates and ups are taken to alternate") \
	D(silu_missing, "gate times up") \
	D(experts_one_off, "the next expert's weights are read") \
	D(gate_up_stride, "experts are taken to lie intermediate rows apart") \
	D(down_of_first, "all experts have the down weights of the first chosen one") \
	D(down_transposed, "down is read as [intermediate, hidden]") \
	D(down_in_tiles_of_128, "elements past the last whole 128 of intermediate are left out") \
	D(shared_missing, "the shared experts are not added") \
	D(shared_weighted, "the shared experts have the first expert's weight") \
	D(shared_width, "the shared experts are taken to be as wide as the others") \
	D(residual_missing, "x is not added") \
	D(residual_is_n, "n is added instead of x") \
	D(residual_zeroed, "out is zeroed before x is read, which may be the same") \
	D(rounded_each, "the sum is rounded after each expert") \
	D(experts_of_request_0, "all requests have the experts of the first") \
	D(weights_of_request_0, "all requests have the first one's weights") \
	D(overwritten_by_peer, "of two requests with the same first expert only one gets it") \
	D(batch_of_4, "requests past the fourth are not computed") \
	D(h_in_place, "n is overwritten by the first expert's h while others still read it") \
	D(past_the_end, "an element past out is written") \
	D(experts_needed, "experts is written though it is NULL: the call fails") \
	D(experts_missing, "experts is not written") \
	D(experts_sorted, "experts comes out in order of numbers") \
	D(x_written, "the input is normalised in place") \
	D(nan, "the weight is 0/0 where one expert has all of it") \
	D(not_repeatable, "every other call differs in the last bit") \
	D(nothing, "success is reported, nothing is done")

#define NAME(name, what)	MOE_##name,
enum defect { DEFECTS(NAME) };

struct state {
	const struct cairn_moe_args *a;
	enum defect d;
	double *x, *n, *g, *y, *sum;
	int experts[8][MAX_TOP];
	double weights[8][MAX_TOP];
};

static double element(const struct state *s, const void *w, int64_t at)
{
	return cairn_load(w, s->a->dtype, at);
}

static void norm(struct state *s, int b)
{
	const struct cairn_moe_args *a = s->a;
	double squares = 0, scale;

	for (int i = 0; i < a->hidden; i++) {
		s->x[i] = element(s, a->x, (int64_t)b * a->hidden + i);
		squares += s->x[i] * s->x[i];
	}
	scale = 1 / sqrt(squares / a->hidden + (s->d == MOE_eps_missing ? 0 : (double)a->eps));
	for (int i = 0; i < a->hidden; i++) {
		double w = s->d == MOE_norm_weight_missing ? 1 : element(s, a->norm_weight, i);

		s->n[i] = s->d == MOE_norm_missing ? s->x[i] : block_rounded(s->x[i] * scale * w, a->dtype);
		if (s->d == MOE_x_written)
			cairn_store((void *)a->x, a->dtype, (int64_t)b * a->hidden + i, s->n[i]);
	}
}

static double key_of(const struct state *s, const double *p, const double *logits, int e)
{
	if ((s->d == MOE_last_expert_ignored && e == s->a->num_experts - 1 && e >= s->a->experts_per_token) ||
	    (s->d == MOE_first_64_experts && e >= 64))
		return -1;
	return s->d == MOE_by_logit_magnitude ? fabs(logits[e]) : p[e];
}

static void pick(struct state *s, int b, const double *p, const double *logits)
{
	const struct cairn_moe_args *a = s->a;
	int taken[MAX_EXPERTS] = { 0 }, k = a->experts_per_token,
	    skip = s->d == MOE_top_k_off && k < a->num_experts;

	for (int i = -skip; i < k; i++) {
		int best = -1;

		for (int e = 0; e < a->num_experts; e++) {
			double now = key_of(s, p, logits, e),
			       most = best < 0 ? -2 : key_of(s, p, logits, best);

			if (!taken[e] &&
			    (best < 0 || now > most || (now == most && s->d == MOE_ties_to_higher)))
				best = e;
		}
		taken[best] = 1;
		if (i >= 0)
			s->experts[b][s->d == MOE_ascending ? k - 1 - i : i] = best;
	}
}

static void route(struct state *s, int b)
{
	const struct cairn_moe_args *a = s->a;
	double logits[MAX_EXPERTS], p[MAX_EXPERTS], top, sum = 0, chosen = 0;
	int k = a->experts_per_token;

	top = s->d == MOE_maximum_from_zero ? 0 : -INFINITY;
	for (int e = 0; e < a->num_experts; e++) {
		logits[e] = 0;
		for (int i = 0; i < a->hidden - (s->d == MOE_logits_truncated ? 64 : 0); i++)
			logits[e] += (s->d == MOE_router_reads_x ? s->x : s->n)[i] *
				     element(s, a->w_router, (int64_t)e * a->hidden + i);
		if (s->d == MOE_logits_in_dtype)
			logits[e] = block_rounded(logits[e], a->dtype);
		top = fmax(top, logits[e]);
	}
	for (int e = 0; e < a->num_experts; e++) {
		p[e] = (double)(float)exp(logits[e] - (s->d == MOE_no_maximum ? 0 : top));
		sum += p[e];
	}
	for (int e = 0; e < a->num_experts; e++)
		p[e] /= sum;
	pick(s, b, p, logits);
	for (int i = 0; i < k; i++)
		chosen += p[s->experts[b][i]];
	for (int i = 0; i < k; i++) {
		int from = s->d == MOE_weights_reversed ? k - 1 - i : i;
		double w = p[s->experts[b][from]];

		if (s->d == MOE_softmax_over_chosen || s->d == MOE_normalize_always ||
		    (a->normalize && s->d != MOE_normalize_never))
			w /= chosen;
		if (s->d != MOE_scaling_missing && (s->d != MOE_scaling_before_norm || !a->normalize))
			w *= (double)a->scaling;
		if (s->d == MOE_weights_all_equal)
			w = (double)a->scaling / k;
		if (s->d == MOE_nan && w == (double)a->scaling)
			w = NAN;
		s->weights[b][i] = s->d == MOE_weight_missing ? 1 : w;
	}
}

static void feed_forward(struct state *s, int n, const void *gate_up, int64_t gate_up_at, const void *down,
			 int64_t down_at, double w)
{
	const struct cairn_moe_args *a = s->a;
	double inside = s->d == MOE_weight_before_silu ? 1 : w;

	for (int i = 0; i < 2 * n; i++) {
		s->g[i] = 0;
		for (int l = 0; l < a->hidden; l++)
			s->g[i] += s->n[l] * element(s, gate_up, gate_up_at + (int64_t)i * a->hidden + l);
	}
	for (int i = 0; i < n; i++) {
		double gate = s->g[i], up = s->g[n + i], v;

		if (s->d == MOE_gate_and_up_swapped) {
			gate = s->g[n + i];
			up = s->g[i];
		}
		if (s->d == MOE_gate_up_interleaved) {
			gate = s->g[2 * i];
			up = s->g[2 * i + 1];
		}
		gate *= s->d == MOE_weight_before_silu ? w : 1;
		v = (s->d == MOE_silu_missing ? gate : gate / (1 + exp(-gate))) * up * inside;
		s->y[i] = s->d == MOE_down_in_tiles_of_128 && i >= n / 128 * 128 ? 0 :
			  block_rounded(v, a->dtype);
		if (s->d == MOE_h_in_place && i < a->hidden)
			s->n[i] = s->y[i];
	}
	for (int i = 0; i < a->hidden; i++) {
		double add = 0;

		for (int l = 0; l < n; l++)
			add += s->y[l] * element(s, down, down_at + (s->d == MOE_down_transposed ?
					(int64_t)l * a->hidden + i : (int64_t)i * n + l));
		s->sum[i] += add * (s->d == MOE_weight_twice ? w : 1);
		if (s->d == MOE_rounded_each)
			s->sum[i] = block_rounded(s->sum[i], a->dtype);
	}
}

static void experts(struct state *s, int b)
{
	const struct cairn_moe_args *a = s->a;
	int from = s->d == MOE_experts_of_request_0 ? 0 : b;
	int64_t size = (int64_t)a->intermediate * a->hidden;

	for (int i = 0; i < a->experts_per_token - (s->d == MOE_top_k_short); i++) {
		int64_t e = s->experts[from][i], stride = s->d == MOE_gate_up_stride ? size : 2 * size;
		double w = s->weights[s->d == MOE_weights_of_request_0 ? 0 : from][i];

		if (s->d == MOE_experts_one_off)
			e = (e + 1) % a->num_experts;
		if (s->d == MOE_overwritten_by_peer && i == 0 && b && e == s->experts[b - 1][0])
			continue;
		feed_forward(s, a->intermediate, a->w_gate_up, e * stride, a->w_down,
			     (s->d == MOE_down_of_first ? s->experts[from][0] : e) * size, w);
	}
	if (a->shared_intermediate && s->d != MOE_shared_missing) {
		int narrow = s->d == MOE_shared_width && a->intermediate < a->shared_intermediate;
		double w = s->d == MOE_scaling_of_shared ? (double)a->scaling :
			   s->d == MOE_shared_weighted ? s->weights[b][0] : 1;

		feed_forward(s, narrow ? a->intermediate : a->shared_intermediate, a->w_shared_gate_up, 0,
			     a->w_shared_down, 0, w);
	}
}

static void write(struct state *s, int b)
{
	const struct cairn_moe_args *a = s->a;
	int k = a->experts_per_token;

	for (int i = 0; i < a->hidden; i++)
		cairn_store(a->out, a->dtype, (int64_t)b * a->hidden + i, s->sum[i]);
	for (int i = 0; i < k && s->d == MOE_experts_sorted; i++)
		for (int j = i + 1; j < k; j++)
			if (s->experts[b][j] < s->experts[b][i]) {
				int e = s->experts[b][i];

				s->experts[b][i] = s->experts[b][j];
				s->experts[b][j] = e;
			}
	for (int i = 0; i < k && a->experts && s->d != MOE_experts_missing; i++)
		a->experts[b * k + i] = s->experts[b][i];
}

static void request(struct state *s, int b)
{
	const struct cairn_moe_args *a = s->a;

	if (s->d == MOE_residual_zeroed)
		memset((char *)a->out + (int64_t)b * a->hidden * 2, 0, (size_t)a->hidden * 2);
	norm(s, b);
	route(s, b);
	for (int i = 0; i < a->hidden; i++)
		s->sum[i] = s->d == MOE_residual_missing ? 0 : s->d == MOE_residual_is_n ? s->n[i] : s->x[i];
	experts(s, b);
	write(s, b);
}

static int moe(const struct cairn_moe_args *a, enum defect d)
{
	struct state s = { .a = a, .d = d };
	static int calls;
	int64_t inter;

	CAIRN_TRY(cairn_moe_check(a));
	if (d == MOE_experts_needed && !a->experts)
		return cairn_error(EINVAL, "moe: experts: null pointer");
	if (d == MOE_nothing || !a->batch)
		return 0;
	inter = a->intermediate > a->shared_intermediate ? a->intermediate : a->shared_intermediate;
	s.x = calloc((size_t)(3 * a->hidden + 3 * inter), sizeof(double));
	if (!s.x)
		return cairn_error(ENOMEM, "mutants_moe: no memory");
	s.n = s.x + a->hidden;
	s.sum = s.n + a->hidden;
	s.g = s.sum + a->hidden;
	s.y = s.g + 2 * inter;
	for (int b = 0; b < a->batch && (b < 4 || d != MOE_batch_of_4); b++)
		request(&s, b);
	if (d == MOE_past_the_end)
		cairn_store(a->out, a->dtype, (int64_t)a->batch * a->hidden, 1);
	if (d == MOE_not_repeatable && calls++ % 2)
		*(uint16_t *)a->out ^= 1;
	free(s.x);
	return 0;
}

#define DEFINE(name, what) \
	static int moe_##name(const struct cairn_moe_args *a, void *stream) \
	{ \
		(void)stream; \
		return moe(a, MOE_##name); \
	}
DEFECTS(DEFINE)

#define LIST(name, what) \
	{ "moe_" #name, offsetof(struct cairn_impl, moe), (void *)moe_##name, what },

const struct cairn_mutant cairn_mutants_moe[] = { DEFECTS(LIST) };
const int cairn_num_mutants_moe = ARRAY_SIZE(cairn_mutants_moe);
