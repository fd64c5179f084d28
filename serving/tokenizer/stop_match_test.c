// SPDX-License-Identifier: Apache-2.0
/* stop_match - compared with a plain search of the whole text, for random strings, texts and pieces */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "serving/tokenizer/stop_match.h"
#include "serving/tokenizer/tokenizer.h"
#include "serving/tokenizer/tokenizer_golden_test.h"
#include "serving/base/utf8.h"

#define MAX_TEXT 256

struct out {
	char s[2 * MAX_TEXT];
	size_t len;
	int stop;
};

static void take(struct out *o, const struct cairn_stop_text *t, const char *piece)
{
	memcpy(o->s + o->len, t->held, t->num_held);
	o->len += t->num_held;
	memcpy(o->s + o->len, piece, t->num_text);
	o->len += t->num_text;
	if (t->stop >= 0)
		o->stop = t->stop;
}

/* Reference: returns the expected length of the text and sets *which to the stop string, -1 if none. */
static size_t plain_search(const char *text, size_t len, const struct cairn_stop_string *stops, size_t num,
			   bool include, int *which)
{
	*which = -1;
	for (size_t end = 1; end <= len; end++) {
		for (size_t i = 0; i < num; i++)
			if (stops[i].num_bytes <= end &&
			    !memcmp(text + end - stops[i].num_bytes, stops[i].bytes, stops[i].num_bytes) &&
			    (*which < 0 || stops[i].num_bytes > stops[*which].num_bytes))
				*which = (int)i;
		if (*which >= 0)
			return include ? end : end - stops[*which].num_bytes;
	}
	return len;
}

/* Returns how many bytes at the end of text may begin a stop string: exactly these must be held back. */
static size_t may_become(const char *text, size_t len, const struct cairn_stop_string *stops, size_t num)
{
	size_t most = 0;

	for (size_t i = 0; i < num; i++)
		for (size_t k = 1; k < stops[i].num_bytes && k <= len; k++)
			if (!memcmp(text + len - k, stops[i].bytes, k) && k > most)
				most = k;
	return most;
}

static size_t random_text(struct cairn_test *t, char *to, size_t max, int letters)
{
	size_t len = cairn_rand(t) % (max + 1);

	for (size_t i = 0; i < len; i++)
		to[i] = (char)('a' + cairn_rand(t) % (uint64_t)letters);
	return len;
}

static int trial(struct cairn_test *t)
{
	char bytes[CAIRN_MAX_STOPS][12], text[MAX_TEXT];
	struct cairn_stop_string stops[CAIRN_MAX_STOPS];
	size_t num = 1 + cairn_rand(t) % (cairn_rand(t) % 64 ? 4 : CAIRN_MAX_STOPS), len, want, at = 0, wait;
	int letters = 1 + (int)(cairn_rand(t) % 3), which;
	bool include = cairn_rand(t) % 2;
	struct cairn_stop_set *set = NULL;
	struct out got = { .stop = -1 };
	struct cairn_stop_match m;
	struct cairn_stop_text out;

	for (size_t i = 0; i < num; i++) {
		bytes[i][0] = 'a';
		stops[i].bytes = bytes[i];
		stops[i].num_bytes = 1 + random_text(t, bytes[i] + 1, 1 + cairn_rand(t) % 10, letters);
	}
	len = random_text(t, text, MAX_TEXT, letters);
	if (cairn_stop_set_new(stops, num, &set))
		return 0;
	cairn_stop_match_init(&m, set, include);
	want = plain_search(text, len, stops, num, include, &which);
	while (at < len) {
		size_t n = 1 + cairn_rand(t) % 5;

		n = n < len - at ? n : len - at;
		out = cairn_stop_match_push(&m, text + at, n);
		take(&got, &out, text + at);
		at += n;
		/* exactly the possible beginning of a stop string is held back */
		wait = may_become(text, at, stops, num);
		if (got.stop < 0 && got.len != at - wait)
			break;
		if (got.len > want)
			break;
	}
	out = cairn_stop_match_finish(&m);
	take(&got, &out, "");
	cairn_stop_set_free(set);
	return at == len && got.stop == which && got.len == want && !memcmp(got.s, text, want);
}

static void against_search(struct cairn_test *t)
{
	int bad = 0;

	for (int i = 0; i < 40000 && !bad; i++)
		bad += !trial(t);
	EXPECT(t, !bad);
}

