/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_cache - caches answers about devices, because some queries cost more than a launch
 *
 * A question consists of a device's number, a kernel (or another address that stands for the question) and
 * four numbers; its answer is a row of ints. Questions are remembered until the process ends, so their number
 * must be bounded. Any number of threads may call at the same time. A look-up takes no lock.
 */
#ifndef CAIRN_DEVICE_CACHE_H
#define CAIRN_DEVICE_CACHE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct cairn_device_question {
	const void *kernel;
	int32_t number[4];
	int32_t device;
};

/*
 * Copies the answer, `count` ints, to answer. The first call with a question gets the answer from ask(arg,
 * answer), which may itself use this cache. Threads that ask an unknown question at the same time all call
 * ask(), so equal questions must have equal answers and counts. If ask() returns an error, this function
 * returns it and remembers nothing.
 */
int cairn_device_ask(const struct cairn_device_question *question, int32_t *answer, int count,
		     int (*ask)(const void *arg, int32_t *answer), const void *arg);

#ifdef __cplusplus
}
#endif
#endif
