// SPDX-License-Identifier: Apache-2.0
/*
 * worker_treat - penalties, biases, forbidden tokens and log-probabilities
 *
 *   logits -- copy, if both raw and treated logits are needed --> raw logits
 *     | penalize               per-row values; lists of ids that were uploaded with their request
 *     | mask_logits            masks that were uploaded just before (worker_mask.c)
 *   logits -- argmax, sample --> drawn
 *     | token_counts           counts the drawn tokens in the slots of the rows that have one
 *     | logprobs               of the raw logits where wanted; of the treated ones where wanted late
 *
 * All of this is part of the pass and of its graph. Before it, outside the graph, new slots are cleared and
 * count their prompts; a drafted row gets a slot of its own, a copy that counts the drafts before the row.
 * The device counts the tokens in flight, because the host does not know them yet.
 */
#include <stdlib.h>
#include <string.h>

#include "serving/engine/worker/worker_impl.h"


void worker_treat_nothing(struct arrays *a, int32_t n)
{
	a->slots[n] = -1;
	a->bias_at[n] = a->num_bias[n] = a->forbidden_at[n] = a->num_forbidden[n] = 0;
	a->wanted[n] = a->wanted_late[n] = 0;
	a->mask[n] = -1;
	a->repetition[n] = 1;
	a->frequency[n] = a->presence[n] = 0;
}

void worker_treat_part(struct cairn_worker *w, int32_t n, const struct cairn_worker_treat *treat)
{
	struct flight *f = w->flight;
	struct arrays *a = &f->host;
	struct kind *kind = &w->kind;

	worker_treat_nothing(a, n);
	if (!treat)
		return;
	if (treat->slot >= 0) {
		a->slots[n] = treat->slot;
		a->repetition[n] = treat->repetition;
		a->frequency[n] = treat->frequency;
		a->presence[n] = treat->presence;
		kind->counted = 1;
		if (treat->begins) {
			f->begins.treats[f->begins.num++] = treat;
			f->begins.num_tokens += treat->num_prompt;
		}
		if (treat->forks) {
			f->forks.treats[f->forks.num++] = treat;
			f->forks.num_tokens += treat->num_drafts;
		}
	}
	a->bias_at[n] = treat->bias_at;
	a->num_bias[n] = treat->num_bias;
	a->forbidden_at[n] = treat->forbidden_at;
	a->num_forbidden[n] = treat->num_forbidden;
	kind->penalized |= treat->slot >= 0 || treat->num_bias || treat->num_forbidden;
	if (treat->masked) {
		a->mask[n] = f->num_masks++;
		kind->masked = 1;
	}
	if (!treat->num_logprobs)
		return;
	(treat->late ? a->wanted_late : a->wanted)[n] = 1;
	kind->logprobs |= !treat->late;
	kind->late |= !!treat->late;
	if (treat->num_logprobs - 1 > kind->k)
		kind->k = treat->num_logprobs - 1;
}

/* ---- memory ---- */

static int reserve_begins(struct cairn_worker *w, struct begins *b, size_t need)
{
	void *p;

	if (need <= b->room)
		return 0;
	/* A pass in flight may still read the device's block; no other flight uses the host's. */
	CAIRN_TRY(TABLE(w, stream_sync, w->stream));
	b->room = 0;
	worker_host_free(w, b->host);
	b->host = NULL;
	if (b->dev)
		w->impl->mem_free(b->dev);
	b->dev = NULL;
	CAIRN_TRY(worker_host_alloc(w, 2 * need * sizeof(*b->host), &p));
	b->host = p;
	CAIRN_TRY(TABLE(w, mem_alloc, &p, 2 * need * sizeof(*b->dev)));
	b->dev = p;
	b->room = 2 * need;
	return 0;
}

/*
 * Clears the new slots and counts their prompts; or makes the forks of slots and counts their drafts. A fork
 * of a slot from itself only counts: token_counts skips copies to slot -1.
 */
