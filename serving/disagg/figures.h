/* SPDX-License-Identifier: Apache-2.0 */
/*
 * figures - Lamina's tables and figures as far as a simulation can give them, as rows of op disagg_sim
 *
 * Every row has "simulated": true and impl simulated. reports/README.md lists the members.
 */
#ifndef CAIRN_DISAGG_FIGURES_H
#define CAIRN_DISAGG_FIGURES_H

#include <stdio.h>

#include "serving/disagg/advise.h"

/*
 * Returns the bandwidth in GB/s at which the network takes the share alpha of a pass's computation, figure
 * 4: (2 + 2 / G) e d B L / (alpha (M + A)). latency_us: of each of the 2 L crossings, which counts as part of
 * that share; 0: as in the source. INFINITY: the latency alone takes longer.
 */
double cairn_disagg_bandwidth(const struct cairn_disagg_model *m, const struct cairn_disagg_gpu *model_gpu,
			      const struct cairn_disagg_gpu *attn_gpu, int32_t rows, int32_t keys,
			      double alpha, double latency_us);

/* Runs n lanes on n - 1 replicas with t_a = t_m / (n - 1) and no network, started in turn (figure 8). */
struct cairn_disagg_rotation {
	int64_t waited, idle;	/* ps: of lanes for busy workers; of workers between two services */
	bool is_exact;		/* every pass takes layers * (t_m + t_a) */
};
void cairn_disagg_rotate(int32_t lanes, struct cairn_disagg_rotation *out);

/*
 * The largest load of a worker divided by the mean load, as a mean over groups of `batch` requests of the
 * trace (figure 9). The load is the number of keys that a worker attends to. in_turn: requests are assigned
 * in turn; least_loaded: each goes to the least loaded worker; heads: workers divide the KV heads of each
 * request.
 */
struct cairn_disagg_balance {
	double in_turn, least_loaded, heads;
	int32_t batches;
};
void cairn_disagg_balance(const struct cairn_trace *trace, const struct cairn_disagg_model *m,
			  int32_t workers, int32_t batch, struct cairn_disagg_balance *out);

/*
 * Returns the microseconds of a pass of each lane if `lanes` lanes of `rows` requests run at once, and each
 * starts its next pass immediately, on one model worker and b attention workers (b 0: on a whole engine).
 * NAN: an operation is too slow to be simulated.
 */
double cairn_disagg_pass_us(const struct cairn_disagg_system *s, int32_t lanes, int32_t rows, int32_t keys);

/*
 * Writes the rows of figures 4, 8 and 9, and those of runs that can be measured on two GPUs; figure 4 and
 * runs are for the kinds of GPUs that limits allow. A trace of fewer than 64 requests has none of figure 9.
 */
void cairn_disagg_write_figures(FILE *f, const char *trace_name, const char *model_name,
				const struct cairn_trace *trace, const struct cairn_disagg_model *m,
				const struct cairn_disagg_hardware *hw,
				const struct cairn_disagg_limits *limits);
/* Writes the comparison per dollar (figure 10); all: also the best way of each set of GPUs (figure 11). */
void cairn_disagg_write_advice(FILE *f, const char *trace_name, const char *model_name,
			       const struct cairn_disagg_advice *advice, bool all);

#endif
