// SPDX-License-Identifier: Apache-2.0
/* pt2_eval - arithmetic of exported programs (pt2_run.h) */
#include "serving/pt2/pt2_eval.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "primitives/base/error.h"

typedef double (*unary)(double x);
typedef double (*binary)(double a, double b);

/* ---- element by element ---- */

static double negate(double x) { return -x; }
static double relu(double x) { return x > 0 ? x : 0; }
static double rsqrt(double x) { return 1 / sqrt(x); }
static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double silu(double x) { return x / (1 + exp(-x)); }
static double gelu_erf(double x) { return 0.5 * x * (1 + erf(x * M_SQRT1_2)); }

static double gelu_tanh(double x)
{
	return 0.5 * x * (1 + tanh(M_2_SQRTPI * M_SQRT1_2 * (x + 0.044715 * x * x * x)));
}

static int map(const struct pt2_call *c, unary fn)
{
	const struct cairn_pt2_tensor *x = pt2_input(c, 0);

	if (!x || x->num != c->out->num)
		return pt2_call_error(c, "its input does not fit its result");
	for (int64_t i = 0; i < x->num; i++)
		c->out->data[i] = fn(x->data[i]);
	return 0;
}

#define MAP(name, fn)	static int run_##name(const struct pt2_call *c) { return map(c, fn); }
MAP(neg, negate) MAP(relu, relu) MAP(rsqrt, rsqrt) MAP(sigmoid, sigmoid) MAP(silu, silu) MAP(exp, exp)
MAP(sin, sin) MAP(cos, cos) MAP(tanh, tanh)

static int run_gelu(const struct pt2_call *c)
{
	const char *how = json_string_value(json_object_get(cairn_pt2_arg(c->n, "approximate"), "as_string"));

	return map(c, how && !strcmp(how, "tanh") ? gelu_tanh : gelu_erf);
}

static int run_pow(const struct pt2_call *c)
{
	const struct cairn_pt2_tensor *x = pt2_input(c, 0);
	double exponent = NAN;

	CAIRN_TRY(pt2_number(c, "exponent", &exponent));
	if (!x || x->num != c->out->num)
		return pt2_call_error(c, "its input does not fit its result");
	for (int64_t i = 0; i < x->num; i++)
		c->out->data[i] = pow(x->data[i], exponent);
	return 0;
}

static double convert(double x, enum cairn_pt2_dtype dtype)
{
	switch (dtype) {
	case CAIRN_PT2_BOOL:
		return x != 0;
	case CAIRN_PT2_U8:
	case CAIRN_PT2_I8:
	case CAIRN_PT2_I16:
	case CAIRN_PT2_I32:
	case CAIRN_PT2_I64:
		return trunc(x);
	case CAIRN_PT2_F32:
		return (double)(float)x;
	default:
		return x;
	}
}

static int run_to(const struct pt2_call *c)
{
	const struct cairn_pt2_tensor *x = pt2_input(c, 0);

	if (!x || x->num != c->out->num)
		return pt2_call_error(c, "its input does not fit its result");
	for (int64_t i = 0; i < x->num; i++)
		c->out->data[i] = convert(x->data[i], c->dtype);
	return 0;
}

static double add(double a, double b) { return a + b; }
static double sub(double a, double b) { return a - b; }
static double mul(double a, double b) { return a * b; }
static double divide(double a, double b) { return a / b; }
static double eq(double a, double b) { return a == b; }
static double ne(double a, double b) { return a != b; }
static double lt(double a, double b) { return a < b; }
static double le(double a, double b) { return a <= b; }
static double gt(double a, double b) { return a > b; }
static double ge(double a, double b) { return a >= b; }
static double both(double a, double b) { return a != 0 && b != 0; }

/* self op other, where other is a tensor or a number. */
static int combine(const struct pt2_call *c, binary fn)
{
	const struct cairn_pt2_tensor *a = pt2_tensor(c, "self"), *b = pt2_tensor(c, "other");
	int64_t step_a[CAIRN_PT2_RANK], step_b[CAIRN_PT2_RANK] = { 0 };
	double number = NAN, alpha = 1;

	CAIRN_TRY(pt2_number(c, "alpha", &alpha));
	if (!b)
		CAIRN_TRY(pt2_number(c, "other", &number));
	if (!a || pt2_spread(a, c->out, step_a) || (b && pt2_spread(b, c->out, step_b)))
		return pt2_call_error(c, "its inputs do not fit its result");
	for (int64_t i = 0; i < c->out->num; i++) {
		double y = b ? b->data[pt2_at(c->out, step_b, i)] : number;

		c->out->data[i] = fn(a->data[pt2_at(c->out, step_a, i)], alpha * y);
	}
	return 0;
}

