// SPDX-License-Identifier: Apache-2.0
/*
 * grammar_test - constraints and masks of the grammar process
 *
 * The masks of regular expressions and of choices are judged token by token by PCRE2: a token is allowed if
 * the answer and its bytes match, or are the beginning of a match. JSON answers are judged by their text
 * here, and against schemas by tools/structured_test.py.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <jansson.h>
#include <pcre2.h>

#include "serving/grammar/grammar_test.h"

/* Returns 2 if text matches, 1 if it is the beginning of a match, else 0. */
static int judge(const pcre2_code *code, pcre2_match_data *data, const char *text, size_t n)
{
	int ret = pcre2_match(code, (PCRE2_SPTR)text, n, 0, PCRE2_PARTIAL_SOFT, data, NULL);

	return ret >= 0 ? 2 : ret == PCRE2_ERROR_PARTIAL;
}

/* Compares a mask with PCRE2's view of each token. */
static int mask_is_right(struct cairn_test *t, struct bench *b, const struct walk *w, const uint32_t *mask,
			 const pcre2_code *code, pcre2_match_data *data)
{
	char text[sizeof(w->text) + 256];
	const char *bytes;
	size_t n;
	int want;

	for (int32_t id = 0; id < VOCAB; id++) {
		if (id == EOS || id == EOS - 1) {	/* special tokens are no text */
			want = id == EOS && judge(code, data, w->text, w->num_bytes) == 2;
		} else {
			cairn_token_stream_bytes(b->stream, id, &bytes, &n);
			memcpy(text, w->text, w->num_bytes);
			memcpy(text + w->num_bytes, bytes, n);
			want = n && judge(code, data, text, w->num_bytes + n);
		}
		if (is_allowed(mask, id) == !!want)
			continue;
		cairn_note(t, "after \"%s\", token %d should be %s", w->text, id,
			   want ? "allowed" : "excluded");
		return EXPECT(t, !"the mask is wrong");
	}
	return 1;
}

static void walk_by_pcre(struct cairn_test *t, struct bench *b, enum cairn_constraint_kind kind,
			 const char *text, const char *regex)
{
	char whole[1024];
	pcre2_match_data *data;
	pcre2_code *code;
	PCRE2_SIZE at;
	int error;
	uint64_t id = open_constraint(t, b, kind, text, NULL, 4);

	snprintf(whole, sizeof(whole), "\\A(?:%s)\\z", regex);
	code = pcre2_compile((PCRE2_SPTR)whole, PCRE2_ZERO_TERMINATED, PCRE2_DOTALL, &error, &at, NULL);
	if (!EXPECT(t, id) || !EXPECT(t, code))
		return;
	data = pcre2_match_data_create_from_pattern(code, NULL);
	for (int32_t seq = 0; seq < 4; seq++) {
		struct walk w = { .id = id, .seq = seq };

		for (int step = 0; step < 20; step++) {
			const uint32_t *mask = next_mask(b, &w);
			int32_t drawn;

			if (!EXPECT(t, mask) || !mask_is_right(t, b, &w, mask, code, data))
				break;
			drawn = draw_any(t, mask, 1);
			if (!EXPECT(t, drawn >= 0) || drawn == EOS)
				break;
			take(b, &w, drawn);
		}
	}
	pcre2_match_data_free(data);
	pcre2_code_free(code);
	cairn_grammar_close(b->g, id);
}

static void regex(struct cairn_test *t)
{
	static const char *const all[] = {
		"[a-z]{3,9}", "(red|green|blue)( (fish|bird)s?)*", "[0-9]{4}-[0-9]{2}-[0-9]{2}", "a*b*c+",
		"(ab|a)(bc|c)?", "-?(0|[1-9][0-9]*)(\\.[0-9]+)?", "The answer is [a-z ]{1,20}\\.", "x?",
	};
	struct bench b;

	if (!start_bench(t, &b, (struct cairn_grammar_options){ 0 }))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(all); i++)
		walk_by_pcre(t, &b, CAIRN_CONSTRAINT_REGEX, all[i], all[i]);
	stop_bench(&b);
}

