// SPDX-License-Identifier: Apache-2.0
/*
 * sample_cpu - the selection of sample_select.h, with one thread per row and without allocation
 *
 * Each step is a pass over the logits, which stay in the cache. There is one pass for the maximum; for top-k
 * and again for top-p, one of depth bins, one for the keys in the bin of the threshold, up to three of key
 * bins (few tokens get that far) and one for ties; then one for the total and one for the draw. Only passes
 * that weigh tokens compute exponentials.
 *
 * If top_k is small, the row is shortened first: at least k tokens reach the k-th largest of the maxima of
 * BLOCKS blocks, so tokens below it cannot be kept.
 */
#include "primitives/draw/sample.h"

#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "primitives/base/wide.h"
#include "primitives/draw/sample_select.h"

#define BLOCKS		1024
#define LIST		4096
#define SMALL_TOP_K	256
#define LANES		16

struct row {
	const float *logits;	/* the row, or short_logits */
	int32_t vocab;		/* number of logits */
	float short_logits[LIST];
	int32_t short_index[LIST];
	float max, slope, min_p;
	/* kept: keys above `key`, and keys equal to it up to index `last` */
	uint32_t key;
	int32_t last;
	uint64_t bins[SAMPLE_BINS];
};

static uint64_t weight(float depth)
{
	return (uint64_t)(exp2f(-depth) * SAMPLE_ONE + 0.5f);
}

/* Returns the depth of token j if it is alive and kept, else infinity. */
static float depth_of(const struct row *r, int32_t j)
{
	float clean = sample_clean(r->logits[j]);
	float depth = sample_depth(r->max, clean, r->slope);
	uint32_t key = sample_key(clean);

	return depth < SAMPLE_DEAD && (key > r->key || (key == r->key && j <= r->last)) ? depth : INFINITY;
}

/* Returns the bin in which the running sum reaches target; adds the bins before it to *above. */
static uint32_t crossing(const struct row *r, uint64_t target, uint64_t *above)
{
	uint32_t b = 0;

	while (*above + r->bins[b] < target)
		*above += r->bins[b++];
	return b;
}

/* Keeps the most probable tokens until their number reaches top_k, or (top_k 0) their weight top_p. */
static void narrow(struct row *r, uint64_t top_k, float top_p)
{
	uint64_t total = 0, target = top_k, above = 0, quota;
	uint32_t bin, lo = UINT32_MAX, hi = 0;

	memset(r->bins, 0, sizeof(r->bins));
	for (int32_t j = 0; j < r->vocab; j++) {
		float depth = depth_of(r, j);

		if (depth < SAMPLE_DEAD)
			r->bins[sample_bin(depth)] += top_k ? 1 : weight(depth);
	}
	for (int b = 0; b < SAMPLE_BINS; b++)
		total += r->bins[b];
	if (!top_k)
		target = sample_target(top_p, total);
	if (target >= total)
		return;
	bin = crossing(r, target, &above);
	for (int32_t j = 0; j < r->vocab; j++) {
		float depth = depth_of(r, j);
		uint32_t key;

		if (depth == INFINITY || sample_bin(depth) != bin)
			continue;
		key = sample_key(sample_clean(r->logits[j]));
		lo = key < lo ? key : lo;
		hi = key > hi ? key : hi;
	}
	while (lo < hi) {
		int shift = sample_shift(lo, hi);

		memset(r->bins, 0, sizeof(r->bins));
		for (int32_t j = 0; j < r->vocab; j++) {
			float depth = depth_of(r, j);
			uint32_t key = sample_key(sample_clean(r->logits[j]));

			if (depth < SAMPLE_DEAD && key >= lo && key <= hi)
				r->bins[(hi - key) >> shift] += top_k ? 1 : weight(depth);
		}
		hi -= crossing(r, target, &above) << shift;
		if (hi - lo >= 1u << shift)
			lo = hi - (1u << shift) + 1;
	}
	/* number of tokens equal to the threshold that are kept, at the lowest indices */
	quota = top_k ? 1 : weight(sample_depth(r->max, sample_unkey(lo), r->slope));
	quota = (target - above + quota - 1) / quota;
	for (int32_t j = 0; j < r->vocab; j++) {
		if (sample_key(sample_clean(r->logits[j])) != lo || depth_of(r, j) == INFINITY ||
		    quota-- != 1)
			continue;
		r->last = j;
		r->key = lo;
		return;
	}
}

