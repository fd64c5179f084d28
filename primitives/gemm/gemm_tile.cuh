/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_tile - gemm for 5 to 64 rows of a: tiles of b go through shared memory to wgmma, a cluster shares k
 *
 * Computes out^T = b a^T: a tile has up to 64 rows of b as its rows and 16, 32, 48 or 64 rows of a (`cols`)
 * as its columns. Clusters of two CTAs are persistent over tiles, whose common height gives every cluster
 * equally many (tile_pick()); if there are few tiles, four or eight CTAs share each. The CTAs of a cluster
 * take the stages of k in turn, so that at any time a cluster reads neighbouring bytes of a row. At the end
 * of a tile each CTA sends its partial sums by st.async to the CTA that adds up that part of the tile in
 * rank order and writes it, while stages of the next tile arrive.
 *
 * In a tile, rows of b follow in the order of the form's units (gemm_form.cuh), so that the sums of two
 * partners are in one lane. The clusters and the order of sums are the same for all forms.
 *
 * Warps: four multiply, four add up and write, two fetch by TMA, each every second panel; they fetch b before
 * the preceding kernel of the stream has ended. One warp could not issue the small boxes of qkv_append fast
 * enough.
 *
 * Shared memory (dynamic), panels of 64 along k, swizzled by 128 bytes:
 *	the ring	TILE_RING stages	[panel][64 rows of b][64] elements
 *					[panel][cols][64] elements of a
 *	sums		2 x float4 [rank][items][32 lanes]: an item is a warp's partial sums of 8 columns
 *	barriers	full, empty [TILE_RING]; sums_full, sums_free [2]
 *
 * Floor: reading b once, 2 n k bytes at the rate of stream READ; an SM receives about 25 bytes per clock and
 * needs cols / 64 bytes of a for each byte of b.
 *
 * cairn_gemm() uses this kernel where gemm_skinny.cuh is slower, up to m 48, and up to m 64 if k is at least
 * twice n. For other shapes with m 64 cuBLASLt is faster, because too much of a comes through the L2.
 *
 * Figures and optimisation history: NOTES.md.
 */
#ifndef CAIRN_GEMM_TILE_CUH
#define CAIRN_GEMM_TILE_CUH

#include "primitives/base/launch.h"
#include "primitives/gemm/gemm_form.cuh"
#include "primitives/ptx/elect.cuh"
#include "primitives/ptx/wgmma.cuh"

#define TILE_PANEL_ROW	(GEMM_PANEL_K * 2)	/* bytes */
#define TILE_ROWS	64			/* rows of b in a tile, at most */
#define TILE_B_PANEL	(TILE_ROWS * TILE_PANEL_ROW)
#define TILE_MAX_CLUSTER	8
#define TILE_WORKERS	4			/* warps */
#define TILE_WRITERS	4
#define TILE_FETCHERS	2
#define TILE_THREADS	((TILE_WORKERS + TILE_WRITERS + TILE_FETCHERS) * 32)
#define TILE_SMEM_LIMIT	(227 * 1024)

/* Longer pieces of a row use memory better, but with many rows of a they do not fit. */
#define TILE_PANELS(cols)	((cols) == 16 ? 4 : 2)	/* panels in a stage */
#define TILE_A_PANEL(cols)	((cols) * TILE_PANEL_ROW)
#define TILE_STAGE(cols)	(TILE_PANELS(cols) * (TILE_B_PANEL + TILE_A_PANEL(cols)))
#define TILE_SUMS(cols)		(TILE_ROWS * (cols) * 4)
#define TILE_RING(cols)		((TILE_SMEM_LIMIT - 1024 - 2 * TILE_SUMS(cols)) / TILE_STAGE(cols))
#define TILE_BARRIERS(cols)	(2 * TILE_RING(cols) + 4)
#define TILE_SMEM(cols)		(TILE_RING(cols) * TILE_STAGE(cols) + 2 * TILE_SUMS(cols) + \
				 TILE_BARRIERS(cols) * 8)

#define TILE			static __device__ __forceinline__

/*
 * Under racecheck a warp leaves a cluster barrier only after all warps of its CTA have reached it. If the
 * fetching warp needs free slots in the ring before it reaches the barrier, it and the multiplying warps wait
 * for each other. In a DEBUG build, which racecheck uses, all warps wait at the start instead.
 */
