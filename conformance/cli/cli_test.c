// SPDX-License-Identifier: Apache-2.0
/* cli_test - options and commands; bad usage gets one line that names the fault, and exit status 2 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conformance/harness.h"
#include "conformance/suite/families.h"
#include "conformance/suite/runner.h"
#include "conformance/suite/spawn.h"

static void one_line_and_two(struct cairn_test *t)
{
	static const struct { const char *args[8], *says; } rows[] = {
		{ { "frobnicate" }, "'frobnicate'" },
		{ { "check", "--no-such-option" }, "cairn check: unrecognized option '--no-such-option'" },
		{ { "list", "no.such.case" }, "cairn list: no case matches" },
		{ { "bench", "no.such.case" }, "no case matches" },
		{ { "check", "--seed", "x" }, "--seed: 'x'" },
		{ { "check", "--seed", "-1" }, "--seed: '-1'" },
		{ { "check", "--repeat", "0" }, "--repeat: '0'" },
		{ { "check", "--drawn", "some" }, "--drawn: 'some'" },
		{ { "check", "--repeat", "99999999999999999999" }, "--repeat:" },
		{ { "check", "--impl", "gpu" }, "'gpu'" },
		{ { "check", "--impl", "./none.so" }, "./none.so" },
		{ { "check", "no.such.case" }, "no case matches" },
		{ { "check", "--json", "/no/such/dir/x", "primitives.embedding" }, "/no/such/dir/x" },
		{ { "bench", "--impl", "./none.so" }, "./none.so" },
		{ { "bench", "--device", "many" }, "--device: 'many'" },
		{ { "check", "--mustpass", "/no/such/list" }, "/no/such/list: No such file" },
		{ { "check", "--waivers", "/" }, "cairn check: /: Is a directory" },
		{ { "list", "--json", "x", "primitives" }, "cairn list: --json: is no option of list" },
		{ { "bench", "--repeat", "2", "primitives" }, "--repeat: is no option of bench" },
		{ { "bench", "-v", "primitives" }, "--verbose: is no option of bench" },
		{ { "check", "--once", "primitives" }, "cairn check: --once: is no option of check" },
		{ { "check", "--mutants", "--impl", "cpu", "primitives" },
		  "--impl: is no option of check --mutants" },
		{ { "check", "--shard", "0/2", "primitives" }, "--shard: '0/2'" },
		{ { "check", "--shard", "3/2", "primitives" }, "--shard: '3/2'" },
		{ { "check", "--shard", "1/2x", "primitives" }, "--shard: '1/2x'" },
		{ { "check", "--jobs", "0", "primitives" }, "--jobs: '0'" },
		{ { "check", "--list-slowest=0", "primitives" }, "--list-slowest: '0'" },
		{ { "check", "--junit", "/no/such/dir/x", "primitives.embedding" },
			"--junit: /no/such/dir/x" },
		{ { "bench", "--shard", "1/2", "primitives" }, "--shard: is no option of bench" },
		{ { "version", "primitives" }, "cairn version: 'primitives'" },
		{ { "generate", "--model", "/no/such/model", "--prompt", "x" }, "/no/such/model" },
		{ { "generate", "--no-such-option" },
		  "cairn generate: unrecognized option '--no-such-option'" },
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

/* A failed write is reported and gives exit status 1. Writes to /dev/full fail. */
static void nothing_is_lost(struct cairn_test *t)
{
	static const char *const rows[][2] = {
		{ "check --impl cpu --json /dev/full primitives.embedding.rows1_*",
		  "--json: /dev/full: cannot be written" },
		{ "bench --impl cpu --json /dev/full primitives.rope.rows1_heads32_8_dim128_bf16",
		  "--json: /dev/full: cannot be written" },
		{ "check --impl cpu primitives.embedding.rows1_* >/dev/full",
		  "standard output: cannot be written" },
		{ "list >/dev/full", "standard output: cannot be written" },
		{ "eval --limit 1 >/dev/full", "standard output: cannot be written" },
		{ "version >/dev/full", "standard output: cannot be written" },
	};
	char self[4096], line[4300], out[8192];

	EXPECT(t, cairn_beside("cairn", self, sizeof(self)));
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		int status;
		FILE *f;

		snprintf(line, sizeof(line), "'%s' 2>&1 %s", self, rows[i][0]);
		f = popen(line, "r");
		if (!EXPECT(t, f))
			continue;
		out[fread(out, 1, sizeof(out) - 1, f)] = 0;
		status = pclose(f);
		if (!EXPECT(t, WIFEXITED(status) && WEXITSTATUS(status) == 1))
			cairn_note(t, "%s: status %d", rows[i][0], status);
		EXPECT_CONTAINS(t, out, rows[i][1]);
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

/* --mutants selects by stage and family; a stage without mutants succeeds. */
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

/* With a file of catchers, a mutant that passes many cases before one catches it is named. */
static void mutants_with_catchers(struct cairn_test *t)
{
	static const char wrong[] = "silu_mul_rows_16_bits primitives.silu_mul.rows3_dim8_f32.normal\n";
	char path[4096], option[4112], out[8192];
	char *argv[] = { "cairn", "check", option, "primitives.silu_mul.silu_mul_rows_16_bits", NULL };

	cairn_tmpfile(t, path, sizeof(path), "catchers", wrong, sizeof(wrong) - 1);
	snprintf(option, sizeof(option), "--mutants=%s", path);
	EXPECT(t, cairn_spawn(argv, out, sizeof(out)) == 0);
	EXPECT_CONTAINS(t, out, "# silu_mul_rows_16_bits passed ");
	EXPECT_CONTAINS(t, out, "mutants: 1 of 1 caught");
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

/* --sanitize takes a few cases of a family, and bench rows only if there are no others. It skips the rest by
 * name. */
static void sanitize_selection(struct cairn_test *t)
{
	static char out[1 << 20];
	int passed = 0, failed = 0, skipped = 0, lines = 0, benches = 0;
	char *end, *last = NULL;

	EXPECT(t, cairn_spawn((char *[]){ "cairn", "check", "--sanitize", "-v", "--impl", "ref",
					  "primitives.cluster_reduce.*.*", NULL }, out, sizeof(out)) == 0);
	for (char *line = strtok_r(out, "\n", &end); line; line = strtok_r(NULL, "\n", &end)) {
		last = line;
		lines += !strncmp(line, "    ok ", 7);
		if (strncmp(line, "    ok ", 7) || strstr(line, " # SKIP not of the selection of --sanitize"))
			continue;
		passed++;
		/* names of cases other than bench rows have _x and the number of calls */
		benches += !strstr(line, "_x");
	}
	EXPECT(t, passed > 16 && passed <= 24);
	EXPECT(t, benches == 0);
	EXPECT(t, last && sscanf(last, "%d passed, %d failed, %d skipped", &passed, &failed, &skipped) == 3);
	EXPECT(t, failed == 0 && passed + skipped == lines && skipped > 1000);

	EXPECT(t, cairn_spawn((char *[]){ "cairn", "check", "--sanitize=3", "--impl", "ref",
					  "primitives.silu_mul.*rows*", NULL }, out, sizeof(out)) == 0);
	EXPECT_CONTAINS(t, out, "\n3 passed, 0 failed");
	/* several threads fill cases this large: choosing the selection must leave no threads behind */
	EXPECT(t, cairn_spawn((char *[]){ "cairn", "check", "--sanitize", "--impl", "cpu",
					  "fused.moe.*.*", NULL }, out, sizeof(out)) == 0);
	EXPECT_CONTAINS(t, out, "\n24 passed, 0 failed");
	EXPECT(t, cairn_spawn((char *[]){ "cairn", "check", "--sanitize=few", "primitives.rope", NULL }, out,
			      sizeof(out)) == 2);
	EXPECT_CONTAINS(t, out, "--sanitize: 'few' is not a whole number");
}

#define ROW_WORDS	12

/* Counts, for each word, the case names of a family that contain it, and how many of these are selected. */
struct words {
	const char *const *words;
	const uint8_t *takes;
	int at, eligible[ROW_WORDS], taken[ROW_WORDS];
};

static int has_word(const char *name, const char *word)
{
	for (const char *at = strstr(name, word); at; at = strstr(at + 1, word))
		if (strchr("_.", at[-1]) && (strchr("_.", at[strlen(word)]) || !at[strlen(word)]))
			return 1;
	return 0;
}

static int look_for_words(const struct cairn_selected *s, void *arg)
{
	struct words *w = arg;
	int takes = w->takes[w->at++];

	if (s->what != CAIRN_SEL_CASE || s->desc.bench || s->desc.device_only)
		return 0;
	for (int i = 0; i < ROW_WORDS && w->words[i]; i++)
		if (has_word(s->name, w->words[i])) {
			w->eligible[i]++;
			w->taken[i] += takes;
		}
	return 0;
}

static int count_one(const struct cairn_selected *s, void *arg)
{
	(void)s;
	(*(int *)arg)++;
	return 0;
}

/* Case names of one family, each of which must exist and be selected. */
struct named {
	const struct cairn_family *f;
	const uint8_t *takes;
	int at, found;
};

static int look_for_names(const struct cairn_selected *s, void *arg)
{
	struct named *n = arg;
	int takes = n->takes[n->at++];
	const char *tail = s->name + strlen(n->f->stage) + strlen(n->f->name) + 2;

	for (const char *const *name = n->f->sanitized; takes && *name; name++)
		n->found += !strcmp(*name, tail);
	return 0;
}

/* Each word of a case name by which a launcher chooses its kernel occurs in a selected case. */
static void sanitize_reaches_kernels(struct cairn_test *t)
{
	static const struct { const char *family, *words[ROW_WORDS]; } rows[] = {
		{ NULL, { "f32", "f16", "bf16", "exact", "normal", "extreme", "poison" } },
		{ "cluster_reduce",
		  { "oneshot", "twoshot", "ring", "tree", "offchip", "sum", "max", "min", "softmax" } },
		{ "cluster_gather", { "oneshot", "twoshot", "ring", "tree", "offchip", "waves" } },
		{ "dsmem", { "load", "async", "bulk", "multicast", "barrier", "mbarrier", "active", "hbm" } },
		{ "rmsnorm", { "residual", "offset" } },
		{ "rope", { "dim64", "dim128", "dim256", "interleaved" } },
		{ "sample", { "plain", "greedy", "topk10", "topp50", "minp10", "vocab7", "vocab32000" } },
		{ "attn_paged", { "d64", "d128", "d256", "causal", "lse", "prefill", "mixed" } },
		{ "kv_append", { "d64", "d128", "d256", "packed" } },
		{ "cluster_attn", { "d64", "d128", "auto", "token", "head", "offchip", "bias" } },
		{ "cluster_mla", { "lora0", "lora128", "offchip" } },
		{ "decode_step", { "d64", "d128", "graph", "persistent", "bias", "sample", "dsv2lite" } },
		{ "moe", { "mixtral", "dsv2lite", "shared" } },
	};
	struct cairn_options opt = { .seed = 1, .repeat = 1, .sanitize = CAIRN_SANITIZE_CASES };

	for (const struct cairn_family *const *f = cairn_families(); *f; f++) {
		int total = 0, taken;
		uint8_t *takes;

		if (!(*f)->num_cases)
			continue;
		cairn_each(&opt, *f, count_one, &total);
		takes = malloc((size_t)total);
		if (!EXPECT(t, takes))
			return;
		taken = cairn_sanitize_plan(&opt, *f, takes, total);
		if (!EXPECT(t, taken > 0 && taken <= CAIRN_SANITIZE_CASES))
			cairn_note(t, "%s: %d cases", (*f)->name, taken);
		if ((*f)->sanitized) {
			struct named n = { .f = *f, .takes = takes };
			int names = 0;

			while ((*f)->sanitized[names])
				names++;
			cairn_each(&opt, *f, look_for_names, &n);
			if (!EXPECT(t, n.found == names))
				cairn_note(t, "%s: %d of %d named cases", (*f)->name, n.found, names);
		}
		for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
			struct words w = { .words = rows[i].words, .takes = takes };

			if (rows[i].family && strcmp(rows[i].family, (*f)->name))
				continue;
			cairn_each(&opt, *f, look_for_words, &w);
			for (size_t k = 0; k < ROW_WORDS && w.words[k]; k++)
				if (!EXPECT(t, w.eligible[k] ? w.taken[k] > 0 : !rows[i].family))
					cairn_note(t, "%s: %d of %d cases of %s", (*f)->name, w.taken[k],
						   w.eligible[k], w.words[k]);
		}
		free(takes);
	}
}

/* --once, for profilers: the record names the case and has no times. */
static void bench_once(struct cairn_test *t)
{
	char out[8192], path[4096], record[8192] = "";
	FILE *f;

	snprintf(path, sizeof(path), "%s/once.jsonl", cairn_tmpdir(t));
	EXPECT(t, cairn_spawn((char *[]){ "cairn", "bench", "--once", "--impl", "cpu", "--json", path,
					  "primitives.cluster_reduce.size2_len64_f32_sum_oneshot", NULL },
			      out, sizeof(out)) == 0);
	EXPECT_CONTAINS(t, out, "1 called, 0 failed, 0 skipped");
	f = fopen(path, "r");
	if (!EXPECT(t, f && fgets(record, sizeof(record), f)))
		cairn_note(t, "%s: no record", path);
	if (f)
		fclose(f);
	EXPECT_CONTAINS(t, record, "\"case\":\"size2_len64_f32_sum_oneshot\",\"impl\":\"cpu\"");
	EXPECT_CONTAINS(t, record, "\"dsmem_bytes\":512");
	EXPECT(t, !strstr(record, "median_ns"));
}

/* A record is written when its row has been measured, so that a bench that is killed loses no rows. */
static void bench_records_at_once(struct cairn_test *t)
{
	char out[8192], path[4096], records[16384];
	struct pollfd fifo = { .events = POLLIN };
	pid_t pid;

	snprintf(path, sizeof(path), "%s/fifo", cairn_tmpdir(t));
	if (!EXPECT(t, mkfifo(path, 0600) == 0))
		return;
	fifo.fd = open(path, O_RDWR | O_CLOEXEC);	/* the bench need not wait for a reader */
	pid = fork();
	if (pid == 0) {
		setpgid(0, 0);
		_exit(cairn_spawn((char *[]){ "cairn", "bench", "--impl", "cpu", "--json", path,
					      "primitives.rope", NULL }, out, sizeof(out)) != 0);
	}
	if (EXPECT(t, poll(&fifo, 1, 60000) == 1)) {
		ssize_t n = read(fifo.fd, records, sizeof(records) - 1);

		records[n > 0 ? n : 0] = 0;
		EXPECT(t, strchr(records, '\n') && !strchr(records, '\n')[1]);	/* one record */
	}
	kill(-pid, SIGKILL);
	waitpid(pid, NULL, 0);
	close(fifo.fd);
}

static const struct cairn_unit units[] = {
	{ "skips", skips },
	{ "sanitize_selection", sanitize_selection },
	{ "sanitize_reaches_kernels", sanitize_reaches_kernels },
	{ "bench_once", bench_once },
	{ "bench_records_at_once", bench_records_at_once },
	{ "mutants_by_stage", mutants_by_stage }, { "mutants_with_catchers", mutants_with_catchers },
	{ "one_line_and_two", one_line_and_two },
	{ "help_and_version", help_and_version },
	{ "nothing_is_lost", nothing_is_lost },
};

const struct cairn_family cairn_cli_family = {
	.stage = "conformance", .name = "cli", .units = units, .num_units = ARRAY_SIZE(units),
	.cost_s = 20,
};
