// SPDX-License-Identifier: Apache-2.0
/*
 * draft_model - drafts by a second, smaller model (draft_model.h)
 *
 *   pass 0      the rows that the model has not computed yet, and a draw after the last one
 *   pass 1 ..   one row of each sequence that still has room, whose token is the draw before it (follows)
 *
 * With n tokens, the passes for k drafts compute rows 0 .. n + k - 2; the last draft is never an input. In
 * the next call the tokens from n on are compared with these drafts, to see how many rows are still right.
 *
 * With branches, each draw also gives the next most likely tokens. They become drafts beside the drawn one,
 * behind all drawn ones, and nothing follows them: the tree is a chain with leaves.
 */
#include "serving/engine/spec/draft_model.h"

#include <stdlib.h>

#include "primitives/base/error.h"
#include "serving/engine/spec/draft_seqs.h"

/* Rows of a sequence behind the computed ones, whose tokens were drafts. */
struct guesses {
	int32_t num, ids[CAIRN_MAX_DRAFTS];
};

struct entry {
	struct cairn_draft_seq *seq;	/* NULL: no drafts in this call */
	int32_t draw;			/* its draw in the last pass; -1: none */
};

struct cairn_draft_model {
	struct cairn_worker *worker;
	struct cairn_draft_seqs seqs;
	struct cairn_worker_options opt;
	int32_t vocab, positions;
	struct guesses *guesses;	/* [max_batch], as seqs.all */
	struct entry *entries;		/* [max_batch] */
	struct cairn_sampling greedy;
	struct cairn_worker_treat likely;	/* asks for the most likely tokens of a draw */
	int32_t branches;
	int32_t (*top)[CAIRN_MAX_DRAFTS][CAIRN_MAX_BRANCHES];	/* [max_batch], by depth; -1: none */
};

int cairn_draft_model_create(struct cairn_draft_model **out, struct cairn_model *model,
			     const struct cairn_worker_options *options, int32_t branches)
{
	struct cairn_draft_model *d = calloc(1, sizeof(*d));
	size_t batch = (size_t)options->max_batch;
	int ret = 0;

	if (!d)
		return cairn_error(ENOMEM, "draft model: no memory");
	d->opt = *options;
	d->vocab = model->config.vocab_size;
	d->positions = model->config.max_position_embeddings;
	if (d->opt.max_context > d->positions)
		d->opt.max_context = d->positions;
	d->greedy.top_p = 1;
	d->guesses = calloc(batch, sizeof(*d->guesses));
	d->entries = calloc(batch, sizeof(*d->entries));
	d->top = calloc(batch, sizeof(*d->top));
	d->branches = branches;
	d->likely = (struct cairn_worker_treat){ .slot = -1, .num_logprobs = 1 + branches };
	if (!d->guesses || !d->entries || !d->top)
		ret = cairn_error(ENOMEM, "draft model: no memory for %d sequences", options->max_batch);
	if (!ret && branches > 1 && !model->impl->logprobs)
		ret = cairn_error(EOPNOTSUPP, "draft model: branches: %s has no operation logprobs",
				  model->impl->name);
	if (!ret && !cairn_forward_supported(model))
		ret = cairn_error(EOPNOTSUPP, "draft model: %s has no operation list for it",
				  model->impl->name);
	if (!ret)
		ret = cairn_draft_seqs_create(&d->seqs, d->opt.max_batch, d->opt.num_pages, d->opt.page_size);
	if (!ret)
		ret = cairn_worker_create(&d->worker, model, &d->opt);
	if (ret) {
		cairn_draft_model_destroy(d);
		return ret;
	}
	*out = d;
	return 0;
}

void cairn_draft_model_destroy(struct cairn_draft_model *d)
{
	if (!d)
		return;
	cairn_worker_destroy(d->worker);
	cairn_draft_seqs_destroy(&d->seqs);
	free(d->guesses);
	free(d->entries);
	free(d->top);
	free(d);
}

void cairn_draft_model_end(struct cairn_draft_model *d, uint64_t request, int32_t index)
{
	cairn_draft_seqs_end(&d->seqs, request, index);
}

static struct guesses *guesses_of(const struct cairn_draft_model *d, const struct cairn_draft_seq *s)
{
	return &d->guesses[s - d->seqs.all];
}

/* Keeps the guesses that were right, and makes room for `len` rows. *fits: 0 if there are no pages. */
static int settle(struct cairn_draft_model *d, struct cairn_draft_seq *s, const struct cairn_sched_draft *p,
		  int32_t len, int *fits)
{
	struct guesses *g = guesses_of(d, s);

	for (int32_t k = 0; s->computed && k < g->num && s->computed < p->num_tokens - 1 &&
	     p->tokens[s->computed] == g->ids[k]; k++)
		s->computed++;
	g->num = 0;
	if (s->computed >= p->num_tokens)	/* the same tokens again: their last row is due */
		s->computed = p->num_tokens - 1;
	return cairn_draft_seqs_resize(&d->seqs, s, len, fits);
}

/* Whether the model has all ids that it would be given. The ids before `from` have been checked. */
static int has_tokens(const struct cairn_draft_model *d, const struct cairn_sched_draft *p, int32_t from)
{
	for (int32_t i = from; i < p->num_tokens; i++) {
		if (p->tokens[i] >= d->vocab)
			return 0;
	}
	return 1;
}

/* Finds or opens the sequence of an entry. Without one the entry gets no drafts. */
static int prepare(struct cairn_draft_model *d, const struct cairn_sched_draft *p,
		   struct cairn_draft_seq **out)
{
	struct cairn_draft_seq *s = cairn_draft_seqs_find(&d->seqs, p->request, p->index);
	int32_t len = p->num_tokens + p->depth - 1;
	int fits = 0;

