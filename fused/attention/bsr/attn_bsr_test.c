// SPDX-License-Identifier: Apache-2.0
/*
 * attn_bsr_test - the families attn_bsr and attn_plan: inputs of their cases (attn_bsr_cases.h), other lists
 * at the same addresses, and arguments that are refused
 *
 * Parts are drawn by attn_bsr_inputs.h. The patterns of logits and values are those of attn_inputs.h, over
 * all slots of a part.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "conformance/suite/draw.h"
#include "conformance/suite/pairs.h"
#include "fused/attention/bsr/attn_bsr.h"
#include "fused/attention/base/attn_inputs.h"
#include "fused/attention/base/attn_lengths.h"
#include "primitives/base/fp8.h"

#include "fused/attention/bsr/attn_bsr_inputs.h"
#include "fused/attention/bsr/attn_bsr_cases.h"

static void describe(int index, struct cairn_case *c)
{
	struct shape s;
	double pairs = 0, listed = 0;

	shape_at(index, &s);
	if (s.pair)
		pair_name(&s, c->name, sizeof(c->name));
	else if (s.ends)
		ends_name(&s, c->name, sizeof(c->name));
	else if (s.name)
		snprintf(c->name, sizeof(c->name), "%s", s.name);
	else
		snprintf(c->name, sizeof(c->name), "block_%dx%d_keys%d_h%d_%d_d%d_%s_%s%s%s%s", s.part[0].m,
			 s.part[0].n, s.part[0].keys, s.hq, s.hkv, s.dim, layout_names[s.layout],
			 s.flags & F16 ? "f16" : "bf16", s.part[0].mode ? "_causal" : "",
			 s.flags & RAGGED ? "_ragged" : "", s.flags & SHUFFLED ? "_shuffled" : "");
	c->bench = !!(s.flags & BENCH);
	c->device_only = !!(s.flags & DEVICE);
	c->roundings = s.roundings;
	c->far = !!(s.flags & (FAR_KV | FAR_Q | FAR_BITS));
	if (s.name && s.logits)
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_EXTREME);
	else if (s.ends || s.roundings || s.flags & (BENCH | DEVICE | FAR_KV | FAR_Q | FAR_BITS))
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	else if (s.name)
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL) | CAIRN_KIND_BIT(CAIRN_KIND_POISON);
	else
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_EXACT) | CAIRN_KIND_BIT(CAIRN_KIND_POISON) |
			   (index >= NUM_CASES ? CAIRN_KIND_BIT(CAIRN_KIND_NORMAL) : 0);
	for (int i = 0; i < s.parts; i++) {
		double rows = ceil((double)s.tokens / s.part[i].m), keys = s.part[i].keys;

		if (s.part[i].lens) {		/* the mean of the lengths */
			keys = 0;
			for (int r = 0; r < (int)rows; r++)
				keys += s.part[i].lens[r] / rows;
		}
		listed += rows * keys;
		pairs += (double)s.tokens * keys;
		if (s.part[i].mode == CAIRN_ATTN_CAUSAL && s.part[i].m == keys)
			pairs -= 0.5 * rows * keys * (keys - 1);
	}
	c->flops = 4 * pairs * s.hq * s.dim;
	c->bytes = 2 * listed * s.hkv * s.dim * (s.flags & FP8 ? 1 : 2) + 4.0 * s.tokens * s.hq * s.dim;
}

#define FIELD(f)	offsetof(struct cairn_attn_bsr_args, f)

static void declare_out(struct cairn_op *op, const struct shape *s, int dtype, int64_t rows)
{
	cairn_out(op, FIELD(out), dtype, rows * s->hq * s->dim);
	cairn_shape(op, FIELD(out), { "row", rows }, { "head", s->hq }, { "dim", s->dim });
	if (s->flags & LSE) {
		cairn_out(op, FIELD(lse), CAIRN_F32, rows * s->hq);
		cairn_shape(op, FIELD(lse), { "row", rows }, { "head", s->hq });
	}
}

/* Declares q; its rows from `tokens` on, and gaps, are NaN. */
static void *declare_q(struct cairn_op *op, const struct shape *s, int dtype, int64_t rows, int64_t stride)
{
	int64_t row = (int64_t)s->hq * s->dim;
	void *q;

	if (s->flags & FAR_Q) {
		q = cairn_in_far(op, FIELD(q), dtype, (rows - 1) * stride + row);
		for (int64_t i = 0; i < rows; i++)
			cairn_touch(op, q, i * stride, row);
	} else {
		q = cairn_in(op, FIELD(q), dtype, rows * stride);
		cairn_fill_nan(q, dtype, 0, rows * stride);
	}
	for (int64_t i = 0; i < s->tokens; i++)
		cairn_fill(op, (char *)q + i * stride * (int64_t)cairn_dtype_bytes(dtype), dtype, row, 1);
	return q;
}

