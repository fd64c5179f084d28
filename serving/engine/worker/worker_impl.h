/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker_impl - the state of a worker, shared by worker.c, worker_pass.c, worker_nano.c, worker_sliced.c,
 * worker_treat.c, worker_mask.c, worker_tree.c, worker_taps.c, worker_context.c, worker_pipeline.c and
 * serving/ranks/ranks_pieces.c, ranks_stripes.c
 */
#ifndef CAIRN_WORKER_IMPL_H
#define CAIRN_WORKER_IMPL_H

#include <stddef.h>

#include "primitives/base/error.h"
#include "serving/engine/worker/worker.h"
#include "serving/nano/nano.h"
#include "serving/pipeline/pipeline.h"
#include "serving/engine/worker/plan.h"
#include "serving/remote/attention/attn_remote.h"
#include "serving/slices/attn_local.h"
#include "serving/slices/sliced.h"

#define MAX_GRAPHS	256
#define MIN_KV_BOUND	256
#define NUM_TIMES	(CAIRN_WORKER_FLIGHTS + 2)
#define WORKER_SLICES	8	/* requests of a batch beyond those of its parts */

struct arrays {
	uint64_t *seed, *offset;			/* [max_batch], like the following arrays */
	float *temperature, *top_p, *min_p;
	int32_t *top_k, *logit_rows, *last_page_len;
	int32_t *slots, *bias_at, *num_bias, *forbidden_at, *num_forbidden, *wanted, *wanted_late;
	int32_t *mask;					/* number of the row's mask; -1: none */
	int32_t *targets;				/* of the scored rows */
	float *repetition, *frequency, *presence;
	int32_t *qo_indptr, *kv_indptr;			/* [max_batch + 1] */
	int32_t *positions, *ids, *from;		/* [max_rows] */
	int32_t *adapters;				/* [max_rows]: of the row; -1: none */
	struct cairn_nano_index nano[CAIRN_NANO_BATCHES];	/* of the plan's nano-batches */
	int32_t *kv_indices;				/* last array: only its used part is copied */
};

/* Arrays of a pass with token trees, one block; members as in struct cairn_batch_trees. */
struct tree_arrays {
	int64_t *mask_indptr;				/* [max_batch] */
	int32_t *past_indptr, *slot_indptr;		/* [max_batch + 1] */
	int32_t *past_last, *slot_pos0;			/* [max_batch] */
	int32_t *slots;					/* [max_batch] */
	uint8_t *mask;					/* [max_batch, CAIRN_TREE_ROWS / 8] */
	int32_t *past_indices;				/* last array: only its used part is copied */
};

/* This rank's pages of a decoding pass whose ranks share out pages, one block. */
struct page_arrays {
	int32_t *indptr, *last;				/* [max_batch + 1], [max_batch] */
	int32_t *indices;				/* last array: only its used part is copied */
};

/* Properties of all draws of a pass; together with its shape, the key of a captured graph. */
struct kind {
	int greedy;			/* all temperatures are 0 */
	int penalized, counted;		/* penalize or token_counts is needed */
	int logprobs, late;		/* of the model's logits; of the treated ones */
	int masked;			/* mask_logits is needed: logits and draw are two graphs */
	int32_t k;
};

/*
 * Counter slots that a pass clears, to count a prompt, or copies, to count drafts: one block of indices and
 * tokens, uploaded if there are any.
 */
struct begins {
	int32_t *host, *dev;		/* slots, to, from [num], indptr [num + 1], tokens */
	size_t room;			/* capacity in int32s */
	int32_t num, num_tokens;
	const struct cairn_worker_treat **treats;	/* [max_batch], [num] until launch */
};

/* Lists of a pass that ranks share out: one block, allocated when first needed. */
struct pass_lists {
	int32_t *host, *dev;
	size_t room;			/* capacity in int32s */
};

