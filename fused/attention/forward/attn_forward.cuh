/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_forward - the consumer warpgroups of the forward kernels (FlashAttention-3): products and softmax
 *
 * A CTA has one to three consumer warpgroups of 64 packed rows each (attn_tile.h). Its producer walks over
 * row tiles and their key tiles and fetches Q, K and V. The consumers process one stream of steps, one key
 * tile a step, and do not stop between two row tiles:
 *
 *   step n, a warpgroup:  wait for the turn | start S = Q K(n)^T | rescale O | start O += P(n-1) V(n-1), and
 *                         pass the turn on before the last product | wait for S | release K(n) | cap, mask |
 *                         online softmax of rows 0 to 7 of each warp | wait for O | release V(n-1) | softmax
 *                         of rows 8 to 15 and P = S in dtype | if n begins a row tile: finish the previous
 *                         tile's O
 *
 * Warpgroups take turns (named barriers), so that the softmax of one overlaps the products of the others.
 * Within a warpgroup, the product with V overlaps the next softmax, also across row tiles, because Q has two
 * buffers where shared memory allows it. O is rescaled while the product with K is computed. P stays in
 * registers, because the accumulator has the layout of the A operand. V is read as stored, [key][dim]; wgmma
 * transposes it.
 *
 * A front defines row tiles, which keys a row sees, and where results go, by a class V:
 *   tile        a description of a row tile, with its `begin` and `num_tiles`
 *   call        the arguments that consumers need
 *   sight       what a lane knows about the keys that its rows see, including the bits `own`
 *   by_threads  whether threads, not only TMA, write K, V and Q to shared memory
 *   by_tma      with by_threads: whether TMA alone writes K and V of a row tile whose by_threads is 0
 *   from_end    whether a row tile's key tiles come from its last to its first
 *   slices()    the number of CTAs that share the keys of a row tile; for fronts with contiguous keys
 *   scale()     the factors of a row tile's logits
 *   look()      the sight of the nth row tile
 *   bend()      caps logits, and sets logits of keys that a row does not see to -inf
 *   soften()    turns logits into P, says by how much O is to be rescaled, and calls between() and after()
 *               as attn_softmax_fused() does
 *   finish()    writes the results of the nth row tile
 * attn_range.cuh is the front for contiguous keys, ../bsr/attn_bsr_view.cuh the one for lists, and
 * ../variant/attn_variant_view.cuh the one for contiguous keys with the hooks of a text.
 *
 * mbarriers: the producer arrives at full_*, which also counts the bytes of TMA; each consumer warp arrives
 * once at empty_*.
 * Hardware barriers ATTN_BAR_TURN + i: the turn of warpgroup i; 128 threads wait and 128 arrive.
 */
#ifndef CAIRN_ATTN_FORWARD_CUH
#define CAIRN_ATTN_FORWARD_CUH

#include "primitives/ptx/elect.cuh"
#include "primitives/ptx/wgmma.cuh"
#include "fused/attention/base/attn_panel.cuh"
#include "fused/attention/base/attn_softmax.cuh"
#include "fused/attention/base/attn_tile.h"

#define ATTN_BAR_TURN	1
/*
 * Number of row tile descriptions in use at a time: the tile that is being finished, the current one, and
 * those that the producer has begun ahead.
 */
#define ATTN_NUM_TILES	4
#define ATTN_EXTRA_BYTES 512		/* mbarriers and these descriptions */

/* racecheck miscounts after bar.arrive. The turns do not order memory, so a debug build leaves them out. */
#ifdef CAIRN_DEBUG
#define ATTN_TURNS	0
#else
#define ATTN_TURNS	1
#endif

/*
 * The form of a kernel: dimensions of Q and K and of V, padded to what the products need; keys of a tile;
 * consumer warpgroups; stages of K and of V; buffers of Q; registers of a consumer and of a producer thread.
 */
template <int qk_, int v_, int keys_, int groups_, int stages_, int q_stages_, int regs_, int producer_regs_>
struct attn_form {
	static constexpr int qk = qk_, v = v_, keys = keys_, groups = groups_, stages = stages_;
	static constexpr int q_stages = q_stages_, regs = regs_, producer_regs = producer_regs_;
	static constexpr int rows = groups * 64, threads = (groups + 1) * 128;
	static constexpr int qk_panels = (qk + 63) / 64, v_panels = (v + 63) / 64;
	static constexpr int q_bytes = qk_panels * rows * ATTN_PANEL;
	static constexpr int k_bytes = qk_panels * keys * ATTN_PANEL, v_bytes = v_panels * keys * ATTN_PANEL;
	/* bytes between panels of K or V, and between groups of eight keys; a front may choose others */
	static constexpr int panel_step = keys * ATTN_PANEL, group_step = 8 * ATTN_PANEL;
	static constexpr int data_bytes = q_stages * q_bytes + stages * (k_bytes + v_bytes);
	static constexpr int smem_bytes = data_bytes + ATTN_EXTRA_BYTES;
	static constexpr int tiles = ATTN_NUM_TILES;	/* descriptions of row tiles */
	static constexpr bool shared = false;	/* whether the last panel of K is the same for all heads */
	static constexpr int ctas = 1;		/* that share the tiles of K and V, as a cluster */
};

