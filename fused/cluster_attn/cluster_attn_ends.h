/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster_attn_ends - cases of cluster_attn at the ends of tiles and pages (conformance/suite/ends.h)
 *
 * cluster_attn_cases.h includes this file after struct shape.
 */
#ifndef CAIRN_CLUSTER_ATTN_ENDS_H
#define CAIRN_CLUSTER_ATTN_ENDS_H

#define NUM_ENDS	76

/* requests, keys, group, KV heads, page size, features, dataflow */
static struct cairn_pairs ends_table = { .num_factors = 7, .levels = { 7, 9, 6, 3, 5, 8, 5 } };

static void ends_at(int i, struct shape *s)
{
	static const int requests[] = { 1, 2, 7, 8, 9, 15, 16 };
	static const int keys[] = { 1, 15, 17, 33, 63, 64, 65, 127, 129 };
	static const int groups[] = { 1, 3, 2, 5, 7, 16 }, slots[] = { 16, 1, 64, 32, 128 };
	static const int flow[][2] = { { AUTO, 0 }, { TOKEN, 3 }, { HEAD, 4 }, { TOKEN, 8 }, { HEAD, 2 } };
	const int8_t *level = cairn_pairs_row(&ends_table, i);

	*s = (struct shape){
		.ends = i + 1, .batch = requests[level[0]], .kv = keys[level[1]], .hkv = 1 + level[3],
		.hq = (1 + level[3]) * groups[level[2]], .page = slots[level[4]],
		.dim = level[5] & 4 ? 128 : 64, .hidden = 64, .dataflow = flow[level[6]][0],
		.cluster = flow[level[6]][1],
		.flags = (level[5] & 1 ? F16 : 0) | (level[5] & 2 ? BIAS : 0),
	};
}

#endif
