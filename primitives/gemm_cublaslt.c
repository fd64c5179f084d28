// SPDX-License-Identifier: Apache-2.0
/*
 * gemm_cublaslt - gemm by NVIDIA's library: the peer of our kernels, and what cairn_gemm() calls for large m
 *
 * The library is looked up at run time (libcublasLt.so.13, then .12, where the loader looks and in
 * /usr/local/cuda); where it is missing, everything here is -EOPNOTSUPP. Nothing of it is linked.
 *
 * A plan is the library's description of one shape, alignment and epilogue with the first algorithm its
 * heuristics name. It is made at the first call of a shape, without touching the device, and kept: 256 plans,
 * the one unused for longest makes room. One lock covers look-up and launch (a few microseconds of host
 * time), so that no plan is thrown away under a launch. Plans belong to a device.
 *
 * Algorithms are restricted to those that keep the contract: sums in fp32 throughout, and split-k partial
 * sums, if any, in fp32 in the workspace and in a fixed order (CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE): the
 * library's default allows partial sums in the output type as well, which would round twice. Trying all
 * candidates on the device would sometimes find a faster one; it cannot be done while a graph is
 * captured, so the heuristics' choice is the rule.
 */
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "dtype.h"
#include "gemm.h"
#include "launch.h"

#define WORKSPACE_BYTES	(32u << 20)	/* NVIDIA's advice for Hopper */
#define MAX_PLANS	256
#define MAX_DEVICES	16

#define FUNCTIONS(F) \
	F(cublasLtCreate) F(cublasLtMatmul) F(cublasLtMatmulAlgoGetHeuristic) \
	F(cublasLtMatmulDescCreate) F(cublasLtMatmulDescDestroy) F(cublasLtMatmulDescSetAttribute) \
	F(cublasLtMatrixLayoutCreate) F(cublasLtMatrixLayoutDestroy) \
	F(cublasLtMatmulPreferenceCreate) F(cublasLtMatmulPreferenceDestroy) \
	F(cublasLtMatmulPreferenceSetAttribute)

#define F(name) __typeof__(name) *name;
static struct { FUNCTIONS(F) } lt;
#undef F

struct plan_key {
	int32_t device, m, n, k, dtype, out_dtype, has_bias;
	uint32_t align_out, align_a, align_b, align_bias;
	size_t workspace_bytes;
};

struct plan {
	struct plan_key key;
	uint64_t used;			/* when last, 0: free */
	cublasLtMatmulDesc_t desc;
	cublasLtMatrixLayout_t a, b, out;
	cublasLtMatmulAlgo_t algo;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct plan plans[MAX_PLANS];
static cublasLtHandle_t handles[MAX_DEVICES];
static uint64_t now;
static int loaded;			/* 1: yes, -1: not to be had */

static int load(void)
{
	static const char *const names[] = { "libcublasLt.so.13", "libcublasLt.so.12",
		"/usr/local/cuda/lib64/libcublasLt.so.13", "/usr/local/cuda/lib64/libcublasLt.so.12" };
	static const char *const symbols[] = {
#define F(name) #name,
		FUNCTIONS(F)
#undef F
	};
	void *lib = NULL, **table = (void **)&lt;

	if (loaded)
		goto out;
	loaded = -1;
	for (size_t i = 0; i < sizeof(names) / sizeof(*names) && !lib; i++)
		lib = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
	if (!lib)
		goto out;
	for (size_t i = 0; i < sizeof(symbols) / sizeof(*symbols); i++) {
		table[i] = dlsym(lib, symbols[i]);
		if (!table[i])
			goto out;
	}
	loaded = 1;
out:
	if (loaded < 0)
		return cairn_error(EOPNOTSUPP, "gemm: cuBLASLt (libcublasLt.so.13 or .12) is not on this machine");
	return 0;
}

static int lt_error(cublasStatus_t status, const char *what)
{
	/* the arguments have been checked: what it calls invalid is a combination that it does not take */
	if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE)
		return cairn_error(EOPNOTSUPP, "gemm: cuBLASLt does not support this shape (%s)", what);
	return cairn_error(status == CUBLAS_STATUS_ALLOC_FAILED ? ENOMEM : EIO, "gemm: %s failed, status %d", what,
			   (int)status);
}

