/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster_gather - all-gather among the CTAs of a cluster: the result is [size][granules] in rank order
 *
 * Part of cluster.cuh, which states what callers must ensure.
 */
#ifndef CAIRN_CLUSTER_GATHER_CUH
#define CAIRN_CLUSTER_GATHER_CUH

#include "primitives/cluster/cluster_comm.cuh"

struct cluster_gather_buffers {
	uint32_t dst;			/* shared address of num_sets results of size * granules granules */
	uint32_t src, granules;		/* shared address and length of this rank's block */
	uint32_t num_sets;		/* 2; or 1: each call begins with a cluster_sync() */
};

/*
 * Both functions return the address of the result. With two sets, peers may write the other set once the
 * next call is entered, and this result's set once that call has completed.
 */
CLUSTER_FN uint32_t cluster_gather_oneshot(struct cluster_comm *c, const struct cluster_grid *grid,
					   const struct cluster_gather_buffers *b)
{
	const uint32_t block = b->granules * 16, whole = c->size * block;
	const uint32_t dst = b->dst + (b->num_sets == 2 ? c->set * whole : 0), mbar = cluster_mbar(c, 0);

	if (b->num_sets == 1)
		cluster_sync();
	for (uint32_t g = grid->col; g < b->granules; g += grid->num_cols) {
		const uint32_t mine = dst + c->rank * block + g * 16;
		const uint4 v = ptx_ld_shared_v4(b->src + g * 16);

		for (uint32_t d = grid->row + 1; d < c->size; d += grid->num_rows) {
			const uint32_t peer = cluster_peer(c, d);

			ptx_st_async_v4(ptx_mapa(mine, peer), v, ptx_mapa(mbar, peer));
		}
		if (grid->row == 0)
			ptx_st_shared_v4(mine, v);
	}
	if (c->tid == c->num_threads - 1)
		ptx_mbarrier_arrive_expect_tx(mbar, whole - block);
	cluster_await(c, 0);
	cluster_end_call(c, 1);
	return dst;
}

/* algo: RING or TREE. The rows of the grid share the blocks of a step. */
CLUSTER_FN uint32_t cluster_gather_steps(struct cluster_comm *c, int algo, const struct cluster_grid *grid,
					 const struct cluster_gather_buffers *b)
{
	const int n = (int)c->size, steps = cairn_cluster_gather_steps(algo, n);
	const uint32_t block = b->granules * 16, whole = c->size * block;
	const uint32_t dst = b->dst + (b->num_sets == 2 ? c->set * whole : 0);

	if (b->num_sets == 1)
		cluster_sync();
	for (int step = 0; step < steps; step++) {
		const struct cairn_cluster_msg m = cairn_cluster_gather_msg(algo, n, (int)c->rank, step);
		const uint32_t mbar = ptx_mapa(cluster_mbar(c, step), m.to);

		if (step)
			cluster_await(c, step - 1);
		for (uint32_t k = grid->row; k < (uint32_t)m.send_count; k += grid->num_rows) {
			const uint32_t id = (uint32_t)cairn_cluster_wrap(m.send_first, (int)k, n);
			const uint32_t from = id == c->rank ? b->src : dst + id * block;
			const uint32_t to = ptx_mapa(dst + id * block, m.to);

			for (uint32_t g = grid->col; g < b->granules; g += grid->num_cols)
				ptx_st_async_v4(to + g * 16, ptx_ld_shared_v4(from + g * 16), mbar);
		}
		if (c->tid == c->num_threads - 1)
			ptx_mbarrier_arrive_expect_tx(cluster_mbar(c, step), (uint32_t)m.recv_count * block);
	}
	for (uint32_t g = c->tid; g < b->granules; g += c->num_threads)
		ptx_st_shared_v4(dst + c->rank * block + g * 16, ptx_ld_shared_v4(b->src + g * 16));
	if (steps)
		cluster_await(c, steps - 1);
	cluster_end_call(c, (1u << steps) - 1);
	return dst;
}
#endif
