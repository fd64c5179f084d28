// SPDX-License-Identifier: Apache-2.0
/* ranks_message - messages between ranks, and the text of their errors */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "serving/ranks/ranks_impl.h"

#define REAP_MS		200	/* a process whose sockets have closed is about to end */
#define WATCHER_MS	1000	/* several looks of a watcher */

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

static int lost(struct cairn_tp *tp, int32_t r);

/* ---- channels ---- */

static int ms_until(int64_t deadline)
{
	int64_t left = (deadline - cairn_clock_ns()) / 1000000;

	return left < 0 ? 0 : left >= INT32_MAX ? INT32_MAX : (int)left + 1;
}

/* Returns the error of a channel, with the rank's number. */
static int channel_failed(struct cairn_tp *tp, int32_t r, int ret)
{
	char why[192];

	if (ret == -ECONNRESET)
		return tp_ended(tp, r);
	if (ret == -ETIMEDOUT)
		return cairn_error(ETIMEDOUT, "rank %d does not answer", r);
	snprintf(why, sizeof(why), "%s", cairn_last_error());
	return cairn_error(-ret, "rank %d: %s", r, why);
}

static int channel_send(struct cairn_tp *tp, int32_t r, const char *at, size_t len, int64_t deadline)
{
	for (size_t n; len; at += n, len -= n) {
		int ret;

		n = len < CAIRN_CHANNEL_MAX ? len : CAIRN_CHANNEL_MAX;
		ret = cairn_channel_send(tp->channel[r], 1, at, n, ms_until(deadline));
		if (ret)
			return ret == -ECONNRESET ? lost(tp, r) : channel_failed(tp, r, ret);
	}
	return 0;
}

/* Receives a message of the channel. Its bytes are copied: they are valid until the next call only. */
static int refill(struct cairn_tp *tp, int32_t r, int64_t deadline)
{
	struct rest *rest = &tp->rest[r];
	struct cairn_channel_message m;
	unsigned char *grown;
	int ret = cairn_channel_receive(tp->channel[r], &m, ms_until(deadline));

	if (ret)
		return channel_failed(tp, r, ret);
	if (m.num_bytes > rest->room) {
		grown = realloc(rest->bytes, m.num_bytes);
		if (!grown)
			return cairn_error(ENOMEM, "ranks: no memory");
		rest->bytes = grown;
		rest->room = m.num_bytes;
	}
	if (m.num_bytes)
		memcpy(rest->bytes, m.data, m.num_bytes);
	rest->at = 0;
	rest->len = m.num_bytes;
	return 0;
}

static int channel_receive(struct cairn_tp *tp, int32_t r, char *to, size_t len, int64_t deadline)
{
	struct rest *rest = &tp->rest[r];

	while (len) {
		size_t n = rest->len - rest->at < len ? rest->len - rest->at : len;

		if (!n) {
			CAIRN_TRY(refill(tp, r, deadline));
			continue;
		}
		memcpy(to, rest->bytes + rest->at, n);
		rest->at += n;
		to += n;
		len -= n;
	}
	return 0;
}

/* ---- messages ---- */

static int send_all(struct cairn_tp *tp, int32_t r, const void *bytes, size_t len, int64_t deadline)
{
	const char *at = bytes;

	if (tp->channel[r])
		return channel_send(tp, r, at, len, deadline);
	while (len) {
		ssize_t n = send(tp->fd[r], at, len, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0 && errno != EAGAIN && errno != EINTR)
			return lost(tp, r);
		if (n < 0) {
			CAIRN_TRY(await(tp->fd[r], POLLOUT, deadline, r));
			continue;
		}
		at += n;
		len -= (size_t)n;
	}
	return 0;
}

int tp_receive_bytes(struct cairn_tp *tp, int32_t r, void *bytes, size_t len, int64_t deadline)
{
	char *at = bytes;

	if (tp->channel[r])
		return channel_receive(tp, r, at, len, deadline);
	while (len) {
		ssize_t n = recv(tp->fd[r], at, len, MSG_DONTWAIT);

		if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
			return tp_ended(tp, r);
		if (n < 0) {
			CAIRN_TRY(await(tp->fd[r], POLLIN, deadline, r));
			continue;
		}
		at += n;
		len -= (size_t)n;
	}
	return 0;
}

int tp_send(struct cairn_tp *tp, int32_t r, enum kind kind, const void *bytes, size_t len)
{
	const struct frame f = { kind, (uint32_t)len };
	/* a rank reads nothing while it computes a pass */
	int64_t deadline = tp_deadline(2 * tp->timeout_ms);

	CAIRN_TRY(send_all(tp, r, &f, sizeof(f), deadline));
	return send_all(tp, r, bytes, len, deadline);
}

int tp_send_to_all(struct cairn_tp *tp, enum kind kind, const void *bytes, size_t len)
{
	for (int32_t r = 1; r < tp->ranks; r++)
		CAIRN_TRY(tp_send(tp, r, kind, bytes, len));
	return 0;
}

