// SPDX-License-Identifier: Apache-2.0
/*
 * cluster_mla - one persistent kernel, a CTA an SM; what crosses CTAs goes by words that tell when they have come
 *
 * Not a cluster for each head, as in algorithm 4: there 16 clusters read the same latents 16 times through the L2 with
 * one row of 16 of the matrix products used, at 16K keys some 300 MB. Here all CTAs share every product by its
 * outputs, weights are read once for the whole batch, and a cluster (team) works on 16 heads of a request together
 * (cluster_mla_attn.cuh).
 *
 *   prologue   the first two stages of every warp's stream of weights; griddepcontrol.wait
 *   1 DOWN     every CTA for itself: rms of x; n = x scale weight as it is needed; rows of [w_q | w_q_a; w_kv_a]
 *   2 UP       with q compression: rms of the compressed q; rows of w_q
 *   3 ABSORB   ql = q w_kv_b, 16 latents of a head a unit
 *   4          attention, for CTAs that have a job; the keys have been on their way since 1
 *   5 VALUE    merge of the parts of the heads concerned, v = o w_kv_b
 *   6 OUT      out = x + v w_o, complete sums: no partial ones of heads, nothing to add up afterwards
 *
 * Each arrow between them is one trip of data through the L2 (cluster_mla.cuh); 5 of them, none a grid barrier. They
 * need all CTAs resident: the grid is what cudaOccupancyMaxActiveClusters allows. No two such kernels may run at
 * once on the parts of a device that each would need for itself.
 *
 * cluster_size: CTAs of a team. offchip: a team is one CTA, and all states go through global memory.
 *
 * Shared memory                                                          bytes
 *   0		16 rings of 2 stages					131072
 *   MLA_TILES	2 tiles of 32 keys, rows of 1168 bytes; later the CTA's o,
 *		f32 [16][516]; then merged o of up to 4 heads, [16][520]	74752
 *   MLA_SUMS	partial sums of a product; q and ql of a task [16][584];
 *		partial logits f32 [4][16][40] and P [16][40]		18688
 *   MLA_NEW	the new key						1152
 *   MLA_STATES	m [16], l [16] of each rank of the team			2048
 *   MLA_SMALL	struct mla_small					1.1K
 * Barriers: mbar[2], a tile each, count 1 (the loading lane), bytes of the tile; __syncthreads; the cluster barrier
 * twice a job.
 * Registers: 128 of 128, no spills; one CTA of 16 warps an SM.
 *
 * H200, bf16, us (share of the 4.5 TB/s read stream), V2-Lite: 16 heads, hidden 2048; V3: 128, 7168, rank 1536
 *	V2-Lite batch 1, 1K / 4K / 16K keys	26.5 (24%)  31.9 (22%)  40.8 (25%)
 *	V2-Lite batch 16, 4K			77.6 (29%)
 *	V3 batch 1, 1K / 4K			121 (69%)  142 (59%)
 * 1K keys, by the clock of one CTA, us: prologue 2.6, lengths and rms 2.4, DOWN 4.5, ABSORB 2, q and ql of all heads
 * 0.5, a tile of keys 1.5, merge of the team 3.6, merge of the parts 2, VALUE 0.9, OUT 2.6. Warm and cold weights
 * take the same time: it is the chain of dependent steps, not memory, that is to be shortened, and first of all the
 * 9 us from ql to merged o.
 *
 * Tried and lost (V2-Lite, 1K / 16K):
 *   - one copy of the code for all products, 86 KB instead of 155: 29.1 / 45.2 against 27.7 / 43.7, V3 151 against 132
 *   - clusters of 2, 4 and 16 instead of 8: 30 / 53, 27.3 / 44.3, 28.1 / 42.7; of V3 and batch 16, that have tasks
 *     enough, 8 instead of 2: 132 and 122 against 121 and 82
 *   - the keys' page ids looked up before DOWN: the warp that does it is 1.5 us late for the product
 *   - one warp that waits for a part before all threads read them: as fast as all polling, and one step more
 *   - a tile's page ids looked up one tile ahead: nothing
 *   - 64-bit divisions for shares: 5 us in all
 */
#include "cluster_mla.h"

#include "../primitives/launch.h"
#include "cluster_mla_attn.cuh"

