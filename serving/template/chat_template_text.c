// SPDX-License-Identifier: Apache-2.0
/* chat_template_text - string operations of Python with the origin of each byte, and json.dumps() */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "primitives/base/error.h"
#include "serving/template/chat_template_impl.h"
#include "serving/base/utf8.h"

struct str cairn_tpl_sub(struct str s, size_t begin, size_t end)
{
	return (struct str) { s.s + begin, s.user ? s.user + begin : NULL, end - begin };
}

bool cairn_tpl_same(const struct str *a, const struct str *b)
{
	return a->len == b->len && !memcmp(a->s, b->s, a->len);
}

size_t cairn_tpl_length(const struct str *s)
{
	size_t n = 0;

	for (size_t i = 0; i < s->len; i++)
		n += ((unsigned char)s->s[i] & 0xc0) != 0x80;
	return n;
}

/* Python's str.isspace(). */
bool cairn_tpl_space(uint32_t cp)
{
	return (cp >= 9 && cp <= 13) || (cp >= 28 && cp <= 32) || cp == 0x85 || cp == 0xa0 || cp == 0x1680 ||
	       (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 || cp == 0x202f ||
	       cp == 0x205f || cp == 0x3000;
}

/* Returns the length in bytes of the last character of s, which is not empty. */
static size_t last_len(struct str s)
{
	size_t n = 1;

	while (((unsigned char)s.s[s.len - n] & 0xc0) == 0x80)
		n++;
	return n;
}

struct str cairn_tpl_strip(struct str s, int sides)
{
	while (sides & 1 && s.len && cairn_tpl_space(cairn_utf8_get(s.s)))
		s = cairn_tpl_sub(s, cairn_utf8_len(s.s), s.len);
	while (sides & 2 && s.len && cairn_tpl_space(cairn_utf8_get(s.s + s.len - last_len(s))))
		s = cairn_tpl_sub(s, 0, s.len - last_len(s));
	return s;
}

int cairn_tpl_strip_chars(struct render *r, int line, struct str s, struct str chars, int sides,
			  struct str *out)
{
	for (int side = 1; side <= 2; side++)
		while (sides & side && s.len) {
			size_t at = side == 1 ? cairn_utf8_len(s.s) : s.len - last_len(s);
			struct str left = cairn_tpl_sub(s, 0, at), right = cairn_tpl_sub(s, at, s.len);

			CAIRN_TRY(cairn_tpl_charge(r, line, chars.len));
			/* UTF-8: the bytes of a character are found only where that character is */
			if (!cairn_tpl_find(chars, side == 1 ? left : right))
				break;
			s = side == 1 ? right : left;
		}
	*out = s;
	return 0;
}

const char *cairn_tpl_find(struct str s, struct str part)
{
	return part.len ? memmem(s.s, s.len, part.s, part.len) : s.s;
}

static uint32_t map_case(uint32_t cp, char how)
{
	utf8proc_int32_t c = (utf8proc_int32_t)cp;

	return (uint32_t)(how == 'u'   ? utf8proc_toupper(c)
			  : how == 't' ? utf8proc_totitle(c)
				       : utf8proc_tolower(c));
}

static bool cased(uint32_t cp)
{
	utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);

	return c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LL || c == UTF8PROC_CATEGORY_LT;
}

/* how: 'u' upper, 'l' lower, 'c' capitalize, 't' title of Python's str, 'T' title of Jinja's filter */
int cairn_tpl_case(struct render *r, int line, struct str s, char how, struct str *to)
{
	struct out o = { 0 };
	bool inside = false;
	char buf[4];

	for (size_t i = 0, n; i < s.len; i += n) {
		uint32_t cp = cairn_utf8_get(s.s + i);
		char as = how == 'u' || how == 'l' ? how : inside ? 'l' : how == 'T' ? 'u' : 't';
		unsigned char user[4];
		int len;

		n = cairn_utf8_len(s.s + i);
		memset(user, s.user ? s.user[i] : 0, sizeof(user));
		memcpy(buf, as == 'u' ? "SS" : "Ss", 2);
		len = cp == 0xdf && as != 'l' ? 2 : cairn_utf8_put(map_case(cp, as), buf);
		CAIRN_TRY(
			cairn_tpl_put(r, line, &o, (struct str) { buf, s.user ? user : NULL, (size_t)len }));
		/* in Jinja a word begins after white space and after any of - ( { [ < */
		inside = how == 'c' ||
			 (how == 't' ? cased(cp)
				     : !cairn_tpl_space(cp) && !(cp < 128 && strchr("-({[<", (int)cp)));
	}
	*to = cairn_tpl_taken(&o);
	return 0;
}

