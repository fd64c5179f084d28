// SPDX-License-Identifier: Apache-2.0
/* chat_template_select - filters over lists that take a filter, a test or an attribute by name */
#include <string.h>

#include "primitives/base/error.h"
#include "serving/template/chat_template_impl.h"
#include "serving/base/utf8.h"

/* Looks up v.a.b for a path "a.b", for filters that take an attribute by name. */
int cairn_tpl_path(struct render *r, int line, const struct val *v, const struct val *path, struct val *out)
{
	struct str rest = path->str;

	if (path->kind == V_INT)
		return cairn_tpl_item(r, line, v, path, out);
	if (path->kind != V_STR)
		return cairn_tpl_error(r, EINVAL, line, "an attribute name must be a string, is %s",
				       cairn_tpl_kind(path));
	*out = *v;
	for (bool more = true; more;) {
		const char *dot = memchr(rest.s, '.', rest.len);
		size_t n = dot ? (size_t)(dot - rest.s) : rest.len;
		struct val key = { .kind = V_STR, .str = cairn_tpl_sub(rest, 0, n) }, from = *out;
		int64_t i;

		CAIRN_TRY(cairn_tpl_charge(r, line, n));
		if (cairn_tpl_number(key.str, true, &i, NULL))
			key = (struct val) { .kind = V_INT, .i = i };
		CAIRN_TRY(cairn_tpl_item(r, line, &from, &key, out));
		more = dot != NULL;
		rest = cairn_tpl_sub(rest, more ? n + 1 : n, rest.len);
	}
	return 0;
}

/* Returns the elements of v. map, select and reject accept any false value as an empty list. */
static int members(struct render *r, int line, const struct val *v, const struct list **l)
{
	const struct val nothing = { .kind = V_UNDEFINED };

	return cairn_tpl_elements(r, line, cairn_tpl_true(v) ? v : &nothing, l);
}

int cairn_tpl_map(struct render *r, int line, const struct val *v, const struct args *args, struct val *out)
{
	struct list *to = cairn_tpl_new_list(r, 0);
	const char *filter = NULL;
	const struct list *l;
	struct args rest = { .num = 0 };
	struct val a[2], one;

	if (args->num && !args->names[0]) {
		char name[32] = "";

		if (args->v[0].kind == V_STR && args->v[0].str.len < sizeof(name))
			memcpy(name, args->v[0].str.s, args->v[0].str.len);
		filter = cairn_tpl_known_filter(name);
		if (!filter)
			return cairn_tpl_error(r, EOPNOTSUPP, line, "map: this filter is not supported");
		for (int i = 1; i < args->num; i++) {
			rest.names[rest.num] = args->names[i];
			rest.v[rest.num++] = args->v[i];
		}
	} else {
		CAIRN_TRY(cairn_tpl_bind(r, line, "map", args,
					 (const char *const[]) { "attribute", "default" }, 2, 1, a));
	}
	CAIRN_TRY(members(r, line, v, &l));
	for (size_t i = 0; to && i < l->num; i++) {
		CAIRN_TRY(cairn_tpl_charge(r, line, 0));
		if (filter)
			CAIRN_TRY(cairn_tpl_filter(r, line, filter, &l->v[i], &rest, &one));
		else
			CAIRN_TRY(cairn_tpl_path(r, line, &l->v[i], &a[0], &one));
		if (!filter && one.kind == V_UNDEFINED && a[1].kind != V_ABSENT)
			one = a[1];
		CAIRN_TRY(cairn_tpl_list_add(r, to, &one));
	}
	*out = (struct val) { .kind = V_LIST, .list = to };
	return to ? 0 : -EINVAL;
}

/* Implements select and reject or, with attr, selectattr and rejectattr. */
static int choose(struct render *r, int line, const struct val *v, const struct args *args, bool attr,
		  bool want, struct val *out)
{
	struct list *to = cairn_tpl_new_list(r, 0);
	struct args rest = { .num = 0 };
	const char *test = NULL;
	const struct list *l;

	if (attr && (!args->num || args->names[0]))
		return cairn_tpl_error(r, EINVAL, line, "the attribute name is missing");
	if (args->num > attr) {
		const struct val *given = &args->v[attr];
		char name[32] = "";

		if (given->kind == V_STR && given->str.len < sizeof(name))
			memcpy(name, given->str.s, given->str.len);
		test = cairn_tpl_known_test(name);
		if (!test)
			return cairn_tpl_error(r, EOPNOTSUPP, line, "this test is not supported");
		for (int i = attr + 1; i < args->num; i++) {
			rest.names[rest.num] = args->names[i];
			rest.v[rest.num++] = args->v[i];
		}
	}
	CAIRN_TRY(members(r, line, v, &l));
	for (size_t i = 0; to && i < l->num; i++) {
		struct val one = l->v[i];
		bool result;

		CAIRN_TRY(cairn_tpl_charge(r, line, 0));
		if (attr)
			CAIRN_TRY(cairn_tpl_path(r, line, &l->v[i], &args->v[0], &one));
		result = cairn_tpl_true(&one);
		if (test)
			CAIRN_TRY(cairn_tpl_test(r, line, test, &one, &rest, &result));
		if (result == want)
			CAIRN_TRY(cairn_tpl_list_add(r, to, &l->v[i]));
	}
	*out = (struct val) { .kind = V_LIST, .list = to };
	return to ? 0 : -EINVAL;
}

int cairn_tpl_select(struct render *r, int line, const struct val *v, const struct args *args,
		     struct val *out)
{
	return choose(r, line, v, args, false, true, out);
}

int cairn_tpl_reject(struct render *r, int line, const struct val *v, const struct args *args,
		     struct val *out)
{
	return choose(r, line, v, args, false, false, out);
}

int cairn_tpl_selectattr(struct render *r, int line, const struct val *v, const struct args *args,
			 struct val *out)
{
	return choose(r, line, v, args, true, true, out);
}

int cairn_tpl_rejectattr(struct render *r, int line, const struct val *v, const struct args *args,
			 struct val *out)
{
	return choose(r, line, v, args, true, false, out);
}

int cairn_tpl_unique(struct render *r, int line, const struct val *v, const struct args *args,
		     struct val *out)
{
	struct list *to = cairn_tpl_new_list(r, 0);
	const struct list *l;

	if (args->num)
		return cairn_tpl_error(r, EINVAL, line, "unique takes no argument");
	CAIRN_TRY(cairn_tpl_elements(r, line, v, &l));
	for (size_t i = 0; to && i < l->num; i++) {
		bool seen = false;

		CAIRN_TRY(cairn_tpl_need_key(r, line, &l->v[i]));
		for (size_t k = 0; k < to->num && !seen; k++) {
			struct val a = to->v[k], b = l->v[i];

			/* by default Jinja compares without regard to case */
			if (a.kind == V_STR && b.kind == V_STR) {
				CAIRN_TRY(cairn_tpl_case(r, line, a.str, 'l', &a.str));
				CAIRN_TRY(cairn_tpl_case(r, line, b.str, 'l', &b.str));
			}
			CAIRN_TRY(cairn_tpl_equal(r, line, &a, &b, &seen));
		}
		if (!seen)
			CAIRN_TRY(cairn_tpl_list_add(r, to, &l->v[i]));
	}
	*out = (struct val) { .kind = V_LIST, .list = to };
	return to ? 0 : -EINVAL;
}
