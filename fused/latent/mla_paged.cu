// SPDX-License-Identifier: Apache-2.0
/*
 * mla_paged - with absorbed weights: queries become latents, mla_decode attends, latents become values
 *
 *   cuBLASLt     ql = q w, a product for each head             [nnz_qo, num_heads, 512]
 *   mla_decode   o                                             [nnz_qo, num_heads, 512]
 *   cuBLASLt     out = o w^T, a product for each head
 *
 * With absorbed weights a pair of query and key costs 2 * (576 + 512) flops instead of 2 * (192 + 128), but
 * no key or value is ever expanded or stored, and all heads of a token read the same tile of keys. mla_decode
 * reads the rotated part of a query from q in place. It writes the rows of o past the last request as zeros,
 * which the product turns into zeros of out. It also writes lse.
 */
#include "fused/latent/mla_paged.h"

#include "fused/latent/decode/mla_decode.h"
#include "primitives/gemm/gemm_lt.h"
#include "primitives/base/args.h"
#include "primitives/base/error.h"

#define RANK		512
#define ROPE		64
#define NOPE		128
#define V_DIM		128

struct paged {
	struct cairn_mla_paged_args a;
	struct cairn_mla_decode_args decode;
	char *ql, *o, *gemm_workspace;
	int64_t bytes;			/* of the workspace */
};

/* Returns the call of mla_decode, without its arrays in the workspace. */
static struct cairn_mla_decode_args decode_of(const struct cairn_mla_paged_args *a)
{
	struct cairn_mla_decode_args d = {};

	d.size = sizeof(d);
	d.lse = a->lse;
	d.q_rope = (const uint16_t *)a->q + NOPE;
	d.q_rope_stride = NOPE + ROPE;
	d.qo_indptr = a->qo_indptr;
	d.kv = a->kv;
	d.nnz_qo = a->nnz_qo;
	d.max_qo_len = a->max_qo_len;
	d.num_heads = a->num_heads;
	d.kv_lora_rank = RANK;
	d.rope_dim = ROPE;
	d.dtype = a->dtype;
	d.sm_scale = a->sm_scale;
	d.sms = a->sms;
	return d;
}

/* Lays out the call and the workspace at `ws`, which may be NULL. Returns 0 or -errno. */
static int make_plan(struct paged *g, const struct cairn_mla_paged_args *a, char *ws)
{
	size_t latents, parts;

	cairn_copy_args(&g->a, a, sizeof(g->a));
	g->decode = decode_of(&g->a);
	CAIRN_TRY(cairn_mla_decode_workspace(&g->decode, &parts));
	latents = ((size_t)a->nnz_qo * (size_t)a->num_heads * RANK * 2 + 255) / 256 * 256;
	g->ql = ws;
	g->o = g->ql + latents;
	g->gemm_workspace = g->o + latents;
	g->decode.out = g->o;
	g->decode.q_latent = g->ql;
	g->decode.workspace = g->gemm_workspace + CAIRN_GEMM_LT_WORKSPACE;
	g->decode.workspace_bytes = parts;
	g->bytes = (int64_t)(2 * latents + CAIRN_GEMM_LT_WORKSPACE + parts);
	return 0;
}

/*
 * Returns the common arguments of the two products. a, b and out are the matrices of head 0; strides are in
 * elements.
 */
static struct cairn_gemm_lt head_product(const struct paged *g, void *out, const void *a, const void *b,
					 int n, int k)
{
	struct cairn_gemm_lt p = {};

	p.gemm.size = sizeof(p.gemm);
	p.gemm.out = out;
	p.gemm.a = a;
	p.gemm.b = b;
	p.gemm.workspace = g->gemm_workspace;
	p.gemm.workspace_bytes = CAIRN_GEMM_LT_WORKSPACE;
	p.gemm.m = g->a.nnz_qo;
	p.gemm.n = n;
	p.gemm.k = k;
	p.gemm.dtype = p.gemm.out_dtype = g->a.dtype;
	p.gemm.sms = g->a.sms;
	p.heads = g->a.num_heads;
	p.b_head = (NOPE + V_DIM) * RANK;
	p.algo = -1;
	return p;
}

static int absorb(const struct paged *g, void *stream)
{
	struct cairn_gemm_lt p = head_product(g, g->ql, g->a.q, g->a.w_kv_b, RANK, NOPE);

	p.b_kn = 1;
	p.a_head = NOPE + ROPE;
	p.a_row = (NOPE + ROPE) * (int64_t)g->a.num_heads;
	p.out_head = RANK;
	p.out_row = RANK * (int64_t)g->a.num_heads;
	return cairn_gemm_lt(&p, stream);
}

static int raise(const struct paged *g, void *stream)
{
	const uint16_t *down = (const uint16_t *)g->a.w_kv_b + NOPE * RANK;
	struct cairn_gemm_lt p = head_product(g, g->a.out, g->o, down, V_DIM, RANK);

	p.a_head = RANK;
	p.a_row = RANK * (int64_t)g->a.num_heads;
	p.out_head = V_DIM;
	p.out_row = V_DIM * (int64_t)g->a.num_heads;
	return cairn_gemm_lt(&p, stream);
}

extern "C" int cairn_mla_paged(const struct cairn_mla_paged_args *args, void *stream)
{
	struct paged g = {};

	CAIRN_TRY(cairn_mla_paged_check(args));
	if (!args->kv.batch || !args->nnz_qo)
		return 0;
	CAIRN_TRY(make_plan(&g, args, (char *)args->workspace));
	if (!args->workspace || args->workspace_bytes < (size_t)g.bytes)
		return cairn_error(EINVAL, "mla_paged: workspace: %lld bytes, 256-byte aligned, are needed",
				   (long long)g.bytes);
	CAIRN_TRY(absorb(&g, stream));
	CAIRN_TRY(cairn_mla_decode(&g.decode, stream));
	return raise(&g, stream);
}

extern "C" int cairn_mla_paged_workspace(const struct cairn_mla_paged_args *args, size_t *bytes)
{
	struct paged g = {};

	CAIRN_TRY(cairn_mla_paged_check_shape(args));
	if (!bytes)
		return cairn_error(EINVAL, "mla_paged_workspace: bytes: null pointer");
	if (args->kv.batch && args->nnz_qo)
		CAIRN_TRY(make_plan(&g, args, NULL));
	*bytes = (size_t)g.bytes;
	return 0;
}