/* What needs nothing that an earlier kernel may still be writing */
MLA void prologue(struct mla_ctx *c, const struct mla_args &g, struct mla_stream *r)
{
	c->lane = threadIdx.x % 32;
	c->warp = threadIdx.x / 32;
	if (c->warp < MLA_PRODUCTS && c->lane == 0)
		mla_make_matrix(g, &mla_small()->m[c->warp], c->warp);
	else if (threadIdx.x >= THREADS - 2)
		ptx_mbarrier_init(ptx_smem(&mla_small()->mbar[threadIdx.x - (THREADS - 2)]), 1);
	ptx_fence_mbarrier_init_release_cluster();
	__syncthreads();
	r->slot = 0;
	r->ahead.product = r->ahead.group = 0;
	r->ahead.stage = c->warp & ((1 << mla_small()->m[0].shift) - 1);
	mla_settle(*c, &r->ahead);
#pragma unroll 1
	for (int i = 0; i < STAGES; i++)
		mla_fetch(*c, &r->ahead, i);
	if (c->warp == 1)
		mla_small()->inv_freq[c->lane] = g.a.inv_freq[c->lane];
	if ((int)threadIdx.x * 64 < g.a.hidden)
		ptx_prefetch_global_L2((const char *)g.a.norm_weight + threadIdx.x * 128);
	if ((int)threadIdx.x * 64 < g.a.q_lora_rank)
		ptx_prefetch_global_L2((const char *)g.a.q_norm + threadIdx.x * 128);
	if (threadIdx.x * 64 < RANK)
		ptx_prefetch_global_L2((const char *)g.a.kv_norm + threadIdx.x * 128);
}

template <int dtype, int wide>
static __global__ void __launch_bounds__(THREADS, 1) cluster_mla_kernel(const __grid_constant__ struct mla_args g)
{
	const struct cairn_cluster_mla_args &a = g.a;
	const int team = blockIdx.x / g.team, num_teams = gridDim.x / g.team;
	const int jobs = a.batch * g.groups * g.parts;
	struct mla_stream r;
	struct mla_ctx c;
	int tiles = 0, owed = 1;

	prologue(&c, g, &r);
	ptx_griddepcontrol_launch_dependents();
	if (g.team > 1)		/* awaited before a peer's shared memory is touched */
		ptx_barrier_cluster_arrive_relaxed();
	ptx_griddepcontrol_wait();
	c.words = (uint64_t *)a.workspace;
	c.epoch = ptx_ld_relaxed_gpu_u32((const uint32_t *)a.workspace) + 1;
	if (threadIdx.x == 0)
		mla_small()->at = mla_words(a, (uint32_t)jobs);
	if (threadIdx.x >= THREADS - 32 && c.lane < a.batch) {
		int pages = a.kv_indptr[c.lane + 1] - a.kv_indptr[c.lane];

		mla_small()->position[c.lane] = a.positions[c.lane];
		mla_small()->len[c.lane] = attn_kv_len(pages, a.kv_last_page_len[c.lane], a.page_size);
	}
#pragma unroll
	for (int product = 0; product < MLA_PRODUCTS; product++) {
		if (product == MLA_UP && !a.q_lora_rank)
			continue;
		if (product <= MLA_UP)
			mla_rms<dtype>(c, a, product == MLA_DOWN ? a.x : NULL,
				       product == MLA_DOWN ? a.hidden : a.q_lora_rank);
		if (product == MLA_VALUE) {
#pragma unroll 1
			for (int job = team; job < jobs; job += num_teams)
				attend<dtype>(c, g, job, &tiles, &owed, job == team);
			await_team(g, &owed);	/* before merge_parts() writes where the tiles were */
			merge_parts<dtype>(c, g);
		}
		if (product == MLA_DOWN && team < jobs && c.warp == WARPS - 1)
			prefetch_pages(c, g, job_at(c, g, team));
		mla_run<dtype, wide>(c, a, product, &r);
		if (product == MLA_DOWN && team < jobs && c.warp == WARPS - 1)
			load_first_tiles(c, g, job_at(c, g, team), 0);
	}
	ptx_cp_async_wait_group<0>();
	/* everyone has read the epoch long ago: the last to leave counts it up for the next call */
	if (threadIdx.x == 0 && ptx_atom_acq_rel_gpu_add_u32((uint32_t *)a.workspace + 1, 1) == gridDim.x - 1) {
		ptx_st_relaxed_gpu_u32((uint32_t *)a.workspace + 1, 0);
		ptx_st_relaxed_gpu_u32((uint32_t *)a.workspace, c.epoch);
	}
}

/* ---- launch ---- */