/*
 * Two CTAs form a cluster. They process consecutive row tiles of a head at the same time, and each fetches
 * half of every tile of K and V for both, which halves what the L2 has to deliver.
 */
template <class F> struct attn_form_pair : F {
	static constexpr int ctas = 2;
};

template <class F> struct attn_form_shared : F {
	static constexpr bool shared = true;
};

/* Addresses in shared memory, and the descriptions of row tiles. */
template <class T> struct attn_smem {
	uint32_t q, k, v;		/* [q_stages], [stages], [stages] tiles */
	uint32_t full_q, empty_q, full_k, empty_k, full_v, empty_v;	/* mbarriers, one for each stage */
	uint32_t landed;		/* mbarriers for the producer alone, one for each of two stages */
	T *tiles;			/* [F::tiles] */
	uint8_t *extra;			/* the front's own data, after the first F::smem_bytes */
};

template <class F, class T> ATTN_DEV struct attn_smem<T> attn_lay_out(uint8_t *s_all)
{
	struct attn_smem<T> s;
	uint32_t at = ptx_smem(s_all) + F::data_bytes;

	static_assert(F::stages <= 4 && F::q_stages <= 2, "mbarriers overlap");
	static_assert(192 + F::tiles * sizeof(T) <= ATTN_EXTRA_BYTES, "descriptions overlap");
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
	s.tiles = (T *)(s_all + F::data_bytes + 192);
	s.extra = s_all + F::smem_bytes;
	return s;
}

/* arrivals: the number of the producer's arrivals at each of full_* */
template <class F, class T> ATTN_DEV void attn_init_barriers(const struct attn_smem<T> &s, int arrivals)
{
	for (int i = 0; i < F::stages; i++) {
		ptx_mbarrier_init(s.full_k + 8 * i, arrivals);
		ptx_mbarrier_init(s.full_v + 8 * i, arrivals);
		ptx_mbarrier_init(s.empty_k + 8 * i, F::ctas * F::groups * 4 * ELECTED_LANES);
		ptx_mbarrier_init(s.empty_v + 8 * i, F::ctas * F::groups * 4 * ELECTED_LANES);
	}
	for (int i = 0; i < F::q_stages; i++) {
		ptx_mbarrier_init(s.full_q + 8 * i, arrivals);
		ptx_mbarrier_init(s.empty_q + 8 * i, F::groups * 4 * ELECTED_LANES);
	}
	ptx_mbarrier_init(s.landed, 1);
	ptx_mbarrier_init(s.landed + 8, 1);
	ptx_fence_mbarrier_init_release_cluster();
}

/*
 * Releases a stage of K or V for a warp, to all CTAs that fetch it. The arrivals at other CTAs need no order,
 * because only products read a stage, and these are over; an arrival with release would be a fence of the
 * whole GPU for each warp and stage.
 */
template <class F> ATTN_DEV void attn_release(uint32_t mbar)
{
	if (F::ctas == 1) {
		elected_arrive(mbar);
		return;
	}
	__syncwarp();
	if (threadIdx.x % 32 < ELECTED_LANES) {
#pragma unroll
		for (int cta = 0; cta < F::ctas; cta++)
			ptx_mbarrier_arrive_relaxed_cluster(ptx_mapa(mbar, cta));
	}
}

/* A position in a ring. In the first round, a consumer waits for phase 0 and a producer for phase 1. */
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

/*
 * Returns the low word of the descriptor of a warpgroup's rows of Q, or of a tile of K; the high words are
 * constants. The result is hidden from the compiler, which would otherwise compute it between the turn's
 * barrier and the first product, when tensor cores are idle.
 */
template <class F> ATTN_DEV uint32_t attn_describe(uint32_t addr)
{
	uint32_t low = (uint32_t)wgmma_desc_groups(addr, 0, F::group_step);

	asm volatile("" : "+r"(low));
	return low;
}

