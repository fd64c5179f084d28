// SPDX-License-Identifier: Apache-2.0
/* attn_merge_mutants - wrong versions of attn_merge, one defect each */
#include <stdlib.h>

#include "conformance/harness.h"
#include "primitives/base/bend.h"
#include "primitives/base/cut_off.h"
#include "fused/attention/merge/attn_merge.h"
#include "primitives/base/nudge.h"

/* D(name, description) */
#define DEFECTS(D) \
	D(lse_base_2, "takes lse for a base-2 logarithm") \
	D(lse_out_base_2, "writes a base-2 logarithm") \
	D(max_of_state_0, "subtracts lse of state 0 instead of the maximum") \
	D(no_max, "subtracts nothing") \
	D(sentinel, "starts the maximum at -5e4") \
	D(empty_minus_empty, "computes exp(-INFINITY - -INFINITY) if all states are empty") \
	D(empty_weighted, "gives an empty state the weight of lse 0") \
	D(weight_0_added, "adds 0 * o for a state without weight") \
	D(cut_off_missing, "reads a state below the cut-off") \
	D(cut_off_early, "drops states from exp(-40) on") \
	D(state_stride_ignored, "takes states for packed") \
	D(row_stride_ignored, "takes rows for packed") \
	D(head_stride_ignored, "takes heads for packed") \
	D(lse_stride_ignored, "takes lse for packed") \
	D(lse_transposed, "reads lse as [heads, rows]") \
	D(first_state_lost, "begins with state 1") \
	D(last_state_lost, "does not add the last state") \
	D(states_beyond_32_lost, "adds 32 states at most") \
	D(lse_out_missing, "does not write lse_out") \
	D(lse_without_ln, "writes the maximum alone") \
	D(lse_without_max, "writes ln of the sum alone") \
	D(lse_mean, "divides the sum by the number of states before ln") \
	D(not_normalised, "does not divide by the sum of weights") \
	D(mean, "divides by the number of states") \
	D(counts_ignored, "uses all states of every row") \
	D(counts_of_row_0, "uses counts[0] for all rows") \
	D(counts_not_clamped, "takes a negative count for all states") \
	D(counts_per_pair, "indexes counts by row * num_heads + head") \
	D(empty_garbage, "does not write an empty row") \
	D(empty_lse_0, "writes lse_out 0 for an empty row") \
	D(empty_lse_plus, "writes lse_out +INFINITY for an empty row") \
	D(lse_of_head_0, "uses lse of head 0 for all heads") \
	D(rounded_before_sum, "rounds each term to out_dtype") \
	D(weights_half, "rounds weights to bf16") \
	D(sum_in_out_dtype, "keeps the sum in out_dtype") \
	D(nan_ignored, "skips a state whose lse is NaN") \
	D(infinity_wins, "gives lse +INFINITY all the weight") \
	D(last_vector_missing, "does not write the last 8 elements of a head") \
	D(out_dtype_ignored, "rounds to dtype before out_dtype") \
	D(normalised_by_narrow_lse, "divides by the exponential of lse_out rounded to bf16") \
	D(in_place_too_early, "writes out before all states are read") \
	D(not_repeatable, "sums in another order in every other call") \
	D(cut_off, "cuts the result off instead of rounding it") \
	D(products_10_bits, "o is rounded to the 10 bits of TF32") \
	D(weights_10_bits, "weights are rounded to the 10 bits of TF32") \
	D(sums_10_bits, "sums of four states and more for an out of bf16 are rounded to TF32") \
	D(terms_cut_off, "each term is cut off to out_dtype") \
	D(counts_of_8_bits, "counts are kept in 8 bits") \
	D(infinity_replaces, "an infinity in o replaces what was added before it") \
	D(counts_ignored_with_gaps, "with gaps between heads, all states of every row are used") \
	D(sink_ignored, "does not add the sink") \
	D(sink_of_head_0, "adds the sink of head 0 to all heads") \
	D(sink_of_row, "indexes sinks by the row") \
	D(sink_not_in_max, "leaves the sink out of the maximum, so that its weight overflows") \
	D(sink_not_in_lse, "writes lse_out without the sink") \
	D(sink_has_lse, "adds the sink as a weight, not as a logarithm") \
	D(sink_needs_counts, "adds the sink only to rows that use all states") \
	D(sink_needs_state, "does not add the sink to an empty row") \
	D(sink_not_a_number_ignored, "skips a sink that is NaN or +INFINITY") \
	D(lse_stride_ignored_f16, "with f16 states, lse is taken for packed") \
	D(states_17_as_16, "of 17 states the last is not added") \
	D(in_place_state_0_lost, "in place, state 0 is not added") \
	D(heads_3_as_4, "with three heads, lse is read as that of four") \
	D(zero_sign_lost, "a state that alone has weight is added to +0, which loses the sign of -0") \
	D(one_state_copied, "copies a state that is used alone, whatever its lse is") \
	D(infinity_of_low_weight, "an infinity in a state of a weight below 2^-20 is skipped") \
	D(own_ignored, "does not add the own key") \
	D(own_needs_counts, "adds the own key only to rows that use all states") \
	D(own_needs_state, "does not add the own key to an empty row") \
	D(own_kv_head_in_turn, "takes head h % num_kv_heads of k and v") \
	D(own_kv_head_0, "takes head 0 of k and v") \
	D(own_scale_ignored, "leaves out sm_scale") \
	D(own_cap_ignored, "leaves out the softcap") \
	D(own_cap_not_multiplied, "does not multiply the tanh by the softcap") \
	D(own_cap_before_scale, "caps q.k before sm_scale") \
	D(own_not_in_max, "leaves the own key out of the maximum, so that its weight overflows") \
	D(own_not_in_lse, "writes lse_out without the own key") \
	D(own_q_stride_ignored, "takes rows of q for packed") \
	D(own_kv_stride_ignored, "takes rows of k and v for packed") \
	D(own_of_row_0, "takes k and v of row 0") \
	D(own_v_is_k, "adds k instead of v") \
	D(own_weight_0_added, "adds 0 * v for an own key without weight") \
	D(own_not_a_number_ignored, "skips an own key whose lse is NaN or +INFINITY") \
	D(own_logit_half, "rounds the own key's lse to bf16") \
	D(own_logit_10_bits, "rounds the own key's lse to the 10 bits of TF32") \
	D(own_last_vector_missing, "leaves the last 8 elements out of q.k") \
	D(nothing, "returns success without doing anything")

