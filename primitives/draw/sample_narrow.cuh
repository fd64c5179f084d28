/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sample_narrow - the general path of sample.cu, for any row: bins over a cluster, and running sums
 *
 *   weigh    adds every token to a bin by integer atomics: any order gives the same sums
 *   pick     finds the bin in which the sum over all CTAs' bins crosses the target: each CTA reads its peers'
 *            sums of 16 bins, then the 16 bins in question, and computes the same answer
 *   narrow   weighs by depth and picks; then by key inside that bin, until one key is left
 *   collect  for top_p, between the two: lists the tokens of that bin, of which each CTA has a few dozen, and
 *            sums those before it, which are kept. Nothing after it passes over all tokens, and rank 0 alone
 *            narrows the list to a key
 *   locate   finds the token at which a running sum by index crosses a mark
 *
 * A pick has one cluster barrier. Its bins may be cleared only after the next cluster barrier, when all CTAs
 * have read them.
 */
#ifndef CAIRN_SAMPLE_NARROW_CUH
#define CAIRN_SAMPLE_NARROW_CUH

#include "primitives/rows/row.cuh"
#include "primitives/draw/sample_select.h"

#define THREADS		512
#define WARPS		(THREADS / 32)
#define OCTETS		(THREADS / 8)	/* groups of 8 threads */
#define MAX_CLUSTER	16
#define LIST		1024
#define COARSE		(SAMPLE_BINS / 16)
#define ALL_LANES	0xffffffffu

/* The tokens kept so far: keys above `key`, and keys equal to it up to index `last`, unless they are dead. */
struct rule {
	float max, slope, min_p;
	uint32_t key;
	int32_t last;
};

struct shared {
	uint32_t low[SAMPLE_BINS], high[SAMPLE_BINS];	/* 64-bit sums in halves, to use all banks */
	/*
	 * key << 32 | ~index. Rank 0 has a window per CTA. collect() also keeps each CTA's tokens at the
	 * start of its own list
	 */
	uint64_t list[LIST];
	uint4 scratch[THREADS];		/* for pick_bin(), which cannot use list[]: peers may be filling it */
	uint64_t coarse[COARSE];	/* sums of 16 bins each, of this CTA */
	uint64_t all_coarse[COARSE];	/* sums of 16 bins each, of all CTAs */
	/* values posted by each CTA; [1]: of gather(), locate(); [2]: what rank 0 has found in the list */
	uint4 box[3][MAX_CLUSTER];
	uint64_t sums[WARPS];
	uint64_t segments[WARPS];	/* collect(): weights of kept tokens, by the warps of locate() */
	uint64_t found_above, found_in;	/* results of pick_bin(): sum of the bins before, sum in it */
	uint64_t uniform, total;
	uint64_t target;		/* of finish(): what the kept tokens must weigh; 0: top_p of all */
	uint64_t params[6];		/* temperature, top_k, top_p, min_p (low words), seed, offset */
	uint32_t tops[OCTETS];
	struct rule rule;
	uint32_t found_bin, count, bound, last;
	int32_t found_index;
	__align__(16) float part[];	/* this CTA's part begins up to 3 elements in: state.part */
};

/* Equal in all threads of the CTA. */
struct state {
	struct shared *s;
	const float *row;		/* this part in global memory */
	const float *part;		/* this part in shared memory, if resident */
	int32_t first, n;		/* index in the row of this part's first element, and its length */
	int rank, size;
};

ROW void cluster_sync(const struct state *st)
{
	if (st->size > 1) {
		ptx_barrier_cluster_arrive_release();
		ptx_barrier_cluster_wait_acquire();
	} else {
		__syncthreads();
	}
}

/*
 * Every CTA posts v, which threads 0 .. size - 1 must hold, to all CTAs. After exchange_wait(), box[which]
 * has the values of all CTAs. Between two exchanges through the same box there must be another cluster
 * barrier.
 */
