// SPDX-License-Identifier: Apache-2.0
/*
 * engine_spec_rows - the drafted rows of a pass, and which of their draws count
 *
 * The rows of a chain are parts that share pages, so that attn_paged runs them. The rows of a tree are one
 * part, and attn_bsr runs the pass (worker_tree.c). The keys of the drafts that were drawn then move to the
 * places that they have in the sequence, before the report lets other rows have the pages of the rest.
 */
#include "serving/engine/engine_impl.h"
#include "serving/engine/spec/spec_tree.h"

#include <string.h>

/*
 * Adds a row with drafted rows behind it, as parts of the chain that share the pages. `part` is that of the
 * first row. With repeatable each row is a part, so that its bits are those of a row without drafts.
 */
static void add_chain(struct cairn_engine *e, struct request *r, const struct cairn_step_item *item,
		      struct engine_flight *f, struct cairn_worker_part *part)
{
	const int32_t *drafts = part->ids + 1;
	int32_t offset = item->first + 1 - r->req.num_prompt + r->req.num_given, rows;

	for (int32_t at = 0; at < item->num_rows; at += rows) {
		rows = item->num_rows - at < e->chain_rows ? item->num_rows - at : e->chain_rows;
		part->num_rows = rows;
		part->chained = at > 0;
		part->draw = NULL;
		part->treat = NULL;
		if (e->chain_rows == 1)
			engine_add_draw(e, r, item, offset + at, drafts, at, f, part);
		cairn_worker_add(e->worker, part);
		for (int32_t k = 0; k < rows && e->chain_rows > 1; k++) {
			engine_add_draw(e, r, item, offset + at + k, drafts, at + k, f, part);
			cairn_worker_add_draw(e->worker, k, part);
		}
		part->ids += rows;
		part->position += rows;
	}
}

/* Adds a tree. parents[i] is the parent of row i; that of row 0 is not read. */
static void add_tree(struct cairn_engine *e, struct request *r, const struct cairn_step_item *item,
		     const int32_t *parents, struct engine_flight *f, struct cairn_worker_part *part)
{
	int32_t offset = item->first + 1 - r->req.num_prompt + r->req.num_given;
	int32_t size = e->opt.page_size, first = f->num_draws;
	int32_t depths[CAIRN_TREE_ROWS] = { 0 };

	part->num_rows = item->num_rows;
	part->parents = parents;
	cairn_worker_add(e->worker, part);
	for (int32_t i = 0; i < item->num_rows; i++) {
		int32_t at = item->first + i, *path = e->paths[first + i];

		if (i) {
			depths[i] = depths[parents[i]] + 1;
			memcpy(path, e->paths[first + parents[i]], sizeof(e->paths[0]));
			path[depths[i] - 1] = part->ids[i];
		}
		engine_add_draw(e, r, item, offset + depths[i], path, depths[i], f, part);
		f->draws[first + i].place = part->pages[at / size] * size + at % size;
		cairn_worker_add_draw(e->worker, i, part);
	}
}

void engine_spec_add(struct cairn_engine *e, struct request *r, const struct cairn_step_plan *p,
		     const struct cairn_step_item *item, struct engine_flight *f,
		     struct cairn_worker_part *part)
{
	const int32_t *drafts = part->ids + 1, *parents = p->parents + item->ids_at + 1;
	struct draw *first = &f->draws[f->num_draws];

	if (cairn_spec_tree_is_chain(parents, item->num_drafts))
		add_chain(e, r, item, f, part);
	else
		add_tree(e, r, item, parents - 1, f, part);
	first->num_drafts = item->num_drafts;
	first->drafts = drafts;
	first->parents = parents;
}

/* Returns whether a draft follows the row. */
static int is_followed(const struct draw *d, int32_t row)
{
	for (int32_t k = 0; k < d->num_drafts; k++) {
		if (d->parents[k] == row)
			return 1;
	}
	return 0;
}

int32_t engine_spec_take(struct cairn_engine *e, struct draw *d, const int32_t *tokens,
			 int32_t path[CAIRN_TREE_ROWS])
{
	struct request *r = engine_find(e, d->handle);
	struct answer *a = r && d->num_drafts ? &r->answers[d->index] : NULL;
	int32_t n, moved = e->num_moves;

	path[0] = 0;
	if (!d->num_drafts)
		return 0;
	n = cairn_drafts_accepted(d->drafts, d->parents, tokens, d->num_drafts, path + 1);
	engine_treat_drawn(e, a && a->live ? a : NULL, d, d->num_drafts, path[n]);
	if (a)
		engine_spec_took(e, a, d->num_drafts, n, is_followed(d, path[n]));
	if (d->place < 0)
		return n;
	for (int32_t k = 1; k <= n; k++) {
		if (path[k] == k)
			continue;
		e->moves_from[e->num_moves] = d[path[k]].place;
		e->moves_to[e->num_moves++] = d[k].place;
	}
	engine_spec_tree(e, e->num_moves - moved);
	return n;
}

int engine_spec_move(struct cairn_engine *e)
{
	int32_t num = e->num_moves;

	e->num_moves = 0;
	return cairn_worker_move_rows(e->worker, e->moves_from, e->moves_to, num);
}
