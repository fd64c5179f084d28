// SPDX-License-Identifier: Apache-2.0
/* spec_reject - rejection sampling of drafts (spec_reject.h) */
#include "serving/engine/spec/spec_reject.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"

struct likely {
	float logit;
	int32_t token;
	double weight;			/* relative to 1 for the most likely token */
};

/* Tokens of equal logits in rising order, as in sample.h. */
static int by_falling_logit(const void *pa, const void *pb)
{
	const struct likely *a = pa, *b = pb;

	return a->logit != b->logit ? (a->logit < b->logit) - (a->logit > b->logit) : a->token - b->token;
}

/* Sorts the tokens that may be drawn, most likely first, and returns how many top_k, top_p and min_p keep. */
static int32_t keep(const float *logits, int32_t vocab, const struct cairn_sampling *s, struct likely *all)
{
	double total = 0, run = 0;
	int32_t num = 0, n;

	for (int32_t j = 0; j < vocab; j++) {
		if (logits[j] > -INFINITY)	/* false for NaN */
			all[num++] = (struct likely){ fminf(logits[j], FLT_MAX), j, 0 };
	}
	qsort(all, (size_t)num, sizeof(*all), by_falling_logit);
	if (s->temperature == 0)
		num = num > 1 ? 1 : num;
	else if (s->top_k > 0 && s->top_k < num)
		num = s->top_k;
	for (n = 0; n < num; n++) {
		all[n].weight = !n ? 1 : exp(((double)all[n].logit - (double)all[0].logit) / s->temperature);
		total += all[n].weight;
	}
	for (n = 0; s->top_p < 1 && n < num; n++) {
		run += all[n].weight;
		if (run >= s->top_p * total)
			num = n + 1;
	}
	for (n = 0; n < num && all[n].weight >= s->min_p; n++)
		;
	return n;
}

int cairn_spec_distribution(const float *logits, int32_t vocab, const struct cairn_sampling *s, double *p)
{
	struct likely *all = malloc((size_t)vocab * sizeof(*all));
	double sum = 0;
	int32_t num;

	if (!all)
		return cairn_error(ENOMEM, "spec_reject: no memory for a row of %d", vocab);
	num = keep(logits, vocab, s, all);
	for (int32_t k = 0; k < num; k++)
		sum += all[k].weight;
	memset(p, 0, (size_t)vocab * sizeof(*p));
	for (int32_t k = 0; k < num; k++)
		p[all[k].token] = all[k].weight / sum;
	free(all);
	return num ? 0 : cairn_error(EINVAL, "spec_reject: no logit is a number");
}

/*
 * Makes p the residual. A draft can only be rejected where q exceeds p, so elsewhere p exceeds q; if rounding
 * has left nothing of that, p and q are equal, and p stays.
 */
static void subtract(double *p, const double *q, int32_t vocab)
{
	double sum = 0;

	for (int32_t j = 0; j < vocab; j++)
		sum += p[j] > q[j] ? p[j] - q[j] : 0;
	for (int32_t j = 0; sum > 0 && j < vocab; j++)
		p[j] = p[j] > q[j] ? (p[j] - q[j]) / sum : 0;
}

static int32_t draw(const double *p, int32_t vocab, double u)
{
	double run = 0;
	int32_t token = -1;

	for (int32_t j = 0; j < vocab && run <= u; j++) {
		run += p[j];
		if (p[j] > 0)
			token = j;
	}
	return token;
}

int32_t cairn_spec_reject(double *p, const double *q, int32_t vocab, const int32_t *drafts, int32_t num,
			  const double *u, int32_t *token)
{
	for (int32_t k = 0; k < num; k++) {
		if (u[k] * q[drafts[k]] < p[drafts[k]]) {
			*token = drafts[k];
			return k;
		}
		subtract(p, q, vocab);
	}
	*token = draw(p, vocab, u[num]);
	return num;
}
