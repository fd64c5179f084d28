/* SPDX-License-Identifier: Apache-2.0 */
/*
 * moe_fp8 - the compute warps of moe with 8-bit weights
 *
 * With half the bytes, there is half the time for each weight, but a weight takes more instructions.
 * Therefore 16 warps compute, and each loads its own weights into a ring of 2 KiB stages: 16 rows x up to 128
 * bytes. Loads run ahead of products, in the same order. For each consumed stage a warp commits one cp.async
 * group, possibly empty, and waits for all but the latest three.
 *
 * Gates and ups: two teams of 8 warps have their own units, as if each team were a CTA; while one team adds
 * its sums, the other multiplies. A unit is 16 pairs: for every 128 columns two stages of 8 gates and their 8
 * ups. The warps divide it along k as with 16-bit weights. w_down: all 16 warps divide 16 rows along k.
 *
 * Scales are read from global memory while a stage is multiplied, and the sums of 128 columns are multiplied
 * by them; this works for scales of rows and of blocks.
 *
 * Unused results may be arbitrary: missing rows are not loaded, and requests that are missing, or have not
 * chosen the expert, are multiplied by arbitrary activations. Columns beyond the end are zeros times finite
 * numbers.
 *
 * The limit is the issue rate, above all that of instructions that a scheduler executes on only 16 lanes per
 * cycle (logic, shifts, comparisons): widening 4 weights to bf16 takes 9 instructions, 5 of that kind.
 *
 * Optimisation history: NOTES.md.
 */
#ifndef CAIRN_MOE_FP8_CUH
#define CAIRN_MOE_FP8_CUH

#include "fused/moe/moe_body.cuh"

#define MOE_TEAMS		2
#define MOE_FP8_WORKERS		(MOE_FP8_WARPS * 32)
#define MOE_FP8_PAIRS		MOE_STAGE_ROWS	/* pairs of a unit */
#define MOE_FP8_STAGES		4	/* stages of a warp's ring; a power of two */
#define MOE_FP8_FIRST		2	/* stages issued before x is read, because other warps wait for x */
#define MOE_FP8_STAGE_BYTES	2048
/* floats of a warp: [stage][row][request] */
#define MOE_FP8_SUMS		(2 * MOE_STAGE_ROWS * MOE_MAX_BATCH)
#define MOE_FP8_ACT_AHEAD	4	/* rows of activations that a lane has in flight */
#define MOE_TEAM_BAR		3	/* this and the next one: named barriers of the teams */
#define MOE_FP8_BAR		5	/* named barrier of all compute warps */

/* ---- order of the stream ---- */

/* Position in a team's gates and ups: up to 16 pairs of rows at a time, of one expert */
struct moe_walk {
	int round, p, end;		/* pairs counted over the chosen experts in order; end: of the unit */
	int pick, past;			/* past: the first pair of the next pick */
	int row, count;
};

MOE struct moe_walk start_walk(int intermediate)
{
	struct moe_walk w = { 0, 0, 0, 0, intermediate, 0, 0 };

	return w;
}

/* Moves to the next pairs. Returns whether there are any. */
MOE bool walk(struct moe_walk &w, const struct moe_units &u, int intermediate)
{
	w.p += w.count;
	w.count = 0;
#pragma unroll 1
	while (w.p >= w.end) {
		const int team = (int)threadIdx.x / MOE_WORKERS;
		int2 p;

		if (w.round >= u.rounds)
			return false;
		p = unit_pairs<MOE_TEAMS>(u, w.round++, team);
		w.p = p.x;
		w.end = p.y;
	}
#pragma unroll 1
	for (; w.p >= w.past; w.past += intermediate)
		w.pick++;
	w.row = w.p - (w.past - intermediate);
	w.count = min(min(MOE_FP8_PAIRS, w.end - w.p), w.past - w.p);
	return true;
}

/* ---- the ring ---- */

/* gates and ups of the shared experts, of the chosen experts, then w_down */
enum { FEED_SHARED, FEED_ROUTED, FEED_DOWN };

/* State of a warp's loads. A lane loads 16 bytes of rows lane / 8 and lane / 8 + 4 of each eight rows. */
struct moe_feed {
	const char *first, *second;	/* the lane's first row of the first and the second eight */
	int four_rows;			/* bytes of four rows */
	int left, last_bytes;		/* stages left; valid bytes of a row in the last stage */
	uint32_t rows; /* 4 bits per stage: the lane's valid rows; the next 4 bits are for the next stage */
	int what;
	/*
	 * for w_down: rows row .. end, pick (-1: the shared experts), p: this lane's offset, count: stages of
	 * a pick
	 */
	struct moe_walk walk;
	uint32_t slot, to;		/* to: address of this lane's first 16 bytes in the first stage */
};

