// SPDX-License-Identifier: Apache-2.0
/*
 * chat_template_lex - splits the source of a template into tokens
 *
 * The rules are those of Jinja's lexer with trim_blocks and lstrip_blocks: a newline directly after a block
 * or comment tag is dropped, and so are blanks between the start of a line and such a tag. A minus at a tag
 * drops all white space on its side; a plus keeps what would have been dropped. A tag ends only where no
 * bracket is open, so that {{ {'a': {}} }} is one tag.
 */
#include "serving/template/chat_template_lex.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/base/json.h"
#include "serving/base/utf8.h"

#define MAX_BRACKETS 256

struct lexer {
	struct parser *p;
	const char *s;
	size_t len, at;
	int line;
	bool line_starting; /* the last token ended with a newline */
};

static int fail(const struct lexer *l, const char *what)
{
	return cairn_tpl_syntax(l->p, EINVAL, l->line, "%s", what);
}

static int add(struct lexer *l, const struct tok *tok)
{
	struct parser *p = l->p;

	if (p->num_toks == p->cap_toks) {
		size_t cap = p->cap_toks ? 2 * p->cap_toks : 256;
		struct tok *grown = realloc(p->toks, cap * sizeof(*grown));

		if (!grown)
			return cairn_error(ENOMEM, "%s: no memory", p->t->name);
		p->toks = grown;
		p->cap_toks = cap;
	}
	p->toks[p->num_toks] = *tok;
	p->toks[p->num_toks++].line = l->line;
	return 0;
}

static int add_kind(struct lexer *l, enum tok_kind kind)
{
	return add(l, &(struct tok) { .kind = kind });
}

static bool starts(const struct lexer *l, size_t at, const char *what)
{
	size_t n = strlen(what);

	return l->len - at >= n && !memcmp(l->s + at, what, n);
}

static void advance(struct lexer *l, size_t to)
{
	for (; l->at < to; l->at++)
		l->line += l->s[l->at] == '\n';
	l->line_starting = to && l->s[to - 1] == '\n';
}

/* Returns the position of the first character at or after `at` that is not white space. */
static size_t skip_space(const struct lexer *l, size_t at)
{
	while (at < l->len && cairn_tpl_space(cairn_utf8_get(l->s + at)))
		at += cairn_utf8_len(l->s + at);
	return at;
}

/*
 * Returns the position after the tag end at `at`: "-%}" and white space, "+%}", or "%}" and a newline; 0 if
 * there is no tag end. The end of a variable tag ("}}") keeps its newline and has no form with a plus.
 */
static size_t tag_end(const struct lexer *l, size_t at, const char *end)
{
	bool variable = *end == '}';

	if (starts(l, at, end))
		return at + 2 + (!variable && starts(l, at + 2, "\n"));
	if (at < l->len && l->s[at] == '-' && starts(l, at + 1, end))
		return skip_space(l, at + 3);
	if (!variable && at < l->len && l->s[at] == '+' && starts(l, at + 1, end))
		return at + 3;
	return 0;
}

/* Adds the text before a tag. sign: that of the tag, or 0. Variable tags keep the blanks before them. */
static int add_data(struct lexer *l, size_t end, char sign, bool variable)
{
	struct str text = { l->s + l->at, NULL, end - l->at };
	size_t line = text.len, blank;

	if (sign == '-') {
		text = cairn_tpl_strip(text, 2);
	} else if (sign != '+' && !variable) {
		while (line > 0 && text.s[line - 1] != '\n')
			line--;
		blank = skip_space(l, l->at + line);
		if ((line > 0 || l->line_starting) && blank >= end)
			text.len = line;
	}
	return text.len ? add(l, &(struct tok) { .kind = T_DATA, .str = text }) : 0;
}

static int number(struct lexer *l)
{
	char digits[64];
	size_t n = 0, i = l->at;
	struct tok tok = { .kind = T_INT };
	char *end;

	for (; i < l->len && n < sizeof(digits) - 1; i++) {
		char c = l->s[i], before = n ? digits[n - 1] : 0;

		if (c == '_')
			continue;
		/* 1.5 and 1e-5 are floats; 1.real is an attribute of an integer */
		if (c == '.' && tok.kind == T_INT && i + 1 < l->len && l->s[i + 1] >= '0' &&
		    l->s[i + 1] <= '9' && !(l->at > 0 && l->s[l->at - 1] == '.'))
			tok.kind = T_FLOAT;
		else if ((c == 'e' || c == 'E') && n &&
			 (starts(l, i + 1, "+") || starts(l, i + 1, "-") ||
			  (i + 1 < l->len && l->s[i + 1] >= '0' && l->s[i + 1] <= '9')))
			tok.kind = T_FLOAT;
		else if ((c == '+' || c == '-') && (before == 'e' || before == 'E'))
			;
		else if (c < '0' || c > '9')
			break;
		digits[n++] = c;
	}
	digits[n] = 0;
	if (n == sizeof(digits) - 1 || (tok.kind == T_INT && n > 1 && digits[0] == '0') ||
	    (i < l->len && (l->s[i] == '_' || (l->s[i] >= 'a' && l->s[i] <= 'z'))))
		return fail(l, "a number that is not supported");
	errno = 0;
	if (tok.kind == T_INT)
		tok.i = strtoll(digits, &end, 10);
	else
		tok.f = strtod(digits, &end);
	if (*end || (errno && tok.kind == T_INT))
		return fail(l, "a number that is not supported");
	CAIRN_TRY(add(l, &tok));
	advance(l, i);
	return 0;
}

