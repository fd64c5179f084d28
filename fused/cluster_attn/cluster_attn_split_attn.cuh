/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster_attn_split_attn - the steps after q, k, v that both dataflows share: rotation and append, parts of
 * attention, w_o and the sum over clusters
 */
#ifndef CAIRN_CLUSTER_ATTN_SPLIT_ATTN_CUH
#define CAIRN_CLUSTER_ATTN_SPLIT_ATTN_CUH

#include "fused/cluster_attn/cluster_attn_split_steps.cuh"

/* Rotates q and k of all requests in place; two pairs per thread. Ends with a barrier. */
template <int dtype, int head_dim> SPLIT void split_rotate(const struct split_args &g,
							   const struct split_cta &c)
{
	constexpr int twos = head_dim / 4;
	const int heads = g.group + 1;

	for (int i = threadIdx.x; i < g.a.kv.batch * heads * twos; i += SPLIT_THREADS) {
		const int two = i % twos, head = i / twos % heads, b = i / twos / heads;
		const uint32_t lo = split_at<head_dim>(g, c, b, head, two / 4) + two % 4 * 4;
		const uint32_t hi = split_at<head_dim>(g, c, b, head, two / 4 + head_dim / 16) + two % 4 * 4;
		const uint4 table = ptx_ld_shared_v4(c.base + g.s_scratch +
						     (b * (head_dim / 2) + two * 2) * 8);
		const float cosine[2] = { __uint_as_float(table.x), __uint_as_float(table.z) };
		const float sine[2] = { __uint_as_float(table.y), __uint_as_float(table.w) };
		float x[2], y[2];

		row_unpack2<dtype>(ptx_ld_shared_b32(lo), x);
		row_unpack2<dtype>(ptx_ld_shared_b32(hi), y);
		ptx_st_shared_b32(lo, row_pack2<dtype>(x[0] * cosine[0] - y[0] * sine[0],
						       x[1] * cosine[1] - y[1] * sine[1]));
		ptx_st_shared_b32(hi, row_pack2<dtype>(y[0] * cosine[0] + x[0] * sine[0],
						       y[1] * cosine[1] + x[1] * sine[1]));
	}
	__syncthreads();
}

/* Writes new keys and values to their pages; only the last rank does. */
template <int head_dim> SPLIT void split_append(const struct split_args &g, const struct split_cta &c)
{
	constexpr int chunks = head_dim / 8;

	if (c.rank != g.size - 1)
		return;
	for (int i = threadIdx.x; i < g.a.kv.batch * 2 * chunks; i += SPLIT_THREADS) {
		const int chunk = i % chunks, is_value = i / chunks % 2, b = i / chunks / 2;
		const struct split_request r = split_load_request(g, c, b);
		char *pages = (char *)(is_value ? g.a.kv.v_pages : g.a.kv.k_pages);
		int page = r.old_len / g.a.kv.page_size;
		uint64_t slot;

		if (r.old_len < 0)
			continue;
		slot = (uint64_t)__ldg(g.a.kv.indices + r.first_page + page) * g.a.kv.page_size + r.old_len -
		       page * g.a.kv.page_size;
		*(uint4 *)(pages + ((slot * g.a.num_kv_heads + c.head) * head_dim + chunk * 8) * 2) =
			ptx_ld_shared_v4(split_at<head_dim>(g, c, b, g.group + is_value, chunk));
	}
}

/* ---- attention ---- */

/*
 * Attention is computed transposed, S' = K Q' and O' = V' P'. Keys and dims are the 16 rows of an mma, and 8
 * query heads are its columns. A lane has heads 2 t and 2 t + 1, keys quad and quad + 8 of each 16 keys of
 * S', and the same of the dims of O'.
 */

/*
 * Return a lane's first ldmatrix.x4 address in a tile with rows of row_bytes, for K and for V, which ldmatrix
 * transposes.
 */
SPLIT uint32_t split_k_at(const struct split_cta &c, uint32_t row_bytes)
{
	return attn_swizzle(c.lane % 16, c.lane / 16, row_bytes);
}

SPLIT uint32_t split_v_at(const struct split_cta &c, uint32_t row_bytes)
{
	return attn_swizzle(c.lane / 16 * 8 + c.lane % 8, c.lane / 8 % 2, row_bytes);
}

