/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_local - an attention worker in the process of the model: it holds the cache and runs the attention
 *
 * It serves the link of a sliced pass (attn_link.h) on the pass's stream. It shares nothing with the model's
 * activations: results lie in its own memory until they are received.
 *
 * Before each pass the caller says by cairn_attn_local_begin() which keys there are. Errors: -EINVAL,
 * -EOPNOTSUPP (the table lacks an operation), those of the table's operations.
 */
#ifndef CAIRN_ATTN_LOCAL_H
#define CAIRN_ATTN_LOCAL_H

#include "serving/model/forward/forward.h"
#include "serving/slices/attn_link.h"

/*
 * The pages of one stripe that hold keys before a pass, listed as in kv_view.h. List i serves the rows
 * qo_indptr[i] .. qo_indptr[i+1] - 1, which see all of its keys: a request of the batch, or with latent
 * attention a single row, because mla_paged is causal. Without stripes, request b has kv_len[b] -
 * qo_len[b] such keys of the batch's lists. Arrays in the table's memory.
 */
struct cairn_attn_past {
	const int32_t *qo_indptr, *indptr, *indices, *last_page_len;
	/* [num_pages * page_size]: positions of the slots' keys; NULL: the list has all keys, in order */
	const int32_t *key_pos;
	int32_t num_lists;
};

struct cairn_attn_local;

#define CAIRN_ATTN_STRIPES	63	/* attn_merge takes one more, of the own keys */

/*
 * previous: see attn_link.h; at most CAIRN_ATTN_STRIPES. The model and the cache must outlive the worker. Of
 * the weights, only those of latent attention are used: KV_B, and without `previous` KV_NORM, too.
 */
int cairn_attn_local_create(struct cairn_attn_local **out, const struct cairn_model *model,
			    const struct cairn_kv_store *kv, int32_t max_rows, int previous);
void cairn_attn_local_destroy(struct cairn_attn_local *w);	/* NULL is legal */
/*
 * Prepares for passes of this batch, and makes room for their workspace; `moved` as in
 * cairn_scratch_reserve(). past: [previous]; may be NULL without `previous`. *b and *past are copied, so that
 * a captured pass reads their arrays again. With `previous`, the batch's lists only say where keys are
 * appended, and may leave rows out.
 */
int cairn_attn_local_begin(struct cairn_attn_local *w, const struct cairn_batch *b,
			   const struct cairn_attn_past *past, void *stream, int *moved);
/* Where send_q, or without `previous` send_kv, leaves the results that receive copies; *lse: NULL without. */
void cairn_attn_local_results(const struct cairn_attn_local *w, const void **o, const float **lse);
/* The link is valid as long as the worker. */
const struct cairn_attn_link *cairn_attn_local_link(struct cairn_attn_local *w);

#endif
