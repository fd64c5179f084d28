// SPDX-License-Identifier: Apache-2.0
/*
 * serve_supervise - starts, watches and restarts the worker
 *
 *   none --spawn--> LOADING --READY--> READY --exit, error, stop, silence--> FAILED --delay--> LOADING
 *
 * A worker and its ranks (--tp) are a process group. A failed worker is killed with its group. The next one
 * starts only after all of them have been reaped, because their device memory is not free before; the front
 * is a subreaper, so that the ranks of a worker that has died become its children. A worker that has reported
 * an error or closed its socket gets GRACE_NS to end by itself, so that the log shows how it ended. The delay
 * is 0.1 s after a worker that has served a token; it doubles, up to 10 s, after each worker that has not. If
 * the first worker cannot load the model, a retry is pointless, and serve.c ends the program.
 *
 * A worker that has been stopped (SIGSTOP) for STOPPED_NS has failed. The kernel tells the front that its
 * child is stopped, so a worker that only waits for a processor is not mistaken for one, nor is one under a
 * debugger. ^Z stops the front alone, because the worker has a process group of its own.
 */
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "primitives/base/error.h"
#include "serving/serve/front/serve_front.h"

#define MS		1000000ll
#define FIRST_DELAY	(100 * MS)
#define MAX_DELAY	(10000 * MS)
#define REAP_NS		(5 * MS)	/* polling interval for the exit of a killed worker */
#define GRACE_NS	(500 * MS)	/* time for a worker that has failed by itself to end */
#define QUIT_NS		(2000 * MS)	/* time for a worker to exit after QUIT before it is killed */
#define STOPPED_NS	(300 * MS)	/* how long a worker may be stopped */
#define LOOK_NS		(100 * MS)	/* interval of looks at whether it is stopped */

extern char **environ;

static int spawn(struct serve *s)
{
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attr;
	char **argv = calloc((size_t)s->argc + 2, sizeof(*argv));
	sigset_t none, all;
	int fds[2] = { -1, -1 }, said[2] = { -1, -1 }, ret, pid;

	if (!argv)
		return cairn_error(ENOMEM, "serve: no memory to start a worker");
	argv[0] = "cairn";
	argv[1] = "serve-worker";
	for (int i = 1; i < s->argc; i++)
		argv[i + 1] = s->argv[i];
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds)) {
		free(argv);
		return cairn_error(EIO, "serve: socketpair: %s", strerror(errno));
	}
	if (pipe2(said, O_CLOEXEC) || fcntl(said[0], F_SETFL, O_NONBLOCK)) {
		ret = cairn_error(EIO, "serve: pipe: %s", strerror(errno));
		goto failed;
	}
	sigemptyset(&none);
	sigfillset(&all);
	posix_spawn_file_actions_init(&actions);
	/* duplicate the pipe first: CAIRN_SERVE_FD may have its number */
	posix_spawn_file_actions_adddup2(&actions, said[1], STDOUT_FILENO);
	posix_spawn_file_actions_adddup2(&actions, said[1], STDERR_FILENO);
	posix_spawn_file_actions_adddup2(&actions, fds[1], CAIRN_SERVE_FD);
	posix_spawnattr_init(&attr);
	posix_spawnattr_setsigmask(&attr, &none);
	posix_spawnattr_setsigdefault(&attr, &all);
	posix_spawnattr_setpgroup(&attr, 0);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
				 POSIX_SPAWN_SETPGROUP);
	ret = posix_spawn(&pid, "/proc/self/exe", &actions, &attr, argv, environ);
	posix_spawnattr_destroy(&attr);
	posix_spawn_file_actions_destroy(&actions);
	if (ret) {
		ret = cairn_error(EIO, "serve: the worker cannot be started: %s", strerror(ret));
		goto failed;
	}
	close(fds[1]);
	close(said[1]);
	free(argv);
	s->fd = fds[0];
	s->said.fd = said[0];
	s->pid = s->group = pid;
	s->killed = false;
	s->stopped_ns = 0;
	return 0;