ROW void exchange_post(const struct state *st, int which, uint4 v)
{
	if ((int)threadIdx.x < st->size)
		ptx_st_shared_cluster_v4(ptx_mapa(ptx_smem(&st->s->box[which][st->rank]), threadIdx.x), v);
	if (st->size > 1)
		ptx_barrier_cluster_arrive_release();
}

ROW void exchange_wait(const struct state *st)
{
	if (st->size > 1)
		ptx_barrier_cluster_wait_acquire();
	else
		__syncthreads();
}

ROW float param_float(const struct shared *s, int i)
{
	return __uint_as_float((uint32_t)s->params[i]);
}

ROW uint64_t word(uint32_t lo, uint32_t hi)
{
	return (uint64_t)hi << 32 | lo;
}

ROW uint64_t warp_sum(uint64_t v)
{
#pragma unroll
	for (int step = 16; step > 0; step /= 2)
		v += __shfl_xor_sync(ALL_LANES, v, step);
	return v;
}

/* Returns the sum of v over the lanes up to this one. */
ROW uint64_t warp_scan(uint64_t v)
{
#pragma unroll
	for (int step = 1; step < 32; step *= 2) {
		uint64_t other = __shfl_up_sync(ALL_LANES, v, step);

		v += (int)threadIdx.x % 32 >= step ? other : 0;
	}
	return v;
}

/* Returns the i-th logit of this part. */
template <bool resident> ROW float token(const struct state *st, int i)
{
	return resident ? st->part[i] : sample_clean(st->row[i]);
}

/* Returns the depth of a token if it is alive and kept, else infinity. */
ROW float depth_of(const struct rule *rule, float clean, int32_t index)
{
	float depth = sample_depth(rule->max, clean, rule->slope);

	if (rule->key) {
		uint32_t key = sample_key(clean);

		if (key < rule->key || (key == rule->key && index > rule->last))
			return INFINITY;
	}
	return depth < SAMPLE_DEAD ? depth : INFINITY;
}

ROW float exponential(float depth)
{
	return ptx_ex2_approx_ftz(-depth);
}

ROW uint64_t fixed(float e)
{
	return __float2ull_rz(e * SAMPLE_ONE + 0.5f);
}

/* Returns the weight of a token that is not dead. */
ROW uint64_t weight_of(const struct rule *rule, float clean)
{
	return fixed(exponential(sample_depth(rule->max, clean, rule->slope)));
}

/* Step 5 of sample.h; the most probable token always passes. */
ROW bool likely(const struct rule *rule, float depth)
{
	return depth == 0 || exponential(depth) >= rule->min_p;
}

/*
 * Shared memory has only 32-bit atomics in hardware, so the thread whose addition wraps the low word adds the
 * carry.
 */
ROW void add_to_bin(struct shared *s, uint32_t bin, uint64_t w)
{
	uint32_t lo = (uint32_t)w, hi = (uint32_t)(w >> 32);

	hi += atomicAdd(&s->low[bin], lo) > ~lo;
	if (hi)
		atomicAdd(&s->high[bin], hi);
}

ROW void empty_bins(const struct state *st)
{
	for (int b = threadIdx.x; b < SAMPLE_BINS; b += THREADS)
		st->s->low[b] = st->s->high[b] = 0;
	__syncthreads();
}

struct pick {
	uint64_t above, in;
	uint32_t bin;
};

/* For one warp: returns the lane at which *above plus the running sum of v reaches target, and sets *above to
 * the sum before that lane. */
ROW int crossing(uint64_t v, uint64_t target, uint64_t *above)
{
	uint64_t run = *above + warp_scan(v);
	int lane = __ffs(__ballot_sync(ALL_LANES, run >= target)) - 1;

	*above = __shfl_sync(ALL_LANES, run - v, lane & 31);
	return lane;
}

