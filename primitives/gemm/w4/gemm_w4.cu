/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_w4 - chooses the kernel for a shape; the memory-bound kernel for up to 8 rows of a
 *
 *   m             kernel
 *   1..8          gemm_w4_skinny_kernel, in this file
 *   9..512        gemm_w4_tile_kernel (gemm_w4_tile.cu): codes are decoded on their way to wgmma
 *   above         b is decoded and scaled into the workspace, then gemm: 4 n k more bytes of traffic
 *
 * The skinny kernel: one CTA of 16 warps per SM, persistent over units of 16 rows of b. The warps take the
 * stages of a unit (128 along k: 1024 bytes of codes, and their cells of scales) in turn; each is an
 * independent pipeline over a private ring of 4 stages filled by cp.async, so that an SM has 64 KB in flight.
 * A lane reads the 16 bytes that it has fetched itself: they are its elements of operand A of four mma
 * (gemm_w4_layout.h), whose columns are the rows of a. Codes are decoded in registers (gemm_w4.cuh). A new
 * sum starts with every group, or every 64 elements if groups are longer; it is scaled and added to the total
 * in fp32. The 16 totals are added in shared memory: two buffers, one __syncthreads per unit.
 *
 * Two CTAs fit an SM, but a launch has one for each SM: the second place is for a CTA of the next kernel,
 * which fills its rings while this one computes its last units. Reading 4-bit weights takes so little time
 * that the start of each kernel would otherwise count.
 *
 * Floor: reading b and its scales once, at the rate of stream READ.
 *
 * Shared memory (dynamic):
 *	0		16 rings of 4 stages of 1024 bytes of codes and up to 192 bytes of cells
 *	77824		float [2][16 warps][8 rows of a][16 rows of b], the totals
 * Registers: 64.
 */
#include "primitives/gemm/w4/gemm_w4.cuh"

#include "primitives/base/launch.h"
#include "primitives/gemm/gemm.h"
#include "primitives/ptx/ptx_copy.cuh"

#define WARPS		16
#define STAGES		4	/* in a warp's ring */
#define STAGE_K		128
#define TILES		(STAGE_K / CAIRN_W4_TILE_K)
#define CODE_BYTES	(TILES * CAIRN_W4_TILE_BYTES)
#define CELL_BYTES	192	/* the most that a stage has: 4 groups of INT */
#define STAGE_BYTES	(CODE_BYTES + CELL_BYTES)
#define RING_BYTES	(WARPS * STAGES * STAGE_BYTES)
#define SKINNY_M	CAIRN_GEMM_W4_EXACT_M
#define TILE_M		512
#define ROWS		CAIRN_W4_ROWS
#define SUMS		(SKINNY_M * ROWS)

/* A unit and one of its stages. */
struct place {
	int unit, stage;
};

/* Sizes along k, and how the groups of a stage lie */
struct sizes {
	int units, tiles, stages;	/* stages: a multiple of WARPS, so that all warps have equally many */
	int cells;			/* bytes of the cells of a unit */
	int stage_cells;		/* bytes of the cells of a stage */
	int step_cells;			/* bytes from there to the cells of the next stage, or 0 */
	/* bytes from the codes, or cells, of a warp's last stage of a unit to those of its next stage */
	int64_t codes_to_next, cells_to_next;
	int shift;			/* a group has 2^shift elements */
};

W4 struct place next_place(struct place p, const struct sizes &z)
{
	p.stage += WARPS;
	if (p.stage >= z.stages) {
		p.stage -= z.stages;
		p.unit += gridDim.x;
	}
	return p;
}

/* What a lane fetches next: the place, and its addresses in b and b_scale */
struct source {
	struct place at;
	const uint8_t *codes, *cells;
};

