/* SPDX-License-Identifier: Apache-2.0 */
/* grid - the products of the phases, for up to 8 requests */
#ifndef CAIRN_GRID_CUH
#define CAIRN_GRID_CUH

#include "fused/grid/grid_exchange.cuh"
#include "fused/grid/grid_ranks.cuh"

template <int dtype> GRID void grid_put(void *p, int64_t i, float v)
{
	((uint16_t *)p)[i] = (uint16_t)row_pack2<dtype>(v, 0);
}

GRID uint64_t *grid_ll_at(const struct grid_args &a, int phase, int kind, int row, int col)
{
	const int k = kind == GRID_QKV ? a.qkv_dim : kind == GRID_GATE_UP ? a.s.intermediate : a.s.hidden;
	const int at = (row * k + col) / 2;

	return a.out && phase + 1 == a.call_end ? (uint64_t *)((uint32_t *)a.out + at) : a.ll[kind] + at;
}

GRID struct grid_addend grid_addend(const struct grid_args &a, int phase, int kind, int row, int col)
{
	struct grid_addend v = { 0, 0, NULL };

	if (a.by_ll && kind != GRID_HEAD)
		v.to = grid_ll_at(a, phase, kind, row, col);

	if (kind == GRID_QKV && a.s.b_qkv)
		v.bias = __ldg((const unsigned short *)grid_layer(a, a.s.b_qkv, phase) + col);
	if (kind == GRID_OUT && a.s.b_o)
		v.bias = __ldg((const unsigned short *)grid_layer(a, a.s.b_o, phase) + col);
	if (kind != GRID_OUT && kind != GRID_DOWN)
		return v;
	if (a.by_ll && !grid_at_first(a, phase, kind))	/* written by this CTA in an earlier phase */
		v.x = __ldcg((const unsigned short *)(a.ll[kind == GRID_OUT ? GRID_DOWN : GRID_OUT] +
						      ((int64_t)row * a.s.hidden + col) / 2) + col % 2);
	else
		v.x = __ldcg((const unsigned short *)grid_x(a, phase, kind, row) + col);
	return v;
}

