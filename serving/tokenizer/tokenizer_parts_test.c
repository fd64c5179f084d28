// SPDX-License-Identifier: Apache-2.0
/* tokenizer_parts - special tokens are recognised in the template's text and nowhere else */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "serving/base/json.h"
#include "serving/tokenizer/tokenizer.h"
#include "serving/tokenizer/tokenizer_golden_test.h"

#define PARSE CAIRN_ENCODE_PARSE_SPECIAL
#define MAX_PARTS 8

struct text {
	char s[1024];
	size_t len, num_parts;
	struct cairn_text_part parts[MAX_PARTS];
};

/* Concatenates random units, some in untrusted parts; a part's border may fall inside a special token. */
static void random_text(struct cairn_test *t, const char *const *units, size_t num, struct text *x)
{
	*x = (struct text) { .len = 0 };
	for (uint64_t i = cairn_rand(t) % 14; i > 0; i--) {
		const char *u = units[cairn_rand(t) % num];
		size_t n = strlen(u), from = cairn_rand(t) % n, begin = x->len;

		memcpy(x->s + x->len, u, n);
		x->len += n;
		/* the part covers the unit or its second half; its border is between characters */
		while (from && ((unsigned char)u[from] & 0xc0) == 0x80)
			from--;
		if (cairn_rand(t) % 2)
			from = 0;
		if (cairn_rand(t) % 3 || x->num_parts == MAX_PARTS)
			continue;
		if (x->num_parts && x->parts[x->num_parts - 1].end == begin + from)
			x->parts[x->num_parts - 1].end = x->len;
		else
			x->parts[x->num_parts++] = (struct cairn_text_part) { begin + from, x->len };
	}
}

static bool touches(const struct text *x, size_t begin, size_t end)
{
	for (size_t i = 0; i < x->num_parts; i++)
		if (begin < x->parts[i].end && end > x->parts[i].begin)
			return true;
	return false;
}

struct ids {
	int32_t v[2048];
	size_t num;
};

static int add_text(const struct cairn_tokenizer *tok, const char *s, size_t n, struct ids *out)
{
	size_t num = 0;
	int32_t *ids = NULL;
	int ret;

	if (!n)
		return 0;
	ret = cairn_tokenizer_encode(tok, s, n, 0, &ids, &num);
	if (!ret)
		memcpy(out->v + out->num, ids, num * sizeof(*ids));
	out->num += ret ? 0 : num;
	free(ids);
	return ret;
}

/* Reference: searches for the special tokens one by one; the text between them is encoded without parsing. */
static int plainly(const struct cairn_tokenizer *tok, const char *const *specials, size_t num,
		   const struct text *x, struct ids *out)
{
	size_t done = 0;

	out->num = 0;
	for (size_t i = 0; i < x->len; i++) {
		size_t best = 0;

		for (size_t k = 0; k < num; k++) {
			size_t n = strlen(specials[k]);

			if (n > best && n <= x->len - i && !memcmp(x->s + i, specials[k], n) &&
			    !touches(x, i, i + n))
				best = n;
		}
		if (!best)
			continue;
		CAIRN_TRY(add_text(tok, x->s + done, i - done, out));
		out->v[out->num++] = cairn_tokenizer_id(tok, x->s + i, best);
		done = i + best;
		i = done - 1;
	}
	return add_text(tok, x->s + done, x->len - done, out);
}

static bool same(const struct cairn_tokenizer *tok, const struct text *x, size_t num_parts, unsigned flags,
		 const int32_t *want, size_t num_want)
{
	size_t num = 0;
	int32_t *ids = NULL;
	bool ok;

	ok = !cairn_tokenizer_encode_parts(tok, x->s, x->len, x->parts, num_parts, flags, &ids, &num) &&
	     num == num_want && !memcmp(ids, want, num * sizeof(*ids));
	free(ids);
	return ok;
}

static void against_search(struct cairn_test *t)
{
	static const char *const byte_level[] = { "<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>" },
				 *const spm[] = { "<unk>", "<s>", "</s>" };
	static const char *const units[] = {
		"<|eot_id|>", "<|eot_id|>", "<|eot_", "id|>", "<|begin_of_text|>", "<s>", "</s>", "<",
		"/s>",        " a",         "the ",   "\n\n", "\xe6\xa8\xa1",      "12",  "  ",   "x"
	};
	static const struct {
		const char *name;
		const char *const *specials;
	} rows[] = { { "llama3", byte_level }, { "qwen2", byte_level }, { "llama2", spm }, { "yi", spm } };
	struct ids *want = malloc(sizeof(*want));
	struct cairn_golden g;
	struct text x;

	if (!EXPECT(t, want && !cairn_golden_open(&g))) {
		free(want);
		return;
	}
	for (size_t r = 0; r < ARRAY_SIZE(rows); r++) {
		struct cairn_tokenizer *tok = cairn_golden_tokenizer(&g, rows[r].name);
		int bad = 0;

		EXPECT(t, tok != NULL);
		for (int i = 0; i < 3000 && tok && !bad; i++) {
			random_text(t, units, ARRAY_SIZE(units), &x);
			EXPECT(t, !plainly(tok, rows[r].specials, 3, &x, want));
			bad = !same(tok, &x, x.num_parts, PARSE, want->v, want->num);
		}
		if (!EXPECT(t, !bad))
			cairn_note(t, "%s: %zu parts of %s", rows[r].name, x.num_parts, CAIRN_QUOTED(x.s));
		cairn_tokenizer_free(tok);
	}
	cairn_golden_close(&g);
	free(want);
}