#define COMBINE(name, fn)	static int run_##name(const struct pt2_call *c) { return combine(c, fn); }
COMBINE(add, add) COMBINE(sub, sub) COMBINE(mul, mul) COMBINE(div, divide) COMBINE(eq, eq) COMBINE(ne, ne)
COMBINE(lt, lt) COMBINE(le, le) COMBINE(gt, gt) COMBINE(ge, ge) COMBINE(logical_and, both)

/* Bits of integers are not implemented. */
static int run_and(const struct pt2_call *c)
{
	return c->dtype == CAIRN_PT2_BOOL ? combine(c, both) : pt2_call_error(c, "is only known for bool");
}

/* ---- products ---- */

static int run_linear(const struct pt2_call *c)
{
	const struct cairn_pt2_tensor *x = pt2_tensor(c, "input"), *w = pt2_tensor(c, "weight");
	const struct cairn_pt2_tensor *bias = pt2_tensor(c, "bias");
	int64_t n, k, m;

	if (!x || !w || w->rank != 2 || !x->rank || x->size[x->rank - 1] != w->size[1])
		return pt2_call_error(c, "its input does not fit its weight");
	n = w->size[0];
	k = w->size[1];
	m = pt2_product(x, 0, x->rank - 1);
	if (c->out->num != m * n || (bias && bias->num != n))
		return pt2_call_error(c, "its result does not fit its inputs");
	for (int64_t i = 0; i < m * n; i++) {
		double sum = bias ? bias->data[i % n] : 0;

		for (int64_t l = 0; l < k; l++)
			sum += x->data[i / n * k + l] * w->data[i % n * k + l];
		c->out->data[i] = sum;
	}
	return 0;
}

/* a [..., m, k] times b [..., k, n], plus `plus` if it is not NULL; leading sizes spread. */
static int multiply(const struct pt2_call *c, const struct cairn_pt2_tensor *a,
		    const struct cairn_pt2_tensor *b, const struct cairn_pt2_tensor *plus)
{
	const int32_t rank = c->out->rank;
	struct cairn_pt2_tensor batch = *c->out, x, y;
	int64_t step_x[CAIRN_PT2_RANK], step_y[CAIRN_PT2_RANK], m, n, k;

	if (!a || !b || a->rank < 2 || b->rank < 2 || rank < 2 ||
	    a->size[a->rank - 1] != b->size[b->rank - 2])
		return pt2_call_error(c, "is only known for matrices that fit");
	x = *a;
	y = *b;
	batch.rank -= 2;
	x.rank -= 2;
	y.rank -= 2;
	m = a->size[a->rank - 2];
	k = a->size[a->rank - 1];
	n = b->size[b->rank - 1];
	if (c->out->size[rank - 2] != m || c->out->size[rank - 1] != n || (plus && plus->num != n) ||
	    pt2_spread(&x, &batch, step_x) || pt2_spread(&y, &batch, step_y))
		return pt2_call_error(c, "its result does not fit its inputs");
	for (int64_t i = 0; i < c->out->num; i++) {
		const double *p = a->data + pt2_at(&batch, step_x, i / (m * n)) * m * k + i / n % m * k;
		const double *q = b->data + pt2_at(&batch, step_y, i / (m * n)) * k * n + i % n;
		double sum = plus ? plus->data[i % n] : 0;

		for (int64_t l = 0; l < k; l++)
			sum += p[l] * q[l * n];
		c->out->data[i] = sum;
	}
	return 0;
}

static int run_matmul(const struct pt2_call *c)
{
	return multiply(c, pt2_input(c, 0), pt2_input(c, 1), NULL);
}

static int run_addmm(const struct pt2_call *c)
{
	double alpha = 1, beta = 1;

	CAIRN_TRY(pt2_number(c, "alpha", &alpha));
	CAIRN_TRY(pt2_number(c, "beta", &beta));
	if (alpha != 1 || beta != 1)
		return pt2_call_error(c, "is only known with alpha and beta 1");
	return multiply(c, pt2_tensor(c, "mat1"), pt2_tensor(c, "mat2"), pt2_tensor(c, "self"));
}

