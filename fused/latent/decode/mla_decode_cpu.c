// SPDX-License-Identifier: Apache-2.0
/*
 * mla_decode_cpu - attention of absorbed queries for the engine without a GPU, in fp32
 *
 * A task is one token of a request with up to BLOCK of its heads, so each key is widened once for these
 * heads. Each head keeps a running maximum and rescales its sums when the maximum rises. A row's bits do not
 * depend on other rows.
 */
#include "fused/latent/decode/mla_decode.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/args.h"
#include "primitives/base/error.h"
#include "primitives/base/fp8.h"
#include "fused/attention/base/attn_tile.h"
#include "fused/latent/base/latent_cpu.h"

#define BLOCK	16
#define RANK	LATENT_RANK
#define ROPE	LATENT_ROPE
#define DIM	(RANK + ROPE)

struct task {
	float key[DIM];
	struct latent_row row[BLOCK];
};

static CAIRN_WIDE void load_key(const struct cairn_mla_decode_args *a, int64_t slot, float *key)
{
	const uint8_t *row = (const uint8_t *)a->kv.k_pages + slot * CAIRN_MLA_FP8_BYTES;
	float scale;

	if (!a->kv_fp8) {
		cairn_load_row(key, a->kv.k_pages, a->dtype, slot * DIM, DIM);
		return;
	}
	for (int g = 0; g < RANK / CAIRN_MLA_FP8_GROUP; g++) {
		memcpy(&scale, row + RANK + 4 * g, sizeof(scale));
		for (int l = g * CAIRN_MLA_FP8_GROUP; l < (g + 1) * CAIRN_MLA_FP8_GROUP; l++)
			key[l] = block_narrowed(cairn_e4m3_to_float(row[l]) * scale, a->dtype);
	}
	cairn_load_row(key + RANK, row + RANK + 16, a->dtype, 0, ROPE);
}

/* Runs a task: `heads` heads from number `head` on, of token i of request b. */
static void run(const struct cairn_mla_decode_args *a, struct task *t, int b, int i, int head, int heads)
{
	int64_t token = (int64_t)a->qo_indptr[b] + i, at = token * a->num_heads + head;
	int qo_len = a->qo_indptr[b + 1] - a->qo_indptr[b];
	int n = a->num_slots ? a->num_slots : attn_visible(i, qo_len, (int)cairn_kv_len(&a->kv, b), 1);

	for (int h = 0; h < heads; h++) {
		struct latent_row *r = &t->row[h];

		memset(r->o, 0, sizeof(r->o));
		cairn_load_row(r->q, a->q_latent, a->dtype, (at + h) * cairn_mla_latent_stride(a), RANK);
		cairn_load_row(r->q + RANK, a->q_rope, a->dtype, (at + h) * cairn_mla_rope_stride(a), ROPE);
		r->top = -INFINITY;
		r->sum = 0;
	}
	for (int j = 0; j < n; j++) {
		int64_t slot = a->num_slots ? a->slots[token * a->num_slots + j] :
			       cairn_kv_slot(&a->kv, b, j);

		if (slot < 0)
			continue;
		load_key(a, slot, t->key);
		for (int h = 0; h < heads; h++)
			latent_take_key(&t->row[h], t->key, a->sm_scale, a->dtype);
	}
	for (int h = 0; h < heads; h++) {
		for (int l = 0; l < RANK; l++)
			cairn_store(a->out, a->dtype, (at + h) * RANK + l,
				    t->row[h].sum > 0 ? t->row[h].o[l] / t->row[h].sum : 0);
		if (a->lse)
			a->lse[at + h] = latent_lse(&t->row[h]);
	}
}

/* Sets rows past the last request to 0, and their lse to -INFINITY. */
static void empty_rest(const struct cairn_mla_decode_args *a)
{
	int64_t first = (int64_t)a->qo_indptr[a->kv.batch] * a->num_heads;
	int64_t end = (int64_t)a->nnz_qo * a->num_heads;

	memset((uint16_t *)a->out + first * RANK, 0, (size_t)(end - first) * RANK * 2);
	for (int64_t i = first; a->lse && i < end; i++)
		a->lse[i] = -INFINITY;
}

int cairn_mla_decode_cpu(const struct cairn_mla_decode_args *args, void *stream)
{
	struct cairn_mla_decode_args known, *a = &known;
	int no_memory = 0, blocks;

	(void)stream;
	CAIRN_TRY(cairn_mla_decode_check(args));
	cairn_copy_args(&known, args, sizeof(known));
	if (!a->nnz_qo || !a->kv.batch)
		return 0;
	empty_rest(a);
	blocks = (a->num_heads + BLOCK - 1) / BLOCK;
	#pragma omp parallel reduction(|:no_memory)
	{
		struct task *t = malloc(sizeof(*t));

		no_memory |= !t;
		for (int b = 0; b < a->kv.batch; b++) {
			int tokens = a->qo_indptr[b + 1] - a->qo_indptr[b];

			#pragma omp for schedule(dynamic) nowait
			for (int k = 0; k < tokens * blocks; k++) {
				int head = k % blocks * BLOCK, rest = a->num_heads - head;

				if (t)
					run(a, t, b, k / blocks, head, rest < BLOCK ? rest : BLOCK);
			}
		}
		free(t);
	}
	return no_memory ? cairn_error(ENOMEM, "mla_decode: no memory") : 0;
}
