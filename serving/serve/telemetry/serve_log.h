/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serve_log - writes lines to a descriptor without ever blocking the threads that print them
 *
 * Standard error may be a full pipe that nobody reads, or a terminal that is stopped with ^S. Then write()
 * blocks, and O_NONBLOCK is no remedy, because it would also apply to every other process that shares the
 * descriptor. So only a thread of the log writes, and that thread may block. It takes its lines from a
 * bounded buffer. When the buffer is full, new lines are dropped and counted; once the descriptor accepts
 * lines again, a line in the log says how many were dropped.
 *
 * The worker's standard output and standard error are a pipe to the front, which passes the lines on to its
 * log.
 *
 * Threads: all functions but open and close may be called from any thread, but not from signal handlers.
 */
#ifndef CAIRN_SERVE_LOG_H
#define CAIRN_SERVE_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SERVE_LOG_ROOM	(256u << 10)	/* bytes that may wait, in addition to those being written */
#define SERVE_LOG_LINE	2048		/* longer lines are shortened */

struct serve_log;

/* The caller keeps fd, which must stay open until serve_log_close() returns. 0, -ENOMEM or -EIO. */
int serve_log_open(int fd, struct serve_log **out);
/* Adds one line; fmt does not end with a line feed. Does nothing if log is NULL. */
void serve_log_print(struct serve_log *log, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Number of lines dropped so far, including those that could not be written. */
uint64_t serve_log_lost(const struct serve_log *log);
/*
 * Writes the waiting lines, for at most ms. If the log's thread is still blocked then, it is abandoned with
 * its memory; it ends with the process, or when the descriptor accepts its lines. NULL is legal.
 */
void serve_log_close(struct serve_log *log, int ms);

/* The front's end of the pipe that a worker writes to. */
struct serve_log_pipe {
	int fd;				/* non-blocking; -1: none */
	size_t num;
	char text[SERVE_LOG_LINE / 2];	/* [num] an incomplete line */
};

/* Passes on whole lines that have arrived; at the end of the pipe, also passes on the rest and closes fd. */
void serve_log_relay(struct serve_log *log, struct serve_log_pipe *pipe);
/* Passes on what has arrived and closes fd. */
void serve_log_end_relay(struct serve_log *log, struct serve_log_pipe *pipe);

#endif
