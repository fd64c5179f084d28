/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pick_ids - selects the input tokens of a pass: the host's, or tokens that the previous pass has just drawn
 *
 *   ids[i] = from[i] < 0 ? host_ids[i] : from[i] < num_drawn ? drawn[from[i]] : -1
 *
 *   argument  dtype  shape        notes
 *   ids       int32  [rows]       out; may be host_ids itself, must not overlap drawn or from
 *   drawn     int32  [num_drawn]  in, may be NULL if num_drawn is 0
 *   from      int32  [rows]       in
 *   host_ids  int32  [rows]       in, optional (NULL: -1 for every row)
 *
 * A failed draw is -1 and stays -1; for that id, embedding.h gives a row of zeros. rows may be larger than
 * the number of rows in use, because a captured graph has a fixed size. rows 0 is legal and does nothing.
 * Supported:   everything above.
 * Numerics:    an exact copy.
 * Determinism: bitwise repeatable.
 * Errors:      -EINVAL (null pointer, negative size), -EIO.
 */
#ifndef CAIRN_PICK_IDS_H
#define CAIRN_PICK_IDS_H

#include <stddef.h>
#include <stdint.h>

struct cairn_exact;

struct cairn_pick_ids_args {
	size_t size;
	int32_t *ids;
	const int32_t *drawn, *from, *host_ids;
	int32_t rows, num_drawn;
};

#ifdef __cplusplus
extern "C" {
#endif

int cairn_pick_ids(const struct cairn_pick_ids_args *args, void *stream);
int cairn_pick_ids_cpu(const struct cairn_pick_ids_args *args, void *stream);
int cairn_pick_ids_ref(const struct cairn_pick_ids_args *args, void *stream);
/* The argument checks that all of our tables run first: 0 or -EINVAL. */
int cairn_pick_ids_check(const struct cairn_pick_ids_args *args);
int cairn_pick_ids_exact(const struct cairn_pick_ids_args *args, struct cairn_exact *exact);	/* [0]: ids */

#ifdef __cplusplus
}
#endif
#endif
