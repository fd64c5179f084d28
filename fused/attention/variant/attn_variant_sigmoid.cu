/* SPDX-License-Identifier: Apache-2.0 */
/* attn_variant_sigmoid - instances of builtin/sigmoid.c; attn_variant_instance.cuh describes them */
#define ATTN_WEIGHT
#define ATTN_TEXT	sigmoid
#define ATTN_FILE	"fused/attention/variant/builtin/sigmoid.c"
#include "fused/attention/variant/attn_variant_instance.cuh"
