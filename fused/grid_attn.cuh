/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grid_attn - attention as a phase of grid.cuh: rotation, append, keys split over CTAs and warps, merge
 *
 * A task is one request, one KV head and a share of its old keys, which wait in the rings of the warps when
 * the phase begins. All is computed transposed, S' = K Q' and O' = V' P', so that keys and head_dim are the 16
 * rows of an mma and the query heads of the group its 8 columns: half the registers of the usual way, which
 * would leave half of its 16 rows of Q empty.
 *
 * The new key and value never pass through the cache: in the last split of a task one warp begins with them as
 * its softmax state (m = the new logit, l = 1, O = v), and writes them to their slot.
 *
 * States merge in three steps, each in a fixed order: warps through shared memory, splits through global
 * memory by whichever CTA of the task comes last (a ticket says which), which also divides and rounds.
 */
#ifndef CAIRN_GRID_ATTN_CUH
#define CAIRN_GRID_ATTN_CUH

#include "../primitives/angle.cuh"
#include "grid.cuh"

/* Cosines and sines of all requests, once a launch. */
template <int head_dim>
GRID void load_rope(const struct grid_args &a)
{
	for (int i = threadIdx.x; i < a.s.batch * (head_dim / 2); i += WORKERS) {
		int b = i / (head_dim / 2), p = i % (head_dim / 2);
		float c, s;

		angle_cos_sin(__fmul_rn((float)__ldg(a.s.positions + b), __ldg(a.s.inv_freq + p)), &c, &s);
		ptx_st_shared_v2(ptx_smem(grid_mem) + a.at_rope + i * 8, make_uint2(__float_as_uint(c), __float_as_uint(s)));
	}
}

/*
 * One head at x: lane 4 h + t takes elements 16 k + 2 t, + 1 into r[k][0], 16 k + 8 + 2 t, + 1 into r[k][1]. That is
 * the B fragment of mma.m16n8k16 whose column lane / 4 is this head.
 */
template <int head_dim>
GRID void load_head(uint32_t (*r)[2], const uint16_t *x)
{
	const uint32_t *from = (const uint32_t *)x + threadIdx.x % 4;

#pragma unroll
	for (int k = 0; k < head_dim / 16; k++) {
		r[k][0] = __ldcg(from + k * 8);
		r[k][1] = __ldcg(from + k * 8 + 4);
	}
}

template <int dtype, int head_dim>
GRID void rotate_head(uint32_t (*r)[2], uint32_t rope)
{
	constexpr int half = head_dim / 32;	/* steps of 16 between an element and its partner */
	int t = threadIdx.x % 4;

#pragma unroll
	for (int k = 0; k < half; k++)
#pragma unroll
		for (int i = 0; i < 2; i++) {
			uint4 cs = ptx_ld_shared_v4(rope + (k * 16 + i * 8 + 2 * t) * 8);
			float lo[2], hi[2], c[2] = { __uint_as_float(cs.x), __uint_as_float(cs.z) };
			float s[2] = { __uint_as_float(cs.y), __uint_as_float(cs.w) };

			row_unpack2<dtype>(r[k][i], lo);
			row_unpack2<dtype>(r[k + half][i], hi);
			r[k][i] = row_pack2<dtype>(lo[0] * c[0] - hi[0] * s[0], lo[1] * c[1] - hi[1] * s[1]);
			r[k + half][i] = row_pack2<dtype>(hi[0] * c[0] + lo[0] * s[0], hi[1] * c[1] + lo[1] * s[1]);
		}
}

/* Of this lane's two heads, 2 t and 2 t + 1: running maximum, and sum over this lane's keys */
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

