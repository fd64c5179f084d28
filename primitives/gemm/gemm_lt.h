/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_lt - what cuBLASLt offers beyond gemm.h: a residual, strided heads, and the choice of its algorithm
 *
 *   out[h,i,j] = sum_l a[h,i,l] * b[h,j,l] + bias[j] + residual[h,i,j],  rounded once
 *
 * For the peers that a fused kernel is held against; the engine needs none of it.
 */
#ifndef CAIRN_GEMM_LT_H
#define CAIRN_GEMM_LT_H

#include "primitives/gemm/gemm.h"

#define CAIRN_GEMM_LT_WORKSPACE	(32u << 20)	/* NVIDIA's advice for Hopper */
#define CAIRN_GEMM_LT_ALGOS	32		/* asked of the heuristics at most */

struct cairn_gemm_lt {
	struct cairn_gemm_args gemm;		/* of one head; pointers are those of head 0 */
	const void *residual;			/* laid out as out, which it may be; NULL: none */
	int64_t out_head, a_head, b_head;	/* elements from one head to the next */
	int64_t out_row, a_row, b_row;		/* and from one row to the next; 0: packed */
	int32_t heads;				/* 0 counts as 1 */
	int32_t b_kn;				/* b lies [k, n] */
	/* place in the heuristics' list; < 0: the first, and by alignment */
	int32_t algo;
};

#ifdef __cplusplus
extern "C" {
#endif

/*
 * As cairn_gemm_cublaslt(); with algo >= 0 every pointer, head and row is taken to be
 * 16-byte aligned, no more.
 */
int cairn_gemm_lt(const struct cairn_gemm_lt *args, void *stream);
/* Algorithms there are for this product, whatever args->algo says. */
int cairn_gemm_lt_algos(const struct cairn_gemm_lt *args, int *num);

/*
 * The fastest of all algorithms and of own(): found by timing them on the device, with b out of the caches
 * and a kernel ahead that they depend on, at the first call of a shape whose stream is not being captured
 * (gemm_trial.c). That call synchronises and for its duration owns device memory, 512 MiB or a copy of b if
 * that is more: peers may. A shape first seen in a capture gets own() or the heuristics' first. own: a kernel
 * of ours that takes this shape, always the same one for it; NULL: cairn_gemm_own() if that does.
 */
int cairn_gemm_trial(const struct cairn_gemm_lt *args,
		     int (*own)(const struct cairn_gemm_lt *args, void *stream), void *stream);
/* What was chosen: "own", or "cublaslt 3 of 17"; "" for a shape not seen yet. */
const char *cairn_gemm_trial_choice(const struct cairn_gemm_lt *args);

#ifdef __cplusplus
}
#endif
#endif
