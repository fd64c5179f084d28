// SPDX-License-Identifier: Apache-2.0
/*
 * moe_mutants - defects of a mixture of experts that occur in practice
 *
 * A plain implementation, one request at a time, with a switch for each defect: the choice of experts, their
 * weights, the products through an index, and errors of a batch that shares experts.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "primitives/base/fp8.h"
#include "primitives/base/cut_off.h"
#include "primitives/base/rows.h"
#include "fused/block/block_ref.h"
#include "fused/moe/moe_ref.h"
#include "fused/moe/moe.h"

#define MAX_EXPERTS	256
#define MAX_TOP		16
#define MAX_BATCH	512

#define DEFECTS(D) \
	D(norm_missing, "router and experts read x without the norm") \
	D(norm_weight_missing, "norm_weight is not applied") \
	D(eps_missing, "eps is not added") \
	D(router_reads_x, "the router reads x, not n") \
	D(logits_in_dtype, "logits are rounded to dtype") \
	D(logits_truncated, "the last 64 columns of a router row are left out of its sum") \
	D(top_k_short, "one expert too few is chosen") \
	D(top_k_off, "the choice begins with the second best") \
	D(ties_to_higher, "among equal logits the higher number is chosen") \
	D(ascending, "experts are used in ascending order") \
	D(last_expert_ignored, "the last expert is never chosen") \
	D(first_64_experts, "experts past the 64th are ignored") \
	D(by_logit_magnitude, "the logits with the largest magnitudes are chosen") \
	D(weights_all_equal, "each expert counts 1/k") \
	D(weights_reversed, "the weights are in the opposite order") \
	D(normalize_always, "weights are divided by their sum without normalize") \
	D(normalize_never, "weights are never divided by their sum") \
	D(scaling_missing, "scaling is not applied") \
	D(scaling_before_norm, "scaling is applied before the division by the sum, where it cancels") \
	D(scaling_of_shared, "the shared experts are scaled as well") \
	D(softmax_over_chosen, "the softmax is over the chosen experts only") \
	D(no_maximum, "exp is applied in fp32 without subtracting the maximum") \
	D(maximum_from_zero, "the search for the largest logit starts at 0") \
	D(weight_twice, "the weight is applied in h and again in the sum") \
	D(weight_missing, "experts are added without a weight") \
	D(weight_before_silu, "the weight is applied to the gate") \
	D(gate_and_up_swapped, "silu is applied to the up instead of the gate") \
	D(gate_up_interleaved, "gates and ups are read as alternating rows") \
	D(silu_missing, "gate times up without silu") \
	D(experts_one_off, "the next expert's weights are read") \
	D(gate_up_stride, "w_gate_up is read with intermediate rows for each expert") \
	D(down_of_first, "all experts use the down weights of the first chosen one") \
	D(down_transposed, "down is read as [intermediate, hidden]") \
	D(down_in_tiles_of_128, "elements past the last whole 128 of intermediate are left out") \
	D(shared_missing, "the shared experts are not added") \
	D(shared_weighted, "the shared experts have the first expert's weight") \
	D(shared_width, "the shared experts are taken to have the width of the others") \
	D(residual_missing, "x is not added") \
	D(residual_is_n, "n is added instead of x") \
	D(residual_zeroed, "out is zeroed before x, which may alias it, is read") \
	D(rounded_each, "the sum is rounded after each expert") \
	D(experts_of_request_0, "all requests have the experts of the first") \
	D(weights_of_request_0, "all requests have the first request's weights") \
	D(overwritten_by_peer, "of two requests with the same first expert only one gets its result") \
	D(batch_of_4, "requests past the fourth are not computed") \
	D(h_in_place, "the first expert's h overwrites n before the others have read it") \
	D(past_the_end, "one element past the end of out is written") \
	D(experts_needed, "experts is written although it is NULL: the call fails") \
	D(experts_missing, "experts is not written") \
	D(experts_sorted, "experts is written in ascending order") \
	D(x_written, "the norm overwrites x") \
	D(nan, "the weight is 0/0 where one expert has all the weight") \
	D(not_repeatable, "every other call differs in the last bit") \
	D(nothing, "returns success without doing anything") \
	D(fp8_scales_ignored, "codes are used without their scales") \
	D(fp8_scale_divides, "codes are divided by their scale") \
	D(fp8_e5m2, "codes are decoded as e5m2") \
	D(fp8_scale_of_expert_0, "all experts use the first expert's scales") \
	D(fp8_scale_of_next_expert, "the next expert's scales are used") \
	D(fp8_scale_of_slot, "the scales of the expert numbered by the position among the chosen are used") \
	D(fp8_scale_stride, "gates and ups of an expert are taken to have as many scales as its down") \
	D(fp8_scales_transposed, "scales of blocks are read as [k blocks, n blocks]") \
	D(fp8_scale_of_column_block_0, "a row's first block scale is used for the whole row") \
	D(fp8_block_of_64, "blocks have 64 columns along k") \
	D(fp8_half_block, "half a block at the end of a row uses the scale of the block before") \
	D(fp8_scale_of_slice, "128 columns from an eighth of k on share a scale, ignoring block boundaries") \
	D(fp8_up_has_scale_of_gate, "an up uses its gate's scale") \
	D(fp8_blocks_of_ups_apart, "blocks of ups are counted from the first up") \
	D(fp8_shared_scales_ignored, "codes of the shared experts are used without their scales") \
	D(fp8_shared_scale_of_expert, "the shared experts use the first expert's scales") \
	D(cut_off, "cuts the result off instead of rounding it") \
	D(fp8_shared_down_rows, "the shared down always uses scales of rows") \
	D(route_softmax_for_sigmoid, "a softmax is computed where sigmoids are asked for") \
	D(route_bias_ignored, "the bias is not added") \
	D(route_weights_biased, "the weights contain the bias") \
	D(route_bias_on_logits, "the bias is added to the logits") \
	D(route_sigmoid_in_dtype, "sigmoids are rounded to dtype") \
	D(route_normalize_never, "sigmoids are not divided by their sum") \
	D(route_normalize_by_all, "sigmoids are divided by the sum over all experts") \
	D(route_groups_ignored, "experts of all groups are chosen") \
	D(route_group_max, "with sigmoids a group counts its best expert alone") \
	D(route_group_sum, "a group counts the sum of all of its experts") \
	D(route_group_two_of_softmax, "with a softmax a group counts its two best experts") \
	D(route_group_unbiased, "groups are compared without the biases") \
	D(route_group_twice_best, "the best expert of a group counts twice") \
	D(route_group_short, "one group too few is chosen") \
	D(route_group_ties_to_higher, "among equal groups the higher one is chosen") \
	D(route_groups_interleaved, "an expert's group is its number modulo num_groups") \
	D(route_masked_zero, "experts of other groups count 0 instead of being left out") \
	D(route_softmax_of_groups, "the softmax is over the experts of the chosen groups only") \
	D(route_past_64, "groups are formed of the first 64 experts")

#define NAME(name, what)	MOE_##name,
enum defect { DEFECTS(NAME) };

struct state {
	const struct cairn_moe_args *a;
	struct cairn_moe_choice how;
	enum defect d;
	double *x, *n, *g, *y, *sum, *row;
	int experts[MAX_BATCH][MAX_TOP];
	double weights[MAX_BATCH][MAX_TOP];
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

static double key_of(const struct state *s, const double *c, const double *logits, int e)
{
	if ((s->d == MOE_last_expert_ignored && e == s->a->num_experts - 1 && e >= s->a->experts_per_token) ||
	    (s->d == MOE_first_64_experts && e >= 64))
		return -INFINITY;
	return s->d == MOE_by_logit_magnitude ? fabs(logits[e]) : c[e];
}

static void pick(struct state *s, int b, const double *c, const double *logits, const uint8_t *left)
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

static int group_of(const struct state *s, int e)
{
	int groups = s->how.groups, size = s->a->num_experts / groups;

	if (s->d == MOE_route_groups_interleaved)
		return e % groups;
	if (s->d == MOE_route_past_64 && s->a->num_experts > 64)
		return e / (64 / groups) % groups;
	return e / size;
}

/* Returns the score of a group; c: what its experts are compared by. */
static double score_of(const struct state *s, const double *c, const double *p, int group)
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

