// SPDX-License-Identifier: Apache-2.0
/*
 * dsmem_test - cases of dsmem.h, and the bench rows of the DSMEM profile
 *
 * The data of every CTA that ran is compared with dsmem_ref.c. Times must be possible: all CTAs that run
 * measure, or none; a chase takes a cycle for each link; cycles fit between the two times in ns. Bench rows
 * (all clusters that fit, one CTA per SM; _one: a single cluster) report them as record members, see
 * dsmem_record.h.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "conformance/suite/pairs.h"
#include "primitives/machine/dsmem_record.h"

#define SMEM_ALONE	(200 * 1024)	/* so that no second CTA fits the SM */
#define BENCH_BYTES	(64 * 1024)
#define MAX_CTAS	256		/* CTAs of a bench row: more than any device has SMs */

static const char *const names[CAIRN_DSMEM_NUM_TESTS] = {
	"latency", "latency_smem", "latency_l2", "latency_hbm", "load", "st_async", "bulk", "multicast",
	"barrier", "mbarrier", "active",
};

/* Cluster sizes of the bench rows of a test: 1; 2, 4, 8, 16; or all from 1 to 16. */
enum sizes { ONCE, POWERS, ALL };
static const struct {
	int test, one;		/* one: run a single cluster */
	enum sizes sizes;
	const char *suffix;
} benches[] = {
	{ CAIRN_DSMEM_LATENCY, 0, ALL, "" },
	{ CAIRN_DSMEM_LOAD, 0, ALL, "_all" },
	{ CAIRN_DSMEM_LOAD, 1, POWERS, "_one" },
	{ CAIRN_DSMEM_ST_ASYNC, 0, POWERS, "" },
	{ CAIRN_DSMEM_BULK, 0, POWERS, "" },
	{ CAIRN_DSMEM_MULTICAST, 0, POWERS, "" },
	{ CAIRN_DSMEM_BARRIER, 0, ALL, "" },
	{ CAIRN_DSMEM_MBARRIER, 0, POWERS, "" },
	{ CAIRN_DSMEM_ACTIVE, 0, ALL, "" },
	{ CAIRN_DSMEM_LATENCY_SMEM, 1, ONCE, "" },
	{ CAIRN_DSMEM_LATENCY_L2, 1, ONCE, "" },
	{ CAIRN_DSMEM_LATENCY_HBM, 1, ONCE, "" },
};

/*
 * The SMs that can share a cluster depend on its size. At size 16 an H200 leaves out 20 of its 132 SMs: the
 * last two of a GPC of 18 (size 9 reaches them), a GPC of 8 (size 8 reaches it), and SMs that only clusters
 * of 2 use. The matrix combines these sizes.
 */
static const int matrix_sizes[] = { 16, 9, 8, 2 };
#define NUM_MATRICES	((int)ARRAY_SIZE(matrix_sizes))
#define NUM_BENCHES	(NUM_MATRICES + 4 * 16 + 5 * 4 + 3)	/* plus rows of the ALL, POWERS, ONCE tests */

static const int small_sizes[] = { 1, 2, 3, 4, 7, 8, 16 };
#define NUM_SMALL	((int)(CAIRN_DSMEM_NUM_TESTS * ARRAY_SIZE(small_sizes)) + 2)

/* Cases with the largest number of rounds; MULTICAST: with enough clusters that they share parts of src. */
static const struct { int test, size; } long_rows[] = {
	{ CAIRN_DSMEM_LATENCY, 4 }, { CAIRN_DSMEM_LATENCY_SMEM, 2 }, { CAIRN_DSMEM_LATENCY_L2, 2 },
	{ CAIRN_DSMEM_LATENCY_HBM, 2 }, { CAIRN_DSMEM_LOAD, 2 }, { CAIRN_DSMEM_LOAD, 8 },
	{ CAIRN_DSMEM_ST_ASYNC, 4 }, { CAIRN_DSMEM_BULK, 4 }, { CAIRN_DSMEM_MULTICAST, 2 },
	{ CAIRN_DSMEM_BARRIER, 4 }, { CAIRN_DSMEM_MBARRIER, 4 },
};
#define NUM_LONG	((int)ARRAY_SIZE(long_rows))

