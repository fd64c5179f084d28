// SPDX-License-Identifier: Apache-2.0
/* tool_grammar_test - grammars of forced calls, whose tools a client defines, perhaps with bad intent */
#include "conformance/harness.h"
#include "primitives/base/error.h"
#include "serving/formats/output_parser_test.h"

/* A tokenizer with one special token. Counts the bytes that are looked up. */
static int32_t token(void *ctx, const char *s, size_t n)
{
	*(size_t *)ctx += n;
	return n == 6 && !memcmp(s, "[ARGS]", 6) ? 101 : -1;
}

#define STYLE                                                                              \
	"\"x-guidance\":{\"whitespace_flexible\":false,\"item_separator\":\", "            \
	"\",\"key_separator\":\": \"}"

/* Checks the rules of a parameter with this schema: text up to the closing mark, choices, or JSON. */
static void check_value(struct cairn_test *t, json_t *schema, const char *want)
{
	json_t *tools = json_pack("[{s:o}]", "function", function_with(schema));
	size_t looked_up = 0;
	struct cairn_tool_grammar g = { .token = token, .ctx = &looked_up, .tools = tools };
	struct cairn_api_out out = { 0 };
	const char *rule;

	EXPECT(t, !cairn_tool_format_find("qwen3_coder", NULL, &g.format) && !cairn_tool_grammar(&g, &out));
	rule = out.s ? strstr(out.s, " v0_0") : NULL;
	if (!EXPECT(t, rule && !strncmp(rule, want, strlen(want))))
		cairn_note(t, "want%s\ngot%s", want, rule ? rule : " nothing");
	cairn_api_out_free(&out);
	json_decref(tools);
}

/* Bare text is for schemas that allow strings; it may end anywhere unless there are choices. */
static void values(struct cairn_test *t)
{
#define TEXT	  " v0_0 \"\\n\"\nv0_0[suffix=\"\\n</parameter>\"]: /(?s:.*)/\n"
#define CHOICE(s) " v0_0 \"\\n</parameter>\" \"\\n\"\nv0_0: " s
#define JSON(s)	  CHOICE("%json {" s "," STYLE)
	static const struct {
		const char *schema, *want;
	} rows[] = {
		{ "{\"type\": \"string\"}", TEXT },
		{ "{\"type\": [\"string\", \"null\"]}", TEXT },
		{ "{\"anyOf\": [{\"type\": \"integer\"}, {\"type\": \"string\"}]}", TEXT },
		{ "{}", TEXT },
		{ "true", TEXT },
		{ "{\"enum\": []}", TEXT },
		{ "{\"$ref\": \"#/$defs/itself\"}", TEXT },
		{ "{\"type\": \"string\", \"enum\": [\"a\", \"b\"]}", CHOICE("\"a\" | \"b\"\n") },
		{ "{\"enum\": [\"a\", 7]}", CHOICE("\"a\" | \"7\"\n") },
		{ "{\"enum\": [\"a\", null, true, {\"b\": [1, 2]}]}",
		  CHOICE("\"a\" | \"null\" | \"true\" | \"{\\\"b\\\": [1, 2]}\"\n") },
		{ "{\"const\": \"a\"}", CHOICE("\"a\"\n") },
		{ "{\"$ref\": \"#/$defs/color\"}", CHOICE("\"red\" | \"7\"\n") },
		{ "{\"anyOf\": [{\"$ref\": \"#/$defs/color\"}, {\"type\": \"null\"}]}",
		  CHOICE("\"red\" | \"7\" | \"null\"\n") },
		{ "{\"oneOf\": [{\"const\": \"a\"}, {\"const\": 7, \"title\": \"b\"}, "
		  "{\"type\": \"boolean\"}]}",
		  CHOICE("\"a\" | \"7\" | \"true\" | \"false\"\n") },
		{ "{\"anyOf\": [{\"oneOf\": [{\"enum\": [\"a\"]}, {\"const\": \"b\"}]}, "
		  "{\"type\": \"null\"}]}",
		  CHOICE("\"a\" | \"b\" | \"null\"\n") },
		{ "{\"anyOf\": [{\"enum\": [\"a\"]}, {\"type\": \"integer\"}]}", TEXT },
		{ "{\"anyOf\": [{\"type\": \"null\"}, {\"type\": \"string\"}]}", TEXT },
		{ "{\"anyOf\": [{\"enum\": [\"a\"]}, {}]}", TEXT },
		{ "{\"anyOf\": [{\"enum\": [\"a\"]}, {\"$ref\": \"#/$defs/itself\"}]}", TEXT },
		{ "{\"type\": \"string\", \"anyOf\": [{\"enum\": [\"a\"]}, {\"enum\": [7]}]}", TEXT },
		{ "{\"enum\": [1, 2, 3]}", JSON("\"enum\":[1,2,3]") },
		{ "{\"enum\": [true, null]}", JSON("\"enum\":[true,null]") },
		{ "{\"const\": 5}", JSON("\"const\":5") },
		{ "{\"type\": [\"integer\", \"null\"]}", JSON("\"type\":[\"integer\",\"null\"]") },
		{ "{\"anyOf\": [{\"type\": \"integer\"}, {\"type\": \"null\"}]}",
		  JSON("\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"null\"}]") },
		{ "{\"allOf\": [{\"type\": \"integer\"}]}", JSON("\"allOf\":[{\"type\":\"integer\"}]") },
		{ "{\"$ref\": \"#/$defs/point\"}",
		  JSON("\"$ref\":\"#/$defs/point\"") ",\"$defs\":{\"color\":" },
	};

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		json_t *schema = json_loads(rows[i].schema, JSON_DECODE_ANY, NULL);

		check_value(t, schema, rows[i].want);
		json_decref(schema);
	}
}

