/* SPDX-License-Identifier: Apache-2.0 */
/*
 * all_reduce_norm.cu - one-shot: every rank sends its rows to all others, and sums and norms all rows itself
 *
 * Schedule: a row is a sequence of 32-bit units (an fp32 element, or two of 16 bits). An LL word carries
 * three of them and the number of the call (comm_device.h), so that no fence, flag or barrier between GPUs is
 * needed: a word has arrived when it holds the number. A cluster of up to 8 CTAs shares a row, and clusters
 * take rows in turn. A cluster first sends all its rows: each thread loads its units and stores a word to
 * every peer. Then it handles the rows one by one. A thread polls the same words from every peer, sums them
 * in rank order, adds and stores the residual, and keeps the rounded sum in registers; warps exchange their
 * sums of squares through distributed shared memory; after one cluster barrier every thread scales its units.
 *
 * How a row is divided depends on dim and dtype alone, so that bits do not depend on the number of rows.
 * Rows that exceed a mailbox take several launches.
 *
 * All clusters of a launch must be resident, or they might fill the device while those that the peer waits
 * for cannot start; the grid is limited to what the device holds.
 *
 * shared memory   s_part   2 x 64 x 4 bytes: sums of squares of the cluster's warps, two rows in turn
 * barriers        one __syncthreads, and a cluster barrier for each row
 *
 * Floor: a launch in a graph (0.8 us), a load (0.5), a crossing (0.8), the words at the link's speed (16 / 12
 * of the bytes at 370 GB/s: 0.06 us for 16 KB, 3.8 us for 1 MB), the norm (0.5) and the store (0.3).
 */
#include "primitives/base/launch.h"
#include "primitives/comm/all_reduce_norm.h"
#include "primitives/comm/comm_device.cuh"
#include "primitives/rows/row.cuh"

#define THREADS		192
#define WARPS		(THREADS / 32)
#define UNITS		3	/* of a word */
#define MAX_CLUSTER	8

struct reduce_args {
	struct comm_device c;
	const uint32_t *x, *weight;
	uint32_t *out, *residual;	/* residual may be NULL */
	int32_t rows, units, words;	/* units and words of a row */
	int32_t part;			/* words of a row that a CTA has */
	float dim, eps, weight_offset;
};

/* elements of a unit */
static __host__ __device__ constexpr int unit_elements(int dtype)
{
	return dtype == CAIRN_F32 ? 1 : 2;
}

template <int dtype> ROW void unit_unpack(uint32_t u, float *f)
{
	if (dtype == CAIRN_F32)
		f[0] = __uint_as_float(u);
	else
		row_unpack2<dtype>(u, f);
}

template <int dtype> ROW uint32_t unit_pack(const float *f)
{
	return dtype == CAIRN_F32 ? __float_as_uint(f[0]) : row_pack2<dtype>(f[0], f[1]);
}

/* A thread's k-th word of a row, or -1. */
ROW int word_of(const struct reduce_args &a, uint32_t cta, int k)
{
	int i = threadIdx.x + k * THREADS, w = cta * a.part + i;

	return i < a.part && w < a.words ? w : -1;
}

/* Loads the units of word w; those beyond the row are 0. */
ROW void load_units(const uint32_t *row, const struct reduce_args &a, int w, uint32_t u[UNITS])
{
#pragma unroll
	for (int j = 0; j < UNITS; j++)
		u[j] = w >= 0 && w * UNITS + j < a.units ? row[w * UNITS + j] : 0;
}

template <int items> ROW void send_rows(const struct reduce_args &a, uint32_t cta, uint32_t number)
{
	for (int row = blockIdx.x / ptx_cluster_nctarank(); row < a.rows;
	     row += gridDim.x / ptx_cluster_nctarank()) {
#pragma unroll
		for (int k = 0; k < items; k++) {
			const int w = word_of(a, cta, k);
			uint32_t u[UNITS];

			load_units(a.x + (int64_t)row * a.units, a, w, u);
			for (int r = 0; w >= 0 && r < a.c.ranks; r++)
				if (r != a.c.rank)
					ptx_st_relaxed_sys_b128(comm_word(a.c, r, a.c.rank, number,
									  row * a.words + w),
								make_uint4(u[0], u[1], u[2], number));
		}
	}
}