/* The next stage of a ring to consume; the lane's ldmatrix address in the first stage */
struct moe_fp8_ring {
	uint32_t slot, at;
};

/*
 * Passes the address through a shuffle: ptxas 13.0 generates an illegal instruction for cp.async if part of
 * the address is uniform.
 */
MOE uint32_t fp8_ring(const struct moe_args &g)
{
	return __shfl_sync(~0u, ptx_smem(moe_mem) + g.at_rings +
				threadIdx.x / 32 * MOE_FP8_STAGES * MOE_FP8_STAGE_BYTES, 0);
}

/* Finds the next gates and ups. Returns whether any are known. */
MOE bool feed_gates(const struct moe_args &g, struct moe_feed &f)
{
	const struct moe_small *small = moe_small();
	const int first = (int)threadIdx.x % MOE_WORKERS / 32 * MOE_STAGE_K, step = MOE_WARPS * MOE_STAGE_K;
	const int routed = f.what == FEED_ROUTED, hidden = g.a.hidden;
	const int intermediate = routed ? g.a.intermediate : g.a.shared_intermediate;
	const int r = (int)threadIdx.x % 32 / 8, piece = (int)threadIdx.x % 8 * 16;
	const char *w = (const char *)g.a.w_shared_gate_up;
	int count;

	if (first >= hidden || !walk(f.walk, routed ? small->units : g.units, intermediate))
		return false;
	if (routed)
		w = expert_gate_up<1>(g, small->pick[f.walk.pick].expert);
	f.first = w + (int64_t)(f.walk.row + r) * hidden + first + piece;
	f.second = f.first + (int64_t)intermediate * hidden;
	f.four_rows = 4 * hidden;
	count = f.walk.count;
	f.rows = ((r < count) | (r + 4 < count) << 1) * 0x05050505u |
		 ((r + 8 < count) | (r + 12 < count) << 1) * 0x50505050u;
	f.left = (hidden - first + step - 1) / step;
	f.last_bytes = hidden - first - (f.left - 1) * step;
	f.left *= 2;
	return true;
}

/* one 64-bit product, because the other factor is uniform */
MOE const char *fp8_expert_down(const struct moe_args &g, uint32_t expert)
{
	return (const char *)g.a.w_down + expert * ((uint64_t)g.a.hidden * (uint32_t)g.a.intermediate);
}

/* Finds the next rows of w_down. */
MOE bool feed_down(const struct moe_args &g, struct moe_feed &f)
{
	const struct moe_small *small = moe_small();
	struct moe_walk &at = f.walk;

#pragma unroll 1
	while (at.row < at.end) {
		const char *w = (const char *)g.a.w_shared_down;

		if (++at.pick == small->num_picks) {
			at.pick = g.a.shared_intermediate ? -1 : 0;
			at.row += MOE_STAGE_ROWS;
		}
		if (at.pick <= 0) {	/* other rows, or another matrix */
			const int k = at.pick < 0 ? g.a.shared_intermediate : g.a.intermediate;
			const int2 cols = slice_of(k, MOE_FP8_STEP, threadIdx.x / 32, MOE_FP8_WARPS);
			const int r = (int)threadIdx.x % 32 / 8, count = at.end - at.row;

			at.p = (at.row + r) * k + cols.x + (int)threadIdx.x % 8 * 16;
			at.count = (cols.y - cols.x + MOE_STAGE_K - 1) / MOE_STAGE_K;
			f.last_bytes = cols.y - cols.x - (at.count - 1) * MOE_STAGE_K;
			f.four_rows = 4 * k;
			f.rows = ((r < count) | (r + 4 < count) << 1 | (r + 8 < count) << 2 |
				  (r + 12 < count) << 3) * 0x11111111u;
		}
		if (at.pick >= 0)
			w = fp8_expert_down(g, small->pick[at.pick].expert);
		f.first = w + at.p;
		f.second = f.first + 2 * f.four_rows;
		f.left = at.count;
		if (f.left && at.row < at.end)
			return true;
	}
	return false;
}

