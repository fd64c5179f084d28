/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_local - an attention worker in the process of the model: it holds the cache and runs the attention
 *
 * It serves the link of a sliced pass (attn_link.h) on the pass's stream. It shares nothing with the model's
 * activations: results lie in its own memory until they are received.
 *
 * Before each pass the caller says by cairn_attn_local_begin() which keys there are. Errors: -EINVAL,
 * -EOPNOTSUPP (the table lacks an operation; latent attention with `previous`, because mla_append rotates the
 * queries and appends in one operation), those of the table's operations.
 */
#ifndef CAIRN_ATTN_LOCAL_H
#define CAIRN_ATTN_LOCAL_H

#include "serving/model/forward/forward.h"
#include "serving/slices/attn_link.h"

/*
 * The pages that hold the keys before a pass, listed as in kv_view.h: request b has kv_len[b] - qo_len[b]
 * keys of the batch's lists. Arrays in the table's memory.
 */
struct cairn_attn_past {
	const int32_t *indptr, *indices, *last_page_len;
};

struct cairn_attn_local;

/*
 * previous: see attn_link.h. The model and the cache must outlive the worker. Without latent attention, the
 * model needs neither weights nor a graph.
 */
int cairn_attn_local_create(struct cairn_attn_local **out, const struct cairn_model *model,
			    const struct cairn_kv_store *kv, int32_t max_rows, int previous);
void cairn_attn_local_destroy(struct cairn_attn_local *w);	/* NULL is legal */
/*
 * Prepares for passes of this batch, and makes room for their workspace; `moved` as in
 * cairn_scratch_reserve(). past may be NULL without `previous`. *b and *past are copied, so that a captured
 * pass reads their arrays again.
 */
int cairn_attn_local_begin(struct cairn_attn_local *w, const struct cairn_batch *b,
			   const struct cairn_attn_past *past, void *stream, int *moved);
/* The link is valid as long as the worker. */
const struct cairn_attn_link *cairn_attn_local_link(struct cairn_attn_local *w);

#endif
