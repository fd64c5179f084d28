// SPDX-License-Identifier: Apache-2.0
/*
 * ranks - the processes of tensor parallelism, and the thread that watches them
 *
 * The watcher of rank 0 waits until a socket to another rank closes; the watcher of another rank waits for
 * the socket to rank 0. It then aborts the communicator, so that the main thread leaves a collective in which
 * it may wait, shuts down its direction of all sockets, which tells a rank that has failed that it may end,
 * and ends itself. It does the same if the process at the other end has been stopped (SIGSTOP) for a second.
 * A busy machine is not mistaken for this, because the kernel says whether a process is stopped or waits for
 * a processor. All ranks may be stopped and continued together (Ctrl-Z, fg): no watcher runs in between.
 */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conformance/tables/program.h"
#include "serving/ranks/ranks_impl.h"

#define LOOK_MS		200	/* between two looks at the other processes */
#define STOPPED_LOOKS	5	/* looks in a row at which a process must be stopped */

/* ---- processes ---- */

static void close_sockets(struct cairn_tp *tp)
{
	for (int32_t r = 0; r < MAX; r++) {
		if (tp->channel[r])
			cairn_channel_close(tp->channel[r]);
		else if (tp->fd[r] >= 0)
			close(tp->fd[r]);
		tp->channel[r] = NULL;
		tp->fd[r] = -1;
	}
}

/* Forks a rank of this node. If rank 0 is in the node, a socketpair connects them. */
static int fork_one(struct cairn_tp *tp, int32_t r)
{
	pid_t self = getpid();
	int fds[2] = { -1, -1 };

	if (!tp->first && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds))
		return cairn_error(errno, "ranks: no socket: %s", strerror(errno));
	tp->pid[r] = fork();
	if (tp->pid[r]) {
		tp->fd[r] = fds[0];
		if (fds[1] >= 0)
			close(fds[1]);
		return tp->pid[r] < 0 ? cairn_error(errno, "ranks: no process: %s", strerror(errno)) : 0;
	}
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != self)
		_exit(1);
	close_sockets(tp);
	if (fds[0] >= 0)
		close(fds[0]);
	memset(tp->pid, 0, sizeof(tp->pid));
	tp->rank = r;
	tp->fd[0] = fds[1];
	return 0;
}

/* Finds the ranks of other nodes. */
static int meet(struct cairn_tp *tp, const struct cairn_rendezvous *v)
{
	struct cairn_join mine = { .version = CAIRN_JOIN_VERSION, .rank = tp->rank, .ranks = tp->ranks,
				   .nodes = v->nodes };

	snprintf(mine.build, sizeof(mine.build), "%s", cairn_source_digest());
	if (!tp->rank)
		CAIRN_TRY(cairn_rendezvous_accept(v, &mine, tp->end, tp->channel));
	else if (tp->first)
		CAIRN_TRY(cairn_rendezvous_connect(v, &mine, &tp->channel[0]));
	for (int32_t r = 0; r < MAX; r++)
		if (tp->channel[r])
			tp->fd[r] = cairn_channel_fd(tp->channel[r]);
	return 0;
}

static int check_nodes(int32_t ranks, const struct cairn_rendezvous *v)
{
	if (ranks < 1 || ranks > MAX)
		return cairn_error(EINVAL, "ranks: %d, must be 1 to %d", ranks, MAX);
	if (v && (v->nodes < 1 || ranks % v->nodes))
		return cairn_error(EINVAL, "--nodes: %d ranks are not divisible among %d nodes", ranks,
				   v->nodes);
	if (v && (v->node < 0 || v->node >= v->nodes))
		return cairn_error(EINVAL, "--node-rank: is %d, must be 0 to %d", v->node, v->nodes - 1);
	return 0;
}

int cairn_tp_fork(struct cairn_tp **out, int32_t ranks, const struct cairn_rendezvous *v, int32_t timeout_ms)
{
	struct cairn_tp *tp;
	int ret = 0;

	CAIRN_TRY(check_nodes(ranks, v));
	tp = calloc(1, sizeof(*tp));
	if (!tp)
		return cairn_error(ENOMEM, "ranks: no memory");
	memset(tp->fd, -1, sizeof(tp->fd));
	tp->timeout_ms = timeout_ms ? timeout_ms : CAIRN_COMM_TIMEOUT_MS;
	tp->stop_fd = -1;
	atomic_init(&tp->lost, -1);
	tp->ranks = ranks;
	tp->rank = tp->first = v ? v->node * (ranks / v->nodes) : 0;
	tp->end = tp->first + ranks / (v ? v->nodes : 1);
	for (int32_t r = tp->first + 1; r < tp->end && !ret && tp->rank == tp->first; r++)
		ret = fork_one(tp, r);
	if (!ret && v)
		ret = meet(tp, v);
	if (ret) {
		tp->failed = 1;
		cairn_tp_close(tp);
		return ret;
	}
	*out = tp;
	return 0;
}

int32_t cairn_tp_local_rank(const struct cairn_tp *tp)
{
	return tp->rank - tp->first;
}

int32_t cairn_tp_rank(const struct cairn_tp *tp)
{
	return tp->rank;
}

int32_t cairn_tp_ranks(const struct cairn_tp *tp)
{
	return tp->ranks;
}

/* ---- the watcher ---- */

