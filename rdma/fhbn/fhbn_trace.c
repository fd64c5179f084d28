// SPDX-License-Identifier: Apache-2.0
/* fhbn_trace.c - coroutines, the checker of their accesses, and the card they post to */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "rdma/fhbn/fhbn_trace.h"

#define STEP_NS		10
#define MAX_STEPS	4000000

__attribute__((format(printf, 2, 3)))
static void broken(struct fhbn_trace *s, const char *fmt, ...)
{
	va_list ap;

	if (s->broken[0])
		return;
	va_start(ap, fmt);
	vsnprintf(s->broken, sizeof(s->broken), fmt, ap);
	va_end(ap);
}

static uint64_t draw(struct fhbn_trace *s, uint64_t below)
{
	s->rng ^= s->rng >> 12;
	s->rng ^= s->rng << 25;
	s->rng ^= s->rng >> 27;
	return (s->rng * 2685821657736338717u >> 16) % below;
}

/* ---- the card ---- */

static void complete(struct fhbn_trace *s, uint64_t index, int syndrome)
{
	uint32_t entry = (uint32_t)(s->produced % TRACE_BLOCKS);
	struct cairn_cqe_result r = {
		.opcode = syndrome ? CAIRN_CQE_REQ_ERR : CAIRN_CQE_REQ, .syndrome = (uint8_t)syndrome,
		.wqe_counter = (uint16_t)index, .qpn = TRACE_QPN,
		.sent_opcode = (uint8_t)(cairn_be32(s->ring[index % TRACE_BLOCKS * 4].w[0]) & 0xff),
	};
	uint32_t given_back = cairn_be32(s->cq_record);

	if ((((uint32_t)s->produced - given_back) & 0xffffff) >= TRACE_BLOCKS)
		broken(s, "completion queue overrun: %u entries not given back", TRACE_BLOCKS);
	s->cq[entry] = cairn_cqe_build(&r, s->produced, TRACE_BLOCKS);
	s->completes[entry] = index;
	s->produced++;
}

/* Executes the next announced request. */
static void card(struct fhbn_trace *s)
{
	const struct cairn_wqe_seg *w = &s->ring[s->fetched % TRACE_BLOCKS * 4];
	uint32_t opcode = cairn_be32(w[0].w[0]) & 0xff, ds = cairn_be32(w[0].w[1]) & 0x3f;
	uint64_t index = s->fetched;

	if (s->fetched == s->rung)
		return;
	s->fetched++;
	s->carried_out++;
	if (s->failed || index == (uint64_t)s->setup.fails_at) {
		complete(s, index, s->failed ? CAIRN_CQE_FLUSHED : CAIRN_CQE_REMOTE_ACCESS);
		s->failed = 1;
		return;
	}
	if (opcode == CAIRN_WQE_WRITE && ds == 3 && cairn_be32(w[2].w[0]) & CAIRN_WQE_INLINE_FLAG) {
		if (!(s->delivered >> w[2].w[1] % TRACE_PAYLOADS & 1))
			broken(s, "sequence number %u arrives before its payload", w[2].w[1]);
	} else if (opcode == CAIRN_WQE_WRITE) {
		s->delivered |= 1ull << cairn_be32(w[2].w[3]) % TRACE_PAYLOADS;
	}
	if (cairn_be32(w[0].w[2]) & CAIRN_WQE_SIGNALED)
		complete(s, index, 0);
}

/* ---- scheduling ---- */

void fhbn_trace_yield(struct fhbn_trace *s)
{
	int me = s->me;

	if (++s->steps > MAX_STEPS)
		broken(s, "no end in %d steps", MAX_STEPS);
	s->now += STEP_NS;
	if (!s->broken[0] && draw(s, 4))
		return;
	swapcontext(&s->at[me], &s->back);
}

