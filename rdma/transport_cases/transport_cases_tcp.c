// SPDX-License-Identifier: Apache-2.0
/*
 * transport_cases_tcp.c - cases of the tcp back end alone: strangers, cut connections, resets with bytes in
 * flight, frames and acknowledgements that no peer sends, a stopped peer
 *
 * Rank 0 is the attacker and opens sockets of its own; rank 1 is attacked.
 */
#include "rdma/transport_cases/transport_detour.h"

#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rdma/transport/transport_tcp.h"

#define HALF	END_HALF

static int opened(struct end *e)
{
	if (!end_want(e, !end_open(e, HALF), "end_open", __FILE__, __LINE__))
		return 0;
	if (strcmp(e->t->ops->name, "tcp"))
		end_skip(e, "a case of tcp");
	return !e->skipped;
}

/* Both ends get each other's address of a channel. */
static int addresses(struct end *e, int channel, struct cairn_blob *theirs)
{
	struct cairn_blob mine;

	CAIRN_TRY(e->table->channel_address(e->c[channel], &mine));
	return end_exchange(e, &mine, theirs, sizeof(mine));
}

/* Returns 1 if the connection was closed within `ms`. */
static int closed(int fd, int ms)
{
	double limit = end_now() + ms * 1e-3;
	uint8_t byte[256];

	while (end_now() < limit) {
		struct pollfd f = { .fd = fd, .events = POLLIN };

		if (poll(&f, 1, 10) > 0 && recv(fd, byte, sizeof(byte), 0) <= 0)
			return 1;
	}
	return 0;
}

static void say(int fd, const void *p, size_t bytes)
{
	if (send(fd, p, bytes, MSG_NOSIGNAL) < 0)
		return;		/* the attacked end may have closed the connection already */
}

static struct tcp_greeting hello_to(const struct cairn_blob *address)
{
	struct tcp_greeting g = { .magic = TCP_HELLO, .version = TCP_VERSION };
	struct tcp_address a;

	memcpy(&a, address->bytes, sizeof(a));
	memcpy(g.secret, a.token, sizeof(g.secret));
	return g;
}

/* Dials, says something and returns 1 if the other end closes the connection in time. */
static int turned_away(const struct cairn_blob *address, const void *p, size_t bytes, int ms)
{
	int fd = detour_dial(address), ok;

	if (fd < 0)
		return 0;
	say(fd, p, bytes);
	ok = closed(fd, ms);
	close(fd);
	return ok;
}

static void attack(struct end *e, const struct cairn_blob *connected, const struct cairn_blob *free_one)
{
	struct tcp_greeting g = hello_to(connected);
	int fds[3 * TCP_STRANGERS], i, gone = 0;
	uint64_t noise[8];
	double begin;

	for (i = 0; i < 8; i++)
		noise[i] = e->rng * (unsigned)(2 * i + 3);
	WANT(e, turned_away(free_one, noise, sizeof(noise), 1000));
	WANT(e, turned_away(connected, &g, sizeof(g), 1000));	/* this channel has its connection */
	g = hello_to(free_one);
	g.secret[TCP_SECRET - 1] ^= 1;
	WANT(e, turned_away(free_one, &g, sizeof(g), 1000));
	g.secret[TCP_SECRET - 1] ^= 1;
	g.version++;
	WANT(e, turned_away(free_one, &g, sizeof(g), 1000));
	g.version--;
	g.magic = TCP_WELCOME;
	WANT(e, turned_away(free_one, &g, sizeof(g), 1000));
	begin = end_now();		/* half a hello is held for TCP_HELLO_MS */
	WANT(e, turned_away(free_one, &g, sizeof(g) / 2, 2 * TCP_HELLO_MS));
	WANT(e, end_now() - begin > TCP_HELLO_MS * 0.9e-3);
	for (i = 0; i < 3 * TCP_STRANGERS; i++)
		fds[i] = detour_dial(free_one);
	for (i = 0; i < 3 * TCP_STRANGERS; i++)
		gone += i < 2 * TCP_STRANGERS ? closed(fds[i], 500) : closed(fds[i], 1);
	WANT(e, gone == 2 * TCP_STRANGERS);
	for (i = 0; i < 3 * TCP_STRANGERS; i++)
		close(fds[i]);
}

