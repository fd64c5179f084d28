// SPDX-License-Identifier: Apache-2.0
/*
 * attn_merge_cpu - merges states in fp32, one row and head at a time; threads share the rows and heads
 *
 * The sum begins at -0: x + -0 is x for every x, so a state that alone has weight keeps all its bits.
 */
#include "fused/attention/merge/attn_merge.h"

#include <math.h>

#include "fused/block/block_cpu.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/wide.h"

#define MAX_DIM	512

/* The states with weight of one row and head, and the sum of the weights. */
struct terms {
	int n, bad;		/* bad: a used lse is NaN or +INFINITY */
	int state[CAIRN_ATTN_MERGE_STATES];
	float weight[CAIRN_ATTN_MERGE_STATES], max, sum;
	float own;		/* weight of the own key, which is in sum; 0: it has none */
};

/*
 * Computes the weights of a row and head; lse points to the lse of state 0. own, sink: their lse, -INFINITY
 * without one.
 */
static void weigh(const struct cairn_attn_merge_args *a, int32_t row, const float *lse, float own, float sink,
		  struct terms *t)
{
	int used = a->num_states;

	t->n = 0;
	t->bad = !(sink < INFINITY) || !(own < INFINITY);
	t->max = sink > own ? sink : own;
	t->sum = t->own = 0;
	if (a->counts)
		used = a->counts[row] < 0 ? 0 : a->counts[row] < used ? a->counts[row] : used;
	for (int s = 0; s < used; s++) {
		t->bad |= !(lse[s * a->lse_stride] < INFINITY);
		t->max = lse[s * a->lse_stride] > t->max ? lse[s * a->lse_stride] : t->max;
	}
	for (int s = 0; s < used && !t->bad; s++) {
		float d = lse[s * a->lse_stride] - t->max;

		if (!(d >= CAIRN_ATTN_MERGE_CUTOFF))	/* also if both are -INFINITY */
			continue;
		t->state[t->n] = s;
		t->weight[t->n] = expf(d);
		t->sum += t->weight[t->n++];
	}
	if (!t->bad && own - t->max >= CAIRN_ATTN_MERGE_CUTOFF)
		t->sum += t->own = expf(own - t->max);
	if (!t->bad && sink - t->max >= CAIRN_ATTN_MERGE_CUTOFF)
		t->sum += expf(sink - t->max);
}

static CAIRN_WIDE void add(float *sum, const float *x, float weight, int dim)
{
	for (int c = 0; c < dim; c++)
		sum[c] += weight * x[c];
}

/* Returns the element of k and v at which the own key of a row and head begins. */
static int64_t own_at(const struct cairn_attn_merge_args *a, int64_t row, int64_t head)
{
	return row * a->kv_stride + head / (a->num_heads / a->num_kv_heads) * a->head_dim;
}

/* Returns the lse of the own key, or -INFINITY without q. */
static CAIRN_WIDE float own_lse(const struct cairn_attn_merge_args *a, int64_t row, int64_t head)
{
	float q[MAX_DIM], k[MAX_DIM], x;

	if (!a->q)
		return -INFINITY;
	cairn_load_row(q, a->q, a->dtype, row * a->q_stride + head * a->head_dim, a->head_dim);
	cairn_load_row(k, a->k, a->dtype, own_at(a, row, head), a->head_dim);
	x = block_dot(q, k, a->head_dim) * a->sm_scale;
	return a->softcap > 0 ? a->softcap * tanhf(x / a->softcap) : x;
}

static CAIRN_WIDE void merge(const struct cairn_attn_merge_args *a, int64_t pair)
{
	int64_t row = pair / a->num_heads, head = pair % a->num_heads;
	float x[MAX_DIM], sum[MAX_DIM], inverse, lse = -INFINITY;
	struct terms t;

	weigh(a, (int32_t)row, a->lse + pair, own_lse(a, row, head), a->sink ? a->sink[head] : -INFINITY, &t);
	for (int c = 0; c < a->head_dim; c++)
		sum[c] = t.bad ? NAN : t.n || t.own > 0 ? -0.0f : 0;
	for (int k = 0; k < t.n; k++) {
		cairn_load_row(x, a->o, a->dtype, t.state[k] * a->state_stride + row * a->row_stride +
			       head * a->head_stride, a->head_dim);
		add(sum, x, t.weight[k], a->head_dim);
	}
	if (t.own > 0) {
		cairn_load_row(x, a->v, a->dtype, own_at(a, row, head), a->head_dim);
		add(sum, x, t.own, a->head_dim);
	}
	inverse = t.sum > 0 ? 1 / t.sum : 1;
	for (int c = 0; c < a->head_dim; c++)
		cairn_store(a->out, a->out_dtype, pair * a->head_dim + c, sum[c] * inverse);
	if (t.sum > 0)
		lse = t.max + logf(t.sum);
	if (a->lse_out)
		a->lse_out[pair] = t.bad ? NAN : lse;
}

int cairn_attn_merge_cpu(const struct cairn_attn_merge_args *args, void *stream)
{
	struct cairn_attn_merge_args a;

	(void)stream;
	CAIRN_TRY(cairn_attn_merge_check(args));
	a = cairn_attn_merge_strides(args);
	#pragma omp parallel for schedule(static)
	for (int64_t pair = 0; pair < (int64_t)a.rows * a.num_heads; pair++)
		merge(&a, pair);
	return 0;
}
