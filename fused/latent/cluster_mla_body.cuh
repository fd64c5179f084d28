/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster_mla_body.cuh - the programs of cluster_mla's warps. They run as a separate kernel, or as a linked
 * body of another, persistent kernel
 */
#ifndef CAIRN_CLUSTER_MLA_BODY_CUH
#define CAIRN_CLUSTER_MLA_BODY_CUH

#include "fused/block/body.cuh"
#include "fused/latent/cluster_mla_attn.cuh"

/*
 * Plans how the CTAs of a launch share the work, and returns their number or -errno. Does not check the
 * arguments. With `linked`, plans for a body of a persistent kernel.
 */
int cluster_mla_plan(struct mla_args *g, const struct cairn_cluster_mla_args *args, int linked);

/* The part that may precede griddepcontrol.wait, because it reads only arguments and weights. */
template <int wide> MLA void prologue(const struct mla_ctx &c, const struct mla_args &g)
{
	if (c.warp < MLA_PRODUCTS && c.lane == 0)
		mla_make_matrix(g, &mla_small()->m[c.warp], c.warp);
	else if (c.warp == MLA_PRODUCTS && c.lane == 0)
		mla_small()->at = mla_ll(g.a, (uint32_t)(g.a.kv.batch * g.groups * g.parts));
	else if (c.warp == WARPS + FEEDERS && c.lane < 2)
		ptx_mbarrier_init(ptx_smem(&mla_small()->full[c.lane]), ELECTED_LANES);
	else if (c.warp == WARPS + FEEDERS && c.lane < 4)
		ptx_mbarrier_init(ptx_smem(&mla_small()->empty[c.lane - 2]), WARPS * ELECTED_LANES);
	else if (c.warp == WARPS + FEEDERS && c.lane == 4)
		ptx_mbarrier_init(ptx_smem(&mla_small()->ready), WARPS * ELECTED_LANES);
	else if (wide && c.warp == WARPS + FEEDERS && c.lane < 9)	/* full, empty, normed, absorbed */
		ptx_mbarrier_init(ptx_smem(&mla_small()->wide.full) + (c.lane - 5) * 8,
				  c.lane == 5 ? ELECTED_LANES : WARPS * ELECTED_LANES);
	ptx_fence_mbarrier_init_release_cluster();
	if ((int)threadIdx.x * 64 < g.a.q_lora_rank)
		ptx_prefetch_global_L2((const char *)g.a.q_norm + threadIdx.x * 128);
	if (threadIdx.x * 64 < RANK)
		ptx_prefetch_global_L2((const char *)g.a.kv_norm + threadIdx.x * 128);
}

/*
 * Called by the loader: prefetches small operands into the L2 before the weights. In a model, x is already
 * there.
 */
MLA void prefetch_small(const struct mla_ctx &c, const struct mla_args &g)
{
	if (c.lane * 64 < g.a.kv.batch * g.a.hidden)
		ptx_prefetch_global_L2((const char *)g.a.x + c.lane * 128);
	if (c.lane == 0) {
		ptx_prefetch_global_L2(g.a.workspace);
		ptx_prefetch_global_L2(g.a.positions);
		ptx_prefetch_global_L2(g.a.kv.indptr);
		ptx_prefetch_global_L2(g.a.kv.last_page_len);
	}
}

#define MLA_RING_MBARS	(2 * WARPS * STAGES)
#define MLA_MBARS	(5 + MLA_RING_MBARS)

/* Called by all warps of a linked body: initialises the rings' mbarriers, in turn as in moe_init(). */
MLA void mla_init_rings(int thread, int warps)
{
	const uint32_t first = ptx_smem(mla_small()->filled);
	const int warp = __shfl_sync(~0u, thread / 32, 0);

#pragma unroll 1
	for (int i = warp; i < MLA_RING_MBARS; i += warps)
		if (thread % 32 == 0)
			ptx_mbarrier_init(first + i * 8, i < MLA_RING_MBARS / 2 ? 32 : ELECTED_LANES);
}

/*
 * Called by the loader: reports that its mbarriers are initialised, and waits until the workers have set
 * epoch, lengths and rotations. It waits at an mbarrier, because synccheck requires that all threads that
 * wait at a named barrier do so at one place in the code.
 */
