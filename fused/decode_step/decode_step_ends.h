/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode_step_ends - cases of decode_step at the ends of tiles and pages (conformance/suite/ends.h)
 *
 * Include pairs.h, paged_test.h and decode_step_test.h first. The requests of a case have different numbers
 * of keys, so that each length meets every other feature in a few cases.
 */
#ifndef CAIRN_DECODE_STEP_ENDS_H
#define CAIRN_DECODE_STEP_ENDS_H

#define NUM_ENDS	56

enum {
	ENDS_BATCH, ENDS_HEADS, ENDS_SHIFT, ENDS_PAGE, ENDS_SIZES, ENDS_VOCAB, ENDS_TYPE, ENDS_FORM,
	ENDS_BIAS, NUM_ENDS_FACTORS
};

static struct cairn_pairs ends_table = {
	.num_factors = NUM_ENDS_FACTORS, .levels = { 8, 7, 5, 5, 4, 4, 4, 3, 3 },
};

static void ends_at(int i, struct step_shape *s)
{
	static const int heads[][2] = { { 1, 1 }, { 3, 3 }, { 6, 3 }, { 8, 1 }, { 10, 5 }, { 14, 2 },
					{ 5, 1 } };
	static const int sizes[][2] = { { 64, 64 }, { 192, 64 }, { 64, 192 }, { 320, 128 } };
	static const int pages[] = { 16, 1, 64, 32, 3 };
	static const int vocab[] = { 8, 72, 120, 264 };
	static const unsigned forms[] = { 0, GRAPH, PERSISTENT }, biases[] = { 0, BIAS, BIAS | BIAS_O };
	/* the lengths of a case begin anywhere in the first half */
	static const int lens[] = { 17, 64, 33, 1, 65, 127, 15, 129, 63, 16, 17, 64, 33, 1, 65, 127 };
	const int8_t *level = cairn_pairs_row(&ends_table, i);

	*s = (struct step_shape){
		.ends = 1, .layers = 1 + level[ENDS_TYPE] / 2, .batch = 1 + level[ENDS_BATCH],
		.kv_lens = lens + 2 * level[ENDS_SHIFT], .page = pages[level[ENDS_PAGE]],
		.hidden = sizes[level[ENDS_SIZES]][0], .inter = sizes[level[ENDS_SIZES]][1],
		.hq = heads[level[ENDS_HEADS]][0], .hkv = heads[level[ENDS_HEADS]][1], .dim = 64,
		.vocab = vocab[level[ENDS_VOCAB]],
		.flags = (level[ENDS_TYPE] % 2 ? F16 : 0) | forms[level[ENDS_FORM]] |
			 biases[level[ENDS_BIAS]],
	};
	s->kv = s->kv_lens[0];
}

#endif
