/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_paged_decode - what a decode CTA of attn_paged does for a task
 *
 * A task is up to 16 packed rows of a request and a KV head. The kernels are in attn_paged.cu, which
 * describes them, and in attn_paged_uneven.cu.
 */
#ifndef CAIRN_ATTN_PAGED_DECODE_CUH
#define CAIRN_ATTN_PAGED_DECODE_CUH

#include "fused/attention/paged/attn_paged_8bit.cuh"

#define ROWS	ATTN_DECODE_TILE

/*
 * The sizes of a ring: keys and bytes of a K or V tile, stages, total bytes. head_dim 64 and 128 have the
 * same number of bytes in flight.
 */
template <int dim, bool fp8> ATTN_CONST tile_keys(void)
{
	return attn_decode_keys(dim, fp8);
}
template <int dim, bool fp8> ATTN_CONST tile_bytes(void)
{
	return tile_keys<dim, fp8>() * dim * (fp8 ? 1 : 2);
}
template <int dim, bool fp8> ATTN_CONST num_stages(void)
{
	return fp8 && dim < 256 ? 256 / dim : dim == 64 ? 6 : dim == 128 ? 3 : fp8 ? 4 : 2;
}
template <int dim, bool fp8> ATTN_CONST ring_bytes(void)
{
	return num_stages<dim, fp8>() * 2 * tile_bytes<dim, fp8>();
}
/* Returns the warps of the widest CTA. */
template <int dim, bool fp8> ATTN_CONST num_warps(void) { return attn_decode_warps(dim, fp8, ATTN_WHOLE); }

/* Loads Q as A fragments from global memory; rows of the tile past `rows` are zero. */
template <int dtype, int head_dim, bool fp8>
ATTN_DEV void load_q(uint32_t (*q)[4], const struct cairn_attn_paged_args &a, const struct attn_request &r,
		     int row0, int rows)
{
	int lane = threadIdx.x % 32;

#pragma unroll
	for (int half = 0; half < 2; half++) {
		int row = row0 + lane / 4 + half * 8;
		const uint32_t *from = (const uint32_t *)((const uint16_t *)a.q + attn_q_row(a, r, row));

		if constexpr (fp8) {
			attn_q_for_codes<head_dim>(q, half, (const uint16_t *)from, row < rows);
		} else {
#pragma unroll
			for (int k = 0; k < head_dim / 16; k++) {
				q[k][half] = row < rows ? from[k * 8 + lane % 4] : 0;
				q[k][half + 2] = row < rows ? from[k * 8 + lane % 4 + 4] : 0;
			}
		}
	}
}

/* The keys that each of a lane's two rows sees: first .. first + span - 1. */
struct seen {
	int32_t first[2], span[2];
};

/* Starts the copy of a tile of keys: lane i passes the slot of key i, or ~0. */
template <int head_dim, bool fp8>
ATTN_DEV void gather(const struct cairn_attn_paged_args &a, const struct attn_request &r, uint32_t s_k,
		     uint32_t slot)
{
	constexpr int v_offset = tile_bytes<head_dim, fp8>();

	if (fp8)
		attn_gather_codes<head_dim, tile_keys<head_dim, fp8>(), v_offset>(a, r, s_k, slot);
	else
		attn_gather<head_dim, tile_keys<head_dim, fp8>(), v_offset>(a, r, s_k, 0, slot);
}

/*
 * Adds Q K^T of 16 keys of 16 bits. Each logit has `sums` partial sums, over which its products are divided.
 */
template <int dtype, int head_dim, int sums>
ATTN_DEV void qk_tile(float (*s)[2][4], uint32_t (*q)[4], uint32_t s_k)
{
	uint32_t b[4];

	s_k += attn_k_at<head_dim>(threadIdx.x % 32);
#pragma unroll
	for (int k = 0; k < head_dim / 16; k++) {
		ptx_ldmatrix_x4(b, s_k ^ k * 32);
		attn_mma<dtype>(s[k % sums][0], q[k], b);
		attn_mma<dtype>(s[k % sums][1], q[k], b + 2);
	}
}

