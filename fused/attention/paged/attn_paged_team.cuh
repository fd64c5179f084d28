/* SPDX-License-Identifier: Apache-2.0 */
/* attn_paged_team - a team of CTAs of a cluster attends to a task; each has a contiguous part of its keys */
#ifndef CAIRN_ATTN_PAGED_TEAM_CUH
#define CAIRN_ATTN_PAGED_TEAM_CUH

#include "fused/attention/paged/attn_paged_decode.cuh"

/*
 * Merges this CTA's slice over the team. A vector of four columns has one lane for each rank (their number
 * rounded up to a power of two). Each lane fetches the vector from its rank, and the lanes add these in a
 * tree, so that all accesses together cost the latency of one. s_m, s_l, s_o: the CTA's state, at the same
 * offset in every CTA.
 */
template <int dtype, int head_dim, class Team>
ATTN_DEV void merge_team(const struct cairn_attn_paged_args &a, const struct attn_request &r,
			 const struct attn_scaling &z, const Team &team, uint32_t s_m, uint32_t s_l,
			 uint32_t s_o, int row0, int num_vecs)
{
	constexpr int vecs = head_dim / 4;
	int size = team.size(), lanes = size <= 2 ? 2 : size <= 4 ? 4 : size <= 8 ? 8 : 16;
	int rank = threadIdx.x % lanes, nth = threadIdx.x % 32 / lanes, from = team.first() + rank;
	int first = team.share(num_vecs, team.rank()) + threadIdx.x / lanes;
	int end = team.share(num_vecs, team.rank() + 1);

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
		add_part(&sum, &total, o, l, merge_weight(m, top, z.scale_log2));
		for (int k = lanes / 2; k; k /= 2) {
			o = make_float4(__shfl_xor_sync(~0u, sum.x, k), __shfl_xor_sync(~0u, sum.y, k),
					__shfl_xor_sync(~0u, sum.z, k), __shfl_xor_sync(~0u, sum.w, k));
			add_part(&sum, &total, o, __shfl_xor_sync(~0u, total, k), 1);
		}
		if (rank == 0 && at < end)
			write_out<dtype, head_dim>(a, r, z.scales, row0 + row, i % vecs * 4, sum, top, total);
	}
}

/*
 * Attends to packed rows row0 .. rows - 1 of a request with the tiles first_tile .. last_tile - 1 of their
 * keys, and leaves the state of each warp in shared memory. The caller then synchronises the CTA.
 */
