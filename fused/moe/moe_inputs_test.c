// SPDX-License-Identifier: Apache-2.0
/*
 * moe_inputs_test - makes the inputs of the cases
 *
 * Kinds: EXACT has x of one magnitude and sparse weights of small integers, so that n, logits, gates and ups
 * are exact and logits tie often; in pair cases, two columns of the router are so large that logits have more
 * than 11 bits. POISON has NaN in the weights of every expert that no request chooses and, with three or more
 * requests, in one row of x. EXTREME has rows of x that are zero, tiny, huge or very unequal, and weights
 * distorted in one of six ways. Rows of x are redrawn until their experts are decided.
 *
 * 8-bit weights are normal and contain all codes; their scales differ by up to a factor of three, some
 * are negative, and a few 0. EXACT has powers of two. EXTREME distorts the scales. The *subnormal* cases have
 * only codes of exponent 0, which contribute too little to be seen in the other cases. 4-bit weights:
 * moe_w4_inputs.h.
 */
#include <math.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "conformance/harness.h"
#include "primitives/base/fp8.h"
#include "fused/block/block_ref.h"
#include "fused/moe/moe_ref.h"
#include "fused/moe/moe_test.h"
#include "fused/moe/moe_w4_inputs.h"

/* The part that EXTREME distorts */
enum { ROWS_ALONE, FAR_APART, STEEP, LARGE, SHIFTED, TINY, NUM_BENDS };

/* `num` matrices [n, k]: of dtype, of 8 bits with `scale`, or of 4 bits with `cells`, and NV's `factors` */
struct matrix {
	void *w;
	float *scale;
	uint8_t *cells;
	float *factors;
	int64_t num, n, k, num_factors;
};

struct operands {
	void *x, *norm, *router;
	float *bias;
	struct matrix gate_up, down, shared_gate_up, shared_down;
};

static void fill(struct cairn_op *op, void *p, int64_t count, double scale)
{
	const struct cairn_moe_args *a = op->args;

	cairn_fill(op, p, a->dtype, count, scale);
}

static void fill_about_1(struct cairn_op *op, void *p, int64_t count)
{
	const struct cairn_moe_args *a = op->args;

	fill(op, p, count, 0.25);
	for (int64_t i = 0; i < count; i++)
		cairn_store(p, a->dtype, i, 1 + cairn_load(p, a->dtype, i));
}

static void fill_signs(struct cairn_op *op, void *p, int64_t count, double size)
{
	const struct cairn_moe_args *a = op->args;

	for (int64_t i = 0; i < count; i++)
		cairn_store(p, a->dtype, i, cairn_op_rand(op) & 1 ? size : -size);
}

/* Fills rows of k zeros, `some` of which become 1, 2 or their negatives. */
static void fill_sparse(struct cairn_op *op, void *p, int fp8, int64_t rows, int64_t k, int some)
{
	const struct cairn_moe_args *a = op->args;

	if (p)		/* p may be NULL */
		memset(p, 0, (size_t)(rows * k) * (fp8 ? 1 : 2));
	for (int64_t i = 0; i < rows * some; i++) {
		int64_t at = i / some * k + cairn_op_range(op, 0, k - 1), v = cairn_op_range(op, 1, 2);

		v = cairn_op_rand(op) & 1 ? v : -v;
		if (fp8)
			((uint8_t *)p)[at] = cairn_float_to_e4m3((float)v);
		else
			cairn_store(p, a->dtype, at, (double)v);
	}
}

static int64_t scales_of(const struct cairn_moe_args *a, const struct matrix *m)
{
	return m->num * cairn_moe_scales(a->scale_kind, m->n, m->k);
}

/* Large matrices repeat a block of prime length, so that no two rows are alike. */
#define BLOCK	65521

