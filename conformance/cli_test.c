// SPDX-License-Identifier: Apache-2.0
/* cli_test - bad usage gets one clear line that names what is wrong, and exit status 2 */
#include <stdio.h>
#include <string.h>

#include "harness.h"
#include "spawn.h"

static void one_line_and_two(struct cairn_test *t)
{
	static const struct { const char *args[8], *says; } rows[] = {
		{ { "frobnicate" }, "'frobnicate'" },
		{ { "check", "--no-such-option" }, "no-such-option" },
		{ { "check", "--seed", "x" }, "--seed: 'x'" },
		{ { "check", "--seed", "-1" }, "--seed: '-1'" },
		{ { "check", "--repeat", "0" }, "--repeat: '0'" },
		{ { "check", "--repeat", "99999999999999999999" }, "--repeat:" },
		{ { "check", "--impl", "gpu" }, "'gpu'" },
		{ { "check", "--impl", "./none.so" }, "./none.so" },
		{ { "check", "no.such.case" }, "no case matches" },
		{ { "check", "--json", "/no/such/dir/x", "primitives.embedding" }, "/no/such/dir/x" },
		{ { "bench", "--impl", "./none.so" }, "./none.so" },
		{ { "bench", "--device", "many" }, "--device: 'many'" },
		{ { "generate", "--model", "/no/such/model", "--prompt", "x" }, "/no/such/model" },
		{ { "generate", "--no-such-option" }, "no-such-option" },
		{ { "generate", "--impl", "gpu", "--prompt", "x" }, "'gpu'" },
		{ { "generate", "--temperature", "-1", "--prompt", "x" }, "temperature" },
		{ { "generate", "--temperature", "nan", "--prompt", "x" }, "temperature" },
		{ { "generate", "--top-p", "1.5", "--prompt", "x" }, "top-p" },
		{ { "generate", "--max-new-tokens", "0", "--prompt", "x" }, "max-new-tokens" },
		{ { "eval", "--limit", "x" }, "limit" },
	};

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		char *argv[10] = { "cairn" }, out[8192];
		int lines = 0;

		for (int k = 0; k < 8; k++)
			argv[k + 1] = (char *)rows[i].args[k];
		if (!EXPECT(t, cairn_spawn(argv, out, sizeof(out)) == 2))
			cairn_note(t, "%s %s: %.200s", rows[i].args[0],
				   rows[i].args[1] ? rows[i].args[1] : "", out);
		EXPECT_CONTAINS(t, out, rows[i].says);
		for (const char *c = out; *c; c++)
			lines += *c == '\n';
		if (!strstr(out, "TAP version") && !EXPECT(t, lines == 1))
			cairn_note(t, "%s: %d lines", rows[i].says, lines);
	}
}

static void help_and_version(struct cairn_test *t)
{
	char out[8192];

	EXPECT(t, cairn_spawn((char *[]){ "cairn", "help", NULL }, out, sizeof(out)) == 0);
	EXPECT_CONTAINS(t, out, "usage: cairn");
	EXPECT(t, cairn_spawn((char *[]){ "cairn", "version", NULL }, out, sizeof(out)) == 0);
	EXPECT_CONTAINS(t, out, "cairn ");
	EXPECT(t, cairn_spawn((char *[]){ "cairn", "list", "conformance.cli", NULL }, out, sizeof(out)) == 0);
	EXPECT_CONTAINS(t, out, "conformance.cli.help_and_version");
}

/* Mutants are chosen by the stage and family they bend; a stage without any is no failure. */
static void mutants_by_stage(struct cairn_test *t)
{
	char out[8192];

	EXPECT(t, cairn_spawn((char *[]){ "cairn", "check", "--mutants", "-v", "primitives.embedding", NULL },
			      out, sizeof(out)) == 0);
	EXPECT_CONTAINS(t, out, "ok - embedding_row_plus_1");
	EXPECT(t, !strstr(out, "rmsnorm_"));
	EXPECT(t, cairn_spawn((char *[]){ "cairn", "check", "--mutants", "serving", NULL },
			      out, sizeof(out)) == 0);
	EXPECT_CONTAINS(t, out, "mutants: 0 of 0 caught");
}

static void skips(struct cairn_test *t)
{
	char out[8192];

	EXPECT(t, cairn_spawn((char *[]){ "cairn", "list", "--skip", "cli.one_*", "--skip",
					  "*.mutants_by_stage", "conformance.cli", NULL },
			      out, sizeof(out)) == 0);
	EXPECT_CONTAINS(t, out, "conformance.cli.skips\n");
	EXPECT(t, !strstr(out, "one_line_and_two") && !strstr(out, "mutants_by_stage"));
	EXPECT(t, cairn_spawn((char *[]){ "cairn", "check", "--skip", "conformance.cli", "conformance.cli",
					  NULL }, out, sizeof(out)) == 2);
	EXPECT_CONTAINS(t, out, "no case matches");
}

/* --sanitize: few cases, but every algorithm, operator, type and kind; no benchmarks; nothing lost */
static void sanitize_selection(struct cairn_test *t)
{
	static const char *const words[] = {
		"_oneshot", "_twoshot", "_ring", "_tree", "_offchip", "_sum_", "_max_", "_min_", "_softmax_",
		"_f32_", "_f16_", "_bf16_", ".exact", ".normal", ".extreme", ".poison", "waves_", "odd_",
		"1..1\n", " 0 failed, 0 skipped\n",
	};
	char out[16384];
	int cases = 0;

	EXPECT(t, cairn_spawn((char *[]){ "cairn", "check", "--sanitize", "-v", "--impl", "ref",
					  "primitives.cluster_reduce", NULL }, out, sizeof(out)) == 0);
	for (size_t i = 0; i < ARRAY_SIZE(words); i++)
		EXPECT_CONTAINS(t, out, words[i]);
	for (const char *at = out; (at = strstr(at, "    ok ")); at++)
		cases++;
	EXPECT(t, cases > 16 && cases <= 24);
	EXPECT(t, !strstr(out, "sum_oneshot.normal"));	/* a bench row: no _x at its end */
}

static const struct cairn_unit units[] = {
	{ "skips", skips },
	{ "sanitize_selection", sanitize_selection },
	{ "mutants_by_stage", mutants_by_stage },
	{ "one_line_and_two", one_line_and_two },
	{ "help_and_version", help_and_version },
};

const struct cairn_family cairn_cli_family = {
	.stage = "conformance", .name = "cli", .units = units, .num_units = ARRAY_SIZE(units),
};
