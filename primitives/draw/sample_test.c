// SPDX-License-Identifier: Apache-2.0
/*
 * sample_test - cases of sample.h
 *
 * Distributions of logits, in the order of enum dist: normal, of standard deviation 1 and 5; nine in ten
 * masked; all but a few masked; a dozen values, which gives ties; one in three NaN; all equal; one in a
 * thousand far above the rest; falling with the index; far from zero and close together; from the smallest to
 * the largest magnitudes of fp32; only -INFINITY and NaN; near 1e-30; +INFINITY and the largest finite float,
 * which count as equal; all equal except a few larger ones at the end; one large logit, the first, and all
 * others far below, drawn at the ends of the interval [0, 1).
 */
#include "conformance/harness.h"
#include "conformance/suite/draw.h"
#include "primitives/draw/sample_test.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>

enum dist { NORMAL1, NORMAL5, MASKED, FEW, TIES, HOLES, EQUAL, PEAK, SLOPE, NARROW, HUGE_RANGE,
	    NOTHING, NUM_DISTS, TINY = NUM_DISTS, CLIPPED, STEP, FIRST };
static const char *const dist_names[] = { "normal1", "normal5", "masked", "few", "ties", "holes", "equal",
					  "peak", "slope", "narrow", "huge", "nothing", "tiny",
					  "clipped", "step", "first" };

struct setting {
	const char *name;
	float temperature;
	int32_t top_k;
	float top_p, min_p;
};

enum {
	PLAIN, TOPK10, TOPP50, MINP10, TOPK50_TOPP90, ALL, GREEDY, MIXED, TOPK500_TOPP10, COLD, HOT_MINP5,
	TOPP90, COLDEST, SUBNORMAL, HOTTEST, TOPK70000, TOPP0, TOPP9999, MINP0,
};

static const struct setting settings[] = {
	[PLAIN] = { "plain", .temperature = 1, .top_p = 1 },
	[TOPK10] = { "topk10", .temperature = 1, .top_k = 10, .top_p = 1 },
	[TOPP50] = { "topp50", .temperature = 1, .top_p = 0.5f },
	[MINP10] = { "minp10", .temperature = 1, .top_p = 1, .min_p = 0.1f },
	[TOPK50_TOPP90] = { "topk50_topp90", .temperature = 0.8f, .top_k = 50, .top_p = 0.9f },
	[ALL] = { "all", .temperature = 1.3f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f },
	[GREEDY] = { "greedy", .temperature = 0, .top_k = 7, .top_p = 0.5f, .min_p = 0.5f },
	/* setup() gives every row its own values */
	[MIXED] = { "mixed", .temperature = 1, .top_k = -1, .top_p = 0 },
	[TOPK500_TOPP10] = { "topk500_topp10", .temperature = 1, .top_k = 500, .top_p = 0.1f },
	[COLD] = { "cold", .temperature = 0.05f, .top_p = 0.9f },
	[HOT_MINP5] = { "hot_minp5", .temperature = 3, .top_p = 0.99f, .min_p = 0.05f },
	[TOPP90] = { "topp90", .temperature = 1, .top_p = 0.9f },
	[TOPK70000] = { "topk70000", .temperature = 1, .top_k = 70000, .top_p = 1 },
	[TOPP0] = { "topp0", .temperature = 1, .top_p = 1e-6f },
	[TOPP9999] = { "topp9999", .temperature = 1, .top_p = 0.9999f },
	[MINP0] = { "minp0", .temperature = 1, .top_p = 1, .min_p = 1e-4f },
	[HOTTEST] = { "hottest", .temperature = 1e10f, .top_p = 0.9f },
	[COLDEST] = { "coldest", .temperature = 1e-30f, .top_k = -3, .top_p = 0.9f },
	[SUBNORMAL] = { "subnormal", .temperature = 1e-40f, .top_p = 1 },	/* its inverse is infinite */
};

#define FIELD(f)	offsetof(struct cairn_sample_args, f)

struct shape {
	int32_t rows, vocab, dist, setting, frequency, bench, far;
};

#define NUM_SMALL (2 * NUM_DISTS * 8)		/* vocabularies 111 and 7, the first eight settings */
#define NUM_MEDIUM (NUM_DISTS * 8)		/* 32000 */

