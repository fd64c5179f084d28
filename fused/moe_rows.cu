// SPDX-License-Identifier: Apache-2.0
/*
 * moe_rows - a mixture of experts on many rows: rows sorted by expert, and two products of tiles of them
 *
 *   rmsnorm      n
 *   gemm         logits, fp32                       (both operations of the table)
 *   choose       softmax, the k best, a warp a row
 *   sort         one CTA: slots by expert, and the list of tiles; a slot is a row and one of its experts
 *   gate_up      h = silu(n w_gate^T) * (n w_up^T) * weight, tiles of 128 slots x 64 columns of each
 *   down         y = h w_down^T, fp32, tiles of 128 x 128
 *   combine      out = x + the y of a row's slots, in the order of its experts, then the shared one
 *
 * The shared experts are one more expert, which all rows have. How many tiles there are is known to the
 * device alone: the grid is an upper bound, and CTAs past the list leave at once. Tiles of an expert are
 * neighbours in the grid, so that its weights come from memory once and from the L2 for the other tiles.
 *
 * A product: 8 warps of 32 x 64 (mma.m16n8k16), steps of 64 of k, three stages of cp.async, two CTAs an SM.
 * Rows of n are gathered by the copy itself: a thread keeps the addresses of its four rows. Warp column p of
 * gate_up has gates 32 p .. 32 p + 31 and their ups, so that silu meets both in one thread. Warps whose rows
 * are all past the tile's last one load, but do not multiply.
 *
 * Shared memory: 3 stages of A [128][64] and B [128][64], 96 KiB; 16-byte chunks of a row lie at chunk ^ (row
 * & 7). Barriers: __syncthreads() once a step.
 *
 * A slot's numbers depend on its row alone, not on where in a tile it lies: so what the atomics of the sort
 * leave open, the order within an expert, cannot be seen in the result.
 */
#include "moe_rows.h"

#include <string.h>

#include "../primitives/gemm.h"
#include "../primitives/launch.h"
#include "../primitives/rmsnorm.h"
#include "../primitives/row.cuh"
#include "moe_rows.cuh"

#define STAGES		3
#define STAGE_BYTES	(2 * SIDE_BYTES)
#define MAX_EXPERTS	256
#define SORT_THREADS	1024

/* Larger keys for larger logits, 1 for NaN; 0 is left for what has been taken. */
ATTN_DEV uint32_t key_of(float x)
{
	uint32_t bits = __float_as_uint(x);

	return isnan(x) ? 1 : bits >> 31 ? ~bits : bits | 0x80000000u;
}

