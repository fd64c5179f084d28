/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fi_sample - sample by FlashInfer, for the table of that name
 *
 * The contract is that of sample.h, with these exceptions.
 *
 *   Random numbers: FlashInfer's own. It draws by rejection, from the seed and offset of row 0 and the place
 *   of a row in the batch, so that the token of a draw is another than ours and depends on the batch. Its
 *   tokens are judged only by whether they are among the kept ones: cairn_impl_has_own_rules().
 *   Supported: temperature above 0, min_p 0, top_k on in all rows or off in all rows.
 *   Functions: as FlashInfer combines them if top_k and top_p differ by row, which is what the contract has.
 *   With top_k, the mask of the logits; then, except for plain draws at temperature 1, softmax and the draw
 *   from probabilities, with top_p if a row has one below 1. Where top_k is one number for all rows,
 *   FlashInfer also has a path in which PyTorch gathers the tokens, which is not used here.
 *   Values of rows: a call outside of a capture reads temperature, top_k, top_p and min_p, which choose the
 *   functions. A captured call takes those of the latest call of the shape, which must exist.
 *   Workspace: two copies of the logits, and a byte a row; 2 MB of its own on each device.
 */
#ifndef CAIRN_FI_SAMPLE_H
#define CAIRN_FI_SAMPLE_H

#include "primitives/draw/sample.h"

int cairn_sample_fi(const struct cairn_sample_args *args, void *stream);
int cairn_sample_fi_workspace(const struct cairn_sample_args *args, size_t *bytes);

#endif
