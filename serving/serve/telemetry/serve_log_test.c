// SPDX-License-Identifier: Apache-2.0
/* serve_log_test - logs to a pipe that is full, slow, closed or shared, and to a file */
#include <fcntl.h>
#include <signal.h>

#include "conformance/harness.h"
#include "serving/serve/telemetry/serve_log.h"
#include "serving/http/http_test.h"

#define LINES	20000

static struct serve_log *open_log(struct cairn_test *t, int fd)
{
	struct serve_log *log = NULL;

	if (!EXPECT(t, !serve_log_open(fd, &log)))
		exit(3);
	return log;
}

/* Prints LINES numbered lines; returns the longest time of one call in seconds. */
static double print_lines(struct serve_log *log)
{
	double longest = 0;

	for (int i = 0; i < LINES; i++) {
		double begin = now_s();

		serve_log_print(log, "line %06d of a log that nobody may be reading at this moment", i);
		longest = now_s() - begin > longest ? now_s() - begin : longest;
	}
	return longest;
}

/* Reads until the end, or until nothing arrives for ms. Returns the number of bytes. */
static size_t read_all(int fd, char *text, size_t room, int ms)
{
	struct pollfd p = { fd, POLLIN, 0 };
	size_t n = 0;
	ssize_t k;

	while (n + 1 < room && poll(&p, 1, ms) == 1 && (k = read(fd, text + n, room - 1 - n)) > 0)
		n += (size_t)k;
	text[n] = 0;
	return n;
}

/* Counts lines, which must be whole and ascending; otherwise -1. *lost: how many the log reports as lost. */
static int count(char *text, long *lost)
{
	int last = -1, num = 0, at;

	*lost = 0;
	for (char *p = strtok(text, "\n"); p; p = strtok(NULL, "\n")) {
		long more;

		if (sscanf(p, "cairn serve: %ld lines of this log were lost", &more) == 1) {
			*lost += more;
			continue;
		}
		if (sscanf(p, "line %6d of a log that nobody may be reading at this moment", &at) != 1 ||
		    strlen(p) != 62 || at <= last)
			return -1;
		last = at;
		num++;
	}
	return num;
}

/* With a pipe that nobody reads, no call blocks, close gives up, and the descriptor's flags do not change. */
static void stuck(struct cairn_test *t)
{
	struct serve_log *log;
	int fds[2];
	double begin;

	if (!EXPECT(t, !pipe(fds)))
		return;
	log = open_log(t, fds[1]);
	begin = print_lines(log);
	if (!EXPECT(t, begin < 2))
		cairn_note(t, "a call took %.1f s", begin);
	EXPECT(t, WAIT_FOR(serve_log_lost(log) > LINES / 4, 5000));
	EXPECT(t, !(fcntl(fds[1], F_GETFL) & O_NONBLOCK));
	begin = now_s();
	serve_log_close(log, 300);
	EXPECT(t, now_s() - begin > 0.25 && now_s() - begin < 20);
	/* the abandoned thread writes what it still has once somebody reads */
	{
		static char text[1 << 20];
		size_t n = read_all(fds[0], text, sizeof(text), 500);
		long lost;

		EXPECT(t, n > 65536 && count(text, &lost) > 1000);
	}
	close(fds[0]);
	close(fds[1]);
}

/* When the pipe is read again, every line is there or is reported as lost. */
static void slow_reader(struct cairn_test *t)
{
	static char text[LINES * 80];
	struct serve_log *log;
	int fds[2], num;
	size_t n;
	long lost;

	if (!EXPECT(t, !pipe(fds)))
		return;
	log = open_log(t, fds[1]);
	print_lines(log);
	n = read_all(fds[0], text, sizeof(text), 500);
	num = count(text, &lost);
	if (!EXPECT(t, num > 1000 && num + lost == LINES && (uint64_t)lost == serve_log_lost(log)))
		cairn_note(t, "%zu bytes, %d lines, %ld lost", n, num, lost);
	serve_log_print(log, "line 999999 of a log that nobody may be reading at this moment");
	serve_log_close(log, 20000);
	close(fds[1]);
	read_all(fds[0], text, sizeof(text), 5000);
	EXPECT(t, count(text, &lost) == 1 && !lost);
	close(fds[0]);
}

/* A file gets every line before close() returns. With a broken pipe all are lost, and no call blocks. */
static void file_and_broken(struct cairn_test *t)
{
	static char text[LINES * 80];
	char path[512];
	struct serve_log *log;
	int fds[2], fd;
	long lost;

	cairn_tmpfile(t, path, sizeof(path), "log", "", 0);
	fd = open(path, O_RDWR | O_APPEND);
	log = open_log(t, fd);
	for (int i = 0; i < 1000; i++)
		serve_log_print(log, "line %06d of a log that nobody may be reading at this moment", i);
	EXPECT(t, !serve_log_lost(log));
	serve_log_close(log, 20000);
	read_all(open(path, O_RDONLY), text, sizeof(text), 1000);
	EXPECT(t, count(text, &lost) == 1000 && !lost);
	close(fd);

	signal(SIGPIPE, SIG_IGN);
	if (!EXPECT(t, !pipe(fds)))
		return;
	close(fds[0]);
	log = open_log(t, fds[1]);
	print_lines(log);
	EXPECT(t, WAIT_FOR(serve_log_lost(log) == LINES, 5000));
	serve_log_close(log, 20000);
	close(fds[1]);
}

/* Lines that a worker writes in pieces are passed on whole, even a last one without a line feed. */
static void relay(struct cairn_test *t)
{
	static const char bytes[] = "one\ntwo\n\nthree four\nfive";
	struct serve_log_pipe pipes = { .fd = -1 };
	struct serve_log *log;
	char text[8192], big[3000];
	int fds[2], out[2];

	if (!EXPECT(t, !pipe(out) && !pipe2(fds, O_NONBLOCK)))
		return;
	log = open_log(t, out[1]);
	pipes.fd = fds[0];
	for (size_t i = 0; i < sizeof(bytes) - 1; i++) {
		EXPECT(t, write(fds[1], bytes + i, 1) == 1);
		serve_log_relay(log, &pipes);
	}
	close(fds[1]);
	serve_log_relay(log, &pipes);
	EXPECT(t, pipes.fd == -1);
	/* an endless line is cut, not kept */
	memset(big, 'x', sizeof(big));
	if (!EXPECT(t, !pipe2(fds, O_NONBLOCK)))
		return;
	pipes.fd = fds[0];
	EXPECT(t, write(fds[1], big, sizeof(big)) == (ssize_t)sizeof(big));
	serve_log_end_relay(log, &pipes);
	EXPECT(t, pipes.fd == -1);
	close(fds[1]);
	serve_log_close(log, 20000);
	close(out[1]);
	EXPECT(t, read_all(out[0], text, sizeof(text), 1000) == sizeof(bytes) + sizeof(big) + 3);
	EXPECT(t, !strncmp(text, bytes, sizeof(bytes) - 1) && text[sizeof(bytes) - 1] == '\n');
	close(out[0]);
}

static const struct cairn_unit units[] = {
	{ "stuck", stuck }, { "slow_reader", slow_reader }, { "file_and_broken", file_and_broken },
	{ "relay", relay },
};

const struct cairn_family cairn_serve_log_family = {
	.stage = "serving", .name = "serve_log", .units = units, .num_units = ARRAY_SIZE(units),
	.waits = 1,
};
