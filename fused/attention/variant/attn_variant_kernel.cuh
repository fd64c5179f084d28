/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_variant_kernel - the kernel of attn_variant as a template over the hooks of a text
 *
 * This is the kernel of attn_dense with the front of attn_variant_view.cuh. If the text has query(), the
 * three warps beside the producer rotate Q (attn_variant_rotate.cuh). If it has key(), another kernel rotates
 * all keys into the workspace first (attn_variant_keys.cuh).
 *
 * If there are few row tiles, another form runs (VARIANT_SLICE): each CTA attends to a slice of the keys of
 * one row tile, and a second kernel (attn_variant_merge.cuh) merges their results. If, besides, these row
 * tiles have at most 64 rows and the text has key(), one warpgroup attends, and the other warps rotate the
 * keys of their own CTA in shared memory (VARIANT_IN_PLACE).
 */
#ifndef CAIRN_ATTN_VARIANT_KERNEL_CUH
#define CAIRN_ATTN_VARIANT_KERNEL_CUH

#include "fused/attention/variant/attn_variant_keys.cuh"
#include "fused/attention/variant/attn_variant_merge.cuh"

/* Writes the results of requests without keys; called by warp `first` of `step` warps. */
template <int dtype, class H>
ATTN_DEV void attn_variant_write_empty(const struct attn_dense_plan &plan, const struct attn_variant_call &a,
				       int first, int step)
{
	for (int b = first; b < plan.batch; b += step) {
		struct attn_row_tile t = {};
		int kv_len = plan.kv_indptr[b + 1] - plan.kv_indptr[b];

		t.request = b;
		t.qo_first = plan.qo_indptr[b];
		t.qo_len = kv_len == 0 ? plan.qo_indptr[b + 1] - t.qo_first : 0;
		for (int64_t i = 0; i < (int64_t)t.qo_len * a.num_qo_heads; i++) {
			int64_t at = (int64_t)t.qo_first * a.num_qo_heads + i;
			struct attn_x x;
			float lse;

			t.head = (int)(i % a.num_qo_heads) >> a.shift << a.shift;
			x = attn_variant_x(a, t, (int)(i / a.num_qo_heads) << a.shift |
					   ((int)(i % a.num_qo_heads) & ((1 << a.shift) - 1)));
			lse = H::has_sink ? H::sink(x) : -CUDART_INF_F;
			for (int c = threadIdx.x % 32 * 2; c < a.v_dim; c += 64)
				((uint32_t *)a.out)[(at * a.v_dim + c) / 2] =
					attn_pack<dtype>(H::output(x, 0, c), H::output(x, 0, c + 1));
			if (a.lse && threadIdx.x % 32 == 0)
				a.lse[at] = lse;
		}
	}
}

/* Returns the number of a thread among those beside the producer; read again, see attn_thread(). */
template <class F> ATTN_DEV int attn_beside(void)
{
	int thread;

	asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
	return thread - F::groups * 128 - 32;
}

/* The program of the warps beside the producer, which follow it through its row tiles. */
template <int dtype, class F, class H, enum attn_variant_kind kind, bool interleaved>
ATTN_DEV void attn_rotate_all(const struct attn_variant_call &a,
			      const struct attn_smem<struct attn_row_tile> &s)
{
	struct attn_place k = {};

	for (int nth = 0;; nth++) {
		const struct attn_row_tile *t = &s.tiles[nth % ATTN_NUM_TILES];
		const int stage = nth % F::q_stages, thread = attn_beside<F>();

		ptx_mbarrier_wait(attn_raw_q<F>(s) + stage * 8, nth / F::q_stages & 1);
		if (t->num_tiles > 0)
			attn_rotate_q<dtype, F, H, interleaved>(a, *t, s.q + stage * F::q_bytes, thread);
		attn_rotated(s.full_q + 8 * stage);
		if (t->num_tiles < 0)
			return;
		if (kind == VARIANT_IN_PLACE)
			attn_rotate_k<dtype, F, H, interleaved>(a, *t, s, thread, &k);
	}
}

template <int dtype, int head_dim, class H, enum attn_variant_kind kind>
ATTN_DEV void attn_variant_run(const struct attn_variant_call &a, const struct attn_dense_plan &plan,
			       const struct attn_dense_maps &maps, uint8_t *s_all)
{
	constexpr bool in_place = kind == VARIANT_IN_PLACE, rotates = H::has_query || in_place;
	typedef struct attn_variant_form<head_dim, rotates, kind> F;
	typedef struct attn_variant_view<H, kind> V;
	constexpr int warps = attn_rotators<F>();
	struct attn_smem<struct attn_row_tile> s = attn_lay_out<F, struct attn_row_tile>(s_all);
	const int beside = (int)threadIdx.x - F::groups * 128 - 32;	/* from 0: after the producer */

	if (threadIdx.x == 0) {
		attn_init_barriers<F>(s, 1);
		if (rotates)
			attn_init_raw<F, in_place>(s);
	}
	__syncthreads();
	ptx_griddepcontrol_wait();
	if (beside >= -32) {
		ptx_setmaxnreg_dec<F::producer_regs>();
		if (beside < 0) {
			attn_dense_produce<F, V>(plan, a, maps, rotates ? attn_raw_view<F, in_place>(s) : s);
		} else {
			attn_variant_write_empty<dtype, H>(plan, a, blockIdx.x * warps + beside / 32,
							   gridDim.x * warps);
			if (rotates && a.interleaved)
				attn_rotate_all<dtype, F, H, kind, true>(a, s);
			else if (rotates)
				attn_rotate_all<dtype, F, H, kind, false>(a, s);
		}
		ptx_griddepcontrol_launch_dependents();
	} else {
		ptx_setmaxnreg_inc<F::regs>();
		attn_consume<dtype, F, V>(a, s);
	}
}

#endif
