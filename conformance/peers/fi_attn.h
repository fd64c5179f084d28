/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fi_attn - attn_dense and attn_paged by FlashInfer's FlashAttention-3, for the table of that name
 *
 * The contracts are those of attn_dense.h and attn_paged.h, with these exceptions.
 *
 *   Supported: bf16, dimensions for which a module has been compiled, no lse, window, softcap or sms, no row
 *   without a key. attn_paged supports only prefill, with at least 64 query rows in the longest request:
 *   FlashInfer does not choose this module for fewer.
 *   Plan: FlashInfer distributes tiles to CTAs on the host. A call outside of a capture reads the index
 *   arrays, makes a plan, and keeps it in memory of its own. A captured call uses the plan of the latest call
 *   of the shape, which must exist; its graph is valid for these lengths only. A captured call therefore
 *   takes the time of the kernel alone, as in a step of a model whose layers share a plan.
 *   Workspace: none.
 */
#ifndef CAIRN_FI_ATTN_H
#define CAIRN_FI_ATTN_H

#include "fused/attention/paged/attn_paged.h"
#include "fused/attention/dense/attn_dense.h"

int cairn_attn_dense_fi(const struct cairn_attn_dense_args *args, void *stream);
int cairn_attn_dense_fi_workspace(const struct cairn_attn_dense_args *args, size_t *bytes);
int cairn_attn_paged_fi(const struct cairn_attn_paged_args *args, void *stream);
int cairn_attn_paged_fi_workspace(const struct cairn_attn_paged_args *args, size_t *bytes);

#endif
