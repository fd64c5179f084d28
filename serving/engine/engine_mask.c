// SPDX-License-Identifier: Apache-2.0
/*
 * engine_mask - masks of the draws of requests that have a constraint
 *
 *   device  [-- pass n-1 --][-- logits of pass n --][draw of pass n][-- logits of pass n+1 --]
 *   host                    tokens of n-1 | masks of n | upload, draw      tokens of n | ...
 *
 * So passes are planned and launched ahead as without constraints, and the masks of a pass are computed while
 * the device computes its logits. A drafted row has the mask behind its drafts; drafts that a constraint
 * excludes are dropped before the pass.
 *
 * Nothing is ever drawn without its mask. A mask that is missing allows no token, and the answer ends with
 * CAIRN_FINISH_CONSTRAINT. Each token that was drawn is compared with its mask once more.
 */
#include <stdlib.h>
#include <string.h>

#include "serving/engine/engine_impl.h"

int engine_mask_create(struct cairn_engine *e)
{
	if (!e->opt.masks)
		return 0;
	if (e->opt.masks->vocab_size != e->config->vocab_size)
		return cairn_error(EINVAL, "engine: masks: of %d tokens, the model has %d",
				   e->opt.masks->vocab_size, e->config->vocab_size);
	e->mask_items = calloc((size_t)e->max_draws, sizeof(*e->mask_items));
	return e->mask_items ? 0 : cairn_error(ENOMEM, "engine: no memory for masks");
}

int engine_mask_check(const struct cairn_engine *e, const struct cairn_request *r)
{
	if (!e->opt.masks)
		return cairn_error(EOPNOTSUPP, "constraint: the engine has no source of masks");
	if (!e->impl->mask_logits)
		return cairn_error(EOPNOTSUPP, "constraint: %s: the table has no operation mask_logits",
				   e->impl->name);
	if (r->beam_width)
		return cairn_error(EINVAL, "constraint: does not go with beam_width");
	if (r->ignore_eos)
		return cairn_error(EINVAL, "constraint: does not go with ignore_eos");
	if (r->sampling.min_new_tokens)
		return cairn_error(EINVAL, "constraint: does not go with min_new_tokens");
	return 0;
}

/* Returns the answer of a masked draw if it still needs masks, else NULL. */
static struct answer *answer_of(struct cairn_engine *e, uint64_t handle, int32_t index, struct request **r)
{
	struct answer *a;

	*r = engine_find(e, handle);
	if (!*r || (*r)->cancelled || !(*r)->req.constraint)
		return NULL;
	a = &(*r)->answers[index];
	return a->live && !a->stopping && !a->mask.lost ? a : NULL;
}

static struct cairn_mask_item item_of(const struct request *r, const struct answer *a, int32_t index,
				      const int32_t *drafts, int32_t num_drafts)
{
	return (struct cairn_mask_item){
		.constraint = r->req.constraint, .seq = index, .draw = a->num_given,
		.tokens = a->mask.tokens, .num_tokens = a->mask.num,
		.drafts = drafts, .num_drafts = num_drafts,
	};
}

static int step(struct cairn_engine *e, int32_t num)
{
	return num ? e->opt.masks->step(e->opt.masks->ctx, e->mask_items, num) : 0;
}

int engine_mask_resume(struct cairn_engine *e, struct request *r, const int32_t *given)
{
	struct answer *a = &r->answers[0];
	int32_t n;

	for (int32_t at = 0; at < r->req.num_given && !a->mask.lost; at += n) {
		n = r->req.num_given - at < CAIRN_MAX_DRAFTS + 1 ? r->req.num_given - at :
								   CAIRN_MAX_DRAFTS + 1;
		e->mask_items[0] = (struct cairn_mask_item){
			.constraint = r->req.constraint, .draw = at + n, .tokens = given + at,
			.num_tokens = n,
		};
		CAIRN_TRY(step(e, 1));
		a->mask.lost = e->mask_items[0].num_valid < 0;
	}
	return 0;
}

