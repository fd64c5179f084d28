/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_variant_kernel - the kernel of attn_variant as a template over the hooks of a text
 *
 * This is the kernel of attn_dense with the front of attn_variant_view.cuh. If the text rotates, the three
 * warps beside the producer rotate Q (attn_variant_rotate.cuh) and K (attn_variant_keys.cuh).
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

/* Waits for Q of the nth row tile. Returns the row tile's number of key tiles. */
template <class F> ATTN_DEV int attn_await_q(const struct attn_smem<struct attn_row_tile> &s, int nth)
{
	ptx_mbarrier_wait(attn_raw_q<F>(s) + nth % F::q_stages * 8, nth / F::q_stages & 1);
	return s.tiles[nth % ATTN_NUM_TILES].num_tiles;
}

/*
 * Makes a CTA without a row tile help to rotate the keys of another CTA's row tile. The producer calls this;
 * it describes those keys in *t, which has none before.
 */
template <class F, class V>
ATTN_DEV void attn_join_others(const struct attn_variant_call &a, const struct attn_dense_plan &plan,
			       struct attn_row_tile *t)
{
	const int items = plan.batch * plan.units * plan.row_tiles * V::slices(a);
	const int shares = gridDim.x / items + 1;
	int skip;

	if ((int)blockIdx.x < items)
		return;
	attn_dense_find<F, V>(plan, a, blockIdx.x % items / V::slices(a), t);
	skip = t->num_tiles * (int)(blockIdx.x / items) / shares;
	__syncwarp();
	if (threadIdx.x % 32 == 0) {
		t->begin += skip * F::keys;
		t->num_tiles -= skip;
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
		const int stage = nth % F::q_stages, num_tiles = attn_await_q<F>(s, nth);
		const int thread = attn_beside<F>();

		if (num_tiles > 0)
			attn_rotate_q<dtype, F, H, interleaved>(a, *t, s.q + stage * F::q_bytes, thread);
		attn_rotated(s.full_q + 8 * stage);
		if (kind == VARIANT_IN_PLACE)
			attn_rotate_k<dtype, F, H, interleaved>(a, *t, s, thread, &k);
		else if (num_tiles < 0 && nth == 0)
			t = &s.tiles[1];	/* attn_join_others() */
		if (H::has_key && kind != VARIANT_IN_PLACE && t->num_tiles > 0)
			attn_turn_keys<dtype, F, H, kind == VARIANT_SLICE, interleaved>(a, *t, thread / 32);
		if (num_tiles < 0)
			return;
	}
}

/*
 * Makes the consumers rotate keys before they attend. A CTA with a slice has one row tile, so the consumers
 * would only wait for these keys.
 */
template <int dtype, class F, class H, bool interleaved>
ATTN_DEV void attn_rotate_slice(const struct attn_variant_call &a,
				const struct attn_smem<struct attn_row_tile> &s)
{
	const struct attn_row_tile *t = &s.tiles[attn_await_q<F>(s, 0) < 0];	/* 1: attn_join_others() */

	if (t->num_tiles > 0)
		attn_turn_keys<dtype, F, H, true, interleaved>(a, *t, 3 + (int)threadIdx.x / 32);
}

template <int dtype, int head_dim, class H, enum attn_variant_kind kind>
ATTN_DEV void attn_variant_run(const struct attn_variant_call &a, const struct attn_dense_plan &plan,
			       const struct attn_dense_maps &maps, uint8_t *s_all)
{
	constexpr bool rotates = H::has_query || H::has_key;
	typedef struct attn_variant_form<head_dim, rotates, kind> F;
	typedef struct attn_variant_view<H, kind> V;
	constexpr bool in_place = kind == VARIANT_IN_PLACE;
	constexpr int warps = attn_rotators<F>();
	struct attn_smem<struct attn_row_tile> s = attn_lay_out<F, struct attn_row_tile>(s_all);
	const int beside = (int)threadIdx.x - F::groups * 128 - 32;	/* from 0: after the producer */

	if (threadIdx.x == 0) {
		attn_init_barriers<F>(s, 1);
		if (rotates)
			attn_init_raw<F, in_place>(s);
		s.tiles[1].num_tiles = 0;
	}
	__syncthreads();
	ptx_griddepcontrol_wait();
	if (beside >= -32) {
		ptx_setmaxnreg_dec<F::producer_regs>();
		if (beside < 0) {
			if (V::makes_keys)
				attn_join_others<F, V>(a, plan, &s.tiles[1]);
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
		if (kind == VARIANT_SLICE && H::has_key && a.interleaved)
			attn_rotate_slice<dtype, F, H, true>(a, s);
		else if (kind == VARIANT_SLICE && H::has_key)
			attn_rotate_slice<dtype, F, H, false>(a, s);
		attn_consume<dtype, F, V>(a, s);
	}
}

#endif
