// SPDX-License-Identifier: Apache-2.0
/* config_quant - reads quantization_config: how a checkpoint stores matrices as e4m3, or in 4 bits */
#include "serving/model/checkpoint/config_impl.h"

#include <stddef.h>
#include <string.h>

#include "primitives/base/error.h"

#define FP8_BLOCK	128		/* rows and columns of a block with a scale */
#define NVFP4_GROUP	16
#define GROUP		"quantization_config.config_groups.*."	/* in messages: the only group */
#define COUNT(a)	((int)(sizeof(a) / sizeof((a)[0])))

/*
 * Reads what quant_method "fp8" has: scales of 128 x 128 blocks, as DeepSeek-V3 is published, or without
 * weight_block_size one scale for each matrix, as AutoFP8 writes. Scales of activations are not needed.
 */
static int get_fp8(const json_t *quant, struct cairn_json_at in, struct cairn_model_config *c)
{
	static const char *const formats[] = { "e4m3" };
	json_t *block = NULL;
	int format = 0;

	CAIRN_TRY(cairn_config_choice(quant, in, "fmt", formats, COUNT(formats), &format));
	CAIRN_TRY(cairn_json_child(quant, in, "weight_block_size", false, JSON_ARRAY, &block));
	c->stored_fp8 = block ? CAIRN_STORED_BLOCKS : CAIRN_STORED_TENSOR;
	for (size_t i = 0; block && (i < json_array_size(block) || i < 2); i++)
		if (i > 1 || json_integer_value(json_array_get(block, i)) != FP8_BLOCK)
			return cairn_error(EOPNOTSUPP, "%s: quantization_config.weight_block_size: only "
					   "[%d, %d] is supported", in.file, FP8_BLOCK, FP8_BLOCK);
	return 0;
}

/* Reads the number of bits, which must be 4. */
static int check_bits(const json_t *quant, struct cairn_json_at in, const char *key)
{
	int64_t bits = 4;

	CAIRN_TRY(cairn_json_int(quant, in, key, true, 1, 64, &bits));
	if (bits != 4)
		return cairn_error(EOPNOTSUPP, "%s: %s%s: %d is not supported (4 is)", in.file, in.where, key,
				   (int)bits);
	return 0;
}

/* Reads group_size, whose value -1 means that a row has one group. */
static int get_group_size(const json_t *quant, struct cairn_json_at in, struct cairn_model_config *c)
{
	int64_t size = -1;

	CAIRN_TRY(cairn_json_int(quant, in, "group_size", true, -1, INT32_MAX, &size));
	if (size != -1 && size != 32 && size != 64 && size != 128)
		return cairn_error(EOPNOTSUPP, "%s: %sgroup_size: %d is not supported (32, 64, 128 and "
				   "-1 are)", in.file, in.where, (int)size);
	c->w4.group = size < 0 ? 0 : (int32_t)size;
	return 0;
}

/* Reads what quant_method "awq" has. Only the order of codes of AutoAWQ's "gemm" is supported. */
static int get_awq(const json_t *quant, struct cairn_json_at in, struct cairn_model_config *c)
{
	static const char *const versions[] = { "gemm", "GEMM" }, *const backends[] = { "autoawq", "auto" };
	int which = 0;

	CAIRN_TRY(check_bits(quant, in, "bits"));
	CAIRN_TRY(get_group_size(quant, in, c));
	CAIRN_TRY(cairn_config_choice(quant, in, "version", versions, COUNT(versions), &which));
	CAIRN_TRY(cairn_config_choice(quant, in, "format", versions, COUNT(versions), &which));
	CAIRN_TRY(cairn_config_choice(quant, in, "backend", backends, COUNT(backends), &which));
	CAIRN_TRY(cairn_config_refuse(quant, in, "zero_point", false));
	c->w4.stored = CAIRN_STORED_AWQ;
	return 0;
}

/*
 * Checks `dynamic`, GPTQModel's settings for matrices by a regular expression: "-:" before it leaves matrices
 * out. This is not needed, because such a matrix is stored in a wider type. Other settings are refused.
 */
