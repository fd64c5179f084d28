// SPDX-License-Identifier: Apache-2.0
/* api_accept_test - valid requests and the values parsed from them; the JSON here uses ' for " */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "serving/api/api_request.h"
#include "serving/base/json_test.h"

static const char *const models[] = { "m", "org/m" };
static struct cairn_api_limits limits = {
	.vocab_size = 1000,
	.max_context = 100,
	.models = models,
	.num_models = 2,
	.adds_bos = true,
	.has_template = true,
};

static bool parse(struct cairn_test *t, enum cairn_api_kind kind, const char *body,
		  struct cairn_api_request *r)
{
	char *text = cairn_json_text(body, NULL, body);
	struct cairn_api_error e = { 0 };
	bool ok = text && !cairn_api_request_parse(kind, text, strlen(text), &limits, r, &e);

	/* the result must not point into the body */
	if (text)
		memset(text, 'x', strlen(text));
	free(text);
	if (!EXPECT(t, ok))
		cairn_note(t, "%s: %s: %s", body, e.param, e.message);
	return ok;
}

static void defaults(struct cairn_test *t)
{
	struct cairn_api_request r;

	if (!parse(t, CAIRN_API_COMPLETION, "{'prompt':'hi'}", &r))
		return;
	EXPECT(t, r.num_prompts == 1 && r.prompts->num_bytes == 2 && !strcmp(r.prompts->text, "hi") &&
			  !strcmp(r.model, "m"));
	EXPECT(t, r.n == 1 && r.max_tokens == 0 && r.min_tokens == 0 && r.temperature == 1 && r.top_p == 1 &&
			  r.top_k == 0 && r.min_p == 0);
	EXPECT(t, !r.has_seed && r.presence_penalty == 0 && r.frequency_penalty == 0 &&
			  r.repetition_penalty == 1);
	EXPECT(t, r.logprobs == -1 && !r.num_stop && !r.num_stop_ids && !r.num_bias && !r.stream &&
			  !r.use_beam_search);
	EXPECT(t, r.skip_special_tokens && r.add_special_tokens && !r.ignore_eos && !r.include_stop &&
			  !r.user && !r.cache_salt);
	cairn_api_request_free(&r);
	if (parse(t, CAIRN_API_CHAT,
		  "{'messages':[{'role':'user','content':'a'}],'logprobs':null,'tools':null,'echo':false}",
		  &r)) {
		EXPECT(t, r.messages && !r.add_special_tokens && r.add_generation_prompt &&
				  r.logprobs == -1 && !r.template_args);
		cairn_api_request_free(&r);
	}
}

static void everything(struct cairn_test *t)
{
	static const char body[] =
		"{'model':'org/"
		"m','prompt':[[1,2],[3]],'n':3,'max_tokens':7,'min_tokens':2,'temperature'"
		":0,'top_p':0.5,'top_k':-1,"
		"'min_p':1,'seed':-9223372036854775808,'presence_penalty':-2,'frequency_"
		"penalty':2,'repetition_penalty':1.5,"
		"'logit_bias':{'0':-100,'999':1.5},'logprobs':20,'stop':['a','\\u00e9'],'"
		"stop_token_ids':[0,999],'ignore_eos':true,"
		"'include_stop_str_in_output':true,'skip_special_tokens':false,'stream':"
		"true,'stream_options':{'include_usage':true,'continuous_usage_stats':true},"
		"'user':'u','cache_salt':'s','priority':0,'add_special_tokens':false,'"
		"length_penalty':1.0,'use_beam_search':false}";
	struct cairn_api_request r;

	if (!parse(t, CAIRN_API_COMPLETION, body, &r))
		return;
	EXPECT(t, !strcmp(r.model, "org/m") && r.num_prompts == 2 && r.prompts[0].num_ids == 2 &&
			  r.prompts[0].ids[1] == 2 && r.prompts[1].ids[0] == 3);
	EXPECT(t, r.n == 3 && r.max_tokens == 7 && r.min_tokens == 2 && r.temperature == 0 &&
			  r.top_p == 0.5 && r.top_k == 0 && r.min_p == 1);
	EXPECT(t, r.has_seed && r.seed == INT64_MIN && r.presence_penalty == -2 && r.frequency_penalty == 2 &&
			  r.repetition_penalty == 1.5);
	EXPECT(t, r.num_bias == 2 && r.bias[0].id == 0 && r.bias[0].bias == -100 && r.bias[1].id == 999 &&
			  r.bias[1].bias == 1.5f);
	EXPECT(t, r.logprobs == 20 && r.num_stop == 2 && r.stop[1].num_bytes == 2 &&
			  !memcmp(r.stop[1].bytes, "é", 2));
	EXPECT(t, r.num_stop_ids == 2 && r.stop_ids[1] == 999 && r.ignore_eos && r.include_stop &&
			  !r.skip_special_tokens);
	EXPECT(t, r.stream && r.include_usage && r.continuous_usage && !strcmp(r.user, "u") &&
			  !strcmp(r.cache_salt, "s") && !r.add_special_tokens);
	cairn_api_request_free(&r);
}

