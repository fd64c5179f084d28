// SPDX-License-Identifier: Apache-2.0
/*
 * check - `cairn check`: every selected case on every selected table
 *
 * Families run side by side, each in one or more processes (check_child.h). Whenever a processor is free, the
 * family with the most work left per process gets a new process, or one that another family has left.
 * Families that mostly wait for sockets and clocks run beside the others: two at a time on two processors,
 * and one more for every four. One at a time would take longer than all computing. A family is printed as
 * soon as it is complete, so that an interrupted run shows what it has done.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "conformance/check/check_run.h"
#include "conformance/check/check_scope.h"
#include "conformance/suite/families.h"
#include "conformance/suite/threads.h"
#include "conformance/tables/program.h"
#include "conformance/tables/tables.h"

static void *shared_memory(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

/* ---- selection ---- */

struct collect {
	struct cairn_check_group *g;
	const struct cairn_options *opt;
	int room;
	int *number;			/* of all cases selected so far, for --shard */
};

static int collect_one(const struct cairn_selected *s, void *arg)
{
	struct collect *c = arg;
	struct cairn_check_group *g = c->g;
	int number = (*c->number)++;

	if (c->opt->num_shards && number % c->opt->num_shards != c->opt->shard - 1)
		return 0;
	if (g->work.num_cases == c->room) {
		c->room = c->room ? 2 * c->room : 64;
		g->cases = realloc(g->cases, (size_t)c->room * sizeof(*g->cases));
		if (!g->cases)
			abort();
	}
	g->cases[g->work.num_cases++] = *s;
	return 0;
}

static int by_cost(const void *a, const void *b, void *arg)
{
	const struct cairn_selected *cases = arg;
	int x = *(const int *)a, y = *(const int *)b;
	double cx = cairn_cost(&cases[x]), cy = cairn_cost(&cases[y]);

	return cx > cy ? -1 : cx < cy ? 1 : x - y;
}

/*
 * Chooses the cases of --sanitize. This runs setup for some cases, and must do so on one thread: a child that
 * is forked after OpenMP has started its threads would wait for threads that exist only in its parent.
 */
static int plan_selection(struct cairn_check_run *r, struct cairn_check_group *g)
{
	const struct cairn_family *f = g->work.f;
	int threads = cairn_get_threads(), planned = -1;
	/* all seeds of --repeat have the same cases, unless --shard divides them otherwise */
	int one_seed = g->work.num_cases < r->opt->repeat ? 1 : g->work.num_cases / r->opt->repeat;

	g->work.takes = g->takes = malloc((size_t)g->work.num_cases);
	cairn_set_threads(1);
	if (g->takes)
		planned = cairn_sanitize_plan(r->opt, f, g->takes, one_seed);
	for (int i = one_seed; planned >= 0 && i < g->work.num_cases; i++)
		g->takes[i] = g->takes[i % one_seed];
	cairn_set_threads(threads);
	return planned < 0 ? cairn_error(ENOMEM, "--sanitize: no memory for family %s", f->name) : 0;
}

/*
 * Selects the cases once for each seed of --repeat, so that each seed draws its own. For an operation that no
 * table has, none are drawn.
 */
static int collect_cases(struct cairn_check_run *r, const struct cairn_family *f, struct collect *c)
{
	struct cairn_options one = *r->opt;
	int has_op = 0;

	for (int k = 0; f->num_cases && k < r->opt->num_impls; k++)
		has_op |= cairn_check_has_op(&r->impls[k], f);
	if (!has_op)
		one.drawn = 0;
	for (int i = 0; i < r->opt->repeat; i++, one.seed++)
		CAIRN_TRY(cairn_each(&one, f, collect_one, c));
	return 0;
}

