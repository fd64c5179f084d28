/* SPDX-License-Identifier: Apache-2.0 */
/*
 * token_counts - which tokens a sequence has had: a row of counters for each slot, for penalize.h
 *
 * A counter is 16 bits: bit 15 is set once the token was in the prompt, bits 0..14 count it in the answer
 * and stay at 32767 when they get there. First the copies, each of a whole slot, then the additions:
 *
 *   counts[copy_to[c], :] = copy_from[c] >= 0 ? counts[copy_from[c], :] : 0          0 <= c < num_copies
 *   counts[slots[s], tokens[i]]  gets one more (prompt 0) or its bit 15 (prompt 1)   0 <= s < num_segments,
 *                                       indptr[s] <= i < indptr[s + 1]; without indptr: i == s
 *
 * A sequence that starts gets its slot cleared (copy_from -1) and its prompt added; one that forks copies;
 * what a pass has drawn is added from where it lies, one token for each row, without indptr; one that is
 * computed again after it gave way is cleared and gets prompt and answer, in two calls.
 * Tokens outside 0..vocab-1, additions to slots outside 0..num_slots-1 and copies to such are passed over:
 * rows without a slot have -1.
 *
 *   argument            dtype   shape               notes
 *   counts              uint16  [num_slots, vocab]  in and out, 16-byte aligned; undefined before its copy
 *   copy_to, copy_from  int32   [num_copies]        in, NULL with num_copies 0; no slot that is copied to
 *                                                   occurs a second time
 *   tokens              int32   [num_tokens]        in, NULL with num_tokens 0
 *   slots               int32   [num_segments]      in, NULL with num_segments 0; may repeat
 *   indptr              int32   [num_segments + 1]  in, ascending from 0, at most num_tokens; NULL:
 *                                                   num_tokens == num_segments
 *
 * Supported:   vocab 1..2^20 (any), prompt 0 and 1; nothing to do is legal.
 * Numerics:    exact, whatever the order of additions.
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
/* What each of ours does first: 0, -EINVAL or -EOPNOTSUPP. */
int cairn_token_counts_check(const struct cairn_token_counts_args *args);
int cairn_token_counts_exact(const struct cairn_token_counts_args *args,
			     struct cairn_exact *exact); /* counts */

#ifdef __cplusplus
}
#endif
#endif