#ifdef CAIRN_DEBUG
#define TILE_WAIT_AT_START	1
#else
#define TILE_WAIT_AT_START	0
#endif

struct tile_maps {
	CUtensorMap a, b;	/* of a: boxes of 64 of k and `cols` rows; of b: the form's */
};

struct tile_plan {
	int rows, tiles;	/* rows of b per tile, a multiple of 8; tiles in all */
	int size;		/* CTAs of a cluster */
};

/* Shared addresses, and this CTA's part of the work */
struct tile_share {
	uint32_t ring, sums, full, empty, sums_full, sums_free;
	int rank, cluster, clusters;	/* rank in the cluster; cluster; clusters in all */
	int count;		/* stages of a tile that this CTA takes */
};

/* Waits until the peers have initialised their mbarriers, unless that was done at the start. */
TILE void tile_wait_for_peers(void)
{
	if (!TILE_WAIT_AT_START)
		ptx_barrier_cluster_wait_acquire();
}

/* Position in the ring: slot, and the parity of the number of times the ring wrapped */
struct tile_turn {
	int slot, parity;
};

TILE void tile_advance(struct tile_turn *t, int ring)
{
	if (++t->slot == ring) {
		t->slot = 0;
		t->parity ^= 1;
	}
}

/* Returns the first k of panel q of this CTA's stage i. */
template <int cols>
TILE int tile_along_k(const struct tile_plan &p, const struct tile_share &s, int i, int q)
{
	return ((i * p.size + s.rank) * TILE_PANELS(cols) + q) * GEMM_PANEL_K;
}

template <int cols>
TILE void tile_fetch_a(const struct tile_maps &maps, const struct tile_plan &p, const struct tile_share &s,
		       int i, int slot, int fetcher)
{
	const uint32_t to = s.ring + slot * TILE_STAGE(cols) + TILE_PANELS(cols) * TILE_B_PANEL;

#pragma unroll
	for (int n = 0; n < TILE_PANELS(cols); n += TILE_FETCHERS) {
		const int q = n + fetcher;

		ptx_cp_async_bulk_tensor_2d_g2s(to + q * TILE_A_PANEL(cols), &maps.a,
						tile_along_k<cols>(p, s, i, q), 0, s.full + slot * 8);
	}
}

/*
 * Runs in a lane of each fetching warp. The weight b does not depend on the preceding kernel: fetches a ring
 * full of b, then waits for that kernel and fetches a.
 */
template <int cols, class form>
TILE void tile_fetch(const form &f, const struct tile_maps &maps, const struct tile_plan &p,
		     const struct tile_share &s, int fetcher)
{
	const uint64_t policy = ptx_createpolicy_evict_first();
	const int early = min(TILE_RING(cols), s.count) - 1;
	const uint32_t bytes = TILE_PANELS(cols) / TILE_FETCHERS *
			       (p.rows * TILE_PANEL_ROW + TILE_A_PANEL(cols));
	struct tile_turn t = { 0, 1 };

	for (int tile = s.cluster; tile < p.tiles; tile += s.clusters) {
		const typename form::tile at = f.at(tile * p.rows, p.rows);
		const bool first = tile == s.cluster;

		for (int i = 0; i < s.count; i++) {
			const uint32_t to = s.ring + t.slot * TILE_STAGE(cols), full = s.full + t.slot * 8;

			ptx_mbarrier_wait(s.empty + t.slot * 8, t.parity);
			ptx_mbarrier_arrive_expect_tx(full, bytes);
#pragma unroll
			for (int n = 0; n < TILE_PANELS(cols); n += TILE_FETCHERS)
				f.fetch(to + (n + fetcher) * TILE_B_PANEL, &maps.b,
					tile_along_k<cols>(p, s, i, n + fetcher), at, full, policy);
			if (first && i == early) {
				ptx_griddepcontrol_wait();
				for (int before = 0; before < i; before++)
					tile_fetch_a<cols>(maps, p, s, before, before, fetcher);
			}
			if (!first || i >= early)
				tile_fetch_a<cols>(maps, p, s, i, t.slot, fetcher);
			tile_advance(&t, TILE_RING(cols));
		}
	}
}

