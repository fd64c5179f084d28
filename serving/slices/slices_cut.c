// SPDX-License-Identifier: Apache-2.0
/* slices_cut - finds the minimum cut of a graph at one attention operator (slices.h) */
#include "serving/slices/slices_impl.h"

#include <stdlib.h>

#include "primitives/base/error.h"
#include "serving/slices/min_cut.h"

/* A cut of fewer bytes is better, however many values it has; 2^16 values together count as one byte. */
#define BYTE		((int64_t)1 << 16)

int cairn_seam_find(struct cairn_seam *seam, const struct cairn_op_graph *g, int32_t index)
{
	const struct cairn_graph_op *attn = &g->ops[g->attn[index]], *append;

	*seam = (struct cairn_seam){ .attn = g->attn[index], .append = -1 };
	for (int32_t i = 0; i < attn->num_in; i++)
		if (g->values[attn->in[i]].kind == CAIRN_VALUE_CACHE)
			seam->append = g->values[attn->in[i]].producer;
	if (seam->append < 0)
		return cairn_error(EINVAL, "slices: '%s' reads no cache that the pass appends to",
				   attn->name);
	append = &g->ops[seam->append];
	/* MLA_APPEND also rotates the queries, so it reads them instead of the attention operator. */
	seam->q = append->kind == CAIRN_OP_MLA_APPEND ? append->in[0] : attn->in[0];
	seam->kv = append->in[append->kind == CAIRN_OP_MLA_APPEND];
	for (int32_t i = 0; i < append->num_out; i++) {
		const struct cairn_graph_value *v = &g->values[append->out[i]];

		for (int32_t k = 0; k < v->num_consumers; k++)
			if (g->consumers[v->first_consumer + k] != seam->attn)
				return cairn_error(EINVAL, "slices: '%s' reads '%s', which '%s' writes on "
						   "the attention worker",
						   g->ops[g->consumers[v->first_consumer + k]].name, v->name,
						   append->name);
	}
	return 0;
}

/* An operation before the cut has the producers of its inputs before the cut, too. */
static int add_reader(struct cairn_min_cut *c, const struct cairn_op_graph *g, int32_t op, int32_t value,
		      int sent)
{
	int32_t producer = g->values[value].producer;

	if (producer < 0)
		return 0;
	CAIRN_TRY(cairn_min_cut_arc(c, op, producer, CAIRN_MIN_CUT_INFINITE));
	return sent ? 0 : cairn_min_cut_arc(c, g->num_ops + value, op, CAIRN_MIN_CUT_INFINITE);
}

/* The other readers of a value must not be after the operation that overwrites it. */
static int add_overwriter(struct cairn_min_cut *c, const struct cairn_op_graph *g, int32_t op, int32_t value)
{
	const struct cairn_graph_value *v = &g->values[value];

	for (int32_t i = 0; i < v->num_consumers; i++) {
		int32_t reader = g->consumers[v->first_consumer + i];

		if (reader != op)
			CAIRN_TRY(cairn_min_cut_arc(c, op, reader, CAIRN_MIN_CUT_INFINITE));
	}
	return 0;
}

static int add_op(struct cairn_min_cut *c, const struct cairn_op_graph *g, const struct cairn_seam *seam,
		  int32_t op, const struct cairn_pass_sizes *sizes)
{
	const struct cairn_graph_op *o = &g->ops[op];

	if (o->forwards)
		CAIRN_TRY(add_overwriter(c, g, op, o->in[0]));
	for (int32_t i = 0; i < o->num_in; i++)
		CAIRN_TRY(add_reader(c, g, op, o->in[i], cairn_seam_has(seam, op)));
	for (int32_t i = 0; i < o->num_out; i++) {
		int64_t bytes = cairn_value_bytes(&g->values[o->out[i]], sizes);

		if (bytes >= CAIRN_MIN_CUT_INFINITE / BYTE)
			return cairn_error(EINVAL, "slices: value '%s' has %lld bytes",
					   g->values[o->out[i]].name, (long long)bytes);
		CAIRN_TRY(cairn_min_cut_arc(c, op, g->num_ops + o->out[i], bytes * BYTE + 1));
		if (o->overwrites[i])
			CAIRN_TRY(add_overwriter(c, g, op, o->in[o->overwrites[i] - 1]));
	}
	return 0;
}

static int add_ends(struct cairn_min_cut *c, const struct cairn_op_graph *g, const struct cairn_seam *seams,
		    int32_t at, int32_t source, int32_t sink)
{
	const int32_t sent[] = { g->values[seams[at].q].producer, g->values[seams[at].kv].producer };

	for (int i = 0; i < 2; i++)
		if (sent[i] >= 0)
			CAIRN_TRY(cairn_min_cut_arc(c, source, sent[i], CAIRN_MIN_CUT_INFINITE));
	for (int32_t i = 0; i < g->num_attn; i++) {
		const int32_t ops[] = { seams[i].attn, seams[i].append };

		for (int k = 0; k < 2; k++)
			CAIRN_TRY(cairn_min_cut_arc(c, i < at ? source : ops[k], i < at ? ops[k] : sink,
						    CAIRN_MIN_CUT_INFINITE));
	}
	return 0;
}

static int solve(struct cairn_min_cut *c, const struct cairn_op_graph *g, const struct cairn_seam *seams,
		 int32_t at, const struct cairn_pass_sizes *sizes, uint8_t *before)
{
	int32_t source = g->num_ops + g->num_values, sink = source + 1;

	for (int32_t o = 0; o < g->num_ops; o++)
		CAIRN_TRY(add_op(c, g, &seams[at], o, sizes));
	CAIRN_TRY(add_ends(c, g, seams, at, source, sink));
	if (cairn_min_cut_solve(c, source, sink, NULL))
		return cairn_error(EINVAL, "slices: '%s' cannot be cut: what it reads depends on a later "
				   "attention operator", g->ops[seams[at].attn].name);
	cairn_min_cut_side(c, before);
	return cairn_min_cut_verify(c, before);
}

int cairn_slices_cut(uint8_t *after, const struct cairn_op_graph *g, const struct cairn_seam *seams,
		     int32_t at, const struct cairn_pass_sizes *sizes)
{
	int32_t num_nodes = g->num_ops + g->num_values + 2;
	uint8_t *before = malloc((size_t)num_nodes);
	struct cairn_min_cut *c = NULL;
	int ret = before ? cairn_min_cut_create(&c, num_nodes) : cairn_error(ENOMEM, "slices: no memory");

	if (!ret)
		ret = solve(c, g, seams, at, sizes, before);
	for (int32_t o = 0; o < g->num_ops && !ret; o++)
		after[o] = !before[o];
	cairn_min_cut_destroy(c);
	free(before);
	return ret;
}

int cairn_slices_saves(const struct cairn_op_graph *g, const struct cairn_seam *seam, int32_t value,
		       const uint8_t *after)
{
	const struct cairn_graph_value *v = &g->values[value];

	if (v->producer < 0 || after[v->producer])
		return 0;
	for (int32_t i = 0; i < v->num_consumers; i++) {
		int32_t reader = g->consumers[v->first_consumer + i];

		if (after[reader] && !cairn_seam_has(seam, reader))
			return 1;
	}
	return 0;
}
