// SPDX-License-Identifier: Apache-2.0
/*
 * block_attn_ref - the attention block of a decode step for one request, in double, rounded where the
 * contract (cluster_attn.h) rounds; and bounds on how far from it an implementation may be
 *
 * An implementation that follows the contract differs only by the errors of its fp32 arithmetic and by their
 * effect where a value is rounded to dtype. Each number carries two bounds on that difference:
 *
 *   err  a bound for any signs of the errors;
 *   dev  a deviation: errors of different elements are independent, so their squares add up. A sum of
 *        independent errors, each within [-e_i, e_i], exceeds 8 sqrt(sum e_i^2) with probability
 *        2 exp(-32) = 3e-14 (Hoeffding 1963, theorem 2).
 *
 * The bound is the smaller of err and 8 dev. err is smaller in exact sums and in sums of fewer than 64 terms;
 * 8 dev is smaller in long sums: for 4096 elements of n, err (which assumes the worst sign of every error) is
 * 64 times the actual error. With E = 2^-23 and u half an ulp of dtype:
 *
 *   sum of k       err (k + 2) E/2 S, S: sum of magnitudes, a subnormal factor counted as the smallest normal
 *   products y     (gemm_ref.c). dev (sqrt(k) + k/32) E/2 (|y| + 8 R), R: root of the sum of squares: k
 *                  roundings of partial sums within the bracket, or k/8 tensor core truncations by an ulp
 *                  of one sign, 8 k/32 E/2.
 *                  A sum that is exact in fp32 (exact_sum.h), of exact terms, has no error.
 *   rounding       [y - d, y + d] rounds to the interval between its rounded ends (block_ref.h), mostly a
 *                  single value without error, otherwise an ulp wide.
 *   n              cairn_block_norm(). 1 / rms is a common factor of all n; its error, with the square root
 *                  as above, returns as a common factor of q, k and v.
 *   q, k, v        errors of n times the weights, and the sum; a rounding. q and k: both terms of the
 *                  rotation, 8 E/2 for sine, cosine and arithmetic (rope_ref.c); a rounding.
 *   logits         d_j = sm_scale (dq . (k_j - mean) + [j is new] (q + dq) . dk) + f_j. mean: that of k under
 *                  p; softmax cancels what all logits share. f_j: the fp32 errors of attn_exact.c.
 *   a              with w_j = p_j e^(d_j), W = sum w_j: a' - a = sum (w_j - p_j) (v_j - a) / W, exactly. D is
 *                  the largest |d_j|. D <= 1/4: w_j - p_j is p_j d_j within p_j D^2 e^D / 2, W >= e^-D;
 *                  summed over j before the elements of dq, so dq multiplies the covariance of k and v
 *                  under p; f_j and dk enter key by key. D > 1/4: |w_j - p_j| <= p_j (e^(d_j) - 1), errors
 *                  relative to the largest logit's. Both: the error of the new v; P rounded, u p_j |v_j|
 *                  or half its smallest step, except for the largest logit (P is e^0); sums over the keys,
 *                  with a rescale for each. If all logits are exactly 0, P is 1 for each key, and the sum
 *                  may be exact; the division by the number of keys rounds, unless it is a power of two.
 *   out            errors of a, rounded, times the weights, and the sum with x and the bias.
 */
#include "fused/cluster_attn/block_attn_ref.h"

#include <stdlib.h>

#include "fused/block/exact_sum.h"
#include "primitives/base/error.h"
#include "primitives/base/wide.h"

#define E		0x1p-23
#define DEVIATIONS	8
#define MAX_DIM		128
#define CHUNK		256

/* A row of values with both bounds. err NULL: values only. */
struct carried {
	double *val, *err, *dev;
};

static struct carried at(struct carried c, int64_t i)
{
	return (struct carried){ c.val + i, c.err ? c.err + i : NULL, c.err ? c.dev + i : NULL };
}

static double bound_of(struct carried c, int64_t i)
{
	return fmin(c.err[i], DEVIATIONS * c.dev[i]);
}

static void set(struct carried c, int64_t i, double val, double err, double dev)
{
	c.val[i] = val;
	if (c.err) {
		c.err[i] = err;
		c.dev[i] = dev;
	}
}

