/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster_mla.cuh - code that the phases of cluster_mla share: LL words and the streams of weights
 *
 * LL words, as in NCCL's LL protocol: results for other CTAs are 64-bit words in global memory. Each has 32
 * bits of payload (two elements of dtype, or a float) and the number of the call, the epoch. Readers poll the
 * data itself: this takes one trip to the L2 and one back, without fence or counter. A word is written once
 * in each call, so no word needs protection from being overwritten; words of other calls, and of a zeroed
 * workspace, have other epochs. The epoch is in the first word of the workspace; the last CTA to read it
 * increments it.
 *
 * Streams: every worker has a ring of STAGES stages of 4 KiB. The feeders, separate warps, fill the rings by
 * cp.async with the stages that the workers multiply in this launch, over all products in order. They do
 * so as soon as a stage is free, so the weights of the next product arrive while CTAs wait for each other.
 * Feeder and worker derive the sequence of stages by the same counting. For long streams the copy engine
 * fills the rings (cluster_mla_tensor.cuh).
 *   MLA_DOWN   [w_q or w_q_a; w_kv_a]	K hidden	16 rows x 128 in each stage
 *   MLA_UP     w_q with q compression	K q_lora_rank	16 rows x 128
 *   MLA_ABSORB nope rows of w_kv_b	K nope_dim	128 rows x 16 columns: the sum is over rows
 *   MLA_VALUE  v rows of w_kv_b	K kv_lora_rank	16 rows x 128
 *   MLA_OUT    w_o			K heads v_dim	16 rows x 128
 * A unit is 16 outputs. 1, 2, 4, 8 or 16 warps share a unit (at most one for each of its stages), so that the
 * 16 warps work on 16, 8, 4, 2 or 1 units at a time. Their partial sums are added through shared memory in
 * the order of the warps.
 */
#ifndef CAIRN_CLUSTER_MLA_CUH
#define CAIRN_CLUSTER_MLA_CUH

#include "primitives/rows/row.cuh"
#include "primitives/ptx/elect.cuh"
#include "fused/attention/base/attn_tile.cuh"
#include "fused/latent/cluster_mla.h"

#define MLA		static __device__ __forceinline__
#define WARPS		16
#define WORKERS		(WARPS * 32)
#define FEEDERS		3		/* warps that load weights */
#define THREADS		(WORKERS + FEEDERS * 32 + 32)	/* the last 32 load keys */
#define WORK_BAR	1		/* named barrier of the workers */
/* the loader of the keys arrives, workers wait: the loader's mbarriers are initialised */
#define INIT_BAR	2
#define RINGS_BAR	3		/* the same for feeders, and the rings' mbarriers */
#define START_BAR	4		/* workers arrive, feeders wait: the loads of x have been issued */
#define WITH_FEEDERS	(WORKERS + FEEDERS * 32)
#define STAGES		2
#define STAGE_K		128
#define STAGE_BYTES	4096
#define RANK		512
#define ROPE		64
#define WIDTH		(RANK + ROPE)
#define NOPE		128
#define Q_DIM		(NOPE + ROPE)
#define V_DIM		128
#define HEADS		16		/* heads of an attention task, at most */
#define KEYS		32		/* keys of a tile */
#define KEY_ROW		(WIDTH * 2 + 16)	/* bytes; 16 more keep eight rows free of bank conflicts */
#define STATE_ROW	((RANK + 4) * 4)

/*
 * Shared memory                                                        bytes
 *   0		16 rings of 2 stages					131072
 *   MLA_TILES	2 tiles of 32 keys, rows of 1168 bytes; afterwards, in a
 *		team, the CTA's o, f32 [16][516]			74752
 *   MLA_SUMS	partial sums of a product; q and ql of a task [16][584];
 *		partial logits f32 [4][16][40] and P [16][40]		18688
 *   MLA_STATES	m [16], l [16] of each rank of the team			2048
 *   MLA_SMALL	struct mla_small					5.5K
 * wide: n occupies the place of the tiles until the first tile is loaded; a third tile is in the rings of the
 * last five warps from ABSORB to the end of the attention.
 */
