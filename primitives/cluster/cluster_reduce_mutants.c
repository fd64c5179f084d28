// SPDX-License-Identifier: Apache-2.0
/*
 * cluster_reduce_mutants - wrong versions of cluster_reduce that the suite must catch
 *
 * Each mutant takes the result of the reference (or of the schedule) and adds a defect that a real kernel has
 * had or could have. All pointers are host memory.
 */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "primitives/cluster/cluster_reduce.h"
#include "primitives/base/cut_off.h"
#include "primitives/base/nudge.h"

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

/* For every group g, rank b and element i of `out`. */
#define FOR_ALL(a, g, b, i) \
	for (int64_t g = 0; g < num_groups(a); g++) \
		for (int b = 0; b < (a)->cluster_size; b++) \
			for (int i = 0; i < (a)->len; i++)

/*
 * The loop of ClusterFusion's dsm.cuh: for strides 1 .. N-2, each rank sends its running sum to rank +
 * stride. This is right only for N = 4.
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

/* The running sum is truncated to TF32, whatever dtype is. */
static int tf32_sums(const struct cairn_cluster_reduce_args *a, void *stream)
{
	CAIRN_TRY(cairn_cluster_reduce_ref(a, stream));
	if (a->op == CAIRN_CLUSTER_SUM)
		FOR_ALL(a, g, b, i) {
			double sum = 0;

			for (int r = 0; r < a->cluster_size; r++)
				sum = tf32(sum + in_at(a, g, r, i));
			put(a, g, b, i, sum);
		}
	return 0;
}

/* The running sum is kept in dtype, as in a reduction that sends partial results in dtype. */
static int sums_in_dtype(const struct cairn_cluster_reduce_args *a, void *stream)
{
	CAIRN_TRY(cairn_cluster_reduce_ref(a, stream));
	if (a->op == CAIRN_CLUSTER_SUM && a->algo == CAIRN_CLUSTER_RING)
		FOR_ALL(a, g, b, i) {
			put(a, g, b, i, in_at(a, g, 0, i));
			for (int r = 1; r < a->cluster_size; r++)
				put(a, g, b, i, get(a, g, b, i) + in_at(a, g, r, i));
		}
	return 0;
}

/* l travels in bf16. */
static int merge_l_in_bf16(const struct cairn_cluster_reduce_args *a, void *stream)
{
	CAIRN_TRY(cairn_cluster_reduce_ref(a, stream));
	for (int64_t i = 0; a->op == CAIRN_CLUSTER_SOFTMAX &&
	     i < num_groups(a) * a->cluster_size * (a->len / a->head_dim); i++) {
		float *l = &a->out_ml[2 * i + 1];

		*l = cairn_bf16_to_float(cairn_double_to_bf16((double)*l));
	}
	return 0;
}

/* In the second round of a call the input is added once more. */
static int rounds_accumulate(const struct cairn_cluster_reduce_args *a, void *stream)
{
	CAIRN_TRY(cairn_cluster_reduce_ref(a, stream));
	if (a->op == CAIRN_CLUSTER_SUM && a->rounds > 1 && a->dtype == CAIRN_BF16)
		FOR_ALL(a, g, b, i)
			put(a, g, b, i, get(a, g, b, i) + in_at(a, g, b, i));
	return 0;
}

/* From the second call on, a rank reads one receive slot too early and gets the previous call's value. */
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

/* The running maximum starts at zero. */
static int max_from_zero(const struct cairn_cluster_reduce_args *a, void *stream)
{
	CAIRN_TRY(cairn_cluster_reduce_ref(a, stream));
	if (a->op == CAIRN_CLUSTER_MAX)
		FOR_ALL(a, g, b, i)
			put(a, g, b, i, get(a, g, b, i) < 0 ? 0 : get(a, g, b, i));
	return 0;
}

/* Uses fmax(), which drops a NaN if any rank has a number. */
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

/* Stores whole granules, so that the padding of the last row lands past the end of the buffer. */
static int writes_past_end(const struct cairn_cluster_reduce_args *a, void *stream)
{
	const int64_t count = num_groups(a) * a->cluster_size * a->len;

	CAIRN_TRY(cairn_cluster_reduce_ref(a, stream));
	if (a->len * cairn_dtype_bytes(a->dtype) % 16)
		cairn_store(a->out, a->dtype, count, 0);
	return 0;
}

