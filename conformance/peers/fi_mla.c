// SPDX-License-Identifier: Apache-2.0
#include "conformance/peers/fi_mla.h"

#include <cuda_runtime_api.h>

#include "conformance/peers/fi_module.h"
#include "conformance/peers/fi_plan.h"
#include "conformance/peers/fi_value.h"
#include "primitives/base/args.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/launch.h"

#define MODULE	"mla_512_64_bf16"

static int make_plan(const struct fi_call *c, struct fi_plan *p, void *stream)
{
	const struct fi_key *k = &c->key;
	const int32_t *qo = fi_rows_of(c);
	struct fi_tensor t[6];
	struct tvm_any args[] = {
		cairn_fi_list(&t[0], p->parts, DL_CUDA, DL_UINT, 8, FI_PART_BYTES),
		cairn_fi_list(&t[1], p->device, DL_CUDA, DL_UINT, 8, FI_PLAN_BYTES),
		cairn_fi_list(&t[2], p->host, DL_CPU, DL_UINT, 8, FI_PLAN_BYTES),
		cairn_fi_list(&t[3], qo, DL_CPU, DL_INT, 32, k->batch + 1),
		cairn_fi_list(&t[4], fi_keys_of(c), DL_CPU, DL_INT, 32, k->batch + 1),
		cairn_fi_list(&t[5], fi_num_keys_of(c), DL_CPU, DL_INT, 32, k->batch),
		fi_integer(k->heads), fi_integer(k->v_dim), fi_flag(k->causal),
	};

	if (qo[k->batch] != k->nnz_qo)
		return cairn_error(EOPNOTSUPP, "%s: FlashInfer: nnz_qo: qo_indptr has %d rows", c->op,
				   qo[k->batch]);
	for (int b = 0; b < k->batch; b++)
		if (qo[b + 1] == qo[b])
			return cairn_error(EOPNOTSUPP, "%s: FlashInfer: qo_indptr: request %d has no row",
					   c->op, b);
	return cairn_fi_call(c->op, c->plan, args, FI_COUNT(args), stream, &p->info);
}

static int run(struct fi_call *c, const struct cairn_mla_decode_args *a, void *stream)
{
	const uint16_t *pages = a->kv.k_pages;
	const int64_t key = a->kv_lora_rank + a->rope_dim, page = a->kv.page_size * key;
	const int64_t latent = cairn_mla_latent_stride(a), rope = cairn_mla_rope_stride(a);
	const int64_t q_shape[] = { a->nnz_qo, a->num_heads, a->kv_lora_rank };
	const int64_t r_shape[] = { a->nnz_qo, a->num_heads, a->rope_dim };
	const int64_t c_shape[] = { a->kv.num_pages, a->kv.page_size, a->kv_lora_rank };
	const int64_t k_shape[] = { a->kv.num_pages, a->kv.page_size, a->rope_dim };
	const int64_t q_steps[] = { a->num_heads * latent, latent };
	const int64_t r_steps[] = { a->num_heads * rope, rope };
	const int64_t kv_steps[] = { page, key };
	const int64_t o_steps[] = { (int64_t)a->num_heads * a->kv_lora_rank, a->kv_lora_rank };
	const int64_t l_shape[] = { a->nnz_qo, a->num_heads }, l_steps[] = { a->num_heads };
	struct tvm_any result = fi_none(), lse = fi_none();
	struct fi_tensor t[9];
	struct fi_plan *p;

	CAIRN_TRY(cairn_fi_plan(c, stream, &p));
	if (a->lse)
		lse = cairn_fi_tensor(&t[8], a->lse, DL_CUDA, DL_FLOAT, 32, 2, l_shape, l_steps);
	struct tvm_any args[] = {
		cairn_fi_list(&t[0], p->parts, DL_CUDA, DL_UINT, 8, FI_PART_BYTES),
		cairn_fi_list(&t[1], p->device, DL_CUDA, DL_UINT, 8, FI_PLAN_BYTES), p->info,
		cairn_fi_tensor(&t[2], a->q_latent, DL_CUDA, DL_BFLOAT, 16, 3, q_shape, q_steps),
		cairn_fi_tensor(&t[3], a->q_rope, DL_CUDA, DL_BFLOAT, 16, 3, r_shape, r_steps),
		cairn_fi_tensor(&t[4], pages, DL_CUDA, DL_BFLOAT, 16, 3, c_shape, kv_steps),
		cairn_fi_tensor(&t[5], pages + a->kv_lora_rank, DL_CUDA, DL_BFLOAT, 16, 3, k_shape, kv_steps),
		cairn_fi_list(&t[6], a->kv.indices, DL_CUDA, DL_INT, 32, a->kv.num_pages),
		cairn_fi_tensor(&t[7], a->out, DL_CUDA, DL_BFLOAT, 16, 3, q_shape, o_steps), lse,
		fi_integer(c->key.causal), fi_integer(a->num_heads), fi_integer(a->kv.page_size),
		fi_number(a->sm_scale), fi_flag(1), fi_number(1), fi_number(1),
	};
	return cairn_fi_call(c->op, c->run, args, FI_COUNT(args), stream, &result);
}

