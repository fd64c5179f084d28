/* SPDX-License-Identifier: Apache-2.0 */
/*
 * place - names an element of a buffer by its coordinates, and says in a phrase where bad elements lie
 *
 *   out[row 3, head 2, dim 17]          all in row 3
 */
#ifndef CAIRN_PLACE_H
#define CAIRN_PLACE_H

#include "conformance/suite/op_case.h"

/* Sets b->name to the last word of a C expression: kv.k_pages of "offsetof(struct x_args, kv.k_pages)". */
void cairn_place_name(struct cairn_buf *b, const char *expression);

/* Writes the name of element i, as above. If i lies in a gap between rows, the text says so. */
void cairn_place_element(const struct cairn_buf *b, int64_t i, char *text, size_t len);

/*
 * Calls is_bad for each element and describes the set of the bad ones. For each dimension in which some index
 * has no bad element, it says which indices have one. "all of" means that no element there is good:
 *
 *   all of rows 64 to 127 (the last 64)      all in row 3, dims 0 to 7 (the first 8)
 *   all in every second row, from row 1      scattered over all rows, dims
 *
 * Returns the number of bad elements.
 */
int64_t cairn_place_pattern(const struct cairn_buf *b, int (*is_bad)(const void *arg, int64_t i),
			    const void *arg, char *text, size_t len);

#endif
