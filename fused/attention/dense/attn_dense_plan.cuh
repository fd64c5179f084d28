/* SPDX-License-Identifier: Apache-2.0 */
/* attn_dense_plan - lays out the row tiles of a call, on the host; for attn_dense and attn_fp8 */
#ifndef CAIRN_ATTN_DENSE_PLAN_CUH
#define CAIRN_ATTN_DENSE_PLAN_CUH

#include <cuda_runtime_api.h>

#include "primitives/base/launch.h"
#include "fused/attention/dense/attn_dense_fetch.cuh"

#define ATTN_DENSE_COUNTER_BYTES 256
/*
 * Maximum bytes of the keys and values of a section. Each half of the L2 keeps what its own SMs read, so keys
 * that all SMs read occupy both halves; 12 MB of them stay there beside Q and O. Causal calls have larger
 * sections: with few heads, all SMs would request the same lines of the L2 at the same time, and there would
 * be too few row tiles to balance their different lengths.
 */
#define ATTN_DENSE_SECTION_BYTES (12 << 20)
#define ATTN_DENSE_CAUSAL_BYTES	(48 << 20)
/*
 * Maximum number of KV heads in a causal section. A section may have more heads if it needs them to give each
 * SM ATTN_DENSE_CAUSAL_TILES row tiles.
 */
#define ATTN_DENSE_CAUSAL_HEADS	8
#define ATTN_DENSE_CAUSAL_TILES	2

/* The scalars of a call on which its row tiles depend. */
struct attn_dense_sizes {
	const char *name;		/* of the operation, for error texts */
	int32_t batch, max_qo_len, max_kv_len, num_qo_heads, num_kv_heads;
	int32_t rows;			/* rows of a row tile, or of those of a cluster */
	int32_t num_sms;
	int32_t key_bytes;		/* bytes of a key and its value in one head */
	int32_t causal;
};

/* Returns log2 of the query heads that share a row tile, if a KV head has `group` query heads. */
static inline int32_t attn_dense_shift(int32_t group)
{
	int32_t shift = 0;

	while (1 << shift < group)
		shift++;
	return 1 << shift == group && group <= 64 ? shift : 0;
}

/*
 * Returns the number of KV heads in a section. Sections have equally many heads, if possible: a short one has
 * too few row tiles for all SMs. tiles: the row tiles of a KV head of a request, at least 1.
 */
static inline int32_t attn_dense_section(const struct attn_dense_sizes *s, int64_t tiles)
{
	const int64_t heads = (int64_t)s->batch * s->num_kv_heads;
	const int64_t bytes = (int64_t)s->max_kv_len * s->key_bytes;
	int64_t most = s->causal ? ATTN_DENSE_CAUSAL_BYTES : ATTN_DENSE_SECTION_BYTES, sections;

	most /= bytes > 1 ? bytes : 1;
	if (s->causal) {
		int64_t enough = (ATTN_DENSE_CAUSAL_TILES * (int64_t)s->num_sms + tiles - 1) / tiles;

		if (enough < ATTN_DENSE_CAUSAL_HEADS)
			enough = ATTN_DENSE_CAUSAL_HEADS;
		most = most < enough ? most : enough;
	}
	most = most < heads ? most : heads;
	if (most < 1)
		return 1;
	sections = (heads + most - 1) / most;
	return (int32_t)((heads + sections - 1) / sections);
}

/* Sets the plan, except the index arrays and the counter. Returns the number of row tiles, or -errno. */
static inline int attn_dense_lay_out_tiles(const struct attn_dense_sizes *s, struct attn_dense_plan *plan)
{
	int32_t group = s->num_qo_heads / s->num_kv_heads, shift = attn_dense_shift(group), each;
	int64_t rows = (int64_t)s->max_qo_len << shift, items;

	plan->batch = s->batch;
	plan->units = s->num_qo_heads >> shift;
	plan->row_tiles = (int32_t)((rows + s->rows - 1) / s->rows);
	plan->group = group;
	items = (int64_t)plan->row_tiles * plan->units * plan->batch;
	/* packed rows and row tiles are counted in 32 bits */
	if (rows > 0x7fffffff - s->rows || items > 0x7fffffff - 2 * s->num_sms)
		return cairn_error(EOPNOTSUPP, "%s: max_qo_len, num_qo_heads, batch: too large", s->name);
	/* units of one KV head read the same keys, so a section can have more units */
	each = group >> shift;
	plan->section = attn_dense_section(s, plan->row_tiles ? (int64_t)plan->row_tiles * each : 1) * each;
	return (int)items;
}

/*
 * Completes the launch. If there are more row tiles than SMs, zeroes the counter in the workspace unless the
 * caller has already done so. With clusters, an item is one row tile for each CTA of a cluster; there is no
 * counter.
 */
static inline int attn_dense_start_tiles(struct attn_dense_plan *plan, struct cairn_launch *l, int items,
					 int num_sms, void *workspace, int32_t sms, int zeroed)
{
	const int ctas = l->cluster ? l->cluster : 1, most = num_sms / ctas;

	if (ctas == 1 && items > num_sms) {
		plan->counter = (int32_t *)workspace;
		if (!zeroed)
			CAIRN_CUDA(cudaMemsetAsync(plan->counter, 0, sizeof(*plan->counter),
						   (cudaStream_t)l->stream));
	}
	l->grid[0] = (unsigned int)((items < most ? items : most) * ctas);
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
