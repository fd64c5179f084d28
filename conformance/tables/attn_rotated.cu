/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_rotated - rotates q and all keys into the workspace, then calls attn_paged
 *
 * A thread rotates the same 8 pairs of all heads of a token, so that it computes their cosines and sines
 * once. The loads of HEADS heads are in flight at a time. With 16384 keys of 8 heads of 128, the kernel reads
 * and writes 67 MB.
 */
#include "conformance/tables/attn_rotated.h"

#include "fused/attention/paged/attn_paged.h"
#include "primitives/base/launch.h"
#include "primitives/rows/angle.cuh"
#include "primitives/rows/row.cuh"

#define THREADS	256
#define HEADS	4

/* Rows of q or of k: token i begins at from + i * stride, and packed at to. Strides are in elements. */
struct rows {
	const uint16_t *from;
	uint16_t *to;
	int64_t stride, head_stride;
	int32_t heads, tokens;		/* tokens: at most */
};

struct rotation {
	struct rows q, k;
	const float *inv_freq;
	const int32_t *qo_indptr, *kv_indptr;
	int32_t *indptr, *indices, *last_page_len;	/* the list of pages; written */
	int32_t dim;
};

/* Lists the request's keys as pages; called by all threads of a CTA. */
ROW void list_pages(const struct rotation &a)
{
	const int keys = a.kv_indptr[1], pages = (keys + ATTN_ROTATED_PAGE - 1) / ATTN_ROTATED_PAGE;

	for (int i = threadIdx.x; i < pages; i += THREADS)
		a.indices[i] = i;
	if (threadIdx.x == 0) {
		a.indptr[0] = 0;
		a.indptr[1] = pages;
		a.last_page_len[0] = keys - (pages - 1) * ATTN_ROTATED_PAGE;
	}
}

template <int dtype> ROW void rotate(uint4 *x, const float *c, const float *s)
{
	float f[16];

	row_unpack<dtype>(x[0], f);
	row_unpack<dtype>(x[1], f + 8);
#pragma unroll
	for (int i = 0; i < 8; i++) {
		const float first = f[i], second = f[i + 8];

		f[i] = first * c[i] - second * s[i];
		f[i + 8] = second * c[i] + first * s[i];
	}
	x[0] = row_pack<dtype>(f);
	x[1] = row_pack<dtype>(f + 8);
}

/* Rotates 8 pairs, from pair 8 * part on, of all heads of a token. */
template <int dtype>
ROW void rotate_token(const struct rotation &a, const struct rows &r, int token, int position, int part)
{
	const int half = a.dim / 2;
	const uint16_t *from = r.from + token * r.stride + part * 8;
	uint16_t *to = r.to + (int64_t)token * r.heads * a.dim + part * 8;
	float c[8], s[8];

#pragma unroll
	for (int i = 0; i < 8; i++)
		angle_cos_sin((float)position * __ldg(a.inv_freq + part * 8 + i), c + i, s + i);
	for (int first = 0; first < r.heads; first += HEADS) {
		uint4 x[HEADS][2];

#pragma unroll
		for (int i = 0; i < HEADS; i++) {
			const uint16_t *at = from + min(first + i, r.heads - 1) * r.head_stride;

			x[i][0] = __ldg((const uint4 *)at);
			x[i][1] = __ldg((const uint4 *)(at + half));
		}
#pragma unroll
		for (int i = 0; i < HEADS; i++) {
			uint16_t *at = to + (first + i) * a.dim;

			rotate<dtype>(x[i], c, s);
			if (first + i >= r.heads)
				break;
			*(uint4 *)at = x[i][0];
			*(uint4 *)(at + half) = x[i][1];
		}
	}
}

template <int dtype>
static __global__ __launch_bounds__(THREADS) void rotate_kernel(const __grid_constant__ struct rotation a)
{
	const int parts = a.dim / 16, at = blockIdx.x * THREADS + threadIdx.x;
	const int token = at / parts, part = at % parts;

	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	if (blockIdx.x == 0)
		list_pages(a);
	if (token < a.kv_indptr[1])
		rotate_token<dtype>(a, a.k, token, token, part);
	if (token < a.qo_indptr[1])
		rotate_token<dtype>(a, a.q, token, token + a.kv_indptr[1] - a.qo_indptr[1], part);
}

/* The call of attn_paged, and what comes before it. */
struct chain {
	struct rotation rotation;
	struct cairn_attn_paged_args paged;
	size_t bytes;
};

/* Hands out the next bytes of the workspace in multiples of 256. */
static void *take(const struct cairn_attn_variant_args *a, struct chain *c, int64_t bytes)
{
	void *at = a->workspace ? (char *)a->workspace + c->bytes : NULL;

	c->bytes += ((size_t)bytes + 255) / 256 * 256;
	return at;
}

static struct rotation rotation_of(const struct cairn_attn_variant_args *a, struct chain *c)
{
	const struct cairn_attn_dense_args dense = attn_variant_as_dense(a);
	struct rotation r = {};

