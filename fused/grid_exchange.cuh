/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grid_exchange - how the CTAs' results get to each other: words or meetings; and the activations they become
 */
#ifndef CAIRN_GRID_EXCHANGE_CUH
#define CAIRN_GRID_EXCHANGE_CUH

#include "grid_stream.cuh"

/* ---- words ---- */

/*
 * Up to GRID_WORDS_BATCH requests nobody meets: results travel as words of 64 bits, two neighbouring elements and the
 * number of the phase that made them, counted over all calls. Readers poll the words they need: one trip to the
 * L2 and one back, no fence, no counter. A kind of phase writes its words again a layer later, when whoever has a
 * part in the phase after it has long read them: what is written in between depends on that. No other memory
 * is ever laid over words, so that what they hold is always a number that is not to come again.
 */

/* The words that a phase reads */
GRID const uint64_t *grid_words_in(const struct grid_args &a, int kind)
{
	return a.words[kind == GRID_QKV || kind == GRID_HEAD ? (int)GRID_DOWN : kind - 1];
}

GRID int64_t debug_clock(void)
{
#ifdef CAIRN_DEBUG
	return ptx_clock64();
#else
	return 0;
#endif
}

GRID uint32_t words_missing(uint4 v, uint32_t number)
{
	return (v.y ^ number) | (v.w ^ number);
}

/* ---- meetings ---- */

/* By threads that have synchronised since the writes that others are to see: thread 0 of them. */
GRID void grid_arrive(const struct grid_args &a)
{
	ptx_red_release_gpu_add_u32(a.meetings, 1);
}

/* All that it computes is written; and shared memory is free for the next phase. */
template <int way>
GRID void end_phase(const struct grid_args &a, int phase)
{
	if (phase + 1 == a.end_phase)
		return;
	work_sync();
	if (way != GRID_BY_WORDS && threadIdx.x == 0)
		grid_arrive(a);
}

/* number: of this meeting in the launch, from 1. By all threads. */
GRID void grid_await(const struct grid_args &a, int number)
{
	if (threadIdx.x == 0) {
#ifdef CAIRN_DEBUG
		const int64_t start = ptx_clock64();
#else
		const int64_t start = 0;
#endif
		uint32_t all = (uint32_t)number * gridDim.x;

		while (ptx_ld_acquire_gpu_u32(a.meetings) < all)
			ptx_spin_check(start, "meeting", (uint32_t)number, 0);
	}
	work_sync();
}

/* ---- activations ---- */

/*
 * A row of activations lies in the order in which the lanes of an mma want it, stage by stage of 128: lane t of four
 * takes 64 bytes, the elements 16 s + 2 t, + 1, 16 s + 8 + 2 t, + 1 for s = 0..7: eight B fragments. Rows of k
 * elements are filled up to whole stages, with zeros in shared memory.
 */
static __host__ __device__ __forceinline__ int a_padded(int k)
{
	return (k + STAGE_K - 1) / STAGE_K * STAGE_K;
}

GRID int a_index(int k)			/* where element k lies */
{
	return (k & ~(STAGE_K - 1)) + (k >> 1 & 3) * 32 + (k >> 3 & 15) * 2 + (k & 1);
}

static __host__ __device__ __forceinline__ uint32_t a_stride(int k)		/* bytes of a row in shared memory: eight rows meet different banks */
{
	return a_padded(k) * 2 + 32;
}

GRID uint32_t a_at(const struct grid_args &a, int row, int k)
{
	return ptx_smem(grid_mem) + a.at_a + row * a_stride(k);
}

static __host__ __device__ __forceinline__ bool a_fits(const struct grid_args &a, int k)
{
	return (int64_t)a_stride(k) * a.s.batch <= a.a_bytes;
}

/* Is what the phase norms, or adds to, what the call began with? */
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

#define NORM_AHEAD	2		/* vectors of the norm's weights that a thread asks for before it may read x */

struct norm_weights {
	uint4 v[NORM_AHEAD];
};

/* A row's vectors go round all threads; of two by words, round half of them. */
GRID int norm_step(const struct grid_args &a)
{
	return a.by_words && a.s.batch == 2 ? WORKERS / 2 : WORKERS;
}

