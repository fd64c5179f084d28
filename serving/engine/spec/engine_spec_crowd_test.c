// SPDX-License-Identifier: Apache-2.0
/* engine_spec_crowd_test - random requests and the drafter that knows their answers (engine_spec_test.h) */
#include <stdlib.h>
#include <string.h>

#include "serving/engine/spec/engine_spec_test.h"

static uint64_t draw(uint64_t *seed)
{
	uint64_t z = (*seed += 0x9e3779b97f4a7c15u);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	return z ^ (z >> 29);
}

int32_t crowd_below(struct crowd *c, int32_t n)
{
	return (int32_t)((draw(&c->seed) >> 16) % (uint64_t)n);
}

/* Returns token number `at` of the wanted answer if `right`, else, or if it has none, a random token. */
static int32_t guess(struct crowd *c, const struct answer *want, int32_t at, int right)
{
	int32_t token = at < want->num_ids ? want->ids[at] : want->end_token;

	return token >= 0 && right ? token : crowd_below(c, c->m->config.vocab_size);
}

/*
 * Proposes a random tree. Some drafts that follow a right row are the next token of the run without
 * speculation; the others are random.
 */
static int32_t grow(struct crowd *c, const struct answer *want, int32_t at, int32_t *drafts, int32_t *parents,
		    int32_t room)
{
	int32_t depth[CAIRN_TREE_ROWS] = { 0 }, children[CAIRN_TREE_ROWS] = { 0 }, num = 0;
	int right[CAIRN_TREE_ROWS] = { 1 };

	for (int tries = 0; num < room && tries < 200; tries++) {
		/* later rows are chosen more often, so that trees become deep */
		int32_t row = crowd_below(c, 2) ? num - crowd_below(c, num < 3 ? num + 1 : 3) :
			      crowd_below(c, num + 1);

		if (depth[row] == c->run.num_tokens || children[row] == c->run.branches)
			continue;
		right[num + 1] = right[row] && crowd_below(c, 1000) < (int)(1000 * c->right);
		drafts[num] = guess(c, want, at + depth[row], right[num + 1]);
		parents[num] = row;
		children[row]++;
		num++;
		depth[num] = depth[row] + 1;
		children[num] = 0;
	}
	return num;
}

/* Proposes the tokens of the run without speculation, each one with the chance of an error. */
static int32_t propose(void *ctx, uint64_t id, int32_t index, const int32_t *tokens, int32_t num,
		       int32_t *drafts, int32_t *parents, int32_t room)
{
	struct crowd *c = ctx;
	struct job *j = &c->jobs[id];
	const struct answer *want = &j->want[index];
	int32_t at = num - j->r.num_prompt;

	if (c->silent)
		return 0;
	if (memcmp(tokens, j->prompt, (size_t)j->r.num_prompt * sizeof(*tokens)) ||
	    memcmp(tokens + j->r.num_prompt, want->ids, (size_t)at * sizeof(*tokens)))
		return c->may_fail ? 0 : room + 1;	/* not the answer so far: fails the step */
	if (!c->depth && !crowd_below(c, 8))
		room = crowd_below(c, room + 1);
	if (c->branches)
		return grow(c, want, at, drafts, parents, room);
	for (int32_t k = 0; k < room; k++)
		drafts[k] = guess(c, want, at + k, crowd_below(c, 1000) < (int)(1000 * c->right));
	return room;
}

