/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slices_json - the parts of the format "cairn-slices 1", for its writer and its reader
 *
 * Each returns a new reference, or NULL without memory.
 */
#ifndef CAIRN_SLICES_JSON_H
#define CAIRN_SLICES_JSON_H

#include <jansson.h>

#include "serving/slices/slices_impl.h"

json_t *cairn_slices_names(const struct cairn_op_graph *g, const int32_t *values, int32_t num);
json_t *cairn_slices_symbols(const struct cairn_op_graph *g, const int32_t *dims);
json_t *cairn_slices_values(const struct cairn_op_graph *g);
json_t *cairn_slices_step(const struct cairn_op_graph *g, const struct cairn_slice_step *step);
json_t *cairn_slices_seam(const struct cairn_op_graph *g, const struct cairn_seam *seam);

#endif
