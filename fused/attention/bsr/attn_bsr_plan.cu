/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_bsr_plan - divides a call into units and runs on the device (attn_bsr_plan.h); one CTA, or a cluster
 *
 *   1  describes the lists, counts their units, and sums the counts up (each CTA does this by itself)
 *   2  describes the units, one for each thread, and finds the list of each by binary search (each CTA has a
 *      contiguous share); sums up their costs; the CTAs exchange the costs of their shares
 *   3  chooses between whole units and runs of equal cost, and finds the runs that begin in the CTA's units
 *
 * A front whose units are not cut needs no costs and no step 3. The plan is made from arrays on the device,
 * so that a captured graph serves other lists.
 *
 * Floor: a launch, and one dependent load for the arrays: 0.8 us. Describing the units takes most of the
 * time. All arrays of a list are therefore read at once and only once, a sum over threads has one barrier,
 * and a CTA has no more warps than its share needs, because all warps issue the instructions of a sum.
 * Optimisation history: ../NOTES.md.
 */
#include "fused/attention/bsr/attn_bsr_dev.cuh"

#define NEAR_LISTS	1024	/* lists whose descriptions are kept in shared memory */
#define NEAR_UNITS	2048	/* units of a CTA whose costs are kept in shared memory */

/* The sum and the largest of several numbers. */
struct sums {
	int32_t sum, most;
};

struct plan_smem {
	int32_t before[NEAR_LISTS];	/* number of units before each list */
	struct attn_list list[NEAR_LISTS];
	int32_t costs[NEAR_UNITS];	/* the cost of the CTA's units before each one */
	struct sums warp[2][32];	/* of the warps, for scan() */
	struct sums share[ATTN_PLAN_CTAS];	/* the costs of the CTAs' shares */
	uint64_t shares;		/* the mbarrier that counts the bytes of `share` */
};

/*
 * Sets *before to the sum of x over the threads before this one, and returns the sum and the largest x of all
 * threads. Consecutive calls must use different arrays, because a warp may still read that of the last call.
 */
ATTN_DEV struct sums scan(int32_t x, struct sums s_warp[32], int32_t *before)
{
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	struct sums s = { x, __reduce_max_sync(~0u, x) };

#pragma unroll
	for (int step = 1; step < 32; step *= 2) {
		int32_t y = __shfl_up_sync(~0u, s.sum, step);

		s.sum += lane >= step ? y : 0;
	}
	*before = s.sum - x;
	if (lane == 31)
		s_warp[warp] = s;
	__syncthreads();
	s = { 0, 0 };
	if (lane < blockDim.x / 32)
		s = s_warp[lane];
	*before += __reduce_add_sync(~0u, lane < warp ? s.sum : 0);
	return { __reduce_add_sync(~0u, s.sum), __reduce_max_sync(~0u, s.most) };
}

/* Writes the place of each token in the parts that have q_index, for the merge. */
ATTN_DEV void invert_places(const struct attn_bsr_call &c)
{
	for (int k = 1; k < c.a.num_parts; k++) {
		const struct cairn_attn_part *p = &c.a.part[k];
		int64_t places;

		if (!p->q_index)
			continue;
		places = p->row_indptr ? p->row_indptr[p->rows] :
			 min((int64_t)p->rows * p->block_m, (int64_t)c.a.nnz_qo);
#pragma unroll 1
		for (int i = threadIdx.x; i < c.a.nnz_qo; i += blockDim.x)
			c.w.place[k][i] = -1;
		__syncthreads();
#pragma unroll 1
		for (int i = threadIdx.x; i < places; i += blockDim.x)
			c.w.place[k][p->q_index[i]] = i;
	}
}

/* Returns the last i < n with before[i] <= x. */
ATTN_DEV int32_t last_up_to(const int32_t *before, int32_t n, int32_t x)
{
	int32_t low = 0;

	while (n - low > 1) {
		int32_t middle = low + (n - low) / 2;

		if (before[middle] <= x)
			low = middle;
		else
			n = middle;
	}
	return low;
}

/*
 * Describes the lists and counts their units. CTA 0 writes the counts to memory. If there are more than
 * NEAR_LISTS lists, write_unit() reads the counts and the lists from memory instead of shared memory. Every
 * CTA then writes all counts itself, with the same values, so that it need not wait for CTA 0.
 */
ATTN_DEV int32_t count_units(const struct attn_bsr_call &c, struct plan_smem *s)
{
	const int32_t lists = c.d.lists[c.a.num_parts];
	int32_t units = 0;

	for (int32_t first = 0, nth = 0; first < lists; first += blockDim.x, nth ^= 1) {
		const int32_t i = first + threadIdx.x;
		int32_t n = 0, before;
		struct sums all;

		if (i < lists) {
			struct attn_list l = attn_bsr_list(&c.a, &c.d, i);

			n = attn_list_tiles(&c.d, &l) * attn_list_heads(&c.a, &c.d, l.part);
			if (i < NEAR_LISTS)
				s->list[i] = l;
		}
		all = scan(n, s->warp[nth], &before);
		if (i < lists && i < NEAR_LISTS)
			s->before[i] = units + before;
		if (i < lists && (blockIdx.x == 0 || lists > NEAR_LISTS))
			c.w.list_units[i] = units + before;
		units += all.sum;
	}
	if (threadIdx.x == 0 && blockIdx.x == 0)
		c.w.list_units[lists] = units;
	__syncthreads();
	return units;
}

