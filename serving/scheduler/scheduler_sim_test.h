/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scheduler_sim_test - simulates a device that runs one step per plan, for tests with many requests
 *
 * Tokens and lengths of answers are fixed in advance: token k of the answer to request i is i * 131 + k, and
 * the answer stops after `answer` tokens. KV is not simulated here; kv_model_engine.h does that.
 */
#ifndef CAIRN_SCHEDULER_SIM_TEST_H
#define CAIRN_SCHEDULER_SIM_TEST_H

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "serving/scheduler/scheduler.h"

struct sim_request {
	int32_t *prompt, num_prompt, answer;
	int32_t told, ended, step_submitted, step_first, step_ended;
	int keep, what;
};

struct sim_flight {
	int32_t num_draws;
	struct { uint64_t id; int32_t index; } draws[1024];
};

struct sim {
	struct cairn_scheduler *s;
	struct cairn_scheduler_options opt;
	struct sim_request *requests;
	int32_t num_requests, num_steps, num_ended;
	struct sim_flight flights[2];
	int num_flights;
	/* busy steps: those with waiting requests; full steps: busy steps with dense_rows rows */
	int64_t full_steps, busy_steps;
	int64_t plan_ns, report_ns;	/* of the last step */
};

static inline int64_t sim_clock(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline int32_t sim_token(uint64_t id, int32_t k)
{
	return (int32_t)(id * 131 + (uint64_t)k) & 0xffff;
}

static inline int sim_submit(struct sim *sim, int32_t i)
{
	struct sim_request *r = &sim->requests[i];
	struct cairn_scheduler_request req = {
		.id = (uint64_t)i, .prompt = r->prompt, .num_prompt = r->num_prompt,
		.max_new_tokens = sim->opt.max_context - r->num_prompt, .keep = r->keep,
	};
	int ret = cairn_scheduler_submit(sim->s, &req);

	if (!ret)
		r->step_submitted = sim->num_steps;
	return ret;
}

static inline void sim_report(struct cairn_test *t, struct sim *sim)
{
	static int32_t tokens[1024];
	static uint8_t stops[1024];
	struct sim_flight *f = &sim->flights[0];
	const struct cairn_sched_event *ev;
	int32_t num;
	int64_t start;

	for (int32_t i = 0; i < f->num_draws; i++) {
		struct sim_request *r = &sim->requests[f->draws[i].id];

		tokens[i] = sim_token(f->draws[i].id, r->told);
		stops[i] = r->told + 1 >= r->answer;
	}
	start = sim_clock();
	EXPECT(t, cairn_scheduler_report(sim->s, tokens, stops) == 0);
	ev = cairn_scheduler_events(sim->s, &num);
	sim->report_ns = sim_clock() - start;
	for (int32_t i = 0; i < num; i++) {
		struct sim_request *r = &sim->requests[ev[i].request];

		r->step_first = r->told ? r->step_first : sim->num_steps;
		r->told += ev[i].what == CAIRN_SCHED_TOKEN || ev[i].what == CAIRN_SCHED_STOP;
		if (ev[i].what == CAIRN_SCHED_TOKEN)
			continue;
		r->ended++;
		r->what = ev[i].what;
		r->step_ended = sim->num_steps;
		sim->num_ended++;
	}
	sim->flights[0] = sim->flights[1];
	sim->num_flights--;
}

/* Runs one step: reports the oldest plan if it is due, then plans. Returns the plan, or NULL if it has no
 * rows. */
static inline const struct cairn_step_plan *sim_step(struct cairn_test *t, struct sim *sim)
{
	const struct cairn_step_plan *p = NULL;
	struct cairn_scheduler_stats st;
	struct sim_flight *f;
	int64_t start;

	if (sim->num_flights > sim->opt.ahead)
		sim_report(t, sim);
	start = sim_clock();
	if (!EXPECT(t, cairn_scheduler_plan(sim->s, 0, &p) == 0))
		return NULL;
	sim->plan_ns = sim_clock() - start;
	sim->num_steps++;
	if (!p->num_items) {
		if (sim->num_flights)
			sim_report(t, sim);
		return NULL;
	}
	cairn_scheduler_stats(sim->s, &st);
	if (st.num_waiting) {
		sim->busy_steps++;
		sim->full_steps += p->num_rows == sim->opt.dense_rows;
	}
	f = &sim->flights[sim->num_flights++];
	f->num_draws = p->num_draws;
	for (int32_t i = 0; i < p->num_items; i++) {
		if (p->items[i].draw >= 0) {
			f->draws[p->items[i].draw].id = p->items[i].request;
			f->draws[p->items[i].draw].index = p->items[i].index;
		}
	}
	return p;
}

/* Runs steps until all submitted requests have ended; at most most_steps. */
static inline void sim_run(struct cairn_test *t, struct sim *sim, int32_t most_steps)
{
	struct cairn_scheduler_stats st;

	for (int32_t k = 0; k < most_steps; k++) {
		sim_step(t, sim);
		cairn_scheduler_stats(sim->s, &st);
		if (!st.num_running && !st.num_waiting && !sim->num_flights)
			return;
	}
	EXPECT(t, !"all requests end within most_steps");
}

static inline int sim_create(struct cairn_test *t, struct sim *sim, const struct cairn_scheduler_options *opt,
			     int32_t num_requests)
{
	memset(sim, 0, sizeof(*sim));
	sim->opt = *opt;
	sim->num_requests = num_requests;
	sim->requests = calloc((size_t)num_requests, sizeof(*sim->requests));
	return EXPECT(t, sim->requests) && EXPECT(t, cairn_scheduler_create(&sim->s, opt) == 0);
}

/* Returns options with small limits and without a prefix tree. */
static inline struct cairn_scheduler_options sim_small(void)
{
	return (struct cairn_scheduler_options) {
		.dense_rows = 16,
		.max_seqs = 4,
		.max_context = 64,
		.page_size = 4,
		.num_pages = 16,
		.grain = 0,
		.max_queued = 64,
		.max_passes = 3,
		.expected_new = 4,
	};
}

static inline int64_t sim_moves(const struct cairn_step_plan *p, int kind)
{
	int64_t num = 0;

	for (int32_t i = 0; p && i < p->num_moves; i++)
		num += p->moves[i].kind == kind;
	return num;
}

/* Prepares request i with a random prompt, which the caller may overwrite. */
static inline void sim_prompt(struct cairn_test *t, struct sim *sim, int32_t i, int32_t num_prompt,
			      int32_t answer)
{
	struct sim_request *r = &sim->requests[i];

	r->prompt = malloc((size_t)num_prompt * sizeof(*r->prompt));
	if (!EXPECT(t, r->prompt))
		exit(1);
	r->num_prompt = num_prompt;
	r->answer = answer;
	for (int32_t k = 0; k < num_prompt; k++)
		r->prompt[k] = (int32_t)(cairn_rand(t) & 0xffffff);
}

static inline void sim_destroy(struct cairn_test *t, struct sim *sim)
{
	EXPECT(t, cairn_scheduler_verify(sim->s) == 0);
	cairn_scheduler_destroy(sim->s);
	for (int32_t i = 0; i < sim->num_requests; i++)
		free(sim->requests[i].prompt);
	free(sim->requests);
}

void scheduler_plan_cost(struct cairn_test *t);	/* the measurement: scheduler_cost_test.c */

#endif
