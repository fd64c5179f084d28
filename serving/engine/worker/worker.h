/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker - passes of the model on a device, two in flight
 *
 * The engine decides which sequences take part in a pass. The worker builds the index arrays, launches the
 * pass, through a graph if possible, draws the tokens and copies them to the host. The worker knows a
 * sequence only by the rows it contributes.
 *
 *   begin, add, add, ..., launch    one pass; at most CAIRN_WORKER_FLIGHTS may be launched but not collected
 *   collect                         waits for the oldest pass and returns its tokens
 *
 * A pass with masked draws computes its logits at launch and draws later, because its masks depend on the
 * tokens of the pass before it: launch, collect of the pass before, the masks, draw.
 *
 * The token of a row may be a draw of the previous pass (follows). It is then read from device memory, so the
 * host need not wait for it.
 *
 * Not thread-safe. After an error the worker can only be destroyed.
 */
#ifndef CAIRN_WORKER_H
#define CAIRN_WORKER_H

#include <stdint.h>

#include "conformance/abi.h"
#include "serving/model/forward/decode.h"
#include "serving/model/forward/forward.h"
#include "serving/engine/worker/sampling.h"
#include "serving/nano/nano_plan.h"
#include "serving/remote/lead/lead.h"
#include "serving/slices/slices.h"

#define CAIRN_WORKER_FLIGHTS	2
/*
 * Attention on a GPU takes rows in tiles of 16 and reads the keys once for each tile. A chained part is best
 * cut so that its rows times the query heads of a KV head make one tile.
 */
#define CAIRN_WORKER_TILE	16

struct cairn_worker;

struct cairn_worker_taps;
struct cairn_worker_part;
struct cairn_worker_result;
struct cairn_attn_remote;

/*
 * Callbacks that report all calls that change what a device holds, so that workers of other processes can
 * make the same calls in the same order (ranks.h). lists is called after cairn_worker_add_lists() has
 * succeeded, unlist by cairn_worker_remove_lists(), launch before the pass is launched here, and collect
 * after its tokens have arrived.
 */
struct cairn_worker_tap {
	void *ctx;
	int (*lists)(void *ctx, const struct cairn_logit_bias *bias, int32_t num_bias,
		     const int32_t *forbidden, int32_t num_forbidden, int32_t bias_at, int32_t forbidden_at);
	void (*unlist)(void *ctx, int32_t bias_at, int32_t num_bias, int32_t forbidden_at,
		       int32_t num_forbidden);
	void (*add)(void *ctx, const struct cairn_worker_part *part);
	void (*add_draw)(void *ctx, int32_t row, const struct cairn_worker_part *part);
	int (*launch)(void *ctx);
	int (*collect)(void *ctx, const struct cairn_worker_result *result);
};

