// SPDX-License-Identifier: Apache-2.0
#include "registry.h"

const struct cairn_impl cairn_impl_cpu = {
	.size = sizeof(struct cairn_impl),
	.abi_version = CAIRN_ABI_VERSION,
	.flags = CAIRN_IMPL_HOST_MEM,
	.name = "cpu",
	.version = CAIRN_VERSION,
	.stream = cairn_stream_cpu,
	.dsmem = cairn_dsmem_cpu,
	.cluster_reduce = cairn_cluster_reduce_cpu,
	.cluster_gather = cairn_cluster_gather_cpu,
	.gemm = cairn_gemm_cpu,
	.rmsnorm = cairn_rmsnorm_cpu,
	.rope = cairn_rope_cpu,
	.silu_mul = cairn_silu_mul_cpu,
	.embedding = cairn_embedding_cpu,
	.argmax = cairn_argmax_cpu,
	.sample = cairn_sample_cpu,
	.kv_append = cairn_kv_append_cpu,
	.attn_paged = cairn_attn_paged_cpu,
	.cluster_attn = cairn_cluster_attn_cpu,
	.cluster_attn_workspace = cairn_cluster_attn_cpu_workspace,
	.cluster_mla = cairn_cluster_mla_cpu,
	.decode_step = cairn_decode_step_cpu,
	.decode_step_workspace = cairn_decode_step_cpu_workspace,
	.moe = cairn_moe_cpu,
};
