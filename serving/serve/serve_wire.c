// SPDX-License-Identifier: Apache-2.0
/* serve_wire - queues, sends, receives and checks the frames between front and worker */
#include "serving/serve/serve_wire.h"

#include <string.h>

#define FRAME	sizeof(struct cairn_wire_frame)

void cairn_wire_put(struct cairn_out_queue *out, const struct cairn_wire_frame *frame)
{
	struct cairn_wire_frame f = *frame;
	char *at = cairn_out_append(out, FRAME);

	f.magic = CAIRN_WIRE_MAGIC;
	if (at)
		memcpy(at, &f, FRAME);
}

void cairn_wire_say(struct cairn_out_queue *out, enum cairn_wire_kind kind, uint64_t request)
{
	cairn_wire_put(out, &(struct cairn_wire_frame){ .kind = (uint16_t)kind, .request = request });
}

void cairn_wire_put_text(struct cairn_out_queue *out, struct cairn_wire_frame *head, const char *text)
{
	size_t n = strlen(text);

	n = n > CAIRN_WIRE_MAX_TEXT ? CAIRN_WIRE_MAX_TEXT : n;
	head->count = (int32_t)n;
	cairn_wire_put(out, head);
	cairn_wire_put_bytes(out, head->request, text, n);
}

void cairn_wire_put_bytes(struct cairn_out_queue *out, uint64_t request, const char *text, size_t n)
{
	for (size_t at = 0; at < n; at += CAIRN_WIRE_TEXT_PER_FRAME) {
		struct cairn_wire_frame f = { .kind = CAIRN_WIRE_TEXT, .request = request };
		size_t k = n - at < CAIRN_WIRE_TEXT_PER_FRAME ? n - at : CAIRN_WIRE_TEXT_PER_FRAME;

		f.count = (int32_t)k;
		memcpy(f.text, text + at, k);
		cairn_wire_put(out, &f);
	}
}

void cairn_wire_put_ids(struct cairn_out_queue *out, enum cairn_wire_kind kind, uint64_t request,
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

void cairn_wire_put_pairs(struct cairn_out_queue *out, enum cairn_wire_kind kind, uint64_t request,
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

int cairn_wire_flush(struct cairn_out_queue *out, int fd)
{
	return cairn_out_flush(out, fd, "serve");
}

int cairn_wire_fill(struct cairn_wire_in *in, int fd)
{
	return cairn_in_fill(in->bytes, sizeof(in->bytes), &in->begin, &in->end, fd, "serve");
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