/* q, rotated; and in the warp that takes it, the new key: rotated, to its slot, and as that warp's first state. */
template <int dtype, int head_dim>
GRID void begin_task(const struct grid_args &a, const struct grid_task &task, int layer, int takes_new,
		     uint32_t (*q)[2], float (*o)[4], struct softmax_state *st)
{
	int lane = threadIdx.x % 32, quad = lane / 4, t = lane % 4, key = task.old_len;
	const uint16_t *row = (const uint16_t *)a.qkv + (int64_t)task.request * a.qkv_dim;
	const uint16_t *k_new = row + a.q_dim + task.head * head_dim, *v_new = k_new + a.s.num_kv_heads * head_dim;
	uint32_t k[head_dim / 16][2], rope = ptx_smem(grid_mem) + a.at_rope + task.request * (head_dim / 2) * 8;
	uint4 v = make_uint4(0, 0, 0, 0);
	int64_t page = 0, at;
	float logit = 0;

	/* all loads before the first use of one */
	if (quad < a.group)
		load_head<head_dim>(q, row + (task.head * a.group + quad) * head_dim);
	if (takes_new) {
		load_head<head_dim>(k, k_new);
		page = __ldg(task.pages + key / a.s.page_size);
		if (lane < head_dim / 8)
			v = __ldcg((const uint4 *)v_new + lane);
#pragma unroll
		for (int d = 0; d < head_dim / 16; d++) {
			o[d][0] = o[d][1] = grid_element<dtype>(v_new, d * 16 + quad);
			o[d][2] = o[d][3] = grid_element<dtype>(v_new, d * 16 + 8 + quad);
		}
	}
	rotate_head<dtype, head_dim>(q, rope);
	if (!takes_new)
		return;
	rotate_head<dtype, head_dim>(k, rope);
	at = ((page * a.s.page_size + key % a.s.page_size) * a.s.num_kv_heads + task.head) * head_dim * 2 +
	     layer * a.s.kv_stride_bytes;
#pragma unroll
	for (int i = 0; i < head_dim / 16; i++)
#pragma unroll
		for (int h = 0; h < 2; h++) {
			float x[2], y[2];

			row_unpack2<dtype>(k[i][h], x);
			row_unpack2<dtype>(q[i][h], y);
			logit = fmaf(x[0], y[0], fmaf(x[1], y[1], logit));
			if (quad == 0)
				((uint32_t *)((char *)a.s.k_pages + at))[i * 8 + h * 4 + t] = k[i][h];
		}
	if (lane < head_dim / 8)
		((uint4 *)((char *)a.s.v_pages + at))[lane] = v;
	logit = attn_quad_sum(logit);		/* of head lane / 4 */
#pragma unroll
	for (int j = 0; j < 2; j++) {
		st->m[j] = __shfl_sync(~0u, logit, (2 * t + j) * 4);
		st->l[j] = quad == 0;
	}
}

