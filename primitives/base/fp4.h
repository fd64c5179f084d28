/* SPDX-License-Identifier: Apache-2.0 */
/* fp4 - the values of 4-bit floats (e2m1) and of their power-of-two scales (e8m0), for the host */
#ifndef CAIRN_FP4_H
#define CAIRN_FP4_H

#include <math.h>
#include <stdint.h>

/* code: 0 to 15; bit 3 is the sign. */
static inline float cairn_e2m1_to_float(int code)
{
	static const float values[8] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };

	return code & 8 ? -values[code & 7] : values[code & 7];
}

/* Returns 2^(v - 127); NaN for 255. */
static inline float cairn_e8m0_to_float(uint8_t v)
{
	return v == 255 ? NAN : ldexpf(1, v - 127);
}

#endif
