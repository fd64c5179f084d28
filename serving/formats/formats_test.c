// SPDX-License-Identifier: Apache-2.0
/* formats_test - finding formats, values of parameters, and grammars */
#include "conformance/harness.h"
#include "primitives/base/error.h"
#include "serving/formats/output_parser_test.h"

static void find(struct cairn_test *t)
{
	static const struct {
		const char *name, *source, *want;
	} rows[] = {
		{ "hermes", NULL, "hermes" },
		{ "qwen3_xml", NULL, "qwen3_coder" },
		{ "none", "<tool_call>", NULL },
		{ "auto", NULL, NULL },
		{ "auto", "{{ messages }}", NULL },
		{ "auto", "'<tool_call>' '</tool_call>' <think>", "hermes" },
		{ "auto", "<tool_call>\\n<function= <parameter= </tool_call>",
		  "qwen3_coder" },
		{ "auto", "<tool_call> <arg_key> <arg_value> </tool_call>", "glm45" },
		{ "auto", "<｜tool▁calls▁begin｜><｜tool▁sep｜>```json", "deepseek_v3" },
		{ "auto", "<｜tool▁calls▁begin｜><｜tool▁sep｜>", "deepseek_v31" },
		{ "auto", "<|start_header_id|> '\"parameters\": '", "llama3_json" },
		{ "auto", "[TOOL_CALLS]", "mistral" },
		{ "auto", "<|channel|><|message|>functions.", "openai" },
		{ "auto", "<|tool_calls_section_begin|><|tool_call_argument_begin|>",
		  "kimi_k2" },
	};
	const struct cairn_reasoning_format *r;
	const struct cairn_tool_format *f;

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		EXPECT(t, !cairn_tool_format_find(rows[i].name, rows[i].source, &f));
		if (!EXPECT(t,
			    !f == !rows[i].want && (!f || !strcmp(f->name, rows[i].want))))
			cairn_note(t, "row %zu: %s", i, f ? f->name : "none");
	}
	EXPECT(t, cairn_tool_format_find("nope\n", NULL, &f) == -EINVAL &&
			  strstr(cairn_last_error(), "hermes") &&
			  strstr(cairn_last_error(), "llama3_json") &&
			  !strchr(cairn_last_error(), '\n'));
	EXPECT(t, cairn_reasoning_format_find("nope", NULL, &r) == -EINVAL &&
			  strstr(cairn_last_error(), "qwen3"));
	EXPECT(t, !cairn_reasoning_format_find("auto", "x</think>", &r) && r && r->begun);
	EXPECT(t, !cairn_reasoning_format_find("auto", "<think></think>", &r) && r &&
			  !r->begun);
	EXPECT(t, !cairn_reasoning_format_find("auto", "text", &r) && !r);
}

static void marks(struct cairn_test *t)
{
	const struct cairn_reasoning_format *r;
	const struct cairn_tool_format *f;

	EXPECT(t, !cairn_tool_format_find("mistral", NULL, &f) &&
			  !cairn_reasoning_format_find("qwen3", NULL, &r));
	EXPECT(t, cairn_formats_have(f, NULL, "[TOOL_CALLS]") &&
			  cairn_formats_have(f, r, "</think>"));
	EXPECT(t, !cairn_formats_have(f, NULL, "</s>") && !cairn_formats_have(f, NULL, ""));
	EXPECT(t, !cairn_formats_have(NULL, NULL, "<think>"));
	EXPECT(t, !cairn_tool_format_find("openai", NULL, &f) &&
			  cairn_formats_have(f, NULL, "<|return|>"));
	EXPECT(t, !cairn_formats_have(f, NULL, "<|endoftext|>"));
}

