// SPDX-License-Identifier: Apache-2.0
/*
 * engine_spec - decides how many drafts an answer gets, and measures what they cost
 *
 * Let p be the estimated chance that a draft is right, given that those before it were. A step with d drafts
 * gives 1 + p + ... + p^d tokens on average, and takes the time of a pass with their rows. The engine takes
 * the d that gives most tokens per time, compared with a pass without drafts. Both times are measured, by the
 * padded number of rows, since passes of equal size run the same kernels; those of drafted passes apart,
 * because decode_step runs only plain ones. Where few passes of a size were seen, the nearest smaller size
 * counts, which is optimistic: drafts are tried first, then judged.
 *
 * In a tree, d is the depth: p is the chance that one of the drafts that follow a row is right, and a depth
 * of d takes the rows of up to d times `branches` drafts.
 *
 * If no d is better than none, the answer's sequence is planned ahead again. After a pause, which doubles
 * each time, a few steps have drafts whatever they seem to cost, because p and the times may have changed. A
 * short pause also follows when the drafter has nothing to propose, since a step that might have drafts is
 * planned in turn. New answers begin with the p of all answers.
 */
#include "serving/engine/engine_impl.h"

#include <math.h>
#include <stdlib.h>

#include "serving/base/clock.h"
#include "serving/engine/spec/draft_model.h"
#include "serving/engine/spec/head_drafter.h"
#include "serving/engine/spec/spec_tree.h"

#define MAX_ROWS	256		/* drafted rows of a pass */
#define MIN_SAMPLES	3		/* the first passes of a size load code and capture the graph */
#define MIN_GAIN	1.02
#define MIN_PAUSE	64		/* tokens */
#define MAX_PAUSE	4096
#define MEMORY		0.9		/* weight of the past in the estimate of p, per step with drafts */
#define LONG_MEMORY	0.99		/* the same for all answers together */
#define MIN_START	0.3		/* of p: other answers may be unlike this one */
#define TRIALS		3		/* steps with drafts after a pause */
#define MAX_IDLE	48		/* steps without a proposal before a pause */

const char *const cairn_speculate_names[] = { "off", "ngram", "draft_model", "eagle3", "mtp", NULL };

/* The time of passes of one number of rows. */
struct cost {
	double ns;
	int32_t samples;
};

struct engine_spec {
	struct cairn_speculation opt;
	int32_t draft_rows;
	struct cost *costs[2];		/* [max_draws + 1] each; of passes without and with drafts */
	int32_t max_draws;
	struct cost draft;		/* time to draft one token */
	double tried, right;		/* as in struct answer_spec, of all answers */
	struct cairn_draft_model *drafter;	/* with DRAFT_MODEL */
	struct cairn_head_drafter *head;	/* with EAGLE3 or MTP */
	int64_t collected;		/* when the last pass was collected */
	struct cairn_speculation_stats stats;
};

/* ---- options ---- */

/* Returns the maximum drafts of an answer in a step, up to a depth. */
static int32_t most_drafts(const struct cairn_speculation *o, int32_t depth)
{
	int32_t all = depth * o->branches, most = o->tree_rows ? o->tree_rows : CAIRN_TREE_ROWS - 1;

	return o->branches <= 1 ? depth : all < most ? all : most;
}

int32_t cairn_speculation_most(const struct cairn_speculation *o)
{
	return most_drafts(o, o->num_tokens ? o->num_tokens : 5);
}

static int check_trees(const struct cairn_engine *e, const struct cairn_speculation *o)
{
	const char *excludes = e->opt.repeatable ? "repeatable" : e->opt.nano ? "nano" :
			       e->opt.slices ? "slices" : e->opt.tap ? "tap" :
			       e->opt.attention ? "attention_workers" : NULL;
	if (excludes)
		return cairn_error(EINVAL, "engine: speculative_branches: does not go with %s", excludes);
	if (e->config->latent.kv_lora_rank)
		return cairn_error(EOPNOTSUPP, "engine: speculative_branches: latent attention has no masks "
				   "for trees");
	for (int32_t l = 0; l < e->config->num_hidden_layers; l++) {
		int32_t window = cairn_layer_window(e->config, l);

		if (window && window <= o->num_tokens)
			return cairn_error(EOPNOTSUPP, "engine: speculative_branches: a tree of depth %d "
					   "exceeds the window of %d tokens", o->num_tokens, window);
	}
	if (o->tree_rows < 0 || o->tree_rows >= CAIRN_TREE_ROWS)
		return cairn_error(EINVAL, "engine: speculative_tree_rows: %d is not in 1..%d", o->tree_rows,
				   CAIRN_TREE_ROWS - 1);
	return 0;
}

