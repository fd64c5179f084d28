/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_impl - shared by the files that load a model: the tensors of a checkpoint as parts of weights
 */
#ifndef CAIRN_MODEL_IMPL_H
#define CAIRN_MODEL_IMPL_H

#include "serving/model/model.h"
#include "serving/model/weight_w4.h"
#include "serving/model/checkpoint/safetensors.h"

#define CAIRN_MX_GROUP	32	/* elements that share a scale in MXFP4 */

/* The condition under which a model, or a layer, has a part. */
enum cairn_present {
	CAIRN_ALWAYS,
	/* not in a layer alone: the embeddings, the last norm, and an output matrix of its own */
	CAIRN_EMBEDS, CAIRN_ENDS, CAIRN_UNTIED,
	CAIRN_MTP,						/* a layer for multi-token prediction */
	CAIRN_HEADS, CAIRN_QKV_BIAS, CAIRN_O_BIAS,		/* attention that is not latent */
	CAIRN_HEAD_NORMS,
	/* Norms per layer; the two conventions share tensor names that mean different norms. */
	CAIRN_TWO_NORMS, CAIRN_FOUR_NORMS,
	CAIRN_LATENT, CAIRN_Q_WHOLE, CAIRN_Q_COMPRESSED,	/* latent attention */
	CAIRN_DENSE, CAIRN_MLP_BIAS,				/* layers without experts */
	CAIRN_EXPERTS, CAIRN_ROUTE_BIAS, CAIRN_SHARED,		/* layers with experts */
	CAIRN_EACH_EXPERT,					/* once per expert; %d in the name */
	CAIRN_MIXTRAL, CAIRN_EACH_OF_MIXTRAL,			/* the same with Mixtral's names */
	CAIRN_SINKS, CAIRN_GPT_OSS,
	CAIRN_STACKED						/* once per expert, of one tensor */
};

/* Describes a tensor of a checkpoint and its place in a weight. The parts of a weight are stored in order. */
struct cairn_part {
	const char *name;	/* in a layer: what follows "model.layers.N." */
	enum cairn_weight weight;
	enum cairn_dim rows, cols;
	enum cairn_present present;
};

/* Refuses a form of weights that the model cannot have on any table. */
int cairn_model_check_form(const struct cairn_model *m, const char *dir);
/*
 * Returns whether the table's moe takes experts of this model in MXFP4: it is asked with a call without rows.
 */
int cairn_model_moe_has_mxfp4(const struct cairn_impl *impl, const struct cairn_model_config *c);
/* Refuses a model if the table lacks an operation, or a size that no table supports. */
int cairn_model_check_table(const struct cairn_model *m, const char *dir);
/*
 * Refuses a checkpoint that stores more layers than the config has. Layers for multi-token prediction
 * (num_nextn_predict_layers) follow the others; they are allowed, and not read (cairn_model_load_mtp()).
 */
int cairn_model_check_layers(const struct cairn_model_config *config, const char *dir,
			     const struct cairn_safetensors *st);

/* With an 8-bit cache: sets m->kv_scales if the checkpoint has scales. */
int cairn_model_load_kv_scales(struct cairn_model *m, const struct cairn_safetensors *st);

/* Computes dimensions, sizes and offsets from m->config, m->dtype and m->weights; allocates nothing. */
void cairn_model_lay_out(struct cairn_model *m);
/* Returns the bytes of all weights, without padding. */
int64_t cairn_model_bytes(const struct cairn_model *m);
/* Returns the bytes of a weight of one layer; an 8-bit one is its matrices followed by their scales. */
int64_t cairn_weight_bytes(const struct cairn_model *m, enum cairn_weight w);
/* Sets *first .. *end - 1 to the layers that have the weight; 0 .. 0 for a weight outside the layers. */
void cairn_weight_layers(const struct cairn_model *m, enum cairn_weight w, int32_t *first, int32_t *end);
int cairn_weight_is_bias(enum cairn_weight w);
/* Returns the dtype in which a weight is kept unless it is 8-bit: the model's, or f32: ROUTE_BIAS, SINKS. */
int cairn_weight_dtype(const struct cairn_model *m, enum cairn_weight w);

