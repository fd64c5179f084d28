// SPDX-License-Identifier: Apache-2.0
/*
 * silu_mul_rows.cu - silu_mul whose results are quantised with one scale for a row
 *
 * The scale is known only when the whole row has been computed, so a CTA computes a row and keeps its results
 * in registers, in their dtype. Between the loads of a row and its stores lies a chain of arithmetic and one
 * barrier, in which plain loads would leave memory idle.
 *
 * Schedule: a CTA takes every gridDim.x-th row. Bulk copies bring the gates and ups of its next rows to a
 * ring of `stages` rows, in ITEMS parts of a vector for each thread. All threads compute a part as soon as it
 * has arrived, store out if it is given, and meet at the barrier, behind which the largest magnitude of the
 * row is known and the stage is free: thread 0 then asks for the row that comes `stages` turns later, and all
 * quantise.
 *
 * shared memory   s_rows   stages x [2, dim] x 2 bytes
 *                 s_max    2 x 32 x 4 bytes: the bits of the largest magnitude per warp, of rows in turn
 *                 s_full   STAGES x ITEMS mbarriers, on which the parts of rows arrive
 * barriers        one __syncthreads for a row
 * registers       64, for 1024 threads an SM: with dim 14336 two CTAs of 448 threads and two stages
 *
 * Floor: 1024 x 14336 bf16 reads 58.7 MB and writes 14.7 MB: 17.5 us at the copy stream's 4.2 TB/s.
 */
#include "primitives/base/launch.h"
#include "primitives/ptx/ptx_copy.cuh"
#include "primitives/rows/act_mul.cuh"
#include "primitives/rows/quant_row.cuh"
#include "primitives/rows/silu_mul_rows.h"

#define MOST_THREADS	1024
#define ITEMS		(CAIRN_SILU_MUL_MOST_Q / 8 / MOST_THREADS)	/* vectors of a thread */
#define STAGES		4
#define SM_BYTES	(228 * 1024)	/* shared memory of an SM */
#define CTA_BYTES	(1024 + 640)	/* that a CTA takes besides its stages: 1024 for the system */

/* Returns the address of the mbarrier of part k of a stage. */
ROW uint32_t full_of(const uint64_t *s_full, int stage, int k)
{
	return ptx_smem(s_full + stage * ITEMS + k);
}

/* Thread 0 asks for a row of x, if there is such a row. */
ROW void fetch(const struct cairn_silu_mul_args &a, int64_t row, uint4 *s_row, const uint64_t *s_full,
	       int stage)
{
	const int vecs = a.dim / 8;
	const uint4 *x = (const uint4 *)a.x + 2 * row * vecs;

	if (row >= a.rows)
		return;
	for (int k = 0, v = 0; v < vecs; k++, v += blockDim.x) {
		const uint32_t bytes = 16 * min((int)blockDim.x, vecs - v);
		const uint32_t full = full_of(s_full, stage, k);

		ptx_mbarrier_arrive_expect_tx(full, 2 * bytes);
		ptx_cp_async_bulk_g2s(ptx_smem(s_row + v), x + v, bytes, full);
		ptx_cp_async_bulk_g2s(ptx_smem(s_row + vecs + v), x + vecs + v, bytes, full);
	}
}

/*
 * Computes the thread's vectors of a row, of which s_x is the shared address of the first gate, and stores
 * them to out if that is given. Returns the largest magnitudes. whole: the thread has ITEMS vectors
 */
template <int dtype, int gelu, bool whole>
ROW uint32_t compute(int vecs, uint32_t s_x, uint32_t full, int phase, uint4 *out, uint4 held[ITEMS])
{
	uint32_t max2 = 0;

#pragma unroll
	for (int k = 0; k < ITEMS; k++) {
		const int v = threadIdx.x + k * blockDim.x;
		float g[8], up[8];

		if (!whole && v >= vecs)
			break;
		ptx_mbarrier_wait(full + 8 * k, phase);
		row_unpack<dtype>(ptx_ld_shared_v4(s_x), g);
		row_unpack<dtype>(ptx_ld_shared_v4(s_x + 16 * vecs), up);
		s_x += 16 * blockDim.x;
		act_mul_vec<dtype, gelu>(g, up);
		held[k] = row_pack<dtype>(g);
		if (out)
			out[v] = held[k];
		max2 = quant_max2(max2, held[k]);
	}
	return max2;
}

