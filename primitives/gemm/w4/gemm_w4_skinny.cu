/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_w4_skinny - gemm_w4 for up to 8 rows of a, limited by the memory that holds b
 *
 * One CTA per SM, persistent over units of 16 rows of b. A team of 16, 8 or 4 warps has a unit. In a round,
 * each of its warps takes a stage of 128 along k: 1024 bytes of codes, and their cells of scales. The
 * stages of a round lie side by side in b, so that one bulk copy fetches them all; a round of all teams has
 * 16 KB, and a ring of 4 to 6 rounds keeps 48 KB and more in flight. A lane reads 16 bytes of codes at a
 * time: they are its elements of operand A of four mma (gemm_w4_layout.h), whose columns are the rows of a.
 * A new sum starts with every group, or every 128 elements if all of k is one group; it is scaled and added
 * to the total in fp32.
 *
 * At 4 bits a weight, instructions limit an SM before memory does: an SM has 51 clocks for 128 elements of
 * 16 rows, hence 204 instructions at most. So
 *  - a lies in shared memory, in the order in which lanes need it: 4 loads instead of 16. Only if it does
 *    not fit, lanes load it from global memory;
 *  - warps do not wait for each other at the end of a unit. Each puts its totals into one of 4 buffers
 *    and goes on, and another warp adds them up.
 *
 * Warps: 16 multiply; the next fetches, one lane for each team; the last adds up (gemm_w4_skinny.cuh).
 *
 * Two CTAs fit an SM if a is small, but a launch has one for each SM: the second place is for a CTA of the
 * next kernel, which fills its ring while this one computes its last units.
 *
 * Floor: reading b and its scales once, at the rate of stream READ.
 *
 * Shared memory (dynamic):
 *	0		mbarriers: [6] full and [6] empty (an arrival by each warp that multiplies), of the
 *			ring; for each of 4 teams, [4] full (an arrival by each of its warps) and [4] empty
 *			(one), of its buffers
 *	384		float [4][16 warps][m][16 rows of b], the totals
 *	behind them	[m] rows of a, each of tiles of 64 elements and 16 bytes more, against bank
 *			conflicts. Of a tile, 32 bytes for lanes t, t + 4, ..: for each 16 elements, 2 t,
 *			2 t + 1, 2 t + 8, 2 t + 9
 *	behind them	the ring: of each round and team, 1024 bytes of codes of each of its warps, and then
 *			up to 192 bytes of cells of each
 * Registers: 56 at most; more, for one CTA per SM, if a does not fit.
 */
#include "primitives/gemm/w4/gemm_w4_skinny.cuh"

#include "primitives/base/launch.h"

/*
 * Brings a to L2; each thread that multiplies takes a line. The preceding kernel may still write a, but
 * nothing of it is read here.
 */
W4 void warm_a(const struct cairn_gemm_w4_args &g)
{
	const int threads = WARPS * 32, step = gridDim.x * threads * 128;

	for (int i = (blockIdx.x * threads + threadIdx.x) * 128; i < g.m * g.k * 2; i += step)
		ptx_prefetch_global_L2((const char *)g.a + i);
}

/*
 * Copies stages `first`, first + 16, ... of a to shared memory at s_a, with zeros past k. Half a warp copies
 * a stage; a lane moves 8 elements, which are those of four lanes, and has four loads on their way at once.
 */
W4 void keep_a(const struct cairn_gemm_w4_args &g, const struct sizes &z, uint32_t s_a, int first)
{
	const int half = threadIdx.x / 16 % 2, c = threadIdx.x % 16;

	for (int i = 0; i < g.m; i++) {
		const uint16_t *row = (const uint16_t *)g.a + (int64_t)i * g.k;

		for (int stage = first + half * WARPS; stage < z.stages; stage += 8 * WARPS) {
			uint4 x[4];

#pragma unroll
			for (int n = 0; n < 4; n++) {
				const int at = (stage + n * 2 * WARPS) * STAGE_K + c * 8;

				x[n] = make_uint4(0, 0, 0, 0);
				if (at < g.k)
					x[n] = *(const uint4 *)(row + at);
			}
#pragma unroll
			for (int n = 0; n < 4; n++) {
				const int nth = stage + n * 2 * WARPS, tile = nth * TILES + c / 8;
				const uint32_t to = s_a + i * z.pitch + tile * 128 + c % 8 * 4;

				if (nth >= z.stages)
					break;
				ptx_st_shared_b32(to, x[n].x);
				ptx_st_shared_b32(to + 32, x[n].y);
				ptx_st_shared_b32(to + 64, x[n].z);
				ptx_st_shared_b32(to + 96, x[n].w);
			}
		}
	}
}

/* Shared addresses of a lane's part of the warp's first stage, in the ring and in a; the lane's number */
struct lane {
	uint32_t codes, scales, zeros, a, lane;
};

