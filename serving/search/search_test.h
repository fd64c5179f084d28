/* SPDX-License-Identifier: Apache-2.0 */
/*
 * search_test - profiles and problems with known closed forms, for the tests of this folder
 *
 * Include conformance/harness.h first. Nothing here is measured: the profiles name the GPU "closed form".
 */
#ifndef CAIRN_SEARCH_TEST_H
#define CAIRN_SEARCH_TEST_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serving/search/search_sim.h"

/* Returns whether there is a solver; if not, the test is skipped. */
static inline int has_solver(struct cairn_test *t)
{
	if (system("cbc -quit >/dev/null 2>&1") == 0)
		return 1;
	cairn_skip(t, "no program cbc (package coinor-cbc)");
	return 0;
}

/*
 * Writes a profile of a dense model. Alone, an operation for m rows takes 2 us + m * ns_per_row, and
 * attention of n requests with c keys 5 us + n * c * 0.1 ns. Beside an operation bound by arithmetic that
 * runs at r, attention runs at 1 - r^2; there are pairs for r = 0.9, 0.7, 0.5 and 0.3 by queue, and for r =
 * 0.5 also by streams, where attention runs at half that.
 */
static const struct {
	const char *op;
	double ns_per_row;
} closed_ops[] = { { "qkv", 30 }, { "o", 20 }, { "gate_up", 110 }, { "down", 60 }, { "moe", 200 },
		   { "q", 25 }, { "kv_a", 5 }, { "q_a", 15 }, { "all_reduce", 20 } };

static inline double closed_ns(int op, int rows)
{
	return 2e3 + rows * closed_ops[op].ns_per_row;
}

#define CLOSED_TAIL	"\"impl\":\"none\",\"gpu\":\"closed form\",\"kernels\":\"0123456789abcdef\"}\n"

static inline void write_closed_pair(FILE *f, const char *other, const char *how, double r, double p,
				     double b_ns)
{
	double a_ns = closed_ns(2, 256);

	fprintf(f,
		"{\"v\":1,\"op\":\"interference\",\"case\":\"gate_up_m256__%s\",\"how\":\"%s\",\"sms_a\":%d,"
		"\"sms_b\":%d,\"alone_a_ns\":%.6f,\"alone_b_ns\":%.6f,\"pair_a_ns\":%.6f,\"pair_b_ns\":%.6f,"
		"\"r\":%.9f,\"p\":%.9f,\"gbps_b\":1000," CLOSED_TAIL, other, how, (int)(132 * r),
		132 - (int)(132 * r), a_ns, b_ns, a_ns / r, b_ns / p, r, p);
}

static inline void write_closed_profile(FILE *f, int most_rows)
{
	for (size_t i = 0; i < ARRAY_SIZE(closed_ops); i++)
		for (int m = 128; m <= most_rows; m += 128)
			fprintf(f, "{\"v\":1,\"op\":\"interference\",\"case\":\"%s_m%d\",\"how\":\"alone\","
				"\"sms_a\":132,\"alone_a_ns\":%.6f,\"tflops_a\":10," CLOSED_TAIL,
				closed_ops[i].op, m, closed_ns((int)i, m));
	for (int n = 32; n <= 256; n *= 2)
		for (int c = 256; c <= 1024; c *= 2)
			fprintf(f, "{\"v\":1,\"op\":\"interference\",\"case\":\"dec_b%d_kv%d\","
				"\"how\":\"alone\",\"sms_a\":132,\"alone_a_ns\":%.6f," CLOSED_TAIL,
				n, c, 5e3 + n * c * 0.1);
	for (int i = 9; i > 2; i -= 2) {
		write_closed_pair(f, "dec_b64_kv512", "queue", i * 0.1, 1 - i * i * 0.01, 8e3);
		write_closed_pair(f, "all_reduce_m256", "queue", i * 0.1, 1 - i * i * 0.01, 15e3);
	}
	write_closed_pair(f, "dec_b64_kv512", "streams", 0.5, 0.375, 8e3);
}

