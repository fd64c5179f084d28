// SPDX-License-Identifier: Apache-2.0
/*
 * mla_paged_ref - the reference, one row of one head at a time, in double, rounded where the contract rounds;
 * and its error bound
 *
 * As in cluster_mla_ref.c, an implementation that keeps to the contract is this chain with other rounding
 * errors, and propagating these as absolute values gives useless bounds (512 elements of ql, each wrong by u,
 * times 512 elements of a key). So RUNS further chains draw their errors at random. sigma is their root mean
 * square distance from the first chain, over the runs and the elements of a row, or over the runs of the
 * element alone if that is larger. With u half an ulp, tiny half a subnormal, E = 2^-23 (tensor cores
 * truncate) and n keys, these chains
 *
 *   round   ql, P and o up or down, with probabilities by the distances, so that exact values stay exact;
 *   move    each p by +- d_j, the error of fp32 sums of 576 terms (block_attn_ref.c: (sqrt(k) + k/32) E/2
 *           (|s| + 8 R), R the root of the sum of squares), and for exp by +- 2E (1 + max - s_j); the sum
 *           is exact if its terms are integers whose magnitudes add up to 2^24 at most, and d_j is 2E |s|;
 *   move    each o by +- (sqrt(n) + n/32 + 32) E/2 of itself, for its sums and a rescale for each new
 *           maximum.
 *
 *	|out - exact| <= 6 sigma + (u + 64 E) |out| + tiny
 *
 * lse is the logarithm of the sum, so its error is the mean of the logits' errors, weighted by p. The errors
 * d_j enter as they are. The roundings of ql are independent, each at most u, or u / sqrt(3) in the root mean
 * square, and enter with the factor sm_scale ql o:
 *
 *	|lse - exact| <= 6 sm_scale u / sqrt(3) |ql o| + sum_j p_j (d_j + 2E (1 + max - s_j)) +
 *			 (sqrt(n) + n/32 + 32) E/2 + 2E (|max| + |lse|)
 *
 * Rows that a NaN or an infinity leaves undefined are not checked.
 */
#include "fused/latent/mla_paged.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/args.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/rows.h"
#include "fused/attention/base/attn_exact.h"
#include "fused/block/block_ref.h"

#define RUNS	8
#define E	0x1p-23
#define RANK	512
#define ROPE	64
#define NOPE	128
#define V_DIM	128

static int keys_seen(const struct cairn_mla_paged_args *a, int b, int i)
{
	int n = i + 1 + (int)cairn_kv_len(&a->kv, b) - (a->qo_indptr[b + 1] - a->qo_indptr[b]);

	return n > 0 ? n : 0;
}

static int64_t key_at(const struct cairn_mla_paged_args *a, int b, int j)
{
	return cairn_kv_slot(&a->kv, b, j) * (RANK + ROPE);
}

struct row {
	int runs;
	double ql[RUNS + 1][RANK], o[RUNS + 1][RANK], out[RUNS + 1][V_DIM], bound[V_DIM];
	double q[NOPE + ROPE], w[RANK], key[RANK + ROPE];
	double *s, *d;		/* logits [runs][kv_len], bounds of their errors [kv_len] */
	double lse, lse_bound;
};

static double round_run(const struct cairn_mla_paged_args *a, int run, double v, uint64_t key)
{
	return run ? block_rounded_either(v, a->dtype, (uint64_t)run << 56 ^ key) :
		     block_rounded(v, a->dtype);
}

/* Returns 1 + size or 1 - size at random (by run and key); 1 in the first run. */
static double moved(int run, double size, uint64_t key)
{
	uint64_t z = ((uint64_t)run << 56 ^ key) * 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return !run ? 1 : z >> 63 ? 1 + size : 1 - size;
}

static void absorb(const struct cairn_mla_paged_args *a, uint64_t key, int h, struct row *r)
{
	for (int l = 0; l < RANK; l++)
		r->ql[0][l] = 0;
	for (int d = 0; d < NOPE; d++) {
		cairn_widen(r->w, a->w_kv_b, a->dtype, ((int64_t)h * (NOPE + V_DIM) + d) * RANK, RANK);
		cairn_add_scaled(r->ql[0], r->q[d], r->w, RANK);
	}
	for (int k = r->runs - 1; k >= 0; k--)
		for (int l = 0; l < RANK; l++)
			r->ql[k][l] = round_run(a, k, r->ql[0][l], key + (uint64_t)l);
}

