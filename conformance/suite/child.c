// SPDX-License-Identifier: Apache-2.0
#include "conformance/suite/child.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "primitives/base/error.h"

#define MAX_CHILDREN	512

/* The read ends of the pipes of all running children. No lock: the suite's processes are single-threaded. */
static int pipes[MAX_CHILDREN], num_pipes;

static double now_s(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

int cairn_child_start(struct cairn_child *c)
{
	pid_t self = getpid();
	int fds[2];

	c->death[0] = 0;
	c->len = 0;
	c->cap = 1 << 16;
	c->buf = malloc(c->cap);
	if (!c->buf)
		return cairn_error(ENOMEM, "no memory for a test process");
	fflush(NULL);
	if (pipe2(fds, O_CLOEXEC) < 0) {
		free(c->buf);
		return cairn_error(errno, "no pipe for a test process: %s", strerror(errno));
	}
	c->pid = fork();
	if (c->pid < 0) {
		close(fds[0]);
		close(fds[1]);
		free(c->buf);
		return cairn_error(errno, "no test process: %s", strerror(errno));
	}
	if (c->pid == 0) {
		FILE *out;

		/* Inherited pipes would count towards the limit of open files that a test sets. */
		for (int i = 0; i < num_pipes; i++)
			close(pipes[i]);
		num_pipes = 0;
		out = fdopen(fds[1], "w");
		setpgid(0, 0);
		/*
		 * The terminal's signals do not reach the child, because it has its own process group. The
		 * kernel must therefore kill it when the suite dies.
		 */
		if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != self)
			_exit(1);
		setvbuf(out, NULL, _IOLBF, 1 << 16);
		/* Cases free and allocate the same few megabytes. Unless kept, they are cleared each time. */
		mallopt(M_MMAP_THRESHOLD, 32 << 20);
		mallopt(M_TRIM_THRESHOLD, 256 << 20);
		mallopt(M_TOP_PAD, 16 << 20);
		c->run(out, c->arg);
		fclose(out);
		_exit(0);
	}
	close(fds[1]);
	c->fd = pipes[num_pipes++] = fds[0];
	c->deadline = now_s() + c->timeout_s;
	return 0;
}

/* Reads what has arrived and passes its complete lines to line(). Returns 0 at the end of the pipe. */
static int receive(struct cairn_child *c)
{
	char *start, *nl;
	ssize_t n;

	if (c->len == c->cap - 1) {
		char *bigger = realloc(c->buf, c->cap * 2);

		if (!bigger)
			abort();
		c->buf = bigger;
		c->cap *= 2;
	}
	n = read(c->fd, c->buf + c->len, c->cap - 1 - c->len);
	if (n < 0 && errno == EINTR)
		return 1;
	if (n <= 0)
		return 0;
	c->len += (size_t)n;
	c->buf[c->len] = 0;
	for (start = c->buf; (nl = strchr(start, '\n')); start = nl + 1) {
		*nl = 0;
		c->line(start, c->arg);
		c->deadline = now_s() + c->timeout_s;
	}
	c->len -= (size_t)(start - c->buf);
	memmove(c->buf, start, c->len);
	return 1;
}

static void finish(struct cairn_child *c, int timed_out)
{
	int status = 0;

	if (timed_out)
		kill(-c->pid, SIGKILL);
	for (int i = 0; i < num_pipes; i++)
		if (pipes[i] == c->fd)
			pipes[i] = pipes[--num_pipes];
	close(c->fd);
	free(c->buf);
	c->buf = NULL;
	while (waitpid(c->pid, &status, 0) < 0 && errno == EINTR)
		;
	kill(-c->pid, SIGKILL);		/* processes that the child left behind */
	if (timed_out)
		snprintf(c->death, sizeof(c->death), "TIMEOUT after %d s", c->timeout_s);
	else if (WIFSIGNALED(status))
		snprintf(c->death, sizeof(c->death), "CRASH: signal %d (%s)", WTERMSIG(status),
			 strsignal(WTERMSIG(status)));
	else if (WEXITSTATUS(status))
		snprintf(c->death, sizeof(c->death), "EXIT with status %d", WEXITSTATUS(status));
}

int cairn_children_wait(struct cairn_child *const children[], int num)
{
	struct pollfd fds[MAX_CHILDREN];

	for (;;) {
		double next = now_s() + 3600;

		for (int i = 0; i < num; i++) {
			fds[i] = (struct pollfd){ .fd = children[i]->fd, .events = POLLIN };
			next = children[i]->deadline < next ? children[i]->deadline : next;
		}
		next -= now_s();
		poll(fds, (nfds_t)num, next > 0 ? (int)(next * 1000) + 1 : 0);
		for (int i = 0; i < num; i++) {
			if (fds[i].revents && !receive(children[i])) {
				finish(children[i], 0);
				return i;
			}
			if (now_s() >= children[i]->deadline) {
				finish(children[i], 1);
				return i;
			}
		}
	}
}

const char *cairn_child_run(struct cairn_child *c)
{
	if (cairn_child_start(c))
		return cairn_last_error();
	cairn_children_wait(&c, 1);
	return c->death[0] ? c->death : NULL;
}