#define MLA_TILES	(WARPS * STAGES * STAGE_BYTES)
#define MLA_SUMS	(MLA_TILES + 2 * KEYS * KEY_ROW)
#define MLA_STATES	(MLA_SUMS + HEADS * KEY_ROW)
#define MLA_SMALL	(MLA_STATES + 16 * 2 * HEADS * 4)
#define MLA_SMEM	(MLA_SMALL + (int)sizeof(struct mla_small))

enum mla_product { MLA_DOWN, MLA_UP, MLA_ABSORB, MLA_VALUE, MLA_OUT, MLA_PRODUCTS };

struct mla_args {
	struct cairn_cluster_mla_args a;
	int32_t team;		/* CTAs whose softmax states merge on chip: the cluster, or 1 */
	int32_t parts;		/* teams that share a task */
	int32_t heads_shift;	/* log2 of the heads of a task: HEADS, or HEADS / 2 if there are few tasks */
	int32_t groups;		/* groups of that many heads; a task is a group and a request */
	/* steps of outputs ([MLA_PRODUCTS]: merge slices) of a CTA; the last `more` CTAs have one more */
	int32_t each[MLA_PRODUCTS + 1], more[MLA_PRODUCTS + 1];
};

/* One product, and this CTA's share of its outputs */
struct mla_matrix {
	const char *w, *w2;
	int32_t rows, k;		/* rows of w, which w2's rows follow; row length */
	int32_t first, count, units, stages;	/* first output; outputs; units of 16; stages of a unit */
	int32_t shift;			/* log2 of the warps that share a unit */
};

/* The workspace, in words: two 32-bit counters first, then the LL words of each kind at these offsets. */
struct mla_ll {
	uint32_t cq, q, kv, ql, c, v, ml, o, end;
};

static __host__ __device__ __forceinline__ struct mla_ll mla_ll(const struct cairn_cluster_mla_args &a,
								 uint32_t slots)
{
	struct mla_ll w;
	uint32_t rows = (uint32_t)a.kv.batch * a.num_heads;

	w.cq = 32;
	w.q = w.cq + (uint32_t)a.kv.batch * a.q_lora_rank / 2;
	w.kv = w.q + rows * (Q_DIM / 2);
	w.ql = w.kv + (uint32_t)a.kv.batch * (WIDTH / 2);
	w.c = w.ql + rows * (RANK / 2);
	w.v = w.c + rows * (RANK / 2);
	w.ml = w.v + rows * (V_DIM / 2);
	w.o = w.ml + slots * HEADS * 2;
	w.end = w.o + slots * HEADS * RANK;
	return w;
}

/*
 * Batches of 9 to 16 have a third tile buffer in the rings of the last warps, which are empty from the end of
 * ABSORB to the end of the attention.
 */
#define WIDE_RING	11
#define WIDE_TILE	(WIDE_RING * STAGES * STAGE_BYTES)
static_assert((WARPS - WIDE_RING) * STAGES * STAGE_BYTES >= KEYS * KEY_ROW, "a tile");

struct mla_wide {
	uint64_t full, empty;			/* mbarriers of the third tile */
	uint64_t normed;			/* workers no longer need n, which the tiles overwrite */
	uint64_t absorbed, attended;		/* workers have finished ABSORB; the attention */
};

struct mla_small {
	struct mla_matrix m[MLA_PRODUCTS];
	struct mla_ll at;
	uint64_t full[2], empty[2];		/* mbarriers of the tiles */
	uint64_t ready;				/* mbarrier: workers have set epoch, len and rotation */
	uint64_t filled[WARPS][STAGES], freed[WARPS][STAGES];	/* mbarriers of the rings */
	float part[WARPS * 8], keep[HEADS];	/* partial sums of squares; rescale factor of each head */
	float2 rotation[16][ROPE / 2];		/* cosine and sine */
	int32_t len[16];
	uint32_t epoch[WARPS];
	struct mla_wide wide;
};

extern __shared__ __align__(1024) uint8_t mla_mem[];

MLA struct mla_small *mla_small(void)
{
	return (struct mla_small *)(mla_mem + MLA_SMALL);
}

MLA uint32_t mla_smem(void)
{
	return ptx_smem(mla_mem);
}