static void fill_block(struct cairn_op *op, const struct matrix *m, double size)
{
	const int64_t total = m->num * m->n * m->k;

	fill(op, m->w, total < BLOCK ? total : BLOCK, size);
	for (int64_t i = BLOCK; i < total; i += BLOCK)
		memcpy((uint16_t *)m->w + i, m->w, 2 * (size_t)(total - i < BLOCK ? total - i : BLOCK));
}

/* Fills codes that are about normal with deviation 100; one in sixteen is any code but NaN. */
static void fill_codes(struct cairn_op *op, const struct matrix *m)
{
	const int64_t total = m->num * m->n * m->k, block = total < BLOCK ? total : BLOCK;
	float *values = malloc(sizeof(*values) * (size_t)block);
	uint8_t *codes = m->w;

	if (!values)
		abort();
	cairn_fill(op, values, CAIRN_F32, block, 100);
	for (int64_t i = 0; i < block; i++) {
		uint64_t r = cairn_op_rand(op);

		codes[i] = r >> 60 ? cairn_float_to_e4m3(values[i]) : (uint8_t)r;
		codes[i] ^= (codes[i] & 0x7f) == 0x7f;
	}
	for (int64_t i = block; i < total; i += block)
		memcpy(codes + i, codes, (size_t)(total - i < block ? total - i : block));
	free(values);
}

/* size: deviation of the weights. With exact, `some` elements of a row are not 0. */
static void fill_matrix(struct cairn_op *op, const struct matrix *m, double size, int exact, int some)
{
	if (m->cells) {
		moe_fill_w4(op, m->w, m->cells, (int32_t)m->num, (int32_t)m->n, (int32_t)m->k, size,
			    exact ? some : 0);
		moe_fill_factors(op, m->factors, m->num_factors, size, exact);
		return;
	}
	if (exact)
		fill_sparse(op, m->w, m->scale != NULL, m->num * m->n, m->k, some);
	else if (!m->scale)
		fill_block(op, m, size);
	else
		fill_codes(op, m);
	for (int64_t i = 0; m->scale && i < scales_of(op->args, m); i++) {
		m->scale[i] = exact ? ldexpf(1, (int)cairn_op_range(op, -1, 1)) :
			      (float)(size * (double)cairn_op_range(op, 500, 1500) / 100000);
		m->scale[i] *= i % 32 == 9 ? 0 : i % 5 == 2 ? -1 : 1;
	}
}

static void fill_weights(struct cairn_op *op, const struct moe_shape *s, const struct operands *p, int exact)
{
	const double in = 1.5 / sqrt(s->hidden);

	if (exact) {
		((struct cairn_moe_args *)op->args)->eps = 1e-12f;
		fill_signs(op, p->norm, s->hidden, 1);
		fill_sparse(op, p->router, 0, s->experts, s->hidden, 3);
		for (int64_t e = 0; s->pair == 1 && e < s->experts; e++)
			for (int64_t i = 1; i < 3; i++)
				cairn_store(p->router, ((struct cairn_moe_args *)op->args)->dtype,
					    (e + 1) * s->hidden - i, 2048);
	} else {
		fill_about_1(op, p->norm, s->hidden);
		fill(op, p->router, (int64_t)s->experts * s->hidden, in);
	}
	fill_matrix(op, &p->gate_up, in, exact, 3);
	fill_matrix(op, &p->down, 4 / sqrt(s->inter), exact, 4);
	fill_matrix(op, &p->shared_gate_up, in, exact, 3);
	fill_matrix(op, &p->shared_down, 2 / sqrt(s->shared + 1), exact, 4);
}

/*
 * Fills biases that spread about as much as the sigmoids; EXACT has so few values that many c are equal.
 * Those of bench rows are small, because trained biases spread the requests evenly over the experts, which is
 * what describe() assumes when it counts bytes.
 */
