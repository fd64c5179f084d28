/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grid_exchange - exchange of results between CTAs, by LL words or behind grid barriers; and loading
 * activations
 */
#ifndef CAIRN_GRID_EXCHANGE_CUH
#define CAIRN_GRID_EXCHANGE_CUH

#include "fused/grid/grid_stream.cuh"

/* ---- LL words ---- */

/*
 * With up to GRID_LL_BATCH requests, results travel as LL words (as in NCCL's LL protocol): 64 bits hold two
 * neighbouring elements and the number of the phase that made them, counted over all calls. Readers poll the
 * words that they need, which takes one round trip to the L2 and no fence, counter or grid barrier. A phase
 * writes its words again one layer later. By then all readers have read the old words, because results in
 * between depend on them. No other data ever use the memory of LL words, so it never holds a number that is
 * still to come.
 */

/* Returns the LL words that a phase reads. */
GRID const uint64_t *grid_ll_in(const struct grid_args &a, int kind)
{
	return a.ll[kind == GRID_QKV || kind == GRID_HEAD ? (int)GRID_DOWN : kind - 1];
}

GRID int64_t debug_clock(void)
{
#ifdef CAIRN_DEBUG
	return ptx_clock64();
#else
	return 0;
#endif
}

GRID uint32_t ll_missing(uint4 v, uint32_t number)
{
	return (v.y ^ number) | (v.w ^ number);
}

/* ---- results of products ---- */

/*
 * The terms that are added to a result, as stored in memory. They are loaded before the product because their
 * latency is long. to: with LL words, the address for this result and the next one (a CTA's columns come in
 * pairs).
 */
struct grid_addend {
	uint16_t bias, x;
	uint64_t *to;
};

/* The row of a unit (one of 16) and the request of the element that a lane handles in one turn */
struct grid_element {
	int row, col, mine;
};

/* ---- grid barriers ---- */

/*
 * Arrives at the grid barrier. Thread 0 calls this, after a barrier among all threads whose writes other CTAs
 * read.
 */
GRID void grid_arrive(const struct grid_args &a)
{
	ptx_red_release_gpu_add_u32(a.arrived, 1);
}

/* Ends a phase: afterwards its results are written, and shared memory is free for the next phase. */
template <int way>
GRID void end_phase(const struct grid_args &a, int phase)
{
	if (phase + 1 == a.end_phase)
		return;
	work_sync();
	if (way != GRID_BY_LL && threadIdx.x == 0)
		grid_arrive(a);
}

/* Waits for grid barrier `number`, counted from 1 since the workspace was zeroed. Called by all threads. */
GRID void grid_await(const struct grid_args &a, uint32_t number)
{
	if (threadIdx.x == 0) {
#ifdef CAIRN_DEBUG
		const int64_t start = ptx_clock64();
#else
		const int64_t start = 0;
#endif
		const uint32_t all = number * gridDim.x;

		/* the counter may wrap around */
		while ((int32_t)(ptx_ld_acquire_gpu_u32(a.arrived) - all) < 0)
			ptx_spin_check(start, "grid barrier (number)", number, 0);
	}
	work_sync();
}

/* ---- activations ---- */

/*
 * A row of activations is stored in the order in which the lanes of an mma read it, stage by stage of 128:
 * lane t of four takes elements 16 s + 2 t, + 1, 16 s + 8 + 2 t, + 1 for s = 0..7, which are eight B
 * fragments. A lane has 16 bytes in each quarter of the stage, and the 16 bytes of the four lanes are
 * adjacent. Rows of k elements are padded to whole stages, with zeros in shared memory.
 */
static __host__ __device__ __forceinline__ int a_padded(int k)
{
	return (k + STAGE_K - 1) / STAGE_K * STAGE_K;
}

GRID int a_index(int k)			/* position of element k */
{
	return (k & ~31) + (k >> 1 & 3) * 8 + (k >> 3 & 3) * 2 + (k & 1);
}

/*
 * Number of k elements that one CTA multiplies, padded to a whole stage; both CTAs of a pair get the same
 * number.
 */
static __host__ __device__ __forceinline__ int a_part(int way, int k)
{
	const int most = GRID_STAGE_STEP(way);

	return way == GRID_WIDE ? ((k + STAGE_K - 1) / STAGE_K + most - 1) / most * GRID_WARPS * STAGE_K :
		a_padded(k);
}

/* bytes of a row in shared memory; the padding keeps four lanes of two rows on different banks */
static __host__ __device__ __forceinline__ uint32_t a_stride(int k)
{
	return a_padded(k) * 2 + 64;
}

GRID uint32_t a_at(const struct grid_args &a, int row, int k)
{
	return ptx_smem(grid_mem) + a.at_a + row * a_stride(k);
}

static __host__ __device__ __forceinline__ bool a_fits(const struct grid_args &a, int k)
{
	return (int64_t)a_stride(k) * a.s.kv.batch <= a.a_bytes;
}

/* Returns whether the x that the phase norms or adds is the input of the call. */
GRID bool grid_at_first(const struct grid_args &a, int phase, int kind)
{
	return phase - (kind == GRID_OUT ? 2 : kind == GRID_DOWN ? 1 : 0) == a.call_first;
}

GRID const char *grid_x(const struct grid_args &a, int phase, int kind, int row)
{
	int64_t bytes = (int64_t)a.s.hidden * 2;

	if (grid_at_first(a, phase, kind))
		return a.x ? (const char *)a.x + row * bytes : (const char *)a.s.embed + a.s.ids[row] * bytes;
	return (const char *)(kind == GRID_GATE_UP || kind == GRID_DOWN ? a.x_mid : a.x_out) + row * bytes;
}

GRID const uint4 *grid_norm_weight(const struct grid_args &a, int phase, int kind)
{
	return (const uint4 *)(kind == GRID_HEAD ? (const char *)a.s.final_norm :
			       grid_layer(a, kind == GRID_QKV ? a.s.attn_norm : a.s.mlp_norm, phase));
}

/* vectors of the norm's weights that a thread loads before it may read x */
#define NORM_AHEAD	4

struct norm_weights {
	uint4 v[NORM_AHEAD];
};

/*
 * Returns the number of threads that share a row's vectors: all, or half of them for two requests with LL
 * words.
 */
GRID int norm_step(const struct grid_args &a)
{
	return a.by_ll && a.s.kv.batch == 2 ? WORKERS / 2 : WORKERS;
}

template <int way>
GRID void norm_prefetch(const struct grid_args &a, int phase, int kind, struct norm_weights &w)
{
	const int by_stage = way != GRID_BY_LL;	/* see load_normed() */
	const int step = by_stage ? GRID_STAGE_STEP(way) * 16 : norm_step(a);
	const int first = by_stage ? grid_first_stage<way>(threadIdx.x / 32) * 16 + threadIdx.x % 16 :
			  threadIdx.x & (step - 1);
	const uint4 *weight = grid_norm_weight(a, phase, kind);

#pragma unroll
	for (int i = 0; i < NORM_AHEAD; i++) {
		int v = first + i * step;

		w.v[i] = v < a.s.hidden / 8 ? __ldg(weight + v) : make_uint4(0, 0, 0, 0);
	}
}

/*
 * Stores 16-byte piece number `piece` (eight elements) of a stage of a row into shared memory, in the order
 * of a_index().
 */
GRID void stage_put(uint32_t stage, int piece, uint4 p)
{
	const uint32_t at = stage + piece / 4 * 64 + piece % 4 * 4;

	ptx_st_shared_b32(at, p.x);
	ptx_st_shared_b32(at + 16, p.y);
	ptx_st_shared_b32(at + 32, p.z);
	ptx_st_shared_b32(at + 48, p.w);
}

template <int dtype>
GRID float norm_squares(uint4 p)
{
	float f[8];

	row_unpack<dtype>(p, f);
	return ((f[0] * f[0] + f[1] * f[1]) + (f[2] * f[2] + f[3] * f[3])) +
	       ((f[4] * f[4] + f[5] * f[5]) + (f[6] * f[6] + f[7] * f[7]));
}

template <int dtype>
GRID uint32_t norm_scale(uint32_t pair, float scale, float w0, float w1)
{
	float f[2];

	row_unpack2<dtype>(pair, f);
	return row_pack2<dtype>(f[0] * scale * w0, f[1] * scale * w1);
}

/* ---- activations behind grid barriers ---- */

/*
 * Adds the sums of squares of rows of 128 columns, which are the diagonal of X X': row g is in lane 4 g + g /
 * 2, sum[0][g % 2]; row g + 8 is in sum[1][2 + g % 2].
 */
template <int dtype>
GRID void add_squares(uint32_t tile, float (*sum)[4])
{
#pragma unroll
	for (int i = 0; i < STAGE_K / 16; i++) {
		uint32_t x[4], b[2][2];

		ptx_ldmatrix_x4(x, tile + i * 32);
		b[0][0] = x[0];
		b[0][1] = x[2];
		b[1][0] = x[1];
		b[1][1] = x[3];
		attn_mma<dtype>(sum[0], x, b[0]);
		attn_mma<dtype>(sum[1], x, b[1]);
	}
}

/*
 * Adds the sums of squares of the other CTA of the pair, in the order of ranks. v: the sum of row `lane`.
 * norms: number of norms before this one in this launch. All threads must have read the values of the
 * previous norm.
 */
GRID float pair_squares(const struct grid_args &a, float v, uint32_t norms)
{
	const uint32_t mbar = ptx_smem(grid_mem) + GRID_PAIR_MBARS, at = ptx_smem(grid_mem) + a.at_pair;
	const int lane = threadIdx.x % 32, rank = grid_rank<GRID_WIDE>();
	float other = 0;

	if (threadIdx.x == 0)
		ptx_mbarrier_arrive_expect_tx(mbar, a.s.kv.batch * 4);
	if ((int)threadIdx.x < a.s.kv.batch)
		ptx_st_async_b32(ptx_mapa(at, rank ^ 1) + lane * 4, __float_as_uint(v),
				 ptx_mapa(mbar, rank ^ 1));
	ptx_mbarrier_wait(mbar, norms & 1);
	if (lane < a.s.kv.batch)
		other = __uint_as_float(ptx_ld_shared_b32(at + lane * 4));
	return rank ? other + v : v + other;
}

#define NORM_PAIRS	4	/* pairs of rows that pass through registers together */

/* Returns this lane's row of pair j; the pair's rows are neighbours, which fall on different banks. */
GRID int norm_row(int j)
{
	return 2 * j + threadIdx.x % 32 / 16;
}

/* The work that load_normed() leaves to scale_stage() */
struct norm_left {
	struct norm_weights weights;
	float scale;			/* scale of row `lane` */
	int rows;			/* 0: nothing is left */
};

/*
 * rmsnorm of all rows: copies the stages that this warp will multiply to shared memory, unchanged, and
 * computes the rows' scales. All loads are issued at once because memory latency is long. Ends with a
 * barrier.
 */
template <int dtype, int way>
GRID void load_normed(const struct grid_args &a, int phase, int kind, struct norm_left &left, uint32_t norms)
{
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, piece = lane % 16,
		  k = a.s.hidden, part_k = a_part(way, k), batch = a.s.kv.batch;
	const int num_stages = a_padded(k) / STAGE_K, stride = a_stride(part_k);
	const int first = grid_first_stage<way>(warp);
	const uint32_t rows = a_at(a, 0, part_k) + warp * 256;
	float *part = (float *)(grid_mem + GRID_SUMS), sum[2][4] = {}, scale = 0;

	for (int row = lane / 16; row < batch; row += 2) {
		const char *x = grid_x(a, phase, kind, row) + piece * 16;
		const uint32_t to = rows + row * stride + piece * 16;

		for (int stage = first, nth = 0; stage < num_stages; stage += GRID_STAGE_STEP(way), nth++) {
			const int there = stage * STAGE_K + piece * 8 < k;

			ptx_cp_async_cg(to + nth * GRID_WARPS * 256, there ? x + stage * 256 : x,
					there ? 16 : 0);
		}
	}
	ptx_cp_async_commit_group();
	ptx_cp_async_wait_group<0>();
	__syncwarp();
	for (int stage = first, nth = 0; stage < num_stages; stage += GRID_STAGE_STEP(way), nth++)
		add_squares<dtype>(rows + min(lane % 16, batch - 1) * stride +
				   nth * GRID_WARPS * 256 + lane / 16 * 16, sum);
	if (lane % 4 == lane / 8) {
		const int row = lane / 4, odd = row % 2;

		if (row < batch)
			part[warp * batch + row] = odd ? sum[0][1] : sum[0][0];
		if (row + 8 < batch)
			part[warp * batch + row + 8] = odd ? sum[1][3] : sum[1][2];
	}
	work_sync();
	if (lane < batch) {
#pragma unroll
		for (int w = 0; w < GRID_WARPS; w++)
			scale += part[w * batch + lane];
	}
	if (way == GRID_WIDE)
		scale = pair_squares(a, scale, norms);
	if (lane < batch) {
		scale = rsqrtf(scale * a.per_hidden + a.s.eps);
	}
	left.scale = scale;
	left.rows = batch;
	work_sync();
}

