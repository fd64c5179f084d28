// SPDX-License-Identifier: Apache-2.0
/*
 * worker_nano - cuts passes into nano-batches
 *
 * A pass is built as a sequential one first. Then its cuts are chosen, the rows take their places, and the
 * arrays of the nano-batches are filled, all in the host block that one copy uploads. Decoding passes have
 * their decoding rows in order, so that draws keep their rows, and cuts that depend on the number of rows
 * alone: so a captured pass can be replayed.
 */
#include <stdlib.h>
#include <string.h>

#include "serving/engine/worker/worker_impl.h"

/* The pages of a pass, and one number of each row. */
static size_t num_old(const struct cairn_worker *w)
{
	size_t pages = (size_t)((w->opt.max_context + w->opt.page_size - 1) / w->opt.page_size);

	return (size_t)w->opt.max_batch * pages + (size_t)w->opt.max_rows;
}

int worker_nano_create(struct cairn_worker *w, const struct cairn_nano_plans *plans)
{
	if (plans->num < 1)
		return 0;
	w->nanos = calloc((size_t)plans->num, sizeof(*w->nanos));
	w->nano_old = malloc(num_old(w) * sizeof(*w->nano_old));
	if (!w->nanos || !w->nano_old)
		return cairn_error(ENOMEM, "worker: no memory for %d rows", w->opt.max_rows);
	w->plans = *plans;
	w->plans.plans = NULL;
	for (int32_t i = 0; i < plans->num; i++)
		CAIRN_TRY(cairn_nano_create(&w->nanos[i], w->scratch, &plans->plans[i]));
	return 0;
}

void worker_nano_destroy(struct cairn_worker *w)
{
	for (int32_t i = 0; i < w->plans.num; i++)
		cairn_nano_destroy(w->nanos[i]);
	free(w->nanos);
	free(w->nano_old);
}

int32_t worker_nano_batches(const struct cairn_worker *w)
{
	int32_t most = 0;

	for (int32_t i = 0; i < w->plans.num; i++) {
		int32_t n = cairn_nano_plan_of(w->nanos[i])->num_batches;

		most = n > most ? n : most;
	}
	return most;
}

/* Moves an element of each row to the row's place. */
static void move_rows(const struct cairn_nano_cuts *cuts, int32_t *rows, int32_t *old, int32_t num)
{
	memcpy(old, rows, (size_t)num * sizeof(*old));
	for (int32_t r = 0; r < num; r++)
		rows[cairn_nano_row(cuts, r)] = old[r];
}

static int32_t count_decodes(const struct arrays *a, int32_t batch)
{
	int32_t n = 0;

	while (n < batch && a->qo_indptr[n + 1] == n + 1)
		n++;
	return n;
}

/* Returns the index of the plan for the pass, or -1. */
static int32_t pick_plan(const struct cairn_worker *w, int32_t decodes)
{
	const int32_t *positions = w->flight->host.positions;
	const struct cairn_nano_plan *plan;
	int64_t keys = 0;
	int32_t i = 0;

	for (int32_t r = 0; r < decodes; r++)
		keys += positions[r] + 1;
	if (w->plans.pick)
		i = w->plans.pick(w->plans.ctx, w->batch.num_rows, decodes,
				  decodes ? (int32_t)(keys / decodes) : 0);
	if (i < 0 || i >= w->plans.num)
		return -1;
	plan = cairn_nano_plan_of(w->nanos[i]);
	return w->batch.num_rows < plan->num_batches || w->batch.num_rows < plan->least_rows ? -1 : i;
}

int worker_nano_split(struct cairn_worker *w, int decode)
{
	struct cairn_batch *b = &w->batch;
	struct arrays *a = &w->flight->host;
	int32_t decodes = count_decodes(a, b->batch), index;
	int32_t num_pages = a->kv_indptr[b->batch], *old = w->nano_old;
	struct cairn_nano_host in = {
		.qo_indptr = a->qo_indptr, .kv_indptr = a->kv_indptr, .last_page_len = a->last_page_len,
		.kv_indices = old, .page_size = w->opt.page_size,
	};
	struct cairn_nano_cuts cuts;

	w->as_nano = 0;
	index = w->fused || !w->nanos ? -1 : pick_plan(w, decodes);
	if (index < 0)
		return 0;
	CAIRN_TRY(cairn_nano_cut(&cuts, cairn_nano_plan_of(w->nanos[index]), a->qo_indptr, b->batch,
				 b->num_rows, decode ? 0 : decodes));
	memcpy(old, a->kv_indices, (size_t)num_pages * sizeof(*old));
	move_rows(&cuts, a->ids, old + num_pages, b->num_rows);
	move_rows(&cuts, a->positions, old + num_pages, b->num_rows);
	move_rows(&cuts, a->from, old + num_pages, b->num_rows);
	for (int32_t i = 0; i < b->num_logits && b->logit_rows; i++)
		a->logit_rows[i] = cairn_nano_row(&cuts, a->logit_rows[i]);
	CAIRN_TRY(cairn_nano_split(&w->nano_pass, a->nano, a->kv_indices, w->dev.nano, &in, b, &cuts));
	w->as_nano = 1 + index;
	return 0;
}
