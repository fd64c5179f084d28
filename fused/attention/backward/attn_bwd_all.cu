/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_bwd_all - dq, dk and dv in five products. A CTA owns 128 keys of one KV head. It walks over the token
 * tiles that see these keys, from the last to the first, and within each tile over the heads of the group.
 *
 *   step n, a warpgroup:  wait for the turn | start dQ(n-1) = dS K, dK += dS Q, dV += P dO | start S = K Q^T
 *                         of step n+1 | pass the turn on | hand out dQ(n-1) | start dP = V dO^T of step n+1 |
 *                         P = exp(S - lse) | dS = P (dP - delta) f | dS to shared memory
 *
 * Each of the two consumer warpgroups owns 64 keys. The rows of S, dP, dK and dV are keys, so P and dS are
 * already in the register layout of A operands. dQ is a sum over the keys of both warpgroups and needs the dS
 * of both, so it is computed one step later; each warpgroup computes one of its two blocks of 64 x 64. The
 * warpgroups take turns, so that the exponentials of one overlap the products of the other. No product is in
 * flight at the end of a step, because ptxas would otherwise serialize the products.
 *
 * dq: the CTAs of a head add their blocks to a sum in the workspace, in the order of their keys, so that the
 * result is repeatable. turns[tile] counts the CTAs that have added their blocks. A CTA waits only for CTAs
 * of smaller numbers, which started before it. Neighbours in this order reach the same tile one step apart,
 * so after the first steps they no longer wait for each other. The first CTA stores instead of adding. A
 * block is stored in the order of the accumulators' registers, [8 columns][128 threads][4];
 * attn_bwd_launch_dq() brings it into the order of dq.
 *
 * Warps of the last warpgroup: one fetches, and two add dq. Each of the two adds every other step, because an
 * addition and the wait for its turn together take longer than a step.
 *
 * mbarriers: full_kv; full and empty of Q (with lse and delta) and of dO; ready and free of dS; full and free
 * of dQ; landed, on which the producer waits for tiles in which it overwrites rows.
 */
#include "fused/attention/backward/attn_bwd_keys.cuh"

template <int qk_, int v_, int tokens_> struct all_form {
	static constexpr int qk = qk_, v = v_, tokens = tokens_, parts = tokens / 64, keys = 128;
	static constexpr int threads = 384;
	static constexpr int qk_panels = qk / 64, v_panels = v / 64;
	static constexpr int k_bytes = qk_panels * keys * ATTN_PANEL, v_bytes = v_panels * keys * ATTN_PANEL;
	static constexpr int q_bytes = qk_panels * tokens * ATTN_PANEL;
	static constexpr int do_bytes = v_panels * tokens * ATTN_PANEL;
	static constexpr int ds_bytes = parts * keys * ATTN_PANEL, row_bytes = tokens * 8;
	static constexpr int at_v = k_bytes, at_q = at_v + v_bytes, at_do = at_q + 2 * q_bytes;
	static constexpr int at_ds = at_do + 2 * do_bytes, at_dq = at_ds + 2 * ds_bytes;
	static constexpr int at_rows = at_dq + 2 * ATTN_BWD_DQ_BYTES, at_bars = at_rows + 2 * row_bytes;
	/* mbarriers: full_kv and landed are single, the others have one for each of two stages */
	static constexpr int full_kv = at_bars, landed = at_bars + 8, full_q = at_bars + 16;
	static constexpr int empty_q = full_q + 16, full_do = full_q + 32, empty_do = full_q + 48;
	static constexpr int ready_ds = full_q + 64, free_ds = full_q + 80;
	static constexpr int full_dq = full_q + 96, free_dq = full_q + 112;
	static constexpr int at_tile = full_q + 128, smem_bytes = at_tile + 64;
	static_assert(qk_panels * parts == 2, "a tile of dq is a block of 64 x 64 for each warpgroup");
	static_assert(smem_bytes <= 232448, "shared memory of a CTA");
};

/* The CTA's keys, and the token tiles that see any of them. It is in shared memory to save registers. */
struct all_tile {
	struct attn_bwd_request r;
	int kv_head, nth, key0;		/* nth: the key tile's number in its request */
	int begin, num_tiles, steps;	/* first token tile; token tiles of a head; of all heads */
	struct attn_bwd_sight sight[2];	/* of each warpgroup's keys */
};