static int run_embedding(const struct pt2_call *c)
{
	const struct cairn_pt2_tensor *w = pt2_tensor(c, "weight"), *ids = pt2_tensor(c, "indices");

	if (!w || !ids || w->rank != 2 || c->out->num != ids->num * w->size[1])
		return pt2_call_error(c, "its result does not fit its inputs");
	for (int64_t i = 0; i < ids->num; i++) {
		if (!(ids->data[i] >= 0 && ids->data[i] < (double)w->size[0]))
			return pt2_call_error(c, "has an index out of range");
		memcpy(c->out->data + i * w->size[1], w->data + (int64_t)ids->data[i] * w->size[1],
		       (size_t)w->size[1] * sizeof(double));
	}
	return 0;
}

/* ---- rows ---- */

/* Normalises rows of the last sizes, which are those of the weight; mean: subtracts it first. */
static int normalise(const struct pt2_call *c, int with_mean, double eps)
{
	const struct cairn_pt2_tensor *x = pt2_tensor(c, "input"), *w = pt2_tensor(c, "weight");
	const struct cairn_pt2_tensor *bias = pt2_tensor(c, "bias");
	int64_t shape[CAIRN_PT2_RANK], n = 1;
	int32_t num = 0;

	CAIRN_TRY(pt2_ints(c, "normalized_shape", shape, &num));
	CAIRN_TRY(pt2_number(c, "eps", &eps));
	if (!x || num > x->rank || x->num != c->out->num)
		return pt2_call_error(c, "its input does not fit its result");
	n = pt2_product(x, x->rank - num, x->rank);
	if (!num || n < 1 || (w && w->num != n) || (bias && bias->num != n))
		return pt2_call_error(c, "its weight does not fit its input");
	for (int64_t i = 0; i < x->num; i += n) {
		double mean = 0, square = 0;

		for (int64_t k = 0; k < n && with_mean; k++)
			mean += x->data[i + k] / (double)n;
		for (int64_t k = 0; k < n; k++)
			square += (x->data[i + k] - mean) * (x->data[i + k] - mean) / (double)n;
		for (int64_t k = 0; k < n; k++)
			c->out->data[i + k] = (x->data[i + k] - mean) / sqrt(square + eps) *
					      (w ? w->data[k] : 1) + (bias ? bias->data[k] : 0);
	}
	return 0;
}

static int run_rms_norm(const struct pt2_call *c)
{
	return normalise(c, 0, (double)FLT_EPSILON);
}

static int run_layer_norm(const struct pt2_call *c)
{
	return normalise(c, 1, 1e-5);
}

/* Calls fn for each row along a dimension: x and y point to its first elements, which are `step` apart. */
static int each_row(const struct pt2_call *c, void (*fn)(const double *x, double *y, int64_t n, int64_t step))
{
	const struct cairn_pt2_tensor *x = pt2_tensor(c, "self");
	int64_t dim = -1, n, step;

	if (!x || !x->rank || x->num != c->out->num)
		return pt2_call_error(c, "its input does not fit its result");
	CAIRN_TRY(pt2_dim(c, "dim", x->rank, &dim));
	n = x->size[dim];
	step = pt2_product(x, (int32_t)dim + 1, x->rank);
	for (int64_t i = 0; i < x->num; i++)
		if (i / step % n == 0)
			fn(x->data + i, c->out->data + i, n, step);
	return 0;
}

static void softmax_row(const double *x, double *y, int64_t n, int64_t step)
{
	double most = -INFINITY, sum = 0;

	for (int64_t i = 0; i < n; i++)
		most = fmax(most, x[i * step]);
	for (int64_t i = 0; i < n; i++)
		sum += exp(x[i * step] - most);
	for (int64_t i = 0; i < n; i++)
		y[i * step] = exp(x[i * step] - most) / sum;
}

static void cumsum_row(const double *x, double *y, int64_t n, int64_t step)
{
	double sum = 0;

	for (int64_t i = 0; i < n; i++) {
		sum += x[i * step];
		y[i * step] = sum;
	}
}

static int run_softmax(const struct pt2_call *c)
{
	return each_row(c, softmax_row);
}

static int run_cumsum(const struct pt2_call *c)
{
	return each_row(c, cumsum_row);
}

