/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_more - the further calls of a case: those that a family declares in may_alias, company, part and form
 *
 * Each must give the bits of the first call with the case's inputs. op_case.c makes them after that call has
 * been judged, if the case costs little. The other functions are those that op_case.c and op_more.c share.
 */
#ifndef CAIRN_OP_MORE_H
#define CAIRN_OP_MORE_H

#include "conformance/suite/op_side.h"

struct cairn_more {
	const struct cairn_family *f;
	const struct cairn_op *op, *other;	/* other: the same case with other inputs, or op */
	struct cairn_side *side;		/* its memory, with the outputs of a call */
	const struct cairn_expected *expected;
	uint8_t **own, **later;		/* images of the first call; memory for those of another one */
	struct cairn_outcome *o;
};

void cairn_further_calls(const struct cairn_more *m);

void cairn_say(struct cairn_outcome *o, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Sets the verdict for a call, or another function of the table, that returned `ret`. Returns ret. */
int cairn_call_failed(struct cairn_outcome *o, const struct cairn_impl *impl, int ret, const char *doing);
/* Reports inputs that were written, and what was done outside of the buffers. */
int cairn_check_memory(struct cairn_side *side, const struct cairn_op *op, uint8_t *const *images,
		       const struct cairn_round *r, struct cairn_outcome *o);
/* Requires that two calls with the same inputs gave the same bits, except in outputs that hold times. */
void cairn_check_bits(const struct cairn_family *f, const struct cairn_op *op, uint8_t *const *first,
		      uint8_t *const *again, const char *call, struct cairn_outcome *o);

#endif