static void set_scalars(struct cairn_attn_bsr_args *a, const struct shape *s, int case_index)
{
	a->num_parts = s->parts;
	a->num_qo_heads = s->hq;
	a->num_kv_heads = s->hkv;
	a->head_dim = s->dim;
	a->dtype = s->flags & F16 ? CAIRN_F16 : CAIRN_BF16;
	a->kv_fp8 = !!(s->flags & FP8);
	a->window = s->window;
	a->softcap = s->cap;
	a->sms = s->sms;
	a->sm_scale = s->scale > 0 ? s->scale : case_index % 4 == 1 && !s->name ? 0.3f :
		      (float)(1 / sqrt(s->dim));
}

/* Gives a part's slots the pattern of the case. */
static void set_pattern(struct cairn_op *op, const struct shape *s, const struct part_inputs *p, void *q,
			int64_t q_stride, int logits, int first)
{
	struct cairn_attn_bsr_args *a = op->args;
	const int slots[] = { p->num_blocks * p->n, p->num_blocks * p->n }, none[] = { 0, 0 };
	struct attn_inputs in = {
		.op = op, .q = q, .k = p->k, .v = p->v, .q_stride = q_stride, .dtype = a->dtype,
		.rows = first ? s->tokens : 0, .batch = 1, .heads = s->hq, .kv_heads = s->hkv,
		.qk_dim = s->dim, .v_dim = s->dim, .qo_len = none, .kv_len = slots, .of = p,
		.k_at = slot_at, .v_at = slot_at,
	};

	if (s->flags & FP8)
		return;
	if (op->kind == CAIRN_KIND_EXACT) {
		attn_fill_exact(&in, s->equal);
		if (!s->equal)
			a->sm_scale = 0.25f;
	} else if (logits == STAIRS) {
		a->sm_scale = 1;
		attn_fill_stairs(&in, s->cap);
	} else if (logits == NAN_Q && first) {
		cairn_fill_nan(q, a->dtype, 5 * q_stride + s->dim, 1);
	} else if (logits == NAN_K && first) {
		cairn_fill_nan(p->k, a->dtype, p->some_key + s->dim - 1, 1);
	} else if (logits == NAN_V && first) {
		cairn_fill_nan(p->v, a->dtype, p->some_key + s->dim - 1, 1);
	} else if (logits == LARGE_V || logits == TINY_V) {
		attn_scale_values(&in, p->count, logits);
	} else if (logits >= EQUAL && logits < LARGE_V) {
		a->sm_scale = 1;
		attn_fill_logits(&in, logits);
	}
}

static void setup(struct cairn_op *op)
{
	struct cairn_attn_bsr_args *a = op->args;
	struct part_inputs parts[CAIRN_ATTN_PARTS];
	enum cairn_kind kind = op->kind;
	struct shape s;
	int64_t stride;
	void *q;

	shape_at(op->case_index, &s);
	set_scalars(a, &s, op->case_index);
	a->nnz_qo = s.tokens + (s.flags & PADDED ? 5 : 0);
	stride = s.flags & FAR_Q ? FAR_STRIDE : (int64_t)s.hq * s.dim + s.q_gap;
	a->q_stride = s.flags & FAR_Q || s.q_gap || s.explicit_stride ? stride : 0;
	declare_out(op, &s, a->dtype, a->nnz_qo);
	if (s.logits > ANY)
		op->kind = CAIRN_KIND_NORMAL;	/* for elements that the pattern does not overwrite */
	q = declare_q(op, &s, a->dtype, a->nnz_qo, stride);
	if (s.flags & Q_POS)
		declare_q_pos(op, &s, a->nnz_qo);
	for (int i = 0; i < s.parts; i++)
		declare_part(op, &s, i, &parts[i]);
	for (int i = 0; i < s.parts; i++)
		set_pattern(op, &s, &parts[i], q, stride, s.logits, i == 0);
	op->kind = kind;
}

/*
 * Exchanges the first two blocks of the list, and removes a key from its last block if that holds several.
 * Removes the last block of the last row's list.
 */
