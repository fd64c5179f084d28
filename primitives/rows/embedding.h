/* SPDX-License-Identifier: Apache-2.0 */
/*
 * embedding - rows of a table, scaled on request
 *
 *   out[i,:] = table[ids[i],:]            scale 0
 *   out[i,:] = table[ids[i],:] * scale    else: Gemma's sqrt(hidden), by the caller rounded to dtype
 *
 *   argument   dtype  shape         notes
 *   out        dtype  [rows, dim]   out, 16-byte aligned, may not alias table
 *   table      dtype  [vocab, dim]  in, 16-byte aligned
 *   ids        int32  [rows]        in, 0 <= id < vocab; an id outside gives a row of zeros
 *
 * Supported:   dtype f16, bf16, f32; dim a multiple of 8. rows 0 is legal and does nothing.
 * Numerics:    without a scale an exact copy. With one the fp32 product rounded to dtype, both to nearest
 *              even: one value, no tolerance. scale is finite.
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
	float scale;			/* 0: none */
};

#ifdef __cplusplus
extern "C" {
#endif

int cairn_embedding(const struct cairn_embedding_args *args, void *stream);
int cairn_embedding_cpu(const struct cairn_embedding_args *args, void *stream);
int cairn_embedding_ref(const struct cairn_embedding_args *args, void *stream);
/* What each of ours does first: 0, -EINVAL or -EOPNOTSUPP. */
int cairn_embedding_check(const struct cairn_embedding_args *args);
int cairn_embedding_exact(const struct cairn_embedding_args *args, struct cairn_exact *exact);	/* [0]: out */

#ifdef __cplusplus
}
#endif
#endif