W4 struct source first_source(const struct cairn_gemm_w4_args &g, const struct sizes &z, int warp, int lane)
{
	struct source s = { { (int)blockIdx.x, warp }, g.b, g.b_scale };

	s.codes += ((int64_t)s.at.unit * z.tiles + warp * TILES) * CAIRN_W4_TILE_BYTES + lane * 16;
	s.cells += (int64_t)s.at.unit * z.cells + warp * z.step_cells + lane * 16;
	return s;
}

/* Moves to the warp's next stage by one addition for each address; there are two distances. */
W4 void advance(struct source *s, const struct sizes &z)
{
	const struct place next = next_place(s->at, z);
	const bool same = next.unit == s->at.unit;

	s->codes += same ? WARPS * CODE_BYTES : z.codes_to_next;
	s->cells += same ? WARPS * z.step_cells : z.cells_to_next;
	s->at = next;
}

/*
 * Within the last stage of a unit it stores zeros for what lies past k, and reads nothing; sums of 0 are then
 * scaled by 0 or, with MX, by 2^-127.
 */
W4 void fetch_stage(const struct sizes &z, const struct source &s, uint32_t ring, uint64_t policy)
{
	const int lane = threadIdx.x & 31;

	if (s.at.unit < z.units && s.at.stage * TILES < z.tiles) {
		const uint32_t to = ring + lane * 16;

#pragma unroll
		for (int c = 0; c < TILES; c++) {
			const bool valid = c == 0 || s.at.stage * TILES + c < z.tiles;
			const int at = c * CAIRN_W4_TILE_BYTES;

			ptx_cp_async_cg_hint(to + at, s.codes + (valid ? at : 0), valid ? 16 : 0, policy);
		}
		if (lane * 16 < z.stage_cells) {
			const bool valid = s.at.stage * z.step_cells + lane * 16 < z.cells;

			ptx_cp_async_cg_hint(to + CODE_BYTES, valid ? s.cells : s.codes, valid ? 16 : 0,
					     policy);
		}
	}
	ptx_cp_async_commit_group();
}

/*
 * Loads operand B of a stage's products: pairs of elements of a row of a, and zeros past k. from: the lane's
 * first pair; left: elements from the start of the stage to k
 */
W4 void load_a(const uint16_t *from, int left, uint32_t x[TILES * 4][2])
{
	if (left >= STAGE_K) {
#pragma unroll
		for (int i = 0; i < TILES * 4; i++) {
			x[i][0] = *(const uint32_t *)(from + i * 16);
			x[i][1] = *(const uint32_t *)(from + i * 16 + 8);
		}
	} else {
#pragma unroll
		for (int i = 0; i < TILES * 4; i++) {
			x[i][0] = i * 16 < left ? *(const uint32_t *)(from + i * 16) : 0;
			x[i][1] = i * 16 < left ? *(const uint32_t *)(from + i * 16 + 8) : 0;
		}
	}
}

/*
 * Adds the scaled products of a stage to total. stage: this warp's codes and cells; x: operand B; steps:
 * products of 16 along k that share a scale
 */
template <int format, int dtype, int steps>
W4 void multiply_stage(const unsigned char *stage, int shift, uint32_t x[TILES * 4][2], float total[4])
{
	const int lane = threadIdx.x & 31;

#pragma unroll
	for (int c = 0; c < TILES; c++) {
		const uint4 four = *(const uint4 *)(stage + c * CAIRN_W4_TILE_BYTES + lane * 16);
		const uint32_t w[4] = { four.x, four.y, four.z, four.w };
		struct w4_scales s;
		float part[4];

#pragma unroll
		for (int h = 0; h < 4; h++) {
			uint32_t codes[4];

			if (h % steps == 0) {
				const int nth = c * CAIRN_W4_TILE_K + h * 16 >> shift;
				const int cell = CODE_BYTES + nth * cairn_w4_cell_bytes(format);

				s = w4_load_scales<format, dtype>(stage + cell, lane / 4);
#pragma unroll
				for (int e = 0; e < 4; e++)
					part[e] = 0;
			}
			w4_decode<format, dtype>(w[h], s, codes);
			if (dtype == CAIRN_BF16)
				ptx_mma_m16n8k16_bf16(part, codes, x[c * 4 + h]);
			else
				ptx_mma_m16n8k16_f16(part, codes, x[c * 4 + h]);
			if (h % steps == steps - 1) {
#pragma unroll
				for (int e = 0; e < 4; e++)
					total[e] += s.s[e / 2] * part[e];
			}
		}
	}
}

