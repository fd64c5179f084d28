// SPDX-License-Identifier: Apache-2.0
/*
 * model_fill - fills the weights of a model from a checkpoint, at the places that model_layout.c gives:
 * converts, widens, quantises, and takes a rank's share
 */
#include "serving/model/load/model_load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "serving/model/checkpoint/safetensors.h"

/* Rounds the elements to the dtype `want`, chunk by chunk. */
static int load_converted(struct cairn_model *m, struct loading *l, const struct cairn_tensor *t, int want,
			  char *dst)
{
	const int dtype = cairn_st_to_dtype(t->dtype);
	size_t in = cairn_dtype_bytes(dtype), out = cairn_dtype_bytes(want), total = t->num_bytes / in;

	for (size_t first = 0, n; first < total; first += n) {
		n = total - first < CHUNK ? total - first : CHUNK;
		memcpy(l->from, (const char *)t->data + first * in,
		       n * in); /* the file guarantees no alignment */
		for (size_t i = 0; i < n; i++) {
			double v = cairn_load(l->from, dtype, (int64_t)i);

			cairn_store(l->to, want, (int64_t)i, v);
			if (isfinite(v) && !isfinite(cairn_load(l->to, want, (int64_t)i)))
				return cairn_error(EINVAL, "%s: %s: element %zu is %g, too large for %s",
						   t->file, t->name, first + i, v,
						   cairn_dtype_name(want));
		}
		CAIRN_TRY(CAIRN_TABLE(m->impl, mem_copy, dst + first * out, l->to, n * out,
				      CAIRN_COPY_TO_DEVICE, l->stream));
		CAIRN_TRY(CAIRN_TABLE(m->impl, stream_sync, l->stream));	/* l->to is reused */
	}
	return 0;
}

/* Widens this rank's part of a matrix that is stored in 8 bits, some rows at a time, to rows of `pitch`. */
static int load_widened(struct cairn_model *m, struct loading *l, const struct cairn_stored *s, int64_t pitch,
			char *dst)
{
	const int64_t most = (int64_t)CHUNK > pitch ? (int64_t)CHUNK / pitch : 1;
	const size_t row = (size_t)pitch * cairn_dtype_bytes(m->dtype);

	if (pitch > s->cut.cols)
		memset(l->to, 0, (size_t)most * row);
	for (int64_t first = 0, n; first < s->cut.rows; first += n) {
		n = s->cut.rows - first < most ? s->cut.rows - first : most;
		CAIRN_TRY(cairn_model_widen(s, m->dtype, first, n, pitch, l->to));
		CAIRN_TRY(CAIRN_TABLE(m->impl, mem_copy, dst + (size_t)first * row, l->to, (size_t)n * row,
				      CAIRN_COPY_TO_DEVICE, l->stream));
		CAIRN_TRY(CAIRN_TABLE(m->impl, stream_sync, l->stream));	/* l->to is reused */
	}
	return 0;
}

static int is_requantised(const struct loading *l, int32_t layer, int weight)
{
	return !l->requantised || l->requantised[layer * CAIRN_NUM_WEIGHTS + weight];
}

/*
 * Checks, before any allocation, that the part fits the config, and marks its weight for quantisation if the
 * part cannot keep its codes.
 */
int model_load_check_part(struct cairn_model *m, const struct cairn_part *p, const char *name,
			  struct cairn_place place, void *ctx)
{
	struct cairn_stacked stacked;
	struct cairn_stored s;
	struct loading *l = ctx;

	if (p->present == CAIRN_STACKED)
		return place.copy ? 0 : cairn_model_find_stacked(m, p, name, l->st, &stacked);
	if (cairn_weight_w4(m, p->weight).num)
		return cairn_model_check_w4(m, p, name, l->st);
	CAIRN_TRY(cairn_model_find_part(m, p, name, l->st, &s));
	if (l->requantised && !cairn_model_keeps_codes(m, p, &place, &s))
		l->requantised[place.layer * CAIRN_NUM_WEIGHTS + (int)p->weight] = 1;
	return 0;
}

int model_load_quantise(struct cairn_model *m, const struct loading *l, enum cairn_weight w, int32_t layer,
			const char *from)
{
	struct cairn_quant_fp8w_args args = {
		.size = sizeof(args), .b = cairn_model_weight(m, layer, w),
		.scale = (float *)(uintptr_t)cairn_model_scale(m, layer, w), .w = from, .dtype = m->dtype,
		.scale_kind = cairn_weights_scale_kind(m->weights),
	};
	int32_t num = cairn_weight_fp8(m, w, &args.n, &args.k);

	for (int32_t i = 0; i < num; i++) {
		CAIRN_TRY(CAIRN_TABLE(m->impl, quant_fp8w, &args, l->stream));
		args.b += (int64_t)args.n * args.k;
		args.scale += cairn_weight_scales(m, args.n, args.k);
		from += (int64_t)args.n * args.k * (int64_t)cairn_dtype_bytes(m->dtype);
		args.w = from;
	}
	return 0;
}

