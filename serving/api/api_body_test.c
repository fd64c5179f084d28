// SPDX-License-Identifier: Apache-2.0
/* api_body_test - answers without streaming, errors, and the bodies of the other paths */
#include <string.h>

#include "conformance/harness.h"
#include "serving/api/api_test.h"

static void bodies(struct cairn_test *t)
{
	const struct cairn_stop_string stop = { "\n\"END", 5 };
	const struct cairn_api_choice choices[] = {
		{ .text = "one", .num_bytes = 3, .finish = CAIRN_API_STOP, .stop = &stop, .stop_id = -1,
		  .logprobs = logprobs, .num_logprobs = 2 },
		{ .index = 1, .text = "", .finish = CAIRN_API_STOP, .stop_id = 7 },
		{ .index = 2, .text = "x", .num_bytes = 1, .finish = CAIRN_API_LENGTH, .stop_id = -1 },
	};
	for (int chat = 0; chat < 2; chat++) {
		struct cairn_api_request req = request(chat ? CAIRN_API_CHAT : CAIRN_API_COMPLETION, false);
		struct cairn_api_out out = { 0 };
		struct cairn_api_answer a;
		const json_t *c;
		json_t *root;

		EXPECT(t, !cairn_api_answer_init(&a, &req, "id", 5));
		cairn_api_body(&out, &a, choices, ARRAY_SIZE(choices),
			       &(struct cairn_api_usage) { 1, 2, 0, 0 });
		root = read_json(t, out.s, out.len);
		has_exactly(t, root, "id:s object:s created:i model:s choices:a usage:o");
		EXPECT(t, !strcmp(json_string_value(json_object_get(root, "object")),
				  chat ? "chat.completion" : "text_completion"));
		for (size_t i = 0; i < ARRAY_SIZE(choices); i++) {
			c = json_array_get(json_object_get(root, "choices"), i);
			has_exactly(t, c,
				    chat ? "index:i message:o logprobs:on finish_reason:s stop_reason:sin"
					 : "index:i text:s logprobs:on finish_reason:s stop_reason:sin");
			if (chat)
				has_exactly(t, json_object_get(c, "message"), "role:s refusal:n content:s");
			EXPECT(t, json_integer_value(json_object_get(c, "index")) == (int)i);
		}
		c = json_array_get(json_object_get(root, "choices"), 0);
		EXPECT(t, !strcmp(json_string_value(json_object_get(c, "stop_reason")), stop.bytes));
		check_logprobs(t, json_object_get(c, "logprobs"), chat);
		c = json_array_get(json_object_get(root, "choices"), 1);
		EXPECT(t, json_integer_value(json_object_get(c, "stop_reason")) == 7);
		json_decref(root);
		cairn_api_out_free(&out);
		cairn_api_answer_free(&a);
	}
}

/* prompt_logprobs is where vLLM puts it: in each choice of a completion, beside the choices of a chat. */
static void prompts(struct cairn_test *t)
{
	const struct cairn_api_token tokens[] = { { "a\"", 2, -0.5f }, { "\xe4\xbd", 2, -INFINITY } };
	struct cairn_api_out json = { 0 };
	struct cairn_api_choice choices[2] = { { .stop_id = -1, .text = "", .finish = CAIRN_API_LENGTH } };
	const json_t *one;

	cairn_api_put(&json, "[null,{", 7);
	cairn_api_put_ranked(&json, 7, 0, &tokens[0]);
	cairn_api_put(&json, ",", 1);
	cairn_api_put_ranked(&json, 511, 32, &tokens[1]);
	cairn_api_put(&json, "}]", 2);
	choices[0].prompt_logprobs = &json;
	choices[1] = choices[0];
	for (int chat = 0; chat < 2; chat++) {
		struct cairn_api_request req = request(chat ? CAIRN_API_CHAT : CAIRN_API_COMPLETION, false);
		struct cairn_api_out out = { 0 };
		struct cairn_api_answer a;
		json_t *root, *list;

		EXPECT(t, !cairn_api_answer_init(&a, &req, "id", 5));
		cairn_api_body(&out, &a, choices, 2, &(struct cairn_api_usage) { 2, 1, 0, 0 });
		root = read_json(t, out.s, out.len);
		list = json_array_get(json_object_get(root, "choices"), 1);
		EXPECT(t, !json_object_get(chat ? list : root, "prompt_logprobs"));
		list = json_object_get(chat ? root : list, "prompt_logprobs");
		EXPECT(t, json_array_size(list) == 2 && json_is_null(json_array_get(list, 0)));
		one = json_array_get(list, 1);
		has_exactly(t, one, "7:o 511:o");
		has_exactly(t, json_object_get(one, "7"), "logprob:r rank:n decoded_token:s");
		one = json_object_get(one, "511");
		has_exactly(t, one, "logprob:r rank:i decoded_token:s");
		EXPECT(t, json_real_value(json_object_get(one, "logprob")) == -9999 &&
				  json_integer_value(json_object_get(one, "rank")) == 32);
		EXPECT(t, !strcmp(json_string_value(json_object_get(one, "decoded_token")), "\xef\xbf\xbd"));
		json_decref(root);
		cairn_api_out_free(&out);
		cairn_api_answer_free(&a);
	}
	cairn_api_out_free(&json);
}

static void others(struct cairn_test *t)
{
	static const char *const names[] = { "a/b", "c\x1b\n" };
	const struct cairn_api_limits limits = { .models = names, .num_models = 2, .max_context = 4096 };
	const int32_t ids[] = { 5, 6 };
	struct cairn_api_error error;
	struct cairn_api_out out = { 0 };
	bool done = false;
	size_t at = 0;
	json_t *root;

	cairn_api_refuse(&error, 429, "queue_full", NULL, "too many: %d \x1b \xff", 5);
	cairn_api_error_event(&out, &error);
	root = next_event(t, &out, &at, &done);
	has_exactly(t, json_object_get(root, "error"), "message:s type:s param:n code:s");
	EXPECT(t, !strcmp(json_string_value(json_object_get(json_object_get(root, "error"), "type")),
			  "rate_limit_error"));
	json_decref(root);
	out.len = 0;
	cairn_api_models_body(&out, &limits, 9);
	root = read_json(t, out.s, out.len);
	has_exactly(t, root, "object:s data:a");
	has_exactly(t, json_array_get(json_object_get(root, "data"), 1),
		    "id:s object:s created:i owned_by:s max_model_len:i");
	json_decref(root);
	out.len = 0;
	cairn_api_tokenize_body(&out, ids, 2, tops, 4096);
	root = read_json(t, out.s, out.len);
	has_exactly(t, root, "count:i max_model_len:i tokens:a token_strs:a");
	EXPECT(t, json_integer_value(json_array_get(json_object_get(root, "tokens"), 1)) == 6);
	json_decref(root);
	out.len = 0;
	cairn_api_detokenize_body(&out, "x\xff", 2);
	EXPECT(t, !strcmp(out.s, "{\"prompt\":\"x\xef\xbf\xbd\"}"));
	out.len = 0;
	cairn_api_keep_alive(&out);
	EXPECT(t, out.s[0] == ':' && !strcmp(out.s + out.len - 2, "\n\n"));
	cairn_api_out_free(&out);
}

static const struct cairn_unit units[] = {
	{ "bodies", bodies },
	{ "prompts", prompts },
	{ "others", others },
};

const struct cairn_family cairn_api_body_family = {
	.stage = "serving",
	.name = "api_body",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
