// SPDX-License-Identifier: Apache-2.0
/* pt2_program - orders the nodes of a slice so that messages leave as early as possible (pt2_slices.h) */
#include "serving/pt2/pt2_slices_impl.h"

#include <stdlib.h>

#include "primitives/base/error.h"

struct program {
	struct cairn_pt2_slices *s;
	const struct pt2_facts *f;
	const int32_t *slice_of;
	int32_t index;
	uint8_t *done, *needed;		/* [num_nodes] */
};

/* Free nodes belong to every slice. */
static void need(struct program *p, int32_t node)
{
	if (node >= 0 && !p->done[node] && !p->f->is_far[node] &&
	    (p->f->is_free[node] || p->slice_of[node] == p->index))
		p->needed[node] = 1;
}

/* Runs what is marked and all that it needs, in the order of the program. */
static int run_needed(struct program *p)
{
	const struct cairn_pt2 *g = p->f->p;

	for (int32_t n = g->num_nodes - 1; n >= 0; n--)
		for (int32_t i = 0; p->needed[n] && i < g->nodes[n].num_in; i++)
			need(p, g->values[g->ids[g->nodes[n].first_in + i]].producer);
	for (int32_t n = 0; n < g->num_nodes; n++) {
		if (!p->needed[n])
			continue;
		CAIRN_TRY(pt2_add_step(p->s, p->index, CAIRN_STEP_OP, n));
		p->done[n] = 1;
		p->needed[n] = 0;
	}
	return 0;
}

static int run_for(struct program *p, int32_t value)
{
	need(p, p->f->p->values[value].producer);
	return run_needed(p);
}

static int send(struct program *p, const struct cairn_pt2_seam *seam)
{
	CAIRN_TRY(run_for(p, seam->q));
	CAIRN_TRY(pt2_add_step(p->s, p->index, CAIRN_STEP_SEND_Q, seam->attn));
	CAIRN_TRY(run_for(p, seam->k));
	CAIRN_TRY(run_for(p, seam->v));
	return pt2_add_step(p->s, p->index, CAIRN_STEP_SEND_KV, seam->attn);
}

static int make(struct program *p)
{
	const struct cairn_pt2 *g = p->f->p;

	for (int32_t i = 0; i < p->f->num_attn; i++)
		p->done[p->f->attn[i]] = 1;
	if (p->index > 0)
		CAIRN_TRY(pt2_add_step(p->s, p->index, CAIRN_STEP_MERGE, p->s->seams[p->index - 1].attn));
	if (p->index + 1 < p->s->num_slices)
		CAIRN_TRY(send(p, &p->s->seams[p->index]));
	for (int32_t n = 0; n < g->num_nodes; n++)
		if (!p->f->is_free[n])
			need(p, n);
	/* an output that depends on no parameter */
	for (int32_t i = 0; i < g->num_outputs && p->index + 1 == p->s->num_slices; i++)
		if (pt2_source(p->f, g->outputs[i]) < 0)
			need(p, g->values[g->outputs[i]].producer);
	return run_needed(p);
}

int pt2_program(struct cairn_pt2_slices *s, const struct pt2_facts *f, int32_t index,
		const int32_t *slice_of)
{
	struct program p = { .s = s, .f = f, .slice_of = slice_of, .index = index };
	int ret;

	p.done = calloc((size_t)f->p->num_nodes + 1, 2);
	if (!p.done)
		return cairn_error(ENOMEM, "pt2: no memory");
	p.needed = p.done + f->p->num_nodes;
	s->slices[index].first_step = s->num_steps;
	ret = make(&p);
	free(p.done);
	return ret;
}
