// SPDX-License-Identifier: Apache-2.0
/* nano_schedule - orders the steps of an overlapped pass and derives their waits (nano_schedule.h) */
#include "serving/nano/nano_schedule.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"

#define REFUSE(fmt, ...)	cairn_error(EINVAL, "nano_plan: " fmt, __VA_ARGS__)

/* ---- conflicts of operations ---- */

/* An earlier operation that an operation conflicts with. keys: as attention with append, not by rows. */
struct conflict {
	int32_t op, keys;
};

struct planner {
	const struct cairn_op_graph *g;
	const struct cairn_nano_plan *plan;
	struct conflict *conflicts;		/* of operation o: [first[o] .. first[o + 1]) */
	int32_t *first, num_conflicts, room;
	/* Candidates: all steps, operation by operation, nano-batch by nano-batch: [of[o] .. of[o + 1]). */
	struct nano_step *cands;
	double *time;
	int32_t *of, num_cands;
	/* Candidates that conflict with candidate c and come before it: before[begin[c] .. begin[c + 1]). */
	int32_t *before, *begin, num_before, before_room;
	int32_t *place;				/* of each candidate in the schedule; -1: not launched yet */
	int32_t last[CAIRN_NANO_LANES];		/* the last step of each lane; -1: none */
	int32_t last_collective;		/* of all lanes; -1: none */
};

static int appends(const struct cairn_graph_op *op)
{
	return op->kind == CAIRN_OP_KV_APPEND || op->kind == CAIRN_OP_MLA_APPEND;
}

static int attends(const struct cairn_graph_op *op)
{
	return op->kind == CAIRN_OP_ATTN || op->kind == CAIRN_OP_MLA;
}

/* Returns whether the value lies in memory that the pass writes, the cache apart. */
static int is_written(const struct cairn_graph_value *v)
{
	return v->kind == CAIRN_VALUE_ACTIVATION || v->kind == CAIRN_VALUE_SCRATCH ||
	       v->kind == CAIRN_VALUE_OUTPUT;
}

static int touches(const struct cairn_op_graph *g, const int32_t *ids, int32_t num, int32_t storage)
{
	for (int32_t i = 0; i < num; i++)
		if (g->values[ids[i]].storage == storage)
			return 1;
	return 0;
}

static int add(void **list, int32_t num, int32_t *room, size_t size)
{
	void *more;

	if (num < *room)
		return 0;
	more = realloc(*list, (size_t)(2 * *room + 256) * size);
	if (!more)
		return cairn_error(ENOMEM, "nano_plan: no memory");
	*list = more;
	*room = 2 * *room + 256;
	return 0;
}

static int add_conflict(struct planner *p, int32_t o, int32_t with, int32_t keys)
{
	for (int32_t i = p->first[o]; i < p->num_conflicts; i++)
		if (p->conflicts[i].op == with && p->conflicts[i].keys == keys)
			return 0;
	CAIRN_TRY(add((void **)&p->conflicts, p->num_conflicts, &p->room, sizeof(*p->conflicts)));
	p->conflicts[p->num_conflicts++] = (struct conflict){ .op = with, .keys = keys };
	return 0;
}

/* Adds the last writer of the storage, and if o writes it, too, all readers since. The others are implied. */
static int add_storage(struct planner *p, int32_t o, int32_t storage, int writes)
{
	for (int32_t b = o - 1; b >= 0; b--) {
		const struct cairn_graph_op *op = &p->g->ops[b];
		int wrote = touches(p->g, op->out, op->num_out, storage);

		if (wrote || (writes && touches(p->g, op->in, op->num_in, storage)))
			CAIRN_TRY(add_conflict(p, o, b, 0));
		if (wrote)
			break;
	}
	return 0;
}

static int add_last(struct planner *p, int32_t o, int (*is)(const struct cairn_graph_op *op), int32_t keys)
{
	for (int32_t b = o - 1; b >= 0; b--)
		if (is(&p->g->ops[b]))
			return add_conflict(p, o, b, keys);
	return 0;
}

static int is_moe(const struct cairn_graph_op *op)
{
	return op->kind == CAIRN_OP_MOE;
}

static int find_conflicts(struct planner *p)
{
	const struct cairn_op_graph *g = p->g;

	for (int32_t o = 0; o < g->num_ops; o++) {
		const struct cairn_graph_op *op = &g->ops[o];

		p->first[o] = p->num_conflicts;
		for (int32_t i = 0; i < op->num_in; i++)
			if (is_written(&g->values[op->in[i]]))
				CAIRN_TRY(add_storage(p, o, g->values[op->in[i]].storage, 0));
		for (int32_t i = 0; i < op->num_out; i++)
			if (is_written(&g->values[op->out[i]]))
				CAIRN_TRY(add_storage(p, o, g->values[op->out[i]].storage, 1));
		if (attends(op)) {
			CAIRN_TRY(add_last(p, o, appends, 1));
			CAIRN_TRY(add_last(p, o, attends, 0));
		}
		if (is_moe(op))
			CAIRN_TRY(add_last(p, o, is_moe, 0));
	}
	p->first[g->num_ops] = p->num_conflicts;
	return 0;
}

