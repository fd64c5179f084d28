/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_paged_8bit - keys of 8 bits in the decode kernel: from codes in shared memory to fragments
 *
 * A tile holds 16 or 32 keys of head_dim codes. A lane reads 16 codes of a key at once. These are the lane's
 * part of four products. The order of the channels in a product is arbitrary as long as Q has the same order,
 * so Q is loaded in this one. One instruction converts codes to f16, but none converts them to bf16. So if
 * every element of a tile of Q in bf16, times one power of two, is an f16 number, its products with K are
 * computed in f16, which is as exact. ldmatrix transposes V, but moves pairs of codes: the first code of each
 * pair belongs to one n-tile of O, the second to another. So n-tile 2 i holds the even channels of 16 i ..
 * 16 i + 15, and n-tile 2 i + 1 the odd ones.
 *
 * In a row of 128 bytes, the 16-byte piece p of key k lies at p ^ (the three low bits of k, reversed): both
 * eight keys at one piece, which ldmatrix reads together, and two neighbouring keys at four pieces each,
 * which a quarter warp reads together, fall into different banks.
 */
#ifndef CAIRN_ATTN_PAGED_8BIT_CUH
#define CAIRN_ATTN_PAGED_8BIT_CUH

#include <cuda_fp16.h>

#include "fused/attention/paged/attn_paged_walk.cuh"
#include "primitives/ptx/fp8.cuh"

/* Returns the value by which a key's number changes the address of a piece, by XOR. */
template <int head_dim> ATTN_DEV uint32_t attn_code_swizzle(uint32_t key)
{
	if (head_dim == 64)	/* two keys in 128 bytes */
		return (key >> 1 & 3) << 4;
	return (key & 1) << 6 | (key & 2) << 4 | (key & 4) << 2;
}

/* Starts the copy of `keys` keys, as attn_gather() does for 16-bit keys. */
template <int head_dim, int keys, int v_offset>
ATTN_DEV void attn_gather_codes(const struct cairn_attn_paged_args &a, const struct attn_request &r,
				uint32_t s_k, uint32_t slot)
{
	constexpr int pieces = head_dim / 16, per_pass = 32 / pieces;
	int row = threadIdx.x % 32 / pieces, piece = threadIdx.x % pieces;
	uint32_t slot_bytes = a.num_kv_heads * head_dim, column = r.head * head_dim + piece * 16;

	s_k += row * head_dim + (piece * 16 ^ attn_code_swizzle<head_dim>(row));
#pragma unroll
	for (int i = 0; i < keys; i += per_pass) {
		uint32_t from = __shfl_sync(~0u, slot, i + row), bytes = from == ~0u ? 0 : 16;
		uint64_t at = (uint64_t)(from == ~0u ? 0 : from) * slot_bytes + column;
		uint32_t to = (s_k ^ attn_code_swizzle<head_dim>(i)) + i * head_dim;

		ptx_cp_async_cg(to, (const char *)a.kv.k_pages + at, bytes);
		ptx_cp_async_cg(to + v_offset, (const char *)a.kv.v_pages + at, bytes);
	}
}

/*
 * Returns whether codes of V are not converted to bf16, but their bits only moved to the places that they
 * have in bf16 (fp8_place_even_odd()). Each value is then 2^-FP8_PLACED times as large. To keep products far
 * from fp32's subnormals, p is made 2^100 times as large, and the finished O is multiplied by
 * 2^(FP8_PLACED - 100). With head_dim 256, there are not enough registers for this or for Q in f16.
 */
template <int dtype, int head_dim> ATTN_CONST attn_places_codes(void)
{
	return dtype != CAIRN_F16 && head_dim < 256;
}
#define ATTN_CODES_RAISE	100

/* Loads a packed row of Q as half of an A fragment; loads zeros unless `exists`. */
template <int head_dim>
ATTN_DEV void attn_q_for_codes(uint32_t (*q)[4], int half, const uint16_t *from, bool exists)
{
	const uint4 *eight = (const uint4 *)from + threadIdx.x % 4 * 2;

#pragma unroll
	for (int i = 0; i < head_dim / 64; i++) {
#pragma unroll
		for (int j = 0; j < 2; j++) {
			uint4 x = exists ? eight[i * 8 + j] : make_uint4(0, 0, 0, 0);

			q[i * 4 + j * 2][half] = x.x;
			q[i * 4 + j * 2][half + 2] = x.y;
			q[i * 4 + j * 2 + 1][half] = x.z;
			q[i * 4 + j * 2 + 1][half + 2] = x.w;
		}
	}
}

/* Puts the channels of Q into the order of fp8_widen_any(). */
template <int dtype, int head_dim> ATTN_DEV void attn_q_in_order(uint32_t (*q)[4])
{
#pragma unroll
	for (int i = 0; i < head_dim / 16; i++) {
		fp8_reorder<dtype>(&q[i][0], &q[i][2]);
		fp8_reorder<dtype>(&q[i][1], &q[i][3]);
	}
}

/* Multiplies two bf16 numbers by factor and converts them to f16. Sets *off unless the results are exact. */
ATTN_DEV uint32_t attn_q_to_f16(uint32_t two, float factor, bool *off)
{
	float lo = __uint_as_float(two << 16) * factor, hi = __uint_as_float(two & 0xffff0000u) * factor;
	uint32_t r = attn_pack<CAIRN_F16>(lo, hi);
	__half2_raw raw;
	float2 back;

	raw.x = (unsigned short)r;
	raw.y = (unsigned short)(r >> 16);
	back = __half22float2(__half2(raw));
	*off |= back.x != lo || back.y != hi;
	return r;
}

