// SPDX-License-Identifier: Apache-2.0
/*
 * cluster_gather_test - cases of cluster_gather.h; results are compared bit by bit
 *
 * The pair cases combine sizes, algorithms, types, lengths and numbers of clusters, calls and rounds, and so
 * do the cases ends_* for lengths at the ends of tiles (ends.h). The last cases have six calls
 * for each size and algorithm.
 */
#include "conformance/suite/draw.h"
#include "conformance/suite/ends.h"
#include "conformance/suite/pairs.h"
#include "primitives/cluster/cluster_test.h"

struct row {
	int32_t size, clusters, calls, rounds;
	int32_t len, dtype, algo;
	int bench, all, far;	/* all: with as many clusters as the device holds */
	int timed;		/* with cycles */
};

static const int32_t algos[] = { CAIRN_CLUSTER_ONESHOT, CAIRN_CLUSTER_RING, CAIRN_CLUSTER_OFFCHIP,
				 CAIRN_CLUSTER_TREE };

/* Every cluster size with every algorithm (TREE: only powers of two) and several lengths. */
#define NUM_EVERY	((16 * 3 + 5) * 6)

static void every_row(int i, struct row *r)
{
	static const int32_t lens[] = { 1, 3, 8, 64, 101, 1000 };
	int pair = i / 6;

	if (pair < 48) {
		r->size = 1 + pair / 3;
		r->algo = algos[pair % 3];
	} else {
		r->size = 1 << (pair - 48);
		r->algo = CAIRN_CLUSTER_TREE;
	}
	r->len = lens[i % 6];
	r->dtype = (r->size + r->algo + i) % 3;
	r->clusters = 1 + i % 2;
	r->calls = 1 + (r->size + i) % 3;
	r->rounds = 1 + r->algo % 2;
}

#define NUM_WAVES	(NUM_WAVE_SHAPES * 4)

static void waves_row(int i, struct row *r)
{
	r->size = wave_shapes[i / 4].size;
	r->clusters = wave_shapes[i / 4].clusters;
	r->calls = wave_shapes[i / 4].calls;
	r->rounds = wave_shapes[i / 4].rounds;
	r->algo = algos[i % 4];
	if (r->algo == CAIRN_CLUSTER_TREE && r->size == 6)
		r->algo = CAIRN_CLUSTER_AUTO;
	r->len = 36 + 60 * (i % 4);
	r->dtype = i % 3;
}

/* The largest lengths for which one set of results fits, or two sets just fit. 216 KiB hold 55296 fp32. */
static const struct { int32_t size, len, dtype; } large[] = {
	{ 1, 27648, CAIRN_F32 }, { 2, 18432, CAIRN_F32 }, { 3, 13000, CAIRN_F32 }, { 4, 6000, CAIRN_F32 },
	{ 4, 11059, CAIRN_F32 }, { 5, 18432, CAIRN_BF16 }, { 7, 6912, CAIRN_F32 }, { 8, 6144, CAIRN_F32 },
	{ 16, 1600, CAIRN_F32 }, { 16, 3252, CAIRN_F32 }, { 16, 6505, CAIRN_F16 }, { 13, 3949, CAIRN_F32 },
};
#define NUM_LARGE	(12 * 4)

static void large_row(int i, struct row *r)
{
	r->size = large[i / 4].size;
	r->len = large[i / 4].len;
	r->dtype = large[i / 4].dtype;
	r->algo = algos[i % 4];
	if (r->algo == CAIRN_CLUSTER_TREE && !cairn_cluster_is_pow2(r->size))
		r->algo = CAIRN_CLUSTER_TWOSHOT;
	r->calls = 3;
}

static const int32_t pair_sizes[] = { 2, 3, 5, 8, 12, 16 }, pair_lens[] = { 1, 8, 101, 260 };
static const int32_t pair_algos[] = { CAIRN_CLUSTER_AUTO, CAIRN_CLUSTER_ONESHOT, CAIRN_CLUSTER_TWOSHOT,
				      CAIRN_CLUSTER_RING, CAIRN_CLUSTER_OFFCHIP, CAIRN_CLUSTER_TREE };

