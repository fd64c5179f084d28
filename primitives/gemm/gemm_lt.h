/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_lt - gemm by cuBLASLt with features that gemm.h lacks: residual, strided heads, choice of algorithm
 *
 *   out[h,i,j] = sum_l a[h,i,l] * b[h,j,l] + bias[j] + residual[h,i,j],  rounded once
 *
 * The unfused chains, with which fused kernels are compared, use it; the engine does not.
 */
#ifndef CAIRN_GEMM_LT_H
#define CAIRN_GEMM_LT_H

#include "primitives/gemm/gemm.h"

#define CAIRN_GEMM_LT_WORKSPACE	(32u << 20)	/* bytes, as NVIDIA recommends for Hopper */
#define CAIRN_GEMM_LT_ALGOS	32		/* most algorithms requested from the heuristics */
#define CAIRN_GEMM_TRIAL_TEXT	32		/* bytes of a text of cairn_gemm_trial_choice() */

struct cairn_gemm_lt {
	struct cairn_gemm_args gemm;		/* of one head; pointers are those of head 0 */
	const void *residual;			/* in the layout of out; may be out; NULL: none */
	int64_t out_head, a_head, b_head;	/* elements from one head to the next */
	int64_t out_row, a_row, b_row;		/* elements from one row to the next; 0: packed */
	int32_t heads;				/* 0 counts as 1 */
	int32_t b_kn;				/* b is [k, n], not [n, k] */
	/* index in the heuristics' list; < 0: the first algorithm for the pointers' actual alignment */
	int32_t algo;
};

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Like cairn_gemm_cublaslt(). With algo >= 0, every pointer, head and row is assumed to be aligned to 16
 * bytes and no more, so that the list of algorithms does not depend on addresses.
 */
int cairn_gemm_lt(const struct cairn_gemm_lt *args, void *stream);
/* Writes the number of algorithms for this product to *num; ignores args->algo. */
int cairn_gemm_lt_algos(const struct cairn_gemm_lt *args, int *num);

/*
 * Runs the fastest of own() and all of the library's algorithms. The first call of a shape outside of a
 * capture times them on the device (gemm_trial.c), each after a kernel that it depends on and with b not in a
 * cache. That call synchronises and temporarily allocates device memory (512 MiB, or a copy of b if that is
 * more), which only peers may do. A shape first seen in a capture uses own() or the heuristics' first
 * algorithm. own: our kernel for this shape, always the same one; NULL: cairn_gemm_own() if that supports the
 * shape.
 */
int cairn_gemm_trial(const struct cairn_gemm_lt *args,
		     int (*own)(const struct cairn_gemm_lt *args, void *stream), void *stream);
/*
 * Writes the choice on the current device, such as "own" or "cublaslt 3 of 17", or "" for a shape not seen
 * yet.
 */
void cairn_gemm_trial_choice(const struct cairn_gemm_lt *args, char text[CAIRN_GEMM_TRIAL_TEXT]);

#ifdef __cplusplus
}
#endif
#endif
