// SPDX-License-Identifier: Apache-2.0
/* convert_slices_test - the command's files can be followed slice by slice; bad arguments are named */
#include <jansson.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include "conformance/harness.h"
#include "conformance/suite/spawn.h"
#include "conformance/tables/program.h"
#include "serving/base/json.h"

static int convert(char *out, size_t len, const char *model, const char *name, const char *path)
{
	const char *argv[] = { "cairn", "convert-slices", model, name, path ? "--out" : NULL, path, NULL };

	return cairn_spawn((char *const *)argv, out, len);
}

static int has(const json_t *names, const char *name)
{
	size_t i;
	json_t *v;

	json_array_foreach(names, i, v)
		if (!strcmp(json_string_value(v), name))
			return 1;
	return 0;
}

static void add_all(json_t *to, const json_t *names)
{
	size_t i;
	json_t *v;

	json_array_foreach(names, i, v)
		json_object_set(to, json_string_value(v), json_true());
}

/* Whether the pass computes the value; the caller or the checkpoint gives all others. */
static int is_computed(const json_t *values, const char *name)
{
	const char *kind = json_string_value(json_object_get(json_object_get(values, name), "kind"));

	return kind && strcmp(kind, "input") && strcmp(kind, "weight");
}

/* Follows one slice: every computed input of an operation comes from this slice or from the cut before it. */
static void follow(struct cairn_test *t, const json_t *root, const json_t *slice)
{
	const json_t *values = json_object_get(root, "values");
	json_t *live = json_object(), *step, *v;
	size_t i, k;
	int lost = 0;

	add_all(live, json_object_get(slice, "inputs"));
	json_array_foreach(json_object_get(slice, "steps"), i, step) {
		json_array_foreach(json_object_get(step, "in"), k, v)
			lost += is_computed(values, json_string_value(v)) &&
				!json_object_get(live, json_string_value(v));
		add_all(live, json_object_get(step, "out"));
	}
	json_array_foreach(json_object_get(slice, "saves"), k, v)
		lost += !json_object_get(live, json_string_value(v));
	EXPECT(t, lost == 0);
	json_decref(live);
}

static void judge_file(struct cairn_test *t, const char *path, size_t num_slices, json_int_t bytes)
{
	json_t *root = NULL, *slices, *slice, *name;
	size_t i, k;

	if (!EXPECT(t, cairn_json_read(path, 1 << 24, false, &root) == 0))
		return;
	EXPECT(t, !strcmp(json_string_value(json_object_get(root, "format")), "cairn-slices 1"));
	slices = json_object_get(root, "slices");
	EXPECT(t, json_array_size(slices) == num_slices);
	EXPECT(t, json_array_size(json_object_get(root, "seams")) == num_slices - 1);
	json_array_foreach(slices, i, slice) {
		const json_t *next = json_object_get(json_array_get(slices, i + 1), "inputs");

		follow(t, root, slice);
		EXPECT(t, json_integer_value(json_object_get(slice, "save_bytes")) ==
			  (i + 1 < num_slices ? bytes : 0));
		json_array_foreach(json_object_get(slice, "saves"), k, name)
			EXPECT(t, has(next, json_string_value(name)));
	}
	json_decref(root);
}

static void files(struct cairn_test *t)
{
	char path[PATH_MAX], golden[PATH_MAX], out[4096];

	snprintf(path, sizeof(path), "%s/slices.json", cairn_tmpdir(t));
	EXPECT(t, convert(out, sizeof(out), "--shape", "llama3-8b", path) == 0);
	EXPECT_CONTAINS(t, out, "slices.json: 33 slices; a cut saves 8192 to 8192 bytes for each token");
	judge_file(t, path, 33, 8192);
	snprintf(golden, sizeof(golden), "%s/serving/golden/deepseek_v3_tiny", cairn_data_dir());
	EXPECT(t, convert(out, sizeof(out), "--model", golden, path) == 0);
	judge_file(t, path, 4, 2 * 128);
}

/* Standard output gets the same text as a file, and the same text each time. */
static void output(struct cairn_test *t)
{
	static char first[1 << 20], again[1 << 20];

	EXPECT(t, convert(first, sizeof(first), "--shape", "llama32-1b", NULL) == 0);
	EXPECT(t, convert(again, sizeof(again), "--shape", "llama32-1b", NULL) == 0);
	EXPECT(t, !strcmp(first, again));
	EXPECT_CONTAINS(t, first, "\"send_q\": \"layers.15.attn\"");
}

