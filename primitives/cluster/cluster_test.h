/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster_test - shared by the tests of the collectives: names, shapes, the bench record
 */
#ifndef CAIRN_CLUSTER_TEST_H
#define CAIRN_CLUSTER_TEST_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"

static const char *const algo_names[] = { "auto", "oneshot", "twoshot", "ring", "tree", "offchip" };

/* Shapes with more clusters than can be resident, and several calls that reuse the buffers. */
#define NUM_WAVE_SHAPES	6
static const struct { int32_t size, clusters, calls, rounds; } wave_shapes[NUM_WAVE_SHAPES] = {
	/* size, clusters, calls, rounds */
	{ 2, 100, 3, 2 }, { 4, 50, 7, 1 }, { 8, 20, 4, 2 }, { 16, 9, 5, 3 }, { 1, 200, 2, 2 },
	{ 6, 24, 6, 3 },
};

/* The cases ends_* combine lengths at the ends of tiles (ends.h) with these sizes and numbers. */
static const int32_t ends_sizes[] = { 2, 3, 4, 7, 8, 15, 16 };
static const struct { int32_t clusters, calls, rounds; } ends_shapes[] = {
	/* clusters, calls, rounds */
	{ 1, 1, 1 }, { 3, 1, 2 }, { 1, 4, 1 }, { 2, 3, 3 },
};

/* Bench rows measure one cluster alone, for latency, and then as many clusters as the device holds. */
static const int32_t bench_sizes[] = { 2, 4, 8, 16 };

static inline int32_t bench_clusters(int32_t size)
{
	return size == 2 ? 66 : size == 16 ? 7 : 120 / size;
}

/* Returns a number of rounds for which a kernel takes at most a millisecond. */
static inline int32_t bench_rounds(int32_t len)
{
	return len <= 1024 ? 256 : 64;
}

struct cycles {
	const int64_t *got;
	int measured;			/* some are not 0: the table has a clock */
};

static inline int is_bad_cycles(const void *arg, int64_t i, char *why, size_t why_len)
{
	const struct cycles *c = arg;

	if (why)
		snprintf(why, why_len, "got %lld cycles, want %s", (long long)c->got[i],
			 c->measured ? "1 to 2^31, because some rank has counted cycles" : "0");
	return c->measured ? c->got[i] < 1 || c->got[i] > 1LL << 31 : c->got[i] != 0;
}

/* Judges the optional output of cycles: either all ranks have measured or, on a CPU, all are 0. */
static inline int judge_cycles(const struct cairn_op *op, size_t field, const int64_t *got, int64_t count,
			       char *why, size_t why_len)
{
	struct cycles c = { got, 0 };

	for (int64_t i = 0; got && i < count; i++)
		c.measured |= got[i] != 0;
	return got && cairn_judge_each(op, field, is_bad_cycles, &c, why, why_len);
}

static inline int compare_cycles(const void *x, const void *y)
{
	int64_t a = *(const int64_t *)x, b = *(const int64_t *)y;

	return (a > b) - (a < b);
}

/* Writes the median of cycles over ranks and clusters, and the bytes sent through DSMEM, to json. */
static inline int cycles_record(const int64_t *cycles, int64_t count, int64_t wire_bytes, char *json,
				size_t len)
{
	int64_t *sorted;

	if (!cycles)
		return -EOPNOTSUPP;
	sorted = malloc((size_t)count * sizeof(*sorted));
	if (!sorted)
		return -ENOMEM;
	memcpy(sorted, cycles, (size_t)count * sizeof(*sorted));
	qsort(sorted, (size_t)count, sizeof(*sorted), compare_cycles);
	snprintf(json, len, "\"cycles\":%lld,\"dsmem_bytes\":%lld", (long long)sorted[count / 2],
		 (long long)wire_bytes);
	free(sorted);
	return 0;
}
#endif
