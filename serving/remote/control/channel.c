// SPDX-License-Identifier: Apache-2.0
/* channel - an authenticated and encrypted connection (channel.h) */
#include "serving/remote/control/channel.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "primitives/base/error.h"
#include "serving/base/clock.h"
#include "serving/base/json.h"
#include "serving/remote/control/sodium.h"

#define VERSION		1
#define MAGIC		"cairnctl"
#define CONFIRM		0u		/* kind of the first frame */
#define CONFIRM_TEXT	"cairn control channel"
#define LENGTH_BYTES	4
#define KIND_BYTES	4
#define MAX_FRAME	(SODIUM_FRAME_BYTES + KIND_BYTES + CAIRN_CHANNEL_MAX)
#define MAX_SECRET	4096
#define MIN_SECRET	16

struct hello {
	char magic[8];
	uint32_t version, side;
	uint8_t key[SODIUM_KEY_BYTES];
};

struct cairn_control_channel {
	const struct sodium *sodium;
	int fd;
	int ended;			/* an error has occurred, or the peer has said goodbye */
	int closed;			/* the peer has said goodbye */
	int may_close;			/* no frame has been sent in part */
	struct sodium_stream push, pull;
	/* the frame that is coming: length, then encrypted bytes */
	uint8_t length[LENGTH_BYTES], *frame;
	size_t got, room;
	uint8_t *clear;			/* KIND_BYTES before the data, which are aligned */
	uint8_t *out;			/* a frame to send */
	size_t clear_room, out_room;
};

static void put_u32(uint8_t *to, uint32_t v)
{
	for (int i = 0; i < 4; i++)
		to[i] = (uint8_t)(v >> 8 * i);
}

static uint32_t get_u32(const uint8_t *from)
{
	return from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 | (uint32_t)from[3] << 24;
}

/* ---- socket ---- */

static int64_t now_ms(void)
{
	return cairn_clock_ns() / 1000000;
}

/* Waits until the socket is ready for `events`, or the time has come. */
static int wait_for(int fd, short events, int64_t until)
{
	struct pollfd p = { .fd = fd, .events = events };
	int64_t left = until - now_ms();
	int n = poll(&p, 1, left > 0 ? (int)left : 0);

	if (n < 0 && errno != EINTR)
		return cairn_error(EIO, "channel: poll: %s", strerror(errno));
	return n ? 0 : cairn_error(ETIMEDOUT, "channel: the peer did not answer in time");
}

static int lost(const char *what)
{
	return cairn_error(ECONNRESET, "channel: %s", what);
}

static int write_all(int fd, const uint8_t *bytes, size_t num, int64_t until)
{
	while (num) {
		ssize_t n = send(fd, bytes, num, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n >= 0) {
			bytes += n;
			num -= (size_t)n;
		} else if (errno == EAGAIN || errno == EWOULDBLOCK) {
			CAIRN_TRY(wait_for(fd, POLLOUT, until));
		} else if (errno != EINTR) {
			return lost(strerror(errno));
		}
	}
	return 0;
}

/* Reads until *got is num. -ETIMEDOUT: *got says how many bytes have come. */
static int read_until(int fd, uint8_t *bytes, size_t num, size_t *got, int64_t until)
{
	while (*got < num) {
		ssize_t n = recv(fd, bytes + *got, num - *got, MSG_DONTWAIT);

		if (n > 0)
			*got += (size_t)n;
		else if (n == 0)
			return lost("the connection was cut");
		else if (errno == EAGAIN || errno == EWOULDBLOCK)
			CAIRN_TRY(wait_for(fd, POLLIN, until));
		else if (errno != EINTR)
			return lost(strerror(errno));
	}
	return 0;
}

/* Returns whether the peer can only be a process of this machine. */
static int peer_is_here(int fd)
{
	union {
		struct sockaddr any;
		struct sockaddr_in v4;
		struct sockaddr_in6 v6;
		struct sockaddr_storage room;
	} a;
	socklen_t len = sizeof(a);

	memset(&a, 0, sizeof(a));
	if (getpeername(fd, &a.any, &len))
		return 0;
	if (a.any.sa_family == AF_UNIX)
		return 1;
	if (a.any.sa_family == AF_INET)
		return ntohl(a.v4.sin_addr.s_addr) >> 24 == 127;
	if (a.any.sa_family != AF_INET6)
		return 0;
	return IN6_IS_ADDR_LOOPBACK(&a.v6.sin6_addr) ||
	       (IN6_IS_ADDR_V4MAPPED(&a.v6.sin6_addr) && a.v6.sin6_addr.s6_addr[12] == 127);
}

/* ---- frames ---- */

