// SPDX-License-Identifier: Apache-2.0
/*
 * cluster_mla - one persistent kernel, a CTA an SM; what crosses CTAs goes by words that tell when they
 * have come
 *
 * Not a cluster for each head, as in algorithm 4: there 16 clusters read the same latents 16 times through
 * the L2 with one row of 16 of the matrix products used, at 16K keys some 300 MB. Here all CTAs share every
 * product by its outputs, weights are read once for the whole batch, and a cluster (team) works on 16 or 8
 * heads of a request together (cluster_mla_attn.cuh).
 *
 *   start      small things into the L2; feeders: the first stage of every ring; griddepcontrol.wait; x, its
 *              norm's weights, the epoch, positions, lengths all asked for together; then the second stages
 *   1 DOWN     every CTA for itself: rms of x; rows of [w_q | w_q_a; w_kv_a]. Up to hidden 2048 a warp keeps
 *              its part of n for all rows, or, with more than 8 requests, n lies in shared memory; beyond, n
 *              is made as it is needed
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
 * 20 warps: 16 that multiply (workers), 3 that fill their rings with weights (feeders; for long streams
 * one of them by tensor copies, cluster_mla_tensor.cuh), 1 that loads keys.
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
 * With more than 8 requests (a kernel of its own, `wide`): n where the tiles are, before there are any; a
 * third tile where the rings of the last five warps are, from ABSORB to the end of the attention.
 * Barriers: full[2], empty[2] of the tiles (1: the loading warp, and bytes; 16: the workers); ready (16:
 * epoch, lengths and rotations are there, for the loading warp); filled, freed of each stage of each ring
 * (32: the feeder's lanes, when their copies have come; 1: its worker); named ones: WORK_BAR of the
 * workers, INIT_BAR and RINGS_BAR: all is set up; START_BAR lets feeders go on when x has been asked for;
 * the cluster barrier twice a job. Wide: full, empty of the third tile; normed, absorbed (16: the workers,
 * for the keys' loader), attended (16: for the feeders).
 * Registers: 104 workers, 64 the others (setmaxnreg; 96 at launch,
 * as one SM quarter holds 5 warps), no spills.
 *
 * H200, bf16, us (share of the run's read stream, 4.52 TB/s); V2-Lite: 16 heads, hidden 2048; V3: 128, 7168
 *	V2-Lite batch 1, 1K / 4K / 16K keys	17.3 (37%)  20.8 (34%)  28.7 (36%)
 *	V2-Lite batch 16, 4K			54.2 (42%): separate kernels take 54.0
 *	V3 batch 1, 1K / 4K			113 (73%)  122 (69%)
 * By a driver with 40 calls in a graph, which finds up to 9% more, and with the last two of what is below
 * still in: 18.45, 22.0, 31.9, 72.8, 118, 128. All that follows is by it.
 * 1K keys, by the clock of a middling CTA, us since its start, with traces, which cost 1.4: waits for its
 * predecessor until 1.0; x is here 2.3, normed 3.2; the first unit of DOWN 5.7, all of it 7.7; q here 8.8;
 * ABSORB 9.5; q and ql of all heads 11.9; a tile of keys 13.1; its state written 13.9; all states seen
 * 15.6, merged 16.1; VALUE 17.6; OUT 19.2; end 19.5; the next CTA of the SM starts after that. The bytes
 * would take 6.4.
 * With parts left out (1K, 4K, 16K; all of it 18.7, 22.4, 32.7): no weights, none asked nor waited for:
 * 15.7, 18.9, 27.6. So much the chain of dependent steps costs by itself: six trips through the L2 of 0.7
 * to 1.0, after each a wait for the slowest warp and the adding up of sums. Weights are waited for in
 * DOWN: an SM takes copies at 30 bytes a ns whoever asks, 3.8 us for 113 KB, and the first is here 1.2 us
 * after it is asked for. A feeder's stage is some 100 dependent instructions, 0.35 us; its first came 2 us
 * after the CTA's start when shares were still divided there (now 0.2 us less in all).
 *
 * Batch 16, 4K keys, in the same way: normed 4.5, DOWN 7.5, ABSORB 10.1, q here 13.1, keys 33.6, state
 * written 34.9, merged 39.8, VALUE 42.9, OUT 47.7. A tile takes 1.4, 36 KB at 25 bytes a ns, with two buffers
 * as with three: the keys are the larger part, and copies of 1152 bytes come no faster. By a driver: 57.3
 * before; 56.4 with all rows of words in one trip, 54.6 with n in shared memory, 53.6 with three buffers.
 *
 * Tried and lost (V2-Lite, 1K / 16K, us; the later by the driver above)
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
 *   - x by a bulk copy: 18.59 against 18.53 (into the L2 early, as now: 18.43)
 *   - 8, 4 or 2 heads a task instead of 16: 18.17, 18.27, 18.45 against 18.55 (16K: 33.1, 51.6, 92.5 against
 *     30.2). 8 are in where each tile has a CTA for itself: 18.95 against 19.5, 4K 22.5 against 24.7
 *   - sums of two units added up at one barrier: 17.78 against 17.76
 *   - stages on their way limited to 4, 8, 16 an SM: 26.2, 22.4, 20.6 against 20.0 without a limit
 *   - stages by tensor copies for all, not just long streams: 19.6 against 18.5 (V3: 117.9 against 124.6)
 *   - the same of 16 rows of 128 bytes instead of runs of 64: V3 127; by three warps: 132
 *   - a worker's first stage, or its first two, by itself: 19.4, 20.6 against 18.7; it stands where copies
 *     queue up, and comes late for x
 *   - x before all that a CTA prepares: 18.95 against 18.7
 *   - no START_BAR, once feeders are fast: 19.1 against 18.9; it after 8, 4, 0 of the first 16 stages: 19.8
 *     against 19.6; it opened when x is here instead of asked for: 18.5 against 18.45
 *   - a lane's 16 elements of A in a row: 64 bytes of words a lane, batch 16 74.7 against 71.8
 *   - six tiles asked into the L2 ahead of the two in flight: batch 16 72.5 against 61.2, 16K 29.5 against
 *     28.2, as the copy engine takes as long for a prefetch as for a copy
 *   - the loader asks for the lines of the next tiles, 4, 8, 14 ahead, by prefetch.global.L2: batch 16 61.0,
 *     63.0, 62.8 against 59.9; in steps of 64 and 32 bytes 65.9 and 73.8
 *   - four parts of the merge in flight instead of two: batch 16 54.7 against 54.6
 *   - rows of x for the norm read two pieces at a time: batch 16, where a row is one warp's, 7 us for it
 * Where the 1K chain's time goes is not memory: weights in the L2 do not shorten it. Nor is it cold
 * instructions: attention done twice in a row gains in its first wait alone.
 */
