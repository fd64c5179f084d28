/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chat_template_impl - internal structures and functions of the chat_template files
 *
 * chat_template_lex.c turns the source into tokens; chat_template_parse.c and chat_template_expr.c turn
 * tokens into a tree; chat_template_eval.c turns the tree into text, with the operators of
 * chat_template_ops.c, the filters of chat_template_filters.c and chat_template_select.c, the tests of
 * chat_template_tests.c, the methods and functions of chat_template_methods.c, the strings of
 * chat_template_text.c and the values of chat_template_value.c.
 * Only these files include this header.
 *
 * All memory of a tree, and of a render, is one arena that is freed as a whole: no value has an owner.
 */
#ifndef CAIRN_CHAT_TEMPLATE_IMPL_H
#define CAIRN_CHAT_TEMPLATE_IMPL_H

#include "serving/template/chat_template_tree.h"

struct var {
	const char *name;
	struct val value;
	struct var *next;
};

struct scope {
	struct scope *up;
	struct var *vars;
};

/* Text under construction. */
struct out {
	char *s;
	unsigned char *user; /* [cap], origin of each byte; NULL until one comes from the conversation */
	size_t len, cap;
};

struct render {
	const struct cairn_chat_template *tpl;
	struct arena arena;
	struct scope *scope, globals;
	const char *loop_name; /* "loop" interned; NULL: the template does not use it */
	struct out *out;
	int64_t steps, max_steps;
	size_t max_output;
	int depth;
	time_t now;
};

struct args {
	struct val v[TPL_MAX_ARGS];
	const char *names[TPL_MAX_ARGS]; /* NULL: positional */
	int num;
};

int cairn_tpl_run(struct render *r, struct out *out);

/* Sets the error text, which begins with a line number of the template, and returns -err. */
int cairn_tpl_error(const struct render *r, int err, int line, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
int cairn_tpl_charge(struct render *r, int line, size_t bytes);

/* Values */
struct val cairn_tpl_str(const char *s);         /* a string that counts as the template's */
const char *cairn_tpl_kind(const struct val *v); /* "a string" */
bool cairn_tpl_true(const struct val *v);
int cairn_tpl_equal(struct render *r, int line, const struct val *a, const struct val *b, bool *equal);
int cairn_tpl_list_add(struct render *r, struct list *l, const struct val *v);
int cairn_tpl_dict_set(struct render *r, struct dict *d, const struct val *key, const struct val *v);
/* Sets *found to the value of a key that is a string, or to NULL. */
int cairn_tpl_dict_get(struct render *r, int line, const struct dict *d, const struct str *key,
		       const struct val **found);
/* Sets an error if Python cannot hash v: lists, dicts, tuples that contain such values. */
int cairn_tpl_need_key(struct render *r, int line, const struct val *v);
struct list *cairn_tpl_new_list(struct render *r, size_t cap);
int cairn_tpl_from_json(struct render *r, const json_t *json, struct val *out);
/* Grows o to a capacity of cap bytes; user: also allocates the origins. */
int cairn_tpl_reserve(struct render *r, struct out *o, size_t cap, bool user);
int cairn_tpl_put(struct render *r, int line, struct out *o, struct str s);
int cairn_tpl_puts(struct render *r, int line, struct out *o, const char *s);
struct str cairn_tpl_taken(const struct out *o);
/* Python's str(v) and repr(v); for containers both are the same. */
int cairn_tpl_print(struct render *r, int line, const struct val *v, struct out *o);
int cairn_tpl_repr(struct render *r, int line, const struct val *v, struct out *o);
int cairn_tpl_float(struct render *r, int line, double f, char buf[40]);
int cairn_tpl_to_str(struct render *r, int line, const struct val *v, struct str *s);
/* Returns the elements of v in order: characters of a string, keys of a dict. */
int cairn_tpl_elements(struct render *r, int line, const struct val *v, const struct list **list);
struct json_style {
	bool ascii, sort;
	int64_t indent;       /* -1: one line */
	struct str item, key; /* separators */
};
int cairn_tpl_json(struct render *r, int line, const struct val *v, const struct json_style *style, int depth,
		   struct out *o);

/* Strings */
struct str cairn_tpl_sub(struct str s, size_t begin, size_t end);
bool cairn_tpl_same(const struct str *a, const struct str *b);
size_t cairn_tpl_length(const struct str *s); /* characters */
bool cairn_tpl_space(uint32_t cp);
/* Strips white space; sides: 1 left, 2 right, 3 both. */
struct str cairn_tpl_strip(struct str s, int sides);
/* Strips the characters in chars; charges for the search of each one. */
int cairn_tpl_strip_chars(struct render *r, int line, struct str s, struct str chars, int sides,
			  struct str *out);
const char *cairn_tpl_find(struct str s, struct str part);
int cairn_tpl_case(struct render *r, int line, struct str s, char how, struct str *to);
int cairn_tpl_replace(struct render *r, int line, struct str s, struct str from, struct str to, int64_t count,
		      struct str *out);
int cairn_tpl_lines(struct render *r, struct str s, struct list *l);

/* Operators */
int cairn_tpl_binary(struct render *r, int line, enum op op, const struct val *a, const struct val *b,
		     struct val *out);
int cairn_tpl_compare(struct render *r, int line, enum op op, const struct val *a, const struct val *b,
		      bool *result);
int cairn_tpl_item(struct render *r, int line, const struct val *v, const struct val *key, struct val *out);
int cairn_tpl_attr(struct render *r, int line, const struct val *v, struct str name, struct val *out);
int cairn_tpl_slice(struct render *r, int line, const struct val *v, const struct val *from,
		    const struct val *to, const struct val *step, struct val *out);

/*
 * Functions. cairn_tpl_bind() sets v[i] to the argument named names[i] or at position i, or to V_ABSENT if
 * there is none. The first `required` arguments must be present.
 */
int cairn_tpl_bind(struct render *r, int line, const char *what, const struct args *args,
		   const char *const *names, int num, int required, struct val *v);
int cairn_tpl_call(struct render *r, int line, const struct val *callee, const struct args *args,
		   struct val *out);
int cairn_tpl_call_macro(struct render *r, int line, const struct macro *m, const struct args *args,
			 struct val *out);
/* Returns the name in the table of filters or tests, or NULL. */
const char *cairn_tpl_known_filter(const char *name);
const char *cairn_tpl_known_test(const char *name);
int cairn_tpl_filter(struct render *r, int line, const char *name, const struct val *v,
		     const struct args *args, struct val *out);
int cairn_tpl_test(struct render *r, int line, const char *name, const struct val *v, const struct args *args,
		   bool *result);
/* Parses a text that consists of a number and surrounding blanks; `whole`: integers only. */
bool cairn_tpl_number(struct str s, bool whole, int64_t *i, double *f);
/* Looks up v.a.b for a path "a.b". */
int cairn_tpl_path(struct render *r, int line, const struct val *v, const struct val *path, struct val *out);

typedef int filter_fn(struct render *r, int line, const struct val *v, const struct args *args,
		      struct val *out);
filter_fn cairn_tpl_map, cairn_tpl_select, cairn_tpl_reject, cairn_tpl_selectattr, cairn_tpl_rejectattr,
	cairn_tpl_unique;
/* Returns the name in the method table if values like v have this method, otherwise NULL. */
const char *cairn_tpl_method(const struct val *v, struct str name);
/* Returns the index of the global function, or -1. */
int cairn_tpl_global(const char *name);

#endif
