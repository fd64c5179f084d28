// SPDX-License-Identifier: Apache-2.0
/*
 * cluster_attn_split_head - algorithm 5: the CTAs of a cluster split head_dim and sum the logits
 *
 * The schedule is that of cluster_attn_split.cu except for attention. Every rank goes through all old keys,
 * but only through its own_dim = head_dim / N columns of them; a stage of the stream is 16 keys and their
 * values. A warp sends its partial logits of 16 keys and up to 8 heads by st.async to the same warp of all
 * other ranks, which goes through the same tiles. Each rank adds the partial logits in the order of ranks, so
 * all ranks have the same bits. P V' is complete in every rank for its columns.
 *
 *   a tile     wait for the stage | S' over own columns | send to all ranks | wait, add theirs | softmax |
 *              O' += V' P' | refill
 *   a task     the warps' states -> shared memory | cluster barrier: q is no longer needed | merge over
 *              warps, send to all ranks in q's place | CTA barrier
 *
 * No warp waits for another warp of its CTA within a task, and rings keep filling through every exchange.
 * This is still the slower dataflow: a warp exchanges data for every 16 keys, and a rank reads only
 * 2 head_dim / N bytes of a key's row (head_dim 128, N = 16: 16 bytes, half of the sector that memory
 * transfers for them).
 *
 * Each warp has two sets of slots; its tile i uses set i mod 2. A rank sends tile i only after it has all of
 * tile i - 1, so all ranks have sent that tile and have finished with tile i - 2.
 *
 * Off chip, the exchanges go through global memory, with a flag for each rank and warp.
 *
 * Shared memory as in cluster_attn_split.cu, and
 *   s_slots      float [2 sets][8 warps][N][16 keys][heads of a task, even]
 *   s_slot_mbar  [2 sets][8 warps] mbarriers, each for the bytes of the N - 1 other ranks
 * Registers: see cluster_attn_split.cu.
 */
#include "fused/cluster_attn/cluster_attn_split_attn.cuh"

#define MAX_DIM		64	/* maximum columns of a rank */
#define KEYS		16

/* Returns the bytes of one rank's logits of a tile. */
SPLIT uint32_t slot_bytes(const struct split_args &g)
{
	return KEYS * ((g.task_heads + 1) / 2 * 2) * 4;
}

/* Computes S' of 16 keys over this rank's columns. */
template <int dtype, int head_dim>
SPLIT void own_logits(const struct split_args &g, const struct split_cta &c, float s[4], int request,
		      int head, uint32_t tile)
{
	const int mine = min(head + c.lane % 8, g.group - 1), first = c.rank * (g.own_dim / 8);
	const uint32_t row = c.base + g.s_qkv + (request * g.rows + mine * head_dim) * 2;
	const uint32_t swap = split_swap(request, mine), k_at = tile + split_k_at(c, 128);

	s[0] = s[1] = s[2] = s[3] = 0;
#pragma unroll 1
	for (int k = 0; k * 16 < g.own_dim; k++) {
		uint32_t q[2], a[4];

		/*
		 * own_dim 8: the stage holds zeros in the other 8 columns of the keys, and q is set to zero
		 */
		ptx_ldmatrix_x2(q, row + (((first + 2 * k +
					    (g.own_dim > 8 ? c.lane / 8 % 2 : 0)) ^ swap) << 4));
		if (g.own_dim == 8)
			q[1] = 0;
		ptx_ldmatrix_x4(a, k_at ^ k * 32);
		attn_mma<dtype>(s, a, q);
	}
}

/* Returns the place of a rank's message in global memory. */
SPLIT float *box_slot(const struct split_args &g, const struct split_cta &c, int head_dim, int set, int rank)
{
	char *at = split_box_attended(g, c) + (size_t)g.a.kv.batch * g.group * head_dim * 2;

	return (float *)(at + CAIRN_CLUSTER_MAX_SIZE * SPLIT_WARPS * 4 +
			 (size_t)((set * SPLIT_WARPS + c.warp) * g.size + rank) * slot_bytes(g));
}

