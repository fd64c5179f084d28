/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport_clock - the host's time (transport_now) in kernels, so that ends on two GPUs have one clock
 *
 * The global timers of two GPUs start at different values and drift apart by microseconds per second. Each
 * end therefore measures the offset of its GPU's timer from the host's clock when it opens, and every
 * TRANSPORT_CLOCK_MS after that. A host thread keeps writing its time to pinned memory, and a kernel of one
 * thread reads it. The time is already old when the read returns, so the difference between it and the timer
 * after the read never exceeds the true offset, and the kernel keeps the largest difference of
 * TRANSPORT_CLOCK_ROUNDS reads. If the host thread does not run during a measurement, that difference is too
 * small. A new offset is therefore at least the previous one less 1 / TRANSPORT_CLOCK_DRIFT of the time
 * since.
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
/* Returns the address in GPU memory of the offset: the host's time minus the GPU's global timer, ns. */
const uint64_t *transport_clock_at(const struct transport_clock *c);
uint64_t transport_clock_error(const struct transport_clock *c);	/* ns */

/* transport_stream.cu: enqueues the kernel. clock: the offset, and the timer when it was measured. */
int transport_clock_launch(uint64_t *clock, struct transport_clock_host *host, void *stream);

#ifdef __cplusplus
}
#endif

#endif
