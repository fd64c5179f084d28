// SPDX-License-Identifier: Apache-2.0
/*
 * cluster_reduce_test - cases of cluster_reduce.h
 *
 * EXACT has integers whose sums over all ranks need up to the 24 bits of fp32. The pair cases combine sizes,
 * algorithms, operators, types, lengths and numbers of clusters, calls and rounds. The cases ends_* do so for
 * lengths, and rows of softmax states, at the ends of tiles (ends.h).
 */
#include "conformance/suite/draw.h"
#include "conformance/suite/ends.h"
#include "conformance/suite/pairs.h"
#include "primitives/cluster/cluster_test.h"

#include <math.h>

struct row {
	int32_t size, clusters, calls, rounds;
	int32_t len, head_dim, dtype, op, algo;
	int bench, all, far;	/* all: with as many clusters as the device holds */
};

static const char *const op_names[] = { "sum", "max", "min", "softmax" };
static const int32_t algos[] = { CAIRN_CLUSTER_ONESHOT, CAIRN_CLUSTER_TWOSHOT, CAIRN_CLUSTER_RING,
				 CAIRN_CLUSTER_OFFCHIP, CAIRN_CLUSTER_TREE };

/* Every cluster size with every algorithm (TREE: only powers of two) and every operator. */
#define NUM_EVERY	((16 * 4 + 5) * 4)

static void every_row(int i, struct row *r)
{
	static const int32_t lens[] = { 1, 3, 7, 64, 100, 257, 1000 };
	static const int32_t shapes[][2] = { { 1, 64 }, { 3, 8 }, { 4, 128 }, { 1, 512 }, { 5, 24 },
					     { 128, 8 }, { 2, 256 } };
	int pair = i / 4, pick;

	r->op = i % 4;
	if (pair < 64) {
		r->size = 1 + pair / 4;
		r->algo = algos[pair % 4];
	} else {
		r->size = 1 << (pair - 64);
		r->algo = CAIRN_CLUSTER_TREE;
	}
	pick = r->size * 5 + r->algo * 3 + r->op;
	r->dtype = (r->size + r->algo + r->op) % 3;
	r->len = lens[pick % 7];
	if (r->op == CAIRN_CLUSTER_SOFTMAX) {
		r->head_dim = shapes[pick % 7][1];
		r->len = shapes[pick % 7][0] * r->head_dim;
	}
	r->clusters = 1 + pick % 2;
	r->calls = 1 + r->size % 3;
	r->rounds = 1 + r->algo % 2;
}

/* Lengths that do not divide evenly into granules and chunks. */
static const int32_t odd_sizes[] = { 3, 5, 7, 13 };
static const int32_t odd_lens[] = { 1, 64, 99, 4101, 16384 };
#define NUM_ODD		(4 * 4 * 5)

static void odd_row(int i, struct row *r)
{
	r->len = odd_lens[i % 5];
	r->algo = algos[i / 5 % 4];
	r->size = odd_sizes[i / 20];
	r->dtype = i % 3;
	r->calls = 2;
}

#define NUM_WAVES	(NUM_WAVE_SHAPES * 5)

static void waves_row(int i, struct row *r)
{
	r->size = wave_shapes[i / 5].size;
	r->clusters = wave_shapes[i / 5].clusters;
	r->calls = wave_shapes[i / 5].calls;
	r->rounds = wave_shapes[i / 5].rounds;
	r->algo = algos[i % 5];
	if (r->algo == CAIRN_CLUSTER_TREE && r->size == 6)
		r->algo = CAIRN_CLUSTER_AUTO;
	r->len = 36 + 64 * (i % 5);
	r->dtype = i % 3;
	r->op = i % 4;
	if (r->op == CAIRN_CLUSTER_SOFTMAX) {
		r->len = 160;
		r->head_dim = 40;
	}
}

/* Softmax states of the shapes that attention produces, { rows, head_dim }; rows are query heads. */
static const int32_t attention[][2] = { { 8, 128 }, { 128, 128 }, { 16, 512 } };
static const int32_t attention_sizes[] = { 2, 4, 5, 8, 16 };
#define NUM_ATTENTION	(3 * 5 * 5)

