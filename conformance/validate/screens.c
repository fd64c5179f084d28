// SPDX-License-Identifier: Apache-2.0
/*
 * screens - runs the programs of screen on all units, under three kinds of load
 *
 * A slice calls screen until its time is over, with the three kinds of inputs in turn. The steps of a call
 * grow until it takes as long as the phase wants. Once for each kind of inputs, all units are compared with
 * the CPU reference: digests where the contract defines every bit, else raw results within bounds.
 *
 * The load follows from the length of calls and from the rest after them. Cool screens rest for three times
 * as long as they work, so that the chip stays cool and its clock high. Under full load calls follow each
 * other without rest, and the few milliseconds in which the host compares results are a small share of each.
 * Pulses work and rest for 10 ms in turn, so that voltage and clock rise and fall.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "conformance/tables/tables.h"
#include "conformance/validate/screens.h"
#include "primitives/base/error.h"
#include "serving/cli/command.h"

enum { CHECK_STEPS = 16, MIN_CALLS = 6 };
#define PARTS		CAIRN_SCREEN_PARTS
#define MAX_REST_S	0.1	/* after a call that something else has held up */

static const struct {
	double launch_s;	/* a call takes at least half as long, unless it has all steps */
	double rest;		/* after a call, in its lengths */
	int rounds;		/* of a call */
} phases[VALIDATE_NUM_PHASES] = {
	[VALIDATE_COOL] = { 0.005, 3, 4 },
	[VALIDATE_FULL_LOAD] = { 0.1, 0, 32 },
	[VALIDATE_PULSES] = { 0.01, 1, 4 },
};

/* Programs that have been compared with the reference, in whatever phase. */
static int checked[CAIRN_SCREEN_NUM_PROGRAMS];

void validate_outputs_free(struct validate_device *d, struct validate_outputs *o)
{
	void *const device[] = { o->args.digest, o->args.start_ns, o->args.cycles, o->args.place,
		o->args.raw };
	void *const host[] = { o->digest, o->start, o->cycles, o->place, o->raw };

	for (int i = 0; i < VALIDATE_NUM_OUTPUTS; i++) {
		if (device[i])
			d->impl.mem_free(device[i]);
		free(host[i]);
	}
}

int validate_outputs_alloc(struct validate_device *d, struct validate_outputs *o, int rounds, int units,
			   int with_raw)
{
	size_t cells = (size_t)rounds * (size_t)units;
	const size_t bytes[VALIDATE_NUM_OUTPUTS] = {
		cells * PARTS * 16, cells * 8, cells * PARTS * 8, cells * 4,
		with_raw ? (size_t)units * PARTS * CAIRN_SCREEN_WORDS * 4 : 0
	};
	void **const device[] = { (void **)&o->args.digest, (void **)&o->args.start_ns,
				  (void **)&o->args.cycles, (void **)&o->args.place, (void **)&o->args.raw };
	void **const host[] = { &o->digest, &o->start, &o->cycles, &o->place, &o->raw };

	memset(o, 0, sizeof(*o));
	memcpy(o->bytes, bytes, sizeof(bytes));
	o->args.size = sizeof(o->args);
	for (int i = 0; i < VALIDATE_NUM_OUTPUTS && (i < 4 || with_raw); i++) {
		*host[i] = malloc(bytes[i]);
		if (!*host[i] || d->impl.mem_alloc(device[i], bytes[i])) {
			validate_outputs_free(d, o);
			return cairn_error(ENOMEM, "no memory for the results of %d units", units);
		}
	}
	o->args.rounds = rounds;
	o->args.units = units;
	o->args.only = -1;
	return 0;
}

int validate_outputs_call(struct validate_device *d, struct validate_outputs *o)
{
	const void *const device[] = { o->args.digest, o->args.start_ns, o->args.cycles, o->args.place,
				       o->args.raw };
	void *const host[] = { o->digest, o->start, o->cycles, o->place, o->raw };

	CAIRN_TRY(d->impl.screen(&o->args, d->stream));
	for (int i = 0; i < VALIDATE_NUM_OUTPUTS; i++)
		if (host[i])
			CAIRN_TRY(d->impl.mem_copy(host[i], device[i], o->bytes[i], CAIRN_COPY_TO_HOST,
						   d->stream));
	return validate_sync(d);
}

struct validate_rounds validate_outputs_rounds(const struct validate_outputs *o)
{
	return (struct validate_rounds){ o->digest, o->place, o->args.first_round, o->args.rounds,
					 o->args.units };
}

/* ---- the reference ---- */

/* Adds a finding for each unit whose raw results leave the bounds of the reference. */
static int check_bounds(const struct validate_outputs *o, json_t *row)
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

