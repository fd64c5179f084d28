// SPDX-License-Identifier: Apache-2.0
/*
 * worker_mask - the masks of a pass: memory, upload, and the operation that applies them
 *
 * The host writes the masks of a pass into pinned memory of its flight, so that the tokens can be compared
 * with them when the pass is collected. The device has one copy: it is written when the pass before has been
 * collected, whose draw therefore no longer reads it.
 */
#include <string.h>

#include "serving/engine/worker/worker_impl.h"

static size_t words_of(const struct cairn_worker *w)
{
	return ((size_t)w->vocab + 31) / 32;
}

int worker_mask_prepare(struct cairn_worker *w)
{
	size_t bytes = (size_t)w->opt.max_batch * words_of(w) * sizeof(*w->mask_bits);
	struct flight *f = w->flight;
	void *p;

	if (!w->impl->mask_logits)
		return cairn_error(EOPNOTSUPP, "%s: the table has no operation mask_logits", w->impl->name);
	if (!w->mask_bits) {
		CAIRN_TRY(TABLE(w, mem_alloc, &p, bytes));
		w->mask_bits = p;
	}
	if (!f->masks) {
		CAIRN_TRY(worker_host_alloc(w, bytes, &p));
		f->masks = p;
	}
	memset(f->masks, 0, (size_t)f->num_masks * words_of(w) * sizeof(*f->masks));
	return 0;
}

int32_t cairn_worker_masks(const struct cairn_worker *w)
{
	return w->undrawn ? w->flight->num_masks : 0;
}

uint32_t *cairn_worker_mask(const struct cairn_worker *w, int32_t i)
{
	return w->flight->masks + (size_t)i * words_of(w);
}

int worker_mask_upload(struct cairn_worker *w)
{
	size_t bytes = (size_t)w->flight->num_masks * words_of(w) * sizeof(*w->mask_bits);

	return TABLE(w, mem_copy, w->mask_bits, w->flight->masks, bytes, CAIRN_COPY_TO_DEVICE, w->stream);
}

int worker_mask_apply(struct cairn_worker *w, int32_t rows)
{
	struct cairn_mask_logits_args args = {
		.size = sizeof(args), .logits = w->logits, .bits = w->mask_bits, .slot = w->dev.mask,
		.rows = rows, .vocab = w->vocab, .num_slots = w->opt.max_batch,
	};

	return TABLE(w, mask_logits, &args, w->stream);
}

void worker_mask_destroy(struct cairn_worker *w)
{
	if (w->mask_bits)
		w->impl->mem_free(w->mask_bits);
	for (int i = 0; i < CAIRN_WORKER_FLIGHTS; i++)
		worker_host_free(w, w->flights[i].masks);
}
