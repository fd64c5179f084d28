// SPDX-License-Identifier: Apache-2.0
/* api_request_test - every member at its bounds and beyond them; the JSON here uses ' for " */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "serving/api/api_request.h"
#include "serving/base/json_test.h"

static const char *const models[] = { "m", "org/m" };
static const struct cairn_api_limits limits = {
	.vocab_size = 1000,
	.max_context = 4096,
	.models = models,
	.num_models = 2,
	.adds_bos = true,
	.has_template = true,
};

static int parse(enum cairn_api_kind kind, const char *body, struct cairn_api_request *r,
		 struct cairn_api_error *e)
{
	char *text = cairn_json_text(body, NULL, body);
	int ret;

	*e = (struct cairn_api_error) { 0 };
	ret = text ? cairn_api_request_parse(kind, text, strlen(text), &limits, r, e) : -ENOMEM;
	free(text);
	return ret;
}

struct bad {
	const char *body, *param, *message;
	int status; /* 0: 400 */
};

static void refused_all(struct cairn_test *t, enum cairn_api_kind kind, const struct bad *rows, size_t num)
{
	struct cairn_api_request r = { .n = 77 };
	struct cairn_api_error e;

	for (size_t i = 0; i < num; i++) {
		int want = rows[i].status ? rows[i].status : 400;

		if (!EXPECT(t, parse(kind, rows[i].body, &r, &e) < 0 && e.status == want &&
				       !strcmp(e.param, rows[i].param)) ||
		    !EXPECT_CONTAINS(t, e.message, rows[i].message))
			cairn_note(t, "%s: %d param '%s': %s", rows[i].body, e.status, e.param, e.message);
		EXPECT(t, r.n == 77 && e.type && e.message[0]);
	}
}

/* A completion with one additional member. */
#define C(member) "{'prompt':'a'," member "}"
#define BAD(name, value, message)                                                                            \
	{                                                                                                    \
		C("'" name "':" value), name, message, 0                                                     \
	}

