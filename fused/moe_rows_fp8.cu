// SPDX-License-Identifier: Apache-2.0
/*
 * moe_rows_fp8 - the two products of moe_rows.cu with weights of 8 bits
 *
 * Tiles, warps and steps are those of moe_rows.cu. Weights arrive as bytes; a thread widens those that it has
 * copied itself to dtype, exactly, into one of two buffers, from which they are multiplied like any others:
 * each byte is widened once a tile, and the barrier that tells that a stage is there tells of these as well.
 *
 * Scales of rows are applied to the sums at the end. With scales of blocks a sum begins afresh every 128 of k
 * and is added, scaled, to the others: sums twice, one CTA an SM. Tiles of weights are half the rows of a
 * block, or all: one scale for each half of a warp's sums.
 *
 * Shared memory: 3 stages of A [128][64] and of bytes [128][64], 72 KiB; B [128][64] twice, 32 KiB. 16-byte
 * chunks of a row of A and B lie at chunk ^ (row & 7), bytes as they come. Barriers: __syncthreads() once a
 * step.
 */
#include "../primitives/fp8.cuh"
#include "../primitives/launch.h"
#include "moe_rows.cuh"

#define STAGES		3
#define STAGE_BYTES	(SIDE_BYTES + TILE * STEP)
#define WIDE_AT		(STAGES * STAGE_BYTES)
#define SMEM_BYTES	(WIDE_AT + 2 * SIDE_BYTES)

struct rows_fp8 {
	struct rows rows;
	struct moe_scales scales;
};

/* What a thread copies of each step: a 16-byte chunk of four rows of A, and of two of the bytes. */
struct copies {
	const char *a[4], *b[2];
	uint32_t to, a_bytes[4], b_bytes[2];
};

/* Where in a stage its two chunks of bytes are */
ATTN_DEV uint32_t bytes_at(int i)
{
	return SIDE_BYTES + (i * THREADS + threadIdx.x) * 16;
}

ATTN_DEV void start_copy(const struct copies &c, uint32_t s_stage, int step)
{
	const int64_t at = (int64_t)step * STEP;

#pragma unroll
	for (int i = 0; i < 4; i++)
		ptx_cp_async_cg(s_stage + c.to + i * 32 * STEP * 2, c.a[i] + (c.a_bytes[i] ? at * 2 : 0),
				c.a_bytes[i]);
#pragma unroll
	for (int i = 0; i < 2; i++)
		ptx_cp_async_cg(s_stage + bytes_at(i), c.b[i] + (c.b_bytes[i] ? at : 0), c.b_bytes[i]);
}

/* Four lanes have a row's 64 bytes. */
template <int dtype>
ATTN_DEV void widen(uint32_t s_stage, uint32_t s_wide)
{
#pragma unroll
	for (int i = 0; i < 2; i++) {
		const int row = i * (THREADS / 4) + threadIdx.x / 4, chunk = threadIdx.x % 4 * 2;
		uint4 raw = ptx_ld_shared_v4(s_stage + bytes_at(i)), lo, hi;

		fp8_widen<dtype>(raw.x, &lo.x, &lo.y);
		fp8_widen<dtype>(raw.y, &lo.z, &lo.w);
		fp8_widen<dtype>(raw.z, &hi.x, &hi.y);
		fp8_widen<dtype>(raw.w, &hi.z, &hi.w);
		ptx_st_shared_v4(s_wide + attn_swizzle(row, chunk, STEP * 2), lo);
		ptx_st_shared_v4(s_wide + attn_swizzle(row, chunk + 1, STEP * 2), hi);
	}
}

/* scales: with blocks, of the first and of the second half of a warp's sums, block after block of k */
template <int dtype, bool blocks>
ATTN_DEV void product(float (*sum)[8][4], const struct copies &c, int steps, bool idle, int m, int b0, int b1,
		      const float *first_scales, const float *second_scales)
{
	extern __shared__ __align__(1024) uint8_t s_mem[];
	const uint32_t s_stages = ptx_smem(s_mem);
	float part[2][8][4] = {};

#pragma unroll
	for (int s = 0; s < STAGES - 1; s++) {
		if (s < steps)
			start_copy(c, s_stages + s * STAGE_BYTES, s);
		ptx_cp_async_commit_group();
	}
	for (int step = 0, stage = 0; step < steps; step++) {
		const uint32_t s_stage = s_stages + stage * STAGE_BYTES;
		const uint32_t s_wide = s_stages + WIDE_AT + step % 2 * SIDE_BYTES;
		int next = stage ? stage - 1 : STAGES - 1;
		float scale[2] = {};

		if (blocks) {
			scale[0] = first_scales[step * STEP / CAIRN_FP8_BLOCK];
			scale[1] = second_scales[step * STEP / CAIRN_FP8_BLOCK];
		}
		ptx_cp_async_wait_group<STAGES - 2>();
		widen<dtype>(s_stage, s_wide);	/* all are done with what was there two steps ago */
		__syncthreads();	/* the stage is there, and the one before is read no more */
		if (step + STAGES - 1 < steps)
			start_copy(c, s_stages + next * STAGE_BYTES, step + STAGES - 1);
		ptx_cp_async_commit_group();
		if (!idle)
			multiply<dtype>(blocks ? part : sum, s_stage, s_wide - s_stage, m, b0, b1);
		if (blocks && ((step + 1) * STEP % CAIRN_FP8_BLOCK == 0 || step + 1 == steps))
#pragma unroll
			for (int i = 0; i < 2 * 8; i++)
#pragma unroll
				for (int e = 0; e < 4; e++) {
					sum[i / 8][i % 8][e] += scale[i % 8 / 4] * part[i / 8][i % 8][e];
					part[i / 8][i % 8][e] = 0;
				}
		stage = stage + 1 == STAGES ? 0 : stage + 1;
	}
}

