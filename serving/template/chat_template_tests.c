// SPDX-License-Identifier: Apache-2.0
/* chat_template_tests - the tests of Jinja, which follow `is` */
#include <string.h>

#include "primitives/base/error.h"
#include "serving/template/chat_template_impl.h"
#include "serving/base/utf8.h"

static bool is_list(const struct val *v)
{
	return v->kind == V_LIST || v->kind == V_TUPLE;
}

static bool of_case(const struct val *v, char how)
{
	bool any = false;

	if (v->kind != V_STR)
		return false;
	for (size_t i = 0; i < v->str.len; i++) {
		char c = v->str.s[i];
		bool up = c >= 'A' && c <= 'Z', low = c >= 'a' && c <= 'z';

		if (how == 'u' ? low : up)
			return false;
		any |= up || low;
	}
	return any;
}

/* Evaluates a test of one value; `which` is its letter in the table below. */
static bool kind_test(char which, const struct val *v)
{
	switch (which) {
	case 'd':
		return v->kind != V_UNDEFINED;
	case 'u':
		return v->kind == V_UNDEFINED;
	case 'n':
		return v->kind == V_NONE;
	case 'b':
		return v->kind == V_BOOL;
	case 't':
		return v->kind == V_BOOL && v->i;
	case 'f':
		return v->kind == V_BOOL && !v->i;
	case 'i':
		return v->kind == V_INT;
	case 'r':
		return v->kind == V_FLOAT;
	case 'x':
		return v->kind >= V_BOOL && v->kind <= V_FLOAT;
	case 's':
		return v->kind == V_STR;
	case 'm':
		return v->kind == V_DICT;
	case 'q':
		/* Jinja also counts an undefined value as a sequence */
		return is_list(v) || v->kind == V_STR || v->kind == V_DICT || v->kind == V_UNDEFINED;
	case 'e':
		return is_list(v) || v->kind == V_STR || v->kind == V_DICT || v->kind == V_UNDEFINED ||
		       v->kind == V_LOOP;
	case 'c':
		return v->kind >= V_MACRO;
	case 'U':
	case 'L':
		return of_case(v, which == 'U' ? 'u' : 'l');
	default:
		return false;
	}
}

/* kind: the letter of a test of one value; op: the operator of a comparison; others have a function. */
static const struct {
	const char *name;
	char kind; /* letter for kind_test(); 0: not a test of one value */
	int op;    /* enum op; -1: not a comparison */
} tests[] = {
	{ "defined", 'd', -1 },   { "undefined", 'u', -1 },
	{ "none", 'n', -1 },      { "boolean", 'b', -1 },
	{ "true", 't', -1 },      { "false", 'f', -1 },
	{ "integer", 'i', -1 },   { "float", 'r', -1 },
	{ "number", 'x', -1 },    { "string", 's', -1 },
	{ "mapping", 'm', -1 },   { "sequence", 'q', -1 },
	{ "iterable", 'e', -1 },  { "callable", 'c', -1 },
	{ "upper", 'U', -1 },     { "lower", 'L', -1 },
	{ "odd", 0, -1 },         { "even", 0, -1 },
	{ "divisibleby", 0, -1 }, { "sameas", 0, -1 },
	{ "eq", 0, OP_EQ },       { "equalto", 0, OP_EQ },
	{ "==", 0, OP_EQ },       { "ne", 0, OP_NE },
	{ "!=", 0, OP_NE },       { "lt", 0, OP_LT },
	{ "lessthan", 0, OP_LT }, { "<", 0, OP_LT },
	{ "le", 0, OP_LE },       { "<=", 0, OP_LE },
	{ "gt", 0, OP_GT },       { "greaterthan", 0, OP_GT },
	{ ">", 0, OP_GT },        { "ge", 0, OP_GE },
	{ ">=", 0, OP_GE },       { "in", 0, OP_IN },
};

const char *cairn_tpl_known_test(const char *name)
{
	for (size_t i = 0; i < sizeof(tests) / sizeof(*tests); i++)
		if (!strcmp(tests[i].name, name))
			return tests[i].name;
	return NULL;
}

static int same_as(struct render *r, int line, const struct val *a, const struct val *b, bool *result)
{
	*result = false;
	if (a->kind != b->kind)
		return 0;
	if (is_list(a))
		*result = a->list == b->list;
	else if (a->kind == V_DICT)
		*result = a->dict == b->dict;
	else
		return cairn_tpl_equal(r, line, a, b, result);
	return 0;
}

static int divisible(struct render *r, int line, const char *name, const struct val *v, const struct val *by,
		     bool *result)
{
	struct val rest, want = { .kind = V_INT, .i = !strcmp(name, "odd") };

	CAIRN_TRY(cairn_tpl_binary(r, line, OP_MOD, v, by, &rest));
	return cairn_tpl_equal(r, line, &rest, &want, result);
}

int cairn_tpl_test(struct render *r, int line, const char *name, const struct val *v, const struct args *args,
		   bool *result)
{
	struct val arg = { .kind = V_INT, .i = 2 };
	bool parity = !strcmp(name, "odd") || !strcmp(name, "even");
	size_t i = 0;

	while (tests[i].name != name)
		i++;
	if (tests[i].kind || parity) {
		if (args->num)
			return cairn_tpl_error(r, EINVAL, line, "test %s takes no argument", name);
	} else {
		CAIRN_TRY(cairn_tpl_bind(r, line, name, args, (const char *const[]) { "other" }, 1, 1, &arg));
	}
	if ((tests[i].kind == 'U' || tests[i].kind == 'L') && v->kind == V_STR)
		CAIRN_TRY(cairn_tpl_charge(r, line, v->str.len));
	if (tests[i].kind)
		*result = kind_test(tests[i].kind, v);
	else if (parity || !strcmp(name, "divisibleby"))
		return divisible(r, line, name, v, &arg, result);
	else if (!strcmp(name, "sameas"))
		return same_as(r, line, v, &arg, result);
	else
		return cairn_tpl_compare(r, line, (enum op)tests[i].op, v, &arg, result);
	return 0;
}
