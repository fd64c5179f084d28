// SPDX-License-Identifier: Apache-2.0
/*
 * moe - one persistent kernel for the mixture-of-experts block, batch up to 8; one CTA an SM
 *
 * 8 warps compute, 8 load for them (moe.cuh), 4 route (moe_route.cuh). Everyone has a share of the rows of
 * each product:
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
 *   at_act     n, dtype [batch][hidden] in the lanes' order; later each warp's share of the activations of some
 *              stages, [8 warps][act_rows][256 bytes]			at least 24 KB
 *   at_rings   [8 warps][stages] of 4 KiB				up to 192 KB
 * Barriers: 8 rings x stages x 2 mbarriers, full (32 arrivals: a lane's cp.async each) and empty (1; in
 * DEBUG builds 32); `routed` (32: the lanes of the warp that lists the picks); __syncthreads once;
 * WORK_BAR, the 256 threads that compute, once for 16 rows; ROUTE_BAR, the 128 that route, twice.
 * Registers: 136 compute, 72 load, 64 route (setmaxnreg), no spills.
 *
 * Floor: the weights once through memory. DeepSeek-V2-Lite (64 experts of 1408, 6 chosen, shared 2816),
 * H200, batch 1: 138.7 MB, 31.0 us at the 4.48 TB/s of a read stream; measured 35.9. Batch 8, 34 experts:
 * 632 MB, 141 us; measured 159. Where the rest goes, batch 1 in a decode step, us after the end of
 * cluster_mla:
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
#include "moe.h"

#include "../primitives/launch.h"
#include "moe_down.cuh"
#include "moe_route.cuh"

#define WORKER_REGS	136		/* 256 threads, 256, 128: 61440, 96 each, as at the start */
#define LOADER_REGS	72
#define ROUTER_REGS	64
#define VECS_AHEAD	4		/* of x, of 16 bytes, that a thread has in flight */

/* ---- the norm and the router ---- */

/* In n's place, request `row`: 16 bytes of lane t = 0 and columns 32 at .. 32 at + 31; of t: + 16 t */
MOE uint32_t n_at(const struct moe_args &g, int row, int at)
{
	return ptx_smem(moe_mem) + g.at_act + row * g.a.hidden * 2 + (at ^ (row & 1)) * 64;
}

/* Where pair j of the 8 elements of vector v lies: + 16 j */
MOE uint32_t n_vec(const struct moe_args &g, int row, int v)
{
	return n_at(g, row, v / 4) + (v / 2 % 2) * 8 + v % 2 * 4;
}

MOE uint4 vec_at(const void *p, int v)
{
	return __ldg((const uint4 *)p + v);
}

/* What is known before the predecessor has ended */
struct moe_ahead {
	uint4 norm, router;
};

MOE struct moe_ahead look_ahead(const struct moe_args &g)
{
	struct moe_ahead w = {};

	if ((int)threadIdx.x < g.a.hidden / 8) {
		w.norm = vec_at(g.a.norm_weight, threadIdx.x);
		if ((int)blockIdx.x < g.a.num_experts)
			w.router = vec_at((const char *)g.a.w_router + (int64_t)blockIdx.x * g.a.hidden * 2,
					  threadIdx.x);
	}
	return w;
}

/* A thread's part of a sum for request b: the sum is the same in any batch. Complete after a barrier. */
MOE void put_part(int which, int b, float part)
{
	part = row_warp_sum(part);
	if (threadIdx.x % 32 == 0)
		moe_small()->red[which][b][threadIdx.x / 32] = part;
}

MOE float sum_of(int which, int b)
{
	float sum = 0;

#pragma unroll
	for (int w = 0; w < MOE_WARPS; w++)
		sum += moe_small()->red[which][b][w];
	return sum;
}