static const void *kernel_of(const struct cairn_cluster_mla_args *a)
{
	if (a->dtype == CAIRN_F16)
		return a->batch > 8 ? (const void *)cluster_mla_kernel<CAIRN_F16, 1> :
				      (const void *)cluster_mla_kernel<CAIRN_F16, 0>;
	return a->batch > 8 ? (const void *)cluster_mla_kernel<CAIRN_BF16, 1> :
			      (const void *)cluster_mla_kernel<CAIRN_BF16, 0>;
}

static void fill_launch(struct cairn_launch *l, int cluster)
{
	l->block[0] = THREADS;
	l->smem = MLA_SMEM;
	l->cluster = cluster;
	l->grid[0] = (unsigned int)cluster;
}

/* CTAs that are resident at once in clusters of that size; 0: the device has no room for one. Asked once. */
static int resident_ctas(const struct cairn_cluster_mla_args *a, int cluster)
{
	static int known[17];		/* all instances are alike */
	int *n = &known[cluster];
	struct cairn_launch l = {};

	if (*n == 0) {
		int clusters;

		fill_launch(&l, cluster);
		clusters = cairn_max_active_clusters(kernel_of(a), &l);
		*n = clusters > 0 ? clusters * cluster : -1;
	}
	return *n > 0 ? *n : 0;
}

static int max_tiles(const struct cairn_cluster_mla_args *a)
{
	return a->max_kv_len > 0 ? (a->max_kv_len + KEYS - 1) / KEYS : 1;
}

static int num_tasks(const struct cairn_cluster_mla_args *a)
{
	return a->batch * ((a->num_heads + HEADS - 1) / HEADS);
}

/*
 * The rule for cluster_size 0. Few tasks: their keys are shared by many CTAs, whose states had better merge on chip.
 * Many: a task has few CTAs anyway, and small clusters find room on all SMs.
 */
static int choose_cluster(const struct cairn_cluster_mla_args *a)
{
	return num_tasks(a) <= 4 ? 8 : 2;
}

/* The smallest first product has 160 steps of 4 rows, and every CTA needs one: others wait for all of x to be read. */
#define MAX_CTAS	160

extern "C" int cairn_cluster_mla(const struct cairn_cluster_mla_args *args, void *stream)
{
	struct cairn_launch l = {};
	struct mla_args g = {};
	void *params[] = { &g };
	int tasks, teams, cluster, ctas;
	size_t bytes;

	CAIRN_TRY(cairn_cluster_mla_check(args));
	if (args->batch == 0)
		return 0;
	CAIRN_TRY(cairn_cluster_mla_workspace(args, &bytes));
	if (!args->workspace || (uintptr_t)args->workspace % 256 || args->workspace_bytes < bytes)
		return cairn_error(EINVAL, "cluster_mla: workspace: %zu bytes, 256-byte aligned, are needed", bytes);
	cluster = args->cluster_size ? args->cluster_size : choose_cluster(args);
	ctas = resident_ctas(args, cluster);
	ctas = ctas > MAX_CTAS ? MAX_CTAS / cluster * cluster : ctas;
	if (ctas == 0)
		return cairn_error(EOPNOTSUPP, "cluster_mla: cluster_size: the device has no room for %d CTAs",
				   cluster);
	if (args->num_heads * V_DIM > 2 * ctas * V_DIM)
		return cairn_error(EOPNOTSUPP, "cluster_mla: num_heads: %d on a device of %d CTAs", args->num_heads,
				   ctas);
	g.a = *args;
	g.groups = (args->num_heads + HEADS - 1) / HEADS;
	g.team = args->offchip ? 1 : cluster;
	tasks = num_tasks(args);
	teams = ctas / g.team;
	g.parts = (max_tiles(args) + g.team - 1) / g.team;
	g.parts = g.parts < teams / tasks ? g.parts : teams / tasks ? teams / tasks : 1;
	fill_launch(&l, cluster);
	l.grid[0] = (unsigned int)ctas;
	l.pdl = 1;
	l.stream = stream;
	return cairn_launch(kernel_of(args), &l, params);
}

extern "C" int cairn_cluster_mla_workspace(const struct cairn_cluster_mla_args *args, size_t *bytes)
{
	CAIRN_TRY(cairn_cluster_mla_check_shape(args));
	if (!bytes)
		return cairn_error(EINVAL, "cluster_mla_workspace: bytes: null pointer");
	/* parts * tasks: no more than the teams there are, or one a task */
	*bytes = args->batch ? mla_words(*args, num_tasks(args) + MAX_CTAS).end * sizeof(uint64_t) : 0;
	return 0;
}
