// SPDX-License-Identifier: Apache-2.0
/*
 * op_graph_finish - checks a graph and completes it: producers, consumers, storage, lifetimes
 *
 * A value has at most one producer, so producers are found in one walk over the operations. Consumers are
 * counted in a first walk and listed in a second one.
 */
#include "serving/graph/op_graph.h"

#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"

#define REFUSE(fmt, ...)	cairn_error(EINVAL, "op_graph: " fmt, __VA_ARGS__)

/* Number of values and weights that each kind takes; their order is that of op_graph.h. */
static const struct {
	int8_t num_in, num_out, least_weights, most_weights, more_out;
} arity[CAIRN_NUM_OP_KINDS] = {
	[CAIRN_OP_EMBEDDING] = { 1, 1, 1, 1 },
	[CAIRN_OP_NORM] = { 1, 1, 1, 1 },
	[CAIRN_OP_ADD_NORM] = { 2, 2, 1, 1 },
	[CAIRN_OP_GEMM] = { 1, 1, 1, 2 },
	[CAIRN_OP_LM_HEAD] = { 1, 1, 1, 2 },
	[CAIRN_OP_ROPE] = { 2, 1, 0, 2 },
	[CAIRN_OP_KV_APPEND] = { 3, 1, 0, 0 },
	[CAIRN_OP_ATTN] = { 3, 1, 0, 1, 1 },
	[CAIRN_OP_SILU_MUL] = { 1, 1, 0, 0 },
	[CAIRN_OP_GELU_MUL] = { 1, 1, 0, 0 },
	[CAIRN_OP_MOE] = { 1, 1, 4, 7 },
	[CAIRN_OP_MLA_APPEND] = { 5, 2, 1, 1 },
	[CAIRN_OP_MLA] = { 3, 1, 1, 1 },
	[CAIRN_OP_PICK_ROWS] = { 2, 1, 0, 0 },
	[CAIRN_OP_SOFTCAP] = { 1, 1, 0, 0 },
	[CAIRN_OP_GATHER] = { 1, 1, 0, 0 },
};

static int check_ids(const struct cairn_op_graph *g, const struct cairn_graph_op *op, const int32_t *ids,
		     int32_t num, const char *what)
{
	for (int32_t i = 0; i < num; i++)
		if (ids[i] < 0 || ids[i] >= g->num_values)
			return REFUSE("'%s': %s %d is value number %d, which is unknown",
					   op->name, what, i, ids[i]);
	return 0;
}

/* Checks that out[i] can take the storage of in[overwrites[i] - 1]: both need the same role and shape. */
static int check_overwrite(const struct cairn_op_graph *g, const struct cairn_graph_op *op, int32_t i)
{
	const struct cairn_graph_value *out = &g->values[op->out[i]], *in;

	if (!op->overwrites[i])
		return 0;
	if (op->overwrites[i] < 0 || op->overwrites[i] > op->num_in)
		return REFUSE("'%s' stores value '%s' in place of input %d, which is unknown",
				   op->name, out->name, op->overwrites[i] - 1);
	in = &g->values[op->in[op->overwrites[i] - 1]];
	if (in->kind == CAIRN_VALUE_INPUT)
		return REFUSE("'%s' overwrites value '%s', an input of the pass", op->name,
				   in->name);
	if (in->role != out->role || memcmp(&in->shape, &out->shape, sizeof(in->shape)))
		return REFUSE("'%s': value '%s' does not have the shape of '%s', "
				   "in whose storage it lies", op->name, out->name, in->name);
	return 0;
}