/* Rounds src[i] into dst[i]; src and dst may be the same. */
static void round_to(struct carried dst, struct carried src, int64_t i, int dtype)
{
	double ulp = 2 * (cairn_dtype_roundoff(dtype) * fabs(src.val[i]) + cairn_dtype_tiny(dtype)), err, dev;
	double val = src.val[i];

	if (!src.err) {
		dst.val[i] = block_rounded(val, dtype);
		return;
	}
	err = bound_of(src, i);
	dev = hypot(src.dev[i], ulp);
	block_round((struct block_row){ &val, &err }, 0, dtype);
	set(dst, i, val, err, fmin(err, dev));
}

/* Sums over elements [0, n) of in . w: the value, S, R^2, and errors by magnitude and by squares */
struct sums {
	double val, size, squares, err, var;
};

static CAIRN_WIDE void add_products(struct sums *s, const double *x, const float *w, int n)
{
	double val = s->val;

	#pragma omp simd reduction(+:val)
	for (int j = 0; j < n; j++)
		val += x[j] * (double)w[j];
	s->val = val;
}

static CAIRN_WIDE void add_bounds(struct sums *s, struct carried in, const float *w, int n, double normal)
{
	double size = s->size, squares = s->squares, err = s->err, var = s->var;

	#pragma omp simd reduction(+:size, squares, err, var)
	for (int j = 0; j < n; j++) {
		double y = fabs((double)w[j]), x = fabs(in.val[j]) + in.err[j], d = in.dev[j] * y;

		squares += x * y * (x * y);
		size += (x > normal ? x : normal) * (y > normal ? y : normal);
		err += in.err[j] * y;
		var += d * d;
	}
	s->size = size;
	s->squares = squares;
	s->err = err;
	s->var = var;
}

/*
 * out[i] = in . w[i,:] + bias[i] + x[i], not rounded. common: a relative error that all elements of in share.
 * bias and x (x.val) may be NULL.
 */
static void project(struct carried out, struct carried in, const void *w, const void *bias,
		    struct block_row x, int64_t n, int64_t k, int dtype, double common)
{
	double normal = dtype == CAIRN_F16 ? 0x1p-14 : 0x1p-126;

	#pragma omp parallel for schedule(static) if (n * k > 16384)
	for (int64_t i = 0; i < n; i++) {
		double extra = bias ? cairn_load(bias, dtype, i) : 0, rest = x.val ? x.val[i] : 0;
		double x_err = x.val ? x.err[i] : 0, depth;
		struct sums s = { 0 };
		float row[CHUNK];

		for (int64_t j = 0; j < k; j += CHUNK) {
			int len = k - j < CHUNK ? (int)(k - j) : CHUNK;

			cairn_load_row(row, w, dtype, i * k + j, len);
			add_products(&s, in.val + j, row, len);
			if (out.err)
				add_bounds(&s, at(in, j), row, len, normal);
		}
		out.val[i] = s.val + extra + rest;
		if (!out.err)
			continue;
		s.size += fabs(extra) + fabs(rest) + x_err;
		depth = (sqrt((double)k) + (double)k / 32 + 2) * E / 2;
		out.err[i] = s.err + x_err + (double)(k + 4) * (E / 2 * s.size + 0x1p-149);
		out.dev[i] = sqrt(s.var + x_err * x_err) + common * fabs(s.val) + (double)k * 0x1p-149 +
			     depth * (fabs(s.val) + DEVIATIONS * sqrt(s.squares) + fabs(extra) + fabs(rest));
		if (s.err == 0 && x_err == 0 && is_exact_dot(in.val, w, i * k, k, dtype, s.size) &&
		    is_multiple(extra, exact_sum_step(s.size)) && is_multiple(rest, exact_sum_step(s.size)))
			out.err[i] = 0;
	}
}

/* Rotates one head in place, not rounded. */
static void rotate(const struct cairn_cluster_attn_args *a, struct carried x, int position)
{
	int half = a->head_dim / 2;

	for (int p = 0; p < half; p++) {
		float angle = (float)position * a->inv_freq[p];
		double c = cos((double)angle), s = sin((double)angle), lo = x.val[p], hi = x.val[p + half];
		double elo, ehi, dlo, dhi, fp32;

		x.val[p] = lo * c - hi * s;
		x.val[p + half] = hi * c + lo * s;
		if (!x.err)
			continue;
		elo = x.err[p];
		ehi = x.err[p + half];
		dlo = x.dev[p];
		dhi = x.dev[p + half];
		fp32 = 4 * E * (fabs(lo) + elo + fabs(hi) + ehi) + 8 * 0x1p-149;
		set(x, p, x.val[p], fabs(c) * elo + fabs(s) * ehi + fp32,
		    hypot(hypot(c * dlo, s * dhi), fp32));
		set(x, p + half, x.val[p + half], fabs(c) * ehi + fabs(s) * elo + fp32,
		    hypot(hypot(c * dhi, s * dlo), fp32));
	}
}

