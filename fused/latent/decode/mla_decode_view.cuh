/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mla_decode_view - a call of mla_decode as its kernel sees it: tasks, shared memory, barriers
 *
 * Packed row r of a request is token r / num_heads, head r % num_heads. A task is a tile of packed rows and a
 * share of the keys that its last row sees, in tiles of 64 keys. With lists of slots each token counts as a
 * request of its own.
 */
#ifndef CAIRN_MLA_DECODE_VIEW_CUH
#define CAIRN_MLA_DECODE_VIEW_CUH

#include <cuda.h>

#include "fused/attention/base/attn_panel.cuh"
#include "fused/attention/base/attn_tile.cuh"
#include "primitives/ptx/elect.cuh"
#include "primitives/ptx/ptx_copy.cuh"

#define MLA_RANK	512
#define MLA_ROPE	64
#define MLA_KEY_BYTES	((MLA_RANK + MLA_ROPE) * 2)
#define MLA_FP8_KEY_BYTES 656
#define MLA_KEYS	64
#define MLA_ROWS	64		/* packed rows of a CTA */
#define MLA_PANELS	9		/* of 64 columns each: eight of the latent, one of the rotated part */
#define MLA_PANEL_BYTES	(64 * ATTN_PANEL)
#define MLA_TILE_BYTES	(MLA_PANELS * MLA_PANEL_BYTES)
#define MLA_GROUPS	5		/* of panels that arrive together: 0 1, 2 3, 4 5, 6 7, 8 */
#define MLA_CONSUMERS	256		/* threads; the producer has 128, or 256 if it converts keys */
#define MLA_MAX_SPLITS	64

/*
 * Offsets in shared memory: Q, two tiles of keys, P, softmax states, mbarriers, which keys of a
 * tile count, and what the search for a task needs. Where Q has only 32 rows, the other half of each of its
 * panels is free for 8-bit keys that wait to be converted.
 */
#define MLA_AT_KEYS	MLA_TILE_BYTES
#define MLA_AT_P	(3 * MLA_TILE_BYTES)
#define MLA_AT_STATE	(MLA_AT_P + MLA_ROWS * MLA_KEYS * 2)
#define MLA_AT_BARRIERS	(MLA_AT_STATE + 128 * 16)
#define MLA_AT_VALID	(MLA_AT_BARRIERS + 256)
#define MLA_AT_FOUND	(MLA_AT_VALID + 2 * MLA_KEYS * 2)
#define MLA_SMEM_BYTES	(MLA_AT_FOUND + 96)

/* Ways in which the producer finds and copies keys. */
enum mla_fetch {
	MLA_BOXES,		/* by TMA, from pages of whole tiles */
	MLA_CLUSTERS,		/* the same, each panel by one of two CTAs for both */
	MLA_THREADS_16,		/* by threads, from pages of any size or lists of slots */
	MLA_THREADS_8,		/* the same for 8-bit keys, which threads convert */
	MLA_PAIRS_8,		/* the same by two CTAs, each of which converts half of the keys for both */
};

/* Returns the threads of a CTA. */
static constexpr __host__ __device__ int mla_threads(int fetch)
{
	return MLA_CONSUMERS + (fetch >= MLA_THREADS_8 ? 256 : 128);
}

/* Returns the CTAs of a cluster that share each tile of keys: they have consecutive tasks. */
static constexpr __host__ __device__ int mla_sharers(int fetch)
{
	return fetch == MLA_CLUSTERS || fetch == MLA_PAIRS_8 ? 2 : 1;
}

struct mla_call {
	void *out;
	float *lse, *part;		/* part: [splits][rows][MLA_RANK], O before the division by l */
	float2 *ml;			/* [splits][rows]: maximum before sm_scale, and sum */
	const uint8_t *pages;
	const int32_t *qo_indptr, *kv_indptr, *kv_indices, *last_page_len, *slots;
	int64_t rows;			/* nnz_qo * num_heads */
	uint32_t magic;			/* attn_magic(num_heads) */
	int32_t batch, num_heads, page_size, page_shift, num_slots;
	int32_t splits;
	int32_t tasks;			/* an upper bound of the tasks of a split */
	int32_t first_task;		/* of this launch */
	float sm_scale;
};