static int check_op(const struct cairn_op_graph *g, const struct cairn_graph_op *op)
{
	if (op->kind < 0 || op->kind >= CAIRN_NUM_OP_KINDS)
		return REFUSE("'%s' has the unknown kind %d", op->name, (int)op->kind);
	if (op->num_in != arity[op->kind].num_in || op->num_out < arity[op->kind].num_out ||
	    op->num_out > arity[op->kind].num_out + arity[op->kind].more_out ||
	    op->num_weights < arity[op->kind].least_weights ||
	    op->num_weights > arity[op->kind].most_weights)
		return REFUSE("'%s': %s does not take %d values and %d weights to make %d",
				   op->name, cairn_op_kind_name(op->kind), op->num_in, op->num_weights,
				   op->num_out);
	CAIRN_TRY(check_ids(g, op, op->in, op->num_in, "input"));
	CAIRN_TRY(check_ids(g, op, op->out, op->num_out, "output"));
	CAIRN_TRY(check_ids(g, op, op->weights, op->num_weights, "weight"));
	for (int32_t i = 0; i < op->num_in; i++)
		if (g->values[op->in[i]].kind == CAIRN_VALUE_WEIGHT)
			return REFUSE("'%s' reads the weight '%s' as a value", op->name,
					   g->values[op->in[i]].name);
	for (int32_t i = 0; i < op->num_weights; i++)
		if (g->values[op->weights[i]].kind != CAIRN_VALUE_WEIGHT)
			return REFUSE("'%s' reads value '%s' as a weight", op->name,
					   g->values[op->weights[i]].name);
	for (int32_t i = 0; i < op->num_out; i++) {
		const struct cairn_graph_value *v = &g->values[op->out[i]];

		if (v->kind == CAIRN_VALUE_WEIGHT || v->kind == CAIRN_VALUE_INPUT)
			return REFUSE("'%s' writes value '%s', which is %s", op->name,
					   v->name, cairn_value_kind_name(v->kind));
		CAIRN_TRY(check_overwrite(g, op, i));
	}
	return 0;
}

static int find_producers(struct cairn_op_graph *g)
{
	for (int32_t v = 0; v < g->num_values; v++)
		g->values[v].producer = -1;
	for (int32_t o = 0; o < g->num_ops; o++) {
		CAIRN_TRY(check_op(g, &g->ops[o]));
		for (int32_t i = 0; i < g->ops[o].num_out; i++) {
			struct cairn_graph_value *v = &g->values[g->ops[o].out[i]];

			if (v->producer >= 0)
				return REFUSE("value '%s' is defined twice, by '%s' "
						   "and by '%s'", v->name, g->ops[v->producer].name,
						   g->ops[o].name);
			v->producer = o;
		}
	}
	return 0;
}

/* Adds operation o to the consumers of n values, once each; list 0: only counts them. */
static void add_consumers(struct cairn_op_graph *g, int32_t o, const int32_t *ids, int32_t n, int list)
{
	for (int32_t i = 0; i < n; i++) {
		struct cairn_graph_value *v = &g->values[ids[i]];

		if (v->last_use == o)
			continue;
		v->last_use = o;
		if (list)
			g->consumers[v->first_consumer + v->num_consumers] = o;
		v->num_consumers++;
	}
}

static int32_t walk_consumers(struct cairn_op_graph *g, int list)
{
	int32_t total = 0;

	for (int32_t v = 0; v < g->num_values; v++) {
		g->values[v].first_consumer = total;
		total += list ? g->values[v].num_consumers : 0;
		g->values[v].num_consumers = 0;
		g->values[v].last_use = -1;
	}
	for (int32_t o = 0; o < g->num_ops; o++) {
		add_consumers(g, o, g->ops[o].in, g->ops[o].num_in, list);
		add_consumers(g, o, g->ops[o].weights, g->ops[o].num_weights, list);
	}
	total = 0;
	for (int32_t v = 0; v < g->num_values; v++) {
		struct cairn_graph_value *value = &g->values[v];

		total += value->num_consumers;
		value->last_use = value->producer > value->last_use ? value->producer : value->last_use;
	}
	return total;
}

static int find_consumers(struct cairn_op_graph *g)
{
	int32_t total = walk_consumers(g, 0);

	g->consumers = calloc((size_t)total + 1, sizeof(*g->consumers));
	if (!g->consumers)
		return cairn_error(ENOMEM, "op_graph: no memory");
	walk_consumers(g, 1);
	return 0;
}