/* O += P V of 16 keys of 16 bits. */
template <int dtype, int head_dim>
ATTN_DEV void pv_tile(float (*o)[4], const uint32_t p[4], uint32_t s_v)
{
	uint32_t b[4];

	s_v += attn_v_at<head_dim>(threadIdx.x % 32);
#pragma unroll
	for (int d = 0; d < head_dim / 16; d++) {
		ptx_ldmatrix_x4_trans(b, s_v ^ d * 32);
		attn_mma<dtype>(o[2 * d], p, b);
		attn_mma<dtype>(o[2 * d + 1], p, b + 2);
	}
}

/* Masks the keys of the tile that begins at `key` that rows do not see. */
template <int tiles> ATTN_DEV void mask_tile(float (*s)[4], const struct seen &see, int key)
{
#pragma unroll
	for (int t = 0; t < tiles; t++) {
#pragma unroll
		for (int i = 0; i < 4; i++) {
			uint32_t nth = key + t * 8 + threadIdx.x % 4 * 2 + (i & 1) - see.first[i >> 1];

			if (nth >= (uint32_t)see.span[i >> 1])
				s[t][i] = -CUDART_INF_F;
		}
	}
}

/* Returns whether every row certainly sees all keys of a tile that ends at `end`. */
ATTN_DEV bool all_see(const struct cairn_attn_paged_args &a, const struct attn_request &r, int end)
{
	return end <= r.kv_len - r.qo_len + 1 && (r.qo_len == 1 || !a.window);
}

/*
 * Masks a tile as mask_tile() does, but for 8-bit keys. Only the few tiles in which some row does not see all
 * keys need it, so the range that a row sees is computed here instead of being kept in registers during the
 * loop. The asm keeps the compiler from moving this computation out of the loop. For 16-bit keys, this would
 * make calls with few tiles per warp 1% slower, and would not make calls with many tiles faster.
 */
template <int tiles>
ATTN_DEV void mask_late(float (*s)[4], const struct cairn_attn_paged_args &a, const struct attn_request &r,
			int row0, int key)
{
	int lane = threadIdx.x % 32;

	asm volatile("" : "+r"(row0));
#pragma unroll
	for (int half = 0; half < 2; half++) {
		int row = row0 + lane / 4 + half * 8, first = attn_row_first(a, r, row);
		int span = max(0, attn_row_sees(a, r, row) - first);

#pragma unroll
		for (int i = 0; i < 2 * tiles; i++) {
			int nth = key + i / 2 * 8 + lane % 4 * 2 + i % 2 - first;

			if ((uint32_t)nth >= (uint32_t)span)
				s[i / 2][2 * half + i % 2] = -CUDART_INF_F;
		}
	}
}

/* S = Q K^T, capped if cap is not 0, masked; then O += P V, for the tile of keys that begins at `key`. */
template <int dtype, int head_dim, bool fp8>
ATTN_DEV void attend_tile(float (*o)[4], float m[2], float l[2], const struct cairn_attn_paged_args &a,
			  const struct attn_request &r, const struct seen &see, uint32_t (*q)[4],
			  uint32_t s_tiles, int row0, int key, float scale_log2, float cap, bool q_is_f16)
{
	constexpr bool placed = fp8 && attn_places_codes<dtype, head_dim>();
	/*
	 * two partial sums per logit where registers allow: a single chain of products would stall the warp
	 */
	constexpr int sums = head_dim == 256 || placed ? 1 : 2;
	constexpr int keys = tile_keys<head_dim, fp8>(), tiles = keys / 8;
	constexpr int raise = placed ? ATTN_CODES_RAISE : 0;
	uint32_t s_v = s_tiles + tile_bytes<head_dim, fp8>();
	float s[sums][tiles][4] = {}, (*logits)[4] = s[0], keep[2];
	uint32_t p[4];

	if constexpr (placed) {
		if (q_is_f16)
			attn_qk_codes<CAIRN_F16, head_dim, keys, sums>(s, q, s_tiles);
		else
			attn_qk_codes<dtype, head_dim, keys, sums>(s, q, s_tiles);
	} else if constexpr (fp8) {
		attn_qk_codes<dtype, head_dim, keys, sums>(s, q, s_tiles);
	} else {
		qk_tile<dtype, head_dim, sums>(s, q, s_tiles);
	}
#pragma unroll
	for (int i = 0; sums == 2 && i < 4 * tiles; i++)
		logits[i / 4][i % 4] += s[sums - 1][i / 4][i % 4];
	if (cap != 0) {
#pragma unroll
		for (int i = 0; i < 4 * tiles; i++)
			logits[i / 4][i % 4] = attn_cap(logits[i / 4][i % 4], cap);
	}
	if (!fp8)
		mask_tile<tiles>(logits, see, key);
	else if (!all_see(a, r, key + keys))
		mask_late<tiles>(logits, a, r, row0, key);
	attn_softmax<tiles, raise>(logits, m, l, keep, scale_log2);
	attn_rescale<head_dim>(o, keep);
#pragma unroll
	for (int i = 0; i < keys / 16; i++) {
		attn_p_fragment<dtype>(p, logits + 2 * i);
		if constexpr (fp8)
			attn_pv_codes<dtype, head_dim>(o, p, s_v + i * 16 * head_dim);
		else
			pv_tile<dtype, head_dim>(o, p, s_v);
	}
}

