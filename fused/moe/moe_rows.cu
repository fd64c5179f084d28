// SPDX-License-Identifier: Apache-2.0
/*
 * moe_rows - a mixture of experts on many rows, or with 4-bit weights: sorts rows by expert, then runs two
 * products on tiles of rows
 *
 *   rmsnorm      n
 *   gemm         logits, fp32                       (both are operations of the table)
 *   choose       the k largest experts of a row (moe_choose.cuh); one warp per row
 *   sort         one CTA: each expert's number of pairs and first place, and the list of tiles
 *   gather       assigns a place to each pair and copies n there, in panels; again for the shared experts
 *   gate_up      h = silu(n w_gate^T) * (n w_up^T) * weight, to panels; or with biases and activation 1
 *   down         y = h w_down^T, fp32               (both in moe_rows_product.cuh; 4 bits and few rows of
 *                each expert: moe_rows_w4.cu)
 *   combine      out = x (unless no_residual) + the y of a row's pairs, in their order, each with its weight
 *                times down_bias, then the shared one
 *
 * The shared experts are one more expert that all rows choose. Only the device knows the number of tiles, so
 * the CTAs of the products run until no tile is left.
 *
 * The results of a pair depend only on its row, not on its place in a tile. So they are repeatable, although
 * the atomics of gather may put an expert's pairs in a different order in each run.
 *
 * Floor: each expert's weights once through memory, and products at the rate of a bf16 GEMM.
 * Optimisation history: NOTES.md.
 */
#include "fused/moe/moe_rows.h"

#include <string.h>

#include "primitives/base/args.h"
#include "primitives/gemm/gemm.h"
#include "primitives/base/launch.h"
#include "primitives/rows/rmsnorm.h"
#include "primitives/rows/row.cuh"
#include "fused/moe/moe_choose.cuh"
#include "fused/moe/moe_rows.cuh"

#define THREADS		256
#define PREFETCH	8192		/* bytes */
#define MAX_EXPERTS	256
#define SORT_THREADS	1024

/*
 * Prefetches the shared experts' weights into the L2, because gate_up begins with them; each row's warp
 * fetches a share. This pays off for few rows, where memory is the limit. No earlier kernel writes weights.
 */
ATTN_DEV void prefetch_shared(const struct rows &g, int row, int lane)
{
	const char *w = (const char *)g.a.w_shared_gate_up;
	const int64_t bytes = 2 * (int64_t)g.a.shared_intermediate * g.a.hidden * g.weight_bytes;

	for (int64_t at = ((int64_t)lane * g.a.batch + row) * PREFETCH; row < g.a.batch && at < bytes;
	     at += (int64_t)32 * g.a.batch * PREFETCH)
		ptx_cp_async_bulk_prefetch_L2(w + at, (uint32_t)min((int64_t)PREFETCH, bytes - at));
}