/* Scales of rows: sums of the 8 rows of weights of which `scales` has the first one's */
ATTN_DEV void scale_rows(float (*sum)[8][4], int j, const float *scales)
{
#pragma unroll
	for (int e = 0; e < 2; e++) {
		const float scale = scales[threadIdx.x % 4 * 2 + e];

#pragma unroll
		for (int i = 0; i < 4; i++)
			sum[i / 2][j][i % 2 * 2 + e] *= scale;
	}
}

/* Of a tile of slots: the first scales of row n0 of what it is multiplied with */
ATTN_DEV const float *gate_up_scales(const struct rows_fp8 &p, int expert, int n0)
{
	return moe_row_scale(p.scales, expert == p.rows.a.num_experts ? p.scales.shared_gate_up :
			     p.scales.gate_up + expert * p.scales.expert_gate_up, n0, p.rows.a.hidden);
}

ATTN_DEV const float *down_scales(const struct rows_fp8 &p, int expert, int n0)
{
	const int shared = expert == p.rows.a.num_experts;

	return moe_row_scale(p.scales, shared ? p.scales.shared_down :
			     p.scales.down + expert * p.scales.expert_down, n0,
			     shared ? p.rows.a.shared_intermediate : p.rows.a.intermediate);
}

template <int dtype, bool blocks>
static __global__ __launch_bounds__(THREADS, blocks ? 1 : 2)
void gate_up_fp8_kernel(const __grid_constant__ struct rows_fp8 p)
{
	const struct rows &g = p.rows;
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, m = warp % 4, part = warp / 4;
	const int n0 = blockIdx.y * (TILE / 2);
	const int64_t hidden = g.a.hidden;
	float sum[2][8][4] = {};
	struct copies c;
	struct tile t;
	const char *w;
	int width, shared;
	uint16_t *h;

	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	t = g.tiles[blockIdx.x];
	shared = t.expert == g.a.num_experts;
	width = shared ? g.a.shared_intermediate : g.a.intermediate;
	if (!t.count || n0 >= width)
		return;
	w = shared ? (const char *)g.a.w_shared_gate_up :
	    (const char *)g.a.w_gate_up + t.expert * (int64_t)width * hidden * 2;
	c.to = attn_swizzle(threadIdx.x / 8, threadIdx.x % 8, STEP * 2);
#pragma unroll
	for (int i = 0; i < 4; i++) {
		int r = threadIdx.x / 8 + 32 * i, there = r < t.count, row = 0;

		if (there)
			row = shared ? t.first + r - g.num_slots :
			      g.pair[t.first + r] / g.a.experts_per_token;
		c.a[i] = (const char *)g.n + (row * hidden + threadIdx.x % 8 * 8) * 2;
		c.a_bytes[i] = there ? 16 : 0;
	}
#pragma unroll
	for (int i = 0; i < 2; i++) {		/* gates, and their ups */
		c.b[i] = w + (i * width + n0 + threadIdx.x / 4) * hidden + threadIdx.x % 4 * 16;
		c.b_bytes[i] = 16;
	}
	product<dtype, blocks>(sum, c, g.a.hidden / STEP, m * 32 >= t.count, m, part * 32,
			       TILE / 2 + part * 32, gate_up_scales(p, t.expert, n0),
			       gate_up_scales(p, t.expert, width + n0));
#pragma unroll
	for (int j = 0; j < 4 && !blocks; j++) {
		scale_rows(sum, j, gate_up_scales(p, t.expert, n0 + part * 32 + j * 8));
		scale_rows(sum, 4 + j, gate_up_scales(p, t.expert, width + n0 + part * 32 + j * 8));
	}
	h = shared ? (uint16_t *)g.shared_h + (int64_t)(t.first - g.num_slots) * width :
	    (uint16_t *)g.h + (int64_t)t.first * width;
#pragma unroll
	for (int i = 0; i < 4; i++) {		/* m16 tile i / 2, its rows lane / 4 + 8 (i % 2) */
		int r = m * 32 + i / 2 * 16 + i % 2 * 8 + lane / 4;
		float weight;

		if (r >= t.count)
			continue;
		weight = shared ? 1 : g.weight[g.pair[t.first + r]];
#pragma unroll
		for (int j = 0; j < 4; j++) {
			float v[2];

#pragma unroll
			for (int e = 0; e < 2; e++) {
				float gate = sum[i / 2][j][i % 2 * 2 + e];

				v[e] = gate / (1 + expf(-gate)) * sum[i / 2][4 + j][i % 2 * 2 + e] * weight;
			}
			*(uint32_t *)(h + (int64_t)r * width + n0 + part * 32 + j * 8 + lane % 4 * 2) =
				attn_pack<dtype>(v[0], v[1]);
		}
	}
}

