// SPDX-License-Identifier: Apache-2.0
/*
 * mutants_rows - wrong row operations: rmsnorm, silu_mul, embedding, argmax, sample
 *
 * Each family has one plain implementation whose steps can be bent one at a time. The defects are
 * those that were found in real code, or that a first draft of such a kernel has.
 */
#include <float.h>
#include <stdlib.h>

#include "primitives/draw/philox.h"
#include "conformance/harness.h"

#define BENT(family, defect) \
	static int family##_##defect(const struct cairn_##family##_args *a, void *stream) \
	{ \
		(void)stream; \
		return bent_##family(a, family##_bend_##defect); \
	}

static double rounded(int dtype, double v)
{
	uint64_t bits = 0;

	cairn_store(&bits, dtype, 0, v);
	return cairn_load(&bits, dtype, 0);
}

/* ---- rmsnorm ---- */

enum rmsnorm_bend {
	rmsnorm_bend_eps_outside_root, rmsnorm_bend_eps_before_mean, rmsnorm_bend_dim_minus_1,
	rmsnorm_bend_mean_subtracted, rmsnorm_bend_sum_in_f16, rmsnorm_bend_residual_not_rounded,
	rmsnorm_bend_residual_not_written, rmsnorm_bend_squares_of_x, rmsnorm_bend_offset_ignored,
	rmsnorm_bend_previous_row, rmsnorm_bend_last_8_skipped, rmsnorm_bend_rounded_before_weight,
	rmsnorm_bend_past_the_end,
};

static int bent_rmsnorm(const struct cairn_rmsnorm_args *a, enum rmsnorm_bend bend)
{
	double previous = 1, *r;

	CAIRN_TRY(cairn_rmsnorm_check(a));
	r = malloc((size_t)a->dim * sizeof(*r));
	if (!r)
		return cairn_error(ENOMEM, "no memory");
	for (int64_t i = 0; i < a->rows; i++) {
		double squares = 0, mean = 0, s;
		int32_t n = bend == rmsnorm_bend_last_8_skipped ? a->dim - 8 : a->dim;

		for (int32_t j = 0; j < a->dim; j++) {
			double x = cairn_load(a->x, a->dtype, i * a->dim + j);

			r[j] = x;
			if (a->residual)
				r[j] += cairn_load(a->residual, a->dtype, i * a->dim + j);
			if (a->residual && bend != rmsnorm_bend_residual_not_written)
				cairn_store(a->residual, a->dtype, i * a->dim + j, r[j]);
			if (bend != rmsnorm_bend_residual_not_rounded)
				r[j] = rounded(a->dtype, r[j]);
			mean += r[j] / a->dim;
			squares += bend == rmsnorm_bend_squares_of_x ? x * x : r[j] * r[j];
			if (bend == rmsnorm_bend_sum_in_f16)
				squares = rounded(CAIRN_F16, squares);
		}
		if (bend == rmsnorm_bend_mean_subtracted)
			squares -= a->dim * mean * mean;
		squares /= bend == rmsnorm_bend_dim_minus_1 ? a->dim - 1 : a->dim;
		s = 1 / sqrt(squares + (double)a->eps);
		if (bend == rmsnorm_bend_eps_outside_root)
			s = 1 / (sqrt(squares) + (double)a->eps);
		if (bend == rmsnorm_bend_eps_before_mean)
			s = 1 / sqrt(squares + (double)a->eps / a->dim);
		for (int32_t j = 0; j < n; j++) {
			double w = cairn_load(a->weight, a->dtype, j), v;

			w += bend == rmsnorm_bend_offset_ignored ? 0 : (double)a->weight_offset;
			v = r[j] - (bend == rmsnorm_bend_mean_subtracted ? mean : 0);
			v *= bend == rmsnorm_bend_previous_row && i ? previous : s;
			if (bend == rmsnorm_bend_rounded_before_weight)
				v = rounded(a->dtype, v);
			cairn_store(a->out, a->dtype, i * a->dim + j, v * w);
		}
		previous = s;
	}
	if (a->rows && bend == rmsnorm_bend_past_the_end)
		cairn_store(a->out, a->dtype, (int64_t)a->rows * a->dim, 1);
	free(r);
	return 0;
}

