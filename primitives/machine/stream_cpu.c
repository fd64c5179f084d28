// SPDX-License-Identifier: Apache-2.0
/*
 * stream_cpu - reads, writes, copies or adds to host memory on all cores, a block of 4 KiB at a time
 *
 * The compiler vectorises the plain loops. Copies use memcpy, which bypasses the cache for large sizes where
 * that is faster.
 */
#include "primitives/machine/stream.h"

#include <string.h>

#include "primitives/base/error.h"

#define WORDS	(CAIRN_STREAM_BLOCK / 8)

static uint64_t block_sum(const uint64_t *p, int64_t n)
{
	uint64_t sum = 0;

	for (int64_t i = 0; i < n; i++)
		sum += p[i];
	return sum;
}

static void block_write(uint64_t *p, int64_t n, uint64_t first)
{
	for (int64_t i = 0; i < n; i++)
		p[i] = first + (uint64_t)i * CAIRN_STREAM_MULT;
}

static void block_add(uint64_t *p, int64_t n, uint64_t first)
{
	for (int64_t i = 0; i < n; i++)
		__atomic_fetch_add(&p[i], first + (uint64_t)i * CAIRN_STREAM_MULT, __ATOMIC_RELAXED);
}

int cairn_stream_cpu(const struct cairn_stream_args *a, void *stream)
{
	int64_t num_words, num_blocks;

	(void)stream;
	CAIRN_TRY(cairn_stream_check(a));
	num_words = a->bytes / 8;
	num_blocks = cairn_stream_num_blocks(a->bytes);
#pragma omp parallel for schedule(static) if (num_blocks > 64)
	for (int64_t b = 0; b < num_blocks; b++) {
		int64_t first = b * WORDS, n = num_words - first < WORDS ? num_words - first : WORDS;

		if (a->op == CAIRN_STREAM_READ)
			a->sum[b] = block_sum((const uint64_t *)a->src + first, n);
		else if (a->op == CAIRN_STREAM_WRITE)
			block_write((uint64_t *)a->dst + first, n,
				    (a->seed + (uint64_t)first) * CAIRN_STREAM_MULT);
		else if (a->op == CAIRN_STREAM_ADD)
			block_add((uint64_t *)a->dst + first, n,
				  (a->seed + (uint64_t)first) * CAIRN_STREAM_MULT);
		else
			memcpy((uint64_t *)a->dst + first, (const uint64_t *)a->src + first, n * 8);
	}
	return 0;
}