/*
 * Finds the bin in which the running sum of all CTAs' bins reaches *target (0: *target becomes top_p of the
 * total). Returns false if everything is needed to reach the target. Contains a cluster barrier; peers read
 * this CTA's bins and sums until the next one.
 */
ROW bool pick_bin(const struct state *st, uint64_t *target, float top_p, struct pick *p)
{
	struct shared *s = st->s;
	const int t = threadIdx.x, lane = t % 32;
	uint4 *scratch = s->scratch;	/* [8][COARSE / 2], then 16 words of each rank, low and high */
	uint64_t a = 0, b = 0, above = 0, all;
	uint32_t c;
	int hit, k;

	__syncthreads();
	/* this CTA's sums of 16 bins: four threads per sum, four bins each */
	for (int i = t; i < SAMPLE_BINS / 4; i += THREADS) {
		const uint4 lo = ((const uint4 *)s->low)[i], hi = ((const uint4 *)s->high)[i];

		a = word(lo.x, hi.x) + word(lo.y, hi.y) + word(lo.z, hi.z) + word(lo.w, hi.w);
		a += __shfl_xor_sync(ALL_LANES, a, 1);
		a += __shfl_xor_sync(ALL_LANES, a, 2);
		if (i % 4 == 0)
			s->coarse[i / 4] = a;
	}
	cluster_sync(st);
	/* sums of all CTAs: a thread adds a pair of sums over ranks r and r + 8 */
	a = 0;
	for (int r = t / (COARSE / 2); r < st->size; r += 8) {
		uint4 two = ptx_ld_shared_cluster_v4(ptx_mapa(ptx_smem(&s->coarse[t % (COARSE / 2) * 2]), r));

		a += word(two.x, two.y);
		b += word(two.z, two.w);
	}
	scratch[t] = make_uint4((uint32_t)a, (uint32_t)(a >> 32), (uint32_t)b, (uint32_t)(b >> 32));
	__syncthreads();
	if (t < COARSE) {
		const uint64_t *each = (const uint64_t *)scratch + t;

		a = 0;
		for (int r = 0; r < 8; r++)
			a += each[r * COARSE];
		s->all_coarse[t] = a;
	}
	__syncthreads();
	/* redundantly in every warp, four of the 128 sums per lane */
	a = b = 0;
	for (int i = 0; i < 4; i++)
		a += s->all_coarse[4 * lane + i];
	all = warp_sum(a);
	if (!*target)
		*target = sample_target(top_p, all);
	if (*target >= all && top_p > 0) {	/* possible in the first pick only */
		cluster_sync(st);
		return false;
	}
	hit = crossing(a, *target, &above);
	for (k = 0; k < 3; k++) {
		b = s->all_coarse[4 * hit + k];
		if (above + b >= *target)
			break;
		above += b;
	}
	c = 4 * hit + k;
	/* the 16 bins of sum c, of all CTAs; warp 0 adds them up */
	if (t < 8 * st->size) {
		const uint32_t *from = (t & 4 ? s->high : s->low) + 16 * c + t % 4 * 4;

		scratch[t] = ptx_ld_shared_cluster_v4(ptx_mapa(ptx_smem(from), t / 8));
	}
	__syncthreads();
	if (t < 32) {
		const uint32_t *words = (const uint32_t *)scratch + lane % 16;

		a = 0;
#pragma unroll 4
		for (int r = 0; r < st->size; r++)
			a += word(words[r * 32], words[r * 32 + 16]);
		if (lane >= 16)
			a = 0;
		hit = crossing(a, *target, &above);
		if (lane == hit) {
			s->found_above = above;
			s->found_in = a;
			s->found_bin = 16 * c + hit;
		}
	}
	__syncthreads();
	p->above = s->found_above;
	p->in = s->found_in;
	p->bin = s->found_bin;
	return true;
}

