// SPDX-License-Identifier: Apache-2.0
/*
 * check_options_test - the options of `cairn check` that divide a run and report it: shards, jobs, JUnit,
 * the slowest cases; one kind of input; and which rows it leaves to `cairn bench`
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/check/check_scope.h"
#include "conformance/harness.h"
#include "conformance/suite/families.h"
#include "conformance/suite/spawn.h"

/* cases that take seconds each */
#define LONG	"*rows131076*"

enum { MAX_NAMES = 4096, NAME = 200 };

/* Runs `cairn check --impl cpu -v FAMILY` with two more arguments; collects the names of its result lines. */
static int names_of(struct cairn_test *t, const char *family, const char *one, const char *two,
		    char (*names)[NAME])
{
	char *argv[] = { "cairn", "check", "--impl", "cpu", "-v", "--skip", LONG, (char *)family, (char *)one,
		(char *)two, NULL };
	char *out = malloc(1 << 20), *save = NULL;
	int num = 0;

	if (!out)
		return 0;
	EXPECT(t, cairn_spawn(argv, out, 1 << 20) == 0);
	for (char *line = strtok_r(out, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
		if (num < MAX_NAMES && line[0] == ' ' && sscanf(line, " ok %*d - %199s", names[num]) == 1)
			num++;
	free(out);
	return num;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(a, b);
}

/* Three shards run every case exactly once, whatever the number of processes. */
static void shards_cover_all(struct cairn_test *t)
{
	static const char *const shards[] = { "1/3", "2/3", "3/3" };
	char (*all)[NAME] = malloc(MAX_NAMES * NAME), (*parts)[NAME] = malloc(MAX_NAMES * NAME);
	int num, sum = 0;

	if (!EXPECT(t, all && parts))
		return;
	num = names_of(t, "primitives.embedding", "--jobs", "3", all);
	for (int i = 0; i < 3; i++) {
		int n = names_of(t, "primitives.embedding", "--shard", shards[i], parts + sum);

		EXPECT(t, n > num / 4);
		sum += n;
	}
	if (!EXPECT(t, num > 50 && sum == num))
		cairn_note(t, "%d cases, %d in the shards", num, sum);
	qsort(all, (size_t)num, NAME, by_name);
	qsort(parts, (size_t)sum, NAME, by_name);
	for (int i = 0; i < num && i < sum; i++)
		if (!EXPECT(t, !strcmp(all[i], parts[i])))
			break;
	free(all);
	free(parts);
}

/* The output does not depend on the number of processes: results come in the order of the cases. */
static void jobs_change_nothing(struct cairn_test *t)
{
	char (*one)[NAME] = malloc(MAX_NAMES * NAME), (*four)[NAME] = malloc(MAX_NAMES * NAME);
	int num;

	if (!EXPECT(t, one && four))
		return;
	num = names_of(t, "primitives.silu_mul", "--jobs", "1", one);
	EXPECT(t, num > 100 && names_of(t, "primitives.silu_mul", "--jobs", "4", four) == num);
	for (int i = 0; i < num; i++)
		if (!EXPECT(t, !strcmp(one[i], four[i])))
			break;
	free(one);
	free(four);
}

static int count(const char *text, const char *what)
{
	int n = 0;

	for (; (text = strstr(text, what)); text += strlen(what))
		n++;
	return n;
}

/* The JUnit file has a test case for each result, and an element for each skip. */
static void junit(struct cairn_test *t)
{
	char path[256], out[1 << 16], *xml = calloc(1, 1 << 20);
	char *argv[] = { "cairn", "check", "--impl", "cpu", "--impl", "cuda", "--junit", path,
		"--skip", LONG, "primitives.embedding", NULL };
	int passed = 0, failed = 0, skipped = 0;
	const char *last;
	FILE *f;

	if (!EXPECT(t, xml))
		return;
	cairn_tmpfile(t, path, sizeof(path), "x.xml", "old", 3);
	EXPECT(t, cairn_spawn(argv, out, sizeof(out)) == 0);
	last = strstr(out, "\n1..2\n");
	EXPECT(t, last && sscanf(last + 6, "%d passed, %d failed, %d skipped", &passed, &failed,
				 &skipped) == 3);
	f = fopen(path, "r");
	if (EXPECT(t, f && fread(xml, 1, (1 << 20) - 1, f) > 1000)) {
		EXPECT(t, !strncmp(xml, "<?xml version=\"1.0\"", 19));
		EXPECT_CONTAINS(t, xml, "</testsuites>\n");
		EXPECT_CONTAINS(t, xml, "<testsuite name=\"cpu:primitives.embedding\">");
		EXPECT(t, count(xml, "<testsuite ") == 2 && count(xml, "</testsuite>") == 2);
		EXPECT(t, count(xml, "<testcase ") == passed + skipped);
		EXPECT(t, count(xml, "<skipped ") == skipped && !count(xml, "<failure "));
	}
	if (f)
		fclose(f);
	free(xml);
}

/* The JUnit file also contains a failure and its reason. */
static void junit_failures(struct cairn_test *t)
{
	char path[256], plugin[4096], out[1 << 16], *xml = calloc(1, 1 << 20);
	char *argv[] = { "cairn", "check", "--impl", plugin, "--drawn", "0", "--junit", path,
			 "primitives.embedding", NULL };
	FILE *f;

	if (!EXPECT(t, xml))
		return;
	if (!cairn_beside("bad_plugin.so", plugin, sizeof(plugin))) {
		cairn_skip(t, "bad_plugin.so is not in the directory of this program");
		free(xml);
		return;
	}
	cairn_tmpfile(t, path, sizeof(path), "x.xml", "", 0);
	setenv("CAIRN_BAD_PLUGIN", "error", 1);
	EXPECT(t, cairn_spawn(argv, out, sizeof(out)) == 1);
	unsetenv("CAIRN_BAD_PLUGIN");
	f = fopen(path, "r");
	if (EXPECT(t, f && fread(xml, 1, (1 << 20) - 1, f) > 1000)) {
		EXPECT_CONTAINS(t, xml, "<failure message=\"the call:");
		EXPECT_CONTAINS(t, xml, "</testsuites>\n");
	}
	if (f)
		fclose(f);
	free(xml);
}

/* As many of the slowest cases as requested come at the end, slowest first. */
static void slowest(struct cairn_test *t)
{
	char out[1 << 16];
	char *argv[] = { "cairn", "check", "--impl", "cpu", "--list-slowest=5", "--skip", LONG,
		"primitives.embedding", NULL };
	double before = 1e9, s;
	int num = 0;

	EXPECT(t, cairn_spawn(argv, out, sizeof(out)) == 0);
	for (const char *c = strstr(out, "\n1..1\n"); c && (c = strstr(c, "\n# ")); c++) {
		char name[NAME];

		if (!EXPECT(t, sscanf(c, "\n# %lf s %199s", &s, name) == 2))
			break;
		EXPECT(t, s <= before && !strncmp(name, "cpu:primitives.embedding.", 25));
		before = s;
		num++;
	}
	EXPECT(t, num == 5);
}

struct kinds {
	unsigned of_case[MAX_NAMES];
	int num_cases;
};

static int note_kind(const struct cairn_selected *s, void *arg)
{
	struct kinds *k = arg;

	if (s->what == CAIRN_SEL_CASE && s->case_index < MAX_NAMES) {
		k->of_case[s->case_index] |= CAIRN_KIND_BIT(s->kind);
		k->num_cases = s->case_index + 1;
	}
	return 0;
}

/* With --one-kind every case remains with one kind, and a family keeps all kinds that it has. */
static void one_kind(struct cairn_test *t)
{
	static const struct cairn_options all = { .seed = 1 }, one = { .seed = 1, .one_kind = 1 };

	for (const struct cairn_family *const *f = cairn_families(); *f; f++) {
		static struct kinds a, b;
		unsigned had = 0, kept = 0;

		a = b = (struct kinds){ 0 };
		cairn_each(&all, *f, note_kind, &a);
		cairn_each(&one, *f, note_kind, &b);
		EXPECT(t, a.num_cases == b.num_cases);
		for (int i = 0; i < a.num_cases; i++) {
			EXPECT(t, !(b.of_case[i] & ~a.of_case[i]));
			EXPECT(t, __builtin_popcount(b.of_case[i]) == !!a.of_case[i]);
			had |= a.of_case[i];
			kept |= b.of_case[i];
		}
		if (!EXPECT(t, had == kept))
			cairn_note(t, "%s", (*f)->name);
	}
}

struct left {
	struct cairn_options opt;
	const struct cairn_family *f;
	int rows, others;		/* cases left to bench, and those of them that it does not time */
};

static int count_left(const struct cairn_selected *s, void *arg)
{
	struct left *l = arg;

	if (cairn_check_left_to_bench(&l->opt, l->f, s)) {
		l->rows++;
		l->others += !s->desc.bench || s->kind != CAIRN_KIND_NORMAL;
	}
	return 0;
}

/* Counts what a run with this GLOB leaves to bench; NULL: a run without one. */
static void count_all(struct left *l, char *const *glob)
{
	*l = (struct left){ .opt = { .globs = glob, .num_globs = !!glob } };
	for (const struct cairn_family *const *f = cairn_families(); *f; f++) {
		l->f = *f;
		if ((*f)->num_cases)
			cairn_each(&l->opt, *f, count_left, l);
	}
}

/* A run leaves large rows to bench, unless a GLOB asks for cases and not for their family. */
static void large_rows_are_benched(struct cairn_test *t)
{
	static char *const globs[] = {
		"*.gemm_fp8", "primitives.gemm_fp8", "primitives.gemm_fp8.m*", "primitives.*.m8192_n*",
	};
	struct left all, some;

	count_all(&all, NULL);
	EXPECT(t, all.rows > 0 && all.others == 0);
	for (int i = 0; i < (int)ARRAY_SIZE(globs); i++) {
		count_all(&some, &globs[i]);
		EXPECT(t, i < 2 ? some.rows > 0 && some.rows < all.rows : some.rows == 0);
	}
}

static const struct cairn_unit units[] = {
	{ "shards_cover_all", shards_cover_all },
	{ "jobs_change_nothing", jobs_change_nothing },
	{ "junit", junit },
	{ "junit_failures", junit_failures },
	{ "slowest", slowest },
	{ "one_kind", one_kind },
	{ "large_rows_are_benched", large_rows_are_benched },
};

const struct cairn_family cairn_check_options_family = {
	.stage = "conformance", .name = "check_options", .units = units, .num_units = ARRAY_SIZE(units),
	.cost_s = 5,
};
