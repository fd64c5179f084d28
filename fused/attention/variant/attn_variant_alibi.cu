/* SPDX-License-Identifier: Apache-2.0 */
/* attn_variant_alibi - instances of builtin/alibi.c; attn_variant_instance.cuh describes them */
#define ATTN_HEAD_SLOPE
#define ATTN_TEXT	alibi
#define ATTN_FILE	"fused/attention/variant/builtin/alibi.c"
#include "fused/attention/variant/attn_variant_instance.cuh"
