// SPDX-License-Identifier: Apache-2.0
/*
 * attn_variant_compile_test - texts and their compilers: refused texts, lines of errors, the cache, the time
 * that it saves
 */
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "conformance/harness.h"
#include "fused/attention/variant/attn_variant_known.h"
#include "fused/attention/variant/text/attn_variant_compile.h"
#include "fused/attention/variant/text/attn_variant_create.h"
#include "fused/attention/variant/text/attn_variant_scan.h"

#define GOOD	"real logit(const struct attn_x *x, real s)\n{\n\treturn s + x->p[0];\n}\n"

static void scan_finds(struct cairn_test *t)
{
	static const struct {
		const char *text;
		unsigned int hooks;
	} rows[] = {
		{ GOOD, 1 << ATTN_HOOK_LOGIT },
		{ "/* # asm */ // \\ asm #\n" GOOD, 1 << ATTN_HOOK_LOGIT },
		{ "static const char *s = \"asm # { \\\" \";\n" GOOD, 1 << ATTN_HOOK_LOGIT },
		{ "real sink(const struct attn_x *x);\n" GOOD, 1 << ATTN_HOOK_LOGIT },
		{ "static real f(real s) { return key(s); }\n" GOOD, 1 << ATTN_HOOK_LOGIT },
		{ "int keep(const struct attn_x *x) { return '}' != ')'; }\nvoid range\n(int a) { }",
		  1 << ATTN_HOOK_KEEP | 1 << ATTN_HOOK_RANGE },
		{ "real head_slope(int x) { return 1; } real logit_cap(int x) { return 2; }",
		  1 << ATTN_HOOK_HEAD_SLOPE | 1 << ATTN_HOOK_LOGIT_CAP },
		{ "real weight(int x) { return 1; } real output(int x) { return 2; } void query(int x) { }\n"
		  "void key(int x) { }\nreal sink(int x) { return 0; }",
		  1 << ATTN_HOOK_WEIGHT | 1 << ATTN_HOOK_OUTPUT | 1 << ATTN_HOOK_QUERY | 1 << ATTN_HOOK_KEY |
		  1 << ATTN_HOOK_SINK },
	};

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		unsigned int hooks = 0;

		if (!EXPECT(t, !attn_variant_scan(rows[i].text, "x.c", &hooks)))
			cairn_note(t, "row %zu: %s", i, cairn_last_error());
		if (!EXPECT(t, hooks == rows[i].hooks))
			cairn_note(t, "row %zu: hooks %x", i, hooks);
	}
}

static void scan_refuses(struct cairn_test *t)
{
	static const struct {
		const char *text, *says;
	} rows[] = {
		{ "", "x.c:1: no hook" },
		{ "real other(real s) { return s; }", "x.c:1: no hook" },
		{ "real logit(const struct attn_x *x, real s);", "x.c:1: no hook" },
		{ "\n#include <stdio.h>\n" GOOD, "x.c:2: preprocessor" },
		{ "\n\n%:define a b\n" GOOD, "x.c:3: preprocessor" },
		{ GOOD "?\?=define a b\n", "x.c:5: preprocessor" },
		{ "int f(void)\n{\n\tasm(\"exit;\");\n}\n" GOOD, "x.c:3: inline assembly" },
		{ "int f(void) { __asm__ volatile(\"\"); }\n" GOOD, "x.c:1: inline assembly" },
		{ "as\\\nm(\"\");" GOOD, "x.c:1: a backslash" },
		{ "// a comment \\\nreal x;\n" GOOD, "x.c:1: a line may not end in a backslash" },
		{ "/*\n*/ _Pragma(\"x\")\n" GOOD, "x.c:2: pragmas" },
		{ "const char *s = R\"(a)\";\n" GOOD, "x.c:1: prefixes" },
		{ GOOD GOOD, "x.c:6: the hook is defined twice" },
		{ GOOD "}", "x.c:5: a closing bracket" },
		{ GOOD "int f(void) {\n", "x.c:6: the text ends within brackets" },
		{ GOOD "\n/* no end", "x.c:6: the comment has no end" },
		{ GOOD "char *s = \"no end\n\";", "x.c:5: the literal has no end" },
	};

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		unsigned int hooks;

		EXPECT(t, attn_variant_scan(rows[i].text, "x.c", &hooks) == -EINVAL);
		EXPECT_CONTAINS(t, cairn_last_error(), rows[i].says);
	}
}

