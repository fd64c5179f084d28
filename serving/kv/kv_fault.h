/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kv_fault - fault injection for the KV modules
 *
 * In the normal build FAULT() is 0 and costs nothing. kv_mutants_*.c compile the modules a second time, under
 * other names, with fault injection; model checking must detect each fault (kv_mutants_test.c).
 */
#ifndef CAIRN_KV_FAULT_H
#define CAIRN_KV_FAULT_H

enum cairn_kv_fault {
	FAULT_NONE,
	/* kv_pool */
	FAULT_REF_LEAK,			/* dropping the second-to-last reference of a page is skipped */
	FAULT_FORK_UNCOUNTED,		/* fork does not count its reference to the last page */
	FAULT_COPY_TARGET,		/* copy-on-write names the old page as its target */
	FAULT_COPY_MISSED,		/* a shared last page is written in place */
	FAULT_GROWTH_HALF_DONE,		/* a failed resize keeps the pages it had already taken */
	/* prefix_tree */
	FAULT_SPLIT_OFF_BY_ONE,		/* the lower part starts one token too late */
	FAULT_EVICT_PINNED,
	FAULT_EVICT_INNER,		/* evicts the least recently used node, leaf or not */
	FAULT_LRU_NOT_TOUCHED,		/* a match does not update the time of last use */
	FAULT_SALT_IGNORED,
	FAULT_EVENTS_SPLIT,		/* the upper part of a split edge has no hash */
	FAULT_EVENTS_SALTED,		/* the listener is told of prefixes with a salt */
	FAULT_EVENTS_REMOVAL_LOST,
	FAULT_FIRST_TOKEN_ONLY,		/* only the first token of an edge is compared */
	/* scheduler */
	FAULT_FULL_HIT,			/* a fully cached prompt: not even its last token is recomputed */
	FAULT_DOUBLE_ADMISSION,		/* an admitted sequence is put into running[] twice */
	FAULT_STARVATION,		/* longest prefix first, without a bound on overtaking */
	FAULT_LATE_TOKEN_KEPT,		/* a token drawn after the end is reported */
	FAULT_SWAP_PAGE_LOST,		/* the last page is not swapped out */
	FAULT_OFFLOAD_EARLY,		/* pages are offloaded before the rows that fill them */
	FAULT_SPILL_LATE,		/* slots are spilled after they were reused */
	FAULT_OVER_COMMIT,		/* the batch has one row more than allowed */
	FAULT_CANCEL_LEAK,		/* a cancelled sequence keeps its pin on the tree */
	FAULT_VICTIM_PLANNED,		/* preempts a sequence that has rows in this plan */
	FAULT_QUEUE_TOKENS,		/* a cancel does not subtract the queued tokens */
	FAULT_DEADLINE_LATE,		/* deadlines of running sequences are ignored */
	/* with repeat_chunk */
	FAULT_REPEAT_MIXED,		/* a plan has both decoding sequences and a prompt */
	FAULT_REPEAT_HALVED,		/* when pages are short, a chunk is cut in half */
	FAULT_REPEAT_REPLAY,		/* a preempted answer is recomputed as a prompt */
	FAULT_REPEAT_MID_CHUNK,		/* a prefix may end within a chunk */
	FAULT_REPEAT_ANSWER_KEPT,	/* the trees hold rows of answers, too */
	FAULT_REPEAT_LAST_ROW,		/* the last row of a prompt with several answers joins its chunk */
	/* speculation */
	FAULT_DRAFT_KV_KEPT,		/* rows whose draft was wrong are kept */
	FAULT_DRAFT_ROW_TOO_MANY,	/* the row of the first wrong draft is kept */
	FAULT_DRAFT_BONUS_LOST,		/* the draw after the last accepted draft is dropped */
	FAULT_DRAFT_ALL_ACCEPTED,	/* drafts count whether they were drawn or not */
	FAULT_DRAFT_STOP_IGNORED,	/* a stop counts at the last draw only */
	FAULT_DRAFT_TOO_LONG,		/* drafts may exceed max_new_tokens by one */
	FAULT_DRAFT_BEYOND,		/* the drafter gets one token more than there is */
	FAULT_DRAFT_SWAPPED,		/* a preempted sequence is swapped out with its drafts */
	FAULT_DRAFT_OFFLOADED,		/* pages are offloaded with drafts in them */
	FAULT_DRAFT_END_KEPT,		/* an ended sequence is kept with the row of a wrong draft */
	FAULT_DRAFT_FIRST_DROPPED,	/* the first draw counts only if it equals the draft */
	FAULT_TREE_CHAIN,		/* a tree is reported as if it were a chain */
	FAULT_TREE_ORPHAN,		/* a draft that equals row 0's draw counts, whatever it follows */
	/* reset */
	FAULT_RESET_TREE_KEPT,		/* prefixes that the device has lost are still found */
	FAULT_RESET_DRAW_KEPT,		/* a draw of an undone plan still counts as in flight */
	FAULT_RESET_NUMBER_KEPT,	/* the number of an undone plan is not used again */
	FAULT_RESET_ONE_PLAN,		/* of several plans to be undone, only the last one is */
	/* lanes */
	FAULT_LANE_IGNORED,		/* a plan has decoding rows of all lanes */
	FAULT_LANE_PROMPT_IGNORED,	/* a plan has rows of prompts of all lanes */
	FAULT_LANE_RESUMED_ANYWHERE,	/* a preempted sequence resumes in another lane */
	FAULT_LANE_LEFT_UNASKED,	/* requests that are not movable change their lane */
	FAULT_LANE_BUSY,		/* a lane's next plan is formed before the last one is reported */
	/* import */
	FAULT_IMPORT_GAP,		/* a prefix enters the tree although tokens before it are missing */
	FAULT_IMPORT_SHIFTED,		/* the first reserved page becomes the first one that is missing */
	FAULT_IMPORT_UNAWAITED,		/* a request is admitted before its import */
	FAULT_IMPORT_OVERTAKEN,		/* a request that waits for an import counts as overtaken */
	FAULT_TAIL_GAP,			/* a tail is used although tokens before it are missing */
	FAULT_TAIL_FULL,		/* a tail counts as a full page */
	FAULT_TAIL_LEAK,		/* the tail of a cancelled request is never freed */
	FAULT_REVOKED_UNTOLD,		/* a reservation is taken back, but not reported */
	NUM_FAULTS
};

#ifdef CAIRN_KV_MUTANTS
extern int cairn_kv_fault;
#define FAULT(name)	(cairn_kv_fault == FAULT_##name)
#else
#define FAULT(name)	0
#endif

#endif
