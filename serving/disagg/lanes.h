/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lanes - discrete-event simulation of rotational staggered pipelining
 *
 * A lane is a batch of requests in decoding. In each layer it runs a slice of the model on a replica of the
 * model workers, sends Q to the attention workers, waits there for its attention, and gets O back:
 *
 *   replica ---Q, then K and V---> attention ---O, LSE---> the next replica
 *
 * Slice k of lane j runs on replica (j + k) mod R. All lanes share the attention workers, which work together
 * on one lane at a time, and the link, which is full duplex. Each of these serves lanes in the order of
 * arrival; if two arrive at once, the lane with the lower number goes first. K and V keep the link busy
 * behind Q, but the lane does not wait for them.
 *
 * Times are whole picoseconds, so that the results are exact. If all n lanes have equal times and no head,
 * and R is 1 or n - 1, a layer takes (cairn_lanes_cycle)
 *
 *   max(n slice / R, n attn, n link_to, n link_back, slice + query + attn + output)
 *
 * in the steady state, which is section 6's max(n t_m / R, n t_a, t_m + t_a + 2 t_n) as long as the link is
 * not the bottleneck.
 *
 * Source: Lamina (Chen et al. 2024), section 4.3.
 */
#ifndef CAIRN_DISAGG_LANES_H
#define CAIRN_DISAGG_LANES_H

#include <stdbool.h>
#include <stdint.h>

#define CAIRN_MOST_LANES	8
#define CAIRN_PS_PER_US		1000000

struct cairn_lane_times {
	int64_t slice;		/* one slice on a replica */
	int64_t head;		/* the end of a pass, on the replica of the next slice; 0: none */
	int64_t attn;
	int64_t query, output;	/* from the first byte sent until the last one has arrived: Q; O and LSE */
	int64_t link_to, link_back;	/* how long the lane's data keep a direction of the link busy */
};

/* A server that serves one lane at a time. */
struct cairn_lane_server {
	int64_t free;		/* end of the latest service */
	int64_t busy, idle;	/* idle: between two services, from the first one on */
	bool used;
};

enum cairn_lane_stage {
	CAIRN_LANE_SLICE, CAIRN_LANE_QUERY, CAIRN_LANE_ATTN, CAIRN_LANE_OUTPUT, CAIRN_LANE_HEAD,
	CAIRN_LANE_STOPPED,	/* between two passes */
};

struct cairn_lane {
	enum cairn_lane_stage stage;
	struct cairn_lane_times times;
	int64_t arrival;	/* at the server of the stage; of a stopped lane: end of its last pass */
	int64_t slices;		/* that it has run since it was created */
	int32_t layer;		/* of the pass */
	int64_t waited;		/* for servers that were busy with other lanes */
};

struct cairn_lanes {
	int32_t num_lanes, replicas, layers;
	struct cairn_lane lanes[CAIRN_MOST_LANES];
	struct cairn_lane_server replica[CAIRN_MOST_LANES], attn, to, back;
};

/* All lanes are stopped at time 0. 1 <= replicas <= num_lanes <= CAIRN_MOST_LANES; layers >= 1. */
void cairn_lanes_init(struct cairn_lanes *l, int32_t num_lanes, int32_t replicas, int32_t layers);
/* Starts a pass of a stopped lane, not before the end of its last one. */
void cairn_lanes_start(struct cairn_lanes *l, int32_t lane, int64_t at, const struct cairn_lane_times *times);
/* Runs until a lane ends its pass. Returns the lane, whose arrival is the time; -1 if all are stopped. */
int32_t cairn_lanes_run(struct cairn_lanes *l);

/* The closed form: picoseconds of a layer if all lanes have these times. */
double cairn_lanes_cycle(int32_t num_lanes, int32_t replicas, const struct cairn_lane_times *times);

#endif
