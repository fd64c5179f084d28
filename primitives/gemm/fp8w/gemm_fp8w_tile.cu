/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_fp8w_tile - gemm_fp8w for m >= 9: tiles of b stay e4m3 in shared memory and are widened in registers
 *
 * Computes out^T = b a^T: each warpgroup takes 64 rows of b as the rows of a product and 32, 64 or 128 rows
 * of a (`cols`) as its columns. A CTA has four multiplying warpgroups and a tile of 256 rows of b, or one of
 * 128 rows, whose stages two sets of warpgroups take in turn. With 128 columns and block scales it has two
 * such warpgroups and half these rows. A stage is 128 along k. A lane reads four bytes of a row at a time
 * (ldmatrix) and widens them to operand A of wgmma in registers; one set of registers is filled while the
 * products of the other set run.
 *
 * The four bytes of a lane are elements 4 t .. 4 t + 3 of 16 along k, whereas operand A has 2 t, 2 t + 1, 2
 * t + 8 and 2 t + 9; and widening bytes 0 and 2, 1 and 3 as pairs is cheaper than neighbours. The order
 * along k is arbitrary if it is the same for a and b: within each 16 elements of a, the even ones go before
 * the odd ones. Up to 64 rows of a, three warps reorder a in shared memory; above, where the throughput of
 * shared memory is the limit, permute_kernel does it beforehand, into the workspace.
 *
 * A stage is one block of scales: with block scales, the sum of each stage starts at 0 and is added, scaled,
 * to the total. If there are few tiles, a cluster shares each (pick_shape()): every CTA takes a part of k,
 * and at the end adds up a part of the columns of out over all CTAs, in rank order.
 *
 * Warps: 8 or 16 multiply; one fetches by TMA, b before the preceding kernel has ended; three permute a.
 *
 * Shared memory (dynamic), all swizzled by 128 bytes:
 *	3 to 8 stages	[rows of b][128] bytes
 *			2 x [cols][64] elements of a
 *	behind them	mbarriers [8] of each kind: full (1 arrival, and bytes), ready (each permuting warp),
 *			empty (each warp that multiplies with the stage)
 *	at the end	float [sets of warpgroups][cols][rows of b + 4], the sums, overlaying the stages
 * Named barrier 1: the multiplying warps.
 *
 * Registers: 96; with many sums 112 for the multiplying warpgroups and 32 for the other one (164 for all
 * with 128 columns and block scales). One CTA per SM.
 *
 * Floor: reading b once, n k bytes, while that takes longer than 2 m n k operations: up to m = 90 or so.
 * Figures and optimisation history: NOTES.md.
 */
#include "primitives/base/tensor_map.h"
#include "primitives/gemm/fp8w/gemm_fp8w.cuh"
#include "primitives/gemm/gemm_shape.h"
#include "primitives/ptx/elect.cuh"
#include "primitives/ptx/fp8.cuh"
#include "primitives/ptx/ptx_copy.cuh"
#include "primitives/ptx/wgmma.cuh"
#include "primitives/rows/row.cuh"

#define BARRIER_BYTES	(3 * 8 * MAX_RING)
#define PERMUTERS	3		/* warps */
#define MANY_REGS	112
#define FEW_REGS	32
#define BAR_WORKERS	1

/* Number of warpgroups that multiply */
#define GROUPS(cols, blocks)		((cols) == 128 && (blocks) ? 2 : 4)
#define THREADS(cols, blocks)		(GROUPS(cols, blocks) * 128 + 128)
/* Whether the sums need more than 96 registers per thread */
#define MORE_REGISTERS(cols, blocks)	((blocks) ? (cols) == 64 : (cols) == 128)

struct maps {
	CUtensorMap a, b;	/* boxes: 64 of k and a tile's rows of a; 128 of k and a tile's rows of b */
};

