/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_tile - what the decode and the prefill kernel of attn_paged share: the page walk, the gather into
 * swizzled shared memory, fragments, online softmax
 *
 * A warp owns one or more m-tiles of 16 packed rows (attn_tile.h). mma.m16n8k16 gives lane l the rows l / 4
 * and l / 4 + 8 and, of every 8 columns, columns 2 (l % 4) and 2 (l % 4) + 1. Logits and O stay in these
 * registers from the first key to the last, and P passes from accumulator to A fragment without moving.
 */
#ifndef CAIRN_ATTN_TILE_CUH
#define CAIRN_ATTN_TILE_CUH

#include <math_constants.h>

#include "primitives/base/dtype.h"
#include "primitives/ptx/ptx_copy.cuh"
#include "fused/attention/attn_paged.h"
#include "fused/attention/attn_tile.h"

#define ATTN_DEV	static __device__ __forceinline__
#define ATTN_CONST	static constexpr __host__ __device__ int
#define ATTN_LOG2E	1.4426950408889634f
#define ATTN_LN2	0.6931471805599453f

/* attn_paged_prefill.cu: all requests, or only the listed row tiles. The caller has checked the arguments. */
int attn_paged_prefill(const struct cairn_attn_paged_args *args, void *stream);
int attn_paged_prefill_listed(const struct cairn_attn_paged_args *args, void *stream);
/*
 * attn_paged_list.cu. attn_paged_list() writes the row tiles of requests of more than min_rows packed rows to
 * the workspace, as int32: their number, 0, then each tile's request and index in the request.
 * attn_paged_list_tiles() returns an upper bound of their number, attn_paged_list_bytes() the bytes for it.
 */
int attn_paged_list(const struct cairn_attn_paged_args *args, int32_t min_rows, void *stream);
int64_t attn_paged_list_tiles(const struct cairn_attn_paged_args *args, int32_t min_rows);
size_t attn_paged_list_bytes(const struct cairn_attn_paged_args *args, int32_t min_rows);

/* One request and one KV head. */
struct attn_request {
	int32_t qo_first, qo_len, kv_len;
	int32_t head, group;
	uint32_t magic;			/* attn_magic(group) */
	const int32_t *pages;		/* the request's page ids */
};

ATTN_DEV struct attn_request attn_load_request(const struct cairn_attn_paged_args &a, int b, int head,
					       int group, uint32_t magic)
{
	struct attn_request r;
	int32_t first_page = a.kv.indptr[b];

	r.head = head;
	r.group = group;
	r.magic = magic;
	r.qo_first = a.qo_indptr[b];
	r.qo_len = a.qo_indptr[b + 1] - r.qo_first;
	r.kv_len = kv_walk_len(a.kv.indptr[b + 1] - first_page, a.kv.last_page_len[b], a.kv.page_size);
	r.pages = a.kv.indices + first_page;
	return r;
}

/* Returns the end of the keys that a packed row sees. */
ATTN_DEV int32_t attn_row_sees(const struct cairn_attn_paged_args &a, const struct attn_request &r,
			       int32_t row)
{
	return attn_visible(attn_token(row, r.magic), r.qo_len, r.kv_len, a.causal);
}

/* Returns the first key that a packed row sees. */
ATTN_DEV int32_t attn_row_first(const struct cairn_attn_paged_args &a, const struct attn_request &r,
				int32_t row)
{
	return attn_first_key(attn_token(row, r.magic), r.qo_len, r.kv_len, a.window);
}

/* Returns the factor from a logit in registers to its value; a capped logit is kept as its tanh. */
ATTN_DEV float attn_logit_scale(const struct cairn_attn_paged_args &a)
{
	return a.softcap > 0 ? a.softcap : a.sm_scale;
}

/*
 * Turns q.k into tanh(x) = 1 - 2 / (1 + e^(2x)), x = sm_scale q.k / softcap. The error is at most 2^-21, or
 * 2^-15 in Gemma's logits after the factor softcap. tanh.approx would be one instruction instead of two
 * special and three cheap ones, but its relative error of 2^-11 would move these logits by 2^-6.
 * twice: 2 log2(e) sm_scale / softcap.
 */
ATTN_DEV float attn_cap(float s, float twice)
{
	return fmaf(-2, ptx_rcp_approx_ftz(1 + ptx_ex2_approx_ftz(s * twice)), 1);
}

