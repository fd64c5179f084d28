/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_paged_prefill - the prefill kernel of attn_paged: many rows, by wgmma (FlashAttention-3)
 *
 * Each SM runs one CTA of three warpgroups. Two of them multiply, each with 64 packed rows (attn_tile.h) of
 * the CTA's tile of 128. The third fetches (attn_prefill_fetch.cuh), up to num_stages() key tiles ahead, also
 * into the next row tile while the current one is finished. CTAs are persistent and take tiles in a fixed
 * order, back and forth. If all requests are alike, the order is computed: as many heads at a time as the L2
 * can hold the keys of, and among these the longest rows first. For a mixed batch it is the order of
 * attn_paged_list.cu's list.
 *
 *   key tile i, a warpgroup:  wait for the turn | start S = Q K(i)^T | start O += P(i-1) V(i-1) | pass the
 *                             turn on | wait for S | release K(i) | cap, mask, online softmax | wait for O |
 *                             release V(i-1) | rescale O | P = S in dtype
 *   after the last:           release Q | O += P V | O / l -> registers transposed within a quad -> memory,
 *                             16 bytes a thread
 *
 * Warpgroups take turns (named barriers), so that one's softmax overlaps the other's products. Within a
 * warpgroup, the product with V overlaps the next softmax. P stays in registers, because the accumulator has
 * the layout of the A operand. V is read as stored, [key][dim]; wgmma transposes it.
 * A window raises the first key tile of a row tile, causality lowers the last one. Rows are compared with key
 * positions only in the tiles at these edges.
 *
 * Shared memory, KiB                                                  head_dim 64   128   256
 *   Q tile             128 x head_dim x 2                                      16    32    64
 *   K tiles, V tiles   2 x stages x keys x head_dim x 2                       128   192   128
 *                      (keys 128, 128, 64; stages 4, 3, 2)
 *   8-bit keys: stages 4, 2, 2 of these, and a ring of 4, 4, 2 tiles of codes 32    64    32
 *   mbarriers, tile    full and empty of Q and of each stage of K and V; the tile's description
 *
 * mbarriers: full has 128 arrivals, one by each producer thread (Q has one more, for the tile's description);
 * empty has one by each of the 8 consumer warps. Hardware barriers 1 and 2 are the turns; 128 threads wait
 * and 128 arrive. Registers: 168 at the start, then 216 a consumer (head_dim 128: S 64, O 64, P 32) and 72 a
 * producer; no spills. ptxas injects one wait for O after the last product, where the code waits anyway.
 *
 * The producer converts keys of 8 bits before the products see them; scales are applied to logits and to O.
 *
 * Floor: 4 * head_dim * (query, key) pairs at the rate of wgmma, 680 to 790 TFLOP/s on an H200. The
 * exponentials, 16 per clock and SM, take half of that time at head_dim 128 and all of it at 64. A softcap
 * adds two special functions to the one of each logit; these are hidden at head_dim 256 and the limit at 128.
 * Optimisation history: ../NOTES.md.
 */
#include "fused/attention/paged/attn_paged.h"

#include "primitives/base/launch.h"
#include "primitives/base/tensor_map.h"
#include "primitives/ptx/wgmma.cuh"
#include "fused/attention/paged/attn_prefill_fetch.cuh"

/* Two consumer warpgroups and one producer, of 128 threads each, fit into the SM's 65536 registers. */
#define CONSUMER_REGS	216
#define PRODUCER_REGS	72

/* Hardware barriers BAR_TURN + 0 and + 1: the warpgroup whose turn it is to issue products. */
#define BAR_TURN	1

/* Waits for a stage. Data that threads have copied also needs a proxy fence before wgmma reads it. */
ATTN_DEV void wait_full(uint32_t mbar, uint32_t parity, bool by_threads)
{
	ptx_mbarrier_wait(mbar, parity);
	if (by_threads)
		ptx_fence_proxy_async_shared_cta();
}

/* Marks a stage as free; called by every warp that has finished reading it. */
ATTN_DEV void release(uint32_t mbar)
{
	__syncwarp();
	if (threadIdx.x % 32 < RELEASERS)
		ptx_mbarrier_arrive(mbar);
}

/* Issues S = Q K^T for a warpgroup's 64 rows. */
template <int dtype, class F>
ATTN_DEV void issue_qk(float *s, uint32_t s_q, uint32_t s_k)
{
	constexpr int dim = F::dim, keys = F::keys;
	uint64_t q = wgmma_desc(s_q, 0), k = wgmma_desc(s_k, 0);

	wgmma_keep<keys / 2>(s);
	ptx_wgmma_fence();
#pragma unroll
	for (int i = 0; i < dim / 16; i++)
		ptx_wgmma_ss<dtype, keys>(s, q + i / 4 * (ROWS * ATTN_PANEL >> 4) + i % 4 * 2,
					  k + i / 4 * (keys * ATTN_PANEL >> 4) + i % 4 * 2, i > 0);
	ptx_wgmma_commit_group();
	wgmma_keep<keys / 2>(s);
}

/* Issues O += P V for a warpgroup's 64 rows. */
template <int dtype, class F>
ATTN_DEV void issue_pv(float *o, const uint32_t (*p)[4], uint32_t s_v)
{
	constexpr int dim = F::dim, keys = F::keys;
	uint64_t v = wgmma_desc(s_v, keys * ATTN_PANEL);

	wgmma_keep<dim / 2>(o);
	ptx_wgmma_fence();
#pragma unroll
	for (int i = 0; i < keys / 16; i++)
		ptx_wgmma_rs<dtype, dim>(o, p[i], v + i * (16 * ATTN_PANEL >> 4), 1);
	ptx_wgmma_commit_group();
	wgmma_keep<dim / 2>(o);
}

/* A warpgroup's half of a row tile. */
struct view {
	struct attn_request r;
	int32_t row0;			/* the first of its 64 packed rows */
	int32_t all_see, last_first;	/* all 64 rows see the keys last_first .. all_see - 1 */
};

/* Caps the logits of the key tile that begins at `key`, and sets those that a row does not see to -inf. */
template <int keys>
ATTN_DEV void bend_logits(const struct cairn_attn_paged_args &a, const struct view &w, float (*s)[4], int key,
			  float cap)
{
	int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;

	if (cap != 0) {
#pragma unroll
		for (int i = 0; i < keys / 2; i++)
			s[i / 4][i % 4] = attn_cap(s[i / 4][i % 4], cap);
	}
	if (key + keys <= w.all_see && key >= w.last_first)
		return;
	key += lane % 4 * 2;
#pragma unroll
	for (int half = 0; half < 2; half++) {
		int row = w.row0 + warp * 16 + lane / 4 + half * 8, first = attn_row_first(a, w.r, row);
		uint32_t span = max(0, attn_row_sees(a, w.r, row) - first);

#pragma unroll
		for (int t = 0; t < keys / 8; t++) {
			if ((uint32_t)(key + t * 8 - first) >= span)
				s[t][2 * half] = -CUDART_INF_F;
			if ((uint32_t)(key + t * 8 + 1 - first) >= span)
				s[t][2 * half + 1] = -CUDART_INF_F;
		}
	}
}

/* Writes O / l and lse of a warpgroup's rows. */
template <int dtype, int dim>
ATTN_DEV void write_rows(const struct cairn_attn_paged_args &a, const struct view &w, float (*o)[4],
			 const float m[2], const float l[2], int rows, const struct attn_scales &scales)
{
	int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;

#pragma unroll
	for (int half = 0; half < 2; half++) {
		float sum = attn_quad_sum(l[half]), factor = sum > 0 ? 1 / sum * scales.v : 0;
		int row = w.row0 + warp * 16 + lane / 4 + half * 8;
		int64_t at = row < rows ? attn_out_row(a, w.r, row) : 0;

#pragma unroll
		for (int t = 0; t < dim / 8; t += 4) {
			uint32_t x[4];
			uint4 eight;

#pragma unroll
			for (int i = 0; i < 4; i++)
				x[i] = attn_pack<dtype>(o[t + i][2 * half] * factor,
							o[t + i][2 * half + 1] * factor);
			eight = attn_gather_quad(x);
			if (row < rows)
				((uint4 *)a.out)[at * (dim / 8) + t + lane % 4] = eight;
		}
		if (a.lse && lane % 4 == 0 && row < rows)
			a.lse[at] = attn_lse(m[half], sum, attn_logit_scale(a, scales.k));
	}
}

template <int dtype, class F>
ATTN_DEV void consume(const struct cairn_attn_paged_args &a, const struct shared &s, bool by_threads,
		      int group, uint32_t magic)
{
	constexpr int dim = F::dim, keys = F::keys, bytes = F::bytes, stages = F::stages;
	const int nth_group = threadIdx.x / 128;
	float scale_log2 = attn_logit_scale(a, 1) * ATTN_LOG2E, cap = attn_cap_factor(a, 1);
	uint32_t s_q = s.q + nth_group * 64 * ATTN_PANEL;
	struct place k = {}, v = {};

	if (TURNS && nth_group == 1)
		ptx_bar_arrive(BAR_TURN, 256);
	for (int q = 0;; q++) {
		float o[dim / 8][4] = {}, p32[keys / 8][4], m[2], l[2] = {}, keep[2];
		uint32_t p[keys / 16][4];
		struct tile t;
		struct view w;
		int rows;

		wait_full(s.full_q, q & 1, true);
		t = *s.tile;
		if (t.num_tiles < 0)
			return;
		w.r.qo_first = t.qo_first;
		w.r.qo_len = t.qo_len;
		w.r.kv_len = t.kv_len;
		w.r.head = t.head;
		w.r.group = group;
		w.r.magic = magic;
		w.row0 = t.row0 + nth_group * 64;
		w.all_see = attn_row_sees(a, w.r, w.row0);
		w.last_first = attn_row_first(a, w.r, w.row0 + 63);
		rows = t.qo_len * group;
		if (F::fp8) {
			scale_log2 = attn_logit_scale(a, t.scales.k) * ATTN_LOG2E;
			cap = attn_cap_factor(a, t.scales.k);
		} else {
			t.scales = { 1, 1 };	/* known to the compiler */
		}
		m[0] = m[1] = -CUDART_INF_F;
		for (int i = 0; i < t.num_tiles; i++) {
			wait_full(s.full_k + 8 * k.stage, k.phase, by_threads);
			if (TURNS)
				ptx_bar_sync(BAR_TURN + nth_group, 256);
			issue_qk<dtype, F>(p32[0], s_q, s.k + k.stage * bytes);
			if (i > 0) {
				wait_full(s.full_v + 8 * v.stage, v.phase, by_threads);
				issue_pv<dtype, F>(o[0], p, s.v + v.stage * bytes);
				if (TURNS)
					ptx_bar_arrive(BAR_TURN + (nth_group ^ 1), 256);
				ptx_wgmma_wait_group<1>();
			} else {
				if (TURNS)
					ptx_bar_arrive(BAR_TURN + (nth_group ^ 1), 256);
				ptx_wgmma_wait_group<0>();
			}
			wgmma_keep<keys / 2>(p32[0]);
			release(s.empty_k + 8 * k.stage);
			advance<stages>(&k);
			bend_logits<keys>(a, w, p32, t.begin + i * keys, cap);
			attn_softmax<keys / 8>(p32, m, l, keep, scale_log2);
			if (i > 0) {
				ptx_wgmma_wait_group<0>();
				wgmma_keep<dim / 2>(o[0]);
				release(s.empty_v + 8 * v.stage);
				advance<stages>(&v);
				attn_rescale<dim>(o, keep);
			}
#pragma unroll
			for (int j = 0; j < keys / 16; j++)
				attn_p_fragment<dtype>(p[j], p32 + 2 * j);
		}
		release(s.empty_q);
		if (t.num_tiles) {
			wait_full(s.full_v + 8 * v.stage, v.phase, by_threads);
			issue_pv<dtype, F>(o[0], p, s.v + v.stage * bytes);
			ptx_wgmma_wait_group<0>();
			wgmma_keep<dim / 2>(o[0]);
			release(s.empty_v + 8 * v.stage);
			advance<stages>(&v);
		}
		write_rows<dtype, dim>(a, w, o, m, l, rows, t.scales);
	}
}

template <int dtype, class F>
static __global__ __launch_bounds__(THREADS, 1) void
attn_paged_prefill_kernel(const __grid_constant__ struct cairn_attn_paged_args a,
			  const __grid_constant__ struct plan plan, const __grid_constant__ struct maps maps,
			  int32_t group, uint32_t magic)
{
	extern __shared__ __align__(1024) uint8_t s_all[];
	struct shared s = lay_out<F>(s_all);

	if (threadIdx.x == 0) {
		ptx_mbarrier_init(s.full_q, 129);
		ptx_mbarrier_init(s.empty_q, GROUPS * 4 * RELEASERS);
		for (int i = 0; i < F::stages; i++) {
			ptx_mbarrier_init(s.full_k + 8 * i, 128);
			ptx_mbarrier_init(s.full_v + 8 * i, 128);
			ptx_mbarrier_init(s.empty_k + 8 * i, GROUPS * 4 * RELEASERS);
			ptx_mbarrier_init(s.empty_v + 8 * i, GROUPS * 4 * RELEASERS);
		}
	}
	__syncthreads();
	ptx_griddepcontrol_wait();
	if (threadIdx.x >= GROUPS * 128) {
		ptx_setmaxnreg_dec<PRODUCER_REGS>();
		produce<dtype, F>(a, plan, maps, s, group, magic);
		ptx_griddepcontrol_launch_dependents();
	} else {
		ptx_setmaxnreg_inc<CONSUMER_REGS>();
		consume<dtype, F>(a, s, !plan.box, group, magic);
	}
}

static int make_map(CUtensorMap *map, const struct cairn_attn_paged_args *args, const void *pages, int box)
{
	const uint64_t row = (uint64_t)args->num_kv_heads * args->head_dim;
	const struct cairn_tensor_layout t = {
		.data = pages, .dims = 2, .element_bytes = 2,
		.size = { row, (uint64_t)args->kv.num_pages * args->kv.page_size }, .stride = { row * 2 },
		.box = { 64, (uint32_t)box }, .swizzle = 128, .promotion = 256,
	};

	return cairn_tensor_map(map, &t, "attn_paged");
}

/* The copy engine (TMA) fetches 16-bit pages of at least MIN_BOX slots, if page_size is a power of two. */
static int make_maps(const struct cairn_attn_paged_args *args, int keys, struct plan *plan, struct maps *maps)
{
	int64_t slots = (int64_t)args->kv.num_pages * args->kv.page_size;

	if (args->kv_fp8 || args->kv.page_size < MIN_BOX || kv_page_shift(args->kv.page_size) < 0 ||
	    slots < 1 || slots > 0x7fffffff)
		return 0;
	plan->box = args->kv.page_size < keys ? args->kv.page_size : keys;
	CAIRN_TRY(make_map(&maps->k, args, args->kv.k_pages, plan->box));
	return make_map(&maps->v, args, args->kv.v_pages, plan->box);
}

template <class F>
static int launch(const struct cairn_attn_paged_args *args, struct plan *plan, int64_t tiles, void *stream)
{
	int32_t group = args->num_qo_heads / args->num_kv_heads;
	uint32_t magic = attn_magic((uint32_t)group);
	struct maps maps = {};
	void *params[] = { (void *)args, plan, &maps, &group, &magic };
	int64_t key_bytes = (int64_t)args->kv.max_len * F::dim * (F::fp8 ? 2 : 4);
	int64_t items = tiles * args->num_kv_heads;
	int num_sms = cairn_sms_of(args->sms);
	struct cairn_launch l = {};

	if (num_sms < 0)
		return num_sms;
	/* attn_token() must be exact, and tile counters have 32 bits */
	if (((int64_t)args->max_qo_len * group + ROWS) * group > 0xffffffffll ||
	    items > 0x7fffffff - 2 * num_sms)
		return cairn_error(EOPNOTSUPP, "attn_paged: max_qo_len, num_kv_heads, kv.batch: too large");
	CAIRN_TRY(make_maps(args, F::keys, plan, &maps));
	plan->section = (32 << 20) / (key_bytes > 1 ? key_bytes : 1) < 1 ? 1 :
			(int32_t)((32 << 20) / (key_bytes > 1 ? key_bytes : 1));
	l.grid[0] = (unsigned int)(items < num_sms ? items : num_sms);
	l.block[0] = THREADS;
	l.smem = F::smem_bytes;
	l.pdl = !args->sms;
	l.stream = stream;
	return cairn_launch(args->dtype == CAIRN_F16 ?
			    (const void *)attn_paged_prefill_kernel<CAIRN_F16, F> :
			    (const void *)attn_paged_prefill_kernel<CAIRN_BF16, F>, &l, params);
}

static int launch_any(const struct cairn_attn_paged_args *args, struct plan *plan, int64_t tiles,
		      void *stream)
{
	switch (args->head_dim) {
	case 64:
		return args->kv_fp8 ? launch<form<64, true>>(args, plan, tiles, stream) :
				      launch<form<64, false>>(args, plan, tiles, stream);
	case 128:
		return args->kv_fp8 ? launch<form<128, true>>(args, plan, tiles, stream) :
				      launch<form<128, false>>(args, plan, tiles, stream);
	default:
		return args->kv_fp8 ? launch<form<256, true>>(args, plan, tiles, stream) :
				      launch<form<256, false>>(args, plan, tiles, stream);
	}
}

int attn_paged_prefill(const struct cairn_attn_paged_args *args, void *stream)
{
	int64_t rows = (int64_t)args->max_qo_len * (args->num_qo_heads / args->num_kv_heads);
	struct plan plan = {};

	plan.batch = args->kv.batch;
	plan.row_tiles = (int32_t)((rows + ROWS - 1) / ROWS);
	return launch_any(args, &plan, (int64_t)plan.row_tiles * plan.batch, stream);
}

int attn_paged_prefill_listed(const struct cairn_attn_paged_args *args, void *stream)
{
	struct plan plan = {};

	plan.list = (const int32_t *)args->workspace;
	/* an upper bound of the list's length; a CTA without a tile exits at once */
	return launch_any(args, &plan, attn_paged_list_tiles(args, ATTN_DECODE_TILE), stream);
}
