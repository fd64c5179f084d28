// SPDX-License-Identifier: Apache-2.0
/*
 * http_origin - checks Host and Origin against DNS rebinding, and implements CORS
 *
 * Any web page can make its visitor's browser send requests to 127.0.0.1. With DNS rebinding the name of the
 * page's own host resolves to that address, so the page can also read the answers. The browser then sends the
 * page's host as Host and its origin as Origin. Therefore, a server that only this machine can reach and that
 * needs no key answers only requests whose Host, and Origin if there is one, name this machine.
 */
#include <arpa/inet.h>
#include <string.h>
#include <strings.h>

#include "primitives/base/error.h"
#include "serving/http/http_impl.h"

struct name {
	const char *s;
	size_t len;
};

/* Returns the host of "host" or "host:port", which ends at `end`, with its brackets; len 0: malformed. */
static struct name host_of(const char *s, const char *end)
{
	const char *close = *s == '[' ? memchr(s, ']', (size_t)(end - s)) : NULL, *at;
	struct name name = { s, 0 };

	at = close ? close + 1 : s;
	while (at < end && *at != ':')
		at++;
	if (close && at != close + 1)
		return name;
	name.len = (size_t)(at - s);
	for (at += at < end; at < end; at++) {
		if (*at < '0' || *at > '9')
			name.len = 0;
	}
	return name;
}

/* Returns the host of "scheme://host:port", which ends at `end`. */
static struct name host_of_origin(const char *s, const char *end)
{
	const char *at = memmem(s, (size_t)(end - s), "://", 3);

	return at && at > s ? host_of(at + 3, end) : (struct name){ s, 0 };
}

static bool is_name(struct name name, const char *other, size_t len)
{
	return len && name.len == len && !strncasecmp(name.s, other, len);
}

/* Takes the next element off a comma-separated list. Returns false at its end. */
static bool next_origin(const char **list, struct name *origin)
{
	*list += strspn(*list, ", ");
	*origin = (struct name){ *list, strcspn(*list, ", ") };
	*list += origin->len;
	return origin->len > 0;
}

int http_origins_check(const char *list)
{
	struct name o, host;

	while (list && next_origin(&list, &o)) {
		if (o.len == 1 && *o.s == '*')
			continue;
		host = host_of_origin(o.s, o.s + o.len);
		if (!host.len || memchr(host.s, '/', host.len))
			return cairn_error(EINVAL, "http: allow_origin: '%.*s' is not * or "
					   "SCHEME://HOST[:PORT]", (int)o.len, o.s);
	}
	return 0;
}

bool http_is_loopback(const char *address)
{
	struct in6_addr six;
	struct in_addr four;

	if (inet_pton(AF_INET, address, &four) == 1)
		return ntohl(four.s_addr) >> 24 == 127;
	return inet_pton(AF_INET6, address, &six) == 1 &&
	       (IN6_IS_ADDR_LOOPBACK(&six) || (IN6_IS_ADDR_V4MAPPED(&six) && six.s6_addr[12] == 127));
}

/* Returns whether a host is this machine. */
static bool is_local(const struct cairn_http *http, struct name host)
{
	const char *address = http->opt.address;
	size_t n = strlen(address);

	if (is_name(host, "localhost", 9) || is_name(host, "127.0.0.1", 9) || is_name(host, "[::1]", 5) ||
	    is_name(host, address, n))
		return true;
	return host.len == n + 2 && *host.s == '[' && !strncasecmp(host.s + 1, address, n);
}

/* Returns whether a host is that of an allowed origin: a proxy may pass on its own public name as Host. */
static bool is_known(const struct cairn_http *http, struct name host)
{
	const char *list = http->opt.allow_origin;
	struct name o;

	while (list && next_origin(&list, &o)) {
		struct name allowed = host_of_origin(o.s, o.s + o.len);

		if ((o.len == 1 && *o.s == '*') || is_name(host, allowed.s, allowed.len))
			return true;
	}
	return false;
}

/* If this origin is allowed, sets x->cors to the value for Access-Control-Allow-Origin. */
static bool is_allowed(struct cairn_http_exchange *x, const char *origin)
{
	const char *list = x->http->opt.allow_origin;
	struct name o;

	while (list && next_origin(&list, &o)) {
		if (o.len == 1 && *o.s == '*')
			x->cors = "*";
		else if (is_name(o, origin, strlen(origin)))
			x->cors = origin;
		if (x->cors)
			return true;
	}
	return false;
}

bool http_origin_ok(struct cairn_http_exchange *x)
{
	const struct cairn_http *http = x->http;

	for (int i = 0; i < x->req.num_headers; i++) {
		const char *name = x->req.headers[i].name, *value = x->req.headers[i].value;
		const char *end = value + strlen(value);
		bool is_origin = !strcasecmp(name, "origin");
		struct name host;

		if (is_origin && is_allowed(x, value))
			continue;
		if (!http->local || (!is_origin && strcasecmp(name, "host")))
			continue;
		host = is_origin ? host_of_origin(value, end) : host_of(value, end);
		if (is_local(http, host) || (!is_origin && is_known(http, host)))
			continue;
		x->cors = NULL;
		cairn_http_error(x, 403, "invalid_request_error", NULL,
				 is_origin ? "origin_not_allowed" : "host_not_allowed",
				 "%s: '%.200s' is not this machine, and the server has neither a key nor an "
				 "allowed origin of that name", is_origin ? "Origin" : "Host", value);
		return false;
	}
	return true;
}

bool http_preflight(struct cairn_http_exchange *x, const char *methods)
{
	const char *headers = cairn_http_header(&x->req, "access-control-request-headers");
	const struct cairn_http_field fields[] = {
		{ "Access-Control-Allow-Methods", methods },
		{ "Access-Control-Max-Age", "600" },
		{ "Access-Control-Allow-Headers", headers },
	};

	if (!x->cors || strcmp(x->head.method, "OPTIONS") ||
	    !cairn_http_header(&x->req, "access-control-request-method"))
		return false;
	if (cairn_http_answer(x, 204, NULL, fields, headers ? 3 : 2, NULL, 0))
		cairn_http_abort(x);
	return true;
}