/* ---- candidates ---- */

/* Returns the name of an operation within its layer. */
static const char *short_name(const struct cairn_graph_op *op)
{
	const char *dot = strrchr(op->name, '.');

	return dot ? dot + 1 : op->name;
}

static int check_place(const struct planner *p, const struct cairn_nano_place *at)
{
	int known = 0;

	for (int32_t o = 0; o < p->g->num_ops && at->op; o++)
		known |= p->g->ops[o].layer >= 0 && !strcmp(short_name(&p->g->ops[o]), at->op);
	if (!known)
		return REFUSE("places: no layer has an operation '%s'", at->op ? at->op : "");
	if (at->batch < CAIRN_NANO_WHOLE || at->batch >= p->plan->num_batches)
		return REFUSE("places: '%s': batch is %d, of %d", at->op, at->batch, p->plan->num_batches);
	if (at->lane < 0 || at->lane >= p->plan->num_lanes)
		return REFUSE("places: '%s' of batch %d: lane is %d, of %d", at->op, at->batch, at->lane,
			      p->plan->num_lanes);
	if (!(at->start >= 0 && at->start < INFINITY))
		return REFUSE("places: '%s' of batch %d: start is not >= 0", at->op, at->batch);
	return 0;
}

static const struct cairn_nano_place *find_place(const struct planner *p, const char *op, int32_t batch)
{
	for (int32_t i = 0; i < p->plan->num_places; i++)
		if (p->plan->places[i].batch == batch && !strcmp(p->plan->places[i].op, op))
			return &p->plan->places[i];
	return NULL;
}

/* Decides whether an operation runs for all rows at once, and refuses contradictory places. */
static int is_whole(const struct planner *p, const struct cairn_graph_op *op, int32_t *whole)
{
	const char *name = short_name(op);
	int32_t split = 0, all = find_place(p, name, CAIRN_NANO_WHOLE) != NULL;

	*whole = op->layer < 0 || is_moe(op) || all;
	for (int32_t i = 0; i < p->plan->num_batches; i++)
		split |= find_place(p, name, i) != NULL;
	if (op->layer >= 0 && split && *whole)
		return REFUSE("places: '%s' has places for nano-batches, but runs for all rows", name);
	if (all && (attends(op) || appends(op)))
		return REFUSE("places: '%s' cannot run for all rows", name);
	return 0;
}

static void add_candidate(struct planner *p, int32_t o, int32_t batch, int32_t j, int32_t n)
{
	const struct cairn_graph_op *op = &p->g->ops[o];
	const struct cairn_nano_place *at = op->layer < 0 ? NULL : find_place(p, short_name(op), batch);
	int32_t k = p->plan->num_batches, i = batch < 0 ? k - 1 : batch, c = p->num_cands++;

	p->cands[c] = (struct nano_step){
		.op = o, .batch = batch, .event = -1, .ends_layer = -1,
		.lane = at ? at->lane : batch < 0 ? 0 : batch % p->plan->num_lanes,
	};
	p->time[c] = op->layer + (at ? at->start : (double)j / n + (double)i / k);
	if (op->block == CAIRN_BLOCK_HEAD)
		p->time[c] = INFINITY;
}

static int list_candidates(struct planner *p)
{
	const struct cairn_op_graph *g = p->g;
	int32_t j = 0, n = 1, whole;

	for (int32_t i = 0; i < p->plan->num_places; i++)
		CAIRN_TRY(check_place(p, &p->plan->places[i]));
	for (int32_t o = 0; o < g->num_ops; o++, j++) {
		CAIRN_TRY(is_whole(p, &g->ops[o], &whole));
		if (!o || g->ops[o].layer != g->ops[o - 1].layer) {
			j = 0;
			for (n = 1; o + n < g->num_ops && g->ops[o + n].layer == g->ops[o].layer;)
				n++;
		}
		p->of[o] = p->num_cands;
		if (whole)
			add_candidate(p, o, CAIRN_NANO_WHOLE, j, n);
		if (is_moe(&g->ops[o]) && p->plan->lanes[p->cands[p->num_cands - 1].lane].sms)
			return REFUSE("places: '%s' needs all SMs, but lane %d has a part of them",
				      short_name(&g->ops[o]), p->cands[p->num_cands - 1].lane);
		for (int32_t i = 0; i < p->plan->num_batches && !whole; i++)
			add_candidate(p, o, i, j, n);
	}
	p->of[g->num_ops] = p->num_cands;
	return 0;
}