static void schedule(struct fhbn_trace *s)
{
	int alive = s->setup.threads, i;

	while (alive && !s->broken[0]) {
		i = (int)draw(s, (uint64_t)s->setup.threads + 1);
		if (i == s->setup.threads) {
			card(s);
			continue;
		}
		if (s->done[i])
			continue;
		s->me = i;
		fhbn_tap = &s->tap;
		fhbn_host_thread = (uint32_t)i;
		swapcontext(&s->back, &s->at[i]);
		fhbn_tap = NULL;
		alive -= s->done[i];
	}
}

/* ---- the checker ---- */

static void store_seg(struct fhbn_trace *s, const struct fhbn_op *op)
{
	uint64_t place = (uint64_t)((struct cairn_wqe_seg *)op->at - s->ring), b = place / 4, index, top;
	uint8_t bit = (uint8_t)(1 << place % 4);

	if (place >= 4 * TRACE_BLOCKS) {
		broken(s, "a store outside the ring");
		return;
	}
	if (place % 4 == 0) {
		top = s->state.reserved - 1;
		index = top - (uint16_t)((uint16_t)top - (uint16_t)(cairn_be32((uint32_t)op->v) >> 8));
		if (index % TRACE_BLOCKS != b)
			broken(s, "request %llu in place %u", (unsigned long long)index, (unsigned)b);
		if (index >= s->read + TRACE_BLOCKS)
			broken(s, "request %llu overwrites one whose completion was not read",
			       (unsigned long long)index);
		s->holds[b] = index;
	}
	for (int i = 0; i < TRACE_THREADS; i++) {
		s->known[i].segs[b] &= (uint8_t)~bit;
		s->fenced[i].segs[b] &= (uint8_t)~bit;
		s->peeked[i].segs[b] &= (uint8_t)~bit;
	}
	for (int i = 0; i < 3; i++)
		s->published[i].segs[b] &= (uint8_t)~bit;
	s->known[s->me].segs[b] |= bit;
}

static void fence(struct fhbn_trace *s, uint32_t mode)
{
	if (s->q.mode & CAIRN_FHBN_SYS && !(mode & CAIRN_FHBN_SYS)) {
		s->was_narrow = 1;
		return;
	}
	s->fenced[s->me] = s->known[s->me];
	if (s->recorder == s->me)
		s->record_fenced = 1;
}

static void announce(struct fhbn_trace *s, uint64_t i)
{
	uint64_t b = i % TRACE_BLOCKS;
	const struct cairn_wqe_seg *w = &s->ring[b * 4];
	uint32_t ds = cairn_be32(w->w[1]) & 0x3f, opcode = cairn_be32(w->w[0]) & 0xff, payload;
	uint8_t need = (uint8_t)((1 << ds) - 1);
	const char *why = s->was_narrow ? ": fence's scope too narrow" : "";
	unsigned long long number = i;

	if (s->holds[b] != i) {
		broken(s, "record announces request %llu, which is not in its place", number);
		return;
	}
	if ((s->fenced[s->me].segs[b] & need) != need)
		broken(s, "request %llu announced before its bytes are ordered%s", number, why);
	if (opcode != CAIRN_WQE_WRITE || cairn_be32(w[2].w[0]) & CAIRN_WQE_INLINE_FLAG)
		return;
	payload = cairn_be32(w[2].w[3]) % TRACE_PAYLOADS;
	if (!s->fenced[s->me].segs[TRACE_BLOCKS + payload])
		broken(s, "request %llu announced before its payload is ordered%s", number, why);
}

static void store_record(struct fhbn_trace *s, uint32_t word)
{
	uint32_t value = cairn_be32(word);
	uint16_t more = (uint16_t)(value - s->recorded);

	if (value >> 16)
		broken(s, "record holds %#x", value);
	else if (!more || more > TRACE_BLOCKS)
		broken(s, "record goes from %u to %u", (uint16_t)s->recorded, value);
	for (uint64_t i = s->recorded; !s->broken[0] && i < s->recorded + more; i++)
		announce(s, i);
	s->recorded += more;
	s->recorder = s->me;
	s->record_fenced = 0;
}

