// SPDX-License-Identifier: Apache-2.0
/*
 * cluster_reduce_ref - the reference in double, and the error bound
 *
 * u32 = 2^-24, u the roundoff of dtype, N the cluster size.
 *
 * SUM      N - 1 additions in fp32, in any order: (N - 1) u32 sum_r |in_r|; then one rounding to
 *          dtype: u |ref|, or half the spacing of the subnormals.
 * MAX, MIN no error: the result is one of the inputs.
 * SOFTMAX  w_r = exp(m_r - M), which is 1 for the largest m_r.
 *          - m_r - M is rounded (u32 relative) and multiplied by log2(e), which is rounded too: the exponent
 *            has an error of 3 u32 |m_r - M|, and w_r the same relative error; 4 u32 covers second-order
 *            terms;
 *          - exp has an error of 2 ulp, 2^-22, and the product of w_r and o_r one of u32. Merging pairwise
 *            incurs these up to N - 1 times for one term (the sum of its |m_r - M| stays the same);
 *          - exp may flush results below 2^-126 to zero: 2^-126 |o_r|;
 *          - the sum adds its error as above, for |w_r o_r|.
 *          The bound of L is the same, with l in place of o. M is exact.
 */
#include "primitives/cluster/cluster_reduce.h"

#include <math.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

struct group {			/* the inputs of one collective */
	const struct cairn_cluster_reduce_args *a;
	int64_t first;		/* row of `in` that holds rank 0's input */
	int32_t rows;		/* rows of a softmax state, else 1 */
};

struct number {
	double val, bound;	/* exact value; largest error of a correct implementation */
};

static double element(const struct group *g, int32_t rank, int32_t i)
{
	return cairn_load(g->a->in, g->a->dtype, (g->first + rank) * g->a->len + i);
}

static double ml(const struct group *g, int32_t rank, int32_t row, int which)
{
	return g->a->in_ml[((g->first + rank) * g->rows + row) * 2 + which];
}

static struct number rounded(struct number x, int dtype)
{
	double u = cairn_dtype_roundoff(dtype);

	if (!isfinite(x.val))
		return (struct number) { x.val, 0 };
	x.bound += u * (fabs(x.val) + x.bound) + cairn_dtype_tiny(dtype);
	return x;
}

static struct number sum(const struct group *g, int32_t i)
{
	struct number x = { 0, 0 };

	for (int32_t r = 0; r < g->a->cluster_size; r++) {
		x.val += element(g, r, i);
		x.bound += fabs(element(g, r, i));
	}
	x.bound *= (g->a->cluster_size - 1) * 0x1p-24;
	return rounded(x, g->a->dtype);
}

static struct number extremum(const struct group *g, int32_t i)
{
	struct number x = { element(g, 0, i), 0 };

	for (int32_t r = 1; r < g->a->cluster_size; r++) {
		double v = element(g, r, i);

		if (isnan(v) || (!isnan(x.val) && (g->a->op == CAIRN_CLUSTER_MAX ? v > x.val : v < x.val)))
			x.val = v;
	}
	return x;
}

static double row_max(const struct group *g, int32_t row)
{
	double m = -INFINITY;

	for (int32_t r = 0; r < g->a->cluster_size; r++)
		m = fmax(m, ml(g, r, row, 0));
	return m;
}

/* Returns element i of the merged o, or for i < 0 the merged l of row -1 - i. */
static struct number merge(const struct group *g, int32_t i)
{
	const int32_t n = g->a->cluster_size, row = i < 0 ? -1 - i : i / g->a->head_dim;
	const double m = row_max(g, row);
	double magnitude = 0;
	struct number x = { 0, 0 };

	for (int32_t r = 0; r < n; r++) {
		double d = ml(g, r, row, 0) - m, w, v;

		if (!(d > -INFINITY))
			continue;	/* rank r has no keys (d is NaN if no rank has keys) */
		v = i < 0 ? ml(g, r, row, 1) : element(g, r, i);
		w = exp(d);
		x.val += w * v;
		x.bound += fabs(w * v) * ((d < 0 ? (n - 1) * 0x1.4p-22 : 0) + 4 * fabs(d) * 0x1p-24) +
			   (d < -87 ? 0x1p-126 * fabs(v) : 0);
		magnitude += fabs(w * v);
	}
	x.bound += (n - 1) * 0x1p-24 * magnitude;
	return rounded(x, i < 0 ? CAIRN_F32 : g->a->dtype);
}

static struct number result(const struct group *g, int32_t i)
{
	return g->a->op == CAIRN_CLUSTER_SUM ? sum(g, i) :
	       g->a->op == CAIRN_CLUSTER_SOFTMAX ? merge(g, i) : extremum(g, i);
}

static void put(struct cairn_exact *exact, void *out, int dtype, int64_t i, struct number x)
{
	if (exact) {
		exact->val[i] = x.val;
		exact->bound[i] = x.bound;
	} else {
		cairn_store(out, dtype, i, x.val);
	}
}

/*
 * Computes the result, which is the same for all ranks, and writes it to exact, or to out if exact is NULL.
 */
static void one_group(const struct group *g, struct cairn_exact *exact)
{
	const struct cairn_cluster_reduce_args *a = g->a;

	for (int32_t i = 0; i < a->len; i++) {
		struct number x = result(g, i);

		for (int32_t rank = 0; rank < a->cluster_size; rank++)
			put(exact, a->out, a->dtype, (g->first + rank) * a->len + i, x);
	}
	for (int32_t row = 0; a->op == CAIRN_CLUSTER_SOFTMAX && row < g->rows; row++) {
		struct number m = { row_max(g, row), 0 }, l = merge(g, -1 - row);

		for (int32_t rank = 0; rank < a->cluster_size; rank++) {
			int64_t at = ((g->first + rank) * g->rows + row) * 2;

			put(exact ? exact + 1 : NULL, a->out_ml, CAIRN_F32, at, m);
			put(exact ? exact + 1 : NULL, a->out_ml, CAIRN_F32, at + 1, l);
		}
	}
}

static int all(const struct cairn_cluster_reduce_args *a, struct cairn_exact *exact)
{
	CAIRN_TRY(cairn_cluster_reduce_check(a));
	for (int64_t k = 0; k < (int64_t)a->num_clusters * a->num_calls; k++) {
		struct group g = { a, k * a->cluster_size, 1 };

		if (exact && !cairn_is_wanted(exact, g.first * a->len, (int64_t)a->cluster_size * a->len))
			continue;
		if (a->op == CAIRN_CLUSTER_SOFTMAX)
			g.rows = a->len / a->head_dim;
		one_group(&g, exact);
	}
	for (int64_t i = 0; a->cycles && i < (int64_t)a->num_clusters * a->cluster_size; i++) {
		int out = a->op == CAIRN_CLUSTER_SOFTMAX ? 2 : 1;

		if (exact) {
			exact[out].val[i] = 0;
			exact[out].bound[i] = INFINITY;	/* a measurement: any finite value */
		} else {
			a->cycles[i] = 0;
		}
	}
	return 0;
}

int cairn_cluster_reduce_exact(const struct cairn_cluster_reduce_args *args, struct cairn_exact *exact)
{
	return all(args, exact);
}

int cairn_cluster_reduce_ref(const struct cairn_cluster_reduce_args *args, void *stream)
{
	(void)stream;
	return all(args, NULL);
}