static void prompts(struct cairn_test *t)
{
	struct cairn_api_request r;

	if (parse(t, CAIRN_API_COMPLETION, "{'prompt':[5,6,999]}", &r)) {
		EXPECT(t, r.num_prompts == 1 && !r.prompts->text && r.prompts->num_ids == 3 &&
				  r.prompts->ids[2] == 999);
		cairn_api_request_free(&r);
	}
	if (parse(t, CAIRN_API_COMPLETION, "{'prompt':['a','','c']}", &r)) {
		EXPECT(t, r.num_prompts == 3 && r.prompts[1].text && !r.prompts[1].num_bytes &&
				  *r.prompts[2].text == 'c');
		cairn_api_request_free(&r);
	}
	if (parse(t, CAIRN_API_COMPLETION,
		  "{'prompt':'a','use_beam_search':true,'n':4,'length_penalty':0.5,'temperature':0}", &r)) {
		EXPECT(t, r.use_beam_search && r.n == 4 && r.length_penalty == 0.5 && r.temperature == 0);
		cairn_api_request_free(&r);
	}
	if (parse(t, CAIRN_API_TOKENIZE, "{'model':'m','prompt':'','return_token_strs':true}", &r)) {
		EXPECT(t, r.return_token_strs && r.add_special_tokens && !*r.prompts->text);
		cairn_api_request_free(&r);
	}
	if (parse(t, CAIRN_API_DETOKENIZE, "{'tokens':[0,7]}", &r)) {
		EXPECT(t, r.num_ids == 2 && r.ids[1] == 7);
		cairn_api_request_free(&r);
	}
	limits.has_template = false;
	EXPECT(t, cairn_api_request_parse(CAIRN_API_CHAT,
					  "{\"messages\":[{\"role\":\"user\",\"content\":\"\"}]}", 43,
					  &limits, &r, &(struct cairn_api_error) { 0 }) == -EINVAL);
	limits.has_template = true;
}

static void messages(struct cairn_test *t)
{
	static const char body[] = "{'messages':[{'role':'system','content':''},{'role':'user','content':[{'"
				   "type':'text','text':'a'},{'text':'b','type':'text'}],"
				   "'name':'x','tool_calls':null},{'role':'assistant','content':'c','"
				   "reasoning_content':'r','refusal':null}],"
				   "'add_generation_prompt':false,'chat_template_kwargs':{'enable_thinking':"
				   "false,'k':5},'logprobs':true,'top_logprobs':3,"
				   "'max_completion_tokens':9,'max_tokens':9,'stop':'x'}";
	const json_t *m;
	struct cairn_api_request r;

	if (!parse(t, CAIRN_API_CHAT, body, &r))
		return;
	m = json_array_get(r.messages, 1);
	EXPECT(t, json_array_size(r.messages) == 3 && json_object_size(m) == 3);
	EXPECT(t, !strcmp(json_string_value(json_object_get(m, "content")), "a\nb") &&
			  !strcmp(json_string_value(json_object_get(m, "name")), "x"));
	EXPECT(t, json_object_size(json_array_get(r.messages, 2)) == 3 && !r.add_generation_prompt);
	EXPECT(t, json_is_false(json_object_get(r.template_args, "enable_thinking")) && r.logprobs == 3 &&
			  r.max_tokens == 9 && r.num_stop == 1);
	cairn_api_request_free(&r);
	if (parse(t, CAIRN_API_CHAT,
		  "{'top_logprobs':0,'logprobs':true,'messages':[{'role':'user','content':'a'}]}", &r)) {
		EXPECT(t, r.logprobs == 0);
		cairn_api_request_free(&r);
	}
}

/* Common clients send these members with values that ask for nothing beyond the default. */
static void neutral(struct cairn_test *t)
{
	static const char *const members[] = {
		"'tools':[]", "'tool_choice':'none'", "'functions':[]", "'function_call':'none'",
		"'response_format':{'type':'text'}", "'parallel_tool_calls':true",
		"'parallel_tool_calls':false", "'best_of':1", "'best_of':1.0", "'n':3,'best_of':3",
		"'store':false", "'service_tier':'auto'", "'service_tier':'default'", "'metadata':{}",
		"'metadata':{'a':'b'}", "'priority':0", "'priority':0.0", "'modalities':['text']",
		"'suffix':''", "'bad_words':[]", "'early_stopping':false", "'echo':false",
		"'return_token_ids':false", "'return_tokens_as_token_ids':false",
		"'continue_final_message':false", "'spaces_between_special_tokens':true",
		"'reasoning_effort':'none'", "'verbosity':'medium'", "'include_reasoning':true",
		"'prompt_cache_retention':'in_memory'", "'vllm_xargs':{}", "'request_id':null",
		"'safety_identifier':'u-5'", "'prompt_cache_key':'k'", "'prompt_cache_key':null",
		"'stream':true,'stream_options':{'include_obfuscation':false}",
	};
	struct cairn_api_request r;
	char body[256];

	for (size_t i = 0; i < 2 * ARRAY_SIZE(members); i++) {
		const char *head = i % 2 ? "'messages':[{'role':'user','content':'a'}]" : "'prompt':'a'";

		snprintf(body, sizeof(body), "{%s,%s}", head, members[i / 2]);
		if (!parse(t, i % 2 ? CAIRN_API_CHAT : CAIRN_API_COMPLETION, body, &r))
			continue;
		EXPECT(t, (r.n == 1 || r.n == 3) && r.logprobs == -1 && r.temperature == 1);
		cairn_api_request_free(&r);
	}
	/* top_logprobs 0 alone requests no log-probabilities */
	for (int i = 0; i < 3; i++) {
		static const char *const with[] = { "", ",'logprobs':false", ",'logprobs':null" };

		snprintf(body, sizeof(body),
			 "{'top_logprobs':0%s,'messages':[{'role':'user','content':'a'}]}", with[i]);
		if (parse(t, CAIRN_API_CHAT, body, &r)) {
			EXPECT(t, r.logprobs == -1);
			cairn_api_request_free(&r);
		}
	}
}

/* Members that a request lacks take the model's defaults. Beam search does not sample and ignores them. */
static void model_defaults(struct cairn_test *t)
{
	static const struct cairn_generation defaults = {
		.temperature = 0.6, .top_p = 0.9, .min_p = 0.1, .repetition_penalty = 1.1, .top_k = 20
	};
	struct cairn_api_request r;

	limits.defaults = &defaults;
	if (parse(t, CAIRN_API_COMPLETION, "{'prompt':'a','top_p':null}", &r)) {
		EXPECT(t, r.temperature == 0.6 && r.top_p == 0.9 && r.min_p == 0.1 && r.top_k == 20 &&
				  r.repetition_penalty == 1.1);
		cairn_api_request_free(&r);
	}
	if (parse(t, CAIRN_API_CHAT,
		  "{'messages':[{'role':'user','content':'a'}],'temperature':1,'top_p':1,'min_p':0,'top_k':0,"
		  "'repetition_penalty':1}", &r)) {
		EXPECT(t, r.temperature == 1 && r.top_p == 1 && r.min_p == 0 && r.top_k == 0 &&
				  r.repetition_penalty == 1);
		cairn_api_request_free(&r);
	}
	if (parse(t, CAIRN_API_COMPLETION, "{'prompt':'a','use_beam_search':true,'n':2}", &r)) {
		EXPECT(t, r.temperature == 0 && r.top_p == 1 && r.min_p == 0 && r.top_k == 0 &&
				  r.repetition_penalty == 1);
		cairn_api_request_free(&r);
	}
	limits.defaults = NULL;
}

