/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kv_move - copies pages of a KV cache to other pages, and to and from slots that hold a page of all layers
 *
 * Each place in a list of moves is a page, p >= 0, or a slot, ~s < 0 (that is, -1 - s). The contents of a
 * place for layer l < num_layers and side 0 (K) or, if v_offset is not 0, side 1 (V), are at:
 *
 *   page p   base  + l * layer_bytes + side * v_offset + p * page_bytes                       page_bytes long
 *   slot s   slots + ((s * num_layers + l) * (v_offset ? 2 : 1) + side) * page_bytes          page_bytes long
 *
 * A move copies all layers and sides from from[i] to to[i]. All four combinations are legal: page to page is
 * copy-on-write, page to slot and slot to page are swapping, and slot to slot copies what was swapped out.
 * The pages are those of struct cairn_kv_store (serving/model/forward/forward.h); page_bytes is the size of
 * page_size * num_kv_heads * head_dim elements of K. A move whose from equals its to does nothing, so that
 * lists can be padded.
 *
 *   argument  dtype  shape              notes
 *   base      bytes  as above           in and out, 16-byte aligned; NULL if there are no pages
 *   slots     bytes  as above           in and out, 16-byte aligned; NULL if there are no slots
 *   from, to  int32  [num_moves]        in
 *
 * A page or slot that is written must not be the from or to of another move. slots may also be host memory
 * that the device accesses directly (host_alloc of the operation table). Not checked: the contents of from
 * and to; the size of the memory.
 *
 * max_ctas > 0 limits the number of CTAs of a call, so that a model's kernels can run at the same time. A few
 * CTAs saturate a link to host memory (kv_move.cu says how many). 0: no limit.
 *
 * Supported:   layer_bytes, v_offset, page_bytes multiples of 16; num_moves * num_layers * (v_offset ? 2 : 1)
 *              below 2^31; num_moves 0 is legal and does nothing.
 * Numerics:    an exact copy, NaN included; nothing else is read or changed.
 * Determinism: bitwise repeatable.
 * Errors:      -EINVAL (null pointer, misaligned, negative or contradictory size), -EOPNOTSUPP, -EIO.
 */
#ifndef CAIRN_KV_MOVE_H
#define CAIRN_KV_MOVE_H

#include <stddef.h>
#include <stdint.h>

struct cairn_exact;

struct cairn_kv_move_args {
	size_t size;
	void *base, *slots;
	const int32_t *from, *to;
	int64_t layer_bytes, v_offset, page_bytes;
	int32_t num_moves, num_layers;
	int32_t num_pages, num_slots;	/* from and to are pages below num_pages or slots below num_slots */
	int32_t max_ctas;		/* 0: no limit */
};

#ifdef __cplusplus
extern "C" {
#endif

int cairn_kv_move(const struct cairn_kv_move_args *args, void *stream);
int cairn_kv_move_cpu(const struct cairn_kv_move_args *args, void *stream);
int cairn_kv_move_ref(const struct cairn_kv_move_args *args, void *stream);
/* exact[0]: base, exact[1]: slots, as int32; entries that are not written keep their values */
int cairn_kv_move_exact(const struct cairn_kv_move_args *args, struct cairn_exact *exact);
/* Returns 0, or the error that all of our tables return for these arguments; reads no array. */
int cairn_kv_move_check(const struct cairn_kv_move_args *args);

#ifdef __cplusplus
}
#endif
#endif
