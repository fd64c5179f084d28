// SPDX-License-Identifier: Apache-2.0
/*
 * chat_template_expr - parses the expressions of a template
 *
 * The precedence is Jinja's, lowest first:
 *
 *   if else | or | and | not | comparisons, in | + - | ~ | * / // % | ** | unary - + | filters, is | . [] ()
 *
 * It includes two of Jinja's peculiarities: ~ binds tighter than +, and -x|abs is (-x)|abs.
 */
#include "serving/template/chat_template_lex.h"

#include <stdio.h>
#include <string.h>

#include "primitives/base/error.h"

/* A list of nodes under construction; end: where the next node is linked. */
struct tail {
	struct node *first, **end;
};

static void append(struct tail *t, struct node *n)
{
	*t->end = n;
	t->end = &n->next;
}

static int constant(struct parser *p, int line, struct val value, struct node **out)
{
	CAIRN_TRY(cairn_tpl_node(p, N_CONST, line, out));
	(*out)->value = value;
	return cairn_tpl_node_done(p, *out);
}

/* Makes a node with two operands; left may be *out. */
static int pair(struct parser *p, enum node_kind kind, enum op op, int line, struct node *left,
		struct node *right, struct node **out)
{
	struct node *n;

	CAIRN_TRY(cairn_tpl_node(p, kind, line, &n));
	n->op = op;
	n->a = left;
	n->b = right;
	CAIRN_TRY(cairn_tpl_node_done(p, n));
	*out = n;
	return 0;
}

/* Parses "a, b, c" up to and including the closing bracket `end`. */
static int elements(struct parser *p, const char *end, struct tail *list)
{
	bool first = true;
	struct node *n;

	for (; end && !cairn_tpl_skip_op(p, end); first = false) {
		if (!first) {
			CAIRN_TRY(cairn_tpl_expect_op(p, ","));
			if (cairn_tpl_skip_op(p, end))
				return 0;
		}
		CAIRN_TRY(cairn_tpl_expression(p, true, &n));
		append(list, n);
		if (!strcmp(end, "}")) {
			CAIRN_TRY(cairn_tpl_expect_op(p, ":"));
			CAIRN_TRY(cairn_tpl_expression(p, true, &n));
			append(list, n);
		}
	}
	return 0;
}

static int literal_list(struct parser *p, enum node_kind kind, const char *end, int line, struct node **out)
{
	struct tail list = { NULL, &list.first };

	CAIRN_TRY(elements(p, end, &list));
	CAIRN_TRY(cairn_tpl_node(p, kind, line, out));
	(*out)->list = list.first;
	return cairn_tpl_node_done(p, *out);
}

/* Parses string literals; adjacent ones are concatenated. */
static int literal_string(struct parser *p, struct node **out)
{
	struct val v = { .kind = V_STR, .str = cairn_tpl_peek(p, 0)->str };
	int line = cairn_tpl_peek(p, 0)->line;

	for (p->at++; cairn_tpl_peek(p, 0)->kind == T_STR; p->at++) {
		struct str more = cairn_tpl_peek(p, 0)->str;
		char *both = cairn_tpl_alloc(&p->t->arena, v.str.len + more.len + 1);

		if (!both)
			return -ENOMEM;
		memcpy(both, v.str.s, v.str.len);
		memcpy(both + v.str.len, more.s, more.len);
		v.str = (struct str) { both, NULL, v.str.len + more.len };
	}
	return constant(p, line, v, out);
}

static int name_or_constant(struct parser *p, struct node **out)
{
	static const struct {
		const char *name;
		struct val value;
	} known[] = {
		{ "true", { .kind = V_BOOL, .i = 1 } }, { "True", { .kind = V_BOOL, .i = 1 } },
		{ "false", { .kind = V_BOOL } },        { "False", { .kind = V_BOOL } },
		{ "none", { .kind = V_NONE } },         { "None", { .kind = V_NONE } },
	};
	const struct tok *t = cairn_tpl_peek(p, 0);

	p->at++;
	for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++)
		if (!strcmp(t->name, known[i].name))
			return constant(p, t->line, known[i].value, out);
	CAIRN_TRY(cairn_tpl_node(p, N_NAME, t->line, out));
	(*out)->name = t->name;
	return cairn_tpl_node_done(p, *out);
}