/*
 * Computes the logits of `keys` keys and the 8 heads from `head` on (heads past the group repeat the last
 * one). k_at moves by ^ 32 along 16 dims and by key_step along 16 keys; q_chunk: the first chunk of 8 dims of
 * q.
 */
template <int dtype, int head_dim, int dims, int keys>
SPLIT void split_logits(const struct split_args &g, const struct split_cta &c, float (*s)[4], int request,
			int head,
			int q_chunk, uint32_t k_at, uint32_t key_step)
{
	const int mine = min(head + c.lane % 8, g.group - 1);
	const uint32_t row = c.base + g.s_qkv + (request * g.rows + mine * head_dim) * 2;
	const uint32_t swap = split_swap(request, mine);
	float other[keys / 16][4];

#pragma unroll
	for (int j = 0; j < keys / 16; j++)
#pragma unroll
		for (int i = 0; i < 4; i++)
			s[j][i] = 0;
#pragma unroll
	for (int j = 0; j < keys / 16; j++)
#pragma unroll
		for (int i = 0; i < 4; i++)
			other[j][i] = 0;
#pragma unroll
	for (int k = 0; k < dims / 16; k += 2) {
		uint32_t q[4], a[4];

		ptx_ldmatrix_x4(q, row + (((q_chunk + 2 * k +
					    c.lane / 8 % (dims == 16 ? 2 : 4)) ^ swap) << 4));
#pragma unroll
		for (int i = 0; i < 2 && k + i < dims / 16; i++)
#pragma unroll
			for (int j = 0; j < keys / 16; j++) {
				ptx_ldmatrix_x4(a, (k_at + j * key_step) ^ (k + i) * 32);
				attn_mma<dtype>(i ? other[j] : s[j], a, q + 2 * i);
			}
	}
#pragma unroll
	for (int j = 0; j < keys / 16; j++)
#pragma unroll
		for (int i = 0; i < 4; i++)
			s[j][i] += other[j][i];
}

/* O' += V' P' */
template <int dtype, int dims, int keys>
SPLIT void split_values(float (*o)[4], const float (*s)[4], uint32_t v_at, uint32_t key_step)
{
#pragma unroll
	for (int j = 0; j < keys / 16; j++) {
		const uint32_t p[2] = { ptx_movmatrix_trans(row_pack2<dtype>(s[j][0], s[j][1])),
					ptx_movmatrix_trans(row_pack2<dtype>(s[j][2], s[j][3])) };

#pragma unroll
		for (int d = 0; d < dims / 16; d++) {
			uint32_t a[4];

			ptx_ldmatrix_x4_trans(a, (v_at + j * key_step) ^ d * 32);
			attn_mma<dtype>(o[d], a, p);
		}
	}
}

/* Reduce over the lanes that have the same heads. */
SPLIT float split_keys_max(float x)
{
	x = fmaxf(x, __shfl_xor_sync(~0u, x, 4));
	x = fmaxf(x, __shfl_xor_sync(~0u, x, 8));
	return fmaxf(x, __shfl_xor_sync(~0u, x, 16));
}

SPLIT float split_keys_sum(float x)
{
	x += __shfl_xor_sync(~0u, x, 4);
	x += __shfl_xor_sync(~0u, x, 8);
	return x + __shfl_xor_sync(~0u, x, 16);
}

/*
 * Online softmax of the keys from `key` on; keys from `end` on are masked. s becomes p, and O is rescaled to
 * the new maximum. l sums over this lane's keys only. The maximum is subtracted before scaling, so that
 * logits near the end of fp32's range stay finite.
 */