/* The JSON of a value depends on the types that its schema allows, of which the outline says the same. */
static void parameters(struct cairn_test *t)
{
#define BIG "123456789012345678901234567890"	/* more than 64 bits */
	static const struct {
		const char *schema, *value, *want;
	} rows[] = {
		{ "{\"type\": \"string\"}", "12", "\"12\"" },
		{ "{\"type\": \"string\"}", "null", "\"null\"" },
		{ "{\"type\": \"integer\"}", "12", "12" },
		{ "{\"type\": \"integer\"}", "1.5", "\"1.5\"" },
		{ "{\"type\": \"integer\"}", "-" BIG, "-" BIG },
		{ "{\"type\": \"number\"}", BIG, BIG },
		{ "{}", BIG, BIG },
		{ "{\"type\": \"string\"}", BIG, "\"" BIG "\"" },
		{ "{\"type\": \"boolean\"}", BIG, "\"" BIG "\"" },
		{ "{\"type\": \"integer\"}", "-", "\"-\"" },
		{ "{\"type\": \"integer\"}", "007", "\"007\"" },
		{ "{\"type\": \"integer\"}", "0", "0" },
		{ "{\"type\": \"integer\"}", "1\"", "\"1\\\"\"" },
		{ "{\"type\": \"number\"}", "3", "3" },
		{ "{\"type\": \"number\"}", "1e3", "1e3" },
		{ "{\"type\": \"number\"}", "1e999", "\"1e999\"" },
		{ "{\"type\": \"boolean\"}", "True", "true" },
		{ "{\"type\": \"boolean\"}", "yes", "\"yes\"" },
		{ "{\"type\": \"object\"}", "{\"a\": 1}", "{\"a\": 1}" },
		{ "{\"type\": \"object\"}", "{\"a\": 1", "\"{\\\"a\\\": 1\"" },
		{ "{\"type\": \"array\"}", "[1, 2]", "[1, 2]" },
		{ "{\"type\": [\"string\", \"null\"]}", "None", "null" },
		{ "{\"type\": [\"string\", \"null\"]}", "true", "\"true\"" },
		{ "{\"anyOf\": [{\"type\": \"integer\"}, {\"type\": \"null\"}]}", "null",
		  "null" },
		{ "{\"anyOf\": [{\"type\": \"integer\"}, {\"type\": \"null\"}]}", "7",
		  "7" },
		{ "{\"enum\": [\"a\", \"b\"]}", "1", "\"1\"" },
		{ "{\"const\": 3}", "3", "3" },
		{ "true", "[1]", "[1]" },
		{ "{\"type\": \"odd\"}", "x", "\"x\"" },
		{ "{}", "", "\"\"" },
		{ "{}", "False", "false" },
		{ "{}", "two words", "\"two words\"" },
		/* an enum of strings and others: a text that is none of the strings is another */
		{ "{\"enum\": [\"a\", 7]}", "7", "7" },
		{ "{\"enum\": [\"a\", 7]}", "a", "\"a\"" },
		{ "{\"enum\": [\"a\", 7]}", "b", "\"b\"" },
		{ "{\"enum\": [\"7\", 7]}", "7", "\"7\"" },
		{ "{\"enum\": [\"a\", true]}", "True", "true" },
		{ "{\"enum\": [\"a\", {\"b\": 1}]}", "{\"b\": 1}", "{\"b\": 1}" },
		{ "{\"type\": [\"string\", \"null\"], \"enum\": [\"a\", null]}", "null", "null" },
		{ "{\"type\": \"string\", \"enum\": [\"7\"]}", "8", "\"8\"" },
		{ "{\"$ref\": \"#/$defs/color\"}", "7", "\"7\"" },
		{ "{\"$ref\": \"#/$defs/color\"}", "null", "\"null\"" },
		{ "{\"$ref\": \"#/definitions/point\"}", "{\"x\": 1}", "{\"x\": 1}" },
		{ "{\"$ref\": \"#/definitions/point\"}", "12", "\"12\"" },
		{ "{\"anyOf\": [{\"$ref\": \"#/$defs/color\"}, {\"type\": \"null\"}]}", "12", "\"12\"" },
		{ "{\"anyOf\": [{\"$ref\": \"#/$defs/color\"}, {\"type\": \"null\"}]}", "None", "null" },
		{ "{\"anyOf\": [{\"$ref\": \"#/$defs/color\"}, {\"const\": 7.5}]}", "7", "\"7\"" },
		{ "{\"anyOf\": [{\"$ref\": \"#/$defs/color\"}, {\"const\": 8}]}", "8", "8" },
		{ "{\"oneOf\": [{\"const\": \"a\"}, {\"type\": \"boolean\"}]}", "True", "true" },
		{ "{\"oneOf\": [{\"const\": \"true\"}, {\"type\": \"boolean\"}]}", "true", "\"true\"" },
		{ "{\"anyOf\": [{\"enum\": [\"a\"]}, {\"type\": \"integer\"}]}", "7", "\"7\"" },
		{ "{\"allOf\": [{\"$ref\": \"#/$defs/color\"}]}", "12", "\"12\"" },
		{ "{\"allOf\": [{\"type\": \"string\"}, {\"type\": \"null\"}]}", "12", "12" },
		{ "{\"$ref\": \"#/$defs/itself\"}", "12", "12" },
		{ "{\"$ref\": \"#/$defs/absent\"}", "12", "12" },
		{ "{\"enum\": [0.5]}", "2", "2" },
		{ "{\"enum\": [0.5]}", "x", "\"x\"" },
	};
	const struct cairn_tool_format *format;

	if (!EXPECT(t, !cairn_tool_format_find("qwen3_coder", NULL, &format)))
		return;

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		json_t *schema = json_loads(rows[i].schema, JSON_DECODE_ANY, NULL);
		json_t *function = function_with(schema);
		json_t *tools = json_pack("[{s:O}]", "function", function), *outline;

		outline = cairn_tool_outline(format, tools);
		for (int k = 0; k < 2; k++) {
			struct cairn_api_out out = { 0 };

			cairn_parameter_json(&out, cairn_tool_find(k ? outline : tools, "f", 1), "k", 1,
					     rows[i].value, strlen(rows[i].value));
			if (!EXPECT(t, out.s && !strcmp(out.s, rows[i].want)))
				cairn_note(t, "row %zu, %s: %s", i, k ? "outline" : "tools", out.s);
			cairn_api_out_free(&out);
		}
		json_decref(outline);
		json_decref(tools);
		json_decref(function);
		json_decref(schema);
	}
}

