// SPDX-License-Identifier: Apache-2.0
/* spawn - runs programs for tests and captures their output */
#include "conformance/suite/spawn.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* preload, dir: NULL, or what the program gets as LD_PRELOAD and TMPDIR */
static int spawn(const char *path, const char *preload, const char *dir, char *const argv[], char *out,
		 size_t len)
{
	size_t used = 0;
	int fds[2], status, null;
	pid_t pid;

	out[0] = 0;
	if (pipe(fds) < 0)
		return -1000;
	pid = fork();
	if (pid < 0)
		return -1000;
	if (pid == 0) {
		null = open("/dev/null", O_RDONLY);
		dup2(null, 0);
		dup2(fds[1], 1);
		dup2(fds[1], 2);
		close(fds[0]);
		close(fds[1]);
		alarm(600);	/* a backstop: normally the family's time-out ends a hang */
		if (preload)
			setenv("LD_PRELOAD", preload, 1);
		if (dir)
			setenv("TMPDIR", dir, 1);
		execv(path, argv);
		_exit(127);
	}
	close(fds[1]);
	for (;;) {
		char scratch[4096];
		ssize_t n = read(fds[0], scratch, sizeof(scratch));

		if (n <= 0)
			break;
		if ((size_t)n > len - 1 - used)
			n = (ssize_t)(len - 1 - used);
		memcpy(out + used, scratch, (size_t)n);
		used += (size_t)n;
		out[used] = 0;
	}
	close(fds[0]);
	waitpid(pid, &status, 0);
	return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

int cairn_spawn(char *const argv[], char *out, size_t len)
{
	return cairn_spawn_in(NULL, NULL, argv, out, len);
}

int cairn_beside(const char *name, char *path, size_t len)
{
	char self[PATH_MAX], *slash;
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	self[n > 0 ? n : 0] = 0;
	slash = strrchr(self, '/');
	if (!slash)
		return 0;
	*slash = 0;
	return (size_t)snprintf(path, len, "%s/%s", self, name) < len && !access(path, R_OK);
}

int cairn_spawn_beside(const char *name, const char *preload, char *const argv[], char *out, size_t len)
{
	char path[PATH_MAX + 64], library[PATH_MAX + 64];

	out[0] = 0;
	if (!cairn_beside(name, path, sizeof(path)) ||
	    (preload && !cairn_beside(preload, library, sizeof(library))))
		return -1001;
	return spawn(path, preload ? library : NULL, NULL, argv, out, len);
}

int cairn_spawn_in(const char *dir, const char *preload, char *const argv[], char *out, size_t len)
{
	char library[PATH_MAX + 64];

	out[0] = 0;
	if (preload && !cairn_beside(preload, library, sizeof(library)))
		return -1001;
	return spawn("/proc/self/exe", preload ? library : NULL, dir, argv, out, len);
}
