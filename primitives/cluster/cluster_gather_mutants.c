// SPDX-License-Identifier: Apache-2.0
/*
 * cluster_gather_mutants - wrong versions of cluster_gather that the suite must catch
 *
 * Each mutant takes the result of the reference (or of the schedule) and adds a defect that a real kernel has
 * had or could have. All pointers are host memory.
 */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "conformance/harness.h"
#include "primitives/cluster/cluster_gather.h"

static char *block_at(const struct cairn_cluster_gather_args *a, int64_t group, int rank, int id)
{
	int64_t n = a->cluster_size;

	return (char *)a->out + ((group * n + rank) * n + id) * a->len * (int64_t)cairn_dtype_bytes(a->dtype);
}

/* Algorithm 2, as printed, leaves block b - j at place j, which is not rank order. */
static int rotated_order(const struct cairn_cluster_gather_args *a, void *stream)
{
	const size_t bytes = (size_t)a->len * cairn_dtype_bytes(a->dtype);
	const int n = a->cluster_size;

	CAIRN_TRY(cairn_cluster_gather_ref(a, stream));
	for (int64_t g = 0; g < (int64_t)a->num_clusters * a->num_calls; g++)
		for (int b = 0; b < n; b++)
			for (int j = 0; j < n; j++)
				memcpy(block_at(a, g, b, j),
				       (const char *)a->in +
				       (size_t)(g * n + (b - j + n) % n) * bytes, bytes);
	return 0;
}

/* One step is missing: the block that arrives last is still the previous call's. */
static int last_block_stale(const struct cairn_cluster_gather_args *a, void *stream)
{
	const size_t bytes = (size_t)a->len * cairn_dtype_bytes(a->dtype);
	const int n = a->cluster_size;

	CAIRN_TRY(cairn_cluster_gather_ref(a, stream));
	for (int64_t g = 0; g < (int64_t)a->num_clusters * a->num_calls; g++)
		for (int b = 0; b < n && g % a->num_calls; b++)
			memcpy(block_at(a, g, b, (b + 1) % n), block_at(a, g - 1, b, (b + 1) % n), bytes);
	return 0;
}

/* Copies through floating-point registers: NaNs lose their payload. */
static int quiets_nans(const struct cairn_cluster_gather_args *a, void *stream)
{
	int64_t count = (int64_t)a->num_clusters * a->num_calls * a->cluster_size * a->cluster_size * a->len;

	CAIRN_TRY(cairn_cluster_gather_ref(a, stream));
	for (int64_t i = 0; i < count; i++)
		if (isnan(cairn_load(a->out, a->dtype, i)))
			cairn_store(a->out, a->dtype, i, NAN);
	return 0;
}

/* Stores whole granules: the padding of one block overwrites the start of the next. */
static int pads_into_next_block(const struct cairn_cluster_gather_args *a, void *stream)
{
	CAIRN_TRY(cairn_cluster_gather_ref(a, stream));
	if (a->cluster_size > 1 && a->len * cairn_dtype_bytes(a->dtype) % 16)
		memset(block_at(a, 0, 0, 1), 0, 2);
	return 0;
}

/* Truncates elements of four bytes to TF32. */
static int f32_through_tf32(const struct cairn_cluster_gather_args *a, void *stream)
{
	int64_t count = (int64_t)a->num_clusters * a->num_calls * a->cluster_size * a->cluster_size * a->len;

	CAIRN_TRY(cairn_cluster_gather_ref(a, stream));
	for (int64_t i = 0; i < count && a->dtype == CAIRN_F32; i++)
		((uint32_t *)a->out)[i] &= ~0x1fffu;
	return 0;
}

/* With several clusters of odd size, the last rank of the last cluster lacks its own block. */
static int odd_size_of_last_cluster(const struct cairn_cluster_gather_args *a, void *stream)
{
	const int n = a->cluster_size;

	CAIRN_TRY(cairn_cluster_gather_ref(a, stream));
	if (a->num_clusters > 1 && n % 2)
		memset(block_at(a, (int64_t)a->num_clusters * a->num_calls - 1, n - 1, n - 1), 0,
		       (size_t)a->len * cairn_dtype_bytes(a->dtype));
	return 0;
}

/* From the fourth call on, a RING of 7, 9, 11, ... ranks keeps a block of the previous call. */
static int fourth_call_stale(const struct cairn_cluster_gather_args *a, void *stream)
{
	const size_t bytes = (size_t)a->len * cairn_dtype_bytes(a->dtype);
	const int n = a->cluster_size;

	CAIRN_TRY(cairn_cluster_gather_ref(a, stream));
	for (int64_t g = 0; g < (int64_t)a->num_clusters * a->num_calls; g++)
		if (a->algo == CAIRN_CLUSTER_RING && n % 2 && n > 6 && g % a->num_calls > 2)
			memcpy(block_at(a, g, 0, 1), block_at(a, g - 1, 0, 1), bytes);
	return 0;
}

static int clusters_of_1024(const struct cairn_cluster_gather_args *a, void *stream)
{
	struct cairn_cluster_gather_args b = *a;

	CAIRN_TRY(cairn_cluster_gather_check(a));
	b.size = sizeof(b);
	b.num_clusters = a->num_clusters > 1024 ? 1024 : a->num_clusters;
	return cairn_cluster_gather_ref(&b, stream);
}