/* A thread's context in all phases */
struct mla_ctx {
	uint64_t *words;		/* the workspace */
	uint32_t epoch;
	int lane, warp;
	float scale[2];			/* of rows lane / 4 and lane / 4 + 8: 1 / rms */
};

MLA void work_sync(void)
{
	ptx_bar_sync(WORK_BAR, WORKERS);
}

/* ---- LL words ---- */

MLA void mla_put_ll(const struct mla_ctx &c, uint32_t i, uint32_t v)
{
	ptx_st_relaxed_gpu_u64(c.words + i, (uint64_t)c.epoch << 32 | v);
}

/* Stores LL words i and i + 1; i is even. */
MLA void mla_put_ll_pair(const struct mla_ctx &c, uint32_t i, uint32_t v, uint32_t w)
{
	ptx_st_relaxed_gpu_v2_u64(c.words + i, make_uint4(v, c.epoch, w, c.epoch));
}

/*
 * Reads the pairs of LL words at base + from[i] whose bits in `wanted` are set; polls until all of them carry
 * this call's epoch. Whole warps must call it. All loads are in flight at the same time; after a miss, all
 * pairs are read again, or (all = 0) only the missing ones.
 */
template <int n, int all = 1>
MLA void mla_get_ll(const struct mla_ctx &c, const uint64_t *base, const int32_t (&from)[n],
		    uint32_t wanted, uint2 (&v)[n])
{
#ifdef CAIRN_DEBUG
	const int64_t start = ptx_clock64();
#else
	const int64_t start = 0;
#endif
	uint4 raw[n];
	int missing;

#pragma unroll
	for (int i = 0; i < n && !all; i++)
		raw[i] = make_uint4(0, c.epoch, 0, wanted >> i & 1 ? c.epoch - 1 : c.epoch);
	do {
		missing = 0;
#pragma unroll
		for (int i = 0; i < n; i++) {
			if (all)
				raw[i] = make_uint4(0, c.epoch, 0, c.epoch);
			if (all ? wanted >> i & 1 : raw[i].y != c.epoch || raw[i].w != c.epoch)
				raw[i] = ptx_ld_relaxed_gpu_v2_u64(base + from[i]);
		}
#pragma unroll
		for (int i = 0; i < n; i++)
			missing |= raw[i].y != c.epoch || raw[i].w != c.epoch;
		ptx_spin_check(start, "LL words of the call (epoch)", c.epoch, 0);
	} while (__any_sync(~0u, missing));
#pragma unroll
	for (int i = 0; i < n; i++)
		v[i] = make_uint2(raw[i].x, raw[i].z);
}

/* ---- streams ---- */

/*
 * Returns the first step of this CTA's share. The last CTAs get one more step, because they have no job if
 * there are fewer attention jobs than CTAs. The host computes the quotients: divisions on the device would
 * delay a feeder's first stage.
 */
MLA int share_first(int each, int more)
{
	return (int)blockIdx.x * each + max((int)blockIdx.x - (int)gridDim.x + more, 0);
}

MLA int share_count(int each, int more)
{
	return each + ((int)blockIdx.x >= (int)gridDim.x - more);
}

MLA void mla_share(struct mla_matrix *m, int each, int more, int step)
{
	m->first = share_first(each, more) * step;
	m->count = share_count(each, more) * step;
	m->units = (m->count + 15) / 16;
	m->stages = (m->k + STAGE_K - 1) / STAGE_K;
	m->shift = m->stages > 8 ? 4 : m->stages > 4 ? 3 : m->stages > 2 ? 2 : m->stages > 1 ? 1 : 0;
}