/* Loads a part of which a rank has only some columns. */
static int load_columns(struct cairn_model *m, struct loading *l, const struct cairn_part *p,
			struct cairn_stored *s, char *dst)
{
	const int want = cairn_weight_dtype(m, p->weight);
	void *memory;
	int ret = cairn_model_take_columns(s, m->dims[p->cols], &memory);

	if (!ret && cairn_st_to_dtype(s->tensor->dtype) != want)
		ret = load_converted(m, l, s->tensor, want, dst);
	else if (!ret)
		ret = CAIRN_TABLE(m->impl, mem_copy, dst, s->tensor->data, s->tensor->num_bytes,
				  CAIRN_COPY_TO_DEVICE, l->stream);
	m->impl->stream_sync(l->stream);	/* the copy reads the memory, even if a later one failed */
	free(memory);
	return ret;
}

/* Loads what a rank has of a part to memory in the part's dtype, with rows of `pitch` elements. */
static int load_values(struct cairn_model *m, struct loading *l, const struct cairn_part *p,
		       struct cairn_stored *s, int32_t pitch, char *dst)
{
	const int want = cairn_weight_dtype(m, p->weight);

	if (s->factors)
		return load_widened(m, l, s, pitch, dst);
	if (s->cut.cols < m->whole[p->cols])
		return load_columns(m, l, p, s, dst);
	if (cairn_st_to_dtype(s->tensor->dtype) != want)
		return load_converted(m, l, s->tensor, want, dst);
	return CAIRN_TABLE(m->impl, mem_copy, dst, s->tensor->data, s->tensor->num_bytes,
			   CAIRN_COPY_TO_DEVICE, l->stream);
}

/* Returns the bytes in which the staging holds a whole matrix [n, cols], before its codes. */
static size_t staged_bytes(const struct cairn_model *m, int32_t n, int32_t cols)
{
	return ((size_t)n * (size_t)cols * cairn_dtype_bytes(m->dtype) + 255) / 256 * 256;
}

/*
 * Quantises a whole matrix, of which the rank has some columns, with one scale per row. Codes and scales are
 * then those of a process that has the whole model.
 */
static int load_whole_rows(struct cairn_model *m, struct loading *l, const struct cairn_part *p,
			   const struct cairn_place *place, struct cairn_stored *s)
{
	const struct cairn_cut cut = s->cut;
	const int32_t cols = m->whole[p->cols];
	struct cairn_quant_fp8w_args args = {
		.size = sizeof(args), .w = l->staging, .dtype = m->dtype, .scale_kind = CAIRN_FP8_SCALE_ROWS,
		.k = cols,
	};
	uint8_t *codes = cairn_model_weight(m, place->layer, p->weight);
	int64_t nth;
	int32_t k;

	cairn_weight_fp8(m, p->weight, &args.n, &k);
	nth = place->first / (int64_t)cairn_dtype_bytes(m->dtype) / ((int64_t)args.n * k);
	args.b = (uint8_t *)l->staging + staged_bytes(m, args.n, cols);
	args.scale = (float *)(uintptr_t)cairn_model_scale(m, place->layer, p->weight) + nth * args.n;
	s->cut = (struct cairn_cut){ .rows = cut.rows, .cols = cols };
	CAIRN_TRY(load_values(m, l, p, s, cols, l->staging));
	CAIRN_TRY(CAIRN_TABLE(m->impl, quant_fp8w, &args, l->stream));
	codes += nth * args.n * k;
	return cairn_model_keep_columns(m, &cut, args.b, cols, codes, args.n, k, l->stream);
}

/* Reports that a part is loaded. */
static void advance(const struct cairn_model *m, struct loading *l, const struct cairn_part *p)
{
	l->done += (int64_t)m->dims[p->rows] * m->dims[p->cols] *
		   (int64_t)cairn_dtype_bytes(cairn_weight_dtype(m, p->weight));
	if (l->progress)
		l->progress(l->ctx, l->done, l->total);
}

/* Loads one expert's part of a tensor that holds all experts of the layer, some rows at a time. */
static int load_stacked(struct cairn_model *m, struct loading *l, const struct cairn_part *p,
			const char *name, const struct cairn_place *place)
{
	const int64_t cols = m->dims[p->cols], most = (int64_t)CHUNK > cols ? (int64_t)CHUNK / cols : 1;
	const size_t row = (size_t)cols * cairn_dtype_bytes(cairn_weight_dtype(m, p->weight));
	char *dst = (char *)cairn_model_weight(m, place->layer, p->weight) + place->first;
	struct cairn_stacked s;

	CAIRN_TRY(cairn_model_find_stacked(m, p, name, l->st, &s));
	if (cairn_weight_w4(m, p->weight).num)
		return cairn_model_load_w4_stacked(m, p, &s, place, l->stream);
	for (int64_t first = 0, n; first < m->dims[p->rows]; first += n) {
		n = m->dims[p->rows] - first < most ? m->dims[p->rows] - first : most;
		CAIRN_TRY(cairn_model_unstack(m, p, &s, place->copy, first, n, l->to));
		CAIRN_TRY(CAIRN_TABLE(m->impl, mem_copy, dst + (size_t)first * row, l->to, (size_t)n * row,
				      CAIRN_COPY_TO_DEVICE, l->stream));
		CAIRN_TRY(CAIRN_TABLE(m->impl, stream_sync, l->stream));	/* l->to is reused */
	}
	return 0;
}

/* Loads a part that has a tensor of its own and is not kept in 4 bits. */
static int load_wide_part(struct cairn_model *m, struct loading *l, const struct cairn_part *p,
			  const char *name, const struct cairn_place *place)
{
	const size_t element = cairn_dtype_bytes(cairn_weight_dtype(m, p->weight));
	struct cairn_stored s;
	int32_t n, k;
	int is_8_bits = cairn_weight_fp8(m, p->weight, &n, &k) > 0, is_absent;
	int fp8 = is_8_bits && is_requantised(l, place->layer, (int)p->weight);
	int by_rows = fp8 && cairn_model_whole_columns(m, p->weight);
	char *dst = fp8 ? l->staging : cairn_model_weight(m, place->layer, p->weight);

	dst += place->first;
	CAIRN_TRY(cairn_model_find_part(m, p, name, l->st, &s));
	is_absent = cairn_model_share(m, p) == CAIRN_SHARE_ON_0 && m->rank;
	if (is_absent || s.cut.rows < m->dims[p->rows])		/* or the last rows are padding */
		CAIRN_TRY(CAIRN_TABLE(m->impl, mem_set, dst, 0, (size_t)m->dims[p->rows] *
				      (size_t)m->dims[p->cols] * element, l->stream));
	if (by_rows)
		CAIRN_TRY(load_whole_rows(m, l, p, place, &s));
	else if (is_8_bits && !fp8)
		CAIRN_TRY(cairn_model_load_codes(m, p, place, &s, (float *)l->to, CHUNK, l->stream));
	else if (!is_absent)
		CAIRN_TRY(load_values(m, l, p, &s, m->dims[p->cols], dst));
	/* the stream orders this before the next use of the staging */
	if (fp8 && !by_rows && place->last)
		CAIRN_TRY(model_load_quantise(m, l, p->weight, place->layer, l->staging));
	return 0;
}

static int load_part(struct cairn_model *m, const struct cairn_part *p, const char *name,
		     struct cairn_place place, void *ctx)
{
	struct loading *l = ctx;

	if (p->present == CAIRN_STACKED)
		CAIRN_TRY(load_stacked(m, l, p, name, &place));
	else if (cairn_weight_w4(m, p->weight).num)
		CAIRN_TRY(cairn_model_load_w4(m, p, name, &place, l->st, l->stream));
	else
		CAIRN_TRY(load_wide_part(m, l, p, name, &place));
	advance(m, l, p);
	return 0;
}

/* Returns whether the weight must be quantised in any layer. */
static int any_requantised(const struct cairn_model *m, const struct loading *l, int weight)
{
	int any = 0;

	for (int32_t layer = 0; layer < m->config.num_hidden_layers; layer++)
		any |= is_requantised(l, layer, weight);
	return any;
}

int model_load_staging(struct cairn_model *m, struct loading *l, size_t more)
{
	size_t most = 0, bytes;
	int32_t n, k, cols;
	void *p;

	for (int w = 0; w < CAIRN_NUM_WEIGHTS; w++) {
		if (!cairn_weight_fp8(m, (enum cairn_weight)w, &n, &k) || !any_requantised(m, l, w))
			continue;
		bytes = m->elements[w] * cairn_dtype_bytes(m->dtype);
		most = bytes > most ? bytes : most;
		cols = cairn_model_whole_columns(m, (enum cairn_weight)w);
		bytes = staged_bytes(m, n, cols) + (size_t)n * (size_t)cols;
		most = bytes > most ? bytes : most;
	}
	if (!most)
		return 0;
	CAIRN_TRY(CAIRN_TABLE(m->impl, mem_alloc, &p, most + more));
	l->staging = p;
	return 0;
}

static int add_part(struct cairn_model *m, const struct cairn_part *p, const char *name,
		    struct cairn_place place, void *ctx)
{
	struct loading *l = ctx;

	(void)name;
	(void)place;
	l->total += (int64_t)m->dims[p->rows] * m->dims[p->cols] *
		    (int64_t)cairn_dtype_bytes(cairn_weight_dtype(m, p->weight));
	return 0;
}

int model_load_fill(struct cairn_model *m, struct loading *l)
{
	int ret;

	CAIRN_TRY(CAIRN_TABLE(m->impl, stream_create, &l->stream));
	ret = model_load_allocate(m, l->stream);
	if (!ret)
		ret = model_load_staging(m, l, 0);
	if (!ret)
		ret = cairn_model_each_part(m, add_part, l);
	if (!ret)
		ret = cairn_model_each_part(m, load_part, l);
	if (!ret)
		ret = CAIRN_TABLE(m->impl, stream_sync, l->stream);
	else
		m->impl->stream_sync(l->stream);	/* copies may still read the mapping */
	if (l->staging)
		m->impl->mem_free(l->staging);
	m->impl->stream_destroy(l->stream);
	return ret;
}
