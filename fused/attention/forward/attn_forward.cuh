/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_forward - the consumer warpgroups of the forward kernels (FlashAttention-3): products and softmax
 *
 * A CTA has one to three consumer warpgroups of 64 packed rows each (attn_tile.h) and a producer, which walks
 * over row tiles and their key tiles and fetches Q, K and V (attn_dense_fetch.cuh). The consumers see one
 * stream of steps, a key tile each, and do not stop between two row tiles:
 *
 *   step n, a warpgroup:  wait for the turn | start S = Q K(n)^T | start O += P(n-1) V(n-1) | pass the turn
 *                         on | wait for S | release K(n) | cap, mask, online softmax | wait for O | release
 *                         V(n-1) | if n begins a row tile: finish the previous tile's O, else rescale O |
 *                         P = S in dtype
 *
 * The turns (named barriers) put one warpgroup's softmax beside the others' products; within a warpgroup, the
 * product with V overlaps the next softmax, also across row tiles, because Q has two buffers where shared
 * memory allows it. P stays in registers: the accumulator's layout is that of the A operand. V is read as
 * stored, [key][dim]: wgmma transposes it.
 *
 * mbarriers: full_* has one arrival, by the producer, and counts bytes; empty_* has one of each consumer
 * warp.
 * Hardware barriers ATTN_BAR_TURN + i: the turn of warpgroup i; 128 threads wait and 128 arrive.
 */
#ifndef CAIRN_ATTN_FORWARD_CUH
#define CAIRN_ATTN_FORWARD_CUH

#include "primitives/ptx/elect.cuh"
#include "primitives/ptx/wgmma.cuh"
#include "fused/attention/attn_softmax.cuh"
#include "fused/attention/attn_tile.h"

#define ATTN_PANEL	128		/* bytes of a row of a panel, see wgmma.cuh */
#define ATTN_BAR_TURN	1
/*
 * Descriptions of row tiles in use at a time: the tile that is being finished, the current one, and those
 * that the producer is ahead of it.
 */
#define ATTN_NUM_TILES	4

/* racecheck miscounts after bar.arrive. The turns order no memory: a debug build leaves them out. */
#ifdef CAIRN_DEBUG
#define ATTN_TURNS	0
#else
#define ATTN_TURNS	1
#endif

/*
 * The form of a kernel: dimensions of Q and K and of V, filled up to what the products take; keys of a tile;
 * consumer warpgroups; stages of K and of V; buffers of Q; registers of a consumer's and a producer's thread.
 */
template <int qk_, int v_, int keys_, int groups_, int stages_, int q_stages_, int regs_, int producer_regs_>
struct attn_form {
	static constexpr int qk = qk_, v = v_, keys = keys_, groups = groups_, stages = stages_;
	static constexpr int q_stages = q_stages_, regs = regs_, producer_regs = producer_regs_;
	static constexpr int rows = groups * 64, threads = (groups + 1) * 128;
	static constexpr int qk_panels = (qk + 63) / 64, v_panels = (v + 63) / 64;
	static constexpr int q_bytes = qk_panels * rows * ATTN_PANEL;
	static constexpr int k_bytes = qk_panels * keys * ATTN_PANEL, v_bytes = v_panels * keys * ATTN_PANEL;
	static constexpr int data_bytes = q_stages * q_bytes + stages * (k_bytes + v_bytes);
	static constexpr int smem_bytes = data_bytes + 384;
};

/* A row tile with keys, as the producer describes it to the consumers. */
struct attn_row_tile {
	int32_t qo_first, qo_len, kv_len;
	int32_t head;			/* the first of its query heads */
	int32_t row0;			/* its first packed row */
	int32_t begin, num_tiles;	/* first key; key tiles, or -1: there is no further row tile */
	int32_t reserved;
};

/* What the consumers need of a call. A packed row r is token r >> shift, query head head + r % 2^shift. */
struct attn_call {
	void *out;
	float *lse;
	int32_t num_qo_heads, v_dim, shift, causal, window;
	float sm_scale, softcap;
};

/* Addresses in shared memory, and the descriptions of row tiles. */
struct attn_smem {
	uint32_t q, k, v;		/* [q_stages], [stages], [stages] tiles */
	uint32_t full_q, empty_q, full_k, empty_k, full_v, empty_v;	/* mbarriers, one for each stage */
	uint32_t landed;		/* mbarrier of the producer's own */
	struct attn_row_tile *tiles;	/* [ATTN_NUM_TILES] */
};

