// SPDX-License-Identifier: Apache-2.0
/*
 * cluster_mla - wrong implementations that the cases must catch
 *
 * All mutants share one plain chain; a switch selects the defect. The defects include those of
 * ClusterFusion's public MLA kernels: the rope part missing from the score, the wrong partner in a rotation,
 * the append, sums in 16 bits, a vector overwritten while it is still read, a merge that starts from 0, a
 * schedule correct for one cluster size only.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "fused/latent/cluster_mla.h"
#include "primitives/base/cut_off.h"
#include "primitives/base/rows.h"
#include "fused/cache/kv_cut.h"

#define RANK	512
#define ROPE	64
#define WIDTH	(RANK + ROPE)
#define Q_DIM	192

#define DEFECTS(D) \
	D(rope_missing_from_score, "only the latent part of a key enters the score") \
	D(rope_partner_in_c, "the partner in r's rotation is read without + kv_lora_rank, from c") \
	D(rope_in_halves, "the rotation pairs element p with p + 32") \
	D(rope_of_k_missing, "r is not rotated") \
	D(rope_of_q_missing, "q is not rotated") \
	D(rope_by_length, "the rotation is by kv_len - 1 instead of positions") \
	D(not_appended, "the new key is used, but not written to the cache") \
	D(appended_late, "the last key is read from its slot before it is written") \
	D(appended_before_norm, "c is cached before its norm") \
	D(appended_unrotated, "r is cached before its rotation") \
	D(appended_to_next_slot, "the new key is written one slot late") \
	D(length_one_short, "the new token does not see itself") \
	D(length_whole_page, "last_page_len is ignored") \
	D(length_of_request_0, "all requests have the length of the first") \
	D(page_table_identity, "page ids are assumed to be in order") \
	D(norm_of_x_missing, "x is projected without its norm") \
	D(norm_of_c_missing, "c is used and appended without its norm") \
	D(norm_over_width, "the norm of c is computed over c and r") \
	D(q_norm_missing, "the compressed q is used without its norm") \
	D(q_norm_weight_missing, "the norm of the compressed q lacks its weights") \
	D(eps_missing, "no eps under the root") \
	D(sums_in_dtype, "the weighted sum of c is kept in dtype") \
	D(absorption_transposed, "the nope rows of w_kv_b are read as [kv_lora_rank, nope_dim]") \
	D(values_from_nope_rows, "v comes from the first rows of a head of w_kv_b") \
	D(head_stride_of_q, "heads of q are assumed to be nope_dim apart") \
	D(head_stride_of_kv_b, "heads of w_kv_b are assumed to be nope_dim rows apart") \
	D(q_overwritten, \
	  "q is overwritten by the first part of ql while the rest is still computed from it") \
	D(o_overwritten, "the latent sum is overwritten by v while the rest of v is still computed from it") \
	D(scale_missing, "sm_scale is not applied") \
	D(scale_without_rope, "sm_scale is applied only to the latent part") \
	D(merge_from_zero, "the merge of the parts starts with a maximum of 0") \
	D(no_maximum, "exp of the logits, without subtracting their maximum") \
	D(last_part_lost, "with a cluster of more than one, the last key's part is not merged") \
	D(cluster_of_4_assumed, "the shares of the keys are those of 4 ranks, whatever the cluster size") \
	D(residual_missing, "x is not added") \
	D(residual_zeroed, "out is zeroed before x is read, but out may alias x") \
	D(rows_past_8, "requests past the eighth are not computed") \
	D(q_of_request_0, "all requests use the q of the first") \
	D(last_head_missing, "the last head does not contribute to out") \
	D(x_written, "the input is normalised in place") \
	D(not_repeatable, "every other call differs in the last bit") \
	D(cut_off, "cuts the result off instead of rounding it") \
	D(eps_at_least, "eps is at least 1e-9") \
	D(eps_at_least_1e_30, "eps is at least 1e-30") \
	D(eps_1e6, "eps is always 1e-6") \
	D(page_48_as_32, "pages of 48 are addressed as pages of 32") \
	D(page_128_as_64, "pages of 128 are addressed as pages of 64") \
	D(position_16_bits, "positions are kept in 16 bits") \
	D(mean_of_a, "a is cut off instead of rounded") \
	D(rows_past_8_offchip, "off chip, requests past the eighth are not computed") \
	D(residual_lost_cluster_5, "with clusters of five, in place, x is not added") \
	D(sums_10_bits_of_q, "the products with w_q are summed with the 10 bits of TF32") \
	D(sums_10_bits_of_c, "the products with w_kv_a are summed with the 10 bits of TF32") \
	D(sums_10_bits_of_ql, "ql is summed with the 10 bits of TF32") \
	D(sums_10_bits_of_qk, "the latent part of a logit is summed with the 10 bits of TF32") \
	D(sums_10_bits_of_a, "a is summed with the 10 bits of TF32") \
	D(nan_spreads, "a NaN in a request makes the out of the next request NaN") \
	D(cosine_in_dtype, "cosines and sines are rounded to dtype") \
	D(rotated_cut_off, "r is cut off after the rotation instead of rounded") \
	D(q_cut_off, "q is cut off instead of rounded") \
	D(p_cut_off, "P is cut off instead of rounded") \
	D(maximum_rises_by_60, "the running maximum rises by 60 or more only: P overflows f16") \
	D(scale_in_dtype, "sm_scale is rounded to dtype") \
	D(small_p_left_out, "keys whose P is below 1e-3 are left out") \
	D(whole_tiles_short, "with a multiple of 256 keys the last 32 are left out") \
	D(last_tile_of_one, "with one key more than a multiple of 128 the oldest key is left out") \
	D(page_without_key, "a request whose page has no key yet appends to the page's first slot") \
	D(one_request_max_len, "a single request has kv.max_len keys") \
	D(no_key_refused, "a kv.max_len of 0 is refused") \
	D(rank_past_2048, "the compressed q past its first 2048 elements is not computed") \
	D(hidden_past_8192, "columns of out past the first 8192 are not computed") \
	D(rounded_before_residual, "a w_o^T is rounded to dtype before x is added") \
	D(norm_weight_kept, "norm_weight is read again only if its address changes") \
	D(scaled_by_the_batch, "activations are scaled by what the whole batch holds") \
	D(nothing, "returns success without doing anything")

#define NAME(name, what)	MLA_##name,
enum defect { DEFECTS(NAME) };

static double rounded(double v, int dtype)
{
	uint64_t box = 0;

	cairn_store(&box, dtype, 0, v);
	return cairn_load(&box, dtype, 0);
}

/* Returns the dot product. If narrow is 1, the sum is truncated to TF32 after every 16 products. */
static double dot_of(const double *x, const double *y, int n, int narrow)
{
	double sum = 0;

	if (!narrow)
		return cairn_dot(x, y, n);
	for (int i = 0; i < n; i += 16)
		sum = tf32(sum + cairn_dot(x + i, y + i, 16));
	return sum;
}

