/* SPDX-License-Identifier: Apache-2.0 */
/* config - reads config.json and generation_config.json (config.h): sizes, heads, tokens and dtype */
#include "serving/model/checkpoint/config_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "primitives/base/error.h"

#define MAX_CONFIG_BYTES	(1u << 20)	/* the largest known file has 20 KB */
#define EAGLE_CLASS		"LlamaForCausalLMEagle3"
#define CONFIG_NAME		"config.json"
#define GENERATION_NAME		"generation_config.json"

int cairn_config_size(const json_t *root, struct cairn_json_at at, const char *key, int64_t max,
		      int32_t *value)
{
	int64_t v = *value;

	CAIRN_TRY(cairn_json_int(root, at, key, *value < 0, 1, max, &v));
	*value = (int32_t)v;
	return 0;
}

int cairn_config_find(const char *value, struct cairn_json_at at, const char *key, const char *const *names,
		      int n, int *which)
{
	char known[256];
	size_t used = 0;

	for (int i = 0; i < n; i++) {
		if (!strcmp(value, names[i])) {
			*which = i;
			return 0;
		}
		used += (size_t)snprintf(known + used, sizeof(known) - used, "%s%s", i ? ", " : "",
					 names[i]);
	}
	return cairn_error(EOPNOTSUPP, "%s: %s%s: %s is not supported (%s %s)", at.file, at.where, key,
			   CAIRN_QUOTED(value), known, n > 1 ? "are" : "is");
}

int cairn_config_choice(const json_t *root, struct cairn_json_at at, const char *key,
			const char *const *names, int n, int *which)
{
	const char *value = NULL;

	CAIRN_TRY(cairn_json_string(root, at, key, false, &value, NULL));
	return value ? cairn_config_find(value, at, key, names, n, which) : 0;
}

int cairn_config_refuse(const json_t *root, struct cairn_json_at at, const char *key, bool refused)
{
	bool value = !refused;

	CAIRN_TRY(cairn_json_bool(root, at, key, false, &value));
	if (value == refused)
		return cairn_error(EOPNOTSUPP, "%s: %s%s: %s is not supported", at.file, at.where, key,
				   value ? "true" : "false");
	return 0;
}

/* Defaults of absent keys, by architecture. head_dim 0: hidden_size / num_attention_heads. */
static const struct defaults {
	int32_t positions, head_dim;
	double eps, theta;
	bool tied;
} defaults[CAIRN_NUM_ARCHS] = {
	[CAIRN_ARCH_LLAMA] = { 2048, 0, 1e-6, 10000, false },
	[CAIRN_ARCH_QWEN2] = { 32768, 0, 1e-6, 10000, false },
	[CAIRN_ARCH_DEEPSEEK_V2] = { 2048, 0, 1e-6, 10000, false },
	[CAIRN_ARCH_MISTRAL] = { 131072, 0, 1e-6, 10000, false },
	[CAIRN_ARCH_QWEN3] = { 32768, 128, 1e-6, 10000, false },
	[CAIRN_ARCH_GEMMA2] = { 8192, 256, 1e-6, 10000, true },
	[CAIRN_ARCH_MIXTRAL] = { 131072, 0, 1e-5, 1000000, false },
	[CAIRN_ARCH_QWEN3_MOE] = { 32768, 0, 1e-6, 10000, false },
	[CAIRN_ARCH_DEEPSEEK_V3] = { 4096, 0, 1e-6, 10000, false },
	[CAIRN_ARCH_GPT_OSS] = { 131072, 64, 1e-5, 150000, false },
};

static int get_architecture(const json_t *root, struct cairn_json_at at,
			    struct cairn_model_config *c)
{
	static const char *const model_types[CAIRN_NUM_ARCHS] = {
		"llama", "qwen2", "deepseek_v2", "mistral", "qwen3", "gemma2", "mixtral", "qwen3_moe",
		"deepseek_v3", "gpt_oss",
	};
	static const char *const classes[CAIRN_NUM_ARCHS] = {
		"LlamaForCausalLM", "Qwen2ForCausalLM", "DeepseekV2ForCausalLM", "MistralForCausalLM",
		"Qwen3ForCausalLM", "Gemma2ForCausalLM", "MixtralForCausalLM", "Qwen3MoeForCausalLM",
		"DeepseekV3ForCausalLM", "GptOssForCausalLM",
	};
	int arch = -1, class = -1;
	json_t *list = NULL;
	const char *name;
	int64_t draft = 0;

