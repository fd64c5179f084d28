/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serve_wire - protocol between the front of `cairn serve` and its worker
 *
 * Front and worker share one stream socket. They exchange frames of 64 bytes in the byte order of the
 * machine. A longer message is a sequence of adjacent frames; its first frame holds the number of elements:
 *
 *   front to worker
 *     SUBMIT SAMPLING IDS... STOP_IDS... BIAS... CONSTRAINT TEXT...	a request
 *     CANCEL		ends all answers of a request
 *     STOP		ends one answer, whose text has reached a stop string
 *     QUIT
 *   worker to front
 *     READY		once, when the model is loaded
 *     STARTED		a request has left the queue
 *     PROMPT TOP...	a token of a prompt whose log-probabilities were requested; in order, before TOKEN
 *     TOKEN TOP...	a token of an answer
 *     FINISH		an answer has ended; sent once for each answer of a request
 *     REFUSED TEXT...	the engine rejects a request; no other frame follows for it
 *     STEP		after each step of the engine, and five times per second while idle
 *     STATS		periodically: counters since the worker's start
 *     EVENTS		after STATS, with --kv-events: counters since the worker's start
 *     DRAFTS ACCEPTED...	after STATS, with speculation: counters since the worker's start
 *     PULLS		after STATS, with prefill workers: counters since the worker's start
 *     MASKS		after STATS, with constraints: counters since the worker's start
 *     POWER		about once a second, if the device has an energy counter
 *     FAILED TEXT...	error message before the worker exits
 *
 * The front never reuses a request's number. Either side drops frames for a request that is over. Neither
 * side trusts the other: kind, counts and ids are checked, and a protocol violation ends the connection.
 *
 * Neither side ever blocks on the other. Frames are queued in memory while the socket is full. The front's
 * queue is bounded by its admission limits; a worker with more than CAIRN_WIRE_MAX_WAITING bytes queued makes
 * no further step until the front has read.
 */
#ifndef CAIRN_SERVE_WIRE_H
#define CAIRN_SERVE_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "serving/base/socket_queue.h"

#define CAIRN_WIRE_MAGIC	0xca19u
#define CAIRN_WIRE_MAX_WAITING	(4u << 20)	/* bytes */
#define CAIRN_WIRE_MAX_TEXT	480		/* bytes of TEXT that follow one frame */

enum cairn_wire_kind {
	CAIRN_WIRE_SUBMIT = 1, CAIRN_WIRE_SAMPLING, CAIRN_WIRE_IDS, CAIRN_WIRE_STOP_IDS, CAIRN_WIRE_BIAS,
	CAIRN_WIRE_CANCEL, CAIRN_WIRE_STOP, CAIRN_WIRE_QUIT,
	CAIRN_WIRE_READY, CAIRN_WIRE_STARTED, CAIRN_WIRE_TOKEN, CAIRN_WIRE_TOP, CAIRN_WIRE_FINISH,
	CAIRN_WIRE_REFUSED, CAIRN_WIRE_STEP, CAIRN_WIRE_STATS, CAIRN_WIRE_FAILED, CAIRN_WIRE_TEXT,
	CAIRN_WIRE_PROMPT, CAIRN_WIRE_POWER, CAIRN_WIRE_DRAFTS, CAIRN_WIRE_ACCEPTED,
	CAIRN_WIRE_CONSTRAINT, CAIRN_WIRE_MASKS, CAIRN_WIRE_EVENTS, CAIRN_WIRE_PULLS,
	CAIRN_WIRE_NUM_KINDS
};

enum cairn_wire_sampling {
	CAIRN_WIRE_IGNORE_EOS = 1,
	CAIRN_WIRE_CONSTRAINED = 2,	/* a CONSTRAINT comes last */
};

struct cairn_wire_pair {
	int32_t id;
	float value;
};

