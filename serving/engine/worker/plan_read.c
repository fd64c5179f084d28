// SPDX-License-Identifier: Apache-2.0
/*
 * plan_read - reads and checks plans
 *
 * Everything that a worker or the tiers use as an index is checked here, because they check nothing
 * themselves. Lists point into the bytes of the plan.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "serving/engine/worker/plan_impl.h"

/* The smallest record; bounds the number of records in len bytes. */
#define MIN_RECORD	sizeof(struct plan_moves)

struct reader {
	const unsigned char *bytes;
	size_t at, len;
	const struct cairn_plan_limits *limits;
	struct cairn_plan *plan;
	int32_t rows, scored;		/* of the parts so far */
	int32_t rows_of_last;		/* of the last part; 0: it takes no draws */
	int32_t last_row;		/* of its last draw; -1: none */
};

static int bad(const char *member, long long value)
{
	return cairn_error(EINVAL, "plan: %s: %lld", member, value);
}

static int out_of(int64_t value, int64_t lo, int64_t hi)
{
	return value < lo || value > hi;
}

/* Takes `bytes` bytes and what pads them. */
static int take(struct reader *r, size_t bytes, const void **out)
{
	const size_t padded = plan_padded(bytes);

	*out = NULL;
	if (padded < bytes || padded > r->len - r->at)
		return bad("length", (long long)r->len);
	*out = r->bytes + r->at;
	r->at += padded;
	return 0;
}

/* Takes a list of num numbers, each in 0 .. end - 1. */
static int take_ids(struct reader *r, int32_t num, int32_t end, const char *member, const int32_t **out)
{
	const void *p;

	if (num < 0 || take(r, (size_t)num * sizeof(**out), &p))
		return bad(member, num);
	*out = p;
	for (int32_t i = 0; i < num; i++)
		if (out_of((*out)[i], 0, (int64_t)end - 1))
			return bad(member, (*out)[i]);
	return 0;
}

/* ---- lists and moves ---- */

static int check_span(int32_t at, int32_t num, const char *member)
{
	return out_of(num, 0, CAIRN_WORKER_LISTS) || out_of(at, 0, CAIRN_WORKER_LISTS - num) ?
	       bad(member, at) : 0;
}

static int take_lists(struct reader *r, struct cairn_plan_item *item)
{
	struct cairn_plan_lists *l = &item->lists;
	const struct plan_lists *c;
	const void *p;

	CAIRN_TRY(take(r, sizeof(*c), &p));
	c = p;
	CAIRN_TRY(check_span(c->bias_at, c->num_bias, "bias_at"));
	CAIRN_TRY(check_span(c->forbidden_at, c->num_forbidden, "forbidden_at"));
	if (r->plan->num_parts)
		return bad("lists after parts", r->plan->num_parts);
	*l = (struct cairn_plan_lists){ NULL, NULL, c->num_bias, c->num_forbidden, c->bias_at,
					c->forbidden_at };
	if (c->kind == CAIRN_PLAN_UNLIST)
		return 0;
	CAIRN_TRY(take(r, (size_t)c->num_bias * sizeof(*l->bias), &p));
	l->bias = p;
	for (int32_t i = 0; i < l->num_bias; i++)
		if (out_of(l->bias[i].token, 0, r->limits->vocab - 1) || !isfinite(l->bias[i].bias))
			return bad("bias", l->bias[i].token);
	return take_ids(r, c->num_forbidden, r->limits->vocab, "forbidden", &l->forbidden);
}