static void fill_bias(struct cairn_op *op, const struct moe_shape *s, float *bias, int exact)
{
	for (int e = 0; e < s->experts; e++) {
		float v = exact ? (float)cairn_op_range(op, -1, 1) / 8 :
			  (float)cairn_op_range(op, -40000, 40000) / 100000;

		if (s->flags & BENCH)
			v /= 16;
		bias[e] = s->flags & TIES ? 0.25f : s->flags & NEGATIVE ? v - 2 : v;
		if (s->flags & LOW)	/* no two are equal, and p is less than an ulp of c */
			bias[e] = -0x1p32f - (float)((e * 13 + 5) % s->experts) * 0x1p20f;
	}
}

/*
 * Fills the biases of logits and products, and sets the activation. Its limit is so low that it cuts one gate
 * and one up in three.
 */
static void fill_between(struct cairn_op *op, const struct moe_shape *s)
{
	struct cairn_moe_args *a = op->args;
	const int64_t num = s->experts;
	float *bias;

	if (s->flags & LOGIT_BIAS) {
		bias = cairn_in(op, MOE_FIELD(logit_bias), CAIRN_F32, num);
		cairn_fill(op, bias, CAIRN_F32, num, 0.7);
	}
	if (s->flags & PRODUCT_BIAS) {
		fill(op, cairn_in(op, MOE_FIELD(gate_up_bias), a->dtype, num * 2 * s->inter),
		     num * 2 * s->inter, 0.7);
		fill(op, cairn_in(op, MOE_FIELD(down_bias), a->dtype, num * s->hidden), num * s->hidden, 2);
	}
	if (s->flags & CLAMPED) {
		a->activation = CAIRN_MOE_CLAMPED;
		a->alpha = 1.702f;
		a->limit = 1.5f;
	}
}

/* Copies the experts of each even group to the next one: rows of the router, and biases. */
static void repeat_groups(const struct moe_shape *s, const struct operands *p)
{
	const int size = s->experts / s->groups;

	for (int g = 1; g < s->groups; g += 2) {
		memcpy((uint16_t *)p->router + (int64_t)g * size * s->hidden,
		       (uint16_t *)p->router + (int64_t)(g - 1) * size * s->hidden,
		       (size_t)size * (size_t)s->hidden * 2);
		if (p->bias)
			memcpy(p->bias + g * size, p->bias + (g - 1) * size, (size_t)size * sizeof(float));
	}
}

static void times(void *p, int dtype, int64_t count, double factor)
{
	for (int64_t i = 0; i < count; i++)
		cairn_store(p, dtype, i, cairn_load(p, dtype, i) * factor);
}

static void matrix_times(const struct cairn_moe_args *a, const struct matrix *m, double factor)
{
	if (m->cells)
		moe_times_w4(a, m->cells, m->factors, m->num_factors, (int32_t)m->num, (int32_t)m->n,
			     (int32_t)m->k, factor);
	else if (m->scale)
		times(m->scale, CAIRN_F32, scales_of(a, m), factor);
	else
		times(m->w, a->dtype, m->num * m->n * m->k, factor);
}

static void bend(const struct cairn_moe_args *a, const struct operands *p, int how)
{
	const double tiny = a->dtype == CAIRN_F16 ? 0x1p-18 : a->fp8w ? 0x1p-108 : 0x1p-118;
	int64_t hidden = a->hidden;

	switch (how) {
	case FAR_APART:		/* one expert has nearly all the weight */
		times(p->router, a->dtype, a->num_experts * hidden, 6);
		break;
	case STEEP:		/* gates from -100 to 100 */
		matrix_times(a, &p->gate_up, 20);
		break;
	case LARGE:
		matrix_times(a, &p->down, a->dtype == CAIRN_F16 ? 10000 : 1e12);
		break;
	case SHIFTED: /* all logits are far above 88, or below -88, with the sign of the first element of x */
		cairn_store(p->norm, a->dtype, 0, 1);
		for (int e = 0; e < a->num_experts; e++)
			cairn_store(p->router, a->dtype, e * hidden, 600);
		break;
	case TINY:
		matrix_times(a, &p->down, tiny);
		matrix_times(a, &p->shared_down, tiny);
		break;
	}
}

