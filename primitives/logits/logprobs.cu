/* SPDX-License-Identifier: Apache-2.0 */
/*
 * logprobs.cu - streams a row once through the registers of a cluster; rank 0 combines the results
 *
 *   stream    chunks of VECS vectors of 16 bytes per thread; the loads of the next chunk are in flight during
 *             the work on the current one. A thread updates its largest logit and its sum of exp
 *             relative to that. Elements before the first aligned address go to rank 0 with its first chunk,
 *             elements after the last whole vector to the last rank.
 *   bound     after the first chunk: the k-th largest of the maxima of GROUPS groups of 8 threads. At least k
 *             tokens reach the bound, so no token below it can be among the k likeliest. From then on, all
 *             tokens that reach it (about k per chunk) go to a list, in any order.
 *   rank      list entries are keys: the logit as an integer in the high half, the complement of the index in
 *             the low half, so that keys are distinct and among equal logits the lower index ranks first.
 *             A second bound thins the list; then each key is compared with all others to find its rank. If
 *             the list overflows (logits that rise with the index, or thousands of equal ones), it is
 *             discarded and the share is read again for each of the k places: correct, but slow.
 *   exchange  each CTA sends its first k keys, its largest logit and its sum to rank 0
 *   merge     rank 0: a bound, a list and ranks, over the k keys of each CTA
 *
 * NaN and +infinity are detected late: if a sum is not finite, it is computed again from clean logits.
 *
 * shared memory   struct shared, 17 KiB
 * barriers        cluster: one at the start (before the first remote store), one after the exchange
 *
 * Cluster size: the largest with which all rows run at once at two CTAs per SM, with at least PART_MIN tokens
 * per CTA.
 * Floor: 128256 f32 are 0.5 MB; 64 rows take 7.2 us at the read stream's speed, 256 rows 29 us.
 * Optimisation history: NOTES.md.
 */
#include <float.h>

#include "primitives/base/launch.h"
#include "primitives/logits/logprobs.h"
#include "primitives/ptx/ptx.cuh"
#include "primitives/rows/row.cuh"

#define THREADS		512
#define WARPS		(THREADS / 32)
#define GROUPS		(THREADS / 8)
#define VECS		4
#define CHUNK		(THREADS * VECS)	/* vectors */
#define PART_MIN	2048
#define PART_MAX	(1 << 18)		/* tokens of a CTA; keeps the chain of additions short */
#define LIST		1024
#define FEW		128			/* longer lists need a second bound */
#define MAX_CLUSTER	16
#define MAX_K		CAIRN_LOGPROBS_MAX
#define ALL_LANES	0xffffffffu
#define LOG2E		1.4426950408889634f

struct shared {
	uint64_t list[LIST], few[MAX_CLUSTER * MAX_K];	/* few: members of k groups, k * LIST / GROUPS */
	uint64_t ranks[MAX_CLUSTER][MAX_K];		/* in rank 0: the first k keys of each CTA */
	uint64_t keys[GROUPS], bound64;
	float tops[GROUPS], bound;
	float2 sums[WARPS], box[MAX_CLUSTER];		/* (largest, sum); box: in rank 0, per CTA */
	uint32_t count, num_few;
	float chosen;					/* logit of the drawn token */
};

/* A CTA's share of a row: vectors [from, to), counted from element `head`, and single elements at the
 * ends. */
struct share {
	const float4 *x;
	int from, to, head;
	const float *row;
	int extra;	/* index in the row of this thread's single element; -1: none */
};

ROW float clean(float x)
{
	return fminf(fmaxf(x, -INFINITY), FLT_MAX) + 0.0f;	/* NaN: -infinity; -0: +0 */
}

ROW uint64_t key_of(float x, int index)
{
	uint32_t bits = __float_as_uint(x);

	bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
	return (uint64_t)bits << 32 | ~(uint32_t)index;
}

ROW float logit_of(uint64_t key)
{
	uint32_t bits = (uint32_t)(key >> 32);

	return __uint_as_float(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits);
}

ROW int index_of(uint64_t key)
{
	return (int)~(uint32_t)key;
}

