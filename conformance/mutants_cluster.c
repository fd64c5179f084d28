// SPDX-License-Identifier: Apache-2.0
/*
 * mutants_cluster - wrong collectives that the suite must catch
 *
 * Each takes the reference's (or the schedule's) result and bends it the way a real kernel has gone, or
 * could go, wrong. The argument structs of the suite are not altered; host memory throughout.
 */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"

static int64_t num_groups(const struct cairn_cluster_reduce_args *a)
{
	return (int64_t)a->num_clusters * a->num_calls;
}

static double in_at(const struct cairn_cluster_reduce_args *a, int64_t group, int rank, int i)
{
	return cairn_load(a->in, a->dtype, (group * a->cluster_size + rank) * a->len + i);
}

static void put(const struct cairn_cluster_reduce_args *a, int64_t group, int rank, int i, double v)
{
	cairn_store(a->out, a->dtype, (group * a->cluster_size + rank) * a->len + i, v);
}

static double get(const struct cairn_cluster_reduce_args *a, int64_t group, int rank, int i)
{
	return cairn_load(a->out, a->dtype, (group * a->cluster_size + rank) * a->len + i);
}

/* The reference's result, to be bent. For every group, rank, element of `out`. */
#define FOR_ALL(a, g, b, i) \
	for (int64_t g = 0; g < num_groups(a); g++) \
		for (int b = 0; b < (a)->cluster_size; b++) \
			for (int i = 0; i < (a)->len; i++)

/*
 * ClusterFusion's dsm.cuh: strides 1 .. N-2 and the running sum sent to
 * rank + stride. Right for N = 4 alone.
 */
static int loop_right_for_4(const struct cairn_cluster_reduce_args *a, void *stream)
{
	const int n = a->cluster_size;

	CAIRN_TRY(cairn_cluster_reduce_ref(a, stream));
	if (a->op != CAIRN_CLUSTER_SUM)
		return 0;
	for (int64_t g = 0; g < num_groups(a); g++)
		for (int i = 0; i < a->len; i++) {
			double now[CAIRN_CLUSTER_MAX_SIZE], before[CAIRN_CLUSTER_MAX_SIZE];

			for (int b = 0; b < n; b++)
				now[b] = in_at(a, g, b, i);
			for (int stride = 1; stride < n - 1; stride++) {
				memcpy(before, now, sizeof(now));
				for (int b = 0; b < n; b++)
					now[b] = before[b] + before[(b - stride + n) % n];
			}
			for (int b = 0; b < n; b++)
				put(a, g, b, i, now[b]);
		}
	return 0;
}

static int missing_last_cta(const struct cairn_cluster_reduce_args *a, void *stream)
{
	CAIRN_TRY(cairn_cluster_reduce_ref(a, stream));
	if (a->op == CAIRN_CLUSTER_SUM && a->cluster_size > 1)
		FOR_ALL(a, g, b, i)
			put(a, g, b, i, get(a, g, b, i) - in_at(a, g, a->cluster_size - 1, i));
	return 0;
}

static int own_value_twice(const struct cairn_cluster_reduce_args *a, void *stream)
{
	CAIRN_TRY(cairn_cluster_reduce_ref(a, stream));
	if (a->op == CAIRN_CLUSTER_SUM)
		FOR_ALL(a, g, b, i)
			put(a, g, b, i, get(a, g, b, i) + in_at(a, g, b, i));
	return 0;
}

static int fp16_accumulation(const struct cairn_cluster_reduce_args *a, void *stream)
{
	CAIRN_TRY(cairn_cluster_reduce_ref(a, stream));
	if (a->op == CAIRN_CLUSTER_SUM && a->dtype == CAIRN_F32)
		FOR_ALL(a, g, b, i) {
			float sum = 0;

			for (int r = 0; r < a->cluster_size; r++)
				sum = cairn_f16_to_float(cairn_double_to_f16(sum + in_at(a, g, r, i)));
			put(a, g, b, i, sum);
		}
	return 0;
}

