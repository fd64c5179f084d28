/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dtype - element types and their conversions on the host
 *
 * Every narrowing rounds once, to nearest even, from the full double, so a reference that computes in double
 * and stores bf16 never rounds twice.
 */
#ifndef CAIRN_DTYPE_H
#define CAIRN_DTYPE_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum cairn_dtype {
	CAIRN_F32 = 0,
	CAIRN_F16 = 1,
	CAIRN_BF16 = 2,
	CAIRN_I32 = 3,
	CAIRN_I64 = 4,
	CAIRN_U8 = 5,
};

static inline size_t cairn_dtype_bytes(int dtype)
{
	switch (dtype) {
	case CAIRN_F32:
	case CAIRN_I32:
		return 4;
	case CAIRN_F16:
	case CAIRN_BF16:
		return 2;
	case CAIRN_I64:
		return 8;
	case CAIRN_U8:
		return 1;
	}
	return 0;
}

static inline const char *cairn_dtype_name(int dtype)
{
	static const char *const names[] = { "f32", "f16", "bf16", "i32", "i64", "u8" };

	return dtype >= 0 && dtype <= CAIRN_U8 ? names[dtype] : "?";
}

static inline int cairn_dtype_is_float(int dtype)
{
	return dtype == CAIRN_F32 || dtype == CAIRN_F16 || dtype == CAIRN_BF16;
}

/* Unit roundoff: |round(x) - x| <= roundoff * |x| in the normal range. */
static inline double cairn_dtype_roundoff(int dtype)
{
	return dtype == CAIRN_F16 ? 0x1p-11 : dtype == CAIRN_BF16 ? 0x1p-8 : 0x1p-24;
}

/* Half the spacing of the subnormals, which bounds the rounding error below the normal range. */
static inline double cairn_dtype_tiny(int dtype)
{
	return dtype == CAIRN_F16 ? 0x1p-25 : dtype == CAIRN_BF16 ? 0x1p-134 : 0x1p-150;
}

#ifndef __cplusplus	/* The rest is for host C; kernels use the conversion instructions. */