/* Stores the sum v of one element, or its silu; `up`: the sum of the row 8 further on. */
template <int dtype>
GRID void grid_result(const struct grid_args &a, int phase, int kind, int row, int col, float v, float up)
{
	switch (kind) {
	case GRID_QKV:
		grid_put<dtype>(a.qkv, (int64_t)row * a.qkv_dim + col, v);
		return;
	case GRID_OUT:
		grid_put<dtype>(a.out && phase + 1 == a.call_end ? a.out : a.x_mid,
				(int64_t)row * a.s.hidden + col, v);
		return;
	case GRID_GATE_UP:
		grid_put<dtype>(a.act, (int64_t)row * a_padded(a.s.intermediate) + a_index(col),
				v / (1 + expf(-v)) * up);
		return;
	case GRID_DOWN:
		grid_put<dtype>(a.out && phase + 1 == a.call_end ? a.out : a.x_out,
				(int64_t)row * a.s.hidden + col, v);
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
 * Loads this lane's B fragments of a stage: from shared memory, rows at x, or from the L2 if they did not
 * fit. Columns of the mma beyond the batch get a repeated row or zeros; their sums are not used.
 */
template <int way>
GRID void load_fragments(const struct grid_args &a, int kind, int k, int stage,
			 const uint32_t *x, uint4 (*b)[4])
{
#pragma unroll
	for (int h = 0; h <= (way == GRID_WIDE); h++) {
		if (way == GRID_BY_LL || a_fits(a, a_part(way, k))) {
			const int nth = way == GRID_WIDE ? stage / GRID_STAGE_STEP(way) * GRID_WARPS +
							   stage % GRID_WARPS : stage;

#pragma unroll
			for (int j = 0; j < 4; j++)
				b[h][j] = ptx_ld_shared_v4(x[h] + nth * 256 + j * 64);
		} else {
			const int row = threadIdx.x % 32 / 4 + 8 * h, live = row < a.s.kv.batch;
			const uint4 *at = (const uint4 *)grid_activations(a, kind) +
					  ((int64_t)row * a_padded(k) + stage * STAGE_K) / 8 +
					  threadIdx.x % 4;

#pragma unroll
			for (int j = 0; j < 4; j++)
				b[h][j] = live && (stage * STAGE_K + 64 < k || j < 2) ? __ldcg(at + j * 4) :
					  make_uint4(0, 0, 0, 0);
		}
	}
}

/*
 * sum += tile x. An mma waits for the previous one on the same accumulator. Up to 8 requests, products
 * therefore alternate between two sums; above that, between the sums of each 8 requests.
 */
template <int dtype, int wide>
GRID void multiply_stage(uint32_t tile, const uint4 (*x)[4], float (*sum)[wide ? 1 : 2][4])
{
	uint32_t w[4];

#pragma unroll
	for (int i = 0; i < STAGE_K / 16; i++) {
		ptx_ldmatrix_x4(w, tile ^ i * 32);
#pragma unroll
		for (int h = 0; h <= wide; h++)
			attn_mma<dtype>(sum[h][wide ? 0 : i % 2], w,
					(const uint32_t *)&x[h][i / 2] + i % 2 * 2);
	}
}

GRID struct grid_element grid_element(const struct grid_args &a, int kind, int2 rows, int unit, int turn)
{
	const int element = turn * 32 + threadIdx.x % 32, at = element % STAGE_ROWS;
	struct grid_element e = { element / STAGE_ROWS, rows.x + unit + at, 0 };

	e.mine = e.row < a.s.kv.batch && at < grid_unit(kind) && unit + at < rows.y;
	return e;
}

/* Returns the index of an element among a warp's sums; beyond the batch, that of the last element. */
template <int way>
GRID int sum_at(int batch, int element)
{
	element = min(element, batch * STAGE_ROWS - 1);
	return element / STAGE_ROWS * SUM_ROW(way) + element % STAGE_ROWS;
}

/* Loads the addends of the first unit of a product, while its activations are in flight. */
GRID struct grid_addend grid_first_addend(const struct grid_args &a, int phase, int kind)
{
	const struct grid_element e = grid_element(a, kind, grid_shares()[kind], 0, threadIdx.x / 32);
	struct grid_addend v = { 0, 0, NULL };

	return e.mine ? grid_addend(a, phase, kind, e.row, e.col) : v;
}

/*
 * Writes the sum v of one element, or its silu, as an LL word; `up`: the sum of the row 8 further on. Called
 * by all lanes.
 */
template <int dtype>
GRID void grid_result_ll(const struct grid_args &a, int phase, int kind, float v, float up,
			   uint64_t *to, int writes, uint32_t number)
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

#ifdef CAIRN_DEBUG
/* racecheck does not support bar.arrive and loses track of all barriers after one */
#define GRID_NO_ARRIVE	1
#else
#define GRID_NO_ARRIVE	0
#endif

/*
 * Runs one product for up to 8 requests: rows of the matrix are the 16 rows of an mma, and requests are its 8
 * columns. Warps divide the stages along k and take two at a time; their sums are added in shared memory, in
 * the order of the warps. More requests: grid_wide.cuh.
 *
 * With LL words each unit has one writer warp, and the other warps do not wait. There are as many sets of
 * sums and barriers as warps. A warp that reuses a set either was itself the set's last writer, or has been
 * the writer of a later unit. In the latter case it has seen all warps arrive at that unit, and the set's
 * last writer arrived there only after it had read the set.
 */
template <int dtype, int way, int shared>
GRID void run_product(const struct grid_args &a, struct ring &r, int phase, int kind,
		      struct grid_addend addend, const struct norm_left &left, uint32_t number,
		      struct grid_call &call)
{
	constexpr int by_ll = way == GRID_BY_LL, most = 2;	/* stages at a time */
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, quad = lane / 4, t = lane % 4;
	const int k = grid_k(a, kind), num_stages = a_padded(k) / STAGE_K,
		  batch = a.s.kv.batch, sums = batch * SUM_ROW(way);
	const int writers = by_ll ? 1 : (batch * STAGE_ROWS + 31) / 32,	/* warps that write results */
		  unit_rows = grid_unit(kind);
	const uint32_t x_at[1] = { a_at(a, min(quad, batch - 1), k) + t * 16 };
	float *s_sums = (float *)(grid_mem + GRID_SUMS),
	      *s_mine = s_sums + warp * sums + quad + 2 * t * SUM_ROW(way);
	const int2 rows = grid_shares()[kind];
	int turn = warp, buf = 0;	/* warps take turns: a warp writes if its turn is below `writers` */

	for (int unit = 0; unit < rows.y; unit += unit_rows) {
		const struct grid_element e = grid_element(a, kind, rows, unit, turn);
		float sum[most][1][2][4] = {};

		if (unit && e.mine)
			addend = grid_addend(a, phase, kind, e.row, e.col);
		for (int stage = grid_first_stage<way>(warp); stage < num_stages;
		     stage += most * GRID_STAGE_STEP(way)) {
			const int two = most == 2 && stage + GRID_WARPS < num_stages;
			uint4 x[most][1][4];
			uint32_t tile[most];

			if (!by_ll && unit == 0 && left.rows)
				for (int i = 0; i <= two; i++)
					scale_stage<dtype, way>(a, kind, phase, left, stage + i * GRID_WARPS,
								stage / GRID_STAGE_STEP(way) + i);
			load_fragments<way>(a, kind, k, stage, x_at, x[0]);
			if (two)
				load_fragments<way>(a, kind, k, stage + GRID_WARPS, x_at, x[most - 1]);
			tile[0] = ring_wait(r) + attn_q_at<STAGE_K>(lane);
			if (two) {
				struct ring next = r;

				ring_advance(next);
				tile[most - 1] = ring_wait(next) + attn_q_at<STAGE_K>(lane);
				multiply_stage<dtype, 0>(tile[0], x[0], sum[0]);
				multiply_stage<dtype, 0>(tile[most - 1], x[most - 1], sum[most - 1]);
			} else {
				multiply_stage<dtype, 0>(tile[0], x[0], sum[0]);
			}
			ring_release(r, 1 + two);
		}
#pragma unroll
		for (int j = 0; j < 4; j++)
			if (2 * t + j % 2 < batch)
				s_mine[buf * GRID_WARPS * sums + j % 2 * SUM_ROW(way) + j / 2 * 8] =
					sum[0][0][0][j] + sum[0][0][1][j] + sum[1][0][0][j] + sum[1][0][1][j];
		if (!by_ll || GRID_NO_ARRIVE)
			work_sync();
		else if (turn)
			ptx_bar_arrive(WORK_BAR + 1 + buf, WORKERS);
		else
			ptx_bar_sync(WORK_BAR + 1 + buf, WORKERS);
		if (turn < writers) {
			const float *from = s_sums + buf * GRID_WARPS * sums +
					    sum_at<way>(batch, turn * 32 + lane);
			float total = 0, up;

#pragma unroll
			for (int i = 0; i < GRID_WARPS; i++)
				total += from[i * sums];
			up = __shfl_down_sync(~0u, total, 8);
			if (shared && kind != GRID_QKV && kind != GRID_GATE_UP) {
				grid_send<dtype>(a, phase, kind, e, total, addend, call, number);
			} else {
				total += row_element<dtype>(&addend.bias, 0) +
					 row_element<dtype>(&addend.x, 0);
				if (by_ll && kind != GRID_HEAD)
					grid_result_ll<dtype>(a, phase, kind, total, up, addend.to,
							      e.mine && e.col % 2 == 0, number);
				else if (e.mine)
					grid_result<dtype>(a, phase, kind, e.row, e.col, total, up);
			}
		}
		turn = turn < writers ? turn + GRID_WARPS - writers : turn - writers;
		if (++buf == a.sum_bufs)
			buf = 0;
		if (a.sum_bufs == 1)
			work_sync();
	}
	if (shared)
		grid_settle<dtype>(a, call, number);
	end_phase<way>(a, phase);
}
#endif
