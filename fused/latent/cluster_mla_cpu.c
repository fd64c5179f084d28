// SPDX-License-Identifier: Apache-2.0
/*
 * cluster_mla_cpu - the block for the engine without a GPU: fp32, weights read once for the whole batch
 *
 * Threads divide a projection by rows of the weights: each row is widened once and multiplied by every
 * request's vector. They divide the two halves of w_kv_b in the same way, but by heads. They divide the
 * attention by requests and groups of HEADS heads; a group uses online softmax over blocks of KEYS keys,
 * which are widened once for all its heads. The shapes fix the order of all sums, so the bits do not depend
 * on the number of threads.
 */
#include "fused/latent/cluster_mla.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "fused/block/block_cpu.h"

#define RANK	512
#define ROPE	64
#define WIDTH	(RANK + ROPE)
#define NOPE	128
#define V_DIM	128
#define Q_DIM	(NOPE + ROPE)
#define HEADS	4
#define KEYS	32
#define MAX_K	16384

struct state {
	const struct cairn_cluster_mla_args *a;
	float *n, *cq, *q, *kv, *ql, *o, *v;	/* [batch][...] */
};

static int64_t key_at(const struct cairn_cluster_mla_args *a, int b, int j)
{
	return cairn_kv_slot(&a->kv, b, j) * WIDTH;
}

/* out[b][0..n) = in[b][0..k) W^T, rounded to dtype, for all requests; rows of in and out have strides */
static CAIRN_WIDE void project(const struct cairn_cluster_mla_args *a, float *out, int64_t out_stride,
			       const float *in, int64_t in_stride, const void *w, int64_t w_at, int n, int k)
{
	#pragma omp parallel for schedule(static)
	for (int i = 0; i < n; i++) {
		float weights[MAX_K];

		cairn_load_row(weights, w, a->dtype, w_at + (int64_t)i * k, k);
		for (int b = 0; b < a->kv.batch; b++)
			out[b * out_stride + i] =
				block_narrowed(block_dot(in + b * in_stride, weights, k), a->dtype);
	}
}

static CAIRN_WIDE void norm(float *out, const float *in, const void *weight, int n, float eps, int dtype)
{
	float s = 1 / sqrtf(block_dot(in, in, n) / (float)n + eps);

	for (int i = 0; i < n; i++)
		out[i] = block_narrowed(in[i] * s * (float)cairn_load(weight, dtype, i), dtype);
}

static void rotate(const struct cairn_cluster_mla_args *a, float *x, int position)
{
	for (int p = 0; p < ROPE / 2; p++) {
		float angle = (float)position * a->inv_freq[p], c = cosf(angle), s = sinf(angle);
		float even = x[2 * p], odd = x[2 * p + 1];

		x[2 * p] = block_narrowed(even * c - odd * s, a->dtype);
		x[2 * p + 1] = block_narrowed(odd * c + even * s, a->dtype);
	}
}

/* ql = q w_kv_b[h][0..NOPE), for all requests */
static CAIRN_WIDE void absorb(const struct state *s, int h)
{
	const struct cairn_cluster_mla_args *a = s->a;
	float sum[16][RANK] = { { 0 } }, row[RANK];

	for (int d = 0; d < NOPE; d++) {
		cairn_load_row(row, a->w_kv_b, a->dtype, ((int64_t)h * (NOPE + V_DIM) + d) * RANK, RANK);
		for (int b = 0; b < a->kv.batch; b++) {
			float q = s->q[((int64_t)b * a->num_heads + h) * Q_DIM + d];

			for (int l = 0; l < RANK; l++)
				sum[b][l] += q * row[l];
		}
	}
	for (int b = 0; b < a->kv.batch; b++)
		for (int l = 0; l < RANK; l++)
			s->ql[((int64_t)b * a->num_heads + h) * RANK + l] =
				block_narrowed(sum[b][l], a->dtype);
}

/* Attention of heads h0 .. h0 + HEADS - 1 of request b. */
static CAIRN_WIDE void attend(const struct state *s, int b, int h0)
{
	const struct cairn_cluster_mla_args *a = s->a;
	float keys[KEYS][WIDTH], o[HEADS][RANK] = { { 0 } }, m[HEADS], l[HEADS] = { 0 }, logits[KEYS];
	int len = (int)cairn_kv_len(&a->kv, b);

	for (int i = 0; i < HEADS; i++)
		m[i] = -INFINITY;
	for (int first = 0; first < len; first += KEYS) {
		int n = len - first < KEYS ? len - first : KEYS;

		for (int j = 0; j < n; j++) {
			if (first + j == len - 1)
				memcpy(keys[j], s->kv + (int64_t)b * WIDTH, sizeof(keys[j]));
			else
				cairn_load_row(keys[j], a->kv.k_pages, a->dtype, key_at(a, b, first + j),
					       WIDTH);
		}
		for (int i = 0; i < HEADS; i++) {
			int64_t head = (int64_t)b * a->num_heads + h0 + i;
			float top = m[i], keep;

			for (int j = 0; j < n; j++) {
				logits[j] = a->sm_scale * (block_dot(s->ql + head * RANK, keys[j], RANK) +
							   block_dot(s->q + head * Q_DIM + NOPE,
								     keys[j] + RANK, ROPE));
				top = fmaxf(top, logits[j]);
			}
			keep = expf(m[i] - top);
			m[i] = top;
			l[i] *= keep;
			for (int c = 0; keep != 1 && c < RANK; c++)
				o[i][c] *= keep;
			for (int j = 0; j < n; j++) {
				float p = expf(logits[j] - top);

				l[i] += p;
				p = block_narrowed(p, a->dtype);
				for (int c = 0; c < RANK; c++)
					o[i][c] += p * keys[j][c];
			}
		}
	}
	for (int i = 0; i < HEADS; i++)
		for (int c = 0; c < RANK; c++)
			s->o[((int64_t)b * a->num_heads + h0 + i) * RANK + c] =
				block_narrowed(o[i][c] / l[i], a->dtype);
}

