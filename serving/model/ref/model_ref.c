// SPDX-License-Identifier: Apache-2.0
/* model_ref - the forward pass in double precision, with optional rounding noise (model_ref.h) */
#include "serving/model/ref/model_ref.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/rows.h"
#include "serving/model/checkpoint/config.h"
#include "serving/model/model.h"
#include "serving/model/checkpoint/safetensors.h"

/* Matrices after quantisation, stored by the first run and reused by later ones. */
struct kept {
	struct kept *next;
	int layer;
	char name[96];
	double w[];
};

struct ref {
	struct cairn_model_config c;
	struct cairn_safetensors *st;
	enum cairn_weights weights;
	double noise, weight_noise;	/* weight_noise: for matrix elements, as from quantisation */
	uint64_t rng;
	struct kept **kept;
	int is_first;
	int failed;
};

/* Decodes e4m3: a sign, four bits of exponent, three of mantissa; NaN does not occur. */
static double fp8_value(uint8_t b)
{
	int exponent = b >> 3 & 15, mantissa = b & 7;
	double v = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);

	return b >> 7 ? -v : v;
}

/* Applies the noise. Called wherever the engine rounds. */
static double rounded(struct ref *r, double x)
{
	r->rng = r->rng * 6364136223846793005u + 1442695040888963407u;
	return x * (1 + r->noise * ((double)(r->rng >> 11) * 0x1p-52 - 1));
}

static const struct cairn_tensor *tensor(struct ref *r, int layer, const char *name)
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

static double at(const struct cairn_tensor *t, int64_t i)
{
	return cairn_load(t->data, cairn_st_to_dtype(t->dtype), i);
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
	factors = rows ? rows : tensor(r, layer, full);
	for (int64_t i = 0; factors && i < t->shape[0]; i++)
		for (int64_t j = 0; j < cols; j++)
			m[i * cols + j] = values[codes[i * cols + j]] *
					  at(factors, rows ? (rows->rank > 1 ? i : 0) :
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
		scale = at(s->scales, j * groups + nth);
	} else {
		scale = at(s->scales, nth * s->n + j);
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
	codes = tensor(r, layer, full);
	snprintf(full, sizeof(full), "%s.weight_scale", name);
	scales = tensor(r, layer, full);
	snprintf(full, sizeof(full), "%s.weight_global_scale", name);
	factor = tensor(r, layer, full);
	for (int64_t i = 0; m && !r->failed && i < (int64_t)n * k; i++) {
		int code = ((const uint8_t *)codes->data)[i / 2] >> i % 2 * 4 & 15;

		m[i] = (code & 8 ? -sizes[code & 7] : sizes[code]) *
		       fp8_value(((const uint8_t *)scales->data)[i / 16]) / at(factor, 0);
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
	s.codes = tensor(r, layer, full);
	snprintf(full, sizeof(full), "%s.%s", name, packed ? "weight_scale" : "scales");
	s.scales = tensor(r, layer, full);
	snprintf(full, sizeof(full), "%s.%s", name, packed ? "weight_zero_point" : "qzeros");
	if (!packed || r->c.w4.has_zeros)
		s.zeros = tensor(r, layer, full);
	if (!m)
		r->failed = cairn_error(ENOMEM, "model_ref: no memory");
	for (int64_t i = 0; m && !r->failed && i < (int64_t)n * k; i++)
		m[i] = value_w4(&s, stored, i / k, i % k);
	return m;
}

/* Returns a tensor as doubles; the caller frees it. NULL: r->failed is set. */
static double *matrix(struct ref *r, int layer, const char *name)
{
	const struct cairn_tensor *t = tensor(r, layer, name);
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

/* fmax() without NaN handling, and inlined: fmax() is a library call. */
static double larger(double a, double b)
{
	return a > b ? a : b;
}

/* Adds e4m3's largest error to each element, times a pseudo-random r in [-1, 1]: 2^-4 of the element, or
 * 2^-10 of the row's scale if that is more. */
static void disturb(struct ref *r, double *w, int n, int k)
{
	for (int i = 0; i < n; i++) {
		double top = 0;

		for (int j = 0; j < k; j++)
			top = larger(top, fabs(w[(int64_t)i * k + j]));
		for (int j = 0; j < k; j++) {
			double *x = w + (int64_t)i * k + j;

			r->rng = r->rng * 6364136223846793005u + 1442695040888963407u;
			*x += larger(fabs(*x) * 0x1p-4, top / CAIRN_FP8_MAX * 0x1p-10) *
			      ((double)(r->rng >> 11) * 0x1p-52 - 1);
		}
	}
}

/* Replaces w [n, k] by its values after quant_fp8w. */
static void quantise(struct ref *r, double *w, int n, int k)
{
	int blocks = r->weights == CAIRN_WEIGHTS_FP8_BLOCKS, across;
	struct cairn_quant_fp8w_args args = {
		.size = sizeof(args), .n = n, .k = k, .dtype = CAIRN_F32,
		.scale_kind = blocks ? CAIRN_FP8_SCALE_BLOCKS : CAIRN_FP8_SCALE_ROWS,
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
		float scale = args.scale[blocks ? row / CAIRN_FP8_BLOCK * across +
					 column / CAIRN_FP8_BLOCK : row];

		w[i] = fp8_value(args.b[i]) * (double)scale;
	}
	free(plain);
	free(args.b);
	free(args.scale);
}

/* Returns whether the checkpoint has the matrix in 8 bits, with scales of the kind that the engine keeps. */
static int is_kept(struct ref *r, int layer, const char *full)
{
	const struct cairn_tensor *t = tensor(r, layer, full);

	return t && t->dtype == CAIRN_ST_F8_E4M3 &&
	       (r->weights == CAIRN_WEIGHTS_FP8) == (row_scales(r, layer, full) != NULL);
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

	for (int i = 0; i < 4 && r->weights == CAIRN_WEIGHTS_FP8_BLOCKS && n % CAIRN_FP8_BLOCK; i++) {
		const char *end = strrchr(name, '.') + 1;
		double *other, *both;
		char second[96];

		if (strcmp(end, pairs[i / 2][i % 2]))
			continue;
		snprintf(second, sizeof(second), "%.*s%s.weight", (int)(end - name), name,
			 pairs[i / 2][!(i % 2)]);
		other = matrix(r, layer, second);
		both = malloc(sizeof(*both) * (size_t)(2 * size));
		if (other && both) {
			memcpy(both + i % 2 * size, w, sizeof(*w) * (size_t)size);
			memcpy(both + !(i % 2) * size, other, sizeof(*w) * (size_t)size);
			quantise(r, both, 2 * n, k);
			memcpy(w, both + i % 2 * size, sizeof(*w) * (size_t)size);
		} else if (!both) {
			r->failed = cairn_error(ENOMEM, "model_ref: no memory");
		}
		free(other);
		free(both);
		return;
	}
	if (!is_kept(r, layer, full))
		quantise(r, w, n, k);
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
	w = matrix(r, layer, full);
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

/* out[i,:] = in[i,:] W^T + b, W: [n, k] */
static void project(struct ref *r, double *out, const double *in, int rows, int n, int k, int layer,
		    const char *name, int has_bias, int exact)
{
	int is_fp8 = cairn_weights_are_fp8(r->weights) && is_quantised(name);
	int is_w4 = r->c.w4.stored && is_quantised(name);
	double *w, *b = NULL;
	char full[96];

	snprintf(full, sizeof(full), "%s.weight", name);
	if (is_w4)
		w = matrix_w4(r, layer, name, n, k);
	else
		w = is_fp8 ? quantised(r, n, k, layer, name, full) : matrix(r, layer, full);
	/* an operation may round the scale and the element to the dtype (gemm_w4.h) */
	for (int64_t i = 0; w && is_w4 && r->noise > 0 && i < (int64_t)n * k; i++)
		w[i] = rounded(r, rounded(r, w[i]));
	snprintf(full, sizeof(full), "%s.bias", name);
	if (has_bias)
		b = matrix(r, layer, full);
	if (w && r->weight_noise > 0 && is_quantised(name))
		disturb(r, w, n, k);
	if (w)
		cairn_products(out, n, in, k, rows, w, n, k);
	for (int64_t i = 0; b && i < (int64_t)rows * n; i++)
		out[i] += b[i % n];
	for (int64_t i = 0; w && !exact && i < (int64_t)rows * n; i++)
		out[i] = rounded(r, out[i]);
	free(w);
	free(b);
}

/*
 * Normalises rows of n elements, each followed by `rest` elements that stay unchanged. The norms of
 * compressed queries and of latents have transformers' default eps, not the config's.
 */
static void norm(struct ref *r, double *out, const double *in, int rows, int n, int rest, int layer,
		 const char *name)
{
	const double eps = strstr(name, "_a_layernorm") ? 1e-6 : r->c.rms_norm_eps;
	const struct cairn_tensor *w = tensor(r, layer, name);

	for (int i = 0; w && i < rows; i++, in += n + rest, out += n + rest) {
		double sum = cairn_dot(in, in, n);

		for (int j = 0; j < n; j++)
			out[j] = rounded(r, in[j] / sqrt(sum / n + eps) *
					 (r->c.norm_offset + at(w, j)));
	}
}

/*
 * Rotates the last `dim` elements of each head of head_dim. Pairs are (i, i + dim / 2), or
 * with latent attention adjacent elements.
 */
static void rotate(struct ref *r, double *x, int rows, int heads, int head_dim, int dim, const float *freq)
{
	int latent = r->c.latent.kv_lora_rank > 0, half = dim / 2;
	double factor = r->c.rope.attention_factor;

	for (int i = 0; i < rows * heads; i++) {
		for (int p = 0; p < half; p++) {
			double *a = x + (int64_t)(i + 1) * head_dim - dim + (latent ? 2 * p : p);
			double *b = a + (latent ? 1 : half), angle = i / heads * (double)freq[p], x0 = *a;
			double s = sin(angle) * factor, c = cos(angle) * factor;

			*a = rounded(r, x0 * c - *b * s);
			*b = rounded(r, *b * c + x0 * s);
		}
	}
}

static double capped(double x, double cap)
{
	return cap > 0 ? cap * tanh(x / cap) : x;
}

/* Computes causal attention. window 0: none; sinks: one for each head, or NULL. */
static void attend(struct ref *r, double *out, const double *q, const double *k, const double *v, int rows,
		   int window, const struct cairn_tensor *sinks, double *p)
{
	int hq = r->c.num_attention_heads, hk = r->c.num_key_value_heads, d = r->c.head_dim;
	double scale = 1 / sqrt(r->c.query_scalar > 0 ? r->c.query_scalar : d);

	for (int i = 0; i < rows * hq; i++) {
		int row = i / hq, g = i % hq / (hq / hk), first = window && row >= window ?
			row - window + 1 : 0;
		double max = -INFINITY, sum = 0, kept_share = 1;

		for (int j = first; j <= row; j++) {
			p[j] = cairn_dot(q + i * d, k + (j * hk + g) * d, d) * scale;
			p[j] = capped(p[j], r->c.attn_softcap);
			max = fmax(max, p[j]);
		}
		for (int j = first; j <= row; j++) {
			p[j] = exp(p[j] - max);
			sum += p[j];
			p[j] = rounded(r, p[j]);
		}
		if (sinks)	/* a key whose value is 0, added to finished attention */
			kept_share = 1 / (1 + exp(at(sinks, i % hq) - max) / sum);
		for (int e = 0; e < d; e++) {
			double o = 0;

			for (int j = first; j <= row; j++)
				o += p[j] * v[(j * hk + g) * d + e];
			out[i * d + e] = rounded(r, o / sum);
			if (sinks)
				out[i * d + e] = rounded(r, out[i * d + e] * kept_share);
		}
	}
}

/* Normalises each head of q or k, without rounding: the rotation follows. */
static void head_norm(struct ref *r, double *x, int heads, int layer, const char *name)
{
	double noise = r->noise;

	r->noise = 0;
	norm(r, x, x, heads, r->c.head_dim, 0, layer, name);
	r->noise = noise;
}

static void attention(struct ref *r, double *h, double *buf, int rows, int layer, const float *freq)
{
	const struct cairn_model_config *c = &r->c;
	int n = c->hidden_size, d = c->head_dim, hq = c->num_attention_heads, hk = c->num_key_value_heads;
	double *q = buf, *k = q + rows * hq * d, *v = k + rows * hk * d, *o = v + rows * hk * d;
	double *p = o + rows * hq * d;

	project(r, q, h, rows, hq * d, n, layer, "self_attn.q_proj", c->qkv_bias, 0);
	project(r, k, h, rows, hk * d, n, layer, "self_attn.k_proj", c->qkv_bias, 0);
	project(r, v, h, rows, hk * d, n, layer, "self_attn.v_proj", c->qkv_bias, 0);
	if (c->head_norms) {
		head_norm(r, q, rows * hq, layer, "self_attn.q_norm.weight");
		head_norm(r, k, rows * hk, layer, "self_attn.k_norm.weight");
	}
	rotate(r, q, rows, hq, d, d, freq);
	rotate(r, k, rows, hk, d, d, freq);
	attend(r, o, q, k, v, rows, cairn_layer_window(c, layer),
	       c->sinks ? tensor(r, layer, "self_attn.sinks") : NULL, p);
	project(r, h, o, rows, n, hq * d, layer, "self_attn.o_proj", c->o_bias, 0);
}

/*
 * Attends in the absorbed form of cluster_mla.h: the result is the same as with keys and values per head, but
 * the noise is applied where an absorbing engine rounds. w: kv_b, [heads, nope + v, rank].
 */
static void attend_latent(struct ref *r, double *out, const double *q, const double *kv, const double *w,
			  int rows, double *buf)
{
	const struct cairn_latent_config *l = &r->c.latent;
	int rank = l->kv_lora_rank, width = rank + l->rope_dim, heads = r->c.num_attention_heads;
	double *ql = buf, *oc = ql + width, *p = oc + rank, scale = cairn_softmax_scale(&r->c);

	for (int nth = 0; nth < rows * heads; nth++) {	/* head by head: its weights stay in the cache */
		int h = nth / rows, row = nth % rows, i = row * heads + h;
		const double *qh = q + (int64_t)i * (l->nope_dim + l->rope_dim);
		const double *wh = w + (int64_t)h * (l->nope_dim + l->v_dim) * rank;
		double *v = out + (int64_t)i * l->v_dim, max = -INFINITY, sum = 0;

		memset(buf, 0, sizeof(*buf) * (size_t)(width + rank));
		cairn_add_rows(ql, qh, wh, rank, l->nope_dim, rank);
		for (int j = 0; j < rank; j++)
			ql[j] = rounded(r, ql[j]);
		memcpy(ql + rank, qh + l->nope_dim, sizeof(*ql) * (size_t)l->rope_dim);
		cairn_products(p, 1, kv, width, row + 1, ql, 1, width);
		for (int j = 0; j <= row; j++) {
			p[j] *= scale;
			max = larger(max, p[j]);
		}
		for (int j = 0; j <= row; j++) {
			p[j] = exp(p[j] - max);
			sum += p[j];
			p[j] = rounded(r, p[j]);
		}
		cairn_add_rows(oc, p, kv, width, row + 1, rank);
		for (int e = 0; e < rank; e++)
			oc[e] = rounded(r, oc[e] / sum);
		cairn_products(v, 1, wh + l->nope_dim * rank, rank, l->v_dim, oc, 1, rank);
		for (int e = 0; e < l->v_dim; e++)
			v[e] = rounded(r, v[e]);
	}
}

static void latent_attention(struct ref *r, double *h, double *buf, int rows, int layer, const float *freq)
{
	const struct cairn_latent_config *l = &r->c.latent;
	int n = r->c.hidden_size, heads = r->c.num_attention_heads, width = l->kv_lora_rank + l->rope_dim;
	int nq = heads * r->c.head_dim;
	double *q = buf, *kv = q + (int64_t)rows * nq, *o = kv + rows * width;
	double *qa = o + (int64_t)rows * heads * l->v_dim, *rest = qa + rows * l->q_lora_rank;
	double *w = matrix(r, layer, "self_attn.kv_b_proj.weight");

	if (l->q_lora_rank) {
		project(r, qa, h, rows, l->q_lora_rank, n, layer, "self_attn.q_a_proj", 0, 0);
		norm(r, qa, qa, rows, l->q_lora_rank, 0, layer, "self_attn.q_a_layernorm.weight");
		project(r, q, qa, rows, nq, l->q_lora_rank, layer, "self_attn.q_b_proj", 0, 0);
	} else {
		project(r, q, h, rows, nq, n, layer, "self_attn.q_proj", 0, 0);
	}
	project(r, kv, h, rows, width, n, layer, "self_attn.kv_a_proj_with_mqa", 0, 0);
	norm(r, kv, kv, rows, l->kv_lora_rank, l->rope_dim, layer, "self_attn.kv_a_layernorm.weight");
	rotate(r, q, rows, heads, r->c.head_dim, l->rope_dim, freq);
	rotate(r, kv, rows, 1, width, l->rope_dim, freq);
	if (w)
		attend_latent(r, o, q, kv, w, rows, rest);
	project(r, h, o, rows, n, heads * l->v_dim, layer, "self_attn.o_proj", 0, 0);
	free(w);
}

static double activated(const struct cairn_model_config *c, double x)
{
	if (c->hidden_act == CAIRN_ACT_GELU_TANH)
		return x / 2 * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
	return x / (1 + exp(-x));
}

/*
 * Computes out += factor * MLP(in). The input of down is rounded; the results of gate, up and down are
 * rounded unless fp32 is set.
 */
static void mlp(struct ref *r, double *out, const double *in, double *buf, int rows, int inner, int layer,
		const char *const names[3], const char *prefix, double factor, int fp32)
{
	int n = r->c.hidden_size;
	double *gate = buf, *up = gate + rows * inner, *down = up + rows * inner;
	char full[64];

	snprintf(full, sizeof(full), "%s%s", prefix, names[0]);
	project(r, gate, in, rows, inner, n, layer, full, r->c.mlp_bias, fp32);
	snprintf(full, sizeof(full), "%s%s", prefix, names[1]);
	project(r, up, in, rows, inner, n, layer, full, r->c.mlp_bias, fp32);
	for (int i = 0; i < rows * inner; i++)
		gate[i] = rounded(r, activated(&r->c, gate[i]) * up[i] * factor);
	snprintf(full, sizeof(full), "%s%s", prefix, names[2]);
	project(r, down, gate, rows, n, inner, layer, full, r->c.mlp_bias, fp32);
	for (int i = 0; i < rows * n; i++)
		out[i] += down[i];
}

/* Returns element `at` of the experts of a layer that are one tensor, stored as MXFP4. */
static double four(const struct cairn_tensor *blocks, const struct cairn_tensor *scales, int64_t at)
{
	int byte = ((const uint8_t *)blocks->data)[at / 2], code = at % 2 ? byte >> 4 : byte & 15;
	int scale = ((const uint8_t *)scales->data)[at / 32], exponent = code >> 1 & 3;
	double v = exponent ? ldexp(2 + (code & 1), exponent - 2) : (code & 1) / 2.0;

	return ldexp(code >> 3 ? -v : v, scale - 127);
}

/* Computes out = in W^T + b for one expert of gpt-oss: W is expert number e, [n, k]. */
static void stacked(struct ref *r, double *out, const double *in, int e, int n, int k, int layer,
		    const char *name)
{
	const struct cairn_tensor *plain, *blocks = NULL, *scales = NULL, *bias;
	char full[96], in_layer[128];

	snprintf(full, sizeof(full), "%s_bias", name);
	bias = tensor(r, layer, full);
	snprintf(in_layer, sizeof(in_layer), "model.layers.%d.%s", layer, name);
	plain = cairn_safetensors_find(r->st, in_layer);
	if (!plain) {
		snprintf(full, sizeof(full), "%s_blocks", name);
		blocks = tensor(r, layer, full);
		snprintf(full, sizeof(full), "%s_scales", name);
		scales = tensor(r, layer, full);
	}
	for (int64_t i = 0; i < n && bias && (plain || (blocks && scales)); i++) {
		out[i] = at(bias, (int64_t)e * n + i);
		for (int64_t j = 0; j < k; j++)
			out[i] += in[j] * (plain ? at(plain, ((int64_t)e * k + j) * n + i) :
					   four(blocks, scales, ((int64_t)e * n + i) * k + j));
	}
}

/* Adds an expert of gpt-oss, whose gates and ups alternate. */
static void gpt_oss_expert(struct ref *r, double *out, const double *in, double *buf, int e, double share,
			   int layer)
{
	const struct cairn_experts_config *x = &r->c.experts;
	int n = r->c.hidden_size, inner = x->intermediate_size;
	double *h = buf + 2 * inner, *y = h + inner;

	stacked(r, buf, in, e, 2 * inner, n, layer, "mlp.experts.gate_up_proj");
	for (int i = 0; i < inner; i++) {
		double gate = fmin(buf[2 * i], x->clamp_limit), up = buf[2 * i + 1];

		up = fmax(fmin(up, x->clamp_limit), -x->clamp_limit);
		h[i] = rounded(r, (up + 1) * gate / (1 + exp(-x->clamp_alpha * gate)));
	}
	stacked(r, y, h, e, n, inner, layer, "mlp.experts.down_proj");
	for (int i = 0; i < n; i++)
		out[i] += share * y[i];
}

static const char *const proj[] = { "gate_proj", "up_proj", "down_proj" };

/* Sets c to -INFINITY for experts outside the groups with the largest scores. */
static void keep_groups(const struct cairn_experts_config *x, double *c)
{
	int size = x->num_experts / x->num_groups;
	double score[CAIRN_MAX_EXPERTS];

	for (int g = 0; g < x->num_groups; g++) {
		double first = -INFINITY, second = -INFINITY;

		for (int e = g * size; e < (g + 1) * size; e++) {
			second = fmax(second, fmin(first, c[e]));
			first = fmax(first, c[e]);
		}
		score[g] = x->sigmoid ? first + second : first;
	}
	for (int g = 0; g < x->num_groups; g++) {
		int better = 0;

		for (int other = 0; other < x->num_groups; other++)
			better += score[other] > score[g] || (score[other] == score[g] && other < g);
		for (int e = g * size; e < (g + 1) * size && better >= x->groups_per_token; e++)
			c[e] = -INFINITY;
	}
}

/* Chooses a token's experts from the logits p, and turns p into scores. share: the experts' weights. */
static void route(struct ref *r, double *p, int layer, int *chosen, double *share)
{
	const struct cairn_experts_config *x = &r->c.experts;
	const struct cairn_tensor *bias = x->sigmoid ? tensor(r, layer, "mlp.gate.e_score_correction_bias") :
					  NULL;
	double c[CAIRN_MAX_EXPERTS], all = 0, sum = x->sigmoid ? 1e-20 : 0, top = p[0];

	for (int e = 1; e < x->num_experts; e++)
		top = fmax(top, p[e]);
	for (int e = 0; e < x->num_experts; e++) {
		p[e] = x->sigmoid ? 1 / (1 + exp(-p[e])) : exp(p[e] - top);
		c[e] = p[e] + (bias ? at(bias, e) : 0);
		all += p[e];
	}
	if (x->num_groups)
		keep_groups(x, c);
	for (int i = 0; i < x->per_token; i++) {
		chosen[i] = 0;
		for (int e = 1; e < x->num_experts; e++)
			chosen[i] = c[e] > c[chosen[i]] ? e : chosen[i];
		sum += p[chosen[i]];
		c[chosen[i]] = -INFINITY;
	}
	for (int i = 0; i < x->per_token; i++)
		share[i] = p[chosen[i]] / (x->normalize ? sum : x->sigmoid ? 1 : all) * x->scaling;
}

/* Adds the experts of one token. */
static void experts(struct ref *r, double *out, const double *in, double *buf, int layer)
{
	static const char *const w[] = { "w1", "w3", "w2" };
	const struct cairn_experts_config *x = &r->c.experts;
	int mixtral = r->c.arch == CAIRN_ARCH_MIXTRAL;
	int chosen[CAIRN_MAX_EXPERTS];
	double share[CAIRN_MAX_EXPERTS];
	char name[48];

	project(r, buf, in, 1, x->num_experts, r->c.hidden_size, layer,
		mixtral ? "block_sparse_moe.gate" : x->biases ? "mlp.router" : "mlp.gate", x->biases, 1);
	route(r, buf, layer, chosen, share);
	for (int i = 0; i < x->per_token; i++) {
		if (x->biases) {
			gpt_oss_expert(r, out, in, buf, chosen[i], share[i], layer);
			continue;
		}
		snprintf(name, sizeof(name), "%s.experts.%d.", mixtral ? "block_sparse_moe" : "mlp",
			 chosen[i]);
		mlp(r, out, in, buf, 1, x->intermediate_size, layer, mixtral ? w : proj, name, share[i], 1);
	}
}

static void layer_forward(struct ref *r, double *res, double *buf, int rows, int layer, const float *freq)
{
	const struct cairn_experts_config *x = &r->c.experts;
	int n = r->c.hidden_size, latent = r->c.latent.kv_lora_rank > 0, four = r->c.block_norms;
	double *h = buf, *sum = h + rows * n, *rest = sum + rows * n;

	norm(r, h, res, rows, n, 0, layer, "input_layernorm.weight");
	(latent ? latent_attention : attention)(r, h, rest, rows, layer, freq);
	if (four)
		norm(r, h, h, rows, n, 0, layer, "post_attention_layernorm.weight");
	for (int i = 0; i < rows * n; i++)
		res[i] = rounded(r, res[i] + h[i]);
	norm(r, h, res, rows, n, 0, layer,
	     four ? "pre_feedforward_layernorm.weight" : "post_attention_layernorm.weight");
	memset(sum, 0, sizeof(*sum) * (size_t)(rows * n));
	if (!x->num_experts || layer < x->dense_layers) {
		mlp(r, sum, h, rest, rows, r->c.intermediate_size, layer, proj, "mlp.", 1, 0);
	} else {
		for (int i = 0; i < rows; i++)
			experts(r, sum + i * n, h + i * n, rest, layer);
		if (x->shared_intermediate_size)
			mlp(r, sum, h, rest, rows, x->shared_intermediate_size, layer, proj,
			    "mlp.shared_experts.", 1, 1);
	}
	for (int i = 0; i < rows * n && four; i++)
		sum[i] = rounded(r, sum[i]);
	if (four)
		norm(r, sum, sum, rows, n, 0, layer, "post_feedforward_layernorm.weight");
	for (int i = 0; i < rows * n; i++)
		res[i] = rounded(r, res[i] + sum[i]);
}

/* Returns the maximum number of doubles that layer_forward() puts into buf. */
static int64_t buffer_size(const struct cairn_model_config *c, int64_t rows)
{
	const struct cairn_latent_config *l = &c->latent;
	int64_t inner = c->intermediate_size, heads = c->num_attention_heads;
	int64_t keys = 2 * c->num_key_value_heads * c->head_dim, v_dim = c->head_dim, attn;

	if (l->kv_lora_rank) {
		keys = l->kv_lora_rank + l->rope_dim;
		v_dim = l->v_dim;
	}
	attn = heads * (c->head_dim + v_dim) + keys + l->q_lora_rank;

	if (c->experts.shared_intermediate_size > inner)
		inner = c->experts.shared_intermediate_size;
	if (c->experts.intermediate_size > inner)
		inner = c->experts.intermediate_size;
	if (2 * inner + c->hidden_size > attn)
		attn = 2 * inner + c->hidden_size;
	if (c->experts.biases)
		attn += inner;
	return rows * (2 * c->hidden_size + attn + 1) + 2 * keys + c->experts.num_experts;
}

/* Runs one pass. of: sets noise, weights and rng. */
static int run(struct ref of, const char *dir, const int32_t *ids, int rows, double *logits)
{
	struct ref r = of;
	float freq[CAIRN_MAX_HEAD_DIM / 2];
	const struct cairn_tensor *embed;
	double *res, *buf;
	int n, ret;

	CAIRN_TRY(cairn_model_config_load(dir, &r.c));
	CAIRN_TRY(cairn_safetensors_open(dir, &r.st));
	cairn_rope_frequencies(&r.c, freq);
	n = r.c.hidden_size;
	res = malloc(sizeof(*res) * (size_t)(rows * n));
	buf = malloc(sizeof(*buf) * (size_t)buffer_size(&r.c, rows));
	embed = tensor(&r, -1, "model.embed_tokens.weight");
	for (int64_t i = 0; res && buf && embed && i < (int64_t)rows * n; i++)
		res[i] = r.c.embed_scale ? rounded(&r, at(embed, (int64_t)ids[i / n] * n + i % n) * sqrt(n)) :
			 at(embed, (int64_t)ids[i / n] * n + i % n);
	for (int l = 0; res && buf && !r.failed && l < r.c.num_hidden_layers; l++)
		layer_forward(&r, res, buf, rows, l, freq);
	if (res && buf && !r.failed) {
		norm(&r, buf, res, rows, n, 0, -1, "model.norm.weight");
		project(&r, logits, buf, rows, r.c.vocab_size, n, -1,
			r.c.tie_word_embeddings ? "model.embed_tokens" : "lm_head", 0, 1);
		for (int64_t i = 0; i < (int64_t)rows * r.c.vocab_size; i++)
			logits[i] = capped(logits[i], r.c.logit_softcap);
	}
	ret = res && buf ? r.failed : cairn_error(ENOMEM, "model_ref: no memory");
	free(res);
	free(buf);
	cairn_safetensors_close(r.st);
	return ret;
}

int cairn_model_ref(const char *dir, const int32_t *ids, int rows, double noise, uint64_t seed,
		    double *logits)
{
	return run((struct ref){ .noise = noise, .rng = seed }, dir, ids, rows, logits);
}

/* Computes the bound: six standard deviations of noisy runs around the exact run. */
static int spread(struct ref of, const char *dir, const int32_t *ids, int rows, double *exact, double *bound)
{
	struct kept *kept = NULL, *next;
	struct cairn_model_config c;
	double *noisy;
	int64_t total;
	int ret;

	CAIRN_TRY(cairn_model_config_load(dir, &c));
	total = (int64_t)rows * c.vocab_size;
	noisy = malloc(sizeof(*noisy) * (size_t)(CAIRN_MODEL_REF_RUNS * total));
	if (!noisy)
		return cairn_error(ENOMEM, "model_ref: no memory");
	of.kept = &kept;
	ret = run((struct ref){ .weights = of.weights, .kept = &kept, .is_first = 1 }, dir, ids, rows, exact);
	#pragma omp parallel for schedule(dynamic) reduction(min:ret)
	for (int n = 0; n < CAIRN_MODEL_REF_RUNS; n++) {
		struct ref noise = of;
		int failed;

		noise.rng = (uint64_t)n + 1;
		failed = run(noise, dir, ids, rows, noisy + n * total);
		ret = failed < ret ? failed : ret;
	}
	for (int64_t i = 0; i < total && !ret; i++) {
		bound[i] = 0;
		for (int n = 0; n < CAIRN_MODEL_REF_RUNS; n++) {
			double off = noisy[n * total + i] - exact[i];

			bound[i] += off * off / CAIRN_MODEL_REF_RUNS;
		}
	}
	for (int i = 0; i < rows && !ret; i++) {
		double *b = bound + (int64_t)i * c.vocab_size, mean = 0;

		for (int j = 0; j < c.vocab_size; j++)
			mean += b[j] / c.vocab_size;
		for (int j = 0; j < c.vocab_size; j++)
			b[j] = 6 * sqrt(fmax(b[j], mean));
	}
	for (; kept; kept = next) {
		next = kept->next;
		free(kept);
	}
	free(noisy);
	return ret;
}

int cairn_model_ref_bound(const char *dir, const int32_t *ids, int rows, int dtype, double *exact,
			  double *bound)
{
	return cairn_model_ref_bound_as(dir, CAIRN_WEIGHTS_PLAIN, ids, rows, dtype, exact, bound);
}

int cairn_model_ref_bound_as(const char *dir, enum cairn_weights weights, const int32_t *ids, int rows,
			     int dtype, double *exact, double *bound)
{
	return spread((struct ref){ .weights = weights, .noise = cairn_dtype_roundoff(dtype) }, dir, ids,
		      rows, exact, bound);
}

int cairn_model_ref_fp8_bound(const char *dir, const int32_t *ids, int rows, double *exact, double *bound)
{
	return spread((struct ref){ .weight_noise = 1 }, dir, ids, rows, exact, bound);
}
