// SPDX-License-Identifier: Apache-2.0
/*
 * cluster_attn_schedule_test - compares the traffic formulas of the two dataflows with messages counted one
 * by one, and with the source's formulas
 */
#include "conformance/harness.h"
#include "fused/cluster_attn/cluster_attn_schedule.h"

/* Traffic_Reduce and Traffic_Gather as the source prints them. */
static int64_t source_reduce(int64_t size, int n)
{
	int64_t sum = 0;

	for (int stride = 1; stride < n; stride *= 2)
		sum += size * n;
	return sum;
}

static int64_t source_gather(int64_t size, int n)
{
	return size * n * (n - 1);
}

/*
 * Counts the messages: each rank sends its own part once to each other rank. The parts are as even as whole
 * vectors of 8 elements allow.
 */
static int64_t gather_messages(int64_t vectors, int n)
{
	struct cairn_cluster_chunks k = cairn_cluster_chunks((int)vectors, n);
	int64_t sum = 0;

	for (int step = 0; step < cairn_cluster_gather_steps(CAIRN_CLUSTER_ONESHOT, n); step++)
		for (int rank = 0; rank < n; rank++) {
			struct cairn_cluster_msg m;

			m = cairn_cluster_gather_msg(CAIRN_CLUSTER_ONESHOT, n, rank, step);
			for (int i = 0; i < m.send_count; i++)
				sum += cairn_cluster_chunk(&k, m.send_first + i + 1) -
				       cairn_cluster_chunk(&k, m.send_first + i);
		}
	return sum * CAIRN_CLUSTER_GRANULE;
}

static void formulas_equal_messages(struct cairn_test *t)
{
	for (int n = 1; n <= CAIRN_CLUSTER_MAX_SIZE; n++)
		for (int granules = 1; granules <= 300; granules += 13) {
			int64_t size = (int64_t)granules * CAIRN_CLUSTER_GRANULE;

			EXPECT(t, cluster_attn_gather_bytes(n, size) == gather_messages(granules, n));
			for (int algo = CAIRN_CLUSTER_ONESHOT; algo <= CAIRN_CLUSTER_TREE; algo++) {
				if (algo == CAIRN_CLUSTER_RING ||
				    (algo == CAIRN_CLUSTER_TREE && !cairn_cluster_is_pow2(n)))
					continue;
				EXPECT(t, cluster_attn_reduce_bytes(algo, n, size) ==
				       cairn_cluster_reduce_bytes(algo, n, granules));
			}
		}
}

static void formulas_equal_the_source(struct cairn_test *t)
{
	for (int n = 1; n <= 16; n *= 2) {
		int d = 128, hidden = 4096;

		EXPECT(t, cluster_attn_reduce_bytes(CAIRN_CLUSTER_TREE, n, d) == source_reduce(d, n));
		EXPECT(t, cluster_attn_gather_bytes(n, 3 * d) == source_gather(3 * d / n, n));
		EXPECT(t, cluster_attn_source_token(n, d) ==
		       source_gather(3 * d / n, n) + source_reduce(d, n));
		for (int64_t keys = 1024; keys <= 16384; keys *= 2)
			EXPECT(t, cluster_attn_source_head(n, keys, hidden) ==
			       source_reduce(keys, n) + source_reduce(hidden, n));
	}
}

/*
 * Two shots of an fp32 state would be reduce_bytes(); the second shot here is narrower and carries no (m, l).
 */
static void ours_beside_the_source(struct cairn_test *t)
{
	const int d = 128;

	for (int n = 2; n <= 16; n *= 2) {
		struct cluster_attn_traffic token = cluster_attn_token_traffic(n, 1, 1, 1, d, 2);
		int64_t both = cluster_attn_reduce_bytes(CAIRN_CLUSTER_TWOSHOT, n, (d + 2) * 4);
		struct cluster_attn_traffic head;

		head = cluster_attn_head_traffic(CAIRN_CLUSTER_TREE, n, 1, 1, d, 4096, 2);
		EXPECT(t, token.gather == 2 * source_gather(3 * d / n, n));
		EXPECT(t, token.reduce == both - (n - 1) * (4 * (d + 2) - 2 * d));
		EXPECT(t, n < 4 || token.reduce < 4 * source_reduce(d, n));
		EXPECT(t, head.gather == token.gather && head.reduce == 4 * source_reduce(4096, n));
	}
}

static void two_shots_send_less(struct cairn_test *t)
{
	for (int n = 2; n <= CAIRN_CLUSTER_MAX_SIZE; n++) {
		int64_t tree = cluster_attn_reduce_bytes(CAIRN_CLUSTER_TREE, n, 512);
		int64_t two = cluster_attn_reduce_bytes(CAIRN_CLUSTER_TWOSHOT, n, 512);
		int64_t one = cluster_attn_reduce_bytes(CAIRN_CLUSTER_ONESHOT, n, 512);

		EXPECT(t, n == 2 ? two == one : two < one);
		if (cairn_cluster_is_pow2(n))
			EXPECT(t, n == 2 ? two == tree && tree == one : two < tree && tree < one);
	}
}

/*
 * The traffic of SPLIT_TOKEN must not depend on S, even with a state for each of 8 warps; that of SPLIT_HEAD
 * must grow with S.
 */
static void traffic_and_length(struct cairn_test *t)
{
	for (int n = 2; n <= 16; n *= 2)
		for (int group = 1; group <= 16; group *= 2) {
			struct cluster_attn_traffic token, head, longer;

			token = cluster_attn_token_traffic(n, 8, 1, group, 128, 2);
			head = cluster_attn_head_traffic(CAIRN_CLUSTER_TWOSHOT, n, 1, group, 128, 1024, 2);
			longer = cluster_attn_head_traffic(CAIRN_CLUSTER_TWOSHOT, n, 1, group, 128, 16384, 2);
			EXPECT(t, longer.gather + longer.reduce > token.gather + token.reduce);
			EXPECT(t, longer.reduce == 16 * head.reduce && longer.gather == head.gather);
		}
}

static const struct cairn_unit units[] = {
	{ "formulas_equal_messages", formulas_equal_messages },
	{ "formulas_equal_the_source", formulas_equal_the_source },
	{ "ours_beside_the_source", ours_beside_the_source },
	{ "two_shots_send_less", two_shots_send_less },
	{ "traffic_and_length", traffic_and_length },
};

const struct cairn_family cairn_cluster_attn_schedule_family = {
	.stage = "fused", .name = "cluster_attn_schedule", .units = units, .num_units = ARRAY_SIZE(units),
};