/* Adds family f with its selected cases, costly ones first; adds nothing if no case is selected. */
static int add_group(struct cairn_check_run *r, const struct cairn_family *f, int *number)
{
	struct cairn_check_group *g = calloc(1, sizeof(*g));
	struct collect c = { .g = g, .opt = r->opt, .number = number };
	struct cairn_check_work *w;

	if (!g)
		return cairn_error(ENOMEM, "no memory for family %s", f->name);
	if (r->num_groups == CAIRN_MAX_FAMILIES)
		return cairn_error(ENOMEM, "family %s is one more than the %d that a run may have", f->name,
				   CAIRN_MAX_FAMILIES);
	w = &g->work;
	CAIRN_TRY(collect_cases(r, f, &c));
	if (!w->num_cases) {
		free(g);
		return 0;
	}
	*w = (struct cairn_check_work){ .opt = r->opt, .f = f, .impls = r->impls, .cases = g->cases,
		.num_cases = w->num_cases, .num_impls = f->num_cases ? r->opt->num_impls : 1,
		.shared = r->shared, .resume_item = -1 };
	w->order = g->order = malloc((size_t)w->num_cases * sizeof(int));
	w->counter = shared_memory(sizeof(*w->counter));
	if (!g->order || !w->counter)
		return cairn_error(ENOMEM, "no memory for family %s", f->name);
	for (int i = 0; i < w->num_cases; i++)
		g->order[i] = i;
	if (f->num_cases)
		qsort_r(g->order, (size_t)w->num_cases, sizeof(int), by_cost, g->cases);
	if (r->opt->sanitize && f->num_cases)
		CAIRN_TRY(plan_selection(r, g));
	CAIRN_TRY(cairn_check_family_open(&g->r, r->opt, f, f->num_cases ? r->impls : NULL, w->num_impls,
					  g->cases, g->order, w->num_cases));
	cairn_check_left_out(r->opt, r->impls, f, g->r.left_out, sizeof(g->r.left_out));
	for (int k = 0; g->r.left_out[0] && k < w->num_impls; k++)
		atomic_store(&w->counter->dead[k], 1);
	r->groups[r->num_groups++] = g;
	return 0;
}

static void free_group(struct cairn_check_group *g)
{
	cairn_check_family_close(&g->r);
	munmap(g->work.counter, sizeof(*g->work.counter));
	free(g->cases);
	free(g->takes);
	free(g->order);
	free(g);
}

/* ---- processes ---- */

static int items_left(const struct cairn_check_group *g)
{
	int left = g->work.num_cases - atomic_load(&g->work.counter->next), alive = 0;

	for (int k = 0; k < g->work.num_impls; k++)
		alive |= !atomic_load(&g->work.counter->dead[k]);
	return alive && left > 0 ? left : 0;
}

/*
 * Estimates the processor seconds that each process of g would have left if one more were started. Returns 0
 * if one more is not worth starting.
 */
static double worth(const struct cairn_check_group *g)
{
	int left = items_left(g);
	double seconds = g->work.f->cost_s > 0 ? g->work.f->cost_s : 0.5;

	if (!left || (g->running && (left <= g->running || g->work.f->one_process)))
		return 0;
	seconds *= (double)left / g->work.num_cases / (g->running + 1);
	return g->running && seconds < 1 ? 0 : seconds;
}

int cairn_check_neediest(const struct cairn_check_run *r)
{
	int best = -1;

	for (int i = 0; i < r->num_groups; i++)
		if (!r->groups[i]->work.f->waits && worth(r->groups[i]) > 0 &&
		    (best < 0 || worth(r->groups[i]) > worth(r->groups[best])))
			best = i;
	return best;
}

/*
 * Starts processes while there are free processors, and always keeps some of the waiting families running,
 * each in one process: the longest ones first, so that none of them is left at the end.
 */
static int start_more(struct cairn_check_run *r)
{
	for (;;) {
		struct cairn_check_group *waiting = NULL;
		int best = cairn_check_neediest(r), computing = 0, waits = 0;

		for (int i = 0; i < r->num_groups; i++) {
			struct cairn_check_group *g = r->groups[i];

			if (g->work.f->waits) {
				waits += g->running;
				if (!g->started && !g->r.left_out[0] &&
				    (!waiting || g->work.f->cost_s > waiting->work.f->cost_s))
					waiting = g;
				continue;
			}
			computing += g->running;
		}
		if (waiting && waits <= (r->jobs + 2) / 4)
			CAIRN_TRY(cairn_check_start(r, waiting, -1, 0));
		else if (best >= 0 && computing < r->jobs)
			CAIRN_TRY(cairn_check_start(r, r->groups[best], -1, 0));
		else
			return 0;
	}
}

