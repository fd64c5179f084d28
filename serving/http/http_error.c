// SPDX-License-Identifier: Apache-2.0
/* http_error - errors as JSON: {"error":{"message":...,"type":...,"param":...,"code":...}} */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "serving/http/http_impl.h"
#include "serving/base/utf8.h"

struct text {
	char *buf;
	size_t at, len;
};

/* Appends all of s or nothing, so that truncation never splits an escape. */
static bool add(struct text *t, const char *s, size_t n)
{
	if (t->len - t->at <= n)
		return false;
	memcpy(t->buf + t->at, s, n);
	t->at += n;
	return true;
}

/*
 * Appends s as a JSON string (NULL: null), truncated so that room bytes stay free after it. Messages quote
 * what clients sent, so s may hold any bytes; invalid UTF-8 becomes U+FFFD.
 */
static void add_string(struct text *t, const char *s, size_t room)
{
	size_t n = s ? strlen(s) : 0, len = t->len;

	if (!s) {
		add(t, "null", 4);
		return;
	}
	add(t, "\"", 1);
	t->len -= room < t->len - t->at ? room : 0;
	while (n) {
		char escape[8];
		uint32_t cp = 0;
		int truncated, k = cairn_utf8_next(s, n, &cp, &truncated);
		bool fits;

		if (k < 0) {
			k = -k;
			fits = add(t, CAIRN_UTF8_REPLACEMENT, 3);
		} else if (cp < 0x20 || cp == 0x7f) {
			snprintf(escape, sizeof(escape), "\\u%04x", (unsigned)cp);
			fits = add(t, escape, 6);
		} else if (cp == '"' || cp == '\\') {
			escape[0] = '\\';
			escape[1] = (char)cp;
			fits = add(t, escape, 2);
		} else {
			fits = add(t, s, (size_t)k);
		}
		if (!fits)
			break;
		s += k;
		n -= (size_t)k;
	}
	t->len = len;
	add(t, "\"", 1);
}

size_t cairn_http_error_text(char *buf, size_t len, const char *type, const char *param, const char *code,
			     const char *message)
{
	struct text t = { buf, 0, len };
	size_t after_param = 24 + (code ? strlen(code) : 4);
	size_t rest = 64 + strlen(type) + (param ? 6 * strlen(param) : 0) + after_param;

	if (!len)
		return 0;
	add(&t, "{\"error\":{\"message\":", 20);
	add_string(&t, message, rest < len / 2 ? rest : len / 2);
	add(&t, ",\"type\":", 8);
	add_string(&t, type, 0);
	add(&t, ",\"param\":", 9);
	add_string(&t, param, after_param);
	add(&t, ",\"code\":", 8);
	add_string(&t, code, 0);
	add(&t, "}}", 2);
	buf[t.at] = 0;
	return t.at;
}

void cairn_http_error(struct cairn_http_exchange *x, int status, const char *type, const char *param,
		      const char *code, const char *fmt, ...)
{
	char message[1024], json[4096], seconds[16];
	struct cairn_http_field extra = { NULL, NULL };
	va_list ap;
	size_t n;

	va_start(ap, fmt);
	vsnprintf(message, sizeof(message), fmt, ap);
	va_end(ap);
	n = cairn_http_error_text(json, sizeof(json), type, param, code, message);
	if (status == 429 || status == 503) {
		snprintf(seconds, sizeof(seconds), "%d", HTTP_RETRY_AFTER_S);
		extra = (struct cairn_http_field){ "Retry-After", seconds };
	} else if (status == 401) {
		extra = (struct cairn_http_field){ "WWW-Authenticate", "Bearer" };
	}
	if (cairn_http_answer(x, status, "application/json", &extra, !!extra.name, json, n))
		cairn_http_abort(x);
}
