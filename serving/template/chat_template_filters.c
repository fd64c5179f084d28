// SPDX-License-Identifier: Apache-2.0
/* chat_template_filters - the filters of Jinja and transformers, and the binding of arguments */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/template/chat_template_impl.h"
#include "serving/base/utf8.h"

static struct val of_int(int64_t i)
{
	return (struct val) { .kind = V_INT, .i = i };
}

static struct val of_str(struct str s)
{
	return (struct val) { .kind = V_STR, .str = s };
}

static int wrong(struct render *r, int line, const char *what, const struct val *v)
{
	return cairn_tpl_error(r, EINVAL, line, "%s: wrong type, got %s", what, cairn_tpl_kind(v));
}

int cairn_tpl_bind(struct render *r, int line, const char *what, const struct args *args,
		   const char *const *names, int num, int required, struct val *v)
{
	for (int i = 0; i < num; i++)
		v[i] = (struct val) { .kind = V_ABSENT };
	for (int i = 0; i < args->num; i++) {
		int k = i;

		if (args->names[i])
			for (k = 0; k < num && strcmp(names[k], args->names[i]); k++)
				;
		if (k >= num && args->names[i])
			return cairn_tpl_error(r, EINVAL, line, "%s has no argument %.40s", what,
					       args->names[i]);
		if (k >= num)
			return cairn_tpl_error(r, EINVAL, line, "%s takes %d arguments at most", what, num);
		if (v[k].kind != V_ABSENT)
			return cairn_tpl_error(r, EINVAL, line, "%s: %s is given twice", what, names[k]);
		v[k] = args->v[i];
	}
	for (int i = 0; i < required; i++)
		if (v[i].kind == V_ABSENT)
			return cairn_tpl_error(r, EINVAL, line, "%s needs %s", what, names[i]);
	return 0;
}

#define BIND(what, required, v, ...)                                                                         \
	CAIRN_TRY(cairn_tpl_bind(r, line, what, args, (const char *const[]) { __VA_ARGS__ },                 \
				 sizeof(v) / sizeof(*(v)), required, v))

static int no_args(struct render *r, int line, const char *what, const struct args *args)
{
	return args->num ? cairn_tpl_error(r, EINVAL, line, "%s takes no argument", what) : 0;
}

static int filter_abs(struct render *r, int line, const struct val *v, const struct args *args,
		      struct val *out)
{
	CAIRN_TRY(no_args(r, line, "abs", args));
	if (v->kind == V_FLOAT) {
		*out = (struct val) { .kind = V_FLOAT, .f = fabs(v->f) };
		return 0;
	}
	if ((v->kind != V_INT && v->kind != V_BOOL) || v->i == INT64_MIN)
		return wrong(r, line, "abs", v);
	*out = of_int(v->i < 0 ? -v->i : v->i);
	return 0;
}

static int change_case(struct render *r, int line, const struct val *v, const struct args *args, char how,
		       struct val *out)
{
	struct str s;

	CAIRN_TRY(no_args(r, line, "this filter", args));
	CAIRN_TRY(cairn_tpl_to_str(r, line, v, &s));
	*out = of_str(s);
	return cairn_tpl_case(r, line, s, how, &out->str);
}

static int filter_upper(struct render *r, int line, const struct val *v, const struct args *args,
			struct val *out)
{
	return change_case(r, line, v, args, 'u', out);
}

static int filter_lower(struct render *r, int line, const struct val *v, const struct args *args,
			struct val *out)
{
	return change_case(r, line, v, args, 'l', out);
}

static int filter_capitalize(struct render *r, int line, const struct val *v, const struct args *args,
			     struct val *out)
{
	return change_case(r, line, v, args, 'c', out);
}

static int filter_title(struct render *r, int line, const struct val *v, const struct args *args,
			struct val *out)
{
	return change_case(r, line, v, args, 'T', out);
}

static int filter_default(struct render *r, int line, const struct val *v, const struct args *args,
			  struct val *out)
{
	struct val a[2];