static int relist_row(const struct cairn_attn_part *p, int list, int row)
{
	int32_t *indptr = (int32_t *)(uintptr_t)p->blk_indptr + list * (p->rows + 1) + row;
	int32_t *ids = (int32_t *)(uintptr_t)p->blk_indices + indptr[0], blocks = indptr[1] - indptr[0];
	int32_t *last = (int32_t *)(uintptr_t)p->last_len, id;
	int changed = blocks > 1 + !!last;

	if (changed) {
		id = ids[0];
		ids[0] = ids[1];
		ids[1] = id;
	}
	if (row == p->rows - 1 && blocks > 1) {
		indptr[1]--;
		changed = 1;
	}
	last = last ? last + list * p->rows + row : NULL;
	if (!last || last[0] < 2)
		return changed;
	last[0]--;
	return 1;
}

/* Exchanges the bits of the first two block rows if their sizes are equal. */
static void exchange_bits(const struct cairn_attn_part *p)
{
	const int32_t *lists = p->blk_indptr, *last = p->last_len;
	int64_t *at = (int64_t *)(uintptr_t)p->mask_indptr, first;

	if (!at || p->rows < 3 || p->row_indptr || lists[1] - lists[0] != lists[2] - lists[1] ||
	    (last && last[0] != last[1]))
		return;
	first = at[0];
	at[0] = at[1];
	at[1] = first;
}

static int relist(void *args)
{
	struct cairn_attn_bsr_args *a = args;
	int32_t *pos = (int32_t *)(uintptr_t)a->q_pos;
	int changed = 0;

	for (int k = 0; pos && k < a->nnz_qo; k++)
		pos[k] += k % 3;
	for (int i = 0; i < a->num_parts; i++) {
		const struct cairn_attn_part *p = &a->part[i];
		int32_t *begin = (int32_t *)(uintptr_t)p->row_indptr;

		for (int k = 0; k < p->index_heads * p->rows; k++)
			changed |= relist_row(p, k / p->rows, k % p->rows);
		for (int r = 0; p->kv_pos0 && r < p->rows; r++)
			((int32_t *)(uintptr_t)p->kv_pos0)[r] += r % 2;
		for (int k = 0; p->key_pos && k < p->num_blocks * p->block_n; k++)
			((int32_t *)(uintptr_t)p->key_pos)[k] += k % 2;
		exchange_bits(p);
		/* lines of bits have no room for another token */
		if (begin && p->rows > 1 && begin[1] > 1 && !(p->mask_mode & CAIRN_ATTN_BITS))
			begin[1]--;
	}
	return changed;
}

static const char *reject(void *args, int i, int *want)
{
	struct cairn_attn_bsr_args *a = args;
	struct cairn_attn_part *p = &a->part[0];

	*want = i < 36 ? -EINVAL : -EOPNOTSUPP;
	switch (i) {
	case 0: a->size = 8; return "size_too_small";
	case 1: a->out = NULL; return "out_null";
	case 2: a->q = NULL; return "q_null";
	case 3: p->k = NULL; return "k_null";
	case 4: p->v = NULL; return "v_null";
	case 5: p->blk_indptr = NULL; return "blk_indptr_null";
	case 6: p->blk_indices = NULL; return "blk_indices_null";
	case 7: a->q = (const char *)a->q + 8; return "q_misaligned";
	case 8: p->k = (const char *)p->k + 8; return "k_misaligned";
	case 9: p->v = (const char *)p->v + 2; return "v_misaligned";
	case 10: a->out = (char *)a->out + 4; return "out_misaligned";
	case 11: a->num_parts = 0; return "num_parts_0";
	case 12: a->nnz_qo = -1; return "nnz_qo_negative";
	case 13: a->num_kv_heads = 0; return "num_kv_heads_0";
	case 14: p->rows = -1; return "rows_negative";
	case 15: p->block_m = 0; return "block_m_0";
	case 16: p->block_n = 0; return "block_n_0";
	case 17: p->index_heads = a->num_kv_heads + 1; return "index_heads_too_many";
	case 18: p->index_heads = 0; return "index_heads_0";
	case 19: p->num_blocks = -1; return "num_blocks_negative";
	case 20: p->max_keys = -1; return "max_keys_negative";
	case 21: p->mask_mode = 4; return "mask_mode_4";
	case 22: p->mask_mode = -1; return "mask_mode_negative";
	case 23: p->mask_mode = CAIRN_ATTN_BITS; p->mask = NULL; return "mask_null";
	case 24: p->slot_stride = a->head_dim - 8; return "slot_stride_short";
	case 25: p->block_stride = a->head_dim + 4; return "block_stride_odd";
	case 26: p->head_stride = a->head_dim + 2; return "head_stride_odd";
	case 27: a->sm_scale = 0; return "sm_scale_0";
	case 28: a->softcap = NAN; return "softcap_nan";
	case 29: a->window = -1; return "window_negative";
	case 30: a->q_stride = 8; return "q_stride_short";
	case 31: a->kv_fp8 = 2; return "kv_fp8_2";
	case 32: a->kv_fp8 = 0; p->k_scale = (const float *)p->k; return "k_scale_without_fp8";
	case 33: a->q_pos = NULL; p->key_pos = p->blk_indices; return "key_pos_without_q_pos";
	case 34:
		a->q_pos = NULL;
		a->part[1] = a->part[0];
		a->num_parts = 2;
		a->window = 3;
		return "window_of_two_parts_without_q_pos";
	case 35: a->planned = 2; return "planned_2";
	case 36: a->num_parts = 5; return "num_parts_5";
	case 37: p->reserved = 1; return "reserved_1";
	case 38: a->dtype = CAIRN_F32; return "dtype_f32";
	case 39: a->head_dim = 80; return "head_dim_80";
	case 40: a->num_qo_heads = 5; a->num_kv_heads = 2; p->index_heads = 1; return "heads_5_over_2";
	case 41:
		a->num_kv_heads = p->index_heads = 2;
		a->num_qo_heads = 4;
		p->mask_mode = CAIRN_ATTN_BITS;
		return "bits_of_each_head";
	}
	return NULL;
}

