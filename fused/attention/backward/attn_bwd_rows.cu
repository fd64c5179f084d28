/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_bwd_rows - the kernels that run before and after the tiles
 *
 *   attn_bwd_rows_kernel   writes lse and delta of each row to the workspace, ordered by head and token tile,
 *                          and zeroes turns
 *   attn_bwd_dq_kernel     writes dq from the sums that attn_bwd_all has left in the workspace
 *
 * Both are bound by memory bandwidth.
 */
#include "fused/attention/backward/attn_bwd_tile.cuh"

#include "primitives/base/launch.h"

#define ROW_WARPS	8

struct row_call {
	const void *out, *dout;
	const float *lse;
	float *rows;
	uint32_t *turns;
	const int32_t *qo_indptr;
	int32_t batch, nnz, heads, v_dim, dtype, token_shift, token_tiles;
};

ATTN_DEV float2 row_unpack(uint32_t x, int dtype)
{
	if (dtype == CAIRN_BF16)
		return make_float2(__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000));
	float lo, hi;

	asm("{\n\t.reg .b16 l, h;\n\tmov.b32 {l, h}, %2;\n\tcvt.f32.f16 %0, l;\n\tcvt.f32.f16 %1, h;\n\t}"
	    : "=f"(lo), "=f"(hi) : "r"(x));
	return make_float2(lo, hi);
}

/*
 * Returns the last request whose first token is at most `at`; with `places`, the last request for which the
 * index of its first token tile is at most `at`.
 */
ATTN_DEV int request_of(const int32_t *qo_indptr, int batch, int at, bool places, int token_shift)
{
	int low = 0, high = batch - 1;

	while (low < high) {
		int b = (low + high + 1) / 2;

		if ((places ? attn_bwd_place(qo_indptr[b], b, token_shift) : qo_indptr[b]) <= at)
			low = b;
		else
			high = b - 1;
	}
	return low;
}

/* Returns the lane's part of delta: the products of one of the row's pieces of 16 bytes. */
ATTN_DEV float row_part(const struct row_call &a, int64_t piece)
{
	uint4 x = ((const uint4 *)a.out)[piece], y = ((const uint4 *)a.dout)[piece];
	const uint32_t xs[4] = { x.x, x.y, x.z, x.w }, ys[4] = { y.x, y.y, y.z, y.w };
	float sum = 0;

#pragma unroll
	for (int j = 0; j < 4; j++) {
		float2 u = row_unpack(xs[j], a.dtype), v = row_unpack(ys[j], a.dtype);

		sum = fmaf(u.x, v.x, sum);
		sum = fmaf(u.y, v.y, sum);
	}
	return sum;
}

/* A warp takes one token at a time, and one or two of its heads. */
static __global__ __launch_bounds__(ROW_WARPS * 32) void
attn_bwd_rows_kernel(const __grid_constant__ struct row_call a)
{
	const int lane = threadIdx.x % 32, chunks = a.v_dim / 8, wide = chunks > 16 ? 32 : 16;
	const int tokens = 1 << a.token_shift, num = min(a.nnz, a.qo_indptr[a.batch]);

	for (int i = blockIdx.x * ROW_WARPS + threadIdx.x / 32; i < num; i += gridDim.x * ROW_WARPS) {
		int b = request_of(a.qo_indptr, a.batch, i, false, 0), first = a.qo_indptr[b], t = i - first;
		int tile = attn_bwd_place(first, b, a.token_shift) + (t >> a.token_shift);

		t &= tokens - 1;
#pragma unroll 4
		for (int h = lane / wide; h < a.heads + lane / wide; h += 32 / wide) {
			int64_t row = (int64_t)i * a.heads + h;
			float *to = a.rows + ((int64_t)h * a.token_tiles + tile) * 2 * tokens + t;
			bool in = h < a.heads && lane % wide < chunks;
			float sum = in ? row_part(a, row * chunks + lane % wide) : 0;

#pragma unroll
			for (int j = 16; j; j /= 2)
				sum += j < wide ? __shfl_xor_sync(~0u, sum, j) : 0;
			if (lane % wide == 0 && h < a.heads) {
				to[0] = a.lse[row];
				to[tokens] = sum;
			}
		}
		for (int h = lane; t == 0 && h < a.heads; h += 32)
			a.turns[(int64_t)h * a.token_tiles + tile] = 0;
		if (i + 1 < a.qo_indptr[b + 1])
			continue;
		/* this is the request's last token: fill the rest of its token tile so that p is 0 there */
		for (int h = 0; h < a.heads; h++) {
			float *to = a.rows + ((int64_t)h * a.token_tiles + tile) * 2 * tokens;

			for (int j = t + 1 + lane; j < tokens; j += 32) {
				to[j] = CUDART_INF_F;
				to[tokens + j] = 0;
			}
		}
	}
}

