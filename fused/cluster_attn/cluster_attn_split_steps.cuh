/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster_attn_split_steps - the steps before attention, which both dataflows share: norm, product with
 * w_qkv, gather of q, k, v
 */
#ifndef CAIRN_CLUSTER_ATTN_SPLIT_STEPS_CUH
#define CAIRN_CLUSTER_ATTN_SPLIT_STEPS_CUH

#include "fused/cluster_attn/cluster_attn_split.cuh"

/* ---- exchanges through global memory: the cluster's box ---- */

/* [batch][rows] of dtype */
SPLIT char *split_box_qkv(const struct split_args &g, const struct split_cta &c)
{
	return g.box + c.head * g.box_bytes + cluster_offchip_bytes(0);
}

/* [batch][group][head_dim] of dtype */
SPLIT char *split_box_attended(const struct split_args &g, const struct split_cta &c)
{
	return split_box_qkv(g, c) + (size_t)g.a.kv.batch * g.rows * 2;
}

/* [owner]: the owner's items from all ranks */
SPLIT char *split_box_slots(const struct split_args &g, const struct split_cta &c, int head_dim)
{
	return split_box_attended(g, c) + (size_t)g.a.kv.batch * g.group * head_dim * 2;
}

/* by_head: number of tiles that this warp of a rank has sent */
SPLIT uint32_t *split_box_flag(const struct split_args &g, const struct split_cta &c, int head_dim, int rank)
{
	return (uint32_t *)(split_box_attended(g, c) + (size_t)g.a.kv.batch * g.group * head_dim * 2) +
	       rank * SPLIT_WARPS + c.warp;
}

/*
 * A barrier of the cluster through global memory: writes of all ranks before it are visible to all threads
 * after it. epoch starts at 1 and grows by one for each call.
 */
SPLIT void split_cluster_sync(const struct split_args &g, const struct split_cta &c, uint32_t &epoch)
{
	struct cluster_mailbox mail = {};
	struct cluster_comm comm = {};

	comm.rank = c.rank;
	comm.size = g.size;
	comm.tid = threadIdx.x;
	comm.num_threads = SPLIT_THREADS;
	mail.flags = (uint32_t *)(g.box + c.head * g.box_bytes);
	mail.epoch = epoch++;
	cluster_meet(&comm, &mail);
}

/* ---- exchanges through shared memory ---- */

/*
 * Sends v to rank `peer`, whose mbarrier counts the bytes; all threads that read it call split_await() first.
 * A cluster of one stores to its own shared memory instead, because memcheck rejects st.async there.
 */
SPLIT void split_send_v2(const struct split_args &g, uint32_t to, uint2 v, uint32_t mbar, int peer)
{
	if (g.size == 1)
		ptx_st_shared_v2(to, v);
	else
		ptx_st_async_v2(ptx_mapa(to, peer), v, ptx_mapa(mbar, peer));
}

SPLIT void split_send_v4(const struct split_args &g, uint32_t to, uint4 v, uint32_t mbar, int peer)
{
	if (g.size == 1)
		ptx_st_shared_v4(to, v);
	else
		ptx_st_async_v4(ptx_mapa(to, peer), v, ptx_mapa(mbar, peer));
}

SPLIT void split_await(const struct split_args &g, uint32_t mbar, uint32_t parity)
{
	if (g.size == 1)
		__syncthreads();
	else
		ptx_mbarrier_wait_cluster(mbar, parity);
}

/* ---- the ring ---- */

/* Waits until all loads of this warp's oldest stage have landed; returns its address. */
SPLIT uint32_t split_wait(const struct split_cta &c, const struct split_cursor &s)
{
	ptx_cp_async_wait_group<SPLIT_STAGES - 1>();
	__syncwarp();
	return split_stage(c, s);
}

/* Refills the oldest stage, which all lanes have read. */
template <int head_dim, int by_head>
SPLIT void split_release(const struct split_args &g, const struct split_cta &c, struct split_cursor &s)
{
	__syncwarp();
	split_issue<head_dim, by_head>(g, c, s);
}

