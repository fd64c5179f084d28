// SPDX-License-Identifier: Apache-2.0
/*
 * decode_step_cpu - decode_step on the CPU: runs the step as a list of CPU operations
 *
 * Values that the contract keeps in fp32 (sums before the residual, gate and up) are f32 outputs of gemm;
 * loops in this file round them. Everything else is an operation of the table; latent attention and the
 * mixture of experts are one operation each. Ranks that share a model exchange their sums before the residual
 * is added, and their logits (ranks/decode_step_ranks_cpu.c).
 */
#include "fused/decode_step/decode_step_cpu.h"

#include <math.h>
#include <string.h>

#include "primitives/draw/argmax.h"
#include "primitives/base/dtype.h"
#include "primitives/rows/embedding.h"
#include "primitives/base/error.h"
#include "primitives/gemm/gemm.h"
#include "primitives/rows/rmsnorm.h"
#include "primitives/rows/rope.h"
#include "primitives/draw/sample.h"
#include "fused/attention/paged/attn_paged.h"
#include "fused/cache/kv_append.h"
#include "fused/decode_step/decode_step_parts.h"

#define ALIGNMENT	256
#define WORTH_THREADS	65536	/* number of elements from which a loop runs in threads */

/* The workspace: activations of all requests. */
struct acts {
	char *x, *n, *qkv, *attn, *mlp;		/* elements of dtype */
	/* [batch, hidden], [batch, 2 intermediate], or a rank's logits */
	float *sums;
	int32_t *qo_indptr;
	const struct cairn_comm *comm;		/* NULL: alone */
};

static void *carve(size_t *at, char *base, size_t bytes)
{
	char *p = base ? base + *at : NULL;

	*at += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
	return p;
}

/* Sets the addresses of the activations from base (NULL: only counts). Returns the bytes they take. */
static size_t lay_out(const struct cairn_decode_step_args *a, const struct cairn_comm *comm, char *base,
		      struct acts *w)
{
	size_t rows = (size_t)a->kv.batch, element = cairn_dtype_bytes(a->dtype), at = 0;
	size_t hidden = (size_t)a->hidden, inter = (size_t)a->intermediate, dim = (size_t)a->head_dim;
	size_t q = (size_t)a->num_qo_heads * dim, kv = (size_t)a->num_kv_heads * dim;
	size_t sums = 2 * inter > hidden ? 2 * inter : hidden;
	size_t share = comm ? (size_t)(a->vocab / comm->ranks) : 0;

	if (a->kv_lora_rank)	/* cluster_mla has a workspace of its own */
		q = kv = 0;
	w->x = carve(&at, base, rows * hidden * element);
	w->n = carve(&at, base, rows * hidden * element);
	w->qkv = carve(&at, base, rows * (q + 2 * kv) * element);
	w->attn = carve(&at, base, rows * q * element);
	w->mlp = carve(&at, base, rows * inter * element);
	w->sums = carve(&at, base, rows * (sums > share ? sums : share) * sizeof(float));
	w->qo_indptr = carve(&at, base, (rows + 1) * sizeof(int32_t));
	w->comm = comm;
	return at;
}

size_t step_cpu_bytes(const struct cairn_decode_step_args *a, const struct cairn_comm *comm)
{
	struct acts w;

	return lay_out(a, comm, NULL, &w);
}

int cairn_decode_step_cpu_workspace(const struct cairn_decode_step_args *a, size_t *bytes)
{
	CAIRN_TRY(cairn_decode_step_check_shape(a));
	*bytes = step_cpu_bytes(a, NULL);
	return 0;
}

static int project(const struct cairn_decode_step_args *a, void *out, int out_dtype, const void *in,
		   const void *w, const void *bias, int32_t n, int32_t k)
{
	struct cairn_gemm_args args = {
		.size = sizeof(args), .out = out, .a = in, .b = w, .bias = bias, .m = a->kv.batch, .n = n,
		.k = k, .dtype = a->dtype, .out_dtype = out_dtype,
	};

	return cairn_gemm_cpu(&args, NULL);
}

static int norm(const struct cairn_decode_step_args *a, struct acts *w, const void *weight)
{
	struct cairn_rmsnorm_args args = {
		.size = sizeof(args), .out = w->n, .x = w->x, .weight = weight, .rows = a->kv.batch,
		.dim = a->hidden, .dtype = a->dtype, .eps = a->eps,
	};

	return cairn_rmsnorm_cpu(&args, NULL);
}

