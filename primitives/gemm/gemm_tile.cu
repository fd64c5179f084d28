/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_tile - gemm for 9 to 64 rows of a: tiles of b go through shared memory to wgmma, a cluster shares k
 *
 * Computes out^T = b a^T: a tile has up to 64 rows of b as its rows and 16, 32, 48 or 64 rows of a (`cols`)
 * as its columns. Clusters of two CTAs are persistent over tiles, whose common height gives every cluster
 * equally many (pick_shape()); if there are few tiles, four or eight CTAs share each. The CTAs of a cluster
 * take the stages of k in turn, so that at any time a cluster reads neighbouring bytes of a row. At the end
 * of a tile each CTA sends its partial sums by st.async to the CTA that adds up that part of the tile in
 * rank order and writes it, while stages of the next tile arrive.
 *
 * gemm_gated: in a tile, eight rows of gate and the same eight rows of up alternate, so that both sums of a
 * result are in one lane. The clusters and the order of sums are those of the plain product.
 *
 * Warps: four multiply, four add up and write, one fetches by TMA; it fetches b before the preceding kernel
 * of the stream has ended.
 *
 * Shared memory (dynamic), panels of 64 along k, swizzled by 128 bytes:
 *	the ring	RING stages	[panel][64 rows of b][64] elements
 *					[panel][cols][64] elements of a
 *	sums		2 x float4 [rank][items][32 lanes]: an item is a warp's partial sums of 8 columns
 *	barriers	full, empty [RING]; sums_full, sums_free [2]
 *
 * Floor: reading b once, 2 n k bytes at the rate of stream READ; an SM receives about 25 bytes per clock and
 * needs cols / 64 bytes of a for each byte of b.
 *
 * cairn_gemm() uses this kernel up to m 48, and up to m 64 if k is at least twice n. For other shapes with m
 * 64 cuBLASLt is faster, because too much of a comes through the L2.
 *
 * Figures and optimisation history: NOTES.md.
 */
#include "primitives/gemm/gemm.cuh"
#include "primitives/base/launch.h"
#include "primitives/ptx/ptx_copy.cuh"
#include "primitives/ptx/elect.cuh"
#include "primitives/base/tensor_map.h"
#include "primitives/ptx/wgmma.cuh"

#define PANEL_K		64
#define PANEL_ROW	(PANEL_K * 2)	/* bytes */
#define TILE_ROWS	64		/* rows of b in a tile, at most */
#define B_PANEL		(TILE_ROWS * PANEL_ROW)
#define MAX_CLUSTER	8
#define WORKERS		4		/* warps */
#define WRITERS		4
#define THREADS		((WORKERS + WRITERS + 1) * 32)
#define SMEM_LIMIT	(227 * 1024)

/* Longer pieces of a row use memory better, but with many rows of a they do not fit. */
#define PANELS(cols)		((cols) == 16 ? 4 : 2)	/* panels in a stage */
#define A_PANEL(cols)		((cols) * PANEL_ROW)
#define STAGE_BYTES(cols)	(PANELS(cols) * (B_PANEL + A_PANEL(cols)))
#define SUMS_BYTES(cols)	(TILE_ROWS * (cols) * 4)
#define RING(cols)		((SMEM_LIMIT - 1024 - 2 * SUMS_BYTES(cols)) / STAGE_BYTES(cols))
#define BARRIERS(cols)		(2 * RING(cols) + 4)
#define SMEM_BYTES(cols)	(RING(cols) * STAGE_BYTES(cols) + 2 * SUMS_BYTES(cols) + BARRIERS(cols) * 8)

#define TILE			static __device__ __forceinline__

/*
 * Under racecheck a warp leaves a cluster barrier only after all warps of its CTA have reached it. If the
 * fetching warp needs free slots in the ring before it reaches the barrier, it and the multiplying warps wait
 * for each other. In a DEBUG build, which racecheck uses, all warps wait at the start instead.
 */
#ifdef CAIRN_DEBUG
#define WAIT_AT_START	1
#else
#define WAIT_AT_START	0
#endif

struct maps {
	CUtensorMap a, b;	/* boxes: 64 of k and `cols` rows of a; 64 of k and a tile's rows of b */
				/* b of gemm_gated: k, eight rows, gate and up, eights */
};