failed:
	for (int i = 0; i < 2; i++) {
		close(fds[i]);
		if (said[i] >= 0)
			close(said[i]);
	}
	free(argv);
	return ret;
}

static void start(struct serve *s)
{
	s->spawn_ns = serve_now_ns();
	s->has_served = false;
	s->stats = s->drafts = s->masks = s->events = s->pulls = (struct cairn_wire_frame){ 0 };
	memset(s->accepted, 0, sizeof(s->accepted));
	s->in->begin = s->in->end = 0;
	free(s->out.data);
	s->out = (struct cairn_out_queue){ 0 };
	if (spawn(s)) {
		serve_worker_broken(s, cairn_last_error());
		return;
	}
	atomic_store(&s->beat_ns, s->spawn_ns);
	atomic_store(&s->state, SERVE_LOADING);
	if (atomic_load(&s->was_ready)) {
		atomic_fetch_add(&s->restarts, 1);
		cairn_metric_add(s->metrics, CAIRN_WORKER_RESTARTS, 0, 1);
	}
}

int serve_worker_ready(struct serve *s, const struct cairn_wire_frame *f)
{
	if (atomic_load(&s->state) != SERVE_LOADING || f->ready.vocab_size != s->config.vocab_size ||
	    f->ready.max_context < 1 || f->ready.max_context > s->limits.max_context)
		return -EINVAL;
	if (f->ready.num_pages < 1 || f->ready.page_size < 1)
		return -EINVAL;
	atomic_store(&s->max_context, f->ready.max_context);
	cairn_metrics_set_cache(s->metrics, f->ready.page_size, f->ready.num_pages,
				s->opt.grain != CAIRN_SERVE_CACHE_OFF,
				s->opt.common.kv == CAIRN_KV_FP8 ? "fp8" : "auto");
	atomic_store(&s->beat_ns, serve_now_ns());
	atomic_store(&s->busy, false);
	atomic_store(&s->was_ready, true);
	atomic_store(&s->state, SERVE_READY);
	serve_log_print(s->log, "cairn serve: ready: %d pages of %d tokens, %d sequences at once (worker %d, "
			"after %.2f s)", f->ready.num_pages, f->ready.page_size, f->ready.max_batch, s->pid,
			(double)(serve_now_ns() - s->spawn_ns) * 1e-9);
	serve_resume_all(s);
	return 0;
}

static void kill_worker(struct serve *s)
{
	s->killed = true;
	kill(-s->group, SIGKILL);
}

/* Holds all requests for the next worker, and gives this one grace_ns to end by itself. */
static void fail_worker(struct serve *s, const char *why, int64_t grace_ns)
{
	int64_t now = serve_now_ns();

	atomic_store(&s->state, SERVE_FAILED);	/* before any request fails: clients may retry at once */
	atomic_store(&s->busy, false);
	if (s->fd >= 0)
		close(s->fd);
	s->fd = -1;
	s->killed = false;
	s->kill_ns = now + grace_ns;
	if (s->group > 0 && !grace_ns)
		kill_worker(s);
	serve_log_print(s->log, "cairn serve: the worker has failed: %s", why);
	serve_hold_all(s, why);
	cairn_metric_set(s->metrics, CAIRN_NUM_REQUESTS_RUNNING, 0);
	cairn_metric_set(s->metrics, CAIRN_NUM_REQUESTS_WAITING, 0);
	cairn_metric_set(s->metrics, CAIRN_KV_CACHE_USAGE, 0);
	cairn_metric_set(s->metrics, CAIRN_GPU_POWER, 0);
	s->delay_ns = s->has_served || !s->delay_ns ? FIRST_DELAY : s->delay_ns * 2;
	if (s->delay_ns > MAX_DELAY)
		s->delay_ns = MAX_DELAY;
	s->restart_ns = now + s->delay_ns;
	if (!atomic_load(&s->was_ready)) {
		snprintf(s->why, sizeof(s->why), "%s", why);
		atomic_store(&s->cannot_load, true);	/* the main thread reads why[] once it sees this */
	}
}

