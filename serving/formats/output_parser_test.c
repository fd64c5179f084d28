// SPDX-License-Identifier: Apache-2.0
/*
 * output_parser_test - answers in every format, and answers in none
 *
 * Every answer is parsed whole, byte by byte, and cut in two at every position; all these runs must give the
 * same pieces, written as R(reasoning) C(content) N(name) A(arguments).
 */
#include "conformance/harness.h"
#include "serving/formats/output_parser_test.h"

#define WEATHER "{\"city\": \"Paris\"}"
#define HERMES(name, args)                                                                 \
	"<tool_call>\n{\"name\": \"" name "\", \"arguments\": " args "}\n</tool_call>"
#define DS3(name, args)                                                                    \
	"<｜tool▁call▁begin｜>function<｜tool▁sep｜>" name "\n```json\n" args              \
	"\n```<｜tool▁call▁end｜>"
#define DS31(name, args)                                                                   \
	"<｜tool▁call▁begin｜>" name "<｜tool▁sep｜>" args "<｜tool▁call▁end｜>"
#define KIMI(name, n, args)                                                                \
	"<|tool_call_begin|>functions." name ":" n "<|tool_call_argument_begin|>" args     \
	"<|tool_call_end|>"

static const struct row {
	const char *tools, *reasoning, *text, *want;
	enum cairn_prompt_end prompt;
} rows[] = {
	/* no format: everything is content */
	{ "none", "none", HERMES("f", "{}"), "C(" HERMES("f", "{}") ")", 0 },
	{ "none", "none", " <think>\n", "C( <think>\n)", 0 },

	{ "hermes", "none", HERMES("weather", WEATHER), "N(weather)A(" WEATHER ")", 0 },
	{ "hermes", "none",
	  "Let me look.\n" HERMES("weather", WEATHER) "\n" HERMES("f", "{}") "\n",
	  "C(Let me look.)N(weather)A(" WEATHER ")N(f)A({})", 0 },
	{ "hermes", "none",
	  "<tool_call>{\"arguments\": {\"a\": \"}\"}, \"name\": \"f\"}</tool_call> ok",
	  "N(f)A({\"a\": \"}\"})C( ok)", 0 },
	{ "hermes", "none", "<tool_call>{\"name\": \"f\"}</tool_call>", "N(f)A({})", 0 },
	{ "hermes", "none",
	  "<tool_call>\n{\"id\": 1, \"name\": \"f\", \"arguments\": {}, \"x\": [1, "
	  "{}]}\n</tool_call>",
	  "N(f)A({})", 0 },
	{ "hermes", "none", HERMES("f", "{\"s\": \"\\\"}</tool_call>\\\\\"}") "!",
	  "N(f)A({\"s\": \"\\\"}</tool_call>\\\\\"})C(!)", 0 },
	{ "hermes", "none", "a < b <tool> <tool_call <tool_call>",
	  "C(a < b <tool> <tool_call <tool_call>)", 0 },
	{ "hermes", "none", "<tool_call>\nnot JSON\n</tool_call>",
	  "C(<tool_call>\nnot JSON\n</tool_call>)", 0 },
	{ "hermes", "none", HERMES("f", "\"text\""), "C(" HERMES("f", "\"text\"") ")", 0 },
	{ "hermes", "none", HERMES("no name", "{}"), "C(" HERMES("no name", "{}") ")", 0 },
	{ "hermes", "none", "<tool_call>\n{\"arguments\": {}}\n</tool_call>",
	  "C(<tool_call>\n{\"arguments\": {}}\n</tool_call>)", 0 },
	{ "hermes", "none", "<tool_call>\n<tool_call>\n" HERMES("f", "{}"),
	  "C(<tool_call>\n<tool_call>)N(f)A({})", 0 },
	/* cut by max_tokens: in the head, in the arguments, in the closing mark */
	{ "hermes", "none", "<tool_call>\n{\"name\": \"f", "C(<tool_call>\n{\"name\": \"f)",
	  0 },
	{ "hermes", "none", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1",
	  "N(f)A({\"a\": [1)", 0 },
	{ "hermes", "none", "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool",
	  "N(f)A({})", 0 },
	{ "hermes", "none", "<tool_call>\n{\"name\": \"f\", \"arguments\": {}, oops",
	  "N(f)A({})C(, oops)", 0 },
	{ "hermes", "none", "text \n ", "C(text \n )", 0 },

	{ "qwen3_coder", "none",
	  "I "
	  "look.\n\n<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</"
	  "parameter>\n<parameter=days>\n3\n"
	  "</parameter>\n</function>\n</tool_call>",
	  "C(I look.)N(weather)A({\"city\": \"Paris\", \"days\": 3})", 0 },
	{ "qwen3_xml", "none",
	  "<tool_call>\n<function=weather>\n<parameter=city>\n  "
	  "two\n\nlines\n\n</parameter>\n</function>\n</tool_call>",
	  "N(weather)A({\"city\": \"  two\\n\\nlines\\n\"})", 0 },
	{ "qwen3_coder", "none", "<tool_call>\n<function=f>\n</function>\n</tool_call>",
	  "N(f)A({})", 0 },
	{ "qwen3_coder", "none",
	  "<tool_call><function=f><parameter=a>{\"x\": "
	  "[1]}</parameter><parameter=b>True</parameter></function></tool_call>",
	  "N(f)A({\"a\": {\"x\": [1]}, \"b\": true})", 0 },
	{ "qwen3_coder", "none", "<tool_call>\n<function=f>\n<parameter=a>\n1\n</param",
	  "N(f)A()", 0 },
	{ "qwen3_coder", "none", "<tool_call>\n{\"name\": \"f\"}",
	  "C(<tool_call>\n{\"name\": \"f\"})", 0 },

	{ "glm45", "none",
	  "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</"
	  "arg_value>\n<arg_key>days</arg_key>\n"
	  "<arg_value>2</arg_value>\n</tool_call>\n<tool_call>f\n</tool_call>",
	  "N(weather)A({\"city\": \"Paris\", \"days\": 2})N(f)A({})", 0 },
	{ "glm45", "none",
	  "<tool_call>weather<arg_key>city</arg_key><arg_value>\nRome\n</arg_value></"
	  "tool_call>",
	  "N(weather)A({\"city\": \"\\nRome\\n\"})", 0 },

	{ "llama3_json", "none", "{\"name\": \"weather\", \"parameters\": " WEATHER "}",
	  "N(weather)A(" WEATHER ")", 0 },
	{ "llama3_json", "none",
	  "{\"name\": \"weather\", \"parameters\": {}}; {\"name\": \"f\", \"parameters\": "
	  "{}}",
	  "N(weather)A({})N(f)A({})", 0 },
	{ "llama3_json", "none", "<|python_tag|>{\"name\": \"other\", \"parameters\": {}}",
	  "N(other)A({})", 0 },
	{ "llama3_json", "none", "{\"name\": \"Bob\", \"parameters\": {}}",
	  "C({\"name\": \"Bob\", \"parameters\": {}})", 0 },
	{ "llama3_json", "none", "Call {\"name\": \"f\", \"parameters\": {}}",
	  "C(Call {\"name\": \"f\", \"parameters\": {}})", 0 },
	{ "llama3_json", "none", "{\"answer\": 42}", "C({\"answer\": 42})", 0 },

	{ "mistral", "none",
	  "[TOOL_CALLS][{\"name\": \"weather\", \"arguments\": " WEATHER
	  "}, {\"name\": \"f\", "
	  "\"arguments\": {}}]",
	  "N(weather)A(" WEATHER ")N(f)A({})", 0 },
	{ "mistral", "none",
	  "[TOOL_CALLS] [ {\"name\": \"f\", \"arguments\": {}, \"id\": \"abcdefghi\"} ] x",
	  "N(f)A({})C( x)", 0 },
	{ "mistral", "none",
	  "[TOOL_CALLS]weather[ARGS]" WEATHER "[TOOL_CALLS]f[CALL_ID]a1b2c3d4e[ARGS]{}",
	  "N(weather)A(" WEATHER ")N(f)A({})", 0 },
	{ "mistral", "none", "Wait. [TOOL_CALLS]f{\"a\": 1}", "C(Wait.)N(f)A({\"a\": 1})",
	  0 },
	{ "mistral", "none", "[TOOL_CALLS]!", "C([TOOL_CALLS]!)", 0 },

	{ "deepseek_v3", "none",
	  "Yes.<｜tool▁calls▁begin｜>" DS3("weather", WEATHER) "\n" DS3(
		  "f", "{}") "<｜tool▁calls▁end｜>",
	  "C(Yes.)N(weather)A(" WEATHER ")N(f)A({})", 0 },
	{ "deepseek_v3", "none", "<｜tool▁calls▁begin｜>" DS3("f", "{}") "<｜tool▁ca",
	  "N(f)A({})", 0 },
	{ "deepseek_v31", "none",
	  "<｜tool▁calls▁begin｜>" DS31("weather", WEATHER)
		  DS31("f", "{}") "<｜tool▁calls▁end｜>",
	  "N(weather)A(" WEATHER ")N(f)A({})", 0 },

	{ "kimi_k2", "none",
	  "<|tool_calls_section_begin|>" KIMI("weather", "0", WEATHER)
		  KIMI("f", "12", "{}") "<|tool_calls_section_end|>",
	  "N(weather:0)A(" WEATHER ")N(f:12)A({})", 0 },

	{ "openai", "openai_gptoss",
	  "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
	  "to=functions.weather "
	  "<|constrain|>json<|message|>" WEATHER "<|call|>",
	  "R(Hm.)N(weather)A(" WEATHER ")", 0 },
	{ "openai", "openai_gptoss",
	  "<|channel|>analysis<|message|>a < b<|end|><|start|>assistant "
	  "to=functions.f<|channel|>commentary json"
	  "<|message|><|call|><|start|>assistant<|channel|>final<|message|>Done<|return|>",
	  "R(a < b)N(f)A({})C(Done)", 0 },
	{ "openai", "openai_gptoss", "<|channel|>final<|message|>Hello <b>", "C(Hello <b>)",
	  0 },
	{ "openai", "openai_gptoss", "plain text <|chan", "C(plain text <|chan)", 0 },
	{ "openai", "openai_gptoss", "plain < text", "C(plain < text)", 0 },
	{ "openai", "openai_gptoss", "<|channel|>other<|message|>x",
	  "C(<|channel|>other<|message|>x)", 0 },
	{ "none", "openai_gptoss",
	  "<|channel|>commentary to=functions.f<|message|>{}<|call|>", "C({})", 0 },

	{ "none", "qwen3", "<think>\nHm.\n\n</think>\n\nHello", "R(Hm.)C(Hello)", 0 },
	{ "none", "qwen3", "Hm.</think>Hello", "R(Hm.)C(Hello)", CAIRN_PROMPT_REASONS },
	{ "none", "qwen3", "Hm.</think>Hello", "C(Hm.</think>Hello)", 0 },
	{ "none", "qwen3", "\n\nHello", "C(Hello)", CAIRN_PROMPT_REASONED },
	{ "none", "qwen3", "<think>cut </thi", "R(cut </thi)", 0 },
	{ "none", "qwen3", "<think></think>x", "C(x)", 0 },
	{ "none", "deepseek_r1", "Hm.\n</think>\nHello", "R(Hm.)C(Hello)", 0 },
	{ "none", "deepseek_r1", "<think>\nHm. </think> Hello", "R(Hm.)C(Hello)", 0 },
	{ "none", "deepseek_r1", "never ends", "R(never ends)", 0 },
	{ "hermes", "qwen3",
	  "<think>\n" HERMES("no", "{}") "</think>\n\n" HERMES("f", "{}"),
	  "R(" HERMES("no", "{}") ")N(f)A({})", 0 },
	{ "mistral", "mistral", "[THINK]a[/THINK][TOOL_CALLS]f[ARGS]{}", "R(a)N(f)A({})",
	  0 },
};

