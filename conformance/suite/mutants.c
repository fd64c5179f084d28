// SPDX-License-Identifier: Apache-2.0
/*
 * mutants - `cairn check --mutants`: shows that the cases find every deliberately wrong implementation
 *
 * A mutant is the reference table with one operation replaced by a wrong one. The cases of a family run one
 * after the other: first those that are likely to catch a mutant, then the others, cheap ones first. Each
 * case is opened once, its reference is computed once, and it judges every mutant that no case has caught
 * yet. A mutant that passes all cases fails the suite. Several processes share the mutants of the build: each
 * takes the next family, or the next part of a family with many mutants. A mutant that crashes counts as
 * caught, and another process continues with the next one.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/suite/draw.h"
#include "conformance/suite/families.h"
#include "conformance/suite/op_case.h"
#include "conformance/suite/runner.h"
#include "conformance/suite/threads.h"
#include "conformance/tables/tables.h"

#define PART		12		/* mutants hunted together */
#define MANY		30		/* with --mutants=FILE, a mutant that passes more cases is named */

struct hunted {
	const struct cairn_mutant *m;
	/* the case that probably catches it; NULL: cases whose names begin with `word` probably do */
	const char *likely;
	const char *word;
	size_t word_len;
	int judged;			/* cases that it passed */
	int timed_out;
	char caught_by[224];		/* the case that caught it, or "" */
};

/* A part of a family's mutants. */
struct hunt {
	const struct cairn_options *opt;
	const struct cairn_family *f;
	const struct cairn_impl *ref;
	struct hunted *mutants[PART];
	int num;
	struct cairn_child child;
	int running, under_way;		/* under_way: the mutant that a case is judging, or -1 */
	char case_name[224];

	/* in the child */
	FILE *out;
	void *stream;
	struct cairn_outcome *outcome;
	int likely;
};

static const struct cairn_family *family_of(const struct cairn_mutant *m)
{
	for (const struct cairn_family *const *f = cairn_families(); *f; f++)
		if ((*f)->num_cases && (*f)->op == m->op)
			return *f;
	return NULL;
}

/*
 * Returns whether s is likely to catch h: it is the case that --mutants=FILE names or, if that names none, it
 * begins with the word that follows the family in the mutant's name (fp8_* for moe_fp8_transposed).
 */
static int is_likely(const struct hunted *h, const struct cairn_selected *s)
{
	if (h->likely)
		return !strcmp(h->likely, s->name);
	return s->what == CAIRN_SEL_CASE && !strncmp(s->desc.name, h->word, h->word_len) &&
	       s->desc.name[h->word_len] == '_';
}

/*
 * Returns whether case s must not judge h. Many mutants copy the arguments and ignore that the caller's
 * struct may be longer. The case that detects this would catch them all, so it judges only mutants that have
 * this defect on purpose.
 */
static int is_apart(const struct hunted *h, const struct cairn_selected *s)
{
	return s->what == CAIRN_SEL_REJECT && s->case_index == CAIRN_REJECT_UNKNOWN &&
	       strncmp(h->word, "unknown_", 8) != 0;
}

static void judge(struct hunt *h, int i, const struct cairn_selected *s, struct cairn_op *op,
		  struct cairn_expected *expected)
{
	struct hunted *x = h->mutants[i];
	struct cairn_impl impl = *h->ref;

	impl.name = x->m->name;
	memcpy((char *)&impl + x->m->op, &x->m->fn, sizeof(x->m->fn));
	fprintf(h->out, "B %d %s\n", i, s->name);
	if (s->what == CAIRN_SEL_REJECT)
		cairn_op_reject(h->f, s->case_index, &impl, h->stream, h->opt->seed, h->outcome);
	else
		cairn_op_verify(h->f, op, &impl, h->stream, expected, h->outcome);
	x->judged++;
	if (h->outcome->verdict == CAIRN_PASS || h->outcome->verdict == CAIRN_SKIP) {
		fprintf(h->out, "P %d\n", i);
		return;
	}
	snprintf(x->caught_by, sizeof(x->caught_by), "%s", s->name);
	fprintf(h->out, "F %d %s\n", i, s->name);
}