	BIND("default", 0, a, "default_value", "boolean");
	*out = *v;
	if (v->kind == V_UNDEFINED || (a[1].kind != V_ABSENT && cairn_tpl_true(&a[1]) && !cairn_tpl_true(v)))
		*out = a[0].kind == V_ABSENT ? cairn_tpl_str("") : a[0];
	return 0;
}

static int filter_dictsort(struct render *r, int line, const struct val *v, const struct args *args,
			   struct val *out)
{
	struct list *l = cairn_tpl_new_list(r, 0);
	struct str *keys;

	CAIRN_TRY(no_args(r, line, "dictsort", args));
	if (v->kind != V_DICT)
		return wrong(r, line, "dictsort", v);
	keys = cairn_tpl_alloc(&r->arena, (v->dict->num + 1) * sizeof(*keys));
	if (!l || !keys)
		return -EINVAL;
	for (size_t i = 0; i < v->dict->num; i++) {
		struct val pair = { .kind = V_TUPLE, .list = cairn_tpl_new_list(r, 2) };
		size_t k = i;

		if (!pair.list)
			return -EINVAL;
		if (v->dict->keys[i].kind != V_STR)
			return cairn_tpl_error(r, EOPNOTSUPP, line, "dictsort: keys that are not strings");
		CAIRN_TRY(cairn_tpl_charge(r, line, 32 * i));
		CAIRN_TRY(cairn_tpl_list_add(r, pair.list, &v->dict->keys[i]));
		CAIRN_TRY(cairn_tpl_list_add(r, pair.list, &v->dict->vals[i]));
		CAIRN_TRY(cairn_tpl_list_add(r, l, &pair));
		CAIRN_TRY(cairn_tpl_case(r, line, v->dict->keys[i].str, 'l', &keys[i]));
		for (; k > 0; k--) {
			struct str a = keys[k - 1], b = keys[k];
			int c = memcmp(a.s, b.s, a.len < b.len ? a.len : b.len);

			if (c < 0 || (c == 0 && a.len <= b.len))
				break;
			keys[k - 1] = b;
			keys[k] = a;
			pair = l->v[k];
			l->v[k] = l->v[k - 1];
			l->v[k - 1] = pair;
		}
	}
	*out = (struct val) { .kind = V_LIST, .list = l };
	return 0;
}

static int end_of(struct render *r, int line, const struct val *v, const struct args *args, bool last,
		  struct val *out)
{
	const struct list *l;

	CAIRN_TRY(no_args(r, line, last ? "last" : "first", args));
	CAIRN_TRY(cairn_tpl_elements(r, line, v, &l));
	*out = (struct val) { .kind = V_UNDEFINED, .str = cairn_tpl_str("an element of nothing").str };
	if (l->num)
		*out = l->v[last ? l->num - 1 : 0];
	return 0;
}

static int filter_first(struct render *r, int line, const struct val *v, const struct args *args,
			struct val *out)
{
	return end_of(r, line, v, args, false, out);
}

static int filter_last(struct render *r, int line, const struct val *v, const struct args *args,
		       struct val *out)
{
	return end_of(r, line, v, args, true, out);
}

bool cairn_tpl_number(struct str s, bool whole, int64_t *i, double *f)
{
	char buf[64], *end;

	s = cairn_tpl_strip(s, 3);
	if (!s.len || s.len >= sizeof(buf))
		return false;
	for (size_t k = 0; k < s.len; k++)
		if (!strchr(whole ? "+-0123456789" : "+-.0123456789eE", s.s[k]) || !s.s[k])
			return false;
	memcpy(buf, s.s, s.len);
	buf[s.len] = 0;
	errno = 0;
	if (whole)
		*i = strtoll(buf, &end, 10);
	else
		*f = strtod(buf, &end);
	return !*end && !(whole && errno);
}

static int filter_float(struct render *r, int line, const struct val *v, const struct args *args,
			struct val *out)
{
	struct val a[1];
	double f;