void crowd_make_job(struct crowd *c, int i)
{
	struct job *j = &c->jobs[i];
	struct cairn_sampling *s = &j->r.sampling;
	int32_t vocab = c->m->config.vocab_size, base = crowd_below(c, 3);

	memset(j, 0, sizeof(*j));
	for (int k = 0; k < PROMPT; k++)	/* many prompts share a prefix */
		j->prompt[k] = k < 40 ? (base * 31 + k * k) % vocab : crowd_below(c, vocab);
	j->r = (struct cairn_request){
		.id = (uint64_t)i, .prompt = j->prompt, .num_prompt = 1 + crowd_below(c, PROMPT),
		.max_new_tokens = 1 + crowd_below(c, NEW),
		.num_seqs = crowd_below(c, 4) ? 1 : 1 + crowd_below(c, ANSWERS),
		.sampling = { .top_p = 1, .seed = draw(&c->seed) }, .ignore_eos = crowd_below(c, 2),
		.on_token = take, .on_finish = done, .on_started = started,
		.keep = c->opt.host_pages && crowd_below(c, 2),
	};
	if (crowd_below(c, 3)) {
		s->temperature = 0.3f + 0.1f * (float)crowd_below(c, 10);
		s->top_k = crowd_below(c, 2) * crowd_below(c, 50);
		s->top_p = crowd_below(c, 2) ? 1 : 0.9f;
		s->min_p = crowd_below(c, 3) ? 0 : 0.02f;
	}
	s->num_logprobs = crowd_below(c, 2) * (1 + crowd_below(c, 5));
	s->repetition_penalty = crowd_below(c, 6) ? 0 : 1.3f;
	s->presence_penalty = crowd_below(c, 8) ? 0 : 0.7f;
	s->frequency_penalty = crowd_below(c, 6) ? 0 : 0.4f;
	j->bias[0] = (struct cairn_logit_bias){ crowd_below(c, vocab / 2), 2 };
	j->bias[1] = (struct cairn_logit_bias){ vocab / 2 + crowd_below(c, vocab / 2), -3 };
	s->bias = j->bias;
	s->num_bias = crowd_below(c, 4) ? 0 : 2;
	s->min_new_tokens = crowd_below(c, 3) ? 0 : crowd_below(c, j->r.max_new_tokens);
	for (int k = 0; k < 3; k++)
		j->stop_ids[k] = crowd_below(c, vocab);
	j->r.stop_ids = j->stop_ids;
	j->r.num_stop_ids = crowd_below(c, 4);
	j->stop_at = crowd_below(c, 3) ? 0 : 1 + crowd_below(c, NEW);
	if (j->r.num_seqs == 1 && !crowd_below(c, 4))
		*(crowd_below(c, 2) ? &j->cancel_at : &j->end_at) = 1 + crowd_below(c, NEW);
	if (j->r.num_seqs > 1 || crowd_below(c, 8) || s->num_logprobs > 1 || s->repetition_penalty != 0 ||
	    s->presence_penalty != 0 || s->frequency_penalty != 0)
		return;
	j->r.beam_width = 2;
	j->stop_at = j->cancel_at = j->end_at = 0;
}

void crowd_run(struct cairn_test *t, struct crowd *c, int again)
{
	struct cairn_engine_options opt = c->opt;
	struct cairn_engine *e;
	int busy = 1, next = 0;

	if (again)
		opt.speculation = (struct cairn_speculation){
			.method = CAIRN_SPECULATE_CALLER,
			.num_tokens = c->depth ? c->depth : 1 + crowd_below(c, 7),
			.always = c->depth || crowd_below(c, 8) > 0, .draft = propose, .ctx = c,
		};
	if (again && c->branches) {
		opt.speculation.branches = 2 + crowd_below(c, c->branches - 1);
		opt.speculation.tree_rows = crowd_below(c, 3) ? 0 : 1 + crowd_below(c, CAIRN_TREE_ROWS - 1);
	}
	if (again && c->drafter) {
		opt.speculation.method = CAIRN_SPECULATE_DRAFT_MODEL;
		opt.speculation.model = c->drafter;
	}
	if (again && c->head) {
		opt.speculation.method = c->method;
		opt.speculation.head = c->head;
		opt.nano = NULL;
	}
	if (again && c->by_ngram)
		opt.speculation.method = CAIRN_SPECULATE_NGRAM, opt.speculation.lookup_min = 1;
	c->run = opt.speculation;
	if (!EXPECT(t, cairn_engine_create(&e, c->m, &opt) == 0))
		return;
	for (int step = 0; busy || next < c->num_jobs; step++) {
		for (; next < c->num_jobs && (next < 4 || 3 * (next - 4) <= step); next++) {
			struct job *j = &c->jobs[next];
			struct answer *a = again ? j->got : j->want;

			for (int k = 0; k < ANSWERS; k++) {
				memset(&a[k], 0, sizeof(a[k]));
				a[k].cached = -1;
				a[k].engine = e;
				a[k].id = j->r.id;
				a[k].stop_at = j->stop_at;
				a[k].cancel_at = j->cancel_at;
				a[k].end_at = j->end_at;
			}
			j->r.ctx = a;
			EXPECT(t, cairn_engine_submit(e, &j->r) == 0);
		}
		if (!EXPECT(t, cairn_engine_step(e, &busy) == 0))
			break;
		if (step % 4 == 0)
			EXPECT(t, cairn_engine_verify(e) == 0);
	}
	cairn_engine_stats(e, &c->stats);
	EXPECT(t, c->stats.scheduler.num_running == 0 && c->stats.scheduler.device.num_seqs == 0);
	EXPECT(t, again || !c->stats.speculation.drafts);
	c->drafts += c->stats.speculation.draft_tokens;
	c->accepted += c->stats.speculation.accepted_tokens;
	c->fused += c->stats.fused_steps;
	c->swapped += again ? c->stats.scheduler.swapped : 0;
	c->recomputed += again ? c->stats.scheduler.recomputed : 0;
	c->trees += c->stats.speculation.trees;
	c->moved += c->stats.speculation.moved_rows;
	cairn_engine_destroy(e);
}