ATTN_DEV float attn_cap_factor(const struct cairn_attn_paged_args &a)
{
	return a.softcap > 0 ? 2 * ATTN_LOG2E * (a.sm_scale / a.softcap) : 0;
}

/* Returns the element of q at which a packed row begins. */
ATTN_DEV int64_t attn_q_row(const struct cairn_attn_paged_args &a, const struct attn_request &r,
			    int32_t row)
{
	int64_t stride = a.q_stride ? a.q_stride : (int64_t)a.num_qo_heads * a.head_dim;
	int32_t token = attn_token(row, r.magic), head = r.head * r.group + row - token * r.group;

	return (r.qo_first + token) * stride + head * a.head_dim;
}

/* Returns a packed row's index among all rows and heads: its row of out, its element of lse. */
ATTN_DEV int64_t attn_out_row(const struct cairn_attn_paged_args &a, const struct attn_request &r,
			      int32_t row)
{
	int32_t token = attn_token(row, r.magic), head = r.head * r.group + row - token * r.group;

	return (int64_t)(r.qo_first + token) * a.num_qo_heads + head;
}

/* Returns the slot of a key, counted over all pages; ~0, without reading a page id, if key >= end. */
ATTN_DEV uint32_t attn_slot(const struct cairn_attn_paged_args &a, const struct attn_request &r,
			    int32_t page_shift, int32_t key, int32_t end)
{
	int32_t page;

	if (key >= end)
		return ~0u;
	page = page_shift >= 0 ? key >> page_shift : key / a.kv.page_size;
	return (uint32_t)r.pages[page] * (uint32_t)a.kv.page_size + (uint32_t)(key - page * a.kv.page_size);
}

/*
 * Starts the copy of `rows` keys into a K tile at s_k and a V tile v_offset bytes behind it, to the rows from
 * `first` (a multiple of 8) on; lane i < rows of the warp passes the slot of key i, or ~0 for a key that does
 * not exist. Such a key becomes a row of zeros, so that p = 0 is never multiplied by a NaN of an unused slot.
 */
template <int head_dim, int rows, int v_offset>
ATTN_DEV void attn_gather(const struct cairn_attn_paged_args &a, const struct attn_request &r,
			  uint32_t s_k, int first, uint32_t slot)
{
	constexpr int chunks = head_dim / 8, per_pass = 32 / chunks;
	int row = threadIdx.x % 32 / chunks, chunk = threadIdx.x % chunks;
	uint32_t slot_bytes = a.num_kv_heads * head_dim * 2;
	uint32_t column = r.head * head_dim * 2 + chunk * 16;

	s_k += attn_swizzle(first + row, chunk, head_dim * 2);
#pragma unroll
	for (int i = 0; i < rows; i += per_pass) {
		uint32_t from = __shfl_sync(~0u, slot, i + row), bytes = from == ~0u ? 0 : 16;
		uint64_t at = (uint64_t)(from == ~0u ? 0 : from) * slot_bytes + column;
		uint32_t to = (s_k ^ (i & 7) << 4) + i * head_dim * 2;

		ptx_cp_async_cg(to, (const char *)a.kv.k_pages + at, bytes);
		ptx_cp_async_cg(to + v_offset, (const char *)a.kv.v_pages + at, bytes);
	}
}

template <int dtype>
ATTN_DEV void attn_mma(float d[4], const uint32_t a[4], const uint32_t b[2])
{
	if (dtype == CAIRN_F16)
		ptx_mma_m16n8k16_f16(d, a, b);
	else
		ptx_mma_m16n8k16_bf16(d, a, b);
}

/* Packs two floats into one register of dtype, the first in the low half. */
template <int dtype>
ATTN_DEV uint32_t attn_pack(float lo, float hi)
{
	uint32_t r;

	if (dtype == CAIRN_F16)
		asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
	else
		asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
	return r;
}

/*
 * Byte offset in a tile of a lane's ldmatrix.x4. A: 16 rows of Q and 16 columns. B, two n-tiles at a time: 16
 * keys of K and 16 columns; or 16 keys of V and 16 columns, transposed by ldmatrix, because V is stored
 * [key][dim] and B is [dim][key]. The next 16 columns are at ^ 32, the next 16 rows at + 16 * head_dim * 2.
 */
template <int head_dim>
ATTN_DEV uint32_t attn_q_at(int lane)
{
	return attn_swizzle(lane % 16, lane / 16, head_dim * 2);
}

