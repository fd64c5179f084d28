/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nic_child - starts a program on the NIC model and reads its report, for tests; include
 * conformance/harness.h first
 *
 * The model's files (report, shared tables, sysfs tree) are in the test's own directory. Every wait has a
 * time-out.
 */
#ifndef CAIRN_NIC_CHILD_H
#define CAIRN_NIC_CHILD_H

#include <fcntl.h>
#include <jansson.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TIMEOUT_S	140	/* the mutants of loop need 37 s on two processors that run other tests */
#define MAX_ARGS	16

struct child {
	pid_t pid;
	char out[256];			/* file with its output */
	int status;
};

static inline const char *path_of(struct cairn_test *t, const char *name, char *path, size_t len)
{
	snprintf(path, len, "%s/%s", cairn_tmpdir(t), name);
	return path;
}

/* Finds a program: one of Cairn's in the directory of the running program, others in the system's
 * directories. */
static inline int find_program(const char *name, char *path, size_t len)
{
	static const char *const dirs[] = { "/usr/bin", "/usr/local/bin" };
	ssize_t n = readlink("/proc/self/exe", path, len - 1);
	size_t i;

	path[n > 0 ? n : 0] = 0;
	n = strrchr(path, '/') ? strrchr(path, '/') + 1 - path : 0;
	snprintf(path + n, len - (size_t)n, "%s", name);
	for (i = 0; access(path, R_OK) && i < ARRAY_SIZE(dirs); i++)
		snprintf(path, len, "%s/%s", dirs[i], name);
	return access(path, R_OK) == 0;
}

