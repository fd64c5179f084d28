// SPDX-License-Identifier: Apache-2.0
#include "conformance/suite/check_report.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/tables/program.h"

int cairn_check_family_open(struct cairn_check_family *r, const struct cairn_options *opt,
			    const struct cairn_family *f, const struct cairn_impl *impls, int num_rows,
			    const struct cairn_selected *cases, int expected)
{
	memset(r, 0, sizeof(*r));
	r->opt = opt;
	r->f = f;
	r->cases = cases;
	r->num_rows = num_rows;
	r->expected = expected;
	for (int k = 0; k < num_rows; k++)
		r->rows[k].impl = impls ? impls[k].name : NULL;
	return 0;
}

void cairn_check_family_close(struct cairn_check_family *r)
{
	for (int k = 0; k < r->num_rows; k++) {
		for (int i = 0; i < r->rows[k].num_results; i++) {
			free(r->rows[k].results[i].text);
			free(r->rows[k].results[i].notes);
		}
		free(r->rows[k].results);
	}
	memset(r, 0, sizeof(*r));
}

static void write_json(FILE *json, const struct cairn_options *opt, const struct cairn_check_row *w,
		       const struct cairn_check_result *x, const char *name)
{
	fprintf(json, "{\"v\":1,\"check\":\"%s\",\"impl\":\"%s\",\"verdict\":\"%s\",\"err_over_bound\":%.4g,"
		"\"seconds\":%.4f,\"seed\":%llu,\"source\":\"%s\"}\n", name, w->impl ? w->impl : "host",
		x->verdict == 'P' ? "pass" : x->verdict == 'F' ? "fail" : "skip", x->ratio, x->seconds,
		(unsigned long long)opt->seed, cairn_source_digest());
}

void cairn_check_result(struct cairn_check_family *r, int row, const struct cairn_check_result *result)
{
	struct cairn_check_row *w = &r->rows[row];

	if (w->num_results == w->room) {
		w->room = w->room ? 2 * w->room : 64;
		w->results = realloc(w->results, (size_t)w->room * sizeof(*w->results));
		if (!w->results)
			abort();
	}
	w->results[w->num_results++] = *result;
	if (r->json)
		write_json(r->json, r->opt, w, result, r->cases[result->at].name);
}

void cairn_check_death(struct cairn_check_family *r, int row, int at, const char *how)
{
	struct cairn_check_row *w = &r->rows[row];

	if (!w->death[0])
		snprintf(w->death, sizeof(w->death), "%.40s%s%.190s", how, at < 0 ? "" : ", at ",
			 at < 0 ? "" : r->cases[at].name);
}

static int by_case(const void *a, const void *b)
{
	const struct cairn_check_result *x = a, *y = b;

	return x->at - y->at;
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

static void print_result(const struct cairn_options *opt, const struct cairn_check_result *x,
			 const char *name, int *lines)
{
	print_notes(x->notes);
	if (x->verdict == 'F' && x->text)
		printf("    # %s, at %s\n    not ok %d - %s # %s\n", x->text, name, ++*lines, name, x->text);
	else if (x->verdict == 'F')
		printf("    not ok %d - %s\n", ++*lines, name);
	else if (opt->verbose && x->verdict == 'S')
		printf("    ok %d - %s # SKIP %s\n", ++*lines, name, x->text ? x->text : "");
	else if (opt->verbose)
		printf("    ok %d - %s # err/bound %.3g, %.3f s\n", ++*lines, name, x->ratio, x->seconds);
}

/* Text inside an XML attribute; control characters, which XML 1.0 cannot hold, become spaces. */
static void write_xml(FILE *f, const char *text)
{
	for (; text && *text; text++) {
		unsigned char c = (unsigned char)*text;

		if (c == '&' || c == '<' || c == '>' || c == '"' || c == '\n')
			fprintf(f, "&#%d;", c);
		else
			fputc(c < 0x20 || c > 0x7e ? ' ' : c, f);
	}
}

static void write_junit(FILE *f, const struct cairn_check_result *x, const char *suite, const char *name)
{
	fprintf(f, "<testcase classname=\"%s\" name=\"%s\" time=\"%.3f\">", suite, name, x->seconds);
	if (x->verdict == 'S') {
		fprintf(f, "<skipped message=\"");
		write_xml(f, x->text);
		fprintf(f, "\"/>");
	} else if (x->verdict == 'F') {
		fprintf(f, "<failure message=\"");
		write_xml(f, x->text ? x->text : x->notes);
		fprintf(f, "\"/>");
	}
	fprintf(f, "</testcase>\n");
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

static void print_row(struct cairn_check_sink *sink, const struct cairn_check_family *r,
		      struct cairn_check_row *w)
{
	struct cairn_totals here = { 0, 0, 0 };
	const char *skip_reason = "";
	double worst = 0, seconds = 0;
	char suite[160];
	int lines = 0, missing = r->expected - w->num_results;

	snprintf(suite, sizeof(suite), "%s%s%s.%s", w->impl ? w->impl : "", w->impl ? ":" : "", r->f->stage,
		 r->f->name);
	qsort(w->results, (size_t)w->num_results, sizeof(*w->results), by_case);
	if (sink->junit)
		fprintf(sink->junit, "<testsuite name=\"%s\">\n", suite);
	for (int i = 0; i < w->num_results; i++) {
		const struct cairn_check_result *x = &w->results[i];
		const char *name = r->cases[x->at].name;

		here.passed += x->verdict == 'P';
		here.failed += x->verdict == 'F';
		here.skipped += x->verdict == 'S';
		worst = x->ratio > worst ? x->ratio : worst;
		seconds += x->seconds;
		if (x->verdict == 'S' && x->text)
			skip_reason = x->text;
		print_result(sink->opt, x, name, &lines);
		note_slow(sink, w, x, name);
		if (sink->junit)
			write_junit(sink->junit, x, suite, name);
	}
	if (missing > 0) {
		printf("    # %s\n    # %d further cases were not run and count as failed\n",
		       w->death[0] ? w->death : "EXIT before the end", missing);
		here.failed += missing;
	}
	if (sink->junit) {
		for (int i = 0; i < missing; i++)
			fprintf(sink->junit,
				"<testcase classname=\"%s\" name=\"not run %d\">"
				"<failure message=\"not run\"/></testcase>\n",
				suite, i + 1);
		fprintf(sink->junit, "</testsuite>\n");
	}
	printf("%s %d - %s # %d passed, %d failed, %d skipped, %.1f s", here.failed ? "not ok" : "ok",
	       ++sink->number, suite,
	       here.passed, here.failed, here.skipped, seconds);
	if (worst > 0)
		printf(", worst err/bound %.2f", worst);
	if (here.skipped && !here.passed && !here.failed)
		printf(" # SKIP %s", skip_reason);
	printf("\n");
	sink->sum.passed += here.passed;
	sink->sum.failed += here.failed;
	sink->sum.skipped += here.skipped;
}

void cairn_check_print(struct cairn_check_sink *sink, struct cairn_check_family *r)
{
	for (int k = 0; k < r->num_rows; k++)
		print_row(sink, r, &r->rows[k]);
	fflush(stdout);
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
	printf("%d passed, %d failed, %d skipped\n", sink->sum.passed, sink->sum.failed, sink->sum.skipped);
	return lost;
}