static void attention_row(int i, struct row *r)
{
	r->op = CAIRN_CLUSTER_SOFTMAX;
	r->algo = algos[i % 5];
	r->size = attention_sizes[i / 5 % 5];
	if (r->algo == CAIRN_CLUSTER_TREE && r->size == 5)
		r->algo = CAIRN_CLUSTER_AUTO;
	r->head_dim = attention[i / 25][1];
	r->len = r->head_dim * attention[i / 25][0];
	r->dtype = i % 3;
	r->calls = 2;
}

enum { F_SIZE, F_ALGO, F_OP, F_TYPE, F_LEN, F_CLUSTERS, F_CALLS, F_ROUNDS, NUM_FACTORS };
static const int32_t pair_sizes[] = { 2, 3, 5, 8, 12, 16 }, pair_lens[] = { 1, 8, 101, 260 };
static const int32_t pair_algos[] = { CAIRN_CLUSTER_AUTO, CAIRN_CLUSTER_ONESHOT, CAIRN_CLUSTER_TWOSHOT,
				      CAIRN_CLUSTER_RING, CAIRN_CLUSTER_OFFCHIP, CAIRN_CLUSTER_TREE };
/* SOFTMAX: { rows, head_dim } in place of the length */
static const int32_t pair_states[][2] = { { 1, 8 }, { 3, 24 }, { 7, 16 }, { 2, 136 } };

static int pair_forbidden(const int8_t *level)
{
	return level[F_ALGO] == 5 && level[F_SIZE] >= 0 && !cairn_cluster_is_pow2(pair_sizes[level[F_SIZE]]);
}

static struct cairn_pairs pairs = { .num_factors = NUM_FACTORS, .levels = { 6, 6, 4, 3, 4, 3, 3, 2 },
				    .forbidden = pair_forbidden };
#define NUM_PAIRS	34

static void pair_row(int i, struct row *r)
{
	const int8_t *level = cairn_pairs_row(&pairs, i);

	r->size = pair_sizes[level[F_SIZE]];
	r->algo = pair_algos[level[F_ALGO]];
	r->op = level[F_OP];
	r->dtype = level[F_TYPE];
	r->len = pair_lens[level[F_LEN]];
	if (r->op == CAIRN_CLUSTER_SOFTMAX) {
		r->head_dim = pair_states[level[F_LEN]][1];
		r->len = pair_states[level[F_LEN]][0] * r->head_dim;
	}
	r->clusters = 1 + level[F_CLUSTERS];
	r->calls = 1 + level[F_CALLS] * level[F_CALLS];
	r->rounds = 1 + 2 * level[F_ROUNDS];
}

static const int32_t bench_lens[] = { 64, 256, 1024, 4096, 8192, 16384 };
static const int32_t loaded_lens[] = { 64, 1024, 4096, 16384 };
static const int32_t loaded_algos[] = { CAIRN_CLUSTER_ONESHOT, CAIRN_CLUSTER_TWOSHOT, CAIRN_CLUSTER_OFFCHIP };
static const struct { int32_t len, head_dim, dtype, op, algo; } others[] = {
	/* len, head_dim, dtype, op, algo */
	{ 256, 0, CAIRN_F32, CAIRN_CLUSTER_SUM, CAIRN_CLUSTER_AUTO },
	{ 4096, 0, CAIRN_F32, CAIRN_CLUSTER_SUM, CAIRN_CLUSTER_AUTO },
	{ 128, 0, CAIRN_BF16, CAIRN_CLUSTER_SUM, CAIRN_CLUSTER_ONESHOT },
	{ 4096, 0, CAIRN_BF16, CAIRN_CLUSTER_SUM, CAIRN_CLUSTER_TWOSHOT },
	{ 64, 0, CAIRN_F32, CAIRN_CLUSTER_MAX, CAIRN_CLUSTER_ONESHOT },
	{ 128, 128, CAIRN_F32, CAIRN_CLUSTER_SOFTMAX, CAIRN_CLUSTER_ONESHOT },
	{ 1024, 128, CAIRN_F32, CAIRN_CLUSTER_SOFTMAX, CAIRN_CLUSTER_ONESHOT },
	{ 1024, 128, CAIRN_F32, CAIRN_CLUSTER_SOFTMAX, CAIRN_CLUSTER_TWOSHOT },
};
#define NUM_LATENCY	(4 * 6 * 5)
#define NUM_LOADED	(4 * 4 * 3)
#define NUM_OTHERS	(8 * 4)

