// SPDX-License-Identifier: Apache-2.0
/* remote_test - remote attention has the bits of local attention; bad guests and workers are refused */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "conformance/harness.h"
#include "serving/remote/control/sodium_test.h"
#include "serving/remote/remote_rig_test.h"
#include "serving/remote/remote_lanes_test.h"

#define PASSES	25

/* ---- results ---- */

static const struct rig_shape shapes[] = {
	{ .workers = 1, .kv_heads = 1, .group = 4, .layers = 2 },
	{ .workers = 2, .kv_heads = 2, .group = 2, .layers = 3, .window = 6 },
	{ .workers = 3, .kv_heads = 8, .group = 1, .layers = 1, .softcap = 5 },	/* 3, 3 and 2 heads */
	{ .workers = 2, .kv_heads = 3, .group = 2, .layers = 3, .window = 1, .all = 1 },
	/* in stripes; the first head has two of them, the second one has one */
	{ .workers = 2, .kv_heads = 1, .group = 2, .layers = 3, .window = 6 },
	{ .workers = 3, .kv_heads = 2, .group = 1, .layers = 2 },
	{ .workers = 3, .kv_heads = 1, .group = 2, .layers = 2, .latent = 1 },
	{ .workers = 1, .kv_heads = 1, .group = 1, .layers = 1, .latent = 1 },
};

static void same_bits(struct cairn_test *t)
{
	static struct rig r;

	for (size_t i = 0; i < ARRAY_SIZE(shapes); i++) {
		int64_t bad = rig_open(t, &r, &shapes[i]);

		if (!bad)
			bad = rig_passes(t, &r, PASSES);
		if (r.lead && !EXPECT(t, bad == 0))
			cairn_note(t, "shape %zu: %lld, %s", i, (long long)bad,
				   bad < 0 ? cairn_last_error() : "");
		rig_close(&r);
		for (int k = 0; k < r.num_workers; k++)
			if (!EXPECT(t, r.workers[k].ret == 0))
				cairn_note(t, "worker %d: %s", k, r.workers[k].text);
	}
}

static void lanes(struct cairn_test *t)
{
	static const struct rig_shape shapes_of_lanes[] = {
		{ .workers = 2, .kv_heads = 2, .group = 2, .layers = 3, .window = 6, .lanes = 2 },
		{ .workers = 1, .kv_heads = 2, .group = 1, .layers = 4, .lanes = 3 },
		{ .workers = 2, .kv_heads = 3, .group = 1, .layers = 3, .lanes = 3, .all = 1 },
		{ .workers = 3, .kv_heads = 1, .group = 2, .layers = 3, .window = 6, .lanes = 3 },
		{ .workers = 2, .kv_heads = 1, .group = 1, .layers = 2, .latent = 1, .lanes = 2 },
	};
	static struct rig r;

	for (size_t i = 0; i < ARRAY_SIZE(shapes_of_lanes); i++) {
		int64_t bad = rig_open(t, &r, &shapes_of_lanes[i]);

		if (!bad)
			bad = rig_turns(t, &r, 60);
		if (r.lead && !EXPECT(t, bad == 0))
			cairn_note(t, "shape %zu: %lld, %s", i, (long long)bad,
				   bad < 0 ? cairn_last_error() : "");
		rig_close(&r);
	}
}

/* Two model workers send independently of each other. */
static void models(struct cairn_test *t)
{
	static struct rig r;
	const int64_t bad = rig_models(t, &r, 60);

	if (r.lead && !EXPECT(t, bad == 0))
		cairn_note(t, "%lld, %s", (long long)bad, bad < 0 ? cairn_last_error() : "");
}

/* Workers are lost one after the other; the survivors and the spares continue with empty caches. */
static void taken_over(struct cairn_test *t)
{
	const struct rig_shape shape = { .workers = 2, .kv_heads = 4, .group = 1, .layers = 3, .spares = 2 };
	struct cairn_lead_stats stats;
	static struct rig r;
	int64_t bad = rig_open(t, &r, &shape);

	for (int i = 0; i < 3 && !bad && r.lead; i++) {
		bad = rig_passes(t, &r, 7);
		if (!bad && i < 2)
			bad = rig_lose(&r, 1 + i);
	}
	if (r.lead) {
		if (!EXPECT(t, bad == 0))
			cairn_note(t, "%s", cairn_last_error());
		cairn_lead_stats(r.lead, &stats);
		EXPECT(t, stats.joined == 4 && stats.lost == 2 && stats.members == 2 && !stats.spares);
	}
	rig_close(&r);
}

