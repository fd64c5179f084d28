// SPDX-License-Identifier: Apache-2.0
/* formats - the tables of formats, and how to find one */
#include "serving/formats/formats.h"

#include <stdio.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/base/json.h"

#define DEEPSEEK_BEGIN "<｜tool▁calls▁begin｜>"
#define DEEPSEEK_END   "<｜tool▁calls▁end｜>"
#define DEEPSEEK_CALL  "<｜tool▁call▁begin｜>"
#define DEEPSEEK_SEP   "<｜tool▁sep｜>"
#define DEEPSEEK_DONE  "<｜tool▁call▁end｜>"

const struct cairn_tool_format cairn_tool_formats[] = {
	/* formats whose hints contain those of a later row come first */
	{
		.name = "qwen3_coder", .alias = "qwen3_xml",
		.hints = { "<tool_call>", "<function=", "<parameter=" },
		.parameter = "<parameter=%k>\n%v\n</parameter>\n",
		.forms = { { "", "<tool_call>\n<function=%n>\n%p</function>\n</tool_call>", "\n", "",
			     NULL } },
	},
	{
		.name = "glm45", .alias = "glm47", .hints = { "<tool_call>", "<arg_key>", "<arg_value>" },
		.parameter = "<arg_key>%k</arg_key>\n<arg_value>%v</arg_value>\n",
		.forms = { { "", "<tool_call>%n\n%p</tool_call>", "\n", "", NULL } },
	},
	{
		.name = "hermes", .hints = { "<tool_call>", "</tool_call>" }, .arguments = "arguments",
		.forms = { { "", "<tool_call>\n%o\n</tool_call>", "\n", "", NULL } },
	},
	{
		.name = "kimi_k2",
		.hints = { "<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>" },
		.id = CAIRN_CALL_ID_KIMI,
		.forms = { { "<|tool_calls_section_begin|>",
			     "<|tool_call_begin|>functions.%n:%d<|tool_call_argument_begin|>%a"
			     "<|tool_call_end|>",
			     "", "<|tool_calls_section_end|>", NULL } },
	},
	{
		.name = "openai", .hints = { "<|channel|>", "<|message|>", "functions." }, .harmony = true,
		.forms = { { "",
			     "<|channel|>commentary to=functions.%n <|constrain|>json<|message|>%a"
			     "<|call|>",
			     NULL, "", NULL } },
	},
	{
		.name = "deepseek_v3", .hints = { DEEPSEEK_BEGIN, DEEPSEEK_SEP, "```json" },
		.forms = { { DEEPSEEK_BEGIN,
			     DEEPSEEK_CALL "function" DEEPSEEK_SEP "%n\n```json\n%a\n```" DEEPSEEK_DONE,
			     "\n", DEEPSEEK_END, NULL } },
	},
	{
		.name = "deepseek_v31", .hints = { DEEPSEEK_BEGIN, DEEPSEEK_SEP },
		.forms = { { DEEPSEEK_BEGIN, DEEPSEEK_CALL "%n" DEEPSEEK_SEP "%a" DEEPSEEK_DONE, "",
			     DEEPSEEK_END, NULL } },
	},
	{
		/* newer tokenizers have [ARGS] and a mark before each call; older ones write a list */
		.name = "mistral", .hints = { "[TOOL_CALLS]" }, .arguments = "arguments",
		.id = CAIRN_CALL_ID_MISTRAL,
		.forms = {
			{ "", "[TOOL_CALLS]%n[ARGS]%a", "", "", "[ARGS]" },
			{ "", "[TOOL_CALLS]%n[CALL_ID]%i[ARGS]%a", "", "", "[CALL_ID]" },
			{ "[TOOL_CALLS] [", "%o", ", ", "]", NULL },
			{ "", "[TOOL_CALLS]%n%a", "", "", NULL },
		},
	},
	{
		.name = "llama3_json", .alias = "llama4_json", .arguments = "parameters",
		.hints = { "<|start_header_id|>", "\"parameters\": " },
		.forms = { { "", "%o", "; ", "", NULL }, { "<|python_tag|>", "%o", "; ", "", NULL } },
	},
	{ .name = NULL },
};