static int pair_forbidden(const int8_t *level)
{
	return level[1] == 5 && level[0] >= 0 && !cairn_cluster_is_pow2(pair_sizes[level[0]]);
}

static int ends_forbidden(const int8_t *level)
{
	return level[2] == 5 && level[1] >= 0 && !cairn_cluster_is_pow2(ends_sizes[level[1]]);
}

/* size, algorithm, type, length, clusters, calls, rounds */
static struct cairn_pairs pairs = { .num_factors = 7, .levels = { 6, 6, 3, 4, 3, 3, 2 },
				    .forbidden = pair_forbidden };
#define NUM_PAIRS	34

static void pair_row(int i, struct row *r)
{
	const int8_t *level = cairn_pairs_row(&pairs, i);

	r->size = pair_sizes[level[0]];
	r->algo = pair_algos[level[1]];
	r->dtype = level[2];
	r->len = pair_lens[level[3]];
	r->clusters = 1 + level[4];
	r->calls = 1 + level[5] * level[5];
	r->rounds = 1 + 2 * level[6];
	r->timed = level[6] > 0;
}

/* length, size, algorithm, type, numbers */
static struct cairn_pairs ends = { .num_factors = 5, .levels = { CAIRN_NUM_ENDS, 7, 6, 3, 4 },
				   .forbidden = ends_forbidden };
#define NUM_ENDS	72

static void ends_row(int i, struct row *r)
{
	const int8_t *level = cairn_pairs_row(&ends, i);

	r->len = cairn_ends[level[0]];
	r->size = ends_sizes[level[1]];
	r->algo = pair_algos[level[2]];
	r->dtype = level[3];
	r->clusters = ends_shapes[level[4]].clusters;
	r->calls = ends_shapes[level[4]].calls;
	r->rounds = ends_shapes[level[4]].rounds;
}

/* More clusters than a device holds at a time, each with several calls. */
#define NUM_LATE	4

static void late_row(int i, struct row *r)
{
	r->size = 2;
	r->algo = algos[i];
	r->dtype = i % 3;
	r->len = 13;
	r->clusters = 300;
	r->calls = 4;
}

/* Every cluster size with every algorithm, and enough calls that buffers and phases are reused. */
#define NUM_MANY	(16 * 3 + 5)

static void many_row(int i, struct row *r)
{
	r->size = i < 48 ? 1 + i / 3 : 1 << (i - 48);
	r->algo = i < 48 ? algos[i % 3] : CAIRN_CLUSTER_TREE;
	r->dtype = (r->size + i) % 3;
	r->len = 20;
	r->clusters = 2;
	r->calls = 6;
	r->timed = r->size > 1 && r->size % 2;
}

static const int32_t bench_lens[] = { 64, 256, 1024, 3072 };
static const struct { int32_t size, len, dtype; } others[] = {
	{ 2, 16384, CAIRN_F32 }, { 4, 4096, CAIRN_F32 }, { 4, 8192, CAIRN_F32 }, { 8, 4096, CAIRN_F32 },
	{ 8, 1024, CAIRN_BF16 },
};
#define NUM_LATENCY	(4 * 4 * 4)
#define NUM_OTHERS	(5 * 4)
#define NUM_LOADED	(4 * 4)

static void bench_row(int i, struct row *r)
{
	r->bench = r->timed = 1;
	r->algo = algos[i % 4];
	if (i < NUM_LATENCY) {
		r->len = bench_lens[i / 4 % 4];
		r->size = bench_sizes[i / 16];
	} else if (i < NUM_LATENCY + NUM_OTHERS) {
		r->size = others[(i - NUM_LATENCY) / 4].size;
		r->len = others[(i - NUM_LATENCY) / 4].len;
		r->dtype = others[(i - NUM_LATENCY) / 4].dtype;
	} else {
		r->all = 1;
		r->len = 1024;
		r->size = bench_sizes[(i - NUM_LATENCY - NUM_OTHERS) / 4];
		r->clusters = bench_clusters(r->size);
	}
	r->rounds = bench_rounds(r->len);
}

