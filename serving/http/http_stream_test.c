// SPDX-License-Identifier: Apache-2.0
/* http_stream_test - streams lose no byte, a slow reader's buffer is bounded, and a stalled reader is cut */
#include "conformance/harness.h"
#include "serving/http/http_stream_test.h"

static void no_byte_lost(struct cairn_test *t)
{
	struct cairn_http *http = start(t, (struct cairn_http_options){ .stream_buffer = 16384 });
	struct reading s = { .fd = dial(http), .nap_every = 40 };
	struct cairn_http_exchange *x = open_stream(t, s.fd, 0, 1);
	size_t num_full = 0;
	static struct reply r;
	pthread_t reader;

	pthread_create(&reader, NULL, read_stream, &s);
	begin(t, x);
	push_all(t, x, 20 << 20, &num_full);
	cairn_http_end(x);
	pthread_join(reader, NULL);
	EXPECT(t, s.bytes == 20 << 20 && !s.wrong && s.ended);
	EXPECT(t, num_full > 0);
	cairn_note(t, "the buffer was full %zu times", num_full);
	EXPECT(t, WAIT_FOR(atomic_load(&kept[0].num_done), 5000) && !atomic_load(&kept[0].num_gone));
	say(s.fd, "GET /none HTTP/1.1\r\nHost: a\r\n\r\n");	/* the connection is kept alive */
	EXPECT(t, read_reply(s.fd, &r) == 404);
	close(s.fd);
	cairn_http_destroy(http);
}

static void back_pressure(struct cairn_test *t)
{
	struct cairn_http *http = start(t, (struct cairn_http_options){ 0 });
	struct reading s = { .fd = dial(http) };
	struct cairn_http_exchange *x = open_stream(t, s.fd, 0, 1);
	static char big[256 << 10];
	size_t pushed = 0;
	int ret;

	begin(t, x);
	EXPECT(t, cairn_http_push(x, big, sizeof(big)) == -EMSGSIZE);
	for (int idle = 0; idle < 50;) {	/* fill the kernel's buffers, then the stream's */
		char c[1000];

		for (size_t i = 0; i < sizeof(c); i++)
			c[i] = (char)pattern(pushed + i);
		ret = cairn_http_push(x, c, sizeof(c));
		pushed += ret ? 0 : sizeof(c);
		idle = ret ? idle + 1 : 0;
		if (ret)
			nap_ms(1);
	}
	EXPECT(t, ret == -EAGAIN);
	EXPECT(t, cairn_http_unsent(x) > 256000 && cairn_http_unsent(x) <= 256 << 10);
	EXPECT(t, !cairn_http_gone(x) && pushed < 8 << 20);
	cairn_http_end(x);	/* the last chunk always fits */
	read_stream(&s);
	EXPECT(t, s.bytes == pushed && !s.wrong && s.ended);
	close(s.fd);
	cairn_http_destroy(http);
}

/*
 * A stalled client is cut stall_timeout_ms after its last accepted byte; a concurrent stream is unaffected.
 */
static void stalled(struct cairn_test *t)
{
	struct cairn_http *http = start(t, (struct cairn_http_options){ .stall_timeout_ms = 300 });
	struct reading s = { .fd = dial(http) };
	int fd = dial(http);
	struct cairn_http_exchange *x = open_stream(t, fd, 0, 1), *y = open_stream(t, s.fd, 1, 1);
	double begin_s = now_s(), full_s = begin_s, slowest_s = 0;
	struct cairn_http_stats stats;
	static char junk[1000];
	pthread_t reader;
	size_t at = 0;

	begin(t, x);
	begin(t, y);
	pthread_create(&reader, NULL, read_stream, &s);
	for (; !cairn_http_gone(x) && EXPECT(t, now_s() < begin_s + 25); at++) {
		char c = (char)pattern(at);
		double start_s = now_s();

		for (int k = 0; k < 200 && !cairn_http_push(x, junk, sizeof(junk)); k++)
			full_s = now_s();
		EXPECT(t, !cairn_http_push(y, &c, 1));
		while (cairn_http_unsent(y))
			nap_ms(0);
		if (now_s() - start_s > slowest_s)
			slowest_s = now_s() - start_s;
		nap_ms(1);
	}
	cairn_note(t, "cut after %.0f ms; slowest event of the other %.1f ms", (now_s() - full_s) * 1e3,
		   slowest_s * 1e3);
	/* the time-out starts when the kernel's buffer is full, between begin_s and full_s */
	EXPECT(t, now_s() - begin_s > 0.3 && now_s() - full_s < 15);
	EXPECT(t, WAIT_FOR(atomic_load(&kept[0].num_gone) == 1, 5000) && !atomic_load(&kept[0].num_done));
	EXPECT(t, cairn_http_push(x, junk, 1) == -EPIPE);
	cairn_http_end(x);
	EXPECT(t, WAIT_FOR(atomic_load(&kept[0].num_done) == 1, 5000));
	EXPECT(t, last_outcome == CAIRN_HTTP_STALLED);
	cairn_http_stats(http, &stats);
	EXPECT(t, stats.stalled == 1);
	cairn_http_end(y);
	pthread_join(reader, NULL);
	EXPECT(t, s.bytes == at && !s.wrong && s.ended && !atomic_load(&kept[1].num_gone));
	close(fd);
	close(s.fd);
	cairn_http_destroy(http);
}

