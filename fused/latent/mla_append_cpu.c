// SPDX-License-Identifier: Apache-2.0
/*
 * mla_append_cpu - rows in parallel; a row's sines and cosines are computed once for its key and all heads
 */
#include "fused/latent/mla_append.h"

#include <math.h>

#include "primitives/base/error.h"
#include "primitives/base/fp8.h"
#include "fused/block/block_cpu.h"
#include "fused/latent/decode/mla_decode.h"

#define MAX_RANK	1024
#define MAX_ROPE	256

struct turn {
	float c[MAX_ROPE / 2], s[MAX_ROPE / 2];
};

static void rotate(const struct cairn_mla_append_args *a, const struct turn *t, const void *x, int64_t from,
		   void *out, int64_t to)
{
	float v[MAX_ROPE];

	cairn_load_row(v, x, a->dtype, from, a->rope_dim);
	for (int p = 0; p < a->rope_dim / 2; p++) {
		cairn_store(out, a->dtype, to + 2 * p, v[2 * p] * t->c[p] - v[2 * p + 1] * t->s[p]);
		cairn_store(out, a->dtype, to + 2 * p + 1, v[2 * p + 1] * t->c[p] + v[2 * p] * t->s[p]);
	}
}

/* Writes a latent as codes and scales. */
static CAIRN_WIDE void put_codes(uint8_t *key, const float *c, int rank)
{
	for (int first = 0; first < rank; first += CAIRN_MLA_FP8_GROUP) {
		float most = 0, scale;

		for (int j = first; j < first + CAIRN_MLA_FP8_GROUP; j++)
			most = isfinite(c[j]) && fabsf(c[j]) > most ? fabsf(c[j]) : most;
		scale = most < CAIRN_MLA_APPEND_LEAST ? 1 : most / 448;
		for (int j = first; j < first + CAIRN_MLA_FP8_GROUP; j++)
			key[j] = isfinite(c[j]) ? cairn_narrow_e4m3(c[j] / scale) : 0x7f;
		memcpy(key + rank + first / CAIRN_MLA_FP8_GROUP * sizeof(scale), &scale, sizeof(scale));
	}
}

static CAIRN_WIDE void append(const struct cairn_mla_append_args *a, int row, int64_t slot)
{
	int rank = a->kv_lora_rank, width = rank + a->rope_dim, head = a->nope_dim + a->rope_dim;
	float v[MAX_RANK], w[MAX_RANK], scale;
	struct turn t;

	for (int p = 0; p < a->rope_dim / 2; p++) {
		float angle = (float)a->positions[row] * a->inv_freq[p];

		t.c[p] = cosf(angle);
		t.s[p] = sinf(angle);
	}
	cairn_load_row(v, a->latent, a->dtype, (int64_t)row * width, rank);
	cairn_load_row(w, a->norm_weight, a->dtype, 0, rank);
	scale = 1 / sqrtf(block_dot(v, v, rank) / (float)rank + a->eps);
	for (int j = 0; j < rank; j++)
		v[j] = v[j] * scale * w[j];
	if (a->kv_fp8) {
		uint8_t *key = (uint8_t *)a->kv.k_pages + slot * CAIRN_MLA_FP8_BYTES;

		put_codes(key, v, rank);
		rotate(a, &t, a->latent, (int64_t)row * width + rank, key + rank + 16, 0);
	} else {
		for (int j = 0; j < rank; j++)
			cairn_store(a->kv.k_pages, a->dtype, slot * width + j, v[j]);
		rotate(a, &t, a->latent, (int64_t)row * width + rank, a->kv.k_pages, slot * width + rank);
	}
	for (int h = 0; h < a->num_heads; h++) {
		int64_t at = ((int64_t)row * a->num_heads + h) * head + a->nope_dim;

		rotate(a, &t, a->q, at, a->q, at);
	}
}

int cairn_mla_append_cpu(const struct cairn_mla_append_args *a, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_mla_append_check(a));
	if (!a->nnz_qo)
		return 0;
	for (int b = 0; b < a->kv.batch; b++) {
		int first = a->qo_indptr[b], rows = a->qo_indptr[b + 1] - first;
		int64_t old = cairn_kv_len(&a->kv, b) - rows;

		#pragma omp parallel for schedule(static) if (rows > 4)
		for (int i = 0; i < rows; i++)
			append(a, first + i, cairn_kv_slot(&a->kv, b, old + i));
	}
	return 0;
}