/* Returns the weight of a state with maximum m in a merge with maximum top. */
ATTN_DEV float merge_weight(float m, float top, float scale_log2)
{
	return m == -CUDART_INF_F ? 0 : ptx_ex2_approx_ftz((m - top) * scale_log2);
}

ATTN_DEV void add_part(float4 *sum, float *l, float4 part, float part_l, float weight)
{
	*l += weight * part_l;
	sum->x += weight * part.x;
	sum->y += weight * part.y;
	sum->z += weight * part.z;
	sum->w += weight * part.w;
}

/* Writes four columns of a finished packed row; o is not yet divided by l. */
template <int dtype, int head_dim>
ATTN_DEV void write_out(const struct cairn_attn_paged_args &a, const struct attn_request &r,
			const struct attn_scales &scales, int row, int column, float4 o, float m, float l)
{
	int64_t at = attn_out_row(a, r, row);
	float factor = l > 0 ? 1 / l * scales.v : 0;
	uint2 packed;

	packed.x = attn_pack<dtype>(o.x * factor, o.y * factor);
	packed.y = attn_pack<dtype>(o.z * factor, o.w * factor);
	*(uint2 *)((uint16_t *)a.out + at * head_dim + column) = packed;
	if (a.lse && column == 0)
		a.lse[at] = attn_lse(m, l, attn_logit_scale(a, scales.k));
}

/* Stores a warp's state: O as [rows][head_dim] to its own ring, which only this warp uses; also m and l. */
template <int dtype, int head_dim, bool fp8>
ATTN_DEV void put_state(uint8_t *s_o, float *s_m, float *s_l, float (*o)[4], const float m[2],
			const float l[2], int num_rows)
{
	int lane = threadIdx.x % 32;

#pragma unroll
	for (int half = 0; half < 2; half++) {
		int row = lane / 4 + half * 8;
		float2 *to = (float2 *)s_o + (row * head_dim + lane % 4 * 2) / 2;
		float sum = attn_quad_sum(l[half]);

		if (fp8 && attn_places_codes<dtype, head_dim>())
			sum *= 0x1p-100f;	/* ATTN_CODES_RAISE */
		if (lane % 4 == 0) {
			s_m[row] = m[half];
			s_l[row] = sum;
		}
		if (row >= num_rows)
			continue;
		if constexpr (fp8) {
			attn_put_codes_row<dtype, head_dim>((float *)s_o + row * head_dim, o, half);
		} else {
#pragma unroll
			for (int t = 0; t < head_dim / 8; t++)
				to[t * 4] = make_float2(o[t][2 * half], o[t][2 * half + 1]);
		}
	}
}

/*
 * Merges this CTA's slice over the team. A vector of four columns has one lane for each rank (their number
 * rounded up to a power of two). Each lane fetches the vector from its rank, and the lanes add these in a
 * tree, so that all accesses together cost the latency of one. s_m, s_l, s_o: the CTA's state, at the same
 * offset in every CTA.
 */
