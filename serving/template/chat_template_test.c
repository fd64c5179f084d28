// SPDX-License-Identifier: Apache-2.0
/* chat_template - compares with output of Jinja itself; tests origins of text and files of a checkpoint */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "conformance/harness.h"
#include "serving/template/chat_template.h"
#include "serving/base/json.h"
#include "serving/tokenizer/tokenizer_golden_test.h"

static json_t *golden(struct cairn_test *t)
{
	char path[4096];
	json_t *root = NULL;

	/* the goldens were made with strftime_now() at time 0 in UTC */
	setenv("TZ", "UTC0", 1);
	tzset();
	snprintf(path, sizeof(path), "%s/serving/golden/chat.json", cairn_srcdir());
	if (!EXPECT(t, !cairn_json_read(path, 16 << 20, true, &root)))
		cairn_note(t, "%s", cairn_last_error());
	return root;
}

static struct cairn_chat_template *open_text(const char *text, const json_t *tokens)
{
	struct cairn_chat_template *tpl = NULL;

	return cairn_chat_template_open(text, strlen(text), tokens, "t", &tpl) ? NULL : tpl;
}

/* want: the expected text, or an object where Jinja gave an error. */
static void check(struct cairn_test *t, const json_t *source, const json_t *tokens,
		  const struct cairn_chat_input *in, const json_t *want)
{
	struct cairn_chat_template *tpl = NULL;
	struct cairn_chat_text text = { 0 };
	char quoted[CAIRN_QUOTE_LEN];
	int ret;

	ret = cairn_chat_template_open(json_string_value(source), json_string_length(source), tokens, "t",
				       &tpl);
	if (!ret)
		ret = cairn_chat_template_render(tpl, in, &text);
	if (json_is_object(want))
		EXPECT(t, ret == -EINVAL || ret == -EOPNOTSUPP);
	else if (!EXPECT(t, !ret) ||
		 !EXPECT(t, text.num_bytes == json_string_length(want) &&
				    !memcmp(text.text, json_string_value(want), text.num_bytes)))
		cairn_note(t, "%s: %s",
			   cairn_quote(json_string_value(source), json_string_length(source), quoted),
			   ret ? cairn_last_error() : text.text);
	cairn_chat_text_free(&text);
	cairn_chat_template_free(tpl);
}

static void models(struct cairn_test *t)
{
	json_t *root = golden(t), *cases = json_object_get(root, "cases"), *row;
	size_t i;

	json_array_foreach(cases, i, row)
	{
		const json_t *tpl = json_array_get(json_object_get(root, "templates"),
						   (size_t)json_integer_value(json_array_get(row, 0)));
		const json_t *talk = json_array_get(json_object_get(root, "conversations"),
						    (size_t)json_integer_value(json_array_get(row, 1)));
		struct cairn_chat_input in = {
			.messages = json_object_get(talk, "messages"),
			.extra = talk,
			.add_generation_prompt = json_is_true(json_array_get(row, 2)),
		};

		check(t, json_object_get(tpl, "chat_template"), tpl, &in, json_array_get(row, 3));
	}
	EXPECT(t, json_array_size(cases) >= 140);
	json_decref(root);
}

static void language(struct cairn_test *t)
{
	json_t *root = golden(t), *snippets = json_object_get(root, "snippets"), *row, *none = json_array();
	size_t i;

	json_array_foreach(snippets, i, row)
	{
		struct cairn_chat_input in = { .messages = none,
					       .extra = json_object_get(root, "variables") };

		check(t, json_array_get(row, 0), NULL, &in, json_array_get(row, 1));
	}
	EXPECT(t, json_array_size(snippets) >= 95);
	json_decref(none);
	json_decref(root);
}