static void all_cuts(struct cairn_test *t)
{
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		const struct row *r = &rows[i];
		struct cairn_output_rules rules = { .prompt_end = r->prompt,
						    .tools = test_tools() };
		size_t n = strlen(r->text);
		char *got;

		if (!EXPECT(t,
			    !cairn_tool_format_find(r->tools, NULL, &rules.tool_format)) ||
		    !EXPECT(t, !cairn_reasoning_format_find(r->reasoning, NULL,
							    &rules.reasoning)))
			continue;
		for (size_t cut = 0; cut <= n; cut++) {
			/* cut 0 stands for pushing single bytes */
			got = parse_cut(t, &rules, r->text, n, cut, cut ? n : 1);
			if (!EXPECT(t, got && !strcmp(got, r->want))) {
				cairn_note(t, "row %zu cut at %zu: %s", i, cut, r->text);
				cairn_note(t, "want %s", r->want);
				cairn_note(t, "got  %s", got ? got : "nothing");
				cut = n;
			}
			free(got);
		}
		json_decref((json_t *)rules.tools);
	}
}

/* Rows of the table with one mistake each, in a form's members or the parameter's pattern.
 */
static const struct {
	const char *format;
	int form;
	const char *call, *between, *end, *parameter; /* NULL: unchanged */
} mutants[] = {
	{ "hermes", 0, "<tool_call>\n%o\n", NULL, NULL, NULL },
	{ "hermes", 0, "<tool_call>\n%o\n</tool_calls>", NULL, NULL, NULL },
	{ "qwen3_coder", 0, "<tool_call>\n<function=%n>\n%p</tool_call>", NULL, NULL,
	  NULL },
	{ "qwen3_coder", 0, NULL, NULL, NULL, "<parameter=%k>%v</parameter>" },
	{ "glm45", 0, NULL, NULL, NULL,
	  "<arg_key>%k</arg_key>\n<arg_value>\n%v\n</arg_value>\n" },
	{ "llama3_json", 0, NULL, ", ", NULL, NULL },
	{ "mistral", 2, NULL, "; ", NULL, NULL },
	{ "mistral", 2, NULL, NULL, "", NULL },
	{ "mistral", 1, "[TOOL_CALLS]%n[CALL_ID]%d[ARGS]%a", NULL, NULL, NULL },
	{ "deepseek_v3", 0, "<｜tool▁call▁begin｜>%n\n```json\n%a\n```<｜tool▁call▁end｜>",
	  NULL, NULL, NULL },
	{ "deepseek_v31", 0, NULL, NULL, "", NULL },
	{ "kimi_k2", 0,
	  "<|tool_call_begin|>functions.%n:<|tool_call_argument_begin|>%a<|tool_call_end|>",
	  NULL, NULL, NULL },
	{ "kimi_k2", 0, NULL, NULL, "<|tool_call_end|>", NULL },
};