#define NAME(name, what)	attn_merge_bend_##name,
enum attn_merge_bend { DEFECTS(NAME) };

#define IS(name)	(bend == attn_merge_bend_##name)

/* Returns v with 11 significant bits, as TF32 has. */
static double ten_bits(double v)
{
	uint64_t box = 0;

	cairn_store(&box, CAIRN_F32, 0, v);
	box = (box + 0x1000) & ~0x1fffull;
	return isfinite(v) ? cairn_load(&box, CAIRN_F32, 0) : v;
}

/* The states that take part in the merge, and their weights. */
struct terms {
	int n;
	int state[CAIRN_ATTN_MERGE_STATES];
	double weight[CAIRN_ATTN_MERGE_STATES], sum, max;
	double sink;		/* its weight, which is in sum */
	double own;		/* the own key's weight, which is in sum */
	int has_own;
};

/* Returns the element of k and v at which the own key of a row and head begins. */
static int64_t own_at(const struct cairn_attn_merge_args *a, int64_t pair, enum attn_merge_bend bend)
{
	int64_t row = IS(own_of_row_0) ? 0 : pair / a->num_heads, head = pair % a->num_heads;
	int64_t stride = IS(own_kv_stride_ignored) ? (int64_t)a->num_kv_heads * a->head_dim : a->kv_stride;

	head = IS(own_kv_head_0) ? 0 : IS(own_kv_head_in_turn) ? head % a->num_kv_heads :
	       head / (a->num_heads / a->num_kv_heads);
	return row * stride + head * a->head_dim;
}

/* Returns the lse of the own key of a row and head, or -INFINITY. used: states of the row. */
static double own_lse(const struct cairn_attn_merge_args *a, int64_t pair, int used,
		      enum attn_merge_bend bend)
{
	int64_t stride = IS(own_q_stride_ignored) ? (int64_t)a->num_heads * a->head_dim : a->q_stride;
	int64_t q = pair / a->num_heads * stride + pair % a->num_heads * a->head_dim;
	double x = 0, cap = (double)a->softcap;

