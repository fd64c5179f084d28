// SPDX-License-Identifier: Apache-2.0
/*
 * moe_inputs_test - inputs for the cases
 *
 * Kinds: EXACT has x of one magnitude and sparse weights of small integers: n, logits, gates and ups are
 * exact, and logits tie often. POISON has NaN for weights in every expert that nobody chooses, and where
 * there are three requests or more in one of them. EXTREME has rows of x that are zero, tiny, huge or very
 * unequal, and weights bent in one of six ways. Rows of x are drawn anew until their experts are decided.
 */
#include <math.h>
#include <string.h>

#include "../conformance/harness.h"
#include "block_ref.h"
#include "moe_test.h"

/* What EXTREME bends. */
enum { ROWS_ALONE, FAR_APART, STEEP, LARGE, SHIFTED, TINY, NUM_BENDS };

struct operands {
	void *x, *norm, *router, *gate_up, *down, *shared_gate_up, *shared_down;
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

/* rows of k zeros, `some` of which become 1, 2 or the negative of it */
static void fill_sparse(struct cairn_op *op, void *p, int64_t rows, int64_t k, int some)
{
	memset(p, 0, (size_t)(rows * k) * 2);
	for (int64_t i = 0; i < rows * some; i++)
		fill_signs(op, (uint16_t *)p + i / some * k + cairn_op_range(op, 0, k - 1), 1,
			   (double)cairn_op_range(op, 1, 2));
}

static void fill_weights(struct cairn_op *op, const struct moe_shape *s, const struct operands *p, int exact)
{
	int64_t inter = (int64_t)s->experts * s->inter, shared = s->shared, hidden = s->hidden;

	if (exact) {
		((struct cairn_moe_args *)op->args)->eps = 1e-12f;
		fill_signs(op, p->norm, hidden, 1);
		fill_sparse(op, p->router, s->experts, hidden, 3);
		fill_sparse(op, p->gate_up, 2 * inter, hidden, 3);
		fill_sparse(op, p->down, s->experts * hidden, s->inter, 4);
		if (shared) {
			fill_sparse(op, p->shared_gate_up, 2 * shared, hidden, 3);
			fill_sparse(op, p->shared_down, hidden, shared, 4);
		}
		return;
	}
	fill_about_1(op, p->norm, hidden);
	fill(op, p->router, s->experts * hidden, 1.5 / sqrt((double)hidden));
	fill(op, p->gate_up, 2 * inter * hidden, 1.5 / sqrt((double)hidden));
	fill(op, p->down, inter * hidden, 4 / sqrt(s->inter));
	fill(op, p->shared_gate_up, 2 * shared * hidden, 1.5 / sqrt((double)hidden));
	fill(op, p->shared_down, shared * hidden, 2 / sqrt(s->shared + 1));
}

static void times(void *p, int dtype, int64_t count, double factor)
{
	for (int64_t i = 0; i < count; i++)
		cairn_store(p, dtype, i, cairn_load(p, dtype, i) * factor);
}

static void bend(const struct cairn_moe_args *a, const struct operands *p, int how)
{
	int64_t inter = (int64_t)a->num_experts * a->intermediate, hidden = a->hidden;
	int f16 = a->dtype == CAIRN_F16;

	switch (how) {
	case FAR_APART:		/* one expert has nearly all the weight */
		times(p->router, a->dtype, a->num_experts * hidden, 6);
		break;
	case STEEP:		/* gates from -100 to 100 */
		times(p->gate_up, a->dtype, 2 * inter * hidden, 20);
		break;
	case LARGE:
		times(p->down, a->dtype, inter * hidden, f16 ? 200 : 1e12);
		break;
	case SHIFTED:		/* all logits far above 88, or below -88, as the first element of x is */
		cairn_store(p->norm, a->dtype, 0, 1);
		for (int e = 0; e < a->num_experts; e++)
			cairn_store(p->router, a->dtype, e * hidden, 600);
		break;
	case TINY:
		times(p->down, a->dtype, inter * hidden, f16 ? 0x1p-18 : 0x1p-118);
		times(p->shared_down, a->dtype, a->shared_intermediate * hidden, f16 ? 0x1p-18 : 0x1p-118);
		break;
	}
}

static void fill_row(struct cairn_op *op, const struct operands *p, int b)
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
	fill(op, x, a->hidden, 1);
	op->kind = kind;
	for (int i = 0; i < a->hidden && kind == CAIRN_KIND_EXTREME; i++) {
		double v = cairn_load(x, a->dtype, i) * size * (i % 61 == 7 ? 40 : 1);

		if (i == 0 && op->case_index % NUM_BENDS == SHIFTED)
			v = b % 2 ? -size : size;
		v *= a->dtype == CAIRN_BF16 && size == 12000 ? 1e9 : 1;
		cairn_store(x, a->dtype, i, a->dtype == CAIRN_F16 ? fmax(fmin(v, 6e4), -6e4) : v);
	}
}

