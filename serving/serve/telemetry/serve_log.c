// SPDX-License-Identifier: Apache-2.0
/* serve_log - a bounded buffer of lines and the thread that writes them */
#include "serving/serve/telemetry/serve_log.h"

#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "primitives/base/error.h"

#define LOST_LINE	96	/* bytes of the line that reports dropped lines; every buffer reserves them */
#define MAX_READS	16	/* reads of a worker's pipe in one turn */

struct serve_log {
	int fd;
	pthread_t thread;
	pthread_mutex_t lock;		/* protects every member below */
	pthread_cond_t more, over;
	char *text;			/* [len] waiting lines */
	size_t len;
	uint64_t lost, told;		/* dropped lines; how many of them have been reported */
	bool closing, is_over, is_left;	/* is_left: the thread frees the log */

	char *writing;			/* the thread's own buffer, exchanged with text */
};

static void free_log(struct serve_log *log)
{
	pthread_cond_destroy(&log->over);
	pthread_cond_destroy(&log->more);
	pthread_mutex_destroy(&log->lock);
	free(log->text);
	free(log->writing);
	free(log);
}

static uint64_t count_lines(const char *s, size_t n)
{
	uint64_t num = 0;

	for (size_t i = 0; i < n; i++)
		num += s[i] == '\n';
	return num;
}

/* Returns the length of the whole lines that a pipe takes in one atomic write; at least one line. */
static size_t piece_of(const char *s, size_t n)
{
	size_t end = n < PIPE_BUF ? n : PIPE_BUF;
	const char *first;

	for (size_t k = end; k; k--) {
		if (s[k - 1] == '\n')
			return k;
	}
	first = memchr(s, '\n', n);
	return first ? (size_t)(first - s) + 1 : n;
}

/* Writes whole lines. Returns how many could not be written. May block for ever. */
static uint64_t write_lines(int fd, const char *s, size_t n)
{
	size_t piece = 0;

	while (n) {
		ssize_t k;

		piece = piece ? piece : piece_of(s, n);
		k = write(fd, s, piece);
		if (k < 0 && errno == EINTR)
			continue;
		if (k < 0 && errno == EAGAIN) {	/* another process has made it non-blocking */
			poll(&(struct pollfd){ fd, POLLOUT, 0 }, 1, 1000);
			continue;
		}
		if (k <= 0)
			return count_lines(s, n);
		s += k;
		n -= (size_t)k;
		piece -= (size_t)k;
	}
	return 0;
}

/*
 * Moves all waiting lines to log->writing and returns their length; call with the lock held. *reports:
 * whether the last line reports dropped lines.
 */
static size_t take_lines(struct serve_log *log, bool *reports)
{
	char *taken = log->text;
	size_t n = log->len;

	log->text = log->writing;
	log->writing = taken;
	log->len = 0;
	*reports = log->lost > log->told;
	if (*reports)
		n += (size_t)snprintf(taken + n, LOST_LINE, "cairn serve: %llu lines of this log were lost\n",
				      (unsigned long long)(log->lost - log->told));
	log->told = log->lost;
	return n;
}

static void *write_all(void *arg)
{
	struct serve_log *log = arg;
	bool is_left, reports;

	pthread_mutex_lock(&log->lock);
	for (;;) {
		uint64_t failed;
		size_t n;

		while (!log->len && log->lost == log->told && !log->closing)
			pthread_cond_wait(&log->more, &log->lock);
		if (!log->len && log->lost == log->told)
			break;
		n = take_lines(log, &reports);
		pthread_mutex_unlock(&log->lock);
		failed = write_lines(log->fd, log->writing, n);
		failed -= failed && reports;
		pthread_mutex_lock(&log->lock);
		log->lost += failed;
		log->told += failed;	/* a line about them would fail as well */
	}
	log->is_over = true;
	is_left = log->is_left;
	pthread_cond_signal(&log->over);
	pthread_mutex_unlock(&log->lock);
	if (is_left)
		free_log(log);
	return NULL;
}

