// SPDX-License-Identifier: Apache-2.0
/*
 * attn_bwd_ref - the reference in double, and its bounds: one row of dq, or one key's dk and dv, at a time
 *
 * out and lse are inputs, so each pair of a row and a key is independent. The bounds follow the values
 * through any implementation that keeps to the contract; E = 2^-23 and u are those of attn_exact.c.
 *
 *   p       s has an error of (qk_dim + 2) E sm_scale sum |q k|; a softcap does not increase it, but adds 6E
 *           softcap. Scaling and rounding s and lse before the subtraction adds 2E (|s| + |lse|), and exp2
 *           adds 4E. The sum of these is rho. p is wrong by p (e^rho - 1) and, where it may be flushed, by
 *           2^-126.
 *   dv      rounding p to dtype adds u p, or half the smallest step. The sum of n rows adds n E sum p |dout|.
 *   ds      with dp = sum dout v, dp - delta is wrong by E v_dim (sum |dout v| + sum |dout out|) +
 *           2E (|dp| + |delta|). With t = s / softcap, f is wrong by 2 |t| (error of t + 6E) + 4E. Then ds is
 *           rounded to dtype.
 *   dq, dk  sm_scale times the sum of the errors of ds times |k| or |q|, and n E sum |ds k| for n terms.
 *   all     one rounding adds u times the result, or half the smallest step.
 *
 * Above 2^30 products in q.k, a fixed pseudo-random sample of the rows and of the keys is computed. The
 * others have an infinite bound: their gradients need only be finite.
 */
#include "fused/attention/backward/attn_bwd.h"

#include <math.h>
#include <stdlib.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/wide.h"
#include "fused/attention/base/attn_exact.h"
#include "fused/attention/base/attn_tile.h"

#define E	0x1p-23
#define LEAST	0x1p-126	/* smaller magnitudes may be flushed */

/* What all pairs of a call have in common. Strides are never 0. */
struct call {
	const struct cairn_attn_bwd_args *a;
	int64_t q_stride, k_stride, v_stride, k_head, v_head;
	int group;
	uint32_t step;		/* 0: everything is computed; n: one row, and one key, in n */
	double *delta, *sum;	/* [nnz_qo * num_qo_heads] delta, and the sum of its magnitudes */
};

static const void *at(const struct call *c, const void *x, int64_t element)
{
	return (const char *)x + element * (int64_t)cairn_dtype_bytes(c->a->dtype);
}

static void load_q(const struct call *c, float *q, int64_t row, int h)
{
	cairn_load_row(q, at(c, c->a->q, row * c->q_stride + (int64_t)h * c->a->qk_dim), c->a->dtype, 0,
		       c->a->qk_dim);
}

static void load_k(const struct call *c, float *k, int64_t row, int g)
{
	cairn_load_row(k, at(c, c->a->k, row * c->k_stride + g * c->k_head), c->a->dtype, 0, c->a->qk_dim);
}

static void load_v(const struct call *c, float *v, int64_t row, int g)
{
	cairn_load_row(v, at(c, c->a->v, row * c->v_stride + g * c->v_head), c->a->dtype, 0, c->a->v_dim);
}

/* Loads a row of out or of dout. */
static void load_o(const struct call *c, float *o, const void *x, int64_t row, int h)
{
	int64_t first = (row * c->a->num_qo_heads + h) * c->a->v_dim;

	cairn_load_row(o, at(c, x, first), c->a->dtype, 0, c->a->v_dim);
}

/* A pair of a row and a key: p and ds, and the error that each may have when it is multiplied. */
struct pair {
	double p, p_error, ds, ds_error;
};

