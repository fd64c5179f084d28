// SPDX-License-Identifier: Apache-2.0
/*
 * moe_cpu - moe on the CPU, in fp32, for engines without a GPU; reads a chosen expert's weights once for
 * MAX_BATCH rows
 *
 * The requests' choices are inverted into a list of experts in use, each with its users; the shared experts
 * are one more entry, used by all requests. Both products go through that list, row by row of the weights: a
 * row is widened once and multiplied by the vector of every user. The order of a user's sums does not depend
 * on the other users, so a request's bits depend neither on the other requests nor on the number of threads.
 */
#include "fused/moe/moe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/args.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/fp8.h"
#include "primitives/gemm/w4/gemm_w4_value.h"
#include "fused/block/block_cpu.h"
#include "fused/moe/moe_w4.h"

#define MAX_BATCH	32		/* more rows are split into parts of this size */
#define MAX_TOP		16
#define MAX_EXPERTS	256
#define MAX_K		16384

/* Rows of a matrix, from element `at` on. scale: NULL, or the first scale if the matrix is e4m3 */
struct matrix {
	const void *w;
	const float *scale;
	int64_t at;
	int k;
	struct cairn_gemm_w4_args four;		/* the matrix, if it has 4 bits; else b is NULL */
	float factor[2];		/* of four: of the first half of its rows, and of the second */
};

/* An expert in use: its number (-1: the shared experts), its weights, and its users' h in rows of `width` */
struct expert {
	struct matrix gate_up, down;
	int number, n, num_users, user[MAX_BATCH], slot[MAX_BATCH];
};

struct state {
	const struct cairn_moe_args *a;
	struct cairn_moe_choice how;
	struct cairn_moe_between between;
	float *n, *h;		/* [batch, hidden], [batch, slots, width] */
	float wide[256];	/* values of the e4m3 codes */
	int slots, width, num_used;
	int chosen[MAX_BATCH][MAX_TOP];
	float weight[MAX_BATCH][MAX_TOP + 1];
	struct expert used[MAX_EXPERTS + 1];
};

static CAIRN_WIDE void norm(const struct state *s, int b)
{
	const struct cairn_moe_args *a = s->a;
	float *n = s->n + (int64_t)b * a->hidden, scale;

	cairn_load_row(n, a->x, a->dtype, (int64_t)b * a->hidden, a->hidden);
	scale = 1 / sqrtf(block_dot(n, n, a->hidden) / (float)a->hidden + a->eps);
	for (int i = 0; i < a->hidden; i++)
		n[i] = block_narrowed(n[i] * scale * (float)cairn_load(a->norm_weight, a->dtype, i),
				      a->dtype);
}

static CAIRN_WIDE void router(const struct state *s, float (*logits)[MAX_BATCH])
{
	const struct cairn_moe_args *a = s->a;

	#pragma omp parallel for schedule(static) if (a->num_experts * a->hidden > 65536)
	for (int e = 0; e < a->num_experts; e++) {
		float row[MAX_K];

		cairn_load_row(row, a->w_router, a->dtype, (int64_t)e * a->hidden, a->hidden);
		for (int b = 0; b < a->batch; b++)
			logits[e][b] = block_dot(s->n + (int64_t)b * a->hidden, row, a->hidden) +
				       (s->how.logit_bias ? s->how.logit_bias[e] : 0);
	}
}

/* Computes the softmax of a request's logits. */
static void softmax(const struct state *s, int b, float (*logits)[MAX_BATCH], float *p)
{
	const struct cairn_moe_args *a = s->a;
	float top = -INFINITY, sum = 0;

	for (int e = 0; e < a->num_experts; e++)
		top = fmaxf(top, logits[e][b]);
	for (int e = 0; e < a->num_experts; e++) {
		p[e] = expf(logits[e][b] - top);
		sum += p[e];
	}
	for (int e = 0; e < a->num_experts; e++)
		p[e] /= sum;
}

/*
 * Returns the index of the largest number that is not taken (the first of equal ones; a NaN only if all are
 * NaN).
 */