template <class F> ATTN_DEV struct attn_smem attn_lay_out(uint8_t *s_all)
{
	struct attn_smem s;
	uint32_t at = ptx_smem(s_all) + F::data_bytes;

	static_assert(F::stages <= 4 && F::q_stages <= 2, "mbarriers overlap");
	s.q = ptx_smem(s_all);
	s.k = s.q + F::q_stages * F::q_bytes;
	s.v = s.k + F::stages * F::k_bytes;
	s.full_k = at;
	s.empty_k = at + 32;
	s.full_v = at + 64;
	s.empty_v = at + 96;
	s.full_q = at + 128;
	s.empty_q = at + 144;
	s.landed = at + 160;
	s.tiles = (struct attn_row_tile *)(s_all + F::data_bytes + 192);
	return s;
}

template <class F> ATTN_DEV void attn_init_barriers(const struct attn_smem &s)
{
	for (int i = 0; i < F::stages; i++) {
		ptx_mbarrier_init(s.full_k + 8 * i, 1);
		ptx_mbarrier_init(s.full_v + 8 * i, 1);
		ptx_mbarrier_init(s.empty_k + 8 * i, F::groups * 4 * ELECTED_LANES);
		ptx_mbarrier_init(s.empty_v + 8 * i, F::groups * 4 * ELECTED_LANES);
	}
	for (int i = 0; i < F::q_stages; i++) {
		ptx_mbarrier_init(s.full_q + 8 * i, 1);
		ptx_mbarrier_init(s.empty_q + 8 * i, F::groups * 4 * ELECTED_LANES);
	}
	ptx_mbarrier_init(s.landed, 1);
	ptx_fence_mbarrier_init_release_cluster();
}

/* A position in a ring. In the first round a consumer waits for phase 0, a producer for phase 1. */
struct attn_place {
	int stage;
	uint32_t phase;
};

template <int stages> ATTN_DEV void attn_advance(struct attn_place *p)
{
	p->stage++;
	if (p->stage == stages) {
		p->stage = 0;
		p->phase ^= 1;
	}
}

/* Issues S = Q K^T for a warpgroup's 64 rows. */
template <int dtype, class F> ATTN_DEV void attn_issue_qk(float *s, uint32_t s_q, uint32_t s_k)
{
	uint64_t q, k = wgmma_desc(s_k, 0);

	/* otherwise the compiler keeps the descriptors of all columns of Q in registers */
	asm volatile("" : "+r"(s_q));
	q = wgmma_desc(s_q, 0);
	wgmma_keep<F::keys / 2>(s);
	ptx_wgmma_fence();
#pragma unroll
	for (int i = 0; i < F::qk / 16; i++)
		ptx_wgmma_ss<dtype, F::keys>(s, q + i / 4 * (F::rows * ATTN_PANEL >> 4) + i % 4 * 2,
					     k + i / 4 * (F::keys * ATTN_PANEL >> 4) + i % 4 * 2, i > 0);
	ptx_wgmma_commit_group();
	wgmma_keep<F::keys / 2>(s);
}

/* Issues O += P V, or O = P V if `add` is 0, for a warpgroup's 64 rows. */
template <int dtype, class F>
ATTN_DEV void attn_issue_pv(float *o, const uint32_t (*p)[4], uint32_t s_v, int add)
{
	uint64_t v = wgmma_desc(s_v, F::keys * ATTN_PANEL);

	wgmma_keep<F::v / 2>(o);
	ptx_wgmma_fence();
#pragma unroll
	for (int i = 0; i < F::keys / 16; i++)
		ptx_wgmma_rs<dtype, F::v>(o, p[i], v + i * (16 * ATTN_PANEL >> 4), i > 0 || add);
	ptx_wgmma_commit_group();
	wgmma_keep<F::v / 2>(o);
}

/*
 * Returns the thread's number in its warpgroup. It is read anew each time, so that the compiler does not keep
 * what is derived from it in registers that a key tile's step needs.
 */
ATTN_DEV int attn_thread(void)
{
	int thread;

	asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
	return thread % 128;
}

/* The keys that a warpgroup's rows see in the current row tile. */
struct attn_sight {
	int32_t first[2], span[2];	/* the lane's two rows: first key, number of keys */
	int32_t all_first, all_end;	/* all 64 rows see the keys all_first .. all_end - 1 */
	int32_t own;			/* bit r: the lane's row r is a row of the request */
};