static int grow(uint8_t **buffer, size_t *room, size_t num)
{
	uint8_t *more;

	if (num <= *room)
		return 0;
	more = realloc(*buffer, num);
	if (!more)
		return cairn_error(ENOMEM, "channel: no memory for %zu bytes", num);
	*buffer = more;
	*room = num;
	return 0;
}

static int send_frame(struct cairn_control_channel *c, uint32_t kind, const void *data, size_t num_bytes,
		      unsigned char tag, int64_t until)
{
	const size_t clear = KIND_BYTES + num_bytes, frame = clear + SODIUM_FRAME_BYTES;
	uint8_t *text;
	int ret;

	CAIRN_TRY(grow(&c->out, &c->out_room, LENGTH_BYTES + frame + clear));
	text = c->out + LENGTH_BYTES + frame;
	put_u32(c->out, (uint32_t)frame);
	put_u32(text, kind);
	if (num_bytes)
		memcpy(text + KIND_BYTES, data, num_bytes);
	c->sodium->crypto_secretstream_xchacha20poly1305_push(&c->push, c->out + LENGTH_BYTES, NULL, text,
							      clear, c->out, LENGTH_BYTES, tag);
	c->may_close = 0;
	ret = write_all(c->fd, c->out, LENGTH_BYTES + frame, until);
	c->may_close = !ret;
	return ret;
}

/* Decrypts the frame that has come. */
static int open_frame(struct cairn_control_channel *c, struct cairn_channel_message *m)
{
	unsigned long long clear = 0;
	unsigned char tag = 0xff;
	const size_t num = get_u32(c->length);

	CAIRN_TRY(grow(&c->clear, &c->clear_room, KIND_BYTES + num));
	/* malloc's memory is 16-byte aligned, so the data behind 4 + 4 bytes are 8-byte aligned */
	if (c->sodium->crypto_secretstream_xchacha20poly1305_pull(&c->pull, c->clear + 4, &clear, &tag,
								  c->frame, num, c->length, LENGTH_BYTES))
		return cairn_error(EACCES, "channel: a frame is not from the peer: another secret, or a "
				   "connection that was tampered with");
	c->got = 0;
	c->closed = tag == SODIUM_TAG_FINAL;
	if (c->closed)
		return lost("the peer has closed the connection");
	if (tag != SODIUM_TAG_MESSAGE || clear < KIND_BYTES)
		return cairn_error(EINVAL, "channel: a frame has tag %d and %llu bytes", tag, clear);
	*m = (struct cairn_channel_message){
		.kind = get_u32(c->clear + 4), .data = c->clear + 4 + KIND_BYTES,
		.num_bytes = (size_t)clear - KIND_BYTES,
	};
	return 0;
}

static int receive_frame(struct cairn_control_channel *c, struct cairn_channel_message *m, int64_t until)
{
	size_t frame, got;
	int ret;

	if (c->got < LENGTH_BYTES)
		CAIRN_TRY(read_until(c->fd, c->length, LENGTH_BYTES, &c->got, until));
	frame = get_u32(c->length);
	if (frame < SODIUM_FRAME_BYTES + KIND_BYTES || frame > MAX_FRAME)
		return cairn_error(EINVAL, "channel: a frame has %zu bytes", frame);
	CAIRN_TRY(grow(&c->frame, &c->room, frame));
	got = c->got - LENGTH_BYTES;
	ret = read_until(c->fd, c->frame, frame, &got, until);
	c->got = LENGTH_BYTES + got;
	return ret ? ret : open_frame(c, m);
}

/* ---- handshake ---- */

static int check_hello(const struct hello *h, enum cairn_channel_side side)
{
	if (memcmp(h->magic, MAGIC, sizeof(h->magic)))
		return cairn_error(EINVAL, "channel: the peer does not speak this protocol");
	if (get_u32((const uint8_t *)&h->version) != VERSION)
		return cairn_error(EPROTONOSUPPORT, "channel: the peer has version %u of the protocol, not "
				   "%d",
				   get_u32((const uint8_t *)&h->version), VERSION);
	if (get_u32((const uint8_t *)&h->side) != (side == CAIRN_CHANNEL_LEAD))
		return cairn_error(EINVAL, "channel: the peer is a %s, too",
				   side == CAIRN_CHANNEL_LEAD ? "lead" : "member");
	return 0;
}

