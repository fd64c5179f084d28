// SPDX-License-Identifier: Apache-2.0
/*
 * logprobs_cpu - scans a row in blocks and keeps the k likeliest tokens so far in a sorted list
 *
 * If the maximum of a block is too small for the list, the block is not searched. Sums of exp are relative to
 * the largest logit so far; when that grows, the sum so far is scaled down.
 */
#include <float.h>
#include <math.h>

#include "primitives/base/error.h"
#include "primitives/logits/logprobs.h"

#define BLOCK	256

struct best {
	float logit[CAIRN_LOGPROBS_MAX];
	int32_t id[CAIRN_LOGPROBS_MAX];
	int32_t num;
};

static float clean(float x)
{
	return isnan(x) ? -INFINITY : fminf(x, FLT_MAX);
}

/* Called in rising order of id, so that a token is inserted after those with equal logits. */
static void insert(struct best *b, int32_t k, float x, int32_t id)
{
	int32_t at;

	if (b->num == k && !(x > b->logit[k - 1]))
		return;
	at = b->num < k ? b->num++ : k - 1;
	for (; at > 0 && x > b->logit[at - 1]; at--) {
		b->logit[at] = b->logit[at - 1];
		b->id[at] = b->id[at - 1];
	}
	b->logit[at] = x;
	b->id[at] = id;
}

static void one_row(const struct cairn_logprobs_args *a, int32_t row)
{
	const float *logits = a->logits + (int64_t)row * a->vocab;
	struct best best = { .num = 0 };
	float max = -INFINITY;
	double sum = 0, lse;

	for (int32_t j = 0; j < a->vocab; j += BLOCK) {
		int32_t n = a->vocab - j < BLOCK ? a->vocab - j : BLOCK;
		float x[BLOCK], top = -INFINITY, part = 0;

		for (int32_t i = 0; i < n; i++) {
			x[i] = clean(logits[j + i]);
			top = x[i] > top ? x[i] : top;
		}
		if (a->k && (best.num < a->k || top > best.logit[a->k - 1]))
			for (int32_t i = 0; i < n; i++)
				insert(&best, a->k, x[i], j + i);
		if (top > max) {
			sum *= exp((double)max - (double)top);
			max = top;
		}
		for (int32_t i = 0; max > -INFINITY && i < n; i++)
			part += expf(x[i] - max);
		sum += (double)part;
	}
	lse = log(sum);
	for (int32_t i = -1; i < a->k; i++) {
		int32_t token = a->tokens[row];
		float x = i >= 0 ? (i < best.num ? best.logit[i] : -INFINITY) :
			  token >= 0 && token < a->vocab ? clean(logits[token]) : -INFINITY;
		float p = x > -INFINITY ? (float)((double)x - (double)max - lse) : -INFINITY;

		if (i < 0) {
			a->chosen[row] = p;
			continue;
		}
		a->top[(int64_t)row * a->k + i] = p;
		a->top_ids[(int64_t)row * a->k + i] = i < best.num ? best.id[i] : -1;
	}
}

int cairn_logprobs_cpu(const struct cairn_logprobs_args *a, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_logprobs_check(a));
	#pragma omp parallel for schedule(dynamic) if (a->rows > 1)
	for (int32_t i = 0; i < a->rows; i++)
		if (!a->wanted || a->wanted[i])
			one_row(a, i);
	return 0;
}
