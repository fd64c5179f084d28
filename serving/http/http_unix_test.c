// SPDX-License-Identifier: Apache-2.0
/* http_unix_test - a server on a Unix socket: its file's permissions, stale files, peers without addresses */
#include <limits.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "conformance/harness.h"
#include "serving/http/http_test.h"

static void answer(void *ctx, struct cairn_http_exchange *x, const struct cairn_http_request *req)
{
	(void)ctx;
	cairn_http_answer(x, 200, "text/plain", NULL, 0, req->peer, strlen(req->peer));
}

static const struct cairn_http_route routes[] = { { "GET", "/", 0, 0, answer, NULL } };

static int dial_unix(const char *path)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	snprintf(to.sun_path, sizeof(to.sun_path), "%s", path);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof(to))) {
		close(fd);
		fd = -1;
	}
	return fd;
}

/* Writes the path of a socket that does not exist yet. */
static void socket_path(struct cairn_test *t, char path[100])
{
	char file[PATH_MAX];

	cairn_tmpfile(t, file, sizeof(file), "sock", "", 0);
	snprintf(path, 100, "%.99s", file);
	unlink(path);
}

static void serves(struct cairn_test *t)
{
	static struct reply r;
	struct cairn_http *http, *second = NULL;
	struct cairn_http_options o = { .check_host = true, .max_per_address = 1 };
	char path[100];
	int fds[3];
	struct stat st;

	socket_path(t, path);
	o.unix_path = path;
	http = serve(t, &o, routes, 1);
	EXPECT(t, !stat(path, &st) && S_ISSOCK(st.st_mode) && (st.st_mode & 0777) == 0660);
	EXPECT(t, cairn_http_port(http) == 0);
	/* any Host is accepted, and many connections of the one peer */
	for (int i = 0; i < 3; i++)
		fds[i] = dial_unix(path);
	for (int i = 0; i < 3; i++) {
		say(fds[i], "GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
		EXPECT(t, read_reply(fds[i], &r) == 200 && !strcmp(r.body, "unix"));
		close(fds[i]);
	}
	/* a path in use is refused, and the server there goes on */
	EXPECT(t, cairn_http_create(&second, &o, routes, 1) == -EIO && !second);
	EXPECT_CONTAINS(t, cairn_last_error(), "in use");
	fds[0] = dial_unix(path);
	EXPECT(t, fds[0] >= 0);
	close(fds[0]);
	cairn_http_destroy(http);
	EXPECT(t, WAIT_FOR(access(path, F_OK), 5000));
}

static void stale(struct cairn_test *t)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	struct cairn_http_options o = { .unix_path = to.sun_path };
	struct cairn_http *http = NULL;
	char path[100], file[PATH_MAX], longer[300];
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct stat st;

	/* what a killed server leaves behind: a socket that nobody listens on */
	socket_path(t, path);
	snprintf(to.sun_path, sizeof(to.sun_path), "%s", path);
	EXPECT(t, !bind(fd, (struct sockaddr *)&to, sizeof(to)));
	close(fd);
	EXPECT(t, !access(path, F_OK) && dial_unix(path) < 0);
	http = serve(t, &o, routes, 1);
	fd = dial_unix(path);
	EXPECT(t, fd >= 0);
	close(fd);
	cairn_http_destroy(http);
	/* a file that is no socket is left alone */
	cairn_tmpfile(t, file, sizeof(file), "file", "text", 4);
	o.unix_path = file;
	EXPECT(t, cairn_http_create(&http, &o, routes, 1) == -EINVAL && !stat(file, &st) && st.st_size == 4);
	EXPECT_CONTAINS(t, cairn_last_error(), "unix_path");
	memset(longer, 'a', sizeof(longer) - 1);
	longer[sizeof(longer) - 1] = 0;
	o.unix_path = longer;
	EXPECT(t, cairn_http_create(&http, &o, routes, 1) == -EINVAL);
	o.unix_path = "";
	EXPECT(t, cairn_http_create(&http, &o, routes, 1) == -EINVAL);
}

static const struct cairn_unit units[] = {
	{ "serves", serves }, { "stale", stale },
};

const struct cairn_family cairn_http_unix_family = {
	.stage = "serving",
	.name = "http_unix",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
