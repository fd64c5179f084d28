// SPDX-License-Identifier: Apache-2.0
/* slices_program - orders the operations of a slice so that messages leave as early as possible (slices.h) */
#include "serving/slices/slices_impl.h"

#include <stdlib.h>

#include "primitives/base/error.h"

struct program {
	struct cairn_slices *s;
	const struct cairn_op_graph *g;
	const int32_t *slice_of;
	int32_t index;
	uint8_t *done, *needed;		/* [num_ops] */
	int32_t *chain;			/* operations that write rows of q, k and v, in order */
	int32_t num_chain;
};

static void add_step(struct program *p, enum cairn_step_kind kind, enum cairn_step_part part, int32_t op)
{
	p->s->steps[p->s->num_steps++] = (struct cairn_slice_step){ kind, part, op };
	p->s->slices[p->index].num_steps++;
}

static void need_op(struct program *p, int32_t op)
{
	if (op >= 0 && p->slice_of[op] == p->index && !p->done[op])
		p->needed[op] = 1;
}

static void need_readers(struct program *p, int32_t op, int32_t value)
{
	const struct cairn_graph_value *v = &p->g->values[value];

	for (int32_t i = 0; i < v->num_consumers; i++)
		if (p->g->consumers[v->first_consumer + i] != op)
			need_op(p, p->g->consumers[v->first_consumer + i]);
}

/* Marks what must run before the operation: the producers of its inputs, and the other readers of what it
 * overwrites. */
static void need_before(struct program *p, int32_t op)
{
	const struct cairn_graph_op *o = &p->g->ops[op];

	for (int32_t i = 0; i < o->num_in; i++)
		need_op(p, p->g->values[o->in[i]].producer);
	for (int32_t i = 0; i < o->num_out; i++)
		if (o->overwrites[i])
			need_readers(p, op, o->in[o->overwrites[i] - 1]);
	if (o->forwards)
		need_readers(p, op, o->in[0]);
}

/* Runs what is marked and all that it needs, in the order of the graph. */
static void run_needed(struct program *p)
{
	for (int32_t o = p->g->num_ops - 1; o >= 0; o--)
		if (p->needed[o])
			need_before(p, o);
	for (int32_t o = 0; o < p->g->num_ops; o++) {
		if (!p->needed[o])
			continue;
		add_step(p, CAIRN_STEP_OP, CAIRN_PART_ALL, o);
		p->done[o] = 1;
		p->needed[o] = 0;
	}
}

static void run_for(struct program *p, int32_t value)
{
	need_op(p, p->g->values[value].producer);
	run_needed(p);
}

/* Whether the operation writes rows of q, k and v, and can write each of them by itself. */
static int writes_parts(const struct program *p, int32_t op)
{
	const struct cairn_graph_op *o = &p->g->ops[op];

	return (o->kind == CAIRN_OP_GEMM || o->kind == CAIRN_OP_ROPE) && p->slice_of[op] == p->index &&
	       !p->done[op] && p->g->values[o->out[0]].shape.width == CAIRN_D_QKV;
}

/* Finds the operations that write the rows that are sent: rotations, and the product before them. */
static void find_chain(struct program *p, const struct cairn_seam *seam)
{
	int32_t value = seam->q;

	p->num_chain = 0;
	while (p->g->values[value].producer >= 0) {
		const struct cairn_graph_value *v = &p->g->values[value];
		int others = p->num_chain && p->g->ops[p->chain[p->num_chain - 1]].in[1] == value;

		for (int32_t i = 0; i < v->num_consumers; i++) {
			int32_t reader = p->g->consumers[v->first_consumer + i];

			others += !cairn_seam_has(seam, reader) &&
				  (!p->num_chain || reader != p->chain[p->num_chain - 1]);
		}
		if (others || !writes_parts(p, v->producer))
			break;
		p->chain[p->num_chain++] = v->producer;
		if (p->g->ops[v->producer].kind == CAIRN_OP_GEMM)
			break;
		value = p->g->ops[v->producer].in[0];
	}
}

static void run_part(struct program *p, enum cairn_step_part part)
{
	for (int32_t i = p->num_chain - 1; i >= 0; i--) {
		add_step(p, CAIRN_STEP_OP, part, p->chain[i]);
		p->done[p->chain[i]] = 1;
	}
}

static void send(struct program *p, const struct cairn_seam *seam)
{
	p->num_chain = 0;
	if (seam->q == seam->kv)
		find_chain(p, seam);
	if (p->num_chain) {
		for (int32_t i = 0; i < p->num_chain; i++)
			need_before(p, p->chain[i]);
		for (int32_t i = 0; i < p->num_chain; i++)
			p->needed[p->chain[i]] = 0;
		run_needed(p);
		run_part(p, CAIRN_PART_Q);
	} else {
		run_for(p, seam->q);
	}
	add_step(p, CAIRN_STEP_SEND_Q, CAIRN_PART_ALL, seam->attn);
	if (p->num_chain)
		run_part(p, CAIRN_PART_KV);
	else
		run_for(p, seam->kv);
	add_step(p, CAIRN_STEP_SEND_KV, CAIRN_PART_ALL, seam->attn);
}

int cairn_slices_program(struct cairn_slices *s, const struct cairn_op_graph *g, int32_t index,
			 const int32_t *slice_of)
{
	struct program p = { .s = s, .g = g, .slice_of = slice_of, .index = index };

	p.done = calloc(2 * (size_t)g->num_ops, 1);
	p.chain = malloc((size_t)g->num_ops * sizeof(*p.chain));
	if (!p.done || !p.chain) {
		free(p.done);
		free(p.chain);
		return cairn_error(ENOMEM, "slices: no memory");
	}
	p.needed = p.done + g->num_ops;
	for (int32_t i = 0; i < g->num_attn; i++)
		p.done[s->seams[i].attn] = p.done[s->seams[i].append] = 1;
	s->slices[index].first_step = s->num_steps;
	if (index > 0)
		add_step(&p, CAIRN_STEP_MERGE, CAIRN_PART_ALL, s->seams[index - 1].attn);
	if (index + 1 < s->num_slices)
		send(&p, &s->seams[index]);
	for (int32_t o = 0; o < g->num_ops; o++)
		need_op(&p, o);
	run_needed(&p);
	free(p.done);
	free(p.chain);
	return 0;
}
