// SPDX-License-Identifier: Apache-2.0
/* timing - loops of calls on one stream or on two (timing.h) */
#include "serving/profile/timing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "primitives/base/error.h"

#define LOOP_NS		2e6		/* of the calls in a graph */
#define TRIAL_NS	30e6		/* of a pair, to learn how much each task slows the other one */

enum { MOST_LAUNCHES = 512, MOST_CALLS = 512, LEAST_LAUNCHES = 6, EVENTS = MOST_LAUNCHES + 1 };

int timing_open(struct timing *t, const struct cairn_impl *impl, int32_t ranks)
{
	int ret;

	memset(t, 0, sizeof(*t));
	t->impl = impl;
	if (cairn_power_open(&t->card, impl))
		cairn_energy_unknown(&t->no_card);
	ret = lockstep_open(&t->lockstep, impl, ranks);
	if (!ret)
		ret = CAIRN_TABLE(impl, event_create, &t->begin);
	for (int i = 0; !ret && i < PROFILE_SIDES; i++) {
		t->ends[i] = calloc(EVENTS, sizeof(*t->ends[i]));
		ret = t->ends[i] ? 0 : cairn_error(ENOMEM, "profile: no memory");
		for (int k = 0; !ret && k < EVENTS; k++)
			ret = CAIRN_TABLE(impl, event_create, &t->ends[i][k]);
	}
	if (ret)
		timing_close(t);
	return ret;
}

void timing_close(struct timing *t)
{
	for (int i = 0; i < PROFILE_SIDES; i++) {
		for (int k = 0; k < t->num_streams[i]; k++)
			t->impl->stream_destroy(t->streams[i][k].stream);
		for (int k = 0; t->ends[i] && k < EVENTS; k++)
			if (t->ends[i][k])
				t->impl->event_destroy(t->ends[i][k]);
		free(t->ends[i]);
	}
	if (t->begin)
		t->impl->event_destroy(t->begin);
	cairn_nvml_close(t->card);
	lockstep_close(&t->lockstep);
	memset(t, 0, sizeof(*t));
}

static int find_stream(struct timing *t, int side, const struct part *part, void **stream)
{
	int n = t->num_streams[side];

	for (int i = 0; i < n; i++)
		if (t->streams[side][i].part.sms == part->sms &&
		    t->streams[side][i].part.priority == part->priority) {
			*stream = t->streams[side][i].stream;
			return 0;
		}
	if (n == TIMING_PARTS)
		return cairn_error(ENOMEM, "profile: more than %d kinds of streams", TIMING_PARTS);
	if (!part->sms && !part->priority)
		CAIRN_TRY(CAIRN_TABLE(t->impl, stream_create, stream));
	else if (t->impl->stream_create_part)
		CAIRN_TRY(CAIRN_TABLE(t->impl, stream_create_part, stream, part->sms, part->priority));
	else
		return cairn_error(EOPNOTSUPP, "profile: %s has no stream_create_part", t->impl->name);
	t->streams[side][n].part = *part;
	t->streams[side][n].stream = *stream;
	t->num_streams[side]++;
	return 0;
}

/* The calls of a task that are launched together. */
struct loop {
	struct timing *t;
	struct task *task;
	void *stream, *graph;
	int calls, launches, launched;
	double launch_ns;		/* about how long a launch takes in this measurement */
};

static int run_calls(struct loop *l)
{
	for (int i = 0; i < l->calls; i++)
		CAIRN_TRY(task_call(l->task, i, l->stream));
	return 0;
}

static int capture(struct loop *l)
{
	const struct cairn_impl *impl = l->t->impl;
	void *graph = NULL;
	int ret = impl->graph_begin(l->stream), end;

	if (ret == -EOPNOTSUPP)
		return 0;
	CAIRN_TRY(cairn_table_ret(impl, ret, "graph_begin"));
	ret = run_calls(l);
	end = impl->graph_end(l->stream, &graph);
	if (ret && !end)
		impl->graph_destroy(graph);
	CAIRN_TRY(ret);
	CAIRN_TRY(cairn_table_ret(impl, end, "graph_end"));
	l->graph = graph;
	return 0;
}

/* Opens a loop of whole rounds over the task's layers. */
static int open_loop(struct loop *l, struct timing *t, struct task *task, const struct part *part,
		     double call_ns)
{
	int rounds = (int)(LOOP_NS / call_ns / task->num_layers + 0.5);

	memset(l, 0, sizeof(*l));
	l->t = t;
	l->task = task;
	CAIRN_TRY(find_stream(t, task->side, part, &l->stream));
	l->calls = (rounds < 1 ? 1 : rounds) * task->num_layers;
	if (l->calls > MOST_CALLS)
		l->calls = MOST_CALLS / task->num_layers * task->num_layers;
	l->launch_ns = call_ns * l->calls;
	return t->impl->graph_begin ? capture(l) : 0;
}

