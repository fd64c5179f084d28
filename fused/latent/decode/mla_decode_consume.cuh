/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mla_decode_consume - the two consumer warpgroups of mla_decode: products and softmax
 *
 * Warpgroup 0 computes S and P of the even tiles, warpgroup 1 those of the odd tiles. Both need every P,
 * because each holds half of the columns of O (64 x 256, 128 registers a thread). A thread of one warpgroup
 * holds the same rows and columns of P as the same thread of the other, so P needs no layout when it passes
 * through shared memory: each thread passes 64 bytes, the maximum, and the factor by which O must be
 * multiplied.
 *
 *   tile i, its warpgroup:   first half of S(i) = Q K(i)^T | take P(i-1), rescale O, start O += P(i-1) V(i-1)
 *                            start the rest of S(i) | free V(i-1) | softmax | give P(i) |
 *                            rescale O, O += P(i) V(i) | free V(i)
 *
 * So the softmax of one warpgroup overlaps products of the other. The product with V(i-1) begins before the
 * rest of S(i), because the copy of tile i + 1 waits until that half of the buffer is free.
 */
#ifndef CAIRN_MLA_DECODE_CONSUME_CUH
#define CAIRN_MLA_DECODE_CONSUME_CUH

#include "fused/latent/decode/mla_decode_view.cuh"
#include "primitives/ptx/wgmma.cuh"

#define MLA_BAR_GROUP	1		/* + warpgroup: its 128 threads */
#define MLA_BAR_BOTH	3		/* the 256 threads of both */
#define MLA_COLUMNS	(MLA_RANK / 2)	/* of O, a warpgroup */

/* The state of a thread: its rows r and r + 8 of O, their maximum, the sum over its own columns of P. */
struct mla_state {
	float m[2], l[2], keep[2];
	int32_t sees[2];	/* the end of the keys that the rows see */
	int own;		/* bit r: row r belongs to the request */
};

/* A consumer thread's view of the task. */
struct mla_work {
	uint32_t smem;
	int group;
	int32_t all_see;		/* the end of the keys that all rows see */
	float scale_log2;
};

/* Waits for a group of panels of tile i. The fence makes stores of threads visible to wgmma. */
template <int fetch> ATTN_DEV void mla_wait_full(uint32_t smem, int i, int group)
{
	ptx_mbarrier_wait(mla_full(smem, i & 1, group), i >> 1 & 1);
	if (fetch >= MLA_THREADS_16)
		ptx_fence_proxy_async_shared_cta();
}

/*
 * Starts a part of S = Q K^T of tile i, whose panels come in the order of mla_group(): part 0 is the half of
 * the latent that comes first, part 1 the rest.
 */
template <int dtype, int fetch, int part> ATTN_DEV void mla_issue_qk(float *s, uint32_t smem, int i)
{
	const uint64_t k = wgmma_desc(smem + MLA_AT_KEYS + (i & 1) * MLA_TILE_BYTES, 0);
	uint64_t q;

	/* hide smem from the compiler: it would keep the descriptors of all columns of Q in registers */
	asm volatile("" : "+r"(smem));
	q = wgmma_desc(smem, 0);
	wgmma_keep<MLA_KEYS / 2>(s);
#pragma unroll
	for (int nth = 2 * part; nth < (part ? MLA_GROUPS : 2); nth++) {
		const int turn = nth < 4 ? (i & 1) * (nth < 2 ? 4 : -4) : 0;

		mla_wait_full<fetch>(smem, i, nth < 4 ? nth ^ (i & 1) * 2 : nth);
		ptx_wgmma_fence();
#pragma unroll
		for (int p = 2 * nth; p < min(2 * nth + 2, MLA_PANELS); p++)
#pragma unroll
			for (int j = 0; j < 4; j++) {
				int64_t at = (p + turn) * (MLA_PANEL_BYTES >> 4) + j * 2;

				ptx_wgmma_ss<dtype, MLA_KEYS>(s, q + at, k + at, p + j > 0);
			}
	}
	ptx_wgmma_commit_group();
	wgmma_keep<MLA_KEYS / 2>(s);
}

/*
 * Starts O += P V of tile i for the columns of the warpgroup. In a CTA of 512 threads, the compiler refuses a
 * product of all of them: it needs more registers than a thread has at first.
 */
