/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode - a decoding pass as one operation of the table
 *
 * Where a table has decode_step, a pass in which every request has one row, and draws from it, needs no other
 * operation: embedding, layers, logits and draw are one call. It has a workspace of its own, since that holds
 * counters from call to call.
 *
 * The results are those of the list of operations (forward.h) up to rounding, not to the bit: sums that
 * the list rounds on their way between two operations stay in fp32 here.
 *
 * Models that decode_step has no place for (biases of the MLP, norms of heads or of blocks, caps, weights of
 * 8 bits) take the list, and so does one with a window as soon as a request may be longer than that.
 *
 * A table may have decode_step but not all operations of a latent model's list: all its passes then go
 * through here, prompts too, a token of each request at a time: correct, and as slow as decoding. A table
 * whose decode_step knows no latent attention says so when the first call is prepared; one compiled before
 * there was any refuses the head size, which no other model has.
 */
#ifndef CAIRN_DECODE_H
#define CAIRN_DECODE_H

#include <stdint.h>

#include "serving/model/forward.h"

enum cairn_decode_path {
	CAIRN_DECODE_AUTO,		/* decode_step where the table has it and takes the shape */
	CAIRN_DECODE_GRAPH,		/* decode_step in this form, or an error */
	CAIRN_DECODE_PERSISTENT,
	CAIRN_DECODE_UNFUSED,		/* the list of operations, also where AUTO finds no other way */
};

/* Names for people, in the order above: "auto", "graph", "persistent", "unfused", NULL. */
extern const char *const cairn_decode_path_names[];

/* How the tokens of a pass are drawn; everything in the table's memory, a value for each request. */
struct cairn_draw {
	int32_t *tokens;		/* out; may be the ids of the batch */
	const float *temperature, *top_p, *min_p;	/* NULL, as the rest: the largest logit */
	const int32_t *top_k;
	const uint64_t *seed, *offset;
};

struct cairn_decoder;

/* -EOPNOTSUPP: a form is asked for that the table does not have, or that cannot hold this model. */
int cairn_decoder_create(struct cairn_decoder **out, const struct cairn_model *model,
			 enum cairn_decode_path path);
void cairn_decoder_destroy(struct cairn_decoder *decoder);	/* NULL is legal */

/*
 * Before each pass, outside of a capture: *fits: cairn_decoder_run() takes it. Makes the workspace ready;
 * where that takes another allocation, waits for the stream and sets *moved: passes captured before hold
 * stale addresses.
 */
int cairn_decoder_prepare(struct cairn_decoder *decoder, const struct cairn_kv_store *kv,
			  const struct cairn_batch *batch, const struct cairn_draw *draw, void *stream,
			  int *fits, int *moved);

/*
 * Asynchronous on stream; allocates nothing. *done 0: the table does not take this shape after all (one
 * without a workspace query says so no earlier); nothing has been launched, and later calls of
 * cairn_decoder_prepare() know.
 */
int cairn_decoder_run(struct cairn_decoder *decoder, const struct cairn_kv_store *kv,
		      const struct cairn_batch *batch, const struct cairn_draw *draw, void *stream,
		      int *done);

#endif
