// SPDX-License-Identifier: Apache-2.0
/* doctor_test - `cairn doctor` on machines that lack libraries, or have broken or old ones */
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "conformance/harness.h"
#include "conformance/suite/spawn.h"
#include "primitives/base/optional.h"

/* Runs it with --json and these libraries first. Returns the report, or NULL. */
static json_t *report(struct cairn_test *t, const char *libraries)
{
	const char *before = getenv("LD_LIBRARY_PATH");
	char out[32768], *keep = before ? strdup(before) : NULL;
	json_error_t error;
	json_t *root;
	int status;

	if (libraries)
		setenv("LD_LIBRARY_PATH", libraries, 1);
	status = cairn_spawn((char *[]){ "cairn", "doctor", "--json", NULL }, out, sizeof(out));
	if (keep)
		setenv("LD_LIBRARY_PATH", keep, 1);
	else
		unsetenv("LD_LIBRARY_PATH");
	free(keep);
	root = json_loads(out, 0, &error);
	EXPECT(t, status == 0);
	if (!EXPECT(t, root))
		cairn_note(t, "%.400s", out);
	return root;
}

/* Returns a text of the first finding of this name, "" if there is none. */
static const char *text(const json_t *root, const char *name, const char *key)
{
	size_t i;
	json_t *f;

	json_array_foreach(json_object_get(root, "findings"), i, f)
		if (!strcmp(json_string_value(json_object_get(f, "name")), name))
			return json_is_string(json_object_get(f, key)) ?
			       json_string_value(json_object_get(f, key)) : "";
	return "";
}

/* Every library, limit and device is named; whatever is not there has its cost and a remedy. */
static void names_everything(struct cairn_test *t)
{
	static const char *const others[] = { "cpu table", "driver", "CUDA", "CBC", "C compiler", "memlock",
					      "/dev/shm", "open files" };
	json_t *root = report(t, NULL), *f;
	size_t i;

	if (!root)
		return;
	for (i = 0; i < CAIRN_NUM_OPTIONAL; i++)
		EXPECT(t, *text(root, cairn_optional[i].title, "state"));
	for (i = 0; i < ARRAY_SIZE(others); i++)
		if (!EXPECT(t, *text(root, others[i], "state")))
			cairn_note(t, "%s is missing", others[i]);
	EXPECT(t, !strcmp(text(root, "cpu table", "state"), "ok"));
	EXPECT(t, json_is_true(json_object_get(root, "cpu_table")));
	json_array_foreach(json_object_get(root, "findings"), i, f) {
		const char *state = json_string_value(json_object_get(f, "state"));
		int fine = !strcmp(state, "ok") || !strcmp(state, "unused");

		EXPECT(t, json_is_string(json_object_get(f, "costs")) == !fine);
		EXPECT(t, json_is_string(json_object_get(f, "fix")) == !fine);
	}
	json_decref(root);
}

/* Without a usable GPU only --require-gpu fails. */
static void requires_a_gpu(struct cairn_test *t)
{
	json_t *root = report(t, NULL);
	int has = json_integer_value(json_object_get(root, "usable_gpus")) > 0;
	char out[32768];

	json_decref(root);
	EXPECT(t, cairn_spawn((char *[]){ "cairn", "doctor", "--require-gpu", NULL }, out,
			      sizeof(out)) == !has);
	EXPECT_CONTAINS(t, out, has ? "The kernels run on the GPU." : "There is no usable GPU.");
	EXPECT(t, cairn_spawn((char *[]){ "cairn", "doctor", "please", NULL }, out, sizeof(out)) == 2);
	EXPECT_CONTAINS(t, out, "cairn doctor: 'please' is not an option");
}

/* Copies a file, or writes `text` if from is NULL. */
static int put(const char *dir, const char *name, const char *from, const char *content)
{
	char path[4400], line[9000];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	if (from) {
		snprintf(line, sizeof(line), "cp '%s' '%s'", from, path);
		return system(line);
	}
	f = fopen(path, "w");
	return !f || fputs(content, f) < 0 || fclose(f);
}