/* Returns which of a row tile's key tiles is the ith to be processed. */
template <class V> ATTN_DEV int attn_key_tile(int i, int num_tiles)
{
	return V::from_end ? num_tiles - 1 - i : i;
}

/* Issues S = Q K^T for a warpgroup's 64 rows. q and k are low words of descriptors. */
template <int dtype, class F> ATTN_DEV void attn_issue_qk(float *s, uint32_t q, uint32_t k)
{
	const uint64_t q_high = wgmma_desc(0, 0), k_high = wgmma_desc_groups(0, 0, F::group_step);

	wgmma_keep<F::keys / 2>(s);
	ptx_wgmma_fence();
#pragma unroll
	for (int i = 0; i < F::qk / 16; i++)
		ptx_wgmma_ss<dtype, F::keys>(s,
					     q_high | (q + i / 4 * (F::rows * ATTN_PANEL >> 4) + i % 4 * 2),
					     k_high | (k + i / 4 * (F::panel_step >> 4) + i % 4 * 2), i > 0);
	ptx_wgmma_commit_group();
	wgmma_keep<F::keys / 2>(s);
}

/*
 * Issues O += P V, or O = P V if `add` is 0, for a warpgroup's 64 rows, and calls pass() before the last
 * product.
 */
template <int dtype, class F, class Pass>
ATTN_DEV void attn_issue_pv(float *o, const uint32_t (*p)[4], uint32_t s_v, int add, Pass pass)
{
	uint64_t v = wgmma_desc_groups(s_v, F::panel_step, F::group_step);

	wgmma_keep<F::v / 2>(o);
	ptx_wgmma_fence();
#pragma unroll
	for (int i = 0; i < F::keys / 16; i++) {
		if (i == F::keys / 16 - 1)
			pass();
		ptx_wgmma_rs<dtype, F::v>(o, p[i], v + i * (2 * F::group_step >> 4), i > 0 || add);
	}
	ptx_wgmma_commit_group();
	wgmma_keep<F::v / 2>(o);
}

/* The factors for a row tile's logits: one for the base-2 softmax, one for attn_cap() (0: no cap). */
struct attn_scale {
	float log2, cap;
};

ATTN_DEV struct attn_scale attn_scale_of(float sm_scale, float softcap)
{
	return { (softcap > 0 ? softcap : sm_scale) * ATTN_LOG2E,
		 softcap > 0 ? 2 * ATTN_LOG2E * (sm_scale / softcap) : 0 };
}

/* Waits for a tile. The fence makes stores of threads visible to wgmma; TMA needs none. */
template <class V> ATTN_DEV void attn_wait_full(uint32_t mbar, uint32_t phase, bool by_threads = true)
{
	ptx_mbarrier_wait(mbar, phase);
	if (V::by_threads && by_threads)
		ptx_fence_proxy_async_shared_cta();
}

/* Caps all logits of a step. */
template <int keys> ATTN_DEV void attn_cap_all(float (*s)[4], float cap)
{
	if (cap == 0)
		return;
#pragma unroll
	for (int i = 0; i < keys / 2; i++)
		s[i / 4][i % 4] = attn_cap(s[i / 4][i % 4], cap);
}

/*
 * Returns the thread's number in its warpgroup. It is read again at each call: otherwise the compiler would
 * keep values derived from it in registers that the loop over key tiles needs.
 */
ATTN_DEV int attn_thread(void)
{
	int thread;

	asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
	return thread % 128;
}

/* Keeps the compiler from writing new values of P to registers that products may still read. */
template <int n> ATTN_DEV void attn_keep_p(uint32_t *p)
{
#pragma unroll
	for (int i = 0; i < n; i++)
		asm volatile("" : "+r"(p[i]) : : "memory");
}

