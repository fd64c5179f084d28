// SPDX-License-Identifier: Apache-2.0
/* serve_memory_test - what requests cost the front: memory, and time of the threads that all of them share */
#include <dirent.h>

#include "conformance/harness.h"
#include "serving/serve/tests/serve_test.h"

#define PATH	"/v1/completions"

/* Returns the resident memory of the server's front in MB. */
static double resident_mb(const struct server *s)
{
	char path[64], line[256];
	double kb = -1;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/status", s->pid);
	f = fopen(path, "r");
	while (f && kb < 0 && fgets(line, sizeof(line), f))
		if (sscanf(line, "VmRSS: %lf", &kb) != 1)
			kb = -1;
	if (f)
		fclose(f);
	return kb / 1024;
}

/*
 * Returns a body of `num` empty objects in a member that has no effect, and the members `more`; the caller
 * frees it. The JSON parser makes about 230 bytes of each.
 */
static char *objects_of(int num, const char *more)
{
	char *body = malloc((size_t)num * 3 + 256), *p = body + sprintf(body, "{\"metadata\":{\"a\":[{}");

	for (int i = 1; i < num; i++)
		p += sprintf(p, ",{}");
	sprintf(p, "]}%s}", more);
	return body;
}

static int send_long(const struct server *s, const char *body)
{
	char head[256];
	int fd = dial_port(s->port);

	snprintf(head, sizeof(head), "POST " PATH " HTTP/1.1\r\nHost: localhost\r\n"
		 "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n", strlen(body));
	say(fd, head);
	say_n(fd, body, strlen(body));
	return fd;
}

/* While requests are streamed, what the parser made of their bodies is not kept. */
static void bodies_streamed(struct cairn_test *t)
{
	enum { NUM = 12, OBJECTS = 100000 };
	char *body = objects_of(OBJECTS, ",\"prompt\":\"a\",\"ignore_eos\":true,\"max_tokens\":1500,"
				"\"stream\":true");
	char path[PATH_MAX];
	struct server s;
	int fds[NUM];
	double before, after;

	if (beside(t, "fault_plugin.so", path, sizeof(path)) &&
	    start_server(t, &s, FAULT_ARGS(path, "--batch", "16", "--threads", "1")) &&
	    EXPECT(t, wait_ready(&s))) {
		tell_fault(&s, "slow 50");
		before = resident_mb(&s);
		for (int i = 0; i < NUM; i++)
			fds[i] = send_long(&s, body);
		EXPECT(t, WAIT_FOR(metric_of(&s, "vllm:num_requests_running", "") == NUM, 60000));
		after = resident_mb(&s);
		cairn_note(t, "%d running requests of %zu bytes hold %.1f MB", NUM, strlen(body),
			   after - before);
		/* one body at a time is parsed, by either of two threads; a sanitizer delays what is freed */
		EXPECT(t, before > 0 && (IS_SANITIZED || after - before < 100));
		for (int i = 0; i < NUM; i++)
			close(fds[i]);
		stop_server(&s);
	}
	free(body);
}

/* Returns the processor time in ms of one of the front's threads, or with "" that of all. */
static double cpu_ms(const struct server *s, const char *thread)
{
	char path[128], text[512] = "", *end;
	unsigned long user = 0, system = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/%s%.20s/stat", s->pid, *thread ? "task/" : "", thread);
	f = fopen(path, "r");
	if (f && !fgets(text, sizeof(text), f))
		text[0] = 0;
	if (f)
		fclose(f);
	end = strrchr(text, ')');
	if (end)
		sscanf(end + 1, "%*s%*s%*s%*s%*s%*s%*s%*s%*s%*s%*s%lu%lu", &user, &system);
	return (double)(user + system) * 1e3 / (double)sysconf(_SC_CLK_TCK);
}

/* Returns the processor time of the HTTP loop and the link, the threads that the front has started last. */
static double loops_ms(const struct server *s)
{
	char path[64], last[2][24] = { "", "" };
	struct dirent *e;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/task", s->pid);
	dir = opendir(path);
	while (dir && (e = readdir(dir))) {	/* in the order of their numbers */
		memcpy(last[0], last[1], sizeof(last[0]));
		snprintf(last[1], sizeof(last[1]), "%.20s", e->d_name);
	}
	if (dir)
		closedir(dir);
	return cpu_ms(s, last[0]) + cpu_ms(s, last[1]);
}

/*
 * Neither the HTTP loop nor the link frees what the parser made of a body: they would serve nobody meanwhile.
 * The measure is processor time, on which other processes have little influence.
 */
static void loops_are_free(struct cairn_test *t)
{
	enum { NUM = 24, OBJECTS = 200000 };
	char *body = objects_of(OBJECTS, ",\"prompt\":\"a\",\"max_tokens\":1");
	struct server s;
	double before, spent;

	if (start_server(t, &s, (const char *const[]){ "--impl", "cpu", "--quiet", NULL }) &&
	    EXPECT(t, wait_ready(&s))) {
		before = loops_ms(&s);
		for (int i = 0; i < NUM; i++) {
			static struct reply r;
			int fd = send_long(&s, body);

			EXPECT(t, read_reply_of(fd, &r, 60000, true) == 200);
			close(fd);
		}
		EXPECT(t, WAIT_FOR(is_quiet(&s), 30000));
		spent = loops_ms(&s) - before;
		cairn_note(t, "HTTP loop and link took %.0f ms for %d bodies of %zu bytes", spent, NUM,
			   strlen(body));
		EXPECT(t, spent < (IS_SANITIZED ? 1000 : 80));
	}
	stop_server(&s);
	free(body);
}