struct plan {
	int tiles_m, rows_b, size;	/* tiles along m; rows of b in a tile; CTAs that share a tile */
	int ring;			/* stages in shared memory */
	int first;			/* first tile of this launch */
};

struct tile {
	int row0, col0;			/* first row and column in out */
	int first, count;		/* this CTA's stages along k */
};

/* Shared addresses; stage_bytes: size of a stage; a_at: offset of a in a stage */
struct shared {
	uint32_t ring, full, ready, empty;
	uint32_t stage_bytes, a_at;
};

/* Position in the ring: slot, and the parity of the number of times the ring wrapped */
struct turn {
	int slot, parity;
};

FP8 void advance(struct turn *t, int by, int ring)
{
	t->slot += by;
	if (t->slot >= ring) {
		t->slot -= ring;
		t->parity ^= 1;
	}
}

template <int cols>
FP8 void fetch_a(const struct maps &maps, const struct shared &s, const struct tile &t, int i, int slot)
{
	const uint32_t to = s.ring + slot * s.stage_bytes + s.a_at, full = s.full + slot * 8;
	const int at = (t.first + i) * STAGE_K;

	ptx_cp_async_bulk_tensor_2d_g2s(to, &maps.a, at, t.row0, full);
	ptx_cp_async_bulk_tensor_2d_g2s(to + cols * 128, &maps.a, at + 64, t.row0, full);
}

/*
 * Runs in one lane. The weight b does not depend on the preceding kernel: fetches a ring full of b, then
 * waits for that kernel and fetches a.
 */
template <int cols>
FP8 void fetch(const struct maps &maps, const struct shared &s, const struct tile &t, int ring)
{
	const int early = min(ring, t.count);
	struct turn turn = { 0, 1 };

	for (int i = 0; i < t.count; i++) {
		const uint32_t full = s.full + turn.slot * 8;

		ptx_mbarrier_wait(s.empty + turn.slot * 8, turn.parity);
		ptx_mbarrier_arrive_expect_tx(full, s.stage_bytes);
		ptx_cp_async_bulk_tensor_2d_g2s(s.ring + turn.slot * s.stage_bytes, &maps.b,
						(t.first + i) * STAGE_K, t.col0, full);
		if (i == early - 1) {
			ptx_griddepcontrol_wait();
			for (int a = 0; a < i; a++)
				fetch_a<cols>(maps, s, t, a, a);
		}
		if (i >= early - 1)
			fetch_a<cols>(maps, s, t, i, turn.slot);
		advance(&turn, 1, ring);
	}
}

/* Reorders the 16 elements in *p and *q: the even ones go to *p, the odd ones to *q. */
FP8 void even_odd(uint4 *p, uint4 *q)
{
	const uint4 x = *p, y = *q;

	*p = make_uint4(__byte_perm(x.x, x.y, 0x5410), __byte_perm(x.z, x.w, 0x5410),
			__byte_perm(y.x, y.y, 0x5410), __byte_perm(y.z, y.w, 0x5410));
	*q = make_uint4(__byte_perm(x.x, x.y, 0x7632), __byte_perm(x.z, x.w, 0x7632),
			__byte_perm(y.x, y.y, 0x7632), __byte_perm(y.z, y.w, 0x7632));
}

/*
 * Runs in PERMUTERS warps, of which this is the nth. A step is 8 rows of 64 elements; a warp does n at a
 * time.
 */
