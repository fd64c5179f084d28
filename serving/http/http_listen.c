// SPDX-License-Identifier: Apache-2.0
/*
 * http_listen - opens the socket on which a server listens: TCP, or a Unix socket in the file system
 *
 * The file of a Unix socket outlives a server that was killed. A new server replaces a file that nobody
 * listens on, and only if it is a socket. It removes its file when it stops listening, unless another server
 * has replaced it.
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "primitives/base/error.h"
#include "serving/http/http_impl.h"

#define UNIX_MODE	0660	/* who may connect: the owner and the group */

static int listen_tcp(struct cairn_http *http)
{
	const struct cairn_http_options *o = &http->opt;
	struct sockaddr_storage ss = { 0 };
	struct sockaddr *any = (struct sockaddr *)&ss;
	struct sockaddr_in *v4 = (struct sockaddr_in *)&ss;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&ss;
	socklen_t len = sizeof(ss);
	int one = 1, zero = 0, idle_s = 30, interval_s = 10, probes = 3;

	if (inet_pton(AF_INET, o->address, &v4->sin_addr) == 1)
		v4->sin_family = AF_INET;
	else if (inet_pton(AF_INET6, o->address, &v6->sin6_addr) == 1)
		v6->sin6_family = AF_INET6;
	else
		return cairn_error(EINVAL, "http: address: '%.64s' is not a numeric address", o->address);
	v4->sin_port = htons((uint16_t)o->port);	/* sin6_port has the same offset */
	http->listen_fd = socket(ss.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (http->listen_fd < 0)
		return cairn_error(EIO, "http: socket: %s", strerror(errno));
	setsockopt(http->listen_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	/* Accepted connections inherit these options. Keep-alive probes detect a dead client machine. */
	setsockopt(http->listen_fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
	setsockopt(http->listen_fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
	setsockopt(http->listen_fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s));
	setsockopt(http->listen_fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
	setsockopt(http->listen_fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(http->listen_fd, SOL_SOCKET, SO_SNDBUF, &o->sockbuf, sizeof(o->sockbuf));
	setsockopt(http->listen_fd, SOL_SOCKET, SO_RCVBUF, &o->sockbuf, sizeof(o->sockbuf));
	if (ss.ss_family == AF_INET6)	/* "::" accepts IPv4 clients too */
		setsockopt(http->listen_fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero));
	if (bind(http->listen_fd, any, ss.ss_family == AF_INET ? sizeof(*v4) : sizeof(*v6)))
		return cairn_error(EIO, "http: %s port %d: %s", o->address, o->port, strerror(errno));
	if (listen(http->listen_fd, o->backlog) || getsockname(http->listen_fd, any, &len))
		return cairn_error(EIO, "http: listen: %s", strerror(errno));
	http->port = ntohs(v4->sin_port);
	return 0;
}

/* Removes the file of a server that no longer runs. */
static int remove_stale(const struct sockaddr_un *to)
{
	struct stat st;
	int fd, ret;

	if (lstat(to->sun_path, &st))
		return errno == ENOENT ? 0 : cairn_error(EIO, "http: %s: %s", to->sun_path, strerror(errno));
	if (!S_ISSOCK(st.st_mode))
		return cairn_error(EINVAL, "http: unix_path: %s exists and is no socket", to->sun_path);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return cairn_error(EIO, "http: socket: %s", strerror(errno));
	/* a full backlog, EAGAIN, also means that somebody listens */
	ret = connect(fd, (const struct sockaddr *)to, sizeof(*to)) ? errno : EADDRINUSE;
	close(fd);
	if (ret != ECONNREFUSED)
		return cairn_error(EIO, "http: %s: %s", to->sun_path,
				   strerror(ret == EAGAIN ? EADDRINUSE : ret));
	return unlink(to->sun_path) ? cairn_error(EIO, "http: %s: %s", to->sun_path, strerror(errno)) : 0;
}

static int listen_unix(struct cairn_http *http)
{
	const struct cairn_http_options *o = &http->opt;
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	struct stat st;

	if (!*o->unix_path || strlen(o->unix_path) >= sizeof(to.sun_path))
		return cairn_error(EINVAL, "http: unix_path: must have 1 to %zu bytes, has %zu",
				   sizeof(to.sun_path) - 1, strlen(o->unix_path));
	memcpy(to.sun_path, o->unix_path, strlen(o->unix_path));
	CAIRN_TRY(remove_stale(&to));
	http->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (http->listen_fd < 0)
		return cairn_error(EIO, "http: socket: %s", strerror(errno));
	if (bind(http->listen_fd, (const struct sockaddr *)&to, sizeof(to)))
		return cairn_error(EIO, "http: %s: %s", to.sun_path, strerror(errno));
	/* nobody can connect before listen(), so the permissions are in time */
	if (lstat(to.sun_path, &st) || chmod(to.sun_path, UNIX_MODE) || listen(http->listen_fd, o->backlog))
		return cairn_error(EIO, "http: %s: %s", to.sun_path, strerror(errno));
	http->unix_dev = st.st_dev;
	http->unix_ino = st.st_ino;
	return 0;
}

int http_listen(struct cairn_http *http)
{
	return http->opt.unix_path ? listen_unix(http) : listen_tcp(http);
}

void http_close_listener(struct cairn_http *http)
{
	const char *path = http->opt.unix_path;
	struct stat st;

	if (http->listen_fd < 0)
		return;
	if (path && http->unix_ino && !lstat(path, &st) && st.st_dev == http->unix_dev &&
	    st.st_ino == http->unix_ino)
		unlink(path);
	close(http->listen_fd);
	http->listen_fd = -1;
}