/* Adds the units of all ranks for word w of a row, in rank order. */
template <int dtype>
ROW void sum_ranks(const struct reduce_args &a, int row, int w, uint32_t number, float *t)
{
	constexpr int n = unit_elements(dtype);
	uint4 got[CAIRN_COMM_MAX_RANKS];
	uint32_t u[UNITS];

	load_units(a.x + (int64_t)row * a.units, a, w, u);
#pragma unroll
	for (int r = 0; r < CAIRN_COMM_MAX_RANKS; r++)	/* all first looks are in flight together */
		if (w >= 0 && r < a.c.ranks && r != a.c.rank)
			got[r] = ptx_ld_relaxed_sys_b128(comm_word(a.c, a.c.rank, r, number,
								   row * a.words + w));
#pragma unroll
	for (int r = 0; r < CAIRN_COMM_MAX_RANKS; r++) {
		float f[UNITS * n];

		if (w < 0 || r >= a.c.ranks)
			continue;
		if (r == a.c.rank)
			got[r] = make_uint4(u[0], u[1], u[2], number);
		else
			got[r] = comm_await(a.c, COMM_ALL_REDUCE_NORM, number, r,
					    comm_word(a.c, a.c.rank, r, number, row * a.words + w), got[r]);
		unit_unpack<dtype>(got[r].x, f);
		unit_unpack<dtype>(got[r].y, f + n);
		unit_unpack<dtype>(got[r].z, f + 2 * n);
#pragma unroll
		for (int j = 0; j < UNITS * n; j++)
			t[j] = r ? t[j] + f[j] : f[j];
	}
}

/* Adds the residual to t and rounds; stores the new residual. old: units of the old one. */
template <int dtype>
ROW void round_sum(const struct reduce_args &a, int64_t at, int w, const uint32_t *old, float *t)
{
	constexpr int n = unit_elements(dtype);

#pragma unroll
	for (int j = 0; j < UNITS; j++) {
		float f[n];
		uint32_t u;

		unit_unpack<dtype>(old[j], f);
#pragma unroll
		for (int e = 0; e < n; e++)
			f[e] = a.residual ? t[j * n + e] + f[e] : t[j * n + e];
		u = unit_pack<dtype>(f);
		unit_unpack<dtype>(u, t + j * n);
		if (a.residual && w >= 0 && w * UNITS + j < a.units)
			a.residual[at + w * UNITS + j] = u;
	}
}

/* Returns the sum over the cluster, with the same bits in every thread: the order is that of the warps. */
ROW float cluster_sum(float v, uint32_t cta, const float2 *part)
{
	const uint32_t size = ptx_cluster_nctarank(), lane = threadIdx.x % 32;
	float sum[WARPS] = { 0 };

	v = row_warp_sum(v);
	if (lane < size)
		ptx_st_shared_cluster_b32(ptx_mapa(ptx_smem(part) + (cta * WARPS + threadIdx.x / 32) * 4,
						   lane), __float_as_uint(v));
	ptx_barrier_cluster_arrive_release();
	ptx_barrier_cluster_wait_acquire();
	for (uint32_t i = 0; i < size; i++) {
#pragma unroll
		for (int k = 0; k < WARPS / 2; k++) {
			const float2 two = part[i * (WARPS / 2) + k];

			sum[2 * k] += two.x;
			sum[2 * k + 1] += two.y;
		}
	}
	return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + (sum[4] + sum[5]);
}

template <int dtype>
ROW void store_normed(const struct reduce_args &a, int64_t at, int w, float scale, const uint32_t *weight,
		      float *t)
{
	constexpr int n = unit_elements(dtype);

#pragma unroll
	for (int j = 0; j < UNITS; j++) {
		float g[n];

		unit_unpack<dtype>(weight[j], g);
#pragma unroll
		for (int e = 0; e < n; e++)
			t[j * n + e] = t[j * n + e] * scale * (a.weight_offset + g[e]);
		if (w >= 0 && w * UNITS + j < a.units)
			a.out[at + w * UNITS + j] = unit_pack<dtype>(t + j * n);
	}
}