static void close_loop(struct loop *l)
{
	if (l->stream)
		l->t->impl->stream_sync(l->stream);
	if (l->graph)
		l->t->impl->graph_destroy(l->graph);
}

static int launch(struct loop *l)
{
	const struct cairn_impl *impl = l->t->impl;

	if (l->graph)
		CAIRN_TRY(CAIRN_TABLE(impl, graph_launch, l->graph, l->stream));
	else
		CAIRN_TRY(run_calls(l));
	l->launched++;
	return CAIRN_TABLE(impl, event_record, l->t->ends[l->task->side][l->launched], l->stream);
}

static void set_launches(struct loop *l, double ns)
{
	double n = ns / l->launch_ns;

	l->launches = n < LEAST_LAUNCHES ? LEAST_LAUNCHES : n > MOST_LAUNCHES ? MOST_LAUNCHES : (int)n;
	l->launched = 0;
}

/* Time of the end of launch i of a side, since the loops began; launch 0 is the beginning. */
static int end_of(const struct timing *t, int side, int i, double *ns)
{
	float ms;

	CAIRN_TRY(CAIRN_TABLE(t->impl, event_elapsed, &ms, t->begin, t->ends[side][i]));
	*ns = (double)ms * 1e6;
	return 0;
}

/* Launches all loops, always the one that is likely to run dry first. */
static int launch_all(struct timing *t, struct loop *loops, int num)
{
	const struct cairn_impl *impl = t->impl;

	CAIRN_TRY(CAIRN_TABLE(impl, event_record, t->begin, loops[0].stream));
	for (int i = 1; i < num; i++)
		CAIRN_TRY(CAIRN_TABLE(impl, stream_wait, loops[i].stream, t->begin));
	for (int i = 0; i < num; i++)
		CAIRN_TRY(CAIRN_TABLE(impl, event_record, t->ends[loops[i].task->side][0], loops[i].stream));
	for (;;) {
		struct loop *next = NULL;

		for (int i = 0; i < num; i++) {
			struct loop *l = &loops[i];

			if (l->launched < l->launches &&
			    (!next || l->launched * l->launch_ns < next->launched * next->launch_ns))
				next = l;
		}
		if (!next)
			return 0;
		CAIRN_TRY(launch(next));
	}
}

/* Runs the loops with a meter, which must stop while they still run. */
static int run(struct timing *t, struct loop *loops, int num, double ns, struct cairn_energy *energy)
{
	struct cairn_meter *meter = NULL;
	struct loop *last = &loops[num - 1];
	int ret;

	*energy = t->no_card;
	CAIRN_TRY(launch_all(t, loops, num));
	if (t->card && ns >= 2 * CAIRN_ENERGY_NS)
		CAIRN_TRY(cairn_meter_start(&meter, t->card, CAIRN_ENERGY_NS));
	ret = CAIRN_TABLE(t->impl, event_sync, t->ends[last->task->side][last->launches * 7 / 8]);
	if (meter)
		cairn_meter_stop(meter, energy);
	else if (t->card)
		*energy = (struct cairn_energy){ .watts = NAN, .sm_mhz = NAN, .capped_pct = NAN,
						 .why = "the load was too short for an energy counter" };
	for (int i = 0; !ret && i < num; i++)
		ret = CAIRN_TABLE(t->impl, stream_sync, loops[i].stream);
	return ret;
}

/* Sets *ns to the time of a call of the loop between two moments; 0: no whole launch lies between them. */
static int rate_between(const struct timing *t, const struct loop *l, double from, double to, double *ns)
{
	int side = l->task->side, first = -1, last = -1;
	double at = 0, begin = 0, end = 0;

	for (int i = 0; i <= l->launches; i++) {
		CAIRN_TRY(end_of(t, side, i, &at));
		if (at < from || at > to)
			continue;
		if (first < 0) {
			first = i;
			begin = at;
		}
		last = i;
		end = at;
	}
	*ns = last > first ? (end - begin) / (last - first) / l->calls : 0;
	return 0;
}

/*
 * Sets out->ns from the events: the time in which all loops run counts, but its first quarter. -ERANGE: a
 * loop was so slow that no launch lies in that time; its ns is then a lower bound.
 */