static int best_of(const float *v, const uint8_t *taken, int n)
{
	int best = 0;

	for (int i = 0; i < n; i++)
		if (!taken[i] && (taken[best] || v[i] > v[best] || (isnan(v[best]) && !isnan(v[i]))))
			best = i;
	return best;
}

/* Marks the experts outside the groups with the largest scores as taken. Experts are compared by c. */
static void leave_groups(const struct state *s, const float *c, uint8_t *taken)
{
	const int groups = s->how.groups, size = s->a->num_experts / groups;
	uint8_t chosen[CAIRN_MOE_MAX_GROUPS] = { 0 };
	float score[CAIRN_MOE_MAX_GROUPS];

	for (int g = 0; g < groups; g++) {
		uint8_t first[MAX_EXPERTS] = { 0 };
		const float *of = c + g * size;
		int best = best_of(of, first, size);

		score[g] = of[best];
		first[best] = 1;
		if (s->how.score == CAIRN_MOE_SIGMOID)
			score[g] += of[best_of(of, first, size)];
	}
	for (int i = 0; i < s->how.groups_per_token; i++)
		chosen[best_of(score, chosen, groups)] = 1;
	for (int e = 0; e < s->a->num_experts; e++)
		taken[e] = !chosen[e / size];
}

static void choose(struct state *s, int b, float (*logits)[MAX_BATCH])
{
	const struct cairn_moe_args *a = s->a;
	const int sigmoids = s->how.score == CAIRN_MOE_SIGMOID;
	float p[MAX_EXPERTS], c[MAX_EXPERTS], sum = 0;
	uint8_t taken[MAX_EXPERTS] = { 0 };

	if (!sigmoids)
		softmax(s, b, logits, p);
	for (int e = 0; e < a->num_experts; e++) {
		if (sigmoids)
			p[e] = 1 / (1 + expf(-logits[e][b]));
		c[e] = p[e] + (s->how.bias ? s->how.bias[e] : 0);
	}
	if (s->how.groups > 1)
		leave_groups(s, c, taken);
	for (int i = 0; i < a->experts_per_token; i++) {
		int best = best_of(c, taken, a->num_experts);

		s->chosen[b][i] = best;
		s->weight[b][i] = p[best];
		sum += p[best];
		taken[best] = 1;
	}
	sum += sigmoids ? 1e-20f : 0;
	for (int i = 0; i < a->experts_per_token; i++) {
		if (a->normalize)
			s->weight[b][i] /= sum;
		s->weight[b][i] *= a->scaling;
		if (a->experts)
			a->experts[b * a->experts_per_token + i] = s->chosen[b][i];
	}
	s->weight[b][a->experts_per_token] = 1;
}

static void add_user(struct expert *e, int b, int slot)
{
	e->user[e->num_users] = b;
	e->slot[e->num_users++] = slot;
}

/* Makes m matrix number nth of matrices [n, k] in 4 bits. */
static void set_w4(const struct state *s, struct matrix *m, const void *w, const float *scale, int64_t nth,
		   int n)
{
	const int is_down = w == s->a->w_down;

	m->four = cairn_moe_w4_matrix(s->a->w4, w, scale, nth, n, m->k);
	for (int i = 0; i < 2; i++)
		m->factor[i] = cairn_moe_factor(s->a, is_down, nth, i * n / 2, n);
}

/* Returns matrix number nth of matrices [n, k]. */
static struct matrix matrix_of(const struct state *s, const void *w, const float *scale, int64_t nth, int n,
			       int k)
{
	struct matrix m = { .w = w, .at = nth * n * k, .k = k };

	if (cairn_moe_w4_of(s->a))
		set_w4(s, &m, w, scale, nth, n);
	else if (scale)
		m.scale = scale + nth * cairn_moe_scales(s->a->scale_kind, n, k);
	return m;
}

