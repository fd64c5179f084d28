/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config_impl - what the parts of config.c share; the architectures' own keys are read in files of their own
 */
#ifndef CAIRN_CONFIG_IMPL_H
#define CAIRN_CONFIG_IMPL_H

#include "serving/model/config.h"
#include "serving/base/json.h"

/* The member key as int32; *value holds the default, or is required when *value < 0 on entry. */
int cairn_config_size(const json_t *root, struct cairn_json_at at, const char *key, int64_t max,
		      int32_t *value);
/* A string member that must be one of names[0..n); *which is its place there. Absent: nothing is written. */
int cairn_config_choice(const json_t *root, struct cairn_json_at at, const char *key,
			const char *const *names, int n, int *which);
/* A flag that must not have this value; absent is well. */
int cairn_config_refuse(const json_t *root, struct cairn_json_at at, const char *key, bool refused);

/* The place of value among names[0..n), or the error that names them all. */
int cairn_config_find(const char *value, struct cairn_json_at at, const char *key, const char *const *names,
		      int n, int *which);

/* c->rope, whose theta holds the default; reads the sizes, which must be there. */
int cairn_config_rope(const json_t *root, struct cairn_json_at at, struct cairn_model_config *c);
/* What all other architectures have besides heads; reads the sizes. */
int cairn_config_arch(const json_t *root, struct cairn_json_at at, struct cairn_model_config *c);
/* Heads, latent attention and experts of DeepSeek-V2. */
int cairn_config_deepseek(const json_t *root, struct cairn_json_at at, struct cairn_model_config *c);

#endif