static int primary(struct parser *p, struct node **out)
{
	const struct tok *t = cairn_tpl_peek(p, 0);

	switch (t->kind) {
	case T_NAME:
		return name_or_constant(p, out);
	case T_STR:
		return literal_string(p, out);
	case T_INT:
		p->at++;
		return constant(p, t->line, (struct val) { .kind = V_INT, .i = t->i }, out);
	case T_FLOAT:
		p->at++;
		return constant(p, t->line, (struct val) { .kind = V_FLOAT, .f = t->f }, out);
	default:
		break;
	}
	if (cairn_tpl_skip_op(p, "(")) {
		if (cairn_tpl_skip_op(p, ")"))
			return literal_list(p, N_TUPLE, NULL, t->line, out);
		CAIRN_TRY(cairn_tpl_tuple(p, true, out));
		return cairn_tpl_expect_op(p, ")");
	}
	if (cairn_tpl_skip_op(p, "["))
		return literal_list(p, N_LIST, "]", t->line, out);
	if (cairn_tpl_skip_op(p, "{"))
		return literal_list(p, N_DICT, "}", t->line, out);
	return cairn_tpl_unexpected(p, "an expression");
}

/* Parses "a, b, c=1)", after the opening bracket. */
static int call_args(struct parser *p, struct node *call)
{
	struct tail args = { NULL, &args.first }, named = { NULL, &named.first };
	int line = cairn_tpl_peek(p, 0)->line, num = 0;
	struct node *n;

	for (; !cairn_tpl_skip_op(p, ")"); num++) {
		if (num) {
			CAIRN_TRY(cairn_tpl_expect_op(p, ","));
			if (cairn_tpl_skip_op(p, ")"))
				break;
		}
		if (num == TPL_MAX_ARGS)
			return cairn_tpl_syntax(p, EOPNOTSUPP, line, "more than %d arguments", TPL_MAX_ARGS);
		if (cairn_tpl_is_op(p, "*") || cairn_tpl_is_op(p, "**"))
			return cairn_tpl_syntax(p, EOPNOTSUPP, line,
						"* and ** arguments are not supported");
		if (cairn_tpl_peek(p, 0)->kind == T_NAME && cairn_tpl_peek(p, 1)->kind == T_OP &&
		    !strcmp(cairn_tpl_peek(p, 1)->name, "=")) {
			CAIRN_TRY(cairn_tpl_node(p, N_KEYWORD, line, &n));
			n->name = cairn_tpl_peek(p, 0)->name;
			p->at += 2;
			CAIRN_TRY(cairn_tpl_expression(p, true, &n->a));
			CAIRN_TRY(cairn_tpl_node_done(p, n));
			append(&named, n);
			continue;
		}
		if (named.first)
			return cairn_tpl_syntax(p, EINVAL, line,
						"a positional argument follows a keyword argument");
		CAIRN_TRY(cairn_tpl_expression(p, true, &n));
		append(&args, n);
	}
	call->list = args.first;
	call->list2 = named.first;
	return 0;
}

static int call(struct parser *p, int line, struct node *callee, struct node **out)
{
	struct node *n;

	CAIRN_TRY(cairn_tpl_node(p, N_CALL, line, &n));
	n->a = callee;
	CAIRN_TRY(call_args(p, n));
	CAIRN_TRY(cairn_tpl_node_done(p, n));
	*out = n;
	return 0;
}

static bool slice_end(const struct parser *p)
{
	return cairn_tpl_is_op(p, ":") || cairn_tpl_is_op(p, "]") || cairn_tpl_is_op(p, ",");
}

/* Parses the rest of x[...], after the opening bracket. */
static int subscript(struct parser *p, int line, struct node *of, struct node **out)
{
	struct node *part[3] = { NULL, NULL, NULL }, *n;
	int num = 0;

	for (;; num++) {
		if (!slice_end(p))
			CAIRN_TRY(cairn_tpl_expression(p, true, &part[num]));
		if (num == 2 || !cairn_tpl_skip_op(p, ":"))
			break;
	}
	if (num == 0 && !part[0])
		return cairn_tpl_unexpected(p, "an index");
	CAIRN_TRY(cairn_tpl_expect_op(p, "]"));
	if (num == 0)
		return pair(p, N_ITEM, OP_EQ, line, of, part[0], out);
	CAIRN_TRY(cairn_tpl_node(p, N_SLICE, line, &n));
	n->list = of;
	n->a = part[0];
	n->b = part[1];
	n->c = part[2];
	CAIRN_TRY(cairn_tpl_node_done(p, n));
	*out = n;
	return 0;
}

