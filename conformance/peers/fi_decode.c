// SPDX-License-Identifier: Apache-2.0
#include "conformance/peers/fi_decode.h"

#include <stdio.h>

#include "conformance/peers/fi_module.h"
#include "conformance/peers/fi_plan.h"
#include "conformance/peers/fi_value.h"
#include "primitives/base/args.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

#define TENSOR_LEAST	4	/* the least group on the tensor cores */
#define TENSOR_MOST	16	/* rows of the compiled tile */
#define MAX_ARGS	32

/* Returns whether the call has a group that the tensor cores serve. */
static int on_tensor_cores(int dtype, int group)
{
	return dtype == CAIRN_BF16 && group >= TENSOR_LEAST && group <= TENSOR_MOST;
}

static int is_cuda_group(int group)
{
	return group == 1 || group == 2 || group == 3 || group == 4 || group == 8;
}

static int one_row_each(const struct fi_call *c)
{
	const int32_t *qo = fi_rows_of(c);

	for (int b = 0; b < c->key.batch; b++)
		if (qo[b + 1] - qo[b] != 1)
			return cairn_error(EOPNOTSUPP, "%s: FlashInfer: qo_indptr: request %d has no row",
					   c->op, b);
	return 0;
}

static int make_cuda_plan(const struct fi_call *c, struct fi_plan *p, void *stream)
{
	const struct fi_key *k = &c->key;
	const int bf16 = k->dtype == CAIRN_BF16;
	struct fi_tensor t[6];
	struct tvm_any args[] = {
		cairn_fi_list(&t[0], p->parts, DL_CUDA, DL_UINT, 8, FI_PART_BYTES),
		cairn_fi_list(&t[1], p->device, DL_CUDA, DL_UINT, 8, FI_PLAN_BYTES),
		cairn_fi_list(&t[2], p->host, DL_CPU, DL_UINT, 8, FI_PLAN_BYTES),
		cairn_fi_list(&t[3], fi_keys_of(c), DL_CPU, DL_INT, 32, k->batch + 1),
		fi_integer(k->batch), fi_integer(k->heads), fi_integer(k->kv_heads), fi_integer(k->page_size),
		fi_flag(0), fi_integer(-1), fi_number(0), fi_integer(k->qk_dim), fi_integer(k->v_dim),
		cairn_fi_list(&t[4], NULL, DL_CPU, fi_code(bf16), 16, 0),
		cairn_fi_list(&t[5], NULL, DL_CPU, fi_code(bf16), 16, 0),
	};

	CAIRN_TRY(one_row_each(c));
	return cairn_fi_call(c->op, c->plan, args, FI_COUNT(args), stream, &p->info);
}

static int make_tensor_plan(const struct fi_call *c, struct fi_plan *p, void *stream)
{
	const struct fi_key *k = &c->key;
	struct fi_tensor t[6];
	struct tvm_any args[] = {
		cairn_fi_list(&t[0], p->parts, DL_CUDA, DL_UINT, 8, FI_PART_BYTES),
		cairn_fi_list(&t[1], p->device, DL_CUDA, DL_UINT, 8, FI_PLAN_BYTES),
		cairn_fi_list(&t[2], p->host, DL_CPU, DL_UINT, 8, FI_PLAN_BYTES),
		cairn_fi_list(&t[3], fi_rows_of(c), DL_CPU, DL_INT, 32, k->batch + 1),
		cairn_fi_list(&t[4], fi_keys_of(c), DL_CPU, DL_INT, 32, k->batch + 1),
		cairn_fi_list(&t[5], fi_num_keys_of(c), DL_CPU, DL_INT, 32, k->batch),
		fi_integer(k->batch), fi_integer(k->batch), fi_integer(k->heads), fi_integer(k->kv_heads),
		fi_integer(k->page_size), fi_flag(0), fi_integer(k->qk_dim), fi_integer(k->v_dim),
		fi_flag(0), fi_integer(-1), fi_integer(-1), fi_flag(0), fi_integer(0), fi_integer(0),
	};

	CAIRN_TRY(one_row_each(c));
	return cairn_fi_call(c->op, c->plan, args, FI_COUNT(args), stream, &p->info);
}

static int load(struct fi_call *c)
{
	const int tensor = c->key.kind == FI_TENSOR;
	const char *const names[] = { "plan", tensor ? "paged_run" : "run" };
	tvm_function *found[2];
	char module[32];

	snprintf(module, sizeof(module), "%s_%d_%s", tensor ? "tensor" : "decode", c->key.qk_dim,
		 cairn_dtype_name(c->key.dtype));
	CAIRN_TRY(cairn_fi_load(c->op, module, names, 2, found));
	c->plan = found[0];
	c->run = found[1];
	c->make = tensor ? make_tensor_plan : make_cuda_plan;
	return 0;
}

/* The arguments of the variant: only the scale of the logits has an effect. Returns their number. */
static int variant(struct tvm_any *args, int tensor, float sm_scale)
{
	const int pointers = tensor ? 8 : 1;
	int n = 0;

	while (n < pointers)
		args[n++] = fi_none();
	args[n++] = fi_number(0);		/* no softcap */
	args[n++] = fi_number(sm_scale);
	args[n++] = fi_number(1);		/* rotation, which is off: scale and theta */
	args[n++] = fi_number(1e-4);
	if (tensor)
		args[n++] = fi_integer(0);
	return n;
}

