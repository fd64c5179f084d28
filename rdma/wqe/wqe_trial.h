/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wqe_trial - random work requests, comparison of built WQEs, and defective builders; for tests
 *
 * A trial contains its segments and inline data, so that it can be copied to a device, where
 * cairn_wqe_trial_req() returns the request with pointers into the copy.
 */
#ifndef CAIRN_WQE_TRIAL_H
#define CAIRN_WQE_TRIAL_H

#include "rdma/wqe/wqe_build.h"

#define CAIRN_WQE_TRIAL_SGES	12
#define CAIRN_WQE_TRIAL_INLINE	300

struct cairn_wqe_trial {
	/* its pointers are only compared with NULL; see cairn_wqe_trial_req() */
	struct cairn_wqe_req req;
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

/*
 * Memory that random requests may address: both ends of a connection if requests are posted, arbitrary values
 * if they are only built.
 */
struct cairn_wqe_area {
	uint64_t local, remote;		/* remote: 8-byte aligned */
	uint32_t bytes;			/* at each end; at least 4096 */
	uint32_t lkey, rkey;
};

/* xorshift64*; the state must not be zero. */
uint64_t cairn_wqe_random(uint64_t *state);
void cairn_wqe_trial_random(struct cairn_wqe_trial *t, const struct cairn_wqe_area *area, uint64_t *state);

/*
 * Returns the offset of the first byte in which two rings differ within the WQE that r forms at this index,
 * or -1. Compares only what the card reads: neither the padding after inline data nor the compare operand of
 * a fetch-and-add.
 */
int cairn_wqe_differs(const struct cairn_wqe_ring *a, const struct cairn_wqe_ring *b, uint64_t index,
		      const struct cairn_wqe_req *r);

/* The doorbell record and the doorbell value (libmlx5's form) that announce a WQE, as stored in memory. */
struct cairn_wqe_bells {
	uint64_t doorbell;
	uint32_t dbrec;
};

/* Builds the WQE at this index and the values that announce it. Returns the number of blocks, or -errno. */
struct cairn_wqe_builder;
int cairn_wqe_builder_build(const struct cairn_wqe_builder *b, const struct cairn_wqe_ring *q, uint64_t index,
			    const struct cairn_wqe_req *r, struct cairn_wqe_bells *bells);

/* The defective builders, counted from 0; NULL as a builder means the correct one. */
const struct cairn_wqe_builder *cairn_wqe_mutant(int i);	/* NULL past the last */
const char *cairn_wqe_builder_name(const struct cairn_wqe_builder *b);

#ifdef __cplusplus
}
#endif
#endif
