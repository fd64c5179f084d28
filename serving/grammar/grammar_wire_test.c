// SPDX-License-Identifier: Apache-2.0
/* grammar_wire_test - messages, and the grammar process with a peer that violates the protocol */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conformance/harness.h"
#include "serving/grammar/grammar_wire.h"

#define MASKS	4
#define VOCAB	512

/* Messages arrive unchanged however the socket splits them; a slow reader costs memory but does not block. */
static void messages(struct cairn_test *t)
{
	struct grammar_in *in = calloc(1, sizeof(*in));
	struct cairn_out_queue out = { 0 };
	struct grammar_frame f;
	char *text = malloc(GRAMMAR_MAX_BYTES);
	const char *got;
	int fds[2], left, ret, num = 0, small = 4096;

	EXPECT(t, !socketpair(AF_UNIX, SOCK_STREAM, 0, fds));
	setsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
	for (int i = 0; i < GRAMMAR_MAX_BYTES; i++)
		text[i] = (char)('a' + i % 23);
	for (int i = 0; i < 40; i++) {
		f = (struct grammar_frame){ .kind = GRAMMAR_OPEN, .id = (uint64_t)i, .num_seqs = 1 + i,
					    .constraint = CAIRN_CONSTRAINT_LARK, .num_after = i };
		grammar_put(&out, &f, text, (size_t)(i * 1600), text, (size_t)i);
	}
	left = grammar_flush(&out, fds[0]);
	EXPECT(t, left == 1);
	for (int turn = 0; num < 40 && turn < 100000; turn++) {
		while (grammar_fill(in, fds[1]) > 0)
			while ((ret = grammar_next(in, &f, &got)) > 0) {
				EXPECT(t, f.kind == GRAMMAR_OPEN && f.id == (uint64_t)num);
				EXPECT(t, f.bytes == num * 1601 && f.num_after == num);
				EXPECT(t, !memcmp(got, text, (size_t)(num * 1600)) &&
					  !memcmp(got + num * 1600, text, (size_t)num));
				num++;
			}
		left = grammar_flush(&out, fds[0]);
	}
	EXPECT(t, num == 40 && !left);
	close(fds[0]);
	EXPECT(t, grammar_fill(in, fds[1]) == -EPIPE);
	close(fds[1]);
	free(out.data);
	free(text);
	free(in);
}

/* Frames with random contents: what is taken is within its limits. */
static void strange_frames(struct cairn_test *t)
{
	struct grammar_in *in = calloc(1, sizeof(*in));
	struct grammar_frame f;
	const char *text;
	int taken = 0, refused = 0;

	for (int i = 0; i < 100000; i++) {
		struct grammar_frame one = { .magic = GRAMMAR_MAGIC };
		int ret;

		for (size_t k = 4; k < sizeof(one); k += 4)
			((int32_t *)&one)[k / 4] = (int32_t)(cairn_rand(t) % 300) - 20;
		one.kind = (uint16_t)(cairn_rand(t) % (GRAMMAR_NUM_MESSAGES + 1));
		one.magic -= cairn_rand(t) % 16 == 0;
		one.bytes = cairn_rand(t) % 2 ? one.bytes : 0;
		in->begin = 0;
		in->end = sizeof(one) + 1000;
		memcpy(in->data, &one, sizeof(one));
		ret = grammar_next(in, &f, &text);
		if (ret > 0)
			EXPECT(t, f.bytes >= 0 && in->begin == sizeof(f) + (size_t)f.bytes &&
				  (f.kind != GRAMMAR_OPEN || (f.num_after >= 0 && f.num_after <= f.bytes &&
				   f.num_seqs >= 1 && f.num_seqs <= GRAMMAR_MAX_SEQS)));
		taken += ret > 0;
		refused += ret < 0;
	}
	EXPECT(t, taken > 1000 && refused > 1000);
	free(in);
}

/* Starts a grammar process; returns its number. */
static int start(struct cairn_test *t, int *fd, struct grammar_memory *m)
{
	char dir[4096];
	int fds[2], memory = memfd_create("masks", 0), pid, null;
	void *base;

	snprintf(dir, sizeof(dir), "%s/serving/embedded", cairn_srcdir());
	grammar_lay_out(m, NULL, MASKS, VOCAB);
	EXPECT(t, memory >= 0 && !ftruncate(memory, (off_t)m->bytes));
	base = mmap(NULL, m->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
	grammar_lay_out(m, base, MASKS, VOCAB);
	EXPECT(t, !socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds));
	pid = fork();
	if (!pid) {
		int a = fcntl(fds[1], F_DUPFD, 10), b = fcntl(memory, F_DUPFD, 10);

		dup2(a, GRAMMAR_SOCKET);
		dup2(b, GRAMMAR_MEMORY);
		null = open("/dev/null", O_WRONLY);
		dup2(null, 2);
		execl("/proc/self/exe", "cairn", "grammar", dir, "512", "4", "1000000", "1000", "511", NULL);
		_exit(127);
	}
	close(fds[1]);
	close(memory);
	*fd = fds[0];
	return pid;
}

