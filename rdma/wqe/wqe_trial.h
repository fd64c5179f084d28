/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wqe_trial - random work requests, the comparison of built WQEs, and builders with a defect; for tests
 *
 * A trial holds its segments and inline data itself, so that it can be copied to a device; there
 * cairn_wqe_trial_req() gives the request with pointers into the copy.
 */
#ifndef CAIRN_WQE_TRIAL_H
#define CAIRN_WQE_TRIAL_H

#include "rdma/wqe/wqe_build.h"

#define CAIRN_WQE_TRIAL_SGES	12
#define CAIRN_WQE_TRIAL_INLINE	300

struct cairn_wqe_trial {
	struct cairn_wqe_req req;	/* its two pointers are only told from NULL */
	struct cairn_wqe_sge sge[CAIRN_WQE_TRIAL_SGES];
	uint8_t data[CAIRN_WQE_TRIAL_INLINE + 4];
};

CAIRN_WQE_FN struct cairn_wqe_req cairn_wqe_trial_req(const struct cairn_wqe_trial *t)
{
	struct cairn_wqe_req r = t->req;

	r.sge = t->sge;
	r.inline_data = t->data;
	return r;
}

#ifdef __cplusplus
extern "C" {
#endif

/* Where random requests may point: both ends of what is posted for real, or anything where nothing is. */
struct cairn_wqe_area {
	uint64_t local, remote;		/* remote is aligned to 8 */
	uint32_t bytes;			/* of each; 4096 or more */
	uint32_t lkey, rkey;
};

/* xorshift64*; the state is not zero */
uint64_t cairn_wqe_random(uint64_t *state);
void cairn_wqe_trial_random(struct cairn_wqe_trial *t, const struct cairn_wqe_area *area, uint64_t *state);

/*
 * The first byte in which two rings differ in the WQE that r is at this index, or -1. Judged is what the
 * card reads: no padding behind inline data, no compare operand of a fetch-and-add.
 */
int cairn_wqe_differs(const struct cairn_wqe_ring *a, const struct cairn_wqe_ring *b, uint64_t index,
		      const struct cairn_wqe_req *r);

/* What announces a WQE: record and doorbell (libmlx5's form), as words in memory. */
struct cairn_wqe_bells {
	uint64_t doorbell;
	uint32_t dbrec;
};

/* Forms the WQE at this index, and what announces it; the number of blocks, or -errno. */
struct cairn_wqe_builder;
int cairn_wqe_builder_build(const struct cairn_wqe_builder *b, const struct cairn_wqe_ring *q, uint64_t index,
			    const struct cairn_wqe_req *r, struct cairn_wqe_bells *bells);

/* Builders with one defect each. NULL, as a builder, is the right one. */
const struct cairn_wqe_builder *cairn_wqe_mutant(int i);	/* NULL past the last */
const char *cairn_wqe_builder_name(const struct cairn_wqe_builder *b);

#ifdef __cplusplus
}
#endif
#endif
