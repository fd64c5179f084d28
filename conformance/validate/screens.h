/* SPDX-License-Identifier: Apache-2.0 */
/*
 * screens - what the files that run the programs of screen (primitives/machine/screen.h) share
 *
 * screens.c calls the programs, replay.c repeats what differed, and screen_rows.c writes the rows.
 */
#ifndef CAIRN_VALIDATE_SCREENS_H
#define CAIRN_VALIDATE_SCREENS_H

#include "conformance/validate/validate.h"

enum { VALIDATE_MAX_CALLS = 128, VALIDATE_NUM_OUTPUTS = 5, VALIDATE_MAX_NAMED = 16 };

/* Outputs of a call of screen: on the device in args, and copied to the host. */
struct validate_outputs {
	void *digest, *start, *cycles, *place, *raw;
	struct cairn_screen_args args;
	size_t bytes[VALIDATE_NUM_OUTPUTS];
};

/* args get the shapes and -1 for `only`. Returns 0 or -ENOMEM. */
int validate_outputs_alloc(struct validate_device *d, struct validate_outputs *o, int rounds, int units,
			   int with_raw);
void validate_outputs_free(struct validate_device *d, struct validate_outputs *o);
/* Runs o->args, waits, and copies the outputs to the host. */
int validate_outputs_call(struct validate_device *d, struct validate_outputs *o);
struct validate_rounds validate_outputs_rounds(const struct validate_outputs *o);

/* Replays of an event on one unit. */
struct validate_replays {
	int32_t place;			/* -1: there is no such unit, or none is known */
	int64_t replays, repeated;
};

enum validate_where { VALIDATE_ON_UNIT, VALIDATE_ON_SIBLING, VALIDATE_IN_OTHER_GPC, VALIDATE_NUM_WHERE };

/* How an event came about, and what its replays have shown. */
struct validate_event_call {
	struct validate_load load;
	int32_t inputs, steps;
	struct validate_replays where[VALIDATE_NUM_WHERE];
	int32_t word;			/* the first wrong one of a replay's last step; -1: none was wrong */
	uint32_t bits;			/* of that word: wrong in some replay */
	int by_reference;		/* the reference defines that word; else the other GPC has told it */
};

/* What is known of a program in one phase. */
struct validate_screen {
	struct validate_bits bits;
	struct validate_event_call calls[VALIDATE_MAX_EVENTS];
	int32_t num_replayed;
	int64_t next_round;
	int32_t steps, num_calls, stride;
	int extended;
	double operations;		/* of a part, in rounds with a majority */
	double rates[VALIDATE_MAX_CALLS][VALIDATE_MAX_PLACES];	/* cycles a step, in the order of time */
	int32_t num_rates;
	int has_clock;
	struct validate_load least, most;	/* over all calls; 0: unknown */
	int has_census;
	uint64_t census;		/* of random digests; equal on all devices of a model */
	json_t *wrong;			/* findings of the comparison with the reference, or NULL */
};

/* replay.c: replays the events that have none yet; `like` is the call that found them. */
int validate_replay_new(struct validate_device *d, struct validate_screen *s,
			const struct cairn_screen_args *like);
/* replay.c: writes the command that repeats a round on one unit. */
void validate_say_replay(const struct validate_device *d, const struct cairn_screen_args *a, int64_t round,
			 int32_t place, char *line, size_t len);

/*
 * screen_rows.c: collects the evidence against each unit, at most VALIDATE_MAX_NAMED, with its replays.
 * Returns the number of units.
 */
int32_t validate_screen_evidence(const struct validate_screen *s, struct validate_evidence *e);
/* screen_rows.c: reports the row of a screen, and the row of its rates. */
int validate_screen_report(struct validate_device *d, struct validate_screen *s,
			   const struct validate_test *t);

#endif
