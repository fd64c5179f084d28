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
 *  - for one or two rows, codes of e2m1 are moved to their places in bf16 without a multiplication
 *    (gemm_w4_skinny_a.cuh), and their scales are applied side by side (gemm_w4_skinny_stage.cuh);
 *  - warps do not wait for each other at the end of a unit. Each puts its totals into one of 4 buffers
 *    and goes on, and another warp adds them up.
 *
 * Warps: 16 multiply; the next fetches, one lane for each team (gemm_w4_skinny.cuh); the last adds up
 * (gemm_w4_skinny_sum.cuh).
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
 * Registers: at most 56, for two CTAs per SM; if a does not fit, up to 90, for one.
 */
#include "primitives/gemm/w4/gemm_w4_skinny_sum.cuh"

#include "primitives/base/launch.h"

/*
 * Runs in the warps that multiply. Only a has to wait for the preceding kernel: by then, all addresses are
 * computed.
 */
template <int format, int dtype, int group, int form>
W4 void multiply(const struct cairn_gemm_w4_args &g, const struct sizes &z, int warp)
{
	constexpr bool by_group = form == A_BY_GROUP;
	const int team = warp >> z.team_shift, first = warp & (z.team - 1), lane = threadIdx.x % 32;
	const int pair = lane / 8, row = min(by_group ? lane / 4 % 2 : lane / 4, g.m - 1);
	const uint32_t smem = ptx_smem(s_mem), a_at = smem + a_place(g.m);
	const uint32_t codes = smem + z.ring_at + team * z.team * z.stage_bytes;
	const uint32_t cells = codes + z.team * CODE_BYTES + first * z.stage_cells;
	/* columns of the products past the last row repeat it; they are not written */
	const struct lane l = {
		pinned(codes + first * CODE_BYTES + lane * 16),
		pinned(cells + lane / 4 * (format == CAIRN_W4_INT ? 4 : 2) +
		       (by_group ? lane % 4 * (32 / group) * ROWS : 0)),
		pinned(cells + 2 * ROWS + lane / 4 * 2),
		pinned(a_at + row * z.pitch + lane % 4 * 32 +
		       (by_group ? pair / 2 * 128 + pair % 2 * 16 : 0)),
		pinned(lane),
	};
	const int sets = num_sets(z), set_units = z.teams * gridDim.x;
	const int units = sets - (unit_of(blockIdx.x + (sets - 1) * set_units, team) >= z.units);
	/* places in a row of a are counted in bytes if it is in shared memory, else in elements */
	constexpr int each = form == A_GLOBAL ? 1 : 2;
	/* along k: length of a round, last place where a whole stage may begin, end of the last round */
	const int step = z.team * STAGE_K * each, last = (g.k - STAGE_K) * each, end = z.rounds * step;
	float *sums = (float *)(s_mem + SUMS_AT) + warp * g.m * ROWS;
	float total[by_group ? 1 : TOTALS(format)][4] = {};
	struct operand o = {};
	struct slot slot = { smem, 0, 0 };
	struct part parts[HELD];
	uint32_t computed;
	struct held h;

	o.pair = pinned(pair);
	computed = l.codes | l.scales | (format == CAIRN_W4_INT ? l.zeros : 0) |
		   (form == A_GLOBAL ? 0 : l.a) | (by_group ? o.pair : 0) | l.lane | units;
	if (form != A_GLOBAL)
		computed |= find_first_parts(g, z, a_at, warp, parts);
	wait_behind(computed);
	if (form != A_GLOBAL) {
		keep_a<a_is_scaled(dtype, form)>(g, z, a_at, warp, parts);
		if (z.team == WARPS)	/* the warp needs no other stages than those it has copied */
			__syncwarp();
		else
			ptx_bar_sync(1, WARPS * 32);
	}
	for (int nth = 0; nth < units; nth++) {
		const int buf = nth % BUFFERS;
		int at = first * STAGE_K * each;

		for (; at <= last; at += step) {
			hold_stage<format, group, form>(l, slot, &h);
			add_stage<format, dtype, group, form, true>(g, h, l.a + at, at / each, &o, total);
			give_back(z, l, &slot);
		}
		if (at < end) {		/* a part of a stage, or none */
			hold_stage<format, group, form>(l, slot, &h);
			if (at < g.k * each)
				add_stage<format, dtype, group, form, false>(g, h, l.a + at, at / each, &o,
									     total);
			give_back(z, l, &slot);
		}
		ptx_mbarrier_wait(buffer_full(team, buf) + BUFFERS * 8, nth / BUFFERS + 1 & 1);
		if constexpr (by_group)
			put_groups(g, sums + buf * WARPS * g.m * ROWS, total[0]);
		else
			put_totals<format>(g, sums + buf * WARPS * g.m * ROWS, total);
		elected_arrive(buffer_full(team, buf));
	}
	/* a team without a unit in the last set gives its slots back */
	for (int n = (sets - units) * z.rounds; n > 0; n--) {
		ptx_mbarrier_wait(slot.full, slot.parity);
		elected_arrive(empty_of(slot));
		next_slot(z, &slot);
	}
}

