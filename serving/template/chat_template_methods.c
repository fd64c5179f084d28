// SPDX-License-Identifier: Apache-2.0
/* chat_template_methods - methods of strings and dicts, functions of Jinja and transformers, calls */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "primitives/base/error.h"
#include "serving/template/chat_template_impl.h"
#include "serving/base/json.h"
#include "serving/base/utf8.h"

typedef int method_fn(struct render *r, int line, const struct val *self, const char *name,
		      const struct args *args, struct val *out);

static struct val of_str(struct str s)
{
	return (struct val) { .kind = V_STR, .str = s };
}

static struct val of_bool(bool b)
{
	return (struct val) { .kind = V_BOOL, .i = b };
}

#define BIND(required, v, ...)                                                                               \
	CAIRN_TRY(cairn_tpl_bind(r, line, name, args, (const char *const[]) { __VA_ARGS__ },                 \
				 sizeof(v) / sizeof(*(v)), required, v))

static int want_str(struct render *r, int line, const char *name, const struct val *v)
{
	if (v->kind == V_STR)
		return 0;
	return cairn_tpl_error(r, EINVAL, line, "%s needs a string, got %s", name, cairn_tpl_kind(v));
}

static int no_args(struct render *r, int line, const char *name, const struct args *args)
{
	return args->num ? cairn_tpl_error(r, EINVAL, line, "%s takes no argument", name) : 0;
}

static int str_case(struct render *r, int line, const struct val *self, const char *name,
		    const struct args *args, struct val *out)
{
	CAIRN_TRY(no_args(r, line, name, args));
	*out = of_str(self->str);
	return cairn_tpl_case(r, line, self->str, *name, &out->str);
}

static int str_strip(struct render *r, int line, const struct val *self, const char *name,
		     const struct args *args, struct val *out)
{
	int sides = *name == 'l' ? 1 : *name == 'r' ? 2 : 3;
	struct str s = self->str;
	struct val a[1];

	BIND(0, a, "chars");
	if (a[0].kind != V_ABSENT && a[0].kind != V_NONE)
		CAIRN_TRY(want_str(r, line, name, &a[0]));
	CAIRN_TRY(cairn_tpl_charge(r, line, s.len));
	if (a[0].kind == V_STR)
		CAIRN_TRY(cairn_tpl_strip_chars(r, line, s, a[0].str, sides, &s));
	else
		s = cairn_tpl_strip(s, sides);
	*out = of_str(s);
	return 0;
}

static bool has_end(const struct str *s, const struct str *part, bool at_end)
{
	return s->len >= part->len && !memcmp(s->s + (at_end ? s->len - part->len : 0), part->s, part->len);
}

static int str_ends(struct render *r, int line, const struct val *self, const char *name,
		    const struct args *args, struct val *out)
{
	const struct val *each;
	size_t num = 1;
	struct val a[1];

	BIND(1, a, "prefix");
	each = &a[0];
	if (a[0].kind == V_TUPLE) {
		each = a[0].list->v;
		num = a[0].list->num;
	}
	*out = of_bool(false);
	for (size_t i = 0; i < num; i++) {
		CAIRN_TRY(want_str(r, line, name, &each[i]));
		CAIRN_TRY(cairn_tpl_charge(r, line, each[i].str.len));
		if (has_end(&self->str, &each[i].str, *name == 'e'))
			*out = of_bool(true);
	}
	return 0;
}

static int str_remove(struct render *r, int line, const struct val *self, const char *name,
		      const struct args *args, struct val *out)
{
	bool at_end = !strcmp(name, "removesuffix");
	struct val a[1];

	BIND(1, a, "prefix");
	CAIRN_TRY(want_str(r, line, name, &a[0]));
	CAIRN_TRY(cairn_tpl_charge(r, line, a[0].str.len));
	*out = *self;
	if (has_end(&self->str, &a[0].str, at_end))
		out->str = cairn_tpl_sub(self->str, at_end ? 0 : a[0].str.len,
					 self->str.len - (at_end ? a[0].str.len : 0));
	return 0;
}

/*
 * Finds part in s, the last occurrence if from_right; *found is NULL if there is none. memmem() takes linear
 * time. From the right each place with the first byte of part may cost a comparison of the whole part.
 */