/*
 * A CTA takes a token tile of a head. Its sums are two blocks of 64 x 64 in the order of a warpgroup's
 * accumulators. If `dim` is 128 the second block has the next 64 columns, else the next 64 tokens.
 */
template <int dtype, int dim>
static __global__ __launch_bounds__(128) void
attn_bwd_dq_kernel(const __grid_constant__ struct attn_bwd_call a)
{
	const int blocks = dim / 64, shift = dim == 128 ? 6 : 7;

	for (int i = blockIdx.x; i < a.token_tiles * a.num_qo_heads; i += gridDim.x) {
		int head = i % a.num_qo_heads, tile = i / a.num_qo_heads;
		int b = request_of(a.qo_indptr, a.batch, tile, true, shift);
		struct attn_bwd_request r = attn_bwd_load(a, b);
		int token = (tile - r.token_tile) << shift;
		int64_t place = (int64_t)head * a.token_tiles + tile;
		const float4 *sum = (const float4 *)a.dq_sum + place * (ATTN_BWD_DQ_BYTES / 16) + threadIdx.x;

		if (token >= r.qo_len)
			continue;
#pragma unroll
		for (int at = 0; at < 16; at += 8 * blocks, token += 64) {
			int64_t row = (int64_t)(r.qo_first + token) * a.num_qo_heads + head;
			float d[8 * blocks][4] = {};

			if (a.turns[place])	/* 0: the tile sees no key */
#pragma unroll
				for (int j = 0; j < 8 * blocks; j++)
					*(float4 *)d[j] = sum[(at + j) * 128];
			attn_bwd_write<dtype, dim>(a.dq, d, row, a.num_qo_heads, r.qo_len - token, a.qk_dim,
						   a.sm_scale);
		}
	}
}

/* Returns the size of the grid: `ctas`, but at most as many CTAs as fit the SMs that the call may use. */
static unsigned int grid_of(int64_t ctas, const struct cairn_attn_bwd_args *args, int num_sms, int ctas_an_sm)
{
	int64_t most = args->sms ? num_sms : (int64_t)num_sms * ctas_an_sm;

	return (unsigned int)(ctas < most ? ctas : most);
}

int attn_bwd_launch_rows(const struct cairn_attn_bwd_args *args, const struct attn_bwd_call *call,
			 int num_sms, void *stream)
{
	struct row_call a = {
		args->out, args->dout, args->lse, call->rows, call->turns, args->qo_indptr, args->batch,
		args->nnz_qo, args->num_qo_heads, args->v_dim, args->dtype, call->token_shift,
		call->token_tiles,
	};
	void *params[] = { &a };
	struct cairn_launch l = {};

	if (!args->nnz_qo)
		return 0;
	l.grid[0] = grid_of(((int64_t)args->nnz_qo + ROW_WARPS - 1) / ROW_WARPS, args, num_sms, 8);
	l.block[0] = ROW_WARPS * 32;
	l.stream = stream;
	return cairn_launch((const void *)attn_bwd_rows_kernel, &l, params);
}

int attn_bwd_launch_dq(const struct cairn_attn_bwd_args *args, const struct attn_bwd_call *call, int num_sms,
		       void *stream)
{
	const bool bf16 = args->dtype == CAIRN_BF16;
	const void *kernel = call->token_shift == 6 ?
		(bf16 ? (const void *)attn_bwd_dq_kernel<CAIRN_BF16, 128> :
			(const void *)attn_bwd_dq_kernel<CAIRN_F16, 128>) :
		(bf16 ? (const void *)attn_bwd_dq_kernel<CAIRN_BF16, 64> :
			(const void *)attn_bwd_dq_kernel<CAIRN_F16, 64>);
	void *params[] = { (void *)call };
	struct cairn_launch l = {};

	if (!args->nnz_qo)
		return 0;
	l.grid[0] = grid_of((int64_t)call->token_tiles * args->num_qo_heads, args, num_sms, 8);
	l.block[0] = 128;
	l.stream = stream;
	return cairn_launch(kernel, &l, params);
}
