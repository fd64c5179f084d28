// SPDX-License-Identifier: Apache-2.0
#include "registry.h"

const struct cairn_impl cairn_impl_ref = {
	.size = sizeof(struct cairn_impl),
	.abi_version = CAIRN_ABI_VERSION,
	.flags = CAIRN_IMPL_HOST_MEM,
	.name = "ref",
	.version = CAIRN_VERSION,
	.stream = cairn_stream_ref,
	.dsmem = cairn_dsmem_ref,
	.cluster_reduce = cairn_cluster_reduce_ref,
	.cluster_gather = cairn_cluster_gather_ref,
	.gemm = cairn_gemm_ref,
	.rmsnorm = cairn_rmsnorm_ref,
	.rope = cairn_rope_ref,
	.silu_mul = cairn_silu_mul_ref,
	.embedding = cairn_embedding_ref,
	.argmax = cairn_argmax_ref,
	.sample = cairn_sample_ref,
	.kv_append = cairn_kv_append_ref,
	.attn_paged = cairn_attn_paged_ref,
	.cluster_attn = cairn_cluster_attn_ref,
	.cluster_mla = cairn_cluster_mla_ref,
	.decode_step = cairn_decode_step_ref,
	.moe = cairn_moe_ref,
};
