/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fhbn_trace - the poster's every access, in an order that a seed chooses, judged by the rules of fhbn.h
 *
 * Posters run as coroutines of one thread; before each access to memory that others see, another poster or
 * the card may go first. So a run is a function of its seed, thousands of orders take a second, and the judge
 * sees stores and fences, which no card and no model can: who knows which bytes (by its own stores, by an
 * acquire of what was released), which of them a fence of enough scope has ordered, and what is announced
 * when.
 *
 * Judged: each request in its place and complete; payload and request fenced before the record announces
 * them; the record in the right form, never back, fenced before the register; the register's word, the
 * queue's, and covering the record; BlueFlame's bytes and buffer; no place written again before the
 * completion of what it held was read; counters never beyond what was read and never back; the card's own
 * view: payload before sequence number, no overrun; and at the end everything announced, carried out and
 * retired.
 *
 * A defect bends the accesses of the right poster into those of a wrong one.
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
	uint32_t mode;			/* in which it shows */
	int threads;
	/* What the access yields: fhbn_trace_judge() of it, of another, of none. */
	uint64_t (*bend)(struct fhbn_trace *s, struct fhbn_op op);
	int signal_first, payload_late;		/* in the order of posting */
};

struct fhbn_trace_setup {
	uint64_t seed, first;		/* first: index at which the queue begins */
	uint32_t mode;
	int threads, puts;		/* of each */
	int64_t fails_at;		/* request that completes with an error; -1: none */
	const struct fhbn_defect *defect;
};

struct trace_knowledge {
	uint8_t segs[TRACE_PLACES];	/* a bit for each segment */
};

struct fhbn_trace {
	struct fhbn_tap tap;		/* first: a tap is its trace */
	struct fhbn_trace_setup setup;
	char broken[256];		/* the first rule; "" while all is well */
	uint64_t steps;

	struct cairn_fhbn_qp q;
	struct cairn_fhbn_state state;
	struct cairn_wqe_seg ring[4 * TRACE_BLOCKS];
	struct cairn_cqe cq[TRACE_BLOCKS];
	uint32_t record, cq_record;
	uint64_t reg[16];

	struct trace_knowledge known[TRACE_THREADS], fenced[TRACE_THREADS], published[3];
	struct trace_knowledge peeked[TRACE_THREADS];	/* what an acquiring fence would bring */
	uint64_t holds[TRACE_BLOCKS];	/* index of the request in this place */
	uint64_t recorded, rung, read;	/* read: index after the last whose completion was read */
	int recorder, record_fenced, was_narrow, bf_half;

	uint64_t fetched, produced;	/* the card */
	uint64_t completes[TRACE_BLOCKS];	/* by entry: the index that it completes */
	uint64_t delivered;		/* payloads, a bit each */
	int carried_out, failed;

	ucontext_t back, at[TRACE_THREADS];
	char *stacks;
	int me, done[TRACE_THREADS], ret[TRACE_THREADS];
	uint64_t rng, now;
	uint64_t own_index[TRACE_THREADS];
	struct fhbn_op held;		/* for defects: an access that waits */
	struct cairn_wqe_seg held_seg;
	int holding;
};

/* Runs all posters to the end; s->broken says what was broken, if anything. -ENOMEM. */
int fhbn_trace_run(struct fhbn_trace *s, const struct fhbn_trace_setup *setup);
uint64_t fhbn_trace_judge(struct fhbn_trace *s, struct fhbn_op op);
/* Lets others go first, maybe. */
void fhbn_trace_yield(struct fhbn_trace *s);

extern const struct fhbn_defect fhbn_defects[];
extern const int fhbn_num_defects;

#endif