static int begin_slots(struct cairn_worker *w, struct begins *b, int are_forks)
{
	size_t num = (size_t)b->num, need = 4 * num + 1 + (size_t)b->num_tokens;
	struct cairn_token_counts_args args = {
		.size = sizeof(args), .counts = w->counts, .num_slots = CAIRN_WORKER_SLOTS(w->opt.max_batch),
		.vocab = w->vocab, .num_copies = b->num, .num_tokens = b->num_tokens,
		.num_segments = b->num_tokens ? b->num : 0, .prompt = !are_forks,
	};
	int32_t *slots, *to, *from, *indptr, *tokens;

	CAIRN_TRY(reserve_begins(w, b, need));
	slots = b->host;
	to = slots + num;
	from = to + num;
	indptr = from + num;
	tokens = indptr + num + 1;
	indptr[0] = 0;
	for (int32_t i = 0; i < b->num; i++) {
		const struct cairn_worker_treat *t = b->treats[i];
		const int32_t *counted = are_forks ? t->drafts : t->prompt;
		int32_t n = are_forks ? t->num_drafts : t->num_prompt;

		slots[i] = t->slot;
		to[i] = are_forks && t->from == t->slot ? -1 : t->slot;
		from[i] = are_forks ? t->from : -1;
		if (n)
			memcpy(tokens + indptr[i], counted, (size_t)n * sizeof(*tokens));
		indptr[i + 1] = indptr[i] + n;
	}
	CAIRN_TRY(TABLE(w, mem_copy, b->dev, b->host, need * sizeof(*b->dev), CAIRN_COPY_TO_DEVICE,
			w->stream));
	args.copy_to = b->dev + num;
	args.copy_from = b->dev + 2 * num;
	if (b->num_tokens) {
		args.slots = b->dev;
		args.indptr = b->dev + 3 * num;
		args.tokens = b->dev + 4 * num + 1;
	}
	return TABLE(w, token_counts, &args, w->stream);
}

int worker_treat_prepare(struct cairn_worker *w)
{
	size_t logits = (size_t)w->opt.max_batch * (size_t)w->vocab;
	void *p;

	if (w->kind.counted && !w->counts) {
		CAIRN_TRY(TABLE(w, mem_alloc, &p, CAIRN_WORKER_SLOTS(logits) * sizeof(*w->counts)));
		w->counts = p;
	}
	if (worker_redraws(w) && w->kind.logprobs && !w->raw_logits) {
		CAIRN_TRY(TABLE(w, mem_alloc, &p, logits * sizeof(*w->raw_logits)));
		w->raw_logits = p;
	}
	if (w->flight->begins.num)
		CAIRN_TRY(begin_slots(w, &w->flight->begins, 0));
	return w->flight->forks.num ? begin_slots(w, &w->flight->forks, 1) : 0;
}

void worker_treat_destroy(struct cairn_worker *w)
{
	void *const memory[] = { w->counts, w->raw_logits, w->bias_ids, w->bias, w->forbidden_ids };

	for (size_t i = 0; i < sizeof(memory) / sizeof(memory[0]); i++) {
		if (memory[i])
			w->impl->mem_free(memory[i]);
	}
	for (int i = 0; i < 2 * CAIRN_WORKER_FLIGHTS; i++) {
		struct begins *b = i % 2 ? &w->flights[i / 2].forks : &w->flights[i / 2].begins;

		if (b->dev)
			w->impl->mem_free(b->dev);
		worker_host_free(w, b->host);
	}
	worker_host_free(w, w->list_mirror);
	free(w->bias_spans.taken);
	free(w->forbidden_spans.taken);
}

/* ---- operations ---- */

