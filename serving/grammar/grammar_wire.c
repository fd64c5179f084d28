// SPDX-License-Identifier: Apache-2.0
/* grammar_wire - queues, sends, receives and checks the messages of the grammar process */
#include "serving/grammar/grammar_wire.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

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

/* Makes room for `more` bytes behind the queued ones. */
static int reserve(struct grammar_out *out, size_t more)
{
	size_t held = out->end - out->begin, room = out->room ? out->room : 4096;
	char *data;

	if (out->room - out->end >= more)
		return 0;
	while (room < 2 * (held + more))
		room *= 2;
	data = malloc(room);
	if (!data)
		return -ENOMEM;
	if (held)
		memcpy(data, out->data + out->begin, held);
	free(out->data);
	*out = (struct grammar_out){ .data = data, .end = held, .room = room };
	return 0;
}

void grammar_put(struct grammar_out *out, const struct grammar_frame *frame, const char *text, size_t num,
		 const char *more, size_t num_more)
{
	struct grammar_frame f = *frame;

	if (out->failed || reserve(out, FRAME + num + num_more)) {
		out->failed = 1;
		return;
	}
	f.magic = GRAMMAR_MAGIC;
	f.bytes = (int32_t)(num + num_more);
	memcpy(out->data + out->end, &f, FRAME);
	if (num)
		memcpy(out->data + out->end + FRAME, text, num);
	if (num_more)
		memcpy(out->data + out->end + FRAME + num, more, num_more);
	out->end += FRAME + num + num_more;
}

int grammar_flush(struct grammar_out *out, int fd)
{
	if (out->failed)
		return cairn_error(ENOMEM, "grammar: no memory for messages");
	while (out->begin < out->end) {
		ssize_t n = send(fd, out->data + out->begin, out->end - out->begin,
				 MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return 1;
		if (n < 0)
			return cairn_error(EPIPE, "grammar: the other process is gone: %s", strerror(errno));
		out->begin += (size_t)n;
	}
	out->begin = out->end = 0;
	if (out->room > 1 << 20) {	/* the buffer has grown while the peer was slow */
		free(out->data);
		*out = (struct grammar_out){ 0 };
	}
	return 0;
}

int grammar_fill(struct grammar_in *in, int fd)
{
	size_t held = in->end - in->begin;
	ssize_t n;

	if (in->begin)
		memmove(in->data, in->data + in->begin, held);
	in->begin = 0;
	in->end = held;
	if (held == sizeof(in->data))
		return 1;
	do {
		n = recv(fd, in->data + held, sizeof(in->data) - held, MSG_DONTWAIT);
	} while (n < 0 && errno == EINTR);
	if (n < 0 && errno == EAGAIN)
		return 0;
	if (n <= 0)
		return cairn_error(EPIPE, "grammar: the other process is gone");
	in->end += (size_t)n;
	return 1;
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