BENT(rmsnorm, eps_outside_root)
BENT(rmsnorm, eps_before_mean)
BENT(rmsnorm, dim_minus_1)
BENT(rmsnorm, mean_subtracted)
BENT(rmsnorm, sum_in_f16)
BENT(rmsnorm, residual_not_rounded)
BENT(rmsnorm, residual_not_written)
BENT(rmsnorm, squares_of_x)
BENT(rmsnorm, offset_ignored)
BENT(rmsnorm, previous_row)
BENT(rmsnorm, last_8_skipped)
BENT(rmsnorm, rounded_before_weight)
BENT(rmsnorm, past_the_end)

/* ---- silu_mul ---- */

enum silu_mul_bend {
	silu_mul_bend_halves_swapped, silu_mul_bend_halves_interleaved, silu_mul_bend_gelu,
	silu_mul_bend_sigmoid, silu_mul_bend_nan_at_minus_infinity, silu_mul_bend_exp_overflows,
	silu_mul_bend_vanishes_early, silu_mul_bend_rounded_twice, silu_mul_bend_last_row_missing,
	silu_mul_bend_hard_silu, silu_mul_bend_silu_always, silu_mul_bend_gelu_erf, silu_mul_bend_gelu_quick,
	silu_mul_bend_gelu_no_cube, silu_mul_bend_gelu_twice, silu_mul_bend_gelu_rounded,
	silu_mul_bend_gelu_nan, silu_mul_bend_gelu_cancels,
};

static double bent_silu(double g, enum silu_mul_bend bend)
{
	switch (bend) {
	case silu_mul_bend_gelu:
		return 0.5 * g * (1 + tanh(0.7978845608 * (g + 0.044715 * g * g * g)));
	case silu_mul_bend_sigmoid:
		return 1 / (1 + exp(-g));
	case silu_mul_bend_nan_at_minus_infinity:
		return g / (1 + exp(-g));
	case silu_mul_bend_exp_overflows:
		return (double)((float)g * expf((float)g) / (1 + expf((float)g)));
	case silu_mul_bend_vanishes_early:
		return g < -88 ? 0 : g / (1 + exp(-g));
	case silu_mul_bend_hard_silu:
		return g * fmin(fmax(g + 3, 0), 6) / 6;
	default:
		return g == -INFINITY ? 0 : g / (1 + exp(-g));
	}
}

/* Gemma's. */
static double bent_gelu(double g, enum silu_mul_bend bend)
{
	double y = sqrt(2 / acos(-1)) * (g + 0.044715 * g * g * g), v;

	switch (bend) {
	case silu_mul_bend_silu_always:
		return g == -INFINITY ? 0 : g / (1 + exp(-g));
	case silu_mul_bend_gelu_erf:
		return g == -INFINITY ? 0 : 0.5 * g * erfc(-g / sqrt(2));
	case silu_mul_bend_gelu_quick:
		return g == -INFINITY ? 0 : g / (1 + exp(-1.702 * g));
	case silu_mul_bend_gelu_no_cube:
		return g == -INFINITY ? 0 : g / (1 + exp(-2 * sqrt(2 / acos(-1)) * g));
	case silu_mul_bend_gelu_nan:
		return g / (1 + exp(-2 * y));
	case silu_mul_bend_gelu_cancels:
		return g == -INFINITY ? 0 : (double)(0.5f * (float)g * (1 + tanhf((float)y)));
	default:
		v = g == -INFINITY ? 0 : g / (1 + exp(-2 * y));
		return bend == silu_mul_bend_gelu_twice && v != 0 ? bent_gelu(v, silu_mul_bend_gelu) : v;
	}
}

static int bent_silu_mul(const struct cairn_silu_mul_args *a, enum silu_mul_bend bend)
{
	int64_t rows = a->rows - (bend == silu_mul_bend_last_row_missing);

	CAIRN_TRY(cairn_silu_mul_check(a));
	for (int64_t i = 0; i < rows; i++)
		for (int32_t j = 0; j < a->dim; j++) {
			int64_t gate = 2 * i * a->dim + j, up = gate + a->dim, t = gate;
			double v;

			if (bend == silu_mul_bend_halves_swapped) {
				gate = up;
				up = t;
			}
			if (bend == silu_mul_bend_halves_interleaved) {
				gate = 2 * (i * a->dim + j);
				up = gate + 1;
			}
			v = cairn_load(a->x, a->dtype, gate);
			v = a->activation ? bent_gelu(v, bend) : bent_silu(v, bend);
			if (bend == silu_mul_bend_rounded_twice ||
			    (bend == silu_mul_bend_gelu_rounded && a->activation))
				v = rounded(a->dtype, v);
			cairn_store(a->out, a->dtype, i * a->dim + j, v * cairn_load(a->x, a->dtype, up));
		}
	return 0;
}

