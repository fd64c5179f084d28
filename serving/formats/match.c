// SPDX-License-Identifier: Apache-2.0
/* match - matches text with the patterns of formats.h */
#include "serving/formats/output_parser_impl.h"

#define MAX_KEY 256 /* bytes of a parameter's name */

size_t parser_literal(const char *pattern)
{
	size_t n = 0;

	while (pattern[n] && pattern[n] != '%' && !is_space(pattern[n]))
		n++;
	return n;
}

size_t parser_scan(struct json_scan *s, const char *text, size_t n, bool *ended)
{
	*ended = false;
	for (size_t i = 0; i < n; i++) {
		char c = text[i];

		if (s->in_string) {
			if (s->escaped)
				s->escaped = false;
			else if (c == '\\')
				s->escaped = true;
			else if (c == '"')
				s->in_string = false;
		} else if (c == '"') {
			s->in_string = true;
		} else if (c == '{' || c == '[') {
			s->depth++;
		} else if ((c == '}' || c == ']') && --s->depth == 0) {
			*ended = true;
			return i + 1;
		}
	}
	return n;
}

static size_t skip_space(const char *text, size_t n, size_t at)
{
	while (at < n && is_space(text[at]))
		at++;
	return at;
}

/* Skips white space and the character c. */
static enum match skip_char(const char *text, size_t n, size_t *at, char c)
{
	*at = skip_space(text, n, *at);
	if (*at == n)
		return MATCH_MORE;
	return text[(*at)++] == c ? MATCH_YES : MATCH_NO;
}

/* Reads a JSON string; s is its inside, with escapes unchanged. */
static enum match take_string(const char *text, size_t n, size_t *at, const char **s, size_t *len)
{
	enum match m = skip_char(text, n, at, '"');
	size_t i = *at;

	if (m != MATCH_YES)
		return m;
	while (i < n && text[i] != '"')
		i += text[i] == '\\' ? 2 : 1;
	if (i >= n)
		return MATCH_MORE;
	*s = text + *at;
	*len = i - *at;
	*at = i + 1;
	return MATCH_YES;
}

/* Skips a JSON value of any type. */
static enum match skip_value(const char *text, size_t n, size_t *at)
{
	struct json_scan scan = { 0 };
	const char *s;
	size_t len;
	bool ended;

	*at = skip_space(text, n, *at);
	if (*at == n)
		return MATCH_MORE;
	if (text[*at] == '"')
		return take_string(text, n, at, &s, &len);
	if (text[*at] == '{' || text[*at] == '[') {
		*at += parser_scan(&scan, text + *at, n - *at, &ended);
		return ended ? MATCH_YES : MATCH_MORE;
	}
	for (len = *at; len < n && !is_space(text[len]) && !strchr(",}]:\"", text[len]);)
		len++;
	if (len == n)
		return MATCH_MORE;
	if (len == *at)
		return MATCH_NO;
	*at = len;
	return MATCH_YES;
}

static bool is(const char *s, size_t len, const char *word)
{
	return len == strlen(word) && !memcmp(s, word, len);
}

/* Reads one member of the object of %o. Sets f->envelope and stops at the arguments if the name is known. */
static enum match take_member(const char *text, size_t n, struct found *f)
{
	const char *key, *value;
	size_t key_len, len, begin;
	enum match m = take_string(text, n, &f->at, &key, &key_len);

	if (m == MATCH_YES)
		m = skip_char(text, n, &f->at, ':');
	if (m != MATCH_YES)
		return m;
	if (is(key, key_len, "name")) {
		m = take_string(text, n, &f->at, &value, &len);
		if (m != MATCH_YES)
			return m;
		if (f->name || !len || len > CAIRN_MAX_TOOL_NAME || cairn_tool_name_len(value, len) != len)
			return MATCH_NO;
		f->name = value;
		f->name_len = len;
		return MATCH_YES;
	}
	if (!is(key, key_len, "arguments") && !is(key, key_len, "parameters"))
		return skip_value(text, n, &f->at);
	begin = f->at = skip_space(text, n, f->at);
	if (begin == n)
		return MATCH_MORE;
	if (text[begin] != '{' || f->arguments)
		return MATCH_NO;
	if (f->name) {
		f->envelope = true;
		return MATCH_YES;
	}
	m = skip_value(text, n, &f->at);
	if (m == MATCH_YES) {
		f->arguments = text + begin;
		f->num_arguments = f->at - begin;
	}
	return m;
}

