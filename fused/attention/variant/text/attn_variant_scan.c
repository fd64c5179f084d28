// SPDX-License-Identifier: Apache-2.0
/*
 * attn_variant_scan - finds the functions that a text defines, without parsing it
 *
 * Comments and literals are skipped. A hook is defined where its name stands outside of all brackets, a
 * parenthesis follows it, and a brace follows before the next semicolon.
 */
#include "fused/attention/variant/text/attn_variant_scan.h"

#include <ctype.h>
#include <string.h>

#include "fused/attention/variant/text/attn_variant_list.h"
#include "primitives/base/error.h"

static const char *const hook_names[ATTN_NUM_HOOKS] = {
	[ATTN_HOOK_HEAD_SLOPE] = "head_slope", [ATTN_HOOK_LOGIT] = "logit",
	[ATTN_HOOK_LOGIT_CAP] = "logit_cap", [ATTN_HOOK_KEEP] = "keep", [ATTN_HOOK_RANGE] = "range",
	[ATTN_HOOK_QUERY] = "query", [ATTN_HOOK_KEY] = "key", [ATTN_HOOK_SINK] = "sink",
	[ATTN_HOOK_WEIGHT] = "weight", [ATTN_HOOK_OUTPUT] = "output",
};

const char *attn_variant_hook_name(int hook)
{
	return hook_names[hook];
}

struct scan {
	const char *at, *name;
	int line, depth;		/* depth: open brackets of any kind */
	int pending;			/* the hook whose name and parenthesis stood last, or -1 */
	unsigned int hooks;
};

static int bad(const struct scan *s, int line, const char *why)
{
	return cairn_error(EINVAL, "%s:%d: %s", s->name, line, why);
}

static int is_word(char c)
{
	return isalnum((unsigned char)c) || c == '_';
}

/* Skips a comment that begins here. */
static int skip_comment(struct scan *s)
{
	int begin = s->line;
	const char *end = strstr(s->at + 2, s->at[1] == '/' ? "\n" : "*/");

	if (!end && s->at[1] == '*')
		return bad(s, begin, "the comment has no end");
	if (!end)
		end = s->at + strlen(s->at);
	for (; s->at < end; s->at++) {
		s->line += *s->at == '\n';
		if (*s->at == '\\' && (s->at[1] == '\n' || s->at[1] == '\r'))
			return bad(s, s->line, "a line may not end in a backslash");
	}
	s->at += *s->at == '*' ? 2 : 0;
	return 0;
}

static int skip_literal(struct scan *s)
{
	char quote = *s->at++;

	while (*s->at && *s->at != quote) {
		if (*s->at == '\n' || (*s->at == '\\' && (s->at[1] == '\n' || s->at[1] == '\r')))
			return bad(s, s->line, "the literal has no end on its line");
		s->at += *s->at == '\\' && s->at[1] ? 2 : 1;
	}
	if (!*s->at)
		return bad(s, s->line, "the literal has no end");
	s->at++;
	return 0;
}

static int is_one_of(const char *word, size_t len, const char *const *words)
{
	for (int i = 0; words[i]; i++)
		if (strlen(words[i]) == len && !memcmp(words[i], word, len))
			return 1;
	return 0;
}

static int read_word(struct scan *s)
{
	static const char *const assembly[] = { "asm", "__asm", "__asm__", NULL };
	static const char *const pragma[] = { "_Pragma", "__pragma", NULL };
	const char *word = s->at, *next;
	size_t len;

	while (is_word(*s->at))
		s->at++;
	len = (size_t)(s->at - word);
	if (is_one_of(word, len, assembly))
		return bad(s, s->line, "inline assembly is refused");
	if (is_one_of(word, len, pragma))
		return bad(s, s->line, "pragmas are refused");
	if (*s->at == '"' || *s->at == '\'')
		return bad(s, s->line, "prefixes of literals are refused");
	for (next = s->at; isspace((unsigned char)*next); next++)
		;
	for (int h = 0; h < ATTN_NUM_HOOKS && !s->depth && *next == '('; h++)
		if (strlen(hook_names[h]) == len && !memcmp(hook_names[h], word, len))
			s->pending = h;
	return 0;
}

/* Reads a character that begins neither a comment, a literal nor a word. */
static int read_mark(struct scan *s)
{
	char c = *s->at;

	if (c == '#' || !strncmp(s->at, "%:", 2) || !strncmp(s->at, "?\?=", 3))
		return bad(s, s->line, "preprocessor lines (#) are refused");
	if (c == '\\')
		return bad(s, s->line, "a backslash is refused");
	if (c == '{' && !s->depth && s->pending >= 0) {
		if (s->hooks >> s->pending & 1)
			return bad(s, s->line, "the hook is defined twice");
		s->hooks |= 1u << s->pending;
	}
	if ((c == '{' || c == ';') && !s->depth)
		s->pending = -1;
	s->depth += c == '(' || c == '[' || c == '{';
	s->depth -= c == ')' || c == ']' || c == '}';
	if (s->depth < 0)
		return bad(s, s->line, "a closing bracket without an opening one");
	s->line += c == '\n';
	s->at++;
	return 0;
}

int attn_variant_scan(const char *text, const char *name, unsigned int *hooks)
{
	struct scan s = { .at = text, .name = name, .line = 1, .pending = -1 };

	while (*s.at) {
		if (*s.at == '/' && (s.at[1] == '/' || s.at[1] == '*'))
			CAIRN_TRY(skip_comment(&s));
		else if (*s.at == '"' || *s.at == '\'')
			CAIRN_TRY(skip_literal(&s));
		else if (is_word(*s.at))
			CAIRN_TRY(read_word(&s));
		else
			CAIRN_TRY(read_mark(&s));
	}
	if (s.depth)
		return bad(&s, s.line, "the text ends within brackets");
	if (!s.hooks)
		return bad(&s, 1, "no hook is defined: head_slope, logit, logit_cap, keep, range, query, "
			   "key, sink, weight, output");
	*hooks = s.hooks;
	return 0;
}