	if (!a->q || IS(own_ignored) || (IS(own_needs_counts) && used < a->num_states))
		return -INFINITY;
	for (int c = 0; c < a->head_dim - (IS(own_last_vector_missing) ? 8 : 0); c++)
		x += cairn_load(a->q, a->dtype, q + c) *
		     cairn_load(a->k, a->dtype, own_at(a, pair, bend) + c);
	if (cap > 0 && IS(own_cap_before_scale))
		x = cap * tanh(x / cap);
	x *= IS(own_scale_ignored) ? 1 : (double)a->sm_scale;
	if (cap > 0 && !IS(own_cap_ignored) && !IS(own_cap_before_scale))
		x = (IS(own_cap_not_multiplied) ? 1 : cap) * tanh(x / cap);
	if (IS(own_logit_half))
		x = rounded(CAIRN_BF16, x);
	if (IS(own_logit_10_bits))
		x = ten_bits(x);
	return IS(own_not_a_number_ignored) && !(x < INFINITY) ? -INFINITY : (float)x;
}

static void add_own(struct terms *t, double own, enum attn_merge_bend bend)
{
	double d = (float)(own - t->max);

	if (isnan(t->max) || own == -INFINITY || (IS(own_needs_state) && !t->n) ||
	    (d < (double)CAIRN_ATTN_MERGE_CUTOFF && !IS(own_weight_0_added)))
		return;
	t->has_own = 1;
	t->own = (float)exp(d);
	t->sum = (float)(t->sum + t->own);
}

/* Returns the sink of a row and head, or -INFINITY. used: states of the row. */
static double sink_of(const struct cairn_attn_merge_args *a, int64_t pair, int used,
		      enum attn_merge_bend bend)
{
	int64_t at = IS(sink_of_head_0) ? 0 : IS(sink_of_row) ? pair / a->num_heads % a->num_heads :
		     pair % a->num_heads;

	if (!a->sink || IS(sink_ignored) || (IS(sink_needs_counts) && used < a->num_states) ||
	    (IS(sink_not_a_number_ignored) && !(a->sink[at] < INFINITY)))
		return -INFINITY;
	return (double)a->sink[at];
}

static void add_sink(struct terms *t, double sink, enum attn_merge_bend bend)
{
	double d = (float)(sink - t->max);

	if (isnan(t->max) || sink == -INFINITY || d < (double)CAIRN_ATTN_MERGE_CUTOFF ||
	    (IS(sink_needs_state) && !t->n))
		return;
	t->sink = IS(sink_has_lse) ? fmax(sink, 0) : (float)exp(d);
	t->sum = (float)(t->sum + t->sink);
}

static int used_states(const struct cairn_attn_merge_args *a, int64_t pair, enum attn_merge_bend bend)
{
	int64_t row = pair / a->num_heads;
	int used = a->num_states;
	int gaps = a->head_stride > a->head_dim && a->row_stride > a->head_stride;

	if (a->counts && !IS(counts_ignored) && !(IS(counts_ignored_with_gaps) && gaps)) {
		if (IS(counts_of_row_0))
			row = 0;
		if (IS(counts_per_pair))
			row = pair % a->rows;
		used = a->counts[row] < used ? a->counts[row] : used;
		if (IS(counts_of_8_bits) && a->counts[row] >= 0)
			used = a->counts[row] & 0xff;
		if (used > a->num_states)
			used = a->num_states;
		if (used < 0)
			used = IS(counts_not_clamped) ? a->num_states : 0;
	}
	used -= IS(last_state_lost) || (IS(states_17_as_16) && used == 17);
	return IS(states_beyond_32_lost) && used > 32 ? 32 : used;
}

static void weigh(const struct cairn_attn_merge_args *a, int64_t pair, enum attn_merge_bend bend,
		  struct terms *t)
{
	int64_t at = IS(lse_of_head_0) ? pair / a->num_heads * a->num_heads :
		     IS(lse_transposed) ? pair % a->num_heads * a->rows + pair / a->num_heads : pair;
	int packed = IS(lse_stride_ignored) || (IS(lse_stride_ignored_f16) && a->dtype == CAIRN_F16);
	int64_t stride = packed ? (int64_t)a->rows * a->num_heads : a->lse_stride;
	int used = used_states(a, pair, bend);
	double sink = sink_of(a, pair, used, bend), own = own_lse(a, pair, used, bend);

