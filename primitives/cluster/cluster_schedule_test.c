// SPDX-License-Identifier: Apache-2.0
/*
 * cluster_schedule_test - checks the schedules symbolically, for all cluster sizes and algorithms
 *
 * Instead of a value, every granule holds how many times it contains the value of each rank. Some numbers of
 * granules are not multiples of the cluster size.
 */
#include "conformance/harness.h"

#include <string.h>

#define MAX_N		CAIRN_CLUSTER_MAX_SIZE
#define MAX_GRANULES	40

static const int counts[] = { 1, 2, 3, 7, 16, 17, 40 };

struct tally {
	uint8_t terms[MAX_GRANULES][MAX_N];	/* how often a granule contains the value of a rank */
};

/* Checks that in this step rank b receives exactly what its peer sends. Returns the sender's message. */
static struct cairn_cluster_msg received(struct cairn_test *t, int algo, int n, int b, int step,
					 const struct cairn_cluster_chunks *k)
{
	struct cairn_cluster_msg m = cairn_cluster_reduce_msg(algo, n, b, step, k);
	struct cairn_cluster_msg sent = cairn_cluster_reduce_msg(algo, n, m.from, step, k);

	EXPECT(t, m.from >= 0 && m.from < n && m.to >= 0 && m.to < n && m.from != b && m.to != b);
	EXPECT(t, sent.to == b && sent.send_first == m.recv_first && sent.send_count == m.recv_count);
	EXPECT(t, m.send_first >= 0 && m.send_count >= 0 && m.send_first + m.send_count <= k->granules);
	return sent;
}

static void add(struct tally *dst, const struct tally *src, int first, int count)
{
	for (int g = first; g < first + count; g++)
		for (int r = 0; r < MAX_N; r++)
			dst->terms[g][r] += src->terms[g][r];
}

/* Checks that at the end every granule of every rank contains the value of each rank exactly once. */
static void reduce_counts_each_once(struct cairn_test *t, int algo, int n, int granules)
{
	const struct cairn_cluster_chunks k = cairn_cluster_chunks(granules, n);
	static struct tally now[MAX_N], before[MAX_N], start[MAX_N];
	/* ONESHOT and TWOSHOT send their inputs, RING and TREE their partial sums */
	int partial = algo == CAIRN_CLUSTER_RING || algo == CAIRN_CLUSTER_TREE;

	memset(now, 0, sizeof(now));
	for (int b = 0; b < n; b++)
		for (int g = 0; g < granules; g++)
			now[b].terms[g][b] = 1;
	memcpy(start, now, sizeof(now));
	for (int step = 0; step < cairn_cluster_reduce_steps(algo, n); step++) {
		int final = cairn_cluster_reduce_is_final(algo, n, step);

		memcpy(before, now, sizeof(now));
		for (int b = 0; b < n; b++) {
			struct cairn_cluster_msg m = received(t, algo, n, b, step, &k);
			int from = cairn_cluster_reduce_msg(algo, n, b, step, &k).from;

			if (final)
				memcpy(now[b].terms[m.send_first], before[from].terms[m.send_first],
				       (size_t)m.send_count * MAX_N);
			else
				add(&now[b], partial ? &before[from] : &start[from], m.send_first,
				    m.send_count);
		}
	}
	for (int b = 0; b < n; b++)
		for (int g = 0; g < granules; g++)
			for (int r = 0; r < MAX_N; r++)
				if (!EXPECT(t, now[b].terms[g][r] == (r < n))) {
					cairn_note(t, "algo %d, size %d, %d granules: at rank %d granule %d "
						   "contains rank %d's value %d times",
						   algo, n, granules, b, g, r, now[b].terms[g][r]);
					return;
				}
}

static void reduce_schedules(struct cairn_test *t)
{
	static const int algos[] = { CAIRN_CLUSTER_ONESHOT, CAIRN_CLUSTER_TWOSHOT, CAIRN_CLUSTER_RING,
				     CAIRN_CLUSTER_TREE };

	for (size_t k = 0; k < ARRAY_SIZE(algos); k++)
		for (int n = 1; n <= MAX_N; n++)
			for (size_t c = 0; c < ARRAY_SIZE(counts); c++)
				if (algos[k] != CAIRN_CLUSTER_TREE || cairn_cluster_is_pow2(n))
					reduce_counts_each_once(t, algos[k], n, counts[c]);
}