static void choice(struct cairn_test *t)
{
	struct bench b;

	if (!start_bench(t, &b, (struct cairn_grammar_options){ 0 }))
		return;
	walk_by_pcre(t, &b, CAIRN_CONSTRAINT_CHOICE, "[\"yes\", \"no\", \"none of it\"]",
		     "yes|no|none of it");
	walk_by_pcre(t, &b, CAIRN_CONSTRAINT_CHOICE,
		     "[\"a.b\", \"\\\"quoted\\\"\", \"two\\nlines\", \"back\\\\slash\"]",
		     "a\\.b|\"quoted\"|two\nlines|back\\\\slash");
	walk_by_pcre(t, &b, CAIRN_CONSTRAINT_CHOICE, "[\"one\"]", "one");
	walk_by_pcre(t, &b, CAIRN_CONSTRAINT_CHOICE, "[\"t\\u00e9\"]", "t\xc3\xa9");
	stop_bench(&b);
}

static void lark(struct cairn_test *t)
{
	static const char grammar[] = "start: sum\nsum: NUMBER (\"+\" NUMBER)*\nNUMBER: /[0-9]{1,3}/\n";
	struct bench b;

	if (!start_bench(t, &b, (struct cairn_grammar_options){ 0 }))
		return;
	walk_by_pcre(t, &b, CAIRN_CONSTRAINT_LARK, grammar, "[0-9]{1,3}(\\+[0-9]{1,3})*");
	stop_bench(&b);
}

/* Random walks end in JSON; white space stays within its limit. */
static void json(struct cairn_test *t)
{
	static const char schema[] =
		"{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":6},"
		"\"age\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":150},\"tags\":{\"type\":\"array\","
		"\"items\":{\"enum\":[\"a\",\"b\"]},\"maxItems\":3}},\"required\":[\"name\",\"age\"],"
		"\"additionalProperties\":false}";
	struct bench b;
	uint64_t id;
	int ended = 0;

	if (!start_bench(t, &b, (struct cairn_grammar_options){ 0 }))
		return;
	id = open_constraint(t, &b, CAIRN_CONSTRAINT_JSON, schema, NULL, 20);
	for (int32_t seq = 0; EXPECT(t, id) && seq < 20; seq++) {
		struct walk w = { .id = id, .seq = seq };
		json_t *root;

		for (int step = 0; step < 60; step++) {
			const uint32_t *mask = next_mask(&b, &w);
			int32_t drawn;

			if (!EXPECT(t, mask))
				break;
			drawn = is_allowed(mask, EOS) ? EOS : draw_any(t, mask, 1);
			if (!EXPECT(t, drawn >= 0) || drawn == EOS) {
				root = json_loadb(w.text, w.num_bytes, 0, NULL);
				if (!EXPECT(t, root && json_is_string(json_object_get(root, "name")) &&
					       json_is_integer(json_object_get(root, "age"))))
					cairn_note(t, "the answer is %s", w.text);
				json_decref(root);
				ended++;
				break;
			}
			take(&b, &w, drawn);
		}
	}
	EXPECT(t, ended > 0);
	cairn_grammar_close(b.g, id);
	id = open_constraint(t, &b, CAIRN_CONSTRAINT_JSON, "{\"type\":\"object\"}", NULL, 3);
	EXPECT(t, take_text(&b, &(struct walk){ .id = id }, "{        "));
	EXPECT(t, !take_text(&b, &(struct walk){ .id = id, .seq = 1 }, "{         "));
	EXPECT(t, !take_text(&b, &(struct walk){ .id = id, .seq = 2 }, "["));
	stop_bench(&b);
}

