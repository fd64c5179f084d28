/* SPDX-License-Identifier: Apache-2.0 */
/* attn_variant_instances - the kernels of the built-in texts, compiled ahead */
#ifndef CAIRN_ATTN_VARIANT_INSTANCES_H
#define CAIRN_ATTN_VARIANT_INSTANCES_H

#include <stdint.h>

#include "fused/attention/variant/text/attn_variant_kernels.h"

/* Each returns the kernels of a text for a dtype and head dimension. */
struct attn_variant_kernels attn_variant_plain(int32_t dtype, int32_t head_dim);
struct attn_variant_kernels attn_variant_rope(int32_t dtype, int32_t head_dim);
struct attn_variant_kernels attn_variant_alibi(int32_t dtype, int32_t head_dim);
struct attn_variant_kernels attn_variant_softcap(int32_t dtype, int32_t head_dim);
struct attn_variant_kernels attn_variant_sigmoid(int32_t dtype, int32_t head_dim);
struct attn_variant_kernels attn_variant_bits(int32_t dtype, int32_t head_dim);

#endif
