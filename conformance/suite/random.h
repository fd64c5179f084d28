/* SPDX-License-Identifier: Apache-2.0 */
/* random - the numbers that fill the buffers of a case */
#ifndef CAIRN_RANDOM_H
#define CAIRN_RANDOM_H

#include <stdint.h>

#define CAIRN_RANDOM_STEP	0x9e3779b97f4a7c15u	/* the state moves on by this with each number */

/* splitmix64: any seed gives a good sequence, and sequences of different seeds do not overlap in practice */
static inline uint64_t cairn_random_next(uint64_t *state)
{
	uint64_t z = (*state += CAIRN_RANDOM_STEP);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

/* Sets each x[i] to scale times a standard normal number. Each one takes two numbers of the sequence. */
void cairn_random_normal(uint64_t *state, double *x, int64_t n, double scale);

#endif
