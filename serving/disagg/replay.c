// SPDX-License-Identifier: Apache-2.0
/*
 * replay - admits the requests of a trace to lanes and counts tokens and times (replay.h)
 *
 * A request of A answer tokens that joins at the end of its lane's pass p ends with pass p + A. ends[] of a
 * lane is a ring of lists by that number, so that a pass visits only the requests that end with it.
 */
#include "serving/disagg/replay.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/disagg/disagg_fault.h"

/*
 * The clock may go this far. What is under way then still fits 64 bits: 8 lanes, each with 4 times of at most
 * 2 * CAIRN_DISAGG_MOST_S in each of 1024 layers, take less than 8 days together.
 */
#define MOST_DAYS	92
#define MOST_PS		(MOST_DAYS * INT64_C(86400) * 1000000 * CAIRN_PS_PER_US)

struct lane {
	int32_t rows;			/* requests in the running pass */
	int64_t keys;			/* that its attention reads */
	int32_t joining;		/* list of requests for the next pass; -1: none */
	int32_t num_joining;
	int64_t reserved;		/* keys at the end of all its requests, those that join included */
	int64_t passes, started;
	int32_t *ends;			/* [ring] list of requests, -1: none */
};

struct pass {
	int64_t ps;
	int32_t rows;
};

struct replay {
	const struct cairn_trace *trace;
	const struct cairn_disagg_system *system;
	const struct cairn_replay_options *opt;
	struct cairn_lanes lanes;
	struct lane lane[CAIRN_MOST_LANES];
	int32_t ring, next;		/* next: the first request that is not admitted */
	int32_t *link;			/* [num_requests] the next request of a list */
	int64_t pages, free_pages;
	struct pass *all;		/* passes within the window */
	int64_t num_all, room_all;
	int64_t first_tokens, tokens;
	int64_t from, to, now;		/* the window; from -1: not yet */
	double area;			/* running requests * ps, since the window began */
};

static int64_t pages_of(const struct replay *r, int32_t request)
{
	const struct cairn_trace_request *q = &r->trace->requests[request];
	int64_t tokens = FAULT(PROMPT_ONLY) ? q->prompt : q->prompt + q->answer;

	return (tokens + r->opt->page_size - 1) / r->opt->page_size;
}

static int64_t predicted_ps(const struct replay *r, int32_t rows, int64_t keys)
{
	int32_t n = r->opt->lanes, replicas = r->system->replicas;
	struct cairn_lane_times t;

	if (cairn_disagg_times(r->system, rows, keys, &t))
		return MOST_PS;		/* above any bound */
	return (int64_t)(cairn_lanes_cycle(n, replicas, &t) * r->lanes.layers +
			 (double)t.head * fmax(1, (double)n / replicas));
}

/* Returns the lane with the fewest keys that may take the request, or -1. */
static int32_t lane_for(const struct replay *r, int32_t request)
{
	const struct cairn_trace_request *q = &r->trace->requests[request];
	int32_t best = -1;

	for (int32_t i = 0; i < r->opt->lanes && !FAULT(FIRST_LANE); i++)
		if (best < 0 || r->lane[i].reserved < r->lane[best].reserved)
			best = i;
	best = best < 0 ? 0 : best;
	if (r->lane[best].rows + r->lane[best].num_joining >= r->opt->most_rows && !FAULT(BATCH_UNBOUNDED))
		return -1;
	if (r->opt->tbt_ms > 0 && !FAULT(NO_BOUND) &&
	    (double)predicted_ps(r, r->lane[best].rows + r->lane[best].num_joining + 1,
				 r->lane[best].reserved + q->prompt + q->answer) > r->opt->tbt_ms * 1e9)
		return -1;
	return best;
}

static void open_window(struct replay *r)
{
	r->from = r->now;
	r->first_tokens = r->tokens;
	r->num_all = 0;
	r->area = 0;
}

