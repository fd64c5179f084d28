/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mtp_head - the layer for multi-token prediction of a DeepSeek-V3 checkpoint as a head (draft_head.h)
 *
 * Place i takes token i + 1 and the target's hidden state of place i after the last norm:
 *
 *   x = eh_proj [enorm(embed_tokens(token)), hnorm(state)];  h = layer(x)
 *   logits = shared_head.head(shared_head.norm(h));  h is the next state
 *
 * A chain uses the one module again and again, on its own states. This is the module of DeepSeek's report
 * (2412.19437, section 2.2), chained as vLLM does.
 *
 * Errors: those of cairn_model_load_mtp(); -EINVAL: the layer does not fit the target.
 */
#ifndef CAIRN_MTP_HEAD_H
#define CAIRN_MTP_HEAD_H

#include "serving/engine/spec/draft_head.h"

/* dir: the checkpoint of the target. The layer's weights get the form that the target's have. */
int cairn_mtp_head_load(struct cairn_draft_head **out, const struct cairn_model *target, const char *dir);

/* Returns the layer, for tests. */
struct cairn_model *cairn_mtp_head_model(struct cairn_draft_head *head);

#endif