template <class F> ATTN_DEV struct all_tile all_tile_of(const struct attn_bwd_call &a)
{
	int i = a.first + blockIdx.x, s = i / (a.tiles * a.section) * a.section, end;
	int size = min(a.section, a.batch * a.num_kv_heads - s);
	struct all_tile t;

	i -= s * a.tiles;
	t.nth = i / size;		/* the first keys come first: with causal, most tokens see them */
	s += i % size;
	t.kv_head = s % a.num_kv_heads;
	t.r = attn_bwd_load(a, s / a.num_kv_heads);
	t.key0 = t.nth * F::keys;
	t.begin = attn_bwd_first_token(a, t.r, t.key0) / F::tokens;
	end = attn_div_up(attn_bwd_end_token(a, t.r, min(t.r.kv_len, t.key0 + F::keys) - 1), F::tokens);
	t.num_tiles = max(0, end - t.begin);
	t.steps = t.num_tiles * a.group;
	for (int group = 0; group < 2; group++)
		t.sight[group] = attn_bwd_look(a, t.r, t.key0 + group * 64);
	return t;
}

/*
 * A place in the walk. The walk begins with the last tile of the first head, then takes that tile of the next
 * head of the group. So all CTAs of a KV head reach a tile at the same step, however many tiles they have.
 */
struct all_walk {
	int head, tile;
};

ATTN_DEV struct all_walk all_start(const struct attn_bwd_call &a, const struct all_tile &t)
{
	return { t.kv_head * a.group, t.begin + t.num_tiles - 1 };
}

ATTN_DEV void all_next(const struct attn_bwd_call &a, const struct all_tile &t, struct all_walk *w)
{
	if (++w->head == (t.kv_head + 1) * a.group) {
		w->head -= a.group;
		w->tile--;
	}
}

/* Returns the index of the token tile in the arrays of the workspace. */
ATTN_DEV int64_t all_place(const struct attn_bwd_call &a, const struct all_tile &t, const struct all_walk &w)
{
	return (int64_t)w.head * a.token_tiles + (t.r.token_tile + w.tile);
}

/*
 * Fetches K and V, and clears the rows of K that no token sees: they may hold NaN, and dQ is a sum over all
 * rows of K.
 */
template <class F>
ATTN_DEV void all_fetch_keys(const struct attn_bwd_call &a, const struct attn_bwd_maps &maps,
			     const struct all_tile &t, uint32_t s_data)
{
	int first = max(0, attn_first_key(0, t.r.qo_len, t.r.kv_len, a.window) - t.key0);
	int end = min(F::keys, t.r.kv_len - t.key0);
	uint32_t full = s_data + F::full_kv, mbar = first > 0 || end < F::keys ? s_data + F::landed : full;
	bool leader = threadIdx.x % 32 == 0;

	if (leader) {
		ptx_mbarrier_arrive_expect_tx(mbar, F::k_bytes + F::v_bytes);
		attn_bwd_copy<F::qk_panels, F::keys>(&maps.k, s_data, t.r.kv_first + t.key0, t.kv_head, mbar);
		attn_bwd_copy<F::v_panels, F::keys>(&maps.v, s_data + F::at_v, t.r.kv_first + t.key0,
						    t.kv_head, mbar);
	}
	if (mbar == full)
		return;
	ptx_mbarrier_wait(mbar, 0);
	attn_bwd_clear<F::qk_panels, F::keys>(s_data, 0, min(first, F::keys));
	attn_bwd_clear<F::qk_panels, F::keys>(s_data, end, F::keys);
	ptx_fence_proxy_async_shared_cta();
	__syncwarp();
	if (leader)
		ptx_mbarrier_arrive(full);
}