static int postfix(struct parser *p, struct node **out)
{
	struct node *n;
	int line;

	for (;;) {
		line = cairn_tpl_peek(p, 0)->line;
		if (cairn_tpl_skip_op(p, "(")) {
			CAIRN_TRY(call(p, line, *out, out));
		} else if (cairn_tpl_skip_op(p, "[")) {
			CAIRN_TRY(subscript(p, line, *out, out));
		} else if (cairn_tpl_skip_op(p, ".")) {
			const struct tok *t = cairn_tpl_peek(p, 0);

			if (t->kind == T_INT) {
				p->at++;
				CAIRN_TRY(constant(p, line, (struct val) { .kind = V_INT, .i = t->i }, &n));
				CAIRN_TRY(pair(p, N_ITEM, OP_EQ, line, *out, n, out));
				continue;
			}
			CAIRN_TRY(cairn_tpl_node(p, N_ATTR, line, &n));
			CAIRN_TRY(cairn_tpl_expect_name(p, &n->name));
			n->a = *out;
			CAIRN_TRY(cairn_tpl_node_done(p, n));
			*out = n;
		} else {
			return 0;
		}
	}
}

static int filter(struct parser *p, int line, struct node **out)
{
	struct node *n;
	const char *name, *known;

	CAIRN_TRY(cairn_tpl_expect_name(p, &name));
	known = cairn_tpl_known_filter(name);
	if (!known)
		return cairn_tpl_syntax(p, EOPNOTSUPP, line, "filter \"%.40s\" is not supported", name);
	CAIRN_TRY(cairn_tpl_node(p, N_FILTER, line, &n));
	n->name = known;
	n->a = *out;
	if (cairn_tpl_skip_op(p, "("))
		CAIRN_TRY(call_args(p, n));
	CAIRN_TRY(cairn_tpl_node_done(p, n));
	*out = n;
	return 0;
}

/* Returns whether an argument without brackets follows: "x is divisibleby 3", but "x is defined and y". */
static bool bare_argument(const struct parser *p)
{
	const struct tok *t = cairn_tpl_peek(p, 0);

	if (t->kind == T_NAME)
		return !cairn_tpl_is_name(p, "else") && !cairn_tpl_is_name(p, "or") &&
		       !cairn_tpl_is_name(p, "and");
	return t->kind == T_STR || t->kind == T_INT || t->kind == T_FLOAT || cairn_tpl_is_op(p, "[") ||
	       cairn_tpl_is_op(p, "{");
}

static int test(struct parser *p, int line, struct node **out)
{
	bool negated = cairn_tpl_skip_name(p, "not");
	const char *name, *known;
	struct node *n, *not ;

	CAIRN_TRY(cairn_tpl_expect_name(p, &name));
	known = cairn_tpl_known_test(name);
	if (!known)
		return cairn_tpl_syntax(p, EOPNOTSUPP, line, "test \"%.40s\" is not supported", name);
	CAIRN_TRY(cairn_tpl_node(p, N_TEST, line, &n));
	n->name = known;
	n->a = *out;
	if (cairn_tpl_skip_op(p, "(")) {
		CAIRN_TRY(call_args(p, n));
	} else if (bare_argument(p)) {
		if (cairn_tpl_is_name(p, "is"))
			return cairn_tpl_unexpected(p, "one test");
		CAIRN_TRY(primary(p, &n->list));
		CAIRN_TRY(postfix(p, &n->list));
	}
	CAIRN_TRY(cairn_tpl_node_done(p, n));
	*out = n;
	if (!negated)
		return 0;
	CAIRN_TRY(cairn_tpl_node(p, N_NOT, line, &not ));
	not ->a = n;
	*out = not ;
	return cairn_tpl_node_done(p, not );
}