/* Draws x; with POISON, experts that are certainly not chosen become NaN. */
static void fill_x(struct cairn_op *op, const struct moe_shape *s, const struct operands *p)
{
	const struct cairn_moe_args *a = op->args;
	int64_t size = (int64_t)s->inter * s->hidden;
	int used[256] = { 0 }, sure = 1;

	for (int b = 0; b < s->batch; b++) {
		int32_t experts[16];
		int decided = 0;

		if (b == 1 && s->batch > 2 && op->kind == CAIRN_KIND_POISON && !(s->flags & SAME)) {
			cairn_fill_nan(p->x, a->dtype, (int64_t)b * s->hidden, s->hidden);
			continue;	/* and what it chooses is NaN */
		}
		for (int tries = 0; tries < 20 && !decided; tries++) {
			if (b && s->flags & SAME)
				memcpy((uint16_t *)p->x + b * (int64_t)s->hidden, p->x,
				       (size_t)s->hidden * 2);
			else
				fill_row(op, p, b);
			decided = cairn_block_moe_choice(a, b, experts);
		}
		sure &= decided;
		for (int i = 0; i < s->top; i++)
			used[experts[i]] = 1;
	}
	for (int e = 0; e < s->experts && op->kind == CAIRN_KIND_POISON && sure; e++) {
		if (used[e])
			continue;
		cairn_fill_nan(p->gate_up, a->dtype, e * 2 * size, 2 * size);
		cairn_fill_nan(p->down, a->dtype, e * size, size);
	}
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
	a->scaling = s.scaling > 0 ? s.scaling : 1;
	a->eps = op->case_index % 3 ? 1e-6f : 1e-5f;
	hidden = s.hidden;
	count = s.batch * hidden;
	if (s.flags & IN_PLACE) {
		p.x = cairn_inout(op, MOE_FIELD(out), a->dtype, count);
		cairn_alias(op, MOE_FIELD(x), MOE_FIELD(out));
	} else {
		cairn_out(op, MOE_FIELD(out), a->dtype, count);
		p.x = cairn_in(op, MOE_FIELD(x), a->dtype, count);
	}
	if (!(s.flags & NO_EXPERTS))
		cairn_out(op, MOE_FIELD(experts), CAIRN_I32, s.batch * s.top);
	p.norm = cairn_in(op, MOE_FIELD(norm_weight), a->dtype, hidden);
	p.router = cairn_in(op, MOE_FIELD(w_router), a->dtype, s.experts * hidden);
	p.gate_up = cairn_in(op, MOE_FIELD(w_gate_up), a->dtype, 2 * (int64_t)s.experts * s.inter * hidden);
	p.down = cairn_in(op, MOE_FIELD(w_down), a->dtype, (int64_t)s.experts * s.inter * hidden);
	if (s.shared) {
		p.shared_gate_up = cairn_in(op, MOE_FIELD(w_shared_gate_up), a->dtype, 2 * s.shared * hidden);
		p.shared_down = cairn_in(op, MOE_FIELD(w_shared_down), a->dtype, s.shared * hidden);
	}
	if (kind == CAIRN_KIND_EXTREME)
		op->kind = CAIRN_KIND_NORMAL;	/* what is not bent */
	fill_weights(op, &s, &p, kind == CAIRN_KIND_EXACT);
	for (int e = 1; e < s.experts && s.flags & (TIES | PAIRS); e++)
		if (e % 2 || s.flags & TIES)
			memcpy((uint16_t *)p.router + e * hidden, (uint16_t *)p.router + (e - 1) * hidden,
			       (size_t)hidden * 2);
	if (kind == CAIRN_KIND_EXTREME)
		bend(a, &p, op->case_index % NUM_BENDS);
	op->kind = kind;
	fill_x(op, &s, &p);
}