	if (IS(heads_3_as_4) && a->num_heads == 3)
		at = (pair / 3 * 4 + pair % 3) % ((int64_t)a->rows * 3);
	memset(t, 0, sizeof(*t));
	t->max = IS(sentinel) ? -5e4 : -INFINITY;
	if (!(sink <= t->max) && !IS(sink_not_in_max))
		t->max = sink;
	if (!(own <= t->max) && !isnan(t->max) && !IS(own_not_in_max))
		t->max = own;
	for (int s = 0; s < used; s++) {
		double lse = a->lse[s * stride + at];

		if (IS(empty_weighted) && lse == -INFINITY)
			lse = 0;
		if (!(lse <= t->max) && !(IS(nan_ignored) && isnan(lse)) && !isnan(t->max))
			t->max = lse;
	}
	if (IS(max_of_state_0) && used > 0)
		t->max = a->lse[at];
	if (IS(no_max) && t->max > -INFINITY)
		t->max = 0;
	for (int s = (IS(first_state_lost) || (IS(in_place_state_0_lost) && a->out == a->o)) && used > 1;
	     s < used; s++) {
		double lse = a->lse[s * stride + at], d, w;

		if (IS(empty_weighted) && lse == -INFINITY)
			lse = 0;
		if (IS(nan_ignored) && isnan(lse))
			continue;
		d = (float)(lse - t->max);
		if ((IS(infinity_wins) && lse == INFINITY) || (IS(one_state_copied) && used == 1))
			d = 0;
		if (t->max == -INFINITY && !IS(empty_minus_empty))
			continue;
		if (d < (IS(cut_off_early) ? -40 : IS(cut_off_missing) && lse > -INFINITY ? -1e30 :
			 IS(weight_0_added) ? -INFINITY : (double)CAIRN_ATTN_MERGE_CUTOFF))
			continue;
		w = (float)(IS(lse_base_2) ? exp2(d) : exp(d));
		if (IS(weights_10_bits))
			w = ten_bits(w);
		if (IS(weights_half))
			w = rounded(CAIRN_BF16, w);
		t->state[t->n] = s;
		t->weight[t->n++] = w;
		t->sum = (float)(t->sum + w);
	}
	add_own(t, own, bend);
	add_sink(t, sink, bend);
}

static void write_lse(const struct cairn_attn_merge_args *a, int64_t pair, const struct terms *t,
		      enum attn_merge_bend bend)
{
	double sum = IS(sink_not_in_lse) ? t->sum - t->sink : IS(own_not_in_lse) ? t->sum - t->own : t->sum;
	double lse = t->sum > 0 || isnan(t->sum) ?
			     (IS(lse_without_max) ? 0 : t->max) + (IS(lse_without_ln) ? 0 : log(sum)) :
			     -INFINITY;

	if (!a->lse_out || IS(lse_out_missing))
		return;
	if (IS(lse_mean) && t->n)
		lse -= log(t->n);
	if (IS(lse_out_base_2))
		lse *= 1.4426950408889634;
	if (!t->n && (IS(empty_lse_0) || IS(empty_lse_plus)))
		lse = IS(empty_lse_0) ? 0 : INFINITY;
	a->lse_out[pair] = (float)lse;
}