	BIND("float", 0, a, "default");
	if (v->kind == V_UNDEFINED)
		return wrong(r, line, "float", v);
	if (v->kind == V_STR)
		CAIRN_TRY(cairn_tpl_charge(r, line, v->str.len));
	*out = a[0].kind == V_ABSENT ? (struct val) { .kind = V_FLOAT } : a[0];
	if (v->kind == V_FLOAT)
		*out = *v;
	else if (v->kind == V_INT || v->kind == V_BOOL)
		*out = (struct val) { .kind = V_FLOAT, .f = (double)v->i };
	else if (v->kind == V_STR && cairn_tpl_number(v->str, false, NULL, &f))
		*out = (struct val) { .kind = V_FLOAT, .f = f };
	return 0;
}

static int filter_int(struct render *r, int line, const struct val *v, const struct args *args,
		      struct val *out)
{
	struct val a[1];
	double f = 0;
	int64_t i;

	BIND("int", 0, a, "default");
	if (v->kind == V_UNDEFINED)
		return wrong(r, line, "int", v);
	if (v->kind == V_STR)
		CAIRN_TRY(cairn_tpl_charge(r, line, v->str.len));
	*out = a[0].kind == V_ABSENT ? of_int(0) : a[0];
	if (v->kind == V_INT || v->kind == V_BOOL) {
		*out = of_int(v->i);
	} else if (v->kind == V_STR && cairn_tpl_number(v->str, true, &i, NULL)) {
		*out = of_int(i);
	} else if (v->kind == V_FLOAT || (v->kind == V_STR && cairn_tpl_number(v->str, false, NULL, &f))) {
		f = v->kind == V_FLOAT ? v->f : f;
		if (!(fabs(f) < 9e18))
			return cairn_tpl_error(r, EINVAL, line, "an integer beyond 64 bits");
		*out = of_int((int64_t)f);
	}
	return 0;
}

static int filter_indent(struct render *r, int line, const struct val *v, const struct args *args,
			 struct val *out)
{
	struct list *lines = cairn_tpl_new_list(r, 0);
	struct val a[3];
	struct str s, by;
	struct out o = { 0 }, pad = { 0 };
	bool first, blank;

	BIND("indent", 0, a, "width", "first", "blank");
	first = cairn_tpl_true(&a[1]);
	blank = cairn_tpl_true(&a[2]);
	if (a[0].kind == V_ABSENT)
		a[0] = of_int(4);
	if (a[0].kind != V_STR && (a[0].kind != V_INT || a[0].i < 0 || a[0].i > 1000))
		return wrong(r, line, "indent: width", &a[0]);
	for (int64_t i = 0; a[0].kind == V_INT && i < a[0].i; i++)
		CAIRN_TRY(cairn_tpl_puts(r, line, &pad, " "));
	by = a[0].kind == V_STR ? a[0].str : cairn_tpl_taken(&pad);
	if (v->kind != V_STR)
		return wrong(r, line, "indent", v);
	s = v->str;
	if (!lines)
		return -EINVAL;
	CAIRN_TRY(cairn_tpl_charge(r, line, s.len));
	CAIRN_TRY(cairn_tpl_lines(r, s, lines));
	/* Jinja appends a newline before it splits, so that a final newline gives one more, empty line */
	if (!s.len || s.s[s.len - 1] == '\n')
		CAIRN_TRY(cairn_tpl_list_add(r, lines,
					     &(struct val) { .kind = V_STR, .str = { "", NULL, 0 } }));
	for (size_t i = 0; i < lines->num; i++) {
		if (i)
			CAIRN_TRY(cairn_tpl_puts(r, line, &o, "\n"));
		if (i ? blank || lines->v[i].str.len : first)
			CAIRN_TRY(cairn_tpl_put(r, line, &o, by));
		CAIRN_TRY(cairn_tpl_put(r, line, &o, lines->v[i].str));
	}
	*out = of_str(cairn_tpl_taken(&o));
	return 0;
}

static int filter_items(struct render *r, int line, const struct val *v, const struct args *args,
			struct val *out)
{
	struct method m = { *v, "items" };

	CAIRN_TRY(no_args(r, line, "items", args));
	if (v->kind == V_UNDEFINED) {
		*out = (struct val) { .kind = V_LIST, .list = cairn_tpl_new_list(r, 0) };
		return out->list ? 0 : -EINVAL;
	}
	if (v->kind != V_DICT)
		return wrong(r, line, "items", v);
	return cairn_tpl_call(r, line, &(struct val) { .kind = V_METHOD, .method = &m }, args, out);
}