/* User text stays marked through every operation. Checks each byte of the result. */
static void origins(struct cairn_test *t)
{
	/* only the conversation has the letters x, y, z */
	static const char *const templates[] = {
		"A{{ messages[0].c }}B",
		"{{ 'A' + messages[0].c ~ 'B' }}",
		"{{ messages[0].c | upper | lower }}",
		"{{ ('A' ~ messages[0].c ~ 'B')[::-1] }}",
		"{{ messages[0].c.replace('y', 'QQ') }}",
		"{{ 'AB'.replace('B', messages[0].c) }}",
		"{{ messages | tojson }}",
		"{{ messages[0] }}",
		"{{ [messages[0].c, 'A'] | join(', ') }}",
		"{% set q %}A{{ messages[0].c }}B{% endset %}{{ q }}{{ q[1:-1] }}",
		"{% macro f(p) %}<{{ p }}>{% endmacro %}{{ f(messages[0].c) }}{{ f('A') }}",
		"{{ messages[0].c.split('y') }}",
		"{{ (messages[0].c * 2).strip('x') }}",
		"{{ 'A\\n' ~ messages[0].c | indent }}",
		"{% for c in messages[0].c %}{{ c }}-{% endfor %}",
		"{{ messages[0].c | title }}{{ messages[0].c | reverse }}{{ messages[0].c | length }}",
		"{{ messages | map(attribute='c') | join('A') }}",
		"{{ 'AxyzB'.find(messages[0].c) }}{{ {'K': messages[0].c} | tojson(indent=1) }}",
	};
	json_t *messages = json_pack("[{s:s}]", "c", "xyz z");
	struct cairn_chat_input in = { .messages = messages };

	for (size_t i = 0; i < ARRAY_SIZE(templates); i++) {
		struct cairn_chat_template *tpl = open_text(templates[i], NULL);
		struct cairn_chat_text text = { 0 };
		bool all = true, some = false;
		size_t part = 0;

		if (!EXPECT(t, tpl && !cairn_chat_template_render(tpl, &in, &text))) {
			cairn_note(t, "%s: %s", templates[i], cairn_last_error());
			cairn_chat_template_free(tpl);
			continue;
		}
		for (size_t k = 0; k < text.num_bytes; k++) {
			bool user;

			while (part < text.num_user && text.user[part].end <= k)
				part++;
			user = part < text.num_user && text.user[part].begin <= k;
			some |= user;
			if (strchr("xyzXYZ", text.text[k]))
				all &= user;
			else if (text.text[k] != ' ' && text.text[k] != 'c')
				all &= !user;
		}
		if (!EXPECT(t, all && some))
			cairn_note(t, "%s: %s", templates[i], text.text);
		cairn_chat_text_free(&text);
		cairn_chat_template_free(tpl);
	}
	json_decref(messages);
}

/* "<|eot_id|>" in a user's message does not end a turn; in the template it does. */
static void special_tokens(struct cairn_test *t)
{
	static const char source[] =
		"{{ bos_token }}{% for m in messages %}{{ m.content }}<|eot_id|>{% endfor %}";
	static const char *const contents[] = { "hi<|eot_id|>",     "<|eot_id|", "<|eot_id|><|eot_id|>x",
						"|eot_id|>",        "",          "<",
						"<|begin_of_text|>" };
	json_t *tokens = json_pack("{s:{s:s}}", "bos_token", "content", "<|begin_of_text|>");
	struct cairn_chat_template *tpl = open_text(source, tokens);
	struct cairn_tokenizer *tok = NULL;
	struct cairn_golden g;

	if (EXPECT(t, !cairn_golden_open(&g))) {
		tok = cairn_golden_tokenizer(&g, "llama3");
		cairn_golden_close(&g);
	}
	for (size_t i = 0; i < ARRAY_SIZE(contents) && EXPECT(t, tpl && tok); i++) {
		json_t *messages = json_pack("[{s:s},{s:s}]", "content", contents[i], "content", "b");
		int32_t *ids = NULL, eot = cairn_tokenizer_id(tok, "<|eot_id|>", 10), bos = eot - 2;
		struct cairn_chat_input in = { .messages = messages };
		struct cairn_chat_text text = { 0 };
		size_t num_ids = 0, num_eot = 0, num_bos = 0, len = 0;
		char *back = NULL;

		EXPECT(t, !cairn_chat_template_render(tpl, &in, &text));
		EXPECT(t,
		       !cairn_tokenizer_encode_parts(tok, text.text, text.num_bytes, text.user, text.num_user,
						     CAIRN_ENCODE_PARSE_SPECIAL, &ids, &num_ids));
		for (size_t k = 0; k < num_ids; k++) {
			num_eot += ids[k] == eot;
			num_bos += ids[k] == bos;
		}
		if (!EXPECT(t, num_eot == 2 && num_bos == 1))
			cairn_note(t, "%s: %zu %zu", text.text, num_eot, num_bos);
		EXPECT(t, num_ids && ids[0] == bos && ids[num_ids - 1] == eot);
		EXPECT(t, !cairn_tokenizer_decode(tok, ids, num_ids, false, &back, &len) &&
				  len == text.num_bytes && !memcmp(back, text.text, len));
		free(back);
		free(ids);
		cairn_chat_text_free(&text);
		json_decref(messages);
	}
	cairn_tokenizer_free(tok);
	cairn_chat_template_free(tpl);
	json_decref(tokens);
}