static const struct shape singles[] = {
	{ .rows = 19, .vocab = 1, .dist = NORMAL1, .setting = MIXED },
	{ .rows = 3, .vocab = 1, .dist = NOTHING, .setting = PLAIN },
	{ .rows = 0, .vocab = 111, .dist = NORMAL1, .setting = PLAIN },
	{ .rows = 4096, .vocab = 111, .dist = NORMAL1, .setting = PLAIN, .frequency = 1 },
	{ .rows = 4096, .vocab = 64, .dist = NORMAL1, .setting = TOPP90, .frequency = 1 },
	{ .rows = 4096, .vocab = 33, .dist = TIES, .setting = TOPK10, .frequency = 1 },
	{ .rows = 4096, .vocab = 500, .dist = NORMAL1, .setting = ALL, .frequency = 1 },
	{ .rows = 2, .vocab = 128256, .dist = NORMAL1, .setting = PLAIN },
	{ .rows = 2, .vocab = 128256, .dist = NORMAL1, .setting = TOPK500_TOPP10 },
	{ .rows = 2, .vocab = 128256, .dist = NORMAL5, .setting = TOPP50 },
	{ .rows = 2, .vocab = 128256, .dist = NORMAL1, .setting = TOPP90 },
	{ .rows = 2, .vocab = 128256, .dist = TIES, .setting = TOPK50_TOPP90 },
	{ .rows = 2, .vocab = 128256, .dist = EQUAL, .setting = TOPP50 },
	{ .rows = 3, .vocab = 128256, .dist = HOLES, .setting = MIXED },
	{ .rows = 2, .vocab = 128256, .dist = NARROW, .setting = TOPP90 },
	{ .rows = 2, .vocab = 128256, .dist = MASKED, .setting = COLD },
	{ .rows = 2, .vocab = 128256, .dist = NORMAL1, .setting = HOT_MINP5 },
	{ .rows = 5, .vocab = 50257, .dist = NORMAL5, .setting = MIXED },
	{ .rows = 4, .vocab = 151936, .dist = NORMAL1, .setting = TOPK50_TOPP90 },
	{ .rows = 1, .vocab = 1048576, .dist = NORMAL1, .setting = TOPK50_TOPP90 },
	{ .rows = 1, .vocab = 1048576, .dist = NORMAL1, .setting = TOPP50 },
	{ .rows = 2, .vocab = 1048575, .dist = EQUAL, .setting = MIXED },
	{ .rows = 7, .vocab = 5003, .dist = NORMAL5, .setting = TOPK500_TOPP10 },
	{ .rows = 7, .vocab = 5003, .dist = NORMAL1, .setting = COLD },
	{ .rows = 7, .vocab = 5003, .dist = NARROW, .setting = HOT_MINP5 },
	{ .rows = 9, .vocab = 9001, .dist = TIES, .setting = MIXED },
	{ .rows = 33, .vocab = 16385, .dist = NORMAL1, .setting = MIXED },
	{ .rows = 989, .vocab = 32000, .dist = NORMAL1, .setting = MIXED },
	{ .rows = 99, .vocab = 128256, .dist = NORMAL1, .setting = MIXED },
	{ .rows = 99, .vocab = 128256, .dist = TIES, .setting = MIXED },
	{ .rows = 40, .vocab = 262144, .dist = NORMAL5, .setting = MIXED },
	{ .rows = 9, .vocab = 1000003, .dist = NORMAL5, .setting = MIXED },
	{ .rows = 2, .vocab = 128256, .dist = SLOPE, .setting = TOPK50_TOPP90 },
	{ .rows = 2, .vocab = 128256, .dist = FEW, .setting = TOPK50_TOPP90 },
	{ .rows = 2, .vocab = 128256, .dist = SLOPE, .setting = TOPP90 },
	{ .rows = 9, .vocab = 128256, .dist = SLOPE, .setting = MIXED },
	{ .rows = 9, .vocab = 1003, .dist = TINY, .setting = COLDEST },
	{ .rows = 9, .vocab = 1003, .dist = NORMAL1, .setting = COLDEST },
	{ .rows = 9, .vocab = 1003, .dist = NORMAL1, .setting = SUBNORMAL },
	{ .rows = 9, .vocab = 1003, .dist = TIES, .setting = SUBNORMAL },
	{ .rows = 9, .vocab = 1003, .dist = SLOPE, .setting = HOTTEST },
	{ .rows = 2, .vocab = 128256, .dist = NORMAL1, .setting = TOPK70000 },
	{ .rows = 4, .vocab = 65537, .dist = EQUAL, .setting = TOPP0 },
	{ .rows = 4, .vocab = 111, .dist = FIRST, .setting = TOPP9999 },
	{ .rows = 4, .vocab = 111, .dist = FIRST, .setting = MINP0 },
	{ .rows = 4, .vocab = 111, .dist = FIRST, .setting = PLAIN },
	{ .rows = 5, .vocab = 16385, .dist = STEP, .setting = TOPK10 },
	{ .rows = 5, .vocab = 16385, .dist = STEP, .setting = TOPK50_TOPP90 },
	{ .rows = 19, .vocab = 111, .dist = CLIPPED, .setting = GREEDY },
	{ .rows = 19, .vocab = 111, .dist = CLIPPED, .setting = MIXED },
	{ .rows = 1, .vocab = 128256, .dist = NORMAL1, .setting = TOPK50_TOPP90, .bench = 1 },
	{ .rows = 64, .vocab = 128256, .dist = NORMAL1, .setting = TOPK50_TOPP90, .bench = 1 },
	{ .rows = 256, .vocab = 128256, .dist = NORMAL1, .setting = TOPK50_TOPP90, .bench = 1 },
	{ .rows = 1, .vocab = 128256, .dist = NORMAL1, .setting = TOPP90, .bench = 1 },
	{ .rows = 64, .vocab = 128256, .dist = NORMAL1, .setting = TOPP90, .bench = 1 },
	{ .rows = 256, .vocab = 128256, .dist = NORMAL1, .setting = TOPP90, .bench = 1 },
	{ .rows = 64, .vocab = 128256, .dist = NORMAL1, .setting = PLAIN, .bench = 1 },
	{ .rows = 64, .vocab = 32000, .dist = NORMAL1, .setting = TOPK50_TOPP90, .bench = 1 },
	/* some rows begin past 2^31 logits */
	{ .rows = 16749, .vocab = 128256, .dist = NORMAL1, .setting = MIXED, .far = 1 },
};

