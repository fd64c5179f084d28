// SPDX-License-Identifier: Apache-2.0
/*
 * cluster_mla_test - every cluster size on and off chip, a grid of shapes, named edge cases, bench rows
 *
 * EXACT makes every rounding exact: x of one magnitude, sparse weights of small integers, rotation by 0, and
 * logits so far apart that the softmax selects the largest; sums have up to 22 bits. EXTREME changes logits
 * or values in one of seven ways. A large part common to all logits comes from one exact element of q and of
 * r, so that it cancels exactly. Positions are independent of lengths. The slot of the new token holds old
 * numbers, or NaN with POISON.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "conformance/suite/draw.h"
#include "conformance/suite/pairs.h"
#include "fused/latent/cluster_mla.h"
#include "fused/attention/base/attn_stairs.h"
#include "fused/cache/paged_test.h"
#include "fused/latent/cluster_mla_cases.h"
#include "primitives/rows/rmsnorm.h"

static void shape_at(int index, struct shape *s)
{
	static const int heads[] = { 8, 16, 8, 32, 8 }, hidden[] = { 64, 128, 256, 192, 64, 448, 128 };
	static const int batch[] = { 1, 2, 3, 1, 8, 2, 1, 16 }, kv[] = { 1, 2, 15, 16, 17, 63, 64, 65, 97 };
	static const int pages[] = { 16, 1, 64, 3 };
	int i = index - NUM_NAMED;

	if (i < 0) {
		*s = named[index];
		return;
	}
	if (index >= NUM_CASES) {
		cairn_draw_shape(&draws, index - NUM_CASES, s);
		return;
	}
	if (index >= FIRST_ENDS) {
		ends_at(index - FIRST_ENDS, s);
		return;
	}
	if (i >= NUM_CLUSTERS + NUM_GRID + NUM_SMS + NUM_PAIRS) {
		*s = last[i - NUM_CLUSTERS - NUM_GRID - NUM_SMS - NUM_PAIRS];
		return;
	}
	if (i >= NUM_CLUSTERS + NUM_GRID + NUM_SMS) {
		pair_at(i - NUM_CLUSTERS - NUM_GRID - NUM_SMS, s);
		return;
	}
	if (i >= NUM_CLUSTERS + NUM_GRID) {
		*s = with_sms[i - NUM_CLUSTERS - NUM_GRID];
		return;
	}
	memset(s, 0, sizeof(*s));
	s->page = pages[i % 4];
	if (i < NUM_CLUSTERS) {
		s->heads = i % 2 ? 8 : 16;
		s->hidden = hidden[i % 2];
		s->lora = i % 3 ? 0 : 64 * (1 + i % 2);
		s->batch = 1 + i % 3;
		s->kv = 60 + i;
		s->cluster = 1 + i / 2;
		s->flags = (i % 2 ? OFFCHIP : 0) | (i % 4 < 2 ? F16 : 0);
	} else {
		i -= NUM_CLUSTERS;
		s->heads = heads[i % 5];
		s->hidden = hidden[i % 7];
		s->lora = i % 4 == 1 ? 64 : i % 4 == 2 ? 192 : 0;
		s->batch = batch[(i + i / 8) % 8];
		s->kv = kv[i % 9];
		s->flags = (i / 2 % 2 ? F16 : 0) | (i % 7 == 3 ? IN_PLACE : 0) | (i % 6 == 5 ? OFFCHIP : 0);
	}
	s->flags |= i % 3 ? PAGED_RAGGED : 0;
}

static void describe(int index, struct cairn_case *c)
{
	double weights, keys;
	struct shape s;

	shape_at(index, &s);
	if (s.pair)
		snprintf(c->name, sizeof(c->name), "pair_%d_p%d_h%d_w%d_r%d_c%d_%s%s", s.pair, s.page,
			 s.heads, s.hidden, s.lora, s.cluster, s.flags & F16 ? "f16" : "bf16",
			 s.flags & OFFCHIP ? "_offchip" : "");
	else if (s.name)
		snprintf(c->name, sizeof(c->name), "%s", s.name);
	else
		snprintf(c->name, sizeof(c->name), "%sh%d_hidden%d_lora%d_b%d_kv%d_p%d_c%d_%s%s%s%s",
			 s.ends ? "ends_" : "", s.heads, s.hidden, s.lora, s.batch, s.kv, s.page, s.cluster,
			 s.flags & F16 ? "f16" : "bf16",
			 s.flags & PAGED_RAGGED ? "_ragged" : "", s.flags & OFFCHIP ? "_offchip" : "",
			 s.flags & IN_PLACE ? "_in_place" : "");
	c->bench = !!(s.flags & BENCH);
	c->device_only = !!(s.flags & DEVICE);
	c->far = !!(s.flags & PAGED_FAR);
	if (s.bend)
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_EXTREME);
	else if (s.ends || s.flags & (DEVICE | PAGED_FAR | MEAN) || (s.eps > 0 && !s.pair))
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	else if (s.flags & ROTATED)
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_EXACT);
	else if (s.pair)
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_POISON);
	else if (s.name)
		c->kinds = CAIRN_KIND_BIT(index % 2 ? CAIRN_KIND_EXACT : CAIRN_KIND_NORMAL) |
			   CAIRN_KIND_BIT(CAIRN_KIND_POISON);
	else
		c->kinds = CAIRN_KIND_BIT(index % 3) |
			   CAIRN_KIND_BIT(index / 3 % 2 ? CAIRN_KIND_POISON : CAIRN_KIND_NORMAL);
	weights = (double)s.lora * s.hidden + s.heads * 192.0 * (s.lora ? s.lora : s.hidden) +
		  576.0 * s.hidden + s.heads * 256.0 * 512 + s.heads * 128.0 * s.hidden;
	keys = (double)s.batch * s.kv;
	c->bytes = 2 * weights + keys * 576 * 2;
	c->flops = 2 * weights * s.batch + 2 * keys * s.heads * (576 + 512);
}

/* As cairn_fill(), but repeats one block of random numbers, whose prime length does not align with rows. */
static void fill(struct cairn_op *op, void *p, int64_t count, double scale)
{
	const struct cairn_cluster_mla_args *a = op->args;
	const int64_t block = 16411;

	cairn_fill(op, p, a->dtype, count < block ? count : block, scale);
	for (int64_t i = block; i < count; i += block)
		memcpy((uint16_t *)p + i, p, 2 * (size_t)(count - i < block ? count - i : block));
}

