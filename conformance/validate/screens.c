// SPDX-License-Identifier: Apache-2.0
/*
 * screens - runs the programs of screen on all units, and replays what differs
 *
 * A slice calls screen until its time is over, with the three kinds of inputs in turn. The steps of a call
 * grow until it takes LAUNCH_S. Once for each kind of inputs, all units are compared with the CPU reference:
 * digests where the contract defines every bit, else raw results within bounds.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/tables/tables.h"
#include "conformance/validate/rates.h"
#include "conformance/validate/validate.h"
#include "primitives/base/error.h"
#include "serving/cli/command.h"

enum { ROUNDS = 4, CHECK_STEPS = 16, MAX_CALLS = 128, MAX_UNITS_NAMED = 16, MIN_CALLS = 6 };
enum { ENOUGH = 100 };	/* replays that differ; more say no more */
#define LAUNCH_S	0.02
#define PARTS		CAIRN_SCREEN_PARTS

static const int replays_of_event = 1000;

/* Outputs of a call, on the device and on the host. */
struct outputs {
	void *digest, *start, *cycles, *place, *raw;
	struct cairn_screen_args args;
	size_t bytes[5];
};

struct event_call {
	int32_t inputs, steps;
	int64_t replays, repeated;
};

struct screen {
	struct validate_bits bits;
	struct event_call calls[VALIDATE_MAX_EVENTS];
	int32_t num_replayed;
	int64_t next_round;
	int32_t steps, num_calls, stride;
	int checked, extended;
	double operations;		/* of a part, in rounds with a majority */
	double rates[MAX_CALLS][VALIDATE_MAX_PLACES];	/* cycles a step */
	int32_t num_rates;
	int has_clock;
	uint64_t census;		/* of random digests; equal on all devices of a model */
	json_t *wrong;			/* findings of the comparison with the reference */
};

static void free_outputs(struct validate_device *d, struct outputs *o)
{
	void *const device[] = { o->args.digest, o->args.start_ns, o->args.cycles, o->args.place,
		o->args.raw };
	void *const host[] = { o->digest, o->start, o->cycles, o->place, o->raw };

	for (int i = 0; i < 5; i++) {
		if (device[i])
			d->impl.mem_free(device[i]);
		free(host[i]);
	}
}

static int alloc_outputs(struct validate_device *d, struct outputs *o, int rounds, int units, int with_raw)
{
	size_t cells = (size_t)rounds * (size_t)units;
	const size_t bytes[5] = { cells * PARTS * 16, cells * 8, cells * PARTS * 8, cells * 4,
				  with_raw ? (size_t)units * PARTS * CAIRN_SCREEN_WORDS * 4 : 0 };
	void **const device[] = { (void **)&o->args.digest, (void **)&o->args.start_ns,
				  (void **)&o->args.cycles, (void **)&o->args.place, (void **)&o->args.raw };
	void **const host[] = { &o->digest, &o->start, &o->cycles, &o->place, &o->raw };

	memset(o, 0, sizeof(*o));
	memcpy(o->bytes, bytes, sizeof(bytes));
	o->args.size = sizeof(o->args);
	for (int i = 0; i < 5 && (i < 4 || with_raw); i++) {
		*host[i] = malloc(bytes[i]);
		if (!*host[i] || d->impl.mem_alloc(device[i], bytes[i])) {
			free_outputs(d, o);
			return cairn_error(ENOMEM, "no memory for the results of %d units", units);
		}
	}
	o->args.rounds = rounds;
	o->args.units = units;
	o->args.only = -1;
	return 0;
}

static int call(struct validate_device *d, struct outputs *o)
{
	const void *const device[] = { o->args.digest, o->args.start_ns, o->args.cycles, o->args.place,
				       o->args.raw };
	void *const host[] = { o->digest, o->start, o->cycles, o->place, o->raw };

	CAIRN_TRY(d->impl.screen(&o->args, d->stream));
	for (int i = 0; i < 5; i++)
		if (host[i])
			CAIRN_TRY(d->impl.mem_copy(host[i], device[i], o->bytes[i], CAIRN_COPY_TO_HOST,
						   d->stream));
	return validate_sync(d);
}

