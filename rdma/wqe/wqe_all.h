/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wqe_all - calls every function of wqe.h, wqe_build.h and cqe.h once, on host or device, for one random
 * trial
 *
 * The device must return the same bytes as the host.
 */
#ifndef CAIRN_WQE_ALL_H
#define CAIRN_WQE_ALL_H

#include "rdma/wqe/cqe.h"
#include "rdma/wqe/wqe_trial.h"

#define CAIRN_WQE_ALL_BLOCKS	32	/* blocks of the ring; each trial has its own ring */

struct cairn_wqe_all_in {
	struct cairn_wqe_trial trial;
	uint64_t index, value;
	uint32_t qpn, num_cqes;
	struct cairn_cqe_result completion;
};

struct cairn_wqe_all_out {			/* has no padding, so that results are compared as bytes */
	struct cairn_wqe_seg ring[4 * CAIRN_WQE_ALL_BLOCKS];
	struct cairn_cqe cqe;
	struct cairn_wqe_seg word;
	struct cairn_cqe_result parsed;
	uint64_t doorbell, doorbell_next, cqe_index;
	int32_t ds, blocks;
	uint32_t dbrec, cq_dbrec, valid, invalid, error, name;
	uint8_t fill[16];
};

CAIRN_WQE_FN void cairn_wqe_all(const struct cairn_wqe_all_in *in, struct cairn_wqe_all_out *out)
{
	const struct cairn_wqe_ring q = { out->ring, CAIRN_WQE_ALL_BLOCKS, in->qpn };
	struct cairn_wqe_req r = cairn_wqe_trial_req(&in->trial);
	uint64_t next;

	out->ds = cairn_wqe_ds(&r);
	out->blocks = cairn_wqe_build(&q, in->index, &r);
	next = in->index + (uint64_t)out->blocks;
	out->dbrec = cairn_wqe_dbrec(next);
	out->doorbell = cairn_wqe_doorbell(*cairn_wqe_at(&q, in->index, 0));
	out->doorbell_next = cairn_wqe_doorbell_next(next, in->qpn);
	out->word = cairn_wqe_inline_u64(in->value);
	out->cqe = cairn_cqe_build(&in->completion, in->index, in->num_cqes);
	out->parsed = cairn_cqe_parse(&out->cqe);
	out->error = (uint32_t)cairn_cqe_is_error(&out->parsed);
	out->valid = (uint32_t)cairn_cqe_valid(out->cqe.op_own, in->index, in->num_cqes);
	out->invalid = (uint32_t)cairn_cqe_valid(out->cqe.op_own, in->index + in->num_cqes, in->num_cqes);
	out->cqe_index = cairn_cqe_index(in->index, in->completion.wqe_counter);
	out->cq_dbrec = cairn_cqe_dbrec(in->index);
	out->name = (uint8_t)cairn_cqe_syndrome_name(in->completion.syndrome)[0];
}

#ifdef __cplusplus
extern "C" {
#endif

/* Runs n trials on the current CUDA device. Where a trial does not write, out keeps its previous contents.
 * Returns -ENODEV if there is no device. */
int cairn_wqe_all_device(const struct cairn_wqe_all_in *in, struct cairn_wqe_all_out *out, int n);

#ifdef __cplusplus
}
#endif
#endif
