// SPDX-License-Identifier: Apache-2.0
/* lanes - events of the pipeline of model and attention workers (lanes.h) */
#include "serving/disagg/lanes.h"

#include <string.h>

#include "serving/disagg/disagg_fault.h"

void cairn_lanes_init(struct cairn_lanes *l, int32_t num_lanes, int32_t replicas, int32_t layers)
{
	memset(l, 0, sizeof(*l));
	l->num_lanes = num_lanes;
	l->replicas = replicas;
	l->layers = layers;
	for (int32_t i = 0; i < num_lanes; i++)
		l->lanes[i].stage = CAIRN_LANE_STOPPED;
}

void cairn_lanes_start(struct cairn_lanes *l, int32_t lane, int64_t at, const struct cairn_lane_times *times)
{
	struct cairn_lane *p = &l->lanes[lane];

	p->stage = CAIRN_LANE_SLICE;
	p->times = *times;
	p->layer = 0;
	p->arrival = at > p->arrival ? at : p->arrival;
}

/* Lets the lane use the server for `busy` as soon as it is free. Returns the beginning. */
static int64_t serve(struct cairn_lane_server *s, struct cairn_lane *p, int64_t busy)
{
	int64_t start = s->free > p->arrival && !FAULT(NO_QUEUE) ? s->free : p->arrival;

	if (!busy)
		return p->arrival;
	if (s->used)
		s->idle += start - s->free;
	p->waited += start - p->arrival;
	s->used = true;
	s->busy += busy;
	s->free = start + busy;
	return start;
}

static struct cairn_lane_server *replica_of(struct cairn_lanes *l, int32_t lane)
{
	int64_t slice = FAULT(NO_ROTATION) ? 0 : l->lanes[lane].slices;

	return &l->replica[(lane + slice) % l->replicas];
}

static void slice(struct cairn_lanes *l, int32_t lane)
{
	struct cairn_lane *p = &l->lanes[lane];

	p->arrival = serve(replica_of(l, lane), p, p->times.slice) + p->times.slice;
	p->slices++;
	p->stage = CAIRN_LANE_QUERY;
}

static void end_layer(struct cairn_lanes *l, struct cairn_lane *p)
{
	p->stage = ++p->layer < l->layers ? CAIRN_LANE_SLICE : CAIRN_LANE_HEAD;
}

static void advance(struct cairn_lanes *l, int32_t lane)
{
	struct cairn_lane *p = &l->lanes[lane];
	const struct cairn_lane_times *t = &p->times;

	switch (p->stage) {
	case CAIRN_LANE_SLICE:
		slice(l, lane);
		break;
	case CAIRN_LANE_QUERY:
		p->arrival = serve(&l->to, p, FAULT(KV_FREE) ? t->query : t->link_to) + t->query;
		p->stage = CAIRN_LANE_ATTN;
		break;
	case CAIRN_LANE_ATTN:
		p->arrival = serve(&l->attn, p, t->attn) + t->attn;
		p->stage = CAIRN_LANE_OUTPUT;
		break;
	case CAIRN_LANE_OUTPUT:
		p->arrival = serve(FAULT(HALF_DUPLEX) ? &l->to : &l->back, p, t->link_back);
		p->arrival += FAULT(OUTPUT_FREE) ? 0 : t->output;
		end_layer(l, p);
		break;
	case CAIRN_LANE_HEAD:
		p->arrival = serve(replica_of(l, lane), p, t->head) + t->head;
		p->stage = CAIRN_LANE_STOPPED;
		break;
	default:
		break;
	}
}

int32_t cairn_lanes_run(struct cairn_lanes *l)
{
	for (;;) {
		int32_t next = -1;

		for (int32_t i = 0; i < l->num_lanes; i++)
			if (l->lanes[i].stage != CAIRN_LANE_STOPPED &&
			    (next < 0 || l->lanes[i].arrival < l->lanes[next].arrival))
				next = i;
		if (next < 0)
			return -1;
		advance(l, next);
		if (l->lanes[next].stage == CAIRN_LANE_STOPPED)
			return next;
	}
}

double cairn_lanes_cycle(int32_t num_lanes, int32_t replicas, const struct cairn_lane_times *t)
{
	double n = num_lanes, path = (double)(t->slice + t->query + t->attn + t->output);
	double most[] = { n * (double)t->slice / replicas, n * (double)t->attn, n * (double)t->link_to,
			  n * (double)t->link_back };

	for (int i = 0; i < 4; i++)
		path = most[i] > path ? most[i] : path;
	return path;
}
