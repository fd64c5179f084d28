/* SPDX-License-Identifier: Apache-2.0 */
/* dropin_attn - one attention call of FlashInfer's as numbers and pointers, without its tensors */
#ifndef CAIRN_DROPIN_ATTN_H
#define CAIRN_DROPIN_ATTN_H

#include <stddef.h>
#include <stdint.h>

#include "conformance/dropin/dropin.h"

/* Strides in elements. A dimension of one element has the stride that contiguous memory would give it. */
struct dropin_strides {
	int64_t block, slot, head;
};

struct dropin_attn {
	const char *name;		/* begins error texts */
	void *out;			/* contiguous */
	float *lse;			/* contiguous; NULL: not wanted */
	const void *q, *k, *v;
	struct dropin_strides k_at, v_at;
	int64_t q_stride;		/* 0: contiguous */
	/* NULL: one request with all rows, and rows of one query each if paged */
	const int32_t *qo_indptr;
	const int32_t *kv_indptr;	/* in blocks; NULL: one request with all blocks */
	const int32_t *indices;		/* NULL: block n of the lists is block n of K and V */
	const int32_t *last_len;	/* NULL: all slots are keys */
	const uint8_t *mask;		/* packed bits; NULL: none */
	const int32_t *mask_indptr;	/* NULL: one request */
	char *workspace;
	size_t workspace_bytes;
	void *stream;
	int32_t rows, batch, max_rows, max_keys;	/* rows: of q, an upper bound of the batch's */
	int32_t num_blocks, block_n;
	int64_t nnz_kv;			/* keys of all requests together, at most; 0: unknown */
	int32_t heads, kv_heads, qk_dim, v_dim;
	int32_t dtype, kv_fp8, causal, window;	/* window: keys that a row sees, its own included; 0: all */
	float sm_scale, softcap;
};

/* Reads the arguments of a run. *a is complete except for the stream. */
int dropin_read(const struct dropin *d, enum dropin_function f, const struct tvm_any *args, int32_t num_args,
		struct dropin_attn *a);
/* Makes the plan's values: DROPIN_PLAN_VALUES of them. */
int dropin_read_plan(const struct tvm_any *args, int32_t num_args, int64_t *values);
/* Reads the arguments of packbits or segment_packbits. */
int dropin_read_pack(enum dropin_function f, const struct tvm_any *args, int32_t num_args,
		     struct dropin_pack *a);
/* Returns the first tensor among the arguments, or NULL. */
const struct dl_tensor *dropin_first_tensor(const struct tvm_any *args, int32_t num_args);

/* A plan: the mark, the most queries and the most keys of a request, and whether it is for a CUDA graph. */
#define DROPIN_PLAN_VALUES	4
#define DROPIN_PLAN_MARK	0x436169726e

/* Runs the call. */
int dropin_attn(const struct dropin *d, struct dropin_attn *a);

#endif
