/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_variant_pieces - pieces of 32 rotated keys in the workspace, and the producer that waits for them
 *
 * The row tiles of a KV head read the same rotated keys. The first warp that comes to a piece claims it,
 * rotates it from K into the workspace, and marks it done (attn_variant_keys.cuh). Producers copy key tiles
 * from the workspace when their pieces are done. A warp that has claimed a piece waits for nothing until the
 * piece is done. So a producer that waits for a piece waits for a running warp, and the CTAs need not be
 * resident at the same time.
 *
 * Piece n of a request has its keys 32 n to 32 n + 31. The states of its pieces begin at index (row of its
 * first key) / 32 + (number of the request), so two requests never share a state.
 */
#ifndef CAIRN_ATTN_VARIANT_PIECES_CUH
#define CAIRN_ATTN_VARIANT_PIECES_CUH

#include "fused/attention/dense/attn_dense_fetch.cuh"
#include "fused/attention/variant/attn_variant_call.cuh"

enum { ATTN_PIECE_FREE, ATTN_PIECE_CLAIMED, ATTN_PIECE_DONE };

ATTN_DEV uint32_t *attn_piece_states(const struct attn_variant_call &a, int request, int kv_first,
				     int kv_head)
{
	return a.states + (int64_t)kv_head * a.pieces + kv_first / ATTN_PIECE + request;
}

/* A producer's record of a request's pieces: bit n is set if piece first + n is done. */
struct attn_made {
	int32_t first;
	uint32_t done;
};

/* Waits until the keys of key tile i are in the workspace; called by the producer warp. */
template <class F>
ATTN_DEV void attn_await_pieces(const struct attn_variant_call &a, const struct attn_dense_walk &w, int i,
				struct attn_made *made)
{
	const int key = w.row - w.first + i * F::keys, keys_end = w.row - w.first + w.left;
	const int begin = key / ATTN_PIECE, end = attn_div_up(min(key + F::keys, keys_end), ATTN_PIECE);
	const int piece = begin + (int)threadIdx.x % 32;
	const uint32_t needed = (1u << (end - begin)) - 1;
	const uint32_t *state = attn_piece_states(a, w.request, w.first, w.kv_head) + piece;
	int64_t start;

	if (i > 0 && end <= made->first + 32 && (made->done >> (begin - made->first) & needed) == needed)
		return;
	start = ptx_clock64();
	made->first = begin;
	for (;;) {
		bool done = piece < attn_div_up(keys_end, ATTN_PIECE) &&
			    ptx_ld_relaxed_gpu_u32(state) == ATTN_PIECE_DONE;

		made->done = __ballot_sync(~0u, done);
		if ((made->done & needed) == needed)
			break;
		ptx_spin_check(start, "pieces of K", begin, 0);
	}
	/* warps wrote the pieces by ordinary stores, and asynchronous copies will read them */
	ptx_fence_acq_rel_gpu();
	__syncwarp();
	ptx_fence_proxy_async_global();
}

#endif
