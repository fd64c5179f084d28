/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sample.cu - a cluster of CTAs holds a row in its shared memory and draws a token from it
 *
 * The logits are read from memory once; each CTA keeps a contiguous part of the row. All sums are sums of
 * integers (sample_select.h), so the token depends only on the row, not on the cluster size or the order of
 * atomics.
 *
 *   load      the part into shared memory; the largest logit of each group of 8 threads
 *   exchange  finds the largest logit of the row and, for top_k, a bound: every CTA posts the q-th largest of
 *             its 64 group maxima, which at least q of its tokens reach. The m-th largest of the posted
 *             values, with q m >= top_k, is at most the top_k-th largest logit of the row
 *   gather    tokens that reach the bound, about 100 of 128256 for top_k 50, go to rank 0's list; the other
 *             CTAs exit
 *   finish    rank 0 alone: computes ranks and sums by comparing every token with every other, 8 threads per
 *             token and no barrier inside; for a few hundred tokens this is faster than any sort
 *
 * This takes two exchanges. Without a top_k, or if the bound leaves too many tokens, the general path of
 * sample_narrow.cuh follows: bins over the cluster, first for top_k and then for top_p. If the first bins
 * leave few enough tokens, gather and finish run again. Otherwise bins narrow down to a single key, and the
 * draw is a running sum over the cluster.
 *
 * shared memory   struct shared of sample_narrow.cuh: bins 16 KiB, list and scratch 16 KiB, 4 KiB more; part
 * barriers        cluster: one at the start (before the first remote store), one per exchange, one per pick
 * occupancy       512 threads, 64 registers, 2 CTAs per SM: one loads while the other computes
 *
 * Cluster size: parts have at most PART_MAX elements, so that two fit on an SM. Clusters are larger while SMs
 * are idle, down to parts of PART_MIN. A row too long for 16 resident parts is read again (from L2) in every
 * pass: `resident` is false.
 *
 * Floor: 128256 f32 are 0.5 MB; 256 rows take 29 us at the read stream's speed; one row takes a launch, a
 * memory round trip and two exchanges.
 * Optimisation history: NOTES.md.
 */
#include "primitives/base/launch.h"
#include "primitives/rows/row.cuh"
#include "primitives/draw/sample.h"
#include "primitives/draw/sample_narrow.cuh"

#define PART_MAX	20000
#define PART_MIN	2048
#define TOP_K_MAX	256	/* largest top_k for which a bound is computed */
#define MANY		512	/* maximum number of tokens for finish() if it will drop most of them */
#define FEW		256	/* maximum number of tokens for finish() if it may keep all */
#define SMEM_MAX	(227 * 1024)

/* Reads the part and, if resident, keeps it; returns the largest logit that this thread read. */
template <bool resident> ROW float load(struct state *st, const float *row, int vocab)
{
	const int head = min((int)((16 - ((uintptr_t)row & 15)) % 16 / 4), vocab), vecs = (vocab - head) / 4;
	const int each = (vecs + st->size - 1) / st->size;
	const int from = min(st->rank * each, vecs), to = min(from + each, vecs);
	const float4 *x = (const float4 *)(row + head) + from;
	const int lead = st->rank == 0 ? head : 0;
	const int tail = st->rank == st->size - 1 ? vocab - head - vecs * 4 : 0;
	float *part = st->s->part + (4 - lead) % 4, top = -INFINITY;
	float4 *aligned = (float4 *)(part + lead);

	st->first = st->rank == 0 ? 0 : head + from * 4;
	st->n = lead + (to - from) * 4 + tail;
	st->row = row + st->first;
	st->part = part;
#pragma unroll 8
	for (int v = threadIdx.x; v < to - from; v += THREADS) {
		uint4 raw = ptx_ld_global_nc_no_allocate_v4(x + v);
		float4 f;

		f.x = sample_clean(__uint_as_float(raw.x));
		f.y = sample_clean(__uint_as_float(raw.y));
		f.z = sample_clean(__uint_as_float(raw.z));
		f.w = sample_clean(__uint_as_float(raw.w));
		top = fmaxf(fmaxf(fmaxf(top, f.x), fmaxf(f.y, f.z)), f.w);
		if (resident)
			aligned[v] = f;
	}
	if ((int)threadIdx.x < lead + tail) {
		int i = (int)threadIdx.x < lead ? threadIdx.x : st->n - tail + threadIdx.x - lead;
		float f = sample_clean(st->row[i]);

		top = fmaxf(top, f);
		if (resident)
			part[i] = f;
	}
	return top;
}

