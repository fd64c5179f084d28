// SPDX-License-Identifier: Apache-2.0
/*
 * ranks - the processes of tensor parallelism, and the messages between them
 *
 * A message is a frame (kind, length) and its bytes. Rank 0 sends OPTIONS once, and PLAN and COLLECT as the
 * engine launches and collects passes; a rank answers OPTIONS with READY and COLLECT with TOKENS. Before
 * that, EXCHANGE gathers bytes for comm_open(), through rank 0.
 */
#include "serving/ranks/ranks.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "primitives/base/error.h"
#include "serving/base/clock.h"
#include "serving/ranks/plan.h"

#define MAX	CAIRN_COMM_MAX_RANKS

enum kind { EXCHANGE = 1, OPTIONS, READY, PLAN, COLLECT, TOKENS };

struct frame {
	uint32_t kind, len;
};

/* The options of a worker that travel. */
struct options {
	int32_t max_batch, max_rows, max_context, num_pages, page_size, repeatable, no_graphs;
};

/* Precedes the tokens of a pass. */
struct drawn {
	uint64_t step;
	int32_t num, unused;
};

struct cairn_tp {
	int32_t rank, ranks;
	int fd[MAX];			/* rank 0: to rank r; else fd[0]: to rank 0 */
	pid_t pid[MAX];
	struct cairn_worker_tap tap;
	struct cairn_plan_out plan;
	uint64_t launched, collected;
	struct cairn_worker *worker;	/* of a rank that follows */
};

/* ---- bytes ---- */

static int64_t deadline_in(int seconds)
{
	return cairn_clock_ns() + (int64_t)seconds * 1000000000;
}

/* Waits until the socket can be read (POLLIN) or written (POLLOUT). */
static int await(int fd, short events, int64_t deadline, int32_t peer)
{
	struct pollfd p = { .fd = fd, .events = events };
	int64_t left = deadline - cairn_clock_ns();
	int n = left > 0 ? poll(&p, 1, (int)(left / 1000000) + 1) : 0;

	if (n > 0 || (n < 0 && errno == EINTR))
		return 0;
	return n < 0 ? cairn_error(errno, "rank %d: %s", peer, strerror(errno)) :
	       cairn_error(ETIMEDOUT, "rank %d does not answer", peer);
}

static int ended(int32_t peer)
{
	return cairn_error(ECONNRESET, "rank %d has ended", peer);
}

static int send_all(int fd, const void *bytes, size_t len, int64_t deadline, int32_t peer)
{
	const char *at = bytes;

	while (len) {
		ssize_t n = send(fd, at, len, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0 && errno != EAGAIN && errno != EINTR)
			return ended(peer);
		if (n < 0) {
			CAIRN_TRY(await(fd, POLLOUT, deadline, peer));
			continue;
		}
		at += n;
		len -= (size_t)n;
	}
	return 0;
}

static int receive_all(int fd, void *bytes, size_t len, int64_t deadline, int32_t peer)
{
	char *at = bytes;

	while (len) {
		ssize_t n = recv(fd, at, len, MSG_DONTWAIT);

		if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
			return ended(peer);
		if (n < 0) {
			CAIRN_TRY(await(fd, POLLIN, deadline, peer));
			continue;
		}
		at += n;
		len -= (size_t)n;
	}
	return 0;
}

static int send_message(int fd, enum kind kind, const void *bytes, size_t len, int32_t peer)
{
	const struct frame f = { kind, (uint32_t)len };
	int64_t deadline = deadline_in(CAIRN_TP_PASS_S);

	CAIRN_TRY(send_all(fd, &f, sizeof(f), deadline, peer));
	return send_all(fd, bytes, len, deadline, peer);
}

/* Receives a message of this kind and exactly this length. */
static int receive_message(int fd, enum kind kind, void *bytes, size_t len, int seconds, int32_t peer)
{
	int64_t deadline = deadline_in(seconds);
	struct frame f;

	CAIRN_TRY(receive_all(fd, &f, sizeof(f), deadline, peer));
	if (f.kind != (uint32_t)kind || f.len != len)
		return cairn_error(EINVAL, "rank %d: sent %u bytes of kind %u, want %zu of kind %d", peer,
				   f.len, f.kind, len, (int)kind);
	return receive_all(fd, bytes, len, deadline, peer);
}

