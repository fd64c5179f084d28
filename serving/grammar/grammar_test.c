// SPDX-License-Identifier: Apache-2.0
/*
 * grammar_test - constraints, masks and failures of the grammar process
 *
 * The masks of regular expressions and of choices are judged token by token by PCRE2: a token is allowed if
 * the answer and its bytes match, or are the beginning of a match. JSON answers are judged by their text
 * here, and against schemas by tools/structured_test.py.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <jansson.h>
#include <pcre2.h>
#include <signal.h>
#include <unistd.h>

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

static void is_refused(struct cairn_test *t, struct bench *b, enum cairn_constraint_kind kind,
		       const char *text, size_t num_bytes, const char *why)
{
	struct cairn_constraint c = { kind, text, num_bytes, NULL, 0 };
	enum cairn_grammar_state state;
	uint64_t id;

	if (cairn_grammar_open(b->g, &c, 1, &id)) {
		EXPECT_CONTAINS(t, cairn_last_error(), why);
		return;
	}
	state = wait_state(b, id);
	if (!EXPECT(t, state == CAIRN_GRAMMAR_REFUSED))
		cairn_note(t, "%.60s", text);
	EXPECT_CONTAINS(t, cairn_last_error(), why);
	EXPECT(t, !strpbrk(cairn_last_error(), "\r\n"));
	cairn_grammar_close(b->g, id);
}

/* Constraints that never end, contradict themselves, are huge or malformed are refused, and harm nothing. */
static void hostile(struct cairn_test *t)
{
	static const struct { enum cairn_constraint_kind kind; const char *text, *why; } bad[] = {
		{ CAIRN_CONSTRAINT_JSON, "{\"$ref\":\"#\"}", "json: no text satisfies it" },
		{ CAIRN_CONSTRAINT_JSON, "{\"type\":\"string\",\"minLength\":5,\"maxLength\":2}", "json:" },
		{ CAIRN_CONSTRAINT_JSON, "{\"type\":\"integer\",\"minimum\":5,\"maximum\":4}", "json:" },
		{ CAIRN_CONSTRAINT_JSON, "{\"not\":{}}", "json:" },
		{ CAIRN_CONSTRAINT_JSON, "{\"$ref\":\"http://example.com/x\"}", "json:" },
		{ CAIRN_CONSTRAINT_JSON, "{\"type\":\"object\",\"dependentSchemas\":{\"a\":{}}}", "json:" },
		{ CAIRN_CONSTRAINT_JSON, "{\"x-guidance\":{\"lenient\":true},\"not\":{}}", "json:" },
		{ CAIRN_CONSTRAINT_JSON, "{\"type\":", "json: is no JSON" },
		{ CAIRN_CONSTRAINT_JSON, "[1]", "json: a schema must be an object" },
		{ CAIRN_CONSTRAINT_JSON, "false", "json:" },
		{ CAIRN_CONSTRAINT_JSON, "{\"type\":\"object\",\"type\":\"string\"}", "json:" },
		{ CAIRN_CONSTRAINT_REGEX, "(((", "regex:" },
		{ CAIRN_CONSTRAINT_REGEX, "", "regex: is empty" },
		{ CAIRN_CONSTRAINT_REGEX, "(?=a)b", "regex:" },
		{ CAIRN_CONSTRAINT_CHOICE, "[]", "choice:" },
		{ CAIRN_CONSTRAINT_CHOICE, "[1]", "choice:" },
		{ CAIRN_CONSTRAINT_CHOICE, "[\"\"]", "choice:" },
		{ CAIRN_CONSTRAINT_LARK, "start: x", "grammar:" },
		{ CAIRN_CONSTRAINT_LARK, "start: start", "grammar:" },
	};
	struct bench b;
	int pid;

	if (!start_bench(t, &b, (struct cairn_grammar_options){ 0 }))
		return;
	EXPECT(t, open_constraint(t, &b, CAIRN_CONSTRAINT_JSON, "{}", NULL, 1));
	pid = cairn_grammar_pid(b.g);
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		is_refused(t, &b, bad[i].kind, bad[i].text, strlen(bad[i].text), bad[i].why);
	is_refused(t, &b, CAIRN_CONSTRAINT_REGEX, "a\0b", 3, "NUL");
	for (int i = 0; i < 4; i++) {		/* brackets without end, as far as there is room */
		const char *const opens[] = { "[", "{\"items\":", "(", "start: (" };
		const enum cairn_constraint_kind kinds[] = { CAIRN_CONSTRAINT_JSON, CAIRN_CONSTRAINT_JSON,
							     CAIRN_CONSTRAINT_REGEX, CAIRN_CONSTRAINT_LARK };
		char *text = malloc(CAIRN_GRAMMAR_MAX_TEXT + 1);
		size_t n = strlen(opens[i]);

		for (size_t k = 0; k < CAIRN_GRAMMAR_MAX_TEXT; k++)
			text[k] = k < n || i < 2 ? opens[i][k % n] : '(';
		is_refused(t, &b, kinds[i], text, CAIRN_GRAMMAR_MAX_TEXT, ":");
		is_refused(t, &b, kinds[i], text, CAIRN_GRAMMAR_MAX_TEXT + 1, "65537 bytes");
		free(text);
	}
	/* large, but sound */
	EXPECT(t, take_text(&b, &(struct walk){ .id = open_constraint(t, &b, CAIRN_CONSTRAINT_REGEX,
		"(a{1,9999}){1,9999}", NULL, 1) }, "aaaaaaaa"));
	EXPECT(t, cairn_grammar_pid(b.g) == pid);
	EXPECT(t, open_constraint(t, &b, CAIRN_CONSTRAINT_JSON, "{}", NULL, 1));
	stop_bench(&b);
}

