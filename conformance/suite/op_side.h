/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_side - prepares the memory of a verified call; shared by the files that judge a case (op_*.c)
 *
 * Buffers and workspace in the suite's host memory lie between guard pages (guard.h). In all other memory
 * they have a canary of CAIRN_CANARY bytes on both sides.
 */
#ifndef CAIRN_OP_SIDE_H
#define CAIRN_OP_SIDE_H

#include "conformance/suite/op_case.h"

#define CAIRN_TAIL	((size_t)64)	/* bytes that a longer argument struct has beyond the known ones */

/* Returns whether the caller must zero the workspace before the first call with these arguments. */
static inline int cairn_is_zeroed(const struct cairn_family *f, const void *args)
{
	return f->zeroed_workspace && (!f->zeroed_if || f->zeroed_if(args));
}

/* One call of a case. */
struct cairn_round {
	int other;		/* 1: the inputs are those of another seed */
	int canary;		/* the byte of all canaries */
	/* the byte that fills a workspace of undefined contents; -1: keeps what the previous call left */
	int workspace;
	int at_begin;		/* buffers begin at a guard page instead of ending at one */
	/* with at_begin, or on a device: buffers are aligned to no more than the contract promises */
	int shifted;
	/* the argument struct has a tail that the operation does not know, and empty buffers may be NULL */
	int longer;
	int shorter;		/* the argument struct ends before later members, if these are all 0 */
	int behind;		/* device: the stream is busy with earlier work */
	int pause_us;		/* the host waits before the call */
	/* short buffers end in a page of their own, so that their last 16 bytes can be held */
	int apart;
	int repeats;		/* number of identical calls that follow, if may_repeat() */
};

/* Returns whether the buffers of a case lie between guard pages in the memory of this table. */
int cairn_side_is_guarded(const struct cairn_impl *impl);
/*
 * Allocates memory for a case whose buffers have the sizes of op's, and fills only the workspace. Returns
 * -E2BIG if the workspace is larger than the whole memory.
 */
int cairn_side_open_guarded(struct cairn_side *side, const struct cairn_family *f, const struct cairn_op *op,
			    const struct cairn_impl *impl, void *stream);

/*
 * Returns whether an input is too large to be sent and fetched again for a second call. The first fetch has
 * shown that the operation leaves it unchanged, and moving gigabytes takes longer than everything else.
 */
static inline int cairn_moves_once(const struct cairn_buf *b)
{
	return b->role == CAIRN_ROLE_IN && b->used > 64 << 20;
}

/* Sends the buffers of op. again: leaves out those for which cairn_moves_once() is true. */
int cairn_side_send(struct cairn_side *side, const struct cairn_family *f, const struct cairn_op *op,
		    const struct cairn_round *r, int again);
/* Calls the operation with a copy of the arguments, which is overwritten as soon as the call returns. */
int cairn_side_call_round(struct cairn_side *side, const struct cairn_family *f,
			  const struct cairn_round *r);
/* Returns whether the table has the operation plan_op of the family. */
int cairn_side_has_plan_op(const struct cairn_side *side, const struct cairn_family *f);
/* Calls the operation plan_op of the family, or the operation itself if the table lacks it. */
int cairn_side_call_plan(struct cairn_side *side, const struct cairn_family *f);
/* Calls with a struct that is longer than the operation knows, with a 1 at byte `at` of the unknown part. */
int cairn_side_call_unknown(struct cairn_side *side, const struct cairn_family *f, size_t at);
/*
 * Queries the workspace for side->args twice: as they are, and with the pointers of all buffers NULL. *bytes
 * stays 0 if the family or the table has no workspace query.
 */
int cairn_side_query(struct cairn_side *side, const struct cairn_family *f, const struct cairn_op *op,
		     size_t *bytes);
/*
 * Makes every access to a page of the buffers wait (cairn_guard_hold()), until cairn_side_release(). Only for
 * guarded sides.
 */