static void ring(struct fhbn_trace *s, const struct fhbn_op *op)
{
	uint32_t first = cairn_be32((uint32_t)op->v), second = cairn_be32((uint32_t)(op->v >> 32));
	uint32_t ds = second & 0x3f, bell = s->q.mode & (CAIRN_FHBN_BELL_WQE | CAIRN_FHBN_BLUEFLAME);
	uint16_t next = (uint16_t)((first >> 8) + cairn_wqe_blocks(ds));
	const struct cairn_wqe_seg *last = &s->ring[(s->recorded - 1) % TRACE_BLOCKS * 4];

	if (second >> 8 != TRACE_QPN)
		broken(s, "doorbell names queue pair %#x", second >> 8);
	else if (next != (uint16_t)s->recorded)
		broken(s, "doorbell for %u, record holds %u", next, (uint16_t)s->recorded);
	else if (s->recorder != s->me || !s->record_fenced)
		broken(s, "register stored to before the record is ordered%s",
		       s->was_narrow ? ": fence's scope too narrow" : "");
	else if (s->rung == s->recorded)
		broken(s, "doorbell %u twice", next);
	else if (!bell != !ds)
		broken(s, "doorbell of the other dialect");
	else if (op->access == FHBN_RING64 && memcmp(op->data, last, ds * sizeof(*last)))
		broken(s, "BlueFlame's bytes are not the last request's");
	else if (op->access == FHBN_RING64 && op->at != s->q.reg[s->bf_half])
		broken(s, "BlueFlame into the same buffer again");
	s->bf_half ^= op->access == FHBN_RING64;
	s->rung = s->recorded;
}

static int variable(const struct fhbn_trace *s, const void *at)
{
	return at == &s->state.ready ? 0 : at == &s->state.retired ? 1 : at == &s->state.cq_lock ? 2 : -1;
}

static void add(struct trace_knowledge *to, const struct trace_knowledge *from)
{
	for (int i = 0; i < TRACE_PLACES; i++)
		to->segs[i] |= from->segs[i];
}

static void acquire(struct fhbn_trace *s, const void *at, struct trace_knowledge *to)
{
	int v = variable(s, at);

	if (v >= 0)
		add(to, &s->published[v]);
}

static void release(struct fhbn_trace *s, const void *at)
{
	int v = variable(s, at);

	if (v >= 0)
		s->published[v] = s->known[s->me];
}

static void store_counter(struct fhbn_trace *s, const struct fhbn_op *op)
{
	const struct cairn_fhbn_state *c = &s->state;

	if (op->at == &c->retired && (op->v > s->read || op->v < c->retired))
		broken(s, "retired goes from %llu to %llu, read %llu", (unsigned long long)c->retired,
		       (unsigned long long)op->v, (unsigned long long)s->read);
	if (op->at == &c->cq_next && (op->v > s->produced || op->v < c->cq_next))
		broken(s, "completions read go from %llu to %llu", (unsigned long long)c->cq_next,
		       (unsigned long long)op->v);
	if (op->at == &c->ready && op->v < c->ready)
		broken(s, "ready goes back");
}

/* The reader loads an entry. If it is valid, the blocks that it completes may be overwritten from now on. */
static void load_entry(struct fhbn_trace *s, const void *at)
{
	uint64_t entry = (uint64_t)((const char *)at - (const char *)s->cq) / sizeof(s->cq[0]);

	/* a reader may load several entries before it stores its counter */
	for (uint64_t i = s->state.cq_next; i < s->produced; i++)
		if (i % TRACE_BLOCKS == entry && s->completes[entry] >= s->read)
			s->read = s->completes[entry] + 1;
}

