// SPDX-License-Identifier: Apache-2.0
/* scheduler_lanes - which lane a request belongs to */
#include <string.h>

#include "serving/scheduler/scheduler_impl.h"

void sched_weigh_lanes(struct cairn_scheduler *s)
{
	memset(s->lane_tokens, 0, sizeof(s->lane_tokens));
	for (int32_t i = 0; i < s->num_running; i++)
		s->lane_tokens[s->running[i]->req->lane] += s->running[i]->num_known;
	for (const struct sched_seq *q = s->queue; q && s->opt.lanes > 1; q = q->next)
		if (q->req->lane >= 0)
			s->lane_tokens[q->req->lane] += q->num_known;
}

/* Returns the lane with the fewest tokens. */
static int32_t lightest(const struct cairn_scheduler *s)
{
	int32_t best = 0;

	for (int32_t i = 1; i < s->used_lanes; i++)
		if (s->lane_tokens[i] < s->lane_tokens[best])
			best = i;
	return best;
}

void sched_leave_lane(struct cairn_scheduler *s)
{
	if (s->opt.lanes == 1)
		return;
	sched_weigh_lanes(s);
	for (int32_t i = 0; i < s->num_running; i++) {
		const struct sched_seq *q = s->running[i];
		const int32_t to = lightest(s);

		if (!sched_is_of_lane(s, q) || (!q->req->movable && !FAULT(LANE_LEFT_UNASKED)) ||
		    q->req->num_live > 1 || q->req->unforked)	/* its answers would all have to go */
			continue;
		if (s->lane < s->used_lanes &&
		    s->lane_tokens[to] + q->num_known >= s->lane_tokens[s->lane] - q->num_known)
			continue;
		q->req->lane = to;
		sched_weigh_lanes(s);
	}
}

int sched_enter_lane(struct cairn_scheduler *s, struct sched_seq *q)
{
	if (q->req->lane < 0) {
		q->req->lane = lightest(s);
		s->lane_tokens[q->req->lane] += q->num_known;
	}
	return sched_is_of_lane(s, q);
}

uint64_t sched_blocks(const struct cairn_scheduler *s, int32_t lane)
{
	const uint64_t first = s->plan_number - (uint64_t)s->unreported + 1;

	if (s->opt.lanes == 1)
		return s->unreported > s->opt.ahead ? first : 0;
	for (uint64_t n = first; n <= s->plan_number && !FAULT(LANE_BUSY); n++)
		if (s->plans[sched_buffer(n)].plan.lane == lane)
			return n;
	return 0;
}

void cairn_scheduler_use_lanes(struct cairn_scheduler *s, int32_t lanes)
{
	s->used_lanes = lanes < 1 ? 1 : lanes > s->opt.lanes ? s->opt.lanes : lanes;
}