/* A peer that does not present a channel's token is disconnected and does not disturb the others. */
static void strangers(struct end *e)
{
	struct cairn_blob first, second;

	if (!opened(e))
		return;
	NEED(e, !e->table->channel_reset(e->c[1]));
	NEED(e, !addresses(e, 0, &first) && !addresses(e, 1, &second));
	if (!e->rank)
		attack(e, &first, &second);
	WANT(e, !e->table->channel_error(e->c[0]) && !e->table->channel_error(e->c[1]));
	end_still_works(e, 1);
}

/* Connects channel 0 again; rank 0's puts go through a relay. */
static void connect_by(struct end *e, enum detour_kind kind, uint64_t number)
{
	struct cairn_blob theirs;

	NEED(e, !e->table->channel_reset(e->c[0]));
	NEED(e, !addresses(e, 0, &theirs));
	if (!e->rank)
		NEED(e, !detour(e, &theirs, kind, number));
	NEED(e, !e->table->channel_connect(e->c[0], &theirs, WAIT_MS));
	NEED(e, !end_barrier(e));
}

/* The connection is cut at any byte: both ends notice, and no signal has come without its payload. */
static void cut(struct end *e)
{
	int rounds = e->plan->quick ? 20 : 100, i, ret;
	uint64_t k, at;

	if (!opened(e))
		return;
	for (i = 0; i < rounds && !e->failures; i++) {
		at = sizeof(struct tcp_greeting) + 1;
		at += end_random(e, 8 * (sizeof(struct tcp_frame) + 300) - 2);
		connect_by(e, DETOUR_CUT, at);
		end_set(e, HALF, 0xee, HALF);
		NEED(e, !end_barrier(e));
		for (k = 0, ret = 0; k < 8 && !e->rank && !ret; k++) {
			end_fill(e, k * 512 + GUARD, 300, k + 1);
			ret = end_put(e, 0, k * 512 + GUARD, k * 512 + GUARD, 300, 0, k + 1);
		}
		if (!e->rank)
			WANT(e, e->table->flush(e->c[0], WAIT_MS) == -ECONNRESET);
		for (k = 0; k < 8 && e->rank; k++) {
			ret = end_wait(e, 0, 0, k + 1);
			if (ret)
				break;
			WANT(e, end_check(e, HALF + k * 512 + GUARD, 300, k + 1));
		}
		if (e->rank)
			WANT(e, k < 8 && ret == -ECONNRESET);
		WANT(e, e->table->channel_error(e->c[0]) == -ECONNRESET);
		NEED(e, !end_barrier(e));
	}
	end_start_again(e);
	end_still_works(e, 1);
}

/* An address from before a reset reaches nothing. */
static void old_address(struct end *e)
{
	struct cairn_blob theirs;

	if (!opened(e))
		return;
	NEED(e, !addresses(e, 0, &theirs));
	NEED(e, !e->table->channel_reset(e->c[0]));
	NEED(e, !end_barrier(e));
	WANT(e, e->table->channel_connect(e->c[0], &theirs, WAIT_MS) == -ECONNRESET);
	WANT_ERROR(e, "no channel with this address");
	end_start_again(e);
	end_still_works(e, 1);
}

/* A put is on its way while the receiver resets: it must not arrive. */
static void late_bytes(struct end *e)
{
	int i;

	if (!opened(e))
		return;
	connect_by(e, DETOUR_HOLD, 100);
	if (!e->rank)
		NEED(e, !end_put(e, 0, GUARD, GUARD, 1000, 0, 1));
	NEED(e, !end_barrier(e));
	if (e->rank) {
		NEED(e, !e->table->channel_reset(e->c[0]));
		end_set(e, HALF, 0xee, HALF);
	}
	detour_end(e);		/* rank 0's, whose channel has failed */
	NEED(e, !end_barrier(e));
	end_nap(100);
	for (i = 0; e->rank && i < (int)HALF; i++)
		NEED(e, e->host[HALF + (unsigned)i] == 0xee);
	end_start_again(e);
	end_still_works(e, 1);
}