/* ---- the beginning ---- */

/*
 * Sets up c and the mbarriers. These expect all bytes that the exchanges will bring, this rank's own
 * included.
 */
SPLIT void split_cta_init(const struct split_args &g, struct split_cta &c, uint32_t base, int head_dim)
{
	c.lane = threadIdx.x % 32;
	c.warp = threadIdx.x / 32;
	c.quad = c.lane / 4;
	c.t = c.lane % 4;
	c.rank = ptx_cluster_ctarank();
	c.head = ptx_clusterid_x();
	c.base = base;
	if (threadIdx.x == 0) {
		ptx_mbarrier_init(base + g.s_mbar, 1);
		ptx_mbarrier_init(base + g.s_mbar + 8, 1);
		ptx_mbarrier_init(base + g.s_mbar + 16, 1);
		ptx_fence_mbarrier_init_release_cluster();
		ptx_mbarrier_arrive_expect_tx(base + g.s_mbar, g.a.kv.batch * g.rows * 2);
		ptx_mbarrier_arrive_expect_tx(base + g.s_mbar + 8, g.a.kv.batch * g.group * head_dim * 2);
	}
}

#define SPLIT_AHEAD	4	/* vectors of 8 elements of x that a thread loads at once */

/* The first loads of a CTA: all of them are issued before the first is used. */
struct split_first {
	uint4 x[SPLIT_AHEAD], weight[SPLIT_AHEAD];
	int pages[2], last_len;
};

/*
 * Returns the number of rows of x that this CTA norms: all, or every size-th row if n is shared in global
 * memory. split_norm_warps() returns the number of warps for each row.
 */
SPLIT int split_norm_rows(const struct split_args &g, const struct split_cta &c, int *first, int *step)
{
	*first = g.n_stride ? 0 : c.rank;
	*step = g.n_stride ? 1 : g.size;
	return (g.a.kv.batch - *first + *step - 1) / *step;
}

SPLIT int split_norm_warps(int rows)
{
	return rows <= 1 ? 8 : rows <= 2 ? 4 : rows <= 4 ? 2 : 1;
}

SPLIT void split_load_x(const struct split_args &g, uint4 *v, int row, int i, int step)
{
	const uint4 *x = (const uint4 *)g.a.x + (int64_t)row * (g.a.hidden / 8);

#pragma unroll
	for (int k = 0; k < SPLIT_AHEAD; k++, i += step)
		v[k] = i < g.a.hidden / 8 ? __ldcg(x + i) : make_uint4(0, 0, 0, 0);
}

SPLIT void split_load_first(const struct split_args &g, const struct split_cta &c, struct split_first &f)
{
	const uint4 *weight = (const uint4 *)g.a.norm_weight;
	int first, step, rows = split_norm_rows(g, c, &first, &step), warps = split_norm_warps(rows);
	const int b = min((int)threadIdx.x, g.a.kv.batch - 1), r = min(c.warp / warps, max(rows - 1, 0));
	const int at = threadIdx.x % (warps * 32);

	split_load_x(g, f.x, min(first + r * step, g.a.kv.batch - 1), at, warps * 32);
#pragma unroll
	for (int k = 0; k < SPLIT_AHEAD; k++) {
		const int i = at + k * warps * 32;

		f.weight[k] = i < g.a.hidden / 8 ? __ldg(weight + i) : make_uint4(0, 0, 0, 0);
	}
	f.pages[0] = __ldg(g.a.kv.indptr + b);
	f.pages[1] = __ldg(g.a.kv.indptr + b + 1);
	f.last_len = __ldg(g.a.kv.last_page_len + b);
}

/*
 * Norms this CTA's rows into shared memory, or into the cluster's n in global memory, and writes the table of
 * requests. The rows are divided among the warps. Ends with a barrier.
 */
