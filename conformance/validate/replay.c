// SPDX-License-Identifier: Apache-2.0
/* replay - repeats rounds on one unit: those in which it differed, and the one that --replay names */
#include <math.h>
#include <string.h>

#include "conformance/tables/tables.h"
#include "conformance/validate/screens.h"
#include "primitives/base/error.h"
#include "serving/cli/command.h"

enum { REPLAYS = 1000, ENOUGH = 100 };	/* ENOUGH: replays that differ, after which a series ends */
#define PARTS		CAIRN_SCREEN_PARTS
#define MAX_S		5	/* of an event on one unit: the parent waits two minutes for a row */
#define SHARE		0.1	/* of the whole run; once replays have used it, a series has only three */

void validate_say_replay(const struct validate_device *d, const struct cairn_screen_args *a, int64_t round,
			 int32_t place, char *line, size_t len)
{
	const char *impl = d->opt->impl;

	snprintf(line, len, "cairn validate%s%s --device %d --replay %s:%s:%lld:%lld:%d:%d",
		 impl ? " --impl " : "", impl ? impl : "", d->number, cairn_screen_program_name(a->program),
		 cairn_screen_inputs_name(a->inputs), (long long)a->seed, (long long)round, a->steps, place);
}

/* ---- replays ---- */

/* What the last step of a part should give, and what replays have given instead. */
struct raw {
	uint32_t want[CAIRN_SCREEN_WORDS], bits;
	int32_t words, word;		/* words: 0: unknown */
};

static void compare_raw(const struct validate_outputs *o, int32_t part, struct raw *raw)
{
	const uint32_t *got = (const uint32_t *)o->raw + part * CAIRN_SCREEN_WORDS;

	for (int32_t i = 0; i < raw->words; i++)
		if (got[i] != raw->want[i] && (raw->word < 0 || raw->word == i)) {
			raw->word = i;
			raw->bits |= got[i] ^ raw->want[i];
			return;
		}
}

/*
 * Repeats a round on w->place, and counts how often it ran and differed. If raw->words is 0 and no replay
 * differs, the words of the last one become what other units are compared with.
 */
static int replay(struct validate_device *d, const struct cairn_screen_args *like,
		  const struct validate_event *e, struct validate_replays *w, struct raw *raw)
{
	struct validate_outputs o;
	double begun = cairn_now(), left = fmax(0, d->budget_s * SHARE - d->replayed_s);
	double end = begun + fmin(fmin(d->budget_s / 50, MAX_S), left);
	int ret = validate_outputs_alloc(d, &o, 1, 1, 1);

	w->replays = w->repeated = 0;
	if (ret)
		return ret;
	o.args.program = like->program;
	o.args.inputs = like->inputs;
	o.args.steps = like->steps;
	o.args.seed = like->seed;
	o.args.first_round = e->round;
	o.args.only = w->place;
	for (int i = 0; i < REPLAYS && !ret && w->repeated < ENOUGH && (i < 3 || cairn_now() < end); i++) {
		const uint64_t *got = o.digest;

		ret = validate_outputs_call(d, &o);
		if (ret || *(int32_t *)o.place < 0)
			continue;
		w->replays++;
		w->repeated += memcmp(got + 2 * e->part, e->want, sizeof(e->want)) != 0;
		compare_raw(&o, e->part, raw);
	}
	if (!ret && !raw->words && w->replays && !w->repeated) {
		memcpy(raw->want, (const uint32_t *)o.raw + e->part * CAIRN_SCREEN_WORDS, sizeof(raw->want));
		raw->words = CAIRN_SCREEN_WORDS;
	}
	d->replayed_s += cairn_now() - begun;
	validate_outputs_free(d, &o);
	return ret;
}

/* Returns a unit of another GPC, or -1 if none is known. */
static int32_t other_gpc(const struct validate_device *d, int32_t place)
{
	for (int32_t p = 0; p < VALIDATE_MAX_PLACES && place < VALIDATE_MAX_PLACES; p++)
		if (d->gpc[p] >= 0 && d->gpc[place] >= 0 && d->gpc[p] != d->gpc[place])
			return p;
	return -1;
}

/* Replays an event on its unit, on the sibling in its TPC and in another GPC, the last one first. */
static int replay_event(struct validate_device *d, const struct cairn_screen_args *a,
			const struct validate_event *e, struct validate_event_call *c, int everywhere)
{
	struct cairn_screen_args call = *a;
	struct raw raw = { .word = -1 };
	int ret = 0;

	/* the reference computes the last step alone */
	c->by_reference = cairn_screen_is_defined(a->program, a->inputs);
	if (c->by_reference) {
		ret = cairn_screen_exact(&call, e->round, e->part, a->steps - 1, NULL, NULL, raw.want);
		raw.words = ret;
	}
	if (ret < 0)
		return ret;
	c->where[VALIDATE_ON_UNIT].place = e->place;
	if (everywhere) {
		validate_learn_map(d);
		c->where[VALIDATE_IN_OTHER_GPC].place = other_gpc(d, e->place);
		c->where[VALIDATE_ON_SIBLING].place =
			e->place < VALIDATE_MAX_PLACES ? d->sibling[e->place] : -1;
	}
	ret = 0;
	for (int i = VALIDATE_NUM_WHERE - 1; i >= 0 && !ret; i--) {
		if (c->where[i].place < 0)
			continue;
		raw.word = -1;
		raw.bits = 0;
		ret = replay(d, a, e, &c->where[i], &raw);
	}
	/* the unit's own replays came last */
	c->word = raw.word;
	c->bits = raw.bits;
	return ret;
}

int validate_replay_new(struct validate_device *d, struct validate_screen *s,
			const struct cairn_screen_args *a)
{
	for (; s->num_replayed < s->bits.num_events; s->num_replayed++) {
		struct validate_event_call *c = &s->calls[s->num_replayed];

		*c = (struct validate_event_call){ .load = d->load, .inputs = a->inputs, .steps = a->steps,
			.word = -1 };
		for (int i = 0; i < VALIDATE_NUM_WHERE; i++)
			c->where[i].place = -1;
		/* a unit with many events has shown enough */
		if (s->num_replayed < 8)
			CAIRN_TRY(replay_event(d, a, &s->bits.events[s->num_replayed], c,
					       s->num_replayed < 2));
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
		struct validate_replays w = { .place = e.place };
		struct raw raw = { .word = -1 };

		if (!validate_majority(&r, 0, e.part, &best)) {
			validate_finding(row, VALIDATE_FAIL, NULL, "part %d: the units have no majority",
					 e.part);
			continue;
		}
		memcpy(e.want, best, sizeof(e.want));
		ret = replay(d, &a, &e, &w, &raw);
		ran += w.replays;
		differed += w.repeated;
		if (w.repeated)
			validate_finding(row, VALIDATE_FAIL, NULL,
					 "unit %d, part %d: %lld of %lld differ from the "
					 "majority", e.place, e.part, (long long)w.repeated,
					 (long long)w.replays);
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