int worker_treat_before(struct cairn_worker *w, int32_t rows)
{
	struct cairn_penalize_args args = {
		.size = sizeof(args), .logits = w->logits, .bias_at = w->dev.bias_at,
		.num_bias = w->dev.num_bias, .bias_ids = w->bias_ids, .bias = w->bias,
		.forbidden_at = w->dev.forbidden_at, .num_forbidden = w->dev.num_forbidden,
		.forbidden_ids = w->forbidden_ids, .rows = rows, .vocab = w->vocab,
	};

	if (worker_redraws(w) && w->kind.logprobs)
		CAIRN_TRY(TABLE(w, mem_copy, w->raw_logits, w->logits,
				(size_t)rows * (size_t)w->vocab * sizeof(*w->logits), CAIRN_COPY_ON_DEVICE,
				w->stream));
	if (w->kind.counted) {
		args.counts = w->counts;
		args.num_slots = CAIRN_WORKER_SLOTS(w->opt.max_batch);
		args.slots = w->dev.slots;
		args.repetition = w->dev.repetition;
		args.frequency = w->dev.frequency;
		args.presence = w->dev.presence;
	}
	if (!w->bias_ids)		/* no request has lists yet */
		args.bias_at = args.num_bias = args.forbidden_at = args.num_forbidden = NULL;
	if (w->kind.penalized)
		CAIRN_TRY(TABLE(w, penalize, &args, w->stream));
	return w->kind.masked ? worker_mask_apply(w, rows) : 0;
}

static int logprobs(struct cairn_worker *w, int32_t rows, const float *logits, const int32_t *wanted)
{
	int32_t *ids = (int32_t *)w->logprobs + w->opt.max_batch, k = w->kind.k;
	struct cairn_logprobs_args args = {
		.size = sizeof(args), .chosen = (float *)w->logprobs, .logits = logits, .tokens = w->drawn,
		.wanted = wanted, .rows = rows, .vocab = w->vocab, .k = k,
	};

	if (k) {
		args.top_ids = ids;
		args.top = (float *)(ids + (size_t)w->opt.max_batch * (size_t)k);
	}
	return TABLE(w, logprobs, &args, w->stream);
}

int worker_treat_after(struct cairn_worker *w, int32_t rows)
{
	struct cairn_token_counts_args counts = {
		.size = sizeof(counts), .counts = w->counts, .tokens = w->drawn, .slots = w->dev.slots,
		.num_slots = CAIRN_WORKER_SLOTS(w->opt.max_batch), .vocab = w->vocab, .num_tokens = rows,
		.num_segments = rows,
	};

	if (w->kind.counted)
		CAIRN_TRY(TABLE(w, token_counts, &counts, w->stream));
	if (w->kind.logprobs)
		CAIRN_TRY(logprobs(w, rows, worker_redraws(w) ? w->raw_logits : w->logits, w->dev.wanted));
	if (w->kind.late)
		CAIRN_TRY(logprobs(w, rows, w->logits, w->dev.wanted_late));
	return 0;
}

/* ---- lists ---- */

/* Allocates the first gap that is long enough. */
static int take_span(struct spans *s, int32_t len, int32_t *at)
{
	int32_t i, begin = 0;

	if (s->num == s->room) {
		int32_t room = s->room ? 2 * s->room : 64;
		void *taken = realloc(s->taken, (size_t)room * sizeof(*s->taken));

		if (!taken)
			return cairn_error(ENOMEM, "worker: no memory for %d lists", room);
		s->taken = taken;
		s->room = room;
	}
	for (i = 0; i < s->num && s->taken[i].at - begin < len; i++)
		begin = s->taken[i].at + s->taken[i].len;
	if (begin + len > CAIRN_WORKER_LISTS)
		return cairn_error(EAGAIN, "the queue is full: too many biases and stop ids in its requests");
	memmove(s->taken + i + 1, s->taken + i, (size_t)(s->num - i) * sizeof(*s->taken));
	s->taken[i].at = *at = begin;
	s->taken[i].len = len;
	s->num++;
	return 0;
}

static void give_span(struct spans *s, int32_t at, int32_t len)
{
	int32_t i = 0;

	while (i < s->num && (s->taken[i].at != at || s->taken[i].len != len))
		i++;
	if (!len || i == s->num)
		return;
	s->num--;
	memmove(s->taken + i, s->taken + i + 1, (size_t)(s->num - i) * sizeof(*s->taken));
}

