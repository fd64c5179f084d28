/* SPDX-License-Identifier: Apache-2.0 */
/*
 * eagle_head - an EAGLE-3 head (Li et al. 2025): one decoder layer that drafts from a target's hidden states
 *
 * It takes the embedding of token i + 1 and a state, and gives logits over a vocabulary of its own:
 *
 *   h = state;  a = [norm(embed(token)), norm(h)];  h += o(attn(q(a), k(a), v(a)));  h += mlp(norm(h))
 *   logits = lm_head(norm(h));  h is the next state
 *
 * Format: config.json with the class LlamaForCausalLMEagle3 and model.safetensors, as vLLM and SGLang read.
 *   fc.weight [hidden, 3 target hidden]; midlayer.{hidden_norm, input_layernorm, post_attention_layernorm}
 *   .weight; midlayer.self_attn.{q,k,v,o}_proj.weight, with q, k and v of 2 hidden columns;
 *   midlayer.mlp.{gate,up,down}_proj.weight; norm.weight; lm_head.weight [draft vocabulary, hidden];
 *   d2t [draft vocabulary] int64: token of the target less token of the head; optional if both vocabularies
 *   are equal; t2d, which is not read; embed_tokens.weight [vocabulary, hidden], optional if hidden is the
 *   target's: then the target's is taken.
 * Without eagle_aux_hidden_state_layer_ids the layers are vLLM's 2, n / 2 and n - 3. Weights become the
 * target's dtype.
 *
 * Errors: -EINVAL, -EOPNOTSUPP (the text names file and field), -ENOMEM, -EIO, the table's.
 */
#ifndef CAIRN_EAGLE_HEAD_H
#define CAIRN_EAGLE_HEAD_H

#include "serving/engine/spec/draft_head.h"

int cairn_eagle_head_load(struct cairn_draft_head **out, const struct cairn_model *target, const char *dir);

#endif
