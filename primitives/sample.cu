/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sample.cu - a cluster of CTAs holds a row in its shared memory and draws from it
 *
 * The logits are read from memory once. Each CTA of the cluster keeps a contiguous part of the row; all
 * that follows happens in shared memory and over DSMEM, by the steps of sample_select.h:
 *
 *   load      part into shared memory, cleaned; maximum over the cluster
 *   narrow    for top_k, then for top_p:
 *     weigh   every token into a bin of its depth, by integer atomics (any order gives the same sums)
 *     pick    the bins are reduced over the cluster, each CTA adding up its share of them out of
 *             its peers' memory; a scan finds the bin in which the running sum crosses the target
 *     count   tokens down to that bin, and the least and largest key in it
 *     gather  if they are few, they go to rank 0, in index order, and the other CTAs leave: from here
 *             on "the cluster" is one CTA and "the part" a list, and the code stays the same
 *     weigh, pick   by bins of the key within the bin, until one key is left
 *     locate  the last of its equals that still stays
 *   locate    the token at which the running sum of weights, by index, passes u times the total
 *
 * With top_k 50 the first pick leaves some 60 of 128256 tokens, so all but the first two passes are
 * over a list. Without top_k the passes stay on the parts: exponentials of all tokens, twice.
 *
 * Nothing but integers is summed. The token is a function of the row alone, not of the cluster's size,
 * and needs no workspace.
 *
 * shared memory   struct shared: bins 16 KiB, list 16 KiB, mailbox and partial results 1 KiB; then the part
 * barriers        barrier.cluster (__syncthreads once alone): 1 for the maximum, 3 a pick (bins complete,
 *                 shares published, result published), 1 for the count, 1 to gather or locate
 * mailbox         two turns: a turn is written between one pair of barriers and read after the second; it is
 *                 written again only behind another barrier, which the readers pass when done
 * occupancy       512 threads, 2 CTAs an SM: one loads while the other computes
 *
 * Cluster size: parts of at most PART_MAX elements, so that two fit an SM; larger while SMs are idle, down to
 * PART_MIN. A row too long for 16 parts is read again at every pass (from L2): `resident` is 0.
 *
 * Floor: 128256 f32 are 0.5 MB; 256 rows take 29 us at the read stream's speed, one row a launch, a trip to
 * memory and some twenty barriers.
 */
#include "launch.h"
#include "row.cuh"
#include "sample.h"
#include "sample_select.h"

#define THREADS		512
#define WARPS		(THREADS / 32)
#define LIST		2048
#define MAX_CLUSTER	16
#define PART_MAX	20000
#define PART_MIN	2048
#define SMEM_MAX	(227 * 1024)
#define ALL_LANES	0xffffffffu

/* What stays so far: keys above `key`, and those equal to it up to index `last`; none of them dead. */
struct rule {
	float max, slope, min_p;
	uint32_t key;
	int32_t last;
};

struct shared {
	uint64_t bins[SAMPLE_BINS];		/* first: aligned for 16-byte access from peers */
	uint64_t list[LIST];			/* logit in the high word, index in the low */
	uint4 box[2][MAX_CLUSTER];		/* what each CTA of the cluster said; 1 is locate()'s */
	uint64_t found[2];			/* of pick: sum above the bin, sum in it */
	uint64_t uniform;
	uint64_t params[6];			/* temperature, top_k, top_p, min_p (low words), seed, offset */
	struct rule rule;
	uint32_t found_bin;
	int32_t found_index;			/* of locate */
	uint64_t sums[WARPS];
	uint4 warps[WARPS];			/* what each warp of the CTA counted */
	uint32_t stays[LIST / 32];
	__align__(16) float part[];
};

