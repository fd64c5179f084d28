/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster_attn_grid - cluster_attn by the phases of grid.h: all SMs share all work, without clusters per head
 *
 * The caller has checked the arguments. Returns -EOPNOTSUPP if a group has more than GRID_MAX_GROUP query
 * heads or the activations do not fit into shared memory.
 */
#ifndef CAIRN_CLUSTER_ATTN_GRID_H
#define CAIRN_CLUSTER_ATTN_GRID_H

#include "fused/cluster_attn/cluster_attn.h"

int cluster_attn_grid(const struct cairn_cluster_attn_args *args, void *stream);
int cluster_attn_grid_workspace(const struct cairn_cluster_attn_args *args, size_t *bytes);

#endif
