// SPDX-License-Identifier: Apache-2.0
/*
 * links - copies known words between all devices of a node, and times the copies
 *
 * Each device writes words of its own into a buffer (stream), sums them there, copies the buffer into the
 * heap that a communicator has mapped from the peer, and the peer sums what has arrived: a wrong byte is the
 * fault of the sender's memory or of the link. A link is a direction between two devices. Its rate in a round
 * is that of COPIES copies one after the other, by events of the sender's stream.
 *
 * A pair of devices has a communicator of its own, so that a link that is down costs that pair alone.
 */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "conformance/tables/tables.h"
#include "conformance/validate/links.h"
#include "primitives/base/error.h"
#include "serving/cli/command.h"

enum { COPIES = 16, MIN_ROUNDS = VALIDATE_WINDOWS };
#define BYTES		((int64_t)64 << 20)
#define HOST_BYTES	((int64_t)1 << 17)
#define COMM_TIMEOUT_MS	20000
#define LEAVE_US	500000

const char *const validate_link_modes[VALIDATE_LINK_NUM_MODES] = { "alone", "both_ways", "together" };

struct peer {
	struct cairn_comm comm;		/* handle is NULL: there is no way to its memory */
	void *theirs, *mine;		/* heaps */
	char why[160];			/* why there is none */
	int named;			/* a wrong block from it, or one of ours to it, has a finding */
	struct validate_series gbps[VALIDATE_LINK_NUM_MODES];
};

struct links {
	struct validate_device *d;
	struct validate_group all;	/* devices that take part */
	struct peer peers[VALIDATE_MAX_DEVICES];	/* by index among the members */
	int64_t bytes, copies;		/* bytes: of a copy */
	void *source, *begun, *ended;	/* the last two are events */
	uint64_t *device_sum, *sum;
	json_t *row;
};

/* ---- opening ---- */

static int exchange(void *arg, const void *mine, void *all, size_t bytes)
{
	return validate_meet(arg, mine, all, bytes, NULL);
}

/* Opens the communicator with member i. What fails there says that the link is down. */
static void open_peer(struct links *l, int32_t i)
{
	struct peer *p = &l->peers[i];
	struct validate_group pair;
	struct cairn_comm_args a = { .size = sizeof(a), .exchange = exchange, .arg = &pair, .ranks = 2,
		.heap_bytes = (size_t)l->bytes, .timeout_ms = COMM_TIMEOUT_MS };

	validate_group_pair(l->all.node, l->all.members[l->all.me], l->all.members[i], &pair);
	a.rank = pair.me;
	if (l->d->impl.comm_open(&a, &p->comm)) {
		snprintf(p->why, sizeof(p->why), "%s", cairn_impl_error(&l->d->impl));
		p->comm.handle = NULL;
	} else if (l->d->impl.comm_heap(&p->comm, pair.me, &p->mine) ||
		   l->d->impl.comm_heap(&p->comm, !pair.me, &p->theirs)) {
		snprintf(p->why, sizeof(p->why), "%s", cairn_impl_error(&l->d->impl));
	}
}

static void close_links(struct links *l)
{
	struct cairn_impl *impl = &l->d->impl;

	for (int32_t i = 0; i < l->all.num; i++)
		if (l->peers[i].comm.handle)
			impl->comm_close(&l->peers[i].comm);
	if (l->begun)
		impl->event_destroy(l->begun);
	if (l->ended)
		impl->event_destroy(l->ended);
	if (l->device_sum)
		impl->mem_free(l->device_sum);
	if (l->source)
		impl->mem_free(l->source);
	if (l->sum)
		impl->host_free(l->sum);
}

static int open_links(struct links *l)
{
	struct cairn_impl *impl = &l->d->impl;
	size_t sums = (size_t)cairn_stream_num_blocks(l->bytes) * 8;

	CAIRN_TRY(impl->host_alloc((void **)&l->sum, sums));
	CAIRN_TRY(impl->mem_alloc(&l->source, (size_t)l->bytes));
	CAIRN_TRY(impl->mem_alloc((void **)&l->device_sum, sums));
	CAIRN_TRY(impl->event_create(&l->begun));
	CAIRN_TRY(impl->event_create(&l->ended));
	/* all devices open the pairs in the same order, so that there is no deadlock */
	for (int32_t a = 0; a < l->all.num; a++)
		for (int32_t b = a + 1; b < l->all.num; b++)
			if (a == l->all.me || b == l->all.me)
				open_peer(l, a ^ b ^ l->all.me);
	return 0;
}

/* ---- a step ---- */

