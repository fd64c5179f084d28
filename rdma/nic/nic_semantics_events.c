// SPDX-License-Identifier: Apache-2.0
/*
 * nic_semantics_events.c - completion channels: what arms a queue, and what raises an event
 *
 * The event part of nic_semantics.c. a sends, and b's completions go to queues on a channel. Each row
 * executes its steps and prints what happened; "none" means that nothing arrived within 30 ms, as expected.
 */
#include <fcntl.h>
#include <poll.h>

#include "rdma/nic/nic_verbs.h"
#include "rdma/nic/nic_semantics.h"

#define EVENT_MS	5000
#define NO_EVENT_MS	30
#define BYTES		16u

static struct ibv_comp_channel *channel;

static void send_one(struct end *a, struct end *b, int flags, uint32_t receive_bytes)
{
	struct ibv_sge from = end_sge(a, 0, BYTES), to = end_sge(b, 4096, receive_bytes);
	struct ibv_recv_wr *bad_recv, receive = { .wr_id = 1, .sg_list = &to, .num_sge = 1 };
	struct ibv_send_wr *bad, send = {
		.wr_id = 2, .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED | (unsigned)flags,
	};
	struct ibv_wc wc;

	must(!ibv_post_recv(b->qp, &receive, &bad_recv), "ibv_post_recv");
	must(!ibv_post_send(a->qp, &send, &bad), "ibv_post_send");
	must(end_wait(a, &wc, 5.0), "completion of a send");
}

/* Returns whether an event arrives on the channel within ms; does not consume it. */
static int has_event(int ms)
{
	struct pollfd p = { .fd = channel->fd, .events = POLLIN };

	return poll(&p, 1, ms) > 0;
}

/* Returns "event" for the expected queue, "other" for another queue, "none" after the time-out. */
static const char *next(struct ibv_cq *expected, int ms)
{
	struct ibv_cq *cq;
	void *context;

	if (!has_event(ms))
		return "none";
	must(!ibv_get_cq_event(channel, &cq, &context), "ibv_get_cq_event");
	ibv_ack_cq_events(cq, 1);
	return cq == expected && context == expected->cq_context ? "event" : "other";
}

static void arm(struct ibv_cq *cq, int solicited_only)
{
	must(!ibv_req_notify_cq(cq, solicited_only), "ibv_req_notify_cq");
}

static int drain(struct end *e)
{
	struct ibv_wc wc;
	int n = 0;

	while (end_wait(e, &wc, 0.01))
		n++;
	return n;
}

static void not_armed(struct end *a, struct end *b)
{
	send_one(a, b, 0, BYTES);
	printf(" %s", next(b->cq, NO_EVENT_MS));
}

static void armed_before(struct end *a, struct end *b)
{
	arm(b->cq, 0);
	printf(" %s", next(b->cq, NO_EVENT_MS));
	send_one(a, b, 0, BYTES);
	printf(" %s", next(b->cq, EVENT_MS));
}

/* The sequence of every event loop: receive an event, arm again, then poll. */
static void armed_anew(struct end *a, struct end *b)
{
	int i;

	arm(b->cq, 0);
	for (i = 0; i < 20; i++) {
		send_one(a, b, 0, BYTES);
		if (strcmp(next(b->cq, EVENT_MS), "event"))
			break;
		arm(b->cq, 0);
		drain(b);
	}
	printf(" %d rounds, then %s", i, next(b->cq, NO_EVENT_MS));
}

static void armed_once_for_two(struct end *a, struct end *b)
{
	arm(b->cq, 0);
	send_one(a, b, 0, BYTES);
	send_one(a, b, 0, BYTES);
	printf(" %s", next(b->cq, EVENT_MS));
	printf(" %s", next(b->cq, NO_EVENT_MS));
}

static void armed_after(struct end *a, struct end *b)
{
	send_one(a, b, 0, BYTES);
	arm(b->cq, 0);
	printf(" %s", next(b->cq, 10 * NO_EVENT_MS));
}

static void armed_after_it_was_polled(struct end *a, struct end *b)
{
	send_one(a, b, 0, BYTES);
	drain(b);
	arm(b->cq, 0);
	printf(" %s", next(b->cq, NO_EVENT_MS));
	send_one(a, b, 0, BYTES);
	printf(" %s", next(b->cq, EVENT_MS));
}

static void solicited_only(struct end *a, struct end *b)
{
	arm(b->cq, 1);
	send_one(a, b, 0, BYTES);
	printf(" %s", next(b->cq, NO_EVENT_MS));
	send_one(a, b, IBV_SEND_SOLICITED, BYTES);
	printf(" %s", next(b->cq, EVENT_MS));
}

