/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport_bench_pair - two ends in this process, for measurements; every function also checks the data that
 * it times
 */
#ifndef CAIRN_TRANSPORT_BENCH_PAIR_H
#define CAIRN_TRANSPORT_BENCH_PAIR_H

#include "primitives/base/error.h"
#include "rdma/transport_bench/transport_bench.h"

struct bench_spread {
	double min, median, p95;
	int n;
};

struct bench_pair {
	const struct cairn_transport_table *table;
	int gpu[2], num_gpus;
	uint64_t half, next;		/* next: value of the next signal */
	struct cairn_transport *t[2];
	struct cairn_region *region[2];
	struct cairn_remote *remote[2];
	struct cairn_channel *c[2];
	uint8_t *memory[2];
	uint64_t *arrived[2];
	struct bench_result *result[2];
	void *stream[2];
};

/* Must be followed by bench_pair_close(), even after a failure. */
int bench_pair_open(struct bench_pair *p, uint64_t half);
void bench_pair_close(struct bench_pair *p);
int bench_pair_run(struct bench_pair *p, const struct bench_args *what, float *ms);
/* Times are in ns. */
int bench_pair_pingpong(struct bench_pair *p, uint32_t way, uint64_t bytes, uint32_t num_ctas,
			uint64_t rounds,
			struct bench_spread *one_way);
int bench_pair_stream(struct bench_pair *p, uint32_t way, uint64_t bytes, uint32_t num_ctas, uint64_t puts,
		      int num, struct bench_spread *ns);
void bench_spread(double *v, int n, struct bench_spread *s);	/* sorts v */

#endif