template <int dtype, class F, class V>
ATTN_DEV void attn_consume(const typename V::call &a, const struct attn_smem<typename V::tile> &s)
{
	constexpr bool turns = ATTN_TURNS && F::groups > 1;
	const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);	/* known to be uniform */
	const uint32_t s_q = s.q + group * 64 * ATTN_PANEL;
	float o[F::v / 8][4], sc[F::keys / 8][4], keep[2], old_m[2], old_l[2];
	float m[2] = { -CUDART_INF_F, -CUDART_INF_F }, l[2] = {};
	uint32_t p[F::keys / 16][4];
	struct attn_place q = {}, k = {}, v = {};
	uint32_t d_q = attn_describe<F>(s_q), d_k = attn_describe<F>(s.k);
	int nth = 0, i = 0, add = 0, num_tiles, begin;
	bool by_threads = true;
	struct attn_scale scale;
	typename V::sight w;
	auto pack = [&]() { attn_p_fragments<dtype, F::keys / 8>(p, sc); };

	attn_wait_full<V>(s.full_q, 0);
	num_tiles = s.tiles[0].num_tiles;
	begin = s.tiles[0].begin;
	if constexpr (V::by_tma)
		by_threads = s.tiles[0].by_threads;
	if (num_tiles < 0)
		return;
	scale = V::scale(a, s.tiles[0]);
	w = V::look(a, s, 0, group);
	if (turns && group == F::groups - 1)
		ptx_bar_arrive(ATTN_BAR_TURN, 256);
	/* the first step, which has no product with V */
	attn_wait_full<V>(s.full_k, 0);
	attn_issue_qk<dtype, F>(sc[0], d_q, d_k);
	ptx_wgmma_wait_group<0>();
	wgmma_keep<F::keys / 2>(sc[0]);
	attn_release<F>(s.empty_k);
	V::template bend<F>(sc, w, begin + attn_key_tile<V>(0, num_tiles) * F::keys, s, k, scale.cap);
	attn_advance<F::stages>(&k);
	d_k = attn_describe<F>(s.k + k.stage * F::k_bytes);
	V::template soften<F::keys / 8>(sc, m, l, keep, scale.log2, w, []() { }, pack);
	for (;;) {
		bool fresh = ++i == num_tiles;		/* the step begins a row tile */

		if (fresh) {
			const typename V::tile *t = &s.tiles[++nth % F::tiles];

			elected_arrive(s.empty_q + 8 * q.stage);
			attn_advance<F::q_stages>(&q);
			d_q = attn_describe<F>(s_q + q.stage * F::q_bytes);
			attn_wait_full<V>(s.full_q + 8 * q.stage, q.phase);
			num_tiles = t->num_tiles;
			begin = t->begin;
			if constexpr (V::by_tma)
				by_threads = t->by_threads;
			if (num_tiles < 0)
				break;
			w = V::look(a, s, nth, group);
			scale = V::scale(a, *t);
			i = 0;
		}
		attn_wait_full<V>(s.full_k + 8 * k.stage, k.phase, by_threads);
		if (turns)
			ptx_bar_sync(ATTN_BAR_TURN + group, 256);
		attn_issue_qk<dtype, F>(sc[0], d_q, d_k);
		/* in a step that begins a row tile, V is that of the row tile before */
		attn_wait_full<V>(s.full_v + 8 * v.stage, v.phase, by_threads || fresh);
		if (add)
			attn_rescale<F::v>(o, keep);
		attn_issue_pv<dtype, F>(o[0], p, s.v + v.stage * F::v_bytes, add, [&]() {
			if (turns)
				ptx_bar_arrive(ATTN_BAR_TURN + (group + 1) % F::groups, 256);
		});
		ptx_wgmma_wait_group<1>();
		wgmma_keep<F::keys / 2>(sc[0]);
		attn_release<F>(s.empty_k + 8 * k.stage);
		V::template bend<F>(sc, w, begin + attn_key_tile<V>(i, num_tiles) * F::keys, s, k, scale.cap);
		attn_advance<F::stages>(&k);
		d_k = attn_describe<F>(s.k + k.stage * F::k_bytes);
		if (fresh) {
#pragma unroll
			for (int r = 0; r < 2; r++) {
				old_m[r] = m[r];
				old_l[r] = l[r];
				m[r] = -CUDART_INF_F;
				l[r] = 0;
			}
		}
		V::template soften<F::keys / 8>(sc, m, l, keep, scale.log2, w, [&]() {
			ptx_wgmma_wait_group<0>();
			wgmma_keep<F::v / 2>(o[0]);
			attn_keep_p<F::keys / 4>(p[0]);
			attn_release<F>(s.empty_v + 8 * v.stage);
		}, pack);
		attn_advance<F::stages>(&v);
		if (fresh)
			V::template finish<dtype, F>(a, s, nth - 1, o, old_m, old_l, group);
		add = !fresh;
	}
	attn_wait_full<V>(s.full_v + 8 * v.stage, v.phase);
	if (add)
		attn_rescale<F::v>(o, keep);
	attn_issue_pv<dtype, F>(o[0], p, s.v + v.stage * F::v_bytes, add, []() { });
	ptx_wgmma_wait_group<0>();
	wgmma_keep<F::v / 2>(o[0]);
	V::template finish<dtype, F>(a, s, nth - 1, o, m, l, group);
}

#endif
