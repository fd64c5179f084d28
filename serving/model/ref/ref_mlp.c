// SPDX-License-Identifier: Apache-2.0
/* ref_mlp - MLPs and experts in double precision (model_ref_impl.h) */
#include "serving/model/ref/model_ref_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/rows.h"

static double activated(const struct cairn_model_config *c, double x)
{
	if (c->hidden_act == CAIRN_ACT_GELU_TANH)
		return x / 2 * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
	return x / (1 + exp(-x));
}

void ref_mlp(struct ref *r, double *out, const double *in, double *buf, int rows, int inner, int layer,
		const char *const names[3], const char *prefix, double factor, int fp32)
{
	int n = r->c.hidden_size;
	double *gate = buf, *up = gate + rows * inner, *down = up + rows * inner;
	char full[64];

	snprintf(full, sizeof(full), "%s%s", prefix, names[0]);
	ref_project(r, gate, in, rows, inner, n, layer, full, r->c.mlp_bias, fp32);
	snprintf(full, sizeof(full), "%s%s", prefix, names[1]);
	ref_project(r, up, in, rows, inner, n, layer, full, r->c.mlp_bias, fp32);
	for (int i = 0; i < rows * inner; i++)
		gate[i] = ref_rounded(r, activated(&r->c, gate[i]) * up[i] * factor);
	snprintf(full, sizeof(full), "%s%s", prefix, names[2]);
	ref_project(r, down, gate, rows, n, inner, layer, full, r->c.mlp_bias, fp32);
	for (int i = 0; i < rows * n; i++)
		out[i] += down[i];
}

/* Widens row i of an expert's matrix [n, k] that is stored as MXFP4. A block of 32 elements has one scale. */
static void widen_four(double *row, const struct cairn_tensor *blocks, const struct cairn_tensor *scales,
		       int64_t i, int k)
{
	static const double sizes[8] = { 0, 0.5, 1, 1.5, 2, 3, 4, 6 };
	const uint8_t *codes = (const uint8_t *)blocks->data + i * (k / 2);
	double scale = 0;

	for (int j = 0; j < k; j++) {
		int code = j % 2 ? codes[j / 2] >> 4 : codes[j / 2] & 15;

		if (j % 32 == 0)
			scale = ldexp(1, ((const uint8_t *)scales->data)[(i * k + j) / 32] - 127);
		row[j] = (code >> 3 ? -scale : scale) * sizes[code & 7];
	}
}

/*
 * Computes out = in W^T + b for one expert of gpt-oss: W is expert number e, [n, k]. Unless it is MXFP4, it
 * is stored transposed.
 */
static void stacked(struct ref *r, double *out, const double *in, int e, int n, int k, int layer,
		    const char *name)
{
	const struct cairn_tensor *plain, *blocks = NULL, *scales = NULL, *bias;
	double *row = malloc(sizeof(*row) * (size_t)(n > k ? n : k));
	char full[96], in_layer[128];

	snprintf(full, sizeof(full), "%s_bias", name);
	bias = ref_tensor(r, layer, full);
	snprintf(in_layer, sizeof(in_layer), "model.layers.%d.%s", layer, name);
	plain = cairn_safetensors_find(r->st, in_layer);
	if (!plain) {
		snprintf(full, sizeof(full), "%s_blocks", name);
		blocks = ref_tensor(r, layer, full);
		snprintf(full, sizeof(full), "%s_scales", name);
		scales = ref_tensor(r, layer, full);
	}
	if (!row)
		r->failed = cairn_error(ENOMEM, "model_ref: no memory");
	if (!r->failed)
		cairn_widen(out, bias->data, cairn_st_to_dtype(bias->dtype), (int64_t)e * n, n);
	for (int64_t j = 0; !r->failed && plain && j < k; j++) {
		cairn_widen(row, plain->data, cairn_st_to_dtype(plain->dtype), ((int64_t)e * k + j) * n, n);
		cairn_add_scaled(out, in[j], row, n);
	}
	for (int64_t i = 0; !r->failed && !plain && i < n; i++) {
		widen_four(row, blocks, scales, (int64_t)e * n + i, k);
		out[i] += cairn_dot(in, row, k);
	}
	free(row);
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
		h[i] = ref_rounded(r, (up + 1) * gate / (1 + exp(-x->clamp_alpha * gate)));
	}
	stacked(r, y, h, e, n, inner, layer, "mlp.experts.down_proj");
	for (int i = 0; i < n; i++)
		out[i] += share * y[i];
}

const char *const ref_proj[3] = { "gate_proj", "up_proj", "down_proj" };

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
	const char *name = "mlp.gate.e_score_correction_bias";
	const struct cairn_tensor *bias = x->sigmoid ? ref_tensor(r, layer, name) : NULL;
	double c[CAIRN_MAX_EXPERTS], all = 0, sum = x->sigmoid ? 1e-20 : 0, top = p[0];

	for (int e = 1; e < x->num_experts; e++)
		top = fmax(top, p[e]);
	for (int e = 0; e < x->num_experts; e++) {
		p[e] = x->sigmoid ? 1 / (1 + exp(-p[e])) : exp(p[e] - top);
		c[e] = p[e] + (bias ? ref_at(bias, e) : 0);
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

void ref_experts(struct ref *r, double *out, const double *in, double *buf, int layer)
{
	static const char *const w[] = { "w1", "w3", "w2" };
	const struct cairn_experts_config *x = &r->c.experts;
	int mixtral = r->c.arch == CAIRN_ARCH_MIXTRAL;
	int chosen[CAIRN_MAX_EXPERTS];
	double share[CAIRN_MAX_EXPERTS];
	char name[48];

	ref_project(r, buf, in, 1, x->num_experts, r->c.hidden_size, layer,
		mixtral ? "block_sparse_moe.gate" : x->biases ? "mlp.router" : "mlp.gate", x->biases, 1);
	route(r, buf, layer, chosen, share);
	for (int i = 0; i < x->per_token; i++) {
		if (x->biases) {
			gpt_oss_expert(r, out, in, buf, chosen[i], share[i], layer);
			continue;
		}
		snprintf(name, sizeof(name), "%s.experts.%d.", mixtral ? "block_sparse_moe" : "mlp",
			 chosen[i]);
		ref_mlp(r, out, in, buf, 1, x->intermediate_size, layer, mixtral ? w : ref_proj, name,
			share[i], 1);
	}
}
