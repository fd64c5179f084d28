// SPDX-License-Identifier: Apache-2.0
/* rendezvous - ranks of several nodes find each other */
#include "serving/ranks/rendezvous.h"

#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "primitives/base/error.h"
#include "serving/base/clock.h"

enum { JOIN = 1, JOINED };	/* kinds of messages */

#define HANDSHAKE_MS	3000
#define RETRY_MS	50	/* between two attempts to connect */
#define MAX_RANKS	64

/* The answer to struct cairn_join. */
struct joined {
	char why[256];		/* "": it may join */
};

/* ---- who this node is ---- */

static int read_number(const char *name, const char *text, int32_t *to)
{
	char *end;
	long v = strtol(text, &end, 10);

	if (end == text || *end || v < 0 || v > INT32_MAX)
		return cairn_error(EINVAL, "%s: '%.32s' is no number of nodes or of a node", name, text);
	*to = (int32_t)v;
	return 0;
}

int cairn_rendezvous_from_env(struct cairn_rendezvous *r, char *(*get)(const char *name))
{
	static const char *const names[][2] = {
		{ "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK" }, { "PMI_SIZE", "PMI_RANK" },
		{ "SLURM_NTASKS", "PMIX_RANK" }, { "SLURM_NTASKS", "SLURM_PROCID" },
		{ "LWS_GROUP_SIZE", "LWS_WORKER_INDEX" },
	};

	for (size_t i = 0; !r->nodes && i < sizeof(names) / sizeof(names[0]); i++) {
		const char *size = get(names[i][0]), *rank = get(names[i][1]);

		if (!size || !rank)
			continue;
		CAIRN_TRY(read_number(names[i][0], size, &r->nodes));
		CAIRN_TRY(read_number(names[i][1], rank, &r->node));
		if (r->node >= r->nodes)
			return cairn_error(EINVAL, "%s: is %d, %s is %d", names[i][1], r->node, names[i][0],
					   r->nodes);
	}
	return r->nodes ? 0 : cairn_error(EINVAL, "--rendezvous: needs --nodes and --node-rank, or the "
					  "variables of Open MPI, PMI, PMIx, Slurm or LeaderWorkerSet");
}

/* ---- addresses ---- */

/* Finds the address; the caller frees *out. */
static int resolve(const char *address, int passive, struct addrinfo **out)
{
	const struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = passive ? AI_PASSIVE : 0 };
	const char *colon = strrchr(address, ':'), *leader = getenv("LWS_LEADER_ADDRESS");
	char host[256];
	int n = colon ? (int)(colon - address) : 0, ret;

	if (!colon || !colon[1] || n >= (int)sizeof(host) ||
	    strspn(colon + 1, "0123456789") != strlen(colon + 1) || strtol(colon + 1, NULL, 10) > 65535)
		return cairn_error(EINVAL, "--rendezvous: '%.64s' is not HOST:PORT", address);
	if (n > 1 && address[0] == '[' && address[n - 1] == ']')
		snprintf(host, sizeof(host), "%.*s", n - 2, address + 1);
	else
		snprintf(host, sizeof(host), "%.*s", n, address);
	if (!n && !leader)
		return cairn_error(EINVAL, "--rendezvous: '%.64s' has no host, and there is no variable "
				   "LWS_LEADER_ADDRESS", address);
	ret = getaddrinfo(n ? host : leader, colon + 1, &hints, out);
	return ret ? cairn_error(EINVAL, "--rendezvous: %.64s: %s", address, gai_strerror(ret)) : 0;
}

static int listen_at(const char *address, int *fd)
{
	struct addrinfo *a;
	int one = 1, bad;

	CAIRN_TRY(resolve(address, 1, &a));
	*fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	bad = *fd < 0 || setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) ||
	      bind(*fd, a->ai_addr, a->ai_addrlen) || listen(*fd, MAX_RANKS);
	bad = bad ? errno : 0;
	freeaddrinfo(a);
	if (bad && *fd >= 0)
		close(*fd);
	return bad ? cairn_error(bad, "--rendezvous: %.64s: %s", address, strerror(bad)) : 0;
}

