/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_w4_tile - gemm_w4 for m >= 9: codes stay packed in shared memory and are decoded in registers
 *
 * Computes out^T = b a^T, as gemm_fp8w_tile.cu does: each of four warpgroups takes 64 rows of b as the rows
 * of a product and 64 or 128 rows of a (`cols`) as its columns. A CTA's tile has 256, 128 or 64 rows of b;
 * with fewer than 256, two or four sets of warpgroups take its stages in turn. A stage is 128 along k. The
 * words that a lane reads are its elements of operand A of wgmma (gemm_w4_layout.h); it decodes them,
 * multiplies them with the scale, rounded to dtype, and fills one set of registers while the products of the
 * other set run.
 *
 * If there are few tiles, a cluster shares each (pick_shape()): every CTA takes a part of k, and at the end
 * adds up a part of the columns of out over all CTAs, in rank order.
 *
 * Warps: 16 multiply; one fetches, a by TMA, codes and scales by bulk copies, one lane for each 16 rows, and
 * these before the preceding kernel has ended; three are idle, since registers are set by warpgroup.
 *
 * Shared memory (dynamic):
 *	up to 8 stages	2 x [cols][64] elements of a, swizzled by 128 bytes
 *			[rows of b / 16] x 1024 bytes of codes, then as many x 192 bytes for cells
 *	behind them	mbarriers [8] of each kind: full (1 arrival, and bytes), empty (each warp that
 *			multiplies with the stage)
 *	at the end	float [sets of warpgroups][cols][rows of b + 4], the sums, overlaying the stages
 * Named barrier 1: the multiplying warps.
 *
 * Registers: 96; with 128 columns 112 for the multiplying warpgroups and 32 for the other. One CTA per SM.
 *
 * Floor: reading b once, while that takes longer than 2 m n k operations.
 */
#include "primitives/gemm/w4/gemm_w4.cuh"

#include "primitives/base/tensor_map.h"
#include "primitives/gemm/gemm_shape.h"
#include "primitives/ptx/elect.cuh"
#include "primitives/ptx/ptx_copy.cuh"
#include "primitives/ptx/wgmma.cuh"

#define STAGE_CODES	(STAGE_K / CAIRN_W4_TILE_K * CAIRN_W4_TILE_BYTES)	/* bytes of 16 rows */
#define CELL_ROOM	192		/* bytes of the cells of 16 rows: 4 groups of INT, at most */
#define GROUPS		4		/* warpgroups that multiply */
#define WORKERS		(GROUPS * 4)	/* warps */
#define THREADS		(WORKERS * 32 + 128)
#define BARRIER_BYTES	(2 * 8 * MAX_RING)
#define MANY_REGS	112
#define FEW_REGS	32
#define BAR_WORKERS	1

struct plan {
	int tiles_m, rows_b, size;	/* tiles along m; rows of b in a tile; CTAs that share a tile */
	int ring, stage_bytes;		/* stages in shared memory; size of a stage */
	int first;			/* first tile of this launch */
	int units, tiles;		/* of b: blocks of 16 rows; tiles of the layout along k */
	int cells, stage_cells;		/* bytes of the cells of a unit, and of a stage of it */
	int shift;			/* a group has 2^shift elements */
};

struct tile {
	int row0, col0;			/* first row and column in out */
	int first, count;		/* this CTA's stages along k */
};

/* Shared addresses; codes_at, cells_at: offsets in a stage, whose first part is a */
struct shared {
	uint32_t ring, full, empty, codes_at, cells_at;
};

/* Position in the ring: slot, and the parity of the number of times the ring wrapped */
struct turn {
	int slot, parity;
};

W4 void advance(struct turn *t, int by, int ring)
{
	t->slot += by;
	if (t->slot >= ring) {
		t->slot -= ring;
		t->parity ^= 1;
	}
}

template <int cols>
W4 void fetch_a(const CUtensorMap &map, const struct shared &s, const struct plan &p, const struct tile &t,
		int i, int slot)
{
	const uint32_t to = s.ring + slot * p.stage_bytes, full = s.full + slot * 8;
	const int at = (t.first + i) * STAGE_K;

	ptx_cp_async_bulk_tensor_2d_g2s(to, &map, at, t.row0, full);
	ptx_cp_async_bulk_tensor_2d_g2s(to + cols * 128, &map, at + 64, t.row0, full);
}

/*
 * Runs in a warp. The weight b does not depend on the preceding kernel: fetches a ring full of b, then waits
 * for that kernel and fetches a. What lies past the ends of b is not fetched; it is not used either.
 */