struct mla_maps {
	CUtensorMap latent, rope;	/* the queries' two parts, as [rows][512] and [rows][64] */
	CUtensorMap pairs, panels;	/* the pool in boxes of 64 keys, of two panels or one */
};

/* A task. num_rows 0: there is none. */
struct mla_task {
	int32_t row0, num_rows;		/* this CTA's packed rows of the request */
	int32_t qo_len, kv_len;
	int32_t first, count;		/* its first tile of keys and the number of its tiles */
	int64_t at;			/* its first packed row, counted over all requests */
	const int32_t *keys;		/* pages or slots */
};

ATTN_DEV int mla_thread(void) { return threadIdx.x % 128; }

/* Returns the number of a producer thread. */
ATTN_DEV int mla_copier(void) { return threadIdx.x - MLA_CONSUMERS; }

/* Returns the CTA's rank among those that share tiles of keys. */
template <int fetch> ATTN_DEV int mla_rank(void)
{
	return mla_sharers(fetch) > 1 ? (int)ptx_cluster_ctarank() : 0;
}

/* mbarriers: of a tile's buffer and group of panels, buffer and half of the columns, and tile and warp */
ATTN_DEV uint32_t mla_full(uint32_t smem, int buffer, int group)
{
	return smem + MLA_AT_BARRIERS + (buffer * MLA_GROUPS + group) * 8;
}

ATTN_DEV uint32_t mla_free(uint32_t smem, int buffer, int half)
{
	return smem + MLA_AT_BARRIERS + 80 + (buffer * 2 + half) * 8;
}

ATTN_DEV uint32_t mla_p_ready(uint32_t smem, int tile, int warp)
{
	return smem + MLA_AT_BARRIERS + 112 + ((tile & 1) * 4 + warp) * 8;
}

ATTN_DEV uint32_t mla_q_full(uint32_t smem) { return smem + MLA_AT_BARRIERS + 176; }

/*
 * Each thread that copies keys arrives once for its copies, and each of these warps once for its stores. With
 * MLA_PAIRS_8 one thread arrives besides, and expects the bytes of the other CTA.
 * Buffers are free when the consumers of all CTAs that get the same copies have released them.
 */
template <int fetch> ATTN_DEV void mla_init_barriers(uint32_t smem)
{
	const int ctas = mla_sharers(fetch), warps = (mla_threads(fetch) - MLA_CONSUMERS) / 32;
	const int copies = fetch == MLA_THREADS_16 ? 128 : fetch == MLA_PAIRS_8;

	for (int buffer = 0; buffer < 2; buffer++) {
		for (int g = 0; g < MLA_GROUPS; g++)
			ptx_mbarrier_init(mla_full(smem, buffer, g), fetch < MLA_THREADS_16 ? 1 :
					  copies + warps * ELECTED_LANES);
		for (int half = 0; half < 2; half++)
			ptx_mbarrier_init(mla_free(smem, buffer, half), ctas * 4 * ELECTED_LANES);
		for (int warp = 0; warp < 4; warp++)
			ptx_mbarrier_init(mla_p_ready(smem, buffer, warp), ELECTED_LANES);
	}
	ptx_mbarrier_init(mla_q_full(smem), 1);
	ptx_fence_mbarrier_init_release_cluster();
}

/* A tile of packed rows: its number from the end of its request, and the request's rows, pages and keys. */
struct mla_found {
	int32_t tile, qo_first, qo_len, first_page, kv_len;
};

/*
 * Returns *base plus the sum of `own` over the calling thread and the threads before it in the CTA, and adds
 * the sum over all threads to *base. s_warp: [threads / 32]. All threads must call it; before the next call,
 * they must synchronise.
 */