static double dot(const double *x, const void *w, int dtype, int64_t at, int k, int narrow)
{
	double sum = 0, part[256];
	int step = narrow ? 16 : 256;

	for (int i = 0; i < k; i += step) {
		int n = k - i < step ? k - i : step;

		cairn_widen(part, w, dtype, at + i, n);
		sum += cairn_dot(x + i, part, n);
		sum = narrow ? tf32(sum) : sum;
	}
	return sum;
}

/* Computes a projection. cut: truncates the results instead of rounding them. */
static void project(double *out, const double *in, const void *w, int dtype, int n, int k, int narrow,
		    int cut)
{
	for (int i = 0; i < n; i++) {
		double v = dot(in, w, dtype, (int64_t)i * k, k, narrow);

		out[i] = cut ? cut_off(dtype, v) : rounded(v, dtype);
	}
}

static void norm(double *x, const void *weight, int dtype, int n, int over, double eps)
{
	double sum = 0;

	for (int i = 0; i < over; i++)
		sum += x[i] * x[i];
	for (int i = 0; i < n; i++)
		x[i] = rounded(x[i] / sqrt(sum / over + eps) * (weight ? cairn_load(weight, dtype, i) : 1),
			       dtype);
}

/* Rotates x. c: the array from which a kernel that forgets the offset reads the partner; NULL: x itself. */
static void rotate(const struct cairn_cluster_mla_args *a, double *x, int position, const double *c,
		   enum defect d)
{
	double old[ROPE];

