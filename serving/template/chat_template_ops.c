// SPDX-License-Identifier: Apache-2.0
/* chat_template_ops - operators, with Python's semantics; integers have 64 bits, overflow is an error */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/template/chat_template_impl.h"
#include "serving/base/json.h"
#include "serving/base/utf8.h"

static const char *const op_names[] = {
	[OP_ADD] = "+", [OP_SUB] = "-",  [OP_MUL] = "*", [OP_DIV] = "/", [OP_FLOORDIV] = "//",
	[OP_MOD] = "%", [OP_POW] = "**", [OP_EQ] = "==", [OP_NE] = "!=", [OP_LT] = "<",
	[OP_LE] = "<=", [OP_GT] = ">",   [OP_GE] = ">=", [OP_IN] = "in", [OP_NOT_IN] = "not in",
};

static bool integral(const struct val *v)
{
	return v->kind == V_INT || v->kind == V_BOOL;
}

static bool numeric(const struct val *v)
{
	return integral(v) || v->kind == V_FLOAT;
}

static double real(const struct val *v)
{
	return v->kind == V_FLOAT ? v->f : (double)v->i;
}

static int undefined(struct render *r, int line, const struct val *v)
{
	char quoted[CAIRN_QUOTE_LEN];

	return cairn_tpl_error(r, EINVAL, line, "%s is undefined", cairn_quote(v->str.s, v->str.len, quoted));
}

static int no_operator(struct render *r, int line, enum op op, const struct val *a, const struct val *b)
{
	if ((a->kind == V_UNDEFINED || b->kind == V_UNDEFINED) && !(op == OP_MOD && a->kind == V_STR))
		return undefined(r, line, a->kind == V_UNDEFINED ? a : b);
	return cairn_tpl_error(r, EINVAL, line, "%s %s %s is not supported", cairn_tpl_kind(a), op_names[op],
			       cairn_tpl_kind(b));
}

static int power(struct render *r, int line, int64_t a, int64_t b, struct val *out)
{
	int64_t result = 1;

	if (b < 0) {
		if (a == 0)
			return cairn_tpl_error(r, EINVAL, line, "division by zero");
		*out = (struct val) { .kind = V_FLOAT, .f = pow((double)a, (double)b) };
		return 0;
	}
	for (; b > 0; b >>= 1) {
		if (b & 1 && __builtin_mul_overflow(result, a, &result))
			return cairn_tpl_error(r, EINVAL, line, "an integer beyond 64 bits");
		if (b > 1 && __builtin_mul_overflow(a, a, &a))
			return cairn_tpl_error(r, EINVAL, line, "an integer beyond 64 bits");
	}
	*out = (struct val) { .kind = V_INT, .i = result };
	return 0;
}

static int integers(struct render *r, int line, enum op op, int64_t a, int64_t b, struct val *out)
{
	bool over = false;
	int64_t i = 0;

	if ((op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD) && b == 0)
		return cairn_tpl_error(r, EINVAL, line, "division by zero");
	switch (op) {
	case OP_ADD:
		over = __builtin_add_overflow(a, b, &i);
		break;
	case OP_SUB:
		over = __builtin_sub_overflow(a, b, &i);
		break;
	case OP_MUL:
		over = __builtin_mul_overflow(a, b, &i);
		break;
	case OP_DIV:
		*out = (struct val) { .kind = V_FLOAT, .f = (double)a / (double)b };
		return 0;
	case OP_FLOORDIV:
		over = a == INT64_MIN && b == -1;
		if (!over)
			i = a / b - (a % b != 0 && (a < 0) != (b < 0));
		break;
	case OP_MOD:
		/* the result has the divisor's sign, as in Python */
		i = b == -1 ? 0 : a % b;
		i += i != 0 && (i < 0) != (b < 0) ? b : 0;
		break;
	default:
		return power(r, line, a, b, out);
	}
	if (over)
		return cairn_tpl_error(r, EINVAL, line, "an integer beyond 64 bits");
	*out = (struct val) { .kind = V_INT, .i = i };
	return 0;
}

static int reals(struct render *r, int line, enum op op, double a, double b, struct val *out)
{
	double f;

	if ((op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD) && b == 0)
		return cairn_tpl_error(r, EINVAL, line, "division by zero");
	switch (op) {
	case OP_ADD:
		f = a + b;
		break;
	case OP_SUB:
		f = a - b;
		break;
	case OP_MUL:
		f = a * b;
		break;
	case OP_DIV:
		f = a / b;
		break;
	case OP_FLOORDIV:
	case OP_MOD: {
		double rest = fmod(a, b), whole = (a - rest) / b;

		if (rest != 0 && (rest < 0) != (b < 0)) {
			rest += b;
			whole -= 1;
		}
		if (op == OP_MOD)
			f = rest != 0 ? rest : copysign(0, b);
		else
			f = whole != 0 ? round(whole) : copysign(0, a / b);
		break;
	}
	default:
		f = pow(a, b);
		if (isnan(f) || (isinf(f) && isfinite(a) && isfinite(b)))
			return cairn_tpl_error(r, EINVAL, line, "a power that is not a real number");
	}
	*out = (struct val) { .kind = V_FLOAT, .f = f };
	return 0;
}

