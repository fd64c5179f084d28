/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kv_append_fp8_cases - the cases of kv_append with pages of e4m3
 *
 * kv_append_test.c includes this after its shapes. With kind EXTREME, most quotients lie exactly in the
 * middle between two codes, or one step of dtype beside it, or at the ends of the range.
 */
#ifndef CAIRN_KV_APPEND_FP8_CASES_H
#define CAIRN_KV_APPEND_FP8_CASES_H

static const struct shape fp8_named[] = {
	/* N(name, batch, new rows, keys, page size, KV heads, head_dim), other members */
	{ N("fp8_one_key_one_slot", 1, 1, 1, 1, 2, 64), .flags = FP8 | EXTREME },
	{ N("fp8_no_rows", 3, 0, 20, 16, 2, 64), .flags = SCALES },
	{ N("fp8_batch_0_padded", 0, 1, 1, 16, 2, 64), .flags = SCALES | PAGED_PADDED },
	{ N("fp8_crosses_pages", 1, 40, 57, 16, 2, 64), .flags = SCALES | EXTREME },
	{ N("fp8_whole_prompt_f16", 2, 33, 33, 16, 5, 64), .flags = SCALES | F16 | EXTREME },
	{ N("fp8_whole_prompt_f32", 2, 33, 33, 16, 3, 128), .flags = SCALES | F32 | EXTREME },
	{ N("fp8_k_scale_alone", 2, 3, 33, 16, 3, 64), .flags = FP8 | K_SCALE | EXTREME },
	{ N("fp8_v_scale_alone", 2, 3, 33, 16, 3, 64), .flags = FP8 | V_SCALE | EXTREME },
	{ N("fp8_padded_graph", 6, 1, 1, 16, 2, 128), .flags = SCALES | PAGED_PADDED,
	  .qo_lens = LENS(1, 1, 1, 0, 0, 0), .kv_lens = LENS(31, 32, 33, 0, 0, 1) },
	{ N("fp8_row_8", 3, 2, 9, 4, 1, 8), .flags = SCALES | PACKED | EXTREME },
	{ N("fp8_row_40", 3, 2, 9, 4, 3, 40), .flags = SCALES | PACKED | F16 | EXTREME },
	{ N("fp8_batch_300", 300, 1, 5, 4, 1, 8), .flags = SCALES | PAGED_RAGGED },
	{ N("fp8_batch_2100", 2100, 2, 5, 4, 1, 8), .flags = SCALES | PAGED_RAGGED },
	{ N("fp8_row_of_40_heads", 2, 3, 9, 4, 40, 256), .flags = SCALES },
	{ N("fp8_row_of_65_heads_f16", 2, 3, 9, 4, 65, 136), .flags = SCALES | F16 | PACKED },
	{ N("fp8_heads_of_1000", 2, 3, 9, 4, 2, 1000), .flags = SCALES },
	{ N("fp8_page_ids_past_2e16", 2, 2, 30, 1, 1, 8), .flags = SCALES | PAGED_HIGH, .pool = 66000 },
	{ N("fp8_keys_past_2e16", 2, 3, 66100, 64, 1, 8), .flags = SCALES },
	{ N("fp8_rows_past_2e16", 1, 65600, 65601, 64, 1, 8), .flags = SCALES },
	{ N("fp8_pages_of_41", 2, 85, 85, 41, 1, 8), .flags = SCALES },
	{ N("fp8_far_rows", 3, 1, 9, 16, 2, 64), .flags = SCALES | FAR_ROWS },
	{ N("fp8_far_pages", 2, 3, 40, 16, 4, 64), .flags = FP8 | PAGED_FAR },
	{ N("decode_b64_h8_d128_fp8", 64, 1, 64, 16, 8, 128), .flags = BENCH | PACKED | SCALES },
	{ N("prefill_b4_s4096_h8_d128_fp8", 4, 4096, 4096, 16, 8, 128),
	  .flags = BENCH | PACKED | DEVICE | SCALES },
};

/* The last cases of all. */
static const struct shape more[] = {
	/* pages larger than those of any engine */
	{ N("pages_of_256", 2, 40, 530, 256, 2, 64) },
	{ N("pages_of_1024_f32", 2, 3, 1030, 1024, 1, 8), .flags = F32 },
	{ N("fp8_pages_of_512", 2, 3, 1030, 512, 1, 8), .flags = SCALES },
	{ N("fills_pages_of_128", 2, 3, 256, 128, 2, 64) },
	{ N("fills_pages_of_256_f16", 3, 1, 1, 256, 1, 8), .flags = F16,
	  .qo_lens = LENS(1, 256, 1), .kv_lens = LENS(257, 512, 256) },
	{ N("fp8_fills_pages_of_128", 2, 3, 256, 128, 2, 64), .flags = SCALES },
	{ N("v_is_k", 2, 5, 30, 16, 2, 64), .flags = SAME },
	{ N("fp8_v_is_k", 2, 5, 30, 16, 2, 64), .flags = SAME | SCALES | F16 },
	/* quotients that become ties if they are rounded to fewer bits first */
	{ N("fp8_near_ties", 2, 5, 9, 16, 3, 64), .flags = SCALES | NEAR | EXTREME },
	{ N("fp8_near_ties_f16", 2, 5, 9, 16, 3, 64), .flags = SCALES | NEAR | EXTREME | F16 },
	{ N("fp8_subnormal", 2, 5, 9, 16, 3, 64), .flags = SCALES | TINY | EXTREME },
	{ N("fp8_subnormal_f32", 2, 5, 9, 16, 3, 64), .flags = SCALES | TINY | EXTREME | F32 },
};

#define NUM_MORE	((int)ARRAY_SIZE(more))
#define NUM_FP8		((int)ARRAY_SIZE(fp8_named))
#define NUM_FP8_PAIRS	33

/* The factors of pair_table, and the scales. */
static struct cairn_pairs fp8_pair_table = { .num_factors = 9, .levels = { 6, 5, 5, 4, 4, 4, 3, 3, 4 } };

static void fp8_shape_at(int i, struct shape *s)
{
	static const unsigned scales[] = { SCALES, FP8, FP8 | K_SCALE, FP8 | V_SCALE };

	if (i < NUM_FP8) {
		*s = fp8_named[i];
		return;
	}
	i -= NUM_FP8;
	if (i >= NUM_FP8_PAIRS) {
		*s = more[i - NUM_FP8_PAIRS];
		return;
	}
	pair_shape(cairn_pairs_row(&fp8_pair_table, i), s);
	s->pair = i + 1;
	s->flags |= scales[cairn_pairs_row(&fp8_pair_table, i)[8]];
}

/* Declares and draws the scales of the KV heads. */
static void declare_scales(struct cairn_op *op, const struct shape *s)
{
	for (int side = 0; side < 2; side++) {
		const size_t field = side ? offsetof(struct cairn_kv_append_args, v_scale) :
					    offsetof(struct cairn_kv_append_args, k_scale);
		float *scale;

		if (!(s->flags & (side ? V_SCALE : K_SCALE)))
			continue;
		scale = cairn_in(op, field, CAIRN_F32, s->heads);
		cairn_name(op, field, side ? "v_scale" : "k_scale");
		for (int g = 0; g < s->heads; g++)
			scale[g] = (float)cairn_op_range(op, 3, 40) / 16 * (s->flags & TINY ? 0x1p-122f : 1) *
				   (!(s->flags & NEAR) ? 1 : g % 2 ? 1 + 0x1p-14f : 1 - 0x1p-14f);
	}
}

/* Overwrites most elements of a row of x, from element `first` on, by quotients that are hard to round. */
static void fill_edges(struct cairn_op *op, const struct shape *s, void *x, int dtype, int64_t first,
		       const float *scale)
{
	static const double ends[] = { 448, 464, 465, 1e4, INFINITY, NAN, 0, 0x1p-9, 0x1p-10, 0x1.1p-10 };

	for (int c = 0; c < s->heads * s->dim; c++) {
		int code = (int)cairn_op_range(op, 0, 0x7d), what = (int)cairn_op_range(op, 0, 6);
		double lo = (double)cairn_e4m3_to_float((uint8_t)code);
		double hi = (double)cairn_e4m3_to_float((uint8_t)(code + 1));
		double v = what == 6 ? ends[cairn_op_range(op, 0, ARRAY_SIZE(ends) - 1)] : (lo + hi) / 2;
		uint64_t bits = 0;

		if (!what)		/* a random element stays */
			continue;
		v *= scale ? (double)scale[c / s->dim] : 1;
		cairn_store(&bits, dtype, 0, cairn_op_range(op, 0, 1) ? -v : v);
		if (what < 3)		/* the number of dtype next to the middle, above or below */
			bits += what == 1 ? 1 : (uint64_t)-1;
		memcpy((char *)x + (first + c) * (int64_t)cairn_dtype_bytes(dtype), &bits,
		       cairn_dtype_bytes(dtype));
	}
}

#endif