/* Finds the next rows. Returns whether any are known. down: gates and ups are done. */
template <int down>
MOE bool feed_next(const struct moe_args &g, struct moe_feed &f)
{
	if (!down && f.what != FEED_DOWN) {
		int2 rows;

		if (feed_gates(g, f))
			return true;
		if (f.what == FEED_SHARED)
			return false;
		rows = share_of(g.a.hidden);
		f.what = FEED_DOWN;
		f.walk.row = rows.x;
		f.walk.end = rows.y;
		f.walk.pick = g.a.shared_intermediate ? -2 : -1;	/* before the first pick */
	}
	return feed_down(g, f);
}

/* Loads the next stage, if it is known, and commits a group. */
template <int down>
MOE void feed(const struct moe_args &g, struct moe_feed &f)
{
	const int piece = (int)threadIdx.x % 8;

	if (f.left > 0 || feed_next<down>(g, f)) {
		const uint32_t to = f.to + f.slot * MOE_FP8_STAGE_BYTES;
		const bool gates = !down && f.what != FEED_DOWN;
		const int bytes = f.left > (gates ? 2 : 1) || piece * 16 < f.last_bytes ? 16 : 0;
		/* step to the other 8 pairs, and back */
		const int eight = 8 * g.a.hidden;
		const int step = !gates ? MOE_STAGE_K : f.left % 2 ? MOE_WARPS * MOE_STAGE_K - eight : eight;
		const uint64_t policy = ptx_createpolicy_evict_first();

		if (f.rows & 1)
			ptx_cp_async_cg_hint(to, f.first, bytes, policy);
		if (f.rows & 2)
			ptx_cp_async_cg_hint((to ^ 64) + 4 * MOE_STAGE_K, f.first + f.four_rows, bytes,
					     policy);
		if (f.rows & 4)
			ptx_cp_async_cg_hint(to + 8 * MOE_STAGE_K, f.second, bytes, policy);
		if (f.rows & 8)
			ptx_cp_async_cg_hint((to ^ 64) + 12 * MOE_STAGE_K, f.second + f.four_rows, bytes,
					     policy);
		f.first += step;
		f.second += step;
		f.rows = f.rows >> 4 | f.rows << 28;
		f.slot = (f.slot + 1) % MOE_FP8_STAGES;
		f.left--;
	}
	ptx_cp_async_commit_group();
}

/* Fills `count` empty stages of the ring. */
MOE void prime(const struct moe_args &g, struct moe_feed &f, int count)
{
#pragma unroll 1
	for (int i = 0; i < count; i++)
		feed<0>(g, f);
}

/* Waits for the oldest stage; returns this lane's ldmatrix address. */
MOE uint32_t fp8_wait(const struct moe_fp8_ring &r)
{
	ptx_cp_async_wait_group<MOE_FP8_STAGES - 1>();
	__syncwarp();
	return r.at + r.slot * MOE_FP8_STAGE_BYTES;
}

/* Releases the oldest stage, which all lanes have consumed, and issues the next load. */
template <int down>
MOE void fp8_release(const struct moe_args &g, struct moe_fp8_ring &r, struct moe_feed &f)
{
	__syncwarp();
	r.slot = (r.slot + 1) % MOE_FP8_STAGES;
	feed<down>(g, f);
}

/* ---- products ---- */

/* Multiplies 32 columns of 16 rows by those of the activations, 16 into each sum. */
template <int dtype>
MOE void multiply_bytes(uint32_t tile, uint4 x, float (*sum)[4])
{
	uint32_t w[4], a[4];

	ptx_ldmatrix_x4(w, tile);
	fp8_widen_any<dtype>(w[0], &a[0], &a[2]);
	fp8_widen_any<dtype>(w[1], &a[1], &a[3]);
	attn_mma<dtype>(sum[0], a, (const uint32_t *)&x);
	fp8_widen_any<dtype>(w[2], &a[0], &a[2]);
	fp8_widen_any<dtype>(w[3], &a[1], &a[3]);
	attn_mma<dtype>(sum[1], a, (const uint32_t *)&x + 2);
}

/* sum += part, scaled, for the two requests whose bits are set; resets part. */
MOE void add_scaled(float *sum, float (*part)[4], float2 by, uint32_t requests)
{
#pragma unroll
	for (int j = 0; j < 4; j++) {
		if (requests >> j % 2 & 1)
			sum[j] += (j < 2 ? by.x : by.y) * (part[0][j] + part[1][j]);
		part[0][j] = part[1][j] = 0;
	}
}

