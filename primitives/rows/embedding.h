/* SPDX-License-Identifier: Apache-2.0 */
/*
 * embedding - copies rows of a table, optionally scaled
 *
 *   out[i,:] = table[ids[i],:]            if scale is 0
 *   out[i,:] = table[ids[i],:] * scale    otherwise (Gemma: sqrt(hidden), which the caller rounds to dtype)
 *
 *   argument   dtype  shape         notes
 *   out        dtype  [rows, dim]   out, 16-byte aligned, may not alias table
 *   table      dtype  [vocab, dim]  in, 16-byte aligned
 *   ids        int32  [rows]        in, 0 <= id < vocab; an id outside gives a row of zeros
 *
 * Supported:   dtype f16, bf16, f32; dim a multiple of 8. rows 0 is legal and does nothing.
 * Numerics:    without a scale, the copy is exact. With a scale, the product is rounded to fp32 and then to
 *              dtype, both to nearest even: there is one correct value and no tolerance. scale is finite.
 * Determinism: bitwise repeatable.
 * Errors:      -EINVAL, -EOPNOTSUPP, -EIO.
 */
#ifndef CAIRN_EMBEDDING_H
#define CAIRN_EMBEDDING_H

#include <stddef.h>
#include <stdint.h>

struct cairn_exact;

struct cairn_embedding_args {
	size_t size;
	void *out;
	const void *table;
	const int32_t *ids;
	int32_t rows, dim, vocab;
	int32_t dtype;
	float scale;			/* 0: unscaled copy */
};

#ifdef __cplusplus
extern "C" {
#endif

int cairn_embedding(const struct cairn_embedding_args *args, void *stream);
int cairn_embedding_cpu(const struct cairn_embedding_args *args, void *stream);
int cairn_embedding_ref(const struct cairn_embedding_args *args, void *stream);
/* The argument checks that all of our tables run first: 0, -EINVAL or -EOPNOTSUPP. */
int cairn_embedding_check(const struct cairn_embedding_args *args);
int cairn_embedding_exact(const struct cairn_embedding_args *args, struct cairn_exact *exact);	/* [0]: out */

#ifdef __cplusplus
}
#endif
#endif
