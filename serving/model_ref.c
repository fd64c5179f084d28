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
	char full[128];

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

static double dot(const double *a, const double *b, int n)
{
	double sum[4] = { 0 };
	int i;

	for (i = 0; i + 4 <= n; i += 4)
		for (int l = 0; l < 4; l++)
			sum[l] += a[i + l] * b[i + l];
	for (; i < n; i++)
		sum[0] += a[i] * b[i];
	return sum[0] + sum[1] + (sum[2] + sum[3]);
}

/* The caller frees; NULL sets r->failed. */
static double *matrix(struct ref *r, int layer, const char *name)
{
	const struct cairn_tensor *t = tensor(r, layer, name);
	int64_t n = t ? t->shape[0] * (t->rank > 1 ? t->shape[1] : 1) : 0;
	double *m = t ? malloc(sizeof(*m) * (size_t)n) : NULL;

	if (t && !m)
		r->failed = cairn_error(ENOMEM, "model_ref: no memory");
	for (int64_t i = 0; m && i < n; i++)
		m[i] = at(t, i);
	return m;
}

/* out[i,:] = in[i,:] W^T + b, W: [n, k] */
static void project(struct ref *r, double *out, const double *in, int rows, int n, int k, int layer,
		    const char *name, int has_bias, int exact)
{
	double *w, *b = NULL;
	char full[96];

	snprintf(full, sizeof(full), "%s.weight", name);
	w = matrix(r, layer, full);
	snprintf(full, sizeof(full), "%s.bias", name);
	if (has_bias)
		b = matrix(r, layer, full);
	for (int64_t i = 0; w && (b || !has_bias) && i < (int64_t)rows * n; i++) {
		double sum = dot(in + i / n * k, w + i % n * k, k) + (b ? b[i % n] : 0);

		out[i] = exact ? sum : rounded(r, sum);
	}
	free(w);
	free(b);
}

/* Rows of n elements, of which each is followed by rest others that stay. */
static void norm(struct ref *r, double *out, const double *in, int rows, int n, int rest, int layer,
		 const char *name)
{
	const struct cairn_tensor *w = tensor(r, layer, name);

	for (int i = 0; w && i < rows; i++, in += n + rest, out += n + rest) {
		double sum = dot(in, in, n);

		for (int j = 0; j < n; j++)
			out[j] = rounded(r, in[j] / sqrt(sum / n + r->c.rms_norm_eps) * at(w, j));
	}
}

/*
 * The last `dim` elements of each head of head_dim. Pairs are halves of them, or with latent attention
 * neighbours.
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

static void attention(struct ref *r, double *h, double *buf, int rows, int layer, const float *freq)
{
	const struct cairn_model_config *c = &r->c;
	int n = c->hidden_size, d = c->head_dim, hq = c->num_attention_heads, hk = c->num_key_value_heads;
	double *q = buf, *k = q + rows * hq * d, *v = k + rows * hk * d, *o = v + rows * hk * d;
	double *p = o + rows * hq * d;

	project(r, q, h, rows, hq * d, n, layer, "self_attn.q_proj", c->qkv_bias, 0);
	project(r, k, h, rows, hk * d, n, layer, "self_attn.k_proj", c->qkv_bias, 0);
	project(r, v, h, rows, hk * d, n, layer, "self_attn.v_proj", c->qkv_bias, 0);
	rotate(r, q, rows, hq, d, d, freq);
	rotate(r, k, rows, hk, d, d, freq);
	attend(r, o, q, k, v, rows, p);
	project(r, h, o, rows, n, hq * d, layer, "self_attn.o_proj", c->o_bias, 0);
}

/*
 * Weights absorbed as cluster_mla.h does it: the same function as keys and values of each head, rounded where
 * an engine that absorbs rounds. w: kv_b, [heads, nope + v, rank].
 */