/* Connects within ms. The error number is negative and has no text. */
static int connect_once(const struct addrinfo *a, int ms, int *fd)
{
	struct pollfd p = { .events = POLLOUT };
	socklen_t len = sizeof(int);
	int error = 0;

	*fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (*fd < 0)
		return -errno;
	p.fd = *fd;
	if (connect(*fd, a->ai_addr, a->ai_addrlen))
		error = errno == EINPROGRESS ? 0 : errno;
	if (!error && poll(&p, 1, ms) != 1)
		error = ETIMEDOUT;
	if (!error && getsockopt(*fd, SOL_SOCKET, SO_ERROR, &error, &len))
		error = errno;
	if (error)
		close(*fd);
	return -error;
}

/* A message is a frame and its bytes; neither may wait for the other's acknowledgement. */
static void send_at_once(int fd)
{
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int));
}

/* ---- joining ---- */

static int load_secret(const struct cairn_rendezvous *r, uint8_t *secret)
{
	int ret = r->key_file ? cairn_secret_load(secret, r->key_file) : 0;
	char why[256];

	if (!ret)
		return 0;
	snprintf(why, sizeof(why), "%s", cairn_last_error());
	return cairn_error(-ret, "--rendezvous-key-file: %s", why);
}

int cairn_join_check(const struct cairn_channel_message *m, const struct cairn_join *mine, int32_t *rank)
{
	struct cairn_join j;

	if (m->kind != JOIN || m->num_bytes != sizeof(j))
		return cairn_error(EINVAL, "rendezvous: a message of kind %u has %zu bytes", m->kind,
				   m->num_bytes);
	memcpy(&j, m->data, sizeof(j));
	if (j.version != CAIRN_JOIN_VERSION || j.build[sizeof(j.build) - 1])
		return cairn_error(EINVAL, "rendezvous: a peer has version %u, not %u", j.version,
				   CAIRN_JOIN_VERSION);
	for (const char *c = j.build; *c; c++)
		if (*c < 33 || *c > 126)
			return cairn_error(EINVAL, "rendezvous: rank %d: has no digest of its build", j.rank);
	if (strcmp(j.build, mine->build))
		return cairn_error(EINVAL, "rendezvous: rank %d: is another build, %s; rank 0 is %s", j.rank,
				   j.build, mine->build);
	if (j.ranks != mine->ranks || j.nodes != mine->nodes)
		return cairn_error(EINVAL, "rendezvous: rank %d: has --tp %d and %d nodes, rank 0 has %d and "
				   "%d", j.rank, j.ranks, j.nodes, mine->ranks, mine->nodes);
	if (j.rank < 1 || j.rank >= mine->ranks)
		return cairn_error(EINVAL, "rendezvous: rank %d: is not in 1..%d", j.rank, mine->ranks - 1);
	*rank = j.rank;
	return 0;
}

/* Answers a rank with the last error, or with nothing if it may join. */
static int answer(struct cairn_control_channel *c, int ret)
{
	struct joined j = { "" };

	if (ret)
		snprintf(j.why, sizeof(j.why), "%s", cairn_last_error());
	return cairn_channel_send(c, JOINED, &j, sizeof(j), HANDSHAKE_MS);
}

static int receive_answer(struct cairn_control_channel *c, int ms)
{
	struct cairn_channel_message m;
	struct joined j;

	CAIRN_TRY(cairn_channel_receive(c, &m, ms));
	if (m.kind != JOINED || m.num_bytes != sizeof(j))
		return cairn_error(EINVAL, "a message of kind %u has %zu bytes", m.kind, m.num_bytes);
	memcpy(&j, m.data, sizeof(j));
	j.why[sizeof(j.why) - 1] = 0;
	return j.why[0] ? cairn_error(EINVAL, "%s", j.why) : 0;
}

/* Shakes hands with a connection. A peer without the secret is refused: *refused; it may be a stranger. */
static int take_peer(int fd, const uint8_t *secret, const struct cairn_join *mine, int32_t first,
		     struct cairn_control_channel **channels, int *refused)
{
	struct cairn_control_channel *c = NULL;
	struct cairn_channel_message m;
	int32_t rank = 0;
	char why[256];
	int ret = cairn_channel_open(&c, fd, CAIRN_CHANNEL_LEAD, secret, HANDSHAKE_MS);

	if (!ret)
		ret = cairn_channel_receive(c, &m, HANDSHAKE_MS);
	*refused = ret != 0;
	if (!ret)
		ret = cairn_join_check(&m, mine, &rank);
	if (!ret && (rank < first || channels[rank]))
		ret = cairn_error(EINVAL, "rendezvous: rank %d: there are two", rank);
	if (!*refused) {
		snprintf(why, sizeof(why), "%s", cairn_last_error());
		*refused = answer(c, ret) && !ret;	/* it has gone */
	}
	if (!ret && !*refused) {
		channels[rank] = c;
		return 0;
	}
	cairn_channel_close(c);
	return *refused ? -EINVAL : cairn_error(EINVAL, "%s", why);
}

