/* SPDX-License-Identifier: Apache-2.0 */
/*
 * moe.cuh - what a CTA's warps will need of the weights, in order, and what crosses CTAs
 *
 * Streams. Eight warps compute, and each has a loader of its own that keeps a ring of 4 KiB stages in
 * front of it filled. A stage is 16 rows x up to 128 columns: of w_gate_up 8 gates and the 8 ups that
 * belong to them, of w_down 16 rows. The 8 warps share a product along k, each its slice, whatever the
 * matrix: which warp adds up what, and in which order, depends on the shape alone, so that a request's
 * sums are the same in any company.
 *
 * Weights of 8 bits (fp8): moe_fp8.cuh.
 *
 * Words. What one CTA tells all others travels in 64-bit words of global memory, 32 bits of payload (a float,
 * or two elements of dtype) and the number of the call. Readers poll the data itself: one trip to the L2 and
 * one back, no fence, no counter. A word is written once a call, and nothing else is ever laid over the words
 * of a workspace. Elements lie in the order in which the lanes of an mma want them: of every 16, lane t of
 * four has 2 t, + 1 and 8 + 2 t, + 1: 16 bytes with their numbers. With weights of 8 bits it has 4 t .. + 3,
 * as ldmatrix gives it four bytes of a row.
 *
 * Calls are counted by each CTA for itself, as the same workspace always meets as many of them: one
 * counter for all would have to be guarded by another that tells who leaves last, 1.3 us on the way to
 * the next kernel.
 */
#ifndef CAIRN_MOE_CUH
#define CAIRN_MOE_CUH

#include "primitives/rows/row.cuh"
#include "fused/attention/attn_tile.cuh"
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
#define MOE_ROW_BYTES	256		/* of a stage's activations of one request */
#define MOE_ACT_ROWS	12		/* of these, that a warp asks for at a time */
#define MOE_FP8_WARPS		16
#define MOE_FP8_ACT_ROWS	16
#define MOE_WORK_BAR	1		/* named barriers: those that compute, those that route */
#define MOE_ROUTE_BAR	2

/*
 * Pairs of a gate's and an up's row come in units of at most 8, or `most`, of equal size but for 2: unit i
 * of a CTA is one of those that all CTAs take at the same time, neighbours in memory.
 */
struct moe_units {
	int rounds;			/* units of a CTA */
	int size, larger;		/* in twos: each has `size`, the first `larger` one more */
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
	uint32_t *calls;		/* before this one: of each CTA, its own count */
	uint64_t *logits;		/* words: [batch][num_experts], a float each */
	uint64_t *shared;		/* [batch][shared_intermediate / 2] */
	uint64_t *routed;		/* [batch][experts_per_token][intermediate / 2] */
	struct moe_units units;		/* of the shared experts' gates and ups */
	int32_t stages;			/* of a ring */
	int32_t at_sums, at_act, at_rings;	/* in shared memory */
};

struct moe_fp8_args {
	struct moe_args moe;
	struct moe_scales scales;
};

/*
 * Where everything lies, for so many CTAs. Returns bytes of shared memory, or -errno. Checks nothing:
 * num_experts may be 0, which makes it a dense MLP of shared_intermediate.
 */
int moe_plan(struct moe_args *g, const struct cairn_moe_args *args, int ctas);
#define MOE_SMEM_MAX	(227 * 1024 - 64)	/* 64 bytes are somebody else's */

/* An expert that some request chose: ascending by number */
struct moe_pick {
	int32_t expert;
	uint32_t mask;			/* of the requests */
	uint32_t slots;			/* 4 bits a request: which of its experts it is */
};

