// SPDX-License-Identifier: Apache-2.0
#include "conformance/check/check_report.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/tables/program.h"
#include "primitives/base/error.h"

int cairn_check_family_open(struct cairn_check_family *r, const struct cairn_options *opt,
			    const struct cairn_family *f, const struct cairn_impl *impls, int num_rows,
			    const struct cairn_selected *cases, const int *order, int num_cases)
{
	memset(r, 0, sizeof(*r));
	r->opt = opt;
	r->f = f;
	r->cases = cases;
	r->order = order;
	r->num_cases = num_cases;
	r->num_rows = num_rows;
	r->expected = num_cases;
	for (int k = 0; k < num_rows; k++) {
		struct cairn_check_row *w = &r->rows[k];

		w->impl = impls ? impls[k].name : NULL;
		w->impl_option = impls ? opt->impls[k] : NULL;
		w->results = calloc((size_t)r->expected, sizeof(*w->results));
		w->seen = calloc((size_t)r->expected, 1);
		if (!w->results || !w->seen)
			return cairn_error(ENOMEM, "no memory for the results of family %s", f->name);
	}
	return 0;
}

static void free_texts(struct cairn_check_result *x)
{
	free(x->text);
	free(x->notes);
	x->text = x->notes = NULL;
}

void cairn_check_family_close(struct cairn_check_family *r)
{
	for (int k = 0; k < r->num_rows; k++) {
		for (int i = 0; i < r->rows[k].num_results; i++)
			free_texts(&r->rows[k].results[i]);
		free(r->rows[k].results);
		free(r->rows[k].seen);
	}
	memset(r, 0, sizeof(*r));
}

void cairn_check_result(struct cairn_check_family *r, int row, struct cairn_check_result *result)
{
	struct cairn_check_row *w = &r->rows[row];

	if (w->seen[result->item]) {
		free_texts(result);
		return;
	}
	w->seen[result->item] = 1;
	result->at = r->order[result->item];
	result->seed = r->cases[result->at].seed;
	w->results[w->num_results++] = *result;
}

void cairn_check_fail(struct cairn_check_family *r, int row, int item, const char *how)
{
	struct cairn_check_row *w = &r->rows[row];

	for (int i = 0; i < w->num_results; i++) {
		struct cairn_check_result *x = &w->results[i];

		if (x->item != item || x->verdict == 'F')
			continue;
		free(x->text);
		x->text = strdup(how);
		x->verdict = 'F';
	}
}

void cairn_check_death(struct cairn_check_family *r, int row, const char *how)
{
	struct cairn_check_row *w = &r->rows[row];

	if (!w->death[0])
		snprintf(w->death, sizeof(w->death), "%s", how);
}

/* Gives every item a result. */
static void complete(struct cairn_check_family *r, int row)
{
	struct cairn_check_row *w = &r->rows[row];
	const char *why = w->death[0] ? w->death : "the process ended before";
	char text[300];

	snprintf(text, sizeof(text), "not run: %s", why);
	for (int i = 0; i < r->expected; i++) {
		struct cairn_check_result x = { .verdict = r->left_out[0] ? 'S' : 'N', .item = i };

		if (w->seen[i])
			continue;
		x.text = strdup(r->left_out[0] ? r->left_out : text);
		cairn_check_result(r, row, &x);
	}
}

static int by_case(const void *a, const void *b)
{
	const struct cairn_check_result *x = a, *y = b;

	return x->at != y->at ? x->at - y->at : x->item - y->item;
}

/* ---- the parts of the output ---- */

static void print_notes(const char *notes)
{
	while (notes && *notes) {
		size_t n = strcspn(notes, "\n");

		printf("    # %.*s\n", (int)n, notes);
		notes += n + (notes[n] == '\n');
	}
}

static void print_result(const struct cairn_check_family *r, const struct cairn_check_row *w,
			 const struct cairn_check_result *x, int *lines)
{
	const char *name = r->cases[x->at].name;
	char again[8192];

	if (x->verdict == 'N')		/* counted below */
		return;
	print_notes(x->notes);
	if (x->verdict == 'F') {
		if (x->text)
			printf("    # %s, at %s\n", x->text, name);
		cairn_check_again(r, w, x, again, sizeof(again));
		printf("    # again: %s\n    not ok %d - %s%s%s\n", again, ++*lines, name,
		       x->text ? " # " : "", x->text ? x->text : "");
	} else if (r->opt->verbose && x->verdict == 'S') {
		printf("    ok %d - %s # SKIP %s\n", ++*lines, name, x->text ? x->text : "");
	} else if (r->opt->verbose) {
		printf("    ok %d - %s # err/bound %.3g, %.3f s\n", ++*lines, name, x->ratio, x->seconds);
	}
}

static void note_slow(struct cairn_check_sink *sink, const struct cairn_check_row *w,
		      const struct cairn_check_result *x,
		      const char *name)
{
	int num = sink->opt->slowest, i = num - 1;

	if (!num || x->seconds <= sink->slow[i].seconds)
		return;
	for (; i > 0 && sink->slow[i - 1].seconds < x->seconds; i--)
		sink->slow[i] = sink->slow[i - 1];
	sink->slow[i].seconds = x->seconds;
	snprintf(sink->slow[i].name, sizeof(sink->slow[i].name), "%.20s%s%s", w->impl ? w->impl : "",
		 w->impl ? ":" : "", name);
}