BENT(silu_mul, halves_swapped)
BENT(silu_mul, halves_interleaved)
BENT(silu_mul, gelu)
BENT(silu_mul, sigmoid)
BENT(silu_mul, nan_at_minus_infinity)
BENT(silu_mul, exp_overflows)
BENT(silu_mul, vanishes_early)
BENT(silu_mul, rounded_twice)
BENT(silu_mul, last_row_missing)
BENT(silu_mul, hard_silu)
BENT(silu_mul, silu_always)
BENT(silu_mul, gelu_erf)
BENT(silu_mul, gelu_quick)
BENT(silu_mul, gelu_no_cube)
BENT(silu_mul, gelu_twice)
BENT(silu_mul, gelu_rounded)
BENT(silu_mul, gelu_nan)
BENT(silu_mul, gelu_cancels)

/* ---- embedding ---- */

enum embedding_bend {
	embedding_bend_row_plus_1, embedding_bend_clamped, embedding_bend_vocab_itself_legal,
	embedding_bend_negative_not_zeroed, embedding_bend_last_8_skipped,
	embedding_bend_through_bf16, embedding_bend_scale_ignored, embedding_bend_scale_twice,
	embedding_bend_scale_rounded, embedding_bend_scale_truncated, embedding_bend_zero_scale_applied,
};

static double bent_scale(const struct cairn_embedding_args *a, double v, enum embedding_bend bend)
{
	double scale = (double)a->scale;
	uint32_t bits;
	float f;

	switch (bend) {
	case embedding_bend_scale_ignored:
		return v;
	case embedding_bend_scale_twice:
		return (float)v * a->scale * a->scale;
	case embedding_bend_scale_rounded:
		return (float)v * (float)rounded(CAIRN_BF16, scale);
	case embedding_bend_scale_truncated:
		f = (float)v * a->scale;
		memcpy(&bits, &f, sizeof(bits));
		bits &= a->dtype == CAIRN_BF16 ? 0xffff0000u : a->dtype == CAIRN_F16 ? 0xffffe000u : ~0u;
		memcpy(&f, &bits, sizeof(f));
		return f;
	default:
		return (float)v * a->scale;
	}
}

static int bent_embedding(const struct cairn_embedding_args *a, enum embedding_bend bend)
{
	CAIRN_TRY(cairn_embedding_check(a));
	for (int64_t i = 0; i < a->rows; i++) {
		int64_t id = a->ids[i], n = a->dim - (bend == embedding_bend_last_8_skipped ? 8 : 0);
		int outside = id < 0 || id >= a->vocab;

		if (bend == embedding_bend_row_plus_1 && !outside)
			id = (id + 1) % a->vocab;
		if (bend == embedding_bend_clamped ||
		    (bend == embedding_bend_vocab_itself_legal && id == a->vocab)) {
			id = id < 0 ? 0 : id >= a->vocab ? a->vocab - 1 : id;
			outside = 0;
		}
		if (bend == embedding_bend_negative_not_zeroed && id < 0)
			continue;
		for (int64_t j = 0; j < n; j++) {
			double v = outside ? 0 : cairn_load(a->table, a->dtype, id * a->dim + j);

			if (bend == embedding_bend_through_bf16)
				v = rounded(CAIRN_BF16, v);
			if (a->scale != 0)
				v = bent_scale(a, v, bend);
			else if (bend == embedding_bend_zero_scale_applied)
				v *= (double)a->scale;
			cairn_store(a->out, a->dtype, i * a->dim + j, v);
		}
	}
	return 0;
}

BENT(embedding, row_plus_1)
BENT(embedding, clamped)
BENT(embedding, vocab_itself_legal)
BENT(embedding, negative_not_zeroed)
BENT(embedding, last_8_skipped)
BENT(embedding, through_bf16)
BENT(embedding, scale_ignored)
BENT(embedding, scale_twice)
BENT(embedding, scale_rounded)
BENT(embedding, scale_truncated)
BENT(embedding, zero_scale_applied)

/* ---- argmax ---- */

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

/* ---- sample ---- */