template <int dtype, int keys, int by_head>
SPLIT void split_norm(const struct split_args &g, const struct split_cta &c, struct split_first &ahead)
{
	int first, step, rows = split_norm_rows(g, c, &first, &step), warps = split_norm_warps(rows);
	const int threads = warps * 32, at = threadIdx.x % threads, vecs = g.a.hidden / 8;
	uint4 *n = (uint4 *)(g.n + (size_t)c.head * g.a.kv.batch * g.a.hidden * 2);

	if (threadIdx.x < g.a.kv.batch) {
		const int old_len = kv_walk_len(ahead.pages[1] - ahead.pages[0], ahead.last_len,
						g.a.kv.page_size) - 1;
		const int tiles = old_len > 0 ? (old_len + keys - 1) / keys : 0;

		ptx_st_shared_v4(c.base + g.s_table + threadIdx.x * 16,
				 make_uint4(ahead.pages[0], old_len,
					    by_head ? 0 : attn_share(tiles, g.size, c.rank),
					    by_head ? tiles : attn_share(tiles, g.size, c.rank + 1)));
	}
	for (int base = 0; base == 0 || base < rows; base += SPLIT_WARPS / warps) {
		const int r = base + c.warp / warps, live = r < rows, row = first + r * step;
		const uint32_t to = c.base + g.s_n + r * g.n_stride;
		float f[8], w[8], sum = 0, scale;

		for (int i = at; live && i < vecs; i += SPLIT_AHEAD * threads) {
			if (base || i != at)
				split_load_x(g, ahead.x, row, i, threads);
#pragma unroll
			for (int k = 0; k < SPLIT_AHEAD; k++) {
				row_unpack<dtype>(ahead.x[k], f);
#pragma unroll
				for (int j = 0; j < 8; j++)
					sum += f[j] * f[j];
			}
		}
		sum = row_warp_sum(sum);
		if (warps > 1) {
			if (c.lane == 0)
				ptx_st_shared_f32(c.base + g.s_red + c.warp * 4, sum);
			__syncthreads();
			sum = 0;
			for (int k = 0; k < warps; k++)
				sum += ptx_ld_shared_f32(c.base + g.s_red + (c.warp / warps * warps + k) * 4);
		}
		scale = rsqrtf(sum / (float)g.a.hidden + g.a.eps);
		for (int i = at; live && i < vecs; i += SPLIT_AHEAD * threads) {
			if (vecs > SPLIT_AHEAD * threads)	/* otherwise x is still in registers */
				split_load_x(g, ahead.x, row, i, threads);
#pragma unroll
			for (int k = 0; k < SPLIT_AHEAD; k++) {
				const int v = i + k * threads;

				if (v >= vecs)
					break;
				row_unpack<dtype>(ahead.x[k], f);
				row_unpack<dtype>(i == at ? ahead.weight[k] :
						  __ldg((const uint4 *)g.a.norm_weight + v), w);
#pragma unroll
				for (int j = 0; j < 8; j++)
					f[j] = f[j] * scale * w[j];
				if (g.n_stride)
					ptx_st_shared_v4(to + v * 16, row_pack<dtype>(f));
				else
					n[(int64_t)row * vecs + v] = row_pack<dtype>(f);
			}
		}
		/* zeros in the last stage's columns past hidden */
		for (int i = vecs + at; live && g.n_stride && i < (vecs + 15) / 16 * 16; i += threads)
			ptx_st_shared_v4(to + i * 16, make_uint4(0, 0, 0, 0));
		__syncthreads();
	}
}

/*
 * Runs from the first instruction to a full ring. Each warp loads one stage of weights before
 * griddepcontrol.wait, while the preceding kernel may still run. x and the index arrays come next, because
 * loads issued later arrive later; then the rest of the ring. The stream can go beyond w_qkv only when the
 * requests are known.
 */
