/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grid_attn - attention as a phase of grid.cu: rotation, append, keys split over CTAs and warps, merge
 *
 * A task is one request, one KV head (or more, see struct grid_task) and a share of its old keys. The first
 * keys are in the warps' rings when the phase begins. Everything is computed transposed, S' = K Q' and O' =
 * V' P', so that keys and head_dim are the 16 rows of an mma and the query heads of the group are its 8
 * columns. This takes half the registers of the usual orientation, in which half of the 16 rows of Q would be
 * empty.
 *
 * The new key and value bypass the cache. In the last split of a task, one warp starts with them as its
 * softmax state (m = the new logit, l = 1, O = v). They are also written to their slot.
 *
 * States merge in two steps, each in a fixed order: warps through shared memory, then splits through global
 * memory, where the result is also divided and rounded. With LL words each split's CTA merges a share of the
 * outputs as soon as it has received the other splits' words. With grid barriers the last CTA of the task
 * (elected by a ticket) merges all of them.
 */
#ifndef CAIRN_GRID_ATTN_CUH
#define CAIRN_GRID_ATTN_CUH

#include "primitives/rows/angle.cuh"
#include "fused/grid/grid.cuh"
#include "fused/grid/grid_wide.cuh"

/*
 * Computes the cosines and sines of all requests, once per launch. position, freq: the thread's first
 * operands, which were loaded long before.
 */
template <int head_dim>
GRID void make_rope(const struct grid_args &a, int position, float freq)
{
	for (int i = threadIdx.x; i < a.s.kv.batch * (head_dim / 2); i += WORKERS) {
		float c, s;

		if (i >= WORKERS) {
			position = __ldg(a.s.positions + i / (head_dim / 2));
			freq = __ldg(a.s.inv_freq + i % (head_dim / 2));
		}
		angle_cos_sin(__fmul_rn((float)position, freq), &c, &s);
		ptx_st_shared_v2(ptx_smem(grid_mem) + a.at_rope + i * 8,
				 make_uint2(__float_as_uint(c), __float_as_uint(s)));
	}
	work_sync();
}

/* For this lane's two heads, 2 t and 2 t + 1: running maximum, and sum over this lane's keys */
struct softmax_state {
	float m[2], l[2];
};

GRID float over_quads_max(float v)	/* over the lanes that have the same heads */
{
	v = fmaxf(v, __shfl_xor_sync(~0u, v, 4));
	v = fmaxf(v, __shfl_xor_sync(~0u, v, 8));
	return fmaxf(v, __shfl_xor_sync(~0u, v, 16));
}

GRID float over_quads_sum(float v)
{
	v += __shfl_xor_sync(~0u, v, 4);
	v += __shfl_xor_sync(~0u, v, 8);
	return v + __shfl_xor_sync(~0u, v, 16);
}

/*
 * Returns the address of row i of a task's heads in shared memory: q of the group, rotated, then the new key,
 * rotated, and the new value; then those of further KV heads. Padding by four 32-bit words keeps eight rows
 * on different banks.
 */
template <int head_dim>
GRID uint32_t head_row(const struct grid_args &a, int i)
{
	return ptx_smem(grid_mem) + a.at_ml + grid_heads_at(a) + i * GRID_HEAD_ROW(head_dim);
}

/*
 * Loads all rows of a task's heads, the last two of each KV head only if this split takes the new key, and
 * writes the new key and value to their slot. Ends with a barrier.
 */