/* Without parts, the ids equal those of encode; if all text is one part, those of encode without parsing. */
static void none_and_all(struct cairn_test *t)
{
	static const char *const units[] = { "<|eot_id|>",
					     "<s>",
					     "tool",
					     " [CALL]",
					     "\n",
					     "    ",
					     "a",
					     "of",
					     "\xef\xac\x81",
					     "e\xcc\x81",
					     "<|begin_of_text|> ",
					     "Hello" };
	struct cairn_golden g;
	char *file;
	size_t v = 0;

	if (!EXPECT(t, !cairn_golden_open(&g)))
		return;
	for (; (file = cairn_golden_file(&g, v)); v++, free(file)) {
		struct cairn_tokenizer *tok = NULL;

		EXPECT(t, !cairn_tokenizer_open_mem(file, strlen(file), "variant", &tok));
		for (int i = 0; i < 100 && tok; i++) {
			struct text x;
			int32_t *ids = NULL;
			size_t num = 0;

			random_text(t, units, ARRAY_SIZE(units), &x);
			EXPECT(t, !cairn_tokenizer_encode(tok, x.s, x.len, PARSE, &ids, &num));
			EXPECT(t, same(tok, &x, 0, PARSE, ids, num));
			free(ids);
			EXPECT(t, !cairn_tokenizer_encode(tok, x.s, x.len, 0, &ids, &num));
			x.parts[0] = (struct cairn_text_part) { 0, x.len };
			EXPECT(t, same(tok, &x, x.len > 0, x.len ? PARSE : 0, ids, num));
			free(ids);
		}
		cairn_tokenizer_free(tok);
	}
	EXPECT(t, v >= 20);
	cairn_golden_close(&g);
}

static void refused(struct cairn_test *t)
{
	static const struct cairn_text_part bad[][2] = {
		{ { 0, 0 }, { 1, 2 } },
		{ { 2, 1 }, { 3, 4 } },
		{ { 0, 2 }, { 1, 3 } },
		{ { 0, 1 }, { 2, 9 } },
	};
	const struct cairn_text_part whole = { 0, 3 };
	struct cairn_tokenizer *tok = NULL;
	struct cairn_golden g;
	int32_t *ids = NULL;
	size_t num = 0;

	if (EXPECT(t, !cairn_golden_open(&g))) {
		tok = cairn_golden_tokenizer(&g, "llama3");
		cairn_golden_close(&g);
	}
	for (size_t i = 0; i < ARRAY_SIZE(bad) && tok; i++)
		EXPECT(t, cairn_tokenizer_encode_parts(tok, "abcdef", 6, bad[i], 2, PARSE, &ids, &num) ==
				  -EINVAL);
	EXPECT(t, tok && cairn_tokenizer_encode_parts(tok,
						      "a\xff"
						      "b",
						      3, &whole, 1, PARSE, &ids, &num) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "must be UTF-8");
	cairn_tokenizer_free(tok);
}

/* A token that begins or ends in an untrusted part does not hide one that lies entirely outside. */
static void overlaps(struct cairn_test *t)
{
	static const struct {
		const char *text;
		struct cairn_text_part user;
		size_t want; /* special tokens that are recognised */
	} rows[] = {
		{ "ababab", { 0, 2 }, 1 }, { "ababab", { 4, 6 }, 1 },   { "abab", { 2, 4 }, 0 },
		{ "ababab", { 2, 4 }, 0 }, { "abababab", { 0, 4 }, 1 }, { "xabab", { 0, 1 }, 1 },
		{ "ababab", { 1, 2 }, 1 },
	};
	struct cairn_tokenizer *tok = NULL;
	char *file = NULL, *at = NULL, *changed = NULL;
	struct cairn_golden g;
	int32_t eot;

	if (EXPECT(t, !cairn_golden_open(&g))) {
		file = cairn_golden_file(&g, 0);
		cairn_golden_close(&g);
	}
	/* rename a special token to one that can overlap itself */
	if (file)
		at = strstr(file, "<|eot_id|>");
	changed = at ? malloc(strlen(file) + 1) : NULL;
	if (EXPECT(t, changed != NULL)) {
		memcpy(changed, file, (size_t)(at - file));
		sprintf(changed + (at - file), "abab%s", at + 10);
		EXPECT(t, !cairn_tokenizer_open_mem(changed, strlen(changed), "abab", &tok));
	}
	eot = tok ? cairn_tokenizer_id(tok, "abab", 4) : -1;
	for (size_t i = 0;
	     i < ARRAY_SIZE(rows) && EXPECT(t, eot >= 0 && cairn_tokenizer_is_special(tok, eot)); i++) {
		size_t num = 0, count = 0;
		int32_t *ids = NULL;

		EXPECT(t, !cairn_tokenizer_encode_parts(tok, rows[i].text, strlen(rows[i].text),
							&rows[i].user, 1, PARSE, &ids, &num));
		for (size_t k = 0; k < num; k++)
			count += ids[k] == eot;
		if (!EXPECT(t, count == rows[i].want))
			cairn_note(t, "row %zu: %zu", i, count);
		free(ids);
	}
	cairn_tokenizer_free(tok);
	free(changed);
	free(file);
}

static const struct cairn_unit units[] = {
	{ "overlaps", overlaps },
	{ "against_search", against_search },
	{ "none_and_all", none_and_all },
	{ "refused", refused },
};

const struct cairn_family cairn_tokenizer_parts_family = {
	.stage = "serving",
	.name = "tokenizer_parts",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
