/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode_step_latent - a decode step of a model with latent attention in one kernel, and declarations that
 * both forms share
 */
#ifndef CAIRN_DECODE_STEP_LATENT_H
#define CAIRN_DECODE_STEP_LATENT_H

#include "fused/latent/cluster_mla.h"
#include "fused/decode_step/decode_step.h"
#include "fused/moe/moe.h"

struct latent_step {
	struct cairn_cluster_mla_args mla;	/* layer 0; x and out are ignored, here and below */
	struct cairn_moe_args moe;	/* layer dense_layers, if that exists */
	struct cairn_moe_args dense;	/* layer 0: a shared expert only */
	char *x[2];			/* [batch, hidden]: x before each layer, and before its second half */
	uint32_t *counters;		/* two, in the workspace */
};

int decode_step_latent(const struct cairn_decode_step_args *args, const struct latent_step *step,
		       void *stream);
/* Computes the logits from the last layer's x. dense: used for its shape. */
int decode_step_head(const struct cairn_decode_step_args *args, const struct cairn_moe_args *dense,
		     const void *x, void *stream);

#endif
