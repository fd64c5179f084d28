/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http_parse - the bytes of a request, strictly by RFC 9112 and a little more; no input or output
 *
 * The grammar is llhttp's, in its strict mode; http_parse.c says what is added to it.
 *
 * Whatever two parsers could read in two ways is refused: a request that a proxy in front understood
 * otherwise is how one client's bytes become another's request.
 *
 * Results < 0 are a status negated (-400), *why then says in words what is wrong.
 */
#ifndef CAIRN_HTTP_PARSE_H
#define CAIRN_HTTP_PARSE_H

#include <llhttp.h>

#include "serving/http/http.h"

struct http_limits {
	size_t max_target, max_header;
	int max_fields;
};

/* How far a head has been looked at; zeroed before its first byte. */
struct http_scan {
	size_t at, line, skip;		/* next byte, where its line begins, empty line before the request */
	int lines;
	bool blank;			/* line 0: a space was seen */
};

/*
 * bytes[0..n): what has come so far. 0: more is needed; > 0: bytes of the head with its empty line (and those
 * of an empty line before it, s->skip). Errors show at their byte: nobody waits for the rest.
 */
int http_scan(struct http_scan *s, const char *bytes, size_t n, const struct http_limits *l,
	      const char **why);

struct http_head {
	char *method, *path, *query;
	struct cairn_http_field *fields;
	int num_fields;
	int minor;			/* of HTTP/1.minor */
	bool has_length, chunked, keep_alive, expect_continue;
	uint64_t length;
};

/*
 * text: a head that http_scan() passed, without s->skip, which is taken apart in place. fields: room for
 * max_fields. 0 or a status negated; method and path are good in any case, "-" if not understood.
 */
int http_parse_head(struct http_head *h, char *text, size_t n, struct cairn_http_field *fields,
		    const struct http_limits *l, const char **why);

/* A chunked body; zeroed before its first byte. */
struct http_chunks {
	llhttp_t p;
	bool begun, is_last, is_whole, extension;
	unsigned char last;		/* byte of the framing */
	int framing, line;		/* bytes of this size line or trailer, and of its line */
	uint64_t left;			/* of this chunk's data */
	const char *data;
	size_t len;
};

/*
 * Takes *used of n bytes; *data, *len: bytes of the body among them, len 0 for none. 0: call again with the
 * rest; 1: the body is whole.
 */
int http_unchunk(struct http_chunks *c, const char *bytes, size_t n, size_t *used, const char **data,
		 size_t *len, const char **why);

bool http_is_token(const char *s);
/* Is `word` among the comma-separated ones of list, whatever the case. */
bool http_list_has(const char *list, const char *word);

#endif