template <int cols, int n>
FP8 void permute(const struct shared &s, const struct tile &t, int ring, int nth)
{
	const int lane = threadIdx.x % 32;
	const uint32_t first = (lane % 4 * 2 ^ lane / 4) << 4, second = first ^ 16;
	struct turn turn = { 0, 0 };

	for (int i = 0; i < t.count; i++) {
		const uint32_t at = s.ring + turn.slot * s.stage_bytes + s.a_at + lane / 4 * 128;

		ptx_mbarrier_wait(s.full + turn.slot * 8, turn.parity);
#pragma unroll 1
		for (int j = nth * n; j < 2 * cols / 8; j += PERMUTERS * n) {
			uint4 x[n], y[n];

#pragma unroll
			for (int u = 0; u < n; u++) {
				x[u] = ptx_ld_shared_v4(at + (j + u) * 1024 + first);
				y[u] = ptx_ld_shared_v4(at + (j + u) * 1024 + second);
			}
#pragma unroll
			for (int u = 0; u < n; u++) {
				even_odd(x + u, y + u);
				ptx_st_shared_v4(at + (j + u) * 1024 + first, x[u]);
				ptx_st_shared_v4(at + (j + u) * 1024 + second, y[u]);
			}
		}
		ptx_fence_proxy_async_shared_cta();	/* wgmma reads a by the async proxy */
		elected_arrive(s.ready + turn.slot * 8);
		advance(&turn, 1, ring);
	}
}

/*
 * Runs in a warpgroup, for stages nth, nth + sets, ... mine: offset of this warp's rows of b in a stage;
 * ready: the mbarriers that signal that a is in place; scales: of the blocks. sum: [cols / 8][4], the result
 */
template <int dtype, int cols, bool blocks>
FP8 void multiply(const struct shared &s, const struct tile &t, int ring, int nth, int sets, uint32_t mine,
		  uint32_t ready, const float *scales, float *sum)
{
	/* pieces of 16 along k that are widened, then multiplied: as many as the registers can hold */
	constexpr int steps = MORE_REGISTERS(cols, blocks) || cols == 128 ? 2 : 4;
	const int lane = threadIdx.x % 32;
	const uint32_t piece = (lane / 16 ^ lane % 8) << 4;
	float part[blocks ? cols / 2 : 1];
	float *d = blocks ? part : sum;
	struct turn turn = { nth, 0 };
	uint32_t w[2][steps][4];
	int i, before = 0;

	mine += lane % 16 * STAGE_K;
#pragma unroll
	for (int j = 0; j < cols / 2; j++)
		sum[j] = 0;
	for (i = nth; i < t.count; i += sets) {
		const uint32_t at = s.ring + turn.slot * s.stage_bytes;
		const uint32_t a = (uint32_t)wgmma_desc(at + s.a_at, 0);
		float scale = 0;

		if (blocks && i >= sets)
			scale = scales[i - sets];
		ptx_mbarrier_wait(s.full + turn.slot * 8, turn.parity);
#pragma unroll
		for (int c = 0; c < STAGE_K / 16 / steps; c++) {
			uint32_t (*x)[4] = w[c & 1], q[steps / 2][4];

#pragma unroll
			for (int h = 0; h < steps / 2; h++)
				ptx_ldmatrix_x4(q[h], at + mine + (piece ^ (c * steps / 2 + h) << 5));
#pragma unroll
			for (int h = 0; h < steps * 2; h++)
				fp8_widen_even_odd<dtype>(q[h / 4][h % 4], &x[h / 2][h % 2],
							  &x[h / 2][h % 2 + 2]);
			if (c == 0) {
				ptx_mbarrier_wait(ready + turn.slot * 8, turn.parity);
				/* the compiler must see products end within one iteration */
				ptx_wgmma_wait_group<0>();
				wgmma_keep<cols / 2>(d);
				if (i >= sets) {
#pragma unroll
					for (int j = 0; blocks && j < cols / 2; j++)
						sum[j] += scale * d[j];
					elected_arrive(s.empty + before * 8);
				}
			}
			wgmma_keep<cols / 2>(d);
			ptx_wgmma_fence();
#pragma unroll
			for (int h = 0; h < steps; h++) {
				const int step = c * steps + h;

				ptx_wgmma_rs_k<dtype, cols>(d, x[h],
							    a + step / 4 * (cols * 128 >> 4) + step % 4 * 2,
							    !blocks || step > 0);
			}
			ptx_wgmma_commit_group();
			wgmma_keep<cols / 2>(d);
			ptx_wgmma_wait_group<1>();	/* the products that read the other half of w */
		}
		before = turn.slot;
		advance(&turn, sets, ring);
	}
	ptx_wgmma_wait_group<0>();
	wgmma_keep<cols / 2>(d);
#pragma unroll
	for (int j = 0; blocks && i >= sets && j < cols / 2; j++)
		sum[j] += scales[i - sets] * d[j];
}