/* Hashes the session key, both hellos and the direction, keyed by the secret. */
static void derive(const struct sodium *s, uint8_t key[SODIUM_KEY_BYTES], const uint8_t *session,
		   const struct hello *lead, const struct hello *member, int from_lead, const uint8_t *secret)
{
	static const uint8_t none[CAIRN_SECRET_BYTES];
	uint8_t all[SODIUM_KEY_BYTES + 2 * sizeof(*lead) + 1];

	memcpy(all, session, SODIUM_KEY_BYTES);
	memcpy(all + SODIUM_KEY_BYTES, lead, sizeof(*lead));
	memcpy(all + SODIUM_KEY_BYTES + sizeof(*lead), member, sizeof(*member));
	all[sizeof(all) - 1] = (uint8_t)from_lead;
	s->crypto_generichash(key, SODIUM_KEY_BYTES, all, sizeof(all), secret ? secret : none,
			      CAIRN_SECRET_BYTES);
	s->sodium_memzero(all, sizeof(all));
}

/* Derives the keys and starts both streams; header: that of ours. */
static int start_streams(struct cairn_control_channel *c, const struct hello *own, const struct hello *peer,
			 const uint8_t *own_key, enum cairn_channel_side side, const uint8_t *secret,
			 uint8_t header[SODIUM_HEADER_BYTES], uint8_t pull_key[SODIUM_KEY_BYTES])
{
	const struct sodium *s = c->sodium;
	const int leads = side == CAIRN_CHANNEL_LEAD;
	uint8_t rx[SODIUM_KEY_BYTES], tx[SODIUM_KEY_BYTES], push_key[SODIUM_KEY_BYTES];
	int bad = leads ? s->crypto_kx_server_session_keys(rx, tx, own->key, own_key, peer->key) :
		  s->crypto_kx_client_session_keys(rx, tx, own->key, own_key, peer->key);

	if (!bad) {
		derive(s, push_key, tx, leads ? own : peer, leads ? peer : own, leads, secret);
		derive(s, pull_key, rx, leads ? own : peer, leads ? peer : own, !leads, secret);
		s->crypto_secretstream_xchacha20poly1305_init_push(&c->push, header, push_key);
	}
	s->sodium_memzero(rx, sizeof(rx));
	s->sodium_memzero(tx, sizeof(tx));
	s->sodium_memzero(push_key, sizeof(push_key));
	return bad ? cairn_error(EINVAL, "channel: the peer has an invalid key") : 0;
}

static int confirm(struct cairn_control_channel *c, const uint8_t *header, const uint8_t *pull_key,
		   int64_t until)
{
	uint8_t theirs[SODIUM_HEADER_BYTES];
	struct cairn_channel_message m = { .kind = CONFIRM };
	size_t got = 0;

	CAIRN_TRY(write_all(c->fd, header, SODIUM_HEADER_BYTES, until));
	CAIRN_TRY(send_frame(c, CONFIRM, CONFIRM_TEXT, sizeof(CONFIRM_TEXT), SODIUM_TAG_MESSAGE, until));
	CAIRN_TRY(read_until(c->fd, theirs, sizeof(theirs), &got, until));
	c->sodium->crypto_secretstream_xchacha20poly1305_init_pull(&c->pull, theirs, pull_key);
	CAIRN_TRY(receive_frame(c, &m, until));
	if (m.kind != CONFIRM || m.num_bytes != sizeof(CONFIRM_TEXT) ||
	    memcmp(m.data, CONFIRM_TEXT, sizeof(CONFIRM_TEXT)))
		return cairn_error(EINVAL, "channel: the peer's first message is no confirmation");
	return 0;
}

static int shake_hands(struct cairn_control_channel *c, enum cairn_channel_side side, const uint8_t *secret,
		       int64_t until)
{
	const struct sodium *s = c->sodium;
	struct hello own = { .magic = MAGIC }, peer;
	uint8_t header[SODIUM_HEADER_BYTES], key[SODIUM_KEY_BYTES], pull_key[SODIUM_KEY_BYTES];
	size_t got = 0;
	int ret;

	put_u32((uint8_t *)&own.version, VERSION);
	put_u32((uint8_t *)&own.side, side == CAIRN_CHANNEL_MEMBER);
	s->crypto_kx_keypair(own.key, key);
	ret = write_all(c->fd, (const uint8_t *)&own, sizeof(own), until);
	if (!ret)
		ret = read_until(c->fd, (uint8_t *)&peer, sizeof(peer), &got, until);
	if (!ret)
		ret = check_hello(&peer, side);
	if (!ret)
		ret = start_streams(c, &own, &peer, key, side, secret, header, pull_key);
	if (!ret)
		ret = confirm(c, header, pull_key, until);
	s->sodium_memzero(key, sizeof(key));
	s->sodium_memzero(pull_key, sizeof(pull_key));
	return ret;
}

/*
 * A message must not wait for the acknowledgement of the one before. A machine that vanishes closes no
 * connection: its members' beats are then not acknowledged, and the kernel ends the connection. On a Unix
 * socket the calls fail, and nothing is lost.
 */
