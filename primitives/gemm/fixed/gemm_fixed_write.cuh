/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_fixed_write - ends of tiles that gemm_fixed and gemm_fp8 share: bias, activation, results to memory
 *
 * Each warp writes its results to shared memory first, 16 rows of 128 bytes. Where the rows of out allow it,
 * two such parts leave together by TMA, while the next tile is multiplied. Otherwise the warp copies one part
 * at a time, in whole lines of 128 bytes.
 */
#ifndef CAIRN_GEMM_FIXED_WRITE_CUH
#define CAIRN_GEMM_FIXED_WRITE_CUH

#include "primitives/gemm/fixed/gemm_fixed_ring.cuh"
#include "primitives/rows/act_mul.cuh"

template <int dtype, int sums>
TILE void add_bias(const struct cairn_gemm_fixed_args &g, const struct tile &t, float *d)
{
	const bool silu = g.epilogue == CAIRN_GEMM_FIXED_SILU_MUL;
	const bool pairs = g.n % 2 == 0 && (uintptr_t)g.bias % 4 == 0;

#pragma unroll
	for (int j = 0; j < sums / 4; j++) {
		const int col = t.col + (silu ? j / 2 : j) * 8 + threadIdx.x % 4 * 2;
		const int at = silu && j % 2 ? g.n / 2 + col : col;
		float bias[2] = { 0, 0 };

		if (pairs && col < t.end) {
			row_unpack2<dtype>(*(const uint32_t *)((const uint16_t *)g.bias + at), bias);
		} else {
			if (col < t.end)
				bias[0] = row_element<dtype>(g.bias, at);
			if (col + 1 < t.end)
				bias[1] = row_element<dtype>(g.bias, at + 1);
		}
		d[4 * j] += bias[0];
		d[4 * j + 1] += bias[1];
		d[4 * j + 2] += bias[0];
		d[4 * j + 3] += bias[1];
	}
}

/* Replaces the sums of gate and up by results, which then are the first half of d. */
template <int sums> TILE void apply_silu_mul(const struct tile &t, float *d)
{
#pragma unroll
	for (int j = 0; j < sums / 8; j++) {
		if (t.col + 8 * j >= t.end)
			break;
#pragma unroll
		for (int e = 0; e < 4; e++)
			d[4 * j + e] = act_mul<0>(d[8 * j + e], d[8 * j + 4 + e]);
	}
}

/* Writes 64 columns to the warp's 16 rows in shared memory as 16 bits. */
template <int dtype> TILE void stage_16(uint32_t staged, const float *d)
{
	const uint32_t lane = threadIdx.x % 32, row = lane % 16;

#pragma unroll
	for (int j = 0; j < 8; j += 2) {
		const uint32_t r[4] = { row_pack2<dtype>(d[4 * j], d[4 * j + 1]),
					row_pack2<dtype>(d[4 * j + 2], d[4 * j + 3]),
					row_pack2<dtype>(d[4 * j + 4], d[4 * j + 5]),
					row_pack2<dtype>(d[4 * j + 6], d[4 * j + 7]) };

		ptx_stmatrix_x4(staged + row * ROW_BYTES + (((j + lane / 16) ^ (row & 7)) << 4), r);
	}
}

/* The same for 32 columns as fp32. */
TILE void stage_32(uint32_t staged, const float *d)
{
	const uint32_t lane = threadIdx.x % 32, row = lane / 4;

#pragma unroll
	for (int j = 0; j < 4; j++) {
		const uint32_t to = staged + row * ROW_BYTES + (((j * 2 + lane % 4 / 2) ^ (row & 7)) << 4) +
				    lane % 2 * 8;

		ptx_st_shared_v2(to, make_uint2(__float_as_uint(d[4 * j]), __float_as_uint(d[4 * j + 1])));
		ptx_st_shared_v2(to + 8 * ROW_BYTES,
				 make_uint2(__float_as_uint(d[4 * j + 2]), __float_as_uint(d[4 * j + 3])));
	}
}

/* Copies 16 whole rows: this lane 16 bytes of every fourth row, which lie `rows` bytes apart. */
TILE void copy_whole(uint32_t from, char *to, int64_t rows)
{
	__syncwarp();
#pragma unroll
	for (int i = 0; i < WARP_ROWS / 4; i++)
		*(uint4 *)(to + i * rows) = ptx_ld_shared_v4((from ^ i % 2 << 6) + i * 4 * ROW_BYTES);
	__syncwarp();
}

/* Copies an element from shared to global memory. */
template <int bytes> TILE void copy_element(char *to, uint32_t from)
{
	if (bytes == 2)
		*(uint16_t *)to = ptx_ld_shared_b16(from);
	else
		*(uint32_t *)to = ptx_ld_shared_b32(from);
}

/*
 * Copies the warp's 16 rows of 128 bytes from shared memory to row `row` and column `col` of out, as far as
 * they lie before row m and column `end`.
 */