static void solicited_and_armed_for_any(struct end *a, struct end *b)
{
	arm(b->cq, 0);
	printf(" %s", next(b->cq, NO_EVENT_MS));
	arm(b->cq, 1);
	send_one(a, b, 0, BYTES);
	printf(" %s", next(b->cq, EVENT_MS));
}

static void solicited_only_and_an_error(struct end *a, struct end *b)
{
	arm(b->cq, 1);
	send_one(a, b, 0, BYTES - 1);	/* the receive is too short */
	printf(" %s", next(b->cq, EVENT_MS));
}

static void flushed(struct end *a, struct end *b)
{
	struct ibv_sge to = end_sge(b, 4096, BYTES);
	struct ibv_recv_wr *bad, receive = { .wr_id = 1, .sg_list = &to, .num_sge = 1 };

	(void)a;
	arm(b->cq, 1);
	must(!ibv_post_recv(b->qp, &receive, &bad), "ibv_post_recv");
	must(!end_modify(b, IBV_QPS_ERR), "modify");
	printf(" %s", next(b->cq, EVENT_MS));
}

/* Both queues of a pair are on one channel: each event names its queue. */
static void two_queues(struct end *a, struct end *b)
{
	struct ibv_cq *mine = b->cq, *other = ibv_create_cq(b->ctx, 16, b, channel, 0);

	must(!!other, "ibv_create_cq");
	arm(mine, 0);
	arm(other, 0);
	send_one(a, b, 0, BYTES);
	printf(" %s", next(mine, EVENT_MS));
	b->cq = other;
	ends_reset(a, b, ALL_RIGHTS);
	send_one(a, b, 0, BYTES);
	printf(" %s", next(other, EVENT_MS));
	printf(" %s", next(mine, NO_EVENT_MS));
	b->cq = mine;
	ends_reset(a, b, ALL_RIGHTS);
	must(!ibv_destroy_cq(other), "ibv_destroy_cq");
}

/* Destroying a queue discards its own unread event and keeps that of another queue. */
static void destroyed_with_an_event(struct end *a, struct end *b)
{
	struct ibv_cq *mine = b->cq, *other = ibv_create_cq(b->ctx, 16, b, channel, 0);

	must(!!other, "ibv_create_cq");
	arm(other, 0);
	b->cq = other;
	ends_reset(a, b, ALL_RIGHTS);
	send_one(a, b, 0, BYTES);
	printf(" %s", has_event(EVENT_MS) ? "pending" : "none");
	b->cq = mine;
	ends_reset(a, b, ALL_RIGHTS);
	arm(mine, 0);
	send_one(a, b, 0, BYTES);
	must(!ibv_destroy_cq(other), "ibv_destroy_cq");
	printf(" %s", next(mine, EVENT_MS));
	printf(" %s", next(mine, NO_EVENT_MS));
}

static void does_not_block(struct end *a, struct end *b)
{
	struct ibv_cq *cq;
	void *context;
	int flags = fcntl(channel->fd, F_GETFL), ret;

	must(!fcntl(channel->fd, F_SETFL, flags | O_NONBLOCK), "fcntl");
	ret = ibv_get_cq_event(channel, &cq, &context);
	printf(" %s", ret && errno == EAGAIN ? "EAGAIN" : "something");
	arm(b->cq, 0);
	send_one(a, b, 0, BYTES);
	printf(" %s", next(b->cq, EVENT_MS));
	must(!fcntl(channel->fd, F_SETFL, flags), "fcntl");
}

#define ROW(name) { #name, name }
static const struct {
	const char *name;
	void (*run)(struct end *a, struct end *b);
} rows[] = {
	ROW(not_armed), ROW(armed_before), ROW(armed_anew), ROW(armed_once_for_two), ROW(armed_after),
	ROW(armed_after_it_was_polled), ROW(solicited_only), ROW(solicited_and_armed_for_any),
	ROW(solicited_only_and_an_error), ROW(flushed), ROW(two_queues), ROW(destroyed_with_an_event),
	ROW(does_not_block),
};

void nic_semantics_events(struct end *a, struct end *b)
{
	struct ibv_cq *without = b->cq;
	unsigned i;

	channel = ibv_create_comp_channel(b->ctx);
	must(!!channel, "ibv_create_comp_channel");
	for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		b->cq = ibv_create_cq(b->ctx, 64, b, channel, 0);
		must(!!b->cq, "ibv_create_cq");
		ends_reset(a, b, ALL_RIGHTS);
		printf("events %-27s", rows[i].name);
		rows[i].run(a, b);
		printf("\n");
		must(!ibv_destroy_qp(b->qp), "ibv_destroy_qp");
		b->qp = NULL;
		must(!ibv_destroy_cq(b->cq), "ibv_destroy_cq");
	}
	must(!ibv_destroy_comp_channel(channel), "ibv_destroy_comp_channel");
	b->cq = without;
}