#define FIRST_PAIR	(NUM_SMALL + NUM_MEDIUM + (int)ARRAY_SIZE(singles))
#define FIRST_SWEEP	(FIRST_PAIR + SAMPLE_PAIRS)
#define FIRST_ENDS	(FIRST_SWEEP + SAMPLE_SWEEPS)

/* large vocabularies in which one limit alone cuts through many tokens of similar weight */
static const struct shape lone_limits[] = {
	{ .rows = 3, .vocab = 151936, .dist = NORMAL1, .setting = MINP10 },
	{ .rows = 2, .vocab = 262147, .dist = NORMAL1, .setting = MINP10 },
	{ .rows = 2, .vocab = 200019, .dist = NORMAL1, .setting = TOPP50 },
	{ .rows = 2, .vocab = 131075, .dist = NORMAL1, .setting = TOPK70000 },
};

#define FIRST_LONE	(FIRST_ENDS + SAMPLE_ENDS)
#define NUM_CASES	(FIRST_LONE + (int)ARRAY_SIZE(lone_limits))

static const struct cairn_draw_axis axes[] = {
	CAIRN_DRAW_SIZE(struct shape, rows, 1, 3000, 1),
	CAIRN_DRAW_SIZE(struct shape, vocab, 1, 270000, 1),
	CAIRN_DRAW_ONE_OF(struct shape, dist, NORMAL1, NORMAL5, MASKED, FEW, TIES, HOLES, EQUAL, PEAK, SLOPE,
			  NARROW, HUGE_RANGE, NOTHING, TINY, CLIPPED, STEP, FIRST),
	CAIRN_DRAW_ONE_OF(struct shape, setting, MIXED, MIXED, MIXED, MIXED, MIXED, MIXED, TOPK10, TOPP50,
			  MINP10, PLAIN, TOPK50_TOPP90, ALL, GREEDY, TOPK500_TOPP10, COLD, HOT_MINP5,
			  COLDEST, SUBNORMAL, HOTTEST, TOPK70000, TOPP0, TOPP9999, MINP0),
};

