// SPDX-License-Identifier: Apache-2.0
/* vendor_test - a run of `cairn check` as a vendor sees it: what it runs, what a crash costs, its records */
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conformance/harness.h"
#include "conformance/suite/spawn.h"

enum { OUT = 1 << 18 };

/* Sets the path of a test plug-in beside this program; skips the test if the plug-in is missing. */
static int plugin(struct cairn_test *t, const char *file, char *path, size_t len)
{
	if (cairn_beside(file, path, len))
		return 1;
	cairn_skip(t, "%s is not in the directory of this program", file);
	return 0;
}

/* Runs a line by the shell; returns its exit status, or -1. */
static int run_line(const char *line, char *out, size_t len)
{
	FILE *f = popen(line, "r");
	size_t n;
	int status;

	out[0] = 0;
	if (!f)
		return -1;
	n = fread(out, 1, len - 1, f);
	out[n] = 0;
	while (fgetc(f) != EOF)
		;
	status = pclose(f);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Reads the totals from the last line. */
static int totals(struct cairn_test *t, const char *out, int *passed, int *failed, int *skipped)
{
	const char *last = out;

	for (const char *c = out; (c = strchr(c, '\n')) && c[1]; c++)
		last = c + 1;
	return EXPECT(t, sscanf(last, "%d passed, %d failed, %d skipped", passed, failed, skipped) == 3);
}

#define CASE	"primitives.embedding.rows7_dim64_vocab100_bf16.normal"

/*
 * The printed command repeats a failure with its seed, whatever characters the plug-in's path has; also the
 * failure of a drawn case, which only the seed of a run and the number of cases have drawn.
 */
static void again_repeats(struct cairn_test *t)
{
	char from[PATH_MAX], path[PATH_MAX], self[PATH_MAX], *out = malloc(OUT), *twice = malloc(OUT);
	char line[8192], *again, *bad, *end;

	if (!EXPECT(t, out && twice) || !plugin(t, "stray_plugin.so", from, sizeof(from)))
		return;
	EXPECT(t, cairn_beside("cairn", self, sizeof(self)));
	snprintf(path, sizeof(path), "%s/it's \"mine\" $1.so", cairn_tmpdir(t));
	EXPECT(t, symlink(from, path) == 0);
	setenv("CAIRN_STRAY_PLUGIN", "every_second", 1);
	for (int run = 1; run <= 3; run++) {
		char *argv[] = { self, "check", "--impl", path, "--seed", "41", "--repeat",
				 run == 2 ? "2" : "1", "--drawn", "3",
				 run == 3 ? "primitives.embedding.drawn_*" : CASE, NULL };

		EXPECT(t, cairn_spawn(argv, out, OUT) == 1);
		again = NULL;
		for (char *c = out; (c = strstr(c, "# again: ")); c++)
			again = c;	/* the last one */
		if (!EXPECT(t, again))
			break;
		end = strchr(again, '\n');
		*end = 0;
		EXPECT(t, strstr(again, run == 2 ? "--seed 42" : "--seed 41") != NULL);
		snprintf(line, sizeof(line), "%s 2>&1", again + strlen("# again: "));
		EXPECT(t, run_line(line, twice, OUT) == 1);
		/* the repeated run names the same elements as the output before the command */
		*again = 0;
		bad = NULL;
		for (char *c = out; (c = strstr(c, "# out[")); c++)
			bad = c;
		if (!EXPECT(t, bad))
			break;
		bad[strcspn(bad, "\n")] = 0;
		if (!EXPECT_CONTAINS(t, twice, bad))
			cairn_note(t, "%s", line);
	}
	unsetenv("CAIRN_STRAY_PLUGIN");
	free(out);
	free(twice);
}

/* Reads a file of JSON lines; counts the verdicts, and hands each row to see(). */
static int read_rows(struct cairn_test *t, const char *path, int counts[3],
		     void (*see)(struct cairn_test *t, json_t *row))
{
	static const char *const verdicts[] = { "pass", "fail", "skip" };
	FILE *f = fopen(path, "r");
	char *line = NULL;
	size_t cap = 0;
	int num = 0;

	memset(counts, 0, 3 * sizeof(*counts));
	if (!EXPECT(t, f))
		return 0;
	for (; getline(&line, &cap, f) > 0; num++) {
		json_error_t error;
		json_t *row = json_loads(line, 0, &error);
		const char *verdict = json_string_value(json_object_get(row, "verdict"));

		if (!EXPECT(t, verdict && json_is_string(json_object_get(row, "check")) &&
			    json_is_string(json_object_get(row, "impl")) &&
			    json_is_string(json_object_get(row, "source")) &&
			    json_is_integer(json_object_get(row, "seed")))) {
			cairn_note(t, "%.300s", line);
			json_decref(row);
			break;
		}
		for (int i = 0; i < 3; i++)
			counts[i] += !strcmp(verdict, verdicts[i]);
		see(t, row);
		json_decref(row);
	}
	free(line);
	fclose(f);
	return num;
}

/* A row that has not passed says why; a failed one also has the command that repeats it. */
static void has_text(struct cairn_test *t, json_t *row)
{
	const char *verdict = json_string_value(json_object_get(row, "verdict"));
	const char *text = json_string_value(json_object_get(row, "text"));
	const char *again = json_string_value(json_object_get(row, "again"));

	EXPECT(t, !strcmp(verdict, "pass") || (text && text[0]));
	EXPECT(t, !strcmp(verdict, "fail") == (again != NULL));
	if (again)
		EXPECT_CONTAINS(t, again, json_string_value(json_object_get(row, "check")));
}

/* Runs the bad plug-in over small cases of its family, and compares its records with the totals. */
static void run_bad(struct cairn_test *t, const char *how, int want, char *out, char *xml, int sum[3])
{
	char path[PATH_MAX], json[PATH_MAX], junit[PATH_MAX];
	char *argv[] = { "cairn", "check", "--impl", path, "--json", json, "--junit", junit, "--repeat", "2",
		"primitives.embedding.rows[157]_*_bf16*", "primitives.embedding.rows99_*", NULL };
	int counts[3], rows;
	FILE *f;

	if (!plugin(t, "bad_plugin.so", path, sizeof(path)))
		return;
	snprintf(json, sizeof(json), "%s/%s.jsonl", cairn_tmpdir(t), how);
	snprintf(junit, sizeof(junit), "%s/%s.xml", cairn_tmpdir(t), how);
	setenv("CAIRN_BAD_PLUGIN", how, 1);
	setenv("CAIRN_TIMEOUT", "1", 1);
	EXPECT(t, cairn_spawn(argv, out, OUT) == want);
	unsetenv("CAIRN_TIMEOUT");
	unsetenv("CAIRN_BAD_PLUGIN");
	if (!totals(t, out, &sum[0], &sum[1], &sum[2]))
		return;
	rows = read_rows(t, json, counts, has_text);
	EXPECT(t, rows == sum[0] + sum[1] + sum[2]);
	if (!EXPECT(t, !memcmp(counts, sum, sizeof(counts))))
		cairn_note(t, "%s: %d passed, %d failed, %d skipped in %s", how, counts[0], counts[1],
			   counts[2], json);
	f = fopen(junit, "r");
	xml[0] = 0;
	if (EXPECT(t, f)) {
		xml[fread(xml, 1, OUT - 1, f)] = 0;
		fclose(f);
	}
}

static int count(const char *text, const char *what)
{
	int n = 0;

	for (; (text = strstr(text, what)); text += strlen(what))
		n++;
	return n;
}

/* A crash fails only its own case; after several crashes, or two hangs, the table is not called again. */
static void crash_costs_a_case(struct cairn_test *t)
{
	char *out = malloc(OUT), *xml = malloc(OUT), text[80];
	int sum[3] = { 0 };

	if (!EXPECT(t, out && xml))
		return;
	run_bad(t, "one_crash", 1, out, xml, sum);	/* in the three cases of 99 rows, with two seeds */
	EXPECT(t, sum[0] > 40 && sum[1] == 6);
	EXPECT(t, !strstr(out, "not run") && count(out, "not ok") == 7);
	EXPECT(t, count(xml, "<failure message=\"CRASH: signal 11") == 6);
	run_bad(t, "crash", 1, out, xml, sum);
	EXPECT_CONTAINS(t, out, "8 cases of this family have ended their process, the last by CRASH");
	EXPECT(t, count(out, "# again: ") == 8);
	snprintf(text, sizeof(text), ", %d skipped (%d of the failed cases were not run)\n", sum[2],
		 sum[1] - 8);
	EXPECT_CONTAINS(t, out, text);
	EXPECT_CONTAINS(t, xml, "<failure message=\"not run: 8 cases of this family have ended");
	run_bad(t, "hang", 1, out, xml, sum);
	EXPECT(t, count(out, "TIMEOUT after 1 s, at ") == 2);
	EXPECT_CONTAINS(t, out, "2 cases of this family have hung");
	run_bad(t, "error", 1, out, xml, sum);
	EXPECT_CONTAINS(t, out, "the call: returned -5 (Input/output error)");
	EXPECT_CONTAINS(t, out, "# the device was lost at primitives.embedding.");
	free(out);
	free(xml);
}

/* A table that crashes when it is started or stopped fails; another table in the same run does not. */
static void crash_beside_the_cases(struct cairn_test *t)
{
	char path[PATH_MAX], *out = malloc(OUT), *xml = malloc(OUT);
	char *argv[] = { "cairn", "check", "--impl", "cpu", "--impl", path, CASE, NULL };
	int sum[3] = { 0 };

	if (!EXPECT(t, out && xml) || !plugin(t, "bad_plugin.so", path, sizeof(path)))
		return;
	run_bad(t, "fini_crash", 1, out, xml, sum);
	EXPECT(t, sum[1] >= 1);
	EXPECT_CONTAINS(t, out, "stopping the table: CRASH: signal 11");
	run_bad(t, "init_crash", 1, out, xml, sum);
	EXPECT_CONTAINS(t, out, "# starting the table: CRASH: signal 11");
	setenv("CAIRN_BAD_PLUGIN", "init_crash", 1);
	EXPECT(t, cairn_spawn(argv, out, OUT) == 1);
	unsetenv("CAIRN_BAD_PLUGIN");
	EXPECT_CONTAINS(t, out, "cpu:primitives.embedding # 1 passed, 0 failed");
	EXPECT_CONTAINS(t, out, "bad:primitives.embedding # 0 passed, 1 failed");
	free(out);
	free(xml);
}

/* Any text from a plug-in is escaped correctly in JSON and XML. */
static void texts_are_escaped(struct cairn_test *t)
{
	char *out = malloc(OUT), *xml = malloc(OUT);
	int sum[3] = { 0 };

	if (!EXPECT(t, out && xml))
		return;
	run_bad(t, "one_odd_error", 1, out, xml, sum);
	EXPECT_CONTAINS(t, xml, "a &#34;quote&#34;, a \\, &#60;a&#38;b&#62;,");
	free(out);
	free(xml);
}

/* A run with only plug-ins judges their operations and names what it leaves out; every case has a row. */
static void runs_what_concerns_it(struct cairn_test *t)
{
	char path[PATH_MAX], json[PATH_MAX], *out = malloc(OUT);
	char *all[] = { "cairn", "check", "--impl", path, "--drawn", "3", "--json", json, NULL };
	char *unit[] = { "cairn", "check", "--impl", path, "primitives.philox", NULL };
	char *list[] = { "cairn", "list", NULL };
	int sum[3] = { 0 }, counts[3], names = 0;

	if (!EXPECT(t, out) || !plugin(t, "example_plugin.so", path, sizeof(path)))
		return;
	snprintf(json, sizeof(json), "%s/all.jsonl", cairn_tmpdir(t));
	EXPECT(t, cairn_spawn(all, out, OUT) == 0);
	EXPECT_CONTAINS(t, out, "\"example\" 1 has 1 operation: embedding\n");
	EXPECT_CONTAINS(t, out, "families of operations that the plug-in lacks:");
	EXPECT_CONTAINS(t, out, " host modules, which call no table; a GLOB that names one runs it\n");
	EXPECT_CONTAINS(t, out, "\nok 1 - example:primitives.embedding # ");
	EXPECT_CONTAINS(t, out, "\n1..1\n");
	totals(t, out, &sum[0], &sum[1], &sum[2]);
	EXPECT(t, sum[0] > 50 && sum[2] > 5000);
	EXPECT(t, read_rows(t, json, counts, has_text) == sum[0] + sum[1] + sum[2]);
	free(out);
	out = malloc(1 << 21);
	if (!EXPECT(t, out))
		return;
	EXPECT(t, cairn_spawn(list, out, 1 << 21) == 0);
	for (const char *c = out; *c; c++)
		names += *c == '\n';
	EXPECT(t, names + 3 == sum[0] + sum[1] + sum[2]);	/* list has no drawn cases */
	EXPECT(t, cairn_spawn(unit, out, 1 << 21) == 0);
	EXPECT_CONTAINS(t, out, "primitives.philox # 2 passed");
	free(out);
}

/*
 * bench does not time operations that only the other table has. Those of this plug-in need a device, so
 * nothing is timed here.
 */
static void times_what_concerns_it(struct cairn_test *t)
{
	char path[PATH_MAX], *out = malloc(OUT);
	char *argv[] = { "cairn", "bench", "--impl", "cpu", "--impl", path, NULL };

	if (!EXPECT(t, out) || !plugin(t, "example_plugin.so", path, sizeof(path)))
		return;
	EXPECT(t, cairn_spawn(argv, out, OUT) == 0);
	if (!EXPECT(t, !strcmp(out, "0 timed, 0 failed, 0 skipped\n")))
		cairn_note(t, "%s", out);
	free(out);
}

/* Two plug-ins with the same name, or one given twice, get different names. */
static void names_differ(struct cairn_test *t)
{
	char path[PATH_MAX], link[PATH_MAX], out[8192], want[PATH_MAX + 64];
	char *argv[] = { "cairn", "check", "--impl", path, "--impl", link, "--impl", path, CASE, NULL };

	if (!plugin(t, "example_plugin.so", path, sizeof(path)))
		return;
	snprintf(link, sizeof(link), "%s/other.so", cairn_tmpdir(t));
	EXPECT(t, symlink(path, link) == 0);
	EXPECT(t, cairn_spawn(argv, out, sizeof(out)) == 0);
	snprintf(want, sizeof(want), "ok 1 - example(%s):primitives", path);
	EXPECT_CONTAINS(t, out, want);
	snprintf(want, sizeof(want), "ok 2 - example(%s):primitives", link);
	EXPECT_CONTAINS(t, out, want);
	EXPECT_CONTAINS(t, out, "ok 3 - example#2:primitives");
}

/* Writes the plug-in's file with one byte changed, or only its beginning; returns its path. */
static const char *altered(struct cairn_test *t, const char *from, const char *name, long at, int byte,
			   size_t most, char *path)
{
	char *data = malloc(1 << 20);
	FILE *f = fopen(from, "rb");
	size_t n = f && data ? fread(data, 1, most, f) : 0;

	if (f)
		fclose(f);
	if (EXPECT(t, n > 64) && at >= 0)
		data[at] = (char)byte;
	cairn_tmpfile(t, path, PATH_MAX, name, data, n);
	free(data);
	return path;
}

/* The mistakes that a vendor makes first are named in the message. */
static void first_mistakes(struct cairn_test *t)
{
	static const struct { const char *how, *says; } rows[] = {
		{ "no_operation", "\"bad\" 1 has no operation: all members of the table" },
		{ "no_version", "\"bad\" 1 abi_version: is 0; set it to CAIRN_ABI_VERSION" },
		{ "no_size", "size: 0 is not the size of a table; set it to sizeof(struct cairn_impl)" },
		{ "no_name", "name, version: must be given" },
		{ "no_comm_error",
			"comm_open: comes with comm_error, comm_abort and comm_close, of which the table "
				 "lacks some" },
	};
	char path[PATH_MAX], other[PATH_MAX], out[8192], line[3 * PATH_MAX], self[PATH_MAX];
	char *argv[] = { "cairn", "check", "--impl", path, CASE, NULL };
	char *given[] = { "cairn", "check", "--impl", other, CASE, NULL };

	if (!plugin(t, "bad_plugin.so", path, sizeof(path)))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		setenv("CAIRN_BAD_PLUGIN", rows[i].how, 1);
		EXPECT(t, cairn_spawn(argv, out, sizeof(out)) == 2);
		EXPECT_CONTAINS(t, out, rows[i].says);
		EXPECT_CONTAINS(t, out, path);
	}
	unsetenv("CAIRN_BAD_PLUGIN");

	altered(t, path, "other_machine.so", 18, 0x16, 1 << 20, other);	/* e_machine */
	EXPECT(t, cairn_spawn(given, out, sizeof(out)) == 2);
	EXPECT_CONTAINS(t, out, "other_machine.so: was built for another architecture (ELF machine 22, "
			"64 bits)");
	altered(t, path, "object.o", 16, 1, 1 << 20, other);		/* e_type */
	EXPECT(t, cairn_spawn(given, out, sizeof(out)) == 2);
	EXPECT_CONTAINS(t, out, "object.o: is an object file: link it with gcc -shared");
	altered(t, path, "cut.so", -1, 0, 4000, other);
	EXPECT(t, cairn_spawn(given, out, sizeof(out)) == 2);
	EXPECT_CONTAINS(t, out, "cut.so: ");
	snprintf(other, sizeof(other), "%s", cairn_tmpdir(t));
	EXPECT(t, cairn_spawn(given, out, sizeof(out)) == 2);
	EXPECT_CONTAINS(t, out, ": is a directory, not a shared object");
	snprintf(other, sizeof(other), "%s/none.so", cairn_tmpdir(t));
	EXPECT(t, cairn_spawn(given, out, sizeof(out)) == 2);
	EXPECT_CONTAINS(t, out, "/none.so: No such file or directory");
	if (cairn_beside("fault_plugin.so", other, sizeof(other)) &&
	    EXPECT(t, cairn_beside("cairn", self, sizeof(self)))) {
		char *slash = strrchr(other, '/');	/* a path that begins without ./ */

		*slash = 0;
		snprintf(line, sizeof(line), "cd '%s' && '%s' check --impl %s " CASE " 2>&1", other, self,
			 slash + 1);
		EXPECT(t, run_line(line, out, sizeof(out)) == 2);
		EXPECT_CONTAINS(t, out, "'fault_plugin.so': the path of a plug-in has a '/': "
				"write ./fault_plugin.so");
	}
}