/*
 * The cases ends_* combine cluster sizes with each test that depends on them and, for tests that send slots,
 * with sizes of slots: 1, 7, 9, 15 or 31 units. A unit is 16 bytes, or as many times that as it takes for all
 * slots together to have whole links.
 */
#define FIRST_ENDS	(NUM_SMALL + NUM_BENCHES + NUM_LONG)
#define NUM_ENDS	48
#define FIRST_SLOTS	(FIRST_ENDS + NUM_ENDS)
#define NUM_SLOTS	180
static const int ends_sizes[] = { 1, 2, 3, 5, 7, 8, 9, 11, 12, 13, 15, 16 };
static const int ends_units[] = { 1, 7, 9, 15, 31 }, ends_clusters[] = { 1, 2, 5, 17 };
static const int ends_tests[] = { CAIRN_DSMEM_LATENCY, CAIRN_DSMEM_LOAD, CAIRN_DSMEM_BARRIER,
				  CAIRN_DSMEM_MBARRIER };
static const int slot_tests[] = { CAIRN_DSMEM_ST_ASYNC, CAIRN_DSMEM_BULK, CAIRN_DSMEM_MULTICAST };
/* size, test, clusters; size, test and slot, clusters */
static struct cairn_pairs ends = { .num_factors = 3, .levels = { 12, 4, 4 } };
static struct cairn_pairs slots = { .num_factors = 3, .levels = { 12, 15, 4 } };

struct row {
	/* size: cluster size; one: run a single cluster; few: fewer rounds than peers */
	int test, size, one, bench, matrix, few, many;
	int slot, clusters;		/* of an ends case, slot in bytes; 0: 3 links, 3 clusters */
	const char *suffix;		/* end of the case's name */
};

static void find_bench(int i, struct row *r)
{
	memset(r, 0, sizeof(*r));
	r->bench = 1;
	if (i < NUM_MATRICES) {
		r->test = CAIRN_DSMEM_LATENCY;
		r->size = matrix_sizes[i];
		r->matrix = 1;
		return;
	}
	i -= NUM_MATRICES;
	for (size_t k = 0; k < ARRAY_SIZE(benches); k++) {
		int count = benches[k].sizes == ALL ? 16 : benches[k].sizes == POWERS ? 4 : 1;

		if (i < count) {
			r->test = benches[k].test;
			r->one = benches[k].one;
			r->suffix = benches[k].suffix;
			r->size = benches[k].sizes == ALL ? i + 1 : benches[k].sizes == POWERS ? 2 << i : 1;
			return;
		}
		i -= count;
	}
}

static void find_ends(int i, struct row *r)
{
	const int8_t *level = i < FIRST_SLOTS ? cairn_pairs_row(&ends, i - FIRST_ENDS) :
						cairn_pairs_row(&slots, i - FIRST_SLOTS);
	const int size = ends_sizes[level[0]], unit = i < FIRST_SLOTS ? i % 5 : level[1] % 5;

	*r = (struct row){
		.test = i < FIRST_SLOTS ? ends_tests[level[1]] : slot_tests[level[1] / 5], .size = size,
		.clusters = ends_clusters[level[2]],
		.slot = 16 * ends_units[unit] *
			(size % 8 == 0 ? 1 : size % 4 == 0 ? 2 : size % 2 == 0 ? 4 : 8),
	};
}

