/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ladder_tma - the fetch of steps 4 and 5: a producer warp and its mbarriers
 *
 * One lane of the producer warp starts TMA copies of boxes of Q, K and V, which arrive swizzled as wgmma
 * reads them. It waits only for free stages. Tiles are panels of 64 columns (wgmma.cuh).
 *
 * mbarriers, one of each kind for each stage: full_* has one arrival, by the producer, and counts bytes;
 * empty_* has one arrival of each consumer warp. Shared memory: Q 32 KiB, then K and V of each stage, 32 KiB
 * each, then the mbarriers: 160 KiB.
 */
#ifndef CAIRN_LADDER_TMA_CUH
#define CAIRN_LADDER_TMA_CUH

#include <cuda.h>

#include "fused/attention/ladder/ladder.cuh"
#include "primitives/base/tensor_map.h"
#include "primitives/ptx/elect.cuh"
#include "primitives/ptx/ptx_copy.cuh"
#include "primitives/ptx/wgmma.cuh"

#define ROWS		128			/* rows of a CTA: 64 for each of two consumer warpgroups */
#define KEYS		128
#define STAGES		2
#define CONSUMERS	256			/* threads; the producer's warpgroup follows */
#define THREADS		(CONSUMERS + 128)
#define PANEL		(128 * 128)		/* bytes of 128 rows of 64 columns */
#define TILE		(2 * PANEL)
#define SMEM_BYTES	((1 + 2 * STAGES) * TILE + 128)

struct ladder_maps {
	CUtensorMap q, k, v;
};

/* Addresses in shared memory. */
struct ladder_smem {
	uint32_t q, k, v, full_q, full_k, full_v, empty_k, empty_v, landed;
};

/* Lays out shared memory and initialises the mbarriers. All threads call this. */
ATTN_DEV struct ladder_smem ladder_open(const uint8_t *s_all)
{
	uint32_t at = ptx_smem(s_all), bar = at + (1 + 2 * STAGES) * TILE;
	struct ladder_smem s = { at, at + TILE, at + (1 + STAGES) * TILE, bar, bar + 16, bar + 32, bar + 48,
				 bar + 64, bar + 80 };

	if (threadIdx.x == 0) {
		ptx_mbarrier_init(s.full_q, 1);
		ptx_mbarrier_init(s.landed, 1);
		for (int i = 0; i < STAGES; i++) {
			ptx_mbarrier_init(s.full_k + 8 * i, 1);
			ptx_mbarrier_init(s.full_v + 8 * i, 1);
			ptx_mbarrier_init(s.empty_k + 8 * i, CONSUMERS / 32 * ELECTED_LANES);
			ptx_mbarrier_init(s.empty_v + 8 * i, CONSUMERS / 32 * ELECTED_LANES);
		}
		ptx_fence_mbarrier_init_release_cluster();
	}
	__syncthreads();
	return s;
}

/*
 * Starts the copy of a tile of 128 rows in two boxes. y and z are row and head, or head and row, as in the
 * map.
 */
ATTN_DEV void ladder_fetch(uint32_t to, const CUtensorMap *map, int y, int z, uint32_t mbar)
{
	if (threadIdx.x % 32)
		return;
	ptx_mbarrier_arrive_expect_tx(mbar, TILE);
	ptx_cp_async_bulk_tensor_3d_g2s(to, map, 0, y, z, mbar);
	ptx_cp_async_bulk_tensor_3d_g2s(to + PANEL, map, 64, y, z, mbar);
}

/* The producer: one warp fetches the row tile's Q and its `tiles` tiles of K and V. */
ATTN_DEV void ladder_produce(const struct ladder_maps &maps, const struct ladder_smem &s,
			     const struct ladder_tile &t, int tiles)
{
	if (threadIdx.x >= CONSUMERS + 32)
		return;
	ladder_fetch(s.q, &maps.q, t.head, t.qo_first + t.row0, s.full_q);
	for (int i = 0; i < tiles; i++) {
		int stage = i % STAGES, row = t.kv_first + i * KEYS, left = t.kv_len - i * KEYS;
		uint32_t free_phase = ~(i / STAGES) & 1;
		uint32_t s_v = s.v + stage * TILE, full_v = s.full_v + 8 * stage;

		ptx_mbarrier_wait(s.empty_k + 8 * stage, free_phase);
		ladder_fetch(s.k + stage * TILE, &maps.k, row, t.kv_head, s.full_k + 8 * stage);
		ptx_mbarrier_wait(s.empty_v + 8 * stage, free_phase);
		ladder_fetch(s_v, &maps.v, row, t.kv_head, left < KEYS ? s.landed : full_v);
		if (left >= KEYS)
			continue;
		/* rows past the request's end become zeros: they may hold NaN, and 0 * NaN is NaN */
		ptx_mbarrier_wait(s.landed, 0);
		for (int at = left * 128 + threadIdx.x % 32 * 16; at < PANEL; at += 32 * 16) {
			ptx_st_shared_v4(s_v + at, make_uint4(0, 0, 0, 0));
			ptx_st_shared_v4(s_v + PANEL + at, make_uint4(0, 0, 0, 0));
		}
		ptx_fence_proxy_async_shared_cta();
		__syncwarp();
		if (threadIdx.x % 32 == 0)
			ptx_mbarrier_arrive(full_v);
	}
}

/* Launches a kernel whose parameters are the arguments and the maps. */
static int ladder_launch_tma(const void *f16, const void *bf16, const struct cairn_attn_dense_args *args,
			     void *stream)
{
	const struct ladder_kernel kernel = { { f16, bf16 }, ROWS, THREADS, SMEM_BYTES };
	struct cairn_tensor_layout l = { .dims = 3, .element_bytes = 2, .swizzle = 128, .promotion = 256 };
	struct cairn_attn_dense_args a;
	struct ladder_maps maps;
	void *params[] = { &a, &maps };

	CAIRN_TRY(ladder_take(args, &a));
	l.data = a.q;	/* [token][head][column] */
	l.size[0] = LADDER_DIM;
	l.size[1] = (uint64_t)a.num_qo_heads;
	l.size[2] = (uint64_t)(a.nnz_qo ? a.nnz_qo : 1);
	l.stride[0] = LADDER_DIM * 2;
	l.stride[1] = (uint64_t)a.q_stride * 2;
	l.box[0] = 64;
	l.box[1] = 1;
	l.box[2] = ROWS;
	CAIRN_TRY(cairn_tensor_map(&maps.q, &l, "ladder"));
	l.data = a.k;	/* [head][token][column] */
	l.size[1] = (uint64_t)(a.nnz_kv ? a.nnz_kv : 1);
	l.size[2] = (uint64_t)a.num_kv_heads;
	l.stride[0] = (uint64_t)a.k_stride * 2;
	l.stride[1] = (uint64_t)a.k_head_stride * 2;
	l.box[1] = KEYS;
	l.box[2] = 1;
	CAIRN_TRY(cairn_tensor_map(&maps.k, &l, "ladder"));
	l.data = a.v;
	l.stride[0] = (uint64_t)a.v_stride * 2;
	l.stride[1] = (uint64_t)a.v_head_stride * 2;
	CAIRN_TRY(cairn_tensor_map(&maps.v, &l, "ladder"));
	return ladder_launch(&kernel, &a, params, stream);
}

#endif
