/* SPDX-License-Identifier: Apache-2.0 */
/* silu_mul_rows - silu_mul with a quantised output and one scale for a row: for silu_mul.cu */
#ifndef CAIRN_SILU_MUL_ROWS_H
#define CAIRN_SILU_MUL_ROWS_H

#include "primitives/rows/silu_mul.h"

/* args: checked, complete, with q of kind ROWS and at least one row. */
int silu_mul_rows(const struct cairn_silu_mul_args *args, void *stream);

#endif