/* ---- frames that no peer sends ---- */

enum { NOISE, SHORT, ENDLESS, OUTSIDE, NO_KEY, NO_SLOT, NO_ORDER, BIT, ACKS, NUM_FRAMES };

/* Builds a wrong message of a kind, `space` bytes at most; returns its size. The region has HALF bytes. */
static size_t wrong(struct end *e, uint64_t n, uint64_t key, uint8_t *to, size_t space)
{
	static const uint64_t sizes[] = { UINT64_MAX, 1ull << 63, HALF + 1, UINT64_MAX - 4000, 1ull << 40 };
	static const uint64_t places[] = {
		UINT64_MAX - 7, HALF - 7, HALF, 1ull << 63, HALF + 4096, UINT32_MAX,
	};
	static const uint32_t bad_slots[] = { 64, 65, INT32_MAX, 0xfffffffeu, 4096 };
	struct tcp_frame f = { .magic = TCP_PUT, .key = key, .bytes = 8, .value = 1, .word = 7 };
	size_t i, bytes = sizeof(f) + 1000;

	switch (n % NUM_FRAMES) {
	case ENDLESS:	f.bytes = sizes[end_random(e, 5)]; bytes = space; break;
	case OUTSIDE:	f.offset = places[end_random(e, 6)]; break;
	case NO_KEY:	f.key ^= 1ull << end_random(e, 64); break;
	case NO_SLOT:	f.slot = bad_slots[end_random(e, 5)]; break;
	case NO_ORDER:	f.index = 1 + end_random(e, 5); break;
	case SHORT:	f.bytes = 1000; bytes = 1 + end_random(e, sizeof(f) + 998); break;
	case BIT:	((uint8_t *)&f)[end_random(e, sizeof(f))] ^= (uint8_t)(1u << end_random(e, 8)); break;
	}
	for (i = 0; i < space; i++)
		to[i] = (uint8_t)end_random(e, 256);
	if (n % NUM_FRAMES != NOISE)
		memcpy(to, &f, sizeof(f));
	return bytes < space ? bytes : space;
}

/* Takes the place of the peer that the other end dials. Returns the connection, or -1 after a failure. */
static int take_place(struct end *e, int listener)
{
	const struct timeval limit = { .tv_sec = WAIT_MS / 1000 };
	struct tcp_greeting g;
	struct tcp_address mine;
	struct cairn_blob blob;
	int fd;

	setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));	/* also limits accept() */
	fd = accept(listener, NULL, NULL);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	if (!WANT(e, fd >= 0 && recv(fd, &g, sizeof(g), MSG_WAITALL) == sizeof(g)) ||
	    !WANT(e, !e->table->channel_address(e->c[0], &blob))) {
		if (fd >= 0)
			close(fd);
		return -1;
	}
	memcpy(&mine, blob.bytes, sizeof(mine));
	g.magic = TCP_WELCOME;
	memcpy(g.secret, mine.reply, sizeof(g.secret));
	say(fd, &g, sizeof(g));
	return fd;
}

/* Takes the place of a peer and acknowledges what was not sent. */
static void false_acks(struct end *e, int listener)
{
	struct tcp_ack a = { .magic = TCP_ACK, .done = 2 + end_random(e, 1u << 20) };
	int fd = take_place(e, listener);

	NEED(e, fd >= 0);
	switch (end_random(e, 4)) {
	case 0:	a.magic++; break;
	case 1:	a.done = 0; a.refused = 1; break;	/* refuses a put that was not sent */
	case 2:	a.done = UINT64_MAX; a.refused = 2; break;
	}
	say(fd, &a, sizeof(a));
	WANT(e, closed(fd, 2000));
	close(fd);
}

