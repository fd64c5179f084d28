// SPDX-License-Identifier: Apache-2.0
/* measure_test - measures: the rows they write, how they fail, and what a crash or hang affects */
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "conformance/suite/families.h"
#include "conformance/tables/program.h"
#include "conformance/tables/tables.h"
#include "conformance/suite/runner.h"

static void good(struct cairn_test *t)
{
	EXPECT(t, 1);
	cairn_row(t, "first", "mine", "\"median_ns\":%.1f,\"cycles\":%d", 12.5, 7);
	cairn_host_row(t, "second", "other", "\"n\":%d", 3);
}

/* Fails after it has written a row. */
static void wrong(struct cairn_test *t)
{
	cairn_row(t, "third", "mine", "\"n\":1");
	EXPECT(t, 0);
}

static void nothing(struct cairn_test *t)
{
	cairn_note(t, "P is not a row");
}

static void no_device(struct cairn_test *t)
{
	cairn_skip(t, "no such device");
}

static void crash(struct cairn_test *t)
{
	cairn_row(t, "fourth", "mine", "\"n\":1");
	abort();
}

static void hang(struct cairn_test *t)
{
	(void)t;
	for (;;)
		pause();
}

static const struct cairn_unit probes[] = {
	{ "good", good }, { "wrong", wrong }, { "nothing", nothing }, { "no_device", no_device },
	{ "crash", crash }, { "hang", hang },
};

static const struct cairn_family probe = {
	.stage = "stage", .name = "probe", .measures = probes, .num_measures = ARRAY_SIZE(probes),
	.timeout_s = 3,
};

/* Runs the probes that glob selects (NULL: all). said gets the printed text, rows the JSON rows. */
static struct cairn_totals run(struct cairn_test *t, char *glob, char *said, size_t said_len, json_t **rows)
{
	struct cairn_options opt = { .seed = 1, .repeat = 1, .globs = &glob, .num_globs = !!glob };
	struct cairn_totals sum = { 0, 0, 0 };
	char path[4096], line[4096];
	int out = dup(1), file;
	FILE *json, *text;

	snprintf(path, sizeof(path), "%s/rows", cairn_tmpdir(t));
	json = fopen(path, "w+");
	snprintf(path, sizeof(path), "%s/said", cairn_tmpdir(t));
	file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (!EXPECT(t, json && file >= 0 && out >= 0))
		exit(3);
	fflush(stdout);
	dup2(file, 1);
	cairn_measures(&opt, &probe, json, &sum);
	fflush(stdout);
	dup2(out, 1);
	close(out);
	*rows = json_array();
	rewind(json);
	while (fgets(line, sizeof(line), json)) {
		json_t *row = json_loads(line, 0, NULL);

		if (!EXPECT(t, row != NULL))
			cairn_note(t, "%s", line);
		json_array_append_new(*rows, row);
	}
	fclose(json);
	text = fdopen(file, "r");
	rewind(text);
	said[fread(said, 1, said_len - 1, text)] = 0;
	fclose(text);
	return sum;
}

static const char *word(const json_t *rows, size_t i, const char *key)
{
	const char *s = json_string_value(json_object_get(json_array_get(rows, i), key));

	return s ? s : "(none)";
}

static void rows(struct cairn_test *t)
{
	struct cairn_totals sum;
	char said[4096];
	json_t *got, *row;

	setenv("CAIRN_TIMEOUT", "60", 1);	/* asking for the GPU's name may take seconds */
	sum = run(t, "probe.good", said, sizeof(said), &got);
	EXPECT(t, sum.passed == 2 && sum.failed == 0 && sum.skipped == 0);
	EXPECT(t, json_array_size(got) == 2);
	row = json_array_get(got, 0);
	EXPECT(t, json_integer_value(json_object_get(row, "v")) == 1);
	EXPECT(t, !strcmp(word(got, 0, "op"), "probe") && !strcmp(word(got, 0, "case"), "first") &&
	       !strcmp(word(got, 0, "impl"), "mine"));
	EXPECT(t, json_is_true(json_object_get(row, "ok")));
	EXPECT(t, json_real_value(json_object_get(row, "median_ns")) == 12.5);
	EXPECT(t, json_integer_value(json_object_get(row, "cycles")) == 7);
	EXPECT(t, !strcmp(word(got, 0, "source"), cairn_source_digest()));
	EXPECT(t, word(got, 0, "gpu")[0] != '(' && word(got, 0, "driver")[0] != '(');
	EXPECT(t, !strcmp(word(got, 1, "case"), "second") && !*word(got, 1, "driver"));
	EXPECT_CONTAINS(t, said, "\"median_ns\":12.5,\"cycles\":7\n");
	json_decref(got);
}

