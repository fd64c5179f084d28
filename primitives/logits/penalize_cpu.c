// SPDX-License-Identifier: Apache-2.0
/*
 * penalize_cpu - processes a row at a time: the cap, then the bias, the counters and the forbidden tokens
 *
 * Counters are tested eight at a time, since nearly all of them are zero.
 */
#include <math.h>
#include <string.h>

#include "primitives/base/error.h"
#include "primitives/logits/penalize.h"
#include "primitives/logits/token_counts.h"

static float counted(const struct cairn_penalize_args *a, int32_t i, float x, uint16_t c)
{
	float n = (float)(c & CAIRN_TOKEN_COUNT);

	x = x > 0 ? x / a->repetition[i] : x * a->repetition[i];
	return n > 0 ? x - a->frequency[i] * n - a->presence[i] : x;
}

static void history(const struct cairn_penalize_args *a, int32_t i, float *x)
{
	const uint16_t *c = a->counts + (int64_t)a->slots[i] * a->vocab;
	int32_t j = 0;

	for (; j + 8 <= a->vocab; j += 8) {
		uint64_t any[2];

		memcpy(any, c + j, sizeof(any));
		if (!(any[0] | any[1]))
			continue;
		for (int32_t k = j; k < j + 8; k++)
			if (c[k])
				x[k] = counted(a, i, x[k], c[k]);
	}
	for (; j < a->vocab; j++)
		if (c[j])
			x[j] = counted(a, i, x[j], c[j]);
}

/* Returns whether row i has counters, and a penalty that is not neutral. */
static int has_history(const struct cairn_penalize_args *a, int32_t i)
{
	return a->counts && (uint32_t)a->slots[i] < (uint32_t)a->num_slots &&
	       (a->repetition[i] != 1 || a->frequency[i] != 0 || a->presence[i] != 0);
}

static void one_row(const struct cairn_penalize_args *a, int32_t i)
{
	float *x = a->logits + (int64_t)i * a->vocab;

	for (int32_t j = 0; a->softcap > 0 && j < a->vocab; j++)
		x[j] = a->softcap * tanhf(x[j] / a->softcap);
	for (int32_t k = 0; a->num_bias && k < a->num_bias[i]; k++) {
		int32_t id = a->bias_ids[a->bias_at[i] + k];

		if ((uint32_t)id < (uint32_t)a->vocab)
			x[id] += a->bias[a->bias_at[i] + k];
	}
	if (has_history(a, i))
		history(a, i, x);
	for (int32_t k = 0; a->num_forbidden && k < a->num_forbidden[i]; k++) {
		int32_t id = a->forbidden_ids[a->forbidden_at[i] + k];

		if ((uint32_t)id < (uint32_t)a->vocab)
			x[id] = -INFINITY;
	}
}

int cairn_penalize_cpu(const struct cairn_penalize_args *a, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_penalize_check(a));
	#pragma omp parallel for schedule(dynamic) if (a->rows > 1)
	for (int32_t i = 0; i < a->rows; i++)
		one_row(a, i);
	return 0;
}
