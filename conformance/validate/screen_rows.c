// SPDX-License-Identifier: Apache-2.0
/* screen_rows - the rows of a program of screen: its bits, and the rates of the units that ran it */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/validate/rates.h"
#include "conformance/validate/screens.h"
#include "primitives/base/error.h"

#define PARTS		CAIRN_SCREEN_PARTS

/* ---- bits ---- */

/* Writes " at 1500 MHz, 500 W, 60 degrees", or nothing if the driver does not tell. */
static void say_load(const struct validate_load *l, char *text, size_t len)
{
	text[0] = 0;
	if (l->mhz)
		snprintf(text, len, " at %u MHz, %u W, %u degrees", l->mhz, l->mw / 1000, l->celsius);
}

int32_t validate_screen_evidence(const struct validate_screen *s, struct validate_evidence *e)
{
	int32_t num = validate_bits_evidence(&s->bits, e, VALIDATE_MAX_NAMED);

	for (int32_t u = 0; u < num; u++)
		for (int32_t i = 0; i < s->bits.num_events; i++)
			if (s->bits.events[i].place == e[u].place) {
				e[u].replays += s->calls[i].where[VALIDATE_ON_UNIT].replays;
				e[u].repeated += s->calls[i].where[VALIDATE_ON_UNIT].repeated;
			}
	return num;
}

/* Writes what an event's replays on other units have shown, and the wrong bits, if the last step has some. */
static void say_replays(const struct validate_event_call *c, char *text, size_t len)
{
	static const char *const where[VALIDATE_NUM_WHERE] = {
		[VALIDATE_ON_SIBLING] = "in its TPC", [VALIDATE_IN_OTHER_GPC] = "in another GPC"
	};
	size_t at = 0;

	text[0] = 0;
	for (int i = VALIDATE_ON_SIBLING; i < VALIDATE_NUM_WHERE; i++)
		if (c->where[i].place >= 0)
			at += (size_t)snprintf(text + at, len - at, ", %lld of %lld on unit %d %s",
					       (long long)c->where[i].repeated,
					       (long long)c->where[i].replays, c->where[i].place, where[i]);
	if (c->word >= 0)
		snprintf(text + at, len - at, "; word %d has wrong bits %08x%s", c->word, c->bits,
			 c->by_reference ? " against the reference" : "");
}

static void add_unit(struct validate_device *d, struct validate_screen *s, const struct validate_test *t,
		     struct validate_evidence *e, json_t *row)
{
	struct cairn_screen_args a = { .program = t->program, .seed = (uint64_t)d->opt->seed };
	const struct validate_event *first = &s->bits.events[e->first_event];
	const struct validate_event_call *c = &s->calls[e->first_event];
	char again[512], load[64], more[200];
	json_t *f;

	d->upset[e->place] |= 1u << (t - validate_tests);
	e->elsewhere = __builtin_popcount(d->upset[e->place]) - 1;
	a.inputs = c->inputs;
	a.steps = c->steps;
	validate_say_replay(d, &a, first->round, e->place, again, sizeof(again));
	say_load(&c->load, load, sizeof(load));
	say_replays(c, more, sizeof(more));
	f = validate_finding(row, validate_unit_verdict(e), again,
			     "unit %d, part %d computes %s wrongly: rounds that differ: %d, the first with "
			     "%s inputs%s; %lld of %lld replays differ%s; other tests in which the unit "
			     "differed: %d", e->place, e->part, cairn_screen_program_name(t->program),
			     e->rounds, cairn_screen_inputs_name(a.inputs), load, (long long)e->repeated,
			     (long long)e->replays, more, e->elsewhere);
	json_object_set_new(f, "place", json_integer(e->place));
	json_object_set_new(f, "part", json_integer(e->part));
	json_object_set_new(f, "rounds", json_integer(e->rounds));
	json_object_set_new(f, "replays", json_integer(e->replays));
	json_object_set_new(f, "repeated", json_integer(e->repeated));
}

/* Returns the operations of the unit that has computed the least; those of MIX are steps. */
static double operations_of(const struct validate_screen *s, int program)
{
	double share = s->bits.rounds ? (double)validate_bits_least(&s->bits) / (double)s->bits.rounds : 0;
	double steps = s->operations * share * PARTS;

	if (program == CAIRN_SCREEN_MIX)
		return steps;
	return steps * (double)cairn_screen_operations(program) / (program < CAIRN_SCREEN_NUM_TENSOR ? 4 : 1);
}

