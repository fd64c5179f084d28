/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode - runs a decoding pass as one operation of the table
 *
 * If a table has decode_step, a pass in which every request has one row and draws a token from it needs no
 * other operation: embedding, layers, logits and draw are one call. decode_step has a workspace of its own,
 * which keeps counters from call to call. Ranks that share a model call decode_step_ranks instead, of which
 * the same holds.
 *
 * The results equal those of the operation list (forward.h) up to rounding, not bitwise: sums that the list
 * rounds between two operations stay in fp32 here.
 *
 * The operation list also runs models that decode_step does not support (MLP biases, head norms or block
 * norms, soft caps, 8-bit weights, routers with sigmoids or groups), and a model with a window once a request
 * may be longer than the window.
 *
 * A table may have decode_step but lack operations of a latent-attention model's graph. All passes of such a
 * model then use decode_step, prompts too, with one token of each request at a time: correct, but as slow as
 * decoding. A table whose decode_step does not support latent attention refuses it when the first call is
 * prepared; a table compiled before latent attention existed refuses the head size, which no other model has.
 */
#ifndef CAIRN_DECODE_H
#define CAIRN_DECODE_H

#include <stdint.h>

#include "serving/model/forward/forward.h"

enum cairn_decode_path {
	CAIRN_DECODE_AUTO,		/* decode_step if the table has it and supports the shape */
	CAIRN_DECODE_GRAPH,		/* decode_step in this form; an error if it cannot run */
	CAIRN_DECODE_PERSISTENT,
	CAIRN_DECODE_UNFUSED,		/* the operation list, also AUTO's fallback */
};

/* Names of the paths, in the order above: "auto", "graph", "persistent", "unfused", NULL. */
extern const char *const cairn_decode_path_names[];

/* How the tokens of a pass are drawn. All arrays are in the table's memory and have one value per request. */
struct cairn_draw {
	int32_t *tokens;		/* out; may alias the ids of the batch */
	const float *temperature, *top_p, *min_p;	/* NULL, as are the following arrays: greedy */
	const int32_t *top_k;
	const uint64_t *seed, *offset;
};

struct cairn_decoder;

/* -EOPNOTSUPP: the table lacks the form asked for, or that form does not support this model. */
int cairn_decoder_create(struct cairn_decoder **out, const struct cairn_model *model,
			 enum cairn_decode_path path);
void cairn_decoder_destroy(struct cairn_decoder *decoder);	/* NULL is legal */

/*
 * Must be called before each pass, outside of a capture. Sets *fits to whether cairn_decoder_run() supports
 * the pass, and prepares the workspace. If the workspace must grow, waits for the stream and, if it moved,
 * sets *moved: passes captured earlier hold stale addresses.
 */
int cairn_decoder_prepare(struct cairn_decoder *decoder, const struct cairn_kv_store *kv,
			  const struct cairn_batch *batch, const struct cairn_draw *draw, void *stream,
			  int *fits, int *moved);

/*
 * Asynchronous on stream; allocates nothing. *done == 0: the table does not support this shape after all (a
 * table without a workspace query cannot say so earlier). Nothing has then been launched, and from then on
 * cairn_decoder_prepare() reports batches of this size and larger as not supported.
 */
int cairn_decoder_run(struct cairn_decoder *decoder, const struct cairn_kv_store *kv,
		      const struct cairn_batch *batch, const struct cairn_draw *draw, void *stream,
		      int *done);

#endif
