/* SPDX-License-Identifier: Apache-2.0 */
/*
 * abi - the operation table, through which the suite calls an implementation
 *
 * A plug-in is a shared object with one exported symbol, cairn_impl_get(), which returns a table. An
 * operation that the plug-in lacks is NULL; its cases are skipped. example_plugin.c is a complete plug-in.
 *
 * Rules for every operation
 *   - The contract is the comment on top of the operation's header.
 *   - Argument structs and the table start with their own size. Within an ABI version they only grow at the
 *     end, so that old plug-ins load in new suites and new plug-ins in old suites: a member beyond `size`
 *     counts as absent (NULL or 0). An operation must accept a struct that is longer than it knows if all
 *     bytes beyond the known ones are 0. A nonzero byte there asks for something that the operation does not
 *     have, and the operation returns -EOPNOTSUPP. primitives/base/args.h has helpers for this, which need no
 *     linking.
 *   - A new ABI version may move members, except the table's members `size` to `version`, which keep their
 *     places in all versions. The suite refuses a plug-in that serves only older versions, and names it.
 *   - An operation returns 0 or -errno (primitives/base/error.h lists the values). -EOPNOTSUPP skips the
 *     case.
 *   - An operation on a device is asynchronous on `stream`; it neither allocates nor synchronises, and can be
 *     captured in a graph. On host memory it may allocate what it frees before it returns. It does not read
 *     its argument struct after it has returned.
 *   - The caller owns all memory. To read or write outside the arrays of an operation is an error. The
 *     *_workspace query gives the size of the workspace; NULL: the operation needs none. It reads only the
 *     scalars of the arguments; pointers may still be NULL. The contents of a workspace are undefined,
 *     unless the operation's header says that the caller zeroes it before the first use.
 *   - An operation on a device may read weights before the preceding kernels of the stream have ended.
 *     Weights are matrices of parameters with their scales and biases, the weights of norms, and inv_freq.
 *     gemm.h ("Constant b") says how their writer must be separated from the call. All other inputs may be
 *     results of the preceding kernel.
 *   - Equal arguments give bitwise equal results, wherever the buffers lie. Where the header allows an output
 *     to share an input's buffer, the result has the same bits as in a separate buffer.
 *
 * A table may leave all members for memory, streams, events and graphs NULL. It then gets the built-in
 * ones: host memory with CAIRN_IMPL_HOST_MEM, else CUDA device memory and CUDA streams (the void * is a
 * cudaStream_t).
 */
#ifndef CAIRN_ABI_H
#define CAIRN_ABI_H

#include <stddef.h>
#include <stdint.h>

#include "fused/attention/backward/attn_bwd.h"
#include "fused/attention/bsr/attn_bsr.h"
#include "fused/attention/dense/attn_dense.h"
#include "fused/attention/fp8/attn_fp8.h"
#include "fused/attention/fp8/attn_quant.h"
#include "fused/attention/merge/attn_merge.h"
#include "fused/attention/paged/attn_paged.h"
#include "fused/attention/variant/attn_variant.h"
#include "fused/cluster_attn/cluster_attn.h"
#include "fused/latent/cluster_mla.h"
#include "fused/decode_step/decode_step.h"
#include "fused/decode_step/ranks/decode_step_ranks.h"
#include "fused/cache/kv_append.h"
#include "fused/cache/kv_move.h"
#include "fused/latent/mla_append.h"
#include "fused/latent/mla_paged.h"
#include "fused/latent/decode/mla_decode.h"
#include "fused/latent/prefill/mla_prefill.h"
#include "fused/moe/moe.h"
#include "fused/qkv/qkv_append.h"
#include "primitives/base/args.h"
#include "primitives/comm/all_reduce_norm.h"
#include "primitives/comm/all_to_all.h"
#include "primitives/comm/comm.h"
#include "primitives/comm/send_recv.h"
#include "primitives/draw/argmax.h"
#include "primitives/cluster/cluster_gather.h"
#include "primitives/cluster/cluster_reduce.h"
#include "primitives/machine/dsmem.h"
#include "primitives/machine/screen.h"
#include "primitives/rows/embedding.h"
#include "primitives/gemm/fixed/gemm_fixed.h"
#include "primitives/gemm/fp8/gemm_fp8.h"
#include "primitives/gemm/gated/gemm_gated.h"
#include "primitives/gemm/gemm.h"
#include "primitives/gemm/fp8w/gemm_fp8w.h"
#include "primitives/gemm/w4/gemm_w4.h"
#include "primitives/gemm/lora/lora.h"
#include "primitives/logits/logprobs.h"
#include "primitives/logits/mask_logits.h"
#include "primitives/logits/penalize.h"
#include "primitives/draw/pick_ids.h"
#include "primitives/rows/quant_fp8w.h"
#include "primitives/rows/rmsnorm.h"
#include "primitives/rows/rope.h"
#include "primitives/draw/sample.h"
#include "primitives/rows/silu_mul.h"
#include "primitives/machine/stream.h"
#include "primitives/logits/token_counts.h"