/* The process ends with an error, never by a signal, whatever it receives. */
static void strangers(struct cairn_test *t)
{
	if (cairn_grammar_library()) {
		cairn_skip(t, "%s", cairn_last_error());
		return;
	}
	for (int i = 0; i < 12; i++) {
		struct grammar_frame f[3] = { { 0 } };
		struct grammar_memory m;
		char bytes[4096];
		int fd, status = -1, pid = start(t, &fd, &m);
		ssize_t n;

		for (size_t k = 0; i < 6 && k < sizeof(f); k++)
			((uint8_t *)f)[k] = (uint8_t)(cairn_rand(t) % (i % 2 ? 256 : 4));
		for (int k = 0; k < 3; k++) {
			f[k].magic = i == 0 ? f[k].magic : GRAMMAR_MAGIC;
			f[k].kind = i < 6 ? (uint16_t)(1 + cairn_rand(t) % 8) : GRAMMAR_OPEN;
			f[k].bytes = i < 6 ? f[k].bytes : 0;
			f[k].constraint = CAIRN_CONSTRAINT_CHOICE;
			f[k].num_seqs = 1;
		}
		if (i >= 6) {		/* opened twice; a step that is too long; a message of its own */
			f[1].kind = i % 3 == 0 ? GRAMMAR_OPEN : i % 3 == 1 ? GRAMMAR_STEP : GRAMMAR_READY;
			f[1].num = i == 7 ? -1 : MASKS + 1;
		}
		EXPECT(t, send(fd, f, sizeof(f), MSG_NOSIGNAL) == sizeof(f));
		shutdown(fd, SHUT_WR);
		while ((n = recv(fd, bytes, sizeof(bytes), 0)) > 0)
			;
		EXPECT(t, waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) <= 1);
		EXPECT(t, i < 6 || WEXITSTATUS(status) == 1);
		close(fd);
		munmap(m.items, m.bytes);
	}
}

/* Waits for a message of this kind. */
static int await(int fd, struct grammar_in *in, enum grammar_message kind)
{
	struct grammar_frame f;
	const char *text;
	int ret = 0;

	for (int i = 0; i < 100000; i++) {
		struct pollfd p = { fd, POLLIN, 0 };

		while ((ret = grammar_next(in, &f, &text)) > 0)
			if (f.kind == kind)
				return 1;
		if (ret < 0)
			return 0;
		ret = grammar_fill(in, fd);
		if (ret < 0)
			return 0;
		if (!ret)
			poll(&p, 1, 100);
	}
	return 0;
}

/* STEPs with random items: the process answers each of them, with num_valid in range, and exits cleanly. */
static void strange_items(struct cairn_test *t)
{
	struct grammar_in *in = calloc(1, sizeof(*in));
	struct cairn_out_queue out = { 0 };
	struct grammar_frame f = { .kind = GRAMMAR_OPEN, .id = 5, .num_seqs = 3,
				   .constraint = CAIRN_CONSTRAINT_REGEX };
	struct grammar_memory m;
	int fd, pid, status, masks = 0;

	if (cairn_grammar_library()) {
		cairn_skip(t, "%s", cairn_last_error());
		free(in);
		return;
	}
	pid = start(t, &fd, &m);
	grammar_put(&out, &f, "[a-z]+", 6, NULL, 0);
	EXPECT(t, grammar_flush(&out, fd) == 0 && await(fd, in, GRAMMAR_OPENED));
	for (int i = 0; i < 1000; i++) {
		f = (struct grammar_frame){ .kind = GRAMMAR_STEP, .id = (uint64_t)i,
					    .num = (int32_t)(cairn_rand(t) % (MASKS + 1)) };
		for (int k = 0; k < f.num; k++) {
			int32_t *item = (int32_t *)&m.items[k];

			for (size_t w = 0; w < sizeof(m.items[k]) / 4; w++)
				item[w] = (int32_t)(cairn_rand(t) % (i % 2 ? 6 : 600)) - 2;
			m.items[k].id = cairn_rand(t) % 4 ? 5 : cairn_rand(t);
			m.items[k].draw = m.items[k].num_tokens;
		}
		grammar_put(&out, &f, NULL, 0, NULL, 0);
		if (!EXPECT(t, grammar_flush(&out, fd) == 0 && await(fd, in, GRAMMAR_STEPPED)))
			break;
		for (int k = 0; k < MASKS; k++)
			masks += m.heads[k].is_set;
		for (int k = 0; k < f.num; k++)
			EXPECT(t, m.items[k].num_valid >= -1 && m.items[k].num_valid <= GRAMMAR_MAX_TOKENS);
	}
	EXPECT(t, masks > 0);
	close(fd);
	EXPECT(t, waitpid(pid, &status, 0) == pid && WIFEXITED(status) && !WEXITSTATUS(status));
	munmap(m.items, m.bytes);
	free(out.data);
	free(in);
}

static const struct cairn_unit units[] = {
	{ "messages", messages }, { "strange_frames", strange_frames }, { "strangers", strangers },
	{ "strange_items", strange_items },
};

const struct cairn_family cairn_grammar_wire_family = {
	.stage = "serving", .name = "grammar_wire", .units = units, .num_units = ARRAY_SIZE(units),
	.timeout_s = 300, .waits = 1,
};