static int exact(const void *args, struct cairn_exact *e)
{
	return cairn_attn_bsr_exact(args, e);
}

static void pair_rows(struct cairn_test *t)
{
	cairn_pairs_check(t, &pair_table, NUM_PAIRS);
	cairn_pairs_check(t, &ends_table, NUM_ENDS);
	cairn_pairs_check(t, &lists_table, NUM_LISTS);
	cairn_pairs_check(t, &blocks_table, NUM_BLOCKS);
}

static const struct cairn_unit units[] = { { "pair_rows", pair_rows } };

/*
 * The cases of attn_plan are the cases of attn_bsr that have these names; each calls attn_bsr with the plan.
 */
static const char *const planned[] = {
	"no_rows", "fewer_tokens_than_nnz", "prefix_and_suffix", "four_levels", "tree_8_of_3_requests",
	"boxes_and_threads_sms_1", "boxes_of_each_head", "page16_h32_8_b64_kv4096_bf16",
	"own_page16_h32_8_b16_zipf_bf16", "prefix32768_suffix128_h32_8_b64_bf16",
	"page16_h32_8_b4_s4096_causal_bf16", "without_lse",
};

/* Returns the number of a planned case among those of attn_bsr. */
static int planned_case(int i)
{
	for (int k = 0; k < NUM_NAMED; k++)
		if (!strcmp(named[k].name, planned[i]))
			return k;
	for (int k = 0; k < NUM_LATER; k++)
		if (!strcmp(later[k].name, planned[i]))
			return NUM_NAMED + NUM_GRID + NUM_PAIRS + k;
	abort();
}

static void describe_plan(int index, struct cairn_case *c)
{
	describe(planned_case(index), c);
	c->bytes = c->flops = 0;
}

static void setup_plan(struct cairn_op *op)
{
	const int index = op->case_index;

	op->case_index = planned_case(index);
	setup(op);
	op->case_index = index;
	((struct cairn_attn_bsr_args *)op->args)->planned = 1;
}

const struct cairn_family cairn_attn_plan_family = {
	.stage = "fused", .name = "attn_plan",
	.op = offsetof(struct cairn_impl, attn_plan),
	.then_op = offsetof(struct cairn_impl, attn_bsr),
	.workspace_op = offsetof(struct cairn_impl, attn_bsr_workspace),
	.args_size = sizeof(struct cairn_attn_bsr_args),
	.workspace_field = FIELD(workspace),
	.num_cases = (int)ARRAY_SIZE(planned),
	.describe = describe_plan,
	.setup = setup_plan,
	.relist = relist,
	.exact = exact,
	.cost_s = 10,
};

const struct cairn_family cairn_attn_bsr_family = {
	.stage = "fused", .name = "attn_bsr",
	.op = offsetof(struct cairn_impl, attn_bsr),
	.workspace_op = offsetof(struct cairn_impl, attn_bsr_workspace),
	.args_size = sizeof(struct cairn_attn_bsr_args),
	.sms_field = offsetof(struct cairn_attn_bsr_args, sms),
	.planned_field = offsetof(struct cairn_attn_bsr_args, planned),
	.plan_op = offsetof(struct cairn_impl, attn_plan),
	.plan_scalars = { FIELD(sm_scale), FIELD(softcap) },
	.workspace_field = FIELD(workspace),
	.num_cases = NUM_CASES, .draw = &draws,
	.units = units, .num_units = ARRAY_SIZE(units),
	.describe = describe,
	.setup = setup,
	.relist = relist,
	.exact = exact,
	.reject = reject,
	.cost_s = 110,
};