template <class F>
ATTN_DEV void all_produce(const struct attn_bwd_call &a, const struct attn_bwd_maps &maps,
			  const struct all_tile &t, uint32_t s_data)
{
	const bool leader = threadIdx.x % 32 == 0;
	struct all_walk w = all_start(a, t);
	uint32_t landed = s_data + F::landed, landed_phase;

	if (!t.steps)		/* no consumer would wait for the keys */
		return;
	all_fetch_keys<F>(a, maps, t, s_data);
	landed_phase = ptx_mbarrier_test_wait_parity(landed, 0);	/* 1 if fetching the keys used it */
	for (int i = 0; i < t.steps; i++) {
		int stage = i & 1, token = w.tile * F::tokens, left = t.r.qo_len - token;
		uint32_t s_q = s_data + F::at_q + stage * F::q_bytes, phase = (i >> 1 & 1) ^ 1;
		uint32_t s_do = s_data + F::at_do + stage * F::do_bytes;
		uint32_t full_q = s_data + F::full_q + 8 * stage, full_do = full_q + F::full_do - F::full_q;
		bool part = left < F::tokens;

		ptx_mbarrier_wait(s_data + F::empty_q + 8 * stage, phase);
		if (leader) {
			uint32_t mbar = part ? landed : full_q;

			ptx_mbarrier_arrive_expect_tx(mbar, F::q_bytes + F::row_bytes +
							    (part ? F::do_bytes : 0));
			attn_bwd_copy<F::qk_panels, F::tokens>(&maps.q, s_q, w.head, t.r.qo_first + token,
							       mbar);
			ptx_cp_async_bulk_g2s(s_data + F::at_rows + stage * F::row_bytes,
					      a.rows + all_place(a, t, w) * (2 * F::tokens), F::row_bytes,
					      mbar);
		}
		ptx_mbarrier_wait(s_data + F::empty_do + 8 * stage, phase);
		if (leader) {
			uint32_t mbar = part ? landed : full_do;

			if (!part)
				ptx_mbarrier_arrive_expect_tx(mbar, F::do_bytes);
			attn_bwd_copy<F::v_panels, F::tokens>(&maps.dout, s_do, w.head, t.r.qo_first + token,
							      mbar);
		}
		if (part) {
			ptx_mbarrier_wait(landed, landed_phase);
			landed_phase ^= 1;
			attn_bwd_clear<F::qk_panels, F::tokens>(s_q, left, F::tokens);
			attn_bwd_clear<F::v_panels, F::tokens>(s_do, left, F::tokens);
			ptx_fence_proxy_async_shared_cta();
			__syncwarp();
			if (leader) {
				ptx_mbarrier_arrive(full_q);
				ptx_mbarrier_arrive(full_do);
			}
		}
		all_next(a, t, &w);
	}
}

ATTN_DEV void all_wait_turn(const uint32_t *turn, uint32_t nth)
{
	int64_t start = ptx_clock64();

	while (ptx_ld_acquire_gpu_u32(turn) != nth)
		ptx_spin_check(start, "turn to add dq (key tiles before)", nth, 0);
	ptx_fence_proxy_async_global();
}

/*
 * Adds the dQ of every other step (those that use `stage`), each when it is its turn; called by one thread.
 */
template <class F>
ATTN_DEV void all_add_dq(const struct attn_bwd_call &a, const struct all_tile &t, uint32_t s_data, int stage)
{
	const uint32_t s_dq = s_data + F::at_dq + stage * ATTN_BWD_DQ_BYTES;
	struct all_walk w = all_start(a, t);

	if (stage)
		all_next(a, t, &w);
	for (int i = stage; i < t.steps; i += 2) {
		int64_t place = all_place(a, t, w);
		uint32_t nth = t.nth - attn_first_key(w.tile * F::tokens, t.r.qo_len, t.r.kv_len, a.window) /
				       F::keys;
		float *sum = a.dq_sum + place * (ATTN_BWD_DQ_BYTES / 4);

		if (nth)
			all_wait_turn(a.turns + place, nth);
		ptx_mbarrier_wait(s_data + F::full_dq + 8 * stage, i >> 1 & 1);
		if (nth)
			ptx_cp_reduce_async_bulk_s2g_add_f32(sum, s_dq, ATTN_BWD_DQ_BYTES);
		else
			ptx_cp_async_bulk_s2g(sum, s_dq, ATTN_BWD_DQ_BYTES);
		ptx_cp_async_bulk_commit_group();
		ptx_cp_async_bulk_wait_group_read<0>();
		ptx_mbarrier_arrive(s_data + F::free_dq + 8 * stage);
		ptx_cp_async_bulk_wait_group<0>();
		ptx_fence_proxy_async_global();
		ptx_st_release_gpu_u32(a.turns + place, nth + 1);
		all_next(a, t, &w);
		all_next(a, t, &w);
	}
}

/* Starts the product S for 64 tokens of a stage; all_issue_dp() starts dP. */
template <int dtype, class F>
ATTN_DEV void all_issue_s(float (*s)[4], uint32_t s_data, int group, int stage, int part)
{
	uint32_t s_q = s_data + F::at_q + stage * F::q_bytes + part * 64 * ATTN_PANEL;

	attn_bwd_issue_ss<dtype, 64, F::qk, F::keys, F::tokens>(s[0], s_data + group * 64 * ATTN_PANEL, s_q);
}

