// SPDX-License-Identifier: Apache-2.0
/* attn_standard - the chain of three kernels for each request */
#include "conformance/tables/attn_standard.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>

#include "primitives/base/dtype.h"
#include "primitives/base/launch.h"

#define MOST_BYTES	((int64_t)4 << 30)	/* largest size of S */

struct buffers {
	char *lt, *s, *p;
	size_t bytes;
};

static struct buffers lay_out(const struct cairn_attn_dense_args *a)
{
	int64_t elements = (int64_t)a->num_qo_heads * a->max_qo_len * a->max_kv_len;
	char *base = a->workspace;
	struct buffers b = { .lt = base, .s = base + CAIRN_GEMM_LT_WORKSPACE };

	b.p = b.s + (4 * elements + 255) / 256 * 256;
	b.bytes = (size_t)(b.p - base) + (size_t)(2 * elements);
	return b;
}

static int check_scalars(const struct cairn_attn_dense_args *a)
{
	int allowed = cairn_sms_of(a->sms), all = cairn_num_sms();

	if (allowed < 0 || all < 0)
		return allowed < 0 ? allowed : all;
	if (a->num_qo_heads != a->num_kv_heads || a->window || a->softcap > 0 || allowed < all)
		return cairn_error(EOPNOTSUPP, "attn_dense: num_kv_heads, window, softcap, sms: standard "
				   "attention has none of them");
	if ((int64_t)a->batch * a->max_qo_len != a->nnz_qo || (int64_t)a->batch * a->max_kv_len != a->nnz_kv)
		return cairn_error(EOPNOTSUPP, "attn_dense: nnz_qo, nnz_kv: requests of different lengths");
	if (a->max_kv_len % 8 || a->max_kv_len > ATTN_STANDARD_KEYS)
		return cairn_error(EOPNOTSUPP, "attn_dense: max_kv_len: %d is not a multiple of 8 up to %d",
				   a->max_kv_len, ATTN_STANDARD_KEYS);
	if (4 * (int64_t)a->num_qo_heads * a->max_qo_len * a->max_kv_len > MOST_BYTES)
		return cairn_error(EOPNOTSUPP, "attn_dense: max_qo_len, max_kv_len: S takes more than 4 GiB");
	return 0;
}

/* Checks that request b begins at row b * len, for all b. Must not be called in a capture. */
static int check_lengths(const int32_t *indptr, int32_t batch, int32_t len, void *stream)
{
	int32_t *host = malloc(((size_t)batch + 1) * sizeof(*host));
	cudaError_t err;
	int equal = 1;

	if (!host)
		return cairn_error(ENOMEM, "attn_dense: no memory for %d lengths", batch);
	err = cudaMemcpyAsync(host, indptr, ((size_t)batch + 1) * sizeof(*host), cudaMemcpyDeviceToHost,
			      stream);
	if (err == cudaSuccess)
		err = cudaStreamSynchronize(stream);
	for (int32_t b = 0; err == cudaSuccess && b <= batch; b++)
		equal &= host[b] == b * len;
	free(host);
	if (err != cudaSuccess)
		return cairn_cuda_error(err, "reading indptr", __FILE__, __LINE__);
	return equal ? 0 : cairn_error(EOPNOTSUPP, "attn_dense: qo_indptr, kv_indptr: different lengths");
}

static const void *at(const void *x, int64_t element)
{
	return (const char *)x + 2 * element;
}

static struct cairn_gemm_lt logits(const struct cairn_attn_dense_args *a, const struct buffers *w, int32_t b)
{
	int64_t q_row = cairn_attn_dense_q_stride(a), k_row = cairn_attn_dense_k_stride(a);

