/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_bsr_plan - divides a call into units and runs on the device (attn_bsr_plan.h); one cluster
 *
 *   1  counts the units of each list; a prefix sum over lists (each CTA does this by itself)
 *   2  describes the units, and finds the list of each by binary search (each CTA has a contiguous share)
 *   3  a prefix sum over the costs of the CTA's units; the CTAs exchange their sums
 *   4  chooses between whole units and runs of equal cost, and finds the runs that begin in the CTA's units
 *
 * A front whose units are not cut needs only steps 1 and 2. Describing a unit takes some 400 instructions, so
 * one SM would need 2 us for every 1024 units.
 *
 * The plan is made from arrays on the device, so that a captured graph serves other lists.
 */
#include "fused/attention/bsr/attn_bsr_dev.cuh"

#define THREADS		ATTN_PLAN_THREADS
#define PER_THREAD	4
#define NEAR		(THREADS * PER_THREAD)	/* the most lists, and units, in shared memory */

/*
 * Returns the sum of x over the threads up to and including this one. Sets *total to the sum over all
 * threads.
 */
ATTN_DEV int32_t scan(int32_t x, int32_t *s_warp, int32_t *total)
{
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	int32_t of_warp;

#pragma unroll
	for (int step = 1; step < 32; step *= 2) {
		int32_t y = __shfl_up_sync(~0u, x, step);

		x += lane >= step ? y : 0;
	}
	__syncthreads();	/* all threads have read s_warp of the previous scan */
	if (lane == 31)
		s_warp[warp] = x;
	__syncthreads();
	of_warp = s_warp[lane];
#pragma unroll
	for (int step = 1; step < 32; step *= 2) {
		int32_t y = __shfl_up_sync(~0u, of_warp, step);

		of_warp += lane >= step ? y : 0;
	}
	*total = __shfl_sync(~0u, of_warp, 31);
	of_warp = __shfl_sync(~0u, of_warp, max(warp - 1, 0));
	return x + (warp ? of_warp : 0);
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
		for (int i = threadIdx.x; i < c.a.nnz_qo; i += THREADS)
			c.w.place[k][i] = -1;
		__syncthreads();
		for (int i = threadIdx.x; i < places; i += THREADS)
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

/* Counts the units of all lists. s_lists gets the number of units before each of the first NEAR lists. */
ATTN_DEV int32_t count_units(const struct attn_bsr_call &c, int32_t *s_warp, int32_t *s_lists)
{
	int32_t lists = c.d.lists[c.a.num_parts], before = 0;

	for (int first = 0; first < lists; first += THREADS) {
		int32_t i = first + threadIdx.x, n = 0, sum, total;

		if (i < lists) {
			struct attn_list l = attn_bsr_list(&c.a, &c.d, i);

			n = attn_list_tiles(&c.d, &l) * attn_list_heads(&c.a, &c.d, l.part);
		}
		sum = scan(n, s_warp, &total);
		if (i < lists)
			c.w.list_units[i] = before + sum - n;
		if (i < lists && i < NEAR)
			s_lists[i] = before + sum - n;
		before += total;
	}
	if (threadIdx.x == 0)
		c.w.list_units[lists] = before;
	__syncthreads();
	return before;
}

/* Writes the units first .. end - 1, at most NEAR. s_costs gets their costs. */
ATTN_DEV void write_units(const struct attn_bsr_call &c, int32_t first, int32_t end,
			     const int32_t *s_lists, int32_t *s_costs)
{
	const int32_t lists = c.d.lists[c.a.num_parts];
	const int32_t *before = lists > NEAR ? c.w.list_units : s_lists;

	for (int32_t i = first + threadIdx.x; i < end; i += THREADS) {
		int32_t k = last_up_to(before, lists, i);
		struct attn_list l = attn_bsr_list(&c.a, &c.d, k);
		struct attn_unit u = attn_bsr_unit(&c.a, &c.d, &l, i - before[k]);

		c.w.units[i] = u;
		s_costs[i - first] = ATTN_UNIT_COST + u.num_tiles;
	}
}

/*
 * Replaces each of the n costs in s_costs by `base` plus the sum of those before it. Returns the sum of all
 * costs, and raises *most to the largest cost that the thread adds. A thread adds PER_THREAD neighbours.
 */
ATTN_DEV int32_t sum_costs(int32_t *s_costs, int32_t n, int32_t base, int32_t *s_warp, int32_t *most)
{
	const int32_t at = threadIdx.x * PER_THREAD;
	int32_t cost[PER_THREAD], sum = 0, before, total;

	__syncthreads();	/* all costs have been written */
#pragma unroll
	for (int i = 0; i < PER_THREAD; i++) {
		cost[i] = at + i < n ? s_costs[at + i] : 0;
		sum += cost[i];
		*most = max(*most, cost[i]);
	}
	before = base + scan(sum, s_warp, &total) - sum;
#pragma unroll
	for (int i = 0; i < PER_THREAD; i++) {
		if (at + i < n)
			s_costs[at + i] = before;
		before += cost[i];
	}
	__syncthreads();
	return base + total;
}

/* The costs that the CTAs of the cluster exchange: of all their units, and of the longest one. */
struct shares {
	int32_t cost[ATTN_PLAN_CTAS], most[ATTN_PLAN_CTAS];
};

/* Sends the cost of this CTA's units, and that of the longest one, to all CTAs. */
ATTN_DEV void exchange(struct shares *s, int32_t cost, int32_t most)
{
	if (threadIdx.x < gridDim.x) {
		ptx_st_shared_cluster_b32(ptx_mapa(ptx_smem(&s->cost[blockIdx.x]), threadIdx.x), cost);
		ptx_st_shared_cluster_b32(ptx_mapa(ptx_smem(&s->most[blockIdx.x]), threadIdx.x), most);
	}
	__syncwarp();
	ptx_barrier_cluster_arrive_release();
	ptx_barrier_cluster_wait_acquire();
}

/*
 * Finds the begin of each run of equal cost that begins in the units first .. first + n - 1, and writes to
 * each unit that is cut the first run that begins within it. base and total are the costs of all units before
 * these, and of all units.
 */
ATTN_DEV void write_runs(const struct attn_bsr_call &c, int32_t first, int32_t n, const int32_t *costs,
			 int32_t base, int32_t own, int32_t total, int32_t runs)
{
	for (int i = threadIdx.x; i < runs; i += THREADS) {
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

/* Returns the largest of the threads' numbers. */
ATTN_DEV int32_t largest(int32_t x, int32_t *s_warp)
{
	x = __reduce_max_sync(~0u, x);
	__syncthreads();
	if (threadIdx.x % 32 == 0)
		s_warp[threadIdx.x / 32] = x;
	__syncthreads();
	return __reduce_max_sync(~0u, s_warp[threadIdx.x % 32]);
}

static __global__ __launch_bounds__(THREADS) void
plan_kernel(const __grid_constant__ struct attn_bsr_call c)
{
	__shared__ int32_t s_warp[THREADS / 32], s_lists[NEAR], s_costs[NEAR];
	__shared__ struct shares s_shares;
	int32_t units, begin, end, own = 0, most = 0, base = 0, total = 0, whole, runs, *costs = s_costs;

	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	if (blockIdx.x == 0)
		invert_places(c);
	units = count_units(c, s_warp, s_lists);
	begin = (int32_t)((int64_t)units * blockIdx.x / gridDim.x);
	end = (int32_t)((int64_t)units * (blockIdx.x + 1) / gridDim.x);
	if (end - begin > NEAR)
		costs = c.w.costs + begin;
	for (int32_t first = begin; first < end; first += NEAR) {
		const int32_t n = min(end - first, NEAR);

		write_units(c, first, first + n, s_lists, s_costs);
		if (c.d.uncut)
			continue;
		own = sum_costs(s_costs, n, own, s_warp, &most);
		for (int32_t i = threadIdx.x; costs != s_costs && i < n; i += THREADS)
			costs[first - begin + i] = s_costs[i];
		__syncthreads();	/* before the next costs replace these */
	}
	if (!c.d.uncut) {
		most = largest(most, s_warp);
		total = own;
	}
	if (!c.d.uncut && gridDim.x > 1) {
		exchange(&s_shares, own, most);
		total = 0;
		for (int k = 0; k < gridDim.x; k++) {
			base += k < blockIdx.x ? s_shares.cost[k] : 0;
			total += s_shares.cost[k];
			most = max(most, s_shares.most[k]);
		}
	}
	whole = attn_plan_whole(&c.d, units, total, most);
	runs = whole || !units ? units : attn_plan_runs(&c.d, total);
	if (!whole && begin < end)
		write_runs(c, begin, end - begin, costs, base, own, total, runs);
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
