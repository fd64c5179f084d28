// SPDX-License-Identifier: Apache-2.0
/*
 * transport_nccl.c - the contract as far as ncclSend and ncclRecv can express it, for comparison
 *
 * A payload is one ncclSend. Its destination and signal are in a header on a TCP socket, in the order of the
 * puts. The receiver posts a receive only after its header has arrived: an unmatched receive is a kernel that
 * never ends, and much of CUDA waits for all kernels. The receiver reads headers only while it waits for a
 * signal. Puts therefore progress only then (no CAIRN_TRANSPORT_ONE_SIDED), and a flush means that the
 * sources may be changed, not that anything has arrived. Kernels cannot put, and one GPU cannot be both ends.
 *
 * Each direction has a communicator, a stream and a socket; a channel's address carries the id of its
 * outgoing communicator and the port to which the peer connects its own outgoing socket. When a channel
 * is closed, ncclCommAbort ends its work in flight. It runs in its own thread, because it waits for all
 * kernels of the GPU, including those of other channels; these threads are joined when the transport is
 * closed.
 */
#include <arpa/inet.h>
#include <cuda_runtime_api.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "primitives/base/launch.h"
#include "rdma/transport/transport_cuda.h"
#include "rdma/transport/transport_impl.h"
#include "rdma/transport/transport_nccl.h"

#define DEPTH		256	/* maximum sends in a stream: more would block the host */
/* time-out of steps that complete without waiting for other work */
#define SETTLE_NS	5000000000ull

struct header {
	uint64_t region, offset, bytes, value, word;
	uint32_t slot, index;
};

struct nccl_address {
	ncclUniqueId id;
	struct transport_identity owner;
	/* sent first on the socket; the end with the smaller nonce owns the communicator joined first */
	uint64_t nonce;
	uint32_t num_slots, port;
	char host[64];
};

struct aborted {
	struct aborted *next;
	const struct nccl_functions *n;
	ncclComm_t comm[2];
	pthread_t thread;
	int gpu;
};

struct nccl {
	struct cairn_transport base;
	const struct nccl_functions *n;
	uint64_t last_region;
	void *scratch;			/* device memory for the first messages */
	struct aborted *aborting;		/* protected by base.lock */
};

struct nccl_region {
	struct cairn_region base;
	uint64_t id;
};

struct nccl_remote {
	struct cairn_remote base;
	uint64_t id;
};

struct nccl_way {
	ncclComm_t comm;
	cudaStream_t stream;
	int fd;				/* -1: not open */
};

struct nccl_channel {
	struct cairn_channel base;
	struct nccl_way out, in;
	int listener;
	struct nccl_address mine, peer;
	struct cairn_signal *slots;
	cudaEvent_t events[DEPTH], arrived;
	uint64_t posted, done;		/* counts of payloads */
	uint32_t num_puts;
	struct header header;		/* the header being received */
	size_t have;			/* bytes of the header received so far */
	int has_payload;		/* the header is complete and its payload is in flight */
};

