// SPDX-License-Identifier: Apache-2.0
/*
 * check - `cairn check`: every selected case on every selected table
 *
 * Families run side by side, each in one or more processes (check_child.h). A process is started whenever a
 * processor is free, for the family that has most work left for each of its processes. Families that mostly
 * wait, for sockets and clocks, run next to the others, one at a time. A family is printed when it is
 * complete, so that a run that is cut short shows what it has done.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "conformance/suite/check_child.h"
#include "conformance/suite/check_report.h"
#include "conformance/suite/families.h"
#include "conformance/suite/threads.h"
#include "conformance/tables/program.h"
#include "conformance/tables/tables.h"

#define MAX_FAMILIES	256

/* A family: its cases, and what is known of them. */
struct group {
	struct cairn_check_family r;	/* the results */
	struct cairn_check_work work;	/* how its processes begin */
	struct cairn_selected *cases;
	uint8_t *takes;
	int *order;
	int running, started;		/* processes */
	int printed;
};

struct worker {
	struct cairn_child child;
	struct group *g;
	struct cairn_check_work work;
	int impl, item;			/* under way; impl -1: none */
	int last_impl, last_item;	/* begun last */
	char *notes;			/* diagnostics of the case under way */
};

struct run {
	const struct cairn_options *opt;
	struct cairn_impl impls[CAIRN_MAX_IMPLS];
	struct cairn_check_shared *shared;
	struct group *groups[MAX_FAMILIES];
	int num_groups;
	struct worker *workers[CAIRN_CHECK_MAX_WORKERS];
	uint8_t slots[CAIRN_CHECK_MAX_WORKERS];	/* 1: taken by a process */
	int num_workers;
	int jobs;
};

static void *shared_memory(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

/* ---- selection ---- */

struct collect {
	struct group *g;
	const struct cairn_options *opt;
	int room;
	int *number;			/* of all cases selected so far, for --shard */
};

static int collect_one(const struct cairn_selected *s, void *arg)
{
	struct collect *c = arg;
	struct group *g = c->g;
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
 * Chooses the cases of --sanitize. This makes some cases, and must do so on one thread: a process forked from
 * one with a team of OpenMP threads would wait for threads that it does not have.
 */
static int plan_selection(struct run *r, struct group *g)
{
	const struct cairn_family *f = g->work.f;
	int threads = cairn_get_threads(), planned = -1;

	g->work.takes = g->takes = malloc((size_t)g->work.num_cases);
	cairn_set_threads(1);
	if (g->takes)
		planned = cairn_sanitize_plan(r->opt, f, g->takes, g->work.num_cases);
	cairn_set_threads(threads);
	return planned < 0 ? cairn_error(ENOMEM, "--sanitize: no memory for family %s", f->name) : 0;
}

/* Adds family f with its selected cases, the costly ones first, unless there are none. */
static int add_group(struct run *r, const struct cairn_family *f, int *number)
{
	struct group *g = calloc(1, sizeof(*g));
	struct collect c = { .g = g, .opt = r->opt, .number = number };
	struct cairn_check_work *w;

	if (!g || r->num_groups == MAX_FAMILIES)
		return cairn_error(ENOMEM, "no memory for family %s", f->name);
	w = &g->work;
	CAIRN_TRY(cairn_each(r->opt, f, collect_one, &c));
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
					  g->cases,
					  cairn_check_items(w)));
	r->groups[r->num_groups++] = g;
	return 0;
}

static void free_group(struct group *g)
{
	cairn_check_family_close(&g->r);
	munmap(g->work.counter, sizeof(*g->work.counter));
	free(g->cases);
	free(g->takes);
	free(g->order);
	free(g);
}

/* ---- processes ---- */

static void child_run(FILE *out, void *arg)
{
	struct worker *w = arg;

	cairn_check_child(out, &w->work);
}

static void add_note(struct worker *w, const char *text)
{
	size_t had = w->notes ? strlen(w->notes) : 0, len = strlen(text);
	char *longer = realloc(w->notes, had + len + 2);

	if (!longer)
		abort();
	memcpy(longer + had, text, len);
	strcpy(longer + had + len, "\n");
	w->notes = longer;
}

