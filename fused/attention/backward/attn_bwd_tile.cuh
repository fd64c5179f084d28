/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_bwd_tile - code that the kernels of attn_bwd share: the call, tiles by TMA, products, result rows
 *
 * Each request's tokens are divided into token tiles of 64 or 128. In the workspace, the tiles of a request
 * follow those of the request before it; a partly filled tile takes as much room as a full one.
 *
 * Tiles are panels of 64 columns (wgmma.cuh). A tile of Q, dO or K may extend past its request, into rows
 * that may hold NaN. Where a sum runs over such rows, the producer overwrites them with zeros, because a p or
 * ds of 0 times NaN is NaN.
 */
#ifndef CAIRN_ATTN_BWD_TILE_CUH
#define CAIRN_ATTN_BWD_TILE_CUH

#include <cuda.h>

#include "primitives/ptx/ptx_copy.cuh"
#include "fused/attention/backward/attn_bwd.h"
#include "fused/attention/forward/attn_range.cuh"

/* Bytes of a token tile's sums of dq: 64 tokens of 128 dimensions, or 128 tokens of 64. */
#define ATTN_BWD_DQ_BYTES	32768

struct attn_bwd_call {
	void *dq, *dk, *dv;
	float *rows;			/* [num_qo_heads][token_tiles][2][tokens]: lse, delta */
	uint32_t *turns;		/* [num_qo_heads][token_tiles], see attn_bwd_all.cu */
	float *dq_sum;			/* [num_qo_heads][token_tiles][ATTN_BWD_DQ_BYTES] */
	const int32_t *qo_indptr, *kv_indptr;
	int32_t batch, num_qo_heads, num_kv_heads, group, qk_dim, v_dim, causal, window;
	int32_t token_shift, token_tiles;	/* log2 of a tile's tokens; room for tiles of a head */
	int32_t tiles;			/* row tiles (dq) or key tiles (dk, dv) of a request and head */
	int32_t first;			/* the number of the first CTA of this launch */
	int32_t section;		/* attn_bwd_all: KV heads between which CTAs alternate */
	float sm_scale, softcap;
	float cap;			/* 2 log2(e) sm_scale / softcap, or 0 */
};

/* Q and dO as [token][query head][dim], K and V as [KV head][key][dim], in boxes of the kernel's tiles. */
struct attn_bwd_maps {
	CUtensorMap q, dout, k, v;
};

/*
 * An instance of a kernel, for f16 and bf16. q_rows and kv_rows: rows of its boxes of Q and dO, and of K and
 * V.
 */
struct attn_bwd_kernel {
	const void *kernel[2];
	int32_t q_rows, kv_rows, tile, threads;	/* tile: rows, or keys, of a CTA */
	size_t smem;
};

struct attn_bwd_kernel attn_bwd_all_64(void);
struct attn_bwd_kernel attn_bwd_all_128(void);
struct attn_bwd_kernel attn_bwd_kv_192_128(void);
struct attn_bwd_kernel attn_bwd_kv_256(void);
struct attn_bwd_kernel attn_bwd_q_192_128(void);
struct attn_bwd_kernel attn_bwd_q_256(void);
/*
 * In attn_bwd_rows.cu: launch the kernel that runs first, and the kernel after attn_bwd_all, which writes dq.
 */
int attn_bwd_launch_rows(const struct cairn_attn_bwd_args *args, const struct attn_bwd_call *call,
			 int num_sms, void *stream);
int attn_bwd_launch_dq(const struct cairn_attn_bwd_args *args, const struct attn_bwd_call *call, int num_sms,
		       void *stream);

/* The request of a CTA. */
struct attn_bwd_request {
	int32_t qo_first, qo_len, kv_first, kv_len;
	int32_t token_tile;		/* the index of its first token tile */
};

/* Returns the index of the first token tile of a request whose first token is qo_first. */
ATTN_DEV int attn_bwd_place(int qo_first, int b, int token_shift)
{
	return (qo_first >> token_shift) + b;
}

ATTN_DEV struct attn_bwd_request attn_bwd_load(const struct attn_bwd_call &a, int b)
{
	struct attn_bwd_request r;

	r.qo_first = a.qo_indptr[b];
	r.qo_len = a.qo_indptr[b + 1] - r.qo_first;
	r.kv_first = a.kv_indptr[b];
	r.kv_len = a.kv_indptr[b + 1] - r.kv_first;
	r.token_tile = attn_bwd_place(r.qo_first, b, a.token_shift);
	return r;
}

/* Returns the address of a token's lse; its delta is one token tile further. */
ATTN_DEV float *attn_bwd_row(const struct attn_bwd_call &a, const struct attn_bwd_request &r, int head,
			     int token)
{
	int64_t tile = (int64_t)head * a.token_tiles + r.token_tile + (token >> a.token_shift);

	return a.rows + (tile << (a.token_shift + 1)) + (token & ((1 << a.token_shift) - 1));
}

/* These return the first token that sees a key, and the end of these tokens. */
ATTN_DEV int attn_bwd_first_token(const struct attn_bwd_call &a, const struct attn_bwd_request &r, int key)
{
	return a.causal ? max(0, key - (r.kv_len - r.qo_len)) : 0;
}

ATTN_DEV int attn_bwd_end_token(const struct attn_bwd_call &a, const struct attn_bwd_request &r, int key)
{
	int64_t end = (int64_t)key - (r.kv_len - r.qo_len) + a.window;

	return a.window > 0 && end < r.qo_len ? (int)max((int64_t)0, end) : r.qo_len;
}

