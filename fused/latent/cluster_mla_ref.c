// SPDX-License-Identifier: Apache-2.0
/*
 * cluster_mla_ref - the reference, in double, rounded where the contract rounds; and its error bound
 *
 * An implementation that keeps to the contract is this chain with other rounding errors: at each of its nine
 * rounding points it may hold the other neighbour in dtype of a value that earlier errors have moved.
 * Propagating these errors as absolute values gives useless bounds: a rounding u of each of the `hidden`
 * elements of n could sum up to 0.8 u sqrt(hidden) in q, each stage of k terms multiplies by 0.8 sqrt(k), and
 * in bf16, at hidden 2048, a logit would be uncertain by more than 20. Instead, the errors are propagated as
 * variances. To first order,
 *
 *	var(y_i) = sum_k w_ik^2 var(x_k) + correlations,	var of a rounding: d (1 - d) ulp^2
 *
 * The correlations matter (all heads share the errors of n), and sampling the sum includes them. So RUNS
 * further chains round each value up or down at random, in proportion to the distances d and 1 - d, so that
 * exact values stay exact. sigma is their root mean square distance from the first chain, over the runs and
 * over the elements of a row, or over the runs of the element alone if that is larger. The mean of d (1 - d)
 * is 1/6, twice the 1/12 of rounding to nearest, and exactly the variance of the distance between two chains.
 * Hence
 *
 *	|out - exact|  <= 6 sigma + u |out| + tiny + (num_heads v_dim + 4) E (|x| + sum |a w_o|)
 *	|slot - exact| <= 6 sigma + (u + 32 E) |slot| + tiny,	separately for c and r
 *	                  + 8 E |pair| for r, whose pair of elements may cancel in the rotation
 *
 * with u half an ulp, tiny half a subnormal, E = 2^-23 (tensor cores truncate). The errors of fp32 sums
 * inside the chain are about 2^-24 sqrt(k) of their root sum of squares, below a twentieth of the rounding
 * that follows.
 */
#include "fused/block/block_ref.h"
#include "fused/latent/cluster_mla_ref.h"

#include <stdlib.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/rows.h"

#define RUNS	8
#define E	0x1p-23
#define MAX_K	16384

/* The values of all runs. Row b * runs + i is run i of request b; run 0 rounds to nearest. */
struct chain {
	const struct cairn_cluster_mla_args *a;
	const double *given;		/* used instead of a->x if not NULL */
	int runs, rows;
	double *x, *n, *cq, *q, *kv, *slot, *ql, *o, *v, *out, *magnitude;	/* magnitude: for bounds */
};

/* Returns the element of the pages at which key j of request b begins. */
static int64_t key_at(const struct cairn_cluster_mla_args *a, int b, int j)
{
	return cairn_kv_slot(&a->kv, b, j) * (a->kv_lora_rank + a->rope_dim);
}

