// SPDX-License-Identifier: Apache-2.0
/*
 * attn_paged - launcher, and the decode kernel: few rows, many keys, split over a cluster
 *
 * A cluster works on one request, one KV head and 16 packed rows (query heads of the group x tokens). Its
 * CTAs take contiguous shares of the keys (attn_share); in a CTA of n warps, each warp takes every nth tile
 * of 16 keys of the share. A warp works alone: it gathers its tiles with cp.async into its own ring and keeps
 * its own softmax state, so the loop needs no barrier except __syncwarp(). At the end, the states are merged:
 * over warps through shared memory, over CTAs through distributed shared memory. Each CTA merges a slice of
 * the output. The order of the merge depends only on the cluster size, so results are bitwise repeatable.
 * There is one launch and no workspace. The device derives the split from kv_len, so a captured graph serves
 * any length within its bounds.
 *
 *   warp, tile n:  wait for tile n | start tile n + stages - 1, whose slots are known | look up the slots of
 *                  the tile after it | S = Q K^T | mask, online softmax | O += P V
 *   end:           O, m, l -> own ring | CTA barrier | merge over warps -> ring of warp 0, CTA's m, l |
 *                  cluster barrier | merge a slice of rows x head_dim over ranks, write | cluster barrier
 *
 * The host chooses cluster size and CTA width (8 warps and a whole SM, or 4 warps and half an SM; for 8-bit
 * keys 12, 6, and with head_dim 128 also 3 warps and a quarter, or one warp) from the bounds:
 * attn_decode_split(). The kernels of attn_bsr process batches of requests with more rows; for them, the
 * pages of a request are a list of blocks. A mixed batch goes to both, because only the device knows the
 * lengths: this kernel takes the requests of up to ATTN_DECODE_TILE packed rows, and the plan of attn_bsr
 * skips them.
 *
 * A window changes only the first key that a task visits and the length that the host assumes. One comparison
 * masks both the keys before a row's window and those past its end; keys before the window of the first row
 * are not read.
 *
 * Shared memory, w warps                                             head_dim 64   128   256
 *   0         [w][stages][K tile, V tile], 16 keys each, swizzled; stages    6     3     2
 *             8-bit keys: 32, 32, 16 keys each; stages                       4     2     4
 *             after the loop, at the start of each warp's ring: its O, [16][head_dim] f32
 *   w * ring  m [w][16], l [w][16] of the warps, m [16], l [16] of the CTA
 *   KiB, whole SM (w = 8; 12 with 8-bit keys; head_dim 256: 6)             193   193   193
 *
 * Barriers: after the loop, __syncthreads() once and the cluster barrier twice. There is one cp.async group
 * for each tile, and empty groups follow the last tile, so waiting for all but stages - 2 groups always waits
 * for tile n.
 * Registers: 111, 167, 254 for head_dim 64, 128, 256 (O 128 and Q 64 of the 254), 123, 168, 254 with 8-bit
 * keys; no spills.
 * Floor: one read of K and V at the read ceiling (4.58 TB/s on an H200). Hiding the latency takes about 40
 * KiB in flight on each SM; these rings hold up to 128. Keys of 8 bits (attn_paged_8bit.cuh) have half the
 * bytes but cost as many instructions.
 * Optimisation history: ../NOTES.md.
 */
#include "fused/attention/paged/attn_paged.h"

#include "primitives/base/device_cache.h"
#include "primitives/base/launch.h"
#include "fused/attention/bsr/attn_bsr_front.h"
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

static int smem_bytes(int ring, int warps)
{
	return warps * ring + (warps + 1) * ROWS * 8;
}

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
 * Does the same for 8-bit keys, in the few tiles of which rows do not see all: what a row sees is computed
 * here and takes no registers elsewhere. The asm keeps the compiler from moving that out of the loop. A warp
 * with few tiles of 16-bit keys would lose 1% of a call by this, and one with many would gain nothing.
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
 * Merges this CTA's slice over the cluster. A vector of four columns has one lane for each rank (their number
 * rounded up to a power of two). Each lane fetches the vector from its rank, and the lanes add these in a
 * tree, so that all accesses together cost the latency of one. s_m, s_l, s_o: the CTA's state, at the same
 * offset in every CTA.
 */
