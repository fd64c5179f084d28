// SPDX-License-Identifier: Apache-2.0
/* channel_test - messages arrive as they were sent, or not at all */
#include <dirent.h>
#include <limits.h>
#include <sys/stat.h>

#include "conformance/harness.h"
#include "serving/base/clock.h"
#include "serving/remote/control/channel_test.h"

static const uint8_t secret[CAIRN_SECRET_BYTES] = "a secret of the test", other[CAIRN_SECRET_BYTES] = "b";

static int count_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	int num = 0;

	while (d && readdir(d))
		num++;
	if (d)
		closedir(d);
	return num;
}

/* Sends messages of all sizes and compares what comes back. */
static void exchange(struct cairn_test *t, int over_tcp, const uint8_t *with)
{
	static const size_t sizes[] = { 0, 1, 7, 8, 4096, 65537, CAIRN_CHANNEL_MAX };
	uint8_t *data = malloc(CAIRN_CHANNEL_MAX);
	struct cairn_channel_message m;
	struct cairn_control_channel *c;
	struct member x;
	int fd[2];

	for (size_t i = 0; i < CAIRN_CHANNEL_MAX; i++)
		data[i] = (uint8_t)(i * 7 + i / 251);
	if (!EXPECT(t, connect_two(fd, over_tcp) == 0))
		goto out;
	start_member(&x, fd[1], with, PATIENCE);
	if (EXPECT(t, cairn_channel_open(&c, fd[0], CAIRN_CHANNEL_LEAD, with, PATIENCE) == 0)) {
		for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
			EXPECT(t, cairn_channel_send(c, 5 + (uint32_t)i, data, sizes[i], PATIENCE) == 0);
			EXPECT(t, cairn_channel_receive(c, &m, PATIENCE) == 0);
			EXPECT(t, m.kind == 6 + i && m.num_bytes == sizes[i] &&
			       (uintptr_t)m.data % 8 == 0 && !memcmp(m.data, data, sizes[i]));
		}
		EXPECT(t, cairn_channel_receive(c, &m, 0) == -ETIMEDOUT);
		EXPECT(t, cairn_channel_send(c, 0, data, 1, PATIENCE) == -EINVAL);
		EXPECT(t, cairn_channel_send(c, 1, data, CAIRN_CHANNEL_MAX + 1, PATIENCE) == -EINVAL);
		cairn_channel_close(c);
	}
	join_member(&x);
	EXPECT(t, x.received == (int)ARRAY_SIZE(sizes) && x.ended == -ECONNRESET);
	EXPECT_CONTAINS(t, x.text, "the peer has closed the connection");
out:
	free(data);
}

static void messages(struct cairn_test *t)
{
	int before;

	if (!have_sodium(t))
		return;
	before = count_fds();
	exchange(t, 0, secret);
	exchange(t, 1, secret);
	exchange(t, 0, NULL);
	exchange(t, 1, NULL);
	EXPECT(t, count_fds() == before);
}

/* Both sides refuse a peer with another secret, or with none. */
static void secrets_differ(struct cairn_test *t)
{
	const uint8_t *const theirs[] = { other, NULL };

	if (!have_sodium(t))
		return;
	for (int i = 0; i < 2; i++) {
		struct cairn_control_channel *c = NULL;
		struct member x;
		int fd[2];

		if (!EXPECT(t, connect_two(fd, i) == 0))
			return;
		start_member(&x, fd[1], theirs[i], PATIENCE);
		EXPECT(t, cairn_channel_open(&c, fd[0], CAIRN_CHANNEL_LEAD, secret, PATIENCE) == -EACCES);
		EXPECT(t, c == NULL);
		EXPECT_CONTAINS(t, cairn_last_error(), "another secret");
		join_member(&x);
		EXPECT(t, x.opened == -EACCES || x.opened == -ECONNRESET);
	}
}

