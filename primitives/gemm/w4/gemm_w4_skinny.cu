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
 * Warps: 16 multiply; the next fetches, one lane for each team; the last adds up.
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
 * Registers: 56; a few more, for one CTA per SM, if a does not fit, or with groups of 64.
 */
#include "primitives/gemm/w4/gemm_w4.cuh"

#include "primitives/base/launch.h"
#include "primitives/ptx/elect.cuh"
#include "primitives/ptx/ptx_copy.cuh"

#define WARPS		16	/* that multiply */
#define THREADS		((WARPS + 2) * 32)
#define MAX_RING	6	/* rounds */
#define STAGE_K		128
#define STEPS		(STAGE_K / 16)
#define TILES		(STAGE_K / CAIRN_W4_TILE_K)
#define CODE_BYTES	(TILES * CAIRN_W4_TILE_BYTES)
#define ROWS		CAIRN_W4_ROWS
#define BUFFERS		4
#define MOST_TEAMS	4
#define BARRIERS	(2 * MAX_RING + MOST_TEAMS * 2 * BUFFERS)
#define SUMS_AT		384
#define SMEM_LIMIT	(227 * 1024)
#define SMEM_HALF	(228 * 1024 / 2 - 1024)	/* of an SM's 228 KiB; each CTA takes 1 KiB more */

extern __shared__ __align__(128) unsigned char s_mem[];

/* Sizes along k, and how the groups of a stage lie */
struct sizes {
	int units, tiles, stages;
	int team, rounds;		/* warps that share a unit; rounds of a unit */
	int teams;			/* of a CTA */
	int cells;			/* bytes of the cells of a unit */
	int stage_cells;		/* bytes of the cells of a stage; 0: a unit has one */
	int last_codes, last_cells;	/* bytes of a unit's last round */
	int stage_bytes;		/* of codes and cells, in the ring */
	int ring, ring_at;		/* rounds in the ring; where it lies in shared memory */
	int pitch;			/* bytes of a row of a in shared memory; 0: a does not fit */
};

/* A round's place in the ring, and the parity of the number of times that the ring has wrapped */
struct slot {
	int at, parity;
};

W4 void next_slot(const struct sizes &z, struct slot *s)
{
	if (++s->at == z.ring) {
		s->at = 0;
		s->parity ^= 1;
	}
}

/* The units of a CTA are in sets, one for each team. Returns a team's unit in the set of unit `first`. */
W4 int unit_of(int first, int team)
{
	return first + team * gridDim.x;
}

/*
 * Fetches the rounds of the CTA; runs in a warp, whose lanes 0 to teams - 1 fetch for a team each. early: the
 * first rounds, as many as the ring holds, and else all others
 */
W4 void fetch(const struct cairn_gemm_w4_args &g, const struct sizes &z, bool early)
{
	const int lane = threadIdx.x & 31, step = z.teams * gridDim.x, team_bytes = z.team * z.stage_bytes;
	const uint32_t full = ptx_smem(s_mem);
	const uint32_t ring = full + z.ring_at + lane * team_bytes;
	struct slot slot = { 0, 1 };
	int r = 0;

	for (int set = blockIdx.x; set < z.units; set += step) {
		const int unit = unit_of(set, lane);
		const bool present = lane < z.teams && unit < z.units;
		const int teams = __popc(__ballot_sync(0xffffffff, present));
		const uint8_t *from = g.b + (int64_t)unit * z.tiles * CAIRN_W4_TILE_BYTES;
		const uint8_t *cells_from = g.b_scale + (int64_t)unit * z.cells;

		for (int round = 0; round < z.rounds; round++, r++, next_slot(z, &slot)) {
			const bool last = round == z.rounds - 1;
			const int codes = last ? z.last_codes : z.team * CODE_BYTES;
			const int some = z.stage_cells ? z.team * z.stage_cells : z.cells;
			const int cells = last ? z.last_cells : some;
			const uint32_t to = ring + slot.at * WARPS * z.stage_bytes;

			if (early && r == z.ring)
				return;
			if (early || r >= z.ring) {
				if (!early)
					ptx_mbarrier_wait(full + (MAX_RING + slot.at) * 8, slot.parity);
				if (lane == 0)
					ptx_mbarrier_arrive_expect_tx(full + slot.at * 8,
								      teams * (codes + cells));
				if (present) {
					ptx_cp_async_bulk_g2s(to, from, codes, full + slot.at * 8);
					ptx_cp_async_bulk_g2s(to + z.team * CODE_BYTES, cells_from, cells,
							      full + slot.at * 8);
				}
			}
			from += z.team * CODE_BYTES;
			cells_from += z.team * z.stage_cells;
		}
	}
}

/*
 * Brings a to L2; each thread of the grid takes a line. The preceding kernel may still write a, but nothing
 * of it is read here.
 */
