// SPDX-License-Identifier: Apache-2.0
/*
 * cluster_mla - one persistent kernel, one CTA on each SM; CTAs exchange results as LL words
 *
 * Algorithm 4 has one cluster for each head: 16 clusters read the same latents 16 times through the L2 (about
 * 300 MB at 16K keys) and use one row in 16 of the matrix products. Here all CTAs share every product by its
 * outputs, weights are read once for the whole batch, and a cluster (team) works on 16 or 8 heads of a
 * request together (cluster_mla_attn.cuh).
 *
 *   start      small operands into the L2; feeders: first stage of every ring; griddepcontrol.wait; one
 *              batch of loads: x, its norm's weights, epoch, positions, lengths; then the second stages
 *   1 DOWN     every CTA: rms of x; rows of [w_q | w_q_a; w_kv_a]. Up to hidden 2048, a warp keeps its part
 *              of n for all rows or, above 8 requests, n is in shared memory; otherwise n is computed when it
 *              is needed
 *   2 UP       with q compression: rms of the compressed q; rows of w_q
 *   3 ABSORB   ql = q w_kv_b, 16 latents of a head in each unit, one warp for each unit
 *   4          attention, in the CTAs that have a job; their keys have been in flight since 1
 *   5 VALUE    merge of the parts of this CTA's heads, v = o w_kv_b
 *   6 OUT      out = x + v w_o, complete sums: no partial results of heads to add up afterwards
 *
 * Results pass from each phase to the next in one trip through the L2 (cluster_mla.cuh): 5 trips, and one
 * more before VALUE, without a grid barrier. All CTAs must be resident, so the grid is as large as
 * cudaOccupancyMaxActiveClusters allows, and two such kernels must not run at the same time if each needs
 * the whole device.
 *
 * A CTA has 20 warps. 16 workers (consumers) multiply. 3 feeders (producers) fill the workers' rings with
 * weights; for long streams one feeder does so by tensor copies (cluster_mla_tensor.cuh). 1 loader fetches
 * keys. cluster_size is the size of a team; with offchip a team is one CTA, and all states go through global
 * memory. Batches above 8 have a separate kernel instance, `wide`.
 *
 * Shared memory and named barriers: cluster_mla.cuh. mbarriers, with their arrivals:
 *   full, empty       of a tile: 1 (the loader, and bytes); 16 (the workers)
 *   ready             16: epoch, lengths and rotations are set, for the loader
 *   filled, freed     of a ring's stage: 32 (a feeder's lanes, their copies complete); 1 (the ring's worker)
 *   normed, absorbed, attended    wide only: 16, the first two for the loader, the last for the feeders
 * The cluster barrier is used twice a job. Registers: workers 104, others 64 (setmaxnreg; 96 at launch, as
 * an SM quarter holds 5 warps), no spills. Optimisation history: NOTES.md.
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
	const int jobs = g.a.kv.batch * g.groups * g.parts;
	const struct body_link alone = {};
	struct mla_ctx c;

	c.lane = threadIdx.x % 32;
	c.warp = threadIdx.x / 32;
	c.words = (uint64_t *)g.a.workspace;
	ptx_griddepcontrol_launch_dependents();
	if (g.team > 1)		/* the matching wait precedes the first access to a peer's shared memory */
		ptx_barrier_cluster_arrive_relaxed();
	if (threadIdx.x >= WORKERS) {
		ptx_setmaxnreg_dec<OTHER_REGS>();
		if (c.warp < WARPS + FEEDERS) {
			/* maps->used is always 1, but without this test ptxas makes the workers spill */
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

/* The kernel with tensor copies; batches above 8 lack the registers for it. */
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
	if (a->kv.batch > 8)
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

/* Returns how many CTAs can be resident in clusters of that size, 0 if none. */
static int resident_ctas(const struct cairn_cluster_mla_args *a, int cluster)
{
	struct cairn_launch l = {};
	int clusters;

	fill_launch(&l, cluster);
	/* all kernel instances have the same occupancy */
	clusters = cairn_max_active_clusters(kernel_of(a, 0), &l);
	return clusters > 0 ? clusters * cluster : 0;
}

static int max_tiles(const struct cairn_cluster_mla_args *a)
{
	return a->kv.max_len > 0 ? (a->kv.max_len + KEYS - 1) / KEYS : 1;
}

static int num_tasks(const struct cairn_cluster_mla_args *a)
{
	return a->kv.batch * ((a->num_heads + HEADS - 1) / HEADS);
}

/*
 * Returns the cluster size for cluster_size 0: states travel through the L2 as LL words, because cluster
 * barriers cost more than they save.
 */
static int choose_cluster(void)
{
	return 1;
}

/*
 * Returns the number of steps into which the CTAs divide a product's outputs: steps of 4 outputs, or of 16
 * where units must not cross a head's end. For MLA_PRODUCTS, returns the number of merge slices.
 */
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
		return a->kv.batch * a->num_heads * SLICES;
	}
}