static void fill_row(struct cairn_op *op, const struct moe_shape *s, const struct operands *p, int b)
{
	static const double sizes[] = { 1, 700, 0x1p-12, 0, 2e-3, 12000, 40 };
	const struct cairn_moe_args *a = op->args;
	void *x = (uint16_t *)p->x + (int64_t)b * a->hidden;
	double size = sizes[(b + op->case_index) % 7];
	enum cairn_kind kind = op->kind;

	if (kind == CAIRN_KIND_EXACT) {
		fill_signs(op, x, a->hidden, 16);
		return;
	}
	op->kind = CAIRN_KIND_NORMAL;
	fill(op, x, a->hidden, s->eps > 0 && kind != CAIRN_KIND_EXTREME ? sqrt((double)s->eps) : 1);
	op->kind = kind;
	if (s->flags & FAINT)
		cairn_store(x, a->dtype, 0, 1);
	for (int i = 0; i < a->hidden && kind == CAIRN_KIND_EXTREME; i++) {
		double v = cairn_load(x, a->dtype, i) * size * (i % 61 == 7 ? 40 : 1);

		if (i == 0 && op->case_index % NUM_BENDS == SHIFTED)
			v = b % 2 ? -size : size;
		v *= a->dtype == CAIRN_BF16 && size == 12000 ? 1e9 : 1;
		cairn_store(x, a->dtype, i, a->dtype == CAIRN_F16 ? fmax(fmin(v, 6e4), -6e4) : v);
	}
}

static void poison(const struct cairn_moe_args *a, const struct matrix *m, int e)
{
	const int64_t scales = cairn_moe_scales(a->scale_kind, m->n, m->k);

	if (m->cells) {		/* 4 bits: of a scale, all bits set are NaN */
		moe_poison_w4(a, m->cells, e, (int32_t)m->n, (int32_t)m->k);
		if (m->factors)
			cairn_fill_nan(m->factors, CAIRN_F32, e * (m->num_factors / m->num),
				       m->num_factors / m->num);
		return;
	}
	cairn_fill_nan(m->w, m->scale ? CAIRN_U8 : a->dtype, e * m->n * m->k, m->n * m->k);
	if (m->scale)
		cairn_fill_nan(m->scale, CAIRN_F32, e * scales, scales);
}

/* Draws x; with POISON, experts that are certainly not chosen become NaN. */
static void fill_x(struct cairn_op *op, const struct moe_shape *s, const struct operands *p)
{
	const struct cairn_moe_args *a = op->args;
	int used[256] = { 0 }, sure = 1;

	for (int b = 0; b < s->batch; b++) {
		int32_t experts[16];
		int decided = 0;

		if (b == 1 && s->batch > 2 && op->kind == CAIRN_KIND_POISON && !(s->flags & SAME)) {
			cairn_fill_nan(p->x, a->dtype, (int64_t)b * s->hidden, s->hidden);
			continue;	/* the experts it chooses may hold NaN */
		}
		for (int tries = 0; tries < 20 && !decided; tries++) {
			if (b && s->flags & SAME)
				memcpy((uint16_t *)p->x + b * (int64_t)s->hidden, p->x,
				       (size_t)s->hidden * 2);
			else
				fill_row(op, s, p, b);
			decided = cairn_block_moe_choice(a, b, experts);
		}
		sure &= decided;
		for (int i = 0; i < s->top; i++)
			used[experts[i]] = 1;
	}
	for (int e = 0; e < s->experts && op->kind == CAIRN_KIND_POISON && sure; e++) {
		if (used[e])
			continue;
		poison(a, &p->gate_up, e);
		poison(a, &p->down, e);
	}
}

