/* SPDX-License-Identifier: Apache-2.0 */
/* attn_variant_host - code that the reference and the CPU table share: the keys of a query, struct attn_x */
#ifndef CAIRN_ATTN_VARIANT_HOST_H
#define CAIRN_ATTN_VARIANT_HOST_H

#include "fused/attention/variant/attn_variant.h"
#include "fused/attention/variant/attn_variant_text.h"

/* Returns the hooks' argument for query i of request b, head h. The caller sets k_pos and distance. */
static inline struct attn_x attn_x_of(const struct cairn_attn_variant_args *a, int b, int i, int h)
{
	struct attn_x x = {
		.request = b, .head = h, .kv_head = h / (a->num_qo_heads / a->num_kv_heads),
		.row = a->qo_indptr[b] + i, .qo_len = a->qo_indptr[b + 1] - a->qo_indptr[b],
		.kv_len = a->kv_indptr[b + 1] - a->kv_indptr[b], .p = a->p, .t = a->t,
	};

	x.q_pos = i + x.kv_len - x.qo_len;
	return x;
}

/* Returns the argument of key() for key j. */
static inline struct attn_x attn_x_of_key(const struct cairn_attn_variant_args *a, int b, int j, int g)
{
	struct attn_x x = attn_x_of(a, b, 0, g * (a->num_qo_heads / a->num_kv_heads));

	x.q_pos = x.head = x.row = 0;
	x.k_pos = j;
	return x;
}

/* Sets the keys *lo .. *hi - 1 that the query sees by the causal mask and range(). */
static inline void attn_keys_of(const struct cairn_attn_variant_args *a, const struct attn_hooks *hooks,
				const struct attn_x *x, int *lo, int *hi)
{
	int end = a->causal && x->q_pos + 1 < x->kv_len ? x->q_pos + 1 : x->kv_len;

	end = end < 0 ? 0 : end;
	*lo = 0;
	*hi = end;
	if (hooks->range)
		hooks->range(x, lo, hi);
	*lo = *lo < 0 ? 0 : *lo;
	*hi = *hi > end ? end : *hi;
	if (*hi < *lo)
		*hi = *lo;
}

/* Returns the first element of a pair; the other is *step elements after it. */
static inline int attn_pair(const struct cairn_attn_variant_args *a, int pair, int *step)
{
	*step = a->interleaved ? 1 : a->head_dim / 2;
	return a->interleaved ? 2 * pair : pair;
}

#endif
