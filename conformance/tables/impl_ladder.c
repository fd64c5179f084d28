// SPDX-License-Identifier: Apache-2.0
/*
 * impl_ladder - tables of the steps of fused/attention/ladder: table ladderN has step N of the forward pass
 * as attn_dense and, up to N = 4, step N of decoding as attn_paged
 */
#include "conformance/tables/tables.h"
#include "fused/attention/ladder/ladder.h"
#include "primitives/base/error.h"

#define TABLE(name_, ...) { \
	.size = sizeof(struct cairn_impl), .abi_version = CAIRN_ABI_VERSION, .name = name_, .version = "1", \
	.last_error = cairn_last_error, __VA_ARGS__ }

const struct cairn_impl cairn_impl_ladder[] = {
	TABLE("ladder1", .attn_dense = ladder_attn1, .attn_paged = ladder_decode1),
	TABLE("ladder2", .attn_dense = ladder_attn2, .attn_paged = ladder_decode2),
	TABLE("ladder3", .attn_dense = ladder_attn3, .attn_paged = ladder_decode3,
	      .attn_paged_workspace = ladder_decode_workspace),
	TABLE("ladder4", .attn_dense = ladder_attn4, .attn_paged = ladder_decode4,
	      .attn_paged_workspace = ladder_decode_workspace),
	TABLE("ladder5", .attn_dense = ladder_attn5),
};