template <int dtype, int head_dim, int by_head>
SPLIT void split_begin(const struct split_args &g, const struct split_cta &c, struct split_cursor &s)
{
	constexpr int keys = by_head ? 16 : SPLIT_STAGE_BYTES / (2 * head_dim);
	struct split_first ahead;

	split_start<head_dim, by_head>(g, c, s);
	for (int filled = 0, step = 0;; filled++) {
		const int weights = filled < SPLIT_STAGES && s.phase == SPLIT_QKV && s.sub >= 0;

		if (step == 0 && (filled == 1 || !weights)) {
			ptx_griddepcontrol_wait();
			split_load_first(g, c, ahead);
			step = 1;
		}
		if (step == 1 && !weights) {
			if (g.a.offchip && threadIdx.x == 0)
				ptx_st_relaxed_gpu_u32((uint32_t *)(g.box + c.head * g.box_bytes) + c.rank,
						       0);
			if (g.a.offchip && by_head && c.lane == 0)
				ptx_st_relaxed_gpu_u32(split_box_flag(g, c, head_dim, c.rank), 0);
			split_norm<dtype, keys, by_head>(g, c, ahead);
			ptx_barrier_cluster_arrive_release();
			split_first_tile<head_dim, by_head>(g, c, s);
			if (!g.n_stride)
				/* all ranks have written their rows of n */
				ptx_barrier_cluster_wait_acquire();
			step = 2;
		}
		if (filled == SPLIT_STAGES)
			return;
		split_issue<head_dim, by_head>(g, c, s);
	}
}

/* ---- w_qkv ---- */

/* Activations of up to 8 requests (wide: 16) for 128 columns */
template <int wide> struct split_x {
	uint4 v[4][wide + 1];
};

/* Sums of 16 rows of a matrix: rows quad and quad + 8, requests 2 t and 2 t + 1; wide: 8 requests more */
template <int wide> struct split_sum {
	float v[wide + 1][4];
};

SPLIT void split_load_w(uint4 w[2], uint32_t row, uint32_t piece)
{
	w[0] = ptx_ld_shared_v4(row + piece * 16);
	w[1] = ptx_ld_shared_v4(row + 2048 + piece * 16);
}

/*
 * Multiplies the oldest stage, 16 rows of a matrix as the 16 x 16 operand, by activations, and refills it.
 * Within each 32 columns k is permuted in the same way for both operands: lane 4 quad + t takes the 16 bytes
 * of elements 8 t .. 8 t + 7 for two mma. If registers allow, the refill is issued before the products, and
 * these form two chains of four, because each mma waits for the previous one on the same accumulator.
 */
template <int dtype, int head_dim, int wide, int by_head>
SPLIT void split_multiply(const struct split_args &g, const struct split_cta &cta, struct split_cursor &s,
			  struct split_sum<wide> &d, const struct split_x<wide> &x)
{
	constexpr int late = wide || by_head;
	const struct split_cta c = split_opaque(cta);
	const uint32_t from = split_wait(c, s) + c.quad * 256, swap = (c.quad & 1) << 2;
	float other[wide + 1][4] = {};
	uint4 w[4][2];

#pragma unroll
	for (int k = 0; k < (late ? 0 : 4); k++)
		split_load_w(w[k], from, (k * 4 + c.t) ^ swap);
	if (!late)
		split_release<head_dim, by_head>(g, c, s);
#pragma unroll
	for (int k = 0; k < 4; k++) {
		if (late)
			split_load_w(w[k], from, (k * 4 + c.t) ^ swap);
		const uint32_t a0[4] = { w[k][0].x, w[k][1].x, w[k][0].y, w[k][1].y };
		const uint32_t a1[4] = { w[k][0].z, w[k][1].z, w[k][0].w, w[k][1].w };

#pragma unroll
		for (int h = 0; h <= wide; h++) {
			const uint32_t b0[2] = { x.v[k][h].x, x.v[k][h].y }, b1[2] = { x.v[k][h].z,
										       x.v[k][h].w };

			attn_mma<dtype>(d.v[h], a0, b0);
			attn_mma<dtype>(late ? d.v[h] : other[h], a1, b1);
		}
	}
#pragma unroll
	for (int h = 0; h <= wide; h++)
#pragma unroll
		for (int i = 0; i < 4; i++)
			d.v[h][i] += late ? 0 : other[h][i];
	if (late)
		split_release<head_dim, by_head>(g, c, s);
}

