// SPDX-License-Identifier: Apache-2.0
/*
 * attn_paged_prefill - the prefill kernel of attn_paged: many rows, FlashAttention-2 on mma.sync
 *
 * A CTA of four warps owns a tile of packed rows (attn_tile.h) of one request and KV head, and
 * walks its keys in tiles from the first. With the group packed into the rows, K and V are read
 * once for all heads of the group. A warp owns 16 * m_tiles of the rows: every B fragment that it
 * reads from shared memory feeds that many products; with one alone (head_dim 256) shared memory is
 * the limit. Two CTAs share an SM, so that the softmax of one runs beside the products of the
 * other. Row tiles go from the last, under a causal mask the longest, to the first.
 *
 *   tile t, all warps:  wait for t | CTA barrier: t is visible to all, t - 1 is read by all | start
 *                       t + 1 | S = Q K^T | mask, if t reaches past what the first row sees |
 *                       online softmax | O += P V
 *   end:                O / l -> the warp's own rows of Q's tile -> memory, 16 bytes a thread
 *
 * A warp gathers a quarter of the keys of each tile: its lanes look the slots up one tile ahead.
 *
 * Shared memory, KiB                                               head_dim 64   128   256
 *   Q tile, later O             rows x head_dim x 2 (rows 128, 128, 64)     16    32    32
 *   [2 stages][K tile, V tile]  4 x keys x head_dim x 2 (keys 64, 64, 32)   32    64    64
 *
 * Barriers: one __syncthreads() a tile. cp.async: one group a tile, the first one with Q.
 *
 * Registers: 219, 255, 240 for head_dim 64, 128, 256 (O 128 and S 64 of them at 128), no spills. At
 * 128 nothing is to spare: the mask's bounds are worked out where they are needed, and the k loop
 * is unrolled by four only.
 *
 * Floor: 4 * head_dim * (query, key) pairs at the rate of mma.sync, roughly 60% of wgmma's 680-790
 * TFLOP/s on an H200. Reached there, bf16, 32/8 heads, head_dim 128, page 16, causal, 16K tokens in
 * all: S = 1K / 4K / 16K 277 / 334 / 373 TFLOP/s (full, 4K: 360); head_dim 64 and 256 at 4K: 265
 * and 251. Pages of 1 slot cost 2%.
 *
 * Tried and lost (S = 4K causal): 32 keys a tile -10%; 64 keys as two halves of 32, for fewer
 * registers, -6 to -12%; m_tiles 1 at head_dim 128, -20%; dividing rows by the group with a
 * division -7%. Early packing of P and look-ups in the same tile +1.7%, but spills as soon as the
 * compiler changes its mind.
 */
#include "attn_paged.h"

#include "../primitives/launch.h"
#include "attn_tile.cuh"

#define WARPS	4
#define THREADS	(WARPS * 32)

template <int dim> ATTN_CONST m_tiles(void) { return dim == 256 ? 1 : 2; }
template <int dim> ATTN_CONST tile_rows(void) { return WARPS * 16 * m_tiles<dim>(); }
template <int dim> ATTN_CONST tile_keys(void) { return dim == 256 ? 32 : 64; }
template <int dim> ATTN_CONST q_bytes(void) { return tile_rows<dim>() * dim * 2; }
template <int dim> ATTN_CONST tile_bytes(void) { return tile_keys<dim>() * dim * 2; }
template <int dim> ATTN_CONST smem_bytes(void) { return q_bytes<dim>() + 4 * tile_bytes<dim>(); }

template <int head_dim>
ATTN_DEV void gather_q(const struct cairn_attn_paged_args &a, const struct attn_request &r, uint32_t s_q,
		       int row0, int rows)
{
	constexpr int chunks = head_dim / 8;

	for (int i = threadIdx.x; i < tile_rows<head_dim>() * chunks; i += THREADS) {
		int row = row0 + i / chunks, chunk = i % chunks;
		int64_t at = row < rows ? attn_q_row(a, r, row) + chunk * 8 : 0;

		ptx_cp_async_cg(s_q + attn_swizzle(i / chunks, chunk, head_dim * 2),
				(const uint16_t *)a.q + at, row < rows ? 16 : 0);
	}
}

/* The slot of this lane's key of a tile: the first keys / WARPS lanes of a warp have one. */
template <int head_dim>
ATTN_DEV uint32_t tile_slot(const struct cairn_attn_paged_args &a, const struct attn_request &r,
			    int32_t page_shift, int tile, int32_t end)
{
	constexpr int keys = tile_keys<head_dim>(), share = keys / WARPS;
	int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

	return attn_slot(a, r, page_shift, tile * keys + warp * share + lane, lane < share ? end : 0);
}

/* Starts the copy of this warp's share of a tile. */
template <int head_dim>
ATTN_DEV void gather_tile(const struct cairn_attn_paged_args &a, const struct attn_request &r,
			  uint32_t s_tiles, uint32_t slot)
{
	constexpr int share = tile_keys<head_dim>() / WARPS, v_offset = tile_bytes<head_dim>();

	attn_gather<head_dim, share, v_offset>(a, r, s_tiles, threadIdx.x / 32 * share, slot);
}