uint64_t fhbn_trace_judge(struct fhbn_trace *s, struct fhbn_op op)
{
	uint64_t ret;

	switch (op.access) {
	case FHBN_STORE_SEG:
		store_seg(s, &op);
		break;
	case FHBN_FENCE:
		fence(s, op.mode);
		return 0;
	case FHBN_STORE_RECORD:
		store_record(s, (uint32_t)op.v);
		break;
	case FHBN_RING8: case FHBN_RING64:
		ring(s, &op);
		break;
	case FHBN_STORE_CQ_RECORD:
		if (cairn_be32((uint32_t)op.v) != (s->state.cq_next & 0xffffff))
			broken(s, "consumer's record holds %#x, completions read: %llu",
			       cairn_be32((uint32_t)op.v), (unsigned long long)s->state.cq_next);
		break;
	case FHBN_LOAD_ENTRY:
		load_entry(s, op.at);
		break;
	case FHBN_STORE_RELEASE: case FHBN_STORE:
		store_counter(s, &op);
		if (op.access == FHBN_STORE_RELEASE)
			release(s, op.at);
		break;
	case FHBN_UNLOCK:
		release(s, op.at);
		break;
	case FHBN_FENCE_ACQUIRE:
		add(&s->known[s->me], &s->peeked[s->me]);
		return 0;
	case FHBN_NOW:
		return s->now;
	case FHBN_PAUSE:
		s->now += 10 * STEP_NS;
		return 0;
	default:
		break;
	}
	if (s->broken[0])
		return op.access == FHBN_LOAD_KIND ? CAIRN_FHBN_NO_TURN : 0;
	ret = fhbn_carry_out(op);
	if (op.access == FHBN_LOAD_ACQUIRE || (op.access == FHBN_TRY_LOCK && ret))
		acquire(s, op.at, &s->known[s->me]);
	if (op.access == FHBN_PEEK)
		acquire(s, op.at, &s->peeked[s->me]);
	if (op.access == FHBN_ADD)
		s->own_index[s->me] = ret;
	return ret;
}

static uint64_t on_access(struct fhbn_tap *tap, struct fhbn_op op)
{
	struct fhbn_trace *s = (struct fhbn_trace *)tap;

	fhbn_trace_yield(s);
	return s->setup.defect && s->setup.defect->bend ? s->setup.defect->bend(s, op) :
	       fhbn_trace_judge(s, op);
}

/* ---- a poster ---- */

static void store_payload(struct fhbn_trace *s, uint64_t number)
{
	uint64_t place = TRACE_BLOCKS + number % TRACE_PAYLOADS;

	fhbn_trace_yield(s);
	for (int i = 0; i < TRACE_THREADS; i++)
		s->known[i].segs[place] = s->fenced[i].segs[place] = s->peeked[i].segs[place] = 0;
	for (int i = 0; i < 3; i++)
		s->published[i].segs[place] = 0;
	s->known[s->me].segs[place] = 1;
}

static int one_put(struct fhbn_trace *s, uint64_t number)
{
	const struct fhbn_defect *d = s->setup.defect;
	struct cairn_fhbn_request put = cairn_fhbn_write(0x1000, 7, number, 9, 64);
	struct cairn_fhbn_request both[2] = { cairn_fhbn_write_u64(0x2000, 7, number), put };
	int late = d && d->payload_late, ret;

	s->delivered &= ~(1ull << number % TRACE_PAYLOADS);
	if (!late)
		store_payload(s, number);
	if (d && d->signal_first)
		ret = cairn_fhbn_host_post(&s->q, both, 2, NULL);
	else
		ret = cairn_fhbn_host_put_signal(&s->q, &put, 0x2000, 7, number);
	if (late)
		store_payload(s, number);
	return ret;
}

