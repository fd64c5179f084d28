// SPDX-License-Identifier: Apache-2.0
/*
 * nic_engine.c - the thread that acts as the NIC's requester: UARs, doorbell records, requests in order
 *
 * The thread takes a UAR word by an exchange with zero, so that ringing the same index twice counts as two
 * doorbells. A doorbell takes effect when the doorbell record covers it. A doorbell that precedes its record
 * is remembered: if it is rung again afterwards, the producer uses the early dialect; if not, it has broken a
 * rule. A request passes through these states: announced -> fetched (copied, decoded, checked) -> executed ->
 * in flight -> retired (data of a READ placed, completion written). Requests retire in order, but later
 * requests may overtake the data of an unfenced READ.
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "rdma/nic/nic_model.h"

#define MAX_REQUESTS_PER_VISIT	64
#define PATIENCE_NS		500000000ull	/* time-out of a doorbell; its producer may be preempted */
#define AUDIT_NS		50000000ull	/* interval of checking for records without a doorbell */
#define LOST_DOORBELL_NS	200000ull
#define IDLE_BEFORE_SLEEP_NS	50000000ull	/* idle time before sleeping, with many cores */
#define FEW_CORES		4		/* up to here it sleeps early, to let others run */
#define IDLE_FEW_CORES_NS	50000ull
/* If an idle poll took this long, the thread was preempted, and cores count as scarce for CROWDED_FOR_NS. */
#define CROWDED_NS		200000ull
#define CROWDED_FOR_NS		200000000ull

static struct nic_sq sqs[NIC_MAX_QPS];
static atomic_uchar ours[NIC_MAX_QPS];	/* slots to poll: two cache lines, while sqs takes a megabyte */
static atomic_int stopping;
static pthread_t thread;
static int running;
static uint64_t steps;		/* counts progress; engine thread only */

uint64_t nic_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Register 0 of UAR page 0 is the one that libmlx5 never uses for BlueFlame. */
uint32_t nic_bfreg(int i)
{
	return (uint32_t)((i + 1) / 2 * NIC_REGS_PER_PAGE + (i + 1) % 2);
}

_Atomic uint64_t *nic_register(int i, int half)
{
	uint8_t *page = nic_uar + (size_t)(nic_bfreg(i) / NIC_REGS_PER_PAGE) * NIC_PAGE;

	page += NIC_BF_OFFSET + nic_bfreg(i) % NIC_REGS_PER_PAGE * NIC_BF_REG + half * NIC_BF_BUF;
	return (_Atomic uint64_t *)(void *)page;
}

/* Called when a queue pair is created, reset or removed, with the lock held. */
void nic_engine_reset_qp(int i)
{
	struct nic_sq *sq = &sqs[i];
	struct nic_qp *qp = &nic->qps[i];
	int k;

	for (k = 0; k < NIC_MAX_INFLIGHT; k++) {
		free(sq->inflight[k].data);
		free(sq->inflight[k].request);
	}
	memset(sq, 0, sizeof(*sq));
	atomic_store(&ours[i], 0);
	if (!qp->used)
		return;
	atomic_store(nic_register(i, 0), 0);
	atomic_store(nic_register(i, 1), 0);
	sq->qp = qp;
	atomic_store(&ours[i], 1);
}

static uint32_t send_record(const struct nic_sq *sq)
{
	uint64_t at = sq->qp->dbrec + 4;
	uint32_t raw = 0;

	if (!nic_is_foreign(at))
		return __atomic_load_n((uint32_t *)(uintptr_t)at, __ATOMIC_ACQUIRE);
	nic_copy_foreign((uintptr_t)&raw, at, sizeof(raw));
	return raw;
}

static void announce(struct nic_sq *sq, uint16_t producer)
{
	unsigned outstanding = (uint16_t)(producer - sq->retired);

	if (outstanding > sq->qp->sq_blocks) {
		nic_broken(sq->qp, NIC_RULE_ring_overrun, sq->retired,
			   "%u blocks outstanding, the ring has %u",
			   outstanding, sq->qp->sq_blocks);
		nic_qp_fail(sq->qp);
	}
	sq->producer = producer;
	sq->unrung_ns = 0;
	sq->lost_ns = 0;
}

static int take_blueflame(int queue, int half)
{
	_Atomic uint64_t *reg = nic_register(queue, half);
	int i, seen = 0;

	for (i = 1; i < 4; i++)
		seen |= atomic_exchange_explicit(&reg[i], 0, memory_order_relaxed) != 0;
	return seen;
}

