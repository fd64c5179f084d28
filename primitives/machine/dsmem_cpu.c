// SPDX-License-Identifier: Apache-2.0
/*
 * dsmem_cpu - the same data movement without a GPU, seen from the sender: judges the suite, measures nothing
 *
 * There is no shared memory to be fast with here; this table entry exists so that cases, judge and mutants
 * run everywhere. Every sender adds what it delivers to its receiver's sum, where dsmem_ref.c asks every
 * receiver who has sent to it.
 */
#include "primitives/machine/dsmem.h"

#include <string.h>

#include "primitives/base/error.h"

int cairn_dsmem_check(const struct cairn_dsmem_args *a)
{
	int pushes = a->test == CAIRN_DSMEM_ST_ASYNC || a->test == CAIRN_DSMEM_BULK;
	int multicast = a->test == CAIRN_DSMEM_MULTICAST;
	int from_src = multicast || a->test == CAIRN_DSMEM_LATENCY_L2 || a->test == CAIRN_DSMEM_LATENCY_HBM;
	int64_t per_bar;

	if (a->test < 0 || a->test >= CAIRN_DSMEM_NUM_TESTS)
		return cairn_error(EINVAL, "dsmem: test %d", a->test);
	if (!a->sum || !a->time || !a->smid || !a->resident ||
	    (a->test == CAIRN_DSMEM_LATENCY && !a->pair_cycles))
		return cairn_error(EINVAL, "dsmem: null pointer");
	if (a->cluster_size < 1 || a->num_clusters < 1 || a->smem_bytes < 0)
		return cairn_error(EINVAL, "dsmem: cluster_size %d, num_clusters %d, smem_bytes %d",
				   a->cluster_size, a->num_clusters, a->smem_bytes);
	if (a->cluster_size > 16)
		return cairn_error(EOPNOTSUPP, "dsmem: cluster_size %d is over 16", a->cluster_size);
	if (a->bytes < CAIRN_DSMEM_LINK || a->bytes > CAIRN_DSMEM_MAX_BYTES || a->bytes % CAIRN_DSMEM_LINK ||
	    ((pushes || multicast) && a->bytes % (16 * a->cluster_size)))
		return cairn_error(EINVAL, "dsmem: bytes %d", a->bytes);
	if (a->rounds < 1 || a->rounds > CAIRN_DSMEM_MAX_ROUNDS)
		return cairn_error(EINVAL, "dsmem: rounds %d", a->rounds);
	if (a->test == CAIRN_DSMEM_LOAD && a->cluster_size > 2 && a->rounds % (a->cluster_size - 1))
		return cairn_error(EINVAL, "dsmem: rounds %d is no multiple of %d peers", a->rounds,
				   a->cluster_size - 1);
	per_bar = (a->rounds + CAIRN_DSMEM_NUM_BARS - 1) / CAIRN_DSMEM_NUM_BARS * (int64_t)a->bytes;
	if (pushes)
		per_bar /= a->cluster_size;
	if ((pushes || multicast) && per_bar >= 1 << 20)
		return cairn_error(EINVAL, "dsmem: %d rounds are too many bytes for an mbarrier", a->rounds);
	if (from_src && (!a->src || a->src_bytes < (multicast ? a->bytes : 16 * CAIRN_DSMEM_LINK)))
		return cairn_error(EINVAL, "dsmem: src: null or %lld bytes", (long long)a->src_bytes);
	return 0;
}

static uint64_t shared_chain(const struct cairn_dsmem_args *a, int owner)
{
	uint64_t links = a->bytes / CAIRN_DSMEM_LINK;

	return (uint64_t)a->rounds * (2 * owner + 1) % links;
}

static uint64_t plain_sum(const struct cairn_dsmem_args *a, int c)
{
	uint64_t sum = 0;

	for (int i = 0; i < a->bytes / 8; i++)
		sum += cairn_dsmem_word(a->seed, c, i);
	return sum;
}

/* Slot `receiver` of CTA `c` arrives in slot `sender` there. */
static uint64_t slot_sum(const struct cairn_dsmem_args *a, int c, int sender, int receiver)
{
	int words = a->bytes / a->cluster_size / 8;
	uint64_t sum = 0;

	for (int i = 0; i < words; i++)
		sum += cairn_dsmem_word(a->seed, c, receiver * words + i) *
		       cairn_dsmem_weight(sender * words + i);
	return sum;
}

