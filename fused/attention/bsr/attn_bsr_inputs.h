/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_bsr_inputs - draws the parts of a call of attn_bsr: block rows, lists, positions, bits, slots
 *
 * For attn_bsr_test.c, which includes conformance/harness.h first.
 */
#ifndef CAIRN_ATTN_BSR_INPUTS_H
#define CAIRN_ATTN_BSR_INPUTS_H

enum {
	LSE = 1, F16 = 2, BENCH = 4, DEVICE = 8,
	RAGGED = 1 << 4,	/* block rows of random lengths, 0 included: row_indptr */
	SHUFFLED = 1 << 5,	/* tokens in random places: q_index */
	PADDED = 1 << 6,	/* nnz_qo and max_keys are larger than needed */
	WHOLE = 1 << 7,		/* every list has the number of keys of the shape; else at most that many */
	FULL_BLOCKS = 1 << 8,	/* no last_len */
	HEAD_LISTS = 1 << 9,	/* each KV head has its own lists */
	REPEATED = 1 << 10,	/* a list may name a block more than once */
	POS0 = 1 << 11, Q_POS = 1 << 12, KEY_POS = 1 << 13,
	TREE = 1 << 14,		/* bits of a tree of the row's tokens after a context; else random bits */
	FP8 = 1 << 15, K_SCALE = 1 << 16, V_SCALE = 1 << 20, SCALES = K_SCALE | V_SCALE,
	NO_ROWS = 1 << 17, FAR_KV = 1 << 18, FAR_Q = 1 << 19,
	LEFT_OUT = 1 << 21,	/* each part leaves out some tokens, each a different number */
	PART_1_EMPTY = 1 << 22,	/* part 1 has no rows */
	FAR_BITS = 1 << 23,	/* the bits of the second row lie past 2^31 bytes, of the third past 2^32 */
	FARTHER = 1 << 24,	/* with FAR_KV: the third block begins past 2^32 times 16 bytes */
};

/* Layouts of the slots of a block. */
enum {
	CONTIGUOUS, GAPS, HEADS_FIRST, NUM_LAYOUTS,
	/* only one stride is not 0; never chosen by the case index */
	LONE_BLOCK = NUM_LAYOUTS, LONE_SLOT
};

static const char *const layout_names[] = { "contiguous", "gaps", "heads_first" };

#define FAR_STRIDE	(((int64_t)1 << 31) + 64)

struct shape {
	const char *name;		/* NULL: derived from the shape */
	int tokens, hq, hkv, dim;
	struct {
		int m, n, keys, mode;	/* block_m, block_n; m 0: no such part */
		/*
		 * Not 0: the last `own` keys of a list are in blocks that no other list names, and all lists
		 * have the same keys before them. 0: all lists are drawn from the same blocks.
		 */
		int own;
		const int *lens;	/* keys of each row with WHOLE; NULL: `keys` */
	} part[CAIRN_ATTN_PARTS];
	unsigned flags;
	int parts;			/* set by shape_at() */
	int logits;			/* attn_inputs.h; PLAIN: none */
	int window;
	float cap;
	int layout, sms;
	int pair, ends;			/* attn_bsr_pairs.h, attn_bsr_ends.h: number of the case, or 0 */
	int q_gap, explicit_stride;	/* elements between rows of q; q_stride is not 0 */
	int equal;			/* EXACT has equal logits */
	float scale;			/* sm_scale; 0: the usual one */
	int roundings;			/* cairn_case.roundings */
	int pos;			/* added to q_pos, kv_pos0 and key_pos */
};

struct part_inputs {
	void *k, *v;
	int64_t block_stride, slot_stride, head_stride, count;	/* count: elements of k */
	int64_t some_key;	/* where a listed key of KV head 0 begins */
	int n, num_blocks;
};

static int64_t slot_at(const void *of, int b, int slot, int g)
{
	const struct part_inputs *p = of;

	(void)b;
	return slot / p->n * p->block_stride + slot % p->n * p->slot_stride + g * p->head_stride;
}

/* Member `f` of part i, with its name for messages. */
#define MEMBER(i, f) \
	(offsetof(struct cairn_attn_bsr_args, part) + (size_t)(i) * sizeof(struct cairn_attn_part) + \
	 offsetof(struct cairn_attn_part, f))
#define NAMED(op, i, f) \
	cairn_name(op, MEMBER(i, f), ((const char *const[]){ "part[0]." #f, "part[1]." #f, "part[2]." #f, \
							     "part[3]." #f })[i])

static void *declare_array(struct cairn_op *op, size_t field, int dtype, int64_t count)
{
	return cairn_in(op, field, dtype, count);
}
#define ARRAY(op, i, f, dtype, count) \
	declare_array(op, MEMBER(i, f), dtype, count); \
	NAMED(op, i, f)

/* Exchanges random pairs of n integers. */
static void shuffle(struct cairn_op *op, int32_t *x, int n)
{
	for (int i = n - 1; i > 0; i--) {
		int k = (int)cairn_op_range(op, 0, i);
		int32_t y = x[i];

		x[i] = x[k];
		x[k] = y;
	}
}

static void declare_q_pos(struct cairn_op *op, const struct shape *s, int64_t rows)
{
	int32_t *pos = cairn_in(op, offsetof(struct cairn_attn_bsr_args, q_pos), CAIRN_I32, rows);

	for (int64_t i = 0; i < rows; i++)
		pos[i] = s->pos + (int32_t)cairn_op_range(op, 0, 2 * s->part[0].keys / 3 + 20);
}

/* Sets rows and begin[0 .. rows], the places at which block rows begin, and q_index. */
static int *declare_rows(struct cairn_op *op, const struct shape *s, int i)
{
	struct cairn_attn_part *p = &((struct cairn_attn_bsr_args *)op->args)->part[i];
	/*
	 * with LEFT_OUT, part 0 holds fewer tokens than the last part, and the parts between hold fewer still
	 */
	int places = s->flags & LEFT_OUT ? s->tokens - 1 - 3 * ((i + 1) % s->parts) : s->tokens;
	int m = s->part[i].m, rows = (places + m - 1) / m, *begin;

	if (s->flags & RAGGED || (s->flags & PADDED && s->tokens % m))
		rows += 2;
	if (s->flags & NO_ROWS || (s->flags & PART_1_EMPTY && i == 1))
		rows = 0;
	begin = calloc((size_t)rows + 1, sizeof(*begin));
	if (!begin)
		abort();
	p->rows = rows;
	p->block_m = m;
	for (int r = 0; r < rows; r++) {
		int len = s->flags & RAGGED ? (int)cairn_op_range(op, 0, 2 * m) : m;
		int left = places - begin[r];

		begin[r + 1] = begin[r] + (r == rows - 1 || len > left ? left : len);
	}
	if (s->flags & (RAGGED | PADDED | LEFT_OUT)) {
		int32_t *indptr = ARRAY(op, i, row_indptr, CAIRN_I32, rows + 1);

		for (int r = 0; r <= rows; r++)
			indptr[r] = begin[r];
	}
	if (s->flags & SHUFFLED) {
		int32_t *index = ARRAY(op, i, q_index, CAIRN_I32, places);
		int32_t *tokens = malloc(((size_t)s->tokens + 1) * sizeof(*tokens));

		if (!tokens)
			abort();
		for (int k = 0; k < s->tokens; k++)
			tokens[k] = k;
		shuffle(op, tokens, s->tokens);
		memcpy(index, tokens, (size_t)places * sizeof(*index));
		free(tokens);
	}
	return begin;
}

/* Returns the number of keys of row r's list, at most `keys` of the part. */
static int draw_len(struct cairn_op *op, const struct shape *s, int i, int r)
{
	int keys = s->part[i].keys;

	if (s->part[i].lens)
		return s->part[i].lens[r];
	if (s->flags & WHOLE || !keys)
		return keys;
	return cairn_op_range(op, 0, 5) ? (int)cairn_op_range(op, 1, keys) : 0;
}

/* Returns the number of blocks that a list of `len` keys shares with no other list. */
static int own_blocks(const struct shape *s, int i, int len)
{
	int own = s->part[i].own < len ? s->part[i].own : len;

	return (own + s->part[i].n - 1) / s->part[i].n;
}

/* Declares the lists and sets num_blocks and max_keys. Returns the number of keys of each list. */
static int *declare_lists(struct cairn_op *op, const struct shape *s, int i, struct part_inputs *in)
{
	struct cairn_attn_part *p = &((struct cairn_attn_bsr_args *)op->args)->part[i];
	int heads = s->flags & HEAD_LISTS ? s->hkv : 1, n = s->part[i].n, num = heads * p->rows, most = 0;
	int *lens = calloc((size_t)num + 1, sizeof(*lens)), own = 0, next;
	/* entries before the lists of each head that belong to none of them, for lists may begin anywhere */
	const int gap = s->flags & BENCH ? 0 : 3;
	int32_t *indptr, *indices, *last, *ids, total = heads * gap;

	if (!lens)
		abort();
	for (int k = 0; k < num; k++) {
		lens[k] = draw_len(op, s, i, k % p->rows);
		if (s->flags & FULL_BLOCKS)
			lens[k] = (lens[k] + n - 1) / n * n;
		most = lens[k] > most ? lens[k] : most;
		total += (lens[k] + n - 1) / n;
		own += own_blocks(s, i, lens[k]);
	}
	p->block_n = in->n = n;
	p->index_heads = heads;
	p->max_keys = most + (s->flags & PADDED ? 77 : 0);
	next = s->flags & FAR_KV ? 3 : s->flags & REPEATED ? 7 : (most + n - 1) / n + 3;
	in->num_blocks = next + own;
	p->num_blocks = in->num_blocks;
	indptr = ARRAY(op, i, blk_indptr, CAIRN_I32, (int64_t)heads * (p->rows + 1));
	indices = ARRAY(op, i, blk_indices, CAIRN_I32, total);
	last = NULL;
	if (!(s->flags & FULL_BLOCKS)) {
		last = ARRAY(op, i, last_len, CAIRN_I32, num);
	}
	ids = calloc((size_t)in->num_blocks, sizeof(*ids));
	if (!ids)
		abort();
	for (int k = 0; k < in->num_blocks; k++)
		ids[k] = k;
	if (own)
		shuffle(op, ids, in->num_blocks);
	total = 0;
	for (int h = 0; h < heads; h++) {
		for (int k = 0; k < gap; k++)
			indices[total++] = in->num_blocks - 1;
		for (int r = 0; r < p->rows; r++) {
			int at = h * p->rows + r, blocks = (lens[at] + n - 1) / n;
			int alike = blocks - own_blocks(s, i, lens[at]);

			indptr[h * (p->rows + 1) + r] = total;
			if (!own)
				shuffle(op, ids, in->num_blocks);
			for (int k = 0; k < blocks; k++)
				indices[total++] = s->flags & REPEATED ?
					(int32_t)cairn_op_range(op, 0, in->num_blocks - 1) :
					ids[k < alike ? k : next++];
			if (last)
				last[at] = blocks ? lens[at] - (blocks - 1) * n : 0;
			if (lens[at] && !h)
				in->some_key = indices[total - 1] * in->block_stride;
		}
		indptr[h * (p->rows + 1) + p->rows] = total;
	}
	free(ids);
	return lens;
}

/* Draws the bits of one block row: those of a tree of its tokens after the context, or random ones. */
static void draw_bits(struct cairn_op *op, const struct shape *s, uint8_t *mask, int tokens, int keys)
{
	int line = (keys + 7) / 8, context = keys > tokens ? keys - tokens : 0;

	for (int t = 0; t < tokens; t++) {
		uint8_t *bits = mask + (int64_t)t * line;
		int parent = t ? (int)cairn_op_range(op, t > 4 ? t - 4 : 0, t - 1) : -1;

		for (int n = 0; n < line * 8; n++) {
			int yes = n >= keys || (s->flags & TREE ? n < context || n == context + t :
						cairn_op_range(op, 0, 1));

			if (s->flags & TREE && n >= context && n < keys && n != context + t)
				yes = parent >= 0 && mask[parent * line + n / 8] >> n % 8 & 1;
			bits[n / 8] = (uint8_t)((bits[n / 8] & ~(1 << n % 8)) | yes << n % 8);
		}
	}
}

/* Declares and draws the bits. With FAR_BITS, the bits of row r begin r * FAR_STRIDE bytes later. */
static void declare_bits(struct cairn_op *op, const struct shape *s, int i, const int *begin, const int *lens)
{
	struct cairn_attn_part *p = &((struct cairn_attn_bsr_args *)op->args)->part[i];
	int64_t *indptr, total = 3;	/* the buffer begins with three unused bytes */
	uint8_t *mask;

	indptr = ARRAY(op, i, mask_indptr, CAIRN_I64, p->rows);
	for (int r = 0; r < p->rows; r++) {
		total += s->flags & FAR_BITS && r ? FAR_STRIDE : 0;
		indptr[r] = total;
		total += (int64_t)(begin[r + 1] - begin[r]) * ((lens[r] + 7) / 8);
	}
	if (s->flags & FAR_BITS) {
		mask = cairn_in_far(op, MEMBER(i, mask), CAIRN_U8, total);
		cairn_touch(op, mask, 0, 3);
		for (int r = 0; r < p->rows; r++)
			cairn_touch(op, mask, indptr[r],
				    (int64_t)(begin[r + 1] - begin[r]) * ((lens[r] + 7) / 8));
	} else {
		mask = ARRAY(op, i, mask, CAIRN_U8, total);
	}
	memset(mask, 0x55, 3);
	for (int r = 0; r < p->rows; r++)
		draw_bits(op, s, mask + indptr[r], begin[r + 1] - begin[r], lens[r]);
}

/* Fills dim elements of a slot. */
static void fill_slot(struct cairn_op *op, void *x, int dtype, int fp8, int64_t at, int dim)
{
	float draw[256];

	if (!fp8) {
		cairn_fill(op, (char *)x + at * (int64_t)cairn_dtype_bytes(dtype), dtype, dim, 1);
		return;
	}
	cairn_fill(op, draw, CAIRN_F32, dim, 1);
	for (int c = 0; c < dim; c++)
		((uint8_t *)x)[at + c] = cairn_float_to_e4m3(draw[c]);
}

/* Fills all slots or, with POISON, only the listed ones of each head; the others are NaN. */
static void fill_slots(struct cairn_op *op, const struct shape *s, int i, struct part_inputs *in,
		       const int *lens)
{
	struct cairn_attn_bsr_args *a = op->args;
	const struct cairn_attn_part *p = &a->part[i];
	int num = in->num_blocks * in->n;
	uint8_t *listed = calloc((size_t)num * (size_t)s->hkv + 1, 1);

	if (!listed)
		abort();
	if (op->kind != CAIRN_KIND_POISON)
		memset(listed, 1, (size_t)num * (size_t)s->hkv);
	for (int g = 0; g < s->hkv; g++)
		for (int r = 0; r < p->rows; r++) {
			int h = p->index_heads > 1 ? g : 0, len = lens[h * p->rows + r];
			const int32_t *list = p->blk_indices + p->blk_indptr[h * (p->rows + 1) + r];

			for (int n = 0; n < len; n++)
				listed[g * num + list[n / in->n] * in->n + n % in->n] = 1;
		}
	if (!(s->flags & FAR_KV)) {
		cairn_fill_nan(in->k, a->kv_fp8 ? CAIRN_U8 : a->dtype, 0, in->count);
		cairn_fill_nan(in->v, a->kv_fp8 ? CAIRN_U8 : a->dtype, 0, in->count);
	}
	for (int k = 0; k < num * s->hkv; k++) {
		int64_t at = slot_at(in, 0, k % num, k / num);

		if (!listed[k])
			continue;
		fill_slot(op, in->k, a->dtype, a->kv_fp8, at, s->dim);
		fill_slot(op, in->v, a->dtype, a->kv_fp8, at, s->dim);
	}
	free(listed);
}

/* Sets the strides of a part. */
static void lay_out(struct cairn_attn_part *p, const struct shape *s, int n, struct part_inputs *in)
{
	int far = s->flags & FAR_KV, gap = s->layout == GAPS ? 16 : 0;

	if (s->layout == HEADS_FIRST) {
		in->head_stride = far ? FAR_STRIDE : (int64_t)n * s->dim + 16;
		in->slot_stride = s->dim;
		in->block_stride = far ? n * in->slot_stride : s->hkv * in->head_stride;
	} else {
		in->head_stride = s->dim + gap;
		in->slot_stride = s->hkv * in->head_stride + gap;
		in->block_stride = far ? FAR_STRIDE << (s->flags & FARTHER ? 3 : 0) :
				   n * in->slot_stride + 2 * gap;
	}
	if (s->layout == CONTIGUOUS && !far)
		return;
	if (s->layout == LONE_BLOCK)
		p->block_stride = in->block_stride += 48;
	if (s->layout == LONE_SLOT) {
		p->slot_stride = in->slot_stride += 48;
		in->block_stride = n * in->slot_stride;
	}
	if (s->layout >= NUM_LAYOUTS)
		return;
	p->head_stride = in->head_stride;
	p->slot_stride = in->slot_stride;
	p->block_stride = in->block_stride;
}

static void declare_kv(struct cairn_op *op, const struct shape *s, int i, struct part_inputs *in)
{
	struct cairn_attn_bsr_args *a = op->args;
	int dtype = a->kv_fp8 ? CAIRN_U8 : a->dtype, num = in->num_blocks * in->n;

	in->count = slot_at(in, 0, num - 1, s->hkv - 1) + s->dim;
	if (!(s->flags & FAR_KV)) {
		in->k = ARRAY(op, i, k, dtype, in->count);
		in->v = ARRAY(op, i, v, dtype, in->count);
		return;
	}
	in->k = cairn_in_far(op, MEMBER(i, k), dtype, in->count);
	in->v = cairn_in_far(op, MEMBER(i, v), dtype, in->count);
	for (int k = 0; k < num * s->hkv; k++) {
		cairn_touch(op, in->k, slot_at(in, 0, k % num, k / num), s->dim);
		cairn_touch(op, in->v, slot_at(in, 0, k % num, k / num), s->dim);
	}
}

static void declare_part(struct cairn_op *op, const struct shape *s, int i, struct part_inputs *in)
{
	struct cairn_attn_part *p = &((struct cairn_attn_bsr_args *)op->args)->part[i];
	int *begin = declare_rows(op, s, i), *lens;

	memset(in, 0, sizeof(*in));
	lay_out(p, s, s->part[i].n, in);
	lens = declare_lists(op, s, i, in);
	declare_kv(op, s, i, in);
	fill_slots(op, s, i, in, lens);
	p->mask_mode = s->flags & HEAD_LISTS ? s->part[i].mode & CAIRN_ATTN_CAUSAL : s->part[i].mode;
	if (p->mask_mode & CAIRN_ATTN_BITS)
		declare_bits(op, s, i, begin, lens);
	if (s->flags & POS0) {
		int32_t *pos = ARRAY(op, i, kv_pos0, CAIRN_I32, p->rows);

		for (int r = 0; r < p->rows; r++)
			pos[r] = s->pos + (int32_t)cairn_op_range(op, 0, 30);
	}
	if (s->flags & KEY_POS) {
		int32_t *pos = ARRAY(op, i, key_pos, CAIRN_I32, (int64_t)in->num_blocks * in->n);

		for (int k = 0; k < in->num_blocks * in->n; k++)
			pos[k] = s->pos + (int32_t)cairn_op_range(op, 0, s->part[i].keys + 30);
	}
	for (int which = 0; which < 2; which++) {
		float *scale;

		if (!(s->flags & (which ? K_SCALE : V_SCALE)))
			continue;
		if (which) {
			scale = ARRAY(op, i, k_scale, CAIRN_F32, s->hkv);
		} else {
			scale = ARRAY(op, i, v_scale, CAIRN_F32, s->hkv);
		}
		for (int g = 0; g < s->hkv; g++)
			scale[g] = (float)cairn_op_range(op, 3, 40) / 16;
	}
	free(begin);
	free(lens);
}

#endif