MLA void mla_make_matrix(const struct mla_args &g, struct mla_matrix *m, int product)
{
	const struct cairn_cluster_mla_args &a = g.a;
	int nq = a.num_heads * Q_DIM, lora = a.q_lora_rank;

	m->w2 = NULL;
	m->rows = 0x7fffffff;
	switch (product) {
	case MLA_DOWN:
		m->w = (const char *)(lora ? a.w_q_a : a.w_q);
		m->w2 = (const char *)a.w_kv_a;
		m->rows = lora ? lora : nq;
		m->k = a.hidden;
		mla_share(m, g.each[MLA_DOWN], g.more[MLA_DOWN], 4);
		break;
	case MLA_UP:
		m->w = (const char *)a.w_q;
		m->k = lora;
		mla_share(m, g.each[MLA_UP], g.more[MLA_UP], 4);
		break;
	case MLA_ABSORB:
		m->w = (const char *)a.w_kv_b;
		m->k = NOPE;
		mla_share(m, g.each[MLA_ABSORB], g.more[MLA_ABSORB], 16);
		break;
	case MLA_VALUE:
		m->w = (const char *)a.w_kv_b;
		m->k = RANK;
		mla_share(m, g.each[MLA_VALUE], g.more[MLA_VALUE], 16);
		break;
	default:
		m->w = (const char *)a.w_o;
		m->k = a.num_heads * V_DIM;
		mla_share(m, g.each[MLA_OUT], g.more[MLA_OUT], 4);
	}
}

/*
 * Starts the loads of a unit's stage, for products other than MLA_ABSORB. Rows are copied in groups of four;
 * each group belongs to one matrix and lies wholly inside or outside this CTA's share. For groups outside,
 * the ring keeps its old contents, and the outputs computed from them are not used.
 */
MLA void mla_fetch_rows(const struct mla_ctx &c, const struct mla_matrix &m, int product, int unit, int stage,
			uint32_t ring, uint64_t policy)
{
	const int odd = c.lane / 16, piece = c.lane % 16, k = stage * STAGE_K + piece * 8;
	const int first = m.first + unit * 16, left = m.count - unit * 16, last = m.rows - first;
	const int row = first + odd + (product == MLA_VALUE ? (first / V_DIM + 1) * NOPE : 0);
	const int64_t other = m.w2 - m.w - (int64_t)m.rows * m.k * 2;	/* bytes from the end of w to w2 */
	const char *src = m.w + ((int64_t)row * m.k + k) * 2 + (last <= 0 ? other : 0);
	const uint32_t dst = ring + odd * 256 + (piece ^ odd << 2) * 16, bytes = k < m.k ? 16 : 0;

#pragma unroll
	for (int i = 0; i < 16; i += 4) {
		if (i >= left)
			break;
		if (i && i == last)
			src += other;
		ptx_cp_async_cg_hint(dst + i * 256, src, bytes, policy);
		ptx_cp_async_cg_hint(dst + (i + 2) * 256, src + m.k * 4, bytes, policy);
		src += m.k * 8;
	}
}

/* The same for MLA_ABSORB, whose units have one stage. */
MLA void mla_fetch_columns(const struct mla_ctx &c, const struct mla_matrix &m, int unit, uint32_t ring,
			   uint64_t policy)
{
	const int first = m.first + unit * 16, d = c.lane / 2, half = c.lane & 1, v = d >> 3 & 3;
	const char *src = m.w + ((int64_t)((first / RANK) * (NOPE + V_DIM) + d) * RANK +
				 first % RANK + half * 8) * 2;
	const uint32_t at = (((d & 3) << 1 | half) ^ (v & 1) ^ (v & 2) << 1) * 16;

#pragma unroll
	for (int i = 0; i < NOPE; i += 16) {
		/* 16 rows further, bit 1 of the row's d / 8 flips, and with it bit 6 of the offset */
		uint32_t to = at ^ (i & 16 ? 64 : 0);

		ptx_cp_async_cg_hint(ring + ((d & ~3) + i) * 32 + to, src + i * RANK * 2, 16, policy);
	}
}

/* Debug builds synchronise instead: racecheck does not support bar.arrive and miscounts barriers after it. */
MLA void mla_bar_arrive(uint32_t id, uint32_t num_threads)
{
#ifdef CAIRN_DEBUG
	ptx_bar_sync(id, num_threads);
#else
	ptx_bar_arrive(id, num_threads);
#endif
}

/* Called by all lanes: arrives at `filled` when all copies that this lane has started are complete. */
MLA void mla_arrive_filled(uint32_t filled)
{
#ifdef CAIRN_DEBUG		/* racecheck does not see that the asynchronous arrival orders memory */
	ptx_cp_async_commit_group();
	ptx_cp_async_wait_group<0>();
	ptx_mbarrier_arrive(filled);
#else
	ptx_cp_async_mbarrier_arrive_noinc(filled);
#endif
}

#endif