static void attacker(struct end *e, uint64_t n, const struct cairn_blob *theirs, uint64_t key)
{
	struct tcp_greeting g = hello_to(theirs);
	int fd = detour_dial(theirs);
	uint8_t bytes[8192];
	size_t size = wrong(e, n, key, bytes, sizeof(bytes));

	NEED(e, fd >= 0);
	say(fd, &g, sizeof(g));
	WANT(e, recv(fd, &g, sizeof(g), MSG_WAITALL) == sizeof(g) && g.magic == TCP_WELCOME);
	say(fd, bytes, size);
	shutdown(fd, SHUT_WR);
	WANT(e, closed(fd, 2000));
	close(fd);
}

/* Whatever arrives after a hello ends the channel, writes only to the region named by the key, and sets no
 * signal. */
static void frames(struct end *e)
{
	uint64_t rounds = e->plan->quick ? 10 * NUM_FRAMES : 120 * NUM_FRAMES, n, i;
	struct cairn_region *middle = NULL;
	struct cairn_blob key, theirs, mine;
	double limit;
	int listener, err;

	if (!opened(e))
		return;
	NEED(e, !e->table->region_register(e->t, e->buf + HALF / 2, HALF, CAIRN_MEMORY_HOST, &middle));
	NEED(e, !e->table->region_key(middle, &mine) && !end_exchange(e, &mine, &key, sizeof(key)));
	for (n = 0; n < rounds && !e->failures; n++) {
		int acks = n % NUM_FRAMES == ACKS;

		NEED(e, !e->table->channel_reset(e->c[0]));
		NEED(e, !e->table->channel_address(e->c[0], &mine));
		listener = !e->rank && acks ? detour_listen(&mine) : -1;
		NEED(e, !end_exchange(e, &mine, &theirs, sizeof(mine)));
		if (!e->rank && acks) {
			false_acks(e, listener);
			close(listener);
		} else if (!e->rank) {
			attacker(e, n, &theirs, *(const uint64_t *)key.bytes);
		} else if (acks) {
			WANT(e, !e->table->channel_connect(e->c[0], &theirs, WAIT_MS));
		}
		for (limit = end_now() + 2; e->rank && !atomic_load(&e->c[0]->error) && end_now() < limit;)
			transport_pause(20000);
		err = e->rank ? e->table->channel_error(e->c[0]) : 0;
		if (e->rank && n % NUM_FRAMES == BIT)	/* any bit, also one of the value */
			WANT(e, err == -EIO || err == -EACCES || err == -ECONNRESET);
		else if (e->rank)
			WANT(e, err == (n % NUM_FRAMES >= ENDLESS && n % NUM_FRAMES <= NO_KEY ? -EACCES :
					n % NUM_FRAMES == SHORT ? -ECONNRESET : -EIO) ||
			     (n % NUM_FRAMES == NOISE && err));
		for (i = 0; e->rank && i < 2 * HALF; i++)
			NEED(e, e->host[i] == 0xee || (i >= HALF / 2 && i < HALF / 2 + HALF));
		for (i = 0; e->rank && i < 64 && n % NUM_FRAMES != BIT; i++)
			NEED(e, !((struct tcp_channel *)e->c[0])->slots[i].value);
		NEED(e, !end_barrier(e));
	}
	end_start_again(e);
	end_still_works(e, 1);
}

/* Takes the place of a peer, reads no more of a put than its frame and answers; waits for the other end. */
static void answer_early(struct end *e, int listener, const struct tcp_ack *a)
{
	int fd = take_place(e, listener);
	struct tcp_frame f;

	if (fd < 0)
		return;
	WANT(e, recv(fd, &f, sizeof(f), MSG_WAITALL) == sizeof(f));
	say(fd, a, sizeof(*a));
	WANT(e, !end_barrier(e));
	close(fd);
}