static int allowed(void *shape, int room)
{
	const struct shape *s = shape;

	return (int64_t)s->rows * s->vocab <= room * 270000;
}

static const struct cairn_draw draws = {
	.shape_bytes = sizeof(struct shape), .axes = axes, .num_axes = ARRAY_SIZE(axes),
	.allowed = allowed, .many = 2800,
};

/* Returns the number of case i among the pair cases and those of SAMPLE_ENDS, or -1. */
static int pair_number(int i)
{
	return i >= FIRST_LONE ? -1 : i >= FIRST_ENDS ? SAMPLE_PAIRS + i - FIRST_ENDS :
	       i >= FIRST_PAIR && i < FIRST_SWEEP ? i - FIRST_PAIR : -1;
}

static struct shape shape_of(int i)
{
	struct shape s = { .setting = i % 8, .dist = i / 8 % NUM_DISTS };
	char name[96];

	if (i >= NUM_CASES) {
		cairn_draw_shape(&draws, i - NUM_CASES, &s);
		return s;
	}
	if (i >= FIRST_LONE)
		return lone_limits[i - FIRST_LONE];
	if (i >= FIRST_SWEEP && i < FIRST_ENDS)
		return (struct shape){ .rows = SAMPLE_SWEEP_ROWS, .vocab = SAMPLE_SWEEP_VOCAB };
	if (pair_number(i) >= 0) {
		s = (struct shape){ .rows = SAMPLE_ROWS };
		sample_pair_describe(pair_number(i), name, sizeof(name), &s.vocab);
		return s;
	}
	if (i >= NUM_SMALL + NUM_MEDIUM)
		return singles[i - NUM_SMALL - NUM_MEDIUM];
	s.vocab = i >= NUM_SMALL ? 32000 : i / 8 / NUM_DISTS ? 7 : 111;
	s.rows = i >= NUM_SMALL ? 3 : 37;
	return s;
}

static void describe(int i, struct cairn_case *c)
{
	struct shape s = shape_of(i);

	if (i >= FIRST_SWEEP && i < FIRST_ENDS)
		snprintf(c->name, sizeof(c->name), "every_%s", sample_sweep_name(i - FIRST_SWEEP));
	else if (pair_number(i) >= 0)
		sample_pair_describe(pair_number(i), c->name, sizeof(c->name), &s.vocab);
	else if (s.bench)
		snprintf(c->name, sizeof(c->name), "rows%d_vocab%d_%s", s.rows, s.vocab,
			 settings[s.setting].name);
	else
		snprintf(c->name, sizeof(c->name), "rows%d_vocab%d_%s_%s%s", s.rows, s.vocab,
			 dist_names[s.dist], settings[s.setting].name, s.frequency ? "_frequency" : "");
	c->device_only = (double)s.rows * s.vocab > 2.2e6 && !s.far;
	c->far = s.far;
	c->bench = s.bench;
	c->bytes = 4.0 * s.rows * s.vocab;
}

static float logit(struct cairn_op *op, int dist, float place, float normal)
{
	switch (dist) {
	case NORMAL5:
		return 5 * normal;
	case MASKED:
		return cairn_op_rand(op) % 10 ? -INFINITY : 2 * normal;
	case FEW:
		return place > 0.02f && cairn_op_rand(op) % 10000 ? -INFINITY : normal;
	case SLOPE:
		return 0.01f * normal - 12 * place;
	case TIES:
		return roundf(2 * normal) / 2;
	case HOLES:
		return cairn_op_rand(op) % 3 ? normal : NAN;
	case EQUAL:
		return -2.5f;
	case FIRST:
		return place > 0 ? -5 : 10;
	case STEP:
		return place > 0.9995f ? 0.25f * normal : -2.5f;
	case PEAK:
		return normal + (cairn_op_rand(op) % 1000 ? 0.0f : 12.0f);
	case NARROW:
		return 300 + 0.01f * normal;
	case HUGE_RANGE:
		return cairn_op_rand(op) % 3   ? 1e37f * normal
		       : cairn_op_rand(op) % 2 ? 1e-40f * normal
					       : INFINITY;
	case TINY:
		return 1e-30f * normal;
	case CLIPPED:
		return cairn_op_rand(op) % 5 ? normal : cairn_op_rand(op) % 3 ? FLT_MAX : INFINITY;
	case NOTHING:
		return cairn_op_rand(op) % 2 ? -INFINITY : NAN;
	}
	return normal;
}

