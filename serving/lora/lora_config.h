/* SPDX-License-Identifier: Apache-2.0 */
/* lora_config - reads adapter_config.json of an adapter (serving/lora/lora.h) */
#ifndef CAIRN_LORA_CONFIG_H
#define CAIRN_LORA_CONFIG_H

#include <stdint.h>

struct cairn_lora_config {
	int32_t rank;			/* 1 to CAIRN_MAX_LORA_RANK */
	double scale;			/* finite, not 0 */
};

int cairn_lora_config_load(const char *dir, struct cairn_lora_config *config);

#endif