static int has_head(const struct cairn_speculation *o)
{
	return o->method == CAIRN_SPECULATE_EAGLE3 || o->method == CAIRN_SPECULATE_MTP;
}

static int check_options(const struct cairn_engine *e, struct cairn_speculation *o)
{
	if (o->method < CAIRN_SPECULATE_OFF || o->method > CAIRN_SPECULATE_CALLER)
		return cairn_error(EINVAL, "engine: speculative: there is no method %d", o->method);
	o->num_tokens = o->num_tokens ? o->num_tokens : 5;
	o->lookup_max = o->lookup_max ? o->lookup_max : o->lookup_min > 4 ? o->lookup_min : 4;
	o->lookup_min = o->lookup_min ? o->lookup_min : o->lookup_max < 2 ? o->lookup_max : 2;
	if (o->num_tokens < 1 || o->num_tokens > CAIRN_MAX_DRAFTS)
		return cairn_error(EINVAL, "engine: num_speculative_tokens: %d is not in 1..%d",
				   o->num_tokens, CAIRN_MAX_DRAFTS);
	if (o->lookup_max < 1 || o->lookup_max > 1024)
		return cairn_error(EINVAL, "engine: prompt_lookup_max: %d is not in 1..1024", o->lookup_max);
	if (o->lookup_min < 1 || o->lookup_min > o->lookup_max)
		return cairn_error(EINVAL, "engine: prompt_lookup_min: %d is not in 1..%d "
				   "(prompt_lookup_max)", o->lookup_min, o->lookup_max);
	o->branches = o->branches ? o->branches : 1;
	if (o->branches < 1 || o->branches > CAIRN_MAX_BRANCHES)
		return cairn_error(EINVAL, "engine: speculative_branches: %d is not in 1..%d", o->branches,
				   CAIRN_MAX_BRANCHES);
	if (o->branches > 1)
		CAIRN_TRY(check_trees(e, o));
	if (o->method == CAIRN_SPECULATE_CALLER && !o->draft)
		return cairn_error(EINVAL, "engine: speculative: the caller has no function draft");
	if (o->method == CAIRN_SPECULATE_DRAFT_MODEL && (!o->model || o->model->impl != e->impl))
		return cairn_error(EINVAL, "engine: speculative_model: %s", !o->model ? "there is none" :
				   "is on another table");
	if (has_head(o) && !o->head)
		return cairn_error(EINVAL, "engine: speculative: %s has no head",
				   cairn_speculate_names[o->method]);
	/* the stages of a pipeline give the first one the hidden states that the head needs */
	if (has_head(o) && (e->opt.nano || e->opt.slices || (e->opt.tap && e->config->stages <= 1)))
		return cairn_error(EINVAL, "engine: speculative: %s does not go with nano, slices and tap",
				   cairn_speculate_names[o->method]);
	if (!e->can_score)
		return cairn_error(EOPNOTSUPP, "engine: speculative: %s has no operation list for this model",
				   e->impl->name);
	if (e->opt.decode == CAIRN_DECODE_GRAPH || e->opt.decode == CAIRN_DECODE_PERSISTENT)
		return cairn_error(EINVAL, "engine: decode: %s does not go with speculative: passes with "
				   "drafts are lists of operations", cairn_decode_path_names[e->opt.decode]);
	if (e->opt.max_rows == e->opt.max_batch)
		return cairn_error(EINVAL, "engine: max_rows: is %d, must exceed max_batch to leave rows for "
				   "drafts", e->opt.max_rows);
	return 0;
}

