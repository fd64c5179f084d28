// SPDX-License-Identifier: Apache-2.0
/*
 * moe - one persistent kernel for the mixture-of-experts block, batch up to 8 (more: moe_rows.cu); one CTA an
 * SM
 *
 * 8 warps compute, 8 load for them (moe.cuh), 4 route (moe_route.cuh). Everyone has a share of the rows of
 * each product. (Weights of 8 bits have 16 warps that compute and load for themselves: moe_fp8.cuh. The rest
 * of this is the same for them, but for what is said.)
 *
 *   compute                                 load                         route
 *   norm weights, the router's first row    shared gates and ups
 *   -- griddepcontrol.wait --               (the same)                   -- griddepcontrol.wait --
 *   n, every CTA all of it -> shared memory
 *   the router's rows blockIdx.x,                                        logits, as they come
 *     + gridDim.x ... -> words
 *   shared gates and ups -> s, words                                     softmax, top k, distinct experts
 *   experts' gates and ups -> h, words      experts' gates and ups
 *   for 16 rows of the result at a time:
 *     shared w_down                         shared w_down
 *     experts' w_down, + x -> out           experts' w_down
 *
 * What the routing costs is hidden as the router comes first of all, and memory streams shared weights
 * meanwhile (DeepSeek-V2-Lite: 175 KB an SM, a ring holds 192). What the trip of h through the L2 costs is
 * hidden as the shared experts' w_down comes before that of the others: s has been there for long, and is
 * asked for while the experts' last gates and ups are multiplied.
 *
 * Batches: each chosen expert's weights are read once, for all requests; requests are the 8 columns of an
 * mma. A request that did not choose an expert does not add its product: not 0 times the weights, which may
 * be inf, but nothing. Each adds up its own experts by ascending number, in sums that start anew with each
 * stage.
 *
 * Shared memory
 *   0          struct moe_small						5.6 KB
 *   at_sums    float [2][8 warps][batch][16]				1 KB a request
 *   at_act     n, dtype [batch][hidden] in the lanes' order; later each warp's share of the activations of
 *              some stages, [8 warps][act_rows][256 bytes]		at least 24 KB
 *   at_rings   [8 warps][stages] of 4 KiB				up to 192 KB
 * With weights of 8 bits
 *   0          struct moe_small, of each of 16 warps where its rows of activations lie	6.6 KB
 *   at_sums    float [16 warps][2 stages][16 rows][8 requests]		16 KB
 *   at_act     as above, [16 warps][16][256 bytes]			64 KB
 *   at_rings   [16 warps][4 stages] of 2 KiB				128 KB
 * Barriers: 8 rings x stages x 2 mbarriers, full (32 arrivals: a lane's cp.async each) and empty (1; in
 * DEBUG builds 32); `routed` (32: the lanes of the warp that lists the picks); __syncthreads once;
 * MOE_WORK_BAR, the 256 threads that compute, once for 16 rows; MOE_ROUTE_BAR, the 128 that route, twice.
 * With weights of 8 bits no rings; MOE_TEAM_BAR, a team of 256, twice for 16 pairs; MOE_FP8_BAR, all 512.
 * Registers: 136 compute, 72 load, 64 route (setmaxnreg), with weights of 8 bits 104, 64; no spills.
 *
 * Floor: the weights once through memory. DeepSeek-V2-Lite (64 experts of 1408, 6 chosen, shared 2816),
 * H200, batch 1: 138.7 MB, 31.0 us at the 4.48 TB/s of a read stream; measured 35.8. Batch 8, 34 experts:
 * 638 MB, 142 us; measured 163. Weights of 8 bits are half of that, 15.5 and 71 us; measured 31.7 and
 * 118: what computes is the limit (moe_fp8.cuh). Where the rest of 16 bits goes, batch 1 in a decode step, us
 * after the end of cluster_mla:
 *   start 1.7, wait over 3.7, n 7.1, the router 8.0, the picks 12.2; shared gates and ups 13.5; the
 *   experts' 29.4; the shared w_down 33.8; the end 40.0, of the slowest CTA 41.0
 * (with 2 stages on their way from the start; with one 1.7 us less). From the picks on memory streams at
 * its rate; before them there are but 23 MB that are certain to be needed. There everything takes longer
 * than between two of these kernels, as instructions come from the L2 again, behind weights: less code is
 * faster, even where it takes more steps.
 *
 * Tried (batch 1, us, alone; in brackets a step of 27 layers)
 *   3 stages of each ring on their way instead of 2: 36.7 -> 37.5; only until the picks are known: 34.6 ->
 *     36.7 [1806 -> 1828], 6: 38.0; 1 until then: 35.9 -> 35.9 [1755 -> 1710], kept
 *   where activations lie worked out by all lanes instead of row by row, calls counted by each CTA for
 *     itself, weights of the chosen experts after the loop that finds them, 2 stages: 44.5 -> 36.7 [2175 ->
 *     1800], kept
 *   w_shared_down into the L2 while the routing is under way: 35.8 -> 36.7; shared weights into the L2 by
 *     cluster_mla: [1806 -> 1906 at once, 1847 paced, 1823 without w_shared_down]
 *   routing by warps of its own instead of by the loaders when the shared weights are out: 35.8 -> 34.6
 *     [1800 -> 1806, as what it rehearses before the wait keeps others' instructions waiting], kept,
 *     without that
 *   a rehearsal of the norm and the router too: 34.6 -> 37.0
 *   the first line of each piece of weights touched ahead: 34.6 -> 34.9 [1806 -> 1814]
 *   s asked for during the experts' last gates and ups: 35.3 -> 35.5 [1765 -> 1739], kept
 *   squares of x added up as they come, 400 instructions more: 35.5 -> 35.5 [1739 -> 1747]
 */
