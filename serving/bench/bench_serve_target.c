// SPDX-License-Identifier: Apache-2.0
/* bench_serve_target - parses the server's URL and sends single requests to it */
#include <arpa/inet.h>
#include <netdb.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "primitives/base/error.h"
#include "serving/bench/bench_serve.h"

int bench_target_parse(const char *url, struct bench_target *out)
{
	const struct addrinfo hints = { .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV,
					.ai_socktype = SOCK_STREAM };
	struct bench_target t = { .host = "" };
	const char *at = url + 7, *path;
	char address[64], port[8] = "80";
	struct addrinfo *info;
	size_t n;
	int at_end = 0;

	if (strncmp(url, "http://", 7))
		return cairn_error(EINVAL, "--url: '%.100s' does not begin with http://", url);
	path = at + strcspn(at, "/");
	if ((size_t)(path - at) >= sizeof(t.host) || strlen(path) >= sizeof(t.base))
		return cairn_error(EINVAL, "--url: is too long");
	memcpy(t.host, at, (size_t)(path - at));
	if ((sscanf(t.host, "[%63[0-9a-fA-F:.]]%n:%7[0-9]%n", address, &at_end, port, &at_end) < 1 &&
	     sscanf(t.host, "%63[0-9.]%n:%7[0-9]%n", address, &at_end, port, &at_end) < 1) ||
	    t.host[at_end] || atoi(port) > 65535 || getaddrinfo(address, port, &hints, &info))
		return cairn_error(EINVAL, "--url: '%s' is not a numeric address with a port", t.host);
	memcpy(&t.addr, info->ai_addr, info->ai_addrlen);
	t.addr_len = info->ai_addrlen;
	freeaddrinfo(info);
	snprintf(t.base, sizeof(t.base), "%s", path);
	n = strlen(t.base);
	while (n && t.base[n - 1] == '/')
		t.base[--n] = 0;
	if (n >= 3 && !strcmp(t.base + n - 3, "/v1")) /* OpenAI's clients expect URLs with /v1 */
		t.base[n - 3] = 0;
	for (const char *p = t.base; *p; p++) {
		if (*p <= ' ' || *p >= 127)
			return cairn_error(EINVAL, "--url: the path contains an invalid byte");
	}
	*out = t;
	return 0;
}

char *bench_request_text(const struct bench_target *t, const char *path, const char *body, size_t body_len,
			 size_t *len)
{
	char *out = malloc(body_len + 1024 + (t->api_key ? strlen(t->api_key) : 0));
	int n;

	if (!out)
		return NULL;
	n = sprintf(out, "%s %s%s HTTP/1.1\r\nHost: %s\r\nUser-Agent: cairn-bench\r\n%s%s%s",
		    body ? "POST" : "GET", t->base, path, t->host, t->api_key ? "Authorization: Bearer " : "",
		    t->api_key ? t->api_key : "", t->api_key ? "\r\n" : "");
	if (body)
		n += sprintf(out + n,
			     "Content-Type: application/json\r\nAccept: text/event-stream\r\n"
			     "Content-Length: %zu\r\n",
			     body_len);
	n += sprintf(out + n, "\r\n");
	if (body)
		memcpy(out + n, body, body_len);
	*len = (size_t)n + body_len;
	return out;
}

static int64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static int converse(int fd, const char *text, size_t len, struct bench_answer *a, int timeout_ms)
{
	int64_t end = now_ns() + (int64_t)timeout_ms * 1000000;
	char bytes[4096];

	while (!a->complete) {
		struct pollfd p = { fd, len ? POLLIN | POLLOUT : POLLIN, 0 };
		int64_t left = (end - now_ns()) / 1000000;
		ssize_t n;

		if (left <= 0 || poll(&p, 1, (int)left) <= 0)
			return cairn_error(ETIMEDOUT, "no answer in %d ms", timeout_ms);
		if (p.revents & POLLOUT && len) {
			n = send(fd, text, len, MSG_NOSIGNAL);
			if (n < 0)
				return cairn_error(EIO, "%s", strerror(errno));
			text += n;
			len -= (size_t)n;
		}
		if (!(p.revents & (POLLIN | POLLHUP | POLLERR)))
			continue;
		n = recv(fd, bytes, sizeof(bytes), 0);
		if (n < 0)
			return cairn_error(EIO, "%s", strerror(errno));
		if (n)
			bench_answer_push(a, bytes, (size_t)n, 0);
		else
			bench_answer_eof(a, 0);
	}
	if (a->req->outcome == BENCH_STATUS)
		return cairn_error(EIO, "status %d: %.300s", a->req->status, a->buf ? a->buf : "");
	return a->req->outcome == BENCH_OK ? 0 : cairn_error(EIO, "%s", a->why);
}

int bench_fetch(const struct bench_target *target, const char *path, int timeout_ms, char **body)
{
	int fd = socket(target->addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0), ret;
	struct bench_answer a = { .plain = true };
	struct bench_request req;
	size_t len;
	char *text = bench_request_text(target, path, NULL, 0, &len);

	bench_answer_begin(&a, &req);
	if (fd < 0 || !text)
		ret = cairn_error(ENOMEM, "%s", strerror(errno));
	else if (connect(fd, (const struct sockaddr *)&target->addr, target->addr_len))
		ret = cairn_error(EIO, "%s", strerror(errno));
	else
		ret = converse(fd, text, len, &a, timeout_ms);
	if (ret) {
		cairn_error_prefix(ret, "http://%s%s%s", target->host, target->base, path);
		bench_answer_free(&a);
	} else {
		*body = a.buf ? a.buf : calloc(1, 1);
		ret = *body ? 0 : cairn_error(ENOMEM, "bench serve: no memory");
	}
	if (fd >= 0)
		close(fd);
	free(text);
	return ret;
}