/* Starts the copy of `panels` boxes of `rows` rows; the caller has done the expect_tx for their bytes. */
template <int panels, int rows>
ATTN_DEV void attn_bwd_copy(const CUtensorMap *map, uint32_t s_tile, int y, int z, uint32_t mbar)
{
#pragma unroll
	for (int i = 0; i < panels; i++)
		ptx_cp_async_bulk_tensor_3d_g2s(s_tile + i * rows * ATTN_PANEL, map, i * 64, y, z, mbar);
}

/*
 * Overwrites the rows first .. end - 1 of a tile of `rows` rows with zeros; all lanes of a warp call it. The
 * loops are not unrolled, because producers have few registers.
 */
template <int panels, int rows> ATTN_DEV void attn_bwd_clear(uint32_t s_tile, int first, int end)
{
#pragma unroll 1
	for (int panel = 0; panel < panels; panel++) {
#pragma unroll 1
		for (int i = first * 8 + threadIdx.x % 32; i < end * 8; i += 32)
			ptx_st_shared_v4(s_tile + panel * rows * ATTN_PANEL + i * 16, make_uint4(0, 0, 0, 0));
	}
}

/* Issues d = a b^T; a_rows and b_rows are the rows of the two tiles. */
template <int dtype, int n, int k, int a_rows, int b_rows>
ATTN_DEV void attn_bwd_issue_ss(float *d, uint32_t s_a, uint32_t s_b)
{
	uint64_t a, b;

	asm volatile("" : "+r"(s_a), "+r"(s_b));
	a = wgmma_desc(s_a, 0);
	b = wgmma_desc(s_b, 0);
	wgmma_keep<n / 2>(d);
	ptx_wgmma_fence();
#pragma unroll
	for (int i = 0; i < k / 16; i++)
		ptx_wgmma_ss<dtype, n>(d, a + i / 4 * (a_rows * ATTN_PANEL >> 4) + i % 4 * 2,
				       b + i / 4 * (b_rows * ATTN_PANEL >> 4) + i % 4 * 2, i > 0);
	ptx_wgmma_commit_group();
	wgmma_keep<n / 2>(d);
}

/*
 * Issues d += a b, where a holds fragments of 64 rows and k columns, and b is a tile of k rows and n columns.
 */
template <int dtype, int n, int k>
ATTN_DEV void attn_bwd_issue_rs(float *d, const uint32_t (*a)[4], uint32_t s_b)
{
	uint64_t b = wgmma_desc(s_b, k * ATTN_PANEL);

	wgmma_keep<n / 2>(d);
	ptx_wgmma_fence();
#pragma unroll
	for (int i = 0; i < k / 16; i++)
		ptx_wgmma_rs<dtype, n>(d, a[i], b + i * (16 * ATTN_PANEL >> 4), 1);
	ptx_wgmma_commit_group();
	wgmma_keep<n / 2>(d);
}

/* Issues d = a^T b, where a and b are panels of k rows and 64 columns. */
template <int dtype, int k> ATTN_DEV void attn_bwd_issue_tt(float *d, uint32_t s_a, uint32_t s_b)
{
	uint64_t a, b;

	asm volatile("" : "+r"(s_a), "+r"(s_b));
	a = wgmma_desc(s_a, 0);
	b = wgmma_desc(s_b, 0);
	wgmma_keep<32>(d);
	ptx_wgmma_fence();
#pragma unroll
	for (int i = 0; i < k / 16; i++)
		ptx_wgmma_ss_t<dtype, 64>(d, a + i * (16 * ATTN_PANEL >> 4), b + i * (16 * ATTN_PANEL >> 4),
					  i > 0);
	ptx_wgmma_commit_group();
	wgmma_keep<32>(d);
}

/*
 * Turns the product q.k of a pair into p, and sets *f to the derivative of the softcap. lse is subtracted
 * before the change of base, so that the difference is rounded once.
 */
ATTN_DEV float attn_bwd_p(const struct attn_bwd_call &a, float s, float lse, float cap, float *f)
{
	if (cap == 0) {
		*f = 1;
		return ptx_ex2_approx_ftz(fmaf(s, a.sm_scale, -lse) * ATTN_LOG2E);
	}
	s = attn_cap(s, cap);
	*f = fmaf(-s, s, 1);
	return ptx_ex2_approx_ftz(fmaf(s, a.softcap, -lse) * ATTN_LOG2E);
}

/*
 * Writes a warpgroup's 64 rows of n columns, times `scale`. Row i goes to row first + i * step of an array
 * with rows of `dim` elements; only the first `rows` rows are written.
 */
template <int dtype, int n>
ATTN_DEV void attn_bwd_write(void *to, float (*d)[4], int64_t first, int step, int rows, int dim, float scale)
{
	int thread = attn_thread(), row = thread / 32 * 16 + thread % 32 / 4, lane = thread % 32;

#pragma unroll
	for (int half = 0; half < 2; half++) {
		int at = row + half * 8;
		uint4 *out = (uint4 *)to + (first + (int64_t)at * step) * (dim / 8);

#pragma unroll
		for (int i = 0; i < n / 8; i += 4) {
			uint32_t x[4];
			uint4 eight;

#pragma unroll
			for (int j = 0; j < 4; j++)
				x[j] = attn_pack<dtype>(d[i + j][2 * half] * scale,
							d[i + j][2 * half + 1] * scale);
			eight = attn_gather_quad(x);
			if (at < rows && i + lane % 4 < dim / 8)
				out[i + lane % 4] = eight;
		}
	}
}

#endif
