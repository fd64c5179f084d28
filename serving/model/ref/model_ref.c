// SPDX-License-Identifier: Apache-2.0
/* model_ref - the forward pass in double precision, with optional rounding noise (model_ref.h) */
#include "serving/model/ref/model_ref_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

static void layer_forward(struct ref *r, double *res, double *buf, int rows, int layer, const float *freq)
{
	const struct cairn_experts_config *x = &r->c.experts;
	int n = r->c.hidden_size, latent = r->c.latent.kv_lora_rank > 0, four = r->c.block_norms;
	double *h = buf, *sum = h + rows * n, *rest = sum + rows * n;

	ref_norm(r, h, res, rows, n, 0, layer, "input_layernorm.weight");
	(latent ? ref_latent_attention : ref_attention)(r, h, rest, rows, layer, freq);
	if (four)
		ref_norm(r, h, h, rows, n, 0, layer, "post_attention_layernorm.weight");
	for (int i = 0; i < rows * n; i++)
		res[i] = ref_rounded(r, res[i] + h[i]);
	ref_norm(r, h, res, rows, n, 0, layer,
	     four ? "pre_feedforward_layernorm.weight" : "post_attention_layernorm.weight");
	memset(sum, 0, sizeof(*sum) * (size_t)(rows * n));
	if (!x->num_experts || layer < x->dense_layers) {
		ref_mlp(r, sum, h, rest, rows, r->c.intermediate_size, layer, ref_proj, "mlp.", 1, 0);
	} else {
		for (int i = 0; i < rows; i++)
			ref_experts(r, sum + i * n, h + i * n, rest, layer);
		if (x->shared_intermediate_size)
			ref_mlp(r, sum, h, rest, rows, x->shared_intermediate_size, layer, ref_proj,
			    "mlp.shared_experts.", 1, 1);
	}
	for (int i = 0; i < rows * n && four; i++)
		sum[i] = ref_rounded(r, sum[i]);
	if (four)
		ref_norm(r, sum, sum, rows, n, 0, layer, "post_feedforward_layernorm.weight");
	for (int i = 0; i < rows * n; i++)
		res[i] = ref_rounded(r, res[i] + sum[i]);
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
	embed = ref_tensor(&r, -1, "model.embed_tokens.weight");
	for (int64_t i = 0; res && buf && embed && i < (int64_t)rows * n; i++)
		res[i] = ref_at(embed, (int64_t)ids[i / n] * n + i % n);
	for (int64_t i = 0; res && buf && embed && r.c.embed_scale && i < (int64_t)rows * n; i++)
		res[i] = ref_rounded(&r, res[i] * sqrt(n));
	for (int l = 0; res && buf && !r.failed && l < r.c.num_hidden_layers; l++)
		layer_forward(&r, res, buf, rows, l, freq);
	if (res && buf && !r.failed) {
		ref_norm(&r, buf, res, rows, n, 0, -1, "model.norm.weight");
		ref_project(&r, logits, buf, rows, r.c.vocab_size, n, -1,
			r.c.tie_word_embeddings ? "model.embed_tokens" : "lm_head", 0, 1);
		for (int64_t i = 0; i < (int64_t)rows * r.c.vocab_size; i++)
			logits[i] = ref_capped(logits[i], r.c.logit_softcap);
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

int cairn_model_ref_fp8_bound(const char *dir, enum cairn_weights weights, const int32_t *ids, int rows,
			      double *exact, double *bound)
{
	const struct ref of = { .weight_noise = 1, .disturbs_rows = cairn_weights_are_w8a8(weights) };

	return spread(of, dir, ids, rows, exact, bound);
}