/* Computes the logits of all runs, and the bound of an implementation's error in each. */
static void score(const struct cairn_mla_paged_args *a, int b, int n, struct row *r)
{
	for (int j = 0; j < n; j++) {
		double rope, squares = 0, first, magnitude = 0;

		cairn_widen(r->key, a->kv.k_pages, a->dtype, key_at(a, b, j), RANK + ROPE);
		rope = cairn_dot(r->q + NOPE, r->key + RANK, ROPE);
		if (r->runs > 1)
			squares = cairn_dot_squares(r->q + NOPE, r->key + RANK, ROPE) +
				  cairn_dot_squares(r->ql[0], r->key, RANK);
		for (int k = 0; k < r->runs; k++)
			r->s[(int64_t)k * n + j] =
				(cairn_dot(r->ql[k], r->key, RANK) + rope) * (double)a->sm_scale;
		first = fabs(r->s[j]);
		r->d[j] = (24 + 18) * E / 2 * (first + 8 * (double)a->sm_scale * sqrt(squares));
		if (r->ql[0][0] == rint(r->ql[0][0]) && r->ql[0][1] == rint(r->ql[0][1]) &&
		    block_sums_exactly(r->ql[0], r->key, RANK, &magnitude) &&
		    block_sums_exactly(r->q + NOPE, r->key + RANK, ROPE, &magnitude))
			r->d[j] = 2 * E * first;
	}
}

/* Replaces the logits of one run by P; returns the sum of p before it is rounded. */
static double weigh(const struct cairn_mla_paged_args *a, int n, uint64_t key, int run, struct row *r)
{
	double top = -INFINITY, sum = 0, *s = r->s + (int64_t)run * n;

	for (int j = 0; j < n; j++)
		top = s[j] > top ? s[j] : top;
	for (int j = 0; j < n; j++) {
		double p = exp(s[j] - top) *
			   moved(run, r->d[j] + 2 * E * (1 + top - s[j]), key + ((uint64_t)j << 36) + 7);

		sum += p;
		s[j] = round_run(a, run, p, key + 512 + ((uint64_t)j << 36));
	}
	return sum;
}

/* Computes lse and its bound, except the term of ql. */
static void sum_up(int n, struct row *r)
{
	double top = -INFINITY, sum = 0, error = 0;

	for (int j = 0; j < n; j++)
		top = r->s[j] > top ? r->s[j] : top;
	for (int j = 0; j < n; j++) {
		double p = exp(r->s[j] - top);

		sum += p;
		error += p * (r->d[j] + 2 * E * (1 + top - r->s[j]));
	}
	r->lse = top + log(sum);
	r->lse_bound = error / sum + (sqrt(n) + n / 32.0 + 32) * E / 2 + 2 * E * (fabs(top) + fabs(r->lse));
}

/* Computes softmax and the weighted sum of latents of all runs. */
static void mix(const struct cairn_mla_paged_args *a, int b, int n, uint64_t key, struct row *r)
{
	double sums[RUNS + 1], size = (sqrt(n) + n / 32.0 + 32) * E / 2;

	sum_up(n, r);
	for (int k = 0; k < r->runs; k++)
		sums[k] = weigh(a, n, key, k, r);
	memset(r->o, 0, sizeof(r->o));
	for (int j = 0; j < n; j++) {
		cairn_widen(r->key, a->kv.k_pages, a->dtype, key_at(a, b, j), RANK);
		for (int k = 0; k < r->runs; k++)
			if (r->s[(int64_t)k * n + j] != 0)
				cairn_add_scaled(r->o[k], r->s[(int64_t)k * n + j], r->key, RANK);
	}
	for (int k = 0; k < r->runs; k++)
		for (int l = 0; l < RANK; l++)
			r->o[k][l] = round_run(a, k, r->o[k][l] / sums[k] *
					       moved(k, size, key + 1536 + (uint64_t)l),
					       key + 1024 + (uint64_t)l);
	r->lse_bound += 6 * (double)a->sm_scale * cairn_dtype_roundoff(a->dtype) / sqrt(3) *
			sqrt(cairn_dot_squares(r->ql[0], r->o[0], RANK));
}