/* Writes the codes of the thread's vectors of a row to q. */
template <int dtype, bool whole>
ROW void write_codes(uint8_t *q, int vecs, const uint4 held[ITEMS], float scale)
{
	const float inverse = quant_inverse(scale);
	uint2 *to = (uint2 *)q + threadIdx.x;

#pragma unroll
	for (int k = 0; k < ITEMS && inverse != 0; k++, to += blockDim.x)
		if (whole || (int)(threadIdx.x + k * blockDim.x) < vecs)
			*to = quant_packed<dtype>(held[k], scale, inverse);
#pragma unroll
	for (int k = 0; k < ITEMS && inverse == 0; k++)
		if (whole || (int)(threadIdx.x + k * blockDim.x) < vecs)
			quant_store<dtype>(q, threadIdx.x + k * blockDim.x, held[k], scale, 0);
}

template <int dtype, int gelu, bool whole>
__global__ void __launch_bounds__(MOST_THREADS)
rows_kernel(const __grid_constant__ struct cairn_silu_mul_args a, int stages)
{
	extern __shared__ __align__(128) uint4 s_rows[];
	__shared__ uint64_t s_full[STAGES * ITEMS];
	__shared__ uint32_t s_max[2][32];
	const int vecs = a.dim / 8, warps = blockDim.x / 32, lane = threadIdx.x % 32;
	int stage = 0, phase = 0, turn = 0;

	if (threadIdx.x == 0) {
		for (int k = 0; k < STAGES * ITEMS; k++)
			ptx_mbarrier_init(full_of(s_full, 0, k), 1);
		ptx_fence_mbarrier_init_release_cluster();
	}
	__syncthreads();
	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	for (int s = 0; threadIdx.x == 0 && s < stages; s++)
		fetch(a, blockIdx.x + (int64_t)s * gridDim.x, s_rows + s * 2 * vecs, s_full, s);
	for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
		uint4 *x = s_rows + stage * 2 * vecs, *out = a.out ? (uint4 *)a.out + row * vecs : NULL;
		uint4 held[ITEMS] = {};
		uint32_t max2;
		float scale;

		max2 = quant_warp_max2(compute<dtype, gelu, whole>(vecs, ptx_smem(x + threadIdx.x),
								   full_of(s_full, stage, 0), phase, out,
								   held));
		if (lane == 0)
			s_max[turn][threadIdx.x / 32] = max2;
		__syncthreads();
		if (threadIdx.x == 0)
			fetch(a, row + (int64_t)stages * gridDim.x, x, s_full, stage);
		max2 = quant_warp_max2(lane < warps ? s_max[turn][lane] : 0);
		scale = quant_scale(quant_magnitude<dtype>(max2));
		if (threadIdx.x == 0)
			a.q_scale[row] = scale;
		write_codes<dtype, whole>(a.q + row * a.dim, vecs, held, scale);
		turn ^= 1;
		stage++;
		if (stage == stages) {
			stage = 0;
			phase ^= 1;
		}
	}
}

/* Chooses threads, stages and CTAs for rows of dim elements. */
static void shape(const struct cairn_silu_mul_args *a, int sms, struct cairn_launch *l, int *stages)
{
	const int vecs = a->dim / 8, row = 4 * a->dim, items = a->rows <= sms ? 2 : ITEMS;
	const int threads = (vecs + 32 * items - 1) / (32 * items) * 32;
	int ctas;		/* of an SM */

	l->block[0] = threads < MOST_THREADS ? threads : MOST_THREADS;
	ctas = MOST_THREADS / (int)l->block[0];
	if (ctas > SM_BYTES / (2 * row + CTA_BYTES))
		ctas = SM_BYTES / (2 * row + CTA_BYTES);
	ctas = ctas > 1 ? ctas : 1;
	*stages = (SM_BYTES / ctas - CTA_BYTES) / row;
	*stages = *stages < STAGES ? *stages : STAGES;
	l->smem = (size_t)*stages * (size_t)row;
	l->grid[0] = a->rows < sms * ctas ? a->rows : sms * ctas;
}

template <int dtype, bool whole> static const void *kernel_of(const struct cairn_silu_mul_args *a)
{
	return a->activation ? (const void *)rows_kernel<dtype, 1, whole> :
			       (const void *)rows_kernel<dtype, 0, whole>;
}

template <bool whole> static const void *kernel_of_dtype(const struct cairn_silu_mul_args *a)
{
	return a->dtype == CAIRN_F16 ? kernel_of<CAIRN_F16, whole>(a) : kernel_of<CAIRN_BF16, whole>(a);
}

int silu_mul_rows(const struct cairn_silu_mul_args *a, void *stream)
{
	struct cairn_launch l = { .pdl = 1, .stream = stream };
	int sms = cairn_num_sms(), stages;
	bool whole;
	void *params[] = { (void *)a, &stages };

	if (sms < 0)
		return sms;
	shape(a, sms, &l, &stages);
	whole = a->dim / 8 == ITEMS * (int)l.block[0];
	return cairn_launch(whole ? kernel_of_dtype<true>(a) : kernel_of_dtype<false>(a), &l, params);
}
