/* SPDX-License-Identifier: Apache-2.0 */
/*
 * forward - runs one pass of a model over a ragged batch
 *
 * Request b of a batch has the rows qo_indptr[b] .. qo_indptr[b+1]-1; prompts and decoding requests can be
 * mixed. The keys and values of these rows are appended to the pages that kv_indptr and kv_indices name
 * (kv_view.h). Attention is causal over all keys of the request, except in token trees (cairn_batch_trees).
 *
 * The index arrays are in the table's memory, at addresses that the caller chooses; a captured pass can be
 * replayed with other contents of these arrays, within the same bounds.
 *
 * If the table lacks operations of a model's graph (see cairn_forward_supported()), everything
 * below except the store is refused with -EOPNOTSUPP. A model with latent attention can then
 * still run by decode_step alone (decode.h).
 *
 * Errors: those of the table's operations, as "cuda: gemm: ...".
 */
#ifndef CAIRN_FORWARD_H
#define CAIRN_FORWARD_H

#include <stddef.h>
#include <stdint.h>

#include "serving/model/model.h"

/* Memory behind the pages of a kv_pool: for each layer K, then V, [num_pages, page_size, num_kv_heads,
 * head_dim] of the model's dtype or, with CAIRN_KV_FP8, of e4m3; or with latent attention the latents,
 * [num_pages, page_size, kv_lora_rank + rope_dim]. */
struct cairn_kv_store {
	char *base;
	size_t layer_bytes;		/* bytes of one layer, K and V together */
	size_t v_offset;		/* bytes from a layer's K to its V; 0: no V */
	int32_t num_pages, page_size;
};

int cairn_kv_store_create(struct cairn_kv_store *kv, const struct cairn_model *model,
			  int32_t num_pages, int32_t page_size);
/* The same with another number of layers than the model's. */
int cairn_kv_store_create_layers(struct cairn_kv_store *kv, const struct cairn_model *model, int32_t layers,
				 int32_t num_pages, int32_t page_size);
/* Does nothing if *kv is zeroed. */
void cairn_kv_store_destroy(struct cairn_kv_store *kv, const struct cairn_model *model);

/* Returns the name of an operation that the graph needs and the table lacks, or NULL. */
const char *cairn_forward_missing(const struct cairn_impl *impl, const struct cairn_op_graph *graph);
/* Returns whether the table has all operations of the model's graph. */
int cairn_forward_supported(const struct cairn_model *model);

/*
 * Asks the table whether it supports the sizes of the model; the weights need not be loaded. -EOPNOTSUPP:
 * it does not; the text names config.json in `dir`, the key, and the operation.
 */
int cairn_forward_check(const struct cairn_model *model, const char *dir);

#define CAIRN_TREE_ROWS		64	/* maximum rows of a request in a pass with trees */

/*
 * Token trees of a pass, whose rows see some rows of their own request, as mask bits say; the arrays are in
 * the table's memory. Each request of the pass has the pages of the keys that all its rows see (up to the
 * row's position), and the slots of the keys that its bits select: page * page_size + slot in the page. A
 * request without bits has no slots. The lines of bits are laid out as in attn_bsr.h, for mask_mode 2.
 */
struct cairn_batch_trees {
	const int32_t *past_indptr, *past_indices, *past_last_page_len;	/* as kv_indptr and so on */
	const int32_t *slot_indptr, *slots;	/* [batch + 1], [slot_indptr[batch]] */
	const int32_t *slot_pos0;	/* [batch]: at least the position of every row, less the window */
	const int64_t *mask_indptr;	/* [batch] */
	const uint8_t *mask;
};

/*
 * A decoding pass, one row for each request, in which each rank attends to some of the pages of each request
 * (serving/ranks/ranks_pages.c). The lists name this rank's pages, in the form in which kv_indptr, kv_indices
 * and kv_last_page_len name all pages.
 */
struct cairn_batch_pages {
	const int32_t *indptr, *indices, *last_page_len;
	const struct cairn_model *whole;	/* the model with all heads, for one of the ranks */
};

/*
 * A pass over one request whose pages are in stripes: each rank holds some of them
 * (serving/ranks/ranks_stripes.c). The pass runs on a store with room for one layer, which all layers use in
 * turn. Before a layer appends its keys, the pages with its earlier keys are gathered there from all ranks;
 * after its attention, each rank copies the pages with new keys that it holds back to its own store. Lists
 * are in the table's memory, counts in the host's.
 */
struct cairn_batch_stripes {
	const struct cairn_kv_store *held;	/* the pages of this rank */
	/* own: room for `chunk` pages of one layer, which this rank sends; all: for those of all ranks */
	char *own, *all;
	const int32_t *slots;			/* [ranks * chunk]: ~0, ~1, ...: slots (kv_move.h) */
	int32_t chunk, ranks;
	/*
	 * A round gathers at most `chunk` pages of each rank. The place of a page in the pass's store is its
	 * number in the request.
	 */
	const int32_t *from;			/* [num_from]: held pages with earlier keys */
	int32_t num_from, most;			/* most: the largest num_from of any rank */
	const int32_t *arrived, *places;	/* round by round: slots of `all`, and where their pages go */
	const int32_t *arrived_end;		/* where each round ends in these two, in host memory */
	const int32_t *new_places, *new_pages;	/* [num_new]: own pages with new keys, by place and in held */
	int32_t num_new;
};

struct cairn_batch_ring;

