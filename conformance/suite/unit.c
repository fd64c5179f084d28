// SPDX-License-Identifier: Apache-2.0
/*
 * unit - runs the test functions and measures of host modules, and provides their expectations, notes,
 * temporary directories and rows
 */
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "conformance/tables/program.h"
#include "conformance/tables/tables.h"
#include "conformance/suite/runner.h"

struct cairn_test {
	FILE *out;
	uint64_t rng;
	int failures;
	int skipped;
	char reason[256];
	char dir[128];
	const struct cairn_family *measured;	/* the measure's family; NULL in a test */
	FILE *rows;
	int num_rows;
};

#define OK_GOES_HERE	'\1'		/* placeholder in a row for "ok", which is known only at the end */

uint64_t cairn_rand(struct cairn_test *t)
{
	uint64_t z = (t->rng += 0x9e3779b97f4a7c15u);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

/* Marks each line as a diagnostic, so that no text of a test is read as a verdict. */
static void remark(FILE *out, const char *fmt, va_list ap)
{
	char text[4096];

	vsnprintf(text, sizeof(text), fmt, ap);
	for (char *line = text, *end; line; line = end ? end + 1 : NULL) {
		end = strchr(line, '\n');
		fprintf(out, "D %.*s\n", end ? (int)(end - line) : (int)strlen(line), line);
	}
}

int cairn_expect(struct cairn_test *t, int ok, const char *what, const char *file, int line)
{
	if (!ok && t->failures++ < 20)
		cairn_note(t, "%s:%d: not so: %s (last error: %s)", file, line, what, cairn_last_error());
	return ok;
}

int cairn_expect_contains(struct cairn_test *t, const char *text, const char *part,
			  const char *file, int line)
{
	int ok = text && strstr(text, part);

	if (!ok && t->failures++ < 20)
		cairn_note(t, "%s:%d: '%s' does not contain '%s'", file, line, text ? text : "(null)", part);
	return ok;
}

void cairn_note(struct cairn_test *t, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	remark(t->out, fmt, ap);
	va_end(ap);
}

void cairn_skip(struct cairn_test *t, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(t->reason, sizeof(t->reason), fmt, ap);
	va_end(ap);
	t->skipped = 1;
}

const char *cairn_tmpdir(struct cairn_test *t)
{
	const char *tmp = getenv("TMPDIR");

	if (!t->dir[0]) {
		/* limit the length, because tests keep file names in short buffers */
		tmp = tmp && *tmp && strlen(tmp) < 64 ? tmp : "/tmp";
		snprintf(t->dir, sizeof(t->dir), "%s/cairn-test-XXXXXX", tmp);
		if (!mkdtemp(t->dir)) {
			t->dir[0] = 0;
			cairn_expect(t, 0, "mkdtemp in $TMPDIR or /tmp", __FILE__, __LINE__);
			return "/tmp";
		}
	}
	return t->dir;
}

void cairn_tmpfile(struct cairn_test *t, char *path, size_t path_len, const char *name, const void *data,
		   size_t bytes)
{
	FILE *f;
	int ok;

	snprintf(path, path_len, "%s/%s", cairn_tmpdir(t), name);
	f = fopen(path, "wb");
	ok = f && fwrite(data, 1, bytes, f) == bytes;
	if (f)
		ok &= fclose(f) == 0;
	cairn_expect(t, ok, "a temporary file is written", __FILE__, __LINE__);
}

/* Adds the machine to a row: the GPU if there is one or, in a host row, the processor. */
static void add_machine(FILE *rows, int host)
{
	struct cairn_device_info info = { 0 };
	int ret = -1;

#ifdef CONFIG_CUDA
	if (!host && !cairn_cuda_runtime.init(0))
		ret = cairn_cuda_runtime.device_info(&info);
#endif
	(void)host;
	if (ret)
		cairn_host_runtime.device_info(&info);
	fprintf(rows, ",\"gpu\":\"%s\",\"driver\":\"%s\",\"source\":\"%s\"}\n", info.name, info.driver,
		cairn_source_digest());
}

static void add_row(struct cairn_test *t, int host, const char *case_name, const char *impl, const char *fmt,
		    va_list ap)
{
	if (!cairn_expect(t, t->rows != NULL, "a row is written by a measure", __FILE__, __LINE__))
		return;
	t->num_rows++;
	fprintf(t->rows, "{\"v\":1,\"op\":\"%s\",\"case\":\"%s\",\"impl\":\"%s\",\"ok\":%c,",
		t->measured->name, case_name, impl, OK_GOES_HERE);
	vfprintf(t->rows, fmt, ap);
	add_machine(t->rows, host);
}

void cairn_row(struct cairn_test *t, const char *case_name, const char *impl, const char *members_fmt, ...)
{
	va_list ap;

	va_start(ap, members_fmt);
	add_row(t, 0, case_name, impl, members_fmt, ap);
	va_end(ap);
}

void cairn_host_row(struct cairn_test *t, const char *case_name, const char *impl,
		    const char *members_fmt, ...)
{
	va_list ap;

	va_start(ap, members_fmt);
	add_row(t, 1, case_name, impl, members_fmt, ap);
	va_end(ap);
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

static void run(struct cairn_test *t, const struct cairn_unit *u, uint64_t seed)
{
	t->rng = seed;
	for (const char *s = u->name; *s; s++)
		t->rng = (t->rng ^ (uint8_t)*s) * 0x100000001b3u;
	cairn_clear_error();
	u->run(t);
	if (t->dir[0])
		nftw(t->dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

int cairn_unit_run(const struct cairn_unit *u, uint64_t seed, FILE *out, char *reason, size_t reason_len)
{
	struct cairn_test t = { .out = out };

	run(&t, u, seed);
	snprintf(reason, reason_len, "%s", t.reason);
	return t.failures ? CAIRN_UNIT_FAIL : t.skipped ? CAIRN_UNIT_SKIP : CAIRN_UNIT_PASS;
}

/* Copies the string value of a key of a row that this program wrote; "" if the key is missing. */
static const char *text_of_key(const char *row, const char *key, char *text, size_t len)
{
	const char *at = strstr(row, key);

	at = at ? at + strlen(key) : "";
	snprintf(text, len, "%.*s", (int)strcspn(at, "\""), at);
	return text;
}

/* Prints the measure's own members, which lie between the key "ok" and the machine. */
static void print_row(const struct cairn_test *t, const char *row)
{
	char case_name[96], impl[32];
	const char *members = strchr(row, OK_GOES_HERE) + 2, *end = strstr(members, ",\"gpu\":");

	text_of_key(row, "\"case\":\"", case_name, sizeof(case_name));
	text_of_key(row, "\"impl\":\"", impl, sizeof(impl));
	fprintf(t->out, "P %-16s %-36s %-10s %.*s\n", t->measured->name, case_name, impl,
		(int)(end - members), members);
}

int cairn_measure_run(const struct cairn_family *f, const struct cairn_unit *u, uint64_t seed, FILE *out,
		      char *reason, size_t reason_len)
{
	struct cairn_test t = { .out = out, .measured = f };
	char *rows = NULL, *save, *ok;
	size_t len = 0;

	t.rows = open_memstream(&rows, &len);
	if (!t.rows)
		return CAIRN_UNIT_FAIL;
	run(&t, u, seed);
	fclose(t.rows);
	cairn_expect(&t, t.num_rows || t.skipped || t.failures, "a measure writes a row", __FILE__, __LINE__);
	for (char *row = strtok_r(rows, "\n", &save); row; row = strtok_r(NULL, "\n", &save)) {
		ok = strchr(row, OK_GOES_HERE);
		fprintf(out, "J %.*s%s%s\n", (int)(ok - row), row, t.failures ? "false" : "true", ok + 1);
		if (!t.failures)
			print_row(&t, row);
	}
	free(rows);
	snprintf(reason, reason_len, "%s", t.reason);
	return t.failures ? CAIRN_UNIT_FAIL : t.num_rows ? CAIRN_UNIT_PASS : CAIRN_UNIT_SKIP;
}
