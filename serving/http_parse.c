// SPDX-License-Identifier: Apache-2.0
#include "http_parse.h"

#include <string.h>
#include <strings.h>

#define MAX_METHOD	24	/* the longest known has 7 */
#define MAX_CHUNK_LINE	256	/* size and extensions */
#define MAX_TRAILER	8192

static bool is_tchar(unsigned char c)
{
	return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') ||
	       (c && strchr("!#$%&'*+-.^_`|~", c));
}

bool http_is_token(const char *s)
{
	if (!*s)
		return false;
	for (; *s; s++) {
		if (!is_tchar((unsigned char)*s))
			return false;
	}
	return true;
}

static int fail(int status, const char **why, const char *text)
{
	*why = text;
	return -status;
}

/* One byte of line 0, which ends with a space and the version: that much is added to the target's limit. */
static int scan_request_line(struct http_scan *s, unsigned char c, const struct http_limits *l,
			     const char **why)
{
	size_t column = s->at - s->line;

	if (c == ' ') {
		if (!column)
			return fail(400, why, "request line: begins with a blank");
		s->blank = true;
	} else if (c == '\t' || c >= 0x80) {
		return fail(400, why, "request line: not ASCII");
	} else if (!s->blank && (column >= MAX_METHOD || !is_tchar(c))) {
		return fail(400, why, "request line: no method");
	}
	if (column > l->max_target + MAX_METHOD + sizeof(" HTTP/1.1"))
		return fail(414, why, "request target: too long");
	return 0;
}

static int scan_byte(struct http_scan *s, unsigned char c, const struct http_limits *l, const char **why)
{
	if ((c < 0x20 && c != '\t') || c == 0x7f)
		return fail(400, why, c ? "header: a control byte" : "header: a NUL byte");
	if (!s->lines)
		return scan_request_line(s, c, l, why);
	if (s->at == s->line) {
		if (c == ' ' || c == '\t')
			return fail(400, why, "header: a folded line");
		if (s->lines > l->max_fields)
			return fail(431, why, "header: too many fields");
	}
	return 0;
}

/* A line has ended: is it the empty one? */
static int scan_line(struct http_scan *s, const char **why)
{
	size_t length = s->at - 1 - s->line;

	if (length) {
		s->lines++;
		s->line = s->at + 1;
		return 0;
	}
	if (s->lines)
		return 1;
	/* RFC 9112, 2.2: some clients end a body with one line end too many */
	if (s->skip)
		return fail(400, why, "request line: empty");
	s->skip = s->line = s->at + 1;
	return 0;
}

int http_scan(struct http_scan *s, const char *bytes, size_t n, const struct http_limits *l,
	      const char **why)
{
	for (; s->at < n; s->at++) {
		unsigned char c = (unsigned char)bytes[s->at];
		bool after_cr = s->at > s->line && bytes[s->at - 1] == '\r';
		int ret;

		if (s->at - s->skip >= l->max_header)
			return s->lines ? fail(431, why, "header: too long") :
					  fail(414, why, "request target: too long");
		if (c == '\n' && !after_cr)
			return fail(400, why, "header: a line feed without carriage return");
		if (c != '\n' && after_cr)
			return fail(400, why, "header: a carriage return without line feed");
		if (c == '\r')
			continue;
		ret = c == '\n' ? scan_line(s, why) : scan_byte(s, c, l, why);
		if (ret < 0)
			return ret;
		if (ret) {
			s->at++;
			return (int)s->at;
		}
	}
	return 0;
}

