engine_step.o: serving/engine/engine_step.c serving/base/clock.h \
 serving/engine/engine_impl.h primitives/base/error.h \
 serving/engine/engine.h conformance/abi.h \
 fused/attention/backward/attn_bwd.h fused/attention/dense/attn_dense.h \
 fused/attention/bsr/attn_bsr.h fused/attention/fp8/attn_fp8.h \
 fused/attention/fp8/attn_fp8_blocks.h fused/attention/fp8/attn_quant.h \
 fused/attention/merge/attn_merge.h fused/attention/paged/attn_paged.h \
 fused/cache/kv_view.h fused/attention/variant/attn_variant.h \
 fused/cluster_attn/cluster_attn.h fused/latent/cluster_mla.h \
 fused/decode_step/decode_step.h fused/cache/kv_append.h \
 fused/cache/kv_move.h fused/latent/mla_append.h fused/latent/mla_paged.h \
 fused/latent/decode/mla_decode.h fused/latent/prefill/mla_prefill.h \
 fused/moe/moe.h primitives/gemm/quant_fp8w.h primitives/base/args.h \
 primitives/comm/all_reduce_norm.h primitives/comm/comm.h \
 primitives/rows/rmsnorm.h primitives/comm/all_to_all.h \
 primitives/comm/send_recv.h primitives/draw/argmax.h \
 primitives/cluster/cluster_gather.h \
 primitives/cluster/cluster_schedule.h \
 primitives/cluster/cluster_reduce.h primitives/machine/dsmem.h \
 primitives/machine/screen.h primitives/rows/embedding.h \
 primitives/gemm/fixed/gemm_fixed.h primitives/gemm/fp8/gemm_fp8.h \
 primitives/gemm/gemm.h primitives/gemm/gemm_fp8w.h \
 primitives/gemm/w4/gemm_w4.h primitives/gemm/lora/lora.h \
 primitives/logits/logprobs.h primitives/logits/mask_logits.h \
 primitives/logits/penalize.h primitives/draw/pick_ids.h \
 primitives/rows/rope.h primitives/draw/sample.h \
 primitives/rows/silu_mul.h primitives/machine/stream.h \
 primitives/logits/token_counts.h serving/grammar/masks.h \
 serving/model/forward/decode.h serving/model/forward/forward.h \
 serving/model/model.h serving/graph/op_graph.h serving/graph/symbols.h \
 serving/model/checkpoint/config.h primitives/base/dtype.h \
 serving/engine/worker/sampling.h serving/engine/speculate.h \
 serving/nano/nano_plan.h serving/remote/pull/pull.h \
 serving/remote/lead/lead.h serving/remote/control/control.h \
 serving/remote/control/channel.h serving/slices/slices.h \
 serving/graph/op_cost.h serving/engine/worker/worker.h \
 serving/scheduler/scheduler.h serving/kv/kv_pool.h \
 serving/kv/prefix_tree.h serving/scheduler/tiers.h serving/lora/lora.h
serving/base/clock.h:
serving/engine/engine_impl.h:
primitives/base/error.h:
serving/engine/engine.h:
conformance/abi.h:
fused/attention/backward/attn_bwd.h:
fused/attention/dense/attn_dense.h:
fused/attention/bsr/attn_bsr.h:
fused/attention/fp8/attn_fp8.h:
fused/attention/fp8/attn_fp8_blocks.h:
fused/attention/fp8/attn_quant.h:
fused/attention/merge/attn_merge.h:
fused/attention/paged/attn_paged.h:
fused/cache/kv_view.h:
fused/attention/variant/attn_variant.h:
fused/cluster_attn/cluster_attn.h:
fused/latent/cluster_mla.h:
fused/decode_step/decode_step.h:
fused/cache/kv_append.h:
fused/cache/kv_move.h:
fused/latent/mla_append.h:
fused/latent/mla_paged.h:
fused/latent/decode/mla_decode.h:
fused/latent/prefill/mla_prefill.h:
fused/moe/moe.h:
primitives/gemm/quant_fp8w.h:
primitives/base/args.h:
primitives/comm/all_reduce_norm.h:
primitives/comm/comm.h:
primitives/rows/rmsnorm.h:
primitives/comm/all_to_all.h:
primitives/comm/send_recv.h:
primitives/draw/argmax.h:
primitives/cluster/cluster_gather.h:
primitives/cluster/cluster_schedule.h:
primitives/cluster/cluster_reduce.h:
primitives/machine/dsmem.h:
primitives/machine/screen.h:
primitives/rows/embedding.h:
primitives/gemm/fixed/gemm_fixed.h:
primitives/gemm/fp8/gemm_fp8.h:
primitives/gemm/gemm.h:
primitives/gemm/gemm_fp8w.h:
primitives/gemm/w4/gemm_w4.h:
primitives/gemm/lora/lora.h:
primitives/logits/logprobs.h:
primitives/logits/mask_logits.h:
primitives/logits/penalize.h:
primitives/draw/pick_ids.h:
primitives/rows/rope.h:
primitives/draw/sample.h:
primitives/rows/silu_mul.h:
primitives/machine/stream.h:
primitives/logits/token_counts.h:
serving/grammar/masks.h:
serving/model/forward/decode.h:
serving/model/forward/forward.h:
serving/model/model.h:
serving/graph/op_graph.h:
serving/graph/symbols.h:
serving/model/checkpoint/config.h:
primitives/base/dtype.h:
serving/engine/worker/sampling.h:
serving/engine/speculate.h:
serving/nano/nano_plan.h:
serving/remote/pull/pull.h:
serving/remote/lead/lead.h:
serving/remote/control/control.h:
serving/remote/control/channel.h:
serving/slices/slices.h:
serving/graph/op_cost.h:
serving/engine/worker/worker.h:
serving/scheduler/scheduler.h:
serving/kv/kv_pool.h:
serving/kv/prefix_tree.h:
serving/scheduler/tiers.h:
serving/lora/lora.h:
