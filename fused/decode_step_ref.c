// SPDX-License-Identifier: Apache-2.0
/*
 * decode_step_ref - the step, one request at a time, in double, rounded where the contract rounds; and how
 * far from it one may be
 *
 * Each number has a bound of its own that is carried along (block_ref.h): errors of the inputs times what
 * they are multiplied with, plus what fp32 sums and functions lose, and at each rounding what the interval
 * then rounds to. On numbers that lie on the grid of dtype it stays near 0 through all layers: kind EXACT is
 * judged that strictly. On others a dense product multiplies relative errors by up to 0.8 sqrt(k), as if all
 * had the worst sign: after two products the bound exceeds the values.
 *
 * So there is a second bound, and the smaller one counts. RUNS further runs have each element of the residual
 * stream, wherever it is rounded, off by up to u of itself, at random. That is as much as a rounding can do,
 * and it lets all other roundings fall anew. An implementation differs from the reference by a few roundings
 * that fall to the other side, so by less than such a run does; the errors of many roundings add up to
 * something normal, and of 10^8 normal values none is beyond 6 deviations. A deviation is taken around the
 * reference, and not below the root mean square of its row. What is itself rounded (keys and values) may
 * always be an ulp off; half an ulp is added to both bounds, so that such an ulp does not look like the end
 * of what is allowed.
 *
 * A token is the argmax where the largest logit leads all others by more than the bounds of both.
 */
#include "decode_step.h"

#include <stdlib.h>

#include "../primitives/argmax.h"
#include "../primitives/error.h"
#include "../primitives/sample.h"
#include "block_ref.h"

#define RUNS		16
#define DEVIATIONS	6
#define U32		0x1p-24

struct run {
	double *memory;
	struct block_row x, n, gate_up, k, v, logits;	/* k, v: of all layers */
};

static int64_t kv_row(const struct cairn_decode_step_args *a)
{
	return (int64_t)a->num_kv_heads * a->head_dim;
}

/* bounded: with errors, not values alone (those of x stay 0). */
static int open_run(struct run *r, const struct cairn_decode_step_args *a, int bounded)
{
	struct block_row *const rows[] = { &r->x, &r->n, &r->gate_up, &r->k, &r->v, &r->logits };
	const int64_t sizes[] = {
		a->hidden, a->hidden, 2 * (int64_t)a->intermediate, a->num_layers * kv_row(a),
		a->num_layers * kv_row(a), a->vocab,
	};
	int64_t total = 0, at = 0;

	for (int i = 0; i < 6; i++)
		total += 2 * sizes[i];
	r->memory = calloc((size_t)total, sizeof(double));
	for (int i = 0; i < 6 && r->memory; i++, at += 2 * sizes[i - 1])
		*rows[i] = (struct block_row){
			r->memory + at, bounded || i == 0 ? r->memory + at + sizes[i] : NULL,
		};
	return r->memory ? 0 : cairn_error(ENOMEM, "decode_step: no memory for %lld numbers",
					   (long long)total);
}

static const void *of_layer(const struct cairn_decode_step_args *a, const void *p, int layer)
{
	return p ? (const char *)p + layer * a->layer_stride_bytes : NULL;
}

static struct cairn_cluster_attn_args block_of(const struct cairn_decode_step_args *a, int layer)
{
	return (struct cairn_cluster_attn_args){
		.size = sizeof(struct cairn_cluster_attn_args),
		.k_pages = (char *)a->k_pages + layer * a->kv_stride_bytes,
		.v_pages = (char *)a->v_pages + layer * a->kv_stride_bytes,
		.norm_weight = of_layer(a, a->attn_norm, layer), .w_qkv = of_layer(a, a->w_qkv, layer),
		.b_qkv = of_layer(a, a->b_qkv, layer), .w_o = of_layer(a, a->w_o, layer),
		.b_o = of_layer(a, a->b_o, layer), .inv_freq = a->inv_freq, .positions = a->positions,
		.kv_indptr = a->kv_indptr, .kv_indices = a->kv_indices,
		.kv_last_page_len = a->kv_last_page_len, .batch = a->batch, .max_kv_len = a->max_kv_len,
		.num_pages = a->num_pages, .page_size = a->page_size, .hidden = a->hidden,
		.num_qo_heads = a->num_qo_heads, .num_kv_heads = a->num_kv_heads, .head_dim = a->head_dim,
		.dtype = a->dtype, .eps = a->eps, .sm_scale = a->sm_scale,
	};
}

