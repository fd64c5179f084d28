/* SPDX-License-Identifier: Apache-2.0 */
/*
 * masks - how an engine obtains the masks of the draws of a pass
 *
 * A mask has a bit for each token of the vocabulary (mask_logits.h has their order). It belongs to one draw
 * of one answer: draw 0 gives the answer's first token. An engine asks for masks by these numbers and checks
 * that it got the right ones, so that it never uses a mask of another draw or answer.
 */
#ifndef CAIRN_MASKS_H
#define CAIRN_MASKS_H

#include <stdint.h>

/* One answer in a step. */
struct cairn_mask_item {
	uint64_t constraint;		/* as cairn_grammar_open() numbered it */
	int32_t seq;			/* the answer, 0 .. num_seqs - 1 */
	int64_t draw;			/* number of the draw after `tokens`: all tokens taken so far */
	/* what was drawn since the last step, without the token that ends the answer */
	const int32_t *tokens;		/* [num_tokens] */
	int32_t num_tokens;
	/* proposed for the draws `draw`, draw + 1, ...; the constraint does not advance by them */
	const int32_t *drafts;		/* [num_drafts] */
	int32_t num_drafts;
	int wants_masks;		/* wants 1 + num_drafts masks, one for each row */

	/* filled in by step(): */
	int32_t num_valid;		/* drafts that may be drawn; -1: the constraint has failed */
	/*
	 * The mask of draw number draw + i is mask(ctx, first_mask + i, constraint, seq, draw + i). Those
	 * past num_valid do not exist.
	 */
	int32_t first_mask;
};

struct cairn_mask_source {
	void *ctx;
	int32_t vocab_size;
	/*
	 * Waits for the masks of all items and fills in their answers. An item whose constraint has failed,
	 * or is not open, gets num_valid -1; so do all if the process fails. Returns 0 or -ENOMEM.
	 */
	int (*step)(void *ctx, struct cairn_mask_item *items, int32_t num);
	/*
	 * Returns ceil(vocab_size / 32) words, valid until the next step; NULL if mask number `mask` of
	 * the last step is not the one of this draw.
	 */
	const uint32_t *(*mask)(void *ctx, int32_t mask, uint64_t constraint, int32_t seq, int64_t draw);
};

#endif