/*
 * Second exchange: sends tokens to rank 0's list. If bin is SAMPLE_BINS, these are the tokens that reach
 * `least`, else those in the bins up to `bin`. Returns their number, or 0 if there are more than `limit`, or
 * more in one CTA than its window of the list holds.
 */
template <bool resident>
ROW int gather(const struct state *st, const struct rule *of, float least, uint32_t bin, int limit)
{
	struct shared *s = st->s;
	const struct rule rule = *of;
	const int window = LIST / st->size, lane = threadIdx.x % 32;
	const uint32_t list = ptx_mapa(ptx_smem(&s->list[st->rank * window]), 0);
	uint32_t total, most;

	if (threadIdx.x == 0)
		s->count = 0;
	__syncthreads();
	/* a window that overflows ends the pass */
	for (int first = threadIdx.x; first < st->n && *(volatile uint32_t *)&s->count <= window;
	     first += 4 * THREADS) {
#pragma unroll
		for (int k = 0; k < 4; k++) {
			const int i = first + k * THREADS;
			float clean = i < st->n ? token<resident>(st, i) : -INFINITY, depth;
			uint32_t at;

			if (bin < SAMPLE_BINS) {
				depth = depth_of(&rule, clean, st->first + i);
				if (depth == INFINITY || sample_bin(depth) > bin)
					continue;
			} else if (clean < least || clean == -INFINITY) {
				continue;
			}
			at = atomicAdd(&s->count, 1u);
			if (at < window)
				ptx_st_relaxed_cluster_shared_b64(list + 8 * at,
								  word(~(st->first + i), sample_key(clean)));
		}
	}
	__syncthreads();
	exchange_post(st, 1, make_uint4(s->count, 0, 0, 0));
	exchange_wait(st);
	total = lane < st->size ? s->box[1][lane].x : 0;
	most = __reduce_max_sync(ALL_LANES, total);
	total = __reduce_add_sync(ALL_LANES, total);
	return total <= limit && most <= window ? total : 0;
}

/*
 * Sets the smallest and the largest key over the cluster; returns the largest count. Contains a cluster
 * barrier.
 */
ROW uint32_t agree_on_keys(const struct state *st, uint32_t least, uint32_t most, uint32_t count,
			   uint32_t *lo, uint32_t *hi)
{
	struct shared *s = st->s;
	const int lane = threadIdx.x % 32;
	uint4 posted;

	least = __reduce_min_sync(ALL_LANES, least);
	most = __reduce_max_sync(ALL_LANES, most);
	if (lane == 0)
		s->sums[threadIdx.x / 32] = word(least, most);
	__syncthreads();
	least = __reduce_min_sync(ALL_LANES, lane < WARPS ? (uint32_t)s->sums[lane] : UINT32_MAX);
	most = __reduce_max_sync(ALL_LANES, lane < WARPS ? (uint32_t)(s->sums[lane] >> 32) : 0);
	exchange_post(st, 0, make_uint4(least, most, count, 0));
	exchange_wait(st);
	posted = lane < st->size ? s->box[0][lane] : make_uint4(UINT32_MAX, 0, 0, 0);
	*lo = __reduce_min_sync(ALL_LANES, posted.x);
	*hi = __reduce_max_sync(ALL_LANES, posted.y);
	return __reduce_max_sync(ALL_LANES, posted.z);
}

/* Finds the smallest and the largest key in a bin of depth. Contains a cluster barrier. */
template <bool resident> ROW void extent(const struct state *st, uint32_t bin, uint32_t *lo, uint32_t *hi)
{
	const struct rule rule = st->s->rule;
	uint32_t least = UINT32_MAX, most = 0;

	for (int i = threadIdx.x; i < st->n; i += THREADS) {
		float clean = token<resident>(st, i), depth = depth_of(&rule, clean, st->first + i);

		if (depth < SAMPLE_DEAD && sample_bin(depth) == bin) {
			least = min(least, sample_key(clean));
			most = max(most, sample_key(clean));
		}
	}
	agree_on_keys(st, least, most, 0, lo, hi);
}

