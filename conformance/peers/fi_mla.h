/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fi_mla - mla_decode by FlashInfer's kernel for latent attention on Hopper, for the table of that name
 *
 * The contract is that of mla_decode.h, with these exceptions.
 *
 *   Supported: bf16; nnz_qo is the number of rows in qo_indptr; no request without a row, no row without a
 *   key; no slots, kv_fp8 or sms; queries of tokens at most 2^32 elements apart.
 *   Numerics: where its plan splits the keys of a request, partial results are rounded to bf16.
 *   Plan: see fi_plan.h.
 *   Workspace: none; the partial results of split keys lie in memory of its own.
 */
#ifndef CAIRN_FI_MLA_H
#define CAIRN_FI_MLA_H

#include "fused/latent/decode/mla_decode.h"

int cairn_mla_decode_fi(const struct cairn_mla_decode_args *args, void *stream);
int cairn_mla_decode_fi_workspace(const struct cairn_mla_decode_args *args, size_t *bytes);

#endif