	CAIRN_TRY(cairn_config_choice(root, at, "model_type", model_types, CAIRN_NUM_ARCHS, &arch));
	CAIRN_TRY(cairn_json_child(root, at, "architectures", false, JSON_ARRAY, &list));
	if (arch < 0 && !json_array_size(list))
		return cairn_error(EINVAL, "%s: model_type: is missing, and so is architectures",
				   at.file);
	if (json_array_size(list) > 1)
		return cairn_error(EINVAL, "%s: architectures: must name one, names %zu", at.file,
				   json_array_size(list));
	if (json_array_size(list) == 1) {
		name = json_string_value(json_array_get(list, 0));
		if (!name)
			return cairn_error(EINVAL, "%s: architectures[0]: must be a string, is %s",
					   at.file, cairn_json_type_name(json_array_get(list, 0)));
		if (!strcmp(name, EAGLE_CLASS)) {
			CAIRN_TRY(cairn_json_int(root, at, "draft_vocab_size", true, 1, CAIRN_MAX_VOCAB,
						 &draft));
			c->draft_vocab_size = (int32_t)draft;
			name = classes[CAIRN_ARCH_LLAMA];
		}
		CAIRN_TRY(cairn_config_find(name, at, "architectures", classes, CAIRN_NUM_ARCHS, &class));
		if (arch >= 0 && arch != class)
			return cairn_error(EINVAL, "%s: architectures: %s does not match model_type \"%s\"",
					   at.file, classes[class], model_types[arch]);
		arch = class;
	}
	c->arch = (enum cairn_arch)arch;
	return 0;
}

static int get_sizes(const json_t *root, struct cairn_json_at at, struct cairn_model_config *c)
{
	int64_t nextn = 0;

	c->hidden_size = c->intermediate_size = c->num_hidden_layers = c->num_attention_heads =
		c->vocab_size = -1;
	CAIRN_TRY(cairn_config_size(root, at, "hidden_size", CAIRN_MAX_HIDDEN, &c->hidden_size));
	CAIRN_TRY(cairn_config_size(root, at, "intermediate_size", CAIRN_MAX_INTERMEDIATE,
			   &c->intermediate_size));
	CAIRN_TRY(cairn_config_size(root, at, "num_hidden_layers", CAIRN_MAX_LAYERS, &c->num_hidden_layers));
	CAIRN_TRY(cairn_config_size(root, at, "num_attention_heads", CAIRN_MAX_HEADS,
			   &c->num_attention_heads));
	CAIRN_TRY(cairn_config_size(root, at, "vocab_size", CAIRN_MAX_VOCAB, &c->vocab_size));
	CAIRN_TRY(cairn_json_int(root, at, "num_nextn_predict_layers", false, 0, CAIRN_MAX_LAYERS, &nextn));
	c->num_nextn_layers = (int32_t)nextn;
	c->max_position_embeddings = defaults[c->arch].positions;
	return cairn_config_size(root, at, "max_position_embeddings", CAIRN_MAX_POSITIONS,
			&c->max_position_embeddings);
}

static int get_heads(const json_t *root, struct cairn_json_at at, struct cairn_model_config *c)
{
	/* Others must give it: the defaults of transformers (32, 8 or 4) ignore the model's size. */
	c->num_key_value_heads = c->arch == CAIRN_ARCH_LLAMA ? c->num_attention_heads : -1;
	CAIRN_TRY(cairn_config_size(root, at, "num_key_value_heads", CAIRN_MAX_HEADS,
			   &c->num_key_value_heads));
	if (c->num_attention_heads % c->num_key_value_heads)
		return cairn_error(
			EINVAL,
			"%s: num_key_value_heads: %d does not divide num_attention_heads %d",
			at.file, c->num_key_value_heads, c->num_attention_heads);

	c->head_dim = defaults[c->arch].head_dim;
	CAIRN_TRY(cairn_config_size(root, at, "head_dim", CAIRN_MAX_HEAD_DIM, &c->head_dim));
	if (c->head_dim == 0) {
		if (c->hidden_size % c->num_attention_heads)
			return cairn_error(
				EINVAL,
				"%s: hidden_size: %d is not a multiple of num_attention_heads %d, "
				"and head_dim is not given",
				at.file, c->hidden_size, c->num_attention_heads);
		c->head_dim = c->hidden_size / c->num_attention_heads;
	}
	if (c->head_dim > CAIRN_MAX_HEAD_DIM || c->head_dim % 2)
		return cairn_error(EINVAL, "%s: head_dim: must be even and at most %d, is %d",
				   at.file, CAIRN_MAX_HEAD_DIM, c->head_dim);
	if (c->num_attention_heads * c->head_dim > CAIRN_MAX_HIDDEN)
		return cairn_error(EINVAL, "%s: head_dim: %d heads of %d exceed %d", at.file,
				   c->num_attention_heads, c->head_dim, CAIRN_MAX_HIDDEN);
	return 0;
}