template <int dtype, int head_dim, int way>
GRID void load_heads(const struct grid_args &a, const struct grid_task &task,
		     int layer, int newest, uint32_t number)
{
	/* jobs of a head: two elements, and the two that are half a head further on */
	constexpr int jobs = head_dim / 4;
	const uint32_t rope = ptx_smem(grid_mem) + a.at_rope + task.request * (head_dim / 2) * 8;

	const int rows = newest ? a.group + 2 : a.group;

	for (int job = threadIdx.x; job < heads_of_task<way>(a) * rows * jobs; job += WORKERS) {
		const int nth = way == GRID_WIDE ? job / jobs / rows : 0, i = job % jobs;
		const int head = job / jobs - nth * rows, key = task.old_len, past_q = head - a.group,
			  kv_head = task.head + nth;
		const int first = past_q < 0 ? (kv_head * a.group + head) * head_dim :
				  a.q_dim + (past_q * a.s.num_kv_heads + kv_head) * head_dim;
		const int64_t at = ((int64_t)task.request * a.qkv_dim + first) / 2 + i;
		const int64_t page = past_q < 0 ? 0 : __ldg(task.pages + key / a.s.kv.page_size);
		uint32_t pair[2], to = head_row<head_dim>(a, nth * (a.group + 2) + head) + i * 4;

		if (way == GRID_BY_LL) {
			const uint64_t *from = a.ll[GRID_QKV] + at;
			const int64_t start = debug_clock();
			uint64_t w[2];

			for (;;) {
				w[0] = ptx_ld_relaxed_gpu_u64(from);
				w[1] = ptx_ld_relaxed_gpu_u64(from + head_dim / 4);
				if ((uint32_t)(w[0] >> 32) == number && (uint32_t)(w[1] >> 32) == number)
					break;
				ptx_spin_check(start, "LL words of q, k, v (phase number)", number, 0);
			}
			pair[0] = (uint32_t)w[0];
			pair[1] = (uint32_t)w[1];
		} else {
			pair[0] = __ldcg((const uint32_t *)a.qkv + at);
			pair[1] = __ldcg((const uint32_t *)a.qkv + at + head_dim / 4);
		}
		if (past_q <= 0) {
			const uint4 cs = ptx_ld_shared_v4(rope + i * 16);
			const float c[2] = { __uint_as_float(cs.x), __uint_as_float(cs.z) };
			const float s[2] = { __uint_as_float(cs.y), __uint_as_float(cs.w) };
			float lo[2], hi[2];

			row_unpack2<dtype>(pair[0], lo);
			row_unpack2<dtype>(pair[1], hi);
			pair[0] = row_pack2<dtype>(lo[0] * c[0] - hi[0] * s[0], lo[1] * c[1] - hi[1] * s[1]);
			pair[1] = row_pack2<dtype>(hi[0] * c[0] + lo[0] * s[0], hi[1] * c[1] + lo[1] * s[1]);
		}
		ptx_st_shared_b32(to, pair[0]);
		ptx_st_shared_b32(to + head_dim, pair[1]);
		if (past_q >= 0) {
			char *slot = (char *)(past_q ? a.s.kv.v_pages : a.s.kv.k_pages) +
				     layer * a.s.kv_stride_bytes +
				     ((page * a.s.kv.page_size + key % a.s.kv.page_size) * a.s.num_kv_heads +
				      kv_head) * (head_dim * 2);

			((uint32_t *)slot)[i] = pair[0];
			((uint32_t *)slot)[i + head_dim / 4] = pair[1];
		}
	}
	work_sync();
}

/*
 * Reads row i: lane 4 h + t takes elements 16 k + 2 t, + 1 into r[k][0] and 16 k + 8 + 2 t, + 1 into r[k][1].
 * This is the B fragment of mma.m16n8k16 whose column lane / 4 is this head.
 */
template <int head_dim>
GRID void take_head(const struct grid_args &a, int i, uint32_t (*r)[2])
{
	const uint32_t from = head_row<head_dim>(a, i) + threadIdx.x % 4 * 4;

#pragma unroll
	for (int k = 0; k < head_dim / 16; k++) {
		r[k][0] = ptx_ld_shared_b32(from + k * 32);
		r[k][1] = ptx_ld_shared_b32(from + k * 32 + 16);
	}
}

/* Initialises a warp's softmax state with the new key of the task's KV head `nth`. */
template <int dtype, int head_dim>
GRID void take_new_key(const struct grid_args &a, int nth, uint32_t (*q)[2], float (*o)[4],
		       struct softmax_state *st)
{
	const int row = nth * (a.group + 2) + a.group;
	const int lane = threadIdx.x % 32, quad = lane / 4, t = lane % 4;
	const uint32_t v = head_row<head_dim>(a, row + 1) + quad / 2 * 4;
	uint32_t k[head_dim / 16][2];
	float logit = 0;

