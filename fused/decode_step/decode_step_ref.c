// SPDX-License-Identifier: Apache-2.0
/*
 * decode_step_ref - computes the step in double, one request at a time, and rounds where the contract rounds
 *
 * For decode_step_bounds.c the functions also carry error bounds and can run with perturbed roundings.
 */
#include "fused/decode_step/decode_step_ref.h"

#include <stdlib.h>

#include "primitives/draw/argmax.h"
#include "primitives/base/error.h"
#include "primitives/draw/sample.h"

#define U32	0x1p-24

int step_run_open(struct step_run *r, const struct cairn_decode_step_args *a, int bounded)
{
	struct block_row *const rows[] = { &r->x, &r->n, &r->gate_up, &r->k, &r->v, &r->logits, &r->router };
	const int64_t sizes[] = {
		a->hidden, a->hidden, 2 * (int64_t)a->intermediate, a->num_layers * decode_step_k_row(a),
		a->num_layers * decode_step_v_row(a), a->vocab, (int64_t)a->num_layers * a->num_experts,
	};
	int64_t total = 0, at = 0;

	for (int i = 0; i < 7; i++)
		total += 2 * sizes[i];
	r->memory = calloc((size_t)total, sizeof(double));
	for (int i = 0; i < 7 && r->memory; i++, at += 2 * sizes[i - 1])
		*rows[i] = (struct block_row){
			r->memory + at, bounded || i == 0 ? r->memory + at + sizes[i] : NULL,
		};
	return r->memory ? 0 : cairn_error(ENOMEM, "decode_step: no memory for %lld numbers",
					   (long long)total);
}

static void feed_forward(struct step_run *r, const struct cairn_decode_step_args *a, int layer)
{
	const void *down = decode_step_weight(a, a->w_down, layer);

	cairn_block_norm(r->n, r->x, decode_step_weight(a, a->mlp_norm, layer), a->hidden, a->eps, a->dtype);
	cairn_block_project(r->gate_up, r->n, decode_step_weight(a, a->w_gate_up, layer), NULL,
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

/* Perturbs each element of the residual stream at random by up to u of itself; seed 0: no perturbation. */
static void shake(struct step_run *r, const struct cairn_decode_step_args *a, uint64_t *seed)
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

int step_run_request(struct step_run *r, const struct cairn_decode_step_args *a, int b, uint64_t seed)
{
	for (int i = 0; i < a->hidden; i++) {
		r->x.val[i] = cairn_load(a->embed, a->dtype, (int64_t)a->ids[b] * a->hidden + i);
		r->x.err[i] = 0;
	}
	for (int layer = 0; layer < a->num_layers; layer++) {
		struct block_row k = of_row(r->k, layer * decode_step_k_row(a));
		struct block_row v = of_row(r->v, layer * decode_step_v_row(a));

		shake(r, a, &seed);
		if (a->kv_lora_rank) {
			struct cairn_cluster_mla_args block = decode_step_mla(a, layer);

			CAIRN_TRY(cairn_block_mla(&block, b, r->x.val, r->n.val, k.val));
		} else {
			struct cairn_cluster_attn_args block = decode_step_attn(a, layer);

			CAIRN_TRY(cairn_block_attn(&block, b, r->x, r->n, k, v));
		}
		for (int i = 0; i < a->hidden; i++) {
			r->x.val[i] = r->n.val[i];
			r->x.err[i] = r->n.err ? r->n.err[i] : 0;
		}
		shake(r, a, &seed);
		if (decode_step_has_experts(a, layer)) {
			struct cairn_moe_args block = decode_step_moe_of(a, layer);

			CAIRN_TRY(cairn_block_moe(&block, r->x.val, r->x.val,
						  r->router.val + (int64_t)layer * a->num_experts));
		} else {
			feed_forward(r, a, layer);
		}
	}
	shake(r, a, &seed);
	cairn_block_norm(r->n, r->x, a->final_norm, a->hidden, a->eps, a->dtype);
	cairn_block_project(r->logits, r->n, a->lm_head, NULL, a->vocab, a->hidden, a->dtype);
	return 0;
}

int64_t step_slot(const struct cairn_decode_step_args *a, int b, int layer, int64_t row)
{
	return cairn_kv_slot(&a->kv, b, cairn_kv_len(&a->kv, b) - 1) * row +
	       layer * a->kv_stride_bytes / (int64_t)cairn_dtype_bytes(a->dtype);
}

static int draw(const struct cairn_decode_step_args *a)
{
	struct cairn_argmax_args argmax = {
		.size = sizeof(argmax), .out = a->tokens, .logits = a->logits, .rows = a->kv.batch,
		.vocab = a->vocab, .dtype = CAIRN_F32,
	};
	struct cairn_sample_args sample = {
		.size = sizeof(sample), .out = a->tokens, .logits = a->logits, .temperature = a->temperature,
		.top_k = a->top_k, .top_p = a->top_p, .min_p = a->min_p, .seed = a->seed, .offset = a->offset,
		.rows = a->kv.batch, .vocab = a->vocab,
	};

	if (!a->tokens)
		return 0;
	return a->temperature ? cairn_sample_ref(&sample, NULL) : cairn_argmax_ref(&argmax, NULL);
}

/* Writes what a run has appended into the pages of all layers. */
static void append(const struct cairn_decode_step_args *a, int b, void *pages, const double *val, int64_t row)
{
	for (int64_t i = 0; i < a->num_layers * row; i++)
		cairn_store(pages, a->dtype, step_slot(a, b, (int)(i / row), row) + i % row, val[i]);
}

int cairn_decode_step_ref(const struct cairn_decode_step_args *a, void *stream)
{
	struct step_run r;
	int ret = 0;

	(void)stream;
	CAIRN_TRY(cairn_decode_step_check(a));
	CAIRN_TRY(step_run_open(&r, a, 0));
	for (int b = 0; b < a->kv.batch && !ret; b++) {
		if (cairn_kv_len(&a->kv, b) == 0)
			continue;
		ret = step_run_request(&r, a, b, 0);
		if (ret)
			break;
		append(a, b, a->kv.k_pages, r.k.val, decode_step_k_row(a));
		append(a, b, a->kv.v_pages, r.v.val, decode_step_v_row(a));
		for (int i = 0; i < a->vocab; i++)
			a->logits[(int64_t)b * a->vocab + i] = (float)r.logits.val[i];
	}
	free(r.memory);
	return ret || !a->kv.batch ? ret : draw(a);
}