/* What a lane holds of a stage: codes of each tile; scales and, with INT, zero points of each cell */
struct held {
	uint4 codes[TILES];
	uint32_t scales[STAGE_K / 16], zeros[STAGE_K / 16];
};

/* Waits for the stage in a slot, and holds it. */
template <int format, int group>
W4 void hold_stage(const struct lane &l, const struct slot &s, struct held *h)
{
	constexpr int cell = format == CAIRN_W4_INT ? 3 * ROWS : ROWS;

	ptx_mbarrier_wait(s.full, s.parity);
#pragma unroll
	for (int i = 0; i < STAGE_K / group; i++) {
		if (format == CAIRN_W4_INT) {
			h->zeros[i] = ptx_ld_shared_b16(l.zeros + s.from + i * cell);
			h->scales[i] = ptx_ld_shared_b32(l.scales + s.from + i * cell);
		} else {
			h->zeros[i] = 0;
			h->scales[i] = ptx_ld_shared_b16(l.scales + s.from + i * cell);
		}
	}
#pragma unroll
	for (int i = 0; i < TILES; i++)
		h->codes[i] = ptx_ld_shared_v4(l.codes + s.from + i * CAIRN_W4_TILE_BYTES);
}

/*
 * Gives a slot back when the stage in it has been read, and goes on to the next one. An arrival does not wait
 * for the lane's loads that are still on their way: without the fence, the next copy may overwrite what they
 * are to read.
 */
W4 void give_back(const struct sizes &z, const struct lane &l, struct slot *s)
{
	ptx_fence_proxy_async_shared_cta();
	arrive_from(l.lane, empty_of(*s));
	next_slot(z, s);
}

/*
 * Loads operand B of the products of a tile, with zeros past k. at: its first element of k. kept: a lies in
 * shared memory, at s_a
 */
template <bool kept>
W4 void load_a(const struct cairn_gemm_w4_args &g, uint32_t s_a, int at, uint32_t x[4][2])
{
	if (kept) {
		const uint4 u = ptx_ld_shared_v4(s_a), v = ptx_ld_shared_v4(s_a + 16);

		x[0][0] = u.x;
		x[0][1] = u.y;
		x[1][0] = u.z;
		x[1][1] = u.w;
		x[2][0] = v.x;
		x[2][1] = v.y;
		x[3][0] = v.z;
		x[3][1] = v.w;
		return;
	}
	const int lane = threadIdx.x & 31;
	const int row = min(lane / 4, g.m - 1);
	const uint16_t *from = (const uint16_t *)g.a + (int64_t)row * g.k + at + lane % 4 * 2;

#pragma unroll
	for (int i = 0; i < 4; i++) {
		x[i][0] = at + i * 16 < g.k ? *(const uint32_t *)(from + i * 16) : 0;
		x[i][1] = at + i * 16 < g.k ? *(const uint32_t *)(from + i * 16 + 8) : 0;
	}
}

/*
 * Adds the scaled products of a stage to total. s_a: shared address of the lane's part of a; at: the stage's
 * first element of k; whole: k does not end within the stage
 */
template <int format, int dtype, int group, bool kept, bool whole>
W4 void multiply_stage(const struct cairn_gemm_w4_args &g, const struct held &h, uint32_t s_a, int at,
		       float total[4])
{
	constexpr int share = group / 16;	/* products of 16 along k that share a scale */
	struct w4_scales s;
	uint32_t x[4][2];
	float part[4];

#pragma unroll
	for (int i = 0; i < STEPS; i++) {
		const uint4 four = h.codes[i / 4];
		uint32_t w[4];

		if (!whole && at + i * 16 >= g.k)
			break;
		if (i % 4 == 0)
			load_a<kept>(g, s_a + i / 4 * 128, at + i * 16, x);
		if (i % share == 0) {
			s = w4_decode_scales<format, dtype>(h.scales[i / share], h.zeros[i / share]);
#pragma unroll
			for (int e = 0; e < 4; e++)
				part[e] = 0;
		}
		w4_decode<format, dtype>(i % 4 == 0 ? four.x : i % 4 == 1 ? four.y :
					 i % 4 == 2 ? four.z : four.w, s, w);
		if (dtype == CAIRN_BF16)
			ptx_mma_m16n8k16_bf16(part, w, x[i % 4]);
		else
			ptx_mma_m16n8k16_f16(part, w, x[i % 4]);
		if (i % share == share - 1 || (!whole && at + (i + 1) * 16 >= g.k)) {
#pragma unroll
			for (int e = 0; e < 4; e++)
				total[e] += s.s[e / 2] * part[e];
		}
	}
}

