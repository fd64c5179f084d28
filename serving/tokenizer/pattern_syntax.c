/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pattern_syntax - translates a regex from Oniguruma's Ruby syntax to PCRE2
 *
 * The translator copies the pattern construct by construct. It needs no recursion and does not track how
 * groups nest, because no rewrite crosses a group. It rejects everything that it does not recognise, such as
 * verbs like (*NO_JIT), so that no construct can pass with another meaning. Characters are always written as
 * \x{...}, which cannot be mistaken for syntax in any context.
 */
#include "serving/tokenizer/pattern.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "primitives/base/error.h"
#include "serving/base/json.h"
#include "serving/tokenizer/unicode_tables.h"
#include "serving/base/utf8.h"

/* From 10.40 on, a bare script name means Script_Extensions; earlier versions have no sc: and need none. */
#if PCRE2_MAJOR > 10 || (PCRE2_MAJOR == 10 && PCRE2_MINOR >= 40)
#define SCRIPT_PREFIX	"sc:"
#else
#define SCRIPT_PREFIX	""
#endif

struct translation {
	const char *in;
	size_t len, pos;
	const char *where;
	char *out;
	size_t used, cap;
	bool no_memory;
	bool after_atom;	/* a quantifier may follow */
};

static const char white_space[] = "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}"
				  "\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";
static const char not_white_space[] =
	"\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}"
	"\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}"
	"\\x{2060}-\\x{2fff}\\x{3001}-\\x{d7ff}\\x{e000}-\\x{10ffff}";

static void put(struct translation *t, const char *text)
{
	size_t n = strlen(text);

	if (t->used + n + 1 > t->cap) {
		size_t cap = (t->used + n + 1) * 2;
		char *grown = realloc(t->out, cap);

		if (!grown) {
			t->no_memory = true;
			return;
		}
		t->out = grown;
		t->cap = cap;
	}
	memcpy(t->out + t->used, text, n + 1);
	t->used += n;
}

static void put_char(struct translation *t, uint32_t cp)
{
	char text[16];

	snprintf(text, sizeof(text), "\\x{%x}", (unsigned)cp);
	put(t, text);
}

static void put_range(struct translation *t, uint32_t first, uint32_t last)
{
	put_char(t, first);
	if (last > first) {
		put(t, "-");
		put_char(t, last);
	}
}

static int refuse(const struct translation *t, size_t at, size_t n, const char *what)
{
	char quoted[CAIRN_QUOTE_LEN];

	if (n > t->len - at)
		n = t->len - at;
	return cairn_error(EOPNOTSUPP, "%s: %s at byte %zu, %s, is not supported", t->where,
			   cairn_quote(t->in + at, n, quoted), at, what);
}

static int malformed(const struct translation *t, size_t at, const char *what)
{
	return cairn_error(EINVAL, "%s: %s at byte %zu", t->where, what, at);
}

static bool looking_at(const struct translation *t, const char *text)
{
	size_t n = strlen(text);

	return t->len - t->pos >= n && !memcmp(t->in + t->pos, text, n);
}

/* Writes the characters of a category or script that PCRE2's tables may lack, as members of a class. */
static void put_new(struct translation *t, const char *name, bool script)
{
	const struct unicode_property *table = script ? new_scripts : new_categories;
	size_t n = script ? sizeof(new_scripts) / sizeof(*table)
			  : sizeof(new_categories) / sizeof(*table);

	for (size_t i = 0; i < n; i++)
		if (!strncmp(table[i].name, name, strlen(name)) &&
		    (!script || !table[i].name[strlen(name)]))
			put_range(t, table[i].first, table[i].last);
}

/*
 * Translates \p{...} or \P{...}; t->pos is after the p. in_class: it is inside brackets. A negated property
 * inside a class follows PCRE2's Unicode version, as classes have no subtraction.
 */
