// SPDX-License-Identifier: Apache-2.0
/*
 * nic_mutants [trouble | collapsed] - producers that break a rule, which the NIC model must detect
 *
 * The program writes rings, doorbell records and UARs itself, through the pointers that mlx5dv_init_obj
 * gives, as a GPU would; libmlx5 only creates the queues. A run repeats 300 times (100 times with `trouble`)
 * a payload WRITE and a signalled inline WRITE of a sequence number, which the other end polls. The ring has
 * 64 blocks and wraps several times. First come correct producers, one for each doorbell dialect, which must
 * break no rule. Then come the defective producers, each with the evidence that must catch it: a rule's name,
 * an error completion, a sequence number that does not arrive, or a payload that is missing when its number
 * arrives. `trouble` runs the producers that only a late NIC reveals; the model's adversary must be on
 * (CAIRN_NIC_ADVERSARY). `collapsed` runs the producers that read completions of a queue of one entry
 * (CAIRN_NIC_ADVERSARY=collapse=1).
 *
 * Exit status 0: all correct producers pass, and all others are caught; 1: any other outcome; 77: no device,
 * or not the model.
 */
#include <dlfcn.h>
#include <infiniband/mlx5dv.h>
#include <time.h>

#include "rdma/wqe/cqe.h"
#include "rdma/nic/nic.h"
#include "rdma/nic/nic_verbs.h"

enum {
	PAIRS = 300, PAIRS_IN_TROUBLE = 100,
	PAYLOAD = 256,
	NUM_CQES = 128,		/* fewer than PAIRS */
	PAYLOAD_AT = 4096, FLAG_AT = 64, SEQ_AT = 64,	/* 64-byte aligned, separate from the payload */
	SCRATCH_AT = 65536,
};
#define SEEN_S		2.0	/* time-out of a sequence number; the model waits 0.5 s for a doorbell */
#define GAP_NS		1000000

enum order {
	RECORD_THEN_DOORBELL,	/* libmlx5's dialect: the last request's first bytes */
	INDEX_DOORBELL,		/* NVSHMEM's and DeepEP's dialect */
	EARLY_DOORBELL,		/* GPUNetIO's dialect: doorbell, record, doorbell */
	BLUEFLAME,		/* record, then 64 bytes */
	DOORBELL_THEN_RECORD,
	NO_RECORD,
	NO_DOORBELL,
	NATIVE_RECORD,
	WHOLE_RECORD,		/* all 32 bits of the index */
	FOREIGN_DOORBELL,
	REQUEST_AFTER_DOORBELL,
};

enum evidence { RIGHT, BY_RULE, BY_ERROR, BY_TORN, BY_SILENCE };

enum conduct {
	PROPER,
	SLOT_REUSED,		/* rewrites its ring entry at once */
	SLOT_REUSED_LATE,	/* rewrites it after the signal has arrived, before the completion */
	PAYLOAD_REUSED,		/* rewrites its payload buffer at once */
	SIGNAL_FIRST,
	SIGNAL_ELSEWHERE,	/* on another queue pair */
	POLLS_PAYLOAD,		/* polls its last byte instead of the sequence number */
	NO_FENCE,		/* a WRITE of data that a READ returns, without a fence */
	FENCED,
	NO_RECLAIM,		/* posts without waiting for completions */
	NO_CONSUMER,		/* never returns completion entries */
	BAD_CONSUMER_INDEX,
	READS_COLLAPSED,	/* reads only entry 0, by its counter */
};

struct mutant {
	const char *name;
	enum order order;
	enum conduct conduct;
	int segment, word;		/* position in the signal's request */
	uint32_t flip;			/* XOR mask, as a number */
	enum evidence evidence;
	int detail;			/* rule or syndrome */
	int swap;			/* reverse the word's bytes */
};

#define RULE(name)	.evidence = BY_RULE, .detail = NIC_RULE_##name
#define SYNDROME(name)	.evidence = BY_ERROR, .detail = CAIRN_CQE_##name

