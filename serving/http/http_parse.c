// SPDX-License-Identifier: Apache-2.0
/*
 * http_parse - request parser: llhttp for the grammar, and the checks that llhttp leaves to its user
 *
 * http_scan() checks a head while it arrives. It enforces the limits and rejects bytes that llhttp (8.1)
 * accepts although parsers read them differently: a bare LF, folded lines, NUL and other controls, a tab in
 * the request line. A complete head is passed to llhttp in one call, so that the callbacks get contiguous
 * parts of it. After that come the checks that HTTP requires but its grammar does not express: one Host, one
 * Transfer-Encoding, exactly two spaces in the request line, a supported version and target.
 *
 * llhttp parses chunked bodies too. Each byte of their framing is checked and then passed to llhttp alone.
 * The framing is short, so this costs little. The check bounds the size line and the trailer and accepts no
 * line end but CR LF.
 */
#include "serving/http/http_parse.h"

#include <string.h>
#include <strings.h>

#define MAX_METHOD	24	/* the longest known method has 13 characters */
#define MAX_CHUNK_LINE	256	/* chunk size and extensions */
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

/* Checks one byte of line 0. The line may have as many bytes as the longest target, method and version. */
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

/* Called at the end of a line. Returns 1 if the line is the empty one that ends the head. */
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
	/* RFC 9112, 2.2: skip one empty line, since some clients send a line end after a body */
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

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static int hex(unsigned char c)
{
	if (is_digit((char)c))
		return c - '0';
	c |= 32;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Decodes %xx in place. Returns false if an escape is malformed or decodes to a control byte. */
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

static int parse_target(struct http_head *h, char *target, const struct http_limits *l, const char **why)
{
	char *query;

	if (strlen(target) > l->max_target)
		return fail(414, why, "request target: too long");
	/* a server must accept the absolute form; its host is ignored */
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

static int check_coding(const struct http_head *h, const char *value, int count, const char **why)
{
	size_t n = strlen(value);

	if (count > 1)
		return fail(400, why, "Transfer-Encoding: given twice");
	/* unless chunked is the last coding, the end of the body is undefined */
	if (n < 7 || strcasecmp(value + n - 7, "chunked"))
		return fail(400, why, "Transfer-Encoding: chunked is not the last coding");
	if (n != 7)
		return fail(501, why, "Transfer-Encoding: only chunked is served");
	return h->minor ? 0 : fail(400, why, "Transfer-Encoding: in HTTP/1.0");
}

static int check_host(const char *value, int count, const char **why)
{
	if (count > 1)
		return fail(400, why, "Host: given twice");
	for (; *value; value++) {
		char c = *value;

		if (!strchr("-._~%!$&'()*+;=:[]", c) && !((c | 32) >= 'a' && (c | 32) <= 'z') &&
		    !is_digit(c))
			return fail(400, why, "Host: not a host");
	}
	return 0;
}

/* Checks what llhttp does not check about the fields that describe this message. */
static int check_fields(struct http_head *h, const char **why)
{
	int hosts = 0, codings = 0, ret = 0;

	for (int i = 0; i < h->num_fields && !ret; i++) {
		const char *name = h->fields[i].name, *value = h->fields[i].value;

		if (!*name)
			ret = fail(400, why, "header: a field without a name");
		else if (!strcasecmp(name, "host"))
			ret = check_host(value, ++hosts, why);
		else if (!strcasecmp(name, "transfer-encoding"))
			ret = check_coding(h, value, ++codings, why);
		else if (!strcasecmp(name, "expect") && h->minor && strcasecmp(value, "100-continue"))
			ret = fail(417, why, "Expect: only 100-continue is served");
		else if (!strcasecmp(name, "expect") && h->minor)
			h->expect_continue = true;
	}
	h->chunked = codings && !ret;
	if (!ret && !hosts && h->minor)
		ret = fail(400, why, "Host: missing");
	return ret;
}

/* The parts of a head that the llhttp callbacks have found. */
struct found {
	const char *target;
	size_t target_bytes;
	struct cairn_http_field *fields;
	int num_fields;
	bool in_name, is_whole;
};

static int on_url(llhttp_t *p, const char *at, size_t n)
{
	struct found *f = p->data;

	f->target = f->target ? f->target : at;
	f->target_bytes += n;
	return 0;
}

static int on_header_field(llhttp_t *p, const char *at, size_t n)
{
	struct found *f = p->data;

	(void)n;
	if (!f->in_name)
		f->fields[f->num_fields++] = (struct cairn_http_field){ at, NULL };
	f->in_name = true;
	return 0;
}

static int on_header_field_complete(llhttp_t *p)
{
	((struct found *)p->data)->in_name = false;
	return 0;
}

static int on_header_value(llhttp_t *p, const char *at, size_t n)
{
	struct found *f = p->data;

	(void)n;
	if (!f->fields[f->num_fields - 1].value)
		f->fields[f->num_fields - 1].value = at;
	return 0;
}

static int on_headers_complete(llhttp_t *p)
{
	((struct found *)p->data)->is_whole = true;
	return HPE_PAUSED;
}

/* Requires exactly METHOD TARGET HTTP/1.1: llhttp also accepts extra spaces and RTSP. */
static int check_line(const char *text, const struct found *f, const llhttp_t *p, const char **why)
{
	const char *version = f->target ? f->target + f->target_bytes : NULL, *name;
	size_t n;

	if (p->error == HPE_INVALID_METHOD)
		return fail(501, why, "method: unknown");
	name = llhttp_method_name(p->method);
	n = strlen(name);
	if (!version || strncmp(text, name, n) || text[n] != ' ' || f->target != text + n + 1 ||
	    strncmp(version, " HTTP/", 6) || !is_digit(version[6]) || version[7] != '.' ||
	    !is_digit(version[8]) || version[9] != '\r')
		return fail(400, why, "request line: not METHOD TARGET HTTP/1.1");
	if (version[6] != '1')
		return fail(505, why, "HTTP version: only 1.0 and 1.1 are served");
	return 0;
}

/*
 * Maps llhttp's error to a status. If llhttp refuses a length whose value is already 2^59 or more, the next
 * digit would overflow: the body is too long (413), not malformed (400).
 */
static int check_error(const llhttp_t *p, const char **why)
{
	bool number = p->error == HPE_INVALID_CONTENT_LENGTH || p->error == HPE_INVALID_CHUNK_SIZE;

	if (p->error == HPE_OK || p->error == HPE_PAUSED)
		return 0;
	if (number && p->content_length >> 59)
		return fail(413, why, "length: too large");
	return fail(400, why, p->reason ? p->reason : "not HTTP");
}

/* Turns the fields found into C strings: NULs replace the colon after a name and the end of a value. */
static void cut_fields(struct found *f)
{
	for (int i = 0; i < f->num_fields; i++) {
		char *name = (char *)f->fields[i].name, *value = (char *)f->fields[i].value;
		char *colon = name + strcspn(name, ":"), *end;

		value = value ? value : colon + 1;
		end = value + strcspn(value, "\r");
		*colon = 0;
		while (end > value && (end[-1] == ' ' || end[-1] == '\t'))
			end--;
		*end = 0;
		f->fields[i].value = value;
	}
}

int http_parse_head(struct http_head *h, char *text, size_t n, struct cairn_http_field *fields,
		    const struct http_limits *l, const char **why)
{
	static const llhttp_settings_t settings = {
		.on_url = on_url, .on_header_field = on_header_field,
		.on_header_field_complete = on_header_field_complete, .on_header_value = on_header_value,
		.on_headers_complete = on_headers_complete,
	};
	struct found f = { .fields = fields };
	llhttp_t p;
	int ret;

	memset(h, 0, sizeof(*h));
	h->method = h->path = (char *)"-";
	h->query = (char *)"";
	h->fields = fields;
	llhttp_init(&p, HTTP_REQUEST, &settings);
	p.lenient_flags = LENIENT_VERSION;	/* so that version 9.9 gets 505 and x.y gets 400 */
	p.data = &f;
	llhttp_execute(&p, text, n);
	ret = check_line(text, &f, &p, why);
	if (ret)
		return ret;
	h->method = text;
	text[strcspn(text, " ")] = 0;
	((char *)f.target)[f.target_bytes] = 0;
	h->minor = p.http_minor;
	ret = parse_target(h, (char *)f.target, l, why);
	if (ret)
		return ret;
	/* after any other llhttp error the fields may be incomplete and are not examined */
	if (f.is_whole || p.error == HPE_INVALID_TRANSFER_ENCODING) {
		cut_fields(&f);
		h->num_fields = f.num_fields;
		ret = check_fields(h, why);
	}
	if (!ret)
		ret = check_error(&p, why);
	if (!ret && !f.is_whole)
		ret = fail(400, why, "header: incomplete");
	/* llhttp misses "chunked" followed by a tab, and would look for the next request in the body */
	if (!ret && h->chunked != !!(p.flags & F_CHUNKED))
		ret = fail(400, why, "Transfer-Encoding: bad white space");
	h->has_length = p.flags & F_CONTENT_LENGTH;
	h->keep_alive = llhttp_should_keep_alive(&p);
	h->length = h->chunked ? 0 : p.content_length;
	if (!ret && h->length >> 60)
		ret = fail(413, why, "Content-Length: too large");
	return ret;
}

static int on_body(llhttp_t *p, const char *at, size_t n)
{
	struct http_chunks *c = p->data;

	c->data = at;
	c->len = n;
	c->left -= n;
	return 0;
}

static int on_chunk_header(llhttp_t *p)
{
	struct http_chunks *c = p->data;

	c->left = p->content_length;
	c->is_last = !c->left;
	c->framing = c->line = 0;
	c->extension = false;
	return 0;
}

static int on_message_complete(llhttp_t *p)
{
	((struct http_chunks *)p->data)->is_whole = true;
	return HPE_PAUSED;
}

static const llhttp_settings_t chunk_settings = {
	.on_body = on_body, .on_chunk_header = on_chunk_header, .on_message_complete = on_message_complete,
};

/* Checks one byte of the framing: a size line, the line end after data, or the trailer. */
static int check_framing(struct http_chunks *c, unsigned char b, const char **why)
{
	bool after_cr = c->last == '\r';

	if ((b == '\n') != after_cr)
		return fail(400, why, after_cr ? "chunk: a carriage return without line feed" :
			    "chunk: a line feed without carriage return");
	if ((b < 0x20 && b != '\t' && b != '\r' && b != '\n') || b == 0x7f)
		return fail(400, why, "chunk: a control byte");
	if (++c->framing > (c->is_last ? MAX_TRAILER : MAX_CHUNK_LINE))
		return c->is_last ? fail(431, why, "trailer: too long") :
				    fail(400, why, "chunk: its first line is too long");
	if ((b == ' ' || b == '\t') && (c->is_last ? !c->line : !c->extension))
		return fail(400, why, c->is_last ? "trailer: a folded line" : "chunk: a blank in its size");
	c->extension |= b == ';';
	c->line = b == '\n' ? 0 : c->line + 1;
	c->last = b;
	return 0;
}

int http_unchunk(struct http_chunks *c, const char *bytes, size_t n, size_t *used, const char **data,
		 size_t *len, const char **why)
{
	static const char head[] = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";

	if (!c->begun) {
		llhttp_init(&c->p, HTTP_REQUEST, &chunk_settings);
		llhttp_execute(&c->p, head, sizeof(head) - 1);
		c->begun = true;
	}
	c->p.data = c;
	c->len = *used = *len = 0;
	while (*used < n && !c->len) {
		size_t k = c->left < n - *used ? (size_t)c->left : n - *used;
		int ret = c->left ? 0 : check_framing(c, (unsigned char)bytes[*used], why);

		if (ret)
			return ret;
		k = k ? k : 1;
		llhttp_execute(&c->p, bytes + *used, k);
		*used += k;
		if (c->is_whole)
			return 1;
		ret = check_error(&c->p, why);
		if (ret)
			return ret;
	}
	*data = c->data;
	*len = c->len;
	return 0;
}
