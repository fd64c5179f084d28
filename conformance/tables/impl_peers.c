// SPDX-License-Identifier: Apache-2.0
/*
 * impl_peers - kernels of other libraries behind the same table, for side-by-side benchmarks
 *
 * Libraries are looked up at run time; the operations of a missing library return -EOPNOTSUPP.
 */
#include "primitives/base/error.h"
#include "conformance/tables/tables.h"

const struct cairn_impl cairn_impl_peers = {
	.size = sizeof(struct cairn_impl),
	.abi_version = CAIRN_ABI_VERSION,
	.name = "peers",
	.version = "cublaslt",
	.last_error = cairn_last_error,
	.gemm = cairn_gemm_cublaslt,
	.gemm_workspace = cairn_gemm_cublaslt_workspace,
};