	r.q = { (const uint16_t *)a->q, NULL, cairn_attn_dense_q_stride(&dense), a->head_dim,
		a->num_qo_heads, a->nnz_qo };
	r.k = { (const uint16_t *)a->k, NULL, cairn_attn_dense_k_stride(&dense),
		cairn_attn_dense_k_head_stride(&dense), a->num_kv_heads, a->nnz_kv };
	r.q.to = (uint16_t *)take(a, c, (int64_t)a->nnz_qo * a->num_qo_heads * a->head_dim * 2);
	r.k.to = (uint16_t *)take(a, c, (int64_t)a->nnz_kv * a->num_kv_heads * a->head_dim * 2);
	r.inv_freq = a->t[0];
	r.qo_indptr = a->qo_indptr;
	r.kv_indptr = a->kv_indptr;
	r.indptr = (int32_t *)take(a, c, 8);
	r.indices = (int32_t *)take(a, c, (int64_t)a->nnz_kv / ATTN_ROTATED_PAGE * 4);
	r.last_page_len = (int32_t *)take(a, c, 4);
	r.dim = a->head_dim;
	return r;
}

static struct cairn_attn_paged_args paged_of(const struct cairn_attn_variant_args *a,
					     const struct rotation *r)
{
	struct cairn_attn_paged_args p = {};

	p.size = sizeof(p);
	p.out = a->out;
	p.lse = a->lse;
	p.q = r->q.to;
	p.qo_indptr = a->qo_indptr;
	p.kv = { r->k.to, (void *)(uintptr_t)a->v, r->indptr, r->indices, r->last_page_len,
		 a->nnz_kv / ATTN_ROTATED_PAGE, ATTN_ROTATED_PAGE, 1, a->max_kv_len };
	p.nnz_qo = a->nnz_qo;
	p.max_qo_len = a->max_qo_len;
	p.num_qo_heads = a->num_qo_heads;
	p.num_kv_heads = a->num_kv_heads;
	p.head_dim = a->head_dim;
	p.dtype = a->dtype;
	p.causal = a->causal;
	p.sm_scale = a->sm_scale;
	return p;
}

static int check_chain(const struct cairn_attn_variant_args *a)
{
	const struct cairn_attn_dense_args dense = attn_variant_as_dense(a);
	const int allowed = cairn_sms_of(a->sms), all = cairn_num_sms();

	if (allowed < 0 || all < 0)
		return allowed < 0 ? allowed : all;
	if (a->variant != CAIRN_VARIANT_ROPE || a->interleaved || a->batch != 1 || allowed < all)
		return cairn_error(EOPNOTSUPP, "attn_variant: variant, interleaved, batch, sms: the chain is "
				   "for rotations of one request");
	if (!a->nnz_qo || !a->nnz_kv || a->nnz_kv % ATTN_ROTATED_PAGE)
		return cairn_error(EOPNOTSUPP, "attn_variant: nnz_qo, nnz_kv: keys in whole pages of %d",
				   ATTN_ROTATED_PAGE);
	if (cairn_attn_dense_v_head_stride(&dense) != a->head_dim ||
	    cairn_attn_dense_v_stride(&dense) != (int64_t)a->num_kv_heads * a->head_dim)
		return cairn_error(EOPNOTSUPP, "attn_variant: v_stride, v_head_stride: pages have no gaps");
	return 0;
}

/* Lays out the workspace; that of attn_paged is the last. */
static int lay_out(const struct cairn_attn_variant_args *a, struct chain *c)
{
	size_t bytes;

	*c = {};
	CAIRN_TRY(check_chain(a));
	c->rotation = rotation_of(a, c);
	c->paged = paged_of(a, &c->rotation);
	CAIRN_TRY(cairn_attn_paged_workspace(&c->paged, &bytes));
	c->paged.workspace = take(a, c, (int64_t)bytes);
	c->paged.workspace_bytes = bytes;
	return 0;
}

int attn_rotated_workspace(const struct cairn_attn_variant_args *args, size_t *bytes)
{
	struct chain c;

	if (!bytes)
		return cairn_error(EINVAL, "attn_variant_workspace: null pointer");
	CAIRN_TRY(cairn_attn_variant_check_shape(args));
	CAIRN_TRY(lay_out(args, &c));
	*bytes = c.bytes;
	return 0;
}

int attn_rotated(const struct cairn_attn_variant_args *args, void *stream)
{
	struct cairn_launch l = {};
	struct chain c;
	void *params[] = { &c.rotation };
	int64_t threads;

	CAIRN_TRY(cairn_attn_variant_check(args));
	CAIRN_TRY(lay_out(args, &c));
	if (!args->workspace || (uintptr_t)args->workspace % 256 || args->workspace_bytes < c.bytes)
		return cairn_error(EINVAL, "attn_variant: workspace, workspace_bytes: at least %zu bytes, "
				   "256-byte aligned", c.bytes);
	threads = (int64_t)(args->nnz_kv > args->nnz_qo ? args->nnz_kv : args->nnz_qo) * args->head_dim / 16;
	l.grid[0] = (unsigned int)((threads + THREADS - 1) / THREADS);
	l.block[0] = THREADS;
	l.pdl = 1;
	l.stream = stream;
	CAIRN_TRY(cairn_launch(args->dtype == CAIRN_F16 ? (const void *)rotate_kernel<CAIRN_F16> :
			       (const void *)rotate_kernel<CAIRN_BF16>, &l, params));
	return cairn_attn_paged(&c.paged, stream);
}