static void doorbell(struct nic_sq *sq, uint64_t word, int is_blueflame)
{
	uint32_t first = be32toh((uint32_t)word), second = be32toh((uint32_t)(word >> 32));
	unsigned ds = second & 0x3f;
	uint16_t index = (uint16_t)(first >> 8), next = (uint16_t)(index + (ds ? nic_blocks(ds) : 0));
	int record;

	nic_count(&nic_stats.blueflame, (unsigned)is_blueflame);
	if (second >> 8 != sq->qp->qpn) {
		nic_broken(sq->qp, NIC_RULE_doorbell_qpn, index, "doorbell for %#x, this is %#x", second >> 8,
			   sq->qp->qpn);
		return;
	}
	if (ds)
		nic_count(&nic_stats.doorbell_wqe, 1);
	else
		nic_count(&nic_stats.doorbell_index, 1);
	if (nic_adversary_drops_doorbell(is_blueflame)) {
		sq->lost_ns = nic_now_ns() + LOST_DOORBELL_NS;
		return;
	}
	record = nic_record_check(sq->qp, send_record(sq), sq->fetched);
	if (record < 0)
		return;
	if ((int16_t)((uint16_t)record - next) < 0) {
		sq->early_ns = nic_now_ns();
		sq->early_index = next;
		return;
	}
	if (sq->early_ns && (int16_t)(next - sq->early_index) >= 0) {
		nic_count(&nic_stats.doorbell_early, 1);
		sq->early_ns = 0;
	}
	announce(sq, (uint16_t)record);
}

/* Finds broken rules that polling of the UARs does not show. */
static void audit(struct nic_sq *sq, uint64_t now)
{
	uint32_t raw = send_record(sq);

	if (sq->qp->state != NIC_RTS)
		return;
	if (sq->early_ns && now - sq->early_ns > PATIENCE_NS) {
		nic_broken(sq->qp, NIC_RULE_doorbell_beyond_record, sq->fetched,
			   "doorbell for index %u, record %u, not rung again", sq->early_index,
			   be32toh(raw) & 0xffff);
		sq->early_ns = 0;
		sq->unrung_index = (uint16_t)be32toh(raw);
	}
	if ((uint16_t)be32toh(raw) == sq->producer || sq->early_ns || sq->lost_ns) {
		sq->unrung_ns = 0;
	} else if (!sq->unrung_ns) {
		sq->unrung_ns = now;
	} else if (now - sq->unrung_ns > PATIENCE_NS && sq->unrung_index != (uint16_t)be32toh(raw)) {
		nic_broken(sq->qp, NIC_RULE_record_not_rung, sq->fetched, "record %u, last doorbell %u",
			   be32toh(raw) & 0xffff, sq->producer);
		sq->unrung_index = (uint16_t)be32toh(raw);
	}
}

static void read_block(const struct nic_sq *sq, uint16_t index, void *to)
{
	uint64_t place = index & (sq->qp->sq_blocks - 1);

	nic_copy_from(sq->qp->pid, to, sq->qp->sq + place * CAIRN_WQE_BLOCK, CAIRN_WQE_BLOCK);
}

/* Copies the request at sq->fetched out of the ring; it may wrap. */
static void fetch(struct nic_sq *sq)
{
	struct nic_request *r = &sq->request;
	int blocks, i;

	r->index = sq->fetched;
	read_block(sq, r->index, r->raw);
	blocks = nic_blocks(r->raw[7] & 0x3f);
	for (i = 1; i < blocks; i++)
		read_block(sq, (uint16_t)(r->index + i), r->raw + i * CAIRN_WQE_BLOCK);
	steps++;
	sq->have_request = 1;
	sq->rnr_left = sq->qp->rnr_retry;
	sq->retry_ns = 0;
	nic_count(&nic_stats.requests, 1);
}

static struct nic_inflight *inflight(struct nic_sq *sq, int i)
{
	return &sq->inflight[(sq->first_inflight + i) % NIC_MAX_INFLIGHT];
}

static void complete_send(struct nic_sq *sq, const struct nic_inflight *f)
{
	struct nic_completion c = {
		.opcode = f->syndrome ? CAIRN_CQE_REQ_ERR : CAIRN_CQE_REQ, .syndrome = f->syndrome,
		.sent_opcode = f->opcode, .index = f->index, .bytes = f->bytes,
	};

	nic_complete(sq->qp, &c);
}