	take_head<head_dim>(a, row, k);
#pragma unroll
	for (int i = 0; i < head_dim / 16; i++)
#pragma unroll
		for (int h = 0; h < 2; h++) {
			float x[2], y[2];

			row_unpack2<dtype>(k[i][h], x);
			row_unpack2<dtype>(q[i][h], y);
			logit = fmaf(x[0], y[0], fmaf(x[1], y[1], logit));
			row_unpack2<dtype>(ptx_ld_shared_b32(v + i * 32 + h * 16), x);
			o[i][2 * h] = o[i][2 * h + 1] = quad & 1 ? x[1] : x[0];
		}
	logit = attn_quad_sum(logit);		/* the logit of head lane / 4 */
#pragma unroll
	for (int j = 0; j < 2; j++) {
		st->m[j] = __shfl_sync(~0u, logit, (2 * t + j) * 4);
		st->l[j] = quad == 0;
	}
}

/*
 * Computes S' of the keys at `tile`, masked, and writes B fragments of P' to p. Rescales O' to the new
 * maximum.
 */
template <int dtype, int head_dim, int subs>
GRID void attend_keys(uint32_t tile, int key, int old_len, uint32_t (*q)[2], float (*o)[4],
		      struct softmax_state *st, uint32_t (*p)[2], float scale_log2)
{
	int lane = threadIdx.x % 32;
	uint32_t at = tile + attn_q_at<head_dim>(lane), fragment[4];
	float s[subs][4] = {}, s2[subs][4] = {}, keep[2], base[2];

#pragma unroll
	for (int u = 0; u < subs; u++)
#pragma unroll
		for (int k = 0; k < head_dim / 16; k++) {
			ptx_ldmatrix_x4(fragment, (at ^ k * 32) + u * 16 * head_dim * 2);
			/* two accumulators: an mma waits for the previous one on the same accumulator */
			attn_mma<dtype>(k % 2 ? s2[u] : s[u], fragment, q[k]);
		}
#pragma unroll
	for (int u = 0; u < subs; u++)
#pragma unroll
		for (int i = 0; i < 4; i++)
			s[u][i] += s2[u][i];
#pragma unroll
	for (int j = 0; j < 2; j++) {
		float top = st->m[j];

#pragma unroll
		for (int u = 0; u < subs; u++)
#pragma unroll
			for (int h = 0; h < 2; h++) {
				if (key + u * 16 + h * 8 + lane / 4 >= old_len)
					s[u][2 * h + j] = -CUDART_INF_F;
				top = fmaxf(top, s[u][2 * h + j]);
			}
		top = over_quads_max(top);
		base[j] = top == -CUDART_INF_F ? 0 : top;
		keep[j] = ptx_ex2_approx_ftz((st->m[j] - base[j]) * scale_log2);
		st->m[j] = top;
		st->l[j] *= keep[j];
	}
	if (__any_sync(~0u, keep[0] != 1 || keep[1] != 1))
#pragma unroll
		for (int d = 0; d < head_dim / 16; d++) {
			o[d][0] *= keep[0];
			o[d][1] *= keep[1];
			o[d][2] *= keep[0];
			o[d][3] *= keep[1];
		}
#pragma unroll
	for (int u = 0; u < subs; u++)
#pragma unroll
		for (int h = 0; h < 2; h++) {
			float e[2];

#pragma unroll
			for (int j = 0; j < 2; j++) {
				e[j] = ptx_ex2_approx_ftz((s[u][2 * h + j] - base[j]) * scale_log2);
				st->l[j] += e[j];
			}
			p[u][h] = ptx_movmatrix_trans(attn_pack<dtype>(e[0], e[1]));
		}
}

/* O' += V' P' */
template <int dtype, int head_dim, int subs>
GRID void attend_values(uint32_t tile, uint32_t (*p)[2], float (*o)[4])
{
	uint32_t at = tile + attn_k_at<head_dim>(threadIdx.x % 32), fragment[4];

#pragma unroll
	for (int u = 0; u < subs; u++)
#pragma unroll
		for (int d = 0; d < head_dim / 16; d++) {
			ptx_ldmatrix_x4_trans(fragment, (at ^ d * 32) + u * 16 * head_dim * 2);
			attn_mma<dtype>(o[d], fragment, p[u]);
		}
}

GRID float weight_of(float m, float top, float scale_log2)
{
	return m == -CUDART_INF_F ? 0 : ptx_ex2_approx_ftz((m - top) * scale_log2);
}

GRID float2 add_weighted(float2 sum, float2 v, float w)
{
	return make_float2(fmaf(v.x, w, sum.x), fmaf(v.y, w, sum.y));
}

