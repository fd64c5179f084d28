// SPDX-License-Identifier: Apache-2.0
/*
 * gemm_fp8_cublaslt - gemm_fp8 by NVIDIA's library: the peer of our kernel
 *
 * The library's matrices are column-major: our b is its k x n, which it transposes, and our a its k x m.
 * Scales of rows are its outer vectors, pieces of a its vectors of 128, blocks of b its blocks of 128 x 128,
 * whose rows must have a multiple of four scales. Fast accumulation is off, because the contract demands that
 * sums are promoted to fp32. The first algorithm of its heuristics is taken. It is kept until the shape
 * changes: benchmarks call one shape at a time.
 */
#include <pthread.h>
#include <string.h>

#include "primitives/base/args.h"
#include "primitives/base/dtype.h"
#include "primitives/base/launch.h"
#include "primitives/gemm/fp8/gemm_fp8.h"
#include "primitives/gemm/gemm_lt.h"
#include "primitives/gemm/gemm_lt_api.h"

struct plan_key {
	int32_t device, m, n, k, out_dtype, scale_kind;
	size_t workspace_bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const struct cairn_lt *lt;
static cublasLtHandle_t handle;
static struct {
	struct plan_key key;
	int made;
	cublasLtMatmulDesc_t desc;
	cublasLtMatrixLayout_t a, b, out;
	cublasLtMatmulAlgo_t algo;
} plan;

#define LT(call) do { cublasStatus_t status_ = lt->call; \
		if (status_ != CUBLAS_STATUS_SUCCESS) \
			return status_ == CUBLAS_STATUS_NOT_SUPPORTED || \
			       status_ == CUBLAS_STATUS_INVALID_VALUE ? \
			       cairn_error(EOPNOTSUPP, "gemm_fp8: not supported by %s", #call) : \
			       cairn_error(EIO, "gemm_fp8: %s failed, status %d", #call, (int)status_); \
	} while (0)

static void free_plan(void)
{
	if (plan.desc)
		lt->cublasLtMatmulDescDestroy(plan.desc);
	if (plan.a)
		lt->cublasLtMatrixLayoutDestroy(plan.a);
	if (plan.b)
		lt->cublasLtMatrixLayoutDestroy(plan.b);
	if (plan.out)
		lt->cublasLtMatrixLayoutDestroy(plan.out);
	memset(&plan, 0, sizeof(plan));
}

/* Sets the kinds of scales. The library's A is our b. */
static int set_modes(int scale_kind)
{
	static const int32_t modes[][2] = {
		[CAIRN_FP8_SCALE_ROWS] = { CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F,
					   CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F },
		[CAIRN_FP8_SCALE_BLOCKS] = { CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F,
					     CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F },
		[CAIRN_FP8_SCALE_TENSOR] = { CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F,
					     CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F },
	};

	LT(cublasLtMatmulDescSetAttribute(plan.desc, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &modes[scale_kind][0],
					  sizeof(int32_t)));
	LT(cublasLtMatmulDescSetAttribute(plan.desc, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &modes[scale_kind][1],
					  sizeof(int32_t)));
	return 0;
}

static int set_pointers(const void *b_scale, const void *a_scale)
{
	LT(cublasLtMatmulDescSetAttribute(plan.desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &b_scale,
					  sizeof(b_scale)));
	LT(cublasLtMatmulDescSetAttribute(plan.desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &a_scale,
					  sizeof(a_scale)));
	return 0;
}

static int describe(const struct plan_key *key)
{
	const cudaDataType_t out = key->out_dtype == CAIRN_BF16 ? CUDA_R_16BF :
				   key->out_dtype == CAIRN_F16 ? CUDA_R_16F : CUDA_R_32F;
	const cublasOperation_t transpose = CUBLAS_OP_T;
	const uint64_t m = (uint64_t)key->m, n = (uint64_t)key->n, k = (uint64_t)key->k;

	LT(cublasLtMatmulDescCreate(&plan.desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
	LT(cublasLtMatmulDescSetAttribute(plan.desc, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
					  sizeof(transpose)));
	CAIRN_TRY(set_modes(key->scale_kind));
	/* the heuristics look at the pointers' alignment only */
	CAIRN_TRY(set_pointers((const void *)(uintptr_t)256, (const void *)(uintptr_t)256));
	LT(cublasLtMatrixLayoutCreate(&plan.b, CUDA_R_8F_E4M3, k, n, key->k));
	LT(cublasLtMatrixLayoutCreate(&plan.a, CUDA_R_8F_E4M3, k, m, key->k));
	LT(cublasLtMatrixLayoutCreate(&plan.out, out, n, m, key->n));
	return 0;
}

static int choose(const struct plan_key *key)
{
	cublasLtMatmulHeuristicResult_t found;
	cublasLtMatmulPreference_t pref;
	cublasStatus_t status;
	int num = 0;

	LT(cublasLtMatmulPreferenceCreate(&pref));
	status = lt->cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
							  &key->workspace_bytes, sizeof(size_t));
	if (status == CUBLAS_STATUS_SUCCESS)
		status = lt->cublasLtMatmulAlgoGetHeuristic(handle, plan.desc, plan.b, plan.a, plan.out,
							    plan.out, pref, 1, &found, &num);
	lt->cublasLtMatmulPreferenceDestroy(pref);
	if (status != CUBLAS_STATUS_SUCCESS || num < 1 || found.state != CUBLAS_STATUS_SUCCESS)
		return cairn_error(EOPNOTSUPP,
				   "gemm_fp8: cuBLASLt has no algorithm for m %d n %d k %d, scale_kind %d",
				   key->m, key->n, key->k, key->scale_kind);
	plan.algo = found.algo;
	return 0;
}

/* The caller holds the lock. */
static int get_plan(const struct cairn_gemm_fp8_args *g, size_t workspace_bytes)
{
	struct plan_key key;
	int device, ret;

	if (g->a_scale_stride && g->a_scale_stride != g->m)
		return cairn_error(EOPNOTSUPP, "gemm_fp8: a_scale_stride: cuBLASLt supports only 0 or m");
	if (g->scale_kind == CAIRN_FP8_SCALE_BLOCKS && (g->k + 127) / 128 % 4)
		return cairn_error(EOPNOTSUPP, "gemm_fp8: k: cuBLASLt needs a multiple of 4 blocks of 128");
	CAIRN_TRY(cairn_lt_open(&lt, &handle, &device));
	memset(&key, 0, sizeof(key));	/* padding too, because keys are compared by memcmp() */
	key.device = device;
	key.m = g->m;
	key.n = g->n;
	key.k = g->k;
	key.out_dtype = g->out_dtype;
	key.scale_kind = g->scale_kind;
	key.workspace_bytes = workspace_bytes;
	if (plan.made && !memcmp(&plan.key, &key, sizeof(key)))
		return 0;
	free_plan();
	ret = describe(&key);
	if (!ret)
		ret = choose(&key);
	if (ret) {
		free_plan();
		return ret;
	}
	plan.key = key;
	plan.made = 1;
	return 0;
}

static int matmul(const struct cairn_gemm_fp8_args *g, void *stream)
{
	const float one = 1, zero = 0;

	CAIRN_TRY(get_plan(g, g->workspace ? g->workspace_bytes : 0));
	CAIRN_TRY(set_pointers(g->b_scale, g->a_scale));
	LT(cublasLtMatmul(handle, plan.desc, &one, g->b, plan.b, g->a, plan.a, &zero, g->out, plan.out,
			  g->out, plan.out, &plan.algo, g->workspace, plan.key.workspace_bytes, stream));
	return 0;
}

int cairn_gemm_fp8_cublaslt(const struct cairn_gemm_fp8_args *args, void *stream)
{
	struct cairn_gemm_fp8_args g;
	int ret;

	CAIRN_TRY(cairn_gemm_fp8_check(args));
	cairn_copy_args(&g, args, sizeof(g));
	if (g.bias || g.sms)
		return cairn_error(EOPNOTSUPP, "gemm_fp8: bias, sms: not supported with cuBLASLt");
	pthread_mutex_lock(&lock);
	ret = matmul(&g, stream);
	pthread_mutex_unlock(&lock);
	return ret;
}

int cairn_gemm_fp8_cublaslt_workspace(const struct cairn_gemm_fp8_args *args, size_t *bytes)
{
	struct cairn_gemm_fp8_args g;
	int ret;

	CAIRN_TRY(cairn_gemm_fp8_check_shape(args));
	cairn_copy_args(&g, args, sizeof(g));
	pthread_mutex_lock(&lock);
	ret = get_plan(&g, CAIRN_GEMM_LT_WORKSPACE);
	pthread_mutex_unlock(&lock);
	if (ret)
		return ret;
	*bytes = CAIRN_GEMM_LT_WORKSPACE;
	return 0;
}