static void fill_about_1(struct cairn_op *op, void *p, int64_t count, double spread)
{
	const struct cairn_cluster_mla_args *a = op->args;

	cairn_fill(op, p, a->dtype, count, spread);
	for (int64_t i = 0; i < count; i++)
		cairn_store(p, a->dtype, i, 1 + cairn_load(p, a->dtype, i));
}

/* Fills p with `scale` times random integers of -most..most except 0; with most 1 only the sign is random. */
static void fill_signs(struct cairn_op *op, void *p, int64_t count, int most, double scale)
{
	const struct cairn_cluster_mla_args *a = op->args;

	for (int64_t i = 0; i < count; i++) {
		uint64_t r = cairn_op_rand(op);

		cairn_store(p, a->dtype, i,
			    (r & 1 ? scale : -scale) * (1 + (double)(r / 2 % (uint64_t)most)));
	}
}

/* Fills rows of k elements with zeros, and sets `some` random elements of each row to +-1..most. */
static void fill_sparse(struct cairn_op *op, void *p, int64_t rows, int64_t k, int some, int most)
{
	memset(p, 0, (size_t)(rows * k) * 2);
	for (int64_t i = 0; i < rows * some; i++)
		fill_signs(op, (uint16_t *)p + i / some * k + cairn_op_range(op, 0, k - 1), 1, most, 1);
}

struct operands {
	void *x, *norm, *q_a, *q_norm, *q, *kv_a, *kv_norm, *kv_b, *o, *pages;
	float *inv_freq;
};

