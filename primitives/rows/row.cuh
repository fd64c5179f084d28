/* SPDX-License-Identifier: Apache-2.0 */
/*
 * row - helpers of the row kernels: access to rows in 16-byte vectors, and warp sums in a fixed order
 *
 * A vector is a uint4 of row_vec(dtype) elements. Kernels widen it to fp32, compute, and narrow the result
 * with one rounding. dtype is a template parameter, so a row kernel has three instances.
 */
#ifndef CAIRN_ROW_CUH
#define CAIRN_ROW_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include "primitives/base/dtype.h"
#include "primitives/ptx/ptx.cuh"

#define ROW static __device__ __forceinline__

static __host__ __device__ constexpr int row_vec(int dtype)
{
	return dtype == CAIRN_F32 ? 4 : 8;
}

template <int dtype> ROW void row_unpack2(uint32_t v, float f[2])
{
	if (dtype == CAIRN_BF16) {
		f[0] = __uint_as_float(v << 16);
		f[1] = __uint_as_float(v & 0xffff0000u);
	} else {
		__half2_raw raw;
		float2 both;

		raw.x = (unsigned short)v;
		raw.y = (unsigned short)(v >> 16);
		both = __half22float2(__half2(raw));
		f[0] = both.x;
		f[1] = both.y;
	}
}

template <int dtype> ROW uint32_t row_pack2(float lo, float hi)
{
	uint32_t v;

	if (dtype == CAIRN_BF16)
		asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(hi), "f"(lo));
	else
		asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(hi), "f"(lo));
	return v;
}

template <int dtype> ROW void row_unpack(uint4 v, float *f)
{
	if (dtype == CAIRN_F32) {
		f[0] = __uint_as_float(v.x);
		f[1] = __uint_as_float(v.y);
		f[2] = __uint_as_float(v.z);
		f[3] = __uint_as_float(v.w);
	} else {
		row_unpack2<dtype>(v.x, f);
		row_unpack2<dtype>(v.y, f + 2);
		row_unpack2<dtype>(v.z, f + 4);
		row_unpack2<dtype>(v.w, f + 6);
	}
}

template <int dtype> ROW uint4 row_pack(const float *f)
{
	if (dtype == CAIRN_F32)
		return make_uint4(__float_as_uint(f[0]), __float_as_uint(f[1]), __float_as_uint(f[2]),
				  __float_as_uint(f[3]));
	return make_uint4(row_pack2<dtype>(f[0], f[1]), row_pack2<dtype>(f[2], f[3]),
			  row_pack2<dtype>(f[4], f[5]), row_pack2<dtype>(f[6], f[7]));
}

/* Element i of p, at any alignment of the element. */
template <int dtype> ROW float row_element(const void *p, int64_t i)
{
	if (dtype == CAIRN_F32)
		return ((const float *)p)[i];
	if (dtype == CAIRN_BF16)
		return __uint_as_float((uint32_t)((const uint16_t *)p)[i] << 16);
	return __half2float(((const __half *)p)[i]);
}

/* Element i of p for a dtype that is known only at run time. row_store() rounds once. */
ROW float row_load(const void *p, int dtype, int64_t i)
{
	return dtype == CAIRN_F32 ? ((const float *)p)[i] :
	       dtype == CAIRN_BF16 ? row_element<CAIRN_BF16>(p, i) : row_element<CAIRN_F16>(p, i);
}

ROW void row_store(void *p, int dtype, int64_t i, float v)
{
	if (dtype == CAIRN_F32)
		((float *)p)[i] = v;
	else if (dtype == CAIRN_F16)
		((__half *)p)[i] = __float2half_rn(v);
	else
		((__nv_bfloat16 *)p)[i] = __float2bfloat16_rn(v);
}

/*
 * Returns the sum over the warp, with the same bits in every lane: the butterfly adds the same pairs in each.
 */
ROW float row_warp_sum(float v)
{
#pragma unroll
	for (int step = 16; step > 0; step /= 2)
		v += __shfl_xor_sync(0xffffffffu, v, step);
	return v;
}

#endif