SPLIT void wait_flags(const struct split_args &g, const struct split_cta &c, int head_dim, uint32_t count)
{
#ifdef CAIRN_DEBUG
	const int64_t start = ptx_clock64();
#else
	const int64_t start = 0;
#endif

	__syncwarp();
	if (c.lane == 0)
		ptx_st_release_gpu_u32(split_box_flag(g, c, head_dim, c.rank), count);
	if (c.lane < g.size)
		while ((int32_t)(ptx_ld_acquire_gpu_u32(split_box_flag(g, c, head_dim, c.lane)) - count) < 0)
			ptx_spin_check(start, "tile of rank (rank, count)", c.lane, count);
	__syncwarp();
}

/*
 * Replaces s by its sum over all ranks; n: number of earlier calls by this warp. Lanes without a head of the
 * task send nothing.
 */
SPLIT void sum_logits(const struct split_args &g, const struct split_cta &c, int head_dim, float s[4],
		      uint32_t n)
{
	const int set = n & 1, pairs = (g.task_heads + 1) / 2, live = c.t < pairs;
	const uint32_t message = slot_bytes(g), slots = c.base + g.s_slots + (set * SPLIT_WARPS +
									      c.warp) * g.size * message;
	const uint32_t mbar = c.base + g.s_slot_mbar + (set * SPLIT_WARPS + c.warp) * 8;
	const uint32_t at = (c.quad * pairs + c.t) * 8, step = 8 * pairs * 8;
	const uint2 lo = make_uint2(__float_as_uint(s[0]), __float_as_uint(s[1]));
	const uint2 hi = make_uint2(__float_as_uint(s[2]), __float_as_uint(s[3]));
	float sum[4] = { 0, 0, 0, 0 };

	if (g.a.offchip) {
		char *to = (char *)box_slot(g, c, head_dim, set, c.rank);

		if (live) {
			*(uint2 *)(to + at) = lo;
			*(uint2 *)(to + at + step) = hi;
		}
		wait_flags(g, c, head_dim, n + 1);
	} else {
		for (int d = 1; d < g.size; d++) {
			const int peer = cairn_cluster_wrap(c.rank, d, g.size);
			const uint32_t to = slots + c.rank * message + at;

			if (live) {
				ptx_st_async_v2(ptx_mapa(to, peer), lo, ptx_mapa(mbar, peer));
				ptx_st_async_v2(ptx_mapa(to + step, peer), hi, ptx_mapa(mbar, peer));
			}
		}
		if (c.lane == 0)
			ptx_mbarrier_arrive_expect_tx(mbar, (g.size - 1) * message);
		ptx_mbarrier_wait_cluster(mbar, n >> 1 & 1);
	}
	for (int r = 0; r < g.size; r++) {
		uint2 x = lo, y = hi;

		if (live && r != c.rank) {
			if (g.a.offchip) {
				const char *from = (const char *)box_slot(g, c, head_dim, set, r);

				x = __ldcg((const uint2 *)(from + at));
				y = __ldcg((const uint2 *)(from + at + step));
			} else {
				x = ptx_ld_shared_v2(slots + r * message + at);
				y = ptx_ld_shared_v2(slots + r * message + at + step);
			}
		}
		sum[0] += __uint_as_float(x.x);
		sum[1] += __uint_as_float(x.y);
		sum[2] += __uint_as_float(y.x);
		sum[3] += __uint_as_float(y.y);
	}
	__syncwarp();
#pragma unroll
	for (int i = 0; i < 4; i++)
		s[i] = sum[i];
}

/*
 * Attends over this warp's tiles of one task and stores its states in shared memory. Returns the total number
 * of tiles that the warp has processed.
 */
