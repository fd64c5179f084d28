/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_fp8_kernel - the kernel of gemm_fp8: the tiles and the ring of gemm_fixed, products of e4m3
 *
 * Tiles, ring and warps: gemm_fixed_ring.cuh. A stage is 128 of k, as is a block of scales. Ends of tiles:
 * gemm_fixed_write.cuh.
 *
 * Sums: wgmma adds products of e4m3 with about 14 bits, so its accumulators take only the 128 products of a
 * stage. They are then scaled and added to fp32 sums. A thread has 128 of these (64 x 256 of a warpgroup),
 * and registers for 64 accumulators: a stage is multiplied in batches of 128 rows of b. While one warpgroup
 * adds, the other one multiplies: a batch takes the tensor cores 256 clocks, and adding it 190 to 230
 * (NOTES.md). So everything else is kept out of the way: during the last batch of a stage the next one is
 * looked up, and the scales of the next tile are loaded while the results of a tile are written. Tiles of 192
 * columns leave registers for both batches of a stage, and those of up to 64, which products of few rows
 * have, for the batches of two stages.
 *
 * Order of sums: stages follow k. Rows and columns outside of the matrices arrive as zeros.
 *
 * Scales: with BLOCKS, a warp loads those of a stage two stages before, one in each lane. Other kinds scale
 * at the end of a tile.
 */
#ifndef CAIRN_GEMM_FP8_KERNEL_CUH
#define CAIRN_GEMM_FP8_KERNEL_CUH

#include "primitives/gemm/fixed/gemm_fixed_write.cuh"
#include "primitives/gemm/fp8/gemm_fp8.h"
#include "primitives/ptx/wgmma.cuh"

#define BATCH		CAIRN_FP8_BLOCK		/* rows of b that a batch multiplies */
#define TURN_BARRIER	1			/* number 0 is __syncthreads() */
#define AHEAD		8			/* stages */
#define IS_NARROW(width)	((width) <= BATCH / 2)

/*
 * The scales of blocks. Each lane has one of the scales that its warp needs for a stage: lanes 0 to 15 those
 * of the warp's rows of a, the others those of the batches of b. now, then: the lane's scale for this stage
 * and for the next one. at: address of its scale for the stage after these two. factor: products of both
 * scales for this thread's rows r and r + 8 in the batch that is being multiplied.
 */
struct scales {
	const float *at;
	float now, then, factor[2];
};

TILE int32_t blocks_of(int32_t k)
{
	return (k + CAIRN_FP8_BLOCK - 1) / CAIRN_FP8_BLOCK;
}

TILE float next_scale(const struct cairn_gemm_fp8_args &f, struct scales *s, bool more)
{
	float scale = more ? __ldg(s->at) : 0;

	s->at += threadIdx.x % 32 < WARP_ROWS ? f.a_scale_stride : 1;
	return scale;
}

/* Sets the factors of batch nth of the stage whose scales are given. */
TILE void set_factors(struct scales *s, float scale, int nth)
{
	const float col = __shfl_sync(0xffffffffu, scale, WARP_ROWS + nth);
	const int row = threadIdx.x % 32 / 4;

	s->factor[0] = __shfl_sync(0xffffffffu, scale, row) * col;
	s->factor[1] = __shfl_sync(0xffffffffu, scale, row + 8) * col;
}

/*
 * Begins to load the lane's first two scales; past the ends of the matrices, those of the last row or block
 * of b.
 */
TILE struct scales find_scales(const struct cairn_gemm_fp8_args &f, const struct tile &t, int stages)
{
	const int32_t lane = threadIdx.x % 32, row = t.row + threadIdx.x / 32 * WARP_ROWS + lane;
	const int32_t block = min(t.col / BATCH + lane % 2, blocks_of(f.n) - 1);
	struct scales s;

	s.at = lane < WARP_ROWS ? f.a_scale + min(row, f.m - 1) :
	       f.b_scale + (int64_t)block * blocks_of(f.k);
	s.now = next_scale(f, &s, true);
	s.then = next_scale(f, &s, stages > 1);
	return s;
}

