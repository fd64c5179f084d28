// SPDX-License-Identifier: Apache-2.0
/*
 * attn_batch_cpu - attention for the engine without a GPU: fp32, online softmax, cache-sized blocks of keys
 *
 * A task is one KV head of one request and up to ROWS packed rows (attn_tile.h). It walks over the keys in
 * blocks of KEYS: K is widened to fp32 and transposed, so that the innermost loop runs over keys and needs no
 * reduction; V is widened in its own order. Blocks, and parts of PART_KEYS keys, begin at multiples of their
 * size, and parts are merged in order. So a row's bits depend on its own keys only, not on the other rows of
 * the batch or the number of threads. Threads share the tasks; if there are few tasks and many keys, they
 * share the parts of each task instead.
 */
#include "fused/attention/base/attn_batch.h"

#include <math.h>
#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/fp8.h"
#include "primitives/base/wide.h"
#include "fused/attention/base/attn_block.h"
#include "fused/attention/base/attn_tile.h"

#define ROWS		ATTN_BLOCK_ROWS
#define KEYS		ATTN_BLOCK_KEYS
#define MAX_DIM		ATTN_MAX_DIM
#define PART_KEYS	ATTN_PART_KEYS
#define MAX_PARTS	8	/* parts of a task that are computed in parallel */
#define FEW_TASKS	16	/* with fewer tasks, threads share the parts of a task */

/* Up to ROWS rows of one KV head of one request. */
struct task {
	int b, head, first_row, num_rows;
	int qo_first, qo_len, kv_len;
	float sm_scale, v_scale;	/* include the scales of the KV head */
};

static int group_of(const struct attn_batch *a)
{
	return a->num_qo_heads / a->num_kv_heads;
}

static int visible(const struct attn_batch *a, const struct task *t, int r)
{
	return attn_visible((t->first_row + r) / group_of(a), t->qo_len, t->kv_len, a->causal);
}

static int first_key(const struct attn_batch *a, const struct task *t, int r)
{
	return attn_first_key((t->first_row + r) / group_of(a), t->qo_len, t->kv_len, a->window);
}

/* Returns the factor that turns a stored logit into its value; a capped logit is stored as its tanh. */
static float logit_scale(const struct attn_batch *a, const struct task *t)
{
	return a->softcap > 0 ? a->softcap : t->sm_scale;
}

/* Reads packed row `row` of the task's KV head. */
static inline void load_q(const struct attn_batch *a, const struct task *t, int row, float *x)
{
	int group = group_of(a), token = row / group, head = t->head * group + row % group;

	if (a->load)
		a->load(a->args, ATTN_Q, t->b, token, head, x);
	else
		attn_widen_row(x, (const uint16_t *)a->q + (t->qo_first + token) * a->q_stride +
			       (int64_t)head * a->qk_dim, a->qk_dim, a->dtype);
}

/* Widens a key or a value. Scales of e4m3 are applied later, to logits and to O. */
static inline void widen(const struct attn_batch *a, float *x, const void *from, int dim)
{
	if (!a->kv_fp8) {
		attn_widen_row(x, from, dim, a->dtype);
		return;
	}
	for (int c = 0; c < dim; c++)
		x[c] = cairn_e4m3_to_float(((const uint8_t *)from)[c]);
}

static inline void load_k(const struct attn_batch *a, const struct task *t, int j, float *x)
{
	if (a->load)
		a->load(a->args, ATTN_K, t->b, j, t->head, x);
	else
		widen(a, x, a->key(a->args, t->b, j, t->head).k, a->qk_dim);
}

static inline void load_v(const struct attn_batch *a, const struct task *t, int j, float *x)
{
	if (a->load)
		a->load(a->args, ATTN_V, t->b, j, t->head, x);
	else
		widen(a, x, a->key(a->args, t->b, j, t->head).v, a->v_dim);
}

/* Attends to keys first..end-1 of the task's request, which lie in one part; sets *p. */
static CAIRN_WIDE void attend(const struct attn_batch *a, const struct task *t, int first, int end,
			      struct attn_state *p)
{
	int dim = a->qk_dim, v_dim = a->v_dim;
	float q[ROWS][MAX_DIM], kt[MAX_DIM][KEYS], v[KEYS][MAX_DIM], s[KEYS];

