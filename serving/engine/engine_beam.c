// SPDX-License-Identifier: Apache-2.0
/*
 * engine_beam - beam search
 *
 * Each beam is a lockstep sequence of the scheduler. With width w and m end tokens, each beam's candidates
 * are its w + m most likely next tokens. That is enough: at least w of them do not end an answer, so there
 * are always w beams for the next step.
 *
 *   - Candidates that end an answer and are among the w best of all become hypotheses; the w best hypotheses
 *     by sum / length^length_penalty are kept.
 *   - The w best of the others are the beams of the next step. A beam with several successors is forked, a
 *     beam with none is stopped, and a beam with one has its drawn token replaced.
 *
 * The search ends when there are w hypotheses, or at max_new_tokens, where the live beams become hypotheses.
 * (This is Hugging Face's search with early_stopping = True.) All beams are equal in the first step, so only
 * one counts.
 *
 * A preempted beam draws later than the others, which are held until it has drawn. Tokens are stored as nodes
 * that point to their predecessor, because beams share prefixes.
 */
#include "serving/engine/engine_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CANDIDATES	CAIRN_LOGPROBS_MAX

struct node {
	int32_t before;			/* index of the previous node; -1: this is the first token */
	int32_t token;
	float logprob;
};

struct beam {
	int32_t index;			/* of its sequence */
	int32_t node;			/* node of its last token; -1: none yet */
	double sum;			/* of its tokens' log-probabilities */
	int has_drawn;			/* has drawn in this step, so the candidates are valid */
	int32_t num;			/* candidates */
	int32_t tokens[MAX_CANDIDATES];
	float logprobs[MAX_CANDIDATES];
};

struct hypothesis {
	double score;
	int32_t node;			/* the last token passed to on_token */
	int32_t end_token;		/* the token that ended it; -1: max_new_tokens */
};

struct candidate {
	double sum;			/* of log-probabilities, with this token */
	float logprob;
	int32_t beam, rank, token;	/* rank: among the beam's candidates */
};

struct beams {
	int32_t width, num_candidates, num_live, num_hypotheses, num_nodes;
	int32_t length;			/* tokens of each beam so far */
	struct node *nodes;		/* up to [width * max_new_tokens] */
	int32_t nodes_room;
	struct hypothesis *hypotheses;	/* [width + 1], best first */
	struct candidate *candidates;	/* [width * num_candidates] */
	struct beam *next;		/* [width], the beams of the next step */
	struct beam live[];
};

static int32_t count_ends(const struct cairn_engine *e, const struct cairn_request *r)
{
	return r->num_stop_ids + (r->ignore_eos ? 0 : e->config->num_eos);
}

int engine_check_beams(const struct cairn_engine *e, const struct cairn_request *r)
{
	const struct cairn_sampling *s = &r->sampling;
	int32_t most = MAX_CANDIDATES / 2 < e->opt.max_batch ? MAX_CANDIDATES / 2 : e->opt.max_batch;
	int32_t vocab = e->config->vocab_size, candidates = MAX_CANDIDATES < vocab ? MAX_CANDIDATES : vocab;

	if (r->beam_width < 1 || r->beam_width > most)
		return cairn_error(EINVAL, "beam_width: is %d, must be in 1..%d", r->beam_width, most);
	if (r->beam_width + count_ends(e, r) > candidates)
		return cairn_error(EINVAL, "stop_ids: %d ids, beam_width %d and %d end-of-sequence tokens: "
				   "the sum must be at most %d", r->num_stop_ids, r->beam_width,
				   count_ends(e, r) - r->num_stop_ids, candidates);
	if (r->num_seqs > r->beam_width)
		return cairn_error(EINVAL, "num_seqs: is %d, there are only %d beams", r->num_seqs,
				   r->beam_width);
	if (!isfinite(r->length_penalty))
		return cairn_error(EINVAL, "length_penalty: is not finite");
	if (s->presence_penalty != 0 || s->frequency_penalty != 0 ||
	    (s->repetition_penalty != 0 && s->repetition_penalty != 1))
		return cairn_error(EINVAL, "beam_width: cannot be combined with presence_penalty, "
				   "frequency_penalty or repetition_penalty");
	if (s->num_logprobs > 1)
		return cairn_error(EINVAL, "num_logprobs: is %d, must be 0 or 1 with beam_width",
				   s->num_logprobs);
	return 0;
}