static int filters_and_tests(struct parser *p, struct node **out)
{
	for (;;) {
		int line = cairn_tpl_peek(p, 0)->line;

		if (cairn_tpl_skip_op(p, "|"))
			CAIRN_TRY(filter(p, line, out));
		else if (cairn_tpl_skip_name(p, "is"))
			CAIRN_TRY(test(p, line, out));
		else if (cairn_tpl_skip_op(p, "("))
			CAIRN_TRY(call(p, line, *out, out));
		else
			return 0;
	}
}

static int unary(struct parser *p, bool filters, struct node **out)
{
	int line = cairn_tpl_peek(p, 0)->line;
	bool neg = cairn_tpl_skip_op(p, "-");
	struct node *n;

	if (++p->depth > TPL_MAX_HEIGHT)
		return cairn_tpl_syntax(p, EINVAL, line, "nested deeper than %d", TPL_MAX_HEIGHT);
	if (neg || cairn_tpl_skip_op(p, "+")) {
		CAIRN_TRY(cairn_tpl_node(p, neg ? N_NEG : N_POS, line, &n));
		CAIRN_TRY(unary(p, false, &n->a));
		CAIRN_TRY(cairn_tpl_node_done(p, n));
		*out = n;
	} else {
		CAIRN_TRY(primary(p, out));
	}
	CAIRN_TRY(postfix(p, out));
	p->depth--;
	return filters ? filters_and_tests(p, out) : 0;
}

/* Parses binary operators by level of precedence, tightest last; ~ has a level of its own. */
static int binary(struct parser *p, int level, struct node **out)
{
	static const struct {
		const char *name;
		enum op op;
	} ops[4][5] = {
		{ { "+", OP_ADD }, { "-", OP_SUB } },
		{ { "~", OP_ADD } },
		{ { "*", OP_MUL }, { "/", OP_DIV }, { "//", OP_FLOORDIV }, { "%", OP_MOD } },
		{ { "**", OP_POW } },
	};
	struct node *right;

	if (level == 4)
		return unary(p, true, out);
	CAIRN_TRY(binary(p, level + 1, out));
	for (;;) {
		int line = cairn_tpl_peek(p, 0)->line, i = 0;

		while (ops[level][i].name && !cairn_tpl_skip_op(p, ops[level][i].name))
			i++;
		if (!ops[level][i].name)
			return 0;
		CAIRN_TRY(binary(p, level + 1, &right));
		CAIRN_TRY(
			pair(p, level == 1 ? N_CONCAT : N_BINARY, ops[level][i].op, line, *out, right, out));
	}
}

static bool skip_comparison(struct parser *p, enum op *op)
{
	static const struct {
		const char *name;
		enum op op;
	} ops[] = { { "==", OP_EQ }, { "!=", OP_NE }, { "<", OP_LT },
		    { "<=", OP_LE }, { ">", OP_GT },  { ">=", OP_GE } };

	for (size_t i = 0; i < sizeof(ops) / sizeof(*ops); i++) {
		*op = ops[i].op;
		if (cairn_tpl_skip_op(p, ops[i].name))
			return true;
	}
	*op = OP_IN;
	if (cairn_tpl_skip_name(p, "in"))
		return true;
	if (!cairn_tpl_is_name(p, "not") || cairn_tpl_peek(p, 1)->kind != T_NAME ||
	    strcmp(cairn_tpl_peek(p, 1)->name, "in"))
		return false;
	*op = OP_NOT_IN;
	p->at += 2;
	return true;
}

/* Parses comparisons; a < b < c holds if a < b and b < c. */
static int comparison(struct parser *p, struct node **out)
{
	struct tail list = { NULL, &list.first };
	int line = cairn_tpl_peek(p, 0)->line;
	struct node *n;
	enum op op;

	CAIRN_TRY(binary(p, 0, out));
	while (skip_comparison(p, &op)) {
		CAIRN_TRY(cairn_tpl_node(p, N_OPERAND, line, &n));
		n->op = op;
		CAIRN_TRY(binary(p, 0, &n->a));
		CAIRN_TRY(cairn_tpl_node_done(p, n));
		append(&list, n);
	}
	if (!list.first)
		return 0;
	CAIRN_TRY(cairn_tpl_node(p, N_COMPARE, line, &n));
	n->a = *out;
	n->list = list.first;
	*out = n;
	return cairn_tpl_node_done(p, n);
}

