// SPDX-License-Identifier: Apache-2.0
#include "conformance/peers/fi_attn.h"

#include <cuda_runtime_api.h>
#include <stdio.h>

#include "conformance/peers/fi_module.h"
#include "conformance/peers/fi_plan.h"
#include "conformance/peers/fi_value.h"
#include "primitives/base/args.h"
#include "primitives/base/dtype.h"
#include "primitives/base/launch.h"

#define MIN_ROWS	64		/* least rows of a prefill's longest request */

static int make_plan(const struct fi_call *c, struct fi_plan *p, void *stream)
{
	const struct fi_key *k = &c->key;
	struct fi_tensor t[6];
	int32_t *qo = fi_rows_of(c);
	struct tvm_any args[] = {
		cairn_fi_list(&t[0], p->device, DL_CUDA, DL_UINT, 8, FI_PLAN_BYTES),
		cairn_fi_list(&t[1], p->device, DL_CUDA, DL_UINT, 8, FI_PLAN_BYTES),
		cairn_fi_list(&t[2], p->host, DL_CPU, DL_UINT, 8, FI_PLAN_BYTES),
		cairn_fi_list(&t[3], qo, DL_CPU, DL_INT, 32, k->batch + 1),
		cairn_fi_list(&t[4], fi_keys_of(c), DL_CPU, DL_INT, 32, k->batch + 1),
		cairn_fi_list(&t[5], fi_num_keys_of(c), DL_CPU, DL_INT, 32, k->batch),
		fi_integer(qo[k->batch]), fi_integer(k->batch), fi_integer(k->heads), fi_integer(k->kv_heads),
		fi_integer(k->page_size), fi_flag(0), fi_integer(k->qk_dim), fi_integer(k->v_dim),
		fi_flag(k->causal), fi_integer(-1),
	};

	return cairn_fi_call(c->op, c->plan, args, FI_COUNT(args), stream, &p->info);
}

/* Finds FlashAttention-3 for these dimensions. */
static int load(struct fi_call *c, int qk_dim, int v_dim, const char *run)
{
	const char *const names[] = { "plan", run };
	tvm_function *found[2];
	char module[32];

	snprintf(module, sizeof(module), "%d_%d_bf16", qk_dim, v_dim);
	CAIRN_TRY(cairn_fi_load(c->op, module, names, 2, found));
	c->plan = found[0];
	c->run = found[1];
	c->make = make_plan;
	return 0;
}

static int supported(const char *op, int dtype, const void *lse, int window, float softcap, int causal,
		     int max_qo_len, int max_kv_len)
{
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
	return 0;
}

static int dense_supported(const struct cairn_attn_dense_args *a)
{
	CAIRN_TRY(supported("attn_dense", a->dtype, a->lse, a->window, a->softcap, a->causal, a->max_qo_len,
			    a->max_kv_len));
	return cairn_fi_sms("attn_dense", a->sms);
}

static int run_dense(struct fi_call *c, const struct cairn_attn_dense_args *a, void *stream)
{
	const int64_t q_shape[] = { a->nnz_qo, a->num_qo_heads, a->qk_dim };
	const int64_t k_shape[] = { a->nnz_kv, a->num_kv_heads, a->qk_dim };
	const int64_t v_shape[] = { a->nnz_kv, a->num_kv_heads, a->v_dim };
	const int64_t o_shape[] = { a->nnz_qo, a->num_qo_heads, a->v_dim };
	const int64_t q_steps[] = { cairn_attn_dense_q_stride(a), a->qk_dim };
	const int64_t k_steps[] = { cairn_attn_dense_k_stride(a), cairn_attn_dense_k_head_stride(a) };
	const int64_t v_steps[] = { cairn_attn_dense_v_stride(a), cairn_attn_dense_v_head_stride(a) };
	const int64_t o_steps[] = { (int64_t)a->num_qo_heads * a->v_dim, a->v_dim };
	struct fi_tensor t[8];
	struct tvm_any result = fi_none();
	struct fi_plan *p;

	CAIRN_TRY(cairn_fi_plan(c, stream, &p));
	struct tvm_any args[] = {
		cairn_fi_list(&t[0], p->device, DL_CUDA, DL_UINT, 8, FI_PLAN_BYTES),
		cairn_fi_list(&t[1], p->device, DL_CUDA, DL_UINT, 8, FI_PLAN_BYTES), p->info,
		cairn_fi_tensor(&t[2], a->q, DL_CUDA, DL_BFLOAT, 16, 3, q_shape, q_steps),
		cairn_fi_tensor(&t[3], a->k, DL_CUDA, DL_BFLOAT, 16, 3, k_shape, k_steps),
		cairn_fi_tensor(&t[4], a->v, DL_CUDA, DL_BFLOAT, 16, 3, v_shape, v_steps),
		cairn_fi_list(&t[5], a->qo_indptr, DL_CUDA, DL_INT, 32, a->batch + 1),
		cairn_fi_list(&t[6], a->kv_indptr, DL_CUDA, DL_INT, 32, a->batch + 1),
		cairn_fi_tensor(&t[7], a->out, DL_CUDA, DL_BFLOAT, 16, 3, o_shape, o_steps), fi_none(),
		fi_integer(!!a->causal), fi_integer(0), fi_integer(-1), fi_flag(0),
		fi_none(), fi_none(), fi_none(), fi_none(),
		fi_number(0), fi_number(a->sm_scale), fi_number(1), fi_integer(0),
	};
	return cairn_fi_call(c->op, c->run, args, FI_COUNT(args), stream, &result);
}