template <int dtype, int head_dim>
ATTN_DEV void merge_cluster(const struct cairn_attn_paged_args &a, const struct attn_request &r,
			    const struct attn_scales &scales, uint32_t s_m, uint32_t s_l, uint32_t s_o,
			    int row0, int num_vecs, float scale_log2)
{
	constexpr int vecs = head_dim / 4;
	int cta_rank = ptx_cluster_ctarank(), cluster_size = ptx_cluster_nctarank();
	int lanes = cluster_size <= 2 ? 2 : cluster_size <= 4 ? 4 : cluster_size <= 8 ? 8 : 16;
	int rank = threadIdx.x % lanes, nth = threadIdx.x % 32 / lanes;
	int first = attn_share(num_vecs, cluster_size, cta_rank) + threadIdx.x / lanes;
	int end = attn_share(num_vecs, cluster_size, cta_rank + 1);

	/* the loop bound is uniform over a warp, because the shuffles need all lanes */
	for (int at = first; at - nth < end; at += blockDim.x / lanes) {
		int i = min(at, end - 1), row = i / vecs;
		float m = -CUDART_INF_F, l = 0, top, total = 0;
		float4 o = make_float4(0, 0, 0, 0), sum = o;

		if (rank < cluster_size) {
			uint4 v = ptx_ld_shared_cluster_v4(ptx_mapa(s_o + i * 16, rank));

			m = __uint_as_float(ptx_ld_shared_cluster_b32(ptx_mapa(s_m + row * 4, rank)));
			l = __uint_as_float(ptx_ld_shared_cluster_b32(ptx_mapa(s_l + row * 4, rank)));
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

template <int dtype, int head_dim, bool fp8>
static __global__ __launch_bounds__(num_warps<head_dim, fp8>() * 32) void
attn_paged_decode_kernel(const __grid_constant__ struct cairn_attn_paged_args a, int32_t row_tiles,
			 int32_t max_rows, int32_t group, uint32_t magic, int32_t first_task)
{
	extern __shared__ __align__(1024) uint8_t s_ring[];
	constexpr int stages = num_stages<head_dim, fp8>(), ring = ring_bytes<head_dim, fp8>();
	constexpr int keys = tile_keys<head_dim, fp8>(), stage = 2 * tile_bytes<head_dim, fp8>();
	constexpr int vecs = head_dim / 4;
	int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
	float *s_m = (float *)(s_ring + warps * ring), *s_l = s_m + warps * ROWS;
	float *s_cta_m = s_l + warps * ROWS, *s_cta_l = s_cta_m + ROWS;
	int cta_rank = ptx_cluster_ctarank(), cluster_size = ptx_cluster_nctarank();
	int task = first_task + ptx_clusterid_x(), head = task % a.num_kv_heads, rest = task / a.num_kv_heads;
	int row0 = rest % row_tiles * ROWS, b = rest / row_tiles;
	uint32_t s_warp = ptx_smem(s_ring) + warp * ring;
	int32_t page_shift = kv_page_shift(a.kv.page_size);
	float o[head_dim / 8][4] = {}, m[2] = { -CUDART_INF_F, -CUDART_INF_F }, l[2] = {};
	float scale_log2, cap;
	struct attn_scales scales;
	uint32_t q[head_dim / 16][4], slots[stages], slot;
	int32_t rows, begin, end, num_tiles, first, last;
	struct attn_request r;
	struct seen see;
	bool q_is_f16 = false;

	/* The preceding kernel may still write these; brought to the L2 early, they are looked up faster. */
	if (threadIdx.x == 0 && a.kv.max_len) {
		ptx_prefetch_global_L2(a.kv.indptr + b);
		ptx_prefetch_global_L2(a.kv.last_page_len + b);
		ptx_prefetch_global_L2(a.qo_indptr + b);
		ptx_prefetch_global_L2(a.kv.indices);
	}
	ptx_griddepcontrol_wait();
	r = attn_load_request(a, b, head, group, magic);
	rows = r.qo_len * group;
	if (row0 >= rows || rows > max_rows)	/* uniform over the cluster */
		return;
	rows = min(rows, row0 + ROWS);
	end = attn_row_sees(a, r, rows - 1);
	begin = attn_row_first(a, r, row0);
	num_tiles = attn_div_up(end - begin, keys);
	first = attn_share(num_tiles, cluster_size, cta_rank) + warp;
	last = attn_share(num_tiles, cluster_size, cta_rank + 1);

	/* issue all independent loads before the first dependent one */
#pragma unroll
	for (int i = 0; i < stages; i++) {
		int tile = first + i * warps;

		slots[i] = attn_slot(a, r, page_shift, begin + tile * keys + lane,
				     tile < last && lane < keys ? end : 0);
	}
	load_q<dtype, head_dim, fp8>(q, a, r, row0, rows);
	scales = attn_scales_of<fp8>(a, head);
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
		if (cluster_size == 1) {
			write_out<dtype, head_dim>(a, r, scales, row0 + row, i % vecs * 4, sum, top, total);
			continue;
		}
		((float4 *)s_ring)[i] = sum;	/* replaces warp 0's O; only this thread uses vector i */
		if (i % vecs == 0) {
			s_cta_m[row] = top;
			s_cta_l[row] = total;
		}
	}
	if (cluster_size == 1)
		return;
	ptx_barrier_cluster_arrive_release();
	ptx_barrier_cluster_wait_acquire();
	merge_cluster<dtype, head_dim>(a, r, scales, ptx_smem(s_cta_m), ptx_smem(s_cta_l), ptx_smem(s_ring),
				       row0, rows * vecs, scale_log2);
	/* a CTA must not exit while a peer may still read its shared memory */
	ptx_barrier_cluster_arrive_release();
	ptx_barrier_cluster_wait_acquire();
}

/* An instance of the decode kernel, the bytes of a warp's ring, and the warps of each width of its CTAs. */
struct decoder {
	const void *kernel;
	int ring, warps[ATTN_WIDTHS];
};

template <int head_dim, bool fp8> static struct decoder decoder_of(int dtype)
{
	struct decoder d = { dtype == CAIRN_F16 ?
			     (const void *)attn_paged_decode_kernel<CAIRN_F16, head_dim, fp8> :
			     (const void *)attn_paged_decode_kernel<CAIRN_BF16, head_dim, fp8>,
			     ring_bytes<head_dim, fp8>(), {} };

	for (int width = 0; width < ATTN_WIDTHS; width++)
		d.warps[width] = attn_decode_warps(head_dim, fp8, width);
	return d;
}

static struct decoder choose_decoder(const struct cairn_attn_paged_args *a)
{
	switch (a->head_dim) {
	case 64:
		return a->kv_fp8 ? decoder_of<64, true>(a->dtype) : decoder_of<64, false>(a->dtype);
	case 128:
		return a->kv_fp8 ? decoder_of<128, true>(a->dtype) : decoder_of<128, false>(a->dtype);
	default:
		return a->kv_fp8 ? decoder_of<256, true>(a->dtype) : decoder_of<256, false>(a->dtype);
	}
}

static void set_width(struct cairn_launch *l, const struct decoder *d, int width)
{
	l->block[0] = (unsigned int)d->warps[width] * 32;
	l->smem = (size_t)smem_bytes(d->ring, d->warps[width]);
}

/* resident[] of attn_decode_split() */
struct residency {
	int32_t ctas[ATTN_WIDTHS][ATTN_MAX_CLUSTER + 1];
};

static int ask_residency(const void *arg, int32_t *answer)
{
	const struct decoder *d = (const struct decoder *)arg;
	struct residency *r = (struct residency *)answer;
	struct cairn_launch l = {};

	*r = {};
	for (int width = 0; width < ATTN_WIDTHS; width++) {
		set_width(&l, d, width);
		for (int c = 1; c <= ATTN_MAX_CLUSTER && d->warps[width]; c++) {
			int n;

			l.cluster = c;
			l.grid[0] = c;
			n = cairn_max_active_clusters(d->kernel, &l);
			r->ctas[width][c] = n > 0 ? n * c : 0;
		}
	}
	return 0;
}

/* Caches all residencies of a kernel as one answer, because every look-up costs time at each call. */
static int find_residency(const struct decoder *d, struct residency *r)
{
	struct cairn_device_question q = {};

	q.kernel = d->kernel;
	CAIRN_CUDA(cudaGetDevice(&q.device));
	return cairn_device_ask(&q, r->ctas[0], sizeof(*r) / sizeof(int32_t), ask_residency, d);
}

/* Launches the decode kernel for the requests of up to max_rows packed rows. */
static int launch_decode(const struct cairn_attn_paged_args *args, int32_t max_rows, void *stream)
{
	int32_t row_tiles = attn_div_up(max_rows, ROWS), group = args->num_qo_heads / args->num_kv_heads;
	int64_t num_tasks = (int64_t)args->kv.batch * args->num_kv_heads * row_tiles, keys, at_once;
	uint32_t magic = attn_magic((uint32_t)group);
	int32_t first_task;
	void *params[] = { (void *)args, &row_tiles, &max_rows, &group, &magic, &first_task };
	const int sms = cairn_sms_of(args->sms), limited = sms < cairn_num_sms();
	const struct decoder decoder = choose_decoder(args);
	struct cairn_launch l = {};
	struct residency residency;
	struct attn_split split;

	/*
	 * with a window, a row tile reads the window of its first row and one more key for each further token
	 */
	keys = args->window ? (int64_t)args->window + attn_div_up(ROWS, group) : args->kv.max_len;
	if (sms < 0)
		return sms;
	CAIRN_TRY(find_residency(&decoder, &residency));
	for (int c = 1; c <= ATTN_MAX_CLUSTER && limited; c++)
		for (int width = 0; width < ATTN_WIDTHS; width++)
			if (residency.ctas[width][c] > sms / c * c)
				residency.ctas[width][c] = sms / c * c;
	split = attn_decode_split(num_tasks, keys < args->kv.max_len ? (int32_t)keys : args->kv.max_len,
				  args->head_dim, args->kv_fp8, residency.ctas);
	if (num_tasks * split.cluster_size > 0x7fffffff)
		return cairn_error(EOPNOTSUPP, "attn_paged: kv.batch * num_kv_heads: %lld, beyond a grid",
				   (long long)num_tasks);
	set_width(&l, &decoder, split.width);
	/* without clusters, CTAs start sooner than in clusters of one */
	l.cluster = split.cluster_size > 1 ? split.cluster_size : 0;
	l.pdl = !args->sms;	/* a dependent launch would take SMs that this call may not use */
	l.stream = stream;
	/*
	 * one launch with all tasks; if sms limits the call, each launch has as many tasks as these SMs hold
	 * at once
	 */
	at_once = limited ? sms / split.cluster_size : num_tasks;
	for (int64_t first = 0; first < num_tasks; first += at_once) {
		int64_t num = num_tasks - first < at_once ? num_tasks - first : at_once;

		first_task = (int32_t)first;
		l.grid[0] = (unsigned int)(num * split.cluster_size);
		CAIRN_TRY(cairn_launch(decoder.kernel, &l, params));
	}
	return 0;
}

/*
 * The kernels that a call uses. DECODE: the decode kernel alone. PREFILL: the kernels of attn_bsr alone.
 * MIXED: the decode kernel takes the requests of up to ATTN_DECODE_TILE packed rows, attn_bsr the others.
 */
enum way { NOTHING, DECODE, PREFILL, MIXED };

static enum way way_of(const struct cairn_attn_paged_args *args)
{
	int64_t max_rows = (int64_t)args->max_qo_len * (args->num_qo_heads / args->num_kv_heads);

	if (!args->kv.batch || !args->nnz_qo || !args->max_qo_len)
		return NOTHING;
	if (max_rows <= ATTN_DECODE_ROWS)
		return DECODE;
	/*
	 * with one request, or if all requests are as long as the longest, the decode kernel would have
	 * nothing to do
	 */
	if (args->kv.batch == 1 || args->nnz_qo == (int64_t)args->kv.batch * args->max_qo_len)
		return PREFILL;
	return MIXED;
}

/* A call of attn_bsr: the pages of each request are the blocks of a block row. */
struct prefill {
	struct cairn_attn_bsr_args args;
	struct attn_bsr_front front;
};

static struct prefill prefill_of(const struct cairn_attn_paged_args *a, enum way way)
{
	struct prefill p = {};
	struct cairn_attn_part *part = &p.args.part[0];

	p.args.size = sizeof(p.args);
	p.args.out = a->out;
	p.args.lse = a->lse;
	p.args.q = a->q;
	p.args.workspace = a->workspace;
	p.args.workspace_bytes = a->workspace_bytes;
	p.args.q_stride = a->q_stride;
	p.args.num_parts = 1;
	p.args.nnz_qo = a->nnz_qo;
	p.args.num_qo_heads = a->num_qo_heads;
	p.args.num_kv_heads = a->num_kv_heads;
	p.args.head_dim = a->head_dim;
	p.args.dtype = a->dtype;
	p.args.kv_fp8 = a->kv_fp8;
	p.args.sm_scale = a->sm_scale;
	p.args.window = a->window;
	p.args.softcap = a->softcap;
	p.args.sms = a->sms;
	part->k = a->kv.k_pages;
	part->v = a->kv.v_pages;
	part->k_scale = a->k_scale;
	part->v_scale = a->v_scale;
	part->row_indptr = a->qo_indptr;
	part->blk_indptr = a->kv.indptr;
	part->blk_indices = a->kv.indices;
	part->last_len = a->kv.last_page_len;
	part->rows = a->kv.batch;
	part->block_m = 1;
	part->block_n = a->kv.page_size;
	part->index_heads = 1;
	part->num_blocks = a->kv.num_pages;
	part->max_keys = a->kv.max_len;
	part->mask_mode = a->causal ? CAIRN_ATTN_CAUSAL : CAIRN_ATTN_ALL;
	p.front.skip = way == MIXED ? ATTN_DECODE_TILE : 0;
	p.front.longest = a->max_qo_len;
	return p;
}

extern "C" int cairn_attn_paged_workspace(const struct cairn_attn_paged_args *args, size_t *bytes)
{
	enum way way;
	int ret;

	CAIRN_TRY(cairn_attn_paged_check_shape(args));
	if (!bytes)
		return cairn_error(EINVAL, "attn_paged_workspace: bytes: null pointer");
	*bytes = 0;
	way = way_of(args);
	if (way != PREFILL && way != MIXED)
		return 0;
	const struct prefill p = prefill_of(args, way);

	ret = attn_bsr_front_workspace(&p.args, &p.front, bytes);
	return ret == -EOPNOTSUPP ?
	       cairn_error(EOPNOTSUPP, "attn_paged: nnz_qo, max_qo_len, kv.batch: too large") : ret;
}

extern "C" int cairn_attn_paged(const struct cairn_attn_paged_args *args, void *stream)
{
	enum way way;
	size_t bytes;

	CAIRN_TRY(cairn_attn_paged_check(args));
	CAIRN_TRY(cairn_attn_paged_workspace(args, &bytes));
	if (bytes && (!args->workspace || (uintptr_t)args->workspace % 256 || args->workspace_bytes < bytes))
		return cairn_error(EINVAL, "attn_paged: workspace, workspace_bytes: at least %zu bytes, "
				   "256-byte aligned", bytes);
	if ((int64_t)args->kv.num_pages * args->kv.page_size > 0xfffffffell)
		return cairn_error(EOPNOTSUPP, "attn_paged: kv.num_pages * kv.page_size: beyond 32 bits");
	way = way_of(args);
	if (way == NOTHING)
		return 0;
	if (way == DECODE)
		return launch_decode(args, args->max_qo_len * (args->num_qo_heads / args->num_kv_heads),
				     stream);
	const struct prefill p = prefill_of(args, way);

	if (!args->planned)
		CAIRN_TRY(attn_bsr_front_plan(&p.args, &p.front, stream));
	if (way == MIXED)
		CAIRN_TRY(launch_decode(args, ATTN_DECODE_TILE, stream));
	return attn_bsr_front_attend(&p.args, &p.front, stream);
}