static void fill_normal(struct cairn_op *op, const struct shape *s, const struct operands *p)
{
	int64_t nq = s->heads * 192, k = s->lora ? s->lora : s->hidden;
	double base;

	fill(op, p->x, (int64_t)s->batch * s->hidden, s->size > 0 ? s->size : 1);
	if (s->eps > 0 && !s->pair)
		memset(p->x, 0, (size_t)s->hidden * 2);
	fill_about_1(op, p->norm, s->hidden, 0.25);
	if (s->lora) {
		fill(op, p->q_a, (int64_t)s->lora * s->hidden, 1 / sqrt(s->hidden));
		fill_about_1(op, p->q_norm, s->lora, 0.25);
	}
	fill(op, p->q, nq * k, 1 / sqrt((double)k));
	fill(op, p->kv_a, 576 * (int64_t)s->hidden, 1 / sqrt(s->hidden));
	fill_about_1(op, p->kv_norm, 512, 0.25);
	fill(op, p->kv_b, s->heads * 256 * 512, 1 / sqrt(192));
	fill(op, p->o, (int64_t)s->hidden * s->heads * 128, 1 / sqrt(s->heads * 128));
	base = cairn_op_range(op, 0, 1) ? 10000 : 500000;	/* other calls have other frequencies */
	for (int i = 0; i < 32; i++)
		p->inv_freq[i] = (float)pow(base, -i / 32.0);
}

static void copy_half(void *p, int64_t half)
{
	memcpy((uint16_t *)p + half, p, (size_t)half * 2);
}

/* Adds a large number at element `at` and its opposite at element `twin`, if both are 0. */
static void add_opposite(struct cairn_op *op, void *p, int64_t at, int64_t twin, int shift)
{
	const struct cairn_cluster_mla_args *a = op->args;
	double v = ldexp((double)cairn_op_range(op, 16, 31), shift) * (cairn_op_rand(op) & 1 ? 1 : -1);

	if (cairn_load(p, a->dtype, at) != 0 || cairn_load(p, a->dtype, twin) != 0)
		return;
	cairn_store(p, a->dtype, at, v);
	cairn_store(p, a->dtype, twin, -v);
}

/* Adds 16 opposite pairs to each row, half a row apart. */
static void add_opposites(struct cairn_op *op, void *p, int64_t rows, int64_t k, int shift)
{
	for (int64_t i = 0; i < rows * 16; i++) {
		int64_t at = i / 16 * k + cairn_op_range(op, 0, k / 2 - 1);

		add_opposite(op, p, at, at + k / 2, shift);
	}
}

/*
 * Widens the partial sums of the EXACT inputs to up to 22 bits without changing the results: the halves of n,
 * of the compressed q and of each latent become equal, as do q[d] and q[d + 64] of each head, and weights
 * that multiply equal elements get opposite large numbers. Columns 5, 37, 69 ... of ql are large, and
 * opposite to those half a latent further, so that the products of a logit cancel, too.
 */
