// SPDX-License-Identifier: Apache-2.0
/* ladder - host code that all steps share: checks and the launch */
#include "fused/attention/ladder/ladder.h"

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/launch.h"

#define MOST_CTAS	65535		/* the limit of a grid in y and in z */

/* The steps use all SMs, so `sms` must not exclude any. */
static int check_plain(int32_t window, float softcap, int32_t sms)
{
	int num_sms = sms ? cairn_num_sms() : 0;

	if (num_sms < 0)
		return num_sms;
	if (window || softcap != 0)
		return cairn_error(EOPNOTSUPP, "ladder: window, softcap: must be 0");
	if (sms && sms < num_sms)
		return cairn_error(EOPNOTSUPP, "ladder: sms: %d, but all %d are needed", sms, num_sms);
	return 0;
}

int ladder_take(const struct cairn_attn_dense_args *args, struct cairn_attn_dense_args *a)
{
	CAIRN_TRY(cairn_attn_dense_check(args));
	CAIRN_TRY(check_plain(args->window, args->softcap, args->sms));
	if (args->qk_dim != LADDER_DIM || args->v_dim != LADDER_DIM)
		return cairn_error(EOPNOTSUPP, "ladder: qk_dim, v_dim: %d, %d: not %d", args->qk_dim,
				   args->v_dim, LADDER_DIM);
	if (args->num_qo_heads > MOST_CTAS || args->batch > MOST_CTAS)
		return cairn_error(EOPNOTSUPP, "ladder: num_qo_heads, batch: more than %d", MOST_CTAS);
	*a = *args;
	a->q_stride = cairn_attn_dense_q_stride(args);
	a->k_stride = cairn_attn_dense_k_stride(args);
	a->v_stride = cairn_attn_dense_v_stride(args);
	a->k_head_stride = cairn_attn_dense_k_head_stride(args);
	a->v_head_stride = cairn_attn_dense_v_head_stride(args);
	return 0;
}

int ladder_launch(const struct ladder_kernel *k, const struct cairn_attn_dense_args *a, void **params,
		  void *stream)
{
	const struct cairn_launch l = {
		.grid = { (unsigned int)((a->max_qo_len - 1) / k->rows + 1), (unsigned int)a->num_qo_heads,
			  (unsigned int)a->batch },
		.block = { (unsigned int)k->threads }, .smem = k->smem, .stream = stream,
	};

	if (!a->batch || !a->nnz_qo || !a->max_qo_len)
		return 0;
	return cairn_launch(k->kernel[a->dtype == CAIRN_BF16], &l, params);
}

/* The part of ladder_check_decode() that reads only scalars, for the workspace query. */
static int check_decode_shape(const struct cairn_attn_paged_args *a, int max_group)
{
	CAIRN_TRY(cairn_attn_paged_check_shape(a));
	CAIRN_TRY(check_plain(a->window, a->softcap, a->sms));
	if (a->kv_fp8)
		return cairn_error(EOPNOTSUPP, "ladder: kv_fp8: not supported");
	if (a->max_qo_len > 1)
		return cairn_error(EOPNOTSUPP, "ladder: max_qo_len: %d: more than one token", a->max_qo_len);
	if (a->head_dim != LADDER_DIM)
		return cairn_error(EOPNOTSUPP, "ladder: head_dim: %d: not %d", a->head_dim, LADDER_DIM);
	if (a->num_qo_heads / a->num_kv_heads > max_group)
		return cairn_error(EOPNOTSUPP, "ladder: num_qo_heads: more than %d for each KV head",
				   max_group);
	return 0;
}

int ladder_check_decode(const struct cairn_attn_paged_args *args, int max_group, int *busy)
{
	CAIRN_TRY(cairn_attn_paged_check(args));
	CAIRN_TRY(check_decode_shape(args, max_group));
	if (args->kv.batch > MOST_CTAS)
		return cairn_error(EOPNOTSUPP, "ladder: kv.batch: more than %d", MOST_CTAS);
	*busy = args->kv.batch && args->nnz_qo && args->max_qo_len;
	return 0;
}

int ladder_splits(const struct cairn_attn_paged_args *a, int ctas)
{
	int num_sms = cairn_num_sms();
	int64_t tasks = (int64_t)a->kv.batch * a->num_kv_heads, most = (a->kv.max_len + 127) / 128, splits;

	if (num_sms < 0)
		return num_sms;
	splits = tasks ? (int64_t)ctas * num_sms / tasks : 1;
	splits = splits < most ? splits : most;
	return splits < 1 ? 1 : (int)splits;
}

int ladder_decode_workspace(const struct cairn_attn_paged_args *args, size_t *bytes)
{
	int splits;

	if (!bytes)
		return cairn_error(EINVAL, "ladder_decode_workspace: null pointer");
	CAIRN_TRY(check_decode_shape(args, LADDER_GROUP));
	splits = ladder_splits(args, LADDER_CTAS);
	if (splits < 0)
		return splits;
	*bytes = (size_t)args->kv.batch * (size_t)args->num_qo_heads * (size_t)splits *
		 (LADDER_DIM + 2) * sizeof(float);
	return 0;
}

int ladder_check_split(const struct cairn_attn_paged_args *args, int *busy)
{
	size_t bytes;

	CAIRN_TRY(ladder_check_decode(args, LADDER_GROUP, busy));
	CAIRN_TRY(ladder_decode_workspace(args, &bytes));
	if (bytes && (!args->workspace || (uintptr_t)args->workspace % 256 || args->workspace_bytes < bytes))
		return cairn_error(EINVAL, "ladder: workspace, workspace_bytes: at least %zu bytes, 256-byte "
				   "aligned", bytes);
	return 0;
}
