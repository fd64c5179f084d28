// SPDX-License-Identifier: Apache-2.0
/* plan - writes and checks passes as bytes */
#include "serving/ranks/plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"

#define MAGIC	0x6e616c70u	/* "plan" */
#define VERSION	1u

struct header {
	uint32_t magic, version;
	uint64_t step, digest;		/* digest: of all bytes after the header */
	uint32_t len, num_parts;	/* len: of the whole plan */
};

/* A part; its ids, [num_rows] unless it follows a draw, and its pages, [num_pages], come after it. */
struct record {
	uint64_t seed, offset;
	int32_t follows, num_rows, position, num_pages, decodes, draws, top_k;
	float temperature, top_p, min_p;
};

static uint64_t digest_of(const unsigned char *bytes, size_t len)
{
	uint64_t d = 0xcbf29ce484222325u;

	for (size_t i = 0; i < len; i++)
		d = (d ^ bytes[i]) * 0x100000001b3u;
	return d;
}

/* ---- writing ---- */

static void append(struct cairn_plan_out *p, const void *bytes, size_t len)
{
	if (p->ret)
		return;
	if (p->len + len > p->room) {
		size_t room = 2 * (p->len + len);
		unsigned char *grown = room <= 2 * CAIRN_PLAN_MAX ? realloc(p->bytes, room) : NULL;

		if (!grown) {
			p->ret = -ENOMEM;
			snprintf(p->why, sizeof(p->why), "plan: no memory for %zu bytes", room);
			return;
		}
		p->bytes = grown;
		p->room = room;
	}
	if (len)
		memcpy(p->bytes + p->len, bytes, len);
	p->len += len;
}

void cairn_plan_begin(struct cairn_plan_out *p, uint64_t step)
{
	const struct header h = { .magic = MAGIC, .version = VERSION, .step = step };

	p->len = 0;
	p->ret = 0;
	append(p, &h, sizeof(h));
}

void cairn_plan_add(struct cairn_plan_out *p, const struct cairn_worker_part *part)
{
	struct record r = {
		.seed = part->seed, .offset = part->offset, .follows = part->follows,
		.num_rows = part->num_rows, .position = part->position, .num_pages = part->num_pages,
		.decodes = part->decodes, .draws = part->draw != NULL, .top_p = 1,
	};
	struct header h;

	if (p->ret)
		return;
	if (part->treat || part->num_scored) {
		p->ret = -EOPNOTSUPP;
		snprintf(p->why, sizeof(p->why), "ranks: a pass that %s cannot be shared among ranks",
			 part->treat ? "treats logits (penalties, biases, log-probabilities)" :
			 "scores a prompt");
		return;
	}
	if (part->draw) {
		r.temperature = part->draw->temperature;
		r.top_p = part->draw->top_p;
		r.min_p = part->draw->min_p;
		r.top_k = part->draw->top_k;
	}
	append(p, &r, sizeof(r));
	if (part->follows < 0)
		append(p, part->ids, (size_t)part->num_rows * sizeof(*part->ids));
	append(p, part->pages, (size_t)part->num_pages * sizeof(*part->pages));
	if (p->ret)
		return;
	memcpy(&h, p->bytes, sizeof(h));
	h.num_parts++;
	memcpy(p->bytes, &h, sizeof(h));
}

int cairn_plan_finish(struct cairn_plan_out *p)
{
	struct header h;

	if (p->ret)
		return cairn_error(-p->ret, "%s", p->why);
	if (p->len > CAIRN_PLAN_MAX)
		return cairn_error(EOPNOTSUPP, "plan: %zu bytes, at most %zu", p->len, CAIRN_PLAN_MAX);
	memcpy(&h, p->bytes, sizeof(h));
	h.len = (uint32_t)p->len;
	h.digest = digest_of(p->bytes + sizeof(h), p->len - sizeof(h));
	memcpy(p->bytes, &h, sizeof(h));
	return 0;
}

void cairn_plan_free(struct cairn_plan_out *p)
{
	free(p->bytes);
	memset(p, 0, sizeof(*p));
}

/* ---- reading ---- */

/* A plan that is being read; totals of the parts so far. */
struct reader {
	const unsigned char *bytes;
	size_t at, len;
	const struct cairn_plan_limits *limits;
	int32_t rows, drawn;
};

static int bad(const char *member, long long value)
{
	return cairn_error(EINVAL, "plan: %s: %lld", member, value);
}

/* Takes a list of num numbers, each in 0 .. end - 1. They may be unaligned, so they are copied. */
static int take_list(struct reader *r, int32_t num, int32_t end, const char *member, int32_t *to)
{
	const size_t bytes = (size_t)num * sizeof(*to);

	if (bytes > r->len - r->at)
		return bad(member, num);
	memcpy(to, r->bytes + r->at, bytes);
	r->at += bytes;
	for (int32_t i = 0; i < num; i++)
		if (to[i] < 0 || to[i] >= end)
			return bad(member, to[i]);
	return 0;
}