static void widen_sums(struct cairn_op *op, const struct shape *s, const struct operands *p,
		       const struct paged *pg)
{
	const struct cairn_cluster_mla_args *a = op->args;
	int64_t k = s->lora ? s->lora : s->hidden;
	int shift = a->dtype == CAIRN_F16 ? 11 : 13;

	for (int b = 0; b < s->batch; b++)
		copy_half((uint16_t *)p->x + (int64_t)b * s->hidden, s->hidden / 2);
	copy_half(p->norm, s->hidden / 2);
	if (s->lora) {
		add_opposites(op, p->q_a, s->lora / 2, s->hidden, shift);
		copy_half(p->q_a, (int64_t)s->lora / 2 * s->hidden);
		copy_half(p->q_norm, s->lora / 2);
	}
	add_opposites(op, p->q, s->heads * 192, k, shift);
	for (int h = 0; h < s->heads; h++)
		copy_half((uint16_t *)p->q + h * 192 * k, 64 * k);
	add_opposites(op, p->kv_a, 576, s->hidden, shift);
	copy_half(p->kv_a, 256 * (int64_t)s->hidden);
	copy_half(p->kv_norm, 256);
	for (int b = 0; b < s->batch; b++)
		for (int j = 0; j < pg->kv_len[b]; j++)
			copy_half((uint16_t *)p->pages + paged_slot(pg, b, j) * 576, 256);
	for (int h = 0; h < s->heads; h++) {
		uint16_t *w = (uint16_t *)p->kv_b + h * 256 * 512;

		for (int i = 0; i < 128 * 16; i++)	/* columns 5, 37, 69 ... */
			w[i / 16 * 512 + 5 + i % 16 * 32] = 0;
		for (int i = 0; i < 8; i++)
			add_opposite(op, w, 20 * 512 + 5 + i * 32, 20 * 512 + 261 + i * 32, 8);
		for (int i = 0; i < 128; i++) {
			int64_t at = i / 16 * 512 + cairn_op_range(op, 0, 511);

			if (at % 32 != 5)
				add_opposite(op, w, at, at + 64 * 512, 11);
			at = (128 + i) * 512 + cairn_op_range(op, 0, 255);
			add_opposite(op, w, at, at + 256, 11);
		}
	}
}

static void fill_exact(struct cairn_op *op, const struct shape *s, const struct operands *p,
		       const struct paged *pg)
{
	struct cairn_cluster_mla_args *a = op->args;

	a->sm_scale = 64;
	a->eps = 1e-12f;
	fill_signs(op, p->x, (int64_t)s->batch * s->hidden, 1, 16);
	fill_signs(op, p->norm, s->hidden, 1, 1);
	if (s->lora) {
		fill_sparse(op, p->q_a, s->lora, s->hidden, 1, 1);
		fill_signs(op, p->q_norm, s->lora, 2, 1);
	}
	fill_sparse(op, p->q, s->heads * 192, s->lora ? s->lora : s->hidden, 2, 2);
	fill_sparse(op, p->kv_a, 576, s->hidden, 1, 1);
	fill_signs(op, p->kv_norm, 512, 3, 1);
	fill_sparse(op, p->kv_b, s->heads * 256, 512, 4, 2);
	/*
	 * Gives a w_o^T more bits than dtype has, so that rounding the sum before x is added becomes visible.
	 */
	fill_sparse(op, p->o, s->hidden, s->heads * 128, 4, 255);
	for (int i = 0; i < 32; i++)
		p->inv_freq[i] = s->flags & ROTATED ? (float)pow(10000, -i / 32.0) : 0;
	widen_sums(op, s, p, pg);
}

/* Adds q0 r0 sm_scale to all logits, and q0 (r_top - r0) sm_scale more to one random key of each request. */
static void common_logit(struct cairn_op *op, const struct shape *s, const struct operands *p,
			 const struct paged *pg, double q0, double r0, double r_top)
{
	int64_t k = s->lora ? s->lora : s->hidden;
	int dtype = s->flags & F16 ? CAIRN_F16 : CAIRN_BF16;

	p->inv_freq[0] = 0;
	fill_signs(op, p->x, (int64_t)s->batch * s->hidden, 1, 16);
	for (int b = 0; b < s->batch; b++)
		cairn_store(p->x, dtype, (int64_t)b * s->hidden, 16);
	for (int i = 0; i < s->hidden; i++)
		cairn_store(p->norm, dtype, i, 1);
	if (s->lora) {
		fill_sparse(op, p->q_a, s->lora, s->hidden, 1, 1);
		memset(p->q_a, 0, (size_t)s->hidden * 2);
		cairn_store(p->q_a, dtype, 0, 1);
		for (int i = 0; i < s->lora; i++)
			cairn_store(p->q_norm, dtype, i, 1);
	}
	for (int h = 0; h < s->heads; h++) {
		memset((uint16_t *)p->q + (h * 192 + 128) * k, 0, (size_t)k * 4);
		cairn_store(p->q, dtype, (h * 192 + 128) * k, q0);
	}
	memset((uint16_t *)p->kv_a + 512 * s->hidden, 0, (size_t)s->hidden * 4);
	cairn_store(p->kv_a, dtype, 512 * (int64_t)s->hidden, r0);
	for (int b = 0; b < s->batch; b++) {
		int top = pg->kv_len[b] > 1 ? (int)cairn_op_range(op, 0, pg->kv_len[b] - 2) : 0;

		for (int j = 0; j < pg->kv_len[b]; j++)
			cairn_store(p->pages, dtype, paged_slot(pg, b, j) * 576 + 512, j == top ? r_top : r0);
	}
}

