/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bpe - byte-pair encoding of one piece with a vocabulary and a ranked list of merges
 *
 * A piece (a word, or a whole text if no pre-tokenizer cuts it) starts as the tokens of its characters. While
 * any two neighbours have a merge, the merge of lowest rank is applied, leftmost first. The result equals
 * that of the `tokenizers` library, model BPE, including its treatment of unknown characters:
 *
 *   - with byte_fallback, a character that is not a token becomes the tokens "<0xHH>" of its bytes if all of
 *     them exist; otherwise it becomes unk (with fuse_unk, consecutive unks become one), or is dropped if
 *     the model has no unk;
 *   - with ignore_merges, a piece that is a token as a whole becomes that token, regardless of the merges.
 *
 * Time: O(n log n) in the length of the piece; O(n) if merges of one rank run from left to right (a repeated
 *       letter: the FIFO of each rank is then filled in order).
 * Threads: a model is read-only once built; every encoding call uses its own scratch.
 */
#ifndef CAIRN_BPE_H
#define CAIRN_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CAIRN_BPE_MAX_TOKENS	4194304
#define CAIRN_BPE_MAX_PIECE	(1u << 29)	/* characters */

struct cairn_bpe_token {
	const char *bytes;
	size_t len;
};

struct cairn_bpe_merge {
	int32_t left, right, result;
};

struct cairn_bpe {
	struct cairn_bpe_token *tokens;		/* [num_tokens] by id */
	int32_t num_tokens;
	struct cairn_bpe_merge *merges;		/* [num_merges] by rank */
	int32_t num_merges;
	bool ignore_merges, byte_fallback, fuse_unk;
	bool has_unk;
	int32_t unk;				/* its id if has_unk; -1: not in the vocabulary */

	/* built by cairn_bpe_index() and cairn_bpe_index_merges() */
	int32_t *token_slots;			/* hash of bytes -> id */
	struct { uint64_t pair; int32_t rank; } *merge_slots;
	uint32_t token_mask, merge_mask;
	int32_t *cp_pages[0x110000 >> 8];	/* [cp >> 8][cp & 255]: id of the one-character token */
	int32_t byte_ids[256];			/* ids of "<0xHH>", -1: no such token */
};

/* Working memory of one encoding call: start with { 0 }, end with cairn_bpe_scratch_free(). */
struct cairn_bpe_scratch {
	int32_t *id, *rank, *prev, *next;	/* [cap], one per symbol */
	int32_t *node_pos, *node_next;		/* [3 cap], one per queue entry */
	int32_t *head, *tail;			/* [num_merges]: entry + 1 at either end of a FIFO */
	int32_t *active;			/* heap of the ranks whose FIFO is not empty */
	uint64_t *strays;			/* heap of rank << 32 | pos: entries that came out of order */
	size_t cap, num_nodes, num_active, cap_active, num_strays, cap_strays;
};

struct cairn_ids {
	int32_t *v;
	size_t num, cap;
};

/* Indexes the tokens for cairn_bpe_find(). -EINVAL: two tokens have the same bytes. */
int cairn_bpe_index(struct cairn_bpe *bpe);
/* Call after cairn_bpe_index(). Takes ownership of merges, malloc()ed [num_merges], even if it fails. */
int cairn_bpe_index_merges(struct cairn_bpe *bpe, struct cairn_bpe_merge *merges);
/* Frees the indexes and both arrays, but not the bytes that the tokens point to. */
void cairn_bpe_free(struct cairn_bpe *bpe);

/* Returns the id of a token, or -1. */
int32_t cairn_bpe_find(const struct cairn_bpe *bpe, const char *bytes, size_t len);

/*
 * Appends the tokens of one piece of well-formed UTF-8. -EINVAL if the piece needs an unk that is not in the
 * vocabulary (the error text does not name the file; the caller prefixes it); -ENOMEM.
 */
int cairn_bpe_encode(const struct cairn_bpe *bpe, const char *piece, size_t len,
		     struct cairn_bpe_scratch *scratch, struct cairn_ids *ids);
void cairn_bpe_scratch_free(struct cairn_bpe_scratch *scratch);

int cairn_ids_add(struct cairn_ids *ids, int32_t id);

#endif
