// SPDX-License-Identifier: Apache-2.0
/*
 * impl_unfused - the fused operations as chains of the best separate kernels: the baseline they must beat
 *
 *   cluster_attn   rmsnorm | QKV product (+ bias) | rotate and append | attn_paged |
 *                  output product (+ bias, + x)
 *   cluster_mla    rmsnorm | q product (or: q_a product | rmsnorm | q product) | kv_a product | norm, rotate
 *                  and append | absorption, a product per head | mla_decode (two kernels) | v_up, a product
 *                  per head | output product (+ x)
 *   attn_dense     for each request: S, a product per head | softmax | P v, a product per head
 *   attn_variant   rope: q and all keys rotated into the workspace | attn_paged
 *   gemm_w4        the weight in 16 bits | product by cuBLASLt
 *   decode_step    embedding | for each layer: cluster_attn or cluster_mla as above | rmsnorm | gate and up
 *                  product | silu and multiply | down product (+ x), or our moe | rmsnorm | LM head |
 *                  argmax or sample
 *
 * Each product uses the fastest of all algorithms that cuBLASLt lists and our own skinny kernels. The first
 * uncaptured call of a shape finds it by trials on the device (gemm_lt.h), during which this table allocates
 * device memory, as peers may. All kernels except those of cuBLASLt are launched as programmatic dependents.
 * The version string, which the bench record of a row contains, names the choice for each product of the
 * latest call.
 *
 * The experts of a request are known only on the device, so library products cannot be used for them. As in
 * serving systems, the chain has one kernel for the whole block of experts, here our own moe.
 *
 * A chain has no dataflow, cluster size, form or off-chip exchange: arguments that ask for one give
 * -EOPNOTSUPP.
 */
#include <stdio.h>
#include <string.h>

#include "conformance/tables/attn_rotated.h"
#include "conformance/tables/attn_standard.h"
#include "conformance/tables/block_parts.h"
#include "fused/decode_step/decode_step_parts.h"
#include "conformance/tables/mla_decode.h"
#include "conformance/tables/mla_heads.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/launch.h"
#include "primitives/gemm/gemm_lt.h"
#include "primitives/gemm/w4/gemm_w4_widen.h"
#include "conformance/tables/tables.h"

static char choices[256] = "best separate kernels";
static int silent;			/* 1 after the first layer: all layers use the same algorithms */

/* Hands out the workspace in multiples of 256 bytes; with base NULL only counts the bytes. */
struct arena {
	char *base;
	size_t used;
};

static void *take(struct arena *w, int64_t elements, size_t bytes)
{
	void *p = w->base ? w->base + w->used : NULL;

	w->used += ((size_t)elements * bytes + 255) / 256 * 256;
	return p;
}

static void begin_choices(void)
{
	choices[0] = 0;
	silent = 0;
}

/* Refuses a limit on SMs, because most of the peers' kernels choose their own grids. */
static int all_sms(int32_t sms, const char *op)
{
	int allowed = cairn_sms_of(sms), all = cairn_num_sms();

	if (allowed < 0 || all < 0)
		return allowed < 0 ? allowed : all;
	return allowed < all ? cairn_error(EOPNOTSUPP, "%s: sms: only all of the device", op) : 0;
}

/* own: see gemm_lt.h; name NULL: a repetition, whose choice has been named */
static int product(const char *name, const struct cairn_gemm_lt *p,
		   int (*own)(const struct cairn_gemm_lt *p, void *stream), void *stream)
{
	char choice[CAIRN_GEMM_TRIAL_TEXT];
	size_t n = strlen(choices);

	CAIRN_TRY(cairn_gemm_trial(p, own, stream));
	cairn_gemm_trial_choice(p, choice);
	if (!silent && name)
		snprintf(choices + n, sizeof(choices) - n, "%s%s %s", n ? ", " : "", name, choice);
	return 0;
}

static struct cairn_gemm_lt plain(void *out, const void *a, const void *b, int m, int n, int k, int dtype)
{
	struct cairn_gemm_lt p = {
		.gemm = {
			.size = sizeof(p.gemm), .out = out, .a = a, .b = b, .m = m, .n = n, .k = k,
			.dtype = dtype, .out_dtype = dtype,
		},
	};

