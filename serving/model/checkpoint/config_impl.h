/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config_impl - helpers shared by config.c and the files that read an architecture's own keys
 */
#ifndef CAIRN_CONFIG_IMPL_H
#define CAIRN_CONFIG_IMPL_H

#include "serving/model/checkpoint/config.h"
#include "serving/base/json.h"

/* Reads an integer member; *value holds the default, or a negative number if the member is required. */
int cairn_config_size(const json_t *root, struct cairn_json_at at, const char *key, int64_t max,
		      int32_t *value);
/* Reads a string member that must be one of names[0..n), and sets *which to its index. An absent member
 * changes nothing. */
int cairn_config_choice(const json_t *root, struct cairn_json_at at, const char *key,
			const char *const *names, int n, int *which);
/* Refuses a flag whose value is `refused`; an absent flag is accepted. */
int cairn_config_refuse(const json_t *root, struct cairn_json_at at, const char *key, bool refused);

/* Finds the index of value in names[0..n), or fails with an error that lists them. */
int cairn_config_find(const char *value, struct cairn_json_at at, const char *key, const char *const *names,
		      int n, int *which);

/* Reads c->rope; its theta holds the default on entry. The sizes must have been read. */
int cairn_config_rope(const json_t *root, struct cairn_json_at at, struct cairn_model_config *c);
/* Reads the keys other than heads, without latent attention. The sizes must have been read. */
int cairn_config_arch(const json_t *root, struct cairn_json_at at, struct cairn_model_config *c);
/* Reads heads, latent attention and experts of DeepSeek-V2 and V3. */
int cairn_config_deepseek(const json_t *root, struct cairn_json_at at, struct cairn_model_config *c);
/*
 * Reads quantization_config into c->stored_fp8, c->w4 or c->stored_mxfp4; the architecture must have been
 * read.
 */
int cairn_config_quantization(const json_t *root, struct cairn_json_at at, struct cairn_model_config *c);

#endif