int cairn_attn_dense_fi(const struct cairn_attn_dense_args *args, void *stream)
{
	struct cairn_attn_dense_args a;
	struct fi_call c = { .op = "attn_dense" };
	int ret;

	CAIRN_TRY(cairn_attn_dense_check(args));
	cairn_copy_args(&a, args, sizeof(a));
	if (!a.batch || !a.nnz_qo)
		return 0;
	CAIRN_TRY(dense_supported(&a));
	CAIRN_TRY(load(&c, a.qk_dim, a.v_dim, "ragged_run"));
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
	cairn_fi_lock();
	ret = run_dense(&c, &a, stream);
	cairn_fi_unlock();
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
		return cairn_error(EOPNOTSUPP, "attn_paged: FlashInfer: kv_fp8: needs another module");
	CAIRN_TRY(supported("attn_paged", a->dtype, a->lse, a->window, a->softcap, a->causal, a->max_qo_len,
			    a->kv.max_len));
	if (a->max_qo_len < MIN_ROWS)
		return cairn_error(EOPNOTSUPP, "attn_paged: FlashInfer: max_qo_len: %d: fewer than %d rows "
				   "need another module", a->max_qo_len, MIN_ROWS);
	return cairn_fi_sms("attn_paged", a->sms);
}

static int run_paged(struct fi_call *c, const struct cairn_attn_paged_args *a, void *stream)
{
	const int64_t row = (int64_t)a->num_kv_heads * a->head_dim;
	const int64_t q_shape[] = { a->nnz_qo, a->num_qo_heads, a->head_dim };
	const int64_t kv_shape[] = { a->kv.num_pages, a->kv.page_size, a->num_kv_heads, a->head_dim };
	const int64_t packed = (int64_t)a->num_qo_heads * a->head_dim;
	const int64_t q_steps[] = { a->q_stride ? a->q_stride : packed, a->head_dim };
	const int64_t kv_steps[] = { a->kv.page_size * row, row, a->head_dim };
	const int64_t o_steps[] = { packed, a->head_dim };
	struct fi_tensor t[11];
	struct tvm_any result = fi_none();
	struct fi_plan *p;

	CAIRN_TRY(cairn_fi_plan(c, stream, &p));
	struct tvm_any args[] = {
		cairn_fi_list(&t[0], p->device, DL_CUDA, DL_UINT, 8, FI_PLAN_BYTES),
		cairn_fi_list(&t[1], p->device, DL_CUDA, DL_UINT, 8, FI_PLAN_BYTES), p->info,
		cairn_fi_tensor(&t[2], a->q, DL_CUDA, DL_BFLOAT, 16, 3, q_shape, q_steps),
		cairn_fi_tensor(&t[3], a->kv.k_pages, DL_CUDA, DL_BFLOAT, 16, 4, kv_shape, kv_steps),
		cairn_fi_tensor(&t[4], a->kv.v_pages, DL_CUDA, DL_BFLOAT, 16, 4, kv_shape, kv_steps),
		cairn_fi_list(&t[5], a->qo_indptr, DL_CUDA, DL_INT, 32, a->kv.batch + 1),
		cairn_fi_list(&t[6], a->kv.indptr, DL_CUDA, DL_INT, 32, a->kv.batch + 1),
		cairn_fi_list(&t[7], a->kv.indices, DL_CUDA, DL_INT, 32, a->kv.num_pages),
		cairn_fi_list(&t[8], a->kv.last_page_len, DL_CUDA, DL_INT, 32, a->kv.batch),
		cairn_fi_tensor(&t[9], a->out, DL_CUDA, DL_BFLOAT, 16, 3, q_shape, o_steps), fi_none(),
		fi_integer(!!a->causal), fi_integer(0), fi_integer(-1), fi_flag(0),
		fi_none(), fi_none(), fi_none(), fi_none(),
		fi_number(0), fi_number(a->sm_scale), fi_number(1), fi_integer(0),
	};
	return cairn_fi_call(c->op, c->run, args, FI_COUNT(args), stream, &result);
}

int cairn_attn_prompt_fi(const struct cairn_attn_paged_args *args, void *stream)
{
	struct cairn_attn_paged_args a;
	struct fi_call c = { .op = "attn_paged" };
	int ret;

	CAIRN_TRY(cairn_attn_paged_check(args));
	cairn_copy_args(&a, args, sizeof(a));
	if (!a.kv.batch || !a.nnz_qo)
		return 0;
	CAIRN_TRY(paged_supported(&a));
	CAIRN_TRY(load(&c, a.head_dim, a.head_dim, "paged_run"));
	CAIRN_TRY(cairn_fi_take_paged(&c, &a, FI_PAGED));
	c.key.causal = !!a.causal;
	cairn_fi_lock();
	ret = run_paged(&c, &a, stream);
	cairn_fi_unlock();
	return ret;
}