/* The second constraint of a text is not compiled again; the cache forgets what it has no room for. */
static void cache(struct cairn_test *t)
{
	struct cairn_grammar_stats s;
	struct bench b;
	uint64_t one, two;

	if (!start_bench(t, &b, (struct cairn_grammar_options){ 0 }))
		return;
	one = open_constraint(t, &b, CAIRN_CONSTRAINT_REGEX, "[ab]+", NULL, 1);
	two = open_constraint(t, &b, CAIRN_CONSTRAINT_REGEX, "[ab]+", NULL, 1);
	EXPECT(t, open_constraint(t, &b, CAIRN_CONSTRAINT_CHOICE, "[\"x\"]", NULL, 1));
	cairn_grammar_stats(b.g, &s);
	EXPECT(t, one && two && one != two && s.compiled == 2 && s.cache_hits == 1 && !s.refused);
	EXPECT(t, take_text(&b, &(struct walk){ .id = one }, "ab"));
	cairn_grammar_close(b.g, one);
	EXPECT(t, take_text(&b, &(struct walk){ .id = two }, "ba"));
	stop_bench(&b);
#ifndef CAIRN_SANITIZED			/* its allocator does not say how much is in use */
	if (!start_bench(t, &b, (struct cairn_grammar_options){ .cache_bytes = 1 }))
		return;
	for (int round = 0; round < 2; round++)
		for (int i = 0; i < 3; i++)
			EXPECT(t, open_constraint(t, &b, CAIRN_CONSTRAINT_REGEX, &"aaa"[i], NULL, 1));
	cairn_grammar_stats(b.g, &s);
	EXPECT(t, s.compiled == 6 && !s.cache_hits);
	stop_bench(&b);
#endif
}

/* A killed process loses what was open; it is started anew and serves what comes then. */
static void killed(struct cairn_test *t)
{
	struct cairn_grammar_stats s;
	struct bench b;
	struct walk w = { 0 };
	uint64_t next;
	int pid;

	if (!start_bench(t, &b, (struct cairn_grammar_options){ 0 }))
		return;
	for (int how = 0; how < 3; how++) {	/* noticed by a step, by a poll, and by a time limit */
		w = (struct walk){ .id = open_constraint(t, &b, CAIRN_CONSTRAINT_REGEX, "[ab]+", NULL, 1) };
		EXPECT(t, take_text(&b, &w, "ab"));
		pid = cairn_grammar_pid(b.g);
		if (!EXPECT(t, pid > 0))	/* to kill -1 would end every process */
			break;
		EXPECT(t, !kill(pid, how == 2 ? SIGSTOP : SIGKILL));
		for (int i = 0; how == 1 && i < 1000 && cairn_grammar_pid(b.g) == pid; i++) {
			usleep(10000);
			cairn_grammar_poll(b.g);
		}
		if (how == 2) {
			stop_bench(&b);		/* also ends a process that hangs */
			if (!start_bench(t, &b, (struct cairn_grammar_options){ .step_ms = 1 }))
				return;
			w.id = open_constraint(t, &b, CAIRN_CONSTRAINT_REGEX, "[ab]+", NULL, 1);
			w.draw = w.num_pending = 0;
			pid = cairn_grammar_pid(b.g);
			if (!EXPECT(t, pid > 0))
				break;
			EXPECT(t, !kill(pid, SIGSTOP));
		}
		EXPECT(t, !next_mask(&b, &w));
		EXPECT(t, cairn_grammar_state(b.g, w.id) == CAIRN_GRAMMAR_LOST);
		EXPECT_CONTAINS(t, cairn_last_error(), "has failed");
		cairn_grammar_close(b.g, w.id);
		cairn_grammar_poll(b.g);
		next = open_constraint(t, &b, CAIRN_CONSTRAINT_REGEX, "[ab]+", NULL, 1);
		EXPECT(t, next && next != w.id && cairn_grammar_pid(b.g) != pid);
		cairn_grammar_stats(b.g, &s);
		EXPECT(t, s.restarts == (how == 2 ? 1 : how + 1));
		cairn_grammar_close(b.g, next);
	}
	stop_bench(&b);
}

