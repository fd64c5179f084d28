/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stop_match - finds stop strings in a text that arrives in pieces
 *
 * The pieces are those of cairn_token_stream_push(). A stop string may begin in one piece and end several
 * pieces later, so a possible beginning is held back until the match completes or fails. No byte passed on is
 * ever part of a stop string, and all other bytes are passed on at once.
 *
 * The first string to be completed ends the text; if several end at the same byte, the longest one. The text
 * ends before that string or, with include, after it. The rest is dropped.
 *
 * Strings are bytes; if the strings and the pieces consist of whole characters, so does all text passed on.
 *
 * A set is read-only and may be shared by the sequences of a request (n, beams). A struct cairn_stop_match
 * belongs to one sequence; it is plain memory and may be copied with the sequence.
 *
 * Time: O(bytes * strings) in total for any text. Only cairn_stop_set_new() allocates memory.
 */
#ifndef CAIRN_STOP_MATCH_H
#define CAIRN_STOP_MATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CAIRN_MAX_STOPS 32        /* OpenAI's API has 4; tasks of lm-eval have more */
#define CAIRN_MAX_STOP_BYTES 1024 /* length limit of one string */

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

/* Text to pass on: num_held bytes held back before, then the first num_text bytes of the piece pushed. */
struct cairn_stop_text {
	const char *held; /* points into the set */
	size_t num_held, num_text;
	int stop; /* index of the string that ended the text; -1: none */
};

/* Copies the strings. num == 0: *out = NULL. -EINVAL: too many, or one empty or too long; -ENOMEM. */
int cairn_stop_set_new(const struct cairn_stop_string *strings, size_t num, struct cairn_stop_set **out);
void cairn_stop_set_free(struct cairn_stop_set *set); /* set may be NULL */

void cairn_stop_match_init(struct cairn_stop_match *m, const struct cairn_stop_set *set, bool include);
/* Processes one piece. After a stop, later calls return no text and stop == -1. */
struct cairn_stop_text cairn_stop_match_push(struct cairn_stop_match *m, const char *text, size_t num_bytes);
/* Ends the text without a stop string: returns the bytes held back. */
struct cairn_stop_text cairn_stop_match_finish(struct cairn_stop_match *m);

#endif