int cairn_tpl_replace(struct render *r, int line, struct str s, struct str from, struct str to, int64_t count,
		      struct str *out)
{
	struct out o = { 0 };
	size_t at = 0, next;

	for (; count != 0; count -= count > 0) {
		if (from.len) {
			const char *found = cairn_tpl_find(cairn_tpl_sub(s, at, s.len), from);

			if (!found)
				break;
			next = (size_t)(found - s.s);
			CAIRN_TRY(cairn_tpl_put(r, line, &o, cairn_tpl_sub(s, at, next)));
			CAIRN_TRY(cairn_tpl_put(r, line, &o, to));
			at = next + from.len;
			continue;
		}
		/* an empty string is found before every character and at the end */
		CAIRN_TRY(cairn_tpl_put(r, line, &o, to));
		if (at == s.len)
			break;
		next = at + cairn_utf8_len(s.s + at);
		CAIRN_TRY(cairn_tpl_put(r, line, &o, cairn_tpl_sub(s, at, next)));
		at = next;
	}
	CAIRN_TRY(cairn_tpl_put(r, line, &o, cairn_tpl_sub(s, at, s.len)));
	*out = cairn_tpl_taken(&o);
	return 0;
}

/* Returns the length in bytes of the line break at s, or 0; the line breaks are those of str.splitlines(). */
static size_t line_break(const char *s, size_t n)
{
	uint32_t cp = cairn_utf8_get(s);

	if (cp == '\r' && n > 1 && s[1] == '\n')
		return 2;
	if ((cp >= 10 && cp <= 13) || (cp >= 28 && cp <= 30) || cp == 0x85 || cp == 0x2028 || cp == 0x2029)
		return cairn_utf8_len(s);
	return 0;
}

int cairn_tpl_lines(struct render *r, struct str s, struct list *l)
{
	struct val v = { .kind = V_STR };
	size_t begin = 0, n;

	for (size_t i = 0; i < s.len;) {
		n = line_break(s.s + i, s.len - i);
		if (!n) {
			i += cairn_utf8_len(s.s + i);
			continue;
		}
		v.str = cairn_tpl_sub(s, begin, i);
		CAIRN_TRY(cairn_tpl_list_add(r, l, &v));
		begin = i += n;
	}
	if (begin == s.len)
		return 0;
	v.str = cairn_tpl_sub(s, begin, s.len);
	return cairn_tpl_list_add(r, l, &v);
}

static int json_str(struct render *r, int line, struct str s, bool ascii, struct out *o)
{
	static const char plain[] = "\"\\\b\f\n\r\t", names[] = "\"\\bfnrt";

	CAIRN_TRY(cairn_tpl_puts(r, line, o, "\""));
	for (size_t i = 0, n, begin; i < s.len; i += n) {
		uint32_t cp = cairn_utf8_get(s.s + i);
		const char *known = cp < 128 ? memchr(plain, (int)cp, sizeof(plain) - 1) : NULL;
		unsigned char user[12];
		char buf[16];

		n = cairn_utf8_len(s.s + i);
		if (known)
			sprintf(buf, "\\%c", names[known - plain]);
		else if (cp < 0x20 || (ascii && cp >= 0x7f && cp < 0x10000 && cp != 0x7f))
			sprintf(buf, "\\u%04x", cp);
		else if (ascii && cp >= 0x10000)
			sprintf(buf, "\\u%04x\\u%04x", 0xd800 + ((cp - 0x10000) >> 10),
				0xdc00 + (cp & 0x3ff));
		else
			buf[0] = 0;
		if (buf[0]) {
			memset(user, s.user ? s.user[i] : 0, sizeof(user));
			CAIRN_TRY(cairn_tpl_put(r, line, o,
						(struct str) { buf, s.user ? user : NULL, strlen(buf) }));
			continue;
		}
		/* then the longest piece that needs no escape */
		for (begin = i, i += n; i < s.len; i += n) {
			cp = cairn_utf8_get(s.s + i);
			n = cairn_utf8_len(s.s + i);
			if (cp < 0x20 || cp == '"' || cp == '\\' || (ascii && cp > 0x7f))
				break;
		}
		CAIRN_TRY(cairn_tpl_put(r, line, o, cairn_tpl_sub(s, begin, i)));
		n = 0;
	}
	return cairn_tpl_puts(r, line, o, "\"");
}

