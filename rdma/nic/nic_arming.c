// SPDX-License-Identifier: Apache-2.0
/*
 * nic_arming - consumers that arm completion queues by hand, some with a defect that the NIC model must
 * report
 *
 * The program arms through the pointers that mlx5dv_init_obj gives: it stores the arm doorbell record, then,
 * after a barrier, the word with the queue's number to the UAR. Each row arms a fresh queue, lets one entry
 * arrive, and says whether there must be an event and which rule must be broken.
 *
 * Exit status 0: every row as expected; 1: some row is not; 77: no device, or not the model.
 */
#include <dlfcn.h>
#include <endian.h>
#include <infiniband/mlx5dv.h>
#include <poll.h>

#include "rdma/nic/nic.h"
#include "rdma/nic/nic_verbs.h"

#define ARM_REGISTER	0x20
#define EVENT_MS	2000
#define NO_EVENT_MS	50
#define RULE_S		2.0		/* the model waits 0.5 s for a doorbell */
#define NO_RULE		(-1)

static const struct nic_stats *(*stats)(void);
static struct end a, b;
static struct ibv_comp_channel *channel;
static struct mlx5dv_cq queue;

/* The stores to the record and to the UAR, and their order. */
struct row {
	const char *name;
	int no_record, no_doorbell, native_record, native_doorbell, doorbell_first;
	uint32_t sequence, doorbell_sequence, other_queue;
	int event, rule;
};

#define RULE(name) NIC_RULE_arm_##name
static const struct row rows[] = {
	{ .name = "right", .event = 1, .rule = NO_RULE },
	{ .name = "right_sequence_3", .sequence = 3, .doorbell_sequence = 3, .event = 1, .rule = NO_RULE },
	{ .name = "no_doorbell", .no_doorbell = 1, .rule = RULE(not_rung) },
	{ .name = "no_record", .no_record = 1, .rule = RULE(record) },
	{ .name = "doorbell_before_record", .doorbell_first = 1, .rule = RULE(record) },
	{ .name = "doorbell_of_a_later_arming", .sequence = 1, .doorbell_sequence = 2, .rule = RULE(record) },
	{ .name = "native_record", .native_record = 1, .sequence = 1, .doorbell_sequence = 1,
	  .rule = RULE(record) },
	{ .name = "native_doorbell", .native_doorbell = 1, .rule = RULE(cqn) },
	{ .name = "another_queue", .other_queue = 1, .rule = RULE(cqn) },
};

static void store_doorbell(const struct row *r, uint32_t word)
{
	uint64_t value = (uint64_t)word << 32 | (queue.cqn + r->other_queue);

	if (!r->native_doorbell)
		value = htobe64(value);
	__atomic_store_n((uint64_t *)(void *)((char *)queue.cq_uar + ARM_REGISTER), value, __ATOMIC_RELEASE);
}

static void arm(const struct row *r)
{
	struct timespec gap = { .tv_nsec = 20000000 };
	uint32_t record = r->sequence << 28, word = r->doorbell_sequence << 28;

	if (r->doorbell_first) {
		store_doorbell(r, word);
		nanosleep(&gap, NULL);
	}
	if (!r->no_record)
		__atomic_store_n(&((uint32_t *)queue.dbrec)[1], r->native_record ? record : htobe32(record),
				 __ATOMIC_RELEASE);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (!r->doorbell_first && !r->no_doorbell)
		store_doorbell(r, word);
}

static void complete_one(void)
{
	struct ibv_sge from = end_sge(&a, 0, 16), to = end_sge(&b, 4096, 16);
	struct ibv_recv_wr *bad_recv, receive = { .sg_list = &to, .num_sge = 1 };
	struct ibv_send_wr *bad, send = { .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND,
					  .send_flags = IBV_SEND_SIGNALED };
	struct ibv_wc wc;

	must(!ibv_post_recv(b.qp, &receive, &bad_recv), "ibv_post_recv");
	must(!ibv_post_send(a.qp, &send, &bad), "ibv_post_send");
	must(end_wait(&a, &wc, 5.0), "completion of a send");
}

static int has_event(int ms)
{
	struct pollfd p = { .fd = channel->fd, .events = POLLIN };
	struct ibv_cq *cq;
	void *context;

	if (poll(&p, 1, ms) <= 0)
		return 0;
	must(!ibv_get_cq_event(channel, &cq, &context), "ibv_get_cq_event");
	ibv_ack_cq_events(cq, 1);
	return 1;
}

/* Returns 0 if the outcome is the one in the row. */
static int run(const struct row *r)
{
	uint64_t before = stats()->rules, named = r->rule < 0 ? 0 : stats()->by_rule[r->rule];
	struct mlx5dv_obj object = { .cq = { .out = &queue } };
	struct timespec pause = { .tv_nsec = 1000000 };
	double limit = now_s() + RULE_S;
	int event, wrong;

	b.cq = ibv_create_cq(b.ctx, 16, NULL, channel, 0);
	must(!!b.cq, "ibv_create_cq");
	object.cq.in = b.cq;
	must(!mlx5dv_init_obj(&object, MLX5DV_OBJ_CQ), "mlx5dv_init_obj");
	ends_reset(&a, &b, ALL_RIGHTS);
	arm(r);
	complete_one();
	event = has_event(r->event ? EVENT_MS : NO_EVENT_MS);
	while (r->rule >= 0 && stats()->by_rule[r->rule] == named && now_s() < limit)
		nanosleep(&pause, NULL);
	wrong = r->rule < 0 ? stats()->rules != before : stats()->by_rule[r->rule] == named;
	/* a byte-swapped word may happen to arm the queue; only the rule counts */
	wrong |= event != r->event && !r->native_record;
	if (wrong)
		printf("MISSED %s: event %d, %llu rules broken\n", r->name, event,
		       (unsigned long long)(stats()->rules - before));
	must(!ibv_destroy_qp(b.qp), "ibv_destroy_qp");
	b.qp = NULL;
	must(!ibv_destroy_cq(b.cq), "ibv_destroy_cq");
	return wrong;
}

int main(void)
{
	struct ibv_device **list;
	unsigned i, right = 0, caught = 0, blamed = 0, defects = 0;
	struct ibv_cq *without;
	int num = 0;

	list = ibv_get_device_list(&num);
	*(void **)&stats = dlsym(RTLD_DEFAULT, "cairn_nic_stats");
	if (!list || num < 1 || !stats)
		return 77;
	end_open(&a, list[0], 64);
	end_open(&b, list[0], 64);
	without = b.cq;
	channel = ibv_create_comp_channel(b.ctx);
	must(!!channel, "ibv_create_comp_channel");
	for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		int wrong = run(&rows[i]);

		right += rows[i].rule < 0;
		defects += rows[i].rule >= 0;
		blamed += rows[i].rule < 0 && wrong;
		caught += rows[i].rule >= 0 && !wrong;
	}
	printf("arming mutants: %u of %u caught, %u of %u right consumers blamed\n", caught, defects, blamed,
	       right);
	b.cq = without;
	must(!ibv_destroy_comp_channel(channel), "ibv_destroy_comp_channel");
	end_close(&a);
	end_close(&b);
	ibv_free_device_list(list);
	return caught != defects || blamed;
}