static int check_dynamic(const json_t *quant, struct cairn_json_at in)
{
	json_t *dynamic = NULL, *settings;
	const char *pattern;
	char quoted[CAIRN_QUOTE_LEN];

	CAIRN_TRY(cairn_json_child(quant, in, "dynamic", false, JSON_OBJECT, &dynamic));
	json_object_foreach(dynamic, pattern, settings)
		if (strncmp(pattern, "-:", 2))
			return cairn_error(EOPNOTSUPP, "%s: %sdynamic: %s: other settings for some matrices "
					   "are not supported", in.file, in.where,
					   cairn_quote(pattern, strlen(pattern), quoted));
	return 0;
}

/*
 * Reads what quant_method "gptq" has. `sym` is not needed, because zero points are always stored. Whether
 * desc_act changes the order of groups is seen in X.g_idx.
 */
static int get_gptq(const json_t *quant, struct cairn_json_at in, struct cairn_model_config *c)
{
	static const char *const formats[] = { "gptq", "gptq_v2" }, *const words[] = { "int32" };
	int format = 0, word = 0;

	CAIRN_TRY(check_bits(quant, in, "bits"));
	CAIRN_TRY(get_group_size(quant, in, c));
	CAIRN_TRY(cairn_config_choice(quant, in, "format", formats, COUNT(formats), &format));
	CAIRN_TRY(cairn_config_choice(quant, in, "checkpoint_format", formats, COUNT(formats), &format));
	CAIRN_TRY(cairn_config_choice(quant, in, "pack_dtype", words, COUNT(words), &word));
	CAIRN_TRY(cairn_config_refuse(quant, in, "is_marlin_format", true));
	CAIRN_TRY(cairn_config_refuse(quant, in, "lm_head", true));
	CAIRN_TRY(cairn_json_bool(quant, in, "desc_act", false, &c->w4.has_order));
	CAIRN_TRY(check_dynamic(quant, in));
	c->w4.stored = format ? CAIRN_STORED_GPTQ_V2 : CAIRN_STORED_GPTQ;
	return 0;
}

/* Reads the weights of a group in the format pack-quantized: integers of 4 bits. */
static int get_packed(const json_t *weights, struct cairn_json_at at, struct cairn_model_config *c)
{
	static const char *const types[] = { "int" }, *const strategies[] = { "channel", "group" };
	bool symmetric = true;
	int type = 0, strategy = -1;

	CAIRN_TRY(cairn_config_choice(weights, at, "type", types, COUNT(types), &type));
	CAIRN_TRY(check_bits(weights, at, "num_bits"));
	CAIRN_TRY(cairn_config_choice(weights, at, "strategy", strategies, COUNT(strategies), &strategy));
	if (strategy < 0)
		return cairn_error(EINVAL, "%s: %sstrategy: is missing", at.file, at.where);
	if (strategy)
		CAIRN_TRY(get_group_size(weights, at, c));
	CAIRN_TRY(cairn_json_bool(weights, at, "symmetric", false, &symmetric));
	c->w4.has_zeros = !symmetric;
	c->w4.stored = CAIRN_STORED_PACKED;
	return 0;
}

/* Refuses numbers other than symmetric floats of so many bits. */
static int check_numbers(const json_t *scheme, struct cairn_json_at at, int want)
{
	static const char *const types[] = { "float" };
	int64_t bits = want;
	int type = 0;

	CAIRN_TRY(cairn_config_choice(scheme, at, "type", types, COUNT(types), &type));
	CAIRN_TRY(cairn_json_int(scheme, at, "num_bits", true, 1, 64, &bits));
	if (bits != want)
		return cairn_error(EOPNOTSUPP, "%s: %snum_bits: %d is not supported (%d is)", at.file,
				   at.where, (int)bits, want);
	if (json_is_false(json_object_get(scheme, "symmetric")))
		return cairn_error(EOPNOTSUPP, "%s: %ssymmetric: false is not supported", at.file, at.where);
	return 0;
}

