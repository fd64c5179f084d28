// SPDX-License-Identifier: Apache-2.0
/*
 * chat_template_oracle - compares random templates with Jinja itself
 *
 * Needs python3 with jinja2 (the environment variable PYTHON names another interpreter). Without it the test
 * is skipped, and only the goldens of the family chat_template are checked. Where Jinja renders a text, this
 * module must render the same; where Jinja fails, it must fail too. The only other outcome allowed is "not
 * supported", in a few cases.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conformance/harness.h"
#include "serving/template/chat_template.h"
#include "serving/base/json.h"

#define NUM_TEMPLATES 4000
#define NO_LIBRARY 77

enum verdict { EQUAL, BOTH_FAIL, UNSUPPORTED, DIFFERENT, NUM_VERDICTS };

static enum verdict judge(const json_t *row, const struct cairn_chat_input *in)
{
	const json_t *source = json_object_get(row, "t"), *want = json_object_get(row, "out");
	struct cairn_chat_template *tpl = NULL;
	struct cairn_chat_text text = { 0 };
	enum verdict v = DIFFERENT;
	int ret;

	ret = cairn_chat_template_open(json_string_value(source), json_string_length(source), NULL, "t",
				       &tpl);
	if (!ret)
		ret = cairn_chat_template_render(tpl, in, &text);
	if (ret && json_is_null(want))
		v = BOTH_FAIL;
	else if (ret && (ret == -EOPNOTSUPP || strstr(cairn_last_error(), "not supported") ||
			 strstr(cairn_last_error(), "has no slices")))
		v = UNSUPPORTED; /* Jinja also slices numbers in constant expressions */
	else if (!ret && json_is_string(want) && text.num_bytes == json_string_length(want) &&
		 !memcmp(text.text, json_string_value(want), text.num_bytes))
		v = EQUAL;
	cairn_chat_text_free(&text);
	cairn_chat_template_free(tpl);
	return v;
}

static void random_templates(struct cairn_test *t)
{
	const char *python = getenv("PYTHON");
	int count[NUM_VERDICTS] = { 0 }, status, lines = 0;
	json_t *variables = NULL, *none = json_array();
	char command[4300], *line = NULL, quoted[CAIRN_QUOTE_LEN];
	size_t cap = 0;
	FILE *f;

	snprintf(command, sizeof(command), "%s/tools/golden/golden_chat.py", cairn_srcdir());
	if (access(command, R_OK)) {
		cairn_skip(t, "tools/golden/golden_chat.py is not there: a package has no tools");
		json_decref(none);
		return;
	}
	snprintf(command, sizeof(command),
		 "exec '%.100s' '%.4000s/tools/golden/golden_chat.py' --random %d %u 2>/dev/null",
		 python ? python : "python3", cairn_srcdir(), NUM_TEMPLATES,
		 (unsigned)(cairn_rand(t) % 1000000));
	setenv("TZ", "UTC0", 1);
	tzset();
	f = popen(command, "r");
	if (!EXPECT(t, f != NULL))
		return;
	while (getline(&line, &cap, f) > 0) {
		json_t *row = json_loads(line, JSON_ALLOW_NUL, NULL);
		struct cairn_chat_input in = { .messages = none, .extra = variables };
		enum verdict v;

		if (!variables) {
			variables = row;
			continue;
		}
		lines++;
		v = judge(row, &in);
		count[v]++;
		if (v == DIFFERENT) {
			const char *source = json_string_value(json_object_get(row, "t"));

			cairn_note(t, "%s: %s", cairn_quote(source, strlen(source), quoted),
				   cairn_last_error());
		}
		json_decref(row);
	}
	status = pclose(f);
	if (WIFEXITED(status) && (WEXITSTATUS(status) == NO_LIBRARY || WEXITSTATUS(status) == 127)) {
		cairn_skip(t, "python3 has no jinja2 module");
	} else {
		EXPECT(t, lines == NUM_TEMPLATES && count[DIFFERENT] == 0);
		EXPECT(t, count[EQUAL] > NUM_TEMPLATES / 5 && count[UNSUPPORTED] < NUM_TEMPLATES / 20);
		cairn_note(t, "%d equal, %d errors in both, %d not supported", count[EQUAL], count[BOTH_FAIL],
			   count[UNSUPPORTED]);
	}
	json_decref(variables);
	json_decref(none);
	free(line);
}

static const struct cairn_unit units[] = {
	{ "random_templates", random_templates },
};

const struct cairn_family cairn_chat_template_oracle_family = {
	.stage = "serving",
	.name = "chat_template_oracle",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.cost_s = 12,
};