static CAIRN_WIDE struct pair pair_of(const struct call *c, const float *q, const float *k, const float *dout,
				      const float *v, int64_t row)
{
	const struct cairn_attn_bwd_args *a = c->a;
	double u = cairn_dtype_roundoff(a->dtype), tiny = fmax(cairn_dtype_tiny(a->dtype), LEAST);
	double dot = 0, dots = 0, dp = 0, dps = 0, s, d, f = 1, f_error = 0, rho, wrong;
	double lse = (double)a->lse[row], delta = c->delta[row], dp_error;
	struct pair x;

	#pragma omp simd reduction(+:dot, dots)
	for (int i = 0; i < a->qk_dim; i++) {
		dot += (double)q[i] * k[i];
		dots += fabs((double)q[i] * k[i]);
	}
	#pragma omp simd reduction(+:dp, dps)
	for (int i = 0; i < a->v_dim; i++) {
		dp += (double)dout[i] * v[i];
		dps += fabs((double)dout[i] * v[i]);
	}
	s = a->sm_scale * dot;
	d = (a->qk_dim + 2) * E * a->sm_scale * dots;
	if (a->softcap > 0) {
		double cap = (double)a->softcap, t = tanh(s / cap);

		f = 1 - t * t;
		f_error = 2 * fabs(t) * (d / cap + 6 * E) + 4 * E;
		s = cap * t;
		d += 6 * E * cap;
	}
	rho = d + 2 * E * (fabs(s) + fabs(lse)) + 4 * E;
	x.p = exp(s - lse);
	wrong = x.p * expm1(fmin(rho, 700)) + LEAST;
	x.p_error = wrong + u * (x.p + wrong) + tiny;
	x.ds = x.p * (dp - delta) * f;
	dp_error = E * a->v_dim * (dps + c->sum[row]) + 2 * E * (fabs(dp) + fabs(delta));
	x.ds_error = (wrong * fabs(dp - delta) + (x.p + wrong) * dp_error) * (f + f_error) +
		     x.p * fabs(dp - delta) * f_error;
	x.ds_error += u * (fabs(x.ds) + x.ds_error) + tiny;
	return x;
}

static double rounding(const struct call *c, double x)
{
	return cairn_dtype_roundoff(c->a->dtype) * fabs(x) + fmax(cairn_dtype_tiny(c->a->dtype), LEAST);
}

/* Stores n values and bounds in exact, or, if exact is NULL, rounds the values to `to`. */
static void keep(const struct call *c, void *to, struct cairn_exact *exact, int64_t first, int n,
		 const double *x, const double *bound)
{
	for (int i = 0; i < n; i++) {
		if (!exact) {
			cairn_store(to, c->a->dtype, first + i, x[i]);
			continue;
		}
		exact->val[first + i] = x[i];
		exact->bound[first + i] = bound[i];
	}
}

static int left_out(const struct call *c, int64_t i)
{
	return c->step && ((uint32_t)i * 2654435761u >> 8) % c->step != 0;
}

static void keep_unjudged(const struct call *c, struct cairn_exact *exact, int64_t first, int n)
{
	double x[ATTN_MAX_DIM], bound[ATTN_MAX_DIM];

	for (int i = 0; i < n; i++) {
		x[i] = 0;
		bound[i] = INFINITY;
	}
	keep(c, NULL, exact, first, n, x, bound);
}

/* A request and a KV head. */
struct task {
	int b, g, qo_first, qo_len, kv_first, kv_len;
};

static struct task task_of(const struct call *c, int b, int g)
{
	const struct cairn_attn_bwd_args *a = c->a;

	return (struct task){ b, g, a->qo_indptr[b], a->qo_indptr[b + 1] - a->qo_indptr[b], a->kv_indptr[b],
			      a->kv_indptr[b + 1] - a->kv_indptr[b] };
}

static int sees(const struct call *c, const struct task *t, int i, int j)
{
	return j < attn_visible(i, t->qo_len, t->kv_len, c->a->causal) &&
	       j >= attn_first_key(i, t->qo_len, t->kv_len, c->a->window);
}

static CAIRN_WIDE void row_of_dq(const struct call *c, const struct task *t, int i, int h,
				 struct cairn_exact *exact)
{
	const struct cairn_attn_bwd_args *a = c->a;
	float q[ATTN_MAX_DIM], k[ATTN_MAX_DIM], v[ATTN_MAX_DIM], dout[ATTN_MAX_DIM];
	double dq[ATTN_MAX_DIM] = { 0 }, bound[ATTN_MAX_DIM] = { 0 };
	int end = attn_visible(i, t->qo_len, t->kv_len, a->causal);
	int first = attn_first_key(i, t->qo_len, t->kv_len, a->window);
	int64_t row = t->qo_first + i;

