/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_fp8 - the consumer warpgroups and the fetch of attn_fp8
 *
 * There are two consumer warpgroups of 64 packed rows each and a producer warp, as in attn_forward.cuh. A key
 * tile is a block of 128 keys. The consumers process one stream of steps, one key tile a step, over all row
 * tiles:
 *
 *   step n, a warpgroup:  start S = Q K(n)^T and F = P(n-1) V(n-1) | O *= keep(n-1) | wait for S | release
 *                         K(n) | mask, online softmax of row 0 | wait for F | release V(n-1) |
 *                         O += scale * F | softmax of row 1 | if n begins a row tile: finish the previous
 *                         tile's O | P = S in e4m3
 *
 * F is a fresh sum of 128 products: the tensor cores keep only 14 bits of a sum of e4m3 products, too few for
 * a sum over all keys. The addition of F to O in fp32 also applies the block's scale, at no extra cost. S, F,
 * O and P take 224 of a thread's 232 registers. P stays in registers, because attn_quant has put the keys of
 * V in the order of the accumulators (attn_fp8_place()). There are no turns: the two warpgroups settle in
 * opposite phases by themselves, and turns only cost time.
 *
 * mbarriers and descriptions of row tiles are those of attn_forward.cuh. ATTN_BAR_TURN is not used.
 */
#ifndef CAIRN_ATTN_FP8_CUH
#define CAIRN_ATTN_FP8_CUH

#include "primitives/ptx/fp8.cuh"
#include "fused/attention/dense/attn_dense_fetch.cuh"
#include "fused/attention/fp8/attn_fp8.h"

/* P is multiplied by 2^8, because e4m3 holds numbers from 2^-9 to 448. */
#define ATTN_FP8_P_BITS	8.0f
#define ATTN_FP8_P_UNIT	0x1p-8f

/* The form of a kernel, with the members of attn_form that the shared code uses. */
template <int dim_, int stages_, int q_stages_, int regs_, int producer_regs_> struct attn_fp8_form {
	static constexpr int dim = dim_, v = dim_, keys = ATTN_FP8_BLOCK, groups = 2;
	static constexpr int stages = stages_, q_stages = q_stages_;
	static constexpr int regs = regs_, producer_regs = producer_regs_;
	static constexpr int ctas = 1;	/* see attn_forward.cuh */
	static constexpr int rows = groups * 64, threads = (groups + 1) * 128;
	static constexpr int q_bytes = rows * dim, k_bytes = keys * dim, v_bytes = keys * dim;
	static constexpr int data_bytes = q_stages * q_bytes + stages * (k_bytes + v_bytes);
	static constexpr int smem_bytes = data_bytes + ATTN_EXTRA_BYTES, tiles = ATTN_NUM_TILES;
};

/* Where the scales of a row tile begin: at the block of its q, and at the first block of its keys. */
struct attn_fp8_origin {
	int32_t q_block, kv_block;
};

struct attn_fp8_scales {
	const float *q, *k, *v;
	float sm_scale_log2;
	int32_t q_blocks, kv_blocks;	/* blocks of a head */
};

/* Q as [row][query head][dim], K as [row of all heads][dim], V as [element of all blocks][128 keys]. */
struct attn_fp8_maps {
	CUtensorMap q, k, v;
};

/* Returns the origins of the row tiles' scales, which follow the descriptions of the row tiles. */
template <class F> ATTN_DEV struct attn_fp8_origin *attn_fp8_origins(uint8_t *s_all)
{
	constexpr int at = 192 + ATTN_NUM_TILES * (int)sizeof(struct attn_row_tile);

	static_assert(at + ATTN_NUM_TILES * (int)sizeof(struct attn_fp8_origin) <= ATTN_EXTRA_BYTES,
		      "the origins do not fit");
	return (struct attn_fp8_origin *)(s_all + F::data_bytes + at);
}

/* The producer warp: fetches Q, K and V of its row tiles in order, as far ahead as the stages allow. */
template <class F>
ATTN_DEV void attn_fp8_produce(const struct attn_dense_plan &plan, const struct attn_call &a,
			       const struct attn_fp8_scales &scales, const struct attn_fp8_maps &maps,
			       const struct attn_smem<struct attn_row_tile> &s,
			       struct attn_fp8_origin *origins)
{
	struct attn_place k = { 0, 1 }, v = { 0, 1 }, q = { 0, 1 };
	const bool leader = threadIdx.x % 32 == 0;
	int next = attn_dense_take(plan, 0, 1), nth = 0;