/* The key whose logit common_logit() has raised has the opposite values of all other keys. */
static void minor_logits(struct cairn_op *op, const struct shape *s, const struct operands *p,
			 const struct paged *pg)
{
	int f16 = !!(s->flags & F16), dtype = f16 ? CAIRN_F16 : CAIRN_BF16;
	double r_top = f16 ? 1.125 : 0.75;	/* the others' P are about 3e-5, or 1e-3 */

	fill_about_1(op, p->pages, pg->num_pages * (int64_t)s->page * 576, 0.1);
	for (int h = 0; h < s->heads; h++)	/* no latent part of the logits */
		memset((uint16_t *)p->kv_b + h * 256 * 512, 0, 128 * 512 * 2);
	common_logit(op, s, p, pg, 128, 0, r_top);
	for (int b = 0; b < s->batch; b++)
		for (int j = 0; j < pg->kv_len[b]; j++) {
			uint16_t *key = (uint16_t *)p->pages + paged_slot(pg, b, j) * 576;

			for (int i = 0; cairn_load(key, dtype, 512) == r_top && i < 512; i++)
				cairn_store(key, dtype, i, -cairn_load(key, dtype, i));
		}
}

/* Makes the logits of each request's old keys a staircase (attn_stairs.h). */
static void stair_logits(struct cairn_op *op, const struct shape *s, const struct operands *p,
			 const struct paged *pg)
{
	const struct cairn_cluster_mla_args *a = op->args;
	int f16 = a->dtype == CAIRN_F16;

	fill_about_1(op, p->pages, pg->num_pages * (int64_t)s->page * 576, 0.1);
	for (int h = 0; h < s->heads; h++)	/* no latent part of the logits */
		memset((uint16_t *)p->kv_b + h * 256 * 512, 0, 128 * 512 * 2);
	common_logit(op, s, p, pg, 128, 0, 0);
	for (int b = 0; b < s->batch; b++)
		for (int j = 0; j < pg->kv_len[b] - 1; j++) {
			uint16_t *key = (uint16_t *)p->pages + paged_slot(pg, b, j) * 576;
			int t = attn_stretch(j, pg->kv_len[b] - 1);
			double weight = attn_stair_weight(b, t, f16, 0);

			cairn_store(key, a->dtype, 512, attn_stair(b, t, f16) / (128 * (double)a->sm_scale));
			for (int i = 0; i < 512; i++)
				cairn_store(key, a->dtype, i, weight * cairn_load(key, a->dtype, i));
		}
}

static void times(void *p, int dtype, int64_t count, double factor)
{
	for (int64_t i = 0; i < count; i++)
		cairn_store(p, dtype, i, cairn_load(p, dtype, i) * factor);
}