template <int dtype, int items>
__global__ void __launch_bounds__(THREADS, items == 1 ? 4 : 2)
all_reduce_norm_kernel(const __grid_constant__ struct reduce_args a)
{
	constexpr int n = UNITS * unit_elements(dtype);
	const uint32_t cta = ptx_cluster_ctarank();
	uint32_t weight[items][UNITS], number, turn = 0;
	__shared__ float2 s_part[2][MAX_CLUSTER * WARPS / 2];

	ptx_barrier_cluster_arrive_relaxed();
#pragma unroll
	for (int k = 0; k < items; k++)
		load_units(a.weight, a, word_of(a, cta, k), weight[k]);
	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	number = comm_number(a.c);
	if (!comm_has_failed(a.c))
		send_rows<items>(a, cta, number);
	__syncthreads();
	if (threadIdx.x == 0)
		comm_entered(a.c, number);
	ptx_barrier_cluster_wait_acquire();	/* all CTAs of the cluster have started */
	for (int row = blockIdx.x / ptx_cluster_nctarank(); row < a.rows;
	     row += gridDim.x / ptx_cluster_nctarank()) {
		const int64_t at = (int64_t)row * a.units;
		float t[items][n], sum = 0, scale;

#pragma unroll
		for (int k = 0; k < items; k++) {
			const int w = word_of(a, cta, k);
			uint32_t old[UNITS] = { 0, 0, 0 };

#pragma unroll
			for (int j = 0; j < n; j++)
				t[k][j] = 0;
			if (a.residual)
				load_units(a.residual + at, a, w, old);
			sum_ranks<dtype>(a, row, w, number, t[k]);
			round_sum<dtype>(a, at, w, old, t[k]);
#pragma unroll
			for (int j = 0; j < n; j++)
				sum += t[k][j] * t[k][j];
		}
		sum = cluster_sum(sum, cta, s_part[turn++ & 1]);
		scale = rsqrtf(sum / a.dim + a.eps);
#pragma unroll
		for (int k = 0; k < items; k++)
			store_normed<dtype>(a, at, word_of(a, cta, k), scale, weight[k], t[k]);
	}
}

/* ---- launching ---- */

static const void *kernel_of(int dtype, int items)
{
#define OF(dtype, most) \
	(items <= 1 ? (const void *)all_reduce_norm_kernel<dtype, 1> : \
		      (const void *)all_reduce_norm_kernel<dtype, most>)
	/* the longest row has 342 words for a CTA of a cluster of 8, or 683 in fp32 */
	return dtype == CAIRN_F32 ? OF(CAIRN_F32, 4) : dtype == CAIRN_F16 ? OF(CAIRN_F16, 2) :
	       OF(CAIRN_BF16, 2);
#undef OF
}

static int launch(const struct cairn_all_reduce_norm_args *a, struct reduce_args *r, void *stream)
{
	struct cairn_launch l = { .pdl = 1, .stream = stream };
	void *params[] = { r };
	const void *kernel;
	int clusters, most = (int)(COMM_WORDS / r->words);

	l.cluster = r->words <= THREADS ? 1 : r->words <= 2 * THREADS ? 2 : r->words <= 4 * THREADS ? 4 : 8;
	l.block[0] = THREADS;
	r->part = (r->words + l.cluster - 1) / l.cluster;
	kernel = kernel_of(a->dtype, (r->part + THREADS - 1) / THREADS);
	clusters = cairn_max_active_clusters(kernel, &l);
	if (clusters < 1)
		return clusters < 0 ? clusters :
			cairn_error(EOPNOTSUPP, "all_reduce_norm: the device holds no cluster of %d",
				    l.cluster);
	for (int first = 0; first < a->rows; first += most) {
		const int64_t at = (int64_t)first * r->units;

		r->rows = a->rows - first < most ? a->rows - first : most;
		r->x = (const uint32_t *)a->x + at;
		r->out = (uint32_t *)a->out + at;
		r->residual = a->residual ? (uint32_t *)a->residual + at : NULL;
		l.grid[0] = (unsigned int)((r->rows < clusters ? r->rows : clusters) * l.cluster);
		CAIRN_TRY(cairn_launch(kernel, &l, params));
	}
	return 0;
}

extern "C" int cairn_all_reduce_norm(const struct cairn_all_reduce_norm_args *a, void *stream)
{
	struct reduce_args r = {};

	CAIRN_TRY(cairn_all_reduce_norm_check(a));
	CAIRN_TRY(comm_cuda_device(&a->comm, "all_reduce_norm", &r.c));
	if (a->rows == 0)
		return 0;
	r.weight = (const uint32_t *)a->weight;
	r.units = a->dtype == CAIRN_F32 ? a->dim : a->dim / 2;
	r.words = (r.units + UNITS - 1) / UNITS;
	r.dim = (float)a->dim;
	r.eps = a->eps;
	r.weight_offset = a->weight_offset;
	return launch(a, &r, stream);
}
