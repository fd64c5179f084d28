// SPDX-License-Identifier: Apache-2.0
/* chat_template_parse - parses statements; also the cursor and node functions of both parsers */
#include "serving/template/chat_template_lex.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/base/json.h"

int cairn_tpl_syntax(const struct parser *p, int err, int line, const char *fmt, ...)
{
	char text[300];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	return cairn_error(err, "%s: line %d: %s", p->t->name, line, text);
}

static void describe(const struct tok *t, char buf[CAIRN_QUOTE_LEN])
{
	static const char *const names[] = {
		[T_EOF] = "the end",  [T_DATA] = "text",    [T_BLOCK_BEGIN] = "{%",
		[T_BLOCK_END] = "%}", [T_VAR_BEGIN] = "{{", [T_VAR_END] = "}}",
		[T_STR] = "a string", [T_INT] = "a number", [T_FLOAT] = "a number",
	};

	if (t->kind == T_NAME || t->kind == T_OP)
		cairn_quote(t->name, strlen(t->name), buf);
	else
		strcpy(buf, names[t->kind]);
}

int cairn_tpl_unexpected(const struct parser *p, const char *want)
{
	const struct tok *t = cairn_tpl_peek(p, 0);
	char got[CAIRN_QUOTE_LEN];

	describe(t, got);
	return cairn_tpl_syntax(p, EINVAL, t->line, "found %s, expected %s", got, want);
}

const struct tok *cairn_tpl_peek(const struct parser *p, size_t ahead)
{
	return &p->toks[p->at + ahead < p->num_toks ? p->at + ahead : p->num_toks - 1];
}

static bool is(const struct parser *p, enum tok_kind kind, const char *name)
{
	const struct tok *t = cairn_tpl_peek(p, 0);

	return t->kind == kind && !strcmp(t->name, name);
}

bool cairn_tpl_is_op(const struct parser *p, const char *op)
{
	return is(p, T_OP, op);
}

bool cairn_tpl_is_name(const struct parser *p, const char *name)
{
	return is(p, T_NAME, name);
}

bool cairn_tpl_skip_op(struct parser *p, const char *op)
{
	bool there = is(p, T_OP, op);

	p->at += there;
	return there;
}

bool cairn_tpl_skip_name(struct parser *p, const char *name)
{
	bool there = is(p, T_NAME, name);

	p->at += there;
	return there;
}

int cairn_tpl_expect_op(struct parser *p, const char *op)
{
	return cairn_tpl_skip_op(p, op) ? 0 : cairn_tpl_unexpected(p, op);
}

int cairn_tpl_expect_name(struct parser *p, const char **name)
{
	const struct tok *t = cairn_tpl_peek(p, 0);

	if (t->kind != T_NAME)
		return cairn_tpl_unexpected(p, "a name");
	*name = t->name;
	p->at++;
	return 0;
}

static int expect_kind(struct parser *p, enum tok_kind kind, const char *what)
{
	if (cairn_tpl_peek(p, 0)->kind != kind)
		return cairn_tpl_unexpected(p, what);
	p->at++;
	return 0;
}

const char *cairn_tpl_intern(struct cairn_chat_template *t, const char *s, size_t len)
{
	char *copy;

	for (size_t i = 0; i < t->num_names; i++)
		if (strlen(t->names[i]) == len && !memcmp(t->names[i], s, len))
			return t->names[i];
	if (t->num_names == TPL_MAX_NAMES) {
		cairn_error(EINVAL, "%s: more than %d names", t->name, TPL_MAX_NAMES);
		return NULL;
	}
	if (!t->names)
		t->names = cairn_tpl_alloc(&t->arena, TPL_MAX_NAMES * sizeof(*t->names));
	copy = cairn_tpl_alloc(&t->arena, len + 1);
	if (!t->names || !copy)
		return NULL;
	memcpy(copy, s, len);
	t->names[t->num_names++] = copy;
	return copy;
}

int cairn_tpl_node(struct parser *p, enum node_kind kind, int line, struct node **out)
{
	struct node *n = cairn_tpl_alloc(&p->t->arena, sizeof(*n));

	if (!n)
		return -ENOMEM;
	n->kind = kind;
	n->line = line;
	*out = n;
	return 0;
}

static int highest(const struct node *n, int height)
{
	for (; n; n = n->next)
		if (n->height > height)
			height = n->height;
	return height;
}

int cairn_tpl_node_done(struct parser *p, struct node *n)
{
	const struct node *const one[] = { n->a, n->b, n->c };
	int height = highest(n->list2, highest(n->list, 0));

	for (int i = 0; i < 3; i++)
		if (one[i] && one[i]->height > height)
			height = one[i]->height;
	n->height = height + 1;
	/* the tree of a + b + c + ... is as high as the chain is long */
	if (n->height > TPL_MAX_HEIGHT)
		return cairn_tpl_syntax(p, EINVAL, n->line, "nested deeper than %d", TPL_MAX_HEIGHT);
	return 0;
}