/* Loads row i, each element times its scale. */
static CAIRN_WIDE void load_row(const struct state *s, const struct matrix *m, int i, float *row)
{
	const int block = CAIRN_FP8_BLOCK, blocks = (m->k + block - 1) / block;
	const uint8_t *codes = (const uint8_t *)m->w + m->at + (int64_t)i * m->k;

	if (m->four.b) {
		const float factor = m->factor[i >= m->four.n / 2];

		cairn_w4_row(&m->four, i, row);
		for (int l = 0; l < m->k && factor != 1; l++)
			row[l] *= factor;
		return;
	}
	if (!m->scale) {
		cairn_load_row(row, m->w, s->a->dtype, m->at + (int64_t)i * m->k, m->k);
		return;
	}
	for (int l0 = 0; l0 < m->k; l0 += block) {
		float scale = m->scale[s->a->scale_kind == CAIRN_FP8_SCALE_ROWS ? i :
				       i / block * blocks + l0 / block];

		for (int l = l0; l < l0 + block && l < m->k; l++)
			row[l] = s->wide[codes[l]] * scale;
	}
}

static void turn_round(struct state *s)
{
	const struct cairn_moe_args *a = s->a;
	int at[256];

	memset(at, -1, sizeof(at));
	for (int b = 0; b < a->batch; b++)
		for (int i = 0; i < a->experts_per_token; i++) {
			int e = s->chosen[b][i];

			if (at[e] < 0) {
				at[e] = s->num_used++;
				s->used[at[e]] = (struct expert){
					.gate_up = matrix_of(s, a->w_gate_up, a->w_gate_up_scale, e,
							     2 * a->intermediate, a->hidden),
					.down = matrix_of(s, a->w_down, a->w_down_scale, e, a->hidden,
							  a->intermediate),
					.number = e, .n = a->intermediate,
				};
			}
			add_user(&s->used[at[e]], b, i);
		}
	if (!a->shared_intermediate)
		return;
	s->used[s->num_used] = (struct expert){
		.gate_up = matrix_of(s, a->w_shared_gate_up, a->w_shared_gate_up_scale, 0,
				     2 * a->shared_intermediate, a->hidden),
		.down = matrix_of(s, a->w_shared_down, a->w_shared_down_scale, 0, a->hidden,
				  a->shared_intermediate),
		.number = -1, .n = a->shared_intermediate,
	};
	for (int b = 0; b < a->batch; b++)
		add_user(&s->used[s->num_used], b, a->experts_per_token);
	s->num_used++;
}

static float *h_of(const struct state *s, const struct expert *e, int user)
{
	return s->h + ((int64_t)e->user[user] * s->slots + e->slot[user]) * s->width;
}

/* Returns h before its weight. */
static float activated(const struct state *s, float gate, float up)
{
	const struct cairn_moe_between *b = &s->between;

	if (b->activation != CAIRN_MOE_CLAMPED)
		return gate / (1 + expf(-gate)) * up;
	gate = fminf(gate, b->limit);
	up = fmaxf(fminf(up, b->limit), -b->limit);
	return (up + 1) * (gate / (1 + expf(-b->alpha * gate)));
}

/* Returns element i of a bias of an expert, [num_experts, n]. */
static float bias_at(const struct state *s, const void *bias, int expert, int n, int i)
{
	return bias ? (float)cairn_load(bias, s->a->dtype, (int64_t)expert * n + i) : 0;
}

/* Computes element i of h for all users of an expert. */
static CAIRN_WIDE void gate_and_up(const struct state *s, const struct expert *e, int i)
{
	const struct cairn_moe_args *a = s->a;
	float gate[MAX_K / 2], up[MAX_K / 2];

	const float gate_bias = bias_at(s, s->between.gate_up_bias, e->number, 2 * e->n, i);
	const float up_bias = bias_at(s, s->between.gate_up_bias, e->number, 2 * e->n, e->n + i);

	load_row(s, &e->gate_up, i, gate);
	load_row(s, &e->gate_up, e->n + i, up);
	for (int k = 0; k < e->num_users; k++) {
		const float *n = s->n + (int64_t)e->user[k] * a->hidden;
		float g = block_dot(n, gate, a->hidden) + gate_bias;
		float u = block_dot(n, up, a->hidden) + up_bias;

		h_of(s, e, k)[i] = block_narrowed(activated(s, g, u) * s->weight[e->user[k]][e->slot[k]],
						  a->dtype);
	}
}

