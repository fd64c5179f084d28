/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport_pace - delays signals as if they came over a slower link than the real one
 *
 * Back ends that have a pace read it from the environment: CAIRN_TCP_PACE, CAIRN_NVLINK_PACE =
 * LATENCY_US:MBYTES_PER_S. Payloads travel at full speed, but a signal becomes visible only when it is due.
 * Each direction of a channel is a link of its own, which carries puts one after the other, in the order in
 * which their payloads have arrived. A put occupies the link for bytes / speed, and its signal is due one
 * latency after that. The sender does not wait, because a card would send in the background.
 *
 * For puts and waits of kernels (nvlink), the sender keeps the link's state in its own memory. Before it sets
 * a signal, it writes the signal's due time to the peer, which has room for the last TRANSPORT_DUES due times
 * of each slot. A wait that finds its value then waits for the earliest due time of the signals that satisfy
 * it. If more than TRANSPORT_DUES signals of a slot are in flight, this may be the due time of a later one.
 * Times are the host's (transport_clock.h).
 */
#ifndef CAIRN_TRANSPORT_PACE_H
#define CAIRN_TRANSPORT_PACE_H

#include "rdma/transport/transport.h"

#ifdef __CUDACC__
#define PACE_FN static __host__ __device__ __forceinline__
#else
#define PACE_FN static inline
#endif

struct transport_pace {
	uint64_t latency_ns;
	double ns_per_byte;		/* 0: there is no pace */
};

#define TRANSPORT_DUES	8

/* An end of a paced link, for kernels of its GPU. */
struct transport_link {
	struct transport_pace pace;
	const uint64_t *clock;		/* the host's time minus the GPU's timer; NULL: no pace */
	uint64_t clock_error_ns;
	uint64_t *carried;		/* time at which the link has carried all puts of this end */
	uint64_t *puts;			/* [num_slots], paced puts of this end to a slot */
	/* [num_slots][TRANSPORT_DUES], in this end's memory and in the peer's: a signal's value and, in place
	 * of its word, the time at which the signal is due; 0: no entry */
	struct cairn_signal *mine, *theirs;
};

PACE_FN int transport_is_paced(const struct transport_pace *p)
{
	return p->ns_per_byte > 0;
}

/*
 * Returns the time at which the link has carried a put whose payload has arrived at time `now`. before: the
 * result for the previous put.
 */
PACE_FN uint64_t transport_pace_carried(const struct transport_pace *p, uint64_t before, uint64_t now,
					uint64_t bytes)
{
	return (before > now ? before : now) + (uint64_t)((double)bytes * p->ns_per_byte);
}

/*
 * Returns the time at which a wait for `value` may end, given that the slot holds this value or a later one.
 * 0: at once, because no signal that satisfies the wait came over the paced link.
 */
PACE_FN uint64_t transport_pace_due(const struct cairn_signal dues[TRANSPORT_DUES], uint64_t value)
{
	uint64_t due = 0;

	for (int i = 0; i < TRANSPORT_DUES; i++)
		if (dues[i].word && (int64_t)(dues[i].value - value) >= 0 && (!due || dues[i].word < due))
			due = dues[i].word;
	return due;
}

/*
 * Returns the value of a slot that a waiter may see at time `now`. value: the value stored in the slot;
 * shown: the result of the previous call for this slot. A signal that did not come over the paced link is
 * visible at once.
 */
PACE_FN uint64_t transport_pace_shown(const struct cairn_signal dues[TRANSPORT_DUES], uint64_t value,
				      uint64_t shown, uint64_t now)
{
	int is_paced = 0;

	for (int i = 0; i < TRANSPORT_DUES; i++) {
		if (!dues[i].word || (int64_t)(value - dues[i].value) < 0)
			continue;
		is_paced |= dues[i].value == value;
		if (dues[i].word <= now && (int64_t)(dues[i].value - shown) > 0)
			shown = dues[i].value;
	}
	return is_paced ? shown : value;
}

#ifdef __cplusplus
extern "C" {
#endif

/* Reads the pace that a variable of the environment gives; without the variable there is none. */
int transport_pace_read(const char *variable, struct transport_pace *p);

#ifdef __cplusplus
}
#endif

#endif