/* Connecting a datagram socket sends nothing; its peer has an address for documentation. */
static void no_secret_elsewhere(struct cairn_test *t)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(9),
				 .sin_addr = { htonl(0xc0000201) } };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct cairn_control_channel *c;

	if (!have_sodium(t) || fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof(a))) {
		cairn_skip(t, "no route to another machine");
		if (fd >= 0)
			close(fd);
		return;
	}
	EXPECT(t, cairn_channel_open(&c, fd, CAIRN_CHANNEL_LEAD, NULL, PATIENCE) == -EACCES);
	EXPECT_CONTAINS(t, cairn_last_error(), "a peer on another machine needs a secret");
	EXPECT(t, close(fd) == -1);		/* the channel has closed it */
}

static void put(uint8_t *to, uint32_t v)
{
	memcpy(to, &v, sizeof(v));
}

/* A peer that says something else is refused, and one that says nothing is not waited for. */
static void strangers(struct cairn_test *t)
{
	uint8_t hello[48] = "cairnctl";
	struct cairn_control_channel *c = NULL;
	int64_t begin;
	int fd[2];
	static const struct { uint32_t version, side; char first; int ret; const char *says; } said[] = {
		{ 2, 1, 'c', -EPROTONOSUPPORT, "the peer has version 2 of the protocol, not 1" },
		{ 1, 0, 'c', -EINVAL, "the peer is a lead, too" },
		{ 1, 7, 'c', -EINVAL, "the peer is a lead, too" },
		{ 1, 1, 'G', -EINVAL, "does not speak this protocol" },
		{ 1, 1, 'c', -EINVAL, "the peer has an invalid key" },	/* the key 0 */
	};

	if (!have_sodium(t))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(said); i++) {
		if (!EXPECT(t, connect_two(fd, 0) == 0))
			return;
		hello[0] = (uint8_t)said[i].first;
		put(hello + 8, said[i].version);
		put(hello + 12, said[i].side);
		EXPECT(t, write(fd[1], hello, sizeof(hello)) == sizeof(hello));
		EXPECT(t, cairn_channel_open(&c, fd[0], CAIRN_CHANNEL_LEAD, secret, PATIENCE) == said[i].ret);
		EXPECT_CONTAINS(t, cairn_last_error(), said[i].says);
		close(fd[1]);
	}
	if (!EXPECT(t, connect_two(fd, 1) == 0))
		return;
	begin = cairn_clock_ns();
	EXPECT(t, cairn_channel_open(&c, fd[0], CAIRN_CHANNEL_LEAD, secret, 50) == -ETIMEDOUT);
	EXPECT(t, cairn_clock_ns() - begin < 2000000000);
	close(fd[1]);
}

/* ---- a relay in between ---- */

enum deed { FORWARD, FLIP, CUT, DROP, REPEAT, SWAP };

/*
 * What the lead sends: 48 + 24 bytes of handshake and 4 + 17 + 4 + 22 of the confirmation, then two messages
 * of 13 and 14 bytes.
 */
#define HANDSHAKE	(48 + SODIUM_HEADER_BYTES + 4 + 17 + 4 + 22)
#define FIRST		(4 + 17 + 4 + 13)
#define SECOND		(FIRST + 1)
#define ALL		(HANDSHAKE + FIRST + SECOND)

/* Passes on what both sides send, but does the deed to byte `at` of what the lead sends, or to messages. */
struct relay {
	pthread_t thread;
	int lead, member;
	enum deed deed;
	size_t at, num;
	uint8_t sent[ALL + 64];		/* by the lead */
};

static void pass_on(int fd, const uint8_t *bytes, size_t num)
{
	while (num) {
		ssize_t n = send(fd, bytes, num, MSG_NOSIGNAL);

		if (n <= 0)
			return;
		bytes += n;
		num -= (size_t)n;
	}
}

/* Passes on bytes from .. to - 1 of what the lead has sent. */
static void pass_span(struct relay *r, size_t from, size_t to)
{
	if (r->deed == FLIP && r->at >= from && r->at < to)
		r->sent[r->at] ^= 0x10;
	if (r->deed == CUT && r->at < to) {
		pass_on(r->member, r->sent + from, r->at > from ? r->at - from : 0);
		shutdown(r->member, SHUT_RDWR);
		return;
	}
	pass_on(r->member, r->sent + from, to - from);
}

