// SPDX-License-Identifier: Apache-2.0
/* plan - writes plans */
#include <stdlib.h>
#include <string.h>

#include "serving/engine/worker/plan_impl.h"

/* Appends bytes, and zeros up to the next multiple of 8. */
static void append(struct cairn_plan_out *p, const void *bytes, size_t len)
{
	const size_t padded = plan_padded(len);

	if (p->ret)
		return;
	if (p->len + padded > p->room) {
		size_t room = 2 * (p->len + padded);
		unsigned char *grown = room <= 2 * CAIRN_PLAN_MAX ? realloc(p->bytes, room) : NULL;

		if (!grown) {
			p->ret = room <= 2 * CAIRN_PLAN_MAX ? -ENOMEM : -EOPNOTSUPP;
			return;
		}
		p->bytes = grown;
		p->room = room;
	}
	memset(p->bytes + p->len + len, 0, padded - len);
	if (len)
		memcpy(p->bytes + p->len, bytes, len);
	p->len += padded;
}

static void append_ids(struct cairn_plan_out *p, const int32_t *ids, int32_t num)
{
	append(p, ids, (size_t)num * sizeof(*ids));
}

static void begin_record(struct cairn_plan_out *p, const void *record, size_t len)
{
	struct plan_header h;

	append(p, record, len);
	if (p->ret)
		return;
	memcpy(&h, p->bytes, sizeof(h));
	h.num_records++;
	memcpy(p->bytes, &h, sizeof(h));
}

void cairn_plan_begin(struct cairn_plan_out *p, uint64_t number)
{
	const struct plan_header h = { .magic = PLAN_MAGIC, .version = PLAN_VERSION, .number = number };

	p->len = 0;
	p->ret = 0;
	append(p, &h, sizeof(h));
}

void cairn_plan_put_lists(struct cairn_plan_out *p, enum cairn_plan_kind kind,
			  const struct cairn_plan_lists *l)
{
	const struct plan_lists r = {
		.kind = (int32_t)kind, .num_bias = l->num_bias, .num_forbidden = l->num_forbidden,
		.bias_at = l->bias_at, .forbidden_at = l->forbidden_at,
	};

	begin_record(p, &r, sizeof(r));
	if (kind != CAIRN_PLAN_LISTS)
		return;
	append(p, l->bias, (size_t)l->num_bias * sizeof(*l->bias));
	append_ids(p, l->forbidden, l->num_forbidden);
}

void cairn_plan_put_moves(struct cairn_plan_out *p, const struct cairn_move *moves, int32_t num_before,
			  int32_t num)
{
	const struct plan_moves r = { .kind = CAIRN_PLAN_MOVES, .num_before = num_before, .num = num };

	begin_record(p, &r, sizeof(r));
	for (int32_t i = 0; i < num; i++) {
		struct cairn_move m;

		memset(&m, 0, sizeof(m));	/* padding, too */
		m.kind = moves[i].kind;
		m.page = moves[i].page;
		m.to = moves[i].to;
		append(p, &m, sizeof(m));
	}
}

static void set_draw(struct plan_part *r, const struct cairn_worker_part *part)
{
	r->seed = part->seed;
	r->offset = part->offset;
	if (!part->draw)
		return;
	r->draws = 1;
	r->temperature = part->draw->temperature;
	r->top_p = part->draw->top_p;
	r->min_p = part->draw->min_p;
	r->top_k = part->draw->top_k;
}

static void set_treat(struct plan_part *r, const struct cairn_worker_treat *t)
{
	if (!t)
		return;
	r->treats = 1;
	r->slot = t->slot;
	r->begins = t->begins != 0;
	r->num_prompt = t->begins ? t->num_prompt : 0;
	r->forks = t->forks != 0;
	r->from = t->forks ? t->from : 0;
	r->num_drafts = t->forks ? t->num_drafts : 0;
	r->repetition = t->repetition;
	r->frequency = t->frequency;
	r->presence = t->presence;
	r->bias_at = t->bias_at;
	r->num_bias = t->num_bias;
	r->forbidden_at = t->forbidden_at;
	r->num_forbidden = t->num_forbidden;
	r->num_logprobs = t->num_logprobs;
	r->late = t->late != 0;
}

static void append_treat(struct cairn_plan_out *p, const struct plan_part *r,
			 const struct cairn_worker_treat *t)
{
	if (!t)
		return;
	append_ids(p, t->prompt, r->num_prompt);
	append_ids(p, t->drafts, r->num_drafts);
}

void cairn_plan_put_part(struct cairn_plan_out *p, const struct cairn_worker_part *part)
{
	struct plan_part r = {
		.kind = CAIRN_PLAN_PART, .follows = part->follows, .num_rows = part->num_rows,
		.position = part->position, .num_pages = part->num_pages, .decodes = part->decodes,
		.chained = part->chained, .score_from = part->score_from, .num_scored = part->num_scored,
		.score_k = part->score_k,
	};

	set_draw(&r, part);
	set_treat(&r, part->treat);
	begin_record(p, &r, sizeof(r));
	if (part->follows < 0)
		append_ids(p, part->ids, part->num_rows);
	append_ids(p, part->pages, part->num_pages);
	append_ids(p, part->targets, part->num_scored);
	append_treat(p, &r, part->treat);
}

void cairn_plan_put_draw(struct cairn_plan_out *p, int32_t row, const struct cairn_worker_part *part)
{
	struct plan_part r = { .kind = CAIRN_PLAN_DRAW, .row = row };

	set_draw(&r, part);
	set_treat(&r, part->treat);
	begin_record(p, &r, sizeof(r));
	append_treat(p, &r, part->treat);
}

int cairn_plan_finish(struct cairn_plan_out *p)
{
	struct plan_header h;

	if (p->ret == -ENOMEM)
		return cairn_error(ENOMEM, "plan: no memory");
	if (p->ret || p->len > CAIRN_PLAN_MAX)
		return cairn_error(EOPNOTSUPP, "plan: more than %zu bytes", CAIRN_PLAN_MAX);
	memcpy(&h, p->bytes, sizeof(h));
	h.len = p->len;
	h.digest = plan_digest(p->bytes + sizeof(h), p->len - sizeof(h));
	memcpy(p->bytes, &h, sizeof(h));
	return 0;
}

void cairn_plan_out_free(struct cairn_plan_out *p)
{
	free(p->bytes);
	memset(p, 0, sizeof(*p));
}