template <int cols>
W4 void fetch(const struct cairn_gemm_w4_args &g, const CUtensorMap &map, const struct shared &s,
	      const struct plan &p, const struct tile &t)
{
	const int lane = threadIdx.x % 32, early = min(p.ring, t.count);
	const int unit = t.col0 / CAIRN_W4_ROWS + lane;
	const int mine = min(p.rows_b / CAIRN_W4_ROWS, p.units - t.col0 / CAIRN_W4_ROWS);
	struct turn turn = { 0, 1 };

	for (int i = 0; i < t.count; i++) {
		const uint32_t to = s.ring + turn.slot * p.stage_bytes, full = s.full + turn.slot * 8;
		const int tile = (t.first + i) * (STAGE_K / CAIRN_W4_TILE_K);
		const int codes = min(STAGE_CODES, (p.tiles - tile) * CAIRN_W4_TILE_BYTES);
		const int first = ((t.first + i) * STAGE_K >> p.shift) * cairn_w4_cell_bytes(g.format);
		const int cells = min(p.stage_cells, p.cells - first);

		if (lane == 0) {
			ptx_mbarrier_wait(s.empty + turn.slot * 8, turn.parity);
			ptx_mbarrier_arrive_expect_tx(full, cols * STAGE_K * 2 + mine * (codes + cells));
		}
		__syncwarp();
		if (lane < mine) {
			ptx_cp_async_bulk_g2s(to + s.codes_at + lane * STAGE_CODES,
					      g.b + ((int64_t)unit * p.tiles + tile) * CAIRN_W4_TILE_BYTES,
					      codes, full);
			ptx_cp_async_bulk_g2s(to + s.cells_at + lane * CELL_ROOM,
					      g.b_scale + (int64_t)unit * p.cells + first, cells, full);
		}
		if (i == early - 1) {
			ptx_griddepcontrol_wait();
			for (int a = 0; lane == 0 && a < i; a++)
				fetch_a<cols>(map, s, p, t, a, a);
		}
		if (lane == 0 && i >= early - 1)
			fetch_a<cols>(map, s, p, t, i, turn.slot);
		advance(&turn, 1, p.ring);
	}
}

/*
 * Decodes the two words of a lane for elements `at` to at + 31 of a stage. Those that are not valid lie past
 * k, and nothing has been fetched for them: memory may hold any codes, which are finite, and scales that are
 * NaN.
 */
template <int format, int dtype>
W4 void decode_piece(uint32_t w0, uint32_t w1, const unsigned char *cells, int at, int shift, bool valid,
		     uint32_t x[2][4])
{
	const int cell = cairn_w4_cell_bytes(format), g = threadIdx.x % 32 / 4;
	struct w4_scales s = w4_load_scales<format, dtype>(cells + (at >> shift) * cell, g);

	w4_scaled<format, dtype>(w0, s, valid, x[0]);
	if (format == CAIRN_W4_NV)
		s = w4_load_scales<format, dtype>(cells + (at + 16 >> shift) * cell, g);
	w4_scaled<format, dtype>(w1, s, valid, x[1]);
}

/*
 * Runs in a warpgroup, for stages nth, nth + sets, ...  unit: this warp's 16 rows of the tile. sum: [cols /
 * 8][4], the result
 */
template <int format, int dtype, int cols>
W4 void multiply(const struct cairn_gemm_w4_args &g, const struct shared &s, const struct plan &p,
		 const struct tile &t, int nth, int sets, int unit, const unsigned char *smem, float *sum)
{
	const int lane = threadIdx.x % 32;
	struct turn turn = { nth, 0 };
	uint32_t w[2][2][4];
	int before = 0;

#pragma unroll
	for (int j = 0; j < cols / 2; j++)
		sum[j] = 0;
	for (int i = nth; i < t.count; i += sets) {
		const uint32_t a = (uint32_t)wgmma_desc(s.ring + turn.slot * p.stage_bytes, 0);
		const unsigned char *stage = smem + turn.slot * p.stage_bytes;
		const unsigned char *codes = stage + s.codes_at + unit * STAGE_CODES + lane * 16;
		const unsigned char *cells = stage + s.cells_at + unit * CELL_ROOM;
		const int left = g.k - (t.first + i) * STAGE_K;
		uint4 four;

		ptx_mbarrier_wait(s.full + turn.slot * 8, turn.parity);
#pragma unroll
		for (int c = 0; c < STAGE_K / 32; c++) {
			uint32_t (*x)[4] = w[c & 1];

			if (c % 2 == 0)
				four = *(const uint4 *)(codes + c / 2 * CAIRN_W4_TILE_BYTES);
			decode_piece<format, dtype>(c % 2 ? four.z : four.x, c % 2 ? four.w : four.y, cells,
						    c * 32, p.shift, c * 32 < left, x);
			if (c == 0) {
				/* the compiler must see products end within one iteration */
				ptx_wgmma_wait_group<0>();
				wgmma_keep<cols / 2>(sum);
				if (i >= sets)
					elected_arrive(s.empty + before * 8);
			}
			wgmma_keep<cols / 2>(sum);
			ptx_wgmma_fence();
#pragma unroll
			for (int h = 0; h < 2; h++) {
				const int step = c * 2 + h, panel = step / 4 * (cols * 128 >> 4);

				ptx_wgmma_rs_k<dtype, cols>(sum, x[h], a + panel + step % 4 * 2, 1);
			}
			ptx_wgmma_commit_group();
			wgmma_keep<cols / 2>(sum);
			ptx_wgmma_wait_group<1>();	/* the products that read the other half of w */
		}
		before = turn.slot;
		advance(&turn, sets, p.ring);
	}
	ptx_wgmma_wait_group<0>();
	wgmma_keep<cols / 2>(sum);
}