	if (end > first) {
		load_q(c, q, row, h);
		load_o(c, dout, a->dout, row, h);
	}
	for (int j = first; j < end; j++) {
		struct pair x;

		load_k(c, k, t->kv_first + j, t->g);
		load_v(c, v, t->kv_first + j, t->g);
		x = pair_of(c, q, k, dout, v, row * a->num_qo_heads + h);
		for (int d = 0; d < a->qk_dim; d++) {
			dq[d] += a->sm_scale * x.ds * k[d];
			bound[d] += a->sm_scale * fabs((double)k[d]) *
				    (x.ds_error + (end - first + 4) * E * (fabs(x.ds) + x.ds_error));
		}
	}
	for (int d = 0; d < a->qk_dim; d++)
		bound[d] += rounding(c, dq[d]);
	keep(c, a->dq, exact, (row * a->num_qo_heads + h) * a->qk_dim, a->qk_dim, dq, bound);
}

static CAIRN_WIDE void rows_of_dk_dv(const struct call *c, const struct task *t, int j,
				     struct cairn_exact *exact)
{
	const struct cairn_attn_bwd_args *a = c->a;
	float q[ATTN_MAX_DIM], k[ATTN_MAX_DIM], v[ATTN_MAX_DIM], dout[ATTN_MAX_DIM];
	double dk[ATTN_MAX_DIM] = { 0 }, dk_bound[ATTN_MAX_DIM] = { 0 };
	double dv[ATTN_MAX_DIM] = { 0 }, dv_bound[ATTN_MAX_DIM] = { 0 };
	double depth = ((double)t->qo_len * c->group + 4) * E;
	int64_t to = (int64_t)(t->kv_first + j) * a->num_kv_heads + t->g;
	int loaded = 0;

	for (int i = 0; i < t->qo_len; i++) {
		if (!sees(c, t, i, j))
			continue;
		if (!loaded++) {
			load_k(c, k, t->kv_first + j, t->g);
			load_v(c, v, t->kv_first + j, t->g);
		}
		for (int h = t->g * c->group; h < (t->g + 1) * c->group; h++) {
			int64_t row = t->qo_first + i;
			struct pair x;

			load_q(c, q, row, h);
			load_o(c, dout, a->dout, row, h);
			x = pair_of(c, q, k, dout, v, row * a->num_qo_heads + h);
			for (int d = 0; d < a->qk_dim; d++) {
				dk[d] += a->sm_scale * x.ds * q[d];
				dk_bound[d] += a->sm_scale * fabs((double)q[d]) *
					       (x.ds_error + depth * (fabs(x.ds) + x.ds_error));
			}
			for (int d = 0; d < a->v_dim; d++) {
				dv[d] += x.p * dout[d];
				dv_bound[d] += fabs((double)dout[d]) *
					       (x.p_error + depth * (x.p + x.p_error));
			}
		}
	}
	for (int d = 0; d < a->qk_dim; d++)
		dk_bound[d] += rounding(c, dk[d]);
	for (int d = 0; d < a->v_dim; d++)
		dv_bound[d] += rounding(c, dv[d]);
	keep(c, a->dk, exact ? exact + 1 : NULL, to * a->qk_dim, a->qk_dim, dk, dk_bound);
	keep(c, a->dv, exact ? exact + 2 : NULL, to * a->v_dim, a->v_dim, dv, dv_bound);
}

static void set_delta(const struct call *c, int64_t row, int h)
{
	float out[ATTN_MAX_DIM], dout[ATTN_MAX_DIM];
	double delta = 0, sum = 0;

	load_o(c, out, c->a->out, row, h);
	load_o(c, dout, c->a->dout, row, h);
	for (int d = 0; d < c->a->v_dim; d++) {
		delta += (double)out[d] * dout[d];
		sum += fabs((double)out[d] * dout[d]);
	}
	c->delta[row * c->a->num_qo_heads + h] = delta;
	c->sum[row * c->a->num_qo_heads + h] = sum;
}

static void gradients(const struct call *c, const struct task *t, struct cairn_exact *exact)
{
	const struct cairn_attn_bwd_args *a = c->a;

	#pragma omp for schedule(dynamic) nowait
	for (int n = 0; n < t->qo_len * c->group; n++) {
		int i = n / c->group, h = t->g * c->group + n % c->group;
		int64_t row = (int64_t)(t->qo_first + i) * a->num_qo_heads + h;

		if (exact && left_out(c, row))
			keep_unjudged(c, exact, row * a->qk_dim, a->qk_dim);
		else
			row_of_dq(c, t, i, h, exact);
	}
	#pragma omp for schedule(dynamic) nowait
	for (int j = 0; j < t->kv_len; j++) {
		int64_t row = (int64_t)(t->kv_first + j) * a->num_kv_heads + t->g;

		if (exact && left_out(c, row)) {
			keep_unjudged(c, exact + 1, row * a->qk_dim, a->qk_dim);
			keep_unjudged(c, exact + 2, row * a->v_dim, a->v_dim);
		} else {
			rows_of_dk_dv(c, t, j, exact);
		}
	}
}

