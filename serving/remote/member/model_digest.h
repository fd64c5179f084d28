/* SPDX-License-Identifier: Apache-2.0 */
/* model_digest - a digest by which two processes know that they have the same model */
#ifndef CAIRN_MODEL_DIGEST_H
#define CAIRN_MODEL_DIGEST_H

#include "serving/model/model.h"

/*
 * Computes a digest, which is not 0, of what a pass reads besides its tokens and its cache: the weights in
 * the form in which they are kept, sizes, frequencies of the rotary embedding, scales of an 8-bit cache.
 * Reads all weights once. Of stages of a pipeline, the sum of their digests is that of the whole model.
 * Errors: -ENOMEM; the table's.
 */
int cairn_model_digest(const struct cairn_model *model, uint64_t *digest);

#endif