static int body(struct parser *p, const char *const *ends, const char **end, struct node **out);

/* Parses the rest of a tag after its expression, then statements up to one of `ends`. */
static int block(struct parser *p, const char *const *ends, const char **end, struct node **out)
{
	cairn_tpl_skip_op(p, ":");
	CAIRN_TRY(expect_kind(p, T_BLOCK_END, "%}"));
	return body(p, ends, end, out);
}

static int target(struct parser *p, struct node **out)
{
	struct node **end, *n;
	bool bracket = cairn_tpl_skip_op(p, "("), tuple = false;
	int line = cairn_tpl_peek(p, 0)->line;
	struct node *first = NULL;

	end = &first;
	do {
		if (first && cairn_tpl_peek(p, 0)->kind != T_NAME)
			break;
		CAIRN_TRY(cairn_tpl_node(p, N_NAME, line, &n));
		CAIRN_TRY(cairn_tpl_expect_name(p, &n->name));
		CAIRN_TRY(cairn_tpl_node_done(p, n));
		*end = n;
		end = &n->next;
	} while (!cairn_tpl_is_name(p, "in") && cairn_tpl_skip_op(p, ",") && (tuple = true));
	if (bracket)
		CAIRN_TRY(cairn_tpl_expect_op(p, ")"));
	*out = first;
	if (!tuple)
		return 0;
	CAIRN_TRY(cairn_tpl_node(p, N_TUPLE, line, out));
	(*out)->list = first;
	return cairn_tpl_node_done(p, *out);
}

static int parse_for(struct parser *p, int line, struct node **out)
{
	static const char *const ends[] = { "endfor", "else", NULL }, *const last[] = { "endfor", NULL };
	const char *end;
	struct node *n;

	CAIRN_TRY(cairn_tpl_node(p, N_FOR, line, &n));
	CAIRN_TRY(target(p, &n->a));
	if (!cairn_tpl_skip_name(p, "in"))
		return cairn_tpl_unexpected(p, "in");
	CAIRN_TRY(cairn_tpl_tuple(p, false, &n->b));
	if (cairn_tpl_skip_name(p, "if"))
		CAIRN_TRY(cairn_tpl_expression(p, true, &n->c));
	if (cairn_tpl_is_name(p, "recursive"))
		return cairn_tpl_syntax(p, EOPNOTSUPP, line, "for ... recursive is not supported");
	p->loops++;
	CAIRN_TRY(block(p, ends, &end, &n->list));
	p->loops--;
	if (!strcmp(end, "else"))
		CAIRN_TRY(block(p, last, &end, &n->list2));
	CAIRN_TRY(expect_kind(p, T_BLOCK_END, "%}"));
	*out = n;
	return cairn_tpl_node_done(p, n);
}

static int parse_if(struct parser *p, int line, struct node **out)
{
	static const char *const ends[] = { "endif", "elif", "else", NULL }, *const last[] = { "endif",
											       NULL };
	const char *end = "if";
	struct node *n, *branch, **tail;

	CAIRN_TRY(cairn_tpl_node(p, N_IF, line, &n));
	tail = &n->list;
	while (strcmp(end, "endif")) {
		bool otherwise = !strcmp(end, "else");

		CAIRN_TRY(cairn_tpl_node(p, N_BRANCH, cairn_tpl_peek(p, 0)->line, &branch));
		if (!otherwise)
			CAIRN_TRY(cairn_tpl_tuple(p, false, &branch->a));
		CAIRN_TRY(block(p, otherwise ? last : ends, &end, &branch->list));
		CAIRN_TRY(cairn_tpl_node_done(p, branch));
		*tail = branch;
		tail = &branch->next;
	}
	CAIRN_TRY(expect_kind(p, T_BLOCK_END, "%}"));
	*out = n;
	return cairn_tpl_node_done(p, n);
}

static int parse_set(struct parser *p, int line, struct node **out)
{
	static const char *const ends[] = { "endset", NULL };
	const char *end;
	struct node *n;

	CAIRN_TRY(cairn_tpl_node(p, N_SET, line, &n));
	if (cairn_tpl_peek(p, 1)->kind == T_OP && !strcmp(cairn_tpl_peek(p, 1)->name, ".")) {
		/* assigns to a member of a namespace */
		CAIRN_TRY(cairn_tpl_node(p, N_ATTR, line, &n->a));
		CAIRN_TRY(cairn_tpl_node(p, N_NAME, line, &n->a->a));
		CAIRN_TRY(cairn_tpl_expect_name(p, &n->a->a->name));
		p->at++;
		CAIRN_TRY(cairn_tpl_expect_name(p, &n->a->name));
	} else {
		CAIRN_TRY(target(p, &n->a));
	}
	if (cairn_tpl_skip_op(p, "=")) {
		CAIRN_TRY(cairn_tpl_tuple(p, true, &n->b));
	} else if (cairn_tpl_is_op(p, "|")) {
		return cairn_tpl_syntax(p, EOPNOTSUPP, line, "set ... | filter is not supported");
	} else {
		n->kind = N_SET_BLOCK;
		CAIRN_TRY(block(p, ends, &end, &n->list));
	}
	CAIRN_TRY(expect_kind(p, T_BLOCK_END, "%}"));
	*out = n;
	return cairn_tpl_node_done(p, n);
}