template <int head_dim>
ATTN_DEV uint32_t attn_k_at(int lane)
{
	return attn_swizzle(lane / 16 * 8 + lane % 8, lane / 8 % 2, head_dim * 2);
}

template <int head_dim>
ATTN_DEV uint32_t attn_v_at(int lane)
{
	return attn_swizzle(lane / 8 % 2 * 8 + lane % 8, lane / 16, head_dim * 2);
}

/* Maximum, and below it sum, over the four lanes that share a row. */
ATTN_DEV float attn_quad_max(float x)
{
	x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
	return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

ATTN_DEV float attn_quad_sum(float x)
{
	x += __shfl_xor_sync(~0u, x, 1);
	return x + __shfl_xor_sync(~0u, x, 2);
}

/*
 * Adds the logits s (n8-tiles of keys; before sm_scale; -inf where masked) of a lane's two rows to the
 * running maximum m and the sum l (over this lane's columns only), and turns them into p. keep[] is the
 * factor for O. The difference to the maximum is taken before the scale, so that logits near the end of
 * fp32's range stay finite. A row that has seen no key yet has m = -inf; a masked key has p = 0.
 */
template <int tiles>
ATTN_DEV void attn_softmax(float (*s)[4], float m[2], float l[2], float keep[2], float scale_log2)
{
#pragma unroll
	for (int r = 0; r < 2; r++) {
		float top = m[r], base;

#pragma unroll
		for (int t = 0; t < tiles; t++)
			top = fmaxf(top, fmaxf(s[t][2 * r], s[t][2 * r + 1]));
		top = attn_quad_max(top);
		base = top == -CUDART_INF_F ? 0 : top;
		keep[r] = ptx_ex2_approx_ftz((m[r] - base) * scale_log2);
		m[r] = top;
		l[r] *= keep[r];
#pragma unroll
		for (int t = 0; t < tiles; t++) {
			s[t][2 * r] = ptx_ex2_approx_ftz((s[t][2 * r] - base) * scale_log2);
			s[t][2 * r + 1] = ptx_ex2_approx_ftz((s[t][2 * r + 1] - base) * scale_log2);
			l[r] += s[t][2 * r] + s[t][2 * r + 1];
		}
	}
}

template <int head_dim>
ATTN_DEV void attn_rescale(float (*o)[4], const float keep[2])
{
	/* the maximum settles early; from then on all factors of the warp are 1 */
	if (!__any_sync(~0u, keep[0] != 1 || keep[1] != 1))
		return;
#pragma unroll
	for (int t = 0; t < head_dim / 8; t++) {
		o[t][0] *= keep[0];
		o[t][1] *= keep[0];
		o[t][2] *= keep[1];
		o[t][3] *= keep[1];
	}
}

/* Packs the p of two n-tiles into the A fragment of 16 keys. */
template <int dtype>
ATTN_DEV void attn_p_fragment(uint32_t a[4], float (*p)[4])
{
	a[0] = attn_pack<dtype>(p[0][0], p[0][1]);
	a[1] = attn_pack<dtype>(p[0][2], p[0][3]);
	a[2] = attn_pack<dtype>(p[1][0], p[1][1]);
	a[3] = attn_pack<dtype>(p[1][2], p[1][3]);
}

/* Returns the natural log-sum-exp of a finished row; scale: attn_logit_scale(). */
ATTN_DEV float attn_lse(float m, float l, float scale)
{
	return l > 0 ? m * scale + log2f(l) * ATTN_LN2 : -CUDART_INF_F;
}

/*
 * Transposes 4 x 4 registers within a quad in two exchanges: lane i of the quad holds two columns of each of
 * the n-tiles 0 to 3 and gets the eight columns of n-tile i.
 */
ATTN_DEV uint4 attn_gather_quad(const uint32_t x[4])
{
	int odd = threadIdx.x & 1, high = threadIdx.x & 2;
	uint32_t a = __shfl_xor_sync(~0u, odd ? x[0] : x[1], 1);
	uint32_t b = __shfl_xor_sync(~0u, odd ? x[2] : x[3], 1);
	uint32_t low0 = odd ? a : x[0], low1 = odd ? x[1] : a, high0 = odd ? b : x[2], high1 = odd ? x[3] : b;
	uint32_t c = __shfl_xor_sync(~0u, high ? low0 : high0, 2);
	uint32_t d = __shfl_xor_sync(~0u, high ? low1 : high1, 2);

	return high ? make_uint4(c, d, high0, high1) : make_uint4(low0, low1, c, d);
}

#endif
