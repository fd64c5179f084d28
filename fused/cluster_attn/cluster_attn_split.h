/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster_attn_split - cluster_attn with a cluster for each KV head: dataflows SPLIT_TOKEN and SPLIT_HEAD
 *
 * The caller has checked the arguments; batch is not 0.
 */
#ifndef CAIRN_CLUSTER_ATTN_SPLIT_H
#define CAIRN_CLUSTER_ATTN_SPLIT_H

#include "fused/cluster_attn/cluster_attn.h"

int cluster_attn_split(const struct cairn_cluster_attn_args *args, void *stream);
int cluster_attn_split_workspace(const struct cairn_cluster_attn_args *args, size_t *bytes);

#endif
