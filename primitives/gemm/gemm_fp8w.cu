/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_fp8w - chooses the kernel for a shape; the memory-bound kernel for up to 8 rows of a
 *
 *   m             kernel
 *   1..8          gemm_fp8w_skinny_kernel, in this file
 *   9..512        gemm_fp8w_tile_kernel (gemm_fp8w_tile.cu): tiles of b are widened on their way to wgmma;
 *                 with block scales only up to 256, where the contract demands exact products
 *   above         b is widened and scaled into the workspace, then cuBLASLt: 5 n k more bytes of traffic
 *
 * The skinny kernel is that of gemm.cu with half the bytes per weight: one CTA of 16 warps per SM,
 * persistent over units of 16 rows of b. The warps take the stages of a unit (256 along k: 16 rows x 256
 * bytes) in turn; each is an independent pipeline over a private ring of 2 stages filled by cp.async. The 16
 * partial sums are added in shared memory: two buffers, one __syncthreads per unit.
 *
 * Within 64 elements of k, lane 4 g + t takes bytes 16 t .. 16 t + 15 of row g and the same elements of a:
 * the assignment of elements to mma operands is arbitrary if it is the same for both. Bytes are widened to
 * 16 bits in registers (fp8.cuh): 2.5 instructions per pair of weights in bf16, a third of an SM's issue
 * slots at 20 bytes per clock and SM. Row scales are applied once at the end; with block scales, a new sum
 * starts every 128.
 *
 * Floor: reading b once, n k bytes at the rate of stream READ.
 *
 * Shared memory (dynamic):
 *	0		16 rings of 2 stages of 16 rows of 256 bytes; piece i of row r lies at i ^ 4 (r & 1)
 *	131072		float [2][16 warps][8 rows of a][16 rows of b], the partial sums
 *
 * Figures: NOTES.md.
 */
#include "primitives/base/dtype.h"
#include "primitives/ptx/fp8.cuh"
#include "primitives/gemm/gemm.h"
#include "primitives/gemm/gemm_fp8w.h"
#include "primitives/gemm/gemm_fp8w.cuh"
#include "primitives/base/launch.h"
#include "primitives/ptx/ptx_copy.cuh"

#define WARPS		16
#define STAGES		2	/* in a warp's ring */
#define ROWS		16	/* rows of b in a unit */
#define STAGE_K		256
#define PIECES		(STAGE_K / 16)
#define STAGE_BYTES	(ROWS * STAGE_K)
#define RING_BYTES	(WARPS * STAGES * STAGE_BYTES)
#define CHUNKS		(STAGE_K / 64)
#define SKINNY_M	8
#define TILE_M		512
#define SUMS		(SKINNY_M * ROWS)

/* A unit and one of its stages. */
struct place {
	int unit, stage;
};

/* num_stages is a multiple of WARPS, so that all warps have equally many; stages past k are zeros. */
FP8 struct place next_place(struct place p, int num_stages)
{
	p.stage += WARPS;
	if (p.stage >= num_stages) {
		p.stage -= num_stages;
		p.unit += gridDim.x;
	}
	return p;
}

/*
 * Each load instruction of the warp fetches two rows. Outside the matrix it stores zeros and reads nothing.
 */
FP8 void fetch_stage(const struct cairn_gemm_fp8w_args &g, struct place p, int num_units, uint32_t ring,
		     uint64_t policy)
{
	int lane = threadIdx.x & 31, piece = lane % PIECES, at = p.stage * STAGE_K + piece * 16;
	int first = lane / PIECES, row = p.unit * ROWS + first;

	if (p.unit < num_units) {
		const uint8_t *src = g.b + (int64_t)row * g.k + at;
		/* first is the parity of all rows of this lane, because rows advance by two */
		uint32_t dst = ring + first * STAGE_K + (piece ^ first << 2) * 16;

#pragma unroll
		for (int i = 0; i < ROWS; i += 32 / PIECES) {
			int valid = row + i < g.n && at < g.k;

			ptx_cp_async_cg_hint(dst + i * STAGE_K, valid ? src + (int64_t)i * g.k : g.b,
					     valid ? 16 : 0, policy);
		}
	}
	ptx_cp_async_commit_group();
}