/*
 * Adds up the sums of all CTAs for this CTA's share of the columns, applies scale and bias, and writes out.
 */
W4 void write_out(const struct cairn_gemm_w4_args &g, const struct plan &p, const struct tile &t,
		  uint32_t sums, int cols, int sets, int rank)
{
	const int all = p.rows_b / 4, first = rank * all / p.size, quads = (rank + 1) * all / p.size - first;
	const int rows = min(cols, g.m - t.row0), pitch = p.rows_b + 4;

	for (int e = threadIdx.x; e < rows * quads; e += WORKERS * 32) {
		const int r = e / quads, at = (first + e % quads) * 4, j = t.col0 + at;
		float v[4] = { 0, 0, 0, 0 };

#pragma unroll
		for (int peer = 0; peer < MAX_CLUSTER; peer++) {
			if (peer >= p.size)
				break;
			for (int set = 0; set < sets; set++) {
				uint32_t from = sums + ((set * cols + r) * pitch + at) * 4;
				uint4 x = ptx_ld_shared_cluster_v4(ptx_mapa(from, peer));

				v[0] += __uint_as_float(x.x);
				v[1] += __uint_as_float(x.y);
				v[2] += __uint_as_float(x.z);
				v[3] += __uint_as_float(x.w);
			}
		}
#pragma unroll
		for (int c = 0; c < 4; c++)
			if (j + c < g.n)
				row_store(g.out, g.out_dtype, (int64_t)(t.row0 + r) * g.n + j + c,
					  w4_finish(g, j + c, v[c]));
	}
}

template <int format, int dtype, int cols>
__global__ void __launch_bounds__(THREADS, 1)
gemm_w4_tile_kernel(const __grid_constant__ struct cairn_gemm_w4_args g,
		    const __grid_constant__ CUtensorMap map, const __grid_constant__ struct plan p)
{
	extern __shared__ __align__(1024) unsigned char s_mem[];
	const int rank = blockIdx.x % p.size, id = p.first + blockIdx.x / p.size;
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	const int row_groups = p.rows_b / GROUP_ROWS, sets = GROUPS / row_groups;
	const int num_stages = (g.k + STAGE_K - 1) / STAGE_K, each = (num_stages + p.size - 1) / p.size;
	struct shared s;
	struct tile t;

	t.row0 = id % p.tiles_m * cols;
	t.col0 = id / p.tiles_m * p.rows_b;
	t.first = min(rank * each, num_stages);
	t.count = min(each, num_stages - t.first);
	s.codes_at = cols * STAGE_K * 2;
	s.cells_at = s.codes_at + p.rows_b / CAIRN_W4_ROWS * STAGE_CODES;
	s.ring = ptx_smem(s_mem);
	s.full = s.ring + p.ring * p.stage_bytes;
	s.empty = s.full + MAX_RING * 8;
	ptx_griddepcontrol_launch_dependents();
	if (threadIdx.x == WORKERS * 32) {
		ptx_prefetch_tensormap(&map);
		for (int i = 0; i < p.ring; i++) {
			ptx_mbarrier_init(s.full + i * 8, 1);
			ptx_mbarrier_init(s.empty + i * 8, row_groups * 4 * ELECTED_LANES);
		}
		ptx_fence_mbarrier_init_release_cluster();
	}
	__syncthreads();
	if (warp >= WORKERS) {
		if (cols == 128)
			ptx_setmaxnreg_dec<FEW_REGS>();
		if (warp == WORKERS)
			fetch<cols>(g, map, s, p, t);
		__syncwarp();
		if (p.size > 1) {
			ptx_barrier_cluster_arrive_relaxed();
			ptx_barrier_cluster_wait_acquire();
		}
	} else {
		const int group = warp / 4 % row_groups, set = warp / 4 / row_groups, pitch = p.rows_b + 4;
		const int unit = group * 4 + warp % 4;
		float sum[cols / 2], *to;

		if (cols == 128)
			ptx_setmaxnreg_inc<MANY_REGS>();
		multiply<format, dtype, cols>(g, s, p, t, set, sets, unit, s_mem, sum);
		ptx_bar_sync(BAR_WORKERS, WORKERS * 32);	/* all warps are done with the stages */
		to = (float *)s_mem + (set * cols + lane % 4 * 2) * pitch + unit * 16 + lane / 4;
#pragma unroll
		for (int j = 0; j < cols / 8; j++, to += 8 * pitch) {
			to[0] = sum[4 * j];
			to[8] = sum[4 * j + 2];
			to[pitch] = sum[4 * j + 1];
			to[pitch + 8] = sum[4 * j + 3];
		}
		if (p.size > 1) {
			ptx_barrier_cluster_arrive_release();
			ptx_barrier_cluster_wait_acquire();
		} else {
			ptx_bar_sync(BAR_WORKERS, WORKERS * 32);
		}
		ptx_griddepcontrol_wait();	/* the preceding kernel may read out's memory */
		write_out(g, p, t, s.ring, cols, sets, rank);
		__syncwarp();
	}
	if (p.size > 1) {	/* a CTA must not exit while a peer may still read its sums */
		ptx_barrier_cluster_arrive_relaxed();
		ptx_barrier_cluster_wait_acquire();
	}
}