/* q: a CTA posts the q-th largest of its group maxima. 0: top_k is too large for a bound. */
ROW uint32_t quota(uint32_t top_k, uint32_t size)
{
	uint32_t q = (2 * top_k + size - 1) / size;	/* half of the CTAs suffice: parts may be uneven */

	if (size == 1 || q > OCTETS)
		q = (top_k + size - 1) / size;
	return top_k > TOP_K_MAX || q > OCTETS ? 0 : q;
}

/*
 * First exchange: returns the largest key of the row and sets *bound to a key that at least top_k tokens
 * reach (0: none known). top: the largest logit that this thread has read. On return, s->params is visible to
 * all threads.
 */
ROW uint32_t bound_of(const struct state *st, float top, uint32_t *bound)
{
	struct shared *s = st->s;
	const int t = threadIdx.x, lane = t % 32;
	uint32_t key = sample_key(top), above = 0, reach = 0, q, theirs;
	int enough;
	uint4 posted;

#pragma unroll
	for (int step = 4; step > 0; step /= 2)
		key = max(key, __shfl_xor_sync(ALL_LANES, key, step));
	if (t % 8 == 0)
		s->tops[t / 8] = key;
	__syncthreads();
	/* 8 threads per maximum count how many maxima exceed it and how many reach it */
#pragma unroll
	for (int i = t % 8; i < OCTETS; i += 8) {
		above += s->tops[i] > key;
		reach += s->tops[i] >= key;
	}
#pragma unroll
	for (int step = 4; step > 0; step /= 2) {
		above += __shfl_xor_sync(ALL_LANES, above, step);
		reach += __shfl_xor_sync(ALL_LANES, reach, step);
	}
	q = quota(!(param_float(s, 0) > 0) ? 1 : max((int32_t)s->params[1], 0), st->size);
	if (above == 0)
		s->count = key;
	if (above < q && q <= reach)
		s->bound = key;
	ptx_barrier_cluster_wait_acquire();	/* the peers have started: their memory may be written */
	__syncthreads();
	exchange_post(st, 0, make_uint4(s->count, q ? s->bound : 0, 0, 0));
	if (t == THREADS - 1) {		/* overlaps with the exchange */
		s->uniform = cairn_philox_uniform(s->params[4], s->params[5]);
		s->rule.slope = sample_slope(param_float(s, 0));
	}
	__syncthreads();
	exchange_wait(st);
	posted = s->box[0][lane % MAX_CLUSTER];
	theirs = lane < st->size ? posted.y : 0;
	above = 0;
	for (int r = 0; r < st->size; r++)
		above += __shfl_sync(ALL_LANES, theirs, r) >= theirs;
	/* the largest posted value that enough CTAs reach */
	enough = above * q >= (uint32_t)(!(param_float(s, 0) > 0) ? 1 : s->params[1]);
	*bound = __reduce_max_sync(ALL_LANES, q && lane < st->size && enough ? theirs : 0);
	return __reduce_max_sync(ALL_LANES, lane < st->size ? posted.x : 0);
}

/* Returns the sum of v over the 8 threads that share a token. */
ROW uint64_t octet_sum(uint64_t v)
{
	v += __shfl_xor_sync(ALL_LANES, v, 4);
	v += __shfl_xor_sync(ALL_LANES, v, 2);
	return v + __shfl_xor_sync(ALL_LANES, v, 1);
}

/*
 * Rank 0 only: draws from the n listed tokens, which include every token that can be kept. Keeps the top_k
 * most probable ones, then their shortest prefix whose weight reaches s->target (0: top_p of their weight),
 * then the tokens that pass min_p. Each token is compared with all others three times: by key, to drop tokens
 * outside the top k; then to find its rank and the weight ahead of it; finally, among the kept tokens, to
 * find the weight before it in index order. Returns the token in one thread, and -1 in all other threads.
 */
