// SPDX-License-Identifier: Apache-2.0
/* attn_variant_f64 - the hooks of the built-in texts in double, for the reference */
#define real			double
#define ATTN_EXACT
#define ATTN_TABLE_OF(text)	JOIN(attn_variant_f64, text)
#include "fused/attention/variant/attn_variant_builtin.h"
