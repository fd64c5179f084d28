// SPDX-License-Identifier: Apache-2.0
/* serve_incoming - requests in the worker: assembled from frames, submitted to the engine, and reported on */
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/serve/worker/serve_worker.h"

static void free_client(struct client *c)
{
	if (c->opened)
		cairn_grammar_close(c->w->grammar, c->opened);
	*c->from = c->next;
	if (c->next)
		c->next->from = c->from;
	free(c);
}

static int on_token(void *ctx, int32_t index, const struct cairn_token *token)
{
	struct client *c = ctx;
	struct cairn_wire_frame f = {
		.kind = CAIRN_WIRE_TOKEN, .request = c->request, .count = token->num_top,
		.token = { index, token->id, token->logprob, 0 },
	};

	cairn_wire_put(&c->w->out, &f);
	cairn_wire_put_pairs(&c->w->out, CAIRN_WIRE_TOP, c->request, token->top, token->top_logprob,
			     token->num_top);
	return 0;
}

static void on_prompt(void *ctx, int32_t position, const struct cairn_token *token)
{
	struct client *c = ctx;
	struct cairn_wire_frame f = {
		.kind = CAIRN_WIRE_PROMPT, .request = c->request, .count = token->num_top,
		.token = { position, token->id, token->logprob, token->rank },
	};

	cairn_wire_put(&c->w->out, &f);
	cairn_wire_put_pairs(&c->w->out, CAIRN_WIRE_TOP, c->request, token->top, token->top_logprob,
			     token->num_top);
}

static void on_finish(void *ctx, int32_t index, enum cairn_finish why, int32_t token)
{
	struct client *c = ctx;
	struct cairn_wire_frame f = {
		.kind = CAIRN_WIRE_FINISH, .request = c->request, .finish = { index, (int32_t)why, token },
	};

	cairn_wire_put(&c->w->out, &f);
	if (!--c->open)
		free_client(c);
}

static void on_started(void *ctx, int32_t cached_tokens)
{
	struct client *c = ctx;
	struct cairn_wire_frame f = {
		.kind = CAIRN_WIRE_STARTED, .request = c->request, .cached_tokens = cached_tokens,
	};

	cairn_wire_put(&c->w->out, &f);
}

static void drop(struct incoming *n)
{
	free(n->ids);
	free(n->stop_ids);
	free(n->bias);
	free(n->text);
	*n = (struct incoming){ 0 };
}

static void refuse(struct worker *w, uint64_t request, int error)
{
	struct cairn_wire_frame f = { .kind = CAIRN_WIRE_REFUSED, .request = request, .error = error };

	cairn_wire_put_text(&w->out, &f, cairn_last_error());
}

static int submit(struct worker *w, struct incoming *n)
{
	struct client *c = malloc(sizeof(*c));
	int ret;

	if (!c)
		return cairn_error(ENOMEM, "worker: no memory for a request");
	*c = (struct client){ w, w->clients, &w->clients, n->r.id, n->r.num_seqs, n->opened };
	if (c->next)
		c->next->from = &c->next;
	w->clients = c;
	n->r.prompt = n->ids;
	n->r.stop_ids = n->stop_ids;
	n->r.sampling.bias = n->bias;
	n->r.on_token = on_token;
	n->r.on_finish = on_finish;
	n->r.on_started = on_started;
	n->r.on_prompt = on_prompt;
	n->r.ctx = c;
	n->r.constraint = n->opened;
	ret = cairn_engine_submit(w->engine, &n->r);
	if (ret) {
		free_client(c);
		refuse(w, n->r.id, -ret);
	}
	drop(n);
	return ret == -ENOMEM ? ret : 0;
}

int worker_bad_frame(const struct cairn_wire_frame *f, const char *what)
{
	return cairn_error(EINVAL, "worker: message %d of request %llu: %s", f->kind,
			   (unsigned long long)f->request, what);
}