ATTN_DEV struct attn_sight attn_look(const struct attn_call &a, const struct attn_row_tile &t, int group)
{
	int thread = attn_thread(), row0 = t.row0 + group * 64;
	int row = row0 + thread / 32 * 16 + thread % 32 / 4;
	struct attn_sight w;

	w.own = 0;
#pragma unroll
	for (int half = 0; half < 2; half++) {
		int token = (row + half * 8) >> a.shift;

		w.own |= (token < t.qo_len) << half;

		w.first[half] = attn_first_key(token, t.qo_len, t.kv_len, a.window);
		w.span[half] = max(0, attn_visible(token, t.qo_len, t.kv_len, a.causal) - w.first[half]);
	}
	w.all_first = attn_first_key((row0 + 63) >> a.shift, t.qo_len, t.kv_len, a.window);
	w.all_end = attn_visible(row0 >> a.shift, t.qo_len, t.kv_len, a.causal);
	return w;
}

/* Caps the logits of the key tile that begins at `key`, and sets those that a row does not see to -inf. */
template <int keys>
ATTN_DEV void attn_bend(float (*s)[4], const struct attn_sight &w, int key, float cap)
{
	if (cap != 0) {
#pragma unroll
		for (int i = 0; i < keys / 2; i++)
			s[i / 4][i % 4] = attn_cap(s[i / 4][i % 4], cap);
	}
	if (key + keys <= w.all_end && key >= w.all_first)
		return;
	key += threadIdx.x % 4 * 2;
#pragma unroll
	for (int half = 0; half < 2; half++) {
#pragma unroll
		for (int t = 0; t < keys / 8; t++) {
			if ((uint32_t)(key + t * 8 - w.first[half]) >= (uint32_t)w.span[half])
				s[t][2 * half] = -CUDART_INF_F;
			if ((uint32_t)(key + t * 8 + 1 - w.first[half]) >= (uint32_t)w.span[half])
				s[t][2 * half + 1] = -CUDART_INF_F;
		}
	}
}

/* Returns the factor from a logit as the consumers keep it to its value; a capped one is kept as its tanh. */
ATTN_DEV float attn_logit_scale(const struct attn_call &a)
{
	return a.softcap > 0 ? a.softcap : a.sm_scale;
}

/* Returns a packed row's index among all rows and heads: its row of out, its element of lse. */
ATTN_DEV int64_t attn_row_at(const struct attn_call &a, const struct attn_row_tile &t, int row)
{
	int64_t token = t.qo_first + (row >> a.shift);

	return token * a.num_qo_heads + t.head + (row & ((1 << a.shift) - 1));
}

/* Writes O / l and lse of a warpgroup's rows; m is in units of 1 / scale of a logit. */
template <int dtype, class F>
ATTN_DEV void attn_finish(const struct attn_call &a, const struct attn_row_tile &t, float (*o)[4],
			  const float m[2], const float l[2], int group, float scale)
{
	int thread = attn_thread(), warp = thread / 32, lane = thread % 32, rows = t.qo_len << a.shift;

#pragma unroll
	for (int half = 0; half < 2; half++) {
		float sum = attn_quad_sum(l[half]), inverse = sum > 0 ? 1 / sum : 0;
		int row = t.row0 + group * 64 + warp * 16 + lane / 4 + half * 8;
		int64_t at = attn_row_at(a, t, row);
		uint4 *out = (uint4 *)a.out + at * (a.v_dim / 8);

#pragma unroll
		for (int i = 0; i < F::v / 8; i += 4) {
			uint32_t x[4];
			uint4 eight;

#pragma unroll
			for (int j = 0; j < 4; j++)
				x[j] = attn_pack<dtype>(o[i + j][2 * half] * inverse,
							o[i + j][2 * half + 1] * inverse);
			eight = attn_gather_quad(x);
			if (row < rows && i + lane % 4 < a.v_dim / 8)
				out[i + lane % 4] = eight;
		}
		if (a.lse && lane % 4 == 0 && row < rows)
			a.lse[at] = attn_lse(m[half], sum, scale);
	}
}

