/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster_mla_ref - the fused latent attention block of one request in double; decode_step's reference
 * chains it
 */
#ifndef CAIRN_CLUSTER_MLA_REF_H
#define CAIRN_CLUSTER_MLA_REF_H

#include "fused/latent/cluster_mla.h"

/*
 * Computes request b of a with its row of x taken from `x`, values only: out [hidden], and slot [kv_lora_rank
 * + rope_dim], which is appended to the cache; both rounded. Reads the pages except the slot of the new
 * token. Returns -ENOMEM without memory.
 */
int cairn_block_mla(const struct cairn_cluster_mla_args *a, int b, const double *x,
		    double *out, double *slot);

#endif
