/* SPDX-License-Identifier: Apache-2.0 */
/*
 * logprobs.cu - a row is spread over a cluster and read once, into registers; rank 0 hears all
 *
 *   load      VECS vectors of 16 bytes a thread, all in flight; what lies before the first aligned address
 *             goes to rank 0, what does not fill a vector to the last. Each thread knows its largest key: a
 *             logit that compares as an integer, and below it the index, so that no two keys are equal and
 *             equal logits fall with the index.
 *   sum       of exp about the thread's own largest, then about the CTA's by a butterfly
 *   bound     the k-th largest of the keys of GROUPS groups of 4 threads: k tokens at least reach it, seldom
 *             more than k + 8, never more than those of 4 k threads
 *   gather    what reaches the bound goes to a list, in any order; its members are ranked by comparing all
 *             with all, which settles the order
 *   exchange  each CTA sends its first k keys, its largest and its sum to rank 0
 *   merge     rank 0: again a bound, a list and ranks, of k keys of each CTA
 *
 * A row too long for 16 CTAs is read a second time to gather (`resident` false).
 *
 * shared memory   s_keys   GROUPS x 8 bytes      s_ranks  16 x 32 x 8 bytes, what the CTAs send
 *                 s_sums   WARPS x 8 bytes       s_box    16 x 8 bytes, largest logit and sum of each CTA
 *                 s_list   (dynamic) 4 k times the tokens of a thread x 8 bytes
 * barriers        cluster: one when all run (before the first remote store), one after the exchange
 *
 * Cluster size: the smallest whose registers hold a row; larger while multiprocessors are idle, down to
 * PART_MIN. Floor: 128256 f32 are 0.5 MB; 64 rows take 7.2 us at the read stream's speed, 256 rows 29 us.
 */
#include <float.h>

#include "launch.h"
#include "logprobs.h"
#include "ptx.cuh"
#include "row.cuh"

#define THREADS		512
#define WARPS		(THREADS / 32)
#define GROUPS		(THREADS / 4)
#define VECS		8
#define PART_MAX	(THREADS * VECS * 4)
#define PART_MIN	2048
#define MAX_CLUSTER	16
#define MAX_K		CAIRN_LOGPROBS_MAX
#define ALL_LANES	0xffffffffu
#define LOG2E		1.4426950408889634f

struct shared {
	uint64_t keys[GROUPS], ranks[MAX_CLUSTER][MAX_K], bound;
	float2 sums[WARPS], box[MAX_CLUSTER];	/* largest, sum */
	uint32_t count, merged;
	float chosen;				/* logit of the row's token */
};

/* A CTA's share of a row: vectors [from, to) behind `head` elements, and `extra` elements more. */
struct share {
	const float4 *x;
	int from, to, head;
	const float *row;
	int extra;	/* this thread's index in the row of one element more; -1: none */
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

/* exp(x - max); max may be -infinity, and x then is, too */
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

	return make_float4(clean(__uint_as_float(raw.x)), clean(__uint_as_float(raw.y)),
			   clean(__uint_as_float(raw.z)), clean(__uint_as_float(raw.w)));
}

struct largest {
	float value;
	int index;	/* -1: none */
};

/* By rising index, so that of equals the first stays. */
ROW void look(struct largest *l, float x, int index)
{
	if (x > l->value || l->index < 0) {
		l->value = x;
		l->index = index;
	}
}

ROW void look4(struct largest *l, float4 f, int index)
{
	look(l, f.x, index);
	look(l, f.y, index + 1);
	look(l, f.z, index + 2);
	look(l, f.w, index + 3);
}

ROW float weights4(float4 f, float max)
{
	return weight(f.x, max) + weight(f.y, max) + (weight(f.z, max) + weight(f.w, max));
}

ROW void offer(struct shared *s, uint64_t *list, uint64_t key, uint64_t bound)
{
	if (key >= bound)
		list[atomicAdd(&s->count, 1u)] = key;
}

ROW void offer4(struct shared *s, uint64_t *list, float4 f, int index, uint64_t bound)
{
	offer(s, list, key_of(f.x, index), bound);
	offer(s, list, key_of(f.y, index + 1), bound);
	offer(s, list, key_of(f.z, index + 2), bound);
	offer(s, list, key_of(f.w, index + 3), bound);
}

/* Largest and sum of a warp from those of its lanes: lane 0's, since a product and a sum in one rounding do not commute. */
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