struct cairn_worker_options {
	int32_t max_batch, max_rows;	/* maxima of one pass; max_batch <= max_rows */
	int32_t max_context;		/* maximum keys of one sequence */
	int32_t num_pages, page_size;
	int32_t chunk_rows;		/* most rows of a chunk if the model is a stage; 0: pipeline.h */
	int no_graphs;
	enum cairn_decode_path decode;
	int timeline;			/* measure the busy and idle times of the device */
	/*
	 * A pass has either only parts with `decodes` set or a single part without it. Passes of the first
	 * kind are padded to max_batch rows, have a bound of max_context keys and never run as decode_step,
	 * so that all of them call the same kernels with the same shapes.
	 */
	int repeatable;
	/*
	 * How passes that are not a decode_step run as nano-batches; NULL: sequentially. The plans are
	 * copied; ctx must outlive the worker.
	 */
	const struct cairn_nano_plans *nano;
	/* Passes that are not a decode_step run in these slices of the model (sliced.h); NULL: whole. Not
	 * together with nano. The slices must outlive the worker. */
	const struct cairn_slices *slices;
	const struct cairn_worker_tap *tap;	/* NULL: none; must outlive the worker */
	/*
	 * Parts may be token trees, and cairn_worker_move_rows() may be called. Needs attn_bsr and kv_move.
	 * Not with repeatable, nano, slices or tap, nor for a model with latent attention.
	 */
	int trees;
	/*
	 * Hidden states of the model become features, one for each key of the cache (worker_taps.c). All
	 * passes are lists of operations then. Not with nano and slices. NULL: none; must outlive the worker.
	 * The stages of a pipeline all have taps. The first one has the features; the others need no matrix.
	 */
	const struct cairn_worker_taps *taps;
	/*
	 * The members of this lead hold the cache and run the attention (attn_remote.h); NULL: this worker
	 * does. With members, passes are sliced, by the slices of the model if `slices` is NULL. Not together
	 * with nano and tap. attends_all: the members attend to the keys of the pass, too (attn_link.h,
	 * without `previous`), as chained parts need.
	 */
	struct cairn_lead *attention;
	int attends_all;
	/*
	 * Ranks of a ring share out the rows of passes with at least so many rows, decoding passes excluded;
	 * 0: half of max_rows.
	 */
	int32_t context_rows;
	/*
	 * The whole model for context parallelism among the ranks of tensor parallelism, which then computes
	 * these passes; NULL: none. Its keys of this rank must be those of the rank's share.
	 */
	struct cairn_model *context;
	/*
	 * Ranks that each have all keys of the model, as in a ring or with latent attention, share out the
	 * pages of decoding passes that see at least so many keys; 0: CAIRN_CONTEXT_KEYS.
	 */
	int64_t context_keys;
	/*
	 * Each rank holds only some of the num_pages pages: rank r has the pages p with p mod ranks = r. The
	 * ranks then divide the pages of every decoding pass, whatever context_keys says. Every other pass
	 * must have a single part (cairn_scheduler_options.separate). Pages are copied by
	 * cairn_worker_copy_page(). Not with repeatable, trees, taps and decode_step.
	 */
	int stripes;
	/*
	 * With `attention`: passes of several workers, the lanes, are under way together. The first one has
	 * `lanes` > 1, the others name it as `first`, which must outlive them, and their number as `lane`.
	 * They have the same options otherwise. A launch then begins a pass, and cairn_worker_turn() takes it
	 * further. Not with masked draws.
	 */
	int32_t lanes, lane;
	struct cairn_worker *first;	/* NULL: this one */
	int64_t kv_journal;		/* bytes of the journal of the members' cache (journal.h); 0: none */
	/*
	 * With lanes: number of the model worker (lead.h) that computes the passes of this one, which only
	 * builds them and takes what was drawn; 0: this process. No lists, and no counters.
	 */
	int32_t model;
	/* In such a model worker, for its one lane: how its passes attend, instead of `attention`. */
	struct cairn_attn_remote *remote;
};

#define CAIRN_CONTEXT_KEYS	32768

struct cairn_worker_taps {
	/*
	 * A feature is made of the hidden states that enter these layers of the whole model, all >= 1; all 0:
	 * it is the hidden state after the last layer, normalised as for the output matrix, and width is
	 * hidden_size.
	 */
	int32_t layers[CAIRN_MAX_TAPS];
	const void *mix;		/* [width, 3 * hidden_size] of the model's dtype, times the three */
	int32_t width;			/* a multiple of 16 */
};

/* Treatment of a draw's logits beyond its sampling parameters. Zero turns a member off; for slot, -1 does. */
struct cairn_worker_treat {
	int32_t slot;			/* its token counters, 0 .. CAIRN_WORKER_SLOTS(max_batch) - 1 */
	int begins;			/* clear the counters and count the prompt first */
	const int32_t *prompt;		/* [num_prompt]; NULL: not counted */
	int32_t num_prompt;
	/*
	 * For a drafted row: first copy the counters of slot `from`, then count the drafts before it.
	 * With `begins`, too, `from` is the slot itself: nothing is copied, and the drafts are tokens that
	 * the answer already has.
	 */
	int forks;
	int32_t from, num_drafts;
	const int32_t *drafts;		/* [num_drafts], valid until launch */
	float repetition, frequency, presence;		/* used if slot >= 0 */
	int32_t bias_at, num_bias;	/* places from cairn_worker_add_lists() */
	int32_t forbidden_at, num_forbidden;
	int32_t num_logprobs;		/* 0: none; 1 + k: of the drawn token and the k most likely */
	int late;			/* log-probabilities of the treated logits, not the model's */
	int masked;			/* the draw has a mask: cairn_worker_mask() */
};

/*
 * Slots of token counters; max_batch is that of the worker, the most draws of a pass. An answer holds a slot
 * from its first draw until its end is reported (but a beam holds none), and a drafted row until its pass is
 * collected, so a pass takes at most one slot per draw. When the engine builds a pass, at most max_batch
 * slots are taken already:
 * - None belongs to a drafted row, because a pass with drafts is collected before the next plan.
 * - The others belong to answers whose sequences ran or were preempted when the plan began. While a sequence
 *   is preempted, the scheduler admits no request, so these are never more than a batch.
 * - Answers that this plan lets expire are among them. Their ends are reported only after the launch, so the
 *   bound is reached if a whole batch expires and the plan admits another one.
 * A freed slot may still be in use by a pass in flight; the stream orders the next holder's pass behind it.
 */