/* exp(x - max); if max is -infinity, so is x, and the result is 0 */
ROW float weight(float x, float max)
{
	return ptx_ex2_approx_ftz((x - (max == -INFINITY ? 0 : max)) * LOG2E);
}

ROW uint64_t max64(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

ROW void share_of(struct share *s, const float *row, int vocab, int rank, int size)
{
	const int head = min((int)((16 - ((uintptr_t)row & 15)) % 16 / 4), vocab), vecs = (vocab - head) / 4;
	const int each = (vecs + size - 1) / size, tail = vocab - head - vecs * 4, t = threadIdx.x;

	s->row = row;
	s->head = head;
	s->x = (const float4 *)(row + head);
	s->from = min(rank * each, vecs);
	s->to = min(s->from + each, vecs);
	s->extra = rank == 0 && t < head ? t : -1;
	if (rank == size - 1 && t >= 4 && t < 4 + tail)
		s->extra = vocab - tail + t - 4;
}

ROW float4 load4(const float4 *p)
{
	uint4 raw = ptx_ld_global_nc_no_allocate_v4(p);

	return make_float4(__uint_as_float(raw.x), __uint_as_float(raw.y), __uint_as_float(raw.z),
			   __uint_as_float(raw.w));
}

ROW void load_chunk(float4 f[VECS], const float4 *x, int left)
{
#pragma unroll
	for (int k = 0; k < VECS; k++) {
		f[k] = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
		if (k * THREADS < left)
			f[k] = load4(x + k * THREADS);
	}
}

/* Returns the largest logit of a chunk, ignoring NaN. */
ROW float largest(const float4 f[VECS])
{
	float max = -INFINITY;

#pragma unroll
	for (int k = 0; k < VECS; k++)
		max = fmaxf(max, fmaxf(fmaxf(f[k].x, f[k].y), fmaxf(f[k].z, f[k].w)));
	return fminf(max, FLT_MAX);
}

ROW float weights(const float4 f[VECS], float max)
{
	float sum = 0;

#pragma unroll
	for (int k = 0; k < VECS; k++)
		sum += weight(f[k].x, max) + weight(f[k].y, max) +
		       (weight(f[k].z, max) + weight(f[k].w, max));
	return sum;
}

ROW void clean_chunk(float4 f[VECS])
{
#pragma unroll
	for (int k = 0; k < VECS; k++)
		f[k] = make_float4(clean(f[k].x), clean(f[k].y), clean(f[k].z), clean(f[k].w));
}

ROW void offer(struct shared *s, float x, int index, float bound)
{
	x = clean(x);
	if (x >= bound) {
		uint32_t at = atomicAdd(&s->count, 1u);

		if (at < LIST)
			s->list[at] = key_of(x, index);
	}
}

/* first: index in the row of the thread's first element of this chunk. */
ROW void offer_chunk(struct shared *s, const float4 f[VECS], int first, int left, float bound)
{
#pragma unroll
	for (int k = 0; k < VECS; k++) {
		int index = first + 4 * k * THREADS;

		if (k * THREADS < left) {
			offer(s, f[k].x, index, bound);
			offer(s, f[k].y, index + 1, bound);
			offer(s, f[k].z, index + 2, bound);
			offer(s, f[k].w, index + 3, bound);
		}
	}
}

/* Returns the k-th largest of the groups' maxima, given each thread's maximum; -infinity if there are fewer
 * than k. */
ROW float bound_of(struct shared *s, float max, int k)
{
	const int t = threadIdx.x;
	int above = 0, reach = 0;

#pragma unroll
	for (int step = 4; step > 0; step /= 2)
		max = fmaxf(max, __shfl_xor_sync(ALL_LANES, max, step));
	if (t % 8 == 0)
		s->tops[t / 8] = max;
	if (t == 0)
		s->bound = -INFINITY;
	__syncthreads();
#pragma unroll
	for (int i = t % 8; i < GROUPS; i += 8) {
		above += s->tops[i] > max;
		reach += s->tops[i] >= max;
	}
#pragma unroll
	for (int step = 4; step > 0; step /= 2) {
		above += __shfl_xor_sync(ALL_LANES, above, step);
		reach += __shfl_xor_sync(ALL_LANES, reach, step);
	}
	if (above < k && k <= reach)	/* threads with equal maxima write the same value */
		s->bound = max;
	__syncthreads();
	return s->bound;
}

/*
 * Combines the largest logits and sums of a warp's lanes. All lanes take the sum of lane 0, because fused
 * multiply-adds round differently in different lanes.
 */
ROW float2 join(float2 a)
{
#pragma unroll
	for (int step = 16; step > 0; step /= 2) {
		float max = __shfl_xor_sync(ALL_LANES, a.x, step);
		float sum = __shfl_xor_sync(ALL_LANES, a.y, step);
		float top = fmaxf(a.x, max);

		a.y = a.y * weight(a.x, top) + sum * weight(max, top);
		a.x = top;
	}
	a.y = __shfl_sync(ALL_LANES, a.y, 0);
	return a;
}

/* Returns the number of entries of list[0 .. n) that are larger than list[i]; 4 threads share the work. All
 * lanes of the warp must call it. */
ROW int rank_of(const uint64_t *list, int n, int i)
{
	uint64_t mine = i < n ? list[i] : UINT64_MAX;
	int above = 0;

	for (int j = threadIdx.x % 4; j < n; j += 4)
		above += list[j] > mine;
	above += __shfl_xor_sync(ALL_LANES, above, 1);
	return above + __shfl_xor_sync(ALL_LANES, above, 2);
}

/*
 * Moves the keys that reach a new bound from the list to few[] and returns their number, which is at least k.
 */
ROW int thin_out(struct shared *s, int n, int k)
{
	const int t = threadIdx.x;
	uint64_t mine[LIST / THREADS], max = 0;
	int above = 0;

#pragma unroll
	for (int i = 0; i < LIST / THREADS; i++) {
		mine[i] = t + i * THREADS < n ? s->list[t + i * THREADS] : 0;
		max = max64(max, mine[i]);
	}
#pragma unroll
	for (int step = 4; step > 0; step /= 2)
		max = max64(max, __shfl_xor_sync(ALL_LANES, max, step));
	if (t % 8 == 0)
		s->keys[t / 8] = max;
	if (t == 0)
		s->bound64 = 1;		/* stays 1 if fewer than k groups have a key: all are kept */
	__syncthreads();
#pragma unroll
	for (int i = t % 8; i < GROUPS; i += 8)
		above += s->keys[i] > max;
#pragma unroll
	for (int step = 4; step > 0; step /= 2)
		above += __shfl_xor_sync(ALL_LANES, above, step);
	if (max && above == k - 1)
		s->bound64 = max;
	__syncthreads();
#pragma unroll
	for (int i = 0; i < LIST / THREADS; i++)
		if (mine[i] >= s->bound64)
			s->few[atomicAdd(&s->num_few, 1u)] = mine[i];
	__syncthreads();
	return (int)s->num_few;
}

/* Stores the key of place `at` of this CTA in rank 0. */
ROW void send(struct shared *s, int rank, int at, uint64_t key)
{
	ptx_st_relaxed_cluster_shared_b64(ptx_mapa(ptx_smem(&s->ranks[rank][at]), 0), key);
}

/* Sends the k largest of list[0 .. n) to rank 0, in order, with zeros for missing ones. */
ROW void send_ranked(struct shared *s, const uint64_t *list, int n, int k, int rank)
{
	const int t = threadIdx.x;

	for (int i = t / 4; i - t / 4 < n; i += THREADS / 4) {
		int at = rank_of(list, n, i);

		if (i < n && t % 4 == 0 && at < k)
			send(s, rank, at, list[i]);
	}
	if (t >= n && t < k)
		send(s, rank, t, 0);
}

/* Returns the largest key of the CTA to all threads. */
ROW uint64_t block_max(struct shared *s, uint64_t key)
{
#pragma unroll
	for (int step = 16; step > 0; step /= 2)
		key = max64(key, __shfl_xor_sync(ALL_LANES, key, step));
	if (threadIdx.x % 32 == 0)
		s->keys[threadIdx.x / 32] = key;
	__syncthreads();
#pragma unroll
	for (int w = 0; w < WARPS; w++)
		key = max64(key, s->keys[w]);
	__syncthreads();
	return key;
}

ROW uint64_t below(uint64_t best, float x, int index, uint64_t last)
{
	uint64_t key = key_of(clean(x), index);

	return key < last && key > best ? key : best;
}

/* Finds the k largest keys by reading the share again for each place, and sends them. */
ROW void send_exhaustively(struct shared *s, const struct share *me, int k, int rank)
{
	uint64_t last = UINT64_MAX;

	for (int at = 0; at < k; at++) {
		uint64_t best = me->extra >= 0 ? below(0, me->row[me->extra], me->extra, last) : 0;

		for (int v = me->from + threadIdx.x; v < me->to; v += THREADS) {
			float4 f = load4(me->x + v);
			int index = me->head + 4 * v;

			best = below(best, f.x, index, last);
			best = below(best, f.y, index + 1, last);
			best = below(best, f.z, index + 2, last);
			best = below(best, f.w, index + 3, last);
		}
		last = block_max(s, best);
		if (threadIdx.x == 0)
			send(s, rank, at, last);
	}
}

/* Returns a key that at least k of the sent keys reach: q keys of each of m CTAs do, with q m >= k. */
ROW uint64_t merge_bound(const struct shared *s, int size, int k)
{
	const int lane = threadIdx.x % 32, q = min((2 * k + size - 1) / size, k);
	uint64_t theirs = lane < size ? s->ranks[lane][q - 1] : 0;
	int reach = 0;

	for (int r = 0; r < size; r++)
		reach += __shfl_sync(ALL_LANES, theirs, r) >= theirs;
	theirs = reach * q >= k ? theirs : 0;
#pragma unroll
	for (int step = 16; step > 0; step /= 2)
		theirs = max64(theirs, __shfl_xor_sync(ALL_LANES, theirs, step));
	return theirs;
}

ROW void write_top(const struct cairn_logprobs_args &a, int row, int at, uint64_t key, float max, float lse)
{
	int64_t out = (int64_t)row * a.k + at;

	a.top_ids[out] = key ? index_of(key) : -1;
	a.top[out] = key && max > -INFINITY ? logit_of(key) - max - lse : -INFINITY;
}

/* In rank 0: merges what all CTAs have sent and writes the row's outputs. */
ROW void finish(const struct cairn_logprobs_args &a, struct shared *s, int row, int size)
{
	const int t = threadIdx.x, lane = t % 32;
	float2 all = lane < size ? s->box[lane] : make_float2(-INFINITY, 0);
	uint64_t bound;
	float lse;
	int n;

	all = join(all);
	lse = logf(all.y);
	if (t == 0)
		a.chosen[row] = all.x > -INFINITY ? s->chosen - all.x - lse : -INFINITY;
	if (!a.k)
		return;
	if (size == 1) {
		if (t < a.k)
			write_top(a, row, t, s->ranks[0][t], all.x, lse);
		return;
	}
	bound = merge_bound(s, size, a.k);
	if (t == 0)
		s->count = 0;
	__syncthreads();
	for (int i = t; i < size * a.k; i += THREADS) {
		uint64_t key = s->ranks[i / a.k][i % a.k];

		if (key && key >= bound)
			s->list[atomicAdd(&s->count, 1u)] = key;
	}
	__syncthreads();
	n = (int)s->count;
	for (int i = t / 4; i - t / 4 < n; i += THREADS / 4) {
		int at = rank_of(s->list, n, i);

		if (i < n && t % 4 == 0 && at < a.k)
			write_top(a, row, at, s->list[i], all.x, lse);
	}
	if (t >= n && t < a.k)		/* the vocabulary is smaller than k */
		write_top(a, row, t, 0, all.x, lse);
}

__global__ void __launch_bounds__(THREADS, 2)
logprobs_kernel(const __grid_constant__ struct cairn_logprobs_args a)
{
	__shared__ struct shared s_mem;
	const int rank = ptx_cluster_ctarank(), size = ptx_cluster_nctarank(), row = ptx_clusterid_x();
	const int t = threadIdx.x;
	const float *logits = a.logits + (int64_t)row * a.vocab;
	float top = -INFINITY, sum = 0, bound = INFINITY, extra = -INFINITY;
	float4 f[VECS], next[VECS];
	struct shared *s = &s_mem;
	struct share me;
	int left, first, n;
	float2 part;

	ptx_barrier_cluster_arrive_relaxed();
	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	if (a.wanted && !a.wanted[row])
		return;
	share_of(&me, logits, a.vocab, rank, size);
	left = me.to - me.from - t;		/* vectors left; this thread takes every THREADS-th */
	first = me.head + 4 * (me.from + t);	/* index in the row of its first element */
	load_chunk(next, me.x + me.from + t, left);
	if (me.extra >= 0)
		extra = top = clean(me.row[me.extra]);
	sum = extra > -INFINITY;
	if (t == 0)
		s->count = s->num_few = 0;
	if (rank == 0 && t == 0) {
		int token = a.tokens[row];

		s->chosen = token >= 0 && token < a.vocab ? clean(logits[token]) : -INFINITY;
	}
	for (int v = me.from; v == me.from || v < me.to; v += CHUNK) {
		float max, more;

#pragma unroll
		for (int k = 0; k < VECS; k++)
			f[k] = next[k];
		load_chunk(next, me.x + v + CHUNK + t, left - CHUNK);
		max = largest(f);
		if (max > top) {
			sum *= weight(top, max);
			top = max;
		}
		more = weights(f, top);
		if (!(more < INFINITY)) {
			clean_chunk(f);
			more = weights(f, top);
		}
		sum += more;
		if (a.k && v == me.from) {
			bound = bound_of(s, top, a.k);
			if (me.extra >= 0)
				offer(s, extra, me.extra, bound);
		}
		if (max >= bound)
			offer_chunk(s, f, first, left, bound);
		left -= CHUNK;
		first += 4 * CHUNK;
	}
	part = join(make_float2(top, sum));
	if (t % 32 == 0)
		s->sums[t / 32] = part;
	__syncthreads();
	n = (int)s->count;
	ptx_barrier_cluster_wait_acquire();	/* the peers have started: their memory may be written */
	if (t < 32) {
		part = join(t < WARPS ? s->sums[t] : make_float2(-INFINITY, 0));
		if (t == 0)
			ptx_st_relaxed_cluster_shared_b64(ptx_mapa(ptx_smem(&s->box[rank]), 0),
							  (uint64_t)__float_as_uint(part.y) << 32 |
							  __float_as_uint(part.x));
	}
	if (a.k && n > LIST)
		send_exhaustively(s, &me, a.k, rank);
	else if (a.k && n > FEW)
		send_ranked(s, s->few, thin_out(s, n, a.k), a.k, rank);
	else if (a.k)
		send_ranked(s, s->list, n, a.k, rank);
	ptx_barrier_cluster_arrive_release();
	ptx_barrier_cluster_wait_acquire();
	if (rank == 0)
		finish(a, s, row, size);
}

/* Returns the largest cluster size with which all rows run at once, with two CTAs per SM. */
static int cluster_size(const struct cairn_logprobs_args *a, int sms)
{
	int size = 1;

	while (size < MAX_CLUSTER && (a->vocab / size > PART_MAX ||
				      (a->vocab / size > PART_MIN && (int64_t)a->rows * size <= sms)))
		size *= 2;
	return size;
}

extern "C" int cairn_logprobs(const struct cairn_logprobs_args *a, void *stream)
{
	struct cairn_launch l = { .block = { THREADS }, .pdl = 1, .stream = stream };
	const void *kernel = (const void *)logprobs_kernel;
	int sms = cairn_num_sms();
	void *params[] = { (void *)a };

	CAIRN_TRY(cairn_logprobs_check(a));
	if (a->rows == 0)
		return 0;
	if (sms < 0)
		return sms;
	if (a->rows > INT32_MAX / MAX_CLUSTER)
		return cairn_error(EOPNOTSUPP, "logprobs: rows: %d are too many", a->rows);
	l.cluster = cluster_size(a, sms);
	l.grid[0] = a->rows * l.cluster;
	/* every device with clusters supports size 8; size 16 may be refused */
	if (l.cluster > 8 && cairn_max_active_clusters(kernel, &l) < 1) {
		l.cluster = 8;
		l.grid[0] = a->rows * 8;
	}
	return cairn_launch(kernel, &l, params);
}
