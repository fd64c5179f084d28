/* SPDX-License-Identifier: Apache-2.0 */
/*
 * moe.cuh - the weights that a CTA's warps stream, in order, and the LL words that cross CTAs
 *
 * Streams. Eight warps compute. Each has a loader warp, which keeps a ring of 4 KiB stages filled for it. A
 * stage is 16 rows x up to 128 columns: 8 gates and their 8 ups of w_gate_up, or 16 rows of w_down. The 8
 * warps divide every product along k. The warp and the order in which terms are added depend on the shape
 * alone, so a request's sums do not depend on the other requests of the batch.
 *
 * 8-bit weights (fp8): moe_fp8.cuh.
 *
 * LL words. Results travel between CTAs in 64-bit words of global memory: 32 bits of payload (a float, or two
 * elements of dtype) and the number of the call. Readers poll the words, which takes one round trip to the L2
 * and needs neither fence nor counter. A word is written once in a call, and nothing else uses the memory of
 * a workspace's LL words. Elements are in the order in which the lanes of an mma read them: of every 16
 * elements, lane t of a quad has 2 t, 2 t + 1, 8 + 2 t and 9 + 2 t, in two adjacent words (16 bytes). With
 * 8-bit weights the lane has 4 t .. 4 t + 3, because ldmatrix gives it four bytes of a row.
 *
 * Each CTA counts its own calls, which is possible because a workspace serves a fixed number of CTAs. A
 * shared counter would need a second one, to show which CTA exits last (NOTES.md).
 */
#ifndef CAIRN_MOE_CUH
#define CAIRN_MOE_CUH

#include "primitives/rows/row.cuh"
#include "fused/attention/base/attn_tile.cuh"
#include "fused/block/body.cuh"
#include "fused/moe/moe_call.cuh"

#define MOE		static __device__ __forceinline__
#define MOE_WARPS	8
#define MOE_WORKERS		(MOE_WARPS * 32)
#define MOE_ROUTERS		128		/* threads: a warpgroup */
#define MOE_THREADS		(2 * MOE_WORKERS + MOE_ROUTERS)
#define MOE_STAGE_BYTES	4096
#define MOE_STAGE_ROWS	16
#define MOE_STAGE_K		128
#define MOE_MAX_STAGES	6
#define MOE_MAX_BATCH	8
#define MOE_MAX_EXPERTS	256
#define MOE_MAX_PER_TOKEN	16
#define MOE_MAX_DISTINCT	(MOE_MAX_BATCH * MOE_MAX_PER_TOKEN)
#define MOE_MAX_CTAS	1024
#define MOE_ROW_BYTES	256		/* bytes of one request's activations for one stage */
#define MOE_ACT_ROWS	12		/* such rows that a warp loads at a time */
#define MOE_FP8_WARPS		16
#define MOE_FP8_ACT_ROWS	16
#define MOE_WORK_BAR	1		/* named barriers: compute warps, route warps */
#define MOE_ROUTE_BAR	2

/*
 * Pairs of a gate row and an up row are divided into units of at most 8 (or `most`) pairs, whose sizes differ
 * by at most 2. Units i of all CTAs are adjacent in memory and are read at the same time.
 */
struct moe_units {
	int rounds;			/* number of units of a CTA */
	int size, larger;		/* a unit has 2 size pairs; the first `larger` units have 2 more */
};

static __host__ __device__ __forceinline__ struct moe_units units_of(int pairs, int ctas,
								   int most = MOE_STAGE_ROWS / 2)
{
	struct moe_units u;
	int num;

	u.rounds = (pairs + ctas * most - 1) / (ctas * most);
	num = u.rounds * ctas;
	u.size = num ? pairs / 2 / num : 0;
	u.larger = pairs / 2 - u.size * num;
	return u;
}

struct moe_args {
	struct moe_call a;
	uint32_t *calls;		/* calls before this one, counted by each CTA */
	uint64_t *logits;		/* LL words: [batch][num_experts], a float each */
	uint64_t *shared;		/* [batch][shared_intermediate / 2] */
	uint64_t *routed;		/* [batch][experts_per_token][intermediate / 2] */
	struct moe_units units;		/* units of the shared experts' gates and ups */
	int32_t stages;			/* stages of a ring */
	int32_t at_sums, at_act, at_rings;	/* offsets in shared memory */
	int32_t adds_x;
};