/* A stage in the ring; low: the low half of the descriptor of its first row */
struct stage {
	struct turn turn;
	uint32_t low;
	bool ready;			/* has arrived; if not, wait for it */
};

/* Sets what follows from turn. */
TILE void find_stage(const struct mine &s, struct stage *stage)
{
	stage->low = (s.ring + stage->turn.slot * s.stage_bytes) / 16;
	stage->ready = ptx_mbarrier_test_wait_parity(s.full + stage->turn.slot * 8, stage->turn.parity);
}

/* Multiplies a stage of the warpgroup's 64 rows by n rows of b. a, b: low halves of their descriptors */
template <int n> TILE void start_batch(float *part, uint32_t a, uint32_t b)
{
	wgmma_keep<n / 2>(part);
	ptx_wgmma_fence();
#pragma unroll
	for (int step = 0; step < ROW_BYTES / 32; step++)
		ptx_wgmma_e4m3_ss_k<n>(part, a + 2 * step, b + 2 * step, step > 0);
	ptx_wgmma_commit_group();
	wgmma_keep<n / 2>(part);
}

/* Adds a batch, times the factors of the thread's two rows, to sums. */
template <int n, bool blocks>
TILE void add_batch(float *d, const float *part, float factor_0, float factor_8)
{
#pragma unroll
	for (int j = 0; j < n / 2; j++)
		d[j] = blocks ? __fmaf_rn(part[j], j / 2 % 2 ? factor_8 : factor_0, d[j]) :
		       __fadd_rn(part[j], d[j]);
}

/*
 * Multiplies batch `nth` of stage i, which is n rows of b from `first` on, and adds the products to d. During
 * the `last` batch the next stage is looked up, after it the slot is free. The factors of the next batch are
 * computed here already, because computing them between the products of that batch would delay the products.
 */
template <int n, int nth, bool last, bool blocks>
TILE void batch(const struct cairn_gemm_fp8_args &f, const struct gemm_fixed_plan &p, const struct mine &s,
		struct stage *stage, int first, int i, struct scales *scales, float *part, float *d)
{
	const int slot = stage->turn.slot;
	float factor[2];

	start_batch<n>(part, stage->low + threadIdx.x / 128 * (GROUP_BYTES / 16),
		       stage->low + (p.rows_a + first) * (ROW_BYTES / 16));
	if (last) {
		advance(&stage->turn, p.slots);
		find_stage(s, stage);
	}
	ptx_wgmma_wait_group<0>();
	wgmma_keep<n / 2>(part);
	if (last)
		release(s, p.pair, slot);
	if (blocks) {
		factor[0] = scales->factor[0];
		factor[1] = scales->factor[1];
		set_factors(scales, last ? scales->then : scales->now, last ? 0 : nth + 1);
		if (last) {
			scales->now = scales->then;
			scales->then = next_scale(f, scales, i + 2 < p.stages);
		}
	}
	add_batch<n, blocks>(d + first / 2, part, factor[0], factor[1]);
}

/* Takes the stages of a tile from the ring and calls each(i). */
template <class function>
TILE void each_stage(const struct gemm_fixed_plan &p, const struct mine &s, struct stage *stage,
		     function each)
{
	int i = 0;

	do {	/* there is at least one */
		if (!stage->ready)
			ptx_mbarrier_wait(s.full + stage->turn.slot * 8, stage->turn.parity);
		each(i);
	} while (++i < p.stages);
}

/*
 * Multiplies a stage in two batches, n and `rest` rows of b, with accumulators of their own: the first one is
 * added while the second one is multiplied. With BLOCKS, the first warpgroup waits for the second one when it
 * has the first batch of a tile, and the second one begins its tile then: if both began together, both would
 * add at the same time in every stage.
 */