FP8 uint4 load_a(const struct cairn_gemm_fp8w_args &g, int row, int at)
{
	return row < g.m && at < g.k ? *(const uint4 *)((const uint16_t *)g.a + (int64_t)row * g.k + at) :
				       make_uint4(0, 0, 0, 0);
}

template <int dtype, bool blocks> __global__ void __launch_bounds__(WARPS * 32, 1)
gemm_fp8w_skinny_kernel(const __grid_constant__ struct cairn_gemm_fp8w_args g)
{
	extern __shared__ __align__(128) unsigned char s_mem[];
	int lane = threadIdx.x & 31, warp = threadIdx.x / 32, quad = lane / 4, t = lane & 3;
	float *s_sum = (float *)(s_mem + RING_BYTES);
	uint32_t ring = ptx_smem(s_mem) + warp * STAGES * STAGE_BYTES;
	uint32_t mine = ring + quad * STAGE_K, swap = (quad & 1) << 2;
	uint64_t policy = ptx_createpolicy_evict_first();
	int num_units = (g.n + ROWS - 1) / ROWS;
	int num_stages = (g.k + STAGE_K * WARPS - 1) / (STAGE_K * WARPS) * WARPS;
	int num_blocks = (g.k + CAIRN_FP8_BLOCK - 1) / CAIRN_FP8_BLOCK;
	struct place here = { (int)blockIdx.x, warp }, ahead = here;
	float sum[2][4] = { { 0 } };	/* [group of 8 rows of b][element] */
	int slot = 0, buf = 0;

	ptx_griddepcontrol_launch_dependents();
	for (int i = 0; i < STAGES; i++) {
		fetch_stage(g, ahead, num_units, ring + i * STAGE_BYTES, policy);
		ahead = next_place(ahead, num_stages);
	}
	ptx_griddepcontrol_wait();
	while (here.unit < num_units) {
		struct place next = next_place(here, num_stages);
		float scale[2] = { 0, 0 };
		uint4 x[CHUNKS][2];

#pragma unroll
		for (int c = 0; c < CHUNKS; c++)
#pragma unroll
			for (int h = 0; h < 2; h++)
				x[c][h] = load_a(g, quad, here.stage * STAGE_K + c * 64 + t * 16 + h * 8);
		if (blocks) {
			int block = here.stage * (STAGE_K / CAIRN_FP8_BLOCK);
			const float *s = g.b_scale + here.unit * ROWS / CAIRN_FP8_BLOCK * num_blocks + block;

			scale[0] = block < num_blocks ? s[0] : 0;
			scale[1] = block + 1 < num_blocks ? s[1] : 0;
		}
		ptx_cp_async_wait_group<STAGES - 1>();
		__syncwarp();
#pragma unroll
		for (int b = 0; b < STAGE_K / CAIRN_FP8_BLOCK; b++) {
			float part[2][4] = { { 0 } };

#pragma unroll
			for (int c = b * (CHUNKS / 2); c < (b + 1) * (CHUNKS / 2); c++)
#pragma unroll
				for (int i = 0; i < 2; i++) {
					float *to = blocks ? part[i] : sum[i];
					uint32_t at = mine + slot * STAGE_BYTES + i * 8 * STAGE_K;
					uint4 w = ptx_ld_shared_v4(at + ((c * 4 + t) ^ swap) * 16);

					fp8w_mma<dtype>(to, x[c][0].x, x[c][0].y, w.x);
					fp8w_mma<dtype>(to, x[c][0].z, x[c][0].w, w.y);
					fp8w_mma<dtype>(to, x[c][1].x, x[c][1].y, w.z);
					fp8w_mma<dtype>(to, x[c][1].z, x[c][1].w, w.w);
				}
			if (blocks) {
#pragma unroll
				for (int i = 0; i < 2; i++) {
					sum[i][0] += scale[b] * part[i][0];
					sum[i][1] += scale[b] * part[i][1];
				}
			}
		}
		__syncwarp();	/* all lanes have read the stage that is refilled next */
		fetch_stage(g, ahead, num_units, ring + slot * STAGE_BYTES, policy);
		ahead = next_place(ahead, num_stages);
		slot ^= 1;
		if (next.unit != here.unit) {
			float *to = s_sum + (buf * WARPS + warp) * SUMS + quad * ROWS + 2 * t;

#pragma unroll
			for (int i = 0; i < 2; i++) {
				*(float2 *)(to + 8 * i) = make_float2(sum[i][0], sum[i][1]);
#pragma unroll
				for (int k = 0; k < 4; k++)
					sum[i][k] = 0;
			}
			__syncthreads();
			if (threadIdx.x < SUMS) {
				int i = threadIdx.x / ROWS, j = here.unit * ROWS + threadIdx.x % ROWS;
				float total = 0;

#pragma unroll
				for (int w = 0; w < WARPS; w++)
					total += s_sum[(buf * WARPS + w) * SUMS + threadIdx.x];
				if (i < g.m && j < g.n)
					fp8w_store(g, i, j, fp8w_finish(g, j, total));
			}
			buf ^= 1;
		}
		here = next;
	}
}

