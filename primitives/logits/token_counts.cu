/* SPDX-License-Identifier: Apache-2.0 */
/*
 * token_counts.cu - one launch copies and clears slots, a second one adds tokens
 *
 * copies      A slot is copied or cleared 16 bytes at a time if slots are 16-byte aligned (vocab a multiple
 *             of 8, as in all models so far), else 2 bytes at a time. Floor: 512 KB read and written for a
 *             vocabulary of 128256, 0.13 us of memory time, so that latency dominates.
 * additions   One thread per token; with indptr it finds its segment by binary search. Counters change by a
 *             16-bit compare-and-swap, because a count must saturate. The final counters do not depend on the
 *             order of the additions. The 64 tokens of a pass take three memory round trips: for the token,
 *             the counter and the swap.
 *
 * A call without copies, as in every decode pass, is a single launch.
 */
#include "primitives/base/launch.h"
#include "primitives/ptx/ptx.cuh"
#include "primitives/logits/token_counts.h"

#define THREADS		256
#define UNROLL		4

/* chunks: number of CTAs per copied slot */
template <typename word> __global__ void __launch_bounds__(THREADS)
copy_kernel(const __grid_constant__ struct cairn_token_counts_args a, int chunks)
{
	const int c = blockIdx.x / chunks, per_slot = a.vocab * 2 / (int)sizeof(word);
	const int first = blockIdx.x % chunks * (THREADS * UNROLL) + threadIdx.x;
	int32_t to, from;
	word v[UNROLL];

	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	to = a.copy_to[c];
	from = a.copy_from[c];
	if (to < 0 || to >= a.num_slots || from >= a.num_slots || from == to)
		return;
#pragma unroll
	for (int k = 0; k < UNROLL; k++) {
		v[k] = {};
		if (from >= 0 && first + k * THREADS < per_slot)
			v[k] = ((const word *)a.counts)[(int64_t)from * per_slot + first + k * THREADS];
	}
#pragma unroll
	for (int k = 0; k < UNROLL; k++)
		if (first + k * THREADS < per_slot)
			((word *)a.counts)[(int64_t)to * per_slot + first + k * THREADS] = v[k];
}

/* Returns token i's segment: the last one that begins at or before i; -1 if i is past the last segment. */
static __device__ __forceinline__ int segment_of(const struct cairn_token_counts_args &a, int i)
{
	int lo = 0, hi = a.num_segments;

	if (!a.indptr)
		return i;
	if (!a.num_segments || i >= a.indptr[a.num_segments])
		return -1;
	while (hi - lo > 1) {
		int mid = (lo + hi) / 2;

		if (a.indptr[mid] <= i)
			lo = mid;
		else
			hi = mid;
	}
	return lo;
}

__global__ void __launch_bounds__(THREADS)
add_kernel(const __grid_constant__ struct cairn_token_counts_args a)
{
	int i = blockIdx.x * THREADS + threadIdx.x, s, slot, token;
	unsigned short *counter, old, seen, next;

	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	if (i >= a.num_tokens)
		return;
	token = a.tokens[i];
	s = segment_of(a, i);
	slot = s < 0 ? -1 : a.slots[s];
	if (slot < 0 || slot >= a.num_slots || token < 0 || token >= a.vocab)
		return;
	counter = a.counts + (int64_t)slot * a.vocab + token;
	seen = *(volatile unsigned short *)counter;
	do {
		old = seen;
		next = a.prompt ? old | CAIRN_TOKEN_IN_PROMPT :
				  old + ((old & CAIRN_TOKEN_COUNT) != CAIRN_TOKEN_COUNT);
		if (next == old)
			return;
		seen = atomicCAS(counter, old, next);
	} while (seen != old);
}

static int launch_copies(const struct cairn_token_counts_args *a, void *stream)
{
	struct cairn_launch l = { .block = { THREADS }, .pdl = 1, .stream = stream };
	const int wide = a->vocab % 8 == 0, per_slot = wide ? a->vocab / 8 : a->vocab;
	int chunks = (per_slot + THREADS * UNROLL - 1) / (THREADS * UNROLL);
	void *params[] = { (void *)a, &chunks };

	if ((int64_t)chunks * a->num_copies > INT32_MAX)
		return cairn_error(EOPNOTSUPP, "token_counts: num_copies: %d are too many", a->num_copies);
	l.grid[0] = (unsigned int)(a->num_copies * chunks);
	return cairn_launch(wide ? (const void *)copy_kernel<uint4> : (const void *)copy_kernel<uint16_t>, &l,
			    params);
}

extern "C" int cairn_token_counts(const struct cairn_token_counts_args *a, void *stream)
{
	struct cairn_launch l = { .block = { THREADS }, .pdl = 1, .stream = stream };
	void *params[] = { (void *)a };

	CAIRN_TRY(cairn_token_counts_check(a));
	if (a->num_copies)
		CAIRN_TRY(launch_copies(a, stream));
	if (!a->num_tokens)
		return 0;
	l.grid[0] = a->num_tokens / THREADS + (a->num_tokens % THREADS > 0);
	return cairn_launch((const void *)add_kernel, &l, params);
}