/* Adds the sums, of all ranks, to x. */
static int add_residual(const struct cairn_decode_step_args *a, struct acts *w)
{
	if (w->comm)
		CAIRN_TRY(step_cpu_sum(a, w->comm, w->sums));
	#pragma omp parallel for schedule(static) if ((int64_t)a->kv.batch * a->hidden > WORTH_THREADS)
	for (int64_t i = 0; i < (int64_t)a->kv.batch * a->hidden; i++) {
		float x = (float)cairn_load(w->x, a->dtype, i) + w->sums[i];

		cairn_store(w->x, a->dtype, i, x);
	}
	return 0;
}

static void silu_mul(const struct cairn_decode_step_args *a, struct acts *w)
{
	int64_t n = a->intermediate;

	#pragma omp parallel for schedule(static) if (a->kv.batch * n > WORTH_THREADS / 8)
	for (int64_t i = 0; i < a->kv.batch * n; i++) {
		const float *row = w->sums + i / n * 2 * n;
		float gate = row[i % n], up = row[n + i % n];

		cairn_store(w->mlp, a->dtype, i, gate / (1 + expf(-gate)) * up);
	}
}

/* Appends one request at a time; requests without a key are skipped. */
static int append(const struct cairn_decode_step_args *a, struct acts *w, struct cairn_kv_view pages)
{
	size_t element = cairn_dtype_bytes(a->dtype);
	size_t kv = (size_t)a->num_kv_heads * (size_t)a->head_dim * element;
	size_t row = (size_t)a->num_qo_heads * (size_t)a->head_dim * element + 2 * kv;

	for (int32_t b = 0; b < a->kv.batch; b++) {
		char *v = w->qkv + (size_t)(b + 1) * row - kv;
		struct cairn_kv_append_args args = {
			.size = sizeof(args), .k = v - kv, .v = v, .qo_indptr = w->qo_indptr,
			.kv = cairn_kv_one(pages, b), .nnz_qo = 1, .num_kv_heads = a->num_kv_heads,
			.head_dim = a->head_dim, .dtype = a->dtype,
		};

		if (cairn_kv_len(&pages, b) > 0)
			CAIRN_TRY(cairn_kv_append_cpu(&args, NULL));
	}
	return 0;
}

static int attend(const struct cairn_decode_step_args *a, struct acts *w, struct cairn_kv_view pages)
{
	int32_t q = a->num_qo_heads * a->head_dim, kv = a->num_kv_heads * a->head_dim, stride = q + 2 * kv;
	struct cairn_rope_args rope = {
		.size = sizeof(rope), .q = w->qkv, .k = w->qkv + (size_t)q * cairn_dtype_bytes(a->dtype),
		.inv_freq = a->inv_freq, .positions = a->positions, .q_stride = stride, .k_stride = stride,
		.nnz = a->kv.batch, .num_qo_heads = a->num_qo_heads, .num_kv_heads = a->num_kv_heads,
		.head_dim = a->head_dim, .rotary_dim = a->head_dim, .dtype = a->dtype, .scale = 1,
	};
	struct cairn_attn_paged_args attn = {
		.size = sizeof(attn), .out = w->attn, .q = w->qkv, .qo_indptr = w->qo_indptr, .kv = pages,
		.q_stride = stride, .nnz_qo = a->kv.batch, .max_qo_len = 1,
		.num_qo_heads = a->num_qo_heads, .num_kv_heads = a->num_kv_heads, .head_dim = a->head_dim,
		.dtype = a->dtype, .sm_scale = a->sm_scale,
	};

	CAIRN_TRY(cairn_rope_cpu(&rope, NULL));
	CAIRN_TRY(append(a, w, pages));
	return cairn_attn_paged_cpu(&attn, NULL);
}

static int latent_attention(const struct cairn_decode_step_args *a, struct acts *w, int32_t layer)
{
	struct cairn_cluster_mla_args block = decode_step_mla(a, layer);

	block.out = w->x;
	block.x = w->x;
	return cairn_cluster_mla_cpu(&block, NULL);
}