/* Unions of 3000 unions each, which refer to each other, take few steps. */
static void wide_unions(struct cairn_test *t)
{
	json_t *list = json_array(), *function = function_with(json_true()), *parameters;
	json_t *wide = json_pack("{s:s}", "$ref", "#/$defs/wide");
	struct cairn_api_out out = { 0 };

	for (int i = 0; i < 3000; i++)
		json_array_append(list, wide);
	parameters = json_object_get(function, "parameters");
	json_object_set_new(json_object_get(parameters, "$defs"), "wide", json_pack("{s:o}", "anyOf", list));
	json_object_set_new(json_object_get(parameters, "properties"), "k", wide);
	cairn_parameter_json(&out, function, "k", 1, "12", 2);
	EXPECT(t, out.s && !strcmp(out.s, "12"));
	cairn_api_out_free(&out);
	json_decref(function);
}

/* The outline leaves out what parsers do not read, and no request makes it large. */
static void outline(struct cairn_test *t)
{
	json_t *properties = json_object(), *tools, *list;
	const struct cairn_tool_format *format;
	char key[16];

	for (int i = 0; i < 2 * CAIRN_MAX_TYPED; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		json_object_set_new(properties, key, json_pack("{s:s,s:s}", "type", "integer", "title", "x"));
	}
	tools = json_pack("[{s:s,s:{s:s,s:s,s:{s:o}}}]", "type", "function", "function", "name", "f",
			  "description", "d", "parameters", "properties", properties);
	for (int typed = 0; typed < 2; typed++) {
		const json_t *function;

		EXPECT(t, !cairn_tool_format_find(typed ? "qwen3_coder" : "hermes", NULL, &format));
		list = cairn_tool_outline(format, tools);
		function = cairn_tool_find(list, "f", 1);
		EXPECT(t, function && json_object_size(function) == 2);
		properties = json_object_get(json_object_get(function, "parameters"), "properties");
		EXPECT(t, json_object_size(properties) == (typed ? CAIRN_MAX_TYPED : 0));
		EXPECT(t, !typed || json_object_size(json_object_get(properties, "k0")) == 1);
		json_decref(list);
	}
	json_decref(tools);
}

/* A tokenizer in which a few marks are special. */
static int32_t token(void *ctx, const char *s, size_t n)
{
	static const char *const special[] = { "[TOOL_CALLS]",	     "[ARGS]",
					       "<|channel|>",	     "<|message|>",
					       "<|call|>",	     "<|end|>",
					       "<|start|>",	     "<|constrain|>",
					       "<|tool_call_begin|>" };

	for (int i = 0; i < (ctx ? (int)ARRAY_SIZE(special) : 0); i++) {
		if (strlen(special[i]) == n && !memcmp(special[i], s, n))
			return 100 + i;
	}
	return -1;
}

