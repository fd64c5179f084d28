/* SPDX-License-Identifier: Apache-2.0 */
/* attn_variant_rope - instances of builtin/rope.c; attn_variant_instance.cuh describes them */
#define ATTN_QUERY
#define ATTN_KEY
#define ATTN_TEXT	rope
#define ATTN_FILE	"fused/attention/variant/builtin/rope.c"
#include "fused/attention/variant/attn_variant_instance.cuh"