static struct validate_rounds rounds_of(const struct outputs *o)
{
	return (struct validate_rounds){ o->digest, o->place, o->args.first_round, o->args.rounds,
					 o->args.units };
}

/* The word that --replay takes. */
static void say_replay(const struct validate_device *d, const struct cairn_screen_args *a, int64_t round,
		       int32_t place, char *line, size_t len)
{
	const char *impl = d->opt->impl;

	snprintf(line, len, "cairn validate%s%s --device %d --replay %s:%s:%lld:%lld:%d:%d", impl ?
		 " --impl " : "",
		 impl ? impl : "", d->number, cairn_screen_program_name(a->program),
		 cairn_screen_inputs_name(a->inputs), (long long)a->seed, (long long)round, a->steps, place);
}

/* ---- replays ---- */

/* Repeats a round on one unit. Sets *ran and *differed to how many of `times` did. */
static int replay(struct validate_device *d, const struct cairn_screen_args *like,
		  const struct validate_event *e,
		  int32_t place, int times, int64_t *ran, int64_t *differed)
{
	struct outputs o;
	double end = cairn_now() + d->budget_s / 50;
	int ret = alloc_outputs(d, &o, 1, 1, 0);

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

		ret = call(d, &o);
		if (ret || *(int32_t *)o.place < 0)
			continue;
		++*ran;
		*differed += memcmp(got + 2 * e->part, e->want, sizeof(e->want)) != 0;
	}
	free_outputs(d, &o);
	return ret;
}

static int replay_new_events(struct validate_device *d, struct screen *s, const struct cairn_screen_args *a)
{
	for (; s->num_replayed < s->bits.num_events; s->num_replayed++) {
		struct event_call *c = &s->calls[s->num_replayed];
		const struct validate_event *e = &s->bits.events[s->num_replayed];
		/* a unit with many events has shown enough */
		int times = s->num_replayed < 8 ? replays_of_event : 0;

		c->inputs = a->inputs;
		c->steps = a->steps;
		if (times)
			CAIRN_TRY(replay(d, a, e, e->place, times, &c->replays, &c->repeated));
	}
	return 0;
}

/* ---- the reference ---- */

/* Adds a finding for each unit whose raw results leave the bounds of the reference. */
static int check_bounds(const struct outputs *o, json_t *row)
{
	double *val = malloc(2 * CAIRN_SCREEN_WORDS * sizeof(*val)), *bound = val + CAIRN_SCREEN_WORDS;
	const uint32_t *raw = o->raw;
	int ret = val ? 0 : cairn_error(ENOMEM, "no memory for the reference");

	for (int part = 0; part < PARTS && ret >= 0; part++) {
		ret = cairn_screen_exact(&o->args, o->args.first_round, part, o->args.steps - 1, val, bound,
					 NULL);
		for (int u = 0; u < o->args.units && ret >= 0; u++) {
			const uint32_t *word = raw + ((size_t)u * PARTS + part) * CAIRN_SCREEN_WORDS;
			const int32_t *place = o->place;

			for (int i = 0; i < ret && place[u] >= 0; i++) {
				float x;

				memcpy(&x, &word[i], sizeof(x));
				/* also catches NaN */
				if (fabs(x - val[i]) <= bound[i])
					continue;
				validate_finding(row, VALIDATE_FAIL, NULL,
						 "unit %d, part %d: word %d is %.9g; "
						 "the reference says %.9g, with an error of at most %.3g",
						 place[u], part, i, x, val[i], bound[i]);
				break;
			}
		}
	}
	free(val);
	return ret < 0 ? ret : 0;
}

static int check_digest(const struct outputs *o, json_t *row)
{
	uint64_t want[PARTS][2];
	int64_t start, cycles[PARTS];
	int32_t place;
	struct cairn_screen_args a = o->args;
	struct validate_rounds r = rounds_of(o);

	a.digest = &want[0][0];
	a.start_ns = &start;
	a.cycles = cycles;
	a.place = &place;
	a.raw = NULL;
	a.units = 1;
	CAIRN_TRY(cairn_screen_ref(&a, NULL));
	for (int part = 0; part < PARTS; part++) {
		const uint64_t *best;

		if (validate_majority(&r, 0, part, &best) && memcmp(best, want[part], sizeof(want[part])))
			validate_finding(row, VALIDATE_FAIL, NULL,
					 "part %d: the units agree on a digest that "
					 "is not the reference's, with %s inputs", part,
					 cairn_screen_inputs_name(a.inputs));
	}
	return 0;
}