/* Both messages are there. */
static void pass_messages(struct relay *r)
{
	uint8_t *first = r->sent + HANDSHAKE, *second = first + FIRST;

	if (r->deed == SWAP)
		pass_on(r->member, second, SECOND);
	if (r->deed != DROP)
		pass_on(r->member, first, FIRST);
	if (r->deed == REPEAT)
		pass_on(r->member, first, FIRST);
	if (r->deed != SWAP)
		pass_on(r->member, second, SECOND);
}

/* Returns 0 when the lead has ended. */
static int take_from_lead(struct relay *r)
{
	ssize_t n = read(r->lead, r->sent + r->num, sizeof(r->sent) - r->num);
	size_t from = r->num, to;

	if (n <= 0)
		return 0;
	r->num += (size_t)n;
	to = r->deed > CUT && r->num > HANDSHAKE ? HANDSHAKE : r->num;
	if (from < to)
		pass_span(r, from, to);
	if (r->deed > CUT && r->num == ALL)
		pass_messages(r);
	return 1;
}

static void *run_relay(void *arg)
{
	struct relay *r = arg;
	int lead_talks = 1;

	for (;;) {
		struct pollfd p[2] = { { r->member, POLLIN, 0 }, { r->lead, POLLIN, 0 } };
		uint8_t buffer[512];
		ssize_t n;

		if (poll(p, 1 + (nfds_t)lead_talks, PATIENCE) <= 0)
			break;
		if (p[0].revents) {
			n = read(r->member, buffer, sizeof(buffer));
			if (n <= 0)
				break;
			pass_on(r->lead, buffer, (size_t)n);
		}
		if (lead_talks && p[1].revents && !take_from_lead(r)) {
			lead_talks = 0;
			shutdown(r->member, SHUT_WR);
		}
	}
	shutdown(r->lead, SHUT_RDWR);
	shutdown(r->member, SHUT_RDWR);
	return NULL;
}

/* Sends two messages through the relay. Returns how many of them the member has got. */
static int through(struct cairn_test *t, enum deed deed, size_t at, struct member *x)
{
	struct relay r = { .deed = deed, .at = at };
	struct cairn_control_channel *c = NULL;
	int a[2], b[2];

	if (!EXPECT(t, connect_two(a, 0) == 0) || !EXPECT(t, connect_two(b, 0) == 0))
		return -1;
	r.lead = a[1];
	r.member = b[0];
	pthread_create(&r.thread, NULL, run_relay, &r);
	start_member(x, b[1], secret, PATIENCE);
	if (!cairn_channel_open(&c, a[0], CAIRN_CHANNEL_LEAD, secret, PATIENCE)) {
		cairn_channel_send(c, 1, "first message", 13, PATIENCE);
		cairn_channel_send(c, 1, "second message", 14, PATIENCE);
		shutdown(cairn_channel_fd(c), SHUT_WR);
		cairn_channel_close(c);
	}
	join_member(x);
	pthread_join(r.thread, NULL);
	close(a[1]);
	close(b[0]);
	return x->received;
}

/* Whichever byte is changed, the message that it belongs to does not arrive, nor does one after it. */
static void changed_bytes(struct cairn_test *t)
{
	struct member x;
	int wrong = 0;

	if (!have_sodium(t))
		return;
	EXPECT(t, through(t, FORWARD, 0, &x) == 2);
	for (size_t at = 0; at < ALL; at++) {
		int want = at >= HANDSHAKE + FIRST, got = through(t, FLIP, at, &x);

		if (got == want && x.ended && (at >= HANDSHAKE) == !x.opened)
			continue;
		if (!wrong++)
			cairn_note(t, "byte %zu: %d messages, opened %d, ended %d", at, got, x.opened,
				   x.ended);
	}
	EXPECT(t, wrong == 0);
}

