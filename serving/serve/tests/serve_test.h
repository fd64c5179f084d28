/* SPDX-License-Identifier: Apache-2.0 */
/* serve_test - starts a server process for each test, as a user would; a client that sends raw bytes */
#ifndef CAIRN_SERVE_TEST_H
#define CAIRN_SERVE_TEST_H

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "serving/http/http_test.h"

#ifdef CAIRN_SANITIZED
#define IS_SANITIZED 1
#else
#define IS_SANITIZED 0
#endif

struct server {
	struct cairn_test *t;
	int pid, port;
	char log[PATH_MAX], fault[PATH_MAX];	/* files: its standard error; orders to the fault table */
};

static inline bool beside(struct cairn_test *t, const char *name, char *path, size_t len)
{
	char exe[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);

	exe[n > 0 ? n : 0] = 0;
	if (strrchr(exe, '/'))
		*strrchr(exe, '/') = 0;
	snprintf(path, len, "%.3000s/%s", exe, name);
	if (!access(path, R_OK))
		return true;
	cairn_skip(t, "%s is not in the program's directory", name);
	return false;
}

static inline void tell_fault(const struct server *s, const char *text)
{
	char tmp[PATH_MAX + 8];
	FILE *f;

	snprintf(tmp, sizeof(tmp), "%s.new", s->fault);
	f = fopen(tmp, "w");
	if (f) {
		fputs(text, f);
		fclose(f);
		rename(tmp, s->fault);	/* atomic: the table sees all of it or nothing */
	}
}

/* Reads the server's log so far, for notes. */
static inline char *log_of(const struct server *s, char *text, size_t len)
{
	int fd = open(s->log, O_RDONLY);
	ssize_t n = fd < 0 ? -1 : pread(fd, text, len - 1, 0);

	if (fd >= 0)
		close(fd);
	text[n > 0 ? n : 0] = 0;
	return text;
}

#define MAX_ARGS	32

/* Arguments of `cairn serve` with the fault table instead of cpu. */
#define FAULT_ARGS(path, ...)	((const char *const[]){ "--impl", path, "--quiet", __VA_ARGS__, NULL })

/*
 * args: arguments of `cairn serve`, NULL-terminated; err: its standard error, -1: the file s->log. Returns
 * false, with a note, if the server did not start.
 */
static inline bool start_server_at(struct cairn_test *t, struct server *s, const char *const *args, int err)
{
	char *argv[MAX_ARGS] = { "cairn", "serve", "--port", "0" }, line[256] = "";
	const char *colon;
	int fds[2], n = 4;
	FILE *f;

	*s = (struct server){ .t = t, .pid = -1 };
	cairn_tmpfile(t, s->log, sizeof(s->log), "log", "", 0);
	cairn_tmpfile(t, s->fault, sizeof(s->fault), "fault", "", 0);
	remove(s->fault);
	while (*args && n < MAX_ARGS - 1)
		argv[n++] = (char *)*args++;
	if (pipe2(fds, O_CLOEXEC))
		return false;
	s->pid = fork();
	if (!s->pid) {
		int fd = err < 0 ? open(s->log, O_WRONLY | O_APPEND) : err;

		prctl(PR_SET_PDEATHSIG, SIGKILL);	/* the server dies with its test */
		dup2(fds[1], 1);
		dup2(fd, 2);
		/* one thread per process: test machines are small */
		setenv("OMP_NUM_THREADS", "1", 1);
		setenv("CAIRN_FAULT", s->fault, 1);
		execv("/proc/self/exe", argv);
		_exit(127);
	}
	close(fds[1]);
	f = fdopen(fds[0], "r");
	if (!f || !fgets(line, sizeof(line), f))
		line[0] = 0;
	if (f)
		fclose(f);
	colon = strrchr(line, ':');
	s->port = colon ? atoi(colon + 1) : 0;
	return EXPECT(t, s->port > 0);
}

static inline bool start_server(struct cairn_test *t, struct server *s, const char *const *args)
{
	return start_server_at(t, s, args, -1);
}

/* Starts a server on the table cpu, whose chat template joins the messages. */
static inline bool start_chat(struct cairn_test *t, struct server *s)
{
	static const char chat[] = "{% for m in messages %}{{ m.content }}{% endfor %}";
	char path[PATH_MAX];

	cairn_tmpfile(t, path, sizeof(path), "chat.jinja", chat, sizeof(chat) - 1);
	return start_server(t, s,
			    (const char *const[]){ "--impl", "cpu", "--batch", "16", "--quiet",
						   "--chat-template", path, NULL });
}

/* Sends bytes on a new connection. Returns the status of the answer, or 0 if there is none. */
static inline int talk(const struct server *s, const char *bytes, size_t n, struct reply *r)
{
	int fd = dial_port(s->port);

	if (fd < 0)
		return r->status = 0;
	say_n(fd, bytes, n);
	read_reply_of(fd, r, 60000, true);
	close(fd);
	return r->status;
}