int crowd_same(const struct answer *a, const struct answer *b)
{
	size_t n = (size_t)a->num_ids;

	if (a->num_ids != b->num_ids || a->why != b->why || a->end_token != b->end_token ||
	    a->num_finished != b->num_finished || memcmp(a->ids, b->ids, n * sizeof(*a->ids)) ||
	    memcmp(a->logprob, b->logprob, n * sizeof(*a->logprob)))
		return 0;
	for (size_t i = 0; i < n; i++) {
		size_t top = (size_t)a->num_top[i];

		if (a->num_top[i] != b->num_top[i] ||
		    memcmp(a->top[i], b->top[i], top * sizeof(a->top[i][0])) ||
		    memcmp(a->top_logprob[i], b->top_logprob[i], top * sizeof(a->top_logprob[i][0])))
			return 0;
	}
	return 1;
}

void crowd_compare(struct cairn_test *t, struct crowd *c)
{
	for (int i = 0; i < c->num_jobs; i++) {
		const struct job *j = &c->jobs[i];

		for (int k = 0; k < j->r.num_seqs; k++) {
			c->tokens += j->want[k].num_ids;
			EXPECT(t, j->want[k].num_finished == 1);
			if (!EXPECT(t, crowd_same(&j->want[k], &j->got[k])))
				cairn_note(t, "job %d, answer %d: %d tokens, not %d; end %d, not %d", i, k,
					   j->got[k].num_ids, j->want[k].num_ids, j->got[k].why,
					   j->want[k].why);
		}
	}
}

static const struct cairn_nano_plan nano = {
	.num_batches = 3, .num_lanes = 2, .rows = { 1, 1, 1 }, .decodes = { 1, 2, 1 },
};
static const struct cairn_nano_plans plans = { .plans = &nano, .num = 1 };

void crowd_make_engine(struct crowd *c)
{
	static const int32_t grains[] = { 0, 1, -1 };
	/* Latent attention expands the keys of chunks of 16 rows and more, and the chunks' size depends on
	 * when passes are reported. */
	int32_t most = c->m->config.latent.kv_lora_rank ? 15 : 48;
	int32_t page = 1 + crowd_below(c, 5), swaps = crowd_below(c, 2);

	c->opt = (struct cairn_engine_options){
		.max_batch = 3 + crowd_below(c, 4), .max_rows = 8 + crowd_below(c, most - 7),
		.page_size = page, .max_context = PROMPT + NEW,
		.num_pages = (PROMPT + NEW) * (4 + crowd_below(c, 6)) / 4 / page + 1,
		.in_turn = !crowd_below(c, 4), .cache_grain = grains[crowd_below(c, 3)], .expected_new = 1,
		.host_pages = crowd_below(c, 2) * 120, .recompute_ns = swaps ? 100000 : 1,
		.swap_ns = swaps ? 1 : 100000, .decode = CAIRN_DECODE_UNFUSED, .no_graphs = crowd_below(c, 2),
		.repeatable = !crowd_below(c, 4), .nano = crowd_below(c, 3) ? NULL : &plans,
	};
	if (c->branches) {
		c->opt.repeatable = 0;
		c->opt.nano = NULL;
		c->opt.max_rows += crowd_below(c, 2) * 100;	/* more trees, and larger ones */
	}
	if (c->opt.repeatable && c->opt.cache_grain == 1)
		c->opt.cache_grain = 0;
	c->right = c->branches ? 0.5 + 0.1 * crowd_below(c, 5) : (double)crowd_below(c, 6) / 5;
}