static int create(const char *text, int32_t *variant)
{
	return cairn_attn_variant_create(text, strlen(text), "x.c", variant);
}

static void host_errors_have_lines(struct cairn_test *t)
{
	int32_t v;
	int ret = create(GOOD "\nreal sink(const struct attn_x *x)\n{\n\treturn unknown;\n}\n", &v);

	if (!ret)
		cairn_attn_variant_destroy(v);
	if (!ret) {
		cairn_skip(t, "no C compiler (cc)");
		return;
	}
	EXPECT(t, ret == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "x.c:8: ");
	EXPECT_CONTAINS(t, cairn_last_error(), "unknown");
	EXPECT(t, create("real logit(const struct attn_x *x, real s) {\n return none(s); }", &v) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "x.c:2: ");
}

/* Without a compiler, a text can be created; the tables that need one refuse its calls by name. */
static void no_host_compiler(struct cairn_test *t)
{
	const char *path = getenv("PATH");
	char *before = strdup(path ? path : "");
	const void *hooks;
	int32_t v;

	setenv("PATH", "/no/such/folder", 1);
	if (EXPECT(t, !create(GOOD, &v))) {
		EXPECT(t, attn_variant_hooks(v, 1, &hooks) == -EOPNOTSUPP);
		EXPECT_CONTAINS(t, cairn_last_error(), "x.c: there is no C compiler (cc)");
		cairn_attn_variant_destroy(v);
		EXPECT(t, !attn_variant_known(v));
	}
	setenv("PATH", before, 1);
	free(before);
}

/* A compiler that hangs is stopped with its children. */
static void host_compiler_hangs(struct cairn_test *t)
{
	static const char script[] = "#!/bin/sh\nsleep 600 &\nwait\n";
	const char *path = getenv("PATH");
	char *before = strdup(path ? path : ""), with[8192], cc[4096 + 16];
	int limit = attn_variant_cc_limit_s;
	int32_t v;

	cairn_tmpfile(t, cc, sizeof(cc), "cc", script, strlen(script));
	EXPECT(t, chmod(cc, 0700) == 0);
	snprintf(with, sizeof(with), "%s:%s", cairn_tmpdir(t), before);
	setenv("PATH", with, 1);
	attn_variant_cc_limit_s = 1;
	EXPECT(t, create(GOOD, &v) == -ETIMEDOUT);
	EXPECT_CONTAINS(t, cairn_last_error(), "x.c: cc has not ended after 1 s");
	attn_variant_cc_limit_s = limit;
	setenv("PATH", before, 1);
	free(before);
}

/* Where children are ignored, the compiler's end cannot be seen. It is not waited for. */
static void children_are_ignored(struct cairn_test *t)
{
	int32_t v;

	signal(SIGCHLD, SIG_IGN);
	EXPECT(t, create(GOOD, &v) == -EIO);
	signal(SIGCHLD, SIG_DFL);
	EXPECT_CONTAINS(t, cairn_last_error(), "x.c: cc: its exit status is lost: ");
}

static void created_and_forgotten(struct cairn_test *t)
{
	int32_t v[ATTN_VARIANT_TEXTS], more;
	const char *path = getenv("PATH");
	char *before = strdup(path ? path : "");

	setenv("PATH", "/no/such/folder", 1);	/* texts need not be compiled here */
	for (int i = 0; i < ATTN_VARIANT_TEXTS; i++) {
		EXPECT(t, !create(GOOD, &v[i]));
		EXPECT(t, v[i] == ATTN_VARIANT_FIRST_TEXT + i);
	}
	EXPECT(t, create(GOOD, &more) == -ENOMEM);
	cairn_attn_variant_destroy(v[5]);
	EXPECT(t, !create(GOOD, &more) && more == v[5]);
	for (int i = 0; i < ATTN_VARIANT_TEXTS; i++)
		cairn_attn_variant_destroy(v[i]);
	EXPECT(t, cairn_attn_variant_create("a\0b", 3, "x.c", &more) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "x.c: has a byte of value 0");
	setenv("PATH", before, 1);
	free(before);
}

/* Returns whether there is no NVRTC, and then skips the test. */
static int skip_without_nvrtc(struct cairn_test *t)
{
	char key[ATTN_VARIANT_HASH];

	if (!attn_variant_cache_key(GOOD, CAIRN_BF16, 64, key))
		return 0;
	cairn_skip(t, "%s", cairn_last_error());
	return 1;
}