template <int bytes>
TILE void copy_part(const struct cairn_gemm_fixed_args &g, uint32_t staged, int row, int col, int end)
{
	constexpr int each = 16 / bytes;
	const int piece = threadIdx.x % 8;
	const int64_t step = g.out_stride * bytes;
	const int whole = step % 16 == 0 ? (end - col) / each : 0;	/* pieces that one store can write */

	__syncwarp();
#pragma unroll 1
	for (int r = threadIdx.x % 32 / 8; r < WARP_ROWS && row + r < g.m; r += 4) {
		const uint32_t from = staged + r * ROW_BYTES + ((piece ^ (r & 7)) << 4);
		char *to = (char *)g.out + (row + r) * step + (int64_t)(col + piece * each) * bytes;

		if (piece < whole)
			*(uint4 *)to = ptx_ld_shared_v4(from);
		else
#pragma unroll 1
			for (int e = 0; e < each && col + piece * each + e < end; e++)
				copy_element<bytes>(to + e * bytes, from + e * bytes);
	}
	__syncwarp();
}

/* Writes the sums of a tile as `out`. Whole rows of 128 bytes leave by straight code. */
template <int out, int sums>
TILE void write_sums(const struct cairn_gemm_fixed_args &g, const struct mine &s, const struct tile &t,
		     const float *d)
{
	constexpr int bytes = out == CAIRN_F32 ? 4 : 2, cols = ROW_BYTES / bytes;
	const int warp = threadIdx.x / 32, row = t.row + warp * WARP_ROWS, lane = threadIdx.x % 32;
	const uint32_t staged = s.staged + warp * 2 * STAGED_BYTES;
	const uint32_t from = staged + lane / 8 * ROW_BYTES + ((lane % 8 ^ lane / 8) << 4);
	const int64_t step = g.out_stride * bytes;
	const bool whole = row + WARP_ROWS <= g.m && step % 16 == 0;
	char *to = (char *)g.out + (row + lane / 8) * step + (int64_t)t.col * bytes + lane % 8 * 16;

#pragma unroll
	for (int c = 0; c < 2 * sums; c += cols) {
		if (t.col + c >= t.end)
			break;
		if constexpr (out == CAIRN_F32)
			stage_32(staged, d + c / 2);
		else
			stage_16<out>(staged, d + c / 2);
		if (whole && t.col + c + cols <= t.end)
			copy_whole(from, to + c * bytes, 4 * step);
		else
			copy_part<bytes>(g, staged, row, t.col + c, t.end);
	}
}

/* A value that is the same in all lanes, so that the compiler knows it, and does not loop over the lanes. */
TILE int uniform(int value) { return __shfl_sync(0xffffffffu, value, 0); }

/* Sends the sums of a tile by TMA, 128 columns at a time, once the warp's copies before have left. */
template <int dtype, int sums>
TILE void send_sums(const struct cairn_gemm_fixed_args &g, const struct maps &maps, const struct mine &s,
		    const struct tile &t, const float *d)
{
	const int warp = uniform(threadIdx.x / 32), row = uniform(t.row) + warp * WARP_ROWS;
	const int first = uniform(t.col), end = uniform(t.end);
	const uint32_t staged = s.staged + warp * 2 * STAGED_BYTES;

	if (row >= g.m)
		return;
#pragma unroll
	for (int c = 0; c < 2 * sums; c += 128) {
		const int col = first + c;

		if (col >= end)
			break;
		if (threadIdx.x % 32 == 0)
			ptx_cp_async_bulk_wait_group_read<0>();
		__syncwarp();
		stage_16<dtype>(staged, d + c / 2);
		if (c + 64 < 2 * sums)
			stage_16<dtype>(staged + STAGED_BYTES, d + c / 2 + 32);
		ptx_fence_proxy_async_shared_cta();
		__syncwarp();
		if (threadIdx.x % 32 == 0) {
			ptx_cp_async_bulk_tensor_2d_s2g(&maps.out, staged, col, row);
			if (c + 64 < 2 * sums && col + 64 < end)
				ptx_cp_async_bulk_tensor_2d_s2g(&maps.out, staged + STAGED_BYTES, col + 64,
								row);
			ptx_cp_async_bulk_commit_group();
		}
	}
}

/* d: `sums` of each thread. Columns that the tile does not have, at the end of d, are not written. */
template <int dtype, int sums>
TILE void write_tile(const struct cairn_gemm_fixed_args &g, const struct maps &maps,
		     const struct gemm_fixed_plan &p, const struct mine &s, const struct tile &t, float *d)
{
	if (g.bias)
		add_bias<dtype, sums>(g, t, d);
	if (g.epilogue == CAIRN_GEMM_FIXED_SILU_MUL)
		apply_silu_mul<sums>(t, d);
	if (p.by_tma)
		send_sums<dtype, sums>(g, maps, s, t, d);
	else if (g.out_dtype == CAIRN_F32)
		write_sums<CAIRN_F32, sums>(g, s, t, d);
	else
		write_sums<dtype, sums>(g, s, t, d);
}

/* Waits until this thread's copies of results have ended. */
TILE void end_sends(void)
{
	ptx_cp_async_bulk_wait_group<0>();
}

#endif
