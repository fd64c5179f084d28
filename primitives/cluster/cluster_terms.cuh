/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster_terms - one thread reduces the contributions of n ranks
 *
 * Small messages are reduced by words of 4 bytes: all loads are issued at once and reduced pairwise in rank
 * order, unrolled for 2, 4, 8, 16 and any number of ranks. Large messages are reduced by granules of 16
 * bytes, added in rank order. Arithmetic is in fp32 with one rounding at the end.
 */
#ifndef CAIRN_CLUSTER_TERMS_CUH
#define CAIRN_CLUSTER_TERMS_CUH

#include "primitives/cluster/cluster_comm.cuh"
#include "primitives/base/dtype.h"

/*
 * Addresses of n ranks' contributions to a word or granule, and of the (m, l) of its row. In shared memory,
 * the contribution of rank r lies in slot (own - r) mod n - 1 (one less than the distance it was sent), and
 * this rank's own contribution lies at own_base. In global memory (own is ~0), that of rank r lies at
 * base + r * stride.
 */
struct cluster_terms {
	uint64_t base, own_base;	/* shared addresses, or pointers to global memory */
	uint64_t ml, own_ml;		/* the same for (m, l) */
	/* bytes from rank to rank, for data and (m, l); this rank, or ~0; number of ranks */
	uint32_t stride, ml_stride, own, n;
};

/* Returns the slot of rank r's contribution; r must not be this rank. */
CLUSTER_FN uint32_t cluster_term_slot(const struct cluster_terms *t, uint32_t r)
{
	return t->own - r + (t->own < r ? t->n : 0) - 1;
}

/* Returns the shared address of rank r's contribution or, in global memory, its offset from base. */
template <int global> CLUSTER_FN uint32_t cluster_term(const struct cluster_terms *t, uint32_t r)
{
	if (global)
		return r * t->stride;
	return r == t->own ? (uint32_t)t->own_base : (uint32_t)t->base + cluster_term_slot(t, r) * t->stride;
}

template <int global> CLUSTER_FN uint64_t cluster_term_ml(const struct cluster_terms *t, uint32_t r)
{
	if (global)
		return t->ml + r * t->ml_stride;
	return r == t->own ? (uint32_t)t->own_ml : (uint32_t)t->ml + cluster_term_slot(t, r) * t->ml_stride;
}

template <int dtype> CLUSTER_FN void cluster_unpack(uint32_t w, float *v)
{
	if (dtype == CAIRN_F32) {
		v[0] = __uint_as_float(w);
	} else if (dtype == CAIRN_BF16) {
		v[0] = __uint_as_float(w << 16);
		v[1] = __uint_as_float(w & 0xffff0000);
	} else {
		asm("{\n\t.reg .b16 lo, hi;\n\tmov.b32 {lo, hi}, %2;\n\t"
		    "cvt.f32.f16 %0, lo;\n\tcvt.f32.f16 %1, hi;\n\t}"
		    : "=f"(v[0]), "=f"(v[1]) : "r"(w));
	}
}

template <int dtype> CLUSTER_FN uint32_t cluster_pack(const float *v)
{
	uint32_t w = 0;

	if (dtype == CAIRN_F32)
		w = __float_as_uint(v[0]);
	else if (dtype == CAIRN_BF16)
		asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(v[1]), "f"(v[0]));
	else
		asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(v[1]), "f"(v[0]));
	return w;
}

/* Loads 2 or 4 words. The caller's earlier acquire orders the plain loads of global memory. */
template <int words, int global> CLUSTER_FN void cluster_load(uint32_t *w, uint64_t addr)
{
	if constexpr (words == 4) {
		const uint4 v = global ? *(const uint4 *)addr : ptx_ld_shared_v4((uint32_t)addr);

		w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
	} else {
		const uint2 v = global ? *(const uint2 *)addr : ptx_ld_shared_v2((uint32_t)addr);

		w[0] = v.x, w[1] = v.y;
	}
}

/* Returns (m, l) of rank r, or (-INFINITY, 0) for r >= n. */
template <int global> CLUSTER_FN float2 cluster_load_ml(const struct cluster_terms *t, uint32_t r)
{
	const uint64_t addr = cluster_term_ml<global>(t, r < t->n ? r : t->n - 1);
	uint32_t v[2] = { 0xff800000, 0 };

	if (r < t->n)
		cluster_load<2, global>(v, addr);
	return make_float2(__uint_as_float(v[0]), __uint_as_float(v[1]));
}