/* Returns whether an answer in this format is read otherwise than it should be. */
static bool caught(struct cairn_test *t, const char *name,
		   const struct cairn_tool_format *format)
{
	bool differs = false;

	for (size_t i = 0; i < ARRAY_SIZE(rows) && !differs; i++) {
		struct cairn_output_rules rules = { .tool_format = format,
						    .prompt_end = rows[i].prompt,
						    .tools = test_tools() };
		char *got = NULL;

		if (!strcmp(rows[i].tools, name) &&
		    !cairn_reasoning_format_find(rows[i].reasoning, NULL, &rules.reasoning))
			got = parse_cut(t, &rules, rows[i].text, strlen(rows[i].text), 0,
					1);
		differs = got && strcmp(got, rows[i].want);
		free(got);
		json_decref((json_t *)rules.tools);
	}
	return differs;
}

static void wrong_rows(struct cairn_test *t)
{
	for (size_t i = 0; i < ARRAY_SIZE(mutants); i++) {
		const struct cairn_tool_format *right;
		struct cairn_tool_format wrong;
		struct cairn_tool_form *form;

		if (!EXPECT(t, !cairn_tool_format_find(mutants[i].format, NULL, &right)))
			continue;
		EXPECT(t, !caught(t, mutants[i].format, right));
		wrong = *right;
		form = &wrong.forms[mutants[i].form];
		form->call = mutants[i].call ? mutants[i].call : form->call;
		form->between = mutants[i].between ? mutants[i].between : form->between;
		form->end = mutants[i].end ? mutants[i].end : form->end;
		wrong.parameter =
			mutants[i].parameter ? mutants[i].parameter : wrong.parameter;
		if (!EXPECT(t, caught(t, mutants[i].format, &wrong)))
			cairn_note(t, "mutant %zu of %s survives", i, mutants[i].format);
	}
}