static struct matrix matrix(struct cairn_op *op, const char *name, size_t field, size_t scale_field,
			    int64_t num, int64_t n, int64_t k, int far)
{
	const struct cairn_moe_args *a = op->args;
	struct matrix m = { .num = num, .n = n, .k = k };
	char scale_name[40];

	if (a->w4)
		m.w = cairn_in(op, field, CAIRN_U8, num * cairn_w4_code_bytes((int32_t)n, (int32_t)k));
	else
		m.w = far ? cairn_in_far(op, field, a->dtype, num * n * k) :
		      cairn_in(op, field, a->fp8w ? CAIRN_U8 : a->dtype, num * n * k);
	cairn_name(op, field, name);
	if (a->w4)
		m.cells = cairn_in(op, scale_field, CAIRN_U8,
				   num * moe_w4_cells(a, (int32_t)n, (int32_t)k));
	else if (a->fp8w)
		m.scale = cairn_in(op, scale_field, CAIRN_F32, scales_of(a, &m));
	else
		return m;
	snprintf(scale_name, sizeof(scale_name), "%s_scale", name);
	cairn_name(op, scale_field, scale_name);
	return m;
}

#define MATRIX(op, name, num, n, k, far) \
	matrix(op, "w_" #name, MOE_FIELD(w_##name), MOE_FIELD(w_##name##_scale), num, n, k, far)

/*
 * x and norm_weight are about 1, and only the last expert's row of the router is not 0, so that every request
 * chooses it. With FAR only that expert's weights are written.
 */
static void fill_last(struct cairn_op *op, const struct moe_shape *s, const struct operands *p)
{
	const struct cairn_moe_args *a = op->args;
	const struct matrix *m[] = { &p->gate_up, &p->down };
	int64_t hidden = s->hidden;

	fill_about_1(op, p->norm, s->hidden);
	for (int64_t i = 0; i < hidden; i++)
		cairn_store(p->norm, a->dtype, i, fabs(cairn_load(p->norm, a->dtype, i)));
	memset(p->router, 0, (size_t)(s->experts * hidden) * 2);
	for (int64_t i = 0; i < hidden; i++)
		cairn_store(p->router, a->dtype, (s->experts - 1) * hidden + i, 4 / sqrt(s->hidden));
	for (int64_t i = 0; i < s->batch * hidden; i++)
		cairn_store(p->x, a->dtype, i, (double)cairn_op_range(op, 50, 150) / 100);
	for (int k = 0; k < 2; k++) {
		int64_t one = m[k]->n * m[k]->k, at = s->flags & FAR ? (m[k]->num - 1) * one : 0;

		if (s->flags & FAR)
			cairn_touch(op, m[k]->w, at, one);
		fill(op, (uint16_t *)m[k]->w + at, s->flags & FAR ? one : m[k]->num * one,
		     1 / sqrt((double)m[k]->k));
	}
}

static void set_weight(const struct cairn_moe_args *a, const struct matrix *m, int64_t at, double v)
{
	if (m->scale)
		((uint8_t *)m->w)[at] = cairn_float_to_e4m3((float)v);
	else
		cairn_store(m->w, a->dtype, at, v);
}

/*
 * Columns c and c + k / 2 of a row are opposite and multiply equal elements, so their terms cancel. Within a
 * half of the columns the terms add up first, because weights have the signs of these elements. The first
 * four columns have no opposite ones; `rest` sets them.
 */
static void fill_mirrored(struct cairn_op *op, const struct matrix *m, double unit, int alternate,
			  void (*rest)(struct cairn_op *op, const struct matrix *m, int64_t row, double *v))
{
	const struct cairn_moe_args *a = op->args;
	int64_t half = m->k / 2;
	double v[4];

	for (int64_t i = 0; m->scale && i < scales_of(a, m); i++)
		m->scale[i] = 1;
	for (int64_t row = 0; row < m->num * m->n; row++) {
		rest(op, m, row, v);
		for (int64_t c = 0; c < half; c++) {
			double x = (double)cairn_op_range(op, 8, 15) * 2 * unit;

			x = c < 4 ? v[c] : alternate && c % 3 == 0 ? -x : x;
			set_weight(a, m, row * m->k + c, x);
			set_weight(a, m, row * m->k + half + c, c < 4 ? 0 : -x);
		}
	}
}

/* The gate is so large that silu(gate) is the gate itself; rows r and r + n / 4 give equal h. */
static void rest_of_gate_up(struct cairn_op *op, const struct matrix *m, int64_t row, double *v)
{
	int64_t r = row % m->n % (m->n / 4), expert = row / m->n;
	int up = row % m->n >= m->n / 2;

	(void)op;
	v[0] = up ? (r % 2 ? 7 : 3) : 48;
	v[1] = up ? 1 : 8;
	v[2] = up ? 1 : 8;
	v[3] = up ? (expert % 2 ? 2 : -2) : 0;
}

static void rest_of_down(struct cairn_op *op, const struct matrix *m, int64_t row, double *v)
{
	(void)m;
	(void)row;
	for (int c = 0; c < 4; c++)
		v[c] = (double)cairn_op_range(op, 1, 2) * (cairn_op_rand(op) & 1 ? 1 : -1);
}

/* n is 1 and -1, equal in columns c and c + hidden / 2. See moe_more_cases.h. */
static void fill_sums(struct cairn_op *op, const struct moe_shape *s, const struct operands *p)
{
	struct cairn_moe_args *a = op->args;
	const double in = s->flags & FP8 ? 8 : s->flags & F16 ? 2048 : 4096;
	int64_t hidden = s->hidden, half = hidden / 2;

	a->eps = 1e-12f;
	for (int64_t i = 0; i < hidden; i++)
		cairn_store(p->norm, a->dtype, i, 1);
	fill_sparse(op, p->router, 0, s->experts, hidden, 3);
	for (int64_t i = 0; i < s->batch * hidden; i++) {
		int64_t c = i % hidden;
		double v = c == 0 ? 16 : c < 4 ? (cairn_op_rand(op) & 1 ? 16 : -16) : c % 3 ? 16 : -16;

		cairn_store(p->x, a->dtype, i, c < half ? v : cairn_load(p->x, a->dtype, i - half));
	}
	fill_mirrored(op, &p->gate_up, in, 1, rest_of_gate_up);
	fill_mirrored(op, &p->down, 4, 0, rest_of_down);
	if (s->shared) {
		fill_mirrored(op, &p->shared_gate_up, in, 1, rest_of_gate_up);
		fill_mirrored(op, &p->shared_down, 4, 0, rest_of_down);
	}
}

/*
 * Fills rows of gates and ups, of which only the first two columns count; there n is 1 and -1. The first gate
 * (in shared experts the first up) needs one bit more than dtype has, and gate times up is so close to 32
 * that it rounds to 32. The second gate times its up is exactly `second`.
 */
static void fill_opposite_gate_up(const struct moe_shape *s, const struct matrix *m, int shared,
				  double second, const struct cairn_moe_args *a)
{
	const double bit = s->flags & F16 ? 0x1p-11 : 0x1p-8;

	for (int64_t row = 0; row < m->num * m->n; row++) {
		int64_t i = row % m->n, at = row * m->k, nth = i % (m->n / 2);
		int up = i >= m->n / 2;
		double size = !up ? 32 : nth == 0 ? 1 : nth == 1 ? second / 32 : 0;

		if (s->flags & SHUT)
			size = up ? 0x1p30 : -24;
		set_weight(a, m, at, size);
		if (nth == 0 && !(s->flags & SHUT))
			set_weight(a, m, at + 1, up == shared ? -size * bit : size * bit);
	}
}

/*
 * All requests choose the first experts, each with the weight 1 / top. Only two elements of h count. In the
 * first half of the columns x has the same signs in all requests; there the experts add -x, or with shared
 * experts -1.5 x, and half an ulp of that, and the shared experts add x / 2 and half an ulp. Only these
 * half ulps remain, so no partial sum may be rounded to dtype.
 */
static void fill_opposite(struct cairn_op *op, const struct moe_shape *s, const struct operands *p)
{
	struct cairn_moe_args *a = op->args;
	const struct matrix *m[] = { &p->gate_up, &p->down, &p->shared_gate_up, &p->shared_down };
	const double second = s->flags & F16 ? 0.5 : 2, rest = s->flags & F16 ? 0x1p-6 : 0x1p-5;
	const double total = s->shared ? 0.75 : 0.5, size = s->flags & SHUT ? 1 : 16;
	int64_t hidden = s->hidden;

	a->eps = 1e-12f;
	memset(p->router, 0, (size_t)(s->experts * hidden) * 2);
	for (int64_t i = 0; i < hidden; i++)
		cairn_store(p->norm, a->dtype, i, 1);
	for (int64_t i = 0; i < s->batch * hidden; i++) {
		int64_t c = i % hidden;
		int negative = c < hidden / 2 ? c % 3 == 1 : (int)(cairn_op_rand(op) & 1);

		cairn_store(p->x, a->dtype, i, negative ? -size : size);
	}
	for (int k = 0; k < (s->shared ? 4 : 2); k++) {
		for (int64_t i = 0; m[k]->scale && i < scales_of(a, m[k]); i++)
			m[k]->scale[i] = 1;
		memset(m[k]->w, 0, (size_t)(m[k]->num * m[k]->n * m[k]->k) * (m[k]->scale ? 1 : 2));
		if (k % 2 == 0)
			fill_opposite_gate_up(s, m[k], k == 2, second, a);
		for (int64_t row = 0; k % 2 && row < m[k]->num * m[k]->n; row++) {
			double sign = row % m[k]->n % 3 == 1 ? 1 : -1;

			set_weight(a, m[k], row * m[k]->k, sign * (k == 1 ? total : -0.25));
			set_weight(a, m[k], row * m[k]->k + 1, sign * (k == 1 ? rest : -rest / 2));
		}
	}
}

/* Clears the exponents of all codes and compensates for that in the scales. */
static void keep_subnormals(struct cairn_op *op, const struct matrix *m)
{
	for (int64_t i = 0; i < m->num * m->n * m->k; i++)
		((uint8_t *)m->w)[i] &= 0x87;
	for (int64_t i = 0; i < scales_of(op->args, m); i++)
		m->scale[i] *= 10000;
}

void moe_setup(struct cairn_op *op)
{
	struct cairn_moe_args *a = op->args;
	enum cairn_kind kind = op->kind;
	struct operands p = { 0 };
	int64_t count, hidden;
	struct moe_shape s;

	moe_shape_at(op->case_index, &s);
	a->dtype = s.flags & F16 ? CAIRN_F16 : CAIRN_BF16;
	a->batch = s.batch;
	a->hidden = s.hidden;
	a->num_experts = s.experts;
	a->experts_per_token = s.top;
	a->intermediate = s.inter;
	a->shared_intermediate = s.shared;
	a->normalize = !!(s.flags & NORMALIZE);
	a->sms = s.sms;
	a->scaling = s.scaling > 0 ? s.scaling : 1;
	a->fp8w = !!(s.flags & FP8);
	a->scale_kind = s.flags & BLOCKS ? CAIRN_FP8_SCALE_BLOCKS : CAIRN_FP8_SCALE_ROWS;
	a->eps = s.eps > 0 ? s.eps : op->case_index % 3 ? 1e-6f : 1e-5f;
	a->score = s.flags & SIGMOID ? CAIRN_MOE_SIGMOID : CAIRN_MOE_SOFTMAX;
	a->num_groups = s.groups;
	a->groups_per_token = s.groups_per_token;
	a->no_residual = !!(s.flags & NO_RESIDUAL);
	a->w4 = s.w4;
	hidden = s.hidden;
	count = s.batch * hidden;
	if (s.flags & IN_PLACE) {
		p.x = cairn_inout(op, MOE_FIELD(out), a->dtype, count);
		cairn_alias(op, MOE_FIELD(x), MOE_FIELD(out));
	} else {
		cairn_out(op, MOE_FIELD(out), a->dtype, count);
		p.x = cairn_in(op, MOE_FIELD(x), a->dtype, count);
	}
	cairn_shape(op, MOE_FIELD(out), { "row", s.batch }, { "dim", hidden });
	if (!(s.flags & NO_EXPERTS)) {
		cairn_out(op, MOE_FIELD(experts), CAIRN_I32, s.batch * s.top);
		cairn_shape(op, MOE_FIELD(experts), { "row", s.batch }, { "rank", s.top });
	}
	p.norm = cairn_in(op, MOE_FIELD(norm_weight), a->dtype, hidden);
	p.router = cairn_in(op, MOE_FIELD(w_router), a->dtype, s.experts * hidden);
	p.gate_up = MATRIX(op, gate_up, s.experts, 2 * s.inter, hidden, s.flags & FAR);
	p.down = MATRIX(op, down, s.experts, hidden, s.inter, s.flags & FAR);
	if (s.w4 == CAIRN_MOE_W4_NV) {
		p.gate_up.num_factors = 2 * s.experts;
		p.gate_up.factors = cairn_in(op, MOE_FIELD(gate_up_factor), CAIRN_F32, 2 * s.experts);
		p.down.num_factors = s.experts;
		p.down.factors = cairn_in(op, MOE_FIELD(down_factor), CAIRN_F32, s.experts);
	}
	if (s.shared) {
		p.shared_gate_up = MATRIX(op, shared_gate_up, 1, 2 * s.shared, hidden, 0);
		p.shared_down = MATRIX(op, shared_down, 1, hidden, s.shared, 0);
	}
	if (s.flags & BIAS)
		p.bias = cairn_in(op, MOE_FIELD(route_bias), CAIRN_F32, s.experts);
	fill_between(op, &s);
	if (kind == CAIRN_KIND_EXTREME)
		op->kind = CAIRN_KIND_NORMAL;	/* for everything that is not distorted */
	if (s.flags & (LAST | SUMS | OPPOSITE)) {
		(s.flags & SUMS ? fill_sums : s.flags & LAST ? fill_last : fill_opposite)(op, &s, &p);
		return;
	}
	fill_weights(op, &s, &p, kind == CAIRN_KIND_EXACT);
	for (int64_t e = 0; s.flags & FAINT && e < s.experts; e++) {
		cairn_store(p.norm, a->dtype, 0, 1);
		cairn_store(p.router, a->dtype, e * hidden, -36);
	}
	if (s.flags & SUBNORMAL) {
		const struct matrix *m[] = { &p.gate_up, &p.down, &p.shared_gate_up, &p.shared_down };

		for (int i = 0; i < (s.shared ? 4 : 2); i++)
			keep_subnormals(op, m[i]);
	}
	for (int e = 1; e < s.experts && s.flags & (TIES | PAIRS); e++)
		if (e % 2 || s.flags & TIES)
			memcpy((uint16_t *)p.router + e * hidden, (uint16_t *)p.router + (e - 1) * hidden,
			       (size_t)hidden * 2);
	if (p.bias)
		fill_bias(op, &s, p.bias, kind == CAIRN_KIND_EXACT);
	if (s.flags & GROUP_TIES)
		repeat_groups(&s, &p);
	if (kind == CAIRN_KIND_EXTREME)
		bend(a, &p, op->case_index % NUM_BENDS);
	op->kind = kind;
	fill_x(op, &s, &p);
}