template <int threads> ATTN_DEV int32_t mla_upto(int32_t own, int32_t *s_warp, int32_t *base)
{
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	int32_t upto = own, before = *base;

#pragma unroll
	for (int s = 1; s < 32; s *= 2) {
		int32_t x = __shfl_up_sync(~0u, upto, s);

		upto += lane >= s ? x : 0;
	}
	if (lane == 31)
		s_warp[warp] = upto;
	__syncthreads();
#pragma unroll 4
	for (int w = 0; w < threads / 32; w++) {
		before += w < warp ? s_warp[w] : 0;
		*base += s_warp[w];
	}
	return upto + before;
}

/*
 * Finds the tile of packed rows that has number `id` among those of all requests. Returns false if there is
 * none. All threads must call it.
 */
template <int threads>
ATTN_DEV bool mla_find_tile(const struct mla_call &c, int32_t id, struct mla_found *found, uint8_t *s_all)
{
	int32_t *s_warp = (int32_t *)(s_all + MLA_AT_FOUND);
	struct mla_found *s_found = (struct mla_found *)(s_warp + threads / 32);
	int32_t base = 0;

	if (threadIdx.x == 0)
		s_found->tile = -1;
	for (int32_t first = 0; first < c.batch; first += threads) {
		int32_t b = first + threadIdx.x, own = 0, upto;
		struct mla_found f = {};

		if (b < c.batch) {
			f.qo_first = c.qo_indptr[b];
			f.qo_len = c.qo_indptr[b + 1] - f.qo_first;
			f.first_page = c.kv_indptr[b];
			f.kv_len = kv_walk_len(c.kv_indptr[b + 1] - f.first_page, c.last_page_len[b],
					       c.page_size);
			own = attn_div_up(f.qo_len * c.num_heads, MLA_ROWS);
		}
		upto = mla_upto<threads>(own, s_warp, &base);
		if (id >= upto - own && id < upto) {
			f.tile = upto - 1 - id;		/* the last rows come first */
			*s_found = f;
		}
		__syncthreads();
	}
	*found = *s_found;
	return found->tile >= 0;
}

/* Sets the task's share of the keys. visible: the number of keys that its last row sees. */
ATTN_DEV void mla_share(const struct mla_call &c, struct mla_task *t, int32_t visible)
{
	const int32_t tiles = attn_div_up(visible, MLA_KEYS), splits = min(c.splits, tiles);
	const int32_t split = blockIdx.y;

	t->first = split < splits ? attn_share(tiles, splits, split) : 0;
	t->count = split < splits ? attn_share(tiles, splits, split + 1) - t->first : 0;
}

/* Returns the task of this CTA. All threads must call it. */
template <int threads> ATTN_DEV struct mla_task mla_find_task(const struct mla_call &c, uint8_t *s_all)
{
	const int32_t id = c.first_task + blockIdx.x;
	struct mla_found f;
	struct mla_task t = {};
	int32_t all;

	if (c.slots) {
		int32_t each = attn_div_up(c.num_heads, MLA_ROWS), token = id / each;

		if (token >= c.qo_indptr[c.batch])
			return t;
		f = { id - token * each, token, 1, 0, c.num_slots };
		t.keys = c.slots + (int64_t)token * c.num_slots;
	} else {
		if (!mla_find_tile<threads>(c, id, &f, s_all))
			return t;
		t.keys = c.kv_indices + f.first_page;
	}
	t.qo_len = f.qo_len;
	t.kv_len = f.kv_len;
	t.at = (int64_t)f.qo_first * c.num_heads;
	all = t.qo_len * c.num_heads;
	t.row0 = f.tile * MLA_ROWS;
	mla_share(c, &t, attn_visible(attn_token(min(t.row0 + MLA_ROWS, all) - 1, c.magic), t.qo_len,
				      t.kv_len, 1));
	t.num_rows = max(0, min(all - t.row0, MLA_ROWS));
	t.at += t.row0;
	return t;
}

#endif