#define CAIRN_WORKER_SLOTS(max_batch)	(2 * (max_batch))
#define CAIRN_WORKER_LISTS	(1 << 18)	/* biases of all requests; forbidden ids of all requests */

/* One sequence's part of a pass. */
struct cairn_worker_part {
	const int32_t *ids;		/* [num_rows] */
	int32_t follows;		/* previous pass's draw that is the token of its only row; -1: ids */
	int32_t num_rows, position;	/* rows position .. position + num_rows - 1 of the sequence */
	const int32_t *pages;		/* [num_pages], with room for position + num_rows keys */
	int32_t num_pages;
	int32_t adapter;		/* 1 + the number of the sequence's adapter; 0: none */
	int decodes;			/* with repeatable: its row decodes, with or without a draw */
	int chained;			/* its rows attend to rows that earlier parts of this pass append */
	/*
	 * NULL, or the rows form a tree of at most CAIRN_TREE_ROWS rows: row i > 0 follows row parents[i] < i
	 * instead of row i - 1. It attends to the keys before the part, to row 0, and to the rows on its path
	 * from there, and has the position that follows that of its parent. Its key is stored as number
	 * position + i of the sequence. The array, [num_rows], must be valid until launch.
	 */
	const int32_t *parents;
	const struct cairn_sampling *draw;	/* how to draw a token after the last row; NULL: none */
	uint64_t seed, offset;		/* which draw of which seed; the seed in *draw is not used */
	const struct cairn_worker_treat *treat;		/* NULL: none */
	/*
	 * The log-probabilities of targets[i] and of the score_k most likely tokens after row score_from + i.
	 * Draws and scored rows of a pass together are at most max_batch.
	 */
	const int32_t *targets;				/* [num_scored] */
	int32_t score_from, num_scored, score_k;
};

/* Tokens of a pass, in the order in which draws were added; valid until the next begin. */
struct cairn_worker_result {
	const int32_t *tokens;		/* [num_tokens] */
	int32_t num_tokens, num_scored, k;	/* scored rows follow the draws in the arrays below */
	/*
	 * For draws with num_logprobs: the log-probability of the token, and ids and log-probabilities of the
	 * k most likely tokens. Missing ones have id -1.
	 */
	const float *logprob;		/* [num_tokens + num_scored] */
	const int32_t *top;		/* [num_tokens + num_scored, k] */
	const float *top_logprob;
};

struct cairn_worker_stats {
	int64_t passes, graph_passes, captures;
	int64_t fused_passes;		/* run as decode_step */
	int64_t sliced_passes;
	int64_t nano_passes;		/* run as nano-batches */
	int64_t context_passes;		/* passes whose rows the ranks divided, as context_rows says */
	int64_t pages_passes;		/* passes whose pages the ranks divided, as context_keys says */
	int64_t stripes_passes;		/* passes whose pages were gathered from all ranks */
	int64_t wait_ns;		/* host time spent waiting for passes */
	/*
	 * In the first lane: sums over the turns of all lanes. turn_ns: this process computes; turn_wait_ns:
	 * it waits for results; attn_ns: the slowest worker attends.
	 */
	int64_t turns, turn_rows, turn_ns, turn_wait_ns, attn_ns;
	/* in the first lane, with kv_journal: bytes recorded and restored, and the time of each */
	int64_t journal_bytes, journal_ns, restored_bytes, restore_ns;
	/* With timeline: device times over the collected passes. */
	int64_t busy_ns, idle_ns, max_idle_ns;
};

int cairn_worker_create(struct cairn_worker **out, struct cairn_model *model,
			const struct cairn_worker_options *options);
void cairn_worker_destroy(struct cairn_worker *worker);		/* NULL is legal */

/*
 * The caller must respect the options: parts <= max_batch, rows <= max_rows, pages <= num_pages. For a model
 * without an operation list (forward.h) each part must have exactly one row.
 */
void cairn_worker_begin(struct cairn_worker *worker);
void cairn_worker_add(struct cairn_worker *worker, const struct cairn_worker_part *part);
/*
 * Draws a token after row number `row` of the part added last, which itself has no draw, as draw, seed,
 * offset and treat of `part` say. Rows must ascend. Not with repeatable.
 */
void cairn_worker_add_draw(struct cairn_worker *worker, int32_t row, const struct cairn_worker_part *part);
int cairn_worker_launch(struct cairn_worker *worker);
/*
 * Returns the number of masked draws of the launched pass, which cairn_worker_draw() must end before the next
 * begin; 0: none, and the pass draws by itself. -EOPNOTSUPP of a launch: the table has no mask_logits.
 */
int32_t cairn_worker_masks(const struct cairn_worker *worker);
/*
 * The mask of the i-th of them, in the order in which they were added, as mask_logits.h has it: the caller
 * writes it, and may read it until the pass is collected. It is zero at first, which allows nothing.
 */