	memcpy(old, x, sizeof(old));
	for (int p = 0; p < ROPE / 2; p++) {
		int i = d == MLA_rope_in_halves ? p : 2 * p,
		    k = d == MLA_rope_in_halves ? p + ROPE / 2 : 2 * p + 1;
		float angle = (float)position * a->inv_freq[p];
		double cosine = cos((double)angle), sine = sin((double)angle), partner = c ? c[k] : old[k];

		if (d == MLA_cosine_in_dtype) {
			cosine = rounded(cosine, a->dtype);
			sine = rounded(sine, a->dtype);
		}
		x[i] = old[i] * cosine - partner * sine;
		x[k] = old[k] * cosine + (c ? c[i] : old[i]) * sine;
		x[i] = d == MLA_rotated_cut_off ? cut_off(a->dtype, x[i]) : rounded(x[i], a->dtype);
		x[k] = d == MLA_rotated_cut_off ? cut_off(a->dtype, x[k]) : rounded(x[k], a->dtype);
	}
}

struct request {
	double n[16384], cq[4096], q[128 * Q_DIM], kv[WIDTH], appended[WIDTH], v[16384];
	int pages, len;		/* len: keys in the attention */
};

static int64_t key_at(const struct cairn_cluster_mla_args *a, int b, int j, enum defect d)
{
	int pages = a->kv.indptr[b + 1] - a->kv.indptr[b], size = a->kv.page_size, nth;
	int64_t page;

	if (d == MLA_page_48_as_32 && size == 48)
		size = 32;
	if (d == MLA_page_128_as_64 && size == 128)
		size = 64;
	nth = j / size;

	nth = a->kv.indptr[b] + (nth < pages ? nth : pages - 1);
	page = d == MLA_page_table_identity ? nth : a->kv.indices[nth];
	return (page * size + j % size) * WIDTH;
}

/* Returns a copy of norm_weight, which is updated only if its address or size changes. */
static const void *kept(const struct cairn_cluster_mla_args *a)
{
	static uint16_t copy[16384];
	static const void *from;
	static int hidden;

	if (from != a->norm_weight || hidden != a->hidden)
		memcpy(copy, a->norm_weight, (size_t)a->hidden * 2);
	from = a->norm_weight;
	hidden = a->hidden;
	return copy;
}

/* Computes everything up to the new key and the rotated q. */
static void prepare(const struct cairn_cluster_mla_args *a, int b, int last, struct request *r, enum defect d)
{
	int lora = a->q_lora_rank, nq = a->num_heads * Q_DIM;
	int position = d == MLA_rope_by_length ? last : a->positions[b];
	double eps = d == MLA_eps_missing ? 0 : d == MLA_eps_1e6 ? 1e-6 :
		     d == MLA_eps_at_least ? fmax(1e-9, a->eps) :
		     d == MLA_eps_at_least_1e_30 ? fmax(1e-30, a->eps) : a->eps, c[RANK];

	if (d == MLA_position_16_bits)
		position &= 0xffff;

	for (int i = 0; i < a->hidden; i++)
		r->n[i] = cairn_load(a->x, a->dtype, (int64_t)b * a->hidden + i);
	if (d != MLA_norm_of_x_missing)
		norm(r->n, d == MLA_norm_weight_kept ? kept(a) : a->norm_weight, a->dtype, a->hidden,
		     a->hidden, eps);
	if (lora)
		project(r->cq, r->n, a->w_q_a, a->dtype, lora, a->hidden, 0, 0);
	for (int i = 2048; i < lora && d == MLA_rank_past_2048; i++)
		r->cq[i] = 0;
	if (lora && d != MLA_q_norm_missing)
		norm(r->cq, d == MLA_q_norm_weight_missing ? NULL : a->q_norm, a->dtype, lora, lora, eps);
	if (d != MLA_q_of_request_0 || b == 0) {
		project(r->q, lora ? r->cq : r->n, a->w_q, a->dtype, nq, lora ? lora : a->hidden,
			d == MLA_sums_10_bits_of_q, d == MLA_q_cut_off);
		for (int h = 0; h < a->num_heads && d != MLA_rope_of_q_missing; h++)
			rotate(a, r->q + h * Q_DIM + 128, position, NULL, d);
	}
	project(r->kv, r->n, a->w_kv_a, a->dtype, WIDTH, a->hidden, d == MLA_sums_10_bits_of_c, 0);
	memcpy(r->appended, r->kv, sizeof(r->kv));
	memcpy(c, r->kv, sizeof(c));
	if (d != MLA_norm_of_c_missing)
		norm(r->kv, a->kv_norm, a->dtype, RANK, d == MLA_norm_over_width ? WIDTH : RANK, eps);
	if (d != MLA_rope_of_k_missing)
		rotate(a, r->kv + RANK, position, d == MLA_rope_partner_in_c ? c : NULL, d);
	if (d != MLA_appended_before_norm)
		memcpy(r->appended, r->kv, RANK * sizeof(double));
	if (d != MLA_appended_unrotated)
		memcpy(r->appended + RANK, r->kv + RANK, ROPE * sizeof(double));
}

