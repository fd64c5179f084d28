// SPDX-License-Identifier: Apache-2.0
/*
 * forward_check - asks a table, before any weight is loaded, whether it can run a model
 *
 * For each operation of the graph this calls its workspace query for passes of one row, and then the
 * operation itself for a pass of no rows. All contracts except gemm's allow that, and nothing may be read or
 * written, so the pointers need no memory behind them. (A device kernel that read its lengths all the same
 * would destroy the device's context.) Only -EOPNOTSUPP is a refusal; a table that rejects a pass without
 * rows for another reason is judged by its first real pass.
 */
#include "serving/model/forward/forward_impl.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "primitives/base/error.h"

#define NOWHERE	((void *)(uintptr_t)4096)	/* an aligned address that is not NULL */

/* Returns whether the text has `word` with no letter, digit or underscore next to it. */
static int has_word(const char *text, const char *word)
{
	size_t n = strlen(word);

	for (const char *at = strstr(text, word); at; at = strstr(at + 1, word)) {
		int before = at > text ? (unsigned char)at[-1] : ' ', after = (unsigned char)at[n];

		if (!isalnum(before) && before != '_' && before != '.' && !isalnum(after) && after != '_')
			return 1;
	}
	return 0;
}

/* Returns the key of config.json behind the argument that a refusal's text names, or NULL. */
static const char *field_of(const struct cairn_model *m, const struct cairn_graph_op *op, const char *text)
{
	static const struct { const char *argument, *field; } always[] = {
		{ "kv_lora_rank", "kv_lora_rank" }, { "rope_dim", "qk_rope_head_dim" },
		{ "nope_dim", "qk_nope_head_dim" }, { "v_dim", "v_head_dim" },
		{ "num_heads", "num_attention_heads" }, { "num_qo_heads", "num_attention_heads" },
		{ "num_kv_heads", "num_key_value_heads" }, { "head_dim", "head_dim" },
		{ "num_experts", "the number of experts" }, { "experts_per_token", "num_experts_per_tok" },
		{ "num_groups", "n_group" }, { "groups_per_token", "topk_group" },
		{ "shared_intermediate", "n_shared_experts" }, { "intermediate", "moe_intermediate_size" },
		{ "hidden", "hidden_size" }, { "vocab", "vocab_size" },
		{ "window", "sliding_window" }, { "rotary_dim", "head_dim" }, { "dtype", "torch_dtype" },
		{ "eps", "rms_norm_eps" },
	};
	static const char *const widths[CAIRN_NUM_DIMS] = {
		[CAIRN_D_HIDDEN] = "hidden_size", [CAIRN_D_INTER] = "intermediate_size",
		[CAIRN_D_GATE_UP] = "intermediate_size", [CAIRN_D_Q_LORA] = "q_lora_rank",
		[CAIRN_D_ATTN] = "num_attention_heads", [CAIRN_D_Q] = "num_attention_heads",
		[CAIRN_D_QKV] = "head_dim", [CAIRN_D_VOCAB] = "vocab_size",
		[CAIRN_D_HEAD_VOCAB] = "vocab_size",
	};

	for (size_t i = 0; i < sizeof(always) / sizeof(always[0]); i++) {
		if (has_word(text, always[i].argument))
			return always[i].field;
	}
	if (op && op->num_out && (has_word(text, "dim") || has_word(text, "n") || has_word(text, "k"))) {
		int32_t value = has_word(text, "k") && op->num_in ? op->in[0] : op->out[0];

		return widths[m->graph->values[value].shape.width];
	}
	return NULL;
}

static int refuse(const struct cairn_model *m, const char *dir, const struct cairn_graph_op *op,
		  const char *name)
{
	const char *field;
	char text[384];

	snprintf(text, sizeof(text), "%s", cairn_last_error());
	field = field_of(m, op, text);
	return cairn_error(EOPNOTSUPP, "%s/config.json: %s%sthe table cannot run %s: %s", dir,
			   field ? field : "", field ? ": " : "", name, text);
}

