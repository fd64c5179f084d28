/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_bsr_plan - divides a call into units and runs on the device (attn_bsr_plan.h); one CTA
 *
 *   1  counts the units of each list; a prefix sum over lists
 *   2  describes each unit, whose list it finds by binary search
 *   3  a prefix sum over the costs of units
 *   4  chooses between whole units and runs of equal cost, and finds where these begin
 *
 * A front whose units are not cut needs only steps 1 and 2.
 *
 * The plan is made from arrays on the device, so that a captured graph serves other lists.
 */
#include "fused/attention/bsr/attn_bsr_dev.cuh"

#define THREADS		ATTN_PLAN_THREADS
#define PER_THREAD	4
#define NEAR		(THREADS * PER_THREAD)	/* lists, and units, that shared memory holds */

/* Returns the sum of x over the threads up to and including this one; *total: over all threads. */
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
 * Replaces the n costs in s_costs by the sums of those before each, on top of `base`. Returns the sum of all,
 * and raises *most to the largest of the thread's. A thread adds PER_THREAD neighbours.
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

/* Finds where runs of equal cost begin, and notes in each unit that they cut the first run within it. */
ATTN_DEV void write_runs(const struct attn_bsr_call &c, int32_t units, int32_t cost, int32_t runs,
			 const int32_t *costs)
{
	for (int i = threadIdx.x; i <= runs; i += THREADS) {
		int32_t at = attn_run_at(cost, runs, i), u = units, tile = 0;

		if (i < runs) {
			u = last_up_to(costs, units, at);
			tile = attn_tile_at(at - costs[u]);
		}
		c.w.runs[i] = { u, tile };
	}
	__syncthreads();
	for (int i = threadIdx.x; i < runs; i += THREADS) {
		struct attn_run r = c.w.runs[i];

		if (r.tile > 0 && (c.w.runs[i - 1].unit < r.unit || c.w.runs[i - 1].tile == 0))
			c.w.units[r.unit].cut = i;
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
	int32_t units, cost = 0, most = 0, whole, runs;

	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	invert_places(c);
	units = count_units(c, s_warp, s_lists);
	for (int32_t first = 0; first < units; first += NEAR) {
		const int32_t end = min(units, first + NEAR);

		write_units(c, first, end, s_lists, s_costs);
		if (c.d.uncut)
			continue;
		cost = sum_costs(s_costs, end - first, cost, s_warp, &most);
		for (int32_t i = first + threadIdx.x; units > NEAR && i < end; i += THREADS)
			c.w.costs[i] = s_costs[i - first];
		__syncthreads();	/* before the next costs replace these */
	}
	whole = attn_plan_whole(&c.d, units, cost, largest(most, s_warp));
	runs = whole || !units ? units : attn_plan_runs(&c.d, cost);
	if (!whole && units)
		write_runs(c, units, cost, runs, units > NEAR ? c.w.costs : s_costs);
	if (threadIdx.x == 0)
		*c.w.head = { units, runs, whole, c.d.ctas };
}

const void *attn_bsr_plan_kernel(void)
{
	return (const void *)plan_kernel;
}
