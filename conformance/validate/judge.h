/* SPDX-License-Identifier: Apache-2.0 */
/*
 * judge - which compute units of a device compute wrongly, by the digests of screen (screen.h)
 *
 * All units run the same work, so in each round the digest that most of them have is right, and a unit that
 * has another one is a mismatch. A mismatch that a replay repeats fails the unit, and so do mismatches in two
 * rounds, of one program or of two. A single one only warns, because cosmic rays exist. A majority cannot see
 * what all units share; that is left to the CPU reference and to other GPUs. Nothing here calls a device.
 */
#ifndef CAIRN_VALIDATE_JUDGE_H
#define CAIRN_VALIDATE_JUDGE_H

#include <stdint.h>

#include "primitives/machine/screen.h"

/* The worse of two verdicts is the larger one. */
enum validate_verdict { VALIDATE_PASS, VALIDATE_NOT_RUN, VALIDATE_WARN, VALIDATE_FAIL };

enum { VALIDATE_MIN_UNITS = 3, VALIDATE_MAX_EVENTS = 64 };

/* A unit that differed from the majority in one part of one round. */
struct validate_event {
	int64_t round;
	int32_t place, part;
	uint64_t want[2], got[2];
};

/* What is known of one program after any number of calls. Zeroed at the start. */
struct validate_bits {
	int64_t rounds;			/* rounds with a majority */
	int64_t split_rounds;		/* rounds in which no digest has more than half of the units */
	int64_t weak_rounds;		/* rounds with a majority under 90% of the units */
	int64_t dropped;		/* (unit, round) pairs without a place */
	/* rounds that each place has computed and that had a majority */
	int64_t seen[CAIRN_SCREEN_MAX_UNITS];
	struct validate_event events[VALIDATE_MAX_EVENTS];
	int32_t num_events;
	int64_t events_left_out;
};

/* Outputs of one call of screen, with its shapes. */
struct validate_rounds {
	const uint64_t *digest;
	const int32_t *place;
	int64_t first_round;
	int32_t rounds, units;
};

/*
 * Sets *best to the digest of more than half of the units that ran a round. Returns how many units have it, 0
 * if there is none.
 */
int32_t validate_majority(const struct validate_rounds *r, int32_t round, int32_t part,
			  const uint64_t **best);
/* Compares all units in each round. -EIO: a place is out of range. */
int validate_bits_add(struct validate_bits *b, const struct validate_rounds *r);

/* Returns how many places have computed a round. */
int32_t validate_bits_places(const struct validate_bits *b);
/* Returns the rounds of the place that has computed the fewest, but at least one. */
int64_t validate_bits_least(const struct validate_bits *b);

/*
 * Returns how many of a device's units have computed no round. They have not been tested, so that a program
 * without any fault has not run on the whole device. Numbers of places need not be contiguous.
 */
int32_t validate_bits_unseen(const struct validate_bits *b, int32_t units);

/*
 * Returns whether a device is outvoted, that is, whether its result is not that of a majority. equal: devices
 * with its result, itself included; peers: all devices. If there are two devices and they differ, both are
 * outvoted.
 */
int validate_outvoted(int32_t equal, int32_t peers);

/* The evidence against one unit. */
struct validate_evidence {
	int32_t place, part;		/* part of the first event */
	int32_t rounds;			/* rounds in which it differed */
	int32_t first_event;		/* index of its first event */
	int64_t replays, repeated;	/* set by the caller: replays of its events, and how many differed */
	int32_t elsewhere;		/* set by the caller: other tests in which it differed */
};

/* Collects the evidence of each unit that has events; replays are 0. Returns the number of units. */
int32_t validate_bits_evidence(const struct validate_bits *b, struct validate_evidence *out, int32_t most);
enum validate_verdict validate_unit_verdict(const struct validate_evidence *e);
/* The verdict on a program by its evidence, and by rounds without a clear majority. */
enum validate_verdict validate_bits_verdict(const struct validate_bits *b, const struct validate_evidence *e,
					    int32_t num);

/*
 * Returns the error rate for an operation that a run without errors excludes with 95% confidence, 3 / N; 1 if
 * it has seen no operation.
 */
double validate_excludes(double operations);
/*
 * Returns the error rate for an operation that a run finds with 99% probability: two errors, which make a
 * fault, are then that likely. 1 if it has seen too few operations.
 */
double validate_finds(double operations);

/* ---- verdicts ---- */

const char *validate_verdict_name(enum validate_verdict v);	/* "pass", "warn", "fail", "not run" */

struct validate_tally {
	int32_t num[VALIDATE_FAIL + 1];
	int32_t required_not_run;
};

void validate_tally_add(struct validate_tally *t, enum validate_verdict v, int required);
/* Exit status: 0 nothing failed, 1 a fault (strict: also a warning), 3 something required did not run. */
int validate_exit(const struct validate_tally *t, int strict);

#endif