uint32_t *cairn_worker_mask(const struct cairn_worker *worker, int32_t i);
int cairn_worker_draw(struct cairn_worker *worker);
/*
 * Moves the keys and values of all layers from slots from[i] to slots to[i], where slot s of page p is number
 * p * page_size + s. At most max_rows moves. A slot may be in both lists: all are read before any is written.
 * Ordered after the passes launched so far. A pass that is launched later must be collected before the next
 * call.
 */
int cairn_worker_move_rows(struct cairn_worker *worker, const int32_t *from, const int32_t *to, int32_t num);
/*
 * With lanes: takes the attention's result and runs the pass until it waits for the next one. *under_way: 0
 * if it has ended, or there is none. In each layer, passes must take turns in the order of their launches.
 * collect comes after the end.
 */
int cairn_worker_turn(struct cairn_worker *worker, int *under_way);
/*
 * With `attention` or `stripes`: before the next pass of any lane, page `from` is copied to page `to`, in the
 * order of the calls; with `stripes`, all ranks make the same calls. Without both, the caller moves pages in
 * the memory of cairn_worker_kv().
 */
int cairn_worker_copy_page(struct cairn_worker *worker, int32_t from, int32_t to);
/*
 * Returns whether a member that holds a part of the cache is lost. A launch that has returned -ECONNRESET
 * meanwhile has launched nothing; passes before it are as they were. restart() takes another member, and
 * forgets the copies above: the cache is empty then.
 */
int cairn_worker_lost(const struct cairn_worker *worker);
int cairn_worker_restart(struct cairn_worker *worker);
/* With lanes, before the restart: forgets the pass that was launched and cannot end. Nothing was drawn. */
void cairn_worker_drop(struct cairn_worker *worker);
/*
 * With kv_journal, restart() restores the cache as it was after the passes that have ended, and forgets
 * nothing. Then passes that have not ended, because their launch or a turn has failed, are launched again in
 * their order.
 */
int cairn_worker_restores(const struct cairn_worker *worker);	/* returns whether there is a journal */
int cairn_worker_relaunch(struct cairn_worker *worker);
/*
 * Makes the pass call fn as described at struct cairn_batch; it then does not run as a graph. Call it before
 * launch. It has no effect if decode_step runs the pass, because that has no point between two layers.
 */
void cairn_worker_on_layer(struct cairn_worker *worker, int (*fn)(void *ctx, int32_t layer, void *stream),
			   void *ctx);

/*
 * The same for a pass that a stage of a pipeline cuts into chunks: calls fn for each layer of each chunk,
 * which is rows first .. end - 1 of the pass. Any other pass is one chunk. Layers are those of the stage.
 * Replaces on_layer.
 */
void cairn_worker_on_chunk(struct cairn_worker *worker, int (*fn)(void *ctx, int32_t first, int32_t end,
								   int32_t layer, void *stream), void *ctx);

/*
 * Uploads the lists of a request; its draws name the lists by the places returned. -EAGAIN: no room now;
 * -EOPNOTSUPP: the table cannot treat logits.
 */
int cairn_worker_add_lists(struct cairn_worker *worker, const struct cairn_logit_bias *bias, int32_t num_bias,
			   const int32_t *forbidden, int32_t num_forbidden, int32_t *bias_at,
			   int32_t *forbidden_at);
void cairn_worker_remove_lists(struct cairn_worker *worker, int32_t bias_at, int32_t num_bias,
			       int32_t forbidden_at, int32_t num_forbidden);

int cairn_worker_collect(struct cairn_worker *worker, struct cairn_worker_result *result);
int cairn_worker_in_flight(const struct cairn_worker *worker);
/* For times without work: captures one shape that has occurred once. Does nothing if a pass is in flight. */
int cairn_worker_idle(struct cairn_worker *worker);

/*
 * The features of keys, as the keys and values of one layer: the first half of a feature is in the place of
 * the key, the second half v_offset behind it. They are valid for the keys that passes of this worker have
 * computed and that were moved within the device, not for those from host memory. base NULL: no taps.
 */
const struct cairn_kv_store *cairn_worker_features(const struct cairn_worker *worker);

/* The memory of keys and values, and the stream that orders the passes; needed to move pages. */
const struct cairn_kv_store *cairn_worker_kv(const struct cairn_worker *worker);
void *cairn_worker_stream(const struct cairn_worker *worker);

void cairn_worker_stats(const struct cairn_worker *worker, struct cairn_worker_stats *stats);

/* Returns the number of rows to which a decoding pass of `batch` sequences is padded. */
int32_t cairn_worker_padded(int32_t batch);

#endif