/* Receive slots not yet written: the second call reduces one peer's value of the first. */
static int stale_receive_buffer(const struct cairn_cluster_reduce_args *a, void *stream)
{
	CAIRN_TRY(cairn_cluster_reduce_ref(a, stream));
	if (a->op == CAIRN_CLUSTER_SUM && a->cluster_size > 1)
		FOR_ALL(a, g, b, i)
			if (g % a->num_calls)
				put(a, g, b, i, get(a, g, b, i) - in_at(a, g, (b + 1) % a->cluster_size, i) +
				    in_at(a, g - 1, (b + 1) % a->cluster_size, i));
	return 0;
}

/* A maximum that starts at zero. */
static int max_from_zero(const struct cairn_cluster_reduce_args *a, void *stream)
{
	CAIRN_TRY(cairn_cluster_reduce_ref(a, stream));
	if (a->op == CAIRN_CLUSTER_MAX)
		FOR_ALL(a, g, b, i)
			put(a, g, b, i, get(a, g, b, i) < 0 ? 0 : get(a, g, b, i));
	return 0;
}

/* fmax semantics: a NaN is dropped if anyone has a number. */
static int max_drops_nan(const struct cairn_cluster_reduce_args *a, void *stream)
{
	CAIRN_TRY(cairn_cluster_reduce_ref(a, stream));
	if (a->op == CAIRN_CLUSTER_MAX)
		FOR_ALL(a, g, b, i) {
			double m = -INFINITY;

			for (int r = 0; r < a->cluster_size; r++)
				m = fmax(m, in_at(a, g, r, i));
			put(a, g, b, i, m);
		}
	return 0;
}

static int rank_0_only(const struct cairn_cluster_reduce_args *a, void *stream)
{
	CAIRN_TRY(cairn_cluster_reduce_ref(a, stream));
	FOR_ALL(a, g, b, i)
		if (b)
			put(a, g, b, i, in_at(a, g, b, i));
	return 0;
}

static int nan_output(const struct cairn_cluster_reduce_args *a, void *stream)
{
	CAIRN_TRY(cairn_cluster_reduce_ref(a, stream));
	put(a, num_groups(a) - 1, a->cluster_size - 1, a->len - 1, NAN);
	return 0;
}

/* Vector stores of whole granules: the pad of the last row lands behind the buffer. */
static int writes_past_end(const struct cairn_cluster_reduce_args *a, void *stream)
{
	const int64_t count = num_groups(a) * a->cluster_size * a->len;

	CAIRN_TRY(cairn_cluster_reduce_ref(a, stream));
	if (a->len * cairn_dtype_bytes(a->dtype) % 16)
		cairn_store(a->out, a->dtype, count, 0);
	return 0;
}

/* A ring whose chunks are len / N long: where N does not divide, the rest stays what it was. */
static int ring_forgets_rest(const struct cairn_cluster_reduce_args *a, void *stream)
{
	CAIRN_TRY(cairn_cluster_reduce_ref(a, stream));
	if (a->algo == CAIRN_CLUSTER_RING)
		FOR_ALL(a, g, b, i)
			if (i >= a->len / a->cluster_size * a->cluster_size)
				put(a, g, b, i, in_at(a, g, b, i));
	return 0;
}

enum merge_defect { NO_RESCALE, BASE_2, FROM_ZERO, DIVIDED, READS_EMPTY };

/* A softmax merge written out in double, with one defect. */
static int bad_merge(const struct cairn_cluster_reduce_args *a, enum merge_defect defect)
{
	const int rows = a->len / a->head_dim;

	FOR_ALL(a, g, b, i) {
		const float *ml = a->in_ml + (g * a->cluster_size * rows + i / a->head_dim) * 2;
		double m = defect == FROM_ZERO ? 0 : -INFINITY, l = 0, o = 0;
		float *out = a->out_ml + ((g * a->cluster_size + b) * rows + i / a->head_dim) * 2;

		for (int r = 0; r < a->cluster_size; r++)
			m = fmax(m, ml[(int64_t)r * rows * 2]);
		for (int r = 0; r < a->cluster_size; r++) {
			double m_r = ml[(int64_t)r * rows * 2], l_r = ml[(int64_t)r * rows * 2 + 1];
			double w = defect == BASE_2 ? exp2(m_r - m) : defect == NO_RESCALE ? 1 : exp(m_r - m);

			if (m_r == -INFINITY && defect != READS_EMPTY)
				continue;
			l += w * l_r;
			o += w * in_at(a, g, r, i);
		}
		put(a, g, b, i, defect == DIVIDED && l > 0 ? o / l : o);
		out[0] = (float)m;
		out[1] = (float)l;
	}
	return 0;
}