static int make_map(CUtensorMap *map, const struct cairn_gemm_w4_args *g, int box_rows)
{
	const struct cairn_tensor_layout t = {
		.data = g->a, .dims = 2, .element_bytes = 2, .size = { (uint64_t)g->k, (uint64_t)g->m },
		.stride = { (uint64_t)g->k * 2 }, .box = { 64, (uint32_t)box_rows }, .swizzle = 128,
	};

	return cairn_tensor_map(map, &t, "gemm_w4");
}

static int stage_bytes(int cols, int rows_b)
{
	const int bytes = cols * STAGE_K * 2 + rows_b / CAIRN_W4_ROWS * (STAGE_CODES + CELL_ROOM);

	return div_up(bytes, 1024) * 1024;
}

/* Sets what depends on the shape of b alone. */
static void measure(const struct cairn_gemm_w4_args *g, struct plan *p)
{
	const int cell = cairn_w4_cell_bytes(g->format), group = g->group ? g->group : 1 << 30;

	p->units = cairn_w4_units(g->n);
	p->tiles = cairn_w4_tiles(g->k);
	p->cells = cairn_w4_groups(g->k, g->group) * cell;
	p->stage_cells = group < STAGE_K ? STAGE_K / group * cell : cell;
	p->shift = cairn_w4_shift(g->group);
}

#define KERNELS(format, cols)	{ (const void *)gemm_w4_tile_kernel<format, CAIRN_BF16, cols>, \
				  (const void *)gemm_w4_tile_kernel<format, CAIRN_F16, cols> }

extern "C" int cairn_gemm_w4_tile(const struct cairn_gemm_w4_args *g, void *stream)
{
	static const void *const kernels[2][3][2] = {
		{ KERNELS(CAIRN_W4_INT, 64), KERNELS(CAIRN_W4_MX, 64), KERNELS(CAIRN_W4_NV, 64) },
		{ KERNELS(CAIRN_W4_INT, 128), KERNELS(CAIRN_W4_MX, 128), KERNELS(CAIRN_W4_NV, 128) },
	};
	const int cols = g->m <= 64 ? 64 : 128;
	const void *kernel = kernels[cols / 128][g->format][g->dtype == CAIRN_F16];
	struct cairn_launch l = { .block = { THREADS }, .pdl = !g->sms, .stream = stream };
	const struct gemm_shape shape = {
		.m = g->m, .n = g->n, .k = g->k, .cols = cols, .most = GROUPS * GROUP_ROWS,
		.least = GROUP_ROWS, .bits = 4, .clocks = cols == 64 ? 412 : 640,
	};
	const int sms = cairn_sms_of(g->sms);
	CUtensorMap map;
	struct plan p;
	void *params[] = { (void *)g, &map, &p };

	CAIRN_TRY(pick_shape(&shape, kernel, &l, sms, &p.rows_b, &p.size));
	measure(g, &p);
	p.tiles_m = div_up(g->m, cols);
	p.stage_bytes = stage_bytes(cols, p.rows_b);
	p.ring = num_in_ring(p.stage_bytes, BARRIER_BYTES);
	CAIRN_TRY(make_map(&map, g, cols));
	l.cluster = p.size;
	l.smem = (size_t)p.ring * p.stage_bytes + BARRIER_BYTES;
	return launch_tiles(kernel, &l, params, &p.first, p.tiles_m * div_up(g->n, p.rows_b), sms);
}