static const struct bad completion[] = {
	{ "", "", "not JSON", 0 },
	{ "[]", "", "must be an object, is an array", 0 },
	{ "{'prompt':'a'} x", "", "not JSON", 0 },
	{ "{'prompt':'a','prompt':'b'}", "prompt", "duplicate", 0 },
	{ "{'prompt':'\xff'}", "prompt", "unable to decode byte 0xff", 0 },
	{ "{'prompt':'a\\u0000'}", "prompt", "not JSON", 0 },
	{ "{'prompt':'\\ud800'}", "prompt", "not JSON", 0 },
	{ "{'prompt':'a',}", "", "not JSON", 0 },
	{ "{'prompt':'a','x':1}", "x", "\"x\" is not a parameter", 0 },
	{ "{'prompt':'a','e\\u001b\\n':1}", "e\\x1b\\x0a", "\"e\\x1b\\x0a\" is not a parameter", 0 },
	{ "{}", "prompt", "prompt is missing", 0 },
	{ "{'prompt':null}", "prompt", "prompt is missing", 0 },
	{ "{'prompt':5}", "prompt", "must be a string or an array", 0 },
	{ "{'prompt':[]}", "prompt", "is empty", 0 },
	{ "{'prompt':[[]]}", "prompt", "empty list", 0 },
	{ "{'prompt':['a',5]}", "prompt", "of one kind", 0 },
	{ "{'prompt':[5,'a']}", "prompt", "token ids alone", 0 },
	{ "{'prompt':[[5],6]}", "prompt", "of one kind", 0 },
	{ "{'prompt':[1000]}", "prompt", "token id 1000 is not 0 to 999", 0 },
	{ "{'prompt':[-1]}", "prompt", "token id -1", 0 },
	{ "{'prompt':[1.5]}", "prompt", "token ids alone", 0 },
	{ "{'prompt':[4294967296]}", "prompt", "4294967296", 0 },
	{ "{'prompt':'','add_special_tokens':false}", "prompt", "prompt 0 is empty", 0 },
	{ "{'model':'zzz','prompt':'a'}", "model", "the model \"zzz\" does not exist", 404 },
	{ "{'model':5,'prompt':'a'}", "model", "must be a string", 0 },
	{ "{'messages':[],'prompt':'a'}", "messages", "not supported by this endpoint", 0 },
	BAD("max_tokens", "0", "must be 1 to"),
	BAD("max_tokens", "-1", "is -1"),
	BAD("max_tokens", "1.5", "must be an integer"),
	BAD("max_tokens", "'5'", "must be an integer, is a string"),
	BAD("max_tokens", "9223372036854775808", "not JSON"),
	BAD("max_tokens", "2147483648", "2147483648"),
	BAD("max_tokens", "true", "integer, is true"),
	BAD("n", "0", "1 to 128"),
	BAD("n", "129", "is 129"),
	BAD("n", "2147483648", "1 to 128"),
	BAD("n", "[]", "integer"),
	BAD("temperature", "-1", "at least 0 and at most 2"),
	BAD("temperature", "3", "is 3"),
	BAD("temperature", "1e999", "not JSON"),
	BAD("temperature", "NaN", "not JSON"),
	BAD("temperature", "'1'", "must be a number"),
	BAD("temperature", "-0.0001", "at least"),
	BAD("top_p", "0", "above 0"),
	BAD("top_p", "1.1", "at most 1"),
	BAD("top_k", "-2", "-1 to"),
	BAD("top_k", "0.5", "integer"),
	BAD("min_p", "2", "at most 1"),
	BAD("min_p", "-0.1", "at least 0"),
	BAD("seed", "18446744073709551616", "not JSON"),
	BAD("seed", "1.5", "integer, is a number with a fraction"),
	BAD("seed", "9223372036854775808.0", "integer"),
	BAD("max_tokens", "0.0", "must be 1 to"),
	BAD("max_tokens", "1e300", "integer"),
	BAD("logprobs", "1.5", "integer"),
	BAD("stop_token_ids", "[7.5]", "token ids"),
	BAD("logprobs", "21", "0 to 20"),
	BAD("logprobs", "-1", "0 to 20"),
	BAD("logprobs", "true", "integer"),
	BAD("stop", "['a','b','c','d','e','f','g','h','i','j','k','l','m','n','o','p','q','r','s','t','u',"
		    "'v','w','x','y','z','A','B','C','D','E','F','G']", "33 strings, at most 32"),
	BAD("stop", "''", "0 bytes"),
	BAD("stop", "['a','']", "0 bytes"),
	BAD("stop", "[5]", "string"),
	BAD("stop", "{}", "string"),
	BAD("stop_token_ids", "[1000]", "token id 1000"),
	BAD("stop_token_ids", "5", "array"),
	BAD("stop_token_ids", "['5']", "token ids"),
	BAD("logit_bias", "{'1000':1}", "\"1000\" is not a token id of 0 to 999"),
	BAD("logit_bias", "{'x':1}", "\"x\""),
	BAD("logit_bias", "{'-1':1}", "\"-1\""),
	BAD("logit_bias", "{'01':1}", "\"01\""),
	BAD("logit_bias", "{'5':101}", "-100 to 100"),
	BAD("logit_bias", "{'5':'1'}", "the bias of 5"),
	BAD("logit_bias", "[]", "object"),
	BAD("logit_bias", "{'':1}", "token id"),
	BAD("logit_bias", "{'99999999999999999999':1}", "token id"),
	BAD("presence_penalty", "2.1", "at most 2"),
	BAD("frequency_penalty", "-2.1", "at least -2"),
	BAD("repetition_penalty", "0", "above 0"),
	BAD("min_tokens", "-1", "0 to"),
	BAD("ignore_eos", "1", "true or false"),
	BAD("stream", "'yes'", "true or false"),
	BAD("user", "5", "string"),
	BAD("cache_salt", "''", "1 to 1024 bytes"),
	BAD("priority", "1", "priority is not supported: only 0 is accepted"),
	BAD("priority", "-99999999999", "only 0"),
	BAD("stream_options", "{}", "needs stream"),
	BAD("echo", "1", "true or false"),
	{ C("'echo':true,'use_beam_search':true,'logprobs':0"), "logprobs", "does not go with echo and", 0 },
	{ C("'echo':false,'max_tokens':0"), "max_tokens", "must be 1 to", 0 },
	{ C("'echo':true,'max_tokens':-1"), "max_tokens", "is -1", 0 },
	{ C("'echo':true,'max_tokens':0,'min_tokens':2"), "min_tokens", "above max_tokens", 0 },
	BAD("best_of", "2", "best_of is not supported: only n, 1, is accepted"),
	BAD("best_of", "'1'", "must be an integer"),
	{ C("'n':2,'best_of':1"), "best_of", "only n, 2", 0 },
	BAD("suffix", "'x'", "suffix is not supported"),
	BAD("tools", "[{'type':'function','function':{'name':'f'}}]",
	    "tools is not supported: only [] is accepted"),
	BAD("tools", "{}", "only [] is"),
	BAD("functions", "[{}]", "functions is not supported"),
	BAD("tool_choice", "'required'", "only \"none\" is"),
	BAD("parallel_tool_calls", "1", "only true or false is"),
	BAD("response_format", "'json_object'", "response_format must be an object"),
	BAD("structured_outputs", "[]", "structured_outputs must be an object"),
	{ C("'response_format':{}"), "response_format.type", "is missing", 0 },
	{ C("'response_format':{'type':'xml'}"), "response_format.type", "must be text, json_object or", 0 },
	{ C("'response_format':{'type':'text','x':1}"), "response_format.x", "is not supported", 0 },
	{ C("'response_format':{'type':'json_schema'}"), "response_format.json_schema", "is missing", 0 },
	{ C("'response_format':{'type':'json_schema','json_schema':{'name':'x'}}"),
	  "response_format.json_schema.schema", "is missing", 0 },
	{ C("'response_format':{'type':'json_schema','json_schema':{'schema':[]}}"),
	  "response_format.json_schema.schema", "must be an object", 0 },
	{ C("'response_format':{'type':'json_schema','json_schema':{'schema':{},'y':1}}"),
	  "response_format.json_schema.y", "is not supported", 0 },
	{ C("'structured_outputs':{'regex':''}"), "structured_outputs.regex", "not empty", 0 },
	{ C("'structured_outputs':{'regex':1}"), "structured_outputs.regex", "a string", 0 },
	{ C("'structured_outputs':{'choice':[]}"), "structured_outputs.choice", "a list of strings", 0 },
	{ C("'structured_outputs':{'choice':['a',1]}"), "structured_outputs.choice", "entry 1", 0 },
	{ C("'structured_outputs':{'json':1}"), "structured_outputs.json", "must be an object", 0 },
	{ C("'structured_outputs':{'structural_tag':'x'}"), "structured_outputs.structural_tag",
	  "is not supported", 0 },
	{ C("'structured_outputs':{'json':{},'regex':'a'}"), "structured_outputs.regex",
	  "does not go with structured_outputs.json", 0 },
	{ C("'response_format':{'type':'json_object'},'structured_outputs':{'regex':'a'}"),
	  "structured_outputs.regex", "does not go with response_format", 0 },
	{ C("'structured_outputs':{'regex':'a'},'ignore_eos':true"), "structured_outputs.regex",
	  "does not go with ignore_eos", 0 },
	{ C("'structured_outputs':{'regex':'a'},'min_tokens':1,'max_tokens':2"), "structured_outputs.regex",
	  "does not go with min_tokens", 0 },
	{ C("'structured_outputs':{'regex':'a'},'echo':true"), "structured_outputs.regex",
	  "does not go with echo", 0 },
	{ C("'structured_outputs':{'regex':'a'},'use_beam_search':true"), "structured_outputs.regex",
	  "does not go with use_beam_search", 0 },
	BAD("guided_json", "{}", "guided_json is not supported: its name is now structured_outputs.json"),
	BAD("guided_regex", "'a'", "its name is now structured_outputs.regex"),
	BAD("guided_choice", "['a']", "its name is now structured_outputs.choice"),
	BAD("guided_grammar", "'a'", "its name is now structured_outputs.grammar"),
	BAD("guided_decoding_backend", "'x'", "guided_decoding_backend is not supported"),
	BAD("store", "true", "only false is"),
	BAD("verbosity", "'low'", "only \"medium\" is"),
	BAD("reasoning_effort", "'low'", "only \"none\" is"),
	BAD("prompt_cache_key", "5", "prompt_cache_key must be a string"),
	BAD("request_id", "'x'", "request_id is not supported"),
	BAD("service_tier", "'flex'", "only \"auto\" or \"default\" is"),
	BAD("modalities", "['audio']", "only [\"text\"] is"),
	BAD("return_token_ids", "true", "only false is"),
	BAD("metadata", "[]", "metadata must be an object"),
	BAD("logits_processors", "[]", "logits_processors is not supported"),
	BAD("max_completion_tokens", "0", "1 to"),
	BAD("top_logprobs", "5", "not supported by this endpoint"),
	BAD("prompt_logprobs", "21", "0 to 20"),
	BAD("prompt_logprobs", "-1", "0 to 20"),
	BAD("prompt_logprobs", "true", "an integer"),
	{ C("'prompt_logprobs':1,'stream':true"), "prompt_logprobs", "does not go with stream", 0 },
	{ C("'prompt_logprobs':0,'use_beam_search':true"), "prompt_logprobs", "use_beam_search", 0 },
	BAD("tokens", "[1]", "not supported by this endpoint"),
	{ C("'min_tokens':6,'max_tokens':5"), "min_tokens", "above max_tokens 5", 0 },
	{ C("'stream':true,'stream_options':{'chunk_size':true}"), "stream_options.chunk_size",
	  "not supported", 0 },
	{ C("'stream':true,'stream_options':{'include_usage':1}"), "stream_options.include_usage",
	  "true or false", 0 },
	{ C("'stream':true,'stream_options':true"), "stream_options", "must be an object", 0 },
	{ C("'length_penalty':2"), "length_penalty", "needs use_beam_search", 0 },
	{ C("'use_beam_search':true,'n':17"), "n", "1 to 16", 0 },
	{ C("'use_beam_search':true,'top_p':0.5"), "top_p", "does not go with use_beam_search", 0 },
	{ C("'use_beam_search':true,'temperature':1"), "temperature", "does not go", 0 },
	{ C("'use_beam_search':true,'stream':true"), "stream", "does not go", 0 },
	{ C("'use_beam_search':true,'logprobs':2"), "logprobs", "above 0 do not go", 0 },
	BAD("use_beam_search", "0", "true or false"),
	{ "{'prompt':['a','b','c','d','e','f','g','h','i'],'n':128}", "n", "9 prompts times n 128", 0 },
};

