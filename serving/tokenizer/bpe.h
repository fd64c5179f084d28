/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bpe - byte-pair encoding: a vocabulary, an ordered list of merges, and the merging of one piece
 *
 * A piece (a word, or a whole text where nothing cuts it) starts as the tokens of its characters.
 * As long as some two neighbours have a merge, the one of lowest rank is done, leftmost first. The
 * result is that of the `tokenizers` library, model BPE, including what happens to unknown
 * characters:
 *
 *   - a character that is no token becomes the tokens "<0xHH>" of its bytes, with byte_fallback, if
 *     all of them exist; else unk, several in a row being one with fuse_unk; else nothing at all;
 *   - with ignore_merges a piece that is a token as a whole is that token, whatever the merges.
 *
 * Time: O(n log n) in the length of the piece, O(n) where merges of one rank run from left to right
 *       (a letter repeated: the queue of each rank is then in order by itself).
 * Threads: a model is read-only once built; every encoding call brings its own scratch.
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
	int32_t unk;				/* has_unk: its id, or -1 if it names no token */

	/* built by the functions below */
	int32_t *token_slots;			/* hash of bytes -> id */
	struct { uint64_t pair; int32_t rank; } *merge_slots;
	uint32_t token_mask, merge_mask;
	int32_t *cp_pages[0x110000 >> 8];	/* [cp >> 8][cp & 255]: tokens of one character */
	int32_t byte_ids[256];			/* "<0xHH>", -1 none */
};

/* Working memory of one encoding call: start with { 0 }, end with cairn_bpe_scratch_free(). */
struct cairn_bpe_scratch {
	int32_t *id, *rank, *prev, *next;	/* [cap] symbols */
	int32_t *node_pos, *node_next;		/* [3 cap] queue entries */
	int32_t *head, *tail;			/* [num_merges] ends of each rank's queue, + 1 */
	int32_t *active;			/* heap of the ranks whose queue is not empty */
	uint64_t *strays;			/* heap of rank << 32 | pos, come out of order */
	size_t cap, num_nodes, num_active, cap_active, num_strays, cap_strays;
};

struct cairn_ids {
	int32_t *v;
	size_t num, cap;
};

/* tokens are in place: indexes them, for cairn_bpe_find(). -EINVAL: two have the same bytes. */
int cairn_bpe_index(struct cairn_bpe *bpe);
/* Then takes over malloc()ed merges, num_merges of them, even if it fails. */
int cairn_bpe_index_merges(struct cairn_bpe *bpe, struct cairn_bpe_merge *merges);
/* Frees the indexes and both arrays, not what the tokens point to. */
void cairn_bpe_free(struct cairn_bpe *bpe);

/* -1 if there is no such token. */
int32_t cairn_bpe_find(const struct cairn_bpe *bpe, const char *bytes, size_t len);

/*
 * Appends the tokens of one piece of well-formed UTF-8. -EINVAL when the piece needs an unk that is
 * no token (the text of the error says nothing of files: the caller puts its name before it);
 * -ENOMEM.
 */
int cairn_bpe_encode(const struct cairn_bpe *bpe, const char *piece, size_t len,
		     struct cairn_bpe_scratch *scratch, struct cairn_ids *ids);
void cairn_bpe_scratch_free(struct cairn_bpe_scratch *scratch);

int cairn_ids_add(struct cairn_ids *ids, int32_t id);

#endif