#define STYLE                                                                              \
	"\"x-guidance\":{\"whitespace_flexible\":false,\"item_separator\":\", "            \
	"\",\"key_separator\":\": \"}"
#define CITY                                                                               \
	"{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"},\"days\":{"   \
	"\"type\":\"integer\"}},"                                                          \
	"\"required\":[\"city\"]," STYLE "}"

static void grammars(struct cairn_test *t)
{
	static const struct {
		const char *format, *reasoning, *name;
		bool special, reasons, parallel;
		const char *want;
	} rows[] = {
		{ "hermes", "none", "weather", false, false, false,
		  "start: reasoning call\nreasoning: \"\"\ncall: call1\n"
		  "call1: \"<tool_call>\\n\" \"{\\\"name\\\": \\\"weather\\\", "
		  "\\\"arguments\\\": \" args1 \"}\" "
		  "\"\\n</tool_call>\"\nargs1: %json " CITY "\n\n" },
		{ "hermes", "qwen3", NULL, false, false, true,
		  "start: reasoning call ( \"\\n\" call)*\nreasoning: ( \"<think>\" think "
		  "/[ \\n]{0,4}/)?\n"
		  "think[suffix=\"</think>\"]: /(?s:.*)/\ncall: call0 | call1\n" },
		{ "hermes", "qwen3", NULL, false, true, true,
		  "\nreasoning: think /[ \\n]{0,4}/\n" },
		{ "mistral", "none", "f", true, false, true,
		  "start: reasoning call ( call)*\nreasoning: \"\"\ncall: call0\n"
		  "call0: <[100]> \"f\" <[101]> args0\nargs0: %json {" STYLE
		  ",\"type\":\"object\"}\n" },
		{ "mistral", "none", "f", false, false, true,
		  "start: reasoning \"[TOOL_CALLS] [\" call ( \", \" call)* \"]\"\n" },
		{ "qwen3_coder", "none", "weather", false, false, false,
		  "args1: p1_0 p1_1?\np1_0: \"<parameter=\" \"city\" \">\\n\" v1_0 "
		  "\"\\n\"\n"
		  "v1_0[suffix=\"\\n</parameter>\"]: /(?s:.*)/\n"
		  "p1_1: \"<parameter=\" \"days\" \">\\n\" v1_1 \"\\n</parameter>\" "
		  "\"\\n\"\nv1_1: %json "
		  "{\"type\":\"integer\"," STYLE "}\n" },
		{ "openai", "openai_gptoss", "f", true, false, true,
		  "start: reasoning call\nreasoning: ( <[102]> \"analysis\" <[103]> think "
		  "<[106]> \"assistant\")?\n"
		  "think: /(?s:.*)/ <[105]>\ncall: call0\n"
		  "call0: <[102]> \"commentary to=functions.\" \"f\" \" \" <[107]> "
		  "\"json\" <[103]> args0 <[104]>\n" },
		{ "kimi_k2", "none", "f", false, false, false,
		  "call0: \"<|tool_call_begin|>functions.\" \"f\" \":\" /[0-9]{1,3}/ "
		  "\"<|tool_call_argument_begin|>\" "
		  "args0 \"<|tool_call_end|>\"" },
	};
	json_t *tools = test_tools();

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		struct cairn_tool_grammar g = { .tools = tools,
						.name = rows[i].name,
						.token = token,
						.parallel = rows[i].parallel,
						.reasons = rows[i].reasons,
						.ctx = rows[i].special ? tools : NULL };
		struct cairn_api_out out = { 0 };

		EXPECT(t, !cairn_tool_format_find(rows[i].format, NULL, &g.format) &&
				  !cairn_reasoning_format_find(rows[i].reasoning, NULL,
							       &g.reasoning));
		if (!EXPECT(t,
			    !cairn_tool_grammar(&g, &out) && strstr(out.s, rows[i].want)))
			cairn_note(t, "row %zu:\n%s", i, out.s);
		out.len = 0;
		g.name = "absent";
		EXPECT(t, cairn_tool_grammar(&g, &out) == -ENOENT);
		cairn_api_out_free(&out);
	}
	json_decref(tools);
}

static const struct cairn_unit units[] = {
	{ "find", find },
	{ "marks", marks },
	{ "parameters", parameters },
	{ "wide_unions", wide_unions },
	{ "outline", outline },
	{ "grammars", grammars },
};

const struct cairn_family cairn_formats_family = {
	.stage = "serving",
	.name = "formats",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
