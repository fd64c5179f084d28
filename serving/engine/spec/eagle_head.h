/* SPDX-License-Identifier: Apache-2.0 */
/*
 * eagle_head - an EAGLE-3 head (Li et al. 2025): one decoder layer that continues a target model's thought
 *
 * For place i of a text the head takes the embedding of token i + 1 and a state. The state of a place that
 * the target has computed is the target's feature there (worker_taps.c); that of a later place is the head's
 * own state from the place before. It gives logits for token i + 2, over a vocabulary of its own:
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

#include "serving/engine/worker.h"

struct cairn_eagle_head;

/* The target must outlive the head. */
int cairn_eagle_head_load(struct cairn_eagle_head **out, const struct cairn_model *target, const char *dir);
void cairn_eagle_head_free(struct cairn_eagle_head *head);	/* NULL is legal */

const struct cairn_model_config *cairn_eagle_head_config(const struct cairn_eagle_head *head);
const struct cairn_worker_taps *cairn_eagle_head_taps(const struct cairn_eagle_head *head);
const struct cairn_impl *cairn_eagle_head_impl(const struct cairn_eagle_head *head);
int cairn_eagle_head_dtype(const struct cairn_eagle_head *head);
/* Returns the target's token for a token of the head; -1: there is none. */
int32_t cairn_eagle_head_token(const struct cairn_eagle_head *head, int32_t id);
/* Returns the bytes of a row's key (its value takes as many). */
size_t cairn_eagle_head_key_bytes(const struct cairn_eagle_head *head);

/* A pass; all pointers are to the table's memory. */
struct cairn_eagle_pass {
	const int32_t *ids, *positions;		/* [num_rows]; the tokens after those of the places */
	char *states;				/* [num_rows, hidden], in; out: those of the next places */
	const int32_t *qo_indptr;		/* [batch + 1] */
	struct cairn_kv_view kv;		/* with max_len set */
	const int32_t *last_rows;		/* [num_last]: rows whose results are wanted */
	float *logits;				/* [num_last, draft vocabulary], out */
	char *next;				/* [num_last, hidden], out: their states */
	int32_t num_rows, max_qo_len, num_last;
};

/* Makes room for passes of this size, which may be a maximum. */
int cairn_eagle_head_reserve(struct cairn_eagle_head *head, int32_t max_rows, int32_t max_last);
int cairn_eagle_head_run(struct cairn_eagle_head *head, const struct cairn_eagle_pass *pass, void *stream);

#endif