static void child_line(char *text, void *arg)
{
	struct worker *w = arg;
	struct group *g = w->g;
	struct cairn_check_result result = { .verdict = text[0] };
	int impl, item = 0, at = 0;

	if (text[0] == 'D') {
		add_note(w, text + 2);
		return;
	}
	if (text[0] == 'E' && sscanf(text + 2, "%d %n", &impl, &at) == 1 && impl < g->work.num_impls) {
		cairn_check_death(&g->r, impl, -1, text + 2 + at);
		return;
	}
	if (!strchr("BPFS", text[0]) || sscanf(text + 1, "%d %d %n", &impl, &item, &at) < 2 || impl < 0 ||
	    impl >= g->work.num_impls || item < 0 || item >= cairn_check_items(&g->work))
		return;
	text += 1 + at;
	result.at = g->order[item % g->work.num_cases];
	switch (result.verdict) {
	case 'B':
		w->impl = w->last_impl = impl;
		w->item = w->last_item = item;
		return;
	case 'P':
		sscanf(text, "%lf %lld %lf", &result.ratio, &result.judged, &result.seconds);
		break;
	case 'F':
		sscanf(text, "%lf", &result.seconds);
		break;
	case 'S':
		result.text = strdup(text);
		break;
	}
	result.notes = w->notes;
	w->notes = NULL;
	w->impl = -1;
	cairn_check_result(&g->r, impl, &result);
}

static int start(struct run *r, struct group *g, int resume_item, int resume_impl)
{
	struct worker *w = calloc(1, sizeof(*w));

	if (!w)
		return cairn_error(ENOMEM, "no memory for a test process");
	w->g = g;
	w->work = g->work;
	w->work.resume_item = resume_item;
	w->work.resume_impl = resume_impl;
	w->impl = w->last_impl = w->last_item = -1;
	while (r->slots[w->work.slot])
		w->work.slot++;
	r->slots[w->work.slot] = 1;
	w->child = (struct cairn_child){ .run = child_run, .line = child_line, .arg = w,
		.timeout_s = cairn_timeout_s(r->opt, g->work.f) };
	if (!g->work.f->waits)
		atomic_fetch_add(&r->shared->working, 1);
	CAIRN_TRY(cairn_child_start(&w->child));
	r->workers[r->num_workers++] = w;
	g->running++;
	g->started++;
	return 0;
}

/*
 * Handles the end of a process. One that died is followed by another, which goes on with what is left of
 * its case.
 */
static int ended(struct run *r, int i)
{
	struct worker *w = r->workers[i];
	struct group *g = w->g;
	int is_units = g->work.f->num_cases == 0, ret = 0;

	r->workers[i] = r->workers[--r->num_workers];
	r->slots[w->work.slot] = 0;
	r->shared->claims[w->work.slot] = 0;
	g->running--;
	if (!g->work.f->waits)
		atomic_fetch_sub(&r->shared->working, 1);
	if (w->impl >= 0 && !w->child.death[0])
		snprintf(w->child.death, sizeof(w->child.death), "EXIT before the end");
	if (w->child.death[0]) {
		if (w->impl >= 0) {
			struct cairn_check_result result = { .verdict = 'F',
				.at = g->order[w->item % g->work.num_cases],
				.text = strdup(w->child.death), .notes = w->notes };

			w->notes = NULL;
			cairn_check_result(&g->r, w->impl, &result);
		}
		if (w->last_impl < 0 && w->impl < 0) {
			/* died before its first case: no other one would fare better */
			for (int k = 0; k < g->work.num_impls; k++)
				if (!atomic_exchange(&g->work.counter->dead[k], 1))
					cairn_check_death(&g->r, k, -1, w->child.death);
		} else {
			if (!is_units) {
				atomic_store(&g->work.counter->dead[w->last_impl], 1);
				cairn_check_death(&g->r, w->last_impl,
						  g->order[w->last_item % g->work.num_cases],
						  w->child.death);
			}
			ret = start(r, g, w->last_item, w->last_impl + 1);
		}
	}
	free(w->notes);
	free(w);
	return ret;
}