W4 void warm_a(const struct cairn_gemm_w4_args &g)
{
	const int step = gridDim.x * THREADS * 128;

	for (int i = (blockIdx.x * THREADS + threadIdx.x) * 128; i < g.m * g.k * 2; i += step)
		ptx_prefetch_global_L2((const char *)g.a + i);
}

/* Copies a to shared memory, with zeros past k. A thread moves 8 elements, which are those of four lanes. */
W4 void keep_a(const struct cairn_gemm_w4_args &g, const struct sizes &z, unsigned char *s_a)
{
	const int chunks = z.stages * TILES * 8;

	for (int i = 0; i < g.m; i++) {
		for (int c = threadIdx.x; c < chunks; c += THREADS) {
			uint32_t *to = (uint32_t *)(s_a + i * z.pitch + c / 8 * 128 + c % 8 * 4);
			uint4 x = make_uint4(0, 0, 0, 0);

			if (c * 8 < g.k)
				x = *(const uint4 *)((const uint16_t *)g.a + (int64_t)i * g.k + c * 8);
			to[0] = x.x;
			to[8] = x.y;
			to[16] = x.z;
			to[24] = x.w;
		}
	}
}

/*
 * Where a lane finds a stage: shared addresses of its codes, its scales, with INT its zero points, and, if a
 * is kept in shared memory, its elements of a; the element of k at which the stage begins
 */
struct stage {
	uint32_t codes, scales, zeros, a;
	int at;
};

/*
 * Loads operand B of the products of tile `nth` of a stage, with zeros past k. kept: a lies in shared memory
 */