/* Marks the experts of all groups but the best ones. */
static void leave_groups(const struct state *s, double *c, const double *p, uint8_t *left)
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
		if (!left[e] || s->d != MOE_route_masked_zero)
			continue;
		left[e] = 0;
		c[e] = 0;
	}
}

static void softmax(const struct state *s, const double *logits, const uint8_t *left, double *p)
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
static void scores(const struct state *s, const double *logits, double *p, double *c)
{
	static const uint8_t none[MAX_EXPERTS];
	const int sigmoids = s->how.score == CAIRN_MOE_SIGMOID && s->d != MOE_route_softmax_for_sigmoid;

	if (!sigmoids)
		softmax(s, logits, none, p);
	for (int e = 0; e < s->a->num_experts; e++) {
		double bias = s->how.bias && s->d != MOE_route_bias_ignored ? (double)s->how.bias[e] : 0;

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
static double weight_of(const struct state *s, int b, int from, const double *p, const double *c)
{
	const struct cairn_moe_args *a = s->a;
	const int sigmoids = s->how.score == CAIRN_MOE_SIGMOID;
	const double *w = s->d == MOE_route_weights_biased ? c : p;
	double chosen = sigmoids ? 1e-20 : 0;
	int n = s->d == MOE_route_normalize_by_all && sigmoids ? a->num_experts : a->experts_per_token;

	for (int i = 0; i < n; i++)
		chosen += w[n == a->num_experts ? i : s->experts[b][i]];
	if (s->d == MOE_softmax_over_chosen || s->d == MOE_normalize_always ||
	    (a->normalize && s->d != MOE_normalize_never && (s->d != MOE_route_normalize_never || !sigmoids)))
		return w[s->experts[b][from]] / chosen;
	return w[s->experts[b][from]];
}

static void route(struct state *s, int b)
{
	const struct cairn_moe_args *a = s->a;
	double logits[MAX_EXPERTS], p[MAX_EXPERTS], c[MAX_EXPERTS];
	uint8_t left[MAX_EXPERTS] = { 0 };
	int k = a->experts_per_token;

	for (int e = 0; e < a->num_experts; e++) {
		logits[e] = 0;
		for (int i = 0; i < a->hidden - (s->d == MOE_logits_truncated ? 64 : 0); i++)
			logits[e] += (s->d == MOE_router_reads_x ? s->x : s->n)[i] *
				     element(s, a->w_router, (int64_t)e * a->hidden + i);
		if (s->d == MOE_logits_in_dtype)
			logits[e] = block_rounded(logits[e], a->dtype);
	}
	scores(s, logits, p, c);
	if (s->how.groups > 1 && s->d != MOE_route_groups_ignored)
		leave_groups(s, c, p, left);
	pick(s, b, c, logits, left);
	if (s->d == MOE_route_softmax_of_groups && s->how.score == CAIRN_MOE_SOFTMAX)
		softmax(s, logits, left, p);
	for (int i = 0; i < k; i++) {
		double w = weight_of(s, b, s->d == MOE_weights_reversed ? k - 1 - i : i, p, c);

		if (s->d != MOE_scaling_missing && (s->d != MOE_scaling_before_norm || !a->normalize))
			w *= (double)a->scaling;
		if (s->d == MOE_weights_all_equal)
			w = (double)a->scaling / k;
		if (s->d == MOE_nan && w == (double)a->scaling)
			w = NAN;
		s->weights[b][i] = s->d == MOE_weight_missing ? 1 : w;
	}
}

/* A matrix [n, k], from element `at` on; scale: NULL, or the first scale of e4m3 */
struct matrix {
	const void *w;
	const float *scale;
	int64_t at, n, k;
	int is_shared, is_down;
};

static double scale_at(const struct state *s, const struct matrix *m, int64_t row, int64_t col)
{
	int64_t blocks_n = (m->n + 127) / 128, blocks_k = (m->k + 127) / 128, jb, lb = col / 128, slice;

	if (s->d == MOE_fp8_scales_ignored || (s->d == MOE_fp8_shared_scales_ignored && m->is_shared))
		return 1;
	if (s->d == MOE_fp8_up_has_scale_of_gate && !m->is_down)
		row %= m->n / 2;
	if (!s->a->scale_kind || (s->d == MOE_fp8_shared_down_rows && m->is_shared && m->is_down))
		return (double)m->scale[s->a->scale_kind ? row % (blocks_n * blocks_k) : row];
	jb = row / 128;
	if (s->d == MOE_fp8_blocks_of_ups_apart && !m->is_down && row >= m->n / 2)
		jb = (m->n / 2 + 127) / 128 + (row - m->n / 2) / 128;
	jb = jb < blocks_n ? jb : blocks_n - 1;
	if (s->d == MOE_fp8_scale_of_column_block_0)
		lb = 0;
	if (s->d == MOE_fp8_block_of_64)
		lb = col / 64 % blocks_k;
	if (s->d == MOE_fp8_half_block && m->k % 128 && lb)
		lb -= lb == blocks_k - 1;
	slice = (m->k + 255) / 256 * 32;
	if (s->d == MOE_fp8_scale_of_slice && m->is_down)
		lb = (col / slice * slice + col % slice / 128 * 128) / 128;
	return (double)m->scale[s->d == MOE_fp8_scales_transposed ? lb * blocks_n + jb : jb * blocks_k + lb];
}

/* Computes s->row, row `row` of the matrix. No scale changes within 32 columns. */
static void load_row(const struct state *s, const struct matrix *m, int64_t row)
{
	int64_t at = m->at + row * m->k;
	const uint8_t *codes = (const uint8_t *)m->w + at;

	if (!m->scale) {
		cairn_widen(s->row, m->w, s->a->dtype, at, m->k);
		return;
	}
	for (int64_t from = 0; from < m->k; from += 32) {
		int64_t n = m->k - from < 32 ? m->k - from : 32;
		double scale = scale_at(s, m, row, from), *dst = s->row + from;

		if (s->d == MOE_fp8_scale_divides)
			scale = 1 / scale;
		cairn_widen_e4m3(dst, codes + from, scale, n);
		for (int64_t i = 0; i < n && s->d == MOE_fp8_e5m2; i++)
			dst[i] = (double)cairn_f16_to_float((uint16_t)(codes[from + i] << 8)) * scale;
	}
}

/* The sum for row i of the matrix that is read as [n, hidden] instead of [hidden, n] */
static double sum_transposed(const struct state *s, const struct matrix *m, const double *y, int i)
{
	double sum = 0;

	for (int64_t l = 0; l < m->k; l++) {
		int64_t at = l * s->a->hidden + i;

		load_row(s, m, at / m->k);
		sum += y[l] * s->row[at % m->k];
	}
	return sum;
}

static void feed_forward(struct state *s, int n, const struct matrix *gate_up, const struct matrix *down,
			 double w)
{
	const struct cairn_moe_args *a = s->a;
	double inside = s->d == MOE_weight_before_silu ? 1 : w;

	for (int i = 0; i < 2 * n; i++) {
		load_row(s, gate_up, i);
		s->g[i] = cairn_dot(s->n, s->row, a->hidden);
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
		double add;

		if (s->d == MOE_down_transposed) {
			add = sum_transposed(s, down, s->y, i);
		} else {
			load_row(s, down, i);
			add = cairn_dot(s->y, s->row, n);
		}
		s->sum[i] += add * (s->d == MOE_weight_twice ? w : 1);
		if (s->d == MOE_rounded_each)
			s->sum[i] = block_rounded(s->sum[i], a->dtype);
	}
}

/* Returns matrix number e of several [n, k], with the scales of number `of`. */
static struct matrix matrix_of(const struct state *s, const void *w, const float *scale, int64_t e,
			       int64_t of, int64_t n, int64_t k)
{
	int64_t scales = cairn_moe_scales(s->a->scale_kind, n, k);

	return (struct matrix){ .w = w, .scale = scale ? scale + of * scales : NULL, .at = e * n * k, .n = n,
				.k = k };
}

static void experts(struct state *s, int b)
{
	const struct cairn_moe_args *a = s->a;
	int from = s->d == MOE_experts_of_request_0 ? 0 : b, num = a->num_experts;
	int64_t inter = a->intermediate, hidden = a->hidden, of;
	struct matrix gate_up, down;

	for (int i = 0; i < a->experts_per_token - (s->d == MOE_top_k_short); i++) {
		int64_t e = s->experts[from][i];
		double w = s->weights[s->d == MOE_weights_of_request_0 ? 0 : from][i];

		if (s->d == MOE_experts_one_off)
			e = (e + 1) % num;
		if (s->d == MOE_overwritten_by_peer && i == 0 && b && e == s->experts[b - 1][0])
			continue;
		of = s->d == MOE_fp8_scale_of_expert_0 ? 0 : s->d == MOE_fp8_scale_of_slot ? i :
		     s->d == MOE_fp8_scale_of_next_expert ? (e + 1) % num : e;
		gate_up = matrix_of(s, a->w_gate_up, a->w_gate_up_scale, e, of, 2 * inter, hidden);
		if (s->d == MOE_gate_up_stride)
			gate_up.at /= 2;
		if (s->d == MOE_fp8_scale_stride && gate_up.scale)
			gate_up.scale = a->w_gate_up_scale +
				of * cairn_moe_scales(a->scale_kind, hidden, inter) %
				((num - 1) * cairn_moe_scales(a->scale_kind, 2 * inter, hidden) + 1);
		if (s->d == MOE_down_of_first)
			e = of = s->experts[from][0];
		down = matrix_of(s, a->w_down, a->w_down_scale, e, of, hidden, inter);
		down.is_down = 1;
		feed_forward(s, a->intermediate, &gate_up, &down, w);
	}
	if (a->shared_intermediate && s->d != MOE_shared_missing) {
		int narrow = s->d == MOE_shared_width && a->intermediate < a->shared_intermediate;
		int wrong = s->d == MOE_fp8_shared_scale_of_expert &&
			    a->intermediate >= a->shared_intermediate;
		double w = s->d == MOE_scaling_of_shared ? (double)a->scaling :
			   s->d == MOE_shared_weighted ? s->weights[b][0] : 1;

		inter = narrow ? a->intermediate : a->shared_intermediate;
		gate_up = matrix_of(s, a->w_shared_gate_up, wrong ? a->w_gate_up_scale :
				    a->w_shared_gate_up_scale, 0, 0, 2 * inter, hidden);
		down = matrix_of(s, a->w_shared_down, wrong ? a->w_down_scale : a->w_shared_down_scale, 0, 0,
				 hidden, inter);
		gate_up.is_shared = down.is_shared = down.is_down = 1;
		feed_forward(s, (int)inter, &gate_up, &down, w);
	}
}

static void write(struct state *s, int b)
{
	const struct cairn_moe_args *a = s->a;
	int k = a->experts_per_token;

	for (int i = 0; i < a->hidden; i++)
		cairn_store(a->out, a->dtype, (int64_t)b * a->hidden + i,
			    s->d == MOE_cut_off ? cut_off(a->dtype, s->sum[i]) : s->sum[i]);
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
	if (a->batch > MAX_BATCH)
		return cairn_error(EOPNOTSUPP, "moe_mutants: batch: %d is above %d", a->batch, MAX_BATCH);
	if (d == MOE_experts_needed && !a->experts)
		return cairn_error(EINVAL, "moe: experts: null pointer");
	if (d == MOE_nothing || !a->batch)
		return 0;
	inter = a->intermediate > a->shared_intermediate ? a->intermediate : a->shared_intermediate;
	s.x = calloc((size_t)(4 * a->hidden + 4 * inter), sizeof(double));
	if (!s.x)
		return cairn_error(ENOMEM, "moe_mutants: no memory");
	s.how = cairn_moe_choice_of(a);
	s.n = s.x + a->hidden;
	s.sum = s.n + a->hidden;
	s.g = s.sum + a->hidden;
	s.y = s.g + 2 * inter;
	s.row = s.y + inter;
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

const struct cairn_mutant cairn_moe_mutants[] = { DEFECTS(LIST) { 0 } };