static int run(struct fi_call *c, const struct cairn_attn_paged_args *a, void *stream)
{
	const int64_t row = (int64_t)a->num_kv_heads * a->head_dim;
	const int64_t q_shape[] = { a->kv.batch, a->num_qo_heads, a->head_dim };
	const int64_t kv_shape[] = { a->kv.num_pages, a->kv.page_size, a->num_kv_heads, a->head_dim };
	const int64_t packed = (int64_t)a->num_qo_heads * a->head_dim;
	const int64_t q_steps[] = { a->q_stride ? a->q_stride : packed, a->head_dim };
	const int64_t kv_steps[] = { a->kv.page_size * row, row, a->head_dim };
	const int64_t o_steps[] = { packed, a->head_dim };
	const int tensor = c->key.kind == FI_TENSOR, code = fi_code(a->dtype == CAIRN_BF16);
	struct tvm_any args[MAX_ARGS], result = fi_none();
	struct fi_tensor t[10];
	struct fi_plan *p;
	int n = 0;

	CAIRN_TRY(cairn_fi_plan(c, stream, &p));
	args[n++] = cairn_fi_list(&t[0], p->parts, DL_CUDA, DL_UINT, 8, FI_PART_BYTES);
	args[n++] = cairn_fi_list(&t[1], p->device, DL_CUDA, DL_UINT, 8, FI_PLAN_BYTES);
	args[n++] = p->info;
	args[n++] = cairn_fi_tensor(&t[2], a->q, DL_CUDA, code, 16, 3, q_shape, q_steps);
	args[n++] = cairn_fi_tensor(&t[3], a->kv.k_pages, DL_CUDA, code, 16, 4, kv_shape, kv_steps);
	args[n++] = cairn_fi_tensor(&t[4], a->kv.v_pages, DL_CUDA, code, 16, 4, kv_shape, kv_steps);
	if (tensor)
		args[n++] = cairn_fi_list(&t[5], a->qo_indptr, DL_CUDA, DL_INT, 32, a->kv.batch + 1);
	args[n++] = cairn_fi_list(&t[6], a->kv.indptr, DL_CUDA, DL_INT, 32, a->kv.batch + 1);
	args[n++] = cairn_fi_list(&t[7], a->kv.indices, DL_CUDA, DL_INT, 32, a->kv.num_pages);
	args[n++] = cairn_fi_list(&t[8], a->kv.last_page_len, DL_CUDA, DL_INT, 32, a->kv.batch);
	args[n++] = cairn_fi_tensor(&t[9], a->out, DL_CUDA, code, 16, 3, q_shape, o_steps);
	args[n++] = fi_none();
	if (tensor)
		args[n++] = fi_integer(0);	/* no mask: a single row sees all keys */
	args[n++] = fi_integer(0);
	args[n++] = fi_integer(-1);
	args[n++] = fi_flag(1);
	n += variant(args + n, tensor, a->sm_scale);
	return cairn_fi_call(c->op, c->run, args, n, stream, &result);
}

static int supported(const struct cairn_attn_paged_args *a)
{
	const int group = a->num_qo_heads / a->num_kv_heads;

	if (a->max_qo_len != 1)
		return cairn_error(EOPNOTSUPP, "attn_paged: FlashInfer: max_qo_len: %d: decoding has one row",
				   a->max_qo_len);
	if (a->nnz_qo != a->kv.batch)
		return cairn_error(EOPNOTSUPP, "attn_paged: FlashInfer: nnz_qo: every request has a row");
	if (a->kv_fp8)
		return cairn_error(EOPNOTSUPP, "attn_paged: FlashInfer: kv_fp8: needs another module");
	if (a->lse)
		return cairn_error(EOPNOTSUPP, "attn_paged: FlashInfer: lse: is in base 2 there");
	if (a->window || a->softcap > 0)
		return cairn_error(EOPNOTSUPP, "attn_paged: FlashInfer: window, softcap: need other modules");
	if (!on_tensor_cores(a->dtype, group) && !is_cuda_group(group))
		return cairn_error(EOPNOTSUPP, "attn_paged: FlashInfer: num_qo_heads: no module has %d for a "
				   "KV head", group);
	return cairn_fi_sms("attn_paged", a->sms);
}

const char *cairn_attn_decode_fi_kernel(const struct cairn_attn_paged_args *args)
{
	return on_tensor_cores(args->dtype, args->num_qo_heads / args->num_kv_heads) ?
		"flashattention-2" : "decode on CUDA cores";
}

int cairn_attn_decode_fi(const struct cairn_attn_paged_args *args, void *stream)
{
	struct cairn_attn_paged_args a;
	struct fi_call c = { .op = "attn_paged" };
	int ret;

	CAIRN_TRY(cairn_attn_paged_check(args));
	cairn_copy_args(&a, args, sizeof(a));
	if (!a.kv.batch || !a.nnz_qo)
		return 0;
	CAIRN_TRY(supported(&a));
	CAIRN_TRY(cairn_fi_take_paged(&c, &a, on_tensor_cores(a.dtype, a.num_qo_heads / a.num_kv_heads) ?
				      FI_TENSOR : FI_DECODE));
	c.key.dtype = a.dtype;
	CAIRN_TRY(load(&c));
	cairn_fi_lock();
	ret = run(&c, &a, stream);
	cairn_fi_unlock();
	return ret;
}
