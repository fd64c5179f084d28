/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer - pairs of text and ids from the Hugging Face library, long texts, lookups */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "conformance/harness.h"
#include "serving/base/json.h"
#include "serving/tokenizer/tokenizer.h"
#include "serving/tokenizer/tokenizer_golden_test.h"

#define BOTH (CAIRN_ENCODE_ADD_SPECIAL | CAIRN_ENCODE_PARSE_SPECIAL)

/* Returns a golden text, malloc()ed: a string, or {"hex": "ff..."} for bytes that are not UTF-8. */
static char *golden_text(const json_t *value, size_t *len)
{
	const char *hex = json_string_value(json_object_get(value, "hex"));
	size_t n = hex ? strlen(hex) / 2 : json_string_length(value);
	char *text = malloc(n + 1);

	for (size_t i = 0; i < n && hex && text; i++) {
		unsigned byte = 0;

		sscanf(hex + 2 * i, "%2x", &byte);
		text[i] = (char)byte;
	}
	if (!hex && text)
		memcpy(text, json_string_value(value), n);
	*len = n;
	return text;
}

static bool same_ids(const json_t *want, const int32_t *ids, size_t num_ids)
{
	if (json_array_size(want) != num_ids)
		return false;
	for (size_t i = 0; i < num_ids; i++)
		if (json_integer_value(json_array_get(want, i)) != ids[i])
			return false;
	return true;
}

static void check_case(struct cairn_test *t, struct cairn_tokenizer *tok, const json_t *texts,
		       const json_t *row)
{
	const json_t *source =
		json_array_get(texts, (size_t)json_integer_value(json_array_get(row, 0)));
	const json_t *want = json_array_get(row, 1), *plain = json_array_get(row, 2);
	size_t len, num_ids = 0, got_len = 0;
	char *text = golden_text(source, &len), *got = NULL;
	int32_t *ids = NULL;
	char quoted[CAIRN_QUOTE_LEN];

	if (EXPECT(t, !cairn_tokenizer_encode(tok, text, len, 0, &ids, &num_ids)))
		EXPECT(t, same_ids(json_is_null(plain) ? want : plain, ids, num_ids));
	free(ids);
	ids = NULL;
	/* a text that is refused for its length must in fact have too many ids */
	if (cairn_tokenizer_longest(tok))
		EXPECT(t, num_ids >= len / cairn_tokenizer_longest(tok));
	if (!EXPECT(t, !cairn_tokenizer_encode(tok, text, len, BOTH, &ids, &num_ids)) ||
	    !EXPECT(t, same_ids(want, ids, num_ids)))
		cairn_note(t, "%s: %s", cairn_quote(text, len, quoted), cairn_last_error());
	for (int skip = 0; skip < 2; skip++) {
		const json_t *decoded = json_array_get(row, 3 + (size_t)skip);
		const char *to = json_is_null(decoded) ? text : json_string_value(decoded);
		size_t to_len = json_is_null(decoded) ? len : json_string_length(decoded);

		if (!EXPECT(t, !cairn_tokenizer_decode(tok, ids, num_ids, skip, &got, &got_len)))
			break;
		if (!EXPECT(t, got_len == to_len && !memcmp(got, to, to_len)))
			cairn_note(t, "decoded %s", cairn_quote(got, got_len, quoted));
		EXPECT(t, got[got_len] == 0);
		free(got);
	}
	free(ids);
	free(text);
}

static void golden_pairs(struct cairn_test *t)
{
	size_t i = 0, k, num_cases = 0, num_bounded = 0;
	struct cairn_golden g;
	char *file;

	if (!EXPECT(t, !cairn_golden_open(&g)))
		return;
	for (; (file = cairn_golden_file(&g, i)); i++) {
		const json_t *row = json_array_get(json_object_get(g.root, "variants"), i);
		const char *name = json_string_value(json_object_get(row, "name"));
		const json_t *cases = json_object_get(row, "cases"), *one;
		struct cairn_tokenizer *tok = NULL;

		if (EXPECT(t, !cairn_tokenizer_open_mem(file, strlen(file), name, &tok)))
			json_array_foreach(cases, k, one)
				check_case(t, tok, json_object_get(g.root, "texts"), one);
		else
			cairn_note(t, "%s", cairn_last_error());
		num_cases += json_array_size(cases);
		num_bounded += tok && cairn_tokenizer_longest(tok);
		cairn_tokenizer_free(tok);
		free(file);
	}
	EXPECT(t, i >= 20 && num_cases >= 200);
	if (!EXPECT(t, num_bounded >= i / 2))
		cairn_note(t, "%zu of %zu bound the number of ids", num_bounded, i);
	cairn_golden_close(&g);
}

static double cpu_time(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);	/* CPU time: independent of the machine's load */
	return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

/*
 * Encodes half a megabyte of one repeated unit. A quadratic algorithm would take minutes; the bound leaves
 * room for sanitizers and a busy machine.
 */
