/* SPDX-License-Identifier: Apache-2.0 */
/* sample_ref - a row as the reference and the judge see it: sorted, in double */
#ifndef CAIRN_SAMPLE_REF_H
#define CAIRN_SAMPLE_REF_H

#include "primitives/draw/sample.h"

struct sample_token {
	float logit;
	int32_t index;
	double weight;		/* of the most probable's 1 */
};

struct sample_row {
	struct sample_token *t;	/* most probable first, already cut to top_k; impossible ones left out */
	int32_t n;
	double u, temperature, top_p, min_p;
	int32_t top_k;
};

int cairn_sample_open_row(const struct cairn_sample_args *a, int32_t row,
			  struct sample_row *r); /* free r->t */
/* How many of the first n stay when the running sum must reach `target`. */
int32_t cairn_sample_prefix(const struct sample_row *r, int32_t n, double target);
int32_t cairn_sample_draw(const struct cairn_sample_args *a, const struct sample_row *r);

#endif
