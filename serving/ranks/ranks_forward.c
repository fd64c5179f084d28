// SPDX-License-Identifier: Apache-2.0
/*
 * ranks_forward - what a pass does differently when several ranks share the model
 *
 * Partial sums of o and down go through all_reduce_norm, and shares of the logits through all_to_all. The
 * calls here name no communicator: the table adds it (serving/ranks/ranks.h).
 */
#include "serving/model/forward/forward_impl.h"

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

#define MOST_LOGITS	16384	/* all_to_all moves rows of at most 64 KiB */

int forward_sum_norm(const struct walk *w, const struct cairn_rmsnorm_args *a)
{
	const struct cairn_all_reduce_norm_args sum = {
		.size = sizeof(sum), .out = a->out, .residual = a->residual, .x = a->x, .weight = a->weight,
		.rows = a->rows, .dim = a->dim, .dtype = a->dtype, .eps = a->eps,
		.weight_offset = a->weight_offset,
	};

	return CAIRN_TABLE(w->m->impl, all_reduce_norm, &sum, w->stream);
}

/* A matrix that is not the embedding has only this rank's rows. */
size_t cairn_model_head_at(const struct cairn_model *m)
{
	if (!m->config.tie_word_embeddings || m->dims[CAIRN_D_HEAD_VOCAB] == m->dims[CAIRN_D_VOCAB])
		return 0;
	return (size_t)m->rank * (size_t)m->dims[CAIRN_D_HEAD_VOCAB] * (size_t)m->dims[CAIRN_D_HIDDEN] *
	       cairn_dtype_bytes(m->dtype);
}

/* Rank r's logits are those of its tokens, the r-th share of the vocabulary, so they are put side by side. */
int forward_gather(const struct walk *w, const struct cairn_graph_op *op)
{
	const int32_t share = w->m->dims[CAIRN_D_HEAD_VOCAB], vocab = w->m->dims[CAIRN_D_VOCAB];
	const int32_t element = sizeof(float);
	struct cairn_all_to_all_args args = {
		.size = sizeof(args), .rows = w->b->num_logits, .out_block = (int64_t)share * element,
		.out_stride = (int64_t)vocab * element, .x_stride = (int64_t)share * element,
	};

	for (int32_t first = 0; first < share; first += MOST_LOGITS) {
		args.out = forward_at(w, op->out[0]) + (int64_t)first * element;
		args.x = forward_at(w, op->in[0]) + (int64_t)first * element;
		args.row_bytes = (share - first < MOST_LOGITS ? share - first : MOST_LOGITS) * element;
		CAIRN_TRY(CAIRN_TABLE(w->m->impl, all_to_all, &args, w->stream));
	}
	return 0;
}
