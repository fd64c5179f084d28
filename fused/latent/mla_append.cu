// SPDX-License-Identifier: Apache-2.0
/*
 * mla_append - a CTA processes one new token: its latent, its rope part, and the rope parts of the heads of
 * its query
 *
 * As in kv_append.cu, all threads count the requests that begin at or before the row. Each of the first
 * threads holds one 16-byte vector of the latent, loaded before the barrier of this count. The sums of
 * squares are reduced through shared memory; one barrier serves this reduction and the table of cosines and
 * sines. Then all threads rotate vectors of four pairs, of the key and of the heads. With 8-bit keys, half a
 * warp holds a group of the latent and finds its maximum by shuffles.
 *
 * Shared memory: 8 floats for the warps' sums, then [rope_dim / 2] cosines and sines.
 * Floor: rows * (2 * 576 + 2 * heads * rope_dim) elements; for DeepSeek-V2-Lite 6.4 KB a row, so 1024 rows
 * take 1.6 us at memory bandwidth. A decode step is bound by latency.
 */
#include "fused/latent/mla_append.h"

#include "primitives/rows/angle.cuh"
#include "primitives/base/launch.h"
#include "primitives/ptx/fp8.cuh"
#include "primitives/rows/row.cuh"
#include "fused/cache/kv_slot.h"
#include "fused/latent/decode/mla_decode.h"

#define THREADS		256

template <int dtype> ROW void rotate(const uint4 *from, uint4 *to, const float2 *s_turn)
{
	float f[8];

	row_unpack<dtype>(*from, f);
#pragma unroll
	for (int p = 0; p < 4; p++) {
		float even = f[2 * p], odd = f[2 * p + 1];
		float2 turn = s_turn[p];

		f[2 * p] = even * turn.x - odd * turn.y;
		f[2 * p + 1] = odd * turn.x + even * turn.y;
	}
	*to = row_pack<dtype>(f);
}

/*
 * Writes eight elements of a latent as codes. 16 lanes hold a group; the first of them also writes the scale.
 */
ROW void put_codes(uint8_t *key, const float f[8], int thread)
{
	float most = 0, scale;
	uint32_t two[4];

#pragma unroll
	for (int i = 0; i < 8; i++)
		most = fmaxf(most, isfinite(f[i]) ? fabsf(f[i]) : 0);
#pragma unroll
	for (int k = 8; k; k /= 2)
		most = fmaxf(most, __shfl_xor_sync(~0u, most, k));
	scale = most < CAIRN_MLA_APPEND_LEAST ? 1 : __fdiv_rn(most, 448);
#pragma unroll
	for (int i = 0; i < 4; i++) {
		float x = isinf(f[2 * i]) ? NAN : f[2 * i], y = isinf(f[2 * i + 1]) ? NAN : f[2 * i + 1];

		two[i] = fp8_narrow(__fdiv_rn(x, scale), __fdiv_rn(y, scale));
	}
	((uint2 *)key)[thread] = make_uint2(two[0] | two[1] << 16, two[2] | two[3] << 16);
	if (thread % 16 == 0)
		((float *)(key + 8 * 16 * 4))[thread / 16] = scale;
}

template <int dtype, int fp8> static __global__ __launch_bounds__(THREADS) void
mla_append_kernel(const __grid_constant__ struct cairn_mla_append_args a)
{
	extern __shared__ float2 s_turn[];
	__shared__ float s_sum[THREADS / 32];
	const int row = (int)blockIdx.x, thread = (int)threadIdx.x, latent_vecs = a.kv_lora_rank / 8;
	const int rope_vecs = a.rope_dim / 8, head_vecs = a.nope_dim / 8 + rope_vecs;
	const int width_vecs = latent_vecs + rope_vecs;
	const uint4 *kv = (const uint4 *)a.latent + (int64_t)row * width_vecs;
	uint4 latent = make_uint4(0, 0, 0, 0), weight = latent, *rope;
	uint8_t *key;
	float f[8], w[8], sum = 0, scale;
	int b = 0;

	if (thread < latent_vecs)
		weight = ((const uint4 *)a.norm_weight)[thread];
	ptx_griddepcontrol_wait();
	if (thread < latent_vecs)
		latent = kv[thread];
	for (int i = 0; i < a.kv.batch; i += THREADS) {
		int j = i + thread + 1;

		b += __syncthreads_count(j <= a.kv.batch && a.qo_indptr[j] <= row);
	}
	ptx_griddepcontrol_launch_dependents();
	if (b >= a.kv.batch)	/* past the last request */
		return;
	key = (uint8_t *)a.kv.k_pages + kv_new_slot(&a.kv, a.qo_indptr, b, row) *
					(fp8 ? CAIRN_MLA_FP8_BYTES : width_vecs * 16);
	rope = (uint4 *)(key + (fp8 ? CAIRN_MLA_FP8_BYTES - 128 : latent_vecs * 16));
	if (thread < a.rope_dim / 2) {
		float c, s;

		angle_cos_sin(__fmul_rn((float)a.positions[row], a.inv_freq[thread]), &c, &s);
		s_turn[thread] = make_float2(c, s);
	}
	row_unpack<dtype>(latent, f);
#pragma unroll
	for (int i = 0; i < 8; i++)
		sum += f[i] * f[i];
#pragma unroll
	for (int k = 16; k; k /= 2)
		sum += __shfl_xor_sync(~0u, sum, k);
	if (thread % 32 == 0)
		s_sum[thread / 32] = sum;
	__syncthreads();
	sum = 0;
#pragma unroll
	for (int i = 0; i < THREADS / 32; i++)
		sum += s_sum[i];
	scale = 1 / sqrtf(sum / (float)a.kv_lora_rank + a.eps);
	if (thread < latent_vecs) {
		row_unpack<dtype>(weight, w);
#pragma unroll
		for (int i = 0; i < 8; i++)
			f[i] = f[i] * scale * w[i];
		if (fp8)
			put_codes(key, f, thread);
		else
			((uint4 *)key)[thread] = row_pack<dtype>(f);
	}
	for (int i = thread; i < (a.num_heads + 1) * rope_vecs; i += THREADS) {
		int head = i / rope_vecs, vec = i - head * rope_vecs;	/* head == num_heads: the key */
		uint4 *q = (uint4 *)a.q + ((int64_t)row * a.num_heads + head) * head_vecs +
			   a.nope_dim / 8 + vec;

		if (head < a.num_heads)
			rotate<dtype>(q, q, s_turn + 4 * vec);
		else
			rotate<dtype>(kv + latent_vecs + vec, rope + vec, s_turn + 4 * vec);
	}
}

template <int dtype> static const void *kernel_of(int fp8)
{
	return fp8 ? (const void *)mla_append_kernel<dtype, 1> : (const void *)mla_append_kernel<dtype, 0>;
}

extern "C" int cairn_mla_append(const struct cairn_mla_append_args *args, void *stream)
{
	struct cairn_launch l = {};
	void *params[] = { (void *)args };

	CAIRN_TRY(cairn_mla_append_check(args));
	if (!args->kv.batch || !args->nnz_qo)
		return 0;
	l.grid[0] = (unsigned int)args->nnz_qo;
	l.block[0] = THREADS;
	l.smem = (unsigned int)(args->rope_dim / 2 * sizeof(float2));
	l.pdl = 1;
	l.stream = stream;
	return cairn_launch(args->dtype == CAIRN_F16 ? kernel_of<CAIRN_F16>(args->kv_fp8) :
			    kernel_of<CAIRN_BF16>(args->kv_fp8), &l, params);
}
