// SPDX-License-Identifier: Apache-2.0
/*
 * random - normally distributed numbers by the Box-Muller transform
 *
 * Thousands of cases have buffers of millions of elements, so logarithm and cosine are polynomials that
 * compilers vectorise. They are those of fdlibm (Sun Microsystems, 1993); the results are within 2^-52 of the
 * exact ones.
 */
#include "conformance/suite/random.h"

#include <math.h>
#include <string.h>

#include "primitives/base/wide.h"

/*
 * Converts x to a double, 0 <= x < 2^52. Many processors have no vector instruction that converts 64-bit
 * integers.
 */
static inline double to_double(uint64_t x)
{
	double d;

	x |= 0x4330000000000000;	/* 2^52 + x */
	memcpy(&d, &x, sizeof(d));
	return d - 0x1p52;
}

/* ln x for normal x > 0: x = 2^e (1 + f), and ln(1 + f) is odd in s = f / (2 + f). */
static inline double logarithm(double x)
{
	uint64_t bits;
	double e, f, s, z, half, rest;

	memcpy(&bits, &x, sizeof(bits));
	bits += 0x3ff0000000000000 - 0x3fe6a09e00000000;	/* 1 + f is between the roots of 1/2 and 2 */
	e = to_double(bits >> 52) - 1023;
	bits = (bits & 0x000fffffffffffff) + 0x3fe6a09e00000000;
	memcpy(&f, &bits, sizeof(f));
	f -= 1;
	s = f / (2 + f);
	z = s * s;
	half = 0.5 * f * f;
	rest = z * (6.666666666666735130e-01 + z * (3.999999999940941908e-01 + z *
	       (2.857142874366239149e-01 + z * (2.222219843214978396e-01 + z *
	       (1.818357216161805012e-01 + z * (1.531383769920937332e-01 + z * 1.479819860511658591e-01))))));
	return e * 6.93147180369123816490e-01 -
	       (half - (s * (half + rest) + e * 1.90821492927058770002e-10) - f);
}

/* cos(2 pi u), 0 <= u < 1: the cosine or sine of what remains of u after whole quarter turns */
static inline double cosine(double u)
{
	int32_t turn = (int32_t)(4 * u + 0.5);
	double x = (4 * u - (double)turn) * 1.5707963267948966, z = x * x;
	double s = x + x * z * (-1.66666666666666324348e-01 + z * (8.33333333332248946124e-03 + z *
		   (-1.98412698298579493134e-04 + z * (2.75573137070700676789e-06 + z *
		   (-2.50507602534068634195e-08 + z * 1.58969099521155010221e-10)))));
	double c = 1 - 0.5 * z + z * z * (4.16666666666666019037e-02 + z * (-1.38888888888741095749e-03 + z *
		   (2.48015872894767294178e-05 + z * (-2.75573143513906633035e-07 + z *
		   (2.08757232129817482790e-09 + z * -1.13596475577881948265e-11)))));

	c = turn & 1 ? s : c;
	return (turn + 1) & 2 ? -c : c;
}

CAIRN_WIDE void cairn_random_normal(uint64_t *state, double *x, int64_t n, double scale)
{
	uint64_t from = *state;

	for (int64_t i = 0; i < n; i++) {
		uint64_t first = from + 2 * (uint64_t)i * CAIRN_RANDOM_STEP,
			second = first + CAIRN_RANDOM_STEP;
		double u = to_double(cairn_random_next(&first) >> 12) * 0x1p-52;
		double v = to_double(cairn_random_next(&second) >> 12) * 0x1p-52;

		x[i] = scale * (sqrt(-2 * logarithm(1 - u)) * cosine(v));	/* 1 - u is never 0 */
	}
	*state = from + 2 * (uint64_t)n * CAIRN_RANDOM_STEP;
}
