/* SPDX-License-Identifier: Apache-2.0 */
/*
 * min_cut - minimum cuts of directed graphs, with a certificate
 *
 * A cut divides the nodes into a source side and a sink side. Its capacity is the sum of the capacities of
 * the arcs from the source side to the sink side. The maximum flow from the source to the sink proves that
 * no cut is cheaper; cairn_min_cut_verify() checks that proof without the solver's code.
 *
 * Method: Dinic's algorithm, O(nodes^2 arcs) at worst.
 * Errors: -EINVAL (a node outside the graph, a capacity out of range, no cut of finite capacity), -ENOMEM;
 *         the text says which.
 */
#ifndef CAIRN_MIN_CUT_H
#define CAIRN_MIN_CUT_H

#include <stdint.h>

#define CAIRN_MIN_CUT_INFINITE	((int64_t)1 << 60)	/* no cut may contain such an arc */

struct cairn_min_cut;

int cairn_min_cut_create(struct cairn_min_cut **out, int32_t num_nodes);
void cairn_min_cut_destroy(struct cairn_min_cut *c);	/* NULL is legal */
/* Adds an arc. The sum of all finite capacities must be below CAIRN_MIN_CUT_INFINITE. */
int cairn_min_cut_arc(struct cairn_min_cut *c, int32_t from, int32_t to, int64_t capacity);
/* Finds a minimum cut; called once, after all arcs. *capacity may be NULL. */
int cairn_min_cut_solve(struct cairn_min_cut *c, int32_t source, int32_t sink, int64_t *capacity);
/*
 * Sets on_source_side[node], [num_nodes], to 1 or 0. There may be several minimum cuts; the result is the one
 * with the largest source side, which contains the source sides of all others.
 */
void cairn_min_cut_side(const struct cairn_min_cut *c, uint8_t *on_source_side);
/*
 * Checks that the flow respects every capacity, that it is conserved in every node, and that the arcs across
 * the given cut have the capacity of the flow. Returns -EINVAL with a text if one of these does not hold.
 */
int cairn_min_cut_verify(const struct cairn_min_cut *c, const uint8_t *on_source_side);

#endif