static int join_lists(struct render *r, int line, const struct val *a, const struct val *b, struct val *out)
{
	struct list *l = cairn_tpl_new_list(r, a->list->num + b->list->num);

	CAIRN_TRY(cairn_tpl_charge(r, line, (a->list->num + b->list->num) * 8));
	if (!l)
		return -EINVAL;
	for (size_t i = 0; i < a->list->num + b->list->num; i++)
		CAIRN_TRY(cairn_tpl_list_add(
			r, l, i < a->list->num ? &a->list->v[i] : &b->list->v[i - a->list->num]));
	*out = (struct val) { .kind = a->kind, .list = l };
	return 0;
}

/* Repeats a string or list: "ab" * 3, [1] * 2. */
static int repeat(struct render *r, int line, const struct val *v, int64_t times, struct val *out)
{
	struct out o = { 0 };
	struct list *l;

	*out = (struct val) { .kind = v->kind };
	if (v->kind == V_STR) {
		for (; times > 0 && v->str.len; times--)
			CAIRN_TRY(cairn_tpl_put(r, line, &o, v->str));
		out->str = cairn_tpl_taken(&o);
		return 0;
	}
	l = cairn_tpl_new_list(r, 0);
	if (!l)
		return -EINVAL;
	for (; times > 0 && v->list->num; times--)
		for (size_t i = 0; i < v->list->num; i++) {
			CAIRN_TRY(cairn_tpl_charge(r, line, 0));
			CAIRN_TRY(cairn_tpl_list_add(r, l, &v->list->v[i]));
		}
	out->list = l;
	return 0;
}

static bool sequence(const struct val *v)
{
	return v->kind == V_STR || v->kind == V_LIST || v->kind == V_TUPLE;
}

int cairn_tpl_binary(struct render *r, int line, enum op op, const struct val *a, const struct val *b,
		     struct val *out)
{
	struct out o = { 0 };

	if (integral(a) && integral(b))
		return integers(r, line, op, a->i, b->i, out);
	if (numeric(a) && numeric(b))
		return reals(r, line, op, real(a), real(b), out);
	if (op == OP_ADD && a->kind == V_STR && b->kind == V_STR) {
		CAIRN_TRY(cairn_tpl_reserve(r, &o, a->str.len + b->str.len, a->str.user || b->str.user));
		CAIRN_TRY(cairn_tpl_put(r, line, &o, a->str));
		CAIRN_TRY(cairn_tpl_put(r, line, &o, b->str));
		*out = (struct val) { .kind = V_STR, .str = cairn_tpl_taken(&o) };
		return 0;
	}
	if (op == OP_ADD && a->kind == b->kind && sequence(a))
		return join_lists(r, line, a, b, out);
	if (op == OP_MUL && sequence(a) && integral(b))
		return repeat(r, line, a, b->i, out);
	if (op == OP_MUL && integral(a) && sequence(b))
		return repeat(r, line, b, a->i, out);
	return no_operator(r, line, op, a, b);
}

static int order(struct render *r, int line, enum op op, const struct val *a, const struct val *b, int *sign)
{
	if (numeric(a) && numeric(b)) {
		if (integral(a) && integral(b))
			*sign = (a->i > b->i) - (a->i < b->i);
		else
			*sign = (real(a) > real(b)) - (real(a) < real(b));
		return 0;
	}
	if (a->kind == V_STR && b->kind == V_STR) {
		size_t n = a->str.len < b->str.len ? a->str.len : b->str.len;
		int c = n ? memcmp(a->str.s, b->str.s, n) : 0;

		*sign = c ? c : (a->str.len > b->str.len) - (a->str.len < b->str.len);
		return cairn_tpl_charge(r, line, n);
	}
	return no_operator(r, line, op, a, b);
}