static int check_move(const struct reader *r, const struct cairn_move *m, int after)
{
	const struct cairn_plan_limits *l = r->limits;
	const int32_t ends[CAIRN_NUM_MOVES][2] = {
		[CAIRN_MOVE_COPY] = { l->num_pages, l->num_pages },
		[CAIRN_MOVE_OUT] = { l->num_pages, l->host_pages },
		[CAIRN_MOVE_IN] = { l->num_pages, l->host_pages },
		[CAIRN_MOVE_SPILL] = { l->host_pages, l->disk_pages },
		[CAIRN_MOVE_FETCH] = { l->host_pages, l->disk_pages },
		[CAIRN_MOVE_OFFLOAD] = { l->num_pages, l->host_pages },
	};

	if (out_of(m->kind, 0, CAIRN_NUM_MOVES - 1) ||
	    (after && (m->kind == CAIRN_MOVE_SPILL || m->kind == CAIRN_MOVE_FETCH)))
		return bad("kind of a move", m->kind);
	if (out_of(m->page, 0, (int64_t)ends[m->kind][0] - 1) ||
	    out_of(m->to, 0, (int64_t)ends[m->kind][1] - 1))
		return bad("move", m->page);
	return m->request ? bad("request of a move", (long long)m->request) : 0;
}

static int take_moves(struct reader *r)
{
	struct cairn_plan *plan = r->plan;
	const struct plan_moves *c;
	const void *p;

	CAIRN_TRY(take(r, sizeof(*c), &p));
	c = p;
	if (plan->num_moves || c->num < 1 || out_of(c->num_before, 0, c->num) ||
	    take(r, (size_t)c->num * sizeof(*plan->moves), &p))
		return bad("num_moves", c->num);
	plan->moves = p;
	plan->num_moves = c->num;
	plan->num_moves_before = c->num_before;
	for (int32_t i = 0; i < c->num; i++)
		CAIRN_TRY(check_move(r, &plan->moves[i], i >= c->num_before));
	return 0;
}

/* ---- parts and draws ---- */

static int take_sampling(const struct plan_part *c, struct cairn_plan_item *item)
{
	struct cairn_sampling *s = &item->draw;

	if (out_of(c->draws, 0, 1))
		return bad("draws", c->draws);
	item->part.seed = c->seed;
	item->part.offset = c->offset;
	if (!c->draws)
		return 0;
	if (!isfinite(c->temperature) || c->temperature < 0)
		return bad("temperature", c->draws);
	/* a greedy draw does not use these */
	if (c->temperature > 0 && (!(c->top_p > 0 && c->top_p <= 1) || !(c->min_p >= 0 && c->min_p < 1)))
		return bad("top_p or min_p", c->draws);
	if (c->top_k < 0)
		return bad("top_k", c->top_k);
	s->temperature = c->temperature;
	s->top_p = c->top_p;
	s->min_p = c->min_p;
	s->top_k = c->top_k;
	item->part.draw = s;
	return 0;
}

static int check_treat(const struct reader *r, const struct plan_part *c)
{
	const int32_t slots = CAIRN_WORKER_SLOTS(r->limits->max_batch);

	if (!c->draws)
		return bad("treatment without a draw", c->treats);
	if (out_of(c->slot, -1, slots - 1) || out_of(c->from, 0, slots - 1))
		return bad("slot", c->slot);
	if (out_of(c->begins, 0, 1) || out_of(c->forks, 0, 1) || out_of(c->late, 0, 1))
		return bad("begins, forks or late", c->begins);
	if (c->begins && c->forks && c->from != c->slot)
		return bad("from", c->from);
	if (out_of(c->num_prompt, 0, c->begins ? r->limits->max_context : 0))
		return bad("num_prompt", c->num_prompt);
	if (out_of(c->num_drafts, 0, !c->forks ? 0 : c->begins ? r->limits->max_context :
		   r->limits->max_rows))
		return bad("num_drafts", c->num_drafts);
	if (!(c->repetition > 0) || !isfinite(c->repetition) || !isfinite(c->frequency) ||
	    !isfinite(c->presence))
		return bad("penalty", c->slot);
	CAIRN_TRY(check_span(c->bias_at, c->num_bias, "bias_at"));
	CAIRN_TRY(check_span(c->forbidden_at, c->num_forbidden, "forbidden_at"));
	return out_of(c->num_logprobs, 0, 1 + CAIRN_LOGPROBS_MAX) ? bad("num_logprobs", c->num_logprobs) : 0;
}

