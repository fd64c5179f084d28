// SPDX-License-Identifier: Apache-2.0
/*
 * decode_step_ranks - argument checks shared by all of our tables
 *
 * An error in a member of step has the text of decode_step.
 */
#include "fused/decode_step/ranks/decode_step_ranks_parts.h"

#include "primitives/base/args.h"
#include "primitives/base/error.h"

/* Checks the ranks and what they exclude. */
static int check_ranks(const struct cairn_decode_step_ranks_args *a)
{
	CAIRN_TRY(cairn_check_args(a, sizeof(*a), "decode_step_ranks"));
	CAIRN_TRY(cairn_comm_check_ranks(&a->comm, "decode_step_ranks"));
	if (a->step.kv_lora_rank > 0)
		return cairn_error(EOPNOTSUPP, "decode_step_ranks: step.kv_lora_rank: %d, must be 0",
				   a->step.kv_lora_rank);
	if (a->step.num_experts > 0)
		return cairn_error(EOPNOTSUPP, "decode_step_ranks: step.num_experts: %d, must be 0",
				   a->step.num_experts);
	return 0;
}

static int check_vocab(const struct cairn_decode_step_ranks_args *a)
{
	if (a->step.vocab % (8 * a->comm.ranks))
		return cairn_error(EOPNOTSUPP, "decode_step_ranks: step.vocab: %d is not a multiple of 8 "
				   "times %d ranks", a->step.vocab, a->comm.ranks);
	return 0;
}

int cairn_decode_step_ranks_check_shape(const struct cairn_decode_step_ranks_args *a)
{
	struct cairn_decode_step_args step;

	CAIRN_TRY(check_ranks(a));
	step = decode_step_ranks_step(a);
	CAIRN_TRY(cairn_decode_step_check_shape(&step));
	return check_vocab(a);
}

int cairn_decode_step_ranks_check(const struct cairn_decode_step_ranks_args *a)
{
	struct cairn_decode_step_args step;

	CAIRN_TRY(check_ranks(a));
	CAIRN_TRY(cairn_comm_check(&a->comm, "decode_step_ranks"));
	step = decode_step_ranks_step(a);
	CAIRN_TRY(cairn_decode_step_check(&step));
	CAIRN_TRY(check_vocab(a));
	if (a->step.b_o && a->comm.rank > 0)
		return cairn_error(EINVAL, "decode_step_ranks: step.b_o: must be NULL on rank %d, as on all "
				   "but rank 0", a->comm.rank);
	return 0;
}