static int begin(struct worker *w, const struct cairn_wire_frame *f)
{
	struct incoming *n = &w->next;

	if (n->stage)
		return worker_bad_frame(f, "the previous request is incomplete");
	if (f->submit.num_prompt < 1 || f->submit.num_prompt > w->max_context || f->submit.num_seqs < 1 ||
	    f->submit.num_seqs > 1024 || f->submit.num_stop_ids < 0 || f->submit.num_stop_ids > 1024 ||
	    f->submit.num_bias < 0 || f->submit.num_bias > 65536)
		return worker_bad_frame(f, "a number is out of range");
	n->r = (struct cairn_request){
		.id = f->request, .num_prompt = f->submit.num_prompt,
		.max_new_tokens = f->submit.max_new_tokens, .num_seqs = f->submit.num_seqs,
		.num_stop_ids = f->submit.num_stop_ids, .beam_width = f->submit.beam_width,
		.salt = { f->submit.salt_hi, f->submit.salt_lo }, .deadline_ns = f->submit.deadline_ns,
		.sampling = { .num_bias = f->submit.num_bias }, .keep = w->keep,
		.prompt_logprobs = f->count, .adapter = f->submit.adapter, .num_given = f->submit.num_given,
	};
	n->ids = malloc((size_t)f->submit.num_prompt * sizeof(*n->ids));
	n->stop_ids = malloc((size_t)(f->submit.num_stop_ids + 1) * sizeof(*n->stop_ids));
	n->bias = malloc((size_t)(f->submit.num_bias + 1) * sizeof(*n->bias));
	if (!n->ids || !n->stop_ids || !n->bias)
		return cairn_error(ENOMEM, "worker: no memory for a request");
	n->stage = CAIRN_WIRE_SUBMIT;
	return 0;
}

static void take_sampling(struct incoming *n, const struct cairn_wire_frame *f)
{
	struct cairn_sampling *s = &n->r.sampling;

	s->temperature = f->sampling.temperature;
	s->top_p = f->sampling.top_p;
	s->min_p = f->sampling.min_p;
	s->presence_penalty = f->sampling.presence;
	s->frequency_penalty = f->sampling.frequency;
	s->repetition_penalty = f->sampling.repetition;
	n->r.length_penalty = f->sampling.length_penalty;
	s->top_k = f->sampling.top_k;
	s->min_new_tokens = f->sampling.min_new_tokens;
	s->num_logprobs = f->sampling.num_logprobs;
	s->seed = f->sampling.seed;
	n->r.ignore_eos = !!(f->count & CAIRN_WIRE_IGNORE_EOS);
	n->is_constrained = !!(f->count & CAIRN_WIRE_CONSTRAINED);
}

static int append(const struct cairn_wire_frame *f, int32_t *to, int64_t *have, int64_t want)
{
	if (*have + f->count > want)
		return worker_bad_frame(f, "more ids than were announced");
	memcpy(to + *have, f->ids, (size_t)f->count * sizeof(*to));
	*have += f->count;
	return 0;
}

/* ---- constraints ---- */

static int begin_constraint(struct incoming *n, const struct cairn_wire_frame *f)
{
	if (!n->is_constrained || n->constraint.kind || f->constraint.kind <= CAIRN_CONSTRAINT_NONE ||
	    f->constraint.kind >= CAIRN_NUM_CONSTRAINT_KINDS || f->constraint.num_bytes < 0 ||
	    f->constraint.num_bytes > CAIRN_GRAMMAR_MAX_TEXT || f->constraint.num_after < 0 ||
	    f->constraint.num_after > CAIRN_GRAMMAR_MAX_AFTER)
		return worker_bad_frame(f, "a constraint out of range");
	n->constraint = (struct cairn_constraint){
		.kind = (enum cairn_constraint_kind)f->constraint.kind,
		.num_bytes = (size_t)f->constraint.num_bytes, .num_after = (size_t)f->constraint.num_after,
	};
	n->text = malloc(n->constraint.num_bytes + n->constraint.num_after + 1);
	return n->text ? 0 : cairn_error(ENOMEM, "worker: no memory for a request");
}

/* Has the grammar process compile the constraint of the request that has just arrived. */
static int wait_for_constraint(struct worker *w)
{
	struct incoming *n = &w->next, **last = &w->waiting, *waiting;
	int ret = w->grammar ? 0 : cairn_error(EOPNOTSUPP, "%s", w->no_grammar);

	n->constraint.text = n->text;
	n->constraint.after = n->text + n->constraint.num_bytes;
	if (!ret)
		ret = cairn_grammar_open(w->grammar, &n->constraint, n->r.num_seqs, &n->opened);
	if (ret && ret != -ENOMEM) {
		refuse(w, n->r.id, -ret);
		drop(n);
		return 0;
	}
	waiting = ret ? NULL : malloc(sizeof(*waiting));
	if (!waiting)
		return cairn_error(ENOMEM, "worker: no memory for a request");
	*waiting = *n;
	*n = (struct incoming){ 0 };
	while (*last)
		last = &(*last)->later;
	*last = waiting;
	return 0;
}

