/* SPDX-License-Identifier: Apache-2.0 */
/*
 * speculate - options and statistics of speculative decoding
 *
 * A drafter proposes the next tokens of an answer. The next step computes them in one pass with the row that
 * is due anyway, draws a token after each row as it would without drafts (with the same seed and number of
 * the draw), and keeps the draws up to the first that differs from its draft. So every kept token is a draw
 * from the logits of the real tokens before it: the answer is that of the same request without speculation.
 * Only the time depends on the drafts.
 *
 * Drafts form a chain, or with `branches` > 1 a tree: several tokens may be proposed for the same place. A
 * row then attends to the context and to the rows on its path, the draw after a row at depth d has the number
 * of the d-th next token, and the draws kept are those along the path whose drafts they equal.
 *
 * That holds bitwise on tables whose gemm and attention compute a row independently of the others (ref, cpu)
 * with CAIRN_DECODE_UNFUSED, and with `repeatable`, where an answer is a function of its request and the
 * engine's options, speculation included. On other tables the last bits of logits depend on the rows of a
 * pass, as they do without speculation. With latent attention, chunks of prompts of 16 rows and more expand
 * their keys, and drafts move where chunks end: such logits agree only to rounding.
 *
 * Requests with beam search run without drafts.
 */
#ifndef CAIRN_SPECULATE_H
#define CAIRN_SPECULATE_H

#include <stdint.h>

#define CAIRN_MAX_DRAFTS	16	/* of a chain, and the depth of a tree */
#define CAIRN_MAX_BRANCHES	16

enum cairn_speculate {
	CAIRN_SPECULATE_OFF,
	CAIRN_SPECULATE_NGRAM,		/* what followed the last tokens where they occurred before */
	CAIRN_SPECULATE_DRAFT_MODEL,	/* the most likely tokens of a smaller model */
	CAIRN_SPECULATE_EAGLE3,		/* the most likely tokens of an EAGLE-3 head */
	CAIRN_SPECULATE_MTP,		/* those of the model's layer for multi-token prediction */
	CAIRN_SPECULATE_CALLER,		/* a function of the caller */
};

/* Names of the methods that have options of a command: "off", "ngram", "draft_model", "eagle3", "mtp",
 * NULL. */
extern const char *const cairn_speculate_names[];

struct cairn_model;
struct cairn_draft_head;

struct cairn_speculation {
	enum cairn_speculate method;
	int32_t num_tokens;		/* maximum drafts of a chain, or depth of a tree; 0: 5 */
	int32_t lookup_min, lookup_max;	/* NGRAM: tokens that must occur before; 0: 2, 4 */
	/*
	 * DRAFT_MODEL: on the same table as the engine's model, with the same token ids; must outlive the
	 * engine. Its keys and values take as many pages as the engine's.
	 */
	struct cairn_model *model;
	/*
	 * EAGLE3, MTP: of the engine's model (spec/eagle_head.h, spec/mtp_head.h), for one engine, which it
	 * must outlive. Passes are lists of operations then. Not with nano, slices and tap.
	 */
	struct cairn_draft_head *head;
	/*
	 * Draft even where it does not pay. Otherwise the number of drafts of each answer follows from how
	 * many of them were right and from the measured time of passes, and is often 0.
	 */
	int always;
	/*
	 * Maximum drafts that follow one row, 0 or 1: chains; and maximum drafts of a tree, below
	 * CAIRN_TREE_ROWS (forward.h); 0: num_tokens * branches. NGRAM proposes what followed other
	 * occurrences, too; DRAFT_MODEL the next most likely tokens. Trees need the table's attn_bsr and
	 * kv_move, and are refused with repeatable, nano and slices, with latent attention, and where a
	 * model's window is not larger than num_tokens.
	 */
	int32_t branches, tree_rows;
	/*
	 * CALLER: proposes up to `room` drafts after tokens[0 .. num) of a request; returns their number.
	 * parents[k] is the row that draft k follows, 0 for the last token and j + 1 for draft j < k. It is
	 * set to k, a chain. With branches > 1 the function may change it.
	 */
	int32_t (*draft)(void *ctx, uint64_t id, int32_t index, const int32_t *tokens, int32_t num,
			 int32_t *drafts, int32_t *parents, int32_t room);
	void *ctx;
};

/*
 * Totals. `drafts` counts once for each answer and step that has drafts. accepted_per_position[d] counts the
 * accepted drafts of depth d + 1.
 */
struct cairn_speculation_stats {
	int64_t drafts, draft_tokens, accepted_tokens;
	int64_t trees, moved_rows;	/* `drafts` that branch; rows moved to their place in the sequence */
	int64_t accepted_per_position[CAIRN_MAX_DRAFTS];
	int64_t pauses;			/* times that drafts of an answer were stopped as they did not pay */
};

/* Returns the maximum drafts of an answer in a step. */
int32_t cairn_speculation_most(const struct cairn_speculation *s);

/*
 * Prompt lookup: finds the longest run of lookup_min to lookup_max tokens at the end of tokens[0 .. num) that
 * also occurs earlier, the latest such place if there are several, and proposes the tokens after it. If the
 * end is reached, the proposal itself continues: a repetition is drafted as such. With branches > 1, the
 * `branches` best such places give as many continuations of up to `depth` tokens, which share the drafts that
 * they have in common. Returns the number of drafts, at most room.
 */
int32_t cairn_ngram_draft(const struct cairn_speculation *s, const int32_t *tokens, int32_t num,
			  int32_t *drafts, int32_t *parents, int32_t room, int32_t depth);

#endif
