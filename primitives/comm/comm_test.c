// SPDX-License-Identifier: Apache-2.0
/*
 * comm_test - communicators of the cpu table, with ranks as threads of this process
 *
 * Ranks in processes of their own are tested by the cases of the collectives (conformance/suite/ranks.h).
 * Threads let a race detector watch the mailboxes: `make check-threads` runs this family under TSan.
 */
#include "conformance/harness.h"
#include "conformance/tables/tables.h"
#include "primitives/comm/comm_measure_test.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAX	CAIRN_COMM_MAX_RANKS
#define HEAP	((size_t)1000)
#define DIM	64
#define CALLS	64

struct group;

struct member {
	struct group *g;
	int32_t rank;
	struct cairn_comm_args args;
	struct cairn_comm comm;
	int ret, calls;
	char text[256];
	uint64_t rng;
	int bad;
};

struct group {
	int32_t ranks;
	pthread_barrier_t met;
	uint8_t board[MAX][CAIRN_COMM_EXCHANGE];
	struct member member[MAX];
	void (*body)(struct member *m);
};

static int exchange(void *arg, const void *mine, void *all, size_t bytes)
{
	struct member *m = arg;
	struct group *g = m->g;

	memcpy(g->board[m->rank], mine, bytes);
	pthread_barrier_wait(&g->met);
	for (int32_t r = 0; r < g->ranks; r++)
		memcpy((uint8_t *)all + (size_t)r * bytes, g->board[r], bytes);
	pthread_barrier_wait(&g->met);
	return 0;
}

static void *run(void *arg)
{
	struct member *m = arg;

	m->ret = cairn_impl_cpu.comm_open(&m->args, &m->comm);
	if (!m->ret)
		m->g->body(m);
	snprintf(m->text, sizeof(m->text), "%s", cairn_last_error());
	pthread_barrier_wait(&m->g->met);	/* nobody closes while another one calls */
	if (m->comm.handle)
		cairn_impl_cpu.comm_close(&m->comm);
	return NULL;
}

static void prepare(struct group *g, int32_t ranks, int32_t timeout_ms, void (*body)(struct member *m))
{
	memset(g, 0, sizeof(*g));
	g->ranks = ranks;
	g->body = body;
	for (int32_t r = 0; r < ranks; r++)
		g->member[r] = (struct member){
			.g = g, .rank = r, .rng = 12345u + (uint64_t)r,
			.args = { .size = sizeof(struct cairn_comm_args), .exchange = exchange,
				  .arg = &g->member[r], .heap_bytes = HEAP, .rank = r, .ranks = ranks,
				  .timeout_ms = timeout_ms },
		};
}

static void run_all(struct cairn_test *t, struct group *g)
{
	pthread_t threads[MAX];

	pthread_barrier_init(&g->met, NULL, (unsigned int)g->ranks);
	for (int32_t r = 0; r < g->ranks; r++)
		EXPECT(t, pthread_create(&threads[r], NULL, run, &g->member[r]) == 0);
	for (int32_t r = 0; r < g->ranks; r++)
		pthread_join(threads[r], NULL);
	pthread_barrier_destroy(&g->met);
}

/* ---- calls ---- */

/* Sums rows whose elements tell the call and the rank; 1 in 8 calls of a rank comes late. */
static void many_calls(struct member *m)
{
	float x[DIM] __attribute__((aligned(16))), out[DIM] __attribute__((aligned(16)));
	float residual[DIM] __attribute__((aligned(16))), weight[DIM] __attribute__((aligned(16)));
	const struct cairn_all_reduce_norm_args a = {
		.size = sizeof(a), .out = out, .residual = residual, .x = x, .weight = weight,
		.comm = m->comm, .rows = 1, .dim = DIM, .dtype = CAIRN_F32, .eps = 1e-5f,
	};

	for (int i = 0; i < DIM; i++)
		weight[i] = 1;
	for (int call = 0; call < CALLS; call++) {
		float want = 1;

		for (int i = 0; i < DIM; i++) {
			x[i] = (float)(call * 10 + m->rank * i);
			residual[i] = 1;
		}
		m->rng = m->rng * 6364136223846793005u + 1;
		if (m->rng >> 61 == 0)
			usleep((useconds_t)(m->rng >> 40) % 300);
		m->ret = cairn_impl_cpu.all_reduce_norm(&a, NULL);
		if (m->ret)
			return;
		for (int32_t r = 0; r < m->g->ranks; r++)
			want += (float)(call * 10 + r * (DIM - 1));
		m->bad += residual[DIM - 1] != want;
		m->calls++;
	}
}