int engine_spec_create(struct cairn_engine *e)
{
	struct cairn_speculation o = e->opt.speculation;
	int64_t rows;

	e->max_draws = e->opt.max_batch;
	if (o.method == CAIRN_SPECULATE_OFF)
		return 0;
	CAIRN_TRY(check_options(e, &o));
	/*
	 * latent attention has all query heads on one KV head; nano-batches are cut between single rows; and
	 * ranks that hold pages in stripes have no mask for several rows
	 */
	e->chain_rows = CAIRN_WORKER_TILE * e->config->num_key_value_heads / e->config->num_attention_heads;
	if (e->opt.repeatable || e->opt.nano || e->opt.stripes || e->config->latent.kv_lora_rank ||
	    e->chain_rows < 1)
		e->chain_rows = 1;
	rows = (int64_t)e->opt.max_batch * cairn_speculation_most(&o);
	if (rows > MAX_ROWS)
		rows = MAX_ROWS;
	if (rows > e->opt.max_rows - e->opt.max_batch)
		rows = e->opt.max_rows - e->opt.max_batch;
	e->max_draws += (int32_t)rows;
	e->spec = calloc(1, sizeof(*e->spec));
	if (!e->spec)
		return cairn_error(ENOMEM, "engine: no memory for drafts");
	e->spec->opt = o;
	e->spec->tried = 4;		/* drafts are tried first */
	e->spec->right = 3.2;
	e->spec->draft_rows = (int32_t)rows;
	e->spec->max_draws = cairn_worker_padded(e->max_draws);
	for (int i = 0; i < 2; i++) {
		e->spec->costs[i] = calloc((size_t)e->spec->max_draws + 1, sizeof(struct cost));
		if (!e->spec->costs[i])
			return cairn_error(ENOMEM, "engine: no memory for drafts");
	}
	return 0;
}

const struct cairn_worker_taps *engine_spec_taps(const struct cairn_engine *e)
{
	return e->spec && e->spec->opt.head ? &e->spec->opt.head->taps : NULL;
}

int engine_spec_create_model(struct cairn_engine *e, const struct cairn_worker_options *engine)
{
	struct cairn_worker_options o = *engine;

	if (e->spec && has_head(&e->spec->opt)) {
		o.max_batch = e->opt.max_batch;
		return cairn_head_drafter_create(&e->spec->head, e->spec->opt.head, e->worker, &o,
						 e->spec->opt.branches);
	}
	if (!e->spec || e->spec->opt.method != CAIRN_SPECULATE_DRAFT_MODEL)
		return 0;
	o.max_batch = e->opt.max_batch;
	o.timeline = o.repeatable = o.trees = 0;
	o.nano = NULL;
	o.slices = NULL;	/* of the other model */
	o.attention = NULL;
	o.tap = NULL;		/* only this process drafts */
	o.context = NULL;
	o.stripes = 0;
	o.taps = NULL;
	return cairn_draft_model_create(&e->spec->drafter, e->spec->opt.model, &o, e->spec->opt.branches);
}

void engine_spec_destroy(struct engine_spec *s)
{
	if (!s)
		return;
	cairn_draft_model_destroy(s->drafter);
	cairn_head_drafter_destroy(s->head);
	free(s->costs[0]);
	free(s->costs[1]);
	free(s);
}

/* ---- time ---- */

/* Follows a fall at once, because the first samples may be much too long. */
static void add_sample(struct cost *c, double ns)
{
	c->ns = !c->samples || ns < c->ns ? ns : c->ns + (ns - c->ns) / 16;
	c->samples += c->samples < MIN_SAMPLES;
}

void engine_spec_launched(const struct cairn_engine *e, struct engine_flight *f,
			  const struct cairn_step_plan *p)
{
	if (!e->spec)
		return;
	f->timed_rows = p->num_items == p->num_decodes ? cairn_worker_padded(p->num_rows) : 0;
	f->drafted = p->num_rows > p->num_decodes;
	f->launched = cairn_clock_ns();
}

void engine_spec_collected(struct cairn_engine *e, const struct engine_flight *f)
{
	struct engine_spec *s = e->spec;
	int64_t now = cairn_clock_ns(), begin;

	if (!s)
		return;
	begin = f->launched > s->collected ? f->launched : s->collected;
	s->collected = now;
	if (!f->timed_rows || f->timed_rows > s->max_draws)
		return;
	add_sample(&s->costs[f->drafted][f->timed_rows], (double)(now - begin));
}

/* Returns the time of a pass with drafts; sizes that were hardly seen take that of the next smaller one. */
static double drafted_ns(const struct engine_spec *s, int32_t rows, double plain)
{
	for (int32_t n = cairn_worker_padded(rows); n > 0; n--) {
		if (s->costs[1][n].samples >= MIN_SAMPLES)
			return s->costs[1][n].ns > plain ? s->costs[1][n].ns : plain;
	}
	return plain;
}

/* ---- drafts ---- */

/*
 * Returns the best number of drafts; 0: none pay. running: sequences of the pass; num: those that may draft,
 * which are assumed to draft alike. *known: 0 if the time of a pass without drafts must be measured first.
 */
