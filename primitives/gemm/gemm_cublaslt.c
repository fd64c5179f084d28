// SPDX-License-Identifier: Apache-2.0
/*
 * gemm_cublaslt - gemm by NVIDIA's library: the peer of our kernels, and cairn_gemm()'s choice for large m
 *
 * The library is loaded at run time (libcublasLt.so.13, then .12, from the loader's path and from
 * /usr/local/cuda). If it is missing, every function here returns -EOPNOTSUPP. Cairn does not link with it.
 *
 * A plan is the library's description of one shape, alignment, epilogue and sms, with the first algorithm
 * that its heuristics list. It is made at the first call of a shape, without using the device, and cached.
 * The cache holds 256 plans and evicts the least recently used one. One lock covers look-up and launch (a few
 * microseconds of host time), so that no plan is evicted during a launch. A plan belongs to one device.
 *
 * Algorithms are restricted to those that keep the contract: all sums in fp32, and split-k partial sums, if
 * any, in fp32 in the workspace and in a fixed order (CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE). The library's
 * default also allows partial sums in the output type, which would round twice. Timing all candidates on the
 * device sometimes finds a faster one, but is impossible while a graph is captured, so cairn_gemm() uses the
 * first one listed. cairn_gemm_lt() can use any of them, and gemm_trial.c times them.
 */
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "primitives/base/args.h"
#include "primitives/base/dtype.h"
#include "primitives/gemm/gemm.h"
#include "primitives/gemm/gemm_lt.h"
#include "primitives/gemm/gemm_lt_api.h"
#include "primitives/base/launch.h"
#include "primitives/base/optional.h"

#define MAX_PLANS	256
#define MAX_DEVICES	16

static struct cairn_lt lt;

/*
 * Everything that a plan depends on; the members are those of struct cairn_gemm_lt. Alignments are in bytes.
 */
struct plan_key {
	int32_t device, m, n, k, dtype, out_dtype, has_bias, has_residual, heads, b_kn, algo, sms;
	uint32_t align_out, align_a, align_b, align_bias;
	int64_t out_head, a_head, b_head, out_row, a_row, b_row;
	size_t workspace_bytes;
};

struct plan {
	struct plan_key key;
	uint64_t used;			/* value of `now` at the last use; 0: free */
	cublasLtMatmulDesc_t desc;
	cublasLtMatrixLayout_t a, b, out;
	cublasLtMatmulAlgo_t algo;
	int num_algos;			/* algorithms that the heuristics listed */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct plan plans[MAX_PLANS];
static cublasLtHandle_t handles[MAX_DEVICES];
static uint64_t now;
static int loaded;			/* 1: yes, -1: the library is missing */

static int load(void)
{
	static const char *const symbols[] = {
#define F(name) #name,
		CAIRN_LT_FUNCTIONS(F)
#undef F
	};
	void *lib, **table = (void **)&lt;

	if (loaded)
		goto out;
	loaded = -1;
	lib = cairn_optional_open(CAIRN_OPTIONAL_CUBLASLT);
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
		return cairn_error(EOPNOTSUPP,
				   "gemm: cuBLASLt (libcublasLt.so.13 or .12) is not on this machine");
	return 0;
}

static int lt_error(cublasStatus_t status, const char *what)
{
	/* the arguments have been checked, so "invalid" means a combination that cuBLASLt does not support */
	if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE)
		return cairn_error(EOPNOTSUPP, "gemm: cuBLASLt does not support this shape (%s)", what);
	return cairn_error(status == CUBLAS_STATUS_ALLOC_FAILED ? ENOMEM : EIO, "gemm: %s failed, status %d",
			   what, (int)status);
}

#define LT(call) do { cublasStatus_t status_ = lt.call; \
		if (status_ != CUBLAS_STATUS_SUCCESS) { \
			ret = lt_error(status_, #call); \
			goto out_free; \
		} } while (0)

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

/* rows x cols in the library's column-major order; a column of the library is one of our rows. */
static int make_layout(cublasLtMatrixLayout_t *layout, cudaDataType_t type, int64_t rows, int64_t cols,
		       int64_t step, int32_t heads, int64_t head)
{
	int ret = 0;

	LT(cublasLtMatrixLayoutCreate(layout, type, (uint64_t)rows, (uint64_t)cols, step));
	if (heads > 1) {
		LT(cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &heads,
						    sizeof(heads)));
		LT(cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
						    &head, sizeof(head)));
	}
out_free:
	return ret;
}

