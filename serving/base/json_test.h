/* SPDX-License-Identifier: Apache-2.0 */
/* json_test - lets tests write JSON in C strings with ' for " */
#ifndef CAIRN_JSON_TEST_H
#define CAIRN_JSON_TEST_H

#include <stdlib.h>
#include <string.h>

/*
 * Returns base with its first `from` replaced by `to` (from NULL: all of base), and then every ' replaced
 * by ". The caller frees the result. Returns NULL if base does not contain `from`.
 */
static inline char *cairn_json_text(const char *base, const char *from, const char *to)
{
	const char *at = from ? strstr(base, from) : base;
	size_t head = at ? (size_t)(at - base) : 0;
	char *text;

	if (!at)
		return NULL;
	text = malloc(strlen(base) + strlen(to) + 1);
	if (!text)
		return NULL;
	memcpy(text, base, head);
	strcpy(text + head, to);
	if (from)
		strcat(text, at + strlen(from));
	for (char *c = text; *c; c++)
		if (*c == '\'')
			*c = '"';
	return text;
}

#endif