static bool name_byte(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
	       (unsigned char)c >= 0x80;
}

static int hex(const char *s, const char *end, int digits, uint32_t *cp)
{
	*cp = 0;
	for (int i = 0; i < digits; i++, s++) {
		int c = s < end ? (unsigned char)*s : 0;
		int v = c >= '0' && c <= '9'                 ? c - '0'
			: (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
							     : -1;

		if (v < 0)
			return -1;
		*cp = *cp << 4 | (uint32_t)v;
	}
	return 0;
}

/* Decodes the escape at s, after the backslash, as Python does; writes to *to. Returns bytes read, or -1. */
static int unescape(const char *s, const char *end, char **to)
{
	static const char from[] = "abfnrtv\\'\"", into[] = "\a\b\f\n\r\t\v\\'\"";
	const char *simple = memchr(from, *s, sizeof(from) - 1);
	int used = 1, digits;
	uint32_t cp = 0;

	if (*s == '\n')
		return 1;
	if (simple) {
		*(*to)++ = into[simple - from];
		return 1;
	}
	if (*s >= '0' && *s <= '7') {
		for (used = 0; used < 3 && s + used < end && s[used] >= '0' && s[used] <= '7'; used++)
			cp = cp * 8 + (uint32_t)(s[used] - '0');
	} else if (*s == 'x' || *s == 'u' || *s == 'U') {
		digits = *s == 'x' ? 2 : *s == 'u' ? 4 : 8;
		used = 1 + digits;
		if (hex(s + 1, end, digits, &cp))
			return -1;
	} else if (*s == 'N') {
		return -1;
	} else {
		/* Python keeps the backslash of an unknown escape */
		*(*to)++ = '\\';
		return 0;
	}
	if (cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000))
		return -1;
	*to += cairn_utf8_put(cp, *to);
	return used;
}

static int string(struct lexer *l)
{
	const char quote = l->s[l->at];
	struct tok tok = { .kind = T_STR };
	size_t i = l->at + 1, end = i;
	char *buf, *to;

	while (end < l->len && l->s[end] != quote)
		end += 1 + (l->s[end] == '\\');
	if (end >= l->len)
		return fail(l, "unterminated string");
	/* a decoded escape is never longer than its source, not even \7 or \uffff */
	buf = cairn_tpl_alloc(&l->p->t->arena, end - i + 4);
	if (!buf)
		return -ENOMEM;
	for (to = buf; i < end; i++) {
		int n;

		if (l->s[i] != '\\') {
			*to++ = l->s[i];
			continue;
		}
		n = unescape(l->s + i + 1, l->s + end, &to);
		if (n < 0)
			return fail(l, "a string with an escape that is not supported");
		i += (size_t)n;
	}
	tok.str = (struct str) { buf, NULL, (size_t)(to - buf) };
	CAIRN_TRY(add(l, &tok));
	advance(l, end + 1);
	return 0;
}

/* Reads the tokens inside a tag, up to and including its end. */
static int tag(struct lexer *l, const char *end)
{
	static const char *const ops[] = { "//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
					   "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
					   ">",  "<",  "=",  ".",  ":",  "|",  ",", ";" };
	const enum tok_kind end_kind = *end == '}' ? T_VAR_END : T_BLOCK_END;
	char open[MAX_BRACKETS];
	int num_open = 0;

	for (;;) {
		size_t i, stop = num_open ? 0 : tag_end(l, l->at, end);
		char c;

		if (stop) {
			CAIRN_TRY(add_kind(l, end_kind));
			advance(l, stop);
			return 0;
		}
		if (l->at >= l->len)
			return fail(l, "unterminated tag");
		c = l->s[l->at];
		if (cairn_tpl_space(cairn_utf8_get(l->s + l->at))) {
			advance(l, skip_space(l, l->at));
			continue;
		}
		if (c >= '0' && c <= '9') {
			CAIRN_TRY(number(l));
			continue;
		}
		if (c == '\'' || c == '"') {
			CAIRN_TRY(string(l));
			continue;
		}
		for (i = l->at; i < l->len && name_byte(l->s[i]); i++)
			;
		if (i > l->at) {
			struct tok tok = { .kind = T_NAME };

			if (i - l->at > TPL_MAX_NAME)
				return cairn_tpl_syntax(l->p, EINVAL, l->line, "a name of more than %d bytes",
							TPL_MAX_NAME);
			tok.name = cairn_tpl_intern(l->p->t, l->s + l->at, i - l->at);
			if (!tok.name)
				return -EINVAL;
			CAIRN_TRY(add(l, &tok));
			advance(l, i);
			continue;
		}
		for (i = 0; i < sizeof(ops) / sizeof(*ops) && !starts(l, l->at, ops[i]); i++)
			;
		if (i == sizeof(ops) / sizeof(*ops))
			return fail(l, "a character that is not allowed in a tag");
		if (strchr("([{", c)) {
			if (num_open == MAX_BRACKETS)
				return fail(l, "brackets nested too deep");
			open[num_open++] = c == '(' ? ')' : c == '[' ? ']' : '}';
		} else if (strchr(")]}", c) && (num_open == 0 || open[--num_open] != c)) {
			return fail(l, "mismatched brackets");
		}
		CAIRN_TRY(add(l, &(struct tok) { .kind = T_OP, .name = ops[i] }));
		advance(l, l->at + strlen(ops[i]));
	}
}