/* Tokens of a warp in locate(): a contiguous segment, so that order by warp and lane is index order. */
ROW int segment_of(const struct state *st)
{
	return (st->n + THREADS - 1) / THREADS * 32;
}

/*
 * Lists this CTA's tokens in a bin of depth, here and in rank 0, and sums what the tokens before it weigh in
 * the draw. Also sets the smallest and the largest key in the bin. Returns the number of tokens listed, or -1
 * if a CTA has more than its window holds. Contains a cluster barrier, after which box[0] has all CTAs'
 * numbers.
 */
template <bool resident> ROW int collect(const struct state *st, uint32_t bin, uint32_t *lo, uint32_t *hi)
{
	struct shared *s = st->s;
	const struct rule rule = s->rule;
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, each = segment_of(st);
	const int from = min(warp * each, st->n), to = min(from + each, st->n), window = LIST / st->size;
	const uint32_t list = ptx_mapa(ptx_smem(&s->list[st->rank * window]), 0);
	uint32_t least = UINT32_MAX, most = 0, count;
	uint64_t sum = 0;

	if (threadIdx.x == 0)
		s->count = 0;
	__syncthreads();
#pragma unroll 1
	for (int i = from + lane; i < to; i += 32) {
		float clean = token<resident>(st, i), depth = depth_of(&rule, clean, st->first + i);
		uint32_t at;

		if (depth == INFINITY || sample_bin(depth) > bin)
			continue;
		if (sample_bin(depth) < bin) {
			sum += likely(&rule, depth) ? fixed(exponential(depth)) : 0;
			continue;
		}
		least = min(least, sample_key(clean));
		most = max(most, sample_key(clean));
		at = atomicAdd(&s->count, 1u);
		if (at < window) {
			s->list[at] = word(~(st->first + i), sample_key(clean));
			if (st->rank)
				ptx_st_relaxed_cluster_shared_b64(list + 8 * at, s->list[at]);
		}
	}
	sum = warp_sum(sum);
	if (lane == 0)
		s->segments[warp] = sum;
	__syncthreads();
	count = s->count;
	return agree_on_keys(st, least, most, count, lo, hi) <= window ? (int)count : -1;
}

/* Adds the listed tokens that are kept, those of `key` and above, to the sums of their segments. */
ROW void add_listed(const struct state *st, int listed, uint32_t key)
{
	struct shared *s = st->s;
	const struct rule rule = s->rule;
	const int each = segment_of(st);

	for (int i = threadIdx.x; i < listed; i += THREADS) {
		const uint32_t own = (uint32_t)(s->list[i] >> 32);
		const int at = (int)~(uint32_t)s->list[i] - st->first;
		const float depth = sample_depth(rule.max, sample_unkey(own), rule.slope);

		if (own >= key && likely(&rule, depth))
			atomicAdd((unsigned long long *)&s->segments[at / each],
				  (unsigned long long)fixed(exponential(depth)));
	}
}

/* Result of narrow() */
struct cut {
	int listed;		/* number of tokens in rank 0's list; 0: no list */
	uint32_t key;		/* without a list: smallest key that is kept; 0: all tokens are kept */
	uint64_t equals;	/* number of kept tokens with this key; 0: all of them */
	int collected;		/* tokens in this CTA's list; -1: they were not collected */
};

/* Adds all tokens to the bins of their depths: 1 each, or by_weight their weights. */
template <bool resident> ROW void weigh_depths(const struct state *st, bool by_weight)
{
	struct shared *s = st->s;
	const struct rule rule = s->rule;

#pragma unroll 2
	for (int i = threadIdx.x; i < st->n; i += THREADS) {
		float depth = depth_of(&rule, token<resident>(st, i), st->first + i);

		if (depth == INFINITY)
			continue;
		if (by_weight)
			add_to_bin(s, sample_bin(depth), fixed(exponential(depth)));
		else
			atomicAdd(&s->low[sample_bin(depth)], 1u);
	}
}