#define LT(call) do { cublasStatus_t status_ = lt.call; \
		if (status_ != CUBLAS_STATUS_SUCCESS) { ret = lt_error(status_, #call); goto out_free; } } while (0)

static uint32_t alignment(const void *p)
{
	uintptr_t bit = (uintptr_t)p & -(uintptr_t)p;

	return !p || bit > 256 ? 256 : (uint32_t)bit;
}

static cudaDataType_t data_type(int dtype)
{
	return dtype == CAIRN_F16 ? CUDA_R_16F : dtype == CAIRN_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

static void free_plan(struct plan *p)
{
	if (p->desc)
		lt.cublasLtMatmulDescDestroy(p->desc);
	if (p->a)
		lt.cublasLtMatrixLayoutDestroy(p->a);
	if (p->b)
		lt.cublasLtMatrixLayoutDestroy(p->b);
	if (p->out)
		lt.cublasLtMatrixLayoutDestroy(p->out);
	memset(p, 0, sizeof(*p));
}

/*
 * The library's matrices are column-major: out as it lies in memory is its n x m, a its k x m, b its k x n,
 * so out = b^T a there.
 */
static int make_plan(struct plan *p, const struct plan_key *key)
{
	cublasOperation_t transpose = CUBLAS_OP_T;
	cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
	uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
	cudaDataType_t in = data_type(key->dtype), out = data_type(key->out_dtype);
	cublasLtMatmulPreference_t pref = NULL;
	cublasLtMatmulHeuristicResult_t found[8];
	int num = 0, ret = 0;

	memset(p, 0, sizeof(*p));
	LT(cublasLtMatmulDescCreate(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
	LT(cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof(transpose)));
	if (key->has_bias) {
		LT(cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
						  sizeof(epilogue)));
		LT(cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &in, sizeof(in)));
	}
	LT(cublasLtMatrixLayoutCreate(&p->b, in, key->k, key->n, key->k));
	LT(cublasLtMatrixLayoutCreate(&p->a, in, key->k, key->m, key->k));
	LT(cublasLtMatrixLayoutCreate(&p->out, out, key->n, key->m, key->n));
	LT(cublasLtMatmulPreferenceCreate(&pref));
	LT(cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
						&key->workspace_bytes, sizeof(key->workspace_bytes)));
	LT(cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes,
						sizeof(schemes)));
	LT(cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &key->align_b,
						sizeof(key->align_b)));
	LT(cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &key->align_a,
						sizeof(key->align_a)));
	LT(cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &key->align_out,
						sizeof(key->align_out)));
	LT(cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &key->align_out,
						sizeof(key->align_out)));
	LT(cublasLtMatmulAlgoGetHeuristic(handles[key->device], p->desc, p->b, p->a, p->out, p->out, pref,
					  sizeof(found) / sizeof(*found), found, &num));
	ret = cairn_error(EOPNOTSUPP, "gemm: cuBLASLt has no algorithm for m %d n %d k %d %s to %s%s", key->m, key->n,
			  key->k, cairn_dtype_name(key->dtype), cairn_dtype_name(key->out_dtype),
			  key->has_bias ? " with bias" : "");
	for (int i = 0; i < num && ret; i++) {
		if (found[i].state != CUBLAS_STATUS_SUCCESS)
			continue;
		p->algo = found[i].algo;
		ret = 0;
	}
out_free:
	if (pref)
		lt.cublasLtMatmulPreferenceDestroy(pref);
	if (ret) {
		free_plan(p);
		return ret;
	}
	p->key = *key;
	return 0;
}

/* With the lock held. */
static int get_plan(const struct cairn_gemm_args *args, struct plan **out)
{
	struct plan_key key;
	struct plan *oldest = &plans[0];
	int device;

	CAIRN_TRY(load());
	CAIRN_CUDA(cudaGetDevice(&device));
	if (device >= MAX_DEVICES)
		return cairn_error(EOPNOTSUPP, "gemm: device %d is over %d", device, MAX_DEVICES - 1);
	if (!handles[device]) {
		cublasStatus_t status = lt.cublasLtCreate(&handles[device]);

		if (status != CUBLAS_STATUS_SUCCESS) {
			handles[device] = NULL;
			return lt_error(status, "cublasLtCreate");
		}
	}
	memset(&key, 0, sizeof(key));		/* padding too: keys are compared as bytes */
	key.device = device;
	key.m = args->m;
	key.n = args->n;
	key.k = args->k;
	key.dtype = args->dtype;
	key.out_dtype = args->out_dtype;
	key.has_bias = !!args->bias;
	key.align_out = alignment(args->out);
	key.align_a = alignment(args->a);
	key.align_b = alignment(args->b);
	key.align_bias = alignment(args->bias);
	key.workspace_bytes = args->workspace ? args->workspace_bytes : 0;
	for (int i = 0; i < MAX_PLANS; i++) {
		struct plan *p = &plans[i];

		if (p->used && !memcmp(&p->key, &key, sizeof(key))) {
			p->used = ++now;
			*out = p;
			return 0;
		}
		if (p->used < oldest->used)
			oldest = p;
	}
	free_plan(oldest);
	CAIRN_TRY(make_plan(oldest, &key));
	oldest->used = ++now;
	*out = oldest;
	return 0;
}

static int matmul(const struct cairn_gemm_args *args, void *stream)
{
	const float one = 1, zero = 0;
	struct plan *p;
	int ret = 0;

	CAIRN_TRY(get_plan(args, &p));
	if (args->bias)
		LT(cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &args->bias,
						  sizeof(args->bias)));
	LT(cublasLtMatmul(handles[p->key.device], p->desc, &one, args->b, p->b, args->a, p->a, &zero, args->out, p->out,
			  args->out, p->out, &p->algo, args->workspace, p->key.workspace_bytes, stream));
out_free:
	return ret;
}

int cairn_gemm_cublaslt(const struct cairn_gemm_args *args, void *stream)
{
	int ret;

	CAIRN_TRY(cairn_gemm_check(args));
	pthread_mutex_lock(&lock);
	ret = matmul(args, stream);
	pthread_mutex_unlock(&lock);
	return ret;
}

int cairn_gemm_cublaslt_workspace(const struct cairn_gemm_args *args, size_t *bytes)
{
	struct cairn_gemm_args with = *args;
	struct plan *p;
	int ret;

	CAIRN_TRY(cairn_gemm_check(args));
	with.workspace = (void *)(uintptr_t)256;	/* only its alignment and size matter to a plan */
	with.workspace_bytes = WORKSPACE_BYTES;
	pthread_mutex_lock(&lock);
	ret = get_plan(&with, &p);
	pthread_mutex_unlock(&lock);
	if (ret)
		return ret;
	*bytes = WORKSPACE_BYTES;
	return 0;
}
