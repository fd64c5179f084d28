/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_fp8_parts - divides the columns of a product into one launch or two
 *
 * All tiles of a launch have one width, and tiles come in rounds: one for each cluster. If the last round has
 * few tiles, most SMs wait for it. Then one launch of whole rounds takes the first columns, and a second one
 * with another width the others.
 */
#ifndef CAIRN_GEMM_FP8_PARTS_H
#define CAIRN_GEMM_FP8_PARTS_H

#include "primitives/gemm/fixed/gemm_fixed_plan.h"
#include "primitives/rows/quant_fp8w.h"

#define GEMM_FP8_BETWEEN	3000	/* clocks from the end of a launch to the first product of the next */

struct gemm_fp8_parts {
	int32_t n[2];			/* columns of each launch; n[1] is 0 if there is only one */
	struct gemm_fixed_plan plan[2];
};

/*
 * Returns the columns of the most whole rounds, less `fewer`, of tiles of p: whole tiles and whole blocks of
 * scales. 0: no part of the product, or too few rounds for pairs (as in gemm_fixed_choose()).
 */
static inline int32_t gemm_fp8_first_columns(const struct gemm_fixed_plan *p,
					     const struct gemm_fixed_shape *s, int fewer)
{
	const int64_t rounds = (int64_t)p->rows * p->cols / p->clusters - fewer;
	const int32_t step = p->width % CAIRN_FP8_BLOCK ? 2 * p->width : p->width;
	const int64_t n = rounds * p->clusters / p->rows * p->width / step * step;

	return rounds < (p->pair == 2 ? 3 : 1) || n >= s->n ? 0 : (int32_t)n;
}

/*
 * Divides a product into the most whole rounds of tiles of this width, less `fewer`, and the rest. Returns
 * the clocks that gemm_fixed_clocks() estimates for both, or 0 if this is no division.
 */
static inline int64_t gemm_fp8_divide(struct gemm_fp8_parts *p, const struct gemm_fixed_shape *s, int width,
				      int pair, int fewer)
{
	struct gemm_fixed_shape part = *s;
	int64_t first;

	*p = (struct gemm_fp8_parts){ .plan = { { .width = width, .pair = pair } } };
	p->plan[0].groups = s->m > GEMM_FIXED_GROUP_ROWS ? 2 : 1;
	if (!gemm_fixed_complete(&p->plan[0], s))
		return 0;
	part.n = p->n[0] = gemm_fp8_first_columns(&p->plan[0], s, fewer);
	if (!part.n || !gemm_fixed_complete(&p->plan[0], &part))
		return 0;
	first = gemm_fixed_clocks(&p->plan[0], &part);
	part.n = p->n[1] = s->n - p->n[0];
	p->plan[1] = gemm_fixed_choose(&part);
	return first + GEMM_FP8_BETWEEN + gemm_fixed_clocks(&p->plan[1], &part);
}

/*
 * Chooses one launch, or above 64 rows of a two if they are estimated to take a thirty-second less time.
 * plan[0].clusters is 0 if the product has too many tiles.
 */
static inline struct gemm_fp8_parts gemm_fp8_choose_parts(const struct gemm_fixed_shape *s)
{
	struct gemm_fp8_parts best = { .n = { s->n }, .plan = { gemm_fixed_choose(s) } };
	int64_t least;

	if (!best.plan[0].clusters || s->m <= GEMM_FIXED_GROUP_ROWS)
		return best;
	least = gemm_fixed_clocks(&best.plan[0], s) * 31 / 32;
	for (int pair = 1; pair <= 2; pair++)
		for (int width = CAIRN_FP8_BLOCK; width <= GEMM_FIXED_MOST_WIDTH; width += s->multiple)
			for (int fewer = 0; fewer < 2; fewer++) {
				struct gemm_fp8_parts p;
				const int64_t clocks = gemm_fp8_divide(&p, s, width, pair, fewer);

				if (!clocks || clocks >= least)
					continue;
				least = clocks;
				best = p;
			}
	return best;
}

#endif