static int supported(const struct cairn_mla_decode_args *a)
{
	if (a->dtype != CAIRN_BF16)
		return cairn_error(EOPNOTSUPP, "mla_decode: FlashInfer: dtype: %s: its module was compiled "
				   "for bf16", cairn_dtype_name(a->dtype));
	if (a->num_slots)
		return cairn_error(EOPNOTSUPP, "mla_decode: FlashInfer: slots: it has no such lists");
	if (a->kv_fp8)
		return cairn_error(EOPNOTSUPP, "mla_decode: FlashInfer: kv_fp8: it has no such keys");
	if (a->num_heads * cairn_mla_latent_stride(a) > UINT32_MAX ||
	    a->num_heads * cairn_mla_rope_stride(a) > UINT32_MAX)
		return cairn_error(EOPNOTSUPP, "mla_decode: FlashInfer: q_latent_stride, q_rope_stride: "
				   "tokens are at most 2^32 elements apart there");
	return cairn_fi_sms("mla_decode", a->sms);
}

static int load(struct fi_call *c)
{
	const char *const names[] = { "plan", "run" };
	tvm_function *found[2];

	CAIRN_TRY(cairn_fi_load(c->op, MODULE, names, 2, found));
	c->plan = found[0];
	c->run = found[1];
	c->make = make_plan;
	return 0;
}

int cairn_mla_decode_fi(const struct cairn_mla_decode_args *args, void *stream)
{
	struct fi_call c = { .op = "mla_decode" };
	struct cairn_mla_decode_args a;
	int ret;

	CAIRN_TRY(cairn_mla_decode_check(args));
	cairn_copy_args(&a, args, sizeof(a));
	if (!a.kv.batch || !a.nnz_qo)
		return 0;
	CAIRN_TRY(supported(&a));
	CAIRN_TRY(load(&c));
	CAIRN_CUDA(cudaGetDevice(&c.key.device));
	c.key.kind = FI_MLA;
	c.key.batch = a.kv.batch;
	c.key.nnz_qo = a.nnz_qo;
	c.key.nnz_kv = a.kv.num_pages;
	c.key.max_qo_len = a.max_qo_len;
	c.key.max_kv_len = a.kv.max_len;
	c.key.heads = a.num_heads;
	c.key.kv_heads = 1;
	c.key.qk_dim = a.kv_lora_rank + a.rope_dim;
	c.key.v_dim = a.kv_lora_rank;
	c.key.page_size = a.kv.page_size;
	c.key.causal = 1;	/* with one row, too: a new token may see all keys */
	c.qo_indptr = a.qo_indptr;
	c.kv_indptr = a.kv.indptr;
	c.last_page_len = a.kv.last_page_len;
	cairn_fi_lock();
	ret = run(&c, &a, stream);
	cairn_fi_unlock();
	return ret;
}

int cairn_mla_decode_fi_workspace(const struct cairn_mla_decode_args *args, size_t *bytes)
{
	CAIRN_TRY(cairn_mla_decode_check_shape(args));
	*bytes = 0;
	return 0;
}