template <int dtype, class F>
ATTN_DEV void all_issue_dp(float (*dp)[4], uint32_t s_data, int group, int stage, int part)
{
	uint32_t s_v = s_data + F::at_v + group * 64 * ATTN_PANEL;
	uint32_t s_do = s_data + F::at_do + stage * F::do_bytes + part * 64 * ATTN_PANEL;

	attn_bwd_issue_ss<dtype, 64, F::v, F::keys, F::tokens>(dp[0], s_v, s_do);
}

/* Starts dQ of a stage: the rows are the tokens of dS, the columns those of K. */
template <int dtype, class F>
ATTN_DEV void all_issue_dq(float (*dq)[4], uint32_t s_data, int group, int stage)
{
	const int panel = group * F::keys * ATTN_PANEL;

	attn_bwd_issue_tt<dtype, F::keys>(dq[0], s_data + F::at_ds + stage * F::ds_bytes +
					  (F::parts == 2 ? panel : 0), s_data + (F::parts == 2 ? 0 : panel));
}

/* Writes the fragments of dS of step i to shared memory, for both warpgroups. */
template <class F> ATTN_DEV void all_share_ds(const uint32_t (*ds)[4], uint32_t s_data, int group, int i)
{
	const uint32_t thread = attn_thread(), lane = thread % 32, stage = i & 1;
	uint32_t row = group * 64 + thread / 32 * 16 + lane / 8 % 2 * 8 + lane % 8;
	uint32_t to = s_data + F::at_ds + stage * F::ds_bytes + row * ATTN_PANEL +
		      ((lane / 16 ^ lane % 8) << 4);

	ptx_mbarrier_wait(s_data + F::free_ds + 8 * stage, (i >> 1 & 1) ^ 1);
#pragma unroll
	for (int j = 0; j < F::tokens / 16; j++)
		ptx_stmatrix_x4((to + j / 4 * F::keys * ATTN_PANEL) ^ (j % 4 << 5), ds[j]);
	ptx_fence_proxy_async_shared_cta();
	elected_arrive(s_data + F::ready_ds + 8 * stage);
}

/*
 * Turns S and dP of step i into fragments of P and dS, and shares dS. S and dP of the first 64 tokens must be
 * in flight; this function starts those of the other tokens.
 */
template <int dtype, class F>
ATTN_DEV void all_bend(const struct attn_bwd_call &a, const struct all_tile &t, float (*s)[8][4],
		       float (*dp)[8][4], uint32_t (*p)[4], uint32_t (*ds)[4], uint32_t s_data, int group,
		       int tile, int i)
{
	const int stage = i & 1;
	uint32_t s_rows = s_data + F::at_rows + stage * F::row_bytes;

#pragma unroll
	for (int part = 0; part < F::parts; part++) {
		const bool more = part + 1 < F::parts;
		const int token = tile * F::tokens + part * 64;
		const bool all = attn_bwd_all(t.sight[group], token, token + 64);

		ptx_wgmma_wait_group<1>();
		wgmma_keep<32>(s[part][0]);
		attn_bwd_bend<dtype, 64>(a, t.r, s[part], p + part * 4, t.key0 + group * 64, token,
					 s_rows + part * 256, all);
		if (more) {
			all_issue_s<dtype, F>(s[part + 1], s_data, group, stage, part + 1);
			ptx_wgmma_wait_group<1>();
		} else {
			ptx_wgmma_wait_group<0>();
		}
		wgmma_keep<32>(dp[part][0]);
		attn_bwd_ds<dtype, 64>(dp[part], s[part], ds + part * 4, s_rows + F::tokens * 4 + part * 256,
				       all);
		if (more)
			all_issue_dp<dtype, F>(dp[part + 1], s_data, group, stage, part + 1);
	}
	all_share_ds<F>(ds, s_data, group, i);
}