/* Adds all tokens with a key from lo to hi to bins of keys. */
template <bool resident>
ROW void weigh_keys(const struct state *st, uint32_t lo, uint32_t hi, int shift, bool by_weight)
{
	struct shared *s = st->s;
	const struct rule rule = s->rule;

#pragma unroll 2
	for (int i = threadIdx.x; i < st->n; i += THREADS) {
		const float clean = token<resident>(st, i), depth = depth_of(&rule, clean, st->first + i);
		const uint32_t key = sample_key(clean);

		if (depth == INFINITY || key < lo || key > hi)
			continue;
		if (by_weight)
			add_to_bin(s, (hi - key) >> shift, fixed(exponential(depth)));
		else
			atomicAdd(&s->low[(hi - key) >> shift], 1u);
	}
}

/* The same by weight for the tokens that collect() has listed. Rank 0 calls this. */
ROW void weigh_listed(const struct state *st, uint32_t lo, uint32_t hi, int shift)
{
	struct shared *s = st->s;
	const int window = LIST / st->size;

	for (int i = threadIdx.x; i < LIST; i += THREADS) {
		const uint32_t key = (uint32_t)(s->list[i] >> 32);

		if (i % window < s->box[0][i / window].z && key >= lo && key <= hi)
			add_to_bin(s, (hi - key) >> shift, weight_of(&s->rule, sample_unkey(key)));
	}
}

/*
 * Narrows the kept tokens to top_k tokens or, with top_k 0, to top_p of the weight. Starts with bins of
 * depth. If at most `few` tokens are then left, lists them; else continues with bins of keys inside that bin
 * of depth, until one key is left.
 */
template <bool resident>
ROW void narrow(const struct state *st, uint32_t top_k, float top_p, int few, struct cut *cut)
{
	struct shared *s = st->s;
	uint64_t left = top_k, unit;
	uint32_t lo = 0, hi = 0;
	struct state at = *st;
	struct pick p;

	cut->key = 0;
	cut->equals = 0;
	cut->listed = 0;
	cut->collected = -1;
	empty_bins(st);
	weigh_depths<resident>(st, !top_k);
	if (!pick_bin(st, &left, top_k ? 1 : top_p, &p))
		return;
	if (threadIdx.x == 0 && !top_k)
		s->target = left;
	cut->listed = gather<resident>(st, &s->rule, 0, p.bin, few);
	if (cut->listed)
		return;
	if (!top_k)
		cut->collected = collect<resident>(st, p.bin, &lo, &hi);
	else
		extent<resident>(st, p.bin, &lo, &hi);
	left -= p.above;
	if (cut->collected >= 0)
		at.size = 1;		/* rank 0 goes on alone */
#pragma unroll 1
	while (lo < hi && (st->size == at.size || !st->rank)) {
		const int shift = sample_shift(lo, hi);

		cluster_sync(&at);	/* all peers have read the bins */
		empty_bins(st);
		if (cut->collected < 0)
			weigh_keys<resident>(st, lo, hi, shift, !top_k);
		else
			weigh_listed(st, lo, hi, shift);
		pick_bin(&at, &left, 0, &p);
		hi -= p.bin << shift;
		lo = max(lo, hi - min(hi, (1u << shift) - 1));
		left -= p.above;
	}
	unit = top_k ? 1 : weight_of(&s->rule, sample_unkey(lo));
	left = (left + unit - 1) / unit;
	cut->equals = left < p.in / unit ? left : 0;
	cut->key = lo;
	if (cut->collected < 0) {
		cluster_sync(st);
		return;
	}
	exchange_post(st, 2, make_uint4(lo, (uint32_t)cut->equals, (uint32_t)(cut->equals >> 32), 0));
	exchange_wait(st);
	cut->key = s->box[2][0].x;
	cut->equals = word(s->box[2][0].y, s->box[2][0].z);
}

