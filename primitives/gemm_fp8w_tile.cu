/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_fp8w_tile - m >= 9: tiles of b as bytes in shared memory, widened in registers for wgmma
 *
 * out^T = b a^T: 64 rows of b a warpgroup are the rows of a product, 32, 64 or 128 rows of a (`cols`) its
 * columns; 4 warpgroups a CTA, or 2. Stages of 128 along k: a warp's lanes read four bytes of a row at a time
 * (ldmatrix), widen them, and hand them to the tensor cores as operand A, which comes from registers; one set
 * of registers is filled while the products of the other run.
 *
 * The four bytes of a lane stand for k = 4 t .. 4 t + 3 of 16, where operand A has 2 t, 2 t + 1, 2 t + 8,
 * 2 t + 9; and bytes 0 and 2, 1 and 3 are cheaper to widen in pairs than neighbours. The order along k is
 * free as long as both sides agree: within each 16 elements of a the even ones go before the odd ones, by
 * three warps, in shared memory.
 *
 * A stage is one block of scales: with these, sums begin at 0 and are added, scaled, to the others.
 *
 * Where there are few tiles a cluster shares one (pick_shape()): each CTA takes a part of k, and at the end a
 * part of the columns of out, of which it adds up what all have in the order of their ranks.
 *
 * Warps: those that multiply; one that fetches, by the copy engine, b before the kernel in front has ended;
 * three that permute.
 *
 * Shared memory (dynamic), all in swizzle by 128 bytes:
 *	3 to 8 stages	[rows of b][128] bytes
 *			2 x [cols][64] elements of a
 *	behind them	mbarriers [8] of each kind: full (1 arrival, and bytes), ready (each warp that
 *			permutes), empty (each warp that multiplies)
 *	at the end	float [cols][rows of b + 4], the sums, in the place of the stages
 *
 * Registers: 96 at the start; where sums are long 112 for warpgroups that multiply, 32 for the other (160 for
 * all where they are long and there twice). One CTA an SM.
 *
 * Floor: b once, n k bytes, as long as that takes longer than 2 m n k operations: to m = 90 or so. Short of
 * it: n = 28672 is 112 tiles for 132 SMs; an SM widens 26 bytes a clock, no more; 4 to 6 us a call.
 *
 * H200, bf16, scales of rows (of blocks), us a call of many in a graph, each with its own b; before it
 * (mma.sync, 8 warps that each widened 16 rows of b) and now: n x k =
 *	28672 x 4096	m 16 42.5, 35.8; m 32 53.8, 36.6; m 64 78.7, 43.6 (92.8, 44.5); m 128 136,
 *			63.5 (93.8); m 256 261, 124; m 512 245 (widened before cuBLASLt 246)
 *	4096 x 4096	m 16 13.0, 12.2; m 64 22.6, 15.7 (weights of 16 bits: 11.7)
 *	4096 x 14336	m 16 36.6, 23.7; m 64 67, 29.8; m 128 41.3; m 256 242, 68.8; m 512 119 (widened
 *			before cuBLASLt 132)
 *
 * Tried and lost: ldmatrix a turn ahead 0; 32 of k widened at a time instead of 64 0 to -3%; pairs of
 * CTAs with a by multicast 53 us for 35 at m 16, 73 for 63 at m 128; 1024 rows 470 us (widened before
 * cuBLASLt 403).
 */
#include <cuda.h>

#include "gemm_fp8w.cuh"
#include "launch.h"
#include "wgmma.cuh"

#define STAGE_K		128
#define GROUP_N		64		/* rows of b a warpgroup has */
#define MAX_CLUSTER	8
#define MAX_RING	8
#define SMEM_LIMIT	(227 * 1024)
#define BARRIER_BYTES	(3 * 8 * MAX_RING)
#define UNITS		1		/* of 32 bytes that a lane has in hand */
#define PERMUTERS	3		/* warps */

/* Where sums are long: registers that warpgroups which multiply have, and the other; 96 at the start */
#define MANY_REGS	112
#define FEW_REGS	32