/* Hands the block of dQ of step i to the warp that adds it. */
template <class F> ATTN_DEV void all_share_dq(float (*dq)[4], uint32_t s_data, int group, int i)
{
	int stage = i & 1;
	uint32_t to = s_data + F::at_dq + stage * ATTN_BWD_DQ_BYTES + group * (ATTN_BWD_DQ_BYTES / 2) +
		      attn_thread() * 16;

	ptx_mbarrier_wait(s_data + F::free_dq + 8 * stage, (i >> 1 & 1) ^ 1);
#pragma unroll
	for (int j = 0; j < 8; j++)
		ptx_st_shared_v4(to + j * 2048,
				 make_uint4(__float_as_uint(dq[j][0]), __float_as_uint(dq[j][1]),
					    __float_as_uint(dq[j][2]), __float_as_uint(dq[j][3])));
	ptx_fence_proxy_async_shared_cta();
	elected_arrive(s_data + F::full_dq + 8 * stage);
}

/*
 * Starts dQ of step i - 1, then dK and dV of step i, and waits for dQ and dK. In step 0, dQ is computed from
 * a stage that has not been written, and is discarded: ptxas may serialize products under a condition.
 */
template <int dtype, class F>
ATTN_DEV void all_add_up(float (*dq)[4], float (*dk)[4], float (*dv)[4], const uint32_t (*p)[4],
			 const uint32_t (*ds)[4], uint32_t s_data, int group, int i)
{
	int stage = i & 1, last = stage ^ 1;

	if (i)
		ptx_mbarrier_wait(s_data + F::ready_ds + 8 * last, (i - 1) >> 1 & 1);
	all_issue_dq<dtype, F>(dq, s_data, group, last);
	attn_bwd_issue_rs<dtype, F::qk, F::tokens>(dk[0], ds, s_data + F::at_q + stage * F::q_bytes);
	attn_bwd_issue_rs<dtype, F::v, F::tokens>(dv[0], p, s_data + F::at_do + stage * F::do_bytes);
	ptx_wgmma_wait_group<1>();
	wgmma_keep<32>(dq[0]);
	wgmma_keep<F::qk / 2>(dk[0]);
	if (i)
		elected_arrive(s_data + F::free_ds + 8 * last);
}

/* Writes dK and dV of a warpgroup's 64 keys. */
template <int dtype, class F>
ATTN_DEV void all_write(const struct attn_bwd_call &a, const struct all_tile &t, float (*dk)[4],
			float (*dv)[4], int group)
{
	int64_t row = ((int64_t)t.r.kv_first + t.key0 + group * 64) * a.num_kv_heads + t.kv_head;
	int rows = t.r.kv_len - t.key0 - group * 64;

	attn_bwd_write<dtype, F::qk>(a.dk, dk, row, a.num_kv_heads, rows, a.qk_dim, a.sm_scale);
	attn_bwd_write<dtype, F::v>(a.dv, dv, row, a.num_kv_heads, rows, a.v_dim, 1);
}

template <int dtype, class F>
ATTN_DEV void all_consume(const struct attn_bwd_call &a, const struct all_tile &t, uint32_t s_data, int group)
{
	float dk[F::qk / 8][4] = {}, dv[F::v / 8][4] = {}, dq[8][4];
	float s[F::parts][8][4], dp[F::parts][8][4];
	uint32_t p[F::tokens / 16][4], ds[F::tokens / 16][4];
	struct all_walk at = all_start(a, t);
	int i;

	if (!t.steps) {
		all_write<dtype, F>(a, t, dk, dv, group);
		return;
	}
	if (ATTN_TURNS && group == 1)
		ptx_bar_arrive(ATTN_BAR_TURN, 256);
	ptx_mbarrier_wait(s_data + F::full_kv, 0);
	ptx_mbarrier_wait(s_data + F::full_q, 0);
	ptx_mbarrier_wait(s_data + F::full_do, 0);
	all_issue_s<dtype, F>(s[0], s_data, group, 0, 0);
	all_issue_dp<dtype, F>(dp[0], s_data, group, 0, 0);
	all_bend<dtype, F>(a, t, s, dp, p, ds, s_data, group, at.tile, 0);
	for (i = 0; i + 1 < t.steps; i++) {
		int stage = i & 1, next = stage ^ 1;
		uint32_t next_phase = (i + 1) >> 1 & 1;

		if (ATTN_TURNS)
			ptx_bar_sync(ATTN_BAR_TURN + group, 256);
		all_add_up<dtype, F>(dq, dk, dv, p, ds, s_data, group, i);
		elected_arrive(s_data + F::empty_q + 8 * stage);
		ptx_mbarrier_wait(s_data + F::full_q + 8 * next, next_phase);
		all_issue_s<dtype, F>(s[0], s_data, group, next, 0);
		if (ATTN_TURNS)
			ptx_bar_arrive(ATTN_BAR_TURN + (group ^ 1), 256);
		if (i)
			all_share_dq<F>(dq, s_data, group, i - 1);
		ptx_wgmma_wait_group<1>();
		wgmma_keep<F::v / 2>(dv[0]);
		elected_arrive(s_data + F::empty_do + 8 * stage);
		ptx_mbarrier_wait(s_data + F::full_do + 8 * next, next_phase);
		all_issue_dp<dtype, F>(dp[0], s_data, group, next, 0);
		all_next(a, t, &at);
		all_bend<dtype, F>(a, t, s, dp, p, ds, s_data, group, at.tile, i + 1);
	}
	all_add_up<dtype, F>(dq, dk, dv, p, ds, s_data, group, i);
	if (i)
		all_share_dq<F>(dq, s_data, group, i - 1);
	ptx_wgmma_wait_group<0>();
	wgmma_keep<F::v / 2>(dv[0]);
	ptx_mbarrier_wait(s_data + F::ready_ds + 8 * (i & 1), i >> 1 & 1);
	all_issue_dq<dtype, F>(dq, s_data, group, i & 1);
	ptx_wgmma_wait_group<0>();
	wgmma_keep<32>(dq[0]);
	all_share_dq<F>(dq, s_data, group, i);
	all_write<dtype, F>(a, t, dk, dv, group);
}