/* Returns exp(m - top), or -1 for a rank without keys. */
CLUSTER_FN float cluster_weight(float m, float top)
{
	return m > -INFINITY ? ptx_ex2_approx_ftz((m - top) * 1.4426950408889634f) : -1;
}

CLUSTER_FN float cluster_weigh(float w, float x) { return w < 0 ? 0 : w * x; }

/* Writes the weights of `most` ranks for a row to w; -1 for ranks >= n. */
template <int global, int most>
CLUSTER_FN void cluster_row_weights(const struct cluster_terms *t, uint32_t row, float *w)
{
	struct cluster_terms at = *t;
	float top = -INFINITY;

	at.ml += row * 8;
	at.own_ml += row * 8;
#pragma unroll
	for (int r = 0; r < most; r++) {
		w[r] = cluster_load_ml<global>(&at, r).x;
		top = fmaxf(top, w[r]);
	}
#pragma unroll
	for (int r = 0; r < most; r++)
		w[r] = cluster_weight(w[r], top);
}

/* v[0] = sum or maximum of v[0..most), reduced pairwise. most must be a power of two. */
template <int most, int sum> CLUSTER_FN void cluster_fold(float *v)
{
#pragma unroll
	for (int s = 1; s < most; s *= 2)
#pragma unroll
		for (int r = 0; r + s < most; r += 2 * s)
			v[r] = sum ? v[r] + v[r + s] : ptx_max_nan(v[r], v[r + s]);
}

/*
 * Reduces one word of n ranks. most: equal to n if `all`, else at least n. sum: 1 for SUM; 0 for MAX (sign 1)
 * and for MIN, which is the negated MAX of negated values (sign -1).
 */
template <int dtype, int softmax, int most, int all, int sum>
CLUSTER_FN uint32_t cluster_reduce_raw(const uint32_t *raw, const float *w, uint32_t n, float sign)
{
	constexpr int values = dtype == CAIRN_F32 ? 1 : 2;
	float v[values][most], out[2] = { 0, 0 };

#pragma unroll
	for (int r = 0; r < most; r++) {
		float x[2];

		cluster_unpack<dtype>(raw[r], x);
#pragma unroll
		for (int i = 0; i < values; i++) {
			v[i][r] = softmax ? cluster_weigh(w[r], x[i]) : sum ? x[i] : sign * x[i];
			if (!all && r >= (int)n)
				v[i][r] = sum ? 0 : -INFINITY;
		}
	}
#pragma unroll
	for (int i = 0; i < values; i++) {
		cluster_fold<most, sum>(v[i]);
		out[i] = sum ? v[i][0] : sign * v[i][0];
	}
	return cluster_pack<dtype>(out);
}

/* Waits for mbarrier i and reduces one word of each rank; computes the addresses before the wait. */
template <int dtype, int softmax, int most, int all, int sum>
CLUSTER_FN uint32_t cluster_await_word(const struct cluster_comm *c, uint32_t i,
				       const struct cluster_terms *t, float sign)
{
	uint32_t at[most], raw[most];
	float w[most];

#pragma unroll
	for (int r = 0; r < most; r++) {
		at[r] = cluster_term<0>(t, r);
		asm volatile("" : "+r"(at[r]));	/* computed here, not after the wait */
	}
	cluster_await(c, i);
#pragma unroll
	for (int r = 0; r < most; r++)
		if (all || r < (int)t->n)
			raw[r] = ptx_ld_shared_b32(at[r]);
	if constexpr (softmax)
		cluster_row_weights<0, most>(t, 0, w);
	return cluster_reduce_raw<dtype, softmax, most, all, sum>(raw, w, t->n, sign);
}

