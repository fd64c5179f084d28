/* SPDX-License-Identifier: Apache-2.0 */
/* sliced_impl - shared by sliced.c and its mutants */
#ifndef CAIRN_SLICED_IMPL_H
#define CAIRN_SLICED_IMPL_H

#include "serving/model/forward/forward_impl.h"
#include "serving/slices/sliced.h"

/* A pass under way. */
struct sliced_pass {
	struct cairn_sliced *s;
	const struct cairn_attn_link *link;
	struct walk w;
	int32_t next;			/* slice */
	int in_attention;
};

struct cairn_sliced {
	struct cairn_scratch *scratch;
	const struct cairn_slices *slices;
	enum cairn_sliced_form form;
	struct cairn_buffers buffers;		/* offsets from the scratch's base */
	/*
	 * Results of the attention operator that is under way, for links to previous keys: those of the
	 * stripes, and behind them that of the pass's own keys, unless the merge attends to them. o:
	 * [previous + 1, rows, attn]; lse: [previous + 1, rows, heads].
	 */
	struct room o, lse;
	/* for latent attention: own keys, in pages of one token */
	struct room keys;
	struct room lists;			/* of these pages: see own_latents() */
	struct room own;			/* workspace of the attention to own keys */
	struct sliced_pass pass;
};

/*
 * Sets lives[v] for each storage v: from the first step that uses it to the last, and as long as a value that
 * is forwarded from it. Queries, keys and values live until the merge, which may attend to own keys. lives:
 * [num_values].
 */
void sliced_lives(struct cairn_life *lives, const struct cairn_slices *s, const struct cairn_op_graph *g);

#endif