template <int format, int dtype, int group, int form>
__global__ void __launch_bounds__(THREADS, form == A_GLOBAL ? 1 : 2)
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
		multiply<format, dtype, group, form>(g, z, warp);
	else if (warp > WARPS)
		add_units<format, dtype, group, form>(g, z);
	else
		fetch_others(g, z, &f);
}

/*
 * Returns the number of warps that share a unit. A stage takes a warp about 160 instructions, the end of a
 * unit 40, and the barrier of all warps that smaller teams need 60. The number of SMs is that of the chip, so
 * that bits depend only on the shape.
 */
static int team_of(int units, int stages)
{
	int64_t least = INT64_MAX;
	int best = WARPS;

	for (int team = WARPS; team >= WARPS / MOST_TEAMS; team /= 2) {
		const int64_t at_once = 132 * (WARPS / team), rounds = (units + at_once - 1) / at_once;
		const int64_t cost = rounds * ((stages + team - 1) / team * 160 + 40) + 60 * (team < WARPS);

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
	struct sizes z = {};

	z.units = cairn_w4_units(g->n);
	z.tiles = cairn_w4_tiles(g->k);
	z.stages = (z.tiles + TILES - 1) / TILES;
	z.team = team_of(z.units, z.stages);
	while (1 << z.team_shift < z.team)
		z.team_shift++;
	z.teams = WARPS / z.team;
	z.rounds = (z.stages + z.team - 1) / z.team;
	z.cells = cairn_w4_groups(g->k, g->group) * cell;
	z.stage_cells = g->group ? STAGE_K / g->group * cell : 0;	/* groups divide STAGE_K */
	z.last_codes = (z.tiles - (z.rounds - 1) * z.team * TILES) * CAIRN_W4_TILE_BYTES;
	z.last_cells = z.cells - (z.rounds - 1) * z.team * z.stage_cells;
	z.round_cells = z.stage_cells ? z.team * z.stage_cells : z.cells;
	z.stage_bytes = CODE_BYTES + (g->group ? z.stage_cells : cell);
	z.round_bytes = WARPS * z.stage_bytes;
	z.pitch = z.stages * TILES * 128 + 16;
	return z;
}

/*
 * Lays out a and the ring in shared memory. A CTA takes at most half of the memory if a ring of 4 rounds fits
 * into that, otherwise up to all of it. If a and 4 rounds do not fit at all, a stays in global memory
 * (pitch 0). Returns the bytes.
 */
static size_t place(const struct cairn_gemm_w4_args *g, struct sizes *z)
{
	const int round = (int)z->round_bytes;
	int a_at = a_place(g->m), limit = SMEM_HALF;

	if ((int64_t)z->pitch * g->m > SMEM_LIMIT - a_at - 4 * round)
		z->pitch = 0;
	z->ring_at = (a_at + z->pitch * g->m + 127) / 128 * 128;
	if (z->ring_at + 4 * round > limit)
		limit = SMEM_LIMIT;
	z->ring = (limit - z->ring_at) / round;
	if (z->ring > MAX_RING)
		z->ring = MAX_RING;
	z->ring_bytes = z->ring * z->round_bytes;
	return (size_t)z->ring_at + z->ring_bytes;
}

extern "C" int cairn_gemm_w4_skinny(const struct cairn_gemm_w4_args *g, void *stream)
{
#define KERNEL(format, dtype, group, form) (const void *)gemm_w4_skinny_kernel<format, dtype, group, form>
#define KERNELS(format, dtype, group) \
	{ KERNEL(format, dtype, group, A_GLOBAL), KERNEL(format, dtype, group, A_SHARED), \
	  KERNEL(format, dtype, group, format == CAIRN_W4_INT ? A_SHARED : A_BY_GROUP) }
#define SKINNY(format, group) \
	{ KERNELS(format, CAIRN_BF16, group), KERNELS(format, CAIRN_F16, group) }
	static const void *const kernels[5][2][3] = {
		SKINNY(CAIRN_W4_INT, 128), SKINNY(CAIRN_W4_MX, 32), SKINNY(CAIRN_W4_NV, 16),
		SKINNY(CAIRN_W4_INT, 64), SKINNY(CAIRN_W4_INT, 32),
	};
	const int small = g->group == 64 ? 3 : 4;
	const int which = g->format == CAIRN_W4_INT && (g->group == 64 || g->group == 32) ? small : g->format;
	const int num_sms = cairn_sms_of(g->sms);
	struct sizes z = sizes_of(g);
	struct cairn_launch launch = { 0 };
	void *params[] = { (void *)g, &z };

	int form;

	if (num_sms < 0)
		return num_sms;
	launch.smem = place(g, &z);
	form = !z.pitch ? A_GLOBAL : A_SHARED;
	if (z.pitch && g->m <= 2)
		form = A_BY_GROUP;
	/* on an SM without a CTA, two of the next launch would start, and be half as fast as the others */
	launch.grid[0] = (unsigned int)(z.units < num_sms ? z.units : num_sms);
	z.sets = z.units / (z.teams * (int)launch.grid[0]);
	z.longer = z.units % (z.teams * (int)launch.grid[0]);
	launch.block[0] = THREADS;
	launch.pdl = !g->sms;	/* a dependent launch would take SMs that are not this call's */
	launch.stream = stream;
	return cairn_launch(kernels[which][g->dtype == CAIRN_F16][form], &launch, params);
}
