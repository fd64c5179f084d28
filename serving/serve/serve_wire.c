// SPDX-License-Identifier: Apache-2.0
/* serve_wire - queues, sends, receives and checks the frames between front and worker */
#include "serving/serve/serve_wire.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "primitives/base/error.h"

#define FRAME	sizeof(struct cairn_wire_frame)

void cairn_wire_put(struct cairn_wire_out *out, const struct cairn_wire_frame *frame)
{
	struct cairn_wire_frame f = *frame;

	if (out->failed)
		return;
	if (out->room - out->end < FRAME) {
		size_t held = out->end - out->begin, room = out->room ? out->room : 4096;
		char *data = out->data;

		if (!data || held + FRAME > room / 2) {
			room *= data ? 2 : 1;
			data = malloc(room);
		}
		if (!data) {
			out->failed = 1;
			return;
		}
		if (held)
			memmove(data, out->data + out->begin, held);
		if (data != out->data) {
			free(out->data);
			out->data = data;
			out->room = room;
		}
		out->begin = 0;
		out->end = held;
	}
	f.magic = CAIRN_WIRE_MAGIC;
	memcpy(out->data + out->end, &f, FRAME);
	out->end += FRAME;
}

void cairn_wire_say(struct cairn_wire_out *out, enum cairn_wire_kind kind, uint64_t request)
{
	cairn_wire_put(out, &(struct cairn_wire_frame){ .kind = (uint16_t)kind, .request = request });
}

void cairn_wire_put_text(struct cairn_wire_out *out, struct cairn_wire_frame *head, const char *text)
{
	size_t n = strlen(text);

	n = n > CAIRN_WIRE_MAX_TEXT ? CAIRN_WIRE_MAX_TEXT : n;
	head->count = (int32_t)n;
	cairn_wire_put(out, head);
	cairn_wire_put_bytes(out, head->request, text, n);
}

void cairn_wire_put_bytes(struct cairn_wire_out *out, uint64_t request, const char *text, size_t n)
{
	for (size_t at = 0; at < n; at += CAIRN_WIRE_TEXT_PER_FRAME) {
		struct cairn_wire_frame f = { .kind = CAIRN_WIRE_TEXT, .request = request };
		size_t k = n - at < CAIRN_WIRE_TEXT_PER_FRAME ? n - at : CAIRN_WIRE_TEXT_PER_FRAME;

		f.count = (int32_t)k;
		memcpy(f.text, text + at, k);
		cairn_wire_put(out, &f);
	}
}

void cairn_wire_put_ids(struct cairn_wire_out *out, enum cairn_wire_kind kind, uint64_t request,
			const int32_t *ids, int64_t num)
{
	for (int64_t at = 0; at < num; at += CAIRN_WIRE_IDS_PER_FRAME) {
		struct cairn_wire_frame f = { .kind = (uint16_t)kind, .request = request };
		int64_t k = num - at < CAIRN_WIRE_IDS_PER_FRAME ? num - at : CAIRN_WIRE_IDS_PER_FRAME;

		f.count = (int32_t)k;
		memcpy(f.ids, ids + at, (size_t)k * sizeof(*ids));
		cairn_wire_put(out, &f);
	}
}

void cairn_wire_put_pairs(struct cairn_wire_out *out, enum cairn_wire_kind kind, uint64_t request,
			  const int32_t *ids, const float *values, int64_t num)
{
	for (int64_t at = 0; at < num; at += CAIRN_WIRE_PAIRS_PER_FRAME) {
		struct cairn_wire_frame f = { .kind = (uint16_t)kind, .request = request };
		int64_t k = num - at < CAIRN_WIRE_PAIRS_PER_FRAME ? num - at : CAIRN_WIRE_PAIRS_PER_FRAME;

		f.count = (int32_t)k;
		for (int64_t i = 0; i < k; i++)
			f.pairs[i] = (struct cairn_wire_pair){ ids[at + i], values[at + i] };
		cairn_wire_put(out, &f);
	}
}

int cairn_wire_flush(struct cairn_wire_out *out, int fd)
{
	if (out->failed)
		return cairn_error(ENOMEM, "serve: no memory for messages");
	while (out->begin < out->end) {
		ssize_t n = send(fd, out->data + out->begin, out->end - out->begin,
				 MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return 1;
		if (n < 0)
			return cairn_error(EPIPE, "serve: the other process is gone: %s", strerror(errno));
		out->begin += (size_t)n;
	}
	out->begin = out->end = 0;
	if (out->room > 1 << 20) {	/* the buffer has grown while the peer was slow */
		free(out->data);
		*out = (struct cairn_wire_out){ 0 };
	}
	return 0;
}

int cairn_wire_fill(struct cairn_wire_in *in, int fd)
{
	size_t held = in->end - in->begin;
	ssize_t n;

	if (in->begin)
		memmove(in->bytes, in->bytes + in->begin, held);
	in->begin = 0;
	in->end = held;
	if (held == sizeof(in->bytes))
		return 1;
	do {
		n = recv(fd, in->bytes + held, sizeof(in->bytes) - held, MSG_DONTWAIT);
	} while (n < 0 && errno == EINTR);
	if (n < 0 && errno == EAGAIN)
		return 0;
	if (n <= 0)
		return cairn_error(EPIPE, "serve: the other process is gone");
	in->end += (size_t)n;
	return 1;
}

static int is_bad(const struct cairn_wire_frame *f)
{
	if (f->magic != CAIRN_WIRE_MAGIC || !f->kind || f->kind >= CAIRN_WIRE_NUM_KINDS || f->count < 0)
		return 1;
	switch (f->kind) {
	case CAIRN_WIRE_IDS:
	case CAIRN_WIRE_STOP_IDS:
		return !f->count || f->count > CAIRN_WIRE_IDS_PER_FRAME;
	case CAIRN_WIRE_BIAS:
	case CAIRN_WIRE_TOP:
		return !f->count || f->count > CAIRN_WIRE_PAIRS_PER_FRAME;
	case CAIRN_WIRE_TEXT:
		return !f->count || f->count > CAIRN_WIRE_TEXT_PER_FRAME;
	case CAIRN_WIRE_REFUSED:
	case CAIRN_WIRE_FAILED:
		return f->count > CAIRN_WIRE_MAX_TEXT;
	default:
		return 0;
	}
}

const struct cairn_wire_frame *cairn_wire_next(struct cairn_wire_in *in, int *bad)
{
	const struct cairn_wire_frame *f;

	*bad = 0;
	if (in->end - in->begin < FRAME)
		return NULL;
	f = &in->frames[in->begin / FRAME];
	in->begin += FRAME;
	*bad = is_bad(f);
	return f;
}
