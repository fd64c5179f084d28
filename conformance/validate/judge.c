// SPDX-License-Identifier: Apache-2.0
#include "conformance/validate/judge.h"

#include <stdlib.h>
#include <string.h>

#include "conformance/validate/validate_fault.h"
#include "primitives/base/error.h"

#define PARTS	CAIRN_SCREEN_PARTS

static int same(const uint64_t a[2], const uint64_t b[2])
{
	return a[0] == b[0] && (a[1] == b[1] || FAULT(FIRST_SUM));
}

static const uint64_t *digest_of(const struct validate_rounds *r, int32_t round, int32_t unit, int32_t part)
{
	return &r->digest[(((size_t)round * r->units + unit) * PARTS + part) * 2];
}

/* Boyer and Moore: one pass finds the only candidate, a second one counts it. */
int32_t validate_majority(const struct validate_rounds *r, int32_t round, int32_t part, const uint64_t **best)
{
	const int32_t *place = &r->place[(size_t)round * r->units];
	int32_t lead = 0, ran = 0, count = 0;

	*best = NULL;
	for (int32_t u = 0; u < r->units; u++) {
		const uint64_t *d = digest_of(r, round, u, part);

		if (place[u] < 0)
			continue;
		ran++;
		if (!lead)
			*best = d;
		lead += same(d, *best) ? 1 : -1;
		if (FAULT(FIRST_IS_GOLDEN) && ran == 1) {
			*best = d;
			break;
		}
	}
	for (int32_t u = 0; u < r->units; u++)
		count += *best && place[u] >= 0 && same(digest_of(r, round, u, part), *best);
	return 2 * count > ran || FAULT(FIRST_IS_GOLDEN) || FAULT(TIE_PASSES) ? count : 0;
}

static void add_event(struct validate_bits *b, const struct validate_event *e)
{
	if (b->num_events == VALIDATE_MAX_EVENTS)
		b->events_left_out++;
	else
		b->events[b->num_events++] = *e;
}

static void judge_round(struct validate_bits *b, const struct validate_rounds *r, int32_t round)
{
	const int32_t *place = &r->place[(size_t)round * r->units];
	const uint64_t *best[PARTS];
	int32_t ran = 0, split = 0, weak = 0, parts = FAULT(ONE_PART) ? 1 : PARTS;

	for (int32_t u = 0; u < r->units; u++)
		ran += place[u] >= 0;
	b->dropped += r->units - ran;
	if (ran < VALIDATE_MIN_UNITS)
		return;
	for (int32_t p = 0; p < parts; p++) {
		int32_t count = validate_majority(r, round, p, &best[p]);

		split |= !count;
		weak |= 10 * (int64_t)count < 9 * (int64_t)ran;
	}
	b->split_rounds += split;
	b->weak_rounds += weak && !split;
	if (split)
		return;
	b->rounds++;
	for (int32_t u = 0; u < r->units; u++) {
		if (place[u] >= 0 || FAULT(DROPPED_COUNT))
			b->seen[place[u] >= 0 ? place[u] : u]++;
		for (int32_t p = 0; p < parts && place[u] >= 0; p++) {
			const uint64_t *d = digest_of(r, round, u, p);

			if (!same(d, best[p]))
				add_event(b, &(struct validate_event){ r->first_round + round,
					FAULT(NAMES_SWAPPED) ? u : place[u], p,
					{ best[p][0], best[p][1] }, { d[0], d[1] } });
		}
	}
}

int validate_bits_add(struct validate_bits *b, const struct validate_rounds *r)
{
	for (int32_t i = 0; i < r->rounds * r->units; i++)
		if (r->place[i] >= CAIRN_SCREEN_MAX_UNITS)
			return cairn_error(EIO, "screen: place: %d is not below %d", r->place[i],
					   CAIRN_SCREEN_MAX_UNITS);
	for (int32_t round = 0; round < r->rounds; round++)
		judge_round(b, r, round);
	return 0;
}

int32_t validate_bits_places(const struct validate_bits *b)
{
	int32_t n = 0;

	for (int32_t i = 0; i < CAIRN_SCREEN_MAX_UNITS; i++)
		n += b->seen[i] > 0;
	return n;
}