static void completion_refused(struct cairn_test *t)
{
	refused_all(t, CAIRN_API_COMPLETION, completion, ARRAY_SIZE(completion));
}

#define M(message) "{'messages':[" message "]}"
#define U "{'role':'user','content':'a'}"
#define CHAT(member) "{'messages':[" U "]," member "}"

static const struct bad chat[] = {
	{ "{}", "messages", "messages is missing", 0 },
	{ M(""), "messages", "1 to 4096 entries, has 0", 0 },
	{ "{'messages':5}", "messages", "an array", 0 },
	{ "{'prompt':'a'}", "prompt", "not supported by this endpoint", 0 },
	{ M("5"), "messages[0]", "must be an object", 0 },
	{ M("{}"), "messages[0].role", "is missing", 0 },
	{ M(U ",{'role':'user'}"), "messages[1].content", "is missing", 0 },
	{ M("{'role':'cook','content':'a'}"), "messages[0].role", "user, assistant or tool, is \"cook\"",
	  0 },
	{ M("{'role':7,'content':'a'}"), "messages[0].role", "string", 0 },
	{ M("{'role':'user','content':5}"), "messages[0].content", "a string or a list of texts", 0 },
	{ M("{'role':'user','content':null}"), "messages[0].content", "is null", 0 },
	{ M("{'role':'user','content':[]}"), "messages[0].content", "is empty", 0 },
	{ M("{'role':'user','content':[{'type':'image_url','image_url':{}}]}"), "messages[0].content[0]",
	  "only the type \"text\"", 0 },
	{ M("{'role':'user','content':[{'type':'text'}]}"), "messages[0].content[0]", "must have a text", 0 },
	{ M("{'role':'user','content':[{'type':'text','text':'a','x':1}]}"), "messages[0].content[0]",
	  "only a type and a text", 0 },
	{ M("{'role':'user','content':['a']}"), "messages[0].content[0]", "must be an object", 0 },
	{ M("{'role':'user','content':'a','tool_calls':[{}]}"), "messages[0].tool_calls", "not supported",
	  0 },
	{ M("{'role':'user','content':'a','name':5}"), "messages[0].name", "string", 0 },
	{ CHAT("'echo':true"), "echo", "not supported by this endpoint", 0 },
	{ CHAT("'logprobs':5"), "logprobs", "true or false", 0 },
	{ CHAT("'top_logprobs':5"), "top_logprobs", "needs logprobs", 0 },
	{ CHAT("'logprobs':true,'top_logprobs':21"), "top_logprobs", "0 to 20", 0 },
	{ CHAT("'logprobs':false,'top_logprobs':2"), "top_logprobs", "needs", 0 },
	{ CHAT("'top_logprobs':0.5"), "top_logprobs", "integer", 0 },
	{ CHAT("'use_beam_search':true,'logprobs':true,'top_logprobs':1"), "top_logprobs", "above 0", 0 },
	{ CHAT("'max_tokens':5,'max_completion_tokens':6"), "max_tokens", "does not go with", 0 },
	{ CHAT("'max_tokens':5.0,'max_completion_tokens':6"), "max_tokens", "does not go with", 0 },
	{ CHAT("'max_completion_tokens':0"), "max_completion_tokens", "1 to", 0 },
	{ CHAT("'chat_template':'x'"), "chat_template", "not supported", 0 },
	{ CHAT("'tool_choice':'required'"), "tool_choice", "needs tools", 0 },
	{ CHAT("'chat_template_kwargs':[]"), "chat_template_kwargs", "an object", 0 },
	{ CHAT("'chat_template_kwargs':{'messages':1}"), "chat_template_kwargs.messages", "not supported",
	  0 },
	{ CHAT("'chat_template_kwargs':{'bos_token':'x'}"), "chat_template_kwargs.bos_token", "not supported",
	  0 },
	{ CHAT("'chat_template_kwargs':{'a':[1]}"), "chat_template_kwargs.a", "a text, a number", 0 },
	{ CHAT("'add_generation_prompt':'x'"), "add_generation_prompt", "true or false", 0 },
};

static void chat_refused(struct cairn_test *t)
{
	refused_all(t, CAIRN_API_CHAT, chat, ARRAY_SIZE(chat));
}

static const struct bad tokens[] = {
	{ "{}", "tokens", "missing", 0 },
	{ "{'tokens':5}", "tokens", "an array", 0 },
	{ "{'tokens':[1000]}", "tokens", "token id 1000", 0 },
	{ "{'tokens':['a']}", "tokens", "token ids", 0 },
	{ "{'tokens':[1],'n':2}", "n", "not supported by this endpoint", 0 },
};

static const struct bad texts[] = {
	{ "{}", "prompt", "missing", 0 },
	{ "{'prompt':'a','messages':[" U "]}", "messages", "does not go with prompt", 0 },
	{ "{'prompt':['a','b']}", "prompt", "one text", 0 },
	{ "{'prompt':[5]}", "prompt", "one text", 0 },
	{ "{'prompt':'a','temperature':1}", "temperature", "not supported by this endpoint", 0 },
	{ "{'prompt':'a','add_generation_prompt':true}", "add_generation_prompt", "does not go with prompt",
	  0 },
};

static void tokenize_refused(struct cairn_test *t)
{
	refused_all(t, CAIRN_API_DETOKENIZE, tokens, ARRAY_SIZE(tokens));
	refused_all(t, CAIRN_API_TOKENIZE, texts, ARRAY_SIZE(texts));
}