struct flight {
	struct arrays host;
	char *block;
	int32_t *tokens;
	char *logprobs;			/* layout as worker->logprobs */
	int32_t k;
	int wants_logprobs;
	struct begins begins, forks;
	struct pass_lists ring, stripes;
	int32_t *rows;			/* [num_tokens]: index of each draw in drawn; ascending */
	int draws_all;			/* each part draws a token; the unwanted ones are dropped */
	int32_t num_tokens;
	struct { int32_t row, target; } *scored;	/* [num_scored]; the rows are those of the pass */
	int32_t num_scored;
	void *event;
	struct tree_arrays trees;	/* in tree_block; with options.trees */
	char *tree_block;
	struct page_arrays pages;	/* in pages_block, if ranks share out pages */
	char *pages_block;
	int64_t number;			/* number of its pass */
	int32_t *chunk_index;		/* index arrays of the chunks of a pass; NULL without a pipeline */
	uint32_t *masks;		/* [max_batch, words], allocated when first needed */
	int32_t num_masks;
};

struct graph {
	int32_t rows, batch, qo_bound, kv_bound;	/* the shape, together with kind */
	int64_t keys_bound;
	int32_t prompt_logits;		/* 0: decoding; else 1 + the number of logits */
	int as_nano;			/* 1 + index of the plan; 0: sequential */
	int fused;			/* decode_step runs it */
	int trees;
	int pages;			/* ranks share out the pages of its requests */
	int side;			/* with queued remote attention: see attn_remote.h */
	struct kind kind;
	int64_t used;			/* number of the last pass of this shape; 0: a free entry */
	void *exec;			/* NULL until it is captured */
	void *draw;			/* the same for the draw of a masked or queued pass */
	struct cairn_batch pass;	/* the first pass of this shape: sizes, and addresses on the device */
};

/* Allocated spans of an array, in ascending order. */
struct spans {
	struct { int32_t at, len; } *taken;
	int32_t num, room;
};

struct cairn_worker {
	struct cairn_model *model;
	const struct cairn_impl *impl;
	struct cairn_worker_options opt;
	int32_t vocab;
	int by_steps;			/* every pass is decode_step: no operation list */
	struct cairn_kv_store kv;
	struct cairn_scratch *scratch;	/* NULL if by_steps */
	struct cairn_scratch *context_scratch;	/* with options.context */
	struct cairn_decoder *decoder;
	struct cairn_nano **nanos;	/* [plans.num]; NULL: all passes are sequential */
	struct cairn_nano_plans plans;	/* plans.plans is not kept: nanos have copies */
	struct cairn_sliced *sliced;	/* NULL: passes are not sliced */
	struct cairn_attn_local *attn;	/* the attention of sliced passes; NULL: it is remote */
	struct cairn_attn_remote *remote;
	struct cairn_plan_out plan;	/* with options.model: the pass being built */
	struct cairn_worker_tap model_tap;
	uint64_t model_passes;		/* passes given to the model worker in this epoch */
	int64_t launched_ns;		/* when the last of them was given to it */
	struct cairn_worker *group[CAIRN_MAX_LANES];	/* in the first of several lanes: all of them */
	struct cairn_slices *own_slices;	/* with remote attention, if the caller gave no slices */
	int32_t slices_left;		/* with lanes: of the pass under way; 0: no pass is */
	int32_t (*pass_copies)[2];	/* [num_pass_copies]: the copies made before the pass launched last */
	int32_t num_pass_copies, room_pass_copies;
	int has_shape;			/* passes like the one launched last may have a graph */
	int32_t (*copies)[2];		/* [num_copies] pages to copy before the next pass, from and to */
	int32_t num_copies, room_copies;
	int32_t *nano_old;		/* arrays of a pass before its rows change places */
	/* if the model is a stage, else NULL: */
	struct cairn_pipeline *pipeline;
	struct cairn_pipeline_sizes chunk_sizes;
	int32_t *chunk_index, *chunk_ends;	/* on the device; [max_rows] */
	struct cairn_batch *chunks;	/* [room_chunks] */
	int32_t room_chunks;
	struct chunk_call { struct cairn_worker *w; int32_t first, end; } *chunk_calls;	/* [room_chunks] */
	void *stream;