/* Asks the operations that draw tokens, which every request needs. */
static int check_draws(const struct cairn_model *m, const char *dir, void *stream)
{
	struct cairn_argmax_args argmax = {
		.size = sizeof(argmax), .out = NOWHERE, .logits = NOWHERE, .vocab = m->config.vocab_size,
		.dtype = CAIRN_F32,
	};
	struct cairn_sample_args sample = {
		.size = sizeof(sample), .out = NOWHERE, .logits = NOWHERE, .temperature = NOWHERE,
		.top_k = NOWHERE, .top_p = NOWHERE, .min_p = NOWHERE, .seed = NOWHERE, .offset = NOWHERE,
		.workspace = NOWHERE, .workspace_bytes = SIZE_MAX / 2, .vocab = m->config.vocab_size,
	};

	if (m->impl->argmax && CAIRN_TABLE(m->impl, argmax, &argmax, stream) == -EOPNOTSUPP)
		return refuse(m, dir, NULL, "argmax");
	if (m->impl->sample && CAIRN_TABLE(m->impl, sample, &sample, stream) == -EOPNOTSUPP)
		return refuse(m, dir, NULL, "sample");
	return 0;
}

/* Asks every operation. some: two passes of one row, one that decodes and one that is a prompt. */
static int check_ops(struct walk *w, const struct cairn_batch *none, const struct cairn_batch *some,
		     const char *dir)
{
	for (int32_t o = 0; o < w->g->num_ops; o++) {
		const struct cairn_graph_op *op = &w->g->ops[o];
		int is_gemm = op->kind == CAIRN_OP_GEMM || op->kind == CAIRN_OP_LM_HEAD;

		/* layers 0, 1 and the last one stand for all, attention included */
		if (op->layer > 1 && op->layer < w->m->config.num_hidden_layers - 1)
			continue;
		w->asking = 1;
		for (int i = 0; i < 2; i++) {
			w->b = &some[i];
			if (forward_run_op(w, op) == -EOPNOTSUPP)
				return refuse(w->m, dir, op, op->name);
		}
		w->b = none;
		w->asking = 0;
		if (!is_gemm && forward_run_op(w, op) == -EOPNOTSUPP)
			return refuse(w->m, dir, op, op->name);
	}
	return 0;
}

int cairn_forward_check(const struct cairn_model *model, const char *dir)
{
	const struct cairn_batch none = {
		.logits = NOWHERE, .ids = NOWHERE, .positions = NOWHERE, .qo_indptr = NOWHERE,
		.kv_indptr = NOWHERE, .kv_indices = NOWHERE, .kv_last_page_len = NOWHERE,
		.logit_rows = NOWHERE,
	};
	const struct cairn_kv_store kv = {
		.base = NOWHERE, .v_offset = cairn_model_is_latent(model) ? 0 : 256, .num_pages = 1,
		.page_size = 16,
	};
	struct cairn_scratch scratch = {
		.base = NOWHERE, .lane[0] = { NOWHERE, SIZE_MAX / 2 }, .moe = { NOWHERE, SIZE_MAX / 2 },
	};
	struct cairn_pass_sizes sizes = forward_sizes(model, 1, 1);
	struct cairn_model m = *model;
	struct walk w = { .m = &m, .g = m.graph, .s = &scratch, .buffers = &scratch.buffers, .kv = &kv };
	struct cairn_batch some[2] = { none, none };
	int ret;

	if (!cairn_forward_supported(model))
		return 0;	/* decode_step alone runs the model: decode.h */
	for (int i = 0; i < 2; i++) {
		some[i].num_rows = some[i].batch = some[i].num_logits = 1;
		some[i].max_qo_len = some[i].max_kv_len = 1;
		some[i].num_prompts = some[i].prompt_rows = i;
	}
	m.base = NOWHERE;
	m.inv_freq = NOWHERE;
	scratch.model = &m;
	CAIRN_TRY(cairn_buffers_place(&scratch.buffers, m.graph, &sizes));
	ret = CAIRN_TABLE(m.impl, stream_create, &w.stream);
	if (ret)
		goto out_free;
	ret = check_ops(&w, &none, some, dir);
	if (!ret)
		ret = check_draws(&m, dir, w.stream);
	m.impl->stream_sync(w.stream);
	m.impl->stream_destroy(w.stream);
	if (!ret)
		cairn_clear_error();
out_free:
	cairn_buffers_free(&scratch.buffers);
	return ret;
}