enum sample_bend {
	sample_bend_top_p_before_top_k, sample_bend_top_p_of_whole, sample_bend_top_p_by_index,
	sample_bend_top_p_exclusive, sample_bend_k_plus_1, sample_bend_ties_dropped,
	sample_bend_ties_kept, sample_bend_ties_backwards, sample_bend_min_p_absolute,
	sample_bend_min_p_first, sample_bend_drawn_by_rank, sample_bend_offset_ignored,
	sample_bend_seed_ignored, sample_bend_half_uniform, sample_bend_other_words,
	sample_bend_temperature_ignored, sample_bend_temperature_inverted,
	sample_bend_greedy_draws, sample_bend_nan_wins, sample_bend_empty_is_0,
	sample_bend_first_32k,
};

struct ranked {
	double logit, weight;
	int32_t index;
};

static int falling(const void *pa, const void *pb)
{
	const struct ranked *a = pa, *b = pb;

	return a->logit != b->logit ? (a->logit < b->logit) - (a->logit > b->logit) : a->index - b->index;
}

static int rising(const void *pa, const void *pb)
{
	return ((const struct ranked *)pa)->index - ((const struct ranked *)pb)->index;
}

static double sum_of(const struct ranked *t, int32_t n)
{
	double sum = 0;

	for (int32_t k = 0; k < n; k++)
		sum += t[k].weight;
	return sum;
}

static int32_t cut_top_k(const struct ranked *t, int32_t n, int32_t k, enum sample_bend bend)
{
	int32_t m = k + (bend == sample_bend_k_plus_1);

	if (k <= 0 || m >= n)
		return n;
	while (bend == sample_bend_ties_kept && m < n && t[m].logit == t[m - 1].logit)
		m++;
	while (bend == sample_bend_ties_dropped && m > 1 && t[m - 1].logit == t[m].logit)
		m--;
	return m;
}

static int32_t cut_top_p(struct ranked *t, int32_t n, double top_p, double total, enum sample_bend bend)
{
	double sum = 0;
	int32_t m = 0;

	if (top_p >= 1)
		return n;
	if (bend == sample_bend_top_p_by_index)
		qsort(t, n, sizeof(*t), rising);
	while (m < n && sum < top_p * total)
		sum += t[m++].weight;
	return bend == sample_bend_top_p_exclusive && m > 1 ? m - 1 : m;
}

static int32_t cut_min_p(const struct ranked *t, int32_t n, double min_p, double total, enum sample_bend bend)
{
	int32_t m = 1;

	if (bend == sample_bend_min_p_absolute)
		min_p *= total;
	while (m < n && t[m].weight >= min_p)
		m++;
	return m < n ? m : n;
}

static double bent_uniform(uint64_t seed, uint64_t offset, enum sample_bend bend)
{
	uint32_t counter[4] = { (uint32_t)offset, (uint32_t)(offset >> 32), 0, 0 }, x[4];
	uint32_t key[2] = { (uint32_t)seed, (uint32_t)(seed >> 32) };

	if (bend == sample_bend_offset_ignored)
		counter[0] = counter[1] = 0;
	if (bend == sample_bend_seed_ignored)
		key[0] = key[1] = 0;
	cairn_philox4x32_10(counter, key, x);
	if (bend == sample_bend_other_words)
		return x[2] * 0x1p-32 + x[3] * 0x1p-64;
	return (x[0] * 0x1p-32 + x[1] * 0x1p-64) * (bend == sample_bend_half_uniform ? 0.5 : 1);
}

static int32_t bent_draw(const struct cairn_sample_args *a, int64_t row, struct ranked *t,
			 enum sample_bend bend)
{
	double temperature = a->temperature[row], top_p = a->top_p[row], min_p = a->min_p[row], total, mark,
	       run = 0;
	int32_t n = 0, top_k = a->top_k[row], vocab = a->vocab;