/* No clusters: the call does nothing and returns no error. */
static void none_row(int i, struct row *r)
{
	(void)i;
	r->size = 4;
	r->len = 64;
	r->clusters = 0;
}

/* More clusters than 2^10. */
static void more_row(int i, struct row *r)
{
	(void)i;
	r->size = 2;
	r->len = 20;
	r->clusters = 1100;
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
	{ NUM_EVERY, every_row, "" }, { NUM_WAVES, waves_row, "waves_" }, { NUM_LARGE, large_row, "" },
	{ NUM_LATENCY + NUM_OTHERS + NUM_LOADED, bench_row, "" }, { NUM_PAIRS, pair_row, "pair_" },
	{ NUM_MANY, many_row, "" },
	{ 1, none_row, "none_" }, { 1, more_row, "more_" }, { 1, far_row, "far_" },
	{ NUM_ENDS, ends_row, "ends_" }, { NUM_LATE, late_row, "late_" },
};
#define NUM_CASES (NUM_EVERY + NUM_WAVES + NUM_LARGE + NUM_LATENCY + NUM_OTHERS + NUM_LOADED + NUM_PAIRS + \
		   NUM_MANY + 3 + NUM_ENDS + NUM_LATE)

static const struct cairn_draw_axis axes[] = {
	CAIRN_DRAW_SIZE(struct row, size, 1, 16, 1),
	CAIRN_DRAW_SIZE(struct row, clusters, 1, 300, 1),
	CAIRN_DRAW_SIZE(struct row, calls, 1, 9, 1),
	CAIRN_DRAW_ONE_OF(struct row, rounds, 1, 1, 2, 3),
	CAIRN_DRAW_SIZE(struct row, len, 1, 5000, 1),
	CAIRN_DRAW_ONE_OF(struct row, dtype, CAIRN_F32, CAIRN_F16, CAIRN_BF16),
	CAIRN_DRAW_ONE_OF(struct row, algo, CAIRN_CLUSTER_AUTO, CAIRN_CLUSTER_ONESHOT, CAIRN_CLUSTER_TWOSHOT,
			  CAIRN_CLUSTER_RING, CAIRN_CLUSTER_OFFCHIP, CAIRN_CLUSTER_TREE),
	CAIRN_DRAW_ONE_OF(struct row, timed, 0, 1),
};

static int allowed(void *shape, int room)
{
	const struct row *r = shape;

	return (r->algo != CAIRN_CLUSTER_TREE || cairn_cluster_is_pow2(r->size)) &&
	       (r->size + 1) * r->len * (int)cairn_dtype_bytes(r->dtype) <= 216 * 1024 &&
	       (int64_t)r->clusters * r->calls * r->size * r->size * r->len <= room * 100000;
}

static const struct cairn_draw draws = {
	.shape_bytes = sizeof(struct row), .axes = axes, .num_axes = ARRAY_SIZE(axes),
	.allowed = allowed, .many = 8000,
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
	*r = (struct row) { .clusters = 1, .calls = 1, .rounds = 1, .dtype = CAIRN_F32 };
	groups[g].row(i, r);
	return groups[g].prefix;
}

static int64_t wire_bytes(const struct row *r)
{
	int64_t bytes = (int64_t)r->len * (int64_t)cairn_dtype_bytes(r->dtype);

	return cairn_cluster_gather_bytes(r->algo, r->size, (int)((bytes + 15) / 16));
}