/* Answers of one constraint do not touch each other, and a step may hold several, in any order. */
static void answers_are_apart(struct cairn_test *t)
{
	struct bench b;
	struct walk w[3];
	struct cairn_mask_item items[3];
	uint64_t id;

	if (!start_bench(t, &b, (struct cairn_grammar_options){ 0 }))
		return;
	id = open_constraint(t, &b, CAIRN_CONSTRAINT_REGEX, "ab|cd|ef", NULL, 3);
	for (int32_t i = 0; i < 3; i++) {
		const char *const first[] = { "a", "c", "e" };

		w[i] = (struct walk){ .id = id, .seq = i };
		EXPECT(t, take_text(&b, &w[i], first[i]));
	}
	for (int32_t i = 0; i < 3; i++)
		items[i] = (struct cairn_mask_item){ .constraint = id, .seq = 2 - i, .draw = 1,
						     .tokens = w[2 - i].pending, .num_tokens = 1,
						     .wants_masks = 1 };
	EXPECT(t, !b.masks->step(b.masks->ctx, items, 3));
	for (int32_t i = 0; i < 3; i++) {
		const uint32_t *mask = b.masks->mask(b.masks->ctx, items[i].first_mask, id, 2 - i, 1);

		for (int32_t k = 0; EXPECT(t, mask) && k < 3; k++)
			EXPECT(t, is_allowed(mask, cairn_tokenizer_id(b.tok, &"bdf"[k], 1)) == (k == 2 - i));
		/* no other draw and no other answer has this mask */
		EXPECT(t, !b.masks->mask(b.masks->ctx, items[i].first_mask, id, 2 - i, 0));
		EXPECT(t, !b.masks->mask(b.masks->ctx, items[i].first_mask, id, (3 - i) % 3, 1));
		EXPECT(t, !b.masks->mask(b.masks->ctx, items[i].first_mask, id + 1, 2 - i, 1));
	}
	EXPECT(t, !b.masks->mask(b.masks->ctx, 3, id, 0, 1));
	/* the same answer twice in a step: the second item fails */
	items[0] = items[1] = (struct cairn_mask_item){ .constraint = id, .draw = 1, .wants_masks = 1 };
	EXPECT(t, !b.masks->step(b.masks->ctx, items, 2));
	EXPECT(t, items[0].num_valid + items[1].num_valid == -1);
	stop_bench(&b);
}

/* An answer with an excluded token, or with another number of draws, has no mask any more; others have. */
static void wrong_tokens(struct cairn_test *t)
{
	struct bench b;
	struct walk w = { 0 };
	uint64_t id;

	if (!start_bench(t, &b, (struct cairn_grammar_options){ 0 }))
		return;
	id = w.id = open_constraint(t, &b, CAIRN_CONSTRAINT_REGEX, "[ab]+", NULL, 4);
	EXPECT(t, take_text(&b, &w, "ab"));
	take(&b, &w, cairn_tokenizer_id(b.tok, "c", 1));
	EXPECT(t, !next_mask(&b, &w));
	w.num_pending = 0;
	EXPECT(t, !next_mask(&b, &w));
	w = (struct walk){ .id = id, .seq = 1, .draw = 1 };
	EXPECT(t, !next_mask(&b, &w));
	w = (struct walk){ .id = id, .seq = 2, .pending = { VOCAB }, .num_pending = 1, .draw = 1 };
	EXPECT(t, !next_mask(&b, &w));
	w = (struct walk){ .id = id, .seq = 4 };
	EXPECT(t, !next_mask(&b, &w));
	w = (struct walk){ .id = id + (1 << 20) };
	EXPECT(t, !next_mask(&b, &w));
	w = (struct walk){ .id = id, .seq = 3 };
	EXPECT(t, take_text(&b, &w, "ba") && may_end(&b, &w));
	stop_bench(&b);
}

/* Drafts get a mask each, as far as they are valid, and leave no trace. */
static void drafts(struct cairn_test *t)
{
	struct bench b;
	struct walk w = { 0 };
	int32_t ids[4];
	struct cairn_mask_item item;

	if (!start_bench(t, &b, (struct cairn_grammar_options){ 0 }))
		return;
	w.id = open_constraint(t, &b, CAIRN_CONSTRAINT_REGEX, "abc[d-f]g", NULL, 1);
	for (int i = 0; i < 4; i++)
		ids[i] = cairn_tokenizer_id(b.tok, &"bcxg"[i], 1);
	EXPECT(t, take_text(&b, &w, "a"));
	for (int round = 0; round < 4; round++) {
		int wants = round % 2, good = round < 2 ? 2 : 3;

		ids[2] = cairn_tokenizer_id(b.tok, round < 2 ? "x" : "e", 1);
		item = (struct cairn_mask_item){
			.constraint = w.id, .draw = 1, .tokens = w.pending, .num_tokens = w.num_pending,
			.drafts = ids, .num_drafts = 3, .wants_masks = wants,
		};
		EXPECT(t, !b.masks->step(b.masks->ctx, &item, 1) && item.num_valid == good);
		w.num_pending = 0;
		for (int i = 0; i < 4; i++) {
			const uint32_t *mask = b.masks->mask(b.masks->ctx, item.first_mask + i, w.id, 0,
							     1 + i);

			EXPECT(t, !!mask == (wants && i <= good));
			for (int k = 0; mask && k < 7; k++)
				EXPECT(t, is_allowed(mask, cairn_tokenizer_id(b.tok, &"abcdefg"[k], 1)) ==
					  (i == 2 ? k >= 3 && k < 6 : k == (i == 3 ? 6 : i + 1)));
		}
	}
	EXPECT(t, take_text(&b, &w, "bcfg") && may_end(&b, &w));
	stop_bench(&b);
}

