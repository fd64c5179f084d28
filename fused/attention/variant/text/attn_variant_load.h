/* SPDX-License-Identifier: Apache-2.0 */
/* attn_variant_load - loads the kernels of a text onto the GPU */
#ifndef CAIRN_ATTN_VARIANT_LOAD_H
#define CAIRN_ATTN_VARIANT_LOAD_H

#include <stdint.h>

#include "fused/attention/variant/text/attn_variant_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Sets *kernels to the kernels of a caller's text, which the first call compiles and loads. Returns 0 or
 * -errno.
 */
int attn_variant_load(int32_t variant, int32_t dtype, int32_t head_dim, struct attn_variant_kernels *kernels);

#ifdef __cplusplus
}
#endif
#endif