/*
 * Lane i holds (m, l) of state i. Returns the common (m, l) and sets *weight to the weight of this lane's
 * state.
 */
GRID float2 merge_ml(float2 ml, float *weight, float scale_log2)
{
	float top = attn_quad_max(over_quads_max(ml.x));

	*weight = weight_of(ml.x, top, scale_log2);
	return make_float2(top, row_warp_sum(ml.y * *weight));
}

#define MERGE_BATCH	16	/* loads of a thread in flight */

/*
 * States in shared memory: (m, l) [heads][warps of a head] in the place of the sums; O [warps][heads]
 * [head_dim + 4] in the place of the activations or after (m, l). The padding by 4 avoids bank conflicts:
 * lanes of a quad write two heads apart.
 */
GRID float2 *merge_s_ml(const struct grid_args &a)
{
	return (float2 *)(grid_mem + a.at_ml);
}

template <int head_dim>
GRID float *merge_s_o(const struct grid_args &a, int warp, int head)
{
	return (float *)(grid_mem + a.at_o) + (warp * a.group + head) * (head_dim + 4);
}

/* Returns the LL words of a task's head: (m, l), then O, one float in each word. */
template <int head_dim>
GRID uint64_t *part_ll(const struct grid_args &a, int task_id, int head)
{
	return a.part_ll + ((int64_t)task_id * a.group + head) * (head_dim + 2);
}

GRID void put_float_ll(uint64_t *to, float2 v, uint32_t number)
{
	ptx_st_relaxed_gpu_v2_u64(to, make_uint4(__float_as_uint(v.x), number, __float_as_uint(v.y), number));
}

/* Stores columns i, i + 1 of a task's result. */
template <int dtype, int head_dim>
GRID void put_result(const struct grid_args &a, const struct grid_task &task, int i, float2 sum, float l)
{
	const int column = task.head * a.group * head_dim + i;

	*(uint32_t *)((uint16_t *)a.attn + (int64_t)task.request * a_padded(a.q_dim) + a_index(column)) =
		row_pack2<dtype>(l > 0 ? sum.x / l : 0, l > 0 ? sum.y / l : 0);
}

/*
 * Merges the states of a head's warps into one in global memory; the first `warps` warps have states. With a
 * single split this is the result.
 */
template <int dtype, int head_dim, int way>
GRID void merge_warps(const struct grid_args &a, const struct grid_task &task, int task_id, int warps,
		      float (*o)[4], const struct softmax_state *st, float scale_log2, uint32_t number)
{
	const int lane = threadIdx.x % 32, of_head = head_warps<way>(a), quad = lane / 4, t = lane % 4;
	const int2 mine = head_of_warp<way>(a, threadIdx.x / 32);
	const int nth = mine.x, warp = mine.y;
	float2 *s_ml = merge_s_ml(a);

#pragma unroll
	for (int j = 0; j < 2; j++) {
		const float l = over_quads_sum(st->l[j]);
		float *to = merge_s_o<head_dim>(a, threadIdx.x / 32, 2 * t + j) + quad;

		if (2 * t + j >= a.group)
			continue;
		if (quad == 0)
			s_ml[(nth * a.group + 2 * t + j) * of_head + warp] = make_float2(st->m[j], l);
		if (warp >= warps)
			continue;
#pragma unroll
		for (int d = 0; d < head_dim / 16; d++) {
			to[d * 16] = o[d][j];
			to[d * 16 + 8] = o[d][2 + j];
		}
	}
	work_sync();
	for (int i = threadIdx.x * 2; i < heads_of_task<way>(a) * a.group * head_dim; i += WORKERS * 2) {
		const int head = i / head_dim, of = way == GRID_WIDE ? head / a.group : 0;
		float2 ml[GRID_WARPS], all = make_float2(-CUDART_INF_F, 0), sum = make_float2(0, 0);

#pragma unroll
		for (int w = 0; w < GRID_WARPS; w += 2)
			*(float4 *)(ml + w) = w < of_head ? *(const float4 *)(s_ml + head * of_head + w) :
					      make_float4(-CUDART_INF_F, 0, -CUDART_INF_F, 0);
#pragma unroll
		for (int w = 0; w < GRID_WARPS; w++)
			all.x = fmaxf(all.x, ml[w].x);
#pragma unroll
		for (int w = 0; w < GRID_WARPS; w++) {
			const float weight = weight_of(ml[w].x, all.x, scale_log2);

			all.y = fmaf(ml[w].y, weight, all.y);
			if (w < warps)
				sum = add_weighted(sum, *(const float2 *)
						   (merge_s_o<head_dim>(a, of * of_head + w,
									head - of * a.group) +
						    i % head_dim), weight);
		}
		if (way == GRID_BY_LL) {
			put_float_ll(part_ll<head_dim>(a, task_id, head) + 2 + i % head_dim,
					sum, number);
			if (i % head_dim == 0)
				put_float_ll(part_ll<head_dim>(a, task_id, head), all, number);
			continue;
		}
		if (a.num_splits == 1) {
			put_result<dtype, head_dim>(a, task, i, sum, all.y);
			continue;
		}
		__stcg((float2 *)(a.part_o + (int64_t)task_id * a.group * head_dim + i), sum);
		if (i % head_dim == 0)
			__stcg(a.part_ml + (int64_t)task_id * a.group + head, all);
	}
}