static int not_level(struct parser *p, struct node **out)
{
	int line = cairn_tpl_peek(p, 0)->line;
	struct node *n;

	if (!cairn_tpl_skip_name(p, "not"))
		return comparison(p, out);
	if (++p->depth > TPL_MAX_HEIGHT)
		return cairn_tpl_syntax(p, EINVAL, line, "nested deeper than %d", TPL_MAX_HEIGHT);
	CAIRN_TRY(cairn_tpl_node(p, N_NOT, line, &n));
	CAIRN_TRY(not_level(p, &n->a));
	p->depth--;
	*out = n;
	return cairn_tpl_node_done(p, n);
}

static int and_or(struct parser *p, bool or, struct node **out)
{
	struct node *right;

	CAIRN_TRY(or ? and_or(p, false, out) : not_level(p, out));
	for (;;) {
		int line = cairn_tpl_peek(p, 0)->line;

		if (!cairn_tpl_skip_name(p, or ? "or" : "and"))
			return 0;
		CAIRN_TRY(or ? and_or(p, false, &right) : not_level(p, &right));
		CAIRN_TRY(pair(p, or ? N_OR : N_AND, OP_EQ, line, *out, right, out));
	}
}

int cairn_tpl_expression(struct parser *p, bool with_if, struct node **out)
{
	int line = cairn_tpl_peek(p, 0)->line;
	struct node *n;

	if (++p->depth > TPL_MAX_HEIGHT)
		return cairn_tpl_syntax(p, EINVAL, line, "nested deeper than %d", TPL_MAX_HEIGHT);
	CAIRN_TRY(and_or(p, true, out));
	while (with_if && cairn_tpl_skip_name(p, "if")) {
		CAIRN_TRY(cairn_tpl_node(p, N_COND, line, &n));
		n->b = *out;
		CAIRN_TRY(and_or(p, true, &n->a));
		if (cairn_tpl_skip_name(p, "else"))
			CAIRN_TRY(cairn_tpl_expression(p, true, &n->c));
		CAIRN_TRY(cairn_tpl_node_done(p, n));
		*out = n;
	}
	p->depth--;
	return 0;
}

static bool tuple_end(const struct parser *p)
{
	enum tok_kind k = cairn_tpl_peek(p, 0)->kind;

	return k == T_BLOCK_END || k == T_VAR_END || cairn_tpl_is_op(p, ")");
}

int cairn_tpl_tuple(struct parser *p, bool with_if, struct node **out)
{
	struct tail list = { NULL, &list.first };
	int line = cairn_tpl_peek(p, 0)->line;
	struct node *n;

	CAIRN_TRY(cairn_tpl_expression(p, with_if, out));
	if (!cairn_tpl_is_op(p, ","))
		return 0;
	append(&list, *out);
	while (cairn_tpl_skip_op(p, ",") && !tuple_end(p)) {
		CAIRN_TRY(cairn_tpl_expression(p, with_if, &n));
		append(&list, n);
	}
	CAIRN_TRY(cairn_tpl_node(p, N_TUPLE, line, out));
	(*out)->list = list.first;
	return cairn_tpl_node_done(p, *out);
}

int cairn_tpl_signature(struct parser *p, struct node **params)
{
	struct tail list = { NULL, &list.first };
	struct node *n;
	int num = 0;

	CAIRN_TRY(cairn_tpl_expect_op(p, "("));
	for (; !cairn_tpl_skip_op(p, ")"); num++) {
		if (num)
			CAIRN_TRY(cairn_tpl_expect_op(p, ","));
		if (num == TPL_MAX_ARGS)
			return cairn_tpl_unexpected(p, "16 parameters at most");
		CAIRN_TRY(cairn_tpl_node(p, N_PARAM, cairn_tpl_peek(p, 0)->line, &n));
		CAIRN_TRY(cairn_tpl_expect_name(p, &n->name));
		if (cairn_tpl_skip_op(p, "="))
			CAIRN_TRY(cairn_tpl_expression(p, true, &n->a));
		CAIRN_TRY(cairn_tpl_node_done(p, n));
		append(&list, n);
	}
	*params = list.first;
	return 0;
}