#define CAIRN_ABI_VERSION	2
#define CAIRN_IMPL_HOST_MEM	(1u << 0)	/* pointers in arguments are host memory */

enum cairn_copy { CAIRN_COPY_TO_DEVICE, CAIRN_COPY_TO_HOST, CAIRN_COPY_ON_DEVICE };

struct cairn_device_info {
	size_t size;
	char name[64];			/* "NVIDIA H200", or the processor's name */
	char driver[32];		/* "580.159", or "" */
	int32_t num_sms;		/* on a host: cores */
	int32_t clock_mhz;		/* current clock, 0 if unknown */
	int64_t l2_bytes, mem_bytes;
};

struct cairn_impl {
	size_t size;			/* sizeof(struct cairn_impl) when the implementation was compiled */
	uint32_t abi_version;
	uint32_t flags;
	const char *name, *version;	/* 1 to 63 printable ASCII characters, no quote, no backslash */

	int (*init)(int device);	/* called once per process, before all others; may be NULL */
	void (*fini)(void);
	const char *(*last_error)(void);	/* text of this thread's latest failure; may be NULL */
	int (*device_info)(struct cairn_device_info *info);

	int (*mem_alloc)(void **ptr, size_t bytes);	/* 256-byte aligned */
	void (*mem_free)(void *ptr);
	/* host memory that mem_copy reads and writes asynchronously */
	int (*host_alloc)(void **ptr, size_t bytes);
	void (*host_free)(void *ptr);
	int (*mem_copy)(void *dst, const void *src, size_t bytes, int kind, void *stream);
	int (*mem_set)(void *dst, int byte, size_t bytes, void *stream);
	int (*stream_create)(void **stream);
	void (*stream_destroy)(void *stream);
	int (*stream_sync)(void *stream);
	int (*event_create)(void **event);
	void (*event_destroy)(void *event);
	int (*event_record)(void *event, void *stream);
	int (*event_sync)(void *event);			/* blocks the host until the event has occurred */
	int (*event_elapsed)(float *ms, void *start, void *end);	/* waits for both events */
	/* returns -EOPNOTSUPP if the table has no graphs; callers then launch operations one by one */
	int (*graph_begin)(void *stream);
	int (*graph_end)(void *stream, void **graph);
	int (*graph_launch)(void *graph, void *stream);
	void (*graph_destroy)(void *graph);

	/* primitives */
	int (*stream)(const struct cairn_stream_args *args, void *stream);
	int (*dsmem)(const struct cairn_dsmem_args *args, void *stream);
	int (*cluster_reduce)(const struct cairn_cluster_reduce_args *args, void *stream);
	int (*cluster_reduce_workspace)(const struct cairn_cluster_reduce_args *args, size_t *bytes);
	int (*cluster_gather)(const struct cairn_cluster_gather_args *args, void *stream);
	int (*cluster_gather_workspace)(const struct cairn_cluster_gather_args *args, size_t *bytes);
	int (*gemm)(const struct cairn_gemm_args *args, void *stream);
	int (*gemm_workspace)(const struct cairn_gemm_args *args, size_t *bytes);
	int (*rmsnorm)(const struct cairn_rmsnorm_args *args, void *stream);
	int (*rope)(const struct cairn_rope_args *args, void *stream);
	int (*silu_mul)(const struct cairn_silu_mul_args *args, void *stream);
	int (*embedding)(const struct cairn_embedding_args *args, void *stream);
	int (*argmax)(const struct cairn_argmax_args *args, void *stream);
	int (*sample)(const struct cairn_sample_args *args, void *stream);
	int (*sample_workspace)(const struct cairn_sample_args *args, size_t *bytes);