/* State of attention for one head: its request and heads, and buffers for its keys. */
struct head {
	const struct cairn_cluster_attn_args *a;
	int b, group, len, top;
	int exact_zeros;			/* all logits are 0, and exact */
	struct carried q, new_k, new_v;		/* rounded */
	/* [len]: logits, weights, fp32 errors f_j, bounds err and dev of d_j */
	double *s, *p, *f, *err, *dev;
	double l;
	double mean[MAX_DIM];
	float cov[MAX_DIM * MAX_DIM];		/* sm_scale sum_j p_j (k_j - mean)[d] (v_j - a)[c] */
};

static inline __attribute__((always_inline))
void load_key(const struct head *h, const void *pages, struct carried fresh, float *x, int j)
{
	int dim = h->a->head_dim;

	if (j < h->len - 1)
		cairn_load_row(x, pages, h->a->dtype,
			       (cairn_kv_slot(&h->a->kv, h->b, j) * h->a->num_kv_heads + h->group) * dim,
			       dim);
	else
		for (int c = 0; c < dim; c++)
			x[c] = (float)fresh.val[c];
}

static CAIRN_WIDE void add_outer(float *cov, const float *x, const float *y, int dim)
{
	for (int d = 0; d < dim; d++)
		for (int c = 0; c < dim; c++)
			cov[d * dim + c] += x[d] * y[c];
}

/* Returns whether q and the new key and value have no error. */
static int is_certain(const struct head *h)
{
	int certain = h->q.err != NULL;

	for (int d = 0; d < h->a->head_dim && certain; d++)
		certain = h->q.err[d] == 0 && h->new_k.err[d] == 0 && h->new_v.err[d] == 0;
	return certain;
}

/* Returns whether the sum of all values, each with weight 1, is exact. */
static int values_add_up(const struct head *h)
{
	double size[MAX_DIM] = { 0 };
	float v[MAX_DIM];

	for (int j = 0; j < h->len; j++) {
		load_key(h, h->a->kv.v_pages, h->new_v, v, j);
		for (int c = 0; c < h->a->head_dim; c++)
			size[c] += fabs((double)v[c]);
	}
	for (int j = 0; j < h->len; j++) {
		load_key(h, h->a->kv.v_pages, h->new_v, v, j);
		for (int c = 0; c < h->a->head_dim; c++)
			if (!is_multiple((double)v[c], exact_sum_step(size[c])))
				return 0;
	}
	return 1;
}

/* Computes the logits, the weights and a, and the part of f_j that follows from magnitudes. */
static CAIRN_WIDE void attend_values(struct head *h, double *o)
{
	int dim = h->a->head_dim;
	double scale = h->a->sm_scale;
	float k[MAX_DIM], v[MAX_DIM];

	h->top = 0;
	h->l = 0;
	h->exact_zeros = is_certain(h);
	for (int j = 0; j < h->len; j++) {
		double dot = 0, size = 0;

		load_key(h, h->a->kv.k_pages, h->new_k, k, j);
		#pragma omp simd reduction(+:dot, size)
		for (int d = 0; d < dim; d++) {
			dot += h->q.val[d] * (double)k[d];
			size += fabs(h->q.val[d] * (double)k[d]);
		}
		h->exact_zeros = h->exact_zeros && dot == 0;
		for (int d = 0; d < dim && h->exact_zeros; d++)
			h->exact_zeros = is_multiple(h->q.val[d] * (double)k[d], exact_sum_step(size));
		h->s[j] = scale * dot;
		h->f[j] = (dim + 4) * E * scale * size;
		if (h->s[j] > h->s[h->top])
			h->top = j;
	}
	for (int j = 0; j < h->len; j++)
		h->l += exp(h->s[j] - h->s[h->top]);
	for (int c = 0; c < dim; c++)
		o[c] = h->mean[c] = 0;
	for (int j = 0; j < h->len; j++) {
		h->p[j] = exp(h->s[j] - h->s[h->top]) / h->l;
		load_key(h, h->a->kv.v_pages, h->new_v, v, j);
		for (int c = 0; c < dim; c++)
			o[c] += h->p[j] * (double)v[c];
		if (!h->q.err)
			continue;
		load_key(h, h->a->kv.k_pages, h->new_k, k, j);
		for (int d = 0; d < dim; d++)
			h->mean[d] += h->p[j] * (double)k[d];
	}
}

/* Computes the bounds of all d_j; returns D. */
static CAIRN_WIDE double logit_errors(struct head *h)
{
	int dim = h->a->head_dim;
	double scale = h->a->sm_scale, most = 0;
	float k[MAX_DIM];

	for (int j = 0; j < h->len; j++) {
		double err = 0, var = 0;

		load_key(h, h->a->kv.k_pages, h->new_k, k, j);
		#pragma omp simd reduction(+:err, var)
		for (int d = 0; d < dim; d++) {
			double far = fabs((double)k[d] - h->mean[d]);

			err += h->q.err[d] * far;
			var += h->q.dev[d] * far * (h->q.dev[d] * far);
		}
		h->f[j] += 2 * E * (h->s[h->top] - h->s[j]) + 2 * E;
		h->err[j] = scale * err + h->f[j];
		h->dev[j] = scale * scale * var + h->f[j] * h->f[j];
	}
	for (int d = 0; d < dim; d++) {		/* the new key has an error of its own */
		h->err[h->len - 1] += scale * (fabs(h->q.val[d]) + h->q.err[d]) * h->new_k.err[d];
		h->dev[h->len - 1] += pow(scale * (fabs(h->q.val[d]) + h->q.err[d]) * h->new_k.dev[d], 2);
	}
	for (int j = 0; j < h->len; j++) {
		h->dev[j] = sqrt(h->dev[j]);
		most = fmax(most, fmin(h->err[j], DEVIATIONS * h->dev[j]));
	}
	return most;
}

/*
 * Sums of the errors that enter key by key. key_errors() also computes the covariance, unless `large`, and a
 * lower bound *least of W.
 */
struct by_key {
	double err[MAX_DIM], var[MAX_DIM], size[MAX_DIM], squares[MAX_DIM];
	double far[MAX_DIM], far_squares[MAX_DIM];	/* sums of p_j |v_j - a|, and of their squares */
};

static CAIRN_WIDE void key_errors(struct head *h, const double *o, struct by_key *sum, int large,
				  double *least)
{
	int dim = h->a->head_dim, dtype = h->a->dtype, last = h->len - 1, moves = 0;
	double u = cairn_dtype_roundoff(dtype), tiny = fmax(cairn_dtype_tiny(dtype), 0x1p-126) / h->l;
	double d_top = fmin(h->err[h->top], DEVIATIONS * h->dev[h->top]);
	float k[MAX_DIM], v[MAX_DIM], x[MAX_DIM], y[MAX_DIM];

	for (int d = 0; d < dim; d++)
		moves |= h->q.err[d] > 0;
	*least = 0;
	for (int j = 0; j < h->len; j++) {
		double p = h->p[j], err = p * h->f[j], dev = err, round = j == h->top ? 0 : u * p + tiny;

		if (large) {
			double d = j == h->top ? 0 : fmin(h->err[j], DEVIATIONS * h->dev[j]) + d_top;

			err = exp(fmin(h->s[j] - h->s[h->top] + d, 700)) / h->l - p;
			*least += p * exp(-d);
			round = j == h->top ? 0 : u * (p + err) + tiny;
		} else if (j == last) {		/* dk; the effect of dq is in the covariance */
			double k_err = 0, k_var = 0;

			for (int d = 0; d < dim; d++) {
				double q = h->a->sm_scale * (fabs(h->q.val[d]) + h->q.err[d]);

				k_err += q * h->new_k.err[d];
				k_var += q * h->new_k.dev[d] * (q * h->new_k.dev[d]);
			}
			err += p * k_err;
			dev = hypot(dev, p * sqrt(k_var));
		}
		load_key(h, h->a->kv.v_pages, h->new_v, v, j);
		for (int c = 0; c < dim; c++) {
			double far = fabs((double)v[c] - o[c]), size = fabs((double)v[c]);

			sum->err[c] += err * far + round * size;
			sum->var[c] += dev * far * (dev * far) + round * size * (round * size);
			sum->size[c] += p * size;
			sum->squares[c] += p * size * (p * size);
			sum->far[c] += p * far;
			sum->far_squares[c] += p * far * (p * far);
			if (j == last) {
				sum->err[c] += (large ? p + err : p) * h->new_v.err[c];
				sum->var[c] += p * h->new_v.dev[c] * (p * h->new_v.dev[c]);
			}
		}
		if (large || !moves || p == 0)
			continue;
		load_key(h, h->a->kv.k_pages, h->new_k, k, j);
		for (int d = 0; d < dim; d++) {
			x[d] = (float)(h->a->sm_scale * p * ((double)k[d] - h->mean[d]));
			y[d] = (float)((double)v[d] - o[d]);
		}
		add_outer(h->cov, x, y, dim);
	}
}

/* Computes a for one head, not rounded. */
static void attend(struct head *h, struct carried out)
{
	int dim = h->a->head_dim;
	double n = h->len, chain = (sqrt(n) + n / 32 + 32) * E, most, least, second;
	struct by_key sum = { 0 };

	attend_values(h, out.val);
	if (!out.err)
		return;
	if (h->exact_zeros && values_add_up(h)) {
		for (int c = 0; c < dim; c++)
			out.err[c] = out.dev[c] = h->len & (h->len - 1) ? E * fabs(out.val[c]) : 0;
		return;
	}
	most = logit_errors(h);
	for (int i = 0; i < dim * dim; i++)
		h->cov[i] = 0;
	key_errors(h, out.val, &sum, most > 0.25, &least);
	second = most > 0.25 ? 0 : most * most / 2 * exp(most);
	if (most <= 0.25)
		least = exp(-most);
	for (int c = 0; c < dim; c++) {
		double err = sum.err[c], var = sum.var[c];

		for (int d = 0; d < dim; d++) {
			double x = fabs((double)h->cov[d * dim + c]);

			err += x * h->q.err[d];
			var += x * h->q.dev[d] * (x * h->q.dev[d]);
		}
		err = (err + second * sum.far[c]) / least;
		var = (var + second * second * sum.far_squares[c]) / (least * least);
		out.err[c] = err + (1.5 * n + 32) * E * (sum.size[c] + fabs(out.val[c])) + 0x1p-126;
		out.dev[c] = sqrt(var) + 0x1p-126 +
			     chain * (2 * fabs(out.val[c]) + DEVIATIONS * sqrt(sum.squares[c]));
		if (most > 0.25)	/* the weights of all keys may change together */
			out.dev[c] = out.err[c];
	}
}

static int attend_heads(const struct cairn_cluster_attn_args *a, int b, struct carried qkv,
			struct carried out)
{
	int dim = a->head_dim, nq = a->num_qo_heads, nk = a->num_kv_heads, failed = 0;
	int len = (int)cairn_kv_len(&a->kv, b);

	#pragma omp parallel reduction(|:failed) if ((double)nq * len > 64)
	{
		struct head *h = malloc(sizeof(*h) + 5 * sizeof(double) * (size_t)len);

		failed |= !h;
		#pragma omp for schedule(dynamic)
		for (int i = 0; i < nq; i++) {
			if (!h)
				continue;
			h->a = a;
			h->b = b;
			h->group = i / (nq / nk);
			h->len = len;
			h->q = at(qkv, (int64_t)i * dim);
			h->new_k = at(qkv, (int64_t)(nq + h->group) * dim);
			h->new_v = at(qkv, (int64_t)(nq + nk + h->group) * dim);
			h->s = (double *)(h + 1);
			h->p = h->s + len;
			h->f = h->p + len;
			h->err = h->f + len;
			h->dev = h->err + len;
			attend(h, at(out, (int64_t)i * dim));
		}
		free(h);
	}
	return failed ? cairn_error(ENOMEM, "cluster_attn: no memory for %d logits", len) : 0;
}

/* Returns the relative error of the common factor of n, as a deviation. */
static double factor_error(const struct cairn_cluster_attn_args *a, struct block_row x)
{
	double n = a->hidden, sum = 0, err = 0;

	for (int j = 0; j < a->hidden; j++) {
		sum += x.val[j] * x.val[j];
		err += fabs(x.val[j]) * x.err[j];
	}
	return (0.5 * (sqrt(n) + n / 32) + 16) * E / 2 + (sum > 0 ? err / sum : 0);
}

