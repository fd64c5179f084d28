/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tokenizer_oracle - compares random texts with the Hugging Face library itself
 *
 * Needs python3 with `tokenizers` 0.23 or newer (the environment variable PYTHON names another interpreter).
 * Without it the test is skipped, and only the golden pairs of the family tokenizer are checked. Every text
 * goes through one of the golden variants; ids and decoded text must equal those of the library.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conformance/harness.h"
#include "conformance/suite/spawn.h"
#include "serving/base/json.h"
#include "serving/tokenizer/tokenizer.h"
#include "serving/tokenizer/tokenizer_golden_test.h"
#include "serving/base/utf8.h"

#define NUM_TEXTS	100000
#define NUM_ID_LISTS	20000
#define MAX_VARIANTS	64
#define NO_LIBRARY	77

static const char *const words[] = {
	"the", "and", "'s", "'LL", "return", "int", "if (x) {", "1024", "3.14", "été", "größer",
	"模型", "カタカナ", "한국어",
	"שלום", "مرحبا", "ไทย", "👨\u200d👩\u200d👧", "🇩🇪", "e\u0301\u0323",
	"<s>", "</s>", "<unk>", "<0x41>", "<|eot_id|>",
	"<|begin_of_text|>", "tool", "[CALL]", "ﬁ", "▁", "▁▁", "  ", "    ", "\r\n", "\n", "\t",
	"\u00a0", "\u180e",
	"\u2028", "\xc2\x85", "\u3000", "ſ", "İ", "\u1112\u1161\u11ab", "가\u11a8", "½", "Ⅷ", "٣",
	"\xe4\xbd", "\xff",
	"\xf0\x9f\x98", "\xed\xa0\x80", "\u0344", "²½", "の・々", "x⁴", "\u0f71\u0f72",
	"\U0001d15e\U0001d165",
};

static uint32_t random_point(struct cairn_test *t)
{
	/* blocks of scripts, marks and recently added characters; the last one is all of Unicode */
	static const uint32_t blocks[][2] = {
		{ 0x20, 0x7e }, { 0xa0, 0x24f }, { 0x300, 0x36f }, { 0x370, 0x6ff }, { 0x700,
		  0x1fff }, { 0x2000, 0x2bff },
		{ 0x3000, 0x33ff }, { 0x4e00, 0x9fff }, { 0xa640, 0xabff }, { 0xf900, 0xffff },
		  { 0x10000, 0x12fff },
		{ 0x16000, 0x16fff }, { 0x1bc00, 0x1e8ff }, { 0x1f000, 0x1fbff }, { 0x20000,
		  0x323af }, { 0, 0x10ffff },
	};
	const uint32_t *b = blocks[cairn_rand(t) % ARRAY_SIZE(blocks)];
	uint32_t cp = b[0] + (uint32_t)(cairn_rand(t) % (b[1] - b[0] + 1));

	return cp >= 0xd800 && cp < 0xe000 ? 0xfffd : cp;
}

/* Writes random ids, including sequences that no text encodes to and ids that are too large. */
static size_t random_ids(struct cairn_test *t, const struct cairn_tokenizer *tok, char *out)
{
	size_t n = cairn_rand(t) % 24;

	for (size_t i = 0; i < n; i++) {
		/* with byte fallback the first 259 ids are bytes and special tokens */
		int32_t id =
			(int32_t)(cairn_rand(t) %
				  (cairn_rand(t) % 2 ? 260u
						     : (uint32_t)cairn_tokenizer_size(tok) + 3));

		memcpy(out + 4 * i, &id, 4);
	}
	return 4 * n;
}

