/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dropin_arrays - small kernels, and the same on a host, that convert FlashInfer's arrays to and from ours
 *
 * Each has a struct of arguments, a function that computes one element, and two callers of it: a loop
 * (dropin_arrays.c) and a kernel (dropin_arrays.cu).
 */
#ifndef CAIRN_DROPIN_ARRAYS_H
#define CAIRN_DROPIN_ARRAYS_H

#include <stdint.h>

#ifdef __CUDACC__
#define DROPIN_FN	static inline __host__ __device__
#else
#define DROPIN_FN	static inline
#endif

/* to[i] = first + i * step */
struct dropin_count {
	int32_t *to;
	int32_t first, step, count;
};

/*
 * FlashInfer's masks have the bits of a request without gaps: bit i * keys + n is row i, key n. Lines of
 * attn_bsr begin at bytes. Those of request b begin at lines_indptr[b] = qo_indptr[b] * line_bytes, where
 * line_bytes suffices for every request.
 */
struct dropin_lines {
	const uint8_t *packed;
	const int32_t *packed_indptr;	/* [batch], in bytes; NULL: a single request */
	const int32_t *qo_indptr, *kv_indptr;	/* [batch + 1]; kv_indptr counts blocks */
	const int32_t *last_len;	/* [batch], slots in the last block; NULL: block_n */
	uint8_t *lines;
	int64_t *lines_indptr;		/* [batch], out */
	int64_t line_bytes;
	int32_t block_n, batch, max_rows;
};

/* lse[i] *= log2(e) */
struct dropin_base2 {
	float *lse;
	int64_t count;
};

/* Packs one byte for each bit into bits; segment s is bools[in[s]] .. and begins at the byte bits[out[s]]. */
struct dropin_pack {
	const uint8_t *bools;
	const int32_t *in, *out;	/* [segments + 1]; NULL: one segment of `count` */
	uint8_t *bits;
	int64_t count;
	int32_t segments, big;		/* big: the first bit is the highest */
};

struct dropin_arrays {
	int (*count)(const struct dropin_count *a, void *stream);
	int (*lines)(const struct dropin_lines *a, void *stream);
	int (*base2)(const struct dropin_base2 *a, void *stream);
	int (*pack)(const struct dropin_pack *a, void *stream);
};

#ifdef __cplusplus
extern "C" {
#endif
extern const struct dropin_arrays dropin_arrays_host, dropin_arrays_cuda;
#ifdef __cplusplus
}
#endif

#define DROPIN_LOG2E	1.4426950408889634f

DROPIN_FN int64_t dropin_keys(const struct dropin_lines *a, int32_t b)
{
	int64_t blocks = a->kv_indptr[b + 1] - a->kv_indptr[b];

	if (blocks <= 0)
		return 0;
	return a->last_len ? (blocks - 1) * a->block_n + a->last_len[b] : blocks * a->block_n;
}

/* Byte n of the line of row i of request b, which has `keys` keys. */
DROPIN_FN uint8_t dropin_line_byte(const struct dropin_lines *a, int32_t b, int32_t i, int64_t keys,
				   int64_t n)
{
	const uint8_t *packed = a->packed + (a->packed_indptr ? a->packed_indptr[b] : 0);
	int64_t first = i * keys + n * 8;
	int64_t left = keys - n * 8;
	unsigned byte = 0;

	for (int j = 0; j < 8 && j < left; j++)
		byte |= (packed[(first + j) / 8] >> (first + j) % 8 & 1u) << j;
	return (uint8_t)byte;
}

DROPIN_FN int64_t dropin_pack_count(const struct dropin_pack *a, int32_t s)
{
	return a->in ? a->in[s + 1] - a->in[s] : a->count;
}

DROPIN_FN void dropin_pack_byte(const struct dropin_pack *a, int32_t s, int64_t n)
{
	const uint8_t *bools = a->bools + (a->in ? a->in[s] : 0);
	int64_t left = dropin_pack_count(a, s) - n * 8;
	unsigned byte = 0;

	for (int j = 0; j < 8 && j < left; j++)
		byte |= (bools[n * 8 + j] ? 1u : 0u) << (a->big ? 7 - j : j);
	a->bits[(a->out ? a->out[s] : 0) + n] = (uint8_t)byte;
}

#endif
