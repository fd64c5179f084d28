// SPDX-License-Identifier: Apache-2.0
/* attn_variant_f32 - the hooks of the built-in texts in float, for the CPU table */
#define real			float
#define ATTN_TABLE_OF(text)	JOIN(attn_variant_f32, text)
#include "fused/attention/variant/attn_variant_builtin.h"
