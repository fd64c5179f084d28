/* SPDX-License-Identifier: Apache-2.0 */
/*
 * angle - cosine and sine of a rotary embedding's angle
 *
 * The argument is reduced in double: k = rint(angle 2/pi), r = angle - k pi/2 with pi/2 in two parts. The
 * result is accurate to fp32 for every angle that a float position can give. The reduction avoids the slow
 * path of sincosf and its local memory; fp64 has half the throughput of fp32 on Hopper. Sine and cosine of r
 * are polynomials of degree 7 and 8.
 */
#ifndef CAIRN_ANGLE_CUH
#define CAIRN_ANGLE_CUH

/* Cosine and sine of an angle of at most 2^31 in magnitude. */
static __device__ __forceinline__ void angle_cos_sin(float angle, float *c, float *s)
{
	double k = rint((double)angle * 0.63661977236758134308);
	double r = fma(-k, 6.123233995736766e-17, fma(-k, 1.57079632679489655800, (double)angle));
	int quadrant = (int)(long long)k;
	float f = (float)r, z = f * f;
	float sine = fmaf(fmaf(fmaf(-1.9515295891e-4f, z, 8.3321608736e-3f), z, -1.6666654611e-1f) * z, f, f);
	float cosine =
		fmaf(fmaf(fmaf(2.443315711809948e-5f, z, -1.388731625493765e-3f), z, 4.166664568298827e-2f),
		     z * z, fmaf(-0.5f, z, 1.0f));
	float a = quadrant & 1 ? sine : cosine, b = quadrant & 1 ? cosine : sine;

	*c = (quadrant + 1) & 2 ? -a : a;
	*s = quadrant & 2 ? -b : b;
}

#endif
