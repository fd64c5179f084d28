// SPDX-License-Identifier: Apache-2.0
/*
 * moe_mutants - defects of a mixture of experts that occur in practice
 *
 * The mutants are one plain implementation, which computes one request at a time, with a switch for each
 * defect: in the choice of experts, their weights, the indexed products, and the sharing of experts in a
 * batch.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "primitives/base/args.h"
#include "primitives/base/fp8.h"
#include "primitives/base/cut_off.h"
#include "primitives/base/rows.h"
#include "fused/block/block_ref.h"
#include "primitives/gemm/w4/gemm_w4_value.h"
#include "fused/moe/moe_ref.h"
#include "fused/moe/moe_mutants.h"
#include "fused/moe/moe_w4.h"

static double element(const struct moe_mutant *s, const void *w, int64_t at)
{
	return cairn_load(w, s->a->dtype, at);
}

static void norm(struct moe_mutant *s, int b)
{
	const struct cairn_moe_args *a = s->a;
	double squares = 0, scale, eps;

	for (int i = 0; i < a->hidden; i++) {
		s->x[i] = element(s, a->x, (int64_t)b * a->hidden + i);
		squares += s->x[i] * s->x[i];
	}
	eps = s->d == MOE_eps_missing ? 0 : fmax((double)a->eps, s->d == MOE_eps_at_least_1e_6 ? 1e-6 :
	      s->d == MOE_eps_at_least_1e_30 ? 1e-30 : 0);
	scale = 1 / sqrt(squares / a->hidden + eps);
	for (int i = 0; i < a->hidden; i++) {
		double w = s->d == MOE_norm_weight_missing ? 1 : element(s, a->norm_weight, i);

		s->n[i] = s->d == MOE_norm_missing ? s->x[i] : block_rounded(s->x[i] * scale * w, a->dtype);
		if (s->d == MOE_x_written)
			cairn_store((void *)a->x, a->dtype, (int64_t)b * a->hidden + i, s->n[i]);
	}
}

/* A matrix [n, k], from element `at` on; scale: NULL, or the first scale of e4m3 */
struct matrix {
	const void *w;
	const float *scale;
	int64_t at, n, k;
	int is_shared, is_down;
	struct cairn_gemm_w4_args four;		/* the matrix, if it has 4 bits; else b is NULL */
	float factor[2];		/* of four: of the first half of its rows, and of the second */
};