static int skipped(const struct cairn_cluster_mla_args *a, int j, int len, enum defect d)
{
	int share = (len + 3) / 4;

	if (d == MLA_whole_tiles_short)
		return len % 256 == 0 && j >= len - 32;
	if (d == MLA_last_tile_of_one)
		return len > 128 && len % 128 == 1 && j == 0;
	if (d == MLA_last_part_lost && a->cluster_size > 1)
		return j == len - 1;
	/* ranks past the fourth have no share; with fewer than 4 ranks, some shares belong to no rank */
	return d == MLA_cluster_of_4_assumed && a->cluster_size && j / share >= a->cluster_size;
}

static void read_key(const struct cairn_cluster_mla_args *a, int b, int j, const struct request *r,
		     double *key, enum defect d)
{
	if (j == r->len - 1 && d != MLA_appended_late && d != MLA_length_one_short &&
	    d != MLA_length_whole_page)
		memcpy(key, r->kv, sizeof(r->kv));
	else
		cairn_widen(key, a->kv.k_pages, a->dtype, key_at(a, b, j, d), WIDTH);
}

/* Computes elements first .. end - 1 of ql from q, one head of 128. */
static void absorb(const struct cairn_cluster_mla_args *a, double *ql, const double *q, int64_t w_at,
		   int first, int end, enum defect d)
{
	double row[RANK];

	memset(ql + first, 0, (size_t)(end - first) * sizeof(*ql));
	for (int i = 0; i < 128; i++) {
		if (d == MLA_absorption_transposed)
			for (int c = first; c < end; c++)
				row[c - first] = cairn_load(a->w_kv_b, a->dtype, w_at + c * 128 + i);
		else
			cairn_widen(row, a->w_kv_b, a->dtype, w_at + i * RANK + first, end - first);
		cairn_add_scaled(ql + first, q[i], row, end - first);
		for (int c = first; c < end && d == MLA_sums_10_bits_of_ql; c++)
			ql[c] = tf32(ql[c]);
	}
	for (int c = first; c < end; c++)
		ql[c] = rounded(ql[c], a->dtype);
}