/* Returns tools with one function, whose parameters have these properties. */
static json_t *tools_with(json_t *properties, json_t *required)
{
	return json_pack("[{s:{s:s,s:{s:o,s:o}}}]", "function", "name", "f", "parameters", "properties",
			 properties, "required", required);
}

/* A client's name of a property is text to the model, and is never searched for special tokens. */
static void property_names(struct cairn_test *t)
{
	char angles[3000] = "", want[3100];
	const char *const names[] = { "k", angles, "[ARGS]" };
	size_t looked_up[ARRAY_SIZE(names)] = { 0 };

	memset(angles, '<', sizeof(angles) - 1);
	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		json_t *tools = tools_with(json_pack("{s:{s:s}}", names[i], "type", "string"), json_array());
		struct cairn_tool_grammar g = { .token = token, .ctx = &looked_up[i], .tools = tools };
		struct cairn_api_out out = { 0 };

		EXPECT(t, !cairn_tool_format_find("qwen3_coder", NULL, &g.format) &&
				  !cairn_tool_grammar(&g, &out));
		snprintf(want, sizeof(want), "\"<parameter=\" \"%s\" \">\\n\"", names[i]);
		EXPECT_CONTAINS(t, out.s, want);
		if (!EXPECT(t, looked_up[i] == looked_up[0]))
			cairn_note(t, "%.10s: %zu bytes looked up, %zu for a plain name", names[i],
				   looked_up[i], looked_up[0]);
		cairn_api_out_free(&out);
		json_decref(tools);
	}
}

/* A grammar that is too long is given up early, however many properties and required ones follow. */
static void too_many_properties(struct cairn_test *t)
{
	json_t *properties = json_object(), *required = json_array(), *absent = json_string("absent"), *tools;
	size_t looked_up = 0;
	struct cairn_tool_grammar g = { .token = token, .ctx = &looked_up };
	struct cairn_api_out out = { 0 };
	char name[16];

	for (int i = 0; i < 60000; i++) {
		snprintf(name, sizeof(name), "k%d", i);
		json_object_set_new(properties, name, json_object());
	}
	for (int i = 0; i < 1000000; i++)
		json_array_append(required, absent);
	tools = tools_with(properties, required);
	g.tools = tools;
	EXPECT(t, !cairn_tool_format_find("glm45", NULL, &g.format) &&
			  cairn_tool_grammar(&g, &out) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "at most 65536");
	EXPECT(t, out.len < 2 * 65536);
	cairn_api_out_free(&out);
	json_decref(tools);
	json_decref(absent);
}

static const struct cairn_unit units[] = {
	{ "values", values },
	{ "property_names", property_names },
	{ "too_many_properties", too_many_properties },
};

const struct cairn_family cairn_tool_grammar_family = {
	.stage = "serving",
	.name = "tool_grammar",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