/* Makes the text that a rank has sent the last error. Control characters would break the log. */
static int take_failure(struct cairn_tp *tp, int32_t r, size_t len, int64_t deadline)
{
	char text[TEXT + 1];

	if (len > TEXT)
		return cairn_error(EINVAL, "rank %d: failed, with a text of %zu bytes", r, len);
	CAIRN_TRY(tp_receive_bytes(tp, r, text, len, deadline));
	text[len] = 0;
	for (size_t i = 0; i < len; i++)
		if ((unsigned char)text[i] < 32)
			text[i] = '?';
	tp->told = 1;
	return cairn_error(EIO, "rank %d has failed: %s", r, text);
}

int tp_receive_frame(struct cairn_tp *tp, int32_t r, struct frame *f, int64_t deadline)
{
	CAIRN_TRY(tp_receive_bytes(tp, r, f, sizeof(*f), deadline));
	return f->kind == FAILED ? take_failure(tp, r, f->len, deadline) : 0;
}

int tp_receive(struct cairn_tp *tp, int32_t r, enum kind kind, void *bytes, size_t len, int64_t ms)
{
	int64_t deadline = tp_deadline(ms);
	struct frame f;

	CAIRN_TRY(tp_receive_frame(tp, r, &f, deadline));
	if (f.kind == END && kind != END)	/* rank 0 has failed, and says why itself */
		return cairn_error(ECONNRESET, "rank %d has ended", r);
	if (f.kind != (uint32_t)kind || f.len != len)
		return cairn_error(EINVAL, "rank %d: sent %u bytes of kind %u, want %zu of kind %d", r, f.len,
				   f.kind, len, (int)kind);
	return tp_receive_bytes(tp, r, bytes, len, deadline);
}

/* ---- errors ---- */

/* Waits a moment for the process of a rank whose socket has closed. Returns whether its status is known. */
static int reap(struct cairn_tp *tp, int32_t r)
{
	const int64_t deadline = tp_deadline(REAP_MS);

	while (tp->pid[r] > 0) {
		pid_t done = waitpid(tp->pid[r], &tp->status[r], WNOHANG);

		if (done == tp->pid[r]) {
			tp->pid[r] = 0;
			tp->reaped[r] = 1;
		} else if (done < 0 || cairn_clock_ns() > deadline) {
			break;
		} else {
			usleep(1000);
		}
	}
	return tp->reaped[r];
}

int tp_ended(struct cairn_tp *tp, int32_t r)
{
	if (atomic_load(&tp->lost) == r && atomic_load(&tp->stopped))
		return cairn_error(ETIMEDOUT, "rank %d has been stopped", r);
	if (!reap(tp, r))
		return cairn_error(ECONNRESET, "rank %d has ended", r);
	if (WIFSIGNALED(tp->status[r]))
		return cairn_error(ECONNRESET, "rank %d has ended: signal %d (%s)", r,
				   WTERMSIG(tp->status[r]), strsignal(WTERMSIG(tp->status[r])));
	return cairn_error(ECONNRESET, "rank %d has ended: status %d", r, WEXITSTATUS(tp->status[r]));
}

/* Returns the error of a rank that has ended: the reason that it has sent, or how it ended. */
static int lost(struct cairn_tp *tp, int32_t r)
{
	char rest[4096];
	struct frame f;

	for (;;) {
		CAIRN_TRY(tp_receive_frame(tp, r, &f, tp_deadline(REAP_MS)));
		while (f.len) {		/* drops an answer that is no longer awaited */
			size_t n = f.len < sizeof(rest) ? f.len : sizeof(rest);

			CAIRN_TRY(tp_receive_bytes(tp, r, rest, n, tp_deadline(REAP_MS)));
			f.len -= (uint32_t)n;
		}
	}
}

/* Waits, after another rank has aborted the communicator, until the watcher of this one has seen why. */
static void await_watcher(struct cairn_tp *tp)
{
	const int64_t deadline = tp_deadline(WATCHER_MS);

	while (tp->watches && atomic_load(&tp->lost) < 0 && cairn_clock_ns() < deadline)
		usleep(1000);
}

int tp_explain(struct cairn_tp *tp, int ret, uint64_t pass, const char *op)
{
	char why[TEXT], at[32] = "";
	int32_t r;

	if (!ret)
		return 0;
	if (ret == -ECANCELED && !tp->failed)
		await_watcher(tp);
	r = atomic_load(&tp->lost);
	if (!tp->failed && !tp->told && r >= 0)
		ret = lost(tp, r);
	if (tp->failed)
		return ret;		/* the text is complete */
	tp->failed = 1;
	snprintf(why, sizeof(why), "%s", cairn_last_error());
	if (pass)
		snprintf(at, sizeof(at), "pass %llu: ", (unsigned long long)pass);
	return cairn_error(-ret, "%s%s%s%s", at, strstr(why, op) ? "" : op, strstr(why, op) ? "" : ": ", why);
}
