/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm - matrix product with a weight in the layout of Hugging Face checkpoints
 *
 *   out[i,j] = sum_l a[i,l] * b[j,l] + bias[j]
 *
 *   argument   dtype      shape    notes
 *   out        out_dtype  [m, n]   out, 16-byte aligned, may not alias an input
 *   a          dtype      [m, k]   in, 16-byte aligned
 *   b          dtype      [n, k]   in, 16-byte aligned
 *   bias       dtype      [n]      in, optional (NULL)
 *   workspace             bytes    gemm_workspace() bytes, 256-byte aligned, contents undefined
 *
 * Supported:   dtype f16, bf16, f32; out_dtype = dtype, or f32; m, n, k >= 1; k a multiple of 8.
 *              Anything else -EOPNOTSUPP.
 * Numerics:    products exact (f32 inputs: rounded or fused, never TF32), sums in fp32 in any fixed order,
 *              one rounding to out_dtype.
 * Tolerance:   |out - ref| <= (k + 2) 2^-24 (sum_l |a b| + |bias|) + u |ref| (+ half the smallest subnormal
 *              of out_dtype), u the unit roundoff of out_dtype; a subnormal a or b counts as the smallest
 *              normal number (derivation in gemm_ref.c).
 * NaN:         a NaN in row i of a makes row i of out NaN, and one in row j of b, or in bias[j], makes column
 *              j of out NaN; other elements are not affected. An infinity in f16 or bf16 gives the results of
 *              IEEE arithmetic; the effect of an infinite f32 input on its row or column is undefined.
 * sms:         the largest number of SMs that the call may use at a time; 0 or more than the device has: all.
 *              Calls on different streams whose sms add up to at most the device's number can run at the same
 *              time, because each leaves the other's SMs free. Kernels that only prepare or combine data may
 *              use any free SM, and cuBLASLt treats sms as a target. A shape that needs more SMs returns
 *              -EOPNOTSUPP, with the number in the error text. A call with sms is not launched as a
 *              programmatic dependent, which would occupy SMs besides those of the kernel that it follows.
 *              Host tables ignore sms.
 * Determinism: bitwise repeatable for equal arguments; the grouping of sums may depend on sms above m = 4,
 *              and with f32 inputs. The tables cpu and cuda promise more in f16 and bf16 (gemm_rows_test.c):
 *              the bits of a row of out depend neither on the other rows of a nor on the row's place among
 *              them, but may depend on m; in gemm_fixed (fixed/gemm_fixed.h) they do not.
 * Constant b:  b and bias are weights. cairn_gemm() may be launched as a programmatic dependent, and then
 *              reads b before the preceding kernels of the stream have ended. Any writer of b must therefore
 *              be separated from this call by a full ordering point of the stream (a synchronisation, an
 *              event, a copy, a kernel launched without that attribute). a and out need no such separation.
 * Errors:      -EINVAL (null pointer, size < 1, sms < 0), -EOPNOTSUPP, -EIO.
 */
#ifndef CAIRN_GEMM_H
#define CAIRN_GEMM_H

#include <stddef.h>
#include <stdint.h>

struct cairn_exact;

struct cairn_gemm_args {
	size_t size;			/* sizeof(struct cairn_gemm_args) */
	void *out;
	const void *a, *b, *bias;
	void *workspace;
	size_t workspace_bytes;
	int32_t m, n, k;
	int32_t dtype, out_dtype;	/* enum cairn_dtype */
	int32_t sms;			/* SMs that the call may use at a time; 0: all */
};

#ifdef __cplusplus
extern "C" {
#endif

int cairn_gemm(const struct cairn_gemm_args *args, void *stream);
/*
 * Writes the workspace that args need to *bytes. Also prepares cuBLASLt for the shape if cairn_gemm() will
 * call it, so that the call can be captured in a graph afterwards.
 */
int cairn_gemm_workspace(const struct cairn_gemm_args *args, size_t *bytes);
#define CAIRN_GEMM_OWN_M	64
/*
 * The same product by our own kernels, for every shape that they support: m 1..CAIRN_GEMM_OWN_M, f16 and
 * bf16; else -EOPNOTSUPP. Adds residual, out_dtype [m, n], before the rounding; it may be out itself or NULL
 * (none).
 */
int cairn_gemm_own(const struct cairn_gemm_args *args, const void *residual, void *stream);
int cairn_gemm_cublaslt(const struct cairn_gemm_args *args, void *stream);
int cairn_gemm_cublaslt_workspace(const struct cairn_gemm_args *args, size_t *bytes);
int cairn_gemm_cpu(const struct cairn_gemm_args *args, void *stream);
int cairn_gemm_ref(const struct cairn_gemm_args *args, void *stream);
/* Fills exact[0] for out. If m*n*k is above 2^31, only a fixed pseudo-random 1 in 1021 elements is judged. */
int cairn_gemm_exact(const struct cairn_gemm_args *args, struct cairn_exact *exact);
/* Checks args for every implementation here: 0, -EINVAL or -EOPNOTSUPP with the error text set. */
int cairn_gemm_check(const struct cairn_gemm_args *args);
/* The part of cairn_gemm_check() that reads only the scalars, for workspace queries. */
int cairn_gemm_check_shape(const struct cairn_gemm_args *args);

#ifdef __cplusplus
}
#endif
#endif