static __global__ __launch_bounds__(THREADS) void choose_kernel(const __grid_constant__ struct rows g)
{
	constexpr int most = MAX_EXPERTS / 32;
	const int row = blockIdx.x * (THREADS / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
	const int num = g.a.num_experts, k = g.a.experts_per_token;
	float logit[most], top = -CUDART_INF_F, sum = 0, mine = 0, chosen;
	uint32_t key[most], expert = 0;

	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	if (row >= g.a.batch)
		return;
#pragma unroll
	for (int i = 0; i < most; i++) {
		int e = lane + 32 * i;

		logit[i] = e < num ? g.logits[(int64_t)row * num + e] : -CUDART_INF_F;
		key[i] = e < num ? key_of(logit[i]) : 0;
		top = fmaxf(top, logit[i]);
	}
#pragma unroll
	for (int s = 16; s; s /= 2)
		top = fmaxf(top, __shfl_xor_sync(~0u, top, s));
#pragma unroll
	for (int i = 0; i < most; i++)
		sum += lane + 32 * i < num ? expf(logit[i] - top) : 0;
#pragma unroll
	for (int s = 16; s; s /= 2)
		sum += __shfl_xor_sync(~0u, sum, s);
	for (int n = 0; n < k; n++) {
		uint32_t best = 0, at = ~0u;
		float p = 0;

#pragma unroll
		for (int i = 0; i < most; i++)
			best = max(best, key[i]);
		best = __reduce_max_sync(~0u, best);
#pragma unroll
		for (int i = most - 1; i >= 0; i--)
			if (key[i] == best && lane + 32 * i < num)
				at = lane + 32 * i;
		at = __reduce_min_sync(~0u, at);
#pragma unroll
		for (int i = 0; i < most; i++)
			if (lane + 32 * i == (int)at) {
				key[i] = 0;
				p = logit[i];
			}
		p = __shfl_sync(~0u, p, at % 32);
		if (lane == n) {
			mine = expf(p - top) / sum;
			expert = at;
		}
	}
	chosen = mine;
#pragma unroll
	for (int s = 16; s; s /= 2)
		chosen += __shfl_xor_sync(~0u, chosen, s);
	if (lane >= k)
		return;
	g.choice[row * k + lane] = (int)expert;
	g.weight[row * k + lane] = (g.a.normalize ? mine / chosen : mine) * g.a.scaling;
	if (g.a.experts)
		g.a.experts[row * k + lane] = (int)expert;
}

/*
 * Exclusive prefix sums of 256 numbers of shared memory, in place, by the first 256 threads; returns the
 * total.
 */
ATTN_DEV int32_t scan_256(int32_t *s_x, int32_t *s_warp)
{
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	int32_t own = threadIdx.x < MAX_EXPERTS ? s_x[threadIdx.x] : 0, x = own, base = 0, total = 0;

#pragma unroll
	for (int s = 1; s < 32; s *= 2) {
		int32_t y = __shfl_up_sync(~0u, x, s);

		x += lane >= s ? y : 0;
	}
	if (lane == 31 && warp < 8)
		s_warp[warp] = x;
	__syncthreads();
#pragma unroll
	for (int w = 0; w < 8; w++) {
		base += w < warp ? s_warp[w] : 0;
		total += s_warp[w];
	}
	if (threadIdx.x < MAX_EXPERTS)
		s_x[threadIdx.x] = base + x - own;
	__syncthreads();
	return total;
}

static __global__ __launch_bounds__(SORT_THREADS) void sort_kernel(const __grid_constant__ struct rows g)
{
	__shared__ int32_t s_count[MAX_EXPERTS], s_first[MAX_EXPERTS], s_tile[MAX_EXPERTS], s_warp[8];
	const int thread = threadIdx.x;
	int32_t tiles, shared_tiles = g.a.shared_intermediate ? attn_div_up(g.a.batch, TILE) : 0;

	if (thread < MAX_EXPERTS)
		s_count[thread] = 0;
	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	__syncthreads();
	for (int i = thread; i < g.num_slots; i += SORT_THREADS)
		atomicAdd(&s_count[g.choice[i]], 1);
	__syncthreads();
	if (thread < MAX_EXPERTS) {
		s_first[thread] = s_count[thread];
		s_tile[thread] = attn_div_up(s_count[thread], TILE);
	}
	__syncthreads();
	scan_256(s_first, s_warp);
	tiles = scan_256(s_tile, s_warp);
	if (thread < MAX_EXPERTS)
		for (int32_t at = 0; at < s_count[thread]; at += TILE)
			g.tiles[s_tile[thread] + at / TILE] = (struct tile){
				thread, s_first[thread] + at, min(s_count[thread] - at, TILE), 0 };
	for (int i = thread; i < g.num_tiles - tiles; i += SORT_THREADS) {
		struct tile none = { 0, 0, 0, 0 }, shared = { g.a.num_experts, g.num_slots + i * TILE,
			min(g.a.batch - i * TILE, TILE), 0 };

		g.tiles[tiles + i] = i < shared_tiles ? shared : none;
	}
	__syncthreads();
	for (int i = thread; i < g.num_slots; i += SORT_THREADS) {
		int32_t at = atomicAdd(&s_first[g.choice[i]], 1);

		g.pair[at] = i;
		g.slot[i] = at;
	}
}

/* What a thread copies of each step: four rows of A and four of B, one 16-byte chunk of each. */
struct copies {
	const char *a[4], *b[4];
	uint32_t to, a_bytes[4], b_bytes[4];
};

ATTN_DEV void start_copy(const struct copies &c, uint32_t s_stage, int step)
{
	const int64_t at = (int64_t)step * STEP * 2;

#pragma unroll
	for (int i = 0; i < 4; i++) {
		ptx_cp_async_cg(s_stage + c.to + i * 32 * STEP * 2, c.a[i] + (c.a_bytes[i] ? at : 0),
				c.a_bytes[i]);
		ptx_cp_async_cg(s_stage + SIDE_BYTES + c.to + i * 32 * STEP * 2,
				c.b[i] + (c.b_bytes[i] ? at : 0), c.b_bytes[i]);
	}
}

template <int dtype>
ATTN_DEV void product(float (*sum)[8][4], const struct copies &c, int steps, bool idle, int m, int b0, int b1)
{
	extern __shared__ __align__(1024) uint8_t s_mem[];
	const uint32_t s_stages = ptx_smem(s_mem);

#pragma unroll
	for (int s = 0; s < STAGES - 1; s++) {
		if (s < steps)
			start_copy(c, s_stages + s * STAGE_BYTES, s);
		ptx_cp_async_commit_group();
	}
	for (int step = 0, stage = 0; step < steps; step++) {
		int next = stage ? stage - 1 : STAGES - 1;

		ptx_cp_async_wait_group<STAGES - 2>();
		__syncthreads();	/* the stage is there, and the one before is read no more */
		if (step + STAGES - 1 < steps)
			start_copy(c, s_stages + next * STAGE_BYTES, step + STAGES - 1);
		ptx_cp_async_commit_group();
		if (!idle)
			multiply<dtype>(sum, s_stages + stage * STAGE_BYTES, SIDE_BYTES, m, b0, b1);
		stage = stage + 1 == STAGES ? 0 : stage + 1;
	}
}

template <int dtype>
static __global__ __launch_bounds__(THREADS, 2) void gate_up_kernel(const __grid_constant__ struct rows g)
{
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, m = warp % 4, part = warp / 4;
	const int64_t hidden = g.a.hidden;
	float sum[2][8][4] = {};
	struct copies c;
	struct tile t;
	const char *w;
	int width, n0 = blockIdx.y * (TILE / 2), shared;
	uint16_t *h;

	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	t = g.tiles[blockIdx.x];
	shared = t.expert == g.a.num_experts;
	width = shared ? g.a.shared_intermediate : g.a.intermediate;
	if (!t.count || n0 >= width)
		return;
	w = shared ? (const char *)g.a.w_shared_gate_up :
	    (const char *)g.a.w_gate_up + t.expert * (int64_t)width * hidden * 4;
	c.to = attn_swizzle(threadIdx.x / 8, threadIdx.x % 8, STEP * 2);
#pragma unroll
	for (int i = 0; i < 4; i++) {
		int r = threadIdx.x / 8 + 32 * i, there = r < t.count, row = 0;
		int column = r < TILE / 2 ? n0 + r : width + n0 + r - TILE / 2;

		if (there)
			row = shared ? t.first + r - g.num_slots :
			      g.pair[t.first + r] / g.a.experts_per_token;
		c.a[i] = (const char *)g.n + (row * hidden + threadIdx.x % 8 * 8) * 2;
		c.a_bytes[i] = there ? 16 : 0;
		c.b[i] = w + (column * hidden + threadIdx.x % 8 * 8) * 2;
		c.b_bytes[i] = 16;
	}
	product<dtype>(sum, c, g.a.hidden / STEP, m * 32 >= t.count, m, part * 32, TILE / 2 + part * 32);
	h = shared ? (uint16_t *)g.shared_h + (int64_t)(t.first - g.num_slots) * width :
	    (uint16_t *)g.h + (int64_t)t.first * width;
#pragma unroll
	for (int i = 0; i < 4; i++) {		/* m16 tile i / 2, its rows lane / 4 + 8 (i % 2) */
		int r = m * 32 + i / 2 * 16 + i % 2 * 8 + lane / 4;
		float weight;

		if (r >= t.count)
			continue;
		weight = shared ? 1 : g.weight[g.pair[t.first + r]];
#pragma unroll
		for (int j = 0; j < 4; j++) {
			float v[2];

#pragma unroll
			for (int e = 0; e < 2; e++) {
				float gate = sum[i / 2][j][i % 2 * 2 + e];

				v[e] = gate / (1 + expf(-gate)) * sum[i / 2][4 + j][i % 2 * 2 + e] * weight;
			}
			*(uint32_t *)(h + (int64_t)r * width + n0 + part * 32 + j * 8 + lane % 4 * 2) =
				attn_pack<dtype>(v[0], v[1]);
		}
	}
}

template <int dtype>
static __global__ __launch_bounds__(THREADS, 2) void down_kernel(const __grid_constant__ struct rows g)
{
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, m = warp % 4, part = warp / 4;
	const int hidden = g.a.hidden, n0 = blockIdx.y * TILE;
	float sum[2][8][4] = {};
	const char *w, *h;
	struct copies c;
	struct tile t;
	int64_t width;
	int shared;

	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	t = g.tiles[blockIdx.x];
	if (!t.count)
		return;
	shared = t.expert == g.a.num_experts;
	width = shared ? g.a.shared_intermediate : g.a.intermediate;
	w = shared ? (const char *)g.a.w_shared_down :
	    (const char *)g.a.w_down + t.expert * width * hidden * 2;
	h = shared ? (const char *)g.shared_h + (t.first - g.num_slots) * width * 2 :
	    (const char *)g.h + t.first * width * 2;
	c.to = attn_swizzle(threadIdx.x / 8, threadIdx.x % 8, STEP * 2);
#pragma unroll
	for (int i = 0; i < 4; i++) {
		int r = threadIdx.x / 8 + 32 * i;

		c.a_bytes[i] = r < t.count ? 16 : 0;
		c.a[i] = h + ((r < t.count ? r : 0) * width + threadIdx.x % 8 * 8) * 2;
		c.b_bytes[i] = n0 + r < hidden ? 16 : 0;
		c.b[i] = w + ((n0 + r < hidden ? n0 + r : 0) * width + threadIdx.x % 8 * 8) * 2;
	}
	product<dtype>(sum, c, (int)(width / STEP), m * 32 >= t.count, m, part * 64, part * 64 + 32);
#pragma unroll
	for (int i = 0; i < 4; i++) {
		int r = m * 32 + i / 2 * 16 + i % 2 * 8 + lane / 4;
		float *y = g.y + (int64_t)(t.first + r) * hidden + n0 + part * 64 + lane % 4 * 2;

		if (r >= t.count || n0 + part * 64 >= hidden)	/* hidden is a multiple of 64 */
			continue;
#pragma unroll
		for (int j = 0; j < 8; j++)
			*(float2 *)(y + j * 8) =
				make_float2(sum[i / 2][j][i % 2 * 2], sum[i / 2][j][i % 2 * 2 + 1]);
	}
}

/* Eight elements of a row a thread. */
template <int dtype>
static __global__ __launch_bounds__(THREADS) void combine_kernel(const __grid_constant__ struct rows g)
{
	const int vecs = g.a.hidden / 8, k = g.a.experts_per_token;
	const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = i / vecs;
	float f[8];

	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	if (row >= g.a.batch)
		return;
	row_unpack<dtype>(((const uint4 *)g.a.x)[i], f);
	for (int n = 0; n < k + (g.a.shared_intermediate > 0); n++) {
		int64_t slot = n < k ? g.slot[row * k + n] : g.num_slots + row;
		const float4 *y = (const float4 *)(g.y + slot * g.a.hidden) + (i - row * vecs) * 2;
		float4 lo = y[0], hi = y[1];

		f[0] += lo.x;
		f[1] += lo.y;
		f[2] += lo.z;
		f[3] += lo.w;
		f[4] += hi.x;
		f[5] += hi.y;
		f[6] += hi.z;
		f[7] += hi.w;
	}
	((uint4 *)g.a.out)[i] = row_pack<dtype>(f);
}

/* Before the workspace is laid out its size is asked for: of places only the alignment matters then. */
static struct cairn_gemm_args router_args(const struct rows *g)
{
	struct cairn_gemm_args r = {};
	void *somewhere = (void *)(uintptr_t)256;

	r.size = sizeof(r);
	r.out = g->logits ? g->logits : somewhere;
	r.a = g->n ? g->n : somewhere;
	r.b = g->a.w_router ? g->a.w_router : somewhere;
	r.workspace = g->gemm_workspace;
	r.workspace_bytes = g->gemm_bytes;
	r.m = g->a.batch;
	r.n = g->a.num_experts;
	r.k = g->a.hidden;
	r.dtype = g->a.dtype;
	r.out_dtype = CAIRN_F32;
	return r;
}

/* Lays the workspace out from `ws`, which may be NULL: its bytes. gemm_bytes is set. */
static size_t plan(struct rows *g, char *ws)
{
	const struct moe_call *a = &g->a;
	size_t at = 0, batch = (size_t)a->batch, slots = batch * (size_t)a->experts_per_token;
	size_t shared = a->shared_intermediate ? batch : 0;
	int32_t used = a->num_experts < (int32_t)slots ? a->num_experts : (int32_t)slots;

	g->num_slots = (int32_t)slots;
	g->num_tiles = (int32_t)slots / TILE + used + attn_div_up((int32_t)shared, TILE);
#define PART(field, size) \
	do { *(void **)&g->field = ws + at; at += ((size_t)(size) + 255) / 256 * 256; } while (0)
	PART(n, batch * (size_t)a->hidden * 2);
	PART(logits, batch * (size_t)a->num_experts * 4);
	PART(weight, slots * 4);
	PART(choice, slots * 4);
	PART(pair, slots * 4);
	PART(slot, slots * 4);
	PART(tiles, (size_t)g->num_tiles * sizeof(struct tile));
	PART(h, slots * (size_t)a->intermediate * 2);
	PART(shared_h, shared * (size_t)a->shared_intermediate * 2);
	PART(y, (slots + shared) * (size_t)a->hidden * 4);
	PART(gemm_workspace, g->gemm_bytes);
#undef PART
	return at;
}

extern "C" int moe_rows_workspace(const struct cairn_moe_args *args, size_t *bytes)
{
	struct rows g = {};
	struct cairn_gemm_args r;

	memcpy(&g.a, args, sizeof(g.a));
	r = router_args(&g);
	CAIRN_TRY(cairn_gemm_workspace(&r, &g.gemm_bytes));
	*bytes = plan(&g, NULL);
	return 0;
}

int moe_rows_launch(const void *kernel, void *args, int64_t x, int y, int threads, size_t smem, void *stream)
{
	struct cairn_launch l = {};
	void *params[] = { args };

	l.grid[0] = (unsigned int)x;
	l.grid[1] = (unsigned int)y;
	l.block[0] = (unsigned int)threads;
	l.smem = smem;
	l.pdl = 1;
	l.stream = stream;
	return cairn_launch(kernel, &l, params);
}

#define OF_DTYPE(kernel) \
	(f16 ? (const void *)kernel<CAIRN_F16> : (const void *)kernel<CAIRN_BF16>)

static int products(struct rows *g, int f16, void *stream)
{
	const int widest = max(g->a.intermediate, g->a.shared_intermediate);

	CAIRN_TRY(moe_rows_launch(OF_DTYPE(gate_up_kernel), g, g->num_tiles, widest / (TILE / 2), THREADS,
				  STAGES * STAGE_BYTES, stream));
	return moe_rows_launch(OF_DTYPE(down_kernel), g, g->num_tiles, attn_div_up(g->a.hidden, TILE),
			       THREADS, STAGES * STAGE_BYTES, stream);
}

extern "C" int moe_rows(const struct cairn_moe_args *args, void *stream)
{
	int f16 = args->dtype == CAIRN_F16;
	struct cairn_rmsnorm_args norm = {};
	struct cairn_gemm_args r;
	struct rows g = {};
	size_t need;

	memcpy(&g.a, args, sizeof(g.a));
	r = router_args(&g);
	CAIRN_TRY(cairn_gemm_workspace(&r, &g.gemm_bytes));
	need = plan(&g, (char *)args->workspace);
	if (!args->workspace || args->workspace_bytes < need)
		return cairn_error(EINVAL, "moe: workspace: %zu bytes, 256-byte aligned, are needed", need);
	norm.size = sizeof(norm);
	norm.out = g.n;
	norm.x = args->x;
	norm.weight = args->norm_weight;
	norm.rows = args->batch;
	norm.dim = args->hidden;
	norm.dtype = args->dtype;
	norm.eps = args->eps;
	CAIRN_TRY(cairn_rmsnorm(&norm, stream));
	r = router_args(&g);
	CAIRN_TRY(cairn_gemm(&r, stream));
	CAIRN_TRY(moe_rows_launch((const void *)choose_kernel, &g, attn_div_up(args->batch, THREADS / 32), 1,
			 THREADS, 0,
			 stream));
	CAIRN_TRY(moe_rows_launch((const void *)sort_kernel, &g, 1, 1, SORT_THREADS, 0, stream));
	if (args->fp8w)
		CAIRN_TRY(moe_rows_fp8(&g, args, stream));
	else
		CAIRN_TRY(products(&g, f16, stream));
	return moe_rows_launch(OF_DTYPE(combine_kernel), &g,
		      ((int64_t)args->batch * (args->hidden / 8) + THREADS - 1) / THREADS, 1, THREADS, 0,
		      stream);
}