static void feed_forward(struct run *r, const struct cairn_decode_step_args *a, int layer)
{
	const void *down = of_layer(a, a->w_down, layer);

	cairn_block_norm(r->n, r->x, of_layer(a, a->mlp_norm, layer), a->hidden, a->eps, a->dtype);
	cairn_block_project(r->gate_up, r->n, of_layer(a, a->w_gate_up, layer), NULL,
			    2 * (int64_t)a->intermediate, a->hidden, a->dtype);
	cairn_block_silu_mul(r->gate_up, a->intermediate, a->dtype);
	cairn_block_project(r->n, r->gate_up, down, NULL, a->hidden, a->intermediate, a->dtype);
	for (int i = 0; i < a->hidden; i++) {
		if (r->n.err)	/* x is one more term of the sum */
			r->x.err[i] += r->n.err[i] +
				(a->intermediate + 2) * U32 * (fabs(r->x.val[i]) + r->x.err[i]);
		r->x.val[i] += r->n.val[i];
		block_round(r->x, i, a->dtype);
	}
}

/* Each element of the residual stream off by up to u of itself; seed 0: none. */
static void shake(struct run *r, const struct cairn_decode_step_args *a, uint64_t *seed)
{
	double u = cairn_dtype_roundoff(a->dtype);

	for (int i = 0; *seed && i < a->hidden; i++) {
		*seed = *seed * 6364136223846793005u + 1442695040888963407u;
		r->x.val[i] *= 1 + u * ((double)(*seed >> 11) * 0x1p-52 - 1);
	}
}

static struct block_row of_row(struct block_row r, int64_t i)
{
	return (struct block_row){ r.val + i, r.err ? r.err + i : NULL };
}

static int run_request(struct run *r, const struct cairn_decode_step_args *a, int b, uint64_t seed)
{
	for (int i = 0; i < a->hidden; i++) {
		r->x.val[i] = cairn_load(a->embed, a->dtype, (int64_t)a->ids[b] * a->hidden + i);
		r->x.err[i] = 0;
	}
	for (int layer = 0; layer < a->num_layers; layer++) {
		struct cairn_cluster_attn_args block = block_of(a, layer);
		struct block_row k = of_row(r->k, layer * kv_row(a)), v = of_row(r->v, layer * kv_row(a));

		shake(r, a, &seed);
		CAIRN_TRY(cairn_block_attn(&block, b, r->x, r->n, k, v));
		for (int i = 0; i < a->hidden; i++) {
			r->x.val[i] = r->n.val[i];
			r->x.err[i] = r->n.err ? r->n.err[i] : 0;
		}
		shake(r, a, &seed);
		feed_forward(r, a, layer);
	}
	shake(r, a, &seed);
	cairn_block_norm(r->n, r->x, a->final_norm, a->hidden, a->eps, a->dtype);
	cairn_block_project(r->logits, r->n, a->lm_head, NULL, a->vocab, a->hidden, a->dtype);
	return 0;
}

/* Element of the pages of layer 0 at which what request b appends to `layer` begins. */
static int64_t slot_of(const struct cairn_decode_step_args *a, int b, int layer)
{
	struct cairn_cluster_attn_args block = block_of(a, layer);

	return block_key_at(&block, b, block_kv_len(&block, b) - 1) +
	       layer * a->kv_stride_bytes / (int64_t)cairn_dtype_bytes(a->dtype);
}

static int has_keys(const struct cairn_decode_step_args *a, int b)
{
	return a->kv_indptr[b + 1] > a->kv_indptr[b] && a->kv_last_page_len[b] > 0;
}

static int draw(const struct cairn_decode_step_args *a)
{
	struct cairn_argmax_args argmax = {
		.size = sizeof(argmax), .out = a->tokens, .logits = a->logits, .rows = a->batch,
		.vocab = a->vocab, .dtype = CAIRN_F32,
	};
	struct cairn_sample_args sample = {
		.size = sizeof(sample), .out = a->tokens, .logits = a->logits, .temperature = a->temperature,
		.top_k = a->top_k, .top_p = a->top_p, .min_p = a->min_p, .seed = a->seed, .offset = a->offset,
		.rows = a->batch, .vocab = a->vocab,
	};

	if (!a->tokens)
		return 0;
	return a->temperature ? cairn_sample_ref(&sample, NULL) : cairn_argmax_ref(&argmax, NULL);
}