struct plan {
	int rows, tiles;	/* rows of b per tile, a multiple of 8; tiles in all */
	int size;		/* CTAs of a cluster */
};

/* Shared addresses, and this CTA's part of the work */
struct mine {
	uint32_t ring, sums, full, empty, sums_full, sums_free;
	int rank, cluster, clusters;	/* rank in the cluster; cluster; clusters in all */
	int count;		/* stages of a tile that this CTA takes */
};

/* Waits until the peers have initialised their mbarriers, unless that was done at the start. */
TILE void wait_for_peers(void)
{
	if (!WAIT_AT_START)
		ptx_barrier_cluster_wait_acquire();
}

/* Position in the ring: slot, and the parity of the number of times the ring wrapped */
struct turn {
	int slot, parity;
};

TILE void advance(struct turn *t, int ring)
{
	if (++t->slot == ring) {
		t->slot = 0;
		t->parity ^= 1;
	}
}

/* Returns the first k of panel q of this CTA's stage i. */
template <int cols> TILE int along_k(const struct plan &p, const struct mine &s, int i, int q)
{
	return ((i * p.size + s.rank) * PANELS(cols) + q) * PANEL_K;
}

template <int cols>
TILE void fetch_a(const struct maps &maps, const struct plan &p, const struct mine &s, int i, int slot)
{
	const uint32_t to = s.ring + slot * STAGE_BYTES(cols) + PANELS(cols) * B_PANEL;

#pragma unroll
	for (int q = 0; q < PANELS(cols); q++)
		ptx_cp_async_bulk_tensor_2d_g2s(to + q * A_PANEL(cols), &maps.a, along_k<cols>(p, s, i, q), 0,
						s.full + slot * 8);
}

/* Fetches a panel of b. row: the tile's first row of b, in the order in which tiles have them */
template <bool gated>
TILE void fetch_b(uint32_t to, const struct maps &maps, int k, int row, uint32_t full, uint64_t policy)
{
	if (gated)
		ptx_cp_async_bulk_tensor_4d_g2s_hint(to, &maps.b, k, 0, 0, row / 16, full, policy);
	else
		ptx_cp_async_bulk_tensor_2d_g2s_hint(to, &maps.b, k, row, full, policy);
}

/*
 * Runs in one lane. The weight b does not depend on the preceding kernel: fetches a ring full of b, then
 * waits for that kernel and fetches a.
 */
template <int cols, bool gated>
TILE void fetch(const struct maps &maps, const struct plan &p, const struct mine &s)
{
	const uint64_t policy = ptx_createpolicy_evict_first();
	const int early = min(RING(cols), s.count) - 1;
	const uint32_t bytes = PANELS(cols) * (p.rows * PANEL_ROW + A_PANEL(cols));
	struct turn t = { 0, 1 };

	for (int tile = s.cluster; tile < p.tiles; tile += s.clusters) {
		const bool first = tile == s.cluster;

		for (int i = 0; i < s.count; i++) {
			const uint32_t to = s.ring + t.slot * STAGE_BYTES(cols), full = s.full + t.slot * 8;

			ptx_mbarrier_wait(s.empty + t.slot * 8, t.parity);
			ptx_mbarrier_arrive_expect_tx(full, bytes);
#pragma unroll
			for (int q = 0; q < PANELS(cols); q++)
				fetch_b<gated>(to + q * B_PANEL, maps, along_k<cols>(p, s, i, q),
					       tile * p.rows, full, policy);
			if (first && i == early) {
				ptx_griddepcontrol_wait();
				for (int before = 0; before < i; before++)
					fetch_a<cols>(maps, p, s, before, before);
			}
			if (!first || i >= early)
				fetch_a<cols>(maps, p, s, i, t.slot);
			advance(&t, RING(cols));
		}
	}
}

/* Returns the number of items of a tile that each rank adds up. */
template <int cols> TILE int items_of(const struct plan &p)
{
	return WORKERS * (cols / 8) / p.size;
}

