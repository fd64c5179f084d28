/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grid - meetings of all CTAs, activations, and the products
 */
#ifndef CAIRN_GRID_CUH
#define CAIRN_GRID_CUH

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

/* ---- products ---- */

template <int dtype> GRID void grid_put(void *p, int64_t i, float v)
{
	((uint16_t *)p)[i] = (uint16_t)row_pack2<dtype>(v, 0);
}

/* What a result is added to, as it lies in memory: asked for before the product, as it comes from far. By words, to: where
 * it goes together with the next one; columns of a CTA come in pairs. */
struct grid_addend {
	uint16_t bias, x;
	uint64_t *to;
};

GRID uint64_t *grid_word_at(const struct grid_args &a, int phase, int kind, int row, int col)
{
	const int k = kind == GRID_QKV ? a.qkv_dim : kind == GRID_GATE_UP ? a.s.intermediate : a.s.hidden;
	const int at = (row * k + col) / 2;

	return a.out && phase + 1 == a.call_end ? (uint64_t *)((uint32_t *)a.out + at) : a.words[kind] + at;
}

GRID struct grid_addend grid_addend(const struct grid_args &a, int phase, int kind, int row, int col)
{
	struct grid_addend v = { 0, 0, NULL };

	if (a.by_words && kind != GRID_HEAD)
		v.to = grid_word_at(a, phase, kind, row, col);

	if (kind == GRID_QKV && a.s.b_qkv)
		v.bias = __ldg((const unsigned short *)grid_layer(a, a.s.b_qkv, phase) + col);
	if (kind == GRID_OUT && a.s.b_o)
		v.bias = __ldg((const unsigned short *)grid_layer(a, a.s.b_o, phase) + col);
	if (kind != GRID_OUT && kind != GRID_DOWN)
		return v;
	if (a.by_words && !grid_at_first(a, phase, kind))	/* this CTA's own, from before */
		v.x = __ldcg((const unsigned short *)(a.words[kind == GRID_OUT ? GRID_DOWN : GRID_OUT] +
						      ((int64_t)row * a.s.hidden + col) / 2) + col % 2);
	else
		v.x = __ldcg((const unsigned short *)grid_x(a, phase, kind, row) + col);
	return v;
}

/* The sum of one element, v, is known; `up`: of the row 8 further on. */
template <int dtype>
GRID void grid_result(const struct grid_args &a, int phase, int kind, int row, int col, float v, float up)
{
	switch (kind) {
	case GRID_QKV:
		grid_put<dtype>(a.qkv, (int64_t)row * a.qkv_dim + col, v);
		return;
	case GRID_OUT:
		grid_put<dtype>(a.out && phase + 1 == a.call_end ? a.out : a.x_mid, (int64_t)row * a.s.hidden + col, v);
		return;
	case GRID_GATE_UP:
		grid_put<dtype>(a.act, (int64_t)row * a_padded(a.s.intermediate) + a_index(col),
				v / (1 + expf(-v)) * up);
		return;
	case GRID_DOWN:
		grid_put<dtype>(a.out && phase + 1 == a.call_end ? a.out : a.x_out, (int64_t)row * a.s.hidden + col, v);
		return;
	default:
		a.s.logits[(int64_t)row * a.s.vocab + col] = v;
	}
}

GRID int grid_k(const struct grid_args &a, int kind)
{
	return kind == GRID_OUT ? a.q_dim : kind == GRID_DOWN ? a.s.intermediate : a.s.hidden;
}

/*
 * The B fragments of a stage, of this lane: from shared memory, rows at x, or, if they did not fit, from the L2. Columns
 * of the mma that are no requests get what is there: nobody looks at their sums.
 */
template <int way>
GRID void load_fragments(const struct grid_args &a, int kind, int k, int stage, const uint32_t *x, uint4 (*b)[4])
{
#pragma unroll
	for (int h = 0; h <= (way == GRID_WIDE); h++) {
		if (way == GRID_BY_WORDS || a_fits(a, k)) {
#pragma unroll
			for (int j = 0; j < 4; j++)
				b[h][j] = ptx_ld_shared_v4(x[h] + stage * 256 + j * 16);
		} else {
			const int row = threadIdx.x % 32 / 4 + 8 * h, live = row < a.s.batch;
			const uint4 *at = (const uint4 *)grid_activations(a, kind) +
					  ((int64_t)row * a_padded(k) + stage * STAGE_K) / 8 + threadIdx.x % 4 * 4;

#pragma unroll
			for (int j = 0; j < 4; j++)
				b[h][j] = live && (stage * STAGE_K + 64 < k || j < 2) ? __ldcg(at + j) :
					  make_uint4(0, 0, 0, 0);
		}
	}
}

/* sum += tile x; two sums, as an mma waits for the one before it */
template <int dtype, int wide>
GRID void multiply_stage(uint32_t tile, const uint4 (*x)[4], float (*sum)[2][4])
{
	uint32_t w[4];

#pragma unroll
	for (int i = 0; i < STAGE_K / 16; i++) {
		ptx_ldmatrix_x4(w, tile ^ i * 32);
#pragma unroll
		for (int h = 0; h <= wide; h++)
			attn_mma<dtype>(sum[h][i % 2], w, (const uint32_t *)&x[h][i / 2] + i % 2 * 2);
	}
}

/* One of the 16 rows of a unit, and a request: what lane and turn make of it */
struct grid_element {
	int row, col, mine;
};

GRID struct grid_element grid_element(const struct grid_args &a, int kind, int2 rows, int unit, int turn)
{
	const int element = turn * 32 + threadIdx.x % 32, at = element % STAGE_ROWS;
	struct grid_element e = { element / STAGE_ROWS, rows.x + unit + at, 0 };

	e.mine = e.row < a.s.batch && at < grid_unit(kind) && unit + at < rows.y;
	return e;
}

/* For the first unit of a product: while its activations are on their way */
GRID struct grid_addend grid_first_addend(const struct grid_args &a, int phase, int kind)
{
	const struct grid_element e = grid_element(a, kind, grid_shares()[kind], 0, threadIdx.x / 32);
	struct grid_addend v = { 0, 0, NULL };

	return e.mine ? grid_addend(a, phase, kind, e.row, e.col) : v;
}

/* The sum of one element, v, is known, `up` that of the row 8 further on. By all lanes. */
template <int dtype>
GRID void grid_result_word(const struct grid_args &a, int phase, int kind, float v, float up, uint64_t *to, int writes,
			   uint32_t number)
{
	uint32_t pair;

	if (kind == GRID_GATE_UP)
		v = v / (1 + expf(-v)) * up;
	pair = row_pack2<dtype>(v, __shfl_down_sync(~0u, v, 1));
	if (!writes)
		return;
	if (a.out && phase + 1 == a.call_end)
		*(uint32_t *)to = pair;
	else
		ptx_st_relaxed_gpu_u64(to, (uint64_t)number << 32 | pair);
}

/*
 * One product: rows of the matrix as the 16 rows of an mma, requests as its 8 columns (wide: 16). Warps share out the
 * stages along k, and take them by two (wide: one by one); their sums meet in shared memory, in the order of the warps.
 *
 * By words there is one writer a unit, and the others do not wait: there are as many sums and barriers as warps. Whoever
 * comes round to the same sums has been a writer meanwhile, or was their last; as a writer it has seen all come past the
 * unit before, and the last writer of these sums with them.
 */
