// SPDX-License-Identifier: Apache-2.0
/* speculative_test - `cairn generate` prints the same answer with every kind of speculation */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "conformance/harness.h"
#include "conformance/suite/spawn.h"
#include "conformance/tables/program.h"
#include "serving/model/model_test.h"

enum { MAX_ARGS = 28 };

static int cairn(char *out, const char *const *args)
{
	char *argv[MAX_ARGS + 2] = { "cairn" };

	for (int i = 0; i < MAX_ARGS && args[i]; i++)
		argv[i + 1] = (char *)args[i];
	return cairn_spawn(argv, out, 16384);
}

#define CAIRN(out, ...) cairn(out, (const char *const[MAX_ARGS + 1]){ __VA_ARGS__, NULL })
#define REFUSED(t, text, ...) \
	do { \
		char out_[16384]; \
		EXPECT(t, CAIRN(out_, __VA_ARGS__) == 2); \
		EXPECT_CONTAINS(t, out_, text); \
	} while (0)

/* Cuts the answer out of the output: what follows the line about the model, up to the times. */
static char *answer_of(char *out)
{
	char *begin = strstr(out, "loaded in"), *end;

	for (char *next = begin; next && (next = strstr(next + 1, "loaded in"));)
		begin = next;
	begin = begin ? strchr(begin, '\n') : out;
	end = strstr(begin, "\nprompt of ");
	if (end)
		*end = 0;
	return begin;
}

#define ASK(temperature, ...) \
	"generate", "--impl", "cpu", "--decode", "unfused", "--prompt", "1 2 3 1 2 3 1 2 3", "--ignore-eos", \
	"--max-new-tokens", "120", "--temperature", temperature, __VA_ARGS__

static void same_answers(struct cairn_test *t)
{
	static char plain[16384], out[16384];
	char dir[PATH_MAX], head[PATH_MAX];

	snprintf(head, sizeof(head), "%.2000s/serving/golden/eagle3_embedded", cairn_data_dir());
	snprintf(dir, sizeof(dir), "%s/serving/embedded", cairn_data_dir());
	for (int i = 0; i < 2; i++) {
		const char *temperature = i ? "1" : "0";

		EXPECT(t, CAIRN(plain, ASK(temperature, "--speculative", "off")) == 0);
		EXPECT(t, CAIRN(out, ASK(temperature, "--speculative", "ngram")) == 0);
		EXPECT_CONTAINS(t, out, " drafts right");
		EXPECT(t, strlen(answer_of(plain)) > 20 && !strcmp(answer_of(out), answer_of(plain)));
		EXPECT(t, CAIRN(out, ASK(temperature, "--speculative-model", dir, "--batch", "2")) == 0);
		EXPECT_CONTAINS(t, out, ": drafts, 5 layers");
		EXPECT(t, !strcmp(answer_of(out), answer_of(plain)));
		EXPECT(t, CAIRN(out, ASK(temperature, "--speculative-model", dir, "--speculative-branches",
					 "3", "--speculative-tree-rows", "12")) == 0);
		EXPECT(t, !strcmp(answer_of(out), answer_of(plain)));
		EXPECT(t, CAIRN(out, ASK(temperature, "--speculative", "eagle3", "--speculative-model",
					 head)) == 0);
		EXPECT_CONTAINS(t, out, "an EAGLE-3 head");
		EXPECT(t, !strcmp(answer_of(out), answer_of(plain)));
	}
}

/* Writes deepseek_v3_tiny with the vocabulary of the embedded model, and that model's tokenizer beside it. */
static int make_mtp_model(struct cairn_test *t)
{
	char path[PATH_MAX], target[PATH_MAX], line[256], *rows;
	FILE *from, *to;

	snprintf(path, sizeof(path), "%.2000s/serving/golden/deepseek_v3_tiny", cairn_data_dir());
	if (altered_config(t, path, "\"vocab_size\": 192", "\"vocab_size\": 512"))
		return -1;
	strcat(path, "/recipe.txt");
	from = fopen(path, "r");
	cairn_tmpfile(t, path, sizeof(path), "recipe.txt", "", 0);
	to = fopen(path, "w");
	if (!EXPECT(t, from && to))
		return -1;
	while (fgets(line, sizeof(line), from)) {
		rows = strstr(line, " 192 128 ");
		if (rows && (strstr(line, "embed") || strstr(line, "head")))
			memcpy(rows, " 512", 4);
		fputs(line, to);
	}
	fclose(from);
	fclose(to);
	snprintf(target, sizeof(target), "%.2000s/serving/embedded/tokenizer.json", cairn_data_dir());
	snprintf(line, sizeof(line), "%.200s/tokenizer.json", cairn_tmpdir(t));
	return recipe_weights(t, path) || !EXPECT(t, symlink(target, line) == 0) ? -1 : 0;
}