static void describe(int i, struct cairn_case *c)
{
	const char *prefix;
	struct row r;
	int n;

	prefix = row_of(i, &r);
	n = snprintf(c->name, sizeof(c->name), "%ssize%d_len%d_%s_%s%s", prefix, r.size, r.len,
		     cairn_dtype_name(r.dtype), algo_names[r.algo], r.all ? "_all" : "");
	if (!r.bench)
		n += snprintf(c->name + n, sizeof(c->name) - (size_t)n, "_x%d", r.clusters * r.calls);
	if (!strcmp(prefix, "pair_"))
		snprintf(c->name + n, sizeof(c->name) - (size_t)n, "_calls%d_rounds%d", r.calls, r.rounds);
	c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	if (!strcmp(prefix, "ends_") || !strcmp(prefix, "late_"))
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_EXTREME);
	else if (!r.bench && r.clusters && r.len <= 1024)
		c->kinds |= CAIRN_KIND_BIT(CAIRN_KIND_EXACT) | CAIRN_KIND_BIT(CAIRN_KIND_EXTREME);
	c->far = r.far;
	c->bench = r.bench;	/* no bytes: the kernel measures itself and extra() reports it */
}

#define FIELD(f) offsetof(struct cairn_cluster_gather_args, f)

static void setup(struct cairn_op *op)
{
	struct cairn_cluster_gather_args *a = op->args;
	int64_t ranks, esize;
	struct row r;
	char *in;

	row_of(op->case_index, &r);
	a->num_clusters = r.clusters;
	a->num_calls = r.calls;
	a->cluster_size = r.size;
	a->rounds = r.rounds;
	a->len = r.len;
	a->dtype = r.dtype;
	a->algo = r.algo;
	ranks = (int64_t)r.clusters * r.calls * r.size;
	esize = (int64_t)cairn_dtype_bytes(r.dtype);
	if (r.far) {
		cairn_in_rows(op, FIELD(in), r.dtype, r.clusters, r.len, 1);
		cairn_out_rows(op, FIELD(out), r.dtype, r.clusters, r.len);
		return;
	}
	in = cairn_in(op, FIELD(in), r.dtype, ranks * r.len);
	cairn_fill(op, in, r.dtype, ranks * r.len, 1);
	if (op->kind == CAIRN_KIND_EXTREME)	/* any bits, including signalling NaNs, -0 and subnormals */
		for (int64_t i = 0; i < ranks * r.len * esize; i++)
			in[i] = (char)cairn_op_rand(op);
	cairn_out(op, FIELD(out), r.dtype, ranks * r.size * r.len);
	cairn_shape(op, FIELD(out), { "cluster", r.clusters }, { "call", r.calls }, { "rank", r.size },
		    { "part", r.size }, { "element", r.len });
	if (!r.timed)
		return;
	cairn_out(op, FIELD(cycles), CAIRN_I64, (int64_t)r.clusters * r.size);
	cairn_shape(op, FIELD(cycles), { "cluster", r.clusters }, { "rank", r.size });
}

struct gathered {
	const struct cairn_cluster_gather_args *got;
	const char *in;
};

/* Compares bits, not values, so that NaNs count. */
static int is_bad(const void *arg, int64_t i, char *why, size_t why_len)
{
	const struct gathered *g = arg;
	const struct cairn_cluster_gather_args *a = g->got;
	const size_t esize = cairn_dtype_bytes(a->dtype);
	const int64_t all = (int64_t)a->cluster_size * a->len, call = i / all / a->cluster_size;
	const char *x = (const char *)a->out + i * (int64_t)esize;
	const char *y = g->in + (call * all + i % all) * (int64_t)esize;
	uint64_t got = 0, want = 0;

	if (!memcmp(x, y, esize))
		return 0;
	memcpy(&got, x, esize);		/* little-endian, as everything here */
	memcpy(&want, y, esize);
	if (why)
		snprintf(why, why_len, "got %.9g (0x%llx), want %.9g (0x%llx)", cairn_load(x, a->dtype, 0),
			 (unsigned long long)got, cairn_load(y, a->dtype, 0), (unsigned long long)want);
	return 1;
}

static int judge(const struct cairn_op *op, const void *got, char *why, size_t why_len)
{
	const struct cairn_cluster_gather_args *given = op->args;
	const struct gathered g = { got, given->in };

	return cairn_judge_each(op, FIELD(out), is_bad, &g, why, why_len) ||
	       judge_cycles(op, FIELD(cycles), g.got->cycles,
			    (int64_t)given->num_clusters * given->cluster_size, why, why_len);
}