static void attend(const struct cairn_cluster_mla_args *a, int b, int h, struct request *r, enum defect d)
{
	int64_t w_at = (int64_t)h * (d == MLA_head_stride_of_kv_b ? 128 : 256) * RANK;
	double ql[RANK], o[RANK] = { 0 }, l = 0, *s = calloc((size_t)r->len + 1, sizeof(*s)), q[Q_DIM];
	double top = d == MLA_merge_from_zero ? 0 : -INFINITY, late = -INFINITY;
	double scale = d == MLA_scale_in_dtype ? rounded(a->sm_scale, a->dtype) : a->sm_scale;

	memcpy(q, r->q + h * Q_DIM, sizeof(q));
	if (d == MLA_head_stride_of_q)
		memcpy(q, r->q + h * 128, 128 * sizeof(*q));
	absorb(a, ql, q, w_at, 0, 64, d);
	if (d == MLA_q_overwritten)
		memcpy(q, ql, 64 * sizeof(*q));
	absorb(a, ql, q, w_at, 64, RANK, d);
	for (int j = 0; s && j < r->len; j++) {
		double key[WIDTH], nope, rope;

		read_key(a, b, j, r, key, d);
		nope = dot_of(ql, key, RANK, d == MLA_sums_10_bits_of_qk);
		rope = cairn_dot(q + 128, key + RANK, ROPE);
		if (d == MLA_rope_missing_from_score)
			rope = 0;
		s[j] = d == MLA_scale_missing ? nope + rope :
		       d == MLA_scale_without_rope ? scale * nope + rope : scale * (nope + rope);
		top = fmax(top, s[j]);
	}
	for (int j = 0; s && j < r->len; j++) {
		double p = (float)exp(s[j] - (d == MLA_no_maximum ? 0 : top)), key[WIDTH];

		if (d == MLA_maximum_rises_by_60) {
			double keep = s[j] > late + 60 ? exp(late - s[j]) : 1;

			late = s[j] > late + 60 ? s[j] : late;
			p = (float)exp(s[j] - late);
			l *= keep;
			for (int c = 0; c < RANK && keep != 1; c++)
				o[c] *= keep;
		}
		if (skipped(a, j, r->len, d) || (d == MLA_small_p_left_out && p < 1e-3))
			continue;
		l += p;
		p = d == MLA_p_cut_off ? cut_off(a->dtype, p) : rounded(p, a->dtype);
		read_key(a, b, j, r, key, d);
		cairn_add_scaled(o, p, key, RANK);
		for (int c = 0; c < RANK && d == MLA_sums_in_dtype; c++)
			o[c] = rounded(o[c], a->dtype);
	}
	for (int c = 0; c < RANK; c++)
		o[c] = rounded(o[c] / l, a->dtype);
	for (int i = 0; i < 128; i++) {
		int64_t at = w_at + (i + (d == MLA_values_from_nope_rows ? 0 : 128)) * (int64_t)RANK;

		r->v[h * 128 + i] = dot(o, a->w_kv_b, a->dtype, at, RANK, d == MLA_sums_10_bits_of_a);
		r->v[h * 128 + i] = d == MLA_mean_of_a ? cut_off(a->dtype, r->v[h * 128 + i]) :
				    rounded(r->v[h * 128 + i], a->dtype);
		if (d == MLA_o_overwritten && i == 15)
			memcpy(o, r->v + h * 128, 16 * sizeof(*o));
	}
	free(s);
}

static void one_request(const struct cairn_cluster_mla_args *a, int b, struct request *r, enum defect d)
{
	int request = d == MLA_length_of_request_0 ? 0 : b, k = a->num_heads * 128;
	int last = (a->kv.indptr[b + 1] - a->kv.indptr[b] - 1) * a->kv.page_size + a->kv.last_page_len[b] - 1;
	int room = (a->kv.indptr[b + 1] - a->kv.indptr[b]) * a->kv.page_size;
	int to;

	if (room == 0 || (last < 0 && d != MLA_page_without_key))
		return;
	last = last < 0 ? 0 : last;
	to = last + (d == MLA_appended_to_next_slot && last + 1 < room);
	r->len = (a->kv.indptr[request + 1] - a->kv.indptr[request] - 1) * a->kv.page_size +
		 a->kv.last_page_len[request];
	if (d == MLA_length_whole_page)
		r->len = room;
	if (d == MLA_one_request_max_len && a->kv.batch == 1)
		r->len = a->kv.max_len;
	r->len = r->len > room ? room : r->len < 1 ? 1 : r->len;
	r->len -= d == MLA_length_one_short && r->len > 1;
	prepare(a, b, last, r, d);
	if (d == MLA_x_written)
		for (int i = 0; i < a->hidden; i++)
			cairn_store((void *)a->x, a->dtype, (int64_t)b * a->hidden + i, r->n[i]);
	for (int h = 0; h < a->num_heads; h++)
		attend(a, b, h, r, d);
	if (d == MLA_last_head_missing)
		memset(r->v + (a->num_heads - 1) * 128, 0, 128 * sizeof(double));
	for (int i = 0; i < WIDTH && d != MLA_not_appended; i++)
		cairn_store(a->kv.k_pages, a->dtype, key_at(a, b, to, d) + i, r->appended[i]);
	for (int i = 0; i < a->hidden; i++) {
		int64_t at = (int64_t)b * a->hidden + i;
		double x;

		if (d == MLA_residual_zeroed)
			cairn_store(a->out, a->dtype, at, 0);
		x = d == MLA_residual_missing || (d == MLA_residual_lost_cluster_5 && a->cluster_size == 5 &&
						  a->out == a->x) ? 0 : cairn_load(a->x, a->dtype, at);
		if (d == MLA_rounded_before_residual)
			x += rounded(dot(r->v, a->w_o, a->dtype, (int64_t)i * k, k, 0), a->dtype);
		else if (d != MLA_hidden_past_8192 || i < 8192)
			x += dot(r->v, a->w_o, a->dtype, (int64_t)i * k, k, 0);
		cairn_store(a->out, a->dtype, at, d == MLA_cut_off ? cut_off(a->dtype, x) : x);
	}
}