/* n = rmsnorm of all rows, into shared memory; of it each thread has what it wrote. */
template <int dtype>
MOE void make_n(const struct moe_args &g, const struct moe_ahead &ahead)
{
	const uint4 *x = (const uint4 *)g.a.x;
	const int vecs = g.a.hidden / 8, per_row = (vecs + WORKERS - 1) / WORKERS, batch = g.a.batch;
	int load_b = 0, load_v = threadIdx.x;
	float f[2], w[8];

	/* the rows one after the other, of each its vectors; what is beyond a row's end is passed over */
#pragma unroll 1
	for (int i = 0; i < batch * per_row; i += VECS_AHEAD) {
		int b = load_b, v = load_v;
		uint4 p[VECS_AHEAD];

#pragma unroll
		for (int j = 0; j < VECS_AHEAD; j++) {
			if (load_b < batch && load_v < vecs)
				p[j] = __ldcg(x + (int64_t)load_b * vecs + load_v);
			load_v += WORKERS;
			if (load_v >= per_row * WORKERS) {
				load_v = threadIdx.x;
				load_b++;
			}
		}
#pragma unroll
		for (int j = 0; j < VECS_AHEAD; j++) {
			if (b < batch && v < vecs) {
				ptx_st_shared_b32(n_vec(g, b, v), p[j].x);
				ptx_st_shared_b32(n_vec(g, b, v) + 16, p[j].y);
				ptx_st_shared_b32(n_vec(g, b, v) + 32, p[j].z);
				ptx_st_shared_b32(n_vec(g, b, v) + 48, p[j].w);
			}
			v += WORKERS;
			if (v >= per_row * WORKERS) {
				v = threadIdx.x;
				b++;
			}
		}
	}
#pragma unroll 1
	for (int b = 0; b < batch; b++) {
		float sum = 0;

#pragma unroll 1
		for (int v = threadIdx.x; v < vecs; v += WORKERS)
#pragma unroll
			for (int j = 0; j < 4; j++) {
				row_unpack2<dtype>(ptx_ld_shared_b32(n_vec(g, b, v) + 16 * j), f);
				sum += f[0] * f[0] + f[1] * f[1];
			}
		put_part(0, b, sum);
	}
	work_sync();
#pragma unroll 1
	for (int b = 0; b < batch; b++) {
		const float scale = rsqrtf(sum_of(0, b) / (float)g.a.hidden + g.a.eps);

#pragma unroll 1
		for (int v = threadIdx.x; v < vecs; v += WORKERS) {
			const uint32_t at = n_vec(g, b, v);

			row_unpack<dtype>(v < WORKERS ? ahead.norm : vec_at(g.a.norm_weight, v), w);
#pragma unroll
			for (int j = 0; j < 4; j++) {
				row_unpack2<dtype>(ptx_ld_shared_b32(at + 16 * j), f);
				ptx_st_shared_b32(at + 16 * j, row_pack2<dtype>(f[0] * scale * w[2 * j],
										f[1] * scale * w[2 * j + 1]));
			}
		}
	}
}

/* Logits of this CTA's experts. Ends with a barrier: n is complete. */
template <int dtype>
MOE void run_router(const struct moe_args &g, const struct moe_ahead &ahead, uint32_t number)
{
	const int vecs = g.a.hidden / 8, batch = g.a.batch;
	int which = 1;

#pragma unroll 1
	for (int e = blockIdx.x; e < g.a.num_experts; e += gridDim.x, which ^= 1) {
		const char *row = (const char *)g.a.w_router + (int64_t)e * g.a.hidden * 2;

#pragma unroll 1
		for (int b = 0; b < batch; b++) {
			float sum = 0, f[2], w[8];

#pragma unroll 1
			for (int v = threadIdx.x; v < vecs; v += WORKERS) {
				row_unpack<dtype>(e == (int)blockIdx.x && v < WORKERS ? ahead.router : vec_at(row, v), w);
#pragma unroll
				for (int j = 0; j < 4; j++) {
					row_unpack2<dtype>(ptx_ld_shared_b32(n_vec(g, b, v) + 16 * j), f);
					sum += f[0] * w[2 * j] + f[1] * w[2 * j + 1];
				}
			}
			put_part(which, b, sum);
		}
		work_sync();
		if ((int)threadIdx.x < batch)
			ptx_st_relaxed_gpu_u64(g.logits + (int64_t)threadIdx.x * g.a.num_experts + e,
					       (uint64_t)number << 32 | __float_as_uint(sum_of(which, threadIdx.x)));
	}
	work_sync();
}

/* ---- gates and ups ---- */

/* Where in the words of a request's activations the pair that begins with an (even) element lies */
MOE int word_at(int element)
{
	return element / 16 * 8 + element % 8 / 2 * 2 + element % 16 / 8;
}