/*
 * Every library is replaced by a text file, by a library without the needed functions, or by one that
 * crashes, exits or prints lines that look like findings while it is loaded.
 */
static void survives_bad_libraries(struct cairn_test *t)
{
	static const struct {
		const char *act;	/* $CAIRN_FAKE_OPTIONAL; NULL: the file is a text */
		const char *found;
	} cases[] = {
		{ NULL, "file too short" },
		{ "nothing", ": has no function " },
		{ "crash", "the process that tried it: " },
		{ "exit", "the process that tried it said nothing" },
		{ "noise", ": has no function " },
	};
	char dir[] = "/tmp/cairn_doctor_XXXXXX", fake[4200], line[200];

	if (!cairn_beside("fake_optional.so", fake, sizeof(fake))) {
		cairn_skip(t, "fake_optional.so is not in the directory of this program");
		return;
	}
	if (!EXPECT(t, mkdtemp(dir)))
		return;
	for (size_t c = 0; c < ARRAY_SIZE(cases); c++) {
		json_t *root;

		for (int i = 0; i < CAIRN_NUM_OPTIONAL; i++)
			for (const char *const *file = cairn_optional[i].files; *file; file++)
				if (!strchr(*file, '/'))
					EXPECT(t, !put(dir, *file, cases[c].act ? fake : NULL, "no ELF"));
		if (cases[c].act)
			setenv("CAIRN_FAKE_OPTIONAL", cases[c].act, 1);
		root = report(t, dir);
		unsetenv("CAIRN_FAKE_OPTIONAL");
		for (int i = 0; root && i < CAIRN_NUM_OPTIONAL; i++) {
			const char *title = cairn_optional[i].title, *state = text(root, title, "state");

			/*
			 * A text is passed over, and the library is then found in the toolkit's folder; cuDNN
			 * is looked for in Python's packages too.
			 */
			if (!strcmp(state, "unused") || (!cases[c].act && !strcmp(state, "ok")) ||
			    (!strcmp(title, "cuDNN") && !strcmp(state, "ok")))
				continue;
			if (!EXPECT(t, !strcmp(state, "broken")))
				cairn_note(t, "%s: %s: %s", cases[c].found, title, state);
			EXPECT_CONTAINS(t, text(root, title, "found"), cases[c].found);
		}
		json_decref(root);
	}
	snprintf(line, sizeof(line), "rm -r %s", dir);
	EXPECT(t, !system(line));
}

/*
 * A library that never returns costs the time-out, once. Other lines are not judged, because on a busy
 * machine they may take longer than this time-out.
 */
static void survives_a_hang(struct cairn_test *t)
{
	char dir[] = "/tmp/cairn_doctor_XXXXXX", fake[4200], line[200], out[32768];

	if (!cairn_beside("fake_optional.so", fake, sizeof(fake))) {
		cairn_skip(t, "fake_optional.so is not in the directory of this program");
		return;
	}
	if (!EXPECT(t, mkdtemp(dir)) || !EXPECT(t, !put(dir, "libsodium.so.23", fake, NULL)))
		return;
	setenv("CAIRN_FAKE_OPTIONAL", "hang", 1);
	setenv("CAIRN_TIMEOUT", "2", 1);
	setenv("LD_LIBRARY_PATH", dir, 1);
	cairn_spawn((char *[]){ "cairn", "doctor", NULL }, out, sizeof(out));
	unsetenv("LD_LIBRARY_PATH");
	unsetenv("CAIRN_TIMEOUT");
	unsetenv("CAIRN_FAKE_OPTIONAL");
	EXPECT_CONTAINS(t, out, "broken   libsodium   the process that tried it: ");
	snprintf(line, sizeof(line), "rm -r %s", dir);
	EXPECT(t, !system(line));
}

static const struct cairn_unit units[] = {
	{ "names_everything", names_everything },
	{ "requires_a_gpu", requires_a_gpu },
	{ "survives_bad_libraries", survives_bad_libraries },
	{ "survives_a_hang", survives_a_hang },
};

const struct cairn_family cairn_doctor_family = {
	.stage = "conformance", .name = "doctor", .units = units, .num_units = ARRAY_SIZE(units),
	.cost_s = 8,
};