static double scale_at(const struct moe_mutant *s, const struct matrix *m, int64_t row, int64_t col)
{
	int64_t blocks_n = (m->n + 127) / 128, blocks_k = (m->k + 127) / 128, jb, lb = col / 128, slice;

	if (s->d == MOE_fp8_scales_ignored || (s->d == MOE_fp8_shared_scales_ignored && m->is_shared))
		return 1;
	if (s->d == MOE_fp8_up_has_scale_of_gate && !m->is_down)
		row %= m->n / 2;
	if (s->d == MOE_scale_in_bf16 && !s->a->scale_kind)
		return block_rounded((double)m->scale[row], CAIRN_BF16);
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

/* Computes s->row of a matrix in 4 bits. */
static void load_row_w4(const struct moe_mutant *s, const struct matrix *m, int64_t row)
{
	const struct cairn_gemm_w4_args *g = &m->four;

	for (int64_t l = 0; l < m->k; l++) {
		int64_t nth = g->group ? l / g->group : 0, from = row;
		double value, scale;
		int64_t scale_row = row;
		float values[16];

		if (s->d == MOE_w4_rows_swapped)
			from = row % 16 < 8 ? row + 8 : row - 8;
		if (s->d == MOE_w4_first_group)
			nth = 0;
		if (s->d == MOE_w4_up_has_scale_of_gate && !m->is_down)
			scale_row = row % (m->n / 2);
		cairn_w4_values(g, scale_row, nth, values);
		value = (double)values[cairn_w4_code(g->format, g->b, g->k, from, l)];
		if (s->d == MOE_w4_zero_8 && g->format == CAIRN_W4_INT)
			value = cairn_w4_code(g->format, g->b, g->k, from, l) - 8;
		scale = (double)cairn_w4_scale(g, scale_row, nth);
		if (s->d == MOE_w4_scale_magnitude)
			scale = fabs(scale);
		s->row[l] = value * scale * (double)m->factor[row >= m->n / 2];
	}
}

/* Computes s->row, row `row` of the matrix. No scale changes within 32 columns. */
static void load_row(const struct moe_mutant *s, const struct matrix *m, int64_t row)
{
	int64_t at = m->at + row * m->k;
	const uint8_t *codes = (const uint8_t *)m->w + at;

	if (m->four.b) {
		load_row_w4(s, m, row);
		return;
	}
	if (!m->scale) {
		cairn_widen(s->row, m->w, s->a->dtype, at, m->k);
		return;
	}
	for (int64_t from = 0; from < m->k; from += 32) {
		int64_t n = m->k - from < 32 ? m->k - from : 32;
		double scale = scale_at(s, m, row, from), *dst = s->row + from;

		if (s->d == MOE_fp8_scale_divides)
			scale = 1 / scale;
		if (s->d == MOE_fp8_scale_magnitude)
			scale = fabs(scale);
		if (s->d == MOE_fp8_scale_0_is_1 && scale == 0)
			scale = 1;
		cairn_widen_e4m3(dst, codes + from, scale, n);
		for (int64_t i = 0; i < n && s->d == MOE_fp8_subnormal_0; i++)
			dst[i] = codes[from + i] & 0x78 ? dst[i] : 0;
		for (int64_t i = 0; i < n && s->d == MOE_fp8_e5m2; i++)
			dst[i] = (double)cairn_f16_to_float((uint16_t)(codes[from + i] << 8)) * scale;
	}
}

/* The sum for row i of the matrix that is read as [n, hidden] instead of [hidden, n] */
static double sum_transposed(const struct moe_mutant *s, const struct matrix *m, const double *y, int i)
{
	double sum = 0;

	for (int64_t l = 0; l < m->k; l++) {
		int64_t at = l * s->a->hidden + i;

		load_row(s, m, at / m->k);
		sum += y[l] * s->row[at % m->k];
	}
	return sum;
}

/* Returns sum x[i] s->row[i]; narrow: truncated to TF32 after every fourth product. */
static double sum_of(const struct moe_mutant *s, const double *x, int64_t n, int narrow)
{
	double sum = 0;

	if (!narrow)
		return cairn_dot(x, s->row, n);
	for (int64_t i = 0; i < n; i += 4)
		sum = tf32(sum + cairn_dot(x + i, s->row + i, 4));
	return sum;
}

/* Returns a bias of gate i (or i + n: its up) of an expert. */
static double gate_up_bias(const struct moe_mutant *s, int64_t expert, int n, int i)
{
	if (!s->between.gate_up_bias || s->d == MOE_gate_up_bias_ignored || expert < 0 ||
	    (s->d == MOE_gate_up_bias_lost_of_many && s->a->batch > CAIRN_MOE_FEW))
		return 0;
	if (s->d == MOE_gate_up_bias_of_expert_0)
		expert = 0;
	if (s->d == MOE_gate_up_bias_interleaved)
		i = i < n ? 2 * i : 2 * (i - n) + 1;
	return element(s, s->between.gate_up_bias, expert * 2 * n + i);
}

/* Returns what activation 1 computes; more: biases that are added behind the limits. */
static double clamped(const struct moe_mutant *s, double gate, double up, const double *more)
{
	const double limit = s->d == MOE_limit_ignored ? INFINITY : (double)s->between.limit;
	const double alpha = s->d == MOE_alpha_is_1 ? 1 : (double)s->between.alpha;

	gate = fmin(gate, limit);
	if (s->d == MOE_limit_below_gate)
		gate = fmax(gate, -limit);
	up = fmin(up, limit);
	if (s->d != MOE_limit_above_up_only)
		up = fmax(up, -limit);
	gate += more[0];
	up += more[1] + (s->d != MOE_up_without_1);
	return gate / (1 + exp(-alpha * gate)) * up;
}

static double down_bias(const struct moe_mutant *s, int64_t expert, int i, double w)
{
	if (!s->between.down_bias || s->d == MOE_down_bias_ignored || expert < 0 ||
	    (s->d == MOE_down_bias_lost_of_many && s->a->batch > CAIRN_MOE_FEW))
		return 0;
	if (s->d == MOE_down_bias_of_expert_0)
		expert = 0;
	return element(s, s->between.down_bias, expert * s->a->hidden + i) *
	       (s->d == MOE_down_bias_unweighted ? 1 : w);
}

/* expert: its number; -1: the shared experts */
static void feed_forward(struct moe_mutant *s, int n, const struct matrix *gate_up, const struct matrix *down,
			 int64_t expert, double w)
{
	const struct cairn_moe_args *a = s->a;
	double inside = s->d == MOE_weight_before_silu ? 1 : w;

	for (int i = 0; i < 2 * n; i++) {
		load_row(s, gate_up, i);
		s->g[i] = sum_of(s, s->n, a->hidden, s->d == MOE_sums_10_bits_of_gate_up);
	}
	for (int i = 0; i < n; i++) {
		double gate = s->g[i], up = s->g[n + i], v, more[2];

		more[0] = gate_up_bias(s, expert, n, i);
		more[1] = gate_up_bias(s, expert, n, n + i);
		if (s->d != MOE_gate_up_bias_after_limit || s->between.activation != CAIRN_MOE_CLAMPED) {
			gate += more[0];
			up += more[1];
			more[0] = more[1] = 0;
		}
		if (s->d == MOE_gate_and_up_swapped) {
			gate = s->g[n + i];
			up = s->g[i];
		}
		if (s->d == MOE_gate_up_interleaved) {
			gate = s->g[2 * i];
			up = s->g[2 * i + 1];
		}
		gate *= s->d == MOE_weight_before_silu ? w : 1;
		v = s->d == MOE_silu_missing ? gate : gate / (1 + exp(-gate));
		if (s->d == MOE_silu_rounded)
			v = block_rounded(v, a->dtype);
		if (s->d == MOE_silu_0_below_20 && gate < -20)
			v = 0;
		v *= up;
		if (s->between.activation == CAIRN_MOE_CLAMPED && s->d != MOE_activation_silu)
			v = clamped(s, gate, up, more);
		v *= inside;
		s->y[i] = s->d == MOE_down_in_tiles_of_128 && i >= n / 128 * 128 ? 0 :
			  block_rounded(v, s->d == MOE_h_in_bf16 ? CAIRN_BF16 : a->dtype);
		if (s->d == MOE_h_in_place && i < a->hidden)
			s->n[i] = s->y[i];
	}
	for (int i = 0; i < a->hidden; i++) {
		double add;

		if (s->d == MOE_down_transposed) {
			add = sum_transposed(s, down, s->y, i);
		} else {
			load_row(s, down, i);
			add = sum_of(s, s->y, n, s->d == MOE_sums_10_bits_of_down);
		}
		if (s->d == MOE_down_rounded)
			add = block_rounded(add, a->dtype);
		s->sum[i] += add * (s->d == MOE_weight_twice ? w : 1) + down_bias(s, expert, i, w);
		if (s->d == MOE_rounded_each)
			s->sum[i] = block_rounded(s->sum[i], a->dtype);
	}
}

static float factor_of(const struct moe_mutant *s, int is_down, int64_t e, int64_t row, int64_t n)
{
	if (s->d == MOE_w4_factors_ignored || (s->d == MOE_w4_down_factor_ignored && is_down))
		return 1;
	return cairn_moe_factor(s->a, is_down, s->d == MOE_w4_factor_of_expert_0 ? 0 : e,
				s->d == MOE_w4_up_has_factor_of_gate ? 0 : row, n);
}

/* Returns matrix number e of several [n, k], with the scales of number `of`. */
static struct matrix matrix_of(const struct moe_mutant *s, const void *w, const float *scale, int64_t e,
			       int64_t of, int64_t n, int64_t k)
{
	int64_t scales = cairn_moe_scales(s->a->scale_kind, n, k);
	struct matrix m = { .w = w, .n = n, .k = k };

	if (cairn_moe_w4_of(s->a)) {
		if (s->d == MOE_w4_scale_of_expert_0)
			of = 0;
		m.four = cairn_moe_w4_matrix(s->a->w4, w, scale, of, (int32_t)n, (int32_t)k);
		m.four.b = (const uint8_t *)w + e * cairn_w4_code_bytes((int32_t)n, (int32_t)k);
		for (int i = 0; i < 2; i++)
			m.factor[i] = factor_of(s, w == s->a->w_down, e, i * n / 2, n);
		return m;
	}
	return (struct matrix){ .w = w, .scale = scale ? scale + of * scales : NULL, .at = e * n * k, .n = n,
				.k = k };
}

static void experts(struct moe_mutant *s, int b)
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
		feed_forward(s, a->intermediate, &gate_up, &down, e, w);
	}
	if (a->shared_intermediate && s->d != MOE_shared_missing &&
	    !(s->d == MOE_shared_lost_in_place && a->out == a->x)) {
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
		feed_forward(s, (int)inter, &gate_up, &down, -1, w);
	}
}