	/* fused */
	int (*kv_append)(const struct cairn_kv_append_args *args, void *stream);
	int (*attn_paged)(const struct cairn_attn_paged_args *args, void *stream);
	int (*attn_paged_workspace)(const struct cairn_attn_paged_args *args, size_t *bytes);
	int (*cluster_attn)(const struct cairn_cluster_attn_args *args, void *stream);
	int (*cluster_attn_workspace)(const struct cairn_cluster_attn_args *args, size_t *bytes);
	int (*cluster_mla)(const struct cairn_cluster_mla_args *args, void *stream);
	int (*cluster_mla_workspace)(const struct cairn_cluster_mla_args *args, size_t *bytes);
	int (*decode_step)(const struct cairn_decode_step_args *args, void *stream);
	int (*decode_step_workspace)(const struct cairn_decode_step_args *args, size_t *bytes);
	int (*moe)(const struct cairn_moe_args *args, void *stream);
	int (*moe_workspace)(const struct cairn_moe_args *args, size_t *bytes);

	/* what an engine runs before and after a forward pass */
	int (*pick_ids)(const struct cairn_pick_ids_args *args, void *stream);
	int (*kv_move)(const struct cairn_kv_move_args *args, void *stream);
	int (*token_counts)(const struct cairn_token_counts_args *args, void *stream);
	int (*penalize)(const struct cairn_penalize_args *args, void *stream);
	int (*logprobs)(const struct cairn_logprobs_args *args, void *stream);

	/* 8-bit weights */
	int (*quant_fp8w)(const struct cairn_quant_fp8w_args *args, void *stream);
	int (*gemm_fp8w)(const struct cairn_gemm_fp8w_args *args, void *stream);
	int (*gemm_fp8w_workspace)(const struct cairn_gemm_fp8w_args *args, size_t *bytes);

	/* multi-head latent attention (MLA) as separate operations */
	int (*mla_append)(const struct cairn_mla_append_args *args, void *stream);
	int (*mla_paged)(const struct cairn_mla_paged_args *args, void *stream);
	int (*mla_paged_workspace)(const struct cairn_mla_paged_args *args, size_t *bytes);

	/*
	 * Belongs to the members for memory and streams. Work submitted to `stream` after this call starts
	 * only when the event has occurred. If NULL, an engine runs no copies concurrently with a pass.
	 */
	int (*stream_wait)(void *stream, void *event);

	/* merges states of partial attention */
	int (*attn_merge)(const struct cairn_attn_merge_args *args, void *stream);

	/* attention over contiguous keys */
	int (*attn_dense)(const struct cairn_attn_dense_args *args, void *stream);
	int (*attn_dense_workspace)(const struct cairn_attn_dense_args *args, size_t *bytes);

	/* attention over lists of blocks (block-sparse rows) */
	int (*attn_bsr)(const struct cairn_attn_bsr_args *args, void *stream);
	int (*attn_bsr_workspace)(const struct cairn_attn_bsr_args *args, size_t *bytes);

	/* gradients of attn_dense */
	int (*attn_bwd)(const struct cairn_attn_bwd_args *args, void *stream);
	int (*attn_bwd_workspace)(const struct cairn_attn_bwd_args *args, size_t *bytes);

	/* mla_paged for prompts, with the latent expanded to keys and values */
	int (*mla_prefill)(const struct cairn_mla_prefill_args *args, void *stream);
	int (*mla_prefill_workspace)(const struct cairn_mla_prefill_args *args, size_t *bytes);

	/* attention in fp8 */
	int (*attn_quant)(const struct cairn_attn_quant_args *args, void *stream);
	int (*attn_fp8)(const struct cairn_attn_fp8_args *args, void *stream);
	int (*attn_fp8_workspace)(const struct cairn_attn_fp8_args *args, size_t *bytes);

	/* attn_dense with a few lines of code of the caller's own */
	int (*attn_variant)(const struct cairn_attn_variant_args *args, void *stream);
	int (*attn_variant_workspace)(const struct cairn_attn_variant_args *args, size_t *bytes);

