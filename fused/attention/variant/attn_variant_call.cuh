/* SPDX-License-Identifier: Apache-2.0 */
/* attn_variant_call - the arguments of the kernels of attn_variant, and their forms */
#ifndef CAIRN_ATTN_VARIANT_CALL_CUH
#define CAIRN_ATTN_VARIANT_CALL_CUH

#include "fused/attention/forward/attn_range.cuh"

#define ATTN_KEY_THREADS	256		/* threads of a CTA that rotates keys */
#define ATTN_MERGERS	128		/* threads of a CTA that merges the states of slices */

enum attn_variant_kind {
	VARIANT_WHOLE,			/* a CTA attends to whole row tiles */
	VARIANT_SLICE,			/* a CTA attends to a slice of the keys of one row tile */
	VARIANT_IN_PLACE		/* the same with few rows, and key() rotates K in shared memory */
};

struct attn_variant_call : attn_call {
	float p[8];
	const float *t[4];
	int32_t group;			/* query heads of a KV head */
	int32_t interleaved;
	/* if key() rotates into the workspace: K, and where its rotated keys go; else 0 */
	const void *k;
	void *rotated;			/* [KV head][nnz_kv][dim] */
	int64_t k_stride, k_head_stride;
	int32_t nnz_kv, kv_heads;
	/*
	 * with slices: the number of slices of a row tile's keys, and the workspace's states of rows: O, and
	 * its maximum and sum
	 */
	int32_t slices;
	int32_t tile_rows;		/* rows of a row tile, at most */
	int64_t state_rows;		/* rows and heads of all requests, at most */
	float *state_o;			/* [slice][state_rows][dim] */
	float2 *state_sums;		/* [slice][state_rows] */
};

/* Beside one consumer warpgroup and the producer, seven warps rotate Q and K. */
template <class F> struct attn_form_in_place : F {
	static constexpr int threads = 384;
};

/* The form for a head dimension; with rotations or slices, producer threads need more registers. */
template <int head_dim, bool rotates, enum attn_variant_kind kind = VARIANT_WHOLE>
struct attn_variant_form : attn_variant_form<head_dim, rotates> { };
template <> struct attn_variant_form<64, false> : attn_form<64, 64, 96, 3, 4, 2, 152, 56> { };
template <> struct attn_variant_form<64, true> : attn_form<64, 64, 96, 3, 4, 2, 136, 104> { };
template <> struct attn_variant_form<128, false> : attn_form<128, 128, 128, 2, 2, 2, 232, 40> { };
template <> struct attn_variant_form<128, false, VARIANT_SLICE> :
	attn_form<128, 128, 128, 2, 2, 2, 224, 56> { };
template <> struct attn_variant_form<128, true> : attn_form<128, 128, 128, 2, 2, 2, 200, 104> { };
template <> struct attn_variant_form<64, true, VARIANT_IN_PLACE> :
	attn_form_in_place<attn_form<64, 64, 96, 1, 4, 2, 232, 136>> { };
template <> struct attn_variant_form<128, true, VARIANT_IN_PLACE> :
	attn_form_in_place<attn_form<128, 128, 128, 1, 3, 2, 232, 136>> { };

#endif