	return p;
}

static int norm(void *out, const void *x, const void *weight, int rows, int dim, int dtype,
		float eps, void *stream)
{
	struct cairn_rmsnorm_args args = {
		.size = sizeof(args), .out = out, .x = x, .weight = weight, .rows = rows, .dim = dim,
		.dtype = dtype, .eps = eps,
	};

	return cairn_rmsnorm(&args, stream);
}

/* ---- cluster_attn ---- */

struct attn_buffers {
	void *lt;			/* workspace of cuBLASLt */
	void *n, *qkv, *attn;
};

static size_t attn_buffers(const struct cairn_cluster_attn_args *a, void *base, struct attn_buffers *buf)
{
	struct arena w = { base, 0 };

	buf->lt = take(&w, CAIRN_GEMM_LT_WORKSPACE, 1);
	buf->n = take(&w, (int64_t)a->kv.batch * a->hidden, 2);
	buf->qkv = take(&w, (int64_t)a->kv.batch * (a->num_qo_heads + 2 * a->num_kv_heads) * a->head_dim, 2);
	buf->attn = take(&w, (int64_t)a->kv.batch * a->num_qo_heads * a->head_dim, 2);
	return w.used;
}

static int only_auto(int is_auto, const char *op)
{
	return is_auto ? 0 :
	       cairn_error(EOPNOTSUPP,
			   "%s: separate kernels have no dataflow, form, cluster size or exchange", op);
}

static int attn_workspace(const struct cairn_cluster_attn_args *a, size_t *bytes)
{
	struct attn_buffers buf;

	CAIRN_TRY(cairn_cluster_attn_check_shape(a));
	CAIRN_TRY(only_auto(a->dataflow == CAIRN_CLUSTER_ATTN_AUTO, "cluster_attn"));
	if (!bytes)
		return cairn_error(EINVAL, "cluster_attn_workspace: bytes: null pointer");
	*bytes = attn_buffers(a, NULL, &buf);
	return 0;
}

static int attention(const struct cairn_cluster_attn_args *a, const struct attn_buffers *buf, void *stream)
{
	struct cairn_attn_paged_args args = {
		.size = sizeof(args), .out = buf->attn, .q = buf->qkv,
		.kv = a->kv, .q_stride = (int64_t)(a->num_qo_heads + 2 * a->num_kv_heads) * a->head_dim,
		.nnz_qo = a->kv.batch, .max_qo_len = 1, .num_qo_heads = a->num_qo_heads,
		.num_kv_heads = a->num_kv_heads, .head_dim = a->head_dim, .dtype = a->dtype,
		.sm_scale = a->sm_scale,
	};

	CAIRN_TRY(block_qo_indptr(&args.qo_indptr));
	return cairn_attn_paged(&args, stream);
}

static int attn_chain(const struct cairn_cluster_attn_args *a, void *stream)
{
	struct block_rope_append_args append;
	struct attn_buffers buf;
	struct cairn_gemm_lt p;
	size_t bytes;

	CAIRN_TRY(cairn_cluster_attn_check(a));
	CAIRN_TRY(only_auto(a->dataflow == CAIRN_CLUSTER_ATTN_AUTO, "cluster_attn"));
	if (!a->kv.batch)
		return 0;
	bytes = attn_buffers(a, a->workspace, &buf);
	if (!a->workspace || a->workspace_bytes < bytes)
		return cairn_error(EINVAL, "cluster_attn: workspace_bytes: %zu, needs %zu",
				   a->workspace_bytes, bytes);
	CAIRN_TRY(norm(buf.n, a->x, a->norm_weight, a->kv.batch, a->hidden, a->dtype, a->eps, stream));

	p = plain(buf.qkv, buf.n, a->w_qkv, a->kv.batch,
		  (a->num_qo_heads + 2 * a->num_kv_heads) * a->head_dim, a->hidden, a->dtype);
	p.gemm.bias = a->b_qkv;
	p.gemm.workspace = buf.lt;
	p.gemm.workspace_bytes = CAIRN_GEMM_LT_WORKSPACE;
	CAIRN_TRY(product("qkv", &p, NULL, stream));

	append = (struct block_rope_append_args) {
		.qkv = buf.qkv, .inv_freq = a->inv_freq, .positions = a->positions, .kv = a->kv,
		.num_qo_heads = a->num_qo_heads, .num_kv_heads = a->num_kv_heads, .head_dim = a->head_dim,
		.dtype = a->dtype,
	};
	CAIRN_TRY(block_rope_append(&append, stream));
	CAIRN_TRY(attention(a, &buf, stream));

	p = plain(a->out, buf.attn, a->w_o, a->kv.batch, a->hidden, a->num_qo_heads * a->head_dim, a->dtype);
	p.gemm.bias = a->b_o;
	p.gemm.workspace = buf.lt;
	p.gemm.workspace_bytes = CAIRN_GEMM_LT_WORKSPACE;
	p.residual = a->x;
	return product("out", &p, NULL, stream);
}