/*
 * out may alias x, so no CTA may write out before all CTAs have read x. A CTA is known to have read x only
 * because the others wait for its outputs of MLA_DOWN. So every CTA must compute at least one step of this
 * product, which has 160 steps of 4 rows, or more.
 */
#define MAX_CTAS	160

int cluster_mla_plan(struct mla_args *g, const struct cairn_cluster_mla_args *args, int linked)
{
	const int cluster = args->cluster_size ? args->cluster_size : choose_cluster();
	int ctas = resident_ctas(args, cluster), most = cairn_sms_of(args->sms);
	int tasks = num_tasks(args), teams;

	if (most < 0)
		return most;
	if (most < cluster)
		return cairn_error(EOPNOTSUPP, "cluster_mla: sms: clusters of %d need at least %d", cluster,
				   cluster);
	most = most < MAX_CTAS ? most : MAX_CTAS;
	ctas = ctas > most ? most / cluster * cluster : ctas;
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
	 * Use tasks of 8 heads if every tile of every task can have a CTA of its own: each CTA then writes
	 * half as much. A linked body lacks the registers for this, but with the same parts it gives the
	 * same bits.
	 */
	if (g->team == 1 && tasks * max_tiles(args) <= ctas && 2 * tasks <= ctas) {
		tasks = args->kv.batch * (args->num_heads / (HEADS / 2)); /* num_heads is a multiple of 8 */
		g->heads_shift = linked ? 4 : 3;
		if (!linked)
			g->groups = tasks / args->kv.batch;
	}
	g->parts = g->parts < teams / tasks ? g->parts : teams / tasks ? teams / tasks : 1;
	for (int i = 0; i <= MLA_PRODUCTS; i++) {
		g->each[i] = num_steps(args, i) / ctas;
		g->more[i] = num_steps(args, i) % ctas;
	}
	return ctas;
}

/*
 * Returns whether the copy engine fills the rings. It is faster on a long stream but slower at the start, so
 * it is used if a CTA's weights are more than 8 times the capacity of its rings.
 */
static int by_tensor(const struct cairn_cluster_mla_args *a, int ctas)
{
	const int64_t heads = a->num_heads, hidden = a->hidden;
	const int64_t weights = num_steps(a, MLA_DOWN) * 4 * hidden +
				(int64_t)num_steps(a, MLA_UP) * 4 * a->q_lora_rank +
				heads * (NOPE + V_DIM) * RANK + heads * V_DIM * hidden;

	return a->kv.batch <= 8 && weights * 2 > (int64_t)ctas * 8 * WARPS * STAGES * STAGE_BYTES;
}

/* Makes a map of four dimensions. Its runs are 64 bytes; promoting L2 reads to 128 bytes is faster. */
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

/* Makes the maps of a matrix of rows: of a whole stage, and of four rows (layout: cluster_mla_tensor.cuh). */
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
	if (args->kv.batch == 0)
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
	l.pdl = !args->sms;	/* a dependent launch would take SMs that this call may not use */
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
	/* parts * tasks is at most the number of teams, or the number of tasks */
	*bytes = args->kv.batch ? mla_ll(*args, num_tasks(args) + MAX_CTAS).end * sizeof(uint64_t) : 0;
	return 0;
}