/*
 * Scales stage number `nth` of this warp, loaded by load_normed(), and puts it into the mma's order. The
 * first unit of the product calls this just before it multiplies the stage, because consuming a stage of
 * weights frees a slot for the next one.
 */
template <int dtype, int way>
GRID void scale_stage(const struct grid_args &a, int kind, int phase, const struct norm_left &left,
		      int stage, int nth)
{
	const int piece = threadIdx.x % 16, part_k = a_part(way, a.s.hidden), stride = a_stride(part_k),
		  v = stage * 16 + piece;
	const uint32_t at = a_at(a, 0, part_k) + (nth * GRID_WARPS + threadIdx.x / 32) * 256;
	const struct norm_weights &w = left.weights;
	float g[8];

	row_unpack<dtype>(nth == 0 ? w.v[0] : nth == 1 ? w.v[1] : nth == 2 ? w.v[2] : nth == 3 ? w.v[3] :
			  v < a.s.hidden / 8 ? __ldg(grid_norm_weight(a, phase, kind) + v) :
			  make_uint4(0, 0, 0, 0), g);
	for (int first = 0; first * 2 < left.rows; first += NORM_PAIRS) {
		uint4 p[NORM_PAIRS];
		float by[NORM_PAIRS];

#pragma unroll
		for (int j = 0; j < NORM_PAIRS; j++) {
			by[j] = __shfl_sync(~0u, left.scale, norm_row(first + j));
			p[j] = make_uint4(0, 0, 0, 0);
			if (norm_row(first + j) < left.rows)
				p[j] = ptx_ld_shared_v4(at + norm_row(first + j) * stride + piece * 16);
		}
		__syncwarp(); /* all lanes have read before any of them overwrites in the new order */
#pragma unroll
		for (int j = 0; j < NORM_PAIRS; j++) {
			p[j] = make_uint4(norm_scale<dtype>(p[j].x, by[j], g[0], g[1]),
					  norm_scale<dtype>(p[j].y, by[j], g[2], g[3]),
					  norm_scale<dtype>(p[j].z, by[j], g[4], g[5]),
					  norm_scale<dtype>(p[j].w, by[j], g[6], g[7]));
			if (norm_row(first + j) < left.rows)
				stage_put(at + norm_row(first + j) * stride, piece, p[j]);
		}
	}
	__syncwarp();
}

/* Loads this warp's stages of the activations [batch][k padded] at src, which are in the mma's order. */
template <int way>
GRID void load_plain(const struct grid_args &a, const void *src, int k)
{
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, piece = lane % 16,
		  num_stages = a_padded(k) / STAGE_K;

	/*
	 * 16 pieces are one stage of one row; the last stage may be half full, with half of each lane's
	 * pieces
	 */
	for (int row = lane / 16; row < a.s.kv.batch; row += 2) {
		const char *from = (const char *)src + (int64_t)row * a_padded(k) * 2 + piece * 16;
		const uint32_t to = a_at(a, row, a_part(way, k)) + warp * 256 + piece * 16;

		for (int stage = grid_first_stage<way>(warp), nth = 0; stage < num_stages;
		     stage += GRID_STAGE_STEP(way), nth++)
			ptx_cp_async_cg(to + nth * GRID_WARPS * 256, from + stage * 256,
					stage * STAGE_K + 64 < k || piece < 8 ? 16 : 0);
	}
	ptx_cp_async_commit_group();
	ptx_cp_async_wait_group<0>();
	__syncwarp();
}

/* ---- activations by LL words ---- */

#define NORM_KEEP		NORM_AHEAD	/* vectors of x that a thread keeps in registers */

/*
 * rmsnorm of x received as LL words. Four warps or all eight share a row. number: phase number of x's words.
 * Ends with a barrier.
 */
