// SPDX-License-Identifier: Apache-2.0
/*
 * model_w4 - brings matrices that a checkpoint stores in 4 bits into the layout of gemm_w4
 *
 * A rank's share of a matrix is first cut out of the checkpoint's tensors. This also aligns the words, which
 * the file does not. Rows and columns with which the shares of experts are padded get codes and scales of 0;
 * only a scale for a whole row stands for its padding, too, but padded columns of down meet zeros of h.
 */
#include "serving/model/load/model_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/gemm/w4/gemm_w4_pack.h"

#define CODES_PER_WORD	8

/*
 * The tensors of a matrix [n, k]. by_rows: n comes first in their shapes. A word of `bytes` bytes has codes
 * of `rows` rows and `cols` columns. factor: one over the factor of all elements.
 */
static const struct form {
	const char *codes, *zeros, *scales, *order, *factor;
	int by_rows, rows, cols, bytes;
	int (*pack)(const struct cairn_w4_checkpoint *c, uint8_t *b, uint8_t *b_scale);
} forms[] = {
	[CAIRN_STORED_AWQ] = { "qweight", "qzeros", "scales", NULL, NULL, 0, 8, 1, 4, cairn_w4_pack_awq },
	[CAIRN_STORED_GPTQ] = { "qweight", "qzeros", "scales", "g_idx", NULL, 0, 1, 8, 4,
				cairn_w4_pack_gptq },
	[CAIRN_STORED_GPTQ_V2] = { "qweight", "qzeros", "scales", "g_idx", NULL, 0, 1, 8, 4,
				   cairn_w4_pack_gptq },
	[CAIRN_STORED_PACKED] = { "weight_packed", "weight_zero_point", "weight_scale", "weight_g_idx", NULL,
				  1, 1, 8, 4, cairn_w4_pack_rows },
	[CAIRN_STORED_NVFP4] = { "weight_packed", NULL, "weight_scale", NULL, "weight_global_scale", 1, 1, 2,
				 1, cairn_w4_pack_nvfp4 },
};

struct tensors {
	const struct cairn_tensor *codes, *zeros, *scales;	/* zeros NULL: all are 8 */
	float factor;		/* of all elements */
};

static const struct form *form_of(const struct cairn_model *m)
{
	return &forms[m->config.w4.stored];
}

/* Writes the name of a tensor of the matrix "X.weight": "X." and the suffix. */
static void name_tensor(char *full, size_t len, const char *name, const char *suffix)
{
	snprintf(full, len, "%.*s.%s", (int)(strrchr(name, '.') - name), name, suffix);
}

/* Finds a tensor with `n` elements along the rows of the matrix and `k` along its columns. */
static int find(const struct form *form, const char *name, const char *suffix, int64_t n, int64_t k,
		const struct cairn_safetensors *st, const struct cairn_tensor **t)
{
	const int64_t shape[] = { form->by_rows ? n : k, form->by_rows ? k : n };
	char full[128];

	name_tensor(full, sizeof(full), name, suffix);
	return cairn_safetensors_get(st, full, 2, shape, t);
}

static int refuse_type(const struct cairn_tensor *t, const char *supported)
{
	return cairn_error(EOPNOTSUPP, "%s: %s: dtype %s is not supported (%s)", t->file, t->name,
			   cairn_st_dtype_name(t->dtype), supported);
}

/* Finds the factor of all elements of a matrix, which is stored as one over it. */
static int find_factor(const struct form *form, const char *name, const struct cairn_safetensors *st,
		       float *factor)
{
	const struct cairn_tensor *t;
	const int64_t one = 1;
	float stored;
	char full[128];

	name_tensor(full, sizeof(full), name, form->factor);
	t = cairn_safetensors_find(st, full);
	CAIRN_TRY(cairn_safetensors_get(st, full, t && !t->rank ? 0 : 1, &one, &t));
	if (t->dtype != CAIRN_ST_F32)
		return refuse_type(t, "F32 is");
	memcpy(&stored, t->data, sizeof(stored));
	*factor = 1 / stored;
	return stored > 0 && isfinite(*factor) && *factor > 0 ? 0 :
	       cairn_error(EINVAL, "%s: %s: %g is not a scale", t->file, full, (double)stored);
}

static int find_all(const struct cairn_model *m, const struct cairn_part *p, const char *name,
		    const struct cairn_safetensors *st, struct tensors *t)
{
	const int64_t n = m->whole[p->rows], k = m->whole[p->cols], group = m->config.w4.group;
	const int64_t groups = group ? k / group : 1;
	const struct form *form = form_of(m);
	int dtype;

	t->zeros = NULL;
	t->factor = 1;
	CAIRN_TRY(find(form, name, form->codes, n / form->rows, k / form->cols, st, &t->codes));
	CAIRN_TRY(find(form, name, form->scales, n, groups, st, &t->scales));
	if (form->factor)
		CAIRN_TRY(find_factor(form, name, st, &t->factor));
	else if (m->config.w4.stored != CAIRN_STORED_PACKED || m->config.w4.has_zeros)
		CAIRN_TRY(find(form, name, form->zeros, n / CODES_PER_WORD, groups, st, &t->zeros));
	if (t->codes->dtype != (form->factor ? CAIRN_ST_U8 : CAIRN_ST_I32))
		return refuse_type(t->codes, form->factor ? "U8 is" : "I32 is");
	if (form->factor)
		return t->scales->dtype == CAIRN_ST_F8_E4M3 ? 0 : refuse_type(t->scales, "F8_E4M3 is");
	if (t->zeros && t->zeros->dtype != CAIRN_ST_I32)
		return refuse_type(t->zeros, "I32 is");
	dtype = cairn_st_to_dtype(t->scales->dtype);
	return dtype >= 0 && cairn_dtype_is_float(dtype) ? 0 : refuse_type(t->scales, "F32, F16, BF16 are");
}

/* Refuses a matrix whose groups are not those of elements in order. */
static int check_order(const struct cairn_model *m, const char *name, int64_t k,
		       const struct cairn_safetensors *st)
{
	const struct form *form = form_of(m);
	const struct cairn_tensor *t;
	int32_t of;
	char full[128];

	if (!form->order)
		return 0;
	name_tensor(full, sizeof(full), name, form->order);
	if (!m->config.w4.has_order && !cairn_safetensors_find(st, full))
		return 0;
	CAIRN_TRY(cairn_safetensors_get(st, full, 1, &k, &t));
	if (t->dtype != CAIRN_ST_I32)
		return refuse_type(t, "I32 is");
	for (int64_t l = 0; l < k; l++) {
		memcpy(&of, (const char *)t->data + l * (int64_t)sizeof(of), sizeof(of));
		if (of != (m->config.w4.group ? l / m->config.w4.group : 0))
			return cairn_error(EOPNOTSUPP, "%s: %s: element %lld is in group %d: groups in "
					   "another order than that of the elements (desc_act) are not "
					   "supported", t->file, full, (long long)l, of);
	}
	return 0;
}

int cairn_model_check_w4(const struct cairn_model *m, const struct cairn_part *p, const char *name,
			 const struct cairn_safetensors *st)
{
	const int32_t k = m->whole[p->cols], group = m->config.w4.group;
	const struct cairn_cut cut = cairn_model_cut(m, p);
	const struct cairn_tensor *plain = cairn_safetensors_find(st, name);
	struct tensors t;

	if (plain)
		return cairn_error(EOPNOTSUPP, "%s: %s: is stored in %s: a checkpoint that stores only some "
				   "matrices in 4 bits is not supported", plain->file, name,
				   cairn_st_dtype_name(plain->dtype));
	if (cut.rows % 16 || cut.cols % 32 || k % (group ? group : 1))
		return cairn_error(EOPNOTSUPP, "%s: a matrix of %d rows and %d columns in groups of %d is "
				   "not supported in 4 bits: rows must be a multiple of 16, columns of 32 "
				   "and of the group", name, cut.rows, cut.cols, group ? group : cut.cols);
	if (cut.cols < k && group && cut.cols % group)
		return cairn_error(EOPNOTSUPP, "%s: %d of its %d columns for each of %d ranks are not whole "
				   "groups of %d", name, cut.cols, k, m->ranks, group);
	CAIRN_TRY(find_all(m, p, name, st, &t));
	return check_order(m, name, k, st);
}

/* ---- loading ---- */

/*
 * A rank's part of a tensor, in its elements: n of them along rows of the matrix, k along its columns; with
 * padding all_n and all_k.
 */
struct region {
	int64_t first_n, n, first_k, k, all_n, all_k;
};

/*
 * Copies a region of a tensor of `bytes` per element; the copy has the order of the tensor, and is padded to
 * all_n and all_k elements by what `to` holds.
 */
static void copy_region(const struct form *form, const struct cairn_tensor *t, struct region r, size_t bytes,
			void *to)
{
	const int64_t rows = form->by_rows ? r.n : r.k, cols = form->by_rows ? r.k : r.n;
	const int64_t row = form->by_rows ? r.first_n : r.first_k;
	const int64_t col = form->by_rows ? r.first_k : r.first_n;
	const int64_t pitch = form->by_rows ? r.all_k : r.all_n;

	for (int64_t i = 0; i < rows; i++)
		memcpy((char *)to + (size_t)(i * pitch) * bytes,
		       (const char *)t->data + (size_t)((row + i) * t->shape[1] + col) * bytes,
		       (size_t)cols * bytes);
}

/* Copies a region of scales in e4m3. */
static int copy_e4m3(const struct form *form, const struct cairn_tensor *t, struct region r, uint8_t *to)
{
	copy_region(form, t, r, 1, to);
	for (int64_t i = 0; i < r.all_n * r.all_k; i++)
		if ((to[i] & 0x7f) == 0x7f)
			return cairn_error(EINVAL, "%s: %s: a scale is not a number", t->file, t->name);
	return 0;
}

/* Copies a region of the scales as f16. from: room for the padded region as it is stored, of zeros. */
static int copy_scales(const struct form *form, const struct cairn_tensor *t, struct region r, void *from,
		       uint16_t *to)
{
	const int dtype = cairn_st_to_dtype(t->dtype);

	copy_region(form, t, r, cairn_dtype_bytes(dtype), from);
	for (int64_t i = 0; i < r.all_n * r.all_k; i++) {
		double v = cairn_load(from, dtype, i);

		cairn_store(to, CAIRN_F16, i, v);
		if (!isfinite(cairn_load(to, CAIRN_F16, i)))
			return cairn_error(EINVAL, "%s: %s: a scale is %g, not a number that f16 represents",
					   t->file, t->name, v);
	}
	return 0;
}

/* What a share is cut out to, and where it is packed; one allocation, which is 0 at first. */
struct room {
	uint32_t *codes, *zeros;
	uint16_t *scales;		/* MXFP4: bytes */
	uint8_t *b, *b_scale;
	void *from;			/* scales as they are stored */
	size_t b_bytes, b_scale_bytes;
};

static size_t padded(size_t bytes)
{
	return (bytes + 63) / 64 * 64;
}

static int get_room(struct room *room, void **memory, int32_t n, int32_t k, int32_t format, int32_t group)
{
	const size_t scales = (size_t)n * (size_t)cairn_w4_groups(k, group), nk = (size_t)n * (size_t)k;
	const size_t at_zeros = padded(nk / 2), at_scales = at_zeros + padded(scales / 2);
	const size_t at_from = at_scales + padded(2 * scales), at_b = at_from + padded(4 * scales);
	char *p;

	room->b_bytes = (size_t)cairn_w4_code_bytes(n, k);
	room->b_scale_bytes = (size_t)cairn_w4_scale_bytes(format, n, k, group);
	p = calloc(1, at_b + padded(room->b_bytes) + room->b_scale_bytes);
	*memory = p;
	if (!p)
		return cairn_error(ENOMEM, "model: no memory for a matrix in 4 bits");
	room->codes = (uint32_t *)p;
	room->zeros = (uint32_t *)(p + at_zeros);
	room->scales = (uint16_t *)(p + at_scales);
	room->from = p + at_from;
	room->b = (uint8_t *)p + at_b;
	room->b_scale = room->b + padded(room->b_bytes);
	return 0;
}

/* Cuts the share out of the tensors, pads it to [n, k] and packs it. */
static int pack(const struct cairn_model *m, const struct tensors *t, const struct cairn_cut *cut, int32_t n,
		int32_t k, const struct room *room)
{
	const struct form *form = form_of(m);
	const int32_t group = m->config.w4.group, groups = cairn_w4_groups(cut->cols, group);
	const int32_t all_groups = cairn_w4_groups(k, group);
	const int64_t first_group = group ? cut->first_col / group : 0;
	const struct region codes = { cut->first_row / form->rows, cut->rows / form->rows,
				      cut->first_col / form->cols, cut->cols / form->cols,
				      n / form->rows, k / form->cols };
	const struct region scales = { cut->first_row, cut->rows, first_group, groups, n, all_groups };
	const struct region zeros = { cut->first_row / CODES_PER_WORD, cut->rows / CODES_PER_WORD,
				      first_group, groups, n / CODES_PER_WORD, all_groups };
	const struct cairn_w4_checkpoint c = {
		.codes = room->codes, .zeros = t->zeros ? room->zeros : NULL, .scales = room->scales,
		.n = n, .k = k, .group = group,
		.zeros_as_they_are = m->config.w4.stored == CAIRN_STORED_GPTQ_V2,
	};

	copy_region(form, t->codes, codes, (size_t)form->bytes, room->codes);
	if (t->zeros)
		copy_region(form, t->zeros, zeros, sizeof(uint32_t), room->zeros);
	CAIRN_TRY(form->factor ? copy_e4m3(form, t->scales, scales, (uint8_t *)room->scales) :
		  copy_scales(form, t->scales, scales, room->from, room->scales));
	return form->pack(&c, room->b, room->b_scale);
}

static int upload(const struct cairn_model *m, const struct room *room, uint8_t *b, uint8_t *b_scale,
		  void *stream)
{
	int ret = CAIRN_TABLE(m->impl, mem_copy, b, room->b, room->b_bytes, CAIRN_COPY_TO_DEVICE, stream);

	if (!ret)
		ret = CAIRN_TABLE(m->impl, mem_copy, b_scale, room->b_scale, room->b_scale_bytes,
				  CAIRN_COPY_TO_DEVICE, stream);
	if (!ret)
		return CAIRN_TABLE(m->impl, stream_sync, stream);
	m->impl->stream_sync(stream);	/* the first copy reads the room */
	return ret;
}

/* Sets the factor of a weight, which is the same for all matrices packed in it. */
static int set_factor(const struct cairn_model *m, const struct cairn_part *p, const char *name,
		      const struct cairn_place *place, float factor)
{
	float *of = m->factors_w4 ? &m->factors_w4[place->layer * CAIRN_NUM_WEIGHTS + (int32_t)p->weight] :
		    NULL;

	if (of && place->first && *of != factor)
		return cairn_error(EOPNOTSUPP, "%s: its weight_global_scale differs from that of the matrix "
				   "with which it is packed", name);
	if (of)
		*of = factor;
	return 0;
}

/* Copies the factor of a matrix of an expert, gate, up or down, which is number `nth` of its weight. */
static int upload_factor(const struct cairn_model *m, const struct cairn_part *p,
			 const struct cairn_place *place, int32_t nth, float factor, void *stream)
{
	float *to = (float *)(uintptr_t)cairn_model_expert_factors(m, place->layer, p->weight) + nth;

	CAIRN_TRY(CAIRN_TABLE(m->impl, mem_copy, to, &factor, sizeof(factor), CAIRN_COPY_TO_DEVICE, stream));
	return CAIRN_TABLE(m->impl, stream_sync, stream);
}

int cairn_model_load_w4(const struct cairn_model *m, const struct cairn_part *p, const char *name,
			const struct cairn_place *place, const struct cairn_safetensors *st, void *stream)
{
	const struct cairn_weight_w4 four = cairn_weight_w4(m, p->weight);
	const struct cairn_cut cut = cairn_model_cut(m, p);
	const int32_t group = m->config.w4.group;
	const int32_t row = (int32_t)(place->first / (int64_t)cairn_dtype_bytes(m->dtype) / four.k);
	const int32_t n = m->dims[p->rows];
	uint8_t *b = cairn_model_weight(m, place->layer, p->weight);
	uint8_t *b_scale = (uint8_t *)(uintptr_t)cairn_model_scale_w4(m, place->layer, p->weight);
	struct tensors t;
	struct room room;
	void *memory;
	int ret;

	CAIRN_TRY(find_all(m, p, name, st, &t));
	if (cairn_model_expert_factors(m, place->layer, p->weight))
		CAIRN_TRY(upload_factor(m, p, place, row / n, t.factor, stream));
	else
		CAIRN_TRY(set_factor(m, p, name, place, t.factor));
	ret = get_room(&room, &memory, n, four.k, four.format, group);
	if (!ret)
		ret = pack(m, &t, &cut, n, four.k, &room);
	if (!ret)
		ret = upload(m, &room, b + cairn_w4_code_bytes(row, four.k),
			     b_scale + cairn_w4_scale_bytes(four.format, row, four.k, group), stream);
	free(memory);
	return ret;
}

int cairn_model_load_w4_stacked(const struct cairn_model *m, const struct cairn_part *p,
				const struct cairn_stacked *s, const struct cairn_place *place, void *stream)
{
	const struct cairn_weight_w4 four = cairn_weight_w4(m, p->weight);
	uint8_t *b = cairn_model_weight(m, place->layer, p->weight);
	uint8_t *b_scale = (uint8_t *)(uintptr_t)cairn_model_scale_w4(m, place->layer, p->weight);
	struct cairn_w4_checkpoint c = { .n = four.n, .k = four.k, .group = four.group };
	struct room room;
	void *memory;
	int ret = get_room(&room, &memory, four.n, four.k, four.format, four.group);

	c.codes = room.codes;
	c.scales = room.scales;
	if (!ret)
		ret = cairn_model_unstack_codes(m, p, s, place->copy, (uint8_t *)room.codes,
						(uint8_t *)room.scales);
	if (!ret)
		ret = cairn_w4_pack_mxfp4(&c, room.b, room.b_scale);
	if (!ret)
		ret = upload(m, &room, b + place->copy * cairn_w4_code_bytes(four.n, four.k),
			     b_scale + place->copy * cairn_w4_scale_bytes(four.format, four.n, four.k,
									  four.group), stream);
	free(memory);
	return ret;
}

#define RANDOM_SCALE	0.00434		/* 0.02 divided by the deviation of codes from 0 to 15 */
#define RANDOM_E8M0	120		/* 2^-7, about 0.02 divided by the deviation of e2m1 */

int cairn_model_random_w4(const struct cairn_model *m, int32_t layer, enum cairn_weight w, uint64_t seed,
			  void *stream)
{
	uint8_t *b = cairn_model_weight(m, layer, w);
	uint8_t *b_scale = (uint8_t *)(uintptr_t)cairn_model_scale_w4(m, layer, w);
	const struct cairn_weight_w4 four = cairn_weight_w4(m, w);
	const int32_t rows = four.num * four.n;		/* of all experts: units of 16 follow each other */
	const size_t cell = (size_t)cairn_w4_cell_bytes(four.format);
	struct room room;
	void *memory;
	int ret;

	if (!four.num)
		return 0;
	ret = get_room(&room, &memory, rows, four.k, four.format, four.group);
	for (size_t i = 0; !ret && i < room.b_bytes; i += sizeof(uint64_t)) {
		uint64_t z = seed + (i + 1) * 0x9e3779b97f4a7c15;	/* splitmix64 */

		z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
		z = (z ^ z >> 27) * 0x94d049bb133111eb;
		z ^= z >> 31;
		memcpy(room.b + i, &z, sizeof(z));
	}
	for (size_t at = 0; !ret && at < room.b_scale_bytes; at += cell) {
		memset(room.b_scale + at, four.format == CAIRN_W4_MX ? RANDOM_E8M0 : 8, cell);
		for (int r = 0; r < CAIRN_W4_ROWS && four.format == CAIRN_W4_INT; r++)
			cairn_store(room.b_scale + at, CAIRN_F16, r, RANDOM_SCALE);
	}
	if (!ret)
		ret = upload(m, &room, b, b_scale, stream);
	free(memory);
	return ret;
}