/* Clients may write integers as floats. */
static void integral(struct cairn_test *t)
{
	struct cairn_api_request r;

	if (parse(t, CAIRN_API_COMPLETION,
		  "{'prompt':[[5.0,6],[7.0]],'max_tokens':16.0,'max_completion_tokens':16,'min_tokens':2e0,"
		  "'n':2.0,'top_k':-1.0,'seed':-9223372036854775808.0,'logprobs':3.0,'stop_token_ids':[9.0]}",
		  &r)) {
		EXPECT(t, r.prompts[0].ids[0] == 5 && r.prompts[0].ids[1] == 6 && r.prompts[1].ids[0] == 7);
		EXPECT(t, r.max_tokens == 16 && r.min_tokens == 2 && r.n == 2 && r.top_k == 0 && r.has_seed &&
				  r.seed == INT64_MIN && r.logprobs == 3 && r.stop_ids[0] == 9);
		cairn_api_request_free(&r);
	}
	if (parse(t, CAIRN_API_CHAT,
		  "{'messages':[{'role':'user','content':'a'}],'logprobs':true,'top_logprobs':2.0}", &r)) {
		EXPECT(t, r.logprobs == 2);
		cairn_api_request_free(&r);
	}
	if (parse(t, CAIRN_API_DETOKENIZE, "{'tokens':[8.0]}", &r)) {
		EXPECT(t, r.num_ids == 1 && r.ids[0] == 8);
		cairn_api_request_free(&r);
	}
}

/* The role developer becomes system. Empty lists in an answer that a client sends back are dropped. */
static void developer(struct cairn_test *t)
{
	struct cairn_api_request r;
	const json_t *m;

	if (!parse(t, CAIRN_API_CHAT,
		   "{'messages':[{'role':'developer','content':'x'},{'role':'assistant','content':'y',"
		   "'tool_calls':[],'annotations':[],'audio':null}]}", &r))
		return;
	m = json_array_get(r.messages, 0);
	EXPECT(t, !strcmp(json_string_value(json_object_get(m, "role")), "system") &&
			  !strcmp(json_string_value(json_object_get(m, "content")), "x"));
	EXPECT(t, json_object_size(json_array_get(r.messages, 1)) == 2);
	cairn_api_request_free(&r);
}

/*
 * A prompt that does not fit is refused before its answer begins. A row is:
 * kind, max_tokens, min_tokens, num_tokens, want
 */
static void fit(struct cairn_test *t)
{
	static const struct {
		enum cairn_api_kind kind;
		int64_t max_tokens, min_tokens;
		size_t num_tokens;
		int32_t want; /* 0: refused */
	} rows[] = {
		{ CAIRN_API_COMPLETION, 0, 0, 10, 16 },
		{ CAIRN_API_COMPLETION, 0, 0, 90, 10 },
		{ CAIRN_API_COMPLETION, 0, 0, 100, 0 },
		{ CAIRN_API_COMPLETION, 0, 20, 10, 20 },
		{ CAIRN_API_COMPLETION, 0, 90, 10, 90 },
		{ CAIRN_API_COMPLETION, 0, 91, 10, 0 },
		{ CAIRN_API_COMPLETION, 0, 15, 90, 0 },
		{ CAIRN_API_COMPLETION, 90, 0, 10, 90 },
		{ CAIRN_API_COMPLETION, 91, 0, 10, 0 },
		{ CAIRN_API_COMPLETION, 1, 0, 0, 0 },
		{ CAIRN_API_COMPLETION, INT32_MAX, 0, 1, 0 },
		{ CAIRN_API_COMPLETION, 1, 0, (size_t)1 << 40, 0 },
		{ CAIRN_API_CHAT, 0, 0, 10, 90 },
		{ CAIRN_API_CHAT, 0, 0, 99, 1 },
		{ CAIRN_API_CHAT, 0, 91, 10, 0 },
		{ CAIRN_API_CHAT, 0, 0, 5000, 0 },
	};
	struct cairn_api_error e;

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		struct cairn_api_request r = { .kind = rows[i].kind,
					       .max_tokens = rows[i].max_tokens,
					       .min_tokens = rows[i].min_tokens };
		int32_t got = 0;
		int ret = cairn_api_fit(&r, &limits, rows[i].num_tokens, &got, &e);

		if (!EXPECT(t, got == rows[i].want && (ret == 0) == (got > 0)))
			cairn_note(t, "row %zu: %d", i, got);
		if (ret && rows[i].num_tokens)
			EXPECT(t, e.status == 400 && !strcmp(e.code, "context_length_exceeded") &&
					  !strcmp(e.param, r.kind == CAIRN_API_CHAT ? "messages" : "prompt"));
	}
}

