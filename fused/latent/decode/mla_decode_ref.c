// SPDX-License-Identifier: Apache-2.0
/*
 * mla_decode_ref - the reference, one row of one head at a time, in double; and its error bound
 *
 * With u half an ulp, tiny half a subnormal, E = 2^-23 (tensor cores truncate), n keys, w_j the weights:
 *
 *   logits   an fp32 sum of 576 terms errs by d_j = (sqrt(576) + 576 / 32) E/2 (|s_j| + 8 R_j), R_j the
 *            root of the sum of squares (block_attn_ref.c). It errs by 2E |s_j| if its terms are integers
 *            whose magnitudes add up to 2^24 at most. exp adds 2E (1 + max - s_j).
 *   weights  an error e_j of a logit moves out by w_j e_j (c_j - out).
 *   P        is rounded to dtype, with independent errors of at most u p_j, or u / sqrt(3) in the root mean
 *            square; below the normal range each is at most tiny. A slot that is listed m times has m equal
 *            errors; |w c| counts it as one key of weight m w.
 *   sums     (sqrt(n) + n/32 + 32) E/2 of the magnitudes, for the sums and a rescale for each new maximum.
 *
 *	|out - exact| <= sum_j w_j (d_j + 2E (1 + max - s_j)) |c_j - out| + 6 u / sqrt(3) |w c| +
 *			 tiny sum_j |c_j| / sum p + (sqrt(n) + n/32 + 32) E/2 sum_j w_j |c_j| +
 *			 (u + 4E) |out| + tiny
 *	|lse - exact| <= sum_j w_j (d_j + 2E (1 + max - s_j)) + (sqrt(n) + n/32 + 32) E/2 + 2E (|max| + |lse|)
 *
 * The largest part of a sum over parts of the keys is at most sum_j w_j |c_j|; an implementation that rounds
 * parts to dtype errs by u times this besides (cairn_mla_decode_peer_exact()).
 *
 * The term of tiny counts only keys with p_j below the normal range. Rows that a NaN or an infinity leaves
 * undefined are not checked.
 */
#include "fused/latent/decode/mla_decode.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/args.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/fp8.h"
#include "primitives/base/rows.h"
#include "primitives/base/wide.h"
#include "fused/attention/base/attn_exact.h"
#include "fused/block/block_ref.h"

#define E	0x1p-23
#define RANK	512
#define ROPE	64
#define DIM	(RANK + ROPE)

/* Returns the keys that row i of request b sees, or with slots the length of its list. */
static int keys_seen(const struct cairn_mla_decode_args *a, int b, int i)
{
	int n;

	if (a->num_slots)
		return a->num_slots;
	n = i + 1 + (int)cairn_kv_len(&a->kv, b) - (a->qo_indptr[b + 1] - a->qo_indptr[b]);
	return n > 0 ? n : 0;
}

/* Returns the slot of the row's jth key; -1: no key. */
static int64_t slot_of(const struct cairn_mla_decode_args *a, int b, int i, int j)
{
	if (a->num_slots)
		return a->slots[((int64_t)a->qo_indptr[b] + i) * a->num_slots + j];
	return cairn_kv_slot(&a->kv, b, j);
}

/* Widens a key. With kv_fp8, rounds its latent to dtype, as the contract says. */
static void load_key(const struct cairn_mla_decode_args *a, int64_t slot, double *key)
{
	const uint8_t *row = (const uint8_t *)a->kv.k_pages + slot * CAIRN_MLA_FP8_BYTES;
	uint16_t rounded[RANK];
	float scale;

	if (!a->kv_fp8) {
		cairn_widen(key, a->kv.k_pages, a->dtype, slot * DIM, DIM);
		return;
	}
	for (int g = 0; g < RANK / CAIRN_MLA_FP8_GROUP; g++) {
		memcpy(&scale, row + RANK + 4 * g, sizeof(scale));
		cairn_widen_e4m3(key + g * CAIRN_MLA_FP8_GROUP, row + g * CAIRN_MLA_FP8_GROUP, (double)scale,
				 CAIRN_MLA_FP8_GROUP);
	}
	cairn_narrow(rounded, a->dtype, 0, key, RANK);
	cairn_widen(key, rounded, a->dtype, 0, RANK);
	cairn_widen(key + RANK, row + RANK + 16, a->dtype, 0, ROPE);
}