/* Loads n for 128 columns: from shared memory, or from the stage `tile`, which has the layout of weights. */
template <int wide>
SPLIT void split_load_n(const struct split_args &g, const struct split_cta &c, struct split_x<wide> &x,
			int chunk,
			uint32_t tile)
{
	const uint32_t swap = (c.quad & 1) << 2;

#pragma unroll
	for (int k = 0; k < 4; k++)
#pragma unroll
		for (int h = 0; h <= wide; h++) {
			const int row = c.quad + 8 * h;

			x.v[k][h] = make_uint4(0, 0, 0, 0);
			if (wide || !g.n_stride)
				x.v[k][h] = ptx_ld_shared_v4(tile + row * 256 + ((k * 4 + c.t) ^ swap) * 16);
			else if (row < g.a.kv.batch)
				x.v[k][h] = ptx_ld_shared_v4(c.base + g.s_n + row * g.n_stride +
							     (chunk * 16 + k * 4 + c.t) * 16);
		}
}

/*
 * Computes four neighbouring elements of a pass: the sums of all warps in their order, plus bias, rounded.
 * Sends them to q, k, v of all ranks, this one included; a thread that has waited for all bytes may read
 * them.
 */
template <int dtype, int head_dim, int wide>
SPLIT void split_share_qkv(const struct split_args &g, const struct split_cta &c, int first, int units,
			   int item)
{
	const int per_request = units * 4, b = item / per_request, four = item - b * per_request;
	const int v = first * SPLIT_ROWS + four * 4, head = v / head_dim, dim = v % head_dim;
	const uint32_t from = c.base + g.s_scratch + (b * split_sum_row(wide) + four * 4) * 4;
	const uint32_t warp_bytes = g.a.kv.batch * split_sum_row(wide) * 4;
	const uint32_t to = split_at<head_dim>(g, c, b, head, dim / 8) + dim % 8 * 2;
	uint2 bias = make_uint2(0, 0), sum;
	float f[4], e[4] = { 0, 0, 0, 0 };

	if (g.a.b_qkv)
		bias = __ldg((const uint2 *)((const uint16_t *)g.a.b_qkv + split_row<head_dim>(g, c, v)));
#pragma unroll
	for (int w = 0; w < SPLIT_WARPS; w++) {
		const uint4 p = ptx_ld_shared_v4(from + w * warp_bytes);

		e[0] += __uint_as_float(p.x);
		e[1] += __uint_as_float(p.y);
		e[2] += __uint_as_float(p.z);
		e[3] += __uint_as_float(p.w);
	}
	row_unpack2<dtype>(bias.x, f);
	row_unpack2<dtype>(bias.y, f + 2);
	if (!g.a.b_qkv)
		f[0] = f[1] = f[2] = f[3] = 0;
	sum = make_uint2(row_pack2<dtype>(e[0] + f[0], e[1] + f[1]),
			 row_pack2<dtype>(e[2] + f[2], e[3] + f[3]));
	if (g.a.offchip) {
		*(uint2 *)(split_box_qkv(g, c) + ((size_t)b * g.rows + v) * 2) = sum;
		return;
	}
	for (int d = 0; d < g.size; d++) {
		const int peer = cairn_cluster_wrap(c.rank, d, g.size);

		split_send_v2(g, to, sum, c.base + g.s_mbar, peer);
	}
}

/*
 * Writes cosines and sines over the partial sums, while other ranks' q, k, v are in flight. Contains no
 * barrier.
 */
template <int head_dim> SPLIT void split_angles(const struct split_args &g, const struct split_cta &c)
{
	for (int i = threadIdx.x; i < g.a.kv.batch * (head_dim / 2); i += SPLIT_THREADS) {
		float cosine, sine;

		angle_cos_sin(__fmul_rn((float)__ldg(g.a.positions + i / (head_dim / 2)),
					__ldg(g.a.inv_freq + i % (head_dim / 2))), &cosine, &sine);
		ptx_st_shared_v2(c.base + g.s_scratch + i * 8,
				 make_uint2(__float_as_uint(cosine), __float_as_uint(sine)));
	}
}