static int32_t best_depth(const struct engine_spec *s, const struct answer_spec *a, int32_t running,
			  int32_t num, int *known)
{
	const struct cost *c = &s->costs[0][cairn_worker_padded(running)];
	double p = a->right / a->tried, tokens = 1, power = 1, best = MIN_GAIN;
	int32_t depth = 0;

	*known = c->samples >= MIN_SAMPLES;
	for (int32_t d = 1; *known && d <= s->opt.num_tokens; d++) {
		int32_t all = num * most_drafts(&s->opt, d);
		int32_t more = all < s->draft_rows ? all : s->draft_rows;
		double drafts = s->draft.samples < MIN_SAMPLES ? 0 : s->draft.ns * num * d;
		double ns = drafted_ns(s, running + more, c->ns) + drafts;

		power *= p;
		tokens += power;
		if (tokens * c->ns / ns > best) {
			best = tokens * c->ns / ns;
			depth = d;
		}
	}
	return depth;
}

static int pause_for(struct cairn_engine *e, const struct cairn_sched_draft *d, struct answer *a,
		     int32_t tokens)
{
	a->spec.resume_at = a->num_given + tokens;
	a->spec.paused = 1;
	a->spec.idle = 0;
	e->spec->stats.pauses++;
	return cairn_scheduler_speculate(e->scheduler, d->request, d->index, 0);
}

int engine_spec_resume(struct cairn_engine *e, const struct request *r, int32_t index, struct answer *a)
{
	int ret;

	if (!a->spec.paused || a->num_given < a->spec.resume_at)
		return 0;
	a->spec.paused = 0;
	a->spec.trials = TRIALS;
	ret = cairn_scheduler_speculate(e->scheduler, r->handle, index, 1);
	return ret == -ENOENT ? 0 : ret;	/* its last token has ended it */
}

/* Makes the proposals of all sequences. *caught_up: 0 if that took longer than drafts normally take. */
static int propose(struct cairn_engine *e, struct cairn_sched_draft *drafts, int32_t num, int *caught_up)
{
	const struct cairn_speculation *o = &e->spec->opt;

	*caught_up = 1;
	if (e->spec->drafter)
		return cairn_draft_model_propose(e->spec->drafter, drafts, num, caught_up);
	if (e->spec->head)
		return cairn_head_drafter_propose(e->spec->head, cairn_scheduler_pool(e->scheduler), drafts,
						  num, caught_up);
	for (int32_t i = 0; i < num; i++) {
		struct cairn_sched_draft *d = &drafts[i];

		d->num = 0;
		if (d->room && o->method == CAIRN_SPECULATE_NGRAM)
			d->num = cairn_ngram_draft(o, d->tokens, d->num_tokens, d->drafts, d->parents,
						   d->room, d->depth);
		else if (d->room)
			d->num = o->draft(o->ctx, engine_find(e, d->request)->req.id, d->index, d->tokens,
					  d->num_tokens, d->drafts, d->parents, d->room);
	}
	return 0;
}

/* Cuts the drafts of a model off where one is outside the vocabulary; refuses such drafts of a caller. */
static int check_drafts(const struct cairn_engine *e, struct cairn_sched_draft *d)
{
	const struct cairn_speculation *o = &e->spec->opt;
	const struct cairn_spec_tree t = {
		.ids = d->drafts, .parents = d->parents, .num = d->num, .room = d->room,
		.branches = o->branches,
	};
	int32_t depths[CAIRN_TREE_ROWS], valid;

	for (int32_t k = 0; e->spec->drafter && k < d->num; k++)
		d->num = d->drafts[k] < e->config->vocab_size ? d->num : k;
	if (d->num < 0 || d->num > d->room)
		return cairn_error(EIO, "engine: speculative: %d drafts, there is room for %d", d->num,
				   d->room);
	for (int32_t k = 0; k < d->num; k++) {
		if (d->drafts[k] < 0 || d->drafts[k] >= e->config->vocab_size)
			return cairn_error(EIO, "engine: speculative: draft %d, the vocabulary has %d",
					   d->drafts[k], e->config->vocab_size);
	}
	valid = cairn_spec_tree_valid(&t, o->num_tokens, depths);
	if (valid < d->num)
		return cairn_error(EIO, "engine: speculative: draft %d follows row %d, which is no row "
				   "before it or has too many drafts, or is too deep", valid,
				   d->parents[valid]);
	return 0;
}