template <int dtype, int head_dim>
SPLIT uint32_t attend(const struct split_args &g, const struct split_cta &c, struct split_cursor &s,
		      int task, uint32_t n)
{
	const float scale_log2 = g.a.sm_scale * ATTN_LOG2E;
	const int request = task >> g.half_shift, first = g.half_shift ? (task & 1) * 8 : 0;
	const struct split_request r = split_load_request(g, c, request);
	float o[MAX_DIM / 16][4] = {}, m[2] = { -CUDART_INF_F, -CUDART_INF_F }, l[2] = { 0, 0 }, logits[1][4];

	/* the new key: q, k and v are complete in every rank */
	if (c.warp == 0 && r.old_len >= 0) {
		split_logits<dtype, head_dim, head_dim, 16>(g, c, logits, request, first, 0,
							    split_at<head_dim>(g, c, request, g.group,
									       c.lane / 16), 0);
#pragma unroll
		for (int h = 0; h < 2; h++) {
			m[h] = logits[0][h];
			l[h] = c.quad == 0;
		}
#pragma unroll
		for (int i = 0; i < MAX_DIM / 8; i++) {
			uint16_t bits;

			if (i * 8 >= g.own_dim)
				break;
			bits = ptx_ld_shared_b16(split_at<head_dim>(g, c, request, g.group + 1,
								    c.rank * (g.own_dim / 8) + i) +
						 c.quad * 2);
			o[i / 2][i % 2 * 2] = o[i / 2][i % 2 * 2 + 1] = row_element<dtype>(&bits, 0);
		}
	}
	for (int tile = c.warp; tile < r.end_tile; tile += SPLIT_WARPS, n++) {
		const uint32_t at = split_wait(c, s);
		uint32_t p[2];

		own_logits<dtype, head_dim>(g, c, logits[0], request, first, at);
		sum_logits(g, c, head_dim, logits[0], n);
		split_softmax<MAX_DIM, KEYS>(c, logits, m, l, o, tile * KEYS, r.old_len, scale_log2);
		p[0] = ptx_movmatrix_trans(row_pack2<dtype>(logits[0][0], logits[0][1]));
		p[1] = ptx_movmatrix_trans(row_pack2<dtype>(logits[0][2], logits[0][3]));
#pragma unroll
		for (int d = 0; d < MAX_DIM / 16; d++)
			if (d * 16 < g.own_dim) {
				uint32_t a[4];

				ptx_ldmatrix_x4_trans(a, (at + 2048 + split_v_at(c, 128)) ^ d * 32);
				attn_mma<dtype>(o[d], a, p);
			}
		split_release<head_dim, 1>(g, c, s);
	}
#pragma unroll
	for (int h = 0; h < 2; h++) {
		const int head = 2 * c.t + h, state = c.warp * g.task_heads + head;
		const float sum = split_keys_sum(l[h]);

		if (head >= g.task_heads)
			continue;
#pragma unroll
		for (int i = 0; i < MAX_DIM / 8; i++)
			if (i * 8 < g.own_dim)
				ptx_st_shared_f32(c.base + g.s_scratch +
						  (state * g.own_dim + i * 8 + c.quad) * 4,
						  o[i / 2][i % 2 * 2 + h]);
		if (c.quad == 0)
			ptx_st_shared_v2(c.base + g.s_ml + state * 8,
					 make_uint2(__float_as_uint(m[h]), __float_as_uint(sum)));
	}
	return n;
}

/*
 * Merges this rank's columns of a task's heads over its warps and sends them to all ranks, in q's place. A
 * thread takes four columns.
 */