static void heads(struct cairn_test *t)
{
	for (int32_t num = 1; num <= 40; num++) {
		for (int32_t workers = 1; workers <= num; workers++) {
			int32_t next = 0, most = 0;

			for (int32_t i = 0; i < workers; i++) {
				const struct cairn_heads h = cairn_heads_of(num, workers, i);

				EXPECT(t, h.first == next && h.num >= num / workers && h.num > 0);
				next += h.num;
				most = h.num > most ? h.num : most;
			}
			EXPECT(t, next == num && most == (num + workers - 1) / workers);
		}
	}
	EXPECT(t, fabs(cairn_heads_waste(8, 3) - 1. / 9) < 1e-12 && cairn_heads_waste(8, 4) == 0);
	EXPECT(t, fabs(cairn_heads_waste(2, 5) - 1. / 5) < 1e-12 && cairn_heads_waste(2, 4) == 0);
	EXPECT(t, cairn_heads_waste(1, 7) == 0);
}

/* With a journal, requests go on with the caches of the workers before, at all workers. */
static void journal(struct cairn_test *t)
{
	static const struct rig_shape shapes_of_journals[] = {
		{ .workers = 2, .kv_heads = 3, .group = 2, .layers = 3, .window = 6, .spares = 2,
		  .journal = 1 },
		{ .workers = 1, .kv_heads = 2, .group = 1, .layers = 2, .spares = 2, .journal = 1, .all = 1 },
		{ .workers = 2, .kv_heads = 1, .group = 2, .layers = 2, .spares = 2, .journal = 1 },
	};
	struct cairn_attn_remote_stats stats = { 0 };
	static struct rig r;

	for (size_t i = 0; i < ARRAY_SIZE(shapes_of_journals); i++) {
		int64_t bad = rig_open(t, &r, &shapes_of_journals[i]);

		for (int k = 0; k < 3 && !bad && r.lead; k++) {
			bad = rig_passes(t, &r, 9);
			if (!bad && k < 2)
				bad = rig_lose(&r, 1);
		}
		if (r.lead && !EXPECT(t, bad == 0))
			cairn_note(t, "shape %zu: %lld, %s", i, (long long)bad, cairn_last_error());
		if (r.remote)
			cairn_attn_remote_stats(r.remote, &stats);
		EXPECT(t, !r.lead || (stats.journal.passes == 27 && stats.restored_bytes > 0));
		rig_close(&r);
	}
}

/* A worker whose lead has ended serves the next one at the same address, and ends if there is none. */
static void rejoined(struct cairn_test *t)
{
	const struct rig_shape shape = { .workers = 1, .kv_heads = 2, .group = 1, .layers = 2 };
	struct cairn_lead_options o = { .attention = 1, .table = "cpu", .beat_ms = 20000, .join_ms = 60000 };
	const struct cairn_remote_limits limits = rig_limits();
	static struct rig r;
	struct cairn_lead *l;
	int64_t bad = rig_open_with(t, &r, &shape, 2000);

	if (!bad)
		bad = rig_passes(t, &r, 5);
	if (!r.lead)		/* skipped */
		return rig_close(&r);
	EXPECT(t, bad == 0);
	cairn_attn_remote_destroy(r.remote);
	r.remote = NULL;
	cairn_lead_destroy(r.lead);
	o.listen = r.join;
	r.lead = NULL;
	if (EXPECT(t, cairn_lead_create(&l, &o) == 0)) {
		r.lead = l;
		bad = cairn_attn_remote_create(&r.remote, l, &r.m, &limits, 1, 0);
		for (int i = 0; i < RIG_REQUESTS; i++)
			rig_forget(&r, &r.requests[i]);
		if (!bad)
			bad = rig_passes(t, &r, 5);
		if (!EXPECT(t, bad == 0))
			cairn_note(t, "%s", cairn_last_error());
	}
	rig_close(&r);
	if (!EXPECT(t, r.workers[0].ret == 0))
		cairn_note(t, "%d: %s", r.workers[0].ret, r.workers[0].text);
}

/* ---- who may join ---- */

#define WRONG(member, to, says) { offsetof(struct cairn_control_join, member), \
	sizeof(((struct cairn_control_join *)0)->member), to, says }