MLA void await_ready(void)
{
	__syncwarp();
	mla_bar_arrive(INIT_BAR, WORKERS + 32);
	ptx_mbarrier_wait(ptx_smem(&mla_small()->ready), 0);
}

/*
 * A feeder's program: fills every FEEDERS-th ring with stages in the order in which the workers use them, as
 * soon as a stage is free.
 */
template <int wide, int linked>
MLA void run_feeder(const struct mla_ctx &c, const struct mla_args &g, int jobs, int team, int num_teams)
{
	const uint64_t policy = ptx_createpolicy_evict_first();
	const int mine = c.warp - WARPS;
	int joined = g.team == 1, started = 0;
	uint32_t count = 0;		/* stages filled so far in ring number `lane` */

	if (!linked) {
		if (c.lane < WARPS && c.lane % FEEDERS == mine)
			for (int i = 0; i < STAGES; i++) {
				ptx_mbarrier_init(ptx_smem(&mla_small()->filled[c.lane][i]), 32);
				ptx_mbarrier_init(ptx_smem(&mla_small()->freed[c.lane][i]), ELECTED_LANES);
			}
		if (wide && mine == 0 && c.lane == WARPS)
			ptx_mbarrier_init(ptx_smem(&mla_small()->wide.attended), WARPS * ELECTED_LANES);
		__syncwarp();
		mla_bar_arrive(RINGS_BAR, WITH_FEEDERS);
	}
#pragma unroll 1
	for (int product = 0; product < MLA_PRODUCTS; product++) {
		struct mla_matrix m;

		if (linked)		/* all warps have passed a barrier since these were written */
			m = mla_small()->m[product];
		else
			mla_make_matrix(g, &m, product);
#pragma unroll 1
		for (int group = 0; group << (4 - m.shift) < m.units; group++) {
#pragma unroll 1
			for (int step = 0; step << m.shift < m.stages; step++) {
#pragma unroll 1
				for (int w = mine; w < WARPS; w += FEEDERS) {
					int unit = (group << (4 - m.shift)) + (w >> m.shift);
					int stage = (w & ((1 << m.shift) - 1)) + (step << m.shift);
					uint32_t n = __shfl_sync(~0u, count, w), slot = n % STAGES;
					uint32_t ring = mla_smem() + (w * STAGES + slot) * STAGE_BYTES;
					uint32_t freed = ptx_smem(&mla_small()->freed[w][slot]);
					/* the ring holds the third tile until the attention has ended */
					const int kept = wide && w >= WIDE_RING && product >= MLA_VALUE;
					const uint32_t attended = ptx_smem(&mla_small()->wide.attended);

					if (unit >= m.units || stage >= m.stages)
						continue;
					if (n >= STAGES || kept) {
						/*
						 * join first: workers that wait for their team free no
						 * stage.
						 */
						if (!joined && product >= MLA_VALUE) {
							join_team(g, jobs, team, num_teams);
							joined = 1;
						}
						if (kept)
							ptx_mbarrier_wait(attended, 0);
						if (n >= STAGES)
							ptx_mbarrier_wait(freed, (n / STAGES & 1) ^ 1);
					}
					if (product == MLA_ABSORB)
						mla_fetch_columns(c, m, unit, ring, policy);
					else
						mla_fetch_rows(c, m, product, unit, stage, ring, policy);
					mla_arrive_filled(ptx_smem(&mla_small()->filled[w][slot]));
					count += c.lane == w;
				}
				if (!started)
					ptx_bar_sync(START_BAR, WITH_FEEDERS);
				started = 1;
			}
		}
	}
	if (!started)
		ptx_bar_sync(START_BAR, WITH_FEEDERS);
	if (!joined)
		join_team(g, jobs, team, num_teams);
}

/* Counts this CTA as having read the epoch; the last CTA stores the new epoch for the next call. */
MLA void count_call(const struct mla_args &g, const struct mla_ctx &c)
{
	uint32_t *word = (uint32_t *)g.a.workspace;

	if (c.lane == 0 && ptx_atom_acq_rel_gpu_add_u32(word + 1, 1) == gridDim.x - 1) {
		ptx_st_relaxed_gpu_u32(word + 1, 0);
		ptx_st_relaxed_gpu_u32(word, c.epoch);
	}
	__syncwarp();
}