/* Returns what operations_of() counts, for one unit; NULL: steps of MIX. */
static const char *counted(int program)
{
	static const char *const lanes[] = {
		[CAIRN_SCREEN_F32] = "fp32 operation of a lane",
		[CAIRN_SCREEN_F64] = "fp64 operation of a lane",
		[CAIRN_SCREEN_INT] = "integer operation of a lane",
		[CAIRN_SCREEN_SPECIAL] = "special function of a lane",
		[CAIRN_SCREEN_MEMORY] = "access to a word of shared memory", [CAIRN_SCREEN_MIX] = NULL,
	};

	return program < CAIRN_SCREEN_NUM_TENSOR ? "wgmma instruction" : lanes[program];
}

/* Writes which units have run no round. Returns their number. */
static int32_t never_ran(const struct validate_device *d, const struct validate_screen *s, char *text,
			 size_t len)
{
	int32_t missing = validate_bits_unseen(&s->bits, d->units);
	size_t at = 0;

	text[0] = 0;
	for (int32_t u = 0; u < d->units && missing > 0 && at < len - 1; u++)
		if (!s->bits.seen[u])
			at += (size_t)snprintf(text + at, len - at, "%s%d", at ? ", " : "", u);
	return missing;
}

static void add_bits(struct validate_device *d, struct validate_screen *s, const struct validate_test *t,
		     json_t *row)
{
	struct validate_evidence e[VALIDATE_MAX_NAMED];
	int32_t num = validate_screen_evidence(s, e);
	double operations = operations_of(s, t->program);

	for (int32_t u = 0; u < num; u++)
		add_unit(d, s, t, &e[u], row);
	if (s->bits.split_rounds)
		validate_finding(row, VALIDATE_FAIL, NULL, "in %lld rounds no result has a majority",
				 (long long)s->bits.split_rounds);
	if (s->bits.weak_rounds)
		validate_finding(row, VALIDATE_FAIL, NULL, "in %lld rounds under 90%% of the units agree",
				 (long long)s->bits.weak_rounds);
	if (s->wrong)
		json_array_extend(json_object_get(row, "findings"), json_object_get(s->wrong, "findings"));
	json_object_set_new(row, "rounds", json_integer(s->bits.rounds));
	json_object_set_new(row, "dropped", json_integer(s->bits.dropped));
	json_object_set_new(row, "places", json_integer(validate_bits_places(&s->bits)));
	json_object_set_new(row, "operations", json_real(operations));
	if (counted(t->program))
		json_object_set_new(row, "counts", json_string(counted(t->program)));
	json_object_set_new(row, "excludes", json_real(validate_excludes(operations)));
	if (s->has_census)
		json_object_set_new(row, "census", json_sprintf("%016llx", (unsigned long long)s->census));
	if (s->most.mhz)
		json_object_set_new(row, "load", json_pack("{s:[i,i], s:[f,f], s:[i,i]}", "mhz",
			(int)s->least.mhz, (int)s->most.mhz, "watts", s->least.mw / 1000.0,
			s->most.mw / 1000.0, "celsius", (int)s->least.celsius, (int)s->most.celsius));
}

static int report_bits(struct validate_device *d, struct validate_screen *s, const struct validate_test *t)
{
	json_t *row = validate_row(t->name, t->required);
	enum validate_verdict v;
	char missing[100];

	add_bits(d, s, t, row);
	v = validate_verdict_of(row);
	if (s->wrong && validate_verdict_of(s->wrong) > v)
		v = validate_verdict_of(s->wrong);
	if (!s->bits.rounds && !s->bits.split_rounds)
		validate_set(row, VALIDATE_NOT_RUN, "fewer than %d units ran", VALIDATE_MIN_UNITS);
	else if (v != VALIDATE_PASS)
		validate_set(row, v, "%d units, %lld rounds", validate_bits_places(&s->bits),
			     (long long)s->bits.rounds);
	else if (never_ran(d, s, missing, sizeof(missing)) > 0)
		validate_set(row, VALIDATE_NOT_RUN, "%d of %d units ran, but never unit %s",
			     validate_bits_places(&s->bits), d->units, missing);
	else
		validate_set(row, v, "%d units, %lld rounds; excludes an error rate of %.1e",
			     validate_bits_places(&s->bits), (long long)s->bits.rounds,
			     json_real_value(json_object_get(row, "excludes")));
	return validate_report(d, row);
}

/* ---- rates ---- */

