// SPDX-License-Identifier: Apache-2.0
/* chat_template_value - the arena, values and their comparison, values from JSON and as text */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "primitives/base/error.h"
#include "serving/template/chat_template_impl.h"
#include "serving/base/utf8.h"

struct arena_block {
	struct arena_block *next;
	size_t used, size;
	_Alignas(16) char bytes[];
};

#define BLOCK_BYTES 16384

void *cairn_tpl_alloc(struct arena *a, size_t bytes)
{
	size_t need = (bytes + 15) & ~(size_t)15, size;
	struct arena_block *b = a->blocks;
	void *at;

	if (need < bytes || need > a->limit || a->used > a->limit - need) {
		cairn_error(EINVAL, "chat_template: needs more than %zu bytes of memory", a->limit);
		return NULL;
	}
	if (!b || b->size - b->used < need) {
		size = need > BLOCK_BYTES ? need : BLOCK_BYTES;
		b = calloc(1, sizeof(*b) + size);
		if (!b) {
			cairn_error(ENOMEM, "chat_template: no memory");
			return NULL;
		}
		b->size = size;
		/* a large block has no room left, so small allocations continue in the previous block */
		if (a->blocks && size > BLOCK_BYTES) {
			b->next = a->blocks->next;
			a->blocks->next = b;
		} else {
			b->next = a->blocks;
			a->blocks = b;
		}
	}
	at = b->bytes + b->used;
	b->used += need;
	a->used += need;
	return at;
}

void cairn_tpl_arena_free(struct arena *a)
{
	while (a->blocks) {
		struct arena_block *next = a->blocks->next;

		free(a->blocks);
		a->blocks = next;
	}
	a->used = 0;
}

int cairn_tpl_error(const struct render *r, int err, int line, const char *fmt, ...)
{
	char text[400];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	return cairn_error(err, "%s: line %d: %s", r->tpl->name, line, text);
}

int cairn_tpl_charge(struct render *r, int line, size_t bytes)
{
	r->steps += 1 + (int64_t)(bytes / 32);
	if (r->steps > r->max_steps)
		return cairn_tpl_error(r, EINVAL, line, "more than %lld steps", (long long)r->max_steps);
	return 0;
}

struct val cairn_tpl_str(const char *s)
{
	return (struct val) { .kind = V_STR, .str = { s, NULL, strlen(s) } };
}

const char *cairn_tpl_kind(const struct val *v)
{
	static const char *const names[] = {
		[V_ABSENT] = "nothing", [V_UNDEFINED] = "undefined",   [V_NONE] = "none",
		[V_BOOL] = "a boolean", [V_INT] = "an integer",        [V_FLOAT] = "a float",
		[V_STR] = "a string",   [V_LIST] = "a list",           [V_TUPLE] = "a tuple",
		[V_DICT] = "a dict",    [V_NAMESPACE] = "a namespace", [V_LOOP] = "the loop",
		[V_MACRO] = "a macro",  [V_METHOD] = "a method",       [V_GLOBAL] = "a function",
	};

	return names[v->kind];
}

bool cairn_tpl_true(const struct val *v)
{
	switch (v->kind) {
	case V_ABSENT:
	case V_UNDEFINED:
	case V_NONE:
		return false;
	case V_BOOL:
	case V_INT:
		return v->i != 0;
	case V_FLOAT:
		return v->f != 0;
	case V_STR:
		return v->str.len > 0;
	case V_LIST:
	case V_TUPLE:
		return v->list->num > 0;
	case V_DICT:
		return v->dict->num > 0;
	default:
		return true;
	}
}

static double as_double(const struct val *v)
{
	return v->kind == V_FLOAT ? v->f : (double)v->i;
}

static int equal_lists(struct render *r, int line, const struct list *a, const struct list *b, bool *equal)
{
	*equal = a->num == b->num;
	for (size_t i = 0; i < a->num && *equal; i++)
		CAIRN_TRY(cairn_tpl_equal(r, line, &a->v[i], &b->v[i], equal));
	return 0;
}