int64_t validate_bits_least(const struct validate_bits *b)
{
	int64_t least = 0, sum = 0;

	for (int32_t i = 0; i < CAIRN_SCREEN_MAX_UNITS; i++) {
		sum += b->seen[i];
		if (b->seen[i] && (!least || b->seen[i] < least))
			least = b->seen[i];
	}
	return FAULT(EXPOSURE_TOTAL) ? sum : least;
}

int32_t validate_bits_unseen(const struct validate_bits *b, int32_t units)
{
	int32_t places = validate_bits_places(b);

	return places < units && !FAULT(UNSEEN_PASSES) ? units - places : 0;
}

int validate_outvoted(int32_t equal, int32_t peers)
{
	return FAULT(TIE_OF_TWO_PASSES) ? 2 * equal < peers : 2 * equal <= peers;
}

int32_t validate_bits_evidence(const struct validate_bits *b, struct validate_evidence *out, int32_t most)
{
	int32_t num = 0;

	for (int32_t i = 0; i < b->num_events; i++) {
		const struct validate_event *e = &b->events[i];
		int32_t u = 0, old = 0;

		while (u < num && out[u].place != e->place)
			u++;
		if (u == most)
			continue;
		if (u == num)
			out[num++] = (struct validate_evidence){ .place = e->place, .part = e->part,
								 .first_event = i };
		/* Parts share memory and inputs, so that one upset may show in all parts of a round. */
		for (int32_t k = 0; k < i && !FAULT(PARTS_INDEPENDENT); k++)
			old |= b->events[k].place == e->place && b->events[k].round == e->round;
		out[u].rounds += !old;
	}
	return num;
}

enum validate_verdict validate_unit_verdict(const struct validate_evidence *e)
{
	if (e->repeated > 0 && !FAULT(REPLAY_IGNORED))
		return VALIDATE_FAIL;
	if (e->rounds > 1 || FAULT(SINGLE_FAILS))
		return VALIDATE_FAIL;
	if (e->rounds && e->elsewhere && !FAULT(PROGRAMS_APART))
		return VALIDATE_FAIL;
	return e->rounds == 1 ? VALIDATE_WARN : VALIDATE_PASS;
}

enum validate_verdict validate_bits_verdict(const struct validate_bits *b, const struct validate_evidence *e,
					    int32_t num)
{
	enum validate_verdict worst = b->rounds ? VALIDATE_PASS : VALIDATE_NOT_RUN;

	if (b->split_rounds || (b->weak_rounds && !FAULT(WEAK_PASSES)))
		return VALIDATE_FAIL;
	for (int32_t i = 0; i < num; i++) {
		enum validate_verdict v = validate_unit_verdict(&e[i]);

		worst = v > worst ? v : worst;
	}
	return worst;
}

double validate_excludes(double operations)
{
	return operations > 3 ? 3 / operations : 1;
}

double validate_finds(double operations)
{
	/* 1 - (1 + x) exp(-x) is 0.99 */
	const double x = FAULT(FINDS_ONE) ? 4.605 : 6.638;

	return operations > x ? x / operations : 1;
}

const char *validate_verdict_name(enum validate_verdict v)
{
	static const char *const names[] = { "pass", "not run", "warn", "fail" };

	return names[v];
}

void validate_tally_add(struct validate_tally *t, enum validate_verdict v, int required)
{
	if (FAULT(NOT_RUN_PASSES) && v == VALIDATE_NOT_RUN)
		v = VALIDATE_PASS;
	t->num[v]++;
	t->required_not_run += v == VALIDATE_NOT_RUN && required;
}

int validate_exit(const struct validate_tally *t, int strict)
{
	if (FAULT(FAIL_AFTER_NOT_RUN) && t->required_not_run)
		return 3;
	if (t->num[VALIDATE_FAIL] || ((strict || FAULT(WARN_FAILS)) && t->num[VALIDATE_WARN]))
		return 1;
	/* A run in which nothing at all ran has shown nothing. */
	return t->required_not_run || !(t->num[VALIDATE_PASS] + t->num[VALIDATE_WARN]) ? 3 : 0;
}