/* Puts a warp's totals into its place `to` of a buffer, and sets them to 0. */
W4 void put_totals(const struct cairn_gemm_w4_args &g, float *to, float total[4])
{
	const int quad = threadIdx.x % 32 / 4, t = threadIdx.x & 3;

#pragma unroll
	for (int e = 0; e < 4; e++) {
		if (2 * t + e % 2 < g.m)
			to[(2 * t + e % 2) * ROWS + e / 2 * 8 + quad] = total[e];
		total[e] = 0;
	}
}

/*
 * Runs in the warps that multiply. Only a has to wait for the preceding kernel: by then, all addresses are
 * computed, and the first stage is in registers.
 */
template <int format, int dtype, int group, bool kept>
W4 void multiply(const struct cairn_gemm_w4_args &g, const struct sizes &z, int warp)
{
	const int team = warp / z.team, first = warp % z.team, lane = threadIdx.x % 32;
	const uint32_t smem = ptx_smem(s_mem), a_at = smem + SUMS_AT + BUFFERS * WARPS * ROWS * 4 * g.m;
	const uint32_t codes = smem + z.ring_at + team * z.team * z.stage_bytes;
	const uint32_t cells = codes + z.team * CODE_BYTES + first * z.stage_cells;
	/* columns of the products past the last row repeat it; they are not written */
	const struct lane l = {
		pinned(codes + first * CODE_BYTES + lane * 16),
		pinned(cells + lane / 4 * (format == CAIRN_W4_INT ? 4 : 2)),
		pinned(cells + 2 * ROWS + lane / 4 * 2),
		pinned(a_at + min(lane / 4, g.m - 1) * z.pitch + lane % 4 * 32 + first * STAGE_K * 2),
		pinned(lane),
	};
	const int sets = num_sets(z), set_units = z.teams * gridDim.x;
	const int units = sets - (unit_of(blockIdx.x + (sets - 1) * set_units, team) >= z.units);
	/* rounds in which the warp has a whole stage; it may have a part of one in the next round */
	const int whole = (g.k / STAGE_K - first + z.team - 1) / z.team;
	const uint32_t step = pinned(z.team * STAGE_K);
	float *sums = (float *)(s_mem + SUMS_AT) + warp * g.m * ROWS, total[4] = { 0, 0, 0, 0 };
	struct slot slot = { smem, 0, 0 };
	struct held h;

	if (units)
		hold_stage<format, group>(l, slot, &h);
	ptx_griddepcontrol_wait();
	if (kept) {
		keep_a(g, z, a_at, warp);
		if (z.team == WARPS)	/* the warp needs no other stages than those it has copied */
			__syncwarp();
		else
			ptx_bar_sync(1, WARPS * 32);
	}
	for (int nth = 0; nth < units; nth++) {
		const int buf = nth % BUFFERS;
		uint32_t s_a = l.a;
		int at = first * STAGE_K;

		if (nth)
			hold_stage<format, group>(l, slot, &h);
		if (whole) {
			multiply_stage<format, dtype, group, kept, true>(g, h, s_a, at, total);
			give_back(z, l, &slot);
			for (int n = whole - 1; n > 0; n--) {
				at += step;
				s_a += 2 * step;
				hold_stage<format, group>(l, slot, &h);
				multiply_stage<format, dtype, group, kept, true>(g, h, s_a, at, total);
				give_back(z, l, &slot);
			}
			at += step;
			s_a += 2 * step;
		}
		if (whole < z.rounds) {
			if (whole)
				hold_stage<format, group>(l, slot, &h);
			if (at < g.k)
				multiply_stage<format, dtype, group, kept, false>(g, h, s_a, at, total);
			give_back(z, l, &slot);
		}
		ptx_mbarrier_wait(buffer_full(team, buf) + BUFFERS * 8, nth / BUFFERS + 1 & 1);
		put_totals(g, sums + buf * WARPS * g.m * ROWS, total);
		elected_arrive(buffer_full(team, buf));
	}
	/* a team without a unit in the last set gives its slots back */
	for (int n = (sets - units) * z.rounds; n > 0; n--) {
		ptx_mbarrier_wait(slot.full, slot.parity);
		elected_arrive(empty_of(slot));
		next_slot(z, &slot);
	}
}

template <int format, int dtype, int group, bool kept>
__global__ void __launch_bounds__(THREADS, kept ? 2 : 1)
gemm_w4_skinny_kernel(const __grid_constant__ struct cairn_gemm_w4_args g,
		      const __grid_constant__ struct sizes z)
{
	const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);

	struct fetch f;

	ptx_griddepcontrol_launch_dependents();
	if (warp < WARPS)
		warm_a(g);
	else if (warp > WARPS)
		init_buffers(z);
	else
		begin_fetching(g, z, &f);
	__syncthreads();
	if (warp < WARPS)
		multiply<format, dtype, group, kept>(g, z, warp);
	else if (warp > WARPS)
		add_units(g, z);
	else
		fetch_others(g, z, &f);
}