	struct arrays dev;
	char *dev_block;
	int32_t *ids;			/* [max_rows]: ids of the pass, on the device */
	int32_t *drawn;			/* [max_batch]: tokens of the last pass, on the device */
	float *logits;			/* [max_batch, vocab] */
	void *sample_workspace;
	size_t sample_workspace_bytes;
	char *logprobs;			/* [max_batch] of the tokens, [max_batch, k] ids, their values */
	/* allocated when first needed: */
	uint16_t *counts;		/* [CAIRN_WORKER_SLOTS, vocab] */
	float *raw_logits;		/* untreated copy of logits */
	int32_t *bias_ids, *forbidden_ids;
	float *bias;
	int32_t *list_mirror;		/* host copy of bias_ids, forbidden_ids, bias */
	uint32_t *mask_bits;		/* [max_batch, words]: the masks of the last pass */
	struct spans bias_spans, forbidden_spans;

	struct flight flights[CAIRN_WORKER_FLIGHTS];
	int first_flight, num_flights;	/* ring buffer of launched passes */
	struct { void *begin, *end; } times[NUM_TIMES];		/* times of pass n: [n % NUM_TIMES] */
	struct graph graphs[MAX_GRAPHS];
	int have_graphs;
	struct cairn_worker_stats stats;

	/* the pass being built: */
	struct flight *flight, *last;	/* last: the previously launched one; NULL: none */
	struct cairn_batch batch;
	struct kind kind;
	int fused;			/* decode_step runs it */
	int shares;			/* options.context computes it */
	int as_nano;			/* 1 + index of its plan, as nano_pass says; 0: sequential */
	struct cairn_nano_pass nano_pass;
	struct cairn_pipeline_pass pipeline_pass;
	int (*on_chunk)(void *ctx, int32_t first, int32_t end, int32_t layer, void *stream);	/* or NULL */
	void *on_chunk_ctx;
	int32_t follows;		/* number of rows that follow a draw */
	int chained;			/* it has parts with `chained` */
	/* a launched pass whose draw is missing: */
	int undrawn;
	struct graph *graph;		/* NULL: it runs without graphs */
	size_t drawn_bytes;		/* of its tokens */
	struct { int32_t request; const int32_t *parents; } *trees;	/* [num_trees], of [max_batch] */
	int32_t num_trees;
	int32_t num_slices;		/* of the batch, at most WORKER_SLICES */
	/* on the device: */
	struct tree_arrays tree_dev;
	char *tree_dev_block;
	struct cairn_batch_trees batch_trees;	/* points to them */
	struct page_arrays pages_dev;
	char *pages_dev_block;		/* NULL: ranks never share out pages */
	struct cairn_batch_pages batch_pages;	/* points to it */
	struct cairn_batch_ring batch_ring;	/* of the pass being built; points to its flight's lists */
	/* with options.stripes: the gathered pages of a layer, and room for exchanges and copies */
	struct cairn_kv_store gathered;
	char *stripes_room;
	int32_t *round_ends;		/* [pages of a request] */
	struct cairn_batch_stripes batch_stripes;	/* as batch_ring */
	struct cairn_kv_store features;	/* one layer, with options.taps */
	char *tap_rows, *tap_joined;	/* [3, max_rows, hidden]; [max_rows, 3 * hidden] */
	char *tap_mixed;		/* [max_rows, width]: features */
	int32_t *tap_order;		/* [3 * max_rows]: rows of tap_rows in the order of tap_joined */
	void *tap_workspace;
	size_t tap_workspace_bytes;
	char *staging;			/* rows that move, of all layers: [max_batch] */
	int32_t *moves_host, *moves;	/* [4 * max_batch] */
};

/* Returns whether logits change before the draw, so that a draw by decode_step is not used. */
static inline int worker_redraws(const struct cairn_worker *w)
{
	return w->kind.penalized || w->kind.masked;
}

/* Returns whether workers of other processes hold the cache. */
static inline int worker_is_remote(const struct cairn_worker *w)
{
	return w->opt.attention || w->opt.remote;
}

static inline int worker_has_lanes(const struct cairn_worker *w)
{
	return w->opt.first || w->opt.lanes > 1;
}

