/* SPDX-License-Identifier: Apache-2.0 */
/*
 * turn - only a few of the test processes that share a GPU use it at a time
 *
 * A GPU switches between processes by time slices of a millisecond or more. If sixteen processes have work
 * for it, each call waits for the slices of all others, and a case makes dozens of calls. So a process takes
 * a turn before it sends a case's buffers, and ends it when it has fetched the results. There are several
 * turns, because most of a turn is work of the host: with a single one, one of sixteen processors was busy.
 */
#ifndef CAIRN_TURN_H
#define CAIRN_TURN_H

#include <pthread.h>
#include <stdio.h>

#include "conformance/abi.h"

#define CAIRN_TURNS	4

/*
 * From now on, this process takes turns with the others that use turns[CAIRN_TURNS], robust mutexes in shared
 * memory. number: that of the process; it tells for which turn it waits if all are taken. While it waits, it
 * writes the line "W" to out every second, so that its time-out does not strike. Without this call, or with
 * NULL, both functions below do nothing.
 */
void cairn_turn_share(pthread_mutex_t *turns, int number, FILE *out);

/*
 * Waits for a turn on the table's device. Does nothing for host tables, or if this process already has a
 * turn. If the wait takes 30 s, the process that has the turn is assumed to hang. This process then goes on
 * without one, and no longer waits in later calls.
 */
void cairn_turn_take(const struct cairn_impl *impl);
/* Ends the turn, if the process has one. */
void cairn_turn_end(void);

#endif
