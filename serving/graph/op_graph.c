// SPDX-License-Identifier: Apache-2.0
/* op_graph - declares values and operations, finds values by name, and answers queries on a finished graph */
#include "serving/graph/op_graph.h"

#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"

int cairn_op_graph_create(struct cairn_op_graph **out)
{
	struct cairn_op_graph *g = calloc(1, sizeof(*g));

	if (!g)
		return cairn_error(ENOMEM, "op_graph: no memory");
	*out = g;
	return 0;
}

void cairn_op_graph_destroy(struct cairn_op_graph *g)
{
	if (!g)
		return;
	free(g->values);
	free(g->ops);
	free(g->consumers);
	free(g->attn);
	free(g->table);
	free(g);
}

static int fail(struct cairn_op_graph *g, int ret)
{
	g->error = ret;
	return ret;
}

/* Makes room for one more element of `size` bytes in *array, which holds num and has room for *room. */
static int grow(void **array, int32_t num, int32_t *room, size_t size)
{
	int32_t more = *room ? 2 * *room : 64;
	void *p;

	if (num < *room)
		return 0;
	p = realloc(*array, (size_t)more * size);
	if (!p)
		return cairn_error(ENOMEM, "op_graph: no memory");
	*array = p;
	*room = more;
	return 0;
}

/* Returns the slot of a name in the hash table, or the free slot where the name belongs. */
static int32_t *slot_of(const struct cairn_op_graph *g, const char *name)
{
	uint32_t hash = 2166136261u;	/* FNV-1a */

	for (const char *c = name; *c; c++)
		hash = (hash ^ (uint8_t)*c) * 16777619u;
	for (uint32_t i = hash;; i++) {
		int32_t *slot = &g->table[i & (uint32_t)(g->table_size - 1)];

		if (!*slot || !strcmp(g->values[*slot - 1].name, name))
			return slot;
	}
}

/* Keeps at least half of the hash table free. */
static int grow_table(struct cairn_op_graph *g)
{
	int32_t size = g->table_size ? 2 * g->table_size : 128, *table;

	if (2 * (g->num_values + 1) <= g->table_size)
		return 0;
	table = calloc((size_t)size, sizeof(*table));
	if (!table)
		return cairn_error(ENOMEM, "op_graph: no memory");
	free(g->table);
	g->table = table;
	g->table_size = size;
	for (int32_t v = 0; v < g->num_values; v++)
		*slot_of(g, g->values[v].name) = v + 1;
	return 0;
}

static int check_value(const struct cairn_graph_value *v)
{
	const struct { const char *name; unsigned int value, end; } members[] = {
		{ "kind", v->kind, CAIRN_NUM_VALUE_KINDS }, { "role", v->role, CAIRN_NUM_ROLES },
		{ "shape.rows", v->shape.rows, CAIRN_NUM_ROWS },
		{ "shape.num", v->shape.num, CAIRN_NUM_DIMS },
		{ "shape.height", v->shape.height, CAIRN_NUM_DIMS },
		{ "shape.width", v->shape.width, CAIRN_NUM_DIMS },
		{ "weight", v->kind == CAIRN_VALUE_WEIGHT ? v->weight : 0, CAIRN_NUM_WEIGHTS },
	};

	for (size_t i = 0; i < sizeof(members) / sizeof(*members); i++)
		if (members[i].value >= members[i].end)
			return cairn_error(EINVAL, "op_graph: value '%s': %s: is %u, must be below %u",
					   v->name, members[i].name, members[i].value, members[i].end);
	if (v->layer < -1)
		return cairn_error(EINVAL, "op_graph: value '%s': layer: is %d", v->name, v->layer);
	return 0;
}

int32_t cairn_op_graph_value(struct cairn_op_graph *g, const struct cairn_graph_value *value)
{
	int32_t id = g->num_values, *slot;
	int ret;

	if (g->error)
		return g->error;
	ret = grow((void **)&g->values, id, &g->value_room, sizeof(*g->values));
	if (!ret)
		ret = grow_table(g);
	if (ret)
		return fail(g, ret);
	if (!value->name[0] || !memchr(value->name, 0, CAIRN_GRAPH_NAME))
		return fail(g, cairn_error(EINVAL, "op_graph: value %d has no name", id));
	ret = check_value(value);
	if (ret)
		return fail(g, ret);
	slot = slot_of(g, value->name);
	if (*slot)
		return fail(g, cairn_error(EINVAL, "op_graph: value '%s' is declared twice", value->name));
	g->values[id] = *value;
	*slot = ++g->num_values;
	return id;
}

int32_t cairn_op_graph_op(struct cairn_op_graph *g, const struct cairn_graph_op *op)
{
	int32_t id = g->num_ops;
	int ret;

	if (g->error)
		return g->error;
	ret = grow((void **)&g->ops, id, &g->op_room, sizeof(*g->ops));
	if (ret)
		return fail(g, ret);
	if (!op->name[0] || !memchr(op->name, 0, CAIRN_GRAPH_NAME))
		return fail(g, cairn_error(EINVAL, "op_graph: operation %d has no name", id));
	g->ops[g->num_ops++] = *op;
	return id;
}

int32_t cairn_op_graph_find(const struct cairn_op_graph *g, const char *name)
{
	const int32_t *slot = g->table_size ? slot_of(g, name) : NULL;

	if (!slot || !*slot)
		return cairn_error(EINVAL, "op_graph: unknown value '%s'", name);
	return *slot - 1;
}

void cairn_op_graph_reach(const struct cairn_op_graph *g, int32_t value, uint8_t *reached)
{
	const struct cairn_graph_value *v = &g->values[value];

	memset(reached, 0, (size_t)g->num_ops);
	for (int32_t i = 0; i < v->num_consumers; i++)
		reached[g->consumers[v->first_consumer + i]] = 1;
	/* Operations are in an order in which they can run, so one pass over them suffices. */
	for (int32_t o = 0; o < g->num_ops; o++) {
		for (int32_t i = 0; i < g->ops[o].num_in; i++) {
			int32_t producer = g->values[g->ops[o].in[i]].producer;

			reached[o] |= producer >= 0 && reached[producer];
		}
	}
}

void cairn_op_graph_lifetime(const struct cairn_op_graph *g, int32_t value, int32_t *first, int32_t *last)
{
	const struct cairn_graph_value *start = &g->values[g->values[value].storage];

	*first = start->producer;
	*last = start->storage_last;
}

int32_t cairn_op_weight(const struct cairn_op_graph *g, const struct cairn_graph_op *op,
			enum cairn_weight weight)
{
	for (int32_t i = 0; i < op->num_weights; i++)
		if (g->values[op->weights[i]].weight == weight)
			return op->weights[i];
	return -1;
}