/* Returns the number of items of a tile that each rank adds up. */
template <int cols> TILE int tile_items(const struct tile_plan &p)
{
	return TILE_WORKERS * (cols / 8) / p.size;
}

/* Sends a warp's partial sums of the nth tile, d: [cols / 8][4], to the ranks that add them up. */
template <int cols>
TILE void tile_send(const struct tile_plan &p, const struct tile_share &s, int nth, int warp, const float *d)
{
	const int items = tile_items<cols>(p), lane = threadIdx.x % 32, buffer = nth & 1;
	const uint32_t mine = s.sums + buffer * TILE_SUMS(cols) + (s.rank * items * 32 + lane) * 16;

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

template <int dtype, int cols>
TILE void tile_multiply(const struct tile_plan &p, const struct tile_share &s, int warp)
{
	struct tile_turn t = { 0, 0 };
	float d[cols / 2];
	int nth = 0;

	for (int tile = s.cluster; tile < p.tiles; tile += s.clusters, nth++) {
		uint32_t before = 0;

#pragma unroll
		for (int j = 0; j < cols / 2; j++)
			d[j] = 0;
		for (int i = 0; i < s.count; i++) {
			const uint32_t at = s.ring + t.slot * TILE_STAGE(cols);
			const uint64_t b = wgmma_desc(at, 0);
			const uint64_t a = wgmma_desc(at + TILE_PANELS(cols) * TILE_B_PANEL, 0);

			ptx_mbarrier_wait(s.full + t.slot * 8, t.parity);
			wgmma_keep<cols / 2>(d);
			ptx_wgmma_fence();
#pragma unroll
			for (int q = 0; q < TILE_PANELS(cols); q++)
#pragma unroll
				for (int step = 0; step < GEMM_PANEL_K / 16; step++)
					ptx_wgmma_ss<dtype, cols>(
						d, b + (q * TILE_B_PANEL >> 4) + 2 * step,
						a + (q * TILE_A_PANEL(cols) >> 4) + 2 * step, 1);
			ptx_wgmma_commit_group();
			wgmma_keep<cols / 2>(d);
			ptx_wgmma_wait_group<1>();
			if (i)
				elected_arrive(before);
			before = s.empty + t.slot * 8;
			tile_advance(&t, TILE_RING(cols));
		}
		ptx_wgmma_wait_group<0>();
		wgmma_keep<cols / 2>(d);
		if (s.count)
			elected_arrive(before);
		if (nth == 0)
			tile_wait_for_peers();
		tile_send<cols>(p, s, nth, warp, d);
	}
}

/*
 * For each tile, adds up what all ranks sent for this rank's items, and lets the form write its results.
 */
template <int dtype, int cols, class form>
TILE void tile_write(const struct cairn_gemm_args &g, const form &f, const struct tile_plan &p,
		     const struct tile_share &s, int warp)
{
	const int items = tile_items<cols>(p), lane = threadIdx.x % 32;
	typename form::rows rows = {};
	int nth = 0;

	tile_wait_for_peers();
	for (int tile = s.cluster; tile < p.tiles; tile += s.clusters, nth++) {
		const uint32_t full = s.sums_full + (nth & 1) * 8;
		const uint32_t sums = s.sums + (nth & 1) * TILE_SUMS(cols) + lane * 16;

		if (warp == 0 && lane == 0)
			ptx_mbarrier_arrive_expect_tx(full, TILE_SUMS(cols));
		ptx_mbarrier_wait_cluster(full, nth / 2 & 1);
		if (nth == 0) {
			ptx_griddepcontrol_wait();	/* the preceding kernel may read out's memory */
			rows = f.find(g);
		}
		for (int it = warp; it < items; it += TILE_WRITERS) {
			const int item = s.rank * items + it, i = item % (cols / 8) * 8 + lane % 4 * 2;
			const int row = item / (cols / 8) * 16 + lane / 4, j = tile * p.rows + row;
			float v[4] = { 0, 0, 0, 0 };

#pragma unroll
			for (int from = 0; from < TILE_MAX_CLUSTER; from++) {
				uint4 x;

				if (from >= p.size)
					break;
				x = ptx_ld_shared_v4(sums + (from * items + it) * 512);
				v[0] += __uint_as_float(x.x);
				v[1] += __uint_as_float(x.y);
				v[2] += __uint_as_float(x.z);
				v[3] += __uint_as_float(x.w);
			}
			if constexpr (form::paired) {
				const int unit = j / GEMM_UNIT;

				if (row - lane / 4 >= p.rows || unit >= g.n / GEMM_UNIT)
					continue;
#pragma unroll
				for (int e = 0; e < 2; e++) {
					const typename form::ready ready =
						f.prepare(g, rows, i + e, unit, lane / 4);

					if (i + e < g.m)
						f.template store<dtype>(g, ready, i + e, unit, lane / 4, v[e],
									v[e + 2]);
				}
			} else {
#pragma unroll
				for (int e = 0; e < 4; e++) {
					const int below = e / 2 * 8;

					if (i + e % 2 < g.m && row + below < p.rows && j + below < g.n)
						f.template store<dtype>(g, i + e % 2, j + below, v[e]);
				}
			}
		}
		__syncwarp();
		/* only if a send waits for it: no arrival may be in flight to a CTA that has exited */
		if (tile + 2 * s.clusters < p.tiles && lane < p.size)
			ptx_mbarrier_arrive_cluster(ptx_mapa(s.sums_free + (nth & 1) * 8, lane));
	}
}

template <int dtype, int cols, class form>
__global__ void __launch_bounds__(TILE_THREADS, 1)
gemm_tile_kernel(const __grid_constant__ struct cairn_gemm_args g,
		 const __grid_constant__ struct tile_maps maps, const __grid_constant__ struct tile_plan p,
		 const form f)
{
	extern __shared__ __align__(1024) unsigned char s_mem[];
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	const int stages = (g.k + TILE_PANELS(cols) * GEMM_PANEL_K - 1) / (TILE_PANELS(cols) * GEMM_PANEL_K);
	struct tile_share s;

	s.rank = blockIdx.x % p.size;
	s.cluster = blockIdx.x / p.size;
	s.clusters = gridDim.x / p.size;
	s.count = (stages - s.rank + p.size - 1) / p.size;
	s.ring = ptx_smem(s_mem);
	s.sums = s.ring + TILE_RING(cols) * TILE_STAGE(cols);
	s.full = s.sums + 2 * TILE_SUMS(cols);
	s.empty = s.full + TILE_RING(cols) * 8;
	s.sums_full = s.empty + TILE_RING(cols) * 8;
	s.sums_free = s.sums_full + 2 * 8;
	ptx_griddepcontrol_launch_dependents();
	if (threadIdx.x == 0) {
		ptx_prefetch_tensormap(&maps.b);
		ptx_prefetch_tensormap(&maps.a);
		for (int i = 0; i < TILE_RING(cols); i++) {
			ptx_mbarrier_init(s.full + i * 8, TILE_FETCHERS);
			ptx_mbarrier_init(s.empty + i * 8, TILE_WORKERS * ELECTED_LANES);
		}
		for (int i = 0; i < 2; i++) {
			ptx_mbarrier_init(s.sums_full + i * 8, 1);
			ptx_mbarrier_init(s.sums_free + i * 8, p.size * TILE_WRITERS);
		}
		ptx_fence_mbarrier_init_release_cluster();
	}
	__syncthreads();
	ptx_barrier_cluster_arrive_release();
	if (TILE_WAIT_AT_START)
		ptx_barrier_cluster_wait_acquire();
	if (warp < TILE_WORKERS) {
		tile_multiply<dtype, cols>(p, s, warp);
	} else if (warp < TILE_WORKERS + TILE_WRITERS) {
		tile_write<dtype, cols>(g, f, p, s, warp - TILE_WORKERS);
	} else {
		if (lane == 0)
			tile_fetch<cols>(f, maps, p, s, warp - TILE_WORKERS - TILE_WRITERS);
		__syncwarp();
		tile_wait_for_peers();
	}
	__syncwarp();
	/* a CTA must not exit while a peer may still write to its shared memory */
	ptx_barrier_cluster_arrive_relaxed();
	ptx_barrier_cluster_wait_acquire();
}

static int tile_map_a(CUtensorMap *map, const void *matrix, int rows, int k, int box_rows)
{
	const struct cairn_tensor_layout t = {
		.data = matrix, .dims = 2, .element_bytes = 2, .size = { (uint64_t)k, (uint64_t)rows },
		.stride = { (uint64_t)k * 2 }, .box = { GEMM_PANEL_K, (uint32_t)box_rows }, .swizzle = 128,
	};

	return cairn_tensor_map(map, &t, "gemm");
}

static int tile_div_up(int a, int b)
{
	return (int)(((int64_t)a + b - 1) / b);
}

/* Returns how many clusters of `size` CTAs, one CTA per SM, are resident at once, or -errno. */
static int tile_num_clusters(const void *kernel, int size)
{
	struct cairn_launch l = { .grid = { (unsigned int)size }, .block = { TILE_THREADS },
				  .smem = TILE_SMEM_LIMIT, .cluster = size };

	return cairn_max_active_clusters(kernel, &l);
}

/*
 * Chooses the largest cluster size with which all clusters run at once, else pairs; then the tile height that
 * gives all clusters equally many tiles.
 */
static int tile_pick(const struct cairn_gemm_args *g, bool paired, const void *kernel, struct tile_plan *p,
		     int *clusters)
{
	const int unit = paired ? GEMM_UNIT : GEMM_HALF;
	int tiles = tile_div_up(g->n, TILE_ROWS), at_once, rounds, sms = cairn_sms_of(g->sms);

	if (sms < 0)
		return sms;
	if (sms < 2)
		return cairn_error(EOPNOTSUPP, "gemm: sms: m %d needs at least 2, for a cluster", g->m);
	for (p->size = TILE_MAX_CLUSTER;; p->size /= 2) {
		at_once = tile_num_clusters(kernel, p->size);
		if (at_once < 0)
			return at_once;
		at_once = at_once < sms / p->size ? at_once : sms / p->size;
		if (tiles <= at_once || p->size == 2)
			break;
	}
	if (!at_once)
		return cairn_error(EOPNOTSUPP, "gemm: this device cannot run a cluster of 2 CTAs");
	rounds = tile_div_up(tiles, at_once);
	p->rows = tile_div_up(tile_div_up(g->n, at_once * rounds), unit) * unit;
	if (p->rows < TILE_ROWS / 2)	/* limits the traffic of a, all of which is read for each tile */
		p->rows = TILE_ROWS / 2;
	p->tiles = tile_div_up(g->n, p->rows);
	*clusters = p->tiles < at_once ? p->tiles : at_once;
	return 0;
}

/* The kernels for bf16 and f16, with `cols` columns. */
struct tile_kernel {
	const void *of[2];
	int cols, smem;
};

template <int cols, class form> static struct tile_kernel tile_kernel_of(void)
{
	return { { (const void *)gemm_tile_kernel<CAIRN_BF16, cols, form>,
		   (const void *)gemm_tile_kernel<CAIRN_F16, cols, form> }, cols, TILE_SMEM(cols) };
}

/* Launches the kernel with at least g->m columns, at most `most`; the arguments have been checked. */
template <int most, class form>
static int gemm_tile(const struct cairn_gemm_args *g, const form &f, void *stream)
{
	const struct tile_kernel kernel =
		g->m <= 16 ? tile_kernel_of<16, form>() : g->m <= 32 ? tile_kernel_of<32, form>() :
		g->m <= 48 ? tile_kernel_of<48, form>() : tile_kernel_of<most, form>();
	const void *fn = kernel.of[g->dtype == CAIRN_F16];
	struct cairn_launch l = { .block = { TILE_THREADS }, .smem = (size_t)kernel.smem, .pdl = !g->sms,
				  .stream = stream };
	int clusters;
	struct tile_maps maps;
	struct tile_plan p;
	void *params[] = { (void *)g, &maps, &p, (void *)&f };

	CAIRN_TRY(tile_pick(g, form::paired, fn, &p, &clusters));
	CAIRN_TRY(tile_map_a(&maps.a, g->a, g->m, g->k, kernel.cols));
	CAIRN_TRY(f.map(&maps.b, g, p.rows));
	l.cluster = p.size;
	l.grid[0] = (unsigned int)(clusters * p.size);
	return cairn_launch(fn, &l, params);
}

#endif