/* A failing measure must not affect the others, and its reason must be printed. */
static void failures(struct cairn_test *t)
{
	struct cairn_totals sum;
	char said[8192];
	json_t *got;

	unsetenv("CAIRN_TIMEOUT");
	sum = run(t, NULL, said, sizeof(said), &got);
	EXPECT(t, sum.passed == 2 && sum.failed == 4 && sum.skipped == 1);
	EXPECT(t, json_array_size(got) == 3);
	EXPECT(t, !strcmp(word(got, 2, "case"), "third"));
	EXPECT(t, json_is_false(json_object_get(json_array_get(got, 2), "ok")));
	EXPECT_CONTAINS(t, said, "FAILED stage.probe.wrong\n");
	EXPECT_CONTAINS(t, said, "not so: a measure writes a row");
	EXPECT_CONTAINS(t, said, "FAILED stage.probe.nothing\n");
	EXPECT_CONTAINS(t, said, "skipped stage.probe.no_device: no such device\n");
	EXPECT_CONTAINS(t, said, "FAILED stage.probe.crash: CRASH: signal 6");
	EXPECT_CONTAINS(t, said, "FAILED stage.probe.hang: TIMEOUT after 3 s\n");
	json_decref(got);
}

static void selection(struct cairn_test *t)
{
	char *glob = "stage.probe.h*", *unit = "stage.probe.good.more";
	struct cairn_options opt = { .globs = &glob, .num_globs = 1, .repeat = 1 };

	EXPECT(t, cairn_measures_selected(&opt, &probe) == 1);
	opt.globs = &unit;
	EXPECT(t, cairn_measures_selected(&opt, &probe) == 0);
	opt.num_globs = 0;
	EXPECT(t, cairn_measures_selected(&opt, &probe) == ARRAY_SIZE(probes));
	EXPECT(t, !cairn_family_selected(&opt, &probe));	/* measures are not cases */
}

/*
 * Names are keys of records. They must be distinct and free of characters that are special in globs or JSON.
 */
static void names_are_unique_and_plain(struct cairn_test *t)
{
	for (const struct cairn_family *const *f = cairn_families(); *f; f++)
		for (int i = 0; i < (*f)->num_measures; i++) {
			const char *name = (*f)->measures[i].name;

			if (!EXPECT(t, name[strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_")] == 0))
				cairn_note(t, "%s: measure '%s'", (*f)->name, name);
			for (int k = 0; k < i; k++)
				EXPECT(t, strcmp(name, (*f)->measures[k].name));
		}
}

static void datasheet(struct cairn_test *t)
{
	static const struct {
		const char *gpu;
		double gbps;
	} known[] = {
		{ "NVIDIA H200", 4800 }, { "NVIDIA H200 NVL", 4800 }, { "NVIDIA H100 80GB HBM3", 3350 },
		{ "NVIDIA H100 PCIe", 2000 }, { "NVIDIA H100 NVL", 3900 }, { "NVIDIA H800", 3350 },
		{ "NVIDIA H20", 4000 }, { "NVIDIA GH200 480GB", 4000 }, { "NVIDIA GH200 144G HBM3e", 4900 },
		{ "NVIDIA H100 80GB HBM3 MIG 1g.10gb", 0 }, { "AMD EPYC", 0 }, { "", 0 },
	};

	for (size_t i = 0; i < ARRAY_SIZE(known); i++)
		if (!EXPECT(t, cairn_peak_gbps(known[i].gpu) == known[i].gbps))
			cairn_note(t, "%s: %g GB/s", known[i].gpu, cairn_peak_gbps(known[i].gpu));
}

static const struct cairn_unit units[] = {
	{ "rows", rows },
	{ "failures", failures },
	{ "selection", selection },
	{ "names_are_unique_and_plain", names_are_unique_and_plain },
	{ "datasheet", datasheet },
};

const struct cairn_family cairn_measure_family = {
	.stage = "conformance", .name = "measure", .units = units, .num_units = ARRAY_SIZE(units),
};