static void merge(const struct cairn_attn_merge_args *a, int64_t pair, int call, enum attn_merge_bend bend)
{
	int64_t row = pair / a->num_heads, head = pair % a->num_heads;
	int64_t head_stride = IS(head_stride_ignored) ? a->head_dim : a->head_stride;
	int64_t row_stride = IS(row_stride_ignored) ? a->num_heads * head_stride : a->row_stride;
	int64_t state_stride = IS(state_stride_ignored) ? a->rows * row_stride : a->state_stride;
	int64_t out_at = pair * a->head_dim;
	struct terms t;

	weigh(a, pair, bend, &t);
	if (!t.n && !t.has_own && IS(empty_garbage))
		return;
	for (int c = 0; c < a->head_dim - (IS(last_vector_missing) ? 8 : 0); c++) {
		double scale = IS(not_normalised) ? 1 : IS(mean) ? t.n : t.sum;
		double sum = IS(zero_sign_lost) ? 0.0 : -0.0;

		for (int k = 0; k < t.n; k++) {
			int i = IS(not_repeatable) && call % 2 ? t.n - 1 - k : k;
			double x = cairn_load(a->o, a->dtype, t.state[i] * state_stride + row * row_stride +
					      head * head_stride + c);

			if (IS(infinity_of_low_weight) && isinf(x) && t.weight[i] < 0x1p-20)
				continue;
			x = (IS(products_10_bits) ? ten_bits(x) : x) * t.weight[i];
			if (IS(terms_cut_off))
				x = cut_off(a->out_dtype, x);

			if (IS(rounded_before_sum))
				x = rounded(a->out_dtype, x);
			sum = IS(infinity_replaces) && isinf(x) ? x : (float)(sum + x);
			if (IS(sums_10_bits) && a->out_dtype == CAIRN_BF16 && t.n > 3)
				sum = ten_bits(sum);
			if (IS(sum_in_out_dtype))
				sum = rounded(a->out_dtype, sum);
			if (IS(in_place_too_early))
				cairn_store(a->out, a->out_dtype, out_at + (c + 8) % a->head_dim, sum);
		}
		if (t.has_own)
			sum = (float)(sum + t.own * cairn_load(IS(own_v_is_k) ? a->k : a->v, a->dtype,
							       own_at(a, pair, bend) + c));
		sum = isnan(t.sum) ? t.sum : t.n || t.has_own ? sum / scale : 0;
		if (IS(normalised_by_narrow_lse) && t.n)
			sum *= exp(t.max + log(t.sum) - rounded(CAIRN_BF16, t.max + log(t.sum)));
		if (IS(out_dtype_ignored))
			sum = rounded(a->dtype, sum);
		if (IS(cut_off))
			sum = cut_off(a->out_dtype, sum);
		cairn_store(a->out, a->out_dtype, out_at + c, sum);
	}
	write_lse(a, pair, &t, bend);
}

static int bent_attn_merge(const struct cairn_attn_merge_args *args, enum attn_merge_bend bend)
{
	static int calls;
	struct cairn_attn_merge_args a;

	CAIRN_TRY(cairn_attn_merge_check(args));
	a = cairn_attn_merge_strides(args);
	if (IS(nothing))
		return 0;
	for (int64_t pair = 0; pair < (int64_t)a.rows * a.num_heads; pair++)
		merge(&a, pair, calls, bend);
	calls++;
	return 0;
}

#define DEFINE(name, what)	BENT(attn_merge, name)
DEFECTS(DEFINE)

#define LIST(name, what)	MUTANT(attn_merge, name, what),

static int attn_merge_few_rows(const struct cairn_attn_merge_args *a, void *stream)
{
	CAIRN_TRY(cairn_attn_merge_ref(a, stream));
	if (a->lse_out && !a->counts && a->num_states > 2 && a->rows > 0 && a->rows < 3)
		nudge(a->lse_out, (int64_t)a->rows * a->num_heads);
	return 0;
}

static int attn_merge_far_stride_32_bits(const struct cairn_attn_merge_args *args, void *stream)
{
	struct cairn_attn_merge_args a;

	CAIRN_TRY(cairn_attn_merge_check(args));
	a = cairn_attn_merge_strides(args);
	if ((uint64_t)(a.num_states - 1) * (uint64_t)a.state_stride * cairn_dtype_bytes(a.dtype) >> 32)
		a.state_stride %= 1 << 30;
	return cairn_attn_merge_ref(&a, stream);
}

static int attn_merge_far_elements_32_bits(const struct cairn_attn_merge_args *args, void *stream)
{
	struct cairn_attn_merge_args a;

	CAIRN_TRY(cairn_attn_merge_check(args));
	a = cairn_attn_merge_strides(args);
	if ((uint64_t)(a.num_states - 1) * (uint64_t)a.state_stride >> 32)
		a.state_stride %= 1 << 30;
	return cairn_attn_merge_ref(&a, stream);
}

