/* SPDX-License-Identifier: Apache-2.0 */
/*
 * argmax - the index of the largest logit of each row: greedy decoding
 *
 *   argument   dtype  shape          notes
 *   out        int32  [rows]         out
 *   logits     dtype  [rows, vocab]  in, 16-byte aligned
 *
 * The lowest index wins among equal logits, and -0 equals +0. NaN is ignored: a row with nothing but NaN
 * gives -1, and one with nothing but NaN and -INFINITY gives the index of the first -INFINITY.
 * Supported:   dtype f32, f16, bf16; vocab >= 1, any. rows 0 is legal and does nothing.
 * Numerics:    exact.
 * Determinism: bitwise repeatable.
 * Errors:      -EINVAL, -EOPNOTSUPP, -EIO.
 */
#ifndef CAIRN_ARGMAX_H
#define CAIRN_ARGMAX_H

#include <stddef.h>
#include <stdint.h>

struct cairn_exact;

struct cairn_argmax_args {
	size_t size;
	int32_t *out;
	const void *logits;
	int32_t rows, vocab;
	int32_t dtype;
};

#ifdef __cplusplus
extern "C" {
#endif

int cairn_argmax(const struct cairn_argmax_args *args, void *stream);
int cairn_argmax_cpu(const struct cairn_argmax_args *args, void *stream);
int cairn_argmax_ref(const struct cairn_argmax_args *args, void *stream);
/* The argument checks that all of our tables run first: 0, -EINVAL or -EOPNOTSUPP. */
int cairn_argmax_check(const struct cairn_argmax_args *args);
int cairn_argmax_exact(const struct cairn_argmax_args *args, struct cairn_exact *exact);	/* [0]: out */

#ifdef __cplusplus
}
#endif
#endif
