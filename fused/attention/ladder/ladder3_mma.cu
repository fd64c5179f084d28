// SPDX-License-Identifier: Apache-2.0
/*
 * ladder3_mma - step 3: tensor cores, and copies that overlap the products (FlashAttention-2)
 *
 * A CTA has four warps of 32 rows each. S, P and O stay in registers: in the layout of mma.m16n8k16 a row's
 * logits are in four lanes (attn_softmax.cuh), and P, once rounded, is already the left operand of the
 * product with V. ldmatrix loads Q, K and V from shared memory in that layout, V transposed. A fragment of
 * K or V serves both of the warp's m-tiles of 16 rows, which halves the reads. cp.async copies without
 * registers: V(i) is in flight during Q K(i)^T, and K(i + 1) during the softmax and P V(i). Two CTAs share
 * an SM, so that one computes while the other waits.
 *
 *   step i:  wait for K(i), barrier | start V(i) | S = Q K^T | wait for V(i), barrier | start K(i + 1) |
 *            mask, online softmax | O += P V
 *
 * Shared memory, 64 KiB: Q [128], K [64], V [64], rows of 256 bytes, swizzled (attn_tile.h) so that
 * ldmatrix is free of bank conflicts. Floor: 4 x 128 operations for each row and key at the rate of
 * mma.sync, which on Hopper is about 0.6 of wgmma's 990 TFLOP/s.
 */
#include "fused/attention/ladder/ladder.cuh"
#include "primitives/ptx/ptx_copy.cuh"

#define ROWS	128
#define KEYS	64
#define THREADS	128
#define PITCH	(LADDER_DIM * 2)	/* bytes of a row in shared memory */
#define MT	2			/* m-tiles of a warp */

/*
 * Starts the copy of `rows` rows, `stride` elements apart, of which only the first `have` exist: the others
 * become zeros, because p = 0 times the NaN of an unused row would be NaN.
 */
ATTN_DEV void copy_tile(uint32_t to, const uint16_t *from, int64_t stride, int rows, int have)
{
	const int row0 = threadIdx.x / 16, chunk = threadIdx.x % 16;

	to += attn_swizzle(row0, chunk, PITCH);
	from += row0 * stride + chunk * 8;
#pragma unroll
	for (int i = 0; i < rows; i += THREADS / 16)
		ptx_cp_async_cg(to + i * PITCH, from + i * stride, row0 + i < have ? 16 : 0);
	ptx_cp_async_commit_group();
}

template <int dtype> ATTN_DEV void mma(float d[4], const uint32_t a[4], const uint32_t b[2])
{
	if (dtype == CAIRN_F16)
		ptx_mma_m16n8k16_f16(d, a, b);
	else
		ptx_mma_m16n8k16_bf16(d, a, b);
}