/* Sends a warp's partial sums of the nth tile, d: [cols / 8][4], to the ranks that add them up. */
template <int cols>
TILE void send(const struct plan &p, const struct mine &s, int nth, int warp, const float *d)
{
	const int items = items_of<cols>(p), lane = threadIdx.x % 32, buffer = nth & 1;
	const uint32_t mine = s.sums + buffer * SUMS_BYTES(cols) + (s.rank * items * 32 + lane) * 16;

	if (nth >= 2)
		ptx_mbarrier_wait_cluster(s.sums_free + buffer * 8, (nth / 2 - 1) & 1);
#pragma unroll
	for (int j = 0; j < cols / 8; j++) {
		const int item = warp * (cols / 8) + j, to = item / items;

		ptx_st_async_v4(ptx_mapa(mine + item % items * 512, to),
				make_uint4(__float_as_uint(d[4 * j]), __float_as_uint(d[4 * j + 1]),
					   __float_as_uint(d[4 * j + 2]), __float_as_uint(d[4 * j + 3])),
				ptx_mapa(s.sums_full + buffer * 8, to));
	}
}

template <int dtype, int cols> TILE void multiply(const struct plan &p, const struct mine &s, int warp)
{
	struct turn t = { 0, 0 };
	float d[cols / 2];
	int nth = 0;

	for (int tile = s.cluster; tile < p.tiles; tile += s.clusters, nth++) {
		uint32_t before = 0;

#pragma unroll
		for (int j = 0; j < cols / 2; j++)
			d[j] = 0;
		for (int i = 0; i < s.count; i++) {
			const uint32_t at = s.ring + t.slot * STAGE_BYTES(cols);
			const uint64_t b = wgmma_desc(at, 0);
			const uint64_t a = wgmma_desc(at + PANELS(cols) * B_PANEL, 0);

			ptx_mbarrier_wait(s.full + t.slot * 8, t.parity);
			wgmma_keep<cols / 2>(d);
			ptx_wgmma_fence();
#pragma unroll
			for (int q = 0; q < PANELS(cols); q++)
#pragma unroll
				for (int step = 0; step < PANEL_K / 16; step++)
					ptx_wgmma_ss<dtype, cols>(d, b + (q * B_PANEL >> 4) + 2 * step,
								  a + (q * A_PANEL(cols) >> 4) + 2 * step, 1);
			ptx_wgmma_commit_group();
			wgmma_keep<cols / 2>(d);
			ptx_wgmma_wait_group<1>();
			if (i)
				elected_arrive(before);
			before = s.empty + t.slot * 8;
			advance(&t, RING(cols));
		}
		ptx_wgmma_wait_group<0>();
		wgmma_keep<cols / 2>(d);
		if (s.count)
			elected_arrive(before);
		if (nth == 0)
			wait_for_peers();
		send<cols>(p, s, nth, warp, d);
	}
}

/*
 * For each tile, adds up what all ranks sent for this rank's items, applies bias and residual, and writes
 * out.
 */
template <int dtype, int cols, bool gated>
TILE void write_out(const struct cairn_gemm_args &g, const void *residual, const struct plan &p,
		    const struct mine &s, int warp)
{
	const int items = items_of<cols>(p), lane = threadIdx.x % 32;
	int nth = 0;

	wait_for_peers();
	for (int tile = s.cluster; tile < p.tiles; tile += s.clusters, nth++) {
		const uint32_t full = s.sums_full + (nth & 1) * 8;
		const uint32_t sums = s.sums + (nth & 1) * SUMS_BYTES(cols) + lane * 16;

		if (warp == 0 && lane == 0)
			ptx_mbarrier_arrive_expect_tx(full, SUMS_BYTES(cols));
		ptx_mbarrier_wait_cluster(full, nth / 2 & 1);
		if (nth == 0)
			ptx_griddepcontrol_wait();	/* the preceding kernel may read out's memory */
		for (int it = warp; it < items; it += WRITERS) {
			const int item = s.rank * items + it, i = item % (cols / 8) * 8 + lane % 4 * 2;
			const int row = item / (cols / 8) * 16 + lane / 4, j = tile * p.rows + row;
			float v[4] = { 0, 0, 0, 0 };

#pragma unroll
			for (int from = 0; from < MAX_CLUSTER; from++) {
				uint4 x;

				if (from >= p.size)
					break;
				x = ptx_ld_shared_v4(sums + (from * items + it) * 512);
				v[0] += __uint_as_float(x.x);
				v[1] += __uint_as_float(x.y);
				v[2] += __uint_as_float(x.z);
				v[3] += __uint_as_float(x.w);
			}
#pragma unroll
			for (int e = 0; e < 2 && gated; e++)	/* row is one of gate; up's is eight below */
				if (i + e < g.m && row < p.rows && j < g.n)
					gemm_store_gated<dtype>(g, i + e, (j - lane / 4) / 2 + lane / 4, v[e],
								v[e + 2]);
#pragma unroll
			for (int e = 0; e < 4 && !gated; e++)
				if (i + e % 2 < g.m && row + e / 2 * 8 < p.rows && j + e / 2 * 8 < g.n)
					gemm_store(g, i + e % 2, j + e / 2 * 8, v[e], residual);
		}
		__syncwarp();
		/* only if a send waits for it: no arrival may be in flight to a CTA that has exited */
		if (tile + 2 * s.clusters < p.tiles && lane < p.size)
			ptx_mbarrier_arrive_cluster(ptx_mapa(s.sums_free + (nth & 1) * 8, lane));
	}
}

