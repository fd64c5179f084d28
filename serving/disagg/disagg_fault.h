/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disagg_fault - fault injection for the simulation of disaggregated decoding
 *
 * In the normal build FAULT() is 0 and costs nothing. disagg_mutants.c compiles the modules a second time,
 * under other names, with fault injection; the tests must detect each fault (disagg_mutants_test.c).
 */
#ifndef CAIRN_DISAGG_FAULT_H
#define CAIRN_DISAGG_FAULT_H

enum cairn_disagg_fault {
	FAULT_NONE,
	/* lanes */
	FAULT_NO_QUEUE,			/* a server serves several lanes at once */
	FAULT_NO_ROTATION,		/* a lane stays on its first replica */
	FAULT_KV_FREE,			/* K and V do not keep the link busy */
	FAULT_HALF_DUPLEX,		/* both directions share one link */
	FAULT_OUTPUT_FREE,		/* O arrives at once */
	/* replay */
	FAULT_PROMPT_ONLY,		/* a request's pages are those of its prompt */
	FAULT_PAGES_LEAK,		/* pages are not freed */
	FAULT_PAGES_EARLY,		/* pages are freed by other lanes' ends too */
	FAULT_KEYS_STAY,		/* the keys do not grow with the tokens */
	FAULT_ONE_TOKEN_LESS,		/* an answer ends a token early */
	FAULT_FIRST_LANE,		/* all requests go to lane 0 */
	FAULT_NO_BOUND,			/* the bound of the time between tokens is ignored */
	FAULT_BATCH_UNBOUNDED,		/* so is the largest batch */
	/* costs */
	FAULT_WEIGHTS_FREE,		/* weights take no memory */
	FAULT_HEADS_DIVIDE,		/* b workers share the heads evenly even if b does not divide them */
	FAULT_NO_FLOPS,			/* products are never bound by arithmetic */
	FAULT_NO_LSE,			/* the LSE is not sent */
	FAULT_APART_FREE,		/* a slice takes no longer if its attention is elsewhere */
	/* advice */
	FAULT_PRICE_IGNORED,		/* the best is that of the most tokens per second */
	FAULT_TP_NEVER,			/* whole engines have one GPU */
	NUM_FAULTS
};

#ifdef CAIRN_DISAGG_MUTANTS
extern int cairn_disagg_fault;
#define FAULT(name)	(cairn_disagg_fault == FAULT_##name)
#else
#define FAULT(name)	0
#endif

#endif
