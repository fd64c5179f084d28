/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serve_wire - what the front of `cairn serve` and its worker say to each other
 *
 * The front holds the clients, the worker the device; between them is one stream socket, and on it frames of
 * 64 bytes, in the byte order of the machine. What needs more goes in several frames, one directly behind the
 * other, whose number the first one tells:
 *
 *   front to worker
 *     SUBMIT SAMPLING IDS... STOP_IDS... BIAS...		a request
 *     CANCEL		all its answers; STOP: one of them, whose text has ended
 *     QUIT
 *   worker to front
 *     READY		once, when the model is loaded
 *     STARTED		a request has left the queue
 *     TOKEN TOP...	of an answer; FINISH: it has ended. One FINISH for each answer of a request
 *     REFUSED TEXT...	the engine does not take a request; instead of all others of it
 *     STEP		after each step of the engine, and five times a second while there is nothing to do
 *     STATS		now and then: sums since the worker began
 *     FAILED TEXT...	the worker's last words
 *
 * A request has a number that the front never gives twice; what comes for one that is over is dropped on
 * either side. Each side reads what the other wrote as it would read a stranger's bytes: kind, counts and
 * ids are checked, and a peer that breaks the order is not listened to any more.
 *
 * Neither side ever blocks on the other. Frames wait in memory for a socket that is full; how many the front
 * may have waiting is bounded by what it admits, and a worker with more than CAIRN_WIRE_MAX_WAITING does no
 * further step before the front has read.
 */
#ifndef CAIRN_SERVE_WIRE_H
#define CAIRN_SERVE_WIRE_H

#include <stddef.h>
#include <stdint.h>

#define CAIRN_WIRE_MAGIC	0xca19u
#define CAIRN_WIRE_MAX_WAITING	(4u << 20)	/* bytes */
#define CAIRN_WIRE_MAX_TEXT	480		/* bytes of TEXT behind one frame */

enum cairn_wire_kind {
	CAIRN_WIRE_SUBMIT = 1, CAIRN_WIRE_SAMPLING, CAIRN_WIRE_IDS, CAIRN_WIRE_STOP_IDS, CAIRN_WIRE_BIAS,
	CAIRN_WIRE_CANCEL, CAIRN_WIRE_STOP, CAIRN_WIRE_QUIT,
	CAIRN_WIRE_READY, CAIRN_WIRE_STARTED, CAIRN_WIRE_TOKEN, CAIRN_WIRE_TOP, CAIRN_WIRE_FINISH,
	CAIRN_WIRE_REFUSED, CAIRN_WIRE_STEP, CAIRN_WIRE_STATS, CAIRN_WIRE_FAILED, CAIRN_WIRE_TEXT,
	CAIRN_WIRE_NUM_KINDS
};

struct cairn_wire_pair {
	int32_t id;
	float value;
};

struct cairn_wire_frame {
	uint16_t magic, kind;
	int32_t count; /* TOKEN: TOP pairs behind it; REFUSED, FAILED: bytes of TEXT; lists: used here */
	uint64_t request;
	union {
		struct {
			int32_t num_prompt, max_new_tokens, num_seqs, num_stop_ids, num_bias, beam_width;
			int64_t deadline_ns;
			uint64_t salt_hi, salt_lo;
		} submit;
		struct {
			float temperature, top_p, min_p, presence, frequency, repetition, length_penalty;
			int32_t top_k, min_new_tokens, num_logprobs;
			uint64_t seed;
		} sampling;		/* count: 1 if end-of-sequence tokens are ignored */
		int32_t ids[12];
		struct cairn_wire_pair pairs[6];
		char text[48];
		int32_t index;		/* STOP */
		struct {
			int32_t vocab_size, max_context, num_pages, page_size, max_batch;
		} ready;
		int32_t cached_tokens;	/* STARTED */
		struct {
			int32_t index, id;
			float logprob;
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
	};
};

_Static_assert(sizeof(struct cairn_wire_frame) == 64, "frames have one size");
_Static_assert(offsetof(struct cairn_wire_frame, submit) == 16, "and one head");
_Static_assert(offsetof(struct cairn_wire_frame, submit.deadline_ns) == 40 &&
	       offsetof(struct cairn_wire_frame, sampling.seed) == 56 &&
	       offsetof(struct cairn_wire_frame, step.queued_tokens) == 40, "without holes");

#define CAIRN_WIRE_IDS_PER_FRAME	12
#define CAIRN_WIRE_PAIRS_PER_FRAME	6
#define CAIRN_WIRE_TEXT_PER_FRAME	48

static inline int64_t cairn_wire_frames(int64_t num, int32_t per_frame)
{
	return (num + per_frame - 1) / per_frame;
}

/* Frames on their way out: bytes [begin, end) of data. failed: there was no memory for one. */
struct cairn_wire_out {
	char *data;
	size_t begin, end, room;
	int failed;
};

void cairn_wire_put(struct cairn_wire_out *out, const struct cairn_wire_frame *frame);
/* A frame of kind with nothing but its request. */
void cairn_wire_say(struct cairn_wire_out *out, enum cairn_wire_kind kind, uint64_t request);
/* head, its count set, and the TEXT frames; cut at CAIRN_WIRE_MAX_TEXT. */
void cairn_wire_put_text(struct cairn_wire_out *out, struct cairn_wire_frame *head, const char *text);
/* ids and pairs in as many frames as they need. */
void cairn_wire_put_ids(struct cairn_wire_out *out, enum cairn_wire_kind kind, uint64_t request,
			const int32_t *ids, int64_t num);
void cairn_wire_put_pairs(struct cairn_wire_out *out, enum cairn_wire_kind kind, uint64_t request,
			  const int32_t *ids, const float *values, int64_t num);
/* Sends what the socket takes: 0: all, 1: some is left, -EPIPE: there is nobody, -ENOMEM: a frame is lost. */
int cairn_wire_flush(struct cairn_wire_out *out, int fd);
static inline size_t cairn_wire_waiting(const struct cairn_wire_out *out)
{
	return out->end - out->begin;
}

struct cairn_wire_in {
	size_t begin, end;
	union {
		struct cairn_wire_frame frames[1024];
		char bytes[65536];
	};
};

/* Reads what is there: 1: something, 0: nothing, -EPIPE: the peer has closed. Takes no more than fits. */
int cairn_wire_fill(struct cairn_wire_in *in, int fd);
/*
 * The next whole frame, or NULL; good until the next fill. *bad: it is not one of the protocol. Counts of
 * lists are within what a frame holds.
 */
const struct cairn_wire_frame *cairn_wire_next(struct cairn_wire_in *in, int *bad);

#endif