/* Returns whether one of n elements is not a number. If `undefine`, also marks all of them as undefined. */
static int visit(struct cairn_exact *exact, int64_t first, int n, int undefine)
{
	int bad = 0;

	for (int64_t i = first; i < first + n; i++) {
		bad |= !isfinite(exact->val[i]);
		if (!undefine)
			continue;
		exact->val[i] = NAN;
		exact->bound[i] = INFINITY;
	}
	return bad;
}

static int visit_task(const struct call *c, const struct task *t, struct cairn_exact *exact, int undefine)
{
	const struct cairn_attn_bwd_args *a = c->a;
	int bad = 0;

	for (int n = 0; n < t->qo_len * c->group; n++) {
		int64_t row = (int64_t)(t->qo_first + n / c->group) * a->num_qo_heads + t->g * c->group +
			      n % c->group;

		bad |= visit(exact, row * a->qk_dim, a->qk_dim, undefine);
	}
	for (int j = 0; j < t->kv_len; j++) {
		int64_t row = (int64_t)(t->kv_first + j) * a->num_kv_heads + t->g;

		bad |= visit(exact + 1, row * a->qk_dim, a->qk_dim, undefine);
		bad |= visit(exact + 2, row * a->v_dim, a->v_dim, undefine);
	}
	return bad;
}

static uint32_t sample_step(const struct call *c)
{
	double products = 0;

	for (int b = 0; b < c->a->batch; b++) {
		struct task t = task_of(c, b, 0);

		products += (double)t.qo_len * t.kv_len * c->a->num_qo_heads * c->a->qk_dim;
	}
	return attn_exact_step(products);
}

static int run(const struct cairn_attn_bwd_args *a, struct cairn_exact *exact)
{
	struct cairn_attn_dense_args f = cairn_attn_bwd_forward(a);
	size_t rows = (size_t)a->nnz_qo * (size_t)a->num_qo_heads + 1;
	struct call c = {
		.a = a, .q_stride = cairn_attn_dense_q_stride(&f), .k_stride = cairn_attn_dense_k_stride(&f),
		.v_stride = cairn_attn_dense_v_stride(&f), .k_head = cairn_attn_dense_k_head_stride(&f),
		.v_head = cairn_attn_dense_v_head_stride(&f), .group = a->num_qo_heads / a->num_kv_heads,
	};

	c.step = exact ? sample_step(&c) : 0;
	c.delta = malloc(2 * rows * sizeof(double));
	if (!c.delta)
		return cairn_error(ENOMEM, "attn_bwd: no memory for %zu rows", rows);
	c.sum = c.delta + rows;
	#pragma omp parallel
	{
		#pragma omp for schedule(static)
		for (int64_t i = 0; i < (a->batch ? (int64_t)a->qo_indptr[a->batch] : 0); i++)
			for (int h = 0; h < a->num_qo_heads; h++)
				set_delta(&c, i, h);
		for (int n = 0; n < a->batch * a->num_kv_heads; n++) {
			struct task t = task_of(&c, n / a->num_kv_heads, n % a->num_kv_heads);

			gradients(&c, &t, exact);
		}
	}
	for (int n = 0; exact && n < a->batch * a->num_kv_heads; n++) {
		struct task t = task_of(&c, n / a->num_kv_heads, n % a->num_kv_heads);

		if (visit_task(&c, &t, exact, 0))
			visit_task(&c, &t, exact, 1);
	}
	free(c.delta);
	return 0;
}

int cairn_attn_bwd_ref(const struct cairn_attn_bwd_args *a, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_attn_bwd_check(a));
	return run(a, NULL);
}

int cairn_attn_bwd_exact(const struct cairn_attn_bwd_args *a, struct cairn_exact *exact)
{
	CAIRN_TRY(cairn_attn_bwd_check(a));
	return run(a, exact);
}