/* Returns whether a row is judged; in a far case only some rows are. */
static int is_judged(const struct shape *s, int32_t row)
{
	int judged = !s->far;

	for (int i = 0; !judged && cairn_far_row(s->rows, i) >= 0; i++)
		judged = cairn_far_row(s->rows, i) == row;
	return judged;
}

static void setup(struct cairn_op *op)
{
	static const int32_t ks[] = { 0, 1, 10, 100, 500, 2000, 1 << 21, -1, -40 };
	static const float ps[] = { 1, 0.1f, 0.5f, 0.9f, 0.999f, 1e-6f, 1e-30f },
		ms[] = { 0, 0, 0.05f, 0.5f, 0.99f };
	static const float ts[] = { 1, 0.7f, 1e-4f, 2, 0 };
	/* with seed 42, u below 2^-26, and above 1 - 2^-26, where fp32 rounds it to 1 */
	static const uint64_t ends[] = { 26967075, 131931202, 85359727, 266562824 };
	struct shape s = shape_of(op->case_index);
	const struct setting *set = &settings[s.setting];
	struct cairn_sample_args *a = op->args;
	float *logits, *temperature, *top_p, *min_p;
	uint64_t *seed, *offset;
	int32_t *top_k;

#define PER_ROW(field, dtype) cairn_in(op, FIELD(field), dtype, s.rows)
	a->rows = s.rows;
	a->vocab = s.vocab;
	if (s.far) {
		cairn_out_rows(op, FIELD(out), CAIRN_I32, s.rows, 1);
		logits = cairn_in_rows(op, FIELD(logits), CAIRN_F32, s.rows, s.vocab, 1);
	} else {
		cairn_out(op, FIELD(out), CAIRN_I32, s.rows);
		logits = cairn_in(op, FIELD(logits), CAIRN_F32, (int64_t)s.rows * s.vocab);
	}
	cairn_shape(op, FIELD(out), { "row", s.rows });
	temperature = PER_ROW(temperature, CAIRN_F32);
	top_k = PER_ROW(top_k, CAIRN_I32);
	top_p = PER_ROW(top_p, CAIRN_F32);
	min_p = PER_ROW(min_p, CAIRN_F32);
	seed = PER_ROW(seed, CAIRN_I64);
	offset = PER_ROW(offset, CAIRN_I64);
#undef PER_ROW
	if (op->case_index >= FIRST_SWEEP && op->case_index < FIRST_ENDS) {
		sample_sweep_fill(op, op->case_index - FIRST_SWEEP);
		return;
	}
	if (pair_number(op->case_index) >= 0) {
		sample_pair_fill(op, pair_number(op->case_index));
		return;
	}
	if (!s.far)
		cairn_fill(op, logits, CAIRN_F32, (int64_t)s.rows * s.vocab, 1);
	for (int64_t k = 0; s.dist != NORMAL1 && k < (int64_t)s.rows * s.vocab; k++)
		logits[k] = logit(op, s.dist, (float)(k % s.vocab) / (float)s.vocab, logits[k]);
	for (int32_t i = 0; i < s.rows; i++) {
		int mixed = s.setting == MIXED;

		temperature[i] = mixed ? ts[cairn_op_range(op, 0, 4)] : set->temperature;
		top_k[i] = mixed ? ks[cairn_op_range(op, 0, 8)] : set->top_k;
		top_p[i] = mixed ? ps[cairn_op_range(op, 0, 6)] : set->top_p;
		min_p[i] = mixed ? ms[cairn_op_range(op, 0, 4)] : set->min_p;
		if (mixed && op->case_index >= NUM_CASES && cairn_op_range(op, 0, 1)) {
			top_k[i] = (1 << cairn_op_range(op, 0, 12)) + (int32_t)cairn_op_range(op, -1, 1);
			top_p[i] = (float)cairn_op_range(op, 1, 1000) / 1000;
		}
		/* in half of the drawn rows, one limit alone decides */
		if (mixed && op->case_index >= NUM_CASES && cairn_op_range(op, 0, 1)) {
			int which = (int)cairn_op_range(op, 0, 2);

			top_k[i] = which == 0 ? top_k[i] : 0;
			top_p[i] = which == 1 ? top_p[i] : 1;
			min_p[i] = which == 2 ? (float)cairn_op_range(op, 1, 500) / 1000 : 0;
		}
		seed[i] = s.frequency ? 42 : cairn_op_rand(op);
		offset[i] = s.frequency ? (uint64_t)i : i % 2 ? cairn_op_rand(op) : (uint64_t)i;
		if (s.dist == FIRST) {
			seed[i] = 42;
			offset[i] = ends[i % 4];
		} else if (i % 7 == 4 && !s.frequency) {
			seed[i] = 0;
		}
		if (s.frequency)	/* the same distribution in all rows */
			memcpy(logits + (int64_t)i * s.vocab, logits, s.vocab * sizeof(float));
		if (s.far && !is_judged(&s, i))		/* temperature 0 costs least */
			temperature[i] = 0;
	}
}

