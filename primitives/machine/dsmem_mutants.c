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

/* This schedule is correct only for a power of two, where exclusive or is a permutation of the ranks. */
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

/* Sets the times of all CTAs: `cycles` for each link of each chase, in ns nanoseconds. */
static void set_times(const struct cairn_dsmem_args *a, int64_t cycles, int64_t ns)
{
	for (int c = 0; c < a->cluster_size * a->num_clusters && a->test != CAIRN_DSMEM_ACTIVE; c++) {
		int64_t *time = a->time + (int64_t)c * CAIRN_DSMEM_NUM_TIMES;

		time[CAIRN_DSMEM_START_NS] = 1000;
		time[CAIRN_DSMEM_END_NS] = 1000 + ns;
		time[CAIRN_DSMEM_CYCLES] = cycles * a->rounds;
		time[CAIRN_DSMEM_CYCLES2] = cycles * a->rounds;
		for (int o = 0; a->test == CAIRN_DSMEM_LATENCY && o < a->cluster_size; o++)
			a->pair_cycles[c * a->cluster_size + o] = (int32_t)(cycles * a->rounds);
		if (a->test == CAIRN_DSMEM_LATENCY)
			time[CAIRN_DSMEM_CYCLES] *= a->cluster_size;
	}
}

static int times_made_up(const struct cairn_dsmem_args *a, void *stream)
{
	CAIRN_TRY(cairn_dsmem_ref(a, stream));
	set_times(a, 200, 0);
	return 0;
}

static int cycles_of_rank_0(const struct cairn_dsmem_args *a, void *stream)
{
	CAIRN_TRY(cairn_dsmem_ref(a, stream));
	set_times(a, 200, 1 << 20);
	for (int c = 0; c < a->cluster_size * a->num_clusters; c++)
		if (c % a->cluster_size)
			a->time[(int64_t)c * CAIRN_DSMEM_NUM_TIMES + CAIRN_DSMEM_CYCLES] = 0;
	return 0;
}

/* Reads the clock before the loads have returned. */
static int clock_read_early(const struct cairn_dsmem_args *a, void *stream)
{
	CAIRN_TRY(cairn_dsmem_ref(a, stream));
	set_times(a, 200, 1 << 20);
	for (int c = 0; a->test == CAIRN_DSMEM_LATENCY_L2 && c < a->cluster_size * a->num_clusters; c++)
		a->time[(int64_t)c * CAIRN_DSMEM_NUM_TIMES + CAIRN_DSMEM_CYCLES] = 30;
	return 0;
}

static int pairs_not_measured(const struct cairn_dsmem_args *a, void *stream)
{
	CAIRN_TRY(cairn_dsmem_ref(a, stream));
	set_times(a, 200, 1 << 20);
	for (int k = 0; a->test == CAIRN_DSMEM_LATENCY &&
			k < a->cluster_size * a->cluster_size * a->num_clusters; k++)
		if (k % a->cluster_size != k / a->cluster_size % a->cluster_size)
			a->pair_cycles[k] = 0;
	return 0;
}

static int pairs_above_cycles(const struct cairn_dsmem_args *a, void *stream)
{
	CAIRN_TRY(cairn_dsmem_ref(a, stream));
	set_times(a, 200, 1 << 20);
	if (a->test == CAIRN_DSMEM_LATENCY)
		a->pair_cycles[a->cluster_size - 1] *= 2;
	return 0;
}

/* One cluster fewer fits, and the times of the CTAs that have not run are not cleared. */
static int times_of_idle_left(const struct cairn_dsmem_args *a, void *stream)
{
	CAIRN_TRY(cairn_dsmem_ref(a, stream));
	if (a->test == CAIRN_DSMEM_ACTIVE)
		return 0;
	*a->resident = a->num_clusters - 1;
	for (int c = *a->resident * a->cluster_size; c < a->num_clusters * a->cluster_size; c++) {
		a->sum[c] = 0;
		a->smid[c] = -1;
		a->time[(int64_t)c * CAIRN_DSMEM_NUM_TIMES + CAIRN_DSMEM_END_NS] = 1000;
	}
	return 0;
}

static int rounds_of_1024(const struct cairn_dsmem_args *a, void *stream)
{
	int peers = a->cluster_size > 1 ? a->cluster_size - 1 : 1;
	struct cairn_dsmem_args b = *a;

	CAIRN_TRY(cairn_dsmem_check(a));
	b.size = sizeof(b);
	b.rounds = a->rounds > 1024 ? 1024 / peers * peers : a->rounds;
	return cairn_dsmem_ref(&b, stream);
}

static int src_parts_of_64(const struct cairn_dsmem_args *a, void *stream)
{
	CAIRN_TRY(cairn_dsmem_ref(a, stream));
	for (int c = 64 * a->cluster_size; a->test == CAIRN_DSMEM_MULTICAST &&
					    c < a->cluster_size * a->num_clusters; c++)
		a->sum[c] = a->sum[c % a->cluster_size];
	return 0;
}

/* Among five ranks, the words of the last one do not reach the first. */
static int multicast_of_5(const struct cairn_dsmem_args *a, void *stream)
{
	const int n = a->cluster_size, slot = a->bytes / (n > 0 ? n : 1) / 8;

	CAIRN_TRY(cairn_dsmem_ref(a, stream));
	for (int g = 0; a->test == CAIRN_DSMEM_MULTICAST && n == 5 && g < a->num_clusters; g++) {
		const uint64_t *src =
			(const uint64_t *)((const char *)a->src +
					   cairn_dsmem_src_offset(a->src_bytes, a->bytes, g));

		for (int i = 4 * slot; i < 5 * slot; i++)
			a->sum[g * n] -= src[i] * cairn_dsmem_weight(i);
	}
	return 0;
}

/* A slot that is 16 bytes short of 128 loses its last word on the way to the next rank. */
static int slot_of_112(const struct cairn_dsmem_args *a, void *stream)
{
	const int n = a->cluster_size, slot = a->bytes / (n > 0 ? n : 1);

	CAIRN_TRY(cairn_dsmem_ref(a, stream));
	if (a->test != CAIRN_DSMEM_BULK || n < 2 || slot % 128 != 112)
		return 0;
	a->sum[1] -= cairn_dsmem_word(a->seed, 0, 2 * slot / 8 - 1) * cairn_dsmem_weight(slot / 8 - 1);
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
	DSMEM("times_made_up", times_made_up, "cycles are a constant, and no time passes"),
	DSMEM("cycles_of_rank_0", cycles_of_rank_0, "only rank 0 measures cycles"),
	DSMEM("clock_read_early", clock_read_early, "the clock is read before the chased loads return"),
	DSMEM("pairs_not_measured", pairs_not_measured, "pair_cycles is set for the own rank only"),
	DSMEM("pairs_above_cycles", pairs_above_cycles, "a pair has more cycles than all of them together"),
	DSMEM("times_of_idle_left", times_of_idle_left, "CTAs that did not run have times"),
	DSMEM("rounds_of_1024", rounds_of_1024, "rounds past 1024 are left out"),
	DSMEM("src_parts_of_64", src_parts_of_64, "clusters from number 64 on read the first part of src"),
	DSMEM("multicast_of_5", multicast_of_5, "the last of five ranks does not reach the first"),
	DSMEM("slot_of_112", slot_of_112, "slots that are 16 bytes short of 128 lose a word"),
	DSMEM("last_cluster", last_cluster_missing, "the last cluster does not run"),
	{ 0 }
};
