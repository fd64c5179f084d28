// SPDX-License-Identifier: Apache-2.0
/* slices - cuts a forward pass at its attention operators (slices.h) */
#include "serving/slices/slices_impl.h"

#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"

void cairn_slices_destroy(struct cairn_slices *s)
{
	if (!s)
		return;
	free(s->slices);
	free(s->seams);
	free(s->steps);
	free(s->saves);
	free(s);
}

/* Doubles the room for values, so that one more cut of them all fits. */
static int more_saves(struct cairn_slices *s, const struct cairn_op_graph *g, int32_t *room)
{
	int32_t *saves;

	if (*room - s->num_saves >= g->num_values)
		return 0;
	*room = 2 * *room + g->num_values;
	saves = realloc(s->saves, (size_t)*room * sizeof(*saves));
	if (!saves)
		return cairn_error(ENOMEM, "slices: no memory");
	s->saves = saves;
	return 0;
}

/* Cuts the graph at each seam; slice_of[op] becomes the number of cuts before the operation. */
static int cut_all(struct cairn_slices *s, const struct cairn_op_graph *g,
		   const struct cairn_pass_sizes *sizes, int32_t *slice_of, uint8_t *after)
{
	int32_t room = 0;

	for (int32_t i = 0; i + 1 < s->num_slices; i++) {
		struct cairn_slice *slice = &s->slices[i];

		CAIRN_TRY(more_saves(s, g, &room));
		CAIRN_TRY(cairn_slices_cut(after, g, s->seams, i, sizes));
		slice->first_save = s->num_saves;
		for (int32_t v = 0; v < g->num_values; v++) {
			if (!cairn_slices_saves(g, &s->seams[i], v, after))
				continue;
			s->saves[s->num_saves++] = v;
			slice->num_saves++;
			slice->save_bytes += cairn_value_bytes(&g->values[v], sizes);
		}
		/* The cuts of a graph follow one another, as all of them have the latest possible place. */
		for (int32_t o = 0; o < g->num_ops; o++) {
			if (after[o] && slice_of[o] != i)
				return cairn_error(EINVAL, "slices: '%s' is after cut %d, but before cut %d",
						   g->ops[o].name, i, slice_of[o]);
			slice_of[o] += after[o];
		}
	}
	return 0;
}

static int make(struct cairn_slices *s, const struct cairn_op_graph *g, const struct cairn_pass_sizes *sizes)
{
	size_t ops = (size_t)g->num_ops, seams = (size_t)g->num_attn;
	int32_t *slice_of = calloc(ops, sizeof(*slice_of));
	uint8_t *after = malloc(ops);
	int ret = 0;

	s->num_slices = g->num_attn + 1;
	s->slices = calloc(seams + 1, sizeof(*s->slices));
	s->seams = calloc(seams + 1, sizeof(*s->seams));
	/* every operation at most twice, and three steps for each seam */
	s->steps = malloc((2 * ops + 3 * seams) * sizeof(*s->steps));
	if (!slice_of || !after || !s->slices || !s->seams || !s->steps)
		ret = cairn_error(ENOMEM, "slices: no memory");
	for (int32_t i = 0; i < g->num_attn && !ret; i++)
		ret = cairn_seam_find(&s->seams[i], g, i);
	if (!ret)
		ret = cut_all(s, g, sizes, slice_of, after);
	for (int32_t i = 0; i < s->num_slices && !ret; i++)
		ret = cairn_slices_program(s, g, i, slice_of);
	free(slice_of);
	free(after);
	return ret;
}

int cairn_slices_create(struct cairn_slices **out, const struct cairn_op_graph *g,
			const struct cairn_pass_sizes *sizes)
{
	struct cairn_slices *s = calloc(1, sizeof(*s));
	int ret = s ? make(s, g, sizes) : cairn_error(ENOMEM, "slices: no memory");

	if (!ret)
		ret = cairn_slices_check(s, g);
	if (ret)
		cairn_slices_destroy(s);
	else
		*out = s;
	return ret;
}