/* A worker's program: all products, and its part of the attention. */
template <int dtype, int wide, int linked, int tensor>
MLA void run_worker(struct mla_ctx &c, const struct mla_args &g, int jobs, int team, int num_teams,
		    const struct body_link &link)
{
	const struct cairn_cluster_mla_args &a = g.a;
	const int first_fits = !wide && mla_first_fits(a), n_fits = wide && mla_n_fits(a);
	const int turns = (int)threadIdx.x < a.kv.batch * (ROPE / 2);
	int tiles = 0, position = 0, len = 0;
	uint32_t used = 0;		/* stages of the warp's ring */
	uint4 weights[4] = {};
	struct mla_a x = {};
	float freq = 0;

	if (first_fits)
		mla_first_weights<!linked>(c, a, weights);
	if (n_fits)
		mla_keep_weights(a);
	if (turns)
		freq = __ldg(a.inv_freq + c.lane);
	if (linked && turns)		/* no wait: not an earlier body, but an earlier kernel wrote these */
		position = __ldg(a.positions + c.warp);
	if (linked && c.warp == WARPS - 1 && c.lane < a.kv.batch)
		len = mla_len(a, c.lane);
	body_wait<linked>(link);
	/* these loads are issued together, before further weights, which would delay them */
	if (first_fits)
		mla_first_x<!linked>(c, a, x.lo);
	if (!linked)			/* linked: the rings were set up before an earlier barrier */
		ptx_bar_sync(RINGS_BAR, WITH_FEEDERS);
	mla_bar_arrive(START_BAR, WITH_FEEDERS);
	c.epoch = linked ? link.state->number : ptx_ld_relaxed_gpu_u32((const uint32_t *)a.workspace) + 1;
	if (!linked && turns)
		position = __ldg(a.positions + c.warp);
	if (c.warp == WARPS - 1 && c.lane < a.kv.batch)
		mla_small()->len[c.lane] = linked ? len : mla_len(a, c.lane);
	if (turns)
		mla_small()->rotation[c.warp][c.lane] = mla_rotation(position, freq);
	if (!linked && c.lane == 0)
		mla_small()->epoch[c.warp] = c.epoch;	/* the store also waits for the load */
	ptx_bar_sync(INIT_BAR, WORKERS + 32);
	__syncwarp();
	if ((linked ? here(c).lane : c.lane) < ELECTED_LANES)	/* an elected arrive */
		ptx_mbarrier_arrive(ptx_smem(&mla_small()->ready));
	if (first_fits)
		mla_first_norm<dtype, !linked>(c, a, weights, x.lo);
#pragma unroll
	for (int product = 0; product < MLA_PRODUCTS; product++) {
		if (product == MLA_UP && !a.q_lora_rank)
			continue;
		if (n_fits && product == MLA_DOWN)
			mla_norm_rows<dtype>(c, a);
		else if (product == MLA_UP || (product == MLA_DOWN && !first_fits))
			mla_rms<dtype>(&c, a, product == MLA_DOWN ? a.x : NULL,
				       product == MLA_DOWN ? a.hidden : a.q_lora_rank);
		if (product == MLA_VALUE) {
			if (g.team > 1)		/* peers must have started before the first DSMEM access */
				ptx_barrier_cluster_wait_acquire();
#pragma unroll 1
			for (int job = team; job < jobs; job += num_teams)
				attend<dtype, wide, linked>(linked ? here(c) : c, g, job, &tiles);
			if (wide)
				elected_arrive(ptx_smem(&mla_small()->wide.attended));
			merge_parts<dtype, linked>(linked ? here(c) : c, g);
		}
		if (product != MLA_DOWN)
			x = {};
		mla_run<dtype, wide, tensor>(c, a, product, &used, x, product == MLA_DOWN && first_fits);
		if (wide && (product == MLA_DOWN || product == MLA_ABSORB))
			elected_arrive(ptx_smem(product == MLA_DOWN ? &mla_small()->wide.normed :
				       &mla_small()->wide.absorbed));
	}
}

#endif
