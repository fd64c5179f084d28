/* SPDX-License-Identifier: Apache-2.0 */
/* attn_variant_plain - instances of builtin/plain.c; attn_variant_instance.cuh describes them */
#define ATTN_RANGE
#define ATTN_SINK
#define ATTN_TEXT	plain
#define ATTN_FILE	"fused/attention/variant/builtin/plain.c"
#include "fused/attention/variant/attn_variant_instance.cuh"
