/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster_attn_sums - inputs of the sums_* cases: integers whose sums have 18 to 23 bits before most of their
 * terms cancel, in each of the four products
 *
 * A sum that is kept in fewer bits than fp32 has loses what remains after the terms cancel. In fp32 the sum
 * is exact, so the reference's bound is that of the last rounding (block_attn_ref.c). Include
 * cluster_attn_cases.h first.
 */
#ifndef CAIRN_CLUSTER_ATTN_SUMS_H
#define CAIRN_CLUSTER_ATTN_SUMS_H

/* 128 to 255 times 2^shift, at random; 8 bits */
static double draw_large(struct cairn_op *op, int shift)
{
	return ldexp((double)cairn_op_range(op, 128, 255), shift);
}

/*
 * n consists of 1 and -1 and is equal in columns c and c + hidden / 2, whose weights in w_qkv are opposite.
 * Within a half of the columns weights have the signs of n, so the terms add up before they cancel. Only the
 * first four columns remain: q is 2 to 8. Channels c and c + dim / 2 are equal in q and v, opposite in k.
 */
static void fill_sums_of_qkv(struct cairn_op *op, const struct shape *s, void *w, int shift)
{
	const struct cairn_cluster_attn_args *a = op->args;
	int64_t half = s->hidden / 2, dim = s->dim;

	for (int64_t row = 0; row < (s->hq + 2 * s->hkv) * dim; row++) {
		double mirror = row / dim >= s->hq && row / dim < s->hq + s->hkv ? -1 : 1;

		for (int64_t c = 0; c < half; c++) {
			double v = c ? 1 : 5, twin = c < 4 ? 0 : -1;

			if (c >= 4)
				v = draw_large(op, shift) * (c % 3 ? 1 : -1);
			if (row % dim >= dim / 2)
				v = mirror * cairn_load(w, a->dtype, (row - dim / 2) * s->hidden + c);
			cairn_store(w, a->dtype, row * s->hidden + c, v);
			cairn_store(w, a->dtype, row * s->hidden + half + c, twin * v);
		}
	}
}

/* Old values cancel in pairs, except the last one. Channels are equal or opposite as in the new key. */
static void fill_sums_of_keys(struct cairn_op *op, const struct shape *s, const struct paged *p, int b,
			      int f16)
{
	const struct cairn_cluster_attn_args *a = op->args;
	int old = p->kv_len[b] - 1, pairs = (old - 1) / 2, half = s->dim / 2;

	for (int j = 0; j < old; j++)
		for (int64_t i = 0; i < s->hkv * half; i++) {
			int64_t row = (int64_t)s->hkv * s->dim, c = i / half * s->dim + i % half;
			int64_t at = paged_slot(p, b, j) * row + c;
			double k = draw_large(op, f16 ? 5 : 6), v = draw_large(op, f16 ? 8 : 10);

			if (j >= pairs)
				v = j == old - 1 ? 12 : -cairn_load(a->kv.v_pages, a->dtype,
								    paged_slot(p, b, j - pairs) * row + c);
			cairn_store(a->kv.k_pages, a->dtype, at, k);
			cairn_store(a->kv.k_pages, a->dtype, at + half, -k);
			cairn_store(a->kv.v_pages, a->dtype, at, v);
			cairn_store(a->kv.v_pages, a->dtype, at + half, v);
		}
}

static void fill_sums(struct cairn_op *op, const struct shape *s, const struct paged *p, void *x)
{
	struct cairn_cluster_attn_args *a = op->args;
	int64_t half = s->hidden / 2, nq = (int64_t)s->hq * s->dim, channel = s->dim / 2;
	int f16 = a->dtype == CAIRN_F16;

	for (int64_t i = 0; i < s->batch * (int64_t)s->hidden; i++) {
		int64_t c = i % s->hidden;
		double v = c == 0 ? 1 : c < 4 ? (cairn_op_rand(op) & 1 ? 1 : -1) : c % 3 ? 1 : -1;

		cairn_store(x, a->dtype, i, c < half ? v * (1 << i / s->hidden % 4) :
			    cairn_load(x, a->dtype, i - half));
	}
	for (int64_t c = 0; c < s->hidden; c++)
		cairn_store((void *)a->norm_weight, a->dtype, c, 1);
	fill_sums_of_qkv(op, s, (void *)a->w_qkv, f16 ? 8 : 9);
	for (int b = 0; b < s->batch; b++)
		fill_sums_of_keys(op, s, p, b, f16);
	for (int64_t i = 0; i < s->hidden * nq; i++) {
		int64_t c = i % s->dim;
		double v = c < 4 ? (double)cairn_op_range(op, -4, 4) : draw_large(op, 3);

		if (c >= channel)
			v = c < channel + 4 ? 0 : -cairn_load(a->w_o, a->dtype, i - channel);
		cairn_store((void *)a->w_o, a->dtype, i, v);
	}
}

#endif
