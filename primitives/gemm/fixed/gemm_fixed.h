/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_fixed - matrix product in which no other row, no size and no number of SMs changes a result's bits
 *
 *   sum[i,j] = sum_l a[i,l] * b[j,l] + bias[j]
 *   epilogue CAIRN_GEMM_FIXED_PLAIN:     out[i,j] = sum[i,j],                          width = n
 *            CAIRN_GEMM_FIXED_SILU_MUL:  out[i,j] = silu(sum[i,j]) * sum[i,width+j],   width = n / 2
 *
 *   argument   dtype      shape        notes
 *   out        out_dtype  [m, width]   out, 16-byte aligned, may not alias an input; rows out_stride apart
 *   a          dtype      [m, k]       in, 16-byte aligned; rows a_stride apart
 *   b          dtype      [n, k]       in, 16-byte aligned; for SILU_MUL the rows of gate, then those of up
 *   bias       dtype      [n]          in, optional (NULL)
 *   workspace             bytes        gemm_fixed_workspace() bytes, 256-byte aligned, contents undefined
 *
 * Supported:   dtype f16, bf16; out_dtype = dtype, or f32; m, n, k >= 1; k a multiple of 8; a_stride a
 *              multiple of 8; SILU_MUL: n a multiple of 16. Anything else -EOPNOTSUPP.
 * Numerics:    products exact, sums in fp32, one rounding to out_dtype. SILU_MUL takes the sums in fp32 and
 *              computes in fp32 (silu_mul.h says how); so no result equals that of gemm and silu_mul, between
 *              which gate and up are rounded to dtype.
 * Tolerance:   PLAIN: that of gemm.h. SILU_MUL: 1.1 |up| E + |silu(gate)| E' + 1.1 E E', with E and E' the
 *              errors allowed for the sums of gate and up, and the error of silu_mul.h (derivation in
 *              gemm_fixed_ref.c).
 * NaN:         as in gemm.h and silu_mul.h: other rows and columns are not affected.
 * Bits:        the bits of out[i,j] depend on row i of a, row j of b (and row width + j), their biases, k,
 *              the types and the epilogue, and on nothing else: neither on m, n or sms nor on the place of
 *              the row, of the column or of the arrays, nor on the strides. One implementation on one kind of
 *              device is meant; different ones may differ.
 * sms:         the largest number of SMs that the call may use at a time; 0 or more than the device has: all.
 *              Every number from 1 on is supported. Calls on different streams whose sms add up to at most
 *              the device's number can run at the same time. A call with sms is not launched as a
 *              programmatic dependent. Host tables ignore sms.
 * Constant b:  as in gemm.h: b and bias are weights, which the call may read before the preceding kernels of
 *              the stream have ended.
 * Stream:      asynchronous; no allocation, no synchronisation; can be captured in a graph.
 * Errors:      -EINVAL (null pointer, size < 1, stride that is too short, sms < 0), -EOPNOTSUPP, -EIO.
 */
#ifndef CAIRN_GEMM_FIXED_H
#define CAIRN_GEMM_FIXED_H

#include <stddef.h>
#include <stdint.h>

struct cairn_exact;

enum cairn_gemm_fixed_epilogue {
	CAIRN_GEMM_FIXED_PLAIN = 0,
	CAIRN_GEMM_FIXED_SILU_MUL = 1,
};

struct cairn_gemm_fixed_args {
	size_t size;			/* sizeof(struct cairn_gemm_fixed_args) */
	void *out;
	const void *a, *b, *bias;
	void *workspace;
	size_t workspace_bytes;
	int64_t out_stride, a_stride;	/* elements from one row to the next; 0: packed */
	int32_t m, n, k;
	int32_t dtype, out_dtype;	/* enum cairn_dtype */
	int32_t epilogue;		/* enum cairn_gemm_fixed_epilogue */
	int32_t sms;			/* SMs that the call may use at a time; 0: all */
};

/* Returns the columns of out. */
static inline int32_t cairn_gemm_fixed_width(const struct cairn_gemm_fixed_args *g)
{
	return g->epilogue == CAIRN_GEMM_FIXED_SILU_MUL ? g->n / 2 : g->n;
}

static inline int64_t cairn_gemm_fixed_out_stride(const struct cairn_gemm_fixed_args *g)
{
	return g->out_stride ? g->out_stride : cairn_gemm_fixed_width(g);
}

static inline int64_t cairn_gemm_fixed_a_stride(const struct cairn_gemm_fixed_args *g)
{
	return g->a_stride ? g->a_stride : g->k;
}

#ifdef __cplusplus
extern "C" {
#endif

/* cairn_gemm_fixed() and the tables cpu and ref use no workspace. */
int cairn_gemm_fixed(const struct cairn_gemm_fixed_args *args, void *stream);
int cairn_gemm_fixed_cpu(const struct cairn_gemm_fixed_args *args, void *stream);
int cairn_gemm_fixed_ref(const struct cairn_gemm_fixed_args *args, void *stream);
/* Fills exact[0] for out. If m*n*k is above 2^31, only a fixed pseudo-random 1 in 1021 elements is judged. */
int cairn_gemm_fixed_exact(const struct cairn_gemm_fixed_args *args, struct cairn_exact *exact);
/* Checks args for every implementation here: 0, -EINVAL or -EOPNOTSUPP with the error text set. */
int cairn_gemm_fixed_check(const struct cairn_gemm_fixed_args *args);
/* The part of cairn_gemm_fixed_check() that reads only the scalars, for workspace queries. */
int cairn_gemm_fixed_check_shape(const struct cairn_gemm_fixed_args *args);

#ifdef __cplusplus
}
#endif
#endif
