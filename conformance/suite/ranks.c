// SPDX-License-Identifier: Apache-2.0
/*
 * ranks - the processes of the ranks, as the judging process sees them
 *
 * They are forked before the judging process calls any table, because a process cannot use a device that its
 * parent has used. They serve cases until one of them dies, or fails a case; then all are replaced. A byte on
 * a socket starts a case, and another one tells that it has ended. All else is in shared memory.
 */
#include "conformance/suite/ranks.h"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "conformance/device/turn.h"
#include "conformance/suite/threads.h"

#define MAX		CAIRN_COMM_MAX_RANKS
#define CASE_S		200	/* a case that takes longer has hung */
#define EXCHANGE_S	30
#define HELD_CPU_S	250e-6	/* a rank that has computed that long without a call waits for this one */
#define HELD_S		0.04	/* without calls, a hold lasts that long for ranks that sleep as they wait */

struct shared {
	struct cairn_ranks_work work;
	/* A rank's latest two messages: it may be one exchange ahead of a slow rank, never two. */
	struct {
		_Alignas(64) _Atomic uint32_t turn;
		uint8_t bytes[2][CAIRN_COMM_EXCHANGE];
		_Atomic uint32_t calls;		/* that have returned */
		_Atomic int32_t pid;
	} box[MAX];
	struct cairn_outcome outcome[MAX];
};

static struct shared *shared;
static struct {
	pid_t pid;
	int fd;
} ranks[MAX];
static int running;			/* number of processes */
static int32_t inside_rank = -1;	/* in a rank: its number */

static double now_s(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

int cairn_ranks_inside(void)
{
	return inside_rank >= 0;
}

int cairn_ranks_exchange(void *arg, const void *mine, void *all, size_t bytes)
{
	uint32_t turn = atomic_load(&shared->box[inside_rank].turn) + 1;
	double until = now_s() + EXCHANGE_S;

	(void)arg;
	if (bytes > CAIRN_COMM_EXCHANGE)
		return cairn_error(EINVAL, "exchange: %zu bytes", bytes);
	memcpy(shared->box[inside_rank].bytes[turn & 1], mine, bytes);
	atomic_store(&shared->box[inside_rank].turn, turn);
	for (int32_t r = 0; r < shared->work.ranks; r++) {
		for (int n = 0; atomic_load(&shared->box[r].turn) < turn; n++) {
			if (n < 200)
				sched_yield();
			else
				usleep(50);
			if (now_s() > until)
				return cairn_error(ETIMEDOUT, "exchange: rank %d does not answer", r);
		}
		memcpy((uint8_t *)all + (size_t)r * bytes, shared->box[r].bytes[turn & 1], bytes);
	}
	return 0;
}

void cairn_ranks_count_from_0(void)
{
	atomic_store(&shared->box[inside_rank].calls, 0);
}

void cairn_ranks_count_call(void)
{
	atomic_fetch_add(&shared->box[inside_rank].calls, 1);
}

/* Returns the processor time of another rank, or 0 if it cannot be known. */
static double cpu_s(int32_t r)
{
	struct timespec ts;
	clockid_t clock;

	if (clock_getcpuclockid(atomic_load(&shared->box[r].pid), &clock) || clock_gettime(clock, &ts))
		return 0;
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

/* Returns the number of calls that the other ranks have made, and stores the processor time of each. */
static uint32_t look_at_others(double *cpu)
{
	uint32_t calls = 0;

	for (int32_t r = 0; r < shared->work.ranks; r++) {
		cpu[r] = cpu_s(r);
		if (r != inside_rank)
			calls += atomic_load(&shared->box[r].calls);
	}
	return calls;
}

void cairn_ranks_hold(uint32_t calls)
{
	double then[MAX], now[MAX], until = now_s() + HELD_S;
	uint32_t before = look_at_others(then);

	while (now_s() < until) {
		uint32_t made;
		int busy = 0;

		usleep(100);
		made = look_at_others(now);
		if (made != before) {
			before = look_at_others(then);
			until = now_s() + HELD_S;
			continue;
		}
		for (int32_t r = 0; r < shared->work.ranks; r++)
			busy |= r != inside_rank && atomic_load(&shared->box[r].calls) < calls &&
				now[r] - then[r] < HELD_CPU_S;
		if (!busy)
			return;
	}
}

static void serve(int32_t rank, int fd)
{
	char byte;

	inside_rank = rank;
	atomic_store(&shared->box[rank].pid, getpid());
	cairn_set_threads(1);
	cairn_turn_share(NULL, 0, NULL);	/* the judging process takes the turn for all ranks */
	while (read(fd, &byte, 1) == 1) {
		const struct cairn_ranks_work work = shared->work;

		cairn_ranks_run(&work, rank, &shared->outcome[rank]);
		if (write(fd, &byte, 1) != 1)
			break;
	}
	_exit(0);
}

static void stop(void)
{
	for (int32_t r = 0; r < running; r++) {
		close(ranks[r].fd);
		if (!ranks[r].pid)	/* has been waited for */
			continue;
		kill(ranks[r].pid, SIGKILL);
		waitpid(ranks[r].pid, NULL, 0);
	}
	running = 0;
}

static int start_one(int32_t r)
{
	pid_t self = getpid();
	int fds[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds))
		return cairn_error(errno, "no socket for a rank: %s", strerror(errno));
	ranks[r].pid = fork();
	if (ranks[r].pid < 0) {
		close(fds[0]);
		close(fds[1]);
		return cairn_error(errno, "no process for a rank: %s", strerror(errno));
	}
	if (ranks[r].pid == 0) {
		close(fds[0]);
		for (int32_t i = 0; i < r; i++)
			close(ranks[i].fd);
		if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != self)
			_exit(1);
		serve(r, fds[1]);
	}
	close(fds[1]);
	ranks[r].fd = fds[0];
	running = r + 1;
	return 0;
}

