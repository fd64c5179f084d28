/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convert_gqa - a checkpoint with fewer key-value heads
 *
 * Of n heads of keys and values m are made: each new one is the mean of n / m that follow each other, whose
 * query heads it then serves; m == 1 is multi-query attention. Means are taken in double and rounded once to
 * the checkpoint's type. All other tensors keep their bytes. What comes out is where a short further training
 * begins: without one it is a worse model, unless the heads of a group were equal.
 *
 * out: a folder that is made; it appears whole or not at all. It has config.json (num_key_value_heads
 * changed), one model.safetensors, and what else of these the checkpoint has: generation_config.json,
 * tokenizer.json, tokenizer_config.json, special_tokens_map.json, tokenizer.model, chat_template.jinja.
 *
 * Errors: -EINVAL (num_kv_heads does not divide the checkpoint's; a checkpoint that is wrong), -EEXIST (out
 *         is there), -EOPNOTSUPP (latent attention, weights of no float type), -EIO, -ENOMEM.
 * Source: Ainslie et al. 2023 (GQA), section 2.1.
 */
#ifndef CAIRN_CONVERT_GQA_H
#define CAIRN_CONVERT_GQA_H

#include <stdint.h>

int cairn_convert_gqa(const char *dir, const char *out, int32_t num_kv_heads);

#endif