static void poster(unsigned lo, unsigned hi)
{
	struct fhbn_trace *s = (struct fhbn_trace *)((uintptr_t)hi << 32 | lo);
	int me = s->me, ret = 0;

	for (int i = 0; !ret && i < s->setup.puts; i++)
		ret = one_put(s, (uint64_t)(i * s->setup.threads + me));
	s->ret[me] = ret ? ret : cairn_fhbn_host_flush(&s->q);
	s->done[me] = 1;
	swapcontext(&s->at[me], &s->back);
}

static void check_end(struct fhbn_trace *s)
{
	const struct cairn_fhbn_state *c = &s->state;
	int want = s->setup.fails_at < 0 ? 0 : -EIO;

	for (int i = 0; i < s->setup.threads; i++)
		if (s->ret[i] != want)
			broken(s, "poster %d returned %d, fault: want %u, seen %u", i, s->ret[i],
			       (unsigned)c->fault.want, (unsigned)c->fault.seen);
	if (want) {
		if (c->fault.kind != CAIRN_FHBN_FAILED || c->fault.want != (uint64_t)s->setup.fails_at ||
		    c->fault.syndrome != CAIRN_CQE_REMOTE_ACCESS)
			broken(s, "failure %u of request %u", c->fault.kind, (unsigned)c->fault.want);
		return;
	}
	if (s->rung != c->reserved || c->rung != c->reserved || c->ready != c->reserved)
		broken(s, "reserved %llu, announced %llu", (unsigned long long)c->reserved,
		       (unsigned long long)s->rung);
	if (s->carried_out != s->setup.threads * (2 * s->setup.puts + 1))
		broken(s, "%d requests executed", s->carried_out);
	if (cairn_be32(s->cq_record) != (c->cq_next & 0xffffff))
		broken(s, "consumer's record was left at %u", cairn_be32(s->cq_record));
}

static void set_up(struct fhbn_trace *s, const struct fhbn_trace_setup *setup)
{
	uint64_t first = setup->first;

	s->tap.access = on_access;
	s->setup = *setup;
	s->rng = (setup->seed + 1) * 0x9e3779b97f4a7c15u | 1;
	s->recorder = -1;
	s->state.reserved = s->state.ready = s->state.rung = s->state.retired = s->state.cq_next = first;
	s->recorded = s->rung = s->read = s->fetched = s->produced = first;
	s->cq_record = cairn_cqe_dbrec(first);
	for (int i = 0; i < TRACE_BLOCKS; i++) {
		s->holds[i] = UINT64_MAX;
		s->cq[i].op_own = CAIRN_CQE_UNUSED;
	}
	s->q = (struct cairn_fhbn_qp) {
		.sq = { s->ring, TRACE_BLOCKS, TRACE_QPN }, .record = &s->record,
		.reg = { s->reg, s->reg + 8 },
		.cq = s->cq, .cq_record = &s->cq_record, .state = &s->state, .timeout_ns = 2000000,
		.num_cqes = TRACE_BLOCKS, .mode = setup->mode,
	};
}

static void make_coroutine(struct fhbn_trace *s, int i)
{
	getcontext(&s->at[i]);
	s->at[i].uc_stack.ss_sp = s->stacks + (size_t)i * TRACE_STACK;
	s->at[i].uc_stack.ss_size = TRACE_STACK;
	makecontext(&s->at[i], (void (*)(void))poster, 2, (unsigned)(uintptr_t)s,
		    (unsigned)((uintptr_t)s >> 32));
}

int fhbn_trace_run(struct fhbn_trace *s, const struct fhbn_trace_setup *setup)
{
	memset(s, 0, sizeof(*s));
	s->stacks = malloc((size_t)TRACE_STACK * (unsigned)setup->threads);
	if (!s->stacks)
		return -ENOMEM;
	set_up(s, setup);
	for (int i = 0; i < setup->threads; i++)
		make_coroutine(s, i);
	schedule(s);
	while (!s->broken[0] && s->fetched != s->rung)
		card(s);
	if (!s->broken[0])
		check_end(s);
	free(s->stacks);
	return 0;
}
