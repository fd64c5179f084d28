// SPDX-License-Identifier: Apache-2.0
/*
 * cluster_attn_ref - the reference: computes every request's row of out and its new key and value
 *
 * The definition and its bounds are those of block_attn_ref.c. The last rounding adds u of each value, or
 * half a subnormal. Rows of requests without a key, and of requests whose x or keys are not finite, are not
 * judged; the rows of other requests still are.
 */
#include "fused/cluster_attn/cluster_attn.h"

#include <stdlib.h>

#include "primitives/base/error.h"
#include "fused/cluster_attn/block_attn_ref.h"

/* exact NULL: stores the rounded row to memory; otherwise sets values and bounds. */
static void finish(struct block_row r, int64_t n, int64_t to, int dtype, void *memory,
		   struct cairn_exact *exact)
{
	double u = cairn_dtype_roundoff(dtype), tiny = cairn_dtype_tiny(dtype);

	for (int64_t i = 0; i < n; i++) {
		if (!exact) {
			cairn_store(memory, dtype, to + i, r.val[i]);
			continue;
		}
		exact->val[to + i] = r.val[i];
		/* an implementation rounds a number that lies within err of val */
		exact->bound[to + i] = isnan(r.val[i]) ? 0 :
			r.err[i] + u * (fabs(r.val[i]) + r.err[i]) + tiny;
	}
}

static int all_requests(const struct cairn_cluster_attn_args *a, struct cairn_exact *exact)
{
	int64_t hidden = a->hidden, nk = (int64_t)a->num_kv_heads * a->head_dim, size = 2 * hidden + 2 * nk;
	double *val = calloc((size_t)(2 * size), sizeof(double)), *err = val + size;
	struct block_row x = { val, err }, out = { val + hidden, err + hidden };
	struct block_row k = { out.val + hidden, out.err + hidden }, v = { k.val + nk, k.err + nk };
	int ret = 0;

	if (!val)
		return cairn_error(ENOMEM, "cluster_attn: no memory for %lld numbers", (long long)size);
	if (!exact)
		out.err = k.err = v.err = NULL;
	for (int b = 0; b < a->kv.batch && !ret; b++) {
		int64_t len = cairn_kv_len(&a->kv, b);
		int64_t slot = len > 0 ? cairn_kv_slot(&a->kv, b, len - 1) * nk : 0;
		int defined = len > 0;

		for (int64_t i = 0; i < hidden; i++) {
			x.val[i] = cairn_load(a->x, a->dtype, b * hidden + i);
			defined &= isfinite(x.val[i]);
		}
		if (len > 0) {
			ret = cairn_block_attn_unrounded(a, b, x, out, k, v);
			if (ret)
				break;
			finish(out, hidden, b * hidden, a->dtype, a->out, exact ? &exact[0] : NULL);
			finish(k, nk, slot, a->dtype, a->kv.k_pages, exact ? &exact[1] : NULL);
			finish(v, nk, slot, a->dtype, a->kv.v_pages, exact ? &exact[2] : NULL);
		}
		for (int64_t i = 0; len > 0 && i < hidden; i++)
			defined &= !isnan(out.val[i]);
		for (int64_t i = 0; exact && !defined && i < hidden; i++) {
			exact[0].val[b * hidden + i] = NAN;
			exact[0].bound[b * hidden + i] = INFINITY;
		}
	}
	free(val);
	return ret;
}

int cairn_cluster_attn_ref(const struct cairn_cluster_attn_args *a, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_cluster_attn_check(a));
	return all_requests(a, NULL);
}

int cairn_cluster_attn_exact(const struct cairn_cluster_attn_args *a, struct cairn_exact *exact)
{
	CAIRN_TRY(cairn_cluster_attn_check(a));
	return all_requests(a, exact);
}