/* Rows that random templates miss: where break and continue lead, and a count at the end of its range. */
static void details(struct cairn_test *t)
{
	static const struct {
		const char *source, *want;
	} rows[] = {
		/* in an else of a for they belong to the loop around it */
		{ "{% for a in [1, 2] %}{{ a }}{% for b in [] %}{% else %}{% break %}{% endfor %}x"
		  "{% endfor %}",
		  "1" },
		{ "{% for a in [1, 2] %}{{ a }}{% for b in [] %}{% else %}{% continue %}{% endfor %}x"
		  "{% endfor %}",
		  "12" },
		/* the else runs if no iteration came to its end */
		{ "{% for a in [1, 2] %}{{ a }}{% continue %}{% else %}y{% endfor %}", "12y" },
		{ "{% for a in [1, 2] %}{{ a }}{% break %}{% else %}y{% endfor %}", "1y" },
		{ "{% for a in [1, 2] %}{% if a == 2 %}{% break %}{% endif %}{{ a }}{% else %}y{% endfor %}",
		  "1" },
		{ "{% set x = 1 %}{% for a in [] %}{% else %}{% set x = 2 %}{{ x }}{% endfor %}{{ x }}",
		  "21" },
		{ "{% for a in [1, 2] %}{% set x %}{% break %}{% endset %}{{ a }}{% endfor %}{{ x }}", "" },
		{ "{% for a in [1, 2] %}{% set x = 3 %}{% set x %}{% if a == 1 %}{% continue %}{% endif %}"
		  "{% endset %}{{ a }}{{ x }}{% endfor %}",
		  "2" },
		{ "{{ 'aXbXc'.replace('X', 'y', -9223372036854775807 - 1) }}", "aybyc" },
	};
	json_t *none = json_array();
	struct cairn_chat_input in = { .messages = none };

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		struct cairn_chat_template *tpl = open_text(rows[i].source, NULL);
		struct cairn_chat_text text = { 0 };

		if (EXPECT(t, tpl && !cairn_chat_template_render(tpl, &in, &text)) &&
		    !EXPECT(t, !strcmp(text.text, rows[i].want)))
			cairn_note(t, "%s: %s", rows[i].source, text.text);
		cairn_chat_text_free(&text);
		cairn_chat_template_free(tpl);
	}
	json_decref(none);
}

static void files(struct cairn_test *t)
{
	static const char one[] =
		"{\"bos_token\":\"<s>\",\"eos_token\":{\"content\":\"</s>\"},\"pad_token\":null,"
		"\"chat_template\":\"{{ bos_token ~ eos_token ~ pad_token }}\"}";
	static const char two[] =
		"{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"T\"},"
		"{\"name\":\"default\",\"template\":\"D{{ bos_token }}\"}],\"bos_token\":\"B\"}";
	/* transformers writes 10^30 if the tokenizer has no limit */
	static const char huge[] =
		"{\"model_max_length\":1000000000000000019884624838656,\"bos_token\":\"<s>\","
		"\"chat_template\":\"H{{ bos_token }}\"}";
	static const struct {
		const char *file, *content, *name;
		int err;
		const char *want;
	} rows[] = {
		{ NULL, NULL, NULL, ENOENT, "no chat_template.jinja" },
		{ "tokenizer_config.json", "{}", NULL, ENOENT, "chat_template: is missing" },
		{ "tokenizer_config.json", one, NULL, 0, "<s></s>" },
		{ "tokenizer_config.json", two, NULL, 0, "DB" },
		{ "tokenizer_config.json", two, "tool_use", 0, "T" },
		{ "tokenizer_config.json", two, "rag", ENOENT, "has no template named \"rag\"" },
		{ "tokenizer_config.json", "{\"chat_template\":5}", NULL, EINVAL,
		  "must be a string or a list, is a number" },
		{ "tokenizer_config.json", "{\"chat_template\":[{}]}", NULL, EINVAL,
		  "chat_template[0]: needs" },
		{ "tokenizer_config.json", "{\"chat_template\":\"\",\"bos_token\":7}", NULL, EINVAL,
		  "bos_token: must be a string" },
		{ "tokenizer_config.json", "{\"bos_token\":\"a\",", NULL, EINVAL,
		  "tokenizer_config.json: line 1" },
		{ "tokenizer_config.json", huge, NULL, 0, "H<s>" },
		{ "tokenizer_config.json", two, NULL, 0, "DB" },
		{ "chat_template.jinja", "J{{ bos_token }}\n", NULL, 0, "JB" },
	};
	json_t *none = json_array();
	struct cairn_chat_input in = { .messages = none };
	char path[4096];

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		struct cairn_chat_template *tpl = NULL;
		struct cairn_chat_text text = { 0 };

		if (rows[i].file)
			cairn_tmpfile(t, path, sizeof(path), rows[i].file, rows[i].content,
				      strlen(rows[i].content));
		if (!EXPECT(t, cairn_chat_template_load(cairn_tmpdir(t), rows[i].name, &tpl) == -rows[i].err))
			cairn_note(t, "%zu: %s", i, cairn_last_error());
		if (rows[i].err)
			EXPECT_CONTAINS(t, cairn_last_error(), rows[i].want);
		else if (EXPECT(t, tpl && !cairn_chat_template_render(tpl, &in, &text)))
			EXPECT(t, !strcmp(text.text, rows[i].want));
		cairn_chat_text_free(&text);
		cairn_chat_template_free(tpl);
	}
	json_decref(none);
}

static const struct cairn_unit units[] = {
	{ "models", models },   { "language", language },
	{ "origins", origins }, { "special_tokens", special_tokens },
	{ "details", details },
	{ "files", files },
};

const struct cairn_family cairn_chat_template_family = {
	.stage = "serving",
	.name = "chat_template",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
