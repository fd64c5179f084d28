// SPDX-License-Identifier: Apache-2.0
/*
 * sample_pairs_test - pair cases of sample.h: they combine any two values of temperature, top_k, top_p,
 * min_p, the distribution, the size and the contents of the next row; and sweeps, in which each row has
 * another value of one of the first four
 *
 * A wrong set of kept tokens usually shows only at its ends, so the test chooses the seeds. Rows draw, in
 * turn, their first kept token, their last one, one at a mark that a sum of low-precision weights would miss,
 * and an arbitrary one. Logits fall or rise slowly with the index, or are equal in runs, so that the tokens
 * at the ends are not too improbable.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "conformance/suite/pairs.h"
#include "primitives/draw/philox.h"
#include "primitives/draw/sample_ref.h"
#include "primitives/draw/sample_test.h"

enum { STAIRS, RUNS, HOLES, INFINITE, EQUAL, ZEROS, FEW, NUM_DISTS };
static const char *const dist_names[] = { "stairs", "runs", "holes", "infinite", "equal", "zeros", "few" };
static const float temperatures[] = { 1, 0, 0.7f, 1.5f }, top_ps[] = { 1, 0.9f, 0.45f, 1e-6f };
static const float min_ps[] = { 0, 0.04f, 0.6f };
static const int32_t top_ks[] = { 0, 1, 5, 22, 1 << 20 }, vocabs[] = { 3, 17, 64, 260 };
enum { TEMPERATURE, TOP_K, TOP_P, MIN_P, DIST, VOCAB, NAN_ROWS, NUM_FACTORS };
static struct cairn_pairs pairs = { .num_factors = NUM_FACTORS,
				    .levels = { 4, 5, 4, 3, NUM_DISTS, 4, 2 } };

/* vocabularies at the ends of tiles (ends.h), with the same other factors */
static const int32_t ends_vocabs[] = { 63, 65, 127, 129, 255, 257, 513, 1025 };
static struct cairn_pairs ends = { .num_factors = NUM_FACTORS, .levels = { 4, 5, 4, 3, NUM_DISTS, 8, 2 } };

static const int8_t *levels_of(int i)
{
	return i < SAMPLE_PAIRS ? cairn_pairs_row(&pairs, i) : cairn_pairs_row(&ends, i - SAMPLE_PAIRS);
}

void sample_pair_describe(int i, char *name, size_t len, int32_t *vocab)
{
	static const char *const t[] = { "", "_t0", "_t07", "_t15" };
	static const char *const k[] = { "", "_topk1", "_topk5", "_topk22", "_topk_large" };
	static const char *const p[] = { "", "_topp90", "_topp45", "_topp0" };
	static const char *const m[] = { "", "_minp4", "_minp60" };
	const int8_t *level = levels_of(i);
	const int is_pair = i < SAMPLE_PAIRS;

	*vocab = is_pair ? vocabs[level[VOCAB]] : ends_vocabs[level[VOCAB]];
	snprintf(name, len, "%s_vocab%d_%s%s%s%s%s%s", is_pair ? "pair" : "ends", *vocab,
		 dist_names[level[DIST]],
		 t[level[TEMPERATURE]], k[level[TOP_K]], p[level[TOP_P]], m[level[MIN_P]],
		 level[NAN_ROWS] ? "_nan_rows" : "");
}

/* Returns the nth largest logit. */
static float logit(struct cairn_op *op, int dist, int32_t nth)
{
	switch (dist) {
	case STAIRS:
		return 1 - 0.03125f * (float)nth;
	case RUNS:		/* runs of three, so that a limit falls within a run */
		return 1 - 0.125f * (float)(nth / 3);
	case HOLES:
		return cairn_op_rand(op) % 3 ? 2 - 0.0625f * (float)nth : NAN;
	case INFINITE:
		return nth < 2 ? INFINITY : nth % 5 ? -(float)nth : -INFINITY;
	case ZEROS:
		return nth % 2 ? 0.0f : -0.0f;
	case FEW:
		return nth < 6 ? -0.25f * (float)nth : -INFINITY;
	default:
		return -2.5f;
	}
}

static void fill_row(struct cairn_op *op, const int8_t *level, int32_t n, int32_t row, float *x)
{
	for (int32_t j = 0; j < n; j++) {
		x[j] = logit(op, level[DIST], row / 4 % 2 ? n - 1 - j : j);
		if (level[NAN_ROWS] && row % 4 == 2)
			x[j] = NAN;
	}
}