int engine_beams_create(const struct cairn_engine *e, struct request *r)
{
	int32_t width = r->req.beam_width;
	struct beams *b = calloc(1, sizeof(*b) + 2 * (size_t)width * sizeof(*b->live));

	if (!b)
		return cairn_error(ENOMEM, "engine: no memory for %d beams", width);
	r->beams = b;
	b->width = b->num_live = width;
	b->num_candidates = width + count_ends(e, &r->req);
	b->next = b->live + width;
	b->hypotheses = calloc((size_t)width + 1, sizeof(*b->hypotheses));
	b->candidates = calloc((size_t)(width * b->num_candidates), sizeof(*b->candidates));
	if (!b->hypotheses || !b->candidates)
		return cairn_error(ENOMEM, "engine: no memory for %d beams", width);
	for (int32_t i = 0; i < width; i++) {
		b->live[i].index = i;
		b->live[i].node = -1;
	}
	return 0;
}

void engine_beams_destroy(struct beams *b)
{
	if (!b)
		return;
	free(b->nodes);
	free(b->hypotheses);
	free(b->candidates);
	free(b);
}

int32_t engine_beams_candidates(const struct beams *b)
{
	return b->num_candidates;
}

void engine_beams_take(const struct cairn_engine *e, struct request *r, int32_t index,
		       const struct cairn_worker_result *w, int32_t i)
{
	struct beams *b = r->beams;
	int32_t going_on = 0;
	const int32_t *top = w->top + (size_t)i * (size_t)w->k;
	const float *logprobs = w->top_logprob + (size_t)i * (size_t)w->k;

	for (int32_t k = 0; k < b->num_live; k++) {
		struct beam *beam = &b->live[k];

		if (beam->index != index)
			continue;
		beam->has_drawn = 1;
		beam->num = 0;
		for (int32_t c = 0; c < b->num_candidates && top[c] >= 0 && isfinite(logprobs[c]); c++) {
			beam->tokens[c] = top[c];
			beam->logprobs[c] = logprobs[c];
			beam->num++;
			going_on += !engine_is_end(e, r, top[c]);
		}
		r->bad |= going_on < b->width;
	}
}

/* Sorts by sum, best first; ties by beam and rank. */
static int by_sum(const void *pa, const void *pb)
{
	const struct candidate *a = pa, *b = pb;

	if (a->sum != b->sum)
		return a->sum < b->sum ? 1 : -1;
	return a->beam != b->beam ? a->beam - b->beam : a->rank - b->rank;
}

static void add_hypothesis(struct beams *b, const struct request *r, double sum, int32_t length, int32_t node,
			   int32_t end_token)
{
	double score = sum / pow(length, (double)r->req.length_penalty);
	int32_t at = b->num_hypotheses;

	for (; at && b->hypotheses[at - 1].score < score; at--)
		b->hypotheses[at] = b->hypotheses[at - 1];
	b->hypotheses[at] = (struct hypothesis){ score, node, end_token };
	if (b->num_hypotheses < b->width)
		b->num_hypotheses++;
}

static int add_node(struct beams *b, int32_t before, int32_t token, float logprob, int32_t *node)
{
	if (b->num_nodes == b->nodes_room) {
		int32_t room = b->nodes_room ? 2 * b->nodes_room : 64;
		void *nodes = realloc(b->nodes, (size_t)room * sizeof(*b->nodes));

		if (!nodes)
			return cairn_error(ENOMEM, "engine: no memory for beams");
		b->nodes = nodes;
		b->nodes_room = room;
	}
	b->nodes[b->num_nodes] = (struct node){ before, token, logprob };
	*node = b->num_nodes++;
	return 0;
}

/* Sorts the candidates into hypotheses and b->next. An entry of b->next still has the index of its parent
 * beam. */
static int choose(struct cairn_engine *e, struct request *r, int32_t *num_next)
{
	struct beams *b = r->beams;
	int32_t num = 0, beams = b->length ? b->num_live : 1;

	for (int32_t i = 0; i < beams; i++) {
		for (int32_t c = 0; c < b->live[i].num; c++)
			b->candidates[num++] = (struct candidate){
				b->live[i].sum + (double)b->live[i].logprobs[c], b->live[i].logprobs[c], i, c,
				b->live[i].tokens[c],
			};
	}
	qsort(b->candidates, (size_t)num, sizeof(*b->candidates), by_sum);
	*num_next = 0;
	for (int32_t i = 0; i < num && *num_next < b->width; i++) {
		const struct candidate *c = &b->candidates[i];
		struct beam *next = &b->next[*num_next];

		if (engine_is_end(e, r, c->token)) {
			int32_t node = b->live[c->beam].node, end = -1;

			/* The end token's log-probability is part of the answer's sum. */
			if (i < b->width) {
				end = c->token;
				add_hypothesis(b, r, c->sum, b->length + 1, node, end);
			}
			continue;
		}
		next->index = c->beam;
		next->sum = c->sum;
		CAIRN_TRY(add_node(b, b->live[c->beam].node, c->token, c->logprob, &next->node));
		++*num_next;
	}
	b->length++;
	return 0;
}

