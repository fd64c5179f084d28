/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_test - shared by the tests of model and engine: the golden checkpoints
 *
 * Include conformance/harness.h first.
 */
#ifndef CAIRN_MODEL_TEST_H
#define CAIRN_MODEL_TEST_H

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "conformance/tables/open_table_test.h"
#include "conformance/tables/program.h"
#include "conformance/suite/spawn.h"
#include "serving/model/model.h"
#include "serving/model/recipe_test.h"
#include "serving/model/checkpoint/safetensors.h"

/* Made by tools/golden/golden.py: a prompt, exact logits at some positions, the greedy continuation. */
struct golden {
	char dir[PATH_MAX];
	struct cairn_safetensors *st;
	const int32_t *tokens, *positions, *greedy;
	const float *logits;
	int num_tokens, num_positions, num_greedy;
};

/* Returns whether the table's results are bitwise those of ref. */
static inline int is_ref(const char *table)
{
	return strstr(table, "ref") != NULL;
}

/* Returns whether the table has its own memory and can capture passes. */
static inline int on_device(const struct cairn_impl *impl)
{
	return !(impl->flags & CAIRN_IMPL_HOST_MEM);
}

static inline const void *golden_tensor(struct cairn_test *t, struct golden *g, const char *name, int *count)
{
	const struct cairn_tensor *tensor = cairn_safetensors_find(g->st, name);

	if (!EXPECT(t, tensor && tensor->rank >= 1))
		return NULL;
	*count = (int)tensor->shape[0];
	return tensor->data;
}