static void find_row(int i, struct row *r)
{
	if (i >= FIRST_ENDS) {
		find_ends(i, r);
		return;
	}
	if (i >= NUM_SMALL + NUM_BENCHES) {
		i -= NUM_SMALL + NUM_BENCHES;
		*r = (struct row){ .test = long_rows[i].test, .size = long_rows[i].size, .many = 1,
				   .suffix = "_long" };
		return;
	}
	if (i >= NUM_SMALL) {
		find_bench(i - NUM_SMALL, r);
		return;
	}
	memset(r, 0, sizeof(*r));
	r->suffix = "_small";
	if (i >= NUM_SMALL - 2) {	/* fewer rounds than peers: slots without a sender stay zero */
		r->test = i == NUM_SMALL - 1 ? CAIRN_DSMEM_BULK : CAIRN_DSMEM_ST_ASYNC;
		r->size = 8;
		r->few = 1;
		r->suffix = "_few_rounds";
		return;
	}
	r->test = i / (int)ARRAY_SIZE(small_sizes);
	r->size = small_sizes[i % ARRAY_SIZE(small_sizes)];
}

static void describe(int i, struct cairn_case *c)
{
	struct row r;

	find_row(i, &r);
	if (r.matrix)
		snprintf(c->name, sizeof(c->name), "latency_matrix_size%d", r.size);
	else if (r.slot)
		snprintf(c->name, sizeof(c->name), "ends_%s_size%d_slot%d_clusters%d", names[r.test], r.size,
			 r.slot, r.clusters);
	else if (r.bench && r.test >= CAIRN_DSMEM_LATENCY_SMEM && r.test <= CAIRN_DSMEM_LATENCY_HBM)
		snprintf(c->name, sizeof(c->name), "%s", names[r.test]);
	else
		snprintf(c->name, sizeof(c->name), "%s_size%d%s", names[r.test], r.size, r.suffix);
	c->bench = c->device_only = r.bench;
}

/* Makes one cycle through all links, in an order that neither row buffers nor prefetchers can exploit. */
static void make_chain(struct cairn_op *op, uint64_t *src, int64_t words, uint64_t links)
{
	uint64_t stride = (cairn_op_rand(op) % links) | 1;	/* odd, and links is a power of 2 */

	for (int64_t i = 0; i < words; i++)
		src[i] = ~0ull;
	for (uint64_t i = 0; i < links; i++)
		src[i * (CAIRN_DSMEM_LINK / 8)] = (i + stride) % links;
}