/* 4 threads an entry: how many of list[0 .. n) are larger than list[i]. All lanes of the warp call it. */
ROW int rank_of(const uint64_t *list, int n, int i)
{
	uint64_t mine = i < n ? list[i] : UINT64_MAX;
	int above = 0;

	for (int j = threadIdx.x % 4; j < n; j += 4)
		above += list[j] > mine;
	above += __shfl_xor_sync(ALL_LANES, above, 1);
	return above + __shfl_xor_sync(ALL_LANES, above, 2);
}

/* A key that at least k of all keys sent reach: q of each of m CTAs, q m >= k. */
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

/* What rank 0 does with what all have sent. */
ROW void finish(const struct cairn_logprobs_args &a, struct shared *s, uint64_t *list, int row, int size)
{
	const int t = threadIdx.x, lane = t % 32;
	float2 all = lane < size ? s->box[lane] : make_float2(-INFINITY, 0);
	float lse;
	uint64_t bound;
	int n;

	all = join(all);
	lse = logf(all.y);
	if (t == 0)
		a.chosen[row] = all.x > -INFINITY ? s->chosen - all.x - lse : -INFINITY;
	if (!a.k)
		return;
	bound = size > 1 ? merge_bound(s, size, a.k) : 0;
	for (int i = t; i < size * a.k; i += THREADS) {
		uint64_t key = s->ranks[i / a.k][i % a.k];

		if (key && key >= bound)
			list[atomicAdd(&s->merged, 1u)] = key;
	}
	__syncthreads();
	n = (int)s->merged;
	for (int i = t / 4; i - t / 4 < n; i += GROUPS) {
		int rank = rank_of(list, n, i);

		if (i < n && t % 4 == 0 && rank < a.k)
			write_top(a, row, rank, list[i], all.x, lse);
	}
	if (t >= n && t < a.k)		/* a vocabulary smaller than k */
		write_top(a, row, t, 0, all.x, lse);
}

template <bool resident> __global__ void __launch_bounds__(THREADS, 2)
logprobs_kernel(const __grid_constant__ struct cairn_logprobs_args a)
{
	extern __shared__ uint64_t s_list[];
	__shared__ struct shared s_mem;
	const int rank = ptx_cluster_ctarank(), size = ptx_cluster_nctarank(), row = ptx_clusterid_x();
	const int t = threadIdx.x, warp = t / 32, lane = t % 32;
	const float *logits = a.logits + (int64_t)row * a.vocab;
	struct largest top = { -INFINITY, -1 };
	float4 f[resident ? VECS : 1];
	float extra = -INFINITY, sum = 0;
	struct shared *s = &s_mem;
	struct share me;
	uint64_t key, bound;
	float2 part;
	int n, left, first;

	ptx_barrier_cluster_arrive_relaxed();
	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	if (a.wanted && !a.wanted[row])
		return;
	share_of(&me, logits, a.vocab, rank, size);
	left = me.to - me.from - t;		/* vectors, of which this thread has every THREADS-th */
	first = me.head + 4 * (me.from + t);	/* index of its first element */
	if (resident) {
#pragma unroll
		for (int k = 0; k < VECS; k++) {
			f[k] = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
			if (k * THREADS < left)
				f[k] = load4(me.x + me.from + t + k * THREADS);
		}
	}
	if (me.extra >= 0)
		extra = clean(me.row[me.extra]);
	if (rank == 0 && t == 0) {
		int token = a.tokens[row];

		s->chosen = token >= 0 && token < a.vocab ? clean(logits[token]) : -INFINITY;
	}
	if (t == 0) {
		s->count = s->merged = 0;
		s->bound = 1;		/* where fewer than k groups have a token: all that is one */
	}
	if (me.extra >= 0 && me.extra < me.head)
		look(&top, extra, me.extra);
	if (resident) {
#pragma unroll
		for (int k = 0; k < VECS; k++)
			if (k * THREADS < left)
				look4(&top, f[k], first + 4 * k * THREADS);
#pragma unroll
		for (int k = 0; k < VECS; k++)
			if (k * THREADS < left)
				sum += weights4(f[k], top.value);
	} else {
#pragma unroll 4
		for (int v = me.from + t; v < me.to; v += THREADS) {
			float4 x = load4(me.x + v);
			float before = top.value;

			look4(&top, x, me.head + 4 * v);
			if (top.value > before)
				sum *= weight(before, top.value);
			sum += weights4(x, top.value);
		}
	}
	if (me.extra >= 0) {
		float before = top.value;

		if (me.extra >= me.head)
			look(&top, extra, me.extra);
		sum = sum * weight(before, top.value) + weight(extra, top.value);
	}
	key = top.index < 0 ? 0 : key_of(top.value, top.index);
	part = join(make_float2(top.value, sum));
	if (lane == 0)
		s->sums[warp] = part;
	bound = max64(key, __shfl_xor_sync(ALL_LANES, key, 1));
	bound = max64(bound, __shfl_xor_sync(ALL_LANES, bound, 2));
	if (t % 4 == 0)
		s->keys[t / 4] = bound;
	__syncthreads();
	if (warp == 0) {
		part = lane < WARPS ? s->sums[lane] : make_float2(-INFINITY, 0);
		part = join(part);
	}
	if (a.k) {
		n = rank_of(s->keys, GROUPS, t / 4);
		if (t % 4 == 0 && bound && n == a.k - 1)
			s->bound = bound;
		__syncthreads();
		bound = s->bound;
		if (key >= bound) {
			if (resident) {
#pragma unroll
				for (int k = 0; k < VECS; k++)
					if (k * THREADS < left)
						offer4(s, s_list, f[k], first + 4 * k * THREADS, bound);
			} else {
				for (int v = me.from + t; v < me.to; v += THREADS)
					offer4(s, s_list, load4(me.x + v), me.head + 4 * v, bound);
			}
			if (me.extra >= 0)
				offer(s, s_list, key_of(extra, me.extra), bound);
		}
		__syncthreads();
		n = (int)s->count;
	} else {
		n = 0;
	}
	ptx_barrier_cluster_wait_acquire();	/* the peers run: their memory may be written */
	if (warp == 0 && lane == 0)
		ptx_st_relaxed_cluster_shared_b64(ptx_mapa(ptx_smem(&s->box[rank]), 0),
						  (uint64_t)__float_as_uint(part.y) << 32 |
						  __float_as_uint(part.x));
	/* every place gets a key, or that there is none */
	for (int i = t / 4; i - t / 4 < n; i += GROUPS) {
		int at = rank_of(s_list, n, i);

		if (i < n && t % 4 == 0 && at < a.k)
			ptx_st_relaxed_cluster_shared_b64(ptx_mapa(ptx_smem(&s->ranks[rank][at]), 0),
							  s_list[i]);
	}
	if (t >= n && t < a.k)
		ptx_st_relaxed_cluster_shared_b64(ptx_mapa(ptx_smem(&s->ranks[rank][t]), 0), 0);
	ptx_barrier_cluster_arrive_release();
	ptx_barrier_cluster_wait_acquire();
	if (rank == 0)
		finish(a, s, s_list, row, size);
}

