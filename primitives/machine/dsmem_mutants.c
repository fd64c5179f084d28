// SPDX-License-Identifier: Apache-2.0
/* dsmem_mutants - wrong versions of dsmem that the suite must catch */
#include "conformance/harness.h"
#include "primitives/machine/dsmem.h"

/*
 * Each mutant calls the reference and then replaces the sums of one test by those that a wrong schedule would
 * leave.
 */

/* Returns the sum of all words of CTA c. */
static uint64_t words(const struct cairn_dsmem_args *a, int c)
{
	uint64_t sum = 0;

	for (int i = 0; i < a->bytes / 8; i++)
		sum += cairn_dsmem_word(a->seed, c, i);
	return sum;
}

static int one_peer_only(const struct cairn_dsmem_args *a, void *stream)
{
	int n = a->cluster_size;

	CAIRN_TRY(cairn_dsmem_ref(a, stream));
	for (int c = 0; a->test == CAIRN_DSMEM_LOAD && c < n * a->num_clusters; c++)
		a->sum[c] = (uint64_t)a->rounds * words(a, c / n * n + (c + 1) % n);
	return 0;
}

/* This schedule is right if the size is a power of two: exclusive or is then a permutation of the ranks. */
static int peers_by_xor(const struct cairn_dsmem_args *a, void *stream)
{
	int n = a->cluster_size;

	CAIRN_TRY(cairn_dsmem_ref(a, stream));
	for (int c = 0; a->test == CAIRN_DSMEM_LOAD && n > 1 && c < n * a->num_clusters; c++) {
		a->sum[c] = 0;
		for (int t = 0; t < a->rounds; t++) {
			int peer = (c % n) ^ (1 + t % (n - 1));

			if (peer < n)
				a->sum[c] += words(a, c / n * n + peer);
		}
	}
	return 0;
}

static int read_before_barrier(const struct cairn_dsmem_args *a, void *stream)
{
	int n = a->cluster_size;

	CAIRN_TRY(cairn_dsmem_ref(a, stream));
	for (int c = 0; a->test == CAIRN_DSMEM_BARRIER && c < n * a->num_clusters; c++) {
		a->sum[c] = 0;
		for (int t = 2; t < a->rounds; t++)
			for (int s = 0; s < n; s++)
				if (cairn_dsmem_peer(s, n, t) == (uint32_t)(c % n))
					a->sum[c] += cairn_dsmem_word(a->seed, c / n * n + s, t - 2);
	}
	return 0;
}

static int receivers_slot(const struct cairn_dsmem_args *a, void *stream)
{
	int n = a->cluster_size, slot = a->bytes / n / 8, bulk = a->test == CAIRN_DSMEM_BULK;

	CAIRN_TRY(cairn_dsmem_ref(a, stream));
	for (int c = 0; bulk && n > 1 && a->rounds >= n - 1 && c < n * a->num_clusters; c++) {
		int r = c % n;

		a->sum[c] = 0;
		for (int s = 0; s < n; s++)
			for (int i = 0; s != r && i < slot; i++)
				a->sum[c] += cairn_dsmem_word(a->seed, c - r + s, r * slot + i) *
					     cairn_dsmem_weight(r * slot + i);
	}
	return 0;
}

static int multicast_to_self(const struct cairn_dsmem_args *a, void *stream)
{
	int n = a->cluster_size, slot = a->bytes / n / 8;

	CAIRN_TRY(cairn_dsmem_ref(a, stream));
	for (int c = 0; a->test == CAIRN_DSMEM_MULTICAST && c < n * a->num_clusters; c++) {
		const uint64_t *src =
			(const uint64_t *)((const char *)a->src +
					   cairn_dsmem_src_offset(a->src_bytes, a->bytes, c / n));

		a->sum[c] = 0;
		for (int i = c % n * slot; i < (c % n + 1) * slot; i++)
			a->sum[c] += src[i] * cairn_dsmem_weight(i);
	}
	return 0;
}

static int last_cluster_missing(const struct cairn_dsmem_args *a, void *stream)
{
	CAIRN_TRY(cairn_dsmem_ref(a, stream));
	for (int c = (a->num_clusters - 1) * a->cluster_size; c < a->num_clusters * a->cluster_size; c++)
		a->smid[c] = -1;
	return 0;
}

#define DSMEM(name, fn, what)	{ "dsmem_" name, offsetof(struct cairn_impl, dsmem), (void *)fn, what }

const struct cairn_mutant cairn_dsmem_mutants[] = {
	DSMEM("one_peer", one_peer_only, "all rounds read the next rank"),
	DSMEM("peers_by_xor", peers_by_xor,
	      "peers are rank xor t, which misses ranks if the size is not a power of 2"),
	DSMEM("read_before_barrier", read_before_barrier, "slots are read before the barrier, with old data"),
	DSMEM("receivers_slot", receivers_slot, "bulk copies land in the receiver's slot, not the sender's"),
	DSMEM("multicast_to_self", multicast_to_self, "the multicast mask has only the sender's bit"),
	DSMEM("last_cluster", last_cluster_missing, "the last cluster does not run"),
	{ 0 }
};