/* Writes a random text of at most max bytes; returns its length. */
static size_t random_text(struct cairn_test *t, char *out, size_t max)
{
	size_t len = 0, parts = cairn_rand(t) % 12;
	int style = (int)(cairn_rand(t) % 6);

	while (parts-- && len + 64 < max) {
		const char *w = words[cairn_rand(t) % ARRAY_SIZE(words)];

		switch (style == 5 ? (int)(cairn_rand(t) % 5) : style) {
		case 0:		/* words, some of them followed by a space */
			len += (size_t)sprintf(out + len, "%s%s", w, cairn_rand(t) % 3 ? "" : " ");
			break;
		case 1:		/* random characters */
			for (int i = (int)(cairn_rand(t) % 6); i >= 0; i--)
				len += (size_t)cairn_utf8_put(random_point(t), out + len);
			break;
		case 2:		/* bytes */
			for (int i = (int)(cairn_rand(t) % 6); i >= 0; i--)
				out[len++] = (char)cairn_rand(t);
			break;
		case 3:		/* ASCII */
			for (int i = (int)(cairn_rand(t) % 8); i >= 0; i--)
				out[len++] = (char)(32 + cairn_rand(t) % 95);
			break;
		default:	/* one word repeated */
			for (int i = (int)(cairn_rand(t) % 6); i >= 0; i--)
				len += (size_t)sprintf(out + len, "%.9s", w);
		}
	}
	return len;
}

static int start_oracle(const char *dir)
{
	const char *python = getenv("PYTHON");
	char script[4096];
	int status;
	pid_t pid;

	if (!python || !*python)
		python = "python3";
	snprintf(script, sizeof(script), "%s/tools/golden/golden_tokenizer.py", cairn_srcdir());
	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		int null = open("/dev/null", O_RDWR);

		dup2(null, 0);
		dup2(null, 1);
		dup2(null, 2);
		execlp(python, python, script, "--oracle", dir, (char *)NULL);
		_exit(NO_LIBRARY);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
		return -1;
	return WEXITSTATUS(status);
}

static void describe(struct cairn_test *t, const char *what, const json_t *variant,
		     const char *text, size_t len)
{
	char quoted[CAIRN_QUOTE_LEN];

	cairn_note(t, "%s: %s: %s", json_string_value(json_object_get(variant, "name")), what,
		   cairn_quote(text, len, quoted));
}

/* Compares one record of the oracle with this module's result; returns its size, 0 if it is truncated. */
static size_t compare(struct cairn_test *t, struct cairn_tokenizer *tok, const json_t *variant,
		      unsigned flags, const char *text, size_t len, const char *answer,
		      size_t answer_len)
{
	uint32_t num_want, bytes_want;
	int32_t *ids = NULL;
	size_t num_ids = 0, num_bytes = 0, at;
	char *decoded = NULL;

	if (answer_len < 4)
		return 0;
	memcpy(&num_want, answer, 4);
	at = 4 + (size_t)num_want * 4;
	if (answer_len < at + 4)
		return 0;
	memcpy(&bytes_want, answer + at, 4);
	if (answer_len < at + 4 + bytes_want)
		return 0;
	if (flags & 8) {
		num_ids = len / 4;
		ids = malloc(len + 1);
		if (ids)
			memcpy(ids, text, len);
	} else if (!EXPECT(t, !cairn_tokenizer_encode(tok, text, len, flags & 3, &ids, &num_ids))) {
		cairn_note(t, "%s", cairn_last_error());
	}
	if (!EXPECT(t, num_ids == num_want && !memcmp(ids, answer + 4, num_ids * 4))) {
		describe(t, "encodes to different ids", variant, text, len);
	} else if (!EXPECT(t, !cairn_tokenizer_decode(tok, ids, num_ids, flags & 4, &decoded,
						      &num_bytes)) ||
		   !EXPECT(t, num_bytes == bytes_want &&
				      !memcmp(decoded, answer + at + 4, num_bytes))) {
		describe(t, "decodes to a different text", variant, text, len);
	}
	free(ids);
	free(decoded);
	return at + 4 + bytes_want;
}