/* Writes a checkpoint's config.json, with `from` replaced by `to` once, to the test's directory. */
static inline int altered_config(struct cairn_test *t, const char *original, const char *from, const char *to)
{
	char path[PATH_MAX + 32], text[4096], out[4200], *at;
	FILE *f;
	size_t n;

	snprintf(path, sizeof(path), "%s/config.json", original);
	f = fopen(path, "r");
	n = f ? fread(text, 1, sizeof(text) - 1, f) : 0;
	if (f)
		fclose(f);
	text[n] = 0;
	at = strstr(text, from);
	if (!EXPECT(t, n && at != NULL))
		return -1;
	n = (size_t)snprintf(out, sizeof(out), "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
	cairn_tmpfile(t, path, sizeof(path), "config.json", out, n);
	return 0;
}

/*
 * Copies a checkpoint to the test's directory with a changed config.json and links to the weights. A
 * checkpoint that is already there, where open_golden() puts some, is changed in place. dir: PATH_MAX bytes.
 */
static inline int altered_checkpoint(struct cairn_test *t, const char *original, const char *from,
				     const char *to, char *dir)
{
	char path[PATH_MAX + 32], target[PATH_MAX + 32];

	snprintf(dir, PATH_MAX, "%s", cairn_tmpdir(t));
	if (altered_config(t, original, from, to))
		return -1;
	if (!strcmp(original, dir))
		return 0;
	snprintf(target, sizeof(target), "%s/model.safetensors", original);
	snprintf(path, sizeof(path), "%s/model.safetensors", dir);
	unlink(path);
	return EXPECT(t, symlink(target, path) == 0) ? 0 : -1;
}

static inline int open_golden(struct cairn_test *t, struct golden *g, const char *name)
{
	char path[PATH_MAX + 32];
	int rows = 0;

	memset(g, 0, sizeof(*g));
	snprintf(g->dir, sizeof(g->dir), "%s/serving/golden/%s", cairn_data_dir(), name);
	snprintf(path, sizeof(path), "%s/logits.safetensors", g->dir);
	if (!EXPECT(t, cairn_safetensors_open(path, &g->st) == 0))
		return -1;
	snprintf(path, sizeof(path), "%s/recipe.txt", g->dir);
	if (!access(path, F_OK) && (altered_config(t, g->dir, "", "") || recipe_weights(t, path)))
		return -1;
	if (!access(path, F_OK))
		snprintf(g->dir, sizeof(g->dir), "%s", cairn_tmpdir(t));
	g->tokens = golden_tensor(t, g, "tokens", &g->num_tokens);
	g->positions = golden_tensor(t, g, "positions", &g->num_positions);
	g->greedy = golden_tensor(t, g, "greedy", &g->num_greedy);
	g->logits = golden_tensor(t, g, "logits", &rows);
	if (EXPECT(t, g->tokens && g->positions && g->greedy && g->logits && rows == g->num_positions))
		return 0;
	cairn_safetensors_close(g->st);
	return -1;
}

/*
 * Changes deepseek_v3_fp8_tiny, which open_golden() has just opened: its MLPs get sizes that are multiples of
 * 128, so that no two matrices share a block, and all matrices but kv_b_proj, which is never kept in 8 bits,
 * get values that bf16 does not represent.
 */
static inline int whole_blocks(struct cairn_test *t, struct golden *g)
{
	char path[PATH_MAX + 64], dir[PATH_MAX];
	struct recipe_line l;
	FILE *from, *to;
	int seed = 0;

	snprintf(path, sizeof(path), "%s/serving/golden/deepseek_v3_fp8_tiny/recipe.txt", cairn_data_dir());
	from = fopen(path, "r");
	cairn_tmpfile(t, path, sizeof(path), "whole_blocks.txt", "", 0);
	to = fopen(path, "w");
	if (!EXPECT(t, from && to && fscanf(from, "seed %d", &seed) == 1))
		return -1;
	fprintf(to, "seed %d\n", seed);
	while (recipe_next(from, &l)) {
		int *inner = strstr(l.name, "down_proj") ? &l.cols : &l.rows;

		if (strstr(l.name, "mlp.") && *l.kind == 'c')
			*inner = *inner == 192 ? 256 : 128;
		fprintf(to, "%s%s %s %d", l.kind, *l.kind == 'c' && !strstr(l.name, "kv_b_proj") ? "3" : "",
			l.name, l.rows);
		if (strcmp(l.kind, "norm"))
			fprintf(to, " %d %d", l.cols, l.shift);
		fprintf(to, "\n");
	}
	fclose(from);
	fclose(to);
	return recipe_weights(t, path) ||
	       altered_checkpoint(t, g->dir, "\"intermediate_size\": 192",
				  "\"intermediate_size\": 256", dir) ||
	       altered_checkpoint(t, g->dir, "\"moe_intermediate_size\": 64",
				  "\"moe_intermediate_size\": 128", dir) ? -1 : 0;
}

/*
 * Changes qwen3_fp8_rows_tiny, which open_golden() has just opened: its matrices get values that bf16 does
 * not represent. kind: "rows3", or "tensor3" for one scale in each matrix.
 */
static inline int inexact_rows(struct cairn_test *t, struct golden *g, const char *kind)
{
	char path[PATH_MAX + 64], dir[PATH_MAX], line[256];
	FILE *from, *to;

	snprintf(path, sizeof(path), "%s/serving/golden/qwen3_fp8_rows_tiny/recipe.txt", cairn_data_dir());
	from = fopen(path, "r");
	cairn_tmpfile(t, path, sizeof(path), "inexact_rows.txt", "", 0);
	to = fopen(path, "w");
	if (!EXPECT(t, from && to))
		return -1;
	while (fgets(line, sizeof(line), from))
		fprintf(to, "%s%s", *line == 'r' ? kind : "", *line == 'r' ? strchr(line, ' ') : line);
	fclose(from);
	fclose(to);
	return recipe_weights(t, path) ||
	       (*kind == 't' && altered_checkpoint(t, g->dir, "\"channel\"", "\"tensor\"", dir)) ? -1 : 0;
}

static inline void close_golden(struct golden *g)
{
	cairn_safetensors_close(g->st);
}

/* Checks that a checkpoint is refused with this error. */
static inline void refuses(struct cairn_test *t, const struct cairn_impl *impl, const char *dir, int want,
		    const char *text)
{
	struct cairn_model *m = NULL;

	EXPECT(t, cairn_model_load(&m, impl, dir, NULL, NULL) == want);
	EXPECT_CONTAINS(t, cairn_last_error(), text);
	EXPECT(t, m == NULL);
}

/* Returns element i of tensor `name` of a crafted checkpoint: pseudo-random
 * in [-0.4, 0.4); exact: rounded to bf16. */
static inline float crafted_value(const char *name, int64_t i, int exact)
{
	uint64_t z = (uint64_t)i + 1;
	float v;

	for (const char *c = name; *c; c++)
		z = (z ^ (uint8_t)*c) * 0x100000001b3u;
	z = (z ^ z >> 31) * 0x94d049bb133111ebu;
	v = ((float)(z >> 40) * 0x1p-23f - 1) * 0.4f;
	return exact ? cairn_bf16_to_float(cairn_double_to_bf16((double)v)) : v;
}

/*
 * Writes a checkpoint of one layer with all biases, in F32, to the test's directory; its values are those of
 * crafted_value(). dtype_name I32 relabels the same bytes. dir: PATH_MAX bytes.
 */
static inline void crafted_checkpoint(struct cairn_test *t, const char *dtype, const char *dtype_name,
				      int exact, char *dir)
{
	static const struct { const char *name; int rows, cols; } tensors[] = {
		{ "lm_head.weight", 48, 64 }, { "model.embed_tokens.weight", 48, 64 },
		{ "model.layers.0.input_layernorm.weight", 64, 0 },
		{ "model.layers.0.mlp.down_proj.bias", 64, 0 },
		{ "model.layers.0.mlp.down_proj.weight", 64, 32 },
		{ "model.layers.0.mlp.gate_proj.bias", 32, 0 },
		{ "model.layers.0.mlp.gate_proj.weight", 32, 64 },
		{ "model.layers.0.mlp.up_proj.bias", 32, 0 }, { "model.layers.0.mlp.up_proj.weight", 32, 64 },
		{ "model.layers.0.post_attention_layernorm.weight", 64, 0 },
		{ "model.layers.0.self_attn.k_proj.bias", 64, 0 },
		{ "model.layers.0.self_attn.k_proj.weight", 64, 64 },
		{ "model.layers.0.self_attn.o_proj.bias", 64, 0 },
		{ "model.layers.0.self_attn.o_proj.weight", 64, 128 },
		{ "model.layers.0.self_attn.q_proj.bias", 128, 0 },
		{ "model.layers.0.self_attn.q_proj.weight", 128, 64 },
		{ "model.layers.0.self_attn.v_proj.bias", 64, 0 },
		{ "model.layers.0.self_attn.v_proj.weight", 64, 64 },
		{ "model.norm.weight", 64, 0 },
	};
	static char file[8 + 4096 + 4 * 50000];
	size_t begin = 0, at = 0, n, header = 4096;
	char path[PATH_MAX + 32], config[1024], *json = file + 8;

	memset(json, ' ', header);
	for (size_t i = 0; i < ARRAY_SIZE(tensors); i++) {
		int cols = tensors[i].cols ? tensors[i].cols : 1;
		size_t count = (size_t)(tensors[i].rows * cols);
		char shape[32];

		snprintf(shape, sizeof(shape), tensors[i].cols ? "%d,%d" : "%d", tensors[i].rows, cols);
		at += (size_t)snprintf(json + at, header - at, "%c\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],"
				       "\"data_offsets\":[%zu,%zu]}", i ? ',' : '{',
				       tensors[i].name, dtype_name,
				       shape, begin, begin + 4 * count);
		for (size_t k = 0; k < count; k++) {
			float v = crafted_value(tensors[i].name, (int64_t)k, exact);

			memcpy(json + header + begin + 4 * k, &v, 4);
		}
		begin += 4 * count;
	}
	json[at++] = '}';
	json[at] = ' ';
	memcpy(file, &(uint64_t){ header }, 8);
	cairn_tmpfile(t, path, sizeof(path), "model.safetensors", file, 8 + header + begin);
	n = (size_t)snprintf(config, sizeof(config),
			     "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":32,"
			     "\"num_hidden_layers\":1,\"num_attention_heads\":2,\"num_key_value_heads\":1,"
			     "\"head_dim\":64,\"vocab_size\":48,\"max_position_embeddings\":128,"
			     "\"rms_norm_eps\":1e-5,\"attention_bias\":true,\"mlp_bias\":true,"
			     "\"tie_word_embeddings\":false,\"bos_token_id\":1,\"eos_token_id\":2,"
			     "\"hidden_act\":\"silu\",\"torch_dtype\":\"%s\"}", dtype);
	cairn_tmpfile(t, path, sizeof(path), "config.json", config, n);
	snprintf(dir, PATH_MAX, "%s", cairn_tmpdir(t));
}

#endif