static int take_treat(struct reader *r, const struct plan_part *c, struct cairn_plan_item *item)
{
	struct cairn_worker_treat *t = &item->treat;

	if (out_of(c->treats, 0, 1))
		return bad("treats", c->treats);
	if (!c->treats)
		return 0;
	CAIRN_TRY(check_treat(r, c));
	*t = (struct cairn_worker_treat){
		.slot = c->slot, .begins = c->begins, .num_prompt = c->num_prompt, .forks = c->forks,
		.from = c->from, .num_drafts = c->num_drafts, .repetition = c->repetition,
		.frequency = c->frequency, .presence = c->presence, .bias_at = c->bias_at,
		.num_bias = c->num_bias, .forbidden_at = c->forbidden_at, .num_forbidden = c->num_forbidden,
		.num_logprobs = c->num_logprobs, .late = c->late,
	};
	CAIRN_TRY(take_ids(r, c->num_prompt, r->limits->vocab, "prompt", &t->prompt));
	CAIRN_TRY(take_ids(r, c->num_drafts, r->limits->vocab, "drafts", &t->drafts));
	item->part.treat = t;
	return 0;
}

static int check_part(const struct reader *r, const struct plan_part *c)
{
	const struct cairn_plan_limits *l = r->limits;
	const int64_t end = (int64_t)c->position + c->num_rows;

	if (r->plan->num_parts == l->max_batch)
		return bad("num_parts", (long long)l->max_batch + 1);
	if (out_of(c->num_rows, 1, (int64_t)l->max_rows - r->rows))
		return bad("num_rows", c->num_rows);
	if (c->position < 0 || end > l->max_context)
		return bad("position", c->position);
	if (out_of(c->num_pages, (end + l->page_size - 1) / l->page_size, l->num_pages))
		return bad("num_pages", c->num_pages);
	if (out_of(c->follows, -1, (int64_t)l->num_drawn - 1) || (c->follows >= 0 && c->num_rows != 1))
		return bad("follows", c->follows);
	if (out_of(c->decodes, 0, 1) || out_of(c->chained, 0, 1))
		return bad("decodes or chained", c->decodes);
	if (out_of(c->num_scored, 0, c->num_rows) || out_of(c->score_from, 0, c->num_rows - c->num_scored) ||
	    out_of(c->score_k, 0, CAIRN_LOGPROBS_MAX))
		return bad("num_scored", c->num_scored);
	return 0;
}

/* Draws and scored rows together are rows of the logits. */
static int count_logits(struct reader *r, int32_t draws, int32_t scored)
{
	r->plan->num_draws += draws;
	r->scored += scored;
	return r->plan->num_draws + r->scored > r->limits->max_batch ?
	       bad("num_draws", (long long)r->plan->num_draws + r->scored) : 0;
}

static int take_part(struct reader *r, struct cairn_plan_item *item)
{
	struct cairn_worker_part *part = &item->part;
	const struct plan_part *c;
	const void *p;

	CAIRN_TRY(take(r, sizeof(*c), &p));
	c = p;
	CAIRN_TRY(check_part(r, c));
	part->follows = c->follows;
	part->num_rows = c->num_rows;
	part->position = c->position;
	part->num_pages = c->num_pages;
	part->decodes = c->decodes;
	part->chained = c->chained;
	part->score_from = c->score_from;
	part->num_scored = c->num_scored;
	part->score_k = c->score_k;
	CAIRN_TRY(take_sampling(c, item));
	if (c->follows < 0)
		CAIRN_TRY(take_ids(r, c->num_rows, r->limits->vocab, "ids", &part->ids));
	CAIRN_TRY(take_ids(r, c->num_pages, r->limits->num_pages, "pages", &part->pages));
	CAIRN_TRY(take_ids(r, c->num_scored, r->limits->vocab, "targets", &part->targets));
	CAIRN_TRY(take_treat(r, c, item));
	r->rows += c->num_rows;
	r->rows_of_last = c->draws ? 0 : c->num_rows;
	r->last_row = -1;
	r->plan->num_parts++;
	return count_logits(r, c->draws, c->num_scored);
}