struct moe_fp8_args {
	struct moe_args moe;
	struct moe_scales scales;
};

/*
 * Plans the work and the shared memory for `ctas` CTAs. Returns the bytes of shared memory, or -errno. Does
 * not check the arguments: num_experts may be 0, which makes a dense MLP of shared_intermediate.
 */
int moe_plan(struct moe_args *g, const struct cairn_moe_args *args, int ctas);
#define MOE_SMEM_MAX	(227 * 1024 - 64)	/* 64 bytes are reserved for the persistent kernel */

/* An expert that at least one request chose; picks are in ascending order of experts */
struct moe_pick {
	int32_t expert;
	uint32_t mask;			/* bit b: request b chose it */
	uint32_t slots;			/* 4 bits per request: position among the request's experts */
};

struct moe_small {
	uint64_t mbar[MOE_WARPS][MOE_MAX_STAGES][2];	/* full, empty */
	uint64_t routed;				/* completes when the picks are listed */
	uint32_t row_at[MOE_WARPS][MOE_ACT_ROWS];	/* LL words that a warp loads: index, lanes << 24 */
	float red[2][MOE_MAX_BATCH][MOE_WARPS];
	float weight[MOE_MAX_BATCH][MOE_MAX_PER_TOKEN];
	uint32_t mask[MOE_MAX_EXPERTS], slots[MOE_MAX_EXPERTS];
	struct moe_pick pick[MOE_MAX_DISTINCT];
	int32_t num_picks;
	struct moe_units units;			/* units of the picks' gates and ups */
};

static __host__ __device__ constexpr int moe_warps(int fp8)
{
	return fp8 ? MOE_FP8_WARPS : MOE_WARPS;
}

static __host__ __device__ constexpr int moe_act_rows(int fp8)
{
	return fp8 ? MOE_FP8_ACT_ROWS : MOE_ACT_ROWS;
}

extern __shared__ __align__(1024) uint8_t moe_mem[];

MOE struct moe_small *moe_small(void)
{
	return (struct moe_small *)moe_mem;
}

MOE void moe_sync(void)
{
	ptx_bar_sync(MOE_WORK_BAR, MOE_WORKERS);
}

MOE int64_t moe_clock(void)
{
#ifdef CAIRN_DEBUG
	return ptx_clock64();
#else
	return 0;
#endif
}

/* ---- shares ---- */

/* Returns the first and the end of this CTA's share of `count` items. count, first and end are even. */
MOE int2 share_of(int count)
{
	uint32_t pairs = (uint32_t)count / 2;

	return make_int2((int)(pairs * blockIdx.x / gridDim.x) * 2,
			 (int)(pairs * (blockIdx.x + 1) / gridDim.x) * 2);
}

/*
 * Returns the first and the end of this CTA's pairs in round i of its units. If a CTA has several teams, they
 * take turns, by `team`.
 */
template <int teams = 1>
MOE int2 unit_pairs(const struct moe_units &u, int i, int team = 0)
{
	const int at = (i * teams + team) * (int)gridDim.x + (int)blockIdx.x;
	const int first = at * u.size + min(at, u.larger);

	return make_int2(first * 2, (first + u.size + (at < u.larger)) * 2);
}

/* Returns a warp's share of k columns, in multiples of `step`. */
MOE int2 slice_of(int k, int step, int warp, int warps = MOE_WARPS)
{
	int steps = k / step;

	return make_int2(steps * warp / warps * step, steps * (warp + 1) / warps * step);
}

#define MOE_STEP_ACT	16
#define MOE_FP8_STEP	32		/* a sector of 32 bytes */

/*
 * At most 8 pairs of rows of one expert, from pair p on, counted over the chosen experts in order; end: the
 * end of the CTA's pairs.
 */
struct moe_unit {
	int pick, row, count;
};

MOE struct moe_unit unit_at(int p, int end, int intermediate)
{
	struct moe_unit u;

	u.pick = p < intermediate ? 0 : p / intermediate;	/* always 0 for the shared experts */
	u.row = p - u.pick * intermediate;
	u.count = min(min(MOE_STAGE_ROWS / 2, end - p), intermediate - u.row);
	return u;
}