	if (bend == sample_bend_first_32k && vocab > 32768)
		vocab = 32768;
	for (int32_t j = 0; j < vocab; j++) {
		double v = fmin(a->logits[row * a->vocab + j],
				bend == sample_bend_nan_wins ? INFINITY : FLT_MAX);

		if (isnan(a->logits[row * a->vocab + j]))
			v = bend == sample_bend_nan_wins ? FLT_MAX : -INFINITY;
		if (v > -INFINITY)
			t[n++] = (struct ranked) { v, 0,
						   bend == sample_bend_ties_backwards ? vocab - 1 - j : j };
	}
	if (n == 0)
		return bend == sample_bend_empty_is_0 ? 0 : -1;
	qsort(t, n, sizeof(*t), falling);
	for (int32_t k = 0; bend == sample_bend_ties_backwards && k < n; k++)
		t[k].index = vocab - 1 - t[k].index;
	if (temperature == 0 && bend != sample_bend_greedy_draws)
		return t[0].index;
	if (temperature == 0 || bend == sample_bend_temperature_ignored)
		temperature = 1;
	if (bend == sample_bend_temperature_inverted)
		temperature = 1 / temperature;
	for (int32_t k = n - 1; k >= 0; k--)
		t[k].weight = exp((t[k].logit - t[0].logit) / temperature);
	if (bend == sample_bend_top_p_before_top_k)
		n = cut_top_p(t, n, top_p, sum_of(t, n), bend);
	if (bend == sample_bend_min_p_first)
		n = cut_min_p(t, n, min_p, 0, bend);
	total = sum_of(t, n);
	n = cut_top_k(t, n, top_k, bend);
	if (bend != sample_bend_top_p_of_whole)
		total = sum_of(t, n);
	if (bend != sample_bend_top_p_before_top_k)
		n = cut_top_p(t, n, top_p, total, bend);
	if (bend != sample_bend_min_p_first && bend != sample_bend_top_p_by_index)
		n = cut_min_p(t, n, min_p, sum_of(t, n), bend);
	if (bend != sample_bend_drawn_by_rank)
		qsort(t, n, sizeof(*t), rising);
	mark = bent_uniform(a->seed[row], a->offset[row], bend) * sum_of(t, n);
	for (int32_t k = 0; k < n; k++) {
		run += t[k].weight;
		if (run > mark)
			return t[k].index;
	}
	return t[n - 1].index;
}

static int bent_sample(const struct cairn_sample_args *a, enum sample_bend bend)
{
	struct ranked *t;

	CAIRN_TRY(cairn_sample_check(a));
	t = malloc((size_t)a->vocab * sizeof(*t));
	if (!t)
		return cairn_error(ENOMEM, "no memory");
	for (int64_t i = 0; i < a->rows; i++)
		a->out[i] = bent_draw(a, i, t, bend);
	free(t);
	return 0;
}

BENT(sample, top_p_before_top_k)
BENT(sample, top_p_of_whole)
BENT(sample, top_p_by_index)
BENT(sample, top_p_exclusive)
BENT(sample, k_plus_1)
BENT(sample, ties_dropped)
BENT(sample, ties_kept)
BENT(sample, ties_backwards)
BENT(sample, min_p_absolute)
BENT(sample, min_p_first)
BENT(sample, drawn_by_rank)
BENT(sample, offset_ignored)
BENT(sample, seed_ignored)
BENT(sample, half_uniform)
BENT(sample, other_words)
BENT(sample, temperature_ignored)
BENT(sample, temperature_inverted)
BENT(sample, greedy_draws)
BENT(sample, nan_wins)
BENT(sample, empty_is_0)
BENT(sample, first_32k)

