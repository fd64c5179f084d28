// SPDX-License-Identifier: Apache-2.0
/*
 * api_neutral - members that other servers support and this one does not
 *
 * Common clients send many of them with a value that asks for nothing beyond what the server does anyway. The
 * server accepts such values and refuses any other with an error that names the member.
 */
#include <stdio.h>
#include <string.h>

#include "serving/api/api_request_impl.h"
#include "serving/base/json.h"

static const struct {
	const char *name;
	const char *neutral[2]; /* JSON of the values that ask for nothing; null always does */
} members[] = {
	{ "allowed_token_ids", { NULL } },
	{ "audio", { NULL } },
	{ "bad_words", { "[]" } },
	{ "chat_template", { NULL } },
	{ "continue_final_message", { "false" } },
	{ "documents", { "[]" } },
	{ "early_stopping", { "false" } },
	{ "function_call", { "\"none\"" } },
	{ "functions", { "[]" } },
	{ "grammar", { NULL } },
	{ "include_reasoning", { "true" } },
	{ "kv_transfer_params", { NULL } },
	{ "logits_processors", { NULL } },
	{ "mm_processor_kwargs", { NULL } },
	{ "modalities", { "[\"text\"]" } },
	{ "parallel_tool_calls", { "true", "false" } },
	{ "prediction", { NULL } },
	{ "priority", { "0" } },
	{ "prompt_embeds", { NULL } },
	{ "prompt_cache_retention", { "\"in_memory\"" } },
	{ "reasoning_effort", { "\"none\"" } },
	{ "request_id", { NULL } },
	{ "return_token_ids", { "false" } },
	{ "return_tokens_as_token_ids", { "false" } },
	{ "service_tier", { "\"auto\"", "\"default\"" } },
	{ "spaces_between_special_tokens", { "true" } },
	{ "store", { "false" } },
	{ "suffix", { "\"\"" } },
	{ "tool_choice", { "\"none\"" } },
	{ "tools", { "[]" } },
	{ "truncate_prompt_tokens", { NULL } },
	{ "verbosity", { "\"medium\"" } },
	{ "vllm_xargs", { "{}" } },
	{ "web_search_options", { NULL } },
};

/* Members of vLLM before 0.12, and what has taken their place. */
static const struct {
	const char *name, *now;
} renamed[] = {
	{ "guided_choice", "structured_outputs.choice" },
	{ "guided_decoding_backend", NULL },
	{ "guided_grammar", "structured_outputs.grammar" },
	{ "guided_json", "structured_outputs.json" },
	{ "guided_regex", "structured_outputs.regex" },
	{ "guided_whitespace_pattern", NULL },
};

/* Returns 1 if value equals the JSON text, 0 if not, < 0 with the error filled in if there is no memory. */
static int equals(struct parse *p, const json_t *value, const char *text)
{
	json_t *want = json_loads(text, JSON_DECODE_ANY, NULL);
	int64_t a, b;
	int same;

	if (!want)
		return cairn_api_no_memory(p);
	same = json_equal(want, value) ||
	       (cairn_api_integer(want, &a) && cairn_api_integer(value, &b) && a == b);
	json_decref(want);
	return same;
}

int cairn_api_take_neutral(struct parse *p, const char *name, const json_t *value)
{
	for (size_t i = 0; i < sizeof(renamed) / sizeof(*renamed); i++) {
		if (strcmp(renamed[i].name, name) != 0)
			continue;
		return json_is_null(value) ? 0 :
		       cairn_api_refuse(p->error, 400, "unsupported_parameter", name,
					"%s is not supported%s%s", name,
					renamed[i].now ? ": its name is now " : "",
					renamed[i].now ? renamed[i].now : "");
	}
	for (size_t i = 0; i < sizeof(members) / sizeof(*members); i++) {
		const char *const *neutral = members[i].neutral;
		int same = json_is_null(value);

		if (strcmp(members[i].name, name))
			continue;
		for (int k = 0; k < 2 && neutral[k] && !same; k++)
			same = equals(p, value, neutral[k]);
		if (same)
			return same < 0 ? same : 0;
		return cairn_api_refuse(p->error, 400, "unsupported_parameter", name,
					"%s is not supported%s%s%s%s%s", name, neutral[0] ? ": only " : "",
					neutral[0] ? neutral[0] : "", neutral[1] ? " or " : "",
					neutral[1] ? neutral[1] : "", neutral[0] ? " is accepted" : "");
	}
	return 1;
}