static int parse_macro(struct parser *p, int line, struct node **out)
{
	static const char *const ends[] = { "endmacro", NULL };
	int loops = p->loops;
	const char *end;
	struct node *n;

	CAIRN_TRY(cairn_tpl_node(p, N_MACRO, line, &n));
	CAIRN_TRY(cairn_tpl_expect_name(p, &n->name));
	CAIRN_TRY(cairn_tpl_signature(p, &n->list2));
	p->loops = 0;
	CAIRN_TRY(block(p, ends, &end, &n->list));
	p->loops = loops;
	CAIRN_TRY(expect_kind(p, T_BLOCK_END, "%}"));
	*out = n;
	return cairn_tpl_node_done(p, n);
}

static int statement(struct parser *p, struct node **out)
{
	static const char *const ends[] = { "endgeneration", NULL };
	int line = cairn_tpl_peek(p, 0)->line;
	const char *name = "", *end;
	char quoted[CAIRN_QUOTE_LEN];

	CAIRN_TRY(cairn_tpl_expect_name(p, &name));
	if (!strcmp(name, "for"))
		return parse_for(p, line, out);
	if (!strcmp(name, "if"))
		return parse_if(p, line, out);
	if (!strcmp(name, "set"))
		return parse_set(p, line, out);
	if (!strcmp(name, "macro"))
		return parse_macro(p, line, out);
	if (!strcmp(name, "break") || !strcmp(name, "continue")) {
		if (!p->loops)
			return cairn_tpl_syntax(p, EINVAL, line, "%s outside of a for", name);
		CAIRN_TRY(cairn_tpl_node(p, *name == 'b' ? N_BREAK : N_CONTINUE, line, out));
		return expect_kind(p, T_BLOCK_END, "%}");
	}
	if (!strcmp(name, "generation")) {
		/* marks the assistant's text for training; no effect on the output */
		CAIRN_TRY(cairn_tpl_node(p, N_SCOPE, line, out));
		CAIRN_TRY(block(p, ends, &end, &(*out)->list));
		CAIRN_TRY(expect_kind(p, T_BLOCK_END, "%}"));
		return cairn_tpl_node_done(p, *out);
	}
	return cairn_tpl_syntax(p, EOPNOTSUPP, line, "statement %s is not supported here",
				cairn_quote(name, strlen(name), quoted));
}

static int output(struct parser *p, struct node **out)
{
	int line = cairn_tpl_peek(p, 0)->line;

	CAIRN_TRY(cairn_tpl_node(p, N_OUTPUT, line, out));
	CAIRN_TRY(cairn_tpl_tuple(p, true, &(*out)->a));
	CAIRN_TRY(expect_kind(p, T_VAR_END, "}}"));
	return cairn_tpl_node_done(p, *out);
}

/* Parses statements up to and including "{%" and one of `ends`; ends NULL: up to the end of the source. */
static int body(struct parser *p, const char *const *ends, const char **end, struct node **out)
{
	const struct tok *start = cairn_tpl_peek(p, 0);
	struct node **tail = out, *n = NULL;

	if (++p->depth > TPL_MAX_HEIGHT)
		return cairn_tpl_syntax(p, EINVAL, start->line, "nested deeper than %d", TPL_MAX_HEIGHT);
	*out = NULL;
	for (;; tail = &n->next) {
		const struct tok *t = cairn_tpl_peek(p, 0);

		if (t->kind == T_EOF) {
			p->depth--;
			return ends ? cairn_tpl_syntax(p, EINVAL, start->line, "no matching %s", ends[0])
				    : 0;
		}
		p->at++;
		if (t->kind == T_DATA) {
			CAIRN_TRY(cairn_tpl_node(p, N_DATA, t->line, &n));
			n->value = (struct val) { .kind = V_STR, .str = t->str };
		} else if (t->kind == T_VAR_BEGIN) {
			CAIRN_TRY(output(p, &n));
		} else {
			for (int i = 0; ends && ends[i]; i++) {
				if (!cairn_tpl_skip_name(p, ends[i]))
					continue;
				*end = ends[i];
				p->depth--;
				return 0;
			}
			CAIRN_TRY(statement(p, &n));
		}
		*tail = n;
	}
}

int cairn_tpl_parse(struct cairn_chat_template *t, const char *source, size_t num_bytes)
{
	struct parser p = { .t = t };
	int ret;

	if (num_bytes > TPL_MAX_SOURCE)
		return cairn_error(EINVAL, "%s: %zu bytes, at most %u are accepted", t->name, num_bytes,
				   TPL_MAX_SOURCE);
	ret = cairn_tpl_lex(&p, source, num_bytes);
	if (!ret)
		ret = body(&p, NULL, NULL, &t->body);
	free(p.toks);
	return ret;
}