int tp_is_stopped(pid_t pid)
{
	char path[64], text[512] = "";
	const char *state;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	f = fopen(path, "re");
	if (!f)
		return 0;
	if (!fgets(text, sizeof(text), f))
		text[0] = 0;
	fclose(f);
	state = strrchr(text, ')');	/* the name before it may have any characters */
	return state && !strncmp(state, ") T", 3);
}

/* Counts the looks in a row at which a rank was stopped. Returns one that reaches STOPPED_LOOKS, or -1. */
static int32_t find_stopped(const struct cairn_tp *tp, int *looks)
{
	for (int32_t r = 0; r < MAX; r++) {
		looks[r] = tp->watched[r] > 0 && tp_is_stopped(tp->watched[r]) ? looks[r] + 1 : 0;
		if (looks[r] >= STOPPED_LOOKS)
			return r;
	}
	return -1;
}

/* Tells the main thread, which may wait in a collective or for a message, and the other ranks. */
static void lose(struct cairn_tp *tp, int32_t r, int is_stopped)
{
	atomic_store(&tp->stopped, is_stopped);
	atomic_store(&tp->lost, r);
	tp_table.base.comm_abort(&tp_table.comm);
	for (int32_t i = 0; i < MAX; i++)
		shutdown(tp->fd[i], SHUT_WR);	/* fd -1: fails */
	if (is_stopped)
		shutdown(tp->fd[r], SHUT_RD);	/* nothing would come */
}

static void *watch(void *arg)
{
	struct cairn_tp *tp = arg;
	struct pollfd p[MAX + 1];
	int looks[MAX] = { 0 };
	int32_t lost = -1;
	int n;

	for (int32_t r = 0; r < MAX; r++)
		p[r] = (struct pollfd){ .fd = tp->fd[r], .events = POLLRDHUP };
	p[MAX] = (struct pollfd){ .fd = tp->stop_fd, .events = POLLIN };
	while (lost < 0 && (n = poll(p, MAX + 1, LOOK_MS)) <= 0) {
		if (n < 0 && errno != EINTR)
			return NULL;
		lost = n ? -1 : find_stopped(tp, looks);
	}
	if (lost >= 0)
		lose(tp, lost, 1);
	for (int32_t r = 0; r < MAX && lost < 0 && !p[MAX].revents; r++)
		if (p[r].revents)
			lose(tp, lost = r, 0);
	return NULL;
}

/* Processes of this host that this rank knows: rank 0 those of its node, and these rank 0. */
static void choose_watched(struct cairn_tp *tp)
{
	if (!tp->rank)
		memcpy(tp->watched, tp->pid, sizeof(tp->watched));
	else if (!tp->first)
		tp->watched[0] = getppid();
}

int tp_start_watcher(struct cairn_tp *tp)
{
	sigset_t all, old;
	int ret;

	tp->stop_fd = eventfd(0, EFD_CLOEXEC);
	if (tp->stop_fd < 0)
		return cairn_error(errno, "ranks: no eventfd: %s", strerror(errno));
	choose_watched(tp);
	/* signals are for the main thread */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	ret = pthread_create(&tp->watcher, NULL, watch, tp);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	tp->watches = !ret;
	return ret ? cairn_error(ret, "ranks: no thread: %s", strerror(ret)) : 0;
}

void tp_stop_watcher(struct cairn_tp *tp)
{
	const uint64_t one = 1;
	ssize_t n;

	if (tp->watches) {
		n = write(tp->stop_fd, &one, sizeof(one));
		(void)n;	/* fails only if the counter is full */
		pthread_join(tp->watcher, NULL);
	}
	tp->watches = 0;
	if (tp->stop_fd >= 0)
		close(tp->stop_fd);
	tp->stop_fd = -1;
}

/* ---- the end ---- */

/* Waits for a rank that should end, and kills it if it does not, or at once after an error. */
static void end(const struct cairn_tp *tp, int32_t r)
{
	const int64_t deadline = tp_deadline(tp->failed ? 0 : CAIRN_TP_END_S * 1000);
	pid_t done;

	while (!(done = waitpid(tp->pid[r], NULL, WNOHANG)) && cairn_clock_ns() < deadline)
		usleep(1000);
	if (done)
		return;
	kill(tp->pid[r], SIGKILL);
	waitpid(tp->pid[r], NULL, 0);
}

/* Asks all ranks to end. Their answers say that they have seen it, and not failed meanwhile. */
static int end_all(struct cairn_tp *tp)
{
	CAIRN_TRY(tp_send_to_all(tp, END, NULL, 0));
	for (int32_t r = 1; r < tp->ranks; r++)
		CAIRN_TRY(tp_receive(tp, r, END, NULL, 0, CAIRN_TP_END_S * 1000));
	return 0;
}

void cairn_tp_close(struct cairn_tp *tp)
{
	if (!tp)
		return;
	tp_stop_watcher(tp);
	if (tp->passes != tp->collected)	/* the others may wait for this rank in a collective */
		tp->failed = 1;
	if (!tp->rank && !tp->failed)
		tp->failed = end_all(tp) != 0;
	for (int32_t r = tp->first; r < tp->end; r++) {
		if (tp->pid[r] > 0)
			end(tp, r);
	}
	close_sockets(tp);
	for (int32_t r = 0; r < MAX; r++)
		free(tp->rest[r].bytes);
	if (tp_table.comm.handle)
		tp_table.base.comm_close(&tp_table.comm);
	tp_table.tp = NULL;
	cairn_plan_out_free(&tp->plan);
	free(tp);
}
