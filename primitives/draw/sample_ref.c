// SPDX-License-Identifier: Apache-2.0
/*
 * sample_ref - the reference: sorts, cuts and draws in double
 *
 * It allocates memory, which other implementations must not.
 */
#include "primitives/draw/sample.h"

#include <math.h>
#include <stdlib.h>

#include "primitives/base/error.h"
#include "primitives/base/falling.h"
#include "primitives/draw/sample_ref.h"
#include "primitives/draw/sample_select.h"

int cairn_sample_open_row(const struct cairn_sample_args *a, int32_t row, struct sample_row *r)
{
	const float *logits = a->logits + (int64_t)row * a->vocab;
	int32_t *order = malloc((size_t)a->vocab * sizeof(*order));

	r->t = malloc((size_t)a->vocab * sizeof(*r->t));
	if (!r->t || !order || cairn_order_falling(order, logits, a->vocab)) {
		free(r->t);
		free(order);
		return cairn_error(ENOMEM, "sample: no memory for a row of %d", a->vocab);
	}
	/* logits of -INFINITY and NaN come last */
	for (r->n = 0; r->n < a->vocab && logits[order[r->n]] > -INFINITY; r->n++)
		r->t[r->n] = (struct sample_token) { fminf(logits[order[r->n]], FLT_MAX), order[r->n], 0 };
	free(order);
	r->temperature = a->temperature[row];
	r->top_k = r->temperature == 0 ? 1 : a->top_k[row] > 0 && a->top_k[row] < r->n ? a->top_k[row] : r->n;
	r->top_p = a->top_p[row];
	r->min_p = a->min_p[row];
	r->u = (double)cairn_philox_uniform(a->seed[row], a->offset[row]) * 0x1p-64;
	if (r->n > r->top_k)
		r->n = r->top_k;
	for (int32_t k = 0; k < r->n; k++)
		r->t[k].weight = r->temperature == 0 ? 1 :
			exp(((double)r->t[k].logit - (double)r->t[0].logit) / r->temperature);
	return 0;
}

int32_t cairn_sample_prefix(const struct sample_row *r, int32_t n, double target)
{
	double sum = 0;

	for (int32_t k = 0; k < n; k++) {
		sum += r->t[k].weight;
		if (sum >= target)
			return k + 1;
	}
	return n;
}

int32_t cairn_sample_draw(const struct cairn_sample_args *a, const struct sample_row *r)
{
	int32_t n = r->n, token = -1;
	double total = 0, kept = 0, run = 0, *weights;

	if (n == 0)
		return -1;
	weights = calloc(a->vocab, sizeof(*weights));
	if (!weights)
		return cairn_error(ENOMEM, "sample: no memory for a row of %d", a->vocab);
	for (int32_t k = 0; k < n; k++)
		total += r->t[k].weight;
	if (r->top_p < 1)
		n = cairn_sample_prefix(r, n, r->top_p * total);
	for (int32_t k = 0; k < n && r->t[k].weight >= r->min_p; k++) {
		weights[r->t[k].index] = r->t[k].weight;
		kept += r->t[k].weight;
	}
	for (int32_t j = 0; j < a->vocab && run <= r->u * kept; j++) {
		run += weights[j];
		if (weights[j] > 0)
			token = j;	/* the last kept token, if rounding keeps run below the mark */
	}
	free(weights);
	return token;
}

int cairn_sample_ref(const struct cairn_sample_args *a, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_sample_check(a));
	for (int32_t i = 0; i < a->rows; i++) {
		struct sample_row r;

		CAIRN_TRY(cairn_sample_open_row(a, i, &r));
		a->out[i] = cairn_sample_draw(a, &r);
		free(r.t);
		if (a->out[i] < -1)
			return a->out[i];
	}
	return 0;
}