static int cluster_size(const struct cairn_logprobs_args *a, int sms)
{
	int size = 1;

	while (size < MAX_CLUSTER && (a->vocab / size >= PART_MAX ||
				      (a->vocab / size > PART_MIN && 2ll * a->rows * size <= sms)))
		size *= 2;
	return size;
}

/* Threads of 4 k groups at most are in the list, and rank 0 merges k keys of each CTA in it. */
static size_t list_bytes(const struct cairn_logprobs_args *a, int size)
{
	size_t vecs = (size_t)a->vocab / 4 / size + 1, each = (vecs + THREADS - 1) / THREADS * 4 + 1;
	size_t n = 4 * a->k * each, merged = (size_t)size * a->k;

	return (n > merged ? n : merged) * sizeof(uint64_t);
}

extern "C" int cairn_logprobs(const struct cairn_logprobs_args *a, void *stream)
{
	struct cairn_launch l = { .block = { THREADS }, .pdl = 1, .stream = stream };
	int sms = cairn_num_sms();
	void *params[] = { (void *)a };
	const void *kernel;

	CAIRN_TRY(cairn_logprobs_check(a));
	if (a->rows == 0)
		return 0;
	if (sms < 0)
		return sms;
	if (a->rows > INT32_MAX / MAX_CLUSTER)
		return cairn_error(EOPNOTSUPP, "logprobs: rows: %d are too many", a->rows);
	l.cluster = cluster_size(a, sms);
	for (;;) {
		bool resident = (a->vocab / 4 + l.cluster - 1) / l.cluster <= VECS * THREADS;

		kernel = resident ? (const void *)logprobs_kernel<true> :
			(const void *)logprobs_kernel<false>;
		l.smem = list_bytes(a, l.cluster);
		l.grid[0] = a->rows * l.cluster;
		/* 8 is what every device with clusters grants; 16 is asked for */
		if (l.cluster <= 8 || cairn_max_active_clusters(kernel, &l) > 0)
			break;
		l.cluster = 8;
	}
	return cairn_launch(kernel, &l, params);
}