/* Applies the scale of the weight's row (scale_kind 0) and the bias to a finished sum. */
FP8 float fp8w_finish(const struct cairn_gemm_fp8w_args &g, int col, float v)
{
	if (!g.scale_kind)
		v *= g.b_scale[col];
	return g.bias ? v + row_load(g.bias, g.dtype, col) : v;
}

FP8 void fp8w_store(const struct cairn_gemm_fp8w_args &g, int row, int col, float v)
{
	row_store(g.out, g.out_dtype, (int64_t)row * g.n + col, v);
}

/*
 * Adds up the sums of all CTAs for this CTA's share of the columns, applies scale and bias, and writes out.
 */
FP8 void write_out(const struct cairn_gemm_fp8w_args &g, const struct plan &p, const struct tile &t,
		   uint32_t sums, int cols, int sets, int rank, int threads)
{
	const int all = p.rows_b / 4, first = rank * all / p.size, quads = (rank + 1) * all / p.size - first;
	const int rows = min(cols, g.m - t.row0), pitch = p.rows_b + 4;

	for (int e = threadIdx.x; e < rows * quads; e += threads) {
		const int r = e / quads, at = (first + e % quads) * 4, j = t.col0 + at, i = t.row0 + r;
		float v[4] = { 0, 0, 0, 0 };

		if (j >= g.n)
			continue;
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
			v[c] = j + c < g.n ? fp8w_finish(g, j + c, v[c]) : 0;
		if (g.n % 4 == 0) {
			int64_t to = (int64_t)i * g.n + j;

			if (g.out_dtype == CAIRN_F32)
				*(float4 *)((float *)g.out + to) = make_float4(v[0], v[1], v[2], v[3]);
			else if (g.out_dtype == CAIRN_F16)
				*(uint2 *)((uint16_t *)g.out + to) =
					make_uint2(row_pack2<CAIRN_F16>(v[0], v[1]),
						   row_pack2<CAIRN_F16>(v[2], v[3]));
			else
				*(uint2 *)((uint16_t *)g.out + to) =
					make_uint2(row_pack2<CAIRN_BF16>(v[0], v[1]),
						   row_pack2<CAIRN_BF16>(v[2], v[3]));
			continue;
		}
#pragma unroll
		for (int c = 0; c < 4; c++)
			if (j + c < g.n)
				fp8w_store(g, i, j + c, v[c]);
	}
}