template <int format, int dtype, int steps> __global__ void __launch_bounds__(WARPS * 32, 2)
gemm_w4_skinny_kernel(const __grid_constant__ struct cairn_gemm_w4_args g,
		      const __grid_constant__ struct sizes z)
{
	extern __shared__ __align__(128) unsigned char s_mem[];
	const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, quad = lane / 4, t = lane & 3;
	const uint64_t policy = ptx_createpolicy_evict_first();
	unsigned char *mine = s_mem + warp * STAGES * STAGE_BYTES;
	const uint32_t ring = ptx_smem(mine);
	float *s_sum = (float *)(s_mem + RING_BYTES);
	struct source ahead = first_source(g, z, warp, lane);
	struct place here = ahead.at;
	/* columns of the products past the last row repeat it; they are not written */
	const uint16_t *a = (const uint16_t *)g.a + (int64_t)min(quad, g.m - 1) * g.k + 2 * t;
	float total[4] = { 0, 0, 0, 0 };
	int slot = 0, buf = 0;

	ptx_griddepcontrol_launch_dependents();
	for (int i = 0; i < STAGES; i++) {
		fetch_stage(z, ahead, ring + i * STAGE_BYTES, policy);
		advance(&ahead, z);
	}
	ptx_griddepcontrol_wait();
	while (here.unit < z.units) {
		const struct place next = next_place(here, z);
		const int left = g.k - here.stage * STAGE_K;
		uint32_t x[TILES * 4][2];

		if (left > 0)
			load_a(a + here.stage * STAGE_K, left, x);
		ptx_cp_async_wait_group<STAGES - 1>();
		__syncwarp();	/* other lanes have fetched the scales */
		if (left > 0)
			multiply_stage<format, dtype, steps>(mine + slot * STAGE_BYTES, z.shift, x, total);
		__syncwarp();	/* all lanes have read the stage that is refilled next */
		fetch_stage(z, ahead, ring + slot * STAGE_BYTES, policy);
		advance(&ahead, z);
		slot = (slot + 1) % STAGES;
		if (next.unit != here.unit) {
			float *to = s_sum + (buf * WARPS + warp) * SUMS + 2 * t * ROWS + quad;

#pragma unroll
			for (int e = 0; e < 4; e++) {
				to[e % 2 * ROWS + e / 2 * 8] = total[e];
				total[e] = 0;
			}
			__syncthreads();
			if (threadIdx.x < SUMS) {
				const int i = threadIdx.x / ROWS, j = here.unit * ROWS + threadIdx.x % ROWS;
				float sum = 0;

#pragma unroll
				for (int w = 0; w < WARPS; w++)
					sum += s_sum[(buf * WARPS + w) * SUMS + threadIdx.x];
				if (i < g.m && j < g.n)
					row_store(g.out, g.out_dtype, (int64_t)i * g.n + j,
						  w4_finish(g, j, sum));
			}
			buf ^= 1;
		}
		here = next;
	}
}

/* ---- b decoded in memory ---- */

#define WIDEN_THREADS	256