ROW int32_t finish(const struct state *st, int n, uint32_t top_k, float top_p)
{
	struct shared *s = st->s;
	uint64_t target = s->target;
	const int t = threadIdx.x, lane = t % 32, each = THREADS / st->size, rank = t / each, part = t % 8;
	const uint64_t *window = s->list + rank * (LIST / st->size);
	uint64_t *flat = (uint64_t *)s->low;			/* [MANY] */
	uint64_t *token = flat + MANY, *weight = (uint64_t *)s->high;	/* [MANY] each */
	uint32_t *keys = (uint32_t *)(weight + MANY);		/* [MANY] */
	uint32_t place = lane < st->size ? s->box[1][lane].x : 0, mine;
	int32_t found = -1;
	int m;

	/* concatenate the windows of all CTAs into one list */
	mine = __shfl_sync(ALL_LANES, place, rank);
	place = (uint32_t)warp_scan(place);
	place = __shfl_sync(ALL_LANES, place, rank) - mine;
	for (int i = t % each; i < mine; i += each) {
		flat[place + i] = window[i];
		keys[place + i] = (uint32_t)(window[i] >> 32);
	}
	if (t == 0)
		s->count = s->last = 0;
	__syncthreads();
	for (int i = t / 8; i - t / 8 < n; i += OCTETS) {
		uint32_t key = i < n ? keys[i] : UINT32_MAX, ahead = 0;

#pragma unroll 4
		for (int j = part; j < n; j += 8)
			ahead += keys[j] > key;
		ahead += __shfl_xor_sync(ALL_LANES, ahead, 4);
		ahead += __shfl_xor_sync(ALL_LANES, ahead, 2);
		ahead += __shfl_xor_sync(ALL_LANES, ahead, 1);
		if (i < n && part == 0 && ahead < top_k) {
			float depth = sample_depth(s->rule.max, sample_unkey(key), s->rule.slope);
			uint32_t at = atomicAdd(&s->count, 1u);

			token[at] = flat[i];
			weight[at] = depth < SAMPLE_DEAD ? fixed(exponential(depth)) : 0;
		}
	}
	__syncthreads();
	m = s->count;
	if (top_k > m)
		top_k = m;
	for (int pass = 0; pass < 2; pass++) {
		for (int i = t / 8; i - t / 8 < m; i += OCTETS) {
			uint64_t me = i < m ? token[i] : UINT64_MAX, own = i < m ? weight[i] : 0, sum = 0;
			uint32_t ahead = 0;

			for (int j = part; j < m; j += 8) {
				bool before = pass ? (uint32_t)token[j] > (uint32_t)me : token[j] > me;

				ahead += before;
				sum += before ? weight[j] : 0;
			}
			sum = octet_sum(sum);
			if (pass) {
				if (own && part == 0 && sum <= s->total && s->total < sum + own)
					found = (int32_t)~(uint32_t)me;
				continue;
			}
			ahead += __shfl_xor_sync(ALL_LANES, ahead, 4);
			ahead += __shfl_xor_sync(ALL_LANES, ahead, 2);
			ahead += __shfl_xor_sync(ALL_LANES, ahead, 1);
			if (i < m && part == 0) {
				flat[i] = sum;
				keys[i] = ahead;
				if (ahead == top_k - 1)
					s->total = sum + own;
			}
		}
		if (pass)
			break;
		__syncthreads();
		if (!target)
			target = top_p < 1 ? sample_target(top_p, s->total) : s->total;
		/* the kept tokens are a prefix by rank; the thread of the last one computes the new total */
		for (int i = t; i < m; i += THREADS) {
			float depth = sample_depth(s->rule.max, sample_unkey((uint32_t)(token[i] >> 32)),
						   s->rule.slope);

			if (keys[i] < top_k && flat[i] < target && weight[i] && likely(&s->rule, depth))
				atomicMax(&s->last, keys[i]);
			else
				keys[i] = UINT32_MAX;
		}
		__syncthreads();
		for (int i = t; i < m; i += THREADS) {
			if (keys[i] == s->last)
				s->total = sample_mulhi(flat[i] + weight[i], s->uniform);
			if (keys[i] == UINT32_MAX)
				weight[i] = 0;
		}
		__syncthreads();
	}
	return found;
}

/*
 * The general path: top_k, top_p and the draw are iterations of one loop, which keeps the code small. As soon
 * as few enough tokens are left, lists them in rank 0 and returns their number; *top_k and s->target then
 * describe the work that remains for finish(). Otherwise writes the token to *out and returns 0.
 */
template <bool resident>
ROW int general(const struct state *st, uint32_t *top_k, float top_p, int32_t *out)
{
	struct shared *s = st->s;
	bool summed = false;

#pragma unroll 1
	for (int step = *top_k ? 0 : 1; step < 3; step++) {
		struct cut cut = { 0, 0, 0, -1 };
		int32_t index = INT32_MAX;

		if (step == 1 && !(top_p < 1))
			continue;
		if (step < 2) {
			narrow<resident>(st, step ? 0 : *top_k, top_p, FEW, &cut);
			if (cut.listed && step)
				*top_k = UINT32_MAX;
			if (cut.listed)
				return cut.listed;
			if (!cut.key)
				continue;
			summed = cut.collected >= 0 && !cut.equals;
			if (summed)
				add_listed(st, cut.collected, cut.key);
		}
		if (step == 2 || cut.equals)
			index = locate<resident>(st, cut.key, step == 2 ? s->uniform : cut.equals - 1,
						 step == 2, step == 2 && summed);
		else if (cut.key == s->rule.key)
			index = s->rule.last;
		__syncthreads();
		if (threadIdx.x == 0 && step < 2) {
			s->rule.key = cut.key;
			s->rule.last = index;
		} else if (threadIdx.x == 0 && index >= 0) {
			*out = index;
		}
		__syncthreads();
	}
	return 0;
}