static inline double now_s(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

/* Under TSan: for a program built without TSan, selects the model built with TSan, and TSan's runtime
 * library. */
static inline void find_model(const char *program, char *library, size_t len)
{
#ifdef __SANITIZE_THREAD__
	const char *given = getenv("TSAN_OPTIONS");
	char options[1024];
	size_t n;

	if (strcmp(program, "cairn") && strcmp(program, "transport_end") &&
	    find_program("cairn_nic_watched.so", library, len)) {
		n = strlen(library);
		snprintf(library + n, len - n, ":libtsan.so.2");
		snprintf(options, sizeof(options), "%s ignore_noninstrumented_modules=1", given ? given : "");
		setenv("TSAN_OPTIONS", options, 1);
		return;
	}
#endif
	(void)program;
	find_program("cairn_nic.so", library, len);
}

/* words: program and arguments, separated by blanks. on_model: preload the model. */
static inline void start_child(struct cairn_test *t, struct child *c, const char *words, int on_model,
			       const char *adversary, const char *out)
{
	char program[1024], library[1024], report[1024], shared[1024], line[512], *args[MAX_ARGS + 1], *save;
	int n = 0, fd;

	path_of(t, "report", report, sizeof(report));
	path_of(t, "shared", shared, sizeof(shared));
	path_of(t, out, c->out, sizeof(c->out));
	snprintf(line, sizeof(line), "%s", words);
	for (args[0] = strtok_r(line, " ", &save); args[n] && n < MAX_ARGS; n++)
		args[n + 1] = strtok_r(NULL, " ", &save);
	find_program(args[0], program, sizeof(program));
	c->status = -1;
	c->pid = fork();
	if (c->pid)
		return;
	fd = open(c->out, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	dup2(open("/dev/null", O_RDONLY), 0);
	dup2(fd, 1);
	dup2(fd, 2);
	if (on_model) {
		find_model(args[0], library, sizeof(library));
		setenv("LD_PRELOAD", library, 1);
	}
	/* a card of this machine (card.h); the model has its own device */
	unsetenv("CAIRN_RDMA_DEVICE");
	/* allows a sanitizer in the program that is not the first library loaded */
	setenv("ASAN_OPTIONS", "verify_asan_link_order=0", 1);
	setenv("CAIRN_NIC_REPORT", report, 1);
	setenv("CAIRN_NIC_SHARED", shared, 1);
	setenv("TMPDIR", cairn_tmpdir(t), 1);
	if (adversary)
		setenv("CAIRN_NIC_ADVERSARY", adversary, 1);
	alarm(2 * TIMEOUT_S);	/* in case the parent dies */
	execv(program, args);
	_exit(127);
}

static inline void start(struct cairn_test *t, struct child *c, const char *words, const char *adversary,
			 const char *out)
{
	start_child(t, c, words, 1, adversary, out);
}

static inline const char *text_of(const char *path, char *text, size_t len)
{
	FILE *f = fopen(path, "re");
	size_t n = f ? fread(text, 1, len - 1, f) : 0;

	text[n] = 0;
	if (f)
		fclose(f);
	return text;
}

static inline int finish(struct cairn_test *t, struct child *c)
{
	double limit = now_s() + TIMEOUT_S;
	struct timespec pause = { .tv_nsec = 2000000 };
	int status;

	while (!waitpid(c->pid, &status, WNOHANG)) {
		nanosleep(&pause, NULL);
		if (now_s() < limit)
			continue;
		cairn_note(t, "%s: not done in %d s", c->out, TIMEOUT_S);
		kill(c->pid, SIGKILL);
		waitpid(c->pid, &status, 0);
		break;
	}
	c->status = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
	return c->status;
}

/* Returns a TCP port on which no socket listens. */
static inline int free_port(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	socklen_t len = sizeof(at);
	int ok = fd >= 0 && !bind(fd, (struct sockaddr *)&at, len) &&
		 !getsockname(fd, (struct sockaddr *)&at, &len);

	if (fd >= 0)
		close(fd);
	return ok ? ntohs(at.sin_port) : -1;
}

static inline int listens(const char *table, int port)
{
	char line[512];
	unsigned int local, state;
	FILE *f = fopen(table, "re");
	int found = 0;

	while (!found && f && fgets(line, sizeof(line), f))
		found = sscanf(line, " %*d: %*[0-9A-F]:%x %*[0-9A-F]:%*x %x", &local, &state) == 2 &&
			(int)local == port && state == 10;	/* TCP_LISTEN */
	if (f)
		fclose(f);
	return found;
}

/* Waits until the server listens. Reads /proc, because the server would take a test connection for the
 * client. */
static inline int until_listens(const struct child *c, int port)
{
	double limit = now_s() + TIMEOUT_S;
	struct timespec pause = { .tv_nsec = 5000000 };
	siginfo_t ended = { 0 };

	while (!listens("/proc/net/tcp", port) && !listens("/proc/net/tcp6", port)) {
		if (now_s() > limit || waitid(P_PID, (id_t)c->pid, &ended, WEXITED | WNOHANG | WNOWAIT) ||
		    ended.si_pid)
			return 0;
		nanosleep(&pause, NULL);
	}
	return 1;
}

/* Starts a program as server and, once it listens, the same program as client. Returns 1 if both run. */
static inline int start_two(struct cairn_test *t, struct child *server, struct child *client,
			    const char *program, const char *args, const char *adversary)
{
	int port = free_port();
	char words[512];

	snprintf(words, sizeof(words), "%s %s -p %d", program, args, port);
	start(t, server, words, adversary, "server");
	if (!EXPECT(t, until_listens(server, port))) {
		kill(server->pid, SIGKILL);
		finish(t, server);
		return 0;
	}
	snprintf(words, sizeof(words), "%s %s -p %d 127.0.0.1", program, args, port);
	start(t, client, words, adversary, "client");
	return 1;
}

/* Returns 1 if both exited with status 0; otherwise notes the last output of those that did not. */
static inline int finish_two(struct cairn_test *t, struct child *server, struct child *client)
{
	struct child *both[] = { client, server };
	int ok = 1;

	if (finish(t, client))
		kill(server->pid, SIGKILL);
	finish(t, server);
	for (int i = 0; i < 2; i++) {
		char text[8192];
		size_t n = strlen(text_of(both[i]->out, text, sizeof(text)));

		ok = EXPECT(t, !both[i]->status) && ok;
		if (both[i]->status)
			cairn_note(t, "%s ended with %d: %s", both[i]->out, both[i]->status,
				   text + (n > 600 ? n - 600 : 0));
	}
	return ok;
}

/* Returns the sum of a counter over the processes of this test. */
static inline long long reported(struct cairn_test *t, const char *counter)
{
	char path[1024], line[4096];
	FILE *f = fopen(path_of(t, "report", path, sizeof(path)), "re");
	long long sum = 0;

	while (f && fgets(line, sizeof(line), f)) {
		json_t *o = json_loads(line, 0, NULL);
		const char *event = json_string_value(json_object_get(o, "event"));

		EXPECT(t, event != NULL);
		if (event && !strcmp(event, "summary"))
			sum += json_integer_value(json_object_get(o, counter));
		else if (event && !strcmp(event, "rule") && !strcmp(counter, "rules"))
			cairn_note(t, "%.*s", (int)strcspn(line, "\n"), line);
		json_decref(o);
	}
	if (f)
		fclose(f);
	return sum;
}

static inline int missing(struct cairn_test *t, const char *program)
{
	char path[1024];

	if (!find_program("cairn_nic.so", path, sizeof(path)))
		cairn_skip(t, "cairn_nic.so was not built: no <rdma/mlx5-abi.h>");
	else if (!find_program(program, path, sizeof(path)))
		cairn_skip(t, "no program %s here", program);
	else
		return 0;
	return 1;
}

#endif
