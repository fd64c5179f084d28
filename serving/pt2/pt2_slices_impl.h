/* SPDX-License-Identifier: Apache-2.0 */
/* pt2_slices_impl - what the parts of the converter share */
#ifndef CAIRN_PT2_SLICES_IMPL_H
#define CAIRN_PT2_SLICES_IMPL_H

#include "serving/pt2/pt2_slices.h"

/* Facts about a program that do not depend on where it is cut. */
struct pt2_facts {
	const struct cairn_pt2 *p;
	const int64_t *symbols;
	int64_t *bytes;			/* [num_values] */
	uint8_t *is_free;		/* [num_nodes]: depends on no parameter and on no attention */
	uint8_t *is_far;		/* [num_nodes]: runs only at an attention worker */
	int32_t *attn;			/* the attention operators, in order */
	int32_t num_attn;
	int32_t *first_reader, *readers;	/* nodes that read value v: readers[first_reader[v] ...] */
};

int pt2_facts_create(struct pt2_facts *f, const struct cairn_pt2 *p, const int64_t *symbols);
void pt2_facts_free(struct pt2_facts *f);
/* Returns the node that computes the value, or -1 if each slice has it: it is given, or free. */
int32_t pt2_source(const struct pt2_facts *f, int32_t value);
/* Finds what attention operator number `index` is sent, and which nodes its worker runs. */
int pt2_seam_find(struct cairn_pt2_slices *s, struct pt2_facts *f, int32_t index);
/* Sets after[node] to 1 for each node after the cut at seam `at`, else to 0; free and far nodes get 0. */
int pt2_cut(uint8_t *after, const struct pt2_facts *f, const struct cairn_pt2_seam *seams, int32_t at);
/* Appends the program of slice `index`; slice_of: [num_nodes]. */
int pt2_program(struct cairn_pt2_slices *s, const struct pt2_facts *f, int32_t index,
		const int32_t *slice_of);
int pt2_add_step(struct cairn_pt2_slices *s, int32_t slice, enum cairn_step_kind kind, int32_t node);
/* Appends a node that the worker of seam s->seams[index] runs. */
int pt2_add_far(struct cairn_pt2_slices *s, int32_t index, int32_t node);

#endif