	return (struct cairn_gemm_lt){
		.gemm = {
			.size = sizeof(struct cairn_gemm_args), .out = w->s,
			.a = at(a->q, b * (int64_t)a->max_qo_len * q_row),
			.b = at(a->k, b * (int64_t)a->max_kv_len * k_row),
			.workspace = w->lt, .workspace_bytes = CAIRN_GEMM_LT_WORKSPACE, .m = a->max_qo_len,
			.n = a->max_kv_len, .k = a->qk_dim, .dtype = a->dtype, .out_dtype = CAIRN_F32,
		},
		.out_head = (int64_t)a->max_qo_len * a->max_kv_len, .a_head = a->qk_dim,
		.b_head = cairn_attn_dense_k_head_stride(a), .a_row = q_row, .b_row = k_row,
		.heads = a->num_qo_heads,
	};
}

static struct cairn_gemm_lt values(const struct cairn_attn_dense_args *a, const struct buffers *w, int32_t b)
{
	int64_t out_row = (int64_t)a->num_qo_heads * a->v_dim, v_row = cairn_attn_dense_v_stride(a);

	return (struct cairn_gemm_lt){
		.gemm = {
			.size = sizeof(struct cairn_gemm_args),
			.out = (char *)a->out + 2 * b * (int64_t)a->max_qo_len * out_row, .a = w->p,
			.b = at(a->v, b * (int64_t)a->max_kv_len * v_row), .workspace = w->lt,
			.workspace_bytes = CAIRN_GEMM_LT_WORKSPACE, .m = a->max_qo_len, .n = a->v_dim,
			.k = a->max_kv_len, .dtype = a->dtype, .out_dtype = a->dtype,
		},
		.out_head = a->v_dim, .a_head = (int64_t)a->max_qo_len * a->max_kv_len,
		.b_head = cairn_attn_dense_v_head_stride(a), .out_row = out_row, .b_row = v_row,
		.heads = a->num_qo_heads, .b_kn = 1,
	};
}

int attn_standard_workspace(const struct cairn_attn_dense_args *a, size_t *bytes)
{
	if (!bytes)
		return cairn_error(EINVAL, "attn_dense_workspace: bytes: null pointer");
	CAIRN_TRY(cairn_attn_dense_check_shape(a));
	CAIRN_TRY(check_scalars(a));
	*bytes = lay_out(a).bytes;
	return 0;
}

int attn_standard(const struct cairn_attn_dense_args *a,
		  int (*product)(const char *name, const struct cairn_gemm_lt *p, void *stream), void *stream)
{
	enum cudaStreamCaptureStatus capture;
	struct buffers w;

	CAIRN_TRY(cairn_attn_dense_check(a));
	CAIRN_TRY(check_scalars(a));
	if (!a->nnz_qo || !a->nnz_kv)
		return cairn_error(EOPNOTSUPP, "attn_dense: nnz_qo, nnz_kv: standard attention needs rows");
	w = lay_out(a);
	if (!a->workspace || a->workspace_bytes < w.bytes)
		return cairn_error(EINVAL, "attn_dense: workspace_bytes: %zu, needs %zu", a->workspace_bytes,
				   w.bytes);
	CAIRN_CUDA(cudaStreamIsCapturing(stream, &capture));
	if (capture == cudaStreamCaptureStatusNone) {
		CAIRN_TRY(check_lengths(a->qo_indptr, a->batch, a->max_qo_len, stream));
		CAIRN_TRY(check_lengths(a->kv_indptr, a->batch, a->max_kv_len, stream));
	}
	for (int32_t b = 0; b < a->batch; b++) {
		const struct cairn_gemm_lt s = logits(a, &w, b), v = values(a, &w, b);
		const struct attn_softmax_args softmax = {
			.p = w.p, .s = (float *)w.s, .heads = a->num_qo_heads, .rows = a->max_qo_len,
			.lse = a->lse ? a->lse + (int64_t)b * a->max_qo_len * a->num_qo_heads : NULL,
			.keys = a->max_kv_len, .dtype = a->dtype, .causal = a->causal,
			.sm_scale = a->sm_scale,
		};

		CAIRN_TRY(product(b ? NULL : "logits", &s, stream));
		CAIRN_TRY(attn_softmax(&softmax, stream));
		CAIRN_TRY(product(b ? NULL : "values", &v, stream));
	}
	return 0;
}