int cairn_decode_step_ref(const struct cairn_decode_step_args *a, void *stream)
{
	struct run r;
	int ret = 0;

	(void)stream;
	CAIRN_TRY(cairn_decode_step_check(a));
	CAIRN_TRY(open_run(&r, a, 0));
	for (int b = 0; b < a->batch && !ret; b++) {
		if (!has_keys(a, b))
			continue;
		ret = run_request(&r, a, b, 0);
		for (int64_t i = 0; i < a->num_layers * kv_row(a) && !ret; i++) {
			int64_t at = slot_of(a, b, (int)(i / kv_row(a))) + i % kv_row(a);

			cairn_store(a->k_pages, a->dtype, at, r.k.val[i]);
			cairn_store(a->v_pages, a->dtype, at, r.v.val[i]);
		}
		for (int i = 0; i < a->vocab && !ret; i++)
			a->logits[(int64_t)b * a->vocab + i] = (float)r.logits.val[i];
	}
	free(r.memory);
	return ret || !a->batch ? ret : draw(a);
}

/* Values and the smaller bounds of elements first .. first + n - 1 of one of the runs' rows. */
static void judge_row(const struct run *runs, size_t member, int64_t first, int64_t n, int dtype, double *val,
		      double *bound)
{
	const struct block_row *row = (const void *)((const char *)runs + member);
	const double *err = row->err + first;
	double mean = 0;

	for (int64_t i = 0; i < n; i++) {
		val[i] = row->val[first + i];
		bound[i] = 0;
	}
	for (int k = 1; k <= RUNS; k++) {
		row = (const void *)((const char *)&runs[k] + member);
		for (int64_t i = 0; i < n; i++)
			bound[i] += (row->val[first + i] - val[i]) * (row->val[first + i] - val[i]) / RUNS;
	}
	for (int64_t i = 0; i < n; i++)
		mean += bound[i] / (double)n;
	for (int64_t i = 0; i < n; i++) {
		double half = cairn_dtype_roundoff(dtype) * fabs(val[i]) + cairn_dtype_tiny(dtype);

		bound[i] = fmin(err[i], fmax(2 * half, DEVIATIONS * sqrt(fmax(bound[i], mean))));
		bound[i] += bound[i] > 0 ? half : 0;
	}
}

static void exact_token(const struct cairn_decode_step_args *a, int b, const double *val, const double *bound,
			struct cairn_exact *token)
{
	int top = 0, decided = !a->temperature || a->temperature[b] == 0;

	for (int i = 1; i < a->vocab; i++)
		top = val[i] > val[top] ? i : top;
	for (int i = 0; i < a->vocab; i++)
		decided &= i == top || val[top] - bound[top] > val[i] + bound[i];
	token->val[b] = top;
	token->bound[b] = decided ? 0 : INFINITY;
}

static int exact_request(const struct cairn_decode_step_args *a, int b, struct run *runs,
			 struct cairn_exact *e)
{
	const uint64_t seed = 0x9e3779b97f4a7c15u;
	int64_t n = kv_row(a), logit = (int64_t)b * a->vocab;
	int failed = 0;

	#pragma omp parallel for schedule(dynamic) reduction(|:failed)
	for (int k = 0; k <= RUNS; k++)
		failed |= run_request(&runs[k], a, b, k ? seed * (uint64_t)(k + RUNS * b) | 1 : 0);
	if (failed)
		return cairn_error(ENOMEM, "decode_step: no memory");
	judge_row(runs, offsetof(struct run, logits), 0, a->vocab, CAIRN_F32, e[0].val + logit,
		  e[0].bound + logit);
	for (int layer = 0; layer < a->num_layers; layer++) {
		int64_t at = slot_of(a, b, layer);

		judge_row(runs, offsetof(struct run, k), layer * n, n, a->dtype, e[1].val + at,
			  e[1].bound + at);
		judge_row(runs, offsetof(struct run, v), layer * n, n, a->dtype, e[2].val + at,
			  e[2].bound + at);
	}
	if (a->tokens)
		exact_token(a, b, e[0].val + logit, e[0].bound + logit, &e[3]);
	return 0;
}

int cairn_decode_step_exact(const struct cairn_decode_step_args *a, struct cairn_exact *exact)
{
	struct run runs[RUNS + 1] = { { NULL } };
	int ret = 0;

	CAIRN_TRY(cairn_decode_step_check(a));
	for (int k = 0; k <= RUNS && !ret; k++)
		ret = open_run(&runs[k], a, k == 0);
	for (int b = 0; b < a->batch && !ret; b++)
		if (has_keys(a, b))
			ret = exact_request(a, b, runs, exact);
	for (int k = 0; k <= RUNS; k++)
		free(runs[k].memory);
	return ret;
}