/* Writes a request whose prompt of num tokens, 1023 at most, is repeated in 64 answers. */
static void write_echo(char body[4000], int num)
{
	char *p = body + sprintf(body, "{\"prompt\":[5");

	for (int i = 1; i < num; i++)
		p += sprintf(p, ",5");
	sprintf(p, "],\"n\":64,\"max_tokens\":1,\"echo\":true,\"logprobs\":20}");
}

/*
 * Prompts of 1023 tokens wait in the queue, each to be echoed in 64 answers with 20 log-probabilities a
 * token. Such a request has 3 KB. The log-probabilities take 12 MB if there is a list for each answer.
 */
static void echo_queued(struct cairn_test *t)
{
	enum { NUM = 16 };
	char path[PATH_MAX], body[4000];
	struct server s;
	int fds[NUM], busy;
	double before, after;

	write_echo(body, 1023);
	if (!beside(t, "fault_plugin.so", path, sizeof(path)) ||
	    !start_server(t, &s, FAULT_ARGS(path, "--batch", "64")) || !EXPECT(t, wait_ready(&s)))
		return;
	tell_fault(&s, "slow 200");
	busy = ask_stream(&s, PATH, "{\"prompt\":\"a\",\"n\":64,\"ignore_eos\":true,\"max_tokens\":1500}");
	EXPECT(t, WAIT_FOR(metric_of(&s, "vllm:num_requests_running", "") > 0, 30000));
	before = resident_mb(&s);
	for (int i = 0; i < NUM; i++)
		fds[i] = ask_stream(&s, PATH, body);
	EXPECT(t, WAIT_FOR(metric_of(&s, "vllm:num_requests_waiting", "") == NUM, 30000));
	after = resident_mb(&s);
	cairn_note(t, "%d requests in the queue hold %.1f MB", NUM, after - before);
	EXPECT(t, before > 0 && after - before < 60);
	for (int i = 0; i < NUM; i++)
		close(fds[i]);
	close(busy);
	stop_server(&s);
}

/* Reads an answer up to its end. Returns the number of bytes. */
static size_t read_long(struct cairn_test *t, int fd, const char *end)
{
	static char piece[1 << 16];
	size_t bytes = 0, len = strlen(end), kept = 0;
	ssize_t n;

	while ((n = read_more(fd, piece + kept, sizeof(piece) - kept, 60000)) > 0) {
		bytes += (size_t)n;
		n += (ssize_t)kept;
		if ((size_t)n >= len && !memcmp(piece + n - len, end, len))
			break;
		kept = (size_t)n < len ? (size_t)n : len;
		memmove(piece, piece + n - kept, kept);
	}
	EXPECT(t, n > 0);
	return bytes;
}

/*
 * An answer of 7 MB to 1 KB: 64 times the log-probabilities of 300 tokens. The link and the HTTP loop must
 * have a small share of the front's work for it.
 */
static void long_answer(struct cairn_test *t)
{
	char body[4000];
	struct server s;
	double loops, all;
	size_t bytes;
	int fd;

	write_echo(body, 300);
	if (!start_server(t, &s, (const char *const[]){ "--impl", "cpu", "--batch", "64", "--quiet", NULL }))
		return;
	EXPECT(t, wait_ready(&s));
	loops = loops_ms(&s);
	all = cpu_ms(&s, "");
	for (int i = 0; i < 2; i++) {
		fd = ask_stream(&s, PATH, body);
		bytes = read_long(t, fd, "}}}");
		EXPECT(t, bytes > 4 << 20);
		close(fd);
	}
	loops = loops_ms(&s) - loops;
	all = cpu_ms(&s, "") - all;
	cairn_note(t, "%zu bytes; HTTP loop and link took %.0f of %.0f ms", bytes, loops, all);
	EXPECT(t, loops < all / 2);
	/* a stream of 4800 events, which the link writes in many turns */
	strcpy(strrchr(body, '}'), ",\"stream\":true}");
	fd = ask_stream(&s, PATH, body);
	EXPECT(t, read_long(t, fd, "data: [DONE]\n\n\r\n0\r\n\r\n") > 4 << 20);
	close(fd);
	stop_server(&s);
}

static const struct cairn_unit units[] = {
	{ "echo_queued", echo_queued }, { "bodies_streamed", bodies_streamed },
	{ "loops_are_free", loops_are_free }, { "long_answer", long_answer },
};

const struct cairn_family cairn_serve_memory_family = {
	.stage = "serving", .name = "serve_memory", .units = units, .num_units = ARRAY_SIZE(units),
	.cost_s = 3, .waits = 1,
};