static int attn(const struct cairn_cluster_attn_args *a, void *stream)
{
	CAIRN_TRY(all_sms(a->sms, "cluster_attn"));
	begin_choices();
	return attn_chain(a, stream);
}

/* ---- cluster_mla ---- */

struct mla_buffers {
	void *lt;
	void *n, *q_a, *q, *kv, *latent, *sum, *v, *splits;
};

static struct mla_decode_args mla_attention(const struct cairn_cluster_mla_args *a,
					    const struct mla_buffers *buf)
{
	return (struct mla_decode_args) {
		.out = buf->sum, .q_latent = buf->latent, .q_rope = (const uint16_t *)buf->q + a->nope_dim,
		.kv = a->kv, .workspace = buf->splits, .q_rope_stride = a->nope_dim + a->rope_dim,
		.num_heads = a->num_heads, .dtype = a->dtype, .sm_scale = a->sm_scale,
	};
}

static int mla_buffers(const struct cairn_cluster_mla_args *a, void *base, struct mla_buffers *buf,
		       size_t *bytes)
{
	int64_t rows = a->kv.batch, heads = rows * a->num_heads;
	struct mla_decode_args shape = { .kv = a->kv, .num_heads = a->num_heads };
	struct arena w = { base, 0 };
	size_t splits = 0;

	if (a->kv.batch)
		CAIRN_TRY(mla_decode_workspace(&shape, &splits));
	buf->lt = take(&w, CAIRN_GEMM_LT_WORKSPACE, 1);
	buf->n = take(&w, rows * a->hidden, 2);
	buf->q_a = take(&w, rows * a->q_lora_rank, 2);
	buf->q = take(&w, heads * (a->nope_dim + a->rope_dim), 2);
	buf->kv = take(&w, rows * (a->kv_lora_rank + a->rope_dim), 2);
	buf->latent = take(&w, heads * a->kv_lora_rank, 2);
	buf->sum = take(&w, heads * a->kv_lora_rank, 2);
	buf->v = take(&w, heads * a->v_dim, 2);
	buf->splits = take(&w, (int64_t)splits, 1);
	*bytes = w.used;
	return 0;
}

static int mla_workspace(const struct cairn_cluster_mla_args *a, size_t *bytes)
{
	struct mla_buffers buf;

	CAIRN_TRY(cairn_cluster_mla_check_shape(a));
	CAIRN_TRY(only_auto(!a->cluster_size && !a->offchip, "cluster_mla"));
	if (!bytes)
		return cairn_error(EINVAL, "cluster_mla_workspace: bytes: null pointer");
	return mla_buffers(a, NULL, &buf, bytes);
}

static int mla_product(const char *name, const struct cairn_cluster_mla_args *a,
		       const struct mla_buffers *buf, void *out, const void *in, const void *weight, int n,
		       int k, const void *residual, void *stream)
{
	struct cairn_gemm_lt p = plain(out, in, weight, a->kv.batch, n, k, a->dtype);

	p.gemm.workspace = buf->lt;
	p.gemm.workspace_bytes = CAIRN_GEMM_LT_WORKSPACE;
	p.residual = residual;
	return product(name, &p, NULL, stream);
}

