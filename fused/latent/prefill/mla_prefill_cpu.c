// SPDX-License-Identifier: Apache-2.0
/*
 * mla_prefill_cpu - the CPU table: takes one request after the other, expands all its keys by gemm, and runs
 * attn_batch_cpu.c over them
 */
#include "fused/latent/prefill/mla_prefill.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fused/attention/base/attn_batch.h"
#include "primitives/base/error.h"
#include "primitives/gemm/gemm.h"

#define RANK	512
#define ROPE	64
#define NOPE	128
#define V_DIM	128
#define QK	(NOPE + ROPE)

/* The keys of one request; v is the second half of each [NOPE + V_DIM] of kv. */
struct keys {
	int32_t num, num_heads;
	uint16_t *c;		/* [num][RANK] */
	uint16_t *kv;		/* [num][num_heads][NOPE + V_DIM] */
	uint16_t *k;		/* [num][num_heads][QK] */
};

static int32_t num_keys(const void *args, int32_t b)
{
	(void)b;
	return ((const struct keys *)args)->num;
}

static struct attn_key key(const void *args, int32_t b, int32_t j, int32_t head)
{
	const struct keys *x = args;
	int64_t at = (int64_t)j * x->num_heads + head;

	(void)b;
	return (struct attn_key){ .k = x->k + at * QK, .v = x->kv + at * (NOPE + V_DIM) + NOPE, .k_scale = 1,
				  .v_scale = 1 };
}

/* Expands the keys of request b. */
static int expand(const struct cairn_mla_prefill_args *a, int b, struct keys *x)
{
	const uint16_t *pages = a->kv.k_pages;
	struct cairn_gemm_args gemm = {
		.size = sizeof(gemm), .out = x->kv, .a = x->c, .b = a->w_kv_b, .m = x->num,
		.n = a->num_heads * (NOPE + V_DIM), .k = RANK, .dtype = a->dtype, .out_dtype = a->dtype,
	};

	for (int32_t j = 0; j < x->num; j++)
		memcpy(x->c + (int64_t)j * RANK, pages + cairn_kv_slot(&a->kv, b, j) * (RANK + ROPE),
		       RANK * 2);
	CAIRN_TRY(cairn_gemm_cpu(&gemm, NULL));
	for (int64_t i = 0; i < (int64_t)x->num * a->num_heads; i++) {
		const uint16_t *rotated = pages + cairn_kv_slot(&a->kv, b, i / a->num_heads) * (RANK + ROPE) +
					  RANK;

		memcpy(x->k + i * QK, x->kv + i * (NOPE + V_DIM), NOPE * 2);
		memcpy(x->k + i * QK + NOPE, rotated, ROPE * 2);
	}
	return 0;
}

static int run(const struct cairn_mla_prefill_args *a, int b)
{
	struct keys x = { .num = (int32_t)cairn_kv_len(&a->kv, b), .num_heads = a->num_heads };
	int64_t first = a->qo_indptr[b] - a->qo_indptr[0];
	const int32_t rows[] = { 0, a->qo_indptr[b + 1] - a->qo_indptr[b] };
	const struct attn_batch batch = {
		.name = "mla_prefill", .q = (const uint16_t *)a->q + first * a->num_heads * QK,
		.out = (uint16_t *)a->out + first * a->num_heads * V_DIM,
		.lse = a->lse ? a->lse + first * a->num_heads : NULL, .qo_indptr = rows,
		.q_stride = (int64_t)a->num_heads * QK, .batch = 1, .num_qo_heads = a->num_heads,
		.num_kv_heads = a->num_heads, .qk_dim = QK, .v_dim = V_DIM, .dtype = a->dtype, .causal = 1,
		.sm_scale = a->sm_scale, .args = &x, .num_keys = num_keys, .key = key,
	};
	size_t keys = (size_t)x.num, heads = keys * (size_t)a->num_heads;
	int ret = 0;

	if (!rows[1])
		return 0;
	x.c = malloc(keys * RANK * 2 + 1);
	x.kv = malloc(heads * (NOPE + V_DIM) * 2 + 1);
	x.k = malloc(heads * QK * 2 + 1);
	if (!x.c || !x.kv || !x.k)
		ret = cairn_error(ENOMEM, "mla_prefill: no memory for %d keys", x.num);
	if (!ret && x.num)
		ret = expand(a, b, &x);
	if (!ret)
		attn_batch_cpu(&batch);
	free(x.c);
	free(x.kv);
	free(x.k);
	return ret;
}

int cairn_mla_prefill_cpu(const struct cairn_mla_prefill_args *a, void *stream)
{
	int64_t last, end;

	(void)stream;
	CAIRN_TRY(cairn_mla_prefill_check(a));
	if (!a->nnz_qo || !a->kv.batch)
		return 0;
	last = (int64_t)(a->qo_indptr[a->kv.batch] - a->qo_indptr[0]) * a->num_heads;
	end = (int64_t)a->nnz_qo * a->num_heads;
	memset((uint16_t *)a->out + last * V_DIM, 0, (size_t)(end - last) * V_DIM * 2);
	for (int64_t i = last; a->lse && i < end; i++)
		a->lse[i] = -INFINITY;
	for (int b = 0; b < a->kv.batch; b++)
		CAIRN_TRY(run(a, b));
	return 0;
}
