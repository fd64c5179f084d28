/* SPDX-License-Identifier: Apache-2.0 */
/* chat_template_tree - values, the tree of a template, an open template; see chat_template_impl.h */
#ifndef CAIRN_CHAT_TEMPLATE_TREE_H
#define CAIRN_CHAT_TEMPLATE_TREE_H

#include "serving/template/chat_template.h"

#define TPL_MAX_SOURCE (1u << 20)
#define TPL_MAX_HEIGHT 100 /* of the tree */
#define TPL_MAX_DEPTH 400  /* of evaluation: nesting of the tree and of macro calls */
#define TPL_MAX_NAMES 4096
#define TPL_MAX_NAME 255 /* bytes */
#define TPL_MAX_ARGS 16

struct arena {
	struct arena_block *blocks;
	size_t used, limit;
};

/* A string, not terminated. user[i]: byte i comes from the conversation; user NULL: none does. */
struct str {
	const char *s;
	const unsigned char *user;
	size_t len;
};

enum val_kind {
	V_ABSENT,    /* marks an argument that was not given; no variable holds it */
	V_UNDEFINED, /* str: the undefined expression, for messages */
	V_NONE,
	V_BOOL,
	V_INT,
	V_FLOAT,
	V_STR,
	V_LIST,
	V_TUPLE,
	V_DICT,
	V_NAMESPACE,
	V_LOOP,
	V_MACRO,
	V_METHOD,
	V_GLOBAL,
};

struct val {
	enum val_kind kind;
	union {
		int64_t i; /* BOOL: 0 or 1; GLOBAL: the index of the function */
		double f;
		struct str str;
		struct list *list; /* LIST, TUPLE */
		struct dict *dict; /* DICT, NAMESPACE */
		struct loop *loop;
		struct macro *macro;
		struct method *method;
	};
};

struct list {
	struct val *v;
	size_t num, cap;
};

struct dict {
	struct val *keys, *vals;
	size_t num, cap;
};

struct loop {
	const struct list *list;
	size_t index;
};

struct method {
	struct val self;
	const char *name; /* of the method table, or "cycle" */
};

struct macro {
	const struct node *node;
	struct scope *scope; /* the scope of its definition */
};

enum node_kind {
	/* statements: the body is in list, the else body in list2 */
	N_DATA,
	N_OUTPUT,
	N_IF,
	N_BRANCH,
	N_FOR,
	N_SET,
	N_SET_BLOCK,
	N_MACRO,
	N_BREAK,
	N_CONTINUE,
	N_SCOPE,
	/* expressions */
	N_CONST,
	N_NAME,
	N_LIST,
	N_TUPLE,
	N_DICT,
	N_COND,
	N_AND,
	N_OR,
	N_NOT,
	N_NEG,
	N_POS,
	N_BINARY,
	N_CONCAT,
	N_COMPARE,
	N_OPERAND,
	N_ATTR,
	N_ITEM,
	N_SLICE,
	N_CALL,
	N_FILTER,
	N_TEST,
	N_KEYWORD,
	N_PARAM,
};

enum op {
	OP_ADD,
	OP_SUB,
	OP_MUL,
	OP_DIV,
	OP_FLOORDIV,
	OP_MOD,
	OP_POW,
	OP_EQ,
	OP_NE,
	OP_LT,
	OP_LE,
	OP_GT,
	OP_GE,
	OP_IN,
	OP_NOT_IN,
};

struct node {
	enum node_kind kind;
	enum op op;
	int line, height;
	struct node *next; /* sibling in the list that contains this node */
	struct node *a, *b, *c;
	struct node *list, *list2;
	const char *name; /* interned: equal names have equal pointers */
	struct val value;
};

struct cairn_chat_template {
	char *name, *source;
	struct arena arena;
	struct node *body;
	const char **names; /* [num_names], interned, NUL-terminated */
	size_t num_names;
	struct dict tokens; /* bos_token, ... */
};

/* Returns zeroed memory, 16-byte aligned; NULL with cairn_last_error() set beyond the limit. */
void *cairn_tpl_alloc(struct arena *a, size_t bytes);
void cairn_tpl_arena_free(struct arena *a);

/* Parses the source into t->body. */
int cairn_tpl_parse(struct cairn_chat_template *t, const char *source, size_t num_bytes);
/* Returns the unique pointer for a name; NULL with cairn_last_error() set. */
const char *cairn_tpl_intern(struct cairn_chat_template *t, const char *s, size_t len);

#endif
