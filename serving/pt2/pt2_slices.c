// SPDX-License-Identifier: Apache-2.0
/* pt2_slices - cuts an exported program at its attention operators, and checks the slices (pt2_slices.h) */
#include "serving/pt2/pt2_slices_impl.h"

#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/base/json.h"

#define LARGE	4096		/* of a symbol without a lower limit */

void cairn_pt2_symbols(const struct cairn_pt2 *p, int64_t *symbols)
{
	for (int32_t i = 0; i < p->exprs.num_symbols; i++) {
		const struct cairn_pt2_symbol *s = &p->exprs.symbols[i];

		symbols[i] = s->hint ? s->hint : s->least < 2 && s->most >= 2 ? 2 : s->least;
	}
}

void cairn_pt2_slices_destroy(struct cairn_pt2_slices *s)
{
	if (!s)
		return;
	free(s->slices);
	free(s->seams);
	free(s->steps);
	free(s->saves);
	free(s->far);
	free(s);
}

/* Makes room for one more element; doubles the room. */
static int grow(void **list, int32_t num, int32_t *room, size_t bytes)
{
	void *more;

	if (num < *room)
		return 0;
	more = realloc(*list, 2 * ((size_t)*room + 8) * bytes);
	if (!more)
		return cairn_error(ENOMEM, "pt2: no memory");
	*list = more;
	*room = 2 * (*room + 8);
	return 0;
}

int pt2_add_step(struct cairn_pt2_slices *s, int32_t slice, enum cairn_step_kind kind, int32_t node)
{
	void *list = s->steps;

	CAIRN_TRY(grow(&list, s->num_steps, &s->step_room, sizeof(*s->steps)));
	s->steps = list;
	s->steps[s->num_steps++] = (struct cairn_slice_step){ .kind = kind, .op = node };
	s->slices[slice].num_steps++;
	return 0;
}

int pt2_add_far(struct cairn_pt2_slices *s, int32_t index, int32_t node)
{
	void *list = s->far;

	CAIRN_TRY(grow(&list, s->num_far, &s->far_room, sizeof(*s->far)));
	s->far = list;
	s->far[s->num_far++] = node;
	s->seams[index].num_ops++;
	return 0;
}

/* Returns whether a node after the cut, other than the attention operator that is cut, reads the value. */
static int is_saved(const struct pt2_facts *f, const struct cairn_pt2_seam *seams, int32_t at, int32_t value,
		    const uint8_t *after)
{
	int32_t producer = pt2_source(f, value);

	if (producer < 0 || after[producer] || f->is_far[producer])
		return 0;
	for (int32_t i = f->first_reader[value]; i < f->first_reader[value + 1]; i++)
		if (after[f->readers[i]] && f->p->nodes[f->readers[i]].op->role != CAIRN_PT2_ATTENDS)
			return 1;
	for (int32_t i = at + 1; i < f->num_attn; i++)
		if (value == seams[i].q || value == seams[i].k || value == seams[i].v)
			return 1;
	return 0;
}

static int find_saves(struct cairn_pt2_slices *s, const struct pt2_facts *f, int32_t at, const uint8_t *after)
{
	struct cairn_slice *slice = &s->slices[at];
	void *list;

	slice->first_save = s->num_saves;
	for (int32_t v = 0; v < f->p->num_values; v++) {
		if (!is_saved(f, s->seams, at, v, after))
			continue;
		list = s->saves;
		CAIRN_TRY(grow(&list, s->num_saves, &s->save_room, sizeof(*s->saves)));
		s->saves = list;
		s->saves[s->num_saves++] = v;
		slice->num_saves++;
		slice->save_bytes += f->bytes[v];
	}
	return 0;
}