template <int n, int rest, bool blocks>
TILE void both_batches(const struct cairn_gemm_fp8_args &f, const struct gemm_fixed_plan &p,
		       const struct mine &s, struct stage *stage, int i, struct scales *scales, float *part,
		       float *other, float *d)
{
	const int slot = stage->turn.slot;
	const uint32_t a = stage->low + threadIdx.x / 128 * (GROUP_BYTES / 16);
	const uint32_t b = stage->low + p.rows_a * (ROW_BYTES / 16);

	start_batch<n>(part, a, b);
	start_batch<rest>(other, a, b + n * (ROW_BYTES / 16));
	advance(&stage->turn, p.slots);
	find_stage(s, stage);
	ptx_wgmma_wait_group<1>();
	wgmma_keep<n / 2>(part);
	if (blocks && i == 0 && p.groups > 1 && threadIdx.x < 128)
		ptx_bar_sync(TURN_BARRIER, CONSUMERS);
	add_batch<n, blocks>(d, part, scales->factor[0], scales->factor[1]);
	if (blocks)
		set_factors(scales, scales->now, 1);
	ptx_wgmma_wait_group<0>();
	wgmma_keep<rest / 2>(other);
	release(s, p.pair, slot);
	add_batch<rest, blocks>(d + n / 2, other, scales->factor[0], scales->factor[1]);
	if (blocks) {
		set_factors(scales, scales->then, 0);
		scales->now = scales->then;
		scales->then = next_scale(f, scales, i + 2 < p.stages);
	}
}

/*
 * Multiplies stage i of n columns, up to 64, into part. Meanwhile adds the products of the stage before,
 * which are in other, with their factors, and then sets the factors of this stage. scale: the lane's for this
 * stage, then for the one AHEAD of it; before: the slot of the stage before
 */
template <int n, bool blocks>
TILE void narrow_stage(const struct cairn_gemm_fp8_args &f, const struct gemm_fixed_plan &p,
		       const struct mine &s, struct stage *stage, int i, struct scales *scales, float *scale,
		       float factor[2], int *before, float *part, float *other, float *d)
{
	const int slot = stage->turn.slot;

	if (!stage->ready)
		ptx_mbarrier_wait(s.full + slot * 8, stage->turn.parity);
	start_batch<n>(part, stage->low + threadIdx.x / 128 * (GROUP_BYTES / 16),
		       stage->low + p.rows_a * (ROW_BYTES / 16));
	advance(&stage->turn, p.slots);
	find_stage(s, stage);
	if (i) {
		ptx_wgmma_wait_group<1>();
		wgmma_keep<n / 2>(other);
		release(s, p.pair, *before);
		add_batch<n, blocks>(d, other, factor[0], factor[1]);
	}
	*before = slot;
	if (blocks) {
		set_factors(scales, *scale, 0);
		factor[0] = scales->factor[0];
		factor[1] = scales->factor[1];
		*scale = next_scale(f, scales, i + AHEAD < p.stages);
	}
}

/* Ends a tile of up to 64 columns: adds the products of its last stage. */
template <int n, bool blocks>
TILE void narrow_end(const struct gemm_fixed_plan &p, const struct mine &s, const float factor[2], int before,
		     float *part, float *d)
{
	ptx_wgmma_wait_group<0>();
	wgmma_keep<n / 2>(part);
	release(s, p.pair, before);
	add_batch<n, blocks>(d, part, factor[0], factor[1]);
}

/*
 * Tiles of up to 64 columns leave registers for the products of two stages. Their stages take so few clocks
 * that scales are loaded AHEAD stages before.
 */
