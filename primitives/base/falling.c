// SPDX-License-Identifier: Apache-2.0
/*
 * falling - sorts by the bits of the numbers, in three stable passes of 11 bits; qsort() takes twenty times
 * as long for a row of 128256 logits, and the references of hundreds of cases sort such rows
 */
#include "primitives/base/falling.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"

#define BITS	11
#define BUCKETS	(1 << BITS)

/* Returns a key that rises as x falls. */
static uint32_t key_of(float x)
{
	float y = isnan(x) ? -INFINITY : x > FLT_MAX ? FLT_MAX : x + 0.0f;	/* -0 becomes 0 */
	uint32_t bits;

	memcpy(&bits, &y, sizeof(bits));
	return bits >> 31 ? bits : ~bits & 0x7fffffffu;
}

/* Sorts words by the bits of their keys, the upper halves, from `shift` on. */
static void pass(uint64_t *to, const uint64_t *from, int32_t n, int shift)
{
	int32_t at[BUCKETS] = { 0 }, sum = 0;

	for (int32_t i = 0; i < n; i++)
		at[from[i] >> shift & (BUCKETS - 1)]++;
	for (int b = 0; b < BUCKETS; b++) {
		int32_t count = at[b];

		at[b] = sum;
		sum += count;
	}
	for (int32_t i = 0; i < n; i++)
		to[at[from[i] >> shift & (BUCKETS - 1)]++] = from[i];
}

int cairn_order_falling(int32_t *order, const float *x, int32_t n)
{
	uint64_t *words = calloc(2 * (size_t)n + 1, sizeof(*words)), *room = words + n;

	if (!words)
		return cairn_error(ENOMEM, "no memory to sort %d numbers", n);
	for (int32_t i = 0; i < n; i++)
		words[i] = (uint64_t)key_of(x[i]) << 32 | (uint32_t)i;
	pass(room, words, n, 32);
	pass(words, room, n, 32 + BITS);
	pass(room, words, n, 32 + 2 * BITS);
	for (int32_t i = 0; i < n; i++)
		order[i] = (int32_t)(uint32_t)room[i];
	free(words);
	return 0;
}
