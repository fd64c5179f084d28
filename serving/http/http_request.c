// SPDX-License-Identifier: Apache-2.0
/* http_request - checks a request, finds its route and calls the handler */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "primitives/base/error.h"
#include "serving/http/http_impl.h"

static void name_request(struct cairn_http_exchange *x)
{
	const char *given = cairn_http_header(&x->req, "x-request-id");
	size_t n = given ? strlen(given) : 0;
	static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";

	/* the id goes into headers and logs, so only these characters are accepted */
	if (n && n <= HTTP_ID_LEN && strspn(given, plain) == n && *given != '-')
		memcpy(x->id, given, n + 1);
	else
		snprintf(x->id, sizeof(x->id), "req_%08llx%08llx", (unsigned long long)x->http->id_seed >> 32,
			 (unsigned long long)x->http->id_count++);
}

static bool path_matches(const struct cairn_http_route *r, const char *path)
{
	size_t n = strlen(r->path);

	if (n >= 2 && !strcmp(r->path + n - 2, "/*"))
		return !strncmp(r->path, path, n - 1);
	return !strcmp(r->path, path);
}

/* Returns NULL if no route has this path and method; allow then lists the methods of the path, if any. */
static const struct cairn_http_route *find_route(const struct cairn_http_exchange *x, char *allow, size_t len)
{
	const struct cairn_http *http = x->http;
	size_t at = 0;

	*allow = 0;
	for (int i = 0; i < http->num_routes; i++) {
		const struct cairn_http_route *r = &http->routes[i];
		bool is_get;

		if (!path_matches(r, x->head.path))
			continue;
		is_get = !strcmp(r->method, "GET");
		if (!strcmp(r->method, x->head.method) || (is_get && !strcmp(x->head.method, "HEAD")))
			return r;
		if (at < len)
			at += (size_t)snprintf(allow + at, len - at, "%s%s%s", at ? ", " : "", r->method,
					       is_get ? ", HEAD" : "");
	}
	return NULL;
}

/* Compares in constant time: the duration depends only on the length of the given key. */
static bool key_is_right(const struct cairn_http *http, const char *given)
{
	size_t n = strlen(given);
	volatile unsigned diff = n != http->key_bytes;

	for (size_t i = 0; i < n; i++)
		diff |= (unsigned)(given[i] ^ http->opt.api_key[i % (http->key_bytes + 1)]);
	return !diff;
}

static bool is_authorized(const struct cairn_http_exchange *x)
{
	const char *given = NULL;

	if (!x->http->opt.api_key)
		return true;
	for (int i = 0; i < x->req.num_headers; i++) {
		if (strcasecmp(x->req.headers[i].name, "authorization"))
			continue;
		if (given)
			return false;
		given = x->req.headers[i].value;
	}
	if (!given || strncasecmp(given, "Bearer ", 7))
		return false;
	given += 7;
	return key_is_right(x->http, given + strspn(given, " "));
}

static bool is_json(const struct cairn_http_request *req)
{
	const char *type = cairn_http_header(req, "content-type"), *set;
	const char *coding = cairn_http_header(req, "content-encoding");
	size_t n = type ? strcspn(type, "; \t") : 0;

	if (n != 16 || strncasecmp(type, "application/json", n) || (coding && strcasecmp(coding, "identity")))
		return false;
	set = strcasestr(type + n, "charset=");
	if (!set)
		return true;
	set += 8;
	set += *set == '"';
	return !strncasecmp(set, "utf-8", 5) && (!set[5] || strchr("\"; \t", set[5]));
}

static void too_busy(struct cairn_http_exchange *x, const char *why)
{
	cairn_http_error(x, 503, "server_error", NULL, "overloaded", "%s", why);
}

static void no_route(struct cairn_http_exchange *x, const char *allow)
{
	struct cairn_http_field field = { "Allow", allow };
	char json[512];
	size_t n;

	if (!*allow) {
		cairn_http_error(x, 404, "invalid_request_error", NULL, "unknown_url", "%s %s: no such path",
				 x->head.method, x->head.path);
		return;
	}
	n = cairn_http_error_text(json, sizeof(json), "invalid_request_error", NULL, "method_not_allowed",
				  "this path does not support this method");
	if (cairn_http_answer(x, 405, "application/json", &field, 1, json, n))
		cairn_http_abort(x);
}

static size_t max_body(const struct cairn_http_exchange *x)
{
	return x->route->max_body ? x->route->max_body : x->http->opt.max_body;
}

static void too_large(struct cairn_http_exchange *x)
{
	cairn_http_error(x, 413, "invalid_request_error", NULL, NULL, "the body is longer than %zu bytes",
			 max_body(x));
}

