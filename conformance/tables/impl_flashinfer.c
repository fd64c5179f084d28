// SPDX-License-Identifier: Apache-2.0
/*
 * impl_flashinfer - FlashInfer's compiled modules behind the same table, for side-by-side benchmarks
 *
 * This is a separate table, because in the table of peers attn_dense is cuDNN's. Where no module is found,
 * the operations return -EOPNOTSUPP with a text that says so.
 */
#include "conformance/peers/fi_attn.h"
#include "conformance/tables/tables.h"
#include "primitives/base/error.h"

const struct cairn_impl cairn_impl_flashinfer = {
	.size = sizeof(struct cairn_impl),
	.abi_version = CAIRN_ABI_VERSION,
	.name = "flashinfer",
	.version = "flashattention-3",
	.last_error = cairn_last_error,
	.attn_dense = cairn_attn_dense_fi,
	.attn_dense_workspace = cairn_attn_dense_fi_workspace,
	.attn_paged = cairn_attn_paged_fi,
	.attn_paged_workspace = cairn_attn_paged_fi_workspace,
};
