/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan - a pass as plain bytes, from rank 0 to the ranks that make the same pass
 *
 * A plan is a header and a record for each part of the pass (struct cairn_worker_part), in the byte order of
 * the host: all ranks are on one host. Integers only; a float travels as its bits. The receiver checks a
 * plan as a stranger's: every length, every range, and a digest.
 *
 * Not every part can be sent: those that treat logits, or that are scored, are refused with -EOPNOTSUPP.
 *
 * Errors: -EINVAL (a plan that is not well formed; the text names the member), -EOPNOTSUPP, -ENOMEM.
 */
#ifndef CAIRN_PLAN_H
#define CAIRN_PLAN_H

#include <stddef.h>
#include <stdint.h>

#include "serving/engine/worker.h"

#define CAIRN_PLAN_MAX	((size_t)64 << 20)	/* bytes of a plan */

/* The pass that rank 0 builds. Zeroed before the first use. */
struct cairn_plan_out {
	unsigned char *bytes;
	size_t len, room;
	int ret;		/* of the first part that could not be added */
	char why[128];
};

void cairn_plan_begin(struct cairn_plan_out *p, uint64_t step);
void cairn_plan_add(struct cairn_plan_out *p, const struct cairn_worker_part *part);
/* Completes the header. p->bytes, [p->len], is then the plan. */
int cairn_plan_finish(struct cairn_plan_out *p);
void cairn_plan_free(struct cairn_plan_out *p);

/* What a receiver knows of its own worker and of the pass before. */
struct cairn_plan_limits {
	int32_t max_batch, max_rows, max_context, num_pages, page_size, vocab;
	int32_t num_drawn;	/* draws of the previous pass, which a row may follow */
	uint64_t step;		/* of this plan */
};

/*
 * Checks a plan and calls add for each of its parts, after all have been found good. *num_drawn: draws of
 * this pass. Pointers in a part are valid during the call.
 */
int cairn_plan_read(const unsigned char *bytes, size_t len, const struct cairn_plan_limits *limits,
		    void (*add)(void *ctx, const struct cairn_worker_part *part), void *ctx,
		    int32_t *num_drawn);

#endif