static int send_to_all(struct cairn_tp *tp, enum kind kind, const void *bytes, size_t len)
{
	for (int32_t r = 1; r < tp->ranks; r++)
		CAIRN_TRY(send_message(tp->fd[r], kind, bytes, len, r));
	return 0;
}

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
	for (int32_t i = 1; i < r; i++)
		close(tp->fd[i]);
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != self)
		_exit(1);
	tp->rank = r;
	tp->fd[0] = fds[1];
	return 0;
}

int cairn_tp_fork(struct cairn_tp **out, int32_t ranks, int32_t *rank)
{
	struct cairn_tp *tp;
	int ret = 0;

	if (ranks < 1 || ranks > MAX)
		return cairn_error(EINVAL, "ranks: %d, must be 1 to %d", ranks, MAX);
	tp = calloc(1, sizeof(*tp));
	if (!tp)
		return cairn_error(ENOMEM, "ranks: no memory");
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
	*rank = tp->rank;
	*out = tp;
	return 0;
}

/* ---- the table ---- */

static struct {
	struct cairn_impl base;
	struct cairn_comm comm;
} table;

static int exchange(void *arg, const void *mine, void *all, size_t bytes)
{
	struct cairn_tp *tp = arg;
	char *to = all;

	if (tp->rank) {
		CAIRN_TRY(send_message(tp->fd[0], EXCHANGE, mine, bytes, 0));
		return receive_message(tp->fd[0], EXCHANGE, all, (size_t)tp->ranks * bytes,
				       CAIRN_TP_START_S, 0);
	}
	memcpy(to, mine, bytes);
	for (int32_t r = 1; r < tp->ranks; r++)
		CAIRN_TRY(receive_message(tp->fd[r], EXCHANGE, to + (size_t)r * bytes, bytes,
					  CAIRN_TP_START_S, r));
	return send_to_all(tp, EXCHANGE, all, (size_t)tp->ranks * bytes);
}

/* The norm that adds a half layer's output to the residual stream. The output is this rank's partial sum. */
static int norm(const struct cairn_rmsnorm_args *a, void *stream)
{
	const struct cairn_all_reduce_norm_args sum = {
		.size = sizeof(sum), .out = a->out, .residual = a->residual, .x = a->x, .weight = a->weight,
		.comm = table.comm, .rows = a->rows, .dim = a->dim, .dtype = a->dtype, .eps = a->eps,
		.weight_offset = a->weight_offset,
	};

	return a->residual ? table.base.all_reduce_norm(&sum, stream) : table.base.rmsnorm(a, stream);
}

int cairn_tp_table(struct cairn_tp *tp, struct cairn_impl *impl)
{
	const struct cairn_comm_args a = { .size = sizeof(a), .exchange = exchange, .arg = tp,
					   .rank = tp->rank, .ranks = tp->ranks };
	int ret;

	if (table.comm.handle)
		return cairn_error(EINVAL, "ranks: this process has such a table already");
	if (!impl->comm_open || !impl->all_reduce_norm || !impl->rmsnorm)
		return cairn_error(EOPNOTSUPP, "%s: the table has no all_reduce_norm", impl->name);
	ret = impl->comm_open(&a, &table.comm);
	if (ret)
		return cairn_table_error(impl, ret, "comm_open");
	table.base = *impl;
	impl->rmsnorm = norm;
	/* these would need the whole model, or pages that move alike on all ranks */
	impl->decode_step = NULL;
	impl->decode_step_workspace = NULL;
	impl->moe = NULL;
	impl->kv_move = NULL;
	return 0;
}

