/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_rotated - attention with rotations in two steps: q and all cached keys are rotated, then attn_paged
 *
 * This is how table "unfused" computes attn_variant with CAIRN_VARIANT_ROPE. One kernel rotates q and k into
 * the workspace and lists the keys as pages; attn_paged reads the rotated keys and v, and splits the keys of
 * a row.
 *
 * Supported:  one request, not interleaved, v contiguous, nnz_kv a multiple of ATTN_ROTATED_PAGE, all SMs;
 *             anything else -EOPNOTSUPP.
 */
#ifndef CAIRN_ATTN_ROTATED_H
#define CAIRN_ATTN_ROTATED_H

#include "fused/attention/variant/attn_variant.h"

#define ATTN_ROTATED_PAGE	16

#ifdef __cplusplus
extern "C" {
#endif

int attn_rotated(const struct cairn_attn_variant_args *args, void *stream);
int attn_rotated_workspace(const struct cairn_attn_variant_args *args, size_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