static int draft_all(void *ctx, struct cairn_sched_draft *drafts, int32_t num)
{
	struct cairn_engine *e = ctx;
	struct engine_spec *s = e->spec;
	struct cairn_scheduler_stats st;
	int64_t start = cairn_clock_ns(), total = 0;
	int caught_up;

	cairn_scheduler_stats(e->scheduler, &st);
	for (int32_t i = 0; i < num; i++) {
		struct cairn_sched_draft *d = &drafts[i];
		struct request *r = engine_find(e, d->request);
		struct answer *a = &r->answers[d->index];
		int32_t depth = s->opt.num_tokens;
		int known = 1;

		if (!s->opt.always && !a->spec.trials)
			depth = best_depth(s, &a->spec, st.num_running, num, &known);
		d->depth = d->depth < depth ? d->depth : depth;
		d->room = d->room < most_drafts(&s->opt, depth) ? d->room : most_drafts(&s->opt, depth);
		if (depth || !known)
			continue;
		a->spec.pause = !a->spec.pause ? MIN_PAUSE : a->spec.pause < MAX_PAUSE ? 2 * a->spec.pause :
				MAX_PAUSE;
		CAIRN_TRY(pause_for(e, d, a, a->spec.pause));
	}
	CAIRN_TRY(propose(e, drafts, num, &caught_up));
	for (int32_t i = 0; i < num; i++)
		CAIRN_TRY(check_drafts(e, &drafts[i]));
	CAIRN_TRY(engine_mask_cut(e, drafts, num));
	for (int32_t i = 0; i < num; i++) {
		struct answer *a = &engine_find(e, drafts[i].request)->answers[drafts[i].index];

		total += drafts[i].num;
		a->spec.idle = drafts[i].num ? 0 : a->spec.idle + 1;
		if (a->spec.idle > MAX_IDLE && !s->opt.always && !a->spec.paused)
			CAIRN_TRY(pause_for(e, &drafts[i], a, MIN_PAUSE));
	}
	if (total && caught_up)
		add_sample(&s->draft, (double)(cairn_clock_ns() - start) / (double)total);
	return 0;
}

/* ---- requests ---- */

int engine_spec_begin(const struct cairn_engine *e, struct request *r)
{
	double p = e->spec ? fmax(e->spec->right / e->spec->tried, MIN_START) : 0;

	for (int32_t i = 0; i < r->num_answers; i++)
		r->answers[i].spec = (struct answer_spec){ .tried = 4, .right = 4 * (float)p };
	return e->spec && !r->req.beam_width;
}

void engine_spec_took(struct cairn_engine *e, struct answer *a, int32_t num, int32_t accepted, int failed)
{
	struct cairn_speculation_stats *st = &e->spec->stats;
	struct answer_spec *s = &a->spec;

	st->drafts++;
	st->draft_tokens += num;
	st->accepted_tokens += accepted;
	for (int32_t k = 0; k < accepted; k++)
		st->accepted_per_position[k]++;
	s->tried = (float)(MEMORY * (double)s->tried + accepted + failed);
	s->right = (float)(MEMORY * (double)s->right + accepted);
	e->spec->tried = LONG_MEMORY * e->spec->tried + accepted + failed;
	e->spec->right = LONG_MEMORY * e->spec->right + accepted;
	s->trials -= s->trials > 0;
	if (!failed)
		s->pause = 0;
}

void engine_spec_tree(struct cairn_engine *e, int32_t moved)
{
	e->spec->stats.trees++;
	e->spec->stats.moved_rows += moved;
}

void engine_spec_end(struct cairn_engine *e, const struct request *r, int32_t index)
{
	if (e->spec && e->spec->drafter)
		cairn_draft_model_end(e->spec->drafter, r->handle, index);
	if (e->spec && e->spec->head)
		cairn_head_drafter_end(e->spec->head, r->handle, index);
}

void engine_spec_options(struct cairn_engine *e, struct cairn_scheduler_options *so)
{
	if (!e->spec)
		return;
	so->max_drafts = cairn_speculation_most(&e->spec->opt);
	so->draft_rows = e->spec->draft_rows;
	so->draft = draft_all;
	so->draft_ctx = e;
}

int engine_spec_trees(const struct cairn_engine *e)
{
	return e->spec && e->spec->opt.branches > 1;
}

void engine_spec_stats(const struct cairn_engine *e, struct cairn_speculation_stats *stats)
{
	if (e->spec)
		*stats = e->spec->stats;
}
