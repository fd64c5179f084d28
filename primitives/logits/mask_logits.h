/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mask_logits - forbids the tokens that a bit mask excludes, in place, before sampling
 *
 * Token j of row i is allowed if bit j % 32 (bit 0 is the least significant) of word
 * bits[slot[i], j / 32] is set. A logit whose token is not allowed becomes -INFINITY, whatever it was; all
 * others keep their bits:
 *
 *   slot[i] < 0:           the row has no mask and is neither read nor written
 *   slot[i] >= num_slots:  no token is allowed, so that a wrong slot never lets a token through
 *
 * The caller uploads the masks of a pass, which a grammar has computed (serving/grammar); rows may share one.
 * The operation follows penalize.h, so that no bias can revive an excluded token.
 *
 *   argument  dtype   shape                          notes
 *   logits    f32     [rows, vocab]                  in and out, 16-byte aligned
 *   bits      uint32  [num_slots, ceil(vocab / 32)]  in, 4-byte aligned; those past the vocabulary are
 *                                                    ignored; may be NULL if num_slots is 0
 *   slot      int32   [rows]                         in; its values are not checked
 *
 * Supported:   vocab 1..2^20, any; rows 0 is legal and does nothing.
 * Numerics:    exact.
 * Determinism: bitwise repeatable; a row does not depend on the others.
 * Errors:      -EINVAL, -EOPNOTSUPP, -EIO.
 */
#ifndef CAIRN_MASK_LOGITS_H
#define CAIRN_MASK_LOGITS_H

#include <stddef.h>
#include <stdint.h>

struct cairn_exact;

struct cairn_mask_logits_args {
	size_t size;
	float *logits;
	const uint32_t *bits;
	const int32_t *slot;
	int32_t rows, vocab, num_slots;
};

#ifdef __cplusplus
extern "C" {
#endif

int cairn_mask_logits(const struct cairn_mask_logits_args *args, void *stream);
int cairn_mask_logits_cpu(const struct cairn_mask_logits_args *args, void *stream);
int cairn_mask_logits_ref(const struct cairn_mask_logits_args *args, void *stream);
/* The argument checks that all of our tables run first: 0, -EINVAL or -EOPNOTSUPP. */
int cairn_mask_logits_check(const struct cairn_mask_logits_args *args);
int cairn_mask_logits_exact(const struct cairn_mask_logits_args *args,
			    struct cairn_exact *exact);	/* [0]: logits */

#ifdef __cplusplus
}
#endif
#endif