static int meet(const struct links *l)
{
	uint8_t mine = 0, all[VALIDATE_MAX_DEVICES];

	return validate_meet(&l->all, &mine, all, 1, NULL);
}

/* Words differ from copy to copy and from link to link, so that words of an earlier copy are wrong. */
static uint64_t seed_of(const struct links *l, int64_t step, int32_t from, int32_t to)
{
	return (uint64_t)l->d->opt->seed + ((uint64_t)step << 40) + ((uint64_t)from << 34) +
	       ((uint64_t)to << 28);
}

/* Compares the blocks of a buffer with the words that it should hold; end: "sender" or "receiver". */
static int check(struct links *l, const void *buffer, uint64_t seed, int32_t from, int32_t to,
		 const char *end)
{
	int64_t blocks = cairn_stream_num_blocks(l->bytes);
	struct peer *p = &l->peers[from == l->all.me ? to : from];
	struct cairn_stream_args a = { .size = sizeof(a), .sum = l->device_sum, .src = buffer,
		.bytes = l->bytes, .op = CAIRN_STREAM_READ };

	CAIRN_TRY(l->d->impl.stream(&a, l->d->stream));
	CAIRN_TRY(l->d->impl.mem_copy(l->sum, l->device_sum, (size_t)blocks * 8, CAIRN_COPY_TO_HOST,
				      l->d->stream));
	CAIRN_TRY(validate_sync(l->d));
	for (int64_t b = 0; b < blocks; b++) {
		if (l->sum[b] == validate_block_sum(seed, b))
			continue;
		if (!p->named++)
			validate_finding(l->row, VALIDATE_FAIL, NULL, "device %d to device %d: the block at "
					 "byte %lld is wrong at the %s", l->all.members[from],
					 l->all.members[to], (long long)(b * CAIRN_STREAM_BLOCK), end);
		break;
	}
	return 0;
}

static int prepare(struct links *l, uint64_t seed, int32_t to)
{
	struct cairn_stream_args a = { .size = sizeof(a), .dst = l->source, .bytes = l->bytes, .seed = seed,
		.op = CAIRN_STREAM_WRITE };

	CAIRN_TRY(l->d->impl.stream(&a, l->d->stream));
	return check(l, l->source, seed, l->all.me, to, "sender");
}

static int copy(struct links *l, int mode, int32_t to)
{
	struct cairn_impl *impl = &l->d->impl;
	struct peer *p = &l->peers[to];
	float ms;

	CAIRN_TRY(impl->event_record(l->begun, l->d->stream));
	for (int i = 0; i < COPIES; i++)
		CAIRN_TRY(impl->mem_copy(p->theirs, l->source, (size_t)l->bytes, CAIRN_COPY_ON_DEVICE,
					 l->d->stream));
	CAIRN_TRY(impl->event_record(l->ended, l->d->stream));
	CAIRN_TRY(validate_sync(l->d));
	CAIRN_TRY(impl->event_elapsed(&ms, l->begun, l->ended));
	validate_series_add(&p->gbps[mode], ms > 0 ? (double)COPIES * (double)l->bytes * 1e-6 / ms : NAN);
	l->copies += COPIES;
	return 0;
}

/* A step: this device sends to member `to` and receives from member `from`; -1: it does not. */
static int step(struct links *l, int mode, int64_t number, int32_t to, int32_t from)
{
	int ret = 0;

	to = to >= 0 && l->peers[to].theirs ? to : -1;
	from = from >= 0 && l->peers[from].theirs ? from : -1;
	if (to >= 0)
		ret = prepare(l, seed_of(l, number, l->all.me, to), to);
	CAIRN_TRY(ret);
	CAIRN_TRY(meet(l));
	if (to >= 0)
		CAIRN_TRY(copy(l, mode, to));
	CAIRN_TRY(meet(l));
	if (from < 0)
		return 0;
	return check(l, l->peers[from].mine, seed_of(l, number, from, l->all.me), from, l->all.me,
		     "receiver");
}

/* ---- rounds ---- */

/* Each link alone, then each pair both ways, then all devices at once, in rings of every distance. */
static int run_round(struct links *l, int64_t *number)
{
	int32_t n = l->all.num, me = l->all.me;

	for (int32_t a = 0; a < n; a++)
		for (int32_t b = 0; b < n; b++)
			if (a != b)
				CAIRN_TRY(step(l, VALIDATE_LINK_ALONE, ++*number, a == me ? b : -1,
					       b == me ? a : -1));
	for (int32_t a = 0; a < n; a++)
		for (int32_t b = a + 1; b < n; b++) {
			int32_t other = a == me ? b : b == me ? a : -1;

			CAIRN_TRY(step(l, VALIDATE_LINK_BOTH, ++*number, other, other));
		}
	/* with two devices this mode would be the same as both ways */
	for (int32_t shift = 1; shift < n && n > 2; shift++)
		CAIRN_TRY(step(l, VALIDATE_LINK_TOGETHER, ++*number, (me + shift) % n,
			       (me - shift + n) % n));
	return 0;
}

