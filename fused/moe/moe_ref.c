// SPDX-License-Identifier: Apache-2.0
/*
 * moe_ref - computes the definition, one request at a time, in double, and rounds where the contract rounds
 *
 * It also computes the further runs that moe_bounds.c requests, with the experts of run 0 but other
 * roundings.
 */
#include "fused/moe/moe_ref.h"

#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "primitives/base/fp8.h"
#include "primitives/base/rows.h"
#include "primitives/gemm/w4/gemm_w4_value.h"
#include "fused/moe/moe_w4.h"

#define MAX_K	16384

static int64_t larger(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

int moe_chain_open(struct moe_chain *c, const struct cairn_moe_args *a, int runs)
{
	int64_t hidden = a->hidden, inter = 2 * larger(a->intermediate, a->shared_intermediate);
	double **const rows[] = { &c->x, &c->n, &c->gate_up, &c->y, &c->out, &c->logits, &c->n_error,
				  &c->error, &c->squares, &c->parts };
	const int64_t sizes[] = { runs * hidden, runs * hidden, runs * inter, runs * hidden, runs * hidden,
				  runs * a->num_experts, hidden, a->num_experts, hidden, hidden };
	int64_t total = 0;

	*c = (struct moe_chain){ .a = a, .how = cairn_moe_choice_of(a), .between = cairn_moe_between_of(a),
				 .runs = runs };
	for (int i = 0; i < 10; i++)
		total += sizes[i];
	c->memory = calloc((size_t)total, sizeof(double));
	if (!c->memory)
		return cairn_error(ENOMEM, "moe: no memory for %lld numbers", (long long)total);
	total = 0;
	for (int i = 0; i < 10; total += sizes[i++])
		*rows[i] = c->memory + total;
	return 0;
}

void moe_chain_load(struct moe_chain *c, int b)
{
	for (int i = 0; i < c->a->hidden; i++)
		c->x[i] = cairn_load(c->a->x, c->a->dtype, (int64_t)b * c->a->hidden + i);
}

/* Matrix number nth of several [n, k]: of dtype (scale NULL), or e4m3 or 4 bits with scales */
struct matrix {
	const void *w;
	const float *scale;
	int64_t nth;
	int n, k;
};

static void load_row_w4(const struct moe_chain *c, const struct matrix *m, int i, double *row)
{
	const struct cairn_gemm_w4_args g = cairn_moe_w4_matrix(cairn_moe_w4_of(c->a), m->w, m->scale, m->nth,
								m->n, m->k);
	const double factor = (double)cairn_moe_factor(c->a, m->w == c->a->w_down, m->nth, i, m->n);
	float values[MAX_K];

	cairn_w4_row(&g, i, values);
	for (int l = 0; l < m->k; l++)
		row[l] = (double)values[l] * factor;
}

/* Returns whether an implementation may round scales, and codes times scales, to dtype, with any effect. */
static int may_round_weights(const struct cairn_moe_args *a)
{
	const int32_t w4 = cairn_moe_w4_of(a);

	return a->batch > CAIRN_MOE_FEW && w4 && w4 != CAIRN_MOE_W4_NV &&
	       (w4 != CAIRN_MOE_W4_MX || a->dtype == CAIRN_F16);
}

/*
 * Computes row i of a matrix in 4 bits as load_row_w4() does, but rounds its scales, and codes times
 * scales, up or down at random. Equal codes of a group are rounded alike, as an implementation would.
 */
static void round_row_w4(const struct moe_chain *c, const struct matrix *m, int i, int run, double *row)
{
	const struct cairn_gemm_w4_args g = cairn_moe_w4_matrix(cairn_moe_w4_of(c->a), m->w, m->scale, m->nth,
								m->n, m->k);
	const int group = g.group ? g.group : m->k;
	const uint64_t is_down = m->w == c->a->w_down;
	uint64_t key = (uint64_t)run << 56 | is_down << 55 | (uint64_t)m->nth << 40 | (uint64_t)i << 20;
	double values[16] = { 0 };
	float codes[16];

	for (int l = 0; l < m->k; l++) {
		if (l % group == 0) {
			double scale = block_rounded_either((double)cairn_w4_scale(&g, i, l / group),
							    c->a->dtype, key++);

			cairn_w4_values(&g, i, l / group, codes);
			for (int code = 0; code < 16; code++)
				values[code] = block_rounded_either((double)codes[code] * scale, c->a->dtype,
								    key++);
		}
		row[l] = values[cairn_w4_code(g.format, g.b, m->k, i, l)];
	}
}

static void load_row(const struct moe_chain *c, const struct matrix *m, int i, double *row)
{
	const uint8_t *codes = m->w;
	int64_t at = (m->nth * m->n + i) * m->k;
	int64_t first = m->nth * cairn_moe_scales(c->a->scale_kind, m->n, m->k);
	int64_t blocks = (m->k + CAIRN_FP8_BLOCK - 1) / CAIRN_FP8_BLOCK;

	if (!m->scale) {
		cairn_widen(row, m->w, c->a->dtype, at, m->k);
		return;
	}
	if (cairn_moe_w4_of(c->a)) {
		load_row_w4(c, m, i, row);
		return;
	}
	for (int from = 0; from < m->k; from += CAIRN_FP8_BLOCK) {
		int n = m->k - from < CAIRN_FP8_BLOCK ? m->k - from : CAIRN_FP8_BLOCK;
		int64_t nth = c->a->scale_kind == CAIRN_FP8_SCALE_ROWS ? i :
			      i / CAIRN_FP8_BLOCK * blocks + from / CAIRN_FP8_BLOCK;

		cairn_widen_e4m3(row + from, codes + at + from, (double)m->scale[first + nth], n);
	}
}

/*
 * out = in W^T for all runs, rows of in `stride` apart; squares: receives the sums of the squares of run 0's
 * terms.
 */
static void project(const struct moe_chain *c, double *out, const double *in, int64_t stride,
		    struct matrix m, double *squares)
{
	#pragma omp parallel for if ((int64_t)m.n * m.k * c->runs > 65536)
	for (int i = 0; i < m.n; i += 2) {
		int rows = i + 1 < m.n ? 2 : 1;
		const int alike = m.scale && may_round_weights(c->a) && c->runs > MOE_RUN_AT_RANDOM ?
				  MOE_RUN_AT_RANDOM : c->runs;
		double w[2 * MAX_K];

		for (int r = 0; r < rows; r++)
			load_row(c, &m, i + r, w + r * m.k);
		cairn_products(out + i, m.n, in, stride, alike, w, rows, m.k);
		for (int r = 0; squares && r < rows; r++)
			squares[i + r] += cairn_dot_squares(in, w + r * m.k, m.k);
		for (int run = alike; run < c->runs; run++) {
			for (int r = 0; r < rows; r++)
				round_row_w4(c, &m, i + r, run, w + r * m.k);
			cairn_products(out + (int64_t)run * m.n + i, m.n, in + run * stride, stride, 1, w,
				       rows, m.k);
		}
	}
}

static double sigmoid(double x)
{
	return 1 / (1 + exp(-x));
}

double moe_chain_score(const struct moe_chain *c, int e)
{
	if (c->how.score != CAIRN_MOE_SIGMOID)
		return c->logits[e];	/* the softmax keeps the order, and in double no order is lost */
	return sigmoid(c->logits[e]) + (c->how.bias ? (double)c->how.bias[e] : 0);
}

double moe_chain_group(const struct moe_chain *c, int group)
{
	const int size = c->a->num_experts / c->how.groups;
	double first = -INFINITY, second = -INFINITY;

	for (int e = group * size; e < (group + 1) * size; e++) {
		double now = moe_chain_score(c, e);

		second = fmax(second, fmin(first, now));
		first = fmax(first, now);
	}
	return c->how.score == CAIRN_MOE_SIGMOID && size > 1 ? first + second : first;
}

/* Sorts 0 .. n - 1 by falling scores; the sort is stable. */
static void rank(int *order, const double *score, int n)
{
	for (int i = 0; i < n; i++) {
		int at = i;

		for (; at > 0 && score[i] > score[order[at - 1]]; at--)
			order[at] = order[at - 1];
		order[at] = i;
	}
}

/* Orders groups and experts by run 0; experts of groups that are not chosen are behind all others. */
static void choose(struct moe_chain *c)
{
	const int num = c->a->num_experts, size = num / c->how.groups;
	double score[256], of_group[CAIRN_MOE_MAX_GROUPS];

	for (int e = 0; e < num; e++)
		score[e] = moe_chain_score(c, e);
	for (int g = 0; g < c->how.groups; g++)
		of_group[g] = moe_chain_group(c, g);
	rank(c->groups, of_group, c->how.groups);
	for (int g = c->how.groups_per_token; g < c->how.groups; g++)
		for (int e = c->groups[g] * size; e < (c->groups[g] + 1) * size; e++)
			score[e] = -INFINITY;
	rank(c->experts, score, num);
}

/* Adds the biases to the logits of all runs; the addition rounds once more. */
static void add_logit_bias(struct moe_chain *c)
{
	const int num = c->a->num_experts;

	for (int i = 0; c->how.logit_bias && i < c->runs * num; i++)
		c->logits[i] += (double)c->how.logit_bias[i % num];
	for (int e = 0; c->how.logit_bias && e < num; e++)
		c->error[e] += 0x1p-23 * (fabs(c->logits[e]) + c->error[e]);
}

void moe_chain_route(struct moe_chain *c)
{
	const struct cairn_moe_args *a = c->a;
	struct block_row x = { c->x, NULL }, n = { c->n, c->n_error }, logits = { c->logits, c->error };

	for (int r = c->runs - 1; r >= MOE_RUN_AT_RANDOM; r--) {
		double sum = 0;

		for (int i = 0; i < a->hidden; i++)
			sum += c->x[i] * c->x[i];
		for (int i = 0; i < a->hidden; i++)
			c->n[(int64_t)r * a->hidden + i] =
				block_rounded_either(c->x[i] / sqrt(sum / a->hidden + (double)a->eps) *
						     cairn_load(a->norm_weight, a->dtype, i), a->dtype,
						     (uint64_t)r << 48 | (uint64_t)i);
	}
	cairn_block_norm(n, x, a->norm_weight, a->hidden, a->eps, a->dtype);
	for (int r = 1; r < c->runs && r < MOE_RUN_AT_RANDOM; r++)
		memcpy(c->n + (int64_t)r * a->hidden, c->n, sizeof(double) * (size_t)a->hidden);
	project(c, c->logits, c->n, a->hidden,
		(struct matrix){ .w = a->w_router, .n = a->num_experts, .k = a->hidden }, NULL);
	cairn_block_project(logits, n, a->w_router, NULL, a->num_experts, a->hidden, a->dtype);
	add_logit_bias(c);
	choose(c);
}

static double weight_of(const struct moe_chain *c, int run, int nth)
{
	const double *logits = c->logits + (int64_t)run * c->a->num_experts;
	double top = -INFINITY, sum = 0;

	if (c->how.score == CAIRN_MOE_SIGMOID) {
		for (int i = 0; i < c->a->experts_per_token; i++)
			sum += sigmoid(logits[c->experts[i]]);
		return sigmoid(logits[c->experts[nth]]) / (c->a->normalize ? sum + 1e-20 : 1) *
		       (double)c->a->scaling;
	}
	for (int i = 0; i < c->a->num_experts; i++)
		top = fmax(top, logits[i]);
	if (c->a->normalize) {		/* the sum over all experts cancels */
		for (int i = 0; i < c->a->experts_per_token; i++)
			sum += exp(logits[c->experts[i]] - top);
	} else {
		for (int i = 0; i < c->a->num_experts; i++)
			sum += exp(logits[i] - top);
	}
	return exp(logits[c->experts[nth]] - top) / sum * (double)c->a->scaling;
}

/* Returns whether this run applies the weight after the product with w_down. */
static int is_late(int run)
{
	return run == MOE_RUN_LATE || (run >= MOE_RUN_AT_RANDOM && run % 2);
}

static double rounded_h(const struct moe_chain *c, int run, double v, uint64_t key)
{
	if (run == MOE_RUN_UNROUNDED)
		return v;
	return run < MOE_RUN_AT_RANDOM ? block_rounded(v, c->a->dtype) :
	       block_rounded_either(v, c->a->dtype, key);
}

/* Returns what is between the products, before the weight, and adds the biases of element i of n. */
static double activated(const struct moe_chain *c, const double *g, int i, int n, int expert)
{
	const struct cairn_moe_between *b = &c->between;
	const int64_t at = (int64_t)expert * 2 * n + i;
	double gate = g[i], up = g[n + i];

	if (b->gate_up_bias) {
		gate += cairn_load(b->gate_up_bias, c->a->dtype, at);
		up += cairn_load(b->gate_up_bias, c->a->dtype, at + n);
	}
	if (b->activation != CAIRN_MOE_CLAMPED)
		return gate / (1 + exp(-gate)) * up;
	gate = fmin(gate, (double)b->limit);
	up = fmax(fmin(up, (double)b->limit), -(double)b->limit);
	return (up + 1) * gate * sigmoid((double)b->alpha * gate);
}

/* Adds a chosen expert's down_bias, which has the expert's weight. */
static void add_down_bias(struct moe_chain *c, int expert, const double *weight)
{
	for (int i = 0; c->between.down_bias && i < c->a->hidden; i++) {
		double bias = cairn_load(c->between.down_bias, c->a->dtype,
					 (int64_t)expert * c->a->hidden + i);

		for (int r = 0; r < c->runs; r++)
			c->out[(int64_t)r * c->a->hidden + i] += weight[r] * bias;
		c->parts[i] += fabs(weight[0] * bias);
	}
}

/* Adds the contribution of expert number nth; nth == experts_per_token: the shared experts */
static void feed_forward(struct moe_chain *c, int nth)
{
	const struct cairn_moe_args *a = c->a;
	int shared = nth == a->experts_per_token, n = shared ? a->shared_intermediate : a->intermediate;
	const struct matrix gate_up = {
		.w = shared ? a->w_shared_gate_up : a->w_gate_up,
		.scale = shared ? a->w_shared_gate_up_scale : a->w_gate_up_scale,
		.nth = shared ? 0 : c->experts[nth], .n = 2 * n, .k = a->hidden,
	};
	const struct matrix down = {
		.w = shared ? a->w_shared_down : a->w_down,
		.scale = shared ? a->w_shared_down_scale : a->w_down_scale,
		.nth = gate_up.nth, .n = a->hidden, .k = n,
	};

	double weight[MOE_MAX_RUNS];

	project(c, c->gate_up, c->n, a->hidden, gate_up, NULL);
	for (int r = 0; r < c->runs; r++) {
		double *g = c->gate_up + (int64_t)r * 2 * n;

		weight[r] = shared ? 1 : weight_of(c, r, nth);
		for (int i = 0; i < n; i++) {
			double v = activated(c, g, i, n, (int)gate_up.nth) * (is_late(r) ? 1 : weight[r]);

			g[i] = rounded_h(c, r, v, (uint64_t)r << 48 | (uint64_t)(nth + 1) << 32 |
					 (uint64_t)i);
		}
	}
	project(c, c->y, c->gate_up, 2 * n, down, c->squares);
	for (int64_t i = 0; i < c->runs * (int64_t)a->hidden; i++) {
		int r = (int)(i / a->hidden);

		c->out[i] += c->y[i] * (is_late(r) ? weight[r] : 1);
	}
	for (int i = 0; i < a->hidden; i++)
		c->parts[i] += fabs(c->y[i]);
	if (!shared)
		add_down_bias(c, c->experts[nth], weight);
}

void moe_chain_run(struct moe_chain *c)
{
	moe_chain_route(c);
	for (int64_t i = 0; i < c->runs * (int64_t)c->a->hidden; i++)
		c->out[i] = cairn_moe_adds_x(c->a) ? c->x[i % c->a->hidden] : 0;
	for (int i = 0; i < c->a->experts_per_token + (c->a->shared_intermediate > 0); i++)
		feed_forward(c, i);
}

int cairn_moe_ref(const struct cairn_moe_args *a, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_moe_check(a));
	for (int b = 0; b < a->batch; b++) {
		struct moe_chain c;

		CAIRN_TRY(moe_chain_open(&c, a, 1));
		moe_chain_load(&c, b);
		moe_chain_run(&c);
		for (int i = 0; i < a->hidden; i++)
			cairn_store(a->out, a->dtype, (int64_t)b * a->hidden + i, c.out[i]);
		for (int i = 0; a->experts && i < a->experts_per_token; i++)
			a->experts[b * a->experts_per_token + i] = c.experts[i];
		free(c.memory);
	}
	return 0;
}

int cairn_block_moe(const struct cairn_moe_args *a, const double *x, double *out, double *logits)
{
	struct moe_chain c;

	CAIRN_TRY(moe_chain_open(&c, a, 1));
	for (int i = 0; i < a->hidden; i++)
		c.x[i] = x[i];
	moe_chain_run(&c);
	for (int i = 0; i < a->hidden; i++)
		out[i] = block_rounded(c.out[i], a->dtype);
	for (int i = 0; i < a->num_experts; i++)
		logits[i] = c.logits[i];
	free(c.memory);
	return 0;
}
