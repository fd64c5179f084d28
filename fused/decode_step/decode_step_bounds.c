// SPDX-License-Identifier: Apache-2.0
/*
 * decode_step_bounds - bounds on the distance from the definition (decode_step_ref.c)
 *
 * Each number carries its own bound (block_ref.h): the errors of its inputs times their factors, plus the
 * errors of fp32 sums and functions. At each rounding, the bound becomes that of the rounded interval. For
 * numbers on the grid of dtype this bound stays near 0 through all layers, so kind EXACT is judged strictly.
 * For other numbers a dense product multiplies the relative bound by up to 0.8 sqrt(k), because it assumes
 * the worst sign of every error: after two products the bound exceeds the values.
 *
 * Therefore there is a second bound, and the smaller one counts. RUNS further runs perturb each element of
 * the residual stream, wherever it is rounded, by a random amount of up to u of itself. A rounding error is
 * never larger, and the perturbation makes all other roundings independent. An implementation rounds only a
 * few numbers differently from the reference, so it is closer to the reference than such a run. The sum of
 * many rounding errors is normally distributed, and among 10^8 normal values none exceeds 6 standard
 * deviations. The deviation is taken around the reference and is at least the root mean square over its row,
 * which a few runs estimate well. Rounded outputs (keys and values) may always be an ulp off; half an ulp is
 * added to both bounds, so that such an error stays below the bound.
 *
 * A token must be the argmax if the largest logit exceeds every other one by more than the sum of both
 * bounds.
 *
 * Latent attention and experts have no bound of the first kind; models with them use the second bound alone.
 * The choice of experts is discontinuous. The runs bound the router's logits like all other numbers. If these
 * bounds do not decide a layer's choice (moe_bounds.c; the order among the chosen does not matter here),
 * everything after it is only checked to be finite. No run is more than sqrt(RUNS) deviations off. That is
 * less than DEVIATIONS, so all runs agree on a choice that is decided.
 */
#include "fused/decode_step/decode_step_ref.h"

#include <stdlib.h>

#include "primitives/base/error.h"

#define RUNS		8
#define DEVIATIONS	6

/* Sets values and the smaller bounds of elements first .. first + n - 1 of one row of the runs. */
static void judge_row(const struct step_run *runs, size_t member, int64_t first, int64_t n, int dtype,
		      double *val, double *bound)
{
	const struct block_row *row = (const void *)((const char *)runs + member);
	const double *err = row->err ? row->err + first : NULL;
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

		bound[i] = fmin(err ? err[i] : INFINITY,
				fmax(2 * half, DEVIATIONS * sqrt(fmax(bound[i], mean))));
		bound[i] += bound[i] > 0 ? half : 0;
		if (isnan(val[i]))	/* the request reads a NaN, so this element is undefined */
			bound[i] = INFINITY;
	}
}

static int ahead_of(const double *val, int num, int i)
{
	int ahead = 0;

	for (int j = 0; j < num; j++)
		ahead += val[j] > val[i] || (val[j] == val[i] && j < i);
	return ahead;
}

/* Returns whether the router's logits and their bounds decide which experts are chosen. */
static int decides(const double *val, const double *bound, int num, int chosen)
{
	double top = -INFINITY;
	int in[256];

	for (int i = 0; i < num; i++) {
		top = fmax(top, val[i]);
		in[i] = ahead_of(val, num, i) < chosen;
	}
	for (int i = 0; i < num; i++)
		for (int j = 0; j < num; j++)
			if (in[i] && !in[j] && !(top - val[i] < 80 && val[i] - val[j] > bound[i] + bound[j] +
						 0x1p-19 * (1 + top - val[j])))
				return 0;
	return 1;
}

/* Returns the first layer whose experts are not decided, or num_layers. */
static int undecided_layer(const struct cairn_decode_step_args *a, const struct step_run *runs)
{
	double val[256], bound[256];

	for (int layer = 0; layer < a->num_layers; layer++) {
		if (!decode_step_has_experts(a, layer))
			continue;
		judge_row(runs, offsetof(struct step_run, router), (int64_t)layer * a->num_experts,
			  a->num_experts, CAIRN_F32, val, bound);
		if (!decides(val, bound, a->num_experts, a->experts_per_token))
			return layer;
	}
	return a->num_layers;
}

static void judge_nothing(double *bound, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		bound[i] = INFINITY;
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

static int exact_request(const struct cairn_decode_step_args *a, int b, struct step_run *runs,
			 struct cairn_exact *e)
{
	const uint64_t seed = 0x9e3779b97f4a7c15u;
	int64_t rows[] = { decode_step_k_row(a), decode_step_v_row(a) }, logit = (int64_t)b * a->vocab;
	int failed = 0, undecided, token = a->kv_lora_rank ? 2 : 3;

	#pragma omp parallel for schedule(dynamic) reduction(|:failed)
	for (int k = 0; k <= RUNS; k++)
		failed |= step_run_request(&runs[k], a, b, k ? seed * (uint64_t)(k + RUNS * b) | 1 : 0);
	if (failed)
		return cairn_error(ENOMEM, "decode_step: no memory");
	judge_row(runs, offsetof(struct step_run, logits), 0, a->vocab, CAIRN_F32, e[0].val + logit,
		  e[0].bound + logit);
	undecided = undecided_layer(a, runs);
	if (undecided < a->num_layers)
		judge_nothing(e[0].bound + logit, a->vocab);
	for (int i = 0; i < 2 * a->num_layers; i++) {
		int layer = i / 2, v = i % 2;
		int64_t at = step_slot(a, b, layer, rows[v]), n = rows[v];

		if (!n)
			continue;
		judge_row(runs, v ? offsetof(struct step_run, v) : offsetof(struct step_run, k), layer * n, n,
			  a->dtype, e[1 + v].val + at, e[1 + v].bound + at);
		if (layer > undecided)
			judge_nothing(e[1 + v].bound + at, n);
	}
	if (a->tokens)
		exact_token(a, b, e[0].val + logit, e[0].bound + logit, &e[token]);
	return 0;
}

/* A request without a key appends nothing, and its other results are undefined. */
static void undefined_request(const struct cairn_decode_step_args *a, int b, struct cairn_exact *e)
{
	struct cairn_exact *token = &e[a->kv_lora_rank ? 2 : 3];

	for (int64_t i = (int64_t)b * a->vocab; i < (int64_t)(b + 1) * a->vocab; i++) {
		e[0].val[i] = NAN;
		e[0].bound[i] = INFINITY;
	}
	if (!a->tokens)
		return;
	token->val[b] = NAN;
	token->bound[b] = INFINITY;
}

int cairn_decode_step_exact(const struct cairn_decode_step_args *a, struct cairn_exact *exact)
{
	struct step_run runs[RUNS + 1] = { { NULL } };
	int ret = 0;

	CAIRN_TRY(cairn_decode_step_check(a));
	for (int k = 0; k <= RUNS && !ret; k++)
		ret = step_run_open(&runs[k], a, k == 0 && !a->kv_lora_rank && !a->num_experts);
	for (int b = 0; b < a->kv.batch && !ret; b++) {
		if (cairn_kv_len(&a->kv, b) > 0)
			ret = exact_request(a, b, runs, exact);
		else
			undefined_request(a, b, exact);
	}
	for (int k = 0; k <= RUNS; k++)
		free(runs[k].memory);
	return ret;
}