int worker_admit(struct worker *w)
{
	struct incoming **at = &w->waiting, *n;
	int ret = 0;

	if (w->grammar)
		cairn_grammar_poll(w->grammar);
	while (!ret && (n = *at)) {
		enum cairn_grammar_state state = cairn_grammar_state(w->grammar, n->opened);

		if (state == CAIRN_GRAMMAR_OPENING) {
			at = &n->later;
			continue;
		}
		*at = n->later;
		if (state == CAIRN_GRAMMAR_OPEN) {
			ret = submit(w, n);
		} else {
			refuse(w, n->r.id, state == CAIRN_GRAMMAR_LOST ? EIO :
			       cairn_grammar_is_usable(w->grammar) ? EINVAL : EOPNOTSUPP);
			cairn_grammar_close(w->grammar, n->opened);
			drop(n);
		}
		free(n);
	}
	return ret;
}

/* Returns whether the request was waiting; it is then refused, because it has no answers that could end. */
static int cancel_waiting(struct worker *w, uint64_t request)
{
	for (struct incoming **at = &w->waiting, *n; (n = *at); at = &n->later) {
		if (n->r.id != request)
			continue;
		*at = n->later;
		cairn_error(ECANCELED, "cancelled");
		refuse(w, request, ECANCELED);
		cairn_grammar_close(w->grammar, n->opened);
		drop(n);
		free(n);
		return 1;
	}
	return 0;
}

void worker_drop_requests(struct worker *w)
{
	for (struct incoming *n; (n = w->waiting);) {
		w->waiting = n->later;
		drop(n);
		free(n);
	}
	drop(&w->next);
	while (w->clients)
		free_client(w->clients);
}

/* ---- frames ---- */

/* Handles SAMPLING and what follows it. */
static int go_on(struct worker *w, const struct cairn_wire_frame *f)
{
	struct incoming *n = &w->next;

	if (!n->stage || f->request != n->r.id ||
	    (f->kind == CAIRN_WIRE_SAMPLING) != (n->stage == CAIRN_WIRE_SUBMIT))
		return worker_bad_frame(f, "out of order");
	if (f->kind == CAIRN_WIRE_SAMPLING) {
		take_sampling(n, f);
	} else if (f->kind == CAIRN_WIRE_IDS) {
		CAIRN_TRY(append(f, n->ids, &n->num_ids, n->r.num_prompt));
	} else if (f->kind == CAIRN_WIRE_STOP_IDS) {
		CAIRN_TRY(append(f, n->stop_ids, &n->num_stop_ids, n->r.num_stop_ids));
	} else if (f->kind == CAIRN_WIRE_CONSTRAINT) {
		CAIRN_TRY(begin_constraint(n, f));
	} else if (f->kind == CAIRN_WIRE_TEXT) {
		if (n->num_text + (size_t)f->count > n->constraint.num_bytes + n->constraint.num_after)
			return worker_bad_frame(f, "more text than was announced");
		memcpy(n->text + n->num_text, f->text, (size_t)f->count);
		n->num_text += (size_t)f->count;
	} else {
		if (n->num_bias + f->count > n->r.sampling.num_bias)
			return worker_bad_frame(f, "more pairs than were announced");
		for (int32_t i = 0; i < f->count; i++)
			n->bias[n->num_bias++] =
				(struct cairn_logit_bias){ f->pairs[i].id, f->pairs[i].value };
	}
	n->stage = f->kind;
	if (n->num_ids < n->r.num_prompt || n->num_stop_ids < n->r.num_stop_ids ||
	    n->num_bias < n->r.sampling.num_bias)
		return 0;
	if (!n->is_constrained)
		return submit(w, n);
	if (!n->constraint.kind || n->num_text < n->constraint.num_bytes + n->constraint.num_after)
		return 0;
	return wait_for_constraint(w);
}

int worker_take(struct worker *w, const struct cairn_wire_frame *f)
{
	int ret = 0;

	switch (f->kind) {
	case CAIRN_WIRE_SUBMIT:
		return begin(w, f);
	case CAIRN_WIRE_SAMPLING:
	case CAIRN_WIRE_IDS:
	case CAIRN_WIRE_STOP_IDS:
	case CAIRN_WIRE_BIAS:
	case CAIRN_WIRE_CONSTRAINT:
	case CAIRN_WIRE_TEXT:
		return go_on(w, f);
	case CAIRN_WIRE_CANCEL:
		ret = cancel_waiting(w, f->request) ? 0 : cairn_engine_cancel(w->engine, f->request);
		break;
	case CAIRN_WIRE_STOP:
		ret = cairn_engine_stop(w->engine, f->request, f->index);
		break;
	case CAIRN_WIRE_QUIT:
		w->quit = 1;
		break;
	default:
		return worker_bad_frame(f, "not for a worker");
	}
	return ret == -ENOENT ? 0 : ret;	/* -ENOENT: the answer has ended meanwhile */
}
