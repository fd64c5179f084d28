/* SPDX-License-Identifier: Apache-2.0 */
/* latent_cpu - a step of the online softmax over latents, for the CPU tables of mla_paged and mla_decode */
#ifndef CAIRN_LATENT_CPU_H
#define CAIRN_LATENT_CPU_H

#include <math.h>

#include "fused/block/block_cpu.h"

#define LATENT_RANK	512
#define LATENT_ROPE	64

/* A row's query (the absorbed part, then the rope part), and its softmax state. */
struct latent_row {
	float q[LATENT_RANK + LATENT_ROPE], o[LATENT_RANK];
	float top, sum;
};

/* Adds a key, whose value is its first LATENT_RANK elements, to the state of a row. */
static CAIRN_WIDE void latent_take_key(struct latent_row *r, const float *key, float sm_scale, int dtype)
{
	float s = block_dot(r->q, key, LATENT_RANK + LATENT_ROPE) * sm_scale, p;

	if (s > r->top) {
		float keep = expf(r->top - s);

		r->sum *= keep;
		for (int l = 0; l < LATENT_RANK; l++)
			r->o[l] *= keep;
		r->top = s;
	}
	p = expf(s - r->top);
	r->sum += p;
	p = block_narrowed(p, dtype);
	for (int l = 0; l < LATENT_RANK; l++)
		r->o[l] += p * key[l];
}

static inline float latent_lse(const struct latent_row *r)
{
	return r->sum > 0 ? r->top + logf(r->sum) : -INFINITY;
}

#endif