void cairn_side_hold(struct cairn_side *side, const struct cairn_op *op, void (*wait)(void));
void cairn_side_release(struct cairn_side *side, const struct cairn_op *op);
/*
 * Copies data and canaries to images; those that are NULL are left out, and so are inputs in guarded memory,
 * which can be compared where they lie. Also copies the workspace's canaries. Waits for the stream.
 */
int cairn_side_fetch(struct cairn_side *side, const struct cairn_op *op, uint8_t **images);

/* Damage around a buffer, or around the workspace. */
struct cairn_damage {
	size_t below, above;		/* number of canary bytes that were written */
	/*
	 * the first access to each guard page, and to the gaps between the ranges of a far buffer; each is
	 * reported once
	 */
	struct {
		int seen, wrote;
		long long distance;	/* bytes before the buffer, past its end, or from its beginning */
	} stray[3];
};
/*
 * Sets *d to what the last fetch shows. i: index of a buffer, or num_bufs for the workspace. image: the
 * buffer's fetched image; NULL: not examined.
 */
void cairn_side_damage(struct cairn_side *side, const struct cairn_op *op, int i, const uint8_t *image,
		       const struct cairn_round *r, struct cairn_damage *d);

/*
 * The further calls of a case (op_more.c), which a family declares in may_alias, company, part, form and
 * relist. All but those of relist must give the bits of the first call with the case's inputs. op_case.c
 * makes them after that call has been judged, if the case costs little.
 */
struct cairn_more {
	const struct cairn_family *f;
	const struct cairn_op *op, *other;	/* other: the same case with other inputs, or op */
	struct cairn_side *side;		/* the case's memory, with the outputs of a call */
	struct cairn_expected *expected;
	uint8_t **own, **later;		/* images of the first call; memory for those of a later one */
	int cheap;			/* the case was called five times */
	struct cairn_outcome *o;
};

void cairn_further_calls(const struct cairn_more *m);
/* Makes only the calls in other forms. Returns 0, or the error of a call. */
int cairn_call_forms(const struct cairn_more *m);
/* Judges the results of a call with the inputs of op. */
void cairn_judge_call(const struct cairn_family *f, const struct cairn_op *op, uint8_t *const *images,
		      struct cairn_expected *expected, struct cairn_outcome *o);

void cairn_start_outcome(struct cairn_outcome *o);
/* Returns the check of the operation's arguments that our tables share, which reads no array, or NULL. */
typedef int (*cairn_check_fn)(const void *args);
cairn_check_fn cairn_check_of(const struct cairn_family *f);
/* Returns whether cairn_refuse_all() knows what this family's operation must refuse (op_refuse.c). */
int cairn_refuses(const struct cairn_family *f);
/* Makes calls with bad arguments one after the other; each must be refused. */
void cairn_refuse_all(struct cairn_side *side, const struct cairn_family *f, const struct cairn_op *op,
		      struct cairn_outcome *o);

void cairn_say(struct cairn_outcome *o, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Reports that two images of buffer b differ. */
void cairn_say_differ(struct cairn_outcome *o, const struct cairn_buf *b, const uint8_t *image,
		      const uint8_t *other, const char *what);
/* Allocates images of op's buffers. again: those for which cairn_moves_once() is true stay NULL. */
uint8_t **cairn_make_images(const struct cairn_op *op, int again);
void cairn_free_images(const struct cairn_op *op, uint8_t **images);
/* Sets the verdict for a call, or another function of the table, that returned `ret`. Returns ret. */
int cairn_call_failed(struct cairn_outcome *o, const struct cairn_impl *impl, int ret, const char *doing);
/* Reports inputs that were written, and accesses outside the buffers. */
void cairn_check_memory(struct cairn_side *side, const struct cairn_op *op, uint8_t *const *images,
		       const struct cairn_round *r, struct cairn_outcome *o);
/* Requires that two calls with the same inputs gave the same bits, except in outputs that hold times. */
void cairn_check_bits(const struct cairn_family *f, const struct cairn_op *op, uint8_t *const *first,
		      uint8_t *const *again, const char *call, struct cairn_outcome *o);

#endif
