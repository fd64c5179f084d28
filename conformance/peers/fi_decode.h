/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fi_decode - attn_paged by FlashInfer's kernels for decoding, for the table of that name
 *
 * The contract is that of attn_paged.h, with these exceptions.
 *
 *   Supported: one query row in each request, bf16 and f16, head_dim for which a module has been compiled; no
 *   lse, window, softcap, sms or kv_fp8; no request without a key. Groups of query heads to a KV head: with
 *   bf16 from 4 to 16 on the tensor cores (FlashAttention-2), as serving engines choose, else of 1, 2, 3, 4
 *   or 8 on the CUDA cores. Whether these are faster for small batches of groups of 4 was not measured.
 *   Dependent launch: on, as it is by default in FlashInfer: the next kernel's launch overlaps with this one.
 *   Plan: see fi_plan.h.
 *   Workspace: none; the partial results of split keys lie in memory of its own.
 */
#ifndef CAIRN_FI_DECODE_H
#define CAIRN_FI_DECODE_H

#include "fused/attention/paged/attn_paged.h"

int cairn_attn_decode_fi(const struct cairn_attn_paged_args *args, void *stream);
/* The name of the kernel that serves these arguments, which have been checked. */
const char *cairn_attn_decode_fi_kernel(const struct cairn_attn_paged_args *args);

#endif