/* ---- C++ ---- */

/* A plug-in in C++11, which has no designated initialisers. */
static const char cxx_plugin[] =
	"#include \"conformance/abi.h\"\n"
	"#include <cerrno>\n"
	"static int embedding(const cairn_embedding_args *a, void *)\n"
	"{\n"
	"	return a->size < sizeof(*a) ? -EINVAL : -EOPNOTSUPP;\n"
	"}\n"
	"const cairn_impl *cairn_impl_get(uint32_t abi_version)\n"
	"{\n"
	"	static cairn_impl impl;\n"
	"	impl.size = sizeof(impl);\n"
	"	impl.abi_version = CAIRN_ABI_VERSION;\n"
	"	impl.flags = CAIRN_IMPL_HOST_MEM;\n"
	"	impl.name = \"cxx\";\n"
	"	impl.version = \"1\";\n"
	"	impl.embedding = embedding;\n"
	"	return abi_version == CAIRN_ABI_VERSION ? &impl : nullptr;\n"
	"}\n";

/* Writes the headers that abi.h includes, each as an argument of the compiler. */
static int headers_of_abi(char *list, size_t len)
{
	char path[PATH_MAX], line[512], name[256];
	size_t n = 0;
	FILE *f;

	snprintf(path, sizeof(path), "%s/conformance/abi.h", cairn_srcdir());
	f = fopen(path, "r");
	if (!f)
		return 0;
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, "#include \"%255[^\"]\"", name) == 1 && n < len)
			n += (size_t)snprintf(list + n, len - n, " %s", name);
	fclose(f);
	return n > 0 && n < len;
}