static int property(struct translation *t, bool negate, bool in_class)
{
	static const char *const categories[] = {
		"L", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "Mn", "Mc", "Me", "N", "Nd", "Nl", "No",
		"P", "Pc", "Pd", "Ps",
		"Pe", "Pi", "Pf", "Po", "S", "Sm", "Sc", "Sk", "So", "Z", "Zs", "Zl", "Zp", "C",
		"Cc", "Cf", "Cn", "Co",
	};
	size_t start = t->pos - 2, n = 0;
	bool script = true;
	char name[32], pcre[48];

	if (t->pos >= t->len || t->in[t->pos] != '{')
		return refuse(t, start, 3, "a property without braces");
	t->pos++;
	if (t->pos < t->len && t->in[t->pos] == '^') {
		negate = !negate;
		t->pos++;
	}
	while (t->pos < t->len && t->in[t->pos] != '}' && n < sizeof(name) - 1)
		name[n++] = t->in[t->pos++];
	name[n] = 0;
	if (t->pos >= t->len || t->in[t->pos] != '}')
		return malformed(t, start, "a property without its closing brace");
	t->pos++;
	for (size_t i = 0; i < sizeof(categories) / sizeof(*categories); i++)
		if (!strcmp(name, categories[i]))
			script = false;
	/* script names are longer; PCRE2 itself reports those that it does not know */
	if (script &&
	    (n < 3 || strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_") != n))
		return refuse(t, start, t->pos - start, "an unknown property");
	if (!in_class)
		put(t, negate ? "[^" : "[");
	snprintf(pcre, sizeof(pcre), "\\%c{%s%s}", negate && in_class ? 'P' : 'p',
		 script ? SCRIPT_PREFIX : "", name);
	put(t, pcre);
	if (!(negate && in_class))
		put_new(t, name, script);
	if (!in_class)
		put(t, "]");
	return 0;
}

/*
 * Writes the members of \w: letters, marks, decimal and letter numbers, connectors, circled letters.
 * Outside a class Oniguruma uses a table of its own for Latin-1, in which superscripts and fractions are
 * word characters.
 */
static void put_word(struct translation *t, bool in_class)
{
	static const char *const parts[] = { "L", "M", "Nd", "Nl", "Pc" };
	char text[16];

	for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
		snprintf(text, sizeof(text), "\\p{%s}", parts[i]);
		put(t, text);
		put_new(t, parts[i], false);
	}
	put(t,
	    "\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}");
	if (!in_class)
		put(t, "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}");
}

/* Reads the rest of \xH.., \x{H..} or \uHHHH; t->pos is after the letter. */
static int hex_escape(struct translation *t, char letter, uint32_t *cp)
{
	bool braces = letter == 'x' && t->pos < t->len && t->in[t->pos] == '{';
	size_t start = t->pos - 2, max = braces ? 8 : letter == 'u' ? 4 : 2, n = 0;
	uint32_t value = 0;

	t->pos += braces;
	for (; n < max && t->pos < t->len; n++, t->pos++) {
		char c = t->in[t->pos];
		int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 :
			    c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;

		if (digit < 0)
			break;
		value = value << 4 | (uint32_t)digit;
	}
	if (n == 0 || (letter == 'u' && n != 4) ||
	    (braces && (t->pos >= t->len || t->in[t->pos++] != '}')))
		return malformed(t, start, "a bad hexadecimal escape");
	if (value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff))
		return malformed(t, start, "an escape that is not a character");
	if (letter == 'x' && !braces && value >= 0x80)
		return refuse(t, start, t->pos - start, "a raw byte of UTF-8");
	*cp = value;
	return 0;
}

/*
 * Translates an escape; t->pos is at the backslash. Returns 1 for a single character, stored in *cp and not
 * yet written; 0 for a set, an anchor or the like, already written; negative if it is rejected.
 */