/* A warp decodes a tile; a lane reads 16 bytes and writes 16 pairs. */
template <int format, int dtype> __global__ void __launch_bounds__(WIDEN_THREADS)
widen_kernel(const __grid_constant__ struct cairn_gemm_w4_args g, const __grid_constant__ struct sizes z,
	     uint32_t *to)
{
	const int64_t tile = ((int64_t)blockIdx.x * WIDEN_THREADS + threadIdx.x) / 32;
	const int lane = threadIdx.x & 31, unit = (int)(tile / z.tiles), row = unit * ROWS + lane / 4;
	const int at = (int)(tile - (int64_t)unit * z.tiles) * CAIRN_W4_TILE_K;
	uint4 four;

	ptx_griddepcontrol_wait();
	if (unit >= z.units)
		return;
	four = ptx_ld_global_nc_no_allocate_v4(g.b + tile * CAIRN_W4_TILE_BYTES + lane * 16);
#pragma unroll
	for (int h = 0; h < 4; h++) {
		const uint32_t w = h == 0 ? four.x : h == 1 ? four.y : h == 2 ? four.z : four.w;
		const int first = at + h * 16;
		const unsigned char *cell = g.b_scale + (int64_t)unit * z.cells +
					    (first >> z.shift) * cairn_w4_cell_bytes(format);
		struct w4_scales s;
		uint32_t codes[4];

		if (first >= g.k)
			break;
		s = w4_load_scales<format, dtype>(cell, lane / 4);
		w4_decode<format, dtype>(w, s, codes);
#pragma unroll
		for (int i = 0; i < 4; i++) {
			const int j = row + i % 2 * 8, l = first + i / 2 * 8 + lane % 4 * 2;
			const float by = s.s[i % 2];
			float f[2];

			row_unpack2<dtype>(codes[i], f);
			if (j < g.n)
				to[((int64_t)j * g.k + l) / 2] =
					row_pack2<dtype>(f[0] * by * g.scale, f[1] * by * g.scale);
		}
	}
}

static size_t widened_bytes(const struct cairn_gemm_w4_args *g)
{
	return ((size_t)g->n * g->k * 2 + 255) / 256 * 256;
}

static struct cairn_gemm_args widened(const struct cairn_gemm_w4_args *g, char *workspace)
{
	struct cairn_gemm_args args = {
		.size = sizeof(args), .out = g->out, .a = g->a, .b = workspace, .bias = g->bias,
		.workspace = workspace + widened_bytes(g),
		.workspace_bytes = g->workspace_bytes - widened_bytes(g), .m = g->m, .n = g->n, .k = g->k,
		.dtype = g->dtype, .out_dtype = g->out_dtype, .sms = g->sms,
	};

	return args;
}

/* ctas: of the skinny kernel */
static struct sizes sizes_of(const struct cairn_gemm_w4_args *g, int ctas)
{
	const int per_round = STAGE_K * WARPS, group = g->group ? g->group : 1 << 30;
	const int cell = cairn_w4_cell_bytes(g->format);
	struct sizes z;

	z.units = cairn_w4_units(g->n);
	z.tiles = cairn_w4_tiles(g->k);
	z.stages = (int)(((int64_t)g->k + per_round - 1) / per_round) * WARPS;
	z.cells = cairn_w4_groups(g->k, g->group) * cell;
	z.stage_cells = group < STAGE_K ? STAGE_K / group * cell : cell;
	z.step_cells = g->group ? z.stage_cells : 0;	/* STAGE_K is a multiple of every group */
	z.codes_to_next = (int64_t)ctas * z.tiles * CAIRN_W4_TILE_BYTES + (WARPS - z.stages) * CODE_BYTES;
	z.cells_to_next = (int64_t)ctas * z.cells + (WARPS - z.stages) * z.step_cells;
	for (z.shift = 0; 1 << z.shift < group; z.shift++)
		;
	return z;
}

