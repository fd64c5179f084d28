// SPDX-License-Identifier: Apache-2.0
/*
 * digest - a 64-bit digest of bytes (digest.h)
 *
 * Eight lanes take eight bytes each, so that a processor has eight multiplications in flight. A step rotates
 * before it multiplies by an odd number: a product alone would never carry a difference to a lower bit.
 */
#include "serving/base/digest.h"

#include <string.h>

#define LANES	8

static uint64_t mix(uint64_t h, uint64_t word)
{
	h ^= word;
	return (h << 31 | h >> 33) * 0x9e3779b97f4a7c15u;
}

uint64_t cairn_digest(uint64_t h, const void *bytes, size_t num)
{
	const uint8_t *at = bytes;
	uint64_t lanes[LANES], words[LANES];
	size_t left = num;

	for (uint64_t i = 0; i < LANES; i++)
		lanes[i] = mix(h, i);
	for (; left; at += sizeof(words)) {
		const size_t take = left < sizeof(words) ? left : sizeof(words);

		if (take < sizeof(words))
			memset(words, 0, sizeof(words));
		memcpy(words, at, take);
		for (int i = 0; i < LANES; i++)
			lanes[i] = mix(lanes[i], words[i]);
		left -= take;
	}
	h = mix(h, num);		/* the last words may be filled up with zeros */
	for (int i = 0; i < LANES; i++)
		h = mix(h, lanes[i]);
	return mix(h, h >> 32);
}
