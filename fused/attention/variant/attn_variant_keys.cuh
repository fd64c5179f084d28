/* SPDX-License-Identifier: Apache-2.0 */
/* attn_variant_keys - the warps beside the producer rotate each key once, into the workspace */
#ifndef CAIRN_ATTN_VARIANT_KEYS_CUH
#define CAIRN_ATTN_VARIANT_KEYS_CUH

#include "fused/attention/variant/attn_variant_rotate.cuh"

/* The keys of a request and KV head. */
struct attn_keys {
	struct attn_x x;		/* the argument of key(), except k_pos */
	const uint16_t *from;		/* the request's first key in K, and in the workspace */
	uint16_t *to;
	int64_t stride;			/* of K, in elements */
	uint32_t *states;		/* of the request's pieces */
};

ATTN_DEV struct attn_keys attn_keys_of_tile(const struct attn_variant_call &a, const struct attn_row_tile &t,
					    int dim)
{
	struct attn_keys k;

	k.x = attn_variant_x_of_keys(a, t);
	k.from = (const uint16_t *)a.k + (int64_t)t.kv_first * a.k_stride +
		 (int64_t)k.x.kv_head * a.k_head_stride;
	k.to = (uint16_t *)a.turned + ((int64_t)k.x.kv_head * a.nnz_kv + t.kv_first) * dim;
	k.stride = a.k_stride;
	k.states = attn_piece_states(a, t.request, t.kv_first, k.x.kv_head);
	return k;
}

/* Loads a lane's part of some rows, `step` rows apart. Instead of a row past the end, loads the last row. */
template <int rows, int step, int dim, bool interleaved>
ATTN_DEV void attn_load_keys(struct attn_part *p, const struct attn_keys &k, int key, int part)
{
#pragma unroll
	for (int i = 0; i < rows; i++) {
		int64_t row = min(key + i * step, k.x.kv_len - 1);
		const uint4 *from = (const uint4 *)(k.from + row * k.stride) + part;

		p[i].a = __ldg(from);
		if (!interleaved)
			p[i].b = __ldg(from + dim / 16);
	}
}

/* Rotates these rows and stores them; the last one may be stored twice, with the same values. */
template <int dtype, class H, int rows, int step, int dim, bool interleaved>
ATTN_DEV void attn_turn_rows(struct attn_part *p, const struct attn_keys &k, int key, int part)
{
	struct attn_x x = k.x;

#pragma unroll
	for (int i = 0; i < rows; i++) {
		uint4 *to;

		x.k_pos = min(key + i * step, k.x.kv_len - 1);
		to = (uint4 *)(k.to + (int64_t)x.k_pos * dim) + part;
		attn_rotate_part<dtype, H, true, interleaved>(x, &p[i], part);
		to[0] = p[i].a;
		if (!interleaved)
			to[dim / 16] = p[i].b;
	}
}

/*
 * Rotates a piece; called by a warp. A lane rotates the same part of every step-th row, and loads its next
 * rows before it rotates the ones it has.
 */
template <int dtype, class F, class H, bool interleaved>
ATTN_DEV void attn_turn_piece(const struct attn_keys &k, int piece)
{
	constexpr int dim = F::qk, parts = dim / (interleaved ? 8 : 16), step = 32 / parts, rows = dim / 64;
	const int lane = attn_thread() % 32, part = lane % parts, first = piece * ATTN_PIECE + lane / parts;
	const int end = (piece + 1) * ATTN_PIECE;
	struct attn_part p[2][rows];

	attn_load_keys<rows, step, dim, interleaved>(p[0], k, first, part);
	for (int key = first; key < end; key += 2 * rows * step) {
		int second = key + rows * step, third = second + rows * step;

		attn_load_keys<rows, step, dim, interleaved>(p[1], k, second, part);
		attn_turn_rows<dtype, H, rows, step, dim, interleaved>(p[0], k, key, part);
		if (third < end)
			attn_load_keys<rows, step, dim, interleaved>(p[0], k, third, part);
		attn_turn_rows<dtype, H, rows, step, dim, interleaved>(p[1], k, second, part);
	}
}