/* Stores a warp's sums of a stage's rows. */
MOE void put_sums(const struct moe_args &g, int stage, const float *sum)
{
	float2 *to = (float2 *)(moe_mem + g.at_sums) + (int)threadIdx.x / 32 * (MOE_FP8_SUMS / 2) +
		     stage * (MOE_FP8_SUMS / 4) + (int)threadIdx.x % 32;

	to[0] = make_float2(sum[0], sum[1]);
	to[MOE_FP8_SUMS / 8] = make_float2(sum[2], sum[3]);
}

/* Adds the sums of warps first .. first + count - 1 in their order. */
template <int count>
MOE float get_sum(const struct moe_args &g, int first, int element)
{
	const float *at = (const float *)(moe_mem + g.at_sums) + first * MOE_FP8_SUMS + element;
	float sum = 0;

#pragma unroll
	for (int i = 0; i < count; i++)
		sum += at[i * MOE_FP8_SUMS];
	return sum;
}

/* Computes up to 16 pairs of a gate and an up. pick: NULL for the shared experts. */
template <int dtype>
MOE void gate_up_bytes(const struct moe_args &g, const struct moe_scales &s, struct moe_fp8_ring &r,
		       struct moe_feed &f, const struct moe_walk &w, const struct moe_pick *pick,
		       uint32_t number)
{
	const int lane = (int)threadIdx.x % 32, quad = lane / 4, warp = (int)threadIdx.x % MOE_WORKERS / 32;
	const int team = (int)threadIdx.x / MOE_WORKERS, request = min(quad, g.a.batch - 1);
	const int intermediate = pick ? g.a.intermediate : g.a.shared_intermediate;
	const float *scale = pick ? s.gate_up + pick->expert * s.expert_gate_up : s.shared_gate_up;
	float sum[2][4] = {};
	int at[2][2];			/* scales of the lane's gate and up */

	scale += s.blocks ? warp * MOE_STAGE_K / CAIRN_FP8_BLOCK : 0;
#pragma unroll
	for (int h = 0; h < 2; h++) {
		const int row = w.row + min(h * 8 + quad, w.count - 1);

		at[h][0] = moe_scale_at(s, row, g.a.hidden);
		at[h][1] = moe_scale_at(s, intermediate + row, g.a.hidden);
	}
#pragma unroll 1
	for (int column = warp * MOE_STAGE_K; column < g.a.hidden; column += MOE_WARPS * MOE_STAGE_K) {
		const uint32_t x_at = n_at(g, request, column / 32) + lane % 4 * 16;
		const uint32_t swapped = n_at(g, request, column / 32 + 1) + lane % 4 * 16;
		/* weights beyond the end are 0, so any finite activations do */
		const int half = column + MOE_STAGE_K / 2 < g.a.hidden ? 128 : 0;
		uint4 x[4];

#pragma unroll
		for (int i = 0; i < 4; i++)
			x[i] = ptx_ld_shared_v4((i % 2 ? swapped : x_at) + (i < 2 ? 0 : half));
#pragma unroll
		for (int h = 0; h < 2; h++) {
			const float gate = __ldg(scale + at[h][0]), up = __ldg(scale + at[h][1]);
			const uint32_t tile = fp8_wait(r);
			float part[2][4] = {};

#pragma unroll
			for (int i = 0; i < MOE_STAGE_K / 32; i++)
				multiply_bytes<dtype>(tile ^ i * 32, x[i], part);
			fp8_release<0>(g, r, f);
			add_scaled(sum[h], part, make_float2(gate, up), 3);
		}
		scale += s.blocks ? MOE_WARPS * MOE_STAGE_K / CAIRN_FP8_BLOCK : 0;
	}
	ptx_bar_sync(MOE_TEAM_BAR + team, MOE_WORKERS);	/* the previous sums have been read */
	put_sums(g, 0, sum[0]);
	put_sums(g, 1, sum[1]);
	ptx_bar_sync(MOE_TEAM_BAR + team, MOE_WORKERS);
	if (warp / 4 == w.round % 2) {	/* half-teams take turns */
		const int element = warp % 4 * 32 + lane, pair = element / MOE_MAX_BATCH;
		const int b = element % MOE_MAX_BATCH, gate = element + element / 64 * 64;
		const uint32_t place = pick ? pick->slots >> 4 * b & 15 : 0;
		const float total = get_sum<MOE_WARPS>(g, team * MOE_WARPS, gate);
		const float up = get_sum<MOE_WARPS>(g, team * MOE_WARPS, gate + 64);
		float v = total / (1 + expf(-total)) * up, next;

		if (pick && b < g.a.batch)
			v *= moe_small()->weight[b][place];
		next = __shfl_down_sync(~0u, v, MOE_MAX_BATCH);
		if (b < g.a.batch && pair < w.count && pair % 2 == 0 && (!pick || pick->mask >> b & 1)) {
			uint64_t *to = !pick ? g.shared + (int64_t)b * (g.a.shared_intermediate / 2) :
				       g.routed + (int64_t)(b * g.a.experts_per_token + place) *
						  (g.a.intermediate / 2);

			ptx_st_relaxed_gpu_u64(to + ll_at<1>(w.row + pair),
					       (uint64_t)number << 32 | row_pack2<dtype>(v, next));
		}
	}
}

