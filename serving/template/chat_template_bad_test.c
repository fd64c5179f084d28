// SPDX-License-Identifier: Apache-2.0
/* chat_template_bad - templates that are rejected, and templates that exceed a budget */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "serving/template/chat_template.h"

static struct cairn_chat_template *open_text(const char *text)
{
	struct cairn_chat_template *tpl = NULL;

	return cairn_chat_template_open(text, strlen(text), NULL, "t", &tpl) ? NULL : tpl;
}

/* Sets s.a, s.b, s.blank to texts of 2^n characters, s.path to 2^n names. */
#define DOUBLED(n)                                                                                           \
	"{% set s = namespace(a='a', b='b', blank=' ', path='n.') %}{% for i in range(" #n ") %}"           \
	"{% set s.a = s.a + s.a %}{% set s.b = s.b + s.b %}{% set s.blank = s.blank + s.blank %}"           \
	"{% set s.path = s.path + s.path %}{% endfor %}"

/* Endless loops, exponentially growing values and deep nesting end with an error after a short time. */
static void budgets(struct cairn_test *t)
{
	static const struct {
		const char *source, *want;
	} rows[] = {
		{ "{% for i in range(9999999999) %}{% endfor %}", "more than" },
		{ "{% for i in range(3000) %}{% for j in range(3000) %}{% endfor %}{% endfor %}",
		  "more than" },
		{ "{{ 'a' * 9000000000000000000 }}", "more than" },
		{ "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(64) %}{% set ns.s = ns.s + ns.s "
		  "%}{% endfor %}",
		  "more than" },
		{ "{% set ns = namespace(l=[[]]) %}{% for i in range(99) %}{% set ns.l = ns.l + ns.l %}{% "
		  "endfor %}",
		  "more than" },
		{ "{% for i in range(100000) %}{{ "
		  "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' * 99 }}{% "
		  "endfor %}",
		  "more than" },
		{ "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "nested deeper" },
		{ "{% set ns = namespace(l=1) %}{% for i in range(1000) %}{% set ns.l = [ns.l] %}{% endfor "
		  "%}{{ ns.l }}",
		  "nested too deep" },
		{ "{% set ns = namespace() %}{% set ns.ns = [ns] %}{{ ns.ns == [ns] }}{{ ns.ns | tojson }}",
		  "namespace has no JSON" },
		{ "{% set ns = namespace(l=(1,)) %}{% for i in range(99) %}{% set ns.l = (ns.l, ns.l) %}{% "
		  "endfor %}"
		  "{{ ns.l in {} }}",
		  "more than" },
		{ "{% set ns = namespace(l=(1,)) %}{% for i in range(9999) %}{% set ns.l = (ns.l,) %}{% "
		  "endfor %}"
		  "{{ {ns.l: 1} }}",
		  "nested too deep" },
		{ "{{ 9223372036854775807 + 1 }}", "beyond 64 bits" },
		{ "{{ 3 ** 99 }}", "beyond 64 bits" },
		/* two long operands: the work is the product of their lengths */
		{ DOUBLED(15) "{{ s.a.strip(s.b ~ 'a') }}", "more than 4000000 steps" },
		{ DOUBLED(15) "{{ s.a.rstrip(s.b ~ 'a') }}", "more than 4000000 steps" },
		{ DOUBLED(15) "{{ s.a | trim(s.b ~ 'a') }}", "more than 4000000 steps" },
		{ DOUBLED(17) "{{ s.a.rfind(s.a[:65536] ~ 'b') }}", "more than 4000000 steps" },
		{ DOUBLED(17) "{{ s.a.rsplit(s.a[:65536] ~ 'b') }}", "more than 4000000 steps" },
		/* one long operand, many times */
		{ DOUBLED(20) "{% for i in range(5000) %}{{ s.a.startswith(s.a) }}{% endfor %}",
		  "more than 4000000 steps" },
		{ DOUBLED(20) "{% for i in range(1000) %}{{ s.a.endswith((s.b, s.a, s.a)) }}{% endfor %}",
		  "more than 4000000 steps" },
		{ DOUBLED(20) "{% for i in range(5000) %}{{ s.a.removeprefix(s.a) }}{% endfor %}",
		  "more than 4000000 steps" },
		{ DOUBLED(20) "{% for i in range(5000) %}{{ s.a.removesuffix(s.a) }}{% endfor %}",
		  "more than 4000000 steps" },
		{ DOUBLED(20) "{% for i in range(500) %}{{ 'x' if s.a is lower }}{% endfor %}",
		  "more than 4000000 steps" },
		{ DOUBLED(20) "{% for i in range(300) %}{{ s.blank | int }}{% endfor %}",
		  "more than 4000000 steps" },
		{ DOUBLED(20) "{% for i in range(300) %}{{ s.blank | float }}{% endfor %}",
		  "more than 4000000 steps" },
		{ DOUBLED(20) "{% set d = namespace({s.a: 1}) %}{% for i in range(500) %}{{ d[s.a] }}"
			      "{% endfor %}",
		  "more than 4000000 steps" },
		{ DOUBLED(18) "{% set s.n = s %}{% set path = s.path ~ 'n' %}{% for i in range(50) %}"
			      "{{ [s] | map(attribute=path) | list | length }}{% endfor %}",
		  "more than 4000000 steps" },
		/* the shortest digits of a float are found by trying */
		{ "{% for i in range(100000) %}{{ 0.1234567890123457e-300 }}{{ 0.1234567890123457e-300 }}"
		  "{{ 0.1234567890123457e-300 }}{% endfor %}",
		  "more than 4000000 steps" },
	};
	json_t *none = json_array();
	struct cairn_chat_input in = { .messages = none, .budget.max_memory = 64 << 20 };

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		struct cairn_chat_template *tpl = open_text(rows[i].source);
		struct cairn_chat_text text;

		if (!EXPECT(t, tpl && cairn_chat_template_render(tpl, &in, &text) == -EINVAL) ||
		    !EXPECT_CONTAINS(t, cairn_last_error(), rows[i].want))
			cairn_note(t, "%s", rows[i].source);
		cairn_chat_template_free(tpl);
	}
	for (int kind = 0; kind < 4; kind++) {
		static const char *const open[] = { "(", "{% if t %}", "[", "not " };
		char source[4096] = "{{ ";
		struct cairn_chat_template *tpl;

		if (kind == 1)
			source[0] = 0;
		for (int i = 0; i < 300; i++)
			strcat(source, open[kind]);
		strcat(source, "a }}");
		tpl = open_text(source);
		EXPECT(t, !tpl);
		EXPECT_CONTAINS(t, cairn_last_error(),
				kind == 2   ? "brackets nested too deep"
				: kind == 0 ? "brackets"
					    : "nested deeper than 100");
		cairn_chat_template_free(tpl);
	}
	json_decref(none);
}