#include "fused/latent/cluster_mla.h"

#include <string.h>

#include "primitives/base/launch.h"
#include "primitives/base/tensor_map.h"
#include "fused/latent/cluster_mla_body.cuh"
#include "fused/latent/cluster_mla_tensor.cuh"

#define WORKER_REGS	104
#define OTHER_REGS	64

template <int dtype, int wide, int tensor>
MLA void cluster_mla_cta(const struct mla_args &g, const struct mla_maps *maps)
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
			/* always used: but without the other way there ptxas has workers spill */
			if (!tensor || !maps->used) {
				run_feeder<wide, 0>(c, g, jobs, team, num_teams);
			} else if (c.warp == WARPS) {
				run_tensor_feeder(c, g, *maps, jobs, team, num_teams);
			} else {
				mla_bar_arrive(RINGS_BAR, WITH_FEEDERS);
				mla_bar_arrive(START_BAR, WITH_FEEDERS);
				join_team(g, jobs, team, num_teams);
			}
		} else {
			prefetch_small(c, g);
			prologue<wide>(c, g);
			ptx_griddepcontrol_wait();
			await_ready();
			c.epoch = mla_small()->epoch[0];
			count_call(g, c);
			if (wide)
				ptx_mbarrier_wait(ptx_smem(&mla_small()->wide.normed), 0);
			run_loader<dtype, wide>(c, g, jobs, team, num_teams);
		}
	} else {
		ptx_setmaxnreg_inc<WORKER_REGS>();
		prologue<wide>(c, g);
		run_worker<dtype, wide, 0, tensor>(c, g, jobs, team, num_teams, alone);
	}
}