struct row {
	double q[DIM], key[DIM], out[RANK], bound[RANK], lse, lse_bound;
	double squares[RANK], magnitude[RANK], moved[RANK], small[RANK];
	double parts;		/* the rounding of partial results, relative to their size */
	double *s, *e;		/* [keys]: logits, then p; bounds of the logits' errors */
	double *slots;		/* [keys]: with slots, those that the row lists, ascending */
};

/* Computes the logits and the bounds of their errors; returns the largest logit. */
static double score(const struct cairn_mla_decode_args *a, int b, int i, int n, int bounds, struct row *r)
{
	double top = -INFINITY, scale = (double)a->sm_scale, magnitude;

	for (int j = 0; j < n; j++) {
		int64_t slot = slot_of(a, b, i, j);

		r->s[j] = -INFINITY;
		r->e[j] = 0;
		if (slot < 0)
			continue;
		load_key(a, slot, r->key);
		r->s[j] = scale * cairn_dot(r->q, r->key, DIM);
		top = r->s[j] > top ? r->s[j] : top;
		if (!bounds)
			continue;
		r->e[j] = 2 * E * fabs(r->s[j]);
		magnitude = 0;
		if (!block_sums_exactly(r->q, r->key, DIM, &magnitude))
			r->e[j] = (24 + 18) * E / 2 *
				  (fabs(r->s[j]) + 8 * scale * sqrt(cairn_dot_squares(r->q, r->key, DIM)));
	}
	return top;
}

/* Turns the logits into p, adds their errors by exp, and sets lse. Returns the sum of p. */
static double weigh(int n, double top, struct row *r)
{
	double sum = 0, error = 0;

	for (int j = 0; j < n; j++) {
		double p = exp(r->s[j] - top);

		if (p > 0)
			r->e[j] += 2 * E * (1 + top - r->s[j]);
		sum += p;
		error += p * r->e[j];
		r->s[j] = p;
	}
	r->lse = top + log(sum);
	r->lse_bound = error / sum + (sqrt(n) + n / 32.0 + 32) * E / 2 + 2 * E * (fabs(top) + fabs(r->lse));
	return sum;
}

/*
 * Adds a key of weight w, whose logit errs by e, to the terms of the bound. times: how often the row has it
 */
static CAIRN_WIDE void bound_key(struct row *r, double w, double e, double subnormal,
				 double times)
{
	for (int l = 0; l < RANK; l++) {
		double c = fabs(r->key[l]);

		r->squares[l] += times * w * w * c * c;
		r->magnitude[l] += w * c;
		r->moved[l] += w * e * fabs(r->key[l] - r->out[l]);
		r->small[l] += subnormal * c;
	}
}

static int compare(const void *x, const void *y)
{
	double a = *(const double *)x, b = *(const double *)y;

	return (a > b) - (a < b);
}