/*
 * Computes the probabilities of row 0 from their definition; unlike the reference, finds ranks by counting.
 */
static void probabilities(const struct cairn_sample_args *a, double *p)
{
	int32_t n = a->top_k[0] > 0 && a->top_k[0] < a->vocab ? a->top_k[0] : a->vocab, *order;
	double total = 0, above = 0, kept = 0;

	order = calloc(a->vocab, sizeof(*order));
	for (int32_t j = 0; order && j < a->vocab; j++) {
		int32_t rank = 0;

		for (int32_t i = 0; i < a->vocab; i++)
			rank += a->logits[i] > a->logits[j] || (a->logits[i] == a->logits[j] && i < j);
		order[rank] = j;
		p[j] = exp((double)a->logits[j] / a->temperature[0]);
	}
	for (int32_t k = 0; order && k < n; k++)
		total += p[order[k]];
	for (int32_t k = a->vocab - 1; order && k >= n; k--)
		p[order[k]] = 0;
	for (int32_t k = 0; order && k < n; k++) {
		double w = p[order[k]];

		if (above >= a->top_p[0] * total || w < a->min_p[0] * p[order[0]])
			p[order[k]] = 0;
		above += w;
		kept += p[order[k]];
	}
	for (int32_t j = 0; order && j < a->vocab; j++)
		p[j] /= kept;
	free(order);
}

/*
 * Returns 0 if these counts are plausible for n independent draws. By Bernstein's inequality,
 * |count - n p| <= L/3 + sqrt(L^2/9 + 2 n p (1-p) L) for each token, except with probability 2 e^-L; with
 * L = 22 + ln(2 vocab) some token of the vocabulary exceeds it once in three thousand million runs.
 */
static int check_frequency(const struct cairn_sample_args *a, const int32_t *count, int32_t n, char *why,
			   size_t len)
{
	const double l = 22 + log(2.0 * a->vocab);
	double *p = calloc(a->vocab, sizeof(*p));
	int32_t bad = 0;

	if (!p) {
		snprintf(why, len, "no memory to judge the frequencies");
		return 1;
	}
	probabilities(a, p);
	for (int32_t j = 0; j < a->vocab; j++) {
		double room = p[j] > 0 ? l / 3 + sqrt(l * l / 9 + 2 * n * p[j] * (1 - p[j]) * l) : 0;

		if (fabs(count[j] - n * p[j]) <= room)
			continue;
		if (!bad++)
			snprintf(why, len,
				 "token %d was drawn %d times of %d, expected %.1f, within %.1f", j,
				 count[j], n, n * p[j], room);
	}
	if (bad)
		snprintf(why + strlen(why), len - strlen(why), "; %d of %d tokens bad", bad, a->vocab);
	free(p);
	return bad != 0;
}