/* Computes r->out of all runs for row i of request b, head h. */
static void attend(const struct cairn_mla_paged_args *a, int b, int i, int h, struct row *r)
{
	int64_t at = ((int64_t)a->qo_indptr[b] + i) * a->num_heads + h;
	int n = keys_seen(a, b, i);

	memset(r->out, 0, sizeof(r->out));
	r->lse = -INFINITY;
	r->lse_bound = 0;
	if (!n)
		return;
	cairn_widen(r->q, a->q, a->dtype, at * (NOPE + ROPE), NOPE + ROPE);
	absorb(a, (uint64_t)at << 11, h, r);
	score(a, b, n, r);
	mix(a, b, n, (uint64_t)at << 11, r);
	for (int d = 0; d < V_DIM; d++) {
		cairn_widen(r->w, a->w_kv_b, a->dtype, ((int64_t)h * (NOPE + V_DIM) + NOPE + d) * RANK, RANK);
		for (int k = 0; k < r->runs; k++)
			r->out[k][d] = cairn_dot(r->o[k], r->w, RANK);
	}
}

static void judge(const struct cairn_mla_paged_args *a, struct row *r)
{
	double u = cairn_dtype_roundoff(a->dtype), tiny = cairn_dtype_tiny(a->dtype), mean = 0;

	for (int d = 0; d < V_DIM; d++) {
		r->bound[d] = 0;
		for (int k = 1; k < r->runs; k++)
			r->bound[d] += pow(r->out[k][d] - r->out[0][d], 2) / (r->runs - 1);
		mean += r->bound[d] / V_DIM;
	}
	for (int d = 0; d < V_DIM; d++)
		r->bound[d] = 6 * sqrt(fmax(r->bound[d], mean)) + (u + 64 * E) * fabs(r->out[0][d]) + tiny;
}

/* Returns 0 to compute all rows, or n to compute one row in n and the first and last of each request. */
static uint32_t sample_step(const struct cairn_mla_paged_args *a)
{
	double products = 0;

	for (int b = 0; b < a->kv.batch; b++)
		for (int i = 0; i < a->qo_indptr[b + 1] - a->qo_indptr[b]; i++)
			products += a->num_heads * ((double)keys_seen(a, b, i) + NOPE) * RANK;
	return attn_exact_step(products);
}

static int left_out(const struct cairn_mla_paged_args *a, int b, int i, int h, uint32_t step)
{
	if (!step || ((i == 0 || i == a->qo_indptr[b + 1] - a->qo_indptr[b] - 1) && h == i % a->num_heads))
		return 0;
	return ((uint32_t)((a->qo_indptr[b] + i) * a->num_heads + h) * 2654435761u >> 8) % step != 0;
}

static int is_finite(const void *x, int dtype, int64_t at, int n)
{
	for (int i = 0; i < n; i++)
		if (!isfinite(cairn_load(x, dtype, at + i)))
			return 0;
	return 1;
}

/* Returns whether all keys of request b are numbers. */
static int keys_are_finite(const struct cairn_mla_paged_args *a, int b)
{
	int rows = a->qo_indptr[b + 1] - a->qo_indptr[b], n = rows ? keys_seen(a, b, rows - 1) : 0;
	int finite = 1;

	for (int j = 0; j < n && finite; j++)
		finite = is_finite(a->kv.k_pages, a->dtype, key_at(a, b, j), RANK + ROPE);
	return finite;
}

/* Marks a row, counted over all heads, as undefined; lse: whether there is an lse. */
static void undefined_row(int64_t row, int lse, struct cairn_exact *exact)
{
	if (lse) {
		exact[1].val[row] = NAN;
		exact[1].bound[row] = INFINITY;
	}
	for (int64_t i = row * V_DIM; i < (row + 1) * V_DIM; i++) {
		exact->val[i] = NAN;
		exact->bound[i] = INFINITY;
	}
}

static void one_row(const struct cairn_mla_paged_args *a, int b, int i, int h, uint32_t step, struct row *r,
		    struct cairn_exact *exact)
{
	int64_t at = (((int64_t)a->qo_indptr[b] + i) * a->num_heads + h) * V_DIM;
	int skip = exact && left_out(a, b, i, h, step) && keys_seen(a, b, i);

