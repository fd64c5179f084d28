/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_lengths - query and key lengths of the requests in the cases of the attention families
 */
#ifndef CAIRN_ATTN_LENGTHS_H
#define CAIRN_ATTN_LENGTHS_H

/* Numbers of keys of 96 requests, some of which have none. */
#define ATTN_HOLES_16	70, 0, 97, 65, 1, 0, 130, 66, 64, 0, 71, 33, 128, 0, 65, 90
#define ATTN_HOLES_48	ATTN_HOLES_16, ATTN_HOLES_16, ATTN_HOLES_16
#define ATTN_HOLES_96	ATTN_HOLES_48, ATTN_HOLES_48

/* Numbers of keys of 16 requests, shuffled: uniform from 512 to 1022; proportional to 1 / rank, mean 1024. */
#define ATTN_UNIFORM_16	614, 852, 546, 784, 1022, 716, 954, 648, 886, 580, 818, 512, 750, 988, 682, 920
#define ATTN_ZIPF_16	692, 4846, 346, 538, 1212, 303, 2423, 404, 606, 323, 969, 1615, 373, 441, 808, 485

#define ATTN_ZIPF_64	ATTN_ZIPF_16, ATTN_ZIPF_16, ATTN_ZIPF_16, ATTN_ZIPF_16
#define ATTN_1024_3	1024, 1024, 1024
#define ATTN_1024_4	ATTN_1024_3, 1024
#define ATTN_1024_8	ATTN_1024_4, ATTN_1024_4
#define ATTN_1024_16	ATTN_1024_8, ATTN_1024_8
#define ATTN_UNEVEN_17	3, 700, 0, 150, 41, 130, 64, 260, 17, 300, 1, 33, 32, 31, 500, 95, 2
#define ATTN_UNEVEN_35	ATTN_UNEVEN_17, 3000, ATTN_UNEVEN_17
#define ATTN_ONE_7	1, 1, 1, 1, 1, 1, 1
#define ATTN_ONE_28	ATTN_ONE_7, ATTN_ONE_7, ATTN_ONE_7, ATTN_ONE_7
#define ATTN_1424_4	1424, 1424, 1424, 1424
#define ATTN_1424_16	ATTN_1424_4, ATTN_1424_4, ATTN_1424_4, ATTN_1424_4

/* decode, mixed, append, prefill; requests with more queries than keys; an empty request between others */
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