/* Returns whether the request may proceed to its body and handler; if not, it has been answered. */
static bool check(struct cairn_http_exchange *x)
{
	struct cairn_http *http = x->http;
	bool open;
	char allow[128];

	if (!http_origin_ok(x))
		return false;
	x->route = find_route(x, allow, sizeof(allow));
	if (*allow && !x->route && http_preflight(x, allow))
		return false;
	open = x->route && x->route->flags & CAIRN_HTTP_OPEN;
	if (!open && !is_authorized(x)) {
		cairn_http_error(x, 401, "invalid_request_error", NULL, "invalid_api_key",
				 "Authorization: the right key is required, as 'Bearer KEY'");
	} else if (!open && atomic_load(&http->drain_calls)) {
		cairn_http_error(x, 503, "server_error", NULL, "shutting_down",
				 "the server is shutting down");
	} else if (!x->route) {
		no_route(x, allow);
	} else if (x->route->flags & CAIRN_HTTP_JSON && !is_json(&x->req)) {
		cairn_http_error(x, 415, "invalid_request_error", NULL, NULL,
				 "Content-Type: must be application/json in UTF-8, without a content coding");
	} else if (x->head.length > max_body(x)) {
		too_large(x);
	} else if (!open && atomic_load(&http->num_exchanges) >= http->opt.max_requests) {
		too_busy(x, "too many requests are being handled");
	} else if (atomic_load(&http->body_bytes) + x->head.length > http->opt.max_body_total) {
		too_busy(x, "too many bytes of request bodies are held");
	} else {
		return true;
	}
	return false;
}

int http_request_begin(struct http_conn *c, size_t head_bytes)
{
	struct cairn_http_exchange *x = http_exchange_new(c);
	size_t skip = c->scan.skip, n = head_bytes - skip;
	const char *why = NULL;
	int status;

	if (!x)
		return cairn_error(ENOMEM, "http: no memory for a request");
	c->x = x;
	x->text = malloc(n);
	x->fields = calloc((size_t)c->scan.lines, sizeof(*x->fields));
	if (!x->text || !x->fields) {
		cairn_http_abort(x);
		return cairn_error(ENOMEM, "http: no memory for a request");
	}
	memcpy(x->text, c->in + skip, n);
	c->in_len -= head_bytes;
	memmove(c->in, c->in + head_bytes, c->in_len);
	atomic_fetch_add(&c->http->requests, 1);
	status = -http_parse_head(&x->head, x->text, n, x->fields, &c->http->limits, &why);
	x->req = (struct cairn_http_request){
		.method = x->head.method, .path = x->head.path, .query = x->head.query, .peer = x->peer,
		.id = x->id, .headers = x->fields, .num_headers = x->head.num_fields, .body = "",
	};
	name_request(x);
	/* until a body has been read, the server cannot tell where the next request begins */
	x->close = status || !x->head.keep_alive || x->head.chunked || x->head.length;
	if (status)
		cairn_http_error(x, status, "invalid_request_error", NULL, NULL, "%s", why);
	else if (check(x))
		x->close = !x->head.keep_alive;
	return 0;
}

void http_refuse(struct http_conn *c, int status, const char *why)
{
	struct cairn_http_exchange *x = http_exchange_new(c);

	if (!x)
		return;
	c->x = x;
	x->close = true;
	if (status == 503)
		too_busy(x, why);
	else
		cairn_http_error(x, status, "invalid_request_error", NULL, NULL, "%s", why);
}

void http_request_handle(struct cairn_http_exchange *x)
{
	struct cairn_http *http = x->http;

	/* check again: other requests may have begun while this body arrived */
	if (!(x->route->flags & CAIRN_HTTP_OPEN) &&
	    atomic_load(&http->num_exchanges) >= http->opt.max_requests) {
		too_busy(x, "too many requests are being handled");
		return;
	}
	x->counted = true;
	atomic_fetch_add(&http->num_exchanges, 1);
	x->req.body = x->body ? x->body : "";
	x->req.body_bytes = x->body_bytes;
	x->route->handler(x->route->ctx, x, &x->req);
}

bool http_body_fits(struct cairn_http_exchange *x, uint64_t more)
{
	if (more <= max_body(x) - x->body_bytes)
		return true;
	x->close = true;
	too_large(x);
	return false;
}

bool http_body_append(struct cairn_http_exchange *x, const char *data, size_t n)
{
	size_t max = max_body(x), need = x->body_bytes + n, room = x->body_room ? x->body_room : 1024;

	x->close |= need > max;
	if (need > max) {
		too_large(x);
		return false;
	}
	/* memory grows with the bytes received, not with the announced Content-Length */
	if (need + 1 > x->body_room) {
		char *body = NULL;

		while (room < need + 1)
			room *= 2;
		room = room > max + 1 ? max + 1 : room;
		if (atomic_load(&x->http->body_bytes) + room - x->body_room <= x->http->opt.max_body_total)
			body = realloc(x->body, room);
		if (!body) {
			x->close = true;
			too_busy(x, "too many bytes of request bodies are held");
			return false;
		}
		atomic_fetch_add(&x->http->body_bytes, room - x->body_room);
		x->body = body;
		x->body_room = room;
	}
	memcpy(x->body + x->body_bytes, data, n);
	x->body_bytes += n;
	x->body[x->body_bytes] = 0;
	return true;
}