/* Reads eos_token_id (an id, a list of ids, or null) and replaces the list if the key is there. */
static int get_eos(const json_t *root, struct cairn_json_at at, struct cairn_model_config *c)
{
	const json_t *v = json_object_get(root, "eos_token_id");
	size_t n = json_is_array(v) ? json_array_size(v) : 1;

	if (!v || json_is_null(v))
		return 0;
	if (n > CAIRN_MAX_EOS)
		return cairn_error(EINVAL, "%s: eos_token_id: %zu ids, at most %d are supported",
				   at.file, n, CAIRN_MAX_EOS);
	for (size_t i = 0; i < n; i++) {
		const json_t *id = json_is_array(v) ? json_array_get(v, i) : v;

		if (!json_is_integer(id) || json_integer_value(id) < 0 ||
		    json_integer_value(id) >= c->vocab_size)
			return cairn_error(
				EINVAL, "%s: eos_token_id: must be ids from 0 to %d (vocab_size - 1)",
				at.file, c->vocab_size - 1);
		c->eos_token_ids[i] = (int32_t)json_integer_value(id);
	}
	c->num_eos = (int32_t)n;
	return 0;
}

static int get_tokens(const json_t *root, struct cairn_json_at at, struct cairn_model_config *c)
{
	int64_t bos = -1;

	CAIRN_TRY(cairn_json_int(root, at, "bos_token_id", false, 0, c->vocab_size - 1, &bos));
	c->bos_token_id = (int32_t)bos;
	return get_eos(root, at, c);
}

/* Reads what only an EAGLE-3 head has. Its layers may be given in an object, as SpecForge does. */
static int get_eagle(const json_t *root, struct cairn_json_at at, struct cairn_model_config *c)
{
	const struct cairn_json_at in = { at.file, "eagle_config." };
	json_t *nested = NULL, *ids = NULL;

	c->target_hidden_size = c->hidden_size;
	CAIRN_TRY(cairn_config_size(root, at, "target_hidden_size", CAIRN_MAX_HIDDEN,
				    &c->target_hidden_size));
	CAIRN_TRY(cairn_json_child(root, at, "eagle_aux_hidden_state_layer_ids", false, JSON_ARRAY, &ids));
	CAIRN_TRY(cairn_json_child(root, at, "eagle_config", false, JSON_OBJECT, &nested));
	if (!ids && nested)
		CAIRN_TRY(cairn_json_child(nested, in, "eagle_aux_hidden_state_layer_ids", false, JSON_ARRAY,
					   &ids));
	if (ids && json_array_size(ids) != CAIRN_MAX_TAPS)
		return cairn_error(EOPNOTSUPP, "%s: eagle_aux_hidden_state_layer_ids: has %zu layers, must "
				   "have %d", at.file, json_array_size(ids), CAIRN_MAX_TAPS);
	for (int32_t i = 0; ids && i < CAIRN_MAX_TAPS; i++) {
		const json_t *id = json_array_get(ids, (size_t)i);

		if (!json_is_integer(id) || json_integer_value(id) < 1 ||
		    json_integer_value(id) >= CAIRN_MAX_LAYERS)
			return cairn_error(EINVAL, "%s: eagle_aux_hidden_state_layer_ids[%d]: is no layer "
					   "from 1 on", at.file, i);
		c->taps[i] = (int32_t)json_integer_value(id);
		c->num_taps = i + 1;
	}
	return 0;
}