	for (int taken = 1;; taken++) {
		int slot = nth % ATTN_NUM_TILES;
		struct attn_dense_walk w = attn_dense_find<F>(plan, a, next, &s.tiles[slot]);
		struct attn_fp8_origin o;
		int token;

		/* draw the next row tile early: the latency overlaps the fetch of this one */
		if (w.num_tiles != -1)
			next = attn_dense_take(plan, taken, 1);
		if (w.num_tiles == 0)
			continue;
		o.q_block = attn_fp8_first_block(plan.qo_indptr[w.request], w.request);
		token = w.q_row - plan.qo_indptr[w.request];
		o.kv_block = w.kv_head * scales.kv_blocks + attn_fp8_first_block(w.row, w.request);
		for (int i = 0; i <= max(w.num_tiles, 0); i++) {
			if (i < w.num_tiles) {
				ptx_mbarrier_wait(s.empty_k + 8 * k.stage, k.phase);
				if (leader) {
					ptx_mbarrier_arrive_expect_tx(s.full_k + 8 * k.stage, F::k_bytes);
					ptx_cp_async_bulk_tensor_2d_g2s(s.k + k.stage * F::k_bytes, &maps.k,
									0, (o.kv_block + i) * F::keys,
									s.full_k + 8 * k.stage);
				}
				attn_advance<F::stages>(&k);
			}
			if (i == 0) {
				ptx_mbarrier_wait(s.empty_q + 8 * q.stage, q.phase);
				if (leader && w.num_tiles < 0) {
					ptx_mbarrier_arrive(s.full_q + 8 * q.stage);
				} else if (leader) {
					origins[slot].q_block = o.q_block + token / ATTN_FP8_BLOCK;
					origins[slot].kv_block = o.kv_block;
					ptx_mbarrier_arrive_expect_tx(s.full_q + 8 * q.stage, F::q_bytes);
					ptx_cp_async_bulk_tensor_3d_g2s(s.q + q.stage * F::q_bytes, &maps.q,
									0, w.head,
									o.q_block * ATTN_FP8_BLOCK + token,
									s.full_q + 8 * q.stage);
				}
				attn_advance<F::q_stages>(&q);
				continue;
			}
			ptx_mbarrier_wait(s.empty_v + 8 * v.stage, v.phase);
			if (leader) {
				ptx_mbarrier_arrive_expect_tx(s.full_v + 8 * v.stage, F::v_bytes);
				ptx_cp_async_bulk_tensor_2d_g2s(s.v + v.stage * F::v_bytes, &maps.v, 0,
								(o.kv_block + i - 1) * F::dim,
								s.full_v + 8 * v.stage);
			}
			attn_advance<F::stages>(&v);
		}
		if (w.num_tiles < 0)
			return;
		nth++;
	}
}

template <class F> ATTN_DEV uint64_t attn_fp8_desc(uint32_t addr)
{
	return F::dim == 128 ? wgmma_desc(addr, 0) : wgmma_desc_64(addr);
}

/* Issues S = Q K^T for a warpgroup's 64 rows. */
template <class F> ATTN_DEV void attn_fp8_issue_qk(float *s, uint32_t s_q, uint32_t s_k)
{
	uint64_t q = attn_fp8_desc<F>(s_q), k = attn_fp8_desc<F>(s_k);

	wgmma_keep<F::keys / 2>(s);
	ptx_wgmma_fence();
#pragma unroll
	for (int i = 0; i < F::dim / 32; i++)
		ptx_wgmma_e4m3_ss<F::keys>(s, q + i * 2, k + i * 2, i > 0);
	ptx_wgmma_commit_group();
	wgmma_keep<F::keys / 2>(s);
}

/* Issues F = P V for a warpgroup's 64 rows. */
template <class F> ATTN_DEV void attn_fp8_issue_pv(float *f, const uint32_t (*p)[4], uint32_t s_v)
{
	uint64_t v = wgmma_desc(s_v, 0);

	wgmma_keep<F::dim / 2>(f);
	ptx_wgmma_fence();
#pragma unroll
	for (int i = 0; i < F::keys / 32; i++)
		ptx_wgmma_e4m3_rs<F::dim>(f, p[i], v + i * 2, i > 0);
	ptx_wgmma_commit_group();
	wgmma_keep<F::dim / 2>(f);
}

/*
 * As attn_softmax(), for row r of the lane's two rows. s holds sums of products of codes; the logits, in
 * units of log2, are scale[r] * s, and m is in the same units. Turns s into p * 2^8; l is the sum of these.
 */