/* Judges the remaining mutants by case s. Returns how many remained before it. */
static int try_case(struct hunt *h, const struct cairn_selected *s)
{
	struct cairn_expected expected = { 0 };
	struct cairn_op op;
	int open = 0, left = 0;

	for (int i = 0; i < h->num; i++) {
		struct hunted *x = h->mutants[i];

		if (x->caught_by[0] || x->timed_out)
			continue;
		left++;
		if (is_likely(x, s) != h->likely || is_apart(x, s))
			continue;
		if (!open && s->what == CAIRN_SEL_CASE) {
			if (cairn_op_open(&op, h->f, s->case_index, s->kind, h->opt->seed))
				exit(3);
			open = 1;
		}
		judge(h, i, s, &op, &expected);
	}
	if (open) {
		cairn_expected_free(&expected);
		cairn_op_close(&op);
	}
	return left;
}

/* The cases that can catch a mutant, with their numbers in the family. */
struct cases {
	struct numbered {
		struct cairn_selected s;
		int number;
	} *list;
	int num, max;
};

static int collect_case(const struct cairn_selected *s, void *arg)
{
	struct cases *c = arg;

	if (s->what == CAIRN_SEL_UNIT || s->desc.device_only)
		return 0;
	/* many mutants check no arguments; their wrong results must give them away */
	if (s->what == CAIRN_SEL_REJECT && strstr(s->name, ".reject_arguments"))
		return 0;
	if (c->num == c->max) {
		c->max = c->max ? 2 * c->max : 256;
		c->list = realloc(c->list, (size_t)c->max * sizeof(*c->list));
		if (!c->list)
			exit(3);
	}
	c->list[c->num] = (struct numbered){ *s, c->num };
	c->num++;
	return 0;
}

static int by_cost(const void *a, const void *b)
{
	const struct numbered *x = a, *y = b;
	double cx = cairn_cost(&x->s), cy = cairn_cost(&y->s);

	return cx < cy ? -1 : cx > cy ? 1 : x->number - y->number;
}

static void hunt_child(FILE *out, void *arg)
{
	struct hunt *h = arg;
	struct cairn_options all = *h->opt;
	struct cases cases = { 0 };
	int left = 1;

	all.num_globs = all.num_skips = 0;
	h->out = out;
	cairn_set_threads(1);		/* there is a process for each processor */
	h->outcome = calloc(1, sizeof(*h->outcome));
	if (!h->outcome || h->ref->stream_create(&h->stream))
		exit(3);
	if (cairn_each(&all, h->f, collect_case, &cases))
		exit(3);
	all.num_globs = 1;
	for (int i = 0; i < h->num; i++) {	/* a drawn case that --mutants=FILE names */
		char *likely = (char *)(uintptr_t)h->mutants[i]->likely;

		all.globs = &likely;
		if (likely && cairn_draw_named(likely) >= 0 && cairn_each(&all, h->f, collect_case, &cases))
			exit(3);
	}
	qsort(cases.list, (size_t)cases.num, sizeof(*cases.list), by_cost);
	for (h->likely = 1; h->likely >= 0; h->likely--)
		for (int i = 0; i < cases.num && left; i++)
			left = try_case(h, &cases.list[i].s);
	free(cases.list);
	free(h->outcome);
}

static void hunt_line(char *text, void *arg)
{
	struct hunt *h = arg;
	int i, at = 0;

	if (!strchr("BPF", text[0]) || sscanf(text + 1, "%d %n", &i, &at) < 1 || i < 0 || i >= h->num)
		return;
	text += 1 + at;
	if (text[-1 - at] == 'B') {
		h->under_way = i;
		snprintf(h->case_name, sizeof(h->case_name), "%s", text);
		return;
	}
	h->under_way = -1;
	if (text[-1 - at] == 'P')
		h->mutants[i]->judged++;
	else
		snprintf(h->mutants[i]->caught_by, sizeof(h->mutants[i]->caught_by), "%s", text);
}

static int start(struct hunt *h)
{
	h->under_way = -1;
	h->running = 1;
	h->child = (struct cairn_child){ .run = hunt_child, .line = hunt_line, .arg = h,
		.timeout_s = cairn_timeout_s(h->opt, h->f) };
	return cairn_child_start(&h->child);
}

/*
 * Called when the process of h has ended. Returns whether another process must continue with the mutants
 * after the one that ended it.
 */
