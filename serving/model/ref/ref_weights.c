// SPDX-License-Identifier: Apache-2.0
/* ref_weights - the tensors of a checkpoint as doubles, and products with them (model_ref_impl.h) */
#include "serving/model/ref/model_ref_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/rows.h"

/* Decodes e4m3: a sign, four bits of exponent, three of mantissa; NaN does not occur. */
static double fp8_value(uint8_t b)
{
	int exponent = b >> 3 & 15, mantissa = b & 7;
	double v = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);

	return b >> 7 ? -v : v;
}

const struct cairn_tensor *ref_tensor(struct ref *r, int layer, const char *name)
{
	const struct cairn_tensor *t;
	char full[160];

	if (layer < 0)
		snprintf(full, sizeof(full), "%s", name);
	else
		snprintf(full, sizeof(full), "model.layers.%d.%s", layer, name);
	t = cairn_safetensors_find(r->st, full);
	if (!t)
		r->failed = cairn_error(EINVAL, "model_ref: no tensor %s", full);
	return t;
}

/* Returns the scales of rows, or of the whole matrix; NULL: the matrix has scales of blocks, or none. */
static const struct cairn_tensor *row_scales(struct ref *r, int layer, const char *name)
{
	char full[160];

	snprintf(full, sizeof(full), "model.layers.%d.%s_scale", layer, name);
	return cairn_safetensors_find(r->st, full);
}

/* Widens a matrix that is stored as e4m3, without rounding. */
static void widen_codes(struct ref *r, double *m, const struct cairn_tensor *t, int layer, const char *name)
{
	const int64_t cols = t->shape[1], across = (cols + CAIRN_FP8_BLOCK - 1) / CAIRN_FP8_BLOCK;
	const uint8_t *codes = t->data;
	const struct cairn_tensor *factors, *rows = row_scales(r, layer, name);
	double values[256];
	char full[112];

	for (int i = 0; i < 256; i++)
		values[i] = fp8_value((uint8_t)i);
	snprintf(full, sizeof(full), "%s_scale_inv", name);
	factors = rows ? rows : ref_tensor(r, layer, full);
	for (int64_t i = 0; factors && i < t->shape[0]; i++)
		for (int64_t j = 0; j < cols; j++)
			m[i * cols + j] = values[codes[i * cols + j]] *
					  ref_at(factors, rows ? (rows->rank > 1 ? i : 0) :
					     i / CAIRN_FP8_BLOCK * across + j / CAIRN_FP8_BLOCK);
}

/* The tensors of a matrix that is stored in 4 bits; zeros NULL: all are 8. */
struct stored_w4 {
	const struct cairn_tensor *codes, *scales, *zeros;
	int64_t n, k, group;
};

static uint32_t nibble(const struct cairn_tensor *t, int64_t word, int64_t at)
{
	uint32_t v;

	memcpy(&v, (const char *)t->data + 4 * word, sizeof(v));
	return v >> 4 * at & 15;
}

/* Returns element [j, l] of a matrix that is stored in 4 bits. */
static double value_w4(const struct stored_w4 *s, enum cairn_stored_w4 stored, int64_t j, int64_t l)
{
	static const int orders[][8] = { { 0, 1, 2, 3, 4, 5, 6, 7 }, { 0, 4, 1, 5, 2, 6, 3, 7 } };
	const int is_awq = stored == CAIRN_STORED_AWQ, place = orders[is_awq][j % 8];
	const int64_t nth = l / s->group, groups = s->k / s->group, across = s->n / 8;
	double code, zero = 8, scale;

	if (stored == CAIRN_STORED_PACKED) {
		code = nibble(s->codes, j * (s->k / 8) + l / 8, l % 8);
		zero = s->zeros ? nibble(s->zeros, j / 8 * groups + nth, j % 8) : 8;
		scale = ref_at(s->scales, j * groups + nth);
	} else {
		scale = ref_at(s->scales, nth * s->n + j);
		code = is_awq ? nibble(s->codes, l * across + j / 8, place) :
		       nibble(s->codes, l / 8 * s->n + j, l % 8);
		zero = nibble(s->zeros, nth * across + j / 8, place);
		zero += stored == CAIRN_STORED_GPTQ;
	}
	return (code - zero) * scale;
}

/* Fills a matrix that is stored as NVFP4. name: without ".weight". */
static void fill_nvfp4(struct ref *r, double *m, int layer, const char *name, int n, int k)
{
	static const double sizes[] = { 0, 0.5, 1, 1.5, 2, 3, 4, 6 };
	const struct cairn_tensor *codes, *scales, *factor;
	char full[112];

	snprintf(full, sizeof(full), "%s.weight_packed", name);
	codes = ref_tensor(r, layer, full);
	snprintf(full, sizeof(full), "%s.weight_scale", name);
	scales = ref_tensor(r, layer, full);
	snprintf(full, sizeof(full), "%s.weight_global_scale", name);
	factor = ref_tensor(r, layer, full);
	for (int64_t i = 0; m && !r->failed && i < (int64_t)n * k; i++) {
		int code = ((const uint8_t *)codes->data)[i / 2] >> i % 2 * 4 & 15;

		m[i] = (code & 8 ? -sizes[code & 7] : sizes[code]) *
		       fp8_value(((const uint8_t *)scales->data)[i / 16]) / ref_at(factor, 0);
	}
}

/* Returns a matrix that is stored in 4 bits. name: without ".weight". */
static double *matrix_w4(struct ref *r, int layer, const char *name, int n, int k)
{
	const enum cairn_stored_w4 stored = r->c.w4.stored;
	const int packed = stored == CAIRN_STORED_PACKED;
	struct stored_w4 s = { .n = n, .k = k, .group = r->c.w4.group ? r->c.w4.group : k };
	double *m = malloc(sizeof(*m) * (size_t)n * (size_t)k);
	char full[112];

	if (m && stored == CAIRN_STORED_NVFP4) {
		fill_nvfp4(r, m, layer, name, n, k);
		return m;
	}
	snprintf(full, sizeof(full), "%s.%s", name, packed ? "weight_packed" : "qweight");
	s.codes = ref_tensor(r, layer, full);
	snprintf(full, sizeof(full), "%s.%s", name, packed ? "weight_scale" : "scales");
	s.scales = ref_tensor(r, layer, full);
	snprintf(full, sizeof(full), "%s.%s", name, packed ? "weight_zero_point" : "qzeros");
	if (!packed || r->c.w4.has_zeros)
		s.zeros = ref_tensor(r, layer, full);
	if (!m)
		r->failed = cairn_error(ENOMEM, "model_ref: no memory");
	for (int64_t i = 0; m && !r->failed && i < (int64_t)n * k; i++)
		m[i] = value_w4(&s, stored, i / k, i % k);
	return m;
}

double *ref_matrix(struct ref *r, int layer, const char *name)
{
	const struct cairn_tensor *t = ref_tensor(r, layer, name);
	int64_t n = t ? t->shape[0] * (t->rank > 1 ? t->shape[1] : 1) : 0;
	double *m = t ? malloc(sizeof(*m) * (size_t)n) : NULL;

	if (t && !m)
		r->failed = cairn_error(ENOMEM, "model_ref: no memory");
	if (m && t->dtype == CAIRN_ST_F8_E4M3)
		widen_codes(r, m, t, layer, name);
	else if (m)
		cairn_widen(m, t->data, cairn_st_to_dtype(t->dtype), 0, n);
	return m;
}

/* Returns whether the engine can keep the matrix in 8 bits: all of attention and MLPs except routers. */
static int is_quantised(const char *name)
{
	size_t len = strlen(name);

	return !strncmp(name, "self_attn.", 10) || ((!strncmp(name, "mlp.", 4) ||
		!strncmp(name, "block_sparse_moe.", 17)) && strcmp(name + len - 5, ".gate"));
}

/* Adds e4m3's largest error to each element, times a pseudo-random r in [-1, 1]: 2^-4 of the element, or
 * 2^-10 of the row's scale if that is more. */
static void disturb(struct ref *r, double *w, int n, int k)
{
	for (int i = 0; i < n; i++) {
		double top = 0;

		for (int j = 0; j < k; j++)
			top = ref_larger(top, fabs(w[(int64_t)i * k + j]));
		for (int j = 0; j < k; j++) {
			double *x = w + (int64_t)i * k + j;

			r->rng = r->rng * 6364136223846793005u + 1442695040888963407u;
			*x += ref_larger(fabs(*x) * 0x1p-4, top / CAIRN_FP8_MAX * 0x1p-10) *
			      ((double)(r->rng >> 11) * 0x1p-52 - 1);
		}
	}
}

static enum cairn_fp8_scale scale_kind(const struct ref *r)
{
	return (enum cairn_fp8_scale)cairn_weights_scale_kind(r->weights);
}

/* Replaces w [n, k] by its values after quant_fp8w. */
static void quantise(struct ref *r, double *w, int n, int k, enum cairn_fp8_scale kind)
{
	int across;
	struct cairn_quant_fp8w_args args = {
		.size = sizeof(args), .n = n, .k = k, .dtype = CAIRN_F32,
		.scale_kind = kind,
	};
	int64_t total = (int64_t)n * k;
	float *plain;

	across = (k + CAIRN_FP8_BLOCK - 1) / CAIRN_FP8_BLOCK;
	plain = aligned_alloc(64, (size_t)(total * 4 + 63) / 64 * 64);

	args.b = aligned_alloc(64, (size_t)(total + 63) / 64 * 64);
	args.scale = malloc(sizeof(float) * (size_t)(n * across));
	for (int64_t i = 0; plain && i < total; i++)
		plain[i] = (float)w[i];
	args.w = plain;
	if (!plain || !args.b || !args.scale)
		r->failed = cairn_error(ENOMEM, "model_ref: no memory");
	else
		r->failed = cairn_quant_fp8w_ref(&args, NULL);
	for (int64_t i = 0; !r->failed && i < total; i++) {
		int row = (int)(i / k), column = (int)(i % k);
		int piece = column / CAIRN_FP8_BLOCK;
		float scale = args.scale[kind == CAIRN_FP8_SCALE_ROWS ? row :
					 kind == CAIRN_FP8_SCALE_PIECES ? piece * n + row :
					 row / CAIRN_FP8_BLOCK * across + piece];

		w[i] = fp8_value(args.b[i]) * (double)scale;
	}
	free(plain);
	free(args.b);
	free(args.scale);
}

/* Returns whether the checkpoint has the matrix in 8 bits, with scales of the kind that the engine keeps. */
static int is_kept(struct ref *r, int layer, const char *full)
{
	const struct cairn_tensor *t = ref_tensor(r, layer, full);

	return t && t->dtype == CAIRN_ST_F8_E4M3 &&
	       (scale_kind(r) == CAIRN_FP8_SCALE_ROWS) == (row_scales(r, layer, full) != NULL);
}

/*
 * Quantises a part of a packed matrix. With row scales, or if each part has a multiple of 128 rows, the parts
 * are independent; here q, k and v must meet that condition. Otherwise gate and up are quantised together,
 * gate first. An independent part that is stored in 8 bits with scales of the same kind keeps its values;
 * either all of q, k and v (or of gate and up) are stored in 8 bits, or none.
 */
static void quantise_packed(struct ref *r, double *w, int n, int k, int layer, const char *name,
			    const char *full)
{
	static const char *const pairs[][2] = { { "gate_proj", "up_proj" }, { "w1", "w3" } };
	const int64_t size = (int64_t)n * k;

	for (int i = 0; i < 4 && scale_kind(r) == CAIRN_FP8_SCALE_BLOCKS && n % CAIRN_FP8_BLOCK; i++) {
		const char *end = strrchr(name, '.') + 1;
		double *other, *both;
		char second[96];

		if (strcmp(end, pairs[i / 2][i % 2]))
			continue;
		snprintf(second, sizeof(second), "%.*s%s.weight", (int)(end - name), name,
			 pairs[i / 2][!(i % 2)]);
		other = ref_matrix(r, layer, second);
		both = malloc(sizeof(*both) * (size_t)(2 * size));
		if (other && both) {
			memcpy(both + i % 2 * size, w, sizeof(*w) * (size_t)size);
			memcpy(both + !(i % 2) * size, other, sizeof(*w) * (size_t)size);
			quantise(r, both, 2 * n, k, CAIRN_FP8_SCALE_BLOCKS);
			memcpy(w, both + i % 2 * size, sizeof(*w) * (size_t)size);
		} else if (!both) {
			r->failed = cairn_error(ENOMEM, "model_ref: no memory");
		}
		free(other);
		free(both);
		return;
	}
	if (!is_kept(r, layer, full))
		quantise(r, w, n, k, scale_kind(r));
}

/*
 * Returns the activations in [rows, k] as a product in 8 bits sees them, or with noise instead of
 * quantisation; the caller frees them.
 */
static double *rows_in_8_bits(struct ref *r, const double *in, int rows, int k)
{
	const size_t bytes = sizeof(*in) * (size_t)rows * (size_t)k;
	double *x = malloc(bytes);

	if (!x) {
		r->failed = cairn_error(ENOMEM, "model_ref: no memory");
		return NULL;
	}
	memcpy(x, in, bytes);
	if (r->disturbs_rows) {
		disturb(r, x, rows, k);
		return x;
	}
	quantise(r, x, rows, k, scale_kind(r) == CAIRN_FP8_SCALE_ROWS ? CAIRN_FP8_SCALE_ROWS :
		 CAIRN_FP8_SCALE_PIECES);
	return x;
}

/* Returns a quantised matrix; the caller frees it. */
static double *quantised(struct ref *r, int n, int k, int layer, const char *name, const char *full)
{
	size_t bytes = sizeof(double) * (size_t)n * (size_t)k;
	struct kept *found = *r->kept;
	double *w;

	while (found && (found->layer != layer || strcmp(found->name, full)))
		found = found->next;
	if (found) {
		w = malloc(bytes);
		if (!w)
			r->failed = cairn_error(ENOMEM, "model_ref: no memory");
		return w ? memcpy(w, found->w, bytes) : NULL;
	}
	w = ref_matrix(r, layer, full);
	if (!w)
		return NULL;
	quantise_packed(r, w, n, k, layer, name, full);
	found = r->is_first && !r->failed ? malloc(sizeof(*found) + bytes) : NULL;
	if (found) {
		found->layer = layer;
		snprintf(found->name, sizeof(found->name), "%s", full);
		memcpy(found->w, w, bytes);
		found->next = *r->kept;
		*r->kept = found;
	}
	return w;
}

void ref_project(struct ref *r, double *out, const double *in, int rows, int n, int k, int layer,
		    const char *name, int has_bias, int exact)
{
	int is_fp8 = cairn_weights_are_fp8(r->weights) && is_quantised(name);
	int is_w4 = r->c.w4.stored && is_quantised(name);
	int is_w8a8 = (r->disturbs_rows || cairn_weights_are_w8a8(r->weights)) && is_quantised(name) &&
		      !strstr(name, "experts.");
	double *w, *x = NULL, *b = NULL;
	char full[96];

	snprintf(full, sizeof(full), "%s.weight", name);
	if (is_w4)
		w = matrix_w4(r, layer, name, n, k);
	else
		w = is_fp8 ? quantised(r, n, k, layer, name, full) : ref_matrix(r, layer, full);
	/* an operation may round the scale and the element to the dtype (gemm_w4.h) */
	for (int64_t i = 0; w && is_w4 && r->noise > 0 && i < (int64_t)n * k; i++)
		w[i] = ref_rounded(r, ref_rounded(r, w[i]));
	snprintf(full, sizeof(full), "%s.bias", name);
	if (has_bias)
		b = ref_matrix(r, layer, full);
	if (w && r->weight_noise > 0 && is_quantised(name))
		disturb(r, w, n, k);
	if (w && is_w8a8)
		x = rows_in_8_bits(r, in, rows, k);
	if (w && (x || !is_w8a8))
		cairn_products(out, n, x ? x : in, k, rows, w, n, k);
	for (int64_t i = 0; b && i < (int64_t)rows * n; i++)
		out[i] += b[i % n];
	for (int64_t i = 0; w && !exact && i < (int64_t)rows * n; i++)
		out[i] = ref_rounded(r, out[i]);
	free(x);
	free(w);
	free(b);
}

void ref_norm(struct ref *r, double *out, const double *in, int rows, int n, int rest, int layer,
		 const char *name)
{
	const double eps = strstr(name, "_a_layernorm") ? 1e-6 : r->c.rms_norm_eps;
	const struct cairn_tensor *w = ref_tensor(r, layer, name);

	for (int i = 0; w && i < rows; i++, in += n + rest, out += n + rest) {
		double sum = cairn_dot(in, in, n);

		for (int j = 0; j < n; j++)
			out[j] = ref_rounded(r, in[j] / sqrt(sum / n + eps) *
					 (r->c.norm_offset + ref_at(w, j)));
	}
}