/* What an answer is held to, and what it is not. */
static void constraints(struct cairn_test *t)
{
	static const struct { const char *members, *text; enum cairn_constraint_kind kind; } all[] = {
		{ "'response_format':{'type':'text'}", "", CAIRN_CONSTRAINT_NONE },
		{ "'response_format':null,'structured_outputs':null", "", CAIRN_CONSTRAINT_NONE },
		{ "'structured_outputs':{'json':null,'json_object':false,'disable_fallback':true}", "",
		  CAIRN_CONSTRAINT_NONE },
		{ "'response_format':{'type':'json_object'}", "{\"type\":\"object\"}",
		  CAIRN_CONSTRAINT_JSON },
		{ "'response_format':{'type':'json_schema','json_schema':{'name':'n','strict':null,"
		  "'description':'d','schema':{'b':1,'a':[2]}}}", "{\"b\":1,\"a\":[2]}",
		  CAIRN_CONSTRAINT_JSON },
		{ "'structured_outputs':{'json':{'type':'null'}}", "{\"type\":\"null\"}",
		  CAIRN_CONSTRAINT_JSON },
		{ "'structured_outputs':{'json':'{}'}", "{}", CAIRN_CONSTRAINT_JSON },
		{ "'structured_outputs':{'json_object':true}", "{\"type\":\"object\"}",
		  CAIRN_CONSTRAINT_JSON },
		{ "'structured_outputs':{'regex':'a+'}", "a+", CAIRN_CONSTRAINT_REGEX },
		{ "'structured_outputs':{'choice':['a','b']}", "[\"a\",\"b\"]", CAIRN_CONSTRAINT_CHOICE },
		{ "'structured_outputs':{'grammar':'start: x'}", "start: x", CAIRN_CONSTRAINT_LARK },
	};
	struct cairn_api_request r;
	char body[512];

	for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
		snprintf(body, sizeof(body), "{'prompt':'a',%s}", all[i].members);
		if (!parse(t, CAIRN_API_COMPLETION, body, &r))
			continue;
		EXPECT(t, r.constraint.kind == all[i].kind && !r.constraint.num_after);
		EXPECT(t, r.constraint.num_bytes == strlen(all[i].text) &&
			  (!r.constraint.kind || !strcmp(r.constraint.text, all[i].text)));
		EXPECT(t, !r.constraint.kind == !r.constraint_param);
		EXPECT(t, !cairn_api_request_detach(&r) && !r.root);
		EXPECT(t, r.constraint.num_bytes == strlen(all[i].text) &&
			  !memcmp(r.constraint.text ? r.constraint.text : "", all[i].text,
				  r.constraint.num_bytes));
		cairn_api_request_free(&r);
	}
}

/* What stays of a request when its body has been freed. A sanitizer notices what still points into it. */
static void detached(struct cairn_test *t)
{
	struct cairn_api_request r;

	if (!parse(t, CAIRN_API_COMPLETION, "{'prompt':['a','b'],'stop':['one','two'],'n':2,'user':'u',"
		   "'logit_bias':{'3':1},'stop_token_ids':[7],'structured_outputs':{'regex':'a+'}}", &r))
		return;
	EXPECT(t, !cairn_api_request_detach(&r));
	EXPECT(t, !r.root && !r.prompts && !r.num_prompts && !r.user && !r.model);
	EXPECT(t, r.n == 2 && r.num_bias == 1 && r.bias[0].id == 3);
	EXPECT(t, r.num_stop_ids == 1 && r.stop_ids[0] == 7);
	EXPECT(t, r.num_stop == 2 && r.stop[0].num_bytes == 3 && !memcmp(r.stop[0].bytes, "one", 3) &&
		  r.stop[1].num_bytes == 3 && !memcmp(r.stop[1].bytes, "two", 3));
	EXPECT(t, r.constraint.num_bytes == 2 && !memcmp(r.constraint.text, "a+", 2));
	cairn_api_request_free(&r);
	if (!parse(t, CAIRN_API_CHAT, "{'messages':[{'role':'user','content':'a'}],"
		   "'chat_template_kwargs':{'a':1}}", &r))
		return;
	EXPECT(t, !cairn_api_request_detach(&r) && !r.root && !r.messages && !r.template_args);
	cairn_api_request_free(&r);
}

static const struct cairn_unit units[] = {
	{ "constraints", constraints }, { "detached", detached },
	{ "defaults", defaults }, { "everything", everything },
	{ "prompts", prompts },   { "messages", messages },
	{ "neutral", neutral },   { "integral", integral },
	{ "developer", developer }, { "fit", fit },
	{ "model_defaults", model_defaults },
};

const struct cairn_family cairn_api_accept_family = {
	.stage = "serving",
	.name = "api_accept",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