template <int dtype, int fetch>
ATTN_DEV void mla_issue_pv(float *o, const uint32_t (*p)[4], uint32_t smem, int i, int group)
{
	constexpr int columns = mla_threads(fetch) > 384 ? MLA_COLUMNS / 2 : MLA_COLUMNS;
	const uint64_t v = wgmma_desc(smem + MLA_AT_KEYS + (i & 1) * MLA_TILE_BYTES +
				      group * 4 * MLA_PANEL_BYTES, MLA_PANEL_BYTES);

	wgmma_keep<MLA_COLUMNS / 2>(o);
	ptx_wgmma_fence();
#pragma unroll
	for (int j = 0; j < MLA_KEYS / 16; j++)
#pragma unroll
		for (int n = 0; n < MLA_COLUMNS; n += columns)
			ptx_wgmma_rs<dtype, columns>(o + n / 2, p[j], v + j * (16 * ATTN_PANEL >> 4) +
							      n / 64 * (MLA_PANEL_BYTES >> 4), 1);
	ptx_wgmma_commit_group();
	wgmma_keep<MLA_COLUMNS / 2>(o);
}

/* Passes P of tile i and the softmax state to the other warpgroup. */
ATTN_DEV void mla_give(const uint32_t (*p)[4], const struct mla_state &w, uint32_t smem, int i)
{
	const uint32_t to = smem + MLA_AT_P + mla_thread() * 16;

#pragma unroll
	for (int j = 0; j < MLA_KEYS / 16; j++)
		ptx_st_shared_v4(to + j * 128 * 16, make_uint4(p[j][0], p[j][1], p[j][2], p[j][3]));
	ptx_st_shared_v4(smem + MLA_AT_STATE + mla_thread() * 16,
			 make_uint4(__float_as_uint(w.m[0]), __float_as_uint(w.m[1]),
				    __float_as_uint(w.keep[0]), __float_as_uint(w.keep[1])));
	elected_arrive(mla_p_ready(smem, i, mla_thread() / 32));
}

/*
 * Takes P of tile i and the state from the other warpgroup. A single buffer suffices: a thread takes a P
 * before it gives its own, and only the same thread of the other warpgroup takes that one.
 */
ATTN_DEV void mla_take(uint32_t (*p)[4], struct mla_state *w, uint32_t smem, int i)
{
	const uint32_t from = smem + MLA_AT_P + mla_thread() * 16;
	uint4 x;

	ptx_mbarrier_wait(mla_p_ready(smem, i, mla_thread() / 32), i >> 1 & 1);
	x = ptx_ld_shared_v4(smem + MLA_AT_STATE + mla_thread() * 16);
	w->m[0] = __uint_as_float(x.x);
	w->m[1] = __uint_as_float(x.y);
	w->keep[0] = __uint_as_float(x.z);
	w->keep[1] = __uint_as_float(x.w);
#pragma unroll
	for (int r = 0; r < 2; r++)
		w->l[r] *= w->keep[r];
#pragma unroll
	for (int j = 0; j < MLA_KEYS / 16; j++) {
		x = ptx_ld_shared_v4(from + j * 128 * 16);
		p[j][0] = x.x;
		p[j][1] = x.y;
		p[j][2] = x.z;
		p[j][3] = x.w;
	}
}

/*
 * Overwrites the keys of tile i past the end of the request with zeros, in a half of the columns: p = 0 must
 * not be multiplied by a NaN. S may be computed before or after this, because the logits of these keys are
 * overwritten. If threads copy the keys, they write these zeros themselves.
 */
template <int fetch>
ATTN_DEV void mla_clear_tail(const struct mla_task &t, uint32_t smem, int i, int half, int group)
{
	const int32_t valid = t.kv_len - (t.first + i) * MLA_KEYS;
	const uint32_t to = smem + MLA_AT_KEYS + (i & 1) * MLA_TILE_BYTES + half * 4 * MLA_PANEL_BYTES;

	if (fetch >= MLA_THREADS_16 || valid >= MLA_KEYS)
		return;
	mla_wait_full<fetch>(smem, i, 2 * half);
	mla_wait_full<fetch>(smem, i, 2 * half + 1);
	for (int n = valid * 8 + mla_thread(); n < MLA_KEYS * 8; n += 128)
#pragma unroll
		for (int p = 0; p < 4; p++)
			ptx_st_shared_v4(to + p * MLA_PANEL_BYTES + n * 16, make_uint4(0, 0, 0, 0));
	ptx_fence_proxy_async_shared_cta();
	ptx_bar_sync(MLA_BAR_GROUP + group, 128);
}