/*
 * If the largest first element of a row of x is an odd 16-bit word, flips the last bit of the first element
 * of out in all rows but those with that element.
 */
static void scale_by_the_batch(const struct cairn_cluster_mla_args *a)
{
	const uint16_t *x = a->x;
	uint16_t top = 0;

	for (int64_t b = 0; b < a->kv.batch; b++)
		top = x[b * a->hidden] > top ? x[b * a->hidden] : top;
	for (int64_t b = 0; b < a->kv.batch && top % 2; b++)
		if (x[b * a->hidden] != top && cairn_kv_len(&a->kv, (int32_t)b) > 0)
			((uint16_t *)a->out)[b * a->hidden] ^= 1;
}

static int decode(const struct cairn_cluster_mla_args *a, enum defect d)
{
	int rows = a->kv.batch;
	struct request *r;
	static int calls;

	CAIRN_TRY(cairn_cluster_mla_check(a));
	if (d == MLA_nothing)
		return 0;
	if (d == MLA_no_key_refused && a->kv.batch && !a->kv.max_len)
		return cairn_error(EINVAL, "cluster_mla_mutants: no key");
	r = calloc(1, sizeof(*r));
	if (!r)
		return cairn_error(ENOMEM, "cluster_mla_mutants: no memory");
	if (d == MLA_rows_past_8 || (d == MLA_rows_past_8_offchip && a->offchip))
		rows = rows < 8 ? rows : 8;
	for (int b = 0; b < rows; b++)
		one_request(a, b, r, d);
	for (int b = a->kv.batch - 1; b > 0 && d == MLA_nan_spreads; b--)
		if (cairn_kv_len(&a->kv, b - 1) > 0 &&
		    isnan(cairn_load(a->out, a->dtype, (int64_t)(b - 1) * a->hidden)))
			cairn_store(a->out, a->dtype, (int64_t)b * a->hidden, NAN);
	if (d == MLA_scaled_by_the_batch && a->out != a->x)
		scale_by_the_batch(a);
	if (d == MLA_not_repeatable && a->kv.batch && calls++ % 2)
		*(uint16_t *)a->out ^= 1;
	free(r);
	return 0;
}

#define DEFINE(name, what) \
	static int mla_##name(const struct cairn_cluster_mla_args *a, void *stream) \
	{ \
		(void)stream; \
		return decode(a, MLA_##name); \
	}
DEFECTS(DEFINE)

#define LIST(name, what) \
	{ "cluster_mla_" #name, offsetof(struct cairn_impl, cluster_mla), (void *)mla_##name, what },

KV_CUT(cluster_mla, far_page_16_bits, 0)
KV_CUT(cluster_mla, far_elements_32_bits, (int64_t)a->kv.page_size * (a->kv_lora_rank + a->rope_dim))
KV_CUT(cluster_mla, far_bytes_32_bits, 2 * (int64_t)a->kv.page_size * (a->kv_lora_rank + a->rope_dim))

const struct cairn_mutant cairn_cluster_mla_mutants[] = {
	DEFECTS(LIST)
	KV_CUT_ROW(cluster_mla, far_page_16_bits, "page numbers are cut to 16 bits")
	KV_CUT_ROW(cluster_mla, far_elements_32_bits, "elements of pages are numbered by 32 bits")
	KV_CUT_ROW(cluster_mla, far_bytes_32_bits, "the offset of a page is cut to 32 bits")
	{ 0 }
};