/* Draws seeds until the row's random number lies where the test wants it; gives up after 400. */
static void choose_seed(struct cairn_op *op, const struct cairn_sample_args *a, int32_t row)
{
	uint64_t *seed = (uint64_t *)a->seed, *offset = (uint64_t *)a->offset;
	const double near = 6e-5;	/* far above what the judge allows, below a sum of 11-bit weights */
	struct sample_row r;
	int32_t below, above;

	if (cairn_sample_open_row(a, row, &r))
		abort();
	for (int tries = 0; tries < 400; tries++) {
		seed[row] = cairn_op_rand(op);
		offset[row] = row % 2 ? cairn_op_rand(op) : (uint64_t)row;
		r.u = (double)cairn_philox_uniform(seed[row], offset[row]) * 0x1p-64;
		if (row % 4 == 3 || (row % 4 == 0 && r.u > 1 - 0x1p-8) || (row % 4 == 1 && r.u < 0x1p-8))
			break;
		if (row % 4 != 2)
			continue;
		r.u -= near;
		below = cairn_sample_draw(a, &r);
		r.u += 2 * near;
		above = cairn_sample_draw(a, &r);
		if (below != above)
			break;
	}
	free(r.t);
}

void sample_pair_fill(struct cairn_op *op, int i)
{
	const int8_t *level = levels_of(i);
	const struct cairn_sample_args *a = op->args;

	for (int32_t row = 0; row < a->rows; row++) {
		fill_row(op, level, a->vocab, row, (float *)a->logits + (int64_t)row * a->vocab);
		((float *)a->temperature)[row] = temperatures[level[TEMPERATURE]];
		((int32_t *)a->top_k)[row] = top_ks[level[TOP_K]];
		((float *)a->top_p)[row] = top_ps[level[TOP_P]];
		((float *)a->min_p)[row] = min_ps[level[MIN_P]];
		choose_seed(op, a, row);
	}
}

void sample_pairs_are_covered(struct cairn_test *t)
{
	cairn_pairs_check(t, &pairs, SAMPLE_PAIRS);
	cairn_pairs_check(t, &ends, SAMPLE_ENDS);
}

/* ---- sweeps ---- */

enum { SWEEP_TOP_K, SWEEP_TOP_P, SWEEP_MIN_P, SWEEP_TEMPERATURE, SWEEP_TOP_K_TOP_P };

const char *sample_sweep_name(int i)
{
	static const char *const names[SAMPLE_SWEEPS] = { "top_k", "top_p", "min_p", "temperature",
							    "top_k_with_top_p" };

	return names[i];
}

/* Draws a seed with which the row draws the last token that it keeps, as logits fall with the index. */
static void draw_last(struct cairn_op *op, const struct cairn_sample_args *a, int32_t row)
{
	uint64_t *seed = (uint64_t *)a->seed, *offset = (uint64_t *)a->offset;

	offset[row] = (uint64_t)row;
	do
		seed[row] = cairn_op_rand(op);
	while (cairn_philox_uniform(seed[row], offset[row]) >> 54 != 1023);
}

void sample_sweep_fill(struct cairn_op *op, int i)
{
	const struct cairn_sample_args *a = op->args;

	for (int32_t row = 0; row < a->rows; row++) {
		const float at = (float)(row + 1) / (float)(a->rows + 1);

		for (int32_t j = 0; j < a->vocab; j++)
			((float *)a->logits)[(int64_t)row * a->vocab + j] = 2 - 0.0078125f * (float)j;
		((float *)a->temperature)[row] = i == SWEEP_TEMPERATURE ? exp2f(12 * at - 6) : 1;
		((int32_t *)a->top_k)[row] = i == SWEEP_TOP_K || i == SWEEP_TOP_K_TOP_P ? row + 1 : 0;
		((float *)a->top_p)[row] = i == SWEEP_TOP_P ? at : i == SWEEP_TOP_K_TOP_P ? 0.4f : 1;
		((float *)a->min_p)[row] = i == SWEEP_MIN_P ? at : 0;
		if (i != SWEEP_TEMPERATURE) {
			draw_last(op, a, row);
			continue;
		}
		((uint64_t *)a->seed)[row] = cairn_op_rand(op);
		((uint64_t *)a->offset)[row] = (uint64_t)row;
	}
}