template <int n, bool blocks>
TILE void multiply_narrow(const struct cairn_gemm_fp8_args &f, const struct gemm_fixed_plan &p,
			  const struct mine &s, struct stage *stage, struct scales *scales, float *d)
{
	float even[n / 2] = {}, odd[n / 2] = {}, factor[2], scale[AHEAD] = { scales->now, scales->then };
	int i = 0, before = 0;
	auto ends = [&](float *part, float *other, float *its) {
		narrow_stage<n, blocks>(f, p, s, stage, i, scales, its, factor, &before, part, other, d);
		if (++i < p.stages)
			return false;
		narrow_end<n, blocks>(p, s, factor, before, part, d);
		return true;
	};

#pragma unroll
	for (int then = 2; blocks && then < AHEAD; then++)
		scale[then] = next_scale(f, scales, then < p.stages);
	while (!ends(even, odd, &scale[0]) && !ends(odd, even, &scale[1]) && !ends(even, odd, &scale[2]) &&
	       !ends(odd, even, &scale[3]) && !ends(even, odd, &scale[4]) && !ends(odd, even, &scale[5]) &&
	       !ends(even, odd, &scale[6]) && !ends(odd, even, &scale[7]))
		;
}

/*
 * d: the sums of this warpgroup's 64 rows and `width` columns. No batch crosses a block of scales: every
 * second tile of 192 columns begins in the middle of a block, with a batch of 64.
 */
template <bool blocks, int width>
TILE void multiply(const struct cairn_gemm_fp8_args &f, const struct gemm_fixed_plan &p,
		   const struct mine &s, const struct tile &t, struct stage *stage,
		   struct scales scales, float *d)
{
	constexpr int n = width < BATCH ? width : BATCH, rest = width % n;
	float part[n / 2] = {}, other[(rest ? rest : 2) / 2] = {};

	if (blocks)
		set_factors(&scales, scales.now, 0);
	if (blocks && rest && threadIdx.x / 128)
		ptx_bar_sync(TURN_BARRIER, CONSUMERS);	/* begins after the first warpgroup's first batch */
	if constexpr (IS_NARROW(width))
		multiply_narrow<width, blocks>(f, p, s, stage, &scales, d);
	else if constexpr (width <= BATCH)
		each_stage(p, s, stage, [&](int i) {
			batch<n, 0, true, blocks>(f, p, s, stage, 0, i, &scales, part, d);
		});
	else if constexpr (rest == 0)
		each_stage(p, s, stage, [&](int i) {
			batch<n, 0, false, blocks>(f, p, s, stage, 0, i, &scales, part, d);
			batch<n, 1, true, blocks>(f, p, s, stage, n, i, &scales, part, d);
		});
	else if (t.col % BATCH == 0)
		each_stage(p, s, stage, [&](int i) {
			both_batches<n, rest, blocks>(f, p, s, stage, i, &scales, part, other, d);
		});
	else
		each_stage(p, s, stage, [&](int i) {
			both_batches<rest, n, blocks>(f, p, s, stage, i, &scales, other, part, d);
		});
}

/* Returns this thread's first row of a; the other one is 8 below it. */
TILE int32_t row_of(const struct tile &t)
{
	return t.row + threadIdx.x / 32 * WARP_ROWS + threadIdx.x % 32 / 4;
}

/* ROWS and TENSOR, whose scales are applied at the end of a tile: the scale of this thread's row 0 or 8 */
TILE float row_scale(const struct cairn_gemm_fp8_args &f, const struct tile &t, int below)
{
	return __ldg(f.a_scale +
		     (f.scale_kind == CAIRN_FP8_SCALE_TENSOR ? 0 : min(row_of(t) + below, f.m - 1)));
}

/* Likewise the scale of one of the 32 columns from `first` on, another one in each lane */
TILE float col_scale(const struct cairn_gemm_fp8_args &f, const struct tile &t, int first)
{
	const int32_t col = t.col + first + threadIdx.x % 32;

	return __ldg(f.b_scale + (f.scale_kind == CAIRN_FP8_SCALE_TENSOR ? 0 : min(col, f.n - 1)));
}