/* Up to 8 pairs of a gate and an up, from `row` on. pick: NULL: of the shared experts. */
template <int dtype>
MOE void gate_up(const struct moe_args &g, struct ring &r, struct moe_sums &s, int row, int count,
		 const struct moe_pick *pick, uint32_t number)
{
	const int lane = threadIdx.x % 32, quad = lane / 4, t = lane % 4;
	const int element = s.turn * 32 + lane, b = element / STAGE_ROWS, at = element % STAGE_ROWS;
	float sum[2][2][4] = {}, total;

#pragma unroll 1
	for (int first = threadIdx.x / 32 * STAGE_K; first < g.a.hidden; first += 2 * MOE_WARPS * STAGE_K) {
#pragma unroll
		for (int i = 0; i < 2; i++) {
			const int from = first + i * MOE_WARPS * STAGE_K;
			uint4 x[4];

			if (from >= g.a.hidden)
				break;
#pragma unroll
			for (int j = 0; j < 4; j++)
				x[j] = quad < g.a.batch && from + 32 * j < g.a.hidden ?
				       ptx_ld_shared_v4(n_at(g, quad, from / 32 + j) + t * 16) :
				       make_uint4(0, 0, 0, 0);
			multiply<dtype>(ring_wait(r), x, g.a.hidden - from, sum[i]);
			ring_release(g, r);
		}
	}
#pragma unroll
	for (int j = 0; j < 4; j++)
		sum[0][0][j] = sum[0][0][j] + sum[0][1][j] + (sum[1][0][j] + sum[1][1][j]);
	total = sum_up(g, s, sum[0][0], element);
	if (s.turn < sum_writers(g)) {
		const uint32_t slot = pick ? pick->slots >> 4 * b & 15 : 0;
		float up = __shfl_down_sync(~0u, total, 8), v = total / (1 + expf(-total)) * up, next;

		if (pick && b < g.a.batch)
			v *= moe_small()->weight[b][slot];
		next = __shfl_down_sync(~0u, v, 1);
		if (b < g.a.batch && at < count && at % 2 == 0 && (!pick || pick->mask >> b & 1)) {
			uint64_t *to = !pick ? g.shared + (int64_t)b * (g.a.shared_intermediate / 2) :
				       g.routed + (int64_t)(b * g.a.experts_per_token + slot) * (g.a.intermediate / 2);

			ptx_st_relaxed_gpu_u64(to + word_at(row + at),
					       (uint64_t)number << 32 | row_pack2<dtype>(v, next));
		}
	}
	next_turn(g, s);
}

/* ---- the kernel ---- */

template <int dtype>
MOE void run_worker(const struct moe_args &g, const struct moe_ahead &ahead)
{
	struct ring r = ring_of(g, threadIdx.x / 32);
	struct moe_sums s = { 0, (int)threadIdx.x / 32 };
	const int2 cta_rows = share_of(g.a.hidden);
	struct moe_slices slices = {};
	struct moe_rows_ahead rows;
	uint32_t number;

	ptx_griddepcontrol_wait();
	number = __ldcg(g.calls + blockIdx.x) + 1;
	make_n<dtype>(g, ahead);
	run_router<dtype>(g, ahead, number);
	rows.stages = rows.rows = 0;
#pragma unroll 1
	for (int routed = 0; routed < 2; routed++) {
		const int intermediate = routed ? g.a.intermediate : g.a.shared_intermediate;
		struct moe_units units;

		if (routed) {
			ptx_mbarrier_wait(ptx_smem(&moe_small()->routed), 0);
			slices = slices_of(g);
		}
		units = routed ? moe_small()->units : g.units;
#pragma unroll 1
		for (int i = 0; i < units.rounds; i++) {
			if (routed && i == units.rounds - 1)	/* what s became is there by now */
				ask_rows(g, slices, 0, rows);
#pragma unroll 1
			for (int2 p = unit_pairs(units, i); p.x < p.y;) {
				struct moe_unit u = unit_at(p.x, p.y, intermediate);

				gate_up<dtype>(g, r, s, u.row, u.count,
					       routed ? &moe_small()->pick[u.pick] : NULL, number);
				p.x += u.count;
			}
		}
	}
	if (threadIdx.x == 0)
		g.calls[blockIdx.x] = number;	/* those who route have read it */
#pragma unroll 1
	for (int row = cta_rows.x; row < cta_rows.y; row += STAGE_ROWS)
		down<dtype>(g, r, s, slices, rows, row, cta_rows.y - row, number);
}

MOE void run_loader(const struct moe_args &g)
{
	struct loader l;

	l.ring = l.oldest = ring_of(g, (int)threadIdx.x / 32 - MOE_WARPS);
	l.in_flight = 0;
	l.most = IN_FLIGHT_FIRST;
	l.policy = ptx_createpolicy_evict_first();
	load_gates_and_ups(g, l, 0);
	ptx_mbarrier_wait(ptx_smem(&moe_small()->routed), 0);
	l.most = IN_FLIGHT;
	load_gates_and_ups(g, l, 1);
	load_downs(g, l);
	ptx_cp_async_commit_group();
	ptx_cp_async_wait_group<0>();
}