/* Computes element i of out for all requests. */
static CAIRN_WIDE void down(const struct state *s, int i)
{
	const struct cairn_moe_args *a = s->a;
	float row[MAX_K], part[MAX_BATCH][MAX_TOP + 1] = { { 0 } };

	for (int j = 0; j < s->num_used; j++) {
		const struct expert *e = &s->used[j];

		const float bias = bias_at(s, s->between.down_bias, e->number, a->hidden, i);

		load_row(s, &e->down, i, row);
		for (int k = 0; k < e->num_users; k++)
			part[e->user[k]][e->slot[k]] = block_dot(h_of(s, e, k), row, e->n) +
						       bias * s->weight[e->user[k]][e->slot[k]];
	}
	for (int b = 0; b < a->batch; b++) {
		int64_t at = (int64_t)b * a->hidden + i;
		float sum = 0;

		for (int k = 0; k < s->slots; k++)
			sum += part[b][k];
		if (cairn_moe_adds_x(a))
			sum = (float)cairn_load(a->x, a->dtype, at) + sum;
		cairn_store(a->out, a->dtype, at, sum);
	}
}

static void run(struct state *s)
{
	const struct cairn_moe_args *a = s->a;
	float logits[256][MAX_BATCH];
	int rows = 0;

	for (int v = 0; v < 256; v++)
		s->wide[v] = cairn_e4m3_to_float((uint8_t)v);
	for (int b = 0; b < a->batch; b++)
		norm(s, b);
	router(s, logits);
	for (int b = 0; b < a->batch; b++)
		choose(s, b, logits);
	turn_round(s);
	for (int j = 0; j < s->num_used; j++)
		rows += s->used[j].n;
	#pragma omp parallel for schedule(static)
	for (int r = 0; r < rows; r++) {
		const struct expert *e = s->used;
		int i = r;

		for (; i >= e->n; e++)
			i -= e->n;
		gate_and_up(s, e, i);
	}
	#pragma omp parallel for schedule(static)
	for (int i = 0; i < a->hidden; i++)
		down(s, i);
}

/* Runs at most MAX_BATCH rows. */
static int run_part(const struct cairn_moe_args *a)
{
	struct state *s = calloc(1, sizeof(*s));

	if (!s)
		return cairn_error(ENOMEM, "moe: no memory");
	s->a = a;
	s->how = cairn_moe_choice_of(a);
	s->between = cairn_moe_between_of(a);
	s->slots = a->experts_per_token + (a->shared_intermediate > 0);
	s->width = a->intermediate > a->shared_intermediate ? a->intermediate : a->shared_intermediate;
	s->n = malloc(sizeof(float) * (size_t)a->batch *
		      ((size_t)a->hidden + (size_t)s->slots * (size_t)s->width));
	if (!s->n) {
		free(s);
		return cairn_error(ENOMEM, "moe: no memory");
	}
	s->h = s->n + (int64_t)a->batch * a->hidden;
	run(s);
	free(s->n);
	free(s);
	return 0;
}

int cairn_moe_cpu(const struct cairn_moe_args *a, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_moe_check(a));
	for (int32_t first = 0; first < a->batch; first += MAX_BATCH) {
		int64_t at = (int64_t)first * a->hidden;
		struct cairn_moe_args part;

		cairn_copy_args(&part, a, sizeof(part));
		part.batch = a->batch - first < MAX_BATCH ? a->batch - first : MAX_BATCH;
		part.x = (const uint16_t *)a->x + at;
		part.out = (uint16_t *)a->out + at;
		part.experts = a->experts ? a->experts + (int64_t)first * a->experts_per_token : NULL;
		CAIRN_TRY(run_part(&part));
	}
	return 0;
}
