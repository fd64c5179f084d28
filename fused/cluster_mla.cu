// SPDX-License-Identifier: Apache-2.0
/*
 * cluster_mla - one persistent kernel, a CTA an SM; what crosses CTAs goes by words that tell when they
 * have come
 *
 * Not a cluster for each head, as in algorithm 4: there 16 clusters read the same latents 16 times through
 * the L2 with one row of 16 of the matrix products used, at 16K keys some 300 MB. Here all CTAs share every
 * product by its outputs, weights are read once for the whole batch, and a cluster (team) works on 16 heads
 * of a request together (cluster_mla_attn.cuh).
 *
 *   start      small things into the L2; feeders: the first stage of every ring; griddepcontrol.wait; x, its
 *              norm's weights, the epoch, positions, lengths all asked for together; then the second stages
 *   1 DOWN     every CTA for itself: rms of x; rows of [w_q | w_q_a; w_kv_a]. Up to hidden 2048 a warp keeps
 *              its part of n for all rows; beyond, n is made as it is needed
 *   2 UP       with q compression: rms of the compressed q; rows of w_q
 *   3 ABSORB   ql = q w_kv_b, 16 latents of a head a unit, a unit a warp
 *   4          attention, for CTAs that have a job; the keys have been on their way since 1
 *   5 VALUE    merge of the parts of the heads concerned, v = o w_kv_b
 *   6 OUT      out = x + v w_o, complete sums: no partial ones of heads, nothing to add up afterwards
 *
 * Each arrow between them is one trip of data through the L2 (cluster_mla.cuh); 5 of them, and one more
 * before VALUE, none a grid barrier. They need all CTAs resident: the grid is what
 * cudaOccupancyMaxActiveClusters allows. No two such kernels may run at once on the parts of a device that
 * each would need for itself.
 *
 * 20 warps: 16 that multiply (workers), 3 that fill their rings with weights (feeders), 1 that loads keys.
 *
 * cluster_size: CTAs of a team. offchip: a team is one CTA, and all states go through global memory.
 *
 * Shared memory                                                          bytes
 *   0		16 rings of 2 stages					131072
 *   MLA_TILES	2 tiles of 32 keys, rows of 1168 bytes; later, in a team, the
 *		CTA's o, f32 [16][516]					74752
 *   MLA_SUMS	partial sums of a product; q and ql of a task [16][584];
 *		partial logits f32 [4][16][40] and P [16][40]		18688
 *   MLA_STATES	m [16], l [16] of each rank of the team			2048
 *   MLA_SMALL	struct mla_small					5.5K
 * Barriers: full[2], empty[2] of the tiles (1: the loading warp, and bytes; 16: the workers); ready (16:
 * epoch, lengths and rotations are there, for the loading warp); filled, freed of each stage of each ring
 * (32: the feeder's lanes, when their copies have come; 1: its worker); named ones: WORK_BAR of the
 * workers, INIT_BAR and RINGS_BAR: all is set up; START_BAR lets feeders go on when x has come; the cluster
 * barrier twice a job.
 * Registers: 104 workers, 64 the others (setmaxnreg; 96 at launch,
 * as one SM quarter holds 5 warps), no spills.
 *
 * H200, bf16, us (share of the 4.5 TB/s read stream); V2-Lite: 16 heads, hidden 2048; V3: 128, 7168
 *	V2-Lite batch 1, 1K / 4K / 16K keys	18.0 (36%)  22.5 (32%)  30.0 (35%)
 *	V2-Lite batch 16, 4K			72.1 (32%)
 *	V3 batch 1, 1K / 4K			125 (68%)  136 (63%)
 * 1K keys, by the clock of a middling CTA, us since its start: waits for its predecessor until 1.3; x is
 * here 3.2; the first unit of DOWN 4.4, all of it 6.7; ABSORB 8.0; q and ql of all heads 9.4, of all its
 * warps 10.4; a tile of keys 11.2; its state written 12.4; all states seen 13.4, merged 14.4; VALUE 15.6;
 * OUT 17.1; the rest is exit and start of kernels. The bytes would take 6.4: it is the chain of dependent
 * steps. A trip through the L2 is 0.7 of each; what follows it, a wait for the slowest warp and the adding
 * up of 16 warps' sums, takes as long.
 *
 * Tried and lost (V2-Lite, 1K / 16K, us)
 *   - workers that fill their own rings: 22.0 / 31.5 against 18.9 / 29.8 with feeders. 128 KB an SM are
 *     asked for at once then, x and all small loads queue up behind them, and a warp stands 0.7 us at every
 *     stage it asks for (V3, which is all stream, takes them better: 121 against 125)
 *   - feeders by bulk copies of 256-byte rows: 23.3 / 31.3; V3 222 against 125
 *   - weights only after all small loads are asked for: 18.8 / 30.2 against 18.7 / 29.8
 *   - one copy of the code for all products, 86 KB instead of 155: 29.1 / 45.2 against 27.7 / 43.7, V3 151
 *     against 132
 *   - before states went by words, clusters of 2, 4 and 16 instead of 8: 30 / 53, 27.3 / 44.3, 28.1 / 42.7
 *   - the keys' page ids looked up before DOWN, by a worker: it is 1.5 us late for the product
 *   - one warp that waits for a part before all threads read them: as fast as all polling, and one step more
 *   - a tile's page ids looked up one tile ahead: nothing
 *   - 64-bit divisions for shares: 5 us in all
 *   - x, its norm's weights and all that is small asked for by the L2 early: 18.43 against 18.53; x by a bulk
 *     copy: 18.59; no START_BAR: 18.48 against 18.43
 *   - 8, 4 or 2 heads a task instead of 16: 18.17, 18.27, 18.45 against 18.55 (16K: 33.1, 51.6, 92.5 against
 *     30.2). 8 just where each task has a CTA for every tile: 17.76 against 18.06, 4K 21.7 against 23.1. Not
 *     in: decode_step's persistent form, which must give the same bits, has no registers for it
 *   - sums of two units added up at one barrier: 17.78 against 17.76
 *   - stages on their way limited to 4, 8, 16 an SM: 26.2, 22.4, 20.6 against 20.0 without a limit
 *   - stages by tensor copies of 4 KiB, one warp for all rings: 20.4 against 18.0, but V3 113.3 against 124.6
 *     (4K: 124.0, 135.3). Not in yet: it needs maps of the weights, and pays only for long streams
 * Where the 1K chain's time goes is not memory: weights in the L2 do not shorten it. Nor is it cold
 * instructions: attention done twice in a row gains in its first wait alone.
 */
