/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_bwd_q - dq. A CTA owns 128 tokens of one head and walks over the keys that they see.
 *
 *   key tile:  S = Q K^T, dP = dO V^T | P = exp(S - lse), dS = P (dP - delta) f | dQ += dS K
 *
 * There are two consumer warpgroups of 64 tokens each, and a producer warp. S, dP and dQ stay in registers,
 * and dS becomes the A operand of the third product without moving; K is read in both orders.
 *
 * Shared memory: Q, dO of the CTA's rows; two stages of K and V. mbarriers: full_q; full and empty of each
 * stage; landed, on which the producer waits for a tile in which it overwrites rows.
 */
#include "fused/attention/backward/attn_bwd_tile.cuh"

template <int qk_, int v_, int keys_> struct q_form {
	static constexpr int qk = qk_, v = v_, keys = keys_, rows = 128, stages = 2, threads = 384;
	static constexpr int qk_panels = (qk + 63) / 64, v_panels = (v + 63) / 64;
	static constexpr int q_bytes = qk_panels * rows * ATTN_PANEL, do_bytes = v_panels * rows * ATTN_PANEL;
	static constexpr int k_bytes = qk_panels * keys * ATTN_PANEL, v_bytes = v_panels * keys * ATTN_PANEL;
	static constexpr int data_bytes = q_bytes + do_bytes + stages * (k_bytes + v_bytes);
	static constexpr int smem_bytes = data_bytes + 64;
};

/* The CTA's row tile and its keys. */
struct q_tile {
	struct attn_bwd_request r;
	int head, token0, begin, num_tiles;
};

template <class F> ATTN_DEV struct q_tile q_tile_of(const struct attn_bwd_call &a)
{
	int i = a.first + blockIdx.x, last, end;
	struct q_tile t;

	t.head = i % a.num_qo_heads;
	i /= a.num_qo_heads;
	t.r = attn_bwd_load(a, i % a.batch);
	t.token0 = (a.tiles - 1 - i / a.batch) * F::rows;	/* last rows first: they see the most keys */
	last = min(t.r.qo_len, t.token0 + F::rows) - 1;
	t.begin = attn_first_key(t.token0, t.r.qo_len, t.r.kv_len, a.window);
	end = attn_visible(last, t.r.qo_len, t.r.kv_len, a.causal);
	t.num_tiles = end > t.begin ? attn_div_up(end - t.begin, F::keys) : 0;
	return t;
}

template <class F>
ATTN_DEV void q_produce(const struct attn_bwd_call &a, const struct attn_bwd_maps &maps,
			const struct q_tile &t, uint32_t s_data, uint32_t bars)
{
	const uint32_t s_k = s_data + F::q_bytes + F::do_bytes, s_v = s_k + F::stages * F::k_bytes;
	const bool leader = threadIdx.x % 32 == 0;
	struct attn_place k = { 0, 1 };
	int kv_head = t.head / a.group;
	uint32_t landed = 0;

	if (leader && t.num_tiles) {
		ptx_mbarrier_arrive_expect_tx(bars, F::q_bytes + F::do_bytes);
		attn_bwd_copy<F::qk_panels, F::rows>(&maps.q, s_data, t.head, t.r.qo_first + t.token0, bars);
		attn_bwd_copy<F::v_panels, F::rows>(&maps.dout, s_data + F::q_bytes, t.head,
						    t.r.qo_first + t.token0, bars);
	}
	for (int i = 0; i < t.num_tiles; i++) {
		int key = t.begin + i * F::keys, left = t.r.kv_len - key;
		uint32_t full = bars + 8 + 8 * k.stage, mbar = left < F::keys ? bars + 40 : full;
		uint32_t s_tile = s_k + k.stage * F::k_bytes;

		ptx_mbarrier_wait(bars + 24 + 8 * k.stage, k.phase);
		if (leader) {
			ptx_mbarrier_arrive_expect_tx(mbar, F::k_bytes + F::v_bytes);
			attn_bwd_copy<F::qk_panels, F::keys>(&maps.k, s_tile, t.r.kv_first + key, kv_head,
							     mbar);
			attn_bwd_copy<F::v_panels, F::keys>(&maps.v, s_v + k.stage * F::v_bytes,
							    t.r.kv_first + key, kv_head, mbar);
		}
		if (left < F::keys) {
			ptx_mbarrier_wait(bars + 40, landed);
			landed ^= 1;
			attn_bwd_clear<F::qk_panels, F::keys>(s_tile, left, F::keys);
			ptx_fence_proxy_async_shared_cta();
			__syncwarp();
			if (leader)
				ptx_mbarrier_arrive(full);
		}
		attn_advance<F::stages>(&k);
	}
}

/* Turns S and dP of a key tile into dS, which replaces dP. */
template <int keys>
ATTN_DEV void q_bend(const struct attn_bwd_call &a, float (*s)[4], float (*dp)[4], const float lse[2],
		     const float delta[2], const struct attn_sight &w, int key)
{
	bool all = key + keys <= w.all_end && key >= w.all_first;

	key += threadIdx.x % 4 * 2;
#pragma unroll
	for (int i = 0; i < keys / 2; i++) {
		int half = i % 4 / 2, at = key + i / 4 * 8 + i % 2;
		float f, p = attn_bwd_p(a, s[i / 4][i % 4], lse[half], a.cap, &f);
		float ds = p * (dp[i / 4][i % 4] - delta[half]) * f;

		dp[i / 4][i % 4] = all || (uint32_t)(at - w.first[half]) < (uint32_t)w.span[half] ? ds : 0;
	}
}