static void setup(struct cairn_op *op)
{
	struct cairn_dsmem_args *a = op->args;
	int64_t num_ctas;
	uint64_t *src;
	struct row r;
	int peers;

	find_row(op->case_index, &r);
	peers = r.size > 1 ? r.size - 1 : 1;
	a->test = r.test;
	a->cluster_size = r.size;
	a->seed = cairn_op_rand(op);
	if (r.bench) {
		a->num_clusters = r.one ? 1 : MAX_CTAS / r.size;
		a->bytes = r.test == CAIRN_DSMEM_ACTIVE ? CAIRN_DSMEM_LINK : BENCH_BYTES;
		a->smem_bytes = SMEM_ALONE;
		a->rounds = r.test <= CAIRN_DSMEM_LATENCY_SMEM ? 256 :
			    r.test <= CAIRN_DSMEM_LATENCY_HBM ? 1024 :
			    r.test == CAIRN_DSMEM_LOAD ? 240 / peers * peers :
			    r.test <= CAIRN_DSMEM_BULK ? 64 * r.size :
			    r.test == CAIRN_DSMEM_MULTICAST ? 64 : 1000;
	} else {
		a->num_clusters = r.slot ? r.clusters : 3;
		a->bytes = (r.slot ? r.slot : 3 * CAIRN_DSMEM_LINK) * r.size;
		/*
		 * MULTICAST: one round, because a second one would overwrite the same bytes, which racecheck
		 * would rightly report
		 */
		a->rounds = r.few ? 5 : r.test == CAIRN_DSMEM_MULTICAST ? 1 :
			    r.test == CAIRN_DSMEM_LOAD ? 3 * peers : 37;
		if (r.many && r.test == CAIRN_DSMEM_MULTICAST)
			a->num_clusters = 100;
		else if (r.many)
			a->rounds = CAIRN_DSMEM_MAX_ROUNDS / peers * peers;
	}
	num_ctas = (int64_t)a->num_clusters * r.size;
	cairn_out(op, offsetof(struct cairn_dsmem_args, sum), CAIRN_I64, num_ctas);
	cairn_out(op, offsetof(struct cairn_dsmem_args, time), CAIRN_I64, num_ctas * CAIRN_DSMEM_NUM_TIMES);
	cairn_out(op, offsetof(struct cairn_dsmem_args, smid), CAIRN_I32, num_ctas);
	cairn_out(op, offsetof(struct cairn_dsmem_args, resident), CAIRN_I32, 1);
#define CTAS	{ "cluster", a->num_clusters }, { "CTA", r.size }
	cairn_shape(op, offsetof(struct cairn_dsmem_args, sum), CTAS);
	cairn_shape(op, offsetof(struct cairn_dsmem_args, time), CTAS, { "time", CAIRN_DSMEM_NUM_TIMES });
	cairn_shape(op, offsetof(struct cairn_dsmem_args, smid), CTAS);
	cairn_shape(op, offsetof(struct cairn_dsmem_args, resident), { "count", 1 });
	if (r.test == CAIRN_DSMEM_LATENCY) {
		cairn_out(op, offsetof(struct cairn_dsmem_args, pair_cycles), CAIRN_I32, num_ctas * r.size);
		cairn_shape(op, offsetof(struct cairn_dsmem_args, pair_cycles), CTAS, { "peer", r.size });
	}
#undef CTAS
	if (r.test != CAIRN_DSMEM_MULTICAST && r.test != CAIRN_DSMEM_LATENCY_L2 &&
	    r.test != CAIRN_DSMEM_LATENCY_HBM)
		return;
	a->src_bytes = !r.bench ? 64 * 1024 : r.test == CAIRN_DSMEM_LATENCY_HBM ? 256 << 20 : 1 << 20;
	if (r.many && r.test == CAIRN_DSMEM_MULTICAST)
		a->src_bytes = 10 * a->bytes;
	src = cairn_in(op, offsetof(struct cairn_dsmem_args, src), CAIRN_I64, a->src_bytes / 8);
	if (r.test == CAIRN_DSMEM_MULTICAST)
		for (int64_t i = 0; i < a->src_bytes / 8; i++)
			src[i] = cairn_op_rand(op);
	else
		make_chain(op, src, a->src_bytes / 8, a->src_bytes / CAIRN_DSMEM_LINK /
			   (r.test == CAIRN_DSMEM_LATENCY_HBM ? 16 : 1));
}

static int complain(char *why, size_t len, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, len, fmt, ap);
	va_end(ap);
	return 1;
}

/* What the CTAs wrote, and should have. */
struct written {
	const struct cairn_dsmem_args *got, *want;
	int ran;		/* CTAs */
	int measured;		/* some cycles are not 0 */
};

static int64_t time_of(const struct cairn_dsmem_args *a, int64_t cta, int which)
{
	return a->time[cta * CAIRN_DSMEM_NUM_TIMES + which];
}

/* Returns whether any CTA that ran has measured cycles. */
static int has_measured(const struct cairn_dsmem_args *got, int ran)
{
	int measured = 0;

	for (int c = 0; c < ran; c++)
		measured |= time_of(got, c, CAIRN_DSMEM_CYCLES) != 0;
	return measured;
}

static int is_bad_smid(const void *arg, int64_t cta, char *why, size_t why_len)
{
	const struct written *w = arg;

	if (why)
		complain(why, why_len, "got %d, want -1: a CTA before it did not run", w->got->smid[cta]);
	return cta >= w->ran && w->got->smid[cta] != -1;
}

static int is_bad_sum(const void *arg, int64_t cta, char *why, size_t why_len)
{
	const struct written *w = arg;
	uint64_t want = cta < w->ran ? w->want->sum[cta] : 0;

	if (why)
		complain(why, why_len, "got %016llx, want %016llx", (unsigned long long)w->got->sum[cta],
			 (unsigned long long)want);
	return w->got->sum[cta] != want;
}