template <int dtype, int cols, bool blocks>
__global__ void __launch_bounds__(THREADS(cols, blocks), 1)
gemm_fp8w_tile_kernel(const __grid_constant__ struct cairn_gemm_fp8w_args g,
		      const __grid_constant__ struct maps maps, const __grid_constant__ struct plan p)
{
	constexpr int workers = GROUPS(cols, blocks) * 4;	/* warps */
	constexpr bool more_registers = MORE_REGISTERS(cols, blocks), permuted = cols == 128;
	extern __shared__ __align__(1024) unsigned char s_mem[];
	const int rank = blockIdx.x % p.size, id = p.first + blockIdx.x / p.size;
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	const int row_groups = p.rows_b / GROUP_ROWS, sets = workers / 4 / row_groups;
	const int num_stages = (g.k + STAGE_K - 1) / STAGE_K, each = (num_stages + p.size - 1) / p.size;
	struct shared s;
	struct tile t;

	t.row0 = id % p.tiles_m * cols;
	t.col0 = id / p.tiles_m * p.rows_b;
	t.first = min(rank * each, num_stages);
	t.count = min(each, num_stages - t.first);
	s.a_at = p.rows_b * STAGE_K;
	s.stage_bytes = s.a_at + cols * STAGE_K * 2;
	s.ring = ptx_smem(s_mem);
	s.full = s.ring + p.ring * s.stage_bytes;
	s.ready = s.full + MAX_RING * 8;
	s.empty = s.ready + MAX_RING * 8;
	ptx_griddepcontrol_launch_dependents();
	if (threadIdx.x == workers * 32) {
		ptx_prefetch_tensormap(&maps.b);
		ptx_prefetch_tensormap(&maps.a);
		for (int i = 0; i < p.ring; i++) {
			ptx_mbarrier_init(s.full + i * 8, 1);
			ptx_mbarrier_init(s.ready + i * 8, PERMUTERS * ELECTED_LANES);
			ptx_mbarrier_init(s.empty + i * 8, row_groups * 4 * ELECTED_LANES);
		}
		ptx_fence_mbarrier_init_release_cluster();
	}
	__syncthreads();
	if (warp >= workers) {
		if (more_registers)
			ptx_setmaxnreg_dec<FEW_REGS>();
		if (warp == workers && lane == 0)
			fetch<cols>(maps, s, t, p.ring);
		else if (!permuted && warp > workers)
			permute<cols, more_registers ? 1 : 2>(s, t, p.ring, warp - workers - 1);
		__syncwarp();
		if (p.size > 1) {
			ptx_barrier_cluster_arrive_relaxed();
			ptx_barrier_cluster_wait_acquire();
		}
	} else {
		const int group = warp / 4 % row_groups, set = warp / 4 / row_groups, pitch = p.rows_b + 4;
		const int block = min(t.col0 + group * GROUP_ROWS, g.n - 1) / CAIRN_FP8_BLOCK;
		const int row = group * GROUP_ROWS + warp % 4 * 16;
		float sum[cols / 2], *to;

		if (more_registers)
			ptx_setmaxnreg_inc<MANY_REGS>();
		multiply<dtype, cols, blocks>(s, t, p.ring, set, sets, row * STAGE_K,
					      permuted ? s.full : s.ready,
					      g.b_scale + block * num_stages + t.first, sum);
		ptx_bar_sync(BAR_WORKERS, workers * 32);	/* all warps are done with the stages */
		to = (float *)s_mem + (set * cols + lane % 4 * 2) * pitch + row + lane / 4;
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
			ptx_bar_sync(BAR_WORKERS, workers * 32);
		}
		ptx_griddepcontrol_wait();	/* the preceding kernel may read out's memory */
		write_out(g, p, t, s.ring, cols, sets, rank, workers * 32);
		__syncwarp();
	}
	if (p.size > 1) {	/* a CTA must not exit while a peer may still read its sums */
		ptx_barrier_cluster_arrive_relaxed();
		ptx_barrier_cluster_wait_acquire();
	}
}

/* Copies a in the order of the products: of every 16 elements, the even ones before the odd ones. */
#define PERMUTE_THREADS	128

__global__ void __launch_bounds__(PERMUTE_THREADS) permute_kernel(const uint4 *a, uint4 *to, int64_t units)
{
	const int64_t i = (int64_t)blockIdx.x * PERMUTE_THREADS + threadIdx.x;
	uint4 x, y;

	ptx_griddepcontrol_launch_dependents();
	ptx_griddepcontrol_wait();
	if (i >= units)
		return;
	x = a[2 * i];
	y = a[2 * i + 1];
	even_odd(&x, &y);
	to[2 * i] = x;
	to[2 * i + 1] = y;
}

/* Makes a map with boxes of 128 bytes along k and box_rows rows; outside the matrix they are zeros. */
static int make_map(CUtensorMap *map, const void *matrix, int rows, int k, int bytes, int box_rows)
{
	const struct cairn_tensor_layout t = {
		.data = matrix, .dims = 2, .element_bytes = bytes, .size = { (uint64_t)k, (uint64_t)rows },
		.stride = { (uint64_t)k * bytes }, .box = { 128u / bytes, (uint32_t)box_rows },
		.swizzle = 128,
	};

	return cairn_tensor_map(map, &t, "gemm_fp8w");
}