template <int dtype, int head_dim> SPLIT void merge(const struct split_args &g, const struct split_cta &c,
						    int task)
{
	const float scale_log2 = g.a.sm_scale * ATTN_LOG2E;
	const int fours = g.own_dim / 4, request = task >> g.half_shift,
		  first = g.half_shift ? (task & 1) * 8 : 0;
	const int heads = min(g.group - first, g.task_heads);

	for (int i = threadIdx.x; i < heads * fours; i += SPLIT_THREADS) {
		const int head = i / fours, column = i % fours * 4, dim = c.rank * g.own_dim + column;
		float top = -CUDART_INF_F, l = 0, o[4] = { 0, 0, 0, 0 };
		uint32_t to;
		uint2 sum;

		for (int w = 0; w < SPLIT_WARPS; w++)
			top = fmaxf(top, ptx_ld_shared_f32(c.base + g.s_ml + (w * g.task_heads + head) * 8));
		for (int w = 0; w < SPLIT_WARPS; w++) {
			const int state = w * g.task_heads + head;
			const float weight = split_weight(ptx_ld_shared_f32(c.base + g.s_ml + state * 8),
							  top, scale_log2);
			const uint4 v = ptx_ld_shared_v4(c.base + g.s_scratch +
							 (state * g.own_dim + column) * 4);

			if (weight == 0)	/* the warp had no keys, or their weight underflows */
				continue;
			l += weight * ptx_ld_shared_f32(c.base + g.s_ml + state * 8 + 4);
			o[0] += weight * __uint_as_float(v.x);
			o[1] += weight * __uint_as_float(v.y);
			o[2] += weight * __uint_as_float(v.z);
			o[3] += weight * __uint_as_float(v.w);
		}
		l = l > 0 ? 1 / l : 0;
		sum = make_uint2(row_pack2<dtype>(o[0] * l, o[1] * l), row_pack2<dtype>(o[2] * l, o[3] * l));
		if (g.a.offchip) {
			*(uint2 *)(split_box_attended(g, c) +
				   (((size_t)request * g.group + first + head) * head_dim + dim) * 2) = sum;
			continue;
		}
		to = split_at<head_dim>(g, c, request, first + head, dim / 8) + dim % 8 * 2;
		for (int d = 0; d < g.size; d++) {
			const int peer = cairn_cluster_wrap(c.rank, d, g.size);

			ptx_st_async_v2(ptx_mapa(to, peer), sum, ptx_mapa(c.base + g.s_mbar + 8, peer));
		}
	}
}

template <int dtype, int head_dim>
SPLIT void attend_all(const struct split_args &g, const struct split_cta &c, struct split_cursor &s,
		      uint32_t &epoch)
{
	uint32_t n = 0;

	for (int task = 0; task < g.tasks; task++) {
		n = attend<dtype, head_dim>(g, c, s, task, n);
		if (g.a.offchip) {
			__syncthreads();
		} else {
			__syncwarp();
			ptx_barrier_cluster_arrive_release();
			ptx_barrier_cluster_wait_acquire();
		}
		merge<dtype, head_dim>(g, c, task);
		if (task + 1 < g.tasks)
			__syncthreads();
	}
	split_take_attended<head_dim>(g, c, epoch);
}

template <int dtype, int head_dim, int wide>
static __global__ __launch_bounds__(SPLIT_THREADS, wide ? 1 : 2) void
cluster_attn_head_kernel(const __grid_constant__ struct split_args g)
{
	extern __shared__ __align__(1024) uint8_t s_mem[];
	struct split_cursor s;
	struct split_cta c;
	uint32_t epoch = 1;

	split_cta_init(g, c, ptx_smem(s_mem), head_dim);
	if (threadIdx.x < 2 * SPLIT_WARPS)
		ptx_mbarrier_init(c.base + g.s_slot_mbar + threadIdx.x * 8, 1);
	ptx_fence_mbarrier_init_release_cluster();
	split_begin<dtype, head_dim, 1>(g, c, s);
	split_project_qkv<dtype, head_dim, wide, 1>(g, c, s, epoch);
	split_rotate<dtype, head_dim>(g, c);
	split_append<head_dim>(g, c);
	attend_all<dtype, head_dim>(g, c, s, epoch);
	split_project_out<dtype, head_dim, wide, 1>(g, c, s);
	ptx_griddepcontrol_launch_dependents();
}

template <int dtype> static const void *head_kernel(int head_dim, int wide)
{
	if (head_dim == 64)
		return wide ? (const void *)cluster_attn_head_kernel<dtype, 64, 1> :
			      (const void *)cluster_attn_head_kernel<dtype, 64, 0>;
	return wide ? (const void *)cluster_attn_head_kernel<dtype, 128, 1> :
		      (const void *)cluster_attn_head_kernel<dtype, 128, 0>;
}

const void *cluster_attn_split_head_kernel(int dtype, int head_dim, int wide)
{
	return dtype == CAIRN_F16 ? head_kernel<CAIRN_F16>(head_dim,
							   wide) : head_kernel<CAIRN_BF16>(head_dim, wide);
}