/* The same in every thread. */
struct state {
	struct shared *s;
	const float *row;		/* of this part, in global memory */
	const float *part;		/* of this part, in shared memory */
	int32_t first, n;		/* place and length of this part */
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
 * Every CTA says v (as threads below `size` know it) and hears the others in the box returned. Contains a
 * barrier; between two exchanges through the same box the callers have another, behind which it has been read.
 */
ROW const uint4 *exchange(const struct state *st, int which, uint4 v)
{
	uint4 *box = st->s->box[which];

	if (threadIdx.x < st->size)
		ptx_st_shared_cluster_v4(ptx_mapa(ptx_smem(&box[st->rank]), threadIdx.x), v);
	cluster_sync(st);
	return box;
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

/* Sum of v over the lanes up to this one. */
ROW uint64_t warp_scan(uint64_t v)
{
#pragma unroll
	for (int step = 1; step < 32; step *= 2) {
		uint64_t other = __shfl_up_sync(ALL_LANES, v, step);

		v += (int)threadIdx.x % 32 >= step ? other : 0;
	}
	return v;
}

/* Sum of v over the threads before this one, and over all. */
ROW uint64_t block_scan(struct shared *s, uint64_t v, uint64_t *total)
{
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	uint64_t sum = warp_scan(v), before = 0;

	__syncthreads();
	if (lane == 31)
		s->sums[warp] = sum;
	__syncthreads();
	*total = 0;
#pragma unroll 4
	for (int w = 0; w < WARPS; w++) {
		before += w < warp ? s->sums[w] : 0;
		*total += s->sums[w];
	}
	return before + sum - v;
}

/* The i-th token of this part. */
template <bool resident> ROW float token(const struct state *st, int i)
{
	return resident ? st->part[i] : sample_clean(st->row[i]);
}

/* Its depth if it is alive and stays, else infinity. */
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
	uint64_t w = __float2ull_rz(e * SAMPLE_ONE + 0.5f);

	return w ? w : 1;
}

ROW uint64_t weight_of(const struct rule *rule, float clean)
{
	return fixed(exponential(sample_depth(rule->max, clean, rule->slope)));
}

/* Step 5 of sample.h; the most probable token always passes. */
ROW bool likely(const struct rule *rule, float depth)
{
	return depth == 0 || exponential(depth) >= rule->min_p;
}

ROW float list_logit(const struct shared *s, int i)
{
	return __uint_as_float((uint32_t)(s->list[i] >> 32));
}

/* 64-bit sum by 32-bit atomics, which shared memory has in hardware: whoever wraps the low word carries. */
ROW void add_to_bin(uint64_t *bin, uint64_t w)
{
	uint32_t *half = (uint32_t *)bin, lo = (uint32_t)w, hi = (uint32_t)(w >> 32);

	hi += atomicAdd(half, lo) > ~lo;
	if (hi)
		atomicAdd(half + 1, hi);
}

struct pick {
	uint64_t above, in;
	uint32_t bin;
};

/*
 * The bin in which the running sum of all CTAs' bins reaches the target (0: top_p of the total, returned in
 * *target). False: the total does not go beyond the target. Leaves the bins empty.
 */
ROW bool pick_bin(const struct state *st, uint64_t *target, float top_p, struct pick *p)
{
	struct shared *s = st->s;
	const int share = SAMPLE_BINS / st->size;		/* bins that this CTA adds up */
	const int each = share > 2 * THREADS ? 4 : 2, mine = st->rank * share + threadIdx.x * each;
	const bool busy = (int)threadIdx.x * each < share;
	uint64_t v[4] = { 0, 0, 0, 0 }, own, before, total, all = 0;
	const uint4 *box;

	cluster_sync(st);
	if (busy) {
		uint32_t addr = ptx_smem(&s->bins[mine]);

#pragma unroll 8
		for (int r = 0; r < st->size; r++) {
			uint4 two = ptx_ld_shared_cluster_v4(ptx_mapa(addr, r));

			v[0] += word(two.x, two.y);
			v[1] += word(two.z, two.w);
		}
		if (each == 4) {		/* alone: more bins than pairs of threads */
			v[2] = s->bins[mine + 2];
			v[3] = s->bins[mine + 3];
		}
	}
	own = v[0] + v[1] + v[2] + v[3];
	before = block_scan(s, own, &total);
	box = exchange(st, 0, make_uint4((uint32_t)total, (uint32_t)(total >> 32), 0, 0));
	for (int b = threadIdx.x; b < SAMPLE_BINS; b += THREADS)
		s->bins[b] = 0;
#pragma unroll 2
	for (int r = 0; r < st->size; r++) {
		uint64_t theirs = word(box[r].x, box[r].y);

		before += r < st->rank ? theirs : 0;
		all += theirs;
	}
	if (!*target)
		*target = sample_target(top_p, all);
	if (*target >= all && top_p > 0) {	/* of the first pick: nothing to cut off */
		__syncthreads();		/* the bins are empty before anyone fills them again */
		return false;
	}
	if (busy && before < *target && *target <= before + own) {
		int k = 0;

		while (before + v[0] < *target) {	/* v[] moves down: no indexing of registers */
			before += v[0];
			v[0] = v[1];
			v[1] = v[2];
			v[2] = v[3];
			k++;
		}
		for (int r = 0; r < st->size; r++) {
			ptx_st_shared_cluster_v4(ptx_mapa(ptx_smem(s->found), r),
						 make_uint4((uint32_t)before, (uint32_t)(before >> 32), (uint32_t)v[0],
							    (uint32_t)(v[0] >> 32)));
			ptx_st_shared_cluster_b32(ptx_mapa(ptx_smem(&s->found_bin), r), mine + k);
		}
	}
	cluster_sync(st);
	p->above = s->found[0];
	p->in = s->found[1];
	p->bin = s->found_bin;
	return true;
}

/* Warps own contiguous segments, so that places found by warp and lane are in index order. */
ROW void segment(const struct state *st, int *from, int *to)
{
	int each = (st->n + THREADS - 1) / THREADS * 32;

	*from = min((int)threadIdx.x / 32 * each, st->n);
	*to = min(*from + each, st->n);
}

/*
 * Counts the tokens down to depth bin `bin`, and finds the extent of the keys in it. If they fit rank 0's
 * list, sends them there, in index order, and returns their number; else 0.
 */
template <bool resident> ROW int gather(const struct state *st, uint32_t bin, uint32_t *lo, uint32_t *hi)
{
	struct shared *s = st->s;
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	const struct rule rule = s->rule;
	uint32_t count = 0, low = UINT32_MAX, high = 0, total = 0, place = 0;
	const uint4 *box;
	int from, to;

	segment(st, &from, &to);
#pragma unroll 4
	for (int i = from + lane; i < to; i += 32) {
		float clean = token<resident>(st, i), depth = depth_of(&rule, clean, st->first + i);

		if (depth < SAMPLE_DEAD && sample_bin(depth) <= bin) {
			count++;
			if (sample_bin(depth) == bin) {
				low = min(low, sample_key(clean));
				high = max(high, sample_key(clean));
			}
		}
	}
	count = __reduce_add_sync(ALL_LANES, count);
	low = __reduce_min_sync(ALL_LANES, low);
	high = __reduce_max_sync(ALL_LANES, high);
	if (lane == 0)
		s->warps[warp] = make_uint4(count, low, high, 0);
	__syncthreads();
	count = 0;
#pragma unroll 4
	for (int w = 0; w < WARPS; w++) {
		uint4 theirs = s->warps[w];

		place += w < warp ? theirs.x : 0;
		count += theirs.x;
		low = min(low, theirs.y);
		high = max(high, theirs.z);
	}
	box = exchange(st, 0, make_uint4(count, low, high, 0));
#pragma unroll 2
	for (int r = 0; r < st->size; r++) {
		place += r < st->rank ? box[r].x : 0;
		total += box[r].x;
		low = min(low, box[r].y);
		high = max(high, box[r].z);
	}
	*lo = low;
	*hi = high;
	if (total > LIST)
		return 0;
	for (int i = from + lane; i - lane < to; i += 32) {
		float clean = i < to ? token<resident>(st, i) : -INFINITY;
		float depth = depth_of(&rule, clean, st->first + i);
		bool wanted = depth < SAMPLE_DEAD && sample_bin(depth) <= bin;
		uint32_t mask = __ballot_sync(ALL_LANES, wanted);

		if (wanted)
			ptx_st_relaxed_cluster_shared_b64(
				ptx_mapa(ptx_smem(&s->list[place + __popc(mask & ((1u << lane) - 1))]), 0),
				word(st->first + i, __float_as_uint(clean)));
		place += __popc(mask);
	}
	cluster_sync(st);
	return total;
}

/* Sorts s->bins[0 .. size - 1], size a power of 2, falling. Pairs up to 32 apart stay within a warp. */
ROW void sort(struct shared *s, int size)
{
	for (int block = 2; block <= size; block *= 2)
		for (int step = block / 2; step > 0; step /= 2) {
			for (int t = threadIdx.x; t < size / 2; t += THREADS) {
				int i = 2 * t - (t & (step - 1));
				uint64_t a = s->bins[i], b = s->bins[i + step];

				if ((a < b) == !(i & block)) {
					s->bins[i] = b;
					s->bins[i + step] = a;
				}
			}
			if (step > 32 || (step == 1 && block >= 64))
				__syncthreads();
			else
				__syncwarp();
		}
	__syncthreads();
}

/*
 * In rank 0, alone: what is left to do with n listed tokens that hold all that can stay. Sorts them,
 * keeps the first top_k, of these as many as reach the target (0: top_p of their weight), of these those
 * with min_p; then draws. Bit i of s->stays: the i-th of the list does.
 */
ROW int32_t finish(const struct state *st, int n, int32_t top_k, uint64_t target, float top_p)
{
	struct shared *s = st->s;
	const struct rule rule = s->rule;
	uint64_t v[LIST / THREADS], sum = 0, before, total;
	int size = 64, first = threadIdx.x * (LIST / THREADS);
	int32_t index = -1;

	while (size < n)
		size *= 2;
	for (int i = threadIdx.x; i < size; i += THREADS)
		s->bins[i] = i < n ? word(~i, sample_key(list_logit(s, i))) : 0;
	if (threadIdx.x < LIST / 32)
		s->stays[threadIdx.x] = 0;
	__syncthreads();
	sort(s, size);
#pragma unroll
	for (int q = 0; q < LIST / THREADS; q++) {
		v[q] = 0;
		if (first + q < min(n, top_k))
			v[q] = weight_of(&rule, sample_unkey((uint32_t)(s->bins[first + q] >> 32)));
		sum += v[q];
	}
	before = block_scan(s, sum, &total);
	if (!target)
		target = top_p < 1 ? sample_target(top_p, total) : total;
#pragma unroll
	for (int q = 0; q < LIST / THREADS; q++) {
		uint64_t both = s->bins[first + q];
		float depth = sample_depth(rule.max, sample_unkey((uint32_t)(both >> 32)), rule.slope);

		if (v[q] && before < target && likely(&rule, depth)) {
			uint32_t i = ~(uint32_t)both;

			atomicOr(&s->stays[i / 32], 1u << i % 32);
		}
		before += v[q];
	}
	__syncthreads();
	sum = 0;
#pragma unroll
	for (int q = 0; q < LIST / THREADS; q++) {
		int i = first + q;

		v[q] = i < n && s->stays[i / 32] >> i % 32 & 1 ? weight_of(&rule, list_logit(s, i)) : 0;
		sum += v[q];
	}
	before = block_scan(s, sum, &total);
	total = sample_mulhi(total, s->uniform);
#pragma unroll
	for (int q = 0; q < LIST / THREADS; q++) {
		if (before <= total && total < before + v[q])
			index = (int32_t)(uint32_t)s->list[first + q];
		before += v[q];
	}
	return index;
}

/* What a token counts in locate(): 1 if its key is `key`; with key 0 its weight in the draw. */
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
 * Index of the token at which the running sum of share_of() goes beyond mark. draw: mark is a fraction of
 * the total, in 2^-64, and only the CTA that holds the token learns of it, the others -1; else all do.
 */
template <bool resident>
ROW int32_t locate(const struct state *st, uint32_t key, uint64_t mark, bool draw)
{
	struct shared *s = st->s;
	const struct rule rule = s->rule;
	const int lane = threadIdx.x % 32;
	uint64_t sum = 0, before, total, all = 0;
	const uint4 *box;
	int from, to;

	segment(st, &from, &to);
#pragma unroll 4
	for (int i = from + lane; i < to; i += 32)
		sum += share_of<resident>(st, &rule, i, to, key);
	before = block_scan(s, sum, &total);
	if (threadIdx.x == 0)
		s->found_index = -1;
	box = exchange(st, 1, make_uint4((uint32_t)total, (uint32_t)(total >> 32), 0, 0));
#pragma unroll 2
	for (int r = 0; r < st->size; r++) {
		uint64_t theirs = word(box[r].x, box[r].y);

		before += r < st->rank ? theirs : 0;
		all += theirs;
	}
	if (draw)
		mark = sample_mulhi(all, mark);
	before = __shfl_sync(ALL_LANES, before, 0);
	sum = warp_sum(sum);
	/* The warp that holds it: each lane sums up 32 tokens in a row, in turns that meet no bank twice;
	 * then the 32 among which it is are looked at one by one. */
	for (int at = from; at < to && before <= mark && mark < before + sum; at += 1024) {
		uint64_t run = 0;
		int hit;

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
			ptx_st_shared_cluster_b32(ptx_mapa(ptx_smem(&s->found_index), lane), st->first + at + hit);
		break;
	}
	if (draw)
		__syncthreads();
	else
		cluster_sync(st);
	return s->found_index;
}

/* What narrow() came to. */
struct cut {
	int listed;		/* so many tokens, all that can stay, are in rank 0's list */
	uint64_t target;	/* what they have to reach, in tokens or weight */
	uint32_t key;		/* if none are listed: the least key that stays; 0: all do */
	uint64_t equals;	/* so many of those equal to it stay; 0: all do */
};

/* Cuts down to top_k tokens, or (top_k 0) to top_p of the weight. */
template <bool resident> ROW void narrow(const struct state *st, uint32_t top_k, float top_p, struct cut *cut)
{
	struct shared *s = st->s;
	const struct rule rule = s->rule;
	uint64_t left, unit;
	uint32_t lo, hi;
	struct pick p;

	cut->key = 0;
	cut->listed = 0;
	cut->target = top_k;

#pragma unroll 4
	for (int i = threadIdx.x; i < st->n; i += THREADS) {
		float depth = depth_of(&rule, token<resident>(st, i), st->first + i);

		if (depth < SAMPLE_DEAD) {
			if (top_k)
				atomicAdd((uint32_t *)&s->bins[sample_bin(depth)], 1);
			else
				add_to_bin(&s->bins[sample_bin(depth)], fixed(exponential(depth)));
		}
	}
	if (!pick_bin(st, &cut->target, top_k ? 1.0f : top_p, &p))
		return;
	cut->listed = gather<resident>(st, p.bin, &lo, &hi);
	if (cut->listed)
		return;
	left = cut->target - p.above;
	while (lo < hi) {
		int shift = sample_shift(lo, hi);

#pragma unroll 4
		for (int i = threadIdx.x; i < st->n; i += THREADS) {
			float clean = token<resident>(st, i), depth = depth_of(&rule, clean, st->first + i);
			uint32_t key = sample_key(clean);

			if (depth < SAMPLE_DEAD && key >= lo && key <= hi)
				add_to_bin(&s->bins[(hi - key) >> shift], top_k ? 1 : fixed(exponential(depth)));
		}
		pick_bin(st, &left, 0, &p);
		left -= p.above;
		hi -= p.bin << shift;
		lo = max(lo, hi - min(hi, (1u << shift) - 1));
	}
	unit = top_k ? 1 : weight_of(&rule, sample_unkey(lo));
	left = (left + unit - 1) / unit;
	cut->equals = left < p.in / unit ? left : 0;
	cut->key = lo;
}

/* Reads the part, keeps it if resident; returns the largest key in it. */
template <bool resident> ROW uint32_t load(struct state *st, const float *row, int vocab)
{
	const int head = min((int)((16 - ((uintptr_t)row & 15)) % 16 / 4), vocab), vecs = (vocab - head) / 4;
	const int each = (vecs + st->size - 1) / st->size;
	const int from = min(st->rank * each, vecs), to = min(from + each, vecs);
	const float4 *x = (const float4 *)(row + head) + from;
	const int lead = st->rank == 0 ? head : 0, tail = st->rank == st->size - 1 ? vocab - head - vecs * 4 : 0;
	float *part = st->s->part + (4 - lead) % 4, top = -INFINITY;
	float4 *aligned = (float4 *)(part + lead);

	st->first = st->rank == 0 ? 0 : head + from * 4;
	st->n = lead + (to - from) * 4 + tail;
	st->row = row + st->first;
	st->part = part;
#pragma unroll 4
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
	if (threadIdx.x < lead + tail) {
		int i = threadIdx.x < lead ? threadIdx.x : st->n - tail + threadIdx.x - lead;
		float f = sample_clean(st->row[i]);

		top = fmaxf(top, f);
		if (resident)
			part[i] = f;
	}
	return sample_key(top);
}

template <bool resident>
__global__ void __launch_bounds__(THREADS, resident ? 2 : 1) sample_kernel(const __grid_constant__ struct cairn_sample_args a)
{
	extern __shared__ uint4 dynamic[];
	const int row = ptx_clusterid_x();
	struct shared *s = (struct shared *)dynamic;
	struct state st = { .s = s };
	const uint4 *box;
	uint64_t param = 0;
	int32_t index;
	uint32_t key;

	st.rank = ptx_cluster_ctarank();
	st.size = ptx_cluster_nctarank();
	ptx_barrier_cluster_arrive_relaxed();
	for (int b = threadIdx.x; b < SAMPLE_BINS; b += THREADS)
		s->bins[b] = 0;
	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	/* one thread a parameter, so that these trips to memory run beside those for the logits */
	if (threadIdx.x < 4)
		param = ((const uint32_t *)(threadIdx.x == 0 ? (const void *)a.temperature :
					    threadIdx.x == 1 ? (const void *)a.top_k :
					    threadIdx.x == 2 ? (const void *)a.top_p : (const void *)a.min_p))[row];
	else if (threadIdx.x < 6)
		param = (threadIdx.x == 4 ? a.seed : a.offset)[row];
	key = __reduce_max_sync(ALL_LANES, load<resident>(&st, a.logits + (int64_t)row * a.vocab, a.vocab));
	if (threadIdx.x < 6)
		s->params[threadIdx.x] = param;
	if (threadIdx.x % 32 == 0)
		s->warps[threadIdx.x / 32].x = key;
	__syncthreads();
#pragma unroll 4
	for (int w = 0; w < WARPS; w++)
		key = max(key, s->warps[w].x);
	ptx_barrier_cluster_wait_acquire();	/* the peers run: their memory may be written */
	box = exchange(&st, 0, make_uint4(key, 0, 0, 0));
#pragma unroll 2
	for (int r = 0; r < st.size; r++)
		key = max(key, box[r].x);
	if (threadIdx.x == 0)
		s->rule = (struct rule) { sample_unkey(key), sample_slope(param_float(s, 0)),
					  param_float(s, 3), 0, 0 };
	if (threadIdx.x == THREADS - 1)		/* read behind later barriers */
		s->uniform = cairn_philox_uniform(s->params[4], s->params[5]);
	__syncthreads();
	if (sample_unkey(key) == -INFINITY) {
		if (st.rank == 0 && threadIdx.x == 0)
			a.out[row] = -1;
		return;
	}
	/* top_k, top_p, draw: one body, so that the code is there once */
#pragma unroll 1
	for (int step = 0; step < 3; step++) {
		bool greedy = !(param_float(s, 0) > 0);
		int32_t top_k = step ? 0 : greedy ? 1 : (int32_t)s->params[1];
		float top_p = greedy ? 1 : param_float(s, 2);
		struct cut cut = { 0, 0, 0, 0 };

		if (step == 0 ? top_k <= 0 || top_k >= a.vocab : step == 1 && !(top_p < 1))
			continue;
		if (step < 2) {
			narrow<resident>(&st, top_k, top_p, &cut);
			if (cut.listed) {
				if (st.rank)
					return;
				index = finish(&st, cut.listed, top_k ? top_k : INT32_MAX, top_k ? 0 : cut.target, top_p);
				if (index >= 0)
					a.out[row] = index;
				return;
			}
			if (!cut.key)
				continue;
		}
		index = INT32_MAX;
		if (step == 2 || cut.equals)
			index = locate<resident>(&st, cut.key, step == 2 ? s->uniform : cut.equals - 1, step == 2);
		else if (cut.key == s->rule.key)
			index = s->rule.last;
		__syncthreads();
		if (threadIdx.x == 0) {
			if (step < 2) {
				s->rule.key = cut.key;
				s->rule.last = index;
			} else if (index >= 0) {
				a.out[row] = index;
			}
		}
		__syncthreads();
	}
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
		/* 8 is what every device with clusters grants; 16 is asked for */
		if (l.cluster <= 8 || cairn_max_active_clusters(kernel, &l) > 0)
			break;
		l.cluster = 8;
	}
	return cairn_launch(kernel, &l, params);
}

extern "C" int cairn_sample_workspace(const struct cairn_sample_args *a, size_t *bytes)
{
	if (!a || !bytes)
		return cairn_error(EINVAL, "sample_workspace: args, bytes: must not be null");
	*bytes = 0;	/* everything fits the shared memory of a cluster */
	return 0;
}
