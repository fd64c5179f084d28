/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fi_attn - attn_dense and prompts of attn_paged by FlashInfer's FlashAttention-3, for the table of that name
 *
 * The contracts are those of attn_dense.h and attn_paged.h, with these exceptions.
 *
 *   Supported: bf16, dimensions for which a module has been compiled, no lse, window, softcap or sms, no row
 *   without a key. attn_paged needs at least 64 query rows in the longest request: FlashInfer does not choose
 *   this module for fewer, and fi_decode.h is for one.
 *   Plan: see fi_plan.h.
 *   Workspace: none.
 */
#ifndef CAIRN_FI_ATTN_H
#define CAIRN_FI_ATTN_H

#include "fused/attention/paged/attn_paged.h"
#include "fused/attention/dense/attn_dense.h"

int cairn_attn_dense_fi(const struct cairn_attn_dense_args *args, void *stream);
int cairn_attn_dense_fi_workspace(const struct cairn_attn_dense_args *args, size_t *bytes);
int cairn_attn_prompt_fi(const struct cairn_attn_paged_args *args, void *stream);

#endif
