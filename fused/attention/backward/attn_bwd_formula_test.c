// SPDX-License-Identifier: Apache-2.0
/*
 * attn_bwd_formula_test - compares the reference's gradients with finite differences of a plain forward pass,
 * and checks an identity between them
 *
 * The loss is sum dout * out. From exact out and lse, the gradients would equal the differences up to the
 * error of the step. Rounding out to bf16 changes delta by up to 2^-8 of its value. The error of a wrong
 * formula is as large as the gradient itself.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "fused/attention/backward/attn_bwd.h"

#define ROWS	7
#define KEYS	9
#define HEADS	4
#define KV_HEADS 2
#define DIM	64
#define STEP	1e-4
#define NEAR	0.01	/* allowed error, relative to the largest gradient */

struct data {
	double q[ROWS * HEADS * DIM], k[KEYS * KV_HEADS * DIM], v[KEYS * KV_HEADS * DIM];
	uint16_t q16[ROWS * HEADS * DIM], k16[KEYS * KV_HEADS * DIM], v16[KEYS * KV_HEADS * DIM];
	uint16_t out[ROWS * HEADS * DIM], dout[ROWS * HEADS * DIM];
	float lse[ROWS * HEADS];
	double dq[ROWS * HEADS * DIM], dk[KEYS * KV_HEADS * DIM], dv[KEYS * KV_HEADS * DIM];
	double bound[ROWS * HEADS * DIM];
	uint16_t written[ROWS * HEADS * DIM];
};

static const int32_t qo_indptr[] = { 0, ROWS }, kv_indptr[] = { 0, KEYS };

static void draw(uint32_t *state, uint16_t *x, double *wide, int n)
{
	for (int i = 0; i < n; i++) {
		*state = *state * 1664525 + 1013904223;
		cairn_store(x, CAIRN_BF16, i, (double)(int32_t)*state * 0x1p-30);
		if (wide)
			wide[i] = cairn_load(x, CAIRN_BF16, i);
	}
}

static struct cairn_attn_bwd_args call_of(struct data *d, int causal, int window, float cap)
{
	return (struct cairn_attn_bwd_args){
		.size = sizeof(struct cairn_attn_bwd_args), .dq = d->written, .dk = d->written,
		.dv = d->written, .q = d->q16, .k = d->k16, .v = d->v16, .out = d->out, .dout = d->dout,
		.lse = d->lse, .qo_indptr = qo_indptr, .kv_indptr = kv_indptr, .batch = 1, .nnz_qo = ROWS,
		.nnz_kv = KEYS, .max_qo_len = ROWS, .max_kv_len = KEYS, .num_qo_heads = HEADS,
		.num_kv_heads = KV_HEADS, .qk_dim = DIM, .v_dim = DIM, .dtype = CAIRN_BF16,
		.causal = causal, .sm_scale = 0.2f, .window = window, .softcap = cap,
	};
}

/* Returns sum dout * out of head h, in double. */
static double loss(const struct data *d, const struct cairn_attn_bwd_args *a, int h)
{
	int g = h / (HEADS / KV_HEADS);
	double sum = 0;

	for (int i = 0; i < ROWS; i++) {
		double p[KEYS], l = 0, o = 0;

		for (int j = 0; j < KEYS; j++) {
			int at = i + KEYS - ROWS;
			double s = 0;

			for (int c = 0; c < DIM; c++)
				s += d->q[(i * HEADS + h) * DIM + c] * d->k[(j * KV_HEADS + g) * DIM + c];
			s *= a->sm_scale;
			if (a->softcap > 0)
				s = (double)a->softcap * tanh(s / (double)a->softcap);
			p[j] = (a->causal && j > at) || (a->window && j <= at - a->window) ? 0 : exp(s);
			l += p[j];
		}
		for (int j = 0; j < KEYS; j++)
			for (int c = 0; c < DIM; c++)
				o += p[j] / l * d->v[(j * KV_HEADS + g) * DIM + c] *
				     cairn_load(d->dout, CAIRN_BF16, (i * HEADS + h) * DIM + c);
		sum += o;
	}
	return sum;
}