/* Returns a share above 0.045 as a fault, because a defect of 5% is measured with some error. */
static enum validate_verdict verdict_of_share(double worse)
{
	return worse >= VALIDATE_MUCH_WORSE - 0.005 ? VALIDATE_FAIL : VALIDATE_WARN;
}

/* Adds the median rate of each unit, and the figure that other GPUs and runs are compared with. */
static void add_units(struct validate_device *d, struct validate_screen *s, int program, json_t *row)
{
	double column[VALIDATE_MAX_PLACES + VALIDATE_MAX_CALLS], levels[VALIDATE_MAX_CALLS];
	json_t *list = json_array();

	for (int p = 0; p < VALIDATE_MAX_PLACES; p++) {
		int32_t n = 0;

		for (int i = 0; i < s->num_rates; i++)
			if (!isnan(s->rates[i][p]))
				column[n++] = s->rates[i][p];
		if (n)
			json_array_append_new(list, json_pack("{s:i, s:i, s:f}", "place", p, "gpc", d->gpc[p],
							      "cycles", validate_median(column, n)));
	}
	json_object_set_new(row, "units", list);
	for (int i = 0; i < s->num_rates; i++) {
		int32_t n = 0;

		for (int p = 0; p < VALIDATE_MAX_PLACES; p++)
			if (!isnan(s->rates[i][p]))
				column[n++] = s->rates[i][p];
		levels[i] = validate_median(column, n);
	}
	/* each round of MIX draws other programs, whose times differ */
	if (program != CAIRN_SCREEN_MIX)
		validate_figure(d, row, "cycles", levels, s->num_rates);
}

/* Compares units within their GPC, then the GPCs. Returns the number of units compared, or -ENOMEM. */
static int32_t judge_rates(struct validate_device *d, struct validate_screen *s, const char *program,
			   json_t *row)
{
	struct validate_slow slow[VALIDATE_MAX_NAMED];
	int32_t measured, groups, num;
	double *levels = malloc(sizeof(s->rates));

	if (!levels)
		return cairn_error(ENOMEM, "no memory for the rates of %s", program);
	num = validate_slow(&s->rates[0][0], s->num_rates, VALIDATE_MAX_PLACES, d->gpc, slow,
			    VALIDATE_MAX_NAMED, &measured);
	for (int32_t i = 0; i < num; i++) {
		json_t *f = validate_finding(row, verdict_of_share(slow[i].worse), NULL,
					     "unit %d runs %s %.1f%% slower than the others of its group, in "
					     "%d of %d calls", slow[i].index, program, 100 * slow[i].worse,
					     slow[i].rounds, s->num_rates);

		json_object_set_new(f, "place", json_integer(slow[i].index));
	}
	validate_levels(&s->rates[0][0], s->num_rates, VALIDATE_MAX_PLACES, d->gpc, levels);
	if (num >= 0)
		num = validate_slow(levels, s->num_rates, VALIDATE_MAX_PLACES, NULL, slow, VALIDATE_MAX_NAMED,
				    &groups);
	for (int32_t i = 0; i < num; i++)
		validate_finding(row, verdict_of_share(slow[i].worse), NULL,
				 "the group of unit %d runs %s %.1f%% slower than the other groups, in %d of "
				 "%d calls", slow[i].index, program, 100 * slow[i].worse, slow[i].rounds,
				 s->num_rates);
	free(levels);
	return num < 0 ? num : measured;
}

static int report_rates(struct validate_device *d, struct validate_screen *s, const struct validate_test *t)
{
	char name[VALIDATE_NAME_LEN];
	int32_t measured;
	json_t *row;

	validate_rate_name(t, name);
	row = validate_row(name, 0);
	if (!s->has_clock || d->opt->shared) {
		validate_set(row, VALIDATE_NOT_RUN, s->has_clock ? "--shared: others use the device" :
			     "the units of this table have no clock");
		return validate_report(d, row);
	}
	add_units(d, s, t->program, row);
	measured = judge_rates(d, s, cairn_screen_program_name(t->program), row);
	if (measured < 0) {
		json_decref(row);
		return measured;
	}
	validate_set(row, validate_verdict_of(row), "%d units compared in %d calls", measured, s->num_rates);
	return validate_report(d, row);
}

int validate_screen_report(struct validate_device *d, struct validate_screen *s,
			   const struct validate_test *t)
{
	CAIRN_TRY(report_bits(d, s, t));
	return report_rates(d, s, t);
}