/* Writes `before`, 4000 assignments and `after`, and renders that. */
static int render_names(char *source, const char *before, const char *after, const json_t *extra)
{
	json_t *none = json_array();
	struct cairn_chat_input in = { .messages = none, .extra = extra };
	struct cairn_chat_template *tpl;
	struct cairn_chat_text text = { 0 };
	int ret = -EINVAL, len = sprintf(source, "%s", before);

	for (int i = 0; i < 4000; i++)
		len += sprintf(source + len, "{%% set v%d = 1 %%}", i);
	sprintf(source + len, "%s", after);
	tpl = open_text(source);
	if (tpl)
		ret = cairn_chat_template_render(tpl, &in, &text);
	cairn_chat_text_free(&text);
	cairn_chat_template_free(tpl);
	json_decref(none);
	return ret;
}

/* Budgets count lookups among thousands of names. */
static void names(struct cairn_test *t)
{
	json_t *extra = json_object();
	char *source = malloc(200000), key[32];

	for (int i = 0; i < 40000; i++) {
		sprintf(key, "x%d", i);
		json_object_set_new(extra, key, json_true());
	}
	if (EXPECT(t, source)) {
		EXPECT(t, !render_names(source, "", "{{ v0 }}", NULL));
		EXPECT(t, render_names(source, "", "{% for i in range(50000) %}{{ v0 }}{% endfor %}", NULL));
		EXPECT_CONTAINS(t, cairn_last_error(), "more than 4000000 steps");
		EXPECT(t, render_names(source, "{% for i in range(50) %}", "{% endfor %}", NULL));
		EXPECT_CONTAINS(t, cairn_last_error(), "more than 4000000 steps");
		EXPECT(t, render_names(source, "", "", extra));
		EXPECT_CONTAINS(t, cairn_last_error(), "more than 4000000 steps");
	}
	free(source);
	json_decref(extra);
}