static void print_scope(const struct cairn_check_run *r)
{
	const struct cairn_check_family *families[CAIRN_MAX_FAMILIES];

	for (int i = 0; i < r->num_groups; i++)
		families[i] = &r->groups[i]->r;
	cairn_check_print_scope(r->opt, r->impls, families, r->num_groups);
}

static int run_all(struct cairn_check_run *r, struct cairn_check_sink *sink)
{
	struct cairn_child *children[CAIRN_CHECK_MAX_WORKERS];

	print_scope(r);
	for (;;) {
		CAIRN_TRY(start_more(r));
		for (int i = 0; i < r->num_groups; i++) {
			struct cairn_check_group *g = r->groups[i];

			if (g->printed || (!g->started && !g->r.left_out[0]) || g->running ||
			    items_left(g))
				continue;
			cairn_check_print(sink, &g->r);
			g->printed = 1;
		}
		if (!r->num_workers)
			break;
		for (int i = 0; i < r->num_workers; i++)
			children[i] = &r->workers[i]->child;
		CAIRN_TRY(cairn_check_ended(r, cairn_children_wait(children, r->num_workers)));
	}
	/* The verdict covers every family: cases that no process has run count as failed. */
	for (int i = 0; i < r->num_groups; i++)
		if (!r->groups[i]->printed)
			cairn_check_print(sink, &r->groups[i]->r);
	return 0;
}

/* ---- the command ---- */

static int open_tables(struct cairn_check_run *r)
{
	for (int k = 0; k < r->opt->num_impls; k++) {
		int ret = cairn_impl_open(r->opt->impls[k], &r->impls[k]);

		if (ret == -ENODEV && !strcmp(r->opt->impls[k], "cuda")) {
			/* a build without CUDA still counts the cases of this table, as skipped */
			r->impls[k] = cairn_host_runtime;
			r->impls[k].name = "cuda";
		} else if (ret) {
			return ret;
		}
	}
	CAIRN_TRY(cairn_check_operations(r->opt, r->impls));
	return cairn_name_apart(r->opt, r->impls);
}

static int open_shared(struct cairn_check_run *r)
{
	pthread_mutexattr_t attr;

	r->shared = shared_memory(sizeof(*r->shared));
	if (!r->shared)
		return cairn_error(ENOMEM, "no shared memory");
	pthread_mutexattr_init(&attr);
	pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(&r->shared->memory, &attr);
	for (int i = 0; i < CAIRN_TURNS; i++)
		pthread_mutex_init(&r->shared->device[i], &attr);
	pthread_mutexattr_destroy(&attr);
	return 0;
}

static int set_up(struct cairn_check_run *r)
{
	int number = 0;

	CAIRN_TRY(open_tables(r));
	CAIRN_TRY(open_shared(r));
	/* compute-sanitizer is slow and takes memory for each process, so only one runs at a time */
	r->jobs = r->opt->jobs ? r->opt->jobs : r->opt->sanitize ? 1 : cairn_num_processors();
	if (r->jobs > 256)
		r->jobs = 256;
	for (const struct cairn_family *const *f = cairn_families(); *f; f++)
		CAIRN_TRY(add_group(r, *f, &number));
	return 0;
}

int cairn_cmd_check(const struct cairn_options *opt)
{
	struct cairn_check_run *r = calloc(1, sizeof(*r));
	struct cairn_check_sink sink = { .opt = opt };
	int status = 2;

	if (!r)
		return 2;
	r->opt = opt;
	if (set_up(r)) {
		fprintf(stderr, "cairn check: %s\n", cairn_last_error());
	} else if (!r->num_groups) {
		fprintf(stderr, "cairn check: no case matches\n");
	} else if (!cairn_check_sink_open(&sink)) {
		int ret = run_all(r, &sink);

		if (ret)
			fprintf(stderr, "cairn check: %s\n", cairn_last_error());
		status = cairn_check_sink_close(&sink) || ret || sink.sum.failed ? 1 : 0;
	}
	for (int i = 0; i < r->num_groups; i++)
		free_group(r->groups[i]);
	free(r);
	return status;
}