template <bool kept>
W4 void load_a(const struct cairn_gemm_w4_args &g, const struct stage &st, int nth, uint32_t x[4][2])
{
	const int at = st.at + nth * CAIRN_W4_TILE_K;

	if (kept) {
		const uint4 u = ptx_ld_shared_v4(st.a + nth * 128);
		const uint4 v = ptx_ld_shared_v4(st.a + nth * 128 + 16);

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

template <int format, int dtype> W4 struct w4_scales load_scales(const struct stage &st, int nth)
{
	constexpr int cell = format == CAIRN_W4_INT ? 3 * ROWS : ROWS;

	if (format == CAIRN_W4_INT)
		return w4_decode_scales<format, dtype>(ptx_ld_shared_b32(st.scales + nth * cell),
						       ptx_ld_shared_b16(st.zeros + nth * cell));
	return w4_decode_scales<format, dtype>(ptx_ld_shared_b16(st.scales + nth * cell), 0);
}

/* Adds the scaled products of a stage to total. whole: k does not end within the stage */
template <int format, int dtype, int group, bool kept, bool whole>
W4 void multiply_stage(const struct cairn_gemm_w4_args &g, const struct stage &st, float total[4])
{
	constexpr int share = group / 16;	/* products of 16 along k that share a scale */
	struct w4_scales s;
	uint32_t x[4][2];
	float part[4];
	uint4 four;

#pragma unroll
	for (int i = 0; i < STEPS; i++) {
		uint32_t w[4];

		if (!whole && st.at + i * 16 >= g.k)
			break;
		if (i % 4 == 0) {
			four = ptx_ld_shared_v4(st.codes + i / 4 * CAIRN_W4_TILE_BYTES);
			load_a<kept>(g, st, i / 4, x);
		}
		if (i % share == 0) {
			s = load_scales<format, dtype>(st, i / share);
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
		if (i % share == share - 1 || (!whole && st.at + (i + 1) * 16 >= g.k)) {
#pragma unroll
			for (int e = 0; e < 4; e++)
				total[e] += s.s[e / 2] * part[e];
		}
	}
}

/* Adds up the totals of a team for a unit, and writes its elements of out. */
W4 void write_unit(const struct cairn_gemm_w4_args &g, const float *s_sum, int team, int unit)
{
	for (int e = threadIdx.x & 31; e < g.m * ROWS; e += 32) {
		const int i = e / ROWS, j = unit * ROWS + e % ROWS;
		float sum = 0;

#pragma unroll 4
		for (int w = 0; w < team; w++)
			sum += s_sum[w * g.m * ROWS + e];
		if (j < g.n)
			row_store(g.out, g.out_dtype, (int64_t)i * g.n + j, w4_finish(g, j, sum));
	}
}

/* Shared address of the mbarrier that says that a team's buffer is full; BUFFERS further: that it is empty */
W4 uint32_t buffer_full(int team, int buf)
{
	return ptx_smem(s_mem) + (2 * MAX_RING + team * 2 * BUFFERS + buf) * 8;
}

/* Runs in the last warp: adds up and writes all units. */
W4 void add_units(const struct cairn_gemm_w4_args &g, const struct sizes &z)
{
	const float *s_sum = (const float *)(s_mem + SUMS_AT);
	unsigned int nth = 0;

	for (int set = blockIdx.x; set < z.units; set += z.teams * gridDim.x, nth++) {
		const unsigned int buf = nth % BUFFERS, parity = nth / BUFFERS & 1;

		for (int i = 0; i < z.teams && unit_of(set, i) < z.units; i++) {
			ptx_mbarrier_wait(buffer_full(i, buf), parity);
			write_unit(g, s_sum + (buf * WARPS + i * z.team) * g.m * ROWS, z.team,
				   unit_of(set, i));
			elected_arrive(buffer_full(i, buf) + BUFFERS * 8);
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

/* Keeps x in a register: the compiler would compute it anew in each stage. */
W4 uint32_t pinned(uint32_t x)
{
	asm volatile("" : "+r"(x));
	return x;
}

/* Runs in the warps that multiply. a_at: where a lies in shared memory */
template <int format, int dtype, int group, bool kept>
W4 void multiply(const struct cairn_gemm_w4_args &g, const struct sizes &z, int warp, int a_at)
{
	const int team = warp / z.team, first = warp % z.team, lane = threadIdx.x & 31;
	const uint32_t smem = ptx_smem(s_mem), team_at = smem + z.ring_at + team * z.team * z.stage_bytes;
	const uint32_t cells = team_at + z.team * CODE_BYTES + first * z.stage_cells;
	const uint32_t codes = pinned(team_at + first * CODE_BYTES + lane * 16);
	const uint32_t scales = pinned(cells + lane / 4 * (format == CAIRN_W4_INT ? 4 : 2));
	const uint32_t zeros = pinned(cells + 2 * ROWS + lane / 4 * 2);
	/* columns of the products past the last row repeat it; they are not written */
	const uint32_t own_a = pinned(smem + a_at + min(lane / 4, g.m - 1) * z.pitch + lane % 4 * 32);
	const uint32_t round_bytes = WARPS * z.stage_bytes;
	float *sums = (float *)(s_mem + SUMS_AT) + warp * g.m * ROWS, total[4] = { 0, 0, 0, 0 };
	struct slot slot = { 0, 0 };
	uint32_t from = 0;		/* the slot's first byte in the ring */
	unsigned int nth = 0;		/* the CTA's sets so far */

	for (int set = blockIdx.x; set < z.units; set += z.teams * gridDim.x, nth++) {
		const unsigned int buf = nth % BUFFERS;
		const bool present = unit_of(set, team) < z.units;
		int at = first * STAGE_K;

		for (int round = 0; round < z.rounds; round++, at += z.team * STAGE_K) {
			const struct stage st = { codes + from, scales + from, zeros + from,
						  own_a + at * 2, at };

			ptx_mbarrier_wait(smem + slot.at * 8, slot.parity);
			if (present && at + STAGE_K <= g.k)
				multiply_stage<format, dtype, group, kept, true>(g, st, total);
			else if (present && at < g.k)
				multiply_stage<format, dtype, group, kept, false>(g, st, total);
			elected_arrive(smem + (MAX_RING + slot.at) * 8);
			next_slot(z, &slot);
			from = slot.at ? from + round_bytes : 0;
		}
		if (!present)
			break;
		ptx_mbarrier_wait(buffer_full(team, buf) + BUFFERS * 8, nth / BUFFERS + 1 & 1);
		put_totals(g, sums + buf * WARPS * g.m * ROWS, total);
		elected_arrive(buffer_full(team, buf));
	}
}

/* Prepares all mbarriers. */
W4 void init_barriers(const struct sizes &z)
{
	for (int i = threadIdx.x; i < BARRIERS; i += THREADS) {
		const int nth = i - 2 * MAX_RING;	/* of the buffers' */
		const int warps = nth < 0 ? WARPS : nth / BUFFERS % 2 ? 1 : z.team;

		ptx_mbarrier_init(ptx_smem(s_mem) + i * 8, i < MAX_RING ? 1 : warps * ELECTED_LANES);
	}
	ptx_fence_mbarrier_init_release_cluster();
	__syncthreads();
}

template <int format, int dtype, int group, bool kept>
__global__ void __launch_bounds__(THREADS, kept && group != 64 ? 2 : 1)
gemm_w4_skinny_kernel(const __grid_constant__ struct cairn_gemm_w4_args g,
		      const __grid_constant__ struct sizes z)
{
	const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
	const int a_at = SUMS_AT + BUFFERS * WARPS * ROWS * 4 * g.m;

	ptx_griddepcontrol_launch_dependents();
	init_barriers(z);
	if (warp == WARPS)
		fetch(g, z, true);
	warm_a(g);
	ptx_griddepcontrol_wait();
	if (kept)
		keep_a(g, z, s_mem + a_at);
	__syncthreads();
	if (warp < WARPS)
		multiply<format, dtype, group, kept>(g, z, warp, a_at);
	else if (warp > WARPS)
		add_units(g, z);
	else
		fetch(g, z, false);
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