template <int dtype, int wide>
static __global__ void __launch_bounds__(THREADS, 1)
cluster_mla_kernel(const __grid_constant__ struct mla_args g)
{
	cluster_mla_cta<dtype, wide, 0>(g, NULL);
}

/* Batches of 16 have no registers for it. */
template <int dtype>
static __global__ void __launch_bounds__(THREADS, 1)
cluster_mla_tensor_kernel(const __grid_constant__ struct mla_args g,
			  const __grid_constant__ struct mla_maps maps)
{
	cluster_mla_cta<dtype, 0, 1>(g, &maps);
}

/* ---- launch ---- */

static const void *kernel_of(const struct cairn_cluster_mla_args *a, int tensor)
{
	const int f16 = a->dtype == CAIRN_F16;

	if (tensor)
		return f16 ? (const void *)cluster_mla_tensor_kernel<CAIRN_F16> :
			     (const void *)cluster_mla_tensor_kernel<CAIRN_BF16>;
	if (a->batch > 8)
		return f16 ? (const void *)cluster_mla_kernel<CAIRN_F16, 1> :
			     (const void *)cluster_mla_kernel<CAIRN_BF16, 1>;
	return f16 ? (const void *)cluster_mla_kernel<CAIRN_F16, 0> :
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
		clusters = cairn_max_active_clusters(kernel_of(a, 0), &l);
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

/* Steps of outputs that CTAs share: by fours or, if units must not cross a head's end, by sixteens */
static int num_steps(const struct cairn_cluster_mla_args *a, int product)
{
	const int nq = a->num_heads * Q_DIM, lora = a->q_lora_rank;

	switch (product) {
	case MLA_DOWN:
		return ((lora ? lora : nq) + WIDTH) / 4;
	case MLA_UP:
		return lora ? nq / 4 : 0;
	case MLA_ABSORB:
		return a->num_heads * RANK / 16;
	case MLA_VALUE:
		return a->num_heads * V_DIM / 16;
	case MLA_OUT:
		return a->hidden / 4;
	default:
		return a->batch * a->num_heads * SLICES;
	}
}

/*
 * The smallest first product has 160 steps of 4 rows, and every CTA needs one:
 * others wait for all of x to be read.
 */
#define MAX_CTAS	160

int cluster_mla_plan(struct mla_args *g, const struct cairn_cluster_mla_args *args, int linked)
{
	const int cluster = args->cluster_size ? args->cluster_size : choose_cluster();
	int ctas = resident_ctas(args, cluster), tasks = num_tasks(args), teams;

	ctas = ctas > MAX_CTAS ? MAX_CTAS / cluster * cluster : ctas;
	if (ctas == 0)
		return cairn_error(EOPNOTSUPP,
				   "cluster_mla: cluster_size: the device has no room for %d CTAs", cluster);
	g->a = *args;
	g->a.cluster_size = cluster;
	g->heads_shift = 4;
	g->groups = (args->num_heads + HEADS - 1) / HEADS;
	g->team = args->offchip ? 1 : cluster;
	teams = ctas / g->team;
	g->parts = (max_tiles(args) + g->team - 1) / g->team;
	/*
	 * Half of the heads where every task has a CTA for each of its tiles: these write half as much then.
	 * The persistent form has no registers for it; with parts alike it gives the same bits nevertheless.
	 */
	if (g->team == 1 && tasks * max_tiles(args) <= ctas && 2 * tasks <= ctas) {
		tasks = args->batch * (args->num_heads / (HEADS / 2));	/* a multiple: see cluster_mla.h */
		g->heads_shift = linked ? 4 : 3;
		if (!linked)
			g->groups = tasks / args->batch;
	}
	g->parts = g->parts < teams / tasks ? g->parts : teams / tasks ? teams / tasks : 1;
	for (int i = 0; i <= MLA_PRODUCTS; i++) {
		g->each[i] = num_steps(args, i) / ctas;
		g->more[i] = num_steps(args, i) % ctas;
	}
	return ctas;
}

/*
 * Who fills the rings: the copy engine is sooner done with a long stream, but slower with what a short one
 * begins with. Bytes a CTA are compared with what its rings hold.
 */
static int by_tensor(const struct cairn_cluster_mla_args *a, int ctas)
{
	const int64_t heads = a->num_heads, hidden = a->hidden;
	const int64_t weights = num_steps(a, MLA_DOWN) * 4 * hidden +
				(int64_t)num_steps(a, MLA_UP) * 4 * a->q_lora_rank +
				heads * (NOPE + V_DIM) * RANK + heads * V_DIM * hidden;

	return a->batch <= 8 && weights * 2 > (int64_t)ctas * 8 * WARPS * STAGES * STAGE_BYTES;
}

/* Of four dimensions. Runs of 64 bytes: without the promotion of L2 reads to 128 the stream is slower. */
static int make_map(CUtensorMap *map, const void *w, const uint64_t (&size)[4], const uint64_t (&stride)[3],
		    const uint32_t (&box)[4], int swizzle)
{
	struct cairn_tensor_layout t = {
		.data = w, .dims = 4, .element_bytes = 2, .swizzle = swizzle, .promotion = 128,
	};

	memcpy(t.size, size, sizeof(size));
	memcpy(t.stride, stride, sizeof(stride));
	memcpy(t.box, box, sizeof(box));
	return cairn_tensor_map(map, &t, "cluster_mla");
}

/* See cluster_mla_tensor.cuh for what is where. */
static int make_row_maps(CUtensorMap (&map)[2], const void *w, int rows, int k)
{
	const uint64_t dim[4] = { 32, 4, (uint64_t)k / 32, (uint64_t)rows / 4 };
	const uint64_t stride[3] = { (uint64_t)k * 2, 64, (uint64_t)k * 8 };
	const uint32_t stage[4] = { 32, 4, 4, 4 }, part[4] = { 32, 4, 4, 1 };

	CAIRN_TRY(make_map(&map[0], w, dim, stride, stage, 0));
	return make_map(&map[1], w, dim, stride, part, 0);
}

static int make_maps(const struct cairn_cluster_mla_args *a, struct mla_maps *maps)
{
	const int lora = a->q_lora_rank, nq = a->num_heads * Q_DIM, nb = a->num_heads * (NOPE + V_DIM);
	const uint64_t dim[4] = { RANK, 4, 8, (uint64_t)nb / 32 };
	const uint64_t stride[3] = { 8 * RANK * 2, RANK * 2, 32 * RANK * 2 };
	const uint32_t box[4] = { 16, 4, 8, 4 };

	CAIRN_TRY(make_row_maps(maps->map[MLA_DOWN], lora ? a->w_q_a : a->w_q, lora ? lora : nq, a->hidden));
	CAIRN_TRY(make_row_maps(maps->map[MLA_PRODUCTS], a->w_kv_a, WIDTH, a->hidden));
	if (lora)
		CAIRN_TRY(make_row_maps(maps->map[MLA_UP], a->w_q, nq, lora));
	CAIRN_TRY(make_map(&maps->map[MLA_ABSORB][0], a->w_kv_b, dim, stride, box,
			   32));
	CAIRN_TRY(make_row_maps(maps->map[MLA_VALUE], a->w_kv_b, nb, RANK));
	CAIRN_TRY(make_row_maps(maps->map[MLA_OUT], a->w_o, a->hidden, a->num_heads * V_DIM));
	maps->used = 1;
	return 0;
}

extern "C" int cairn_cluster_mla(const struct cairn_cluster_mla_args *args, void *stream)
{
	struct cairn_launch l = {};
	struct mla_args g = {};
	struct mla_maps maps;
	void *params[] = { &g, &maps };
	size_t bytes;
	int ctas, tensor;

	CAIRN_TRY(cairn_cluster_mla_check(args));
	if (args->batch == 0)
		return 0;
	CAIRN_TRY(cairn_cluster_mla_workspace(args, &bytes));
	if (!args->workspace || (uintptr_t)args->workspace % 256 || args->workspace_bytes < bytes)
		return cairn_error(EINVAL, "cluster_mla: workspace: %zu bytes, 256-byte aligned, are needed",
				   bytes);
	ctas = cluster_mla_plan(&g, args, 0);
	if (ctas < 0)
		return ctas;
	tensor = by_tensor(args, ctas);
	fill_launch(&l, g.a.cluster_size);
	l.grid[0] = (unsigned int)ctas;
	l.pdl = 1;
	l.stream = stream;
	if (tensor)
		CAIRN_TRY(make_maps(args, &maps));
	return cairn_launch(kernel_of(args, tensor), &l, params);
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