template <int dtype, int way>
GRID void run_product(const struct grid_args &a, struct ring &r, int phase, int kind, struct grid_addend addend,
		      uint32_t number)
{
	constexpr int wide = way == GRID_WIDE, by_words = way == GRID_BY_WORDS, most = wide ? 1 : 2;	/* stages at a time */
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, quad = lane / 4, t = lane % 4;
	const int k = grid_k(a, kind), num_stages = a_padded(k) / STAGE_K, batch = a.s.batch, sums = batch * STAGE_ROWS;
	const int writers = by_words ? 1 : (sums + 31) / 32, unit_rows = grid_unit(kind);	/* warps that write a unit's results */
	const uint32_t x_at[2] = { a_at(a, min(quad, batch - 1), k) + t * 64, a_at(a, min(quad + 8, batch - 1), k) + t * 64 };
	float *s_sums = (float *)(grid_mem + GRID_SUMS), *s_mine = s_sums + warp * sums + quad + 2 * t * STAGE_ROWS;
	const int2 rows = grid_shares()[kind];
	int turn = warp, buf = 0;	/* writers take turns: whoever is below `writers` */

	for (int unit = 0; unit < rows.y; unit += unit_rows) {
		const struct grid_element e = grid_element(a, kind, rows, unit, turn);
		float sum[most][wide + 1][2][4] = {};

		if (unit && e.mine)
			addend = grid_addend(a, phase, kind, e.row, e.col);
		for (int stage = warp; stage < num_stages; stage += most * GRID_WARPS) {
			const int two = most == 2 && stage + GRID_WARPS < num_stages;
			uint4 x[most][wide + 1][4];
			uint32_t tile[most];

			load_fragments<way>(a, kind, k, stage, x_at, x[0]);
			if (two)
				load_fragments<way>(a, kind, k, stage + GRID_WARPS, x_at, x[most - 1]);
			tile[0] = ring_wait(r) + attn_q_at<STAGE_K>(lane);
			if (two) {
				struct ring next = r;

				ring_advance(next);
				tile[most - 1] = ring_wait(next) + attn_q_at<STAGE_K>(lane);
				multiply_stage<dtype, wide>(tile[0], x[0], sum[0]);
				multiply_stage<dtype, wide>(tile[most - 1], x[most - 1], sum[most - 1]);
			} else {
				multiply_stage<dtype, wide>(tile[0], x[0], sum[0]);
			}
			ring_release(r, 1 + two);
		}
#pragma unroll
		for (int h = 0; h <= wide; h++)
#pragma unroll
			for (int j = 0; j < 4; j++)
				if (8 * h + 2 * t + j % 2 < batch)
					s_mine[buf * GRID_WARPS * sums + (8 * h + j % 2) * STAGE_ROWS + j / 2 * 8] =
						sum[0][h][0][j] + sum[0][h][1][j] +
						(most == 2 ? sum[most - 1][h][0][j] + sum[most - 1][h][1][j] : 0);
		if (!by_words)
			work_sync();
		else if (turn)
			ptx_bar_arrive(WORK_BAR + 1 + buf, WORKERS);
		else
			ptx_bar_sync(WORK_BAR + 1 + buf, WORKERS);
		if (turn < writers) {
			const float *from = s_sums + buf * GRID_WARPS * sums + min(turn * 32 + lane, sums - 1);
			float total = 0, up;

#pragma unroll
			for (int i = 0; i < GRID_WARPS; i++)
				total += from[i * sums];
			up = __shfl_down_sync(~0u, total, 8);
			total += row_element<dtype>(&addend.bias, 0) + row_element<dtype>(&addend.x, 0);
			if (by_words && kind != GRID_HEAD)
				grid_result_word<dtype>(a, phase, kind, total, up, addend.to, e.mine && e.col % 2 == 0, number);
			else if (e.mine)
				grid_result<dtype>(a, phase, kind, e.row, e.col, total, up);
		}
		turn = turn < writers ? turn + GRID_WARPS - writers : turn - writers;
		if (++buf == a.sum_bufs)
			buf = 0;
		if (a.sum_bufs == 1)
			work_sync();
	}
	end_phase<way>(a, phase);
}
#endif
