/* SPDX-License-Identifier: Apache-2.0 */
/* attn_variant_instances - the kernels of the built-in texts, compiled ahead */
#ifndef CAIRN_ATTN_VARIANT_INSTANCES_H
#define CAIRN_ATTN_VARIANT_INSTANCES_H

#include <stdint.h>

/* Each returns the kernel of a text for a dtype and head dimension. */
const void *attn_variant_plain(int32_t dtype, int32_t head_dim);
const void *attn_variant_rope(int32_t dtype, int32_t head_dim);
const void *attn_variant_alibi(int32_t dtype, int32_t head_dim);
const void *attn_variant_softcap(int32_t dtype, int32_t head_dim);
const void *attn_variant_sigmoid(int32_t dtype, int32_t head_dim);
const void *attn_variant_bits(int32_t dtype, int32_t head_dim);

#endif
