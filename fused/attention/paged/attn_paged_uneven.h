/* SPDX-License-Identifier: Apache-2.0 */
/* attn_paged_uneven - the decode kernel for requests of very different lengths (attn_paged_uneven.cu) */
#ifndef CAIRN_ATTN_PAGED_UNEVEN_H
#define CAIRN_ATTN_PAGED_UNEVEN_H

#include "fused/attention/paged/attn_paged.h"

#define ATTN_TEAM_SIZES	5	/* 1 << 0 .. 1 << 4 CTAs */

/*
 * How a launch divides its requests. It has clusters of up to 1 << (ATTN_TEAM_SIZES - 1) CTAs, a power of
 * two. A request of n keys has fewer than 1 + 2 n / share CTAs, and each size of team leaves less than a
 * cluster unused.
 */
struct attn_uneven {
	int32_t max_rows;	/* packed rows of a request that the kernel takes, at most ATTN_DECODE_TILE */
	int32_t group;		/* query heads of a KV head */
	uint32_t magic;		/* attn_magic(group) */
	int32_t max_keys;	/* keys of a request that are read, at most */
	int32_t share;		/* keys of a CTA, except in the largest teams */
};

/* Returns the kernel, whose parameters are the arguments and struct attn_uneven. */
const void *attn_paged_uneven_kernel(int32_t dtype, int32_t head_dim, int32_t kv_fp8);

#endif
