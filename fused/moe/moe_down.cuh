/* SPDX-License-Identifier: Apache-2.0 */
/* moe_down - the products of a stage, the sum over warps, and the product with w_down */
#ifndef CAIRN_MOE_DOWN_CUH
#define CAIRN_MOE_DOWN_CUH

#include "primitives/ptx/fp8.cuh"
#include "fused/moe/moe.cuh"

/*
 * Multiplies a stage into two alternating sums, because an mma waits for the previous one on the same
 * accumulator. columns: valid columns; those beyond, up to 64 or 128, are zeros.
 */
template <int dtype>
MOE void multiply(uint32_t tile, const uint4 *x, int columns, float (*sum)[4])
{
	uint32_t w[4];

#pragma unroll
	for (int i = 0; i < MOE_STAGE_K / 32; i++) {
		ptx_ldmatrix_x4(w, tile ^ i * 32);
		attn_mma<dtype>(sum[i % 2], w, (const uint32_t *)&x[i / 2] + i % 2 * 2);
	}
	if (columns <= MOE_STAGE_K / 2)
		return;
#pragma unroll
	for (int i = MOE_STAGE_K / 32; i < MOE_STAGE_K / 16; i++) {
		ptx_ldmatrix_x4(w, tile ^ i * 32);
		attn_mma<dtype>(sum[i % 2], w, (const uint32_t *)&x[i / 2] + i % 2 * 2);
	}
}

struct moe_sums {
	int buf, turn;			/* warps take turns: a warp writes results when turn < writers */
};

MOE int sum_writers(const struct moe_args &g)
{
	return (g.a.batch * MOE_STAGE_ROWS + 31) / 32;
}

/*
 * Adds the warps' sums of 16 rows in the order of the warps; writers get the total of element (request * 16 +
 * row).
 */
MOE float sum_up(const struct moe_args &g, struct moe_sums &s, const float *sum, int element)
{
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, quad = lane / 4, t = lane % 4;
	const int batch = g.a.batch, sums = batch * MOE_STAGE_ROWS;
	float *at = (float *)(moe_mem + g.at_sums) + s.buf * MOE_WARPS * sums, total = 0;

#pragma unroll
	for (int j = 0; j < 4; j++)
		if (2 * t + j % 2 < batch)
			at[warp * sums + (2 * t + j % 2) * MOE_STAGE_ROWS + quad + j / 2 * 8] = sum[j];
	moe_sync();
	if (element < sums)
#pragma unroll
		for (int i = 0; i < MOE_WARPS; i++)
			total += at[i * sums + element];
	s.buf ^= 1;
	return total;
}

MOE void next_turn(const struct moe_args &g, struct moe_sums &s)
{
	const int writers = sum_writers(g);

	s.turn = s.turn < writers ? s.turn + MOE_WARPS - writers : s.turn - writers;
}

/* ---- w_down ---- */

/*
 * The columns of a warp's stages: first those of the shared experts (pick -1), then those of the chosen
 * experts, which are the same for every pick
 */
struct moe_slices {
	int2 shared, routed;		/* columns: first, end */
};

MOE int shared_stages(const struct moe_slices &s)
{
	return (s.shared.y - s.shared.x + MOE_STAGE_K - 1) / MOE_STAGE_K;
}

MOE int routed_stages(const struct moe_slices &s)	/* stages of each chosen expert */
{
	return (s.routed.y - s.routed.x + MOE_STAGE_K - 1) / MOE_STAGE_K;
}

MOE int all_stages(const struct moe_slices &s)
{
	return shared_stages(s) + routed_stages(s) * moe_small()->num_picks;
}

template <int fp8 = 0>
MOE struct moe_slices slices_of(const struct moe_args &g)
{
	const int step = fp8 ? MOE_FP8_STEP : MOE_STEP_ACT;
	struct moe_slices s;

	s.shared = slice_of(g.a.shared_intermediate, step, threadIdx.x / 32, moe_warps(fp8));
	s.routed = slice_of(g.a.intermediate, step, threadIdx.x / 32, moe_warps(fp8));
	return s;
}

template <int fp8 = 0>
MOE uint32_t act_at(const struct moe_args &g, int row)
{
	return ptx_smem(moe_mem) + g.at_act + (threadIdx.x / 32 * moe_act_rows(fp8) + row) * MOE_ROW_BYTES;
}

/* Activations in flight: a row for each stage and each request that uses it; 4 elements per lane */
struct moe_rows_ahead {
	uint4 v[MOE_ACT_ROWS];		/* payload and number, as in LL words */
	int stages, rows;
};