static int hex(unsigned char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 32;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* %xx, in place. What would be a control byte is as bad as one sent bare. */
static bool decode_path(char *path)
{
	char *to = path;

	for (const char *p = path; *p; p++) {
		int c = (unsigned char)*p;

		if (c == '%') {
			int hi = hex((unsigned char)p[1]);
			int lo = hi < 0 ? -1 : hex((unsigned char)p[2]);

			if (lo < 0)
				return false;
			c = hi << 4 | lo;
			p += 2;
		}
		if (c < 0x20 || c == 0x7f)
			return false;
		*to++ = (char)c;
	}
	*to = 0;
	return true;
}

static int parse_version(struct http_head *h, const char *v, const char **why)
{
	if (strncmp(v, "HTTP/", 5) || v[5] < '0' || v[5] > '9' || v[6] != '.' || v[7] < '0' || v[7] > '9' ||
	    v[8])
		return fail(400, why, "request line: no HTTP version");
	if (v[5] != '1')
		return fail(505, why, "HTTP version: only 1.0 and 1.1 are served");
	h->minor = v[7] - '0';
	return 0;
}

static int parse_target(struct http_head *h, char *target, const struct http_limits *l, const char **why)
{
	char *query;

	if (strlen(target) > l->max_target)
		return fail(414, why, "request target: too long");
	/* the absolute form, which a server must take; whose host is meant does not matter here */
	if (!strncasecmp(target, "http://", 7)) {
		target = strchr(target + 7, '/');
		if (!target)
			return fail(400, why, "request target: no path");
	}
	if (*target != '/' && strcmp(target, "*"))
		return fail(400, why, "request target: no path");
	if (strchr(target, '#'))
		return fail(400, why, "request target: a fragment");
	query = strchr(target, '?');
	if (query)
		*query++ = 0;
	else
		query = target + strlen(target);
	if (!decode_path(target))
		return fail(400, why, "request target: bad %xx");
	h->path = target;
	h->query = query;
	return 0;
}

static int parse_request_line(struct http_head *h, char *line, const struct http_limits *l, const char **why)
{
	static const char *const known[] = { "GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH",
					     "CONNECT", "TRACE" };
	char *target = strchr(line, ' '), *version = target ? strchr(target + 1, ' ') : NULL;
	size_t k = 0;
	int ret;

	if (!version || version == target + 1 || strchr(version + 1, ' '))
		return fail(400, why, "request line: not METHOD TARGET HTTP/1.1");
	*target++ = 0;
	*version++ = 0;
	ret = parse_version(h, version, why);
	if (ret)
		return ret;
	h->method = line;
	while (k < sizeof(known) / sizeof(known[0]) && strcmp(known[k], line))
		k++;
	if (k == sizeof(known) / sizeof(known[0]))
		return fail(501, why, "method: unknown");
	return parse_target(h, target, l, why);
}

static int parse_field(struct cairn_http_field *f, char *line, const char **why)
{
	char *colon = strchr(line, ':'), *end;

	if (!colon)
		return fail(400, why, "header: a line without colon");
	*colon++ = 0;
	if (!http_is_token(line))
		return fail(400, why, "header: a field name with other than token characters");
	colon += strspn(colon, " \t");
	end = colon + strlen(colon);
	while (end > colon && (end[-1] == ' ' || end[-1] == '\t'))
		*--end = 0;
	f->name = line;
	f->value = colon;
	return 0;
}

bool http_list_has(const char *list, const char *word)
{
	size_t n = strlen(word);

	while (*list) {
		size_t len;

		list += strspn(list, ", \t");
		len = strcspn(list, ", \t");
		if (len == n && !strncasecmp(list, word, n))
			return true;
		list += len;
	}
	return false;
}

static int parse_length(struct http_head *h, const char *value, const char **why)
{
	size_t n = strlen(value);

	if (h->has_length)
		return fail(400, why, "Content-Length: given twice");
	if (!n || strspn(value, "0123456789") != n)
		return fail(400, why, "Content-Length: not a number");
	h->has_length = true;
	while (*value == '0' && value[1])
		value++;
	if (strlen(value) > 18)
		return fail(413, why, "Content-Length: beyond all limits");
	for (h->length = 0; *value; value++)
		h->length = h->length * 10 + (uint64_t)(*value - '0');
	return 0;
}

static int parse_coding(struct http_head *h, const char *value, const char **why)
{
	size_t n = strlen(value);

	if (h->chunked)
		return fail(400, why, "Transfer-Encoding: given twice");
	/* where chunked is not last nobody knows where the body ends */
	if (n < 7 || strcasecmp(value + n - 7, "chunked"))
		return fail(400, why, "Transfer-Encoding: chunked is not the last coding");
	if (n != 7)
		return fail(501, why, "Transfer-Encoding: only chunked is served");
	if (!h->minor)
		return fail(400, why, "Transfer-Encoding: in HTTP/1.0");
	h->chunked = true;
	return 0;
}

static int parse_host(const char *value, int count, const char **why)
{
	if (count > 1)
		return fail(400, why, "Host: given twice");
	for (; *value; value++) {
		char c = *value;

		if (!strchr("-._~%!$&'()*+;=:[]", c) && !((c | 32) >= 'a' && (c | 32) <= 'z') &&
		    !(c >= '0' && c <= '9'))
			return fail(400, why, "Host: not a host");
	}
	return 0;
}

/* What the fields say about this message. */
static int interpret(struct http_head *h, const char **why)
{
	int hosts = 0, ret = 0;

	h->keep_alive = h->minor > 0;
	for (int i = 0; i < h->num_fields && !ret; i++) {
		const char *name = h->fields[i].name, *value = h->fields[i].value;

		if (!strcasecmp(name, "host"))
			ret = parse_host(value, ++hosts, why);
		else if (!strcasecmp(name, "content-length"))
			ret = parse_length(h, value, why);
		else if (!strcasecmp(name, "transfer-encoding"))
			ret = parse_coding(h, value, why);
		else if (!strcasecmp(name, "connection") && http_list_has(value, "close"))
			h->keep_alive = false;
		else if (!strcasecmp(name, "connection") && !h->minor && http_list_has(value, "keep-alive"))
			h->keep_alive = true;
		else if (!strcasecmp(name, "expect") && h->minor && strcasecmp(value, "100-continue"))
			ret = fail(417, why, "Expect: only 100-continue is served");
		else if (!strcasecmp(name, "expect") && h->minor)
			h->expect_continue = true;
	}
	if (ret)
		return ret;
	if (h->chunked && h->has_length)
		return fail(400, why, "Content-Length: with Transfer-Encoding");
	if (!hosts && h->minor)
		return fail(400, why, "Host: missing");
	return 0;
}

int http_parse_head(struct http_head *h, char *text, size_t n, struct cairn_http_field *fields,
		    const struct http_limits *l, const char **why)
{
	char *line = text, *end = text + n - 2;	/* the empty line */
	int ret = 0;

	memset(h, 0, sizeof(*h));
	h->method = h->path = (char *)"-";
	h->query = (char *)"";
	h->fields = fields;
	for (int lines = 0; line < end; lines++) {
		char *cr = memchr(line, '\r', (size_t)(end - line));

		*cr = 0;
		ret = lines ? parse_field(&fields[h->num_fields], line, why) :
			      parse_request_line(h, line, l, why);
		if (ret)
			return ret;
		h->num_fields += !!lines;
		line = cr + 2;
	}
	return interpret(h, why);
}

enum { SIZE, EXTENSION, SIZE_LF, DATA, DATA_CR, DATA_LF, TRAILER, TRAILER_TEXT, TRAILER_LF, LAST_LF };

static int chunk_size(struct http_chunks *c, unsigned char b, const char **why)
{
	int digit = hex(b);

	if (++c->line > MAX_CHUNK_LINE)
		return fail(400, why, "chunk: its first line is too long");
	if (digit >= 0) {
		if (c->left >> 56)
			return fail(413, why, "chunk: beyond all limits");
		c->left = c->left << 4 | (unsigned)digit;
		c->digits++;
		return 0;
	}
	if (!c->digits || (b != '\r' && b != ';'))
		return fail(400, why, "chunk: its size is no hexadecimal number");
	c->state = b == '\r' ? SIZE_LF : EXTENSION;
	return 0;
}

static int chunk_byte(struct http_chunks *c, unsigned char b, const char **why)
{
	bool control = (b < 0x20 && b != '\t') || b == 0x7f;

	switch (c->state) {
	case SIZE:
		return chunk_size(c, b, why);
	case EXTENSION:
		if (++c->line > MAX_CHUNK_LINE)
			return fail(400, why, "chunk: its first line is too long");
		if (b == '\r')
			c->state = SIZE_LF;
		else if (control)
			return fail(400, why, "chunk: a control byte");
		return 0;
	case SIZE_LF:
	case DATA_LF:
	case TRAILER_LF:
	case LAST_LF:
		if (b != '\n')
			return fail(400, why, "chunk: a carriage return without line feed");
		if (c->state == LAST_LF)
			return 1;
		c->state = c->state == TRAILER_LF ? TRAILER : c->state == DATA_LF ? SIZE :
			   c->left ? DATA : TRAILER;
		c->digits = c->line = 0;
		c->colon = false;
		return 0;
	case DATA_CR:
		if (b != '\r')
			return fail(400, why, "chunk: longer than its size");
		c->state = DATA_LF;
		return 0;
	case TRAILER:
		if (b == '\r') {
			c->state = LAST_LF;
			return 0;
		}
		c->state = TRAILER_TEXT;
		if (b == ':')
			return fail(400, why, "trailer: a field without name");
		/* fall through */
	default:
		if (++c->trailer > MAX_TRAILER)
			return fail(431, why, "trailer: too long");
		if (b == '\r' && c->colon)
			c->state = TRAILER_LF;
		else if (b == ':')
			c->colon = true;
		else if (control || (!c->colon && !is_tchar(b)))
			return fail(400, why, "trailer: not a field");
		return 0;
	}
}

int http_unchunk(struct http_chunks *c, const char *bytes, size_t n, size_t *used, const char **data,
		 size_t *len, const char **why)
{
	*used = *len = 0;
	while (*used < n) {
		int ret;

		if (c->state == DATA) {
			*data = bytes + *used;
			*len = n - *used < c->left ? n - *used : (size_t)c->left;
			*used += *len;
			c->left -= *len;
			if (!c->left)
				c->state = DATA_CR;
			return 0;
		}
		ret = chunk_byte(c, (unsigned char)bytes[(*used)++], why);
		if (ret)
			return ret;
	}
	return 0;
}