static int contains(struct render *r, int line, const struct val *in, const struct val *v, bool *result)
{
	const struct list *l;

	*result = false;
	if (in->kind == V_STR) {
		if (v->kind != V_STR)
			return no_operator(r, line, OP_IN, v, in);
		CAIRN_TRY(cairn_tpl_charge(r, line, in->str.len + v->str.len));
		*result = cairn_tpl_find(in->str, v->str) != NULL;
		return 0;
	}
	if (in->kind == V_DICT)
		CAIRN_TRY(cairn_tpl_need_key(r, line, v));
	if (in->kind != V_LIST && in->kind != V_TUPLE && in->kind != V_DICT && in->kind != V_UNDEFINED)
		return no_operator(r, line, OP_IN, v, in);
	CAIRN_TRY(cairn_tpl_elements(r, line, in, &l));
	for (size_t i = 0; i < l->num && !*result; i++)
		CAIRN_TRY(cairn_tpl_equal(r, line, &l->v[i], v, result));
	return 0;
}

int cairn_tpl_compare(struct render *r, int line, enum op op, const struct val *a, const struct val *b,
		      bool *result)
{
	bool nan = (a->kind == V_FLOAT && isnan(a->f)) || (b->kind == V_FLOAT && isnan(b->f));
	int sign = 0;

	if (op == OP_EQ || op == OP_NE) {
		CAIRN_TRY(cairn_tpl_equal(r, line, a, b, result));
		*result ^= op == OP_NE;
		return 0;
	}
	if (op == OP_IN || op == OP_NOT_IN) {
		CAIRN_TRY(contains(r, line, b, a, result));
		*result ^= op == OP_NOT_IN;
		return 0;
	}
	CAIRN_TRY(order(r, line, op, a, b, &sign));
	*result = !nan && (op == OP_LT   ? sign < 0
			   : op == OP_LE ? sign <= 0
			   : op == OP_GT ? sign > 0
					 : sign >= 0);
	return 0;
}

/* Returns the byte offset of character i, at most the length. */
static size_t byte_of(const struct str *s, int64_t i)
{
	size_t at = 0;

	for (; i > 0 && at < s->len; i--)
		at += cairn_utf8_len(s->s + at);
	return at;
}

static struct val missing(struct str name)
{
	return (struct val) { .kind = V_UNDEFINED, .str = name };
}

static void get_method(const struct val *v, struct str name, struct render *r, struct val *out)
{
	const char *known = cairn_tpl_method(v, name);
	struct method *m = known ? cairn_tpl_alloc(&r->arena, sizeof(*m)) : NULL;

	*out = missing(name);
	if (!m)
		return;
	*m = (struct method) { *v, known };
	*out = (struct val) { .kind = V_METHOD, .method = m };
}

int cairn_tpl_item(struct render *r, int line, const struct val *v, const struct val *key, struct val *out)
{
	const struct val *found = NULL;
	size_t at;
	int64_t i;

	if (v->kind == V_UNDEFINED)
		return undefined(r, line, v);
	if (v->kind == V_DICT) {
		for (size_t k = 0; k < v->dict->num && !found; k++) {
			bool equal;

			CAIRN_TRY(cairn_tpl_equal(r, line, &v->dict->keys[k], key, &equal));
			found = equal ? &v->dict->vals[k] : NULL;
		}
		if (found) {
			*out = *found;
			return 0;
		}
	}
	if (sequence(v) && integral(key)) {
		*out = missing(cairn_tpl_str("an element beyond the end").str);
		if (v->kind == V_STR) {
			CAIRN_TRY(cairn_tpl_charge(r, line, v->str.len));
			i = key->i < 0 ? key->i + (int64_t)cairn_tpl_length(&v->str) : key->i;
			at = byte_of(&v->str, i);
			if (i >= 0 && at < v->str.len)
				*out = (struct val) {
					.kind = V_STR,
					.str = cairn_tpl_sub(v->str, at, at + cairn_utf8_len(v->str.s + at))
				};
			return 0;
		}
		at = key->i < 0 ? (size_t)key->i + v->list->num : (size_t)key->i;
		if (at < v->list->num)
			*out = v->list->v[at];
		return 0;
	}
	/* like Jinja, fall back to an attribute of that name */
	if (key->kind == V_STR && v->kind != V_DICT)
		return cairn_tpl_attr(r, line, v, key->str, out);
	get_method(v, key->kind == V_STR ? key->str : cairn_tpl_str("an element").str, r, out);
	return 0;
}

static int loop_attr(struct render *r, const struct loop *l, struct str name, const struct val *v,
		     struct val *out)
{
	const int64_t i = (int64_t)l->index, num = (int64_t)l->list->num;
	const struct {
		const char *name;
		int64_t value;
		bool truth;
	} members[] = {
		{ "index", i + 1, false },      { "index0", i, false },
		{ "revindex", num - i, false }, { "revindex0", num - i - 1, false },
		{ "first", i == 0, true },      { "last", i == num - 1, true },
		{ "length", num, false }, /* other values occur only in recursive loops */
		{ "depth", 1, false },          { "depth0", 0, false },
	};