/* slice_of[node] becomes the number of cuts before the node. */
static int cut_all(struct cairn_pt2_slices *s, const struct pt2_facts *f, int32_t *slice_of, uint8_t *after)
{
	for (int32_t i = 0; i < f->num_attn; i++) {
		CAIRN_TRY(pt2_cut(after, f, s->seams, i));
		CAIRN_TRY(find_saves(s, f, i, after));
		for (int32_t n = 0; n < f->p->num_nodes; n++) {
			if (after[n] && slice_of[n] != i)
				return cairn_error(EINVAL, "%s: node %s is after cut %d, but before cut %d",
						   f->p->path, CAIRN_QUOTED(f->p->nodes[n].name), i,
						   slice_of[n]);
			slice_of[n] += after[n];
		}
	}
	return 0;
}

static int make(struct cairn_pt2_slices *s, struct pt2_facts *f)
{
	int32_t *slice_of = calloc((size_t)f->p->num_nodes + 1, sizeof(*slice_of));
	uint8_t *after = malloc((size_t)f->p->num_nodes + 1);
	int ret = 0;

	s->num_slices = f->num_attn + 1;
	s->slices = calloc((size_t)s->num_slices, sizeof(*s->slices));
	s->seams = calloc((size_t)s->num_slices, sizeof(*s->seams));
	if (!slice_of || !after || !s->slices || !s->seams)
		ret = cairn_error(ENOMEM, "pt2: no memory");
	if (!ret && !f->num_attn)
		ret = cairn_error(EINVAL, "%s: has no scaled_dot_product_attention", f->p->path);
	for (int32_t i = 0; i < f->num_attn && !ret; i++)
		ret = pt2_seam_find(s, f, i);
	if (!ret)
		ret = cut_all(s, f, slice_of, after);
	for (int32_t i = 0; i < s->num_slices && !ret; i++)
		ret = pt2_program(s, f, i, slice_of);
	free(slice_of);
	free(after);
	return ret;
}

int cairn_pt2_slices_create(struct cairn_pt2_slices **out, const struct cairn_pt2 *p, const int64_t *symbols)
{
	struct cairn_pt2_slices *s;
	struct pt2_facts f;
	int ret;

	CAIRN_TRY(pt2_facts_create(&f, p, symbols));
	s = calloc(1, sizeof(*s));
	ret = s ? make(s, &f) : cairn_error(ENOMEM, "pt2: no memory");
	pt2_facts_free(&f);
	if (!ret)
		ret = cairn_pt2_slices_check(s, p);
	if (ret)
		cairn_pt2_slices_destroy(s);
	else
		*out = s;
	return ret;
}

/* Returns the first cut that saves other values, or -1. */
static int32_t first_difference(const struct cairn_pt2_slices *a, const struct cairn_pt2_slices *b)
{
	for (int32_t i = 0; i < a->num_slices; i++) {
		const struct cairn_slice *x = &a->slices[i], *y = &b->slices[i];

		/* the lists are NULL if no cut saves anything */
		if (x->num_saves != y->num_saves ||
		    (x->num_saves && memcmp(a->saves + x->first_save, b->saves + y->first_save,
					    (size_t)x->num_saves * sizeof(*a->saves))))
			return i;
	}
	return -1;
}

int cairn_pt2_slices_vary(const struct cairn_pt2_slices *s, const struct cairn_pt2 *p, const int64_t *symbols,
			  int32_t *cut, int32_t *symbol, int64_t *at)
{
	int64_t other[CAIRN_PT2_SYMBOLS];

	*cut = -1;
	memcpy(other, symbols, (size_t)p->exprs.num_symbols * sizeof(*other));
	for (int32_t i = 0; i < 2 * p->exprs.num_symbols && *cut < 0; i++) {
		const struct cairn_pt2_symbol *range = &p->exprs.symbols[i / 2];
		struct cairn_pt2_slices *varied;

		*symbol = i / 2;
		*at = range->least > 0 ? range->least : 1;
		if (i % 2)
			*at = range->most < LARGE ? range->most : LARGE;
		if (*at < range->least || *at > range->most)
			continue;
		other[*symbol] = *at;
		CAIRN_TRY(cairn_pt2_slices_create(&varied, p, other));
		*cut = first_difference(s, varied);
		cairn_pt2_slices_destroy(varied);
		other[*symbol] = symbols[*symbol];
	}
	return 0;
}
