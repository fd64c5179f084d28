/* SPDX-License-Identifier: Apache-2.0 */
/* attn_variant_softcap - instances of builtin/softcap.c; attn_variant_instance.cuh describes them */
#define ATTN_LOGIT_CAP
#define ATTN_TEXT	softcap
#define ATTN_FILE	"fused/attention/variant/builtin/softcap.c"
#include "fused/attention/variant/attn_variant_instance.cuh"