int engine_mask_cut(struct cairn_engine *e, struct cairn_sched_draft *drafts, int32_t num)
{
	struct request *r;
	int32_t n = 0;

	for (int32_t i = 0; e->opt.masks && i < num; i++) {
		struct cairn_sched_draft *d = &drafts[i];
		struct answer *a = d->num ? answer_of(e, d->request, d->index, &r) : NULL;

		/* masks follow one chain of draws: of a tree, only its first branch is drafted */
		for (int32_t k = 0; a && k < d->num; k++)
			d->num = engine_is_end(e, r, d->drafts[k]) || d->parents[k] != k ? k : d->num;
		if (a && d->num)
			e->mask_items[n++] = item_of(r, a, d->index, d->drafts, d->num);
	}
	CAIRN_TRY(step(e, n));
	n = 0;
	for (int32_t i = 0; e->opt.masks && i < num; i++) {
		struct cairn_sched_draft *d = &drafts[i];
		struct answer *a = d->num ? answer_of(e, d->request, d->index, &r) : NULL;
		const struct cairn_mask_item *item = &e->mask_items[n];

		if (!a)
			continue;
		n++;
		a->mask.num = 0;
		a->mask.lost = item->num_valid < 0;
		d->num = item->num_valid < 0 ? 0 : item->num_valid < d->num ? item->num_valid : d->num;
	}
	return 0;
}

/* Copies the masks of an item to those of the pass, from number `at` on. Returns whether it has all. */
static int copy_masks(struct cairn_engine *e, const struct cairn_mask_item *item, struct draw *d, int32_t at)
{
	const struct cairn_mask_source *m = e->opt.masks;
	size_t bytes = ((size_t)e->config->vocab_size + 31) / 32 * sizeof(uint32_t);

	for (int32_t k = 0; k <= item->num_valid; k++) {
		const uint32_t *mask = m->mask(m->ctx, item->first_mask + k, item->constraint, item->seq,
					       item->draw + k);

		if (!mask || d[k].number != item->draw + k)
			return 0;
		memcpy(cairn_worker_mask(e->worker, at + k), mask, bytes);
	}
	return item->num_valid >= 0;
}

int engine_mask_draw(struct cairn_engine *e, struct engine_flight *f)
{
	int32_t n = 0, at = 0;
	struct request *r;

	for (int32_t i = 0; i < f->num_draws; i += 1 + f->draws[i].num_drafts) {
		struct draw *d = &f->draws[i];
		struct answer *a = d->masked ? answer_of(e, d->handle, d->index, &r) : NULL;

		if (!a)
			continue;
		e->mask_items[n] = item_of(r, a, d->index, d->drafts, d->num_drafts);
		e->mask_items[n++].wants_masks = 1;
	}
	CAIRN_TRY(step(e, n));
	n = 0;
	for (int32_t i = 0; i < f->num_draws; i += 1 + f->draws[i].num_drafts) {
		struct draw *d = &f->draws[i];
		struct answer *a = d->masked ? answer_of(e, d->handle, d->index, &r) : NULL;

		if (a) {
			a->mask.num = 0;
			a->mask.lost = !copy_masks(e, &e->mask_items[n++], d, at);
		}
		for (int32_t k = 0; d->masked && k <= d->num_drafts; k++)
			d[k].mask = cairn_worker_mask(e->worker, at++);
	}
	return cairn_worker_draw(e->worker);
}

int engine_mask_allows(const struct cairn_engine *e, const struct draw *d, int32_t token)
{
	return !d->masked || (d->mask && token >= 0 && token < e->config->vocab_size &&
			      d->mask[token / 32] >> token % 32 & 1);
}

void engine_mask_took(struct answer *a, int32_t token)
{
	if (a->mask.num == CAIRN_MAX_DRAFTS + 1)
		a->mask.lost = 1;
	else
		a->mask.tokens[a->mask.num++] = token;
}