static void admit(struct replay *r)
{
	while (r->next < r->trace->num_requests && pages_of(r, r->next) <= r->free_pages) {
		int32_t i = lane_for(r, r->next);
		struct lane *p = &r->lane[i < 0 ? 0 : i];

		if (i < 0)
			return;
		r->free_pages -= pages_of(r, r->next);
		p->reserved += r->trace->requests[r->next].prompt + r->trace->requests[r->next].answer;
		r->link[r->next] = p->joining;
		p->joining = r->next++;
		p->num_joining++;
		if (r->from < 0 && r->next >= r->trace->num_requests / 4)
			open_window(r);
		if (r->next == r->trace->num_requests)
			r->to = r->now;
	}
}

/* Takes the joining requests in and starts a pass, if the lane has any request. */
static int start(struct replay *r, int32_t i)
{
	struct lane *p = &r->lane[i];
	struct cairn_lane_times t;

	for (int32_t q = p->joining, next; q >= 0; q = next) {
		const struct cairn_trace_request *request = &r->trace->requests[q];
		int32_t *list = &p->ends[(p->passes + request->answer - FAULT(ONE_TOKEN_LESS)) % r->ring];

		next = r->link[q];
		r->link[q] = *list;
		*list = q;
		p->rows++;
		p->keys += request->prompt;
	}
	p->joining = -1;
	p->num_joining = 0;
	if (!p->rows)
		return 0;
	p->started = r->now;
	CAIRN_TRY(cairn_disagg_times(r->system, p->rows, p->keys, &t));
	cairn_lanes_start(&r->lanes, i, r->now, &t);
	return 0;
}

/* Ends a pass: a token for each request, and those that have all of them leave. */
static int end_pass(struct replay *r, int32_t i)
{
	struct lane *p = &r->lane[i];
	int32_t *list;

	if (r->num_all == r->room_all) {
		int64_t room = r->room_all ? 2 * r->room_all : 4096;
		void *more = realloc(r->all, (size_t)room * sizeof(*r->all));

		if (!more)
			return cairn_error(ENOMEM, "replay: out of memory");
		r->all = more;
		r->room_all = room;
	}
	r->all[r->num_all++] = (struct pass){ r->now - p->started, p->rows };
	r->tokens += p->rows;
	p->keys += FAULT(KEYS_STAY) ? 0 : p->rows;
	p->passes++;
	list = &p->ends[p->passes % r->ring];
	for (int32_t q = *list; q >= 0; q = r->link[q]) {
		const struct cairn_trace_request *request = &r->trace->requests[q];

		p->rows--;
		p->keys -= request->prompt + (FAULT(KEYS_STAY) ? 0 : request->answer);
		p->reserved -= request->prompt + request->answer;
		r->free_pages += FAULT(PAGES_LEAK) ? 0 : pages_of(r, q);
		r->free_pages += FAULT(PAGES_EARLY) ? 1 : 0;
	}
	*list = -1;
	return 0;
}

/* Starts all lanes that are stopped. */
static int start_lanes(struct replay *r)
{
	for (int32_t i = 0; i < r->opt->lanes; i++)
		if (r->lanes.lanes[i].stage == CAIRN_LANE_STOPPED)
			CAIRN_TRY(start(r, i));
	return 0;
}

static int run(struct replay *r)
{
	admit(r);
	CAIRN_TRY(start_lanes(r));
	for (;;) {
		int32_t i = cairn_lanes_run(&r->lanes), rows = 0;

		if (i < 0)
			break;
		for (int32_t k = 0; k < r->opt->lanes; k++)
			rows += r->lane[k].rows;
		r->area += (double)rows * (double)(r->lanes.lanes[i].arrival - r->now);
		r->now = r->lanes.lanes[i].arrival;
		if (r->now > MOST_PS)
			return cairn_error(ERANGE, "the trace takes more than %d days", MOST_DAYS);
		CAIRN_TRY(end_pass(r, i));
		admit(r);
		if (r->to > r->from && r->next == r->trace->num_requests)
			break;		/* the window has ended, and nothing behind it counts */
		CAIRN_TRY(start_lanes(r));
	}
	if (r->next < r->trace->num_requests)
		return cairn_error(ERANGE, "request %d of the trace alone exceeds the bound of %g ms",
				   r->next + 1, r->opt->tbt_ms);
	return 0;
}

