// SPDX-License-Identifier: Apache-2.0
/*
 * bench_energy - repeats a row's calls until their power is known
 *
 * Launches are enqueued in batches of about 10 ms. While the device runs one batch the next one is already
 * enqueued, so that the device is never idle. The meter's thread watches the energy counter meanwhile. Two
 * events give the time of a launch: the end of the first batch that ends after the window has begun, and that
 * of the first that ends once the window is long enough.
 */
#include "conformance/bench/bench_energy.h"

#include <math.h>

#include "primitives/base/error.h"

#define BATCH_NS	1e7

struct state {
	const struct cairn_repeat *r;
	int launches;				/* of a batch */
	/* ends of: the batch before the timed ones, the batch before the latest, the latest */
	void *events[3];
	int num_batches, first;		/* number enqueued; batches up to events[0], -1: not timed yet */
};

static int enqueue(struct state *s)
{
	void *last = s->events[1];

	for (int i = 0; i < s->launches; i++)
		CAIRN_TRY(s->r->launch(s->r->arg));
	s->events[1] = s->events[2];
	s->events[2] = last;
	s->num_batches++;
	return s->r->impl->event_record(s->events[2], s->r->stream);
}

/* All batches but the latest have ended. Returns 1 if the time of a launch is known, or -errno. */
static int advance(struct state *s, enum cairn_meter_state meter, double *ns)
{
	const struct cairn_impl *impl = s->r->impl;
	void *kept = s->events[0];
	float ms;

	if (s->first < 0 && meter >= CAIRN_METER_RUNNING) {
		s->events[0] = s->events[1];
		s->events[1] = kept;
		s->first = s->num_batches - 1;
		return 0;
	}
	if (s->first < 0 || meter < CAIRN_METER_ENOUGH)
		return 0;
	CAIRN_TRY(impl->event_elapsed(&ms, s->events[0], s->events[1]));
	*ns = (double)ms * 1e6 / ((double)(s->num_batches - 1 - s->first) * s->launches);
	return 1;
}

static int run(struct state *s, struct cairn_meter *m, double *ns)
{
	int ret = 0;

	while (!ret) {
		enum cairn_meter_state meter;

		CAIRN_TRY(enqueue(s));
		CAIRN_TRY(s->r->impl->event_sync(s->events[1]));
		meter = cairn_meter_state(m);
		if (meter == CAIRN_METER_FAILED)
			return 0;
		ret = advance(s, meter, ns);
	}
	return ret < 0 ? ret : 0;
}

static int metered(struct state *s, struct cairn_nvml *card, struct cairn_energy *e, double *ns)
{
	struct cairn_meter *m;
	int ret;

	CAIRN_TRY(enqueue(s));		/* the meter starts under load */
	CAIRN_TRY(cairn_meter_start(&m, card, CAIRN_ENERGY_NS));
	ret = run(s, m, ns);
	cairn_meter_stop(m, e);
	CAIRN_TRY(ret);
	return s->r->impl->stream_sync(s->r->stream);
}

int cairn_repeat_energy(const struct cairn_repeat *r, struct cairn_nvml *card, struct cairn_energy *e,
			double *ns)
{
	struct state s = { .r = r, .launches = (int)fmin(fmax(ceil(BATCH_NS / r->launch_ns), 1), 1000),
			   .first = -1 };
	int num = 0, ret = 0;

	*ns = 0;
	for (; num < 3 && !ret; num += !ret)
		ret = r->impl->event_create(&s.events[num]);
	if (!ret)
		ret = metered(&s, card, e, ns);
	while (num > 0)
		r->impl->event_destroy(s.events[--num]);
	return ret;
}
