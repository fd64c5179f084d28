/* SPDX-License-Identifier: Apache-2.0 */
/* clock - the monotonic clock in nanoseconds */
#ifndef CAIRN_CLOCK_H
#define CAIRN_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t cairn_clock_ns(void)	/* CLOCK_MONOTONIC */
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

#endif
