/* SPDX-License-Identifier: Apache-2.0 */
/* attn_variant_bits - instances of builtin/bits.c; attn_variant_instance.cuh describes them */
#define ATTN_KEEP
#define ATTN_TEXT	bits
#define ATTN_FILE	"fused/attention/variant/builtin/bits.c"
#include "fused/attention/variant/attn_variant_instance.cuh"