#include "fused/moe/moe.h"

#include <string.h>

#include "primitives/base/launch.h"
#include "fused/decode_step/decode_step_latent.h"
#include "fused/moe/moe_fp8.cuh"
#include "fused/moe/moe_rows.h"

#define MOE_WORKER_REGS	136		/* 256 threads, 256, 128: 61440, 96 each, as at the start */
#define MOE_LOADER_REGS	72
#define MOE_ROUTER_REGS	64
#define MOE_FP8_WORKER_REGS	104	/* 512 threads, 128 */

template <int dtype>
static __global__ __launch_bounds__(MOE_THREADS, 1) void moe_kernel(const __grid_constant__ struct moe_args g)
{
	const struct body_link alone = {};
	struct moe_ahead ahead = {};

	if (threadIdx.x < MOE_WORKERS)
		ahead = look_ahead(g);		/* before the loaders' flood */
	else
		moe_init((int)threadIdx.x - MOE_WORKERS, (MOE_THREADS - MOE_WORKERS) / 32);
	ptx_griddepcontrol_launch_dependents();
	__syncthreads();
	if (threadIdx.x >= 2 * MOE_WORKERS) {
		ptx_setmaxnreg_dec<MOE_ROUTER_REGS>();
		moe_routing<0>(g, alone);
	} else if (threadIdx.x >= MOE_WORKERS) {
		ptx_setmaxnreg_dec<MOE_LOADER_REGS>();
		moe_loader(g);
	} else {
		ptx_setmaxnreg_inc<MOE_WORKER_REGS>();
		moe_worker<dtype, 0>(g, ahead, alone);
	}
}

template <int dtype>
static __global__ __launch_bounds__(MOE_THREADS, 1)
void moe_fp8_kernel(const __grid_constant__ struct moe_fp8_args g)
{
	const struct body_link alone = {};
	struct moe_ahead ahead = {};

	if (threadIdx.x < MOE_WORKERS)
		ahead = look_ahead(g.moe);
	else
		moe_init((int)threadIdx.x - MOE_WORKERS, (MOE_THREADS - MOE_WORKERS) / 32);
	ptx_griddepcontrol_launch_dependents();
	__syncthreads();
	if (threadIdx.x >= MOE_FP8_WORKERS) {
		ptx_setmaxnreg_dec<MOE_ROUTER_REGS>();
		moe_routing<0, MOE_TEAMS>(g.moe, alone);
	} else {
		ptx_setmaxnreg_inc<MOE_FP8_WORKER_REGS>();
		moe_fp8_worker<dtype>(g.moe, g.scales, ahead);
	}
}

/* ---- launch ---- */