static void bend(struct cairn_op *op, const struct shape *s, const struct operands *p,
		 const struct paged *pg, int how)
{
	struct cairn_cluster_mla_args *a = op->args;
	int64_t slots = pg->num_pages * (int64_t)s->page * 576, k = s->lora ? s->lora : s->hidden;
	int f16 = !!(s->flags & F16);

	switch (how) {
	case DOMINANT:
		common_logit(op, s, p, pg, 128, 0, 8);
		return;
	case NEGATIVE:
		common_logit(op, s, p, pg, 128, -24, -24);
		return;
	case POSITIVE:
		common_logit(op, s, p, pg, 128, 24, 24);
		return;
	case MINOR:
		minor_logits(op, s, p, pg);
		return;
	case STAIRS:
		stair_logits(op, s, p, pg);
		return;
	}
	memset(p->q, 0, (size_t)(s->heads * 192 * k) * 2);
	if (how == EQUAL)	/* values near 1, so that sums grow with the number of keys */
		fill_about_1(op, p->pages, slots, 0.1);
	if (how == LARGE)
		times(p->pages, a->dtype, slots, f16 ? 1000 : 1e15);
	if (how == TINY) {
		times(p->pages, a->dtype, slots, f16 ? 0x1p-22 : 0x1p-116);
		times(p->x, a->dtype, (int64_t)s->batch * s->hidden, f16 ? 0x1p-14 : 0x1p-110);
		times(p->kv_norm, a->dtype, 512, f16 ? 0x1p-20 : 0x1p-10);
	}
}

static void lengths(struct cairn_op *op, const struct shape *s, struct paged *p)
{
	for (int b = 0; b < s->batch; b++) {
		p->kv_len[b] = s->kv_lens ? s->kv_lens[b] :
			       b && s->flags & PAGED_RAGGED ? (int)cairn_op_range(op, 1, s->kv) : s->kv;
		p->max_kv = p->kv_len[b] > p->max_kv ? p->kv_len[b] : p->max_kv;
	}
}