static void tune(int fd)
{
	const int on = 1, vanished = CAIRN_CHANNEL_VANISHED_MS;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &vanished, sizeof(vanished));
}

int cairn_channel_open(struct cairn_control_channel **out, int fd, enum cairn_channel_side side,
		       const uint8_t *secret, int timeout_ms)
{
	const struct sodium *s = NULL;
	struct cairn_control_channel *c = NULL;
	int ret = sodium_load(&s);

	if (!ret && !secret && !peer_is_here(fd))
		ret = cairn_error(EACCES, "channel: a peer on another machine needs a secret");
	if (!ret) {
		c = calloc(1, sizeof(*c));
		ret = c ? 0 : cairn_error(ENOMEM, "channel: no memory");
	}
	if (ret) {
		close(fd);
		return ret;
	}
	c->sodium = s;
	c->fd = fd;
	tune(fd);
	ret = shake_hands(c, side, secret, now_ms() + timeout_ms);
	c->ended = ret != 0;
	if (ret)
		cairn_channel_close(c);
	else
		*out = c;
	return ret;
}

void cairn_channel_close(struct cairn_control_channel *c)
{
	if (!c)
		return;
	if (!c->ended && c->may_close)
		send_frame(c, 1, NULL, 0, SODIUM_TAG_FINAL, 0);
	close(c->fd);
	c->sodium->sodium_memzero(&c->push, sizeof(c->push));
	c->sodium->sodium_memzero(&c->pull, sizeof(c->pull));
	if (c->clear)
		c->sodium->sodium_memzero(c->clear, c->clear_room);
	if (c->out)
		c->sodium->sodium_memzero(c->out, c->out_room);
	free(c->frame);
	free(c->clear);
	free(c->out);
	free(c);
}

int cairn_channel_was_closed(const struct cairn_control_channel *c)
{
	return c->closed;
}

int cairn_channel_fd(const struct cairn_control_channel *c)
{
	return c->fd;
}

int cairn_channel_send(struct cairn_control_channel *c, uint32_t kind, const void *data, size_t num_bytes,
		       int timeout_ms)
{
	int ret;

	if (c->ended)
		return lost("the channel has ended");
	if (kind == CONFIRM || num_bytes > CAIRN_CHANNEL_MAX)
		return cairn_error(EINVAL, "channel: a message of kind %u has %zu bytes", kind, num_bytes);
	ret = send_frame(c, kind, data, num_bytes, SODIUM_TAG_MESSAGE, now_ms() + timeout_ms);
	c->ended = ret != 0;
	return ret;
}

int cairn_channel_receive(struct cairn_control_channel *c, struct cairn_channel_message *m, int timeout_ms)
{
	int ret;

	if (c->ended)
		return lost("the channel has ended");
	ret = receive_frame(c, m, now_ms() + timeout_ms);
	if (!ret && m->kind == CONFIRM)
		ret = cairn_error(EINVAL, "channel: the peer confirms twice");
	c->ended = ret && ret != -ETIMEDOUT;
	return ret;
}

/* ---- secrets ---- */

static int read_secret(int fd, const char *path, uint8_t secret[CAIRN_SECRET_BYTES])
{
	uint8_t text[MAX_SECRET + 1];
	const struct sodium *s;
	struct stat st;
	size_t num = 0;
	ssize_t n;

	CAIRN_TRY(sodium_load(&s));
	if (fstat(fd, &st) || !S_ISREG(st.st_mode))
		return cairn_error(EINVAL, "%s: is no file", path);
	if (st.st_mode & 077)
		return cairn_error(EACCES, "%s: others than its owner may access it: chmod 600", path);
	while (num < sizeof(text) && (n = read(fd, text + num, sizeof(text) - num)) > 0)
		num += (size_t)n;
	if (num >= MIN_SECRET && num <= MAX_SECRET)
		s->crypto_generichash(secret, CAIRN_SECRET_BYTES, text, num, NULL, 0);
	s->sodium_memzero(text, sizeof(text));
	return num >= MIN_SECRET && num <= MAX_SECRET ? 0 :
	       cairn_error(EINVAL, "%s: has %s bytes, not %d to %d", path, num > MAX_SECRET ? "more" :
			   "fewer", MIN_SECRET, MAX_SECRET);
}

int cairn_secret_load(uint8_t secret[CAIRN_SECRET_BYTES], const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), ret;

	if (fd < 0)
		return cairn_error(EIO, "%s: %s", path, strerror(errno));
	ret = read_secret(fd, path, secret);
	close(fd);
	return ret;
}
