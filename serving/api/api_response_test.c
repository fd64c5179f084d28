// SPDX-License-Identifier: Apache-2.0
/* api_response_test - reads every answer with a strict JSON parser and every stream with an event parser */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "serving/api/api_test.h"
#include "serving/base/utf8.h"

/* Writes random, partly malformed text to s, and to want the text that a reader must see. */
static size_t random_text(struct cairn_test *t, char *s, char *want, size_t *want_len)
{
	static const char *const units[] = {
		"a",
		"\"",
		"\\",
		"\n",
		"\r\n",
		"\t",
		"\x01",
		"\x7f",
		"\x1f",
		"\xc3\xa9",
		"\xe6\xa8\xa1",
		"\xf0\x9f\x98\x80",
		"\xe2\x80\xa8",
		"\xe2\x80\xa9",
		"\xc2\x85",
		"\xff",
		"\xe4\xbd",
		"\xf0\x9f\x98",
		"data: ",
		"</script>",
		"\b\f",
		"%s",
	};
	size_t n = 0;

	*want_len = 0;
	for (uint64_t i = cairn_rand(t) % 12; i > 0; i--) {
		const char *u = units[cairn_rand(t) % ARRAY_SIZE(units)];

		memcpy(s + n, u, strlen(u));
		n += strlen(u);
	}
	for (size_t i = 0; i < n;) {
		uint32_t cp;
		int cut, len = cairn_utf8_next(s + i, n - i, &cp, &cut);

		memcpy(want + *want_len, len < 0 ? CAIRN_UTF8_REPLACEMENT : s + i, len < 0 ? 3 : (size_t)len);
		*want_len += len < 0 ? 3 : (size_t)len;
		i += (size_t)abs(len);
	}
	return n;
}

static void strings(struct cairn_test *t)
{
	char s[256], want[512];
	struct cairn_api_out out = { 0 };
	size_t n, want_len;

	for (int i = 0; i < 20000; i++) {
		json_t *root;

		n = random_text(t, s, want, &want_len);
		out.len = 0;
		cairn_api_put(&out, "[", 1);
		cairn_api_put_string(&out, s, n);
		cairn_api_put(&out, "]", 1);
		root = read_json(t, out.s, out.len);
		if (!root ||
		    !EXPECT(t, json_string_length(json_array_get(root, 0)) == want_len &&
				       !memcmp(json_string_value(json_array_get(root, 0)), want, want_len)))
			i = 20000;
		json_decref(root);
	}
	/* a NUL is an ordinary character */
	out.len = 0;
	cairn_api_put_string(&out, "a\0b", 3);
	EXPECT(t, !strcmp(out.s, "\"a\\u0000b\""));
	cairn_api_out_free(&out);
}

/* Streams two choices of random text; the concatenated pieces must equal the text. */
static void stream(struct cairn_test *t, enum cairn_api_kind kind, bool usage, bool with_logprobs)
{
	struct cairn_api_request req = request(kind, usage);
	const uint64_t random[2] = { 1, UINT64_MAX };
	struct cairn_api_answer a;
	struct cairn_api_out out = { 0 };
	char id[CAIRN_API_ID_LEN], s[256], want[512], all[2][8192] = { "", "" }, got[2][8192] = { "", "" };
	bool chat = kind == CAIRN_API_CHAT, done = false;
	size_t at = 0, n, want_len, finished = 0, events = 0;
	json_t *e;

	req.continuous_usage = usage && with_logprobs;
	cairn_api_id(kind, random, id);
	if (!EXPECT(t, !cairn_api_answer_init(&a, &req, id, 1700000000)))
		return;
	for (int i = 0; i < 24; i++) {
		struct cairn_api_choice c = { .index = i % 2, .text = s, .stop_id = -1 };

		n = random_text(t, s, want, &want_len);
		want[want_len] = 0;
		strcat(all[i % 2], want);
		c.num_bytes = n;
		c.finish = i >= 22 ? CAIRN_API_LENGTH : CAIRN_API_GOES_ON;
		c.logprobs = with_logprobs ? logprobs : NULL;
		c.num_logprobs = with_logprobs ? 2 : 0;
		cairn_api_chunk(&out, &a, &c, i < 2, &(struct cairn_api_usage) { 5, i, 2, 0 });
	}
	if (usage)
		cairn_api_usage_chunk(&out, &a, &(struct cairn_api_usage) { 5, 24, 2, 0 });
	cairn_api_done(&out);
	for (; (e = next_event(t, &out, &at, &done)); json_decref(e), events++) {
		const json_t *choices = json_object_get(e, "choices"), *c = json_array_get(choices, 0),
			     *delta;
		const char *text;

		has_exactly(t, e,
			    usage ? "id:s object:s created:i model:s choices:a usage:on"
				  : "id:s object:s created:i model:s choices:a");
		EXPECT(t, !strcmp(json_string_value(json_object_get(e, "object")),
				  chat ? "chat.completion.chunk" : "text_completion"));
		EXPECT(t, !strcmp(json_string_value(json_object_get(e, "id")), id) &&
				  !strcmp(json_string_value(json_object_get(e, "model")), "mod\"el\n"));
		if (!json_array_size(choices)) {
			has_exactly(
				t, json_object_get(e, "usage"),
				"prompt_tokens:i completion_tokens:i total_tokens:i prompt_tokens_details:o");
			EXPECT(t, json_integer_value(json_object_get(json_object_get(e, "usage"),
								     "total_tokens")) == 29);
			continue;
		}
		if (req.continuous_usage)
			EXPECT(t, json_integer_value(json_object_get(json_object_get(e, "usage"),
								     "completion_tokens")) == (int)events);
		delta = json_object_get(c, "delta");
		EXPECT(t, !chat || json_is_string(json_object_get(delta, "role")) == (events < 2));
		text = json_string_value(chat ? json_object_get(delta, "content")
					      : json_object_get(c, "text"));
		EXPECT(t, text || chat);
		strcat(got[json_integer_value(json_object_get(c, "index"))], text ? text : "");
		finished += json_is_string(json_object_get(c, "finish_reason"));
		if (with_logprobs)
			check_logprobs(t, json_object_get(c, "logprobs"), chat);
	}
	EXPECT(t, done && at == out.len && finished == 2 && events == 24u + usage);
	EXPECT(t, !strcmp(all[0], got[0]) && !strcmp(all[1], got[1]));
	cairn_api_out_free(&out);
	cairn_api_answer_free(&a);
}

static void streams(struct cairn_test *t)
{
	for (int i = 0; i < 200; i++)
		stream(t, i % 2 ? CAIRN_API_CHAT : CAIRN_API_COMPLETION, i / 2 % 2, i / 4 % 2);
}

static const struct cairn_unit units[] = {
	{ "strings", strings },
	{ "streams", streams },
};

const struct cairn_family cairn_api_response_family = {
	.stage = "serving",
	.name = "api_response",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