static int parse_config(const json_t *root, struct cairn_json_at at, struct cairn_model_config *c)
{
	static const char *const dtypes[] = { "float32", "float16", "bfloat16" };
	static const char *const acts[] = { "silu", "swish" };
	int act = 0, dtype = -1;

	CAIRN_TRY(get_architecture(root, at, c));
	CAIRN_TRY(cairn_config_quantization(root, at, c));
	CAIRN_TRY(cairn_config_refuse(root, at, "is_causal", false));
	CAIRN_TRY(get_sizes(root, at, c));
	if (c->draft_vocab_size)
		CAIRN_TRY(get_eagle(root, at, c));
	c->rms_norm_eps = defaults[c->arch].eps;
	/* the norms refuse a subnormal eps (rmsnorm.h) */
	CAIRN_TRY(cairn_json_number(root, at, "rms_norm_eps", false, 0x1p-126, 1, &c->rms_norm_eps));
	if (c->arch == CAIRN_ARCH_DEEPSEEK_V2 || c->arch == CAIRN_ARCH_DEEPSEEK_V3) {
		CAIRN_TRY(cairn_config_deepseek(root, at, c));
	} else {
		CAIRN_TRY(get_heads(root, at, c));
		CAIRN_TRY(cairn_config_arch(root, at, c));
	}
	c->rope.theta = defaults[c->arch].theta;
	CAIRN_TRY(cairn_config_rope(root, at, c));
	c->tie_word_embeddings = defaults[c->arch].tied;
	CAIRN_TRY(cairn_json_bool(root, at, "tie_word_embeddings", false, &c->tie_word_embeddings));
	/* Gemma 2 has hidden_activation instead and ignores this key. */
	if (c->hidden_act == CAIRN_ACT_SILU)
		CAIRN_TRY(cairn_config_choice(root, at, "hidden_act", acts, 2, &act));
	CAIRN_TRY(cairn_config_choice(root, at, "dtype", dtypes, 3, &dtype));
	if (dtype < 0)
		CAIRN_TRY(cairn_config_choice(root, at, "torch_dtype", dtypes, 3, &dtype));
	c->dtype = dtype < 0 ? -1 : (int[]){ CAIRN_F32, CAIRN_F16, CAIRN_BF16 }[dtype];
	return get_tokens(root, at, c);
}

/* Returns "DIR/NAME", malloc()ed; NULL: no memory. */
static char *path_of(const char *dir, const char *name)
{
	size_t n = strlen(dir);
	char *path = malloc(n + strlen(name) + 2);

	if (path)
		sprintf(path, n && dir[n - 1] != '/' ? "%s/%s" : "%s%s", dir, name);
	return path;
}

int cairn_model_config_parse(const char *json, size_t num_bytes, const char *generation,
			     size_t generation_bytes, const char *dir,
			     struct cairn_model_config *config)
{
	char *file = NULL, *generation_file = NULL;
	struct cairn_model_config c = { 0 };
	json_t *root = NULL;
	int ret;

	if (!json || !dir || !config)
		return cairn_error(EINVAL, CONFIG_NAME ": null argument");
	file = path_of(dir, CONFIG_NAME);
	generation_file = path_of(dir, GENERATION_NAME);
	if (!file || !generation_file) {
		ret = cairn_error(ENOMEM, "%s: no memory", dir);
		goto out;
	}
	ret = cairn_json_parse(json, num_bytes, file, false, &root);
	if (ret)
		goto out;
	ret = parse_config(root, (struct cairn_json_at){ file, "" }, &c);
	if (ret)
		goto out;
	if (generation) {
		json_decref(root);
		root = NULL;
		ret = cairn_json_parse(generation, generation_bytes, generation_file, false, &root);
		if (!ret)
			ret = get_eos(root, (struct cairn_json_at){ generation_file, "" }, &c);
		if (ret)
			goto out;
	}
	*config = c;
out:
	json_decref(root);
	free(generation_file);
	free(file);
	return ret;
}

int cairn_model_config_load(const char *dir, struct cairn_model_config *config)
{
	char *file, *generation_file, *json = NULL, *generation = NULL;
	size_t num_bytes = 0, generation_bytes = 0;
	int ret;

	if (!dir || !config)
		return cairn_error(EINVAL, CONFIG_NAME ": null argument");
	file = path_of(dir, CONFIG_NAME);
	generation_file = path_of(dir, GENERATION_NAME);
	if (!file || !generation_file) {
		ret = cairn_error(ENOMEM, "%s: no memory", dir);
		goto out;
	}
	ret = cairn_read_file(file, MAX_CONFIG_BYTES, &json, &num_bytes);
	if (!ret && !access(generation_file, F_OK))
		ret = cairn_read_file(generation_file, MAX_CONFIG_BYTES, &generation,
				      &generation_bytes);
	if (!ret)
		ret = cairn_model_config_parse(json, num_bytes, generation, generation_bytes, dir,
					       config);
out:
	free(generation);
	free(json);
	free(generation_file);
	free(file);
	return ret;
}
