/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster_mla.cuh - what the phases of cluster_mla share: words that tell when they have come, and the
 * streams of weights
 *
 * Words. What one CTA tells others travels in 64-bit words of global memory: 32 bits of payload (two elements
 * of dtype, or a float) and the number of the call, the epoch. Readers poll the data itself: one trip to the
 * L2 and one back, no fence, no counter. A word is written once a call, so nothing has to be protected from
 * being overwritten; words of other calls, and a zeroed workspace, have other numbers. The epoch lies in the
 * workspace's first word; the CTA that leaves last counts it up.
 *
 * Streams. Every worker has a ring of STAGES stages of 4 KiB. Feeders, warps of their own, fill the rings by
 * cp.async with the stages that the workers will multiply in this launch, over all products in order, as soon
 * as a stage is used up, whatever it belongs to: while CTAs wait for each other the next product's weights
 * flow in. Feeder and worker find out by the same counting which stage comes next. For long streams the copy
 * engine does it (cluster_mla_tensor.cuh).
 *   MLA_DOWN   [w_q or w_q_a; w_kv_a]	K hidden	16 rows x 128 a stage
 *   MLA_UP     w_q with q compression	K q_lora_rank	16 rows x 128
 *   MLA_ABSORB nope rows of w_kv_b	K nope_dim	128 rows x 16 columns: the sum is over rows
 *   MLA_VALUE  v rows of w_kv_b	K kv_lora_rank	16 rows x 128
 *   MLA_OUT    w_o			K heads v_dim	16 rows x 128
 * A unit is 16 outputs; 1, 2, 4, 8 or 16 warps share one (as many as it has stages), 16 / that many units
 * make a group, whose partial sums meet in shared memory and are added in the order of the warps.
 */
#ifndef CAIRN_CLUSTER_MLA_CUH
#define CAIRN_CLUSTER_MLA_CUH

#include "primitives/rows/row.cuh"
#include "primitives/ptx/speak.cuh"
#include "fused/attention/attn_tile.cuh"
#include "fused/latent/cluster_mla.h"

#define MLA		static __device__ __forceinline__
#define WARPS		16
#define WORKERS		(WARPS * 32)
#define FEEDERS		3		/* warps that load weights */
#define THREADS		(WORKERS + FEEDERS * 32 + 32)	/* and a warp that loads keys */
#define WORK_BAR	1		/* named barriers: of the workers */
/* the keys' loader arrives, workers wait: mbarriers are ready for use */
#define INIT_BAR	2
#define RINGS_BAR	3		/* feeders arrive, workers wait: so are the rings */
#define START_BAR	4		/* workers arrive, feeders wait: the small loads have a start */
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
#define HEADS		16		/* of a task of the attention, at most */
#define KEYS		32		/* of a tile */
#define KEY_ROW		(WIDTH * 2 + 16)	/* bytes; the 16 keep eight rows on different banks */
#define STATE_ROW	((RANK + 4) * 4)

/* Shared memory */
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
	int32_t heads_shift;	/* log2 of the heads of a task: HEADS, or half as many where tasks are few */
	int32_t groups;		/* of so many heads; a task is one of them and a request */
	/* steps of outputs, and ([MLA_PRODUCTS]) slices of the merge: of every CTA, and CTAs with one more */
	int32_t each[MLA_PRODUCTS + 1], more[MLA_PRODUCTS + 1];
};

/* One product, and this CTA's share of its outputs */
struct mla_matrix {
	const char *w, *w2;
	int32_t rows, k;		/* rows of w: those after them are w2's */
	int32_t first, count, units, stages;	/* outputs; units of 16; stages of a unit */
	int32_t shift;			/* log2 of the warps that share a unit */
};

/* The workspace: two counters, then the words, each kind at so many words from the first */
struct mla_words {
	uint32_t cq, q, kv, ql, c, v, ml, o, end;
};

static __host__ __device__ __forceinline__ struct mla_words mla_words(const struct cairn_cluster_mla_args &a,
								       uint32_t slots)
{
	struct mla_words w;
	uint32_t rows = (uint32_t)a.batch * a.num_heads;

	w.cq = 32;
	w.q = w.cq + (uint32_t)a.batch * a.q_lora_rank / 2;
	w.kv = w.q + rows * (Q_DIM / 2);
	w.ql = w.kv + (uint32_t)a.batch * (WIDTH / 2);
	w.c = w.ql + rows * (RANK / 2);
	w.v = w.c + rows * (RANK / 2);
	w.ml = w.v + rows * (V_DIM / 2);
	w.o = w.ml + slots * HEADS * 2;
	w.end = w.o + slots * HEADS * RANK;
	return w;
}

/*
 * Batches of 9 to 16 have a third buffer for tiles, where the rings of the last warps are: between ABSORB and
 * the end of the attention nothing is in these.
 */
#define WIDE_RING	11
#define WIDE_TILE	(WIDE_RING * STAGES * STAGE_BYTES)
static_assert((WARPS - WIDE_RING) * STAGES * STAGE_BYTES >= KEYS * KEY_ROW, "a tile");