template <int dtype, int cols, bool gated>
__global__ void __launch_bounds__(THREADS, 1)
gemm_tile_kernel(const __grid_constant__ struct cairn_gemm_args g, const __grid_constant__ struct maps maps,
		 const __grid_constant__ struct plan p, const void *residual)
{
	extern __shared__ __align__(1024) unsigned char s_mem[];
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	const int stages = (g.k + PANELS(cols) * PANEL_K - 1) / (PANELS(cols) * PANEL_K);
	struct mine s;

	s.rank = blockIdx.x % p.size;
	s.cluster = blockIdx.x / p.size;
	s.clusters = gridDim.x / p.size;
	s.count = (stages - s.rank + p.size - 1) / p.size;
	s.ring = ptx_smem(s_mem);
	s.sums = s.ring + RING(cols) * STAGE_BYTES(cols);
	s.full = s.sums + 2 * SUMS_BYTES(cols);
	s.empty = s.full + RING(cols) * 8;
	s.sums_full = s.empty + RING(cols) * 8;
	s.sums_free = s.sums_full + 2 * 8;
	ptx_griddepcontrol_launch_dependents();
	if (threadIdx.x == 0) {
		ptx_prefetch_tensormap(&maps.b);
		ptx_prefetch_tensormap(&maps.a);
		for (int i = 0; i < RING(cols); i++) {
			ptx_mbarrier_init(s.full + i * 8, 1);
			ptx_mbarrier_init(s.empty + i * 8, WORKERS * ELECTED_LANES);
		}
		for (int i = 0; i < 2; i++) {
			ptx_mbarrier_init(s.sums_full + i * 8, 1);
			ptx_mbarrier_init(s.sums_free + i * 8, p.size * WRITERS);
		}
		ptx_fence_mbarrier_init_release_cluster();
	}
	__syncthreads();
	ptx_barrier_cluster_arrive_release();
	if (WAIT_AT_START)
		ptx_barrier_cluster_wait_acquire();
	if (warp < WORKERS) {
		multiply<dtype, cols>(p, s, warp);
	} else if (warp < WORKERS + WRITERS) {
		write_out<dtype, cols, gated>(g, residual, p, s, warp - WORKERS);
	} else {
		if (lane == 0)
			fetch<cols, gated>(maps, p, s);
		__syncwarp();
		wait_for_peers();
	}
	__syncwarp();
	/* a CTA must not exit while a peer may still write to its shared memory */
	ptx_barrier_cluster_arrive_relaxed();
	ptx_barrier_cluster_wait_acquire();
}

static int make_map(CUtensorMap *map, const void *matrix, int rows, int k, int box_rows)
{
	const struct cairn_tensor_layout t = {
		.data = matrix, .dims = 2, .element_bytes = 2, .size = { (uint64_t)k, (uint64_t)rows },
		.stride = { (uint64_t)k * 2 }, .box = { PANEL_K, (uint32_t)box_rows }, .swizzle = 128,
	};

	return cairn_tensor_map(map, &t, "gemm");
}