/*
 * The time for an answer ends although the client reads now and then: for a whole answer, a stream that goes
 * on and an exchange that is not answered.
 */
static void too_late(struct cairn_test *t)
{
	for (int way = 0; way < 3; way++) {
		struct cairn_http *http = start(t, (struct cairn_http_options){ .answer_timeout_ms = 300 });
		int fd = dial(http);
		struct cairn_http_exchange *x = open_stream(t, fd, 0, 1);
		double end_s = now_s() + 20;
		char *mega = calloc(1, 8 << 20), piece[1000];

		if (way == 0)
			EXPECT(t, !cairn_http_answer(x, 200, NULL, NULL, 0, mega, 8 << 20));
		else if (way == 1)
			begin(t, x);
		while (now_s() < end_s && !atomic_load(&kept[0].num_gone) &&
		       !atomic_load(&kept[0].num_done)) {
			if (way == 1)
				cairn_http_push(x, mega, 1000);
			read_more(fd, piece, sizeof(piece), 0);
			nap_ms(5);
		}
		EXPECT(t, now_s() < end_s);
		if (way) {
			EXPECT(t, atomic_load(&kept[0].num_gone) == 1);
			cairn_http_abort(x);
		}
		EXPECT(t, WAIT_FOR(atomic_load(&kept[0].num_done) == 1, 5000));
		EXPECT(t, last_outcome == CAIRN_HTTP_CUT);
		free(mega);
		close(fd);
		cairn_http_destroy(http);
	}
}

/* A very slow reader that reads within each time-out is not cut; the test lasts more than two time-outs. */
static void slow_but_alive(struct cairn_test *t)
{
	struct cairn_http *http = start(t, (struct cairn_http_options){ .stall_timeout_ms = 1000 });
	int fd = dial(http), num_full = 0;
	struct cairn_http_exchange *x = open_stream(t, fd, 0, 1);
	double end_s = now_s() + 2.2, last_s = now_s(), longest_s = 0;
	static char junk[65536];

	begin(t, x);
	while (now_s() < end_s || (num_full <= 20 && now_s() < end_s + 20)) {
		int ret;

		while (!(ret = cairn_http_push(x, junk, 1000)))
			;
		if (ret != -EAGAIN)
			break;
		num_full++;
		EXPECT(t, read_more(fd, junk, sizeof(junk), 5000) > 0);
		longest_s = now_s() - last_s > longest_s ? now_s() - last_s : longest_s;
		last_s = now_s();
		nap_ms(10);
	}
	if (longest_s > 0.5)	/* the machine did not schedule this test in time */
		cairn_note(t, "the test was not scheduled for %.1f s", longest_s);
	else
		EXPECT(t, num_full > 20 && !cairn_http_gone(x));
	cairn_http_abort(x);
	close(fd);
	cairn_http_destroy(http);
}

/* stream_buffer does not limit a single answer, even one larger than a turn of the loop and all buffers. */
static void large_answer(struct cairn_test *t)
{
	struct cairn_http *http = start(t, (struct cairn_http_options){ 0 });
	int fd = dial(http);
	struct cairn_http_exchange *x = open_stream(t, fd, 0, 1);
	size_t bytes = 12 << 20, at = 0, head = 0, wrong = 0;
	char *body = malloc(bytes), *got = malloc(bytes + 4096), *end;

	for (size_t i = 0; i < bytes; i++)
		body[i] = (char)pattern(i);
	EXPECT(t, !cairn_http_answer(x, 200, "text/plain", NULL, 0, body, bytes));
	while (!head || at < head + bytes) {
		ssize_t n = read_more(fd, got + at, bytes + 4095 - at, 5000);

		if (!EXPECT(t, n > 0))
			break;
		at += (size_t)n;
		got[at] = 0;
		end = head ? NULL : strstr(got, "\r\n\r\n");
		head = end ? (size_t)(end + 4 - got) : head;
	}
	for (size_t i = 0; i < bytes && head + i < at; i++)
		wrong += got[head + i] != body[i];
	EXPECT(t, at == head + bytes && !wrong);
	EXPECT(t, WAIT_FOR(atomic_load(&kept[0].num_done) == 1, 5000) && last_outcome == CAIRN_HTTP_COMPLETE);
	free(body);
	free(got);
	close(fd);
	cairn_http_destroy(http);
}

static const struct cairn_unit units[] = {
	{ "no_byte_lost", no_byte_lost }, { "back_pressure", back_pressure }, { "stalled", stalled },
	{ "too_late", too_late },
	{ "slow_but_alive", slow_but_alive }, { "large_answer", large_answer },
};

const struct cairn_family cairn_http_stream_family = {
	.stage = "serving", .name = "http_stream", .units = units, .num_units = ARRAY_SIZE(units),
	.waits = 1,
};