static int queries(const struct cairn_cluster_mla_args *a, const struct mla_buffers *buf, void *stream)
{
	int n = a->num_heads * (a->nope_dim + a->rope_dim);

	if (!a->q_lora_rank)
		return mla_product("q", a, buf, buf->q, buf->n, a->w_q, n, a->hidden, NULL, stream);
	CAIRN_TRY(mla_product("q_a", a, buf, buf->q_a, buf->n, a->w_q_a, a->q_lora_rank, a->hidden,
			      NULL, stream));
	CAIRN_TRY(norm(buf->q_a, buf->q_a, a->q_norm, a->kv.batch, a->q_lora_rank, a->dtype, a->eps, stream));
	return mla_product("q", a, buf, buf->q, buf->q_a, a->w_q, n, a->q_lora_rank, NULL, stream);
}

/* Maps nope_dim to kv_lora_rank with the first rows of each head of w_kv_b, of shape [nope_dim,
 * kv_lora_rank]. */
static int absorb(const struct cairn_cluster_mla_args *a, const struct mla_buffers *buf, void *stream)
{
	struct cairn_gemm_lt p = plain(buf->latent, buf->q, a->w_kv_b, a->kv.batch, a->kv_lora_rank,
				       a->nope_dim, a->dtype);

	p.heads = a->num_heads;
	p.b_kn = 1;
	p.b_head = (int64_t)(a->nope_dim + a->v_dim) * a->kv_lora_rank;
	p.a_head = a->nope_dim + a->rope_dim;
	p.a_row = a->num_heads * p.a_head;
	p.out_head = a->kv_lora_rank;
	p.out_row = (int64_t)a->num_heads * a->kv_lora_rank;
	p.gemm.workspace = buf->lt;
	p.gemm.workspace_bytes = CAIRN_GEMM_LT_WORKSPACE;
	return product("absorb", &p, mla_heads, stream);
}

/* Maps kv_lora_rank to v_dim with the last v_dim rows of each head of w_kv_b. */
static int v_up(const struct cairn_cluster_mla_args *a, const struct mla_buffers *buf, void *stream)
{
	const uint16_t *w = (const uint16_t *)a->w_kv_b + (int64_t)a->nope_dim * a->kv_lora_rank;
	struct cairn_gemm_lt p = plain(buf->v, buf->sum, w, a->kv.batch, a->v_dim, a->kv_lora_rank, a->dtype);

	p.heads = a->num_heads;
	p.b_head = (int64_t)(a->nope_dim + a->v_dim) * a->kv_lora_rank;
	p.a_head = a->kv_lora_rank;
	p.a_row = a->num_heads * p.a_head;
	p.out_head = a->v_dim;
	p.out_row = (int64_t)a->num_heads * a->v_dim;
	p.gemm.workspace = buf->lt;
	p.gemm.workspace_bytes = CAIRN_GEMM_LT_WORKSPACE;
	return product("v_up", &p, mla_heads, stream);
}

static int mla_chain(const struct cairn_cluster_mla_args *a, void *stream)
{
	struct block_mla_append_args append;
	struct mla_decode_args decode;
	struct mla_buffers buf;
	size_t bytes;

	CAIRN_TRY(cairn_cluster_mla_check(a));
	CAIRN_TRY(only_auto(!a->cluster_size && !a->offchip, "cluster_mla"));
	if (!a->kv.batch)
		return 0;
	CAIRN_TRY(mla_buffers(a, a->workspace, &buf, &bytes));
	if (!a->workspace || a->workspace_bytes < bytes)
		return cairn_error(EINVAL, "cluster_mla: workspace_bytes: %zu, needs %zu",
				   a->workspace_bytes, bytes);
	CAIRN_TRY(norm(buf.n, a->x, a->norm_weight, a->kv.batch, a->hidden, a->dtype, a->eps, stream));
	CAIRN_TRY(queries(a, &buf, stream));
	CAIRN_TRY(mla_product("kv", a, &buf, buf.kv, buf.n, a->w_kv_a, a->kv_lora_rank + a->rope_dim,
			      a->hidden, NULL, stream));
	append = (struct block_mla_append_args) {
		.q = buf.q, .latent = buf.kv, .kv_norm = a->kv_norm, .inv_freq = a->inv_freq,
		.positions = a->positions, .kv = a->kv,
		.num_heads = a->num_heads, .dtype = a->dtype, .eps = a->eps,
	};
	CAIRN_TRY(block_mla_append(&append, stream));
	CAIRN_TRY(absorb(a, &buf, stream));
	decode = mla_attention(a, &buf);
	CAIRN_TRY(mla_decode(&decode, stream));
	CAIRN_TRY(v_up(a, &buf, stream));
	return mla_product("out", a, &buf, a->out, buf.v, a->w_o, a->hidden, a->num_heads * a->v_dim,
			   a->x, stream);
}

