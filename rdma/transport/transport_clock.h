/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport_clock - the host's time (transport_now) in kernels, so that ends on two GPUs have one clock
 *
 * The timers of two GPUs begin and run differently: parts in a million are microseconds a second. So each end
 * measures its own GPU's timer against the host's clock when it opens, and every TRANSPORT_CLOCK_MS after
 * that. A kernel of one thread reads the host's time, which a thread of the host writes without a pause into
 * pinned memory. What it reads is at least as old as the time that the read takes, so host's time minus the
 * GPU's timer behind the read is never too large, and the largest of many rounds is kept. A measurement
 * during which the host's thread did not run is too small: the one before counts then, less
 * 1 / TRANSPORT_CLOCK_DRIFT of the time since.
 *
 * The error is less than the time of the shortest read (transport_clock_error) and one step of the GPU's
 * timer. The part that all reads have in common is the same at both ends of a link and cancels out.
 */
#ifndef CAIRN_TRANSPORT_CLOCK_H
#define CAIRN_TRANSPORT_CLOCK_H

#include <stdint.h>

#define TRANSPORT_CLOCK_ROUNDS	64
#define TRANSPORT_CLOCK_MS	20
#define TRANSPORT_CLOCK_DRIFT	10000

struct transport_clock_host {	/* pinned memory */
	uint64_t now, done, read_ns;
};

struct transport_clock;

#ifdef __cplusplus
extern "C" {
#endif

int transport_clock_start(int gpu, struct transport_clock **c);
void transport_clock_stop(struct transport_clock *c);	/* NULL: does nothing */
/* Memory of the GPU with what its timer lacks to the host's time. */
const uint64_t *transport_clock_at(const struct transport_clock *c);
uint64_t transport_clock_error(const struct transport_clock *c);	/* ns */

/* transport_stream.cu: enqueues the kernel. clock: what the timer lacks, and the timer at that time. */
int transport_clock_launch(uint64_t *clock, struct transport_clock_host *host, void *stream);

#ifdef __cplusplus
}
#endif

#endif
