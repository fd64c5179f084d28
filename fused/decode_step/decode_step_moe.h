/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode_step_moe - the decode step of models with latent attention or a mixture of experts, up to the logits
 */
#ifndef CAIRN_DECODE_STEP_MOE_H
#define CAIRN_DECODE_STEP_MOE_H

#include "fused/decode_step/decode_step.h"

/* Returns whether the model has latent attention or experts. */
static inline int decode_step_is_moe(const struct cairn_decode_step_args *args)
{
	return args->kv_lora_rank > 0 || args->num_experts > 0;
}

/*
 * The caller has checked the arguments. The workspace of decode_step_moe() is the beginning of decode_step's.
 */
int decode_step_moe(const struct cairn_decode_step_args *args, void *stream);
int decode_step_moe_workspace(const struct cairn_decode_step_args *args, size_t *bytes);

#endif