static int launch_widened(const struct cairn_gemm_w4_args *g, void *stream)
{
#define WIDEN(format)	{ (const void *)widen_kernel<format, CAIRN_BF16>, \
			  (const void *)widen_kernel<format, CAIRN_F16> }
	static const void *const kernels[3][2] = {
		WIDEN(CAIRN_W4_INT), WIDEN(CAIRN_W4_MX), WIDEN(CAIRN_W4_NV),
	};
	struct cairn_launch l = { .block = { WIDEN_THREADS }, .pdl = !g->sms, .stream = stream };
	struct cairn_gemm_args args = widened(g, (char *)g->workspace);
	struct sizes z = sizes_of(g, 0);
	void *to = g->workspace, *params[] = { (void *)g, &z, &to };
	int64_t ctas = ((int64_t)z.units * z.tiles * 32 + WIDEN_THREADS - 1) / WIDEN_THREADS;

	if (!g->workspace || g->workspace_bytes < widened_bytes(g))
		return cairn_error(EINVAL, "gemm_w4: workspace_bytes: %zu is less than %zu",
				   g->workspace_bytes, widened_bytes(g));
	if (ctas > INT32_MAX)
		return cairn_error(EOPNOTSUPP, "gemm_w4: n %d, k %d: too large", g->n, g->k);
	l.grid[0] = (unsigned int)ctas;
	CAIRN_TRY(cairn_launch(kernels[g->format][g->dtype == CAIRN_F16], &l, params));
	return cairn_gemm(&args, stream);
}

static int launch_skinny(const struct cairn_gemm_w4_args *g, void *stream)
{
#define SKINNY(format, steps)	{ (const void *)gemm_w4_skinny_kernel<format, CAIRN_BF16, steps>, \
				  (const void *)gemm_w4_skinny_kernel<format, CAIRN_F16, steps> }
	static const void *const kernels[4][2] = {
		SKINNY(CAIRN_W4_INT, 4), SKINNY(CAIRN_W4_MX, 2), SKINNY(CAIRN_W4_NV, 1),
		SKINNY(CAIRN_W4_INT, 2),
	};
	const int which = g->format == CAIRN_W4_INT && g->group == 32 ? 3 : g->format;
	const int num_sms = cairn_sms_of(g->sms);
	const int units = cairn_w4_units(g->n), ctas = units < num_sms ? units : num_sms;
	struct sizes z = sizes_of(g, ctas);
	struct cairn_launch launch = { 0 };
	void *params[] = { (void *)g, &z };

	if (num_sms < 0)
		return num_sms;
	launch.grid[0] = (unsigned int)ctas;
	launch.block[0] = WARPS * 32;
	launch.smem = RING_BYTES + 2 * WARPS * SUMS * sizeof(float);
	launch.pdl = !g->sms;	/* a dependent launch would take SMs that are not this call's */
	launch.stream = stream;
	return cairn_launch(kernels[which][g->dtype == CAIRN_F16], &launch, params);
}

extern "C" int cairn_gemm_w4(const struct cairn_gemm_w4_args *g, void *stream)
{
	CAIRN_TRY(cairn_gemm_w4_check(g));
	if (g->m <= SKINNY_M)
		return launch_skinny(g, stream);
	return g->m <= TILE_M ? cairn_gemm_w4_tile(g, stream) : launch_widened(g, stream);
}

extern "C" int cairn_gemm_w4_workspace(const struct cairn_gemm_w4_args *g, size_t *bytes)
{
	struct cairn_gemm_w4_args shape;
	struct cairn_gemm_args args;
	void *somewhere = (void *)256;	/* aligned and not null; never dereferenced */

	if (!g || !bytes)
		return cairn_error(EINVAL, "gemm_w4_workspace: null pointer");
	CAIRN_TRY(cairn_gemm_w4_check_shape(g));
	*bytes = 0;
	if (g->m <= TILE_M)
		return 0;
	shape = *g;
	shape.out = somewhere;
	shape.a = somewhere;
	args = widened(&shape, (char *)somewhere);
	CAIRN_TRY(cairn_gemm_workspace(&args, bytes));
	*bytes += widened_bytes(g);
	return 0;
}