static int missing(const struct cairn_join *mine, int32_t first,
		   struct cairn_control_channel *const *channels)
{
	for (int32_t r = first; r < mine->ranks; r++)
		if (!channels[r])
			return r;
	return -1;
}

static int accept_all(const struct cairn_rendezvous *r, const struct cairn_join *mine, const uint8_t *secret,
		      int32_t first, int listener, struct cairn_control_channel **channels)
{
	const int64_t deadline = cairn_clock_ns() + (int64_t)r->timeout_ms * 1000000;
	char why[192] = "";
	int refused;

	while (missing(mine, first, channels) >= 0) {
		struct pollfd p = { .fd = listener, .events = POLLIN };
		int64_t left = (deadline - cairn_clock_ns()) / 1000000;
		int fd;

		if (left <= 0)
			return cairn_error(ETIMEDOUT, "rendezvous: rank %d has not come to %.64s within %g s"
					   "%s%s", missing(mine, first, channels), r->address,
					   r->timeout_ms * 1e-3, *why ? "; a peer was refused: " : "", why);
		if (poll(&p, 1, (int)left) <= 0)
			continue;
		fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		if (fd < 0)
			continue;
		send_at_once(fd);
		if (take_peer(fd, secret, mine, first, channels, &refused)) {
			if (!refused)
				return -EINVAL;
			snprintf(why, sizeof(why), "%s", cairn_last_error());
		}
	}
	return 0;
}

int cairn_rendezvous_accept(const struct cairn_rendezvous *r, const struct cairn_join *mine, int32_t first,
			    struct cairn_control_channel **channels)
{
	uint8_t secret[CAIRN_SECRET_BYTES];
	int listener, ret;

	CAIRN_TRY(load_secret(r, secret));
	CAIRN_TRY(listen_at(r->address, &listener));
	ret = accept_all(r, mine, r->key_file ? secret : NULL, first, listener, channels);
	explicit_bzero(secret, sizeof(secret));
	close(listener);
	for (int32_t i = first; ret && i < mine->ranks; i++) {
		cairn_channel_close(channels[i]);
		channels[i] = NULL;
	}
	return ret;
}

static int join(const struct cairn_rendezvous *r, const struct cairn_join *mine, const uint8_t *secret,
		const struct addrinfo *a, struct cairn_control_channel **channel)
{
	const int64_t deadline = cairn_clock_ns() + (int64_t)r->timeout_ms * 1000000;
	char why[256];
	int fd, ret;

	while ((ret = connect_once(a, RETRY_MS * 4, &fd))) {	/* rank 0 may not listen yet */
		if (cairn_clock_ns() > deadline)
			return cairn_error(ETIMEDOUT, "rendezvous: rank 0 is not at %.64s: %s", r->address,
					   strerror(-ret));
		usleep(RETRY_MS * 1000);
	}
	send_at_once(fd);
	ret = cairn_channel_open(channel, fd, CAIRN_CHANNEL_MEMBER, secret,
				 (int)((deadline - cairn_clock_ns()) / 1000000) + HANDSHAKE_MS);
	if (!ret)
		ret = cairn_channel_send(*channel, JOIN, mine, sizeof(*mine), HANDSHAKE_MS);
	if (!ret)
		ret = receive_answer(*channel, HANDSHAKE_MS);
	if (!ret)
		return 0;
	snprintf(why, sizeof(why), "%s", cairn_last_error());
	cairn_channel_close(*channel);
	*channel = NULL;
	return cairn_error(-ret, "rendezvous: rank 0 at %.64s: %s", r->address, why);
}

int cairn_rendezvous_connect(const struct cairn_rendezvous *r, const struct cairn_join *mine,
			     struct cairn_control_channel **channel)
{
	uint8_t secret[CAIRN_SECRET_BYTES];
	struct addrinfo *a;
	int ret;

	CAIRN_TRY(load_secret(r, secret));
	CAIRN_TRY(resolve(r->address, 0, &a));
	ret = join(r, mine, r->key_file ? secret : NULL, a, channel);
	explicit_bzero(secret, sizeof(secret));
	freeaddrinfo(a);
	return ret;
}