static double uniform(uint64_t z)
{
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

static double rounded(const struct chain *c, int row, uint64_t point, double v)
{
	uint64_t box = 0, other;	/* bits of one element of any dtype */
	double near, far;

	cairn_store(&box, c->a->dtype, 0, v);
	near = cairn_load(&box, c->a->dtype, 0);
	if (row % c->runs == 0 || near == v || !isfinite(near))
		return near;
	other = near == 0 ? (v > 0 ? 1 : 0x8001) : (v > near) == (near > 0) ? box + 1 : box - 1;
	far = cairn_load(&other, c->a->dtype, 0);
	return uniform((point * 256 + (uint64_t)row) * 0x9e3779b97f4a7c15u) <
	       (v - near) / (far - near) ? far : near;
}

static void round_all(const struct chain *c, double *x, int64_t width, int stage)
{
	#pragma omp parallel for
	for (int64_t i = 0; i < c->rows * width; i++)
		x[i] = rounded(c, (int)(i / width), (uint64_t)(stage * (1ll << 32) + i % width), x[i]);
}

/* Norms the first n of `stride` elements of each row; out may be in. */
static void norm(const struct chain *c, double *out, const double *in, const void *weight, int n,
		 int64_t stride)
{
	for (int row = 0; row < c->rows; row++) {
		double sum = 0;

		for (int j = 0; j < n; j++)
			sum += in[row * stride + j] * in[row * stride + j];
		for (int j = 0; j < n; j++)
			out[row * stride + j] = in[row * stride + j] / sqrt(sum / n + (double)c->a->eps) *
						cairn_load(weight, c->a->dtype, j);
	}
}

/* Computes out = in W^T for all rows. magnitude, if not NULL: the sums of absolute values, for run 0 only. */
static void project(const struct chain *c, double *out, const double *in, const void *w, int n, int k,
		    double *magnitude)
{
	#pragma omp parallel for
	for (int i = 0; i < n; i++) {
		double weights[MAX_K];

		cairn_widen(weights, w, c->a->dtype, (int64_t)i * k, k);
		cairn_products(out + i, n, in, k, c->rows, weights, 1, k);
		for (int row = 0; magnitude && row < c->rows; row += c->runs)
			cairn_dot_bounded(in + (int64_t)row * k, weights, k, 0, 0,
					  &magnitude[(int64_t)row * n + i]);
	}
}

/* Rotates x, the rope_dim elements of one head, in interleaved pairs. */
static void rotate(const struct cairn_cluster_mla_args *a, double *x, int position)
{
	for (int p = 0; p < a->rope_dim / 2; p++) {
		float angle = (float)position * a->inv_freq[p];
		double c = cos((double)angle), s = sin((double)angle), even = x[2 * p], odd = x[2 * p + 1];

		x[2 * p] = even * c - odd * s;
		x[2 * p + 1] = odd * c + even * s;
	}
}

/*
 * Computes one head of all runs of request b: absorption, attention over the latents, values. ws holds the
 * logits [runs][keys], then the sum of p of each run.
 */
static void attend(const struct chain *c, int b, int h, double *ws)
{
	const struct cairn_cluster_mla_args *a = c->a;
	int rank = a->kv_lora_rank, nope = a->nope_dim, width = rank + a->rope_dim;
	int len = (int)cairn_kv_len(&a->kv, b);
	int64_t heads = a->num_heads, w_at = h * (int64_t)(nope + a->v_dim) * rank;
	double row[MAX_K];

	for (int d = 0; d < nope; d++) {
		cairn_widen(row, a->w_kv_b, a->dtype, w_at + (int64_t)d * rank, rank);
		for (int r = b * c->runs; r < (b + 1) * c->runs; r++)
			cairn_add_scaled(c->ql + (r * heads + h) * rank,
					 c->q[(r * heads + h) * (nope + a->rope_dim) + d], row, rank);
	}
	for (int r = b * c->runs; r < (b + 1) * c->runs; r++)
		for (int l = 0; l < rank; l++)
			c->ql[(r * heads + h) * rank + l] =
				rounded(c, r, 5ull << 32 | (uint64_t)(h * rank + l),
					c->ql[(r * heads + h) * rank + l]);
	for (int pass = 0; pass < 2; pass++) {	/* logits, then the weighted sum */
		for (int j = 0; j < len; j++) {
			if (j < len - 1)
				cairn_widen(row, a->kv.k_pages, a->dtype, key_at(a, b, j), width);
			for (int i = 0; i < c->runs; i++) {
				int64_t r = b * c->runs + i, at = (r * heads + h) * rank;
				double *s = ws + (int64_t)i * len, *o = c->o + at;

				/* the new key has the roundings of this run */
				for (int l = 0; j == len - 1 && l < width; l++)
					row[l] = c->kv[r * width + l];
				if (!pass)
					s[j] = a->sm_scale *
					    (cairn_dot(c->ql + at, row, rank) +
					     cairn_dot(c->q + (r * heads + h) * (nope + a->rope_dim) + nope,
						       row + rank, a->rope_dim));
				else
					cairn_add_scaled(o, s[j], row, rank);
			}
		}
		for (int i = 0; i < c->runs; i++) {
			int64_t r = b * c->runs + i;
			double *s = ws + (int64_t)i * len, *sum = ws + (int64_t)c->runs * len + i,
				top = -INFINITY;

			for (int j = 0; !pass && j < len; j++)
				top = fmax(top, s[j]);
			*sum = pass ? *sum : 0;
			for (int j = 0; !pass && j < len; j++) {
				s[j] = exp(s[j] - top);
				*sum += s[j];
				s[j] = rounded(c, (int)r,
					       (6ull << 32) + ((uint64_t)h << 40) + (uint64_t)j, s[j]);
			}
			for (int l = 0; pass && l < rank; l++)
				c->o[(r * heads + h) * rank + l] =
					rounded(c, (int)r, 7ull << 32 | (uint64_t)(h * rank + l),
						c->o[(r * heads + h) * rank + l] / *sum);
		}
	}
	for (int d = 0; d < a->v_dim; d++) {
		cairn_widen(row, a->w_kv_b, a->dtype, w_at + (int64_t)(nope + d) * rank, rank);
		for (int r = b * c->runs; r < (b + 1) * c->runs; r++)
			c->v[(r * heads + h) * a->v_dim + d] =
				rounded(c, r, 8ull << 32 | (uint64_t)(h * a->v_dim + d),
					cairn_dot(c->o + (r * heads + h) * rank, row, rank));
	}
}

static void run_chain(const struct chain *c, double *ws, int64_t ws_len)
{
	const struct cairn_cluster_mla_args *a = c->a;
	int hidden = a->hidden, rank = a->kv_lora_rank, width = rank + a->rope_dim, lora = a->q_lora_rank;
	int per_head = a->nope_dim + a->rope_dim, nq = a->num_heads * per_head, nv = a->num_heads * a->v_dim;

	for (int64_t i = 0; i < (int64_t)c->rows * hidden; i++)
		c->x[i] = c->given ? c->given[i] :
			  cairn_load(a->x, a->dtype, i / hidden / c->runs * hidden + i % hidden);
	norm(c, c->n, c->x, a->norm_weight, hidden, hidden);
	round_all(c, c->n, hidden, 0);
	if (lora) {
		project(c, c->cq, c->n, a->w_q_a, lora, hidden, NULL);
		round_all(c, c->cq, lora, 1);
		norm(c, c->cq, c->cq, a->q_norm, lora, lora);
		round_all(c, c->cq, lora, 2);
	}
	project(c, c->q, lora ? c->cq : c->n, a->w_q, nq, lora ? lora : hidden, NULL);
	round_all(c, c->q, nq, 3);
	project(c, c->slot, c->n, a->w_kv_a, width, hidden, NULL);
	round_all(c, c->slot, width, 4);
	norm(c, c->slot, c->slot, a->kv_norm, rank, width);
	for (int row = 0; row < c->rows; row++) {
		int position = a->positions[row / c->runs];

		rotate(a, c->slot + (int64_t)row * width + rank, position);
		for (int h = 0; h < a->num_heads; h++)
			rotate(a, c->q + (int64_t)row * nq + h * per_head + a->nope_dim, position);
	}
	round_all(c, c->q, nq, 9);
	for (int64_t i = 0; i < (int64_t)c->rows * width; i++)
		c->kv[i] = c->slot[i];
	round_all(c, c->kv, width, 10);
	#pragma omp parallel for schedule(dynamic)
	for (int i = 0; i < a->kv.batch * a->num_heads; i++)
		if (cairn_kv_len(&a->kv, i / a->num_heads) > 0)
			attend(c, i / a->num_heads, i % a->num_heads, ws + i * ws_len);
	project(c, c->out, c->v, a->w_o, hidden, nv, c->runs > 1 ? c->magnitude : NULL);
	for (int64_t i = 0; i < (int64_t)c->rows * hidden; i++)
		c->out[i] += c->x[i];
}

/* Sets bound[k] = 6 sigma, from the distances of the runs from the first one, for `count` elements. */
static void spread(const struct chain *c, const double *first, int64_t stride, int count, double *bound)
{
	double all = 0;

	for (int k = 0; k < count; k++) {
		bound[k] = 0;
		for (int i = 1; i < c->runs; i++)
			bound[k] += pow(first[i * stride + k] - first[k], 2) / (c->runs - 1);
		all += bound[k] / count;
	}
	for (int k = 0; k < count; k++)
		bound[k] = 6 * sqrt(fmax(bound[k], all));
}

static int has_nan(const double *x, int n)
{
	for (int i = 0; i < n; i++)
		if (isnan(x[i]))
			return 1;
	return 0;
}

/* Sets exact[0] for out and [1] for the pages, or, if exact is NULL, writes rounded results to both. */
static void finish(const struct chain *c, struct cairn_exact *exact)
{
	const struct cairn_cluster_mla_args *a = c->a;
	double u = cairn_dtype_roundoff(a->dtype), tiny = cairn_dtype_tiny(a->dtype);
	int rank = a->kv_lora_rank, width = rank + a->rope_dim;

	for (int b = 0; b < a->kv.batch; b++) {
		const double *out = c->out + (int64_t)b * c->runs * a->hidden;
		const double *slot = c->slot + (int64_t)b * c->runs * width;
		const double *magnitude = c->magnitude + (int64_t)b * c->runs * a->hidden;
		int len = (int)cairn_kv_len(&a->kv, b);
		int64_t at = len > 0 ? key_at(a, b, len - 1) : 0, row = (int64_t)b * a->hidden;

		for (int i = 0; i < a->hidden && !exact && len > 0; i++)
			cairn_store(a->out, a->dtype, row + i, out[i]);
		for (int i = 0; i < width && !exact && len > 0; i++)
			cairn_store(a->kv.k_pages, a->dtype, at + i, slot[i]);
		for (int i = 0; i < a->hidden && exact && len <= 0; i++) {	/* undefined */
			exact[0].val[row + i] = NAN;
			exact[0].bound[row + i] = INFINITY;
		}
		if (!exact || len <= 0)
			continue;
		spread(c, out, a->hidden, a->hidden, exact[0].bound + row);
		for (int i = 0; i < a->hidden; i++) {
			exact[0].val[row + i] = out[i];
			exact[0].bound[row + i] += u * fabs(out[i]) + tiny +
				(a->num_heads * a->v_dim + 4) * E * (fabs(out[i]) + magnitude[i]);
		}
		spread(c, slot, width, rank, exact[1].bound + at);
		spread(c, slot + rank, width, a->rope_dim, exact[1].bound + at + rank);
		for (int i = 0; i < width; i++) {
			exact[1].val[at + i] = slot[i];
			exact[1].bound[at + i] += (u + 32 * E) * fabs(slot[i]) + tiny;
			if (i >= rank)
				exact[1].bound[at + i] += 8 * E * hypot(slot[i], slot[i ^ 1]);
			if (isnan(slot[i]))	/* x holds a NaN, so the slot must hold one, too */
				exact[1].bound[at + i] = 0;
		}
		for (int i = 0, none = has_nan(out, a->hidden); none && i < a->hidden; i++) {
			exact[0].val[row + i] = NAN;
			exact[0].bound[row + i] = INFINITY;
		}
	}
}

/* Allocates the chain's arrays and computes it; c->a, given and runs are set. The caller frees c->x. */
static int run(struct chain *c)
{
	const struct cairn_cluster_mla_args *a = c->a;
	int64_t nq = (int64_t)a->num_heads * (a->nope_dim + a->rope_dim),
		nl = (int64_t)a->num_heads * a->kv_lora_rank;
	int64_t nv = (int64_t)a->num_heads * a->v_dim, width = a->kv_lora_rank + a->rope_dim,
		ws_len, max_len = 1;
	double *memory, *ws;

	for (int b = 0; b < a->kv.batch; b++)
		max_len = (int)cairn_kv_len(&a->kv, b) > max_len ? (int)cairn_kv_len(&a->kv, b) : max_len;
	c->rows = a->kv.batch * c->runs;
	ws_len = (max_len + 1) * c->runs;
	memory = calloc((size_t)(c->rows * (4 * (int64_t)a->hidden + a->q_lora_rank + nq + 2 * width +
					    2 * nl + nv) +
				 a->kv.batch * a->num_heads * ws_len + 1), sizeof(double));
	if (!memory)
		return cairn_error(ENOMEM, "cluster_mla: no memory for %lld keys", (long long)max_len);
	c->x = memory;
	c->n = c->x + (int64_t)c->rows * a->hidden;
	c->out = c->n + (int64_t)c->rows * a->hidden;
	c->magnitude = c->out + (int64_t)c->rows * a->hidden;
	c->cq = c->magnitude + (int64_t)c->rows * a->hidden;
	c->q = c->cq + (int64_t)c->rows * a->q_lora_rank;
	c->slot = c->q + c->rows * nq;
	c->kv = c->slot + c->rows * width;
	c->ql = c->kv + c->rows * width;
	c->o = c->ql + c->rows * nl;
	c->v = c->o + c->rows * nl;
	ws = c->v + c->rows * nv;
	run_chain(c, ws, ws_len);
	return 0;
}

int cairn_cluster_mla_ref(const struct cairn_cluster_mla_args *a, void *stream)
{
	struct chain c = { .a = a, .runs = 1 };

	(void)stream;
	CAIRN_TRY(cairn_cluster_mla_check(a));
	CAIRN_TRY(run(&c));
	finish(&c, NULL);
	free(c.x);
	return 0;
}

int cairn_cluster_mla_exact(const struct cairn_cluster_mla_args *a, struct cairn_exact *exact)
{
	struct chain c = { .a = a, .runs = RUNS + 1 };

	CAIRN_TRY(cairn_cluster_mla_check(a));
	CAIRN_TRY(run(&c));
	finish(&c, exact);
	free(c.x);
	return 0;
}

int cairn_block_mla(const struct cairn_cluster_mla_args *args, int b, const double *x,
		    double *out, double *slot)
{
	struct cairn_cluster_mla_args a = *args;
	struct chain c = { .a = &a, .given = x, .runs = 1 };

	a.kv = cairn_kv_one(a.kv, b);
	a.positions += b;
	CAIRN_TRY(run(&c));
	for (int i = 0; i < a.hidden; i++)
		out[i] = block_rounded(c.out[i], a.dtype);
	for (int i = 0; i < a.kv_lora_rank + a.rope_dim; i++)
		slot[i] = c.kv[i];
	free(c.x);
	return 0;
}
