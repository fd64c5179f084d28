// SPDX-License-Identifier: Apache-2.0
/*
 * impl_peers - kernels of other libraries behind the same table, for side-by-side benchmarks
 *
 *   gemm, gemm_fixed       cuBLASLt; gemm_fixed without SILU_MUL and strides
 *   gemm_fp8               cuBLASLt, without bias and strides
 *   attn_dense, attn_bwd   cuDNN (conformance/peers)
 *
 * Libraries are looked up at run time; the operations of a missing library return -EOPNOTSUPP with a text
 * that names it. The version string, and with it the bench record of a row, names the library of the latest
 * call.
 */
#include <stdio.h>

#include "conformance/peers/cudnn_attn.h"
#include "conformance/tables/tables.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

static char library[64] = "other libraries";

static int product(const struct cairn_gemm_args *a, void *stream)
{
	snprintf(library, sizeof(library), "cublaslt");
	return cairn_gemm_cublaslt(a, stream);
}

/* With up to 8 rows, the bits must not depend on sms, as those of cuBLASLt do. */
static int gemm(const struct cairn_gemm_args *a, void *stream)
{
	CAIRN_TRY(cairn_gemm_check(a));
	if (a->sms && a->m <= 8 && a->dtype != CAIRN_F32)
		return cairn_error(EOPNOTSUPP, "gemm: sms: with up to 8 rows, cuBLASLt's bits depend on it");
	return product(a, stream);
}

/* The same product; cuBLASLt promises nothing about the bits, and the suite skips what it lacks. */
static struct cairn_gemm_args as_gemm(const struct cairn_gemm_fixed_args *a)
{
	return (struct cairn_gemm_args){
		.size = sizeof(struct cairn_gemm_args), .out = a->out, .a = a->a, .b = a->b, .bias = a->bias,
		.workspace = a->workspace, .workspace_bytes = a->workspace_bytes, .m = a->m, .n = a->n,
		.k = a->k, .dtype = a->dtype, .out_dtype = a->out_dtype, .sms = a->sms,
	};
}

static int gemm_fixed(const struct cairn_gemm_fixed_args *a, void *stream)
{
	const struct cairn_gemm_args g = as_gemm(a);

	CAIRN_TRY(cairn_gemm_fixed_check(a));
	if (a->epilogue != CAIRN_GEMM_FIXED_PLAIN || a->out_stride || a->a_stride)
		return cairn_error(EOPNOTSUPP,
				   "gemm_fixed: epilogue, out_stride, a_stride: not supported by cuBLASLt");
	return product(&g, stream);
}

static int gemm_fixed_workspace(const struct cairn_gemm_fixed_args *a, size_t *bytes)
{
	const struct cairn_gemm_args g = as_gemm(a);

	CAIRN_TRY(cairn_gemm_fixed_check_shape(a));
	return cairn_gemm_cublaslt_workspace(&g, bytes);
}

static int gemm_fp8(const struct cairn_gemm_fp8_args *a, void *stream)
{
	snprintf(library, sizeof(library), "cublaslt");
	return cairn_gemm_fp8_cublaslt(a, stream);
}

static int dense(const struct cairn_attn_dense_args *a, void *stream)
{
	int ret = cairn_attn_dense_cudnn(a, stream);

	if (!ret)
		cairn_cudnn_describe(library, sizeof(library));
	return ret;
}

static int bwd(const struct cairn_attn_bwd_args *a, void *stream)
{
	int ret = cairn_attn_bwd_cudnn(a, stream);

	if (!ret)
		cairn_cudnn_describe(library, sizeof(library));
	return ret;
}

const struct cairn_impl cairn_impl_peers = {
	.size = sizeof(struct cairn_impl),
	.abi_version = CAIRN_ABI_VERSION,
	.name = "peers",
	.version = library,
	.last_error = cairn_last_error,
	.gemm = gemm,
	.gemm_workspace = cairn_gemm_cublaslt_workspace,
	.gemm_fixed = gemm_fixed,
	.gemm_fixed_workspace = gemm_fixed_workspace,
	.gemm_fp8 = gemm_fp8,
	.gemm_fp8_workspace = cairn_gemm_fp8_cublaslt_workspace,
	.attn_dense = dense,
	.attn_dense_workspace = cairn_attn_dense_cudnn_workspace,
	.attn_bwd = bwd,
	.attn_bwd_workspace = cairn_attn_bwd_cudnn_workspace,
};