/* A ring with chunks of len / N elements: if N does not divide len, the remainder is not reduced. */
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

/* Merges the softmax states in double, with one defect. */
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

#define REDUCE(fn, text) \
	{ "cluster_reduce_" #fn, offsetof(struct cairn_impl, cluster_reduce), (void *)fn, text }

/* Each rank starts the sum with its own value, so ranks round differently. */
static int ranks_differ(const struct cairn_cluster_reduce_args *a, void *stream)
{
	CAIRN_TRY(cairn_cluster_reduce_ref(a, stream));
	if (a->op == CAIRN_CLUSTER_SUM && a->dtype == CAIRN_F32 && a->cluster_size > 2 &&
	    a->algo != CAIRN_CLUSTER_TREE)
		for (int64_t g = 0; g < num_groups(a); g++)
			nudge((float *)a->out + (g * a->cluster_size + 1) * a->len, a->len);
	return 0;
}

/* With more than 4096 elements, the last call returns the result of the call two calls earlier. */
static int call_of_two_before(const struct cairn_cluster_reduce_args *a, void *stream)
{
	const size_t bytes = (size_t)a->cluster_size * (size_t)a->len * cairn_dtype_bytes(a->dtype);

	CAIRN_TRY(cairn_cluster_reduce_ref(a, stream));
	for (int64_t g = 0; a->num_calls > 2 && a->len > 4096 && g < num_groups(a); g++)
		if (g % a->num_calls == a->num_calls - 1)
			memcpy((char *)a->out + (size_t)g * bytes, (char *)a->out + (size_t)(g - 2) * bytes,
			       bytes);
	return 0;
}

static int third_call_of_3(const struct cairn_cluster_reduce_args *a, void *stream)
{
	const size_t bytes = 3 * (size_t)a->len * cairn_dtype_bytes(a->dtype);

	CAIRN_TRY(cairn_cluster_reduce_ref(a, stream));
	if (a->num_clusters && a->num_calls > 2 && a->cluster_size == 3 && a->len > 1)
		memcpy((char *)a->out + 2 * bytes, (char *)a->out + bytes, bytes);
	return 0;
}

static int lone_last_of_16(const struct cairn_cluster_reduce_args *a, void *stream)
{
	CAIRN_TRY(cairn_cluster_reduce_ref(a, stream));
	for (int64_t g = 0; a->cluster_size == 16 && a->algo == CAIRN_CLUSTER_TWOSHOT && a->len % 8 == 1 &&
			    g < num_groups(a); g++)
		for (int b = 0; b < a->cluster_size; b++)
			put(a, g, b, a->len - 1, in_at(a, g, b, a->len - 1));
	return 0;
}

/*
 * Keeps 31 bits of element numbers, for clusters of one rank and a len that is a power of two. Computes only
 * the clusters that a far case judges.
 */
static int elements_31_bits(const struct cairn_cluster_reduce_args *a, void *stream)
{
	struct cairn_cluster_reduce_args some = *a;
	int64_t most = a->len > 0 ? (1ll << 31) / a->len : 0, i;
	size_t row;

	if (cairn_cluster_reduce_check(a) || a->cluster_size > 1 ||
	    a->num_calls > 1 || a->num_clusters <= most)
		return cairn_cluster_reduce_ref(a, stream);
	row = (size_t)a->len * cairn_dtype_bytes(a->dtype);
	some.size = sizeof(some);
	some.num_clusters = 1;
	for (int k = 0; (i = cairn_far_row(a->num_clusters, k)) >= 0; k++) {
		some.in = (const char *)a->in + (size_t)i * row;
		some.out = (char *)a->out + (size_t)(i % most) * row;
		CAIRN_TRY(cairn_cluster_reduce_cpu(&some, stream));
	}
	return 0;
}

/* Where 7 of 8 f16 are left of the last granule, the last maximum is that of the element before. */
static int cluster_reduce_max_of_7(const struct cairn_cluster_reduce_args *a, void *stream)
{
	const int bad = !cairn_cluster_reduce_check(a) && a->dtype == CAIRN_F16 && a->len > 64 &&
			a->len % 8 == 7 && a->op == CAIRN_CLUSTER_MAX;

	CAIRN_TRY(cairn_cluster_reduce_ref(a, stream));
	for (int64_t r = 0; bad && r < (int64_t)a->num_clusters * a->num_calls * a->cluster_size; r++)
		cairn_store(a->out, a->dtype, (r + 1) * a->len - 1,
			    cairn_load(a->out, a->dtype, (r + 1) * a->len - 2));
	return 0;
}

/* A softmax state that is alone behind whole tiles of 16 rows becomes 0. */
static int cluster_reduce_lone_last_state(const struct cairn_cluster_reduce_args *a, void *stream)
{
	const int32_t rows = !cairn_cluster_reduce_check(a) && a->op == CAIRN_CLUSTER_SOFTMAX ?
			     a->len / a->head_dim : 0;

	CAIRN_TRY(cairn_cluster_reduce_ref(a, stream));
	for (int64_t r = 0; rows > 16 && rows % 16 == 1 &&
			    r < (int64_t)a->num_clusters * a->num_calls * a->cluster_size; r++)
		cairn_store(a->out, a->dtype, (r + 1) * a->len - 1, 0);
	return 0;
}

/* Clusters that wait for an SM leave out the end of their later calls. */
static int cluster_reduce_late_calls(const struct cairn_cluster_reduce_args *a, void *stream)
{
	CAIRN_TRY(cairn_cluster_reduce_ref(a, stream));
	if (a->num_clusters > 132 && a->num_calls > 1 && a->cluster_size > 1)
		cairn_store(a->out, a->dtype, (int64_t)a->num_clusters * a->num_calls * a->cluster_size *
			    a->len - 1, 0);
	return 0;
}

const struct cairn_mutant cairn_cluster_reduce_mutants[] = {
	REDUCE(loop_right_for_4, "ClusterFusion's loop over strides 1 to N - 2"),
	REDUCE(missing_last_cta, "the last rank is not counted"),
	REDUCE(own_value_twice, "a rank counts itself twice"),
	REDUCE(fp16_accumulation, "the running sum is kept in fp16"),
	REDUCE(tf32_sums, "the running sum is cut to TF32"),
	REDUCE(sums_in_dtype, "a ring hands on its partial sums in dtype"),
	REDUCE(merge_l_in_bf16, "l is rounded to bf16"),
	REDUCE(rounds_accumulate, "with bf16 a second round adds to the first"),
	REDUCE(stale_receive_buffer, "from the second call on, one slot is read before it is written"),
	REDUCE(max_from_zero, "the maximum starts at 0, not -infinity"),
	REDUCE(max_drops_nan, "a NaN is lost in the maximum"),
	REDUCE(rank_0_only, "only rank 0 gets the result"),
	REDUCE(nan_output, "one element is NaN"),
	REDUCE(writes_past_end, "the padding of the last granule is stored"),
	REDUCE(ring_forgets_rest, "ring chunks have len / N elements and the remainder is not reduced"),
	REDUCE(merge_without_rescale, "softmax states are added without exp(m - M)"),
	REDUCE(merge_base_2, "m is taken for a base-2 logarithm"),
	REDUCE(merge_from_zero, "the running maximum starts at 0"),
	REDUCE(merge_divided, "o is divided by l although the state is unnormalised"),
	REDUCE(merge_reads_empty, "a rank without keys is multiplied by 0 instead of being left out"),
	REDUCE(call_of_two_before, "with many values the last call gives the results of two calls before"),
	REDUCE(third_call_of_3, "three ranks get the result of the second call again in the third"),
	REDUCE(lone_last_of_16, "TWOSHOT over 16 ranks leaves a last value that is alone in its granule"),
	REDUCE(elements_31_bits, "elements of out are numbered by 31 bits"),
	REDUCE(ranks_differ, "each rank adds in an order of its own"),
	{ "cluster_reduce_max_of_7", offsetof(struct cairn_impl, cluster_reduce),
	  (void *)cluster_reduce_max_of_7,
	  "MAX of f16 loses the seventh of seven elements past whole granules" },
	{ "cluster_reduce_lone_last_state", offsetof(struct cairn_impl, cluster_reduce),
	  (void *)cluster_reduce_lone_last_state,
	  "a single row past whole tiles of softmax states is 0" },
	{ "cluster_reduce_late_calls", offsetof(struct cairn_impl, cluster_reduce),
	  (void *)cluster_reduce_late_calls,
	  "later calls of clusters behind the first 132 lose their last element" },
	{ 0 }
};