void serve_worker_broken(struct serve *s, const char *why)
{
	fail_worker(s, why, 0);
}

void serve_worker_gone(struct serve *s, const char *why)
{
	fail_worker(s, why, GRACE_NS);
}

static void say_end(const struct serve *s, int status)
{
	if (WIFSIGNALED(status))
		serve_log_print(s->log, "cairn serve: the worker was ended by signal %d (%s)",
				WTERMSIG(status), strsignal(WTERMSIG(status)));
	else if (WEXITSTATUS(status))
		serve_log_print(s->log, "cairn serve: the worker ended with status %d", WEXITSTATUS(status));
}

/*
 * Returns whether no process of the worker's group exists any more. Ranks that outlive rank 0 are the front's
 * children by now; the kernel kills them, as their parent has died.
 */
static bool reap(struct serve *s)
{
	int status, pid;

	if (s->group < 0)
		return true;
	while ((pid = waitpid(-s->group, &status, WNOHANG)) > 0) {
		if (pid != s->pid)
			continue;
		s->pid = -1;
		if (!s->killed)		/* else the reason has been reported */
			say_end(s, status);
	}
	if (!pid || errno != ECHILD)
		return false;
	s->pid = s->group = -1;
	serve_log_end_relay(s->log, &s->said);
	return true;
}

/* Returns whether the worker has been stopped for too long. It must not have been reaped. */
static bool was_stopped(struct serve *s, int64_t now)
{
	siginfo_t info = { .si_pid = 0 };

	/* WNOWAIT: the kernel keeps saying so until the child is continued */
	if (waitid(P_PID, (id_t)s->pid, &info, WSTOPPED | WNOHANG | WNOWAIT) || info.si_pid != s->pid)
		s->stopped_ns = 0;
	else if (!s->stopped_ns)
		s->stopped_ns = now;
	return s->stopped_ns && now - s->stopped_ns >= STOPPED_NS;
}

void serve_supervise(struct serve *s)
{
	int64_t now = serve_now_ns(), silent;

	if (s->fd >= 0) {
		silent = now - atomic_load(&s->beat_ns);
		if (atomic_load(&s->was_ready) && was_stopped(s, now))
			serve_worker_broken(s, "it has been stopped");
		else if (atomic_load(&s->state) == SERVE_LOADING && silent > s->opt.load_s * 1000 * MS)
			serve_worker_broken(s, "it takes too long to load");
		else if (atomic_load(&s->state) == SERVE_READY && silent > s->opt.hang_s * 1000 * MS)
			serve_worker_broken(s, "it hangs");
		return;
	}
	if (s->group > 0 && !s->killed && now >= s->kill_ns)
		kill_worker(s);
	if (reap(s) && now >= s->restart_ns && !atomic_load(&s->cannot_load))
		start(s);
}

int64_t serve_next_ns(const struct serve *s)
{
	int64_t now = serve_now_ns();

	return s->fd >= 0 ? now + LOOK_NS : s->group >= 0 ? now + REAP_NS : s->restart_ns;
}

void serve_worker_quit(struct serve *s)
{
	struct timespec nap = { 0, REAP_NS };
	int64_t end = serve_now_ns() + QUIT_NS;

	if (s->fd >= 0) {
		cairn_wire_say(&s->out, CAIRN_WIRE_QUIT, 0);
		cairn_wire_flush(&s->out, s->fd);
		close(s->fd);	/* closing also ends a worker that QUIT has not reached */
		s->fd = -1;
	}
	while (!reap(s)) {
		if (serve_now_ns() >= end) {
			serve_log_print(s->log, "cairn serve: the worker does not end and is killed");
			kill_worker(s);
			end = INT64_MAX;
		}
		nanosleep(&nap, NULL);
	}
}