template <bool resident>
__global__ void __launch_bounds__(THREADS, resident ? 2 : 1)
sample_kernel(const __grid_constant__ struct cairn_sample_args a)
{
	extern __shared__ uint4 dynamic[];
	const int row = ptx_clusterid_x();
	struct shared *s = (struct shared *)dynamic;
	struct state st = { .s = s };
	uint64_t param = 0;
	uint32_t top, bound, top_k;
	struct rule rule;
	int32_t index;
	int n = 0;
	float best, top_p;

	st.rank = ptx_cluster_ctarank();
	st.size = ptx_cluster_nctarank();
	ptx_barrier_cluster_arrive_relaxed();
	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	/*
	 * one thread loads each parameter, so that these loads are in flight together with those of the
	 * logits
	 */
	if (threadIdx.x < 4)
		param = ((const uint32_t *)(threadIdx.x == 0 ? (const void *)a.temperature :
					    threadIdx.x == 1 ? (const void *)a.top_k :
					    threadIdx.x == 2 ? (const void *)a.top_p :
							       (const void *)a.min_p))[row];
	else if (threadIdx.x < 6)
		param = (threadIdx.x == 4 ? a.seed : a.offset)[row];
	best = load<resident>(&st, a.logits + (int64_t)row * a.vocab, a.vocab);
	if (threadIdx.x < 6)
		s->params[threadIdx.x] = param;
	top = bound_of(&st, best, &bound);
	rule.max = sample_unkey(top);
	rule.slope = s->rule.slope;
	rule.min_p = param_float(s, 3);
	rule.key = rule.last = 0;
	if (rule.max == -INFINITY) {
		if (st.rank == 0 && threadIdx.x == 0)
			a.out[row] = -1;
		return;
	}
	top_k = (int32_t)s->params[1] > 0 && (int32_t)s->params[1] < a.vocab ? s->params[1] : 0;
	top_p = param_float(s, 2);
	if (!(param_float(s, 0) > 0)) {
		top_k = 1;
		top_p = 1;
	}
	if (threadIdx.x == 0) {
		s->rule = rule;
		s->target = 0;
	}
	if (top_k && bound)
		n = gather<resident>(&st, &rule, sample_unkey(bound), SAMPLE_BINS, MANY);
	else
		__syncthreads();
	if (!n)
		n = general<resident>(&st, &top_k, top_p, a.out + row);
	if (!n || st.rank)
		return;
	index = finish(&st, n, top_k, top_p);
	if (index >= 0)
		a.out[row] = index;
}

static size_t smem_bytes(int32_t vocab, int size, bool resident)
{
	return sizeof(struct shared) + (resident ? ((size_t)vocab / 4 / size + 4) * 16 : 0);
}

static int cluster_size(const struct cairn_sample_args *a, int sms)
{
	int size = 1;

	while (size < MAX_CLUSTER && (a->vocab / size > PART_MAX ||
				      (a->vocab / size > PART_MIN && 2ll * a->rows * size <= sms)))
		size *= 2;
	return size;
}

extern "C" int cairn_sample(const struct cairn_sample_args *a, void *stream)
{
	struct cairn_launch l = { .block = { THREADS }, .pdl = 1, .stream = stream };
	int sms = cairn_num_sms();
	void *params[] = { (void *)a };
	const void *kernel;
	bool resident;

	CAIRN_TRY(cairn_sample_check(a));
	if (a->rows == 0)
		return 0;
	if (sms < 0)
		return sms;
	if (a->rows > INT32_MAX / MAX_CLUSTER)
		return cairn_error(EOPNOTSUPP, "sample: rows: %d are too many", a->rows);
	l.cluster = cluster_size(a, sms);
	for (;;) {
		resident = smem_bytes(a->vocab, l.cluster, true) <= SMEM_MAX;
		l.smem = smem_bytes(a->vocab, l.cluster, resident);
		l.grid[0] = a->rows * l.cluster;
		kernel = resident ? (const void *)sample_kernel<true> : (const void *)sample_kernel<false>;
		/* every device with clusters supports size 8; size 16 may be refused */
		if (l.cluster <= 8 || cairn_max_active_clusters(kernel, &l) > 0)
			break;
		l.cluster = 8;
	}
	return cairn_launch(kernel, &l, params);
}

extern "C" int cairn_sample_workspace(const struct cairn_sample_args *a, size_t *bytes)
{
	CAIRN_TRY(cairn_sample_check_shape(a));
	if (!bytes)
		return cairn_error(EINVAL, "sample_workspace: bytes: must not be null");
	*bytes = 0;
	return 0;
}