int serve_log_open(int fd, struct serve_log **out)
{
	struct serve_log *log = calloc(1, sizeof(*log));
	pthread_condattr_t attr;
	int ret;

	if (!log)
		return cairn_error(ENOMEM, "serve: no memory for the log");
	log->fd = fd;
	pthread_mutex_init(&log->lock, NULL);
	pthread_cond_init(&log->more, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&log->over, &attr);
	pthread_condattr_destroy(&attr);
	log->text = malloc(SERVE_LOG_ROOM + LOST_LINE);
	log->writing = malloc(SERVE_LOG_ROOM + LOST_LINE);
	ret = log->text && log->writing ? 0 : cairn_error(ENOMEM, "serve: no memory for the log");
	if (!ret) {
		ret = pthread_create(&log->thread, NULL, write_all, log);
		ret = ret ? cairn_error(EIO, "serve: no thread for the log: %s", strerror(ret)) : 0;
	}
	if (ret)
		free_log(log);
	else
		*out = log;
	return ret;
}

/* Adds a line without its line feed. */
static void add(struct serve_log *log, const char *line, size_t n)
{
	pthread_mutex_lock(&log->lock);
	if (SERVE_LOG_ROOM - log->len > n) {
		memcpy(log->text + log->len, line, n);
		log->text[log->len + n] = '\n';
		log->len += n + 1;
	} else {
		log->lost++;
	}
	pthread_cond_signal(&log->more);
	pthread_mutex_unlock(&log->lock);
}

void serve_log_print(struct serve_log *log, const char *fmt, ...)
{
	char line[SERVE_LOG_LINE];
	va_list ap;
	int n;

	if (!log)
		return;
	va_start(ap, fmt);
	n = vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	add(log, line, n < 0 ? 0 : n < SERVE_LOG_LINE ? (size_t)n : SERVE_LOG_LINE - 1);
}

uint64_t serve_log_lost(const struct serve_log *log)
{
	struct serve_log *l = (struct serve_log *)log;
	uint64_t lost;

	pthread_mutex_lock(&l->lock);
	lost = l->lost;
	pthread_mutex_unlock(&l->lock);
	return lost;
}

void serve_log_close(struct serve_log *log, int ms)
{
	struct timespec end;
	bool is_over;
	int ret = 0;

	if (!log)
		return;
	clock_gettime(CLOCK_MONOTONIC, &end);
	end.tv_sec += ms / 1000 + (end.tv_nsec + ms % 1000 * 1000000l) / 1000000000;
	end.tv_nsec = (end.tv_nsec + ms % 1000 * 1000000l) % 1000000000;
	pthread_mutex_lock(&log->lock);
	log->closing = true;
	pthread_cond_signal(&log->more);
	while (!log->is_over && !ret)
		ret = pthread_cond_timedwait(&log->over, &log->lock, &end);
	is_over = log->is_over;
	log->is_left = !is_over;
	if (!is_over)
		pthread_detach(log->thread);
	pthread_mutex_unlock(&log->lock);
	if (is_over) {
		pthread_join(log->thread, NULL);
		free_log(log);
	}
}

/* Adds the whole lines read so far, and also the incomplete last one if the buffer has no room for more. */
static void cut_lines(struct serve_log *log, struct serve_log_pipe *pipe)
{
	char *line = pipe->text, *end = pipe->text + pipe->num, *feed;

	for (; (feed = memchr(line, '\n', (size_t)(end - line))); line = feed + 1)
		add(log, line, (size_t)(feed - line));
	pipe->num = (size_t)(end - line);
	memmove(pipe->text, line, pipe->num);
	if (pipe->num == sizeof(pipe->text)) {
		add(log, pipe->text, pipe->num);
		pipe->num = 0;
	}
}

void serve_log_relay(struct serve_log *log, struct serve_log_pipe *pipe)
{
	for (int i = 0; i < MAX_READS && pipe->fd >= 0; i++) {
		ssize_t n = read(pipe->fd, pipe->text + pipe->num, sizeof(pipe->text) - pipe->num);

		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		if (n > 0) {
			pipe->num += (size_t)n;
			cut_lines(log, pipe);
			continue;
		}
		if (pipe->num)
			add(log, pipe->text, pipe->num);
		pipe->num = 0;
		close(pipe->fd);
		pipe->fd = -1;
	}
}

void serve_log_end_relay(struct serve_log *log, struct serve_log_pipe *pipe)
{
	/* bounded: a child of the worker may outlive it and write to the pipe for ever */
	for (int i = 0; i < 8; i++)
		serve_log_relay(log, pipe);
	if (pipe->fd < 0)
		return;
	if (pipe->num)
		add(log, pipe->text, pipe->num);
	pipe->num = 0;
	close(pipe->fd);
	pipe->fd = -1;
}