static void setup(struct cairn_op *op)
{
	struct cairn_cluster_mla_args *a = op->args;
	enum cairn_kind kind = op->kind;
	struct paged pg = { 0 };
	struct operands p = { 0 };
	int32_t *positions, *indices;
	int64_t count;
	struct shape s;

	shape_at(op->case_index, &s);
	a->dtype = s.flags & F16 ? CAIRN_F16 : CAIRN_BF16;
	a->kv.batch = s.batch;
	a->hidden = s.hidden;
	a->num_heads = s.heads;
	a->q_lora_rank = s.lora;
	a->kv_lora_rank = 512;
	a->nope_dim = a->v_dim = 128;
	a->rope_dim = 64;
	a->cluster_size = s.cluster;
	a->offchip = !!(s.flags & OFFCHIP);
	a->sms = s.sms;
	a->eps = s.eps > 0 ? (float)s.eps : 1e-6f;
	a->sm_scale = s.scale > 0 ? s.scale : (float)(1 / sqrt(192));
	pg.batch = s.batch;
	pg.page_size = a->kv.page_size = s.page;
	pg.flags = s.flags;
	pg.pool = s.flags & PAGED_FAR ? (int)(((int64_t)1 << 32) / 576 / s.page) + 40 : 3000;
	lengths(op, &s, &pg);
	paged_tables(op, &pg, FIELD(positions), FIELD(kv));
	cairn_name(op, FIELD(positions), "positions");
	a->kv.num_pages = pg.num_pages;
	a->kv.max_len = pg.max_kv * (s.flags & PAGED_PADDED ? 3 : 1);
	positions = (int32_t *)a->positions;
	indices = (int32_t *)a->kv.indices;
	for (int b = 0; b <= s.batch; b++)
		positions[b] = (int32_t)cairn_op_range(op, 0, b % 3 == 2 ? 160000 : 5000);
	for (int b = 1; s.flags & PREFIX && b < s.batch; b++)
		for (int j = 0; j < paged_pages(&pg, b) - 1 && j < paged_pages(&pg, 0) - 1; j++)
			indices[pg.kv_indptr[b] + j] = indices[j];

	count = (int64_t)s.batch * s.hidden;
	if (s.flags & IN_PLACE) {
		p.x = cairn_inout(op, FIELD(out), a->dtype, count);
		cairn_alias(op, FIELD(x), FIELD(out));
	} else {
		cairn_out(op, FIELD(out), a->dtype, count);
		p.x = cairn_in(op, FIELD(x), a->dtype, count);
	}
	cairn_shape(op, FIELD(out), { "row", s.batch }, { "dim", s.hidden });
	p.pages = s.flags & PAGED_FAR ? paged_far(op, &pg, FIELD(kv.k_pages), a->dtype, 576, 1) :
		  cairn_inout(op, FIELD(kv.k_pages), a->dtype, pg.num_pages * (int64_t)s.page * 576);
	cairn_shape(op, FIELD(kv.k_pages), { "page", pg.num_pages }, { "slot", s.page }, { "dim", 576 });
	p.norm = cairn_in(op, FIELD(norm_weight), a->dtype, s.hidden);
	if (s.lora) {
		p.q_a = cairn_in(op, FIELD(w_q_a), a->dtype, (int64_t)s.lora * s.hidden);
		p.q_norm = cairn_in(op, FIELD(q_norm), a->dtype, s.lora);
	}
	p.q = cairn_in(op, FIELD(w_q), a->dtype, s.heads * 192 * (int64_t)(s.lora ? s.lora : s.hidden));
	p.kv_a = cairn_in(op, FIELD(w_kv_a), a->dtype, 576 * (int64_t)s.hidden);
	p.kv_norm = cairn_in(op, FIELD(kv_norm), a->dtype, 512);
	p.kv_b = cairn_in(op, FIELD(w_kv_b), a->dtype, s.heads * 256 * 512);
	p.o = cairn_in(op, FIELD(w_o), a->dtype, s.hidden * (int64_t)s.heads * 128);
	p.inv_freq = cairn_in(op, FIELD(inv_freq), CAIRN_F32, 32);

	if (kind == CAIRN_KIND_EXTREME)
		op->kind = CAIRN_KIND_NORMAL;	/* for elements that bend() does not change */

	if (!(s.flags & PAGED_FAR))
		paged_fill(op, &pg, p.pages, a->dtype, 576);
	if (kind == CAIRN_KIND_EXACT)
		fill_exact(op, &s, &p, &pg);
	else
		fill_normal(op, &s, &p);
	if (kind == CAIRN_KIND_EXTREME)
		bend(op, &s, &p, &pg, s.bend ? s.bend : 1 + op->case_index / 3 % (NUM_BENDS - 1));
	op->kind = kind;
	if (s.pair) {
		/*
		 * a NaN in the oldest key of a request (in its latent or rotated part), and one in x of
		 * another request
		 */
		int b = s.batch == 2 ? 1 : s.batch == 3 ? 0 : 5, nan_x = s.batch == 3 ? 2 : 1;

		cairn_fill_nan(p.pages, a->dtype, paged_slot(&pg, b, 0) * 576 + (s.pair % 2 ? 511 : 575),
			       1);
		if (s.batch > 2)
			cairn_fill_nan(p.x, a->dtype, nan_x * (int64_t)s.hidden + s.hidden - 1, 1);
	}
	for (int b = 0; kind == CAIRN_KIND_POISON && b < s.batch; b++)
		if (pg.kv_len[b])
			cairn_fill_nan(p.pages, a->dtype, paged_slot(&pg, b, pg.kv_len[b] - 1) * 576, 576);
}

static int relist(void *args)
{
	const struct cairn_cluster_mla_args *a = args;

	return paged_relist(&a->kv, NULL) | paged_move_rows(a->positions, a->kv.batch);
}