static void bench_row(int i, struct row *r)
{
	r->bench = 1;
	if (i < NUM_LATENCY) {
		r->algo = algos[i % 5];
		r->len = bench_lens[i / 5 % 6];
		r->size = bench_sizes[i / 30];
	} else if (i < NUM_LATENCY + NUM_LOADED) {
		i -= NUM_LATENCY;
		r->all = 1;
		r->algo = loaded_algos[i % 3];
		r->len = loaded_lens[i / 3 % 4];
		r->size = bench_sizes[i / 12];
		r->clusters = bench_clusters(r->size);
	} else {
		i -= NUM_LATENCY + NUM_LOADED;
		r->size = bench_sizes[i / 8];
		r->len = others[i % 8].len;
		r->head_dim = others[i % 8].head_dim;
		r->dtype = others[i % 8].dtype;
		r->op = others[i % 8].op;
		r->algo = others[i % 8].algo;
	}
	r->rounds = bench_rounds(r->len);
}

enum { ENDS_LEN, ENDS_OP_TYPE, ENDS_SIZE, ENDS_ALGO, ENDS_SHAPE, NUM_ENDS_FACTORS };
/* SOFTMAX: { rows, head_dim } in place of the length */
static const int32_t ends_states[CAIRN_NUM_ENDS][2] = {
	{ 1, 8 }, { 17, 8 }, { 63, 8 }, { 65, 8 }, { 127, 8 }, { 129, 8 }, { 3, 72 }, { 2, 120 }, { 1, 136 },
	{ 33, 40 },
};

static int ends_forbidden(const int8_t *level)
{
	return level[ENDS_ALGO] == 5 && level[ENDS_SIZE] >= 0 &&
	       !cairn_cluster_is_pow2(ends_sizes[level[ENDS_SIZE]]);
}

static struct cairn_pairs ends = { .num_factors = NUM_ENDS_FACTORS, .levels = { CAIRN_NUM_ENDS, 12, 7, 6, 4 },
				   .forbidden = ends_forbidden };
#define NUM_ENDS	123

static void ends_row(int i, struct row *r)
{
	const int8_t *level = cairn_pairs_row(&ends, i);

	r->size = ends_sizes[level[ENDS_SIZE]];
	r->algo = pair_algos[level[ENDS_ALGO]];
	r->op = level[ENDS_OP_TYPE] % 4;
	r->dtype = level[ENDS_OP_TYPE] / 4;
	r->len = cairn_ends[level[ENDS_LEN]];
	if (r->op == CAIRN_CLUSTER_SOFTMAX) {
		r->head_dim = ends_states[level[ENDS_LEN]][1];
		r->len = ends_states[level[ENDS_LEN]][0] * r->head_dim;
	}
	r->clusters = ends_shapes[level[ENDS_SHAPE]].clusters;
	r->calls = ends_shapes[level[ENDS_SHAPE]].calls;
	r->rounds = ends_shapes[level[ENDS_SHAPE]].rounds;
}

/* More clusters than a device holds at a time, each with several calls. */
#define NUM_LATE	5

static void late_row(int i, struct row *r)
{
	r->size = 2;
	r->algo = algos[i];
	r->dtype = i % 3;
	r->len = 13;
	r->clusters = 300;
	r->calls = 4;
}

/* No clusters: the call does nothing and returns no error. */
static void none_row(int i, struct row *r)
{
	(void)i;
	r->size = 4;
	r->len = 64;
	r->clusters = 0;
}

/* Many calls with long rows, whose last granule has one value; and more clusters than 2^10. */
#define NUM_MORE	(3 * 5 + 1)

static void more_row(int i, struct row *r)
{
	r->size = i == 15 ? 2 : (int[]){ 2, 8, 16 }[i / 5];
	r->algo = algos[i % 5];
	r->len = i == 15 ? 8 : 8201;
	r->dtype = (i + 2) % 3;
	r->calls = i == 15 ? 1 : 4;
	r->clusters = i == 15 ? 1100 : 1;
}

/* Every cluster size, with enough calls that buffers and phases are reused. */
#define NUM_MANY	(16 * 4)

static void many_row(int i, struct row *r)
{
	r->size = 1 + i / 4;
	r->algo = algos[i % 4];
	r->op = (i + i / 4) % 3;
	r->dtype = i / 4 % 3;
	r->len = 9 + 3 * r->size;
	r->calls = 5;
}