static int new_line(struct render *r, int line, const struct json_style *style, int depth, struct out *o)
{
	if (style->indent < 0)
		return 0;
	CAIRN_TRY(cairn_tpl_puts(r, line, o, "\n"));
	for (int64_t i = 0; i < style->indent * depth; i++)
		CAIRN_TRY(cairn_tpl_puts(r, line, o, " "));
	return 0;
}

/* Makes a copy sorted by key; the byte order of UTF-8 is code point order. */
static int sorted(struct render *r, int line, const struct dict *d, struct dict *out)
{
	struct val *slots = cairn_tpl_alloc(&r->arena, (2 * d->num + 1) * sizeof(*slots));

	if (!slots)
		return -EINVAL;
	*out = (struct dict) { slots, slots + d->num, d->num, d->num };
	for (size_t i = 0; i < d->num; i++) {
		const struct str *key = &d->keys[i].str;
		size_t k = i;

		CAIRN_TRY(cairn_tpl_charge(r, line, 32 * i));
		for (; k > 0; k--) {
			const struct str *before = &slots[k - 1].str;
			size_t n = before->len < key->len ? before->len : key->len;
			int c = memcmp(before->s, key->s, n);

			if (c < 0 || (c == 0 && before->len <= key->len))
				break;
			out->keys[k] = out->keys[k - 1];
			out->vals[k] = out->vals[k - 1];
		}
		out->keys[k] = d->keys[i];
		out->vals[k] = d->vals[i];
	}
	return 0;
}

static int json_items(struct render *r, int line, const struct val *v, const struct json_style *style,
		      int depth, struct out *o)
{
	const struct dict *d = v->kind == V_DICT ? v->dict : NULL;
	size_t num = d ? d->num : v->list->num;
	struct dict copy;

	for (size_t i = 0; d && i < num; i++)
		if (d->keys[i].kind != V_STR)
			return cairn_tpl_error(r, EOPNOTSUPP, line, "tojson: keys that are not strings");
	if (d && style->sort) {
		CAIRN_TRY(sorted(r, line, d, &copy));
		d = &copy;
	}
	CAIRN_TRY(cairn_tpl_puts(r, line, o, d ? "{" : "["));
	for (size_t i = 0; i < num; i++) {
		if (i)
			CAIRN_TRY(cairn_tpl_put(r, line, o, style->item));
		CAIRN_TRY(new_line(r, line, style, depth + 1, o));
		if (d) {
			CAIRN_TRY(json_str(r, line, d->keys[i].str, style->ascii, o));
			CAIRN_TRY(cairn_tpl_put(r, line, o, style->key));
		}
		CAIRN_TRY(cairn_tpl_json(r, line, d ? &d->vals[i] : &v->list->v[i], style, depth + 1, o));
	}
	if (num)
		CAIRN_TRY(new_line(r, line, style, depth, o));
	return cairn_tpl_puts(r, line, o, d ? "}" : "]");
}

int cairn_tpl_json(struct render *r, int line, const struct val *v, const struct json_style *style, int depth,
		   struct out *o)
{
	char buf[40];

	if (depth > TPL_MAX_DEPTH)
		return cairn_tpl_error(r, EINVAL, line, "values nested too deep");
	switch (v->kind) {
	case V_NONE:
		return cairn_tpl_puts(r, line, o, "null");
	case V_BOOL:
		return cairn_tpl_puts(r, line, o, v->i ? "true" : "false");
	case V_FLOAT:
		CAIRN_TRY(cairn_tpl_float(r, line, v->f, buf));
		if (!isfinite(v->f))
			strcpy(buf, isnan(v->f) ? "NaN" : v->f < 0 ? "-Infinity" : "Infinity");
		return cairn_tpl_puts(r, line, o, buf);
	case V_INT:
		return cairn_tpl_repr(r, line, v, o);
	case V_STR:
		return json_str(r, line, v->str, style->ascii, o);
	case V_LIST:
	case V_TUPLE:
	case V_DICT:
		return json_items(r, line, v, style, depth, o);
	default:
		return cairn_tpl_error(r, EINVAL, line, "tojson: %s has no JSON", cairn_tpl_kind(v));
	}
}