static int check_draw(const struct record *c)
{
	if (c->draws != 0 && c->draws != 1)
		return bad("draws", c->draws);
	if (!isfinite(c->temperature) || c->temperature < 0)
		return bad("temperature", (long long)c->draws);
	if (!(c->top_p > 0 && c->top_p <= 1) || !(c->min_p >= 0 && c->min_p < 1))
		return bad("top_p or min_p", (long long)c->draws);
	return c->top_k < 0 ? bad("top_k", c->top_k) : 0;
}

static int take_record(struct reader *r, struct record *c)
{
	const struct cairn_plan_limits *l = r->limits;
	int64_t end;

	if (sizeof(*c) > r->len - r->at)
		return bad("length", (long long)r->len);
	memcpy(c, r->bytes + r->at, sizeof(*c));
	r->at += sizeof(*c);
	if (c->num_rows < 1 || c->num_rows > l->max_rows - r->rows)
		return bad("num_rows", c->num_rows);
	end = (int64_t)c->position + c->num_rows;
	if (c->position < 0 || end > l->max_context)
		return bad("position", c->position);
	if (c->num_pages < (end + l->page_size - 1) / l->page_size || c->num_pages > l->num_pages)
		return bad("num_pages", c->num_pages);
	if (c->follows < -1 || c->follows >= l->num_drawn || (c->follows >= 0 && c->num_rows != 1))
		return bad("follows", c->follows);
	if (c->decodes != 0 && c->decodes != 1)
		return bad("decodes", c->decodes);
	CAIRN_TRY(check_draw(c));
	r->rows += c->num_rows;
	r->drawn += c->draws;
	return 0;
}

static int check_header(const unsigned char *bytes, size_t len, const struct cairn_plan_limits *l,
			struct header *h)
{
	if (len < sizeof(*h))
		return bad("length", (long long)len);
	memcpy(h, bytes, sizeof(*h));
	if (h->magic != MAGIC || h->version != VERSION)
		return bad("version", h->version);
	if (h->len != len)
		return bad("length", h->len);
	if (h->digest != digest_of(bytes + sizeof(*h), len - sizeof(*h)))
		return cairn_error(EINVAL, "plan: digest: does not fit the bytes");
	if (h->step != l->step)
		return cairn_error(EINVAL, "plan: step: %llu, want %llu", (unsigned long long)h->step,
				   (unsigned long long)l->step);
	if (h->num_parts < 1 || h->num_parts > (uint32_t)l->max_batch)
		return bad("num_parts", h->num_parts);
	return 0;
}

/* Reads all parts. add NULL: only checks them. lists: room for the ids and pages of a part. */
static int walk(struct reader *r, const struct header *h, int32_t *lists,
		void (*add)(void *ctx, const struct cairn_worker_part *part), void *ctx)
{
	int32_t *ids = lists, *pages = lists + r->limits->max_rows;

	r->at = sizeof(*h);
	r->rows = r->drawn = 0;
	for (uint32_t i = 0; i < h->num_parts; i++) {
		struct cairn_sampling draw = { 0 };
		struct cairn_worker_part part = { 0 };
		struct record c;

		CAIRN_TRY(take_record(r, &c));
		if (c.follows < 0)
			CAIRN_TRY(take_list(r, c.num_rows, r->limits->vocab, "ids", ids));
		CAIRN_TRY(take_list(r, c.num_pages, r->limits->num_pages, "pages", pages));
		if (!add)
			continue;
		draw.temperature = c.temperature;
		draw.top_p = c.top_p;
		draw.min_p = c.min_p;
		draw.top_k = c.top_k;
		part.ids = ids;
		part.follows = c.follows;
		part.num_rows = c.num_rows;
		part.position = c.position;
		part.pages = pages;
		part.num_pages = c.num_pages;
		part.decodes = c.decodes;
		part.draw = c.draws ? &draw : NULL;
		part.seed = c.seed;
		part.offset = c.offset;
		add(ctx, &part);
	}
	return r->at == r->len ? 0 : bad("length", (long long)r->len);
}

int cairn_plan_read(const unsigned char *bytes, size_t len, const struct cairn_plan_limits *limits,
		    void (*add)(void *ctx, const struct cairn_worker_part *part), void *ctx,
		    int32_t *num_drawn)
{
	struct reader r = { .bytes = bytes, .len = len, .limits = limits };
	struct header h;
	int32_t *lists;
	int ret;

	CAIRN_TRY(check_header(bytes, len, limits, &h));
	lists = malloc(((size_t)limits->max_rows + (size_t)limits->num_pages) * sizeof(*lists));
	if (!lists)
		return cairn_error(ENOMEM, "plan: no memory");
	ret = walk(&r, &h, lists, NULL, NULL);
	if (!ret)
		ret = walk(&r, &h, lists, add, ctx);
	*num_drawn = r.drawn;
	free(lists);
	return ret;
}