/* Reads the weights of a group in the format nvfp4-pack-quantized. */
static int get_nvfp4(const json_t *weights, struct cairn_json_at at, struct cairn_model_config *c)
{
	static const char *const strategies[] = { "tensor_group" };
	int64_t group = NVFP4_GROUP;
	int strategy = 0;

	CAIRN_TRY(check_numbers(weights, at, 4));
	CAIRN_TRY(cairn_config_choice(weights, at, "strategy", strategies, COUNT(strategies), &strategy));
	CAIRN_TRY(cairn_json_int(weights, at, "group_size", false, 1, INT32_MAX, &group));
	if (group != NVFP4_GROUP)
		return cairn_error(EOPNOTSUPP, "%s: %sgroup_size: %d is not supported (%d is)", at.file,
				   at.where, (int)group, NVFP4_GROUP);
	c->w4.group = NVFP4_GROUP;
	c->w4.stored = CAIRN_STORED_NVFP4;
	return 0;
}

enum compressed { FLOATS, PACKED, NAIVE, NVFP4 };	/* formats of compressed-tensors */

/*
 * Reads the one group of a compressed-tensors checkpoint. Only the number format of activations is checked,
 * because activations are not quantised here, which is closer to the original model.
 */
static int get_group(const json_t *group, const char *file, enum compressed format,
		     struct cairn_model_config *c)
{
	const int is_packed = format == PACKED;
	static const char *const strategies[] = { "channel", "tensor" };
	static const enum cairn_stored_fp8 stored[] = { CAIRN_STORED_ROWS, CAIRN_STORED_TENSOR };
	const struct cairn_json_at at = { file, GROUP }, of_weights = { file, GROUP "weights." };
	const struct cairn_json_at of_inputs = { file, GROUP "input_activations." };
	json_t *targets = NULL, *weights = NULL, *inputs = NULL, *outputs = NULL;
	const char *target;
	int strategy = -1;

	CAIRN_TRY(cairn_json_child(group, at, "targets", true, JSON_ARRAY, &targets));
	target = json_string_value(json_array_get(targets, 0));
	if (json_array_size(targets) != 1 || !target || strcmp(target, "Linear"))
		return cairn_error(EOPNOTSUPP, "%s: %stargets: only [\"Linear\"] is supported", at.file,
				   at.where);
	CAIRN_TRY(cairn_json_child(group, at, "weights", true, JSON_OBJECT, &weights));
	CAIRN_TRY(cairn_json_child(group, at, "input_activations", false, JSON_OBJECT, &inputs));
	if (is_packed) {
		CAIRN_TRY(get_packed(weights, of_weights, c));
	} else if (format == NVFP4) {
		CAIRN_TRY(get_nvfp4(weights, of_weights, c));
	} else {
		CAIRN_TRY(check_numbers(weights, of_weights, 8));
		CAIRN_TRY(cairn_config_choice(weights, of_weights, "strategy", strategies, COUNT(strategies),
					      &strategy));
		if (strategy < 0)
			return cairn_error(EINVAL, "%s: %sstrategy: is missing", at.file, of_weights.where);
		c->stored_fp8 = stored[strategy];
	}
	if (inputs && is_packed)
		return cairn_error(EOPNOTSUPP, "%s: %sinput_activations: is not supported with 4-bit weights",
				   at.file, at.where);
	if (inputs)
		CAIRN_TRY(check_numbers(inputs, of_inputs, format == NVFP4 ? 4 : 8));
	CAIRN_TRY(cairn_json_child(group, at, "output_activations", false, JSON_OBJECT, &outputs));
	if (outputs)
		return cairn_error(EOPNOTSUPP, "%s: %soutput_activations: is not supported", at.file,
				   at.where);
	return 0;
}

/*
 * Reads what quant_method "compressed-tensors" has. Its key `ignore` is not needed, because a matrix that was
 * left out is stored in a wider type.
 */