static void refused(struct cairn_test *t)
{
	static const struct {
		size_t at, bytes;
		uint64_t to;
		const char *says;
	} wrong[] = {
		WRONG(version, 1, "another version of the control messages: 1"),
		WRONG(digest, 5, "another build"), WRONG(role, CAIRN_MEMBER_PREFILL, "role 2 is not wanted"),
		WRONG(transports, 1u << 31, "no transport in common"),
		WRONG(table, 'x', "another table: it runs x"),
		WRONG(rank, 256, "join: rank is 256"),
	};
	const struct rig_shape shape = { .workers = 1 };
	struct cairn_channel_message m;
	struct cairn_lead_stats stats;
	struct rig_guest g;
	static struct rig r;

	for (size_t i = 0; !rig_open_lead(t, &r, &shape) && i < ARRAY_SIZE(wrong); i++) {
		struct cairn_control_join j = rig_join();
		int64_t begin = cairn_clock_ns();

		memcpy((char *)&j + wrong[i].at, &wrong[i].to, wrong[i].bytes < 8 ? wrong[i].bytes : 8);
		if (EXPECT(t, rig_knock(&r, &g) == 0)) {
			EXPECT(t, rig_say(&g, CAIRN_CONTROL_JOIN, &j, sizeof(j), CAIRN_CONTROL_ASSIGN, &m,
					  10000) == -EPERM);
			EXPECT_CONTAINS(t, g.refused, wrong[i].says);
			EXPECT(t, cairn_clock_ns() - begin < 5000000000);
			cairn_channel_close(g.c);
		}
		cairn_lead_stats(r.lead, &stats);
		EXPECT(t, stats.refused == 1 && !stats.joined);
		rig_close(&r);
	}
	rig_close(&r);
}

/* Guests that say nothing are served a few at a time, and do not keep a worker from joining for long. */
static void strangers(struct cairn_test *t)
{
	const struct rig_shape shape = { .workers = 1, .kv_heads = 1, .group = 1, .layers = 1 };
	int fds[2 * CAIRN_LEAD_MAX_GUESTS], closed = 0;
	static struct rig r;

	if (rig_open_lead(t, &r, &shape)) {
		rig_close(&r);
		return;
	}
	for (int i = 0; i < 2 * CAIRN_LEAD_MAX_GUESTS; i++)
		EXPECT(t, cairn_address_dial(&fds[i], r.join, 5000) == 0);
	for (int i = 0; i < 2 * CAIRN_LEAD_MAX_GUESTS; i++) {
		struct pollfd f = { .fd = fds[i], .events = POLLRDHUP };

		/* those that are served have had a hello; the others are closed at once */
		closed += poll(&f, 1, i < CAIRN_LEAD_MAX_GUESTS ? 0 : 5000) > 0 &&
			  f.revents & (POLLRDHUP | POLLHUP);
	}
	EXPECT(t, closed == CAIRN_LEAD_MAX_GUESTS);
	for (int i = 0; i < 2 * CAIRN_LEAD_MAX_GUESTS; i++)
		close(fds[i]);
	rig_close(&r);
}

static void addresses(struct cairn_test *t)
{
	static const char *const good[] = { "127.0.0.1:7100", "[::1]:0", "10.1.2.3:65535" };
	static const char *const bad[] = {
		"", ":", "localhost:7100", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:7x",
		"::1:7", "[::1]", "[::1:7", "[]:7", "127.0.0.1:-1", "1.2.3:7", "[127.0.0.1]:7",
	};
	const struct cairn_lead_options open = { .attention = 1, .table = "cpu", .listen = "0.0.0.0:0" };
	union cairn_address a;
	struct cairn_lead *l, *again;
	struct cairn_lead_options taken = { .attention = 1, .table = "cpu", .listen = "127.0.0.1:0" };
	char text[32];

	for (size_t i = 0; i < ARRAY_SIZE(good); i++)
		EXPECT(t, cairn_address_parse(&a, good[i]) == 0 && cairn_address_is_loopback(&a) == (i < 2));
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		if (!EXPECT(t, cairn_address_parse(&a, bad[i]) == -EINVAL))
			cairn_note(t, "%s", bad[i]);
	EXPECT(t, cairn_lead_create(&l, &open) == -EACCES);
	EXPECT_CONTAINS(t, cairn_last_error(), "workers_listen: 0.0.0.0:0 can be reached from other");
	if (!have_sodium(t) || !EXPECT(t, cairn_lead_create(&l, &taken) == 0))
		return;
	snprintf(text, sizeof(text), "127.0.0.1:%d", cairn_lead_port(l));
	taken.listen = text;
	EXPECT(t, cairn_lead_create(&again, &taken) == -EADDRINUSE);
	EXPECT_CONTAINS(t, cairn_last_error(), "workers_listen: 127.0.0.1:");
	cairn_lead_destroy(l);
}