/* Returns the table of a warp's rows: index of the LL words, and in the upper 8 bits the number of lanes. */
template <int fp8>
MOE uint32_t rows_at(void)
{
	return fp8 ? ptx_smem(moe_small() + 1) + threadIdx.x / 32 * moe_act_rows(1) * 4 :
		     ptx_smem(moe_small()->row_at[threadIdx.x / 32]);
}

template <int fp8>
MOE uint32_t row_at(int row)
{
	return ptx_ld_shared_b32(rows_at<fp8>() + row * 4);
}

/* Lanes beyond the row's end read the same as its last lane. */
template <int fp8>
MOE uint4 read_row(const struct moe_args &g, int row)
{
	const uint32_t at = row_at<fp8>(row);

	return ptx_ld_relaxed_gpu_v2_u64(g.shared + (at & 0xffffff) +
					 min(threadIdx.x % 32, (at >> 24) - 1) * 2);
}

MOE void read_rows(const struct moe_args &g, struct moe_rows_ahead &r)
{
#pragma unroll
	for (int i = 0; i < MOE_ACT_ROWS; i++)
		if (i < r.rows)
			r.v[i] = read_row<0>(g, i);
}

/*
 * Lists the activations of the stages from number `stage` on, as many as fit. Stages of the shared experts
 * are not mixed with others. Each lane looks up one stage.
 */
template <int fp8 = 0>
MOE void list_rows(const struct moe_args &g, const struct moe_slices &s, int stage, struct moe_rows_ahead &r)
{
	const int lane = threadIdx.x % 32, at = stage + lane, shared = stage < shared_stages(s);
	const int end = shared ? shared_stages(s) : all_stages(s), first = at - shared_stages(s);
	int pick = 0, column = shared ? s.shared.x + at * MOE_STAGE_K : 0, count, before;
	uint32_t mask = 0;

	if (at < end && !shared) {
		pick = (int)((uint32_t)first / (uint32_t)routed_stages(s));
		column = s.routed.x + (first - pick * routed_stages(s)) * MOE_STAGE_K;
		mask = moe_small()->pick[pick].mask;
	} else if (at < end) {
		mask = (1u << g.a.batch) - 1;
	}
	count = __popc(mask);
	before = count;
#pragma unroll
	for (int i = 1; i < 32; i *= 2) {
		int other = __shfl_up_sync(~0u, before, i);

		before += lane >= i ? other : 0;
	}
	r.stages = __popc(__ballot_sync(~0u, at < end && before <= moe_act_rows(fp8)));
	r.rows = r.stages ? __shfl_sync(~0u, before, max(r.stages - 1, 0)) : 0;
	if (lane < r.stages) {
		const uint32_t lanes = min(MOE_STAGE_K, (shared ? s.shared.y : s.routed.y) - column) / 4;
		uint32_t to = rows_at<fp8>() + (before - count) * 4;

		for (; mask; mask &= mask - 1, to += 4) {
			const int b = __ffs(mask) - 1;
			uint32_t ll = ((uint32_t)b * g.a.shared_intermediate + column) / 2;

			if (!shared)
				ll = (uint32_t)(g.routed - g.shared) +
					((b * g.a.experts_per_token +
					  (moe_small()->pick[pick].slots >> 4 * b & 15)) *
					 g.a.intermediate + column) / 2;
			ptx_st_shared_b32(to, ll | lanes << 24);
		}
	}
	__syncwarp();
}

/* Lists rows and issues their loads. */
MOE void request_rows(const struct moe_args &g, const struct moe_slices &s, int stage,
		      struct moe_rows_ahead &r)
{
	list_rows(g, s, stage, r);
	read_rows(g, r);
}

/*
 * Waits for the rows and stores them to shared memory; in odd rows, odd and even groups of 64 bytes are
 * swapped. While the last row is missing only that row is polled, to leave the L2 to other loads.
 */