/*
 * Returns the number of warps that share a unit. A stage takes a warp about 160 instructions, the end of a
 * unit 40. The number of SMs is that of the chip, so that bits depend only on the shape.
 */
static int team_of(int units, int stages)
{
	int64_t least = INT64_MAX;
	int best = WARPS;

	for (int team = WARPS; team >= WARPS / MOST_TEAMS; team /= 2) {
		const int64_t at_once = 132 * (WARPS / team), rounds = (units + at_once - 1) / at_once;
		const int64_t cost = rounds * ((stages + team - 1) / team * 160 + 40);

		if (cost < least) {
			least = cost;
			best = team;
		}
	}
	return best;
}

static struct sizes sizes_of(const struct cairn_gemm_w4_args *g)
{
	const int cell = cairn_w4_cell_bytes(g->format);
	struct sizes z;

	z.units = cairn_w4_units(g->n);
	z.tiles = cairn_w4_tiles(g->k);
	z.stages = (z.tiles + TILES - 1) / TILES;
	z.team = team_of(z.units, z.stages);
	z.teams = WARPS / z.team;
	z.rounds = (z.stages + z.team - 1) / z.team;
	z.cells = cairn_w4_groups(g->k, g->group) * cell;
	z.stage_cells = g->group ? STAGE_K / g->group * cell : 0;	/* groups divide STAGE_K */
	z.last_codes = (z.tiles - (z.rounds - 1) * z.team * TILES) * CAIRN_W4_TILE_BYTES;
	z.last_cells = z.cells - (z.rounds - 1) * z.team * z.stage_cells;
	z.round_cells = z.stage_cells ? z.team * z.stage_cells : z.cells;
	z.stage_bytes = CODE_BYTES + (g->group ? z.stage_cells : cell);
	z.pitch = z.stages * TILES * 128 + 16;
	return z;
}

/*
 * Places a and the ring in shared memory, of which a CTA takes no more than half if the ring then has 4
 * rounds. Returns the bytes.
 */
static size_t place(const struct cairn_gemm_w4_args *g, struct sizes *z)
{
	const int round = WARPS * z->stage_bytes;
	int a_at = SUMS_AT + BUFFERS * WARPS * ROWS * (int)sizeof(float) * g->m, limit = SMEM_HALF;

	if ((int64_t)z->pitch * g->m > SMEM_LIMIT - a_at - 4 * round)
		z->pitch = 0;
	z->ring_at = (a_at + z->pitch * g->m + 127) / 128 * 128;
	if (z->ring_at + 4 * round > limit)
		limit = SMEM_LIMIT;
	z->ring = (limit - z->ring_at) / round;
	if (z->ring > MAX_RING)
		z->ring = MAX_RING;
	z->last_slot = (z->ring - 1) * round;
	return (size_t)(z->ring_at + z->ring * round);
}

extern "C" int cairn_gemm_w4_skinny(const struct cairn_gemm_w4_args *g, void *stream)
{
#define KERNEL(format, dtype, group, kept) (const void *)gemm_w4_skinny_kernel<format, dtype, group, kept>
#define SKINNY(format, group) \
	{ { KERNEL(format, CAIRN_BF16, group, false), KERNEL(format, CAIRN_BF16, group, true) }, \
	  { KERNEL(format, CAIRN_F16, group, false), KERNEL(format, CAIRN_F16, group, true) } }
	static const void *const kernels[5][2][2] = {
		SKINNY(CAIRN_W4_INT, 128), SKINNY(CAIRN_W4_MX, 32), SKINNY(CAIRN_W4_NV, 16),
		SKINNY(CAIRN_W4_INT, 64), SKINNY(CAIRN_W4_INT, 32),
	};
	const int small = g->group == 64 ? 3 : 4;
	const int which = g->format == CAIRN_W4_INT && (g->group == 64 || g->group == 32) ? small : g->format;
	const int num_sms = cairn_sms_of(g->sms);
	struct sizes z = sizes_of(g);
	struct cairn_launch launch = { 0 };
	void *params[] = { (void *)g, &z };

	if (num_sms < 0)
		return num_sms;
	launch.smem = place(g, &z);
	/* on an SM without a CTA, two of the next launch would start, and be half as fast as the others */
	launch.grid[0] = (unsigned int)(z.units < num_sms ? z.units : num_sms);
	launch.block[0] = THREADS;
	launch.pdl = !g->sms;	/* a dependent launch would take SMs that are not this call's */
	launch.stream = stream;
	return cairn_launch(kernels[which][g->dtype == CAIRN_F16][z.pitch != 0], &launch, params);
}