/* at: after "{%". Returns the position after the tag if it is the tag `word`, otherwise 0. */
static size_t word_tag(const struct lexer *l, size_t at, const char *word)
{
	if (at < l->len && (l->s[at] == '-' || l->s[at] == '+'))
		at++;
	at = skip_space(l, at);
	if (!starts(l, at, word))
		return 0;
	return tag_end(l, skip_space(l, at + strlen(word)), "%}");
}

/* Called after a raw tag: adds the text up to the endraw tag, and skips that tag. */
static int raw(struct lexer *l)
{
	for (size_t i = l->at; i + 2 < l->len; i++) {
		size_t end = starts(l, i, "{%") ? word_tag(l, i + 2, "endraw") : 0;

		if (!end)
			continue;
		CAIRN_TRY(add_data(l, i, l->s[i + 2], false));
		advance(l, end);
		return 0;
	}
	return fail(l, "raw without endraw");
}

static int comment(struct lexer *l)
{
	for (size_t i = l->at; i < l->len; i++) {
		size_t end = tag_end(l, i, "#}");

		if (end) {
			advance(l, end);
			return 0;
		}
	}
	return fail(l, "unterminated comment");
}

static int lex(struct lexer *l)
{
	while (l->at < l->len) {
		size_t i = l->at, end;
		char kind, sign;

		while (i + 1 < l->len && !(l->s[i] == '{' && strchr("{%#", l->s[i + 1])))
			i++;
		if (i + 1 >= l->len)
			return add(l, &(struct tok) { .kind = T_DATA,
						      .str = { l->s + l->at, NULL, l->len - l->at } });
		kind = l->s[i + 1];
		sign = i + 2 < l->len && (l->s[i + 2] == '-' || l->s[i + 2] == '+') ? l->s[i + 2] : 0;
		CAIRN_TRY(add_data(l, i, sign, kind == '{'));
		end = kind == '%' ? word_tag(l, i + 2, "raw") : 0;
		if (end) {
			/* raw keeps the newline after its tag, unless the tag ends with a minus */
			advance(l, end - (l->s[end - 1] == '\n' && l->s[end - 2] == '}' &&
					  l->s[end - 4] != '-'));
			CAIRN_TRY(raw(l));
			continue;
		}
		advance(l, i + 2 + (sign != 0));
		if (kind == '#') {
			CAIRN_TRY(comment(l));
			continue;
		}
		CAIRN_TRY(add_kind(l, kind == '{' ? T_VAR_BEGIN : T_BLOCK_BEGIN));
		CAIRN_TRY(tag(l, kind == '{' ? "}}" : "%}"));
	}
	return 0;
}

int cairn_tpl_lex(struct parser *p, const char *source, size_t num_bytes)
{
	char *text = cairn_tpl_alloc(&p->t->arena, num_bytes + 1);
	struct lexer l = { .p = p, .s = text, .line = 1, .line_starting = true };

	if (!text)
		return -ENOMEM;
	for (size_t i = 0; i < num_bytes; i++) {
		bool cr = source[i] == '\r';

		text[l.len++] = cr ? '\n' : source[i];
		i += cr && i + 1 < num_bytes && source[i + 1] == '\n';
	}
	/* Jinja drops one newline at the end of the source */
	if (l.len && text[l.len - 1] == '\n')
		l.len--;
	for (size_t i = 0; i < l.len;) {
		uint32_t cp;
		int truncated, n = cairn_utf8_next(text + i, l.len - i, &cp, &truncated);

		if (n < 0 || cp == 0)
			return cairn_error(EINVAL, "%s: byte %zu: not UTF-8 text", p->t->name, i);
		i += (size_t)n;
	}
	CAIRN_TRY(lex(&l));
	return add_kind(&l, T_EOF);
}
