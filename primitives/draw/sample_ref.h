/* SPDX-License-Identifier: Apache-2.0 */
/* sample_ref - a row of logits for the reference and the judge: sorted, with weights in double */
#ifndef CAIRN_SAMPLE_REF_H
#define CAIRN_SAMPLE_REF_H

#include "primitives/draw/sample.h"

struct sample_token {
	float logit;
	int32_t index;
	double weight;		/* relative to 1 for the most probable token */
};

struct sample_row {
	struct sample_token *t;	/* most probable first, cut to top_k; without logits of -INFINITY */
	int32_t n;
	double u, temperature, top_p, min_p;
	int32_t top_k;
};

/* Fills *r; the caller frees r->t. */
int cairn_sample_open_row(const struct cairn_sample_args *a, int32_t row,
			  struct sample_row *r);
/* Returns how many of the first n tokens it takes for the running sum to reach `target`; n if it does not. */
int32_t cairn_sample_prefix(const struct sample_row *r, int32_t n, double target);
/* Returns the token that the reference draws, -1 if there is none, or -ENOMEM. */
int32_t cairn_sample_draw(const struct cairn_sample_args *a, const struct sample_row *r);

#endif