static int make_preference(cublasLtMatmulPreference_t *pref, const struct plan_key *key)
{
	const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
	const struct {
		cublasLtMatmulPreferenceAttributes_t attr;
		const void *value;
		size_t bytes;
	} wishes[] = {
		{ CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &key->workspace_bytes,
		  sizeof(key->workspace_bytes) },
		{ CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof(schemes) },
		{ CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &key->align_b, sizeof(key->align_b) },
		{ CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &key->align_a, sizeof(key->align_a) },
		{ CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &key->align_out, sizeof(key->align_out) },
		{ CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &key->align_out, sizeof(key->align_out) },
	};
	int ret = 0;

	LT(cublasLtMatmulPreferenceCreate(pref));
	for (size_t i = 0; i < sizeof(wishes) / sizeof(*wishes); i++)
		LT(cublasLtMatmulPreferenceSetAttribute(*pref, wishes[i].attr, wishes[i].value,
							wishes[i].bytes));
out_free:
	return ret;
}

/*
 * The library's matrices are column-major: our out in memory is its n x m, a its k x m and b its k x n, so
 * the library computes out = b^T a. A b of [k, n] is its n x k, and out = b a.
 */
static int make_plan(struct plan *p, const struct plan_key *key)
{
	cublasOperation_t transpose = key->b_kn ? CUBLAS_OP_N : CUBLAS_OP_T;
	cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
	cudaDataType_t in = data_type(key->dtype), out = data_type(key->out_dtype);
	cublasLtMatmulHeuristicResult_t found[CAIRN_GEMM_LT_ALGOS];
	int num = 0, ret = 0, wanted = key->algo < 0 ? 0 : key->algo;
	cublasLtMatmulPreference_t pref = NULL;

	memset(p, 0, sizeof(*p));
	LT(cublasLtMatmulDescCreate(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
	LT(cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
					  sizeof(transpose)));
	if (key->has_bias) {
		LT(cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
						  sizeof(epilogue)));
		LT(cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
						  &in, sizeof(in)));
	}
	if (key->sms)
		LT(cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &key->sms,
						  sizeof(key->sms)));
	ret = make_layout(&p->b, in, key->b_kn ? key->n : key->k, key->b_kn ? key->k : key->n, key->b_row,
			  key->heads, key->b_head);
	if (!ret)
		ret = make_layout(&p->a, in, key->k, key->m, key->a_row, key->heads, key->a_head);
	if (!ret)
		ret = make_layout(&p->out, out, key->n, key->m, key->out_row, key->heads, key->out_head);
	if (!ret)
		ret = make_preference(&pref, key);
	if (ret)
		goto out_free;
	LT(cublasLtMatmulAlgoGetHeuristic(handles[key->device], p->desc, p->b, p->a, p->out, p->out, pref,
					  key->algo < 0 ? 8 : CAIRN_GEMM_LT_ALGOS, found, &num));
	ret = cairn_error(EOPNOTSUPP, "gemm: cuBLASLt has no algorithm %d for m %d n %d k %d %s to %s%s",
			  wanted, key->m, key->n, key->k, cairn_dtype_name(key->dtype),
			  cairn_dtype_name(key->out_dtype), key->has_bias ? " with bias" : "");
	for (int i = 0; i < num; i++) {
		if (found[i].state != CUBLAS_STATUS_SUCCESS)
			continue;
		if (p->num_algos++ != wanted)
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

static int64_t or_packed(int64_t step, int64_t packed)
{
	return step ? step : packed;
}

/* Zeroes padding bytes too, because keys are compared by memcmp(). */
static void make_key(struct plan_key *key, const struct cairn_gemm_lt *p, int device, int sms)
{
	const struct cairn_gemm_args *g = &p->gemm;
	int any = p->algo < 0;	/* the list of numbered algorithms must not depend on addresses */

	memset(key, 0, sizeof(*key));
	key->device = device;
	key->m = g->m;
	key->n = g->n;
	key->k = g->k;
	key->dtype = g->dtype;
	key->out_dtype = g->out_dtype;
	key->has_bias = !!g->bias;
	key->has_residual = !!p->residual;
	key->heads = p->heads > 1 ? p->heads : 1;
	key->b_kn = p->b_kn;
	key->algo = p->algo;
	key->sms = sms;
	key->align_out = any ? alignment(g->out) : 16;
	key->align_a = any ? alignment(g->a) : 16;
	key->align_b = any ? alignment(g->b) : 16;
	key->align_bias = any ? alignment(g->bias) : 16;
	key->out_row = or_packed(p->out_row, g->n);
	key->a_row = or_packed(p->a_row, g->k);
	key->b_row = or_packed(p->b_row, p->b_kn ? g->n : g->k);
	if (key->heads > 1) {
		key->out_head = p->out_head;
		key->a_head = p->a_head;
		key->b_head = p->b_head;
	}
	key->workspace_bytes = g->workspace ? g->workspace_bytes : 0;
}

/* Loads the library, and makes the current device's handle. The caller holds the lock. */
static int open_device(int *device)
{
	CAIRN_TRY(load());
	CAIRN_CUDA(cudaGetDevice(device));
	if (*device >= MAX_DEVICES)
		return cairn_error(EOPNOTSUPP, "gemm: device %d is above %d", *device, MAX_DEVICES - 1);
	if (!handles[*device]) {
		cublasStatus_t status = lt.cublasLtCreate(&handles[*device]);

		if (status != CUBLAS_STATUS_SUCCESS) {
			handles[*device] = NULL;
			return lt_error(status, "cublasLtCreate");
		}
	}
	return 0;
}

int cairn_lt_open(const struct cairn_lt **api, cublasLtHandle_t *handle, int *device)
{
	int ret;

	pthread_mutex_lock(&lock);
	ret = open_device(device);
	pthread_mutex_unlock(&lock);
	if (ret)
		return ret;
	*api = &lt;
	*handle = handles[*device];
	return 0;
}

/* The caller holds the lock. */
static int get_plan(const struct cairn_gemm_lt *args, struct plan **out)
{
	struct plan_key key;
	struct plan *oldest = &plans[0];
	int device, sms;

	CAIRN_TRY(open_device(&device));
	sms = cairn_sms_of(args->gemm.sms);
	if (sms < 0)
		return sms;
	make_key(&key, args, device, sms < cairn_num_sms() ? sms : 0);
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

static int matmul(const struct cairn_gemm_lt *args, void *stream)
{
	const struct cairn_gemm_args *g = &args->gemm;
	const float one = 1, zero = 0;
	struct plan *p;
	int ret = 0;

	CAIRN_TRY(get_plan(args, &p));
	if (g->bias)
		LT(cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &g->bias,
						  sizeof(g->bias)));
	LT(cublasLtMatmul(handles[p->key.device], p->desc, &one, g->b, p->b, g->a, p->a,
			  args->residual ? &one : &zero, args->residual ? args->residual : g->out, p->out,
			  g->out, p->out, &p->algo, g->workspace, p->key.workspace_bytes, stream));
out_free:
	return ret;
}

int cairn_gemm_lt(const struct cairn_gemm_lt *args, void *stream)
{
	int ret;

	CAIRN_TRY(cairn_gemm_check(&args->gemm));
	pthread_mutex_lock(&lock);
	ret = matmul(args, stream);
	pthread_mutex_unlock(&lock);
	return ret;
}

int cairn_gemm_lt_algos(const struct cairn_gemm_lt *args, int *num)
{
	struct cairn_gemm_lt first = *args;
	struct plan *p;
	int ret;

	CAIRN_TRY(cairn_gemm_check(&args->gemm));
	first.algo = 0;
	pthread_mutex_lock(&lock);
	ret = get_plan(&first, &p);
	if (!ret)
		*num = p->num_algos;
	pthread_mutex_unlock(&lock);
	return ret;
}

int cairn_gemm_cublaslt(const struct cairn_gemm_args *args, void *stream)
{
	struct cairn_gemm_lt p = { .algo = -1 };

	CAIRN_TRY(cairn_gemm_check(args));
	cairn_copy_args(&p.gemm, args, sizeof(p.gemm));
	return cairn_gemm_lt(&p, stream);
}

int cairn_gemm_cublaslt_workspace(const struct cairn_gemm_args *args, size_t *bytes)
{
	struct cairn_gemm_lt with = { .algo = -1 };
	struct plan *p;
	int ret;

	CAIRN_TRY(cairn_gemm_check_shape(args));
	cairn_copy_args(&with.gemm, args, sizeof(with.gemm));
	with.gemm.workspace = (void *)(uintptr_t)256;	/* a plan depends on its alignment and size only */
	with.gemm.workspace_bytes = CAIRN_GEMM_LT_WORKSPACE;
	pthread_mutex_lock(&lock);
	ret = get_plan(&with, &p);
	pthread_mutex_unlock(&lock);
	if (ret)
		return ret;
	*bytes = CAIRN_GEMM_LT_WORKSPACE;
	return 0;
}