/* With one_call, nothing after the first call is read. */
static void one_call(struct cairn_test *t)
{
	const char *text = HERMES("f", "{}") "\n" HERMES("weather", "{}") " text";
	struct cairn_output_rules rules = { .one_call = true };
	struct cairn_output out = { 0 };
	struct cairn_output_parser *p;

	EXPECT(t, !cairn_tool_format_find("hermes", NULL, &rules.tool_format));
	if (!EXPECT(t, !cairn_output_parser_new(&rules, &p)))
		return;
	EXPECT(t, cairn_output_parser_push(p, text, strlen(text), &out));
	cairn_output_parser_finish(p, &out);
	EXPECT(t, cairn_output_parser_calls(p) == 1 && out.num == 2 && out.text.len == 3);
	cairn_output_parser_free(p);
	cairn_output_free(&out);
}

/* The text that is held back is bounded: a head that never ends becomes content, and so does
 * endless white space. */
static void bounds(struct cairn_test *t)
{
	struct cairn_output_rules rules = { 0 };
	struct cairn_output out = { 0 };
	struct cairn_output_parser *p;
	size_t fed = 0;

	EXPECT(t, !cairn_tool_format_find("hermes", NULL, &rules.tool_format));
	if (!EXPECT(t, !cairn_output_parser_new(&rules, &p)))
		return;
	for (const char *text = "<tool_call>{\"x\": \""; fed < 3 * CAIRN_PARSER_MAX_HEAD;
	     text = "        ") {
		cairn_output_parser_push(p, text, strlen(text), &out);
		fed += strlen(text);
		EXPECT(t, fed - out.text.len <= CAIRN_PARSER_MAX_HEAD);
	}
	cairn_output_parser_finish(p, &out);
	EXPECT(t, out.text.len == fed && out.num == 1 && !cairn_output_parser_calls(p));
	cairn_output_parser_free(p);
	cairn_output_free(&out);
}