/* Returns the fewest cycles that a chase, or a series of barriers, can take. */
static int64_t least_cycles(const struct written *w, int64_t cta, int which)
{
	const struct cairn_dsmem_args *a = w->want;
	int64_t sum = 0;

	if (!w->measured || a->test == CAIRN_DSMEM_ACTIVE)
		return 0;
	if (which == CAIRN_DSMEM_CYCLES2)
		return a->test == CAIRN_DSMEM_BARRIER ? a->rounds : a->test == CAIRN_DSMEM_MBARRIER;
	if (a->test == CAIRN_DSMEM_LATENCY)
		for (int owner = 0; owner < a->cluster_size; owner++)
			sum += w->got->pair_cycles[cta * a->cluster_size + owner];
	if (a->test == CAIRN_DSMEM_LATENCY)
		return sum;
	return a->test < CAIRN_DSMEM_LOAD || a->test == CAIRN_DSMEM_BARRIER ? a->rounds : 1;
}

/* Returns the most cycles that fit between start_ns and end_ns, where a tick may take a microsecond. */
static int64_t most_cycles(const struct written *w, int64_t cta)
{
	return 3 * (time_of(w->got, cta, CAIRN_DSMEM_END_NS) - time_of(w->got, cta, CAIRN_DSMEM_START_NS) +
		    1100);
}

static int is_bad_time(const void *arg, int64_t i, char *why, size_t why_len)
{
	const struct written *w = arg;
	int64_t cta = i / CAIRN_DSMEM_NUM_TIMES, start = time_of(w->got, cta, CAIRN_DSMEM_START_NS);
	int which = (int)(i % CAIRN_DSMEM_NUM_TIMES);
	int64_t value = time_of(w->got, cta, which), least = which == CAIRN_DSMEM_END_NS ? start : 0;
	int64_t most = INT64_MAX;

	if (which == CAIRN_DSMEM_CYCLES || which == CAIRN_DSMEM_CYCLES2) {
		least = least_cycles(w, cta, which);
		most = most_cycles(w, cta);
	}
	if (cta >= w->ran)		/* it has not run */
		least = most = 0;
	if (why)
		complain(why, why_len, "got %lld, want %lld to %lld", (long long)value, (long long)least,
			 (long long)most);
	return value < least || value > most;
}

static int is_bad_pair(const void *arg, int64_t i, char *why, size_t why_len)
{
	const struct written *w = arg;
	int64_t value = w->got->pair_cycles[i];
	int measured = w->measured && i / w->want->cluster_size < w->ran;

	if (why)
		complain(why, why_len, "got %lld cycles for %d links%s", (long long)value, w->want->rounds,
			 measured ? "" : " that were not measured");
	return measured ? value < w->want->rounds : value != 0;
}

static int judge(const struct cairn_op *op, const void *got_args, char *why, size_t why_len)
{
	const struct cairn_dsmem_args *got = got_args;
	struct cairn_dsmem_args want = *(const struct cairn_dsmem_args *)op->args;
	int num_ctas = want.num_clusters * want.cluster_size, ran = cairn_dsmem_ran(got), may_run, ret = 0;
	const struct written w = { got, &want, ran, has_measured(got, ran) };
	int32_t resident;

	may_run = *got->resident * want.cluster_size;
	may_run = want.test == CAIRN_DSMEM_ACTIVE || may_run > num_ctas ? num_ctas : may_run;
	if (*got->resident < 1 || ran != may_run)
		return complain(why, why_len, "%d of %d CTAs ran, %d clusters of %d fit", ran, num_ctas,
				*got->resident, want.cluster_size);
	want.sum = calloc(num_ctas, sizeof(*want.sum));
	want.time = calloc((size_t)num_ctas * CAIRN_DSMEM_NUM_TIMES, sizeof(*want.time));
	want.smid = calloc(num_ctas, sizeof(*want.smid));
	want.pair_cycles = calloc((size_t)num_ctas * want.cluster_size, sizeof(*want.pair_cycles));
	want.resident = &resident;
	if (!want.sum || !want.time || !want.smid || !want.pair_cycles || cairn_dsmem_ref(&want, NULL)) {
		ret = complain(why, why_len, "reference failed: %s", cairn_last_error());
		goto out_free;
	}
	ret = cairn_judge_each(op, offsetof(struct cairn_dsmem_args, smid), is_bad_smid, &w, why, why_len) ||
	      cairn_judge_each(op, offsetof(struct cairn_dsmem_args, sum), is_bad_sum, &w, why, why_len) ||
	      (want.test == CAIRN_DSMEM_LATENCY &&
	       cairn_judge_each(op, offsetof(struct cairn_dsmem_args, pair_cycles), is_bad_pair, &w, why,
				why_len)) ||
	      cairn_judge_each(op, offsetof(struct cairn_dsmem_args, time), is_bad_time, &w, why, why_len);
	if (!ret && want.test == CAIRN_DSMEM_ACTIVE &&
	    cairn_dsmem_together(got) > *got->resident * want.cluster_size)
		ret = complain(why, why_len, "%d CTAs ran together, %d clusters of %d fit",
			       cairn_dsmem_together(got), *got->resident, want.cluster_size);
out_free:
	free(want.sum);
	free(want.time);
	free(want.smid);
	free(want.pair_cycles);
	return ret;
}