template <int dtype>
GRID void load_normed_ll(const struct grid_args &a, int phase, int kind,
			    const struct norm_weights &ahead, uint32_t number)
{
	const int two = a.s.kv.batch == 2, step = norm_step(a), row = threadIdx.x / step;
	const int first = threadIdx.x & (step - 1), vecs = a.s.hidden / 8;
	const uint32_t to = a_at(a, row, a.s.hidden);
	float *red = (float *)grid_mem, sum = 0, scale;
	uint4 p[NORM_KEEP] = {};

	if (grid_at_first(a, phase, kind)) {
		const uint4 *x = (const uint4 *)grid_x(a, phase, kind, row);

#pragma unroll
		for (int i = 0; i < NORM_KEEP; i++)
			if (first + i * step < vecs)
				p[i] = __ldcg(x + first + i * step);
	} else {
		const uint64_t *x = grid_ll_in(a, kind) + (int64_t)row * (a.s.hidden / 2) + first * 4;
		const int64_t start = debug_clock();
		uint32_t missing;

		do {
			missing = 0;
#pragma unroll
			for (int i = 0; i < NORM_KEEP; i++)
				if (first + i * step < vecs) {
					const uint4 lo = ptx_ld_relaxed_gpu_v2_u64(x + i * step * 4);
					const uint4 hi = ptx_ld_relaxed_gpu_v2_u64(x + i * step * 4 + 2);

					missing |= ll_missing(lo, number) | ll_missing(hi, number);
					p[i] = make_uint4(lo.x, lo.z, hi.x, hi.z);
				}
			ptx_spin_check(start, "LL words of x (phase number)", number, 0);
		} while (missing);
		__syncwarp();
	}
#pragma unroll
	for (int i = 0; i < NORM_KEEP; i++)
		if (first + i * step < vecs)
			sum += norm_squares<dtype>(p[i]);
	sum = row_warp_sum(sum);
	if (threadIdx.x % 32 == 0)
		red[threadIdx.x / 32] = sum;
	work_sync();
	{
		const float4 lo = ((const float4 *)red)[two ? row : 0], hi = ((const float4 *)red)[1];

		sum = lo.x + lo.y + lo.z + lo.w;
		if (!two)
			sum += hi.x + hi.y + hi.z + hi.w;
	}
	scale = rsqrtf(sum * a.per_hidden + a.s.eps);
#pragma unroll
	for (int i = 0; i < NORM_KEEP; i++) {
		const int v = first + i * step;
		float g[8];

		if (v >= a_padded(a.s.hidden) / 8)
			break;
		row_unpack<dtype>(ahead.v[i], g);
		stage_put(to + v / 16 * 256, v % 16,
			  make_uint4(norm_scale<dtype>(p[i].x, scale, g[0], g[1]),
				     norm_scale<dtype>(p[i].y, scale, g[2], g[3]),
				     norm_scale<dtype>(p[i].z, scale, g[4], g[5]),
				     norm_scale<dtype>(p[i].w, scale, g[6], g[7])));
	}
	work_sync();
}

#define LL_AHEAD	8		/* loads of a lane in flight */

/* Loads this warp's stages of other activations. A lane takes four elements of a stage at a time. */
GRID void load_ll(const struct grid_args &a, const uint64_t *src, int k, uint32_t number)
{
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, num_stages = a_padded(k) / STAGE_K;
	const int mine = num_stages > warp ? (num_stages - warp + GRID_WARPS - 1) / GRID_WARPS : 0;

	/* poll a single word first: the wait may be long, and polls compete with weights in flight */
	if (mine) {
		const int64_t start = debug_clock();

		while ((uint32_t)(ptx_ld_relaxed_gpu_u64(src + warp * (STAGE_K / 2)) >> 32) != number)
			ptx_spin_check(start, "first LL word (phase number)", number, 0);
	}
	for (int first = 0; first < mine * a.s.kv.batch; first += LL_AHEAD) {
		const int64_t start = debug_clock();
		uint4 w[LL_AHEAD] = {};
		uint32_t missing;

		do {
			missing = 0;
#pragma unroll
			for (int i = 0; i < LL_AHEAD; i++) {
				const int row = first + i >= mine,
					  at = (warp + (first + i - row * mine) * GRID_WARPS) * STAGE_K +
					       lane * 4;

				if (first + i < mine * a.s.kv.batch && at < k) {
					w[i] = ptx_ld_relaxed_gpu_v2_u64(src + ((int64_t)row * k + at) / 2);
					missing |= ll_missing(w[i], number);
				}
			}
			ptx_spin_check(start, "LL words (phase number)", number, 0);
		} while (missing);
#pragma unroll
		for (int i = 0; i < LL_AHEAD; i++) {
			const int row = first + i >= mine,
				  stage = warp + (first + i - row * mine) * GRID_WARPS;
			const uint32_t at = a_at(a, row, k) + stage * 256 + a_index(lane * 4) * 2;

			if (first + i < mine * a.s.kv.batch) {
				ptx_st_shared_b32(at, w[i].x);
				ptx_st_shared_b32(at + 16, w[i].z);
			}
		}
	}
	__syncwarp();
}

GRID const void *grid_activations(const struct grid_args &a, int kind)
{
	return kind == GRID_OUT ? a.attn : a.act;
}
#endif
