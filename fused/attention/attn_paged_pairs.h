/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_paged_pairs - cases in which every two features of attn_paged stand together (pairs.h), and their
 * exact inputs
 *
 * Include pairs.h first, and this in attn_paged_test.c after struct shape. The lengths are fixed, so that no
 * defect depends on the seed to be seen.
 *
 * EXACT has integers with sums of up to 22 bits. Channels c and c + head_dim / 2 of q are equal and those of
 * K opposite, so q k passes 2^20 and cancels; what remains is 0 (all keys have the same weight) or, in the
 * other half of the cases, one channel with a small integer. Two neighbouring keys have opposite values of up
 * to 2^14, so that P V passes 2^17 and cancels too. A sum with fewer than 24 bits gets all of this wrong.
 */
#ifndef CAIRN_ATTN_PAGED_PAIRS_H
#define CAIRN_ATTN_PAGED_PAIRS_H

enum {
	PAIR_GROUP, PAIR_HEADS, PAIR_PAGE, PAIR_WINDOW, PAIR_DIM, PAIR_LENGTHS, PAIR_TABLES, PAIR_STRIDE,
	PAIR_CAP, PAIR_SCALE, PAIR_DTYPE, PAIR_CAUSAL, PAIR_LSE, PAIR_LOGITS, PAIR_SMS, NUM_PAIR_FACTORS
};

static const int pair_group[] = { 1, 2, 3, 4, 5, 6, 7, 8 }, pair_heads[] = { 1, 2, 3, 5 };
static const int pair_page[] = { 16, 128, 32, 1, 48, 64 }, pair_window[] = { 0, 16, 1, 33, 5, 64, 100 };
static const int pair_dim[] = { 64, 128, 256 };
static const float pair_cap[] = { 0, 30, 0.7f }, pair_scale[] = { 0, 0.3f, 1.3f };

/* decode, mixed, append, prefill, requests with more queries than keys */
static const struct {
	int batch, qo[5], kv[5];
} pair_lengths[] = {
	{ 5, { 1, 1, 1, 1, 1 }, { 1, 97, 0, 33, 130 } },
	{ 4, { 1, 9, 1, 3 }, { 130, 64, 17, 65 } },
	{ 3, { 4, 2, 5 }, { 128, 37, 5 } },
	{ 2, { 33, 18 }, { 49, 18 } },
	{ 4, { 3, 0, 6, 1 }, { 2, 9, 0, 65 } },
};

static const unsigned pair_tables[] = { 0, PAGED_PADDED, PAGED_FULL | PAGED_HELD, PAGED_DUPLICATE };

/* More than 40 query heads in a prefill would cost more than all others. */
static int pair_forbidden(const int8_t *level)
{
	return level[PAIR_LENGTHS] == 3 && level[PAIR_GROUP] >= 0 && level[PAIR_HEADS] >= 0 &&
	       pair_group[level[PAIR_GROUP]] * pair_heads[level[PAIR_HEADS]] > 16;
}

static struct cairn_pairs pair_table = {
	.num_factors = NUM_PAIR_FACTORS,
	.levels = { 8, 4, 6, 7, 3, 5, 4, 4, 3, 3, 2, 2, 2, 2, 2 },
	.forbidden = pair_forbidden,
};

static void pair_at(int i, struct shape *s)
{
	const int8_t *level = cairn_pairs_row(&pair_table, i);

	memset(s, 0, sizeof(*s));
	s->pair = i + 1;
	s->batch = pair_lengths[level[PAIR_LENGTHS]].batch;
	s->qo_lens = pair_lengths[level[PAIR_LENGTHS]].qo;
	s->kv_lens = pair_lengths[level[PAIR_LENGTHS]].kv;
	s->qo = s->qo_lens[0];
	s->kv = s->kv_lens[0];
	s->page = pair_page[level[PAIR_PAGE]];
	s->hkv = pair_heads[level[PAIR_HEADS]];
	s->hq = s->hkv * pair_group[level[PAIR_GROUP]];
	s->dim = pair_dim[level[PAIR_DIM]];
	s->window = pair_window[level[PAIR_WINDOW]];
	s->cap = pair_cap[level[PAIR_CAP]];
	s->scale = pair_scale[level[PAIR_SCALE]];
	s->gap = level[PAIR_STRIDE] == 2 ? 8 : 0;
	s->explicit_stride = level[PAIR_STRIDE] == 1;
	s->equal = level[PAIR_LOGITS] == 0;
	s->sms = level[PAIR_SMS] ? 2 : 0;
	s->flags = pair_tables[level[PAIR_TABLES]] | (level[PAIR_STRIDE] == 3 ? PACKED : 0) |
		   (level[PAIR_DTYPE] ? F16 : 0) | (level[PAIR_CAUSAL] ? CAUSAL : 0) |
		   (level[PAIR_LSE] ? LSE : 0);
}

static void pair_name(const struct shape *s, char *name, size_t len)
{
	snprintf(name, len, "pair_%d_h%d_%d_d%d_p%d_%s%s%s%s", s->pair, s->hq, s->hkv, s->dim, s->page,
		 s->flags & F16 ? "f16" : "bf16", s->flags & CAUSAL ? "_causal" : "",
		 s->window ? "_window" : "", s->cap > 0 ? "_cap" : "");
}

/* Returns a random integer of magnitude least..most. */
static double some_integer(struct cairn_op *op, int least, int most)
{
	return (double)cairn_op_range(op, least, most) * (cairn_op_range(op, 0, 1) ? 1 : -1);
}

/* Sets one query head or one key: channels of the second half repeat those of the first, times `mirror`. */
static void fill_mirrored(struct cairn_op *op, void *x, int dtype, int64_t at, int dim, double first,
			  double mirror)
{
	for (int c = 0; c < dim / 2; c++) {
		double v = (double)cairn_op_range(op, 64, 127) * (c % 3 ? 1 : -1);

		cairn_store(x, dtype, at + c, c ? v : first);
		cairn_store(x, dtype, at + dim / 2 + c, c ? mirror * v : 0);
	}
}

/* Overwrites q, K and V, which hold random integers, with those of the comment above. */
static void fill_exact(struct cairn_op *op, const struct shape *s, const struct paged *p, int64_t stride)
{
	struct cairn_attn_paged_args *a = op->args;
	double unit = s->flags & F16 ? 8 : 64;
	int least = s->flags & F16 ? 1024 : 128, most = 2 * least - 1;

	for (int i = 0; i < p->nnz; i++)
		for (int h = 0; h < s->hq; h++)
			fill_mirrored(op, (void *)a->q, a->dtype, i * stride + (int64_t)h * s->dim, s->dim,
				      s->equal ? 0 : h % 2 ? -1 : 1, 1);
	for (int b = 0; b < s->batch; b++)
		for (int j = 0; j < p->kv_len[b] * s->hkv; j++) {
			int64_t at = (paged_slot(p, b, j / s->hkv) * s->hkv + j % s->hkv) * s->dim;

			fill_mirrored(op, a->kv.k_pages, a->dtype, at, s->dim,
				      (double)cairn_op_range(op, -12, 12), -1);
			for (int c = 0; c < s->dim; c++) {
				double v = some_integer(op, least, most) * unit;

				if (j / s->hkv % 2)
					v = -cairn_load(a->kv.v_pages, a->dtype, c + s->dim * (j % s->hkv +
							s->hkv * paged_slot(p, b, j / s->hkv - 1)));
				cairn_store(a->kv.v_pages, a->dtype, at + c, v);
			}
		}
	if (!s->equal)
		a->sm_scale = 0.25f;
}

#endif