/*
 * A peer that has seen only the beginning of a put may refuse the put, but not acknowledge it: this end still
 * reads its source and its place in the ring. The peer's small buffer keeps most of the put at this end.
 */
static void early_acks(struct end *e)
{
	static const struct {
		struct tcp_ack a;
		int want;
	} answers[] = {
		{ { .magic = TCP_ACK, .done = 1 }, -EIO },
		{ { .magic = TCP_ACK, .done = 0, .refused = TCP_REFUSED_BOUNDS }, -EACCES },
	};
	const uint64_t big = 8 << 20;
	struct cairn_blob mine, theirs;
	int small = 4096, listener, i;

	NEED(e, !end_open(e, big));
	if (strcmp(e->t->ops->name, "tcp"))
		end_skip(e, "a case of tcp");
	for (i = 0; i < (int)(sizeof(answers) / sizeof(answers[0])) && !e->failures && !e->skipped; i++) {
		NEED(e, !e->table->channel_reset(e->c[0]) && !e->table->channel_address(e->c[0], &mine));
		listener = e->rank ? -1 : detour_listen(&mine);
		setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
		NEED(e, !end_exchange(e, &mine, &theirs, sizeof(mine)));
		if (!e->rank) {
			answer_early(e, listener, &answers[i].a);
			close(listener);
			continue;
		}
		NEED(e, !e->table->channel_connect(e->c[0], &theirs, WAIT_MS));
		NEED(e, !end_put(e, 0, 0, 0, big, CAIRN_NO_SIGNAL, 0));
		WANT(e, e->table->flush(e->c[0], e->plan->wait_ms) == answers[i].want);
		WANT(e, !((struct tcp_channel *)e->c[0])->sent);
		NEED(e, !end_barrier(e));
	}
}

/* While a channel moves large payloads, a put of another channel arrives. */
static void fair(struct end *e)
{
	const uint64_t big = 8 << 20, num = 32;
	int attempt, ahead = 0, i;

	NEED(e, !end_open(e, big));
	if (strcmp(e->t->ops->name, "tcp"))
		end_skip(e, "a case of tcp");
	for (attempt = 1; attempt <= 5 && !ahead && !e->skipped; attempt++) {
		for (i = 0; i < (int)num && !e->rank; i++)
			NEED(e, !end_put(e, 0, 0, 0, big, CAIRN_NO_SIGNAL, 0));
		if (!e->rank) {
			NEED(e, !end_signal(e, 1, 0, (unsigned)attempt, 0));
			NEED(e, !end_wait(e, 1, 1, (unsigned)attempt));
			/* this thread may have been kept from running for as long, so one attempt suffices */
			ahead = e->table->flush(e->c[0], 0) == -ETIMEDOUT;
			NEED(e, !e->table->flush(e->c[0], WAIT_MS));
		} else {
			NEED(e, !end_wait(e, 1, 0, (unsigned)attempt));
			NEED(e, !end_signal(e, 1, 1, (unsigned)attempt, 0));
		}
		NEED(e, !end_exchange(e, &ahead, &i, sizeof(i)));
		ahead |= i;
	}
	WANT(e, ahead || e->skipped);
}

/* Opens the case between two processes and gets the peer's id. Returns 0 if the case cannot go on. */
static int opened_between_processes(struct end *e, pid_t *theirs)
{
	pid_t mine = getpid();

	if (!e->plan->processes) {
		end_skip(e, "needs two processes");
		return 0;
	}
	return opened(e) && WANT(e, !end_exchange(e, &mine, theirs, sizeof(mine)));
}