/* -inf for what the rows of this warp do not see of the tile that begins at `key`. */
template <int head_dim>
ATTN_DEV void mask_tile(const struct cairn_attn_paged_args &a, const struct attn_request &r,
			float (*s)[tile_keys<head_dim>() / 8][4], int key, int row0)
{
	constexpr int mt = m_tiles<head_dim>();
	int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

	key += lane % 4 * 2;
#pragma unroll
	for (int i = 0; i < mt; i++) {
#pragma unroll
		for (int half = 0; half < 2; half++) {
			int row = row0 + (warp * mt + i) * 16 + lane / 4 + half * 8;
			int see = attn_row_sees(a, r, row);

#pragma unroll
			for (int t = 0; t < tile_keys<head_dim>() / 8; t++) {
				if (key + t * 8 >= see)
					s[i][t][2 * half] = -CUDART_INF_F;
				if (key + t * 8 + 1 >= see)
					s[i][t][2 * half + 1] = -CUDART_INF_F;
			}
		}
	}
}

template <int dtype, int head_dim>
ATTN_DEV void attend_tile(const struct cairn_attn_paged_args &a, const struct attn_request &r,
			  float (*o)[head_dim / 8][4], float (*m)[2], float (*l)[2], uint32_t s_q,
			  uint32_t s_tiles, int key, int row0, bool masked)
{
	constexpr int mt = m_tiles<head_dim>(), keys = tile_keys<head_dim>(), row_bytes = head_dim * 2;
	int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	uint32_t s_k = s_tiles + attn_k_at<head_dim>(lane);
	uint32_t s_v = s_tiles + tile_bytes<head_dim>() + attn_v_at<head_dim>(lane);
	float s[mt][keys / 8][4] = {}, keep[2];

	s_q += warp * mt * 16 * row_bytes + attn_q_at<head_dim>(lane);
	/* by four: unrolled altogether, more fragments are fetched ahead than there are registers for */
#pragma unroll 4
	for (int k = 0; k < head_dim / 16; k++) {
		uint32_t q[mt][4], b[4];

#pragma unroll
		for (int i = 0; i < mt; i++)
			ptx_ldmatrix_x4(q[i], (s_q ^ k * 32) + i * 16 * row_bytes);
#pragma unroll
		for (int t = 0; t < keys / 16; t++) {
			ptx_ldmatrix_x4(b, (s_k ^ k * 32) + t * 16 * row_bytes);
#pragma unroll
			for (int i = 0; i < mt; i++) {
				attn_mma<dtype>(s[i][2 * t], q[i], b);
				attn_mma<dtype>(s[i][2 * t + 1], q[i], b + 2);
			}
		}
	}
	if (masked)
		mask_tile<head_dim>(a, r, s, key, row0);
#pragma unroll
	for (int i = 0; i < mt; i++) {
		attn_softmax<keys / 8>(s[i], m[i], l[i], keep, a.sm_scale * ATTN_LOG2E);
		attn_rescale<head_dim>(o[i], keep);
	}
#pragma unroll
	for (int t = 0; t < keys / 16; t++) {
		uint32_t p[mt][4], b[4];

#pragma unroll
		for (int i = 0; i < mt; i++)
			attn_p_fragment<dtype>(p[i], s[i] + 2 * t);
#pragma unroll
		for (int d = 0; d < head_dim / 16; d++) {
			ptx_ldmatrix_x4_trans(b, (s_v ^ d * 32) + t * 16 * row_bytes);
#pragma unroll
			for (int i = 0; i < mt; i++) {
				attn_mma<dtype>(o[i][2 * d], p[i], b);
				attn_mma<dtype>(o[i][2 * d + 1], p[i], b + 2);
			}
		}
	}
}

/* O / l and lse of a warp's 16 rows from row0 (packed); s_o is where these rows of Q were. */
template <int dtype, int head_dim>
ATTN_DEV void write_rows(const struct cairn_attn_paged_args &a, const struct attn_request &r,
			 float (*o)[4], const float m[2], const float l[2], uint32_t s_o, int row0, int rows)
{
	constexpr int chunks = head_dim / 8;
	int lane = threadIdx.x % 32;

#pragma unroll
	for (int half = 0; half < 2; half++) {
		float sum = attn_quad_sum(l[half]), inverse = sum > 0 ? 1 / sum : 0;
		int in_tile = lane / 4 + half * 8, row = row0 + in_tile;

#pragma unroll
		for (int t = 0; t < chunks; t++) {
			const float *two = &o[t][2 * half];
			uint32_t v = attn_pack<dtype>(two[0] * inverse, two[1] * inverse);

			ptx_st_shared_f32(s_o + attn_swizzle(in_tile, t, head_dim * 2) + lane % 4 * 4,
					  __uint_as_float(v));
		}
		if (a.lse && lane % 4 == 0 && row < rows)
			a.lse[attn_out_row(a, r, row)] = attn_lse(m[half], sum, a.sm_scale);
	}
	__syncwarp();
	for (int i = lane; i < 16 * chunks; i += 32) {
		int row = i / chunks, chunk = i % chunks;

		if (row0 + row < rows)
			((uint4 *)a.out)[attn_out_row(a, r, row0 + row) * chunks + chunk] =
				ptx_ld_shared_v4(s_o + attn_swizzle(row, chunk, head_dim * 2));
	}
}

