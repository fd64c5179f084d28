/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_word - words of random signs, one for each key, so that a query can choose a few keys among thousands
 *
 * The product of a word of n channels with itself is n, and that of two different words near sqrt(n).
 */
#ifndef CAIRN_ATTN_WORD_H
#define CAIRN_ATTN_WORD_H

#include <stdint.h>

/* Returns channel c of the word of key j: -1 or 1. */
static inline int attn_word(int j, int c)
{
	uint64_t x = ((uint64_t)j * 4 + (uint64_t)c / 64 + 1) * 0x9e3779b97f4a7c15u;

	x = (x ^ x >> 31) * 0xd1342543de82ef95u;
	x ^= x >> 29;
	return x >> c % 64 & 1 ? 1 : -1;
}

#endif