/* Sets the logits of keys that a row does not see to -inf. */
template <int fetch>
ATTN_DEV void mla_mask(float (*s)[4], const struct mla_call &c, const struct mla_task &t,
		       const struct mla_state &w, uint32_t smem, int i, int32_t all_see)
{
	const int32_t key = (t.first + i) * MLA_KEYS + threadIdx.x % 4 * 2;

	if (fetch >= MLA_THREADS_16 && c.slots) {
		const uint32_t valid = smem + MLA_AT_VALID + ((i & 1) * MLA_KEYS + threadIdx.x % 4 * 2) * 2;

#pragma unroll
		for (int n = 0; n < MLA_KEYS / 8; n++) {
			uint32_t two = ptx_ld_shared_b32(valid + n * 16);

#pragma unroll
			for (int j = 0; j < 4; j++)
				if (!(j % 2 ? two >> 16 : two & 0xffff))
					s[n][j] = -CUDART_INF_F;
		}
		return;
	}
	if ((t.first + i + 1) * MLA_KEYS <= all_see)
		return;
#pragma unroll
	for (int n = 0; n < MLA_KEYS / 8; n++)
#pragma unroll
		for (int j = 0; j < 4; j++)
			if (key + n * 8 + j % 2 >= w.sees[j / 2])
				s[n][j] = -CUDART_INF_F;
}

/* Adds up l of both warpgroups. */
ATTN_DEV void mla_join_sums(struct mla_state *w, uint32_t smem, int group)
{
	const uint32_t at = smem + MLA_AT_P + mla_thread() * 8;
	uint2 x;

	ptx_bar_sync(MLA_BAR_BOTH, 256);	/* no P is read any more */
	ptx_st_shared_v2(at + group * 1024, make_uint2(__float_as_uint(w->l[0]), __float_as_uint(w->l[1])));
	ptx_bar_sync(MLA_BAR_BOTH, 256);
	x = ptx_ld_shared_v2(at + (group ^ 1) * 1024);
	w->l[0] = attn_quad_sum(w->l[0] + __uint_as_float(x.x));
	w->l[1] = attn_quad_sum(w->l[1] + __uint_as_float(x.y));
}

/* Writes the results of the task, or its state if keys are split. */
template <int dtype>
ATTN_DEV void mla_finish(float (*o)[4], const struct mla_call &c, const struct mla_task &t,
			 const struct mla_state &w, int group)
{
	const int lane = threadIdx.x % 32, row = mla_thread() / 32 * 16 + lane / 4;

#pragma unroll
	for (int r = 0; r < 2; r++) {
		const int64_t to = t.at + row + r * 8, part = blockIdx.y * c.rows + to;
		const float inverse = w.l[r] > 0 ? 1 / w.l[r] : 0;
		const bool own = w.own >> r & 1;

		if (own && group == 0 && lane % 4 == 0) {
			if (c.splits > 1)
				c.ml[part] = make_float2(w.m[r], w.l[r]);
			else if (c.lse)
				c.lse[to] = attn_lse(w.m[r], w.l[r], c.sm_scale);
		}
		if (c.splits > 1) {
			if (!own || !t.count)
				continue;
#pragma unroll
			for (int n = 0; n < MLA_COLUMNS / 8; n++)
				*(float2 *)(c.part + part * MLA_RANK + group * MLA_COLUMNS + n * 8 +
					    lane % 4 * 2) = make_float2(o[n][2 * r], o[n][2 * r + 1]);
			continue;
		}
#pragma unroll
		for (int n = 0; n < MLA_COLUMNS / 8; n += 4) {
			uint32_t x[4];
			uint4 eight;

#pragma unroll
			for (int k = 0; k < 4; k++)
				x[k] = attn_pack<dtype>(o[n + k][2 * r] * inverse,
							o[n + k][2 * r + 1] * inverse);
			eight = attn_gather_quad(x);
			if (own)
				*(uint4 *)((uint16_t *)c.out + to * MLA_RANK + group * MLA_COLUMNS +
					   (n + lane % 4) * 8) = eight;
		}
	}
}

/* Returns the thread's state before the first key. */
ATTN_DEV struct mla_state mla_begin(const struct mla_call &c, const struct mla_task &t)
{
	const int row = mla_thread() / 32 * 16 + threadIdx.x % 32 / 4;
	struct mla_state w = {};

#pragma unroll
	for (int r = 0; r < 2; r++) {
		w.m[r] = -CUDART_INF_F;
		w.sees[r] = attn_visible(attn_token(t.row0 + row + r * 8, c.magic), t.qo_len, t.kv_len, 1);
		w.own |= (row + r * 8 < t.num_rows) << r;
	}
	return w;
}