static const struct mutant plain[] = {
	{ "right_wqe_doorbell", .order = RECORD_THEN_DOORBELL },
	{ "right_index_doorbell", .order = INDEX_DOORBELL },
	{ "right_early_doorbell", .order = EARLY_DOORBELL },
	{ "right_blueflame", .order = BLUEFLAME },
	{ "right_fence", .conduct = FENCED },
	{ "index_plus_1", .flip = 0x100, RULE(wqe_index) },
	{ "index_inverted", .flip = 0xffff00, RULE(wqe_index) },
	{ "opcode_unknown", .flip = 0x04, RULE(wqe_opcode) },
	{ "opcode_modifier", .flip = 0x01000000, RULE(wqe_opmod) },
	{ "qpn_native_endian", .order = INDEX_DOORBELL, .word = 1, .swap = 1, RULE(wqe_qpn) },
	{ "qpn_of_another", .order = INDEX_DOORBELL, .word = 1, .flip = 0x100, RULE(wqe_qpn) },
	{ "ds_reserved_bit", .word = 1, .flip = 0x40, RULE(wqe_ds_reserved) },
	{ "ds_zero", .word = 1, .flip = 0x03, RULE(wqe_ds) },
	{ "ds_without_address", .word = 1, .flip = 0x02, RULE(wqe_too_short) },
	{ "ds_one_too_many", .word = 1, .flip = 0x07, RULE(data_zero_length) },
	{ "signature", .word = 2, .flip = 0x5a000000, RULE(wqe_signature) },
	{ "stream", .word = 2, .flip = 0x00010000, RULE(wqe_stream) },
	{ "flags_reserved_bit", .word = 2, .flip = 0x10, RULE(wqe_flags_reserved) },
	{ "raddr_reserved", .segment = 1, .word = 3, .flip = 7, RULE(raddr_reserved) },
	{ "raddr_native_endian", .segment = 1, .word = 1, .swap = 1, SYNDROME(REMOTE_ACCESS) },
	{ "rkey_native_endian", .segment = 1, .word = 2, .swap = 1, SYNDROME(REMOTE_ACCESS) },
	{ "inline_flag_forgotten", .segment = 2, .flip = CAIRN_WQE_INLINE_FLAG, SYNDROME(LOCAL_PROTECTION) },
	{ "inline_length_reserved", .segment = 2, .flip = 0x400, RULE(inline_reserved) },
	{ "inline_runs_past_ds", .segment = 2, .flip = 0x10, RULE(inline_overrun) },
	{ "inline_in_read", .flip = CAIRN_WQE_WRITE ^ CAIRN_WQE_READ, RULE(inline_misplaced) },
	{ "atomic_without_buffer", .flip = CAIRN_WQE_WRITE ^ CAIRN_WQE_ATOMIC_FA, RULE(atomic_length) },
	{ "segment_of_zero_bytes", .segment = 2, .flip = 8 | CAIRN_WQE_INLINE_FLAG, RULE(data_zero_length) },
	{ "doorbell_before_record", .order = DOORBELL_THEN_RECORD, RULE(doorbell_beyond_record) },
	{ "record_missing", .order = NO_RECORD, RULE(doorbell_beyond_record) },
	{ "doorbell_missing", .order = NO_DOORBELL, RULE(record_not_rung) },
	{ "record_native_endian", .order = NATIVE_RECORD, RULE(record_native_endian) },
	{ "record_upper_half", .order = WHOLE_RECORD, RULE(record_upper_half) },
	{ "doorbell_of_another", .order = FOREIGN_DOORBELL, RULE(doorbell_qpn) },
	{ "request_after_doorbell", .order = REQUEST_AFTER_DOORBELL, RULE(wqe_index) },
	{ "completions_not_given_back", .conduct = NO_CONSUMER, RULE(cq_overrun) },
	{ "consumer_index_unmasked", .conduct = BAD_CONSUMER_INDEX, RULE(cq_record_upper) },
};

/* Run with the adversary's options fetch_us, completion_us, read_us and pieces. */
static const struct mutant trouble[] = {
	{ "right_wqe_doorbell", .order = RECORD_THEN_DOORBELL },
	{ "right_index_doorbell", .order = INDEX_DOORBELL },
	{ "right_early_doorbell", .order = EARLY_DOORBELL },
	{ "right_blueflame", .order = BLUEFLAME },
	{ "right_fence", .conduct = FENCED },
	{ "slot_reused_at_once", .conduct = SLOT_REUSED, RULE(wqe_index) },
	{ "slot_reused_before_completion", .conduct = SLOT_REUSED_LATE, RULE(wqe_reuse) },
	{ "payload_reused_before_completion", .conduct = PAYLOAD_REUSED, .evidence = BY_TORN },
	{ "signal_before_payload", .conduct = SIGNAL_FIRST, .evidence = BY_TORN },
	{ "signal_on_another_queue_pair", .conduct = SIGNAL_ELSEWHERE, .evidence = BY_TORN },
	{ "payload_polled_without_signal", .conduct = POLLS_PAYLOAD, .evidence = BY_TORN },
	{ "read_not_fenced", .conduct = NO_FENCE, .evidence = BY_TORN },
	{ "ring_not_reclaimed", .conduct = NO_RECLAIM, RULE(ring_overrun) },
	{ "record_missing", .order = NO_RECORD, RULE(doorbell_beyond_record) },
};

