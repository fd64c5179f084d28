/* SPDX-License-Identifier: Apache-2.0 */
/*
 * costs - bytes, memory and times of one model on workers of one kind of GPU
 *
 * Times come from each operation's bytes and flops (op_cost.h) and the GPU's rates or measured points
 * (hardware.h). Kernels follow each other with gaps. A slice whose attention is elsewhere also sends,
 * receives, and merges the result with attention to the rows' own keys, unless measured points replace its
 * rates. Everything is bf16. A group of `tp` GPUs runs ideal tensor parallelism: bytes and flops are divided
 * evenly, fixed costs stay, and nothing is exchanged. So the simulated whole engines and model workers are
 * both a little too fast. A time per layer is the mean over all layers.
 *
 * b attention workers divide the KV heads; each takes the time of the largest share, ceil(heads / b) / heads.
 * If b exceeds the number of heads, pages are also striped over floor(b / heads) workers.
 *
 * Sliding windows and latent attention, for which the cost of a key differs, are refused (-EOPNOTSUPP).
 */
#ifndef CAIRN_DISAGG_COSTS_H
#define CAIRN_DISAGG_COSTS_H

#include "serving/disagg/hardware.h"
#include "serving/disagg/lanes.h"
#include "serving/graph/op_graph.h"
#include "serving/model/checkpoint/config.h"

struct cairn_disagg_model {
	struct cairn_model_config config;
	struct cairn_op_graph *graph;
	int32_t dims[32];			/* enum cairn_dim */
	int64_t weights;			/* bytes */
	int64_t token_bytes;			/* KV of one token, all layers */
	int64_t query, kv, output;		/* bytes of a row that cross in a layer; output with LSE */
	double attn_row, attn_key;		/* bytes that attention moves, for each row and each key */
};

#define CAIRN_DISAGG_MOST_S	10	/* of one slice, attention of one layer, or one message */

int cairn_disagg_model_open(struct cairn_disagg_model *m, const struct cairn_model_config *config);
void cairn_disagg_model_close(struct cairn_disagg_model *m);	/* zeroed is legal */

/* Returns the share of each request's KV that the busiest of b workers has. */
double cairn_disagg_share(const struct cairn_disagg_model *m, int32_t b);
/* Returns how many tokens fit into the memory of b workers, `used` bytes of each being taken by weights. */
int64_t cairn_disagg_room(const struct cairn_disagg_model *m, const struct cairn_disagg_gpu *gpu, int32_t b,
			  double memory_share, int64_t used);
/* Returns the bytes of weights on each of tp GPUs. */
int64_t cairn_disagg_weights(const struct cairn_disagg_model *m, int32_t tp);

/* Microseconds: a slice of a layer; what a pass adds at its end and beginning; attention of a layer. */
double cairn_disagg_slice_us(const struct cairn_disagg_model *m, const struct cairn_disagg_gpu *gpu,
			    int32_t tp, int32_t rows);
double cairn_disagg_head_us(const struct cairn_disagg_model *m, const struct cairn_disagg_gpu *gpu,
			    int32_t tp, int32_t rows);
double cairn_disagg_attn_us(const struct cairn_disagg_model *m, const struct cairn_disagg_gpu *gpu,
			    double share, int32_t rows, int64_t keys);

/*
 * The system whose times are wanted: `replicas` groups of tp model workers, b attention workers and a link;
 * with b 0 a whole engine, whose attention runs on the model's GPUs and whose link is not used.
 */
struct cairn_disagg_system {
	const struct cairn_disagg_model *model;
	const struct cairn_disagg_gpu *model_gpu, *attn_gpu;
	struct cairn_disagg_rate link;
	int32_t replicas, tp, b;
};
/* Sets all times of a lane with this many requests and keys. -ERANGE: one is above CAIRN_DISAGG_MOST_S. */
int cairn_disagg_times(const struct cairn_disagg_system *s, int32_t rows, int64_t keys,
		       struct cairn_lane_times *times);

#endif