static void no_nvrtc(struct cairn_test *t)
{
	struct attn_variant_image image;

	setenv("CAIRN_NVRTC", "/no/such/library.so", 1);
	EXPECT(t, attn_variant_compile_device(GOOD, "x.c", CAIRN_BF16, 64, &image) == -EOPNOTSUPP);
	EXPECT_CONTAINS(t, cairn_last_error(), "NVRTC (libnvrtc.so.13 or .12) is missing");
	unsetenv("CAIRN_NVRTC");
}

/* The key depends on everything that the machine code depends on: the text, its dtype and head dimension. */
static void keys_differ(struct cairn_test *t)
{
	static const struct {
		const char *text;
		int dtype, dim;
	} rows[] = {
		{ GOOD, CAIRN_F16, 64 }, { GOOD, CAIRN_F16, 128 }, { GOOD, CAIRN_BF16, 64 },
		{ GOOD, CAIRN_BF16, 128 }, { GOOD "\n", CAIRN_F16, 64 },
	};
	char keys[ARRAY_SIZE(rows)][ATTN_VARIANT_HASH], again[ATTN_VARIANT_HASH];

	if (skip_without_nvrtc(t))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		EXPECT(t, !attn_variant_cache_key(rows[i].text, rows[i].dtype, rows[i].dim, keys[i]));
		for (size_t k = 0; k < i; k++)
			EXPECT(t, strcmp(keys[i], keys[k]) != 0);
	}
	EXPECT(t, !attn_variant_cache_key(rows[0].text, rows[0].dtype, rows[0].dim, again));
	EXPECT(t, !strcmp(again, keys[0]));
}

static void device_errors_have_lines(struct cairn_test *t)
{
	struct attn_variant_image image;

	if (skip_without_nvrtc(t))
		return;
	setenv("CAIRN_CACHE", cairn_tmpdir(t), 1);
	EXPECT(t, attn_variant_compile_device("\n\nreal logit(const struct attn_x *x, real s)\n{\n"
					      "\treturn s + unknown;\n}\n", "x.c", CAIRN_BF16, 64, &image) ==
	       -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "x.c:5: identifier \"unknown\" is undefined");
	unsetenv("CAIRN_CACHE");
}

static int same(const struct attn_variant_image *a, const struct attn_variant_image *b)
{
	return a->cubin_bytes == b->cubin_bytes && !memcmp(a->cubin, b->cubin, a->cubin_bytes);
}

/* Overwrites a byte in the middle of a file, or cuts the file off there. */
static void damage(struct cairn_test *t, const char *path, int cut)
{
	struct stat st;
	int fd = open(path, O_RDWR);
	char byte = 0;

	if (!EXPECT(t, fd >= 0 && !fstat(fd, &st)))
		return;
	if (cut) {
		EXPECT(t, !ftruncate(fd, st.st_size / 2));
	} else {
		EXPECT(t, pread(fd, &byte, 1, st.st_size / 2) == 1);
		byte = (char)~byte;
		EXPECT(t, pwrite(fd, &byte, 1, st.st_size / 2) == 1);
	}
	close(fd);
}

/*
 * A cached kernel is found again, a damaged file is replaced, and a directory that others may enter is not
 * used.
 */
static void cache(struct cairn_test *t)
{
	struct attn_variant_image image = { .dtype = CAIRN_F16, .head_dim = 64, .text = (char *)GOOD,
		.cubin = (char *)"not really a cubin", .cubin_bytes = 18 }, found;
	char key[ATTN_VARIANT_HASH], dir[300], path[512];
	struct stat st;

	memset(key, 'a', sizeof(key) - 1);
	key[sizeof(key) - 1] = 0;
	snprintf(dir, sizeof(dir), "%s/new/cache", cairn_tmpdir(t));
	snprintf(path, sizeof(path), "%s/attn-%s.cubin", dir, key);
	setenv("CAIRN_CACHE", dir, 1);
	EXPECT(t, !attn_variant_cache_find(key, &found));
	EXPECT(t, !attn_variant_cache_put(key, &image));
	EXPECT(t, !stat(dir, &st) && (st.st_mode & 0777) == 0700);
	EXPECT(t, !stat(path, &st) && (st.st_mode & 0777) == 0600);
	for (int cut = 0; cut < 2; cut++) {
		if (EXPECT(t, attn_variant_cache_find(key, &found))) {
			EXPECT(t, same(&image, &found) && !strcmp(found.text, GOOD) && found.head_dim == 64);
			attn_variant_image_free(&found);
		}
		damage(t, path, cut);
		EXPECT(t, !attn_variant_cache_find(key, &found));
		EXPECT(t, !attn_variant_cache_put(key, &image));
	}
	EXPECT(t, !chmod(dir, 0755));
	EXPECT(t, !attn_variant_cache_find(key, &found));
	EXPECT(t, attn_variant_cache_put(key, &image) < 0);
	unsetenv("CAIRN_CACHE");
}