static int find(struct render *r, int line, struct str s, struct str part, bool from_right,
		const char **found)
{
	size_t num = s.len >= part.len ? s.len - part.len + 1 : 0; /* places that are not ruled out */

	if (!from_right || !part.len) {
		*found = from_right ? s.s + s.len : cairn_tpl_find(s, part);
		return 0;
	}
	while ((*found = memrchr(s.s, part.s[0], num))) {
		CAIRN_TRY(cairn_tpl_charge(r, line, part.len));
		if (!memcmp(*found, part.s, part.len))
			break;
		num = (size_t)(*found - s.s);
	}
	return 0;
}

static int str_find(struct render *r, int line, const struct val *self, const char *name,
		    const struct args *args, struct val *out)
{
	const char *found;
	struct str before;
	struct val a[1];

	BIND(1, a, "sub");
	CAIRN_TRY(want_str(r, line, name, &a[0]));
	CAIRN_TRY(cairn_tpl_charge(r, line, self->str.len));
	CAIRN_TRY(find(r, line, self->str, a[0].str, *name == 'r', &found));
	*out = (struct val) { .kind = V_INT, .i = -1 };
	if (found) {
		before = cairn_tpl_sub(self->str, 0, (size_t)(found - self->str.s));
		out->i = (int64_t)cairn_tpl_length(&before);
	}
	return 0;
}

static int str_count(struct render *r, int line, const struct val *self, const char *name,
		     const struct args *args, struct val *out)
{
	struct val a[1];
	struct str rest = self->str;
	const char *found;

	BIND(1, a, "sub");
	CAIRN_TRY(want_str(r, line, name, &a[0]));
	CAIRN_TRY(cairn_tpl_charge(r, line, 4 * self->str.len));
	*out = (struct val) { .kind = V_INT };
	if (!a[0].str.len)
		out->i = (int64_t)cairn_tpl_length(&rest) + 1;
	while (a[0].str.len && (found = cairn_tpl_find(rest, a[0].str))) {
		out->i++;
		rest = cairn_tpl_sub(rest, (size_t)(found - rest.s) + a[0].str.len, rest.len);
	}
	return 0;
}

/* Implements split() without a separator: splits at runs of white space and drops them. */
static int split_blanks(struct render *r, struct str s, int64_t max, bool from_right, struct list *l)
{
	for (;;) {
		struct val piece = { .kind = V_STR };
		struct str rest;
		size_t n = 0;

		s = cairn_tpl_strip(s, max == 0 && !from_right ? 1 : max == 0 ? 2 : from_right ? 2 : 1);
		if (!s.len)
			return 0;
		if (max-- == 0) {
			piece.str = s;
			return cairn_tpl_list_add(r, l, &piece);
		}
		if (from_right) {
			size_t at = s.len, k;

			for (; at > 0; at = k) {
				for (k = at - 1; ((unsigned char)s.s[k] & 0xc0) == 0x80; k--)
					;
				if (cairn_tpl_space(cairn_utf8_get(s.s + k)))
					break;
			}
			piece.str = cairn_tpl_sub(s, at, s.len);
			rest = cairn_tpl_sub(s, 0, at);
		} else {
			while (n < s.len && !cairn_tpl_space(cairn_utf8_get(s.s + n)))
				n += cairn_utf8_len(s.s + n);
			piece.str = cairn_tpl_sub(s, 0, n);
			rest = cairn_tpl_sub(s, n, s.len);
		}
		CAIRN_TRY(cairn_tpl_list_add(r, l, &piece));
		s = rest;
	}
}

static int split_at(struct render *r, int line, struct str s, struct str sep, int64_t max, bool from_right,
		    struct list *l)
{
	struct val piece = { .kind = V_STR };
	const char *found;

	for (; max != 0; max--) {
		CAIRN_TRY(find(r, line, s, sep, from_right, &found));
		if (!found)
			break;
		if (from_right) {
			piece.str = cairn_tpl_sub(s, (size_t)(found - s.s) + sep.len, s.len);
			s = cairn_tpl_sub(s, 0, (size_t)(found - s.s));
		} else {
			piece.str = cairn_tpl_sub(s, 0, (size_t)(found - s.s));
			s = cairn_tpl_sub(s, (size_t)(found - s.s) + sep.len, s.len);
		}
		CAIRN_TRY(cairn_tpl_list_add(r, l, &piece));
	}
	piece.str = s;
	return cairn_tpl_list_add(r, l, &piece);
}