static int meets(const struct nano_step *before, const struct nano_step *after, int keys)
{
	return before->batch < 0 || after->batch < 0 ||
	       (keys ? before->batch <= after->batch : before->batch == after->batch);
}

static int list_before(struct planner *p)
{
	for (int32_t c = 0; c < p->num_cands; c++) {
		int32_t o = p->cands[c].op;

		p->begin[c] = p->num_before;
		for (int32_t i = p->first[o]; i < p->first[o + 1]; i++) {
			const struct conflict *x = &p->conflicts[i];

			for (int32_t b = p->of[x->op]; b < p->of[x->op + 1]; b++) {
				if (!meets(&p->cands[b], &p->cands[c], x->keys))
					continue;
				CAIRN_TRY(add((void **)&p->before, p->num_before, &p->before_room,
					      sizeof(*p->before)));
				p->before[p->num_before++] = b;
			}
		}
	}
	p->begin[p->num_cands] = p->num_before;
	return 0;
}

/* ---- the schedule ---- */

static int is_ready(const struct planner *p, int32_t c)
{
	for (int32_t i = p->begin[c]; i < p->begin[c + 1]; i++)
		if (p->place[p->before[i]] < 0)
			return 0;
	return 1;
}

/* Returns the candidate that can be launched now and has the earliest time. */
static int32_t next_candidate(const struct planner *p)
{
	int32_t best = -1;

	for (int32_t c = 0; c < p->num_cands; c++)
		if (p->place[c] < 0 && (best < 0 || p->time[c] < p->time[best]) && is_ready(p, c))
			best = c;
	return best;
}

static void merge_clock(int32_t *clock, const struct nano_step *x)
{
	for (int32_t l = 0; l < CAIRN_NANO_LANES; l++)
		clock[l] = x->clock[l] > clock[l] ? x->clock[l] : clock[l];
	clock[x->lane] = x->clock[x->lane] + 1 > clock[x->lane] ? x->clock[x->lane] + 1 : clock[x->lane];
}

static int is_collective(const struct planner *p, const struct nano_step *step)
{
	return p->g->ops[step->op].collective;
}

/* Returns whether the waits so far do not imply that step `at` of the schedule has ended. */
static int is_open(const struct nano_schedule *s, const struct nano_step *step, int32_t at)
{
	const struct nano_step *x = &s->steps[at];

	return x->clock[x->lane] >= step->clock[x->lane];
}

/* Returns the latest step that candidate c conflicts with and does not wait for yet, or -1. */
static int32_t latest_open(const struct planner *p, const struct nano_schedule *s, int32_t c,
			   const struct nano_step *step)
{
	int32_t latest = -1;

	if (is_collective(p, step) && p->last_collective >= 0 && is_open(s, step, p->last_collective))
		latest = p->last_collective;
	for (int32_t i = p->begin[c]; i < p->begin[c + 1]; i++) {
		int32_t at = p->place[p->before[i]];

		if (at > latest && is_open(s, step, at))
			latest = at;
	}
	return latest;
}

/*
 * Appends candidate c to the schedule, and waits for the steps that must end before it. Later ones come
 * first: an earlier step may be implied by a later one, never the reverse.
 */
static void launch(struct planner *p, struct nano_schedule *s, int32_t c)
{
	struct nano_step *step = &s->steps[s->num_steps];
	int32_t latest;

	*step = p->cands[c];
	step->first_wait = s->num_waits;
	if (p->last[step->lane] >= 0)
		merge_clock(step->clock, &s->steps[p->last[step->lane]]);
	while ((latest = latest_open(p, s, c, step)) >= 0) {
		if (s->steps[latest].event < 0)
			s->steps[latest].event = s->num_events++;
		s->waits[s->num_waits++] = s->steps[latest].event;
		step->num_waits++;
		merge_clock(step->clock, &s->steps[latest]);
	}
	p->last[step->lane] = p->place[c] = s->num_steps++;
	if (is_collective(p, step))
		p->last_collective = p->place[c];
}

static void mark_layers(struct nano_schedule *s, const struct cairn_op_graph *g)
{
	for (int32_t i = s->num_steps - 1, below = INT32_MAX; i >= 0; i--) {
		const struct cairn_graph_op *op = &g->ops[s->steps[i].op];

		if (op->block != CAIRN_BLOCK_ATTN || op->layer >= below)
			continue;
		s->steps[i].ends_layer = below = op->layer;
	}
}

static void clear_life(struct cairn_life *life)
{
	*life = (struct cairn_life){ 0 };
	for (int32_t l = 0; l < CAIRN_NANO_LANES; l++)
		life->begin[l] = INT32_MAX;
}

