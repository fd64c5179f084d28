// SPDX-License-Identifier: Apache-2.0
/*
 * moe - one persistent kernel, with one CTA per SM, for the mixture-of-experts block of up to 8 rows (more,
 * and 4-bit weights: moe_rows.cu)
 *
 * 8 warps compute, 8 load weights for them (moe.cuh) and 4 route (moe_route.cuh). Each CTA has a share of the
 * rows of every product. With 8-bit weights, 16 warps compute and load for themselves (moe_fp8.cuh).
 *
 *   compute                                 load                         route
 *   norm weights, the router's first row    shared gates and ups
 *   -- griddepcontrol.wait --               (the same)                   -- griddepcontrol.wait --
 *   n, in full -> shared memory
 *   the router's rows blockIdx.x,                                        logits, as they arrive
 *     + gridDim.x ... -> LL words
 *   shared gates and ups -> s, LL words                                  softmax, top k, distinct experts
 *   experts' gates and ups -> h, LL words   experts' gates and ups
 *   for 16 rows of the result at a time:
 *     shared w_down                         shared w_down
 *     experts' w_down, + x -> out           experts' w_down
 *
 * The router comes first. Shared weights stream meanwhile (DeepSeek-V2-Lite: 175 KB per SM; the rings hold
 * 192 KB) and hide the routing. The shared w_down comes before the experts' w_down and hides the round trip
 * of h through the L2; s is loaded while the experts' last gates and ups are multiplied.
 *
 * Batches: each chosen expert's weights are read once for all requests, which are the 8 columns of an mma. A
 * request that did not choose an expert adds nothing for it (0 times an infinite weight would be NaN). A
 * request adds its own experts in ascending order of their numbers; sums restart with each stage.
 *
 * Shared memory (in brackets with 8-bit weights)
 *   0         struct moe_small (and the row table of 16 warps)  5.6 KB (6.6)
 *   at_sums   float [2][8 warps][batch][16]                     1 KB per row ([16 warps][2][16][8]: 16 KB)
 *   at_act    n, dtype [batch][hidden] in lane order; then activations, [8 warps][act_rows][256 bytes]
 *                                                               at least 24 KB ([16][16][256 bytes]: 64 KB)
 *   at_rings  [8 warps][stages] of 4 KiB                        up to 192 KB ([16][4] of 2 KiB: 128 KB)
 * Barriers: 8 rings x stages x 2 mbarriers, full (32 arrivals) and empty (1; DEBUG 32); `routed` (32, the
 * warp that lists the picks); __syncthreads once; MOE_WORK_BAR (256 compute threads) once per 16 rows;
 * MOE_ROUTE_BAR (128) twice. 8 bits: no ring mbarriers; MOE_TEAM_BAR (256) twice per 16 pairs; MOE_FP8_BAR
 * (512).
 * Registers per thread: 136 compute, 72 load, 64 route (setmaxnreg); 8 bits: 104 and 64; no spills.
 * Floor: the weights once through memory. Optimisation history: NOTES.md.
 */
#include "fused/moe/moe.h"

#include <string.h>

#include "primitives/base/args.h"
#include "primitives/base/launch.h"
#include "fused/moe/moe_launch.h"
#include "fused/moe/moe_fp8.cuh"
#include "fused/moe/moe_rows.h"

#define MOE_WORKER_REGS	136		/* 256 threads, 256, 128: 61440 registers, 96 each at the start */
#define MOE_LOADER_REGS	72
#define MOE_ROUTER_REGS	64
#define MOE_FP8_WORKER_REGS	104	/* 512 threads, 128 */

/* plain: there are no biases of experts, and the activation is silu(gate) * up */
template <int dtype, bool plain>
static __global__ __launch_bounds__(MOE_THREADS, 1)
void moe_kernel(const __grid_constant__ struct moe_args g, const __grid_constant__ struct moe_choose c,
		const __grid_constant__ struct cairn_moe_between between)
{
	const struct body_link alone = {};
	struct moe_ahead ahead = {};

	if (threadIdx.x < MOE_WORKERS)
		ahead = look_ahead(g);		/* before the loaders fill the memory queues */
	else
		moe_init((int)threadIdx.x - MOE_WORKERS, (MOE_THREADS - MOE_WORKERS) / 32);
	ptx_griddepcontrol_launch_dependents();
	__syncthreads();
	if (threadIdx.x >= 2 * MOE_WORKERS) {
		ptx_setmaxnreg_dec<MOE_ROUTER_REGS>();
		moe_routing<0>(g, alone, c);
	} else if (threadIdx.x >= MOE_WORKERS) {
		ptx_setmaxnreg_dec<MOE_LOADER_REGS>();
		moe_loader(g);
	} else {
		ptx_setmaxnreg_inc<MOE_WORKER_REGS>();
		moe_worker<dtype, 0, plain>(g, ahead, alone, between);
	}
}

template <int dtype>
static __global__ __launch_bounds__(MOE_THREADS, 1)
void moe_fp8_kernel(const __grid_constant__ struct moe_fp8_args g,
		    const __grid_constant__ struct moe_choose c)
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
		moe_routing<0, MOE_TEAMS>(g.moe, alone, c);
	} else {
		ptx_setmaxnreg_inc<MOE_FP8_WORKER_REGS>();
		moe_fp8_worker<dtype>(g.moe, g.scales, ahead);
	}
}