template <int dtype, bool blocks>
static __global__ __launch_bounds__(THREADS, blocks ? 1 : 2)
void down_fp8_kernel(const __grid_constant__ struct rows_fp8 p)
{
	const struct rows &g = p.rows;
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, m = warp % 4, part = warp / 4;
	const int hidden = g.a.hidden, n0 = blockIdx.y * TILE;
	float sum[2][8][4] = {};
	const char *w, *h;
	struct copies c;
	struct tile t;
	int64_t width;
	int shared;

	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	t = g.tiles[blockIdx.x];
	if (!t.count)
		return;
	shared = t.expert == g.a.num_experts;
	width = shared ? g.a.shared_intermediate : g.a.intermediate;
	w = shared ? (const char *)g.a.w_shared_down : (const char *)g.a.w_down + t.expert * width * hidden;
	h = shared ? (const char *)g.shared_h + (t.first - g.num_slots) * width * 2 :
	    (const char *)g.h + t.first * width * 2;
	c.to = attn_swizzle(threadIdx.x / 8, threadIdx.x % 8, STEP * 2);
#pragma unroll
	for (int i = 0; i < 4; i++) {
		int r = threadIdx.x / 8 + 32 * i;

		c.a_bytes[i] = r < t.count ? 16 : 0;
		c.a[i] = h + ((r < t.count ? r : 0) * width + threadIdx.x % 8 * 8) * 2;
	}
#pragma unroll
	for (int i = 0; i < 2; i++) {
		int row = n0 + i * (THREADS / 4) + threadIdx.x / 4;

		c.b_bytes[i] = row < hidden ? 16 : 0;
		c.b[i] = w + (row < hidden ? row : 0) * width + threadIdx.x % 4 * 16;
	}
	product<dtype, blocks>(sum, c, (int)(width / STEP), m * 32 >= t.count, m, part * 64, part * 64 + 32,
			       down_scales(p, t.expert, n0), down_scales(p, t.expert, n0));
	if (n0 + part * 64 >= hidden)		/* a multiple of 64 */
		return;
#pragma unroll
	for (int j = 0; j < 8 && !blocks; j++)
		scale_rows(sum, j, down_scales(p, t.expert, n0 + part * 64 + j * 8));
#pragma unroll
	for (int i = 0; i < 4; i++) {
		int r = m * 32 + i / 2 * 16 + i % 2 * 8 + lane / 4;
		float *y = g.y + (int64_t)(t.first + r) * hidden + n0 + part * 64 + lane % 4 * 2;

		if (r >= t.count)
			continue;
#pragma unroll
		for (int j = 0; j < 8; j++)
			*(float2 *)(y + j * 8) =
				make_float2(sum[i / 2][j][i % 2 * 2], sum[i / 2][j][i % 2 * 2 + 1]);
	}
}

#define OF_DTYPE(kernel, blocks) \
	(f16 ? (const void *)kernel<CAIRN_F16, blocks> : (const void *)kernel<CAIRN_BF16, blocks>)

int moe_rows_fp8(const struct rows *g, const struct cairn_moe_args *args, void *stream)
{
	const int f16 = args->dtype == CAIRN_F16, widest = max(args->intermediate, args->shared_intermediate);
	struct rows_fp8 p = { *g, moe_scales_of(args) };

	CAIRN_TRY(moe_rows_launch(p.scales.blocks ? OF_DTYPE(gate_up_fp8_kernel, true) :
				  OF_DTYPE(gate_up_fp8_kernel, false), &p, g->num_tiles, widest / (TILE / 2),
				  THREADS, SMEM_BYTES, stream));
	return moe_rows_launch(p.scales.blocks ? OF_DTYPE(down_fp8_kernel, true) :
			       OF_DTYPE(down_fp8_kernel, false), &p, g->num_tiles,
			       attn_div_up(args->hidden, TILE), THREADS, SMEM_BYTES, stream);
}