/* ---- b widened in memory ---- */

#define WIDEN_THREADS	256

/* Each thread widens 16 elements, which lie in one row and one block because k is a multiple of 16. */
template <int dtype> __global__ void __launch_bounds__(WIDEN_THREADS)
widen_kernel(const __grid_constant__ struct cairn_gemm_fp8w_args g, void *to)
{
	int64_t e = ((int64_t)blockIdx.x * WIDEN_THREADS + threadIdx.x) * 16;
	int row = (int)(e / g.k), at = (int)(e - (int64_t)row * g.k);
	int num_blocks = (g.k + CAIRN_FP8_BLOCK - 1) / CAIRN_FP8_BLOCK;
	uint32_t out[8];
	float scale;
	uint4 b;

	ptx_griddepcontrol_wait();
	if (row >= g.n)
		return;
	scale = g.b_scale[g.scale_kind ? row / CAIRN_FP8_BLOCK * num_blocks + at / CAIRN_FP8_BLOCK : row];
	b = ptx_ld_global_nc_no_allocate_v4(g.b + e);
	fp8_widen<dtype>(b.x, out, out + 1);
	fp8_widen<dtype>(b.y, out + 2, out + 3);
	fp8_widen<dtype>(b.z, out + 4, out + 5);
	fp8_widen<dtype>(b.w, out + 6, out + 7);
#pragma unroll
	for (int i = 0; i < 8; i++) {
		float f[2];

		row_unpack2<dtype>(out[i], f);
		out[i] = row_pack2<dtype>(f[0] * scale, f[1] * scale);
	}
	((uint4 *)to)[e / 8] = make_uint4(out[0], out[1], out[2], out[3]);
	((uint4 *)to)[e / 8 + 1] = make_uint4(out[4], out[5], out[6], out[7]);
}

static size_t widened_bytes(const struct cairn_gemm_fp8w_args *g)
{
	return ((size_t)g->n * g->k * 2 + 255) / 256 * 256;
}

static struct cairn_gemm_args widened(const struct cairn_gemm_fp8w_args *g, char *workspace)
{
	struct cairn_gemm_args args = {
		.size = sizeof(args), .out = g->out, .a = g->a, .b = workspace, .bias = g->bias,
		.workspace = workspace + widened_bytes(g),
		.workspace_bytes = g->workspace_bytes - widened_bytes(g), .m = g->m, .n = g->n, .k = g->k,
		.dtype = g->dtype, .out_dtype = g->out_dtype, .sms = g->sms,
	};

	return args;
}