static int check_digest(const struct validate_outputs *o, json_t *row)
{
	uint64_t want[PARTS][2];
	int64_t start, cycles[PARTS];
	int32_t place;
	struct cairn_screen_args a = o->args;
	struct validate_rounds r = validate_outputs_rounds(o);

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

static int check_reference(struct validate_device *d, struct validate_screen *s, int program)
{
	struct validate_outputs o;
	int ret;

	s->wrong = validate_row("", 0);
	s->has_census = checked[program] = 1;
	ret = validate_outputs_alloc(d, &o, 1, d->units, 1);
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
		ret = validate_outputs_call(d, &o);
		r = validate_outputs_rounds(&o);
		if (!ret)
			ret = validate_bits_add(&s->bits, &r);
		if (!ret)
			ret = validate_replay_new(d, s, &o.args);
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
	validate_outputs_free(d, &o);
	return ret;
}

/* ---- a slice ---- */

/* Keeps the cycles of a call. A full table drops every second call, and then keeps half as many. */
static void keep_rates(struct validate_screen *s, const struct validate_outputs *o)
{
	const int64_t *cycles = o->cycles;
	const int32_t *place = o->place;
	double *rate;

	if (s->num_calls % s->stride)
		return;
	if (s->num_rates == VALIDATE_MAX_CALLS) {
		for (int i = 0; i < VALIDATE_MAX_CALLS / 2; i++)
			memcpy(s->rates[i], s->rates[2 * i], sizeof(s->rates[i]));
		s->num_rates = VALIDATE_MAX_CALLS / 2;
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

/* Adds what the driver's counters say now to the range of the load in this phase. */
static void note_load(struct validate_screen *s, const struct validate_load *now)
{
	const uint32_t value[3] = { now->mhz, now->mw, now->celsius };
	uint32_t *const least[3] = { &s->least.mhz, &s->least.mw, &s->least.celsius };
	uint32_t *const most[3] = { &s->most.mhz, &s->most.mw, &s->most.celsius };

	for (int i = 0; i < 3; i++) {
		if (value[i] && (!*least[i] || value[i] < *least[i]))
			*least[i] = value[i];
		if (value[i] > *most[i])
			*most[i] = value[i];
	}
}

/* Judges the results of a call. */
static int take_call(struct validate_device *d, struct validate_screen *s, const struct validate_outputs *o)
{
	struct validate_rounds r = validate_outputs_rounds(o);
	int64_t before = s->bits.rounds;
	int32_t events = s->bits.num_events;

	CAIRN_TRY(validate_bits_add(&s->bits, &r));
	s->operations += (double)(s->bits.rounds - before) * o->args.steps;
	keep_rates(s, o);
	if (s->bits.num_events > events)
		validate_sample(d);
	note_load(s, &d->load);
	return validate_replay_new(d, s, &o->args);
}

/* Returns whether a unit has differed once, which further rounds may confirm. */
static int undecided(const struct validate_screen *s)
{
	struct validate_evidence e[VALIDATE_MAX_NAMED];
	int32_t num = s->bits.num_events ? validate_screen_evidence(s, e) : 0;

	return num && validate_bits_verdict(&s->bits, e, num) == VALIDATE_WARN;
}

static int run_slice(struct validate_device *d, struct validate_screen *s, const struct validate_test *t,
		     double seconds)
{
	double end = cairn_now() + seconds, longest = 0;
	struct validate_outputs o;
	int ret = validate_outputs_alloc(d, &o, phases[t->phase].rounds, d->units, 0);

	if (ret)
		return ret;
	o.args.program = t->program;
	o.args.seed = (uint64_t)d->opt->seed;
	for (int n = 0; !ret && (n < MIN_CALLS || cairn_now() < end ||
				 (cairn_now() < longest && undecided(s))); n++, s->num_calls++) {
		double took = cairn_now();

		o.args.inputs = s->num_calls % CAIRN_SCREEN_NUM_INPUTS;
		o.args.steps = s->steps;
		o.args.first_round = s->next_round;
		s->next_round += o.args.rounds;
		ret = validate_outputs_call(d, &o);
		if (ret)
			break;
		took = cairn_now() - took;
		ret = take_call(d, s, &o);
		if (took < phases[t->phase].launch_s / 2 && s->steps < CAIRN_SCREEN_MAX_STEPS)
			s->steps *= 2;
		/* the first upset extends the test by up to five times its length, but at most 300 s */
		if (s->bits.num_events && !s->extended) {
			s->extended = 1;
			longest = end + fmin(seconds * 5, 300);
		}
		if (phases[t->phase].rest > 0 && !d->on_host)
			usleep((useconds_t)(1e6 * fmin(phases[t->phase].rest * took, MAX_REST_S)));
	}
	/* tests after this one lose no time to it */
	if (s->bits.num_events)
		d->extended_s += fmax(0, fmin(cairn_now(), longest) - end);
	validate_outputs_free(d, &o);
	return ret;
}

int validate_screen(struct validate_device *d, const struct validate_test *t, double seconds)
{
	static struct validate_screen *screens[VALIDATE_NUM_PHASES][CAIRN_SCREEN_NUM_PROGRAMS];
	struct validate_screen *s = screens[t->phase][t->program];
	int ret;

	if (!d->impl.screen)
		return validate_not_run(d, t, "the table has no operation screen");
	if (!s) {
		s = screens[t->phase][t->program] = calloc(1, sizeof(*s));
		if (!s)
			return cairn_error(ENOMEM, "no memory for %s", t->name);
		s->steps = s->stride = 1;
		/* lower rounds are those of check_reference(); each phase has its own range of rounds */
		s->next_round = CAIRN_SCREEN_NUM_INPUTS + ((int64_t)t->phase << 40);
	}
	ret = checked[t->program] ? 0 : check_reference(d, s, t->program);
	if (!ret)
		ret = run_slice(d, s, t, seconds);
	if (ret == -EOPNOTSUPP || ret == -ENOMEM)
		return validate_not_run(d, t, *cairn_impl_error(&d->impl) ? cairn_impl_error(&d->impl) :
					cairn_last_error());
	CAIRN_TRY(ret);
	return validate_screen_report(d, s, t);
}
