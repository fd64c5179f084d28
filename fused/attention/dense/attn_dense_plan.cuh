/* SPDX-License-Identifier: Apache-2.0 */
/* attn_dense_plan - lays out the row tiles of a call, on the host; for attn_dense and attn_fp8 */
#ifndef CAIRN_ATTN_DENSE_PLAN_CUH
#define CAIRN_ATTN_DENSE_PLAN_CUH

#include <cuda_runtime_api.h>

#include "primitives/base/launch.h"
#include "fused/attention/dense/attn_dense_fetch.cuh"

#define ATTN_DENSE_COUNTER_BYTES 256
#define ATTN_DENSE_SECTION_BYTES (32 << 20)	/* keys and values that fit the L2 beside Q and O */

/* The scalars of a call on which its row tiles depend. */
struct attn_dense_sizes {
	const char *name;		/* of the operation, for error texts */
	int32_t batch, max_qo_len, max_kv_len, num_qo_heads, num_kv_heads;
	int32_t rows;			/* rows of a row tile */
	int32_t num_sms;
	int32_t key_bytes;		/* bytes of a key and its value in one head */
};

/* Returns log2 of the query heads that share a row tile, if a KV head has `group` query heads. */
static inline int32_t attn_dense_shift(int32_t group)
{
	int32_t shift = 0;

	while (1 << shift < group)
		shift++;
	return 1 << shift == group && group <= 64 ? shift : 0;
}

/* Sets the plan, except the index arrays and the counter. Returns the number of row tiles, or -errno. */
static inline int attn_dense_lay_out_tiles(const struct attn_dense_sizes *s, struct attn_dense_plan *plan)
{
	int32_t group = s->num_qo_heads / s->num_kv_heads, shift = attn_dense_shift(group);
	int64_t rows = (int64_t)s->max_qo_len << shift, items;
	int64_t key_bytes = (int64_t)s->max_kv_len * s->key_bytes;

	plan->batch = s->batch;
	plan->units = s->num_qo_heads >> shift;
	plan->row_tiles = (int32_t)((rows + s->rows - 1) / s->rows);
	plan->group = group;
	items = (int64_t)plan->row_tiles * plan->units * plan->batch;
	/* packed rows and row tiles are counted in 32 bits */
	if (rows > 0x7fffffff - s->rows || items > 0x7fffffff - 2 * s->num_sms)
		return cairn_error(EOPNOTSUPP, "%s: max_qo_len, num_qo_heads, batch: too large", s->name);
	plan->section = ATTN_DENSE_SECTION_BYTES / (key_bytes > 1 ? key_bytes : 1) < 1 ? 1 :
			(int32_t)(ATTN_DENSE_SECTION_BYTES / (key_bytes > 1 ? key_bytes : 1));
	/* units of one KV head read the same keys, so a section can have more units */
	plan->section *= group >> shift;
	if ((int64_t)plan->section * plan->row_tiles > 0x7fffffff)
		plan->section = 0x7fffffff / plan->row_tiles;
	return (int)items;
}

/*
 * Completes the launch. If there are more row tiles than SMs, zeroes the counter in the workspace unless the
 * caller has already done so.
 */
static inline int attn_dense_start_tiles(struct attn_dense_plan *plan, struct cairn_launch *l, int items,
					 int num_sms, void *workspace, int32_t sms, int zeroed)
{
	if (items > num_sms) {
		plan->counter = (int32_t *)workspace;
		if (!zeroed)
			CAIRN_CUDA(cudaMemsetAsync(plan->counter, 0, sizeof(*plan->counter),
						   (cudaStream_t)l->stream));
	}
	l->grid[0] = (unsigned int)(items < num_sms ? items : num_sms);
	l->pdl = !sms && (!plan->counter || zeroed);
	return 0;
}

/* Returns an error if the workspace has no room for the counter. */
static inline int attn_dense_check_counter(const void *workspace, size_t bytes, const char *name)
{
	if (!workspace || (uintptr_t)workspace % 256 || bytes < ATTN_DENSE_COUNTER_BYTES)
		return cairn_error(EINVAL, "%s: workspace, workspace_bytes: at least %d bytes, "
				   "256-byte aligned", name, ATTN_DENSE_COUNTER_BYTES);
	return 0;
}

#endif