static int launch_widened(const struct cairn_gemm_fp8w_args *g, void *stream)
{
	struct cairn_launch l = { .block = { WIDEN_THREADS }, .pdl = !g->sms, .stream = stream };
	struct cairn_gemm_args args = widened(g, (char *)g->workspace);
	void *to = g->workspace, *params[] = { (void *)g, &to };
	int64_t ctas = ((int64_t)g->n * g->k / 16 + WIDEN_THREADS - 1) / WIDEN_THREADS;

	if (!g->workspace || g->workspace_bytes < widened_bytes(g))
		return cairn_error(EINVAL, "gemm_fp8w: workspace_bytes: %zu is less than %zu",
				   g->workspace_bytes, widened_bytes(g));
	if (ctas > INT32_MAX)
		return cairn_error(EOPNOTSUPP, "gemm_fp8w: n %d, k %d: too large", g->n, g->k);
	l.grid[0] = (unsigned int)ctas;
	CAIRN_TRY(cairn_launch(g->dtype == CAIRN_BF16 ? (const void *)widen_kernel<CAIRN_BF16> :
			       (const void *)widen_kernel<CAIRN_F16>, &l, params));
	return cairn_gemm(&args, stream);
}

/*
 * Block scales need a second set of sums in the tile kernel; widening b first is faster for every m at which
 * the contract allows it.
 */
static int by_tile(const struct cairn_gemm_fp8w_args *g)
{
	return g->m > SKINNY_M && g->m <= (g->scale_kind ? CAIRN_GEMM_FP8W_EXACT_M : TILE_M);
}

static int launch_skinny(const struct cairn_gemm_fp8w_args *g, void *stream)
{
	int units = (g->n + ROWS - 1) / ROWS, num_sms = cairn_sms_of(g->sms);
	struct cairn_launch launch = { 0 };
	void *params[] = { (void *)g };
	const void *kernel;

	if (num_sms < 0)
		return num_sms;
	if (g->scale_kind)
		kernel = g->dtype == CAIRN_BF16 ? (const void *)gemm_fp8w_skinny_kernel<CAIRN_BF16, true> :
			 (const void *)gemm_fp8w_skinny_kernel<CAIRN_F16, true>;
	else
		kernel = g->dtype == CAIRN_BF16 ? (const void *)gemm_fp8w_skinny_kernel<CAIRN_BF16, false> :
			 (const void *)gemm_fp8w_skinny_kernel<CAIRN_F16, false>;
	launch.grid[0] = units < num_sms ? units : num_sms;
	launch.block[0] = WARPS * 32;
	launch.smem = RING_BYTES + 2 * WARPS * SUMS * sizeof(float);
	launch.pdl = !g->sms;	/* a dependent launch would take SMs that are not this call's */
	launch.stream = stream;
	return cairn_launch(kernel, &launch, params);
}

extern "C" int cairn_gemm_fp8w(const struct cairn_gemm_fp8w_args *g, void *stream)
{
	CAIRN_TRY(cairn_gemm_fp8w_check(g));
	if (g->m <= SKINNY_M)
		return launch_skinny(g, stream);
	if (by_tile(g))
		return cairn_gemm_fp8w_tile(g, stream);
	return launch_widened(g, stream);
}

extern "C" int cairn_gemm_fp8w_workspace(const struct cairn_gemm_fp8w_args *g, size_t *bytes)
{
	struct cairn_gemm_fp8w_args shape;
	struct cairn_gemm_args args;
	void *somewhere = (void *)256;	/* aligned and not null; never dereferenced */

	if (!g || !bytes)
		return cairn_error(EINVAL, "gemm_fp8w_workspace: null pointer");
	CAIRN_TRY(cairn_gemm_fp8w_check_shape(g));
	shape = *g;
	shape.out = somewhere;
	shape.a = somewhere;
	*bytes = by_tile(g) ? cairn_gemm_fp8w_tile_workspace(g) : 0;
	if (g->m <= SKINNY_M || by_tile(g))
		return 0;
	args = widened(&shape, (char *)somewhere);
	CAIRN_TRY(cairn_gemm_workspace(&args, bytes));
	*bytes += widened_bytes(g);
	return 0;
}