/* S' of the keys at `tile`, masked, into p as B fragments of P'; O' so far is rescaled. */
template <int dtype, int head_dim, int subs>
GRID void attend_keys(uint32_t tile, int key, int old_len, uint32_t (*q)[2], float (*o)[4],
		      struct softmax_state *st, uint32_t (*p)[2], float scale_log2)
{
	int lane = threadIdx.x % 32;
	uint32_t at = tile + attn_q_at<head_dim>(lane), fragment[4];
	float s[subs][4] = {}, keep[2], base[2];

#pragma unroll
	for (int u = 0; u < subs; u++)
#pragma unroll
		for (int k = 0; k < head_dim / 16; k++) {
			ptx_ldmatrix_x4(fragment, (at ^ k * 32) + u * 16 * head_dim * 2);
			attn_mma<dtype>(s[u], fragment, q[k]);
		}
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

/* Lane i holds (m, l) of state i: their common (m, l), and in *weight that of this lane's state. */
GRID float2 merge_ml(float2 ml, float *weight, float scale_log2)
{
	float top = attn_quad_max(over_quads_max(ml.x));

	*weight = weight_of(ml.x, top, scale_log2);
	return make_float2(top, row_warp_sum(ml.y * *weight));
}

#define MERGE_BATCH	16	/* loads of a thread in flight */

/* Where states lie in shared memory: (m, l) [warps or splits][heads] in place of the sums; O [warps][heads][head_dim
 * + 4] in place of the activations (banks: lanes of a quad write two heads apart). */
GRID float2 *merge_s_ml(const struct grid_args &a)
{
	return (float2 *)(grid_mem + a.at_ml);
}

template <int head_dim>
GRID float *merge_s_o(const struct grid_args &a, int warp, int head)
{
	return (float *)(grid_mem + a.at_a) + (warp * a.group + head) * (head_dim + 4);
}

/* The states of warps 0 .. warps-1 become one, in global memory. */
template <int head_dim>
GRID void merge_warps(const struct grid_args &a, int task_id, int warps, float (*o)[4], const struct softmax_state *st,
		      float scale_log2)
{
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, quad = lane / 4, t = lane % 4;
	float2 *s_ml = merge_s_ml(a);

#pragma unroll
	for (int j = 0; j < 2; j++) {
		const float l = over_quads_sum(st->l[j]);
		float *to = merge_s_o<head_dim>(a, warp, 2 * t + j) + quad;

		if (2 * t + j >= a.group || warp >= warps)
			continue;
		if (quad == 0)
			s_ml[warp * a.group + 2 * t + j] = make_float2(st->m[j], l);
#pragma unroll
		for (int d = 0; d < head_dim / 16; d++) {
			to[d * 16] = o[d][j];
			to[d * 16 + 8] = o[d][2 + j];
		}
	}
	work_sync();
	/* two columns a thread: a warp's are of one head, so that its lanes can look after one state each */
	for (int i = threadIdx.x * 2; i < a.group * head_dim; i += WORKERS * 2) {
		const int head = i / head_dim;
		float2 ml = make_float2(-CUDART_INF_F, 0), sum = make_float2(0, 0);
		float weight;

		if (lane < warps)
			ml = s_ml[lane * a.group + head];
		ml = merge_ml(ml, &weight, scale_log2);
#pragma unroll
		for (int w = 0; w < GRID_WARPS; w++) {
			const float of = __shfl_sync(~0u, weight, w);

			if (w < warps)
				sum = add_weighted(sum, *(const float2 *)(merge_s_o<head_dim>(a, w, head) + i % head_dim), of);
		}
		__stcg((float2 *)(a.part_o + (int64_t)task_id * a.group * head_dim + i), sum);
		if (i % head_dim == 0)
			__stcg(a.part_ml + (int64_t)task_id * a.group + head, ml);
	}
}

/* The states of all splits of a task become its result. */
template <int dtype, int head_dim>
GRID void merge_splits(const struct grid_args &a, const struct grid_task &task, int first_task, float scale_log2)
{
	const int outputs = a.group * head_dim, splits = a.num_splits, lane = threadIdx.x % 32;

#pragma unroll 1
	for (int i = threadIdx.x * 2; i < outputs; i += WORKERS * 2) {
		const float2 *from = (const float2 *)(a.part_o + (int64_t)first_task * outputs + i);
		float2 ml = make_float2(-CUDART_INF_F, 0), sum = make_float2(0, 0), part[MERGE_BATCH];
		const int column = task.head * outputs + i;
		float weight = 0;

		if (lane < splits)
			ml = __ldcg(a.part_ml + (int64_t)(first_task + lane) * a.group + i / head_dim);
#pragma unroll 1
		for (int split = 0; split < splits; split += MERGE_BATCH) {
			/* everything is asked for before anything is waited for */
#pragma unroll
			for (int k = 0; k < MERGE_BATCH; k++)
				part[k] = __ldcg(from + (int64_t)min(split + k, splits - 1) * (outputs / 2));
			if (!split)
				ml = merge_ml(ml, &weight, scale_log2);
#pragma unroll
			for (int k = 0; k < MERGE_BATCH; k++)	/* of splits that are not there the weight is 0 */
				sum = add_weighted(sum, part[k], __shfl_sync(~0u, weight, (split + k) % 32));
		}
		*(uint32_t *)((uint16_t *)a.attn + (int64_t)task.request * a_padded(a.q_dim) + a_index(column)) =
			row_pack2<dtype>(ml.y > 0 ? sum.x / ml.y : 0, ml.y > 0 ? sum.y / ml.y : 0);
	}
}

/* Is this CTA the last of the task's splits? If so, the ticket is reset: the next layer is a meeting or more away. */
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

template <int dtype, int head_dim>
GRID void run_attention(const struct grid_args &a, struct ring &r, int phase)
{
	constexpr int keys = GRID_STAGE_BYTES / (2 * head_dim), subs = keys / 16;
	int warp = threadIdx.x / 32;
	float scale_log2 = a.s.sm_scale * ATTN_LOG2E;

	for (int task_id = blockIdx.x; task_id < a.num_tasks; task_id += gridDim.x) {
		const struct grid_task task = grid_load_task<head_dim>(a, task_id);
		int tiles = task.end_tile - task.first_tile, newest = task.split == a.num_splits - 1 && task.old_len >= 0;
		int taker = min(tiles, GRID_WARPS - 1);		/* of the new key: a warp without tiles, if there is one */
		int warps = min(tiles + 1, GRID_WARPS);
		struct softmax_state st = { { -CUDART_INF_F, -CUDART_INF_F }, { 0, 0 } };
		uint32_t q[head_dim / 16][2] = {}, p[subs][2];
		float o[head_dim / 16][4] = {};

		if (warp < warps)
			begin_task<dtype, head_dim>(a, task, phase / GRID_KINDS, newest && warp == taker, q, o, &st);
		for (int tile = task.first_tile + warp; tile < task.end_tile; tile += GRID_WARPS) {
			attend_keys<dtype, head_dim, subs>(ring_wait(r), tile * keys, task.old_len, q, o, &st, p,
							   scale_log2);
			ring_release(a, r, 1);
			attend_values<dtype, head_dim, subs>(ring_wait(r), p, o);
			ring_release(a, r, 1);
		}
		merge_warps<head_dim>(a, task_id, warps, o, &st, scale_log2);
		if (last_of_task(a, task_id))
			merge_splits<dtype, head_dim>(a, task, task_id - task.split, scale_log2);
		work_sync();
	}
	if (phase + 1 < a.end_phase) {
		work_sync();
		if (threadIdx.x == 0)
			grid_arrive(a);
	}
}
#endif
