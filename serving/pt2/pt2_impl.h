/* SPDX-License-Identifier: Apache-2.0 */
/* pt2_impl - the two parts of the reader */
#ifndef CAIRN_PT2_IMPL_H
#define CAIRN_PT2_IMPL_H

#include "serving/pt2/pt2.h"
#include "serving/pt2/zip.h"

/* Reads {"as_int": 4} or {"as_expr": {...}}. Returns an expression, or -errno. */
int32_t pt2_read_size(struct cairn_pt2 *p, const json_t *from);
/* Reads nodes, inputs and outputs; the values are known by their names. */
int pt2_read_graph(struct cairn_pt2 *p, json_t *graph, json_t *signature);

#endif