/* The mean of the last dimension. */
static int run_mean(const struct pt2_call *c)
{
	const struct cairn_pt2_tensor *x = pt2_tensor(c, "self");
	int64_t dims[CAIRN_PT2_RANK], n;
	int32_t num = 0;

	CAIRN_TRY(pt2_ints(c, "dim", dims, &num));
	if (!x || !x->rank || num != 1 || (dims[0] != -1 && dims[0] != x->rank - 1))
		return pt2_call_error(c, "is only known for the last dimension");
	n = x->size[x->rank - 1];
	if (n < 1 || x->num != c->out->num * n)
		return pt2_call_error(c, "its input does not fit its result");
	for (int64_t i = 0; i < c->out->num; i++) {
		c->out->data[i] = 0;
		for (int64_t k = 0; k < n; k++)
			c->out->data[i] += x->data[i * n + k] / (double)n;
	}
	return 0;
}

/* x[i] - x[i - 1] along the last dimension, with `prepend` in front. */
static int run_diff(const struct pt2_call *c)
{
	const struct cairn_pt2_tensor *x = pt2_tensor(c, "self"), *front = pt2_tensor(c, "prepend");
	int64_t n = 1, dim = -1, m, f, rows;

	CAIRN_TRY(pt2_int(c, "n", &n));
	if (!x || !x->rank || n != 1 || pt2_tensor(c, "append"))
		return pt2_call_error(c, "is only known for the first difference");
	CAIRN_TRY(pt2_dim(c, "dim", x->rank, &dim));
	m = x->size[x->rank - 1];
	f = front && front->rank ? front->size[front->rank - 1] : 0;
	rows = pt2_product(x, 0, x->rank - 1);
	if (dim != x->rank - 1 || m + f < 1 || (front && front->num != rows * f) ||
	    c->out->num != rows * (m + f - 1))
		return pt2_call_error(c, "its inputs do not fit its result");
	for (int64_t i = 0; i < c->out->num; i++) {
		int64_t row = i / (m + f - 1), at = i % (m + f - 1) + 1;
		double y[2];

		for (int k = 0; k < 2; k++, at--)
			y[k] = at < f ? front->data[row * f + at] : x->data[row * m + at - f];
		c->out->data[i] = c->dtype == CAIRN_PT2_BOOL ? y[0] != y[1] : y[0] - y[1];
	}
	return 0;
}

/* ---- attention ---- */

struct attention {
	const struct cairn_pt2_tensor *q, *k, *v, *mask;
	int64_t heads, rows, keys, dim, v_dim, group;
	int64_t mask_step[CAIRN_PT2_RANK];
	struct cairn_pt2_tensor scores;		/* the shape of all scores */
	int mask_is_bool;
	double scale, causal;
};

static double score(const struct attention *a, int64_t head, int64_t row, int64_t key)
{
	const double *q = a->q->data + (head * a->rows + row) * a->dim;
	const double *k = a->k->data + (head / a->group * a->keys + key) * a->dim;
	double sum = 0, mask;

	for (int64_t i = 0; i < a->dim; i++)
		sum += q[i] * k[i];
	sum *= a->scale;
	if (a->causal != 0 && key > row)
		return -INFINITY;
	if (!a->mask)
		return sum;
	mask = a->mask->data[pt2_at(&a->scores, a->mask_step, (head * a->rows + row) * a->keys + key)];
	return a->mask_is_bool ? (mask != 0 ? sum : -INFINITY) : sum + mask;
}

/* A row that sees no key is 0. */
static void attend_row(const struct attention *a, int64_t head, int64_t row, double *out)
{
	double most = -INFINITY, sum = 0;

	for (int64_t j = 0; j < a->keys; j++)
		most = fmax(most, score(a, head, row, j));
	for (int64_t i = 0; i < a->v_dim; i++)
		out[i] = 0;
	for (int64_t j = 0; j < a->keys && most > -INFINITY; j++) {
		double p = exp(score(a, head, row, j) - most);

		sum += p;
		for (int64_t i = 0; i < a->v_dim; i++)
			out[i] += p * a->v->data[(head / a->group * a->keys + j) * a->v_dim + i];
	}
	for (int64_t i = 0; i < a->v_dim && sum > 0; i++)
		out[i] /= sum;
}