static void multicast(const struct cairn_dsmem_args *a, int g, int sender, uint64_t *sum)
{
	int words = a->bytes / a->cluster_size / 8, first = sender * words;
	const uint64_t *src = (const uint64_t *)((const char *)a->src +
						 cairn_dsmem_src_offset(a->src_bytes, a->bytes, g));

	for (int i = first; i < first + words; i++)
		for (int r = 0; r < a->cluster_size; r++)
			sum[r] += src[i] * cairn_dsmem_weight(i);
}

static void ring(const struct cairn_dsmem_args *a, int first, uint64_t *sum)
{
	uint64_t token = cairn_dsmem_word(a->seed, first, 0);

	for (int hop = 0; hop < a->rounds * a->cluster_size; hop++) {
		int receiver = (hop + 1) % a->cluster_size;

		sum[receiver] = token;
		token = cairn_dsmem_token(token, receiver);
	}
}

static uint64_t global_chain(const struct cairn_dsmem_args *a)
{
	const uint64_t *src = a->src;
	uint64_t link = 0;

	for (int t = 0; t < a->rounds; t++)
		link = src[link * (CAIRN_DSMEM_LINK / 8)];
	return link;
}

/* All that rank `s` of cluster g does to the others' sums. */
static void run_rank(const struct cairn_dsmem_args *a, int g, int s)
{
	int n = a->cluster_size, num_peers = n > 1 ? n - 1 : 1, c = g * n + s;
	uint64_t *sum = &a->sum[(int64_t)g * n];

	switch (a->test) {
	case CAIRN_DSMEM_LATENCY:
		for (int r = 0; r < n; r++)
			sum[r] += shared_chain(a, s);
		break;
	case CAIRN_DSMEM_LATENCY_SMEM:
		sum[s] = shared_chain(a, s);
		break;
	case CAIRN_DSMEM_LATENCY_L2:
	case CAIRN_DSMEM_LATENCY_HBM:
		sum[s] = global_chain(a);
		break;
	case CAIRN_DSMEM_LOAD:
		for (int r = 0; r < n; r++)
			if (r != s || n == 1)
				sum[r] += (uint64_t)(a->rounds / num_peers) * plain_sum(a, c);
		break;
	case CAIRN_DSMEM_ST_ASYNC:
	case CAIRN_DSMEM_BULK:
		for (int t = 0; t < a->rounds && t < num_peers; t++) {
			int r = cairn_dsmem_peer(s, n, t);

			sum[r] += slot_sum(a, c, s, r);
		}
		break;
	case CAIRN_DSMEM_MULTICAST:
		multicast(a, g, s, sum);
		break;
	case CAIRN_DSMEM_BARRIER:
		for (int t = 0; t < a->rounds; t++)
			sum[cairn_dsmem_peer(s, n, t)] += cairn_dsmem_word(a->seed, c, t);
		break;
	case CAIRN_DSMEM_MBARRIER:
		if (s == 0)
			ring(a, c, sum);
		break;
	}
}

int cairn_dsmem_cpu(const struct cairn_dsmem_args *a, void *stream)
{
	int64_t num_ctas;

	(void)stream;
	CAIRN_TRY(cairn_dsmem_check(a));
	num_ctas = (int64_t)a->num_clusters * a->cluster_size;
	memset(a->sum, 0, num_ctas * sizeof(*a->sum));
	memset(a->time, 0, num_ctas * CAIRN_DSMEM_NUM_TIMES * sizeof(*a->time));
	if (a->test == CAIRN_DSMEM_LATENCY)
		memset(a->pair_cycles, 0, num_ctas * a->cluster_size * sizeof(*a->pair_cycles));
	*a->resident = a->num_clusters;
#pragma omp parallel for schedule(static)
	for (int g = 0; g < a->num_clusters; g++)
		for (int s = 0; s < a->cluster_size; s++) {
			a->smid[g * a->cluster_size + s] = g * a->cluster_size + s;
			run_rank(a, g, s);
		}
	return 0;
}