static const struct mutant collapsed[] = {
	{ "right_by_counter", .conduct = READS_COLLAPSED },
	{ "right_by_counter_index_doorbell", .order = INDEX_DOORBELL, .conduct = READS_COLLAPSED },
	{ "entries_counted", .evidence = BY_SILENCE },
};

struct producer {
	struct cairn_wqe_ring ring;
	volatile uint32_t *record;
	volatile uint64_t *reg;
	uint32_t half, half_bytes;
	uint64_t next;			/* index of the next request */
	const struct cairn_cqe *cqes;
	uint32_t num_cqes;
	volatile uint32_t *cq_record;
	uint64_t consumed;
	int gives_back, collapsed;
};

static struct end a, b, second_a, second_b;	/* second_*: a second pair on the same memory */
static const struct nic_stats *(*stats)(void);

static int num_pairs = PAIRS;

/* Pauses between two polls of memory, because the model may need this core. */
static void poll_pause(void)
{
	nanosleep(&(struct timespec) { .tv_nsec = 1000 }, NULL);
}

/* Pauses between stores whose order matters: waits until the model has seen one more doorbell, and then a
 * while longer. */
static void gap(uint64_t doorbells)
{
	double limit = now_s() + SEEN_S;

	while (stats()->doorbells == doorbells && now_s() < limit)
		poll_pause();
	nanosleep(&(struct timespec) { .tv_nsec = GAP_NS }, NULL);
}

static void attach(struct producer *p, const struct end *e)
{
	struct mlx5dv_qp qp = { 0 };
	struct mlx5dv_cq cq = { 0 };
	struct mlx5dv_obj obj = { .qp = { e->qp, &qp }, .cq = { e->cq, &cq } };

	must(!mlx5dv_init_obj(&obj, MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ), "mlx5dv_init_obj");
	*p = (struct producer) {
		.ring = { qp.sq.buf, qp.sq.wqe_cnt, e->qp->qp_num },
		.record = (volatile uint32_t *)qp.dbrec + 1,
		.reg = qp.bf.reg, .half_bytes = qp.bf.size, .cqes = cq.buf, .num_cqes = cq.cqe_cnt,
		.cq_record = (volatile uint32_t *)cq.dbrec, .gives_back = 1,
	};
}

static void put(const struct producer *p, uint64_t index, const struct cairn_wqe_seg *s, uint32_t ds)
{
	uint32_t k;

	for (k = 0; k < ds; k++)
		*cairn_wqe_at(&p->ring, index, k) = s[k];
}

static void put_data(struct producer *p, int opcode, int flags, uint64_t from, uint32_t bytes, uint64_t to)
{
	struct cairn_wqe_seg s[] = {
		cairn_wqe_ctrl((uint32_t)opcode, p->next, p->ring.qpn, 3, (uint32_t)flags, 0),
		cairn_wqe_raddr(to, b.mr->rkey), cairn_wqe_data(from, bytes, a.mr->lkey),
	};

	put(p, p->next++, s, 3);
}

static void put_signal(struct producer *p, const struct mutant *m, uint64_t seq)
{
	struct cairn_wqe_seg s[4] = {
		cairn_wqe_ctrl(CAIRN_WQE_WRITE, p->next, p->ring.qpn, 3, CAIRN_WQE_SIGNALED, 0),
		cairn_wqe_raddr((uintptr_t)b.buf + FLAG_AT, b.mr->rkey), cairn_wqe_inline_u64(seq),
	};
	uint32_t *word = &s[m->segment].w[m->word];

	*word ^= cairn_be32(m->flip);
	if (m->swap)
		*word = cairn_be32(*word);
	put(p, p->next++, s, 4);
}

static void ring(struct producer *p, uint64_t word)
{
	p->reg[p->half * p->half_bytes / 8] = word;
	p->half ^= 1;
}