static int str_split(struct render *r, int line, const struct val *self, const char *name,
		     const struct args *args, struct val *out)
{
	struct list *l = cairn_tpl_new_list(r, 0);
	bool from_right = *name == 'r';
	struct val a[2];
	int64_t max = -1;

	BIND(0, a, "sep", "maxsplit");
	if (a[1].kind == V_INT)
		max = a[1].i < 0 ? -1 : a[1].i;
	CAIRN_TRY(cairn_tpl_charge(r, line, 4 * self->str.len));
	if (!l)
		return -EINVAL;
	if (a[0].kind == V_ABSENT || a[0].kind == V_NONE) {
		CAIRN_TRY(split_blanks(r, self->str, max, from_right, l));
	} else {
		CAIRN_TRY(want_str(r, line, name, &a[0]));
		if (!a[0].str.len)
			return cairn_tpl_error(r, EINVAL, line, "split: the separator is empty");
		CAIRN_TRY(split_at(r, line, self->str, a[0].str, max, from_right, l));
	}
	for (size_t i = 0; from_right && i < l->num / 2; i++) {
		struct val other = l->v[l->num - 1 - i];

		l->v[l->num - 1 - i] = l->v[i];
		l->v[i] = other;
	}
	*out = (struct val) { .kind = V_LIST, .list = l };
	return 0;
}

static int str_lines(struct render *r, int line, const struct val *self, const char *name,
		     const struct args *args, struct val *out)
{
	struct list *l = cairn_tpl_new_list(r, 0);

	CAIRN_TRY(no_args(r, line, name, args));
	CAIRN_TRY(cairn_tpl_charge(r, line, self->str.len));
	if (!l)
		return -EINVAL;
	CAIRN_TRY(cairn_tpl_lines(r, self->str, l));
	*out = (struct val) { .kind = V_LIST, .list = l };
	return 0;
}

static int str_replace(struct render *r, int line, const struct val *self, const char *name,
		       const struct args *args, struct val *out)
{
	struct val a[3];

	BIND(2, a, "old", "new", "count");
	CAIRN_TRY(want_str(r, line, name, &a[0]));
	CAIRN_TRY(want_str(r, line, name, &a[1]));
	*out = *self;
	return cairn_tpl_replace(r, line, self->str, a[0].str, a[1].str, a[2].kind == V_INT ? a[2].i : -1,
				 &out->str);
}

static int str_join(struct render *r, int line, const struct val *self, const char *name,
		    const struct args *args, struct val *out)
{
	const struct list *l;
	struct out o = { 0 };
	struct val a[1];

	BIND(1, a, "iterable");
	CAIRN_TRY(cairn_tpl_elements(r, line, &a[0], &l));
	for (size_t i = 0; i < l->num; i++) {
		CAIRN_TRY(want_str(r, line, name, &l->v[i]));
		if (i)
			CAIRN_TRY(cairn_tpl_put(r, line, &o, self->str));
		CAIRN_TRY(cairn_tpl_put(r, line, &o, l->v[i].str));
	}
	*out = of_str(cairn_tpl_taken(&o));
	return 0;
}

static int str_is(struct render *r, int line, const struct val *self, const char *name,
		  const struct args *args, struct val *out)
{
	struct str s = self->str;

	CAIRN_TRY(no_args(r, line, name, args));
	CAIRN_TRY(cairn_tpl_charge(r, line, s.len));
	*out = of_bool(s.len > 0);
	for (size_t i = 0; i < s.len; i += cairn_utf8_len(s.s + i)) {
		uint32_t cp = cairn_utf8_get(s.s + i);
		utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
		bool ok = name[2] == 's'   ? cairn_tpl_space(cp)
			  : name[2] == 'd' ? c == UTF8PROC_CATEGORY_ND
					   : c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;

		if (!ok)
			*out = of_bool(false);
	}
	return 0;
}

static int dict_get(struct render *r, int line, const struct val *self, const char *name,
		    const struct args *args, struct val *out)
{
	struct val a[2];

	BIND(1, a, "key", "default");
	*out = a[1].kind == V_ABSENT ? (struct val) { .kind = V_NONE } : a[1];
	for (size_t i = 0; i < self->dict->num; i++) {
		bool equal;

		CAIRN_TRY(cairn_tpl_equal(r, line, &self->dict->keys[i], &a[0], &equal));
		if (equal)
			*out = self->dict->vals[i];
	}
	return 0;
}