	attn_state_clear(p, t->num_rows, v_dim);
	for (int r = 0; r < t->num_rows; r++)
		if (visible(a, t, r) > first)
			load_q(a, t, t->first_row + r, q[r]);
	if (visible(a, t, t->num_rows - 1) <= first)	/* the last row sees the most keys */
		return;
	memset(kt, 0, sizeof(kt));
	for (int key = first - first % KEYS; key < end; key += KEYS) {
		int n = end - key < KEYS ? end - key : KEYS, begin = key < first ? first - key : 0;

		for (int j = begin; j < n; j++) {
			load_k(a, t, key + j, v[j]);
			for (int c = 0; c < dim; c++)
				kt[c][j] = v[j][c];
		}
		for (int j = begin; j < n; j++)
			load_v(a, t, key + j, v[j]);
		for (int r = 0; r < t->num_rows; r++) {
			int seen = visible(a, t, r) - key, skip = first_key(a, t, r) - key;

			seen = seen < n ? seen : n;
			skip = skip > 0 ? skip : 0;
			if (seen <= skip)
				continue;
			attn_row_logits(s, q[r], kt, dim);
			for (int j = skip; a->softcap > 0 && j < seen; j++)
				s[j] = tanhf(s[j] * t->sm_scale / a->softcap);
			attn_row_update(p, r, s + skip, seen - skip, v + skip, v_dim, logit_scale(a, t));
		}
	}
}

static void finish(const struct attn_batch *a, const struct task *t, struct attn_state *p)
{
	int group = group_of(a);

	for (int r = 0; r < t->num_rows; r++) {
		int row = t->first_row + r;
		int64_t at = (int64_t)(t->qo_first + row / group) * a->num_qo_heads + t->head * group +
			     row % group;
		float factor = p->l[r] > 0 ? 1 / p->l[r] * t->v_scale : 0;

		for (int c = 0; c < a->v_dim; c++)
			p->o[r][c] *= factor;
		cairn_store_row(a->out, a->dtype, at * a->v_dim, p->o[r], a->v_dim);
		if (a->lse)
			a->lse[at] = p->l[r] > 0 ? p->m[r] * logit_scale(a, t) + logf(p->l[r]) : -INFINITY;
	}
}

/* Sets *t to the index-th task of request b, heads innermost. Returns 0 if there is none. */
static int task_at(const struct attn_batch *a, int b, int index, struct task *t)
{
	int rows;

	t->b = b;
	t->qo_first = a->qo_indptr[b];
	t->qo_len = a->qo_indptr[b + 1] - t->qo_first;
	t->kv_len = a->num_keys(a->args, b);
	t->head = index % a->num_kv_heads;
	t->sm_scale = a->sm_scale * (a->k_scale ? a->k_scale[t->head] : 1);
	t->v_scale = a->v_scale ? a->v_scale[t->head] : 1;
	t->first_row = index / a->num_kv_heads * ROWS;
	rows = t->qo_len * group_of(a) - t->first_row;
	t->num_rows = rows < ROWS ? rows : ROWS;
	return rows > 0;
}

static int end_of(const struct attn_batch *a, const struct task *t)
{
	return visible(a, t, t->num_rows - 1);
}

/* Runs one task, at_once parts in parallel; does nothing if request b has no such task. */
static void run(const struct attn_batch *a, int b, int index, int at_once)
{
	struct attn_state all, parts[MAX_PARTS];
	struct task t;
	int first, end;

	if (!task_at(a, b, index, &t))
		return;
	first = first_key(a, &t, 0);
	end = end_of(a, &t);
	attn_state_clear(&all, t.num_rows, a->v_dim);
	for (int part = first / PART_KEYS; part * PART_KEYS < end; part += at_once) {
		int num = attn_div_up(end, PART_KEYS) - part;

		num = num < at_once ? num : at_once;
		#pragma omp parallel for schedule(dynamic) if (num > 1)
		for (int i = 0; i < num; i++) {
			int from = (part + i) * PART_KEYS, to = from + PART_KEYS;

			attend(a, &t, from > first ? from : first, to < end ? to : end, &parts[i]);
		}
		for (int i = 0; i < num; i++)
			for (int r = 0; r < t.num_rows; r++)
				attn_state_merge(&all, &parts[i], r, a->v_dim, logit_scale(a, &t));
	}
	finish(a, &t, &all);
}

void attn_batch_cpu(const struct attn_batch *a)
{
	int max_tasks = 0, all_tasks = 0, max_kv_len = 0;
	struct task t;

	for (int b = 0; b < a->batch; b++) {
		int tasks;

		task_at(a, b, 0, &t);
		tasks = attn_div_up(t.qo_len * group_of(a), ROWS) * a->num_kv_heads;
		all_tasks += tasks;
		max_tasks = tasks > max_tasks ? tasks : max_tasks;
		max_kv_len = t.kv_len > max_kv_len ? t.kv_len : max_kv_len;
	}
	if (all_tasks < FEW_TASKS && max_kv_len > PART_KEYS) {
		for (int b = 0; b < a->batch; b++)
			for (int i = 0; i < max_tasks; i++)
				run(a, b, i, MAX_PARTS);
		return;
	}
	#pragma omp parallel for collapse(2) schedule(dynamic)
	for (int b = 0; b < a->batch; b++)
		for (int i = 0; i < max_tasks; i++)
			run(a, b, i, 1);
}