/* Checks that every value is written if it has to be, and read if it can be. */
static int check_uses(const struct cairn_op_graph *g)
{
	for (int32_t i = 0; i < g->num_values; i++) {
		const struct cairn_graph_value *v = &g->values[i];
		int written = v->kind == CAIRN_VALUE_ACTIVATION || v->kind == CAIRN_VALUE_SCRATCH ||
			      v->kind == CAIRN_VALUE_OUTPUT;

		if (written && v->producer < 0)
			return v->num_consumers ?
				REFUSE("value '%s', which '%s' reads, is not defined",
					    v->name, g->ops[g->consumers[v->first_consumer]].name) :
				REFUSE("value '%s' is not defined", v->name);
		if (v->kind == CAIRN_VALUE_SCRATCH && v->num_consumers)
			return REFUSE("'%s' reads value '%s', which is scratch",
					   g->ops[g->consumers[v->first_consumer]].name, v->name);
		if (v->kind != CAIRN_VALUE_SCRATCH && v->kind != CAIRN_VALUE_OUTPUT && !v->num_consumers)
			return REFUSE("nothing reads value '%s'", v->name);
	}
	return 0;
}

/* Checks that no operation reads the value after operation o has overwritten it. at: as in check_places(). */
static int check_overwritten(const struct cairn_op_graph *g, const int32_t *at, int32_t o, int32_t value)
{
	const struct cairn_graph_value *v = &g->values[value];

	for (int32_t i = 0; i < v->num_consumers; i++) {
		int32_t reader = g->consumers[v->first_consumer + i];

		if (at[reader] > at[o])
			return REFUSE("value '%s' is overwritten by '%s' before '%s' reads it",
					   v->name, g->ops[o].name, g->ops[reader].name);
	}
	return 0;
}

/* Checks an order by its positions: operation o is number at[o]. */
static int check_places(const struct cairn_op_graph *g, const int32_t *at)
{
	for (int32_t o = 0; o < g->num_ops; o++) {
		const struct cairn_graph_op *op = &g->ops[o];

		for (int32_t i = 0; i < op->num_in; i++) {
			const struct cairn_graph_value *v = &g->values[op->in[i]];

			if (v->producer >= 0 && at[v->producer] >= at[o])
				return REFUSE("value '%s' is used by '%s' before '%s' "
						   "defines it", v->name, op->name, g->ops[v->producer].name);
		}
		for (int32_t i = 0; i < op->num_out; i++)
			if (op->overwrites[i])
				CAIRN_TRY(check_overwritten(g, at, o, op->in[op->overwrites[i] - 1]));
		if (op->forwards)
			CAIRN_TRY(check_overwritten(g, at, o, op->in[0]));
	}
	return 0;
}

int cairn_op_graph_check_order(const struct cairn_op_graph *g, const int32_t *order)
{
	int32_t *at = malloc(((size_t)g->num_ops + 1) * sizeof(*at));
	int ret = 0;

	if (!at)
		return cairn_error(ENOMEM, "op_graph: no memory");
	memset(at, 0xff, (size_t)g->num_ops * sizeof(*at));
	for (int32_t i = 0; i < g->num_ops && !ret; i++) {
		if (order[i] < 0 || order[i] >= g->num_ops || at[order[i]] >= 0)
			ret = REFUSE("order[%d] is %d: no operation, or one named before",
					  i, order[i]);
		else
			at[order[i]] = i;
	}
	if (!ret)
		ret = check_places(g, at);
	free(at);
	return ret;
}

/*
 * Refuses cycles, whatever the order of the operations: repeatedly marks operations whose inputs are all
 * available. If some can never be marked, each of them has a missing input that is part of a cycle or depends
 * on one; following missing inputs back to their producers leads into the cycle.
 */