template <int wide, int most> SPLIT void split_turn(struct split_sum<wide> *sum)
{
	const struct split_sum<wide> first = sum[0];

#pragma unroll
	for (int u = 0; u < most - 1; u++)
		sum[u] = sum[u + 1];
	sum[most - 1] = first;
}

/*
 * Computes n w_qkv^T for this rank's rows and runs exchange 1. Every rank then has all of q, k and v, not yet
 * rotated.
 */
template <int dtype, int head_dim, int wide, int by_head>
SPLIT void split_project_qkv(const struct split_args &g, const struct split_cta &c, struct split_cursor &s,
			     uint32_t &epoch)
{
	constexpr int most = split_pass(wide);
	const int in_smem = !wide && g.n_stride; /* n is in shared memory; n of many requests is too large */
	const int end = g.first_unit[c.rank + 1];

	for (int first = g.first_unit[c.rank]; first < end; first += g.pass_units) {
		const int units = min(g.pass_units, end - first);
		struct split_sum<wide> sum[most] = {};

		for (int chunk = c.warp; chunk * SPLIT_K < g.a.hidden; chunk += SPLIT_WARPS) {
			struct split_x<wide> x;

			if (in_smem)
				split_load_n<wide>(g, c, x, chunk, 0);
			/*
			 * the sums rotate instead of the loop being unrolled, so the refill code exists once
			 */
#pragma unroll 1
			for (int u = in_smem ? 0 : -1; u < most; u++) {
				if (u < 0) {
					split_load_n<wide>(g, c, x, chunk, split_wait(c, s));
					split_release<head_dim, by_head>(g, c, s);
				} else if (u < units) {
					split_multiply<dtype, head_dim, wide, by_head>(g, c, s, sum[0], x);
				}
				if (u >= 0)
					split_turn<wide, most>(sum);
			}
		}
#pragma unroll
		for (int u = 0; u < most; u++)
#pragma unroll
			for (int h = 0; h <= wide; h++)
#pragma unroll
				for (int i = 0; i < 4; i++) {
					const int b = 8 * h + 2 * c.t + (i & 1);

					if (u < units && b < g.a.kv.batch)
						ptx_st_shared_f32(c.base + g.s_scratch +
								  ((c.warp * g.a.kv.batch + b) *
								   split_sum_row(wide) + u * 16 +
								   (i >> 1) * 8 + c.quad) * 4,
								  sum[u].v[h][i]);
				}
		if (in_smem && first == g.first_unit[c.rank])
			ptx_barrier_cluster_wait_acquire();	/* peers' mbarriers are initialised */
		__syncthreads();
		for (int item = threadIdx.x; item < units * 4 * g.a.kv.batch; item += SPLIT_THREADS)
			split_share_qkv<dtype, head_dim, wide>(g, c, first, units, item);
		if (first + g.pass_units < end)
			__syncthreads(); /* the sums have been read; the next pass may overwrite them */
	}
	if (in_smem && g.first_unit[c.rank] == end)
		ptx_barrier_cluster_wait_acquire();
	__syncthreads();
	split_angles<head_dim>(g, c);
	if (!g.a.offchip) {
		split_await(g, c.base + g.s_mbar, 0);
		__syncthreads();
		return;
	}
	split_cluster_sync(g, c, epoch);
	for (int i = threadIdx.x; i < g.a.kv.batch * g.rows / 8; i += SPLIT_THREADS) {
		const int b = i / (g.rows / 8), v = i - b * (g.rows / 8);

		ptx_st_shared_v4(split_at<head_dim>(g, c, b, v / (head_dim / 8), v % (head_dim / 8)),
				 __ldcg((const uint4 *)split_box_qkv(g, c) + i));
	}
	__syncthreads();
}
#endif