#define NCCL(n_, expr) do { ncclResult_t r_ = (expr); \
		if (r_ != ncclSuccess && r_ != ncclInProgress) return nccl_failed(n_, r_, #expr); } while (0)

static const struct nccl_functions *lib(const struct nccl_channel *c)
{
	return ((const struct nccl *)c->base.t)->n;
}

static int nccl_start(struct cairn_transport *t)
{
	struct nccl *n = (struct nccl *)t;

	if (t->options.gpu < 0)
		return cairn_error(EINVAL, "options: gpu: %d: this back end needs a GPU", t->options.gpu);
	CAIRN_TRY(nccl_load(&n->n));
	return transport_device_alloc(t->options.gpu, 256, &n->scratch);
}

static void nccl_stop(struct cairn_transport *t)
{
	struct nccl *n = (struct nccl *)t;
	struct aborted *g;

	while ((g = n->aborting)) {
		n->aborting = g->next;
		pthread_join(g->thread, NULL);
		free(g);
	}
	transport_device_free(t->options.gpu, n->scratch);
}

static int nccl_add_region(struct cairn_region *base)
{
	struct nccl_region *r = (struct nccl_region *)base;
	struct nccl *n = (struct nccl *)base->t;

	if (base->memory == CAIRN_MEMORY_HOST)
		return cairn_error(EOPNOTSUPP, "memory: NCCL moves device memory only");
	pthread_mutex_lock(&base->t->lock);
	r->id = ++n->last_region;
	pthread_mutex_unlock(&base->t->lock);
	return 0;
}

static int nccl_key(const struct cairn_region *base, void *key)
{
	uint64_t words[2] = { ((const struct nccl_region *)base)->id, base->bytes };

	memcpy(key, words, sizeof(words));
	return 0;
}

static int nccl_import(struct cairn_remote *base, const void *key)
{
	uint64_t words[2];

	memcpy(words, key, sizeof(words));
	((struct nccl_remote *)base)->id = words[0];
	base->bytes = words[1];
	return 0;
}

/* ---- channels ---- */

static void shut(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static int new_listener(struct nccl_channel *c)
{
	struct sockaddr_in a = { .sin_family = AF_INET };
	socklen_t len = sizeof(a);

	shut(&c->listener);
	c->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (c->listener < 0 || bind(c->listener, (void *)&a, sizeof(a)) || listen(c->listener, 4) ||
	    getsockname(c->listener, (void *)&a, &len))
		return cairn_error(EIO, "cannot listen on a socket: %s", strerror(errno));
	c->mine.port = ntohs(a.sin_port);
	return 0;
}

static int new_address(struct nccl_channel *c)
{
	uint64_t seed = transport_now() ^ (uintptr_t)c;

	memset(&c->mine, 0, sizeof(c->mine));
	NCCL(lib(c), lib(c)->GetUniqueId(&c->mine.id));
	transport_identify(&c->mine.owner);
	c->mine.nonce = transport_random(&seed);
	c->mine.num_slots = c->base.t->options.num_slots;
	gethostname(c->mine.host, sizeof(c->mine.host) - 1);
	return new_listener(c);
}

static int make_cuda(struct nccl_channel *c)
{
	int i;

	CAIRN_CUDA(cudaStreamCreateWithFlags(&c->out.stream, cudaStreamNonBlocking));
	CAIRN_CUDA(cudaStreamCreateWithFlags(&c->in.stream, cudaStreamNonBlocking));
	for (i = 0; i < DEPTH; i++)
		CAIRN_CUDA(cudaEventCreateWithFlags(&c->events[i], cudaEventDisableTiming));
	CAIRN_CUDA(cudaEventCreateWithFlags(&c->arrived, cudaEventDisableTiming));
	return 0;
}

static int nccl_create(struct cairn_channel *base)
{
	struct nccl_channel *c = (struct nccl_channel *)base;
	int previous, ret;

	c->out.fd = c->in.fd = c->listener = -1;
	c->slots = calloc(base->t->options.num_slots, sizeof(*c->slots));
	if (!c->slots)
		return cairn_error(ENOMEM, "no memory for %u slots", base->t->options.num_slots);
	CAIRN_TRY(transport_enter_gpu(base->t->options.gpu, &previous));
	ret = make_cuda(c);
	transport_leave_gpu(previous);
	return ret ? ret : new_address(c);
}

static void *abort_comms(void *arg)
{
	struct aborted *g = arg;
	int i;

	cudaSetDevice(g->gpu);
	for (i = 0; i < 2; i++)
		if (g->comm[i])
			g->n->CommAbort(g->comm[i]);
	return NULL;
}

static void disconnect(struct nccl_channel *c)
{
	struct nccl *n = (struct nccl *)c->base.t;
	struct aborted *g = c->out.comm || c->in.comm ? calloc(1, sizeof(*g)) : NULL;

	shut(&c->out.fd);
	shut(&c->in.fd);
	if (g) {
		*g = (struct aborted) {
			.n = n->n, .comm = { c->out.comm, c->in.comm }, .gpu = c->base.t->options.gpu,
		};
		if (pthread_create(&g->thread, NULL, abort_comms, g)) {
			abort_comms(g);
			free(g);
		} else {
			pthread_mutex_lock(&c->base.t->lock);
			g->next = n->aborting;
			n->aborting = g;
			pthread_mutex_unlock(&c->base.t->lock);
		}
	}
	c->out.comm = c->in.comm = NULL;
	c->have = 0;
	c->has_payload = 0;
}

static void nccl_destroy(struct cairn_channel *base)
{
	struct nccl_channel *c = (struct nccl_channel *)base;
	int i;

	disconnect(c);
	shut(&c->listener);
	for (i = 0; i < DEPTH && c->events[i]; i++)
		cudaEventDestroy(c->events[i]);
	cudaEventDestroy(c->arrived);		/* errors for objects never created are ignored */
	cudaStreamDestroy(c->out.stream);
	cudaStreamDestroy(c->in.stream);
	cudaGetLastError();
	free(c->slots);
}

static int nccl_address(struct cairn_channel *base, void *address)
{
	memcpy(address, &((struct nccl_channel *)base)->mine, sizeof(struct nccl_address));
	return 0;
}

/* Waits until the non-blocking communicator has accepted the operation. */
static int settle(struct nccl_channel *c, struct nccl_way *w, const char *what, uint64_t deadline)
{
	ncclResult_t state = ncclInProgress;
	uint32_t round = 0;

	while (state == ncclInProgress) {
		NCCL(lib(c), lib(c)->CommGetAsyncError(w->comm, &state));
		if (state == ncclInProgress && transport_now() >= deadline)
			return cairn_error(ETIMEDOUT, "%s: the peer has not answered", what);
		transport_pause(round++);
	}
	return state == ncclSuccess ? 0 : nccl_failed(lib(c), state, what);
}

static int join(struct nccl_channel *c, struct nccl_way *w, const ncclUniqueId *id, int rank,
		uint64_t deadline)
{
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;

	config.blocking = 0;
	NCCL(lib(c), lib(c)->CommInitRankConfig(&w->comm, 2, *id, rank, &config));
	return settle(c, w, "ncclCommInitRankConfig", deadline);
}

/* Exchanges one message each way: NCCL connects two ranks at their first message, in which both must take
 * part. */
static int greet(struct nccl_channel *c, uint64_t deadline)
{
	uint8_t *scratch = ((struct nccl *)c->base.t)->scratch;
	uint32_t round = 0;
	cudaError_t err;

	NCCL(lib(c), lib(c)->GroupStart());
	NCCL(lib(c), lib(c)->Send(scratch, 64, ncclInt8, 1, c->out.comm, c->out.stream));
	NCCL(lib(c), lib(c)->Recv(scratch + 64, 64, ncclInt8, 0, c->in.comm, c->in.stream));
	NCCL(lib(c), lib(c)->GroupEnd());
	CAIRN_TRY(settle(c, &c->out, "the first ncclSend", deadline));
	CAIRN_TRY(settle(c, &c->in, "the first ncclRecv", deadline));
	while ((err = cudaStreamQuery(c->in.stream)) == cudaErrorNotReady ||
	       (err == cudaSuccess && (err = cudaStreamQuery(c->out.stream)) == cudaErrorNotReady)) {
		if (transport_now() >= deadline)
			return cairn_error(ETIMEDOUT, "the first message has not arrived");
		transport_pause(round++);
	}
	CAIRN_CUDA(err);
	return 0;
}

static int ready(int fd, short events, uint64_t deadline)
{
	struct pollfd p = { .fd = fd, .events = events };
	uint64_t now = transport_now();

	return poll(&p, 1, now < deadline ? (int)((deadline - now) / 1000000) + 1 : 0) > 0;
}

/* Moves all bytes; after an error the socket is unusable. */
static int move(int fd, void *p, size_t bytes, int out, uint64_t deadline)
{
	while (bytes) {
		ssize_t n = out ? send(fd, p, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) : recv(fd, p, bytes,
											 MSG_DONTWAIT);

		if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
			return cairn_error(ECONNRESET, "the peer is gone: its socket was closed");
		if (n < 0 && !ready(fd, out ? POLLOUT : POLLIN, deadline))
			return cairn_error(ETIMEDOUT, "the peer's socket does not answer");
		if (n > 0) {
			p = (char *)p + n;
			bytes -= (size_t)n;
		}
	}
	return 0;
}

static int call_peer(struct nccl_channel *c, uint64_t deadline)
{
	const char *host = c->peer.owner.host == c->mine.owner.host ? "127.0.0.1" : c->peer.host;
	int one = 1, err = 0;
	struct addrinfo hints = { .ai_family = AF_INET, .ai_socktype = SOCK_STREAM }, *found;
	socklen_t len = sizeof(err);
	char port[16];

	snprintf(port, sizeof(port), "%u", c->peer.port);
	if (getaddrinfo(host, port, &hints, &found))
		return cairn_error(EIO, "host %s is unknown", host);
	c->out.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (c->out.fd >= 0)
		connect(c->out.fd, found->ai_addr, found->ai_addrlen);
	freeaddrinfo(found);
	if (c->out.fd < 0 || !ready(c->out.fd, POLLOUT, deadline) ||
	    getsockopt(c->out.fd, SOL_SOCKET, SO_ERROR, &err, &len) || err)
		return cairn_error(err ? ECONNRESET : ETIMEDOUT, "the peer does not listen");
	setsockopt(c->out.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return move(c->out.fd, &c->mine.nonce, sizeof(c->mine.nonce), 1, deadline);
}

static int answer_peer(struct nccl_channel *c, uint64_t deadline)
{
	uint64_t nonce;

	if (!ready(c->listener, POLLIN, deadline))
		return cairn_error(ETIMEDOUT, "the peer has not connected");
	c->in.fd = accept4(c->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (c->in.fd < 0)
		return cairn_error(EIO, "accept: %s", strerror(errno));
	CAIRN_TRY(move(c->in.fd, &nonce, sizeof(nonce), 0, deadline));
	return nonce == c->peer.nonce ? 0 : cairn_error(EIO, "an unknown process has connected");
}

static int nccl_connect(struct cairn_channel *base, const void *address, uint64_t deadline)
{
	struct nccl_channel *c = (struct nccl_channel *)base;
	int previous, first, i, ret = 0;

	memcpy(&c->peer, address, sizeof(c->peer));
	if (c->peer.num_slots != base->t->options.num_slots)
		return cairn_error(EINVAL, "num_slots: the peer has %u, this end %u", c->peer.num_slots,
				   base->t->options.num_slots);
	if (transport_lives(&c->peer.owner) == 0)
		return cairn_error(ECONNRESET, "process %llu is gone", (unsigned long long)c->peer.owner.pid);
	CAIRN_TRY(transport_enter_gpu(base->t->options.gpu, &previous));
	first = c->mine.nonce < c->peer.nonce;	/* both ends join the two communicators in the same order */
	for (i = 0; i < 2 && !ret; i++)
		ret = i != first ? join(c, &c->out, &c->mine.id, 0, deadline) :
			join(c, &c->in, &c->peer.id, 1, deadline);
	if (!ret)
		ret = greet(c, deadline);
	if (!ret)
		ret = call_peer(c, deadline);
	if (!ret)
		ret = answer_peer(c, deadline);
	transport_leave_gpu(previous);
	if (ret) {
		disconnect(c);
		return ret;
	}
	snprintf(base->peer, sizeof(base->peer), "process %llu by NCCL",
		 (unsigned long long)c->peer.owner.pid);
	return 0;
}

static int nccl_reset(struct cairn_channel *base)
{
	struct nccl_channel *c = (struct nccl_channel *)base;

	disconnect(c);
	memset(c->slots, 0, base->t->options.num_slots * sizeof(*c->slots));
	c->posted = c->done = 0;
	c->num_puts = 0;
	return new_address(c);
}

/* ---- sending ---- */

static int enqueue(struct nccl_channel *c, const struct cairn_put *p)
{
	NCCL(lib(c), lib(c)->Send(p->local->addr + p->local_offset, p->bytes, ncclInt8, 1, c->out.comm,
				  c->out.stream));
	CAIRN_TRY(settle(c, &c->out, "ncclSend", transport_now() + SETTLE_NS));
	CAIRN_CUDA(cudaEventRecord(c->events[c->posted % DEPTH], c->out.stream));
	c->posted++;
	return 0;
}

static void nccl_probe(struct cairn_channel *base)
{
	struct nccl_channel *c = (struct nccl_channel *)base;
	char byte;

	if (recv(c->out.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0)
		transport_fail(base, ECONNRESET, "the peer is gone: its end was closed");
}

static int drain(struct nccl_channel *c, const char *what, uint64_t left, uint64_t deadline)
{
	cudaError_t err = cudaSuccess;
	uint32_t round = 0;

	for (;;) {
		while (c->done < c->posted &&
		       (err = cudaEventQuery(c->events[c->done % DEPTH])) == cudaSuccess)
			c->done++;
		if (c->done < c->posted && err != cudaErrorNotReady)
			transport_fail(&c->base, EIO, "payload %llu: %s", (unsigned long long)c->done,
				       cudaGetErrorString(err));
		nccl_probe(&c->base);
		CAIRN_TRY(transport_error(&c->base));
		if (c->posted - c->done <= left)
			return 0;
		if (transport_now() >= deadline)
			return cairn_error(ETIMEDOUT,
					   "%s: channel %u: %llu puts to %s are still in flight", what,
					   c->base.number, (unsigned long long)(c->posted - c->done),
					   c->base.peer);
		transport_pause(round++);
	}
}

static int nccl_put(struct cairn_channel *base, const struct cairn_put *p, uint64_t deadline)
{
	struct nccl_channel *c = (struct nccl_channel *)base;
	struct header h = {
		.region = p->bytes ? ((const struct nccl_remote *)p->remote)->id : 0,
		.offset = p->remote_offset, .bytes = p->bytes, .value = p->value, .word = p->word,
		.slot = p->slot, .index = c->num_puts,
	};
	int previous, ret = 0;

	CAIRN_TRY(drain(c, "put", DEPTH - 1, deadline));
	if (!ready(c->out.fd, POLLOUT, deadline))
		return cairn_error(ETIMEDOUT, "put: channel %u: %s accepts no more headers", base->number,
				   base->peer);
	CAIRN_TRY(transport_enter_gpu(base->t->options.gpu, &previous));
	if (p->bytes)
		ret = enqueue(c, p);
	transport_leave_gpu(previous);
	if (!ret)
		ret = move(c->out.fd, &h, sizeof(h), 1, transport_now() + SETTLE_NS);
	if (ret) {
		transport_fail(base, -ret, "put %u: %s", c->num_puts, cairn_last_error());
		return transport_error(base);
	}
	c->num_puts++;
	return 0;
}

static int nccl_flush(struct cairn_channel *base, uint64_t deadline)
{
	return drain((struct nccl_channel *)base, "flush", 0, deadline);
}

/* ---- receiving ---- */

/* Returns where the header's payload goes; NULL if the region does not exist or is too short. */
static uint8_t *place_of(struct nccl_channel *c, const struct header *h)
{
	struct cairn_region *r;

	pthread_mutex_lock(&c->base.t->lock);
	for (r = c->base.t->regions; r && ((struct nccl_region *)r)->id != h->region; r = r->next)
		;
	pthread_mutex_unlock(&c->base.t->lock);
	return r && h->offset <= r->bytes && h->bytes <= r->bytes - h->offset ? r->addr + h->offset : NULL;
}

static int take_payload(struct nccl_channel *c)
{
	uint8_t *to = place_of(c, &c->header);

	if (!to)
		return cairn_error(EACCES, "the peer's put %u is not within a region of this end",
				   c->header.index);
	NCCL(lib(c), lib(c)->Recv(to, c->header.bytes, ncclInt8, 0, c->in.comm, c->in.stream));
	CAIRN_TRY(settle(c, &c->in, "ncclRecv", transport_now() + SETTLE_NS));
	CAIRN_CUDA(cudaEventRecord(c->arrived, c->in.stream));
	c->has_payload = 1;
	return 0;
}

/* Processes one step of the incoming traffic; returns 1 if another may follow at once. */
static int step(struct nccl_channel *c)
{
	const struct header *h = &c->header;
	cudaError_t err;
	ssize_t n;

	if (c->have < sizeof(*h)) {
		n = recv(c->in.fd, (char *)&c->header + c->have, sizeof(*h) - c->have, MSG_DONTWAIT);
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return 0;
		if (n <= 0)
			return cairn_error(ECONNRESET, "the peer is gone: its end was closed");
		c->have += (size_t)n;
		return c->have == sizeof(*h) && h->bytes ? take_payload(c) : 1;
	}
	if (c->has_payload) {
		err = cudaEventQuery(c->arrived);
		if (err == cudaErrorNotReady)
			return 0;
		CAIRN_CUDA(err);
	}
	if (h->slot < c->base.t->options.num_slots)
		c->slots[h->slot] = (struct cairn_signal) { h->value, h->word };
	c->have = 0;
	c->has_payload = 0;
	return 1;
}

static int nccl_look(struct cairn_channel *base, uint32_t slot, struct cairn_signal *found)
{
	struct nccl_channel *c = (struct nccl_channel *)base;
	int previous, ret = 0;

	CAIRN_TRY(transport_enter_gpu(base->t->options.gpu, &previous));
	while (!atomic_load(&base->error) && (ret = step(c)) > 0)
		;
	transport_leave_gpu(previous);
	if (ret < 0)
		transport_fail(base, -ret, "%s", cairn_last_error());
	*found = c->slots[slot];
	return 0;
}

#define FEATURES (CAIRN_TRANSPORT_DEVICE_MEMORY | CAIRN_TRANSPORT_PROCESSES | \
		  CAIRN_TRANSPORT_ONE_PROCESS | CAIRN_TRANSPORT_PEER_DEATH)

static const struct transport_ops nccl_ops = {
	.name = "nccl", .features = FEATURES,
	.transport_bytes = sizeof(struct nccl), .region_bytes = sizeof(struct nccl_region),
	.remote_bytes = sizeof(struct nccl_remote), .channel_bytes = sizeof(struct nccl_channel),
	.start = nccl_start, .stop = nccl_stop,
	.add_region = nccl_add_region, .key = nccl_key,
	.import = nccl_import,
	.create = nccl_create, .address = nccl_address, .connect = nccl_connect, .reset = nccl_reset,
	.destroy = nccl_destroy, .put = nccl_put, .flush = nccl_flush, .look = nccl_look, .probe = nccl_probe,
};

static int nccl_open(const struct cairn_transport_options *o, struct cairn_transport **t)
{
	return transport_open(&nccl_ops, o, t);
}

const struct cairn_transport_table cairn_transport_nccl = TRANSPORT_TABLE("nccl", FEATURES, nccl_open);