/* Prefetches a piece of K into the L2, which does not hold the rows of most pieces yet. */
template <int dim> ATTN_DEV void attn_prefetch_piece(const struct attn_keys &k, int piece)
{
	int64_t row = min(max(piece, 0) * ATTN_PIECE + (int)threadIdx.x % 32, k.x.kv_len - 1);

#pragma unroll
	for (int c = 0; c < dim; c += 64)
		ptx_prefetch_global_L2(k.from + row * k.stride + c);
}

/* Marks a piece as done. The fence makes what these threads stored visible to the copies of the producers. */
ATTN_DEV void attn_hand_over(uint32_t *state)
{
	ptx_fence_proxy_async_global();
	__syncwarp();
	if (threadIdx.x % 32 == 0)
		ptx_st_release_gpu_u32(state, ATTN_PIECE_DONE);
}

/* Pieces that a warp may claim: bit n of `free` stands for piece first + n. */
struct attn_free {
	int first, end;
	uint32_t free;
};

ATTN_DEV void attn_look_for_free(const uint32_t *states, struct attn_free *f)
{
	int piece = f->first + (int)threadIdx.x % 32;
	bool open = piece < f->end && ptx_ld_relaxed_gpu_u32(states + piece) == ATTN_PIECE_FREE;

	f->free = __ballot_sync(~0u, open);
}

/* Returns a piece to claim, if possible a preferred one, or -1 if there is none. */
ATTN_DEV int attn_pick_free(const uint32_t *states, struct attn_free *f, uint32_t preferred)
{
	uint32_t from;
	int n;

	while (!f->free) {
		f->first += 32;
		if (f->first >= f->end)
			return -1;
		attn_look_for_free(states, f);
	}
	from = f->free & preferred ? f->free & preferred : f->free;
	n = __ffs((int)from) - 1;
	f->free &= ~(1u << n);
	return f->first + n;
}

/*
 * Returns the pieces that a warp prefers, as bits of struct attn_free. The six warps of two neighbouring row
 * tiles prefer different pieces. With slices, warps from 3 on are those of the consumers.
 */
template <class F, bool sliced> ATTN_DEV uint32_t attn_preferred(const struct attn_row_tile &t, int warp)
{
	return sliced ? 0x10001u << warp : 0x41041041u << (warp + t.row0 / F::rows % 2 * 3);
}

/*
 * Rotates those keys of a row tile that no warp has claimed; called by each of three warps or, with slices,
 * of all warps but the producer. The next claim is in flight while a piece is rotated.
 */
template <int dtype, class F, class H, bool sliced, bool interleaved>
ATTN_DEV void attn_turn_keys(const struct attn_variant_call &a, const struct attn_row_tile &t, int warp)
{
	const struct attn_keys k = attn_keys_of_tile(a, t, F::qk);
	const uint32_t preferred = attn_preferred<F, sliced>(t, warp);
	const bool leader = threadIdx.x % 32 == 0;
	struct attn_free f = { t.begin / ATTN_PIECE };
	int piece = -1, wanted;

	f.end = attn_div_up(min(t.begin + t.num_tiles * F::keys, t.kv_len), ATTN_PIECE);
	attn_look_for_free(k.states, &f);
	do {
		uint32_t was = ATTN_PIECE_CLAIMED;

		wanted = attn_pick_free(k.states, &f, preferred);
		if (leader && wanted >= 0)
			was = atomicCAS(k.states + wanted, (uint32_t)ATTN_PIECE_FREE,
					(uint32_t)ATTN_PIECE_CLAIMED);
		attn_prefetch_piece<F::qk>(k, wanted);
		if (piece >= 0) {
			attn_turn_piece<dtype, F, H, interleaved>(k, piece);
			attn_hand_over(k.states + piece);
		}
		piece = __shfl_sync(~0u, was, 0) == ATTN_PIECE_FREE ? wanted : -1;
		if (piece < 0 && wanted >= 0)
			attn_look_for_free(k.states, &f);
	} while (wanted >= 0);
}

#endif
