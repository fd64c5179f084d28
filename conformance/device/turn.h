/* SPDX-License-Identifier: Apache-2.0 */
/*
 * turn - test processes that share a GPU use it one after the other
 *
 * A GPU switches between processes by time slices of a millisecond or more. If sixteen processes have work
 * for it, each call waits for the slices of all others, and a case makes dozens of calls. So a process takes
 * its turn before it sends a case's buffers, and ends it when it has fetched the results. The GPU then never
 * switches in the middle of a call, and the processes that wait leave the CPU cores to those that compute
 * references.
 */
#ifndef CAIRN_TURN_H
#define CAIRN_TURN_H

#include <pthread.h>
#include <stdio.h>

#include "conformance/abi.h"

/*
 * From now on, this process takes turns with the others that use *turn, a robust mutex in shared memory.
 * While it waits, it writes the line "W" to out every second, so that its time-out does not strike. Without
 * this call, or with NULL, both functions below do nothing.
 */
void cairn_turn_share(pthread_mutex_t *turn, FILE *out);

/*
 * Waits for the device of this table; host tables do not wait. A process that has its turn keeps it. A
 * process that keeps its turn for 30 s is taken to hang in a call: this one then continues without a turn.
 */
void cairn_turn_take(const struct cairn_impl *impl);
/* Ends the turn, if the process has one. */
void cairn_turn_end(void);

#endif
