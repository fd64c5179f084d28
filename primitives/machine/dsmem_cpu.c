// SPDX-License-Identifier: Apache-2.0
/*
 * dsmem_cpu - the data movement of dsmem without a GPU; measures nothing
 *
 * The CPU has no distributed shared memory; this table entry exists so that the cases, the judge and the
 * mutants run on every machine. Here every sender adds its data to the receiver's sum; in dsmem_ref.c every
 * receiver collects the data that it was sent.
 */
#include "primitives/machine/dsmem.h"

#include <string.h>

#include "primitives/base/error.h"

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

/* Returns the weighted sum of slot `receiver` of CTA c, which arrives in slot `sender` of the receiver. */
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

/*
 * Adds everything that rank s of cluster g sends, or makes its peers read, to the sums of the cluster's
 * ranks.
 */
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