static inline float cairn_bf16_to_float(uint16_t h)
{
	uint32_t bits = (uint32_t)h << 16;
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

static inline uint16_t cairn_double_to_bf16(double d)
{
	float f = (float)d;
	uint32_t bits;

	if (isnan(d))
		return 0x7fff;
	memcpy(&bits, &f, sizeof(bits));
	/*
	 * (float)d may be a tie although d is not: step one float towards d, so that d is rounded only once
	 */
	if ((bits & 0xffff) == 0x8000 && (double)f != d)
		bits += fabs(d) > fabs((double)f) ? 1 : -1u;
	bits += 0x7fff + ((bits >> 16) & 1);
	return (uint16_t)(bits >> 16);
}

/*
 * Neither conversion has branches, so compilers vectorise loops over them; a _Float16 cast would call a
 * function.
 */
static inline float cairn_f16_to_float(uint16_t h)
{
	uint32_t bits = (uint32_t)(h & 0x7fff) << 13;
	float f;

	memcpy(&f, &bits, sizeof(f));
	f *= 0x1p112f;		/* converts the exponent bias from 15 to 127; normalises subnormals */
	memcpy(&bits, &f, sizeof(bits));
	bits = ((h & 0x7c00) == 0x7c00 ? bits | 0x7f800000 : bits) | (uint32_t)(h & 0x8000) << 16;
	memcpy(&f, &bits, sizeof(f));
	return f;
}

static inline uint16_t cairn_double_to_f16(double d)
{
	uint64_t bits, small, normal, sign;
	double shifted;

	memcpy(&bits, &d, sizeof(bits));
	sign = bits >> 48 & 0x8000;
	bits &= ~0ull >> 1;
	memcpy(&shifted, &bits, sizeof(shifted));
	shifted += 0x1p28;	/* floats near it have the spacing of f16's subnormals, 2^-24 */
	memcpy(&small, &shifted, sizeof(small));
	normal = ((bits + 0x1ffffffffff + (bits >> 42 & 1)) >> 42) - ((1023 - 15) << 10);
	normal = normal < 0x7c00 ? normal : 0x7c00;
	if (bits > 0x7ff0000000000000)	/* NaN */
		normal = 0x7e00 | (bits >> 42 & 0x3ff);
	return (uint16_t)(sign | (bits < 0x3f10000000000000 /* 2^-14 */ ? small & 0x7ff : normal));
}

/* Reads element i of an array of dtype as a double; cairn_store() writes it, rounded to nearest even. */
static inline double cairn_load(const void *p, int dtype, int64_t i)
{
	switch (dtype) {
	case CAIRN_F32:
		return ((const float *)p)[i];
	case CAIRN_F16:
		return cairn_f16_to_float(((const uint16_t *)p)[i]);
	case CAIRN_BF16:
		return cairn_bf16_to_float(((const uint16_t *)p)[i]);
	case CAIRN_I32:
		return ((const int32_t *)p)[i];
	case CAIRN_I64:
		return (double)((const int64_t *)p)[i];
	default:
		return ((const uint8_t *)p)[i];
	}
}

static inline void cairn_store(void *p, int dtype, int64_t i, double v)
{
	switch (dtype) {
	case CAIRN_F32:
		((float *)p)[i] = (float)v;
		break;
	case CAIRN_F16:
		((uint16_t *)p)[i] = cairn_double_to_f16(v);
		break;
	case CAIRN_BF16:
		((uint16_t *)p)[i] = cairn_double_to_bf16(v);
		break;
	case CAIRN_I32:
		((int32_t *)p)[i] = (int32_t)v;
		break;
	case CAIRN_I64:
		((int64_t *)p)[i] = (int64_t)v;
		break;
	default:
		((uint8_t *)p)[i] = (uint8_t)v;
	}
}

/* Converts elements [first, first + n) of an array of a float dtype to float, for the blocked CPU code. */
static inline void cairn_load_row(float *dst, const void *p, int dtype, int64_t first, int64_t n)
{
	for (int64_t i = 0; i < n; i++) {
		if (dtype == CAIRN_F32)
			dst[i] = ((const float *)p)[first + i];
		else if (dtype == CAIRN_BF16)
			dst[i] = cairn_bf16_to_float(((const uint16_t *)p)[first + i]);
		else
			dst[i] = cairn_f16_to_float(((const uint16_t *)p)[first + i]);
	}
}

/* As cairn_double_to_bf16(), for a float. It needs no branch, so compilers vectorise loops over it. */
static inline uint16_t cairn_float_to_bf16(float f)
{
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	bits = (bits & 0x7fffffff) > 0x7f800000 ? 0x7fff0000 : bits + 0x7fff + (bits >> 16 & 1);
	return (uint16_t)(bits >> 16);
}

/* The inverse of cairn_load_row(): writes n numbers, each rounded as cairn_store() does. */
static inline void cairn_store_row(void *p, int dtype, int64_t first, const float *src, int64_t n)
{
	if (dtype == CAIRN_BF16)
		for (int64_t i = 0; i < n; i++)
			((uint16_t *)p)[first + i] = cairn_float_to_bf16(src[i]);
	else if (dtype == CAIRN_F16)
		for (int64_t i = 0; i < n; i++)
			((uint16_t *)p)[first + i] = cairn_double_to_f16((double)src[i]);
	else
		memcpy((float *)p + first, src, (size_t)n * sizeof(*src));
}

#endif /* !__cplusplus */

/*
 * The reference's answer for the judge: for each element of an output, the exact value in double and the
 * largest error that a correct implementation may make. If bound is INFINITY and val is finite, the element
 * only has to be finite (used where a full reference would take minutes, see gemm). If bound is INFINITY and
 * val is NaN, the contract leaves the element undefined, and it is not judged.
 */
struct cairn_exact {
	double *val;		/* one per element of the output */
	double *bound;		/* largest |got - val|, one per element */
	/* only elements of these ranges are judged, and val and bound have memory for these alone */
	const struct cairn_range {
		int64_t first, count;
	} *wanted;
	int num_wanted;		/* 0: all elements */
};

/* Returns whether any of the elements [first, first + count) is judged. */
static inline int cairn_is_wanted(const struct cairn_exact *e, int64_t first, int64_t count)
{
	int wanted = !e->num_wanted;

	for (int i = 0; i < e->num_wanted; i++)
		wanted |= first < e->wanted[i].first + e->wanted[i].count &&
			  first + count > e->wanted[i].first;
	return wanted;
}

#endif