GRID void norm_prefetch(const struct grid_args &a, int phase, int kind, struct norm_weights &w)
{
	int step = norm_step(a), first = threadIdx.x & (step - 1);
	const uint4 *weight = grid_norm_weight(a, phase, kind);

#pragma unroll
	for (int i = 0; i < NORM_AHEAD; i++) {
		int v = first + i * step;

		w.v[i] = v < a.s.hidden / 8 ? __ldg(weight + v) : make_uint4(0, 0, 0, 0);
	}
}

/* Eight elements v of a row in shared memory, to where a_index() says */
GRID void norm_put(uint32_t row, int v, uint4 p)
{
	const uint32_t at = row + v / 16 * 256 + v % 16 * 4;

	ptx_st_shared_b32(at, p.x);
	ptx_st_shared_b32(at + 64, p.y);
	ptx_st_shared_b32(at + 128, p.z);
	ptx_st_shared_b32(at + 192, p.w);
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

#define NORM_ROWS	8		/* whose vectors a thread asks for together: memory is far */

/* rmsnorm of all rows, into shared memory; a thread has some columns of each. Ends with a barrier. */
template <int dtype>
GRID void load_normed(const struct grid_args &a, int phase, int kind, const struct norm_weights &ahead)
{
	const int vecs = a.s.hidden / 8, padded = a_padded(a.s.hidden) / 8, warp = threadIdx.x / 32;
	float *part = (float *)(grid_mem + GRID_SUMS), *scales = part + GRID_WARPS * a.s.batch;
	float g[8];

	for (int row = 0; row < a.s.batch; row += NORM_ROWS) {
		const uint4 *x[NORM_ROWS];
		float sum[NORM_ROWS] = {};

#pragma unroll
		for (int r = 0; r < NORM_ROWS; r++)
			x[r] = (const uint4 *)grid_x(a, phase, kind, min(row + r, a.s.batch - 1));
		for (int v = threadIdx.x; v < padded; v += WORKERS) {
			uint4 p[NORM_ROWS];

#pragma unroll
			for (int r = 0; r < NORM_ROWS; r++)
				p[r] = v < vecs && row + r < a.s.batch ? __ldcg(x[r] + v) : make_uint4(0, 0, 0, 0);
#pragma unroll
			for (int r = 0; r < NORM_ROWS; r++)
				if (row + r < a.s.batch) {
					norm_put(a_at(a, row + r, a.s.hidden), v, p[r]);
					sum[r] += norm_squares<dtype>(p[r]);
				}
		}
#pragma unroll
		for (int r = 0; r < NORM_ROWS; r++) {
			sum[r] = row_warp_sum(sum[r]);
			if (threadIdx.x % 32 == 0 && row + r < a.s.batch)
				part[warp * a.s.batch + row + r] = sum[r];
		}
	}
	work_sync();
	if (threadIdx.x < a.s.batch) {
		float sum = 0;

#pragma unroll
		for (int w = 0; w < GRID_WARPS; w++)
			sum += part[w * a.s.batch + threadIdx.x];
		scales[threadIdx.x] = rsqrtf(sum * a.per_hidden + a.s.eps);
	}
	work_sync();
	for (int i = 0, v = threadIdx.x; v < vecs; v += WORKERS, i++) {
		row_unpack<dtype>(i == 0 ? ahead.v[0] : i == 1 ? ahead.v[1] :
				  __ldg(grid_norm_weight(a, phase, kind) + v), g);
#pragma unroll 4
		for (int row = 0; row < a.s.batch; row++) {
			const uint32_t at = a_at(a, row, a.s.hidden) + v / 16 * 256 + v % 16 * 4;

#pragma unroll
			for (int j = 0; j < 4; j++)
				ptx_st_shared_b32(at + 64 * j, norm_scale<dtype>(ptx_ld_shared_b32(at + 64 * j), scales[row],
										 g[2 * j], g[2 * j + 1]));
		}
	}
	work_sync();
}

#define NORM_KEEP		4	/* vectors of x that a thread has in registers */

/* The same by words. A row belongs to four warps or to all eight. number: of the words of x. Ends with a barrier. */
template <int dtype>
GRID void load_normed_words(const struct grid_args &a, int phase, int kind, const struct norm_weights &ahead, uint32_t number)
{
	const int two = a.s.batch == 2, step = norm_step(a), row = threadIdx.x / step;
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
		const uint64_t *x = grid_words_in(a, kind) + (int64_t)row * (a.s.hidden / 2) + first * 4;
		const int64_t start = debug_clock();
		uint32_t missing;

		do {
			missing = 0;
#pragma unroll
			for (int i = 0; i < NORM_KEEP; i++)
				if (first + i * step < vecs) {
					const uint4 lo = ptx_ld_relaxed_gpu_v2_u64(x + i * step * 4);
					const uint4 hi = ptx_ld_relaxed_gpu_v2_u64(x + i * step * 4 + 2);

					missing |= words_missing(lo, number) | words_missing(hi, number);
					p[i] = make_uint4(lo.x, lo.z, hi.x, hi.z);
				}
			ptx_spin_check(start, "words of x (number)", number, 0);
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
		row_unpack<dtype>(i < NORM_AHEAD ? ahead.v[i < NORM_AHEAD ? i : 0] : v < vecs ?
				  __ldg(grid_norm_weight(a, phase, kind) + v) : make_uint4(0, 0, 0, 0), g);
		norm_put(to, v, make_uint4(norm_scale<dtype>(p[i].x, scale, g[0], g[1]), norm_scale<dtype>(p[i].y, scale, g[2], g[3]),
					   norm_scale<dtype>(p[i].z, scale, g[4], g[5]), norm_scale<dtype>(p[i].w, scale, g[6], g[7])));
	}
	work_sync();
}

/* The activations [batch][k padded] at src, in order: what this warp's stages need of them, into shared memory. */
GRID void load_plain(const struct grid_args &a, const void *src, int k)
{
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, num_stages = a_padded(k) / STAGE_K;
	int mine = num_stages > warp ? (num_stages - warp + GRID_WARPS - 1) / GRID_WARPS : 0;

	/* an item: 16 pieces, one stage of one row; of a last half stage, half of each lane's are there */
#pragma unroll 8
	for (int i = lane / 16; i < mine * a.s.batch; i += 2) {
		int row = i / mine, stage = warp + (i - row * mine) * GRID_WARPS, piece = lane % 16;
		const uint4 *from = (const uint4 *)src + ((int64_t)row * a_padded(k) + stage * STAGE_K) / 8 + piece;

		ptx_st_shared_v4(a_at(a, row, k) + stage * 256 + piece * 16,
				 stage * STAGE_K + 64 < k || piece % 4 < 2 ? __ldcg(from) : make_uint4(0, 0, 0, 0));
	}
	__syncwarp();
}

#define WORDS_AHEAD	8		/* loads of a lane in flight */

/* The same of words: a lane takes four elements of a stage at a time. */
GRID void load_words(const struct grid_args &a, const uint64_t *src, int k, uint32_t number)
{
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, num_stages = a_padded(k) / STAGE_K;
	const int mine = num_stages > warp ? (num_stages - warp + GRID_WARPS - 1) / GRID_WARPS : 0;

	if (mine) {	/* first just one of them: many may wait here for long, beside weights that are still to come */
		const int64_t start = debug_clock();

		while ((uint32_t)(ptx_ld_relaxed_gpu_u64(src + warp * (STAGE_K / 2)) >> 32) != number)
			ptx_spin_check(start, "first word (number)", number, 0);
	}
	for (int first = 0; first < mine * a.s.batch; first += WORDS_AHEAD) {
		const int64_t start = debug_clock();
		uint4 w[WORDS_AHEAD] = {};
		uint32_t missing;

		do {
			missing = 0;
#pragma unroll
			for (int i = 0; i < WORDS_AHEAD; i++) {
				const int row = first + i >= mine, at = (warp + (first + i - row * mine) * GRID_WARPS) * STAGE_K +
									lane * 4;

				if (first + i < mine * a.s.batch && at < k) {
					w[i] = ptx_ld_relaxed_gpu_v2_u64(src + ((int64_t)row * k + at) / 2);
					missing |= words_missing(w[i], number);
				}
			}
			ptx_spin_check(start, "words (number)", number, 0);
		} while (missing);
#pragma unroll
		for (int i = 0; i < WORDS_AHEAD; i++) {
			const int row = first + i >= mine, stage = warp + (first + i - row * mine) * GRID_WARPS;
			const uint32_t at = a_at(a, row, k) + stage * 256 + a_index(lane * 4) * 2;

			if (first + i < mine * a.s.batch) {
				ptx_st_shared_b32(at, w[i].x);
				ptx_st_shared_b32(at + 64, w[i].z);
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
