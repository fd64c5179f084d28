// SPDX-License-Identifier: Apache-2.0
/* kv_model_engine - executes plans and checks everything that they read */
#include "serving/scheduler/kv_model_engine.h"

#include <stdio.h>
#include <string.h>

#include "primitives/base/error.h"

int model_wrong(struct model_engine *e, const char *what, int64_t got, int64_t want)
{
	snprintf(e->why, e->why_len, "%s: %lld, not %lld (%s)", what, (long long)got, (long long)want,
		 cairn_last_error());
	return -1;
}

struct model_request *model_find(struct model_engine *e, uint64_t id)
{
	for (int i = 0; i < MODEL_REQUESTS; i++) {
		if (e->requests[i].there && e->requests[i].id == id)
			return &e->requests[i];
	}
	return NULL;
}

static uint64_t hash(uint64_t a, uint64_t b, uint64_t c)
{
	uint64_t z = (a * 31 + b) * 0x9e3779b97f4a7c15u + c * 0xbf58476d1ce4e5b9u;

	z = (z ^ (z >> 30)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

int model_stops(const struct model_request *r, int32_t index, int32_t place)
{
	uint64_t h = hash(r->id, (uint64_t)index, (uint64_t)place);

	return h % 8 ? 0 : h % 64 ? 1 : 2;
}

/* Returns the token that is drawn for a place of an answer. */
static int32_t token_at(const struct model_request *r, int32_t index, int32_t place)
{
	return (int32_t)(hash(r->id, (uint64_t)index, (uint64_t)place) >> 20 & 1);
}

/* A random tree or chain. `right` of eight drafts are the token that is drawn if those before them are. */
static void make_tree(const struct model_engine *e, const struct model_request *r,
		      const struct model_answer *a, struct cairn_sched_draft *d, uint64_t h)
{
	int32_t depth[MODEL_DRAFTS + 1] = { 0 };

	for (int32_t k = 0; k < d->num; k++, h = hash(h, 1, 2)) {
		if (e->trees)
			d->parents[k] = (int32_t)((h >> 4) % (uint64_t)(k + 1));
		depth[k + 1] = depth[d->parents[k]] + 1;
		d->drafts[k] = token_at(r, d->index, a->told + depth[k]) ^ ((int)(h >> 8) % 8 >= e->right);
	}
}

int model_draft(void *ctx, struct cairn_sched_draft *drafts, int32_t num)
{
	struct model_engine *e = ctx;

	for (int32_t i = 0; i < num; i++) {
		struct cairn_sched_draft *d = &drafts[i];
		struct model_request *r = model_find(e, d->request);
		struct model_answer *a = r ? &r->answers[d->index] : NULL;
		uint64_t h;

		if (!a || !a->live || a->in_flight || a->eager || !r->speculates)
			return model_wrong(e, "drafts for an answer", d->index, a ? a->in_flight : -1);
		if (d->num_prompt != r->num_prompt || d->num_tokens != r->num_prompt + a->told)
			return model_wrong(e, "drafts behind", d->num_tokens, r->num_prompt + a->told);
		if (memcmp(d->tokens, r->prompt, (size_t)r->num_prompt * sizeof(*r->prompt)) ||
		    memcmp(d->tokens + r->num_prompt, a->gen, (size_t)a->told * sizeof(*a->gen)))
			return model_wrong(e, "the tokens before drafts", d->index, a->told);
		h = hash(r->id, (uint64_t)a->told, e->next_order);
		d->num = h % 4 ? d->room : (int32_t)(h / 4 % (uint64_t)(d->room + 1));
		make_tree(e, r, a, d, h);
	}
	return 0;
}

/* Returns a digest of the salt and the tokens up to a position. */
static uint64_t tokens_at(const struct model_request *r, const struct model_answer *a, int32_t place)
{
	uint64_t h = r->salt + 1;

	for (int32_t i = 0; i <= place; i++)
		h = (h ^ (uint64_t)(i < r->num_prompt ? r->prompt[i] : a->gen[i - r->num_prompt]) * 977) *
			0x9e3779b97f4a7c15u + 1;
	return h;
}

/*
 * Returns the digest for keys and values at a position; like KV, it depends on every token before it, and
 * with repeat_chunk also on the rows first .. end - 1 computed in the same pass (first == end: it decodes).
 */
static uint64_t keys_of(const struct model_engine *e, const struct model_request *r,
			const struct model_answer *a, int32_t place, int32_t first, int32_t end)
{
	uint64_t h = tokens_at(r, a, place);

	if (!e->opt.repeat_chunk)
		return h;
	return first == end ? ~h : hash(h, (uint64_t)first, tokens_at(r, a, end - 1));
}

/* Returns the digest that a position must have. A prompt position is computed with its whole chunk. */
static uint64_t keys_at(const struct model_engine *e, const struct model_request *r,
			const struct model_answer *a, int32_t place)
{
	int32_t chunk = e->opt.repeat_chunk, first, end = r->num_prompt;

	if (!chunk || place >= r->num_prompt)
		return keys_of(e, r, a, place, 0, 0);
	first = place - place % chunk;
	if (r->is_forked && place < end - 1)	/* each answer computes the last row itself */
		end--;
	else if (r->is_forked)
		first = place;
	return keys_of(e, r, a, place, first, end < first + chunk ? end : first + chunk);
}

void model_fill(struct model_engine *e, const struct model_request *r)
{
	const int32_t ps = e->opt.page_size;

	for (int32_t i = 0; i < r->reserved * ps; i++)
		e->device[r->pages[i / ps]][i % ps] = r->first + i < r->end ?
			keys_at(e, r, &r->answers[0], r->first + i) : ~0ull;
}

/* Only its reservation uses a page, except that plans before `from` may still move what it held before. */
static int check_page(struct model_engine *e, int32_t page)
{
	for (int i = 0; i < MODEL_REQUESTS; i++) {
		const struct model_request *r = &e->requests[i];

		for (int32_t k = 0; r->there && e->plans >= r->from && k < r->reserved; k++)
			if (r->pages[k] == page)
				return model_wrong(e, "a plan uses a reserved page", page, i);
	}
	return 0;
}

static int carry_out_move(struct model_engine *e, const struct cairn_move *m)
{
	size_t bytes = sizeof(e->device[0]);
	int on_disk = m->kind == CAIRN_MOVE_SPILL || m->kind == CAIRN_MOVE_FETCH;
	int32_t pages = on_disk ? e->opt.host_pages : e->opt.num_pages;
	int32_t slots = on_disk ? e->opt.disk_pages : m->kind == CAIRN_MOVE_COPY ? pages :
			e->opt.host_pages;
	struct model_request *r;

	if (m->kind == CAIRN_MOVE_PULL || m->page < 0 || m->page >= pages || m->to < 0 || m->to >= slots)
		return model_wrong(e, "a move is out of range", m->page, m->to);
	if (!on_disk && (check_page(e, m->page) || (m->kind == CAIRN_MOVE_COPY && check_page(e, m->to))))
		return -1;
	switch (m->kind) {
	case CAIRN_MOVE_COPY:
		memmove(e->device[m->to], e->device[m->page], bytes);
		return 0;
	case CAIRN_MOVE_IN:
		memcpy(e->device[m->page], e->host[m->to], bytes);
		return 0;
	case CAIRN_MOVE_SPILL:
		memcpy(e->disk[m->to], e->host[m->page], bytes);
		return 0;
	case CAIRN_MOVE_FETCH:
		memcpy(e->host[m->page], e->disk[m->to], bytes);
		r = model_find(e, m->request);
		if (!r)
			return model_wrong(e, "a fetch for no request", (int64_t)m->request, -1);
		r->fetching = 1;
		return 0;
	default:
		memcpy(e->host[m->to], e->device[m->page], bytes);
		return 0;
	}
}

/* Called for a request's first row: checks that no waiting request has been overtaken too often. */
static int first_row(struct model_engine *e, struct model_request *r)
{
	r->rowed = 1;
	for (int i = 0; i < MODEL_REQUESTS; i++) {
		struct model_request *o = &e->requests[i];

		/*
		 * With lanes, those of other lanes do not count, but the model does not know them yet. A
		 * request that waits for an import does not count when another is admitted; the model sees
		 * only the other's first row, which may come after a preemption, when the wait is over.
		 */
		if (o->there && !o->rowed && !o->was_pulled && o->order < r->order && e->opt.lanes < 2 &&
		    ++o->overtaken > e->opt.max_passes)
			return model_wrong(e, "overtaken", o->overtaken, e->opt.max_passes);
	}
	return 0;
}

static int check_ids(struct model_engine *e, const struct cairn_step_plan *p,
		     const struct cairn_step_item *item, const struct model_request *r,
		     const struct model_answer *a)
{
	int32_t len = r->num_prompt + a->drawn, num_rows = item->num_rows - item->num_drafts;

	if (item->first < 0 || num_rows < 1 || item->first + num_rows > len)
		return model_wrong(e, "rows beyond the tokens", item->first + num_rows, len);
	if (item->num_drafts && (!r->speculates || a->in_flight || num_rows > 1 || item->draw < 0 ||
				 a->drawn + 1 + item->num_drafts > r->max_new || !p->in_turn))
		return model_wrong(e, "drafts", item->num_drafts, a->drawn);
	for (int32_t k = 0; k < num_rows; k++) {
		int32_t at = item->first + k, id = p->ids[item->ids_at + k];
		int32_t want = at < r->num_prompt ? r->prompt[at] : a->gen[at - r->num_prompt];
		const struct model_flight *last = &e->flights[e->num_flights ? e->num_flights - 1 : 0];

		if (id == want)
			continue;
		if (id != -1 || item->num_rows != 1 || !e->num_flights || item->follows < 0 ||
		    item->follows >= last->num_draws || last->draws[item->follows].id != item->request ||
		    last->draws[item->follows].index != item->index)
			return model_wrong(e, "a row has the wrong token", id, want);
	}
	return 0;
}

/* Finds the depth of each drafted row, and whether the drafts on the path to it are those that are drawn. */
static void walk_tree(const struct cairn_step_plan *p, const struct cairn_step_item *item,
		      const struct model_request *r, const struct model_answer *a, struct model_tree *t)
{
	const int32_t at = item->ids_at + item->num_rows - item->num_drafts - 1;

	t->depth[0] = 0;
	t->counts[0] = 1;
	for (int32_t k = 1; k <= item->num_drafts; k++) {
		int32_t parent = p->parents[at + k];

		t->depth[k] = t->depth[parent] + 1;
		t->counts[k] = t->counts[parent] &&
			       p->ids[at + k] == token_at(r, item->index, a->drawn + t->depth[parent]);
		for (int32_t i = 1; i < k; i++)		/* an earlier draft of the same place and token */
			t->counts[k] &= !t->counts[i] || t->depth[i] < t->depth[k];
	}
}

/* Draws after the last row that has no draft, and after each drafted row. */
static int carry_out_draws(struct model_engine *e, const struct cairn_step_item *item,
			   const struct model_request *r, struct model_answer *a, const struct model_tree *t,
			   struct model_flight *f)
{
	if (item->draw != f->num_draws || a->drawn >= r->max_new)
		return model_wrong(e, "one draw too many", item->draw, f->num_draws);
	for (int32_t k = 0; k <= item->num_drafts; k++) {
		f->draws[f->num_draws].id = r->id;
		f->draws[f->num_draws].index = item->index;
		f->draws[f->num_draws].follows = k > 0;
		f->draws[f->num_draws].counts = t->counts[k];
		f->draws[f->num_draws++].token =
			token_at(r, item->index, a->drawn + t->depth[k]) ^ !t->counts[k];
	}
	a->in_flight++;
	a->drafts = item->num_drafts > 0;
	return 0;
}

/* Lists the moves of the rows that count to the places behind row 0, which has place `first`. */
static void list_moves(struct model_engine *e, const struct model_tree *t, int32_t num, const int32_t *pages,
		       int32_t first, struct model_flight *f)
{
	const int32_t size = e->opt.page_size;

	for (int32_t k = 1; k <= num; k++) {
		int32_t from = first + k, to = first + t->depth[k];

		if (!t->counts[k] || from == to)
			continue;
		f->moves[f->num_moves].from = &e->device[pages[from / size]][from % size];
		f->moves[f->num_moves++].to = &e->device[pages[to / size]][to % size];
	}
}

static int carry_out_item(struct model_engine *e, const struct cairn_step_plan *p,
			  const struct cairn_step_item *item, struct model_flight *f)
{
	struct model_request *r = model_find(e, item->request);
	struct model_answer *a = r ? &r->answers[item->index] : NULL;
	int32_t n = 0, end = item->first + item->num_rows, len = end - item->num_drafts;
	struct model_tree t;
	const int32_t *pages = cairn_kv_pool_pages(cairn_scheduler_pool(e->s), item->kv, &n);

	if (!r || !a->live || a->held || ((r->lockstep || a->drafts) && a->in_flight))
		return model_wrong(e, "rows of a request that has ended", (int64_t)item->request, -1);
	if (r->pulled)
		return model_wrong(e, "rows of a request that waits for an import", item->first, 0);
	if (r->fetching && r->num_answers == 1)		/* with more answers, another one may wait */
		return model_wrong(e, "rows of a request that waits for the disk", item->first, 0);
	if (!r->rowed) {
		r->lane = p->lane;
		if (first_row(e, r))
			return -1;
	}
	if (r->movable)
		r->lane = p->lane;
	if (p->lane != r->lane)
		return model_wrong(e, "rows of another lane", p->lane, r->lane);
	if (check_ids(e, p, item, r, a))
		return -1;
	if (!pages || n * e->opt.page_size < end)
		return model_wrong(e, "rows without pages, their end", end, n * e->opt.page_size);
	for (int32_t i = 0; i < n; i++)
		if (check_page(e, pages[i]))
			return -1;
	for (int32_t i = 0; i < item->first; i++) {
		if (e->device[pages[i / e->opt.page_size]][i % e->opt.page_size] != keys_at(e, r, a, i))
			return model_wrong(e, "attention reads wrong KV at", i, item->first);
	}
	walk_tree(p, item, r, a, &t);
	for (int32_t k = 0; k < item->num_drafts; k++)	/* overwritten when the tokens are drawn */
		a->gen[a->drawn + k] = token_at(r, item->index, a->drawn + k);
	for (int32_t i = item->first; i < len; i++)
		e->device[pages[i / e->opt.page_size]][i % e->opt.page_size] =
			keys_of(e, r, a, i, p->num_decodes ? end : item->first, end);
	for (int32_t i = len; i < end; i++) {
		int32_t place = len - 1 + t.depth[i - len + 1];
		uint64_t keys = keys_of(e, r, a, place, p->num_decodes ? end : item->first, end);

		e->device[pages[i / e->opt.page_size]][i % e->opt.page_size] =
			t.counts[i - len + 1] ? keys : ~keys;
	}
	list_moves(e, &t, item->num_drafts, pages, len - 1, f);
	if ((item->draw >= 0) != (len == r->num_prompt + a->drawn))
		return model_wrong(e, "a draw", item->draw, end);
	return item->draw < 0 ? 0 : carry_out_draws(e, item, r, a, &t, f);
}

static int check_plan(struct model_engine *e, const struct cairn_step_plan *p)
{
	const int apart = e->opt.repeat_chunk || e->opt.separate;
	int32_t rows = 0, drafts = 0;

	for (int32_t i = 0; i < p->num_items; i++)
		drafts += p->items[i].num_drafts;
	if (drafts > e->opt.draft_rows)
		return model_wrong(e, "drafts in a plan", drafts, e->opt.draft_rows);
	if (apart && p->num_decodes && p->num_decodes + drafts != p->num_rows)
		return model_wrong(e, "a prompt among decoding rows", p->num_rows, p->num_decodes);
	if (apart && !p->num_decodes && p->num_items > 1)
		return model_wrong(e, "prompts in a plan", p->num_items, 1);
	for (int32_t i = 0; i < p->num_items; i++) {
		rows += p->items[i].num_rows;
		for (int32_t k = 0; k < i; k++) {
			if (p->items[i].request == p->items[k].request &&
			    p->items[i].index == p->items[k].index)
				return model_wrong(e, "a sequence occurs twice in a plan", i, k);
		}
	}
	if (rows != p->num_rows || rows > e->opt.dense_rows || p->num_items > e->opt.max_seqs)
		return model_wrong(e, "number of rows in a plan", rows, e->opt.dense_rows);
	for (int i = 0; i < MODEL_REQUESTS; i++) {
		struct model_request *r = &e->requests[i];

		for (int32_t k = 0;
		     r->there && r->deadline_ns && r->deadline_ns <= e->now && k < r->num_answers; k++) {
			if (r->answers[k].live)
				return model_wrong(e, "a deadline has passed", r->deadline_ns, e->now);
		}
	}
	return 0;
}

int model_is_busy(const struct model_engine *e)
{
	for (int i = 0; i < e->num_flights && e->opt.lanes > 1; i++)
		if (e->flights[i].lane == e->lane)
			return 1;
	return e->opt.lanes < 2 && e->num_flights > e->opt.ahead;
}

int model_revoked(struct model_engine *e)
{
	uint64_t id;

	while (cairn_scheduler_revoked(e->s, &id)) {
		struct model_request *r = model_find(e, id);

		if (!r || !r->reserved)
			return model_wrong(e, "taken back, but not reserved", (int64_t)id, 0);
		r->reserved = r->pulled = 0;
	}
	return 0;
}

int model_plan(struct model_engine *e, int32_t *rows)
{
	const struct cairn_step_plan *p;
	struct model_flight f = { 0 };
	int ret = cairn_scheduler_plan_lane(e->s, e->lane, e->now, &p);

	*rows = 0;
	if (ret == -EBUSY && model_is_busy(e))
		return ret;
	if (ret || model_is_busy(e))
		return model_wrong(e, "plan", ret, model_is_busy(e) ? -EBUSY : 0);
	f.lane = e->lane;
	e->lane = e->opt.lanes > 1 ? (e->lane + 1) % e->opt.lanes : 0;
	if (cairn_scheduler_verify(e->s))
		return model_wrong(e, "verify", -1, 0);
	if (model_events(e) || check_plan(e, p) || model_revoked(e))
		return -1;
	for (int32_t i = 0; i < p->num_moves_before; i++) {
		if (carry_out_move(e, &p->moves[i]))
			return -1;
	}
	for (int32_t i = 0; i < p->num_items; i++) {
		if (carry_out_item(e, p, &p->items[i], &f))
			return -1;
	}
	for (int32_t i = p->num_moves_before; i < p->num_moves; i++) {
		if (carry_out_move(e, &p->moves[i]))
			return -1;
	}
	for (int32_t i = 0; i < f.num_moves; i++)	/* in this order no source is overwritten */
		*f.moves[i].to = *f.moves[i].from;
	if (f.num_draws != p->num_draws)
		return model_wrong(e, "draws", p->num_draws, f.num_draws);
	for (int32_t i = 0; i < f.num_draws; i++) {
		struct model_answer *a = &model_find(e, f.draws[i].id)->answers[f.draws[i].index];

		if (f.draws[i].counts)
			a->gen[a->drawn++] = f.draws[i].token;
	}
	e->plans++;
	if (p->num_items)
		e->flights[e->num_flights++] = f;
	*rows = p->num_rows;
	return 0;
}

int model_report(struct model_engine *e)
{
	int32_t tokens[MODEL_DRAWS], want[MODEL_DRAWS], told = 0, first = 0;
	struct model_flight f = e->num_flights ? e->flights[0] : (struct model_flight){ 0 };
	uint8_t stops[MODEL_DRAWS];
	int ret;

	for (int32_t i = 0; i < f.num_draws; i++) {
		struct model_request *r = model_find(e, f.draws[i].id);
		struct model_answer *a = r ? &r->answers[f.draws[i].index] : NULL;

		tokens[i] = f.draws[i].token;
		stops[i] = !f.draws[i].counts;
		want[i] = -1;
		if (!a || !a->live)
			continue;
		if (!f.draws[i].follows) {
			a->in_flight--;
			a->drafts = 0;
			told = a->told;
			first = i;
		}
		if (!f.draws[i].counts || told < 0)
			continue;
		stops[i] = (uint8_t)model_stops(r, f.draws[i].index, told);
		want[first] = ++told;
		told = stops[i] ? -1 : told;
	}
	ret = cairn_scheduler_report(e->s, tokens, stops);
	if (ret != (e->num_flights ? 0 : -EINVAL))
		return model_wrong(e, "report", ret, e->num_flights ? 0 : -EINVAL);
	if (ret)
		return 0;
	e->num_flights--;
	memmove(e->flights, e->flights + 1, (size_t)e->num_flights * sizeof(e->flights[0]));
	if (model_events(e))
		return -1;
	for (int32_t i = 0; i < f.num_draws; i++) {
		struct model_request *r = want[i] < 0 ? NULL : model_find(e, f.draws[i].id);

		if (r && r->answers[f.draws[i].index].told != want[i])
			return model_wrong(e, "a token was not reported", r->answers[f.draws[i].index].told,
					   want[i]);
	}
	return 0;
}

/* Ends an answer; with the last answer, the request. */
static void end_answer(struct model_engine *e, struct model_request *r, struct model_answer *a, int said)
{
	a->live = 0;
	if (said) {
		e->num_said = r->num_prompt + a->told;
		e->said_salt = r->salt;
		memcpy(e->said, r->prompt, (size_t)r->num_prompt * sizeof(*e->said));
		memcpy(e->said + r->num_prompt, a->gen, (size_t)a->told * sizeof(*e->said));
	}
	for (int32_t k = 0; k < r->num_answers; k++) {
		if (r->answers[k].live)
			return;
	}
	r->there = 0;
}

static int check_event(struct model_engine *e, const struct cairn_sched_event *ev)
{
	struct model_request *r = model_find(e, ev->request);
	struct model_answer *a = r && ev->index < r->num_answers ? &r->answers[ev->index] : NULL;

	if (!a || !a->live)
		return model_wrong(e, "an event of an answer that has ended", ev->what, ev->index);
	switch (ev->what) {
	case CAIRN_SCHED_TOKEN:
	case CAIRN_SCHED_STOP:
		if (ev->what == CAIRN_SCHED_STOP && ev->token == -1)
			break;		/* ended by cairn_scheduler_stop */
		if (a->told >= a->drawn || ev->token != a->gen[a->told])
			return model_wrong(e, "a token", ev->token, a->gen[a->told]);
		if (!model_stops(r, ev->index, a->told) != (ev->what != CAIRN_SCHED_STOP))
			return model_wrong(e, "a stop", ev->what, ev->token);
		a->told++;
		break;
	case CAIRN_SCHED_LENGTH:
		if (a->told != r->max_new)
			return model_wrong(e, "too short", a->told, r->max_new);
		break;
	case CAIRN_SCHED_EXPIRED:
		if (!r->deadline_ns || r->deadline_ns > e->now)
			return model_wrong(e, "expired early", r->deadline_ns, e->now);
		break;
	default:
		break;
	}
	if (ev->what != CAIRN_SCHED_TOKEN)
		end_answer(e, r, a,
			   ev->what == CAIRN_SCHED_LENGTH ||
				   (ev->what == CAIRN_SCHED_STOP && ev->token >= 0));
	return 0;
}

int model_events(struct model_engine *e)
{
	int32_t num;
	const struct cairn_sched_event *ev = cairn_scheduler_events(e->s, &num);

	for (int32_t i = 0; i < num; i++) {
		if (check_event(e, &ev[i]))
			return -1;
	}
	for (int i = 0; i < MODEL_REQUESTS; i++) {	/* of requests that have ended */
		if (e->requests[i].there || !e->requests[i].reserved)
			continue;
		e->requests[i].reserved = 0;
		cairn_scheduler_unreserve(e->s, e->requests[i].id);
	}
	return 0;
}