static int equal_dicts(struct render *r, int line, const struct dict *a, const struct dict *b, bool *equal)
{
	*equal = a->num == b->num;
	for (size_t i = 0; i < a->num && *equal; i++) {
		bool same = false;
		size_t k;

		for (k = 0; k < b->num && !same; k++)
			CAIRN_TRY(cairn_tpl_equal(r, line, &a->keys[i], &b->keys[k], &same));
		*equal = same;
		if (same)
			CAIRN_TRY(cairn_tpl_equal(r, line, &a->vals[i], &b->vals[k - 1], equal));
	}
	return 0;
}

int cairn_tpl_equal(struct render *r, int line, const struct val *a, const struct val *b, bool *equal)
{
	bool number_a = a->kind >= V_BOOL && a->kind <= V_FLOAT,
	     number_b = b->kind >= V_BOOL && b->kind <= V_FLOAT;
	int ret = 0;

	CAIRN_TRY(cairn_tpl_charge(r, line, 0));
	if (number_a && number_b) {
		*equal = a->kind != V_FLOAT && b->kind != V_FLOAT ? a->i == b->i
								  : as_double(a) == as_double(b);
		return 0;
	}
	*equal = false;
	if (a->kind != b->kind)
		return 0;
	if (++r->depth > TPL_MAX_DEPTH)
		return cairn_tpl_error(r, EINVAL, line, "values nested too deep");
	switch (a->kind) {
	case V_STR:
		*equal = cairn_tpl_same(&a->str, &b->str);
		ret = cairn_tpl_charge(r, line, a->str.len);
		break;
	case V_LIST:
	case V_TUPLE:
		ret = equal_lists(r, line, a->list, b->list, equal);
		break;
	case V_DICT:
		ret = equal_dicts(r, line, a->dict, b->dict, equal);
		break;
	case V_UNDEFINED:
	case V_NONE:
		*equal = true;
		break;
	case V_NAMESPACE:
		*equal = a->dict == b->dict;
		break;
	case V_GLOBAL:
		*equal = a->i == b->i;
		break;
	default:
		*equal = a->macro == b->macro;
	}
	r->depth--;
	return ret;
}

int cairn_tpl_need_key(struct render *r, int line, const struct val *v)
{
	int ret = 0;

	CAIRN_TRY(cairn_tpl_charge(r, line, 0));
	if (v->kind == V_LIST || v->kind == V_DICT)
		return cairn_tpl_error(r, EINVAL, line, "%s cannot be a key", cairn_tpl_kind(v));
	if (v->kind != V_TUPLE)
		return 0;
	if (++r->depth > TPL_MAX_DEPTH)
		return cairn_tpl_error(r, EINVAL, line, "values nested too deep");
	for (size_t i = 0; i < v->list->num && !ret; i++)
		ret = cairn_tpl_need_key(r, line, &v->list->v[i]);
	r->depth--;
	return ret;
}

struct list *cairn_tpl_new_list(struct render *r, size_t cap)
{
	struct list *l = cairn_tpl_alloc(&r->arena, sizeof(*l));

	if (l && cap) {
		l->v = cairn_tpl_alloc(&r->arena, cap * sizeof(*l->v));
		l->cap = cap;
		if (!l->v)
			return NULL;
	}
	return l;
}

int cairn_tpl_list_add(struct render *r, struct list *l, const struct val *v)
{
	if (l->num == l->cap) {
		size_t cap = l->cap ? 2 * l->cap : 8;
		struct val *grown = cairn_tpl_alloc(&r->arena, cap * sizeof(*grown));

		if (!grown)
			return -EINVAL;
		if (l->num)
			memcpy(grown, l->v, l->num * sizeof(*grown));
		l->v = grown;
		l->cap = cap;
	}
	l->v[l->num++] = *v;
	return 0;
}

int cairn_tpl_dict_get(struct render *r, int line, const struct dict *d, const struct str *key,
		       const struct val **found)
{
	*found = NULL;
	for (size_t i = 0; i < d->num && !*found; i++) {
		bool alike = d->keys[i].kind == V_STR && d->keys[i].str.len == key->len;

		CAIRN_TRY(cairn_tpl_charge(r, line, alike ? key->len : 0));
		if (alike && cairn_tpl_same(&d->keys[i].str, key))
			*found = &d->vals[i];
	}
	return 0;
}

