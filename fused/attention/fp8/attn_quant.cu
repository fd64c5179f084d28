/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_quant - each CTA quantises one block of 128 rows, which it holds in registers between its two passes
 *
 * q and k: four lanes hold a row; lane t of the four holds its chunks t, t + 4, ... of eight elements. Stages
 * 1, 2, 4 and 32, 64 of the Hadamard transform pair elements of one lane, stages 8 and 16 those of
 * neighbouring lanes. The codes are stored in pieces of 32 bytes.
 * v: a lane holds eight elements of each of four keys. The four codes of an element are one word of the
 * transposed block (attn_fp8_place()), which two conversions produce. Shared memory brings the words into the
 * order [element][128 places]; 16-byte piece p of element c lies at p ^ (c / 8 % 8). So a warp's writes
 * (words of eight chunks and four keys) and its reads (the pieces of one row) are free of bank conflicts.
 *
 * Two CTAs share an SM, so that one loads while the other computes, with 64 KiB in flight. The floor is a
 * read of 2 bytes and a write of 1 byte for each element, at memory bandwidth.
 */
#include "primitives/base/launch.h"
#include "primitives/ptx/fp8.cuh"
#include "primitives/rows/row.cuh"
#include "fused/attention/fp8/attn_quant.h"

#define THREADS	256
#define WARPS	(THREADS / 32)
#define PASSES	2		/* a pass has 64 rows */

/* One tensor of a call. */
struct attn_quant_part {
	uint8_t *codes;
	float *scale;
	const void *x;
	const int32_t *indptr;
	int64_t stride, head_stride;
	float norm;			/* the factor from the maximum to the scale */
	int32_t heads, blocks;
};

struct attn_quant_call {
	struct attn_quant_part q, k, v;
	const uint8_t *signs;
	int32_t batch;
};

/* Returns the last request whose first block is not past `block`. */
static __device__ int find_request(const int32_t *indptr, int batch, int block)
{
	int low = 0, high = batch - 1;

	while (low < high) {
		int mid = (low + high + 1) / 2;

		if (attn_fp8_first_block(indptr[mid], mid) <= block)
			low = mid;
		else
			high = mid - 1;
	}
	return low;
}

/* Writes the scale of the block. Returns 448 / the maximum over all threads, or 0 if it counts as 0. */
static __device__ float finish_max(const struct attn_quant_part &part, float max, int64_t at)
{
	__shared__ float s_max[WARPS];
	int zero;

#pragma unroll
	for (int step = 16; step > 0; step /= 2)
		max = fmaxf(max, __shfl_xor_sync(~0u, max, step));
	if (threadIdx.x % 32 == 0)
		s_max[threadIdx.x / 32] = max;
	__syncthreads();
#pragma unroll
	for (int w = 0; w < WARPS; w++)
		max = fmaxf(max, s_max[w]);
	zero = max < ATTN_QUANT_LEAST;
	if (threadIdx.x == 0)
		part.scale[at] = zero ? 1 : max * part.norm;
	return zero ? 0 : __fdiv_rn(ATTN_QUANT_MAX, max);
}

/* The butterflies of distance b between the n elements of y, all in one lane. */
template <int n, int b> static __device__ __forceinline__ void transform(float *y)
{
#pragma unroll
	for (int c = 0; c < n; c++) {
		if (c & b)
			continue;
		float sum = y[c] + y[c + b];

		y[c + b] = y[c] - y[c + b];
		y[c] = sum;
	}
}

/* The butterflies between lanes whose numbers differ in bit b. */
template <int n> static __device__ __forceinline__ void transform_across(float *y, int b)
{
	float sign = threadIdx.x & b ? -1 : 1;

#pragma unroll
	for (int c = 0; c < n; c++)
		y[c] = fmaf(y[c], sign, __shfl_xor_sync(~0u, y[c], b));
}

/* Rotates a lane's part of a row. Chunk i holds eight elements, from 32 i + 8 (lane % 4) on. */
template <int dim> static __device__ __forceinline__ void rotate(float *y, const uint8_t *signs)
{
#pragma unroll
	for (int i = 0; i < dim / 32; i++) {
		uint32_t bits = signs[i * 4 + threadIdx.x % 4];

#pragma unroll
		for (int c = 0; c < 8; c++)
			y[i * 8 + c] = __uint_as_float(__float_as_uint(y[i * 8 + c]) ^ (bits >> c & 1) << 31);
	}
	transform<dim / 4, 1>(y);
	transform<dim / 4, 2>(y);
	transform<dim / 4, 4>(y);
	transform_across<dim / 4>(y, 1);
	transform_across<dim / 4>(y, 2);
	transform<dim / 4, 8>(y);
	if constexpr (dim == 128)
		transform<dim / 4, 16>(y);
}

