/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dsmem_record - what the times of one dsmem run say, as members of a bench record
 *
 *   latency*      cycles: median, over all pairs of different SMs, of one load in a chain (cluster size 1: of
 *                 own shared memory); min_cycles, max_cycles; window_cycles: own shared memory through the
 *                 cluster's window; matrix (if wanted): [reader's SM, owner's SM,
 *                 cycles] of each pair that met
 *   latency_smem, latency_l2, latency_hbm
 *                 cycles of one load in a chain
 *   load, st_async, bulk, multicast
 *                 tbps_kernel: bytes received by all CTAs over the time from the first start to the last end;
 *                 bytes_per_clk: received by one SM in its own clocks, median
 *   barrier       cycles of one cluster barrier; exchange_cycles with a remote store before, a load after
 *   mbarrier      cycles of one hop (remote arrive, wait); st_async_cycles of a hop that carries 8 bytes
 *   active        active_sms: CTAs seen at once by the kernel; asked_sms: by the occupancy query
 *
 * All but active: active_sms, the CTAs that ran, which at one CTA an SM are SMs.
 */
#ifndef CAIRN_DSMEM_RECORD_H
#define CAIRN_DSMEM_RECORD_H

#include "primitives/machine/dsmem.h"

/* CTAs that ran, and those of them that had started before the first one ended. */
int cairn_dsmem_ran(const struct cairn_dsmem_args *got);
int cairn_dsmem_together(const struct cairn_dsmem_args *got);
/* Appends to the empty string json. 0, or not: it did not fit, or no memory. */
int cairn_dsmem_record(const struct cairn_dsmem_args *got, int matrix, char *json, size_t len);

#endif