/* Workers with another secret, without one, or of another model. */
static void strange_workers(struct cairn_test *t)
{
	static const char *const says[] = {
		"another secret", "another secret", "the lead has another model",
		"keys and values of 80 pages take",
	};
	const struct cairn_remote_limits limits = rig_limits();
	const struct cairn_model_config other = { .num_hidden_layers = 1 };
	char right[PATH_MAX], wrong[PATH_MAX];
	static struct rig r;

	cairn_tmpfile(t, right, sizeof(right), "right", "a secret of 24 bytes....", 24);
	cairn_tmpfile(t, wrong, sizeof(wrong), "wrong", "a secret of 24 other ...", 24);
	EXPECT(t, !chmod(right, 0600) && !chmod(wrong, 0600));
	for (int i = 0; i < 4; i++) {
		const struct cairn_lead_options o = {
			.attention = 1, .table = "cpu", .listen = "127.0.0.1:0", .secret_file = right,
			.join_ms = 1500,
		};
		struct rig_worker *w = &r.workers[0];

		memset(&r, 0, sizeof(r));
		r.shape = (struct rig_shape){ .workers = 1, .kv_heads = 1, .group = 1, .layers = 1 };
		if (open_table(t, "cpu", &r.impl) || cairn_lead_create(&r.lead, &o))
			return cairn_skip(t, "%s", cairn_last_error());
		rig_make_model(&r);
		snprintf(r.join, sizeof(r.join), "127.0.0.1:%d", cairn_lead_port(r.lead));
		w->o = (struct cairn_attn_worker_options){
			.impl = &r.impl, .config = i == 2 ? &other : NULL, .max_bytes = i == 3 ? 1000 : 0,
			.member = { .join = r.join, .join_ms = 5000,
				    .secret_file = i == 0 ? wrong : i == 1 ? NULL : right },
		};
		r.num_workers = 1;
		pthread_create(&w->thread, NULL, rig_work, w);
		EXPECT(t, cairn_attn_remote_create(&r.remote, r.lead, &r.m, &limits, 1, 0) == -ETIMEDOUT);
		EXPECT_CONTAINS(t, cairn_last_error(), says[i]);
		r.remote = NULL;
		rig_close(&r);
		EXPECT(t, w->ret == (i == 3 ? -ENOMEM : i == 2 ? -EINVAL : -EACCES));
		EXPECT_CONTAINS(t, w->text, says[i]);
	}
}

/* ---- workers that are not what they said ---- */

/* Joins, and takes the assignment of an epoch. */
static int take_share(struct rig_guest *g, const struct rig *r, struct cairn_control_assign *a)
{
	const struct cairn_control_join j = rig_join();
	struct cairn_channel_message m;

	CAIRN_TRY(rig_knock(r, g));
	CAIRN_TRY(rig_say(g, CAIRN_CONTROL_JOIN, &j, sizeof(j), CAIRN_CONTROL_ASSIGN, &m, 10000));
	memcpy(a, m.data, sizeof(*a));
	return 0;
}

enum lie { BLOB, QUERIES, KEYS, PAGE, WEIGHTS, NUM_LIES };

struct liar {
	pthread_t thread;
	const struct rig *r;
	enum lie about;			/* whose size; BLOB: that of the message with the addresses */
};

/* Names a buffer of the worker, which is too small if the worker lies about it. */
static int name_buffer(const struct cairn_transport_table *tcp, struct cairn_transport *t, int is_lie,
		       struct cairn_blob *key)
{
	static char room[4 << 20];
	struct cairn_region *r;

	CAIRN_TRY(tcp->region_register(t, room, is_lie ? 16 : sizeof(room), CAIRN_MEMORY_HOST, &r));
	return tcp->region_key(r, key);
}