static int reached(const struct links *l)
{
	int num = 0;

	for (int32_t i = 0; i < l->all.num; i++)
		num += !!l->peers[i].theirs;
	return num;
}

enum { GO_ON = 1, REACHES_A_PEER = 2 };

/* The first member decides whether there is another round, so that all make equally many. */
static int run_rounds(struct links *l, double end, int *rounds)
{
	int64_t number = 0;

	for (;; ++*rounds) {
		uint8_t mine, all[VALIDATE_MAX_DEVICES], any = 0;

		mine = (*rounds < MIN_ROUNDS || cairn_now() < end ? GO_ON : 0) |
		       (reached(l) ? REACHES_A_PEER : 0);
		CAIRN_TRY(validate_meet(&l->all, &mine, all, 1, NULL));
		for (int32_t i = 0; i < l->all.num; i++)
			any |= all[i];
		if (!(all[0] & GO_ON) || !(any & REACHES_A_PEER))
			return 0;
		CAIRN_TRY(run_round(l, &number));
		fprintf(l->d->out, "P\n");
	}
}

/* ---- the row ---- */

/* Adds the rates of all links from this device: {"alone": {"1": [...]}, ...} in windows of time. */
static void add_rates(struct links *l)
{
	json_t *modes = json_object();

	for (int m = 0; m < VALIDATE_LINK_NUM_MODES; m++) {
		json_t *mode = json_object();

		for (int32_t i = 0; i < l->all.num; i++) {
			const struct validate_series *s = &l->peers[i].gbps[m];
			double windows[VALIDATE_WINDOWS];
			int32_t num = validate_windows(s->v, s->num, windows);
			json_t *list = json_array();
			char key[16];

			for (int32_t w = 0; w < num; w++)
				json_array_append_new(list, json_real(windows[w]));
			snprintf(key, sizeof(key), "%d", l->all.members[i]);
			if (num)
				json_object_set(mode, key, list);
			json_decref(list);
		}
		json_object_set_new(modes, validate_link_modes[m], mode);
	}
	json_object_set_new(l->row, "links", modes);
}

/* Adds the mean over all peers as a figure, for the comparison with ranges and with other nodes. */
static void add_figure(struct links *l, int mode, double *median)
{
	const struct validate_series *first = NULL;
	double mean[128], scratch[128];
	char name[32];
	int32_t peers = 0;

	for (int32_t i = 0; i < l->all.num; i++) {
		const struct validate_series *s = &l->peers[i].gbps[mode];

		for (int32_t r = 0; r < s->num; r++)
			mean[r] = (peers ? mean[r] : 0) + s->v[r];
		peers += s->num > 0;
		first = s->num ? s : first;
	}
	*median = 0;
	if (!first)
		return;
	for (int32_t r = 0; r < first->num; r++)
		scratch[r] = mean[r] /= peers;
	*median = validate_median(scratch, first->num);
	snprintf(name, sizeof(name), "%s_gbps", validate_link_modes[mode]);
	validate_figure(l->d, l->row, name, mean, first->num);
}

static void add_row(struct links *l, int rounds)
{
	double median[VALIDATE_LINK_NUM_MODES];
	json_t *down = json_array();
	char together[48] = "";

	for (int32_t i = 0; i < l->all.num; i++) {
		if (i != l->all.me && !l->peers[i].theirs)
			json_array_append_new(down, json_pack("{s:i, s:s}", "to", l->all.members[i], "why",
							      l->peers[i].why));
	}
	json_object_set_new(l->row, "down", down);
	json_object_set_new(l->row, "copies", json_integer(l->copies));
	json_object_set_new(l->row, "bytes", json_real((double)l->copies * (double)l->bytes));
	if (l->d->health.before.has >> CAIRN_NVML_LINKS_UP & 1)
		json_object_set_new(l->row, "nvlinks", json_integer((json_int_t)
				    l->d->health.before.value[CAIRN_NVML_LINKS_UP]));
	if (!l->d->opt->shared)
		add_rates(l);
	for (int m = 0; m < VALIDATE_LINK_NUM_MODES; m++)
		add_figure(l, m, &median[m]);
	if (median[VALIDATE_LINK_TOGETHER] > 0)
		snprintf(together, sizeof(together), ", all together %.1f", median[VALIDATE_LINK_TOGETHER]);
	if (!rounds)
		validate_set(l->row, VALIDATE_NOT_RUN, "%d of %d peers, no round", reached(l),
			     l->all.num - 1);
	else
		validate_set(l->row, validate_verdict_of(l->row), "%d of %d peers, %d rounds; alone %.1f, "
			     "both ways %.1f%s GB/s each way", reached(l), l->all.num - 1, rounds,
			     median[VALIDATE_LINK_ALONE], median[VALIDATE_LINK_BOTH], together);
}

