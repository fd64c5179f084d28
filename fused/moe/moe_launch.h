/* SPDX-License-Identifier: Apache-2.0 */
/* moe_launch - moe without its argument checks, for decode_step */
#ifndef CAIRN_MOE_LAUNCH_H
#define CAIRN_MOE_LAUNCH_H

#include "fused/moe/moe.h"

/* num_experts may be 0, and shared_intermediate any multiple of 64. */
int moe_launch(const struct cairn_moe_args *args, void *stream);
size_t moe_workspace(const struct cairn_moe_args *args);

#endif