/* abi.h and every header that it includes are valid C++11, and a plug-in may be written in C++11. */
static void abi_is_cxx(struct cairn_test *t)
{
	char list[8192], line[3 * PATH_MAX + sizeof(list)], out[8192], source[PATH_MAX], so[PATH_MAX];
	char *argv[] = { "cairn", "check", "--impl", so, CASE, NULL };

	if (run_line("command -v g++ 2>&1", out, sizeof(out))) {
		cairn_skip(t, "there is no g++");
		return;
	}
	if (!headers_of_abi(list, sizeof(list))) {
		cairn_skip(t, "%s has no sources", cairn_srcdir());
		return;
	}
	snprintf(line, sizeof(line), "cd '%s' && g++ -std=c++11 -Wall -Wextra -pedantic -Werror "
		 "-fsyntax-only -I. -x c++ conformance/abi.h %s 2>&1", cairn_srcdir(), list);
	if (!EXPECT(t, run_line(line, out, sizeof(out)) == 0))
		cairn_note(t, "%s", out);
	cairn_tmpfile(t, source, sizeof(source), "plugin.cc", cxx_plugin, sizeof(cxx_plugin) - 1);
	snprintf(so, sizeof(so), "%s/cxx.so", cairn_tmpdir(t));
	snprintf(line, sizeof(line), "g++ -std=c++11 -Wall -Wextra -Werror '-I%s' -shared -fPIC -o '%s' "
		 "'%s' 2>&1", cairn_srcdir(), so, source);
	if (!EXPECT(t, run_line(line, out, sizeof(out)) == 0))
		cairn_note(t, "%s", out);
	EXPECT(t, cairn_spawn(argv, out, sizeof(out)) == 0);
	EXPECT_CONTAINS(t, out, "ok 1 - cxx:primitives.embedding # 0 passed, 0 failed, 1 skipped");
}

static const struct cairn_unit units[] = {
	{ "again_repeats", again_repeats },
	{ "crash_costs_a_case", crash_costs_a_case },
	{ "crash_beside_the_cases", crash_beside_the_cases },
	{ "texts_are_escaped", texts_are_escaped },
	{ "runs_what_concerns_it", runs_what_concerns_it },
	{ "times_what_concerns_it", times_what_concerns_it },
	{ "names_differ", names_differ },
	{ "first_mistakes", first_mistakes },
	{ "abi_is_cxx", abi_is_cxx },
};

const struct cairn_family cairn_vendor_family = {
	.stage = "conformance", .name = "vendor", .units = units, .num_units = ARRAY_SIZE(units),
	.cost_s = 10,
};
