// SPDX-License-Identifier: Apache-2.0
/*
 * dsmem_ref - the reference: computes what each receiver must hold, directly from the definitions of dsmem.h
 */
#include "primitives/machine/dsmem.h"

#include <string.h>

#include "primitives/base/error.h"

static uint64_t chase_src(const struct cairn_dsmem_args *a)
{
	uint64_t link = 0;

	for (int t = 0; t < a->rounds; t++)
		link = ((const uint64_t *)a->src)[link * (CAIRN_DSMEM_LINK / 8)];
	return link;
}

static uint64_t chase(const struct cairn_dsmem_args *a, int owner)
{
	uint32_t link = 0;

	for (int t = 0; t < a->rounds; t++)
		link = cairn_dsmem_next_link(link, a->bytes / CAIRN_DSMEM_LINK, owner);
	return link;
}

/*
 * Sums over the owners: the number of rounds in which rank r reads all of the owner's memory, times its
 * words.
 */
static uint64_t loads(const struct cairn_dsmem_args *a, int first, int r)
{
	uint64_t sum = 0;

	for (int owner = 0; owner < a->cluster_size; owner++) {
		uint64_t times = 0, words = 0;

		for (int t = 0; t < a->rounds; t++)
			times += cairn_dsmem_peer(r, a->cluster_size, t) == (uint32_t)owner;
		for (int i = 0; i < a->bytes / 8; i++)
			words += cairn_dsmem_word(a->seed, first + owner, i);
		sum += times * words;
	}
	return sum;
}

/* Sums the slots of rank r's receive buffer that a peer has sent to; the other slots are zero. */
static uint64_t pushes(const struct cairn_dsmem_args *a, int first, int r)
{
	int slot_words = a->bytes / a->cluster_size / 8;
	uint64_t sum = 0;

	for (int s = 0; s < a->cluster_size; s++) {
		int sent = 0;

		for (int t = 0; t < a->rounds; t++)
			sent |= cairn_dsmem_peer(s, a->cluster_size, t) == (uint32_t)r;
		for (int i = 0; sent && i < slot_words; i++)
			sum += cairn_dsmem_word(a->seed, first + s, r * slot_words + i) *
			       cairn_dsmem_weight(s * slot_words + i);
	}
	return sum;
}

static uint64_t multicasts(const struct cairn_dsmem_args *a, int g)
{
	const uint64_t *src = (const uint64_t *)((const char *)a->src +
						 cairn_dsmem_src_offset(a->src_bytes, a->bytes, g));
	uint64_t sum = 0;

	for (int i = 0; i < a->bytes / 8; i++)
		sum += src[i] * cairn_dsmem_weight(i);
	return sum;
}

static uint64_t exchanges(const struct cairn_dsmem_args *a, int first, int r)
{
	uint64_t sum = 0;

	for (int t = 0; t < a->rounds; t++)
		for (int s = 0; s < a->cluster_size; s++)
			if (cairn_dsmem_peer(s, a->cluster_size, t) == (uint32_t)r)
				sum += cairn_dsmem_word(a->seed, first + s, t);
	return sum;
}

static uint64_t tokens(const struct cairn_dsmem_args *a, int first, int r)
{
	uint64_t x = cairn_dsmem_word(a->seed, first, 0), last = 0;

	for (int t = 0; t < a->rounds; t++)
		for (int k = 1; k <= a->cluster_size; k++) {
			int receiver = k % a->cluster_size;

			if (receiver == r)
				last = x;
			x = cairn_dsmem_token(x, receiver);
		}
	return last;
}

int cairn_dsmem_ref(const struct cairn_dsmem_args *a, void *stream)
{
	int num_ctas;

	(void)stream;
	CAIRN_TRY(cairn_dsmem_check(a));
	num_ctas = a->num_clusters * a->cluster_size;
	for (int c = 0; c < num_ctas; c++) {
		int g = c / a->cluster_size, r = c % a->cluster_size, first = c - r;
		uint64_t sum = 0;

		switch (a->test) {
		case CAIRN_DSMEM_LATENCY:
			for (int owner = 0; owner < a->cluster_size; owner++)
				sum += chase(a, owner);
			break;
		case CAIRN_DSMEM_LATENCY_SMEM:
			sum = chase(a, r);
			break;
		case CAIRN_DSMEM_LATENCY_L2:
		case CAIRN_DSMEM_LATENCY_HBM:
			sum = chase_src(a);
			break;
		case CAIRN_DSMEM_LOAD:
			sum = loads(a, first, r);
			break;
		case CAIRN_DSMEM_ST_ASYNC:
		case CAIRN_DSMEM_BULK:
			sum = pushes(a, first, r);
			break;
		case CAIRN_DSMEM_MULTICAST:
			sum = multicasts(a, g);
			break;
		case CAIRN_DSMEM_BARRIER:
			sum = exchanges(a, first, r);
			break;
		case CAIRN_DSMEM_MBARRIER:
			sum = tokens(a, first, r);
			break;
		}
		a->sum[c] = sum;
		a->smid[c] = c;
		memset(&a->time[(int64_t)c * CAIRN_DSMEM_NUM_TIMES], 0,
		       CAIRN_DSMEM_NUM_TIMES * sizeof(int64_t));
	}
	if (a->test == CAIRN_DSMEM_LATENCY)
		memset(a->pair_cycles, 0, (size_t)num_ctas * a->cluster_size * sizeof(int32_t));
	*a->resident = a->num_clusters;
	return 0;
}
