/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_bsr_front - the kernels of attn_bsr for another family whose requests are lists of blocks: attn_paged
 *
 * Such a front promises that the bits of a row do not depend on the other lists. So units are cut, and states
 * merged (attn_bsr_plan.h), only if there is one list, with few tokens. The caller has checked the arguments,
 * which have one part.
 */
#ifndef CAIRN_ATTN_BSR_FRONT_H
#define CAIRN_ATTN_BSR_FRONT_H

#include "fused/attention/bsr/attn_bsr.h"

/* Lists of up to `skip` packed rows are left to another kernel; none has more than `longest` tokens. */
struct attn_bsr_front {
	int32_t skip, longest;
};

/* Sets the size of the workspace. Returns -EOPNOTSUPP, without an error text, if the sizes are too large. */
int attn_bsr_front_workspace(const struct cairn_attn_bsr_args *args, const struct attn_bsr_front *front,
			     size_t *bytes);
/* Writes the plan to args->workspace. */
int attn_bsr_front_plan(const struct cairn_attn_bsr_args *args, const struct attn_bsr_front *front,
			void *stream);
/* Computes the attention, with the plan in args->workspace. */
int attn_bsr_front_attend(const struct cairn_attn_bsr_args *args, const struct attn_bsr_front *front,
			  void *stream);

#endif