template <int dims, int keys>
SPLIT void split_softmax(const struct split_cta &c, float (*s)[4], float m[2], float l[2], float (*o)[4],
			 int key, int end,
			 float scale_log2)
{
	float keep[2];

	if (key + keys > end) {
#pragma unroll
		for (int j = 0; j < keys / 16; j++)
#pragma unroll
			for (int i = 0; i < 4; i++)
				if (key + j * 16 + (i >> 1) * 8 + c.quad >= end)
					s[j][i] = -CUDART_INF_F;
	}
#pragma unroll
	for (int h = 0; h < 2; h++) {
		float top = m[h], base;

#pragma unroll
		for (int j = 0; j < keys / 16; j++)
			top = fmaxf(top, fmaxf(s[j][h], s[j][h + 2]));
		top = split_keys_max(top);
		base = top == -CUDART_INF_F ? 0 : top;
		keep[h] = ptx_ex2_approx_ftz((m[h] - base) * scale_log2);
		m[h] = top;
		l[h] *= keep[h];
#pragma unroll
		for (int j = 0; j < keys / 16; j++)
#pragma unroll
			for (int i = h; i < 4; i += 2) {
				s[j][i] = ptx_ex2_approx_ftz((s[j][i] - base) * scale_log2);
				l[h] += s[j][i];
			}
	}
	/* most tiles do not raise the maximum: then all factors of the warp are 1 and O needs no rescale */
	if (!__any_sync(~0u, keep[0] != 1 || keep[1] != 1))
		return;
#pragma unroll
	for (int d = 0; d < dims / 16; d++)
#pragma unroll
		for (int i = 0; i < 4; i++)
			o[d][i] *= keep[i & 1];
}

/* Waits until the attended heads of all ranks have replaced q. */
template <int head_dim>
SPLIT void split_take_attended(const struct split_args &g, const struct split_cta &c, uint32_t &epoch)
{
	if (!g.a.offchip) {
		split_await(g, c.base + g.s_mbar + 8, 0);
		return;
	}
	split_cluster_sync(g, c, epoch);
	for (int i = threadIdx.x; i < g.a.kv.batch * g.group * head_dim / 8; i += SPLIT_THREADS) {
		const int row = i / (head_dim / 8), b = row / g.group;

		ptx_st_shared_v4(split_at<head_dim>(g, c, b, row - b * g.group, i % (head_dim / 8)),
				 __ldcg((const uint4 *)split_box_attended(g, c) + i));
	}
	__syncthreads();
}

SPLIT float split_weight(float m, float top, float scale_log2)
{
	return m == -CUDART_INF_F ? 0 : ptx_ex2_approx_ftz((m - top) * scale_log2);
}

/* ---- w_o ---- */

/* Loads 128 columns of the attended heads. */
template <int head_dim, int wide>
SPLIT void split_load_attended(const struct split_args &g, const struct split_cta &c,
			       struct split_x<wide> &x, int chunk)
{
#pragma unroll
	for (int k = 0; k < 4; k++) {
		const int piece = chunk * 16 + k * 4 + c.t, head = piece / (head_dim / 8);

#pragma unroll
		for (int h = 0; h <= wide; h++) {
			const int row = c.quad + 8 * h;

			x.v[k][h] = make_uint4(0, 0, 0, 0);
			if (row < g.a.kv.batch && head < g.group)
				x.v[k][h] = ptx_ld_shared_v4(split_at<head_dim>(g, c, row, head,
										piece % (head_dim / 8)));
		}
	}
}

/*
 * The groups of heads whose partial results are added. all: these are all heads, and out = x + b_o + sum;
 * otherwise the sum replaces the first partial result.
 */
struct split_parts {
	int first, step, count, all;
};

/* Sums `rows` rows of w_o from `first` on, in the order of heads. Called by a whole warp. */
template <int dtype, int wide>
SPLIT void split_finish(const struct split_args &g, const struct split_cta &c, int first, int rows,
			struct split_parts h)
{
	constexpr int ahead = wide ? 8 : 16;	/* partial results in flight at once */
	const int fours = rows / 4;