static int by_time(const void *a, const void *b)
{
	const struct pass *x = a, *y = b;

	return (x->ps > y->ps) - (x->ps < y->ps);
}

static void sum_up(struct replay *r, struct cairn_replay_result *out)
{
	int64_t end = r->now, tokens = r->tokens - r->first_tokens, seen = 0;
	double ps = 0;

	for (int64_t i = 0; i < r->num_all; i++)
		ps += (double)r->all[i].ps * r->all[i].rows;
	qsort(r->all, (size_t)r->num_all, sizeof(*r->all), by_time);
	memset(out, 0, sizeof(*out));
	for (int64_t i = 0; i < r->num_all && seen * 100 < tokens * 99; i++) {
		seen += r->all[i].rows;
		out->p99_tbt_ms = (double)r->all[i].ps * 1e-9;
	}
	out->tokens_per_s = (double)tokens / ((double)(end - r->from) * 1e-12);
	out->tbt_ms = ps / (double)tokens * 1e-9;
	out->batch = r->area / (double)(end - r->from);
	for (int32_t i = 0; i < r->system->replicas; i++)
		out->model_busy += (double)r->lanes.replica[i].busy / (double)end / r->system->replicas;
	out->attn_busy = (double)r->lanes.attn.busy / (double)end;
	out->passes = r->num_all;
	out->tokens = tokens;
	out->room = r->pages;
}

static int find_room(struct replay *r)
{
	const struct cairn_disagg_system *s = r->system;
	int64_t weights = cairn_disagg_weights(s->model, s->tp), tokens, longest = 0;
	int32_t b = s->b ? s->b : s->tp;

	if ((double)weights > s->model_gpu->memory_gb * 1e9 * r->opt->memory_share)
		return cairn_error(ERANGE, "the weights, %.1f GB on each of %d, do not fit",
				   (double)weights * 1e-9, s->tp);
	tokens = cairn_disagg_room(s->model, s->attn_gpu, b, r->opt->memory_share, s->b ? 0 : weights);
	r->pages = r->free_pages = tokens / r->opt->page_size;
	for (int32_t i = 0; i < r->trace->num_requests; i++)
		longest = pages_of(r, i) > longest ? pages_of(r, i) : longest;
	if (longest > r->pages)
		return cairn_error(ERANGE, "the longest request, %d tokens, does not fit into room for %lld",
				   r->trace->longest, (long long)tokens);
	return 0;
}

int cairn_replay(const struct cairn_trace *trace, const struct cairn_disagg_system *system,
		 const struct cairn_replay_options *opt, struct cairn_replay_result *result)
{
	struct replay r = { .trace = trace, .system = system, .opt = opt, .from = -1,
			    .ring = trace->longest_answer + 1 };
	size_t ends = (size_t)opt->lanes * (size_t)r.ring;
	int32_t *lists = malloc((ends + (size_t)trace->num_requests) * sizeof(*lists));
	int ret = lists ? find_room(&r) : cairn_error(ENOMEM, "replay: out of memory");

	if (!ret) {
		memset(lists, -1, ends * sizeof(*lists));
		r.link = lists + ends;
		for (int32_t i = 0; i < opt->lanes; i++) {
			r.lane[i].ends = lists + (size_t)i * (size_t)r.ring;
			r.lane[i].joining = -1;
		}
		cairn_lanes_init(&r.lanes, opt->lanes, system->replicas,
				 system->model->config.num_hidden_layers);
		ret = run(&r);
	}
	if (!ret)
		sum_up(&r, result);
	free(r.all);
	free(lists);
	return ret;
}