static int check_reference(struct validate_device *d, struct screen *s, int program)
{
	struct outputs o;
	int ret;

	s->wrong = validate_row("", 0);
	s->checked = 1;
	ret = alloc_outputs(d, &o, 1, d->units, 1);
	if (ret)
		return ret;
	for (int inputs = 0; inputs < CAIRN_SCREEN_NUM_INPUTS && !ret; inputs++) {
		struct validate_rounds r;
		int defined = cairn_screen_is_defined(program, inputs);

		o.args.program = program;
		o.args.inputs = inputs;
		o.args.steps = CHECK_STEPS;
		o.args.first_round = inputs;
		o.args.seed = (uint64_t)d->opt->seed;
		ret = call(d, &o);
		r = rounds_of(&o);
		if (!ret)
			ret = validate_bits_add(&s->bits, &r);
		if (!ret)
			ret = replay_new_events(d, s, &o.args);
		for (int part = 0; part < PARTS && !ret; part++) {
			const uint64_t *best;

			if (validate_majority(&r, 0, part, &best))
				s->census = (s->census * 31 + best[0]) * 31 + best[1];
		}
		if (!ret && defined)
			ret = check_digest(&o, s->wrong);
		else if (!ret && program != CAIRN_SCREEN_MIX)
			ret = check_bounds(&o, s->wrong);
	}
	free_outputs(d, &o);
	return ret;
}

/* ---- --replay ---- */

