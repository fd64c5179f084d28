// SPDX-License-Identifier: Apache-2.0
#include "conformance/peers/fi_attn.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/peers/fi_module.h"
#include "primitives/base/args.h"
#include "primitives/base/dtype.h"
#include "primitives/base/launch.h"

#define MAX_PLANS	32
#define PLAN_BYTES	(8 << 20)	/* size of a plan's index arrays, as in FlashInfer's own wrapper */
#define COUNT(args)	((int)(sizeof(args) / sizeof(*(args))))
#define MIN_ROWS	64		/* least rows of a prefill's longest request */

/* What a plan depends on besides the lengths; padding bytes are 0. */
struct key {
	int32_t device, paged, batch, nnz_qo, nnz_kv, max_qo_len, max_kv_len, heads, kv_heads, qk_dim, v_dim,
		page_size, causal;
};

struct plan {
	struct key key;
	uint64_t used;			/* value of `now` at the last use; 0: free */
	struct tvm_any info;		/* FlashInfer's description: offsets in the index arrays */
	void *device, *host;		/* PLAN_BYTES each; host: page-locked */
};

struct call {
	const char *op;
	struct key key;
	const struct fi_module *module;
	const int32_t *qo_indptr, *kv_indptr, *last_page_len;
	int32_t *lengths;		/* on the host: both index arrays, and the numbers of keys */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct plan plans[MAX_PLANS];
static uint64_t now;

struct tensor {
	struct dl_tensor t;
	int64_t shape[4], strides[4];
};

/* A tensor whose last dimension is contiguous; steps: strides of the other dimensions, in elements. */
static struct tvm_any tensor(struct tensor *x, void *data, int on, int code, int bits, int ndim,
			     const int64_t *shape, const int64_t *steps)
{
	int device = 0;

	if (on == DL_CUDA)
		cudaGetDevice(&device);
	x->t = (struct dl_tensor){ .data = data, .device_type = on, .device_id = device, .ndim = ndim,
		.code = (uint8_t)code, .bits = (uint8_t)bits, .lanes = 1, .shape = x->shape,
		.strides = x->strides };
	for (int i = 0; i < ndim; i++) {
		x->shape[i] = shape[i];
		x->strides[i] = i == ndim - 1 ? 1 : steps[i];
	}
	return (struct tvm_any){ .type = TVM_TENSOR, .p = &x->t };
}

static struct tvm_any list(struct tensor *x, const void *data, int on, int code, int bits, int64_t count)
{
	return tensor(x, (void *)data, on, code, bits, 1, &count, NULL);
}

static struct tvm_any integer(int64_t i)
{
	return (struct tvm_any){ .type = TVM_INT, .i = i };
}

static struct tvm_any number(double f)
{
	return (struct tvm_any){ .type = TVM_FLOAT, .f = f };
}

static struct tvm_any flag(int is)
{
	return (struct tvm_any){ .type = TVM_BOOL, .i = !!is };
}

static struct tvm_any none(void)
{
	return (struct tvm_any){ .type = TVM_NONE };
}

static int open_plan(struct plan *p)
{
	if (!p->device) {
		CAIRN_CUDA(cudaMalloc(&p->device, PLAN_BYTES));
		CAIRN_CUDA(cudaMallocHost(&p->host, PLAN_BYTES));
	}
	return 0;
}

/* The caller holds the lock. */
static int find(const struct call *c, int captured, struct plan **out)
{
	struct plan *oldest = &plans[0];

	for (int i = 0; i < MAX_PLANS; i++) {
		struct plan *p = &plans[i];

		if (p->used && !memcmp(&p->key, &c->key, sizeof(p->key))) {
			p->used = ++now;
			*out = p;
			return 0;
		}
		if (p->used < oldest->used)
			oldest = p;
	}
	if (captured)
		return cairn_error(EOPNOTSUPP, "%s: FlashInfer: the first call of a shape cannot be captured",
				   c->op);
	CAIRN_TRY(open_plan(oldest));
	oldest->key = c->key;
	oldest->used = ++now;
	*out = oldest;
	return 0;
}

static int fetch(int32_t *host, const int32_t *array, int count, void *stream)
{
	CAIRN_CUDA(cudaMemcpyAsync(host, array, (size_t)count * sizeof(*host), cudaMemcpyDeviceToHost,
				   stream));
	CAIRN_CUDA(cudaStreamSynchronize(stream));
	return 0;
}

/* Reads the lengths: [batch + 1] rows, [batch + 1] keys or pages, [batch] keys. */
static int read_lengths(struct call *c, void *stream)
{
	int n = c->key.batch;
	int32_t *qo = c->lengths, *kv = qo + n + 1, *len = kv + n + 1;

	CAIRN_TRY(fetch(qo, c->qo_indptr, n + 1, stream));
	CAIRN_TRY(fetch(kv, c->kv_indptr, n + 1, stream));
	if (c->key.paged)
		CAIRN_TRY(fetch(len, c->last_page_len, n, stream));
	for (int b = 0; b < n; b++) {
		int32_t pages = kv[b + 1] - kv[b];

		if (!c->key.paged)
			len[b] = pages;
		else
			len[b] = pages > 0 ? (pages - 1) * c->key.page_size + len[b] : 0;
		if (qo[b + 1] > qo[b] && (!len[b] || (c->key.causal && qo[b + 1] - qo[b] > len[b])))
			return cairn_error(EOPNOTSUPP, "%s: FlashInfer: request %d: a row without a key is "
					   "undefined", c->op, b);
	}
	return 0;
}

static int make_plan(struct call *c, struct plan *p, void *stream)
{
	const struct key *k = &c->key;
	struct tensor t[6];
	int32_t *qo = c->lengths, *kv = qo + k->batch + 1, *len = kv + k->batch + 1;
	struct tvm_any args[] = {
		list(&t[0], p->device, DL_CUDA, DL_UINT, 8, PLAN_BYTES),
		list(&t[1], p->device, DL_CUDA, DL_UINT, 8, PLAN_BYTES),
		list(&t[2], p->host, DL_CPU, DL_UINT, 8, PLAN_BYTES),
		list(&t[3], qo, DL_CPU, DL_INT, 32, k->batch + 1),
		list(&t[4], kv, DL_CPU, DL_INT, 32, k->batch + 1),
		list(&t[5], len, DL_CPU, DL_INT, 32, k->batch),
		integer(qo[k->batch]), integer(k->batch), integer(k->heads), integer(k->kv_heads),
		integer(k->page_size), flag(0), integer(k->qk_dim), integer(k->v_dim), flag(k->causal),
		integer(-1),
	};

	cairn_fi_release(&p->info);
	return cairn_fi_call(c->op, c->module->plan, args, COUNT(args), stream, &p->info);
}

/* Looks up the plan for a captured call; makes a new one for any other call. */
static int plan(struct call *c, void *stream, struct plan **out)
{
	enum cudaStreamCaptureStatus status;
	int captured, ret;

	CAIRN_CUDA(cudaStreamIsCapturing(stream, &status));
	captured = status != cudaStreamCaptureStatusNone;
	CAIRN_TRY(find(c, captured, out));
	if (captured)
		return 0;
	c->lengths = malloc(3 * ((size_t)c->key.batch + 1) * sizeof(*c->lengths));
	if (!c->lengths)
		return cairn_error(ENOMEM, "%s: no memory", c->op);
	ret = read_lengths(c, stream);
	if (!ret)
		ret = make_plan(c, *out, stream);
	free(c->lengths);
	if (ret)
		(*out)->used = 0;
	return ret;
}

static int supported(const char *op, int dtype, const void *lse, int window, float softcap, int sms,
		     int causal, int max_qo_len, int max_kv_len)
{
	int all = cairn_num_sms(), use = cairn_sms_of(sms);

	if (all < 0 || use < 0)
		return all < 0 ? all : use;
	if (dtype != CAIRN_BF16)
		return cairn_error(EOPNOTSUPP, "%s: FlashInfer: dtype: %s: its module was compiled for "
				   "bf16", op, cairn_dtype_name(dtype));
	if (lse)
		return cairn_error(EOPNOTSUPP, "%s: FlashInfer: lse: is in base 2 there", op);
	if (causal && max_qo_len > max_kv_len)
		return cairn_error(EOPNOTSUPP, "%s: FlashInfer: max_qo_len: a row without a key is undefined",
				   op);
	if (window || softcap > 0)
		return cairn_error(EOPNOTSUPP, "%s: FlashInfer: window, softcap: need other modules", op);
	if (use < all)
		return cairn_error(EOPNOTSUPP, "%s: FlashInfer: sms: uses all", op);
	return 0;
}

static int dense_supported(const struct cairn_attn_dense_args *a)
{
	return supported("attn_dense", a->dtype, a->lse, a->window, a->softcap, a->sms, a->causal,
			 a->max_qo_len, a->max_kv_len);
}

static int run_dense(struct call *c, const struct cairn_attn_dense_args *a, void *stream)
{
	const int64_t q_shape[] = { a->nnz_qo, a->num_qo_heads, a->qk_dim };
	const int64_t k_shape[] = { a->nnz_kv, a->num_kv_heads, a->qk_dim };
	const int64_t v_shape[] = { a->nnz_kv, a->num_kv_heads, a->v_dim };
	const int64_t o_shape[] = { a->nnz_qo, a->num_qo_heads, a->v_dim };
	const int64_t q_steps[] = { cairn_attn_dense_q_stride(a), a->qk_dim };
	const int64_t k_steps[] = { cairn_attn_dense_k_stride(a), cairn_attn_dense_k_head_stride(a) };
	const int64_t v_steps[] = { cairn_attn_dense_v_stride(a), cairn_attn_dense_v_head_stride(a) };
	const int64_t o_steps[] = { (int64_t)a->num_qo_heads * a->v_dim, a->v_dim };
	struct tensor t[8];
	struct tvm_any result = none();
	struct plan *p;

	CAIRN_TRY(plan(c, stream, &p));
	struct tvm_any args[] = {
		list(&t[0], p->device, DL_CUDA, DL_UINT, 8, PLAN_BYTES),
		list(&t[1], p->device, DL_CUDA, DL_UINT, 8, PLAN_BYTES), p->info,
		tensor(&t[2], (void *)a->q, DL_CUDA, DL_BFLOAT, 16, 3, q_shape, q_steps),
		tensor(&t[3], (void *)a->k, DL_CUDA, DL_BFLOAT, 16, 3, k_shape, k_steps),
		tensor(&t[4], (void *)a->v, DL_CUDA, DL_BFLOAT, 16, 3, v_shape, v_steps),
		list(&t[5], a->qo_indptr, DL_CUDA, DL_INT, 32, a->batch + 1),
		list(&t[6], a->kv_indptr, DL_CUDA, DL_INT, 32, a->batch + 1),
		tensor(&t[7], a->out, DL_CUDA, DL_BFLOAT, 16, 3, o_shape, o_steps), none(),
		integer(!!a->causal), integer(0), integer(-1), flag(0),
		none(), none(), none(), none(), number(0), number(a->sm_scale), number(1), integer(0),
	};
	return cairn_fi_call(c->op, c->module->ragged_run, args, COUNT(args), stream, &result);
}

int cairn_attn_dense_fi(const struct cairn_attn_dense_args *args, void *stream)
{
	struct cairn_attn_dense_args a;
	struct call c = { .op = "attn_dense" };
	int ret;

	CAIRN_TRY(cairn_attn_dense_check(args));
	cairn_copy_args(&a, args, sizeof(a));
	if (!a.batch || !a.nnz_qo)
		return 0;
	CAIRN_TRY(dense_supported(&a));
	CAIRN_TRY(cairn_fi_load(c.op, a.qk_dim, a.v_dim, &c.module));
	CAIRN_CUDA(cudaGetDevice(&c.key.device));
	c.key.batch = a.batch;
	c.key.nnz_qo = a.nnz_qo;
	c.key.nnz_kv = a.nnz_kv;
	c.key.max_qo_len = a.max_qo_len;
	c.key.max_kv_len = a.max_kv_len;
	c.key.heads = a.num_qo_heads;
	c.key.kv_heads = a.num_kv_heads;
	c.key.qk_dim = a.qk_dim;
	c.key.v_dim = a.v_dim;
	c.key.page_size = 1;
	c.key.causal = !!a.causal;
	c.qo_indptr = a.qo_indptr;
	c.kv_indptr = a.kv_indptr;
	pthread_mutex_lock(&lock);
	ret = run_dense(&c, &a, stream);
	pthread_mutex_unlock(&lock);
	return ret;
}

int cairn_attn_dense_fi_workspace(const struct cairn_attn_dense_args *args, size_t *bytes)
{
	CAIRN_TRY(cairn_attn_dense_check_shape(args));
	*bytes = 0;
	return 0;
}

static int paged_supported(const struct cairn_attn_paged_args *a)
{
	if (a->kv_fp8)
		return cairn_error(EOPNOTSUPP, "attn_paged: FlashInfer: kv_fp8: its module for e4m3 is "
				   "another");
	CAIRN_TRY(supported("attn_paged", a->dtype, a->lse, a->window, a->softcap, a->sms, a->causal,
			    a->max_qo_len, a->kv.max_len));
	if (a->max_qo_len < MIN_ROWS)
		return cairn_error(EOPNOTSUPP, "attn_paged: FlashInfer: max_qo_len: %d: its module for fewer "
				   "than %d rows is another", a->max_qo_len, MIN_ROWS);
	return 0;
}

static int run_paged(struct call *c, const struct cairn_attn_paged_args *a, void *stream)
{
	const int64_t row = (int64_t)a->num_kv_heads * a->head_dim;
	const int64_t q_shape[] = { a->nnz_qo, a->num_qo_heads, a->head_dim };
	const int64_t kv_shape[] = { a->kv.num_pages, a->kv.page_size, a->num_kv_heads, a->head_dim };
	const int64_t packed = (int64_t)a->num_qo_heads * a->head_dim;
	const int64_t q_steps[] = { a->q_stride ? a->q_stride : packed, a->head_dim };
	const int64_t kv_steps[] = { a->kv.page_size * row, row, a->head_dim };
	const int64_t o_steps[] = { packed, a->head_dim };
	struct tensor t[11];
	struct tvm_any result = none();
	struct plan *p;

	CAIRN_TRY(plan(c, stream, &p));
	struct tvm_any args[] = {
		list(&t[0], p->device, DL_CUDA, DL_UINT, 8, PLAN_BYTES),
		list(&t[1], p->device, DL_CUDA, DL_UINT, 8, PLAN_BYTES), p->info,
		tensor(&t[2], (void *)a->q, DL_CUDA, DL_BFLOAT, 16, 3, q_shape, q_steps),
		tensor(&t[3], a->kv.k_pages, DL_CUDA, DL_BFLOAT, 16, 4, kv_shape, kv_steps),
		tensor(&t[4], a->kv.v_pages, DL_CUDA, DL_BFLOAT, 16, 4, kv_shape, kv_steps),
		list(&t[5], a->qo_indptr, DL_CUDA, DL_INT, 32, a->kv.batch + 1),
		list(&t[6], a->kv.indptr, DL_CUDA, DL_INT, 32, a->kv.batch + 1),
		list(&t[7], a->kv.indices, DL_CUDA, DL_INT, 32, a->kv.num_pages),
		list(&t[8], a->kv.last_page_len, DL_CUDA, DL_INT, 32, a->kv.batch),
		tensor(&t[9], a->out, DL_CUDA, DL_BFLOAT, 16, 3, q_shape, o_steps), none(),
		integer(!!a->causal), integer(0), integer(-1), flag(0),
		none(), none(), none(), none(), number(0), number(a->sm_scale), number(1), integer(0),
	};
	return cairn_fi_call(c->op, c->module->paged_run, args, COUNT(args), stream, &result);
}

int cairn_attn_paged_fi(const struct cairn_attn_paged_args *args, void *stream)
{
	struct cairn_attn_paged_args a;
	struct call c = { .op = "attn_paged" };
	int ret;

	CAIRN_TRY(cairn_attn_paged_check(args));
	cairn_copy_args(&a, args, sizeof(a));
	if (!a.kv.batch || !a.nnz_qo)
		return 0;
	CAIRN_TRY(paged_supported(&a));
	CAIRN_TRY(cairn_fi_load(c.op, a.head_dim, a.head_dim, &c.module));
	CAIRN_CUDA(cudaGetDevice(&c.key.device));
	c.key.paged = 1;
	c.key.batch = a.kv.batch;
	c.key.nnz_qo = a.nnz_qo;
	c.key.nnz_kv = a.kv.num_pages;
	c.key.max_qo_len = a.max_qo_len;
	c.key.max_kv_len = a.kv.max_len;
	c.key.heads = a.num_qo_heads;
	c.key.kv_heads = a.num_kv_heads;
	c.key.qk_dim = c.key.v_dim = a.head_dim;
	c.key.page_size = a.kv.page_size;
	c.key.causal = !!a.causal;
	c.qo_indptr = a.qo_indptr;
	c.kv_indptr = a.kv.indptr;
	c.last_page_len = a.kv.last_page_len;
	pthread_mutex_lock(&lock);
	ret = run_paged(&c, &a, stream);
	pthread_mutex_unlock(&lock);
	return ret;
}

int cairn_attn_paged_fi_workspace(const struct cairn_attn_paged_args *args, size_t *bytes)
{
	CAIRN_TRY(cairn_attn_paged_check_shape(args));
	*bytes = 0;
	return 0;
}