	*out = NULL;
	if (p->room < 1 || len > d->opt.max_context || !has_tokens(d, p, s ? s->computed : 0))
		return 0;
	CAIRN_TRY(cairn_draft_seqs_use(&d->seqs, p->request, p->index, &s));
	if (s)
		CAIRN_TRY(settle(d, s, p, len, &fits));
	*out = fits ? s : NULL;
	return 0;
}

static void add_part(struct cairn_draft_model *d, struct cairn_draft_seq *s, struct cairn_worker_part *part)
{
	part->pages = cairn_kv_pool_pages(d->seqs.pool, s->kv, &part->num_pages);
	part->decodes = 1;
	cairn_worker_add(d->worker, part);
}

static void ask_draw(const struct cairn_draft_model *d, struct cairn_worker_part *part)
{
	part->draw = &d->greedy;
	part->treat = d->branches > 1 ? &d->likely : NULL;
}

/* Pass 0. *num_draws: sequences whose tokens are all computed then. */
static int catch_up(struct cairn_draft_model *d, const struct cairn_sched_draft *p, int32_t num,
		    int32_t *num_draws, int *caught_up)
{
	int32_t room = d->opt.max_rows;

	*num_draws = 0;
	cairn_worker_begin(d->worker);
	for (int32_t i = 0; i < num; i++) {
		struct entry *e = &d->entries[i];
		int32_t rest = e->seq ? p[i].num_tokens - e->seq->computed : 0;
		int32_t rows = rest < room ? rest : room;
		struct cairn_worker_part part = { .follows = -1, .num_rows = rows };

		e->draw = -1;
		if (rows < 1)
			continue;
		*caught_up &= rest <= CAIRN_DRAFT_FEW_ROWS;
		part.ids = p[i].tokens + e->seq->computed;
		part.position = e->seq->computed;
		if (rows == rest) {
			ask_draw(d, &part);
			e->draw = (*num_draws)++;
		}
		add_part(d, e->seq, &part);
		e->seq->computed += rows;
		room -= rows;
	}
	return room < d->opt.max_rows ? cairn_worker_launch(d->worker) : 0;
}

/* Pass j: rows whose tokens are the draws of the pass before. */
static int go_on(struct cairn_draft_model *d, const struct cairn_sched_draft *p, int32_t num, int32_t j,
		 int32_t *num_draws)
{
	*num_draws = 0;
	cairn_worker_begin(d->worker);
	for (int32_t i = 0; i < num; i++) {
		struct entry *e = &d->entries[i];
		struct cairn_worker_part part = {
			.follows = e->draw, .num_rows = 1, .position = p[i].num_tokens + j - 1,
		};

		if (e->draw < 0)
			continue;
		e->draw = -1;
		if (p[i].depth <= j)
			continue;
		ask_draw(d, &part);
		add_part(d, e->seq, &part);
		e->draw = (*num_draws)++;
	}
	return *num_draws ? cairn_worker_launch(d->worker) : 0;
}

/* Takes the drafts of pass j: those of the sequences with room for them, in order. */
static int collect(struct cairn_draft_model *d, struct cairn_sched_draft *p, int32_t num, int32_t j)
{
	struct cairn_worker_result w;
	int32_t at = 0;

	CAIRN_TRY(cairn_worker_collect(d->worker, &w));
	for (int32_t i = 0; i < num; i++) {
		struct cairn_draft_seq *s = d->entries[i].seq;

		if (!s || s->computed < p[i].num_tokens || p[i].depth <= j)
			continue;
		if (at >= w.num_tokens)
			return cairn_error(EIO, "draft model: a draw is missing");
		if (j && p[i].num == j) {	/* the draft before was an input of this pass */
			guesses_of(d, s)->ids[j - 1] = p[i].drafts[j - 1];
			guesses_of(d, s)->num = j;
		}
		if (p[i].num == j && w.tokens[at] >= 0 && w.tokens[at] < d->vocab)
			p[i].drafts[p[i].num++] = w.tokens[at];
		for (int32_t k = 0; k < d->branches; k++)
			d->top[i][j][k] = k < w.k ? w.top[at * w.k + k] : -1;
		at++;
	}
	return 0;
}

int cairn_draft_model_propose(struct cairn_draft_model *d, struct cairn_sched_draft *p, int32_t num,
			      int *caught_up)
{
	int32_t launched = 0, collected = 0, draws = 0;
	int rows = 0;

	d->seqs.calls++;
	*caught_up = 1;
	for (int32_t i = 0; i < num; i++) {
		p[i].num = 0;
		CAIRN_TRY(prepare(d, &p[i], &d->entries[i].seq));
		rows |= d->entries[i].seq != NULL;
	}
	if (!rows)
		return 0;
	CAIRN_TRY(catch_up(d, p, num, &draws, caught_up));
	launched = cairn_worker_in_flight(d->worker);
	for (int32_t j = 1; draws; j++) {
		CAIRN_TRY(go_on(d, p, num, j, &draws));
		launched += draws > 0;
		if (launched - collected == CAIRN_WORKER_FLIGHTS)
			CAIRN_TRY(collect(d, p, num, collected++));
	}
	while (collected < launched)
		CAIRN_TRY(collect(d, p, num, collected++));
	for (int32_t i = 0; d->branches > 1 && i < num; i++)
		cairn_draft_branches(&p[i], d->top[i], d->branches, d->vocab);
	return 0;
}