/* With more than eight states, treats a count beyond num_states as num_states - 1. */
static int attn_merge_beyond_is_last(const struct cairn_attn_merge_args *a, void *stream)
{
	struct cairn_attn_merge_args other = *a;
	int32_t *counts;
	int ret;

	CAIRN_TRY(cairn_attn_merge_check(a));
	if (!a->counts || a->num_states <= 8)
		return cairn_attn_merge_ref(a, stream);
	counts = malloc(((size_t)a->rows + 1) * sizeof(*counts));
	if (!counts)
		return -ENOMEM;
	for (int32_t i = 0; i < a->rows; i++)
		counts[i] = a->counts[i] > a->num_states ? a->num_states - 1 : a->counts[i];
	other.size = sizeof(other);
	other.counts = counts;
	ret = cairn_attn_merge_ref(&other, stream);
	free(counts);
	return ret;
}

static int attn_merge_rows_16_bits(const struct cairn_attn_merge_args *a, void *stream)
{
	struct cairn_attn_merge_args other;

	CAIRN_TRY(cairn_attn_merge_check(a));
	other = cairn_attn_merge_strides(a);
	other.rows &= 0xffff;
	return cairn_attn_merge_ref(&other, stream);
}

/* Strides of 0 are computed as if heads had no gaps. */
static int attn_merge_rows_without_gaps(const struct cairn_attn_merge_args *args, void *stream)
{
	struct cairn_attn_merge_args a;

	CAIRN_TRY(cairn_attn_merge_check(args));
	a = cairn_attn_merge_strides(args);
	if (!args->row_stride)
		a.row_stride = (int64_t)a.num_heads * a.head_dim;
	return cairn_attn_merge_ref(&a, stream);
}

static int attn_merge_states_without_gaps(const struct cairn_attn_merge_args *args, void *stream)
{
	struct cairn_attn_merge_args a;

	CAIRN_TRY(cairn_attn_merge_check(args));
	a = cairn_attn_merge_strides(args);
	if (!args->state_stride)
		a.state_stride = (int64_t)a.rows * a.num_heads * a.head_dim;
	return cairn_attn_merge_ref(&a, stream);
}

/*
 * Merges several states a second time if lse_out is lse and there are more than 128 rows and heads, as a CTA
 * would that reads state 0 after another CTA has overwritten it with the result.
 */
static int attn_merge_in_place_128(const struct cairn_attn_merge_args *a, void *stream)
{
	CAIRN_TRY(cairn_attn_merge_ref(a, stream));
	if (a->lse_out != a->lse || a->num_states < 2 || (int64_t)a->rows * a->num_heads <= 128)
		return 0;
	return cairn_attn_merge_ref(a, stream);
}

/* With 17 states and 7 heads, the last element of out is 0. */
static int attn_merge_corner_of_17_states(const struct cairn_attn_merge_args *a, void *stream)
{
	CAIRN_TRY(cairn_attn_merge_ref(a, stream));
	if (a->num_states == 17 && a->num_heads == 7 && a->rows)
		cairn_store(a->out, a->out_dtype, (int64_t)a->rows * 7 * a->head_dim - 1, 0);
	return 0;
}

const struct cairn_mutant cairn_attn_merge_mutants[] = {
	DEFECTS(LIST)
	MUTANT(attn_merge, far_stride_32_bits, "the offset of a state is cut to 32 bits"),
	MUTANT(attn_merge, far_elements_32_bits, "the number of a state's first element is cut to 32 bits"),
	MUTANT(attn_merge, beyond_is_last, "of more than 8 states, a count beyond them loses the last"),
	MUTANT(attn_merge, few_rows, "gives other bits if there are fewer than 3 rows"),
	MUTANT(attn_merge, rows_without_gaps, "takes row_stride 0 for num_heads * head_dim"),
	MUTANT(attn_merge, states_without_gaps, "takes state_stride 0 for rows * num_heads * head_dim"),
	MUTANT(attn_merge, in_place_128, "in place, more than 128 rows and heads are merged twice"),
	MUTANT(attn_merge, rows_16_bits, "cuts the number of rows to 16 bits"),
	{ "attn_merge_corner_of_17_states", offsetof(struct cairn_impl, attn_merge),
	  (void *)attn_merge_corner_of_17_states,
	  "with 17 states and 7 heads, the last element is 0" },
	{ 0 }
};