	if (exact && !is_finite(a->q, a->dtype, at / V_DIM * (NOPE + ROPE), NOPE + ROPE)) {
		undefined_row(at / V_DIM, a->lse != NULL, exact);
		return;
	}
	if (!skip)
		attend(a, b, i, h, r);
	if (exact && !skip)
		judge(a, r);
	if (a->lse && exact) {
		exact[1].val[at / V_DIM] = skip ? 0 : r->lse;
		exact[1].bound[at / V_DIM] = skip ? INFINITY : r->lse_bound;
	} else if (a->lse) {
		a->lse[at / V_DIM] = (float)r->lse;
	}
	for (int d = 0; d < V_DIM; d++) {
		if (!exact) {
			cairn_store(a->out, a->dtype, at + d, r->out[0][d]);
			continue;
		}
		exact->val[at + d] = skip ? 0 : r->out[0][d];
		exact->bound[at + d] = skip ? INFINITY : r->bound[d];
	}
}

/* Sets the rows past the last request to 0, and their lse to -INFINITY. */
static void zero_rest(const struct cairn_mla_paged_args *a, struct cairn_exact *exact)
{
	int64_t row = (int64_t)a->num_heads * V_DIM;
	int64_t first = a->kv.batch ? a->qo_indptr[a->kv.batch] * row : 0;

	for (int64_t i = first; a->kv.batch && i < a->nnz_qo * row; i++) {
		if (exact)
			exact->val[i] = exact->bound[i] = 0;
		else
			cairn_store(a->out, a->dtype, i, 0);
	}
	for (int64_t i = first / V_DIM; a->kv.batch && a->lse && i < a->nnz_qo * row / V_DIM; i++) {
		if (exact) {
			exact[1].val[i] = -INFINITY;
			exact[1].bound[i] = 0;
		} else {
			a->lse[i] = -INFINITY;
		}
	}
}

/* Sets values and bounds in exact, or, if exact is NULL, writes rounded results to the arguments' arrays. */
static int all_rows(const struct cairn_mla_paged_args *a, struct cairn_exact *exact)
{
	uint32_t step = exact ? sample_step(a) : 0;
	int max_kv = 1, no_memory = 0, runs = exact ? RUNS + 1 : 1;

	zero_rest(a, exact);
	for (int b = 0; b < a->kv.batch; b++)
		max_kv = (int)cairn_kv_len(&a->kv, b) > max_kv ? (int)cairn_kv_len(&a->kv, b) : max_kv;
	#pragma omp parallel reduction(|:no_memory)
	{
		struct row *r = malloc(sizeof(*r) + sizeof(double) * (size_t)(runs + 1) * (size_t)max_kv);

		no_memory |= !r;
		if (r) {
			r->runs = runs;
			r->d = (double *)(r + 1);
			r->s = r->d + max_kv;
		}
		for (int b = 0; b < a->kv.batch; b++) {
			int rows = (a->qo_indptr[b + 1] - a->qo_indptr[b]) * a->num_heads;
			int64_t first = (int64_t)a->qo_indptr[b] * a->num_heads;
			int defined = !exact || keys_are_finite(a, b);

			#pragma omp for schedule(dynamic) nowait
			for (int k = 0; k < rows; k++)
				if (!defined)
					undefined_row(first + k, a->lse != NULL, exact);
				else if (r)
					one_row(a, b, k / a->num_heads, k % a->num_heads, step, r, exact);
		}
		free(r);
	}
	return no_memory ? cairn_error(ENOMEM, "mla_paged: no memory for %d logits", max_kv) : 0;
}

int cairn_mla_paged_ref(const struct cairn_mla_paged_args *args, void *stream)
{
	struct cairn_mla_paged_args a;

	(void)stream;
	CAIRN_TRY(cairn_mla_paged_check(args));
	cairn_copy_args(&a, args, sizeof(a));
	return all_rows(&a, NULL);
}

int cairn_mla_paged_exact(const struct cairn_mla_paged_args *args, struct cairn_exact *exact)
{
	struct cairn_mla_paged_args a;

	CAIRN_TRY(cairn_mla_paged_check(args));
	cairn_copy_args(&a, args, sizeof(a));
	return all_rows(&a, exact);
}