static const char *reject(void *args, int i, int *want)
{
	struct cairn_cluster_mla_args *a = args;

	*want = i < 31 || i > 41 ? -EINVAL : -EOPNOTSUPP;
	switch (i) {
	case 0: a->size = 8; return "size_too_small";
	case 1: a->out = NULL; return "out_null";
	case 2: a->kv.k_pages = NULL; return "pages_null";
	case 3: a->x = NULL; return "x_null";
	case 4: a->norm_weight = NULL; return "norm_weight_null";
	case 5: a->w_q = NULL; return "w_q_null";
	case 6: a->w_kv_a = NULL; return "w_kv_a_null";
	case 7: a->kv_norm = NULL; return "kv_norm_null";
	case 8: a->w_kv_b = NULL; return "w_kv_b_null";
	case 9: a->w_o = NULL; return "w_o_null";
	case 10: a->inv_freq = NULL; return "inv_freq_null";
	case 11: a->positions = NULL; return "positions_null";
	case 12: a->kv.indptr = NULL; return "kv_indptr_null";
	case 13: a->kv.indices = NULL; return "kv_indices_null";
	case 14: a->kv.last_page_len = NULL; return "kv_last_page_len_null";
	case 15: a->q_lora_rank = 64; return "w_q_a_null_with_a_rank";
	case 16: a->w_q_a = a->w_q; return "w_q_a_without_a_rank";
	case 17: a->w_q = (const char *)a->w_q + 8; return "w_q_misaligned";
	case 18: a->out = (char *)a->out + 4; return "out_misaligned";
	case 19: a->kv.k_pages = (char *)a->kv.k_pages + 2; return "pages_misaligned";
	case 20: a->kv.batch = -1; return "batch_negative";
	case 21: a->kv.max_len = -1; return "max_kv_len_negative";
	case 22: a->kv.page_size = 0; return "page_size_0";
	case 23: a->num_heads = 0; return "num_heads_0";
	case 24: a->q_lora_rank = -64; return "q_lora_rank_negative";
	case 25: a->sm_scale = 0; return "sm_scale_0";
	case 26: a->sm_scale = NAN; return "sm_scale_nan";
	case 27: a->eps = 0; return "eps_0";
	case 28: a->eps = INFINITY; return "eps_inf";
	case 29: a->cluster_size = 17; return "cluster_size_17";
	case 30: a->cluster_size = -1; return "cluster_size_negative";
	case 31: a->dtype = CAIRN_F32; return "dtype_f32";
	case 32: a->num_heads = 12; return "heads_12";
	case 33: a->num_heads = 136; return "heads_136";
	case 34: a->hidden = 96; return "hidden_96";
	case 35: a->hidden = 16448; return "hidden_16448";
	case 36: a->q_lora_rank = 4160; return "q_lora_rank_4160";
	case 37: a->kv_lora_rank = 256; return "kv_lora_rank_256";
	case 38: a->rope_dim = 32; return "rope_dim_32";
	case 39: a->nope_dim = 64; return "nope_dim_64";
	case 40: a->v_dim = 64; return "v_dim_64";
	case 41: a->kv.batch = 17; return "batch_17";
	case 42: a->sms = -1; return "sms_negative";
	case 43: a->eps = 1e-39f; return "eps_subnormal";
	}
	return NULL;
}

static int exact(const void *args, struct cairn_exact *e)
{
	return cairn_cluster_mla_exact(args, e);
}

static void pair_rows(struct cairn_test *t)
{
	cairn_pairs_check(t, &pair_table, NUM_PAIRS);
	cairn_pairs_check(t, &ends_table, NUM_ENDS);
}

static const struct cairn_unit units[] = { { "pair_rows", pair_rows } };

/* More than eight requests run a separate kernel. */
static const char *const sanitized[] = {
	"padded_batch_10.exact", "h8_hidden128_lora128_b1_kv69_p1_c5_f16_offchip.exact", NULL
};

const struct cairn_family cairn_cluster_mla_family = {
	.stage = "fused", .name = "cluster_mla",
	.op = offsetof(struct cairn_impl, cluster_mla),
	.workspace_op = offsetof(struct cairn_impl, cluster_mla_workspace),
	.args_size = sizeof(struct cairn_cluster_mla_args),
	.sms_field = offsetof(struct cairn_cluster_mla_args, sms),
	.workspace_field = FIELD(workspace),
	.zeroed_workspace = 1, .refuses_small_workspace = 1,
	.num_cases = NUM_CASES, .draw = &draws,
	.units = units, .num_units = ARRAY_SIZE(units),
	.may_alias = { { FIELD(out), FIELD(x) } },
	.company = { .rows = FIELD(kv.batch), .in = { FIELD(x) }, .out = { FIELD(out) } },
	.describe = describe,
	.setup = setup,
	.relist = relist,
	.exact = exact,
	.reject = reject,
	.sanitized = sanitized,
	.cost_s = 30, .cheap_factor = 24,
};
