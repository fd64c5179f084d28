// SPDX-License-Identifier: Apache-2.0
/*
 * lora_config - reads adapter_config.json
 *
 * target_modules is not needed, because the tensors say which matrices an adapter has.
 */
#include "serving/lora/lora_config.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/base/json.h"
#include "serving/lora/lora.h"

#define MAX_BYTES	((size_t)1 << 20)

/* Refuses a key whose value is anything but null, false, an empty array or an empty object. */
static int refuse_if_set(const json_t *root, struct cairn_json_at at, const char *key)
{
	const json_t *value = json_object_get(root, key);

	if (!value || json_is_null(value) || json_is_false(value) ||
	    (json_is_array(value) && !json_array_size(value)) ||
	    (json_is_object(value) && !json_object_size(value)))
		return 0;
	return cairn_error(EOPNOTSUPP, "%s: %s: is not supported", at.file, key);
}

static int refuse_unless(const json_t *root, struct cairn_json_at at, const char *key, const char *only)
{
	const char *value = NULL;

	CAIRN_TRY(cairn_json_string(root, at, key, false, &value, NULL));
	if (value && strcmp(value, only))
		return cairn_error(EOPNOTSUPP, "%s: %s: %s is not supported (%s is)", at.file, key,
				   CAIRN_QUOTED(value), only);
	return 0;
}

static int parse(const json_t *root, struct cairn_json_at at, struct cairn_lora_config *c)
{
	static const char *const refused[] = {
		"use_dora", "modules_to_save", "rank_pattern", "alpha_pattern", "fan_in_fan_out", "lora_bias",
		"layer_replication", "trainable_token_indices", "megatron_config", "use_qalora",
		"target_parameters", "use_bdlora", "alora_invocation_tokens", "arrow_config", "kasa_config",
		"velora_config", "monteclora_config",
	};
	bool root_scaled = false;
	double alpha = 0;
	int64_t rank = 0;

	CAIRN_TRY(refuse_unless(root, at, "peft_type", "LORA"));
	CAIRN_TRY(refuse_unless(root, at, "bias", "none"));
	for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
		CAIRN_TRY(refuse_if_set(root, at, refused[i]));
	CAIRN_TRY(cairn_json_int(root, at, "r", true, 1, 1 << 20, &rank));
	if (rank > CAIRN_MAX_LORA_RANK)
		return cairn_error(EOPNOTSUPP, "%s: r: is %lld, at most %d is supported", at.file,
				   (long long)rank, CAIRN_MAX_LORA_RANK);
	CAIRN_TRY(cairn_json_number(root, at, "lora_alpha", true, 0, 1e6, &alpha));
	CAIRN_TRY(cairn_json_bool(root, at, "use_rslora", false, &root_scaled));
	c->rank = (int32_t)rank;
	c->scale = alpha / (root_scaled ? sqrt((double)rank) : (double)rank);
	return 0;
}

int cairn_lora_config_load(const char *dir, struct cairn_lora_config *config)
{
	char path[4096];
	const struct cairn_json_at at = { path, "" };
	json_t *root;
	int ret;

	if ((size_t)snprintf(path, sizeof(path), "%s/adapter_config.json", dir) >= sizeof(path))
		return cairn_error(EINVAL, "%.64s...: the path is too long", dir);
	CAIRN_TRY(cairn_json_read(path, MAX_BYTES, false, &root));
	ret = parse(root, at, config);
	json_decref(root);
	return ret;
}