int cairn_tpl_dict_set(struct render *r, struct dict *d, const struct val *key, const struct val *v)
{
	for (size_t i = 0; i < d->num; i++) {
		bool equal;

		CAIRN_TRY(cairn_tpl_equal(r, 0, &d->keys[i], key, &equal));
		if (!equal)
			continue;
		d->vals[i] = *v;
		return 0;
	}
	if (d->num == d->cap) {
		size_t cap = d->cap ? 2 * d->cap : 4;
		struct val *keys = cairn_tpl_alloc(&r->arena, 2 * cap * sizeof(*keys));

		if (!keys)
			return -EINVAL;
		if (d->num) {
			memcpy(keys, d->keys, d->num * sizeof(*keys));
			memcpy(keys + cap, d->vals, d->num * sizeof(*keys));
		}
		d->keys = keys;
		d->vals = keys + cap;
		d->cap = cap;
	}
	d->keys[d->num] = *key;
	d->vals[d->num++] = *v;
	return 0;
}

static int json_string_val(struct render *r, const char *s, size_t len, struct val *out)
{
	unsigned char *user = cairn_tpl_alloc(&r->arena, len + 1);

	if (!user)
		return -EINVAL;
	memset(user, 1, len);
	/* the bytes are not copied, because the JSON outlives the render */
	*out = (struct val) { .kind = V_STR, .str = { s, user, len } };
	return cairn_tpl_charge(r, 0, len);
}

static int from_object(struct render *r, const json_t *json, struct val *out)
{
	struct dict *d = cairn_tpl_alloc(&r->arena, sizeof(*d));
	size_t num = json_object_size(json);
	struct val *slots = d ? cairn_tpl_alloc(&r->arena, (2 * num + 1) * sizeof(*slots)) : NULL;
	const char *key;
	json_t *value;

	if (!slots)
		return -EINVAL;
	d->keys = slots;
	d->vals = slots + num;
	d->cap = num;
	json_object_foreach((json_t *)json, key, value)
	{
		CAIRN_TRY(json_string_val(r, key, strlen(key), &d->keys[d->num]));
		CAIRN_TRY(cairn_tpl_from_json(r, value, &d->vals[d->num]));
		d->num++;
	}
	*out = (struct val) { .kind = V_DICT, .dict = d };
	return 0;
}

int cairn_tpl_from_json(struct render *r, const json_t *json, struct val *out)
{
	struct list *l;
	int ret = 0;

	CAIRN_TRY(cairn_tpl_charge(r, 0, 0));
	switch (json_typeof(json)) {
	case JSON_STRING:
		return json_string_val(r, json_string_value(json), json_string_length(json), out);
	case JSON_INTEGER:
		*out = (struct val) { .kind = V_INT, .i = json_integer_value(json) };
		return 0;
	case JSON_REAL:
		*out = (struct val) { .kind = V_FLOAT, .f = json_real_value(json) };
		return 0;
	case JSON_TRUE:
	case JSON_FALSE:
		*out = (struct val) { .kind = V_BOOL, .i = json_is_true(json) };
		return 0;
	case JSON_NULL:
		*out = (struct val) { .kind = V_NONE };
		return 0;
	default:
		break;
	}
	if (++r->depth > TPL_MAX_DEPTH)
		return cairn_tpl_error(r, EINVAL, 0, "values nested too deep");
	if (json_is_object(json)) {
		ret = from_object(r, json, out);
	} else {
		l = cairn_tpl_new_list(r, json_array_size(json));
		for (size_t i = 0; l && i < json_array_size(json) && !ret; i++)
			ret = cairn_tpl_from_json(r, json_array_get(json, i), &l->v[l->num++]);
		if (!l)
			return -EINVAL;
		*out = (struct val) { .kind = V_LIST, .list = l };
	}
	r->depth--;
	return ret;
}

int cairn_tpl_reserve(struct render *r, struct out *o, size_t cap, bool user)
{
	char *grown = cap > o->cap ? cairn_tpl_alloc(&r->arena, cap) : o->s;
	unsigned char *origin = NULL;

	if (o->user || user)
		origin = cairn_tpl_alloc(&r->arena, cap > o->cap ? cap : o->cap);
	if ((cap && !grown) || ((o->user || user) && !origin))
		return -EINVAL;
	if (o->len && grown != o->s)
		memcpy(grown, o->s, o->len);
	if (o->len && o->user)
		memcpy(origin, o->user, o->len);
	o->s = grown;
	o->user = origin;
	o->cap = cap > o->cap ? cap : o->cap;
	return 0;
}