/* Query heads share key heads if there are fewer of those; other leading sizes must be equal. */
static int find_heads(const struct pt2_call *c, struct attention *a)
{
	const struct cairn_pt2_tensor *q = a->q, *k = a->k, *v = a->v;
	int64_t kv_heads;

	if (!q || !k || !v || q->rank < 2 || k->rank != q->rank || v->rank != q->rank ||
	    c->out->rank != q->rank)
		return pt2_call_error(c, "its inputs do not fit");
	a->heads = pt2_product(q, 0, q->rank - 2);
	kv_heads = pt2_product(k, 0, k->rank - 2);
	a->rows = q->size[q->rank - 2];
	a->dim = q->size[q->rank - 1];
	a->keys = k->size[k->rank - 2];
	a->v_dim = v->size[v->rank - 1];
	if (k->size[k->rank - 1] != a->dim || v->size[v->rank - 2] != a->keys || kv_heads < 1 ||
	    pt2_product(v, 0, v->rank - 2) != kv_heads || a->heads % kv_heads || a->dim < 1 ||
	    c->out->num != a->heads * a->rows * a->v_dim)
		return pt2_call_error(c, "its inputs do not fit its result");
	a->group = a->heads / kv_heads;
	return 0;
}

static int run_attention(const struct pt2_call *c)
{
	struct attention a = {
		.q = pt2_tensor(c, "query"), .k = pt2_tensor(c, "key"), .v = pt2_tensor(c, "value"),
		.mask = pt2_tensor(c, "attn_mask"),
	};
	double dropout = 0;

	CAIRN_TRY(find_heads(c, &a));
	a.scale = 1 / sqrt((double)a.dim);
	CAIRN_TRY(pt2_number(c, "scale", &a.scale));
	CAIRN_TRY(pt2_number(c, "is_causal", &a.causal));
	CAIRN_TRY(pt2_number(c, "dropout_p", &dropout));
	if (dropout != 0)
		return pt2_call_error(c, "drops elements at random");
	a.scores = *a.q;
	a.scores.size[a.q->rank - 1] = a.keys;
	if (a.mask && pt2_spread(a.mask, &a.scores, a.mask_step))
		return pt2_call_error(c, "its mask does not fit");
	a.mask_is_bool = a.mask && c->p->values[a.mask - c->values].dtype == CAIRN_PT2_BOOL;
	for (int64_t h = 0; h < a.heads; h++)
		for (int64_t i = 0; i < a.rows; i++)
			attend_row(&a, h, i, c->out->data + (h * a.rows + i) * a.v_dim);
	return 0;
}

static const struct { const char *target; pt2_fn fn; } functions[] = {
	{ "aten.__and__.Tensor", run_and }, { "aten._to_copy.default", run_to },
	{ "aten.add.Tensor", run_add }, { "aten.addmm.default", run_addmm },
	{ "aten.bitwise_and.Tensor", run_and }, { "aten.bmm.default", run_matmul },
	{ "aten.cos.default", run_cos }, { "aten.cumsum.default", run_cumsum },
	{ "aten.diff.default", run_diff }, { "aten.div.Tensor", run_div },
	{ "aten.embedding.default", run_embedding }, { "aten.eq.Tensor", run_eq },
	{ "aten.exp.default", run_exp }, { "aten.ge.Tensor", run_ge }, { "aten.gelu.default", run_gelu },
	{ "aten.gt.Tensor", run_gt }, { "aten.layer_norm.default", run_layer_norm },
	{ "aten.le.Tensor", run_le }, { "aten.linear.default", run_linear },
	{ "aten.logical_and.default", run_logical_and }, { "aten.lt.Tensor", run_lt },
	{ "aten.matmul.default", run_matmul }, { "aten.mean.dim", run_mean },
	{ "aten.mm.default", run_matmul }, { "aten.mul.Tensor", run_mul }, { "aten.ne.Scalar", run_ne },
	{ "aten.neg.default", run_neg }, { "aten.pow.Tensor_Scalar", run_pow },
	{ "aten.relu.default", run_relu }, { "aten.rms_norm.default", run_rms_norm },
	{ "aten.rsqrt.default", run_rsqrt },
	{ "aten.scaled_dot_product_attention.default", run_attention },
	{ "aten.sigmoid.default", run_sigmoid }, { "aten.silu.default", run_silu },
	{ "aten.sin.default", run_sin }, { "aten.softmax.int", run_softmax }, { "aten.sub.Tensor", run_sub },
	{ "aten.tanh.default", run_tanh }, { "aten.to.device", run_to }, { "aten.to.dtype", run_to },
	{ "aten.to.dtype_layout", run_to },
};

pt2_fn pt2_eval_compute(const char *target)
{
	for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++)
		if (!strcmp(functions[i].target, target))
			return functions[i].fn;
	return NULL;
}