struct moe_small {
	uint64_t mbar[MOE_WARPS][MOE_MAX_STAGES][2];	/* full, empty */
	uint64_t routed;				/* the picks are there */
	uint32_t row_at[MOE_WARPS][MOE_ACT_ROWS];	/* what a warp has asked for: words, lanes << 24 */
	float red[2][MOE_MAX_BATCH][MOE_WARPS];
	float weight[MOE_MAX_BATCH][MOE_MAX_PER_TOKEN];
	uint32_t mask[MOE_MAX_EXPERTS], slots[MOE_MAX_EXPERTS];
	struct moe_pick pick[MOE_MAX_DISTINCT];
	int32_t num_picks;
	struct moe_units units;			/* of the picks' gates and ups */
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

/* `count` things, an even number, for this CTA: the first, and where they end; both even */
MOE int2 share_of(int count)
{
	uint32_t pairs = (uint32_t)count / 2;

	return make_int2((int)(pairs * blockIdx.x / gridDim.x) * 2,
			 (int)(pairs * (blockIdx.x + 1) / gridDim.x) * 2);
}

/* The first of its pairs, and where they end. team, of teams: of a CTA, that share its units */
template <int teams = 1>
MOE int2 unit_pairs(const struct moe_units &u, int i, int team = 0)
{
	const int at = (i * teams + team) * (int)gridDim.x + (int)blockIdx.x;
	const int first = at * u.size + min(at, u.larger);

	return make_int2(first * 2, (first + u.size + (at < u.larger)) * 2);
}

/* Of k columns, in multiples of `step`, a warp's */
MOE int2 slice_of(int k, int step, int warp, int warps = MOE_WARPS)
{
	int steps = k / step;

	return make_int2(steps * warp / warps * step, steps * (warp + 1) / warps * step);
}

#define MOE_STEP_ACT	16
#define MOE_FP8_STEP	32		/* a sector */

/* At most 8 pairs of rows of one expert, from pair p of the chosen experts' in order; end: the CTA's last */
struct moe_unit {
	int pick, row, count;
};

MOE struct moe_unit unit_at(int p, int end, int intermediate)
{
	struct moe_unit u;

	u.pick = p < intermediate ? 0 : p / intermediate;	/* always 0 of the shared experts */
	u.row = p - u.pick * intermediate;
	u.count = min(min(MOE_STAGE_ROWS / 2, end - p), intermediate - u.row);
	return u;
}

/* ---- rings ---- */

struct ring {
	uint32_t stages, mbars, slot, parity;
};

/*
 * Stages of a ring on their way: more only make others' loads late, and until the experts are known x, the
 * logits and the instructions are what all wait for.
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

/* A loader's place: where it loads next, and the oldest of those that are on their way */
struct loader {
	struct ring ring, oldest;
	int in_flight, most;
	uint64_t policy;
};

/* Where some rows of a matrix lie. Row i is i * pitch bytes on; from the ninth on it counts from `second`. */
struct moe_rows {
	const char *src, *second;
	int64_t pitch;
	int count, halves;		/* rows that are there; halves: of each eight */
};

/*
 * Columns first, first + step ... of these rows, stage by stage, filled up with zeros to 64 or 128 columns
 * and 16 rows. By a loader.
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

		ptx_mbarrier_wait(full + 8, r.parity ^ 1);	/* the first time round it is empty */
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
#ifdef CAIRN_DEBUG	/* racecheck does not see what arrives by itself */
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

/* The address of the ring's oldest stage, for ldmatrix, once it is there. */
MOE uint32_t ring_wait(const struct ring &r)
{
	ptx_mbarrier_wait(r.mbars + r.slot * 16, r.parity);
	return r.stages + r.slot * MOE_STAGE_BYTES + attn_q_at<MOE_STAGE_K>(threadIdx.x % 32);
}

#ifdef CAIRN_DEBUG
#define MOE_USED_UP		32		/* arrivals: each lane for itself */
#else
#define MOE_USED_UP		1
#endif

/* All lanes have used it up. */
MOE void ring_release(const struct moe_args &g, struct ring &r)
{
#ifdef CAIRN_DEBUG	/* that racecheck can follow */
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

/* 16 rows of a matrix that n is multiplied by */
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

/* Gates and ups: of the shared experts, which do not depend on the routing, or of the chosen ones */
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