template <int dtype, int head_dim, bool fp8>
ATTN_DEV struct attn_scaling walk_tiles(const struct cairn_attn_paged_args &a, const struct attn_request &r,
					int32_t row0, int32_t rows, const struct attn_span &span,
					int32_t first_tile, int32_t last_tile)
{
	constexpr int stages = num_stages<head_dim, fp8>(), ring = ring_bytes<head_dim, fp8>();
	constexpr int keys = tile_keys<head_dim, fp8>(), stage = 2 * tile_bytes<head_dim, fp8>();
	const struct attn_decode_smem s = decode_smem<head_dim, fp8>();
	int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
	/* Q is copied to the stage that the loop fills first */
	uint32_t s_warp = ptx_smem(s.ring) + warp * ring, s_q = s_warp + (stages - 1) * stage;
	int32_t page_shift = kv_page_shift(a.kv.page_size);
	float o[head_dim / 8][4] = {}, m[2] = { -CUDART_INF_F, -CUDART_INF_F }, l[2] = {};
	struct attn_scaling z;
	float cap;
	uint32_t q[head_dim / 16][4];
	struct attn_place places[stages], place;
	const int32_t step = warps * keys, end = min(span.begin + last_tile * keys, span.end);
	int32_t key = span.begin + (first_tile + warp) * keys;
	struct seen see;
	bool q_is_f16;

#pragma unroll
	for (int i = 0; i < stages; i++)
		places[i] = attn_look_up(a, r, page_shift, key + i * step + lane, lane < keys ? end : 0);
	if constexpr (fp8)	/* first, because it is converted before the loop */
		load_q_for_codes<head_dim>(q, a, r, row0, rows);
	z.scales = attn_scales_of<fp8>(a, r.head);
#pragma unroll
	for (int i = 0; i < stages - 1; i++) {
		if (key + i * step < end)
			gather<head_dim, fp8>(a, r, s_warp + i * stage, attn_slot_at(a, places[i]));
		if (!fp8 && i == 0)
			copy_q<head_dim>(a, r, s_q, row0, rows);
		ptx_cp_async_commit_group();
	}
	place = places[stages - 1];
	prepare_q<dtype, head_dim, fp8>(a, q, &z, &cap, &q_is_f16);
	set_seen(a, r, row0, lane, &see);
	if constexpr (!fp8) {
		ptx_cp_async_wait_group<stages - 2>();
		__syncwarp();
		read_q<head_dim>(q, s_q);
	}
	for (int n = 0; key < end; key += step) {
		int next = key + (stages - 1) * step;
		int refill = stage_before<stages>(n);	/* the stage that the previous tile freed */

		ptx_cp_async_wait_group<stages - 2>();
		__syncwarp();
		if (next < end)
			gather<head_dim, fp8>(a, r, s_warp + refill * stage, attn_slot_at(a, place));
		ptx_cp_async_commit_group();
		place = attn_look_up(a, r, page_shift, next + step + lane, lane < keys ? end : 0);
		attend_tile<dtype, head_dim, fp8>(o, m, l, a, r, see, q, s_warp + n * stage, row0, key,
						  z.scale_log2, cap, q_is_f16);
		n = n == stages - 1 ? 0 : n + 1;
	}
	ptx_griddepcontrol_launch_dependents();

	ptx_cp_async_wait_group<0>();
	__syncwarp();
	put_state<dtype, head_dim, fp8>(s.ring + warp * ring, s.m + warp * ROWS, s.l + warp * ROWS, o, m, l,
					rows - row0);
	return z;
}

/*
 * Attends to packed rows row0 .. rows - 1 of a request, as one CTA of a team. A Team has size(); first(), the
 * rank in the cluster of its first CTA; rank(), that of this CTA in the team; and share(), attn_share()
 * without a division. If teams have several CTAs, all CTAs of the cluster must call this, or pass its two
 * cluster barriers.
 */
template <int dtype, int head_dim, bool fp8, class Team>
ATTN_DEV void attend_rows(const struct cairn_attn_paged_args &a, const struct attn_request &r, int32_t row0,
			  int32_t rows, const Team &team)
{
	constexpr int vecs = head_dim / 4, ring = ring_bytes<head_dim, fp8>();
	const struct attn_decode_smem s = decode_smem<head_dim, fp8>();
	const struct attn_span span = span_of<head_dim, fp8>(a, r, row0, rows);
	const int size = team.size(), first = team.share(span.num_tiles, team.rank());
	const int last = team.share(span.num_tiles, team.rank() + 1);
	const struct attn_scaling z = walk_tiles<dtype, head_dim, fp8>(a, r, row0, rows, span, first, last);

	rows -= row0;
	__syncthreads();
	for (int i = threadIdx.x; i < rows * vecs; i += blockDim.x) {
		const struct attn_vec v = merge_warps<head_dim>(s, i, z.scale_log2,
								[](int w) { return w * ring; });
		const int row = i / vecs;

		if (size == 1) {
			write_out<dtype, head_dim>(a, r, z.scales, row0 + row, i % vecs * 4, v.o, v.m, v.l);
			continue;
		}
		((float4 *)s.ring)[i] = v.o;	/* replaces warp 0's O; only this thread uses vector i */
		if (i % vecs == 0) {
			s.cta_m[row] = v.m;
			s.cta_l[row] = v.l;
		}
	}
	if (size == 1)
		return;
	ptx_barrier_cluster_arrive_release();
	ptx_barrier_cluster_wait_acquire();
	merge_team<dtype, head_dim>(a, r, z, team, ptx_smem(s.cta_m), ptx_smem(s.cta_l), ptx_smem(s.ring),
				    row0, rows * vecs);
	/* a CTA must neither exit nor use its shared memory while a peer may still read it */
	ptx_barrier_cluster_arrive_release();
	ptx_barrier_cluster_wait_acquire();
}

#endif
