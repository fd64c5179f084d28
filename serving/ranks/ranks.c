// SPDX-License-Identifier: Apache-2.0
/*
 * ranks - the processes of tensor parallelism, their table, and the thread that watches them
 *
 * The watcher of rank 0 waits for the sockets of all others to close, that of another rank for the one to
 * rank 0. It then aborts the communicator, so that the main thread leaves the collective in which it may
 * wait, shuts down its direction of all sockets, which tells a rank that has failed that it may end, and ends
 * itself.
 */
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "serving/ranks/ranks_impl.h"

struct tp_table tp_table;

/* ---- processes ---- */

static int fork_one(struct cairn_tp *tp, int32_t r)
{
	pid_t self = getpid();
	int fds[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds))
		return cairn_error(errno, "ranks: no socket: %s", strerror(errno));
	tp->pid[r] = fork();
	if (tp->pid[r] < 0) {
		close(fds[0]);
		close(fds[1]);
		return cairn_error(errno, "ranks: no process: %s", strerror(errno));
	}
	if (tp->pid[r] > 0) {
		close(fds[1]);
		tp->fd[r] = fds[0];
		return 0;
	}
	close(fds[0]);
	for (int32_t i = 1; i < r; i++) {
		close(tp->fd[i]);
		tp->fd[i] = -1;
	}
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != self)
		_exit(1);
	memset(tp->pid, 0, sizeof(tp->pid));
	tp->rank = r;
	tp->fd[0] = fds[1];
	return 0;
}

int cairn_tp_fork(struct cairn_tp **out, int32_t ranks, int32_t timeout_ms)
{
	struct cairn_tp *tp;
	int ret = 0;

	if (ranks < 1 || ranks > MAX)
		return cairn_error(EINVAL, "ranks: %d, must be 1 to %d", ranks, MAX);
	tp = calloc(1, sizeof(*tp));
	if (!tp)
		return cairn_error(ENOMEM, "ranks: no memory");
	memset(tp->fd, -1, sizeof(tp->fd));
	tp->timeout_ms = timeout_ms ? timeout_ms : CAIRN_COMM_TIMEOUT_MS;
	tp->stop_fd = -1;
	atomic_init(&tp->lost, -1);
	tp->ranks = 1;
	for (int32_t r = 1; r < ranks && !ret && !tp->rank; r++) {
		ret = fork_one(tp, r);
		tp->ranks += !ret;
	}
	if (ret) {
		cairn_tp_close(tp);
		return ret;
	}
	tp->ranks = ranks;
	*out = tp;
	return 0;
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

static void *watch(void *arg)
{
	struct cairn_tp *tp = arg;
	struct pollfd p[MAX + 1];

	for (int32_t r = 0; r < MAX; r++)
		p[r] = (struct pollfd){ .fd = tp->fd[r], .events = POLLRDHUP };
	p[MAX] = (struct pollfd){ .fd = tp->stop_fd, .events = POLLIN };
	while (poll(p, MAX + 1, -1) < 0 && errno == EINTR)
		;
	for (int32_t r = 0; r < MAX && !p[MAX].revents; r++) {
		if (!p[r].revents)
			continue;
		atomic_store(&tp->lost, r);
		tp_table.base.comm_abort(&tp_table.comm);
		for (int32_t i = 0; i < MAX; i++)
			shutdown(tp->fd[i], SHUT_WR);	/* fd -1: fails */
		break;
	}
	return NULL;
}

static int start_watcher(struct cairn_tp *tp)
{
	sigset_t all, old;
	int ret;

	tp->stop_fd = eventfd(0, EFD_CLOEXEC);
	if (tp->stop_fd < 0)
		return cairn_error(errno, "ranks: no eventfd: %s", strerror(errno));
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

/* ---- the table ---- */

static int exchange(void *arg, const void *mine, void *all, size_t bytes)
{
	const int64_t ms = CAIRN_TP_START_S * 1000;
	struct cairn_tp *tp = arg;
	char *to = all;

	if (tp->rank) {
		CAIRN_TRY(tp_send(tp, 0, EXCHANGE, mine, bytes));
		return tp_receive(tp, 0, EXCHANGE, all, (size_t)tp->ranks * bytes, ms);
	}
	memcpy(to, mine, bytes);
	for (int32_t r = 1; r < tp->ranks; r++)
		CAIRN_TRY(tp_receive(tp, r, EXCHANGE, to + (size_t)r * bytes, bytes, ms));
	return tp_send_to_all(tp, EXCHANGE, all, (size_t)tp->ranks * bytes);
}

/* all_reduce_norm with the communicator of this process, and with errors that name pass and rank. */
static int sum_norm(const struct cairn_all_reduce_norm_args *args, void *stream)
{
	struct cairn_all_reduce_norm_args a = *args;

	a.comm = tp_table.comm;
	return tp_explain(tp_table.tp, tp_table.base.all_reduce_norm(&a, stream), tp_table.tp->passes,
			  "all_reduce_norm");
}

int cairn_tp_table(struct cairn_tp *tp, struct cairn_impl *impl)
{
	const struct cairn_comm_args a = { .size = sizeof(a), .exchange = exchange, .arg = tp,
					   .rank = tp->rank, .ranks = tp->ranks,
					   .timeout_ms = tp->timeout_ms };
	int ret;

	if (tp_table.comm.handle)
		return cairn_error(EINVAL, "ranks: this process has such a table already");
	if (!impl->comm_open || !impl->comm_error || !impl->comm_abort || !impl->comm_close ||
	    !impl->all_reduce_norm)
		return cairn_error(EOPNOTSUPP, "%s: the table has no all_reduce_norm", impl->name);
	ret = impl->comm_open(&a, &tp_table.comm);
	if (ret)
		return cairn_table_error(impl, ret, "comm_open");
	tp_table.base = *impl;
	tp_table.tp = tp;
	impl->all_reduce_norm = sum_norm;
	return start_watcher(tp);
}

int tp_check_comm(struct cairn_tp *tp)
{
	return !tp_table.comm.handle ? 0 :
	       tp_explain(tp, tp_table.base.comm_error(&tp_table.comm), tp->collected, "all_reduce_norm");
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
	if (!tp->rank && !tp->failed)
		tp->failed = end_all(tp) != 0;
	for (int32_t r = 1; r < tp->ranks; r++) {
		if (tp->pid[r] > 0)
			end(tp, r);
	}
	for (int32_t r = 0; r < MAX; r++) {
		if (tp->fd[r] >= 0)
			close(tp->fd[r]);
	}
	if (tp_table.comm.handle)
		tp_table.base.comm_close(&tp_table.comm);
	tp_table.tp = NULL;
	cairn_plan_out_free(&tp->plan);
	free(tp);
}
