/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_bsr_plan - divides a call into units and runs on the device (attn_bsr_plan.h); one CTA
 *
 *   1  counts the units of each list; a prefix sum over lists
 *   2  describes each unit, whose list it finds by binary search; a prefix sum over costs
 *   3  chooses between whole units and runs of equal cost, and finds where these begin
 *
 * The plan is made from arrays on the device, so that a captured graph serves other lists.
 */
#include "fused/attention/bsr/attn_bsr_dev.cuh"

#define THREADS		ATTN_PLAN_THREADS
#define COPIED		4096	/* arrays of up to this size are copied to shared memory for searches */

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

/* Returns where to search among n numbers: a copy in shared memory if they fit, else the array itself. */
ATTN_DEV const int32_t *near(const int32_t *before, int32_t n, int32_t *s_copy)
{
	if (n > COPIED)
		return before;
	for (int i = threadIdx.x; i < n; i += THREADS)
		s_copy[i] = before[i];
	__syncthreads();
	return s_copy;
}

ATTN_DEV int32_t count_units(const struct attn_bsr_call &c, int32_t *s_warp)
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
		before += total;
	}
	if (threadIdx.x == 0)
		c.w.list_units[lists] = before;
	__syncthreads();
	return before;
}

/* Writes all units and returns the cost of all; *most: that of the longest unit this thread has seen. */
ATTN_DEV int32_t write_units(const struct attn_bsr_call &c, int32_t units, int32_t *s_warp, int32_t *s_copy,
			     int32_t *most)
{
	const int32_t lists = c.d.lists[c.a.num_parts];
	const int32_t *list_units = near(c.w.list_units, lists, s_copy);
	int32_t before = 0;

	*most = 0;
	for (int first = 0; first < units; first += THREADS) {
		int32_t i = first + threadIdx.x, n = 0, sum, total;
		struct attn_unit u;

		if (i < units) {
			int32_t k = last_up_to(list_units, lists, i);
			struct attn_list l = attn_bsr_list(&c.a, &c.d, k);

			u = attn_bsr_unit(&c.a, &c.d, &l, i - list_units[k]);
			n = ATTN_UNIT_COST + u.num_tiles;
		}
		sum = scan(n, s_warp, &total);
		if (i < units) {
			c.w.units[i] = u;
			c.w.costs[i] = before + sum - n;
		}
		*most = max(*most, n);
		before += total;
	}
	__syncthreads();
	return before;
}

/* Finds where runs of equal cost begin, and notes in each unit that they cut the first run within it. */
ATTN_DEV void write_runs(const struct attn_bsr_call &c, int32_t units, int32_t cost, int32_t runs,
			 int32_t *s_copy)
{
	const int32_t *costs = near(c.w.costs, units, s_copy);

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

static __global__ __launch_bounds__(THREADS) void
plan_kernel(const __grid_constant__ struct attn_bsr_call c)
{
	__shared__ int32_t s_warp[THREADS / 32], s_copy[COPIED];
	int32_t units, cost, most, whole, runs;

	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	invert_places(c);
	units = count_units(c, s_warp);
	cost = write_units(c, units, s_warp, s_copy, &most);
	most = __reduce_max_sync(~0u, most);
	__syncthreads();
	if (threadIdx.x % 32 == 0)
		s_warp[threadIdx.x / 32] = most;
	__syncthreads();
	most = __reduce_max_sync(~0u, s_warp[threadIdx.x % 32]);
	whole = attn_plan_whole(&c.d, units, cost, most);
	runs = whole || !units ? units : attn_plan_runs(&c.d, cost);
	if (!whole && units)
		write_runs(c, units, cost, runs, s_copy);
	if (threadIdx.x == 0)
		*c.w.head = { units, runs, whole, c.d.ctas };
}

const void *attn_bsr_plan_kernel(void)
{
	return (const void *)plan_kernel;
}