static int get_compressed(const json_t *quant, struct cairn_json_at in, struct cairn_model_config *c)
{
	/* older versions wrote float-quantized as naive-quantized, and compressed weights as frozen */
	static const char *const formats[] = { [FLOATS] = "float-quantized", [PACKED] = "pack-quantized",
					       [NAIVE] = "naive-quantized",
					       [NVFP4] = "nvfp4-pack-quantized" };
	static const char *const states[] = { "compressed", "frozen" }, *const dense[] = { "dense" };
	const struct cairn_json_at in_groups = { in.file, "quantization_config.config_groups." };
	const struct cairn_json_at in_sparsity = { in.file, "quantization_config.sparsity_config." };
	json_t *groups = NULL, *group = NULL, *sparsity = NULL, *transform = NULL;
	const char *name;
	int format = -1, state = 0, sparse = 0;

	CAIRN_TRY(cairn_config_choice(quant, in, "format", formats, COUNT(formats), &format));
	if (format < 0)
		return cairn_error(EINVAL, "%s: quantization_config.format: is missing", in.file);
	CAIRN_TRY(cairn_config_choice(quant, in, "quantization_status", states, COUNT(states), &state));
	CAIRN_TRY(cairn_json_child(quant, in, "sparsity_config", false, JSON_OBJECT, &sparsity));
	if (sparsity)
		CAIRN_TRY(cairn_config_choice(sparsity, in_sparsity, "format", dense, COUNT(dense),
					      &sparse));
	CAIRN_TRY(cairn_json_child(quant, in, "transform_config", false, JSON_OBJECT, &transform));
	if (transform && json_object_size(transform))
		return cairn_error(EOPNOTSUPP, "%s: quantization_config.transform_config: is not supported",
				   in.file);
	CAIRN_TRY(cairn_json_child(quant, in, "config_groups", true, JSON_OBJECT, &groups));
	if (json_object_size(groups) != 1)
		return cairn_error(EOPNOTSUPP, "%s: quantization_config.config_groups: has %zu groups, "
				   "only 1 is supported", in.file, json_object_size(groups));
	name = json_object_iter_key(json_object_iter(groups));
	CAIRN_TRY(cairn_json_child(groups, in_groups, name, true, JSON_OBJECT, &group));
	return get_group(group, in.file, (enum compressed)format, c);
}

/* Reads what quant_method "mxfp4" has: nothing, because gpt-oss stores only experts so. */
static int get_mxfp4(const json_t *quant, struct cairn_json_at in, struct cairn_model_config *c)
{
	(void)quant;
	if (c->arch != CAIRN_ARCH_GPT_OSS)
		return cairn_error(EOPNOTSUPP, "%s: %squant_method: \"mxfp4\" is only supported with "
				   "model_type \"gpt_oss\"", in.file, in.where);
	c->stored_mxfp4 = true;
	return 0;
}

int cairn_config_quantization(const json_t *root, struct cairn_json_at at, struct cairn_model_config *c)
{
	static const struct {
		const char *name;
		int (*get)(const json_t *quant, struct cairn_json_at in, struct cairn_model_config *c);
	} methods[] = {
		{ "fp8", get_fp8 }, { "compressed-tensors", get_compressed }, { "awq", get_awq },
		{ "gptq", get_gptq }, { "mxfp4", get_mxfp4 },
	};
	const char *names[COUNT(methods)];
	const json_t *given = json_object_get(root, "quantization_config");
	const struct cairn_json_at in = { at.file, "quantization_config." };
	json_t *quant = NULL;
	int method = -1;

	if (!given || json_is_null(given))
		return 0;
	CAIRN_TRY(cairn_json_child(root, at, "quantization_config", true, JSON_OBJECT, &quant));
	for (int i = 0; i < COUNT(methods); i++)
		names[i] = methods[i].name;
	CAIRN_TRY(cairn_config_choice(quant, in, "quant_method", names, COUNT(names), &method));
	if (method < 0)
		return cairn_error(EOPNOTSUPP, "%s: quantization_config: quantized weights are not supported "
				   "without a quant_method", at.file);
	return methods[method].get(quant, in, c);
}
