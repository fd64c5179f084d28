/* SPDX-License-Identifier: Apache-2.0 */
/* api_test - parses answers, for the tests of api_response; include after the harness */
#ifndef CAIRN_API_TEST_H
#define CAIRN_API_TEST_H

#include <math.h>
#include <string.h>

#include "serving/api/api_response.h"

static inline json_t *read_json(struct cairn_test *t, const char *s, size_t n)
{
	json_error_t e;
	json_t *root = json_loadb(s, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);

	if (!EXPECT(t, root != NULL))
		cairn_note(t, "%s at %d: %.300s", e.text, e.position, s);
	return root;
}

/*
 * Parses the stream's next event at *at. An event is "data: ", then no byte or character that any reader
 * treats as a line end, then an empty line. Returns NULL at the end of the stream, and for [DONE], where it
 * sets *done.
 */
static inline json_t *next_event(struct cairn_test *t, const struct cairn_api_out *out, size_t *at,
				 bool *done)
{
	const char *s = out->s + *at, *end;

	if (*at == out->len)
		return NULL;
	end = memmem(s, out->len - *at, "\n\n", 2);
	if (!EXPECT(t, end && !strncmp(s, "data: ", 6)))
		return NULL;
	for (const char *c = s; c < end; c++)
		EXPECT(t, (unsigned char)*c >= 0x20 && *c != 0x7f);
	EXPECT(t, !memmem(s, (size_t)(end - s), "\xe2\x80\xa8", 3) &&
			  !memmem(s, (size_t)(end - s), "\xe2\x80\xa9", 3) &&
			  !memmem(s, (size_t)(end - s), "\xc2\x85", 2));
	*at += (size_t)(end - s) + 2;
	*done = end - s == 12 && !memcmp(s + 6, "[DONE]", 6);
	return *done ? NULL : read_json(t, s + 6, (size_t)(end - s) - 6);
}

/*
 * Checks that the object has exactly the members of shape, "key:types key:types ...". Each type is a letter:
 * s string, i integer, r number, n null, o object, a array.
 */
static inline bool has_exactly(struct cairn_test *t, const json_t *object, const char *shape)
{
	size_t num = 0;

	for (const char *word = shape; *word; word += strspn(word, " ")) {
		const char *colon = strchr(word, ':');
		json_t *v = json_object_getn(object, word, (size_t)(colon - word));
		size_t types = strcspn(colon + 1, " ");
		bool ok = false;

		for (size_t i = 1; i <= types; i++)
			ok |= v && ((colon[i] == 's' && json_is_string(v)) ||
				    (colon[i] == 'i' && json_is_integer(v)) ||
				    (colon[i] == 'r' && json_is_number(v)) ||
				    (colon[i] == 'n' && json_is_null(v)) ||
				    (colon[i] == 'o' && json_is_object(v)) ||
				    (colon[i] == 'a' && json_is_array(v)));
		if (!EXPECT(t, ok)) {
			cairn_note(t, "%s", word);
			return false;
		}
		num++;
		word = colon + 1 + types;
	}
	return EXPECT(t, json_object_size(object) == num);
}

static inline struct cairn_api_request request(enum cairn_api_kind kind, bool usage)
{
	return (struct cairn_api_request) {
		.kind = kind, .model = "mod\"el\n", .stream = true, .include_usage = usage
	};
}

static const struct cairn_api_token tops[] = {
	{ "a", 1, -0.25f }, { "\xe4\xbd", 2, -1.5f }, { "a", 1, -2 }, { "\xff", 1, -INFINITY }
};
static const struct cairn_api_logprob logprobs[] = {
	{ { "a", 1, -0.25f }, tops, 4, 0 },
	{ { "\xe4\xbd", 2, -1e-7f }, tops, 0, 1 },
};

static inline void check_logprobs(struct cairn_test *t, const json_t *l, bool chat)
{
	const json_t *one;

	if (!chat) {
		has_exactly(t, l, "tokens:a token_logprobs:a top_logprobs:a text_offset:a");
		EXPECT(t, !strcmp(json_string_value(json_array_get(json_object_get(l, "tokens"), 1)),
				  "bytes:\\xe4\\xbd"));
		one = json_array_get(json_object_get(l, "top_logprobs"), 0);
		EXPECT(t, json_object_size(one) == 3 &&
				  json_number_value(json_object_get(one, "a")) == -0.25 &&
				  json_number_value(json_object_get(one, "bytes:\\xff")) == -9999);
		return;
	}
	has_exactly(t, l, "content:a refusal:n");
	one = json_array_get(json_object_get(l, "content"), 0);
	has_exactly(t, one, "token:s logprob:r bytes:a top_logprobs:a");
	EXPECT(t, json_array_size(json_object_get(one, "top_logprobs")) == 4);
	one = json_array_get(json_object_get(one, "top_logprobs"), 1);
	has_exactly(t, one, "token:s logprob:r bytes:a");
	EXPECT(t, json_integer_value(json_array_get(json_object_get(one, "bytes"), 0)) == 0xe4);
}

#endif