	/* attention of absorbed queries over latents, also in 8 bits and from lists of slots */
	int (*mla_decode)(const struct cairn_mla_decode_args *args, void *stream);
	int (*mla_decode_workspace)(const struct cairn_mla_decode_args *args, size_t *bytes);

	/* the plan of attn_bsr alone, for calls with `planned` */
	int (*attn_plan)(const struct cairn_attn_bsr_args *args, void *stream);

	/* Belongs to the members for memory and streams. The device's PCI address, "0000:1b:00.0", by which
	 * the suite finds its energy counter (energy.h). NULL or -EOPNOTSUPP: it has none of its own. */
	int (*pci_bus_id)(char *id, size_t len);

	/*
	 * Belongs to the members for memory and streams. Creates a stream whose work runs on a part of the
	 * device: on the first sms SMs, on all but the first -sms if sms < 0, on all if it is 0. Streams of
	 * sms and of -sms share no SM. priority 1: waiting CTAs of this stream start before those of streams
	 * of priority 0. An operation whose CTAs wait for each other needs all SMs. NULL: the table has none.
	 * -EINVAL: the device cannot be cut there; -EOPNOTSUPP.
	 */
	int (*stream_create_part)(void **stream, int32_t sms, int32_t priority);

	/*
	 * several GPUs: communicators (comm.h, which describes these functions), and the collectives.
	 * comm_open comes with comm_error, comm_abort and comm_close; comm_heap may be NULL.
	 */
	int (*comm_open)(const struct cairn_comm_args *args, struct cairn_comm *comm);
	int (*comm_heap)(const struct cairn_comm *comm, int32_t rank, void **base);
	int (*comm_error)(const struct cairn_comm *comm);
	void (*comm_abort)(const struct cairn_comm *comm);
	void (*comm_close)(struct cairn_comm *comm);
	int (*all_reduce_norm)(const struct cairn_all_reduce_norm_args *args, void *stream);
	int (*all_to_all)(const struct cairn_all_to_all_args *args, void *stream);
	int (*send_recv)(const struct cairn_send_recv_args *args, void *stream);

	/* products whose bits depend on no other row and on no size */
	int (*gemm_fixed)(const struct cairn_gemm_fixed_args *args, void *stream);
	int (*gemm_fixed_workspace)(const struct cairn_gemm_fixed_args *args, size_t *bytes);

	/* 8-bit weights and activations */
	int (*gemm_fp8)(const struct cairn_gemm_fp8_args *args, void *stream);
	int (*gemm_fp8_workspace)(const struct cairn_gemm_fp8_args *args, size_t *bytes);

	/* what a grammar allows a row to draw */
	int (*mask_logits)(const struct cairn_mask_logits_args *args, void *stream);

	/* the same work on every compute unit, whose results must agree */
	int (*screen)(const struct cairn_screen_args *args, void *stream);

	/* 4-bit weights */
	int (*gemm_w4)(const struct cairn_gemm_w4_args *args, void *stream);
	int (*gemm_w4_workspace)(const struct cairn_gemm_w4_args *args, size_t *bytes);

	/* low-rank adapters, one for each row */
	int (*lora)(const struct cairn_lora_args *args, void *stream);
	int (*lora_workspace)(const struct cairn_lora_args *args, size_t *bytes);

	/* a decode step of several ranks */
	int (*decode_step_ranks)(const struct cairn_decode_step_ranks_args *args, void *stream);
	int (*decode_step_ranks_workspace)(const struct cairn_decode_step_ranks_args *args, size_t *bytes);

	/* gate, up and their activation, for few rows */
	int (*gemm_gated)(const struct cairn_gemm_gated_args *args, void *stream);

	/* queries, keys and values, their rotation and the append, for few rows */
	int (*qkv_append)(const struct cairn_qkv_append_args *args, void *stream);
};

/*
 * The only exported symbol of a plug-in. Returns NULL if the plug-in does not support that ABI version. The
 * suite then asks for older versions, so that it can name the plug-in in its refusal.
 */
#ifdef __cplusplus
extern "C"
#endif
const struct cairn_impl *cairn_impl_get(uint32_t abi_version);

#endif
