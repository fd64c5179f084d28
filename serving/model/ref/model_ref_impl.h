/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_ref_impl - shared by the source files of the reference
 *
 *   ref_weights.c	tensors of the checkpoint as doubles; products with them
 *   ref_attention.c	attention, by heads and over latents
 *   ref_mlp.c		MLPs and experts
 *   model_ref.c	a layer, a pass, and the bounds
 *
 * Functions set r->failed, with the error's text, when a tensor is missing or memory has run out.
 */
#ifndef CAIRN_MODEL_REF_IMPL_H
#define CAIRN_MODEL_REF_IMPL_H

#include <math.h>
#include <stdint.h>

#include "primitives/base/dtype.h"
#include "serving/model/checkpoint/config.h"
#include "serving/model/checkpoint/safetensors.h"
#include "serving/model/ref/model_ref.h"

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
	int disturbs_rows;		/* weight_noise is for activations, too */
	uint64_t rng;
	struct kept **kept;
	int is_first;
	int failed;
};

/* Applies the noise. Called wherever the engine rounds. */
static inline double ref_rounded(struct ref *r, double x)
{
	r->rng = r->rng * 6364136223846793005u + 1442695040888963407u;
	return x * (1 + r->noise * ((double)(r->rng >> 11) * 0x1p-52 - 1));
}

static inline double ref_at(const struct cairn_tensor *t, int64_t i)
{
	return cairn_load(t->data, cairn_st_to_dtype(t->dtype), i);
}

/* fmax() without NaN handling, and inlined: fmax() is a library call. */
static inline double ref_larger(double a, double b)
{
	return a > b ? a : b;
}

static inline double ref_capped(double x, double cap)
{
	return cap > 0 ? cap * tanh(x / cap) : x;
}

/* ref_weights.c */

/* Returns a tensor of a layer, or with layer -1 one of the whole model; NULL: r->failed is set. */
const struct cairn_tensor *ref_tensor(struct ref *r, int layer, const char *name);
/* Returns a tensor as doubles; the caller frees it. NULL: r->failed is set. */
double *ref_matrix(struct ref *r, int layer, const char *name);
/* Computes out[i,:] = in[i,:] W^T + b, W: [n, k]. name: without ".weight"; exact: results are not rounded. */
void ref_project(struct ref *r, double *out, const double *in, int rows, int n, int k, int layer,
		 const char *name, int has_bias, int exact);
/*
 * Normalises rows of n elements, each followed by `rest` elements that stay unchanged. The norms of
 * compressed queries and of latents have transformers' default eps, not the config's.
 */
void ref_norm(struct ref *r, double *out, const double *in, int rows, int n, int rest, int layer,
	      const char *name);

/* ref_attention.c: replace the normalised rows h by the output of attention */

void ref_attention(struct ref *r, double *h, double *buf, int rows, int layer, const float *freq);
void ref_latent_attention(struct ref *r, double *h, double *buf, int rows, int layer, const float *freq);

/* ref_mlp.c */

extern const char *const ref_proj[3];	/* the names of gate, up and down */
/*
 * Computes out += factor * MLP(in). The input of down is rounded; the results of gate, up and down are
 * rounded unless fp32 is set.
 */
void ref_mlp(struct ref *r, double *out, const double *in, double *buf, int rows, int inner, int layer,
	     const char *const names[3], const char *prefix, double factor, int fp32);
/* Adds the experts of one token. */
void ref_experts(struct ref *r, double *out, const double *in, double *buf, int layer);

#endif