/* Quantises a block of q or k: `rows` rows from x on, followed by zeros. */
template <int dtype, int dim>
static __device__ void quantise_rows(const struct attn_quant_call &call, const struct attn_quant_part &part,
				     const char *x, int rows, int64_t at)
{
	constexpr int n = dim / 4;
	const int row = threadIdx.x / 4, lane = threadIdx.x % 4;
	float y[PASSES][n], max = 0, inverse;
	uint4 raw[PASSES][n / 8];

#pragma unroll
	for (int pass = 0; pass < PASSES; pass++)
#pragma unroll
		for (int i = 0; i < n / 8; i++) {
			raw[pass][i] = make_uint4(0, 0, 0, 0);
			if (pass * 64 + row < rows)
				raw[pass][i] = ptx_ld_global_nc_no_allocate_v4(
					x + ((pass * 64 + row) * part.stride + i * 32 + lane * 8) * 2);
		}
#pragma unroll
	for (int pass = 0; pass < PASSES; pass++) {
#pragma unroll
		for (int i = 0; i < n / 8; i++)
			row_unpack<dtype>(raw[pass][i], y[pass] + i * 8);
		if (call.signs)
			rotate<dim>(y[pass], call.signs);
#pragma unroll
		for (int c = 0; c < n; c++)
			max = fmaxf(max, fabsf(y[pass][c]));
	}
	inverse = finish_max(part, max, at);
#pragma unroll
	for (int pass = 0; pass < PASSES; pass++) {
		uint8_t *to = part.codes + (at * ATTN_FP8_BLOCK + pass * 64 + row) * dim + lane * 8;
		/* rows past the last must have code 0, but rotated zeros may be negative */
		int own = pass * 64 + row < rows ? -1 : 0;

#pragma unroll
		for (int i = 0; i < n / 8; i++) {
			float *f = y[pass] + i * 8;
			uint2 out;

#pragma unroll
			for (int c = 0; c < 8; c++)
				f[c] *= inverse;
			out.x = own & fp8_narrow_4(f[0], f[1], f[2], f[3]);
			out.y = own & fp8_narrow_4(f[4], f[5], f[6], f[7]);
			*(uint2 *)(to + i * 32) = out;
		}
	}
}

/* Quantises and transposes a block of v. */
template <int dtype, int dim>
static __device__ void quantise_columns(const struct attn_quant_part &part, const char *x, int rows,
					int64_t at)
{
	constexpr int units = dim / 64;		/* units of a warp, of 16 keys and 64 elements each */
	__shared__ __align__(16) uint8_t s_codes[128 * dim];
	const int warp = threadIdx.x / 32, t = threadIdx.x % 4, chunk = threadIdx.x % 32 / 4;
	uint4 raw[units][4];
	float max = 0, inverse;

#pragma unroll
	for (int u = 0; u < units; u++)
#pragma unroll
		for (int j = 0; j < 4; j++) {
			int key = warp * 16 + t * 2 + (j & 1) + (j & 2) * 4;

			raw[u][j] = make_uint4(0, 0, 0, 0);
			if (key < rows)
				raw[u][j] = ptx_ld_global_nc_no_allocate_v4(
					x + (key * part.stride + u * 64 + chunk * 8) * 2);
		}
#pragma unroll
	for (int u = 0; u < units; u++)
#pragma unroll
		for (int j = 0; j < 4; j++) {
			float f[8];

			row_unpack<dtype>(raw[u][j], f);
#pragma unroll
			for (int c = 0; c < 8; c++)
				max = fmaxf(max, fabsf(f[c]));
		}
	inverse = finish_max(part, max, at);
#pragma unroll
	for (int u = 0; u < units; u++) {
		float f[4][8];

#pragma unroll
		for (int j = 0; j < 4; j++)
			row_unpack<dtype>(raw[u][j], f[j]);
#pragma unroll
		for (int c = 0; c < 8; c++) {
			uint32_t word = fp8_narrow_4(f[0][c] * inverse, f[1][c] * inverse,
						     f[2][c] * inverse, f[3][c] * inverse);

			*(uint32_t *)(s_codes + (u * 64 + chunk * 8 + c) * 128 +
				      ((warp ^ chunk) * 16 + t * 4)) = word;
		}
	}
	__syncthreads();
#pragma unroll
	for (int i = threadIdx.x; i < dim * 8; i += THREADS)
		((uint4 *)(part.codes + at * ATTN_FP8_BLOCK * dim))[i] =
			((const uint4 *)s_codes)[i ^ (i / 64 & 7)];
}