static int mla(const struct cairn_cluster_mla_args *a, void *stream)
{
	CAIRN_TRY(all_sms(a->sms, "cluster_mla"));
	begin_choices();
	return mla_chain(a, stream);
}

/* ---- decode_step ---- */

struct step_buffers {
	void *x, *n, *act, *sample, *moe;
	float *gate_up;
	char *attn;			/* workspace of attn_chain() or mla_chain() */
	size_t attn_bytes, sample_bytes, moe_bytes;
};

static struct cairn_sample_args step_sample(const struct cairn_decode_step_args *a)
{
	return (struct cairn_sample_args) {
		.size = sizeof(struct cairn_sample_args), .out = a->tokens, .logits = a->logits,
		.temperature = a->temperature, .top_k = a->top_k, .top_p = a->top_p, .min_p = a->min_p,
		.seed = a->seed, .offset = a->offset, .rows = a->kv.batch, .vocab = a->vocab,
	};
}

static int step_buffers(const struct cairn_decode_step_args *a, void *base, struct step_buffers *buf,
			size_t *bytes)
{
	struct cairn_cluster_attn_args block = decode_step_attn(a, 0);
	struct cairn_cluster_mla_args latent = decode_step_mla(a, 0);
	struct cairn_sample_args sample = step_sample(a);
	struct attn_buffers unused;
	struct mla_buffers unused_too;
	struct arena w = { base, 0 };

	buf->sample_bytes = buf->moe_bytes = 0;
	if (a->temperature && a->kv.batch)
		CAIRN_TRY(cairn_sample_workspace(&sample, &buf->sample_bytes));
	if (a->num_experts) {
		struct cairn_moe_args moe = decode_step_moe_of(a, a->dense_layers);

		CAIRN_TRY(cairn_moe_workspace(&moe, &buf->moe_bytes));
	}
	/* comes first, because it must stay zeroed: nothing else may ever use these bytes (moe.h) */
	buf->moe = take(&w, (int64_t)buf->moe_bytes, 1);
	if (a->kv_lora_rank)
		CAIRN_TRY(mla_buffers(&latent, NULL, &unused_too, &buf->attn_bytes));
	else
		buf->attn_bytes = attn_buffers(&block, NULL, &unused);
	buf->attn = take(&w, (int64_t)buf->attn_bytes, 1);	/* starts with the workspace of cuBLASLt */
	buf->x = take(&w, (int64_t)a->kv.batch * a->hidden, 2);
	buf->n = take(&w, (int64_t)a->kv.batch * a->hidden, 2);
	buf->gate_up = take(&w, (int64_t)a->kv.batch * a->intermediate * 2, 4);
	buf->act = take(&w, (int64_t)a->kv.batch * a->intermediate, 2);
	buf->sample = take(&w, (int64_t)buf->sample_bytes, 1);
	*bytes = w.used;
	return 0;
}

static int step_workspace(const struct cairn_decode_step_args *a, size_t *bytes)
{
	struct step_buffers buf;

	CAIRN_TRY(cairn_decode_step_check_shape(a));
	CAIRN_TRY(only_auto(a->form == CAIRN_DECODE_STEP_AUTO, "decode_step"));
	if (!bytes)
		return cairn_error(EINVAL, "decode_step_workspace: bytes: null pointer");
	return step_buffers(a, NULL, &buf, bytes);
}

static int step_product(const char *name, const struct step_buffers *buf,
			struct cairn_gemm_lt p, void *stream)
{
	p.gemm.workspace = buf->attn;
	p.gemm.workspace_bytes = CAIRN_GEMM_LT_WORKSPACE;
	return product(name, &p, NULL, stream);
}

