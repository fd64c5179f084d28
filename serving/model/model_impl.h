/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_impl - what model.c and model_layout.c share: the parts that weights are made of
 */
#ifndef CAIRN_MODEL_IMPL_H
#define CAIRN_MODEL_IMPL_H

#include "serving/model/model.h"

/* When a model, or a layer of it, has a part. */
enum cairn_present {
	CAIRN_ALWAYS, CAIRN_UNTIED,
	CAIRN_HEADS, CAIRN_QKV_BIAS, CAIRN_O_BIAS,		/* attention that is not latent */
	CAIRN_HEAD_NORMS,
	/* of a layer; the name of one means another */
	CAIRN_TWO_NORMS, CAIRN_FOUR_NORMS,
	CAIRN_LATENT, CAIRN_Q_WHOLE, CAIRN_Q_COMPRESSED,	/* and that which is */
	CAIRN_DENSE, CAIRN_MLP_BIAS,				/* layers without experts */
	CAIRN_EXPERTS, CAIRN_SHARED,				/* and those with */
	CAIRN_EACH_EXPERT,					/* once for each of them; %d in the name */
	CAIRN_MIXTRAL, CAIRN_EACH_OF_MIXTRAL			/* the same under Mixtral's names */
};

/* A tensor of a checkpoint and what it is of a weight. Parts of one weight follow each other in it. */
struct cairn_part {
	const char *name;	/* behind "model.layers.N." for weights of a layer */
	enum cairn_weight weight;
	enum cairn_dim rows, cols;
	enum cairn_present present;
};

/* Dimensions, sizes and places from m->config and m->dtype; no memory yet. */
void cairn_model_lay_out(struct cairn_model *m);
/* Of all weights, without the padding between them. */
int64_t cairn_model_bytes(const struct cairn_model *m);
int cairn_weight_is_bias(enum cairn_weight w);

/* How many matrices [n, k] a weight that is kept in 8 bits is; 0: it is not, and nothing is written. */
int32_t cairn_weight_fp8(const struct cairn_model *m, enum cairn_weight w, int32_t *n, int32_t *k);
/* The scales of one of them. */
int64_t cairn_weight_scales(const struct cairn_model *m, int32_t n, int32_t k);

/*
 * Where a part goes: `first` bytes of the model's dtype behind the start of its weight, of which it is the
 * last that comes.
 */
struct cairn_place {
	int32_t layer;
	int64_t first;
	int last;
};

typedef int (*cairn_part_fn)(struct cairn_model *m, const struct cairn_part *p, const char *name,
			     struct cairn_place place, void *ctx);
/* In all layers, until one fails. */
int cairn_model_each_part(struct cairn_model *m, cairn_part_fn fn, void *ctx);

#endif