/* ---- w_down ---- */

/*
 * Loads the activations of the stages from number `stage` on, as many as fit, waits for them and stores them
 * to shared memory. Returns the number of stages.
 */
template <int dtype>
MOE int fetch_rows(const struct moe_args &g, const struct moe_slices &slices, int stage, uint32_t number)
{
	struct moe_rows_ahead r;

	list_rows<1>(g, slices, stage, r);
#pragma unroll 1
	for (int first = 0; first < r.rows; first += MOE_FP8_ACT_AHEAD) {
		const int lane = (int)threadIdx.x % 32;
		const int64_t start = moe_clock();
		uint4 v[MOE_FP8_ACT_AHEAD] = {}; /* initialised, so that its registers do not stay live */
		uint32_t missing;

		do {
			ptx_spin_check(start, "activations (number)", number, 0);
			missing = 0;
#pragma unroll
			for (int i = 0; i < MOE_FP8_ACT_AHEAD; i++)
				if (first + i < r.rows)
					v[i] = read_row<1>(g, first + i);
#pragma unroll
			for (int i = 0; i < MOE_FP8_ACT_AHEAD; i++)
				if (first + i < r.rows)
					missing |= (v[i].y ^ number) | (v[i].w ^ number);
		} while (__any_sync(~0u, missing != 0));
#pragma unroll
		for (int i = 0; i < MOE_FP8_ACT_AHEAD; i++)
			if (first + i < r.rows) {
				const bool there = lane < (int)(row_at<1>(first + i) >> 24);

				fp8_reorder<dtype>(&v[i].x, &v[i].z);
				ptx_st_shared_v2(act_at<1>(g, first + i) + (lane / 8 ^ (i & 1)) * 64 +
						 lane % 4 * 16 + lane / 4 % 2 * 8,
						 there ? make_uint2(v[i].x, v[i].z) : make_uint2(0, 0));
			}
	}
	__syncwarp();
	return r.stages;
}

/* Computes 16 rows of the result. */
template <int dtype>
MOE void down_bytes(const struct moe_args &g, const struct moe_scales &s, struct moe_fp8_ring &r,
		    struct moe_feed &f, const struct moe_slices &slices, int row, int left, uint32_t number)
{
	const int lane = threadIdx.x % 32, quad = lane / 4, t = lane % 4;
	float sum[4] = {};
	int stage = 0, end_stage = 0, first = 0;

#pragma unroll 1
	for (int routed = !g.a.shared_intermediate; routed < 2; routed++) {
		const int k = routed ? g.a.intermediate : g.a.shared_intermediate;
		const int2 cols = routed ? slices.routed : slices.shared;
		const int picks = routed ? moe_small()->num_picks : 1;
		const int upper = moe_scale_at(s, row + min(quad, left - 1), k);
		const int lower = moe_scale_at(s, row + min(quad + 8, left - 1), k);

#pragma unroll 1
		for (int pick = 0; pick < picks; pick++)
#pragma unroll 1
			for (int column = cols.x; column < cols.y; column += MOE_STAGE_K, stage++) {
				const float *scale = s.shared_down;
				const int columns = cols.y - column;
				const int edge = CAIRN_FP8_BLOCK - column % CAIRN_FP8_BLOCK;
				uint32_t mask = (1u << g.a.batch) - 1, x_at, tile;
				float part[2][4] = {};
				float2 by, next = make_float2(0, 0);
				int x_row;

				if (stage == end_stage) {
					__syncwarp();	/* all lanes have read the previous rows */
					end_stage += fetch_rows<dtype>(g, slices, stage, number);
					first = 0;
				}
				if (routed) {
					const uint32_t expert = moe_small()->pick[pick].expert;

					mask = moe_small()->pick[pick].mask;
					scale = s.down + expert * (uint64_t)s.expert_down;
				}
				scale += s.blocks ? column / CAIRN_FP8_BLOCK : 0;
				by = make_float2(__ldg(scale + upper), __ldg(scale + lower));
				if (s.blocks && edge < columns)
					next = make_float2(__ldg(scale + upper + 1),
							   __ldg(scale + lower + 1));
				x_row = mask >> quad & 1 ? first + __popc(mask & ((1u << quad) - 1)) : first;
				x_at = act_at<1>(g, x_row) + t * 16;
				tile = fp8_wait(r);
#pragma unroll
				for (int i = 0; i < MOE_STAGE_K / 32; i++) {
					if (32 * i >= columns)
						break;
					if (i && s.blocks && 32 * i == edge) {
						add_scaled(sum, part, by, mask >> 2 * t);
						by = next;
					}
					multiply_bytes<dtype>(tile ^ i * 32,
							      ptx_ld_shared_v4(x_at + (i ^ (x_row & 1)) * 64),
							      part);
				}
				fp8_release<1>(g, r, f);
				add_scaled(sum, part, by, mask >> 2 * t);
				first += __popc(mask);
			}
	}
	{
		const int element = threadIdx.x, b = element % MOE_MAX_BATCH, at = element / MOE_MAX_BATCH;
		const int64_t to = (int64_t)b * g.a.hidden + row + at;
		const int mine = b < g.a.batch && at < min(left, MOE_STAGE_ROWS);
		unsigned short x = 0;

		if (mine && g.adds_x)
			x = __ldcg((const unsigned short *)g.a.x + to);
		ptx_bar_sync(MOE_FP8_BAR, MOE_FP8_WORKERS);	/* the previous sums have been read */
		put_sums(g, 0, sum);
		ptx_bar_sync(MOE_FP8_BAR, MOE_FP8_WORKERS);
		if (mine)
			((uint16_t *)g.a.out)[to] =
				(uint16_t)row_pack2<dtype>(get_sum<MOE_FP8_WARPS>(g, 0, element) +
							   row_element<dtype>(&x, 0), 0);
	}
}

