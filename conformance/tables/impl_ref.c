// SPDX-License-Identifier: Apache-2.0
/* impl_ref - the table of the references */
#include "conformance/tables/program.h"
#include "conformance/tables/tables.h"

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
	.pick_ids = cairn_pick_ids_ref,
	.kv_move = cairn_kv_move_ref,
	.token_counts = cairn_token_counts_ref,
	.penalize = cairn_penalize_ref,
	.logprobs = cairn_logprobs_ref,
	.quant_fp8w = cairn_quant_fp8w_ref,
	.gemm_fp8w = cairn_gemm_fp8w_ref,
	.mla_append = cairn_mla_append_ref,
	.mla_paged = cairn_mla_paged_ref,
	.attn_merge = cairn_attn_merge_ref,
};
