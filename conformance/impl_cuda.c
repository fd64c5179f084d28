// SPDX-License-Identifier: Apache-2.0
#include "../primitives/error.h"
#include "registry.h"

const struct cairn_impl cairn_impl_cuda = {
	.size = sizeof(struct cairn_impl),
	.abi_version = CAIRN_ABI_VERSION,
	.name = "cuda",
	.version = CAIRN_VERSION,
	.last_error = cairn_last_error,
	.stream = cairn_stream,
	.dsmem = cairn_dsmem,
	.cluster_reduce = cairn_cluster_reduce,
	.cluster_reduce_workspace = cairn_cluster_reduce_workspace,
	.cluster_gather = cairn_cluster_gather,
	.cluster_gather_workspace = cairn_cluster_gather_workspace,
	.gemm = cairn_gemm,
	.gemm_workspace = cairn_gemm_workspace,
	.rmsnorm = cairn_rmsnorm,
	.rope = cairn_rope,
	.silu_mul = cairn_silu_mul,
	.embedding = cairn_embedding,
	.argmax = cairn_argmax,
	.sample = cairn_sample,
	.sample_workspace = cairn_sample_workspace,
	.kv_append = cairn_kv_append,
	.attn_paged = cairn_attn_paged,
	.attn_paged_workspace = cairn_attn_paged_workspace,
};