/* ---- the body ---- */

template <int dtype>
MOE void moe_fp8_worker(const struct moe_args &g, const struct moe_scales &s, const struct moe_ahead &ahead)
{
	const int2 rows = share_of(g.a.hidden);
	const struct body_link alone = {};
	struct moe_feed f = {};
	const int lane = threadIdx.x % 32;
	const uint32_t ring = fp8_ring(g);
	struct moe_fp8_ring r = { 0, ring + attn_q_at<MOE_STAGE_K / 2>(lane) };
	uint32_t number;

	/* piece i of row r lies at i ^ r % 8 */
	f.to = ring + lane / 8 * MOE_STAGE_K + (lane % 8 ^ lane / 8) * 16;
	f.walk = start_walk(g.a.shared_intermediate);
	prime(g, f, MOE_FP8_FIRST);
	body_wait<0>(alone);
	number = __ldcg(g.calls + blockIdx.x) + 1;
	if ((int)threadIdx.x < MOE_WORKERS) {
		make_n<dtype, 1>(g, ahead);
		prime(g, f, MOE_FP8_STAGES - MOE_FP8_FIRST);
		run_router<dtype, 1>(g, ahead, number);
	} else {
		prime(g, f, MOE_FP8_STAGES - MOE_FP8_FIRST);
	}
	ptx_bar_sync(MOE_FP8_BAR, MOE_FP8_WORKERS);
#pragma unroll 1
	for (int routed = 0; routed < 2; routed++) {
		const int intermediate = routed ? g.a.intermediate : g.a.shared_intermediate;
		struct moe_walk w = start_walk(intermediate);

		if (routed) {
			ptx_mbarrier_wait(ptx_smem(&moe_small()->routed), 0);
			f.walk = w;
			f.what = FEED_ROUTED;
			prime(g, f, MOE_FP8_STAGES);
		}
#pragma unroll 1
		for (; walk(w, routed ? moe_small()->units : g.units, intermediate);)
			gate_up_bytes<dtype>(g, s, r, f, w,
					     routed ? &moe_small()->pick[w.pick] : NULL, number);
	}
	if ((int)threadIdx.x == 0)
		g.calls[blockIdx.x] = number;	/* all threads have read it */
	ptx_bar_sync(MOE_FP8_BAR, MOE_FP8_WORKERS); /* n is no longer needed; activations take its place */
#pragma unroll 1
	for (int row = rows.x; row < rows.y; row += MOE_STAGE_ROWS)
		down_bytes<dtype>(g, s, r, f, slices_of<1>(g), row, rows.y - row, number);
}

#endif