static void set_record(struct producer *p, uint32_t word)
{
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	*p->record = word;
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* Announces the requests put so far; the last one is at p->next - 1. */
static void announce(struct producer *p, enum order order)
{
	struct cairn_wqe_seg *last = cairn_wqe_at(&p->ring, p->next - 1, 0);
	uint64_t whole = cairn_wqe_doorbell(*last), index = cairn_wqe_doorbell_next(p->next, p->ring.qpn);
	uint32_t record = cairn_wqe_dbrec(p->next);
	uint64_t doorbells = stats()->doorbells;
	struct cairn_wqe_seg late[4];
	int i;

	switch (order) {
	case RECORD_THEN_DOORBELL:
		set_record(p, record);
		ring(p, whole);
		break;
	case INDEX_DOORBELL:
		set_record(p, record);
		ring(p, index);
		break;
	case EARLY_DOORBELL:
		ring(p, index);
		if (p->next % 16 == 0)
			gap(doorbells);
		set_record(p, record);
		ring(p, index);
		break;
	case BLUEFLAME:
		set_record(p, record);
		for (i = 1; i < 8; i++)
			p->reg[p->half * p->half_bytes / 8 + (unsigned)i] = ((uint64_t *)(void *)last)[i];
		ring(p, whole);
		break;
	case DOORBELL_THEN_RECORD:
		ring(p, whole);
		gap(doorbells);
		set_record(p, record);
		break;
	case NO_RECORD:
		ring(p, whole);
		break;
	case NO_DOORBELL:
		set_record(p, record);
		break;
	case NATIVE_RECORD:
		set_record(p, (uint32_t)p->next & 0xffff);
		ring(p, whole);
		break;
	case WHOLE_RECORD:
		set_record(p, cairn_be32((uint32_t)p->next + 0x10000));
		ring(p, whole);
		break;
	case FOREIGN_DOORBELL:
		set_record(p, record);
		ring(p, cairn_wqe_doorbell_next(p->next, p->ring.qpn + 1));
		break;
	case REQUEST_AFTER_DOORBELL:
		memcpy(late, last, sizeof(late));
		memset(last, 0, sizeof(late));
		set_record(p, record);
		ring(p, index);
		gap(doorbells);
		memcpy(last, late, sizeof(late));
		break;
	}
}

/* Reaps one completion by hand. Returns 1, or 0 after the time-out; stores the syndrome of an error. */
static int reap(struct producer *p, double seconds, int *syndrome)
{
	uint64_t index = p->collapsed ? 0 : p->consumed;
	const struct cairn_cqe *e = &p->cqes[index & (p->num_cqes - 1)];
	double limit = now_s() + seconds;

	while (!cairn_cqe_valid(*(const volatile uint8_t *)&e->op_own, index, p->num_cqes) ||
	       (p->collapsed && cairn_cqe_parse(e).wqe_counter != (uint16_t)(p->next - 1))) {
		if (now_s() > limit)
			return 0;
		poll_pause();
	}
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	*syndrome = cairn_cqe_parse(e).syndrome;
	p->consumed++;
	if (p->gives_back)
		*p->cq_record = cairn_cqe_dbrec(p->consumed);
	return 1;
}

/* Stores the control segment of the request one lap later in the place of the last request. */
static void reuse_slot(struct producer *p)
{
	*cairn_wqe_at(&p->ring, p->next - 1, 0) =
		cairn_wqe_ctrl(CAIRN_WQE_WRITE, p->next - 1 + p->ring.num_blocks, p->ring.qpn, 3, 0, 0);
}

static void put_pair(struct producer *p, struct producer *q, const struct mutant *m, uint64_t seq)
{
	uint64_t from = (uintptr_t)a.buf + PAYLOAD_AT, to = (uintptr_t)b.buf + PAYLOAD_AT;

	switch (m->conduct) {
	case SIGNAL_FIRST:
		put_signal(p, m, seq);
		put_data(p, CAIRN_WQE_WRITE, 0, from, PAYLOAD, to);
		break;
	case SIGNAL_ELSEWHERE:
		put_data(p, CAIRN_WQE_WRITE, 0, from, PAYLOAD, to);
		announce(p, m->order);
		put_signal(q, m, seq);
		announce(q, m->order);
		return;
	case NO_FENCE: case FENCED:
		put_data(p, CAIRN_WQE_READ, 0, (uintptr_t)a.buf + SCRATCH_AT, PAYLOAD,
			 (uintptr_t)b.buf + SCRATCH_AT);
		put_data(p, CAIRN_WQE_WRITE, m->conduct == FENCED ? CAIRN_WQE_FENCE : 0,
			 (uintptr_t)a.buf + SCRATCH_AT,
			 PAYLOAD, to);
		put_signal(p, m, seq);
		break;
	default:
		put_data(p, CAIRN_WQE_WRITE, 0, from, PAYLOAD, to);
		put_signal(p, m, seq);
		break;
	}
	announce(p, m->order);
	if (m->conduct == SLOT_REUSED)
		reuse_slot(p);
	if (m->conduct == PAYLOAD_REUSED)
		memset(a.buf + PAYLOAD_AT, 0xee, PAYLOAD);
}

static int arrived(const struct mutant *m, uint64_t seq)
{
	volatile uint8_t *last = b.buf + PAYLOAD_AT + PAYLOAD - 1;

	if (m->conduct == POLLS_PAYLOAD)
		return *last == (uint8_t)((PAYLOAD - 1) * 7 + seq);
	return *(volatile uint64_t *)(void *)(b.buf + FLAG_AT) == seq;
}

static void fill(uint64_t seq)
{
	uint8_t *source = b.buf + SCRATCH_AT;
	int i;

	for (i = 0; i < PAYLOAD; i++)
		a.buf[PAYLOAD_AT + i] = source[i] = (uint8_t)((unsigned)i * 7 + seq);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static int payload_is_whole(uint64_t seq)
{
	int i;

	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	for (i = 0; i < PAYLOAD; i++)
		if (b.buf[PAYLOAD_AT + i] != (uint8_t)((unsigned)i * 7 + seq))
			return 0;
	return 1;
}

struct outcome {
	int pairs, torn, unseen, syndrome;
	uint64_t rules, rule, by_wqe, by_index, early, blueflame;
};

/* The posts of NO_RECLAIM: only the end of the ring stops them. */
static void flood(struct producer *p, const struct mutant *m)
{
	uint32_t i;

	for (i = 0; i < p->ring.num_blocks + 2; i += 2)
		put_pair(p, NULL, m, i + 1);
}

/* Creates a fresh queue, so that its entries count from zero. */
static void renew_cq(struct end *e)
{
	must(!e->qp || !ibv_destroy_qp(e->qp), "ibv_destroy_qp");
	must(!ibv_destroy_cq(e->cq), "ibv_destroy_cq");
	e->qp = NULL;
	e->cq = ibv_create_cq(e->ctx, NUM_CQES, NULL, NULL, 0);
	must(!!e->cq, "ibv_create_cq");
}

static int rule_is_noticed(const struct mutant *m, const struct nic_stats *before)
{
	return m->evidence == BY_RULE && stats()->by_rule[m->detail] > before->by_rule[m->detail];
}

/* Posts one pair and waits for it. Returns 0 if the run should continue. */
static int run_pair(const struct mutant *m, struct producer *p, struct producer *q,
		    const struct nic_stats *before,
		    struct outcome *o)
{
	struct producer *signal = m->conduct == SIGNAL_ELSEWHERE ? q : p;
	double limit = now_s() + SEEN_S;
	uint64_t seq = (unsigned)++o->pairs;
	int got = 0, seen;

	fill(seq);
	put_pair(p, q, m, seq);
	while (!arrived(m, seq) && now_s() < limit && !rule_is_noticed(m, before) && !o->syndrome) {
		got = got || reap(signal, 0, &o->syndrome);
		poll_pause();
	}
	seen = arrived(m, seq);
	o->torn += seen && !payload_is_whole(seq);
	o->unseen += !seen;
	if (m->conduct == SLOT_REUSED_LATE && !got)
		reuse_slot(p);
	if (o->unseen || o->syndrome || rule_is_noticed(m, before) || (m->evidence == BY_TORN && o->torn))
		return 1;
	if (!got && !reap(signal, SEEN_S, &o->syndrome))
		o->unseen++;
	return o->unseen || o->syndrome || rule_is_noticed(m, before);
}

static void run(const struct mutant *m, struct outcome *o)
{
	const struct nic_stats before = *stats();
	struct producer p, q;
	double limit;

	memset(o, 0, sizeof(*o));
	renew_cq(&a);
	renew_cq(&second_a);
	ends_reset(&a, &b, ALL_RIGHTS);
	ends_reset(&second_a, &second_b, ALL_RIGHTS);
	memset(b.buf, 0, END_BYTES);	/* no request of the last run is in flight any more */
	attach(&p, &a);
	attach(&q, &second_a);
	p.gives_back = m->conduct != NO_CONSUMER && m->conduct != BAD_CONSUMER_INDEX;
	p.collapsed = m->conduct == READS_COLLAPSED;
	if (m->conduct == BAD_CONSUMER_INDEX)
		*p.cq_record = cairn_be32(0x01000000);
	if (m->conduct == NO_RECLAIM)
		flood(&p, m);
	while (m->conduct != NO_RECLAIM && o->pairs < num_pairs)
		if (run_pair(m, &p, &q, &before, o))
			break;
	limit = now_s() + SEEN_S;
	while (m->evidence == BY_RULE && now_s() < limit && !rule_is_noticed(m, &before))
		poll_pause();
	o->rules = stats()->rules - before.rules;
	o->by_wqe = stats()->doorbell_wqe - before.doorbell_wqe;
	o->by_index = stats()->doorbell_index - before.doorbell_index;
	o->early = stats()->doorbell_early - before.doorbell_early;
	o->blueflame = stats()->blueflame - before.blueflame;
	o->rule = m->evidence == BY_RULE ? stats()->by_rule[m->detail] - before.by_rule[m->detail] : 0;
}

/* The model must also report the correct dialect. */
static int dialect_is_right(const struct mutant *m, const struct outcome *o)
{
	int by_index = m->order == INDEX_DOORBELL || m->order == EARLY_DOORBELL;

	return (by_index ? o->by_index && !o->by_wqe : o->by_wqe && !o->by_index) &&
	       (m->order == EARLY_DOORBELL) == !!o->early && (m->order == BLUEFLAME) == !!o->blueflame;
}

static int judge(const struct mutant *m, const struct outcome *o)
{
	switch (m->evidence) {
	case RIGHT:
		return !o->torn && !o->unseen && !o->syndrome && !o->rules && o->pairs == num_pairs &&
		       dialect_is_right(m, o);
	case BY_RULE:
		return o->rule > 0;
	case BY_ERROR:
		return o->syndrome == m->detail;
	case BY_TORN:
		return o->torn > 0;
	case BY_SILENCE:
		return o->unseen > 0;
	}
	return 0;
}

static void open_second(struct end *e, const struct end *first)
{
	*e = *first;
	e->qp = NULL;
	e->cq = ibv_create_cq(e->ctx, NUM_CQES, NULL, NULL, 0);
	must(!!e->cq, "ibv_create_cq");
}

static void close_second(struct end *e)
{
	must(!ibv_destroy_qp(e->qp), "ibv_destroy_qp");
	must(!ibv_destroy_cq(e->cq), "ibv_destroy_cq");
}

int main(int argc, char **argv)
{
	int is_trouble = argc > 1 && !strcmp(argv[1], "trouble"), is_collapsed = argc > 1 && !is_trouble;
	const struct mutant *mutants = is_trouble ? trouble : is_collapsed ? collapsed : plain;
	int count = (int)((is_trouble ? sizeof(trouble) : is_collapsed ? sizeof(collapsed) : sizeof(plain)) /
			  sizeof(plain[0]));
	int caught = 0, total = 0, wrong = 0, num = 0, ok, i;
	struct ibv_device **list = ibv_get_device_list(&num);
	struct outcome o;

	*(void **)&stats = dlsym(RTLD_DEFAULT, "cairn_nic_stats");
	if (!list || num < 1 || !stats)
		return 77;
	if (is_trouble)
		num_pairs = PAIRS_IN_TROUBLE;
	end_open(&a, list[0], NUM_CQES);
	end_open(&b, list[0], NUM_CQES);
	open_second(&second_a, &a);
	open_second(&second_b, &b);
	for (i = 0; i < count; i++) {
		const struct mutant *m = &mutants[i];

		run(m, &o);
		ok = judge(m, &o);
		printf("%s %-34s pairs %d torn %d unseen %d syndrome %#x rules %llu\n",
		       m->evidence == RIGHT ? ok ? "right " : "WRONG " : ok ? "caught" : "MISSED", m->name,
		       o.pairs,
		       o.torn, o.unseen, (unsigned)o.syndrome, (unsigned long long)o.rules);
		fflush(stdout);
		if (m->evidence == RIGHT) {
			wrong += !ok;
		} else {
			total++;
			caught += ok;
		}
	}
	printf("nic mutants: %d of %d caught, %d right producers blamed\n", caught, total, wrong);
	close_second(&second_a);
	close_second(&second_b);
	end_close(&a);
	end_close(&b);
	ibv_free_device_list(list);
	return caught != total || wrong;
}
