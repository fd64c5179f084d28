// SPDX-License-Identifier: Apache-2.0
/* buffers - places activations by their lifetimes (buffers.h) */
#include "serving/graph/buffers.h"

#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"

/* The storage of an in-place chain. */
struct block {
	int32_t value, first, last;	/* first value of the chain; first and last operation */
	int64_t bytes, offset;
};

static int by_size(const void *a, const void *b)
{
	const struct block *x = a, *y = b;

	if (x->bytes != y->bytes)
		return x->bytes < y->bytes ? 1 : -1;
	return x->value < y->value ? -1 : 1;
}

/* Collects the storages that must be placed, still without offsets. Returns their number. */
static int32_t collect(struct block *blocks, uint8_t *outside, const struct cairn_op_graph *g,
		       const struct cairn_pass_sizes *s)
{
	int32_t num = 0;

	for (int32_t v = 0; v < g->num_values; v++)
		outside[g->values[v].storage] |= g->values[v].kind != CAIRN_VALUE_ACTIVATION &&
						 g->values[v].kind != CAIRN_VALUE_SCRATCH;
	for (int32_t v = 0; v < g->num_values; v++) {
		int64_t bytes;

		if (outside[v] || g->values[v].storage != v)
			continue;
		bytes = cairn_value_bytes(&g->values[v], s) + CAIRN_BUFFER_ALIGNMENT - 1;
		blocks[num] = (struct block){ .value = v, .bytes = bytes - bytes % CAIRN_BUFFER_ALIGNMENT };
		cairn_op_graph_lifetime(g, v, &blocks[num].first, &blocks[num].last);
		num++;
	}
	return num;
}

/*
 * Places *b in the lowest gap between the blocks whose lifetimes overlap its own, and inserts it into
 * placed[], which is in order of offset.
 */
static void place(struct block *placed, int32_t num, struct block *b)
{
	int32_t at = num;

	b->offset = 0;
	for (int32_t i = 0; i < num; i++) {
		if (placed[i].first > b->last || placed[i].last < b->first)
			continue;
		if (placed[i].offset - b->offset >= b->bytes)
			break;
		if (placed[i].offset + placed[i].bytes > b->offset)
			b->offset = placed[i].offset + placed[i].bytes;
	}
	for (; at > 0 && placed[at - 1].offset > b->offset; at--)
		placed[at] = placed[at - 1];
	placed[at] = *b;
}

static int64_t busiest(const struct block *blocks, int32_t num, int64_t *change, int32_t num_ops)
{
	int64_t now = 0, most = 0;

	for (int32_t i = 0; i < num; i++) {
		change[blocks[i].first] += blocks[i].bytes;
		change[blocks[i].last + 1] -= blocks[i].bytes;
	}
	for (int32_t o = 0; o < num_ops; o++) {
		now += change[o];
		most = now > most ? now : most;
	}
	return most;
}

int cairn_buffers_place(struct cairn_buffers *buffers, const struct cairn_op_graph *g,
			const struct cairn_pass_sizes *s)
{
	size_t values = (size_t)g->num_values + 1;
	struct block *blocks = calloc(2 * values, sizeof(*blocks)), *placed = blocks + values;
	int64_t *change = calloc((size_t)g->num_ops + 2, sizeof(*change));
	int64_t *offset = malloc(values * sizeof(*offset));
	uint8_t *outside = calloc(values, 1);
	int32_t num;
	int ret = 0;

	if (!blocks || !change || !offset || !outside) {
		free(offset);
		ret = cairn_error(ENOMEM, "buffers: no memory");
		goto out;
	}
	num = collect(blocks, outside, g, s);
	*buffers = (struct cairn_buffers){
		.offset = offset, .least = busiest(blocks, num, change, g->num_ops),
	};
	qsort(blocks, (size_t)num, sizeof(*blocks), by_size);
	memset(offset, 0xff, values * sizeof(*offset));
	for (int32_t i = 0; i < num; i++) {
		place(placed, i, &blocks[i]);
		offset[blocks[i].value] = blocks[i].offset;
		if (blocks[i].offset + blocks[i].bytes > buffers->bytes)
			buffers->bytes = blocks[i].offset + blocks[i].bytes;
	}
	for (int32_t v = 0; v < g->num_values; v++)
		offset[v] = offset[g->values[v].storage];
out:
	free(blocks);
	free(change);
	free(outside);
	return ret;
}

void cairn_buffers_free(struct cairn_buffers *buffers)
{
	free(buffers->offset);
	*buffers = (struct cairn_buffers){ 0 };
}
