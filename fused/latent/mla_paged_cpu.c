// SPDX-License-Identifier: Apache-2.0
/*
 * mla_paged_cpu - latent attention for the engine without a GPU, in fp32
 *
 * A task is one head of BLOCK rows of a request. It widens the head's weights once, and each key once for all
 * its rows. Each row keeps a running maximum and rescales its sums when the maximum rises. A row's bits do
 * not depend on other rows.
 */
#include "fused/latent/mla_paged.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/args.h"
#include "primitives/base/error.h"
#include "fused/attention/base/attn_tile.h"
#include "fused/latent/base/latent_cpu.h"

#define BLOCK	16
#define RANK	LATENT_RANK
#define ROPE	LATENT_ROPE
#define NOPE	128
#define V_DIM	128

struct task {
	float w[RANK], key[RANK + ROPE];
	struct latent_row row[BLOCK];
};

static CAIRN_WIDE void absorb(const struct cairn_mla_paged_args *a, struct task *t, int64_t first, int rows,
			      int h)
{
	float nope[BLOCK][NOPE];

	for (int i = 0; i < rows; i++) {
		int64_t at = ((first + i) * a->num_heads + h) * (NOPE + ROPE);

		memset(t->row[i].q, 0, RANK * sizeof(float));
		cairn_load_row(nope[i], a->q, a->dtype, at, NOPE);
		cairn_load_row(t->row[i].q + RANK, a->q, a->dtype, at + NOPE, ROPE);
	}
	for (int d = 0; d < NOPE; d++) {
		cairn_load_row(t->w, a->w_kv_b, a->dtype, ((int64_t)h * (NOPE + V_DIM) + d) * RANK, RANK);
		for (int i = 0; i < rows; i++)
			for (int l = 0; l < RANK; l++)
				t->row[i].q[l] += nope[i][d] * t->w[l];
	}
	for (int i = 0; i < rows; i++)
		for (int l = 0; l < RANK; l++)
			t->row[i].q[l] = block_narrowed(t->row[i].q[l], a->dtype);
}

static CAIRN_WIDE void raise(const struct cairn_mla_paged_args *a, struct task *t, int64_t first, int rows,
			     int h)
{
	for (int i = 0; i < rows; i++) {
		float sum = t->row[i].sum, *o = t->row[i].o;

		for (int l = 0; l < RANK; l++)
			o[l] = sum > 0 ? block_narrowed(o[l] / sum, a->dtype) : 0;
	}
	for (int i = 0; a->lse && i < rows; i++)
		a->lse[(first + i) * a->num_heads + h] = latent_lse(&t->row[i]);
	for (int d = 0; d < V_DIM; d++) {
		cairn_load_row(t->w, a->w_kv_b, a->dtype, ((int64_t)h * (NOPE + V_DIM) + NOPE + d) * RANK,
			       RANK);
		for (int i = 0; i < rows; i++)
			cairn_store(a->out, a->dtype, ((first + i) * a->num_heads + h) * V_DIM + d,
				    block_dot(t->row[i].o, t->w, RANK));
	}
}

/* Runs a task: rows first .. first + rows - 1 of request b, one head. */
static void run(const struct cairn_mla_paged_args *a, struct task *t, int b, int first, int rows, int h)
{
	int qo_len = a->qo_indptr[b + 1] - a->qo_indptr[b];
	int kv_len = (int)cairn_kv_len(&a->kv, b);
	int last = attn_visible(first + rows - 1, qo_len, kv_len, 1);

	absorb(a, t, a->qo_indptr[b] + first, rows, h);
	for (int i = 0; i < rows; i++) {
		memset(t->row[i].o, 0, sizeof(t->row[i].o));
		t->row[i].top = -INFINITY;
		t->row[i].sum = 0;
	}
	for (int j = 0; j < last; j++) {
		cairn_load_row(t->key, a->kv.k_pages, a->dtype, cairn_kv_slot(&a->kv, b, j) * (RANK + ROPE),
			       RANK + ROPE);
		for (int i = 0; i < rows; i++)
			if (j < attn_visible(first + i, qo_len, kv_len, 1))
				latent_take_key(&t->row[i], t->key, a->sm_scale, a->dtype);
	}
	raise(a, t, a->qo_indptr[b] + first, rows, h);
}

/* Sets rows past the last request to 0, and their lse to -INFINITY. */
static void empty_rest(const struct cairn_mla_paged_args *a)
{
	int64_t first = (int64_t)a->qo_indptr[a->kv.batch] * a->num_heads;
	int64_t end = (int64_t)a->nnz_qo * a->num_heads;

	memset((uint16_t *)a->out + first * V_DIM, 0, (size_t)(end - first) * V_DIM * 2);
	for (int64_t i = first; a->lse && i < end; i++)
		a->lse[i] = -INFINITY;
}

int cairn_mla_paged_cpu(const struct cairn_mla_paged_args *args, void *stream)
{
	struct cairn_mla_paged_args known, *a = &known;
	int no_memory = 0;

	(void)stream;
	CAIRN_TRY(cairn_mla_paged_check(args));
	cairn_copy_args(&known, args, sizeof(known));
	if (!a->nnz_qo || !a->kv.batch)
		return 0;
	empty_rest(a);
	#pragma omp parallel reduction(|:no_memory)
	{
		struct task *t = malloc(sizeof(*t));

		no_memory |= !t;
		for (int b = 0; b < a->kv.batch; b++) {
			int rows = a->qo_indptr[b + 1] - a->qo_indptr[b], blocks = (rows + BLOCK - 1) / BLOCK;

			#pragma omp for schedule(dynamic) nowait
			for (int k = 0; k < blocks * a->num_heads; k++) {
				int first = k / a->num_heads * BLOCK;

				if (t)
					run(a, t, b, first, rows - first < BLOCK ? rows - first : BLOCK,
					    k % a->num_heads);
			}
		}
		free(t);
	}
	return no_memory ? cairn_error(ENOMEM, "mla_paged: no memory") : 0;
}