static int start(int32_t num)
{
	if (!shared) {
		shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
			      0);
		if (shared == MAP_FAILED) {
			shared = NULL;
			return cairn_error(ENOMEM, "no memory for ranks");
		}
	}
	for (int32_t r = running; r < num; r++)
		CAIRN_TRY(start_one(r));
	return 0;
}

/* Describes how a rank has ended. */
static void say_death(int32_t r, struct cairn_outcome *o)
{
	int status = 0;

	kill(ranks[r].pid, SIGKILL);
	waitpid(ranks[r].pid, &status, 0);
	if (WIFSIGNALED(status))
		cairn_say(o, "rank %d: CRASH: signal %d (%s)\n", r, WTERMSIG(status),
			  strsignal(WTERMSIG(status)));
	else
		cairn_say(o, "rank %d: EXIT with status %d\n", r, WEXITSTATUS(status));
	ranks[r].pid = 0;
}

/* Waits until rank r has ended its part of the case. Returns 1, or 0 if it died or hangs. */
static int await(int32_t r, double until, struct cairn_outcome *o)
{
	struct pollfd p = { .fd = ranks[r].fd, .events = POLLIN };
	double left = until - now_s();
	char byte;

	if (poll(&p, 1, left > 0 ? (int)(left * 1000) + 1 : 0) > 0 && read(ranks[r].fd, &byte, 1) == 1)
		return 1;
	o->verdict = CAIRN_FAIL;
	if (p.revents)
		say_death(r, o);
	else
		cairn_say(o, "rank %d: TIMEOUT after %d s\n", r, CASE_S);
	return 0;
}

/* Adds the outcome of rank r. Other ranks' texts are mostly equal, so only the first is printed whole. */
static void add(struct cairn_outcome *o, int32_t r, const struct cairn_outcome *its)
{
	if (its->verdict == CAIRN_SKIP && o->verdict != CAIRN_FAIL) {
		/* only the rank that cannot take part has a text; the others skip because it does */
		o->verdict = CAIRN_SKIP;
		o->exempt |= its->exempt;
		if (!o->text[0])
			cairn_say(o, "%s", its->text);
	} else if (its->verdict == CAIRN_FAIL || its->verdict == CAIRN_LOST) {
		if (o->verdict == CAIRN_SKIP)
			o->text[0] = 0;
		o->verdict = CAIRN_FAIL;
		if (its->text[0] && strlen(o->text) < sizeof(o->text) / 2)
			cairn_say(o, "rank %d: %.1500s", r, its->text);
	}
	o->err_over_bound = its->err_over_bound > o->err_over_bound ? its->err_over_bound : o->err_over_bound;
	o->judged += its->judged;
}

static void run_ranks(const struct cairn_ranks_work *w, struct cairn_outcome *o)
{
	int32_t dies = w->trouble == CAIRN_TROUBLE_KILLED ? w->ranks - 1 : -1, done = 0;
	double until = now_s() + CASE_S;

	if (start(w->ranks)) {
		o->verdict = CAIRN_FAIL;
		cairn_say(o, "%s\n", cairn_last_error());
		return;
	}
	shared->work = *w;
	for (int32_t r = 0; r < w->ranks; r++) {
		atomic_store(&shared->box[r].turn, 0);
		cairn_start_outcome(&shared->outcome[r]);
	}
	for (int32_t r = 0; r < w->ranks; r++)
		if (write(ranks[r].fd, "g", 1) != 1)
			o->verdict = CAIRN_FAIL;
	/* a rank that is to be killed leaves no outcome of its own, unless it could not take part */
	while (done < w->ranks && o->verdict != CAIRN_FAIL && (done == dies || await(done, until, o)))
		done++;
	for (int32_t r = 0; r < done; r++)
		add(o, r, &shared->outcome[r]);
	/* no rank dies in a case that is skipped, and the last one may be why it is */
	if (dies >= 0 && o->verdict == CAIRN_SKIP && await(dies, until, o))
		add(o, dies, &shared->outcome[dies]);
	if (o->verdict == CAIRN_FAIL && !o->text[0])
		cairn_say(o, "the ranks disagree\n");
	if (o->verdict == CAIRN_FAIL || dies >= 0)
		stop();
}

static void run(const struct cairn_ranks_work *w, struct cairn_outcome *o)
{
	cairn_start_outcome(o);
	cairn_turn_take(&w->impl);
	run_ranks(w, o);
	cairn_turn_end();
}

void cairn_ranks_verify(const struct cairn_family *f, const struct cairn_op *op,
			const struct cairn_impl *impl, struct cairn_outcome *o)
{
	struct cairn_ranks_work w = { .impl = *impl, .f = f, .case_index = op->case_index, .kind = op->kind,
				      .seed = op->seed, .ranks = f->ranks(op->case_index) };

	if (f->trouble)
		w.trouble = f->trouble(op->case_index);
	run(&w, o);
}

void cairn_ranks_reject(const struct cairn_family *f, int i, const struct cairn_impl *impl, uint64_t seed,
			struct cairn_outcome *o)
{
	struct cairn_ranks_work w = { .impl = *impl, .f = f, .case_index = i, .is_reject = 1,
				      .kind = CAIRN_KIND_NORMAL, .seed = seed, .ranks = 2 };

	run(&w, o);
}