#define A64 "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

static void errors(struct cairn_test *t)
{
	static const struct {
		const char *source;
		int err;
		const char *want;
	} rows[] = {
		{ "a\n{% include 'x' %}", EOPNOTSUPP, "t: line 2: statement \"include\" is not supported" },
		{ "{{ x|sort }}", EOPNOTSUPP, "t: line 1: filter \"sort\" is not supported" },
		{ "{{ x is filter }}", EOPNOTSUPP, "test \"filter\" is not supported" },
		{ "{{ x." A64 A64 A64 A64 " }}", EINVAL, "a name of more than 255 bytes" },
		{ "\n\n{{ f(*a) }}", EOPNOTSUPP, "line 3: * and ** arguments" },
		{ "{% for x in y recursive %}{% endfor %}", EOPNOTSUPP, "recursive is not supported" },
		{ "{% if a %}\n", EINVAL, "no matching endif" },
		{ "{{ a b }}", EINVAL, "found \"b\", expected }}" },
		{ "{% endif %}", EOPNOTSUPP, "\"endif\"" },
		{ "{{ 'abc }}", EINVAL, "unterminated string" },
		{ "{{ a ", EINVAL, "unterminated tag" },
		{ "{# a ", EINVAL, "unterminated comment" },
		{ "{% break %}", EINVAL, "break outside of a for" },
		{ "{{ a) }}", EINVAL, "mismatched brackets" },
		{ "\xff", EINVAL, "not UTF-8" },
		{ "{{ 'a\\ud800' }}", EINVAL, "escape" },
		{ "{{ 1a }}", EINVAL, "a number" },
		{ "{{ ''.__class__ }}{{ ''.__class__() }}", EOPNOTSUPP,
		  "no function or method \"__class__\"" },
		{ "\n{{ messages.x.y }}", EINVAL, "line 2: \"x\" is undefined" },
		{ "{{ 'a'.format(1) }}", EOPNOTSUPP, "\"format\"" },
		{ "{{ raise_exception('no\\n\\x1b') }}", EINVAL,
		  "the template raised an exception: \"no\\x0a\\x1b\"" },
		{ "{{ '%s' % 1 }}", EINVAL, "a string % an integer is not supported" },
	};
	json_t *none = json_array();
	struct cairn_chat_input in = { .messages = none };

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		struct cairn_chat_template *tpl = NULL;
		struct cairn_chat_text text = { 0 };
		int ret = cairn_chat_template_open(rows[i].source, strlen(rows[i].source), NULL, "t", &tpl);

		if (!ret)
			ret = cairn_chat_template_render(tpl, &in, &text);
		if (!EXPECT(t, ret == -rows[i].err) || !EXPECT_CONTAINS(t, cairn_last_error(), rows[i].want))
			cairn_note(t, "%s: %d %s", rows[i].source, ret, cairn_last_error());
		cairn_chat_text_free(&text);
		cairn_chat_template_free(tpl);
	}
	json_decref(none);
}

static const struct cairn_unit units[] = {
	{ "budgets", budgets },
	{ "names", names },
	{ "errors", errors },
};

const struct cairn_family cairn_chat_template_bad_family = {
	.stage = "serving",
	.name = "chat_template_bad",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