/* racecheck does not see that one lane can speak for its warp. */
#ifdef CAIRN_DEBUG
#define SPEAKERS	32
#else
#define SPEAKERS	1
#endif

struct maps {
	CUtensorMap a, b;	/* boxes: 64 of k and a tile's rows of a; 128 of k and a tile's rows of b */
};

struct plan {
	int tiles_m, groups, size;	/* groups: warpgroups that multiply; size: CTAs that share a tile */
	int ring, rows_b;		/* stages in shared memory; rows of b in a tile */
};

struct tile {
	int row0, col0;			/* of out */
	int first, count;		/* stages along k */
};

/* Shared memory: addresses */
struct shared {
	uint32_t ring, full, ready, empty, stage_bytes, a_at;
};

FP8 void speak(uint32_t mbar)
{
	__syncwarp();
	if (threadIdx.x % 32 < SPEAKERS)
		ptx_mbarrier_arrive(mbar);
}

struct turn {
	int slot, phase;
};

FP8 void advance(struct turn *t, int ring)
{
	if (++t->slot == ring) {
		t->slot = 0;
		t->phase ^= 1;
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

/* By one lane. Weights do not wait for the kernel before: a ring of them, and only then what it made. */
template <int cols>
FP8 void fetch(const struct maps &maps, const struct shared &s, const struct tile &t, int ring)
{
	const int early = min(ring, t.count);
	struct turn turn = { 0, 1 };

	for (int i = 0; i < t.count; i++) {
		const uint32_t full = s.full + turn.slot * 8;

		ptx_mbarrier_wait(s.empty + turn.slot * 8, turn.phase);
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
		advance(&turn, ring);
	}
}

/*
 * By PERMUTERS warps, `nth` is a warp's number: within each 16 elements the even ones go before the odd
 * ones, as fp8_widen_even_odd() has them.
 */
template <int cols>
FP8 void permute(const struct shared &s, const struct tile &t, int ring, int nth)
{
	const int lane = threadIdx.x % 32;
	const uint32_t pair = lane % 4 * 2, swap = lane / 4;
	const uint32_t mine = s.ring + s.a_at + lane / 4 * 128;
	const uint32_t first = ((pair ^ swap) << 4), second = first ^ 16;
	struct turn turn = { 0, 0 };

	for (int i = 0; i < t.count; i++) {
		ptx_mbarrier_wait(s.full + turn.slot * 8, turn.phase);
#pragma unroll 1
		for (int j = nth * UNITS; j < 2 * cols / 8; j += PERMUTERS * UNITS) {
			const uint32_t at = mine + turn.slot * s.stage_bytes + j * 8 * 128;
			uint4 x[UNITS], y[UNITS];

#pragma unroll
			for (int u = 0; u < UNITS; u++) {
				x[u] = ptx_ld_shared_v4(at + u * 8 * 128 + first);
				y[u] = ptx_ld_shared_v4(at + u * 8 * 128 + second);
			}
#pragma unroll
			for (int u = 0; u < UNITS; u++) {
				const uint4 p = x[u], q = y[u];

				ptx_st_shared_v4(at + u * 8 * 128 + first,
						 make_uint4(__byte_perm(p.x, p.y, 0x5410),
							    __byte_perm(p.z, p.w, 0x5410),
							    __byte_perm(q.x, q.y, 0x5410),
							    __byte_perm(q.z, q.w, 0x5410)));
				ptx_st_shared_v4(at + u * 8 * 128 + second,
						 make_uint4(__byte_perm(p.x, p.y, 0x7632),
							    __byte_perm(p.z, p.w, 0x7632),
							    __byte_perm(q.x, q.y, 0x7632),
							    __byte_perm(q.z, q.w, 0x7632)));
			}
		}
		ptx_fence_proxy_async_shared_cta();
		speak(s.ready + turn.slot * 8);
		advance(&turn, ring);
	}
}

/* sum: [cols / 8][4] */
template <int dtype, int cols, bool blocks>
FP8 void multiply(const struct cairn_gemm_fp8w_args &g, const struct shared &s, const struct tile &t,
		  int ring, float *sum)
{
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	const uint32_t mine = s.ring + (warp * 16 + lane % 16) * STAGE_K;
	const uint32_t piece = (lane / 16 ^ lane % 8) << 4;
	const int row = min(t.col0 + warp / 4 * GROUP_N, g.n - 1);
	const int scale_at = row / CAIRN_FP8_BLOCK * ((g.k + STAGE_K - 1) / STAGE_K) + t.first - 1;
	constexpr int steps = cols == 32 || (cols == 64 && !blocks) ? 4 : 2;
	float part[blocks ? cols / 2 : 1];
	float *d = blocks ? part : sum;
	struct turn turn = { 0, 0 };
	int before = 0;
	uint32_t w[2][steps][4];

#pragma unroll
	for (int j = 0; j < cols / 2; j++)
		sum[j] = 0;
	for (int i = 0; i < t.count; i++) {
		const uint32_t at = mine + turn.slot * s.stage_bytes;
		const uint32_t a = (uint32_t)wgmma_desc(s.ring + turn.slot * s.stage_bytes + s.a_at, 0);
		float scale = 0;

		if (blocks && i > 0)
			scale = g.b_scale[scale_at + i];
		ptx_mbarrier_wait(s.full + turn.slot * 8, turn.phase);
#pragma unroll
		for (int c = 0; c < STAGE_K / 16 / steps; c++) {
			uint32_t (*x)[4] = w[c & 1], q[steps / 2][4];

#pragma unroll
			for (int h = 0; h < steps / 2; h++)
				ptx_ldmatrix_x4(q[h], at + (piece ^ (c * steps / 2 + h) << 5));
#pragma unroll
			for (int h = 0; h < steps * 2; h++)
				fp8_widen_even_odd<dtype>(q[h / 4][h % 4], &x[h / 2][h % 2],
							  &x[h / 2][h % 2 + 2]);
			if (c == 0) {
				ptx_mbarrier_wait(s.ready + turn.slot * 8, turn.phase);
				/* the compiler wants to see an end to each stage's products */
				ptx_wgmma_wait_group<0>();
				wgmma_keep<cols / 2>(d);
				if (i > 0) {
#pragma unroll
					for (int j = 0; blocks && j < cols / 2; j++)
						sum[j] += scale * d[j];
					speak(s.empty + before * 8);
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
			ptx_wgmma_wait_group<1>();	/* what the other half of w was for */
		}
		before = turn.slot;
		advance(&turn, ring);
	}
	ptx_wgmma_wait_group<0>();
	wgmma_keep<cols / 2>(d);
#pragma unroll
	for (int j = 0; blocks && t.count && j < cols / 2; j++)
		sum[j] += g.b_scale[scale_at + t.count] * d[j];
}

/* Columns of this CTA's share: what all CTAs have of them, added up, finished and written. */
FP8 void write_out(const struct cairn_gemm_fp8w_args &g, const struct plan &p, const struct tile &t,
		   uint32_t sums, int cols, int rank)
{
	const int all = p.rows_b / 4, first = rank * all / p.size, quads = (rank + 1) * all / p.size - first;
	const int rows = min(cols, g.m - t.row0), pitch = p.rows_b + 4;

	for (int e = threadIdx.x; e < rows * quads; e += p.groups * 128) {
		const int r = e / quads, at = (first + e % quads) * 4, j = t.col0 + at, i = t.row0 + r;
		float v[4] = { 0, 0, 0, 0 };

		if (j >= g.n)
			continue;
#pragma unroll
		for (int peer = 0; peer < MAX_CLUSTER; peer++) {
			uint4 x;

			if (peer >= p.size)
				break;
			x = ptx_ld_shared_cluster_v4(ptx_mapa(sums + (r * pitch + at) * 4, peer));
			v[0] += __uint_as_float(x.x);
			v[1] += __uint_as_float(x.y);
			v[2] += __uint_as_float(x.z);
			v[3] += __uint_as_float(x.w);
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

/* Warpgroups that multiply: 4 or 2, and 2 only where sums are there twice and long */
#define MAX_GROUPS(cols, blocks)	((cols) == 128 && (blocks) ? 2 : 4)

template <int dtype, int cols, bool blocks>
__global__ void __launch_bounds__(MAX_GROUPS(cols, blocks) * 128 + 128, 1)
gemm_fp8w_tile_kernel(const __grid_constant__ struct cairn_gemm_fp8w_args g,
		      const __grid_constant__ struct maps maps, const __grid_constant__ struct plan p)
{
	constexpr bool more_registers = cols == 128 ? !blocks : cols == 64 && blocks;
	extern __shared__ __align__(1024) unsigned char s_mem[];
	const int rank = blockIdx.x % p.size, id = blockIdx.x / p.size;
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, workers = p.groups * 4;
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
	if (threadIdx.x == 0) {
		for (int i = 0; i < p.ring; i++) {
			ptx_mbarrier_init(s.full + i * 8, 1);
			ptx_mbarrier_init(s.ready + i * 8, PERMUTERS * SPEAKERS);
			ptx_mbarrier_init(s.empty + i * 8, workers * SPEAKERS);
		}
		ptx_fence_mbarrier_init_release_cluster();
	}
	__syncthreads();
	if (warp >= workers) {
		if (more_registers)
			ptx_setmaxnreg_dec<FEW_REGS>();
		if (warp == workers && lane == 0)
			fetch<cols>(maps, s, t, p.ring);
		if (warp > workers && warp <= workers + PERMUTERS)
			permute<cols>(s, t, p.ring, warp - workers - 1);
		__syncwarp();
		__syncthreads();
		ptx_barrier_cluster_arrive_release();
		ptx_barrier_cluster_wait_acquire();
	} else {
		float *to = (float *)s_mem + lane % 4 * 2 * (p.rows_b + 4) + warp * 16 + lane / 4, *line;
		float sum[cols / 2];

		if (more_registers)
			ptx_setmaxnreg_inc<MANY_REGS>();
		multiply<dtype, cols, blocks>(g, s, t, p.ring, sum);
		__syncthreads();	/* all are done with the ring */
#pragma unroll
		for (int j = 0; j < cols / 8; j++) {
			line = to + j * 8 * (p.rows_b + 4);
			line[0] = sum[4 * j];
			line[8] = sum[4 * j + 2];
			line += p.rows_b + 4;
			line[0] = sum[4 * j + 1];
			line[8] = sum[4 * j + 3];
		}
		ptx_barrier_cluster_arrive_release();
		ptx_barrier_cluster_wait_acquire();
		ptx_griddepcontrol_wait();
		write_out(g, p, t, s.ring, cols, rank);
		__syncwarp();
	}
	ptx_barrier_cluster_arrive_relaxed();	/* nobody leaves whose sums are still read */
	ptx_barrier_cluster_wait_acquire();
}

typedef CUresult encode_fn(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
			   const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
			   CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* Boxes of 128 bytes along k and so many rows; past the matrix there are zeros. */
static int make_map(CUtensorMap *map, const void *matrix, int rows, int k, int bytes, int box_rows)
{
	static void *encode;
	const cuuint64_t dim[2] = { (cuuint64_t)k, (cuuint64_t)rows }, stride = (cuuint64_t)k * bytes;
	const cuuint32_t box[2] = { 128u / bytes, (cuuint32_t)box_rows }, one[2] = { 1, 1 };
	cudaDriverEntryPointQueryResult found;
	CUresult res;

	if (!encode)
		CAIRN_CUDA(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000,
							    cudaEnableDefault, &found));
	if (!encode)
		return cairn_error(EOPNOTSUPP, "gemm_fp8w: the driver has no cuTensorMapEncodeTiled");
	res = ((encode_fn *)encode)(map, bytes == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 :
				    CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, (void *)matrix, dim, &stride, box, one,
				    CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
				    CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
	if (res != CUDA_SUCCESS)
		return cairn_error(EIO, "gemm_fp8w: cuTensorMapEncodeTiled: %d", (int)res);
	return 0;
}

static int div_up(int a, int b)
{
	return (a + b - 1) / b;
}

/* How many clusters of so many CTAs, one a multiprocessor, are resident at once; < 0: -errno */
static int num_clusters(const void *kernel, const struct cairn_launch *launch, int size)
{
	static int known[MAX_CLUSTER + 1];
	struct cairn_launch l = *launch;
	int n = known[size];

	if (n)
		return n;
	l.cluster = size;
	l.grid[0] = (unsigned int)size;
	l.smem = SMEM_LIMIT;
	n = cairn_max_active_clusters(kernel, &l);
	if (n > 0)
		known[size] = n;
	return n;
}

/*
 * Warpgroups of a CTA and CTAs that share a tile: whatever takes the fullest multiprocessor the fewest
 * clocks. A stage takes as long as its bytes, 24 a clock, or its products, 32 x 64 x 64 a clock; so do a
 * CTA's start and end, and the exchange of sums.
 */
static int pick_shape(const struct cairn_gemm_fp8w_args *g, const void *kernel,
		      const struct cairn_launch *launch, int cols, int max_groups, struct plan *p)
{
	const int stages = div_up(g->k, STAGE_K);
	int64_t least = INT64_MAX;

	for (int w = 2; w <= max_groups; w += 2) {
		const int rows_b = w * GROUP_N, tiles = div_up(g->m, cols) * div_up(g->n, rows_b);
		const int bytes = (rows_b + 2 * cols) * STAGE_K;
		const int stage = bytes / 24 > rows_b * cols / 16 ? bytes / 24 : rows_b * cols / 16;

		for (int z = 1; z <= MAX_CLUSTER && z <= stages; z++) {
			const int at_once = num_clusters(kernel, launch, z);
			const int64_t sums = z > 1 ? 1500 + rows_b * cols / 8 : 0;
			int64_t cost;

			if (at_once < 0)
				return at_once;
			if (!at_once)
				continue;
			cost = div_up(tiles, at_once) * (3000 + (int64_t)div_up(stages, z) * stage + sums);
			if (cost < least) {
				least = cost;
				p->groups = w;
				p->size = z;
			}
		}
	}
	return 0;
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
	const int pick = g->m <= 32 ? 0 : g->m <= 64 ? 1 : 2, cols = 32 << pick;
	const int max_groups = MAX_GROUPS(cols, g->scale_kind);
	const void *kernel = kernels[pick][g->scale_kind][g->dtype == CAIRN_F16];
	struct cairn_launch l = { .pdl = 1, .stream = stream };
	int stage_bytes;
	struct maps maps;
	struct plan p;
	void *params[] = { (void *)g, &maps, &p };

	l.block[0] = (unsigned int)(max_groups * 128 + 128);
	CAIRN_TRY(pick_shape(g, kernel, &l, cols, max_groups, &p));
	p.rows_b = p.groups * GROUP_N;
	p.tiles_m = div_up(g->m, cols);
	stage_bytes = (p.rows_b + cols * 2) * STAGE_K;
	p.ring = (SMEM_LIMIT - BARRIER_BYTES) / stage_bytes;
	if (p.ring > MAX_RING)
		p.ring = MAX_RING;
	CAIRN_TRY(make_map(&maps.a, g->a, g->m, g->k, 2, cols));
	CAIRN_TRY(make_map(&maps.b, g->b, g->n, g->k, 1, p.rows_b));
	l.cluster = p.size;
	l.grid[0] = (unsigned int)(p.tiles_m * div_up(g->n, p.rows_b) * p.size);
	l.block[0] = (unsigned int)(p.groups * 128 + 128);
	l.smem = (size_t)p.ring * stage_bytes + BARRIER_BYTES;
	return cairn_launch(kernel, &l, params);
}
