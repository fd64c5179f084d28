/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_fixed_plan - divides a product into tiles: plain arithmetic, for the host and the kernel
 *
 * A tile has 64 * groups rows of a and `width` rows of b. CTAs run alone or in pairs (clusters of two), whose
 * tiles lie one below the other and share the rows of b. The tiles of all CTAs of a cluster are a unit; units
 * are given to clusters in turn.
 *
 * No choice here changes a result's bits: each element is the sum of the same wgmma steps of 16 of k in the
 * same order, whichever tile it is in.
 */
#ifndef CAIRN_GEMM_FIXED_PLAN_H
#define CAIRN_GEMM_FIXED_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __CUDACC__
#define GEMM_FIXED_PLAN static inline __host__ __device__
#else
#define GEMM_FIXED_PLAN static inline
#endif

#define GEMM_FIXED_GROUP_ROWS	64		/* rows of a warpgroup */
#define GEMM_FIXED_STAGE_K	64
#define GEMM_FIXED_MOST_WIDTH	256
#define GEMM_FIXED_DATA_BYTES	(224 * 1024)	/* the ring and staged results */
#define GEMM_FIXED_STAGED_BYTES	(16 * 1024)	/* of a warpgroup: 256 bytes of each of its rows */
#define GEMM_FIXED_MAX_SLOTS	40
#define GEMM_FIXED_TOGETHER	2048		/* rows of a whose tiles are taken before the next columns */
#define GEMM_FIXED_MOST		(0x7fffffff - 511)	/* m and n at most: tiles may end behind them */

/* Divides numbers below 2^31 by a multiplication: n / d = n mul / 2^shift. */
struct gemm_fixed_divisor {
	uint32_t mul;
	int32_t shift;
};

struct gemm_fixed_plan {
	int32_t width;			/* rows of b of a tile: 16 to 256, a multiple of 16 */
	int32_t groups;			/* warpgroups that multiply: 1 or 2 */
	int32_t rows_a;			/* rows of a that a stage has room for, a multiple of 8 */
	int32_t pair;			/* CTAs of a cluster: 1 or 2 */
	int32_t slots, stages;		/* stages in the ring; stages of a tile */
	int32_t by_tma;			/* whether results leave by TMA */
	int32_t rows, cols;		/* units along m and along n */
	int32_t band;			/* units along m that are taken before the next columns */
	struct gemm_fixed_divisor by_units;	/* of a whole band */
	struct gemm_fixed_divisor by_high[2];	/* the units along m of a whole band, of the last one */
	int32_t clusters;		/* clusters of the launch */
};

GEMM_FIXED_PLAN int32_t gemm_fixed_div_up(int64_t a, int64_t b)
{
	return (int32_t)((a + b - 1) / b);
}

GEMM_FIXED_PLAN int32_t gemm_fixed_stage_bytes(const struct gemm_fixed_plan *p)
{
	return (p->rows_a + p->width) * GEMM_FIXED_STAGE_K * 2;
}

/* Returns the rows of a in a unit. */
GEMM_FIXED_PLAN int32_t gemm_fixed_unit_rows(const struct gemm_fixed_plan *p)
{
	return GEMM_FIXED_GROUP_ROWS * p->groups * p->pair;
}

/*
 * d is positive. With 2^(l - 1) < d <= 2^l, mul is 2^(31 + l) / d, rounded up: less than 2^32. For n below
 * 2^31 this adds less than 1 / d to n / d, which is at least that far below the next whole number.
 */
static inline struct gemm_fixed_divisor gemm_fixed_divisor(int32_t d)
{
	int32_t l = 0;

	while (((int64_t)1 << l) < d)
		l++;
	return (struct gemm_fixed_divisor){ (uint32_t)((((uint64_t)1 << (31 + l)) + d - 1) / d), 31 + l };
}

GEMM_FIXED_PLAN int32_t gemm_fixed_divide(int32_t n, struct gemm_fixed_divisor by)
{
	return (int32_t)((uint64_t)(uint32_t)n * by.mul >> by.shift);
}