static void prompt_end(struct cairn_test *t)
{
	static const struct {
		const char *prompt;
		enum cairn_prompt_end want;
	} prompts[] = {
		{ "<|im_start|>assistant\n<think>\n", CAIRN_PROMPT_REASONS },
		{ "<think>\n\n</think>\n\n", CAIRN_PROMPT_REASONED },
		{ "<think> what does it do?\n", CAIRN_PROMPT_PLAIN },
		{ "", CAIRN_PROMPT_PLAIN },
		{ "think>", CAIRN_PROMPT_PLAIN },
	};
	const struct cairn_reasoning_format *f;

	EXPECT(t, !cairn_reasoning_format_find("qwen3", NULL, &f));
	for (size_t i = 0; i < ARRAY_SIZE(prompts); i++)
		EXPECT(t, cairn_prompt_end(f, prompts[i].prompt,
					   strlen(prompts[i].prompt)) == prompts[i].want);
	EXPECT(t, cairn_prompt_end(NULL, "<think>", 7) == CAIRN_PROMPT_PLAIN);
}

/* want has an r for each byte after which the model reasons. A mark takes effect with its last byte. */
static void reasons(struct cairn_test *t)
{
	static const struct {
		const char *reasoning, *text, *want;
		enum cairn_prompt_end prompt;
	} all[] = {
		{ "qwen3", "<think>a\n</think>b",
			   "......rrrrrrrrrr..", CAIRN_PROMPT_PLAIN },
		{ "qwen3", " \na</think>b",
			   "rrrrrrrrrr..", CAIRN_PROMPT_REASONS },
		{ "qwen3", "a</think>", ".........", CAIRN_PROMPT_REASONED },
		{ "deepseek_r1", "a</think>b",
				 "rrrrrrrr..", CAIRN_PROMPT_PLAIN },
		{ "openai_gptoss", "<|channel|>analysis<|message|>a<|end|>",
				   ".............................rrrrrrrr.", CAIRN_PROMPT_PLAIN },
		{ "openai_gptoss", "<|channel|>final<|message|>a",
				   "............................", CAIRN_PROMPT_PLAIN },
	};

	for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
		struct cairn_output_rules rules = { .prompt_end = all[i].prompt };
		struct cairn_output_parser *p;
		struct cairn_output out = { 0 };
		char got[64] = "";

		EXPECT(t, !cairn_reasoning_format_find(all[i].reasoning, NULL, &rules.reasoning));
		if (!EXPECT(t, !cairn_output_parser_new(&rules, &p)))
			return;
		for (size_t k = 0; all[i].text[k]; k++) {
			cairn_output_parser_push(p, all[i].text + k, 1, &out);
			got[k] = cairn_output_parser_reasons(p) ? 'r' : '.';
		}
		if (!EXPECT(t, !strcmp(got, all[i].want)))
			cairn_note(t, "%s\n# %s", all[i].text, got);
		cairn_output_parser_free(p);
		cairn_output_free(&out);
	}
}

/* Removing pieces byte by byte leaves the rest in place. */
static void drop(struct cairn_test *t)
{
	struct cairn_output out = { 0 };

	cairn_output_add(&out, CAIRN_PIECE_CONTENT, "ab", 2);
	cairn_output_add(&out, CAIRN_PIECE_NAME, "f", 1);
	cairn_output_add(&out, CAIRN_PIECE_NAME, "g", 1);
	cairn_output_drop(&out, 1);
	EXPECT(t, out.num == 3 && out.v[0].num_bytes == 1 && !memcmp(out.text.s, "bfg", 3));
	cairn_output_drop(&out, 1);
	cairn_output_drop(&out, 1);
	EXPECT(t, out.num == 1 && out.v[0].kind == CAIRN_PIECE_NAME && out.text.len == 1 &&
			  *out.text.s == 'g');
	cairn_output_free(&out);
}

static const struct cairn_unit units[] = {
	{ "all_cuts", all_cuts }, { "wrong_rows", wrong_rows }, { "one_call", one_call },
	{ "bounds", bounds },	  { "prompt_end", prompt_end }, { "reasons", reasons }, { "drop", drop },
};

const struct cairn_family cairn_output_parser_family = {
	.stage = "serving",
	.name = "output_parser",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