/* ---- rings ---- */

struct ring {
	uint32_t stages, mbars, slot, parity;
};

/*
 * Number of a ring's stages in flight. More would only delay other loads: until the experts are known, all
 * warps wait for x, for the logits and for instructions.
 */
#define MOE_IN_FLIGHT	2
#define MOE_IN_FLIGHT_FIRST	1

MOE struct ring ring_of(const struct moe_args &g, int warp)
{
	struct ring r = { ptx_smem(moe_mem) + g.at_rings + warp * g.stages * MOE_STAGE_BYTES,
			  ptx_smem(moe_small()->mbar[warp]), 0, 0 };

	return r;
}

MOE void ring_advance(const struct moe_args &g, struct ring &r)
{
	if (++r.slot == (uint32_t)g.stages) {
		r.slot = 0;
		r.parity ^= 1;
	}
}

/* A loader's state: the next stage to fill, and the oldest stage in flight */
struct loader {
	struct ring ring, oldest;
	int in_flight, most;
	uint64_t policy;
};

/* Rows of a matrix: row i is at i * pitch bytes; the ninth row and those after it count from `second`. */
struct moe_rows {
	const char *src, *second;
	int64_t pitch;
	int count, halves;		/* valid rows, and whether count applies to each eight rows */
};

/*
 * Loads columns first, first + step ... of these rows, stage by stage, padded with zeros to 64 or 128 columns
 * and 16 rows. Called by loader warps.
 */
MOE void load_rows(const struct moe_args &g, struct loader &l, const struct moe_rows &m, int first, int end,
		   int step)
{
	const int lane = threadIdx.x % 32, half = lane / 16, piece = lane % 16, column = piece * 8;
	struct ring &r = l.ring;

#pragma unroll 1
	for (; first < end; first += step) {
		const uint32_t full = r.mbars + r.slot * 16, to = r.stages + r.slot * MOE_STAGE_BYTES;
		const char *src = m.src + half * m.pitch + (first + column) * 2;
		const char *second = m.second + half * m.pitch + (first + column) * 2;
		const int there = first + column < end;

		/* passes at once in the first round, when the ring is empty */
		ptx_mbarrier_wait(full + 8, r.parity ^ 1);
		if (piece < MOE_STAGE_K / 16 || end - first > MOE_STAGE_K / 2) {
#pragma unroll
			for (int i = 0; i < 8; i++) {
				int row = 2 * i + half, valid = there && (m.halves ? row & 7 : row) < m.count;
				const char *from = (i < 4 ? src : second) + i % 4 * 2 * m.pitch;

				ptx_cp_async_cg_hint(to + attn_swizzle(row, piece, MOE_STAGE_K * 2),
						     valid ? from : m.src, valid ? 16 : 0,
						     l.policy);
			}
		}
#ifdef CAIRN_DEBUG	/* racecheck does not support copies that arrive on an mbarrier */
		ptx_cp_async_commit_group();
		ptx_cp_async_wait_group<0>();
		ptx_mbarrier_arrive(full);
		ring_advance(g, r);
#else
		ptx_cp_async_mbarrier_arrive_noinc(full);
		ring_advance(g, r);
		if (l.in_flight < l.most - 1) {
			l.in_flight++;
		} else {
			ptx_mbarrier_wait(l.oldest.mbars + l.oldest.slot * 16, l.oldest.parity);
			ring_advance(g, l.oldest);
		}
#endif
	}
}

/* Waits for the ring's oldest stage; returns its address for ldmatrix. */
MOE uint32_t ring_wait(const struct ring &r)
{
	ptx_mbarrier_wait(r.mbars + r.slot * 16, r.parity);
	return r.stages + r.slot * MOE_STAGE_BYTES + attn_q_at<MOE_STAGE_K>(threadIdx.x % 32);
}

#ifdef CAIRN_DEBUG
#define MOE_RELEASERS		32		/* each lane arrives */
#else
#define MOE_RELEASERS		1
#endif