static int tile_cols(const struct cairn_gemm_fp8w_args *g)
{
	return g->m <= 32 ? 32 : g->m <= 64 ? 64 : 128;
}

extern "C" size_t cairn_gemm_fp8w_tile_workspace(const struct cairn_gemm_fp8w_args *g)
{
	return tile_cols(g) == 128 ? (size_t)g->m * g->k * 2 : 0;
}

static int launch_permute(const struct cairn_gemm_fp8w_args *g, void *stream)
{
	struct cairn_launch l = { .block = { PERMUTE_THREADS }, .pdl = !g->sms, .stream = stream };
	const size_t bytes = cairn_gemm_fp8w_tile_workspace(g);
	int64_t units = (int64_t)g->m * g->k / 16;
	const void *a = g->a;
	void *to = g->workspace, *params[] = { &a, &to, &units };

	if (!g->workspace || g->workspace_bytes < bytes)
		return cairn_error(EINVAL, "gemm_fp8w: workspace_bytes: %zu is less than %zu",
				   g->workspace_bytes, bytes);
	l.grid[0] = (unsigned int)div_up(units, PERMUTE_THREADS);
	return cairn_launch((const void *)permute_kernel, &l, params);
}

#define KERNELS(cols, blocks)	{ (const void *)gemm_fp8w_tile_kernel<CAIRN_BF16, cols, blocks>, \
				  (const void *)gemm_fp8w_tile_kernel<CAIRN_F16, cols, blocks> }

extern "C" int cairn_gemm_fp8w_tile(const struct cairn_gemm_fp8w_args *g, void *stream)
{
	static const void *const kernels[3][2][2] = {
		{ KERNELS(32, false), KERNELS(32, true) },
		{ KERNELS(64, false), KERNELS(64, true) },
		{ KERNELS(128, false), KERNELS(128, true) },
	};
	const int cols = tile_cols(g);
	const void *kernel = kernels[cols / 64][g->scale_kind][g->dtype == CAIRN_F16];
	struct cairn_launch l = { .pdl = !g->sms, .stream = stream };
	const int most = GROUPS(cols, g->scale_kind) * GROUP_ROWS, sms = cairn_sms_of(g->sms);
	const struct gemm_shape shape = {
		.m = g->m, .n = g->n, .k = g->k, .cols = cols, .most = most, .least = most / 2, .bits = 8,
		/* measured on an H200 */
		.clocks = cols == 32 ? 314 : cols == 64 ? 412 : g->scale_kind ? 1050 : 640,
	};
	struct maps maps;
	int stage_bytes;
	struct plan p;
	void *params[] = { (void *)g, &maps, &p };

	l.block[0] = (unsigned int)THREADS(cols, g->scale_kind);
	CAIRN_TRY(pick_shape(&shape, kernel, &l, sms, &p.rows_b, &p.size));
	p.tiles_m = div_up(g->m, cols);
	stage_bytes = (p.rows_b + cols * 2) * STAGE_K;
	p.ring = num_in_ring(stage_bytes, BARRIER_BYTES);
	CAIRN_TRY(make_map(&maps.a, cols == 128 ? g->workspace : g->a, g->m, g->k, 2, cols));
	CAIRN_TRY(make_map(&maps.b, g->b, g->n, g->k, 1, p.rows_b));
	if (cols == 128)
		CAIRN_TRY(launch_permute(g, stream));
	l.cluster = p.size;
	l.smem = (size_t)p.ring * stage_bytes + BARRIER_BYTES;
	return launch_tiles(kernel, &l, params, &p.first, p.tiles_m * div_up(g->n, p.rows_b), sms);
}
