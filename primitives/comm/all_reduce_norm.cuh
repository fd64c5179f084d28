/* SPDX-License-Identifier: Apache-2.0 */
/*
 * all_reduce_norm - what both kernels have in common: the units of a row, their sum with the residual, and
 * the norm
 *
 * A row is a sequence of 32-bit units (an fp32 element, or two of 16 bits), and three of them are a word. A
 * cluster of up to 8 CTAs shares a row. How it is divided depends on dim and dtype alone, so that bits depend
 * neither on the number of rows nor on the kernel.
 */
#ifndef CAIRN_ALL_REDUCE_NORM_CUH
#define CAIRN_ALL_REDUCE_NORM_CUH

#include "primitives/base/launch.h"
#include "primitives/comm/all_reduce_norm.h"
#include "primitives/comm/comm_device.cuh"
#include "primitives/rows/row.cuh"

#define THREADS		192
#define WARPS		(THREADS / 32)
#define UNITS		3	/* of a word */
#define MAX_CLUSTER	8
#define PARTS		4	/* rows whose sums of squares may be in flight, a power of two */

struct reduce_args {
	struct comm_device c;
	const uint32_t *x, *weight;
	uint32_t *out, *residual;	/* residual may be NULL */
	int32_t rows, units, words;	/* units and words of a row */
	int32_t senders;		/* CTAs that only send, through boxes */
	int32_t part;			/* words of a row that a CTA has */
	int32_t shift;			/* a cluster has 1 << shift CTAs */
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

template <int dtype> ROW void word_unpack(uint4 v, float *f)
{
	constexpr int n = unit_elements(dtype);

	unit_unpack<dtype>(v.x, f);
	unit_unpack<dtype>(v.y, f + n);
	unit_unpack<dtype>(v.z, f + 2 * n);
}

/* Adds the residual, of which `old` are the units, to t, and rounds. sum: units of the result. */
template <int dtype>
ROW void round_sum(const struct reduce_args &a, const uint32_t *old, float *t, uint32_t *sum)
{
	constexpr int n = unit_elements(dtype);

#pragma unroll
	for (int j = 0; j < UNITS; j++) {
		float f[n];

		unit_unpack<dtype>(old[j], f);
#pragma unroll
		for (int e = 0; e < n; e++)
			f[e] = a.residual ? t[j * n + e] + f[e] : t[j * n + e];
		sum[j] = unit_pack<dtype>(f);
		unit_unpack<dtype>(sum[j], t + j * n);
	}
}

/* Sums of squares of the cluster's warps, for PARTS rows in turn; `full` counts the bytes that have come. */
struct parts {
	uint64_t full[PARTS];
	float2 sum[PARTS][MAX_CLUSTER * WARPS / 2];
};

/*
 * Gives the sum of a warp to all CTAs of the cluster. Nothing is fenced: st.async tells the receiver of its
 * arrival, and a release would also wait for the words on their way to the peers. turn: number of the row in
 * this launch.
 */
ROW void cluster_give(float v, uint32_t cta, struct parts *parts, uint32_t turn)
{
	const uint32_t size = ptx_cluster_nctarank(), lane = threadIdx.x % 32, which = turn % PARTS;
	const uint32_t full = ptx_smem(&parts->full[which]);
	const float2 *part = parts->sum[which];

	v = row_warp_sum(v);
	if (threadIdx.x == 0)
		ptx_mbarrier_arrive_expect_tx(full, size * WARPS * 4);
	if (lane < size)
		ptx_st_async_b32(ptx_mapa(ptx_smem(part) + (cta * WARPS + threadIdx.x / 32) * 4, lane),
				 __float_as_uint(v), ptx_mapa(full, lane));
}

/* Returns the sum over the cluster, with the same bits in every thread: the order is that of the warps. */
ROW float cluster_take(struct parts *parts, uint32_t turn)
{
	const uint32_t size = ptx_cluster_nctarank(), which = turn % PARTS;
	const float2 *part = parts->sum[which];
	float sum[WARPS] = { 0 };

	ptx_mbarrier_wait_cluster(ptx_smem(&parts->full[which]), turn / PARTS & 1);
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

/* Initialises the mbarriers; all CTAs of the cluster have done so after a wait at the cluster's barrier. */
ROW void cluster_begin(struct parts *parts)
{
	if (threadIdx.x == 0) {
		for (int i = 0; i < PARTS; i++)
			ptx_mbarrier_init(ptx_smem(&parts->full[i]), 1);
		ptx_fence_mbarrier_init_release_cluster();
	}
	__syncwarp();
	ptx_barrier_cluster_arrive_relaxed();
}

/* Stores word w of a row: the residual, and t after the norm. */
template <int dtype>
ROW void store_word(const struct reduce_args &a, int64_t at, int w, float scale, const uint32_t *weight,
		    const uint32_t *sum)
{
	constexpr int n = unit_elements(dtype);

#pragma unroll
	for (int j = 0; j < UNITS; j++) {
		float t[n], g[n];

		unit_unpack<dtype>(sum[j], t);
		unit_unpack<dtype>(weight[j], g);
#pragma unroll
		for (int e = 0; e < n; e++)
			t[e] = t[e] * scale * (a.weight_offset + g[e]);
		if (w < 0 || w * UNITS + j >= a.units)
			continue;
		a.out[at + w * UNITS + j] = unit_pack<dtype>(t);
		if (a.residual)
			a.residual[at + w * UNITS + j] = sum[j];
	}
}

/* all_reduce_norm_bulk.cu: through boxes, for calls of ranks > 1 that are long enough. */
int all_reduce_norm_is_long(const struct cairn_all_reduce_norm_args *a);
int all_reduce_norm_bulk(const struct cairn_all_reduce_norm_args *a, struct reduce_args *r, void *stream);

/* Sets the size of a cluster, and how it shares a row. */
static inline void reduce_shape(struct reduce_args *r, struct cairn_launch *l)
{
	r->shift = r->words <= THREADS ? 0 : r->words <= 2 * THREADS ? 1 : r->words <= 4 * THREADS ? 2 : 3;
	l->cluster = 1 << r->shift;
	l->block[0] = THREADS;
	r->part = (r->words + l->cluster - 1) / l->cluster;
}

#endif