/* A compiled file contains its text; a file of other headers, or with a wrong byte, is refused. */
static void built_offline(struct cairn_test *t)
{
	char path[300], *data = malloc(8 << 20);
	size_t n = 0;
	int32_t v;
	FILE *f;

	if (!EXPECT(t, data) || skip_without_nvrtc(t)) {
		free(data);
		return;
	}
	setenv("CAIRN_CACHE", cairn_tmpdir(t), 1);
	snprintf(path, sizeof(path), "%s/x.cubin", cairn_tmpdir(t));
	EXPECT(t, !cairn_attn_variant_build(GOOD, "x.c", CAIRN_BF16, 64, path));
	f = fopen(path, "rb");
	if (f) {
		n = fread(data, 1, 8 << 20, f);
		fclose(f);
	}
	if (EXPECT(t, !cairn_attn_variant_create(data, n, path, &v))) {
		const struct attn_variant_text *text = attn_variant_text(v);

		EXPECT(t, text && !strcmp(text->text, GOOD) && text->hooks == 1 << ATTN_HOOK_LOGIT);
		EXPECT(t, text && text->instances[1][0].cubin && !text->instances[0][0].cubin);
		cairn_attn_variant_destroy(v);
	}
	data[n / 2] ^= 1;
	EXPECT(t, cairn_attn_variant_create(data, n, path, &v) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "damaged: its digest is wrong");
	unsetenv("CAIRN_CACHE");
	free(data);
}

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static double median_ns(const double seconds_of[3])
{
	double a = seconds_of[0], b = seconds_of[1], c = seconds_of[2];

	return 1e9 * fmax(fmin(a, b), fmin(fmax(a, b), c));
}

/* Times a compilation for the GPU without the cache, and a hit in the cache. */
static void compile_times(struct cairn_test *t)
{
	struct attn_variant_image image;
	double took[2][3];		/* cold, warm */
	char text[256];

	if (skip_without_nvrtc(t))
		return;
	setenv("CAIRN_CACHE", cairn_tmpdir(t), 1);
	for (int i = 0; i < 3; i++)
		for (int warm = 0; warm < 2; warm++) {
			double begin = seconds();

			/* NVRTC may cache what it has compiled, so each text computes something else */
			if (!warm)
				snprintf(text, sizeof(text), "real logit(const struct attn_x *x, real s)\n"
					 "{ return s * (real)%.17g; }\n", fmod(begin, 1000));
			if (!EXPECT(t, !attn_variant_compile_device(text, "x.c", CAIRN_BF16, 128, &image)))
				return;
			took[warm][i] = seconds() - begin;
			attn_variant_image_free(&image);
		}
	unsetenv("CAIRN_CACHE");
	cairn_host_row(t, "nvrtc_cold", "nvrtc", "\"median_ns\":%.0f", median_ns(took[0]));
	cairn_host_row(t, "nvrtc_warm", "nvrtc", "\"median_ns\":%.0f", median_ns(took[1]));
}

static const struct cairn_unit units[] = {
	{ "scan_finds", scan_finds }, { "scan_refuses", scan_refuses },
	{ "host_errors_have_lines", host_errors_have_lines }, { "no_host_compiler", no_host_compiler },
	{ "host_compiler_hangs", host_compiler_hangs }, { "children_are_ignored", children_are_ignored },
	{ "created_and_forgotten", created_and_forgotten }, { "no_nvrtc", no_nvrtc },
	{ "keys_differ", keys_differ }, { "device_errors_have_lines", device_errors_have_lines },
	{ "cache", cache }, { "built_offline", built_offline },
};

static const struct cairn_unit measures[] = { { "compile_times", compile_times } };

const struct cairn_family cairn_attn_variant_compile_family = {
	.stage = "fused", .name = "attn_variant_compile", .units = units, .num_units = ARRAY_SIZE(units),
	.measures = measures, .num_measures = ARRAY_SIZE(measures), .cost_s = 5,
};
