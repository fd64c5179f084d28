/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stop_match - stop strings in a text that comes in pieces
 *
 * The text is what cairn_token_stream_push() hands out. A stop string may begin in one piece and end some
 * pieces later, so what may be the beginning of one is held back until that is known: bytes once handed
 * on are never part of a stop string, and all others are handed on at once.
 *
 * The first string to be complete counts; of several that end at the same byte the longest. The text ends
 * where it begins, or, with include, behind it. What follows is dropped.
 *
 * Strings are bytes; if they and the pieces are whole characters, so is everything handed on.
 *
 * A set is read-only and may be shared by the sequences of a request (n, beams); a struct cairn_stop_match
 * belongs to one sequence, is plain memory and may be copied with it.
 *
 * Time: O(bytes * strings) in all, whatever the text. No memory is allocated but for the set.
 */
#ifndef CAIRN_STOP_MATCH_H
#define CAIRN_STOP_MATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CAIRN_MAX_STOPS 4         /* as the API has it */
#define CAIRN_MAX_STOP_BYTES 1024 /* of one string */

struct cairn_stop_set;

struct cairn_stop_string {
	const char *bytes;
	size_t num_bytes;
};

struct cairn_stop_match {
	const struct cairn_stop_set *set;  /* NULL: no stop strings, all text passes */
	uint16_t matched[CAIRN_MAX_STOPS]; /* bytes of each string that the text ends with */
	bool include, stopped;
};

/* Text to hand on: bytes held back before, then the first num_text bytes of the piece given. */
struct cairn_stop_text {
	const char *held; /* in the set's memory */
	size_t num_held, num_text;
	int stop; /* which string ended the text; -1: none */
};

/* Copies the strings. num 0: *out is NULL. -EINVAL: too many, empty, too long; -ENOMEM. */
int cairn_stop_set_new(const struct cairn_stop_string *strings, size_t num, struct cairn_stop_set **out);
void cairn_stop_set_free(struct cairn_stop_set *set); /* NULL is fine */

void cairn_stop_match_init(struct cairn_stop_match *m, const struct cairn_stop_set *set, bool include);
/* One piece. After a stop nothing is handed on any more, and stop is -1. */
struct cairn_stop_text cairn_stop_match_push(struct cairn_stop_match *m, const char *text, size_t num_bytes);
/* The text has ended without a stop string: what was held back. */
struct cairn_stop_text cairn_stop_match_finish(struct cairn_stop_match *m);

#endif