static void long_texts(struct cairn_test *t)
{
	static const char *const variants[] = { "llama3", "qwen2",  "gpt2",     "deepseek3",
						"added",  "llama2", "metaspace" };
	static const char *const units[] = {
		"a", "^", " ", "\n", "\u200d", "👨\u200d👩\u200d👧", "the ", "模", "\u0301\u0316",
		"<|eot_id", "<|eot_id|>", "\xff",
		" a", "1", "'s", "\r\n ",
	};
	enum { LEN = 512 * 1024 };
	char *text = malloc(LEN + 32);
	struct cairn_golden g;
	double worst = 0;

	if (!EXPECT(t, text && !cairn_golden_open(&g))) {
		free(text);
		return;
	}
	for (size_t v = 0; v < ARRAY_SIZE(variants); v++) {
		struct cairn_tokenizer *tok = cairn_golden_tokenizer(&g, variants[v]);

		EXPECT(t, tok != NULL);
		for (size_t u = 0; u < ARRAY_SIZE(units) && tok; u++) {
			size_t n = strlen(units[u]), len = 0, num_ids = 0;
			double start, took;
			int32_t *ids = NULL;

			while (len < LEN) {
				memcpy(text + len, units[u], n);
				len += n;
			}
			start = cpu_time();
			EXPECT(t, !cairn_tokenizer_encode(tok, text, len, BOTH, &ids, &num_ids));
			took = cpu_time() - start;
			worst = took > worst ? took : worst;
			if (!EXPECT(t, took < 1) || took > 0.05)
				cairn_note(t, "%s: \"%s\": %.0f ms", variants[v], units[u],
					   took * 1e3);
			free(ids);
		}
		cairn_tokenizer_free(tok);
	}
	cairn_note(t, "slowest %.1f ms", worst * 1e3);
	cairn_golden_close(&g);
	free(text);
}

static void lookups(struct cairn_test *t)
{
	int32_t eot, *ids = NULL, minus[] = { -1 };
	struct cairn_tokenizer *tok = NULL;
	size_t num_ids = 0, len = 0;
	struct cairn_golden g;
	char *text = NULL;

	if (!EXPECT(t, !cairn_golden_open(&g)))
		return;
	tok = cairn_golden_tokenizer(&g, "llama3");
	cairn_golden_close(&g);
	if (!EXPECT(t, tok != NULL))
		return;
	eot = cairn_tokenizer_id(tok, "<|eot_id|>", 10);
	EXPECT(t, eot == cairn_tokenizer_size(tok) - 1 && cairn_tokenizer_is_special(tok, eot));
	EXPECT(t, !strcmp(cairn_tokenizer_token(tok, eot, &len), "<|eot_id|>") && len == 10);
	EXPECT(t, !cairn_tokenizer_is_special(tok, 0) && !cairn_tokenizer_is_special(tok, eot + 1));
	EXPECT(t, cairn_tokenizer_token(tok, eot + 1, NULL) == NULL &&
			  cairn_tokenizer_token(tok, -1, NULL) == NULL);
	EXPECT(t, cairn_tokenizer_id(tok, "no such token", 13) == -1);

	/* special tokens in user input are text, unless the caller asks for them */
	EXPECT(t, !cairn_tokenizer_encode(tok, "<|eot_id|>", 10, CAIRN_ENCODE_PARSE_SPECIAL, &ids,
					  &num_ids));
	EXPECT(t, num_ids == 1 && ids[0] == eot);
	free(ids);
	EXPECT(t, !cairn_tokenizer_encode(tok, "<|eot_id|>", 10, 0, &ids, &num_ids));
	for (size_t i = 0; i < num_ids; i++)
		EXPECT(t, ids[i] != eot);
	EXPECT(t, !cairn_tokenizer_decode(tok, ids, num_ids, true, &text, &len) &&
			  !strcmp(text, "<|eot_id|>"));
	free(text);
	free(ids);

	EXPECT(t, !cairn_tokenizer_encode(tok, NULL, 0, 0, &ids, &num_ids) && ids && num_ids == 0);
	free(ids);
	EXPECT(t, cairn_tokenizer_encode(tok, "a", (size_t)CAIRN_MAX_TEXT + 1, 0, &ids, &num_ids) ==
			  -EINVAL);
	EXPECT(t, cairn_tokenizer_decode(tok, minus, 1, false, &text, &len) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "llama3");
	EXPECT(t, !cairn_tokenizer_decode(tok, NULL, 0, false, &text, &len) && len == 0 && !*text);
	free(text);
	cairn_tokenizer_free(tok);
}

static const struct cairn_unit units[] = {
	{ "golden_pairs", golden_pairs },
	{ "long_texts", long_texts },
	{ "lookups", lookups },
};

const struct cairn_family cairn_tokenizer_family = {
	.stage = "serving", .name = "tokenizer", .units = units, .num_units = ARRAY_SIZE(units),
	.cost_s = 5,
};