/* Scales n sums of up to 32 columns. col: the scale of this lane's column */
template <int n> TILE void scale_some(float row_0, float row_8, float col, float *d)
{
#pragma unroll
	for (int e = 0; e < n; e++) {
		const float b = __shfl_sync(0xffffffffu, col, e / 4 * 8 + threadIdx.x % 4 * 2 + e % 2);

		d[e] *= (e / 2 % 2 ? row_8 : row_0) * b;
	}
}

template <int sums> TILE void scale_sums(const struct cairn_gemm_fp8_args &f, const struct tile &t, float *d)
{
	const float row_0 = row_scale(f, t, 0), row_8 = row_scale(f, t, 8);

#pragma unroll
	for (int c = 0; c < 2 * sums; c += 32)
		scale_some<16>(row_0, row_8, col_scale(f, t, c), d + c / 2);
}

/* Tiles of up to 64 columns have registers to load their scales at the beginning. */
struct narrow_scales {
	float row_0, row_8, col[2];
};

TILE struct narrow_scales find_narrow_scales(const struct cairn_gemm_fp8_args &f, const struct tile &t)
{
	return { row_scale(f, t, 0), row_scale(f, t, 8), { col_scale(f, t, 0), col_scale(f, t, 32) } };
}

template <int width> TILE void scale_narrow(const struct narrow_scales &s, float *d)
{
	scale_some<(width < 32 ? width : 32) / 2>(s.row_0, s.row_8, s.col[0], d);
	if constexpr (width > 32)
		scale_some<width / 2 - 16>(s.row_0, s.row_8, s.col[1], d + 16);
}

template <int dtype, bool blocks, int width>
TILE void consume(const struct cairn_gemm_fp8_args &f, const struct cairn_gemm_fixed_args &g,
		  const struct maps &maps, const struct gemm_fixed_plan &p, const struct mine &s)
{
	const int32_t units = p.rows * p.cols;
	struct tile t = find_tile(g, p, s, s.cluster);
	struct stage stage = { .turn = { 0, 0 } };
	struct scales scales = {};

	ptx_griddepcontrol_wait();	/* the preceding kernel wrote a_scale, and may read out's memory */
	if (blocks)
		scales = find_scales(f, t, p.stages);
	find_stage(s, &stage);
	/* not from s.cluster, which would spill in tiles of 192 columns */
	for (int unit = blockIdx.x / p.pair; unit < units;) {
		const struct tile done = t;
		float d[IS_NARROW(width) ? 32 : width / 2] = {};
		struct narrow_scales early = {};

		if (!blocks && IS_NARROW(width))
			early = find_narrow_scales(f, t);
		multiply<blocks, width>(f, p, s, t, &stage, scales, d);
		unit += p.clusters;
		if (unit < units) {
			t = find_tile(g, p, s, unit);
			if (blocks)	/* these arrive while the results are written */
				scales = find_scales(f, t, p.stages);
		}
		if constexpr (!blocks && IS_NARROW(width))
			scale_narrow<width>(early, d);
		else if constexpr (!blocks)
			scale_sums<width / 2>(f, done, d);
		write_tile<dtype, sizeof(d) / sizeof(*d)>(g, maps, p, s, done, d);
	}
	end_sends();
}

template <int dtype, bool blocks, int width>
static __global__ void __launch_bounds__(THREADS, 1)
gemm_fp8_kernel(const __grid_constant__ struct cairn_gemm_fp8_args f,
		const __grid_constant__ struct cairn_gemm_fixed_args g,
		const __grid_constant__ struct maps maps, const __grid_constant__ struct gemm_fixed_plan p)
{
	extern __shared__ __align__(1024) unsigned char s_mem[];
	struct cairn_gemm_fixed_args plain = g;

	plain.epilogue = CAIRN_GEMM_FIXED_PLAIN;	/* so the compiler leaves the other one out */
	run_tiles<240, 24>(plain, maps, p, s_mem,
			   [&](const struct mine &s) {
				   consume<dtype, blocks, width>(f, plain, maps, p, s);
			   });
}

#endif