/* Returns the number of the n sorted numbers that are less than x. */
static int num_below(const double *sorted, int n, double x)
{
	int lo = 0, hi = n;

	while (lo < hi) {
		int mid = (lo + hi) / 2;

		if (sorted[mid] < x)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* Adds up the terms of the bound, which need the exact result. */
static void bound_row(const struct cairn_mla_decode_args *a, int b, int i, int n, double sum, struct row *r)
{
	double u = cairn_dtype_roundoff(a->dtype), tiny = cairn_dtype_tiny(a->dtype);

	memset(r->squares, 0, sizeof(r->squares));
	memset(r->magnitude, 0, sizeof(r->magnitude));
	memset(r->moved, 0, sizeof(r->moved));
	memset(r->small, 0, sizeof(r->small));
	for (int j = 0; a->num_slots && j < n; j++)
		r->slots[j] = (double)slot_of(a, b, i, j);
	if (a->num_slots)
		qsort(r->slots, (size_t)n, sizeof(*r->slots), compare);
	for (int j = 0; j < n; j++) {
		int64_t slot = slot_of(a, b, i, j);
		double times = 1;

		if (slot < 0)
			continue;
		if (a->num_slots)
			times = num_below(r->slots, n, (double)slot + 1) -
				num_below(r->slots, n, (double)slot);
		load_key(a, slot, r->key);
		bound_key(r, r->s[j] / sum, r->e[j], r->s[j] * u < tiny, times);
	}
	for (int l = 0; l < RANK; l++)
		r->bound[l] = r->moved[l] + 6 * u / sqrt(3) * sqrt(r->squares[l]) + tiny * r->small[l] / sum +
			      ((sqrt(n) + n / 32.0 + 32) * E / 2 + r->parts) * r->magnitude[l] +
			      (u + 4 * E) * fabs(r->out[l]) + tiny;
}

/* Computes row i of request b, head h, and its bounds if asked for. */
static void attend(const struct cairn_mla_decode_args *a, int b, int i, int h, int bounds, struct row *r)
{
	int64_t at = ((int64_t)a->qo_indptr[b] + i) * a->num_heads + h;
	double top, sum;
	int n = keys_seen(a, b, i);

	memset(r->out, 0, sizeof(r->out));
	memset(r->bound, 0, sizeof(r->bound));
	r->lse = -INFINITY;
	r->lse_bound = 0;
	cairn_widen(r->q, a->q_latent, a->dtype, at * cairn_mla_latent_stride(a), RANK);
	cairn_widen(r->q + RANK, a->q_rope, a->dtype, at * cairn_mla_rope_stride(a), ROPE);
	top = score(a, b, i, n, bounds, r);
	if (top == -INFINITY)
		return;
	sum = weigh(n, top, r);
	for (int j = 0; j < n; j++) {
		if (r->s[j] == 0)
			continue;
		load_key(a, slot_of(a, b, i, j), r->key);
		cairn_add_scaled(r->out, block_rounded(r->s[j], a->dtype), r->key, RANK);
	}
	for (int l = 0; l < RANK; l++)
		r->out[l] /= sum;
	if (bounds)
		bound_row(a, b, i, n, sum, r);
}

/* Returns 0 to compute all rows, or n to compute one row in n and the first and last of each request. */
static uint32_t sample_step(const struct cairn_mla_decode_args *a)
{
	double products = 0;

	for (int b = 0; b < a->kv.batch; b++)
		for (int i = 0; i < a->qo_indptr[b + 1] - a->qo_indptr[b]; i++)
			products += a->num_heads * (double)keys_seen(a, b, i) * RANK;
	return attn_exact_step(products);
}

static int left_out(const struct cairn_mla_decode_args *a, int b, int i, int h, uint32_t step)
{
	if (!step || ((i == 0 || i == a->qo_indptr[b + 1] - a->qo_indptr[b] - 1) && h == i % a->num_heads))
		return 0;
	return ((uint32_t)((a->qo_indptr[b] + i) * a->num_heads + h) * 2654435761u >> 8) % step != 0;
}

static int is_finite(const double *x, int n)
{
	for (int i = 0; i < n; i++)
		if (!isfinite(x[i]))
			return 0;
	return 1;
}

static int query_is_finite(const struct cairn_mla_decode_args *a, int64_t at, double *q)
{
	cairn_widen(q, a->q_latent, a->dtype, at * cairn_mla_latent_stride(a), RANK);
	cairn_widen(q + RANK, a->q_rope, a->dtype, at * cairn_mla_rope_stride(a), ROPE);
	return is_finite(q, DIM);
}

/*
 * Returns whether all elements of a key are numbers. In a group of 8-bit elements, the one with the largest
 * magnitude decides: codes without their sign are in the order of magnitudes, and NaN is the largest.
 */
static int key_is_finite(const struct cairn_mla_decode_args *a, int64_t slot)
{
	const uint8_t *row = (const uint8_t *)a->kv.k_pages + slot * CAIRN_MLA_FP8_BYTES;
	double key[DIM];

	if (!a->kv_fp8) {
		cairn_widen(key, a->kv.k_pages, a->dtype, slot * DIM, DIM);
		return is_finite(key, DIM);
	}
	for (int g = 0; g < RANK / CAIRN_MLA_FP8_GROUP; g++) {
		uint8_t top = 0;
		float scale;

		memcpy(&scale, row + RANK + 4 * g, sizeof(scale));
		for (int l = g * CAIRN_MLA_FP8_GROUP; l < (g + 1) * CAIRN_MLA_FP8_GROUP; l++)
			top = (row[l] & 0x7f) > top ? row[l] & 0x7f : top;
		if (!isfinite(block_rounded((double)cairn_e4m3_to_float(top) * (double)scale, a->dtype)))
			return 0;
	}
	cairn_widen(key, row + RANK + 16, a->dtype, 0, ROPE);
	return is_finite(key, ROPE);
}

/* Returns whether all keys in the list of row i, or of all rows of request b, are numbers. */
static int keys_are_finite(const struct cairn_mla_decode_args *a, int b, int i)
{
	int n = keys_seen(a, b, i), finite = 1;

	for (int j = 0; j < n && finite; j++) {
		int64_t slot = slot_of(a, b, i, j);

		finite = slot < 0 || key_is_finite(a, slot);
	}
	return finite;
}

/*
 * Returns, for each request or, with slots, for each row, whether all its keys are numbers. The caller frees
 * the array; NULL: no memory.
 */
static uint8_t *find_finite(const struct cairn_mla_decode_args *a)
{
	int64_t n = a->num_slots ? a->nnz_qo : a->kv.batch;
	uint8_t *finite = malloc(n ? (size_t)n : 1);

	if (!finite)
		return NULL;
	#pragma omp parallel for schedule(dynamic)
	for (int b = 0; b < a->kv.batch; b++) {
		int tokens = a->qo_indptr[b + 1] - a->qo_indptr[b];

		if (!a->num_slots)
			finite[b] = (uint8_t)(!tokens || keys_are_finite(a, b, tokens - 1));
		for (int i = 0; a->num_slots && i < tokens; i++)
			finite[a->qo_indptr[b] + i] = (uint8_t)keys_are_finite(a, b, i);
	}
	return finite;
}

/* Sets the values and bounds of a row, counted over all heads. */
static void set_row(const struct cairn_mla_decode_args *a, int64_t row, const struct row *r, int known,
		    double otherwise, struct cairn_exact *exact)
{
	if (a->lse) {
		exact[1].val[row] = known ? r->lse : otherwise;
		exact[1].bound[row] = known ? r->lse_bound : INFINITY;
	}
	for (int l = 0; l < RANK; l++) {
		exact[0].val[row * RANK + l] = known ? r->out[l] : otherwise;
		exact[0].bound[row * RANK + l] = known ? r->bound[l] : INFINITY;
	}
}

/* finite: the result of find_finite(); NULL if exact is NULL */
static void one_row(const struct cairn_mla_decode_args *a, int b, int i, int h, uint32_t step,
		    const uint8_t *finite, struct row *r, struct cairn_exact *exact)
{
	int64_t at = ((int64_t)a->qo_indptr[b] + i) * a->num_heads + h;

	if (exact && (!finite[a->num_slots ? a->qo_indptr[b] + i : b] || !query_is_finite(a, at, r->q))) {
		set_row(a, at, r, 0, NAN, exact);
	} else if (exact && left_out(a, b, i, h, step) && keys_seen(a, b, i)) {
		set_row(a, at, r, 0, 0, exact);
	} else {
		attend(a, b, i, h, exact != NULL, r);
		if (exact) {
			set_row(a, at, r, 1, 0, exact);
			return;
		}
		cairn_narrow(a->out, a->dtype, at * RANK, r->out, RANK);
		if (a->lse)
			a->lse[at] = (float)r->lse;
	}
}

/* Sets the rows past the last request to 0, and their lse to -INFINITY. */
static void zero_rest(const struct cairn_mla_decode_args *a, struct row *r, struct cairn_exact *exact)
{
	memset(r->out, 0, sizeof(r->out));
	memset(r->bound, 0, sizeof(r->bound));
	r->lse = -INFINITY;
	r->lse_bound = 0;
	for (int64_t i = (int64_t)a->qo_indptr[a->kv.batch] * a->num_heads;
	     i < (int64_t)a->nnz_qo * a->num_heads; i++) {
		if (exact) {
			set_row(a, i, r, 1, 0, exact);
			continue;
		}
		cairn_narrow(a->out, a->dtype, i * RANK, r->out, RANK);
		if (a->lse)
			a->lse[i] = -INFINITY;
	}
}

/*
 * Sets values and bounds in exact, or, if exact is NULL, writes rounded results to the arguments' arrays.
 * parts: see struct row
 */
static int all_rows(const struct cairn_mla_decode_args *a, double parts, struct cairn_exact *exact)
{
	uint32_t step = exact ? sample_step(a) : 0;
	uint8_t *finite = exact ? find_finite(a) : NULL;
	int most = a->num_slots ? a->num_slots : 1, no_memory = exact && !finite;

	for (int b = 0; b < a->kv.batch && !a->num_slots; b++)
		most = (int)cairn_kv_len(&a->kv, b) > most ? (int)cairn_kv_len(&a->kv, b) : most;
	#pragma omp parallel reduction(|:no_memory)
	{
		struct row *r = malloc(sizeof(*r) + 3 * sizeof(double) * ((size_t)most + 1));

		no_memory |= !r;
		if (r) {
			r->parts = parts;
			r->s = (double *)(r + 1);
			r->e = r->s + most;
			r->slots = r->e + most;
		}
		#pragma omp single
		if (r)
			zero_rest(a, r, exact);
		for (int b = 0; b < a->kv.batch; b++) {
			int tokens = a->qo_indptr[b + 1] - a->qo_indptr[b];

			#pragma omp for schedule(dynamic) nowait
			for (int k = 0; k < tokens * a->num_heads; k++)
				if (r && (finite || !exact))
					one_row(a, b, k / a->num_heads, k % a->num_heads, step, finite, r,
						exact);
		}
		free(r);
	}
	free(finite);
	return no_memory ? cairn_error(ENOMEM, "mla_decode: no memory for %d logits", most) : 0;
}

static int run(const struct cairn_mla_decode_args *args, int rounds_parts, struct cairn_exact *exact)
{
	struct cairn_mla_decode_args a;

	CAIRN_TRY(cairn_mla_decode_check(args));
	cairn_copy_args(&a, args, sizeof(a));
	if (!a.kv.batch || !a.nnz_qo)
		return 0;
	return all_rows(&a, rounds_parts ? cairn_dtype_roundoff(a.dtype) : 0, exact);
}

int cairn_mla_decode_ref(const struct cairn_mla_decode_args *args, void *stream)
{
	(void)stream;
	return run(args, 0, NULL);
}

int cairn_mla_decode_exact(const struct cairn_mla_decode_args *args, struct cairn_exact *exact)
{
	return run(args, 0, exact);
}

int cairn_mla_decode_peer_exact(const struct cairn_mla_decode_args *args, struct cairn_exact *exact)
{
	return run(args, 1, exact);
}