static int create_lists(struct cairn_worker *w)
{
	int32_t **const lists[] = { &w->forbidden_ids, (int32_t **)&w->bias, &w->bias_ids };
	void *p;

	if (w->bias_ids)
		return 0;
	worker_drop_graphs(w);		/* captured graphs do not read the lists */
	for (int i = 0; i < 3; i++) {
		if (*lists[i])
			continue;
		CAIRN_TRY(TABLE(w, mem_alloc, &p, CAIRN_WORKER_LISTS * sizeof(int32_t)));
		*lists[i] = p;
	}
	if (w->list_mirror)
		return 0;
	CAIRN_TRY(worker_host_alloc(w, 3 * CAIRN_WORKER_LISTS * sizeof(int32_t), &p));
	w->list_mirror = p;
	return 0;
}

/* Uploads from the mirror in stream order. If a place is reused, the last copy wins, and it precedes the
 * passes that read it. */
static int upload(struct cairn_worker *w, void *to, const void *from, int32_t num)
{
	return TABLE(w, mem_copy, to, from, (size_t)num * 4, CAIRN_COPY_TO_DEVICE, w->stream);
}

static int upload_bias(struct cairn_worker *w, const struct cairn_logit_bias *bias, int32_t num, int32_t at)
{
	int32_t *ids = w->list_mirror + at;
	float *values = (float *)(w->list_mirror + 2 * CAIRN_WORKER_LISTS) + at;

	for (int32_t i = 0; i < num; i++) {
		ids[i] = bias[i].token;
		values[i] = bias[i].bias;
	}
	CAIRN_TRY(upload(w, w->bias_ids + at, ids, num));
	return upload(w, w->bias + at, values, num);
}

static int upload_forbidden(struct cairn_worker *w, const int32_t *forbidden, int32_t num, int32_t at)
{
	int32_t *ids = w->list_mirror + CAIRN_WORKER_LISTS + at;

	memcpy(ids, forbidden, (size_t)num * sizeof(*ids));
	return upload(w, w->forbidden_ids + at, ids, num);
}

int cairn_worker_add_lists(struct cairn_worker *w, const struct cairn_logit_bias *bias, int32_t num_bias,
			   const int32_t *forbidden, int32_t num_forbidden, int32_t *bias_at,
			   int32_t *forbidden_at)
{
	int32_t at = 0, other = 0;
	int ret = 0;

	CAIRN_TRY(create_lists(w));
	if (num_bias)
		CAIRN_TRY(take_span(&w->bias_spans, num_bias, &at));
	if (num_forbidden)
		ret = take_span(&w->forbidden_spans, num_forbidden, &other);
	if (ret) {
		give_span(&w->bias_spans, at, num_bias);
		return ret;
	}
	if (num_bias)
		ret = upload_bias(w, bias, num_bias, at);
	if (!ret && num_forbidden)
		ret = upload_forbidden(w, forbidden, num_forbidden, other);
	if (ret) {
		give_span(&w->bias_spans, at, num_bias);
		give_span(&w->forbidden_spans, other, num_forbidden);
		return ret;
	}
	*bias_at = at;
	*forbidden_at = other;
	return !w->opt.tap ? 0 : w->opt.tap->lists(w->opt.tap->ctx, bias, num_bias, forbidden,
						   num_forbidden, at, other);
}

void cairn_worker_remove_lists(struct cairn_worker *w, int32_t bias_at, int32_t num_bias,
			       int32_t forbidden_at, int32_t num_forbidden)
{
	if (w->opt.tap && (num_bias || num_forbidden))
		w->opt.tap->unlist(w->opt.tap->ctx, bias_at, num_bias, forbidden_at, num_forbidden);
	give_span(&w->bias_spans, bias_at, num_bias);
	give_span(&w->forbidden_spans, forbidden_at, num_forbidden);
}