/* ---- a family ---- */

static void print_row(struct cairn_check_sink *sink, struct cairn_check_family *r, int row)
{
	struct cairn_check_row *w = &r->rows[row];
	struct cairn_totals here = { 0, 0, 0 };
	const char *skip_reason = "";
	double worst = 0, seconds = 0;
	char suite[512];
	int lines = 0, missing = 0, judged = 0;

	complete(r, row);
	snprintf(suite, sizeof(suite), "%s%s%s.%s", w->impl ? w->impl : "", w->impl ? ":" : "", r->f->stage,
		 r->f->name);
	qsort(w->results, (size_t)w->num_results, sizeof(*w->results), by_case);
	if (sink->junit)
		cairn_check_junit_suite(sink->junit, suite);
	for (int i = 0; i < w->num_results; i++) {
		const struct cairn_check_result *x = &w->results[i];

		here.passed += x->verdict == 'P';
		here.failed += x->verdict == 'F' || x->verdict == 'N';
		here.skipped += x->verdict == 'S';
		missing += x->verdict == 'N';
		judged += x->verdict != 'S' && (!w->impl || r->cases[x->at].what != CAIRN_SEL_UNIT);
		worst = x->ratio > worst ? x->ratio : worst;
		seconds += x->seconds;
		if (x->verdict == 'S' && x->text)
			skip_reason = x->text;
		if (!r->left_out[0])
			print_result(r, w, x, &lines);
		note_slow(sink, w, x, r->cases[x->at].name);
		if (sink->json)
			cairn_check_json(sink->json, r, w, x);
		if (sink->junit)
			cairn_check_junit(sink->junit, r, w, x, suite);
	}
	if (w->death[0])
		printf("    # %s\n", w->death);
	if (missing > 0)
		printf("    # %d further cases were not run and count as failed\n", missing);
	if (sink->junit)
		fprintf(sink->junit, "</testsuite>\n");
	sink->sum.passed += here.passed;
	sink->sum.failed += here.failed;
	sink->sum.skipped += here.skipped;
	sink->not_run += missing;
	if (r->left_out[0])
		return;
	printf("%s %d - %s # %d passed, %d failed, %d skipped, %.1f s", here.failed ? "not ok" : "ok",
	       ++sink->number, suite,
	       here.passed, here.failed, here.skipped, seconds);
	if (worst > 0)
		printf(", worst err/bound %.2f", worst);
	if (missing > 0)
		printf(", %d of the failed not run", missing);
	if (here.skipped && !judged && !here.failed)
		printf(" # SKIP %s", skip_reason);
	printf("\n");
}

void cairn_check_print(struct cairn_check_sink *sink, struct cairn_check_family *r)
{
	for (int k = 0; k < r->num_rows; k++)
		print_row(sink, r, k);
	fflush(stdout);
	if (sink->json)
		fflush(sink->json);
}

/* ---- the whole ---- */

static int open_file(FILE **f, const char *path, const char *mode, const char *option)
{
	if (path && !(*f = fopen(path, mode))) {
		fprintf(stderr, "cairn check: --%s: %s: cannot be written\n", option, path);
		return -EINVAL;
	}
	return 0;
}

int cairn_check_sink_open(struct cairn_check_sink *sink)
{
	const struct cairn_options *opt = sink->opt;

	if (open_file(&sink->json, opt->json, "a", "json") ||
	    open_file(&sink->junit, opt->junit, "w", "junit"))
		return -EINVAL;
	if (opt->slowest && !(sink->slow = calloc((size_t)opt->slowest, sizeof(*sink->slow))))
		return -ENOMEM;
	if (sink->junit)
		fprintf(sink->junit,
			"<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"cairn\">\n");
	printf("TAP version 14\n# seed %llu, source %s\n", (unsigned long long)opt->seed,
	       cairn_source_digest());
	return 0;
}

int cairn_check_sink_close(struct cairn_check_sink *sink)
{
	const struct cairn_options *opt = sink->opt;
	int lost;

	printf("1..%d\n", sink->number);
	if (sink->junit)
		fprintf(sink->junit, "</testsuites>\n");
	lost = cairn_close_output(sink->json, "check", "json", opt->json);
	if (cairn_close_output(sink->junit, "check", "junit", opt->junit))
		lost = -EIO;
	for (int i = 0; i < opt->slowest && sink->slow[i].name[0]; i++)
		printf("# %8.3f s  %s\n", sink->slow[i].seconds, sink->slow[i].name);
	free(sink->slow);
	printf("%d passed, %d failed, %d skipped", sink->sum.passed, sink->sum.failed, sink->sum.skipped);
	if (sink->not_run)
		printf(" (%d of the failed cases were not run)", sink->not_run);
	printf("\n");
	return lost;
}
