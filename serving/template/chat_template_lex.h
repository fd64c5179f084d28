/* SPDX-License-Identifier: Apache-2.0 */
/* chat_template_lex - tokens of a template and the parser's cursor; only the lexer and parsers include it */
#ifndef CAIRN_CHAT_TEMPLATE_LEX_H
#define CAIRN_CHAT_TEMPLATE_LEX_H

#include "serving/template/chat_template_impl.h"

enum tok_kind {
	T_EOF,
	T_DATA,
	T_BLOCK_BEGIN,
	T_BLOCK_END,
	T_VAR_BEGIN,
	T_VAR_END,
	T_NAME,
	T_STR,
	T_INT,
	T_FLOAT,
	T_OP
};

struct tok {
	enum tok_kind kind;
	int line;
	const char *name; /* NAME: interned; OP: its spelling */
	struct str str;   /* DATA, STR */
	int64_t i;
	double f;
};

struct parser {
	struct cairn_chat_template *t;
	struct tok *toks; /* ended by T_EOF; cairn_tpl_parse() frees it */
	size_t num_toks, cap_toks, at;
	int depth; /* recursion depth */
	int loops; /* nesting of for statements around the cursor */
};

int cairn_tpl_lex(struct parser *p, const char *source, size_t num_bytes);

int cairn_tpl_syntax(const struct parser *p, int err, int line, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
int cairn_tpl_unexpected(const struct parser *p, const char *want);
const struct tok *cairn_tpl_peek(const struct parser *p, size_t ahead);
bool cairn_tpl_is_op(const struct parser *p, const char *op);
bool cairn_tpl_is_name(const struct parser *p, const char *name);
/* Return whether the next token matches, and skip it if so. */
bool cairn_tpl_skip_op(struct parser *p, const char *op);
bool cairn_tpl_skip_name(struct parser *p, const char *name);
int cairn_tpl_expect_op(struct parser *p, const char *op);
int cairn_tpl_expect_name(struct parser *p, const char **name);

int cairn_tpl_node(struct parser *p, enum node_kind kind, int line, struct node **out);
/* Finishes a node: computes its height from its children, which must all be set. */
int cairn_tpl_node_done(struct parser *p, struct node *n);

/* with_if: accept `a if b else c` (not after the `in` of a for, nor inside an inline if) */
int cairn_tpl_expression(struct parser *p, bool with_if, struct node **out);
/* Parses one expression, or several separated by commas as a tuple. */
int cairn_tpl_tuple(struct parser *p, bool with_if, struct node **out);
/* Parses (a, b=1) into a list of N_PARAM in order. */
int cairn_tpl_signature(struct parser *p, struct node **params);

#endif