MOE void receive_rows(const struct moe_args &g, struct moe_rows_ahead &r, uint32_t number)
{
	const int lane = threadIdx.x % 32;
	const int64_t start = moe_clock();

	for (;;) {
		uint32_t missing = 0;
		uint4 last;

#pragma unroll
		for (int i = 0; i < MOE_ACT_ROWS; i++)
			if (i < r.rows)
				missing |= (r.v[i].y ^ number) | (r.v[i].w ^ number);
		if (!__any_sync(~0u, missing != 0))
			break;
		do {
			ptx_spin_check(start, "activations (number)", number, 0);
			last = read_row<0>(g, r.rows - 1);
		} while (__any_sync(~0u, (last.y ^ number) | (last.w ^ number)));
		read_rows(g, r);
	}
#pragma unroll
	for (int i = 0; i < MOE_ACT_ROWS; i++)
		if (i < r.rows) {
			const bool there = lane < (int)(row_at<0>(i) >> 24);

			ptx_st_shared_v2(act_at(g, i) + (lane / 8 ^ (i & 1)) * 64 + lane % 4 * 16 +
					 lane / 4 % 2 * 8,
					 there ? make_uint2(r.v[i].x, r.v[i].z) : make_uint2(0, 0));
		}
	__syncwarp();
}

/* Returns the sum of the down_bias of a request's experts, each times its weight, in ascending order. */
template <int dtype>
MOE float down_bias_of(const struct moe_args &g, const void *bias, int request, int row)
{
	const struct moe_small *small = moe_small();
	float sum = 0;

#pragma unroll 1
	for (int i = 0; bias && i < small->num_picks; i++) {
		const struct moe_pick &p = small->pick[i];
		const uint16_t *from = (const uint16_t *)bias + (int64_t)p.expert * g.a.hidden + row;

		if (p.mask >> request & 1)
			sum += small->weight[request][p.slots >> 4 * request & 15] *
			       row_element<dtype>(from, 0);
	}
	return sum;
}

/*
 * Computes 16 rows of the result. rows: the activations of the first stages, already requested; on return
 * those of the next 16 rows. plain: bias is not read.
 */
template <int dtype, bool plain>
MOE void down(const struct moe_args &g, struct ring &r, struct moe_sums &s, const struct moe_slices &slices,
	      struct moe_rows_ahead &rows, int row, int left, const void *bias, uint32_t number)
{
	const int lane = threadIdx.x % 32, quad = lane / 4, t = lane % 4;
	const int element = s.turn * 32 + lane, b = element / MOE_STAGE_ROWS, at = element % MOE_STAGE_ROWS;
	const int64_t to = (int64_t)b * g.a.hidden + row + at;
	const int mine = s.turn < sum_writers(g) && b < g.a.batch && at < left;
	unsigned short x = 0;
	float sum[4] = {}, total;
	int stage = 0, column = slices.shared.x, pick = -1;

	if (mine && g.adds_x)
		x = __ldcg((const unsigned short *)g.a.x + to);
#pragma unroll 1
	while (stage < all_stages(slices)) {
		const int end_stage = stage + rows.stages;
		int first = 0;

		receive_rows(g, rows, number);
		if (end_stage < all_stages(slices) || left > MOE_STAGE_ROWS)
			request_rows(g, slices, end_stage < all_stages(slices) ? end_stage : 0, rows);
#pragma unroll 1
		for (; stage < end_stage; stage++) {
			uint32_t mask = (1u << g.a.batch) - 1;
			float part[2][4] = {};
			int at_row, end;
			uint4 v[4];

			if (stage == shared_stages(slices) || (pick >= 0 && column >= slices.routed.y)) {
				pick++;
				column = slices.routed.x;
			}
			if (pick >= 0)
				mask = moe_small()->pick[pick].mask;
			end = pick < 0 ? slices.shared.y : slices.routed.y;
			at_row = first + __popc(mask & ((1u << quad) - 1));
#pragma unroll
			for (int j = 0; j < 4; j++)
				v[j] = mask >> quad & 1 ? ptx_ld_shared_v4(act_at(g, at_row) +
									   (j ^ (at_row & 1)) * 64 + t * 16) :
							  make_uint4(0, 0, 0, 0);
			multiply<dtype>(ring_wait(r), v, end - column, part);
			ring_release(g, r);
#pragma unroll
			for (int j = 0; j < 4; j++)
				if (mask >> (2 * t + j % 2) & 1)
					sum[j] += part[0][j] + part[1][j];
			first += __popc(mask);
			column += MOE_STAGE_K;
		}
		__syncwarp();	/* all lanes have read the rows */
	}
	total = sum_up(g, s, sum, element);
	if (!plain && mine)
		total += down_bias_of<dtype>(g, bias, b, row + at);
	if (mine)
		((uint16_t *)g.a.out)[to] = (uint16_t)row_pack2<dtype>(total + row_element<dtype>(&x, 0), 0);
	next_turn(g, s);
}

#endif