/* Builds bodies that are too long or too deep for a literal: head, unit repeated `times`, tail. */
static void large_ones(struct cairn_test *t)
{
	static const struct {
		const char *head, *unit, *tail, *param, *message;
		size_t times;
		int status;
	} rows[] = {
		{ "{'prompt':'a','x':", "[", "1", "", "deeper than 64", 64, 400 },
		{ "", "[", "", "", "deeper than 64", 1000000, 400 },
		{ "{'prompt':'", "aaaaaaaa", "'}", "", "at most 8388608", 1 << 20, 413 },
		{ "{'prompt':'a','stop':'", "x", "'}", "stop", "1048576 bytes", 1 << 20, 400 },
		{ "{'prompt':[1", ",1", "]}", "", "more than 1048576 values", 1 << 20, 413 },
		/* values that no comma separates: each bracket is one */
		{ "{'prompt':[1", ",{'x':{'x':[[]]}}", "]}", "", "more than 1048576 values", 1 << 18, 413 },
		{ "{'prompt':['a'", ",'a'", "]}", "prompt", "257 prompts", 256, 400 },
		{ "{'messages':[" U, "," U, "]}", "messages", "1 to 4096 entries, has 4097", 4096, 400 },
		{ "{'prompt':'a','user':'", "u", "'}", "user", "has 1025", 1025, 400 },
		{ "{'prompt':'a','", "u", "':1}", "uuu", "is not a parameter", 5000, 400 },
	};
	struct cairn_api_request r = { 0 };
	struct cairn_api_error e;

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		size_t head = strlen(rows[i].head), unit = strlen(rows[i].unit);
		char *body = malloc(head + unit * rows[i].times + strlen(rows[i].tail) + 1);

		if (!EXPECT(t, body != NULL))
			return;
		strcpy(body, rows[i].head);
		for (size_t k = 0; k < rows[i].times; k++)
			memcpy(body + head + k * unit, rows[i].unit, unit);
		strcpy(body + head + rows[i].times * unit, rows[i].tail);
		if (!EXPECT(t, parse(strstr(rows[i].head, "messages") ? CAIRN_API_CHAT : CAIRN_API_COMPLETION,
				     body, &r, &e) < 0 &&
				       e.status == rows[i].status &&
				       !strncmp(e.param, rows[i].param, strlen(rows[i].param))) ||
		    !EXPECT_CONTAINS(t, e.message, rows[i].message))
			cairn_note(t, "%zu: %d '%s' %s", i, e.status, e.param, e.message);
		free(body);
	}
}

static const struct cairn_unit units[] = {
	{ "completion_refused", completion_refused },
	{ "chat_refused", chat_refused },
	{ "tokenize_refused", tokenize_refused },
	{ "large_ones", large_ones },
};

const struct cairn_family cairn_api_request_family = {
	.stage = "serving",
	.name = "api_request",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