static int feed_forward(const struct cairn_decode_step_args *a, const struct step_buffers *buf, int layer,
			void *stream)
{
	int64_t w = layer * a->layer_stride_bytes;
	struct block_silu_mul_args act = {
		.out = buf->act, .x = buf->gate_up, .rows = a->kv.batch, .dim = a->intermediate,
		.dtype = a->dtype,
	};
	struct cairn_gemm_lt p;

	CAIRN_TRY(norm(buf->n, buf->x, (const char *)a->mlp_norm + w, a->kv.batch, a->hidden, a->dtype,
		       a->eps, stream));
	p = plain(buf->gate_up, buf->n, (const char *)a->w_gate_up + w, a->kv.batch, 2 * a->intermediate,
		  a->hidden, a->dtype);
	p.gemm.out_dtype = CAIRN_F32;
	CAIRN_TRY(step_product("gate_up", buf, p, stream));
	CAIRN_TRY(block_silu_mul(&act, stream));
	p = plain(buf->x, buf->act, (const char *)a->w_down + w, a->kv.batch, a->hidden,
		  a->intermediate, a->dtype);
	p.residual = buf->x;
	return step_product("down", buf, p, stream);
}

static int draw(const struct cairn_decode_step_args *a, const struct step_buffers *buf, void *stream)
{
	struct cairn_sample_args sample = step_sample(a);
	struct cairn_argmax_args argmax = {
		.size = sizeof(argmax), .out = a->tokens, .logits = a->logits, .rows = a->kv.batch,
		.vocab = a->vocab, .dtype = CAIRN_F32,
	};

	if (!a->tokens)
		return 0;
	if (!a->temperature)
		return cairn_argmax(&argmax, stream);
	sample.workspace = buf->sample_bytes ? buf->sample : NULL;
	sample.workspace_bytes = buf->sample_bytes;
	return cairn_sample(&sample, stream);
}

static int step_layer(const struct cairn_decode_step_args *a, const struct step_buffers *buf, int layer,
		      void *stream)
{
	struct cairn_cluster_mla_args latent = decode_step_mla(a, layer);
	struct cairn_cluster_attn_args block = decode_step_attn(a, layer);
	struct cairn_moe_args moe;

	if (a->kv_lora_rank) {
		latent.out = buf->x;
		latent.x = buf->x;
		latent.workspace = buf->attn;
		latent.workspace_bytes = buf->attn_bytes;
		CAIRN_TRY(mla_chain(&latent, stream));
	} else {
		block.out = buf->x;
		block.x = buf->x;
		block.workspace = buf->attn;
		block.workspace_bytes = buf->attn_bytes;
		CAIRN_TRY(attn_chain(&block, stream));
	}
	if (!decode_step_has_experts(a, layer))
		return feed_forward(a, buf, layer, stream);
	moe = decode_step_moe_of(a, layer);
	moe.out = buf->x;
	moe.x = buf->x;
	moe.workspace = buf->moe;
	moe.workspace_bytes = buf->moe_bytes;
	return cairn_moe(&moe, stream);
}

static int step_chain(const struct cairn_decode_step_args *a, const struct step_buffers *buf, void *stream)
{
	struct cairn_embedding_args embedding = {
		.size = sizeof(embedding), .out = buf->x, .table = a->embed, .ids = a->ids,
		.rows = a->kv.batch, .dim = a->hidden, .vocab = a->vocab, .dtype = a->dtype,
	};
	struct cairn_gemm_lt p;

	CAIRN_TRY(cairn_embedding(&embedding, stream));
	for (int layer = 0; layer < a->num_layers; layer++) {
		CAIRN_TRY(step_layer(a, buf, layer, stream));
		silent = 1;
	}
	silent = 0;
	CAIRN_TRY(norm(buf->n, buf->x, a->final_norm, a->kv.batch, a->hidden, a->dtype, a->eps, stream));
	p = plain(a->logits, buf->n, a->lm_head, a->kv.batch, a->vocab, a->hidden, a->dtype);
	p.gemm.out_dtype = CAIRN_F32;
	CAIRN_TRY(step_product("head", buf, p, stream));
	return draw(a, buf, stream);
}

