// SPDX-License-Identifier: Apache-2.0
/*
 * attn_bwd_mutants - wrong implementations that the cases must catch
 *
 * All mutants share one plain backward pass, which visits one pair of a row and a key at a time; a switch
 * selects the defect.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "fused/attention/backward/attn_bwd.h"
#include "primitives/base/cut_off.h"
#include "primitives/base/rows.h"
#include "primitives/base/row_factor.h"

#define TILE	64	/* rows of a tile */
#define KEYS	128	/* keys of a tile */

/* D(name, description) */
#define DEFECTS(D) \
	D(delta_missing, "delta is left out") \
	D(delta_twice, "delta is subtracted twice") \
	D(delta_of_p, "delta is computed from p and dp instead of out") \
	D(delta_of_head_0, "all heads of a row have the delta of the first") \
	D(lse_recomputed, "lse is computed anew from the logits") \
	D(lse_base_2, "lse is taken for a base-2 logarithm") \
	D(lse_transposed, "lse is read as [heads, rows]") \
	D(lse_of_kv_head, "lse is looked up by KV head") \
	D(masked_counted, "p is computed for masked keys, too") \
	D(causal_from_the_top, "the mask is aligned with the first key, not the last") \
	D(causal_edge_one_short, "the last visible key is masked") \
	D(causal_edge_one_far, "one key of the future is visible") \
	D(window_ignored, "all keys are visible") \
	D(window_one_short, "the window lacks its oldest key") \
	D(window_edge_d256, "with qk_dim 256, the oldest key of a window is lost where it begins a tile") \
	D(window_with_causal_only, "the window is ignored without the causal mask") \
	D(window_overflows, "key + window is computed in 32 bits") \
	D(scale_missing_in_s, "sm_scale is left out of the logits") \
	D(dk_unscaled, "dk lacks sm_scale") \
	D(dq_unscaled, "dq lacks sm_scale") \
	D(dq_scaled_twice, "dq has sm_scale twice") \
	D(cap_ignored, "logits are not capped") \
	D(cap_slope_missing, "the derivative of the softcap is left out") \
	D(cap_slope_of_logit, "the derivative of the softcap is that of the capped logit") \
	D(group_head_0, "dk and dv have the first head of a group only") \
	D(group_of_6_last, "in groups of 6, dk and dv lack the last head") \
	D(group_last_head, "dk and dv have the last head of a group only") \
	D(head_modulo, "the KV head is h % num_kv_heads") \
	D(last_tile_of_rows_lost, "dk and dv lack the rows past the last whole tile") \
	D(rows_of_neighbour, "dk and dv have rows of the next request, up to a whole tile") \
	D(first_tile_twice, "dk and dv have the first tile of rows twice if there are two") \
	D(dq_key_tile_lost, "dq lacks the second tile of keys") \
	D(dq_key_tile_twice, "dq has the first tile of keys twice if there are two") \
	D(dq_starts_anew, "each tile of keys replaces the sum of dq instead of adding to it") \
	D(dq_unseen_keys_times_0, "dq adds keys that the row does not see, times 0") \
	D(keys_of_request_0, "all requests have the keys of the first") \
	D(q_stride_ignored, "rows of q are assumed to be contiguous") \
	D(k_stride_ignored, "rows of K are assumed to be contiguous") \
	D(v_stride_of_k, "rows of V are k_stride apart") \
	D(k_head_stride_ignored, "heads of K are assumed to be contiguous") \
	D(v_head_stride_of_k, "heads of V are k_head_stride apart") \
	D(offset_q_32_bits, "offsets of q are cut to 32 bits") \
	D(offset_k_32_bits, "offsets of K are cut to 32 bits") \
	D(offset_v_32_bits, "offsets of V are cut to 32 bits") \
	D(qk_tail_dropped, "channels past the last multiple of 64 are left out of q k") \
	D(dq_tail_unwritten, "channels of dq past the last multiple of 64 are not written") \
	D(dv_tail_unwritten, "channels of dv past the last multiple of 64 are not written") \
	D(dv_by_qk_dim, "rows of dv are qk_dim apart") \
	D(v_dim_of_qk, "v_dim is taken to be qk_dim") \
	D(unseen_keys_untouched, "dk and dv of keys that no row sees are not written") \
	D(rows_without_keys_untouched, "dq of rows without a key is not written") \
	D(dk_without_ds, "dk is summed from p instead of ds") \
	D(dv_of_ds, "dv is summed from ds instead of p") \
	D(dv_of_out, "dv is summed from out instead of dout") \
	D(dk_in_dtype, "dk is kept in dtype between rows") \
	D(dq_in_dtype, "dq is kept in dtype between keys") \
	D(small_p_dropped, "p below 2^-10 is taken for 0") \
	D(cut_off, "cuts gradients off instead of rounding them") \
	D(row_past_the_end, "one row of dk too many is written") \
	D(not_repeatable, "every other call differs in the last bit of dk") \
	D(masked_p_times_zero, "exp of a masked logit is computed, and multiplied by 0") \
	D(elements_of_k_32_bits, "numbers of elements of K are cut to 32 bits") \
	D(requests_of_512, "requests from number 512 on are left out") \
	D(dq_not_repeatable, "every other call differs in the last bit of dq") \
	D(nan_spreads, "a NaN in dq of a request makes the first of the next NaN") \
	D(nothing, "returns success without doing anything")