/* Releases the oldest stage, which all lanes have consumed. */
MOE void ring_release(const struct moe_args &g, struct ring &r)
{
#ifdef CAIRN_DEBUG	/* a form that racecheck can follow */
	ptx_mbarrier_arrive(r.mbars + r.slot * 16 + 8);
#else
	__syncwarp();
	if (threadIdx.x % 32 == 0)
		ptx_mbarrier_arrive(r.mbars + r.slot * 16 + 8);
#endif
	ring_advance(g, r);
}

/* ---- what a loader loads ---- */

MOE void load_gate_up(const struct moe_args &g, struct loader &l, const void *w, int intermediate, int row,
		      int count)
{
	struct moe_rows m;

	m.pitch = (int64_t)g.a.hidden * 2;
	m.src = (const char *)w + row * m.pitch;
	m.second = m.src + intermediate * m.pitch;
	m.count = count;
	m.halves = 1;
	load_rows(g, l, m, ((int)threadIdx.x / 32 - MOE_WARPS) * MOE_STAGE_K,
		  g.a.hidden, MOE_WARPS * MOE_STAGE_K);
}

/* Loads 16 rows of a matrix that is multiplied by n. */
MOE void load_rows_of(const struct moe_args &g, struct loader &l, const void *w, int row, int count)
{
	struct moe_rows m;

	m.pitch = (int64_t)g.a.hidden * 2;
	m.src = (const char *)w + row * m.pitch;
	m.second = m.src + 8 * m.pitch;
	m.count = count;
	m.halves = 0;
	load_rows(g, l, m, ((int)threadIdx.x / 32 - MOE_WARPS) * MOE_STAGE_K,
		  g.a.hidden, MOE_WARPS * MOE_STAGE_K);
}

MOE void load_down(const struct moe_args &g, struct loader &l, const void *w, int k, int row, int count)
{
	const int2 cols = slice_of(k, MOE_STEP_ACT, (int)threadIdx.x / 32 - MOE_WARPS);
	struct moe_rows m;

	m.pitch = (int64_t)k * 2;
	m.src = (const char *)w + row * m.pitch;
	m.second = m.src + 8 * m.pitch;
	m.count = count;
	m.halves = 0;
	load_rows(g, l, m, cols.x, cols.y, MOE_STAGE_K);
}

template <int fp8>
MOE const char *expert_gate_up(const struct moe_args &g, int expert)
{
	return (const char *)g.a.w_gate_up +
	       (int64_t)expert * g.a.intermediate * 2 * g.a.hidden * (fp8 ? 1 : 2);
}

MOE const char *expert_down(const struct moe_args &g, int expert)
{
	return (const char *)g.a.w_down + (int64_t)expert * g.a.hidden * g.a.intermediate * 2;
}

/* Loads gates and ups: of the shared experts, which need no routing, or of the chosen experts. */
MOE void load_gates_and_ups(const struct moe_args &g, struct loader &l, int routed)
{
	const int intermediate = routed ? g.a.intermediate : g.a.shared_intermediate;
	const struct moe_units units = routed ? moe_small()->units : g.units;

#pragma unroll 1
	for (int i = 0; i < units.rounds; i++)
#pragma unroll 1
		for (int2 p = unit_pairs(units, i); p.x < p.y;) {
			struct moe_unit u = unit_at(p.x, p.y, intermediate);
			const int expert = routed ? moe_small()->pick[u.pick].expert : 0;

			load_gate_up(g, l, routed ? expert_gate_up<0>(g, expert) :
				     (const char *)g.a.w_shared_gate_up, intermediate, u.row, u.count);
			p.x += u.count;
		}
}

MOE void load_downs(const struct moe_args &g, struct loader &l)
{
	const struct moe_small *small = moe_small();
	const int2 rows = share_of(g.a.hidden);

#pragma unroll 1
	for (int row = rows.x; row < rows.y; row += MOE_STAGE_ROWS)
#pragma unroll 1
		for (int i = g.a.shared_intermediate ? -1 : 0; i < small->num_picks; i++) {
			const int expert = i < 0 ? 0 : small->pick[i].expert;

			load_down(g, l, i < 0 ? (const char *)g.a.w_shared_down : expert_down(g, expert),
				  i < 0 ? g.a.shared_intermediate : g.a.intermediate, row, rows.y - row);
		}
}
#endif
