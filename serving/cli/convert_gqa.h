/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convert_gqa - converts a checkpoint to fewer KV heads
 *
 * Each of the m new KV heads is the mean of n / m consecutive old ones and serves all their query heads. One
 * new head gives multi-query attention. Means are computed in double and rounded once to the checkpoint's
 * dtype. All other tensors keep their bytes. The result is meant as the starting point of a short further
 * training. Without it the model is worse, unless the heads of each group were equal.
 *
 * The checkpoint must load, including its tokenizer.json if it has one. The result is built in OUT.part and
 * must load as well before it is renamed. An interrupted conversion may leave OUT.part behind; the next one
 * replaces it.
 *
 * out: a directory to create; it appears complete or not at all. It holds config.json (num_key_value_heads
 * changed), one model.safetensors, and those of the following files that the checkpoint has:
 * generation_config.json, tokenizer.json, tokenizer_config.json, special_tokens_map.json, tokenizer.model,
 * chat_template.jinja.
 *
 * Errors: -EINVAL (num_kv_heads does not divide the checkpoint's; a checkpoint that does not load), -EEXIST
 *         (out exists, or another conversion to it runs), -EOPNOTSUPP (latent attention, weights of a
 *         non-float type), -EIO, -ENOMEM.
 * Source: Ainslie et al. 2023 (GQA), section 2.1.
 */
#ifndef CAIRN_CONVERT_GQA_H
#define CAIRN_CONVERT_GQA_H

#include <stdint.h>

int cairn_convert_gqa(const char *dir, const char *out, int32_t num_kv_heads);

#endif