static int filter_join(struct render *r, int line, const struct val *v, const struct args *args,
		       struct val *out)
{
	struct out o = { 0 };
	const struct list *l;
	struct val a[2], one;
	struct str with = { "", NULL, 0 };

	BIND("join", 0, a, "d", "attribute");
	if (a[0].kind != V_ABSENT)
		CAIRN_TRY(cairn_tpl_to_str(r, line, &a[0], &with));
	CAIRN_TRY(cairn_tpl_elements(r, line, v, &l));
	for (size_t i = 0; i < l->num; i++) {
		if (i)
			CAIRN_TRY(cairn_tpl_put(r, line, &o, with));
		one = l->v[i];
		if (a[1].kind != V_ABSENT && a[1].kind != V_NONE)
			CAIRN_TRY(cairn_tpl_path(r, line, &l->v[i], &a[1], &one));
		CAIRN_TRY(cairn_tpl_print(r, line, &one, &o));
	}
	*out = of_str(cairn_tpl_taken(&o));
	return 0;
}

static int filter_length(struct render *r, int line, const struct val *v, const struct args *args,
			 struct val *out)
{
	CAIRN_TRY(no_args(r, line, "length", args));
	switch (v->kind) {
	case V_UNDEFINED:
		*out = of_int(0);
		return 0;
	case V_STR:
		CAIRN_TRY(cairn_tpl_charge(r, line, v->str.len));
		*out = of_int((int64_t)cairn_tpl_length(&v->str));
		return 0;
	case V_LIST:
	case V_TUPLE:
		*out = of_int((int64_t)v->list->num);
		return 0;
	case V_DICT:
		*out = of_int((int64_t)v->dict->num);
		return 0;
	default:
		return wrong(r, line, "length", v);
	}
}

static int filter_list(struct render *r, int line, const struct val *v, const struct args *args,
		       struct val *out)
{
	const struct list *l;
	struct list *copy;

	CAIRN_TRY(no_args(r, line, "list", args));
	CAIRN_TRY(cairn_tpl_elements(r, line, v, &l));
	copy = cairn_tpl_new_list(r, l->num);
	if (!copy)
		return -EINVAL;
	for (size_t i = 0; i < l->num; i++)
		CAIRN_TRY(cairn_tpl_list_add(r, copy, &l->v[i]));
	*out = (struct val) { .kind = V_LIST, .list = copy };
	return 0;
}

static int filter_replace(struct render *r, int line, const struct val *v, const struct args *args,
			  struct val *out)
{
	struct str s, from, to;
	struct val a[3];

	BIND("replace", 2, a, "old", "new", "count");
	CAIRN_TRY(cairn_tpl_to_str(r, line, v, &s));
	CAIRN_TRY(cairn_tpl_to_str(r, line, &a[0], &from));
	CAIRN_TRY(cairn_tpl_to_str(r, line, &a[1], &to));
	if (a[2].kind != V_ABSENT && a[2].kind != V_NONE && a[2].kind != V_INT)
		return wrong(r, line, "replace: count", &a[2]);
	*out = of_str(s);
	return cairn_tpl_replace(r, line, s, from, to, a[2].kind == V_INT ? a[2].i : -1, &out->str);
}

static int filter_reverse(struct render *r, int line, const struct val *v, const struct args *args,
			  struct val *out)
{
	const struct val none = { .kind = V_ABSENT }, back = { .kind = V_INT, .i = -1 };
	struct val list = *v;

	CAIRN_TRY(no_args(r, line, "reverse", args));
	if (v->kind != V_STR)
		CAIRN_TRY(filter_list(r, line, v, args, &list));
	return cairn_tpl_slice(r, line, &list, &none, &none, &back, out);
}

static int filter_string(struct render *r, int line, const struct val *v, const struct args *args,
			 struct val *out)
{
	CAIRN_TRY(no_args(r, line, "string", args));
	*out = of_str((struct str) { "", NULL, 0 });
	return cairn_tpl_to_str(r, line, v, &out->str);
}

static int filter_safe(struct render *r, int line, const struct val *v, const struct args *args,
		       struct val *out)
{
	return filter_string(r, line, v, args, out);
}