template <int tiles>
ATTN_DEV void attn_fp8_softmax(float (*s)[4], float m[2], float l[2], float keep[2], const float scale[2],
			       int r)
{
	float half[2], top, base, shift;

#pragma unroll
	for (int t = 0; t < tiles; t++) {
		float x = fmaxf(s[t][2 * r], s[t][2 * r + 1]);

		half[t % 2] = t < 2 ? x : fmaxf(half[t % 2], x);
	}
	top = fmaxf(m[r], attn_quad_max(fmaxf(half[0], half[1])) * scale[r]);
	base = top == -CUDART_INF_F ? 0 : top;
	shift = ATTN_FP8_P_BITS - base;
	keep[r] = ptx_ex2_approx_ftz(m[r] - base);	/* exactly 1 if the maximum has not changed */
	m[r] = top;
	l[r] *= keep[r];
#pragma unroll
	for (int t = 0; t < tiles; t++) {
		s[t][2 * r] = ptx_ex2_approx_ftz(fmaf(s[t][2 * r], scale[r], shift));
		s[t][2 * r + 1] = ptx_ex2_approx_ftz(fmaf(s[t][2 * r + 1], scale[r], shift));
		l[r] += s[t][2 * r] + s[t][2 * r + 1];
	}
}

/* Packs the p of four n-tiles into the A fragment of 32 keys, in the order of attn_fp8_place(). */
ATTN_DEV void attn_fp8_p_fragment(uint32_t a[4], float (*p)[4])
{
#pragma unroll
	for (int i = 0; i < 4; i++) {
		float (*t)[4] = p + i / 2 * 2;

		a[i] = fp8_narrow_4(t[0][i % 2 * 2], t[0][i % 2 * 2 + 1], t[1][i % 2 * 2],
				    t[1][i % 2 * 2 + 1]);
	}
}

/* Reads the scales of the lane's two rows of q, times sm_scale log2(e). */
ATTN_DEV void attn_fp8_q_scales(const struct attn_fp8_scales &z, const struct attn_row_tile &t,
				const struct attn_fp8_origin &origin, int shift, int group, float scale[2])
{
	int thread = attn_thread(), row = t.row0 + group * 64 + thread / 32 * 16 + thread % 32 / 4;

#pragma unroll
	for (int half = 0; half < 2; half++) {
		int head = t.head + ((row + half * 8) & ((1 << shift) - 1));

		scale[half] = z.q[(int64_t)head * z.q_blocks + origin.q_block] * z.sm_scale_log2;
	}
}

/* As attn_look() without windows, so that the compiler needs no registers for the first keys. */
ATTN_DEV struct attn_sight attn_fp8_look(const struct attn_call &a, const struct attn_row_tile &t, int group)
{
	struct attn_sight w = attn_look(a, t, group);

	w.first[0] = w.first[1] = w.all_first = 0;
	return w;
}

/* O += scale * F */
template <class F> ATTN_DEV void attn_fp8_add(float (*o)[4], const float (*f)[4], float scale)
{
#pragma unroll
	for (int j = 0; j < F::dim / 2; j++)
		o[j / 4][j % 4] = fmaf(f[j / 4][j % 4], scale, o[j / 4][j % 4]);
}

/* Writes a warpgroup's rows, and clears O for the next row tile. */
template <int dtype, class F>
ATTN_DEV void attn_fp8_finish(const struct attn_call &a, const struct attn_row_tile &t, float (*o)[4],
			      const float m[2], const float l[2], int group)
{
	const float sum[2] = { l[0] * ATTN_FP8_P_UNIT, l[1] * ATTN_FP8_P_UNIT };

	attn_finish<dtype, F>(a, t, o, m, sum, group, ATTN_LN2);
#pragma unroll
	for (int j = 0; j < F::dim / 2; j++)
		o[j / 4][j % 4] = 0;
}

template <int dtype, class F>
ATTN_DEV void attn_fp8_consume(const struct attn_call &a, const struct attn_fp8_scales &z,
			       const struct attn_smem<struct attn_row_tile> &s,
			       const struct attn_fp8_origin *origins)
{
	const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);	/* known to be uniform */
	const uint32_t s_q = s.q + group * 64 * F::dim;
	float o[F::dim / 8][4], f[F::dim / 8][4], sc[F::keys / 8][4];
	float keep[2], q_scale[2], scale[2], k_scale, v_scale;
	float m[2] = { -CUDART_INF_F, -CUDART_INF_F }, l[2] = {};
	uint32_t p[F::keys / 32][4];
	struct attn_place q = {}, k = {}, v = {};
	int nth = 0, i = 0, num_tiles, kv_block, slot;
	struct attn_sight w;

	ptx_mbarrier_wait(s.full_q, 0);
	num_tiles = s.tiles[0].num_tiles;
	if (num_tiles < 0)
		return;
	kv_block = origins[0].kv_block;
	k_scale = z.k[kv_block];
	w = attn_fp8_look(a, s.tiles[0], group);
	attn_fp8_q_scales(z, s.tiles[0], origins[0], a.shift, group, q_scale);