static int extra(const struct cairn_op *op, const void *got, char *json, size_t len)
{
	struct row r;

	find_row(op->case_index, &r);
	json[0] = 0;
	return r.bench ? cairn_dsmem_record(got, r.matrix, json, len) : 0;
}

/* Case 0, whose args these are, is LATENCY at size 1. */
static const char *reject(void *args, int i, int *want)
{
	struct cairn_dsmem_args *a = args;

	*want = -EINVAL;
	switch (i) {
	case 0:
		a->test = CAIRN_DSMEM_NUM_TESTS;
		return "test_unknown";
	case 1:
		a->sum = NULL;
		return "sum_null";
	case 2:
		a->pair_cycles = NULL;
		return "pair_cycles_null";
	case 3:
		a->cluster_size = 0;
		return "cluster_size_0";
	case 4:
		a->bytes = 100;
		return "bytes_100";
	case 5:
		a->rounds = 0;
		return "rounds_0";
	case 6:
		a->test = CAIRN_DSMEM_MULTICAST;
		return "src_null";
	case 7:
		a->test = CAIRN_DSMEM_LOAD;
		a->cluster_size = 4;
		a->rounds = 4;
		return "load_rounds_uneven";
	case 8:
		*want = -EOPNOTSUPP;
		a->cluster_size = 17;
		return "cluster_size_17";
	case 9:
		a->size = 8;
		return "old_struct";
	}
	return NULL;
}

static void all_rows_have_names(struct cairn_test *t)
{
	struct cairn_case a, b;

	for (int i = 0; i < FIRST_SLOTS + NUM_SLOTS; i++)
		for (int k = 0; k < i; k++) {
			describe(i, &a);
			describe(k, &b);
			EXPECT(t, a.name[0] && strcmp(a.name, b.name));
		}
	describe(NUM_SMALL + NUM_BENCHES - 1, &a);
	EXPECT_CONTAINS(t, a.name, "latency_hbm");
	cairn_pairs_check(t, &ends, NUM_ENDS);
	cairn_pairs_check(t, &slots, NUM_SLOTS);
}

static const struct cairn_unit units[] = { { "all_rows_have_names", all_rows_have_names } };

const struct cairn_family cairn_dsmem_family = {
	.stage = "primitives",
	.name = "dsmem",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.op = offsetof(struct cairn_impl, dsmem),
	.args_size = sizeof(struct cairn_dsmem_args),
	.timing_fields = { offsetof(struct cairn_dsmem_args, time),
			   offsetof(struct cairn_dsmem_args, pair_cycles),
			   offsetof(struct cairn_dsmem_args, smid) },
	.num_cases = FIRST_SLOTS + NUM_SLOTS,
	.describe = describe,
	.setup = setup,
	.judge = judge,
	.reject = reject,
	.extra = extra,
};