/* A worker one of whose buffers is smaller than its share. */
static int lie(const struct liar *x, struct rig_guest *g)
{
	const struct cairn_transport_table *tcp = cairn_transport_find("tcp");
	const struct cairn_transport_options o = { .size = sizeof(o), .gpu = -1 };
	struct { struct cairn_control_blob head; struct cairn_attn_blob b; } said = { 0 };
	struct cairn_blob *const keys[NUM_LIES] = { NULL, &said.b.q, &said.b.kv, &said.b.page,
						    &said.b.weights };
	struct cairn_control_epoch ready;
	struct cairn_channel_message m;
	struct cairn_control_assign a;
	struct cairn_transport *t;
	struct cairn_channel *c;
	int ret;

	CAIRN_TRY(take_share(g, x->r, &a));
	said.head = (struct cairn_control_blob){ .from = (int32_t)a.rank, .num_bytes = 3, .epoch = a.epoch };
	if (x->about == BLOB) {
		CAIRN_TRY(cairn_channel_send(g->c, CAIRN_CONTROL_BLOB, &said, sizeof(said.head) + 3, 5000));
		return rig_say(g, CAIRN_CONTROL_BEAT, &(struct cairn_control_beat){ 0 },
			       sizeof(struct cairn_control_beat), CAIRN_CONTROL_BLOB, &m, 10000);
	}
	said.head.num_bytes = sizeof(said.b);
	CAIRN_TRY(tcp->open(&o, &t));
	ret = tcp->channel_create(t, &c);
	if (!ret)
		ret = tcp->channel_address(c, &said.b.channel);
	for (int i = QUERIES; i < NUM_LIES && !ret; i++)
		ret = name_buffer(tcp, t, i == (int)x->about, keys[i]);
	if (!ret)
		ret = rig_say(g, CAIRN_CONTROL_BLOB, &said, sizeof(said), CAIRN_CONTROL_BLOB, &m, 10000);
	if (!ret) {
		memcpy(&said, m.data, sizeof(said));
		ready = (struct cairn_control_epoch){ .epoch = a.epoch };
		ret = tcp->channel_connect(c, &said.b.channel, 10000);
	}
	if (!ret)
		ret = rig_say(g, CAIRN_CONTROL_READY, &ready, sizeof(ready), CAIRN_CONTROL_PLAN, &m, 10000);
	tcp->close(t);
	return ret;
}

static void *lie_in_thread(void *arg)
{
	struct rig_guest g = { 0 };

	lie(arg, &g);
	cairn_channel_close(g.c);
	return NULL;
}

static void liars(struct cairn_test *t)
{
	static const char *const says[NUM_LIES] = {
		"sent a blob of another size", "its memory for queries has not the",
		"its memory for keys and values has not the", "its memory for a page has not the",
		"its memory for weights has not the 262144 bytes of 1 layers",
	};
	const struct cairn_remote_limits limits = rig_limits();
	static struct rig r;

	for (int i = 0; i < NUM_LIES; i++) {
		/* a page is given by one stripe to another: beside the liar there is an honest worker */
		const struct rig_shape shape = {
			.workers = 1 + (i == PAGE), .kv_heads = 1, .group = 1, .layers = 1, .join_ms = 1500,
			.latent = i == WEIGHTS,
		};
		struct liar x = { .r = &r, .about = (enum lie)i };

		if (rig_open_lead(t, &r, &shape)) {
			rig_close(&r);
			return;
		}
		rig_make_model(&r);
		if (i == PAGE)
			rig_add_worker(&r, 0);
		pthread_create(&x.thread, NULL, lie_in_thread, &x);
		EXPECT(t, cairn_attn_remote_create(&r.remote, r.lead, &r.m, &limits, 1, 0) == -ETIMEDOUT);
		EXPECT_CONTAINS(t, cairn_last_error(), "have joined in time");
		EXPECT_CONTAINS(t, cairn_last_error(), says[i]);
		r.remote = NULL;
		pthread_join(x.thread, NULL);
		rig_close(&r);
	}
}