#define MERGE(name, defect) \
static int name(const struct cairn_cluster_reduce_args *a, void *stream) \
{ \
	CAIRN_TRY(cairn_cluster_reduce_ref(a, stream)); \
	return a->op == CAIRN_CLUSTER_SOFTMAX ? bad_merge(a, defect) : 0; \
}

MERGE(merge_without_rescale, NO_RESCALE)
MERGE(merge_base_2, BASE_2)
MERGE(merge_from_zero, FROM_ZERO)
MERGE(merge_divided, DIVIDED)
MERGE(merge_reads_empty, READS_EMPTY)

static char *block_at(const struct cairn_cluster_gather_args *a, int64_t group, int rank, int id)
{
	int64_t n = a->cluster_size;

	return (char *)a->out + ((group * n + rank) * n + id) * a->len * (int64_t)cairn_dtype_bytes(a->dtype);
}

/* Algorithm 2 as printed leaves block b - j at place j: right for nobody who wants the order of ranks. */
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

/* One step too few: the last block to arrive is still the previous call's. */
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

/* Through floating point: NaNs lose their payload, and on a flushing unit subnormals go. */
static int quiets_nans(const struct cairn_cluster_gather_args *a, void *stream)
{
	int64_t count = (int64_t)a->num_clusters * a->num_calls * a->cluster_size * a->cluster_size * a->len;

	CAIRN_TRY(cairn_cluster_gather_ref(a, stream));
	for (int64_t i = 0; i < count; i++)
		if (isnan(cairn_load(a->out, a->dtype, i)))
			cairn_store(a->out, a->dtype, i, NAN);
	return 0;
}

/* Whole granules stored: the pad of one block overwrites the head of the next. */
static int pads_into_next_block(const struct cairn_cluster_gather_args *a, void *stream)
{
	CAIRN_TRY(cairn_cluster_gather_ref(a, stream));
	if (a->cluster_size > 1 && a->len * cairn_dtype_bytes(a->dtype) % 16)
		memset(block_at(a, 0, 0, 1), 0, 2);
	return 0;
}

#define REDUCE(fn, text) \
	{ "cluster_reduce_" #fn, offsetof(struct cairn_impl, cluster_reduce), (void *)fn, text }
#define GATHER(fn, text) \
	{ "cluster_gather_" #fn, offsetof(struct cairn_impl, cluster_gather), (void *)fn, text }

const struct cairn_mutant cairn_cluster_mutants[] = {
	REDUCE(loop_right_for_4, "ClusterFusion's loop: strides 1 to N - 2"),
	REDUCE(missing_last_cta, "the last rank is not counted"),
	REDUCE(own_value_twice, "a rank counts itself twice"),
	REDUCE(fp16_accumulation, "the running sum is kept in fp16"),
	REDUCE(stale_receive_buffer, "the second call reads one slot before it is written"),
	REDUCE(max_from_zero, "the maximum starts at 0, not -infinity"),
	REDUCE(max_drops_nan, "a NaN is lost in the maximum"),
	REDUCE(rank_0_only, "a reduce, not an all-reduce"),
	REDUCE(nan_output, "one element is NaN"),
	REDUCE(writes_past_end, "the pad of the last granule is stored"),
	REDUCE(ring_forgets_rest, "ring chunks of len / N elements, the rest forgotten"),
	REDUCE(merge_without_rescale, "softmax states added without exp(m - M)"),
	REDUCE(merge_base_2, "m taken for a base-2 logarithm"),
	REDUCE(merge_from_zero, "the running maximum starts at 0"),
	REDUCE(merge_divided, "o divided by l though the state is unnormalised"),
	REDUCE(merge_reads_empty, "a rank without keys is multiplied by 0, not left out"),
	GATHER(rotated_order, "blocks in order of arrival, not of ranks"),
	GATHER(last_block_stale, "the neighbour's block is the previous call's"),
	GATHER(quiets_nans, "bits pass through floating point"),
	GATHER(pads_into_next_block, "the pad of a block overwrites the next"),
	{ 0 }
};