	for (size_t k = 0; k < sizeof(members) / sizeof(*members); k++) {
		if (strlen(members[k].name) != name.len || memcmp(members[k].name, name.s, name.len))
			continue;
		*out = (struct val) { .kind = members[k].truth ? V_BOOL : V_INT, .i = members[k].value };
		return 0;
	}
	*out = missing(name);
	if (name.len == 8 && !memcmp(name.s, "previtem", 8) && i > 0)
		*out = l->list->v[i - 1];
	else if (name.len == 8 && !memcmp(name.s, "nextitem", 8) && i + 1 < num)
		*out = l->list->v[i + 1];
	else if (name.len == 5 && !memcmp(name.s, "cycle", 5))
		get_method(v, name, r, out);
	return 0;
}

int cairn_tpl_attr(struct render *r, int line, const struct val *v, struct str name, struct val *out)
{
	const struct val *found = NULL;

	switch (v->kind) {
	case V_UNDEFINED:
		return undefined(r, line, v);
	case V_LOOP:
		return loop_attr(r, v->loop, name, v, out);
	case V_NAMESPACE:
		CAIRN_TRY(cairn_tpl_dict_get(r, line, v->dict, &name, &found));
		*out = found ? *found : missing(name);
		return 0;
	default:
		break;
	}
	get_method(v, name, r, out);
	if (out->kind == V_UNDEFINED && v->kind == V_DICT) {
		CAIRN_TRY(cairn_tpl_dict_get(r, line, v->dict, &name, &found));
		if (found)
			*out = *found;
	}
	return 0;
}

/* Returns a bound of a slice as Python's slice.indices() computes it. */
static int64_t bound(const struct val *v, int64_t num, int64_t step, bool is_from)
{
	int64_t lo = step < 0 ? -1 : 0, hi = step < 0 ? num - 1 : num, i;

	if (v->kind == V_ABSENT || v->kind == V_NONE)
		return (step < 0) == is_from ? hi : lo;
	i = v->i < 0 ? (v->i < -num ? -1 - num : v->i) + num : v->i;
	return i < lo ? lo : i > hi ? hi : i;
}

int cairn_tpl_slice(struct render *r, int line, const struct val *v, const struct val *from,
		    const struct val *to, const struct val *step, struct val *out)
{
	const struct val *const parts[] = { from, to, step };
	int64_t by = step->kind == V_ABSENT || step->kind == V_NONE ? 1 : step->i, i, end, num;
	const struct list *all;
	struct out o = { 0 };
	struct list *l;

	if (v->kind == V_UNDEFINED)
		return undefined(r, line, v);
	if (!sequence(v))
		return cairn_tpl_error(r, EINVAL, line, "%s has no slices", cairn_tpl_kind(v));
	for (int k = 0; k < 3; k++)
		if (parts[k]->kind != V_ABSENT && parts[k]->kind != V_NONE && !integral(parts[k]))
			return cairn_tpl_error(r, EINVAL, line, "slice: a bound must be an integer, is %s",
					       cairn_tpl_kind(parts[k]));
	if (by == 0)
		return cairn_tpl_error(r, EINVAL, line, "slice: step must not be 0");
	if (v->kind == V_STR && by == 1) {
		/* the common case: a substring, which needs no copy */
		CAIRN_TRY(cairn_tpl_charge(r, line, v->str.len));
		num = (int64_t)cairn_tpl_length(&v->str);
		i = bound(from, num, by, true);
		end = bound(to, num, by, false);
		*out = *v;
		out->str = cairn_tpl_sub(v->str, byte_of(&v->str, i), byte_of(&v->str, i < end ? end : i));
		return 0;
	}
	CAIRN_TRY(cairn_tpl_elements(r, line, v, &all));
	num = (int64_t)all->num;
	i = bound(from, num, by, true);
	end = bound(to, num, by, false);
	/* a step beyond the length acts like length + 1; clamping avoids overflow */
	by = by > num + 1 ? num + 1 : by < -num - 1 ? -num - 1 : by;
	l = cairn_tpl_new_list(r, 0);
	if (!l)
		return -EINVAL;
	for (; by > 0 ? i < end : i > end; i += by) {
		CAIRN_TRY(cairn_tpl_charge(r, line, 0));
		if (v->kind == V_STR)
			CAIRN_TRY(cairn_tpl_put(r, line, &o, all->v[i].str));
		else
			CAIRN_TRY(cairn_tpl_list_add(r, l, &all->v[i]));
	}
	*out = (struct val) { .kind = v->kind, .list = l };
	if (v->kind == V_STR)
		out->str = cairn_tpl_taken(&o);
	return 0;
}