static int take_draw(struct reader *r, struct cairn_plan_item *item)
{
	const struct plan_part *c;
	const void *p;

	CAIRN_TRY(take(r, sizeof(*c), &p));
	c = p;
	if (out_of(c->row, (int64_t)r->last_row + 1, (int64_t)r->rows_of_last - 1))
		return bad("row of a draw", c->row);
	if (!c->draws)
		return bad("draws", c->draws);
	item->row = r->last_row = c->row;
	CAIRN_TRY(take_sampling(c, item));
	CAIRN_TRY(take_treat(r, c, item));
	return count_logits(r, 1, 0);
}

/* ---- the plan ---- */

static int take_record(struct reader *r)
{
	struct cairn_plan_item *item = &r->plan->items[r->plan->num_items];
	int32_t kind;

	if (r->len - r->at < sizeof(kind))
		return bad("length", (long long)r->len);
	memcpy(&kind, r->bytes + r->at, sizeof(kind));
	if (kind == CAIRN_PLAN_MOVES)
		return take_moves(r);
	*item = (struct cairn_plan_item){ .kind = (enum cairn_plan_kind)kind };
	r->plan->num_items++;
	switch (kind) {
	case CAIRN_PLAN_LISTS:
	case CAIRN_PLAN_UNLIST:
		return take_lists(r, item);
	case CAIRN_PLAN_PART:
		return take_part(r, item);
	case CAIRN_PLAN_DRAW:
		return take_draw(r, item);
	default:
		return bad("kind", kind);
	}
}

static int check_header(const unsigned char *bytes, size_t len, const struct cairn_plan_limits *l,
			struct plan_header *h)
{
	if (len < sizeof(*h))
		return bad("length", (long long)len);
	memcpy(h, bytes, sizeof(*h));
	if (h->magic != PLAN_MAGIC || h->version != PLAN_VERSION || h->unused)
		return bad("version", h->version);
	if (h->len != len)
		return bad("length", (long long)h->len);
	if (h->digest != plan_digest(bytes + sizeof(*h), len - sizeof(*h)))
		return cairn_error(EINVAL, "plan: digest: does not fit the bytes");
	if (h->number != l->number)
		return cairn_error(EINVAL, "plan: number: %llu, want %llu", (unsigned long long)h->number,
				   (unsigned long long)l->number);
	if (h->num_records < 1 || h->num_records > (len - sizeof(*h)) / MIN_RECORD)
		return bad("num_records", h->num_records);
	return 0;
}

static int reserve(struct cairn_plan *plan, int32_t num)
{
	struct cairn_plan_item *items;

	if (num <= plan->room)
		return 0;
	items = realloc(plan->items, (size_t)num * sizeof(*items));
	if (!items)
		return cairn_error(ENOMEM, "plan: no memory for %d records", num);
	plan->items = items;
	plan->room = num;
	return 0;
}

int cairn_plan_read(struct cairn_plan *plan, const unsigned char *bytes, size_t len,
		    const struct cairn_plan_limits *limits)
{
	struct reader r = { .bytes = bytes, .at = sizeof(struct plan_header), .len = len, .limits = limits,
			    .plan = plan };
	struct plan_header h;

	plan->num_items = plan->num_moves = plan->num_moves_before = plan->num_parts = plan->num_draws = 0;
	CAIRN_TRY(check_header(bytes, len, limits, &h));
	CAIRN_TRY(reserve(plan, (int32_t)h.num_records));
	for (uint32_t i = 0; i < h.num_records; i++)
		CAIRN_TRY(take_record(&r));
	return r.at == r.len ? 0 : bad("length", (long long)r.len);
}

void cairn_plan_free(struct cairn_plan *plan)
{
	free(plan->items);
	memset(plan, 0, sizeof(*plan));
}