static void refused(struct cairn_test *t)
{
	char path[PATH_MAX], out[4096];
	struct stat st;

	EXPECT(t, convert(out, sizeof(out), "--shape", "x", NULL) == 2);
	EXPECT_CONTAINS(t, out, "convert-slices: --shape: 'x' is not one of");
	EXPECT(t, convert(out, sizeof(out), "--model", "/no/such/dir", NULL) == 1);
	EXPECT_CONTAINS(t, out, "/no/such/dir/config.json");
	EXPECT(t, convert(out, sizeof(out), "--out", "x", NULL) == 2);
	EXPECT_CONTAINS(t, out, "one of --model and --shape is required");
	EXPECT(t, convert(out, sizeof(out), "--shape", "llama3-8b", "/no/such/dir/x") == 1);
	EXPECT_CONTAINS(t, out, "--out: /no/such/dir/x: No such file or directory");
	if (!stat("/dev/full", &st)) {
		snprintf(path, sizeof(path), "%s/full", cairn_tmpdir(t));
		if (EXPECT(t, symlink("/dev/full", path) == 0)) {
			EXPECT(t, convert(out, sizeof(out), "--shape", "llama3-8b", path) == 1);
			EXPECT_CONTAINS(t, out, "No space left on device");
		}
	}
}

/* A program of torch.export is cut, and compared with PyTorch's results; what cannot be cut is named. */
static void program(struct cairn_test *t)
{
	char dir[PATH_MAX - 32], file[PATH_MAX], expected[PATH_MAX], path[PATH_MAX], out[4096];
	const char *argv[] = { "cairn", "convert-slices", "--pt2", file, "--expect", expected, "--out", path,
			       NULL };
	json_t *root = NULL;

	snprintf(dir, sizeof(dir), "%s/serving/golden/pt2", cairn_data_dir());
	snprintf(file, sizeof(file), "%s/mixed.pt2", dir);
	snprintf(expected, sizeof(expected), "%s/mixed.json", dir);
	snprintf(path, sizeof(path), "%s/slices.json", cairn_tmpdir(t));
	EXPECT(t, cairn_spawn((char *const *)argv, out, sizeof(out)) == 0);
	EXPECT_CONTAINS(t, out, "the slices give the same bits");
	EXPECT_CONTAINS(t, out, "slices.json: 3 slices; a cut saves 192 to 192 bytes for the example");
	if (EXPECT(t, cairn_json_read(path, 1 << 24, false, &root) == 0)) {
		json_t *seams = json_object_get(root, "seams");

		EXPECT(t, json_array_size(json_object_get(root, "slices")) == 3);
		EXPECT(t, json_array_size(json_object_get(json_array_get(seams, 1), "ops")) > 2);
	}
	json_decref(root);
	argv[4] = NULL;
	snprintf(file, sizeof(file), "%s/mixed.json", dir);
	EXPECT(t, cairn_spawn((char *const *)argv, out, sizeof(out)) == 2);
	EXPECT_CONTAINS(t, out, "mixed.json: is no zip archive, or is truncated");
	argv[4] = "--shape";
	argv[5] = "llama3-8b";
	EXPECT(t, cairn_spawn((char *const *)argv, out, sizeof(out)) == 2);
	EXPECT_CONTAINS(t, out, "--pt2: excludes --model and --shape");
	EXPECT(t, convert(out, sizeof(out), "--expect", "x", NULL) == 2);
	EXPECT_CONTAINS(t, out, "--expect: needs --pt2");
}

static int generate(char *out, size_t len, const char *path)
{
	const char *argv[] = { "cairn", "generate", "--impl", "cpu", "--prompt", "What is 12 + 30?",
			       "--decode", "unfused", path ? "--slices" : NULL, path, NULL };

	return cairn_spawn((char *const *)argv, out, len);
}

/* The embedded model gives the same answer in its slices; slices of another model are refused. */
static void generated(struct cairn_test *t)
{
	static char whole[4096], sliced[4096];
	char path[PATH_MAX], model[PATH_MAX], out[4096];

	snprintf(path, sizeof(path), "%s/slices.json", cairn_tmpdir(t));
	snprintf(model, sizeof(model), "%s/serving/embedded", cairn_data_dir());
	EXPECT(t, convert(out, sizeof(out), "--model", model, path) == 0);
	EXPECT(t, generate(whole, sizeof(whole), NULL) == 0);
	EXPECT(t, generate(sliced, sizeof(sliced), path) == 0);
	EXPECT_CONTAINS(t, sliced, "42");
	EXPECT_CONTAINS(t, whole, "42");
	EXPECT(t, convert(out, sizeof(out), "--shape", "llama32-1b", path) == 0);
	EXPECT(t, generate(out, sizeof(out), path) == 2);
	EXPECT_CONTAINS(t, out, "slices.json: symbols: ");
	EXPECT(t, generate(out, sizeof(out), "/no/such/file") != 0);
	EXPECT_CONTAINS(t, out, "/no/such/file");
}

static const struct cairn_unit units[] = {
	{ "generated", generated }, { "program", program },
	{ "files", files }, { "output", output }, { "refused", refused },
};

const struct cairn_family cairn_convert_slices_family = {
	.stage = "serving", .name = "convert_slices", .units = units, .num_units = ARRAY_SIZE(units),
};