static void retire(struct nic_sq *sq, uint64_t now)
{
	uint8_t held[CAIRN_WQE_BLOCK];

	while (sq->num_inflight && inflight(sq, 0)->due_ns <= now) {
		struct nic_inflight *f = inflight(sq, 0);

		if (f->data)
			nic_place(sq, f, f->request);
		free(f->request);
		f->request = NULL;
		read_block(sq, f->index, held);
		if (memcmp(f->first, held, (size_t)f->first_bytes))
			nic_broken(sq->qp, NIC_RULE_wqe_reuse, f->index,
				   "the ring's bytes changed before completion");
		sq->retired = (uint16_t)(sq->retired + f->num_blocks);
		if (f->signalled || f->syndrome)
			complete_send(sq, f);
		if (f->syndrome)
			nic_qp_fail(sq->qp);
		steps++;
		sq->first_inflight = (sq->first_inflight + 1) % NIC_MAX_INFLIGHT;
		sq->num_inflight--;
	}
}

static int data_is_outstanding(struct nic_sq *sq)
{
	int i;

	for (i = 0; i < sq->num_inflight; i++)
		if (inflight(sq, i)->data)
			return 1;
	return 0;
}

/* Fetches and executes the next request. Returns 0 if it is now in flight, -EAGAIN if it must wait. */
static int advance(struct nic_sq *sq, uint64_t now)
{
	struct nic_request *r = &sq->request;
	struct nic_inflight *f = inflight(sq, sq->num_inflight);
	int ret = 0;

	if (!sq->have_request) {
		if (!sq->fetch_armed) {
			sq->fetch_armed = 1;
			sq->wait_ns = nic_adversary_fetch_ns();
			if (sq->wait_ns) {
				sq->wait_ns += now;
				return -EAGAIN;
			}
		}
		fetch(sq);
		r->syndrome = nic_decode(sq->qp, sq->fetched, r);
	}
	/* An error is reported only after all earlier requests. */
	if (r->flags & NIC_FLAG_FM && data_is_outstanding(sq))
		return -EAGAIN;
	memset(f, 0, sizeof(*f));
	ret = r->syndrome ? r->syndrome : nic_execute(sq, r, f);
	if (ret == -EAGAIN)
		return ret;
	if (f->data) {
		f->request = malloc(sizeof(*r));
		if (f->request)
			memcpy(f->request, r, sizeof(*r));
		else
			ret = CAIRN_CQE_LOCAL_QP_OP;
	}
	f->index = r->index;
	f->num_blocks = r->num_blocks;
	f->opcode = r->opcode;
	f->syndrome = (uint8_t)ret;
	f->signalled = sq->qp->sq_sig_all || (r->flags & NIC_FLAG_CE) == CAIRN_WQE_SIGNALED;
	f->bytes = (uint32_t)r->bytes;
	f->first_bytes = r->ds * NIC_SEGMENT < CAIRN_WQE_BLOCK ? r->ds * NIC_SEGMENT : CAIRN_WQE_BLOCK;
	memcpy(f->first, r->raw, CAIRN_WQE_BLOCK);
	if (!f->due_ns) {
		f->due_ns = nic_adversary_completion_ns();
		f->due_ns += f->due_ns ? now : 0;
	}
	nic_count(&nic_stats.bytes, ret ? 0 : r->bytes);
	sq->fetched = (uint16_t)(sq->fetched + r->num_blocks);
	sq->have_request = sq->fetch_armed = 0;
	sq->num_inflight++;
	return ret ? -EIO : 0;
}

static void flush_sends(struct nic_sq *sq)
{
	while (sq->fetched != sq->producer) {
		struct nic_inflight f = { .syndrome = CAIRN_CQE_FLUSHED, .index = sq->fetched };
		int blocks, left = (uint16_t)(sq->producer - sq->fetched);
		uint8_t w[CAIRN_WQE_BLOCK];

		read_block(sq, sq->fetched, w);
		f.opcode = w[3];
		blocks = nic_blocks(w[7] & 0x3f);
		complete_send(sq, &f);
		blocks = blocks < 1 ? 1 : blocks > left ? left : blocks;
		sq->fetched = (uint16_t)(sq->fetched + blocks);
		sq->retired = sq->fetched;
	}
	sq->have_request = sq->fetch_armed = sq->delivery.active = 0;
}

static void flush_receives(struct nic_sq *sq)
{
	struct nic_qp *qp = sq->qp;
	struct nic_completion c = { .receive = 1, .opcode = CAIRN_CQE_RESP_ERR,
	.syndrome = CAIRN_CQE_FLUSHED };
	uint16_t posted;

	if (!qp->rq_entries)
		return;
	posted = (uint16_t)be32toh(__atomic_load_n((uint32_t *)(uintptr_t)qp->dbrec, __ATOMIC_ACQUIRE));
	while (qp->rq_head != posted) {
		c.index = qp->rq_head++;
		nic_complete(qp, &c);
	}
}

