// SPDX-License-Identifier: Apache-2.0
/* ref_attention - attention by heads, and over latents, in double precision (model_ref_impl.h) */
#include "serving/model/ref/model_ref_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/rows.h"

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

			*a = ref_rounded(r, x0 * c - *b * s);
			*b = ref_rounded(r, *b * c + x0 * s);
		}
	}
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
			p[j] = ref_capped(p[j], r->c.attn_softcap);
			max = fmax(max, p[j]);
		}
		for (int j = first; j <= row; j++) {
			p[j] = exp(p[j] - max);
			sum += p[j];
			p[j] = ref_rounded(r, p[j]);
		}
		if (sinks)	/* a key whose value is 0, added to finished attention */
			kept_share = 1 / (1 + exp(ref_at(sinks, i % hq) - max) / sum);
		for (int e = 0; e < d; e++) {
			double o = 0;

			for (int j = first; j <= row; j++)
				o += p[j] * v[(j * hk + g) * d + e];
			out[i * d + e] = ref_rounded(r, o / sum);
			if (sinks)
				out[i * d + e] = ref_rounded(r, out[i * d + e] * kept_share);
		}
	}
}

/* Normalises each head of q or k, without rounding: the rotation follows. */
static void head_norm(struct ref *r, double *x, int heads, int layer, const char *name)
{
	double noise = r->noise;

	r->noise = 0;
	ref_norm(r, x, x, heads, r->c.head_dim, 0, layer, name);
	r->noise = noise;
}

void ref_attention(struct ref *r, double *h, double *buf, int rows, int layer, const float *freq)
{
	const struct cairn_model_config *c = &r->c;
	int n = c->hidden_size, d = c->head_dim, hq = c->num_attention_heads, hk = c->num_key_value_heads;
	double *q = buf, *k = q + rows * hq * d, *v = k + rows * hk * d, *o = v + rows * hk * d;
	double *p = o + rows * hq * d;

	ref_project(r, q, h, rows, hq * d, n, layer, "self_attn.q_proj", c->qkv_bias, 0);
	ref_project(r, k, h, rows, hk * d, n, layer, "self_attn.k_proj", c->qkv_bias, 0);
	ref_project(r, v, h, rows, hk * d, n, layer, "self_attn.v_proj", c->qkv_bias, 0);
	if (c->head_norms) {
		head_norm(r, q, rows * hq, layer, "self_attn.q_norm.weight");
		head_norm(r, k, rows * hk, layer, "self_attn.k_norm.weight");
	}
	rotate(r, q, rows, hq, d, d, freq);
	rotate(r, k, rows, hk, d, d, freq);
	attend(r, o, q, k, v, rows, cairn_layer_window(c, layer),
	       c->sinks ? ref_tensor(r, layer, "self_attn.sinks") : NULL, p);
	ref_project(r, h, o, rows, n, hq * d, layer, "self_attn.o_proj", c->o_bias, 0);
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
			ql[j] = ref_rounded(r, ql[j]);
		memcpy(ql + rank, qh + l->nope_dim, sizeof(*ql) * (size_t)l->rope_dim);
		cairn_products(p, 1, kv, width, row + 1, ql, 1, width);
		for (int j = 0; j <= row; j++) {
			p[j] *= scale;
			max = ref_larger(max, p[j]);
		}
		for (int j = 0; j <= row; j++) {
			p[j] = exp(p[j] - max);
			sum += p[j];
			p[j] = ref_rounded(r, p[j]);
		}
		cairn_add_rows(oc, p, kv, width, row + 1, rank);
		for (int e = 0; e < rank; e++)
			oc[e] = ref_rounded(r, oc[e] / sum);
		cairn_products(v, 1, wh + l->nope_dim * rank, rank, l->v_dim, oc, 1, rank);
		for (int e = 0; e < l->v_dim; e++)
			v[e] = ref_rounded(r, v[e]);
	}
}

void ref_latent_attention(struct ref *r, double *h, double *buf, int rows, int layer, const float *freq)
{
	const struct cairn_latent_config *l = &r->c.latent;
	int n = r->c.hidden_size, heads = r->c.num_attention_heads, width = l->kv_lora_rank + l->rope_dim;
	int nq = heads * r->c.head_dim;
	double *q = buf, *kv = q + (int64_t)rows * nq, *o = kv + rows * width;
	double *qa = o + (int64_t)rows * heads * l->v_dim, *rest = qa + rows * l->q_lora_rank;
	double *w = ref_matrix(r, layer, "self_attn.kv_b_proj.weight");

	if (l->q_lora_rank) {
		ref_project(r, qa, h, rows, l->q_lora_rank, n, layer, "self_attn.q_a_proj", 0, 0);
		ref_norm(r, qa, qa, rows, l->q_lora_rank, 0, layer, "self_attn.q_a_layernorm.weight");
		ref_project(r, q, qa, rows, nq, l->q_lora_rank, layer, "self_attn.q_b_proj", 0, 0);
	} else {
		ref_project(r, q, h, rows, nq, n, layer, "self_attn.q_proj", 0, 0);
	}
	ref_project(r, kv, h, rows, width, n, layer, "self_attn.kv_a_proj_with_mqa", 0, 0);
	ref_norm(r, kv, kv, rows, l->kv_lora_rank, l->rope_dim, layer, "self_attn.kv_a_layernorm.weight");
	rotate(r, q, rows, heads, r->c.head_dim, l->rope_dim, freq);
	rotate(r, kv, rows, 1, width, l->rope_dim, freq);
	if (w)
		attend_latent(r, o, q, kv, w, rows, rest);
	ref_project(r, h, o, rows, n, heads * l->v_dim, layer, "self_attn.o_proj", 0, 0);
	free(w);
}
