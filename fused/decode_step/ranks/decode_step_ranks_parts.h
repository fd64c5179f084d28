/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode_step_ranks_parts - what of the arguments belongs to decode_step
 */
#ifndef CAIRN_DECODE_STEP_RANKS_PARTS_H
#define CAIRN_DECODE_STEP_RANKS_PARTS_H

#include "fused/decode_step/ranks/decode_step_ranks.h"

static inline struct cairn_decode_step_args
decode_step_ranks_step(const struct cairn_decode_step_ranks_args *args)
{
	struct cairn_decode_step_args step = args->step;

	step.size = sizeof(step);
	return step;
}

#endif