template <int dtype>
static __global__ __launch_bounds__(THREADS, 1) void moe_kernel(const __grid_constant__ struct moe_args g)
{
	struct moe_small *s = moe_small();
	struct moe_ahead ahead = {};

	if (threadIdx.x < WORKERS)
		ahead = look_ahead(g);		/* before the loaders' flood */
	else if (threadIdx.x < WORKERS + MOE_WARPS * MAX_STAGES * 2)
		ptx_mbarrier_init(ptx_smem(s->mbar) + (threadIdx.x - WORKERS) * 8, threadIdx.x % 2 ? USED_UP : 32);
	else if (threadIdx.x == THREADS - 1)
		ptx_mbarrier_init(ptx_smem(&s->routed), 32);
	ptx_griddepcontrol_launch_dependents();
	__syncthreads();
	if (threadIdx.x >= 2 * WORKERS) {
		ptx_setmaxnreg_dec<ROUTER_REGS>();
		run_routing(g);
	} else if (threadIdx.x >= WORKERS) {
		ptx_setmaxnreg_dec<LOADER_REGS>();
		run_loader(g);
	} else {
		ptx_setmaxnreg_inc<WORKER_REGS>();
		run_worker<dtype>(g, ahead);
	}
}

/* ---- launch ---- */

#define SMEM_MAX	(227 * 1024)

/* Lays shared memory out, with rings as deep as there is room for. Returns its bytes, or -errno. */
static int layout(struct moe_args *g)
{
	const int normed = g->a.batch * g->a.hidden * 2, rows = MOE_WARPS * ACT_ROWS * ROW_BYTES;

	g->at_sums = ((int)sizeof(struct moe_small) + 127) / 128 * 128;
	g->at_act = g->at_sums + 2 * MOE_WARPS * g->a.batch * STAGE_ROWS * 4;
	/* ldmatrix steps by xor */
	g->at_rings = (g->at_act + (rows > normed ? rows : normed) + 1023) / 1024 * 1024;
	g->stages = (SMEM_MAX - g->at_rings) / (MOE_WARPS * STAGE_BYTES);
	g->stages = g->stages < MAX_STAGES ? g->stages : MAX_STAGES;
	if (g->stages < IN_FLIGHT)
		return cairn_error(EOPNOTSUPP, "moe: batch * hidden: %d * %d, beyond shared memory", g->a.batch,
				   g->a.hidden);
	return g->at_rings + g->stages * MOE_WARPS * STAGE_BYTES;
}

/* Where the workspace's parts lie: the same whatever the batch, and nothing but words behind the counters */
static size_t plan(struct moe_args *g, char *ws)
{
	size_t at = 0;

#define PART(field, size) \
	do { *(void **)&g->field = ws + at; at += ((size_t)(size) + 255) / 256 * 256; } while (0)
	PART(calls, 4 * MAX_CTAS);
	PART(logits, MAX_BATCH * 8 * g->a.num_experts);
	PART(shared, MAX_BATCH * 4 * (size_t)g->a.shared_intermediate);
	PART(routed, MAX_BATCH * 4 * (size_t)g->a.experts_per_token * g->a.intermediate);
#undef PART
	return at;
}

extern "C" int cairn_moe(const struct cairn_moe_args *args, void *stream)
{
	struct cairn_launch l = {};
	struct moe_args g = {};
	void *params[] = { &g };
	int num_sms, bytes;
	size_t need;

	CAIRN_TRY(cairn_moe_check(args));
	if (!args->batch)
		return 0;
	g.a = *args;
	need = plan(&g, (char *)args->workspace);
	if (!args->workspace || (uintptr_t)args->workspace % 256 || args->workspace_bytes < need)
		return cairn_error(EINVAL, "moe: workspace: %zu bytes, 256-byte aligned, are needed", need);
	num_sms = cairn_num_sms();
	if (num_sms < 0)
		return num_sms;
	bytes = layout(&g);
	if (bytes < 0)
		return bytes;
	g.units = units_of(args->shared_intermediate, num_sms < MAX_CTAS ? num_sms : MAX_CTAS);
	l.grid[0] = (unsigned int)(num_sms < MAX_CTAS ? num_sms : MAX_CTAS);
	l.block[0] = THREADS;
	l.smem = (size_t)bytes;
	l.pdl = 1;
	l.stream = stream;
	return cairn_launch(args->dtype == CAIRN_F16 ? (const void *)moe_kernel<CAIRN_F16> :
			    (const void *)moe_kernel<CAIRN_BF16>, &l, params);
}

extern "C" int cairn_moe_workspace(const struct cairn_moe_args *args, size_t *bytes)
{
	struct moe_args g = {};

	CAIRN_TRY(cairn_moe_check_shape(args));
	if (!bytes)
		return cairn_error(EINVAL, "moe_workspace: bytes: null pointer");
	g.a = *args;
	*bytes = args->batch ? plan(&g, NULL) : 0;
	return 0;
}
