// SPDX-License-Identifier: Apache-2.0
/*
 * lead_start - starts workers on this machine
 *
 * The secret is random bytes in a memory file without a name: workers inherit its descriptor, and read it as
 * the file /proc/self/fd/3. The kernel kills a worker when the thread that started it ends, so that a lead
 * never leaves a worker behind.
 */
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "primitives/base/error.h"
#include "serving/remote/lead/lead_impl.h"

#define INHERITED	3
#define MAX_ARGS	32

extern char **environ;

int lead_start_secret(struct cairn_lead *l)
{
	uint8_t bytes[CAIRN_SECRET_BYTES];
	char path[64];

	l->secret_fd = memfd_create("secret", MFD_CLOEXEC);
	if (l->secret_fd < 0 || fchmod(l->secret_fd, 0600) ||
	    getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes) ||
	    write(l->secret_fd, bytes, sizeof(bytes)) != sizeof(bytes))
		return cairn_error(EIO, "lead: no secret: %s", strerror(errno));
	snprintf(path, sizeof(path), "/proc/self/fd/%d", l->secret_fd);
	return cairn_secret_load(l->secret, path);
}

/*
 * The environment of workers, unless it says otherwise already: they share the processors, and idle threads
 * of one must not spin while another computes. Returns an array that the caller frees.
 */
static char **worker_environ(int32_t workers, char *threads, size_t len)
{
	static char passive[] = "OMP_WAIT_POLICY=passive";
	const long processors = sysconf(_SC_NPROCESSORS_ONLN);
	size_t num = 0;
	char **env;

	while (environ[num])
		num++;
	env = malloc((num + 3) * sizeof(*env));
	if (!env)
		return NULL;
	memcpy(env, environ, num * sizeof(*env));
	if (!getenv("OMP_WAIT_POLICY"))
		env[num++] = passive;
	snprintf(threads, len, "OMP_NUM_THREADS=%ld", processors > workers ? processors / workers : 1);
	if (!getenv("OMP_NUM_THREADS"))
		env[num++] = threads;
	env[num] = NULL;
	return env;
}

/* Returns the device of a worker that is `index` of its role: all take theirs in the order of their ranks. */
static int32_t device_of(const struct cairn_lead *l, enum cairn_member_role role, int32_t index)
{
	const struct cairn_lead_options *o = &l->opt;
	const int32_t each = o->prefill_devices ? o->prefill_devices : 1;
	const int32_t before[CAIRN_NUM_MEMBER_ROLES] = {
		[CAIRN_MEMBER_PREFILL] = o->attention,
		[CAIRN_MEMBER_MODEL] = o->attention + o->prefill * each,
	};

	return (o->first_device + before[role] + index * (role == CAIRN_MEMBER_PREFILL ? each : 1)) %
	       o->num_devices;
}

int lead_start_process(struct cairn_lead *l, enum cairn_member_role role, int32_t index, pid_t *pid)
{
	char join[32], parent[32], threads[48], device[32];
	static const char *const commands[CAIRN_NUM_MEMBER_ROLES] = {
		"model-worker", "attention-worker", "prefill-worker",
	};
	const char *impl = l->opt.impl ? l->opt.impl : l->opt.table;
	char *argv[MAX_ARGS + 1] = {
		"cairn", (char *)commands[role],
		"--join", join, "--secret-file", "/proc/self/fd/3", "--die-with", parent, "--impl",
		(char *)impl,
	};
	const int computes = l->opt.model || !l->opt.attention;		/* this process, beside the workers */
	char **env = worker_environ(lead_num_children(l) + computes, threads, sizeof(threads));
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attr;
	sigset_t none, all;
	int ret, num = 10;

	if (!env)
		return cairn_error(ENOMEM, "lead: no memory to start a worker");
	if (l->opt.num_devices) {
		snprintf(device, sizeof(device), "%d", device_of(l, role, index));
		argv[num++] = "--device";
		argv[num++] = device;
	}
	for (int n = 0; role != CAIRN_MEMBER_ATTENTION && l->opt.model_options &&
	     l->opt.model_options[n] && num < MAX_ARGS; n++)
		argv[num++] = (char *)l->opt.model_options[n];
	snprintf(join, sizeof(join), "127.0.0.1:%d", l->port);
	snprintf(parent, sizeof(parent), "%d", (int)getpid());
	sigemptyset(&none);
	sigfillset(&all);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
	posix_spawn_file_actions_adddup2(&actions, l->secret_fd, INHERITED);
	posix_spawn_file_actions_addclosefrom_np(&actions, INHERITED + 1);
	posix_spawnattr_init(&attr);
	posix_spawnattr_setsigmask(&attr, &none);
	posix_spawnattr_setsigdefault(&attr, &all);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
	ret = posix_spawn(pid, "/proc/self/exe", &actions, &attr, argv, env);
	posix_spawnattr_destroy(&attr);
	posix_spawn_file_actions_destroy(&actions);
	free(env);
	return ret ? cairn_error(ret, "lead: a worker cannot be started: %s", strerror(ret)) : 0;
}

void lead_end_process(pid_t pid)
{
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}