void crowd_make_single(struct crowd *c, int max_new)
{
	struct job *j = &c->jobs[0];

	for (int i = 0; i < JOBS; i++)
		crowd_make_job(c, i);
	j->stop_at = j->cancel_at = j->end_at = 0;
	j->r.num_prompt = 30;
	j->r.max_new_tokens = max_new;
	j->r.num_seqs = 1;
	j->r.beam_width = 0;
	j->r.ignore_eos = 1;
	j->r.sampling = (struct cairn_sampling){
		.temperature = 1, .top_p = 1, .seed = 7, .num_logprobs = 2, .min_new_tokens = max_new / 2,
		.bias = j->bias, .num_bias = 2, .repetition_penalty = 1.5f, .frequency_penalty = 1,
	};
	for (int k = 0; k < 2; k++)	/* likely as soon as it is allowed */
		j->bias[k] = (struct cairn_logit_bias){ j->stop_ids[k] = 10 + k, 6 };
	c->num_jobs = 1;
	c->depth = 4;
}

void crowd_rounds(struct cairn_test *t, struct crowd *c, int rounds)
{
	c->seed = cairn_rand(t);
	c->num_jobs = JOBS;
	for (int k = 0; k < rounds; k++) {
		crowd_make_engine(c);
		for (int i = 0; i < JOBS; i++)
			crowd_make_job(c, i);
		crowd_run(t, c, 0);
		crowd_run(t, c, 1);
		crowd_compare(t, c);
	}
	cairn_note(t, "%lld tokens; %lld of %lld drafts right, %lld rows moved; %lld swapped, %lld redone",
		   (long long)c->tokens, (long long)c->accepted, (long long)c->drafts, (long long)c->moved,
		   (long long)c->swapped, (long long)c->recomputed);
}

void crowd_of_model(struct cairn_test *t, const char *table, const char *model, enum cairn_kv_form kv,
		    int32_t branches, int rounds)
{
	struct crowd *c = calloc(1, sizeof(*c));
	struct cairn_impl impl;
	struct golden g;

	if (!EXPECT(t, c) || open_model_as(t, table, model, kv, &impl, &g, &c->m)) {
		free(c);
		return;
	}
	c->branches = branches;
	crowd_rounds(t, c, rounds);
	EXPECT(t, c->drafts > 0 && c->fused == 0 && (!branches || (c->trees > 0 && c->moved > 0)));
	close_model(c->m, &g);
	free(c);
}

struct crowd *crowd_open_single(struct cairn_test *t, struct cairn_impl *impl, struct golden *g, int n)
{
	struct crowd *c = calloc(1, sizeof(*c));

	if (!EXPECT(t, c) || open_model(t, "cpu", "llama3_tiny", impl, g, &c->m)) {
		free(c);
		return NULL;
	}
	c->seed = cairn_rand(t);
	c->opt = (struct cairn_engine_options){
		.max_batch = 1, .max_rows = 64, .max_context = PROMPT + NEW, .decode = CAIRN_DECODE_UNFUSED,
	};
	crowd_make_single(c, n);
	c->jobs[0].r.num_stop_ids = 0;
	c->jobs[0].r.sampling.num_bias = 0;
	crowd_run(t, c, 0);
	EXPECT(t, c->jobs[0].want[0].num_ids == n);
	return c;
}
