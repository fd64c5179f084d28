// SPDX-License-Identifier: Apache-2.0
/* buffers - places activations by their lifetimes (buffers.h) */
#include "serving/graph/buffers.h"

#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"

/* The storage of an in-place chain. */
struct block {
	int32_t value;			/* first value of the chain */
	const struct cairn_life *lives;		/* one for each part */
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
		       const struct cairn_pass_sizes *s, const struct cairn_life *lives, int32_t num_parts,
		       const uint8_t *chosen)
{
	int32_t num = 0;

	for (int32_t v = 0; v < g->num_values; v++)
		outside[g->values[v].storage] |= g->values[v].kind != CAIRN_VALUE_ACTIVATION &&
						 g->values[v].kind != CAIRN_VALUE_SCRATCH;
	for (int32_t v = 0; v < g->num_values; v++) {
		int64_t bytes;

		if (outside[v] || g->values[v].storage != v || (chosen && !chosen[v]))
			continue;
		bytes = cairn_value_bytes(&g->values[v], s) + CAIRN_BUFFER_ALIGNMENT - 1;
		blocks[num++] = (struct block){
			.value = v, .lives = lives + (int64_t)v * num_parts,
			.bytes = bytes - bytes % CAIRN_BUFFER_ALIGNMENT,
		};
	}
	return num;
}

static int ends_before(const struct cairn_life *a, const struct cairn_life *b)
{
	for (int i = 0; i < CAIRN_BUFFER_LANES; i++)
		if (a->end[i] > b->begin[i])
			return 0;
	return 1;
}

static int may_share(const struct block *a, const struct block *b, int32_t num_parts)
{
	for (int32_t i = 0; i < num_parts; i++)
		if (!ends_before(&a->lives[i], &b->lives[i]) && !ends_before(&b->lives[i], &a->lives[i]))
			return 0;
	return 1;
}

/*
 * Places *b in the lowest gap between the blocks whose lifetimes overlap its own, and inserts it into
 * placed[], which is in order of offset.
 */
static void place(struct block *placed, int32_t num, struct block *b, int32_t num_parts)
{
	int32_t at = num;

	b->offset = 0;
	for (int32_t i = 0; i < num; i++) {
		if (may_share(&placed[i], b, num_parts))
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

int cairn_buffers_place_lives(struct cairn_buffers *buffers, const struct cairn_op_graph *g,
			      const struct cairn_pass_sizes *s, const struct cairn_life *lives,
			      int32_t num_parts, const uint8_t *chosen)
{
	size_t values = (size_t)g->num_values + 1;
	struct block *blocks = calloc(2 * values, sizeof(*blocks)), *placed = blocks + values;
	int64_t *offset = malloc(values * sizeof(*offset));
	uint8_t *outside = calloc(values, 1);
	int32_t num;
	int ret = 0;

	if (!blocks || !offset || !outside) {
		free(offset);
		ret = cairn_error(ENOMEM, "buffers: no memory");
		goto out;
	}
	num = collect(blocks, outside, g, s, lives, num_parts, chosen);
	*buffers = (struct cairn_buffers){ .offset = offset };
	qsort(blocks, (size_t)num, sizeof(*blocks), by_size);
	memset(offset, 0xff, values * sizeof(*offset));
	for (int32_t i = 0; i < num; i++) {
		place(placed, i, &blocks[i], num_parts);
		offset[blocks[i].value] = blocks[i].offset;
		if (blocks[i].offset + blocks[i].bytes > buffers->bytes)
			buffers->bytes = blocks[i].offset + blocks[i].bytes;
	}
	for (int32_t v = 0; v < g->num_values; v++)
		offset[v] = offset[g->values[v].storage];
out:
	free(blocks);
	free(outside);
	return ret;
}

/* Returns the bytes in use during the busiest operation. change: [num_ops + 2], zeroed. */
static int64_t busiest(const struct cairn_buffers *b, const struct cairn_op_graph *g,
		       const struct cairn_pass_sizes *s, const struct cairn_life *lives, int64_t *change)
{
	int64_t now = 0, most = 0;

	for (int32_t v = 0; v < g->num_values; v++) {
		int64_t bytes = cairn_value_bytes(&g->values[v], s) + CAIRN_BUFFER_ALIGNMENT - 1;

		if (b->offset[v] < 0 || g->values[v].storage != v)
			continue;
		bytes -= bytes % CAIRN_BUFFER_ALIGNMENT;
		change[lives[v].begin[0]] += bytes;
		change[lives[v].end[0]] -= bytes;
	}
	for (int32_t o = 0; o < g->num_ops; o++) {
		now += change[o];
		most = now > most ? now : most;
	}
	return most;
}

/*
 * A product may compute the activation after it, too (gemm_gated.h), and then writes its result while it
 * still reads its own inputs: these live as long as if they were the activation's.
 */
static void live_through_activation(struct cairn_life *lives, const struct cairn_op_graph *g)
{
	for (int32_t o = 0; o < g->num_ops; o++)
		for (int32_t i = 0; cairn_op_may_activate(g, o) && i < g->ops[o].num_in; i++) {
			struct cairn_life *life = &lives[g->values[g->ops[o].in[i]].storage];

			if (life->end[0] < o + 2)
				life->end[0] = o + 2;	/* the activation is operation o + 1 */
		}
}

int cairn_buffers_place(struct cairn_buffers *buffers, const struct cairn_op_graph *g,
			const struct cairn_pass_sizes *s)
{
	struct cairn_life *lives = calloc((size_t)g->num_values + 1, sizeof(*lives));
	int64_t *change = calloc((size_t)g->num_ops + 2, sizeof(*change));
	int ret;

	for (int32_t v = 0; lives && v < g->num_values; v++) {
		cairn_op_graph_lifetime(g, v, &lives[v].begin[0], &lives[v].end[0]);
		lives[v].end[0]++;
	}
	if (lives)
		live_through_activation(lives, g);
	ret = lives && change ? cairn_buffers_place_lives(buffers, g, s, lives, 1, NULL) :
	      cairn_error(ENOMEM, "buffers: no memory");
	if (!ret)
		buffers->least = busiest(buffers, g, s, lives, change);
	free(lives);
	free(change);
	return ret;
}

void cairn_buffers_free(struct cairn_buffers *buffers)
{
	free(buffers->offset);
	*buffers = (struct cairn_buffers){ 0 };
}