/* Waits for a rank that should end, and kills it if it does not. */
static void reap(pid_t pid)
{
	const int64_t deadline = deadline_in(CAIRN_TP_END_S);
	pid_t done;

	while (!(done = waitpid(pid, NULL, WNOHANG)) && cairn_clock_ns() < deadline)
		usleep(1000);
	if (done)
		return;
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

void cairn_tp_close(struct cairn_tp *tp)
{
	if (!tp)
		return;
	for (int32_t r = tp->rank ? 0 : 1; r < (tp->rank ? 1 : tp->ranks); r++)
		close(tp->fd[r]);
	for (int32_t r = 1; r < tp->ranks && !tp->rank; r++)
		reap(tp->pid[r]);
	if (table.comm.handle)
		table.base.comm_close(&table.comm);
	cairn_plan_free(&tp->plan);
	free(tp);
}

/* ---- rank 0 ---- */

static int tap_create(void *ctx, const struct cairn_worker_options *o)
{
	const struct options options = { o->max_batch, o->max_rows, o->max_context, o->num_pages,
					 o->page_size, o->repeatable, o->no_graphs };
	struct cairn_tp *tp = ctx;

	CAIRN_TRY(send_to_all(tp, OPTIONS, &options, sizeof(options)));
	for (int32_t r = 1; r < tp->ranks; r++)
		CAIRN_TRY(receive_message(tp->fd[r], READY, NULL, 0, CAIRN_TP_START_S, r));
	return 0;
}

static void tap_begin(void *ctx)
{
	struct cairn_tp *tp = ctx;

	cairn_plan_begin(&tp->plan, tp->launched + 1);
}

static void tap_add(void *ctx, const struct cairn_worker_part *part)
{
	cairn_plan_add(&((struct cairn_tp *)ctx)->plan, part);
}

static int tap_launch(void *ctx)
{
	struct cairn_tp *tp = ctx;

	tp->launched++;
	CAIRN_TRY(cairn_plan_finish(&tp->plan));
	return send_to_all(tp, PLAN, tp->plan.bytes, tp->plan.len);
}

static int compare(struct cairn_tp *tp, int32_t r, const struct cairn_worker_result *result)
{
	const size_t bytes = (size_t)result->num_tokens * sizeof(*result->tokens);
	struct { struct drawn d; int32_t tokens[]; } *theirs = malloc(sizeof(struct drawn) + bytes);
	int ret = theirs ? receive_message(tp->fd[r], TOKENS, theirs, sizeof(struct drawn) + bytes,
					   CAIRN_TP_PASS_S, r) :
		  cairn_error(ENOMEM, "ranks: no memory");

	if (!ret && (theirs->d.step != tp->collected || theirs->d.num != result->num_tokens))
		ret = cairn_error(EIO, "rank %d made pass %llu, rank 0 pass %llu", r,
				  (unsigned long long)theirs->d.step, (unsigned long long)tp->collected);
	for (int32_t i = 0; i < result->num_tokens && !ret; i++)
		if (theirs->tokens[i] != result->tokens[i])
			ret = cairn_error(EIO, "rank %d drew %d, rank 0 drew %d", r, theirs->tokens[i],
					  result->tokens[i]);
	free(theirs);
	return ret;
}

static int tap_collect(void *ctx, const struct cairn_worker_result *result)
{
	struct cairn_tp *tp = ctx;

	tp->collected++;
	CAIRN_TRY(send_to_all(tp, COLLECT, NULL, 0));
	for (int32_t r = 1; r < tp->ranks; r++)
		CAIRN_TRY(compare(tp, r, result));
	return 0;
}

const struct cairn_worker_tap *cairn_tp_tap(struct cairn_tp *tp)
{
	tp->tap = (struct cairn_worker_tap){ tp, tap_create, tap_begin, tap_add, tap_launch, tap_collect };
	return &tp->tap;
}

/* ---- the other ranks ---- */

static void add_part(void *ctx, const struct cairn_worker_part *part)
{
	cairn_worker_add(((struct cairn_tp *)ctx)->worker, part);
}

static int launch(struct cairn_tp *tp, const unsigned char *bytes, size_t len,
		  struct cairn_plan_limits *limits)
{
	if (cairn_worker_in_flight(tp->worker) == CAIRN_WORKER_FLIGHTS)
		return cairn_error(EINVAL, "rank 0 launched more passes than it collected");
	cairn_worker_begin(tp->worker);
	limits->step = ++tp->launched;
	CAIRN_TRY(cairn_plan_read(bytes, len, limits, add_part, tp, &limits->num_drawn));
	return cairn_worker_launch(tp->worker);
}

static int collect(struct cairn_tp *tp)
{
	struct cairn_worker_result result;
	struct drawn d = { .step = tp->collected + 1 };
	struct frame f = { .kind = TOKENS };
	int64_t deadline = deadline_in(CAIRN_TP_PASS_S);
	size_t bytes;

	if (!cairn_worker_in_flight(tp->worker))
		return cairn_error(EINVAL, "rank 0 collected more passes than it launched");
	CAIRN_TRY(cairn_worker_collect(tp->worker, &result));
	tp->collected++;
	d.num = result.num_tokens;
	bytes = (size_t)d.num * sizeof(*result.tokens);
	f.len = (uint32_t)(sizeof(d) + bytes);
	CAIRN_TRY(send_all(tp->fd[0], &f, sizeof(f), deadline, 0));
	CAIRN_TRY(send_all(tp->fd[0], &d, sizeof(d), deadline, 0));
	return send_all(tp->fd[0], result.tokens, bytes, deadline, 0);
}

/* Carries out what rank 0 sends until it closes the socket. */
static int follow(struct cairn_tp *tp, struct cairn_plan_limits *limits)
{
	unsigned char *bytes = NULL, *grown;
	size_t room = 0;
	struct frame f;
	int ret = 0;

	while (!ret) {
		struct pollfd p = { .fd = tp->fd[0], .events = POLLIN };

		/* between passes rank 0 may be idle for as long as it likes */
		if (poll(&p, 1, -1) < 0 && errno == EINTR)
			continue;
		if (recv(tp->fd[0], &f, sizeof(f), MSG_PEEK | MSG_DONTWAIT) == 0)
			break;
		ret = receive_all(tp->fd[0], &f, sizeof(f), deadline_in(CAIRN_TP_PASS_S), 0);
		if (ret)
			break;
		if (f.kind == COLLECT && f.len == 0) {
			ret = collect(tp);
			continue;
		}
		if (f.kind != PLAN || f.len > CAIRN_PLAN_MAX) {
			ret = cairn_error(EINVAL, "rank 0: sent %u bytes of kind %u", f.len, f.kind);
			break;
		}
		grown = f.len > room ? realloc(bytes, f.len) : bytes;
		if (!grown) {
			ret = cairn_error(ENOMEM, "ranks: no memory for a plan");
			break;
		}
		room = f.len > room ? f.len : room;
		bytes = grown;
		ret = receive_all(tp->fd[0], bytes, f.len, deadline_in(CAIRN_TP_PASS_S), 0);
		if (!ret)
			ret = launch(tp, bytes, f.len, limits);
	}
	free(bytes);
	return ret;
}

int cairn_tp_follow(struct cairn_tp *tp, struct cairn_model *model)
{
	struct cairn_worker_options wo = { 0 };
	struct cairn_plan_limits limits;
	struct options o;
	int ret;

	CAIRN_TRY(receive_message(tp->fd[0], OPTIONS, &o, sizeof(o), CAIRN_TP_START_S, 0));
	if (o.max_batch < 1 || o.max_rows < o.max_batch || o.max_context < 1 || o.num_pages < 1 ||
	    o.page_size < 1)
		return cairn_error(EINVAL, "rank 0: sent options that no worker has");
	wo.max_batch = o.max_batch;
	wo.max_rows = o.max_rows;
	wo.max_context = o.max_context;
	wo.num_pages = o.num_pages;
	wo.page_size = o.page_size;
	wo.repeatable = o.repeatable != 0;
	wo.no_graphs = o.no_graphs != 0;
	CAIRN_TRY(cairn_worker_create(&tp->worker, model, &wo));
	limits = (struct cairn_plan_limits){ o.max_batch, o.max_rows, o.max_context, o.num_pages, o.page_size,
					     model->config.vocab_size, 0, 0 };
	ret = send_message(tp->fd[0], READY, NULL, 0, 0);
	if (!ret)
		ret = follow(tp, &limits);
	cairn_worker_destroy(tp->worker);
	tp->worker = NULL;
	return ret;
}
