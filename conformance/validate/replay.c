// SPDX-License-Identifier: Apache-2.0
/* replay - repeats rounds on one unit: those in which it differed, and the one that --replay names */
#include <math.h>
#include <string.h>

#include "conformance/tables/tables.h"
#include "conformance/validate/screens.h"
#include "primitives/base/error.h"
#include "serving/cli/command.h"

enum { ENOUGH = 100 };	/* replays that differ; more say no more */
#define PARTS		CAIRN_SCREEN_PARTS
#define MAX_S		5	/* of the replays of an event: the parent waits two minutes for a row */

static const int replays_of_event = 1000;

void validate_say_replay(const struct validate_device *d, const struct cairn_screen_args *a, int64_t round,
			 int32_t place, char *line, size_t len)
{
	const char *impl = d->opt->impl;

	snprintf(line, len, "cairn validate%s%s --device %d --replay %s:%s:%lld:%lld:%d:%d",
		 impl ? " --impl " : "", impl ? impl : "", d->number, cairn_screen_program_name(a->program),
		 cairn_screen_inputs_name(a->inputs), (long long)a->seed, (long long)round, a->steps, place);
}

/* ---- replays ---- */

/* Repeats a round on one unit. Sets *ran and *differed to how many of `times` did. */
static int replay(struct validate_device *d, const struct cairn_screen_args *like,
		  const struct validate_event *e, int32_t place, int times, int64_t *ran, int64_t *differed)
{
	struct validate_outputs o;
	double end = cairn_now() + fmin(d->budget_s / 50, MAX_S);
	int ret = validate_outputs_alloc(d, &o, 1, 1, 0);

	*ran = *differed = 0;
	if (ret)
		return ret;
	o.args.program = like->program;
	o.args.inputs = like->inputs;
	o.args.steps = like->steps;
	o.args.seed = like->seed;
	o.args.first_round = e->round;
	o.args.only = place;
	for (int i = 0; i < times && !ret && *differed < ENOUGH && (i < 3 || cairn_now() < end); i++) {
		const uint64_t *got = o.digest;

		ret = validate_outputs_call(d, &o);
		if (ret || *(int32_t *)o.place < 0)
			continue;
		++*ran;
		*differed += memcmp(got + 2 * e->part, e->want, sizeof(e->want)) != 0;
	}
	validate_outputs_free(d, &o);
	return ret;
}

int validate_replay_new(struct validate_device *d, struct validate_screen *s,
			const struct cairn_screen_args *a)
{
	for (; s->num_replayed < s->bits.num_events; s->num_replayed++) {
		struct validate_event_call *c = &s->calls[s->num_replayed];
		const struct validate_event *e = &s->bits.events[s->num_replayed];
		/* a unit with many events has shown enough */
		int times = s->num_replayed < 8 ? replays_of_event : 0;

		c->load = d->load;
		c->inputs = a->inputs;
		c->steps = a->steps;
		if (times)
			CAIRN_TRY(replay(d, a, e, e->place, times, &c->replays, &c->repeated));
	}
	return 0;
}

/* ---- --replay ---- */

int validate_replay(struct validate_device *d, const char *what)
{
	struct cairn_screen_args a = { .size = sizeof(a) };
	struct validate_event e = { 0 };
	struct validate_outputs o;
	char program[16], inputs[16];
	long long seed, round;
	json_t *row = validate_row("replay", 1);
	int64_t ran = 0, differed = 0;
	const uint64_t *best;
	struct validate_rounds r;
	int ret;

	sscanf(what, "%15[^:]:%15[^:]:%lld:%lld:%d:%d", program, inputs, &seed, &round, &a.steps, &e.place);
	while (strcmp(cairn_screen_program_name(a.program), program))
		a.program++;
	while (strcmp(cairn_screen_inputs_name(a.inputs), inputs))
		a.inputs++;
	a.seed = (uint64_t)seed;
	e.round = round;
	ret = validate_outputs_alloc(d, &o, 1, d->units, 0);
	if (ret) {
		json_decref(row);
		return ret;
	}
	o.args.program = a.program;
	o.args.inputs = a.inputs;
	o.args.steps = a.steps;
	o.args.seed = a.seed;
	o.args.first_round = round;
	ret = validate_outputs_call(d, &o);
	r = validate_outputs_rounds(&o);
	for (e.part = 0; e.part < PARTS && !ret; e.part++) {
		int64_t n, bad;

		if (!validate_majority(&r, 0, e.part, &best)) {
			validate_finding(row, VALIDATE_FAIL, NULL, "part %d: the units have no majority",
					 e.part);
			continue;
		}
		memcpy(e.want, best, sizeof(e.want));
		ret = replay(d, &a, &e, e.place, replays_of_event, &n, &bad);
		ran += n;
		differed += bad;
		if (bad)
			validate_finding(row, VALIDATE_FAIL, NULL,
					 "unit %d, part %d: %lld of %lld differ from the "
					 "majority", e.place, e.part, (long long)bad, (long long)n);
	}
	validate_outputs_free(d, &o);
	if (ret) {
		json_decref(row);
		return ret;
	}
	if (!ran)
		validate_set(row, VALIDATE_NOT_RUN, "the device has no unit %d, or it did not run", e.place);
	else
		validate_set(row, validate_verdict_of(row), "%lld of %lld replays differ",
			     (long long)differed,
			     (long long)ran);
	return validate_report(d, row);
}