/* plain: by a softmax without groups */
template <bool plain>
static __global__ __launch_bounds__(THREADS)
void choose_kernel(const __grid_constant__ struct rows g, const __grid_constant__ struct moe_choose c)
{
	constexpr int most = MAX_EXPERTS / 32;
	const int row = blockIdx.x * (THREADS / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
	const int num = g.a.num_experts, k = g.a.experts_per_token;
	float logit[most], weight;
	uint32_t expert = 0;

	if (g.a.batch <= g.most)
		prefetch_shared(g, row, lane);
	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	if (row >= g.a.batch)
		return;
#pragma unroll
	for (int i = 0; i < most; i++)
		logit[i] = lane + 32 * i < num ? g.logits[(int64_t)row * num + lane + 32 * i] : 0;
	choose_add_bias<most>(logit, c, num);
	if (plain)
		choose_softmax<most>(logit, num, k, g.a.normalize, g.a.scaling, &expert, &weight);
	else
		choose_experts<most>(logit, c, num, k, g.a.normalize, g.a.scaling, &expert, &weight);
	if (lane >= k)
		return;
	g.choice[row * k + lane] = (int)expert;
	g.choice_weight[row * k + lane] = weight;
	if (g.a.experts)
		g.a.experts[row * k + lane] = (int)expert;
}

/*
 * Computes exclusive prefix sums of 256 numbers in shared memory, in place, by the first 256 threads; returns
 * the total.
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
	int32_t tiles;

	if (thread < MAX_EXPERTS)
		s_count[thread] = 0;
	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	__syncthreads();
#pragma unroll 8
	for (int i = thread; i < g.num_pairs; i += SORT_THREADS)
		atomicAdd(&s_count[g.choice[i]], 1);
	__syncthreads();
	if (thread < MAX_EXPERTS) {
		s_first[thread] = attn_div_up(s_count[thread], 16) * 16;
		s_tile[thread] = attn_div_up(s_count[thread], g.most);
	}
	__syncthreads();
	scan_256(s_first, s_warp);
	tiles = scan_256(s_tile, s_warp);
	if (thread < MAX_EXPERTS && s_count[thread]) {
		const int32_t count = s_count[thread], base = s_tile[thread];
		const int32_t num = attn_div_up(count, g.most);

		for (int32_t i = 0; i < num; i++)
			g.tiles[base + i] = (struct tile){ thread, s_first[thread], count,
							   tile_size(count, g.most), base, num, { 0, 0 } };
	}
	if (thread == 0) {
		g.counters[NUM_TILES] = tiles;
		g.counters[NEXT_GATE_UP] = g.counters[NEXT_DOWN] = 0;
	}
	if (thread < g.a.num_experts)
		g.next[thread] = s_first[thread];
}

/* Writes eight columns of a place in the order of fragment_at(). */
ATTN_DEV void put_fragments(const struct rows &g, int place, int piece, uint4 v)
{
	char *to = (char *)g.x + fragment_at(g.a.hidden / 64, place, piece, 0);

	*(uint32_t *)to = v.x;
	*(uint32_t *)(to + 16) = v.y;
	*(uint32_t *)(to + 32) = v.z;
	*(uint32_t *)(to + 48) = v.w;
}

/* A warp copies a row into panels, or into the order of fragment_at(). */
static __global__ __launch_bounds__(THREADS)
void gather_kernel(const __grid_constant__ struct rows g)
{
	const int i = blockIdx.x * (THREADS / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
	const int64_t rows = g.num_places + g.shared_rows;
	const uint4 *n;
	int row, place = 0;

	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	if (i >= g.num_pairs + (g.shared_rows ? g.a.batch : 0))
		return;
	if (i < g.num_pairs && lane == 0) {
		place = atomicAdd(&g.next[g.choice[i]], 1);
		g.pair[place] = i;
		g.weight[place] = g.choice_weight[i];
	}
	row = i < g.num_pairs ? i / g.a.experts_per_token : i - g.num_pairs;
	place = i < g.num_pairs ? __shfl_sync(~0u, place, 0) : g.num_places + row;
	n = (const uint4 *)g.n + (int64_t)row * (g.a.hidden / 8);
#pragma unroll 4
	for (int first = 0; first < g.a.hidden / 8; first += 32) {
		const int piece = first + lane, there = piece < g.a.hidden / 8;
		uint4 v = there ? n[piece] : make_uint4(0, 0, 0, 0);

		if (g.weight_bytes == 1)
			v = even_odd(v);
		if (there && g.fragments)
			put_fragments(g, place, piece, v);
		else if (there)
			*(uint4 *)((char *)g.x + panel_at(rows, place, piece)) = v;
	}
}

/* Adds a pair's weight times eight elements of its expert's down_bias. */
template <int dtype>
ATTN_DEV void add_down_bias(float (&f)[8], const struct rows &g, int64_t pair, int64_t vec)
{
	const uint4 *bias = (const uint4 *)g.between.down_bias + g.choice[pair] * (int64_t)(g.a.hidden / 8);
	const float weight = g.choice_weight[pair];
	float b[8];

	row_unpack<dtype>(bias[vec], b);
#pragma unroll
	for (int i = 0; i < 8; i++)
		f[i] += weight * b[i];
}

/* A thread adds eight elements of a row. */
template <int dtype>
static __global__ __launch_bounds__(THREADS) void combine_kernel(const __grid_constant__ struct rows g)
{
	const int vecs = g.a.hidden / 8, k = g.a.experts_per_token;
	const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = i / vecs;
	float f[8] = {};

	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	if (row >= g.a.batch)
		return;
	if (g.adds_x)
		row_unpack<dtype>(((const uint4 *)g.a.x)[i], f);
#pragma unroll 4
	for (int n = 0; n < k + (g.a.shared_intermediate > 0); n++) {
		int64_t pair = n < k ? row * k + n : g.num_pairs + row;
		const float4 *y = (const float4 *)(g.y + pair * g.a.hidden) + (i - row * vecs) * 2;
		float4 lo = y[0], hi = y[1];

		f[0] += lo.x;
		f[1] += lo.y;
		f[2] += lo.z;
		f[3] += lo.w;
		f[4] += hi.x;
		f[5] += hi.y;
		f[6] += hi.z;
		f[7] += hi.w;
		if (g.between.down_bias && n < k)
			add_down_bias<dtype>(f, g, pair, i - row * vecs);
	}
	((uint4 *)g.a.out)[i] = row_pack<dtype>(f);
}

/*
 * Sizes are queried before the workspace is laid out; such a query looks only at the alignment of pointers.
 */
static struct cairn_gemm_args router_args(const struct rows *g, int32_t sms)
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
	r.sms = sms;
	return r;
}

/* Lays out the workspace from `ws`, which may be NULL; returns its size in bytes. gemm_bytes must be set. */
static size_t plan(struct rows *g, char *ws)
{
	const struct moe_call *a = &g->a;
	size_t at = 0, batch = (size_t)a->batch, pairs = batch * (size_t)a->experts_per_token;
	size_t shared = a->shared_intermediate ? batch : 0, places;
	int32_t used = a->num_experts < (int32_t)pairs ? a->num_experts : (int32_t)pairs;

	places = (pairs + 15 * (size_t)used) / 16 * 16; /* an expert's places begin at a multiple of 16 */
	g->num_pairs = (int32_t)pairs;
	g->num_places = (int32_t)places;
	g->shared_rows = (int32_t)(shared + 15) / 16 * 16;
	/* with 4 bits that of the smallest tiles, so that fewer rows never need a larger workspace */
	g->num_tiles = (int32_t)pairs / (g->w4 ? MOE_W4_PLACES : g->most) + used;
#define PART(field, size) \
	do { *(void **)&g->field = ws + at; at += ((size_t)(size) + 255) / 256 * 256; } while (0)
	PART(n, batch * (size_t)a->hidden * 2);
	PART(logits, batch * (size_t)a->num_experts * 4);
	PART(choice, pairs * 4);
	PART(choice_weight, pairs * 4);
	PART(next, (size_t)a->num_experts * 4);
	PART(pair, places * 4);
	PART(weight, places * 4);
	PART(counters, NUM_COUNTERS * 4);
	PART(tiles, (size_t)g->num_tiles * sizeof(struct tile));
	PART(x, (places + (size_t)g->shared_rows) * (size_t)a->hidden * 2);
	PART(h, places * (size_t)a->intermediate * 2);
	PART(shared_h, (size_t)g->shared_rows * (size_t)a->shared_intermediate * 2);
	PART(y, (pairs + shared) * (size_t)a->hidden * 4);
	PART(gemm_workspace, g->gemm_bytes);
#undef PART
	return at;
}

extern "C" int moe_rows_workspace(const struct cairn_moe_args *args, size_t *bytes)
{
	struct rows g = {};
	struct cairn_gemm_args r;

	cairn_copy_args(&g.a, args, sizeof(g.a));
	g.most = moe_rows_most(args);
	g.weight_bytes = args->fp8w ? 1 : 2;
	g.w4 = cairn_moe_w4_of(args);
	r = router_args(&g, args->sms);
	CAIRN_TRY(cairn_gemm_workspace(&r, &g.gemm_bytes));
	*bytes = plan(&g, NULL);
	return 0;
}

/* c: the second argument of choose_other_kernel; other kernels have none */
static int launch(const void *kernel, struct rows *g, int64_t ctas, int threads, void *stream,
		  struct moe_choose *c = NULL)
{
	struct cairn_launch l = {};
	void *params[] = { g, c };

	l.grid[0] = (unsigned int)ctas;
	l.block[0] = (unsigned int)threads;
	l.pdl = 1;
	l.stream = stream;
	return cairn_launch(kernel, &l, params);
}

#define OF_DTYPE(kernel) \
	(f16 ? (const void *)kernel<CAIRN_F16> : (const void *)kernel<CAIRN_BF16>)

extern "C" int moe_rows(const struct cairn_moe_args *args, void *stream)
{
	int f16 = args->dtype == CAIRN_F16;
	struct moe_choose c = moe_choose_of(args);
	struct cairn_rmsnorm_args norm = {};
	struct cairn_gemm_args r;
	struct rows g = {};
	size_t need;

	cairn_copy_args(&g.a, args, sizeof(g.a));
	g.most = moe_rows_most(args);
	g.weight_bytes = args->fp8w ? 1 : 2;
	g.w4 = cairn_moe_w4_of(args);
	g.fragments = moe_rows_is_w4_of_few(args);
	g.adds_x = cairn_moe_adds_x(args);
	g.between = cairn_moe_between_of(args);
	r = router_args(&g, args->sms);
	CAIRN_TRY(cairn_gemm_workspace(&r, &g.gemm_bytes));
	need = plan(&g, (char *)args->workspace);
	if (!args->workspace || args->workspace_bytes < need)
		return cairn_error(EINVAL, "moe: workspace: needs %zu bytes, 256-byte aligned", need);
	norm.size = sizeof(norm);
	norm.out = g.n;
	norm.x = args->x;
	norm.weight = args->norm_weight;
	norm.rows = args->batch;
	norm.dim = args->hidden;
	norm.dtype = args->dtype;
	norm.eps = args->eps;
	CAIRN_TRY(cairn_rmsnorm(&norm, stream));
	r = router_args(&g, args->sms);
	CAIRN_TRY(cairn_gemm(&r, stream));
	CAIRN_TRY(launch(c.plain ? (const void *)choose_kernel<true> : (const void *)choose_kernel<false>, &g,
			 attn_div_up(args->batch, THREADS / 32), THREADS, stream, &c));
	CAIRN_TRY(launch((const void *)sort_kernel, &g, 1, SORT_THREADS, stream));
	CAIRN_TRY(launch((const void *)gather_kernel, &g,
			 attn_div_up(g.num_pairs + (g.shared_rows ? args->batch : 0), THREADS / 32), THREADS,
			 stream));
	CAIRN_TRY(g.fragments ? moe_rows_products_w4(&g, args, stream) :
		  moe_rows_products(&g, args, stream));
	return launch(OF_DTYPE(combine_kernel), &g,
		      ((int64_t)args->batch * (args->hidden / 8) + THREADS - 1) / THREADS, THREADS, stream);
}