/* Takes P of tile i of the other warpgroup and starts O += P V. */
template <int dtype, int fetch>
ATTN_DEV void mla_add_theirs(float (*o)[4], uint32_t (*p)[4], struct mla_state *w, const struct mla_work &x,
			     int i)
{
	mla_take(p, w, x.smem, i);
	attn_rescale<MLA_COLUMNS>(o, w->keep);
	mla_issue_pv<dtype, fetch>(o[0], p, x.smem, i, x.group);
}

/* Releases half of a buffer for a warp, to all CTAs that copy to it; see attn_release() for the order. */
template <int fetch> ATTN_DEV void mla_release(uint32_t mbar)
{
	if (mla_sharers(fetch) == 1) {
		elected_arrive(mbar);
		return;
	}
	__syncwarp();
	if (threadIdx.x % 32 < ELECTED_LANES) {
#pragma unroll
		for (int cta = 0; cta < 2; cta++)
			ptx_mbarrier_arrive_relaxed_cluster(ptx_mapa(mbar, cta));
	}
}

/*
 * Waits until O += P V of tile i is complete; up to `later` wgmma groups that were committed after it may
 * stay in flight. Then frees the warpgroup's half of the tile's buffer.
 */
template <int later, int fetch>
ATTN_DEV void mla_end_pv(float (*o)[4], const struct mla_work &x, int i)
{
	ptx_wgmma_wait_group<later>();
	wgmma_keep<MLA_COLUMNS / 2>(o[0]);
	mla_release<fetch>(mla_free(x.smem, i & 1, x.group));
}

/* Processes tile i, one of the warpgroup's own. first: it is the first tile of the task. */
template <int dtype, int fetch, bool first>
ATTN_DEV void mla_own_tile(float (*o)[4], const struct mla_call &c, const struct mla_task &t,
			   struct mla_state *w, const struct mla_work &x, int i)
{
	uint32_t p[MLA_KEYS / 16][4], theirs[MLA_KEYS / 16][4];
	float s[MLA_KEYS / 8][4];

	mla_issue_qk<dtype, fetch, 0>(s[0], x.smem, i);
	if (!first) {
		ptx_wgmma_wait_group<0>();
		wgmma_keep<MLA_KEYS / 2>(s[0]);
		mla_add_theirs<dtype, fetch>(o, theirs, w, x, i - 1);
	}
	mla_issue_qk<dtype, fetch, 1>(s[0], x.smem, i);
	if (!first)
		mla_end_pv<1, fetch>(o, x, i - 1);
	ptx_wgmma_wait_group<0>();
	wgmma_keep<MLA_KEYS / 2>(s[0]);
	mla_mask<fetch>(s, c, t, *w, x.smem, i, x.all_see);
	/* p of the largest logit is exactly 1: with a maximum that is kept longer, rounding P errs by more */
	attn_softmax_fused<MLA_KEYS / 8, 0>(s, w->m, w->l, w->keep, x.scale_log2, w->own, []() { },
					 [&]() { attn_p_fragments<dtype, MLA_KEYS / 8>(p, s); });
	mla_give(p, *w, x.smem, i);
	mla_clear_tail<fetch>(t, x.smem, i, x.group, x.group);
	attn_rescale<MLA_COLUMNS>(o, w->keep);
	mla_issue_pv<dtype, fetch>(o[0], p, x.smem, i, x.group);
	mla_end_pv<0, fetch>(o, x, i);
}

template <int dtype, int fetch>
ATTN_DEV void mla_consume(const struct mla_call &c, const struct mla_task &t, uint32_t smem)
{
	const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);	/* known to be uniform */
	const struct mla_work x = { smem, group,
				    attn_visible(attn_token(t.row0, c.magic), t.qo_len, t.kv_len, 1),
				    c.sm_scale * ATTN_LOG2E };
	float o[MLA_COLUMNS / 8][4] = {};
	struct mla_state w = mla_begin(c, t);
	uint32_t p[MLA_KEYS / 16][4];
	int i = 1;

	if (t.count) {
		ptx_mbarrier_wait(mla_q_full(smem), 0);
		if (group == 0) {
			mla_own_tile<dtype, fetch, true>(o, c, t, &w, x, 0);
			i = 2;
		}
		for (; i < t.count; i += 2)
			mla_own_tile<dtype, fetch, false>(o, c, t, &w, x, i);
		if (i == t.count) {
			mla_clear_tail<fetch>(t, smem, i - 1, group, group);
			mla_add_theirs<dtype, fetch>(o, p, &w, x, i - 1);
			mla_end_pv<0, fetch>(o, x, i - 1);
		}
		mla_join_sums(&w, smem, group);
	}
	mla_finish<dtype>(o, c, t, w, group);
}

#endif