static int filter_tojson(struct render *r, int line, const struct val *v, const struct args *args,
			 struct val *out)
{
	struct json_style style = { .indent = -1, .item = { ", ", NULL, 2 }, .key = { ": ", NULL, 2 } };
	struct out o = { 0 };
	struct val a[4];

	BIND("tojson", 0, a, "ensure_ascii", "indent", "separators", "sort_keys");
	style.ascii = cairn_tpl_true(&a[0]);
	style.sort = cairn_tpl_true(&a[3]);
	if (a[1].kind == V_INT && a[1].i >= 0 && a[1].i <= 64) {
		style.indent = a[1].i;
		style.item.len = 1;
	} else if (a[1].kind != V_ABSENT && a[1].kind != V_NONE) {
		return wrong(r, line, "tojson: indent", &a[1]);
	}
	if (a[2].kind == V_TUPLE || a[2].kind == V_LIST) {
		if (a[2].list->num != 2 || a[2].list->v[0].kind != V_STR || a[2].list->v[1].kind != V_STR)
			return wrong(r, line, "tojson: separators", &a[2]);
		style.item = a[2].list->v[0].str;
		style.key = a[2].list->v[1].str;
	} else if (a[2].kind != V_ABSENT && a[2].kind != V_NONE) {
		return wrong(r, line, "tojson: separators", &a[2]);
	}
	CAIRN_TRY(cairn_tpl_json(r, line, v, &style, 0, &o));
	*out = of_str(cairn_tpl_taken(&o));
	return 0;
}

static int filter_trim(struct render *r, int line, const struct val *v, const struct args *args,
		       struct val *out)
{
	struct val a[1];
	struct str s;

	BIND("trim", 0, a, "chars");
	CAIRN_TRY(cairn_tpl_to_str(r, line, v, &s));
	if (a[0].kind != V_ABSENT && a[0].kind != V_NONE && a[0].kind != V_STR)
		return wrong(r, line, "trim: chars", &a[0]);
	CAIRN_TRY(cairn_tpl_charge(r, line, s.len));
	if (a[0].kind == V_STR)
		CAIRN_TRY(cairn_tpl_strip_chars(r, line, s, a[0].str, 3, &s));
	else
		s = cairn_tpl_strip(s, 3);
	*out = of_str(s);
	return 0;
}

static const struct {
	const char *name;
	filter_fn *run;
} filters[] = {
	{ "abs", filter_abs },
	{ "capitalize", filter_capitalize },
	{ "count", filter_length },
	{ "d", filter_default },
	{ "default", filter_default },
	{ "dictsort", filter_dictsort },
	{ "first", filter_first },
	{ "float", filter_float },
	{ "indent", filter_indent },
	{ "int", filter_int },
	{ "items", filter_items },
	{ "join", filter_join },
	{ "last", filter_last },
	{ "length", filter_length },
	{ "list", filter_list },
	{ "lower", filter_lower },
	{ "map", cairn_tpl_map },
	{ "reject", cairn_tpl_reject },
	{ "rejectattr", cairn_tpl_rejectattr },
	{ "replace", filter_replace },
	{ "reverse", filter_reverse },
	{ "safe", filter_safe },
	{ "select", cairn_tpl_select },
	{ "selectattr", cairn_tpl_selectattr },
	{ "string", filter_string },
	{ "title", filter_title },
	{ "tojson", filter_tojson },
	{ "trim", filter_trim },
	{ "unique", cairn_tpl_unique },
	{ "upper", filter_upper },
};

const char *cairn_tpl_known_filter(const char *name)
{
	for (size_t i = 0; i < sizeof(filters) / sizeof(*filters); i++)
		if (!strcmp(filters[i].name, name))
			return filters[i].name;
	return NULL;
}

int cairn_tpl_filter(struct render *r, int line, const char *name, const struct val *v,
		     const struct args *args, struct val *out)
{
	struct val result;
	size_t i = 0;

	while (filters[i].name != name)
		i++;
	CAIRN_TRY(filters[i].run(r, line, v, args, &result));
	*out = result;
	return 0;
}
