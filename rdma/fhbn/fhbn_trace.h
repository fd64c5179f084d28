/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fhbn_trace - runs the poster's memory accesses in an order chosen by a seed, and checks each against the
 * rules of fhbn.h
 *
 * Posters run as coroutines of one thread; before each access to shared memory the scheduler may switch to
 * another poster or to the card. A run is therefore a function of its seed, and thousands of orders are tried
 * per second. Unlike a card or the model, the checker sees stores and fences: it tracks which poster knows
 * which bytes (through its own stores, or through an acquire of released stores), which bytes a fence of
 * sufficient scope has ordered, and when each request is announced.
 *
 * It checks that each request is complete and in its place in the ring; that payload and request are fenced
 * before the record announces them; that the record has the right form, never goes back, and is fenced before
 * the doorbell; that the doorbell names this queue and the record's index; that BlueFlame has the right bytes
 * and buffer; that no place is rewritten before the completion of its previous request was read; that
 * counters never pass what was read and never go back. On the card's side it checks that the payload comes
 * before the sequence number and that nothing overruns. At the end every request must be announced, executed
 * and retired.
 *
 * A defect alters the accesses of the correct poster into those of a wrong one.
 */
#ifndef CAIRN_FHBN_TRACE_H
#define CAIRN_FHBN_TRACE_H

#include <ucontext.h>

#include "rdma/fhbn/fhbn_host.h"

enum {
	TRACE_THREADS = 4, TRACE_BLOCKS = 16, TRACE_PAYLOADS = 64,
	TRACE_PLACES = TRACE_BLOCKS + TRACE_PAYLOADS, TRACE_QPN = 0x123456, TRACE_STACK = 64 << 10,
};

struct fhbn_trace;

struct fhbn_defect {
	const char *name;
	uint32_t mode;			/* modes in which the defect shows */
	int threads;
	/* Executes the access and returns its result: fhbn_trace_judge() of it, of another access, or of
	 * none. */
	uint64_t (*bend)(struct fhbn_trace *s, struct fhbn_op op);
	int signal_first, payload_late;		/* change the order of posting */
};

struct fhbn_trace_setup {
	uint64_t seed, first;		/* first: index of the queue's first request */
	uint32_t mode;
	int threads, puts;		/* puts: of each thread */
	int64_t fails_at;		/* index of the request that completes with an error; -1: none */
	const struct fhbn_defect *defect;
};

struct trace_knowledge {
	uint8_t segs[TRACE_PLACES];	/* one bit per segment */
};

struct fhbn_trace {
	struct fhbn_tap tap;		/* must be first: the tap is cast to its trace */
	struct fhbn_trace_setup setup;
	char broken[256];		/* the first rule broken; "" if none */
	uint64_t steps;

	struct cairn_fhbn_qp q;
	struct cairn_fhbn_state state;
	struct cairn_wqe_seg ring[4 * TRACE_BLOCKS];
	struct cairn_cqe cq[TRACE_BLOCKS];
	uint32_t record, cq_record;
	uint64_t reg[16];

	struct trace_knowledge known[TRACE_THREADS], fenced[TRACE_THREADS], published[3];
	struct trace_knowledge peeked[TRACE_THREADS];	/* what an acquire fence would make known */
	uint64_t holds[TRACE_BLOCKS];	/* index of the request in this place */
	uint64_t recorded, rung, read;	/* read: index after the last request whose completion was read */
	int recorder, record_fenced, was_narrow, bf_half;

	uint64_t fetched, produced;	/* of the card: requests fetched, completions written */
	uint64_t completes[TRACE_BLOCKS];	/* for each entry: the index that it completes */
	uint64_t delivered;		/* one bit for each payload */
	int carried_out, failed;

	ucontext_t back, at[TRACE_THREADS];
	char *stacks;
	int me, done[TRACE_THREADS], ret[TRACE_THREADS];
	uint64_t rng, now;
	uint64_t own_index[TRACE_THREADS];
	struct fhbn_op held;		/* for defects: an access that is delayed */
	struct cairn_wqe_seg held_seg;
	int holding;
};

/* Runs all posters to the end. s->broken names the first broken rule, if any. Returns 0 or -ENOMEM. */
int fhbn_trace_run(struct fhbn_trace *s, const struct fhbn_trace_setup *setup);
uint64_t fhbn_trace_judge(struct fhbn_trace *s, struct fhbn_op op);
/* May switch to another poster or to the card. */
void fhbn_trace_yield(struct fhbn_trace *s);

extern const struct fhbn_defect fhbn_defects[];
extern const int fhbn_num_defects;

#endif