/* A stopped peer is late, not gone. What it sends after this end has reset does not arrive. */
static void stopped(struct end *e)
{
	pid_t theirs;
	uint64_t i;

	if (!opened_between_processes(e, &theirs))
		return;
	NEED(e, !end_barrier(e));
	if (e->rank) {
		for (i = 1; !end_put(e, 0, 0, 0, HALF, 3, i); i++)
			;
		WANT(e, e->table->channel_error(e->c[0]) == -ECONNRESET);
	} else {
		NEED(e, !end_wait(e, 0, 3, 100));
		NEED(e, !kill(theirs, SIGSTOP));
		WANT(e, e->table->wait(e->c[0], 0, 1, 100, NULL) == -ETIMEDOUT);
		WANT(e, !end_signal(e, 0, 0, 1, 0) && e->table->flush(e->c[0], 50) == -ETIMEDOUT);
		WANT(e, !e->table->channel_error(e->c[0]));
		WANT(e, !e->table->channel_reset(e->c[0]));
		end_set(e, HALF, 0xee, HALF);
		NEED(e, !kill(theirs, SIGCONT));
	}
	NEED(e, !end_barrier(e));
	for (i = 0; i < HALF && !e->rank; i++)
		NEED(e, e->host[HALF + i] == 0xee);
	end_start_again(e);
	end_still_works(e, 1);
}

/* A killed peer is noticed within the time that the layers above allow for it. */
static void peer_gone_killed(struct end *e)
{
	pid_t theirs;
	double begin;

	if (!opened_between_processes(e, &theirs))
		return;
	if (e->rank)
		WANT(e, e->table->wait(e->c[0], 0, 1, WAIT_MS, NULL) == 0);	/* is killed here */
	end_nap(50);
	begin = end_now();
	NEED(e, !kill(theirs, SIGKILL));
	WANT(e, e->table->wait(e->c[0], 0, 1, WAIT_MS, NULL) == -ECONNRESET);
	WANT(e, end_now() - begin < 1);
	printf("# a killed peer was noticed after %.2f ms\n", (end_now() - begin) * 1e3);
}

/* Takes loopback down or up, in this process's own network. */
static int loopback(int up)
{
	struct ifreq r = { .ifr_name = "lo", .ifr_flags = (short)(up ? IFF_UP : 0) };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	int ret = ioctl(fd, SIOCSIFFLAGS, &r);

	close(fd);
	return ret;
}

/* The network between the ends is gone, so nothing says that the peer is: both the end that sends and the one
 * that waits notice. Once the network is back, a reset suffices. */
static void vanished(struct end *e)
{
	int mine = e->plan->own_network && (e->rank || !loopback(1)), theirs;
	double begin;

	NEED(e, !end_exchange(e, &mine, &theirs, sizeof(mine)));
	if (!mine || !theirs) {
		end_skip(e, "this process may not have a network of its own");
		return;
	}
	if (!opened(e))
		return;
	end_still_works(e, 1);
	NEED(e, !end_barrier(e));
	NEED(e, e->rank || !loopback(0));
	NEED(e, !end_barrier(e));
	begin = end_now();
	if (!e->rank)
		WANT(e, !end_signal(e, 0, 0, 1, 0) && e->table->flush(e->c[0], 30000) == -ECONNRESET);
	else
		WANT(e, e->table->wait(e->c[1], 0, 1, 30000, NULL) == -ECONNRESET);
	WANT_ERROR(e, "the peer is gone");
	WANT(e, end_now() - begin > TCP_VANISHED_MS * 0.5e-3 && end_now() - begin < TCP_VANISHED_MS * 3e-3);
	printf("# rank %d noticed a vanished peer after %.1f s\n", e->rank, end_now() - begin);
	NEED(e, !end_barrier(e));
	NEED(e, e->rank || !loopback(1));
	NEED(e, !end_barrier(e));
	end_start_again(e);
	end_still_works(e, 1);
}

const struct end_case transport_tcp_cases[] = {
	{ "strangers", strangers }, { "cut", cut }, { "old_address", old_address },
	{ "late_bytes", late_bytes }, { "frames", frames }, { "early_acks", early_acks },
	{ "fair", fair }, { "stopped", stopped },
	{ "peer_gone_killed", peer_gone_killed }, { "vanished", vanished }, { NULL, NULL },
};
