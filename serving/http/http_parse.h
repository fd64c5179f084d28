/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http_parse - parses requests strictly by RFC 9112 and rejects ambiguous ones; no input or output
 *
 * llhttp checks the grammar in its strict mode; http_parse.c lists the checks it adds.
 *
 * Anything that two parsers could read differently is rejected. If a proxy in front delimited a request
 * differently from this server, bytes of one client could become a request of another (request smuggling).
 *
 * A result < 0 is a negated status (-400); *why then says what is wrong.
 */
#ifndef CAIRN_HTTP_PARSE_H
#define CAIRN_HTTP_PARSE_H

#include <llhttp.h>

#include "serving/http/http.h"

struct http_limits {
	size_t max_target, max_header;
	int max_fields;
};

/* State of scanning a head; zeroed before its first byte. */
struct http_scan {
	size_t at, line, skip;		/* next byte; start of its line; size of an empty line in front */
	int lines;			/* complete lines so far */
	bool blank;			/* a space was seen in line 0 */
};

/*
 * bytes[0..n): everything received so far. Returns 0 if more bytes are needed, otherwise the length of the
 * head including its final empty line and the s->skip bytes before it. An error is reported at the first
 * wrong byte, without waiting for the rest of the head.
 */
int http_scan(struct http_scan *s, const char *bytes, size_t n, const struct http_limits *l,
	      const char **why);

struct http_head {
	char *method, *path, *query;
	struct cairn_http_field *fields;
	int num_fields;
	int minor;			/* version is HTTP/1.minor */
	bool has_length, chunked, keep_alive, expect_continue;
	uint64_t length;		/* Content-Length; 0 if chunked */
};

/*
 * Parses a head that http_scan() accepted, without the s->skip bytes before it. text is modified in place and
 * *h points into it. fields has room for max_fields. Returns 0 or a negated status; method and path are valid
 * strings in any case, "-" if they could not be parsed.
 */
int http_parse_head(struct http_head *h, char *text, size_t n, struct cairn_http_field *fields,
		    const struct http_limits *l, const char **why);

/* State of decoding a chunked body; zeroed before its first byte. */
struct http_chunks {
	llhttp_t p;
	bool begun, is_last, is_whole, extension;
	unsigned char last;		/* previous framing byte */
	int framing, line;		/* bytes so far: of this size line or trailer; of its last line */
	uint64_t left;			/* data bytes of this chunk still to come */
	const char *data;
	size_t len;
};

/*
 * Consumes *used of n bytes. *data and *len are the body bytes among them (*len 0: none). Returns 1 when the
 * body is complete, or 0 if the caller must call again with the remaining bytes.
 */
int http_unchunk(struct http_chunks *c, const char *bytes, size_t n, size_t *used, const char **data,
		 size_t *len, const char **why);

bool http_is_token(const char *s);
/* Returns whether `word` is an element of the comma-separated list, ignoring case. */
bool http_list_has(const char *list, const char *word);

#endif