/* A member without beats is lost; so is one that breaks the protocol, or whose channel ends. */
static void lost(struct cairn_test *t)
{
	static const char *const says[] = {
		"has been silent for", "the connection was cut", "goes to the member", "out of memory",
		"unknown kind",
	};
	const struct cairn_control_join j = rig_join();
	const struct cairn_control_epoch status = { .epoch = 1 };
	static struct rig r;

	for (int i = 0; i < 5; i++) {
		const struct cairn_lead_options o = {
			.attention = 1, .table = "cpu", .listen = "127.0.0.1:0", .beat_ms = i ? 20000 : 300,
		};
		struct rig_guest g;
		uint32_t epoch;
		int ret = cairn_lead_create(&r.lead, &o);

		if (ret == -EOPNOTSUPP)
			return cairn_skip(t, "%s", cairn_last_error());
		snprintf(r.join, sizeof(r.join), "127.0.0.1:%d", cairn_lead_port(r.lead));
		if (EXPECT(t, !rig_knock(&r, &g) &&
			   !cairn_channel_send(g.c, CAIRN_CONTROL_JOIN, &j, sizeof(j), 5000) &&
			   !cairn_lead_gather(r.lead, &epoch))) {
			if (i == 1)
				shutdown(cairn_channel_fd(g.c), SHUT_RDWR);
			if (i == 2)
				cairn_channel_send(g.c, CAIRN_CONTROL_STATUS, &status, sizeof(status), 5000);
			if (i == 3)
				cairn_channel_send(g.c, CAIRN_CONTROL_FAILED, says[3], strlen(says[3]), 5000);
			if (i == 4)
				cairn_channel_send(g.c, 77, "", 0, 5000);
			for (int k = 0; k < 1000 && !cairn_lead_lost(r.lead); k++)
				nanosleep(&(struct timespec){ 0, 10000000 }, NULL);
			EXPECT(t, cairn_lead_lost(r.lead) && cairn_lead_why(r.lead) == -ECONNRESET);
			EXPECT_CONTAINS(t, cairn_last_error(), says[i]);
		}
		cairn_lead_destroy(r.lead);
		cairn_channel_close(g.c);
	}
}

/* Returns how long it takes until the loss of a process is noticed, in ms; -1: never. */
static int notice(struct cairn_lead *l, int sig)
{
	const int64_t begin = cairn_clock_ns();
	struct cairn_lead_stats stats;

	kill(cairn_lead_pid(l, 1), sig);
	for (int i = 0; i < 30000 && !cairn_lead_lost(l); i++)
		nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
	cairn_lead_stats(l, &stats);
	return cairn_lead_lost(l) ? (int)((stats.noticed_ns - begin) / 1000000) : -1;
}

/* A killed process is noticed by the end of its channel, a stopped one by five missing beats. */
static void noticed(struct cairn_test *t)
{
	const struct cairn_lead_options o = { .attention = 1, .table = "cpu", .join_ms = 60000 };
	struct cairn_lead_stats stats;
	struct cairn_lead *l;
	int killed, stopped, ret = cairn_lead_create(&l, &o), pid;
	uint32_t epoch;

	if (ret == -EOPNOTSUPP)
		return cairn_skip(t, "%s", cairn_last_error());
	if (!EXPECT(t, ret == 0))
		return;
	EXPECT(t, cairn_lead_gather(l, &epoch) == 0 && epoch == 1);
	killed = notice(l, SIGKILL);
	EXPECT(t, cairn_lead_gather(l, &epoch) == 0 && epoch == 2);
	pid = cairn_lead_pid(l, 1);
	stopped = notice(l, SIGSTOP);
	cairn_note(t, "noticed after %d ms (killed), %d ms (stopped)", killed, stopped);
	EXPECT(t, killed >= 0 && killed < 5000);	/* machines that run tests are busy */
	EXPECT(t, stopped >= 300 && stopped < 10000);
	EXPECT(t, cairn_lead_gather(l, &epoch) == 0);
	for (int i = 0; i < 10000 && !kill(pid, 0); i++)	/* it was killed, too */
		nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
	EXPECT(t, kill(pid, 0) && errno == ESRCH);
	cairn_lead_stats(l, &stats);
	EXPECT(t, stats.started == 3 && stats.lost == 2 && stats.members == 1);
	cairn_lead_destroy(l);
}

static const struct cairn_unit units[] = {
	{ "same_bits", same_bits }, { "lanes", lanes }, { "models", models },
	{ "taken_over", taken_over },
	{ "journal", journal }, { "rejoined", rejoined }, { "heads", heads }, { "refused", refused },
	{ "strangers", strangers },
	{ "addresses", addresses }, { "strange_workers", strange_workers }, { "liars", liars },
	{ "lost", lost }, { "noticed", noticed },
};

const struct cairn_family cairn_remote_family = {
	.stage = "serving", .name = "remote", .units = units, .num_units = ARRAY_SIZE(units),
	.cost_s = 16, .waits = 1,
};