/* Returns what token i adds in locate(): with key 0 its weight in the draw, else 1 if its key is `key`. */
template <bool resident>
ROW uint64_t share_of(const struct state *st, const struct rule *rule, int i, int to, uint32_t key)
{
	float clean = i < to ? token<resident>(st, i) : -INFINITY;
	float depth = depth_of(rule, clean, st->first + i);

	if (depth == INFINITY)
		return 0;
	return key ? sample_key(clean) == key : likely(rule, depth) ? fixed(exponential(depth)) : 0;
}

/*
 * Returns the index of the token at which the running sum of share_of() exceeds mark. draw: mark is a
 * fraction of the total, in units of 2^-64; only the CTA that holds the token gets the index, the others get
 * -1. Without draw all CTAs get the index. summed: the sums of segments are known.
 */
template <bool resident>
ROW int32_t locate(const struct state *st, uint32_t key, uint64_t mark, bool draw, bool summed)
{
	struct shared *s = st->s;
	const struct rule rule = s->rule;
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	const int each = segment_of(st), from = min(warp * each, st->n), to = min(from + each, st->n);
	uint64_t sum = 0, before, run;
	uint4 posted;

#pragma unroll 4
	for (int i = from + lane; i < to && !summed; i += 32)
		sum += share_of<resident>(st, &rule, i, to, key);
	sum = summed ? s->segments[warp] : warp_sum(sum);
	if (lane == 0)
		s->sums[warp] = sum;
	if (threadIdx.x == 0)
		s->found_index = -1;
	__syncthreads();
	run = warp_scan(lane < WARPS ? s->sums[lane] : 0);
	before = __shfl_sync(ALL_LANES, run, warp) - sum;
	run = __shfl_sync(ALL_LANES, run, 31);
	exchange_post(st, 1, make_uint4((uint32_t)run, (uint32_t)(run >> 32), 0, 0));
	exchange_wait(st);
	posted = s->box[1][lane % MAX_CLUSTER];
	run = warp_scan(lane < st->size ? word(posted.x, posted.y) : 0);
	if (draw)
		mark = sample_mulhi(__shfl_sync(ALL_LANES, run, 31), mark);
	if (st->rank)
		before += __shfl_sync(ALL_LANES, run, (st->rank + 31) % 32);
	/*
	 * In the warp with the token, each lane sums 32 consecutive tokens, in a rotated order that is free
	 * of bank conflicts. Then each lane examines one of the 32 tokens among which it is.
	 */
	for (int at = from; at < to && before <= mark && mark < before + sum; at += 1024) {
		int hit;

		run = 0;
#pragma unroll 4
		for (int k = 0; k < 32; k++)
			run += share_of<resident>(st, &rule, at + lane * 32 + ((k + lane) & 31), to, key);
		run = warp_scan(run);
		hit = __ffs(__ballot_sync(ALL_LANES, before + run > mark)) - 1;
		if (hit < 0) {
			run = __shfl_sync(ALL_LANES, run, 31);
			before += run;
			sum -= run;
			continue;
		}
		run = __shfl_sync(ALL_LANES, run, (hit + 31) & 31);
		before += hit ? run : 0;
		at += hit * 32;
		run = warp_scan(share_of<resident>(st, &rule, at + lane, to, key));
		hit = __ffs(__ballot_sync(ALL_LANES, before + run > mark)) - 1;
		if (draw ? lane == st->rank : lane < st->size)
			ptx_st_shared_cluster_b32(ptx_mapa(ptx_smem(&s->found_index), lane),
						  st->first + at + hit);
		break;
	}
	if (draw)
		__syncthreads();
	else
		cluster_sync(st);
	return s->found_index;
}

#endif