/* Implements the methods items, keys and values. */
static int dict_list(struct render *r, int line, const struct val *self, const char *name,
		     const struct args *args, struct val *out)
{
	const struct dict *d = self->dict;
	struct list *l = cairn_tpl_new_list(r, d->num);

	CAIRN_TRY(no_args(r, line, name, args));
	CAIRN_TRY(cairn_tpl_charge(r, line, 32 * d->num));
	if (!l)
		return -EINVAL;
	for (size_t i = 0; i < d->num; i++) {
		struct val one = *name == 'k' ? d->keys[i] : d->vals[i];

		if (*name == 'i') {
			one = (struct val) { .kind = V_TUPLE, .list = cairn_tpl_new_list(r, 2) };
			if (!one.list)
				return -EINVAL;
			CAIRN_TRY(cairn_tpl_list_add(r, one.list, &d->keys[i]));
			CAIRN_TRY(cairn_tpl_list_add(r, one.list, &d->vals[i]));
		}
		CAIRN_TRY(cairn_tpl_list_add(r, l, &one));
	}
	*out = (struct val) { .kind = V_LIST, .list = l };
	return 0;
}

static int loop_cycle(struct render *r, int line, const struct val *self, const char *name,
		      const struct args *args, struct val *out)
{
	if (!args->num)
		return cairn_tpl_error(r, EINVAL, line, "%s needs at least one argument", name);
	*out = args->v[self->loop->index % (size_t)args->num];
	return 0;
}

static const struct {
	enum val_kind kind;
	const char *name;
	method_fn *run;
} methods[] = {
	{ V_STR, "capitalize", str_case },     { V_STR, "lower", str_case },
	{ V_STR, "title", str_case },          { V_STR, "upper", str_case },
	{ V_STR, "strip", str_strip },         { V_STR, "lstrip", str_strip },
	{ V_STR, "rstrip", str_strip },        { V_STR, "startswith", str_ends },
	{ V_STR, "endswith", str_ends },       { V_STR, "removeprefix", str_remove },
	{ V_STR, "removesuffix", str_remove }, { V_STR, "find", str_find },
	{ V_STR, "rfind", str_find },          { V_STR, "count", str_count },
	{ V_STR, "split", str_split },         { V_STR, "rsplit", str_split },
	{ V_STR, "splitlines", str_lines },    { V_STR, "replace", str_replace },
	{ V_STR, "join", str_join },           { V_STR, "isdigit", str_is },
	{ V_STR, "isalpha", str_is },          { V_STR, "isspace", str_is },
	{ V_DICT, "get", dict_get },           { V_DICT, "items", dict_list },
	{ V_DICT, "keys", dict_list },         { V_DICT, "values", dict_list },
	{ V_LOOP, "cycle", loop_cycle },
};

const char *cairn_tpl_method(const struct val *v, struct str name)
{
	for (size_t i = 0; i < sizeof(methods) / sizeof(*methods); i++)
		if (methods[i].kind == v->kind && strlen(methods[i].name) == name.len &&
		    !memcmp(methods[i].name, name.s, name.len))
			return methods[i].name;
	return NULL;
}

enum { RANGE, NAMESPACE, DICT, RAISE, STRFTIME };

int cairn_tpl_global(const char *name)
{
	static const char *const names[] = { "range", "namespace", "dict", "raise_exception",
					     "strftime_now" };

	for (int i = 0; i < 5; i++)
		if (!strcmp(names[i], name))
			return i;
	return -1;
}

static int range(struct render *r, int line, const struct args *args, struct val *out)
{
	struct list *l = cairn_tpl_new_list(r, 0);
	struct val one = { .kind = V_INT };
	int64_t from = 0, to, step = 1;

	if (args->num < 1 || args->num > 3)
		return cairn_tpl_error(r, EINVAL, line, "range takes one to three arguments");
	for (int i = 0; i < args->num; i++)
		if (args->v[i].kind != V_INT || args->names[i])
			return cairn_tpl_error(r, EINVAL, line, "range: wrong type, got %s",
					       cairn_tpl_kind(&args->v[i]));
	to = args->v[0].i;
	if (args->num > 1) {
		from = to;
		to = args->v[1].i;
	}
	if (args->num > 2)
		step = args->v[2].i;
	if (step == 0)
		return cairn_tpl_error(r, EINVAL, line, "range: step must not be 0");
	for (one.i = from; l && (step > 0 ? one.i < to : one.i > to);) {
		CAIRN_TRY(cairn_tpl_charge(r, line, 0));
		CAIRN_TRY(cairn_tpl_list_add(r, l, &one));
		if (__builtin_add_overflow(one.i, step, &one.i))
			break;
	}
	*out = (struct val) { .kind = V_LIST, .list = l };
	return l ? 0 : -EINVAL;
}