#define TABLE(w, fn, ...) CAIRN_TABLE((w)->impl, fn, __VA_ARGS__)

/* k is at most CAIRN_LOGPROBS_MAX, which beam search may need; a client may ask for CAIRN_MAX_LOGPROBS. */
static inline size_t worker_logprobs_bytes(const struct cairn_worker *w, int32_t k)
{
	return (size_t)w->opt.max_batch * (4 + 8 * (size_t)k);
}

/* worker.c */
void *worker_carve(char **cursor, size_t bytes);	/* takes bytes at *cursor, 16-byte aligned */
/* allocates pinned memory if the table can */
int worker_host_alloc(struct cairn_worker *w, size_t bytes, void **out);
void worker_host_free(struct cairn_worker *w, void *p);

/* worker_treat.c */
void worker_treat_part(struct cairn_worker *w, int32_t n, const struct cairn_worker_treat *treat);
void worker_treat_nothing(struct arrays *a, int32_t n);
int worker_treat_prepare(struct cairn_worker *w);	/* allocates what the pass needs; clears new slots */
int worker_treat_before(struct cairn_worker *w, int32_t rows);	/* before the draw; both can be captured */
int worker_treat_after(struct cairn_worker *w, int32_t rows);
void worker_treat_destroy(struct cairn_worker *w);

/* worker_mask.c */
int worker_mask_prepare(struct cairn_worker *w);	/* allocates what the pass needs; clears its masks */
int worker_mask_upload(struct cairn_worker *w);
int worker_mask_apply(struct cairn_worker *w, int32_t rows);	/* can be captured */
void worker_mask_destroy(struct cairn_worker *w);

/* worker_sliced.c */
int worker_sliced_create(struct cairn_worker *w);
void worker_sliced_destroy(struct cairn_worker *w);
void worker_sliced_stats(const struct cairn_worker *w, struct cairn_worker_stats *stats);
int worker_sliced_reserve(struct cairn_worker *w, int *moved);
void worker_sliced_take_copies(struct cairn_worker *w);	/* assigns the copies asked for so far to the pass */
/* Tells remote workers about the pass being built. Call before it is captured, launched or enqueued. */
int worker_sliced_begin(struct cairn_worker *w);
int worker_sliced_forward(struct cairn_worker *w);	/* with lanes, only its first slice */
/* Ends a queued pass: with lanes, leaves that to cairn_worker_turn(); otherwise waits for it, then draws. */
int worker_sliced_end(struct cairn_worker *w);
/*
 * Returns whether calls of the link to remote workers only enqueue. Then the whole pass of a lane is enqueued
 * at once, and can be captured: its stream waits for results, and those of other lanes go on meanwhile. The
 * draw is not part of it, because a pass that is lost must not draw.
 */
int worker_is_queued(const struct cairn_worker *w);
int worker_sliced_side(const struct cairn_worker *w);	/* of the pass being built; 0 if it is not queued */
/* worker.c: whether one process runs the model's whole list of operations, in the order of a pass's rows */
int worker_is_plain(const struct cairn_worker *w);
/* worker_pass.c: the draw of the pass launched last, by its graph if it has one */
int worker_draw(struct cairn_worker *w);

/* worker_model.c: passes that another model worker computes */
void worker_model_create(struct cairn_worker *w);
int worker_model_launch(struct cairn_worker *w);
int worker_model_turn(struct cairn_worker *w, int *under_way);

/* worker_tree.c; without options.trees these do nothing */
int worker_tree_create(struct cairn_worker *w);
void worker_tree_destroy(struct cairn_worker *w);
void worker_tree_add(struct cairn_worker *w, const struct cairn_worker_part *part);
int worker_tree_prepare(struct cairn_worker *w);	/* uploads the arrays of a pass with trees */