static void bounds(struct cairn_test *t)
{
	struct cairn_stop_string many[CAIRN_MAX_STOPS + 1], one;
	char *long_text = calloc(1, CAIRN_MAX_STOP_BYTES + 1);
	struct cairn_stop_set *set = NULL;
	struct cairn_stop_match m;
	struct cairn_stop_text out;

	for (size_t i = 0; i <= CAIRN_MAX_STOPS; i++)
		many[i] = (struct cairn_stop_string) { "x", 1 };
	EXPECT(t, cairn_stop_set_new(many, CAIRN_MAX_STOPS + 1, &set) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "at most 32 strings, not 33");
	one = (struct cairn_stop_string) { "", 0 };
	EXPECT(t, cairn_stop_set_new(&one, 1, &set) == -EINVAL);
	one = (struct cairn_stop_string) { long_text, CAIRN_MAX_STOP_BYTES + 1 };
	EXPECT(t, long_text && cairn_stop_set_new(&one, 1, &set) == -EINVAL);
	one.num_bytes--;
	if (EXPECT(t, !cairn_stop_set_new(&one, 1, &set))) {
		/* a string of maximum length, pushed byte by byte: all of it is held back, then dropped */
		cairn_stop_match_init(&m, set, false);
		for (int i = 0; i < CAIRN_MAX_STOP_BYTES; i++) {
			out = cairn_stop_match_push(&m, long_text, 1);
			EXPECT(t, out.num_held == 0 && out.num_text == 0);
		}
		EXPECT(t, out.stop == 0 && m.stopped);
		out = cairn_stop_match_push(&m, "more", 4);
		EXPECT(t, out.stop < 0 && !out.num_text && !out.num_held);
		cairn_stop_set_free(set);
	}
	set = NULL;
	EXPECT(t, !cairn_stop_set_new(NULL, 0, &set) && !set);
	cairn_stop_match_init(&m, NULL, false);
	out = cairn_stop_match_push(&m, "abc", 3);
	EXPECT(t, out.num_text == 3 && out.stop < 0);
	out = cairn_stop_match_finish(&m);
	EXPECT(t, !out.num_held);
	free(long_text);
}

/* Tokens of a byte-level tokenizer split characters; the text passed on still has only whole characters. */
static void over_tokens(struct cairn_test *t)
{
	static const char text[] = "模型 读取 😀👍 naïve 模式 end";
	static const char *const stops[] = { "模式", "👍!", "😀👎", "ï" };
	struct cairn_stop_string strings[ARRAY_SIZE(stops)];
	struct cairn_token_stream *stream = NULL;
	struct cairn_tokenizer *tok = NULL;
	struct cairn_stop_set *set = NULL;
	struct cairn_stop_match m;
	struct out got = { .stop = -1 };
	size_t num_ids = 0;
	int32_t *ids = NULL;
	struct cairn_golden g;

	if (!EXPECT(t, !cairn_golden_open(&g)))
		return;
	tok = cairn_golden_tokenizer(&g, "llama3");
	cairn_golden_close(&g);
	for (size_t i = 0; i < ARRAY_SIZE(stops); i++)
		strings[i] = (struct cairn_stop_string) { stops[i], strlen(stops[i]) };
	if (!EXPECT(t, tok && !cairn_stop_set_new(strings, ARRAY_SIZE(stops), &set)) ||
	    !EXPECT(t, !cairn_tokenizer_encode(tok, text, strlen(text), 0, &ids, &num_ids)) ||
	    !EXPECT(t, !cairn_token_stream_new(tok, true, &stream)))
		goto out;
	cairn_stop_match_init(&m, set, false);
	for (size_t i = 0; i < num_ids; i++) {
		struct cairn_stop_text out;
		const char *piece;
		size_t len;
		int cut;

		EXPECT(t, !cairn_token_stream_push(stream, ids[i], &piece, &len));
		out = cairn_stop_match_push(&m, piece, len);
		take(&got, &out, piece);
		for (size_t k = 0; k < got.len;) {
			uint32_t cp;
			int n = cairn_utf8_next(got.s + k, got.len - k, &cp, &cut);

			if (!EXPECT(t, n > 0))
				break;
			k += (size_t)n;
		}
	}
	EXPECT(t, num_ids > 10 && got.stop == 3 && got.len == strlen("模型 读取 😀👍 na"));
	EXPECT(t, !memcmp(got.s, text, got.len));
out:
	cairn_token_stream_free(stream);
	cairn_stop_set_free(set);
	cairn_tokenizer_free(tok);
	free(ids);
}

static const struct cairn_unit units[] = {
	{ "against_search", against_search },
	{ "bounds", bounds },
	{ "over_tokens", over_tokens },
};

const struct cairn_family cairn_stop_match_family = {
	.stage = "serving",
	.name = "stop_match",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
