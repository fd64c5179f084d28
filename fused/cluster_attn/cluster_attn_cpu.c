// SPDX-License-Identifier: Apache-2.0
/*
 * cluster_attn_cpu - cluster_attn on the CPU, for engines without a GPU: runs the operations of the block one
 * after the other
 *
 * Requests without a key are left out: the rows of the other requests are packed in the workspace, and the
 * qo_indptr that is built here gives each request one query or none. The output projection stays fp32 until x
 * is added, so that out is rounded once.
 */
#include "fused/cluster_attn/cluster_attn.h"

#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/gemm/gemm.h"
#include "primitives/rows/rmsnorm.h"
#include "primitives/rows/rope.h"
#include "fused/attention/paged/attn_paged.h"
#include "fused/cache/kv_append.h"

#define MAX_BATCH	16

/* Buffers in the workspace, with a row for each request that has a key. */
struct buffers {
	uint8_t *x, *n, *qkv, *attn;
	float *projected;
};

static int64_t qkv_dim(const struct cairn_cluster_attn_args *a)
{
	return (int64_t)(a->num_qo_heads + 2 * a->num_kv_heads) * a->head_dim;
}

/* Sets the buffers' addresses from `base`, which may be NULL; returns the bytes they take. */
static size_t place(const struct cairn_cluster_attn_args *a, uint8_t *base, struct buffers *w)
{
	const size_t batch = a->kv.batch, row = batch * (size_t)a->hidden * 2;
	const size_t nq = batch * (size_t)a->num_qo_heads * a->head_dim * 2;
	const size_t sizes[] = { row, row, batch * (size_t)qkv_dim(a) * 2, nq, row * 2 };
	uint8_t *parts[5];
	size_t at = 0;

	for (int i = 0; i < 5; i++) {
		parts[i] = base ? base + at : NULL;
		at += (sizes[i] + 63) / 64 * 64;
	}
	*w = (struct buffers){ parts[0], parts[1], parts[2], parts[3], (float *)parts[4] };
	return at;
}

int cairn_cluster_attn_cpu_workspace(const struct cairn_cluster_attn_args *a, size_t *bytes)
{
	struct buffers w;

	CAIRN_TRY(cairn_cluster_attn_check_shape(a));
	*bytes = place(a, NULL, &w);
	return 0;
}

/* Computes n, then q, k and v, rotated. rows: number of requests with a key; positions: their positions. */
static int project(const struct cairn_cluster_attn_args *a, const struct buffers *w, int rows,
		   const int32_t *positions)
{
	const size_t nq = (size_t)a->num_qo_heads * a->head_dim * 2;
	struct cairn_rmsnorm_args norm = {
		.size = sizeof(norm), .out = w->n, .x = w->x, .weight = a->norm_weight, .rows = rows,
		.dim = a->hidden, .dtype = a->dtype, .eps = a->eps,
	};
	struct cairn_gemm_args gemm = {
		.size = sizeof(gemm), .out = w->qkv, .a = w->n, .b = a->w_qkv, .bias = a->b_qkv, .m = rows,
		.n = (int32_t)qkv_dim(a), .k = a->hidden, .dtype = a->dtype, .out_dtype = a->dtype,
	};
	struct cairn_rope_args rope = {
		.size = sizeof(rope), .q = w->qkv, .k = w->qkv + nq, .inv_freq = a->inv_freq,
		.positions = positions, .q_stride = qkv_dim(a), .k_stride = qkv_dim(a), .nnz = rows,
		.num_qo_heads = a->num_qo_heads, .num_kv_heads = a->num_kv_heads, .head_dim = a->head_dim,
		.rotary_dim = a->head_dim, .dtype = a->dtype, .scale = 1,
	};

	CAIRN_TRY(cairn_rmsnorm_cpu(&norm, NULL));
	CAIRN_TRY(cairn_gemm_cpu(&gemm, NULL));
	return cairn_rope_cpu(&rope, NULL);
}

static int attend(const struct cairn_cluster_attn_args *a, const struct buffers *w, int rows,
		  const int32_t *qo_indptr)
{
	const size_t nq = (size_t)a->num_qo_heads * a->head_dim * 2;
	const size_t nk = (size_t)a->num_kv_heads * a->head_dim * 2;
	struct cairn_kv_append_args append = {
		.size = sizeof(append), .k = w->qkv + nq, .v = w->qkv + nq + nk, .qo_indptr = qo_indptr,
		.kv = a->kv, .k_stride = qkv_dim(a), .v_stride = qkv_dim(a), .nnz_qo = rows,
		.num_kv_heads = a->num_kv_heads, .head_dim = a->head_dim, .dtype = a->dtype,
	};
	struct cairn_attn_paged_args attn = {
		.size = sizeof(attn), .out = w->attn, .q = w->qkv, .qo_indptr = qo_indptr, .kv = a->kv,
		.q_stride = qkv_dim(a), .nnz_qo = rows, .max_qo_len = 1,
		.num_qo_heads = a->num_qo_heads, .num_kv_heads = a->num_kv_heads, .head_dim = a->head_dim,
		.dtype = a->dtype, .sm_scale = a->sm_scale,
	};

	CAIRN_TRY(cairn_kv_append_cpu(&append, NULL));
	return cairn_attn_paged_cpu(&attn, NULL);
}

int cairn_cluster_attn_cpu(const struct cairn_cluster_attn_args *a, void *stream)
{
	int32_t positions[MAX_BATCH], qo_indptr[MAX_BATCH + 1] = { 0 };
	struct cairn_gemm_args gemm;
	struct buffers w;
	size_t row;
	int rows = 0;

	(void)stream;
	CAIRN_TRY(cairn_cluster_attn_check(a));
	if (place(a, a->workspace, &w) > (a->workspace ? a->workspace_bytes : 0))
		return cairn_error(EINVAL, "cluster_attn: workspace: null or too small");
	row = (size_t)a->hidden * 2;
	for (int b = 0; b < a->kv.batch; b++) {
		if (cairn_kv_len(&a->kv, b) > 0) {
			memcpy(w.x + rows * row, (const uint8_t *)a->x + b * row, row);
			positions[rows++] = a->positions[b];
		}
		qo_indptr[b + 1] = rows;
	}
	if (rows == 0)
		return 0;
	CAIRN_TRY(project(a, &w, rows, positions));
	CAIRN_TRY(attend(a, &w, rows, qo_indptr));
	gemm = (struct cairn_gemm_args){
		.size = sizeof(gemm), .out = w.projected, .a = w.attn, .b = a->w_o, .bias = a->b_o, .m = rows,
		.n = a->hidden, .k = a->num_qo_heads * a->head_dim, .dtype = a->dtype, .out_dtype = CAIRN_F32,
	};
	CAIRN_TRY(cairn_gemm_cpu(&gemm, NULL));
	for (int b = 0; b < a->kv.batch; b++)
		for (int64_t j = 0; qo_indptr[b + 1] > qo_indptr[b] && j < a->hidden; j++) {
			int64_t from = (int64_t)qo_indptr[b] * a->hidden + j;

			cairn_store(a->out, a->dtype, (int64_t)b * a->hidden + j,
				    (float)cairn_load(w.x, a->dtype, from) + w.projected[from]);
		}
	return 0;
}
