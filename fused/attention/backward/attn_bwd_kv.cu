/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_bwd_kv - dk and dv. A CTA owns some keys of one KV head and walks over the tokens that see them, one
 * head of the group after the other.
 *
 *   token tile:  S^T = K Q^T, dP^T = V dO^T | P = exp(S - lse) | dV += P dO | dS = P (dP - delta) f |
 *                dK += dS Q
 *
 * The rows of the products are keys, so P and dS are already in the register layout of A operands; Q and dO
 * are read in both orders. There are two consumer warpgroups and a producer warp. Up to 192 dimensions, each
 * warpgroup owns 64 keys. Above 192, dK and dV together do not fit one thread's registers: both warpgroups
 * have the same 64 keys; the first computes dK, the second dV.
 *
 * lse and delta of a tile's tokens lie beside it in shared memory. For tokens past the request, lse is
 * infinite, so that p is 0, and Q and dO are zeros.
 *
 * Shared memory: K, V of the CTA; two stages of Q, dO, lse, delta. mbarriers: full_kv; full (32 arrivals, of
 * the producer's lanes) and empty of each stage; landed, as in attn_bwd_q.cu.
 */
#include "fused/attention/backward/attn_bwd_keys.cuh"

template <int qk_, int v_, int tokens_, int split_> struct kv_form {
	static constexpr int qk = qk_, v = v_, tokens = tokens_, split = split_, stages = 2, threads = 384;
	static constexpr int keys = split ? 64 : 128;
	static constexpr int qk_panels = (qk + 63) / 64, v_panels = (v + 63) / 64;
	static constexpr int k_bytes = qk_panels * keys * ATTN_PANEL, v_bytes = v_panels * keys * ATTN_PANEL;
	static constexpr int q_bytes = qk_panels * tokens * ATTN_PANEL;
	static constexpr int do_bytes = v_panels * tokens * ATTN_PANEL;
	static constexpr int row_bytes = tokens * 8;	/* lse and delta of a stage */
	static constexpr int at_q = k_bytes + v_bytes, at_do = at_q + stages * q_bytes;
	static constexpr int at_rows = at_do + stages * do_bytes, at_bars = at_rows + stages * row_bytes;
	static constexpr int smem_bytes = at_bars + 64;
};

/* The CTA's keys, and the tokens that see any of them. */
struct kv_tile {
	struct attn_bwd_request r;
	int kv_head, key0, begin, num_tiles;	/* num_tiles: token tiles of each head */
};

template <class F> ATTN_DEV struct kv_tile kv_tile_of(const struct attn_bwd_call &a)
{
	int i = a.first + blockIdx.x, end;
	struct kv_tile t;

	t.kv_head = i % a.num_kv_heads;
	i /= a.num_kv_heads;
	t.r = attn_bwd_load(a, i % a.batch);
	t.key0 = i / a.batch * F::keys;		/* first keys first: with causal, most tokens see them */
	t.begin = attn_bwd_first_token(a, t.r, t.key0);
	end = attn_bwd_end_token(a, t.r, min(t.r.kv_len, t.key0 + F::keys) - 1);
	t.num_tiles = end > t.begin ? attn_div_up(end - t.begin, F::tokens) : 0;
	return t;
}

template <class F>
ATTN_DEV void kv_produce(const struct attn_bwd_call &a, const struct attn_bwd_maps &maps,
			 const struct kv_tile &t, uint32_t s_data)
{
	const uint32_t bars = s_data + F::at_bars;
	const int lane = threadIdx.x % 32;
	struct attn_place q = { 0, 1 };
	uint32_t landed = 0;

	if (lane == 0) {
		ptx_mbarrier_arrive_expect_tx(bars, F::k_bytes + F::v_bytes);
		attn_bwd_copy<F::qk_panels, F::keys>(&maps.k, s_data, t.r.kv_first + t.key0, t.kv_head, bars);
		attn_bwd_copy<F::v_panels, F::keys>(&maps.v, s_data + F::k_bytes, t.r.kv_first + t.key0,
						    t.kv_head, bars);
	}
	for (int i = 0, head = t.kv_head * a.group, token = t.begin; i < a.group * t.num_tiles; i++) {
		int left = t.r.qo_len - token, y = t.r.qo_first + token;
		uint32_t s_q = s_data + F::at_q + q.stage * F::q_bytes;
		uint32_t s_do = s_data + F::at_do + q.stage * F::do_bytes;
		uint32_t s_rows = s_data + F::at_rows + q.stage * F::row_bytes;
		uint32_t full = bars + 8 + 8 * q.stage, mbar = left < F::tokens ? bars + 40 : full;

		ptx_mbarrier_wait(bars + 24 + 8 * q.stage, q.phase);
		if (lane == 0) {
			if (left < F::tokens)
				ptx_mbarrier_arrive_expect_tx(mbar, F::q_bytes + F::do_bytes);
			else
				ptx_mbarrier_expect_tx(mbar, F::q_bytes + F::do_bytes);
			attn_bwd_copy<F::qk_panels, F::tokens>(&maps.q, s_q, head, y, mbar);
			attn_bwd_copy<F::v_panels, F::tokens>(&maps.dout, s_do, head, y, mbar);
		}
#pragma unroll
		for (int j = 0; j < F::tokens; j += 32) {
			int at = j + lane;
			const float *row = attn_bwd_row(a, t.r, head, token + at);
			bool in = at < left;

			ptx_st_shared_f32(s_rows + at * 4, in ? row[0] : CUDART_INF_F);
			ptx_st_shared_f32(s_rows + (F::tokens + at) * 4, in ? row[1 << a.token_shift] : 0);
		}
		if (left < F::tokens) {
			ptx_mbarrier_wait(bars + 40, landed);
			landed ^= 1;
			attn_bwd_clear<F::qk_panels, F::tokens>(s_q, left, F::tokens);
			attn_bwd_clear<F::v_panels, F::tokens>(s_do, left, F::tokens);
			ptx_fence_proxy_async_shared_cta();
		}
		__syncwarp();
		ptx_mbarrier_arrive(full);
		attn_advance<F::stages>(&q);
		token += F::tokens;
		if (token >= t.begin + t.num_tiles * F::tokens) {
			token = t.begin;
			head++;
		}
	}
}

/* A consumer warpgroup: computes dK of its 64 keys if with_k, dV if with_v. */
template <int dtype, class F, bool with_k, bool with_v>
ATTN_DEV void kv_consume(const struct attn_bwd_call &a, const struct kv_tile &t, uint32_t s_data, int key_row)
{
	const uint32_t bars = s_data + F::at_bars, s_k = s_data + key_row * ATTN_PANEL;
	const uint32_t s_v = s_k + F::k_bytes;
	const struct attn_bwd_sight w = attn_bwd_look(a, t.r, t.key0 + key_row);
	float dk[with_k ? F::qk / 8 : 1][4] = {}, dv[with_v ? F::v / 8 : 1][4] = {};
	float s[F::tokens / 8][4], dp[F::tokens / 8][4];
	int64_t row = ((int64_t)t.r.kv_first + t.key0 + key_row) * a.num_kv_heads + t.kv_head;
	int rows = t.r.kv_len - t.key0 - key_row, nth = 0;
	struct attn_place q = {};

	ptx_mbarrier_wait(bars, 0);
	for (int i = 0; i < a.group * t.num_tiles; i++) {
		int token = t.begin + nth * F::tokens;
		uint32_t s_q = s_data + F::at_q + q.stage * F::q_bytes, p[F::tokens / 16][4];
		uint32_t s_do = s_data + F::at_do + q.stage * F::do_bytes;
		uint32_t s_rows = s_data + F::at_rows + q.stage * F::row_bytes;
		bool all;

		nth = nth + 1 == t.num_tiles ? 0 : nth + 1;
		ptx_mbarrier_wait(bars + 8 + 8 * q.stage, q.phase);
		attn_bwd_issue_ss<dtype, F::tokens, F::qk, F::keys, F::tokens>(s[0], s_k, s_q);
		if (with_k) {
			attn_bwd_issue_ss<dtype, F::tokens, F::v, F::keys, F::tokens>(dp[0], s_v, s_do);
			ptx_wgmma_wait_group<1>();
		} else {
			ptx_wgmma_wait_group<0>();
		}
		wgmma_keep<F::tokens / 2>(s[0]);
		all = attn_bwd_all(w, token, token + F::tokens);
		attn_bwd_bend<dtype, F::tokens>(a, t.r, s, p, t.key0 + key_row, token, s_rows, all);
		ptx_wgmma_wait_group<0>();
		if (with_k)
			wgmma_keep<F::tokens / 2>(dp[0]);
		if (with_v)
			attn_bwd_issue_rs<dtype, F::v, F::tokens>(dv[0], p, s_do);
		if (with_k) {
			uint32_t ds[F::tokens / 16][4];

			attn_bwd_ds<dtype, F::tokens>(dp, s, ds, s_rows + F::tokens * 4, all);
			attn_bwd_issue_rs<dtype, F::qk, F::tokens>(dk[0], ds, s_q);
		}
		ptx_wgmma_wait_group<0>();
		if (with_v)
			wgmma_keep<F::v / 2>(dv[0]);
		if (with_k)
			wgmma_keep<F::qk / 2>(dk[0]);
		elected_arrive(bars + 24 + 8 * q.stage);
		attn_advance<F::stages>(&q);
	}
	if (with_k)
		attn_bwd_write<dtype, F::qk>(a.dk, dk, row, a.num_kv_heads, rows, a.qk_dim, a.sm_scale);
	if (with_v)
		attn_bwd_write<dtype, F::v>(a.dv, dv, row, a.num_kv_heads, rows, a.v_dim, 1);
}

template <int dtype, class F>
static __global__ __launch_bounds__(F::threads, 1) void
attn_bwd_kv_kernel(const __grid_constant__ struct attn_bwd_call a,
		   const __grid_constant__ struct attn_bwd_maps maps)
{
	extern __shared__ __align__(1024) uint8_t s_all[];
	const uint32_t s_data = ptx_smem(s_all), bars = s_data + F::at_bars;
	const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
	struct kv_tile t;

	if (threadIdx.x == 0) {
		ptx_mbarrier_init(bars, 1);
		for (int i = 0; i < F::stages; i++) {
			ptx_mbarrier_init(bars + 8 + 8 * i, 32);
			ptx_mbarrier_init(bars + 24 + 8 * i, 8 * ELECTED_LANES);
		}
		ptx_mbarrier_init(bars + 40, 1);
		ptx_fence_mbarrier_init_release_cluster();
	}
	__syncthreads();
	ptx_griddepcontrol_wait();
	t = kv_tile_of<F>(a);
	if (t.key0 >= t.r.kv_len)
		return;
	if (group == 2) {
		ptx_setmaxnreg_dec<24>();
		if (threadIdx.x < 288)
			kv_produce<F>(a, maps, t, s_data);
	} else {
		ptx_setmaxnreg_inc<240>();
		if (!F::split)
			kv_consume<dtype, F, true, true>(a, t, s_data, group * 64);
		else if (group == 0)
			kv_consume<dtype, F, true, false>(a, t, s_data, 0);
		else
			kv_consume<dtype, F, false, true>(a, t, s_data, 0);
	}
}

template <class F> static struct attn_bwd_kernel instance(void)
{
	return { { (const void *)attn_bwd_kv_kernel<CAIRN_F16, F>,
		   (const void *)attn_bwd_kv_kernel<CAIRN_BF16, F> },
		 F::tokens, F::keys, F::keys, F::threads, F::smem_bytes };
}

struct attn_bwd_kernel attn_bwd_kv_192_128(void) { return instance<kv_form<192, 128, 32, 0>>(); }
struct attn_bwd_kernel attn_bwd_kv_256(void) { return instance<kv_form<256, 256, 64, 1>>(); }