typedef int (*judge_row_fn)(const struct cairn_sample_args *args, int32_t row, int32_t token, char *why,
			    size_t why_len);

struct judged {
	const struct cairn_sample_args *a;
	uint8_t *bad;		/* [rows] */
	judge_row_fn judge_row;
};

static int is_bad_row(const void *arg, int64_t i, char *why, size_t len)
{
	const struct judged *j = arg;

	if (why && j->bad[i]) {
		snprintf(why, len, "not judged");	/* unless it says more: no memory */
		j->judge_row(j->a, (int32_t)i, j->a->out[i], why, len);
	}
	return j->bad[i];
}

/* Judges each row alone. */
static int judge_rows(const struct cairn_op *op, const void *got, judge_row_fn judge_row, char *why,
		      size_t len)
{
	const struct cairn_sample_args *a = got;
	const struct judged j = { a, malloc((size_t)a->rows + 1), judge_row };
	struct shape s = shape_of(op->case_index);
	int ret = 1;

	#pragma omp parallel for schedule(dynamic)
	for (int32_t i = 0; i < a->rows; i++) {
		char text[256];

		if (j.bad)
			j.bad[i] = is_judged(&s, i) &&
				   judge_row(a, i, a->out[i], text, sizeof(text)) != 0;
	}
	if (j.bad)
		ret = cairn_judge_each(op, FIELD(out), is_bad_row, &j, why, len);
	else
		snprintf(why, len, "no memory to judge the rows");
	free(j.bad);
	return ret;
}

static int peer_judge(const struct cairn_op *op, const void *got, char *why, size_t len)
{
	return judge_rows(op, got, cairn_sample_judge_kept, why, len);
}

static int judge(const struct cairn_op *op, const void *got, char *why, size_t len)
{
	const struct cairn_sample_args *a = got;
	struct shape s = shape_of(op->case_index);
	int ret = judge_rows(op, got, cairn_sample_judge, why, len);
	int32_t *count;

	if (ret || !s.frequency)
		return ret;
	count = calloc(a->vocab, sizeof(*count));
	for (int32_t i = 0; count && i < a->rows; i++)
		count[a->out[i]]++;
	ret = !count || check_frequency(a, count, a->rows, why, len);
	free(count);
	return ret;
}

static const char *reject(void *args, int i, int *want)
{
	struct cairn_sample_args *a = args;

	*want = -EINVAL;
	switch (i) {
	case 0: a->size = 0; return "old_struct";
	case 1: a->out = NULL; return "null_out";
	case 2: a->logits = NULL; return "null_logits";
	case 3: a->temperature = NULL; return "null_temperature";
	case 4: a->top_k = NULL; return "null_top_k";
	case 5: a->top_p = NULL; return "null_top_p";
	case 6: a->min_p = NULL; return "null_min_p";
	case 7: a->seed = NULL; return "null_seed";
	case 8: a->offset = NULL; return "null_offset";
	case 9: a->rows = -1; return "negative_rows";
	case 10: a->vocab = 0; return "no_vocab";
	case 11: a->logits = (const float *)((const char *)a->logits + 4); return "misaligned_logits";
	case 12: a->vocab = (1 << 20) + 1; *want = -EOPNOTSUPP; return "vocab_over_1m";
	}
	return NULL;
}

/*
 * 100000 draws of one row must have the right frequencies, and the same draws at other places in a batch must
 * give the same tokens.
 */