static int step(const struct cairn_decode_step_args *a, void *stream)
{
	struct step_buffers buf;
	size_t bytes;

	CAIRN_TRY(cairn_decode_step_check(a));
	CAIRN_TRY(only_auto(a->form == CAIRN_DECODE_STEP_AUTO, "decode_step"));
	CAIRN_TRY(all_sms(a->sms, "decode_step"));
	if (!a->kv.batch)
		return 0;
	CAIRN_TRY(step_buffers(a, a->workspace, &buf, &bytes));
	if (!a->workspace || a->workspace_bytes < bytes)
		return cairn_error(EINVAL, "decode_step: workspace_bytes: %zu, needs %zu",
				   a->workspace_bytes, bytes);
	begin_choices();
	return step_chain(a, &buf, stream);
}

/* ---- gemm_w4 ---- */

static size_t w4_buffers(const struct cairn_gemm_w4_args *a, void *base, void **lt, void **weight)
{
	struct arena w = { base, 0 };

	*lt = take(&w, CAIRN_GEMM_LT_WORKSPACE, 1);
	*weight = take(&w, (int64_t)a->n * a->k, 2);
	return w.used;
}

static int w4_workspace(const struct cairn_gemm_w4_args *a, size_t *bytes)
{
	void *lt, *weight;

	CAIRN_TRY(cairn_gemm_w4_check_shape(a));
	if (!bytes)
		return cairn_error(EINVAL, "gemm_w4_workspace: bytes: null pointer");
	*bytes = w4_buffers(a, NULL, &lt, &weight);
	return 0;
}

static int w4(const struct cairn_gemm_w4_args *a, void *stream)
{
	struct cairn_gemm_lt p;
	void *lt, *weight;
	size_t bytes;

	CAIRN_TRY(cairn_gemm_w4_check(a));
	CAIRN_TRY(all_sms(a->sms, "gemm_w4"));
	/* see rounds_twice() in primitives/gemm/gemm.cu */
	if (a->bias && a->n % 2 && a->out_dtype != CAIRN_F32)
		return cairn_error(EOPNOTSUPP, "gemm_w4: n: %d with bias: cuBLASLt rounds twice", a->n);
	bytes = w4_buffers(a, a->workspace, &lt, &weight);
	if (!a->workspace || a->workspace_bytes < bytes)
		return cairn_error(EINVAL, "gemm_w4: workspace_bytes: %zu, needs %zu",
				   a->workspace_bytes, bytes);
	CAIRN_TRY(cairn_gemm_w4_widen(a, weight, stream));
	p = plain(a->out, a->a, weight, a->m, a->n, a->k, a->dtype);
	p.gemm.out_dtype = a->out_dtype;
	p.gemm.bias = a->bias;
	p.gemm.workspace = lt;
	p.gemm.workspace_bytes = CAIRN_GEMM_LT_WORKSPACE;
	/* setting b_row excludes our own kernels, which may read b before the kernel above has written it */
	p.b_row = a->k;
	begin_choices();
	return product("product", &p, NULL, stream);
}

/* ---- attn_dense ---- */

static int library_product(const char *name, const struct cairn_gemm_lt *p, void *stream)
{
	return product(name, p, NULL, stream);
}

static int dense(const struct cairn_attn_dense_args *a, void *stream)
{
	begin_choices();
	return attn_standard(a, library_product, stream);
}

/* ---- attn_variant ---- */

static int variant(const struct cairn_attn_variant_args *a, void *stream)
{
	snprintf(choices, sizeof(choices), "one rotation of all keys; attn_paged");
	return attn_rotated(a, stream);
}

const struct cairn_impl cairn_impl_unfused = {
	.size = sizeof(struct cairn_impl),
	.abi_version = CAIRN_ABI_VERSION,
	.name = "unfused",
	.version = choices,
	.last_error = cairn_last_error,
	.cluster_attn = attn,
	.cluster_attn_workspace = attn_workspace,
	.cluster_mla = mla,
	.cluster_mla_workspace = mla_workspace,
	.decode_step = step,
	.decode_step_workspace = step_workspace,
	.attn_dense = dense,
	.attn_dense_workspace = attn_standard_workspace,
	.attn_variant = variant,
	.attn_variant_workspace = attn_rotated_workspace,
	.gemm_w4 = w4,
	.gemm_w4_workspace = w4_workspace,
};