/*
 * Merges this CTA's share of the task's results, two columns at a time. Each lane takes one split, and the
 * number of lanes divides 32. Sums are butterfly sums, the same in every lane.
 */
template <int dtype, int head_dim>
GRID void merge_split_ll(const struct grid_args &a, const struct grid_task &task,
			    int first_task, float scale_log2, uint32_t number)
{
	const int splits = a.num_splits, lanes = splits == 1 ? 1 : 2 << (31 - __clz(splits - 1)),
		  pairs = a.group * head_dim / 2;
	const int end = pairs * (task.split + 1) / splits, split = threadIdx.x & (lanes - 1);

	/* all lanes of a warp iterate equally often */
	for (int base = pairs * task.split / splits; base < end; base += WORKERS / lanes) {
		const int pair = base + threadIdx.x / lanes, column = 2 * pair,
			  live = pair < end && split < splits;
		const uint64_t *from = part_ll<head_dim>(a, first_task + (live ? split : 0),
							    live ? column / head_dim : 0);
		uint4 ml = make_uint4(__float_as_uint(-CUDART_INF_F), 0, 0, 0), o = make_uint4(0, 0, 0, 0);
		const int64_t start = debug_clock();
		float top, weight, l, x, y;

		while (live) {
			ml = ptx_ld_relaxed_gpu_v2_u64(from);
			o = ptx_ld_relaxed_gpu_v2_u64(from + 2 + column % head_dim);
			if (!(ll_missing(ml, number) | ll_missing(o, number)))
				break;
			ptx_spin_check(start, "LL words of partial attention (phase number)", number, 0);
		}
		__syncwarp();
		top = __uint_as_float(ml.x);
		for (int i = lanes / 2; i; i /= 2)
			top = fmaxf(top, __shfl_xor_sync(~0u, top, i));
		weight = weight_of(__uint_as_float(ml.x), top, scale_log2);
		l = weight * __uint_as_float(ml.z);
		x = weight * __uint_as_float(o.x);
		y = weight * __uint_as_float(o.z);
		for (int i = lanes / 2; i; i /= 2) {
			l += __shfl_xor_sync(~0u, l, i);
			x += __shfl_xor_sync(~0u, x, i);
			y += __shfl_xor_sync(~0u, y, i);
		}
		if (live && !split)
			ptx_st_relaxed_gpu_u64(a.ll[GRID_ATTN] +
					       ((int64_t)task.request * a.q_dim +
						task.head * a.group * head_dim + column) / 2,
					       (uint64_t)number << 32 |
					       row_pack2<dtype>(l > 0 ? x / l : 0, l > 0 ? y / l : 0));
	}
}