/* A constraint sleeps until its text has appeared, also where it ends inside a token or a draft. */
static void sleeps(struct cairn_test *t)
{
	struct bench b;
	struct walk w = { 0 };
	int32_t *ids;
	size_t num;
	struct cairn_mask_item item;

	if (!start_bench(t, &b, (struct cairn_grammar_options){ 0 }))
		return;
	w.id = open_constraint(t, &b, CAIRN_CONSTRAINT_REGEX, "[0-9]+", "aab", 4);
	EXPECT(t, take_text(&b, &w, "x 1 aaa"));
	EXPECT(t, may_end(&b, &w) && is_allowed(next_mask(&b, &w), cairn_tokenizer_id(b.tok, "x", 1)));
	EXPECT(t, take_text(&b, &w, "b") && !may_end(&b, &w));
	EXPECT(t, !is_allowed(next_mask(&b, &w), cairn_tokenizer_id(b.tok, "x", 1)));
	EXPECT(t, take_text(&b, &w, "12") && may_end(&b, &w) && !take_text(&b, &w, "x"));
	/* it wakes inside drafts, twice, and is asleep again */
	w = (struct walk){ .id = w.id, .seq = 1 };
	EXPECT(t, take_text(&b, &w, "aa"));
	EXPECT(t, !cairn_tokenizer_encode(b.tok, "b7x", 3, 0, &ids, &num) && num == 3);
	for (int round = 0; round < 2; round++) {
		item = (struct cairn_mask_item){
			.constraint = w.id, .seq = 1, .draw = w.draw, .tokens = w.pending,
			.num_tokens = w.num_pending, .drafts = ids, .num_drafts = 3, .wants_masks = 1,
		};
		EXPECT(t, !b.masks->step(b.masks->ctx, &item, 1) && item.num_valid == 2);
		w.num_pending = 0;
	}
	EXPECT(t, take_text(&b, &w, "xy aab9") && may_end(&b, &w) && !take_text(&b, &w, "x"));
	free(ids);
	/* "wan" is one token: what follows "wa" in it must fit */
	cairn_grammar_close(b.g, w.id);
	w = (struct walk){ .id = open_constraint(t, &b, CAIRN_CONSTRAINT_REGEX, "n?[0-9]", "wa", 2) };
	take(&b, &w, cairn_tokenizer_id(b.tok, "wan", 3));
	EXPECT(t, take_text(&b, &w, "5") && may_end(&b, &w));
	cairn_grammar_close(b.g, w.id);
	w = (struct walk){ .id = open_constraint(t, &b, CAIRN_CONSTRAINT_REGEX, "[0-9]", "wa", 2) };
	take(&b, &w, cairn_tokenizer_id(b.tok, "wan", 3));
	EXPECT(t, !next_mask(&b, &w));
	stop_bench(&b);
}

static const struct cairn_unit units[] = {
	{ "regex", regex }, { "choice", choice }, { "lark", lark }, { "json", json },
	{ "answers_are_apart", answers_are_apart }, { "wrong_tokens", wrong_tokens }, { "drafts", drafts },
	{ "sleeps", sleeps },
};

const struct cairn_family cairn_grammar_family = {
	.stage = "serving", .name = "grammar", .units = units, .num_units = ARRAY_SIZE(units),
};