static void random_strings(struct cairn_test *t)
{
	struct cairn_tokenizer *toks[MAX_VARIANTS] = { NULL };
	char path[4096], text[2048], *answers = NULL, *in = NULL, *json;
	size_t num_variants = 0, in_len = 0, in_cap = 64 << 20, num_answers = 0, at = 0, used;
	struct cairn_golden g;
	FILE *f;
	int ret;

	snprintf(path, sizeof(path), "%s/tools/golden/golden_tokenizer.py", cairn_srcdir());
	if (access(path, R_OK)) {
		cairn_skip(t, "tools/golden/golden_tokenizer.py is not there: a package has no tools");
		return;
	}
	if (!EXPECT(t, !cairn_golden_open(&g)))
		return;
	for (; num_variants < MAX_VARIANTS && (json = cairn_golden_file(&g, num_variants));
	     num_variants++) {
		char name[16];

		snprintf(name, sizeof(name), "%zu.json", num_variants);
		cairn_tmpfile(t, path, sizeof(path), name, json, strlen(json));
		if (!EXPECT(t, !cairn_tokenizer_open(path, &toks[num_variants])))
			cairn_note(t, "%s", cairn_last_error());
		free(json);
	}
	in = malloc(in_cap);
	for (int i = 0; i < NUM_TEXTS + NUM_ID_LISTS && in && in_len + sizeof(text) + 6 < in_cap;
	     i++) {
		size_t variant = cairn_rand(t) % num_variants;
		uint32_t len = (uint32_t)(i < NUM_TEXTS ? random_text(t, text, sizeof(text)) :
							  random_ids(t, toks[variant], text));

		in[in_len++] = (char)variant;
		in[in_len++] = (char)(cairn_rand(t) % 8 + (i < NUM_TEXTS ? 0 : 8));
		memcpy(in + in_len, &len, 4);
		memcpy(in + in_len + 4, text, len);
		in_len += 4 + len;
	}
	cairn_tmpfile(t, path, sizeof(path), "in", in, in_len);
	ret = start_oracle(cairn_tmpdir(t));
	if (ret == NO_LIBRARY) {
		cairn_skip(t, "python3 has no tokenizers module, version 0.23 or newer");
		goto out;
	}
	snprintf(path, sizeof(path), "%s/out", cairn_tmpdir(t));
	f = fopen(path, "rb");
	if (!EXPECT(t, ret == 0) || !EXPECT(t, f != NULL))
		goto out;
	answers = malloc(in_cap);
	if (EXPECT(t, answers != NULL))
		num_answers = fread(answers, 1, in_cap, f);
	fclose(f);
	for (size_t i = 0; i < in_len;) {
		const unsigned char *r = (const unsigned char *)in + i;
		uint32_t len;

		memcpy(&len, r + 2, 4);
		used = compare(t, toks[r[0]],
			       json_array_get(json_object_get(g.root, "variants"), r[0]), r[1],
			       in + i + 6, len, answers + at, num_answers - at);
		if (!EXPECT(t, used > 0))
			break;
		at += used;
		i += 6 + len;
	}
	EXPECT(t, at == num_answers);
out:
	for (size_t i = 0; i < num_variants; i++)
		cairn_tokenizer_free(toks[i]);
	free(answers);
	free(in);
	cairn_golden_close(&g);
}

/* An installed package has no tools/: both oracles are skipped, and the reason names the missing file. */
static void without_tools(struct cairn_test *t)
{
	static const struct { const char *unit, *file; } rows[] = {
		{ "serving.tokenizer_oracle.random_strings", "tools/golden/golden_tokenizer.py" },
		{ "serving.chat_template_oracle.random_templates", "tools/golden/golden_chat.py" },
	};
	char path[4096], target[4096], out[16384];

	snprintf(target, sizeof(target), "%s/serving", cairn_srcdir());
	snprintf(path, sizeof(path), "%s/serving", cairn_tmpdir(t));
	EXPECT(t, symlink(target, path) == 0);
	setenv("CAIRN_DATA", cairn_tmpdir(t), 1);
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		char *argv[] = { "cairn", "check", (char *)rows[i].unit, NULL };

		if (!EXPECT(t, cairn_spawn(argv, out, sizeof(out)) == 0))
			cairn_note(t, "%s", out);
		EXPECT_CONTAINS(t, out, "0 failed, 1 skipped");
		EXPECT_CONTAINS(t, out, rows[i].file);
	}
	unsetenv("CAIRN_DATA");
}

static const struct cairn_unit units[] = {
	{ "random_strings", random_strings },
	{ "without_tools", without_tools },
};

const struct cairn_family cairn_tokenizer_oracle_family = {
	.stage = "serving",
	.name = "tokenizer_oracle",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