/* Returns 0, or the error of the device or of a meeting; what has been measured is in the row. */
static int run_links(struct links *l, double end)
{
	int rounds = 0, ret = open_links(l);

	if (!ret)
		ret = run_rounds(l, end, &rounds);
	add_row(l, rounds);
	/* until this meeting peers may copy into this heap; after a failure, LEAVE_US is waited instead */
	if (!ret)
		ret = meet(l);
	return ret;
}

static const struct validate_test *test_named(const char *name)
{
	for (int i = 0; i < validate_num_tests; i++)
		if (!strcmp(validate_tests[i].name, name))
			return &validate_tests[i];
	return NULL;
}

/* Reports the row; ret: how the test ended. A peer that has left is no fault of this device. */
static int report(struct validate_device *d, json_t *row, int ret)
{
	char why[300];

	snprintf(why, sizeof(why), "%s", *cairn_impl_error(&d->impl) ? cairn_impl_error(&d->impl) :
		 cairn_last_error());
	/* a peer left or did not come: its own row, or its parent if its process died, gives the reason */
	if ((ret == -ECANCELED || ret == -ETIMEDOUT) && validate_verdict_of(row) != VALIDATE_FAIL)
		validate_set(row, VALIDATE_NOT_RUN, "ended early: %s", cairn_last_error());
	else if (ret && ret != -ECANCELED && ret != -ETIMEDOUT)
		validate_finding(row, VALIDATE_FAIL, NULL, "the test failed: %s (%d)", why, ret);
	return validate_report(d, row);
}

/* Finds out which devices take part. Returns whether this one does. */
static int join(struct validate_device *d, struct links *l, int32_t index, struct validate_node *node,
		int ready)
{
	uint8_t mine = (uint8_t)ready, all[VALIDATE_MAX_DEVICES];
	int32_t absent[VALIDATE_MAX_DEVICES], num = 0;
	struct validate_group g;

	validate_group_all(node, index, &g);
	if (validate_meet(&g, &mine, all, 1, absent) || !ready)
		return 0;
	l->d = d;
	l->all = g;
	for (int32_t i = 0; i < g.num; i++) {
		if (!all[i])
			continue;
		if (i == index)
			l->all.me = num;
		l->all.members[num++] = i;
	}
	l->all.num = num;
	return 1;
}

void validate_links_run(FILE *out, const struct validate_options *opt, int number, struct validate_node *node,
			int32_t index, double end)
{
	const struct validate_test *links = test_named("links"), *nccl = test_named("nccl");
	int wants_links = validate_selects(opt->only, links), ret;
	static struct validate_device d;
	static struct links l;
	const char *why;

	why = validate_device_open(&d, out, opt, number);
	if (!why && (!d.impl.comm_open || !d.impl.stream))
		why = "the table has no communicators, or no operation stream";
	if (!join(&d, &l, index, node, !why) || l.all.num < 2) {
		why = why ? why : "no other device of the node takes part";
		if (wants_links)
			validate_not_run(&d, links, why);
		if (opt->nccl)
			validate_not_run(&d, nccl, why);
		goto out_close;
	}
	ret = 0;
	l.bytes = d.on_host ? HOST_BYTES : BYTES;
	if (wants_links) {
		fprintf(out, "T links\n");
		l.row = validate_row(links->name, links->required);
		ret = run_links(&l, opt->nccl ? end - nccl->seconds : end);
		ret = report(&d, l.row, ret) || ret;
	}
	if (opt->nccl && !ret) {
		json_t *row = validate_row(nccl->name, nccl->required);

		fprintf(out, "T nccl\n");
		report(&d, row, validate_nccl(&d, &l.all, row, end));
	} else if (opt->nccl) {
		validate_not_run(&d, nccl, "the test of the links failed");
	}
	atomic_store(&node->gone[index], 1);
	/* peers notice at their next meeting; until then they may still copy into this process's memory */
	if (ret)
		usleep(LEAVE_US);
	close_links(&l);
out_close:
	atomic_store(&node->gone[index], 1);
	validate_device_close(&d);
	fprintf(out, "E\n");
}