/* A constraint that takes too long is refused; the process goes on, until all compilers are stuck. */
static void takes_too_long(struct cairn_test *t)
{
	struct cairn_grammar_stats s;
	struct bench b;
	size_t n = 0;
	char *text = malloc(CAIRN_GRAMMAR_MAX_TEXT + 1);

	if (!start_bench(t, &b, (struct cairn_grammar_options){ .compile_ms = 1 })) {
		free(text);
		return;
	}
	n += (size_t)sprintf(text, "{\"enum\":[0");
	for (int i = 0; n < CAIRN_GRAMMAR_MAX_TEXT - 40; i++)
		n += (size_t)sprintf(text + n, ",\"%x\"", i * 7919);
	n += (size_t)sprintf(text + n, "]}");
	is_refused(t, &b, CAIRN_CONSTRAINT_JSON, text, n, "json: takes longer than 1 ms to compile");
	cairn_grammar_stats(b.g, &s);
	EXPECT(t, s.refused == 1);
	stop_bench(&b);
	free(text);
}

/* Without the library, or with one of another version, the error says what to type. */
static void other_libraries(struct cairn_test *t)
{
	char dir[4096], path[4200];
	static const int32_t eos[] = { EOS };
	struct cairn_grammar_options o = { .model_dir = dir, .vocab_size = VOCAB, .eos = eos, .num_eos = 1,
					   .max_masks = 1 };
	struct cairn_constraint c = { CAIRN_CONSTRAINT_JSON, "{}", 2, NULL, 0 };
	struct bench b = { 0 };
	uint64_t id;
	ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 64);

	snprintf(dir, sizeof(dir), "%s/serving/embedded", cairn_srcdir());
	setenv("CAIRN_LLGUIDANCE", "/nowhere/libllguidance.so", 1);
	EXPECT(t, cairn_grammar_create(&b.g, &o) == -EOPNOTSUPP);
	EXPECT_CONTAINS(t, cairn_last_error(), "/nowhere/libllguidance.so: No such file");
	path[n > 0 ? n : 0] = 0;
	strcpy(strrchr(path, '/') + 1, "other_llguidance.so");
	setenv("CAIRN_LLGUIDANCE", path, 1);
	if (!EXPECT(t, !cairn_grammar_create(&b.g, &o)))
		return;
	for (int i = 0; i < 2; i++) {		/* before and after the process has said so */
		EXPECT(t, !cairn_grammar_open(b.g, &c, 1, &id));
		EXPECT(t, wait_state(&b, id) == CAIRN_GRAMMAR_REFUSED);
		EXPECT_CONTAINS(t, cairn_last_error(), "is llguidance@1.9.10 derivre@0.4.0, this program");
		EXPECT_CONTAINS(t, cairn_last_error(), "tools/setup.sh grammar");
		cairn_grammar_close(b.g, id);
	}
	cairn_grammar_destroy(b.g);
	o.num_eos = 0;
	EXPECT(t, cairn_grammar_create(&b.g, &o) == -EOPNOTSUPP);
	EXPECT_CONTAINS(t, cairn_last_error(), "end-of-sequence");
}

static const struct cairn_unit units[] = {
	{ "regex", regex }, { "choice", choice }, { "lark", lark }, { "json", json },
	{ "answers_are_apart", answers_are_apart }, { "wrong_tokens", wrong_tokens }, { "drafts", drafts },
	{ "sleeps", sleeps }, { "hostile", hostile }, { "cache", cache }, { "killed", killed },
	{ "takes_too_long", takes_too_long }, { "other_libraries", other_libraries },
};

const struct cairn_family cairn_grammar_family = {
	.stage = "serving", .name = "grammar", .units = units, .num_units = ARRAY_SIZE(units),
};
