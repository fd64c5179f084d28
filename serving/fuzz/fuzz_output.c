// SPDX-License-Identifier: Apache-2.0
/*
 * fuzz_output - arbitrary answers in every format: the pieces must not depend on how the text is cut, plain
 * content must come out unchanged, and parameters must become JSON
 */
#include <string.h>

#include "serving/formats/output_parser.h"
#include "serving/fuzz/fuzz.h"

static const json_t *tools(void)
{
	static json_t *t;

	if (!t)
		t = json_loads(
			"[{\"function\": {\"name\": \"f\", \"parameters\": {\"properties\": "
			"{\"a\": {\"type\": \"integer\"}, \"b\": {\"type\": [\"string\", \"null\"]}}}}}]",
			0, NULL);
	return t;
}

static void parse(const struct cairn_output_rules *rules, const uint8_t *text, size_t size, size_t step,
		  struct cairn_output *out)
{
	struct cairn_output_parser *p;

	FUZZ_HOLDS(!cairn_output_parser_new(rules, &p));
	for (size_t at = 0; at < size; at += step) {
		size_t n = step < size - at ? step : size - at;
		char *copy = malloc(n);

		memcpy(copy, text + at, n);
		cairn_output_parser_push(p, copy, n, out);
		free(copy);
	}
	cairn_output_parser_finish(p, out);
	FUZZ_HOLDS(!out->text.failed);
	cairn_output_parser_free(p);
}

/* Arguments made of parameters are a JSON object, or one whose end has been cut off. */
static void check_object(const char *s, size_t n)
{
	char *closed = malloc(n + 1);
	json_t *v;

	memcpy(closed, s, n);
	closed[n] = '}';
	v = json_loadb(s, n, 0, NULL);
	if (!v)
		v = json_loadb(closed, n + 1, 0, NULL);
	FUZZ_HOLDS(json_is_object(v));
	json_decref(v);
	free(closed);
}

static void check(const struct cairn_output *out, bool parameters)
{
	size_t at = 0;

	for (size_t i = 0; i < out->num; i++) {
		const struct cairn_piece *p = &out->v[i];
		const char *s = out->text.s + at;

		FUZZ_HOLDS(p->num_bytes);
		if (p->kind == CAIRN_PIECE_NAME)
			FUZZ_HOLDS(cairn_tool_name_len(s, p->num_bytes) == p->num_bytes &&
				   p->num_bytes <= CAIRN_MAX_TOOL_NAME);
		FUZZ_HOLDS(p->kind != CAIRN_PIECE_ARGUMENTS || (i && p[-1].kind == CAIRN_PIECE_NAME));
		if (p->kind == CAIRN_PIECE_ARGUMENTS && parameters && !memchr(s, '\\', p->num_bytes))
			check_object(s, p->num_bytes);
		at += p->num_bytes;
	}
	FUZZ_HOLDS(at == out->text.len);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct cairn_output_rules rules = { .tools = tools() };
	struct cairn_output one = { 0 }, other = { 0 };
	size_t num = 0;

	if (size < 3)
		return 0;
	while (cairn_tool_formats[num].name)
		num++;
	if (data[0] % (num + 1) < num)
		rules.tool_format = &cairn_tool_formats[data[0] % (num + 1)];
	num = 0;
	while (cairn_reasoning_formats[num].name)
		num++;
	if (data[1] % (num + 1) < num)
		rules.reasoning = &cairn_reasoning_formats[data[1] % (num + 1)];
	rules.prompt_end = data[2] % 3;
	rules.one_call = data[2] & 64;
	parse(&rules, data + 3, size - 3, 1 + data[2] % 16, &one);
	parse(&rules, data + 3, size - 3, size, &other);
	FUZZ_HOLDS(one.num == other.num && one.text.len == other.text.len);
	FUZZ_HOLDS(!one.text.len || !memcmp(one.text.s, other.text.s, one.text.len));
	for (size_t i = 0; i < one.num; i++)
		FUZZ_HOLDS(one.v[i].kind == other.v[i].kind && one.v[i].num_bytes == other.v[i].num_bytes &&
			   one.v[i].number == other.v[i].number);
	check(&one, rules.tool_format && rules.tool_format->parameter &&
			    !(rules.reasoning && rules.reasoning->harmony));
	if (!rules.tool_format && !rules.reasoning)
		FUZZ_HOLDS(one.text.len == size - 3 &&
			   (size == 3 || !memcmp(one.text.s, data + 3, size - 3)));
	cairn_output_free(&one);
	cairn_output_free(&other);
	return 0;
}