int validate_replay(struct validate_device *d, const char *what)
{
	struct cairn_screen_args a = { .size = sizeof(a) };
	struct validate_event e = { 0 };
	struct outputs o;
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
	ret = alloc_outputs(d, &o, 1, d->units, 0);
	if (ret) {
		json_decref(row);
		return ret;
	}
	o.args.program = a.program;
	o.args.inputs = a.inputs;
	o.args.steps = a.steps;
	o.args.seed = a.seed;
	o.args.first_round = round;
	ret = call(d, &o);
	r = rounds_of(&o);
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
	free_outputs(d, &o);
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

/* ---- a slice ---- */

/* Keeps the cycles of a call; if the table is full, every second call is dropped, and from then on. */
static void keep_rates(struct screen *s, const struct outputs *o)
{
	const int64_t *cycles = o->cycles;
	const int32_t *place = o->place;
	double *rate;

	if (s->num_calls % s->stride)
		return;
	if (s->num_rates == MAX_CALLS) {
		for (int i = 0; i < MAX_CALLS / 2; i++)
			memcpy(s->rates[i], s->rates[2 * i], sizeof(s->rates[i]));
		s->num_rates = MAX_CALLS / 2;
		s->stride *= 2;
	}
	rate = s->rates[s->num_rates++];
	for (int i = 0; i < VALIDATE_MAX_PLACES; i++)
		rate[i] = NAN;
	/* the last round alone: the first one also loads the code into the caches */
	for (int u = 0; u < o->args.units; u++) {
		size_t at = (size_t)(o->args.rounds - 1) * (size_t)o->args.units + (size_t)u;
		int64_t most = 0;

		for (size_t part = at * PARTS; part < (at + 1) * PARTS; part++)
			most = cycles[part] > most ? cycles[part] : most;
		if (place[at] >= 0 && place[at] < VALIDATE_MAX_PLACES && most > 0)
			rate[place[at]] = (double)most / o->args.steps;
		s->has_clock |= most > 0;
	}
}

static int run_slice(struct validate_device *d, struct screen *s, int program, double seconds)
{
	double begun = cairn_now(), end = begun + seconds, last;
	struct outputs o;
	int ret = alloc_outputs(d, &o, ROUNDS, d->units, 0);

	if (ret)
		return ret;
	o.args.program = program;
	o.args.seed = (uint64_t)d->opt->seed;
	for (int n = 0; !ret && (n < MIN_CALLS || cairn_now() < end); n++, s->num_calls++) {
		struct validate_rounds r;
		int64_t before = s->bits.rounds;

		o.args.inputs = s->num_calls % CAIRN_SCREEN_NUM_INPUTS;
		o.args.steps = s->steps;
		o.args.first_round = s->next_round;
		s->next_round += ROUNDS;
		last = cairn_now();
		ret = call(d, &o);
		if (ret)
			break;
		last = cairn_now() - last;
		r = rounds_of(&o);
		ret = validate_bits_add(&s->bits, &r);
		s->operations += (double)(s->bits.rounds - before) * s->steps;
		keep_rates(s, &o);
		if (!ret)
			ret = replay_new_events(d, s, &o.args);
		if (last < LAUNCH_S / 2 && s->steps < CAIRN_SCREEN_MAX_STEPS)
			s->steps *= 2;
		/* one upset is looked at again, once, for five times as long */
		if (s->bits.num_events && !s->extended) {
			s->extended = 1;
			end += seconds * 5 < 300 ? seconds * 5 : 300;
		}
	}
	free_outputs(d, &o);
	return ret;
}

/* ---- rows ---- */

static void add_bits(struct validate_device *d, struct screen *s, int program, json_t *row)
{
	struct validate_evidence e[MAX_UNITS_NAMED];
	int32_t num = validate_bits_evidence(&s->bits, e, MAX_UNITS_NAMED);
	double share, operations = s->operations;

	for (int32_t u = 0; u < num; u++) {
		struct cairn_screen_args a = { .program = program, .seed = (uint64_t)d->opt->seed };
		const struct validate_event *first = &s->bits.events[e[u].first_event];
		char again[512];
		json_t *f;

		for (int32_t i = 0; i < s->bits.num_events; i++)
			if (s->bits.events[i].place == e[u].place) {
				e[u].replays += s->calls[i].replays;
				e[u].repeated += s->calls[i].repeated;
			}
		a.inputs = s->calls[e[u].first_event].inputs;
		a.steps = s->calls[e[u].first_event].steps;
		say_replay(d, &a, first->round, e[u].place, again, sizeof(again));
		f = validate_finding(row, validate_unit_verdict(&e[u]), again,
				     "unit %d, part %d computes %s wrongly: rounds that differ: %d, the "
				     "first with %s inputs; %lld of %lld replays differ", e[u].place,
				     e[u].part,
				     cairn_screen_program_name(program), e[u].rounds,
				     cairn_screen_inputs_name(a.inputs), (long long)e[u].repeated,
				     (long long)e[u].replays);
		json_object_set_new(f, "place", json_integer(e[u].place));
		json_object_set_new(f, "part", json_integer(e[u].part));
		json_object_set_new(f, "rounds", json_integer(e[u].rounds));
	}
	if (s->bits.split_rounds)
		validate_finding(row, VALIDATE_FAIL, NULL, "in %lld rounds no result has a majority",
				 (long long)s->bits.split_rounds);
	if (s->bits.weak_rounds)
		validate_finding(row, VALIDATE_FAIL, NULL, "in %lld rounds under 90%% of the units agree",
				 (long long)s->bits.weak_rounds);
	json_array_extend(json_object_get(row, "findings"), json_object_get(s->wrong, "findings"));
	/* operations of the unit that has computed the least; those of MIX are steps */
	share = s->bits.rounds ? (double)validate_bits_least(&s->bits) / (double)s->bits.rounds : 0;
	operations *= share * PARTS;
	if (program != CAIRN_SCREEN_MIX)
		operations *= (double)cairn_screen_operations(program) / (program < CAIRN_SCREEN_NUM_TENSOR ?
									  4 : 1);
	json_object_set_new(row, "rounds", json_integer(s->bits.rounds));
	json_object_set_new(row, "dropped", json_integer(s->bits.dropped));
	json_object_set_new(row, "places", json_integer(validate_bits_places(&s->bits)));
	json_object_set_new(row, "operations", json_real(operations));
	json_object_set_new(row, "excludes", json_real(validate_excludes(operations)));
	json_object_set_new(row, "census", json_sprintf("%016llx", (unsigned long long)s->census));
}

static enum validate_verdict worst(const struct screen *s, const json_t *row)
{
	enum validate_verdict v = validate_verdict_of(row), w = validate_verdict_of(s->wrong);

	return v > w ? v : w;
}

static int report_rates(struct validate_device *d, struct screen *s, int program)
{
	double medians[VALIDATE_MAX_PLACES], column[MAX_CALLS];
	struct validate_slow slow[MAX_UNITS_NAMED];
	char name[32];
	int32_t measured, num;
	json_t *row, *list;

	snprintf(name, sizeof(name), "rate.%s", cairn_screen_program_name(program));
	row = validate_row(name, 0);
	if (!s->has_clock || d->opt->shared) {
		validate_set(row, VALIDATE_NOT_RUN, s->has_clock ? "--shared: others use the device" :
			     "the units of this table have no clock");
		return validate_report(d, row);
	}
	num = validate_slow(&s->rates[0][0], s->num_rates, VALIDATE_MAX_PLACES, d->gpc, slow, MAX_UNITS_NAMED,
			    &measured);
	list = json_array();
	for (int p = 0; p < VALIDATE_MAX_PLACES; p++) {
		int32_t n = 0;

		for (int i = 0; i < s->num_rates; i++)
			if (!isnan(s->rates[i][p]))
				column[n++] = s->rates[i][p];
		medians[p] = validate_median(column, n);
		if (n)
			json_array_append_new(list, json_pack("{s:i, s:i, s:f}", "place", p, "gpc", d->gpc[p],
							      "cycles", medians[p]));
	}
	json_object_set_new(row, "units", list);
	for (int32_t i = 0; i < num; i++) {
		json_t *f = validate_finding(row, slow[i].worse >= VALIDATE_MUCH_WORSE - 0.005 ?
					     VALIDATE_FAIL :
					     VALIDATE_WARN, NULL, "unit %d runs %s %.1f%% slower than the "
					     "others "
					     "of its group, in %d of %d calls", slow[i].index,
					     cairn_screen_program_name(program), 100 * slow[i].worse,
					     slow[i].rounds, s->num_rates);

		json_object_set_new(f, "place", json_integer(slow[i].index));
	}
	validate_set(row, num < 0 ? VALIDATE_NOT_RUN : validate_verdict_of(row),
		     "%d units compared in %d calls",
		     measured, s->num_rates);
	return validate_report(d, row);
}

int validate_screen(struct validate_device *d, const struct validate_test *t, double seconds)
{
	static struct screen *screens[CAIRN_SCREEN_NUM_PROGRAMS];
	struct screen *s = screens[t->program];
	json_t *row;
	int ret;

	if (!d->impl.screen)
		return validate_not_run(d, t, "the table has no operation screen");
	if (!s) {
		s = screens[t->program] = calloc(1, sizeof(*s));
		if (!s)
			return cairn_error(ENOMEM, "no memory for %s", t->name);
		s->steps = s->stride = 1;
		s->next_round = CAIRN_SCREEN_NUM_INPUTS;	/* those before it are the reference's */
	}
	ret = s->checked ? 0 : check_reference(d, s, t->program);
	if (!ret)
		ret = run_slice(d, s, t->program, seconds);
	if (ret == -EOPNOTSUPP || ret == -ENOMEM)
		return validate_not_run(d, t, *cairn_impl_error(&d->impl) ? cairn_impl_error(&d->impl) :
					cairn_last_error());
	CAIRN_TRY(ret);
	row = validate_row(t->name, t->required);
	add_bits(d, s, t->program, row);
	if (!s->bits.rounds && !s->bits.split_rounds)
		validate_set(row, VALIDATE_NOT_RUN, "fewer than %d units ran", VALIDATE_MIN_UNITS);
	else if (worst(s, row) != VALIDATE_PASS)
		validate_set(row, worst(s, row), "%d units, %lld rounds", validate_bits_places(&s->bits),
			     (long long)s->bits.rounds);
	else
		validate_set(row, VALIDATE_PASS, "%d units, %lld rounds; excludes an error rate of %.1e",
			     validate_bits_places(&s->bits), (long long)s->bits.rounds,
			     json_real_value(json_object_get(row, "excludes")));
	CAIRN_TRY(validate_report(d, row));
	return report_rates(d, s, t->program);
}