static void ranks_as_threads(struct cairn_test *t)
{
	struct group *g = malloc(sizeof(*g));

	for (int32_t ranks = 1; ranks <= MAX; ranks += ranks < 3 ? 1 : 5) {
		prepare(g, ranks, 0, many_calls);
		run_all(t, g);
		for (int32_t r = 0; r < ranks; r++) {
			EXPECT(t, g->member[r].ret == 0);
			EXPECT(t, g->member[r].calls == CALLS && g->member[r].bad == 0);
		}
	}
	free(g);
}

/* ---- the heap ---- */

static void use_heap(struct member *m)
{
	uint8_t all[MAX], *base = NULL;

	for (int32_t r = 0; r < m->g->ranks; r++) {
		m->bad += cairn_impl_cpu.comm_heap(&m->comm, r, (void **)&base) != 0;
		for (size_t i = 0; i < HEAP; i++)
			m->bad += base[i] != 0;
	}
	exchange(m, &m->rank, all, 1);
	m->bad += cairn_impl_cpu.comm_heap(&m->comm, (m->rank + 1) % m->g->ranks, (void **)&base) != 0;
	base[HEAP - 1] = (uint8_t)(m->rank + 1);
	exchange(m, &m->rank, all, 1);
	m->bad += cairn_impl_cpu.comm_heap(&m->comm, m->rank, (void **)&base) != 0;
	m->bad += base[HEAP - 1] != (m->rank + m->g->ranks - 1) % m->g->ranks + 1;
	m->bad += cairn_impl_cpu.comm_heap(&m->comm, m->g->ranks, (void **)&base) != -EINVAL;
	m->bad += cairn_impl_cpu.comm_heap(&m->comm, -1, (void **)&base) != -EINVAL;
	m->bad += cairn_impl_cpu.comm_heap(&m->comm, 0, NULL) != -EINVAL;
}

static void heap(struct cairn_test *t)
{
	struct group *g = malloc(sizeof(*g));

	prepare(g, 3, 0, use_heap);
	run_all(t, g);
	for (int32_t r = 0; r < 3; r++)
		EXPECT(t, g->member[r].ret == 0 && g->member[r].bad == 0);
	free(g);
}

/* ---- failures ---- */

static void nothing(struct member *m)
{
	(void)m;
}

static void ranks_that_disagree(struct cairn_test *t)
{
	struct group *g = malloc(sizeof(*g));

	prepare(g, 3, 0, nothing);
	g->member[2].args.heap_bytes = HEAP + 1;
	run_all(t, g);
	for (int32_t r = 0; r < 3; r++)
		EXPECT(t, g->member[r].ret == -EINVAL);
	EXPECT_CONTAINS(t, g->member[0].text, "rank 2");
	EXPECT_CONTAINS(t, g->member[0].text, "heap_bytes");
	free(g);
}

/* A rank whose memory cannot be had: all fail, and none waits for ever. */
static void rank_that_fails(struct cairn_test *t)
{
	struct group *g = malloc(sizeof(*g));

	prepare(g, 2, 0, nothing);
	g->member[0].args.heap_bytes = g->member[1].args.heap_bytes = (size_t)1 << 46;
	run_all(t, g);
	for (int32_t r = 0; r < 2; r++)
		EXPECT(t, g->member[r].ret < 0 && !g->member[r].comm.handle);
	free(g);
}