template <int dtype, int head_dim, class Team>
ATTN_DEV void merge_team(const struct cairn_attn_paged_args &a, const struct attn_request &r,
			    const struct attn_scales &scales, const Team &team, uint32_t s_m,
			    uint32_t s_l, uint32_t s_o, int row0, int num_vecs, float scale_log2)
{
	constexpr int vecs = head_dim / 4;
	int size = team.size(), lanes = size <= 2 ? 2 : size <= 4 ? 4 : size <= 8 ? 8 : 16;
	int rank = threadIdx.x % lanes, nth = threadIdx.x % 32 / lanes, from = team.first() + rank;
	int first = attn_share(num_vecs, size, team.rank()) + threadIdx.x / lanes;
	int end = attn_share(num_vecs, size, team.rank() + 1);

	/* the loop bound is uniform over a warp, because the shuffles need all lanes */
	for (int at = first; at - nth < end; at += blockDim.x / lanes) {
		int i = min(at, end - 1), row = i / vecs;
		float m = -CUDART_INF_F, l = 0, top, total = 0;
		float4 o = make_float4(0, 0, 0, 0), sum = o;

		if (rank < size) {
			uint4 v = ptx_ld_shared_cluster_v4(ptx_mapa(s_o + i * 16, from));

			m = __uint_as_float(ptx_ld_shared_cluster_b32(ptx_mapa(s_m + row * 4, from)));
			l = __uint_as_float(ptx_ld_shared_cluster_b32(ptx_mapa(s_l + row * 4, from)));
			o = make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z),
					__uint_as_float(v.w));
		}
		top = m;
		for (int k = lanes / 2; k; k /= 2)
			top = fmaxf(top, __shfl_xor_sync(~0u, top, k));
		add_part(&sum, &total, o, l, merge_weight(m, top, scale_log2));
		for (int k = lanes / 2; k; k /= 2) {
			o = make_float4(__shfl_xor_sync(~0u, sum.x, k), __shfl_xor_sync(~0u, sum.y, k),
					__shfl_xor_sync(~0u, sum.z, k), __shfl_xor_sync(~0u, sum.w, k));
			add_part(&sum, &total, o, __shfl_xor_sync(~0u, total, k), 1);
		}
		if (rank == 0 && at < end)
			write_out<dtype, head_dim>(a, r, scales, row0 + row, i % vecs * 4, sum, top, total);
	}
}

/*
 * Attends to packed rows row0 .. rows - 1 of a request, as one CTA of a team. A Team has size(); first(), the
 * rank in the cluster of its first CTA; and rank(), that of this CTA in the team. If teams have several CTAs,
 * all CTAs of the cluster must call this, or pass its two cluster barriers.
 */