/* worker_context.c */
int worker_context_create(struct cairn_worker *w);
void worker_context_destroy(struct cairn_worker *w);
/* Returns whether ranks divide a decoding pass's pages: with stripes always, else if it sees enough keys. */
int worker_shares_pages(const struct cairn_worker *w);
int worker_pages_prepare(struct cairn_worker *w);	/* if so, lists this rank's pages for the pass */
/* Has the ranks divide the rows of a pass other than a decoding one, if it has at least context_rows rows. */
int worker_context_prepare(struct cairn_worker *w);
/* Returns the model that computes the pass being built, and its scratch. */
struct cairn_model *worker_pass_model(const struct cairn_worker *w);
struct cairn_scratch *worker_pass_scratch(const struct cairn_worker *w);

/* Returns the model that shares out rows, or NULL. */
struct cairn_model *worker_context_model(const struct cairn_worker *w);
/*
 * Returns whether each rank has all keys, or with stripes would have them, and decoding passes are lists of
 * operations without exchanges of heads.
 */
int worker_has_all_keys(const struct cairn_worker *w);
/* Grows a block of lists to `need` int32s; its contents are lost. */
int worker_lists_reserve(struct cairn_worker *w, struct pass_lists *lists, size_t need);
void worker_lists_free(struct cairn_worker *w, struct pass_lists *lists);

/* serving/ranks/ranks_pieces.c */
int worker_ring_prepare(struct cairn_worker *w);	/* lists the rows and keys of each rank */

/* serving/ranks/ranks_stripes.c; without options.stripes, these do nothing, except holds() and place() */
int32_t worker_held_pages(const struct cairn_worker *w);	/* pages of the store */
int worker_stripes_create(struct cairn_worker *w);
void worker_stripes_destroy(struct cairn_worker *w);
int worker_stripes_prepare(struct cairn_worker *w);	/* has a pass gather its pages */
/* Returns whether this rank attends to page j of a request, number `page` of the pool, if shared. */
int worker_stripes_holds(const struct cairn_worker *w, int32_t j, int32_t page);
int32_t worker_stripes_place(const struct cairn_worker *w, int32_t page);	/* its number in the store */
void worker_stripes_append(struct cairn_worker *w);	/* lists where a decoding pass appends keys */
int worker_stripes_copies(struct cairn_worker *w);	/* copies pages before a pass */

/* worker_taps.c; without options.taps these do nothing */
int worker_taps_create(struct cairn_worker *w);
void worker_taps_destroy(struct cairn_worker *w);
int worker_taps_reserve(struct cairn_worker *w, int *moved);
void worker_taps_prepare(struct cairn_worker *w);	/* has the pass copy its hidden states */
int worker_taps_after(struct cairn_worker *w);		/* makes features of them; can be captured */

/* worker_nano.c */
int worker_nano_create(struct cairn_worker *w, const struct cairn_nano_plans *plans);
void worker_nano_destroy(struct cairn_worker *w);
int32_t worker_nano_batches(const struct cairn_worker *w);	/* most of any plan; 0 without plans */
/* Cuts the pass into nano-batches if a plan wants it, and puts its rows into their places. */
int worker_nano_split(struct cairn_worker *w, int decode);

/* worker_pipeline.c; if the model is not a stage, split(), share() and destroy() do nothing */
int32_t worker_pipeline_rows(const struct cairn_worker *w);	/* most rows of a call of cairn_forward() */
int worker_pipeline_create(struct cairn_worker *w, const struct cairn_worker_options *options);
void worker_pipeline_destroy(struct cairn_worker *w);
/* Cuts the pass into chunks unless it decodes, and uploads their index arrays. */
int worker_pipeline_split(struct cairn_worker *w, int decode);
int worker_pipeline_draws(const struct cairn_worker *w);	/* whether this worker has the logits */
int worker_pipeline_share(struct cairn_worker *w);	/* gives all stages the draws; can be captured */

/* worker_pass.c */
/* Finds the requests of a batch that expand their keys. qo_indptr, positions: host copies of its arrays. */
void worker_find_prompts(struct cairn_batch *b, const int32_t *qo_indptr, const int32_t *positions);
int worker_end_pass(struct cairn_worker *w);		/* draws, and marks the end */
struct cairn_sample_args worker_sample_args(const struct cairn_worker *w, int32_t rows);
void worker_drop_graphs(struct cairn_worker *w);

#endif