static int evaluate_own(const struct timing *t, const struct loop *loops, int num, struct timed *out)
{
	double from = 0, to = INFINITY, at = 0;

	for (int i = 0; i < num; i++) {
		CAIRN_TRY(end_of(t, loops[i].task->side, 0, &at));
		from = at > from ? at : from;
		CAIRN_TRY(end_of(t, loops[i].task->side, loops[i].launches, &at));
		to = at < to ? at : to;
	}
	from += (to - from) / 4;
	for (int i = 0; i < num; i++)
		CAIRN_TRY(rate_between(t, &loops[i], from, to, &out->ns[i]));
	if (num == 1 && !(out->ns[0] > 0))	/* one launch took most of the time */
		CAIRN_TRY(rate_between(t, &loops[0], 0, to, &out->ns[0]));
	for (int i = 0; i < num && to > from; i++)
		if (!(out->ns[i] > 0)) {
			out->ns[i] = (to - from) / loops[i].calls;
			return -ERANGE;
		}
	return 0;
}

/* The same by the events of rank 0. */
static int evaluate(struct timing *t, const struct loop *loops, int num, struct timed *out)
{
	const int ret = evaluate_own(t, loops, num, out);
	double all[PROFILE_SIDES + 1] = { ret };

	if (ret && ret != -ERANGE)
		return ret;
	memcpy(all + 1, out->ns, sizeof(out->ns));
	CAIRN_TRY(lockstep_agree(&t->lockstep, all, PROFILE_SIDES + 1));
	memcpy(out->ns, all + 1, sizeof(out->ns));
	return (int)all[0];
}

/* Returns about how long a call takes, from a few calls. */
static int likely(struct timing *t, struct task *task, const struct part *part, double *ns)
{
	struct loop l = { .t = t, .task = task, .calls = task->num_layers };
	float ms = 0;

	CAIRN_TRY(find_stream(t, task->side, part, &l.stream));
	for (int i = 0; i < 2; i++) {	/* the first round warms up */
		CAIRN_TRY(CAIRN_TABLE(t->impl, event_record, t->begin, l.stream));
		CAIRN_TRY(run_calls(&l));
		CAIRN_TRY(CAIRN_TABLE(t->impl, event_record, t->ends[task->side][0], l.stream));
		CAIRN_TRY(CAIRN_TABLE(t->impl, event_elapsed, &ms, t->begin, t->ends[task->side][0]));
	}
	*ns = fmax((double)ms * 1e6 / l.calls, 100);
	return lockstep_agree(&t->lockstep, ns, 1);
}

int time_alone(struct timing *t, struct task *task, const struct part *part, double seconds,
	       struct timed *out)
{
	struct loop l = { NULL };
	double ns = 0;
	int ret;

	memset(out, 0, sizeof(*out));
	CAIRN_TRY(likely(t, task, part, &ns));
	ret = open_loop(&l, t, task, part, ns);
	if (!ret) {
		set_launches(&l, seconds * 1e9);
		ret = run(t, &l, 1, seconds * 1e9, &out->energy);
	}
	if (!ret)
		ret = evaluate(t, &l, 1, out);
	close_loop(&l);
	return ret;
}

int time_pair(struct timing *t, struct task *const tasks[2], const struct part parts[2],
	      const double likely_ns[2], double seconds, struct timed *out)
{
	struct loop loops[2] = { { NULL } };
	int ret = 0;

	memset(out, 0, sizeof(*out));
	for (int i = 0; !ret && i < 2; i++)
		ret = open_loop(&loops[i], t, tasks[i], &parts[i], likely_ns[i]);
	/* a trial, from which both loops get as many launches as last equally long side by side */
	for (int round = 0; !ret && round < 2; round++) {
		double ns = round || seconds * 1e9 < TRIAL_NS ? seconds * 1e9 : TRIAL_NS;

		for (int i = 0; i < 2; i++)
			set_launches(&loops[i], ns);
		ret = run(t, loops, 2, ns, &out->energy);
		if (!ret)
			ret = evaluate(t, loops, 2, out);
		for (int i = 0; i < 2; i++)
			loops[i].launch_ns = fmax(out->ns[i], 1) * loops[i].calls;
		if (ret == -ERANGE && !round)
			ret = 0;
	}
	if (ret == -ERANGE)
		cairn_error(ERANGE, "profile: one operation kept the other one from running");
	for (int i = 0; i < 2; i++)
		close_loop(&loops[i]);
	return ret;
}