static int64_t num_cycles(const struct cairn_cluster_gather_args *a)
{
	return a->cycles ? (int64_t)a->num_clusters * a->cluster_size : 0;
}

static int cycles_missing(const struct cairn_cluster_gather_args *a, void *stream)
{
	struct cairn_cluster_gather_args b = *a;

	CAIRN_TRY(cairn_cluster_gather_check(a));
	b.size = sizeof(b);
	b.cycles = NULL;
	return cairn_cluster_gather_ref(&b, stream);
}

static int cycles_of_rank_0(const struct cairn_cluster_gather_args *a, void *stream)
{
	CAIRN_TRY(cairn_cluster_gather_ref(a, stream));
	for (int64_t i = 0; i < num_cycles(a); i++)
		a->cycles[i] = i % a->cluster_size ? 0 : 400;
	return 0;
}

/* Reports the clock itself instead of a difference. */
static int cycles_of_the_clock(const struct cairn_cluster_gather_args *a, void *stream)
{
	CAIRN_TRY(cairn_cluster_gather_ref(a, stream));
	for (int64_t i = 0; i < num_cycles(a); i++)
		a->cycles[i] = ((int64_t)1 << 40) + i;
	return 0;
}

#define GATHER(fn, text) \
	{ "cluster_gather_" #fn, offsetof(struct cairn_impl, cluster_gather), (void *)fn, text }

/*
 * Keeps 31 bits of element numbers, for clusters of one rank and a len that is a power of two. Computes only
 * the clusters that a far case judges.
 */
static int elements_31_bits(const struct cairn_cluster_gather_args *a, void *stream)
{
	struct cairn_cluster_gather_args some = *a;
	int64_t most = a->len > 0 ? (1ll << 31) / a->len : 0, i;
	size_t row;

	if (cairn_cluster_gather_check(a) || a->cluster_size > 1 ||
	    a->num_calls > 1 || a->num_clusters <= most)
		return cairn_cluster_gather_ref(a, stream);
	row = (size_t)a->len * cairn_dtype_bytes(a->dtype);
	some.size = sizeof(some);
	some.num_clusters = 1;
	for (int k = 0; (i = cairn_far_row(a->num_clusters, k)) >= 0; k++) {
		some.in = (const char *)a->in + (size_t)i * row;
		some.out = (char *)a->out + (size_t)(i % most) * row;
		CAIRN_TRY(cairn_cluster_gather_cpu(&some, stream));
	}
	return 0;
}

/* A ring loses the last of seven elements of 16 bits behind whole granules. */
static int cluster_gather_ring_of_7(const struct cairn_cluster_gather_args *a, void *stream)
{
	CAIRN_TRY(cairn_cluster_gather_ref(a, stream));
	if (a->algo == CAIRN_CLUSTER_RING && a->dtype != CAIRN_F32 && a->len > 64 && a->len % 8 == 7)
		cairn_store(a->out, a->dtype, (int64_t)a->cluster_size * a->len - 1, 0);
	return 0;
}

/* Clusters that wait for an SM leave out the end of their later calls. */
static int cluster_gather_late_calls(const struct cairn_cluster_gather_args *a, void *stream)
{
	CAIRN_TRY(cairn_cluster_gather_ref(a, stream));
	if (a->num_clusters > 132 && a->num_calls > 1 && a->cluster_size > 1)
		cairn_store(a->out, a->dtype, (int64_t)a->num_clusters * a->num_calls * a->cluster_size *
			    a->cluster_size * a->len - 1, 0);
	return 0;
}

const struct cairn_mutant cairn_cluster_gather_mutants[] = {
	GATHER(rotated_order, "blocks are in order of arrival, not of ranks"),
	GATHER(last_block_stale, "the neighbour's block is the previous call's"),
	GATHER(quiets_nans, "bits pass through floating-point registers"),
	GATHER(pads_into_next_block, "the padding of a block overwrites the next block"),
	GATHER(f32_through_tf32, "f32 is cut to TF32"),
	GATHER(fourth_call_stale, "from the fourth call on, an odd ring keeps a block of the call before"),
	GATHER(clusters_of_1024, "clusters from number 1024 on do not run"),
	GATHER(cycles_missing, "cycles are not written"),
	GATHER(cycles_of_rank_0, "only rank 0 writes cycles, the others 0"),
	GATHER(cycles_of_the_clock, "cycles are the clock, not a difference"),
	GATHER(elements_31_bits, "elements of out are numbered by 31 bits"),
	GATHER(odd_size_of_last_cluster, "of an odd cluster, the last one, a block is missing"),
	{ "cluster_gather_ring_of_7", offsetof(struct cairn_impl, cluster_gather),
	  (void *)cluster_gather_ring_of_7,
	  "a ring loses the seventh of seven elements past whole granules" },
	{ "cluster_gather_late_calls", offsetof(struct cairn_impl, cluster_gather),
	  (void *)cluster_gather_late_calls,
	  "later calls of clusters behind the first 132 lose their last element" },
	{ 0 }
};
