/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dsmem_record - turns the times of one dsmem run into JSON members of a bench record
 *
 *   latency       cycles: median of one load in a chain over all pairs of different SMs (cluster size 1: of
 *                 own shared memory); min_cycles, max_cycles; window_cycles: own shared memory through the
 *                 cluster's window; matrix (if wanted): [reader's SM, owner's SM, cycles] of each pair
 *                 measured
 *   latency_smem, latency_l2, latency_hbm
 *                 cycles of one load in a chain
 *   load, st_async, bulk, multicast
 *                 tbps_kernel: TB/s, the bytes received by all CTAs over the time from the first start to the
 *                 last end; bytes_per_clk: bytes received by one SM per cycle of its clock, median
 *   barrier       cycles of one cluster barrier; exchange_cycles with a remote store before, a load after
 *   mbarrier      cycles of one hop (remote arrive, wait); st_async_cycles of a hop that carries 8 bytes
 *   active        active_sms: CTAs that ran at the same time; asked_sms: the same by the occupancy query
 *
 * All tests except active also write active_sms, the number of CTAs that ran (with one CTA per SM, of SMs).
 */
#ifndef CAIRN_DSMEM_RECORD_H
#define CAIRN_DSMEM_RECORD_H

#include "primitives/machine/dsmem.h"

/* Returns the number of CTAs that ran. */
int cairn_dsmem_ran(const struct cairn_dsmem_args *got);
/* Returns the number of CTAs that started before the first one ended. */
int cairn_dsmem_together(const struct cairn_dsmem_args *got);
/*
 * Writes the members to json, a buffer of len bytes that must hold the empty string; matrix: whether to
 * include the matrix. Returns 0, or non-zero if the members do not fit or memory is exhausted.
 */
int cairn_dsmem_record(const struct cairn_dsmem_args *got, int matrix, char *json, size_t len);

#endif
