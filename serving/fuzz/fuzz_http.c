// SPDX-License-Identifier: Apache-2.0
/*
 * fuzz_http - parses arbitrary bytes as a client's requests, one after the other, as on a connection
 *
 * The first byte sets the size of the pieces in which the rest arrives. The verdict must be the same as for
 * all bytes at once, and accepted requests must satisfy the rules of http.h.
 */
#include <string.h>
#include <strings.h>

#include "serving/fuzz/fuzz.h"
#include "serving/http/http_parse.h"

#define MAX_REQUESTS 8
#define MAX_FIELDS 20

static const struct http_limits limits = { .max_target = 200, .max_header = 1000, .max_fields = MAX_FIELDS };

static void check_refused(int ret, const char *why)
{
	static const int all[] = { 400, 413, 414, 417, 431, 501, 505 };
	int known = 0;

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		known |= ret == -all[i];
	FUZZ_HOLDS(known && why && *why);
}

/* Checks a string that handlers and logs will see: it lies within text and has no control bytes. */
static void check_text(const char *s, const char *text, size_t n, int blanks)
{
	FUZZ_HOLDS((s >= text && s < text + n) || !*s);
	for (; *s; s++)
		FUZZ_HOLDS(((unsigned char)*s >= 0x20 || (blanks && *s == '\t')) && *s != 0x7f);
}

static void check_head(const struct http_head *h, const char *text, size_t n)
{
	int lengths = 0, codings = 0, hosts = 0;

	FUZZ_HOLDS(http_is_token(h->method) && h->minor >= 0 && h->minor <= 9);
	FUZZ_HOLDS(h->path[0] == '/' || !strcmp(h->path, "*"));
	check_text(h->path, text, n, 0);
	check_text(h->query, text, n, 0);
	FUZZ_HOLDS(h->num_fields >= 0 && h->num_fields <= MAX_FIELDS);
	for (int i = 0; i < h->num_fields; i++) {
		const char *name = h->fields[i].name, *value = h->fields[i].value;

		FUZZ_HOLDS(http_is_token(name));
		check_text(value, text, n, 1);
		hosts += !strcasecmp(name, "host");
		if (!strcasecmp(name, "content-length")) {
			lengths++;
			FUZZ_HOLDS(*value && strspn(value, "0123456789") == strlen(value));
			FUZZ_HOLDS(strtoull(value, NULL, 10) == h->length);
		}
		if (!strcasecmp(name, "transfer-encoding")) {
			codings++;
			FUZZ_HOLDS(!strcasecmp(value, "chunked"));
		}
	}
	FUZZ_HOLDS(lengths + codings <= 1 && hosts <= 1 && (hosts || !h->minor));
	FUZZ_HOLDS(h->has_length == (lengths == 1) && h->chunked == (codings == 1));
	FUZZ_HOLDS(h->has_length || h->chunked || !h->length);
}

/* Returns the head's length, 0 if more bytes are needed, or a negated status. step: bytes per piece. */
static int scan(struct http_scan *s, const char *bytes, size_t size, size_t step, const char **why)
{
	int ret = 0;

	memset(s, 0, sizeof(*s));
	for (size_t n = 0; n < size && !ret;) {
		char *copy;

		n = step < size - n ? n + step : size;
		copy = malloc(n); /* exact size, so that a sanitizer sees reads past the bytes received */
		memcpy(copy, bytes, n);
		ret = http_scan(s, copy, n, &limits, why);
		free(copy);
	}
	return ret;
}

/*
 * Returns the length of the body with its framing, 0 if more bytes are needed. body: [size], the decoded
 * data.
 */
static int unchunk(const char *bytes, size_t size, size_t step, char *body, size_t *len, const char **why)
{
	struct http_chunks c = { .begun = false };
	size_t at = 0;

	*len = 0;
	while (at < size) {
		size_t n = step < size - at ? step : size - at, used = 0, k = 0, from = 0;
		char *copy = malloc(n);
		const char *data = NULL;
		int ret = 0;

		memcpy(copy, bytes + at, n);
		while (from < n && !ret) {
			ret = http_unchunk(&c, copy + from, n - from, &used, &data, &k, why);
			if (ret < 0)
				break;
			FUZZ_HOLDS(used && used <= n - from &&
				   (!k || (data >= copy && data + k <= copy + n)));
			FUZZ_HOLDS(*len + k <= size);
			if (k)
				memcpy(body + *len, data, k);
			*len += k;
			from += used;
		}
		free(copy);
		if (ret)
			return ret < 0 ? ret : (int)(at + from);
		at += n;
	}
	return 0;
}

/*
 * Returns the length of a request's body, or 0 with *whole false if the next request's position is unknown.
 */
static size_t take_body(const struct http_head *h, const char *bytes, size_t size, size_t step, int *whole)
{
	char *one, *other;
	size_t len = 0, other_len = 0;
	const char *why = NULL;
	int ret;

	*whole = 1;
	if (!h->chunked) {
		*whole = h->length <= size;
		return *whole ? (size_t)h->length : 0;
	}
	one = malloc(size + 1);
	other = malloc(size + 1);
	ret = unchunk(bytes, size, step, one, &len, &why);
	if (ret < 0)
		check_refused(ret, why);
	FUZZ_HOLDS(unchunk(bytes, size, size, other, &other_len, &why) == ret);
	FUZZ_HOLDS(ret < 0 || (len == other_len && !memcmp(one, other, len)));
	free(one);
	free(other);
	*whole = ret > 0;
	return ret > 0 ? (size_t)ret : 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *bytes = (const char *)data + 1;
	size_t step = size ? 1 + data[0] % 32 : 1;

	size -= size ? 1 : 0;
	for (int i = 0; i < MAX_REQUESTS && size; i++) {
		struct cairn_http_field fields[MAX_FIELDS + 1];
		struct http_scan s, whole_scan;
		const char *why = NULL, *other = NULL;
		int ret = scan(&s, bytes, size, step, &why), status, whole;
		struct http_head h;
		size_t n, body;
		char *text;

		FUZZ_HOLDS(scan(&whole_scan, bytes, size, size, &other) == ret);
		if (ret <= 0) {
			if (ret)
				check_refused(ret, why);
			return 0;
		}
		n = (size_t)ret - s.skip;
		FUZZ_HOLDS((size_t)ret <= size && s.skip <= 2 && n <= limits.max_header + 1);
		FUZZ_HOLDS(n >= 4 && !memcmp(bytes + ret - 4, "\r\n\r\n", 4));
		text = malloc(n);
		memcpy(text, bytes + s.skip, n);
		status = http_parse_head(&h, text, n, fields, &limits, &why);
		if (status)
			check_refused(status, why);
		else
			check_head(&h, text, n);
		bytes += ret;
		size -= (size_t)ret;
		body = status ? 0 : take_body(&h, bytes, size, step, &whole);
		free(text);
		if (status || !whole || !h.keep_alive)
			return 0;
		bytes += body;
		size -= body;
	}
	return 0;
}