static void write(struct moe_mutant *s, int b)
{
	const struct cairn_moe_args *a = s->a;
	int k = a->experts_per_token;

	for (int i = 0; i < a->hidden; i++) {
		double v = s->d == MOE_cut_off ? cut_off(a->dtype, s->sum[i]) : s->sum[i];

		if (s->d == MOE_out_saturated && a->dtype == CAIRN_F16)
			v = fmax(fmin(v, 65504), -65504);
		cairn_store(a->out, a->dtype, (int64_t)b * a->hidden + i, v);
	}
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

static int adds_x(const struct moe_mutant *s)
{
	const struct cairn_moe_args *a = s->a;

	return cairn_moe_adds_x(a) || s->d == MOE_residual_always ||
	       (s->d == MOE_residual_always_of_many && a->batch > CAIRN_MOE_FEW) ||
	       (s->d == MOE_residual_always_with_fp8 && a->fp8w) ||
	       (s->d == MOE_residual_always_in_place && a->out == a->x);
}

static void request(struct moe_mutant *s, int b)
{
	const struct cairn_moe_args *a = s->a;

	if (s->d == MOE_residual_zeroed)
		memset((char *)a->out + (int64_t)b * a->hidden * 2, 0, (size_t)a->hidden * 2);
	norm(s, b);
	moe_mutant_route(s, b);
	for (int i = 0; i < a->hidden; i++)
		s->sum[i] = s->d == MOE_residual_missing || s->d == MOE_sum_rounded || !adds_x(s) ? 0 :
			    s->d == MOE_residual_is_n ? s->n[i] : s->x[i];
	experts(s, b);
	for (int i = 0; i < a->hidden && s->d == MOE_sum_rounded; i++)
		s->sum[i] = (adds_x(s) ? s->x[i] : 0) + block_rounded(s->sum[i], a->dtype);
	write(s, b);
}

static int moe(const struct cairn_moe_args *a, enum moe_defect d)
{
	struct moe_mutant s = { .a = a, .d = d };
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
	s.between = cairn_moe_between_of(a);
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
MOE_DEFECTS(DEFINE)

#define LIST(name, what) \
	{ "moe_" #name, offsetof(struct cairn_impl, moe), (void *)moe_##name, what },

/*
 * Truncates the last expert's offset to 32 bits. In the cases that catch this, all requests choose only that
 * expert.
 */
static int moe_far_bytes_32_bits(const struct cairn_moe_args *a, void *stream)
{
	int64_t last = (int64_t)(a->num_experts - 1) * 2 * 2 * a->intermediate * a->hidden;
	struct cairn_moe_args b = *a;

	CAIRN_TRY(cairn_moe_check(a));
	b.size = sizeof(b);
	if (last > UINT32_MAX)
		b.w_gate_up = (const char *)a->w_gate_up - (last - (int64_t)(uint32_t)last);
	return cairn_moe_ref(&b, stream);
}

static int moe_unknown_ignored(const struct cairn_moe_args *a, void *stream)
{
	struct cairn_moe_args b;

	cairn_copy_args(&b, a, sizeof(b));
	return cairn_moe_ref(&b, stream);
}

/* Behaves like a kernel whose CTA has a thread for each token of an expert. */
static int moe_tokens_of_an_expert_1024(const struct cairn_moe_args *a, void *stream)
{
	struct cairn_moe_args b = *a;

	CAIRN_TRY(cairn_moe_check(a));
	b.size = sizeof(b);
	if (a->batch <= 1024)
		return cairn_moe_ref(a, stream);
	b.batch = 1024;
	return cairn_moe_ref(&b, stream);
}

/* Behaves like a kernel that keeps row numbers in 15 bits. */
static int moe_rows_15_bits(const struct cairn_moe_args *a, void *stream)
{
	struct cairn_moe_args b;

	CAIRN_TRY(cairn_moe_check(a));
	cairn_copy_args(&b, a, sizeof(b));
	b.batch = a->batch < 32768 ? a->batch : 32768;
	return cairn_moe_ref(&b, stream);
}

/* Accepts a struct that ends within the later members. */
static int moe_any_size(const struct cairn_moe_args *a, void *stream)
{
	struct cairn_moe_args b;

	if (!a || a->size < CAIRN_MOE_FIRST_BYTES || a->size > sizeof(*a))
		return cairn_moe_ref(a, stream);
	cairn_copy_args(&b, a, sizeof(b));
	return cairn_moe_ref(&b, stream);
}

static int moe_rows_hidden_4096(const struct cairn_moe_args *a, void *stream)
{
	CAIRN_TRY(cairn_moe_ref(a, stream));
	if (a->batch > CAIRN_MOE_FEW && a->hidden > 4096)
		memset(a->out, 0, (size_t)a->hidden * 2);
	return 0;
}

static int moe_rows_inter_4096(const struct cairn_moe_args *a, void *stream)
{
	CAIRN_TRY(cairn_moe_ref(a, stream));
	if (a->batch > CAIRN_MOE_FEW && a->intermediate > 4096)
		memset(a->out, 0, (size_t)a->hidden * 2);
	return 0;
}

static int moe_groups_past_16(const struct cairn_moe_args *a, void *stream)
{
	struct cairn_moe_args b;

	CAIRN_TRY(cairn_moe_check(a));
	cairn_copy_args(&b, a, sizeof(b));
	if (b.size == sizeof(b) && b.num_groups > 16 && b.score)
		b.num_groups = b.groups_per_token = 0;
	return cairn_moe_ref(&b, stream);
}

/* Loads vectors of 32 bytes from addresses that promise 16. */
static int moe_vectors_of_32(const struct cairn_moe_args *a, void *stream)
{
	struct cairn_moe_args b;

	CAIRN_TRY(cairn_moe_check(a));
	cairn_copy_args(&b, a, sizeof(b));
	b.w_router = (const char *)a->w_router - (uintptr_t)a->w_router % 32;
	return cairn_moe_ref(&b, stream);
}

/* With two experts and one row past whole tiles of 32, the last element is 0. */
static int moe_corner_of_33_rows(const struct cairn_moe_args *a, void *stream)
{
	CAIRN_TRY(cairn_moe_ref(a, stream));
	if (a->batch % 32 == 1 && a->batch > 32 && a->num_experts == 2)
		cairn_store(a->out, a->dtype, (int64_t)a->batch * a->hidden - 1, 0);
	return 0;
}

const struct cairn_mutant cairn_moe_mutants[] = {
	MOE_DEFECTS(LIST)
	LIST(far_bytes_32_bits, "the offset of an expert's weights is cut to 32 bits")
	LIST(unknown_ignored, "takes a struct with unknown members")
	LIST(tokens_of_an_expert_1024, "an expert takes at most 1024 tokens")
	LIST(rows_15_bits, "rows past the first 32768 are not computed")
	LIST(any_size, "a struct that ends within the later members is accepted")
	LIST(rows_hidden_4096, "above 8 rows hidden is at most 4096")
	LIST(rows_inter_4096, "above 8 rows intermediate is at most 4096")
	LIST(vectors_of_32, "takes the router's weight to be 32-byte aligned")
	LIST(groups_past_16, "with sigmoids more than 16 groups are ignored")
	{ "moe_corner_of_33_rows", offsetof(struct cairn_impl, moe), (void *)moe_corner_of_33_rows,
	  "with one row past whole tiles of an expert, the last element is 0" },
	{ 0 }
};
