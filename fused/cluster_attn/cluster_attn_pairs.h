/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster_attn_pairs - cases that combine any two features of cluster_attn (pairs.h)
 *
 * Include pairs.h and cluster_attn_cases.h first. Lengths are fixed, so that a defect shows with every seed
 * or with none. x is of the usual size, or so small that eps dominates; eps goes from 1e-12 to 1.
 */
#ifndef CAIRN_CLUSTER_ATTN_PAIRS_H
#define CAIRN_CLUSTER_ATTN_PAIRS_H

enum {
	PAIR_GROUP, PAIR_FLOW, PAIR_PAGE, PAIR_HEADS, PAIR_LENGTHS, PAIR_BIAS, PAIR_EPS, PAIR_HIDDEN,
	PAIR_TABLES, PAIR_DIM, PAIR_SIZE, PAIR_SCALE, PAIR_PLACE, PAIR_FAR, PAIR_DTYPE, PAIR_CHIP,
	NUM_PAIR_FACTORS
};

static const int pair_group[] = { 1, 2, 3, 5, 6, 7, 16 }, pair_heads[] = { 1, 2, 3 };
static const struct {
	int dataflow, cluster;
} pair_flow[] = { { AUTO, 0 }, { TOKEN, 3 }, { HEAD, 4 }, { TOKEN, 8 }, { HEAD, 2 } };
static const struct {
	int batch, kv[10];
} pair_lengths[] = {
	{ 3, { 33, 1, 65 } },
	{ 4, { 17, 0, 40, 16 } },
	{ 9, { 2, 17, 1, 5, 3, 20, 9, 33, 1 } },
};

/* Excludes AUTO with offchip, which is not legal, and sizes for which the reference would take long. */
static int pair_forbidden(const int8_t *level)
{
	int num = level[PAIR_GROUP] < 0 || level[PAIR_HEADS] < 0 ? 1 :
		  pair_group[level[PAIR_GROUP]] * pair_heads[level[PAIR_HEADS]];

	if (level[PAIR_FLOW] == 0 && level[PAIR_CHIP] == 1)
		return 1;
	return num > 16 || (num > 7 && level[PAIR_DIM] == 1);
}

static struct cairn_pairs pair_table = {
	.num_factors = NUM_PAIR_FACTORS,
	.levels = { 7, 5, 6, 3, 3, 4, 4, 3, 3, 2, 2, 2, 2, 2, 2, 2 },
	.forbidden = pair_forbidden,
};

static void pair_at(int i, struct shape *s)
{
	static const int pages[] = { 16, 32, 1, 48, 128, 64 }, hiddens[] = { 64, 192, 512 };
	static const double eps[] = { 1e-5, 1e-12, 1e-3, 1 };
	static const unsigned tables[] = { 0, PAGED_PADDED, PAGED_FULL };
	const int8_t *level = cairn_pairs_row(&pair_table, i);

	memset(s, 0, sizeof(*s));
	s->pair = i + 1;
	s->batch = pair_lengths[level[PAIR_LENGTHS]].batch;
	s->kv_lens = pair_lengths[level[PAIR_LENGTHS]].kv;
	s->kv = s->kv_lens[0];
	s->page = pages[level[PAIR_PAGE]];
	s->hkv = pair_heads[level[PAIR_HEADS]];
	s->hq = s->hkv * pair_group[level[PAIR_GROUP]];
	s->dim = level[PAIR_DIM] ? 128 : 64;
	s->hidden = hiddens[level[PAIR_HIDDEN]];
	s->dataflow = pair_flow[level[PAIR_FLOW]].dataflow;
	s->cluster = pair_flow[level[PAIR_FLOW]].cluster;
	s->eps = eps[level[PAIR_EPS]];
	s->size = level[PAIR_SIZE] ? sqrt(s->eps) / 2 : 0.25;
	s->scale = level[PAIR_SCALE] ? 0.2f : 0;
	s->near = !level[PAIR_FAR];
	s->flags = tables[level[PAIR_TABLES]] | (level[PAIR_DTYPE] ? F16 : 0) |
		   (level[PAIR_PLACE] ? ALIAS : 0) | (level[PAIR_CHIP] ? OFFCHIP : 0) |
		   (level[PAIR_BIAS] % 2 ? BIAS_QKV : 0) | (level[PAIR_BIAS] / 2 ? BIAS_OUT : 0);
}

static void pair_name(const struct shape *s, char *name, size_t len)
{
	snprintf(name, len, "pair_%d_h%d_%d_d%d_p%d_w%d_%s%s%s", s->pair, s->hq, s->hkv, s->dim, s->page,
		 s->hidden, s->flags & F16 ? "f16" : "bf16", s->flags & BIAS_QKV ? "_b_qkv" : "",
		 s->flags & BIAS_OUT ? "_b_o" : "");
}

#endif
