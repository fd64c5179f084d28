/* SPDX-License-Identifier: Apache-2.0 */
/*
 * token_counts - counts the tokens of each sequence, a row of counters per slot, for penalize.h
 *
 * A counter has 16 bits: bit 15 is set if the token occurs in the prompt; bits 0..14 count its occurrences in
 * the answer and saturate at 32767. The copies come first, each of a whole slot, then the additions:
 *
 *   counts[copy_to[c], :] = copy_from[c] >= 0 ? counts[copy_from[c], :] : 0          0 <= c < num_copies
 *   counts[slots[s], tokens[i]] + 1 (prompt 0), or bit 15 set (prompt 1)             0 <= s < num_segments,
 *                                       indptr[s] <= i < indptr[s + 1]; without indptr: i == s
 *
 * Use: a new sequence clears its slot (copy_from -1) and adds its prompt. A fork copies the parent's slot. A
 * pass adds the tokens it has drawn, one per row, without indptr. A preempted sequence that is computed again
 * clears its slot and adds its prompt and its answer in two calls.
 * Tokens outside 0..vocab-1 are ignored, and so are additions and copies to slots outside 0..num_slots-1: a
 * row without a slot has slot -1.
 *
 *   argument            dtype   shape               notes
 *   counts              uint16  [num_slots, vocab]  in and out, 16-byte aligned; a slot is undefined
 *                                                   until a copy clears or sets it
 *   copy_to, copy_from  int32   [num_copies]        in, may be NULL if num_copies is 0; a slot that is
 *                                                   copied to occurs once in copy_to and never in
 *                                                   copy_from
 *   tokens              int32   [num_tokens]        in, may be NULL if num_tokens is 0
 *   slots               int32   [num_segments]      in, may be NULL if num_segments is 0; may repeat
 *   indptr              int32   [num_segments + 1]  in, ascending from 0, at most num_tokens; NULL
 *                                                   requires num_tokens == num_segments
 *
 * Supported:   vocab 1..2^20 (any), prompt 0 and 1. An empty call is legal.
 * Numerics:    exact, independent of the order of additions.
 * Determinism: bitwise repeatable.
 * Errors:      -EINVAL, -EOPNOTSUPP, -EIO.
 */
#ifndef CAIRN_TOKEN_COUNTS_H
#define CAIRN_TOKEN_COUNTS_H

#include <stddef.h>
#include <stdint.h>

struct cairn_exact;

#define CAIRN_TOKEN_IN_PROMPT	0x8000
#define CAIRN_TOKEN_COUNT	0x7fff

struct cairn_token_counts_args {
	size_t size;
	uint16_t *counts;
	const int32_t *copy_to, *copy_from;
	const int32_t *tokens, *slots, *indptr;
	int32_t num_slots, vocab;
	int32_t num_copies, num_tokens, num_segments;
	int32_t prompt;
};

#ifdef __cplusplus
extern "C" {
#endif

int cairn_token_counts(const struct cairn_token_counts_args *args, void *stream);
int cairn_token_counts_cpu(const struct cairn_token_counts_args *args, void *stream);
int cairn_token_counts_ref(const struct cairn_token_counts_args *args, void *stream);
/* The argument checks that all of our tables run first: 0, -EINVAL or -EOPNOTSUPP. */
int cairn_token_counts_check(const struct cairn_token_counts_args *args);
int cairn_token_counts_exact(const struct cairn_token_counts_args *args,
			     struct cairn_exact *exact); /* counts */

#ifdef __cplusplus
}
#endif
#endif