/* ---- launch ---- */

/* Lays out shared memory, with the deepest rings that fit. Returns its size in bytes, or -errno. */
static int layout(struct moe_args *g, int fp8)
{
	const int warps = moe_warps(fp8), stage = fp8 ? MOE_FP8_STAGE_BYTES : MOE_STAGE_BYTES;
	const int most = fp8 ? MOE_FP8_STAGES : MOE_MAX_STAGES;
	const int normed = g->a.batch * g->a.hidden * 2, rows = warps * moe_act_rows(fp8) * MOE_ROW_BYTES;
	const int small = (int)sizeof(struct moe_small) + (fp8 ? warps * moe_act_rows(fp8) * 4 : 0);

	g->at_sums = (small + 127) / 128 * 128;
	g->at_act = g->at_sums + (fp8 ? warps * MOE_FP8_SUMS * 4 :
					2 * warps * g->a.batch * MOE_STAGE_ROWS * 4);
	/* ldmatrix addresses step by xor */
	g->at_rings = (g->at_act + (rows > normed ? rows : normed) + 1023) / 1024 * 1024;
	g->stages = (MOE_SMEM_MAX - g->at_rings) / (warps * stage);
	g->stages = g->stages < most ? g->stages : most;
	if (g->stages < (fp8 ? most : MOE_IN_FLIGHT))
		return cairn_error(EOPNOTSUPP, "moe: batch, hidden: %d * %d do not fit into shared memory",
				   g->a.batch, g->a.hidden);
	return g->at_rings + g->stages * warps * stage;
}

/* Sets the addresses in the workspace. They do not depend on batch. Only LL words follow the counters. */
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
	cairn_copy_args(&g->a, args, sizeof(g->a));
	g->adds_x = cairn_moe_adds_x(args);
	plan(g, (char *)args->workspace);
	g->units = args->fp8w ? units_of(args->shared_intermediate, MOE_TEAMS * ctas, MOE_FP8_PAIRS) :
				units_of(args->shared_intermediate, ctas);
	return layout(g, args->fp8w);
}

int moe_launch(const struct cairn_moe_args *args, void *stream)
{
	struct cairn_launch l = {};
	/* the kernel for 16-bit weights takes only the first part of g */
	struct moe_fp8_args g = { {}, moe_scales_of(args) };
	struct moe_choose c = moe_choose_of(args);
	struct cairn_moe_between between = cairn_moe_between_of(args);
	void *params[] = { &g, &c, &between };	/* the kernel for 8-bit weights takes two */
	int ctas = cairn_sms_of(args->sms), bytes;
	const void *kernel;

	if (ctas < 0)
		return ctas;
	ctas = ctas < MOE_MAX_CTAS ? ctas : MOE_MAX_CTAS;
	bytes = moe_plan(&g.moe, args, ctas);
	if (bytes < 0)
		return bytes;
	l.grid[0] = (unsigned int)ctas;
	l.block[0] = MOE_THREADS;
	l.smem = (size_t)bytes;
	l.pdl = !args->sms;	/* with sms set, a dependent launch would start on other calls' SMs */
	l.stream = stream;
	if (args->fp8w)
		kernel = args->dtype == CAIRN_F16 ? (const void *)moe_fp8_kernel<CAIRN_F16> :
			 (const void *)moe_fp8_kernel<CAIRN_BF16>;
	else if (cairn_moe_is_plain(&between))
		kernel = args->dtype == CAIRN_F16 ? (const void *)moe_kernel<CAIRN_F16, true> :
			 (const void *)moe_kernel<CAIRN_BF16, true>;
	else
		kernel = args->dtype == CAIRN_F16 ? (const void *)moe_kernel<CAIRN_F16, false> :
			 (const void *)moe_kernel<CAIRN_BF16, false>;
	CAIRN_TRY(cairn_check_resident(kernel, &l, "moe"));
	return cairn_launch(kernel, &l, params);
}

size_t moe_workspace(const struct cairn_moe_args *args)
{
	struct moe_args g = {};

	cairn_copy_args(&g.a, args, sizeof(g.a));
	return args->batch ? plan(&g, NULL) : 0;
}

extern "C" int cairn_moe(const struct cairn_moe_args *args, void *stream)
{
	size_t need;

	CAIRN_TRY(cairn_moe_check(args));
	if (!args->batch)
		return 0;
	if (args->batch > CAIRN_MOE_FEW || cairn_moe_w4_of(args))
		return moe_rows(args, stream);
	need = moe_workspace(args);
	if (!args->workspace || (uintptr_t)args->workspace % 256 || args->workspace_bytes < need)
		return cairn_error(EINVAL, "moe: workspace: needs %zu bytes, 256-byte aligned", need);
	return moe_launch(args, stream);
}

extern "C" int cairn_moe_workspace(const struct cairn_moe_args *args, size_t *bytes)
{
	CAIRN_TRY(cairn_moe_check_shape(args));
	if (!bytes)
		return cairn_error(EINVAL, "moe_workspace: bytes: null pointer");
	*bytes = 0;
	if (args->batch > CAIRN_MOE_FEW || (args->batch && cairn_moe_w4_of(args)))
		return moe_rows_workspace(args, bytes);
	*bytes = moe_workspace(args);
	return 0;
}