static void hundred_thousand_draws(struct cairn_test *t)
{
	enum { ROWS = 1000, VOCAB = 64, BATCHES = 100 };
	static float logits[ROWS * VOCAB] __attribute__((aligned(16))), temperature[ROWS], top_p[ROWS],
		min_p[ROWS];
	static int32_t out[ROWS], first[ROWS], top_k[ROWS], count[VOCAB];
	static uint64_t seed[ROWS], offset[ROWS];
	struct cairn_sample_args a = { .size = sizeof(a),
				       .out = out,
				       .logits = logits,
				       .temperature = temperature,
				       .top_k = top_k,
				       .top_p = top_p,
				       .min_p = min_p,
				       .seed = seed,
				       .offset = offset,
				       .rows = ROWS,
				       .vocab = VOCAB };
	char why[256] = "";

	memset(count, 0, sizeof(count));
	for (int j = 0; j < VOCAB; j++)
		logits[j] = (float)(cairn_rand(t) % 1000) / 200;
	for (int i = 0; i < ROWS; i++) {
		memcpy(logits + i * VOCAB, logits, VOCAB * sizeof(float));
		temperature[i] = 1.1f;
		top_k[i] = 50;
		top_p[i] = 0.95f;
		min_p[i] = 0.02f;
		seed[i] = 7;
	}
	for (int b = 0; b < BATCHES; b++) {
		for (int i = 0; i < ROWS; i++)
			offset[i] = (uint64_t)b * ROWS + (uint64_t)i;
		EXPECT(t, cairn_sample_cpu(&a, NULL) == 0);
		for (int i = 0; i < ROWS; i++) {
			if (!EXPECT(t, out[i] >= 0 && out[i] < VOCAB))
				return;
			count[out[i]]++;
		}
	}
	if (!EXPECT(t, !check_frequency(&a, count, ROWS * BATCHES, why, sizeof(why))))
		cairn_note(t, "%s", why);
	memcpy(first, out, sizeof(out));
	for (int i = 0; i < ROWS; i++)
		offset[i] = (uint64_t)BATCHES * ROWS - 1 - (uint64_t)i;
	EXPECT(t, cairn_sample_cpu(&a, NULL) == 0);
	for (int i = 0; i < ROWS; i++)
		EXPECT(t, out[i] == first[ROWS - 1 - i]);
}

/* Another library's token passes if it is a kept one, whatever the seed, and fails if it is not. */
static void kept_tokens(struct cairn_test *t)
{
	enum { VOCAB = 8 };
	float logits[VOCAB] __attribute__((aligned(16))), temperature = 1, min_p = 0;
	static const struct { int32_t top_k; float top_p; int32_t kept; } rows[] = {
		{ 0, 1, VOCAB }, { 3, 1, 3 }, { 0, 0.5f, 1 }, { 0, 0.9f, 3 }, { 2, 0.9f, 2 },
	};
	uint64_t seed = 5, offset = 9;
	int32_t out;
	char why[256];

	for (int j = 0; j < VOCAB; j++)
		logits[j] = (float)j;
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		const struct cairn_sample_args a = {
			.size = sizeof(a), .out = &out, .logits = logits, .temperature = &temperature,
			.top_k = &rows[i].top_k, .top_p = &rows[i].top_p, .min_p = &min_p, .seed = &seed,
			.offset = &offset, .rows = 1, .vocab = VOCAB,
		};

		for (int32_t j = -1; j <= VOCAB; j++) {
			int kept = j < VOCAB && j >= VOCAB - rows[i].kept;

			EXPECT(t, cairn_sample_judge_kept(&a, 0, j, why, sizeof(why)) == !kept);
		}
	}
}

static const struct cairn_unit units[] = {
	{ "hundred_thousand_draws", hundred_thousand_draws }, { "kept_tokens", kept_tokens },
	{ "pairs_are_covered", sample_pairs_are_covered },
};

static int part(void *args, int i)
{
	struct cairn_sample_args *a = args;
	int32_t first;

	if (!cairn_part(a->rows, (int64_t)a->vocab * (int64_t)sizeof(float), 1, i, &first, &a->rows))
		return 0;
	a->out += first;
	a->logits += (int64_t)first * a->vocab;
	a->temperature += first;
	a->top_k += first;
	a->top_p += first;
	a->min_p += first;
	a->seed += first;
	a->offset += first;
	return 1;
}

const struct cairn_family cairn_sample_family = {
	.stage = "primitives", .name = "sample",
	.units = units, .num_units = ARRAY_SIZE(units),
	.op = offsetof(struct cairn_impl, sample),
	.workspace_op = offsetof(struct cairn_impl, sample_workspace),
	.args_size = sizeof(struct cairn_sample_args),
	.workspace_field = offsetof(struct cairn_sample_args, workspace),
	.num_cases = NUM_CASES, .draw = &draws,
	.part = part,
	.describe = describe, .setup = setup, .judge = judge, .peer_judge = peer_judge, .reject = reject,
	.cost_s = 10,
};