/* Checks that a rank sends only blocks that it holds, and that every block arrives at every rank once. */
static void gather_delivers_each_once(struct cairn_test *t, int algo, int n)
{
	int have[MAX_N][MAX_N] = { { 0 } }, before[MAX_N][MAX_N];

	for (int b = 0; b < n; b++)
		have[b][b] = 1;
	for (int step = 0; step < cairn_cluster_gather_steps(algo, n); step++) {
		memcpy(before, have, sizeof(have));
		for (int b = 0; b < n; b++) {
			struct cairn_cluster_msg m = cairn_cluster_gather_msg(algo, n, b, step);
			struct cairn_cluster_msg sent = cairn_cluster_gather_msg(algo, n, m.from, step);

			EXPECT(t, sent.to == b && sent.send_first == m.recv_first &&
					  sent.send_count == m.recv_count);
			for (int k = 0; k < m.recv_count; k++) {
				int id = cairn_cluster_wrap(m.recv_first, k, n);

				EXPECT(t, before[m.from][id] == 1);
				have[b][id]++;
			}
		}
	}
	for (int b = 0; b < n; b++)
		for (int r = 0; r < n; r++)
			EXPECT(t, have[b][r] == 1);
}

static void gather_schedules(struct cairn_test *t)
{
	for (int n = 1; n <= MAX_N; n++) {
		gather_delivers_each_once(t, CAIRN_CLUSTER_ONESHOT, n);
		gather_delivers_each_once(t, CAIRN_CLUSTER_RING, n);
		if (cairn_cluster_is_pow2(n))
			gather_delivers_each_once(t, CAIRN_CLUSTER_TREE, n);
	}
}

static void chunks_cover(struct cairn_test *t)
{
	for (int n = 1; n <= MAX_N; n++)
		for (int granules = 0; granules <= MAX_GRANULES; granules++) {
			const struct cairn_cluster_chunks k = cairn_cluster_chunks(granules, n);

			EXPECT(t, cairn_cluster_chunk(&k, 0) == 0);
			EXPECT(t, cairn_cluster_chunk(&k, n) == granules);
			for (int c = 0; c < n; c++) {
				int count = cairn_cluster_chunk(&k, c + 1) - cairn_cluster_chunk(&k, c);

				EXPECT(t, count >= granules / n && count <= cairn_cluster_chunk_max(&k));
			}
		}
}

/*
 * The traffic, summed over messages, must be that of the header and of the source: size N log2 N, size N (N -
 * 1).
 */
static void traffic(struct cairn_test *t)
{
	const int granules = 48;
	const int64_t size = 16 * granules;

	for (int n = 1; n <= MAX_N; n++) {
		int64_t m = n, gathered = 0;

		EXPECT(t,
		       cairn_cluster_reduce_bytes(CAIRN_CLUSTER_ONESHOT, n, granules) == size * m * (m - 1));
		EXPECT(t,
		       cairn_cluster_reduce_bytes(CAIRN_CLUSTER_TWOSHOT, n, granules) == size * 2 * (m - 1));
		EXPECT(t, cairn_cluster_reduce_bytes(CAIRN_CLUSTER_RING, n, granules) == size * 2 * (m - 1));
		EXPECT(t, cairn_cluster_reduce_bytes(CAIRN_CLUSTER_OFFCHIP, n, granules) == 0);
		for (int b = 0; b < n; b++)
			for (int s = 0; s < cairn_cluster_gather_steps(CAIRN_CLUSTER_RING, n); s++)
				gathered += size *
					cairn_cluster_gather_msg(CAIRN_CLUSTER_RING, n, b, s).send_count;
		EXPECT(t, gathered == cairn_cluster_gather_bytes(CAIRN_CLUSTER_RING, n, granules));
		EXPECT(t, gathered == size * m * (m - 1));
		if (!cairn_cluster_is_pow2(n))
			continue;
		EXPECT(t, cairn_cluster_reduce_bytes(CAIRN_CLUSTER_TREE, n, granules) ==
				  size * m * cairn_cluster_log2(n));
		gathered = 0;
		for (int b = 0; b < n; b++)
			for (int s = 0; s < cairn_cluster_gather_steps(CAIRN_CLUSTER_TREE, n); s++)
				gathered += size *
					cairn_cluster_gather_msg(CAIRN_CLUSTER_TREE, n, b, s).send_count;
		EXPECT(t, gathered == size * m * (m - 1));
	}
}

static void auto_picks(struct cairn_test *t)
{
	for (int n = 1; n <= MAX_N; n++) {
		EXPECT(t, cairn_cluster_reduce_pick(n, 64) == CAIRN_CLUSTER_ONESHOT);
		EXPECT(t, cairn_cluster_reduce_pick(n, 65536) ==
				  (n > 1 ? CAIRN_CLUSTER_TWOSHOT : CAIRN_CLUSTER_ONESHOT));
	}
}

static const struct cairn_unit units[] = {
	{ "reduce_schedules", reduce_schedules }, { "gather_schedules", gather_schedules },
	{ "chunks_cover", chunks_cover }, { "traffic", traffic }, { "auto_picks", auto_picks },
};

const struct cairn_family cairn_cluster_schedule_family = {
	.stage = "primitives", .name = "cluster_schedule",
	.units = units, .num_units = ARRAY_SIZE(units),
};