#include "cluster_mla.h"

#include "../primitives/launch.h"
#include "cluster_mla_body.cuh"

#define WORKER_REGS	104
#define OTHER_REGS	64

template <int dtype, int wide>
static __global__ void __launch_bounds__(THREADS, 1)
cluster_mla_kernel(const __grid_constant__ struct mla_args g)
{
	const int team = blockIdx.x / g.team, num_teams = gridDim.x / g.team;
	const int jobs = g.a.batch * g.groups * g.parts;
	const struct body_link alone = {};
	struct mla_ctx c;

	c.lane = threadIdx.x % 32;
	c.warp = threadIdx.x / 32;
	c.words = (uint64_t *)g.a.workspace;
	ptx_griddepcontrol_launch_dependents();
	if (g.team > 1)		/* awaited before a peer's shared memory is touched */
		ptx_barrier_cluster_arrive_relaxed();
	if (threadIdx.x >= WORKERS) {
		ptx_setmaxnreg_dec<OTHER_REGS>();
		if (c.warp < WARPS + FEEDERS) {
			run_feeder<0>(c, g, jobs, team, num_teams);
		} else {
			prologue(c, g);
			ptx_griddepcontrol_wait();
			await_ready();
			c.epoch = mla_small()->epoch[0];
			count_call(g, c);
			run_loader<dtype>(c, g, jobs, team, num_teams);
		}
	} else {
		ptx_setmaxnreg_inc<WORKER_REGS>();
		prologue(c, g);
		run_worker<dtype, wide, 0>(c, g, jobs, team, num_teams, alone);
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
 * The rule for cluster_size 0: states go through the L2 as words;
 * barriers of a cluster cost more than they save.
 */
static int choose_cluster(void)
{
	return 1;
}

/*
 * The smallest first product has 160 steps of 4 rows, and every CTA needs one:
 * others wait for all of x to be read.
 */
#define MAX_CTAS	160

int cluster_mla_plan(struct mla_args *g, const struct cairn_cluster_mla_args *args)
{
	const int cluster = args->cluster_size ? args->cluster_size : choose_cluster(),
		  tasks = num_tasks(args);
	int ctas = resident_ctas(args, cluster), teams;

	ctas = ctas > MAX_CTAS ? MAX_CTAS / cluster * cluster : ctas;
	if (ctas == 0)
		return cairn_error(EOPNOTSUPP,
				   "cluster_mla: cluster_size: the device has no room for %d CTAs", cluster);
	g->a = *args;
	g->a.cluster_size = cluster;
	g->groups = (args->num_heads + HEADS - 1) / HEADS;
	g->team = args->offchip ? 1 : cluster;
	teams = ctas / g->team;
	g->parts = (max_tiles(args) + g->team - 1) / g->team;
	g->parts = g->parts < teams / tasks ? g->parts : teams / tasks ? teams / tasks : 1;
	return ctas;
}

extern "C" int cairn_cluster_mla(const struct cairn_cluster_mla_args *args, void *stream)
{
	struct cairn_launch l = {};
	struct mla_args g = {};
	void *params[] = { &g };
	size_t bytes;
	int ctas;

	CAIRN_TRY(cairn_cluster_mla_check(args));
	if (args->batch == 0)
		return 0;
	CAIRN_TRY(cairn_cluster_mla_workspace(args, &bytes));
	if (!args->workspace || (uintptr_t)args->workspace % 256 || args->workspace_bytes < bytes)
		return cairn_error(EINVAL, "cluster_mla: workspace: %zu bytes, 256-byte aligned, are needed",
				   bytes);
	ctas = cluster_mla_plan(&g, args);
	if (ctas < 0)
		return ctas;
	fill_launch(&l, g.a.cluster_size);
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
