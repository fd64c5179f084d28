// SPDX-License-Identifier: Apache-2.0
/*
 * attn_bwd_cpu - the gradients of attention without a GPU, in fp32
 *
 * A task is one KV head of one request. It holds widened K and V and the sums of dk and dv, and visits its
 * rows once, as FlashAttention-2 does with tiles. So a gradient depends on its own request only.
 */
#include "fused/attention/backward/attn_bwd.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/wide.h"
#include "fused/attention/base/attn_block.h"
#include "fused/attention/base/attn_tile.h"

/* One KV head of one request: rows of K and V widened, and the sums of their gradients. */
struct task {
	int qo_first, qo_len, kv_first, kv_len, g;
	float *k, *v, *dk, *dv;
};

static const void *at(const struct cairn_attn_bwd_args *a, const void *x, int64_t element)
{
	return (const char *)x + element * (int64_t)cairn_dtype_bytes(a->dtype);
}

static float dot(const float *x, const float *y, int n)
{
	float sum = 0;

	#pragma omp simd reduction(+:sum)
	for (int i = 0; i < n; i++)
		sum += x[i] * y[i];
	return sum;
}

static void add(float *to, float weight, const float *x, int n)
{
	for (int i = 0; i < n; i++)
		to[i] += weight * x[i];
}

/* Visits the keys of row i, head h: adds to dk and dv, and writes dq. */
static CAIRN_WIDE void one_row(const struct cairn_attn_bwd_args *a, const struct task *t, int i, int h)
{
	const struct cairn_attn_dense_args f = cairn_attn_bwd_forward(a);
	float q[ATTN_MAX_DIM], out[ATTN_MAX_DIM], dout[ATTN_MAX_DIM], dq[ATTN_MAX_DIM] = { 0 }, delta;
	int end = attn_visible(i, t->qo_len, t->kv_len, a->causal);
	int64_t row = t->qo_first + i, o_at = (row * a->num_qo_heads + h) * a->v_dim;
	int64_t q_at = row * cairn_attn_dense_q_stride(&f) + (int64_t)h * a->qk_dim;

	attn_widen_row(q, at(a, a->q, q_at), a->qk_dim, a->dtype);
	attn_widen_row(out, at(a, a->out, o_at), a->v_dim, a->dtype);
	attn_widen_row(dout, at(a, a->dout, o_at), a->v_dim, a->dtype);
	delta = dot(dout, out, a->v_dim);
	for (int j = attn_first_key(i, t->qo_len, t->kv_len, a->window); j < end; j++) {
		const float *k = t->k + (int64_t)j * a->qk_dim, *v = t->v + (int64_t)j * a->v_dim;
		float s = dot(q, k, a->qk_dim) * a->sm_scale, slope = 1, p, ds;

		if (a->softcap > 0) {
			/* 1 - tanh^2, without the cancellation near 1 */
			float e = expf(-2 * fabsf(s / a->softcap));

			slope = 4 * e / ((1 + e) * (1 + e));
			s = a->softcap * tanhf(s / a->softcap);
		}
		p = expf(s - a->lse[row * a->num_qo_heads + h]);
		ds = p * (dot(dout, v, a->v_dim) - delta) * slope;
		add(dq, ds, k, a->qk_dim);
		add(t->dk + (int64_t)j * a->qk_dim, ds, q, a->qk_dim);
		add(t->dv + (int64_t)j * a->v_dim, p, dout, a->v_dim);
	}
	for (int d = 0; d < a->qk_dim; d++)
		dq[d] *= a->sm_scale;
	cairn_store_row(a->dq, a->dtype, (row * a->num_qo_heads + h) * a->qk_dim, dq, a->qk_dim);
}

static void run(const struct cairn_attn_bwd_args *a, const struct task *t)
{
	const struct cairn_attn_dense_args f = cairn_attn_bwd_forward(a);
	int64_t k_stride = cairn_attn_dense_k_stride(&f), v_stride = cairn_attn_dense_v_stride(&f);
	int group = a->num_qo_heads / a->num_kv_heads;
	/* keys before every row's window are not read */
	int first = attn_first_key(0, t->qo_len, t->kv_len, a->window);

	for (int64_t j = first; j < t->kv_len && t->qo_len; j++) {
		int64_t row = t->kv_first + j;

		attn_widen_row(t->k + j * a->qk_dim,
			       at(a, a->k, row * k_stride + t->g * cairn_attn_dense_k_head_stride(&f)),
			       a->qk_dim, a->dtype);
		attn_widen_row(t->v + j * a->v_dim,
			       at(a, a->v, row * v_stride + t->g * cairn_attn_dense_v_head_stride(&f)),
			       a->v_dim, a->dtype);
	}
	for (int i = 0; i < t->qo_len; i++)
		for (int h = t->g * group; h < (t->g + 1) * group; h++)
			one_row(a, t, i, h);
	for (int64_t j = 0; j < t->kv_len; j++) {
		int64_t to = (t->kv_first + j) * a->num_kv_heads + t->g;

		for (int d = 0; d < a->qk_dim; d++)
			t->dk[j * a->qk_dim + d] *= a->sm_scale;
		cairn_store_row(a->dk, a->dtype, to * a->qk_dim, t->dk + j * a->qk_dim, a->qk_dim);
		cairn_store_row(a->dv, a->dtype, to * a->v_dim, t->dv + j * a->v_dim, a->v_dim);
	}
}

int cairn_attn_bwd_cpu(const struct cairn_attn_bwd_args *a, void *stream)
{
	int no_memory = 0;

	(void)stream;
	CAIRN_TRY(cairn_attn_bwd_check(a));
	#pragma omp parallel for schedule(dynamic) reduction(|:no_memory)
	for (int n = 0; n < a->batch * a->num_kv_heads; n++) {
		int b = n / a->num_kv_heads;
		struct task t = {
			.qo_first = a->qo_indptr[b], .qo_len = a->qo_indptr[b + 1] - a->qo_indptr[b],
			.kv_first = a->kv_indptr[b], .kv_len = a->kv_indptr[b + 1] - a->kv_indptr[b],
			.g = n % a->num_kv_heads,
		};
		size_t keys = (size_t)t.kv_len;

		t.k = calloc(2 * keys * (size_t)(a->qk_dim + a->v_dim) + 1, sizeof(float));
		no_memory |= !t.k;
		if (!t.k)
			continue;
		t.v = t.k + keys * (size_t)a->qk_dim;
		t.dk = t.v + keys * (size_t)a->v_dim;
		t.dv = t.dk + keys * (size_t)a->qk_dim;
		run(a, &t);
		free(t.k);
	}
	return no_memory ? cairn_error(ENOMEM, "attn_bwd: no memory for K and V") : 0;
}
