/* SPDX-License-Identifier: Apache-2.0 */
/*
 * late_test - runs parts of tests on the late table, each in a child process, as some of them crash
 *
 * A part returns 0, or the line number of the failed condition. Include harness.h first.
 */
#ifndef CAIRN_LATE_TEST_H
#define CAIRN_LATE_TEST_H

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conformance/tables/tables.h"
#include "conformance/suite/spawn.h"

enum { N = 1000 };			/* bytes of each block of a fixture */

struct fixture {
	struct cairn_impl impl;
	void *stream, *other, *event;
	uint8_t *dev, *dev2, *pinned, *pinned2;		/* [N] */
};

#define MUST(cond) do { if (!(cond)) return __LINE__; } while (0)

static inline int set_up(struct fixture *f, const char *path)
{
	MUST(cairn_impl_open(path, &f->impl) == 0 && cairn_impl_start(&f->impl, 0) == 0);
	MUST(f->impl.stream_create(&f->stream) == 0 && f->impl.stream_create(&f->other) == 0);
	MUST(f->impl.event_create(&f->event) == 0);
	MUST(f->impl.mem_alloc((void **)&f->dev, N) == 0 && f->impl.mem_alloc((void **)&f->dev2, N) == 0);
	MUST(f->impl.host_alloc((void **)&f->pinned, N) == 0);
	MUST(f->impl.host_alloc((void **)&f->pinned2, N) == 0);
	memset(f->pinned, 0, N);
	memset(f->pinned2, 0, N);
	return 0;
}

/* Runs part() in a child process; returns its exit status, or -signal. out: its stderr. */
static inline int in_child(const char *path, int (*part)(struct fixture *f), char *out, size_t len)
{
	struct fixture f;
	int fds[2], status;
	size_t used = 0;
	ssize_t n;
	pid_t pid;

	out[0] = 0;
	if (pipe(fds))
		return -1000;
	pid = fork();
	if (pid == 0) {
		int line;

		dup2(fds[1], 2);
		alarm(60);
		line = set_up(&f, path);
		if (!line)
			line = part(&f);
		if (line)
			dprintf(2, "line %d: %s\n", line, cairn_last_error());
		_exit(line != 0);
	}
	close(fds[1]);
	while (used < len - 1 && (n = read(fds[0], out + used, len - 1 - used)) > 0)
		used += (size_t)n;
	out[used] = 0;
	close(fds[0]);
	waitpid(pid, &status, 0);
	return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

/* Expects that part() succeeds. */
static inline void all_well(struct cairn_test *t, int (*part)(struct fixture *f))
{
	char path[PATH_MAX], out[1024];

	if (!cairn_beside("late_plugin.so", path, sizeof(path)))
		cairn_skip(t, "late_plugin.so is not in the directory of this program");
	else if (!EXPECT(t, in_child(path, part, out, sizeof(out)) == 0))
		cairn_note(t, "%s", out);
}

#endif