static int items_left(const struct group *g)
{
	int left = cairn_check_items(&g->work) - atomic_load(&g->work.counter->next), alive = 0;

	for (int k = 0; k < g->work.num_impls; k++)
		alive |= !atomic_load(&g->work.counter->dead[k]);
	return alive && left > 0 ? left : 0;
}

/*
 * Estimated processor seconds of what is left, for each process if one more is started; 0: none is worth
 * starting.
 */
static double worth(const struct group *g)
{
	int left = items_left(g);
	double seconds = g->work.f->cost_s > 0 ? g->work.f->cost_s : 0.5;

	if (!left || (g->running && left <= g->running))
		return 0;
	seconds *= (double)left / cairn_check_items(&g->work) / (g->running + 1);
	return g->running && seconds < 1 ? 0 : seconds;
}

/* Starts processes while there are free processors; one family that waits is always under way. */
static int start_more(struct run *r)
{
	for (;;) {
		struct group *best = NULL, *waiting = NULL;
		int computing = 0, waits = 0;

		for (int i = 0; i < r->num_groups; i++) {
			struct group *g = r->groups[i];

			if (g->work.f->waits) {
				waits += g->running;
				if (!g->started && !waiting)
					waiting = g;
				continue;
			}
			computing += g->running;
			if (worth(g) > 0 && (!best || worth(g) > worth(best)))
				best = g;
		}
		if (waiting && !waits)
			CAIRN_TRY(start(r, waiting, -1, 0));
		else if (best && computing < r->jobs)
			CAIRN_TRY(start(r, best, -1, 0));
		else
			return 0;
	}
}

static int run_all(struct run *r, struct cairn_check_sink *sink)
{
	struct cairn_child *children[CAIRN_CHECK_MAX_WORKERS];

	for (int i = 0; i < r->num_groups; i++)
		r->groups[i]->r.json = sink->json;
	for (;;) {
		CAIRN_TRY(start_more(r));
		for (int i = 0; i < r->num_groups; i++) {
			struct group *g = r->groups[i];

			if (g->printed || !g->started || g->running || items_left(g))
				continue;
			cairn_check_print(sink, &g->r);
			g->printed = 1;
		}
		if (!r->num_workers)
			break;
		for (int i = 0; i < r->num_workers; i++)
			children[i] = &r->workers[i]->child;
		CAIRN_TRY(ended(r, cairn_children_wait(children, r->num_workers)));
	}
	/* No family is left out of the verdict: cases that no process has run count as failed. */
	for (int i = 0; i < r->num_groups; i++)
		if (!r->groups[i]->printed)
			cairn_check_print(sink, &r->groups[i]->r);
	return 0;
}

/* ---- the command ---- */

static int open_tables(struct run *r)
{
	for (int k = 0; k < r->opt->num_impls; k++) {
		int ret = cairn_impl_open(r->opt->impls[k], &r->impls[k]);

		if (ret == -ENODEV && !strcmp(r->opt->impls[k], "cuda")) {
			/* a build without CUDA still counts its cases, as skipped */
			r->impls[k] = cairn_host_runtime;
			r->impls[k].name = "cuda";
		} else if (ret) {
			return ret;
		}
	}
	return 0;
}

static int open_shared(struct run *r)
{
	pthread_mutexattr_t attr;

	r->shared = shared_memory(sizeof(*r->shared));
	if (!r->shared)
		return cairn_error(ENOMEM, "no shared memory");
	pthread_mutexattr_init(&attr);
	pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(&r->shared->memory, &attr);
	pthread_mutexattr_destroy(&attr);
	return 0;
}

static int set_up(struct run *r)
{
	int number = 0;

	CAIRN_TRY(open_tables(r));
	CAIRN_TRY(open_shared(r));
	/* compute-sanitizer slows a process down and takes memory for each, so they come one by one */
	r->jobs = r->opt->jobs ? r->opt->jobs : r->opt->sanitize ? 1 : cairn_num_processors();
	if (r->jobs > 256)
		r->jobs = 256;
	for (const struct cairn_family *const *f = cairn_families(); *f; f++)
		CAIRN_TRY(add_group(r, *f, &number));
	return 0;
}

int cairn_cmd_check(const struct cairn_options *opt)
{
	struct run *r = calloc(1, sizeof(*r));
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