/* The map of b for gemm_gated, whose tiles have `box_rows` rows, a multiple of 16. */
static int make_gated_map(CUtensorMap *map, const struct cairn_gemm_args *g, int box_rows)
{
	const uint64_t row = (uint64_t)g->k * 2;
	const struct cairn_tensor_layout t = {
		.data = g->b, .dims = 4, .element_bytes = 2,
		.size = { (uint64_t)g->k, 8, 2, (uint64_t)g->n / 16 },
		.stride = { row, (uint64_t)g->n / 2 * row, 8 * row },
		.box = { PANEL_K, 8, 2, (uint32_t)box_rows / 16 }, .swizzle = 128,
	};

	return cairn_tensor_map(map, &t, "gemm");
}

static int div_up(int a, int b)
{
	return (int)(((int64_t)a + b - 1) / b);
}

/* Returns how many clusters of `size` CTAs, one CTA per SM, are resident at once, or -errno. */
static int num_clusters(const void *kernel, int size)
{
	struct cairn_launch l = { .grid = { (unsigned int)size }, .block = { THREADS }, .smem = SMEM_LIMIT,
				  .cluster = size };

	return cairn_max_active_clusters(kernel, &l);
}

/*
 * Chooses the largest cluster size with which all clusters run at once, else pairs; then the tile height that
 * gives all clusters equally many tiles.
 */
static int pick_shape(const struct cairn_gemm_args *g, bool gated, const void *kernel, struct plan *p,
		      int *clusters)
{
	const int unit = gated ? 16 : 8;
	int tiles = div_up(g->n, TILE_ROWS), at_once, rounds, sms = cairn_sms_of(g->sms);

	if (sms < 0)
		return sms;
	if (sms < 2)
		return cairn_error(EOPNOTSUPP, "gemm: sms: m %d needs at least 2, for a cluster", g->m);
	for (p->size = MAX_CLUSTER;; p->size /= 2) {
		at_once = num_clusters(kernel, p->size);
		if (at_once < 0)
			return at_once;
		at_once = at_once < sms / p->size ? at_once : sms / p->size;
		if (tiles <= at_once || p->size == 2)
			break;
	}
	if (!at_once)
		return cairn_error(EOPNOTSUPP, "gemm: this device cannot run a cluster of 2 CTAs");
	rounds = div_up(tiles, at_once);
	p->rows = div_up(div_up(g->n, at_once * rounds), unit) * unit;
	if (p->rows < TILE_ROWS / 2)	/* limits the traffic of a, all of which is read for each tile */
		p->rows = TILE_ROWS / 2;
	p->tiles = div_up(g->n, p->rows);
	*clusters = p->tiles < at_once ? p->tiles : at_once;
	return 0;
}

/* Kernels of gemm and of gemm_gated, for bf16 and f16; their columns and bytes of shared memory */
struct form {
	const void *kernel[2][2];
	int cols, smem;
};

#define KERNELS(cols, gated)	{ (const void *)gemm_tile_kernel<CAIRN_BF16, cols, gated>, \
				  (const void *)gemm_tile_kernel<CAIRN_F16, cols, gated> }
#define FORM(cols)	{ { KERNELS(cols, false), KERNELS(cols, true) }, cols, SMEM_BYTES(cols) }
#define FORM_64		{ { KERNELS(64, false) }, 64, SMEM_BYTES(64) }	/* gemm_gated has at most 48 rows */

extern "C" int cairn_gemm_tile(const struct cairn_gemm_args *g, const void *residual, bool gated,
			       void *stream)
{
	static const struct form forms[4] = { FORM(16), FORM(32), FORM(48), FORM_64 };
	const struct form *form = &forms[(g->m - 1) / 16];
	const void *kernel = form->kernel[gated][g->dtype == CAIRN_F16];
	struct cairn_launch l = { .block = { THREADS }, .smem = (size_t)form->smem, .pdl = !g->sms,
				  .stream = stream };
	int clusters;
	struct maps maps;
	struct plan p;
	void *params[] = { (void *)g, &maps, &p, &residual };

	CAIRN_TRY(pick_shape(g, gated, kernel, &p, &clusters));
	CAIRN_TRY(make_map(&maps.a, g->a, g->m, g->k, form->cols));
	CAIRN_TRY(gated ? make_gated_map(&maps.b, g, p.rows) : make_map(&maps.b, g->b, g->n, g->k, p.rows));
	l.cluster = p.size;
	l.grid[0] = (unsigned int)(clusters * p.size);
	return cairn_launch(kernel, &l, params);
}