static void attention(const struct state *s)
{
	const struct cairn_cluster_mla_args *a = s->a;
	int blocks = a->num_heads / HEADS;

	#pragma omp parallel for schedule(dynamic)
	for (int h = 0; h < a->num_heads; h++)
		absorb(s, h);
	#pragma omp parallel for schedule(dynamic)
	for (int i = 0; i < a->kv.batch * blocks; i++)
		if (cairn_kv_len(&a->kv, i / blocks) > 0)
			attend(s, i / blocks, i % blocks * HEADS);
	for (int h = 0; h < a->num_heads; h++)
		project(a, s->v + h * V_DIM, (int64_t)a->num_heads * V_DIM, s->o + h * RANK,
			(int64_t)a->num_heads * RANK, a->w_kv_b,
			((int64_t)h * (NOPE + V_DIM) + NOPE) * RANK, V_DIM, RANK);
}

static CAIRN_WIDE void project_out(const struct state *s)
{
	const struct cairn_cluster_mla_args *a = s->a;
	int k = a->num_heads * V_DIM;

	#pragma omp parallel for schedule(static)
	for (int i = 0; i < a->hidden; i++) {
		float weights[MAX_K];

		cairn_load_row(weights, a->w_o, a->dtype, (int64_t)i * k, k);
		for (int b = 0; b < a->kv.batch; b++) {
			int64_t at = (int64_t)b * a->hidden + i;

			if (cairn_kv_len(&a->kv, b) > 0)
				cairn_store(a->out, a->dtype, at, (float)cairn_load(a->x, a->dtype, at) +
					    block_dot(s->v + (int64_t)b * k, weights, k));
		}
	}
}

static void decode(const struct state *s)
{
	const struct cairn_cluster_mla_args *a = s->a;
	int hidden = a->hidden, lora = a->q_lora_rank, nq = a->num_heads * Q_DIM;

	for (int b = 0; b < a->kv.batch; b++) {
		float *row = s->n + (int64_t)b * hidden;

		cairn_load_row(row, a->x, a->dtype, (int64_t)b * hidden, hidden);
		norm(row, row, a->norm_weight, hidden, a->eps, a->dtype);
	}
	if (lora)
		project(a, s->cq, lora, s->n, hidden, a->w_q_a, 0, lora, hidden);
	for (int b = 0; lora && b < a->kv.batch; b++)
		norm(s->cq + (int64_t)b * lora, s->cq + (int64_t)b * lora, a->q_norm, lora, a->eps, a->dtype);
	project(a, s->q, nq, lora ? s->cq : s->n, lora ? lora : hidden, a->w_q, 0, nq, lora ? lora : hidden);
	project(a, s->kv, WIDTH, s->n, hidden, a->w_kv_a, 0, WIDTH, hidden);
	for (int b = 0; b < a->kv.batch; b++) {
		float *kv = s->kv + (int64_t)b * WIDTH;
		int len = (int)cairn_kv_len(&a->kv, b);

		norm(kv, kv, a->kv_norm, RANK, a->eps, a->dtype);
		rotate(a, kv + RANK, a->positions[b]);
		for (int h = 0; h < a->num_heads; h++)
			rotate(a, s->q + (int64_t)b * nq + h * Q_DIM + NOPE, a->positions[b]);
		for (int i = 0; i < WIDTH && len > 0; i++)
			cairn_store(a->kv.k_pages, a->dtype, key_at(a, b, len - 1) + i, kv[i]);
	}
	attention(s);
	project_out(s);
}

int cairn_cluster_mla_cpu(const struct cairn_cluster_mla_args *a, void *stream)
{
	struct state s = { .a = a };
	size_t heads, batch;

	(void)stream;
	CAIRN_TRY(cairn_cluster_mla_check(a));
	heads = (size_t)a->num_heads;
	batch = (size_t)a->kv.batch;
	s.n = calloc(batch * ((size_t)a->hidden + (size_t)a->q_lora_rank +
			      heads * (Q_DIM + 2 * RANK + V_DIM) + WIDTH) + 1, sizeof(float));
	if (!s.n)
		return cairn_error(ENOMEM, "cluster_mla: no memory");
	s.cq = s.n + batch * (size_t)a->hidden;
	s.q = s.cq + batch * (size_t)a->q_lora_rank;
	s.kv = s.q + batch * heads * Q_DIM;
	s.ql = s.kv + batch * WIDTH;
	s.o = s.ql + batch * heads * RANK;
	s.v = s.o + batch * heads * RANK;
	decode(&s);
	free(s.n);
	return 0;
}