/*
 * Finds unit `at`: its place along m and along n. The units of TOGETHER rows of a follow each other, so that
 * clusters that run at the same time share both rows of b and rows of a in the L2.
 */
GEMM_FIXED_PLAN void gemm_fixed_unit(const struct gemm_fixed_plan *p, int32_t at, int32_t *row, int32_t *col)
{
	const int32_t first = gemm_fixed_divide(at, p->by_units) * p->band;
	const bool last = p->rows - first < p->band;
	const int32_t high = last ? p->rows - first : p->band;

	at -= first * p->cols;
	*col = gemm_fixed_divide(at, last ? p->by_high[1] : p->by_high[0]);
	*row = first + at - *col * high;
}

/* The call as far as the plan needs it; sms: those that it may use. */
struct gemm_fixed_shape {
	int32_t m, n, k, sms;
	/* Widths are multiples of `multiple`, and its half, a quarter and so on if not below `least`. */
	int32_t multiple, least;
	int32_t batch;			/* rows of b that a product has at most: 256, 128 in gemm_fp8 */
	int32_t pairs;			/* clusters of two CTAs that the device holds at once */
};

/* Returns the clocks that a warpgroup takes for a stage if no other one multiplies, measured on an H200. */
static inline int64_t gemm_fixed_lone_stage(int32_t width, int32_t batch)
{
	const int64_t fetch = width * GEMM_FIXED_STAGE_K * 2 / 40;
	int64_t clocks = 225 + width / 2;

	if (batch < GEMM_FIXED_MOST_WIDTH)	/* gemm_fp8, which has sums to add */
		clocks = width <= GEMM_FIXED_GROUP_ROWS ? 150 + 8 * width / 5 : 100 + 16 * width / 5;
	else if (clocks < 2 * width)
		clocks = 2 * width;
	return clocks > fetch ? clocks : fetch;
}

/*
 * Estimates the clocks of a call with up to 64 rows of a. An H200 delivers b at 2560 bytes a clock; a quarter
 * of the shorter of work and memory is not overlapped by the longer. If at most half of the SMs have a tile,
 * the next kernel begins to fetch its b on the others.
 */
static inline int64_t gemm_fixed_few_clocks(const struct gemm_fixed_plan *p, const struct gemm_fixed_shape *s)
{
	const int64_t rounds = gemm_fixed_div_up(p->cols, p->clusters);
	const int64_t work = rounds * p->stages * gemm_fixed_lone_stage(p->width, s->batch) +
			     (rounds - 1) * 4 * p->width;
	const int64_t memory = (int64_t)p->cols * p->width * p->stages * GEMM_FIXED_STAGE_K * 2 / 2560;
	const int64_t both = work > memory ? work + memory / 4 : memory + work / 4;

	return both + 12 * p->width + (2 * p->clusters > s->sms ? 9500 : 5200);
}

/*
 * Estimates the clocks of the call. A stage takes as long as the slowest of three activities. Multiplying: an
 * SM multiplies 64 x 64 x width in 2 width clocks. Fetching: 48 bytes a clock, 40 in a pair, which reads each
 * row of b once. Shared memory, 128 bytes a clock: the stage is written, then each warpgroup reads its rows
 * of a once for each batch, and all rows of b. An eighth of the fetching time is always added for its energy,
 * because the power limit sets the clock. The beginning of the first tile and the end of each tile are not
 * overlapped. NOTES.md compares this with times.
 */
static inline int64_t gemm_fixed_clocks(const struct gemm_fixed_plan *p, const struct gemm_fixed_shape *s)
{
	const int32_t tile_rows = GEMM_FIXED_GROUP_ROWS * p->groups;
	const int32_t fetched = (s->m < tile_rows ? s->m : tile_rows) + p->width / p->pair;
	const int32_t batches = gemm_fixed_div_up(p->width, s->batch);
	const int64_t multiply = 2 * p->groups * p->width;
	const int64_t fetch = fetched * GEMM_FIXED_STAGE_K * 2 / (p->pair == 1 ? 48 : 40);
	const int64_t shared = tile_rows * (1 + batches) + (1 + p->groups) * p->width;
	const int64_t longer = multiply > fetch ? multiply : fetch;
	const int64_t stage = (longer > shared ? longer : shared) + fetch / 8;
	const int64_t rounds = gemm_fixed_div_up((int64_t)p->rows * p->cols, p->clusters);

	return p->groups == 1 ? gemm_fixed_few_clocks(p, s) :
	       1500 + rounds * (p->stages * stage + 4 * p->width);
}