static int check_cycles(const struct cairn_op_graph *g)
{
	uint8_t *done = calloc((size_t)g->num_ops + 1, 1);
	int32_t left = g->num_ops, before = left + 1, stuck = -1, missing = -1;

	if (!done)
		return cairn_error(ENOMEM, "op_graph: no memory");
	while (left && left < before) {
		before = left;
		for (int32_t o = 0; o < g->num_ops; o++) {
			int ready = !done[o];

			for (int32_t i = 0; i < g->ops[o].num_in && ready; i++) {
				int32_t producer = g->values[g->ops[o].in[i]].producer;

				ready = producer < 0 || done[producer];
			}
			stuck = done[o] || ready ? stuck : o;
			done[o] |= (uint8_t)ready;
			left -= ready;
		}
	}
	for (int32_t steps = 0; left && steps <= g->num_ops; steps++) {
		for (int32_t i = 0; i < g->ops[stuck].num_in; i++) {
			int32_t producer = g->values[g->ops[stuck].in[i]].producer;

			if (producer >= 0 && !done[producer]) {
				missing = g->ops[stuck].in[i];
				stuck = producer;
				break;
			}
		}
	}
	free(done);
	if (left)
		return REFUSE("value '%s' is part of a cycle: '%s' needs it to define it",
				   g->values[missing].name, g->ops[g->values[missing].producer].name);
	return 0;
}

static int check_list_order(const struct cairn_op_graph *g)
{
	int32_t *order = malloc(((size_t)g->num_ops + 1) * sizeof(*order));
	int ret;

	if (!order)
		return cairn_error(ENOMEM, "op_graph: no memory");
	for (int32_t o = 0; o < g->num_ops; o++)
		order[o] = o;
	ret = cairn_op_graph_check_order(g, order);
	free(order);
	return ret;
}

static void find_storage(struct cairn_op_graph *g)
{
	struct cairn_graph_value *values = g->values;

	for (int32_t v = 0; v < g->num_values; v++)
		values[v].storage = v;
	for (int32_t o = 0; o < g->num_ops; o++)
		for (int32_t i = 0; i < g->ops[o].num_out; i++)
			if (g->ops[o].overwrites[i])
				values[g->ops[o].out[i]].storage =
					values[g->ops[o].in[g->ops[o].overwrites[i] - 1]].storage;
	for (int32_t v = 0; v < g->num_values; v++)
		values[v].storage_last = values[v].last_use;
	for (int32_t v = 0; v < g->num_values; v++) {
		struct cairn_graph_value *start = &values[values[v].storage];

		if (values[v].last_use > start->storage_last)
			start->storage_last = values[v].last_use;
	}
	/* Backwards, because an operation's forwarded output may itself be forwarded again. */
	for (int32_t o = g->num_ops - 1; o >= 0; o--) {
		struct cairn_graph_value *from, *to;

		if (!g->ops[o].forwards)
			continue;
		from = &values[values[g->ops[o].in[0]].storage];
		to = &values[values[g->ops[o].out[0]].storage];
		if (to->storage_last > from->storage_last)
			from->storage_last = to->storage_last;
	}
}

static int list_attn(struct cairn_op_graph *g)
{
	g->attn = calloc((size_t)g->num_ops + 1, sizeof(*g->attn));
	if (!g->attn)
		return cairn_error(ENOMEM, "op_graph: no memory");
	g->num_attn = 0;
	for (int32_t o = 0; o < g->num_ops; o++)
		if (g->ops[o].kind == CAIRN_OP_ATTN || g->ops[o].kind == CAIRN_OP_MLA)
			g->attn[g->num_attn++] = o;
	return 0;
}

int cairn_op_graph_finish(struct cairn_op_graph *g)
{
	if (g->error)
		return g->error;
	if (g->consumers)
		return cairn_error(EINVAL, "op_graph: is finished already");
	CAIRN_TRY(find_producers(g));
	CAIRN_TRY(find_consumers(g));
	CAIRN_TRY(check_uses(g));
	CAIRN_TRY(check_cycles(g));
	CAIRN_TRY(check_list_order(g));
	find_storage(g);
	return list_attn(g);
}
