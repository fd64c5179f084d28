/* SPDX-License-Identifier: Apache-2.0 */
/* model_load - what model.c, model_fill.c and model_random.c share */
#ifndef CAIRN_MODEL_LOAD_H
#define CAIRN_MODEL_LOAD_H

#include "serving/model/load/model_impl.h"

#define CHUNK	((size_t)1 << 20)	/* elements converted at once */

/* What to make of a checkpoint: the part of one of the ranks, or the layer for multi-token prediction. */
struct model_share {
	int32_t rank, ranks;
	enum { OF_WEIGHTS, OF_CONTEXT, OF_LAYERS, MTP_LAYER } of;	/* what ranks share */
	enum cairn_exchange exchange;			/* OF_CONTEXT */
	int keeps_mxfp4;
};

extern const struct model_share model_load_whole;

/* The state of loading a model. */
struct loading {
	const struct cairn_safetensors *st;
	void *stream;
	char *from, *to;	/* CHUNK elements each, for conversions */
	char *staging;		/* in the table's memory: the weight being quantised; NULL: none is */
	/*
	 * [num_hidden_layers, CAIRN_NUM_WEIGHTS]: whether an 8-bit weight must be quantised while loading, or
	 * keeps the codes and factors of the checkpoint. NULL: all must be quantised.
	 */
	uint8_t *requantised;
	cairn_progress progress;
	void *ctx;
	int64_t done, total;
	uint64_t seed;		/* of random weights */
};

/*
 * model.c: creates a model with its graph, dimensions and layout, but without weights. impl may be NULL. c:
 * the config of the whole model.
 */
int model_load_describe(struct cairn_model **out, const struct cairn_impl *impl, const char *dir,
			const struct cairn_model_config *c, struct model_share share,
			enum cairn_weights weights, enum cairn_kv_form kv);
/* Allocates the weights without initialising them, and uploads the rotary frequencies. */
int model_load_allocate(struct cairn_model *m, void *stream);
/* Returns whether the experts stay in MXFP4. st NULL: those of a random model, which are stored nowhere. */
int model_load_keeps_mxfp4(const struct cairn_impl *impl, const struct cairn_model_config *c,
			   const struct cairn_safetensors *st, const struct model_share *share,
			   enum cairn_weights weights);

/* model_fill.c: for cairn_model_each_part(): checks that the checkpoint has a part, and how it is loaded. */
int model_load_check_part(struct cairn_model *m, const struct cairn_part *p, const char *name,
			  struct cairn_place place, void *loading);
/*
 * Allocates staging for the largest weight to be quantised (all experts of a layer count as one weight), or
 * for a whole matrix and its codes, plus `more` bytes.
 */
int model_load_staging(struct cairn_model *m, struct loading *l, size_t more);
/* Quantises a weight. from: the whole weight in the model's dtype, in the table's memory. */
int model_load_quantise(struct cairn_model *m, const struct loading *l, enum cairn_weight w, int32_t layer,
			const char *from);
/* Allocates and loads all weights. */
int model_load_fill(struct cairn_model *m, struct loading *l);

#endif