struct cairn_batch {
	float *logits;			/* [num_logits, vocab], out */
	const int32_t *ids, *positions;	/* [num_rows] */
	const int32_t *qo_indptr, *kv_indptr, *kv_indices, *kv_last_page_len;
	/* [num_rows]: number of the row's adapter (lora.h), -1: none. NULL: no row has one */
	const int32_t *adapters;
	const int32_t *logit_rows;	/* [num_logits]: rows whose logits are wanted; NULL: all rows */
	int32_t num_rows, batch, num_logits;
	int32_t max_qo_len, max_kv_len;	/* upper bounds */
	int64_t nnz_kv;			/* the same, of the keys of all requests together; 0: unknown */
	/*
	 * For models with latent attention: the last num_prompts requests have so many rows that expanding
	 * their keys pays. They go through mla_prefill, if the table has it, the others through mla_paged.
	 * prompt_rows: total rows of these requests; prompt_past: total keys before those rows.
	 */
	int32_t num_prompts, prompt_rows, prompt_past;
	const struct cairn_batch_trees *trees;	/* NULL: attention is causal in all requests */
	const struct cairn_batch_ring *ring;	/* NULL: this rank computes all rows */
	const struct cairn_batch_pages *pages;	/* NULL: this rank attends to all keys */
	const struct cairn_batch_stripes *stripes;	/* NULL: the store has the pages of all layers */
	/*
	 * The hidden states that enter tap_layers[k], for k < num_taps, are copied to taps + k * tap_bytes, a
	 * row for each row of the pass, in the model's dtype.
	 */
	char *taps;
	size_t tap_bytes;
	int32_t num_taps, tap_layers[CAIRN_MAX_TAPS];	/* each >= 1, or >= 0 if `inputs` is given */
	/*
	 * inputs: the hidden states that enter layer 0, [num_rows, hidden_size], instead of embeddings; NULL:
	 * embeddings. states, normed: NULL, or out, of the same shape: the hidden states after the last
	 * layer, and these after the last norm (undefined in stages without it). Only cairn_forward() reads
	 * the three.
	 */
	const char *inputs;
	char *states, *normed;
	/* Called once per layer, after its attention and before its MLP is enqueued; may be NULL. */
	int (*on_layer)(void *ctx, int32_t layer, void *stream);
	void *on_layer_ctx;
};

/* Keys in pages for each request of a batch, as a part of attn_bsr.h has them. */
struct cairn_ring_keys {
	const int32_t *indptr, *pages, *last_len;
	const int32_t *pos0;		/* positions of the first keys; NULL: positions are not consecutive */
	int32_t max_keys;		/* 0: no row sees any */
};

#define CAIRN_RING_RUNS	3

/*
 * A pass whose rows the ranks of a ring share out (serving/ranks/ranks_ring.c). The new keys of a request are
 * cut into 2 * ranks pieces of whole pages, and a rank computes the rows of two of them. The arrays are in
 * the table's memory.
 */
struct cairn_batch_ring {
	/*
	 * The rows of this rank. Each request of the pass is two requests here, one for each piece, the later
	 * one first. Their pages are those of the piece or, with latent attention, all up to its end.
	 */
	struct cairn_batch mine;
	const int32_t *rows;		/* [mine.num_rows]: rows of the pass */
	/*
	 * The keys that the requests of `mine` see: those that this rank has at first, and those that other
	 * ranks compute. All keys of `own` end with the request's last row.
	 */
	struct cairn_ring_call {
		struct cairn_ring_keys run[CAIRN_RING_RUNS];	/* keys of consecutive positions */
		struct cairn_ring_keys all;			/* the keys of all runs, in order */
	} own, others;
	/*
	 * Pages whose keys this rank computes; the slots of the keys of all other ranks, most_pages for each,
	 * in the order of their arrival, and the pages that they are for.
	 */
	const int32_t *own_pages, *own_slots, *arrived_slots, *arrived_pages;
	int32_t num_own, num_arrived;
	int32_t most_pages;		/* of any rank */
	/*
	 * wanted: [most_wanted], rows of `mine` whose logits are wanted. logit_rows: where all such rows of
	 * the pass are, once those of all ranks have been gathered.
	 */
	const int32_t *wanted, *logit_rows;
	int32_t most_wanted;
};

/* Returns the pages and page lists of one layer, as operations take them. */
struct cairn_kv_view cairn_batch_kv(const struct cairn_batch *batch, const struct cairn_kv_store *kv,
				    int32_t layer);

/* Activations for passes of at most max_rows rows, of which at most max_logits need logits. */
struct cairn_scratch;
int cairn_scratch_create(struct cairn_scratch **out, const struct cairn_model *model,
			 int32_t max_rows, int32_t max_logits);
void cairn_scratch_destroy(struct cairn_scratch *scratch);	/* NULL is legal */
/* Returns the bytes of the activations, without the operations' workspaces. */
size_t cairn_scratch_bytes(const struct cairn_scratch *scratch);
/*
 * Makes room for the workspace of this pass. Must be called before the first pass of each shape. If the
 * workspace must grow, waits for the stream and sets *moved: passes captured earlier hold stale addresses.
 */
int cairn_scratch_reserve(struct cairn_scratch *scratch, const struct cairn_kv_store *kv,
			  const struct cairn_batch *batch, void *stream, int *moved);

/* Returns whether passes of m may have batch->pages, with this whole model. */
int forward_pages_supported(const struct cairn_model *m, const struct cairn_model *whole);

/* Runs the pass: asynchronous on stream; allocates nothing. */
int cairn_forward(struct cairn_scratch *scratch, const struct cairn_kv_store *kv,
		  const struct cairn_batch *batch, void *stream);

#endif