/*
 * Computes request b: out, and k and v as appended, not rounded. If out.err is NULL, no bounds are computed.
 */
static int run_block(const struct cairn_cluster_attn_args *a, int b, struct block_row x, struct carried out,
		     struct carried k, struct carried v)
{
	int64_t nq = (int64_t)a->num_qo_heads * a->head_dim, nk = (int64_t)a->num_kv_heads * a->head_dim;
	int64_t size = a->hidden + 2 * nq + 2 * nk;
	double *memory = calloc((size_t)(3 * size), sizeof(double)), common;
	struct carried n, qkv, att;
	int ret;

	if (!memory)
		return cairn_error(ENOMEM, "cluster_attn: no memory for %lld numbers", (long long)size);
	n = (struct carried){ memory, memory + size, memory + 2 * size };
	cairn_block_norm((struct block_row){ n.val, n.err }, x, a->norm_weight, a->hidden, a->eps, a->dtype);
	for (int j = 0; j < a->hidden; j++)
		n.dev[j] = n.err[j];
	common = factor_error(a, x);
	if (!out.err)
		n.err = n.dev = NULL;
	qkv = at(n, a->hidden);
	att = at(qkv, nq + 2 * nk);
	project(qkv, n, a->w_qkv, a->b_qkv, (struct block_row){ NULL, NULL }, nq + 2 * nk, a->hidden,
		a->dtype, common);
	for (int64_t i = 0; i < nq + 2 * nk; i++) {
		if (i >= nq + nk)
			set(v, i - nq - nk, qkv.val[i], qkv.err ? qkv.err[i] : 0, qkv.err ? qkv.dev[i] : 0);
		round_to(qkv, qkv, i, a->dtype);
	}
	for (int h = 0; h < a->num_qo_heads + a->num_kv_heads; h++)
		rotate(a, at(qkv, (int64_t)h * a->head_dim), a->positions[b]);
	for (int64_t i = 0; i < nq + nk; i++) {
		if (i >= nq)
			set(k, i - nq, qkv.val[i], qkv.err ? qkv.err[i] : 0, qkv.err ? qkv.dev[i] : 0);
		round_to(qkv, qkv, i, a->dtype);
	}
	ret = attend_heads(a, b, qkv, att);
	for (int64_t i = 0; i < nq && !ret; i++)
		round_to(att, att, i, a->dtype);
	if (!ret)
		project(out, att, a->w_o, a->b_o, x, a->hidden, nq, a->dtype, 0);
	free(memory);
	return ret;
}

int cairn_block_attn_unrounded(const struct cairn_cluster_attn_args *a, int b, struct block_row x,
			       struct block_row out, struct block_row k, struct block_row v)
{
	int64_t nk = (int64_t)a->num_kv_heads * a->head_dim, size = a->hidden > nk ? a->hidden : nk;
	double *dev = malloc(sizeof(double) * (size_t)(3 * size));
	struct carried rows[] = { { out.val, out.err, dev }, { k.val, k.err, dev + size },
				  { v.val, v.err, dev + 2 * size } };
	int ret;

	if (!dev)
		return cairn_error(ENOMEM, "cluster_attn: no memory for %lld numbers", (long long)size);
	ret = run_block(a, b, x, rows[0], rows[1], rows[2]);
	for (int r = 0; r < 3 && !ret && out.err; r++)
		for (int64_t i = 0; i < (r ? nk : a->hidden); i++)
			rows[r].err[i] = bound_of(rows[r], i);
	free(dev);
	return ret;
}

int cairn_block_attn(const struct cairn_cluster_attn_args *a, int b, struct block_row x, struct block_row out,
		     struct block_row k, struct block_row v)
{
	int64_t nk = (int64_t)a->num_kv_heads * a->head_dim;

	CAIRN_TRY(cairn_block_attn_unrounded(a, b, x, out, k, v));
	for (int64_t i = 0; i < a->hidden; i++)
		block_round(out, i, a->dtype);
	for (int64_t i = 0; i < nk; i++) {
		block_round(k, i, a->dtype);
		block_round(v, i, a->dtype);
	}
	return 0;
}
