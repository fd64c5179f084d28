/* SPDX-License-Identifier: Apache-2.0 */
/*
 * moe_rows.cuh - what products of weights of 16 bits (moe_rows.cu) and of 8 (moe_rows_fp8.cu) share
 */
#ifndef CAIRN_MOE_ROWS_CUH
#define CAIRN_MOE_ROWS_CUH

#include "attn_tile.cuh"
#include "moe_call.cuh"

#define THREADS		256
#define TILE		128		/* slots of a tile, and rows of weights */
#define STEP		64		/* elements of k */
#define SIDE_BYTES	(TILE * STEP * 2)

struct tile {
	int32_t expert, first, count, pad;	/* slots; count 0: no such tile */
};

struct rows {
	struct moe_call a;
	void *n, *h, *shared_h;
	float *logits, *weight, *y;		/* weight: of a pair row * k + i; y: of a slot */
	int32_t *choice, *pair, *slot;		/* expert of a pair; pair of a slot; slot of a pair */
	struct tile *tiles;
	void *gemm_workspace;
	size_t gemm_bytes;
	int32_t num_slots, num_tiles;		/* without the shared expert's; upper bound with them */
};

/*
 * Rows 32 m .. + 31 of A times 64 rows of B, so many bytes behind it: 32 from `b0` on, 32 from `b1` on.
 */
template <int dtype>
ATTN_DEV void multiply(float (*sum)[8][4], uint32_t s_a, uint32_t b_behind, int m, int b0,
		       int b1)
{
	const int lane = threadIdx.x % 32;
	const uint32_t a_at = s_a + attn_swizzle(m * 32 + lane % 16, lane / 16, STEP * 2);
	const uint32_t b_at = s_a + b_behind + attn_swizzle(lane / 16 * 8 + lane % 8, lane / 8 % 2,
							    STEP * 2);

#pragma unroll
	for (int k = 0; k < STEP / 16; k++) {
		uint32_t a[2][4];

#pragma unroll
		for (int i = 0; i < 2; i++)
			ptx_ldmatrix_x4(a[i], (a_at ^ k * 32) + i * 16 * STEP * 2);
#pragma unroll
		for (int j = 0; j < 4; j++) {
			uint32_t b[4];

			ptx_ldmatrix_x4(b, (b_at ^ k * 32) + ((j < 2 ? b0 : b1) + j % 2 * 16) * STEP * 2);
#pragma unroll
			for (int i = 0; i < 2; i++) {
				attn_mma<dtype>(sum[i][2 * j], a[i], b);
				attn_mma<dtype>(sum[i][2 * j + 1], a[i], b + 2);
			}
		}
	}
}

/* A kernel whose argument is struct rows, or begins with it */
int moe_rows_launch(const void *kernel, void *args, int64_t x, int y, int threads, size_t smem, void *stream);
/* The two products, of weights of 8 bits */
int moe_rows_fp8(const struct rows *g, const struct cairn_moe_args *args, void *stream);

#endif