static int escape(struct translation *t, bool in_class, uint32_t *cp)
{
	static const char plain[] = "trnfae", values[] = "\t\r\n\f\a\x1b";
	size_t start = t->pos;
	const char *found;
	int ret;
	char c;

	if (t->pos + 1 >= t->len)
		return malformed(t, start, "a backslash that ends the pattern");
	c = t->in[t->pos + 1];
	t->pos += 2;
	found = strchr(plain, c);
	if (found && c) {
		*cp = (unsigned char)values[found - plain];
		return 1;
	}
	switch (c) {
	case 'v':
		*cp = 0x0b;
		return 1;
	case 'x':
	case 'u':
		ret = hex_escape(t, c, cp);
		return ret ? ret : 1;
	case 'p':
	case 'P':
		return property(t, c == 'P', in_class);
	case 's':
	case 'S':
		put(t, in_class ? "" : "[");
		put(t, c == 's' ? white_space : not_white_space);
		put(t, in_class ? "" : "]");
		return 0;
	case 'd':
	case 'w':
	case 'h':
	case 'D':
	case 'W':
	case 'H':
		if (in_class && c < 'a')
			return refuse(t, start, 2, "a negated set inside a class");
		put(t, in_class ? "" : c < 'a' ? "[^" : "[");
		if ((c | 0x20) == 'h') {
			put(t, "0-9a-fA-F");
		} else if ((c | 0x20) == 'w') {
			put_word(t, in_class);
		} else {
			put(t, "\\p{Nd}");
			put_new(t, "Nd", false);
		}
		put(t, in_class ? "" : "]");
		return 0;
	case 'A':
	case 'z':
	case 'Z':
	case 'G':
	case 'R':
		if (in_class)
			return refuse(t, start, 2, "an anchor or \\R inside a class");
		put(t, (char[]){ '\\', c, 0 });
		t->after_atom = c == 'R';
		return 0;
	}
	if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
		return refuse(t, start, 2, "an escape");
	t->pos = start + 1;
	*cp = cairn_utf8_get(t->in + t->pos);
	t->pos += cairn_utf8_len(t->in + t->pos);
	return 1;
}

/* Translates a class; t->pos is at its opening bracket. */
static int class(struct translation *t)
{
	size_t start = t->pos++;
	bool first = true;

	put(t, "[");
	if (t->pos < t->len && t->in[t->pos] == '^') {
		put(t, "^");
		t->pos++;
	}
	for (;; first = false) {
		uint32_t lo, hi;
		int ret = 1;

		if (t->pos >= t->len)
			return malformed(t, start, "a class without its closing bracket");
		if (t->in[t->pos] == ']' && !first)
			break;
		if (t->in[t->pos] == '[')
			return refuse(t, t->pos, 2, "a bracket inside a class");
		if (looking_at(t, "&&"))
			return refuse(t, t->pos, 2, "an intersection of classes");
		if (t->in[t->pos] == '\\') {
			ret = escape(t, true, &lo);
			if (ret < 0)
				return ret;
		} else {
			lo = cairn_utf8_get(t->in + t->pos);
			t->pos += cairn_utf8_len(t->in + t->pos);
		}
		if (ret == 0)
			continue;
		hi = lo;
		if (t->len - t->pos >= 2 && t->in[t->pos] == '-' && t->in[t->pos + 1] != ']') {
			size_t dash = t->pos++;

			if (t->in[t->pos] == '[')
				return refuse(t, t->pos, 2, "a bracket inside a class");
			if (t->in[t->pos] == '\\') {
				ret = escape(t, true, &hi);
				if (ret < 0)
					return ret;
				if (ret == 0)
					return malformed(t, dash, "a range that ends in a set");
			} else {
				hi = cairn_utf8_get(t->in + t->pos);
				t->pos += cairn_utf8_len(t->in + t->pos);
			}
			if (hi < lo)
				return malformed(t, dash, "a range that runs backwards");
		}
		put_range(t, lo, hi);
	}
	t->pos++;
	put(t, "]");
	return 0;
}

/* Translates the opening of a group: "(" and the characters that give its kind. */
static int group(struct translation *t)
{
	static const char *const same[] = { "(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!" };
	size_t start = t->pos;
	bool on = true;

	t->after_atom = false;
	for (size_t i = 0; i < sizeof(same) / sizeof(*same); i++) {
		if (looking_at(t, same[i])) {
			put(t, same[i]);
			t->pos += strlen(same[i]);
			return 0;
		}
	}
	t->pos++;
	if (t->pos < t->len && t->in[t->pos] == '*')
		return refuse(t, start, 2, "a callout or verb");
	if (t->pos >= t->len || t->in[t->pos] != '?') {
		put(t, "(?:");		/* captures are not used */
		return 0;
	}
	put(t, "(?");
	for (t->pos++; t->pos < t->len; t->pos++) {
		char c = t->in[t->pos];

		if (c == '-' && on) {
			on = false;
			put(t, "-");
		} else if (c == 'i') {
			put(t, "i");
		} else if (c == 'm') {
			put(t, "s");
		} else if (c == ':' || (c == ')' && start == 0)) {
			/* only at the start: in mid-pattern its scope differs between Ruby and Perl */
			put(t, (char[]){ c, 0 });
			t->pos++;
			return 0;
		} else {
			break;
		}
	}
	return refuse(t, start, t->pos - start + 1, "this kind of group");
}

