// SPDX-License-Identifier: Apache-2.0
/* decode_step_ranks - argument checks shared by all of our tables */
#include "fused/decode_step/ranks/decode_step_ranks_parts.h"

#include "primitives/base/args.h"
#include "primitives/base/error.h"

int cairn_decode_step_ranks_check_shape(const struct cairn_decode_step_ranks_args *a)
{
	struct cairn_decode_step_args step;

	CAIRN_TRY(cairn_check_args(a, sizeof(*a), "decode_step_ranks"));
	CAIRN_TRY(cairn_comm_check_ranks(a->comm.rank, a->comm.ranks, "decode_step_ranks"));
	step = decode_step_ranks_step(a);
	CAIRN_TRY(cairn_decode_step_check_shape(&step));
	if (step.kv_lora_rank || step.num_experts)
		return cairn_error(EOPNOTSUPP, "decode_step_ranks: kv_lora_rank, num_experts: must be 0");
	if (step.vocab % (8 * a->comm.ranks))
		return cairn_error(EOPNOTSUPP, "decode_step_ranks: vocab: %d is not a multiple of 8 times the "
				   "%d ranks", step.vocab, a->comm.ranks);
	return 0;
}

int cairn_decode_step_ranks_check(const struct cairn_decode_step_ranks_args *a)
{
	struct cairn_decode_step_args step;

	CAIRN_TRY(cairn_decode_step_ranks_check_shape(a));
	CAIRN_TRY(cairn_comm_check(&a->comm, "decode_step_ranks"));
	step = decode_step_ranks_step(a);
	CAIRN_TRY(cairn_decode_step_check(&step));
	if (step.b_o && a->comm.rank)
		return cairn_error(EINVAL, "decode_step_ranks: b_o: belongs to rank 0, must be NULL on rank %d",
				   a->comm.rank);
	return 0;
}