static const char *reject(void *args, int i, int *want)
{
	struct cairn_cluster_gather_args *a = args;

	*want = -EINVAL;
	switch (i) {
	case 0: a->size = 16; return "size";
	case 1: a->out = NULL; return "null_out";
	case 2: a->in = NULL; return "null_in";
	case 3: a->out = (char *)a->out + 4; return "misout";
	case 4: a->cluster_size = 0; return "cluster_size_0";
	case 5: a->len = 0; return "len_0";
	case 6: a->rounds = 0; return "rounds_0";
	case 7: a->num_calls = 0; return "num_calls_0";
	case 8: a->num_clusters = -1; return "num_clusters_negative";
	case 9: a->algo = CAIRN_CLUSTER_NUM_ALGOS; return "algo";
	}
	*want = -EOPNOTSUPP;
	switch (i) {
	case 10: a->cluster_size = 17; return "cluster_size_17";
	case 11: a->cluster_size = 4; a->len = 11060; a->dtype = CAIRN_F32; return "len_beyond_shared_memory";
	case 12: a->dtype = CAIRN_I32; return "dtype_i32";
	case 13: a->cluster_size = 12; a->algo = CAIRN_CLUSTER_TREE; return "tree_of_12";
	}
	return NULL;
}

static int extra(const struct cairn_op *op, const void *got, char *json, size_t len)
{
	const struct cairn_cluster_gather_args *a = got;
	struct row r;

	row_of(op->case_index, &r);
	return cycles_record(a->cycles, (int64_t)a->num_clusters * a->cluster_size, wire_bytes(&r), json,
			     len);
}

/* The exact values of the reference, which other code uses, must agree with the bits that judge() expects. */
static void reference_is_exact(struct cairn_test *t)
{
	_Alignas(16) float in[2 * 3 * 5];
	_Alignas(16) float out[2 * 3 * 3 * 5];
	double val[ARRAY_SIZE(out)], bound[ARRAY_SIZE(out)];
	struct cairn_exact exact = { .val = val, .bound = bound };
	struct cairn_cluster_gather_args a = {
		.size = sizeof(a), .out = out, .in = in, .num_clusters = 2, .num_calls = 1,
		.cluster_size = 3, .len = 5, .dtype = CAIRN_F32, .algo = CAIRN_CLUSTER_ONESHOT, .rounds = 1,
	};

	for (size_t i = 0; i < ARRAY_SIZE(in); i++)
		in[i] = (float)(cairn_rand(t) % 1000);
	EXPECT(t, cairn_cluster_gather_ref(&a, NULL) == 0);
	EXPECT(t, cairn_cluster_gather_exact(&a, &exact) == 0);
	for (size_t i = 0; i < ARRAY_SIZE(out); i++)
		EXPECT(t, bound[i] == 0 && val[i] == out[i]);
	EXPECT(t, out[(1 * 3 + 2) * 15 + 1 * 5 + 4] == in[(1 * 3 + 1) * 5 + 4]);
}

static void pairs_are_covered(struct cairn_test *t)
{
	cairn_pairs_check(t, &pairs, NUM_PAIRS);
	cairn_pairs_check(t, &ends, NUM_ENDS);
}

static const struct cairn_unit units[] = {
	{ "reference_is_exact", reference_is_exact },
	{ "pairs_are_covered", pairs_are_covered },
};

const struct cairn_family cairn_cluster_gather_family = {
	.stage = "primitives", .name = "cluster_gather",
	.units = units, .num_units = ARRAY_SIZE(units),
	.op = offsetof(struct cairn_impl, cluster_gather),
	.workspace_op = offsetof(struct cairn_impl, cluster_gather_workspace),
	.args_size = sizeof(struct cairn_cluster_gather_args),
	.workspace_field = FIELD(workspace),
	.timing_fields = { FIELD(cycles) },
	.num_cases = NUM_CASES, .draw = &draws,
	.describe = describe, .setup = setup, .judge = judge, .reject = reject, .extra = extra,
	.cost_s = 5,
};
