/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grid - meetings of all CTAs, activations, and the products
 */
#ifndef CAIRN_GRID_CUH
#define CAIRN_GRID_CUH

#include "grid_stream.cuh"

/* ---- meetings ---- */

/* By threads that have synchronised since the writes that others are to see: thread 0 of them. */
GRID void grid_arrive(const struct grid_args &a)
{
	ptx_red_release_gpu_add_u32(a.meetings, 1);
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
GRID int a_padded(int k)
{
	return (k + STAGE_K - 1) / STAGE_K * STAGE_K;
}

GRID int a_index(int k)			/* where element k lies */
{
	return (k & ~(STAGE_K - 1)) + (k >> 1 & 3) * 32 + (k >> 3 & 15) * 2 + (k & 1);
}

GRID uint32_t a_stride(int k)		/* bytes of a row in shared memory: eight rows meet different banks */
{
	return a_padded(k) * 2 + 32;
}

GRID uint32_t a_at(const struct grid_args &a, int row, int k)
{
	return ptx_smem(grid_mem) + a.at_a + row * a_stride(k);
}

GRID bool a_fits(const struct grid_args &a, int k)
{
	return (int64_t)a_stride(k) * a.s.batch <= a.a_bytes;
}

GRID const char *grid_x(const struct grid_args &a, int phase, int kind, int row)
{
	int64_t bytes = (int64_t)a.s.hidden * 2;

	if (kind == GRID_GATE_UP || kind == GRID_DOWN)
		return (const char *)a.x_mid + row * bytes;
	if (phase >= GRID_KINDS)
		return (const char *)a.x_out + row * bytes;
	return a.x ? (const char *)a.x + row * bytes : (const char *)a.s.embed + a.s.ids[row] * bytes;
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

/* A row belongs to so many neighbouring warps; its vectors go round their lanes. */
GRID int norm_warps(int batch)
{
	return batch == 1 ? GRID_WARPS : batch == 2 ? GRID_WARPS / 2 : batch <= 4 ? GRID_WARPS / 4 : 1;
}

GRID void norm_prefetch(const struct grid_args &a, int phase, int kind, struct norm_weights &w)
{
	int step = norm_warps(a.s.batch) * 32, first = threadIdx.x & (step - 1);
	const uint4 *weight = grid_norm_weight(a, phase, kind);

#pragma unroll
	for (int i = 0; i < NORM_AHEAD; i++) {
		int v = first + i * step;

		w.v[i] = v < a.s.hidden / 8 ? __ldg(weight + v) : make_uint4(0, 0, 0, 0);
	}
}

/* rmsnorm of all rows, into shared memory. Ends with a barrier. */
template <int dtype>
GRID void load_normed(const struct grid_args &a, int phase, int kind, const struct norm_weights &ahead)
{
	int warps = norm_warps(a.s.batch), step = warps * 32, first = threadIdx.x & (step - 1);
	int vecs = a.s.hidden / 8, padded = a_padded(a.s.hidden) / 8;
	float *red = (float *)grid_mem;

	/* everyone goes round equally often: there are barriers */
	for (int pass = 0; pass < a.s.batch; pass += GRID_WARPS / warps) {
		const int row = pass + threadIdx.x / step, live = row < a.s.batch;
		const uint4 *x = (const uint4 *)(live ? grid_x(a, phase, kind, row) : NULL);
		uint32_t to = a_at(a, row, a.s.hidden);
		float f[8], g[8], sum = 0, scale;

#pragma unroll 2
		for (int v = first; v < padded; v += step) {
			uint4 p = live && v < vecs ? __ldcg(x + v) : make_uint4(0, 0, 0, 0);
			uint32_t at = to + v / 16 * 256 + v % 16 * 4;

			if (live) {
				ptx_st_shared_b32(at, p.x);
				ptx_st_shared_b32(at + 64, p.y);
				ptx_st_shared_b32(at + 128, p.z);
				ptx_st_shared_b32(at + 192, p.w);
			}
			row_unpack<dtype>(p, f);
#pragma unroll
			for (int j = 0; j < 8; j++)
				sum += f[j] * f[j];
		}
		sum = row_warp_sum(sum);
		if (warps > 1) {
			if (threadIdx.x % 32 == 0)
				red[threadIdx.x / 32] = sum;
			work_sync();
			sum = 0;
			for (int w = 0; w < warps; w++)
				sum += red[threadIdx.x / step * warps + w];
		}
		scale = rsqrtf(sum / (float)a.s.hidden + a.s.eps);
		for (int i = 0, v = first; live && v < vecs; v += step, i++) {
			uint32_t at = to + v / 16 * 256 + v % 16 * 4;

			row_unpack<dtype>(i == 0 ? ahead.v[0] : i == 1 ? ahead.v[1] :
					  __ldg(grid_norm_weight(a, phase, kind) + v), g);
#pragma unroll
			for (int j = 0; j < 4; j++) {
				row_unpack2<dtype>(ptx_ld_shared_b32(at + 64 * j), f);
				ptx_st_shared_b32(at + 64 * j, row_pack2<dtype>(f[0] * scale * g[2 * j],
										f[1] * scale * g[2 * j + 1]));
			}
		}
	}
	work_sync();
}

/* The activations [batch][k padded] at src, in order: what this warp's stages need of them, into shared memory. */
GRID void load_plain(const struct grid_args &a, const void *src, int k)
{
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, num_stages = a_padded(k) / STAGE_K;
	int mine = num_stages > warp ? (num_stages - warp + GRID_WARPS - 1) / GRID_WARPS : 0;

	/* an item: 16 pieces, one stage of one row; of a last half stage, half of each lane's are there */
#pragma unroll 4
	for (int i = lane / 16; i < mine * a.s.batch; i += 2) {
		int row = i / mine, stage = warp + (i - row * mine) * GRID_WARPS, piece = lane % 16;
		const uint4 *from = (const uint4 *)src + ((int64_t)row * a_padded(k) + stage * STAGE_K) / 8 + piece;

		ptx_st_shared_v4(a_at(a, row, k) + stage * 256 + piece * 16,
				 stage * STAGE_K + 64 < k || piece % 4 < 2 ? __ldcg(from) : make_uint4(0, 0, 0, 0));
	}
	__syncwarp();
}

GRID const void *grid_activations(const struct grid_args &a, int kind)
{
	return kind == GRID_OUT ? a.attn : a.act;
}

/* ---- products ---- */

template <int dtype> GRID float grid_element(const void *p, int64_t i)
{
	uint16_t bits = __ldcg((const unsigned short *)p + i);

	return row_element<dtype>(&bits, 0);
}

template <int dtype> GRID void grid_put(void *p, int64_t i, float v)
{
	((uint16_t *)p)[i] = (uint16_t)row_pack2<dtype>(v, 0);
}

/* What a result is added to, as it lies in memory: asked for before the product, as it comes from far. */
struct grid_addend {
	uint16_t bias, x;
};

GRID struct grid_addend grid_addend(const struct grid_args &a, int phase, int kind, int row, int col)
{
	struct grid_addend v = { 0, 0 };

	if (kind == GRID_QKV && a.s.b_qkv)
		v.bias = __ldg((const unsigned short *)grid_layer(a, a.s.b_qkv, phase) + col);
	if (kind == GRID_OUT && a.s.b_o)
		v.bias = __ldg((const unsigned short *)grid_layer(a, a.s.b_o, phase) + col);
	if (kind == GRID_OUT || kind == GRID_DOWN)
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
		grid_put<dtype>(a.out ? a.out : a.x_mid, (int64_t)row * a.s.hidden + col, v);
		return;
	case GRID_GATE_UP:
		grid_put<dtype>(a.act, (int64_t)row * a_padded(a.s.intermediate) + a_index(col),
				v / (1 + expf(-v)) * up);
		return;
	case GRID_DOWN:
		grid_put<dtype>(a.x_out, (int64_t)row * a.s.hidden + col, v);
		return;
	default:
		a.s.logits[(int64_t)row * a.s.vocab + col] = v;
	}
}

GRID int grid_k(const struct grid_args &a, int kind)
{
	return kind == GRID_OUT ? a.q_dim : kind == GRID_DOWN ? a.s.intermediate : a.s.hidden;
}

/* The B fragments of a stage, of this lane: from shared memory or, if they did not fit, from the L2. */
template <int wide>
GRID void load_fragments(const struct grid_args &a, int kind, int k, int stage, uint4 (*x)[4])
{
	const int quad = threadIdx.x % 32 / 4, t = threadIdx.x % 4;

#pragma unroll
	for (int h = 0; h <= wide; h++) {
		const int row = quad + 8 * h, live = row < a.s.batch;

		if (a_fits(a, k)) {
			uint32_t at = a_at(a, row, k) + stage * 256 + t * 64;

#pragma unroll
			for (int j = 0; j < 4; j++)
				x[h][j] = live ? ptx_ld_shared_v4(at + j * 16) : make_uint4(0, 0, 0, 0);
		} else {
			const uint4 *at = (const uint4 *)grid_activations(a, kind) +
					  ((int64_t)row * a_padded(k) + stage * STAGE_K) / 8 + t * 4;

#pragma unroll
			for (int j = 0; j < 4; j++)
				x[h][j] = live && (stage * STAGE_K + 64 < k || j < 2) ? __ldcg(at + j) :
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

/*
 * One product: rows of the matrix as the 16 rows of an mma, requests as its 8 columns (wide: 16). Warps share out the
 * stages along k, and take them by two (wide: one by one); their sums meet in shared memory, in the order of the warps.
 */
template <int dtype, int wide>
GRID void run_product(const struct grid_args &a, struct ring &r, int phase, int kind)
{
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, quad = lane / 4, t = lane % 4;
	const int k = grid_k(a, kind), num_stages = a_padded(k) / STAGE_K, batch = a.s.batch, sums = batch * STAGE_ROWS;
	const int writers = (sums + 31) / 32, unit_rows = grid_unit(kind);	/* warps that write a unit's results */
	constexpr int most = wide ? 1 : 2;	/* stages at a time */
	float *s_sums = (float *)(grid_mem + GRID_SUMS);
	const int2 rows = grid_shares()[kind];
	int turn = warp, buf = 0;	/* writers take turns: whoever is below `writers` */

	for (int unit = 0; unit < rows.y; unit += unit_rows) {
		const int element = turn * 32 + lane, row = element / STAGE_ROWS, at = element % STAGE_ROWS;
		const int col = rows.x + unit + at;
		const int mine = element < sums && at < unit_rows && unit + at < rows.y;
		struct grid_addend addend = {};
		float sum[most][wide + 1][2][4] = {};

		if (mine)
			addend = grid_addend(a, phase, kind, row, col);
		for (int stage = warp; stage < num_stages; stage += most * GRID_WARPS) {
			const int two = most == 2 && stage + GRID_WARPS < num_stages;
			uint4 x[most][wide + 1][4];
			uint32_t tile[most];

			load_fragments<wide>(a, kind, k, stage, x[0]);
			if (two)
				load_fragments<wide>(a, kind, k, stage + GRID_WARPS, x[most - 1]);
			tile[0] = ring_wait(r) + attn_q_at<STAGE_K>(lane);
			if (two) {
				struct ring next = r;

				ring_advance(a, next);
				tile[most - 1] = ring_wait(next) + attn_q_at<STAGE_K>(lane);
				multiply_stage<dtype, wide>(tile[0], x[0], sum[0]);
				multiply_stage<dtype, wide>(tile[most - 1], x[most - 1], sum[most - 1]);
			} else {
				multiply_stage<dtype, wide>(tile[0], x[0], sum[0]);
			}
			ring_release(a, r, 1 + two);
		}
#pragma unroll
		for (int h = 0; h <= wide; h++)
#pragma unroll
			for (int j = 0; j < 4; j++)
				if (8 * h + 2 * t + j % 2 < batch)
					s_sums[(buf * GRID_WARPS + warp) * sums + (8 * h + 2 * t + j % 2) * STAGE_ROWS +
					       quad + j / 2 * 8] = sum[0][h][0][j] + sum[0][h][1][j] +
					(most == 2 ? sum[most - 1][h][0][j] + sum[most - 1][h][1][j] : 0);
		work_sync();
		if (turn < writers) {
			const float *from = s_sums + buf * GRID_WARPS * sums + (element < sums ? element : 0);
			float total = 0, up;

#pragma unroll
			for (int i = 0; i < GRID_WARPS; i++)
				total += from[i * sums];
			up = __shfl_down_sync(~0u, total, 8);
			if (mine)
				grid_result<dtype>(a, phase, kind, row, col, total + row_element<dtype>(&addend.bias, 0) +
						   row_element<dtype>(&addend.x, 0), up);
		}
		turn = turn < writers ? turn + GRID_WARPS - writers : turn - writers;
		if (a.sum_bufs == 2)
			buf ^= 1;
		else
			work_sync();
	}
	if (phase + 1 < a.end_phase) {
		work_sync();
		if (threadIdx.x == 0)
			grid_arrive(a);
	}
}
#endif