static void cut_short(struct cairn_test *t)
{
	struct member x;

	if (!have_sodium(t))
		return;
	for (size_t at = 0; at < ALL; at += 3) {
		int got = through(t, CUT, at, &x);

		EXPECT(t, got == (at >= HANDSHAKE + FIRST) && x.ended == -ECONNRESET);
	}
}

/* A message that is left out, repeated, or overtaken ends the connection. */
static void moved_messages(struct cairn_test *t)
{
	static const struct { enum deed deed; int received; } deeds[] = {
		{ DROP, 0 }, { REPEAT, 1 }, { SWAP, 0 },
	};
	struct member x;

	if (!have_sodium(t))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(deeds); i++) {
		EXPECT(t, through(t, deeds[i].deed, 0, &x) == deeds[i].received && x.ended == -EACCES);
		EXPECT_CONTAINS(t, x.text, "a frame is not from the peer");
	}
}

/* Absurd lengths are refused before anything is allocated, and a frame may come byte by byte. */
static void lengths(struct cairn_test *t)
{
	static const uint32_t absurd[] = { 0, 17, 20, CAIRN_CHANNEL_MAX + 22, 1u << 31, UINT32_MAX };
	struct cairn_channel_message m;
	struct cairn_control_channel *c;
	struct member x;
	int fd[2];

	if (!have_sodium(t))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(absurd); i++) {
		if (!EXPECT(t, connect_two(fd, 0) == 0))
			return;
		start_member(&x, fd[1], secret, PATIENCE);
		if (EXPECT(t, cairn_channel_open(&c, fd[0], CAIRN_CHANNEL_LEAD, secret, PATIENCE) == 0)) {
			pass_on(cairn_channel_fd(c), (const uint8_t *)&absurd[i], 4);
			EXPECT(t, cairn_channel_receive(c, &m, PATIENCE) == -ECONNRESET);
			EXPECT(t, cairn_channel_send(c, 1, "x", 1, PATIENCE) == -ECONNRESET);
			cairn_channel_close(c);
		}
		join_member(&x);
		EXPECT(t, x.ended == -EINVAL);
		EXPECT_CONTAINS(t, x.text, "a frame has ");
	}
}

/* ---- secrets ---- */

static void secret_files(struct cairn_test *t)
{
	static const struct { size_t num; mode_t mode; int ret; } files[] = {
		{ 16, 0600, 0 }, { 4096, 0400, 0 }, { 15, 0600, -EINVAL }, { 4097, 0600, -EINVAL },
		{ 32, 0640, -EACCES }, { 32, 0604, -EACCES },
	};
	uint8_t one[CAIRN_SECRET_BYTES], two[CAIRN_SECRET_BYTES];
	char path[PATH_MAX], text[4097];

	if (!have_sodium(t))
		return;
	memset(text, 'x', sizeof(text));
	snprintf(path, sizeof(path), "%s/secret", cairn_tmpdir(t));
	for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
		FILE *f = fopen(path, "w");

		fwrite(text, 1, files[i].num, f);
		fclose(f);
		chmod(path, files[i].mode);
		if (!EXPECT(t, cairn_secret_load(i ? two : one, path) == files[i].ret))
			cairn_note(t, "file %zu: %s", i, cairn_last_error());
		unlink(path);
	}
	EXPECT(t, memcmp(one, two, sizeof(one)) != 0);
	EXPECT(t, cairn_secret_load(one, path) == -EIO);
	EXPECT(t, cairn_secret_load(one, cairn_tmpdir(t)) == -EINVAL);
}

static const struct cairn_unit units[] = {
	{ "messages", messages }, { "secrets_differ", secrets_differ }, { "strangers", strangers },
	{ "no_secret_elsewhere", no_secret_elsewhere },
	{ "changed_bytes", changed_bytes }, { "cut_short", cut_short }, { "moved_messages", moved_messages },
	{ "lengths", lengths }, { "secret_files", secret_files },
};

const struct cairn_family cairn_channel_family = {
	.stage = "serving", .name = "channel", .units = units, .num_units = ARRAY_SIZE(units),
};