static void extend_life(struct cairn_life *life, const struct nano_step *x)
{
	for (int32_t l = 0; l < CAIRN_NANO_LANES; l++)
		if (x->clock[l] < life->begin[l])
			life->begin[l] = x->clock[l];
	if (x->clock[x->lane] + 1 > life->end[x->lane])
		life->end[x->lane] = x->clock[x->lane] + 1;
}

static void use(struct nano_schedule *s, int32_t storage, const struct nano_step *x)
{
	extend_life(&s->lives[storage], x);
	if (x->batch < 0)
		s->shared[storage] = 1;
	else
		extend_life(&s->split_lives[storage * s->num_batches + x->batch], x);
}

static void find_lives(struct nano_schedule *s, const struct cairn_op_graph *g)
{
	for (int32_t v = 0; v < g->num_values; v++)
		clear_life(&s->lives[v]);
	for (int32_t v = 0; v < g->num_values * s->num_batches; v++)
		clear_life(&s->split_lives[v]);
	for (int32_t i = 0; i < s->num_steps; i++) {
		const struct cairn_graph_op *op = &g->ops[s->steps[i].op];

		for (int32_t k = 0; k < op->num_in; k++)
			use(s, g->values[op->in[k]].storage, &s->steps[i]);
		for (int32_t k = 0; k < op->num_out; k++)
			use(s, g->values[op->out[k]].storage, &s->steps[i]);
	}
	for (int32_t v = 0; v < g->num_values; v++)
		s->split[v] = !s->shared[v];
	/* Backwards, because an operation's forwarded output may itself be forwarded again. */
	for (int32_t o = g->num_ops - 1; o >= 0; o--) {
		const struct cairn_life *to = &s->lives[g->values[g->ops[o].out[0]].storage];
		struct cairn_life *from = &s->lives[g->values[g->ops[o].in[0]].storage];

		for (int32_t l = 0; l < CAIRN_NANO_LANES && g->ops[o].forwards; l++) {
			from->begin[l] = to->begin[l] < from->begin[l] ? to->begin[l] : from->begin[l];
			from->end[l] = to->end[l] > from->end[l] ? to->end[l] : from->end[l];
		}
	}
}

static int allocate(struct planner *p, struct nano_schedule *s)
{
	size_t ops = (size_t)p->g->num_ops + 1, most = ops * (size_t)p->plan->num_batches;
	size_t values = (size_t)p->g->num_values + 1;

	p->first = calloc(ops, sizeof(*p->first));
	p->of = calloc(ops, sizeof(*p->of));
	p->cands = calloc(most, sizeof(*p->cands));
	p->time = calloc(most, sizeof(*p->time));
	p->begin = calloc(most + 1, sizeof(*p->begin));
	p->place = malloc(most * sizeof(*p->place));
	s->steps = calloc(most, sizeof(*s->steps));
	s->waits = calloc(most * CAIRN_NANO_LANES, sizeof(*s->waits));
	s->num_batches = p->plan->num_batches;
	s->lives = calloc(values, sizeof(*s->lives));
	s->split_lives = calloc(values * (size_t)s->num_batches, sizeof(*s->split_lives));
	s->shared = calloc(2 * values, 1);
	s->split = s->shared + values;
	return p->first && p->of && p->cands && p->time && p->begin && p->place && s->steps && s->waits &&
	       s->lives && s->split_lives && s->shared ? 0 : cairn_error(ENOMEM, "nano_plan: no memory");
}

static int create(struct planner *p, struct nano_schedule *s)
{
	CAIRN_TRY(cairn_nano_plan_check(p->plan));
	CAIRN_TRY(allocate(p, s));
	CAIRN_TRY(find_conflicts(p));
	CAIRN_TRY(list_candidates(p));
	CAIRN_TRY(list_before(p));
	memset(p->place, 0xff, (size_t)p->num_cands * sizeof(*p->place));
	memset(p->last, 0xff, sizeof(p->last));
	p->last_collective = -1;
	/* Conflicts go from earlier to later operations, so there is always a candidate that is ready. */
	while (s->num_steps < p->num_cands)
		launch(p, s, next_candidate(p));
	mark_layers(s, p->g);
	find_lives(s, p->g);
	return 0;
}

int nano_schedule_create(struct nano_schedule *s, const struct cairn_op_graph *g,
			 const struct cairn_nano_plan *plan)
{
	struct planner p = { .g = g, .plan = plan };
	int ret;

	*s = (struct nano_schedule){ 0 };
	ret = create(&p, s);
	free(p.conflicts);
	free(p.first);
	free(p.of);
	free(p.cands);
	free(p.time);
	free(p.before);
	free(p.begin);
	free(p.place);
	if (ret)
		nano_schedule_free(s);
	return ret;
}

void nano_schedule_free(struct nano_schedule *s)
{
	free(s->steps);
	free(s->waits);
	free(s->lives);
	free(s->split_lives);
	free(s->shared);
	*s = (struct nano_schedule){ 0 };
}