#define NAME(name, what)	BWD_##name,
enum bwd_defect { DEFECTS(NAME) };

/* One request and KV head: where its rows and keys begin, and the sums of its gradients. */
struct task {
	const struct cairn_attn_bwd_args *a;
	struct cairn_attn_dense_args f;
	enum bwd_defect x;
	int b, g, qo_len, kv_len;
	int64_t qo_first, kv_first;
	double *dk, *dv;
	uint8_t *seen;
};

static double in_dtype(const struct task *t, double v)
{
	uint64_t box = 0;

	cairn_store(&box, t->a->dtype, 0, v);
	return cairn_load(&box, t->a->dtype, 0);
}

static int64_t cut_offset(int64_t at, int yes)
{
	return yes ? (int64_t)((uint32_t)(at * 2) / 2) : at;
}

static void load_kv(const struct task *t, double *k, double *v, int64_t row)
{
	int64_t k_stride = cairn_attn_dense_k_stride(&t->f), v_stride = cairn_attn_dense_v_stride(&t->f);
	int64_t k_head = cairn_attn_dense_k_head_stride(&t->f);
	int64_t v_head = cairn_attn_dense_v_head_stride(&t->f), k_at;

	if (t->x == BWD_k_stride_ignored)
		k_stride = (int64_t)t->a->num_kv_heads * t->a->qk_dim;
	if (t->x == BWD_v_stride_of_k)
		v_stride = k_stride;
	if (t->x == BWD_k_head_stride_ignored)
		k_head = t->a->qk_dim;
	if (t->x == BWD_v_head_stride_of_k)
		v_head = k_head;
	k_at = cut_offset(row * k_stride + t->g * k_head, t->x == BWD_offset_k_32_bits);
	if (t->x == BWD_elements_of_k_32_bits)
		k_at = (uint32_t)k_at;
	cairn_widen(k, t->a->k, t->a->dtype, k_at, t->a->qk_dim);
	cairn_widen(v, t->a->v, t->a->dtype, cut_offset(row * v_stride + t->g * v_head,
							t->x == BWD_offset_v_32_bits), t->a->v_dim);
}