const struct cairn_reasoning_format cairn_reasoning_formats[] = {
	{ "openai_gptoss", "<|channel|>", "<|end|>", false, true, "<|channel|>" },
	{ "mistral", "[THINK]", "[/THINK]", false, false, "[THINK]" },
	{ "qwen3", "<think>", "</think>", false, false, "<think>" },
	{ "deepseek_r1", "<think>", "</think>", true, false, "</think>" },
	{ "deepseek_v3", "<think>", "</think>", false, false, NULL },
	{ "glm45", "<think>", "</think>", false, false, NULL },
	{ "kimi_k2", "<think>", "</think>", false, false, NULL },
	{ .name = NULL },
};

static int unknown(const char *what, const char *name, const char *names)
{
	return cairn_error(EINVAL, "--%s: %s is not one of auto, none%s", what,
			   CAIRN_QUOTED(name), names);
}

static bool shows(const char *source, const char *const hints[3])
{
	for (int i = 0; i < 3 && hints[i]; i++) {
		if (!strstr(source, hints[i]))
			return false;
	}
	return true;
}

int cairn_tool_format_find(const char *name, const char *source,
			   const struct cairn_tool_format **out)
{
	bool detect = !strcmp(name, "auto");
	const struct cairn_tool_format *f;
	char names[256] = "";
	size_t n = 0;

	*out = NULL;
	if (!strcmp(name, "none"))
		return 0;
	for (f = cairn_tool_formats; f->name; f++) {
		n += (size_t)snprintf(names + n, sizeof(names) - n, ", %s", f->name);
		if (detect ? source && shows(source, f->hints)
			   : !strcmp(name, f->name) ||
				     (f->alias && !strcmp(name, f->alias))) {
			*out = f;
			return 0;
		}
	}
	return detect ? 0 : unknown("tool-call-parser", name, names);
}

int cairn_reasoning_format_find(const char *name, const char *source,
				const struct cairn_reasoning_format **out)
{
	bool detect = !strcmp(name, "auto");
	const struct cairn_reasoning_format *f;
	char names[256] = "";
	size_t n = 0;

	*out = NULL;
	if (!strcmp(name, "none"))
		return 0;
	for (f = cairn_reasoning_formats; f->name; f++) {
		n += (size_t)snprintf(names + n, sizeof(names) - n, ", %s", f->name);
		if (detect ? source && f->hint && strstr(source, f->hint)
			   : !strcmp(name, f->name)) {
			*out = f;
			return 0;
		}
	}
	return detect ? 0 : unknown("reasoning-parser", name, names);
}

bool cairn_formats_have(const struct cairn_tool_format *tools,
			const struct cairn_reasoning_format *reasoning, const char *token)
{
	static const char harmony[] =
		"<|start|><|channel|><|message|><|constrain|><|end|><|call|><|return|>";

	if (!*token)
		return false;
	if (((tools && tools->harmony) || (reasoning && reasoning->harmony)) &&
	    strstr(harmony, token))
		return true;
	if (reasoning && (strstr(reasoning->begin, token) || strstr(reasoning->end, token)))
		return true;
	if (!tools)
		return false;
	for (int i = 0; i < CAIRN_TOOL_FORMS && tools->forms[i].begin; i++) {
		const struct cairn_tool_form *f = &tools->forms[i];

		if (strstr(f->begin, token) || strstr(f->call, token) ||
		    strstr(f->end, token))
			return true;
	}
	return tools->parameter && strstr(tools->parameter, token);
}

size_t cairn_tool_name_len(const char *s, size_t n)
{
	size_t i = 0;

	while (i < n &&
	       ((s[i] >= 'a' && s[i] <= 'z') || (s[i] >= 'A' && s[i] <= 'Z') ||
		(s[i] >= '0' && s[i] <= '9') || s[i] == '_' || s[i] == '-' || s[i] == '.'))
		i++;
	return i;
}

const json_t *cairn_tool_find(const json_t *tools, const char *name, size_t len)
{
	const json_t *tool;
	size_t i;

	json_array_foreach ((json_t *)tools, i, tool) {
		const json_t *function = json_object_get(tool, "function");
		const json_t *called = json_object_get(function, "name");

		if (json_string_length(called) == len && called &&
		    !memcmp(json_string_value(called), name, len))
			return function;
	}
	return NULL;
}