static int make_dict(struct render *r, int line, enum val_kind kind, const struct args *args, struct val *out)
{
	struct dict *d = cairn_tpl_alloc(&r->arena, sizeof(*d));
	int from = 0;

	if (!d)
		return -EINVAL;
	if (args->num && !args->names[0] && args->v[0].kind == V_DICT) {
		const struct dict *first = args->v[0].dict;

		for (size_t i = 0; i < first->num; i++)
			CAIRN_TRY(cairn_tpl_dict_set(r, d, &first->keys[i], &first->vals[i]));
		from = 1;
	}
	for (int i = from; i < args->num; i++) {
		struct val key;

		if (!args->names[i])
			return cairn_tpl_error(r, EINVAL, line, "an argument without a name");
		key = cairn_tpl_str(args->names[i]);
		CAIRN_TRY(cairn_tpl_dict_set(r, d, &key, &args->v[i]));
	}
	*out = (struct val) { .kind = kind, .dict = d };
	return 0;
}

static int raise(struct render *r, int line, const struct args *args)
{
	char quoted[CAIRN_QUOTE_LEN];
	struct val a[1];
	struct str s;

	CAIRN_TRY(cairn_tpl_bind(r, line, "raise_exception", args, (const char *const[]) { "message" }, 1, 1,
				 a));
	CAIRN_TRY(cairn_tpl_to_str(r, line, &a[0], &s));
	return cairn_tpl_error(r, EINVAL, line, "the template raised an exception: %s",
			       cairn_quote(s.s, s.len, quoted));
}

static int now(struct render *r, int line, const struct args *args, struct val *out)
{
	char format[128], text[512];
	struct val a[1];
	struct tm tm;
	size_t n;
	char *s;

	CAIRN_TRY(cairn_tpl_bind(r, line, "strftime_now", args, (const char *const[]) { "format" }, 1, 1, a));
	CAIRN_TRY(want_str(r, line, "strftime_now", &a[0]));
	if (a[0].str.len >= sizeof(format) || !localtime_r(&r->now, &tm))
		return cairn_tpl_error(r, EINVAL, line,
				       "strftime_now: cannot format the time with %zu bytes of format",
				       a[0].str.len);
	memcpy(format, a[0].str.s, a[0].str.len);
	format[a[0].str.len] = 0;
	/* strftime() returns 0 for an empty result and if the result does not fit, as with %1000d */
	n = strftime(text, sizeof(text), format, &tm);
	s = cairn_tpl_alloc(&r->arena, n + 1);
	if (!s)
		return -EINVAL;
	memcpy(s, text, n);
	*out = of_str((struct str) { s, NULL, n });
	return 0;
}

static int call_global(struct render *r, int line, int64_t which, const struct args *args, struct val *out)
{
	switch (which) {
	case RANGE:
		return range(r, line, args, out);
	case NAMESPACE:
		return make_dict(r, line, V_NAMESPACE, args, out);
	case DICT:
		return make_dict(r, line, V_DICT, args, out);
	case RAISE:
		return raise(r, line, args);
	default:
		return now(r, line, args, out);
	}
}

int cairn_tpl_call(struct render *r, int line, const struct val *callee, const struct args *args,
		   struct val *out)
{
	struct val result;
	char quoted[CAIRN_QUOTE_LEN];
	size_t i = 0;

	switch (callee->kind) {
	case V_MACRO:
		return cairn_tpl_call_macro(r, line, callee->macro, args, out);
	case V_GLOBAL:
		CAIRN_TRY(call_global(r, line, callee->i, args, &result));
		break;
	case V_METHOD:
		while (methods[i].kind != callee->method->self.kind ||
		       strcmp(methods[i].name, callee->method->name))
			i++;
		CAIRN_TRY(methods[i].run(r, line, &callee->method->self, methods[i].name, args, &result));
		break;
	case V_UNDEFINED:
		return cairn_tpl_error(r, EOPNOTSUPP, line, "there is no function or method %s",
				       cairn_quote(callee->str.s, callee->str.len, quoted));
	default:
		return cairn_tpl_error(r, EINVAL, line, "%s cannot be called", cairn_tpl_kind(callee));
	}
	*out = result;
	return 0;
}
