/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grammar_wire - what an engine's process and the grammar process send each other
 *
 * Both share a stream socket and a block of memory. A message on the socket is a frame and `bytes` bytes of
 * text:
 *
 *   to the grammar process
 *     OPEN text after	compile a constraint
 *     CLOSE		free it
 *     STEP		compute the items in the shared memory
 *   from it
 *     READY		once, when the vocabulary is loaded
 *     OPENED		the constraint is compiled, and its first mask exists
 *     REFUSED text	it cannot be used
 *     STEPPED		the items have their answers, and the masks are there
 *     UNUSABLE text	the library or the model cannot be used; the process ends, as a new one would
 *
 * The shared memory holds items and masks of one step; it belongs to the grammar process from STEP to STEPPED
 * and to the engine's at all other times. Neither side trusts the other: frames and items are copied, then
 * checked, then used, and a violation ends the connection.
 */
#ifndef CAIRN_GRAMMAR_WIRE_H
#define CAIRN_GRAMMAR_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "serving/base/socket_queue.h"
#include "serving/grammar/grammar.h"

#define GRAMMAR_SOCKET	3		/* descriptors of the grammar process */
#define GRAMMAR_MEMORY	4
#define GRAMMAR_MAGIC	0xca26u
#define GRAMMAR_MAX_BYTES	(CAIRN_GRAMMAR_MAX_TEXT + CAIRN_GRAMMAR_MAX_AFTER)
#define GRAMMAR_MAX_ERROR	400	/* bytes of a REFUSED or UNUSABLE */
#define GRAMMAR_MAX_SEQS	1024
#define GRAMMAR_MAX_TOKENS	64	/* tokens, and drafts, of an item */

enum grammar_message {
	GRAMMAR_OPEN = 1, GRAMMAR_CLOSE, GRAMMAR_STEP, GRAMMAR_READY, GRAMMAR_OPENED, GRAMMAR_REFUSED,
	GRAMMAR_STEPPED, GRAMMAR_UNUSABLE, GRAMMAR_NUM_MESSAGES
};

struct grammar_frame {
	uint16_t magic, kind;
	int32_t bytes;			/* of text after the frame */
	uint64_t id;			/* the constraint; STEP, STEPPED: the number of the step */
	int32_t constraint, num_seqs, num_after;	/* OPEN: enum cairn_constraint_kind */
	int32_t num;			/* STEP: items; READY: the vocabulary; OPENED: 1 if it was cached */
	int64_t ns;			/* OPENED: time to compile; STEPPED: time of the step */
};

_Static_assert(sizeof(struct grammar_frame) == 40, "frames have no padding");

struct grammar_item {
	uint64_t id;
	int64_t draw;
	int32_t seq, num_tokens, num_drafts, wants_masks;
	int32_t num_valid, first_mask;	/* the answer; first_mask is given */
	int32_t tokens[GRAMMAR_MAX_TOKENS], drafts[GRAMMAR_MAX_TOKENS];
};

/* Which draw a mask belongs to. */
struct grammar_head {
	uint64_t id;
	int64_t draw;
	int32_t seq, is_set;
};

/* The places in the shared memory for `max_masks` items and as many masks. */
struct grammar_memory {
	struct grammar_item *items;
	struct grammar_head *heads;
	uint32_t *masks;		/* [max_masks, words] */
	int32_t max_masks, vocab_size, words;
	size_t bytes;
};

/* Sets the places in the block at base. */
void grammar_lay_out(struct grammar_memory *m, void *base, int32_t max_masks, int32_t vocab_size);

/* Queues a message and sets its magic and bytes. Its text is in two parts, each of which may be NULL. */
void grammar_put(struct cairn_out_queue *out, const struct grammar_frame *frame, const char *text, size_t num,
		 const char *more, size_t num_more);
/* As cairn_out_flush(). */
int grammar_flush(struct cairn_out_queue *out, int fd);

struct grammar_in {
	size_t begin, end;
	char data[2 * (GRAMMAR_MAX_BYTES + sizeof(struct grammar_frame))];
};

/* As cairn_in_fill(). */
int grammar_fill(struct grammar_in *in, int fd);
/*
 * Takes the next complete message. Returns 1, or 0 if there is none, or -EINVAL if it is malformed. Its text
 * is at *text, frame->bytes of it, until the next fill.
 */
int grammar_next(struct grammar_in *in, struct grammar_frame *frame, const char **text);

#endif