/* Rows past 2^32 bytes and 2^31 elements; clusters of one rank, so that rows do not depend on each other. */
static void far_row(int i, struct row *r)
{
	(void)i;
	r->far = 1;
	r->size = 1;
	r->len = 16384;
	r->dtype = CAIRN_BF16;
	r->clusters = (1 << 17) + 4;
	r->algo = CAIRN_CLUSTER_ONESHOT;
}

static const struct { int num; void (*row)(int i, struct row *r); const char *prefix; } groups[] = {
	{ NUM_EVERY, every_row, "" }, { NUM_ODD, odd_row, "odd_" }, { NUM_WAVES, waves_row, "waves_" },
	{ NUM_ATTENTION, attention_row, "" }, { NUM_LATENCY + NUM_LOADED + NUM_OTHERS, bench_row, "" },
	{ NUM_PAIRS, pair_row, "pair_" }, { 1, none_row, "none_" }, { NUM_MORE, more_row, "more_" },
	{ 1, far_row, "far_" }, { NUM_MANY, many_row, "many_" }, { NUM_ENDS, ends_row, "ends_" },
	{ NUM_LATE, late_row, "late_" },
};
#define NUM_CASES (NUM_EVERY + NUM_ODD + NUM_WAVES + NUM_ATTENTION + NUM_LATENCY + NUM_LOADED + NUM_OTHERS + \
		   NUM_PAIRS + 1 + NUM_MORE + 1 + NUM_MANY + NUM_ENDS + NUM_LATE)

static const struct cairn_draw_axis axes[] = {
	CAIRN_DRAW_SIZE(struct row, size, 1, 16, 1),
	CAIRN_DRAW_SIZE(struct row, clusters, 1, 300, 1),
	CAIRN_DRAW_SIZE(struct row, calls, 1, 9, 1),
	CAIRN_DRAW_ONE_OF(struct row, rounds, 1, 1, 2, 3),
	CAIRN_DRAW_SIZE(struct row, len, 1, 16384, 1),
	CAIRN_DRAW_SIZE(struct row, head_dim, 8, 512, 8),
	CAIRN_DRAW_ONE_OF(struct row, op, CAIRN_CLUSTER_SUM, CAIRN_CLUSTER_MAX, CAIRN_CLUSTER_MIN,
			  CAIRN_CLUSTER_SOFTMAX, CAIRN_CLUSTER_SOFTMAX),
	CAIRN_DRAW_ONE_OF(struct row, dtype, CAIRN_F32, CAIRN_F16, CAIRN_BF16),
	CAIRN_DRAW_ONE_OF(struct row, algo, CAIRN_CLUSTER_AUTO, CAIRN_CLUSTER_ONESHOT, CAIRN_CLUSTER_TWOSHOT,
			  CAIRN_CLUSTER_RING, CAIRN_CLUSTER_OFFCHIP, CAIRN_CLUSTER_TREE),
};

/* SOFTMAX: the length is that of up to 128 rows. */
static int allowed(void *shape, int room)
{
	struct row *r = shape;

	if (r->op == CAIRN_CLUSTER_SOFTMAX)
		r->len = (1 + r->len % 128) * r->head_dim;
	else
		r->head_dim = 0;
	return (r->algo != CAIRN_CLUSTER_TREE || cairn_cluster_is_pow2(r->size)) && r->len <= 16384 &&
	       (int64_t)r->clusters * r->calls * r->size * r->len <= room * 60000;
}

static const struct cairn_draw draws = {
	.shape_bytes = sizeof(struct row), .axes = axes, .num_axes = ARRAY_SIZE(axes),
	.allowed = allowed, .many = 5000,
};

static const char *row_of(int i, struct row *r)
{
	int g = 0;

	if (i >= NUM_CASES) {
		cairn_draw_shape(&draws, i - NUM_CASES, r);
		return "";
	}
	while (i >= groups[g].num)
		i -= groups[g++].num;
	*r = (struct row) { .clusters = 1, .calls = 1, .rounds = 1, .dtype = CAIRN_F32,
			      .op = CAIRN_CLUSTER_SUM };
	groups[g].row(i, r);
	return groups[g].prefix;
}