/* Merges the states of all splits of a task into its result. */
template <int dtype, int head_dim>
GRID void merge_splits(const struct grid_args &a, const struct grid_task &task,
		       int first_task, float scale_log2)
{
	const int outputs = a.group * head_dim, splits = a.num_splits, lane = threadIdx.x % 32;

#pragma unroll 1
	for (int i = threadIdx.x * 2; i < outputs; i += WORKERS * 2) {
		const float2 *from = (const float2 *)(a.part_o + (int64_t)first_task * outputs + i);
		float2 ml = make_float2(-CUDART_INF_F, 0), sum = make_float2(0, 0), part[MERGE_BATCH];
		float weight = 0;

		if (lane < splits)
			ml = __ldcg(a.part_ml + (int64_t)(first_task + lane) * a.group + i / head_dim);
#pragma unroll 1
		for (int split = 0; split < splits; split += MERGE_BATCH) {
			/* all loads are issued before the first is used */
#pragma unroll
			for (int k = 0; k < MERGE_BATCH; k++)
				part[k] = __ldcg(from + (int64_t)min(split + k, splits - 1) * (outputs / 2));
			if (!split)
				ml = merge_ml(ml, &weight, scale_log2);
			/* missing splits have weight 0 */
#pragma unroll
			for (int k = 0; k < MERGE_BATCH; k++)
				sum = add_weighted(sum, part[k], __shfl_sync(~0u, weight, (split + k) % 32));
		}
		put_result<dtype, head_dim>(a, task, i, sum, ml.y);
	}
}

/*
 * Returns whether this CTA is the last of the task's splits. If so, resets the ticket, which is safe because
 * the next layer is at least one grid barrier away.
 */
GRID bool last_of_task(const struct grid_args &a, int task_id)
{
	uint32_t *s_last = (uint32_t *)grid_mem + GRID_WARPS;

	work_sync();
	if (threadIdx.x == 0) {
		uint32_t *ticket = a.tickets + task_id / a.num_splits;

		*s_last = ptx_atom_acq_rel_gpu_add_u32(ticket, 1) + 1 == (uint32_t)a.num_splits;
		if (*s_last)
			*ticket = 0;
	}
	work_sync();
	return *s_last;
}

/* lens: lengths of the first task. number: phase number of this phase's LL words */
template <int dtype, int head_dim, int way>
GRID void run_attention(const struct grid_args &a, struct ring &r, int phase,
			struct grid_lens lens, uint32_t number)
{
	constexpr int keys = GRID_STAGE_BYTES / (2 * head_dim), subs = keys / 16;
	const int2 mine = head_of_warp<way>(a, threadIdx.x / 32);
	const int of_head = head_warps<way>(a), nth = mine.x, warp = mine.y;
	float scale_log2 = a.s.sm_scale * ATTN_LOG2E;

	for (int task_id = blockIdx.x; task_id < a.num_tasks; task_id += gridDim.x) {
		const struct grid_task task = grid_make_task<head_dim, way>(a, task_id, lens);
		int tiles = task.end_tile - task.first_tile,
		    newest = task.split == a.num_splits - 1 && task.old_len >= 0;
		/* warp that takes the new key: one without tiles, if there is any */
		int taker = min(tiles, of_head - 1);
		int warps = min(tiles + 1, of_head);
		struct softmax_state st = { { -CUDART_INF_F, -CUDART_INF_F }, { 0, 0 } };
		uint32_t q[head_dim / 16][2], p[subs][2];
		float o[head_dim / 16][4] = {};

		/* loaded a task ahead; with LL words there is only one task */
		if (way != GRID_BY_LL && task_id + (int)gridDim.x < a.num_tasks)
			lens = grid_load_lens<way>(a, task_id + gridDim.x);
		load_heads<dtype, head_dim, way>(a, task, phase / GRID_KINDS, newest, number - 1);
		if (warp < warps)
			take_head<head_dim>(a, nth * (a.group + 2) + min(threadIdx.x % 32 / 4, a.group - 1),
					    q);
		if (newest && warp == taker)
			take_new_key<dtype, head_dim>(a, nth, q, o, &st);
		for (int tile = task.first_tile + warp; tile < task.end_tile; tile += of_head) {
			attend_keys<dtype, head_dim, subs>(ring_wait(r), tile * keys, task.old_len, q, o,
							   &st, p, scale_log2);
			ring_release(r, 1);
			attend_values<dtype, head_dim, subs>(ring_wait(r), p, o);
			ring_release(r, 1);
		}
		merge_warps<dtype, head_dim, way>(a, task, task_id, warps, o, &st, scale_log2, number);
		if (way == GRID_BY_LL)
			merge_split_ll<dtype, head_dim>(a, task, task_id - task.split, scale_log2, number);
		else if (a.num_splits > 1 && last_of_task(a, task_id))
			merge_splits<dtype, head_dim>(a, task, task_id - task.split, scale_log2);
		work_sync();
	}
	end_phase<way>(a, phase);
}
#endif