template <int dtype, class F>
ATTN_DEV void q_consume(const struct attn_bwd_call &a, const struct q_tile &t, uint32_t s_data, uint32_t bars)
{
	const int group = __shfl_sync(~0u, threadIdx.x / 128, 0), thread = threadIdx.x % 128;
	const uint32_t s_q = s_data + group * 64 * ATTN_PANEL, s_do = s_q + F::q_bytes;
	const uint32_t s_k = s_data + F::q_bytes + F::do_bytes, s_v = s_k + F::stages * F::k_bytes;
	const int token0 = t.token0 + group * 64, token = token0 + thread / 32 * 16 + thread % 32 / 4;
	float dq[F::qk / 8][4] = {}, s[F::keys / 8][4], dp[F::keys / 8][4], lse[2], delta[2];
	struct attn_place k = {};
	struct attn_sight w;

#pragma unroll
	for (int half = 0; half < 2; half++) {
		int at = min(token + half * 8, t.r.qo_len - 1);
		const float *row = attn_bwd_row(a, t.r, t.head, at);

		lse[half] = row[0];
		delta[half] = row[1 << a.token_shift];
		w.first[half] = attn_first_key(at, t.r.qo_len, t.r.kv_len, a.window);
		w.span[half] = max(0, attn_visible(at, t.r.qo_len, t.r.kv_len, a.causal) - w.first[half]);
	}
	w.all_first = attn_first_key(token0 + 63, t.r.qo_len, t.r.kv_len, a.window);
	w.all_end = attn_visible(token0, t.r.qo_len, t.r.kv_len, a.causal);
	if (t.num_tiles)
		ptx_mbarrier_wait(bars, 0);
	for (int i = 0; i < t.num_tiles; i++) {
		uint32_t ds[F::keys / 16][4];

		ptx_mbarrier_wait(bars + 8 + 8 * k.stage, k.phase);
		attn_bwd_issue_ss<dtype, F::keys, F::qk, F::rows, F::keys>(s[0], s_q,
									   s_k + k.stage * F::k_bytes);
		attn_bwd_issue_ss<dtype, F::keys, F::v, F::rows, F::keys>(dp[0], s_do,
									  s_v + k.stage * F::v_bytes);
		ptx_wgmma_wait_group<0>();
		wgmma_keep<F::keys / 2>(s[0]);
		wgmma_keep<F::keys / 2>(dp[0]);
		q_bend<F::keys>(a, s, dp, lse, delta, w, t.begin + i * F::keys);
#pragma unroll
		for (int j = 0; j < F::keys / 16; j++)
			attn_p_fragment<dtype>(ds[j], dp + 2 * j);
		attn_bwd_issue_rs<dtype, F::qk, F::keys>(dq[0], ds, s_k + k.stage * F::k_bytes);
		ptx_wgmma_wait_group<0>();
		wgmma_keep<F::qk / 2>(dq[0]);
		elected_arrive(bars + 24 + 8 * k.stage);
		attn_advance<F::stages>(&k);
	}
	attn_bwd_write<dtype, F::qk>(a.dq, dq, (int64_t)(t.r.qo_first + token0) * a.num_qo_heads + t.head,
				     a.num_qo_heads, t.r.qo_len - token0, a.qk_dim, a.sm_scale);
}

template <int dtype, class F>
static __global__ __launch_bounds__(F::threads, 1) void
attn_bwd_q_kernel(const __grid_constant__ struct attn_bwd_call a,
		  const __grid_constant__ struct attn_bwd_maps maps)
{
	extern __shared__ __align__(1024) uint8_t s_all[];
	const uint32_t s_data = ptx_smem(s_all), bars = s_data + F::data_bytes;
	struct q_tile t;

	if (threadIdx.x == 0) {
		ptx_mbarrier_init(bars, 1);
		for (int i = 0; i < F::stages; i++) {
			ptx_mbarrier_init(bars + 8 + 8 * i, 1);
			ptx_mbarrier_init(bars + 24 + 8 * i, 8 * ELECTED_LANES);
		}
		ptx_mbarrier_init(bars + 40, 1);
		ptx_fence_mbarrier_init_release_cluster();
	}
	__syncthreads();
	ptx_griddepcontrol_wait();
	t = q_tile_of<F>(a);
	if (t.token0 >= t.r.qo_len)
		return;
	if (threadIdx.x >= 256) {
		ptx_setmaxnreg_dec<40>();
		if (threadIdx.x < 288)
			q_produce<F>(a, maps, t, s_data, bars);
	} else {
		ptx_setmaxnreg_inc<232>();
		q_consume<dtype, F>(a, t, s_data, bars);
	}
}

template <class F> static struct attn_bwd_kernel instance(void)
{
	return { { (const void *)attn_bwd_q_kernel<CAIRN_F16, F>,
		   (const void *)attn_bwd_q_kernel<CAIRN_BF16, F> },
		 F::rows, F::keys, F::rows, F::threads, F::smem_bytes };
}

struct attn_bwd_kernel attn_bwd_q_192_128(void) { return instance<q_form<192, 128, 64>>(); }
struct attn_bwd_kernel attn_bwd_q_256(void) { return instance<q_form<256, 256, 32>>(); }