/* Returns the bytes that all ranks send in one collective, including (m, l) of softmax states. */
static int64_t wire_bytes(const struct row *r)
{
	int partial = r->algo == CAIRN_CLUSTER_RING || r->algo == CAIRN_CLUSTER_TREE;
	int64_t bytes = (int64_t)r->len * (partial ? 4 : (int)cairn_dtype_bytes(r->dtype));
	int64_t ml = r->head_dim ? (int64_t)r->size * (r->size - 1) * (r->len / r->head_dim) * 8 : 0;
	int algo = r->algo;

	if (algo == CAIRN_CLUSTER_AUTO)
		algo = cairn_cluster_reduce_pick(r->size, (int)bytes);
	return cairn_cluster_reduce_bytes(algo, r->size, (int)((bytes + 15) / 16)) +
	       (algo == CAIRN_CLUSTER_OFFCHIP ? 0 : ml);
}

static void describe(int i, struct cairn_case *c)
{
	const char *prefix;
	struct row r;
	int n;

	prefix = row_of(i, &r);
	n = snprintf(c->name, sizeof(c->name), "%ssize%d_len%d_%s_%s_%s%s", prefix, r.size, r.len,
		     cairn_dtype_name(r.dtype), op_names[r.op], algo_names[r.algo], r.all ? "_all" : "");
	if (r.head_dim)
		n += snprintf(c->name + n, sizeof(c->name) - (size_t)n, "_rows%d", r.len / r.head_dim);
	if (!r.bench)
		n += snprintf(c->name + n, sizeof(c->name) - (size_t)n, "_x%d", r.clusters * r.calls);
	if (!strcmp(prefix, "pair_"))
		snprintf(c->name + n, sizeof(c->name) - (size_t)n, "_calls%d_rounds%d", r.calls, r.rounds);
	c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	if (!r.bench && r.clusters && !r.far)
		c->kinds |= CAIRN_KIND_BIT(CAIRN_KIND_EXACT);
	if (!r.bench && r.clusters && r.len <= 1024)
		c->kinds |= CAIRN_KIND_BIT(CAIRN_KIND_EXTREME);
	if (!r.bench && r.op == CAIRN_CLUSTER_SOFTMAX)
		c->kinds |= CAIRN_KIND_BIT(CAIRN_KIND_POISON);
	if (!strcmp(prefix, "ends_") || !strcmp(prefix, "late_"))
		c->kinds = CAIRN_KIND_BIT(r.op == CAIRN_CLUSTER_SOFTMAX ? CAIRN_KIND_NORMAL :
							   CAIRN_KIND_EXACT);
	c->far = r.far;
	c->bench = r.bench;	/* no bytes: the kernel measures itself and extra() reports it */
}

/*
 * Values of m: equal, far apart (so that weights are 0 and 1 and results are exact), -INFINITY for ranks
 * without keys, or the size of logits.
 */
static void fill_ml(struct cairn_op *op, float *ml, int64_t count)
{
	static const float extreme[] = { 0, -0.0f, 88, -88, 1e-6f, 3e38f, -3e38f, -INFINITY };

	for (int64_t i = 0; i < count; i++) {
		float l;

		cairn_fill(op, &l, CAIRN_F32, 1, 3);
		ml[2 * i] = l;
		ml[2 * i + 1] = 1 + fabsf(l) * (float)cairn_op_range(op, 1, 100);
		if (op->kind == CAIRN_KIND_EXACT) {
			ml[2 * i] = cairn_op_range(op, 0, 2) ? 2 : -3000;
			ml[2 * i + 1] = (float)cairn_op_range(op, 1, 1 << 20);
		} else if (op->kind == CAIRN_KIND_EXTREME) {
			ml[2 * i] = extreme[cairn_op_range(op, 0, ARRAY_SIZE(extreme) - 1)];
			ml[2 * i + 1] = 1 + (float)cairn_op_range(op, 0, 1000);
		}
		if (cairn_op_range(op, 0, 4) == 0) {
			ml[2 * i] = -INFINITY;
			ml[2 * i + 1] = 0;
		}
	}
}

/* Fills o and l of the ranks without keys with NaN: they must not enter the result. */
static void poison(const struct cairn_cluster_reduce_args *a, void *in, float *ml, int64_t states)
{
	for (int64_t i = 0; i < states; i++) {
		if (ml[2 * i] > -INFINITY)
			continue;
		ml[2 * i + 1] = NAN;
		cairn_fill_nan(in, a->dtype, i * a->head_dim, a->head_dim);
	}
}

