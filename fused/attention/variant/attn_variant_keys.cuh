/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_variant_keys - the kernel that rotates all keys into the workspace, before the kernel that attends
 *
 * A thread rotates the same part of a row of K for several KV heads. What key() computes from the position
 * and the pair alone, such as sines and cosines, the compiler computes once for ATTN_KEY_HEADS heads.
 */
#ifndef CAIRN_ATTN_VARIANT_KEYS_CUH
#define CAIRN_ATTN_VARIANT_KEYS_CUH

#include "fused/attention/variant/attn_variant_rotate.cuh"

#define ATTN_KEY_HEADS	4		/* whose loads are in flight together */

/* Returns the argument of key() for row `row` of K. The caller sets kv_head. */
ATTN_DEV struct attn_x attn_variant_x_of_key(const struct attn_variant_call &a,
					     const struct attn_dense_plan &plan, int row)
{
	const int b = kv_owner(plan.kv_indptr, plan.batch, row);
	struct attn_x x = {};

	x.k_pos = row - plan.kv_indptr[b];
	x.request = b;
	x.qo_len = plan.qo_indptr[b + 1] - plan.qo_indptr[b];
	x.kv_len = plan.kv_indptr[b + 1] - plan.kv_indptr[b];
	x.p = a.p;
	x.t = a.t;
	return x;
}

/* Rotates part `part` of a row for ATTN_KEY_HEADS heads. Past the last head, it repeats that one. */
template <int dtype, int dim, class H, bool interleaved>
ATTN_DEV void attn_rotate_heads(const struct attn_variant_call &a, struct attn_x x, int row, int head,
				int part)
{
	struct attn_part p[ATTN_KEY_HEADS];

#pragma unroll
	for (int i = 0; i < ATTN_KEY_HEADS; i++) {
		const int kv_head = min(head + i, a.kv_heads - 1);
		const uint16_t *k = (const uint16_t *)a.k + row * a.k_stride + kv_head * a.k_head_stride;
		const uint4 *from = (const uint4 *)k + part;

		p[i].a = __ldg(from);
		if (!interleaved)
			p[i].b = __ldg(from + dim / 16);
	}
#pragma unroll
	for (int i = 0; i < ATTN_KEY_HEADS; i++) {
		uint4 *to;

		x.kv_head = min(head + i, a.kv_heads - 1);
		to = (uint4 *)((uint16_t *)a.rotated + ((int64_t)x.kv_head * a.nnz_kv + row) * dim) + part;
		attn_rotate_part<dtype, H, true, interleaved>(x, &p[i], part);
		to[0] = p[i].a;
		if (!interleaved)
			to[dim / 16] = p[i].b;
	}
}

/* CTAs take pieces in turn: as many rows as a CTA's threads can hold, and ATTN_KEY_HEADS heads of them. */
template <int dtype, int dim, class H, bool interleaved>
ATTN_DEV void attn_rotate_keys(const struct attn_variant_call &a, const struct attn_dense_plan &plan)
{
	constexpr int parts = dim / (interleaved ? 8 : 16), rows = ATTN_KEY_THREADS / parts;
	const int num_rows = plan.kv_indptr[plan.batch], heads = attn_div_up(a.kv_heads, ATTN_KEY_HEADS);
	const int64_t pieces = (int64_t)attn_div_up(num_rows, rows) * heads;

	for (int64_t piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
		const int row = (int)(piece / heads) * rows + (int)threadIdx.x / parts;

		if (row < num_rows)
			attn_rotate_heads<dtype, dim, H, interleaved>(
				a, attn_variant_x_of_key(a, plan, row), row,
				(int)(piece % heads) * ATTN_KEY_HEADS, threadIdx.x % parts);
	}
}

/* The kernel. Besides, it zeroes the counter of the kernel that attends. */
template <int dtype, int dim, class H>
ATTN_DEV void attn_variant_rotate_keys(const struct attn_variant_call &a,
				       const struct attn_dense_plan &plan)
{
	ptx_griddepcontrol_wait();
	if (plan.counter && blockIdx.x == 0 && threadIdx.x == 0)
		*plan.counter = 0;
	if (a.interleaved)
		attn_rotate_keys<dtype, dim, H, true>(a, plan);
	else
		attn_rotate_keys<dtype, dim, H, false>(a, plan);
	ptx_griddepcontrol_launch_dependents();
}

#endif