#define MUTANT(family, defect, what) \
	{ #family "_" #defect, offsetof(struct cairn_impl, family), (void *)family##_##defect, what }

const struct cairn_mutant cairn_rows_mutants[] = {
	MUTANT(rmsnorm, eps_outside_root, "eps added to the root instead of under it"),
	MUTANT(rmsnorm, eps_before_mean, "eps added to the sum instead of the mean"),
	MUTANT(rmsnorm, dim_minus_1, "mean over dim - 1"),
	MUTANT(rmsnorm, mean_subtracted, "a layer norm"),
	MUTANT(rmsnorm, sum_in_f16, "squares summed in f16"),
	MUTANT(rmsnorm, residual_not_rounded, "normalises the sum before it is rounded to dtype"),
	MUTANT(rmsnorm, residual_not_written, "the new residual is not stored"),
	MUTANT(rmsnorm, squares_of_x, "the squares leave the residual out"),
	MUTANT(rmsnorm, offset_ignored, "Gemma's 1 + weight taken for Llama's weight"),
	MUTANT(rmsnorm, previous_row, "each row is scaled by its predecessor's norm"),
	MUTANT(rmsnorm, last_8_skipped, "the last vector of each row is not written"),
	MUTANT(rmsnorm, rounded_before_weight, "rounded to dtype before and after the weight"),
	MUTANT(rmsnorm, past_the_end, "writes one element past the last row"),
	MUTANT(silu_mul, halves_swapped, "gate and up swapped"),
	MUTANT(silu_mul, halves_interleaved, "gate and up taken as interleaved"),
	MUTANT(silu_mul, gelu, "the tanh approximation of GELU"),
	MUTANT(silu_mul, sigmoid, "the sigmoid without its factor"),
	MUTANT(silu_mul, hard_silu, "the piecewise linear approximation"),
	MUTANT(silu_mul, nan_at_minus_infinity, "NaN for a gate of -INFINITY"),
	MUTANT(silu_mul, exp_overflows, "exp(g) / (1 + exp(g)): NaN from 89 on"),
	MUTANT(silu_mul, vanishes_early, "0 below -88, where a large up still counts"),
	MUTANT(silu_mul, rounded_twice, "silu rounded to dtype before the product"),
	MUTANT(silu_mul, last_row_missing, "the last row is not written"),
	MUTANT(silu_mul, silu_always, "the activation is not looked at"),
	MUTANT(silu_mul, gelu_erf, "GELU itself instead of its tanh approximation"),
	MUTANT(silu_mul, gelu_quick, "the sigmoid approximation of GELU"),
	MUTANT(silu_mul, gelu_no_cube, "the cubic term is left out"),
	MUTANT(silu_mul, gelu_twice, "the activation is applied twice"),
	MUTANT(silu_mul, gelu_rounded, "gelu rounded to dtype before the product"),
	MUTANT(silu_mul, gelu_nan, "NaN for a gate of -INFINITY"),
	MUTANT(silu_mul, gelu_cancels, "1 + tanh in fp32: nothing is left below -5"),
	MUTANT(embedding, row_plus_1, "the next token's row"),
	MUTANT(embedding, clamped, "an id outside gives the nearest row"),
	MUTANT(embedding, vocab_itself_legal, "id == vocab passes the range check"),
	MUTANT(embedding, negative_not_zeroed, "rows of negative ids are left as they are"),
	MUTANT(embedding, last_8_skipped, "the last vector of each row is not written"),
	MUTANT(embedding, through_bf16, "f16 and f32 tables copied through bf16"),
	MUTANT(embedding, scale_ignored, "the scale is left out"),
	MUTANT(embedding, scale_twice, "the scale is applied twice"),
	MUTANT(embedding, scale_rounded, "the scale is rounded to bf16, whatever the caller gave"),
	MUTANT(embedding, scale_truncated, "the product is truncated, not rounded"),
	MUTANT(embedding, zero_scale_applied, "a scale of 0 multiplies"),
	MUTANT(argmax, last_of_ties, "the last of equal logits"),
	MUTANT(argmax, nan_wins, "NaN counts as the largest"),
	MUTANT(argmax, first_32k, "only the first 32768 logits"),
	MUTANT(argmax, tail_skipped, "leaves out what does not fill a vector"),
	MUTANT(argmax, zeros_differ, "-0 counts as less than 0"),
	MUTANT(argmax, all_nan_is_0, "a row of NaN gives 0"),
	MUTANT(argmax, minus_infinity_is_none, "a row of -INFINITY gives -1"),
	MUTANT(argmax, compared_in_bf16, "compares in bf16"),
	MUTANT(sample, top_p_before_top_k, "top_p before top_k"),
	MUTANT(sample, top_p_of_whole, "top_p of the whole softmax, not of the top k"),
	MUTANT(sample, top_p_by_index, "the prefix for top_p in index order"),
	MUTANT(sample, top_p_exclusive, "the token that reaches top_p is left out"),
	MUTANT(sample, k_plus_1, "one more than top_k"),
	MUTANT(sample, ties_dropped, "none of the tokens equal to the k-th stay"),
	MUTANT(sample, ties_kept, "all tokens equal to the k-th stay"),
	MUTANT(sample, ties_backwards, "of equal tokens the highest indices stay"),
	MUTANT(sample, min_p_absolute, "min_p against the sum, not the largest"),
	MUTANT(sample, min_p_first, "min_p before top_p"),
	MUTANT(sample, drawn_by_rank, "running sum in falling order, not by index"),
	MUTANT(sample, offset_ignored, "the same number for every draw"),
	MUTANT(sample, seed_ignored, "the same number for every seed"),
	MUTANT(sample, half_uniform, "numbers up to a half only"),
	MUTANT(sample, other_words, "the last two words of the generator"),
	MUTANT(sample, temperature_ignored, "temperature always 1"),
	MUTANT(sample, temperature_inverted, "logits times temperature"),
	MUTANT(sample, greedy_draws, "temperature 0 draws as if it were 1"),
	MUTANT(sample, nan_wins, "NaN counts as the largest"),
	MUTANT(sample, empty_is_0, "token 0 when nothing can be drawn"),
	MUTANT(sample, first_32k, "only the first 32768 tokens"),
	{ 0 }
};
