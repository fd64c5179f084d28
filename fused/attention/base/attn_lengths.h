/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_lengths - the batches of the pair cases of the attention families: requests, their query rows and keys
 */
#ifndef CAIRN_ATTN_LENGTHS_H
#define CAIRN_ATTN_LENGTHS_H

/* Numbers of keys of 96 requests, some of which have none. */
#define ATTN_HOLES_16	70, 0, 97, 65, 1, 0, 130, 66, 64, 0, 71, 33, 128, 0, 65, 90
#define ATTN_HOLES_48	ATTN_HOLES_16, ATTN_HOLES_16, ATTN_HOLES_16
#define ATTN_HOLES_96	ATTN_HOLES_48, ATTN_HOLES_48

/* decode, mixed, append, prefill; requests with more queries than keys, and an empty one between others */
static const struct {
	int batch, qo[5], kv[5];
} attn_lengths[] = {
	{ 5, { 1, 1, 1, 1, 1 }, { 1, 97, 0, 33, 130 } },
	{ 4, { 1, 9, 1, 3 }, { 130, 64, 17, 65 } },
	{ 3, { 4, 2, 5 }, { 128, 37, 5 } },
	{ 2, { 33, 18 }, { 49, 18 } },
	{ 4, { 3, 0, 6, 1 }, { 2, 9, 0, 65 } },
};

#endif