static int attention(const struct cairn_decode_step_args *a, struct acts *w, int32_t layer)
{
	int32_t q = a->num_qo_heads * a->head_dim, kv = a->num_kv_heads * a->head_dim;

	CAIRN_TRY(norm(a, w, decode_step_weight(a, a->attn_norm, layer)));
	CAIRN_TRY(project(a, w->qkv, a->dtype, w->n, decode_step_weight(a, a->w_qkv, layer),
			  decode_step_weight(a, a->b_qkv, layer), q + 2 * kv, a->hidden));
	CAIRN_TRY(attend(a, w, decode_step_kv(a, layer)));
	CAIRN_TRY(project(a, w->sums, CAIRN_F32, w->attn, decode_step_weight(a, a->w_o, layer),
			  decode_step_weight(a, a->b_o, layer), a->hidden, q));
	return add_residual(a, w);
}

static int mixture(const struct cairn_decode_step_args *a, struct acts *w, int32_t layer)
{
	struct cairn_moe_args block = decode_step_moe_of(a, layer);

	block.out = w->x;
	block.x = w->x;
	return cairn_moe_cpu(&block, NULL);
}

static int feed_forward(const struct cairn_decode_step_args *a, struct acts *w, int32_t layer)
{
	CAIRN_TRY(norm(a, w, decode_step_weight(a, a->mlp_norm, layer)));
	CAIRN_TRY(project(a, w->sums, CAIRN_F32, w->n, decode_step_weight(a, a->w_gate_up, layer), NULL,
			  2 * a->intermediate, a->hidden));
	silu_mul(a, w);
	CAIRN_TRY(project(a, w->sums, CAIRN_F32, w->mlp, decode_step_weight(a, a->w_down, layer), NULL,
			  a->hidden, a->intermediate));
	return add_residual(a, w);
}

static int draw(const struct cairn_decode_step_args *a)
{
	struct cairn_argmax_args argmax = {
		.size = sizeof(argmax), .out = a->tokens, .logits = a->logits, .rows = a->kv.batch,
		.vocab = a->vocab, .dtype = CAIRN_F32,
	};
	struct cairn_sample_args sample = {
		.size = sizeof(sample), .out = a->tokens, .logits = a->logits, .temperature = a->temperature,
		.top_k = a->top_k, .top_p = a->top_p, .min_p = a->min_p, .seed = a->seed, .offset = a->offset,
		.rows = a->kv.batch, .vocab = a->vocab,
	};

	if (!a->tokens)
		return 0;
	return a->temperature ? cairn_sample_cpu(&sample, NULL) : cairn_argmax_cpu(&argmax, NULL);
}

/* A rank computes the logits of its rows of lm_head. */
static int logits(const struct cairn_decode_step_args *a, struct acts *w)
{
	int32_t rows = w->comm ? a->vocab / w->comm->ranks : a->vocab;

	CAIRN_TRY(norm(a, w, a->final_norm));
	CAIRN_TRY(project(a, w->comm ? w->sums : a->logits, CAIRN_F32, w->n, a->lm_head, NULL, rows,
			  a->hidden));
	return w->comm ? step_cpu_gather(a, w->comm, w->sums) : 0;
}

int step_cpu_run(const struct cairn_decode_step_args *a, const struct cairn_comm *comm, const char *op)
{
	struct cairn_embedding_args embedding;
	struct acts w;

	if (!a->kv.batch)
		return 0;
	if (!a->workspace || a->workspace_bytes < step_cpu_bytes(a, comm))
		return cairn_error(EINVAL, "%s: workspace: has %zu bytes, needs %zu", op, a->workspace_bytes,
				   step_cpu_bytes(a, comm));
	lay_out(a, comm, a->workspace, &w);
	for (int32_t b = 0; b <= a->kv.batch; b++)
		w.qo_indptr[b] = b;
	embedding = (struct cairn_embedding_args){
		.size = sizeof(embedding), .out = w.x, .table = a->embed, .ids = a->ids, .rows = a->kv.batch,
		.dim = a->hidden, .vocab = a->vocab, .dtype = a->dtype,
	};
	CAIRN_TRY(cairn_embedding_cpu(&embedding, NULL));
	for (int32_t layer = 0; layer < a->num_layers; layer++) {
		CAIRN_TRY(a->kv_lora_rank ? latent_attention(a, &w, layer) : attention(a, &w, layer));
		CAIRN_TRY(decode_step_has_experts(a, layer) ?
			  mixture(a, &w, layer) : feed_forward(a, &w, layer));
	}
	CAIRN_TRY(logits(a, &w));
	return draw(a);
}

int cairn_decode_step_cpu(const struct cairn_decode_step_args *a, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_decode_step_check(a));
	return step_cpu_run(a, NULL, "decode_step");
}