template <int dtype, class F>
ATTN_DEV void attn_consume(const struct attn_call &a, const struct attn_smem &s)
{
	const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);	/* known to be uniform */
	const float scale_log2 = attn_logit_scale(a) * ATTN_LOG2E;
	const float cap = a.softcap > 0 ? 2 * ATTN_LOG2E * (a.sm_scale / a.softcap) : 0;
	const uint32_t s_q = s.q + group * 64 * ATTN_PANEL;
	float o[F::v / 8][4], sc[F::keys / 8][4], keep[2], old_m[2], old_l[2];
	float m[2] = { -CUDART_INF_F, -CUDART_INF_F }, l[2] = {};
	uint32_t p[F::keys / 16][4];
	struct attn_place q = {}, k = {}, v = {};
	int nth = 0, i = 0, add = 0, num_tiles, begin;
	struct attn_sight w;

	ptx_mbarrier_wait(s.full_q, 0);
	num_tiles = s.tiles[0].num_tiles;
	begin = s.tiles[0].begin;
	if (num_tiles < 0)
		return;
	w = attn_look(a, s.tiles[0], group);
	if (ATTN_TURNS && group == F::groups - 1)
		ptx_bar_arrive(ATTN_BAR_TURN, 256);
	/* the first step, which has no product with V */
	ptx_mbarrier_wait(s.full_k, 0);
	attn_issue_qk<dtype, F>(sc[0], s_q, s.k);
	ptx_wgmma_wait_group<0>();
	wgmma_keep<F::keys / 2>(sc[0]);
	elected_arrive(s.empty_k);
	attn_advance<F::stages>(&k);
	attn_bend<F::keys>(sc, w, begin, cap);
	attn_softmax_fused<F::keys / 8>(sc, m, l, keep, scale_log2, w.own);
#pragma unroll
	for (int j = 0; j < F::keys / 16; j++)
		attn_p_fragment<dtype>(p[j], sc + 2 * j);
	for (;;) {
		bool fresh = ++i == num_tiles;		/* the step begins a row tile */

		if (fresh) {
			const struct attn_row_tile *t = &s.tiles[++nth % ATTN_NUM_TILES];

			elected_arrive(s.empty_q + 8 * q.stage);
			attn_advance<F::q_stages>(&q);
			ptx_mbarrier_wait(s.full_q + 8 * q.stage, q.phase);
			num_tiles = t->num_tiles;
			begin = t->begin;
			if (num_tiles < 0)
				break;
			w = attn_look(a, *t, group);
			i = 0;
		}
		ptx_mbarrier_wait(s.full_k + 8 * k.stage, k.phase);
		if (ATTN_TURNS)
			ptx_bar_sync(ATTN_BAR_TURN + group, 256);
		attn_issue_qk<dtype, F>(sc[0], s_q + q.stage * F::q_bytes, s.k + k.stage * F::k_bytes);
		ptx_mbarrier_wait(s.full_v + 8 * v.stage, v.phase);
		attn_issue_pv<dtype, F>(o[0], p, s.v + v.stage * F::v_bytes, add);
		if (ATTN_TURNS)
			ptx_bar_arrive(ATTN_BAR_TURN + (group + 1) % F::groups, 256);
		ptx_wgmma_wait_group<1>();
		wgmma_keep<F::keys / 2>(sc[0]);
		elected_arrive(s.empty_k + 8 * k.stage);
		attn_advance<F::stages>(&k);
		attn_bend<F::keys>(sc, w, begin + i * F::keys, cap);
		if (fresh) {
#pragma unroll
			for (int r = 0; r < 2; r++) {
				old_m[r] = m[r];
				old_l[r] = l[r];
				m[r] = -CUDART_INF_F;
				l[r] = 0;
			}
		}
		attn_softmax_fused<F::keys / 8>(sc, m, l, keep, scale_log2, w.own);
		ptx_wgmma_wait_group<0>();
		wgmma_keep<F::v / 2>(o[0]);
		elected_arrive(s.empty_v + 8 * v.stage);
		attn_advance<F::stages>(&v);
		if (fresh)
			attn_finish<dtype, F>(a, s.tiles[(nth - 1) % ATTN_NUM_TILES], o, old_m, old_l, group,
					      attn_logit_scale(a));
		else
			attn_rescale<F::v>(o, keep);
		add = !fresh;
#pragma unroll
		for (int j = 0; j < F::keys / 16; j++)
			attn_p_fragment<dtype>(p[j], sc + 2 * j);
	}
	ptx_mbarrier_wait(s.full_v + 8 * v.stage, v.phase);
	attn_issue_pv<dtype, F>(o[0], p, s.v + v.stage * F::v_bytes, add);
	ptx_wgmma_wait_group<0>();
	wgmma_keep<F::v / 2>(o[0]);
	attn_finish<dtype, F>(a, s.tiles[(nth - 1) % ATTN_NUM_TILES], o, m, l, group, attn_logit_scale(a));
}

#endif
