/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mask_logits.cu - each CTA owns a range of tokens of one row; a thread handles 4 tokens at a time
 *
 * A thread reads the 4 bits of its tokens and writes the logits whose bits are clear; no logit is read.
 * Eight neighbouring threads share a word, and a warp's 32 threads read one 16-byte span. If none of the 4
 * tokens is allowed and their logits are 16-byte aligned, which holds for every row if vocab is a multiple of
 * 4, the thread stores them at once.
 *
 * The grid has about CTAS_PER_SM CTAs per SM, each with at least PART_MIN tokens, over which it strides.
 *
 * Floor: the stores of excluded logits, 4 bytes each. A mask in the middle of a JSON string excludes few
 * tokens, one that expects punctuation nearly all: 256 rows of 128256 are then 131 MB, 33 us.
 */
#include "primitives/base/launch.h"
#include "primitives/logits/mask_logits.h"
#include "primitives/ptx/ptx.cuh"

#define THREADS		256
#define PART_MIN	(THREADS * 4)
#define CTAS_PER_SM	8

/* parts: CTAs per row; part: tokens per CTA, a multiple of 4 */
__global__ void __launch_bounds__(THREADS)
mask_logits_kernel(const __grid_constant__ struct cairn_mask_logits_args a, int parts, int part)
{
	const int row = blockIdx.x / parts, lo = blockIdx.x % parts * part, hi = min(a.vocab, lo + part);
	float *x = a.logits + (int64_t)row * a.vocab;
	const uint32_t *bits = NULL;
	int slot;

	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	slot = a.slot[row];
	if (slot < 0)
		return;
	if (slot < a.num_slots)
		bits = a.bits + (int64_t)slot * ((a.vocab + 31) / 32);
	for (int j = lo + 4 * threadIdx.x; j < hi; j += 4 * THREADS) {
		uint32_t allowed = bits ? bits[j / 32] >> (j % 32) & 15 : 0;

		if (!allowed && j + 4 <= a.vocab && !((uintptr_t)(x + j) & 15)) {
			*(float4 *)(x + j) = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
			continue;
		}
#pragma unroll
		for (int k = 0; k < 4; k++)
			if (!(allowed >> k & 1) && j + k < a.vocab)
				x[j + k] = -INFINITY;
	}
}

extern "C" int cairn_mask_logits(const struct cairn_mask_logits_args *a, void *stream)
{
	struct cairn_launch l = { .block = { THREADS }, .pdl = 1, .stream = stream };
	int sms = cairn_num_sms(), parts, part;
	void *params[] = { (void *)a, &parts, &part };
	int64_t want;

	CAIRN_TRY(cairn_mask_logits_check(a));
	if (a->rows == 0)
		return 0;
	if (sms < 0)
		return sms;
	want = ((int64_t)CTAS_PER_SM * sms + a->rows - 1) / a->rows;
	part = (int)((a->vocab + want - 1) / want);
	part = part < PART_MIN ? PART_MIN : (part + 3) / 4 * 4;
	parts = (a->vocab + part - 1) / part;
	if ((int64_t)a->rows * parts > INT32_MAX)
		return cairn_error(EOPNOTSUPP, "mask_logits: rows: %d are too many", a->rows);
	l.grid[0] = (unsigned int)(a->rows * parts);
	return cairn_launch((const void *)mask_logits_kernel, &l, params);
}