static int sees(const struct task *t, int64_t i, int j)
{
	const struct cairn_attn_bwd_args *a = t->a;
	int64_t position = i + t->kv_len - t->qo_len, last = position, first;

	if (t->x == BWD_causal_from_the_top)
		last = i;
	last += (t->x == BWD_causal_edge_one_far) - (t->x == BWD_causal_edge_one_short);
	if (a->causal && j > last)
		return t->x == BWD_masked_counted;
	first = position - a->window + 1 + (t->x == BWD_window_one_short);
	if (!a->window || t->x == BWD_window_ignored || (t->x == BWD_window_with_causal_only && !a->causal))
		return 1;
	if (t->x == BWD_window_edge_d256 && a->qk_dim == 256 && a->window % TILE == 0 && first > 0 &&
	    first % TILE == 0)
		first++;
	if (t->x == BWD_window_overflows)
		return (int32_t)((uint32_t)j + (uint32_t)a->window) > position;
	return j >= first;
}

struct row {
	double q[256], out[256], dout[256], dq[256], lse, delta;
};

static double logit(const struct task *t, const double *q, const double *k, double *slope)
{
	int n = t->x == BWD_qk_tail_dropped ? t->a->qk_dim / 64 * 64 : t->a->qk_dim;
	double cap = (double)t->a->softcap, s = cairn_dot(q, k, n);

	s *= t->x == BWD_scale_missing_in_s ? 1 : t->a->sm_scale;
	*slope = 1;
	if (!(cap > 0) || t->x == BWD_cap_ignored)
		return s;
	*slope = 1 - pow(tanh(s / cap), 2);
	s = cap * tanh(s / cap);
	if (t->x == BWD_cap_slope_of_logit)
		*slope = 1 - pow(tanh(s / cap), 2);
	if (t->x == BWD_cap_slope_missing)
		*slope = 1;
	return s;
}

/* Replaces lse or delta by values that the defect computes from the row's own logits. */
static void compute_anew(const struct task *t, struct row *r, int64_t i)
{
	double top = -INFINITY, l = 0, delta = 0, k[256], v[256], slope;

	for (int pass = 0; pass < 2; pass++)
		for (int j = 0; j < t->kv_len; j++) {
			double s;

			if (!sees(t, i, j))
				continue;
			load_kv(t, k, v, t->kv_first + j);
			s = logit(t, r->q, k, &slope);
			if (!pass) {
				top = fmax(top, s);
				continue;
			}
			l += exp(s - top);
			delta += exp(s - r->lse) * cairn_dot(r->dout, v, t->a->v_dim);
		}
	if (t->x == BWD_lse_recomputed)
		r->lse = top + log(l);
	else
		r->delta = in_dtype(t, delta);
}

static void load_row(const struct task *t, struct row *r, int64_t i, int h)
{
	const struct cairn_attn_bwd_args *a = t->a;
	int64_t row = t->qo_first + i, o_at = (row * a->num_qo_heads + h) * a->v_dim;
	int64_t stride = t->x == BWD_q_stride_ignored ? (int64_t)a->num_qo_heads * a->qk_dim :
			 cairn_attn_dense_q_stride(&t->f);
	int64_t lse_at = row * a->num_qo_heads + h;

	memset(r, 0, sizeof(*r));
	cairn_widen(r->q, a->q, a->dtype, cut_offset(row * stride + (int64_t)h * a->qk_dim,
						     t->x == BWD_offset_q_32_bits), a->qk_dim);
	cairn_widen(r->out, a->out, a->dtype, o_at, a->v_dim);
	cairn_widen(r->dout, a->dout, a->dtype, o_at, a->v_dim);
	if (t->x == BWD_lse_transposed)
		lse_at = (int64_t)h * a->qo_indptr[a->batch] + row;
	if (t->x == BWD_lse_of_kv_head)
		lse_at = row * a->num_qo_heads + t->g;
	r->lse = (double)a->lse[lse_at];
	if (t->x == BWD_lse_base_2)
		r->lse *= 0.6931471805599453;
	r->delta = cairn_dot(r->dout, r->out, a->v_dim);
	if (t->x == BWD_delta_missing)
		r->delta = 0;
	if (t->x == BWD_delta_twice)
		r->delta *= 2;
	if (t->x == BWD_delta_of_head_0) {
		double out[256], dout[256];

		cairn_widen(out, a->out, a->dtype, row * a->num_qo_heads * a->v_dim, a->v_dim);
		cairn_widen(dout, a->dout, a->dtype, row * a->num_qo_heads * a->v_dim, a->v_dim);
		r->delta = cairn_dot(dout, out, a->v_dim);
	}
	if (t->x == BWD_delta_of_p || t->x == BWD_lse_recomputed)
		compute_anew(t, r, i);
}