template <int dtype, int dim> static __global__ void __launch_bounds__(THREADS, 2)
quant_kernel(const __grid_constant__ struct attn_quant_call call)
{
	const int q_tasks = call.q.heads * call.q.blocks, k_tasks = call.k.heads * call.k.blocks;
	int task = blockIdx.x;
	bool is_q = task < q_tasks, is_v = task >= q_tasks + k_tasks;
	const struct attn_quant_part &part = is_q ? call.q : is_v ? call.v : call.k;
	int head, block, b, first, rows;
	const char *x;

	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	task -= is_q ? 0 : is_v ? q_tasks + k_tasks : q_tasks;
	/* neighbouring CTAs read neighbouring heads of the same rows */
	head = task % part.heads;
	block = task / part.heads;
	b = find_request(part.indptr, call.batch, block);
	first = (block - attn_fp8_first_block(part.indptr[b], b)) * ATTN_FP8_BLOCK;
	rows = min(ATTN_FP8_BLOCK, part.indptr[b + 1] - part.indptr[b] - first);
	if (rows <= 0)
		return;
	x = (const char *)part.x + ((part.indptr[b] + first) * part.stride + head * part.head_stride) * 2;
	if (is_v)
		quantise_columns<dtype, dim>(part, x, rows, (int64_t)head * part.blocks + block);
	else
		quantise_rows<dtype, dim>(call, part, x, rows, (int64_t)head * part.blocks + block);
}

static const void *choose(int32_t dtype, int32_t dim)
{
	if (dim == 64)
		return dtype == CAIRN_F16 ? (const void *)quant_kernel<CAIRN_F16, 64> :
					    (const void *)quant_kernel<CAIRN_BF16, 64>;
	return dtype == CAIRN_F16 ? (const void *)quant_kernel<CAIRN_F16, 128> :
				    (const void *)quant_kernel<CAIRN_BF16, 128>;
}

extern "C" int cairn_attn_quant(const struct cairn_attn_quant_args *a, void *stream)
{
	struct cairn_launch l = { .block = { THREADS }, .pdl = 1, .stream = stream };
	struct attn_quant_call call = {};
	void *params[] = { &call };
	int64_t tasks;

	CAIRN_TRY(cairn_attn_quant_check(a));
	if (!a->batch)
		return 0;
	call.q = { a->q8, a->q_scale, a->q, a->qo_indptr, attn_quant_q_stride(a), a->head_dim,
		   attn_quant_norm(a->head_dim, a->signs != NULL), a->num_qo_heads,
		   attn_fp8_blocks(a->nnz_qo, a->batch) };
	call.k = { a->k8, a->k_scale, a->k, a->kv_indptr, attn_quant_k_stride(a),
		   attn_quant_k_head_stride(a), call.q.norm, a->num_kv_heads,
		   attn_fp8_blocks(a->nnz_kv, a->batch) };
	call.v = { a->v8, a->v_scale, a->v, a->kv_indptr, attn_quant_v_stride(a),
		   attn_quant_v_head_stride(a), attn_quant_norm(a->head_dim, 0), a->num_kv_heads,
		   call.k.blocks };
	call.signs = a->signs;
	call.batch = a->batch;
	tasks = (int64_t)call.q.heads * call.q.blocks + 2 * (int64_t)call.k.heads * call.k.blocks;
	if (tasks > INT32_MAX)
		return cairn_error(EOPNOTSUPP, "attn_quant: nnz_qo, nnz_kv, heads: too large");
	l.grid[0] = (unsigned int)tasks;
	return cairn_launch(choose(a->dtype, a->head_dim), &l, params);
}