/* Returns how many matrices [n, k] an 8-bit weight consists of; 0: it is not 8-bit, and *n and *k are
 * not written. */
int32_t cairn_weight_fp8(const struct cairn_model *m, enum cairn_weight w, int32_t *n, int32_t *k);
/* Returns the number of scales of one 8-bit matrix. */
int64_t cairn_weight_scales(const struct cairn_model *m, int32_t n, int32_t k);

/*
 * Where a part goes: `first` bytes after the start of its weight, counted in cairn_weight_dtype().
 * last: it completes the weight.
 */
struct cairn_place {
	int32_t layer;
	int32_t copy;			/* number of the expert, if the part is per expert */
	int64_t first;
	int last;
};

/* The rows and columns of a stored tensor that a rank has; all of them if it has the whole part. */
struct cairn_cut {
	int32_t first_row, first_col, rows, cols;
};

/*
 * A part as stored. factors: scales of an e4m3 matrix, whose tensor is the whole one; NULL: the tensor has a
 * wider float type. Blocks of block_rows x block_cols elements share a scale; the scales of the first row of
 * blocks are stored first. share: a rank's part of a tensor of a wider type, which tensor then points to.
 */
struct cairn_stored {
	const struct cairn_tensor *tensor, *factors;
	struct cairn_tensor share;
	struct cairn_cut cut;
	int64_t block_rows, block_cols;
};

/*
 * How a part is divided among the ranks of tensor parallelism. ON_0: it is added to partial sums, so only
 * rank 0 has it, and zeros stand in its place on the others.
 */
enum cairn_share { CAIRN_SHARE_WHOLE, CAIRN_SHARE_ROWS, CAIRN_SHARE_COLS, CAIRN_SHARE_ON_0 };
enum cairn_share cairn_model_share(const struct cairn_model *m, const struct cairn_part *p);
/*
 * Returns how many of the columns of experts in 4 bits stay together on a rank, because they share scales or
 * words of codes; 0: all ranks have equal shares.
 */
int32_t cairn_model_columns_together(const struct cairn_model *m);
/* Sets *first and *num to this rank's columns of an expert, without padding. */
void cairn_model_expert_columns(const struct cairn_model *m, int32_t *first, int32_t *num);
/*
 * Returns how many KV heads the cache of this rank has, and which is the first of those of m->config. If
 * heads are exchanged among more ranks than there are KV heads, several ranks have the same one.
 */
static inline int32_t cairn_model_cached_heads(const struct cairn_model *m)
{
	const int32_t heads = m->config.num_key_value_heads;

	return m->context_ranks <= 1 || m->exchange != CAIRN_EXCHANGE_HEADS ? heads :
	       heads < m->context_ranks ? 1 : heads / m->context_ranks;
}

static inline int32_t cairn_model_first_head(const struct cairn_model *m)
{
	return m->context_ranks <= 1 || m->exchange != CAIRN_EXCHANGE_HEADS ? 0 :
	       m->context_rank * m->config.num_key_value_heads / m->context_ranks;
}

/* Turns *c, the config of the whole model, into that of one of `stages` stages (serving/pipeline). */
int cairn_model_stage_config(struct cairn_model_config *c, const char *dir, int32_t stage, int32_t stages);
/* Chooses the exchange, if it is AUTO, and refuses what it does not support: ranks_context.c. */
int cairn_model_check_context(struct cairn_model *m, const char *dir);
/*
 * If 8-bit weights have one scale per row and this rank has only some columns of w, a scale covers the
 * columns of all ranks: returns the number of columns of the whole matrix then, else 0.
 */
int32_t cairn_model_whole_columns(const struct cairn_model *m, enum cairn_weight w);
struct cairn_cut cairn_model_cut(const struct cairn_model *m, const struct cairn_part *p);
/* Narrows s, which is not e4m3, to this rank's rows. */
void cairn_model_take_rows(struct cairn_stored *s);
/*
 * Narrows s, which is not e4m3, to this rank's columns, padded with zeros to `padded` columns: copies them
 * to *memory, which the caller frees.
 */
int cairn_model_take_columns(struct cairn_stored *s, int32_t padded, void **memory);

