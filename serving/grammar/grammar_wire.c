// SPDX-License-Identifier: Apache-2.0
/* grammar_wire - queues, sends, receives and checks the messages of the grammar process */
#include "serving/grammar/grammar_wire.h"

#include <string.h>

#include "primitives/base/error.h"

#define FRAME	sizeof(struct grammar_frame)

void grammar_lay_out(struct grammar_memory *m, void *base, int32_t max_masks, int32_t vocab_size)
{
	size_t items = (size_t)max_masks * sizeof(*m->items), heads = (size_t)max_masks * sizeof(*m->heads);
	char *at = base;

	*m = (struct grammar_memory){ .max_masks = max_masks, .vocab_size = vocab_size,
				      .words = (vocab_size + 31) / 32 };
	m->bytes = items + heads + (size_t)max_masks * (size_t)m->words * sizeof(*m->masks);
	if (!base)
		return;
	m->items = (struct grammar_item *)at;
	m->heads = (struct grammar_head *)(at + items);
	m->masks = (uint32_t *)(at + items + heads);
}

void grammar_put(struct cairn_out_queue *out, const struct grammar_frame *frame, const char *text, size_t num,
		 const char *more, size_t num_more)
{
	struct grammar_frame f = *frame;
	char *at = cairn_out_append(out, FRAME + num + num_more);

	if (!at)
		return;
	f.magic = GRAMMAR_MAGIC;
	f.bytes = (int32_t)(num + num_more);
	memcpy(at, &f, FRAME);
	if (num)
		memcpy(at + FRAME, text, num);
	if (num_more)
		memcpy(at + FRAME + num, more, num_more);
}

int grammar_flush(struct cairn_out_queue *out, int fd)
{
	return cairn_out_flush(out, fd, "grammar");
}

int grammar_fill(struct grammar_in *in, int fd)
{
	return cairn_in_fill(in->data, sizeof(in->data), &in->begin, &in->end, fd, "grammar");
}

static int is_bad(const struct grammar_frame *f)
{
	if (f->magic != GRAMMAR_MAGIC || !f->kind || f->kind >= GRAMMAR_NUM_MESSAGES || f->bytes < 0)
		return 1;
	switch (f->kind) {
	case GRAMMAR_OPEN:
		return f->bytes > GRAMMAR_MAX_BYTES || f->num_after < 0 || f->num_after > f->bytes ||
		       f->num_after > CAIRN_GRAMMAR_MAX_AFTER ||
		       f->bytes - f->num_after > CAIRN_GRAMMAR_MAX_TEXT || f->num_seqs < 1 ||
		       f->num_seqs > GRAMMAR_MAX_SEQS || f->constraint <= CAIRN_CONSTRAINT_NONE ||
		       f->constraint >= CAIRN_NUM_CONSTRAINT_KINDS;
	case GRAMMAR_REFUSED:
	case GRAMMAR_UNUSABLE:
		return f->bytes > GRAMMAR_MAX_ERROR;
	default:
		return f->bytes > 0;
	}
}

int grammar_next(struct grammar_in *in, struct grammar_frame *frame, const char **text)
{
	size_t held = in->end - in->begin;

	if (held < FRAME)
		return 0;
	memcpy(frame, in->data + in->begin, FRAME);
	if (is_bad(frame))
		return cairn_error(EINVAL, "grammar: a malformed message");
	if (held < FRAME + (size_t)frame->bytes)
		return 0;
	*text = in->data + in->begin + FRAME;
	in->begin += FRAME + (size_t)frame->bytes;
	return 1;
}