/* As above, for any n. If n is a compile-time constant, only one instance remains. */
template <int dtype, int softmax>
CLUSTER_FN uint32_t cluster_await_word_any(const struct cluster_comm *c, uint32_t i,
					   const struct cluster_terms *t, int op)
{
	if (!softmax && op != CAIRN_CLUSTER_SUM)
		return cluster_await_word<dtype, softmax, 16, 0, 0>(c, i, t,
								    op == CAIRN_CLUSTER_MIN ? -1 : 1);
	if (t->n == 2)
		return cluster_await_word<dtype, softmax, 2, 1, 1>(c, i, t, 1);
	if (t->n == 4)
		return cluster_await_word<dtype, softmax, 4, 1, 1>(c, i, t, 1);
	if (t->n == 8)
		return cluster_await_word<dtype, softmax, 8, 1, 1>(c, i, t, 1);
	if (t->n == 16)
		return cluster_await_word<dtype, softmax, 16, 1, 1>(c, i, t, 1);
	if (t->n <= 4)
		return cluster_await_word<dtype, softmax, 4, 0, 1>(c, i, t, 1);
	if (t->n <= 8)
		return cluster_await_word<dtype, softmax, 8, 0, 1>(c, i, t, 1);
	return cluster_await_word<dtype, softmax, 16, 0, 1>(c, i, t, 1);
}

/*
 * Reduces the granules at base + at[r] of all ranks r in rank order. w: weights, for softmax. most: at least
 * n; for ranks >= n, at repeats that of the last rank, and their values are ignored.
 */
template <int dtype, int softmax, int global, int most, int sum>
CLUSTER_FN uint4 cluster_reduce_granule(uint64_t base, const uint32_t *at, const float *w, uint32_t n,
					float sign)
{
	/* 16 weights and 16 granules of 8 values exceed the registers: take half a granule at a time */
	constexpr int parts = softmax && dtype != CAIRN_F32 && most > 8 ? 2 : 1, words = 4 / parts;
	constexpr int per_word = dtype == CAIRN_F32 ? 1 : 2, values = words * per_word;
	uint32_t out[4];

#pragma unroll 1
	for (int part = 0; part < parts; part++) {
		uint32_t raw[most][words];
		float acc[values];

#pragma unroll
		for (int r = 0; r < most; r++)	/* no branch, so that all loads are in flight */
			cluster_load<words, global>(raw[r], base + at[r] + part * 8);
#pragma unroll
		for (int r = 0; r < most; r++)
#pragma unroll
			for (int i = 0; i < values; i++) {
				float x[2];

				cluster_unpack<dtype>(raw[r][i / per_word], x);
				if (softmax)
					x[i % per_word] = cluster_weigh(w[r], x[i % per_word]);
				if (!sum)	/* repeating the last value does not change a maximum */
					acc[i] = r ? ptx_max_nan(acc[i], sign * x[i % per_word]) :
						     sign * x[i % per_word];
				else
					acc[i] = r ? acc[i] + (r < (int)n ? x[i % per_word] : 0) :
						     x[i % per_word];
			}
#pragma unroll
		for (int i = 0; i < values; i++)
			acc[i] = sum ? acc[i] : sign * acc[i];
		out[2] = parts == 1 ? 0 : out[0];
		out[3] = parts == 1 ? 0 : out[1];
#pragma unroll
		for (int i = 0; i < words; i++)
			out[i] = cluster_pack<dtype>(acc + i * per_word);
	}
	/* with two parts, out[0..1] is the second half of the granule */
	return parts == 1 ? make_uint4(out[0], out[1], out[2], out[3]) :
			    make_uint4(out[2], out[3], out[0], out[1]);
}

/* Returns t advanced by `bytes`, and its (m, l) by `row` rows. */
CLUSTER_FN struct cluster_terms cluster_terms_at(struct cluster_terms t, uint32_t bytes, uint32_t row)
{
	t.base += bytes;
	t.own_base += bytes;
	t.ml += row * 8;
	t.own_ml += row * 8;
	return t;
}

/* Returns the merged (m, l) of a row. */
template <int global> CLUSTER_FN float2 cluster_reduce_row(const struct cluster_terms *t)
{
	float top = -INFINITY, sum = 0;

	for (uint32_t r = 0; r < t->n; r++)
		top = fmaxf(top, cluster_load_ml<global>(t, r).x);
	for (uint32_t r = 0; r < t->n; r++) {
		const float2 ml = cluster_load_ml<global>(t, r);

		sum += cluster_weigh(cluster_weight(ml.x, top), ml.y);
	}
	return make_float2(top, sum);
}
#endif