int cairn_tpl_put(struct render *r, int line, struct out *o, struct str s)
{
	CAIRN_TRY(cairn_tpl_charge(r, line, s.len));
	if (!s.len)
		return 0;
	if (s.len > r->max_output || o->len > r->max_output - s.len)
		return cairn_tpl_error(r, EINVAL, line, "more than %zu bytes of output", r->max_output);
	if (o->cap - o->len < s.len)
		CAIRN_TRY(cairn_tpl_reserve(r, o, 2 * (o->len + s.len) + 64, s.user != NULL));
	else if (s.user && !o->user)
		CAIRN_TRY(cairn_tpl_reserve(r, o, o->cap, true));
	memcpy(o->s + o->len, s.s, s.len);
	if (s.user)
		memcpy(o->user + o->len, s.user, s.len);
	else if (o->user)
		memset(o->user + o->len, 0, s.len);
	o->len += s.len;
	return 0;
}

int cairn_tpl_puts(struct render *r, int line, struct out *o, const char *s)
{
	return cairn_tpl_put(r, line, o, (struct str) { s, NULL, strlen(s) });
}

struct str cairn_tpl_taken(const struct out *o)
{
	return (struct str) { o->len ? o->s : "", o->user, o->len };
}

/* repr() of a Python float: the shortest digits that round-trip. */
int cairn_tpl_float(struct render *r, int line, double f, char buf[40])
{
	char digits[40];
	int exponent, n;

	if (!isfinite(f)) {
		strcpy(buf, isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
		return 0;
	}
	for (n = 0; n < 17; n++) {
		/* a try takes half a microsecond, as long as several steps */
		CAIRN_TRY(cairn_tpl_charge(r, line, 256));
		sprintf(digits, "%.*e", n, f);
		if (strtod(digits, NULL) == f)
			break;
	}
	exponent = atoi(strchr(digits, 'e') + 1);
	if (exponent < -4 || exponent >= 16) {
		/* C and Python write the exponent in the same way: e+05 */
		strcpy(buf, digits);
		return 0;
	}
	n = n > exponent ? n - exponent : 1;
	sprintf(buf, "%.*f", n, f);
	return 0;
}

/* Python's str.isprintable(). */
static bool printable(uint32_t cp)
{
	switch (utf8proc_category((utf8proc_int32_t)cp)) {
	case UTF8PROC_CATEGORY_CC:
	case UTF8PROC_CATEGORY_CF:
	case UTF8PROC_CATEGORY_CS:
	case UTF8PROC_CATEGORY_CO:
	case UTF8PROC_CATEGORY_CN:
	case UTF8PROC_CATEGORY_ZL:
	case UTF8PROC_CATEGORY_ZP:
		return false;
	case UTF8PROC_CATEGORY_ZS:
		return cp == ' ';
	default:
		return true;
	}
}

static int repr_str(struct render *r, int line, struct str s, struct out *o)
{
	bool single = memchr(s.s, '\'', s.len) && !memchr(s.s, '"', s.len);
	const char *quote = single ? "\"" : "'";

	CAIRN_TRY(cairn_tpl_puts(r, line, o, quote));
	for (size_t i = 0, n; i < s.len; i += n) {
		uint32_t cp = cairn_utf8_get(s.s + i);
		char buf[16];

		n = cairn_utf8_len(s.s + i);
		if (cp == (unsigned char)*quote || cp == '\\')
			sprintf(buf, "\\%c", (char)cp);
		else if (cp == '\n' || cp == '\r' || cp == '\t')
			sprintf(buf, "\\%c", cp == '\n' ? 'n' : cp == '\r' ? 'r' : 't');
		else if (!printable(cp))
			sprintf(buf, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", cp);
		else
			buf[0] = 0;
		if (buf[0])
			CAIRN_TRY(cairn_tpl_puts(r, line, o, buf));
		else
			CAIRN_TRY(cairn_tpl_put(r, line, o, cairn_tpl_sub(s, i, i + n)));
	}
	return cairn_tpl_puts(r, line, o, quote);
}

static int repr_items(struct render *r, int line, const struct val *v, struct out *o)
{
	bool dict = v->kind == V_DICT;
	size_t num = dict ? v->dict->num : v->list->num;

	CAIRN_TRY(cairn_tpl_puts(r, line, o, dict ? "{" : v->kind == V_LIST ? "[" : "("));
	for (size_t i = 0; i < num; i++) {
		if (i)
			CAIRN_TRY(cairn_tpl_puts(r, line, o, ", "));
		if (dict) {
			CAIRN_TRY(cairn_tpl_repr(r, line, &v->dict->keys[i], o));
			CAIRN_TRY(cairn_tpl_puts(r, line, o, ": "));
		}
		CAIRN_TRY(cairn_tpl_repr(r, line, dict ? &v->dict->vals[i] : &v->list->v[i], o));
	}
	if (v->kind == V_TUPLE && num == 1)
		CAIRN_TRY(cairn_tpl_puts(r, line, o, ","));
	return cairn_tpl_puts(r, line, o, dict ? "}" : v->kind == V_LIST ? "]" : ")");
}

int cairn_tpl_repr(struct render *r, int line, const struct val *v, struct out *o)
{
	char buf[40];
	int ret;

	switch (v->kind) {
	case V_NONE:
		return cairn_tpl_puts(r, line, o, "None");
	case V_BOOL:
		return cairn_tpl_puts(r, line, o, v->i ? "True" : "False");
	case V_INT:
		sprintf(buf, "%lld", (long long)v->i);
		return cairn_tpl_puts(r, line, o, buf);
	case V_FLOAT:
		CAIRN_TRY(cairn_tpl_float(r, line, v->f, buf));
		return cairn_tpl_puts(r, line, o, buf);
	case V_STR:
		return repr_str(r, line, v->str, o);
	case V_UNDEFINED:
		return cairn_tpl_puts(r, line, o, "Undefined");
	case V_LIST:
	case V_TUPLE:
	case V_DICT:
		if (++r->depth > TPL_MAX_DEPTH)
			return cairn_tpl_error(r, EINVAL, line, "values nested too deep");
		ret = repr_items(r, line, v, o);
		r->depth--;
		return ret;
	default:
		return cairn_tpl_error(r, EOPNOTSUPP, line, "%s as text is not supported", cairn_tpl_kind(v));
	}
}

int cairn_tpl_print(struct render *r, int line, const struct val *v, struct out *o)
{
	if (v->kind == V_STR)
		return cairn_tpl_put(r, line, o, v->str);
	return v->kind == V_UNDEFINED ? 0 : cairn_tpl_repr(r, line, v, o);
}

int cairn_tpl_to_str(struct render *r, int line, const struct val *v, struct str *s)
{
	struct out o = { 0 };

	if (v->kind == V_STR) {
		*s = v->str;
		return 0;
	}
	CAIRN_TRY(cairn_tpl_print(r, line, v, &o));
	*s = cairn_tpl_taken(&o);
	return 0;
}

int cairn_tpl_elements(struct render *r, int line, const struct val *v, const struct list **list)
{
	struct list *l;

	if (v->kind == V_LIST || v->kind == V_TUPLE) {
		*list = v->list;
		return 0;
	}
	l = cairn_tpl_new_list(r, 0);
	if (!l)
		return -EINVAL;
	switch (v->kind) {
	case V_UNDEFINED:
		break;
	case V_STR:
		CAIRN_TRY(cairn_tpl_charge(r, line, v->str.len));
		for (size_t i = 0, n; i < v->str.len; i += n) {
			struct val one = { .kind = V_STR };

			n = cairn_utf8_len(v->str.s + i);
			one.str = cairn_tpl_sub(v->str, i, i + n);
			CAIRN_TRY(cairn_tpl_list_add(r, l, &one));
		}
		break;
	case V_DICT:
		for (size_t i = 0; i < v->dict->num; i++)
			CAIRN_TRY(cairn_tpl_list_add(r, l, &v->dict->keys[i]));
		break;
	default:
		return cairn_tpl_error(r, EINVAL, line, "%s is not a list", cairn_tpl_kind(v));
	}
	*list = l;
	return 0;
}