/*
 * In every third row, half of the ranks have a weight of about 2^-121 and an o so large that they still
 * contribute to the result.
 */
static void fill_small_weights(const struct cairn_cluster_reduce_args *a, void *in, float *ml, int64_t states)
{
	int64_t rows = a->len / a->head_dim;

	for (int64_t i = 0; i < states; i++) {
		int small = i / rows % 2;

		if (i % rows % 3 != 1 || a->dtype == CAIRN_F16)
			continue;
		ml[2 * i] = small ? -84 : 0;
		for (int64_t k = i * a->head_dim; small && k < (i + 1) * a->head_dim; k++)
			cairn_store(in, a->dtype, k, cairn_load(in, a->dtype, k) * 0x1p118);
	}
}

/* Puts NaN and both infinities into elements of some of the ranks. */
static void fill_special(const struct row *r, void *in)
{
	static const double values[] = { NAN, INFINITY, -INFINITY, INFINITY };

	for (int64_t i = 0; i < 4 && i < r->len; i++) {
		int64_t rank = (i * 7 + 3) % r->size;

		cairn_store(in, r->dtype, rank * r->len + r->len - 1 - i, values[i]);
		cairn_store(in, r->dtype, (rank + 1) % r->size * r->len + r->len - 1 - i,
			    values[(i + i / 2) % 4]);
	}
}

#define FIELD(f) offsetof(struct cairn_cluster_reduce_args, f)

static void setup(struct cairn_op *op)
{
	struct cairn_cluster_reduce_args *a = op->args;
	int64_t ranks, states;
	float *in_ml;
	struct row r;
	void *in;

	row_of(op->case_index, &r);
	a->num_clusters = r.clusters;
	a->num_calls = r.calls;
	a->cluster_size = r.size;
	a->rounds = r.rounds;
	a->len = r.len;
	a->head_dim = r.head_dim;
	a->dtype = r.dtype;
	a->op = r.op;
	a->algo = r.algo;
	ranks = (int64_t)r.clusters * r.calls * r.size;
	if (r.far) {
		cairn_in_rows(op, FIELD(in), r.dtype, r.clusters, r.len, 1);
		cairn_out_rows(op, FIELD(out), r.dtype, r.clusters, r.len);
		return;
	}
	in = cairn_in(op, FIELD(in), r.dtype, ranks * r.len);
	cairn_fill_exact(op, in, r.dtype, ranks * r.len, 1, 1 << 20);
	if (op->kind == CAIRN_KIND_EXTREME && r.op != CAIRN_CLUSTER_SOFTMAX)
		fill_special(&r, in);
	cairn_out(op, FIELD(out), r.dtype, ranks * r.len);
#define RANKS	{ "cluster", r.clusters }, { "call", r.calls }, { "rank", r.size }
	cairn_shape(op, FIELD(out), RANKS, { "element", r.len });
	if (r.op == CAIRN_CLUSTER_SOFTMAX) {
		states = ranks * (r.len / r.head_dim);
		in_ml = cairn_in(op, FIELD(in_ml), CAIRN_F32, states * 2);
		fill_ml(op, in_ml, states);
		if (op->kind == CAIRN_KIND_EXTREME)
			fill_small_weights(a, in, in_ml, states);
		if (op->kind == CAIRN_KIND_POISON)
			poison(a, in, in_ml, states);
		cairn_out(op, FIELD(out_ml), CAIRN_F32, states * 2);
		cairn_shape(op, FIELD(out_ml), RANKS, { "row", r.len / r.head_dim }, { "value", 2 });
	}
#undef RANKS
	if (!r.bench)
		return;
	cairn_out(op, FIELD(cycles), CAIRN_I64, (int64_t)r.clusters * r.size);
	cairn_shape(op, FIELD(cycles), { "cluster", r.clusters }, { "rank", r.size });
}