template <class F> ATTN_DEV void all_init(uint32_t s_data)
{
	for (int i = 0; i < 2; i++) {
		ptx_mbarrier_init(s_data + F::full_kv + 8 * i, 1);	/* the second one is `landed` */
		ptx_mbarrier_init(s_data + F::full_q + 8 * i, 1);
		ptx_mbarrier_init(s_data + F::full_do + 8 * i, 1);
		ptx_mbarrier_init(s_data + F::empty_q + 8 * i, 8 * ELECTED_LANES);
		ptx_mbarrier_init(s_data + F::empty_do + 8 * i, 8 * ELECTED_LANES);
		ptx_mbarrier_init(s_data + F::ready_ds + 8 * i, 8 * ELECTED_LANES);
		ptx_mbarrier_init(s_data + F::free_ds + 8 * i, 8 * ELECTED_LANES);
		ptx_mbarrier_init(s_data + F::full_dq + 8 * i, 8 * ELECTED_LANES);
		ptx_mbarrier_init(s_data + F::free_dq + 8 * i, 1);
	}
	ptx_fence_mbarrier_init_release_cluster();
}

template <int dtype, class F>
static __global__ __launch_bounds__(F::threads, 1) void
attn_bwd_all_kernel(const __grid_constant__ struct attn_bwd_call a,
		    const __grid_constant__ struct attn_bwd_maps maps)
{
	extern __shared__ __align__(1024) uint8_t s_all[];
	const uint32_t s_data = ptx_smem(s_all);
	const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
	struct all_tile &t = *(struct all_tile *)(s_all + F::at_tile);

	ptx_griddepcontrol_wait();
	if (threadIdx.x == 0) {
		all_init<F>(s_data);
		t = all_tile_of<F>(a);
	}
	__syncthreads();
	if (t.key0 >= t.r.kv_len)
		return;
	if (group == 2) {
		int warp = threadIdx.x / 32 - 8;

		ptx_setmaxnreg_dec<24>();
		if (warp == 0)
			all_produce<F>(a, maps, t, s_data);
		else if (warp < 3 && threadIdx.x % 32 == 0)
			all_add_dq<F>(a, t, s_data, warp - 1);
	} else {
		ptx_setmaxnreg_inc<240>();
		all_consume<dtype, F>(a, t, s_data, group);
	}
}

template <class F> static struct attn_bwd_kernel instance(void)
{
	return { { (const void *)attn_bwd_all_kernel<CAIRN_F16, F>,
		   (const void *)attn_bwd_all_kernel<CAIRN_BF16, F> },
		 F::tokens, F::keys, F::keys, F::threads, F::smem_bytes };
}

struct attn_bwd_kernel attn_bwd_all_64(void) { return instance<all_form<64, 64, 128>>(); }
struct attn_bwd_kernel attn_bwd_all_128(void) { return instance<all_form<128, 128, 64>>(); }