/* Lays shared memory out, with rings as deep as there is room for. Returns its bytes, or -errno. */
static int layout(struct moe_args *g, int fp8)
{
	const int warps = moe_warps(fp8), stage = fp8 ? MOE_FP8_STAGE_BYTES : MOE_STAGE_BYTES;
	const int most = fp8 ? MOE_FP8_STAGES : MOE_MAX_STAGES;
	const int normed = g->a.batch * g->a.hidden * 2, rows = warps * moe_act_rows(fp8) * MOE_ROW_BYTES;
	const int small = (int)sizeof(struct moe_small) + (fp8 ? warps * moe_act_rows(fp8) * 4 : 0);

	g->at_sums = (small + 127) / 128 * 128;
	g->at_act = g->at_sums + (fp8 ? warps * MOE_FP8_SUMS * 4 :
					2 * warps * g->a.batch * MOE_STAGE_ROWS * 4);
	/* ldmatrix steps by xor */
	g->at_rings = (g->at_act + (rows > normed ? rows : normed) + 1023) / 1024 * 1024;
	g->stages = (MOE_SMEM_MAX - g->at_rings) / (warps * stage);
	g->stages = g->stages < most ? g->stages : most;
	if (g->stages < (fp8 ? most : MOE_IN_FLIGHT))
		return cairn_error(EOPNOTSUPP, "moe: batch * hidden: %d * %d, beyond shared memory",
				   g->a.batch, g->a.hidden);
	return g->at_rings + g->stages * warps * stage;
}

/* Where the workspace's parts lie: the same whatever the batch, and nothing but words behind the counters */
static size_t plan(struct moe_args *g, char *ws)
{
	size_t at = 0;

#define PART(field, size) \
	do { *(void **)&g->field = ws + at; at += ((size_t)(size) + 255) / 256 * 256; } while (0)
	PART(calls, 4 * MOE_MAX_CTAS);
	PART(logits, MOE_MAX_BATCH * 8 * g->a.num_experts);
	PART(shared, MOE_MAX_BATCH * 4 * (size_t)g->a.shared_intermediate);
	PART(routed, MOE_MAX_BATCH * 4 * (size_t)g->a.experts_per_token * g->a.intermediate);
#undef PART
	return at;
}

int moe_plan(struct moe_args *g, const struct cairn_moe_args *args, int ctas)
{
	memcpy(&g->a, args, sizeof(g->a));
	plan(g, (char *)args->workspace);
	g->units = args->fp8w ? units_of(args->shared_intermediate, MOE_TEAMS * ctas, MOE_FP8_PAIRS) :
				units_of(args->shared_intermediate, ctas);
	return layout(g, args->fp8w);
}

int moe_launch(const struct cairn_moe_args *args, void *stream)
{
	struct cairn_launch l = {};
	struct moe_fp8_args g = { {}, moe_scales_of(args) };	/* weights of 16 bits have the front of it */
	void *params[] = { &g };
	int ctas = cairn_num_sms(), bytes;

	if (ctas < 0)
		return ctas;
	ctas = ctas < MOE_MAX_CTAS ? ctas : MOE_MAX_CTAS;
	bytes = moe_plan(&g.moe, args, ctas);
	if (bytes < 0)
		return bytes;
	l.grid[0] = (unsigned int)ctas;
	l.block[0] = MOE_THREADS;
	l.smem = (size_t)bytes;
	l.pdl = 1;
	l.stream = stream;
	if (args->fp8w)
		return cairn_launch(args->dtype == CAIRN_F16 ? (const void *)moe_fp8_kernel<CAIRN_F16> :
				    (const void *)moe_fp8_kernel<CAIRN_BF16>, &l, params);
	return cairn_launch(args->dtype == CAIRN_F16 ? (const void *)moe_kernel<CAIRN_F16> :
			    (const void *)moe_kernel<CAIRN_BF16>, &l, params);
}

size_t moe_workspace(const struct cairn_moe_args *args)
{
	struct moe_args g = {};

	memcpy(&g.a, args, sizeof(g.a));
	return args->batch ? plan(&g, NULL) : 0;
}

extern "C" int cairn_moe(const struct cairn_moe_args *args, void *stream)
{
	size_t need;

	CAIRN_TRY(cairn_moe_check(args));
	if (!args->batch)
		return 0;
	if (args->batch > CAIRN_MOE_FEW)
		return moe_rows(args, stream);
	need = moe_workspace(args);
	if (!args->workspace || (uintptr_t)args->workspace % 256 || args->workspace_bytes < need)
		return cairn_error(EINVAL, "moe: workspace: %zu bytes, 256-byte aligned, are needed", need);
	return moe_launch(args, stream);
}

extern "C" int cairn_moe_workspace(const struct cairn_moe_args *args, size_t *bytes)
{
	CAIRN_TRY(cairn_moe_check_shape(args));
	if (!bytes)
		return cairn_error(EINVAL, "moe_workspace: bytes: null pointer");
	if (args->batch > CAIRN_MOE_FEW)
		return moe_rows_workspace(args, bytes);
	*bytes = moe_workspace(args);
	return 0;
}