/* Writes unit i and returns its cost. */
ATTN_DEV int32_t write_unit(const struct attn_bsr_call &c, const struct plan_smem *s, int32_t i)
{
	const int32_t lists = c.d.lists[c.a.num_parts];
	const int32_t *before = lists > NEAR_LISTS ? c.w.list_units : s->before;
	const int32_t k = last_up_to(before, lists, i);
	const struct attn_list l = lists > NEAR_LISTS ? attn_bsr_list(&c.a, &c.d, k) : s->list[k];
	const struct attn_unit u = attn_bsr_unit(&c.a, &c.d, &l, i - before[k]);

	c.w.units[i] = u;
	return ATTN_UNIT_COST + u.num_tiles;
}

/*
 * begin_exchange() prepares the mbarrier at which the shares of the other CTAs arrive; all CTAs of the
 * cluster must have called it before the first of them sends its share. exchange() sends the share *own to
 * all CTAs and waits for theirs. It sets *base to the cost of the CTAs before this one, and *own to that of
 * all CTAs.
 */
ATTN_DEV void begin_exchange(struct plan_smem *s)
{
	if (threadIdx.x == 0) {
		ptx_mbarrier_init(ptx_smem(&s->shares), 1);
		ptx_fence_mbarrier_init_release_cluster();
	}
	__syncwarp();
	ptx_barrier_cluster_arrive_release();
}

ATTN_DEV void exchange(struct plan_smem *s, struct sums *own, int32_t *base)
{
	const int lane = threadIdx.x % 32;

	if (threadIdx.x == 0)
		ptx_mbarrier_arrive_expect_tx(ptx_smem(&s->shares), gridDim.x * sizeof(struct sums));
	if (threadIdx.x < gridDim.x)
		ptx_st_async_v2(ptx_mapa(ptx_smem(&s->share[blockIdx.x]), threadIdx.x),
				make_uint2(own->sum, own->most), ptx_mapa(ptx_smem(&s->shares), threadIdx.x));
	ptx_mbarrier_wait_cluster(ptx_smem(&s->shares), 0);
	*own = { 0, 0 };
	if (lane < gridDim.x)
		*own = s->share[lane];
	*base = __reduce_add_sync(~0u, lane < blockIdx.x ? own->sum : 0);
	*own = { __reduce_add_sync(~0u, own->sum), __reduce_max_sync(~0u, own->most) };
}

/*
 * Finds the begin of each run of equal cost that begins in the units first .. first + n - 1, and writes to
 * each unit that is cut the first run that begins within it. base and total are the costs of all units before
 * these, and of all units.
 */
ATTN_DEV void write_runs(const struct attn_bsr_call &c, int32_t first, int32_t n, const int32_t *costs,
			 int32_t base, int32_t own, int32_t total, int32_t runs)
{
	for (int32_t i = threadIdx.x; i < runs; i += blockDim.x) {
		int32_t at = attn_run_at(total, runs, i) - base, before, u, tile;

		if (at < 0 || at >= own)
			continue;
		u = last_up_to(costs, n, at);
		tile = attn_tile_at(at - costs[u]);
		c.w.runs[i] = { first + u, tile };
		if (!tile)
			continue;
		before = attn_run_at(total, runs, i - 1) - base - costs[u];
		if (before < 0 || attn_tile_at(before) == 0)
			c.w.units[first + u].cut = i;
	}
}

static __global__ __launch_bounds__(ATTN_PLAN_THREADS) void
plan_kernel(const __grid_constant__ struct attn_bsr_call call)
{
	__shared__ struct attn_bsr_call c;
	__shared__ struct plan_smem s;
	int32_t units, begin, end, own, base = 0, whole, runs, *costs = s.costs;
	struct sums all = { 0, 0 };

	if (gridDim.x > 1)
		begin_exchange(&s);
	/* constant memory is cold in each launch; the copy overlaps the end of the preceding kernel */
	for (int i = threadIdx.x; i < sizeof(c) / 4; i += blockDim.x)
		((int32_t *)&c)[i] = ((const int32_t *)&call)[i];
	__syncthreads();
	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	if (blockIdx.x == 0)
		invert_places(c);
	units = count_units(c, &s);
	begin = (int32_t)((int64_t)units * blockIdx.x >> (31 - __clz(gridDim.x)));
	end = (int32_t)((int64_t)units * (blockIdx.x + 1) >> (31 - __clz(gridDim.x)));
	if (end - begin > NEAR_UNITS)
		costs = c.w.costs + begin;
	for (int32_t first = begin, nth = 0; first < end; first += blockDim.x, nth ^= 1) {
		const int32_t i = first + threadIdx.x, cost = i < end ? write_unit(c, &s, i) : 0;
		struct sums some;
		int32_t before;

		if (c.d.uncut)
			continue;
		some = scan(cost, s.warp[nth], &before);
		if (i < end)
			costs[i - begin] = all.sum + before;
		all = { all.sum + some.sum, max(all.most, some.most) };
	}
	own = all.sum;
	__syncthreads();	/* all costs have been written */
	if (gridDim.x > 1)
		ptx_barrier_cluster_wait_acquire();
	if (gridDim.x > 1 && !c.d.uncut)
		exchange(&s, &all, &base);
	whole = attn_plan_whole(&c.d, units, all.sum, all.most);
	runs = whole || !units ? units : attn_plan_runs(&c.d, all.sum);
	if (!whole && begin < end)
		write_runs(c, begin, end - begin, costs, base, own, all.sum, runs);
	if (blockIdx.x == 0 && threadIdx.x == 0) {
		if (!whole)
			c.w.runs[runs] = { units, 0 };
		*c.w.head = { units, runs, whole, c.d.ctas };
	}
}

const void *attn_bsr_plan_kernel(void)
{
	return (const void *)plan_kernel;
}