#pragma unroll
	for (int j = 0; j < F::dim / 2; j++)
		o[j / 4][j % 4] = 0;
	/* the first step, which has no product with V */
	ptx_mbarrier_wait(s.full_k, 0);
	attn_fp8_issue_qk<F>(sc[0], s_q, s.k);
	ptx_wgmma_wait_group<0>();
	wgmma_keep<F::keys / 2>(sc[0]);
	elected_arrive(s.empty_k);
	attn_advance<F::stages>(&k);
	attn_bend<F::keys>(sc, w, 0, 0);
	scale[0] = q_scale[0] * k_scale;
	scale[1] = q_scale[1] * k_scale;
	attn_fp8_softmax<F::keys / 8>(sc, m, l, keep, scale, 0);
	attn_fp8_softmax<F::keys / 8>(sc, m, l, keep, scale, 1);
	v_scale = z.v[kv_block];
#pragma unroll
	for (int j = 0; j < F::keys / 32; j++)
		attn_fp8_p_fragment(p[j], sc + 4 * j);
	for (;;) {
		bool fresh = ++i == num_tiles;		/* the step begins a row tile */
		float old_m[2], old_l[2];

		if (fresh) {
			elected_arrive(s.empty_q + 8 * q.stage);
			attn_advance<F::q_stages>(&q);
			ptx_mbarrier_wait(s.full_q + 8 * q.stage, q.phase);
			slot = ++nth % ATTN_NUM_TILES;
			num_tiles = s.tiles[slot].num_tiles;
			if (num_tiles < 0)
				break;
			kv_block = origins[slot].kv_block;
			w = attn_fp8_look(a, s.tiles[slot], group);
			attn_fp8_q_scales(z, s.tiles[slot], origins[slot], a.shift, group, q_scale);
			i = 0;
		}
		k_scale = z.k[kv_block + i];
		ptx_mbarrier_wait(s.full_k + 8 * k.stage, k.phase);
		attn_fp8_issue_qk<F>(sc[0], s_q + q.stage * F::q_bytes, s.k + k.stage * F::k_bytes);
		ptx_mbarrier_wait(s.full_v + 8 * v.stage, v.phase);
		attn_fp8_issue_pv<F>(f[0], p, s.v + v.stage * F::v_bytes);
		attn_rescale<F::dim>(o, keep);
		ptx_wgmma_wait_group<1>();
		wgmma_keep<F::keys / 2>(sc[0]);
		elected_arrive(s.empty_k + 8 * k.stage);
		attn_advance<F::stages>(&k);
		attn_bend<F::keys>(sc, w, i * F::keys, 0);
		if (fresh) {
#pragma unroll
			for (int r = 0; r < 2; r++) {
				old_m[r] = m[r];
				old_l[r] = l[r];
				m[r] = -CUDART_INF_F;
				l[r] = 0;
			}
		}
		scale[0] = q_scale[0] * k_scale;
		scale[1] = q_scale[1] * k_scale;
		attn_fp8_softmax<F::keys / 8>(sc, m, l, keep, scale, 0);
		ptx_wgmma_wait_group<0>();
		wgmma_keep<F::dim / 2>(f[0]);
		elected_arrive(s.empty_v + 8 * v.stage);
		attn_advance<F::stages>(&v);
		attn_fp8_add<F>(o, f, v_scale * ATTN_FP8_P_UNIT);
		attn_fp8_softmax<F::keys / 8>(sc, m, l, keep, scale, 1);
		if (fresh)
			attn_fp8_finish<dtype, F>(a, s.tiles[(nth - 1) % ATTN_NUM_TILES], o, old_m, old_l,
						  group);
		v_scale = z.v[kv_block + i];
#pragma unroll
		for (int j = 0; j < F::keys / 32; j++)
			attn_fp8_p_fragment(p[j], sc + 4 * j);
	}
	ptx_mbarrier_wait(s.full_v + 8 * v.stage, v.phase);
	attn_fp8_issue_pv<F>(f[0], p, s.v + v.stage * F::v_bytes);
	attn_rescale<F::dim>(o, keep);
	ptx_wgmma_wait_group<0>();
	wgmma_keep<F::dim / 2>(f[0]);
	attn_fp8_add<F>(o, f, v_scale * ATTN_FP8_P_UNIT);
	attn_fp8_finish<dtype, F>(a, s.tiles[(nth - 1) % ATTN_NUM_TILES], o, m, l, group);
}

#endif
