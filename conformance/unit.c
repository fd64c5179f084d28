// SPDX-License-Identifier: Apache-2.0
/*
 * unit - plain test functions of host modules: expectations, notes, a directory of their own
 */
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runner.h"

struct cairn_test {
	FILE *out;
	uint64_t rng;
	int failures;
	int skipped;
	char reason[256];
	char dir[64];
};

uint64_t cairn_rand(struct cairn_test *t)
{
	uint64_t z = (t->rng += 0x9e3779b97f4a7c15u);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

/* Each line is marked as a remark: what a test says must not be read as a verdict. */
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
	if (!t->dir[0]) {
		snprintf(t->dir, sizeof(t->dir), "/tmp/cairn-test-XXXXXX");
		if (!mkdtemp(t->dir)) {
			t->dir[0] = 0;
			cairn_expect(t, 0, "mkdtemp in /tmp", __FILE__, __LINE__);
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

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

int cairn_unit_run(const struct cairn_unit *u, uint64_t seed, FILE *out, char *reason, size_t reason_len)
{
	struct cairn_test t = { .out = out, .rng = seed };

	for (const char *s = u->name; *s; s++)
		t.rng = (t.rng ^ (uint8_t)*s) * 0x100000001b3u;
	cairn_clear_error();
	u->run(&t);
	if (t.dir[0])
		nftw(t.dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
	snprintf(reason, reason_len, "%s", t.reason);
	return t.failures ? CAIRN_UNIT_FAIL : t.skipped ? CAIRN_UNIT_SKIP : CAIRN_UNIT_PASS;
}