static enum match take_envelope(const char *text, size_t n, struct found *f)
{
	enum match m = skip_char(text, n, &f->at, '{');

	while (m == MATCH_YES) {
		m = take_member(text, n, f);
		if (m != MATCH_YES || f->envelope)
			return m;
		f->at = skip_space(text, n, f->at);
		if (f->at == n)
			return MATCH_MORE;
		if (text[f->at] == '}') {
			f->at++;
			f->closed = true;
			return f->name ? MATCH_YES : MATCH_NO;
		}
		m = skip_char(text, n, &f->at, ',');
	}
	return m;
}

enum match parser_envelope_end(const char *text, size_t n, size_t *end)
{
	size_t at = 0;

	for (;;) {
		const char *key;
		size_t len;
		enum match m;

		at = skip_space(text, n, at);
		if (at == n)
			return MATCH_MORE;
		if (text[at] == '}') {
			*end = at + 1;
			return MATCH_YES;
		}
		m = skip_char(text, n, &at, ',');
		if (m == MATCH_YES)
			m = take_string(text, n, &at, &key, &len);
		if (m == MATCH_YES)
			m = skip_char(text, n, &at, ':');
		if (m == MATCH_YES)
			m = skip_value(text, n, &at);
		if (m != MATCH_YES)
			return m;
	}
}

/* Reads the name of a parameter, which ends where the pattern's next literal begins. */
static enum match take_key(const char *pattern, const char *text, size_t n, struct found *f)
{
	size_t end = f->at;

	while (end < n && end - f->at < MAX_KEY && text[end] != *pattern && text[end] != '\n')
		end++;
	if (end == n)
		return MATCH_MORE;
	if (end == f->at || text[end] != *pattern)
		return MATCH_NO;
	f->key = text + f->at;
	f->key_len = end - f->at;
	f->at = end;
	return MATCH_YES;
}

static size_t alphanumeric(const char *s, size_t n)
{
	size_t i = 0;

	while (i < n && ((s[i] >= 'a' && s[i] <= 'z') || (s[i] >= 'A' && s[i] <= 'Z') ||
			 (s[i] >= '0' && s[i] <= '9')))
		i++;
	return i;
}

/* Matches %n, %d and %i: all must be followed by another character in order to be complete. */
static enum match take_word(char what, const char *text, size_t n, struct found *f)
{
	const char *s = text + f->at;
	size_t left = n - f->at, max = what == 'd' ? 6 : CAIRN_MAX_TOOL_NAME, len;

	len = what == 'n' ? cairn_tool_name_len(s, left) : what == 'i' ? alphanumeric(s, left) : 0;
	while (what == 'd' && len < left && len <= max && s[len] >= '0' && s[len] <= '9')
		len++;
	if (len > max || (!len && left))
		return MATCH_NO;
	if (len == left)
		return MATCH_MORE;
	if (what == 'n') {
		f->name = s;
		f->name_len = len;
	}
	for (size_t i = 0; what == 'd' && i < len; i++)
		f->number = (i ? 10 * f->number : 0) + (s[i] - '0');
	f->at += len;
	return MATCH_YES;
}

enum match parser_match(const char *pattern, const char *text, size_t n, struct found *f)
{
	enum match m = MATCH_YES;

	while (*pattern && m == MATCH_YES && !f->envelope && !f->closed) {
		if (is_space(*pattern)) {
			if (!strncmp(pattern + 1, "%v", 2)) /* of this space, one newline is dropped */
				break;
			f->at = skip_space(text, n, f->at);
			pattern++;
			continue;
		}
		if (*pattern == '%') {
			char what = pattern[1];

			if (what == 'v' || what == 'p')
				break;
			if (what == 'a') { /* an object must begin here */
				f->at = skip_space(text, n, f->at);
				m = f->at == n ? MATCH_MORE : text[f->at] == '{' ? MATCH_YES : MATCH_NO;
				break;
			}
			pattern += 2;
			m = what == 'o'	  ? take_envelope(text, n, f)
			    : what == 'k' ? take_key(pattern, text, n, f)
					  : take_word(what, text, n, f);
			continue;
		}
		m = f->at == n ? MATCH_MORE : text[f->at] == *pattern ? MATCH_YES : MATCH_NO;
		f->at += m == MATCH_YES;
		pattern++;
	}
	f->pattern = pattern;
	return m;
}
