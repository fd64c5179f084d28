/* SPDX-License-Identifier: Apache-2.0 */
/*
 * moe_rows - the mixture of experts on more rows than moe.cu takes, and with 4-bit weights on any number;
 * called by cairn_moe(), which has checked the arguments
 */
#ifndef CAIRN_MOE_ROWS_H
#define CAIRN_MOE_ROWS_H

#include "fused/moe/moe.h"

#ifdef __cplusplus
extern "C" {
#endif

int moe_rows(const struct cairn_moe_args *args, void *stream);
int moe_rows_workspace(const struct cairn_moe_args *args, size_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
