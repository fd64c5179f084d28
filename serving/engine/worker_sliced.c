// SPDX-License-Identifier: Apache-2.0
/*
 * worker_sliced - runs passes slice by slice, with attention by a local worker that holds the cache
 *
 * The products for q, k and v are not split, so that a pass has the bits of cairn_forward() on every table.
 */
#include "serving/engine/worker_impl.h"

int worker_sliced_create(struct cairn_worker *w, const struct cairn_slices *slices)
{
	CAIRN_TRY(cairn_sliced_create(&w->sliced, w->scratch, slices, CAIRN_SLICED_ROWS));
	return cairn_attn_local_create(&w->attn, w->model, &w->kv, w->opt.max_rows, 0);
}

void worker_sliced_destroy(struct cairn_worker *w)
{
	cairn_attn_local_destroy(w->attn);
	cairn_sliced_destroy(w->sliced);
}

int worker_sliced_reserve(struct cairn_worker *w, int *moved)
{
	CAIRN_TRY(cairn_attn_local_begin(w->attn, &w->batch, NULL, w->stream, moved));
	return cairn_sliced_reserve(w->sliced, &w->batch, cairn_attn_local_link(w->attn), w->stream, moved);
}

/* The attention worker gets this pass's batch; room for it has been made. */
int worker_sliced_forward(struct cairn_worker *w)
{
	int moved = 0;

	CAIRN_TRY(cairn_attn_local_begin(w->attn, &w->batch, NULL, w->stream, &moved));
	return cairn_sliced_forward(w->sliced, &w->batch, cairn_attn_local_link(w->attn), w->stream);
}
