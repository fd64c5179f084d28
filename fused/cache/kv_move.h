/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kv_move - pages of a KV cache to other pages, and to and from slots where a page of all layers is
 * contiguous
 *
 * Each place of a list of moves is a page, p >= 0, or a slot, ~s < 0 (that is -1 - s). Their contents, for
 * layer l < num_layers and side 0 (K) or, with v_offset, 1 (V):
 *
 *   page p   base  + l * layer_bytes + side * v_offset + p * page_bytes          .. + page_bytes
 *   slot s   slots + ((s * num_layers + l) * (v_offset ? 2 : 1) + side) * page_bytes  .. + page_bytes
 *
 * and a move copies all of it from from[i] to to[i]: page to page is copy on write, page to slot and back
 * swapping. The pages are struct cairn_kv_store's of serving/model/forward.h; page_bytes are page_size *
 * num_kv_heads * head_dim elements, K alone. A move whose from equals its to does nothing, so that lists can
 * be padded.
 *
 *   argument  dtype  shape              notes
 *   base      bytes  as above           in and out, 16-byte aligned; NULL if there are no pages
 *   slots     bytes  as above           in and out, 16-byte aligned; NULL if there are no slots
 *   from, to  int32  [num_moves]        in
 *
 * No page or slot that is written may be another move's from or to. slots may also be host memory that the
 * device reads and writes in place (table's host_alloc). Not checked: the contents of from and to, where the
 * memory ends.
 * max_ctas > 0 limits how much of the device a call occupies, so that passes of a model can run beside it: a
 * link to host memory needs few CTAs to be full (kv_move.cu says how few); 0: all it likes.
 *
 * Supported:   layer_bytes, v_offset, page_bytes multiples of 16; num_moves * num_layers below 2^31;
 *              num_moves 0 is legal and does nothing.
 * Numerics:    an exact copy, NaN included; nothing else changes, nor is read.
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
	int32_t num_pages, num_slots;	/* bounds of from and to */
	int32_t max_ctas;
};

#ifdef __cplusplus
extern "C" {
#endif

int cairn_kv_move(const struct cairn_kv_move_args *args, void *stream);
int cairn_kv_move_cpu(const struct cairn_kv_move_args *args, void *stream);
int cairn_kv_move_ref(const struct cairn_kv_move_args *args, void *stream);
/* exact[0]: base, exact[1]: slots, as int32; what is not written is left as it is */
int cairn_kv_move_exact(const struct cairn_kv_move_args *args, struct cairn_exact *exact);
/* 0, or the error that every one of ours returns for these arguments; reads no array. */
int cairn_kv_move_check(const struct cairn_kv_move_args *args);

#ifdef __cplusplus
}
#endif
#endif