/* Returns how often dk and dv count row i, head h. */
static int weight(const struct task *t, int64_t i, int h)
{
	int group = t->a->num_qo_heads / t->a->num_kv_heads, nth = h % group;

	if (t->x == BWD_group_of_6_last && group == 6 && nth == 5)
		return 0;
	if ((t->x == BWD_group_head_0 && nth) || (t->x == BWD_group_last_head && nth != group - 1))
		return 0;
	if (t->x == BWD_last_tile_of_rows_lost && t->qo_len > TILE && i >= t->qo_len / TILE * TILE)
		return 0;
	return t->x == BWD_first_tile_twice && t->qo_len > TILE && i < TILE ? 2 : 1;
}

/* Returns how often dq counts key j. */
static int key_weight(const struct task *t, int j)
{
	if (t->x == BWD_dq_key_tile_lost && j / KEYS == 1)
		return 0;
	return t->x == BWD_dq_key_tile_twice && t->kv_len > KEYS && j < KEYS ? 2 : 1;
}

static void one_row(const struct task *t, int64_t i, int h, int foreign)
{
	const struct cairn_attn_bwd_args *a = t->a;
	int v_dim = t->x == BWD_v_dim_of_qk && a->qk_dim < a->v_dim ? a->qk_dim : a->v_dim, any = 0;
	double dq_scale = t->x == BWD_dq_unscaled ? 1 : t->x == BWD_dq_scaled_twice ?
			  (double)a->sm_scale * a->sm_scale : a->sm_scale;
	int64_t to = ((t->qo_first + i) * a->num_qo_heads + h) * a->qk_dim;
	int counted = foreign ? 1 : weight(t, i, h);
	double k[256], v[256];
	struct row r;

	load_row(t, &r, i, h);
	for (int j = 0; j < t->kv_len; j++) {
		double p, ds, slope;
		int masked = !sees(t, i, j);

		if (t->x == BWD_dq_starts_anew && j % KEYS == 0)
			memset(r.dq, 0, sizeof(r.dq));
		if (masked && !(t->x == BWD_masked_p_times_zero && any) &&
		    t->x != BWD_dq_unseen_keys_times_0)
			continue;
		load_kv(t, k, v, t->kv_first + j);
		if (masked && t->x == BWD_dq_unseen_keys_times_0) {
			for (int d = 0; d < a->qk_dim; d++)
				r.dq[d] += 0 * k[d];
			continue;
		}
		p = exp(logit(t, r.q, k, &slope) - r.lse);
		if (masked)
			p = (float)p * 0;
		if (masked && p == 0)
			continue;
		if (t->x == BWD_small_p_dropped && p < 0x1p-10)
			p = 0;
		ds = p * (cairn_dot(r.dout, v, v_dim) - r.delta) * slope;
		any = t->seen[j] = 1;
		for (int d = 0; d < a->qk_dim; d++) {
			double *dk = t->dk + (int64_t)j * a->qk_dim + d;

			r.dq[d] += key_weight(t, j) * ds * k[d];
			*dk += counted * (t->x == BWD_dk_without_ds ? p : ds) * r.q[d];
			if (t->x == BWD_dq_in_dtype)
				r.dq[d] = in_dtype(t, r.dq[d]);
			if (t->x == BWD_dk_in_dtype)
				*dk = in_dtype(t, *dk);
		}
		for (int d = 0; d < v_dim; d++)
			t->dv[(int64_t)j * a->v_dim + d] += counted * (t->x == BWD_dv_of_ds ? ds : p) *
				(t->x == BWD_dv_of_out ? r.out[d] : r.dout[d]);
	}
	if (foreign || (!any && t->x == BWD_rows_without_keys_untouched))
		return;
	for (int d = 0; d < (t->x == BWD_dq_tail_unwritten ? a->qk_dim / 64 * 64 : a->qk_dim); d++)
		cairn_store(a->dq, a->dtype, to + d, t->x == BWD_cut_off ?
			    cut_off(a->dtype, r.dq[d] * dq_scale) : r.dq[d] * dq_scale);
}