template <int dtype, int head_dim>
static __global__ __launch_bounds__(THREADS, 2) void
attn_paged_prefill_kernel(const __grid_constant__ struct cairn_attn_paged_args a, int32_t min_rows,
			  int32_t group, uint32_t magic)
{
	extern __shared__ __align__(1024) uint8_t s_all[];
	constexpr int mt = m_tiles<head_dim>(), keys = tile_keys<head_dim>();
	constexpr int stage = 2 * tile_bytes<head_dim>();
	int row0 = (gridDim.x - 1 - blockIdx.x) * tile_rows<head_dim>();
	uint32_t s_q = ptx_smem(s_all), s_kv = s_q + q_bytes<head_dim>(), slot;
	float o[mt][head_dim / 8][4] = {}, m[mt][2], l[mt][2] = {};
	int32_t page_shift = attn_page_shift(a.page_size), rows, end, num_tiles, all_see;
	struct attn_request r;

	ptx_griddepcontrol_wait();
	r = attn_load_request(a, blockIdx.z, blockIdx.y, group, magic);
	rows = r.qo_len * group;
	if (row0 >= rows || rows <= min_rows)
		return;
	all_see = attn_row_sees(a, r, row0);
	end = attn_row_sees(a, r, min(rows, row0 + tile_rows<head_dim>()) - 1);
	num_tiles = attn_div_up(end, keys);
#pragma unroll
	for (int i = 0; i < mt; i++)
		m[i][0] = m[i][1] = -CUDART_INF_F;
	gather_q<head_dim>(a, r, s_q, row0, rows);
	slot = tile_slot<head_dim>(a, r, page_shift, 0, end);
	if (num_tiles)
		gather_tile<head_dim>(a, r, s_kv, slot);
	ptx_cp_async_commit_group();
	slot = tile_slot<head_dim>(a, r, page_shift, 1, end);
	for (int tile = 0; tile < num_tiles; tile++) {
		ptx_cp_async_wait_group<0>();
		__syncthreads();
		if (tile + 1 < num_tiles)
			gather_tile<head_dim>(a, r, s_kv + (~tile & 1) * stage, slot);
		ptx_cp_async_commit_group();
		slot = tile_slot<head_dim>(a, r, page_shift, tile + 2, end);
		attend_tile<dtype, head_dim>(a, r, o, m, l, s_q, s_kv + (tile & 1) * stage, tile * keys,
					     row0, (tile + 1) * keys > all_see);
	}
	ptx_griddepcontrol_launch_dependents();
	/* without a tile Q has not landed yet, in what is about to be written */
	ptx_cp_async_wait_group<0>();
	__syncthreads();
#pragma unroll
	for (int i = 0; i < mt; i++) {
		int first = (threadIdx.x / 32 * mt + i) * 16;

		write_rows<dtype, head_dim>(a, r, o[i], m[i], l[i], s_q + first * head_dim * 2,
					    row0 + first, rows);
	}
}

template <int head_dim>
static int launch(const struct cairn_attn_paged_args *args, int32_t min_rows, void *stream)
{
	int32_t group = args->num_qo_heads / args->num_kv_heads;
	int64_t rows = (int64_t)args->max_qo_len * group;
	uint32_t magic = attn_magic((uint32_t)group);
	void *params[] = { (void *)args, &min_rows, &group, &magic };
	struct cairn_launch l = {};

	/* where attn_token() is exact, and where a grid ends */
	if (rows > 0x7ffff000 || (rows + 128) * group > 0xffffffffll || args->num_kv_heads > 65535 ||
	    args->batch > 65535)
		return cairn_error(EOPNOTSUPP, "attn_paged: max_qo_len, num_kv_heads, batch: too large");
	l.grid[0] = (unsigned int)attn_div_up((int32_t)rows, tile_rows<head_dim>());
	l.grid[1] = (unsigned int)args->num_kv_heads;
	l.grid[2] = (unsigned int)args->batch;
	l.block[0] = THREADS;
	l.smem = smem_bytes<head_dim>();
	l.pdl = 1;
	l.stream = stream;
	return cairn_launch(args->dtype == CAIRN_F16 ?
			    (const void *)attn_paged_prefill_kernel<CAIRN_F16, head_dim> :
			    (const void *)attn_paged_prefill_kernel<CAIRN_BF16, head_dim>, &l, params);
}

int attn_paged_prefill(const struct cairn_attn_paged_args *args, int32_t min_rows, void *stream)
{
	switch (args->head_dim) {
	case 64:
		return launch<64>(args, min_rows, stream);
	case 128:
		return launch<128>(args, min_rows, stream);
	default:
		return launch<256>(args, min_rows, stream);
	}
}