static void attend_latent(struct ref *r, double *out, const double *q, const double *kv, const double *w,
			  int rows, double *buf)
{
	const struct cairn_latent_config *l = &r->c.latent;
	int rank = l->kv_lora_rank, width = rank + l->rope_dim, heads = r->c.num_attention_heads;
	double *ql = buf, *oc = ql + width, *p = oc + rank, scale = cairn_softmax_scale(&r->c);

	for (int i = 0; i < rows * heads; i++) {
		const double *qh = q + (int64_t)i * (l->nope_dim + l->rope_dim);
		const double *wh = w + (int64_t)(i % heads) * (l->nope_dim + l->v_dim) * rank;
		double max = -INFINITY, sum = 0;

		memset(buf, 0, sizeof(*buf) * (size_t)(width + rank));
		for (int e = 0; e < l->nope_dim; e++)
			for (int j = 0; j < rank; j++)
				ql[j] += qh[e] * wh[e * rank + j];
		for (int j = 0; j < rank; j++)
			ql[j] = rounded(r, ql[j]);
		memcpy(ql + rank, qh + l->nope_dim, sizeof(*ql) * (size_t)l->rope_dim);
		for (int j = 0; j <= i / heads; j++) {
			p[j] = dot(ql, kv + j * width, width) * scale;
			max = fmax(max, p[j]);
		}
		for (int j = 0; j <= i / heads; j++) {
			p[j] = exp(p[j] - max);
			sum += p[j];
			p[j] = rounded(r, p[j]);
			for (int e = 0; e < rank; e++)
				oc[e] += p[j] * kv[j * width + e];
		}
		for (int e = 0; e < rank; e++)
			oc[e] = rounded(r, oc[e] / sum);
		for (int e = 0; e < l->v_dim; e++)
			out[(int64_t)i * l->v_dim + e] =
				rounded(r, dot(wh + (l->nope_dim + e) * rank, oc, rank));
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
	project(r, h, o, rows, n, heads * l->v_dim, layer, "self_attn.o_proj", 0, 1);
	free(w);
}

/* out += factor * MLP(in); what it multiplies with down is rounded. fp32: so far, gate and up are not. */
static void mlp(struct ref *r, double *out, const double *in, double *buf, int rows, int inner, int layer,
		const char *name, double factor, int fp32)
{
	int n = r->c.hidden_size;
	double *gate = buf, *up = gate + rows * inner, *down = up + rows * inner;
	char full[64];

	snprintf(full, sizeof(full), "%s.gate_proj", name);
	project(r, gate, in, rows, inner, n, layer, full, r->c.mlp_bias, fp32);
	snprintf(full, sizeof(full), "%s.up_proj", name);
	project(r, up, in, rows, inner, n, layer, full, r->c.mlp_bias, fp32);
	for (int i = 0; i < rows * inner; i++)
		gate[i] = rounded(r, gate[i] / (1 + exp(-gate[i])) * up[i] * factor);
	snprintf(full, sizeof(full), "%s.down_proj", name);
	project(r, down, gate, rows, n, inner, layer, full, r->c.mlp_bias, fp32);
	for (int i = 0; i < rows * n; i++)
		out[i] += down[i];
}

/* The experts of one token. */
static void experts(struct ref *r, double *out, const double *in, double *buf, int layer)
{
	const struct cairn_experts_config *x = &r->c.experts;
	int chosen[CAIRN_MAX_EXPERTS];
	double *p = buf, share[CAIRN_MAX_EXPERTS], all = 0, sum = 0;
	char name[48];

	project(r, p, in, 1, x->num_experts, r->c.hidden_size, layer, "mlp.gate", 0, 1);
	for (int e = 0; e < x->num_experts; e++)
		all += p[e] = exp(p[e]);
	for (int i = 0; i < x->per_token; i++) {
		chosen[i] = 0;
		for (int e = 1; e < x->num_experts; e++)
			chosen[i] = p[e] > p[chosen[i]] ? e : chosen[i];
		share[i] = p[chosen[i]];
		sum += share[i];
		p[chosen[i]] = -1;
	}
	for (int i = 0; i < x->per_token; i++) {
		snprintf(name, sizeof(name), "mlp.experts.%d", chosen[i]);
		mlp(r, out, in, buf, 1, x->intermediate_size, layer, name,
		    share[i] / (x->normalize ? sum : all) * x->scaling, 1);
	}
}

static void layer_forward(struct ref *r, double *res, double *buf, int rows, int layer, const float *freq)
{
	const struct cairn_experts_config *x = &r->c.experts;
	int n = r->c.hidden_size, latent = r->c.latent.kv_lora_rank > 0;
	double *h = buf, *sum = h + rows * n, *rest = sum + rows * n;

	norm(r, h, res, rows, n, 0, layer, "input_layernorm.weight");
	(latent ? latent_attention : attention)(r, h, rest, rows, layer, freq);
	for (int i = 0; i < rows * n; i++)
		res[i] = rounded(r, res[i] + h[i]);
	norm(r, h, res, rows, n, 0, layer, "post_attention_layernorm.weight");
	memset(sum, 0, sizeof(*sum) * (size_t)(rows * n));
	if (!x->num_experts || layer < x->dense_layers) {
		mlp(r, sum, h, rest, rows, r->c.intermediate_size, layer, "mlp", 1, latent);
	} else {
		for (int i = 0; i < rows; i++)
			experts(r, sum + i * n, h + i * n, rest, layer);
		if (x->shared_intermediate_size)
			mlp(r, sum, h, rest, rows, x->shared_intermediate_size, layer, "mlp.shared_experts",
			    1, 1);
	}
	for (int i = 0; i < rows * n; i++)
		res[i] = rounded(r, res[i] + sum[i]);
}

/* Numbers that layer_forward() puts into buf, at most. */
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
	return rows * (2 * c->hidden_size + attn + 1) + 2 * keys + c->experts.num_experts;
}

int cairn_model_ref(const char *dir, const int32_t *ids, int rows, double noise, uint64_t seed,
		    double *logits)
{
	struct ref r = { .noise = noise, .rng = seed };
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
		res[i] = at(embed, (int64_t)ids[i / n] * n + i % n);
	for (int l = 0; res && buf && !r.failed && l < r.c.num_hidden_layers; l++)
		layer_forward(&r, res, buf, rows, l, freq);
	if (res && buf && !r.failed) {
		norm(&r, buf, res, rows, n, 0, -1, "model.norm.weight");
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
	noisy = malloc(sizeof(*noisy) * (size_t)(CAIRN_MODEL_REF_RUNS * total));
	if (!noisy)
		return cairn_error(ENOMEM, "model_ref: no memory");
	ret = cairn_model_ref(dir, ids, rows, 0, 0, exact);
	#pragma omp parallel for schedule(dynamic) reduction(min:ret)
	for (int run = 0; run < CAIRN_MODEL_REF_RUNS; run++) {
		int failed = cairn_model_ref(dir, ids, rows, cairn_dtype_roundoff(dtype), (uint64_t)run + 1,
					     noisy + run * total);

		ret = failed < ret ? failed : ret;
	}
	for (int64_t i = 0; i < total && !ret; i++) {
		bound[i] = 0;
		for (int run = 0; run < CAIRN_MODEL_REF_RUNS; run++) {
			double off = noisy[run * total + i] - exact[i];

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
	free(noisy);
	return ret;
}