struct cairn_wire_frame {
	uint16_t magic, kind;
	/*
	 * SUBMIT: 0, or 1 + the number of likeliest tokens to report at the position of each prompt token;
	 * TOKEN, PROMPT: pairs in the TOP frames that follow; REFUSED, FAILED: bytes of TEXT; ACCEPTED: place
	 * of the first value; lists: elements in this frame
	 */
	int32_t count;
	uint64_t request;
	union {
		struct {
			int32_t num_prompt, max_new_tokens;
			int16_t num_seqs, num_stop_ids;
			int32_t num_bias;
			int16_t beam_width, adapter;
			int32_t num_given;	/* of the prompt, as in struct cairn_request */
			int64_t deadline_ns;
			uint64_t salt_hi, salt_lo;
		} submit;
		struct {
			float temperature, top_p, min_p, presence, frequency, repetition, length_penalty;
			int32_t top_k, min_new_tokens, num_logprobs;
			uint64_t seed;
		} sampling;		/* count: enum cairn_wire_sampling */
		struct {		/* followed by TEXT: the constraint's text, then the one before it */
			int32_t kind, num_bytes, num_after;	/* as in struct cairn_constraint */
		} constraint;
		int32_t ids[12];
		struct cairn_wire_pair pairs[6];
		char text[48];
		int32_t index;		/* STOP */
		struct {
			int32_t vocab_size, max_context, num_pages, page_size, max_batch;
		} ready;
		int32_t cached_tokens;	/* STARTED */
		struct {
			int32_t index, id;	/* PROMPT: index is the position */
			float logprob;
			int32_t rank;	/* PROMPT: cairn_token.rank */
		} token;
		struct {
			int32_t index, why, token;
		} finish;
		int32_t error;		/* REFUSED: errno, > 0 */
		struct {
			int32_t rows, running, waiting, used_pages, num_pages, busy;
			int64_t queued_tokens, num_steps, now_ns;
		} step;
		struct {
			int64_t prompt_tokens, hit_tokens, preemptions, evicted_pages, host_ns, wait_ns;
		} stats;
		struct {
			int64_t num, tokens, accepted;
		} drafts;
		struct {
			int64_t compiled, cache_hits, refused, restarts, masks, mask_ns;
		} masks;		/* as in struct cairn_grammar_stats */
		struct {
			int64_t published, lost;
		} events;
		struct {
			int64_t workers;	/* now */
			int64_t prompts, pages, bytes, checksum_errors, recomputed;
		} pulls;
		int64_t accepted[6];	/* ACCEPTED: at the places of drafts from `count` on */
		struct {
			int64_t energy_mj;	/* since the driver was loaded */
			int32_t power_mw;	/* 0: unknown */
		} power;
	};
};

_Static_assert(sizeof(struct cairn_wire_frame) == 64, "all frames have one size");
_Static_assert(offsetof(struct cairn_wire_frame, submit) == 16, "all frames have the same head");
_Static_assert(offsetof(struct cairn_wire_frame, submit.deadline_ns) == 40 &&
	       offsetof(struct cairn_wire_frame, sampling.seed) == 56 &&
	       offsetof(struct cairn_wire_frame, step.queued_tokens) == 40, "frames have no padding");

#define CAIRN_WIRE_IDS_PER_FRAME	12
#define CAIRN_WIRE_PAIRS_PER_FRAME	6
#define CAIRN_WIRE_TEXT_PER_FRAME	48

static inline int64_t cairn_wire_frames(int64_t num, int32_t per_frame)
{
	return (num + per_frame - 1) / per_frame;
}

void cairn_wire_put(struct cairn_out_queue *out, const struct cairn_wire_frame *frame);
/* Queues a frame of this kind that carries only a request number. */
void cairn_wire_say(struct cairn_out_queue *out, enum cairn_wire_kind kind, uint64_t request);
/* Queues head, with its count set, and TEXT frames; text is truncated to CAIRN_WIRE_MAX_TEXT bytes. */
void cairn_wire_put_text(struct cairn_out_queue *out, struct cairn_wire_frame *head, const char *text);
/* Queues the TEXT frames alone, as many as needed. */
void cairn_wire_put_bytes(struct cairn_out_queue *out, uint64_t request, const char *text, size_t num);
/* Queue ids or pairs in as many frames as needed. */
void cairn_wire_put_ids(struct cairn_out_queue *out, enum cairn_wire_kind kind, uint64_t request,
			const int32_t *ids, int64_t num);
void cairn_wire_put_pairs(struct cairn_out_queue *out, enum cairn_wire_kind kind, uint64_t request,
			  const int32_t *ids, const float *values, int64_t num);
/* As cairn_out_flush(). */
int cairn_wire_flush(struct cairn_out_queue *out, int fd);

struct cairn_wire_in {
	size_t begin, end;
	union {
		struct cairn_wire_frame frames[1024];
		char bytes[65536];
	};
};

/* As cairn_in_fill(). */
int cairn_wire_fill(struct cairn_wire_in *in, int fd);
/*
 * Returns the next complete frame, or NULL; valid until the next fill. *bad is set if the frame's magic, kind
 * or count is invalid. Counts of lists do not exceed what a frame holds.
 */
const struct cairn_wire_frame *cairn_wire_next(struct cairn_wire_in *in, int *bad);

#endif