struct mla_wide {
	uint64_t full, empty;			/* of that tile */
	uint64_t normed;			/* workers no longer need n, which lies where tiles will */
	uint64_t absorbed, attended;		/* they have done ABSORB, the attention */
};

struct mla_small {
	struct mla_matrix m[MLA_PRODUCTS];
	struct mla_words at;
	uint64_t full[2], empty[2];		/* of the tiles */
	uint64_t ready;				/* what workers find out at the start */
	uint64_t filled[WARPS][STAGES], freed[WARPS][STAGES];	/* of the rings */
	float part[WARPS * 8], keep[HEADS];
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

/* What a thread knows throughout */
struct mla_ctx {
	uint64_t *words;
	uint32_t epoch;
	int lane, warp;
	float scale[2];			/* of rows lane / 4 and lane / 4 + 8: 1 / rms */
};

MLA void work_sync(void)
{
	ptx_bar_sync(WORK_BAR, WORKERS);
}

/* ---- words ---- */

MLA void put_word(const struct mla_ctx &c, uint32_t i, uint32_t v)
{
	ptx_st_relaxed_gpu_u64(c.words + i, (uint64_t)c.epoch << 32 | v);
}

/* i: even */
MLA void put_words(const struct mla_ctx &c, uint32_t i, uint32_t v, uint32_t w)
{
	ptx_st_relaxed_gpu_v2_u64(c.words + i, make_uint4(v, c.epoch, w, c.epoch));
}

/*
 * Pairs of words at the n places from[] after base, of which those with a set bit in `wanted` are read, as
 * soon as all of them have come; a whole warp together. All loads are in flight at once.
 */
template <int n, int all = 1>
MLA void get_words(const struct mla_ctx &c, const uint64_t *base, const int32_t (&from)[n], uint32_t wanted,
		   uint2 (&v)[n])
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
		ptx_spin_check(start, "words of the call (epoch)", c.epoch, 0);
	} while (__any_sync(~0u, missing));
#pragma unroll
	for (int i = 0; i < n; i++)
		v[i] = make_uint2(raw[i].x, raw[i].z);
}

/* ---- streams ---- */

/*
 * Where this CTA's share begins. The last CTAs get more: these have no job in the attention if not all have
 * one. The quotients are the host's, as divisions come before a feeder's first stage.
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
 * Starts the loads of a unit's stage of a product other than MLA_ABSORB. Rows come by fours, each four of one
 * matrix and within this CTA's share or not; where there are none, what was there stays, and nobody looks at
 * what becomes of it.
 */
MLA void mla_fetch_rows(const struct mla_ctx &c, const struct mla_matrix &m, int product, int unit, int stage,
			uint32_t ring, uint64_t policy)
{
	const int odd = c.lane / 16, piece = c.lane % 16, k = stage * STAGE_K + piece * 8;
	const int first = m.first + unit * 16, left = m.count - unit * 16, last = m.rows - first;
	const int row = first + odd + (product == MLA_VALUE ? (first / V_DIM + 1) * NOPE : 0);
	const int64_t other = m.w2 - m.w - (int64_t)m.rows * m.k * 2;	/* on from one matrix to the next */
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

/* The same of MLA_ABSORB, whose units have one stage */
MLA void mla_fetch_columns(const struct mla_ctx &c, const struct mla_matrix &m, int unit, uint32_t ring,
			   uint64_t policy)
{
	const int first = m.first + unit * 16, d = c.lane / 2, half = c.lane & 1, v = d >> 3 & 3;
	const char *src = m.w + ((int64_t)((first / RANK) * (NOPE + V_DIM) + d) * RANK +
				 first % RANK + half * 8) * 2;
	const uint32_t at = (((d & 3) << 1 | half) ^ (v & 1) ^ (v & 2) << 1) * 16;

#pragma unroll
	for (int i = 0; i < NOPE; i += 16) {
		/* 16 rows on, bit 1 of d / 8 is the other */
		uint32_t to = at ^ (i & 16 ? 64 : 0);

		ptx_cp_async_cg_hint(ring + ((d & ~3) + i) * 32 + to, src + i * RANK * 2, 16, policy);
	}
}

/* racecheck does not know bar.arrive, and from there on loses count of all barriers */
MLA void mla_bar_arrive(uint32_t id, uint32_t num_threads)
{
#ifdef CAIRN_DEBUG
	ptx_bar_sync(id, num_threads);
#else
	ptx_bar_arrive(id, num_threads);
#endif
}

/* All lanes: the stage is there when what they have asked for has come. */
MLA void mla_arrive_filled(uint32_t filled)
{
#ifdef CAIRN_DEBUG		/* racecheck does not see that the other way orders anything */
	ptx_cp_async_commit_group();
	ptx_cp_async_wait_group<0>();
	ptx_mbarrier_arrive(filled);
#else
	ptx_cp_async_mbarrier_arrive_noinc(filled);
#endif
}

#endif