/* Completes a plan whose width, groups and pair are set. Returns the units, or 0 if they are too many. */
static inline int32_t gemm_fixed_complete(struct gemm_fixed_plan *p, const struct gemm_fixed_shape *s)
{
	const int32_t ring = GEMM_FIXED_DATA_BYTES - p->groups * GEMM_FIXED_STAGED_BYTES;
	const int32_t most = p->pair == 1 ? s->sms : s->sms / 2 < s->pairs ? s->sms / 2 : s->pairs;
	const int32_t band = GEMM_FIXED_TOGETHER / gemm_fixed_unit_rows(p);
	int32_t slots;
	int64_t units;

	p->rows_a = p->groups > 1 ? GEMM_FIXED_GROUP_ROWS * p->groups : gemm_fixed_div_up(s->m, 8) * 8;
	slots = ring / gemm_fixed_stage_bytes(p);
	p->slots = slots < GEMM_FIXED_MAX_SLOTS ? slots : GEMM_FIXED_MAX_SLOTS;
	p->stages = gemm_fixed_div_up(s->k, GEMM_FIXED_STAGE_K);
	p->rows = gemm_fixed_div_up(s->m, gemm_fixed_unit_rows(p));
	p->cols = gemm_fixed_div_up(s->n, p->width);
	p->band = band < p->rows ? band : p->rows;
	units = (int64_t)p->rows * p->cols;
	p->clusters = units < most ? (int32_t)units : most;
	if (!p->clusters || units > 0x7fffffff - 0x10000)
		return 0;
	p->by_units = gemm_fixed_divisor(p->band * p->cols);
	p->by_high[0] = gemm_fixed_divisor(p->band);
	p->by_high[1] = gemm_fixed_divisor(p->rows % p->band ? p->rows % p->band : p->band);
	return (int32_t)units;
}

/* Returns whether tiles of up to 64 rows may have this width. Others below 128 were slower than 64. */
static inline bool gemm_fixed_few_width(int32_t width)
{
	return width >= 2 * GEMM_FIXED_GROUP_ROWS || GEMM_FIXED_GROUP_ROWS % width == 0;
}

/*
 * Chooses the width and whether CTAs run in pairs: the least clocks, then the greater width. The CTAs of a
 * pair wait for each other, so pairs only pay if clusters have more than two tiles (NOTES.md). `clusters` is
 * 0 if the product has too many tiles.
 */
static inline struct gemm_fixed_plan gemm_fixed_choose(const struct gemm_fixed_shape *s)
{
	struct gemm_fixed_plan best = { 0 };
	int64_t least = 0;

	for (int32_t pair = s->m > 2 * GEMM_FIXED_GROUP_ROWS ? 2 : 1; pair; pair--)
		for (int32_t width = GEMM_FIXED_MOST_WIDTH; width >= s->least;
		     width -= width > s->multiple ? s->multiple : width / 2) {
			struct gemm_fixed_plan p = { .width = width, .pair = pair };
			int64_t clocks;

			p.groups = s->m > GEMM_FIXED_GROUP_ROWS ? 2 : 1;
			if ((p.groups == 1 && !gemm_fixed_few_width(width)) || !gemm_fixed_complete(&p, s))
				continue;
			if (pair == 2 && (int64_t)p.rows * p.cols <= 2 * p.clusters)
				continue;
			clocks = gemm_fixed_clocks(&p, s);
			if (least && clocks >= least)
				continue;
			least = clocks;
			best = p;
		}
	return best;
}

#endif
