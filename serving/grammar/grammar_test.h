/* SPDX-License-Identifier: Apache-2.0 */
/* grammar_test - a grammar process with the vocabulary of the embedded model, for tests */
#ifndef CAIRN_GRAMMAR_TEST_H
#define CAIRN_GRAMMAR_TEST_H

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "serving/base/clock.h"
#include "serving/grammar/grammar.h"
#include "serving/tokenizer/tokenizer.h"

#define VOCAB		512
#define EOS		511
#define WORDS		(VOCAB / 32)
#define WAIT_S		120	/* generous: other tests use the processors too */

struct bench {
	struct cairn_grammar *g;
	const struct cairn_mask_source *masks;
	struct cairn_tokenizer *tok;
	struct cairn_token_stream *stream;
};

/* Skips the test if the library is not installed. */
static inline int start_bench(struct cairn_test *t, struct bench *b, struct cairn_grammar_options o)
{
	static const int32_t eos[] = { EOS };
	char dir[4096];

	*b = (struct bench){ 0 };
	if (cairn_grammar_library()) {
		cairn_skip(t, "%s", cairn_last_error());
		return 0;
	}
	snprintf(dir, sizeof(dir), "%s/serving/embedded", cairn_srcdir());
	o.model_dir = dir;
	o.vocab_size = VOCAB;
	o.eos = eos;
	o.num_eos = 1;
	o.max_masks = o.max_masks ? o.max_masks : 16;
	o.step_ms = o.step_ms ? o.step_ms : WAIT_S * 1000;
	if (!EXPECT(t, !cairn_grammar_create(&b->g, &o)) ||
	    !EXPECT(t, !cairn_tokenizer_open(dir, &b->tok)) ||
	    !EXPECT(t, !cairn_token_stream_new(b->tok, false, &b->stream)))
		return 0;
	b->masks = cairn_grammar_masks(b->g);
	return 1;
}

static inline void stop_bench(struct bench *b)
{
	cairn_grammar_destroy(b->g);
	cairn_token_stream_free(b->stream);
	cairn_tokenizer_free(b->tok);
}

/* Waits until the constraint is no longer being opened. */
static inline enum cairn_grammar_state wait_state(struct bench *b, uint64_t id)
{
	int64_t end = cairn_clock_ns() + WAIT_S * 1000000000ll;

	while (cairn_grammar_state(b->g, id) == CAIRN_GRAMMAR_OPENING && cairn_clock_ns() < end) {
		struct pollfd p = { cairn_grammar_fd(b->g), POLLIN, 0 };

		poll(&p, 1, 100);
		cairn_grammar_poll(b->g);
	}
	return cairn_grammar_state(b->g, id);
}

/* Opens a constraint for num_seqs answers; returns its number, or 0 if it is not open in the end. */
static inline uint64_t open_constraint(struct cairn_test *t, struct bench *b, enum cairn_constraint_kind kind,
				       const char *text, const char *after, int32_t num_seqs)
{
	struct cairn_constraint c = { kind, text, strlen(text), after, after ? strlen(after) : 0 };
	uint64_t id;

	if (!EXPECT(t, !cairn_grammar_open(b->g, &c, num_seqs, &id)))
		return 0;
	if (wait_state(b, id) == CAIRN_GRAMMAR_OPEN)
		return id;
	cairn_grammar_close(b->g, id);
	return 0;
}

/* One answer that is drawn token by token. */
struct walk {
	uint64_t id;
	int32_t seq;
	int64_t draw;
	int32_t pending[64], num_pending;
	char text[4096];
	size_t num_bytes;
};

/* Returns the mask of the next draw, or NULL. */
static inline const uint32_t *next_mask(struct bench *b, struct walk *w)
{
	struct cairn_mask_item item = {
		.constraint = w->id, .seq = w->seq, .draw = w->draw, .tokens = w->pending,
		.num_tokens = w->num_pending, .wants_masks = 1,
	};

	if (b->masks->step(b->masks->ctx, &item, 1) || item.num_valid != 0)
		return NULL;
	w->num_pending = 0;
	return b->masks->mask(b->masks->ctx, item.first_mask, w->id, w->seq, w->draw);
}

static inline int is_allowed(const uint32_t *mask, int32_t id)
{
	return mask[id / 32] >> id % 32 & 1;
}

static inline void take(struct bench *b, struct walk *w, int32_t id)
{
	const char *bytes;
	size_t n;

	w->pending[w->num_pending++] = id;
	w->draw++;
	if (!cairn_token_stream_bytes(b->stream, id, &bytes, &n) && w->num_bytes + n < sizeof(w->text)) {
		memcpy(w->text + w->num_bytes, bytes, n);
		w->num_bytes += n;
		w->text[w->num_bytes] = 0;
	}
}

/* Draws an allowed token by chance, end tokens only if `ends`. Returns -1 if there is none. */
static inline int32_t draw_any(struct cairn_test *t, const uint32_t *mask, int ends)
{
	int32_t ids[VOCAB], num = 0;

	for (int32_t id = 0; id < VOCAB; id++)
		if (is_allowed(mask, id) && (ends || id != EOS))
			ids[num++] = id;
	return num ? ids[cairn_rand(t) % (uint64_t)num] : -1;
}

/* Takes a text token by token, as the tokenizer splits it. Returns whether every token was allowed. */
static inline int take_text(struct bench *b, struct walk *w, const char *text)
{
	const uint32_t *mask;
	int32_t *ids;
	size_t num, i;

	if (cairn_tokenizer_encode(b->tok, text, strlen(text), 0, &ids, &num))
		return 0;
	for (i = 0; i < num; i++) {
		mask = next_mask(b, w);
		if (!mask || !is_allowed(mask, ids[i]))
			break;
		take(b, w, ids[i]);
	}
	free(ids);
	return i == num;
}

/* Returns whether the answer may end now. */
static inline int may_end(struct bench *b, struct walk *w)
{
	const uint32_t *mask = next_mask(b, w);

	return mask && is_allowed(mask, EOS);
}

#endif
