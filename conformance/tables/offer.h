/* SPDX-License-Identifier: Apache-2.0 */
/*
 * offer - functions that the program offers to the plug-ins of its own tests, under the only name that it
 * exports
 *
 * If a plug-in has a function with the name of one of ours, it must get its own function. The program
 * therefore exports nothing but cairn_offer, and a plug-in that needs any other name from the program does
 * not load.
 */
#ifndef CAIRN_OFFER_H
#define CAIRN_OFFER_H

#include "conformance/abi.h"
#include "primitives/base/error.h"

/* The functions offered, without the prefix cairn_. */
#define CAIRN_OFFERED(F) \
	F(error) F(last_error) F(all_reduce_norm_check) F(all_to_all_check) \
	F(argmax_check) F(attn_bsr_check) F(attn_bsr_check_shape) F(attn_bwd_check) \
	F(attn_bwd_check_shape) F(attn_dense_check) \
	F(attn_dense_check_shape) F(attn_fp8_check) F(attn_fp8_check_shape) F(attn_quant_check) \
	F(attn_variant_check) F(attn_variant_check_shape) \
	F(attn_merge_check) F(attn_paged_check) F(attn_paged_check_shape) \
	F(cluster_attn_check) F(cluster_attn_check_shape) F(cluster_attn_cpu_workspace) \
	F(cluster_gather_check) F(cluster_gather_check_shape) F(cluster_mla_check) \
	F(cluster_mla_check_shape) F(cluster_reduce_check) F(cluster_reduce_check_shape) \
	F(decode_step_check) F(decode_step_check_shape) F(decode_step_cpu_workspace) \
	F(decode_step_ranks_check) F(decode_step_ranks_check_shape) F(decode_step_ranks_cpu_workspace) \
	F(dsmem_check) \
	F(embedding_check) F(gemm_check) F(gemm_check_shape) \
	F(gemm_fixed_check) F(gemm_fixed_check_shape) F(gemm_fp8_check) F(gemm_fp8_check_shape) \
	F(gemm_gated_check) F(gemm_fp8w_check) F(gemm_fp8w_check_shape) \
	F(gemm_w4_check) F(gemm_w4_check_shape) \
	F(kv_append_check) F(kv_move_check) F(logprobs_check) F(lora_check) F(lora_check_shape) \
	F(mask_logits_check) F(mla_append_check) \
	F(mla_decode_check) \
	F(mla_decode_check_shape) F(mla_paged_check) F(mla_paged_check_shape) \
	F(mla_prefill_check) F(mla_prefill_check_shape) F(moe_check) \
	F(moe_check_shape) F(penalize_check) F(pick_ids_check) \
	F(qkv_append_check) F(quant_fp8w_check) F(rmsnorm_check) F(rope_check) \
	F(sample_check) F(sample_check_shape) \
	F(screen_check) F(send_recv_check) F(silu_mul_check) F(stream_check) F(token_counts_check)

struct cairn_offer {
	const struct cairn_impl *cpu, *ref, *host;	/* host: only the block of memory and streams */
#define F(name) __typeof__(cairn_##name) *name;
	CAIRN_OFFERED(F)
#undef F
	int (*comm_host_check)(const struct cairn_comm *comm, const char *op);
};

extern const struct cairn_offer cairn_offer;

#endif