static int goes_on(struct hunt *h)
{
	struct hunted *x;

	h->running = 0;
	if (!h->child.death[0] || h->under_way < 0)
		return 0;
	x = h->mutants[h->under_way];
	x->timed_out = strstr(h->child.death, "TIMEOUT") != NULL;
	if (!x->timed_out)
		snprintf(x->caught_by, sizeof(x->caught_by), "%.60s (%.100s)", h->child.death, h->case_name);
	return 1;
}

static int run_all(struct hunt *hunts, int num, int jobs)
{
	struct cairn_child *children[256];
	struct hunt *running[256];
	int next = 0, num_running = 0;

	for (;;) {
		int i;

		while (num_running < jobs && next < num) {
			CAIRN_TRY(start(&hunts[next]));
			running[num_running++] = &hunts[next++];
		}
		if (!num_running)
			return 0;
		for (i = 0; i < num_running; i++)
			children[i] = &running[i]->child;
		i = cairn_children_wait(children, num_running);
		if (goes_on(running[i]))
			CAIRN_TRY(start(running[i]));
		else
			running[i] = running[--num_running];
	}
}

/*
 * Distributes the mutants over hunts and returns the number of hunts. A hunt has at most PART mutants, all of
 * one family.
 */
static int distribute(const struct cairn_options *opt, const struct cairn_impl *ref, struct hunted *hunted,
		      int num,
		      struct hunt *hunts)
{
	int num_hunts = 0;

	for (int i = 0; i < num; i++) {
		const struct cairn_family *f = family_of(hunted[i].m);
		struct hunt *last = num_hunts ? &hunts[num_hunts - 1] : NULL;

		if (!f)
			continue;
		if (!last || last->f != f || last->num == PART) {
			last = &hunts[num_hunts++];
			*last = (struct hunt){ .opt = opt, .f = f, .ref = ref };
		}
		last->mutants[last->num++] = &hunted[i];
	}
	return num_hunts;
}

static void collect(struct hunted *x, const struct cairn_mutant *m, const struct cairn_family *f,
		    const struct cairn_list *catchers)
{
	*x = (struct hunted){ .m = m, .likely = cairn_list_match(catchers, m->name), .word = m->name };
	if (f && !strncmp(m->name, f->name, strlen(f->name)) && m->name[strlen(f->name)] == '_')
		x->word += strlen(f->name) + 1;
	x->word_len = strcspn(x->word, "_");
}

int cairn_cmd_mutants(const struct cairn_options *opt)
{
	const struct cairn_mutant *m;
	struct hunted *hunted;
	struct hunt *hunts;
	struct cairn_impl ref;
	int jobs = opt->jobs ? opt->jobs : cairn_num_processors(), caught = 0, total = 0, num_hunts;
	int all = 0;

	while (cairn_mutant_at(all))
		all++;
	hunted = calloc((size_t)all + 1, sizeof(*hunted));
	hunts = calloc((size_t)all + 1, sizeof(*hunts));
	if (!hunted || !hunts || cairn_impl_open("ref", &ref))
		return 2;
	for (int i = 0; (m = cairn_mutant_at(i)); i++) {
		const struct cairn_family *f = family_of(m);
		char name[256];

		snprintf(name, sizeof(name), "%s.%s.%s", f ? f->stage : "", f ? f->name : "", m->name);
		if (!f || cairn_glob_match(opt, f, name))
			collect(&hunted[total++], m, f, &opt->catchers);
	}
	num_hunts = distribute(opt, &ref, hunted, total, hunts);
	if (run_all(hunts, num_hunts, jobs < 256 ? jobs : 256)) {
		fprintf(stderr, "cairn check: %s\n", cairn_last_error());
		return 2;
	}
	for (int i = 0; i < total; i++) {
		const struct hunted *x = &hunted[i];

		caught += x->caught_by[0] != 0;
		if (!x->caught_by[0])
			printf("not ok - %s # %s; %s %d cases\n", x->m->name, x->m->what,
			       x->timed_out ? "TIMEOUT after" : "SURVIVED", x->judged);
		else if (opt->verbose)
			printf("ok - %s # %s; caught by %s\n", x->m->name, x->m->what, x->caught_by);
		else if (opt->catchers.num && x->judged > MANY)
			printf("# %s passed %d cases before %s caught it\n", x->m->name, x->judged,
			       x->caught_by);
	}
	printf("mutants: %d of %d caught\n", caught, total);
	free(hunted);
	free(hunts);
	return caught == total && (total > 0 || opt->num_globs) ? 0 : 1;
}