/* Changes the scheduler's sequences from the beams of b->live to those of b->next. */
static int rearrange(struct cairn_engine *e, struct request *r, int32_t num_next)
{
	struct beams *b = r->beams;

	for (int32_t i = 0; i < b->num_live; i++) {
		int32_t children = 0;

		CAIRN_TRY(cairn_scheduler_hold(e->scheduler, r->handle, b->live[i].index, 0));
		for (int32_t k = 0; k < num_next; k++)
			children += b->next[k].index == i;
		if (!children)
			CAIRN_TRY(cairn_scheduler_stop(e->scheduler, r->handle, b->live[i].index));
	}
	for (int32_t k = 0; k < num_next; k++) {
		struct beam *next = &b->next[k];
		int32_t from = next->index, index = b->live[from].index;

		if (b->live[from].has_drawn)	/* its first child takes over its sequence */
			b->live[from].has_drawn = 0;
		else
			CAIRN_TRY(cairn_scheduler_fork(e->scheduler, r->handle, index, &index));
		CAIRN_TRY(cairn_scheduler_set_last(e->scheduler, r->handle, index,
						   b->nodes[next->node].token));
		next->index = index;
		next->has_drawn = 0;
	}
	memcpy(b->live, b->next, (size_t)num_next * sizeof(*b->live));
	b->num_live = num_next;
	return 0;
}

/* Passes the tokens up to a node to on_token, first to last. Returns whether on_token ended the answer. */
static int give(const struct request *r, int32_t index, int32_t node)
{
	const struct beams *b = r->beams;
	const struct node *n = &b->nodes[node];
	struct cairn_token token;

	if (node < 0)
		return 0;
	if (give(r, index, n->before))
		return 1;
	token = (struct cairn_token){ .id = n->token, .logprob = n->logprob };
	return r->req.on_token && r->req.on_token(r->req.ctx, index, &token);
}

static int finish(struct cairn_engine *e, struct request *r)
{
	struct beams *b = r->beams;
	int32_t num = r->num_answers;
	int ret = cairn_scheduler_cancel(e->scheduler, r->handle);

	if (ret && ret != -ENOENT)	/* -ENOENT: they have already ended by their length */
		return ret;
	for (int32_t i = 0; i < num; i++) {
		int has = i < b->num_hypotheses;
		int32_t end = has ? b->hypotheses[i].end_token : -1;
		enum cairn_finish why = end >= 0 ? CAIRN_FINISH_STOP : CAIRN_FINISH_LENGTH;

		if (has && !r->cancelled && give(r, i, b->hypotheses[i].node)) {
			why = CAIRN_FINISH_STOP;
			end = -1;
		}
		if (r->bad)
			why = CAIRN_FINISH_FAILED;
		engine_finish(e, r, i, r->cancelled ? CAIRN_FINISH_CANCELLED : why, end);
	}
	return 0;
}

int engine_beams_advance(struct cairn_engine *e, struct request *r)
{
	struct beams *b = r->beams;
	int32_t num_next, waiting = 0;

	if (r->bad) {
		b->num_hypotheses = 0;
		return finish(e, r);
	}
	for (int32_t i = 0; i < b->num_live; i++)
		waiting += !b->live[i].has_drawn;
	if (waiting == b->num_live)
		return 0;		/* another draw of this pass has already advanced the beams */
	if (waiting) {
		/* at the last token the scheduler has already retired the beams that have drawn */
		int last = b->length + 1 == r->req.max_new_tokens;

		for (int32_t i = 0; i < b->num_live && !last; i++) {
			if (b->live[i].has_drawn)
				CAIRN_TRY(cairn_scheduler_hold(e->scheduler, r->handle, b->live[i].index, 1));
		}
		return 0;
	}
	CAIRN_TRY(choose(e, r, &num_next));
	if (b->length == r->req.max_new_tokens) {
		for (int32_t k = 0; k < num_next; k++)
			add_hypothesis(b, r, b->next[k].sum, b->length, b->next[k].node, -1);
		num_next = 0;
	}
	if (!num_next || b->num_hypotheses == b->width)
		return finish(e, r);
	return rearrange(e, r, num_next);
}