static inline void closed_profile(struct cairn_test *t, int most_rows, char *path, size_t len)
{
	FILE *f;

	snprintf(path, len, "%s/profile.jsonl", cairn_tmpdir(t));
	f = fopen(path, "w");
	if (!EXPECT(t, f))
		return;
	write_closed_profile(f, most_rows);
	EXPECT(t, fclose(f) == 0);
}

/*
 * A small problem: a chain of operations, the last of which leads to the first of the next layer. An
 * operation for b rows takes ms + per_tile * b / 128, and `step` more if b is no multiple of 256.
 */
enum { C = CAIRN_SEARCH_COMPUTE, M = CAIRN_SEARCH_MEMORY, N = CAIRN_SEARCH_NETWORK };
struct tiny_op {
	int kind;	/* enum cairn_search_kind */
	double ms, per_tile, step;
	int attention, whole;
};

struct tiny {
	const char *name;
	int rows, decode, num_ops, cache;	/* cache: the edge from operation 0 to 1 is one of keys */
	double base_ms, request_ms;		/* of attention */
	struct tiny_op ops[4];
};

static inline void tiny_problem(const struct tiny *tiny, struct cairn_search_problem *p)
{
	/* of both kinds: 0.3 of the GPU gives half the speed, 0.6 gives 0.9 */
	static const struct cairn_search_level levels[] = {
		{ 1, 1, CAIRN_SEARCH_ALONE, 132, 0 }, { 0.6, 0.9, CAIRN_SEARCH_QUEUE, 80, 52 },
		{ 0.3, 0.5, CAIRN_SEARCH_QUEUE, 40, 92 },
	};

	memset(p, 0, sizeof(*p));
	p->num_ops = p->num_edges = tiny->num_ops;
	p->num_layers = 8;
	p->pass = (struct cairn_search_pass){ tiny->rows, tiny->decode, 1024 };
	p->base_ms = tiny->base_ms;
	p->request_ms = tiny->request_ms;
	for (int b = 128; b < tiny->rows; b += 128)
		p->sizes[p->num_sizes++] = b;
	for (int o = 0; o < tiny->num_ops; o++) {
		const struct tiny_op *op = &tiny->ops[o];

		snprintf(p->ops[o].name, sizeof(p->ops[o].name), "op%d", o);
		p->ops[o].attention = op->attention;
		p->ops[o].whole = op->whole;
		p->kinds[o] = (enum cairn_search_kind)op->kind;
		p->whole_ms[o] = op->ms + op->per_tile * tiny->rows / 128;
		for (int i = 0; i < p->num_sizes; i++)
			p->ms[o][i] = op->ms + op->per_tile * p->sizes[i] / 128 +
				      (p->sizes[i] % 256 ? op->step : 0);
		p->edges[o] = (struct cairn_search_edge){ o, (o + 1) % tiny->num_ops, o + 1 == tiny->num_ops,
							CAIRN_SEARCH_DATA };
	}
	if (tiny->cache)
		p->edges[0].kind = CAIRN_SEARCH_CACHE;
	for (int kind = CAIRN_SEARCH_MEMORY; kind < CAIRN_NUM_SEARCH_KINDS; kind++) {
		memcpy(p->levels[kind], levels, sizeof(levels));
		p->num_levels[kind] = ARRAY_SIZE(levels);
		/* every second operation is a tenth slower than its share, the rest faster */
		for (size_t i = 1; i < ARRAY_SIZE(levels); i++)
			for (int o = 0; o < tiny->num_ops; o++)
				p->keeps[kind][i][o] = (1 - levels[i].r) * (o % 2 ? 1.1 : 0.9);
	}
	cairn_search_compute_levels(p);
}

static const struct cairn_search_limits tiny_limits = { 60, 1e-9, 0, NULL };

#endif
