serve_bad_test.o: serving/serve/tests/serve_bad_test.c \
 conformance/harness.h primitives/base/dtype.h primitives/base/error.h \
 conformance/abi.h fused/attention/backward/attn_bwd.h \
 fused/attention/dense/attn_dense.h fused/attention/bsr/attn_bsr.h \
 fused/attention/fp8/attn_fp8.h fused/attention/fp8/attn_fp8_blocks.h \
 fused/attention/fp8/attn_quant.h fused/attention/merge/attn_merge.h \
 fused/attention/paged/attn_paged.h fused/cache/kv_view.h \
 fused/attention/variant/attn_variant.h fused/cluster_attn/cluster_attn.h \
 fused/latent/cluster_mla.h fused/decode_step/decode_step.h \
 fused/cache/kv_append.h fused/cache/kv_move.h fused/latent/mla_append.h \
 fused/latent/mla_paged.h fused/latent/decode/mla_decode.h \
 fused/latent/prefill/mla_prefill.h fused/moe/moe.h \
 primitives/gemm/quant_fp8w.h primitives/base/args.h \
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
 primitives/logits/token_counts.h serving/serve/tests/serve_test.h \
 serving/http/http_test.h serving/http/http.h
conformance/harness.h:
primitives/base/dtype.h:
primitives/base/error.h:
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
serving/serve/tests/serve_test.h:
serving/http/http_test.h:
serving/http/http.h:
