// SPDX-License-Identifier: Apache-2.0
#include "model_ref.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../primitives/dtype.h"
#include "../primitives/error.h"
#include "config.h"
#include "model.h"
#include "safetensors.h"

struct ref {
	struct cairn_model_config c;
	struct cairn_safetensors *st;
	double noise;
	uint64_t rng;
	int failed;
};

/* Where the engine rounds. */
static double rounded(struct ref *r, double x)
{
	r->rng = r->rng * 6364136223846793005u + 1442695040888963407u;
	return x * (1 + r->noise * ((double)(r->rng >> 11) * 0x1p-52 - 1));
}

static const struct cairn_tensor *tensor(struct ref *r, int layer, const char *name)
{
	const struct cairn_tensor *t;
	char full[96];

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

/* out[i,:] = in[i,:] W^T + b, W: [n, k] */
static void project(struct ref *r, double *out, const double *in, int rows, int n, int k, int layer,
		    const char *name, int has_bias, int exact)
{
	const struct cairn_tensor *w, *b = NULL;
	char full[64];

	snprintf(full, sizeof(full), "%s.weight", name);
	w = tensor(r, layer, full);
	snprintf(full, sizeof(full), "%s.bias", name);
	if (has_bias)
		b = tensor(r, layer, full);
	for (int64_t i = 0; w && i < (int64_t)rows * n; i++) {
		const double *a = in + i / n * k;
		double sum = b ? at(b, i % n) : 0;

		for (int l = 0; l < k; l++)
			sum += a[l] * at(w, i % n * k + l);
		out[i] = exact ? sum : rounded(r, sum);
	}
}

static void norm(struct ref *r, double *out, const double *in, int rows, int layer, const char *name)
{
	const struct cairn_tensor *w = tensor(r, layer, name);
	int n = r->c.hidden_size;

	for (int i = 0; w && i < rows; i++) {
		double sum = 0;

		for (int j = 0; j < n; j++)
			sum += in[i * n + j] * in[i * n + j];
		for (int j = 0; j < n; j++)
			out[i * n + j] =
				rounded(r, in[i * n + j] / sqrt(sum / n + r->c.rms_norm_eps) * at(w, j));
	}
}

static void rotate(struct ref *r, double *x, int rows, int heads, const float *freq)
{
	int half = r->c.head_dim / 2;

	for (int i = 0; i < rows * heads; i++) {
		for (int p = 0; p < half; p++) {
			double *a = x + (int64_t)i * 2 * half + p, *b = a + half;
			double angle = i / heads * (double)freq[p], s = sin(angle), c = cos(angle), x0 = *a;

			*a = rounded(r, x0 * c - *b * s);
			*b = rounded(r, *b * c + x0 * s);
		}
	}
}

static void attend(struct ref *r, double *out, const double *q, const double *k, const double *v, int rows,
		   double *p)
{
	int hq = r->c.num_attention_heads, hk = r->c.num_key_value_heads, d = r->c.head_dim;

	for (int i = 0; i < rows * hq; i++) {
		int row = i / hq, g = i % hq / (hq / hk);
		double max = -INFINITY, sum = 0;

		for (int j = 0; j <= row; j++) {
			p[j] = 0;
			for (int e = 0; e < d; e++)
				p[j] += q[i * d + e] * k[(j * hk + g) * d + e] / sqrt(d);
			max = fmax(max, p[j]);
		}
		for (int j = 0; j <= row; j++) {
			p[j] = exp(p[j] - max);
			sum += p[j];
			p[j] = rounded(r, p[j]);
		}
		for (int e = 0; e < d; e++) {
			double o = 0;

			for (int j = 0; j <= row; j++)
				o += p[j] * v[(j * hk + g) * d + e];
			out[i * d + e] = rounded(r, o / sum);
		}
	}
}

static void layer_forward(struct ref *r, double *res, double *buf, int rows, int layer, const float *freq)
{
	int n = r->c.hidden_size, nq = r->c.num_attention_heads * r->c.head_dim;
	int nk = r->c.num_key_value_heads * r->c.head_dim, ni = r->c.intermediate_size;
	double *h = buf, *q = h + rows * n, *k = q + rows * nq, *v = k + rows * nk, *o = v + rows * nk;
	double *gate = o + rows * nq, *up = gate + rows * ni, *p = up + rows * ni;

	norm(r, h, res, rows, layer, "input_layernorm.weight");
	project(r, q, h, rows, nq, n, layer, "self_attn.q_proj", r->c.attention_bias, 0);
	project(r, k, h, rows, nk, n, layer, "self_attn.k_proj", r->c.attention_bias, 0);
	project(r, v, h, rows, nk, n, layer, "self_attn.v_proj", r->c.attention_bias, 0);
	rotate(r, q, rows, r->c.num_attention_heads, freq);
	rotate(r, k, rows, r->c.num_key_value_heads, freq);
	attend(r, o, q, k, v, rows, p);
	project(r, h, o, rows, n, nq, layer, "self_attn.o_proj", r->c.attention_bias, 0);
	for (int i = 0; i < rows * n; i++)
		res[i] = rounded(r, res[i] + h[i]);
	norm(r, h, res, rows, layer, "post_attention_layernorm.weight");
	project(r, gate, h, rows, ni, n, layer, "mlp.gate_proj", r->c.mlp_bias, 0);
	project(r, up, h, rows, ni, n, layer, "mlp.up_proj", r->c.mlp_bias, 0);
	for (int i = 0; i < rows * ni; i++)
		gate[i] = rounded(r, gate[i] / (1 + exp(-gate[i])) * up[i]);
	project(r, h, gate, rows, n, ni, layer, "mlp.down_proj", r->c.mlp_bias, 0);
	for (int i = 0; i < rows * n; i++)
		res[i] = rounded(r, res[i] + h[i]);
}

int cairn_model_ref(const char *dir, const int32_t *ids, int rows, double noise, uint64_t seed,
		    double *logits)
{
	struct ref r = { .noise = noise, .rng = seed };
	float freq[CAIRN_MAX_HEAD_DIM / 2];
	const struct cairn_tensor *embed;
	double *res, *buf;
	int64_t width;
	int n, ret;

	CAIRN_TRY(cairn_model_config_load(dir, &r.c));
	CAIRN_TRY(cairn_safetensors_open(dir, &r.st));
	cairn_rope_frequencies(&r.c, freq);
	n = r.c.hidden_size;
	width = n + 2 * (int64_t)r.c.head_dim * (r.c.num_attention_heads + r.c.num_key_value_heads) +
		2 * (int64_t)r.c.intermediate_size;
	res = malloc(sizeof(*res) * (size_t)(rows * n));
	buf = malloc(sizeof(*buf) * (size_t)(rows * width + rows));
	embed = tensor(&r, -1, "model.embed_tokens.weight");
	for (int64_t i = 0; res && buf && embed && i < (int64_t)rows * n; i++)
		res[i] = at(embed, (int64_t)ids[i / n] * n + i % n);
	for (int l = 0; res && buf && !r.failed && l < r.c.num_hidden_layers; l++)
		layer_forward(&r, res, buf, rows, l, freq);
	if (res && buf && !r.failed) {
		norm(&r, buf, res, rows, -1, "model.norm.weight");
		project(&r, logits, buf, rows, r.c.vocab_size, n, -1,
			r.c.tie_word_embeddings ? "model.embed_tokens" : "lm_head", 0, 1);
	}
	ret = res && buf ? r.failed : cairn_error(ENOMEM, "model_ref: no memory");
	free(res);
	free(buf);
	cairn_safetensors_close(r.st);
	return ret;
}

int cairn_model_ref_bound(const char *dir, const int32_t *ids, int rows, int dtype, double *exact,
			  double *bound)
{
	struct cairn_model_config c;
	double *noisy;
	int64_t total;
	int ret;

	CAIRN_TRY(cairn_model_config_load(dir, &c));
	total = (int64_t)rows * c.vocab_size;
	noisy = malloc(sizeof(*noisy) * (size_t)total);
	if (!noisy)
		return cairn_error(ENOMEM, "model_ref: no memory");
	ret = cairn_model_ref(dir, ids, rows, 0, 0, exact);
	memset(bound, 0, sizeof(*bound) * (size_t)total);
	for (int run = 1; run <= CAIRN_MODEL_REF_RUNS && !ret; run++) {
		ret = cairn_model_ref(dir, ids, rows, cairn_dtype_roundoff(dtype), (uint64_t)run, noisy);
		for (int64_t i = 0; i < total && !ret; i++)
			bound[i] += (noisy[i] - exact[i]) * (noisy[i] - exact[i]) / CAIRN_MODEL_REF_RUNS;
	}
	for (int i = 0; i < rows && !ret; i++) {
		double *b = bound + (int64_t)i * c.vocab_size, mean = 0;

		for (int j = 0; j < c.vocab_size; j++)
			mean += b[j] / c.vocab_size;
		for (int j = 0; j < c.vocab_size; j++)
			b[j] = 6 * sqrt(fmax(b[j], mean));
	}
	free(noisy);
	return ret;
}