/* Compares every 17th gradient with a finite difference of the loss. */
static void compare(struct cairn_test *t, struct data *d, const struct cairn_attn_bwd_args *a, double *x,
		    const double *gradient, int n, int kv, const char *name)
{
	double largest = 0, worst = 0;

	for (int i = 0; i < n; i++)
		largest = fmax(largest, fabs(gradient[i]));
	for (int i = 0; i < n; i += 17) {
		int head = i / DIM % (kv ? KV_HEADS : HEADS), first = kv ? head * (HEADS / KV_HEADS) : head;
		double before = x[i], difference = 0;

		for (int h = first; h < first + (kv ? HEADS / KV_HEADS : 1); h++) {
			x[i] = before + STEP;
			difference += loss(d, a, h);
			x[i] = before - STEP;
			difference -= loss(d, a, h);
			x[i] = before;
		}
		worst = fmax(worst, fabs(difference / (2 * STEP) - gradient[i]));
	}
	if (!EXPECT(t, largest > 0.1 && worst < NEAR * largest))
		cairn_note(t, "%s: a difference of %g, largest gradient %g", name, worst, largest);
}

static double inner(const double *x, const double *y, int n)
{
	double sum = 0;

	for (int i = 0; i < n; i++)
		sum += x[i] * y[i];
	return sum;
}

static void check_one(struct cairn_test *t, int causal, int window, float cap)
{
	struct data *d = calloc(1, sizeof(*d));
	struct cairn_attn_bwd_args a;
	struct cairn_attn_dense_args f;
	uint32_t state = 99;

	if (!EXPECT(t, d))
		return;
	draw(&state, d->q16, d->q, ROWS * HEADS * DIM);
	draw(&state, d->k16, d->k, KEYS * KV_HEADS * DIM);
	draw(&state, d->v16, d->v, KEYS * KV_HEADS * DIM);
	draw(&state, d->dout, NULL, ROWS * HEADS * DIM);
	a = call_of(d, causal, window, cap);
	f = cairn_attn_bwd_forward(&a);
	f.out = d->out;
	f.lse = d->lse;
	EXPECT(t, cairn_attn_dense_ref(&f, NULL) == 0);
	EXPECT(t, cairn_attn_bwd_exact(&a, (struct cairn_exact[]){
		{ .val = d->dq, .bound = d->bound }, { .val = d->dk, .bound = d->bound },
		{ .val = d->dv, .bound = d->bound } }) == 0);
	compare(t, d, &a, d->q, d->dq, ROWS * HEADS * DIM, 0, "dq");
	compare(t, d, &a, d->k, d->dk, KEYS * KV_HEADS * DIM, 1, "dk");
	compare(t, d, &a, d->v, d->dv, KEYS * KV_HEADS * DIM, 1, "dv");
	/* both are sum ds * s / slope, even if ds is wrong: this checks the two products with ds */
	EXPECT(t, fabs(inner(d->dq, d->q, ROWS * HEADS * DIM) - inner(d->dk, d->k, KEYS * KV_HEADS * DIM)) <
	       1e-9 * (1 + fabs(inner(d->dq, d->q, ROWS * HEADS * DIM))));
	free(d);
}

static void finite_differences(struct cairn_test *t)
{
	check_one(t, 0, 0, 0);
	check_one(t, 1, 0, 0);
	check_one(t, 1, 3, 0);
	check_one(t, 0, 0, 1.5f);
	check_one(t, 1, 4, 0.7f);
}

static const struct cairn_unit units[] = { { "finite_differences", finite_differences } };

const struct cairn_family cairn_attn_bwd_formula_family = {
	.stage = "fused", .name = "attn_bwd_formula", .units = units, .num_units = ARRAY_SIZE(units),
};
