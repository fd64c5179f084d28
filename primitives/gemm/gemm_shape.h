/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_shape - how the tile kernels of gemm_fp8w and gemm_w4 divide a product among CTAs, for their launchers
 *
 * Both compute out^T = b a^T. A tile has some rows of b and `cols` rows of a; the CTAs of a cluster share
 * it, and each takes a part of its stages along k.
 */
#ifndef CAIRN_GEMM_SHAPE_H
#define CAIRN_GEMM_SHAPE_H

#include <stdint.h>

#include "primitives/base/error.h"
#include "primitives/base/launch.h"

#define STAGE_K		128
#define GROUP_ROWS	64		/* rows of b per warpgroup */
#define MAX_CLUSTER	8
#define MAX_RING	8
#define SMEM_LIMIT	(227 * 1024)

/* A product, and what the cost model knows about its kernel. */
struct gemm_shape {
	int m, n, k, cols;
	int most, least;		/* rows of b in a tile; halved from one to the other */
	int bits;			/* of an element of b */
	int clocks;			/* of 64 rows of b in a stage */
};

static inline int div_up(int64_t a, int64_t b)
{
	return (int)((a + b - 1) / b);
}

/* Returns how many clusters of `size` CTAs, one CTA per SM, are resident at once, or -errno. */
static inline int num_clusters(const void *kernel, const struct cairn_launch *launch, int size)
{
	struct cairn_launch l = *launch;

	l.cluster = size;
	l.grid[0] = (unsigned int)size;
	l.smem = SMEM_LIMIT;
	return cairn_max_active_clusters(kernel, &l);
}

/*
 * Chooses *rows_b, the rows of b in a tile, and *size, the number of CTAs that share a tile, by a cost
 * model in clocks, measured with gemm_fp8w on an H200. All CTAs together receive 3200 bytes per clock;
 * start and end of a CTA take 7000, the exchange of sums 1500 plus 300 per CTA and a part proportional to
 * the tile. sms: SMs that the call may use, or -errno
 */
static inline int pick_shape(const struct gemm_shape *s, const void *kernel,
			     const struct cairn_launch *launch, int sms, int *rows_b, int *size)
{
	const int stages = div_up(s->k, STAGE_K);
	int64_t best = INT64_MAX;

	if (sms < 0)
		return sms;
	for (int rows = s->most; rows >= s->least; rows /= 2) {
		const int64_t tiles = (int64_t)div_up(s->m, s->cols) * div_up(s->n, rows);
		const int64_t bytes = tiles * stages * (rows * s->bits / 8 + 2 * s->cols) * STAGE_K;

		for (int ctas = 1; ctas <= MAX_CLUSTER && ctas <= stages; ctas++) {
			int at_once = num_clusters(kernel, launch, ctas);
			int64_t cost, rounds;

			if (at_once < 0)
				return at_once;
			at_once = at_once < sms / ctas ? at_once : sms / ctas;
			if (!at_once)
				continue;
			rounds = div_up(tiles, at_once);
			cost = rounds * div_up(stages, ctas) * (rows / GROUP_ROWS) * s->clocks;
			if (cost < bytes / 3200)
				cost = bytes / 3200;
			cost += rounds * (7000 + (ctas > 1 ? 1500 + 300 * ctas + rows * s->cols / 16 : 0));
			if (cost < best) {
				best = cost;
				*rows_b = rows;
				*size = ctas;
			}
		}
	}
	return 0;
}

/* Returns how many stages of `bytes` bytes fit into shared memory beside `barriers` bytes. */
static inline int num_in_ring(int bytes, int barriers)
{
	const int ring = (SMEM_LIMIT - barriers) / bytes;

	return ring < MAX_RING ? ring : MAX_RING;
}

/*
 * Launches `tiles` tiles, each of a cluster of l->cluster CTAs: all at once, so that CTAs follow each other
 * on all SMs, or with a limit as many tiles as run at once on `sms` SMs. *first, the first tile of a
 * launch, is one of the parameters.
 */
static inline int launch_tiles(const void *kernel, struct cairn_launch *l, void **params, int *first,
			       int tiles, int sms)
{
	const int at_once = sms < cairn_num_sms() ? sms / l->cluster : tiles;

	for (*first = 0; *first < tiles; *first += at_once) {
		int num = tiles - *first < at_once ? tiles - *first : at_once;

		l->grid[0] = (unsigned int)(num * l->cluster);
		CAIRN_TRY(cairn_launch(kernel, l, params));
	}
	return 0;
}

#endif
