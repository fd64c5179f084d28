// SPDX-License-Identifier: Apache-2.0
/*
 * attn_variant_headers - embeds the sources that a text is compiled with
 *
 * A text is compiled at run time, where the tree may not be at hand. The host's compiler gets two headers as
 * text before and after the user's; NVRTC gets all of them by name. The stand-ins declare only what these
 * headers use.
 */
#include "fused/attention/variant/text/attn_variant_headers.h"

#include <string.h>

#define EMBED(symbol, path) \
	__asm__(".pushsection .rodata\n" \
		".global " #symbol "\n" \
		#symbol ":\n" \
		".incbin \"" path "\"\n" \
		".byte 0\n" \
		".popsection\n"); \
	extern const char symbol[];

/* H(symbol, path) */
#define HEADERS(H) \
	H(attn_variant_kernel_cuh, "fused/attention/variant/attn_variant_kernel.cuh") \
	H(attn_variant_merge_cuh, "fused/attention/variant/attn_variant_merge.cuh") \
	H(attn_variant_rotate_cuh, "fused/attention/variant/attn_variant_rotate.cuh") \
	H(attn_variant_keys_cuh, "fused/attention/variant/attn_variant_keys.cuh") \
	H(attn_variant_view_cuh, "fused/attention/variant/attn_variant_view.cuh") \
	H(attn_variant_bend_cuh, "fused/attention/variant/attn_variant_bend.cuh") \
	H(attn_variant_call_cuh, "fused/attention/variant/attn_variant_call.cuh") \
	H(attn_variant_hooks_cuh, "fused/attention/variant/attn_variant_hooks.cuh") \
	H(attn_variant_text_h, "fused/attention/variant/attn_variant_text.h") \
	H(attn_dense_fetch_cuh, "fused/attention/dense/attn_dense_fetch.cuh") \
	H(attn_dense_h, "fused/attention/dense/attn_dense.h") \
	H(attn_forward_cuh, "fused/attention/forward/attn_forward.cuh") \
	H(attn_range_cuh, "fused/attention/forward/attn_range.cuh") \
	H(attn_panel_cuh, "fused/attention/base/attn_panel.cuh") \
	H(attn_softmax_cuh, "fused/attention/base/attn_softmax.cuh") \
	H(attn_tile_h, "fused/attention/base/attn_tile.h") \
	H(kv_walk_h, "fused/cache/kv_walk.h") \
	H(dtype_h, "primitives/base/dtype.h") \
	H(ptx_cuh, "primitives/ptx/ptx.cuh") \
	H(ptx_copy_cuh, "primitives/ptx/ptx_copy.cuh") \
	H(elect_cuh, "primitives/ptx/elect.cuh") \
	H(wgmma_cuh, "primitives/ptx/wgmma.cuh")

HEADERS(EMBED)
EMBED(attn_variant_hooks_h, "fused/attention/variant/attn_variant_hooks.h")

#define LIST(symbol, path)	{ path, symbol },

const struct attn_variant_header attn_variant_headers[] = {
	HEADERS(LIST)
	{ "stddef.h", "typedef unsigned long size_t;\n" },
	{ "stdint.h",
	  "typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long int64_t;\n"
	  "typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t;\n"
	  "typedef unsigned long uint64_t; typedef long intptr_t; typedef unsigned long uintptr_t;\n" },
	{ "math.h", "" },
	{ "string.h", "" },
	{ "math_constants.h", "#define CUDART_INF_F __int_as_float(0x7f800000)\n" },
	{ "cuda.h", "struct __align__(64) CUtensorMap { unsigned long opaque[16]; };\n" },
};
const int attn_variant_num_headers = sizeof(attn_variant_headers) / sizeof(attn_variant_headers[0]);

void attn_variant_hash_text(SHA2_CTX *s, const char *text)
{
	SHA256Update(s, (const uint8_t *)text, strlen(text) + 1);
}

void attn_variant_hash_headers(char hex[ATTN_VARIANT_HASH])
{
	SHA2_CTX s;

	SHA256Init(&s);
	for (int i = 0; i < attn_variant_num_headers; i++) {
		attn_variant_hash_text(&s, attn_variant_headers[i].name);
		attn_variant_hash_text(&s, attn_variant_headers[i].text);
	}
	SHA256End(&s, hex);
}