/* Copies this rank's columns of codes[n, cols] to to[n, k], padded with zeros. Waits for the stream. */
int cairn_model_keep_columns(const struct cairn_model *m, const struct cairn_cut *cut, const uint8_t *codes,
			     int32_t cols, uint8_t *to, int32_t n, int32_t k, void *stream);

/* Finds the tensor of a part, and checks its shape and type. */
int cairn_model_find_part(const struct cairn_model *m, const struct cairn_part *p, const char *name,
			  const struct cairn_safetensors *st, struct cairn_stored *s);
/*
 * Writes rows from .. from + rows - 1 of this rank's part of an e4m3 matrix in dtype, `pitch` elements apart.
 * -EINVAL: a value is not finite in dtype.
 */
int cairn_model_widen(const struct cairn_stored *s, int dtype, int64_t from, int64_t rows, int64_t pitch,
		      char *to);
/* Returns whether the packed 8-bit weight can keep the part's codes and factors as they are stored. */
int cairn_model_keeps_codes(const struct cairn_model *m, const struct cairn_part *p,
			    const struct cairn_place *place, const struct cairn_stored *s);
/*
 * Copies the codes and factors of such a part to its place. scratch: room for max_factors floats, free again
 * when the call returns. -EINVAL: a code is NaN, or a value overflows the model's dtype.
 */
int cairn_model_load_codes(const struct cairn_model *m, const struct cairn_part *p,
			   const struct cairn_place *place, const struct cairn_stored *s, float *scratch,
			   int64_t max_factors, void *stream);

/* A part whose tensor holds all experts of a layer. scales: those of MXFP4; NULL: tensor holds values. */
struct cairn_stacked {
	const struct cairn_tensor *tensor, *scales;
};

/* Finds the tensors of a part that is CAIRN_STACKED, and checks their shapes and types. */
int cairn_model_find_stacked(const struct cairn_model *m, const struct cairn_part *p, const char *name,
			     const struct cairn_safetensors *st, struct cairn_stacked *s);
/*
 * Writes rows first .. first + rows - 1 of what this rank has of an expert's part to `to`, in the part's
 * dtype. -EINVAL: a value is not finite in that dtype.
 */
int cairn_model_unstack(const struct cairn_model *m, const struct cairn_part *p,
			const struct cairn_stacked *s, int32_t expert, int64_t first, int64_t rows, char *to);
/*
 * Writes what this rank has of an expert's part of a model that keeps MXFP4 (keeps_mxfp4): codes
 * [rows, cols / 2] and scales [rows, cols / 32], without what is padding. -EINVAL: a value is not finite.
 */
int cairn_model_unstack_codes(const struct cairn_model *m, const struct cairn_part *p,
			      const struct cairn_stacked *s, int32_t expert, uint8_t *codes, uint8_t *scales);

/* ---- weights in 4 bits: model_w4.c ---- */

/* Checks, without reading codes, that a checkpoint has all tensors of a part that is kept in 4 bits. */
int cairn_model_check_w4(const struct cairn_model *m, const struct cairn_part *p, const char *name,
			 const struct cairn_safetensors *st);
/* Brings a rank's share of such a part into the layout of gemm_w4, at its place. Waits for the stream. */
int cairn_model_load_w4(const struct cairn_model *m, const struct cairn_part *p, const char *name,
			const struct cairn_place *place, const struct cairn_safetensors *st, void *stream);
/* The same for one expert's part of s, which is MXFP4. */
int cairn_model_load_w4_stacked(const struct cairn_model *m, const struct cairn_part *p,
				const struct cairn_stacked *s, const struct cairn_place *place, void *stream);
/* Gives a weight random codes and equal scales, if it is kept in 4 bits. Waits for the stream. */
int cairn_model_random_w4(const struct cairn_model *m, int32_t layer, enum cairn_weight w, uint64_t seed,
			  void *stream);

typedef int (*cairn_part_fn)(struct cairn_model *m, const struct cairn_part *p, const char *name,
			     struct cairn_place place, void *ctx);
/* Calls fn for every part of every layer, until a call fails. */
int cairn_model_each_part(struct cairn_model *m, cairn_part_fn fn, void *ctx);

#endif