/* Visits one queue pair, with the lock held. Returns whether it must be visited again without a doorbell. */
static int visit(struct nic_sq *sq)
{
	uint64_t now = nic_now_ns();
	int i;

	if (sq->lost_ns && now >= sq->lost_ns) {
		int record = nic_record_check(sq->qp, send_record(sq), sq->fetched);

		sq->lost_ns = 0;
		if (record >= 0)
			announce(sq, (uint16_t)record);
	}
	retire(sq, now);
	for (i = 0; i < MAX_REQUESTS_PER_VISIT && sq->qp->state == NIC_RTS; i++) {
		if (sq->num_inflight == NIC_MAX_INFLIGHT || now < sq->wait_ns)
			break;
		if (!sq->have_request && sq->fetched == sq->producer)
			break;
		sq->wait_ns = 0;
		if (sq->num_inflight && inflight(sq, sq->num_inflight - 1)->syndrome)
			break;
		if (advance(sq, now) == -EAGAIN)
			break;
		retire(sq, now);
	}
	if (sq->qp->state == NIC_ERR && !sq->num_inflight) {
		flush_sends(sq);
		flush_receives(sq);
		return 1;
	}
	return sq->num_inflight || sq->lost_ns || sq->fetched != sq->producer;
}

/* Polls UARs without the lock and does everything else with it. Returns whether any work was done; waiting
 * does not count. */
static int poll_queue(int i, int *busy)
{
	struct nic_sq *sq = &sqs[i];
	uint64_t words[2] = { 0, 0 };
	uint64_t before = steps;
	int half;

	for (half = 0; half < 2; half++) {
		_Atomic uint64_t *reg = nic_register(i, half);

		if (atomic_load_explicit(reg, memory_order_relaxed))
			words[half] = atomic_exchange_explicit(reg, 0, memory_order_acquire);
	}
	if (!words[0] && !words[1] && !*busy)
		return 0;
	nic_lock();
	*busy = 0;
	if (sq->qp && sq->qp->state != NIC_RESET) {
		for (half = 0; half < 2; half++)
			if (words[half]) {
				doorbell(sq, words[half], take_blueflame(i, half));
				/* last, so that the record has been read by now */
				nic_count(&nic_stats.doorbells, 1);
			}
		*busy = visit(sq);
	}
	nic_unlock();
	return words[0] || words[1] || steps != before;
}

static void audit_all(int *busy)
{
	uint64_t now = nic_now_ns();
	int i;

	nic_lock();
	for (i = 0; i < NIC_MAX_QPS; i++) {
		if (!sqs[i].qp)
			continue;
		audit(&sqs[i], now);
		/* the other end, another process or the application may have changed the state */
		busy[i] |= sqs[i].qp->state == NIC_ERR;
	}
	nic_events_audit(now);
	nic_unlock();
}

static void *engine(void *arg)
{
	struct timespec pause = { .tv_nsec = 20000 };
	uint64_t next_audit = 0, last_work = 0, last_look = nic_now_ns(), crowded_until = 0, now;
	int many = sysconf(_SC_NPROCESSORS_ONLN) > FEW_CORES, plenty;
	int busy[NIC_MAX_QPS] = { 0 }, i;

	(void)arg;
	while (!atomic_load_explicit(&stopping, memory_order_relaxed)) {
		int worked = 0;

		for (i = 0; i < NIC_MAX_QPS; i++)
			if (atomic_load_explicit(&ours[i], memory_order_relaxed))
				worked |= poll_queue(i, &busy[i]);
		worked |= nic_events_poll();
		now = nic_now_ns();
		if (!worked && now - last_look > CROWDED_NS)
			crowded_until = now + CROWDED_FOR_NS;
		plenty = many && now >= crowded_until;
		last_work = worked ? now : last_work;
		last_look = now;
		if (now >= next_audit) {
			audit_all(busy);
			next_audit = now + AUDIT_NS;
			last_look = nic_now_ns();
		}
		if (now - last_work > (plenty ? IDLE_BEFORE_SLEEP_NS : IDLE_FEW_CORES_NS)) {
			nanosleep(&pause, NULL);
			last_look = nic_now_ns();
		} else if (!plenty) {
			sched_yield();
		}
	}
	return NULL;
}

/* Called with the lock held. The engine blocks all signals, which belong to the application. */
int nic_engine_start(void)
{
	sigset_t all, old;
	int ret;

	if (running)
		return 0;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	ret = pthread_create(&thread, NULL, engine, NULL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	running = !ret;
	return -ret;
}

void nic_engine_stop(void)
{
	if (!running)
		return;
	atomic_store(&stopping, 1);
	pthread_join(thread, NULL);
	running = 0;
}
