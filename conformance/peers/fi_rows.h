/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fi_rows - rmsnorm, silu_mul and rope by FlashInfer, for the table of that name
 *
 * The contracts are those of rmsnorm.h, silu_mul.h and rope.h, with these exceptions.
 *
 *   Supported: f16 and bf16, no q. rmsnorm: weight_offset 0; with a residual only in place, that is, out is
 *   x. silu_mul: activation 0. rope: with k, scale 1 and no norm, head_dim 64, 128, 256 or 512, positions
 *   below 2^17.
 *   Residual: FlashInfer normalises the sum before it is rounded, so that out may differ from ours by two
 *   more roundings: cairn_impl_has_own_rules().
 *   Table of rope: FlashInfer's fastest kernel reads cosines and sines from a table that a model makes once.
 *   A call outside of a capture reads inv_freq and the positions, and makes or extends the table, for one
 *   set of frequencies on each device. A captured call uses the table that is there.
 *   Dependent launch: on for rmsnorm and silu_mul, as it is by default in FlashInfer; rope has none.
 *   Workspace: none.
 */
#ifndef CAIRN_FI_ROWS_H
#define CAIRN_FI_ROWS_H

#include "primitives/rows/rmsnorm.h"
#include "primitives/rows/rope.h"
#include "primitives/rows/silu_mul.h"

int cairn_rmsnorm_fi(const struct cairn_rmsnorm_args *args, void *stream);
int cairn_silu_mul_fi(const struct cairn_silu_mul_args *args, void *stream);
int cairn_rope_fi(const struct cairn_rope_args *args, void *stream);

#endif
