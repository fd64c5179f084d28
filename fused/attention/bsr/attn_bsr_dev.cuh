/* SPDX-License-Identifier: Apache-2.0 */
/* attn_bsr_dev - declarations for the three kernels of attn_bsr: the workspace, the call, the launchers */
#ifndef CAIRN_ATTN_BSR_DEV_CUH
#define CAIRN_ATTN_BSR_DEV_CUH

#include <cuda.h>

#include "fused/attention/base/attn_softmax.cuh"
#include "fused/attention/bsr/attn_bsr_plan.h"

/*
 * Device memory of a call. A state is O in fp32, already divided by the sum, and the natural lse. A piece's
 * state holds the rows of a row tile. If the call has several parts, whole units have states, too, indexed by
 * token and head.
 */
struct attn_bsr_space {
	struct attn_plan_head *head;
	int32_t *list_units;		/* [lists + 1] number of units before each list */
	struct attn_unit *units;
	int32_t *costs;			/* for each unit, the cost of all units before it */
	struct attn_run *runs;		/* [ctas + 1] */
	int32_t *place[CAIRN_ATTN_PARTS];	/* [nnz_qo] place of each token, -1: none; with q_index */
	float *piece_o, *piece_lse;	/* [2 * ctas][rows][head_dim], [2 * ctas][rows] */
	float *part_o, *part_lse;	/* [num_parts][nnz_qo][num_qo_heads][head_dim], without [head_dim] */
};

/* The parameter of all kernels. */
struct attn_bsr_call {
	struct cairn_attn_bsr_args a;	/* strides filled in */
	struct attn_division d;
	struct attn_bsr_space w;
};

/*
 * K and V of the parts that are copied in boxes, as [block][group of 8 slots][panel][slot][element]. A panel
 * has 64 elements, or 128 for 8-bit keys of 128 and 256 dimensions. The element coordinate includes the
 * offset of the KV head from KV head 0.
 */
struct attn_bsr_maps {
	CUtensorMap of[2][CAIRN_ATTN_PARTS];	/* K, V */
	CUtensorMap q;				/* [token][head][element]; a box fills a panel of Q */
};

/* The instances of the attention kernel for one head_dim and number of rows, and their sizes. */
struct attn_bsr_kernel {
	const void *kernel[2][2];	/* [bf16][fp8] */
	int32_t rows, keys;
	int32_t threads[2];		/* [fp8] */
	size_t smem[2];			/* [fp8] */
};

/* few: no block row has more than ATTN_FEW_ROWS packed rows */
struct attn_bsr_kernel attn_bsr_64(int few);
struct attn_bsr_kernel attn_bsr_128(int few);
struct attn_bsr_kernel attn_bsr_256(int few);
const void *attn_bsr_plan_kernel(void);
const void *attn_bsr_merge_kernel(int32_t head_dim, int32_t dtype);

#define ATTN_FEW_ROWS		64
#define ATTN_PLAN_THREADS	1024
#define ATTN_PLAN_CTAS		8	/* at most */
#define ATTN_MERGE_THREADS	128

#endif
