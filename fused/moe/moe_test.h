/* SPDX-License-Identifier: Apache-2.0 */
/*
 * moe_test - declarations that the files of the test share: moe_test.c lists and judges the cases,
 * moe_inputs_test.c makes their inputs
 *
 * Include conformance/harness.h first.
 */
#ifndef CAIRN_MOE_TEST_H
#define CAIRN_MOE_TEST_H

#include "fused/moe/moe.h"

#define MOE_FIELD(f)	offsetof(struct cairn_moe_args, f)

enum {
	F16 = 1, IN_PLACE = 2, NORMALIZE = 4, NO_EXPERTS = 8, BENCH = 16, DEVICE = 32,
	TIES = 64,		/* all rows of the router are equal */
	PAIRS = 128,		/* rows 2 i and 2 i + 1 are equal */
	SAME = 256,		/* all requests are equal */
	FP8 = 512, BLOCKS = 1024,	/* 8-bit weights; with scales of blocks */
	SIGMOID = 2048, BIAS = 4096, NEGATIVE = 8192,	/* BIAS + NEGATIVE: all c are negative */
	GROUP_TIES = 16384,	/* groups 2 i and 2 i + 1 have equal experts */
	LAST = 32768,		/* all requests choose the last expert, and the last but one ... */
	FAR = 65536,		/* ... whose weights lie past 2^31 elements */
	SUMS = 131072,		/* sums of many bits, most of whose terms cancel */
	SUBNORMAL = 262144,	/* all codes of FP8 are subnormal */
	FAINT = 524288,		/* all logits are about -36, so that sums of sigmoids are about 1e-15 */
	LOW = 1048576,		/* all biases are about -4e9 */
	OPPOSITE = 2097152,	/* most elements of x and of what is added to it cancel */
	SHUT = 4194304,		/* all gates are -24, and ups 2^30 */
	NORMAL_ALONE = 8388608,	/* a named case of one kind, NORMAL */
	NO_RESIDUAL = 16777216,
	LOGIT_BIAS = 33554432, PRODUCT_BIAS = 67108864, CLAMPED = 134217728,
};

struct moe_shape {
	const char *name;	/* NULL: generated from the numbers */
	int hidden, experts, top, inter, shared, batch;
	unsigned flags;
	float scaling;		/* 0: 1 */
	int sms, groups, groups_per_token;
	float eps;		/* 0: 1e-6 or 1e-5; else x has the size of its root, so that eps matters */
	/* 1: a pair case, whose EXACT has logits of more than 11 bits; from 2: a route_pair case */
	int pair;
	enum cairn_kind kind;	/* kind of a route_pair case */
	enum cairn_moe_w4 w4;
	int roundings;		/* cairn_case.roundings */
	int ends;		/* moe_ends.h: number of the case, or 0 */
};

void moe_shape_at(int index, struct moe_shape *s);
void moe_setup(struct cairn_op *op);

#endif