static void bad_arguments(struct cairn_test *t)
{
	struct group *g = malloc(sizeof(*g));
	struct cairn_comm comm = { 0 };
	struct cairn_comm_args good, a;

	prepare(g, 1, 0, nothing);
	good = g->member[0].args;
	EXPECT(t, cairn_impl_cpu.comm_open(NULL, &comm) == -EINVAL);
	EXPECT(t, cairn_impl_cpu.comm_open(&good, NULL) == -EINVAL);
#define BAD(error, change) \
	do { a = good; change; EXPECT(t, cairn_impl_cpu.comm_open(&a, &comm) == error); } while (0)
	BAD(-EINVAL, a.size = 8);
	BAD(-EINVAL, a.exchange = NULL);
	BAD(-EINVAL, a.rank = -1);
	BAD(-EINVAL, a.rank = 1);
	BAD(-EINVAL, a.ranks = 0);
	BAD(-EINVAL, a.timeout_ms = -1);
	BAD(-EINVAL, a.heap_bytes = SIZE_MAX);
	BAD(-EOPNOTSUPP, a.ranks = MAX + 1);
#undef BAD
	EXPECT(t, !comm.handle);
	EXPECT(t, cairn_impl_cpu.comm_error(&comm) == -EINVAL);
	cairn_impl_cpu.comm_abort(&comm);
	cairn_impl_cpu.comm_close(&comm);
	free(g);
}

/* Rank 0 calls, and the others abort or stay away. */
static void wait_in_vain(struct member *m)
{
	float row[8] __attribute__((aligned(16))) = { 1 };
	const struct cairn_all_reduce_norm_args a = {
		.size = sizeof(a), .out = row, .x = row, .weight = row, .comm = m->comm, .rows = 1, .dim = 8,
		.dtype = CAIRN_F32, .eps = 1e-5f,
	};

	if (m->rank == 0) {
		m->ret = cairn_impl_cpu.all_reduce_norm(&a, NULL);
		m->bad += cairn_impl_cpu.all_reduce_norm(&a, NULL) != m->ret;
		m->bad += cairn_impl_cpu.comm_error(&m->comm) != m->ret;
	} else if (m->args.timeout_ms > 1000) {
		usleep(20000);
		cairn_impl_cpu.comm_abort(&m->comm);
	}
}

static void abort_and_time_out(struct cairn_test *t)
{
	struct group *g = malloc(sizeof(*g));

	prepare(g, 2, 60000, wait_in_vain);
	run_all(t, g);
	EXPECT(t, g->member[0].ret == -ECANCELED && g->member[0].bad == 0);
	EXPECT_CONTAINS(t, g->member[0].text, "all_reduce_norm: call 1: rank 1");
	prepare(g, 2, 50, wait_in_vain);
	run_all(t, g);
	EXPECT(t, g->member[0].ret == -ETIMEDOUT && g->member[0].bad == 0);
	EXPECT_CONTAINS(t, g->member[0].text, "did not come in time");
	free(g);
}

static const struct cairn_unit units[] = {
	{ "ranks_as_threads", ranks_as_threads },
	{ "heap", heap },
	{ "ranks_that_disagree", ranks_that_disagree },
	{ "rank_that_fails", rank_that_fails },
	{ "bad_arguments", bad_arguments },
	{ "abort_and_time_out", abort_and_time_out },
};

#define MEASURE(ranks)								\
	static void n##ranks(struct cairn_test *t)				\
	{									\
		comm_measure_ours(t, ranks);					\
	}									\
	static void n##ranks##_nccl(struct cairn_test *t)			\
	{									\
		comm_measure_nccl(t, ranks);					\
	}

MEASURE(2)
MEASURE(4)
MEASURE(8)

static const struct cairn_unit measures[] = {
	{ "n2", n2 }, { "n2_nccl", n2_nccl }, { "n4", n4 }, { "n4_nccl", n4_nccl }, { "n8", n8 },
	{ "n8_nccl", n8_nccl },
};

const struct cairn_family cairn_comm_family = {
	.stage = "primitives", .name = "comm",
	.units = units, .num_units = ARRAY_SIZE(units),
	.measures = measures, .num_measures = ARRAY_SIZE(measures),
	.timeout_s = 120,
};
