/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster_mla_ref - the fused latent attention block of one request, in double; the reference of decode_step
 * calls it for each layer
 */
#ifndef CAIRN_CLUSTER_MLA_REF_H
#define CAIRN_CLUSTER_MLA_REF_H

#include "fused/latent/cluster_mla.h"

/*
 * Computes request b of a, with its row of x taken from `x`. Sets out [hidden] and slot [kv_lora_rank +
 * rope_dim], the new cache entry, both rounded and without bounds. Reads the pages except the slot of the new
 * token. Returns 0, or -ENOMEM.
 */
int cairn_block_mla(const struct cairn_cluster_mla_args *a, int b, const double *x,
		    double *out, double *slot);

#endif