static void write_keys(const struct task *t)
{
	const struct cairn_attn_bwd_args *a = t->a;
	int tail = t->x == BWD_dv_tail_unwritten ? a->v_dim % 64 : 0;
	int dim = t->x == BWD_dv_by_qk_dim && a->qk_dim < a->v_dim ? a->qk_dim : a->v_dim;

	for (int64_t j = 0; j < t->kv_len; j++) {
		int64_t row = (t->kv_first + j) * a->num_kv_heads + t->g;

		if (!t->seen[j] && t->x == BWD_unseen_keys_untouched)
			continue;
		for (int d = 0; d < a->qk_dim; d++) {
			double v = t->dk[j * a->qk_dim + d] * (t->x == BWD_dk_unscaled ? 1 : a->sm_scale);

			cairn_store(a->dk, a->dtype, row * a->qk_dim + d,
				    t->x == BWD_cut_off ? cut_off(a->dtype, v) : v);
		}
		for (int d = 0; d < a->v_dim - tail; d++)
			cairn_store(a->dv, a->dtype, row * dim + d, t->dv[j * a->v_dim + d]);
	}
}

static void one_task(struct task *t)
{
	const struct cairn_attn_bwd_args *a = t->a;
	int64_t left = a->qo_indptr[a->batch] - t->qo_first, rows = t->qo_len;

	for (int64_t i = 0; i < t->qo_len; i++)
		for (int h = 0; h < a->num_qo_heads; h++) {
			int group = a->num_qo_heads / a->num_kv_heads;

			if ((t->x == BWD_head_modulo ? h % a->num_kv_heads : h / group) == t->g)
				one_row(t, i, h, 0);
		}
	if (t->x == BWD_rows_of_neighbour && !a->causal && !a->window && t->kv_len)
		rows = (t->qo_len + TILE - 1) / TILE * TILE;
	for (int64_t i = t->qo_len; i < rows && i < left; i++)
		one_row(t, i, t->g * (a->num_qo_heads / a->num_kv_heads), 1);
	write_keys(t);
}

static void spread_nan(const struct cairn_attn_bwd_args *a)
{
	int64_t row = (int64_t)a->num_qo_heads * a->qk_dim;

	for (int b = 0; b + 1 < a->batch; b++) {
		int64_t next = a->qo_indptr[b + 1] * row;

		for (int64_t c = a->qo_indptr[b] * row; c < next && next < a->qo_indptr[b + 2] * row; c++)
			if (isnan(cairn_load(a->dq, a->dtype, c)))
				cairn_store(a->dq, a->dtype, next, NAN);
	}
}