template <int dtype, int head_dim, bool fp8, class Team>
ATTN_DEV void attend_rows(const struct cairn_attn_paged_args &a, const struct attn_request &r, int32_t row0,
			  int32_t rows, const Team &team)
{
	extern __shared__ __align__(1024) uint8_t s_ring[];
	constexpr int stages = num_stages<head_dim, fp8>(), ring = ring_bytes<head_dim, fp8>();
	constexpr int keys = tile_keys<head_dim, fp8>(), stage = 2 * tile_bytes<head_dim, fp8>();
	constexpr int vecs = head_dim / 4;
	int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
	float *s_m = (float *)(s_ring + warps * ring), *s_l = s_m + warps * ROWS;
	float *s_cta_m = s_l + warps * ROWS, *s_cta_l = s_cta_m + ROWS;
	uint32_t s_warp = ptx_smem(s_ring) + warp * ring;
	int32_t page_shift = kv_page_shift(a.kv.page_size);
	float o[head_dim / 8][4] = {}, m[2] = { -CUDART_INF_F, -CUDART_INF_F }, l[2] = {};
	float scale_log2, cap;
	struct attn_scales scales;
	uint32_t q[head_dim / 16][4], slots[stages], slot;
	int32_t begin, end, num_tiles, first, last;
	struct seen see;
	bool q_is_f16 = false;

	end = attn_row_sees(a, r, rows - 1);
	begin = attn_row_first(a, r, row0);
	num_tiles = attn_div_up(end - begin, keys);
	first = attn_share(num_tiles, team.size(), team.rank()) + warp;
	last = attn_share(num_tiles, team.size(), team.rank() + 1);

	/* issue all independent loads before the first dependent one */
#pragma unroll
	for (int i = 0; i < stages; i++) {
		int tile = first + i * warps;

		slots[i] = attn_slot(a, r, page_shift, begin + tile * keys + lane,
				     tile < last && lane < keys ? end : 0);
	}
	load_q<dtype, head_dim, fp8>(q, a, r, row0, rows);
	scales = attn_scales_of<fp8>(a, r.head);
#pragma unroll
	for (int i = 0; i < stages - 1; i++) {
		if (first + i * warps < last)
			gather<head_dim, fp8>(a, r, s_warp + i * stage, slots[i]);
		ptx_cp_async_commit_group();
	}
	slot = slots[stages - 1];
	if constexpr (fp8 && attn_places_codes<dtype, head_dim>()) {
		const float down = attn_q_in_f16<head_dim>(q);

		q_is_f16 = down != 0;
		scales.k *= q_is_f16 ? down : 1;
	} else if constexpr (fp8) {
		attn_q_in_order<dtype, head_dim>(q);
	}
	scale_log2 = attn_logit_scale(a, scales.k) * ATTN_LOG2E;
	cap = attn_cap_factor(a, scales.k);
#pragma unroll
	for (int half = 0; half < 2; half++) {
		int row = row0 + lane / 4 + half * 8;

		see.first[half] = attn_row_first(a, r, row);
		see.span[half] = max(0, attn_row_sees(a, r, row) - see.first[half]);
	}
	for (int tile = first, n = 0; tile < last; tile += warps) {
		int next = tile + (stages - 1) * warps;
		int refill = n == 0 ? stages - 1 : n - 1;	/* the stage that the previous tile freed */

		ptx_cp_async_wait_group<stages - 2>();
		__syncwarp();
		if (next < last)
			gather<head_dim, fp8>(a, r, s_warp + refill * stage, slot);
		ptx_cp_async_commit_group();
		next += warps;
		slot = attn_slot(a, r, page_shift, begin + next * keys + lane,
				 next < last && lane < keys ? end : 0);
		attend_tile<dtype, head_dim, fp8>(o, m, l, a, r, see, q, s_warp + n * stage, row0,
						  begin + tile * keys, scale_log2, cap, q_is_f16);
		n = n == stages - 1 ? 0 : n + 1;
	}
	ptx_griddepcontrol_launch_dependents();

	ptx_cp_async_wait_group<0>();
	__syncwarp();
	rows -= row0;
	put_state<dtype, head_dim, fp8>(s_ring + warp * ring, s_m + warp * ROWS, s_l + warp * ROWS, o, m, l,
					rows);
	__syncthreads();
	for (int i = threadIdx.x; i < rows * vecs; i += blockDim.x) {
		float top = -CUDART_INF_F, total = 0;
		float4 sum = make_float4(0, 0, 0, 0);
		int row = i / vecs;

#pragma unroll 4
		for (int w = 0; w < warps; w++)
			top = fmaxf(top, s_m[w * ROWS + row]);
#pragma unroll 4
		for (int w = 0; w < warps; w++)
			add_part(&sum, &total, ((float4 *)(s_ring + w * ring))[i], s_l[w * ROWS + row],
				 merge_weight(s_m[w * ROWS + row], top, scale_log2));
		if (team.size() == 1) {
			write_out<dtype, head_dim>(a, r, scales, row0 + row, i % vecs * 4, sum, top, total);
			continue;
		}
		((float4 *)s_ring)[i] = sum;	/* replaces warp 0's O; only this thread uses vector i */
		if (i % vecs == 0) {
			s_cta_m[row] = top;
			s_cta_l[row] = total;
		}
	}
	if (team.size() == 1)
		return;
	ptx_barrier_cluster_arrive_release();
	ptx_barrier_cluster_wait_acquire();
	merge_team<dtype, head_dim>(a, r, scales, team, ptx_smem(s_cta_m), ptx_smem(s_cta_l),
				    ptx_smem(s_ring), row0, rows * vecs, scale_log2);
	/* a CTA must neither exit nor use its shared memory while a peer may still read it */
	ptx_barrier_cluster_arrive_release();
	ptx_barrier_cluster_wait_acquire();
}

#endif