/*
 * Reads a decimal number at *at and moves *at past it; returns -1 if there is none. Large values are capped,
 * but high enough that PCRE2 still rejects them.
 */
static int number(const struct translation *t, size_t *at)
{
	int value = -1;

	for (; *at < t->len && t->in[*at] >= '0' && t->in[*at] <= '9'; ++*at) {
		if (value < 1000000)
			value = (value < 0 ? 0 : value * 10) + t->in[*at] - '0';
	}
	return value;
}

/* Translates {n}, {n,}, {,m} or {n,m} at t->pos into text. Returns its input length, 0 if it is none. */
static size_t interval(const struct translation *t, char *text, size_t text_len, bool *comma)
{
	size_t at = t->pos + 1;
	int lo = number(t, &at), hi = -1;

	*comma = at < t->len && t->in[at] == ',';
	if (*comma) {
		at++;
		hi = number(t, &at);
	}
	if (at >= t->len || t->in[at] != '}' || (lo < 0 && hi < 0))
		return 0;
	if (hi >= 0)
		snprintf(text, text_len, "{%d,%d}", lo < 0 ? 0 : lo, hi);
	else
		snprintf(text, text_len, *comma ? "{%d,}" : "{%d}", lo);
	return at + 1 - t->pos;
}

/* Translates a quantifier; t->pos is at its first character, one of * + ? { */
static int quantifier(struct translation *t)
{
	char text[32] = { t->in[t->pos], 0 };
	size_t n = 1, end;
	bool comma = true;
	char next;

	if (*text == '{') {
		n = interval(t, text, sizeof(text), &comma);
		if (n == 0) {
			put_char(t, '{');	/* not an interval: a literal brace */
			t->pos++;
			t->after_atom = true;
			return 0;
		}
	}
	if (!t->after_atom)
		return refuse(t, t->pos, n, "a repeat of nothing or of a repeat");
	end = t->pos + n;
	next = end < t->len ? t->in[end] : 0;
	if (n > 1 && (next == '+' || (next == '?' && !comma)))
		return refuse(t, t->pos, n + 1, "a repeat of an interval");
	put(t, text);
	if (next == '?' || next == '+') {
		put(t, (char[]){ next, 0 });
		end++;
	}
	t->pos = end;
	t->after_atom = false;
	return 0;
}

static int translate(struct translation *t)
{
	while (t->pos < t->len) {
		uint32_t cp;
		int ret = 0;

		switch (t->in[t->pos]) {
		case '\\':
			t->after_atom = true;
			ret = escape(t, false, &cp);
			if (ret == 1) {
				put_char(t, cp);
				ret = 0;
			}
			break;
		case '[':
			ret = class(t);
			t->after_atom = true;
			break;
		case '(':
			ret = group(t);
			break;
		case '*':
		case '+':
		case '?':
		case '{':
			ret = quantifier(t);
			break;
		case ')':
		case '.':
		case '|':
		case '^':
		case '$':
			t->after_atom = t->in[t->pos] == ')' || t->in[t->pos] == '.';
			put(t, (char[]){ t->in[t->pos++], 0 });
			break;
		default:
			put_char(t, cairn_utf8_get(t->in + t->pos));
			t->pos += cairn_utf8_len(t->in + t->pos);
			t->after_atom = true;
		}
		if (ret < 0)
			return ret;
	}
	if (t->no_memory)
		return cairn_error(ENOMEM, "%s: no memory", t->where);
	return 0;
}

int cairn_pattern_translate(const char *regex, size_t len, const char *where, char **out,
			    size_t *out_len)
{
	struct translation t = { .in = regex, .len = len, .where = where };
	int ret;

	put(&t, "");	/* an empty pattern also gets a buffer */
	ret = translate(&t);
	if (ret) {
		free(t.out);
		return ret;
	}
	*out = t.out;
	*out_len = t.used;
	return 0;
}