/* Returns the weight of a token in the draw: 0 if it is dead, not kept, or below min_p. */
static uint64_t final_weight(const struct row *r, int32_t j)
{
	float depth = depth_of(r, j);

	return depth < SAMPLE_DEAD && (depth == 0 || exp2f(-depth) >= r->min_p) ? weight(depth) : 0;
}

static int by_falling_value(const void *pa, const void *pb)
{
	float a = *(const float *)pa, b = *(const float *)pb;

	return (a < b) - (a > b);
}

/* Returns the largest of n clean logits. The lanes let compilers vectorise without reordering. */
CAIRN_WIDE static float largest(const float *logits, int32_t n)
{
	float part[LANES], top = -INFINITY;

	for (int k = 0; k < LANES; k++)
		part[k] = -INFINITY;
	for (; n >= LANES; n -= LANES, logits += LANES)
		for (int k = 0; k < LANES; k++) {
			float clean = sample_clean(logits[k]);

			part[k] = clean > part[k] ? clean : part[k];
		}
	for (int32_t k = 0; k < n; k++) {
		float clean = sample_clean(logits[k]);

		part[k] = clean > part[k] ? clean : part[k];
	}
	for (int k = 0; k < LANES; k++)
		top = part[k] > top ? part[k] : top;
	return top;
}

static int32_t at_most(int32_t a, int32_t most)
{
	return a < most ? a : most;
}

/*
 * Replaces the row by the tokens that can be among the top_k, still in index order, so that ties resolve as
 * in the whole row. If there are more than LIST, returns 0 and leaves the row unchanged.
 */
static int shorten(struct row *r, int32_t top_k)
{
	int32_t len = (r->vocab + BLOCKS - 1) / BLOCKS, n = 0;
	float tops[BLOCKS], sorted[BLOCKS], bound;

	for (int32_t b = 0; b < BLOCKS; b++) {
		int32_t first = at_most(b * len, r->vocab);

		tops[b] = largest(r->logits + first, at_most(first + len, r->vocab) - first);
	}
	memcpy(sorted, tops, sizeof(sorted));
	qsort(sorted, BLOCKS, sizeof(*sorted), by_falling_value);
	bound = sorted[top_k - 1];
	for (int32_t b = 0; b < BLOCKS; b++) {
		if (!(tops[b] >= bound) || tops[b] == -INFINITY)
			continue;
		for (int32_t j = b * len; j < at_most((b + 1) * len, r->vocab); j++) {
			float clean = sample_clean(r->logits[j]);

			if (!(clean >= bound) || clean == -INFINITY)
				continue;
			if (n == LIST)
				return 0;
			r->short_logits[n] = clean;
			r->short_index[n++] = j;
		}
	}
	r->logits = r->short_logits;
	r->vocab = n;
	return 1;
}

static int32_t sample_row(struct row *r, float temperature, int32_t top_k, float top_p, uint64_t uniform)
{
	uint64_t total = 0, run = 0, mark;
	int shortened = 0;

	if (!(temperature > 0)) {
		top_k = 1;
		top_p = 1;
	}
	if (top_k > 0 && top_k <= SMALL_TOP_K && r->vocab > 2 * LIST)
		shortened = shorten(r, top_k);
	r->max = -INFINITY;
	for (int32_t j = 0; j < r->vocab; j++) {
		float clean = sample_clean(r->logits[j]);

		r->max = clean > r->max ? clean : r->max;
	}
	if (r->max == -INFINITY)
		return -1;
	r->key = 0;
	r->last = r->vocab;
	r->slope = sample_slope(temperature);
	if (top_k > 0 && top_k < r->vocab)
		narrow(r, top_k, 0);
	if (top_p < 1)
		narrow(r, 0, top_p);
	for (int32_t j = 0; j < r->vocab; j++)
		total += final_weight(r, j);
	mark = sample_mulhi(total, uniform);
	for (int32_t j = 0; j < r->vocab; j++) {
		run += final_weight(r, j);
		if (run > mark)
			return shortened ? r->short_index[j] : j;
	}
	return -1;	/* not reached: the maximum always has weight */
}

int cairn_sample_cpu(const struct cairn_sample_args *a, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_sample_check(a));
	#pragma omp parallel for schedule(dynamic) if (a->rows > 1)
	for (int32_t i = 0; i < a->rows; i++) {
		struct row r;

		r.logits = a->logits + (int64_t)i * a->vocab;
		r.vocab = a->vocab;
		r.min_p = a->min_p[i];
		a->out[i] = sample_row(&r, a->temperature[i], a->top_k[i], a->top_p[i],
				       cairn_philox_uniform(a->seed[i], a->offset[i]));
	}
	return 0;
}