	for (int item = c.lane; item < fours * g.a.kv.batch; item += 32) {
		const int b = item / fours, row = first + (item - b * fours) * 4;
		const int64_t at = (int64_t)b * g.a.hidden + row;
		const int64_t step = (int64_t)h.step * g.a.kv.batch * g.a.hidden / 4;
		float4 *part = (float4 *)(g.part + (int64_t)h.first * g.a.kv.batch * g.a.hidden + at);
		const uint2 x = *(const uint2 *)((const uint16_t *)g.a.x + at);
		uint2 bias = make_uint2(0, 0);
		float sum[4] = { 0, 0, 0, 0 }, f[4], e[4] = { 0, 0, 0, 0 };

		if (h.all && g.a.b_o) {
			bias = __ldg((const uint2 *)((const uint16_t *)g.a.b_o + row));
			row_unpack2<dtype>(bias.x, e);
			row_unpack2<dtype>(bias.y, e + 2);
		}
		for (int p = 0; p < h.count; p += ahead) {
			float4 v[ahead];

#pragma unroll
			for (int k = 0; k < ahead; k++)
				v[k] = p + k < h.count ? __ldcg(part + (p + k) * step) :
				       make_float4(0, 0, 0, 0);
#pragma unroll
			for (int k = 0; k < ahead; k++) {
				sum[0] += v[k].x;
				sum[1] += v[k].y;
				sum[2] += v[k].z;
				sum[3] += v[k].w;
			}
		}
		if (!h.all) {
			*part = make_float4(sum[0], sum[1], sum[2], sum[3]);
			continue;
		}
		row_unpack2<dtype>(x.x, f);
		row_unpack2<dtype>(x.y, f + 2);
#pragma unroll
		for (int j = 0; j < 4; j++)
			f[j] += sum[j] + e[j];
		*(uint2 *)((uint16_t *)g.a.out + at) =
			make_uint2(row_pack2<dtype>(f[0], f[1]), row_pack2<dtype>(f[2], f[3]));
	}
}

/*
 * Must be called when this warp has stored its partial results of w_o units [from, end). The last warp to
 * store partial results of the same rows adds them up: integer tickets elect it, and their release and
 * acquire order the partial results. If they are many and long, the last warp of each group of heads first
 * adds up its group, so that a late cluster does not have to add everything. Tickets are left at zero.
 */
template <int dtype, int wide>
SPLIT void split_sum_up(const struct split_args &g, const struct split_cta &c, int from, int end)
{
	const int units = g.a.hidden / SPLIT_ROWS, group = c.head / g.radix;

#pragma unroll 1
	for (int level = g.num_groups == 1; level < 2; level++) {
		uint32_t *ticket = g.tickets + (level ? g.num_groups : group) * units + from, before = 0;
		struct split_parts h = { 0, g.radix, g.num_groups, 1 };

		if (g.num_groups == 1)
			h.step = 1, h.count = g.a.num_kv_heads;
		else if (!level)
			h.first = group * g.radix, h.step = 1,
				h.count = min(g.radix, g.a.num_kv_heads - h.first), h.all = 0;
		__syncwarp();
		if (c.lane == 0)
			before = ptx_atom_acq_rel_gpu_add_u32(ticket, 1);
		if (__shfl_sync(~0u, before, 0) != (uint32_t)h.count - 1)
			return;
		__syncwarp();
		split_finish<dtype, wide>(g, c, from * SPLIT_ROWS, (end - from) * SPLIT_ROWS, h);
		if (c.lane == 0)
			ptx_st_relaxed_gpu_u32(ticket, 0);
	}
}

/*
 * Multiplies the attended heads by this rank's rows of w_o, 16 a warp at a time: this head's partial result
 * of out.
 */
template <int dtype, int head_dim, int wide, int by_head>
SPLIT void split_project_out(const struct split_args &g, const struct split_cta &c, struct split_cursor &s)
{
	const int2 all = split_out_units(g, c);
	float *to = g.part + (int64_t)(c.head * g.a.kv.batch + 2 * c.t) * g.a.hidden +
		    all.x * SPLIT_ROWS + c.quad;
	int from = all.x;

	for (int unit = all.x; unit < all.y; unit++) {
		struct split_sum<wide> sum = {};

		for (int chunk = 0; chunk < g.out_chunks; chunk++) {
			struct split_x<wide> x;

			split_load_attended<head_dim, wide>(g, c, x, chunk);
			split_multiply<dtype, head_dim, wide, by_head>(g, c, s, sum, x);
		}
#pragma unroll
		for (int h = 0; h <= wide; h++)
#pragma unroll
			for (int i = 0; i < 4; i++)
				if (8 * h + 2 * c.t + (i & 1) < g.a.kv.batch)
					to[(8 * h + (i & 1)) * g.a.hidden + (i >> 1) * 8] = sum.v[h][i];
		to += SPLIT_ROWS;
		if (unit + 1 - from == g.sum_units || unit + 1 == all.y) {
			split_sum_up<dtype, wide>(g, c, from, unit + 1);
			from = unit + 1;
		}
	}
}
#endif