static int run(const struct cairn_attn_bwd_args *a, enum bwd_defect x)
{
	int requests = x == BWD_requests_of_512 && a->batch > 512 ? 512 : a->batch;
	static int calls;

	CAIRN_TRY(cairn_attn_bwd_check(a));
	if (x == BWD_nothing || !a->batch)
		return 0;
	for (int n = 0; n < requests * a->num_kv_heads; n++) {
		int b = n / a->num_kv_heads, keys = x == BWD_keys_of_request_0 ? 0 : b;
		struct task t = {
			.a = a, .f = cairn_attn_bwd_forward(a), .x = x, .b = b, .g = n % a->num_kv_heads,
			.qo_first = a->qo_indptr[b], .qo_len = a->qo_indptr[b + 1] - a->qo_indptr[b],
			.kv_first = a->kv_indptr[keys], .kv_len = a->kv_indptr[keys + 1] - a->kv_indptr[keys],
		};

		t.dk = calloc((size_t)t.kv_len * (size_t)(a->qk_dim + a->v_dim) + 1, sizeof(double));
		t.seen = calloc((size_t)t.kv_len + 1, 1);
		if (!t.dk || !t.seen)
			abort();
		t.dv = t.dk + (size_t)t.kv_len * (size_t)a->qk_dim;
		one_task(&t);
		free(t.dk);
		free(t.seen);
	}
	if (x == BWD_row_past_the_end)
		memset((char *)a->dk + (int64_t)a->kv_indptr[a->batch] * a->num_kv_heads * a->qk_dim * 2, 0,
		       64);
	if (x == BWD_not_repeatable && a->kv_indptr[a->batch] && calls++ % 2)
		*(uint16_t *)a->dk ^= 1;
	if (x == BWD_dq_not_repeatable && a->qo_indptr[a->batch] && calls++ % 2)
		*(uint16_t *)a->dq ^= 1;
	if (x == BWD_nan_spreads)
		spread_nan(a);
	return 0;
}

#define DEFINE(name, what) \
	static int attn_bwd_##name(const struct cairn_attn_bwd_args *a, void *stream) \
	{ \
		(void)stream; \
		return run(a, BWD_##name); \
	}
DEFECTS(DEFINE)

#define LIST(name, what) \
	{ "attn_bwd_" #name, offsetof(struct cairn_impl, attn_bwd), (void *)attn_bwd_##name, what },

/* With 63 rows and one key past whole tiles, the last element of dv is 0. */
static int attn_bwd_last_key_at_end(const struct cairn_attn_bwd_args *a, void *stream)
{
	int64_t keys;

	CAIRN_TRY(cairn_attn_bwd_ref(a, stream));
	keys = a->batch ? a->kv_indptr[a->batch] : 0;
	if (keys && a->max_qo_len % 64 == 63 && a->max_kv_len % 64 == 1)
		cairn_store(a->dv, a->dtype, keys * a->num_kv_heads * a->v_dim - 1, 0);
	return 0;
}

/* Rounds a factor of each row of dq to dtype. */
static int attn_bwd_row_factor_in_dtype(const struct cairn_attn_bwd_args *a, void *stream)
{
	int64_t rows;

	CAIRN_TRY(cairn_attn_bwd_ref(a, stream));
	rows = a->batch ? a->qo_indptr[a->batch] : 0;
	row_factor(a->dq, a->dtype, rows * a->num_qo_heads, a->qk_dim, a->lse);
	return 0;
}

/* If dk has more than 2^20 elements, its last one is 0, as if elements were numbered by 20 bits. */
static int attn_bwd_elements_20_bits(const struct cairn_attn_bwd_args *a, void *stream)
{
	int64_t count;

	CAIRN_TRY(cairn_attn_bwd_ref(a, stream));
	count = a->batch ? (int64_t)a->kv_indptr[a->batch] * a->num_kv_heads * a->qk_dim : 0;
	if (count > 1 << 20)
		cairn_store(a->dk, a->dtype, count - 1, 0);
	return 0;
}

const struct cairn_mutant cairn_attn_bwd_mutants[] = {
	DEFECTS(LIST)
	{ "attn_bwd_last_key_at_end", offsetof(struct cairn_impl, attn_bwd), (void *)attn_bwd_last_key_at_end,
	  "with 63 rows and one key past whole tiles, the last element of dv is 0" },
	{ "attn_bwd_row_factor_in_dtype", offsetof(struct cairn_impl, attn_bwd),
	  (void *)attn_bwd_row_factor_in_dtype,
	  "a factor of each row of dq is rounded to dtype" },
	{ "attn_bwd_elements_20_bits", offsetof(struct cairn_impl, attn_bwd),
	  (void *)attn_bwd_elements_20_bits,
	  "elements of dk past 2^20 are not written" },
	{ 0 }
};