/*
 * Turns the warp's tile of Q into f16, times the power of two that brings its largest element to 2^14 or
 * above, if that is exact, and else puts it into the order of fp8_widen_any(). Every warp of a task has the
 * same tile. Returns the inverse of the power of two in the first case, and 0 in the second.
 */
template <int head_dim> ATTN_DEV float attn_q_in_f16(uint32_t (*q)[4])
{
	uint32_t top = 0;
	bool off = false;
	int up;

#pragma unroll
	for (int i = 0; i < head_dim / 16 * 4; i++) {
		uint32_t two = q[i / 4][i % 4];

		top = max(top, max(two & 0x7fff, two >> 16 & 0x7fff));
	}
	top = __reduce_max_sync(~0u, top) >> 7;		/* its exponent, plus 127 */
	up = 14 + 127 - (int)top;
	/* outside 2^-63 .. 2^64 the scale of the logits could leave fp32; also excludes NaN and infinity */
	off = top < 64 || top > 190;
	if (!off) {
		const float factor = __uint_as_float((uint32_t)(127 + up) << 23);

#pragma unroll
		for (int i = 0; i < head_dim / 16 * 4; i++)
			attn_q_to_f16(q[i / 4][i % 4], factor, &off);
		off = __any_sync(~0u, off);
#pragma unroll
		for (int i = 0; i < head_dim / 16 * 4 && !off; i++)
			q[i / 4][i % 4] = attn_q_to_f16(q[i / 4][i % 4], factor, &off);
		if (!off)
			return __uint_as_float((uint32_t)(127 - up) << 23);
	}
	attn_q_in_order<CAIRN_BF16, head_dim>(q);
	return 0;
}

/* Adds Q K^T of `keys` keys. Each logit has `sums` partial sums, over which its products are divided. */
template <int dtype, int head_dim, int keys, int sums>
ATTN_DEV void attn_qk_codes(float (*s)[keys / 8][4], uint32_t (*q)[4], uint32_t s_k)
{
	const uint32_t lane = threadIdx.x % 32, key = lane / 4;

	s_k += key * head_dim + (lane % 4 * 16 ^ attn_code_swizzle<head_dim>(key));
#pragma unroll
	for (int i = 0; i < head_dim / 64; i++) {
#pragma unroll
		for (int t = 0; t < keys / 8; t++) {
			uint4 codes = ptx_ld_shared_v4((s_k ^ i * 64) + t * 8 * head_dim);
			const uint32_t four[4] = { codes.x, codes.y, codes.z, codes.w };

#pragma unroll
			for (int j = 0; j < 4; j++) {
				uint32_t b[2];

				fp8_widen_any<dtype>(four[j], &b[0], &b[1]);
				attn_mma<dtype>(s[j % sums][t], q[i * 4 + j], b);
			}
		}
	}
}

/* Turns four codes of V, two keys of two channels, into halves of B fragments. */
template <int dtype, int head_dim> ATTN_DEV void attn_v_codes(uint32_t four, uint32_t *even, uint32_t *odd)
{
	uint32_t lo, hi;

	if (attn_places_codes<dtype, head_dim>()) {
		fp8_place_even_odd(four, even, odd);
	} else if (dtype == CAIRN_F16) {
		fp8_widen<dtype>(four, &lo, &hi);
		*even = __byte_perm(lo, hi, 0x5410);
		*odd = __byte_perm(lo, hi, 0x7632);
	} else {
		fp8_widen_even_odd<dtype>(four, even, odd);
	}
}

/* O += P V of 16 keys. */
template <int dtype, int head_dim>
ATTN_DEV void attn_pv_codes(float (*o)[4], const uint32_t p[4], uint32_t s_v)
{
	const uint32_t lane = threadIdx.x % 32, key = lane % 16;

	s_v += key * head_dim + (lane / 16 * 16 ^ attn_code_swizzle<head_dim>(key));
#pragma unroll
	for (int i = 0; i < head_dim / 32; i++) {
		uint32_t pairs[4], even[4], odd[4];

		ptx_ldmatrix_x4_trans(pairs, s_v ^ i * 32);
#pragma unroll
		for (int j = 0; j < 4; j++)
			attn_v_codes<dtype, head_dim>(pairs[j], &even[j], &odd[j]);
		attn_mma<dtype>(o[4 * i], p, even);
		attn_mma<dtype>(o[4 * i + 1], p, odd);
		attn_mma<dtype>(o[4 * i + 2], p, even + 2);
		attn_mma<dtype>(o[4 * i + 3], p, odd + 2);
	}
}

/* Writes one row of O, which has the layout of attn_pv_codes(), as [head_dim]. */
template <int dtype, int head_dim> ATTN_DEV void attn_put_codes_row(float *to, float (*o)[4], int half)
{
	const float up = attn_places_codes<dtype, head_dim>() ? 1 << (FP8_PLACED - ATTN_CODES_RAISE) : 1;
	float4 *four = (float4 *)to + threadIdx.x % 4;

#pragma unroll
	for (int i = 0; i < head_dim / 16; i++)
		four[i * 4] = make_float4(o[2 * i][2 * half] * up, o[2 * i + 1][2 * half] * up,
					  o[2 * i][2 * half + 1] * up, o[2 * i + 1][2 * half + 1] * up);
}

#endif
