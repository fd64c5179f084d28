/* SPDX-License-Identifier: Apache-2.0 */
/* cut_off - for mutants: the results of a kernel that truncates instead of rounding, or saturates */
#ifndef CAIRN_CUT_OFF_H
#define CAIRN_CUT_OFF_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "primitives/base/dtype.h"

/* Returns v truncated (rounded towards zero) to dtype. */
static inline double cut_off(int dtype, double v)
{
	uint64_t bits = 0;	/* wide enough for any dtype */

	cairn_store(&bits, dtype, 0, v);
	if (fabs(cairn_load(&bits, dtype, 0)) > fabs(v))
		bits--;		/* the next smaller magnitude, since all formats are sign and magnitude */
	return cairn_load(&bits, dtype, 0);
}

/* Returns x truncated to TF32: the lower 13 bits are cleared. */
static inline float tf32(double x)
{
	float f = (float)x;
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	bits &= ~0x1fffu;
	memcpy(&f, &bits, sizeof(f));
	return f;
}

/* Returns v, but the largest number of f16 or bf16 where v is finite and would overflow. */
static inline double saturated(int dtype, double v)
{
	const double most = dtype == CAIRN_F16 ? 65504 : 0x1.fep127;

	return dtype != CAIRN_F32 && isfinite(v) && fabs(v) > most ? copysign(most, v) : v;
}

#endif