static const char *reject(void *args, int i, int *want)
{
	struct cairn_cluster_reduce_args *a = args;

	*want = -EINVAL;
	switch (i) {
	case 0: a->size = 16; return "size";
	case 1: a->out = NULL; return "null_out";
	case 2: a->in = NULL; return "null_in";
	case 3: a->in = (const char *)a->in + 4; return "misaligned_in";
	case 4: a->cluster_size = 0; return "cluster_size_0";
	case 5: a->len = 0; return "len_0";
	case 6: a->rounds = 0; return "rounds_0";
	case 7: a->num_calls = 0; return "num_calls_0";
	case 8: a->num_clusters = -1; return "num_clusters_negative";
	case 9: a->op = CAIRN_CLUSTER_NUM_OPS; return "op";
	case 10: a->algo = -1; return "algo";
	case 11: a->op = CAIRN_CLUSTER_SOFTMAX; a->len = 64; a->head_dim = 8; return "softmax_without_ml";
	case 12: a->op = CAIRN_CLUSTER_SOFTMAX; a->len = 64; a->head_dim = 24; return "head_dim_no_divisor";
	}
	*want = -EOPNOTSUPP;
	switch (i) {
	case 13: a->cluster_size = 17; return "cluster_size_17";
	case 14: a->len = CAIRN_CLUSTER_REDUCE_MAX_LEN + 1; return "len_16385";
	case 15: a->dtype = CAIRN_I32; return "dtype_i32";
	case 16: a->cluster_size = 6; a->algo = CAIRN_CLUSTER_TREE; return "tree_of_6";
	case 17: a->op = CAIRN_CLUSTER_SOFTMAX; a->len = 64; a->head_dim = 4; return "head_dim_4";
	case 18: a->op = CAIRN_CLUSTER_SOFTMAX; a->len = 2048; a->head_dim = 8; return "rows_256";
	}
	return NULL;
}

static int extra(const struct cairn_op *op, const void *got, char *json, size_t len)
{
	const struct cairn_cluster_reduce_args *a = got;
	struct row r;

	row_of(op->case_index, &r);
	return cycles_record(a->cycles, (int64_t)a->num_clusters * a->cluster_size, wire_bytes(&r), json,
			     len);
}

/* All ranks get the same bits, except with TREE. */
static int judge(const struct cairn_op *op, const void *got, char *why, size_t why_len)
{
	const struct cairn_cluster_reduce_args *a = got;
	int64_t states = a->op == CAIRN_CLUSTER_SOFTMAX ? a->len / a->head_dim : 0;
	size_t bytes = (size_t)a->len * cairn_dtype_bytes(a->dtype), ml = (size_t)states * 2 * sizeof(float);

	if (judge_cycles(op, FIELD(cycles), a->cycles, (int64_t)a->num_clusters * a->cluster_size, why,
			 why_len))
		return 1;
	if (a->algo == CAIRN_CLUSTER_TREE)
		return 0;
	for (int64_t k = 0; k < (int64_t)a->num_clusters * a->num_calls * a->cluster_size; k++) {
		int64_t first = k / a->cluster_size * a->cluster_size;
		const char *out = a->out, *out_ml = (const char *)a->out_ml;

		if (!memcmp(out + (size_t)first * bytes, out + (size_t)k * bytes, bytes) &&
		    (!ml || !memcmp(out_ml + (size_t)first * ml, out_ml + (size_t)k * ml, ml)))
			continue;
		snprintf(why, why_len, "rank %d and rank 0 of cluster %d have different bits in call %d",
			 (int)(k % a->cluster_size), (int)(k / a->cluster_size / a->num_calls),
			 (int)(k / a->cluster_size % a->num_calls));
		return 1;
	}
	return 0;
}

static void pairs_are_covered(struct cairn_test *t)
{
	cairn_pairs_check(t, &pairs, NUM_PAIRS);
	cairn_pairs_check(t, &ends, NUM_ENDS);
}

static const struct cairn_unit units[] = { { "pairs_are_covered", pairs_are_covered } };

const struct cairn_family cairn_cluster_reduce_family = {
	.stage = "primitives", .name = "cluster_reduce",
	.units = units, .num_units = ARRAY_SIZE(units),
	.op = offsetof(struct cairn_impl, cluster_reduce),
	.workspace_op = offsetof(struct cairn_impl, cluster_reduce_workspace),
	.args_size = sizeof(struct cairn_cluster_reduce_args),
	.workspace_field = FIELD(workspace),
	.timing_fields = { FIELD(cycles) },
	.num_cases = NUM_CASES, .draw = &draws, .exact_is_equal = 1,
	.describe = describe, .setup = setup,
	.exact = (int (*)(const void *, struct cairn_exact *))cairn_cluster_reduce_exact,
	.judge = judge, .reject = reject, .extra = extra,
	.cost_s = 10,
};
