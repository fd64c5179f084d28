/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block_parts - the steps between the products of a decoder layer, as separate kernels
 *
 * The unfused chains, which are the baseline of the fused operations, use them. The two kernels that append
 * fuse what rope.h, rmsnorm.h and kv_append.h do separately: engines fuse these steps, so a fair baseline
 * does too. Each request has one new token; the view of the cache, skipped requests and numerics are as in
 * cluster_attn.h.
 */
#ifndef CAIRN_BLOCK_PARTS_H
#define CAIRN_BLOCK_PARTS_H

#include <stddef.h>
#include <stdint.h>

#include "fused/cache/kv_view.h"

#define BLOCK_PARTS_MAX_BATCH	16

/* Rotates the q heads of each row of qkv in place; rotates its k heads and appends them and its v heads. */
struct block_rope_append_args {
	void *qkv;			/* [kv.batch, (num_qo_heads + 2 num_kv_heads) * head_dim] */
	const float *inv_freq;
	const int32_t *positions;
	struct cairn_kv_view kv;
	int32_t num_qo_heads, num_kv_heads, head_dim;
	int32_t dtype;
};

/*
 * Rotates the last 64 of the 192 elements of each q head in place; norms the first 512 elements of each row
 * of latent, rotates its last 64, and appends both as the newest key.
 */
struct block_mla_append_args {
	void *q;			/* [kv.batch, num_heads, 192] */
	const void *latent, *kv_norm;	/* [kv.batch, 576], [512] */
	const float *inv_freq;
	const int32_t *positions;
	struct cairn_kv_view kv;	/* k_pages: latents of 576 elements */
	int32_t num_heads, dtype;
	float eps;
};

/* out = silu(gate) * up; the products gate and up are fp32. */
struct block_silu_mul_args {
	void *out;			/* [rows, dim] */
	const float *x;			/* [rows, 2 dim]: dim gates, then dim ups; 16-byte aligned */
	int32_t rows, dim;		/* dim: a multiple of 4 */
	int32_t dtype;
};

#ifdef __cplusplus
extern "C" {
#endif

/* The arguments are not checked. */
int block_rope_append(const struct block_rope_append_args *args, void *stream);
int block_mla_append(const struct block_mla_append_args *args, void *stream);
int block_silu_mul(const struct block_silu_mul_args *args, void *stream);
/* Returns a device array of 0, 1, .. BLOCK_PARTS_MAX_BATCH: the qo_indptr of a decode step. */
int block_qo_indptr(const int32_t **indptr);

#ifdef __cplusplus
}
#endif
#endif