template <int dtype>
static __global__ __launch_bounds__(THREADS, 2) void
mma_kernel(const __grid_constant__ struct cairn_attn_dense_args a)
{
	extern __shared__ __align__(1024) uint8_t s_all[];
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	const struct ladder_tile t = ladder_find(a, ROWS);
	const uint32_t s_q = ptx_smem(s_all), s_k = s_q + ROWS * PITCH, s_v = s_k + KEYS * PITCH;
	/* the lane's addresses for ldmatrix in the first 16 columns; the next 16 are at ^ 32 */
	const uint32_t q_at = s_q + attn_swizzle(warp * 32 + lane % 16, lane / 16, PITCH);
	const uint32_t k_at = s_k + attn_swizzle(lane / 16 * 8 + lane % 8, lane / 8 % 2, PITCH);
	const uint32_t v_at = s_v + attn_swizzle(lane / 8 % 2 * 8 + lane % 8, lane / 16, PITCH);
	const uint16_t *q = (const uint16_t *)a.q + (t.qo_first + t.row0) * a.q_stride + t.head * LADDER_DIM;
	const uint16_t *k = (const uint16_t *)a.k + t.kv_first * a.k_stride + t.kv_head * a.k_head_stride;
	const uint16_t *v = (const uint16_t *)a.v + t.kv_first * a.v_stride + t.kv_head * a.v_head_stride;
	const int row0 = t.row0 + warp * 32 + lane / 4;
	float o[MT][LADDER_DIM / 8][4] = {}, m[MT][2], l[MT][2] = {}, keep[2];

	if (t.row0 >= t.qo_len)
		return;
	for (int i = 0; i < MT; i++)
		m[i][0] = m[i][1] = -CUDART_INF_F;
	copy_tile(s_q, q, a.q_stride, ROWS, t.qo_len - t.row0);
	copy_tile(s_k, k, a.k_stride, KEYS, t.kv_len);
	for (int key = 0; key < t.end; key += KEYS) {
		float s[MT][KEYS / 8][4] = {};
		uint32_t x[MT][4], y[4];

		ptx_cp_async_wait_group<0>();
		__syncthreads();	/* K has arrived, and all threads have read the previous V */
		copy_tile(s_v, v + key * a.v_stride, a.v_stride, KEYS, t.kv_len - key);
#pragma unroll
		for (int c = 0; c < LADDER_DIM / 16; c++) {
			ptx_ldmatrix_x4(x[0], q_at ^ c * 32);
			ptx_ldmatrix_x4(x[1], (q_at ^ c * 32) + 16 * PITCH);
#pragma unroll
			for (int j = 0; j < KEYS / 16; j++) {
				ptx_ldmatrix_x4(y, (k_at ^ c * 32) + j * 16 * PITCH);
#pragma unroll
				for (int i = 0; i < MT; i++) {
					mma<dtype>(s[i][2 * j], x[i], y);
					mma<dtype>(s[i][2 * j + 1], x[i], y + 2);
				}
			}
		}
		ptx_cp_async_wait_group<0>();
		__syncthreads();	/* V has arrived, and all threads have read K */
		if (key + KEYS < t.end)
			copy_tile(s_k, k + (key + KEYS) * a.k_stride, a.k_stride, KEYS,
				  t.kv_len - key - KEYS);
#pragma unroll
		for (int i = 0; i < MT; i++) {
			if (key + KEYS > attn_visible(t.row0 + warp * 32, t.qo_len, t.kv_len, a.causal))
				ladder_mask<KEYS / 8>(a, t, s[i], row0 + i * 16, key);
			attn_softmax<KEYS / 8>(s[i], m[i], l[i], keep, a.sm_scale * ATTN_LOG2E);
			attn_rescale<LADDER_DIM>(o[i], keep);
		}
#pragma unroll
		for (int j = 0; j < KEYS / 16; j++) {
#pragma unroll
			for (int i = 0; i < MT; i++)
				attn_p_fragment<dtype>(x[i], s[i] + 2 * j);
#pragma unroll
			for (int c = 0; c < LADDER_DIM / 16; c++) {
				ptx_ldmatrix_x4_trans(y, (v_at ^ c * 32) + j * 16 * PITCH);
#pragma unroll
				for (int i = 0; i < MT; i++) {
					mma<dtype>(o[i][2 * c], x[i], y);
					mma<dtype>(o[i][2 * c + 1], x[i], y + 2);
				}
			}
		}
	}
#pragma unroll
	for (int i = 0; i < MT; i++)
		ladder_store<dtype>(a, t, o[i], m[i], l[i], row0 + i * 16);
}

int ladder_attn3(const struct cairn_attn_dense_args *args, void *stream)
{
	const struct ladder_kernel k = {
		{ (const void *)mma_kernel<CAIRN_F16>, (const void *)mma_kernel<CAIRN_BF16> },
		ROWS, THREADS, (ROWS + 2 * KEYS) * PITCH
	};
	struct cairn_attn_dense_args a;
	void *params[] = { &a };

	CAIRN_TRY(ladder_take(args, &a));
	return ladder_launch(&k, &a, params, stream);
}