/* The answers of random weights may have bytes of 0, which would hide what follows them. */
static int cairn_bytes(char out[16384], const char *const *args)
{
	size_t end = 16384;
	int ret;

	memset(out, 0, end);
	ret = cairn(out, args);
	while (end && !out[end - 1])
		end--;
	for (size_t i = 0; i < end; i++)
		out[i] = out[i] ? out[i] : '?';
	return ret;
}

#define CAIRN_BYTES(out, ...) cairn_bytes(out, (const char *const[MAX_ARGS + 1]){ __VA_ARGS__, NULL })

static void mtp_answers(struct cairn_test *t)
{
	static char plain[16384], out[16384];
	const char *dir = cairn_tmpdir(t);

	if (make_mtp_model(t))
		return;
	for (int i = 0; i < 2; i++) {
		const char *temperature = i ? "1" : "0";

		EXPECT(t, CAIRN_BYTES(plain, ASK(temperature, "--model", dir)) == 0);
		EXPECT(t, CAIRN_BYTES(out, ASK(temperature, "--model", dir, "--speculative", "mtp",
					       "--num-speculative-tokens", "3")) == 0);
		EXPECT_CONTAINS(t, out, "a layer for multi-token prediction");
		EXPECT_CONTAINS(t, out, " drafts right");
		EXPECT(t, strlen(answer_of(plain)) > 20 && !strcmp(answer_of(out), answer_of(plain)));
	}
	REFUSED(t, "--speculative: eagle3 and mtp exclude --tp and --cp", "generate", "--impl", "cpu",
		"--prompt", "x", "--model", dir, "--speculative", "mtp", "--tp", "2");
}

static void bad_options(struct cairn_test *t)
{
	char target[PATH_MAX], path[PATH_MAX];

	snprintf(target, sizeof(target), "%.2000s/serving/golden/bytelevel.json", cairn_data_dir());
	snprintf(path, sizeof(path), "%.2000s/tokenizer.json", cairn_tmpdir(t));
	EXPECT(t, symlink(target, path) == 0);
	REFUSED(t, "none of off, ngram, draft_model, eagle3, mtp", "generate", "--speculative", "eagle");
	REFUSED(t, "--speculative: eagle3 needs --speculative-model", "generate", "--speculative", "eagle3");
	snprintf(path, sizeof(path), "%.2000s/serving/embedded", cairn_data_dir());
	REFUSED(t, "--speculative: mtp excludes --speculative-model", "generate", "--speculative", "mtp",
		"--speculative-model", path);
	REFUSED(t, "--speculative: mtp excludes --shape", "generate", "--speculative", "mtp", "--shape",
		"dsv3");
	REFUSED(t, "multi-token prediction is supported for DeepseekV3ForCausalLM only", "generate", "--impl",
		"cpu", "--prompt", "x", "--speculative", "mtp");
	REFUSED(t, "is no EAGLE-3 head", "generate", "--impl", "cpu", "--prompt", "x", "--speculative",
		"eagle3", "--speculative-model", path);
	REFUSED(t, "--prompt-lookup-min: needs --speculative", "generate", "--prompt-lookup-min", "2");
	REFUSED(t, "--speculative-branches: needs --speculative", "generate", "--speculative-branches", "2");
	REFUSED(t, "--speculative-tree-rows: needs --speculative-branches", "generate", "--speculative",
		"ngram", "--speculative-tree-rows", "8");
	REFUSED(t, "--num-speculative-tokens: '17'", "generate", "--num-speculative-tokens", "17");
	REFUSED(t, "--prompt-lookup-min: 5 is not in 1..3 (prompt_lookup_max)", "generate", "--impl", "cpu",
		"--prompt", "x", "--speculative", "ngram", "--prompt-lookup-min", "5", "--prompt-lookup-max",
		"3");
	REFUSED(t, "--speculative: draft_model needs --speculative-model", "generate", "--speculative",
		"draft_model");
	REFUSED(t, "--speculative: ngram excludes --speculative-model", "generate", "--speculative", "ngram",
		"--speculative-model", "x");
	REFUSED(t, "--speculative-model: excludes --shape", "generate", "--shape", "llama3-8b",
		"--speculative-model", "x");
	REFUSED(t, "has other tokens than the model's", "generate", "--impl", "cpu", "--prompt", "x",
		"--speculative-model", cairn_tmpdir(t));
	REFUSED(t, "--json: not with --speculative", "generate", "--speculative", "ngram", "--json",
		"/tmp/x");
}

static const struct cairn_unit units[] = {
	{ "same_answers", same_answers },
	{ "mtp_answers", mtp_answers },
	{ "bad_options", bad_options },
};

const struct cairn_family cairn_speculative_family = {
	.stage = "serving",
	.name = "speculative",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.cost_s = 5,
};
