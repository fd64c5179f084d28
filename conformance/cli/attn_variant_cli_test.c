// SPDX-License-Identifier: Apache-2.0
/* attn_variant_cli_test - `cairn attn-variant`: verdicts, error lines, compiled files, bad usage */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "conformance/suite/spawn.h"
#include "fused/attention/variant/text/attn_variant_compile.h"

#define LOGIT	"real logit(const struct attn_x *x, real s)\n{\n\treturn "

/* Runs `cairn attn-variant` with these arguments. */
#define attn_variant(out, len, ...) \
	cairn_spawn((char *[]){ "cairn", "attn-variant", __VA_ARGS__, NULL }, out, len)

/* Writes a text to a file of the test and sets path to it. */
static void write_text(struct cairn_test *t, char path[512], const char *text)
{
	cairn_tmpfile(t, path, 512, "x.c", text, strlen(text));
}

static int have_cc(void)
{
	return system("cc --version >/dev/null 2>&1") == 0;
}

static int have_nvrtc(void)
{
	char key[ATTN_VARIANT_HASH];

	return !attn_variant_cache_key(LOGIT "s;\n}\n", CAIRN_BF16, 64, key);
}

static void bad_usage(struct cairn_test *t)
{
	char good[512], out[8192];
	struct {
		const char *args[7], *says;
	} rows[] = {
		{ { "check" }, "takes an action and a file" },
		{ { "judge", good }, "'judge' is neither build, check nor bench" },
		{ { "check", "/no/such/file.c" }, "/no/such/file.c: No such file" },
		{ { "check", "/" }, "/: Is a directory" },
		{ { "build", good }, "build: --out is missing" },
		{ { "build", good, "--out", "x", "--dtype", "f32" }, "--dtype: must be bf16 or f16" },
		{ { "build", good, "--out", "x", "--head-dim", "96" }, "--head-dim: must be 64 or 128" },
		{ { "build", good, "--out", "x", "--p", "1" }, "--p, --impl: are no options of build" },
		{ { "check", good, "--out", "x" }, "--out, --dtype, --head-dim: are options of build alone" },
		{ { "check", good, "--p", "1,x" }, "--p: '1,x' is not a list" },
		{ { "check", good, "--p", "1,2,3,4,5,6,7,8,9" }, "is not a list of up to 8 numbers" },
		{ { "check", good, "--p", "inf" }, "--p: 'inf' is not a list" },
		{ { "check", good, "--frobnicate" }, "unrecognized option '--frobnicate'" },
	};

	write_text(t, good, LOGIT "s;\n}\n");
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		char *argv[10] = { "cairn", "attn-variant" };
		int lines = 0;

		for (int k = 0; k < 7; k++)
			argv[k + 2] = (char *)(uintptr_t)rows[i].args[k];
		EXPECT(t, cairn_spawn(argv, out, sizeof(out)) == 2);
		EXPECT_CONTAINS(t, out, rows[i].says);
		for (const char *c = out; *c; c++)
			lines += *c == '\n';
		EXPECT(t, lines == 1);
	}
	EXPECT(t, attn_variant(out, sizeof(out), "--help") == 0);
	EXPECT_CONTAINS(t, out, "usage: cairn attn-variant build");
}

/* A text that does not compile gets one line with the file and the line of the text, and exit status 2. */
static void bad_texts(struct cairn_test *t)
{
	static const struct {
		const char *text, *says;
		int by_compiler;
	} rows[] = {
		{ "real f(real s) { return s; }\n", "x.c:1: no hook is defined", 0 },
		{ "#include <math.h>\n" LOGIT "s;\n}\n", "x.c:1: preprocessor lines", 0 },
		{ LOGIT "s;\n}\nvoid f(void) { asm(\"\"); }\n", "x.c:5: inline assembly", 0 },
		{ "\n" LOGIT "s + slope;\n}\n", "x.c:4: ", 1 },
		{ LOGIT "s\n}\n", "x.c:", 1 },
	};

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		char path[512], out[8192];

		if (rows[i].by_compiler && !have_cc() && !have_nvrtc())
			continue;
		write_text(t, path, rows[i].text);
		EXPECT(t, attn_variant(out, sizeof(out), "check", path) == 2);
		EXPECT_CONTAINS(t, out, rows[i].says);
		EXPECT(t, strchr(out, '\n') && !strchr(out, '\n')[1]);
	}
}

static void verdict(struct cairn_test *t)
{
	char path[512], out[1 << 15];
	int passed = 0, failed = 0;
	const char *totals;

	if (!have_cc()) {
		cairn_skip(t, "no C compiler (cc), which makes the reference");
		return;
	}
	setenv("CAIRN_CACHE", cairn_tmpdir(t), 1);
	write_text(t, path, LOGIT "s * x->p[1] + x->p[0];\n}\n");
	EXPECT(t, attn_variant(out, sizeof(out), "check", path, "--impl", "cpu", "--p", "3,0.5") == 0);
	EXPECT_CONTAINS(t, out, "x.c: logit\n");
	EXPECT_CONTAINS(t, out, "fused.attn_variant_text.text_decode_h32_8_d128_bf16.normal");
	totals = strstr(out, "\n1..1\n");	/* the line before the totals */
	totals = totals ? totals + 6 : NULL;
	EXPECT(t, totals && sscanf(totals, "%d passed, %d failed", &passed, &failed) == 2 && passed > 10);
	unsetenv("CAIRN_CACHE");
}

/* A compiled file is judged like its text. */
static void compiled(struct cairn_test *t)
{
	char path[512], cubin[512], out[1 << 15];

	if (!have_cc() || !have_nvrtc()) {
		cairn_skip(t, "no C compiler (cc) or no NVRTC");
		return;
	}
	setenv("CAIRN_CACHE", cairn_tmpdir(t), 1);
	write_text(t, path, LOGIT "s + x->p[0] * x->distance;\n}\n");
	snprintf(cubin, sizeof(cubin), "%s/x.cubin", cairn_tmpdir(t));
	EXPECT(t, attn_variant(out, sizeof(out), "build", path, "--out", cubin, "--dtype", "f16",
			       "--head-dim", "64") == 0);
	EXPECT_CONTAINS(t, out, "x.c for f16, head_dim 64");
	EXPECT(t, attn_variant(out, sizeof(out), "check", cubin, "--impl", "cpu") == 0);
	EXPECT_CONTAINS(t, out, "x.cubin: logit\n");
	EXPECT_CONTAINS(t, out, " 0 failed");
	EXPECT(t, attn_variant(out, sizeof(out), "build", cubin, "--out", "/tmp/x") == 2);
	EXPECT_CONTAINS(t, out, "compiled already");
	EXPECT(t, attn_variant(out, sizeof(out), "build", path, "--out", "/no/such/folder/x") == 2);
	EXPECT_CONTAINS(t, out, "/no/such/folder/x: No such file");
	unsetenv("CAIRN_CACHE");
}

static const struct cairn_unit units[] = {
	{ "bad_usage", bad_usage }, { "bad_texts", bad_texts }, { "verdict", verdict },
	{ "compiled", compiled },
};

const struct cairn_family cairn_attn_variant_cli_family = {
	.stage = "conformance", .name = "attn_variant_cli", .units = units, .num_units = ARRAY_SIZE(units),
	.cost_s = 20,
};