static inline size_t format_request(char *to, size_t len, const char *method, const char *path,
				    const char *extra, const char *body)
{
	int n = snprintf(to, len,
			 "%s %s HTTP/1.1\r\nHost: localhost\r\n%s%sContent-Length: %zu\r\n\r\n%s", method,
			 path, extra, *body ? "Content-Type: application/json\r\n" : "", strlen(body), body);

	return n < 0 || (size_t)n >= len ? 0 : (size_t)n;
}

static inline int get(const struct server *s, const char *path, struct reply *r)
{
	char text[1024];

	return talk(s, text, format_request(text, sizeof(text), "GET", path, "", ""), r);
}

static inline int post(const struct server *s, const char *path, const char *body, struct reply *r)
{
	size_t len = strlen(body) + 1024;
	char *text = malloc(len);
	int status = text ? talk(s, text, format_request(text, len, "POST", path, "", body), r) : 0;

	free(text);
	return status;
}

/* Sends a request and returns the connection without reading the answer. */
static inline int ask_stream(const struct server *s, const char *path, const char *body)
{
	char text[4096];
	int fd = dial_port(s->port);

	say_n(fd, text, format_request(text, sizeof(text), "POST", path, "", body));
	return fd;
}

static inline bool wait_ready(const struct server *s)
{
	static struct reply r;

	return WAIT_FOR(get(s, "/ready", &r) == 200, 30000);
}

/* Returns the answer's JSON, a new reference, or NULL if it is not JSON. */
static inline json_t *json_of(const struct reply *r)
{
	return json_loadb(r->body, r->body_bytes, JSON_REJECT_DUPLICATES, NULL);
}

/* Returns the JSON of a request's answer, a new reference; NULL, with a note, if its status is not 200. */
static inline json_t *answer_of(struct cairn_test *t, const struct server *s, const char *path,
				const char *body)
{
	static struct reply r;

	if (EXPECT(t, post(s, path, body, &r) == 200))
		return json_of(&r);
	cairn_note(t, "%s: %.300s", body, r.text);
	return NULL;
}

/* Returns the member at a path such as "choices.0.text", borrowed, or NULL. */
static inline json_t *at_path(json_t *root, const char *path)
{
	while (root && *path) {
		size_t n = strcspn(path, ".");
		char key[64];

		snprintf(key, sizeof(key), "%.*s", (int)n, path);
		root = json_is_array(root) ? json_array_get(root, strtoul(key, NULL, 10)) :
					     json_object_get(root, key);
		path += n + (path[n] == '.');
	}
	return root;
}

/* Returns whether the string at this path equals want. */
static inline bool says(const struct reply *r, const char *path, const char *want)
{
	json_t *root = json_of(r);
	const char *text = json_string_value(at_path(root, path));
	bool ok = text && !strcmp(text, want);

	json_decref(root);
	return ok;
}

static inline long long number_at(const struct reply *r, const char *path)
{
	json_t *root = json_of(r), *v = at_path(root, path);
	long long n = json_is_integer(v) ? json_integer_value(v) : -1;

	json_decref(root);
	return n;
}

/* Returns a metric summed over the series whose labels contain `label`; -1: no such metric. */
static inline double metric_of(const struct server *s, const char *name, const char *label)
{
	static struct reply r;
	double sum = -1;

	if (get(s, "/metrics", &r) != 200)
		return -1;
	for (const char *p = r.body; (p = strstr(p, name)); p++) {
		const char *end = p + strcspn(p, "\n"), *in = strstr(p, label);

		if ((p == r.body || p[-1] == '\n') && p[strlen(name)] == '{' && (!*label || (in && in < end)))
			sum = (sum < 0 ? 0 : sum) + strtod(strchr(p, '}') + 1, NULL);
	}
	return sum;
}

/* Returns whether no request runs or waits and no page is in use. */
static inline bool is_quiet(const struct server *s)
{
	return metric_of(s, "vllm:num_requests_running", "") == 0 &&
	       metric_of(s, "vllm:num_requests_waiting", "") == 0 &&
	       metric_of(s, "vllm:kv_cache_usage_perc", "") == 0 &&
	       metric_of(s, "cairn:tokens_queued", "") == 0;
}

/* Returns whether the process exits within ms. */
static inline bool has_ended(int pid, int *status, int ms)
{
	double end = now_s() + ms * 1e-3;
	int ret;

	while ((ret = waitpid(pid, status, WNOHANG)) == 0 && now_s() < end)
		nap_ms(2);
	return ret == pid;
}

/* Stops the server by SIGTERM. It must exit with status 0 and without a sanitizer report. */
static inline void stop_server(struct server *s)
{
	static char text[1 << 16];
	int status = -1;

	if (s->pid <= 0)
		return;
	kill(s->pid, SIGTERM);
	if (!has_ended(s->pid, &status, 20000)) {
		kill(s->pid, SIGKILL);
		waitpid(s->pid, &status, 0);
	}
	s->pid = -1;
	log_of(s, text, sizeof(text));
	if (!EXPECT(s->t, WIFEXITED(status) && !WEXITSTATUS(status)) ||
	    !EXPECT(s->t, !strstr(text, "Sanitizer") && !strstr(text, "runtime error")))
		cairn_note(s->t, "status %d: %.3000s", status, text);
}

#endif
